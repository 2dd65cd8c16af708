//! Lists, page by page: a page has as many elements as were asked for, or fewer where they would make the response
//! larger than `limits.answer_bytes`, or, of a list of which few may be shown of many, where that many were read for a while.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use super::{Queues, Result};
use crate::store::{self, PAGE_BYTES, Weight};

/// How many elements are read at once where some are not shown.
const HIDDEN_STEP: usize = 1000;
/// How long elements are read for one page, in about, where few may be shown of many.
pub(super) const TIME: Duration = Duration::from_millis(600);

/// Some elements of a list, and where the next ones begin.
#[derive(Debug, Clone)]
pub struct Page<T, C> {
    /// The elements.
    pub items: Vec<T>,
    /// Where the next page begins, if there may be more.
    pub next: Option<C>,
}

impl<T, C> Page<T, C> {
    /// Returns a page of at most `limit` elements out of those that were read, which are one more if there
    /// are more.
    pub(super) fn cut(mut items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> C) -> Self {
        let more = items.len() > limit;
        items.truncate(limit);
        let next = if more { items.last().map(cursor) } else { None };
        Self { items, next }
    }
}

/// Returns how many of these elements one response of so many bytes carries: at least one.
pub(super) fn fitting<T: Weight>(items: &[T], bytes: usize) -> usize {
    let mut total = 0;
    let fits = |item: &&T| {
        total += item.weight();
        total <= bytes
    };
    items.iter().take_while(fits).count().max(1)
}

impl Queues {
    /// Returns a page of those elements that are shown, out of a list of the store, after a cursor. Its own cursor is that of an
    /// element that is shown: it may be a name. `time`: that of a list of ids ends after so long, with the id of the last element that was
    /// read.
    pub(super) async fn page<'a, T: Weight, C: Clone>(
        &self,
        after: Option<&C>,
        limit: usize,
        time: Option<Duration>,
        cursor: impl Fn(&T) -> C,
        shown: impl Fn(&T) -> bool,
        read: impl Fn(Option<C>, usize) -> BoxFuture<'a, store::Result<Vec<T>>>,
    ) -> Result<Page<T, C>> {
        let (most, end) = (self.options().answer_bytes, time.map(|time| Instant::now() + time));
        page((after, limit), (most, end), cursor, shown, read).await
    }
}

/// Returns a page of `limit` elements and `most` bytes at most, for which none are read past its end.
async fn page<'a, T: Weight, C: Clone>(
    (after, limit): (Option<&C>, usize),
    (most, end): (usize, Option<Instant>),
    cursor: impl Fn(&T) -> C,
    shown: impl Fn(&T) -> bool,
    read: impl Fn(Option<C>, usize) -> BoxFuture<'a, store::Result<Vec<T>>>,
) -> Result<Page<T, C>> {
    let (mut items, mut bytes, mut after): (Vec<T>, usize, _) = (Vec::new(), 0, after.cloned());
    let mut wanted = limit + 1;
    loop {
        let part = read(after, wanted).await?;
        let (count, weight) = (part.len(), part.iter().map(T::weight).sum::<usize>());
        after = part.last().map(&cursor);
        let before = items.len();
        items.extend(part.into_iter().filter(&shown));
        bytes += items[before..].iter().map(T::weight).sum::<usize>();
        // The store ends a page early where its elements are long.
        let is_last = count < wanted && weight < PAGE_BYTES;
        let is_enough = bytes > most && items.len() > 1;
        wanted =
            if items.len() < before + count { HIDDEN_STEP } else { limit.saturating_sub(items.len()) + 1 };
        if is_last || is_enough || items.len() > limit {
            let fitting = fitting(&items, most).min(limit);
            return Ok(Page::cut(items, fitting, cursor));
        }
        if end.is_some_and(|end| end <= Instant::now()) {
            return Ok(Page { items, next: after });
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::job::batch::Ending;
    use crate::job::{BatchResult, Timestamp};

    #[tokio::test]
    async fn a_page_ends_where_little_is_shown_for_long() {
        let result = |n: usize| BatchResult {
            id: format!("{n:06}").parse().unwrap(),
            queue: "q".parse().unwrap(),
            state: Ending::Done,
            result: None,
            finished_at: Timestamp::default(),
        };
        let all: Vec<BatchResult> = (0..5000).map(result).collect();
        let read = |after: Option<usize>, limit: usize| {
            let first = after.map_or(0, |after| after + 1);
            let part: Vec<BatchResult> = all[first..].iter().take(limit).cloned().collect();
            async move { store::Result::Ok(part) }.boxed()
        };
        let number = |result: &BatchResult| result.id.as_str().parse::<usize>().unwrap();
        let shown = |result: &BatchResult| [2, 4000].contains(&number(result));
        let ends_by = async |end| {
            let (mut after, mut pages): (Option<usize>, Vec<Vec<usize>>) = (None, Vec::new());
            loop {
                let page = page((after.as_ref(), 10), (1 << 20, end), number, shown, read).await.unwrap();
                pages.push(page.items.iter().map(number).collect());
                after = page.next;
                if after.is_none() {
                    return pages;
                }
            }
        };
        let now = Instant::now();
        let by_time = ends_by(Some(now)).await;
        assert!(by_time.len() > 100, "a read for each");
        assert_eq!(by_time.concat(), [2, 4000]);
        assert_eq!(ends_by(Some(now + Duration::from_secs(3600))).await, [[2, 4000]]);
        assert_eq!(ends_by(None).await, [[2, 4000]]);
    }
}
