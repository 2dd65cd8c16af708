//! Reading jobs, changing them, cancelling them, browsing a queue.

use futures::FutureExt as _;

use super::{Error, Page, Queues, Result};
use crate::job::spec::check_size;
use crate::job::state::Verb;
use crate::job::transition::{Operation, Outcome};
use crate::job::{Job, JobId, Payload, Reach, Timestamp};
use crate::store::{Applied, Cause, Change, Filter, ListedJob, StoreError, listed_id};

/// What to change of a job that is not reserved.
#[derive(Debug, Clone, Default)]
pub struct Edit {
    /// Higher is delivered first.
    pub priority: Option<i32>,
    /// When it is due.
    pub run_at: Option<Timestamp>,
    /// What is to be done.
    pub payload: Option<Payload>,
}

/// What a cancel has led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// The job has left.
    Removed,
    /// A worker holds the job and is asked to stop; rolled back or expired, the job leaves.
    Requested,
}

impl Queues {
    /// Returns the job.
    pub async fn job(&self, id: &JobId) -> Result<Job> {
        let found = self.0.store.get(std::slice::from_ref(id)).await?.into_iter().next().flatten();
        let found = found.ok_or_else(|| Error::UnknownJob(id.clone()))?;
        found.map_err(|(_, why)| StoreError::Unreadable(Cause(why.into())).into())
    }

    /// Changes a job within these queues that is not reserved, done or dead, and returns what it is then.
    pub async fn edit(&self, id: &JobId, edit: Edit, within: &Reach) -> Result<Job> {
        if let Some(payload) = &edit.payload {
            check_size(payload, "/payload", self.options().payload_bytes)?;
        }
        let Edit { priority, run_at, payload } = edit;
        let within = within.clone();
        self.apply_one(id, Operation::Edit { within: within.clone(), priority, run_at, payload }).await?;
        // The job may have ended, or left, since: "no such job" would say that nothing was changed.
        let ended = || StoreError::unavailable("the job was changed, and ended or left before it was read");
        match self.job(id).await {
            Ok(job) if within.has(&job.meta.queue) => Ok(job),
            Ok(_) | Err(Error::UnknownJob(_)) => Err(ended().into()),
            Err(error) => Err(error),
        }
    }

    /// Removes a job within these queues, or asks its holder to stop; `force` removes it from its holder.
    pub async fn cancel(&self, id: &JobId, force: bool, within: &Reach) -> Result<Cancelled> {
        match self.apply_one(id, Operation::Cancel { within: within.clone(), force }).await?.outcome {
            Outcome::Held { .. } => Ok(Cancelled::Requested),
            _ => Ok(Cancelled::Removed),
        }
    }

    async fn apply_one(&self, id: &JobId, operation: Operation) -> Result<Applied> {
        let change = Change { id: id.clone(), operation };
        let verb: Verb = change.operation.verb();
        let applied = self.0.store.apply(vec![change], &self.rules()).await;
        let lost = || Err(StoreError::internal("a change was left unanswered").into());
        let applied =
            applied.into_iter().next().unwrap_or_else(lost).map_err(|denied| Error::denied(id, denied))?;
        let now = self.now()?;
        self.note(verb, &applied, now, &mut self.meter().notes());
        Ok(applied)
    }

    /// Returns the jobs of a queue, oldest first, also those that cannot be read.
    pub async fn browse(
        &self,
        filter: &Filter,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Page<ListedJob, JobId>> {
        let store = &self.0.store;
        let read = |after: Option<JobId>, limit| {
            async move { store.find(filter, after.as_ref(), limit).await }.boxed()
        };
        self.page(after, limit, |job: &ListedJob| listed_id(job).clone(), |_| true, read).await
    }
}
