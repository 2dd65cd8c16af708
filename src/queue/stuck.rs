//! Jobs that the store does not change while it changes others.
//!
//! On MongoDB a transaction that a killed server has left open holds its jobs until `transactionLifetimeLimitSeconds` are over, and a
//! write of another server waits for it. What travels with such a job waits as well, so that it is left out for a while.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::job::JobId;
use crate::store::Change;

/// For how long such a job is left out.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Stuck(Mutex<HashMap<JobId, Instant>>);

impl Stuck {
    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Instant>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Leaves this job out from now on.
    pub fn note(&self, id: JobId) {
        tracing::warn!(
            job_id = id.as_str(),
            "the store does not change a job, but others; it is tried again"
        );
        self.jobs().insert(id, Instant::now() + LEFT_OUT);
    }

    /// Returns the changes of those that are not left out.
    pub fn without(&self, mut changes: Vec<Change>) -> Vec<Change> {
        let (mut jobs, now) = (self.jobs(), Instant::now());
        jobs.retain(|_, until| *until > now);
        if !jobs.is_empty() {
            changes.retain(|change| !jobs.contains_key(&change.id));
        }
        changes
    }
}
