//! New jobs.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::meter::{Event, Notes};
use super::rounds::{self, Item, Limits, Rounds};
use super::semaphores::check_known;
use super::{Error, Queues, Result, Shared};
use crate::faults;
use crate::job::record::KeyHold;
use crate::job::spec::check_year;
use crate::job::{
    Invalid, JobId, JobKey, JobSpec, NewJob, QueueName, SemaphoreName, State, Timestamp, Visible,
};
use crate::store::{self, Pushed, StoreError};

/// When a job is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At once.
    Now,
    /// So many milliseconds after the push.
    In(u64),
    /// At this moment; one that has passed sorts earlier.
    At(Timestamp),
}

/// A job that a client wants to push.
#[derive(Debug, Clone)]
pub struct NewPush {
    /// When it is due.
    pub when: When,
    /// The deduplication key.
    pub key: Option<JobKey>,
    /// How long the key is taken at least, in milliseconds.
    pub key_ttl_ms: Option<u64>,
    /// The job.
    pub spec: JobSpec,
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushAnswer {
    /// The job: the new one, or the one that has the key.
    pub id: JobId,
    /// Its state.
    pub state: Visible,
    /// When it is, or was, due.
    pub run_at: Timestamp,
    /// Whether the key was taken by a job with an equal payload.
    pub deduplicated: bool,
}

impl NewPush {
    /// Refuses the first value that is out of its range, and a semaphore that is among these unknown ones. Pointers are
    /// relative to the job.
    pub(super) fn check(
        &self,
        payload_bytes: usize,
        unknown: &HashSet<SemaphoreName>,
    ) -> Result<(), Invalid> {
        self.spec.check(payload_bytes)?;
        if let When::In(ms) = self.when {
            check_year(Some(ms), "/delay_ms")?;
        }
        check_year(self.key_ttl_ms, "/key_ttl_ms")?;
        if self.key_ttl_ms.is_some() && self.key.is_none() {
            return Err(Invalid::new("/key_ttl_ms", "needs a key beside it"));
        }
        check_known(&self.spec, unknown)
    }

    /// Returns the queues that the job goes on to.
    pub(super) fn stages(&self) -> impl Iterator<Item = &QueueName> {
        self.spec.then.iter().map(|stage| &stage.queue)
    }

    /// Returns the job that is stored, pushed at this moment.
    pub(super) fn into_job(self, id: JobId, queue: QueueName, now: Timestamp, key_ttl_ms: u64) -> NewJob {
        let until = now.plus_ms(self.key_ttl_ms.unwrap_or(key_ttl_ms));
        let run_at = match self.when {
            _ if faults::bug("ignore_delay") => now,
            When::Now => now,
            When::In(ms) => now.plus_ms(ms),
            When::At(at) => at,
        };
        let key = self.key.filter(|_| !faults::bug("ignore_key")).map(|key| KeyHold { key, until });
        let mut spec = self.spec;
        if faults::bug("drop_push") {
            spec.expires_in_ms = Some(1);
        }
        NewJob { run_at, key, ..NewJob::new(id, queue, spec, now) }
    }
}

/// How many bytes of payloads one call stores in one round.
const PART_BYTES: usize = 2 << 20;

/// Pushes in flight: the jobs of one call stay together, unless they are very large.
pub(super) type PushRounds = Arc<Rounds<(), Vec<NewJob>, Vec<Result<PushAnswer>>>>;

impl Item for Vec<NewJob> {
    fn weight(&self) -> usize {
        self.iter().map(|job| rounds::weight(job.spec.payload.as_str().len())).sum()
    }
}

pub(super) fn rounds(shared: &Weak<Shared>) -> PushRounds {
    let shared = shared.clone();
    Rounds::new(Limits { round: 1000, overlap: 4, large: 128, waiting: 30_000 }, move |(), items| {
        let shared = shared.upgrade();
        Box::pin(async move {
            match shared {
                Some(shared) => Queues(shared).push_round(items).await,
                None => Vec::new(),
            }
        })
    })
}

/// Splits jobs that are much to store, so that others are stored in between.
fn parts(jobs: Vec<NewJob>) -> Vec<Vec<NewJob>> {
    let mut parts: Vec<Vec<NewJob>> = Vec::new();
    let mut bytes = PART_BYTES;
    for job in jobs {
        bytes += job.spec.payload.as_str().len();
        match parts.last_mut() {
            Some(part) if bytes <= PART_BYTES => part.push(job),
            _ => {
                bytes = job.spec.payload.as_str().len();
                parts.push(vec![job]);
            }
        }
    }
    parts
}

impl Queues {
    /// Adds jobs to a queue; each element stands for itself. Ids sort in the order of the elements.
    pub async fn push(&self, queue: &QueueName, pushes: Vec<NewPush>) -> Vec<Result<PushAnswer>> {
        let now = match self.now() {
            Ok(now) => now,
            Err(error) => return pushes.iter().map(|_| Err(error.clone())).collect(),
        };
        let unknown = match self.unknown_semaphores(pushes.iter().map(|push| &push.spec)).await {
            Ok(unknown) => unknown,
            Err(error) => return pushes.iter().map(|_| Err(error.clone())).collect(),
        };
        let named = pushes.iter().flat_map(NewPush::stages).chain(std::iter::once(queue));
        let refused = match self.refused_queues(self.new_queues(named)).await {
            Ok(refused) => refused,
            Err(error) => return pushes.iter().map(|_| Err(error.clone())).collect(),
        };
        let options = self.options();
        let mut answers: Vec<Option<Error>> = Vec::with_capacity(pushes.len());
        let mut jobs = Vec::with_capacity(pushes.len());
        for push in pushes {
            let named = std::iter::once(queue).chain(push.stages());
            let checked = push.check(options.payload_bytes, &unknown).map_err(Error::from);
            match checked.and_then(|()| self.check_queues(&refused, named)) {
                Ok(()) => {
                    let id = self.0.ids.next(now);
                    jobs.push(push.into_job(id, queue.clone(), now, options.defaults.key_ttl_ms));
                    answers.push(None);
                }
                Err(error) => answers.push(Some(error)),
            }
        }
        let mut stored = self.push_jobs(jobs).await.into_iter();
        let lost = || Err(Error::Store(StoreError::internal("a push was left unanswered")));
        answers
            .into_iter()
            .map(|error| match error {
                Some(error) => Err(error),
                None => stored.next().unwrap_or_else(lost),
            })
            .collect()
    }

