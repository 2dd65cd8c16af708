//! What is done to many jobs of a queue at once, in bounded steps: purge, redrive, replay.

use std::collections::HashSet;

use serde_json::json;

use super::audit::{Act, shown};
use super::keyed::{StepDone, Steps};
use super::{CallKey, Error, Queues, Result};
use crate::job::transition::Operation;
use crate::job::{
    Caller, Job, JobId, JobSpec, Meta, NewJob, QueueName, Reach, Scope, Span, State, Timestamp, Visible,
};
use crate::store::audit::along;
use crate::store::{AuditRow, Change, Filter, ListedJob, StoreError, listed_id};

/// How many jobs one step reads and changes.
const STEP: usize = 500;
/// The same for a step of a keyed call: on MongoDB one job that others change stops all of it.
const KEYED_STEP: usize = 50;
/// By how much the estimate of the store's clock of one server is behind that of another at most, in milliseconds.
const CLOCKS_DIFFER_MS: u64 = 5000;

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

impl FinishedRange {
    /// Whether the job died in this time; a dead letter, where it came from.
    fn has_death_of(&self, meta: &Meta) -> bool {
        let died_at = match meta.state {
            State::Dead => meta.finished_at,
            _ => meta.origin.as_ref().map(|origin| origin.at),
        };
        self.from.is_none_or(|from| died_at.is_some_and(|at| at >= from))
            && self.to.is_none_or(|to| died_at.is_some_and(|at| at < to))
    }
}

impl Queues {
    /// Removes the jobs that are in this state, or those of them from before a moment. Returns how many.
    pub async fn purge(&self, queue: &QueueName, state: Visible, before: Option<Timestamp>) -> Result<u64> {
        if state == Visible::Reserved {
            return Err(Error::invalid(
                "/state",
                "must not be reserved: settle or cancel jobs that workers hold",
            ));
        }
        let filter = Filter::state(queue.clone(), state).during(Span { from: None, before });
        let within = Reach::one(queue);
        // Of each group one job waits to be delivered. Another one was blocked by it until it was purged.
        let (waits, mut groups) = (state.stored() == State::Ready, HashSet::new());
        let mut was_blocked = move |meta: &Meta| {
            let group = meta.group.as_ref().filter(|_| waits && meta.turn.is_some());
            group.is_some_and(|group| !groups.insert(group.clone()))
        };
        let purge = |job: &ListedJob| {
            let stays = job.as_ref().is_ok_and(|job| was_blocked(&job.meta));
            (!stays).then(|| Operation::Purge { within: within.clone(), state })
        };
        let after = shown(&json!({"state": state, "before": before}));
        let row = self.row(Act {
            what: "queue.purge",
            on: queue.as_str(),
            queue: Some(queue),
            before: None,
            after,
        });
        self.each(&filter, None, purge, None, row).await
    }

