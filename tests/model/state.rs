//! What there must be in a store: the model, written from the meanings that the design gives to the calls.
//!
//! It is small and slow on purpose, and knows nothing of `job::transition`: two tellings of the same story, which the
//! test compares. Each call of a store is told to the model together with the store's answer; the model says what
//! the answer had to be, and becomes what the store must be then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tailback::job::record::{KeyConflict, KeyHold, KeyUntil};
use tailback::job::settings::Defaults;
use tailback::job::{
    Backoff, BatchId, Child, Claim, Content, JobId, JobKey, NewJob, QueueName, QueueSettings, Rules,
    Schedule, ScheduleName, SemaphoreName, State, Timestamp, Visible, WorkerName,
};
use tailback::store::{Applied, PushRefused, Pushed};

use super::batches::Batch;
use super::job::{Job, When};
use super::lines::Line;
use super::workers::Worker;

/// Fine, or what is wrong.
pub type Checked = Result<(), String>;

/// More than any run of the test takes: what lies so far ahead does not come.
pub const FAR_MS: u64 = 7_200_000;

/// A key that was taken.
#[derive(Debug, Clone)]
pub struct Key {
    pub job: JobId,
    pub payload: Content,
    pub until: Timestamp,
    pub run_at: Timestamp,
    pub lasts: KeyUntil,
}

/// The verbs whose repeats are answered as the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Repeatable {
    Commit,
    Move,
}

/// What becomes of a job that is pushed together with something else.
#[derive(Debug)]
pub struct Admitted {
    id: JobId,
    queue: QueueName,
    run_at: When,
    is_new: bool,
}

impl Admitted {
    /// Whether these are the ones that the store tells of.
    pub fn are(expected: &[Self], told: &[Child]) -> bool {
        let is = |(own, told): (&Self, &Child)| {
            let is_it = (&own.id, &own.queue, own.is_new) == (&told.id, &told.queue, !told.deduplicated);
            is_it && own.run_at.has(told.run_at)
        };
        expected.len() == told.len() && expected.iter().zip(told).all(is)
    }

    /// Returns the first job, where all of them were there before.
    pub fn only_duplicates(expected: &[Self]) -> Option<&JobId> {
        expected.first().filter(|_| expected.iter().all(|own| !own.is_new)).map(|own| &own.id)
    }
}

#[derive(Debug, Default)]
pub struct Model {
    pub jobs: BTreeMap<JobId, Job>,
    pub keys: BTreeMap<(QueueName, JobKey), Key>,
    pub batches: BTreeMap<BatchId, Batch>,
    pub workers: BTreeMap<WorkerName, Worker>,
    pub schedules: BTreeMap<ScheduleName, Schedule>,
    pub settings: BTreeMap<QueueName, (QueueSettings, String)>,
    pub retain_batch_ms: u64,
    /// The jobs that stand in each line, the first first.
    pub lines: BTreeMap<Line, Vec<JobId>>,
    /// The capacities of those that there are.
    pub semaphores: BTreeMap<SemaphoreName, u64>,
    /// How many deliveries of each queue a `rate` remembers: its time is longer than any run.
    pub delivered: BTreeMap<QueueName, u64>,
    /// Whether the limits of deliveries are ignored: at the end of a run.
    pub is_unlimited: bool,
    /// The lines that several changes of the call at hand concern: these have no order.
    pub contested: BTreeSet<Line>,
    /// Whose turn has come with the change at hand.
    pub unblocked: Vec<(QueueName, When)>,
    /// What calls have answered that must be answered alike if they are repeated.
    pub answered: HashMap<(JobId, Claim, Repeatable), Applied>,
    /// What pushes with idempotency keys have said, and what they were answered.
    pub keyed: BTreeMap<u8, (u8, String)>,
    /// The jobs that the call at hand has changed.
    pub touched: BTreeSet<JobId>,
    /// The batches that it has changed.
    pub touched_batches: BTreeSet<BatchId>,
    /// The callbacks that the call at hand has pushed.
    pub callbacks: Vec<JobId>,
}

impl Model {
    /// What queues and jobs fall back on. Delays and leases are none, or too long to end in a test.
    pub fn defaults(&self) -> Defaults {
        let backoff = Backoff { base_ms: FAR_MS, max_ms: 3 * FAR_MS, ..Backoff::default() };
        Defaults {
            lease_ms: FAR_MS,
            backoff,
            max_attempts: 3,
            retain_batch_ms: self.retain_batch_ms,
            semaphore_patience_ms: FAR_MS,
            ..Defaults::default()
        }
    }

