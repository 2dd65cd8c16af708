//! The job record: a job with its metadata, as both stores keep it.

use serde::{Deserialize, Serialize};

use super::spec::Headers;
use super::{
    Backoff, BatchId, Claim, GroupName, JobId, JobKey, JobSpec, Payload, QueueName, SemaphoreName, Stage,
    State, Timestamp, Visible, WorkerName,
};

/// The most failures that are kept of a job: the last ones.
pub const FAILURES_KEPT: usize = 10;
/// The most steps that are kept of a job's trail: the last ones.
pub const TRAIL_KEPT: usize = 100;
/// The longest error message of a failure, in bytes; longer ones are truncated.
pub const MESSAGE_BYTES: usize = 4096;

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Failure {
    /// When it failed, or was found to have failed.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Which attempt failed, from 1.
    pub attempt: u32,
    /// The worker that had reserved the job, where the reserve named one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerName>,
    /// The worker's error message, or the server's.
    pub message: String,
}

impl Failure {
    /// Returns the message, truncated to [`MESSAGE_BYTES`].
    pub fn shortened(message: &str) -> &str {
        let mut end = message.len().min(MESSAGE_BYTES);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        &message[..end]
    }
}

/// A queue that the job has left, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TrailStep {
    /// When it left.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The queue that it left.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Why it left.
    pub reason: TrailReason,
    /// How often it had been delivered there.
    pub attempts: u32,
}

/// Why a job left a queue for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrailReason {
    /// A worker moved it.
    Moved,
    /// Its attempts were used up.
    Dead,
    /// It was returned from a dead-letter queue.
    Redriven,
    /// The work was done there, and its route went on.
    Committed,
}

/// Where a dead-lettered job came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Origin {
    /// The queue that it died in.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// When it died.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// How often it had been delivered.
    pub attempts: u32,
    /// The last failure's message.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// The metadata of a job: all but its payload, headers and result. Its JSON is for comparing the jobs of two stores.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Meta {
    /// The job's id, which never changes.
    pub id: JobId,
    /// The queue that it is in now.
    pub queue: QueueName,
    /// The stored state.
    pub state: State,
    /// Higher is delivered first.
    pub priority: i32,
    /// Not delivered before this moment; orders jobs of the same priority.
    pub run_at: Timestamp,
    /// How often it has been delivered from this queue.
    pub attempts: u32,
    /// The maximum number of deliveries; `None`: the queue's at the time of a failure.
    pub max_attempts: Option<u32>,
    /// The delay before a retry; `None`: the queue's.
    pub backoff: Option<Backoff>,
    /// The deduplication key, while the job is in the queue that it was pushed to.
    pub key: Option<JobKey>,
    /// When it was pushed.
    pub created_at: Timestamp,
    /// When it was last delivered.
    pub started_at: Option<Timestamp>,
    /// When it was done or dead.
    pub finished_at: Option<Timestamp>,
    /// When it expires, wherever it is: it is removed unless it is reserved or finished. A dead job keeps it for when it is
    /// redriven.
    pub expires_at: Option<Timestamp>,
    /// When the store deletes it (history and dead jobs).
    pub purge_at: Option<Timestamp>,
    /// The worker that reserved it last, where the reserve named one.
    pub worker: Option<WorkerName>,
    /// The claim that holds it, a fencing token; of a job in history the last one, to recognize a retry of its commit.
    #[serde(rename = "reservation")]
    pub claim: Option<Claim>,
    /// When the lease expires.
    pub reserved_until: Option<Timestamp>,
    /// The length of the lease in milliseconds; an extend without a length uses it again.
    pub lease_ms: Option<u64>,
    /// The progress that the worker last reported; delivered with the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Payload>,
    /// Its cancellation was requested while it was reserved.
    pub cancel_requested: bool,
    /// The last failures, oldest first.
    pub errors: Vec<Failure>,
    /// The queues that it has left, oldest first.
    pub trail: Vec<TrailStep>,
    /// Where it came from, if it is in a dead-letter queue.
    pub origin: Option<Origin>,
    /// The finished job that this one replays.
    pub replay_of: Option<JobId>,
    /// The remaining stages of its route.
    #[serde(rename = "then")]
    pub route: Vec<Stage>,
    /// The batch that it belongs to, until it is dead-lettered or redriven.
    pub batch: Option<BatchId>,
    /// The group that it belongs to, in whichever queue it is.
    pub group: Option<GroupName>,
    /// Its place in the line of its group: the first in the line may be delivered, the others are blocked. A job
    /// that is finished stands in no line, unless it is dead and holds its group.
    pub turn: Option<i64>,
    /// The semaphores that it takes while it is reserved.
    pub semaphores: Vec<SemaphoreName>,
    /// The semaphore that it is blocked by; a blocked job without one waits for its turn.
    pub waits_for: Option<SemaphoreName>,
    /// Since when semaphores have kept it from being delivered.
    pub waiting_since: Option<Timestamp>,
    /// A random number that every write replaces, for optimistic concurrency: a write whose `rev` does not match is a
    /// conflict.
    #[serde(skip)]
    pub rev: i64,
}

