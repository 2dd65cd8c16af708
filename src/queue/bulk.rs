//! What is done to many jobs of a queue at once, in bounded steps: purge, redrive, replay.
//!
//! A call does so itself with the first jobs that it scans. What is behind them it leaves to an operation, which it stores before it is
//! over: see `rest.rs`. Where it reads jobs whole it takes turns with other calls: a step may have megabytes in memory.

use std::collections::HashSet;

use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::audit::{Act, shown};
use super::keyed::StepDone;
use super::once::TURN_WAIT;
use super::rest::{Call, Part, Remembered, Rest};
use super::{CallKey, Error, Queues, Result, push};
use crate::job::bulk::{BulkAction, BulkCursor, BulkFilter, is_new_callback};
use crate::job::transition::Operation;
use crate::job::{
    BulkId, Caller, Content, Job, JobId, JobSpec, Meta, NewJob, QueueName, QueuePattern, Reach, Scope, Span,
    State, Timestamp, Visible,
};
use crate::store::audit::{Entry, along};
use crate::store::hold;
use crate::store::{
    Change, Denied, Filter, ListedJob, Once, PAGE_BYTES, Search, StoreError, Weight as _, listed_id,
};

/// How many jobs one step reads and changes.
const STEP: usize = 500;
/// The same for a step of a keyed call: on MongoDB one job that others change stops all of it.
pub(super) const KEYED_STEP: usize = 50;
/// By how much the estimate of the store's clock of one server is behind that of another at most, in milliseconds.
pub(super) const CLOCKS_DIFFER_MS: u64 = 5000;

/// Which of the jobs that have finished, done or dead.
#[derive(Debug, Clone, Copy, Default)]
pub struct FinishedRange {
    /// Finished at this moment or later.
    pub from: Option<Timestamp>,
    /// Finished before this moment.
    pub to: Option<Timestamp>,
    /// The most jobs.
    pub limit: Option<u64>,
}

/// What a call over many jobs has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Affected {
    /// How many jobs it has affected itself.
    pub affected: u64,
    /// The operation that goes on with the others.
    pub operation: Option<BulkId>,
}

impl Queues {
    /// Removes the jobs that are in this state, or those of them from before a moment.
    pub async fn purge(
        &self,
        queue: &QueueName,
        state: Visible,
        before: Option<Timestamp>,
        caller: &Caller,
    ) -> Result<Affected> {
        if state == Visible::Reserved {
            return Err(Error::invalid(
                "/state",
                "must not be reserved: settle or cancel jobs that workers hold",
            ));
        }
        let filter = Filter::state(queue.clone(), state).during(Span { from: None, before });
        let within = Reach::one(queue);
        // Of each group one job waits to be delivered. Another one was blocked by it until it was purged. The latest come first, so that
        // those were scanned before.
        let (waits, mut groups) = (state.stored() == State::Ready, HashSet::new());
        let mut was_blocked = move |meta: &Meta| {
            let group = meta.group.as_ref().filter(|_| waits && meta.turn.is_some());
            group.is_some_and(|group| !groups.insert(group.clone()))
        };
        let now = self.now()?;
        let purge = |job: &ListedJob| {
            let stays =
                job.as_ref().is_ok_and(|job| was_blocked(&job.meta) || is_new_callback(&job.meta, now));
            (!stays).then(|| Operation::Purge { within: within.clone(), states: vec![state] })
        };
        let after = shown(&json!({"state": state, "before": before}));
        let (what, on) = ("queue.purge", queue.as_str());
        let row = self.counting_row(Act { what, on, queue: Some(queue), before: None, after });
        let mut call = Call::new(BulkAction::Delete, now, None).recorded(row);
        let ask = Search { newest_first: true, with_contents: false, ..Search::new(filter, STEP) };
        let part = self.each(&mut call, ask, None, purge).await?;
        let Part::Behind { last, operation } = part else { return Ok(call.over()) };
        let queue = queue.clone();
        let cursor = BulkCursor::at(queue.clone(), 0, last);
        let filter = BulkFilter { before, state: Some(state), ..of_queue(queue) };
        let action = BulkAction::Delete;
        let rest = Rest { id: operation, filter, action, cursor, limit: None, newest_first: true };
        self.hand_over(call, rest, caller).await
    }

