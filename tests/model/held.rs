//! What the holder of a job, or who speaks for the holder, does to it.

use tailback::job::record::TrailReason;
use tailback::job::transition::{Loss, Operation};
use tailback::job::{Claim, Content, Payload, Stage, State, Timestamp};

use super::job::{Job, Rev, Turn, When};
use super::settle::{Becomes, No, due, elsewhere, is_over, unheld};
use super::state::Model;

impl Model {
    /// What its holder, or who speaks for the holder, does to a job.
    pub fn settle_held(&mut self, job: &Job, operation: &Operation, now: When) -> Result<Becomes, No> {
        match operation {
            Operation::Commit { result, .. } => match goes_on(job) {
                Some((stage, rest)) => Ok(self.goes_to(job, stage, rest, result.as_ref(), now)),
                None => Ok(self.is_done(job, result.clone(), now)),
            },
            Operation::Pop { .. } => Ok(self.is_done(job, None, now)),
            Operation::Rollback { kind, error, .. } => Ok(self.is_given_back(job, *kind, error.clone(), now)),
            Operation::Lapse { reserved_until, .. } => {
                if job.reserved_until.map(|until| until.from) != Some(*reserved_until) {
                    return Err(No::Lost { gone: false });
                }
                let end = job.started_at.zip(job.first.max_run_ms).map(|(began, ms)| began.plus(ms));
                let has_ended = end.is_some_and(|end| end.from <= *reserved_until);
                let why = if has_ended { "max_run_ms was over" } else { "the reservation ran out" };
                Ok(self.has_lapsed(job, why, now))
            }
            Operation::Abandon { loss: Loss::TimedOut { rev }, .. } => {
                if !matches!(job.rev, Rev::Same(known) if known == *rev) {
                    return Err(No::Lost { gone: false }); // it was heard of
                }
                Ok(self.has_lapsed(job, "the worker fell silent", now))
            }
            Operation::Abandon { loss: Loss::Removed, .. } => {
                Ok(self.has_lapsed(job, "the worker was removed", now))
            }
            Operation::Extend { lease_ms, progress, .. } => {
                Ok(self.is_extended(job, *lease_ms, progress.as_ref(), now))
            }
            // Of takeovers only this one is among the model's steps.
            Operation::TakeOver { to, lease_ms, .. } => self.is_taken_over(job, to, *lease_ms, now),
            // It is asked for only where it was handed out again.
            Operation::Release { unless_seen: true, .. } => Err(No::Lost { gone: false }),
            Operation::Release { .. } if is_over(job, now) => Ok(self.leaves(job)),
            Operation::Release { .. } => {
                Ok(self.comes_back(Job { attempts: job.attempts - 1, ..unheld(job) }))
            }
            Operation::Move { .. } => self.is_moved(job, operation, now),
            _ => Err(No::Unknown),
        }
    }

    /// It goes on with the next stage of its route.
    fn goes_to(
        &mut self,
        job: &Job,
        stage: &Stage,
        rest: &[Stage],
        result: Option<&Payload>,
        now: When,
    ) -> Becomes {
        let mut next = elsewhere(unheld(job), &stage.queue, TrailReason::Committed, now);
        next.run_at = now.plus(stage.delay_ms.unwrap_or(0));
        next.priority = stage.priority.unwrap_or(job.priority);
        next.max_attempts = stage.max_attempts.or(job.max_attempts);
        next.backoff = stage.backoff.or(job.backoff);
        next.route = rest.to_vec();
        next.progress = None;
        next.payload = result.cloned().map_or_else(|| job.payload.clone(), Content::Json);
        self.comes_back(next)
    }

    /// Its holder needs more time.
    fn is_extended(
        &mut self,
        job: &Job,
        lease_ms: Option<u64>,
        progress: Option<&Payload>,
        now: When,
    ) -> Becomes {
        let own_ms = job.lease_ms.unwrap_or(self.defaults().lease_ms);
        let until = now.plus(lease_ms.unwrap_or(own_ms));
        let until = job.within_run(job.started_at.unwrap_or(now), until);
        let progress = progress.cloned().or_else(|| job.progress.clone());
        let extended_at = Some(now);
        self.put(Job { reserved_until: Some(until), extended_at, progress, ..job.clone() });
        Becomes::Held { until, cancel_requested: job.cancel_requested }
    }

    /// Another delivery of it is to its holder.
    fn is_taken_over(&mut self, job: &Job, to: &Claim, lease_ms: u64, now: When) -> Result<Becomes, No> {
        let end = job.started_at.zip(job.first.max_run_ms).map(|(began, ms)| began.plus(ms));
        if job.claim.as_ref() != Some(to) || end.is_some_and(|end| end.is_past(now)) {
            return Err(No::Lost { gone: false });
        }
        let until = job.within_run(job.started_at.unwrap_or(now), now.plus(lease_ms));
        let until = job.reserved_until.map_or(until, |earlier| earlier.or_later(until));
        let before = Timestamp::from_millis(until.from.millis() - 1); // so that it shows
        let until = When { from: before, ..until };
        let extended_at = Some(now);
        let held = Job { reserved_until: Some(until), lease_ms: Some(lease_ms), extended_at, ..job.clone() };
        self.put(held);
        Ok(Becomes::Held { until, cancel_requested: job.cancel_requested })
    }

    /// Its holder puts it into another queue.
    fn is_moved(&mut self, job: &Job, operation: &Operation, now: When) -> Result<Becomes, No> {
        let Operation::Move { queue, payload, when, priority, key, .. } = operation else {
            return Err(No::Unknown);
        };
        if job.cancel_requested {
            return Ok(self.leaves(job));
        }
        if *queue != job.queue && self.max_jobs(queue).is_some_and(|most| self.unfinished(queue) >= most) {
            return Err(No::Full);
        }
        if let Some(holder) = key.as_ref().and_then(|hold| self.has_key(queue, &hold.key, now))
            && holder != job.id
        {
            return Err(No::Key(holder));
        }
        let mut next = elsewhere(unheld(job), queue, TrailReason::Moved, now);
        next.run_at = due(*when, now);
        next.priority = priority.unwrap_or(job.priority);
        next.progress = None;
        next.payload = payload.clone().unwrap_or_else(|| job.payload.clone());
        if let Some(hold) = key {
            next.key = Some(hold.key.clone());
            self.take_key(&next, hold);
        }
        Ok(self.comes_back(next))
    }

    /// The work is done: history, where that is kept.
    fn is_done(&mut self, job: &Job, result: Option<Payload>, now: When) -> Becomes {
        match self.kept_ms(job) {
            None => self.remove(&job.id),
            Some(ms) => self.put(Job {
                state: State::Done,
                finished_at: Some(now),
                purge_at: Some(now.plus(ms)),
                expires_at: None,
                claim: job.claim.clone(), // it tells the repeat
                turn: Turn::None,
                result,
                ..unheld(job)
            }),
        }
        Becomes::Done
    }
}

/// The next stage of a job's route and what follows, unless the job ends with its commit: in a dead-letter queue the
/// route rests, and what was asked to stop has no next stage.
fn goes_on(job: &Job) -> Option<(&Stage, &[Stage])> {
    let rests = job.origin.is_some() || job.cancel_requested;
    job.route.split_first().filter(|_| !rests)
}
