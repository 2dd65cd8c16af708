//! Quotas: how many queues, workers, schedules, semaphores and idempotency keys there may be.
//!
//! A name that is new to this server is compared with a count at the store that is at most a second old, plus what was stored
//! since and what calls in flight have taken places for. What is stored during a count may be in both, until the next one. So one
//! server never exceeds a limit, but for calls whose outcome is unknown, and may refuse for a second what there is still room for;
//! several servers may exceed it by what they add within the same second. At the limit
//! the store is asked which names exist already: existing names always keep working, and so do queues that were pushed to
//! within the last minute. What is in use costs no call of the store.
//!
//! Judged is what a call names (a push, a move, a route, a dead-letter queue), when it names it, and not what follows from it later.
//! A call that stores nothing leaves nothing behind: its places are given back, and a name is known only once something that
//! names it was stored.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::Shared;
use tokio::sync::oneshot;

use super::{Error, Queues, Result};
use crate::job::{QueueName, ScheduleName, SemaphoreName, WorkerName};
use crate::store::{Named, StoreError, chain};

/// How old a count may be when a name is new.
const COUNT_AGE: Duration = Duration::from_secs(1);
/// A name that was used within this, or twice this, is known.
const KNOWN: Duration = Duration::from_secs(60);
/// The most names that are known of each kind: a bound on memory.
const KNOWN_MAX: usize = 100_000;

/// About how many queues the store is asked at once.
const ASKED_MAX: usize = 1000;

/// How many there may be of each kind.
#[derive(Debug, Clone, Copy)]
pub struct Quotas {
    /// Queues that have jobs; also, queues that have settings.
    pub queues: u64,
    /// Workers that have sent a heartbeat lately.
    pub workers: u64,
    /// Schedules.
    pub schedules: u64,
    /// Semaphores.
    pub semaphores: u64,
    /// Idempotency keys that are remembered.
    pub keys: u64,
}

impl Quotas {
    fn of(&self, kind: Named) -> u64 {
        match kind {
            Named::Queues | Named::Settings => self.queues,
            Named::Workers => self.workers,
            Named::Schedules => self.schedules,
            Named::Semaphores => self.semaphores,
            Named::Requests => self.keys,
        }
    }
}

impl Named {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Queues => "queues with jobs",
            Self::Settings => "queues with settings",
            Self::Workers => "workers",
            Self::Schedules => "schedules",
            Self::Semaphores => "semaphores",
            Self::Requests => "idempotency keys",
        }
    }

    pub(super) fn option(self) -> &'static str {
        match self {
            Self::Queues | Self::Settings => "queues",
            Self::Workers => "workers",
            Self::Schedules => "schedules",
            Self::Semaphores => "semaphores",
            Self::Requests => "idempotency_keys",
        }
    }
}

/// The names of each kind that this server knows, and how many there are.
#[derive(Default)]
pub(super) struct Admission([Mutex<Names>; Named::ALL.len()]);

/// A count under way, which all who need one wait for.
type Counting = Shared<oneshot::Receiver<Result<(), StoreError>>>;

#[derive(Default)]
struct Names {
    known: HashSet<Box<str>>,
    /// Those of the minute before.
    known_before: HashSet<Box<str>>,
    turned: Option<Instant>,
    counting: Option<Counting>,
    /// When they were counted, and how many there were.
    counted: Option<(Instant, u64)>,
    /// How many were stored since.
    new: u64,
    /// The new names that calls in flight have places for, and how many calls have one of each.
    taken: HashMap<Box<str>, usize>,
}

impl Names {
    /// Returns whether a name was stored lately.
    fn is_known(&mut self, name: &str, now: Instant) -> bool {
        let turned = *self.turned.get_or_insert(now);
        if now.saturating_duration_since(turned) >= KNOWN || self.known.len() >= KNOWN_MAX {
            self.known_before = std::mem::take(&mut self.known);
            self.turned = Some(now);
        }
        self.known.contains(name)
    }

    fn is_counted(&self, now: Instant) -> bool {
        self.counted.is_some_and(|(at, _)| now.saturating_duration_since(at) < COUNT_AGE)
    }

    /// Takes a place for a new name, if there is one. Without a `limit` there is.
    fn take(&mut self, name: &str, limit: Option<u64>) -> bool {
        if let Some(calls) = self.taken.get_mut(name) {
            *calls += 1;
            return true;
        }
        let count = self.counted.map_or(0, |(_, count)| count);
        let count = count.saturating_add(self.new).saturating_add(self.taken.len() as u64);
        let has_room = limit.is_none_or(|limit| count < limit);
        if has_room {
            self.taken.insert(name.into(), 1);
        }
        has_room
    }

    /// A call that had a place for this name has stored something under it.
    fn keep(&mut self, name: Box<str>, is_used_again: bool) {
        if self.taken.remove(&name).is_some() {
            self.new += 1;
        }
        self.known_before.remove(&name);
        if is_used_again {
            self.known.insert(name);
        }
    }

