//! Where jobs live: the contract that a database behind Tailback keeps.
//!
//! [`Store`] is a small set of atomic verbs. Those on the hot path are batch-first: each takes a list and
//! answers for each element at its place, so that requests which arrive together can travel together. What
//! an operation does to a job is not a store's business: [`crate::job::transition::step`] says it, a store
//! makes it atomic and durable. `tests/conformance.rs` holds every store to this contract.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::job::transition::{Operation, Outcome, Refusal};
use crate::job::{
    Child, Claim, GroupName, Job, JobId, JobKey, NewJob, QueueName, QueueSettings, Rules, SemaphoreName,
    Timestamp, Visible, WorkerName,
};

pub mod batches;
pub mod metered;
pub mod mongo;
pub mod schedules;
pub mod semaphores;
pub mod signals;
pub mod sqlite;
pub mod transfer;
pub mod workers;

pub use batches::{BatchChanged, BatchDenied, Batches, CalledBack};
pub use schedules::{Fired, Firing, Schedules};
pub use semaphores::{Called, Claims, Holder, Removal, SemaphoreView, Semaphores};
pub use signals::{Arrivals, Heard, Signal};
pub use transfer::{HeldKey, Imported};
pub use workers::{Holdings, Report, TimedOut, Worker, Workers};

/// Why a verb did not do its work. After [`StoreError::Unavailable`] it may still have been done: an error
/// behind a sent command means *unknown*, never *not done*.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, has no primary, or took too long. It is worth trying again.
    #[error("the store cannot be reached at the moment")]
    Unavailable(#[source] Cause),
    /// The database has no room left. Nothing was stored.
    #[error("the store has no room left; nothing was stored")]
    Full(#[source] Cause),
    /// The database is not one that Tailback can run on; says why, and what to do about it.
    #[error("the store cannot be used: {0}")]
    Unsuitable(String),
    /// The database answered something that it never should.
    #[error("the store failed in an unexpected way")]
    Internal(#[source] Cause),
}

/// What is behind a [`StoreError`]: for the log, not for the caller.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub Arc<str>);

impl StoreError {
    /// An [`StoreError::Unavailable`] with this text behind it.
    pub fn unavailable(cause: impl std::fmt::Display) -> Self {
        Self::Unavailable(Cause(cause.to_string().into()))
    }

    /// An [`StoreError::Internal`] with this text behind it.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self::Internal(Cause(cause.to_string().into()))
    }
}

/// An error and all that is behind it, in one line for the log.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        behind = cause.source();
    }
    text
}

/// The answer of a verb.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What became of one job that was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// It is stored.
    Created,
    /// It is stored, and waits for its turn in its group.
    Blocked,
    /// Its key is taken by a job with an equal payload; nothing was stored.
    Duplicate {
        /// The job that has the key.
        id: JobId,
        /// That job's state; `done` if it has left.
        state: Visible,
        /// When that job was, or is, due.
        run_at: Timestamp,
    },
    /// Its key is taken by a job with another payload; nothing was stored.
    KeyConflict {
        /// The job that has the key.
        id: JobId,
    },
    /// The queue has as many unfinished jobs as its `max_jobs` allows; nothing was stored.
    Full,
}

/// Why a job that was to be stored with a commit was not, and so nothing happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushRefused {
    /// Its place among those of the commit.
    pub place: usize,
    /// The queue that it was for.
    pub queue: QueueName,
    /// The job of another payload that has its key; `None`: the queue has as many unfinished jobs as it takes.
    pub key_of: Option<JobId>,
}

