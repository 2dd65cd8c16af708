//! Lists, page by page: a page has as many elements as were asked for, or fewer where they would make the response
//! larger than `limits.answer_bytes`.

use futures::future::BoxFuture;

use super::{Queues, Result};
use crate::store::{self, PAGE_BYTES, Weight};

/// How many elements are read at once where some are not shown.
const HIDDEN_STEP: usize = 1000;

/// Some elements of a list, and where the next ones begin.
#[derive(Debug, Clone)]
pub struct Page<T, C> {
    /// The elements.
    pub items: Vec<T>,
    /// The cursor of the last element, if there may be more behind it.
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
    /// element that is shown.
    pub(super) async fn page<'a, T: Weight, C: Clone>(
        &self,
        after: Option<&C>,
        limit: usize,
        cursor: impl Fn(&T) -> C,
        shown: impl Fn(&T) -> bool,
        read: impl Fn(Option<C>, usize) -> BoxFuture<'a, store::Result<Vec<T>>>,
    ) -> Result<Page<T, C>> {
        let most = self.options().answer_bytes;
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
            wanted = if items.len() < before + count {
                HIDDEN_STEP
            } else {
                limit.saturating_sub(items.len()) + 1
            };
            if is_last || is_enough || items.len() > limit {
                let fitting = fitting(&items, most).min(limit);
                return Ok(Page::cut(items, fitting, cursor));
            }
        }
    }
}
