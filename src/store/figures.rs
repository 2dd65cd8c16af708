//! The part of the contract that is about figures: how many jobs there are in each state.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::job::{GroupName, JobId, QueueName, SemaphoreName, State, Timestamp};

/// How many jobs of a queue are in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Can be delivered now.
    pub ready: u64,
    /// Wait for their `run_at`.
    pub scheduled: u64,
    /// Held by workers.
    pub reserved: u64,
    /// Wait for their group or a semaphore.
    pub blocked: u64,
    /// Used up their attempts.
    pub dead: u64,
    /// Kept as history.
    pub done: u64,
}

impl Counts {
    /// Returns the count of jobs in this state, of which those that are ready may be scheduled.
    pub fn of(&mut self, state: State, is_scheduled: bool) -> &mut u64 {
        match state {
            State::Ready if is_scheduled => &mut self.scheduled,
            State::Ready => &mut self.ready,
            State::Reserved => &mut self.reserved,
            State::Blocked => &mut self.blocked,
            State::Done => &mut self.done,
            State::Dead => &mut self.dead,
        }
    }
}

/// The figures of one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// The `run_at` of the job that has been ready for longest; in a queue where much happens, it may be that
    /// of one that was so a few seconds ago.
    pub oldest_ready: Option<Timestamp>,
    /// Whether that was looked up a while ago, and the queue has changed since.
    pub oldest_is_approximate: bool,
    /// When it was looked up, by the store's clock, where it is approximate.
    pub oldest_seen: Option<Timestamp>,
    /// Whether the split of `ready` and `scheduled` is of a moment ago; their sum never is.
    pub split_is_approximate: bool,
}

/// The figures of all queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// All queues together; `oldest_ready` is that of the queues in `queues`.
    pub total: QueueCounts,
    /// How many queues have jobs.
    pub count: u64,
    /// The queues with the most unfinished jobs.
    pub queues: HashMap<QueueName, QueueCounts>,
}

/// How many jobs of a queue are scanned for its [`Load`], of those that are due, that are scheduled, and that workers hold.
pub const SCAN_LIMIT: u64 = 10_000;

/// How many scheduled jobs, and how many reserved ones, are scanned for the [`Load`] of all queues together. Whole jobs are read, and
/// payloads may be large.
pub const ALL_SCAN_LIMIT: u64 = 2000;
/// In how many queues due jobs are scanned for it.
pub const QUEUES_SCAN_LIMIT: usize = 20;
/// How many of each of these queues.
pub const DUE_SCAN_LIMIT: u64 = 100;

/// Who works on a queue, or on all of them, and what is tried again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Scheduled jobs that were delivered before.
    pub backoff: u64,
    /// The `run_at` of the due job that has been so for longest, of those that were never delivered.
    pub oldest_first: Option<Timestamp>,
    /// The same of those that were.
    pub oldest_retried: Option<Timestamp>,
    /// Jobs that workers have held for less than a minute, less than ten, less than an hour, and longer.
    pub reserved: [u64; 4],
    /// How many named workers hold some.
    pub workers: u64,
    /// Whether there are more scheduled or reserved jobs than were scanned.
    pub is_partial: bool,
    /// Whether there are more due jobs than were scanned, so that older ones may be among the others.
    pub ages_are_partial: bool,
}

/// The ages that divide what workers hold, in milliseconds.
pub const RESERVED_AGES_MS: [u64; 3] = [60_000, 600_000, 3_600_000];

/// How many dead jobs of a queue, and how many blocked ones, are scanned for its [`Blockers`].
pub const BLOCKED_SCAN_LIMIT: u64 = 1000;

/// What may keep the blocked jobs of a queue from ever being delivered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blockers {
    /// How many groups are held by a dead job, of the [`BLOCKED_SCAN_LIMIT`] oldest dead jobs.
    pub dead_heads: u64,
    /// The oldest of these dead jobs.
    pub head: Option<DeadHead>,
    /// The semaphores that the [`BLOCKED_SCAN_LIMIT`] oldest blocked jobs wait for, by name.
    pub semaphores: Vec<SemaphoreName>,
}

/// A dead job that is the first of its group, and holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadHead {
    /// The job.
    pub id: JobId,
    /// Its group.
    pub group: GroupName,
    /// When it died, where that is known.
    pub since: Option<Timestamp>,
}

