//! Commit, rollback, extend, move.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::meter::{Event, Notes};
use super::push::NewPush;
use super::rounds::{self, Item, Limits, Rounds};
use super::semaphores::check_known;
use super::{Error, Queues, Result, Shared};
use crate::faults;
use crate::job::settings::{LEASE_MAX_MS, LEASE_MIN_MS};
use crate::job::spec::{check_size, check_year};
use crate::job::state::Verb;
use crate::job::transition::{Operation, Outcome, Refusal};
use crate::job::{Child, Claim, JobId, NewJob, Payload, QueueName, SemaphoreName, Timestamp};
use crate::store::{Applied, Change, Denied, StoreError};

/// The most jobs of one settle.
pub const SETTLE_MAX: usize = 1000;
/// The most jobs that one commit pushes.
const PUSHES_MAX: usize = 1000;

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
    Commit { result: Option<Payload>, push: Vec<(QueueName, NewPush)> },
    Rollback { delay_ms: Option<u64>, error: Option<String> },
    Extend { lease_ms: Option<u64>, progress: Option<Payload> },
    Move { queue: QueueName, payload: Option<Payload>, delay_ms: Option<u64>, priority: Option<i32> },
}

/// What a settle has led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// The job.
    pub id: JobId,
    /// What has become of it.
    pub outcome: Outcome,
    /// The jobs that were pushed with it.
    pub pushed: Vec<Child>,
    /// The time by the store's clock, which separates scheduled jobs from ready ones.
    pub now: Timestamp,
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
        let (payload, field) = match &self.action {
            Action::Commit { result, .. } => (result, "/result"),
            Action::Extend { progress, .. } => (progress, "/progress"),
            Action::Move { payload, .. } => (payload, "/payload"),
            Action::Rollback { .. } => (&None, ""),
        };
        if let Some(payload) = payload {
            check_size(payload, field, payload_bytes)?;
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
            Action::Rollback { delay_ms, .. } | Action::Move { delay_ms, .. } => {
                Ok(check_year(*delay_ms, "/delay_ms")?)
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

    fn into_change(self, queues: &Queues, now: Timestamp) -> Change {
        let claim = self.claim.unwrap_or_else(|| Claim::from_stored("")); // no job has it
        let operation = match self.action {
            Action::Commit { result, push } => {
                let key_ttl_ms = queues.options().defaults.key_ttl_ms;
                let job = |(queue, push): (QueueName, NewPush)| {
                    push.into_job(queues.0.ids.next(now), queue, now, key_ttl_ms)
                };
                let count = if faults::bug("half_of_children") { push.len() / 2 } else { push.len() };
                Operation::Commit { claim, result, push: push.into_iter().take(count).map(job).collect() }
            }
            Action::Rollback { delay_ms, error } => Operation::Rollback { claim, delay_ms, error },
            Action::Extend { lease_ms, progress } => Operation::Extend { claim, lease_ms, progress },
            Action::Move { queue, payload, delay_ms, priority } => {
                Operation::Move { claim, queue, payload, delay_ms, priority }
            }
        };
        Change { id: self.id, operation }
    }
}

/// Settles in flight. Their rounds go one after the other: a repeat never overtakes its first call, and finds
/// its outcome in the cache.
pub(super) type SettleRounds = Arc<Rounds<(), Vec<Change>, Vec<Result<Settled>>>>;

impl Item for Vec<Change> {
    fn weight(&self) -> usize {
        let bytes = |value: &Payload| value.as_str().len();
        let own = |operation: &Operation| rounds::weight(operation.value().map_or(0, bytes));
        let pushed = |job: &NewJob| rounds::weight(bytes(&job.spec.payload));
        let weight = |Change { operation, .. }: &Change| {
            own(operation) + operation.pushes().iter().map(pushed).sum::<usize>()
        };
        self.iter().map(weight).sum()
    }
}

pub(super) fn rounds(shared: &Weak<Shared>) -> SettleRounds {
    let shared = shared.clone();
    Rounds::new(
        Limits { round: SETTLE_MAX, overlap: 1, large: SETTLE_MAX, waiting: 30_000 },
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
        let count = settles.len();
        self.settle_valid(settles).await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn settle_valid(&self, settles: Vec<Settle>) -> Result<Vec<Result<Settled>>> {
        let now = self.now()?;
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
        let (mut changes, mut named) = (Vec::new(), Vec::new());
        for (settle, answer) in settles.into_iter().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            let known = settle.check_semaphores(&unknown);
            if let Err(error) = known.and_then(|()| self.check_queues(&full, settle.queues())) {
                *answer = Some(Err(error));
                continue;
            }
            let queues =
                places.of_each(std::iter::once(&settle).map(|settle| settle.queues().cloned().collect()));
            let change = settle.into_change(self, now);
            let settled = |outcome| Ok(Settled { id: change.id.clone(), outcome, pushed: Vec::new(), now });
            *answer = self.recall(&change).map(settled);
            if answer.is_none() {
                changes.push(change);
                named.extend(queues);
            }
        }
        let settled = self.settle_changes(changes).await;
        places.keep_stored(&named, &settled);
        let mut settled = settled.into_iter();
        let lost = || Err(StoreError::internal("a settle was left unanswered").into());
        let answer =
            |answer: Option<Result<Settled>>| answer.unwrap_or_else(|| settled.next().unwrap_or_else(lost));
        Ok(answers.into_iter().map(answer).collect())
    }

    /// Settles jobs together with whatever else is being settled.
    pub(super) async fn settle_changes(&self, changes: Vec<Change>) -> Vec<Result<Settled>> {
        let count = changes.len();
        if count == 0 {
            return Vec::new();
        }
        match self.in_time(self.0.settles.travel((), changes)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(error)) => vec![Err(error.into()); count],
            Err(late) => vec![Err(late); count],
        }
    }

    /// Runs one round of settles: applies them all, caches how they ended, and wakes waiters for what came
    /// back.
    async fn settle_round(&self, items: Vec<Vec<Change>>) -> Vec<Vec<Result<Settled>>> {
        let sizes: Vec<usize> = items.iter().map(Vec::len).collect();
        let changes: Vec<Change> = items.into_iter().flatten().collect();
        let applied = self.0.store.apply(changes.clone(), &self.rules()).await;
        let now = self.0.store.now().unwrap_or_default();
        let mut notes = self.meter().notes();
        let mut settled = changes
            .iter()
            .zip(applied)
            .map(|(change, applied)| self.settled(change, applied, now, &mut notes));
        sizes.into_iter().map(|size| settled.by_ref().take(size).collect()).collect()
    }

    /// Returns how the very same call ended before, if it is one that must not happen twice. What a commit
    /// pushed is not cached here but kept in its receipt.
    fn recall(&self, change: &Change) -> Option<Outcome> {
        if !change.operation.pushes().is_empty() {
            return None;
        }
        let claim = change.operation.claim()?;
        self.0.outcomes.recall(&change.id, claim, change.operation.verb())
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
                    |outcome| Ok(Settled { id: id.clone(), outcome, pushed: Vec::new(), now }),
                );
            }
        };
        let verb = change.operation.verb();
        if let (Some(claim), true) = (change.operation.claim(), verb != Verb::Extend) {
            self.0.outcomes.remember(&id, claim, verb, &applied.outcome);
        }
        if !applied.repeated {
            self.note(verb, &applied, now, notes);
            let first_expiry = change.operation.pushes().iter().filter_map(|job| job.expires_at()).min();
            self.note_pushed(first_expiry, &applied.pushed, notes);
        }
        Ok(Settled { id, outcome: applied.outcome, pushed: applied.pushed, now })
    }

    /// Counts what happened, and wakes waiters for what came back.
    pub(super) fn note(&self, verb: Verb, applied: &Applied, now: Timestamp, notes: &mut Notes<'_>) {
        let event = match verb {
            Verb::Commit => Some(Event::Committed),
            Verb::Rollback => Some(Event::RolledBack),
            Verb::Move => Some(Event::Moved),
            Verb::Lapse | Verb::Abandon => Some(Event::Lapsed),
            Verb::Expire => Some(Event::Expired),
            _ => None,
        };
        if let Some(event) = event {
            notes.count(&applied.queue, event);
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
    pub(super) fn note_pushed(
        &self,
        first_expiry: Option<Timestamp>,
        pushed: &[Child],
        notes: &mut Notes<'_>,
    ) {
        for child in pushed.iter().filter(|child| !child.deduplicated) {
            notes.count(&child.queue, Event::Pushed);
            self.announce(&child.queue, child.run_at);
        }
        if let Some(expires_at) = first_expiry {
            self.note_deadline(expires_at);
        }
    }

    /// Applies changes that the server itself wants, guarded by what it read. Returns how many happened.
    pub(super) async fn apply_overdue(&self, changes: Vec<Change>) -> Result<usize> {
        faults::point("overdue.read").await;
        let (done, failed) = self.apply_all(changes).await?;
        failed.map_or(Ok(done.len()), |error| Err(error.after(done.len() as u64).into()))
    }

    /// Applies changes. Returns what happened, which is announced, and the first failure of the store.
    pub(super) async fn apply_all(&self, changes: Vec<Change>) -> Result<(Vec<Applied>, Option<StoreError>)> {
        let now = self.now()?;
        let verbs: Vec<Verb> = changes.iter().map(|change| change.operation.verb()).collect();
        let applied = self.0.store.apply(changes, &self.rules()).await;
        Ok(self.note_all(verbs, applied, now))
    }

    /// Counts what happened, and wakes waiters for what came back: also behind a change that the store failed.
    pub(super) fn note_all(
        &self,
        verbs: Vec<Verb>,
        applied: Vec<Result<Applied, Denied>>,
        now: Timestamp,
    ) -> (Vec<Applied>, Option<StoreError>) {
        let mut notes = self.meter().notes();
        let (mut done, mut failed) = (Vec::with_capacity(applied.len()), None);
        for (verb, applied) in verbs.into_iter().zip(applied) {
            match applied {
                Ok(applied) => {
                    self.note(verb, &applied, now, &mut notes);
                    done.push(applied);
                }
                // A conflict: extended, settled, or done by another server.
                Err(Denied::Refused(_) | Denied::PushRefused(_)) => {}
                // A job that another program spoiled, which concerns no other.
                Err(Denied::Store(StoreError::Unreadable(_))) => {}
                Err(Denied::Store(error)) => drop(failed.get_or_insert(error)),
            }
        }
        (done, failed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::queue::{Options, Quotas};
    use crate::store::sqlite::{Location, SqliteStore};

    #[tokio::test]
    async fn what_comes_behind_a_failure_is_announced() {
        let quotas = Quotas { queues: 1, workers: 1, schedules: 1, semaphores: 1, keys: 1 };
        let options = Options {
            defaults: Arc::default(),
            payload_bytes: 1000,
            answer_bytes: 1000,
            idempotency_ttl_ms: 1000,
            waiting: 1,
            metrics_queues: 1,
            quotas,
            poll: Duration::from_secs(1),
            patience: Duration::from_secs(1),
        };
        let queues = Queues::new(SqliteStore::open(Location::Memory).unwrap(), options);
        let released: SemaphoreName = "s".parse().unwrap();
        let applied = || Applied {
            outcome: Outcome::Removed,
            queue: "q".parse().unwrap(),
            started_at: None,
            pushed: Vec::new(),
            callback: None,
            unblocked: Vec::new(),
            released: vec![released.clone()],
            repeated: false,
        };
        let failed = || Err(StoreError::unavailable("away").into());
        let all = vec![failed(), Ok(applied()), failed()];
        let (done, error) = queues.note_all(vec![Verb::Cancel; 3], all, Timestamp::from_millis(0));
        assert_eq!((done.len(), error.is_some()), (1, true));
        assert_eq!(queues.0.semaphores.take_offers(), [released]);
    }
}
