//! The representation of a job in responses.

use serde::Serialize;

use crate::http::access::Granted;
use crate::job::record::{Failure, Origin, TrailStep};
use crate::job::spec::Headers;
use crate::job::{
    Backoff, BatchId, GroupName, Job, JobId, JobKey, Payload, QueueName, Reservation, Rules, Scope,
    SemaphoreName, Stage, Timestamp, Visible, WorkerName,
};

fn is_false(value: &bool) -> bool {
    !value
}

/// A job.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Job)]
pub struct JobView {
    /// Its id, which never changes.
    #[schema(value_type = String)]
    pub id: JobId,
    /// Its current queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Its state.
    pub state: Visible,
    /// The priority; higher is delivered first.
    pub priority: i32,
    /// The earliest time of delivery.
    #[schema(value_type = String, format = DateTime)]
    pub run_at: Timestamp,
    /// The number of deliveries from this queue so far.
    pub attempt: u32,
    /// The maximum number of deliveries: its own, or the queue's current one.
    pub max_attempts: u32,
    /// The delay before a retry: its own rule, or the queue's current one.
    pub backoff: Backoff,
    /// The payload: any JSON value.
    #[schema(value_type = serde_json::Value)]
    pub payload: Payload,
    /// The headers that its producer set.
    #[schema(value_type = std::collections::HashMap<String, String>)]
    pub headers: Headers,
    /// The deduplication key, while it is in the queue that it was pushed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub key: Option<JobKey>,
    /// When it was pushed.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it was last delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it became done or dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// When it expires: it is removed then unless it is reserved or finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// When it is deleted (history and dead jobs).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub purge_at: Option<Timestamp>,
    /// The worker that reserved it last, if the reserve named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerName>,
    /// When the reservation expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub reserved_until: Option<Timestamp>,
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
    #[schema(value_type = Option<String>)]
    pub replay_of: Option<JobId>,
    /// The remaining stages of its route.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub then: Vec<Stage>,
    /// The batch that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub batch: Option<BatchId>,
    /// The group that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub group: Option<GroupName>,
    /// The semaphores that it holds while it is reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub semaphores: Vec<SemaphoreName>,
    /// The semaphore that blocks it; a blocked job without one waits for its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub waits_for: Option<SemaphoreName>,
    /// The result of the commit: any JSON value (history only).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Payload>,
}

impl JobView {
    /// Returns the view of a job at this time under these rules.
    pub fn new(job: Job, rules: &Rules, now: Timestamp) -> Self {
        let Job { meta, payload, headers, result } = job;
        Self {
            state: meta.visible(now),
            max_attempts: meta.max_attempts.unwrap_or_else(|| rules.max_attempts(&meta.queue)),
            backoff: meta.backoff.unwrap_or_else(|| rules.backoff(&meta.queue)),
            id: meta.id,
            queue: meta.queue,
            priority: meta.priority,
            run_at: meta.run_at,
            attempt: meta.attempts,
            payload,
            headers,
            key: meta.key,
            created_at: meta.created_at,
            started_at: meta.started_at,
            finished_at: meta.finished_at,
            expires_at: meta.expires_at,
            purge_at: meta.purge_at,
            worker: meta.worker,
            reserved_until: meta.reserved_until,
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
        }
    }
}

/// A reserved job and the token that settles it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReservedJob {
    /// The token that, with the id, settles the job; known only to this client.
    #[schema(value_type = String)]
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

/// Which job it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct JobIdentity {
    /// Its id.
    #[schema(value_type = String)]
    id: JobId,
    /// Its current queue.
    #[schema(value_type = String)]
    queue: QueueName,
    /// Its state.
    state: Visible,
}

impl From<&JobView> for JobIdentity {
    fn from(job: &JobView) -> Self {
        Self { id: job.id.clone(), queue: job.queue.clone(), state: job.state }
    }
}

/// Which queue, schedule or semaphore it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its version, as in the entity tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}
