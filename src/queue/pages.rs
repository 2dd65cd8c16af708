//! Lists, page by page: a page has as many elements as were asked for, or fewer where they would make the response
//! larger than `limits.answer_bytes`.

use futures::future::BoxFuture;

use super::{Queues, Result};
use crate::store::{self, PAGE_BYTES, Weight};

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
    /// Returns a page of elements that are read from a list of the store, those after a cursor.
    pub(super) async fn page<'a, T: Weight, C: Clone>(
        &self,
        after: Option<&C>,
        limit: usize,
        cursor: impl Fn(&T) -> C,
        read: impl Fn(Option<C>, usize) -> BoxFuture<'a, store::Result<Vec<T>>>,
    ) -> Result<Page<T, C>> {
        let most = self.options().answer_bytes;
        let (mut items, mut bytes, mut after): (Vec<T>, usize, _) = (Vec::new(), 0, after.cloned());
        loop {
            let wanted = limit + 1 - items.len();
            let part = read(after, wanted).await?;
            let (count, weight) = (part.len(), part.iter().map(T::weight).sum::<usize>());
            after = part.last().map(&cursor);
            items.extend(part);
            bytes += weight;
            // The store ends a page early where its elements are long.
            let is_enough = bytes > most && items.len() > 1;
            if count == wanted || weight < PAGE_BYTES || is_enough {
                let fitting = fitting(&items, most).min(limit);
                return Ok(Page::cut(items, fitting, cursor));
            }
        }
    }
}
