//! What is remembered of an administrative act: who has done what, on which thing, and what that was before and after.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{JobId, Meta, Payload, QueueName, Timestamp};

/// What an act may be.
pub const ACTS: [&str; 29] = [
    "batch.cancel",
    "job.cancel",
    "job.move",
    "job.redrive",
    "job.release",
    "job.replay",
    "job.retry",
    "job.run",
    "key.create",
    "key.delete",
    "key.rotate",
    "operation.begin",
    "operation.cancel",
    "operation.end",
    "queue.delete",
    "queue.empty",
    "queue.pause",
    "queue.purge",
    "queue.redrive",
    "queue.replay",
    "queue.resume",
    "queue.set",
    "queue.update",
    "schedule.delete",
    "schedule.run",
    "schedule.set",
    "semaphore.delete",
    "semaphore.set",
    "worker.remove",
];

/// One act. Never has it a secret, the hash of one, or a payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = AuditEntry)]
pub struct AuditRow {
    /// Its id: ids sort by time.
    pub id: JobId,
    /// When it was done.
    pub at: Timestamp,
    /// Who did it: the id of the key; `admin` for that of the configuration; `command-line` for `tailback keys`; empty where no key was
    /// required.
    pub by: String,
    /// The name of the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_name: Option<String>,
    /// The address of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// What was done: such as `queue.pause` or `job.retry`.
    pub what: String,
    /// What it was done to: the name or the id.
    pub on: String,
    /// The queue that it is about, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// How many jobs it has changed, removed or pushed, where it is about jobs. What its operation does is counted in the
    /// entry of that one's end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affected: Option<u64>,
    /// What it was before.
    // As JSON text, like `after`: what was asked for may be nested deeper than a parser that recurses can read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub before: Option<Payload>,
    /// What it is from then on, or what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub after: Option<Payload>,
}

impl AuditRow {
    /// Returns whether it is of an act on one job, which is shown as it was before and is after.
    pub fn is_of_one_job(&self) -> bool {
        self.what.starts_with("job.")
    }
}

/// Returns something as it is shown in a row.
pub fn shown(value: &impl Serialize) -> Option<Payload> {
    Payload::from_canonical(serde_json::to_string(value).ok()?).ok()
}

/// Returns what a row shows of a job: where it is and when it is delivered, and nothing that its producer wrote.
pub fn shown_job(job: &Meta, now: Timestamp) -> Option<Payload> {
    let Meta { queue, priority, run_at, attempts, .. } = job;
    let state = job.visible(now).as_str();
    shown(&serde_json::json!({
        "queue": queue, "state": state, "attempt": attempts, "priority": priority, "run_at": run_at,
    }))
}
