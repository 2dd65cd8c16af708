//! The part of the contract that is about semaphores.

use async_trait::async_trait;

use super::Result;
use crate::job::semaphore::Waiter;
use crate::job::{
    BatchId, JobId, Meta, OnFinished, QueueName, Rules, SemaphoreName, State, Timestamp, WorkerName,
};

/// The most queues in which one call unblocks jobs of a semaphore.
pub const UNBLOCKED_QUEUES_MAX: usize = 64;

/// A job that holds a semaphore.
#[derive(Debug, Clone, PartialEq)]
pub struct Holder {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// The worker that reserved it, where the reserve named one.
    pub worker: Option<WorkerName>,
    /// When it was delivered.
    pub started_at: Option<Timestamp>,
    /// When the reservation runs out.
    pub reserved_until: Timestamp,
}

/// A semaphore and how it is used.
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

/// How many jobs hold a semaphore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SemaphoreUse {
    /// Its name.
    pub name: SemaphoreName,
    /// How many jobs may hold it at once.
    pub capacity: u64,
    /// How many jobs hold it. More than its capacity where that was lowered.
    pub held: u64,
}

/// What became of the removal of a semaphore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Done,
    /// There is none.
    Unknown,
    /// Jobs need it, which wait, are held, or are dead and may be redriven, or are pushed at the end of a batch; it stays.
    InUse(Needed),
}

/// The jobs that need a semaphore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needed {
    /// How many there are; [`NEEDED_MAX`] stands for more as well.
    pub jobs: u64,
    /// Some of them: their ids, their queues and their states.
    pub some: Vec<(JobId, QueueName, State)>,
    /// Where there are none: some batches whose callbacks need it and are still to be pushed, and where these go.
    pub callbacks: Vec<(BatchId, QueueName)>,
}

/// Returns where the callback of a batch goes, as stores keep it, if it needs the semaphore.
pub(super) fn needed_for_callback(on_finished: &str, name: &SemaphoreName) -> Option<QueueName> {
    let callback: OnFinished = serde_json::from_str(on_finished).ok()?;
    callback.semaphores.contains(name).then_some(callback.queue)
}

/// Up to how many jobs that need a semaphore are counted.
pub const NEEDED_MAX: usize = 1000;
/// How many of them are named.
pub const NEEDED_NAMED: usize = 5;
/// The states of such jobs.
pub const NEEDING: [State; 4] = [State::Reserved, State::Blocked, State::Ready, State::Dead];

/// A job that is ready again because a semaphore has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unblocked {
    /// Its queue.
    pub queue: QueueName,
    /// Its priority.
    pub priority: i32,
    /// When it is due.
    pub run_at: Timestamp,
}

impl Unblocked {
    /// Sorts jobs: the highest priority first, then the earliest `run_at`.
    pub fn sort(jobs: &mut [Self]) {
        jobs.sort_by_key(|job| (-i64::from(job.priority), job.run_at));
    }
}

/// Semaphores: shared limits on how many jobs are reserved at once.
#[async_trait]
pub trait Semaphores {
    /// Returns semaphores by name, those after `after`, with their capacities. Cheap: it reads no jobs.
    async fn capacities(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
    ) -> Result<Vec<(SemaphoreName, u64)>>;

    /// Returns those of these semaphores that exist, as they are used now, in any order.
    async fn semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreView>>;

    /// Returns how many jobs hold those of these semaphores that exist, in any order; the jobs that wait are not counted.
    async fn uses(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreUse>>;

    /// Returns the jobs that hold the semaphore, those first whose reservations run out first.
    async fn holders(&self, name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>>;

    /// Returns those of these names that no semaphore has. Cheap.
    async fn unknown_semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreName>>;

    /// Returns the first semaphore of this job whose room is all kept for jobs before it, and the first of those.
    async fn kept_from(&self, job: &Meta, rules: &Rules) -> Result<Option<(SemaphoreName, Waiter)>>;

    /// Creates a semaphore, or changes its capacity. Where that is lowered, its holders keep it.
    async fn save_semaphore(&self, name: &SemaphoreName, capacity: u64) -> Result<()>;

    /// Removes a semaphore that no job needs, be it done ones, nor the callback of a batch that is not over.
    async fn remove_semaphore(&self, name: &SemaphoreName) -> Result<Removal>;

    /// Returns semaphores by which jobs are blocked, by name, those after `after`. One seek for each.
    async fn waited_for(&self, after: Option<&SemaphoreName>, limit: usize) -> Result<Vec<SemaphoreName>>;

    /// Makes jobs ready that are blocked by one of these semaphores which now has room for them, the first of
    /// each queue, and returns them, the highest priority first. Idempotent: a job that was unblocked and is
    /// not claimed yet takes up room.
    async fn unblock_waiters(&self, names: &[SemaphoreName], rules: &Rules) -> Result<Vec<Unblocked>>;
}
