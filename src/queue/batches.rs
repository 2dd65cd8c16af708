//! Batches: jobs that belong together, and a job at their end.

use futures::FutureExt as _;

use super::audit::Act;
use super::meter::{Event, Notes};
use super::push::{Beside, NewPush};
use super::quotas::Places;
use super::semaphores::check_known;
use super::{CallKey, CallOutcome, Error, Page, Queues, Result, pages};
use crate::faults;
use crate::job::spec::check_year;
use crate::job::transition::{Operation, Outcome};
use crate::job::{
    ApiKeyId, Batch, BatchId, BatchResult, JobId, JobSpec, NewJob, OnFinished, QueueName, Reach, Rules,
};
use crate::store::audit::along;
use crate::store::{
    self, Answering, BatchChange, BatchChanged, BatchDenied, CalledBack, Change, Keyed, Named, Once,
    PushRefused, StoreError,
};
use crate::telemetry::trace;

/// The most jobs that one call adds to a batch.
pub const BATCH_MAX: usize = 1000;
/// How many jobs one step of a cancel reads and takes away.
const STEP: usize = 500;

/// How far a batch has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchState {
    /// It takes more jobs.
    Open,
    /// It is sealed, and some of its jobs are unfinished.
    Sealed,
    /// It is sealed, and all of its jobs have finished.
    Finished,
}

impl BatchState {
    fn of(batch: &Batch) -> Self {
        match (batch.finished_at, batch.sealed) {
            (Some(_), _) => Self::Finished,
            (None, true) => Self::Sealed,
            (None, false) => Self::Open,
        }
    }
}

/// A batch to be created.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// Its first jobs.
    pub jobs: Vec<(QueueName, NewPush)>,
    /// What is pushed when the last of its jobs is finished.
    pub on_finished: Option<OnFinished>,
    /// Whether these are all of its jobs.
    pub sealed: bool,
    /// The API key that creates it, where that is for some queues only.
    pub owner: Option<ApiKeyId>,
}

impl Queues {
    /// Stores a batch with its first jobs: all of that, or nothing.
    pub async fn create_batch(&self, new: NewBatch) -> Result<BatchChanged> {
        not_keyed(self.create_batch_by(new, None).await?)
    }

    /// The same for a keyed call.
    pub async fn create_batch_once(
        &self,
        new: NewBatch,
        key: &CallKey,
        answer: Answering<BatchChanged>,
    ) -> Result<CallOutcome<BatchChanged>> {
        let place = self.admit_request(&key.id).await?;
        self.create_batch_by(new, Some((self.keyed(key, answer)?, place))).await
    }

    async fn create_batch_by(
        &self,
        new: NewBatch,
        keyed: Option<KeyedBatch>,
    ) -> Result<CallOutcome<BatchChanged>> {
        let now = self.now()?;
        let id = self.0.ids.next_batch(now);
        self.check_jobs(&new.jobs)?;
        if let Some(on_finished) = &new.on_finished {
            self.check_on_finished(on_finished).await.map_err(|error| error.under("/on_finished"))?;
        }
        let (jobs, places) = self.batch_jobs(&id, new.jobs, new.on_finished.as_ref()).await?;
        let mut on_finished = new.on_finished;
        if let (Some(on_finished), Some(trace)) = (&mut on_finished, trace::carried()) {
            trace.carry(&mut on_finished.headers);
        }
        let batch = Batch {
            owner: new.owner,
            ..Batch::new(id.clone(), self.0.ids.next(now), on_finished, new.sealed, now)
        };
        let (keyed, place) = keyed.unzip();
        self.change_batch(id, jobs, (places, place), move |store, jobs, rules| {
            Box::pin(async move {
                match keyed {
                    Some(keyed) => {
                        let create = BatchChange::Create(Box::new(batch));
                        store.change_batch_once(create, jobs, &rules, keyed).await
                    }
                    None => Ok(Once::Now(store.create_batch(batch, jobs, &rules).await?, None)),
                }
            })
        })
        .await
    }

    /// Adds jobs to a batch that is not sealed: all of them, or none.
    pub async fn add_to_batch(&self, id: &BatchId, jobs: Vec<(QueueName, NewPush)>) -> Result<BatchChanged> {
        not_keyed(self.add_to_batch_by(id, jobs, None).await?)
    }

    /// The same for a keyed call.
    pub async fn add_to_batch_once(
        &self,
        id: &BatchId,
        jobs: Vec<(QueueName, NewPush)>,
        key: &CallKey,
        answer: Answering<BatchChanged>,
    ) -> Result<CallOutcome<BatchChanged>> {
        let place = self.admit_request(&key.id).await?;
        self.add_to_batch_by(id, jobs, Some((self.keyed(key, answer)?, place))).await
    }

