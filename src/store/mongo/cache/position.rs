//! Positions in the order of delivery.

use crate::job::{Meta, Timestamp};

/// A position in the order of delivery: the lower priority is the later one. Jobs that differ in their ids only share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The job's priority.
    pub priority: i32,
    /// When the job is due.
    pub run_at: Timestamp,
}

impl Position {
    /// Returns where this job stands.
    pub fn of(meta: &Meta) -> Self {
        Self { priority: meta.priority, run_at: meta.run_at }
    }

    /// Whether it comes before the other one.
    pub fn is_before(&self, other: &Self) -> bool {
        (other.priority, self.run_at) < (self.priority, other.run_at)
    }

    /// Returns which of the two comes first.
    pub fn earlier(self, other: Option<Self>) -> Self {
        other.filter(|other| other.is_before(&self)).unwrap_or(self)
    }
}
