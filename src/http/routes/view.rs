//! Jobs as clients see them.

use serde::Serialize;

use crate::job::record::{Failure, Headers, Origin, TrailStep};
use crate::job::{
    Backoff, BatchId, GroupName, Job, JobId, JobKey, Payload, QueueName, Reservation, Rules, SemaphoreName,
    Stage, Timestamp, Visible, WorkerName,
};

fn is_false(value: &bool) -> bool {
    !value
}

/// A job with every field that it has.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Job)]
pub struct JobView {
    /// Its id, for ever.
    #[schema(value_type = String)]
    pub id: JobId,
    /// The queue that it is in now.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// What it waits for.
    pub state: Visible,
    /// Higher is delivered first.
    pub priority: i32,
    /// Not delivered before this moment.
    #[schema(value_type = String, format = DateTime)]
    pub run_at: Timestamp,
    /// How often it has been delivered from this queue.
    pub attempt: u32,
    /// How often it may be: its own limit, or what the queue says now.
    pub max_attempts: u32,
    /// How long it waits after a rollback: its own rule, or what the queue says now.
    pub backoff: Backoff,
    /// What its producer wants done: any JSON value.
    #[schema(value_type = serde_json::Value)]
    pub payload: Payload,
    /// What else its producer said.
    #[schema(value_type = std::collections::HashMap<String, String>)]
    pub headers: Headers,
    /// The producer's own name for it, while it is in the queue that it was pushed to.
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
    /// When it was done or dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<Timestamp>,
    /// When it is removed unless it is reserved or finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    /// When it is forgotten (history and dead jobs).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub purge_at: Option<Timestamp>,
    /// Who reserved it last, where the reserve gave a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub worker: Option<WorkerName>,
    /// When the reservation runs out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub reserved_until: Option<Timestamp>,
    /// What a worker last reported: any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub progress: Option<Payload>,
    /// Somebody asked for its end while it was reserved.
    #[serde(skip_serializing_if = "is_false")]
    pub cancel_requested: bool,
    /// The last ten failures, oldest first.
    pub errors: Vec<Failure>,
    /// The queues that it has left, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trail: Vec<TrailStep>,
    /// Where it came from, if it was dead-lettered into this queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_lettered_from: Option<Origin>,
    /// The finished job that this one repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub replay_of: Option<JobId>,
    /// The stages that it goes through afterwards.
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
    /// The semaphores that it takes while it is reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub semaphores: Vec<SemaphoreName>,
    /// The semaphore that it is blocked by; a blocked job without one waits for its turn in its group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub waits_for: Option<SemaphoreName>,
    /// What its worker answered with the commit: any JSON value (history only).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Payload>,
}

impl JobView {
    /// The job as it is at this moment under these rules.
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

/// A job that was just delivered, with the token that settles it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReservedJob {
    /// Settles the job together with its id; nobody else has it.
    #[schema(value_type = String)]
    pub reservation: Reservation,
    /// The job.
    #[serde(flatten)]
    pub job: JobView,
}
