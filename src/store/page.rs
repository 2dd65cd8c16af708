//! Pages that end by their bytes: long payloads and results must fill neither the memory nor a response.

use super::ListedSchedule;
use crate::job::{BatchResult, Job};

/// How many bytes of payloads and results end a page: the element that reaches it is the last one.
pub const PAGE_BYTES: usize = 8 << 20;

/// What a page has of an element.
pub trait Weight {
    /// Returns how many bytes its payload and its result have.
    fn weight(&self) -> usize;
}

impl Weight for Job {
    fn weight(&self) -> usize {
        self.payload.as_str().len() + self.result.as_ref().map_or(0, |result| result.as_str().len())
    }
}

impl Weight for BatchResult {
    fn weight(&self) -> usize {
        self.result.as_ref().map_or(0, |result| result.as_str().len())
    }
}

impl Weight for ListedSchedule {
    fn weight(&self) -> usize {
        self.as_ref().map_or(0, |schedule| schedule.rule.job.payload.as_str().len())
    }
}

/// Elements that are read one by one, until there are enough or [`PAGE_BYTES`] of them.
pub struct PageBuilder<T> {
    items: Vec<T>,
    limit: usize,
    bytes: usize,
}

impl<T: Weight> PageBuilder<T> {
    /// Returns an empty page that takes so many elements.
    pub fn new(limit: usize) -> Self {
        Self { items: Vec::new(), limit, bytes: 0 }
    }

    /// Returns whether it takes no more.
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.limit || self.bytes >= PAGE_BYTES
    }

    /// Adds an element.
    pub fn push(&mut self, item: T) {
        self.bytes += item.weight();
        self.items.push(item);
    }

    /// Returns the elements.
    pub fn into_items(self) -> Vec<T> {
        self.items
    }
}
