//! The part of the contract that is about jobs: pushing, claiming, changing and finding them.

use async_trait::async_trait;

use super::{CalledBack, Result, StoreError};
use crate::job::push::{PushRefused, Pushed};
use crate::job::transition::{Operation, Outcome, Refusal};
use crate::job::{
    Child, Claim, GroupName, Job, JobId, JobKey, NewJob, QueueName, Rules, SemaphoreName, Timestamp, Visible,
    WorkerName,
};

/// A request for jobs of one queue.
#[derive(Debug, Clone)]
pub struct ClaimAsk {
    /// The queue to take from.
    pub queue: QueueName,
    /// The most jobs to take.
    pub count: usize,
    /// Marks what this request wins. Requests of one call that fail together, those for one queue that are all pops or none of them,
    /// may share it.
    pub claim: Claim,
    /// How long the reservation lasts, in milliseconds.
    pub lease_ms: u64,
    /// The worker that asks.
    pub worker: Option<WorkerName>,
    /// Whether the jobs are taken away for good: those that need semaphores are passed over.
    pub pop: bool,
}

/// What claims have led to.
#[derive(Debug, Default)]
pub struct Claims {
    /// For each request, in the same order.
    pub won: Vec<Result<Vec<Job>>>,
    /// Queues that may have more jobs than were won, and when a retry may win some.
    pub resume: Vec<(QueueName, Timestamp)>,
    /// Semaphores that may have room now: [`unblock_waiters`](super::Semaphores::unblock_waiters) serves them.
    pub offers: Vec<SemaphoreName>,
}

impl Claims {
    /// Returns what so many requests get when all of them fail.
    pub fn failed(asks: usize, error: &StoreError) -> Self {
        Self { won: (0..asks).map(|_| Err(error.clone())).collect(), ..Self::default() }
    }
}

/// Something that is to happen to one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The job.
    pub id: JobId,
    /// What is to happen.
    pub operation: Operation,
}

/// What has happened to one job.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// What has become of it.
    pub outcome: Outcome,
    /// The queue that it was in.
    pub queue: QueueName,
    /// When it had last been delivered.
    pub started_at: Option<Timestamp>,
    /// The jobs that were stored with it, in the order in which it asked for them.
    pub pushed: Vec<Child>,
    /// The callback of a batch whose last job this was, stored with it.
    pub callback: Option<CalledBack>,
    /// Jobs that nothing blocks any more: their queues, and when they are due.
    pub unblocked: Vec<(QueueName, Timestamp)>,
    /// Semaphores that may have room now: [`unblock_waiters`](super::Semaphores::unblock_waiters) serves them.
    pub released: Vec<SemaphoreName>,
    /// Whether this is the receipt of an earlier call with the same token, and nothing was changed now.
    pub repeated: bool,
}

/// Why a [`Change`] did not happen.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Denied {
    /// The job does not allow it.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// One of the jobs that were to be stored with it was refused.
    #[error("the push of another job was refused: {0:?}")]
    PushRefused(PushRefused),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How far ahead a store reads deadlines for the reaper at least, in milliseconds.
pub const LOOK_AHEAD_MS: u64 = 2000;

/// What the reaper has to do.
#[derive(Debug, Clone, Default)]
pub struct Overdue {
    /// [`Operation::Lapse`] and [`Operation::Expire`] for jobs whose time has come, the longest overdue first.
    pub changes: Vec<Change>,
    /// Milliseconds until the next deadline; a store need not read further ahead than [`LOOK_AHEAD_MS`].
    pub next_in_ms: Option<u64>,
}

/// Which jobs of a queue.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The queue.
    pub queue: QueueName,
    /// Only jobs in this state.
    pub state: Option<Visible>,
    /// Only jobs pushed with this key.
    pub key: Option<JobKey>,
    /// Only jobs of this group.
    pub group: Option<GroupName>,
    /// Only jobs that were dead-lettered into the queue.
    pub dead_lettered: bool,
    /// Only jobs from this moment on: by `finished_at` in history and among the dead, else by `created_at`.
    pub from: Option<Timestamp>,
    /// Only jobs before this moment, by the same times.
    pub before: Option<Timestamp>,
}

impl Filter {
    /// Returns a filter for every job of the queue.
    pub fn all(queue: QueueName) -> Self {
        Self { queue, state: None, key: None, group: None, dead_lettered: false, from: None, before: None }
    }

    /// Returns a filter for the jobs of the queue in this state.
    pub fn state(queue: QueueName, state: Visible) -> Self {
        Self { state: Some(state), ..Self::all(queue) }
    }
}

/// A job as it is stored, or the id of one that cannot be read, because another program wrote it, and why.
pub type ListedJob = std::result::Result<Job, (JobId, String)>;

/// Returns the id of a job that was read or cannot be.
pub fn listed_id(job: &ListedJob) -> &JobId {
    match job {
        Ok(job) => &job.meta.id,
        Err((id, _)) => id,
    }
}

/// The verbs on jobs. They take lists and return a result for each element, in the same order.
#[async_trait]
pub trait Jobs: Send + Sync {
    /// Stores jobs. Each element stands for itself; ids are new. Where `rules` limit a queue, its
    /// unfinished jobs never exceed `max_jobs` by pushes through this instance.
    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>>;

    /// Reserves jobs that are ready and due and not expired: the highest priority first, then the earliest
    /// `run_at`, then the smallest id. A job is won by at most one claim. Each delivery counts as an attempt.
    ///
    /// Jobs whose semaphores have no room for them are blocked and passed over; no semaphore ever has more
    /// holders than its capacity, and no queue more reserved jobs or more deliveries than `rules` allow,
    /// however many instances claim at once.
    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims;

    /// Returns the jobs of these queues that this claim holds: what a claim whose outcome is unknown has won.
    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>>;

    /// Applies operations to jobs, each atomically. The same id may occur more than once; then in order.
    ///
    /// A job that cannot be read is [`Unreadable`](super::StoreError::Unreadable), except to what removes jobs: that
    /// removes it, whoever holds it. What the server wants by itself makes it dead, and is refused.
    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>>;

    /// Returns up to `limit` jobs whose reservation ran out or whose `expires_at` passed, by the store's
    /// clock.
    async fn overdue(&self, limit: usize) -> Result<Overdue>;

    /// Returns the scheduled jobs that are due next, the earliest first: up to `limit` queues and moments.
    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>>;

    /// Returns jobs by their ids, each at its place.
    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>>;

    /// Returns the jobs that match the filter, by id, those after `after`: up to `limit`, fewer where they have
    /// [`PAGE_BYTES`](super::PAGE_BYTES), and else only where there are no more.
    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<ListedJob>>;

    /// Returns the queues that have jobs and whose name begins with `prefix`, by name, those after `after`.
    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>>;

    /// Returns those of these queues that have a job which is ready and due, in any order; each at most once.
    /// It costs next to nothing for queues without ready jobs, and never walks a backlog. A queue whose due
    /// jobs have all expired may be among them, until they are removed.
    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>>;
}
