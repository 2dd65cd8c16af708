//! Semaphores: setting and looking at them, refusing what names none, and calling those who wait.
//!
//! Whatever may have made room in a semaphore is only noted here; the task `semaphores` calls those who wait for it.
//! So a server that dies in between delays them until another one looks at all semaphores, a second later.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::push::NewPush;
use super::{Error, Page, Queues, Result};
use crate::job::semaphore::CAPACITY_MAX;
use crate::job::transition::Outcome;
use crate::job::{QueueName, SemaphoreName, Timestamp};
use crate::store::{Applied, Holder, Removal, SemaphoreView};

/// The most holders that are shown.
pub const HOLDERS_MAX: usize = 1000;
/// For how long a semaphore that was there is taken to be there.
const KNOWN: Duration = Duration::from_secs(1);
/// How many such semaphores are remembered.
const KNOWN_MAX: usize = 10_000;

/// What this server remembers of semaphores.
#[derive(Default)]
pub(super) struct SemaphoreNotes {
    /// Those that may have room now, until somebody is called.
    offers: Mutex<BTreeSet<SemaphoreName>>,
    bell: Notify,
    /// When each was seen to be there.
    known: Mutex<HashMap<SemaphoreName, Instant>>,
    /// When queues will be looked at again whose `rate` is used up.
    resume: Mutex<HashMap<QueueName, Timestamp>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Queues {
    /// Semaphores by name.
    pub async fn semaphores(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
    ) -> Result<Page<SemaphoreView, SemaphoreName>> {
        let named = self.0.store.capacities(after, limit + 1).await?;
        let page = Page::cut(named.into_iter().map(|(name, _)| name).collect(), limit, SemaphoreName::clone);
        let mut views = self.0.store.semaphores(&page.items).await?;
        views.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Page { items: views, next: page.next })
    }

    /// A semaphore and who holds it: the first thousand.
    pub async fn semaphore(&self, name: &SemaphoreName) -> Result<(SemaphoreView, Vec<Holder>)> {
        let found = self.0.store.semaphores(std::slice::from_ref(name)).await?;
        let view = found.into_iter().next().ok_or_else(|| Error::UnknownSemaphore(name.clone()))?;
        Ok((view, self.0.store.holders(name, HOLDERS_MAX).await?))
    }

    /// Makes a semaphore, or changes its capacity.
    pub async fn set_semaphore(
        &self,
        name: &SemaphoreName,
        capacity: u64,
    ) -> Result<(SemaphoreView, Vec<Holder>)> {
        if !(1..=CAPACITY_MAX).contains(&capacity) {
            return Err(Error::invalid("/capacity", "must be 1 to 1000000"));
        }
        self.0.store.save_semaphore(name, capacity).await?;
        self.offer([name.clone()]);
        self.semaphore(name).await
    }

    /// Removes a semaphore that no unfinished job needs.
    pub async fn delete_semaphore(&self, name: &SemaphoreName) -> Result<()> {
        lock(&self.0.semaphores.known).remove(name);
        match self.0.store.remove_semaphore(name).await? {
            Removal::Done => Ok(()),
            Removal::Unknown => Err(Error::UnknownSemaphore(name.clone())),
            Removal::InUse => Err(Error::SemaphoreInUse(name.clone())),
        }
    }

    /// Those semaphores of these jobs that there are not. Asks the store at most once a second for each.
    pub(super) async fn unknown_semaphores(
        &self,
        pushes: impl Iterator<Item = &NewPush>,
    ) -> Result<HashSet<SemaphoreName>> {
        let now = Instant::now();
        let asked: BTreeSet<SemaphoreName> = {
            let known = lock(&self.0.semaphores.known);
            let is_known = |name: &&SemaphoreName| {
                known.get(*name).is_some_and(|seen| now.saturating_duration_since(*seen) < KNOWN)
            };
            pushes.flat_map(|push| &push.semaphores).filter(|name| !is_known(name)).cloned().collect()
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

    /// Refuses a job that names a semaphore that there is not.
    pub(super) async fn check_semaphores(&self, push: &NewPush) -> Result<()> {
        push.check_known(&self.unknown_semaphores(std::iter::once(push)).await?)
    }

    /// These semaphores may have room now.
    pub(super) fn offer(&self, names: impl IntoIterator<Item = SemaphoreName>) {
        let mut names = names.into_iter().peekable();
        if names.peek().is_some() {
            lock(&self.0.semaphores.offers).extend(names);
            self.0.semaphores.bell.notify_one();
        }
    }

    /// Tells of the room that a change has made: in semaphores, and in a queue that limits how many are reserved.
    pub(super) fn note_room(&self, applied: &Applied) {
        self.offer(applied.released.iter().cloned());
        let is_kept = matches!(applied.outcome, Outcome::Held { .. });
        if !is_kept && self.rules().max_reserved(&applied.queue).is_some() {
            self.0.wakeups.wake(&applied.queue, 1);
        }
    }

    /// Rings when a semaphore may have room.
    pub fn semaphores_bell(&self) -> &Notify {
        &self.0.semaphores.bell
    }

    /// Makes jobs ready again that waited for semaphores which have room now, and wakes those who wait for them:
    /// for the semaphores that were noted, or where there are none (`all`) for every one. Answers how many.
    pub async fn call_waiting(&self, all: bool) -> Result<u64> {
        let offers: Vec<SemaphoreName> =
            std::mem::take(&mut *lock(&self.0.semaphores.offers)).into_iter().collect();
        let names = if all { None } else { Some(&*offers) };
        if names.is_some_and(<[_]>::is_empty) {
            return Ok(0);
        }
        let called = match self.0.store.unblock_waiters(names, &self.rules()).await {
            Ok(called) => called,
            Err(error) => {
                lock(&self.0.semaphores.offers).extend(offers); // for the next run
                return Err(error.into());
            }
        };
        for job in &called {
            self.announce(&job.queue, job.run_at);
        }
        Ok(called.len() as u64)
    }

    /// A limit of the queue kept a claim from more; from this moment on there may be more.
    pub(super) fn resume_at(&self, queue: QueueName, at: Timestamp) {
        {
            let mut resume = lock(&self.0.semaphores.resume);
            if resume.get(&queue).is_some_and(|known| *known <= at) {
                return; // somebody looks before that, and will be told again
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
            this.0.wakeups.wake_in_turn(&queue);
        });
    }
}

impl NewPush {
    /// Refuses a semaphore that is among these, which there are not.
    pub(super) fn check_known(&self, unknown: &HashSet<SemaphoreName>) -> Result<()> {
        match self.semaphores.iter().enumerate().find(|(_, name)| unknown.contains(name)) {
            Some((n, name)) => {
                let detail = format!("must name a semaphore that there is; nobody has made {name}");
                Err(Error::invalid(format!("/semaphores/{n}"), detail))
            }
            None => Ok(()),
        }
    }
}
