//! What an operation does to a job: one pure function, which both stores apply atomically.
//!
//! A store reads the job, calls [`step`], and writes what it returns, guarded so that the job cannot have changed in
//! between (optimistic concurrency by `rev`). Time is the store's and is passed in. [`delivery`] has the transitions
//! of claims, which are written for many jobs at once.

mod by_hand;
pub mod delivery;
mod operation;
mod removal;
#[cfg(test)]
mod tests;

use super::record::{FAILURES_KEPT, Failure, Meta, Origin, TRAIL_KEPT, TrailReason, TrailStep};
use super::spec::Headers;
use super::state::{self, State, Visible};
use super::{Claim, Content, Payload, QueueName, Rules, Stage, Timestamp};
use crate::faults;

pub use self::operation::{Back, Edit, Loss, OfUnreadable, Operation, RollbackKind, Salvaged};

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
    /// The new bookkeeping and, where given, a new payload, a result and new headers.
    Write { meta: Box<Meta>, payload: Option<Content>, result: Option<Payload>, headers: Option<Headers> },
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
        let meta = Box::new(meta);
        Self { next: Next::Write { meta, payload: None, result: None, headers: None }, outcome }
    }

    fn held(meta: Meta, reserved_until: Timestamp) -> Self {
        let outcome = Outcome::Held { reserved_until, cancel_requested: meta.cancel_requested };
        Self::write(meta, outcome)
    }

    /// The same with new contents, where given.
    fn with(mut self, new_payload: Option<&Content>, new_headers: Option<&Headers>) -> Self {
        if let Next::Write { payload, headers, .. } = &mut self.next {
            (*payload, *headers) = (new_payload.cloned(), new_headers.cloned());
        }
        self
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

/// Returns the deadline of a job, and what happens once it has passed: its reservation runs out, or it was not reserved before its
/// `expires_at`.
pub fn deadline(
    state: State,
    claim: Option<&Claim>,
    reserved_until: Option<Timestamp>,
    expires_at: Option<Timestamp>,
) -> Option<(Timestamp, Operation)> {
    match state {
        State::Reserved => {
            let (claim, reserved_until) = (claim?.clone(), reserved_until?);
            Some((reserved_until, Operation::Lapse { claim, reserved_until }))
        }
        State::Ready | State::Blocked => {
            expires_at.map(|expires_at| (expires_at, Operation::Expire { expires_at }))
        }
        State::Done | State::Dead => None,
    }
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
        Operation::Rollback { kind, error, .. } => Ok(roll_back(meta, *kind, error.as_deref(), around)),
        Operation::Lapse { reserved_until, .. } => {
            let extended = meta.reserved_until != Some(*reserved_until);
            let has_ended = meta.run_ends_at().is_some_and(|end| end <= *reserved_until);
            let why = if has_ended { "max_run_ms was over" } else { "the reservation ran out" };
            take_back(meta, extended, why, around)
        }
        Operation::Abandon { loss, .. } => {
            let has_reported = matches!(loss, Loss::TimedOut { rev } if meta.rev != *rev);
            take_back(meta, has_reported, loss.message(), around)
        }
        Operation::Extend { lease_ms, progress, .. } => extend(meta, *lease_ms, progress.as_ref(), around),
        Operation::Move { queue, payload, when, priority, headers, key, .. } => {
            let priority = priority.unwrap_or(meta.priority);
            let mut moved = move_to(meta, queue, when.from(now), priority, now);
            if let (Next::Write { meta, .. }, Some(hold)) = (&mut moved.next, key) {
                meta.key = Some(hold.key.clone());
            }
            Ok(moved.with(payload.as_ref(), headers.as_ref()))
        }
        // A job in history shows that it was committed; one that is held is left alone.
        Operation::Recall { .. } if meta.state == State::Done => Ok(finish(meta, None, around)),
        Operation::Recall { .. } => Err(Refusal::Conflict { state: meta.visible(now) }),
        Operation::TakeOver { to, lease_ms, .. } => delivery::take_over(meta, to, *lease_ms, now),
        Operation::Release { unless_seen, .. } => release(meta, *unless_seen, now),
        Operation::Expire { expires_at } => removal::expire(meta, *expires_at, now),
        Operation::Edit { edit, .. } => Ok(change(meta, edit, now)),
        Operation::Cancel { .. } | Operation::CancelUnheld { .. } | Operation::CancelOfBatch { .. } => {
            removal::cancel(meta, operation, now)
        }
        Operation::Purge { states, .. } => removal::purge(meta, states, now),
        Operation::Bury => Err(Refusal::Conflict { state: meta.visible(now) }), // it can be read
        Operation::Redrive { home, .. } => by_hand::redrive(meta, home, now),
        Operation::Retry { .. } => by_hand::retry(meta, now),
        Operation::Run { .. } => by_hand::run(meta, now),
        Operation::Revoke { .. } => Ok(by_hand::revoke(meta, now)),
        Operation::Relocate { queue, when, priority, .. } => {
            by_hand::relocate(meta, queue, *when, priority.unwrap_or(meta.priority), now)
        }
    }
}

