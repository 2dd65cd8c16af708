//! What is done to many jobs of a queue at once, in bounded steps: purge, redrive, replay.

use super::{Error, Queues, Result};
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
    pub async fn redrive(&self, queue: &QueueName, limit: Option<u64>, caller: &Caller) -> Result<u64> {
        let may_return =
            |job: &Job| job.meta.origin.as_ref().is_none_or(|origin| caller.may(Scope::Push, &origin.queue));
        let (within, home) = (Reach::one(queue), caller.reach());
        let redrive = || Operation::Redrive { within: within.clone(), home: home.clone() };
        // One that cannot be read stays dead.
        let operation = |job: &ListedJob| job.as_ref().is_ok_and(may_return).then(redrive);
        let mut affected = self.each(&Filter::state(queue.clone(), Visible::Dead), limit, operation).await?;
        for state in [Visible::Ready, Visible::Scheduled, Visible::Blocked] {
            let left = limit.map(|limit| limit.saturating_sub(affected));
            let others = Filter { dead_lettered: true, ..Filter::state(queue.clone(), state) };
            let more = self.each(&others, left, operation).await;
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
        operation: impl Fn(&ListedJob) -> Option<Operation> + Send,
    ) -> Result<u64> {
        let mut affected = 0;
        let mut last: Option<JobId> = None;
        loop {
            let left = limit.map_or(u64::MAX, |limit| limit - affected);
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(STEP);
            if step == 0 {
                return Ok(affected);
            }
            let jobs = self.0.store.find(filter, last.as_ref(), step).await?;
            let Some(job) = jobs.last() else {
                return Ok(affected);
            };
            last = Some(listed_id(job).clone());
            let changes: Vec<Change> = jobs
                .iter()
                .filter_map(|job| Some(Change { id: listed_id(job).clone(), operation: operation(job)? }))
                .collect();
            if changes.is_empty() {
                continue;
            }
            let (done, failed) = self.apply_all(changes).await?;
            affected += done.len() as u64;
            if let Some(error) = failed {
                return Err(error.after(affected).into());
            }
        }
    }

    /// Pushes copies of finished jobs: new ids, no keys; history stays. Jobs with a semaphore that the caller may not use are left
    /// out. Returns how many.
    pub async fn replay(&self, queue: &QueueName, range: ReplayRange, caller: &Caller) -> Result<u64> {
        let may_push =
            |job: &Job| job.meta.semaphores.iter().all(|semaphore| caller.reaches_name(semaphore.as_str()));
        // What this very call finishes again must not be replayed again.
        let to = range.to.unwrap_or(self.now()?);
        let filter =
            Filter { from: range.from, before: Some(to), ..Filter::state(queue.clone(), Visible::Done) };
        let mut affected = 0;
        let mut last: Option<JobId> = None;
        loop {
            let left = range.limit.map_or(u64::MAX, |limit| limit - affected);
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(STEP);
            if step == 0 {
                return Ok(affected);
            }
            let jobs = self.0.store.find(&filter, last.as_ref(), step).await?;
            let Some(job) = jobs.last() else {
                return Ok(affected);
            };
            last = Some(listed_id(job).clone());
            let now = self.now()?;
            let copies = jobs.into_iter().flatten().filter(may_push).map(|job| self.copy(job, now)).collect();
            let pushed = self.push_jobs(copies).await;
            affected += pushed.iter().filter(|pushed| pushed.is_ok()).count() as u64;
            // A copy of what another program spoiled is left out.
            let is_own = |error: &Error| !matches!(error, Error::Store(StoreError::Unreadable(_)));
            if let Some(error) = pushed.into_iter().filter_map(Result::err).find(is_own) {
                return Err(error.after(affected));
            }
        }
    }

    fn copy(&self, job: Job, now: Timestamp) -> NewJob {
        let (queue, replay_of) = (job.meta.queue.clone(), Some(job.meta.id.clone()));
        NewJob { replay_of, ..NewJob::new(self.0.ids.next(now), queue, JobSpec::again(job), now) }
    }
}
