//! The part of the contract that is about operations over many jobs: each is one record, and each of its steps is one transaction over
//! jobs and that record, guarded by its revision.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Applied, AuditRow, Change, Denied, Pushed, Result};
use crate::job::{Bulk, BulkId, NewJob, Rules};

/// How many operations that are over are kept at most.
pub const KEPT_MAX: usize = 1000;
/// How long one that is over is kept, in milliseconds: a week.
pub const KEPT_MS: u64 = 7 * 86_400_000;

/// What a step of an operation does.
#[derive(Debug, Clone)]
pub enum BulkEffect {
    /// Changes different jobs.
    Change(Vec<Change>),
    /// Pushes jobs without keys.
    Push(Vec<NewJob>),
}

/// What a step has come to.
#[derive(Debug)]
pub enum BulkDone {
    /// What has become of each change.
    Changed(Vec<Result<Applied, Denied>>),
    /// What has become of each job.
    Pushed(Vec<Pushed>),
}

/// Returns the record as it is once a step has come to this.
pub type BulkNext = Arc<dyn Fn(&BulkDone) -> Bulk + Send + Sync>;

/// A step of an operation.
#[derive(Clone)]
pub struct BulkStep {
    /// What it does.
    pub effect: BulkEffect,
    /// The operation.
    pub id: BulkId,
    /// The revision that its record must have.
    pub seen: i64,
    /// The record from then on.
    pub next: BulkNext,
}

/// Operations over many jobs.
#[async_trait]
pub trait Operations: Send + Sync {
    /// Stores an operation, together with the row of it. Returns whether it is new: nothing is stored where there is one of its id.
    async fn add_operation(&self, operation: &Bulk, row: Option<&AuditRow>) -> Result<bool>;

    /// Returns an operation.
    async fn operation(&self, id: &BulkId) -> Result<Option<Bulk>>;

    /// Returns operations, the newest first, those before `before`.
    async fn operations(&self, before: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>>;

    /// Returns the operations that are not over, the oldest first.
    async fn open_operations(&self, limit: usize) -> Result<Vec<Bulk>>;

    /// Replaces the record of an operation if its revision is still the one that was seen, together with a row. Returns whether it was.
    async fn save_operation(&self, to: &Bulk, seen: i64, row: Option<&AuditRow>) -> Result<bool>;

    /// Does what a step does, each change for itself, and replaces the record of its operation, all of it or nothing. Returns nothing
    /// where the record is not of the revision that was seen: then nothing was done.
    ///
    /// A queue that jobs are moved to takes no more than `rules` allow; the others are denied.
    async fn step_operation(&self, step: BulkStep, rules: &Rules) -> Result<Option<BulkDone>>;
}
