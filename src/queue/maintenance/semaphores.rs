//! Unblocks jobs that wait for semaphores once these have room.
//!
//! What makes room wakes the task. Once in its interval it also checks semaphores that jobs wait for, in turn: what servers
//! that died have left undone, and what time alone has changed, such as the patience of a job.
//!
//! On MongoDB a transaction that a killed server has left open may hold the jobs of a semaphore for a minute. Where a call for several
//! fails they are served one by one, and those that fail are left out for a while: they must not keep others from being served.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::seq::SliceRandom as _;

use super::{Maintenance, Run, lock};
use crate::job::SemaphoreName;
use crate::queue::stuck::Sorted;
use crate::queue::{Error, Result};
use crate::store::chain;

/// The most semaphores that one run checks beside those that were noted.
const CHECKED_MAX: usize = 1000;
/// How many are served together: on MongoDB each takes three commands, and all of them one deadline.
const TOGETHER: usize = 50;
/// For how long one run serves them; the others are for the next one.
const SERVE_FOR: Duration = Duration::from_secs(2);
/// How many may fail one after the other before a run ends.
const FAILURES_MAX: usize = 4;

/// How far a run has come with some semaphores.
#[derive(Default)]
struct Served {
    /// How many jobs were unblocked.
    jobs: u64,
    /// How many of the semaphores were served, or have failed; the others are left.
    semaphores: usize,
    /// Whether any was served.
    has_succeeded: bool,
    failed: Vec<SemaphoreName>,
    error: Option<Error>,
}

impl Maintenance {
    /// Unblocks jobs whose semaphores have room now, and wakes waiters for them. Counts those jobs.
    pub async fn unblock_waiting_jobs(self: Arc<Self>, interval: Duration) -> Result<Run> {
        // What made room comes first: a check of all may take long.
        let (offered, are_left) = self.serve_offers().await;
        let since = lock(&self.semaphores_checked).map_or(Duration::MAX, |checked| checked.elapsed());
        let all = since >= interval;
        let checked = if all { self.check_next().await? } else { Served::default() };
        if all {
            *lock(&self.semaphores_checked) = Some(Instant::now());
        }
        let has_succeeded = offered.has_succeeded || checked.has_succeeded;
        if let Some(error) = offered.error.or(checked.error).filter(|_| !has_succeeded) {
            return Err(error);
        }
        let left = interval.saturating_sub(if all { Duration::ZERO } else { since });
        let again_in = if are_left { Duration::ZERO } else { left };
        Ok(Run { done: offered.jobs + checked.jobs, again_in: Some(again_in) })
    }

    /// Serves the semaphores that were noted, and notes again what fails or is left. Returns whether some are left that may be served now.
    async fn serve_offers(&self) -> (Served, bool) {
        let notes = &self.queues.0.semaphores;
        let sorted = self.stuck_semaphores.sort(notes.take_offers(), |name| name);
        let Sorted { mut others, mut again, mut left_out } = sorted;
        others.shuffle(&mut rand::rng()); // the same ones must not fail first each time
        let mut served = self.serve(&others).await;
        let rest = others.split_off(served.semaphores.min(others.len()));
        let are_left = !rest.is_empty() && served.has_succeeded;
        // One at most: each may take a call's deadline.
        if let Some(name) = again.pop() {
            self.serve_together(&[name], &mut served).await;
        }
        left_out.extend(rest.into_iter().chain(again).chain(served.failed.iter().cloned()));
        notes.put_back(left_out);
        self.note_stuck(&served);
        (served, are_left)
    }

    /// Serves semaphores that jobs wait for: those behind the last ones that it served, and from the first on again once there are no more.
    async fn check_next(&self) -> Result<Served> {
        let after = lock(&self.last_semaphore).clone();
        let found = self.queues.0.store.waited_for(after.as_ref(), CHECKED_MAX).await?;
        let (is_cut, last_found) = (found.len() == CHECKED_MAX, found.last().cloned());
        let Sorted { others, mut again, .. } = self.stuck_semaphores.sort(found, |name| name);
        let mut served = self.serve(&others).await;
        let last = match served.semaphores < others.len() {
            true => others.get(..served.semaphores).and_then(<[_]>::last).cloned().or(after),
            false => last_found.filter(|_| is_cut),
        };
        *lock(&self.last_semaphore) = last;
        again.shuffle(&mut rand::rng());
        if let Some(name) = again.pop() {
            self.serve_together(&[name], &mut served).await;
        }
        self.note_stuck(&served);
        Ok(served)
    }

    /// Leaves those out for a while that failed where others did not.
    fn note_stuck(&self, served: &Served) {
        if served.has_succeeded && self.stuck_semaphores.note(served.failed.iter().cloned()).is_some() {
            let count = served.failed.len();
            tracing::warn!(
                count,
                "jobs of some semaphores cannot be unblocked, others can; they are tried again"
            );
        }
    }

    /// Unblocks jobs that wait for these semaphores, some at a time and, where that fails, one after the other; for a while.
    async fn serve(&self, names: &[SemaphoreName]) -> Served {
        let (mut served, end) = (Served::default(), Instant::now() + SERVE_FOR);
        for names in names.chunks(TOGETHER) {
            if served.semaphores > 0 && Instant::now() >= end {
                break;
            }
            if self.serve_together(names, &mut served).await || names.len() == 1 {
                served.semaphores += names.len();
                continue;
            }
            for name in names {
                self.serve_together(std::slice::from_ref(name), &mut served).await;
                served.semaphores += 1;
                if served.failed.len() >= FAILURES_MAX || (Instant::now() >= end && served.has_succeeded) {
                    break;
                }
            }
            break; // the others are for the next run, which leaves out what has failed
        }
        served
    }

    /// Returns whether they could be served.
    async fn serve_together(&self, names: &[SemaphoreName], served: &mut Served) -> bool {
        let queues = &self.queues;
        match queues.0.store.unblock_waiters(names, &queues.rules()).await {
            Ok(unblocked) => {
                unblocked.iter().for_each(|job| queues.announce(&job.queue, job.run_at));
                served.jobs += unblocked.len() as u64;
                served.has_succeeded = true;
                true
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), count = names.len(), "semaphores could not be served");
                if let [name] = names {
                    served.failed.push(name.clone());
                }
                served.error.get_or_insert(error.into());
                false
            }
        }
    }
}
