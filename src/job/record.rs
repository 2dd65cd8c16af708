//! The job record: a job with its metadata, as both stores keep it.

use serde::{Deserialize, Serialize};

use super::payload::PayloadError;
use super::settings::LEASE_MAX_MS;
use super::spec::Headers;
use super::{
    Backoff, BatchId, Claim, Content, GroupName, JobId, JobKey, JobSpec, Payload, QueueName, SemaphoreName,
    Stage, State, Timestamp, Visible, WorkerName,
};

/// The most failures that are kept of a job: the last ones.
pub const FAILURES_KEPT: usize = 10;
/// The most steps that are kept of a job's trail: the last ones.
pub const TRAIL_KEPT: usize = 100;
/// The longest error message of a failure, in bytes; longer ones are truncated.
pub const MESSAGE_BYTES: usize = 4096;

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = JobFailure)]
pub struct Failure {
    /// When it failed, or was found to have failed.
    pub at: Timestamp,
    /// Which attempt failed, from 1.
    pub attempt: u32,
    /// The worker that had reserved the job, where the reserve named one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worker: Option<WorkerName>,
    /// The worker's error message, or the server's.
    pub message: String,
}

impl Failure {
    /// Returns what is noted with a job that was made dead because it lacks a field that its state needs: dead, it can be read.
    pub fn lacking(field: &str, state: &str, attempt: u32, at: Timestamp) -> Self {
        let message = format!("the stored job had no {field}, which it needs where it is {state}");
        Self { at, attempt, worker: None, message }
    }

    /// Returns what is noted with a job that stands in for one that could not be read.
    pub fn unreadable(why: &str, attempt: u32, at: Timestamp) -> Self {
        let message = format!("the stored job could not be read: {why}");
        Self { at, attempt, worker: None, message: Self::shortened(&message).to_owned() }
    }

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
    pub at: Timestamp,
    /// The queue that it left.
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
    /// A worker or an operator moved it.
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
#[schema(as = DeadLetterOrigin)]
pub struct Origin {
    /// The queue that it died in.
    pub queue: QueueName,
    /// When it died.
    pub at: Timestamp,
    /// How often it had been delivered.
    pub attempts: u32,
    /// The last failure's message.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// The metadata of a job: all but its payload, headers and result. Its JSON is for comparing the jobs of two stores, and for backups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// The maximum number of deliveries, 0 for no limit; `None`: the queue's at the time of a failure.
    pub max_attempts: Option<u32>,
    /// The length of a lease that the reserve does not give; `None`: the queue's at the time of a delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_lease_ms: Option<u64>,
    /// How long one delivery lasts at most, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
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
    /// How long it is kept once it is done, in milliseconds, if its queue does not keep it for longer; `None`: as the queue says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_result_ms: Option<u64>,
    /// The worker that reserved it last, where the reserve named one.
    pub worker: Option<WorkerName>,
    /// The claim that holds it, a fencing token; of a job in history the last one, to recognize a retry of its commit.
    #[serde(rename = "reservation")]
    pub claim: Option<Claim>,
    /// When the lease expires.
    pub reserved_until: Option<Timestamp>,
    /// The length of the lease in milliseconds; an extend without a length uses it again.
    pub lease_ms: Option<u64>,
    /// When the lease was last extended with its token, or handed out to a repeat: a sign that the worker is alive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended_at: Option<Timestamp>,
    /// The progress that the worker last reported; delivered with the next attempt.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::payload::present")]
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
    /// When it last came to wait as it does: another state, or a claim or an edit that changed how it waits, was before. None where
    /// it waits as it was pushed, and where a server of an older version has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came_at: Option<Timestamp>,
    /// When a worker last had it no longer, and it waited again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_back_at: Option<Timestamp>,
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

    /// Returns the message of its last failure; of a dead letter without one, why it died.
    pub fn last_error(&self) -> Option<&str> {
        let failure = self.errors.last().map(|failure| failure.message.as_str());
        failure.or_else(|| self.origin.as_ref()?.error.as_deref())
    }

    /// Returns when it died; of a dead letter that has not died in its queue, when it did where it came from.
    pub fn died_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Dead => self.finished_at,
            _ => self.origin.as_ref().map(|origin| origin.at),
        }
    }

    /// Returns when the delivery ends for good, however often it is extended, if it has such an end.
    pub fn run_ends_at(&self) -> Option<Timestamp> {
        Some(self.started_at?.plus_ms(self.max_run_ms?))
    }

    /// Returns when a lease ends that would last until then.
    pub fn within_run(&self, until: Timestamp) -> Timestamp {
        self.run_ends_at().map_or(until, |end| end.min(until))
    }

    /// Returns until when a heartbeat of its worker makes the reservation last: never shorter, by its own lease, which is no longer
    /// than a lease can be, and within the delivery.
    pub fn kept_until(&self, now: Timestamp) -> Timestamp {
        let lease_ms = self.lease_ms.unwrap_or_default().min(LEASE_MAX_MS);
        let until = self.within_run(now.plus_ms(lease_ms));
        self.reserved_until.map_or(until, |before| before.max(until))
    }

    /// Returns whether a client has the delivery's token for sure: it was extended with it, or a repeat has handed it out again. A
    /// heartbeat says nothing of that.
    pub fn is_handed_out(&self) -> bool {
        self.extended_at.is_some()
    }

    /// Returns whether the job has come to its end: it is done or dead, also where its dead-letter queue has it now.
    pub fn has_finished(&self) -> bool {
        !self.state.is_unfinished() || self.origin.is_some()
    }

    /// Returns whether the job is reserved and its lease may have expired. A second early, since `now` is an estimate
    /// that lags behind the store's clock.
    pub fn may_be_overdue(&self, now: Timestamp) -> bool {
        self.reserved_until.is_some_and(|until| until <= now.plus_ms(1000))
    }

    /// Returns a field that a job in this state has and this one lacks: without it nothing would ever take the job back or unblock it, or
    /// it would pass those before it in its group. Only another program leaves it out.
    pub fn lacking(&self) -> Option<&'static str> {
        let stands_in_line = self.state.is_unfinished() && self.group.is_some() && self.origin.is_none();
        match self.state {
            State::Reserved if self.claim.is_none() => Some("claim"),
            State::Reserved if self.reserved_until.is_none() => Some("reserved_until"),
            State::Blocked if self.turn.is_none() && self.waits_for.is_none() => Some("waits_for"),
            _ if stands_in_line && self.turn.is_none() => Some("turn"),
            _ => None,
        }
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
    #[serde(flatten)]
    pub payload: Content,
    /// The headers.
    pub headers: Headers,
    /// The result of its commit (history only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Payload>,
}

