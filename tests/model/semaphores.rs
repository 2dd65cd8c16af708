//! Semaphores in the model: who holds them, who waits, and who is called. Nobody loses patience in these runs; but room is
//! kept for a moment for who was called, which the model does not foresee to the millisecond: there it only knows what
//! must not happen.

use std::collections::{BTreeMap, BTreeSet};

use tailback::job::{BatchId, JobId, QueueName, SemaphoreName, State, Timestamp};
use tailback::store::{NEEDED_NAMED, Needed, Removal, Unblocked};

use super::batches::Batch;
use super::drafts::semaphore;
use super::job::{Job, Waits};
use super::state::{Checked, Model};
use super::steps::SEMAPHORES;
use super::world::{World, fault};

/// More than a run ever has of anything.
const ALL: usize = 10_000;
/// So many of those who wait are looked at, and so many of a queue are called at once.
const LOOKED_AT: usize = 32;
const CALLED_AT_ONCE: u64 = 8;
/// More rounds than it takes until all who have room are called and claimed.
const ROUNDS: usize = 300;

fn names() -> Vec<SemaphoreName> {
    (0..SEMAPHORES.len() as u8).map(semaphore).collect()
}

/// The order of delivery.
fn rank(job: &Job) -> (i64, Timestamp, JobId) {
    (-i64::from(job.priority), job.run_at.from, job.id.clone())
}

impl Model {
    fn needing<'a>(&'a self, name: &'a SemaphoreName) -> impl Iterator<Item = &'a Job> {
        self.jobs.values().filter(move |job| job.semaphores.contains(name))
    }

    /// The batches that are not over and whose callbacks need it.
    fn needing_callbacks(&self, name: &SemaphoreName) -> BTreeSet<BatchId> {
        let open = self.batches.values().filter(|batch| batch.finished_at.is_none());
        let needs = |batch: &&Batch| {
            batch.on_finished.as_ref().is_some_and(|callback| callback.semaphores.contains(name))
        };
        open.filter(needs).map(|batch| batch.id.clone()).collect()
    }

    pub fn held(&self, name: &SemaphoreName) -> u64 {
        self.needing(name).filter(|job| job.state == State::Reserved).count() as u64
    }

    /// One that there is not has no room.
    pub fn capacity(&self, name: &SemaphoreName) -> u64 {
        self.semaphores.get(name).copied().unwrap_or(0)
    }

    fn is_called(job: &Job) -> bool {
        job.state == State::Ready && job.waiting_since.is_some()
    }

    /// The semaphores of which room may be kept, and for whom: once for each job that was called.
    pub fn kept_for(&self) -> Vec<(SemaphoreName, i32)> {
        let called = self.jobs.values().filter(|job| Self::is_called(job));
        called.flat_map(|job| job.semaphores.iter().map(|name| (name.clone(), job.priority))).collect()
    }

    /// The jobs that a semaphore blocks, by their queues, in the order of delivery.
    fn waiting(&self, name: &SemaphoreName) -> BTreeMap<QueueName, Vec<&Job>> {
        let mut all: BTreeMap<QueueName, Vec<&Job>> = BTreeMap::new();
        for job in self.jobs.values().filter(|job| job.waits_for == Waits::For(name.clone())) {
            all.entry(job.queue.clone()).or_default().push(job);
        }
        all.values_mut().for_each(|jobs| jobs.sort_by_key(|job| rank(job)));
        all
    }

    /// Whether these were to be called, and become ready.
    fn call(&mut self, names: &[SemaphoreName], called: &BTreeSet<JobId>, told: &[Unblocked]) -> Checked {
        let mut expected = Vec::new();
        for name in names {
            let room = self.capacity(name).saturating_sub(self.held(name)).min(CALLED_AT_ONCE) as usize;
            let own = |job: &&Job| called.contains(&job.id);
            // Room is kept for those who were called from those behind them alone.
            let is_behind_others = |first: &Job| {
                self.needing(name).any(|job| {
                    let elsewhere = called.contains(&job.id) && job.waits_for != Waits::For(name.clone());
                    (Self::is_called(job) || elsewhere) && rank(job) < rank(first)
                })
            };
            let is_long = self.needing(name).filter(|job| job.waiting_since.is_some()).count() > LOOKED_AT;
            for (queue, waiting) in self.waiting(name) {
                let count = waiting.iter().copied().filter(own).count();
                let ids: Vec<&JobId> = waiting.iter().map(|job| &job.id).collect();
                let in_order = waiting.iter().take(count).all(|job| called.contains(&job.id));
                let left = waiting.get(count).copied().filter(|_| count < room);
                let is_enough = is_long || left.is_none_or(is_behind_others);
                if !in_order || count > room || !is_enough {
                    return Err(format!(
                        "{name} has room for {room}; of {ids:?} in {queue} it called {called:?}"
                    ));
                }
                expected.extend(waiting.into_iter().take(count).cloned());
            }
        }
        let places =
            |(queue, priority, run_at): (&QueueName, i32, Timestamp)| (queue.clone(), priority, run_at);
        let mut own: Vec<_> =
            expected.iter().map(|job| places((&job.queue, job.priority, job.run_at.from))).collect();
        let mut seen: Vec<_> =
            told.iter().map(|called| places((&called.queue, called.priority, called.run_at))).collect();
        own.sort();
        seen.sort();
        if own != seen {
            return Err(format!("a call told {told:?}, but called {own:?}"));
        }
        if !told.is_sorted_by_key(|called| -i64::from(called.priority)) {
            return Err(format!("a call told {told:?}: not the highest priority first"));
        }
        for job in expected {
            self.put(Job { state: State::Ready, waits_for: Waits::No, ..job });
        }
        Ok(())
    }
}

