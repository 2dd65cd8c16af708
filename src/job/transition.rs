//! What an operation does to a job: one pure function, which both stores apply atomically.
//!
//! A store reads the job, calls [`step`], and writes what it returns, guarded so that the job cannot have changed in
//! between (optimistic concurrency by `rev`). Time is the store's and is passed in. [`delivery`] has the transitions
//! of claims, which are written for many jobs at once.

pub mod delivery;
mod operation;
#[cfg(test)]
mod tests;

use super::record::{FAILURES_KEPT, Failure, Meta, Origin, TRAIL_KEPT, TrailReason, TrailStep};
use super::state::{self, State, Visible};
use super::{Payload, QueueName, Reach, Rules, Stage, Timestamp};
use crate::faults;

pub use self::operation::{Loss, OfUnreadable, Operation};

/// What has become of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Outcome {
    /// It is done: history, or gone.
    Done,
    /// It is in `queue`, due at `run_at`; `blocked`: once its turn in its group has come.
    Returned { queue: QueueName, run_at: Timestamp, blocked: bool },
    /// Its attempts are used up. `moved_to` is the dead-letter queue that it is in now, if it has one.
    Dead { moved_to: Option<QueueName> },
    /// It is still reserved.
    Held { reserved_until: Timestamp, cancel_requested: bool },
    /// It was taken away.
    Removed,
}

/// Why nothing happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Refusal {
    /// The token is not the current one. `gone`: there is no such job (any more).
    Lost { gone: bool },
    /// There is no such job.
    Unknown,
    /// The job's state does not allow it.
    Conflict { state: Visible },
    /// The queue that it would move to has as many unfinished jobs as it takes.
    Full,
}

/// What a store must write.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Next {
    /// Nothing.
    Keep,
    /// The new bookkeeping and, where given, a new payload and a result.
    Write { meta: Box<Meta>, payload: Option<Payload>, result: Option<Payload> },
    /// The job leaves.
    Delete,
}

/// What [`step`] returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// What to write.
    pub next: Next,
    /// What to return to the caller.
    pub outcome: Outcome,
}

impl Step {
    fn write(meta: Meta, outcome: Outcome) -> Self {
        Self { next: Next::Write { meta: Box::new(meta), payload: None, result: None }, outcome }
    }

    fn held(meta: Meta, reserved_until: Timestamp) -> Self {
        let outcome = Outcome::Held { reserved_until, cancel_requested: meta.cancel_requested };
        Self::write(meta, outcome)
    }

    fn delete(outcome: Outcome) -> Self {
        Self { next: Next::Delete, outcome }
    }
}

/// What surrounds a step: the store's clock, the queues' settings, and a random number from 0 to 1.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The store's clock.
    pub now: Timestamp,
    /// The queues' settings.
    pub rules: &'a Rules,
    /// Places a backoff within its jitter.
    pub chance: f64,
}

/// Checks that the token is the current one and that the table has a row for the job's state.
fn check(meta: &Meta, operation: &Operation, now: Timestamp) -> Result<(), Refusal> {
    let claim = operation.claim();
    if claim.is_some() && meta.claim.as_ref() != claim && !faults::bug("ignore_token") {
        return Err(Refusal::Lost { gone: false });
    }
    if operation.within().is_some_and(|within| !within.has(&meta.queue)) {
        return Err(Refusal::Unknown);
    }
    if state::targets(meta.state, operation.verb()).is_none() {
        return Err(match claim {
            Some(_) => Refusal::Lost { gone: false },
            None => Refusal::Conflict { state: meta.visible(now) },
        });
    }
    Ok(())
}

/// Returns the refusal of an operation where there is no such job.
pub fn missing(operation: &Operation) -> Refusal {
    match operation.claim() {
        Some(_) => Refusal::Lost { gone: true },
        None => Refusal::Unknown,
    }
}

