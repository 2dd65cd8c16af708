//! A job's route: the stages that follow, and the jobs that a commit pushes.

use serde::{Deserialize, Serialize};

use super::{Backoff, Invalid, JobId, NewJob, QueueName, Timestamp, spec};

/// The most stages of a route.
pub const ROUTE_MAX: usize = 100;

/// A stage of a route. What is absent stays as it is with the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RouteStage)]
pub struct Stage {
    /// Where the job goes on.
    pub queue: QueueName,
    /// Its priority there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<i32>,
    /// Due there after so many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub delay_ms: Option<u64>,
    /// How often it is delivered there before it is dead; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0, maximum = 1000000)]
    pub max_attempts: Option<u32>,
    /// How long it waits there after a rollback.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "super::backoff::object")]
    pub backoff: Option<Backoff>,
}

impl Stage {
    /// Returns a stage in this queue that leaves the job as it is.
    pub fn new(queue: QueueName) -> Self {
        Self { queue, priority: None, delay_ms: None, max_attempts: None, backoff: None }
    }

    /// Refuses the first value that is out of its range. Pointers are relative to the stage.
    pub fn check(&self) -> Result<(), Invalid> {
        spec::check_year(self.delay_ms, "/delay_ms")?;
        spec::check_attempts(self.max_attempts)?;
        spec::check_backoff(self.backoff.as_ref())
    }
}

/// A job that a commit pushed. The receipt of the commit keeps it, so that a retry returns the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = PushedJob)]
pub struct Child {
    /// The job: the new one, or the one that has the key.
    pub id: JobId,
    /// The queue that it was pushed to.
    pub queue: QueueName,
    /// When it is, or was, due.
    pub run_at: Timestamp,
    /// Whether an existing job has its key, and no job was stored.
    pub deduplicated: bool,
    /// The payload and the time of this existing job were replaced by those of the push (`key_conflict: replace`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

impl Child {
    /// Returns what is said of a job that was stored.
    pub fn new(job: &NewJob) -> Self {
        let (id, queue) = (job.id.clone(), job.queue.clone());
        Self { id, queue, run_at: job.run_at, deduplicated: false, replaced: false }
    }
}