impl World<'_> {
    pub async fn save_semaphore(&mut self, place: u8, capacity: Option<u64>) -> Checked {
        let name = semaphore(place);
        if let Some(capacity) = capacity {
            self.say(format!("semaphore {name} of {capacity}"));
            self.store.save_semaphore(&name, capacity).await.map_err(fault)?;
            self.model.semaphores.insert(name, capacity);
            return Ok(());
        }
        let told = self.store.remove_semaphore(&name).await.map_err(fault)?;
        self.say(format!("remove the semaphore {name} -> {told:?}"));
        let is_there = self.model.semaphores.contains_key(&name);
        let needing = self.model.needing(&name).filter(|job| job.state != State::Done).count() as u64;
        let called_back = self.model.needing_callbacks(&name);
        let is_right = match &told {
            Removal::Unknown => !is_there,
            Removal::Done => is_there && needing == 0 && called_back.is_empty(),
            Removal::InUse(needed) if needing > 0 => is_there && needed.jobs == needing,
            Removal::InUse(Needed { jobs, callbacks, .. }) => {
                let named = callbacks.iter().all(|(id, _)| called_back.contains(id));
                is_there && *jobs == 0 && named && callbacks.len() == called_back.len().min(NEEDED_NAMED)
            }
        };
        if told == Removal::Done {
            self.model.semaphores.remove(&name);
        }
        if is_right {
            Ok(())
        } else {
            Err(format!("a removal told {told:?}, where {needing} jobs and {called_back:?} need it"))
        }
    }

    /// Calls those who wait for one semaphore, or for any; false where nobody was called.
    pub async fn call(&mut self, place: Option<u8>) -> Result<bool, String> {
        let asked = place.map(|place| vec![semaphore(place)]);
        let meant = match &asked {
            Some(names) => names.clone(),
            None => self.store.waited_for(None, ALL).await.map_err(fault)?,
        };
        let told = self.store.unblock_waiters(&meant, &self.rules).await.map_err(fault)?;
        self.say(format!("call {asked:?} -> {told:?}"));
        let names = asked.unwrap_or_else(names);
        let blocked = names.iter().flat_map(|name| self.model.waiting(name).into_values().flatten());
        let blocked: Vec<JobId> = blocked.map(|job| job.id.clone()).collect();
        let seen = self.store.get(&blocked).await.map_err(fault)?.into_iter().flatten().flatten();
        let called = seen.filter(|job| job.meta.state == State::Ready).map(|job| job.meta.id);
        self.model.call(&names, &called.collect(), &told)?;
        self.model.touched.extend(blocked);
        self.after_call().await?;
        Ok(!told.is_empty())
    }

    /// What the store shows of semaphores.
    pub async fn check_semaphores(&mut self) -> Checked {
        let capacities = self.store.capacities(None, ALL).await.map_err(fault)?;
        let own: Vec<_> = self.model.semaphores.iter().map(|(name, most)| (name.clone(), *most)).collect();
        let names = names();
        let mut unknown = self.store.unknown_semaphores(&names).await.map_err(fault)?;
        unknown.sort();
        let expected: Vec<&SemaphoreName> =
            names.iter().filter(|name| !self.model.semaphores.contains_key(*name)).collect();
        if capacities != own || unknown.iter().ne(expected) {
            return Err(format!("the semaphores are {capacities:?} but {unknown:?}, expected {own:?}"));
        }
        let now = super::job::When::at(self.now()?);
        for view in self.store.semaphores(&names).await.map_err(fault)? {
            let (held, full) = (self.model.held(&view.name), view.held >= view.capacity);
            let waits = |job: &&Job| match job.state {
                State::Blocked => true,
                State::Ready => full && job.run_at.is_past(now),
                _ => false,
            };
            let waiting = self.model.needing(&view.name).filter(waits).count() as u64;
            if (view.held, view.waiting) != (held, waiting) {
                return Err(format!("{view:?}, expected {held} held and {waiting} waiting"));
            }
            let holders = self.store.holders(&view.name, ALL).await.map_err(fault)?;
            let seen: BTreeSet<&JobId> = holders.iter().map(|holder| &holder.id).collect();
            let own = self.model.needing(&view.name).filter(|job| job.state == State::Reserved);
            if seen != own.map(|job| &job.id).collect() {
                return Err(format!("{} is held by {holders:?}", view.name));
            }
        }
        Ok(())
    }

    /// In the end nothing that has room is left waiting, where nothing else limits deliveries.
    pub async fn give_all(&mut self) -> Checked {
        self.model.is_unlimited = true;
        self.rules = self.model.rules();
        for _ in 0..ROUNDS {
            let was_called = self.call(None).await?;
            self.reap().await?;
            let is_idle = !self.claim_everything().await? && !was_called;
            // A claim that wins nothing may block a job that an earlier one had left ready, since it knew a semaphore to be full.
            if is_idle && !self.call(None).await? {
                return self.check_nobody_waits();
            }
            self.settle_down().await?;
        }
        Err("there was no end to calls and claims".into())
    }

    fn check_nobody_waits(&self) -> Checked {
        let has_room = |name: &SemaphoreName| self.model.held(name) < self.model.capacity(name);
        for name in names().iter().filter(|name| has_room(name)) {
            // Who needs a full one as well waits for that.
            let free = |job: &&Job| job.waits_for != Waits::No && job.semaphores.iter().all(has_room);
            if let Some(job) = self.model.needing(name).find(free) {
                return Err(format!("{} waits for {:?}, which has room", job.id, job.waits_for));
            }
        }
        Ok(())
    }
}
