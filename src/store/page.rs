//! Pages that end by their bytes: long payloads and results must fill neither the memory nor a response.

use super::picture::{Found, Item};
use super::{ListedJob, ListedSchedule, Memo};
use crate::job::{Base64, Batch, BatchResult, Bulk, Job, Meta, OnFinished, Payload, Schedule};

/// How many bytes end a page: the element that reaches it is the last one.
pub const PAGE_BYTES: usize = 8 << 20;

/// About how many bytes of JSON a job has beside its texts, and a failure, a former queue or a stage within it.
const FIELDS: usize = 256;

/// What a page has of an element.
pub trait Weight {
    /// Returns about how many bytes of JSON it is.
    fn weight(&self) -> usize;
}

impl Weight for Job {
    fn weight(&self) -> usize {
        let json = |value: Option<&Payload>| value.map_or(0, |value| value.as_str().len());
        let Meta { progress, errors, trail, origin, route, .. } = &self.meta;
        let headers =
            self.headers.iter().map(|(name, value)| text(name) + value.as_str().len()).sum::<usize>();
        let errors = errors.iter().map(|failure| FIELDS + text(&failure.message)).sum::<usize>();
        let origin = origin.as_ref().and_then(|origin| origin.error.as_deref()).map_or(0, text);
        let fields = FIELDS * (2 + trail.len() + route.len());
        self.payload.weight()
            + json(self.result.as_ref())
            + json(progress.as_ref())
            + headers
            + errors
            + origin
            + fields
    }
}

/// Returns about how many bytes a payload is in a stored rule.
fn spec_weight(payload: &Payload, base64: Option<&Base64>) -> usize {
    payload.as_str().len() + base64.map_or(0, |Base64(bytes)| bytes.len().div_ceil(3) * 4)
}

/// Returns how many bytes a text is as JSON: control characters are six each.
fn text(text: &str) -> usize {
    let escaped = |byte: u8| match byte {
        0..0x20 => 6,
        b'"' | b'\\' => 2,
        _ => 1,
    };
    text.bytes().map(escaped).sum()
}

impl Weight for ListedJob {
    fn weight(&self) -> usize {
        match self {
            Ok(job) => job.weight(),
            Err(unreadable) => {
                let remains = unreadable.remains.as_ref().map_or(0, |job| job.weight());
                FIELDS + text(&unreadable.why) + remains
            }
        }
    }
}

impl Weight for BatchResult {
    fn weight(&self) -> usize {
        self.result.as_ref().map_or(0, |result| result.as_str().len())
    }
}

impl Weight for Batch {
    fn weight(&self) -> usize {
        let stages = |job: &OnFinished| FIELDS * (1 + job.then.len());
        self.on_finished
            .as_ref()
            .map_or(0, |job| spec_weight(&job.payload, job.payload_base64.as_ref()) + stages(job))
            + FIELDS
    }
}

impl Weight for Bulk {
    fn weight(&self) -> usize {
        FIELDS
    }
}

impl Weight for Schedule {
    fn weight(&self) -> usize {
        let job = &self.rule.job;
        spec_weight(&job.payload, job.payload_base64.as_ref())
    }
}

impl Weight for ListedSchedule {
    fn weight(&self) -> usize {
        self.as_ref().map_or(0, Weight::weight)
    }
}

impl Weight for Memo {
    fn weight(&self) -> usize {
        match self {
            Self::Answer { answer, .. } => FIELDS + answer.len(),
            Self::Receipt { .. } | Self::Request { .. } | Self::Deliveries { .. } => FIELDS,
        }
    }
}

impl Weight for Item {
    fn weight(&self) -> usize {
        match self {
            Self::Job(job) => job.weight(),
            Self::Batch(batch) => batch.weight(),
            Self::BatchResult(_, result) => FIELDS + result.weight(),
            Self::Memo(memo) => memo.weight(),
            Self::Schedule(schedule) => FIELDS + schedule.weight(),
            // They have conditions, or what a schedule was, of which a restore reads pages.
            Self::Operation(_) | Self::Audit(_) => 32 << 10,
            _ => FIELDS,
        }
    }
}

impl Weight for Found {
    fn weight(&self) -> usize {
        match self {
            Ok(item) => item.weight(),
            Err(spoiled) => {
                let stand_in = spoiled.stand_in.as_ref().map_or(0, |job| job.weight());
                FIELDS + text(&spoiled.why) + stand_in
            }
        }
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

    /// Returns how many more it takes at most.
    pub fn room(&self) -> usize {
        self.limit - self.items.len().min(self.limit)
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
