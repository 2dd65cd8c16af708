//! Waits for jobs to finish.
//!
//! A waiter stands under the id of its job *before* it reads the job. What finishes a job on this server wakes those that wait for
//! it; what other servers and programs finish is found by one query on behalf of all of them (`maintenance/endings.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::credential::Credential;
use super::reserve::{STAYED_AWAY, WAIT_MAX_MS};
use super::{Error, Queues, Result};
use crate::job::transition::Outcome;
use crate::job::{JobId, Reach};
use crate::store::ListedJob;
use crate::store::StoreError;

/// A wait for a job to finish.
#[derive(Debug, Clone)]
pub struct FinishAsk {
    /// The job.
    pub id: JobId,
    /// How long to wait, in milliseconds.
    pub wait_ms: u64,
    /// Whether there is a place for the call to wait in.
    pub may_wait: bool,
    /// The queues that the caller reaches: elsewhere there is no such job.
    pub within: Reach,
    /// What the call has shown: it must hold for as long as the call waits.
    pub credential: Credential,
}

/// The waiters for jobs to finish.
#[derive(Default)]
pub(super) struct Endings {
    register: Mutex<Register>,
    /// How many waiters there are: where there are none, nothing is looked up.
    count: AtomicUsize,
    /// Notified when there is a waiter.
    alarm: Arc<Notify>,
}

#[derive(Default)]
struct Register {
    next: u64,
    by_job: HashMap<JobId, BTreeMap<u64, Arc<Notify>>>,
}

/// A place among the waiters; dropping it gives it up.
struct Ticket<'a> {
    endings: &'a Endings,
    id: &'a JobId,
    number: u64,
    notify: Arc<Notify>,
}

impl Endings {
    fn register(&self) -> MutexGuard<'_, Register> {
        self.register.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notified when there is a waiter to poll for.
    pub fn alarm(&self) -> Arc<Notify> {
        self.alarm.clone()
    }

    fn enter<'a>(&'a self, id: &'a JobId) -> Ticket<'a> {
        let notify = Arc::new(Notify::new());
        let mut register = self.register();
        let number = register.next;
        register.next += 1;
        register.by_job.entry(id.clone()).or_default().insert(number, notify.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        drop(register);
        self.alarm.notify_one();
        Ticket { endings: self, id, number, notify }
    }

    /// This has become of a job: wakes those that wait for it if it is its end.
    pub fn note(&self, id: &JobId, outcome: &Outcome) {
        if matches!(outcome, Outcome::Done | Outcome::Dead { .. } | Outcome::Removed) {
            self.wake(id);
        }
    }

    /// Wakes all that wait for this job, which has finished or is gone. Returns how many.
    pub fn wake(&self, id: &JobId) -> usize {
        if self.count.load(Ordering::SeqCst) == 0 {
            return 0;
        }
        let register = self.register();
        let waiters = register.by_job.get(id).into_iter().flatten();
        waiters.map(|(_, notify)| notify.notify_one()).count()
    }

    /// Returns the jobs that are waited for.
    pub fn waited_for(&self) -> Vec<JobId> {
        self.register().by_job.keys().cloned().collect()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut register = self.endings.register();
        if let Some(waiters) = register.by_job.get_mut(self.id) {
            waiters.remove(&self.number);
            if waiters.is_empty() {
                register.by_job.remove(self.id);
            }
        }
        self.endings.count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Queues {
    /// Returns the job once it has finished, or as it is when the time is over. One that is gone meanwhile is
    /// [`Error::JobGone`].
    pub async fn finished_job(&self, ask: &FinishAsk) -> Result<ListedJob> {
        if ask.wait_ms > WAIT_MAX_MS {
            return Err(Error::invalid("/wait_ms", "must be 0 to 60000"));
        }
        let deadline = Instant::now() + Duration::from_millis(ask.wait_ms);
        let may_wait = ask.wait_ms > 0 && ask.may_wait;
        let place = if may_wait { self.0.waiting.try_acquire().ok() } else { None };
        let ticket = place.as_ref().map(|_| self.0.endings.enter(&ask.id));
        let mut was_there = false;
        loop {
            // Without a wait it is only read.
            let found = match ask.wait_ms {
                0 => self.job(&ask.id, &ask.within).await,
                _ => self.durable_job(&ask.id, &ask.within).await,
            };
            let job = match found {
                Ok(Ok(job)) if ask.within.has(&job.meta.queue) => job,
                Ok(Err(unreadable)) => return Ok(Err(unreadable)), // it is dead, or out of reach
                Err(Error::UnknownJob(id)) if was_there => return Err(Error::JobGone(id)),
                Ok(_) => return Err(Error::UnknownJob(ask.id.clone())),
                Err(error) => return Err(error),
            };
            let is_over = ask.wait_ms == 0 || Instant::now() >= deadline || self.is_draining();
            if job.meta.has_finished() || is_over {
                return Ok(Ok(job));
            }
            let Some(ticket) = &ticket else { return Err(Error::TooManyWaiting) };
            (was_there, _) = (true, job); // not kept in memory while this waits
            tokio::select! {
                () = ticket.notify.notified() => {}
                () = tokio::time::sleep_until(deadline) => {}
                () = self.0.draining.cancelled() => {}
                () = self.0.away.notified() => return Err(StoreError::unavailable(STAYED_AWAY).into()),
                ended = self.ended(&ask.credential) => return Err(ended),
            }
            self.check_credential(&ask.credential)?; // both may have come
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn all_that_wait_for_a_job_are_woken_when_it_finishes() {
        let endings = Endings::default();
        let (a, b): (JobId, JobId) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (first, second, other) = (endings.enter(&a), endings.enter(&a), endings.enter(&b));
        let is_woken = |ticket: &Ticket<'_>| ticket.notify.notified().now_or_never().is_some();
        let held = Outcome::Held { reserved_until: Default::default(), cancel_requested: false };
        endings.note(&a, &held);
        assert!(!is_woken(&first), "it goes on");
        for outcome in [Outcome::Done, Outcome::Removed, Outcome::Dead { moved_to: None }] {
            endings.note(&a, &outcome);
            assert!(is_woken(&first) && is_woken(&second) && !is_woken(&other));
        }
        drop((first, second));
        assert_eq!((endings.wake(&a), endings.waited_for()), (0, vec![b.clone()]));
        drop(other);
        assert!(endings.waited_for().is_empty());
    }
}
