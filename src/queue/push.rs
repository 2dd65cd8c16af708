//! New jobs.

use std::sync::{Arc, Weak};

use super::meter::{Event, Notes};
use super::quotas::Places;
use super::rounds::{self, Item, Limits, Rounds};
use super::semaphores::check_known;
use super::turns::Turns;
use super::{Error, Queues, Result, Shared};
use crate::faults;
use crate::job::record::{KeyConflict, KeyHold, KeyUntil};
use crate::job::spec::check_year;
use crate::job::{
    Invalid, JobId, JobKey, JobSpec, NewJob, QueueName, State, Timestamp, TraceContext, Visible, When,
};
use crate::store::{self, Pushed, StoreError};
use crate::telemetry::trace;

/// A job that a client wants to push.
#[derive(Debug, Clone)]
pub struct NewPush {
    /// When it is due.
    pub when: When,
    /// The deduplication key.
    pub key: Option<JobKey>,
    /// How long the key is taken at least, in milliseconds.
    pub key_ttl_ms: Option<u64>,
    /// Until when the key is taken.
    pub key_until: Option<KeyUntil>,
    /// What becomes of the push where the key is taken.
    pub key_conflict: Option<KeyConflict>,
    /// The job.
    pub spec: JobSpec,
}

/// What became of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushAnswer {
    /// The job: the new one, or the one that has the key.
    pub id: JobId,
    /// The queue that it was pushed to.
    pub queue: QueueName,
    /// Its state.
    pub state: Visible,
    /// When it is, or was, due.
    pub run_at: Timestamp,
    /// Whether the key was taken by another job, and no job was stored.
    pub deduplicated: bool,
    /// Whether that job has the payload and the time of this push now.
    pub replaced: bool,
}

impl NewPush {
    /// Refuses the first value that is out of its range. Pointers are relative to the job.
    pub(super) fn check(&self, payload_bytes: usize) -> Result<(), Invalid> {
        self.spec.check(payload_bytes)?;
        if let When::In(ms) = self.when {
            check_year(Some(ms), "/delay_ms")?;
        }
        let beside = [
            ("/key_ttl_ms", self.key_ttl_ms.is_some()),
            ("/key_until", self.key_until.is_some()),
            ("/key_conflict", self.key_conflict.is_some()),
        ];
        if let Some((pointer, _)) = beside.iter().find(|(_, is_there)| *is_there && self.key.is_none()) {
            return Err(Invalid::new(*pointer, "needs a key beside it"));
        }
        check_key_time(self.key_ttl_ms, self.key_until)
    }

    /// Returns the queues that the job goes on to.
    pub(super) fn stages(&self) -> impl Iterator<Item = &QueueName> {
        self.spec.then.iter().map(|stage| &stage.queue)
    }

    /// Returns the job that is stored, pushed at this moment. It carries this context unless its producer says another.
    pub(super) fn into_job(
        self,
        (id, queue): (JobId, QueueName),
        now: Timestamp,
        key_ttl_ms: u64,
        trace: Option<&TraceContext>,
    ) -> NewJob {
        let until = now.plus_ms(self.key_ttl_ms.unwrap_or(key_ttl_ms));
        let run_at = if faults::bug("ignore_delay") { now } else { self.when.from(now) };
        let (lasts, conflict) = (self.key_until.unwrap_or_default(), self.key_conflict.unwrap_or_default());
        let hold = |key| KeyHold { lasts, conflict, ..KeyHold::new(key, until) };
        let key = self.key.filter(|_| !faults::bug("ignore_key")).map(hold);
        let mut spec = self.spec;
        if faults::bug("drop_push") {
            spec.expires_in_ms = Some(1);
        }
        if let Some(trace) = trace {
            trace.carry(&mut spec.headers);
        }
        NewJob { run_at, key, ..NewJob::new(id, queue, spec, now) }
    }
}

/// The key that a job gets in the queue that it is moved to.
#[derive(Debug, Clone)]
pub struct MoveKey {
    /// The key.
    pub key: JobKey,
    /// How long it is taken at least, in milliseconds.
    pub ttl_ms: Option<u64>,
    /// Until when it is taken.
    pub until: Option<KeyUntil>,
}

impl MoveKey {
    pub(super) fn into_hold(self, now: Timestamp, ttl_ms: u64) -> KeyHold {
        let until = now.plus_ms(self.ttl_ms.unwrap_or(ttl_ms));
        KeyHold { lasts: self.until.unwrap_or_default(), ..KeyHold::new(self.key, until) }
    }
}