    /// Gives dead jobs another chance: the queue's own, and those that were dead-lettered into it, which return to where they
    /// came from, also where they died again here, unless the caller may not push there. Those past their expiry stay.
    /// Returns how many. With a key, what a step has done is remembered: a repeat goes on where the call was interrupted, and once it is
    /// over changes nothing more.
    pub async fn redrive(
        &self,
        queue: &QueueName,
        range: FinishedRange,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<u64> {
        let mut steps = self.steps(key).await?;
        let may_return =
            |job: &Job| job.meta.origin.as_ref().is_none_or(|origin| caller.may(Scope::Push, &origin.queue));
        let (within, home) = (Reach::one(queue), caller.reach());
        let redrive = || Operation::Redrive { within: within.clone(), home: home.clone() };
        // One that cannot be read stays dead.
        let is_meant = |job: &Job| may_return(job) && range.has_death_of(&job.meta);
        let operation = |job: &ListedJob| job.as_ref().is_ok_and(is_meant).then(redrive);
        let letters = [Visible::Blocked, Visible::Scheduled, Visible::Ready]
            .map(|state| Filter { dead_lettered: true, ..Filter::state(queue.clone(), state) });
        // The dead last: a letter that dies here meanwhile is still found, and none of what was revived is found again.
        let died = Span { from: range.from, before: range.to };
        let dead = Filter::state(queue.clone(), Visible::Dead).during(died);
        let mut affected = 0;
        let act = Act { what: "queue.redrive", on: queue.as_str(), queue: Some(queue), ..Act::default() };
        let row = self.row(act);
        for filter in letters.into_iter().chain([dead]) {
            let left = range.limit.map(|limit| limit.saturating_sub(affected));
            let row = row.clone().map(|row| AuditRow { affected: Some(affected), ..row });
            let more = self.each(&filter, left, operation, steps.as_mut(), row).await;
            affected += more.map_err(|error| error.after(affected))?;
        }
        Ok(affected)
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
        self.each(&Filter::all(queue.clone()), Some(most), cancel, None, self.row(act)).await
    }

    /// Applies an operation to each job that the filter means and that there is one for; a job whose state has changed,
    /// or that has left the queue since it was found, is passed over. Where `steps` are those of a keyed call, what it has done before
    /// is not done again. The row of the act is written with the first step that changes something, and with each further one anew.
    async fn each(
        &self,
        filter: &Filter,
        limit: Option<u64>,
        mut operation: impl FnMut(&ListedJob) -> Option<Operation> + Send,
        mut steps: Option<&mut Steps<'_>>,
        row: Option<AuditRow>,
    ) -> Result<u64> {
        let mut affected = 0;
        let mut last: Option<JobId> = None;
        loop {
            let left = limit.map_or(u64::MAX, |limit| limit.saturating_sub(affected));
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            if left == 0 {
                return Ok(affected);
            }
            let own = steps.as_mut().map(|steps| steps.next());
            let done = match self.step_before(own.as_ref()).await? {
                Some(done) => done,
                None => {
                    // Where the first are not meant, many more may have to be read.
                    let step = if own.is_some() { KEYED_STEP } else { STEP };
                    let most = if last.is_none() { left.min(step) } else { step };
                    let jobs = self.0.store.find(filter, last.as_ref(), most).await?;
                    let (mut changes, mut next) = (Vec::new(), None);
                    for job in &jobs {
                        if changes.len() == left {
                            break;
                        }
                        let id = listed_id(job).clone();
                        next = Some(id.clone());
                        changes.extend(operation(job).map(|operation| Change { id, operation }));
                    }
                    let concerned = affected + changes.len() as u64;
                    let row = row.clone().map(|row| {
                        let affected = Some(row.affected.unwrap_or(0) + concerned);
                        AuditRow { affected, ..row }
                    });
                    let done = along(row, self.change_step(own.as_ref(), changes, next)).await;
                    done.map_err(|error| error.after(affected))?
                }
            };
            affected += done.affected;
            last = done.last;
            if last.is_none() {
                return Ok(affected);
            }
        }
    }

    /// Applies the changes of a step that ends at `last`.
    async fn change_step(
        &self,
        own: Option<&CallKey>,
        changes: Vec<Change>,
        last: Option<JobId>,
    ) -> Result<StepDone> {
        if let Some(own) = own {
            return self.apply_step(own, changes, last).await;
        }
        if changes.is_empty() {
            return Ok(StepDone { affected: 0, last });
        }
        let (done, failed) = self.apply_all(changes).await?;
        let affected = done.len() as u64;
        failed.map_or(Ok(StepDone { affected, last }), |error| Err(error.after(affected).into()))
    }

    /// Pushes copies of finished jobs: new ids, no keys; history stays. Jobs with a semaphore that the caller may not use are left
    /// out. Returns how many. Keys are as in [`redrive`](Self::redrive).
    pub async fn replay(
        &self,
        queue: &QueueName,
        range: FinishedRange,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<u64> {
        let may_push =
            |job: &Job| job.meta.semaphores.iter().all(|semaphore| caller.reaches_name(semaphore.as_str()));
        let mut steps = self.steps(key).await?;
        // All that was committed before this call, by whatever server's clock, but not for ever what is committed meanwhile.
        let began = steps.as_ref().map_or_else(|| self.now(), |steps| Ok(steps.began))?;
        let to = range.to.unwrap_or_else(|| began.plus_ms(CLOCKS_DIFFER_MS));
        let done = Span { from: range.from, before: Some(to) };
        let filter = Filter::state(queue.clone(), Visible::Done).during(done);
        // What this very call has pushed, and workers have finished since, is not repeated.
        let first = JobId::first_of(began);
        let is_own = |job: &Job| job.meta.replay_of.is_some() && job.meta.id >= first;
        let mut affected = 0;
        let mut last: Option<JobId> = None;
        loop {
            let left = range.limit.map_or(u64::MAX, |limit| limit.saturating_sub(affected));
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(STEP);
            if most == 0 {
                return Ok(affected);
            }
            let own = steps.as_mut().map(Steps::next);
            let done = match self.step_before(own.as_ref()).await? {
                Some(done) => done,
                None => {
                    let jobs = self.0.store.find(&filter, last.as_ref(), most).await?;
                    let (next, now) = (jobs.last().map(listed_id).cloned(), self.now()?.max(began));
                    let originals = jobs.into_iter().flatten().filter(|job| may_push(job) && !is_own(job));
                    let copies = originals.map(|job| self.copy(job, now)).collect();
                    let done = self.copy_step(own.as_ref(), copies, next).await;
                    done.map_err(|error| error.after(affected))?
                }
            };
            affected += done.affected;
            last = done.last;
            if last.is_none() {
                return Ok(affected);
            }
        }
    }

    /// Pushes the copies of a step that ends at `last`.
    async fn copy_step(
        &self,
        own: Option<&CallKey>,
        copies: Vec<NewJob>,
        last: Option<JobId>,
    ) -> Result<StepDone> {
        if let Some(own) = own {
            return self.push_step(own, copies, last).await;
        }
        let pushed = self.push_jobs(copies).await;
        let affected = pushed.iter().filter(|pushed| pushed.is_ok()).count() as u64;
        // A copy of what another program spoiled is left out.
        let is_ours = |error: &Error| !matches!(error, Error::Store(StoreError::Unreadable(_)));
        match pushed.into_iter().filter_map(Result::err).find(is_ours) {
            Some(error) => Err(error.after(affected)),
            None => Ok(StepDone { affected, last }),
        }
    }

    /// Returns what a step of a keyed call came to before, if it did.
    async fn step_before(&self, own: Option<&CallKey>) -> Result<Option<StepDone>> {
        match own {
            Some(own) => self.step_recalled(own).await,
            None => Ok(None),
        }
    }

    pub(super) fn copy(&self, job: Job, now: Timestamp) -> NewJob {
        let (queue, replay_of) = (job.meta.queue.clone(), Some(job.meta.id.clone()));
        NewJob { replay_of, ..NewJob::new(self.0.ids.next(now), queue, JobSpec::again(job), now) }
    }
}