    /// The settings as a server hands them to its store.
    pub fn rules(&self) -> Rules {
        let rules_of = |settings: &QueueSettings| match self.is_unlimited {
            true => QueueSettings { max_reserved: None, rate: None, ..settings.clone() },
            false => settings.clone(),
        };
        let queues = self.settings.iter().map(|(queue, (settings, _))| (queue.clone(), rules_of(settings)));
        Rules::new(Arc::new(self.defaults()), queues.collect())
    }

    pub fn setting<T>(&self, queue: &QueueName, field: impl Fn(&QueueSettings) -> Option<T>) -> Option<T> {
        self.settings.get(queue).and_then(|(settings, _)| field(settings))
    }

    /// The circle of dead-letter queues that these settings of a queue would close. There is none before, so that it goes
    /// through this queue.
    pub fn circle(&self, name: &QueueName, settings: &QueueSettings) -> Option<Vec<QueueName>> {
        let mut circle = vec![name.clone()];
        let mut next = settings.dead_letter.clone();
        while let Some(queue) = next {
            circle.push(queue.clone());
            if queue == *name {
                return Some(circle);
            }
            next = self.setting(&queue, |settings| settings.dead_letter.clone());
        }
        None
    }

    /// How long a job is kept once it is done: as its queue keeps history, and for its result.
    pub fn kept_ms(&self, job: &Job) -> Option<u64> {
        let history = self.setting(&job.queue, |settings| settings.retain_done_ms).unwrap_or(0);
        let of_queue = || self.setting(&job.queue, |settings| settings.retain_result_ms).unwrap_or(0);
        let longest = history.max(job.first.retain_result_ms.unwrap_or_else(of_queue));
        Some(longest).filter(|ms| *ms > 0)
    }

    pub fn max_jobs(&self, queue: &QueueName) -> Option<u64> {
        self.setting(queue, |settings| settings.max_jobs)
    }

    pub fn unfinished(&self, queue: &QueueName) -> u64 {
        self.jobs.values().filter(|job| job.queue == *queue && job.is_unfinished()).count() as u64
    }

    /// A new job, with its key.
    pub fn store(&mut self, new: &NewJob) {
        if let Some(hold) = &new.key {
            let key = Key {
                job: new.id.clone(),
                payload: new.spec.payload.clone(),
                until: hold.until,
                run_at: new.run_at,
                lasts: hold.lasts,
            };
            self.keys.insert((new.queue.clone(), hold.key.clone()), key);
        }
        self.put(Job::pushed(new));
    }

    /// The job that has this key, if one has it.
    pub fn has_key(&self, queue: &QueueName, name: &JobKey, now: When) -> Option<JobId> {
        let key = self.keys.get(&(queue.clone(), name.clone()))?;
        self.is_taken((queue, name), key, now).then(|| key.job.clone())
    }

    /// The key that a job gets where it is moved to.
    pub fn take_key(&mut self, job: &Job, hold: &KeyHold) {
        let key = Key {
            job: job.id.clone(),
            payload: job.payload.clone(),
            until: hold.until,
            run_at: job.run_at.from,
            lasts: hold.lasts,
        };
        self.keys.insert((job.queue.clone(), hold.key.clone()), key);
    }

    /// The key that is in the way of this job: taken until the later of its time and its job's end, and while that is dead.
    fn in_the_way(&self, new: &NewJob, now: When) -> Option<&Key> {
        let hold = new.key.as_ref()?;
        let key = self.keys.get(&(new.queue.clone(), hold.key.clone()))?;
        self.is_taken((&new.queue, &hold.key), key, now).then_some(key)
    }

    /// Whether a key is taken: it depends on what its job was pushed with.
    pub fn is_taken(&self, (queue, name): (&QueueName, &JobKey), key: &Key, now: When) -> bool {
        let holder = self.jobs.get(&key.job);
        let has_time = !When::at(key.until).is_past(now);
        match key.lasts {
            KeyUntil::Finished => has_time || holder.is_some_and(Job::holds_key),
            KeyUntil::Reserved => {
                holder.is_some_and(|job| job.waits() && job.queue == *queue && job.key.as_ref() == Some(name))
            }
            KeyUntil::Ttl => has_time,
        }
    }

