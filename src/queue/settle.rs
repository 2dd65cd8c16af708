//! Commit, rollback, extend, move.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::meter::{Event, Notes};
use super::next::{SettledAndTaken, Settling, Taking};
use super::outcomes::Ended;
pub use super::push::MoveKey;
use super::push::{Beside, NewPush, check_key_time};
use super::rounds::{self, Item, Limits, Rounds};
use super::semaphores::check_known;
use super::turns::Turns;
use super::{Error, Queues, Result, Shared};
use crate::faults;
use crate::job::settings::{LEASE_MAX_MS, LEASE_MIN_MS};
use crate::job::spec::{Headers, check_content, check_headers, check_size, check_year};
use crate::job::state::Verb;
use crate::job::transition::{Back, Operation, Outcome, Refusal, RollbackKind};
use crate::job::{
    Child, Claim, Content, JobId, NewJob, Payload, QueueName, SemaphoreName, Timestamp, TraceContext, When,
};
use crate::store::{Applied, Change, Denied, StoreError};
use crate::telemetry::trace;

/// The most jobs of one settle.
pub const SETTLE_MAX: usize = 1000;
/// The longest error message that a rollback may say, in characters. What is kept of it is shorter.
const ERROR_MAX: usize = 1_048_576;
/// The most jobs that one commit pushes.
pub const PUSHES_MAX: usize = 1000;

/// What the holder of a reservation wants done. The token decides, not the deadline.
#[derive(Debug, Clone)]
pub struct Settle {
    /// The job.
    pub id: JobId,
    /// The claim of the reservation; `None`: the token was never valid.
    pub claim: Option<Claim>,
    /// What is to be done.
    pub action: Action,
}

/// See [`Operation`].
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the fields are those of `Operation`, documented there")]
pub enum Action {
    Commit {
        result: Option<Payload>,
        push: Vec<(QueueName, NewPush)>,
    },
    Rollback {
        kind: RollbackKind,
        error: Option<String>,
    },
    Extend {
        lease_ms: Option<u64>,
        progress: Option<Payload>,
    },
    Move {
        queue: QueueName,
        payload: Option<Content>,
        when: When,
        priority: Option<i32>,
        headers: Option<Headers>,
        key: Option<MoveKey>,
    },
}

/// What a settle has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The job.
    pub id: JobId,
    /// What has become of it.
    pub outcome: Outcome,
    /// The queue that it was in, where that is known: of what is recalled it is not.
    pub from: Option<QueueName>,
    /// Whether the job has gone since it came back: then it is not known where it was, and when it was due.
    pub has_gone: bool,
    /// The jobs that were pushed with it.
    pub pushed: Vec<Child>,
    /// When it happened, by the store's clock, which separates scheduled jobs from ready ones.
    pub at: Timestamp,
    /// Whether it had happened before: this is the response to the first call.
    pub repeated: bool,
    /// Whether an earlier call with the same token may have done it: which of the two did, is not known.
    pub perhaps_earlier: bool,
}

impl Settled {
    /// Returns what has become of a job now that pushes nothing.
    pub(super) fn now(id: &JobId, Applied { outcome, queue, at, .. }: Applied) -> Self {
        Self { from: Some(queue), repeated: false, ..Self::again(id, (outcome, at)) }
    }

    /// Returns the response to the repeat of a call that was recalled, and has pushed nothing.
    fn again(id: &JobId, (outcome, at): (Outcome, Timestamp)) -> Self {
        let (id, pushed, repeated, perhaps_earlier) = (id.clone(), Vec::new(), true, false);
        Self { id, outcome, from: None, has_gone: false, pushed, at, repeated, perhaps_earlier }
    }
}

impl Settle {
    /// Returns how many jobs it pushes.
    pub fn pushes(&self) -> usize {
        self.pushed().len()
    }

    fn pushed(&self) -> &[(QueueName, NewPush)] {
        match &self.action {
            Action::Commit { push, .. } => push,
            _ => &[],
        }
    }