/// Gives the job back as if it had not been delivered; `unless_seen`: unless a client has the token for sure.
fn release(meta: &Meta, unless_seen: bool, now: Timestamp) -> Result<Step, Refusal> {
    if unless_seen && meta.is_handed_out() {
        return Err(Refusal::Lost { gone: false });
    }
    Ok(taken_back_in_place(meta, now))
}

/// Returns the job to its queue at once, unless its worker has extended the lease or sent a heartbeat since.
fn take_back(meta: &Meta, is_kept: bool, why: &str, around: Surroundings<'_>) -> Result<Step, Refusal> {
    if is_kept {
        return Err(Refusal::Lost { gone: false });
    }
    let now = around.now;
    let run_at = if around.rules.lapsed_come_first(&meta.queue) { meta.run_at } else { now };
    // A job that was delivered early by another server's clock is due all the same.
    Ok(fail(meta, why, around, |_| run_at.min(now)))
}

/// The job that its worker gives back.
fn roll_back(meta: &Meta, kind: RollbackKind, error: Option<&str>, around: Surroundings<'_>) -> Step {
    let now = around.now;
    if ends_unheld(meta, now) {
        return Step::delete(Outcome::Removed);
    }
    let run_at = |back, backoff_ms: &dyn Fn() -> u64| match back {
        Back::ByBackoff => now.plus_ms(backoff_ms()),
        Back::At(when) => when.from(now),
        Back::InPlace => meta.run_at.min(now),
    };
    match kind {
        RollbackKind::Retry(back) => {
            let message = error.unwrap_or("rolled back without an error");
            fail(meta, message, around, |limits| run_at(back, &|| limits.backoff_ms(meta)))
        }
        RollbackKind::Snooze(back) => {
            let mut snoozed = error.map_or_else(|| free(meta, now), |error| failed(meta, error, now));
            snoozed.attempts = meta.attempts.saturating_sub(1);
            snoozed.run_at = run_at(back, &|| 0);
            returned(snoozed)
        }
        RollbackKind::Dead => die(failed(meta, error.unwrap_or("given up without an error"), now), around),
    }
}

/// The job as a client wants it to be.
fn change(meta: &Meta, edit: &Edit, now: Timestamp) -> Step {
    let expires_at = edit.expires_in_ms.map(|ms| ms.map(|ms| now.plus_ms(ms)));
    let mut changed = Meta {
        priority: edit.priority.unwrap_or(meta.priority),
        run_at: edit.run_at.unwrap_or(meta.run_at),
        max_attempts: edit.max_attempts.unwrap_or(meta.max_attempts),
        expires_at: expires_at.unwrap_or(meta.expires_at),
        ..meta.clone()
    };
    if let Some(group) = edit.group.as_ref().filter(|group| **group != meta.group) {
        // What it waited for was before it in its line, or is found anew by the next claim.
        // Nor has it waited for a semaphore while it waits for its line: that would keep room for it which it cannot take.
        let free = Meta { turn: None, state: State::Ready, waits_for: None, waiting_since: None, ..changed };
        changed = Meta { group: group.clone(), ..free };
    }
    if changed.group != meta.group || changed.visible(now) != meta.visible(now) {
        changed.came_at = Some(now);
    }
    returned(changed).with(edit.payload.as_ref(), edit.headers.as_ref())
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
    let Some(retain_ms) = around.rules.retain_finished_ms(&meta.queue, meta.retain_result_ms) else {
        return Step::delete(Outcome::Done);
    };
    let finished = Meta {
        state: State::Done,
        turn: None,
        finished_at: Some(around.now),
        purge_at: Some(around.now.plus_ms(retain_ms)),
        came_at: None,
        given_back_at: None,
        claim: meta.claim.clone(), // recognizes the repeat of this commit, on any server
        ..free(meta, around.now)
    };
    let meta = Box::new(Meta { expires_at: None, ..finished });
    let next = Next::Write { meta, payload: None, result: result.cloned(), headers: None };
    Step { next, outcome: Outcome::Done }
}

/// The job in the next stage of its route. A result, even `null`, is what is to be done there.
fn hand_on(meta: &Meta, stage: &Stage, rest: &[Stage], result: Option<&Payload>, now: Timestamp) -> Step {
    let next = rehomed(free(meta, now), &stage.queue, TrailReason::Committed, now);
    let step = returned(Meta {
        run_at: now.plus_ms(stage.delay_ms.unwrap_or(0)),
        priority: stage.priority.unwrap_or(meta.priority),
        max_attempts: stage.max_attempts.or(meta.max_attempts),
        backoff: stage.backoff.or(meta.backoff),
        route: rest.to_vec(),
        progress: None,
        ..next
    });
    let payload = result.filter(|_| !faults::bug("old_payload")).cloned().map(Content::Json);
    step.with(payload.as_ref(), None)
}