    /// The job that has the key of this one, if what it does is to be replaced.
    fn to_replace(&self, new: &NewJob, key: &Key) -> Option<Job> {
        let hold = new.key.as_ref().filter(|hold| hold.conflict == KeyConflict::Replace)?;
        let holder = self.jobs.get(&key.job).filter(|job| job.waits())?;
        (holder.key.as_ref() == Some(&hold.key) && holder.queue == new.queue).then(|| holder.clone())
    }

    fn replace(&mut self, new: &NewJob, holder: Job, told: &Pushed, now: When) -> Checked {
        let id = holder.id.clone();
        let (run_at, payload) = (When::at(new.run_at), new.spec.payload.clone());
        let expires_at = Job::pushed(new).expires_at;
        let next = Job { run_at, expires_at, payload: payload.clone(), ..holder };
        self.put(next);
        if let Some(hold) = &new.key
            && let Some(key) = self.keys.get_mut(&(new.queue.clone(), hold.key.clone()))
        {
            (key.payload, key.run_at, key.until) = (payload, new.run_at, key.until.max(hold.until));
        }
        let states = self.jobs.get(&id).map(|job| job.visible(now)).unwrap_or_default();
        match told {
            Pushed::Replaced { id: other, state, run_at }
                if *other == id && states.contains(state) && *run_at == new.run_at =>
            {
                Ok(())
            }
            told => Err(format!("{} was told {told:?}; it replaces what {id} does", new.id)),
        }
    }

    /// What a push of several told of each of them. Which of them find the last room in a queue, nobody promises.
    pub fn push(&mut self, jobs: &[NewJob], told: &[Pushed], now: When) -> Checked {
        let mut full: BTreeSet<&QueueName> = BTreeSet::new();
        let mut taken: BTreeSet<&QueueName> = BTreeSet::new();
        for (new, told) in jobs.iter().zip(told) {
            let in_the_way = self.in_the_way(new, now).cloned();
            if let Some(holder) = in_the_way.as_ref().and_then(|key| self.to_replace(new, key)) {
                self.replace(new, holder, told, now)?;
                continue;
            }
            let shares = new.key.as_ref().is_none_or(|hold| hold.conflict != KeyConflict::Refuse);
            match (&in_the_way, told) {
                (Some(key), told) => {
                    let holder = self.jobs.get(&key.job);
                    let states = holder.map_or(vec![Visible::Done], |job| job.visible(now));
                    let is_right = match told {
                        Pushed::Duplicate { id, state, run_at } => {
                            let due = holder.map_or(When::at(key.run_at), |job| job.run_at);
                            shares
                                && key.payload == new.spec.payload
                                && *id == key.job
                                && states.contains(state)
                                && due.has(*run_at)
                        }
                        Pushed::KeyConflict { id } => {
                            (!shares || key.payload != new.spec.payload) && *id == key.job
                        }
                        _ => false,
                    };
                    if !is_right {
                        return Err(format!("{} was told {told:?}; its key is taken by {key:?}", new.id));
                    }
                }
                (None, Pushed::Created | Pushed::Blocked) => {
                    taken.insert(&new.queue);
                    self.store(new);
                    let is_blocked = self.jobs.get(&new.id).is_some_and(|job| job.state == State::Blocked);
                    if is_blocked != (*told == Pushed::Blocked) {
                        return Err(format!("{} was told {told:?}; its line is {:?}", new.id, self.lines));
                    }
                }
                (None, Pushed::Full) => drop(full.insert(&new.queue)),
                (None, told) => return Err(format!("{} was told {told:?}; its key is free", new.id)),
            }
        }
        for queue in taken.union(&full) {
            let (there, most) = (self.unfinished(queue), self.max_jobs(queue).unwrap_or(u64::MAX));
            if taken.contains(queue) && there > most {
                return Err(format!("{queue} took more than its {most} jobs: {there}"));
            }
            if full.contains(queue) && there < most {
                return Err(format!("{queue} refused a job, but has {there} of {most}"));
            }
        }
        Ok(())
    }