/// What there may be a limited number of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// Queues that have jobs.
    Queues,
    /// Queues that have settings.
    Settings,
    /// Workers that have sent a heartbeat, until they are forgotten.
    Workers,
    /// Schedules.
    Schedules,
    /// Semaphores.
    Semaphores,
    /// Reserves with an `Idempotency-Key`, until they are forgotten.
    Requests,
}

impl Named {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Queues, Self::Settings, Self::Workers, Self::Schedules, Self::Semaphores, Self::Requests];
}

/// What a store has done for its figures.
#[derive(Debug, Clone, Copy)]
pub struct Reconciled {
    /// By how many jobs counters were off that are right now.
    pub corrected: u64,
    /// When it wants to go on.
    pub again_in: Duration,
    /// Whether all counters that it knew to be uncertain are right now.
    pub is_settled: bool,
}

/// What a database takes on its disk, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// The data; the indexes as well where they are not counted separately.
    pub data: u64,
    /// The indexes.
    pub indexes: Option<u64>,
    /// What has been written and is not part of the data yet.
    pub log: Option<u64>,
}

/// The connections of a server to its database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pool {
    /// The most that there may be, to each member.
    pub most: u64,
    /// How many are open and unused.
    pub idle: u64,
    /// How many are in use.
    pub in_use: u64,
    /// How many calls wait for one.
    pub waiting: u64,
    /// How many were opened since the start.
    pub opened: u64,
    /// How many calls got none since the start.
    pub failed: u64,
}

/// How many jobs there are. Counts are kept with every write, never taken by walking over the jobs.
#[async_trait]
pub trait Figures: Send + Sync {
    /// Returns the figures of all queues that have jobs, and of each of the `most` with the most unfinished jobs, without
    /// counting jobs: what this instance has done is in them at once, what others have done within a second. Writes
    /// that could not be counted (of a server that was killed, of unknown outcome, by other programs) are in them
    /// after [`Figures::reconcile`].
    async fn summary(&self, most: usize) -> Result<Summary>;

    /// Returns the figures of one queue, as [`Figures::summary`] does, at a cost that does not depend on how many others
    /// there are.
    async fn counts(&self, queue: &QueueName) -> Result<QueueCounts>;

    /// Counts the jobs of a queue: what is there now, no matter what wrote it. It costs as much as the queue is long.
    async fn count_now(&self, queue: &QueueName) -> Result<Counts>;

    /// Returns when the next job of a queue comes due of those that wait for their `run_at`.
    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>>;

    /// Returns who works on a queue, and what is tried again: of [`SCAN_LIMIT`] jobs at most of each kind, those first that come first.
    async fn load(&self, queue: &QueueName) -> Result<Load>;

    /// Returns the same of all queues: what is tried again and what workers hold, of [`ALL_SCAN_LIMIT`] jobs at most of each; and the oldest
    /// due jobs of the first [`QUEUES_SCAN_LIMIT`] of these queues, of [`DUE_SCAN_LIMIT`] jobs at most in each.
    async fn total_load(&self, queues: &[QueueName]) -> Result<Load>;

    /// Returns how many named workers hold jobs of each of these queues, of [`SCAN_LIMIT`] reserved jobs of each at most, and on MongoDB of
    /// fewer where there are many queues, but of 200 at least. Queues without holders are left out.
    async fn workers_of(&self, queues: &[QueueName]) -> Result<HashMap<QueueName, u64>>;

    /// Returns what may keep the blocked jobs of a queue from ever being delivered. It scans [`BLOCKED_SCAN_LIMIT`] jobs at most of a kind.
    async fn blockers(&self, queue: &QueueName) -> Result<Blockers>;

    /// Returns how many there are. Exact from `limit` on; below it, it may be an estimate that costs less.
    async fn how_many(&self, of: Named, limit: u64) -> Result<u64>;

    /// Returns those of these queues that have jobs.
    async fn with_jobs(&self, queues: &[QueueName]) -> Result<HashSet<QueueName>>;

    /// Compares a part of the counters with the jobs, where they may differ, and corrects what is certainly
    /// wrong. Cheap if called no sooner than it asks for.
    async fn reconcile(&self) -> Result<Reconciled>;

    /// Returns what the database takes on its disk. Cheap: it is not measured, but known to the database.
    async fn size(&self) -> Result<StoreSize>;

    /// Returns how the connections to the database are used; `None` if there are none.
    fn pool(&self) -> Option<Pool> {
        None
    }
}
