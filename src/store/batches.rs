//! What a store does for batches, beside counting the jobs that finish: that happens in [`Jobs::apply`].
//!
//! [`Jobs::apply`]: super::Jobs::apply

use async_trait::async_trait;

use super::{PushRefused, Result, StoreError};
use crate::job::batch::only_duplicates;
use crate::job::{Batch, BatchId, BatchResult, Child, JobId, NewJob, QueueName, Rules, Timestamp};

/// Where a job was stored that was not pushed by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CalledBack {
    /// Its queue.
    pub queue: QueueName,
    /// When it is due.
    pub run_at: Timestamp,
    /// When it is removed unless it is reserved or finished.
    pub expires_at: Option<Timestamp>,
}

impl From<&NewJob> for CalledBack {
    fn from(job: &NewJob) -> Self {
        Self { queue: job.queue.clone(), run_at: job.run_at, expires_at: job.expires_at() }
    }
}

/// What a call does to a batch.
#[derive(Debug, Clone)]
pub enum BatchChange {
    /// See [`Batches::create_batch`].
    Create(Box<Batch>),
    /// See [`Batches::add_to_batch`].
    Add(BatchId),
    /// See [`Batches::seal_batch`].
    Seal(BatchId),
    /// See [`Batches::count_lost`].
    Lose(BatchId, u64),
}

impl BatchChange {
    /// Returns why it is denied where there is no such batch (`None`), or one that is sealed or not. A batch that is
    /// created is not there yet.
    pub(super) fn denied(&self, sealed: Option<bool>) -> Option<BatchDenied> {
        match (self, sealed) {
            (Self::Create(_), _)
            | (Self::Add(_), Some(false))
            | (Self::Seal(_) | Self::Lose(..), Some(_)) => None,
            (Self::Add(_), Some(true)) => Some(BatchDenied::Sealed),
            (Self::Add(_) | Self::Seal(_) | Self::Lose(..), None) => Some(BatchDenied::Unknown),
        }
    }
}

/// What has become of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchChanged {
    /// The batch as it is now.
    pub batch: Batch,
    /// The jobs that were added, in the order in which they were asked for.
    pub pushed: Vec<Child>,
    /// Its callback, if this very change pushed it.
    pub callback: Option<CalledBack>,
}

/// Why a change of a batch did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BatchDenied {
    /// There is no such batch.
    #[error("there is no such batch")]
    Unknown,
    /// It takes no more jobs.
    #[error("the batch is sealed")]
    Sealed,
    /// All of the jobs that it was to be created with are duplicates of jobs that are there, this one first: it would count none
    /// of them, and end before they have.
    #[error("all of its jobs are duplicates")]
    OnlyDuplicates(JobId),
    /// One of the jobs was refused.
    #[error("the push of a job was refused: {0:?}")]
    PushRefused(PushRefused),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl BatchDenied {
    /// Returns why jobs do not come to a batch that has counted so many before them, by what is said of each.
    pub(super) fn by_pushes(counted: u64, pushed: &[Child]) -> Option<Self> {
        only_duplicates(counted, pushed).map(|first| Self::OnlyDuplicates(first.clone()))
    }
}

/// The part of a store that is about batches.
#[async_trait]
pub trait Batches {
    /// Stores a new batch and its first jobs, which name it: all of that, or nothing. A job whose key is
    /// taken by one with an equal payload is not counted; where that holds for all of them, and there are some, the batch is denied.
    /// Where nothing is pending in a sealed batch, it ends at once.
    async fn create_batch(
        &self,
        batch: Batch,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied>;

    /// Adds jobs, which name it, to a batch that is not sealed: all of them, or none.
    async fn add_to_batch(
        &self,
        id: &BatchId,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied>;

    /// Takes no more jobs; where none is pending, the batch ends. Sealing again changes nothing.
    async fn seal_batch(&self, id: &BatchId, rules: &Rules) -> Result<BatchChanged, BatchDenied>;

    /// Counts so many of its pending jobs, which are not there any more, as dead; where none is pending then in a sealed batch, it ends.
    /// A repeat counts again.
    async fn count_lost(&self, id: &BatchId, lost: u64, rules: &Rules) -> Result<BatchChanged, BatchDenied>;

    /// Returns the batch.
    async fn batch(&self, id: &BatchId) -> Result<Option<Batch>>;

    /// Returns what is kept of its jobs that have ended, by their ids, those after `after`.
    async fn batch_results(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<BatchResult>>;

    /// Returns its jobs that have not finished, by id, those after `after`.
    async fn unfinished_in_batch(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>>;

    /// Returns the batches behind `after`, by id; those that cannot be read are left out. Up to `limit`, fewer where they have
    /// [`PAGE_BYTES`](super::PAGE_BYTES).
    async fn batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>>;

    /// Returns every batch, by id, those after `after`: up to `limit`, fewer where they are long, and none only where there are
    /// no more.
    async fn export_batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>>;

    /// Stores a batch of another store as it is, and some of its results. What is there already stays: where the batch, or one
    /// of these results, is there and another, nothing is stored. Returns whether what is there now is equal.
    async fn import_batch(&self, batch: Batch, results: Vec<BatchResult>) -> Result<bool>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_batch_takes_no_jobs() {
        let id = || -> BatchId { "B".parse().unwrap() };
        let batch = Batch::new(id(), "C".parse().unwrap(), None, false, Timestamp::from_millis(1));
        let create = BatchChange::Create(Box::new(batch));
        assert!(create.denied(None).is_none());
        let (add, seal) = (BatchChange::Add(id()), BatchChange::Seal(id()));
        assert!(add.denied(Some(false)).is_none());
        assert!(matches!(add.denied(Some(true)), Some(BatchDenied::Sealed)));
        assert!(matches!(add.denied(None), Some(BatchDenied::Unknown)));
        assert!(matches!(seal.denied(None), Some(BatchDenied::Unknown)));
        assert!(seal.denied(Some(true)).is_none() && seal.denied(Some(false)).is_none());
        let child = |deduplicated| {
            let (id, queue) = ("O".parse().unwrap(), "q".parse().unwrap());
            Child { id, queue, run_at: Timestamp::from_millis(1), deduplicated, replaced: false }
        };
        assert!(matches!(BatchDenied::by_pushes(0, &[child(true)]), Some(BatchDenied::OnlyDuplicates(_))));
        assert!(BatchDenied::by_pushes(0, &[child(true), child(false)]).is_none());
        assert!(
            BatchDenied::by_pushes(0, &[]).is_none() && BatchDenied::by_pushes(1, &[child(true)]).is_none()
        );
    }
}
