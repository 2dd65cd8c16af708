//! Unblocks jobs that wait for semaphores once these have room.
//!
//! What makes room wakes the task. Once in its interval it also checks semaphores that jobs wait for, a thousand at a
//! time in turn: what servers that died have left undone, and what time alone has changed, such as the patience of a job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::SemaphoreName;
use crate::queue::Result;

/// The most semaphores that one run checks beside those that were noted.
const CHECKED_MAX: usize = 1000;

impl Maintenance {
    /// Unblocks jobs whose semaphores have room now, and wakes waiters for them. Counts those jobs.
    pub async fn unblock_waiting_jobs(self: Arc<Self>, interval: Duration) -> Result<Run> {
        let since = lock(&self.semaphores_checked).map_or(Duration::MAX, |checked| checked.elapsed());
        let all = since >= interval;
        let done = self.unblock(all).await?;
        if all {
            *lock(&self.semaphores_checked) = Some(Instant::now());
        }
        let left = interval.saturating_sub(if all { Duration::ZERO } else { since });
        Ok(Run { done, again_in: Some(left) })
    }

    /// Unblocks jobs that wait for the semaphores that were noted, and (`all`) for the next of any, and returns how
    /// many.
    async fn unblock(&self, all: bool) -> Result<u64> {
        let queues = &self.queues;
        let mut names = if all { self.next_waited_for().await? } else { Vec::new() };
        let offers: Vec<SemaphoreName> = queues.0.semaphores.take_offers();
        names.extend(offers.iter().cloned());
        if names.is_empty() {
            return Ok(0);
        }
        let unblocked = match queues.0.store.unblock_waiters(&names, &queues.rules()).await {
            Ok(unblocked) => unblocked,
            Err(error) => {
                queues.0.semaphores.put_back(offers); // for the next run
                return Err(error.into());
            }
        };
        unblocked.iter().for_each(|job| queues.announce(&job.queue, job.run_at));
        Ok(unblocked.len() as u64)
    }

    /// Returns semaphores that jobs wait for: those behind the last ones that it returned, and from the first on again
    /// once there are no more.
    async fn next_waited_for(&self) -> Result<Vec<SemaphoreName>> {
        let after = lock(&self.last_semaphore).clone();
        let names = self.queues.0.store.waited_for(after.as_ref(), CHECKED_MAX).await?;
        let is_cut = names.len() == CHECKED_MAX;
        *lock(&self.last_semaphore) = names.last().filter(|_| is_cut).cloned();
        Ok(names)
    }
}
