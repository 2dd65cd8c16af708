//! Semaphores: setting and reading them, and refusing jobs that name one which does not exist.
//!
//! What may have made room in a semaphore is only noted here; `maintenance` unblocks the jobs that wait for
//! it. So a server that dies in between delays them until another one checks all semaphores, a second later.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use tokio::sync::Notify;

use super::audit::{Act, shown};
use super::reached::{self, ByName};
use super::{Error, Page, Queues, Result};
use crate::job::semaphore::CAPACITY_MAX;
use crate::job::transition::Outcome;
use crate::job::{Invalid, JobSpec, QueueName, Reach, SemaphoreName, Timestamp};
use crate::store::audit::along;
use crate::store::{Applied, Holder, NEEDED_MAX, Named, Needed, Removal, SemaphoreView, StoreError};

/// The most holders that are shown.
pub const HOLDERS_MAX: usize = 1000;
/// How many schedules are read at once, where one of them may need a semaphore.
const SCHEDULES_READ: usize = 1000;
/// How long the cache holds that a semaphore exists.
const KNOWN: Duration = Duration::from_secs(1);
/// How many semaphores the cache holds.
const KNOWN_MAX: usize = 10_000;

/// What this server remembers of semaphores.
#[derive(Default)]
pub(super) struct SemaphoreNotes {
    /// Those that may have room now, until the jobs that wait for them are unblocked.
    offers: Mutex<BTreeSet<SemaphoreName>>,
    notify: Arc<Notify>,
    /// A cache of those that exist: when each was last found.
    known: Mutex<HashMap<SemaphoreName, Instant>>,
    /// Queues with jobs that are ready and wait for one that is full.
    refused: Mutex<HashMap<SemaphoreName, HashSet<QueueName>>>,
    /// When claims are retried for queues whose `rate` is used up.
    resume: Mutex<HashMap<QueueName, Timestamp>>,
}

impl SemaphoreNotes {
    /// Notified when a semaphore may have room.
    pub fn notify(&self) -> Arc<Notify> {
        self.notify.clone()
    }

    /// Takes the semaphores that may have room now.
    pub fn take_offers(&self) -> Vec<SemaphoreName> {
        std::mem::take(&mut *lock(&self.offers)).into_iter().collect()
    }