/// Returns what the operation does to the job.
pub fn step(meta: &Meta, operation: &Operation, around: Surroundings<'_>) -> Result<Step, Refusal> {
    check(meta, operation, around.now)?;
    let now = around.now;
    match operation {
        Operation::Commit { result, .. } => Ok(commit(meta, result.as_ref(), around)),
        Operation::Pop { .. } => Ok(finish(meta, None, around)),
        Operation::Rollback { delay_ms, error, .. } => {
            let message = error.as_deref().unwrap_or("rolled back without an error");
            Ok(fail(meta, message, around, |limits| delay_ms.unwrap_or_else(|| limits.backoff_ms(meta))))
        }
        Operation::Lapse { reserved_until, .. } => {
            let extended = meta.reserved_until != Some(*reserved_until);
            take_back(meta, extended, "the reservation ran out", around)
        }
        Operation::Abandon { loss, .. } => {
            let has_reported = matches!(loss, Loss::TimedOut { rev } if meta.rev != *rev);
            take_back(meta, has_reported, loss.message(), around)
        }
        Operation::Extend { lease_ms, progress, .. } => {
            Ok(extend(meta, *lease_ms, progress.as_ref(), around))
        }
        Operation::Move { queue, payload, delay_ms, priority, .. } => {
            let run_at = now.plus_ms(delay_ms.unwrap_or(0));
            let priority = priority.unwrap_or(meta.priority);
            Ok(move_to(meta, queue, payload.as_ref(), run_at, priority, now))
        }
        Operation::TakeOver { to, lease_ms, .. } => Ok(delivery::take_over(meta, to, *lease_ms, now)),
        Operation::Release { .. } if ends_unheld(meta, now) => Ok(Step::delete(Outcome::Removed)),
        Operation::Release { .. } => {
            let attempts = meta.attempts.saturating_sub(1);
            Ok(returned(Meta { attempts, ..free(meta) }))
        }
        Operation::Expire { expires_at } if meta.expires_at == Some(*expires_at) => {
            Ok(Step::delete(Outcome::Removed))
        }
        Operation::Expire { .. } => Err(Refusal::Conflict { state: meta.visible(now) }),
        Operation::Edit { priority, run_at, payload, .. } => {
            let meta = Meta {
                priority: priority.unwrap_or(meta.priority),
                run_at: run_at.unwrap_or(meta.run_at),
                ..meta.clone()
            };
            let mut step = returned(meta);
            if let Next::Write { payload: new, .. } = &mut step.next {
                new.clone_from(payload);
            }
            Ok(step)
        }
        Operation::Cancel { force: false, .. } if meta.state == State::Reserved => {
            let reserved_until = meta.reserved_until.unwrap_or(now);
            Ok(Step::held(Meta { cancel_requested: true, ..meta.clone() }, reserved_until))
        }
        Operation::Cancel { .. } => Ok(Step::delete(Outcome::Removed)),
        Operation::Purge { state, .. } if meta.visible(now) == *state => Ok(Step::delete(Outcome::Removed)),
        Operation::Purge { .. } => Err(Refusal::Conflict { state: meta.visible(now) }),
        Operation::Redrive { home, .. } => redrive(meta, home, now),
    }
}

/// Returns the job to its queue at once, unless its worker has extended the lease or sent a heartbeat since.
fn take_back(meta: &Meta, is_kept: bool, why: &str, around: Surroundings<'_>) -> Result<Step, Refusal> {
    if is_kept { Err(Refusal::Lost { gone: false }) } else { Ok(fail(meta, why, around, |_| 0)) }
}

fn commit(meta: &Meta, result: Option<&Payload>, around: Surroundings<'_>) -> Step {
    if faults::bug("commit_nothing") {
        return Step { next: Next::Keep, outcome: Outcome::Done };
    }
    // In a dead-letter queue the route is suspended; and a cancelled job has no next stage.
    match (&*meta.route, &meta.origin, meta.cancel_requested) {
        ([stage, rest @ ..], None, false) if meta.state == State::Reserved => {
            hand_on(meta, stage, rest, result, around.now)
        }
        _ => finish(meta, result, around),
    }
}

