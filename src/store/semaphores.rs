//! The part of the contract that is about semaphores.

use async_trait::async_trait;

use super::Result;
use crate::job::{JobId, QueueName, Rules, SemaphoreName, Timestamp, WorkerName};

/// A job that holds a semaphore.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Who reserved it, where the reserve gave a name.
    pub worker: Option<WorkerName>,
    /// When the reservation runs out.
    pub reserved_until: Timestamp,
}

/// A semaphore and who uses it.
#[derive(Debug, Clone, PartialEq)]
pub struct SemaphoreView {
    /// Its name.
    pub name: SemaphoreName,
    /// How many jobs may hold it at once.
    pub capacity: u64,
    /// How many jobs hold it. More than its capacity where that was lowered.
    pub held: u64,
    /// How many jobs that need it are blocked or, while it is full, ready.
    pub waiting: u64,
}

/// What became of the removal of a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Done,
    /// There is none.
    Unknown,
    /// An unfinished job needs it; it stays.
    InUse,
}

/// A job that is ready again because a semaphore has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// Its queue.
    pub queue: QueueName,
    /// Its priority.
    pub priority: i32,
    /// When it is due.
    pub run_at: Timestamp,
}

impl Called {
    /// Sorts jobs: the highest priority first, then the earliest `run_at`.
    pub fn sort(called: &mut [Self]) {
        called.sort_by_key(|called| (-i64::from(called.priority), called.run_at));
    }
}

/// Semaphores: shared limits on how many jobs are reserved at once.
#[async_trait]
pub trait Semaphores {
    /// Semaphores by name, from the one behind `after` on, with their capacities. Cheap: it reads no jobs.
    async fn capacities(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
    ) -> Result<Vec<(SemaphoreName, u64)>>;

    /// Those of these semaphores that there are, as they are used now, in any order.
    async fn semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreView>>;

    /// The jobs that hold the semaphore, those first whose reservations run out first.
    async fn holders(&self, name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>>;

    /// Those of these names that there are no semaphores of. Cheap.
    async fn unknown_semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreName>>;

    /// Makes a semaphore, or changes its capacity. Where that is lowered, who holds it keeps it.
    async fn save_semaphore(&self, name: &SemaphoreName, capacity: u64) -> Result<()>;

    /// Removes a semaphore that no unfinished job needs.
    async fn remove_semaphore(&self, name: &SemaphoreName) -> Result<Removal>;

    /// Makes those ready again that are blocked by one of these semaphores which now has room for them (`None`: by any
    /// at all), the first of each queue, and answers them, the highest priority first. Idempotent: who was called and
    /// not claimed yet is counted.
    async fn unblock_waiters(&self, names: Option<&[SemaphoreName]>, rules: &Rules) -> Result<Vec<Called>>;
}