    async fn add_to_batch_by(
        &self,
        id: &BatchId,
        jobs: Vec<(QueueName, NewPush)>,
        keyed: Option<KeyedBatch>,
    ) -> Result<CallOutcome<BatchChanged>> {
        if jobs.is_empty() {
            return Err(Error::invalid("/jobs", "must be 1 to 1000 jobs"));
        }
        self.check_jobs(&jobs)?;
        let (jobs, places) = self.batch_jobs(id, jobs, None).await?;
        let batch = id.clone();
        let (keyed, place) = keyed.unzip();
        self.change_batch(id.clone(), jobs, (places, place), move |store, jobs, rules| {
            Box::pin(async move {
                match keyed {
                    Some(keyed) => {
                        store.change_batch_once(BatchChange::Add(batch), jobs, &rules, keyed).await
                    }
                    None => Ok(Once::Now(store.add_to_batch(&batch, jobs, &rules).await?, None)),
                }
            })
        })
        .await
    }

    /// Takes no more jobs into a batch; where none is pending, it ends. Sealing again changes nothing.
    pub async fn seal_batch(&self, id: &BatchId) -> Result<Batch> {
        let batch = id.clone();
        let none = self.no_places(Named::Queues);
        let sealed = self.change_batch(id.clone(), Vec::new(), (none, None), move |store, _, rules| {
            Box::pin(async move { Ok(Once::Now(store.seal_batch(&batch, &rules).await?, None)) })
        });
        Ok(not_keyed(sealed.await?)?.batch)
    }

    /// Returns the batch.
    pub async fn batch(&self, id: &BatchId) -> Result<Batch> {
        self.0.store.batch(id).await?.ok_or_else(|| Error::UnknownBatch(id.clone()))
    }

    /// Returns the batches by id: only those in this state, if one is given, and only those of this API key, if one is.
    pub async fn batches(
        &self,
        state: Option<BatchState>,
        owner: Option<&ApiKeyId>,
        after: Option<&BatchId>,
        limit: usize,
    ) -> Result<Page<Batch, BatchId>> {
        let store = &self.0.store;
        let read =
            |after: Option<BatchId>, limit| async move { store.batches(after.as_ref(), limit).await }.boxed();
        let shown = |batch: &Batch| {
            owner.is_none_or(|owner| batch.owner.as_ref() == Some(owner))
                && state.is_none_or(|state| BatchState::of(batch) == state)
        };
        self.page(after, limit, Some(pages::TIME), |batch: &Batch| batch.id.clone(), shown, read).await
    }