    /// Stores jobs that are in order, together with whatever else is being pushed.
    pub(super) async fn push_jobs(&self, jobs: Vec<NewJob>) -> Vec<Result<PushAnswer>> {
        if jobs.is_empty() {
            return Vec::new();
        }
        let count = jobs.len();
        let mut answers: Vec<Result<PushAnswer>> = Vec::with_capacity(count);
        for part in parts(jobs) {
            let stored = self.in_time(self.0.pushes.travel((), part)).await;
            match stored.and_then(|stored| stored.map_err(Error::from)) {
                Ok(some) => answers.extend(some),
                Err(error) => {
                    answers.resize(count, Err(error)); // the parts behind it are not tried
                    break;
                }
            }
        }
        answers
    }

    /// Runs one round of pushes: stores them all, and wakes waiters for them.
    async fn push_round(&self, items: Vec<Vec<NewJob>>) -> Vec<Vec<Result<PushAnswer>>> {
        let sizes: Vec<usize> = items.iter().map(Vec::len).collect();
        let jobs: Vec<NewJob> = items.into_iter().flatten().collect();
        let fact = |job: &NewJob| (job.id.clone(), job.queue.clone(), job.created_at, job.run_at);
        let facts: Vec<_> = jobs.iter().map(fact).collect();
        let first_expiry = jobs.iter().filter_map(NewJob::expires_at).min();
        let pushed = self.0.store.push(jobs, &self.rules()).await;
        if let Some(expires_at) = first_expiry {
            self.note_deadline(expires_at);
        }
        let mut notes = self.meter().notes();
        let mut answers =
            pushed.into_iter().zip(facts).map(|(pushed, facts)| self.answer_push(pushed, facts, &mut notes));
        sizes.into_iter().map(|size| answers.by_ref().take(size).collect()).collect()
    }

    fn answer_push(
        &self,
        pushed: store::Result<Pushed>,
        (id, queue, created_at, run_at): (JobId, QueueName, Timestamp, Timestamp),
        notes: &mut Notes<'_>,
    ) -> Result<PushAnswer> {
        match pushed? {
            Pushed::Created => {
                notes.count(&queue, Event::Pushed);
                self.announce(&queue, run_at);
                let state = State::Ready.visible(run_at, created_at);
                Ok(PushAnswer { id, state, run_at, deduplicated: false })
            }
            Pushed::Blocked => {
                notes.count(&queue, Event::Pushed);
                Ok(PushAnswer { id, state: Visible::Blocked, run_at, deduplicated: false })
            }
            Pushed::Duplicate { id, state, run_at } => {
                Ok(PushAnswer { id, state, run_at, deduplicated: true })
            }
            Pushed::KeyConflict { id } => Err(Error::KeyConflict(id)),
            Pushed::Full => Err(Error::QueueFull(queue)),
        }
    }
}
