//! Works on operations over many jobs, step by step. A step changes some jobs and the record of its operation in one transaction, which
//! is guarded by the revision of the record: whichever server does it, and however often it is interrupted, each step happens once.
//!
//! A server takes an operation by writing itself into the record, with a lease that each step renews. Where it dies, another one takes the
//! operation over once the lease has run out. Where it only stood still, its next step finds another revision, and does nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;

use super::{Maintenance, Run, lock};
use crate::faults;
use crate::job::bulk::{BulkAction, BulkCursor, BulkState};
use crate::job::transition::Refusal;
use crate::job::{Bulk, BulkId, JobId, NewJob, QueueName, Timestamp};
use crate::queue::bulk::CLOCKS_DIFFER_MS;
use crate::queue::operations::filter;
use crate::queue::outcomes::Noted;
use crate::queue::{Error, Queues, Result, push};
use crate::store::audit;
use crate::store::{
    BulkDone, BulkEffect, BulkNext, BulkStep, Change, Denied, Found, ListedJob, Pushed, Search, StoreError,
    listed_id,
};

/// How many operations a server works on at once.
const AT_ONCE: usize = 4;
/// How long it works on one before it checks the others.
const SLICE: Duration = Duration::from_millis(500);
/// How long no other server takes an operation over, in milliseconds.
const LEASE_MS: u64 = 5000;
/// The most jobs of a step.
const STEP: usize = 100;
/// How long one waits whose queue takes no more jobs.
const FULL_PAUSE: Duration = Duration::from_secs(2);

/// What is known of the operations that this server works on.
#[derive(Default)]
pub(super) struct Steps {
    /// How many jobs the next step of an operation has, where one has failed: others may have changed some of them, or one may be
    /// at fault.
    sizes: HashMap<BulkId, usize>,
    /// When an operation goes on here whose queue was full.
    full: HashMap<BulkId, Instant>,
}

/// What a step has come to.
enum Stepped {
    /// There is more to do.
    More,
    /// There is more to do once its queue has room.
    Full,
    /// The operation is over, or another server has it.
    Over,
}

impl Maintenance {
    /// Works on operations for a while. Counts the jobs that it has changed.
    pub async fn work_on_operations(self: Arc<Self>) -> Result<Run> {
        let open = self.queues.open_operations().await?;
        let now = self.queues.now()?;
        let full = self.full_ones();
        let waits_ms = |operation: &Bulk| {
            let pause = full.get(&operation.id).map_or(0, |left| left.as_millis().max(1) as u64);
            ms_until(operation.acts_at(), 0, now).max(pause)
        };
        let mut again_in = open.iter().map(waits_ms).filter(|ms| *ms > 0).min();
        let is_ours = |operation: &Bulk| {
            let is_leased = operation.leased_until.is_some_and(|until| ms_until(until, LEASE_MS, now) > 0);
            let is_free = !is_leased || !self.has_peers();
            waits_ms(operation) == 0 && (is_free || operation.runner.as_deref() == Some(&self.runner))
        };
        let mut ours: Vec<Bulk> = open.into_iter().filter(is_ours).collect();
        ours.sort_by_key(|operation| operation.waits_for_room); // however many wait, the others go on first
        lock(&self.steps).sizes.retain(|id, _| ours.iter().any(|operation| operation.id == *id));
        if !ours.is_empty() {
            again_in = Some(0);
        }
        let work = ours.into_iter().map(|operation| self.clone().work_on(operation));
        let worked: Vec<Result<u64>> = futures::stream::iter(work).buffer_unordered(AT_ONCE).collect().await;
        // One that fails keeps none of the others from going on.
        let mut done = 0;
        for affected in worked {
            done += affected?;
        }
        Ok(Run { done, again_in: again_in.map(Duration::from_millis) })
    }