/// The job's end.
fn finish(meta: &Meta, result: Option<&Payload>, around: Surroundings<'_>) -> Step {
    if meta.state == State::Done {
        return Step { next: Next::Keep, outcome: Outcome::Done };
    }
    let Some(retain_ms) = around.rules.retain_done_ms(&meta.queue) else {
        return Step::delete(Outcome::Done);
    };
    let finished = Meta {
        state: State::Done,
        turn: None,
        finished_at: Some(around.now),
        purge_at: Some(around.now.plus_ms(retain_ms)),
        claim: meta.claim.clone(), // recognizes the repeat of this commit, on any server
        ..free(meta)
    };
    let meta = Box::new(Meta { expires_at: None, ..finished });
    Step { next: Next::Write { meta, payload: None, result: result.cloned() }, outcome: Outcome::Done }
}

/// The job in the next stage of its route. A result, even `null`, is what is to be done there.
fn hand_on(meta: &Meta, stage: &Stage, rest: &[Stage], result: Option<&Payload>, now: Timestamp) -> Step {
    let next = rehomed(free(meta), &stage.queue, TrailReason::Committed, now);
    let mut step = returned(Meta {
        run_at: now.plus_ms(stage.delay_ms.unwrap_or(0)),
        priority: stage.priority.unwrap_or(meta.priority),
        max_attempts: stage.max_attempts.or(meta.max_attempts),
        backoff: stage.backoff.or(meta.backoff),
        route: rest.to_vec(),
        progress: None,
        ..next
    });
    if let Next::Write { payload, .. } = &mut step.next {
        *payload = result.filter(|_| !faults::bug("old_payload")).cloned();
    }
    step
}

fn extend(meta: &Meta, lease_ms: Option<u64>, progress: Option<&Payload>, around: Surroundings<'_>) -> Step {
    let lease_ms = lease_ms.or(meta.lease_ms).unwrap_or_else(|| around.rules.lease_ms(&meta.queue));
    let reserved_until = around.now.plus_ms(lease_ms);
    let held = Meta {
        reserved_until: Some(reserved_until),
        progress: progress.or(meta.progress.as_ref()).cloned(),
        ..meta.clone()
    };
    Step::held(held, reserved_until)
}

/// The limits that apply to a job's failures at this moment.
struct Limits<'a>(Surroundings<'a>);

impl Limits<'_> {
    fn used_up(&self, meta: &Meta) -> bool {
        meta.attempts >= meta.max_attempts.unwrap_or_else(|| self.0.rules.max_attempts(&meta.queue))
    }

    fn backoff_ms(&self, meta: &Meta) -> u64 {
        let backoff = meta.backoff.unwrap_or_else(|| self.0.rules.backoff(&meta.queue));
        backoff.delay_ms(meta.attempts, self.0.chance)
    }
}

/// Counts a failed attempt: the job comes back, is dead, or is deleted if it was cancelled or has expired.
fn fail(meta: &Meta, message: &str, around: Surroundings<'_>, delay_ms: impl Fn(&Limits<'_>) -> u64) -> Step {
    let now = around.now;
    if ends_unheld(meta, now) {
        return Step::delete(Outcome::Removed);
    }
    let limits = Limits(around);
    let mut failed = free(meta);
    failed.errors.push(Failure {
        at: now,
        attempt: meta.attempts,
        worker: meta.worker.clone(),
        message: Failure::shortened(message).to_owned(),
    });
    let surplus = failed.errors.len().saturating_sub(FAILURES_KEPT);
    failed.errors.drain(..surplus);
    if limits.used_up(meta) {
        die(failed, around)
    } else {
        failed.run_at = now.plus_ms(delay_ms(&limits));
        returned(failed)
    }
}

fn die(meta: Meta, around: Surroundings<'_>) -> Step {
    let now = around.now;
    // A dead job that holds its group stays where it is and is not purged: an operator must decide.
    let turn = meta.turn.filter(|_| around.rules.holds_dead(&meta.queue));
    let dead_letter = around.rules.dead_letter(&meta.queue);
    let takes_it = |dead_letter: &&QueueName| turn.is_none() && !has_died_in(&meta, dead_letter);
    let Some(dead_letter) = dead_letter.filter(takes_it).cloned() else {
        let retain_ms = around.rules.retain_dead_ms(&meta.queue).filter(|_| turn.is_none());
        let purge_at = retain_ms.map(|ms| now.plus_ms(ms));
        // Its expiry counts again once it is redriven.
        let dead = Meta { state: State::Dead, finished_at: Some(now), purge_at, turn, ..meta };
        return Step::write(dead, Outcome::Dead { moved_to: None });
    };
    let origin = Origin {
        queue: meta.queue.clone(),
        at: now,
        attempts: meta.attempts,
        error: meta.errors.last().map(|failure| failure.message.clone()),
    };
    let buried = Meta { run_at: now, ..rehomed(meta, &dead_letter, TrailReason::Dead, now) };
    // Dead is finished: what becomes of it there does not concern its batch.
    Step::write(
        Meta { origin: Some(origin), batch: None, ..buried },
        Outcome::Dead { moved_to: Some(dead_letter) },
    )
}

