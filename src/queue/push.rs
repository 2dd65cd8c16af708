//! New jobs.

use std::sync::{Arc, Weak};

use super::meter::{Event, Notes};
use super::rounds::{self, Item, Limits, Rounds};
use super::{Error, Queues, Result, Shared};
use crate::job::backoff::YEAR_MS;
use crate::job::record::{Headers, KeyHold};
use crate::job::route::ROUTE_MAX;
use crate::job::settings::ATTEMPTS_MAX;
use crate::job::{
    Backoff, GroupName, JobId, JobKey, NewJob, Payload, QueueName, SemaphoreName, Stage, State, Timestamp,
    Visible,
};
use crate::store::{self, Pushed, StoreError};

/// The most headers of one job.
const HEADERS_MAX: usize = 64;
/// The most semaphores of one job.
pub(super) const SEMAPHORES_MAX: usize = 16;
/// The most bytes of all names and texts of one job's headers.
const HEADER_BYTES_MAX: usize = 8192;

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

/// A job that somebody wants to push.
#[derive(Debug, Clone)]
pub struct NewPush {
    /// What is to be done.
    pub payload: Payload,
    /// What else its producer says.
    pub headers: Headers,
    /// When it is due.
    pub when: When,
    /// Higher is delivered first.
    pub priority: i32,
    /// The producer's own name for it.
    pub key: Option<JobKey>,
    /// How long the key is taken at least, in milliseconds.
    pub key_ttl_ms: Option<u64>,
    /// How often it may be delivered.
    pub max_attempts: Option<u32>,
    /// How long it waits after a rollback.
    pub backoff: Option<Backoff>,
    /// Removed after so many milliseconds, unless it is reserved or finished then.
    pub expires_in_ms: Option<u64>,
    /// The group that it belongs to.
    pub group: Option<GroupName>,
    /// The semaphores that it takes while it is reserved.
    pub semaphores: Vec<SemaphoreName>,
    /// The stages that it goes through afterwards.
    pub then: Vec<Stage>,
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
    /// The first value that is out of its range. Pointers are relative to the job.
    pub(super) fn check(&self, payload_bytes: usize) -> Result<()> {
        check_size(&self.payload, "/payload", payload_bytes)?;
        check_route(&self.then)?;
        check_semaphores(&self.semaphores)?;
        let year = |value: Option<u64>| value.is_some_and(|ms| ms > YEAR_MS);
        if matches!(self.when, When::In(ms) if ms > YEAR_MS) {
            return Err(Error::invalid("/delay_ms", "must be 0 to 31536000000 (a year)"));
        }
        if year(self.key_ttl_ms) {
            return Err(Error::invalid("/key_ttl_ms", "must be 0 to 31536000000 (a year)"));
        }
        if self.key_ttl_ms.is_some() && self.key.is_none() {
            return Err(Error::invalid("/key_ttl_ms", "needs a key beside it"));
        }
        if year(self.expires_in_ms) || self.expires_in_ms == Some(0) {
            return Err(Error::invalid("/expires_in_ms", "must be 1 to 31536000000 (a year)"));
        }
        if self.max_attempts.is_some_and(|n| !(1..=ATTEMPTS_MAX).contains(&n)) {
            return Err(Error::invalid("/max_attempts", "must be 1 to 1000000"));
        }
        if let Some((field, what)) = self.backoff.as_ref().and_then(Backoff::fault) {
            return Err(Error::invalid(format!("/backoff/{field}"), what));
        }
        let bytes: usize = self.headers.iter().map(|(name, text)| name.len() + text.len()).sum();
        if self.headers.len() > HEADERS_MAX || bytes > HEADER_BYTES_MAX {
            return Err(Error::invalid(
                "/headers",
                "must be at most 64 of them with at most 8192 bytes together",
            ));
        }
        match self.headers.keys().find(|name| !is_header_name(name)) {
            Some(_) => Err(Error::invalid("/headers", "names must be 1 to 128 of A-Z a-z 0-9 . _ : -")),
            None => Ok(()),
        }
    }

