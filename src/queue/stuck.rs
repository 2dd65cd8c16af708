//! Jobs that the store does not change while it changes others.
//!
//! On MongoDB a transaction that a killed server has left open holds its jobs until `transactionLifetimeLimitSeconds` are over, and a
//! write of another server waits for it. What travels with such a job waits as well, so that it is left out for a while, and then
//! tried apart from the others.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::job::JobId;
use crate::store::Change;

/// For how long such a job is left out.
const LEFT_OUT: Duration = Duration::from_secs(5);
/// For how long it is remembered from then on.
const REMEMBERED: Duration = Duration::from_secs(60);

/// See the module's documentation. The time is the one until which a job is left out.
#[derive(Default)]
pub(super) struct Stuck(Mutex<HashMap<JobId, Instant>>);

/// Changes by what is known of their jobs.
pub(super) struct Sorted {
    /// Those of which nothing is known.
    pub others: Vec<Change>,
    /// Those of jobs that were left out, and may be tried again.
    pub again: Vec<Change>,
}

impl Stuck {
    fn jobs(&self) -> MutexGuard<'_, HashMap<JobId, Instant>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Leaves these jobs out from now on.
    pub fn note(&self, changes: Vec<Change>) {
        let (mut jobs, until) = (self.jobs(), Instant::now() + LEFT_OUT);
        let count = changes.len();
        let are_new = changes.into_iter().filter(|change| jobs.insert(change.id.clone(), until).is_none());
        if let Some(first) = are_new.map(|change| change.id).next() {
            let job_id = first.as_str();
            tracing::warn!(job_id, count, "the store changes some jobs and not these; they are tried again");
        }
    }

    /// Returns how many jobs are left out now.
    pub fn count(&self) -> usize {
        let now = Instant::now();
        self.jobs().values().filter(|until| **until > now).count()
    }

    /// Sorts changes, without those of jobs that are left out now.
    pub fn sort(&self, changes: Vec<Change>) -> Sorted {
        let (mut jobs, now) = (self.jobs(), Instant::now());
        jobs.retain(|_, until| *until + REMEMBERED > now);
        let mut sorted = Sorted { others: Vec::with_capacity(changes.len()), again: Vec::new() };
        for change in changes {
            match jobs.get(&change.id) {
                None => sorted.others.push(change),
                Some(until) if *until <= now => sorted.again.push(change),
                Some(_) => {}
            }
        }
        sorted
    }
}