    /// Returns the queues that it names.
    fn queues(&self) -> impl Iterator<Item = &QueueName> {
        let target = match &self.action {
            Action::Move { queue, .. } => Some(queue),
            _ => None,
        };
        let pushed = self.pushed().iter();
        pushed.flat_map(|(queue, push)| push.stages().chain(std::iter::once(queue))).chain(target)
    }

    /// Refuses the first value that is out of its range.
    fn check(&self, payload_bytes: usize) -> Result<()> {
        match &self.action {
            Action::Commit { result: Some(result), .. } => check_size(result, "/result", payload_bytes)?,
            Action::Extend { progress: Some(progress), .. } => {
                check_size(progress, "/progress", payload_bytes)?;
            }
            Action::Rollback { error: Some(error), .. } if error.chars().nth(ERROR_MAX).is_some() => {
                return Err(Error::invalid("/error", "must be at most 1048576 characters long"));
            }
            Action::Move { payload: Some(payload), .. } => check_content(payload, payload_bytes)?,
            _ => {}
        }
        match &self.action {
            Action::Commit { push, .. } if push.len() > PUSHES_MAX => {
                Err(Error::invalid("/push", "must be at most 1000 jobs"))
            }
            Action::Commit { push, .. } => {
                let check = |(n, (_, push)): (usize, &(QueueName, NewPush))| {
                    let checked = push.check(payload_bytes);
                    checked.map_err(|invalid| invalid.under(&format!("/push/{n}")).into())
                };
                push.iter().enumerate().try_for_each(check)
            }
            Action::Rollback {
                kind:
                    RollbackKind::Retry(Back::At(When::In(ms))) | RollbackKind::Snooze(Back::At(When::In(ms))),
                ..
            } => Ok(check_year(Some(*ms), "/delay_ms")?),
            Action::Move { when, headers, key, .. } => {
                if let When::In(ms) = when {
                    check_year(Some(*ms), "/delay_ms")?;
                }
                if let Some(MoveKey { ttl_ms, until, .. }) = key {
                    check_key_time(*ttl_ms, *until)?;
                }
                Ok(headers.as_ref().map_or(Ok(()), check_headers)?)
            }
            Action::Extend { lease_ms: Some(ms), .. } if !(LEASE_MIN_MS..=LEASE_MAX_MS).contains(ms) => {
                Err(Error::invalid("/lease_ms", "must be 100 to 86400000"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a job to push that names one of these semaphores, which do not exist.
    fn check_semaphores(&self, unknown: &HashSet<SemaphoreName>) -> Result<()> {
        let check = |(n, (_, push)): (usize, &(QueueName, NewPush))| {
            let known = check_known(&push.spec, unknown);
            known.map_err(|invalid| invalid.under(&format!("/push/{n}")).into())
        };
        self.pushed().iter().enumerate().try_for_each(check)
    }

    /// Returns the change. What it pushes, and the headers that it gives, carry this context unless they say another.
    fn into_change(self, queues: &Queues, now: Timestamp, trace: Option<&TraceContext>) -> Change {
        let claim = self.claim.unwrap_or_else(|| Claim::from_stored("")); // no job has it
        let operation = match self.action {
            Action::Commit { result, push } => {
                let key_ttl_ms = queues.options().defaults.key_ttl_ms;
                let job = |(queue, push): (QueueName, NewPush)| {
                    push.into_job((queues.0.ids.next(now), queue), now, key_ttl_ms, trace)
                };
                let count = if faults::bug("half_of_children") { push.len() / 2 } else { push.len() };
                Operation::Commit { claim, result, push: push.into_iter().take(count).map(job).collect() }
            }
            Action::Rollback { kind, error } => Operation::Rollback { claim, kind, error },
            Action::Extend { lease_ms, progress } => Operation::Extend { claim, lease_ms, progress },
            Action::Move { queue, payload, when, priority, mut headers, key } => {
                if let (Some(headers), Some(trace)) = (&mut headers, trace) {
                    trace.carry(headers);
                }
                let key = key.map(|key| key.into_hold(now, queues.options().defaults.key_ttl_ms));
                Operation::Move { claim, queue, payload, when, priority, headers, key }
            }
        };
        Change { id: self.id, operation }
    }

    /// Returns the change that does nothing, and gets the outcome of the first call if this is its repeat. Of what names queues.
    fn into_recall(self) -> Change {
        let verb = if matches!(self.action, Action::Move { .. }) { Verb::Move } else { Verb::Commit };
        let claim = self.claim.unwrap_or_else(|| Claim::from_stored("")); // no job has it
        Change { id: self.id, operation: Operation::Recall { claim, verb } }
    }
}

/// Returns what a settle gets that was to be refused: the refusal, unless the store has found its first call, or may have.
fn unless_repeated(settled: Result<Settled>, refusal: Option<Error>) -> Result<Settled> {
    match (settled, refusal) {
        (
            Err(Error::ReservationLost { .. } | Error::WrongState { .. } | Error::UnreadableJob { .. }),
            Some(refusal),
        ) => Err(refusal),
        (settled, _) => settled,
    }
}

/// Settles in flight. Their rounds go one after the other: a repeat never overtakes its first call, and finds
/// its outcome in the cache.
pub(super) type SettleRounds = Arc<Rounds<(), Settling, SettledAndTaken>>;

impl Item for Settling {
    fn weight(&self) -> usize {
        let own = |operation: &Operation| rounds::weight(operation.size());
        let pushed = |job: &NewJob| rounds::weight(job.spec.payload.weight());
        let weight = |Change { operation, .. }: &Change| {
            own(operation) + operation.pushes().iter().map(pushed).sum::<usize>()
        };
        self.changes.iter().map(weight).sum::<usize>() + self.take.as_ref().map_or(0, Taking::count)
    }
}

pub(super) fn rounds(shared: &Weak<Shared>, turns: &Arc<Turns>) -> SettleRounds {
    let shared = shared.clone();
    Rounds::taking_turns(
        Limits { round: SETTLE_MAX, overlap: 1, large: SETTLE_MAX, waiting: 30_000 },
        ("settle", turns),
        move |(), items| {
            let shared = shared.upgrade();
            Box::pin(async move {
                match shared {
                    Some(shared) => Queues(shared).settle_round(items).await,
                    None => Vec::new(),
                }
            })
        },
    )
}

impl Queues {
    /// Settles jobs; each element stands for itself. Returns a result for each, in the same order.
    pub async fn settle(&self, settles: Vec<Settle>) -> Vec<Result<Settled>> {
        self.settle_with(settles, None).await.0
    }

    /// The same, and takes jobs with them where the store can.
    pub(super) async fn settle_with(&self, settles: Vec<Settle>, take: Option<Taking>) -> SettledAndTaken {
        let count = settles.len();
        self.settle_valid(settles, take).await.unwrap_or_else(|error| (vec![Err(error); count], None))
    }

    async fn settle_valid(&self, settles: Vec<Settle>, take: Option<Taking>) -> Result<SettledAndTaken> {
        let now = self.now()?;
        let tokens = settles.iter().filter(|settle| settle.claim.is_some());
        self.trace_settles(tokens.map(|settle| &settle.id));
        // Of several jobs each has a trace of its own: what is pushed with one of them belongs there.
        let trace = trace::sent().filter(|_| settles.len() == 1);
        let refused = |settle: &Settle| settle.check(self.options().payload_bytes).err().map(Err);
        let mut answers: Vec<Option<Result<Settled>>> = settles.iter().map(refused).collect();
        // What is wrong by itself, or has no token that ever was, asks the store nothing, and takes no place.
        let in_order = |(settle, answer): (_, &Option<_>)| answer.is_none().then_some(settle);
        let plausible = || {
            let valid = settles.iter().zip(&answers).filter_map(in_order);
            valid.filter(|settle: &&Settle| settle.claim.is_some())
        };
        let pushed = plausible().flat_map(Settle::pushed).map(|(_, push)| &push.spec);
        let unknown = self.unknown_semaphores(pushed).await?;
        let (mut places, full) =
            self.take_queues(&self.new_queues(plausible().flat_map(Settle::queues))).await?;
        let (mut changes, mut named, mut refusals) = (Vec::new(), Vec::new(), Vec::new());
        for (settle, answer) in settles.into_iter().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            let known = settle.check_semaphores(&unknown);
            // What may not be stored now may have been stored by the first call.
            let refusal = known.and_then(|()| self.check_queues(&full, settle.queues())).err();
            let names = |settle: &Settle| -> Vec<QueueName> {
                if refusal.is_some() { Vec::new() } else { settle.queues().cloned().collect() }
            };
            let queues = places.of_each(std::iter::once(&settle).map(names));
            let change = match &refusal {
                Some(_) => settle.into_recall(),
                None => settle.into_change(self, now, trace.as_ref()),
            };
            *answer = self.recall(&change).map(|earlier| Ok(Settled::again(&change.id, earlier)));
            if answer.is_none() {
                changes.push(change);
                named.extend(queues);
                refusals.push(refusal);
            }
        }
        // What is settled in part, or was before, is judged as a whole once it is over.
        let is_whole = answers.iter().all(Option::is_none) && refusals.iter().all(Option::is_none);
        let take = take.filter(|_| is_whole);
        let (settled, taken) = self.settle_together(Settling { changes, take }).await;
        places.keep_stored(&named, &settled);
        let settled = settled.into_iter().zip(refusals);
        let mut settled = settled.map(|(settled, refusal)| unless_repeated(settled, refusal));
        let lost = || Err(StoreError::internal("a settle was left unanswered").into());
        let answer =
            |answer: Option<Result<Settled>>| answer.unwrap_or_else(|| settled.next().unwrap_or_else(lost));
        Ok((answers.into_iter().map(answer).collect(), taken))
    }

    /// Settles jobs together with whatever else is being settled.
    pub(super) async fn settle_changes(&self, changes: Vec<Change>) -> Vec<Result<Settled>> {
        self.settle_together(Settling { changes, take: None }).await.0
    }

    async fn settle_together(&self, settling: Settling) -> SettledAndTaken {
        let count = settling.changes.len();
        if count == 0 {
            return (Vec::new(), None);
        }
        match self.in_time(self.0.settles.travel((), settling)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => (vec![Err(error.into()); count], None),
            Err(late) => (vec![Err(late); count], None),
        }
    }

    /// Runs one round of settles: applies them all, caches how they ended, and wakes waiters for what came
    /// back.
    async fn settle_round(&self, items: Vec<Settling>) -> Vec<SettledAndTaken> {
        let (mut changes, mut sizes, mut takes) = (Vec::new(), Vec::new(), Vec::new());
        for Settling { changes: own, take } in items {
            let range = changes.len()..changes.len() + own.len();
            sizes.push(own.len());
            changes.extend(own);
            takes.push(take.map(|take| take.of(range)));
        }
        let (applied, taken) = self.apply_and_take(changes.clone(), takes).await;
        let now = self.0.store.now().unwrap_or_default();
        let mut notes = self.meter().notes();
        let mut settled = changes
            .iter()
            .zip(applied)
            .map(|(change, applied)| self.settled(change, applied, now, &mut notes));
        let of_each = |(size, taken)| (settled.by_ref().take(size).collect(), taken);
        sizes.into_iter().zip(taken).map(of_each).collect()
    }

    /// Returns how the very same call ended before, and when, if it is one that must not happen twice. What a commit
    /// pushed is not cached here but kept in its receipt, which also a repeat without the pushes is answered by.
    fn recall(&self, change: &Change) -> Option<(Outcome, Timestamp)> {
        // What is only recalled of a commit has pushes.
        let is_of_pushes = matches!(change.operation, Operation::Recall { verb: Verb::Commit, .. });
        if is_of_pushes || !change.operation.pushes().is_empty() {
            return None;
        }
        let claim = change.operation.claim()?;
        let Ended { outcome, at, has_pushed } =
            self.0.outcomes.recall(&change.id, claim, change.operation.verb())?;
        (!has_pushed).then_some((outcome, at))
    }

    fn settled(
        &self,
        change: &Change,
        applied: Result<Applied, Denied>,
        now: Timestamp,
        notes: &mut Notes<'_>,
    ) -> Result<Settled> {
        let id = change.id.clone();
        let applied = match (applied, &change.operation) {
            (Ok(applied), _) => applied,
            (Err(Denied::Refused(Refusal::Full)), Operation::Move { queue, .. }) => {
                return Err(Error::QueueFull(queue.clone()));
            }
            (Err(denied), _) => {
                // A concurrent call with the same token may have been quicker.
                let earlier =
                    self.recall(change).filter(|_| matches!(denied, Denied::Refused(Refusal::Lost { .. })));
                return earlier.map_or_else(
                    || Err(Error::denied(&id, denied)),
                    |earlier| Ok(Settled::again(&id, earlier)),
                );
            }
        };
        self.0.endings.note(&id, &applied.outcome);
        let verb = change.operation.verb();
        if let (Some(claim), true) = (change.operation.claim(), verb != Verb::Extend) {
            let has_pushed = !applied.pushed.is_empty();
            let ended = Ended { outcome: applied.outcome.clone(), at: applied.at, has_pushed };
            self.0.outcomes.remember(&id, claim, verb, ended);
        }
        if !applied.repeated {
            self.note(verb, &applied, now, notes);
            self.note_pushed(&Beside::of(change.operation.pushes()), &applied.pushed, notes);
        }
        let Applied { outcome, queue, pushed, at, repeated, perhaps_earlier, .. } = applied;
        let from = Some(queue);
        Ok(Settled { id, outcome, from, has_gone: false, pushed, at, repeated, perhaps_earlier })
    }

    /// Counts what happened, and wakes waiters for what came back.
    pub(super) fn note(&self, verb: Verb, applied: &Applied, now: Timestamp, notes: &mut Notes<'_>) {
        let event = match verb {
            Verb::Commit => Some(Event::Committed),
            Verb::Rollback => Some(Event::RolledBack),
            Verb::Move | Verb::Relocate => Some(Event::Moved),
            Verb::Lapse | Verb::Abandon => Some(Event::Lapsed),
            Verb::Expire => Some(Event::Expired),
            _ => None,
        };
        if let Some(event) = event {
            notes.count(&applied.queue, event);
        }
        // Also one that was to be cancelled, or had expired, when its worker gave it back.
        if applied.outcome == Outcome::Removed && verb != Verb::Expire {
            notes.count(&applied.queue, Event::Cancelled);
        }
        if let (Some(started_at), true) = (applied.started_at, matches!(verb, Verb::Commit | Verb::Move)) {
            notes.run_time(&applied.queue, now.ms_since(started_at));
        }
        self.note_callback(applied.callback.as_ref(), notes);
        applied.unblocked.iter().for_each(|(queue, run_at)| self.announce(queue, *run_at));
        self.note_room(applied);
        match &applied.outcome {
            Outcome::Returned { blocked: true, .. } => {}
            Outcome::Returned { queue, run_at, .. } => self.announce(queue, *run_at),
            Outcome::Dead { moved_to } => {
                notes.count(&applied.queue, Event::Dead);
                if let Some(queue) = moved_to {
                    self.announce(queue, now);
                }
            }
            Outcome::Held { reserved_until, .. } => self.note_deadline(*reserved_until),
            Outcome::Done | Outcome::Removed => {}
        }
    }

    /// Counts jobs that were pushed together with something else, and wakes waiters for them.
    pub(super) fn note_pushed(&self, beside: &Beside, pushed: &[Child], notes: &mut Notes<'_>) {
        for child in pushed {
            if !child.deduplicated {
                notes.count(&child.queue, Event::Pushed);
            }
            if !child.deduplicated || child.replaced {
                self.announce(&child.queue, child.run_at);
            }
        }
        if let Some(expires_at) = beside.first_expiry {
            self.note_deadline(expires_at);
        }
    }
}
