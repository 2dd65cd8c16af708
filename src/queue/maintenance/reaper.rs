//! Takes back what workers did not settle in time, and removes jobs past their `expires_at`.
//!
//! Between runs the reaper sleeps until the next deadline that it knows of; a shorter lease that this server
//! gives out in the meantime wakes it.

use std::sync::Arc;
use std::time::Duration;

use super::{Maintenance, Run};
use crate::queue::Result;
use crate::queue::changes::Tried;
use crate::store::LOOK_AHEAD_MS;

/// When to query again where all that is overdue is left out for a while.
const STUCK_REST: Duration = Duration::from_millis(500);

impl Maintenance {
    /// Makes jobs whose reservation ran out ready or dead, and removes jobs past their `expires_at`, `batch`
    /// of them in one step. Counts the jobs that it changed.
    pub async fn reap(self: Arc<Self>, batch: usize, interval: Duration) -> Result<Run> {
        let alarm = &self.queues.0.reaper;
        let mut done = 0;
        loop {
            alarm.begin();
            let stuck = self.queues.0.stuck.count(); // these come first, and are left out
            let overdue = self.queues.0.store.overdue(batch + stuck).await?;
            let found = overdue.changes.len();
            if found == 0 {
                let next = Duration::from_millis(overdue.next_in_ms.unwrap_or(LOOK_AHEAD_MS));
                return Ok(self.rest(done, next.min(interval)));
            }
            let Tried { done: changed, tried } = self.queues.apply_overdue(overdue.changes).await?;
            tracing::debug!(found, changed, "took back overdue jobs");
            done += changed as u64;
            if tried == 0 {
                return Ok(self.rest(done, STUCK_REST)); // until one comes that can be changed
            }
        }
    }

    /// Sleeps for so long, unless a deadline before that is noted.
    fn rest(&self, done: u64, sleep: Duration) -> Run {
        let alarm = &self.queues.0.reaper;
        match self.queues.now() {
            Ok(now) => alarm.sleep_until(now.plus_ms(sleep.as_millis() as u64).millis()),
            Err(_) => alarm.sleep_unwoken(),
        }
        Run { done, again_in: Some(sleep) }
    }
}
