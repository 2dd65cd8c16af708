//! Unblocks jobs that wait for semaphores once these have room.
//!
//! What makes room wakes the task. Once in its interval it also checks semaphores that jobs wait for, in turn: what servers
//! that died have left undone, and what time alone has changed, such as the patience of a job.
//!
//! On MongoDB a transaction that a killed server has left open may hold the jobs of a semaphore for a minute. Where a call for several
//! fails they are served one by one, and those that fail are left out for a while: they must not keep others from being served.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::SemaphoreName;
use crate::queue::{Error, Result};
use crate::store::chain;

/// The most semaphores that one run checks beside those that were noted.
const CHECKED_MAX: usize = 1000;
/// For how long one run serves those one by one that could not be served together; the others are for the next one.
const ONE_BY_ONE: Duration = Duration::from_secs(1);
/// For how long a semaphore is left out that could not be served alone.
const LEFT_OUT: Duration = Duration::from_secs(5);

/// Semaphores that could not be served, and until when they are left out.
pub(super) type LeftOut = HashMap<SemaphoreName, Instant>;

/// How far a call has come with some semaphores.
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

    /// Serves the semaphores that were noted. Those that fail are noted again. Returns whether some are left that are not left out.
    async fn serve_offers(&self) -> (Served, bool) {
        let notes = &self.queues.0.semaphores;
        let (mut offers, mut again) = self.without_left_out(notes.take_offers());
        let served = self.serve(&offers).await;
        let rest = offers.split_off(served.semaphores.min(offers.len()));
        let are_left = !rest.is_empty() && served.has_succeeded;
        again.extend(rest.into_iter().chain(served.failed.iter().cloned()));
        notes.put_back(again);
        (served, are_left)
    }

    /// Serves semaphores that jobs wait for: those behind the last ones that it served, and from the first on again once there are no more.
    async fn check_next(&self) -> Result<Served> {
        let after = lock(&self.last_semaphore).clone();
        let found = self.queues.0.store.waited_for(after.as_ref(), CHECKED_MAX).await?;
        let (is_cut, last_found) = (found.len() == CHECKED_MAX, found.last().cloned());
        let (names, _) = self.without_left_out(found);
        let served = self.serve(&names).await;
        let last = match served.semaphores < names.len() {
            true => names.get(..served.semaphores).and_then(<[_]>::last).cloned().or(after),
            false => last_found.filter(|_| is_cut),
        };
        *lock(&self.last_semaphore) = last;
        Ok(served)
    }

    /// Returns those that are not left out now, and those that are.
    fn without_left_out(&self, names: Vec<SemaphoreName>) -> (Vec<SemaphoreName>, Vec<SemaphoreName>) {
        let (mut left_out, now) = (lock(&self.semaphores_left_out), Instant::now());
        left_out.retain(|_, until| *until > now);
        names.into_iter().partition(|name| !left_out.contains_key(name))
    }

    /// Unblocks jobs that wait for these semaphores: together or, where that fails, one after the other for a while.
    async fn serve(&self, names: &[SemaphoreName]) -> Served {
        let mut served = Served::default();
        if names.is_empty() {
            return served;
        }
        self.serve_together(names, &mut served).await;
        if served.error.is_none() || names.len() == 1 {
            served.semaphores = names.len();
            return served;
        }
        let end = Instant::now() + ONE_BY_ONE;
        for name in names {
            if served.semaphores > 0 && Instant::now() >= end {
                break;
            }
            served.semaphores += 1;
            let failed = served.failed.len();
            self.serve_together(std::slice::from_ref(name), &mut served).await;
            if served.failed.len() > failed {
                lock(&self.semaphores_left_out).insert(name.clone(), Instant::now() + LEFT_OUT);
            }
        }
        served
    }

    async fn serve_together(&self, names: &[SemaphoreName], served: &mut Served) {
        let queues = &self.queues;
        match queues.0.store.unblock_waiters(names, &queues.rules()).await {
            Ok(unblocked) => {
                unblocked.iter().for_each(|job| queues.announce(&job.queue, job.run_at));
                served.jobs += unblocked.len() as u64;
                served.has_succeeded = true;
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), count = names.len(), "semaphores could not be served");
                if let [name] = names {
                    served.failed.push(name.clone());
                }
                served.error.get_or_insert(error.into());
            }
        }
    }
}
