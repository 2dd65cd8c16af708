//! A job's route: the queues that it still has to go through, and the jobs that a commit leaves behind.

use serde::{Deserialize, Serialize};

use super::backoff::YEAR_MS;
use super::settings::ATTEMPTS_MAX;
use super::{Backoff, JobId, QueueName, Timestamp};

/// The most stages of a route.
pub const ROUTE_MAX: usize = 100;

/// A stage that a job has before it. What is absent stays as it is with the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Where the job goes on.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Its priority there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<i32>,
    /// Due there after so many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    pub delay_ms: Option<u64>,
    /// How often it is delivered there before it is dead.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[schema(minimum = 1, maximum = 1000000)]
    pub max_attempts: Option<u32>,
    /// How long it waits there after a rollback.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "super::backoff::object")]
    pub backoff: Option<Backoff>,
}

impl Stage {
    /// The first field that is out of its range, as a JSON pointer into the stage, and what would be right.
    pub fn fault(&self) -> Option<(String, String)> {
        if self.delay_ms.is_some_and(|ms| ms > YEAR_MS) {
            return Some(("/delay_ms".into(), "must be 0 to 31536000000 (a year)".into()));
        }
        if self.max_attempts.is_some_and(|n| !(1..=ATTEMPTS_MAX).contains(&n)) {
            return Some(("/max_attempts".into(), "must be 1 to 1000000".into()));
        }
        let (field, what) = self.backoff.as_ref().and_then(Backoff::fault)?;
        Some((format!("/backoff/{field}"), what.into()))
    }
}

/// A job that a commit pushed; the receipt of the commit keeps it, so that a repeat answers the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Child {
    /// The job: the new one, or the one that has the key.
    #[schema(value_type = String)]
    pub id: JobId,
    /// The queue that it was pushed to.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// When it is, or was, due.
    #[schema(value_type = String, format = DateTime)]
    pub run_at: Timestamp,
    /// Whether its key was taken by a job with an equal payload, and nothing was stored.
    pub deduplicated: bool,
}
