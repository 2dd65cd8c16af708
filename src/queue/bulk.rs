//! What is done to many jobs of a queue at once, in bounded steps: purge, redrive, replay.

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::keyed::{StepDone, Steps};
use super::{CallKey, Error, Queues, Result};
use crate::job::transition::Operation;
use crate::job::{Caller, Job, JobId, JobSpec, NewJob, QueueName, Reach, Scope, Timestamp, Visible};
use crate::store::{Change, Filter, ListedJob, StoreError, listed_id};

/// How many jobs one step reads and changes.
const STEP: usize = 500;

/// Which finished jobs to repeat.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplayRange {
    /// Finished at this moment or later.
    pub from: Option<Timestamp>,
    /// Finished before this moment.
    pub to: Option<Timestamp>,
    /// The most jobs to repeat.
    pub limit: Option<u64>,
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
        let filter = Filter { before, ..Filter::state(queue.clone(), state) };
        let within = Reach::one(queue);
        self.each(&filter, None, |_| Some(Operation::Purge { within: within.clone(), state })).await
    }

    /// Gives dead jobs another chance: the queue's own, and those that were dead-lettered into it, which
    /// return to where they came from, unless the caller may not push there. Returns how many.
    /// With a key, what a step has done is remembered: a repeat goes on where the call was interrupted, and once it is over
    /// changes nothing more.
    pub async fn redrive(
        &self,
        queue: &QueueName,
        limit: Option<u64>,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<u64> {
        let mut steps = self.steps(key).await?;
        let may_return =
            |job: &Job| job.meta.origin.as_ref().is_none_or(|origin| caller.may(Scope::Push, &origin.queue));
        let (within, home) = (Reach::one(queue), caller.reach());
        let redrive = || Operation::Redrive { within: within.clone(), home: home.clone() };
        // One that cannot be read stays dead.
        let operation = |job: &ListedJob| job.as_ref().is_ok_and(may_return).then(redrive);
        let dead = Filter::state(queue.clone(), Visible::Dead);
        let mut affected = self.each_step(&dead, limit, operation, steps.as_mut()).await?;
        for state in [Visible::Ready, Visible::Scheduled, Visible::Blocked] {
            let left = limit.map(|limit| limit.saturating_sub(affected));
            let others = Filter { dead_lettered: true, ..Filter::state(queue.clone(), state) };
            let more = self.each_step(&others, left, operation, steps.as_mut()).await;
            affected += more.map_err(|error| error.after(affected))?;
        }
        Ok(affected)
    }

    /// Removes every job of the queue, also those that workers hold. Returns how many.
    pub(super) async fn empty(&self, queue: &QueueName) -> Result<u64> {
        let within = Reach::one(queue);
        let cancel = |_: &ListedJob| Some(Operation::Cancel { within: within.clone(), force: true });
        self.each(&Filter::all(queue.clone()), None, cancel).await
    }

    /// Applies an operation to each job that the filter means and that there is one for; a job whose state has changed,
    /// or that has left the queue since it was found, is passed over.
    async fn each(
        &self,
        filter: &Filter,
        limit: Option<u64>,
        operation: impl Fn(&ListedJob) -> Option<Operation> + Send + Sync,
    ) -> Result<u64> {
        self.each_step(filter, limit, operation, None).await
    }

    /// The same, remembered step by step where `steps` are those of a keyed call.
    async fn each_step(
        &self,
        filter: &Filter,
        limit: Option<u64>,
        operation: impl Fn(&ListedJob) -> Option<Operation> + Send + Sync,
        steps: Option<&mut Steps<'_>>,
    ) -> Result<u64> {
        let operation = &operation;
        let work = |own: Option<CallKey>, last: Option<JobId>, most: usize| {
            let step = async move {
                let jobs = self.0.store.find(filter, last.as_ref(), most).await?;
                let last = jobs.last().map(listed_id).cloned();
                let change =
                    |job: &ListedJob| Some(Change { id: listed_id(job).clone(), operation: operation(job)? });
                let changes: Vec<Change> = jobs.iter().filter_map(change).collect();
                if let Some(own) = own {
                    return self.apply_step(&own, changes, last).await;
                }
                if changes.is_empty() {
                    return Ok(StepDone { affected: 0, last });
                }
                let (done, failed) = self.apply_all(changes).await?;
                let affected = done.len() as u64;
                failed.map_or(Ok(StepDone { affected, last }), |error| Err(error.after(affected).into()))
            };
            step.boxed()
        };
        self.in_steps(limit, steps, work).await
    }

    /// Does something to jobs in steps of some at most, each behind the last job of the one before, until one has none. What a
    /// keyed call has done before is not done again.
    async fn in_steps<'a>(
        &self,
        limit: Option<u64>,
        mut steps: Option<&mut Steps<'_>>,
        work: impl Fn(Option<CallKey>, Option<JobId>, usize) -> BoxFuture<'a, Result<StepDone>> + Send,
    ) -> Result<u64> {
        let mut affected = 0;
        let mut last: Option<JobId> = None;
        loop {
            let left = limit.map_or(u64::MAX, |limit| limit - affected);
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(STEP);
            if most == 0 {
                return Ok(affected);
            }
            let own = steps.as_mut().map(|steps| steps.next());
            let before = match &own {
                Some(own) => self.step_recalled(own).await?,
                None => None,
            };
            let done = match before {
                Some(done) => done,
                None => work(own, last, most).await.map_err(|error| error.after(affected))?,
            };
            affected += done.affected;
            last = done.last;
            if last.is_none() {
                return Ok(affected);
            }
        }
    }

    /// Pushes copies of finished jobs: new ids, no keys; history stays. Jobs with a semaphore that the caller may not use are left
    /// out. Returns how many.
    pub async fn replay(
        &self,
        queue: &QueueName,
        range: ReplayRange,
        caller: &Caller,
        key: Option<&CallKey>,
    ) -> Result<u64> {
        let may_push =
            |job: &Job| job.meta.semaphores.iter().all(|semaphore| caller.reaches_name(semaphore.as_str()));
        // What this very call finishes again must not be replayed again.
        let mut to = range.to.unwrap_or(self.now()?);
        let mut steps = self.steps(key).await?;
        if let Some(steps) = &mut steps {
            // Neither must a repeat, which goes on where this call may be interrupted.
            let first = self.remember(&steps.next(), to.millis().to_string()).await?;
            to = first.parse().map_or(to, Timestamp::from_millis);
        }
        let filter =
            Filter { from: range.from, before: Some(to), ..Filter::state(queue.clone(), Visible::Done) };
        let (filter, may_push) = (&filter, &may_push);
        let work = |own: Option<CallKey>, last: Option<JobId>, most: usize| {
            let step = async move {
                let jobs = self.0.store.find(filter, last.as_ref(), most).await?;
                let (last, now) = (jobs.last().map(listed_id).cloned(), self.now()?);
                let copies =
                    jobs.into_iter().flatten().filter(may_push).map(|job| self.copy(job, now)).collect();
                if let Some(own) = own {
                    return self.push_step(&own, copies, last).await;
                }
                let pushed = self.push_jobs(copies).await;
                let affected = pushed.iter().filter(|pushed| pushed.is_ok()).count() as u64;
                // A copy of what another program spoiled is left out.
                let is_own = |error: &Error| !matches!(error, Error::Store(StoreError::Unreadable(_)));
                match pushed.into_iter().filter_map(Result::err).find(is_own) {
                    Some(error) => Err(error.after(affected)),
                    None => Ok(StepDone { affected, last }),
                }
            };
            step.boxed()
        };
        self.in_steps(range.limit, steps.as_mut(), work).await
    }

    /// Returns the steps of a call, if it is keyed, once there is room for its key.
    async fn steps<'k>(&self, key: Option<&'k CallKey>) -> Result<Option<Steps<'k>>> {
        let Some(key) = key else { return Ok(None) };
        self.admit_request(&key.id).await?.keep_all();
        Ok(Some(Steps::of(key)))
    }

    fn copy(&self, job: Job, now: Timestamp) -> NewJob {
        let (queue, replay_of) = (job.meta.queue.clone(), Some(job.meta.id.clone()));
        NewJob { replay_of, ..NewJob::new(self.0.ids.next(now), queue, JobSpec::again(job), now) }
    }
}