fn extend(
    meta: &Meta,
    lease_ms: Option<u64>,
    progress: Option<&Payload>,
    around: Surroundings<'_>,
) -> Result<Step, Refusal> {
    // Nothing is left to extend: who asks learns that at once, also before the reaper has come.
    if meta.run_ends_at().is_some_and(|end| end <= around.now) {
        return Err(Refusal::Lost { gone: false });
    }
    let lease_ms = lease_ms.or(meta.lease_ms).unwrap_or_else(|| around.rules.lease_ms(&meta.queue));
    let reserved_until = meta.within_run(around.now.plus_ms(lease_ms));
    let held = Meta {
        reserved_until: Some(reserved_until),
        extended_at: Some(around.now),
        progress: progress.or(meta.progress.as_ref()).cloned(),
        ..meta.clone()
    };
    Ok(Step::held(held, reserved_until))
}

/// The limits that apply to a job's failures at this moment.
struct Limits<'a>(Surroundings<'a>);

impl Limits<'_> {
    fn used_up(&self, meta: &Meta) -> bool {
        let most = meta.max_attempts.unwrap_or_else(|| self.0.rules.max_attempts(&meta.queue));
        most > 0 && meta.attempts >= most
    }

    fn backoff_ms(&self, meta: &Meta) -> u64 {
        let backoff = meta.backoff.unwrap_or_else(|| self.0.rules.backoff(&meta.queue));
        backoff.delay_ms(meta.attempts, self.0.chance)
    }
}

/// Counts a failed attempt: the job comes back, is dead, or is deleted if it was cancelled or has expired.
fn fail(
    meta: &Meta,
    message: &str,
    around: Surroundings<'_>,
    run_at: impl Fn(&Limits<'_>) -> Timestamp,
) -> Step {
    let (now, limits) = (around.now, Limits(around));
    if ends_unheld(meta, now) {
        return Step::delete(Outcome::Removed);
    }
    let failed = failed(meta, message, now);
    if limits.used_up(meta) {
        return die(failed, around);
    }
    returned(Meta { run_at: run_at(&limits), ..failed })
}

/// The job without its reservation, and with the failure.
fn failed(meta: &Meta, message: &str, now: Timestamp) -> Meta {
    let mut failed = free(meta, now);
    failed.errors.push(Failure {
        at: now,
        attempt: meta.attempts,
        worker: meta.worker.clone(),
        message: Failure::shortened(message).to_owned(),
    });
    let surplus = failed.errors.len().saturating_sub(FAILURES_KEPT);
    failed.errors.drain(..surplus);
    failed
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

fn move_to(meta: &Meta, queue: &QueueName, run_at: Timestamp, priority: i32, now: Timestamp) -> Step {
    if meta.cancel_requested {
        return Step::delete(Outcome::Removed);
    }
    if faults::bug("lose_on_move") {
        return Step::delete(Outcome::Returned { queue: queue.clone(), run_at, blocked: false });
    }
    let moved = Meta { run_at, priority, ..rehomed(free(meta, now), queue, TrailReason::Moved, now) };
    returned(Meta { progress: None, ..moved })
}

/// Whether the job is deleted as soon as it is not reserved: it was cancelled, or it is past its expiry.
fn ends_unheld(meta: &Meta, now: Timestamp) -> bool {
    meta.cancel_requested || has_expired(meta, now)
}

fn has_expired(meta: &Meta, now: Timestamp) -> bool {
    meta.expires_at.is_some_and(|expires_at| expires_at <= now)
}

/// The job without its reservation, where it was before its delivery, which does not count.
fn taken_back_in_place(meta: &Meta, now: Timestamp) -> Step {
    if ends_unheld(meta, now) {
        return Step::delete(Outcome::Removed);
    }
    let attempts = meta.attempts.saturating_sub(1);
    returned(Meta { attempts, ..free(meta, now) })
}

/// The job without its reservation. It is noted that it waits from now on, where it has not, and that a worker has had it until now.
fn free(meta: &Meta, now: Timestamp) -> Meta {
    let came_at = if meta.state == State::Ready { meta.came_at } else { Some(now) };
    let given_back_at = if meta.state == State::Reserved { Some(now) } else { meta.given_back_at };
    Meta {
        state: State::Ready,
        claim: None,
        reserved_until: None,
        lease_ms: None,
        extended_at: None,
        cancel_requested: false,
        waits_for: None,
        waiting_since: None,
        came_at,
        given_back_at,
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