    /// Works on one of them for a while, and returns how many jobs it has changed.
    async fn work_on(self: Arc<Self>, operation: Bulk) -> Result<u64> {
        let id = operation.id.clone();
        let worked = self.work_for_a_while(operation).await;
        match &worked {
            // It must not be tried for ever: an operator is to see why. What is the fault of one job does not come here: that is skipped.
            Err(Error::Store(
                error @ (StoreError::Internal(_) | StoreError::Unreadable(_) | StoreError::NotUnique(_)),
            )) => {
                self.fail(&id, error).await?;
            }
            Err(_) => self.halve(&id),
            Ok(_) => {}
        }
        worked
    }

    async fn work_for_a_while(&self, operation: Bulk) -> Result<u64> {
        let (end, before) = (Instant::now() + SLICE, operation.affected);
        let Some(mut operation) = self.take(operation).await? else { return Ok(0) };
        while Instant::now() < end {
            match self.step(&mut operation, end).await {
                Ok(Stepped::More) => self.double(&operation.id),
                Ok(Stepped::Full) => {
                    lock(&self.steps).full.insert(operation.id.clone(), Instant::now() + FULL_PAUSE);
                    break;
                }
                Ok(Stepped::Over) => break,
                // One of its jobs fails all of a step: in smaller ones the others go on without it.
                Err(Error::Store(error)) if is_of_one_job(&error) && self.size(&operation.id) > 1 => {
                    self.halve(&operation.id);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(operation.affected.saturating_sub(before))
    }

    /// Writes this server into the record, with a lease. Nothing where another server was quicker.
    async fn take(&self, operation: Bulk) -> Result<Option<Bulk>> {
        let now = self.queues.now()?;
        let is_new = operation.state == BulkState::Queued;
        let matched = if is_new { self.queues.estimate(&operation.intent).await } else { operation.matched };
        let taken = Bulk {
            state: BulkState::Running,
            started_at: operation.started_at.or(Some(now)),
            matched,
            ..self.leased(operation.revised(), now)
        };
        self.save(&operation, taken).await
    }

    fn leased(&self, operation: Bulk, now: Timestamp) -> Bulk {
        Bulk { runner: Some(self.runner.clone()), leased_until: Some(now.plus_ms(LEASE_MS)), ..operation }
    }

    /// Replaces the record, unless it has changed since. Where it is over, with the row of its end.
    async fn save(&self, seen: &Bulk, to: Bulk) -> Result<Option<Bulk>> {
        let row = self.queues.row_of_end(self.queues.now()?)(&to);
        let is_saved = self.queues.0.store.save_operation(&to, seen.rev, row.as_ref()).await?;
        row.iter().filter(|_| is_saved).for_each(|row| audit::log(row, None));
        Ok(is_saved.then_some(to))
    }

    /// Searches for the next jobs, and does what is to be done with them. Where there are none for a while, it only remembers how far it has
    /// searched.
    async fn step(&self, operation: &mut Bulk, end: Instant) -> Result<Stepped> {
        let (queues, began) = (&self.queues, operation.began());
        let parts = operation.intent.parts();
        let mut next = operation.revised();
        let size = self.size(&operation.id);
        loop {
            let at = &mut next.cursor;
            if at.queue.is_none() || at.part >= parts.len() {
                let queue = queues.next_queue(&operation.intent, at.queue.as_ref()).await?;
                let Some(queue) = queue else {
                    let over = next.ended(BulkState::Done, None, queues.now()?);
                    self.save(operation, over).await?;
                    return Ok(Stepped::Over);
                };
                *at = BulkCursor::at(queue, 0, None);
            }
            let (Some(queue), Some(part)) = (at.queue.clone(), parts.get(at.part)) else { continue };
            let filter = filter(&operation.intent, part.clone(), queue, began);
            let newest_first = operation.intent.newest_first;
            let ask = Search { after: at.after.clone(), newest_first, ..Search::new(filter, size) };
            let found = queues.0.store.search(&ask).await?;
            if !at.was_over {
                // Those that are found are counted one by one: a step may end at one of them.
                next.scanned += found.scanned.saturating_sub(found.jobs.len() as u64);
            }
            if !found.jobs.is_empty() {
                return self.do_step(operation, next, found).await;
            }
            // What few jobs meet is searched for in steps as well: each is remembered.
            match found.stopped_at {
                Some(id) => at.after = Some(id),
                None => (at.part, at.after, at.was_over) = (at.part + 1, None, false),
            }
            if Instant::now() >= end {
                return self.keep(operation, self.leased(next, queues.now()?)).await;
            }
        }
    }

    /// Remembers how far it has come, where no job is changed along with that.
    async fn keep(&self, operation: &mut Bulk, next: Bulk) -> Result<Stepped> {
        let kept = self.save(operation, next).await?;
        Ok(kept.map_or(Stepped::Over, |kept| {
            *operation = kept;
            Stepped::More
        }))
    }

    /// Does what is to be done with these jobs, in one transaction with the record, which is `next` but for what comes of it.
    async fn do_step(&self, operation: &mut Bulk, next: Bulk, found: Found) -> Result<Stepped> {
        let now = self.queues.now()?;
        let last = found.jobs.last().map(listed_id).cloned();
        let Chosen { effect, mut base, picked } =
            self.choose(self.leased(next, now), found.jobs, now).await?;
        if base.cursor.after == last {
            // What was scanned behind the last of them is not scanned again.
            base.cursor.was_over |= found.stopped_at.is_none();
            base.cursor.after = found.stopped_at.or(last);
        }
        let is_alone = picked.len() == 1;
        let next: BulkNext = Arc::new(move |done| after_step(&base, &picked, done, now));
        faults::point("operation.chosen").await;
        let noted = Notes::of(&effect);
        let (id, seen, row) = (operation.id.clone(), operation.rev, self.queues.row_of_end(now));
        let step = BulkStep { effect, id, seen, next: next.clone(), row: row.clone() };
        let stepped = self.queues.0.store.step_operation(step, &self.queues.rules()).await;
        let done = match stepped {
            // Nothing of the step is stored: the record alone goes on, behind this job.
            Err(error) if is_alone && is_of_one_job(&error) => {
                let denied = BulkDone::Changed(vec![Err(Denied::Store(error))]);
                return self.keep(operation, next(&denied)).await;
            }
            stepped => stepped?,
        };
        faults::point("operation.stepped").await;
        let Some(done) = done else { return Ok(Stepped::Over) };
        *operation = next(&done);
        row(operation).iter().for_each(|row| audit::log(row, None));
        let waits = first_refused(&done).is_some();
        noted.note(&self.queues, done, now);
        Ok(match (operation.state.is_open(), waits) {
            (true, true) => Stepped::Full,
            (true, false) => Stepped::More,
            (false, _) => Stepped::Over,
        })
    }

    /// Chooses what is to be done with jobs that were found, up to the limit of the operation.
    async fn choose(&self, mut base: Bulk, jobs: Vec<ListedJob>, now: Timestamp) -> Result<Chosen> {
        let needed = jobs.iter().flatten().flat_map(|job| &job.meta.semaphores);
        let unknown = match base.intent.action {
            BulkAction::Replay => self.queues.unknown_among(needed).await?,
            _ => HashSet::new(),
        };
        let (began, left) = (base.began(), usize::try_from(base.left()).unwrap_or(usize::MAX));
        let (mut changes, mut copies, mut picked) = (Vec::new(), Vec::new(), Vec::new());
        for job in jobs {
            if picked.len() >= left {
                break;
            }
            let id = listed_id(&job).clone();
            let pick = Picked::of(&job, &base);
            base.scanned += 1;
            base.cursor.after = Some(id.clone());
            match job {
                Err(unreadable) => {
                    let queue = base.cursor.queue.as_ref();
                    match queue.and_then(|queue| base.intent.operation_on_unreadable(queue)) {
                        Some(operation) => {
                            changes.push(Change { id, operation });
                            picked.push(pick);
                        }
                        None => {
                            base.skipped += 1;
                            base.note(format!("job {id} cannot be read: {}", unreadable.why));
                        }
                    }
                }
                Ok(job) if base.intent.action == BulkAction::Replay => {
                    if !base.intent.copies(&job, began) {
                        continue;
                    }
                    if let Some(name) = job.meta.semaphores.iter().find(|name| unknown.contains(*name)) {
                        base.skipped += 1;
                        base.note(format!("job {id} needs the semaphore {name}, which is not there"));
                    } else {
                        copies.push(self.queues.copy(job, now));
                        picked.push(pick);
                    }
                }
                Ok(job) => {
                    if let Some(operation) = base.intent.operation(&job.meta, began) {
                        changes.push(Change { id, operation });
                        picked.push(pick);
                    }
                }
            }
        }
        let effect = match base.intent.action {
            BulkAction::Replay => BulkEffect::Push(copies),
            _ => BulkEffect::Change(changes),
        };
        Ok(Chosen { effect, base, picked })
    }

    /// Ends an operation that cannot go on.
    async fn fail(&self, id: &BulkId, error: &StoreError) -> Result<()> {
        let Some(operation) = self.queues.0.store.operation(id).await? else { return Ok(()) };
        if operation.state.is_open() {
            let failed =
                operation.clone().ended(BulkState::Failed, Some(error.to_string()), self.queues.now()?);
            self.save(&operation, failed).await?;
        }
        Ok(())
    }

    /// Returns how much longer operations wait here whose queues were full.
    fn full_ones(&self) -> HashMap<BulkId, Duration> {
        let (now, mut steps) = (Instant::now(), lock(&self.steps));
        steps.full.retain(|_, until| *until > now);
        steps.full.iter().map(|(id, until)| (id.clone(), *until - now)).collect()
    }

    fn size(&self, id: &BulkId) -> usize {
        lock(&self.steps).sizes.get(id).copied().unwrap_or(STEP)
    }

    /// Makes the next step smaller: of many jobs others may have changed one, or one may be at fault.
    fn halve(&self, id: &BulkId) {
        let half = (self.size(id) / 2).max(1);
        lock(&self.steps).sizes.insert(id.clone(), half);
    }

    /// Makes the next step larger.
    fn double(&self, id: &BulkId) {
        let mut steps = lock(&self.steps);
        if let Some(size) = steps.sizes.get_mut(id) {
            *size = (*size * 2).min(STEP);
        }
    }
}

/// Returns how long it is until then, in milliseconds, which was so many at most when it was stored. Where it is much more, the store's
/// clock was set back since: nothing is waited for.
fn ms_until(at: Timestamp, most_ms: u64, now: Timestamp) -> u64 {
    Some(at.ms_since(now)).filter(|ms| *ms <= most_ms + CLOCKS_DIFFER_MS).unwrap_or(0)
}

/// Whether an error is the fault of one job, and fails all of a step only because its jobs share a transaction.
fn is_of_one_job(error: &StoreError) -> bool {
    matches!(error, StoreError::Unreadable(_) | StoreError::NotUnique(_))
}

/// What a step is to do.
struct Chosen {
    effect: BulkEffect,
    /// The record, but for what comes of it.
    base: Bulk,
    /// The jobs that it is done to, in its order.
    picked: Vec<Picked>,
}

/// A job that something is to be done to.
struct Picked {
    id: JobId,
    /// Where the step was in front of it.
    after: Option<JobId>,
    scanned: u64,
    skipped: u64,
}

impl Picked {
    fn of(job: &ListedJob, base: &Bulk) -> Self {
        Self {
            id: listed_id(job).clone(),
            after: base.cursor.after.clone(),
            scanned: base.scanned,
            skipped: base.skipped,
        }
    }
}

/// Returns the first copy that its queue had no room for. They all go to one queue: the others had none either.
fn first_refused(done: &BulkDone) -> Option<usize> {
    match done {
        BulkDone::Changed(_) => None,
        BulkDone::Pushed(all) => all.iter().position(|pushed| matches!(pushed, Pushed::Full)),
    }
}

fn is_full(queue: &QueueName) -> String {
    format!("queue {queue} has as many unfinished jobs as its max_jobs allows")
}

/// Returns the record once a step has come to this. A move ends where its queue is full. Copies that there is no room for are made later,
/// from the first of them on.
fn after_step(base: &Bulk, picked: &[Picked], done: &BulkDone, now: Timestamp) -> Bulk {
    let (mut next, mut full) = (Bulk { waits_for_room: false, ..base.clone() }, None);
    match done {
        BulkDone::Changed(all) => {
            for (Picked { id, .. }, changed) in picked.iter().zip(all) {
                match changed {
                    Ok(_) => next.affected += 1,
                    Err(denied) => {
                        next.skipped += 1;
                        match denied {
                            Denied::Store(error) => next.note(format!("job {id}: {error}")),
                            Denied::Refused(Refusal::Full) => full = base.intent.to.clone(),
                            _ => {}
                        }
                    }
                }
            }
        }
        BulkDone::Pushed(all) => {
            let stored = first_refused(done).unwrap_or(all.len());
            for pushed in all.iter().take(stored) {
                match pushed {
                    Pushed::Created | Pushed::Blocked => next.affected += 1,
                    // Copies have no keys.
                    _ => next.skipped += 1,
                }
            }
            if let Some(refused) = picked.get(stored) {
                let again = next.skipped - base.skipped;
                next.waits_for_room = true;
                (next.scanned, next.skipped) = (refused.scanned, refused.skipped + again);
                next.cursor.after = refused.after.clone();
                base.cursor.queue.iter().for_each(|queue| next.note(is_full(queue)));
            }
        }
    }
    match full {
        Some(queue) => next.ended(BulkState::Failed, Some(is_full(&queue)), now),
        None if next.left() == 0 => next.ended(BulkState::Done, None, now),
        None => next,
    }
}

/// What is announced of a step once it has happened.
enum Notes {
    Changed(Vec<Noted>),
    Pushed(Vec<NewJob>),
}

impl Notes {
    fn of(effect: &BulkEffect) -> Self {
        match effect {
            BulkEffect::Change(changes) => Self::Changed(changes.iter().map(Noted::of).collect()),
            BulkEffect::Push(jobs) => Self::Pushed(jobs.clone()),
        }
    }

    fn note(self, queues: &Queues, done: BulkDone, now: Timestamp) {
        match (self, done) {
            (Self::Changed(noted), BulkDone::Changed(all)) => drop(queues.note_all(noted, all, now)),
            (Self::Pushed(jobs), BulkDone::Pushed(all)) => {
                let first_expiry = jobs.iter().filter_map(NewJob::expires_at).min();
                let answers =
                    jobs.iter().zip(all).map(|(job, pushed)| push::answer(pushed, push::facts(job)));
                queues.note_stored(first_expiry, &answers.collect::<Vec<_>>());
            }
            _ => {} // a step does what it was asked for
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_lies_further_ahead_than_any_is_none() {
        let now = Timestamp::from_millis(1_000_000_000);
        let left = |ms: u64| ms_until(now.plus_ms(ms), LEASE_MS, now);
        assert_eq!([0, 1, LEASE_MS, LEASE_MS + 1000].map(left), [0, 1, LEASE_MS, LEASE_MS + 1000]);
        assert_eq!(left(3_600_000), 0);
        assert_eq!(ms_until(now.minus_ms(1), LEASE_MS, now), 0);
    }
}
