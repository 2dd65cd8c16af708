//! The representation of a job in responses.

use serde::Serialize;

use crate::http::access::Granted;
use crate::job::record::{Failure, Origin, TrailStep};
use crate::job::spec::Headers;
use crate::job::{
    Backoff, Base64, BatchId, GroupName, Job, JobId, JobKey, MediaType, Payload, QueueName, Reservation,
    Rules, Scope, SemaphoreName, Stage, Timestamp, Visible, WorkerName,
};
use crate::queue::WaitingFor;

fn is_false(value: &bool) -> bool {
    !value
}

/// A job.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Job)]
pub struct JobView {
    /// Its id, which never changes.
    pub id: JobId,
    /// Its current queue.
    pub queue: QueueName,
    /// Its state.
    pub state: Visible,
    /// The priority; higher is delivered first.
    pub priority: i32,
    /// The earliest time of delivery.
    pub run_at: Timestamp,
    /// The number of deliveries from this queue so far.
    pub attempt: u32,
    /// The maximum number of deliveries: its own, or the queue's current one; 0 for no limit.
    pub max_attempts: u32,
    /// Its own default lease, in milliseconds, if it has one; else the queue's holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// How long one delivery lasts at most, over all extensions, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<u64>,
    /// The delay before a retry: its own rule, or the queue's current one.
    pub backoff: Backoff,
    /// The payload: any JSON value; `null` where it is binary.
    #[schema(value_type = serde_json::Value)]
    pub payload: Payload,
    /// The payload as base64, where it is binary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<Base64>,
    /// The media type of a binary payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_type: Option<MediaType>,
    /// The payload is not shown whole, since the search did not ask for that: `payload` is `null` for that reason.
    #[serde(skip_serializing_if = "is_false")]
    pub payload_omitted: bool,
    /// The beginning of the text of a long JSON payload (`payload=head`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_head: Option<String>,
    /// How long such a payload is, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_bytes: Option<u64>,
    /// The headers that its producer set.
    #[schema(value_type = crate::job::spec::JobHeaders)]
    pub headers: Headers,
    /// The deduplication key, while it is in the queue that it was pushed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<JobKey>,
    /// When it was pushed.
    pub created_at: Timestamp,
    /// When it was last delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it became done or dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// When it expires: it is removed then unless it is reserved or finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it is deleted (history and dead jobs).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub purge_at: Option<Timestamp>,
    /// How long it is kept with its result once it is done, in milliseconds, where its producer said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub retain_result_ms: Option<u64>,
    /// The worker that reserved it last, if the reserve named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerName>,
    /// When the reservation expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_until: Option<Timestamp>,
    /// Why it is not done yet: all that it waits for. Only where one job was asked for, and it is neither done nor dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Vec<WaitingFor>>,
    /// The progress that a worker last reported: any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub progress: Option<Payload>,
    /// Cancellation was requested while it was reserved.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel_requested: bool,
    /// The last ten failures, oldest first.
    pub errors: Vec<Failure>,
    /// The queues that it was in before, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trail: Vec<TrailStep>,
    /// Its original queue, if it was dead-lettered into this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_lettered_from: Option<Origin>,
    /// The finished job that this one is a replay of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_of: Option<JobId>,
    /// The remaining stages of its route.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Stage>,
    /// The batch that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchId>,
    /// The group that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The semaphores that it holds while it is reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub semaphores: Vec<SemaphoreName>,
    /// The semaphore that blocks it; a blocked job without one waits for its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<SemaphoreName>,
    /// The result of the commit: any JSON value (history only).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Payload>,
    /// Why it cannot be read: another program wrote it. It is delivered to nobody, and what is shown is what can be read of it; what
    /// cannot is left out, `null` or zero. `PATCH` mends it, `DELETE` removes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl JobView {
    /// Returns the view of a job at this time under these rules.
    pub fn new(job: Job, rules: &Rules, now: Timestamp) -> Self {
        let Job { meta, payload, headers, result } = job;
        let (payload, payload_base64, payload_type) = payload.into_fields();
        Self {
            state: meta.visible(now),
            max_attempts: meta.max_attempts.unwrap_or_else(|| rules.max_attempts(&meta.queue)),
            backoff: meta.backoff.unwrap_or_else(|| rules.backoff(&meta.queue)),
            lease_ms: meta.default_lease_ms,
            max_run_ms: meta.max_run_ms,
            id: meta.id,
            queue: meta.queue,
            priority: meta.priority,
            run_at: meta.run_at,
            attempt: meta.attempts,
            payload,
            payload_base64,
            payload_type,
            payload_omitted: false,
            payload_head: None,
            payload_bytes: None,
            headers,
            key: meta.key,
            created_at: meta.created_at,
            started_at: meta.started_at,
            finished_at: meta.finished_at,
            expires_at: meta.expires_at,
            purge_at: meta.purge_at,
            retain_result_ms: meta.retain_result_ms,
            worker: meta.worker,
            reserved_until: meta.reserved_until,
            waiting_for: None,
            progress: meta.progress,
            cancel_requested: meta.cancel_requested,
            errors: meta.errors,
            trail: meta.trail,
            dead_lettered_from: meta.origin,
            replay_of: meta.replay_of,
            then: meta.route,
            batch: meta.batch,
            group: meta.group,
            semaphores: meta.semaphores,
            waits_for: meta.waits_for,
            result,
            unreadable: None,
        }
    }
}

/// A reserved job and the token that settles it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReservedJob {
    /// The token that, with the id, settles the job; known only to this client.
    pub reservation: Reservation,
    /// The job.
    #[serde(flatten)]
    pub job: JobView,
}

/// What is shown of something that was changed: all of it, or to a caller without the scope `read` only which it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum Shown<T, I> {
    /// All of it.
    Whole(Box<T>),
    /// Which it is.
    Identity(I),
}

impl<T, I: for<'a> From<&'a T>> Shown<T, I> {
    /// Returns what is shown to this caller.
    pub fn to(by: &Granted, whole: T) -> Self {
        match by.caller.has(Scope::Read) {
            true => Self::Whole(Box::new(whole)),
            false => Self::Identity(I::from(&whole)),
        }
    }
}

/// What was there has been deleted.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Deleted {
    /// Always true.
    pub deleted: bool,
}

/// Which job it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct JobIdentity {
    /// Its id.
    id: JobId,
    /// Its current queue.
    queue: QueueName,
    /// Its state.
    state: Visible,
}

impl From<&JobView> for JobIdentity {
    fn from(job: &JobView) -> Self {
        Self { id: job.id.clone(), queue: job.queue.clone(), state: job.state }
    }
}

/// Which queue it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueueIdentity {
    /// Its name.
    pub queue: QueueName,
    /// Its version, as in the entity tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// Which schedule or semaphore it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its version, as in the entity tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}