/// Whether the job has died in this queue on its way here, from one dead-letter queue to the next: circles end with it. A
/// trail that is full of deaths does not show all of them.
fn has_died_in(meta: &Meta, queue: &QueueName) -> bool {
    let mut deaths = meta.trail.iter().rev().take_while(|step| step.reason == TrailReason::Dead);
    meta.queue == *queue || deaths.clone().count() >= TRAIL_KEPT || deaths.any(|step| step.queue == *queue)
}

fn move_to(
    meta: &Meta,
    queue: &QueueName,
    payload: Option<&Payload>,
    run_at: Timestamp,
    priority: i32,
    now: Timestamp,
) -> Step {
    if meta.cancel_requested {
        return Step::delete(Outcome::Removed);
    }
    if faults::bug("lose_on_move") {
        return Step::delete(Outcome::Returned { queue: queue.clone(), run_at, blocked: false });
    }
    let moved = Meta { run_at, priority, ..rehomed(free(meta), queue, TrailReason::Moved, now) };
    let mut step = returned(Meta { progress: None, ..moved });
    if let Next::Write { payload: new, .. } = &mut step.next {
        *new = payload.cloned();
    }
    step
}

fn redrive(meta: &Meta, home: &Reach, now: Timestamp) -> Result<Step, Refusal> {
    let is_out_of_reach = meta.origin.as_ref().is_some_and(|origin| !home.has(&origin.queue));
    if is_out_of_reach || has_expired(meta, now) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    let revived = Meta {
        run_at: now,
        finished_at: None,
        purge_at: None,
        batch: None, // it was counted as dead
        ..free(meta)
    };
    match &meta.origin {
        Some(origin) => Ok(returned(rehomed(revived, &origin.queue, TrailReason::Redriven, now))),
        None if meta.state == State::Dead => Ok(returned(Meta { attempts: 0, ..revived })),
        None => Err(Refusal::Conflict { state: meta.visible(now) }),
    }
}

/// Whether the job is deleted as soon as it is not reserved: it was cancelled, or it is past its expiry.
fn ends_unheld(meta: &Meta, now: Timestamp) -> bool {
    meta.cancel_requested || has_expired(meta, now)
}

fn has_expired(meta: &Meta, now: Timestamp) -> bool {
    meta.expires_at.is_some_and(|expires_at| expires_at <= now)
}

/// The job without its reservation.
fn free(meta: &Meta) -> Meta {
    Meta {
        state: State::Ready,
        claim: None,
        reserved_until: None,
        lease_ms: None,
        cancel_requested: false,
        waits_for: None,
        waiting_since: None,
        ..meta.clone()
    }
}

/// The job in another queue, where it starts again. Its key stays behind.
fn rehomed(mut meta: Meta, queue: &QueueName, reason: TrailReason, now: Timestamp) -> Meta {
    meta.trail.push(TrailStep { at: now, queue: meta.queue.clone(), reason, attempts: meta.attempts });
    let surplus = meta.trail.len().saturating_sub(TRAIL_KEPT);
    meta.trail.drain(..surplus);
    Meta { queue: queue.clone(), attempts: 0, key: None, origin: None, turn: None, ..meta }
}

fn returned(meta: Meta) -> Step {
    let (queue, blocked) = (meta.queue.clone(), meta.state == State::Blocked);
    let outcome = Outcome::Returned { queue, run_at: meta.run_at, blocked };
    Step::write(meta, outcome)
}
