//! Unblocks jobs that wait for semaphores once these have room.
//!
//! What makes room wakes the task. Once in its interval it also checks semaphores that jobs wait for, in turn, for a second: what servers
//! that died have left undone, and what time alone has changed, such as the patience of a job. Each semaphore is a call of its own: one
//! whose jobs an open transaction holds on MongoDB must not keep others from being served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::SemaphoreName;
use crate::queue::{Error, Result};

/// The most semaphores that one run checks beside those that were noted.
const CHECKED_MAX: usize = 1000;
/// For how long one run checks them, and serves those that were noted; what is left is for the next one.
const CHECK_FOR: Duration = Duration::from_secs(1);
const SERVE_FOR: Duration = Duration::from_secs(5);

/// How far a run has come with some semaphores.
#[derive(Default)]
struct Served {
    /// How many jobs were unblocked.
    jobs: u64,
    /// How many semaphores were served, or failed.
    semaphores: usize,
    failed: Vec<SemaphoreName>,
    error: Option<Error>,
}

impl Maintenance {
    /// Unblocks jobs whose semaphores have room now, and wakes waiters for them. Counts those jobs.
    pub async fn unblock_waiting_jobs(self: Arc<Self>, interval: Duration) -> Result<Run> {
        // What made room comes first: a check of all may take long.
        let offered = self.serve_offers().await;
        let since = lock(&self.semaphores_checked).map_or(Duration::MAX, |checked| checked.elapsed());
        let all = since >= interval;
        let checked = if all { self.check_next().await? } else { Served::default() };
        if all {
            *lock(&self.semaphores_checked) = Some(Instant::now());
        }
        if let Some(error) = offered.error.or(checked.error) {
            return Err(error);
        }
        let left = interval.saturating_sub(if all { Duration::ZERO } else { since });
        Ok(Run { done: offered.jobs + checked.jobs, again_in: Some(left) })
    }

    /// Serves the semaphores that were noted. Those that fail are noted again.
    async fn serve_offers(&self) -> Served {
        let notes = &self.queues.0.semaphores;
        let mut offers = notes.take_offers();
        let served = self.serve(&offers, SERVE_FOR).await;
        let mut again = offers.split_off(served.semaphores.min(offers.len()));
        again.extend(served.failed.iter().cloned());
        notes.put_back(again);
        served
    }

    /// Serves semaphores that jobs wait for: those behind the last ones that it served, and from the first on again once there are no more.
    async fn check_next(&self) -> Result<Served> {
        let after = lock(&self.last_semaphore).clone();
        let names = self.queues.0.store.waited_for(after.as_ref(), CHECKED_MAX).await?;
        let served = self.serve(&names, CHECK_FOR).await;
        let are_more = names.len() == CHECKED_MAX || served.semaphores < names.len();
        let last = names.get(..served.semaphores).and_then(<[_]>::last);
        *lock(&self.last_semaphore) = last.filter(|_| are_more).cloned();
        Ok(served)
    }

    /// Unblocks jobs that wait for these semaphores, one after the other, for so long.
    async fn serve(&self, names: &[SemaphoreName], time: Duration) -> Served {
        let (mut served, end, queues) = (Served::default(), Instant::now() + time, &self.queues);
        for name in names {
            if Instant::now() >= end {
                break;
            }
            served.semaphores += 1;
            match queues.0.store.unblock_waiters(std::slice::from_ref(name), &queues.rules()).await {
                Ok(unblocked) => {
                    unblocked.iter().for_each(|job| queues.announce(&job.queue, job.run_at));
                    served.jobs += unblocked.len() as u64;
                }
                Err(error) => {
                    served.failed.push(name.clone());
                    served.error.get_or_insert(error.into());
                }
            }
        }
        served
    }
}