    /// Returns the results of the jobs of a batch that have finished within these queues, by their ids.
    pub async fn batch_results(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<BatchResult, JobId>> {
        self.batch(id).await?;
        let store = &self.0.store;
        let read = |after: Option<JobId>, limit| {
            async move { store.batch_results(id, after.as_ref(), limit).await }.boxed()
        };
        let shown = |result: &BatchResult| within.has(&result.queue);
        self.page(after, limit, None, |result: &BatchResult| result.id.clone(), shown, read).await
    }

    /// Seals a batch and removes those of its jobs within these queues that are not reserved; those that are, are asked to
    /// stop. Returns how many were removed.
    pub async fn cancel_batch(&self, id: &BatchId, within: &Reach) -> Result<u64> {
        let row = self.counting_row(Act { what: "batch.cancel", on: id.as_str(), ..Act::default() });
        self.seal_batch(id).await?;
        faults::point("batch.sealed").await;
        along(row, self.cancel_sealed(id, within)).await.map_err(|error| error.after(1)) // it is sealed
    }

    async fn cancel_sealed(&self, id: &BatchId, within: &Reach) -> Result<u64> {
        let (mut affected, mut last): (u64, Option<JobId>) = (0, None);
        let since = self.0.store.term();
        loop {
            let ids = self.0.store.unfinished_in_batch(id, last.as_ref(), STEP).await?;
            let Some(end) = ids.last() else {
                self.0.store.confirm(since).await?;
                return Ok(affected);
            };
            last = Some(end.clone());
            faults::point("batch.found").await;
            // A job that has ended since then stays in the history, or among the dead.
            let cancel = |job| {
                let operation = Operation::CancelOfBatch { within: within.clone(), batch: id.clone() };
                Change { id: job, operation }
            };
            let (done, failed) = self.apply_all(ids.into_iter().map(cancel).collect()).await?;
            affected += done.iter().filter(|applied| applied.outcome == Outcome::Removed).count() as u64;
            if let Some(error) = failed {
                return Err(error.into());
            }
        }
    }

    async fn check_on_finished(&self, on_finished: &OnFinished) -> Result<()> {
        let spec = JobSpec::from(on_finished.clone());
        spec.check(self.options().payload_bytes)?;
        check_year(on_finished.delay_ms, "/delay_ms")?;
        self.check_semaphores(&spec).await
    }

    /// Refuses the first value that is out of its range.
    fn check_jobs(&self, jobs: &[(QueueName, NewPush)]) -> Result<()> {
        if jobs.len() > BATCH_MAX {
            return Err(Error::invalid("/jobs", "must be at most 1000 jobs"));
        }
        let check = |(n, (_, push)): (usize, &(QueueName, NewPush))| {
            let checked = push.check(self.options().payload_bytes);
            checked.map_err(|invalid| invalid.under(&format!("/jobs/{n}")).into())
        };
        jobs.iter().enumerate().try_for_each(check)
    }

    /// Returns the jobs as they are stored, which are in order by themselves, and places for the queues that the call names.
    async fn batch_jobs(
        &self,
        id: &BatchId,
        jobs: Vec<(QueueName, NewPush)>,
        on_finished: Option<&OnFinished>,
    ) -> Result<(Vec<NewJob>, Places)> {
        let unknown = self.unknown_semaphores(jobs.iter().map(|(_, push)| &push.spec)).await?;
        for (n, (_, push)) in jobs.iter().enumerate() {
            check_known(&push.spec, &unknown).map_err(|invalid| invalid.under(&format!("/jobs/{n}")))?;
        }
        let named = jobs.iter().flat_map(|(queue, push)| push.stages().chain(std::iter::once(queue)));
        let finally = on_finished
            .iter()
            .flat_map(|job| job.then.iter().map(|stage| &stage.queue).chain(std::iter::once(&job.queue)));
        let places = self.admit_queues(self.new_queues(named.chain(finally))).await?;
        let (now, key_ttl_ms, trace) = (self.now()?, self.options().defaults.key_ttl_ms, trace::carried());
        let job = |(queue, push): (QueueName, NewPush)| {
            let job = push.into_job((self.0.ids.next(now), queue), now, key_ttl_ms, trace.as_ref());
            NewJob { batch: Some(id.clone()), ..job }
        };
        Ok((jobs.into_iter().map(job).collect(), places))
    }

    /// Changes a batch, and wakes waiters for what that stored: also where its client has left.
    async fn change_batch(
        &self,
        id: BatchId,
        jobs: Vec<NewJob>,
        (places, place): (Places, Option<Places>),
        change: impl Changing,
    ) -> Result<CallOutcome<BatchChanged>> {
        let this = self.clone();
        let place = place.unwrap_or_else(|| self.no_places(Named::Requests));
        self.to_the_end(async move {
            let beside = Beside::of(&jobs);
            let changed = change(this.0.store.clone(), jobs, this.rules()).await;
            faults::point("keyed.stored").await;
            let note = |changed: &BatchChanged| {
                places.keep_all();
                let mut notes = this.meter().notes();
                this.note_pushed(&beside, &changed.pushed, &mut notes);
                this.note_callback(changed.callback.as_ref(), &mut notes);
            };
            match changed.map_err(|denied| Error::batch_denied(&id, denied))? {
                Once::Now(changed, None) => {
                    note(&changed);
                    Ok(CallOutcome::Plain(changed))
                }
                once => Self::outcome_of(once, place, note),
            }
        })
        .await
    }

    /// Counts a callback that was pushed, and wakes a waiter for it.
    pub(super) fn note_callback(&self, callback: Option<&CalledBack>, notes: &mut Notes<'_>) {
        let Some(CalledBack { queue, run_at, expires_at }) = callback else { return };
        notes.count(queue, Event::Pushed);
        self.announce(queue, *run_at);
        if let Some(expires_at) = expires_at {
            self.note_deadline(*expires_at);
        }
    }
}

/// What makes the answer of a keyed call remembered, and the place for its key.
type KeyedBatch = (Keyed<BatchChanged>, Places);

/// Returns what a call without a key has come to.
fn not_keyed(told: CallOutcome<BatchChanged>) -> Result<BatchChanged> {
    match told {
        CallOutcome::Plain(changed) => Ok(changed),
        CallOutcome::Answer(_) => {
            Err(StoreError::internal("a call without a key was answered as one with a key").into())
        }
    }
}

type Changed = futures::future::BoxFuture<'static, store::Result<Once<BatchChanged>, BatchDenied>>;

/// A verb of the store that changes a batch.
trait Changing: FnOnce(std::sync::Arc<dyn store::Store>, Vec<NewJob>, Rules) -> Changed + Send + 'static {}

impl<F> Changing for F where
    F: FnOnce(std::sync::Arc<dyn store::Store>, Vec<NewJob>, Rules) -> Changed + Send + 'static
{
}

impl Error {
    fn batch_denied(id: &BatchId, denied: BatchDenied) -> Self {
        match denied {
            BatchDenied::Unknown => Self::UnknownBatch(id.clone()),
            BatchDenied::Sealed => Self::BatchSealed(id.clone()),
            BatchDenied::OnlyDuplicates(id) => Self::OnlyDuplicates(id),
            BatchDenied::PushRefused(PushRefused { key_of: Some(id), .. }) => Self::KeyConflict(id),
            BatchDenied::PushRefused(PushRefused { queue, .. }) => Self::QueueFull(queue),
            BatchDenied::Store(error) => Self::Store(error),
        }
    }
}