    /// The job that is stored, at this moment.
    pub(super) fn into_job(self, id: JobId, queue: QueueName, now: Timestamp, key_ttl_ms: u64) -> NewJob {
        let ttl_ms = self.key_ttl_ms.unwrap_or(key_ttl_ms);
        NewJob {
            id,
            queue,
            payload: self.payload,
            headers: self.headers,
            priority: self.priority,
            created_at: now,
            run_at: match self.when {
                When::Now => now,
                When::In(ms) => now.plus_ms(ms),
                When::At(at) => at,
            },
            key: self.key.map(|key| KeyHold { key, until: now.plus_ms(ttl_ms) }),
            max_attempts: self.max_attempts,
            backoff: self.backoff,
            expires_at: self.expires_in_ms.map(|ms| now.plus_ms(ms)),
            replay_of: None,
            route: self.then,
            batch: None,
            group: self.group,
            semaphores: self.semaphores,
        }
    }
}

fn check_semaphores(semaphores: &[SemaphoreName]) -> Result<()> {
    if semaphores.len() > SEMAPHORES_MAX {
        return Err(Error::invalid("/semaphores", "must be at most 16"));
    }
    match semaphores.iter().enumerate().find(|(n, name)| semaphores[..*n].contains(name)) {
        Some((n, _)) => Err(Error::invalid(format!("/semaphores/{n}"), "must not be named twice")),
        None => Ok(()),
    }
}

fn check_route(then: &[Stage]) -> Result<()> {
    if then.len() > ROUTE_MAX {
        return Err(Error::invalid("/then", "must be at most 100 stages"));
    }
    match then.iter().enumerate().find_map(|(n, stage)| Some((n, stage.fault()?))) {
        Some((n, (pointer, what))) => Err(Error::invalid(format!("/then/{n}{pointer}"), what)),
        None => Ok(()),
    }
}

/// A JSON value that somebody sends must not be larger than `limit` bytes.
pub(super) fn check_size(value: &Payload, pointer: &str, limit: usize) -> Result<()> {
    match value.as_str().len() {
        size if size > limit => {
            Err(Error::invalid(pointer, format!("is {size} bytes long; the limit is {limit}")))
        }
        _ => Ok(()),
    }
}

fn is_header_name(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-".contains(&b))
}

/// Pushes on their way: the jobs of one call stay together.
pub(super) type PushRounds = Arc<Rounds<(), Vec<NewJob>, Vec<Result<PushAnswer>>>>;

impl Item for Vec<NewJob> {
    fn weight(&self) -> usize {
        self.iter().map(|job| rounds::weight(job.payload.as_str().len())).sum()
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

impl Queues {
    /// Adds jobs to a queue; each element stands for itself. Ids sort in the order of the elements.
    pub async fn push(&self, queue: &QueueName, pushes: Vec<NewPush>) -> Vec<Result<PushAnswer>> {
        let now = match self.now() {
            Ok(now) => now,
            Err(error) => return pushes.iter().map(|_| Err(error.clone())).collect(),
        };
        let unknown = match self.unknown_semaphores(pushes.iter()).await {
            Ok(unknown) => unknown,
            Err(error) => return pushes.iter().map(|_| Err(error.clone())).collect(),
        };
        let options = self.options();
        let mut answers: Vec<Option<Error>> = Vec::with_capacity(pushes.len());
        let mut jobs = Vec::with_capacity(pushes.len());
        for push in pushes {
            match push.check(options.payload_bytes).and_then(|()| push.check_known(&unknown)) {
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
        match self.in_time(self.0.pushes.travel((), jobs)).await {
            Ok(Ok(answers)) => answers,
            Ok(Err(turned)) => vec![Err(turned.into()); count],
            Err(late) => vec![Err(late); count],
        }
    }

    /// One round of pushes: stores them all, and wakes whoever waits for them.
    async fn push_round(&self, items: Vec<Vec<NewJob>>) -> Vec<Vec<Result<PushAnswer>>> {
        let sizes: Vec<usize> = items.iter().map(Vec::len).collect();
        let jobs: Vec<NewJob> = items.into_iter().flatten().collect();
        let fact = |job: &NewJob| (job.id.clone(), job.queue.clone(), job.created_at, job.run_at);
        let facts: Vec<_> = jobs.iter().map(fact).collect();
        let first_expiry = jobs.iter().filter_map(|job| job.expires_at).min();
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
