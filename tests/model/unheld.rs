//! What anybody may do to a job, whether or not somebody holds it.

use tailback::job::record::TrailReason;
use tailback::job::transition::{Edit, Operation};
use tailback::job::{QueueName, State, When as Due};

use super::job::{Failed, Home, Job, Turn, Waits, When};
use super::settle::{Becomes, No, due, elsewhere, is_over, unheld};
use super::state::Model;

impl Model {
    /// What anybody may do to a job.
    pub fn change_unheld(&mut self, job: &Job, operation: &Operation, now: When) -> Result<Becomes, No> {
        let conflict = Err(No::Conflict(job.visible(now)));
        let waits = matches!(job.state, State::Ready | State::Blocked);
        if operation.within().is_some_and(|within| !within.has(&job.queue)) {
            return Err(No::Unknown);
        }
        let is_in = |batch| job.is_unfinished() && job.batch.as_ref() == Some(batch);
        match operation {
            Operation::Expire { expires_at } => {
                let is_it = job.expires_at.is_some_and(|at| at.from == *expires_at);
                if waits && is_it { Ok(self.leaves(job)) } else { conflict }
            }
            Operation::Edit { edit, .. } if waits => Ok(self.is_edited(job, edit, now)),
            Operation::CancelOfBatch { batch, .. } if !is_in(batch) => conflict,
            Operation::Cancel { force: false, .. } | Operation::CancelOfBatch { .. }
                if job.state == State::Reserved =>
            {
                self.put(Job { cancel_requested: true, ..job.clone() });
                let until = job.reserved_until.unwrap_or(now);
                Ok(Becomes::Held { until, cancel_requested: true })
            }
            Operation::CancelUnheld { .. } if job.state == State::Reserved => conflict,
            Operation::Cancel { .. } | Operation::CancelUnheld { .. } | Operation::CancelOfBatch { .. } => {
                Ok(self.leaves(job))
            }
            Operation::Retry { .. } if job.expires_at.is_some_and(|at| at.is_past(now)) => conflict,
            Operation::Retry { .. } if job.state == State::Ready => {
                let run_at = if job.run_at.is_past(now) { job.run_at } else { now };
                Ok(self.comes_back(Job { attempts: 0, run_at, ..job.clone() }))
            }
            Operation::Retry { .. } if job.state == State::Dead => {
                let (finished_at, purge_at, batch) = (None, None, None);
                let again = Job { attempts: 0, run_at: now, finished_at, purge_at, batch, ..unheld(job) };
                Ok(self.comes_back(Job { state: State::Ready, ..again }))
            }
            Operation::Run { .. } if waits && !job.expires_at.is_some_and(|at| at.is_past(now)) => {
                let run_at = if job.run_at.is_past(now) { job.run_at } else { now };
                Ok(self.comes_back(Job { run_at, ..job.clone() }))
            }
            Operation::Revoke { .. } if job.state == State::Reserved && is_over(job, now) => {
                Ok(self.leaves(job))
            }
            Operation::Revoke { .. } if job.state == State::Reserved => {
                Ok(self.comes_back(Job { attempts: job.attempts - 1, ..unheld(job) }))
            }
            Operation::Relocate { queue, when, priority, .. } if waits || job.state == State::Dead => {
                self.is_relocated(job, queue, (*when, *priority), now)
            }
            Operation::Purge { states, .. }
                if job.state != State::Reserved
                    && states.iter().any(|state| job.visible(now).contains(state)) =>
            {
                Ok(self.leaves(job))
            }
            Operation::Redrive { .. } if job.expires_at.is_some_and(|at| at.is_past(now)) => conflict,
            Operation::Redrive { .. } => self.is_redriven(job, now).map_or(conflict, Ok),
            _ => conflict,
        }
    }

    /// An operator changes what its producer has said.
    fn is_edited(&mut self, job: &Job, edit: &Edit, now: When) -> Becomes {
        let expires_at = edit.expires_in_ms.map(|ms| ms.map(|ms| now.plus(ms)));
        let mut next = Job {
            priority: edit.priority.unwrap_or(job.priority),
            run_at: edit.run_at.map_or(job.run_at, When::at),
            payload: edit.payload.clone().unwrap_or_else(|| job.payload.clone()),
            headers: edit.headers.clone().unwrap_or_else(|| job.headers.clone()),
            max_attempts: edit.max_attempts.unwrap_or(job.max_attempts),
            expires_at: expires_at.unwrap_or(job.expires_at),
            ..job.clone()
        };
        if let Some(group) = edit.group.as_ref().filter(|group| **group != job.group) {
            (next.group, next.turn) = (group.clone(), Turn::None);
            (next.state, next.waits_for, next.waiting_since) = (State::Ready, Waits::No, None);
        }
        self.comes_back(next)
    }

    /// It gets another chance where it came from, unless it is not dead.
    fn is_redriven(&mut self, job: &Job, now: When) -> Option<Becomes> {
        match (&job.origin, job.state) {
            (None, State::Dead) => {
                let revived = Job {
                    state: State::Ready,
                    attempts: 0,
                    run_at: now,
                    finished_at: None,
                    purge_at: None,
                    batch: None,
                    ..job.clone()
                };
                Some(self.comes_back(revived))
            }
            (Some(origin), State::Ready | State::Blocked | State::Dead) => {
                let home = elsewhere(unheld(job), &origin.queue, TrailReason::Redriven, now);
                let (finished_at, purge_at) = (None, None);
                // It is what it was there. Why it died before is known while that failure is.
                let is_kept = |home: &Home| {
                    let is_last = |failed: &Failed| {
                        failed.attempt == home.attempts && Some(&failed.message) == home.error.as_ref()
                    };
                    job.errors.iter().any(is_last)
                };
                let origin = origin.before.as_deref().map(|home| {
                    let error = home.error.clone().filter(|_| is_kept(home));
                    Home { error, ..home.clone() }
                });
                let home = Job { run_at: now, finished_at, purge_at, batch: None, origin, ..home };
                Some(self.comes_back(home))
            }
            _ => None,
        }
    }

    /// An operator puts it into another queue.
    fn is_relocated(
        &mut self,
        job: &Job,
        queue: &QueueName,
        (when, priority): (Option<Due>, Option<i32>),
        now: When,
    ) -> Result<Becomes, No> {
        if job.expires_at.is_some_and(|at| at.is_past(now)) {
            return Err(No::Conflict(job.visible(now)));
        }
        let is_full = |most| self.unfinished(queue) >= most;
        if *queue != job.queue && self.max_jobs(queue).is_some_and(is_full) {
            return Err(No::Full);
        }
        let mut next = elsewhere(unheld(job), queue, TrailReason::Moved, now);
        if job.state == State::Dead {
            (next.run_at, next.finished_at, next.purge_at, next.batch) = (now, None, None, None);
        }
        next.run_at = when.map_or(next.run_at, |when| due(when, now));
        next.priority = priority.unwrap_or(job.priority);
        next.progress = None;
        Ok(self.comes_back(next))
    }
}