impl Job {
    /// Returns the same job with canonical payloads, or the field whose value has no canonical form.
    pub fn canonical(self) -> Result<Self, (&'static str, PayloadError)> {
        let field = |name| move |error| (name, error);
        let progress = self.meta.progress.map(Payload::canonical).transpose().map_err(field("progress"))?;
        let payload = self.payload.canonical().map_err(field("payload"))?;
        let result = self.result.map(Payload::canonical).transpose().map_err(field("result"))?;
        Ok(Self { meta: Meta { progress, ..self.meta }, payload, headers: self.headers, result })
    }
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

/// Until when a job has its key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JobKeyUntil)]
pub enum KeyUntil {
    /// Until it has finished (a dead job has not), and for `key_ttl_ms` at least.
    #[default]
    Finished,
    /// While it waits: once it is reserved, the key is free. A job that comes back has it again, unless another one has taken it.
    Reserved,
    /// For `key_ttl_ms`, whatever becomes of it.
    Ttl,
}

impl KeyUntil {
    /// Whether it is the usual one.
    pub fn is_usual(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Reserved => "reserved",
            Self::Ttl => "ttl",
        }
    }

    /// Returns what the word stands for. One that this version does not know is of a newer one, and taken as the usual.
    pub fn from_word(word: Option<&str>) -> Self {
        match word {
            Some("reserved") => Self::Reserved,
            Some("ttl") => Self::Ttl,
            _ => Self::Finished,
        }
    }
}

/// What becomes of a push whose key is taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JobKeyConflict)]
pub enum KeyConflict {
    /// It returns the job that has the key, if the payloads are equal; else it is refused.
    #[default]
    Return,
    /// Its payload and its time replace those of the job that has the key, if that waits; else as `return`.
    Replace,
    /// It is refused.
    Refuse,
}

/// A deduplication key, and until when it is taken at least.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHold {
    /// The key.
    pub key: JobKey,
    /// The end of its time; what that means, `lasts` says.
    pub until: Timestamp,
    /// Until when it is taken.
    pub lasts: KeyUntil,
    /// What becomes of the job where it is taken.
    pub conflict: KeyConflict,
}

impl KeyHold {
    /// Returns the usual hold of a key.
    pub fn new(key: JobKey, until: Timestamp) -> Self {
        Self { key, until, lasts: KeyUntil::default(), conflict: KeyConflict::default() }
    }
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
            default_lease_ms: self.spec.lease_ms,
            max_run_ms: self.spec.max_run_ms,
            backoff: self.spec.backoff,
            key: self.key.map(|hold| hold.key),
            created_at: self.created_at,
            started_at: None,
            finished_at: None,
            expires_at,
            purge_at: None,
            retain_result_ms: self.spec.retain_result_ms,
            worker: None,
            claim: None,
            reserved_until: None,
            lease_ms: None,
            extended_at: None,
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
            came_at: None,
            given_back_at: None,
            rev: 0,
        };
        Job { meta, payload: self.spec.payload, headers: self.spec.headers, result: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_keeps_a_job_for_its_lease_within_its_run() {
        let at = Timestamp::from_millis;
        let spec = JobSpec::new(Payload::parse("1").unwrap());
        let meta = NewJob::new("A".parse().unwrap(), "q".parse().unwrap(), spec, at(0)).into_job().meta;
        let longest = LEASE_MAX_MS.cast_signed();
        for (lease_ms, max_run_ms, until, kept) in [
            (Some(100), None, 50, 110),
            (Some(100), None, 500, 500),
            (Some(100), Some(60), 50, 60),
            (Some(100), Some(60), 80, 80),
            (None, None, 5, 10),
            (Some(u64::MAX), None, 50, 10 + longest),
            (Some(u64::MAX), Some(u64::MAX), 50, 10 + longest),
        ] {
            let (started_at, reserved_until) = (Some(at(0)), Some(at(until)));
            let held = Meta { lease_ms, max_run_ms, started_at, reserved_until, ..meta.clone() };
            assert_eq!(held.kept_until(at(10)), at(kept), "{held:?}");
        }
    }
}