/// A request for jobs of one queue.
#[derive(Debug, Clone)]
pub struct ClaimAsk {
    /// The queue to take from.
    pub queue: QueueName,
    /// The most jobs to take.
    pub count: usize,
    /// Marks what this request wins; fresh for each request.
    pub claim: Claim,
    /// How long the reservation lasts, in milliseconds.
    pub lease_ms: u64,
    /// Who asks.
    pub worker: Option<WorkerName>,
    /// Whether the jobs are taken away for good: those that need semaphores are passed over.
    pub pop: bool,
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
    /// The semaphores that others may have now: [`Semaphores::unblock_waiters`] them.
    pub released: Vec<SemaphoreName>,
    /// Whether this is the memory of an earlier call with the same token, which changed nothing now.
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

/// How far ahead a store looks for the reaper at least, in milliseconds.
pub const LOOK_AHEAD_MS: u64 = 2000;

/// What the reaper has to do.
#[derive(Debug, Clone, Default)]
pub struct Overdue {
    /// [`Operation::Lapse`] and [`Operation::Expire`] for jobs whose time has come, the longest overdue first.
    pub changes: Vec<Change>,
    /// Milliseconds until the next one's time comes; a store need not look further ahead than
    /// [`LOOK_AHEAD_MS`].
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
    /// Only jobs before this moment, judged likewise.
    pub before: Option<Timestamp>,
}

impl Filter {
    /// Every job of the queue.
    pub fn all(queue: QueueName) -> Self {
        Self { queue, state: None, key: None, group: None, dead_lettered: false, from: None, before: None }
    }

    /// The jobs of the queue that are in this state.
    pub fn state(queue: QueueName, state: Visible) -> Self {
        Self { state: Some(state), ..Self::all(queue) }
    }
}

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

/// The figures of one queue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// The `run_at` of the job that has been ready for longest; in a queue where much happens, it may be that
    /// of one that was so a few seconds ago.
    pub oldest_ready: Option<Timestamp>,
    /// Whether the split of `ready` and `scheduled` is of a moment ago; their sum never is.
    pub split_is_approximate: bool,
}

/// What a store has done for its figures.
#[derive(Debug, Clone, Copy)]
pub struct Reconciled {
    /// By how many jobs counters were off that are right now.
    pub corrected: u64,
    /// When it wants to go on.
    pub again_in: Duration,
    /// Whether everything that it knew to be doubtful is right now.
    pub is_settled: bool,
}

/// One queue's settings as stored. `version` is opaque and changes with every change.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSettings {
    /// The settings.
    pub settings: QueueSettings,
    /// Told apart by equality only.
    pub version: String,
}

/// All queues' settings.
#[derive(Debug, Clone, Default)]
pub struct SettingsSnapshot {
    /// Grows with each change; tells whether a snapshot is still the newest.
    pub revision: i64,
    /// Each queue that has settings.
    pub queues: HashMap<QueueName, StoredSettings>,
}

/// The version that a queue's settings must have for a change to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// Any, or none at all.
    Any,
    /// There must be no settings.
    Absent,
    /// This one.
    Version(String),
}

/// What became of a change of settings, or of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// It is stored.
    Done,
    /// It is not, or no longer, of the expected version.
    Conflict,
}

/// A reserve that carries an `Idempotency-Key`.
#[derive(Debug, Clone)]
pub struct Request {
    /// The key together with the queue list, as one text.
    pub id: String,
    /// Tells whether a repeat asks for the same.
    pub digest: [u8; 32],
    /// Marks what the request wins.
    pub claim: Claim,
    /// When whoever runs the request has finished, or died.
    pub pending_until: Timestamp,
}

/// What a store knows of a request that is about to run.
#[derive(Debug, Clone, PartialEq)]
pub enum Opened {
    /// Nothing: run it, then close it.
    New,
    /// Somebody was running it but is past its `pending_until`: it is yours now. `previous` may have won jobs.
    TakenOver {
        /// The claim of whoever ran it.
        previous: Claim,
    },
    /// Somebody else is running it: ask again in a moment.
    Pending,
    /// It has run and won these jobs.
    Finished {
        /// The claim that won them.
        claim: Claim,
        /// The jobs.
        ids: Vec<JobId>,
    },
    /// The key was used for another request.
    Different,
}