impl Meta {
    /// Returns the state as clients see it at this moment.
    pub fn visible(&self, now: Timestamp) -> Visible {
        self.state.visible(self.run_at, now)
    }

    /// Returns whether the job is reserved and its lease may have expired. A second early, since `now` is an estimate
    /// that lags behind the store's clock.
    pub fn may_be_overdue(&self, now: Timestamp) -> bool {
        self.reserved_until.is_some_and(|until| until <= now.plus_ms(1000))
    }

    /// Returns the time that a ready job is scheduled for, if that is in the future.
    pub fn due(&self, now: Timestamp) -> Option<Timestamp> {
        (self.state == State::Ready && self.run_at > now).then_some(self.run_at)
    }
}

/// A job with its metadata and contents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Job {
    /// The metadata.
    #[serde(flatten)]
    pub meta: Meta,
    /// The payload.
    pub payload: Payload,
    /// The headers.
    pub headers: Headers,
    /// The result of its commit (history only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
}

/// A job that is about to be pushed. Its times are by the store's clock.
#[derive(Debug, Clone, PartialEq)]
pub struct NewJob {
    /// The id that it will have, unless its key is taken.
    pub id: JobId,
    /// Where it goes.
    pub queue: QueueName,
    /// What its producer specifies.
    pub spec: JobSpec,
    /// The moment of the push.
    pub created_at: Timestamp,
    /// When it is due; `created_at` for at once.
    pub run_at: Timestamp,
    /// The deduplication key.
    pub key: Option<KeyHold>,
    /// See [`Meta::replay_of`].
    pub replay_of: Option<JobId>,
    /// See [`Meta::batch`].
    pub batch: Option<BatchId>,
}

/// A deduplication key, and until when it is taken at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHold {
    /// The key.
    pub key: JobKey,
    /// Taken until this moment, and for as long as the job is unfinished.
    pub until: Timestamp,
}

impl NewJob {
    /// Returns a job that is due at once, has no key and belongs to no batch.
    pub fn new(id: JobId, queue: QueueName, spec: JobSpec, created_at: Timestamp) -> Self {
        Self { id, queue, spec, created_at, run_at: created_at, key: None, replay_of: None, batch: None }
    }

    /// Returns when it expires; see [`Meta::expires_at`].
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.spec.expires_in_ms.map(|ms| self.created_at.plus_ms(ms))
    }

    /// Returns the job as it is once it is stored.
    pub fn into_job(self) -> Job {
        let expires_at = self.expires_at();
        let meta = Meta {
            id: self.id,
            queue: self.queue,
            state: State::Ready,
            priority: self.spec.priority,
            run_at: self.run_at,
            attempts: 0,
            max_attempts: self.spec.max_attempts,
            backoff: self.spec.backoff,
            key: self.key.map(|hold| hold.key),
            created_at: self.created_at,
            started_at: None,
            finished_at: None,
            expires_at,
            purge_at: None,
            worker: None,
            claim: None,
            reserved_until: None,
            lease_ms: None,
            progress: None,
            cancel_requested: false,
            errors: Vec::new(),
            trail: Vec::new(),
            origin: None,
            replay_of: self.replay_of,
            route: self.spec.then,
            batch: self.batch,
            group: self.spec.group,
            turn: None,
            semaphores: self.spec.semaphores,
            waits_for: None,
            waiting_since: None,
            rev: 0,
        };
        Job { meta, payload: self.spec.payload, headers: self.spec.headers, result: None }
    }
}