    /// A call that had a place for this name has ended without that.
    fn give_back(&mut self, name: &str) {
        if let Some(calls) = self.taken.get_mut(name) {
            *calls -= 1;
            if *calls == 0 {
                self.taken.remove(name);
            }
        }
    }
}

/// The names that a call is about to use and this server has not seen lately. Those that are not kept are given back when this
/// is dropped.
#[must_use]
pub(super) struct Places {
    queues: Queues,
    kind: Named,
    names: HashSet<Box<str>>,
}

impl Places {
    /// Returns whether the call uses known names only.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Something was stored that names these.
    pub fn keep<'a>(&mut self, stored: impl Iterator<Item = &'a QueueName>) {
        if self.is_empty() {
            return;
        }
        let mut names = self.queues.names(self.kind);
        for stored in stored {
            if let Some(name) = self.names.take(stored.as_str()) {
                names.keep(name, true);
            }
        }
    }

    /// Returns what each element of a call names, where any of that is new.
    pub fn of_each(&self, named: impl Iterator<Item = Vec<QueueName>>) -> Vec<Vec<QueueName>> {
        if self.is_empty() { Vec::new() } else { named.collect() }
    }

    /// Keeps what those of the elements name that were stored.
    pub fn keep_stored<T>(&mut self, named: &[Vec<QueueName>], answers: &[Result<T>]) {
        let stored = named.iter().zip(answers).filter(|(_, answer)| answer.is_ok());
        self.keep(stored.flat_map(|(named, _)| named));
    }

    /// Keeps all of them.
    pub fn keep_all(mut self) {
        // A new schedule and an idempotency key are asked about once only.
        let is_used_again = !matches!(self.kind, Named::Requests | Named::Schedules);
        let mut names = self.queues.names(self.kind);
        self.names.drain().for_each(|name| names.keep(name, is_used_again));
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        if !self.is_empty() {
            let mut names = self.queues.names(self.kind);
            self.names.iter().for_each(|name| names.give_back(name));
        }
    }
}