/// A database that keeps jobs. See the module's documentation.
///
/// Every answer of a verb that writes is given after the write is durable. Every verb has a deadline of
/// its own and ends in [`StoreError::Unavailable`] when it runs into it.
#[async_trait]
pub trait Store: Batches + Schedules + Semaphores + Workers + Send + Sync + 'static {
    /// Brings the database's schema up to this version and answers the names of the migrations that were
    /// missing. Idempotent, never destructive, safe when several servers do it at once.
    async fn migrate(&self) -> Result<Vec<String>>;

    /// Whether the database can take writes, and what time it is there: keeps [`Store::now`] true.
    async fn ping(&self) -> Result<()>;

    /// The store's clock, estimated without a round trip and never ahead of it, so that a job pushed for
    /// now is due for the very next claim.
    fn now(&self) -> Result<Timestamp>;

    /// Stores jobs. Each element stands for itself; ids are new. Where `rules` limit a queue, its
    /// unfinished jobs never exceed `max_jobs` by pushes through this instance.
    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>>;

    /// Reserves jobs that are ready and due and not expired: the highest priority first, then the earliest
    /// `run_at`, then the smallest id. A job is won by at most one claim. Each delivery counts as an attempt.
    ///
    /// Jobs whose semaphores have no room for them are blocked and passed over; no semaphore ever has more holders
    /// than its capacity, and no queue more reserved jobs or more deliveries than `rules` allow, however many
    /// instances claim at once.
    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims;

    /// The jobs of these queues that this claim holds: what a claim whose answer was lost has won.
    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>>;

    /// Applies operations to jobs, each atomically. The same id may occur more than once; then in order.
    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>>;

    /// Up to `limit` jobs whose reservation ran out or whose `expires_at` passed, by the store's clock.
    async fn overdue(&self, limit: usize) -> Result<Overdue>;

    /// The scheduled jobs that are due next, the first first: up to `limit` queues and moments.
    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>>;

    /// Jobs by their ids.
    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Job>>>;

    /// The jobs that the filter means, by id, from the one behind `after` on.
    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>>;

    /// The queues that have jobs and whose name begins with `prefix`, by name, from the one behind `after` on.
    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>>;

    /// Those of these queues that have a job which is ready and due, in any order; each at most once. It costs
    /// next to nothing for queues without ready jobs, and never walks a backlog. A queue whose due jobs have
    /// all expired may be among them, until they are removed.
    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>>;

    /// The figures of every queue that has jobs, without counting them: what this instance has done is in
    /// them at once, what others have done within a second. What nobody could count (by a server that was
    /// killed, with a lost answer, by other programs) is in them after [`Store::reconcile`].
    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>>;

    /// Compares a part of the figures with what is there, where they may differ, and corrects what is
    /// certainly wrong. Cheap if called no sooner than it asks for.
    async fn reconcile(&self) -> Result<Reconciled>;

    /// All settings, unless their revision is still `known`.
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>>;

    /// Replaces a queue's settings, or removes them, if they are of the expected version.
    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved>;

    /// Announces a request, so that a repeat of it is known on any server.
    async fn open_request(&self, request: &Request) -> Result<Opened>;

    /// Remembers until `keep_until` which jobs the request won, and by which claim; forgets the request if
    /// it won nothing.
    async fn close_request(
        &self,
        request: &Request,
        won: Option<(&Claim, &[JobId])>,
        keep_until: Timestamp,
    ) -> Result<()>;

    /// Forgets up to `limit` records whose time has passed: keys whose job has ended, history and,
    /// where the database does not do it by itself, receipts and requests. Answers how many.
    async fn prune(&self, limit: usize) -> Result<u64>;

    /// What other servers over this database tell from now on: a stream that never ends and mends itself,
    /// also while the database is away. It begins, again after each gap, with [`Heard::Begins`]. `None`: there
    /// can be no other servers.
    fn signals(&self) -> Option<BoxStream<'static, Heard>> {
        None
    }

    /// Tells the other servers something. Those that listen hear it soon, usually within milliseconds; nothing
    /// depends on it. Calls of one kind come one after the other.
    async fn signal(&self, _signal: &Signal) -> Result<()> {
        Ok(())
    }

    /// Every job of every queue, by id, from the one behind `after` on: up to `limit`, fewer where they are
    /// long, and none only where there are no more.
    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>>;

    /// Stores jobs of another store as they are, with their states, tokens, deadlines and history. What is
    /// there already stays as it is. No limit is looked at and no key is taken; `rev` need not be kept.
    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>>;

    /// Every key that is remembered, in an order of the store's own, from the one behind `after` on; none
    /// only where there are no more.
    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>>;

    /// Remembers keys of another store, whether or not their jobs are here. What is there already stays.
    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>>;

    /// Lets go of the database.
    async fn close(&self);
}