    /// Puts back offers that were taken, without notifying.
    pub fn put_back(&self, offers: Vec<SemaphoreName>) {
        lock(&self.offers).extend(offers);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Queues {
    /// Returns the semaphores whose names are within reach, by name.
    pub async fn semaphores(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<SemaphoreView, SemaphoreName>> {
        let page = reached::page(&Names(self), within, after, limit).await?;
        let mut views = self.0.store.semaphores(&page.items).await?;
        views.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Page { items: views, next: page.next })
    }

    /// Returns a semaphore and the first thousand jobs that hold it.
    pub async fn semaphore(&self, name: &SemaphoreName) -> Result<(SemaphoreView, Vec<Holder>)> {
        let found = self.0.store.semaphores(std::slice::from_ref(name)).await?;
        let view = found.into_iter().next().ok_or_else(|| Error::UnknownSemaphore(name.clone()))?;
        Ok((view, self.0.store.holders(name, HOLDERS_MAX).await?))
    }

    /// Creates a semaphore, or changes its capacity.
    pub async fn set_semaphore(
        &self,
        name: &SemaphoreName,
        capacity: u64,
    ) -> Result<(SemaphoreView, Vec<Holder>)> {
        if !(1..=CAPACITY_MAX).contains(&capacity) {
            return Err(Error::invalid("/capacity", "must be 1 to 1000000"));
        }
        let place = self.admit_semaphore(name).await?;
        let after = shown(&json!({"capacity": capacity}));
        let row = self.row(Act { what: "semaphore.set", on: name.as_str(), after, ..Act::default() });
        along(row, self.0.store.save_semaphore(name, capacity)).await?;
        place.keep_all();
        self.offer([name.clone()]);
        match self.semaphore(name).await {
            // "No such semaphore" would say that it was not set.
            Err(Error::UnknownSemaphore(_)) => {
                Err(StoreError::unavailable("the semaphore was set, and deleted before it was read").into())
            }
            found => found,
        }
    }

    /// Removes a semaphore that no job needs, be it done ones, no schedule, and no callback of a batch. The error names some of those that
    /// do, within these queues. A schedule or a batch that is made at this very moment is not noticed: its jobs are blocked then until the
    /// semaphore is made again.
    pub async fn delete_semaphore(&self, name: &SemaphoreName, within: &Reach) -> Result<()> {
        if let Some(by) = self.schedule_needing(name, within).await? {
            return Err(Error::SemaphoreInUse { name: name.clone(), by });
        }
        lock(&self.0.semaphores.known).remove(name);
        let row = self.row(Act { what: "semaphore.delete", on: name.as_str(), ..Act::default() });
        match along(row, self.0.store.remove_semaphore(name)).await? {
            Removal::Done => {
                self.forget(Named::Semaphores, name.as_str());
                Ok(())
            }
            Removal::Unknown => Err(Error::UnknownSemaphore(name.clone())),
            Removal::InUse(mut needed) => {
                needed.some.retain(|(_, queue, _)| within.has(queue));
                needed.callbacks.retain(|(_, queue)| within.has(queue));
                Err(Error::SemaphoreInUse { name: name.clone(), by: needing(&needed) })
            }
        }
    }

    /// Says which schedule needs a semaphore, if one does, by name where it is of these queues.
    async fn schedule_needing(&self, name: &SemaphoreName, within: &Reach) -> Result<Option<String>> {
        let mut after = None;
        loop {
            let page = self.0.store.schedules(after.as_ref(), SCHEDULES_READ).await?;
            let rules = page.iter().flatten().map(|schedule| (&schedule.name, &schedule.rule));
            let needing = rules.into_iter().find(|(_, rule)| rule.job.semaphores.contains(name));
            if let Some((schedule, rule)) = needing {
                let named = if within.has(&rule.queue) { format!(" {schedule}") } else { String::new() };
                return Ok(Some(format!("the schedule{named}")));
            }
            after = match page.into_iter().last() {
                None => return Ok(None),
                Some(Ok(schedule)) => Some(schedule.name),
                Some(Err((name, _))) => Some(name),
            };
        }
    }

    /// Returns the semaphores of these jobs that do not exist. Reads each at most once a second.
    pub(super) async fn unknown_semaphores<'a>(
        &self,
        specs: impl Iterator<Item = &'a JobSpec>,
    ) -> Result<HashSet<SemaphoreName>> {
        self.unknown_among(specs.flat_map(|spec| &spec.semaphores)).await
    }

    /// The same of these names, which may be there several times.
    pub(super) async fn unknown_among(
        &self,
        names: impl Iterator<Item = &SemaphoreName>,
    ) -> Result<HashSet<SemaphoreName>> {
        let now = Instant::now();
        let asked: BTreeSet<SemaphoreName> = {
            let known = lock(&self.0.semaphores.known);
            let is_known = |name: &&SemaphoreName| {
                known.get(*name).is_some_and(|seen| now.saturating_duration_since(*seen) < KNOWN)
            };
            names.filter(|name| !is_known(name)).cloned().collect()
        };
        if asked.is_empty() {
            return Ok(HashSet::new());
        }
        let asked: Vec<SemaphoreName> = asked.into_iter().collect();
        let unknown: HashSet<SemaphoreName> =
            self.0.store.unknown_semaphores(&asked).await?.into_iter().collect();
        let mut known = lock(&self.0.semaphores.known);
        if known.len() >= KNOWN_MAX {
            known.retain(|_, seen| now.saturating_duration_since(*seen) < KNOWN);
        }
        known.extend(asked.into_iter().filter(|name| !unknown.contains(name)).map(|name| (name, now)));
        Ok(unknown)
    }

    /// Refuses a job that names a semaphore which does not exist.
    pub(super) async fn check_semaphores(&self, spec: &JobSpec) -> Result<()> {
        Ok(check_known(spec, &self.unknown_semaphores(std::iter::once(spec)).await?)?)
    }

    /// Notes that these semaphores may have room now.
    pub(super) fn offer(&self, names: impl IntoIterator<Item = SemaphoreName>) {
        let names: Vec<SemaphoreName> = names.into_iter().collect();
        if names.is_empty() {
            return;
        }
        let mut queues: Vec<QueueName> = Vec::new();
        {
            let mut refused = lock(&self.0.semaphores.refused);
            names.iter().filter_map(|name| refused.remove(name)).for_each(|own| queues.extend(own));
        }
        lock(&self.0.semaphores.offers).extend(names);
        self.0.semaphores.notify.notify_one();
        for queue in queues {
            self.0.waiters.wake_in_turn(&queue);
        }
    }

    /// Notes the queues whose waiters are woken once these semaphores may have room. They are woken a moment later in any
    /// case, so that any may be forgotten where they are too many.
    pub(super) fn note_refused(&self, names: Vec<(SemaphoreName, QueueName)>) {
        if names.is_empty() {
            return;
        }
        let mut refused = lock(&self.0.semaphores.refused);
        if refused.len() >= KNOWN_MAX {
            refused.clear();
        }
        for (name, queue) in names {
            refused.entry(name).or_default().insert(queue);
        }
    }

    /// Notes the room that a change has made: in semaphores, and in a queue that limits how many jobs are
    /// reserved.
    pub(super) fn note_room(&self, applied: &Applied) {
        self.offer(applied.released.iter().cloned());
        let is_kept = matches!(applied.outcome, Outcome::Held { .. });
        if !is_kept && self.rules().max_reserved(&applied.queue).is_some() {
            self.0.waiters.wake(&applied.queue, 1);
        }
    }

    /// Wakes a waiter of the queue at this moment: a limit of the queue kept a claim from more jobs until
    /// then.
    pub(super) fn resume_at(&self, queue: QueueName, at: Timestamp) {
        {
            let mut resume = lock(&self.0.semaphores.resume);
            if resume.get(&queue).is_some_and(|known| *known <= at) {
                return; // a waiter is woken before that, and its claim says when to retry
            }
            resume.insert(queue.clone(), at);
        }
        let this = self.clone();
        tokio::spawn(async move {
            // A millisecond more: then the time has surely come, also by the estimate of the store's clock.
            let wait = this.now().map_or(0, |now| at.ms_since(now)) + 1;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                () = this.0.draining.cancelled() => return,
            }
            let mut resume = lock(&this.0.semaphores.resume);
            if resume.get(&queue) == Some(&at) {
                resume.remove(&queue);
            }
            drop(resume);
            this.0.waiters.wake_in_turn(&queue);
        });
    }
}