impl Queues {
    fn names(&self, kind: Named) -> MutexGuard<'_, Names> {
        let Admission(names) = &self.0.admission;
        // The array has an element for each kind.
        let names = names.get(kind as usize).unwrap_or(&names[0]);
        names.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes sure that there is a count. All who need one at the same time wait for the same one, and share its failure: no
    /// caller waits for more than one that is under way. Returns whether the store can be counted.
    async fn count(&self, kind: Named) -> Result<bool> {
        let counting = {
            let mut names = self.names(kind);
            if names.is_counted(Instant::now()) {
                return Ok(true);
            }
            let begin = || {
                let (done, counting) = oneshot::channel();
                tokio::spawn(self.clone().count_now(kind, done));
                counting.shared()
            };
            names.counting.get_or_insert_with(begin).clone()
        };
        match self.in_time(counting).await? {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) if error.is_away() => Err(error.into()),
            // The store is there, but cannot count: its user lacks a right, or another program made the collection into something
            // else. That lasts until an operator mends it, and must not refuse every push to a queue that is new to this server
            // meanwhile. It is in the log as an error of the call. No client can bring it about: none of the counts reads what
            // clients have stored. A full disk, which they can, lets none of them store a name either.
            Ok(Err(_)) => Ok(false),
            Err(_) => {
                self.names(kind).counting = None; // it has panicked
                Ok(false)
            }
        }
    }

    async fn count_now(self, kind: Named, done: oneshot::Sender<Result<(), StoreError>>) {
        let (began, stored) = (Instant::now(), self.names(kind).new);
        let counted = self.0.store.how_many(kind, self.options().quotas.of(kind)).await;
        {
            let mut names = self.names(kind);
            names.counting = None;
            if let Ok(count) = &counted {
                names.counted = Some((began, *count));
                names.new = names.new.saturating_sub(stored);
            }
        }
        if let Err(error) = &counted {
            tracing::debug!(error = chain(error), ?kind, "names could not be counted");
        }
        let _ = done.send(counted.map(drop)); // all who wanted to know may have left
    }

    /// For a call that names nothing new.
    pub(super) fn no_places(&self, kind: Named) -> Places {
        Places { queues: self.clone(), kind, names: HashSet::new() }
    }

    /// Takes places for these names. Returns also those for which there is none. A store that can be reached and yet not be
    /// counted refuses none.
    async fn places<'a>(
        &self,
        kind: Named,
        new: impl Iterator<Item = &'a str> + Send,
    ) -> Result<(Places, HashSet<&'a str>)> {
        let mut places = self.no_places(kind);
        let new: Vec<&str> = {
            let names = self.names(kind);
            let (fading, new): (Vec<&str>, _) = new.partition(|name| names.known_before.contains(*name));
            places.names.extend(fading.into_iter().map(Box::from));
            new
        };
        if new.is_empty() {
            return Ok((places, HashSet::new()));
        }
        let limit = self.count(kind).await?.then(|| self.options().quotas.of(kind));
        let (taken, full): (HashSet<&str>, _) = {
            let mut names = self.names(kind);
            new.into_iter().partition(|name| names.take(name, limit))
        };
        places.names.extend(taken.into_iter().map(Box::from));
        Ok((places, full))
    }

    /// Refuses a name that would be one too many. `exists` is asked only where there is no room.
    async fn admit(
        &self,
        kind: Named,
        name: &str,
        exists: impl Future<Output = Result<bool>> + Send,
    ) -> Result<Places> {
        if self.names(kind).is_known(name, Instant::now()) {
            return Ok(self.no_places(kind));
        }
        let (mut places, full) = self.places(kind, std::iter::once(name)).await?;
        if full.is_empty() {
            return Ok(places);
        }
        if exists.await? {
            places.names.insert(name.into());
            return Ok(places);
        }
        Err(Error::LimitReached { kind, limit: self.options().quotas.of(kind) })
    }

    /// Returns those of these queues that this server does not know.
    pub(super) fn new_queues<'a>(&self, queues: impl Iterator<Item = &'a QueueName>) -> HashSet<QueueName> {
        let (mut names, now) = (self.names(Named::Queues), Instant::now());
        queues.filter(|queue| !names.is_known(queue.as_str(), now)).cloned().collect()
    }

    /// Takes places for these queues. Returns also those that do not exist, and would be too many: what one call names is asked
    /// about together.
    pub(super) async fn take_queues(&self, new: &HashSet<QueueName>) -> Result<(Places, HashSet<QueueName>)> {
        if new.is_empty() {
            return Ok((self.no_places(Named::Queues), HashSet::new()));
        }
        let (mut places, full) = self.places(Named::Queues, new.iter().map(QueueName::as_str)).await?;
        if full.is_empty() {
            return Ok((places, HashSet::new()));
        }
        let full: Vec<QueueName> =
            new.iter().filter(|queue| full.contains(queue.as_str())).cloned().collect();
        let mut refused = HashSet::new();
        for some in full.chunks(ASKED_MAX) {
            let there = self.0.store.with_jobs(some).await?;
            let rules = self.rules();
            for queue in some {
                if there.contains(queue) || rules.settings(queue).is_some() {
                    places.names.insert(queue.as_str().into());
                } else {
                    refused.insert(queue.clone());
                }
            }
        }
        Ok((places, refused))
    }

    /// Returns the error of the first of these queues that is among the refused.
    pub(super) fn check_queues<'a>(
        &self,
        refused: &HashSet<QueueName>,
        mut queues: impl Iterator<Item = &'a QueueName>,
    ) -> Result<()> {
        if refused.is_empty() || !queues.any(|queue| refused.contains(queue)) {
            return Ok(());
        }
        Err(Error::LimitReached { kind: Named::Queues, limit: self.options().quotas.queues })
    }

    /// Refuses queues that do not exist, and would be too many.
    pub(super) async fn admit_queues(&self, new: HashSet<QueueName>) -> Result<Places> {
        let (places, refused) = self.take_queues(&new).await?;
        self.check_queues(&refused, refused.iter())?;
        Ok(places)
    }

    /// Refuses the first settings of a queue that does not exist, if that would be one too many.
    pub(super) async fn admit_settings(&self, queue: &QueueName) -> Result<Places> {
        let exists = async { Ok(!self.0.store.with_jobs(std::slice::from_ref(queue)).await?.is_empty()) };
        self.admit(Named::Settings, queue.as_str(), exists).await
    }

    /// Refuses a worker that would be one too many.
    pub(super) async fn admit_worker(&self, worker: &WorkerName) -> Result<Places> {
        let exists = async { Ok(self.0.store.worker(worker).await?.is_some()) };
        self.admit(Named::Workers, worker.as_str(), exists).await
    }

    /// Refuses a semaphore that would be one too many.
    pub(super) async fn admit_semaphore(&self, name: &SemaphoreName) -> Result<Places> {
        let exists =
            async { Ok(self.0.store.unknown_semaphores(std::slice::from_ref(name)).await?.is_empty()) };
        self.admit(Named::Semaphores, name.as_str(), exists).await
    }

    /// Refuses a schedule that does not exist, and would be one too many.
    pub(super) async fn admit_new_schedule(&self, name: &ScheduleName) -> Result<Places> {
        self.admit(Named::Schedules, name.as_str(), async { Ok(false) }).await
    }

    /// Refuses an idempotency key that would be one too many.
    pub(super) async fn admit_request(&self, id: &str) -> Result<Places> {
        self.admit(Named::Requests, id, async { Ok(self.0.store.knows_request(id).await?) }).await
    }

    /// Something of this name was deleted: if it is made again it is compared with a count again.
    pub(super) fn forget(&self, kind: Named, name: &str) {
        let mut names = self.names(kind);
        names.known.remove(name);
        names.known_before.remove(name);
    }
}
