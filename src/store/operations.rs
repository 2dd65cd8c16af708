//! The part of the contract that is about operations over many jobs: each is one record, and each of its steps is one transaction over
//! jobs and that record, guarded by its revision.

use std::sync::Arc;

use async_trait::async_trait;

use super::{Applied, AuditRow, Change, Denied, KeyedCall, Pushed, Recalled, Result};
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

/// Returns the row that is written with a record, if one is.
pub type BulkRow = Arc<dyn Fn(&Bulk) -> Option<AuditRow> + Send + Sync>;

/// What is remembered of a keyed call together with the operation that it stores: so its absence proves that the operation was not
/// stored, however long ago that was over.
#[derive(Debug, Clone)]
pub struct BegunBy {
    /// The call.
    pub call: KeyedCall,
    /// What is remembered of it: the operation.
    pub answer: String,
}

impl BegunBy {
    /// Whether that was remembered before. Another operation is that of an earlier call, whose key was forgotten since.
    pub fn was_there(&self, recalled: Option<&Recalled>) -> bool {
        matches!(recalled, Some(Recalled::Answer(answer)) if *answer == self.answer)
    }
}

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
    /// The row that is written with that.
    pub row: BulkRow,
}

/// Operations over many jobs.
#[async_trait]
pub trait Operations: Send + Sync {
    /// Stores an operation, together with the row of it, and with what is remembered of its call. Returns whether it is new: it is not
    /// stored where there is one of its id, and where that is remembered already.
    async fn add_operation(
        &self,
        operation: &Bulk,
        row: Option<&AuditRow>,
        by: Option<&BegunBy>,
    ) -> Result<bool>;

    /// Returns an operation.
    async fn operation(&self, id: &BulkId) -> Result<Option<Bulk>>;

    /// Returns operations, the newest first, those before `before`.
    async fn operations(&self, before: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>>;

    /// Returns operations that are not over, the oldest first, those after `after`.
    async fn open_operations(&self, after: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>>;

    /// Replaces the record of an operation if its revision is still the one that was seen, together with a row. Returns whether it was.
    async fn save_operation(&self, to: &Bulk, seen: i64, row: Option<&AuditRow>) -> Result<bool>;

    /// Does what a step does, each change for itself, and replaces the record of its operation, all of it or nothing. Returns nothing
    /// where the record is not of the revision that was seen: then nothing was done.
    ///
    /// A queue that jobs are moved to takes no more than `rules` allow; the others are denied. Where the database refuses to write one of
    /// the jobs (`NotUnique`, `Unreadable`) the step fails, and nothing was done.
    async fn step_operation(&self, step: BulkStep, rules: &Rules) -> Result<Option<BulkDone>>;
}