/// Says who needs a semaphore.
fn needing(needed: &Needed) -> String {
    if needed.jobs == 0 {
        let named = needed.callbacks.iter().map(|(id, queue)| format!("{id} (to {queue})"));
        let named: Vec<String> = named.collect();
        let which = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        return format!("what is pushed at the end of a batch{which}");
    }
    let most = if needed.jobs >= NEEDED_MAX as u64 { "at least " } else { "" };
    let jobs = if needed.jobs == 1 { "job" } else { "jobs" };
    let named = needed.some.iter().map(|(id, queue, state)| format!("{id} ({} in {queue})", state.as_str()));
    let named: Vec<String> = named.collect();
    let which = if named.is_empty() { String::new() } else { format!(", such as {}", named.join(", ")) };
    format!("{most}{} {jobs}{which}; a dead job may be redriven", needed.jobs)
}

/// The names of the semaphores.
struct Names<'a>(&'a Queues);

#[async_trait]
impl ByName for Names<'_> {
    type Name = SemaphoreName;
    type Item = SemaphoreName;

    async fn after(&self, after: Option<&SemaphoreName>, limit: usize) -> Result<Vec<SemaphoreName>> {
        let found = self.0.0.store.capacities(after, limit).await?;
        Ok(found.into_iter().map(|(name, _)| name).collect())
    }

    async fn at(&self, name: &SemaphoreName) -> Result<Option<SemaphoreName>> {
        let unknown = self.0.0.store.unknown_semaphores(std::slice::from_ref(name)).await?;
        Ok(unknown.is_empty().then(|| name.clone()))
    }

    fn name(item: &SemaphoreName) -> &SemaphoreName {
        item
    }
}

/// Refuses a job that names one of these semaphores, which do not exist.
pub(super) fn check_known(spec: &JobSpec, unknown: &HashSet<SemaphoreName>) -> Result<(), Invalid> {
    match spec.semaphores.iter().enumerate().find(|(_, name)| unknown.contains(name)) {
        Some((n, name)) => {
            let detail = format!("must name a semaphore that there is; nobody has made {name}");
            Err(Invalid::new(format!("/semaphores/{n}"), detail))
        }
        None => Ok(()),
    }
}
