//! Unblocks jobs that wait for semaphores once these have room.
//!
//! What makes room wakes the task. Once in its interval it checks every semaphore that jobs wait for: what
//! servers that died have left undone, and what time alone has changed, such as the patience of a job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::SemaphoreName;
use crate::queue::Result;

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

    /// Unblocks jobs that wait for the semaphores that were noted, or (`all`) for any, and returns how many.
    async fn unblock(&self, all: bool) -> Result<u64> {
        let queues = &self.queues;
        let offers: Vec<SemaphoreName> = queues.0.semaphores.take_offers();
        let names = if all { None } else { Some(&*offers) };
        if names.is_some_and(<[_]>::is_empty) {
            return Ok(0);
        }
        let unblocked = match queues.0.store.unblock_waiters(names, &queues.rules()).await {
            Ok(unblocked) => unblocked,
            Err(error) => {
                queues.0.semaphores.put_back(offers); // for the next run
                return Err(error.into());
            }
        };
        unblocked.iter().for_each(|job| queues.announce(&job.queue, job.run_at));
        Ok(unblocked.len() as u64)
    }
}
