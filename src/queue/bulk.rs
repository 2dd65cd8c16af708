//! What is done to many jobs of a queue at once, in bounded steps: purge, redrive, replay.

use super::{Error, Queues, Result};
use crate::job::transition::Operation;
use crate::job::{Caller, Job, JobId, JobSpec, NewJob, QueueName, Scope, Timestamp, Visible};
use crate::store::{Change, Denied, Filter, ListedJob, StoreError, listed_id};

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
        self.each(&filter, None, |_| Some(Operation::Purge { state })).await
    }

    /// Gives dead jobs another chance: the queue's own, and those that were dead-lettered into it, which
    /// return to where they came from, unless the caller may not push there. Returns how many.
    pub async fn redrive(&self, queue: &QueueName, limit: Option<u64>, caller: &Caller) -> Result<u64> {
        let may_return =
            |job: &Job| job.meta.origin.as_ref().is_none_or(|origin| caller.may(Scope::Push, &origin.queue));
        // One that cannot be read stays dead.
        let operation = |job: &ListedJob| {
            let is_meant = job.as_ref().is_ok_and(may_return);
            is_meant.then(|| Operation::Redrive { queue: queue.clone() })
        };
        let mut affected = self.each(&Filter::state(queue.clone(), Visible::Dead), limit, operation).await?;
        for state in [Visible::Ready, Visible::Scheduled, Visible::Blocked] {
            let left = limit.map(|limit| limit.saturating_sub(affected));
            let others = Filter { dead_lettered: true, ..Filter::state(queue.clone(), state) };
            affected += self.each(&others, left, operation).await?;
        }
        Ok(affected)
    }

    /// Removes every job of the queue, also those that workers hold. Returns how many.
    pub(super) async fn empty(&self, queue: &QueueName) -> Result<u64> {
        self.each(&Filter::all(queue.clone()), None, |_| Some(Operation::Cancel { force: true })).await
    }

    /// Applies an operation to each job that the filter means and that there is one for; a job whose state has changed is
    /// passed over.
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
            let verb = changes.first().map(|change| change.operation.verb());
            let now = self.now()?;
            let applied = self.0.store.apply(changes, &self.rules()).await;
            let mut notes = self.meter().notes();
            for applied in applied {
                match (applied, verb) {
                    (Ok(applied), Some(verb)) => {
                        affected += 1;
                        self.note(verb, &applied, now, &mut notes);
                    }
                    (Err(Denied::Store(StoreError::Unreadable(_))), _) => {} // it concerns no other
                    (Err(Denied::Store(error)), _) => return Err(error.after(affected).into()),
                    _ => {}
                }
            }
        }
    }

    /// Pushes copies of finished jobs: new ids, no keys; history stays. Returns how many.
    pub async fn replay(&self, queue: &QueueName, range: ReplayRange) -> Result<u64> {
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
            let copies = jobs.into_iter().flatten().map(|job| self.copy(job, now)).collect();
            for pushed in self.push_jobs(copies).await {
                match pushed {
                    Err(Error::Store(StoreError::Unreadable(_))) => {} // another program wrote what it is a copy of
                    pushed => {
                        pushed.map_err(|error| error.after(affected))?;
                        affected += 1;
                    }
                }
            }
        }
    }

    fn copy(&self, job: Job, now: Timestamp) -> NewJob {
        let (queue, replay_of) = (job.meta.queue.clone(), Some(job.meta.id.clone()));
        NewJob { replay_of, ..NewJob::new(self.0.ids.next(now), queue, JobSpec::again(job), now) }
    }
}
