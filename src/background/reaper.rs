//! Takes back what workers did not settle in time, and removes what nobody wants any more: jobs whose
//! reservation ran out come back or are dead, jobs past their `expires_at` leave.
//!
//! Every server reaps. Each change is guarded by what was seen, so that a job is taken back once however
//! many reapers see it. Between runs the reaper sleeps until the next deadline that it knows of; a shorter
//! lease that this server gives out in the meantime rings its bell.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::Options;
use super::driver::{Run, Task};
use crate::queue::{Error, Queues};
use crate::store::{LOOK_AHEAD_MS, Store};

/// See the module's documentation. Its runs count the jobs that they changed.
pub struct Reaper {
    queues: Queues,
    store: Arc<dyn Store>,
    options: Options,
}

impl Reaper {
    /// A reaper for these queues.
    pub fn new(queues: Queues, store: Arc<dyn Store>, options: Options) -> Self {
        Self { queues, store, options }
    }
}

#[async_trait]
impl Task for Reaper {
    fn name(&self) -> &'static str {
        "reaper"
    }

    fn interval(&self) -> Duration {
        self.options.reaper_interval
    }

    fn bell(&self) -> Option<&Notify> {
        Some(self.queues.reaper_bell())
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let mut done = 0;
        loop {
            self.queues.reaper_wakes();
            let overdue = self.store.overdue(self.options.reaper_batch).await?;
            let found = overdue.changes.len();
            if found == 0 {
                let next = Duration::from_millis(overdue.next_in_ms.unwrap_or(LOOK_AHEAD_MS));
                let sleep = next.min(self.interval());
                self.queues.reaper_sleeps(sleep);
                return Ok(Run { done, again_in: Some(sleep) });
            }
            let changed = self.queues.apply_overdue(overdue.changes).await?;
            tracing::debug!(found, changed, "took back overdue jobs");
            done += changed as u64;
        }
    }
}