/// Refuses a time of a key that is out of its range, or that nothing would heed.
pub(super) fn check_key_time(ttl_ms: Option<u64>, until: Option<KeyUntil>) -> Result<(), Invalid> {
    if ttl_ms.is_some() && until == Some(KeyUntil::Reserved) {
        return Err(Invalid::new("/key_ttl_ms", "means nothing with key_until reserved"));
    }
    check_year(ttl_ms, "/key_ttl_ms")
}

/// How many bytes of payloads one call stores in one round.
const PART_BYTES: usize = 2 << 20;

/// Pushes in flight: the jobs of one call stay together, unless they are very large.
pub(super) type PushRounds = Arc<Rounds<(), Vec<NewJob>, Vec<Result<PushAnswer>>>>;

impl Item for Vec<NewJob> {
    fn weight(&self) -> usize {
        self.iter().map(|job| rounds::weight(job.spec.payload.weight())).sum()
    }
}

pub(super) fn rounds(shared: &Weak<Shared>, turns: &Arc<Turns>) -> PushRounds {
    let shared = shared.clone();
    let limits = Limits { round: 1000, overlap: 4, large: 128, waiting: 30_000 };
    Rounds::taking_turns(limits, ("push", turns), move |(), items| {
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
pub(super) fn parts(jobs: Vec<NewJob>) -> Vec<Vec<NewJob>> {
    let mut parts: Vec<Vec<NewJob>> = Vec::new();
    let mut bytes = PART_BYTES;
    for job in jobs {
        bytes += job.spec.payload.weight();
        match parts.last_mut() {
            Some(part) if bytes <= PART_BYTES => part.push(job),
            _ => {
                bytes = job.spec.payload.weight();
                parts.push(vec![job]);
            }
        }
    }
    parts
}

/// Returns pushes that all go to one queue.
pub(super) fn to_one(queue: &QueueName, pushes: Vec<NewPush>) -> Vec<(QueueName, NewPush)> {
    pushes.into_iter().map(|push| (queue.clone(), push)).collect()
}

/// Returns the queues that a job names: its own, and those that it goes on to.
pub(super) fn queues(job: &NewJob) -> Vec<QueueName> {
    let stages = job.spec.then.iter().map(|stage| &stage.queue);
    std::iter::once(&job.queue).chain(stages).cloned().collect()
}

impl Queues {
    /// Adds jobs to a queue; each element stands for itself. Ids sort in the order of the elements.
    pub async fn push(&self, queue: &QueueName, pushes: Vec<NewPush>) -> Vec<Result<PushAnswer>> {
        self.push_each(to_one(queue, pushes)).await
    }

    /// The same for jobs of several queues.
    pub async fn push_each(&self, pushes: Vec<(QueueName, NewPush)>) -> Vec<Result<PushAnswer>> {
        let count = pushes.len();
        self.push_valid(pushes).await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn push_valid(&self, pushes: Vec<(QueueName, NewPush)>) -> Result<Vec<Result<PushAnswer>>> {
        Ok(self.store_each(self.prepare(pushes).await?).await)
    }

    /// Stores what was prepared, each job for itself.
    pub(super) async fn store_each(&self, prepared: Prepared) -> Vec<Result<PushAnswer>> {
        let Prepared { jobs, refusals, mut places, named } = prepared;
        let stored = self.push_jobs(jobs).await;
        places.keep_stored(&named, &stored);
        merge_results(refusals, stored)
    }

    /// Returns the jobs that are in order by themselves, as they are to be stored.
    pub(super) async fn prepare(&self, pushes: Vec<(QueueName, NewPush)>) -> Result<Prepared> {
        let (now, options) = (self.now()?, self.options());
        // What is wrong by itself asks the store nothing, and takes no place.
        let refused =
            |(_, push): &(QueueName, NewPush)| push.check(options.payload_bytes).err().map(Error::from);
        let mut refusals: Vec<Option<Error>> = pushes.iter().map(refused).collect();
        let in_order = |(push, refusal): (_, &Option<Error>)| refusal.is_none().then_some(push);
        let valid = || pushes.iter().zip(&refusals).filter_map(in_order);
        let unknown = self.unknown_semaphores(valid().map(|(_, push): &(_, NewPush)| &push.spec)).await?;
        let named = valid().flat_map(|(queue, push)| push.stages().chain(std::iter::once(queue)));
        let (places, full) = self.take_queues(&self.new_queues(named)).await?;
        let (mut jobs, trace) = (Vec::with_capacity(pushes.len()), trace::carried());
        for ((queue, push), refusal) in pushes.into_iter().zip(&mut refusals) {
            if refusal.is_none() {
                let named = std::iter::once(&queue).chain(push.stages());
                let known = check_known(&push.spec, &unknown).map_err(Error::from);
                *refusal = known.and_then(|()| self.check_queues(&full, named)).err();
            }
            if refusal.is_none() {
                let id = self.0.ids.next(now);
                jobs.push(push.into_job((id, queue), now, options.defaults.key_ttl_ms, trace.as_ref()));
            }
        }
        let named = places.of_each(jobs.iter().map(queues));
        Ok(Prepared { jobs, refusals, places, named })
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
        let facts: Vec<_> = jobs.iter().map(facts).collect();
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
        facts: Facts,
        notes: &mut Notes<'_>,
    ) -> Result<PushAnswer> {
        let pushed = pushed?;
        if matches!(pushed, Pushed::Created | Pushed::Blocked) {
            notes.count(&facts.queue, Event::Pushed);
        }
        match &pushed {
            Pushed::Created => self.announce(&facts.queue, facts.run_at),
            Pushed::Replaced { state: Visible::Ready | Visible::Scheduled, run_at, .. } => {
                self.announce(&facts.queue, *run_at);
            }
            _ => {}
        }
        answer(pushed, facts)
    }
}

/// Pushes that were judged by themselves.
pub(super) struct Prepared {
    /// Those that are in order.
    pub jobs: Vec<NewJob>,
    /// Why the others are not, each at its index.
    pub refusals: Vec<Option<Error>>,
    /// Places for the queues that are new to this server.
    pub places: Places,
    /// What the jobs name, where any of that is new.
    pub named: Vec<Vec<QueueName>>,
}

/// What is to be known of jobs that are pushed together with something else, once they are.
pub(super) struct Beside {
    /// When the first of them expires.
    pub first_expiry: Option<Timestamp>,
}

impl Beside {
    pub fn of(jobs: &[NewJob]) -> Self {
        Self { first_expiry: jobs.iter().filter_map(NewJob::expires_at).min() }
    }
}

/// What of a job is in its answer.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    id: JobId,
    queue: QueueName,
    created_at: Timestamp,
    run_at: Timestamp,
}

pub(super) fn facts(job: &NewJob) -> Facts {
    let (created_at, run_at) = (job.created_at, job.run_at);
    Facts { id: job.id.clone(), queue: job.queue.clone(), created_at, run_at }
}

/// Returns the response for a job with this outcome.
pub(super) fn answer(pushed: Pushed, Facts { id, queue, created_at, run_at }: Facts) -> Result<PushAnswer> {
    let stored = |state| {
        let queue = queue.clone();
        PushAnswer { id, queue, state, run_at, deduplicated: false, replaced: false }
    };
    match pushed {
        Pushed::Created => Ok(stored(State::Ready.visible(run_at, created_at))),
        Pushed::Blocked => Ok(stored(Visible::Blocked)),
        Pushed::Duplicate { id, state, run_at } => {
            Ok(PushAnswer { id, queue, state, run_at, deduplicated: true, replaced: false })
        }
        Pushed::Replaced { id, state, run_at } => {
            Ok(PushAnswer { id, queue, state, run_at, deduplicated: true, replaced: true })
        }
        Pushed::KeyConflict { id } => Err(Error::KeyConflict(id)),
        Pushed::Full => Err(Error::QueueFull(queue)),
    }
}

/// Returns the results of all pushes: of those that were not refused in their order.
pub(super) fn merge_results(
    refusals: Vec<Option<Error>>,
    stored: Vec<Result<PushAnswer>>,
) -> Vec<Result<PushAnswer>> {
    let mut stored = stored.into_iter();
    let lost = || Err(Error::Store(StoreError::internal("a push was left unanswered")));
    let answer = |refusal: Option<Error>| match refusal {
        Some(error) => Err(error),
        None => stored.next().unwrap_or_else(lost),
    };
    refusals.into_iter().map(answer).collect()
}