    /// What is to become of jobs that are pushed together with something else, which has happened: all of them are
    /// stored, or none. Where `from` is a job that went on in another queue with that, it takes no room from them.
    pub fn admit(
        &self,
        jobs: &[NewJob],
        from: Option<&JobId>,
        now: When,
    ) -> Result<Vec<Admitted>, PushRefused> {
        let moved = from.and_then(|id| self.jobs.get(id)).filter(|job| job.is_unfinished());
        let mut children: Vec<Admitted> = Vec::new();
        let mut arrived: BTreeMap<&QueueName, u64> = BTreeMap::new();
        for (index, new) in jobs.iter().enumerate() {
            let refused = |key_of| Err(PushRefused { index, queue: new.queue.clone(), key_of });
            let name = |new: &NewJob| Some((new.queue.clone(), new.key.as_ref()?.key.clone()));
            let lasts = |other: &&NewJob| {
                let hold = other.key.as_ref();
                hold.is_some_and(|hold| hold.lasts != KeyUntil::Ttl || !When::at(hold.until).is_past(now))
            };
            let same = |other: &&NewJob| name(new).is_some() && name(other) == name(new);
            let sibling = jobs[..index].iter().filter(same).find(lasts);
            // Siblings all meet whoever has the key already.
            let holder = match (self.in_the_way(new, now), sibling) {
                (Some(key), _) => {
                    let due = self.jobs.get(&key.job).map_or(When::at(key.run_at), |job| job.run_at);
                    Some((&key.job, &key.payload, due))
                }
                (None, Some(first)) => Some((&first.id, &first.spec.payload, When::at(first.run_at))),
                (None, None) => None,
            };
            let (id, run_at, is_new) = match holder {
                Some((id, payload, _)) if *payload != new.spec.payload => return refused(Some(id.clone())),
                Some((id, _, run_at)) => (id, run_at, false),
                None => {
                    let moved = u64::from(moved.is_some_and(|job| job.queue == new.queue));
                    let arrived = arrived.entry(&new.queue).or_default();
                    let there = self.unfinished(&new.queue) - moved + *arrived;
                    if self.max_jobs(&new.queue).is_some_and(|most| there >= most) {
                        return refused(None);
                    }
                    *arrived += 1;
                    (&new.id, When::at(new.run_at), true)
                }
            };
            children.push(Admitted { id: id.clone(), queue: new.queue.clone(), run_at, is_new });
        }
        Ok(children)
    }

    /// Stores those that were admitted.
    pub fn store_admitted(&mut self, jobs: &[NewJob], children: &[Admitted]) {
        for (new, child) in jobs.iter().zip(children) {
            if child.is_new {
                self.store(new);
            }
        }
    }

    /// The jobs of a queue that can be delivered: the highest priority first, then the earliest, then by id.
    pub fn deliverable(&self, queue: &QueueName, now: When) -> Vec<JobId> {
        let mut jobs: Vec<&Job> =
            self.jobs.values().filter(|job| job.queue == *queue && job.is_deliverable(now)).collect();
        jobs.sort_by_key(|job| (-i64::from(job.priority), job.run_at.from, job.id.clone()));
        jobs.into_iter().map(|job| job.id.clone()).collect()
    }

    /// Forgets what has been kept for long enough.
    pub fn prune(&mut self, now: When) {
        let is_over = |purge_at: Option<When>| purge_at.is_some_and(|at| at.is_past(now));
        let over: Vec<JobId> =
            self.jobs.values().filter(|job| is_over(job.purge_at)).map(|job| job.id.clone()).collect();
        over.iter().for_each(|id| self.remove(id));
        let over = self.batches.extract_if(.., |_, batch| is_over(batch.purge_at));
        self.touched_batches.extend(over.map(|(id, _)| id));
    }

    /// Every moment that the model waits for.
    pub fn moments(&self) -> impl Iterator<Item = Timestamp> {
        let batches = self.batches.values().filter_map(|batch| Some(batch.purge_at?.to));
        let silences = self.workers.values().map(|worker| worker.seen_at.plus(worker.report.timeout_ms).to);
        let started = self.jobs.values().filter_map(|job| {
            let timeout_ms = self.workers.get(job.worker.as_ref()?)?.report.timeout_ms;
            let alive_at = job.started_at.into_iter().chain(job.extended_at).map(|when| when.to).max()?;
            Some(alive_at.plus_ms(timeout_ms))
        });
        let keys = self.keys.values().map(|key| key.until);
        self.jobs.values().flat_map(Job::moments).chain(batches).chain(silences).chain(started).chain(keys)
    }
}