    /// Gives dead jobs another chance: the queue's own, and those that were dead-lettered into it, which return to where they
    /// came from, also where they died again here, unless the caller may not push there. Those past their expiry stay.
    /// With a key, what a step has done is remembered: a repeat goes on where the call was interrupted, and once it is
    /// over changes nothing more.
    pub async fn redrive(
        &self,
        queue: &QueueName,
        range: FinishedRange,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<Affected> {
        let steps = self.steps(key).await?;
        let began = steps.as_ref().map_or_else(|| self.now(), |steps| Ok(steps.began))?;
        let may_return =
            |job: &Job| job.meta.origin.as_ref().is_none_or(|origin| caller.may(Scope::Push, &origin.queue));
        let (within, home) = (Reach::one(queue), caller.reach());
        let redrive = || Operation::Redrive { within: within.clone(), home: home.clone() };
        let died = Span { from: range.from, before: range.to };
        // One that cannot be read stays dead.
        let is_meant = |job: &Job| may_return(job) && died.has_some(job.meta.died_at());
        let operation = |job: &ListedJob| job.as_ref().is_ok_and(is_meant).then(redrive);
        let letters = [Visible::Blocked, Visible::Scheduled, Visible::Ready]
            .map(|state| Filter { dead_lettered: true, ..Filter::state(queue.clone(), state) });
        // The dead last: a letter that dies here meanwhile is still found, and none of what was revived is found again.
        let dead = Filter::state(queue.clone(), Visible::Dead).during(died);
        let mut call = Call::new(BulkAction::Redrive, began, steps).recorded(self.row_of_range(
            "queue.redrive",
            queue,
            range,
        ));
        for filter in letters.into_iter().chain([dead]) {
            let (is_last, ask) = (!filter.dead_lettered, Search::new(filter, STEP));
            let part = self.each(&mut call, ask, range.limit, operation).await?;
            let Part::Behind { last, operation } = part else { continue };
            // An operation has all letters in one part: those that have returned are gone.
            let (part, after) = if is_last { (1, last) } else { (0, None) };
            let cursor = BulkCursor::at(queue.clone(), part, after);
            let filter =
                BulkFilter { died_from: range.from, died_before: range.to, ..of_queue(queue.clone()) };
            let (action, limit) = (BulkAction::Redrive, range.limit);
            let rest = Rest { id: operation, filter, action, cursor, limit, newest_first: false };
            return self.hand_over(call, rest, caller).await;
        }
        Ok(call.over())
    }

    /// Removes every job of the queue, also those that workers hold. Returns how many.
    pub(super) async fn empty(&self, queue: &QueueName) -> Result<u64> {
        self.empty_some(queue, u64::MAX).await
    }

    /// Removes so many jobs of the queue at most. Returns how many.
    pub(super) async fn empty_some(&self, queue: &QueueName, most: u64) -> Result<u64> {
        let within = Reach::one(queue);
        let cancel = |_: &ListedJob| Some(Operation::Cancel { within: within.clone(), force: true });
        let act = Act { what: "queue.empty", on: queue.as_str(), queue: Some(queue), ..Act::default() };
        let mut call = Call::new(BulkAction::Delete, self.now()?, None)
            .recorded(self.counting_row(act))
            .leaving_nothing();
        let ask = Search { with_contents: false, ..Search::new(Filter::all(queue.clone()), STEP) };
        loop {
            let before = call.affected;
            self.each(&mut call, ask.clone(), Some(most), cancel).await?;
            // The end of a batch may have pushed its callback, whose id is older than those of its jobs.
            if call.affected == before {
                return Ok(call.affected);
            }
        }
    }

    /// Applies an operation to each job that is asked for and that there is one for, `limit` of them over the whole call; a job whose
    /// state has changed, or that has left the queue since it was found, is passed over. What a keyed call has done before
    /// is not done again. The row of the act is written with the first step that changes something, and with each further one anew.
    async fn each(
        &self,
        call: &mut Call<'_>,
        mut ask: Search,
        limit: Option<u64>,
        mut operation: impl FnMut(&ListedJob) -> Option<Operation> + Send,
    ) -> Result<Part> {
        let since = self.0.store.term();
        loop {
            let left = call.left(limit);
            if left == 0 {
                return Ok(Part::Over);
            }
            let own = call.next_step();
            let known = match self.before_step(call, own.as_ref(), &ask).await? {
                Some(known) => known,
                None => {
                    // Where the first are not meant, many more may have to be read.
                    let step = if own.is_some() { KEYED_STEP } else { STEP };
                    ask.limit = if ask.after.is_none() { left.min(step) } else { step };
                    let jobs = self.found_bare(&ask, call.affected).await;
                    let jobs = jobs.map_err(|error| error.after(call.affected))?;
                    let (mut changes, mut next) = (Vec::new(), None);
                    for job in &jobs {
                        if changes.len() == left {
                            break;
                        }
                        let id = listed_id(job).clone();
                        next = Some(id.clone());
                        changes.extend(operation(job).map(|operation| Change { id, operation }));
                    }
                    call.scanned += jobs.len();
                    let done = along(call.row(), self.change_step(own.as_ref(), changes, next)).await;
                    done.map_err(|error| error.after(call.affected))?
                }
            };
            let done = match known {
                Remembered::Done(done) => done,
                Remembered::HandedOver { operation } => {
                    return Ok(Part::Behind { last: ask.after, operation });
                }
            };
            call.affected += done.affected;
            ask.after = done.last;
            if ask.after.is_none() {
                if done.affected == 0 && own.is_none() {
                    let confirmed = self.0.store.confirm(since).await;
                    confirmed.map_err(|error| error.after(call.affected))?;
                }
                return Ok(Part::Over);
            }
        }
    }

    /// Returns the next jobs that are asked for: so many as that, all there are, or as many as make a large page in memory.
    pub(super) async fn found(&self, ask: &Search) -> Result<Vec<ListedJob>> {
        let (mut jobs, mut bytes, mut ask) = (Vec::new(), 0, ask.clone());
        loop {
            let found = self.0.store.search(&ask).await?;
            ask.limit -= found.jobs.len().min(ask.limit);
            bytes += found.jobs.iter().map(ListedJob::weight).sum::<usize>();
            jobs.extend(found.jobs);
            ask.after = found.stopped_at;
            if ask.limit == 0 || ask.after.is_none() || bytes >= PAGE_BYTES {
                return Ok(jobs);
            }
        }
    }

    /// The same without payloads and results. Where they are read all the same, so that jobs which cannot be read are known, that is done
    /// in a turn. `affected`: how many jobs the call has affected before.
    async fn found_bare(&self, ask: &Search, affected: u64) -> Result<Vec<ListedJob>> {
        if !ask.with_contents {
            return self.found(ask).await;
        }
        let turn = self.turn_to_go_on(affected).await?;
        let mut jobs = hold::keeping(turn, self.found(ask)).await?;
        for job in &mut jobs {
            match job {
                Ok(job) => (job.payload, job.result) = (Content::null(), None),
                Err(unreadable) => unreadable.remains = None,
            }
        }
        Ok(jobs)
    }

    /// Waits for the turn to read jobs whole, and to push their copies: what is read is in memory until they are stored.
    pub async fn turn_to_copy(&self) -> Result<OwnedSemaphorePermit> {
        let turn = tokio::time::timeout(TURN_WAIT, self.0.copying.clone().acquire_owned()).await;
        turn.ok().and_then(std::result::Result::ok).ok_or(Error::Overloaded)
    }

    /// The same for a call that has affected so many jobs: that it has no turn does not mean then that nothing happened.
    async fn turn_to_go_on(&self, affected: u64) -> Result<OwnedSemaphorePermit> {
        self.turn_to_copy().await.map_err(|error| match affected {
            0 => error,
            _ => StoreError::unavailable("many calls read whole jobs; this one has done a part of it").into(),
        })
    }

    /// Applies the changes of a step that ends at `last`.
    async fn change_step(
        &self,
        own: Option<&CallKey>,
        changes: Vec<Change>,
        last: Option<JobId>,
    ) -> Result<Remembered> {
        if let Some(own) = own {
            return self.apply_step(own, changes, last).await;
        }
        if changes.is_empty() {
            return Ok(Remembered::Done(StepDone { affected: 0, last }));
        }
        let (done, failed) = self.apply_all(changes).await?;
        let affected = done.len() as u64;
        match failed {
            Some(error) => Err(error.after(affected).into()),
            None => Ok(Remembered::Done(StepDone { affected, last })),
        }
    }

    /// Returns those of the jobs whose semaphores are all there: a copy of another one would wait for ever.
    async fn with_semaphores(&self, mut jobs: Vec<Job>) -> Result<Vec<Job>> {
        let unknown = self.unknown_among(jobs.iter().flat_map(|job| &job.meta.semaphores)).await?;
        jobs.retain(|job| job.meta.semaphores.iter().all(|name| !unknown.contains(name)));
        Ok(jobs)
    }

    /// Pushes copies of finished jobs: new ids, no keys; history stays. Jobs with a semaphore that the caller may not use, or that is not there, are left
    /// out. Keys are as in [`redrive`](Self::redrive).
    pub async fn replay(
        &self,
        queue: &QueueName,
        range: FinishedRange,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<Affected> {
        let may_push =
            |job: &Job| job.meta.semaphores.iter().all(|semaphore| caller.reaches_name(semaphore.as_str()));
        let steps = self.steps(key).await?;
        // All that was committed before this call, by whatever server's clock, but not for ever what is committed meanwhile.
        let began = steps.as_ref().map_or_else(|| self.now(), |steps| Ok(steps.began))?;
        let to = range.to.unwrap_or_else(|| began.plus_ms(CLOCKS_DIFFER_MS));
        let done = Span { from: range.from, before: Some(to) };
        let mut ask = Search::new(Filter::state(queue.clone(), Visible::Done).during(done), STEP);
        // What this very call has pushed, and workers have finished since, is not repeated.
        let first = JobId::first_of(began);
        let is_own = |job: &Job| job.meta.replay_of.is_some() && job.meta.id >= first;
        let is_meant = |job: &Job| may_push(job) && !is_own(job);
        let mut call = Call::new(BulkAction::Replay, began, steps).recorded(self.row_of_range(
            "queue.replay",
            queue,
            range,
        ));
        loop {
            ask.limit = call.left(range.limit).min(STEP);
            if ask.limit == 0 {
                return Ok(call.over());
            }
            let own = call.next_step();
            let known = match self.before_step(&mut call, own.as_ref(), &ask).await? {
                Some(known) => known,
                None => {
                    let turn = self.turn_to_go_on(call.affected).await?;
                    let copied = self.copy_found(&ask, own.as_ref(), began, call.row(), &is_meant);
                    let copied = hold::keeping(turn, copied).await;
                    let (scanned, done) = copied.map_err(|error| error.after(call.affected))?;
                    call.scanned += scanned;
                    done
                }
            };
            let done = match known {
                Remembered::Done(done) => done,
                Remembered::HandedOver { operation: id } => {
                    let cursor = BulkCursor::at(queue.clone(), 0, ask.after);
                    let filter = BulkFilter { from: range.from, before: range.to, ..of_queue(queue.clone()) };
                    let (action, limit) = (BulkAction::Replay, range.limit);
                    let rest = Rest { id, filter, action, cursor, limit, newest_first: false };
                    return self.hand_over(call, rest, caller).await;
                }
            };
            call.affected += done.affected;
            ask.after = done.last;
            if ask.after.is_none() {
                return Ok(call.over());
            }
        }
    }

    /// Reads the next jobs of a replay, and pushes copies of those that are meant. Returns how many it has scanned, and what it has done.
    async fn copy_found(
        &self,
        ask: &Search,
        own: Option<&CallKey>,
        began: Timestamp,
        row: Option<Entry>,
        is_meant: impl Fn(&Job) -> bool,
    ) -> Result<(usize, Remembered)> {
        let jobs = self.found(ask).await?;
        let (scanned, next) = (jobs.len(), jobs.last().map(listed_id).cloned());
        let now = self.now()?.max(began);
        let meant: Vec<Job> = jobs.into_iter().flatten().filter(is_meant).collect();
        let originals = self.with_semaphores(meant).await?.into_iter();
        let copies = originals.map(|job| self.copy(job, now)).collect();
        Ok((scanned, along(row, self.copy_step(own, copies, next)).await?))
    }

    /// Pushes the copies of a step that ends at `last`.
    async fn copy_step(
        &self,
        own: Option<&CallKey>,
        copies: Vec<NewJob>,
        last: Option<JobId>,
    ) -> Result<Remembered> {
        if let Some(own) = own {
            return self.push_step(own, copies, last).await;
        }
        let affected = self.push_copies(copies).await?;
        Ok(Remembered::Done(StepDone { affected, last }))
    }

    /// Pushes copies, in transactions with the row of the act. Where there is no room for all of them, the first ones. Returns how many.
    pub(super) async fn push_copies(&self, copies: Vec<NewJob>) -> Result<u64> {
        let mut affected: u64 = 0;
        for mut rest in push::parts(copies) {
            let mut size = rest.len();
            while let Some(first) = rest.first() {
                size = size.min(rest.len());
                let part = rest[..size].to_vec();
                let facts: Vec<_> = part.iter().map(push::facts).collect();
                let first_expiry = part.iter().filter_map(NewJob::expires_at).min();
                match self.0.store.push_all(part, &self.rules(), None).await {
                    Ok(Once::Now(pushed, _)) => {
                        rest.drain(..size);
                        affected += size as u64;
                        let answers = pushed.into_iter().zip(facts);
                        let answers = answers.map(|(pushed, facts)| push::answer(pushed, facts));
                        self.note_stored(first_expiry, &answers.collect::<Vec<_>>());
                    }
                    Ok(Once::Before(_)) => {
                        return Err(StoreError::internal("a push without a key was answered as one").into());
                    }
                    // One of them keeps the others from being stored.
                    Err(Denied::PushRefused(_) | Denied::Store(StoreError::Unreadable(_))) if size > 1 => {
                        size /= 2;
                    }
                    // A copy of what another program spoiled is left out.
                    Err(Denied::Store(StoreError::Unreadable(_))) => drop(rest.remove(0)),
                    Err(denied) => return Err(Error::denied(&first.id, denied).after(affected)),
                }
            }
        }
        Ok(affected)
    }

    fn row_of_range(&self, what: &'static str, queue: &QueueName, range: FinishedRange) -> Option<Entry> {
        let after = shown(&json!({"from": range.from, "to": range.to, "limit": range.limit}));
        self.counting_row(Act { what, on: queue.as_str(), queue: Some(queue), before: None, after })
    }

    pub(super) fn copy(&self, job: Job, now: Timestamp) -> NewJob {
        let (queue, replay_of) = (job.meta.queue.clone(), Some(job.meta.id.clone()));
        NewJob { replay_of, ..NewJob::new(self.0.ids.next(now), queue, JobSpec::again(job), now) }
    }
}

fn of_queue(queue: QueueName) -> BulkFilter {
    BulkFilter { queue: Some(QueuePattern::One(queue)), ..BulkFilter::default() }
}
