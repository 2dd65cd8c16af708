//! Quotas: how many queues, workers, schedules, semaphores and idempotency keys there may be.
//!
//! A name that is new to this server is compared with a count at the store that is at most a second old, plus what was new
//! since. So a limit is exact for one server, but for calls that overlap with a count, and may be exceeded by what several
//! servers add within the same second. At the limit
//! the store is asked whether the name exists already: existing names always keep working, and so do queues that were pushed to
//! within the last minute. What is in use costs no call of the store.
//!
//! Judged is what a call names (a push, a move, a route, a dead-letter queue), when it names it, and not what follows from it later.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Error, Queues, Result};
use crate::job::{QueueName, SemaphoreName, WorkerName};
use crate::store::{Named, QueueCounts, chain};

/// How old a count may be when a name is new.
const COUNT_AGE: Duration = Duration::from_secs(1);
/// A name that was used within this, or twice this, is known.
const KNOWN: Duration = Duration::from_secs(60);
/// The most names that are known of each kind: a bound on memory.
const KNOWN_MAX: usize = 100_000;

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
pub(super) struct Admission([Names; Named::ALL.len()]);

#[derive(Default)]
struct Names {
    seen: Mutex<Seen>,
    /// Held while they are counted.
    counting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Seen {
    known: HashSet<Box<str>>,
    /// Those of the minute before.
    known_before: HashSet<Box<str>>,
    turned: Option<Instant>,
    /// When they were counted, and how many there were.
    counted: Option<(Instant, u64)>,
    /// How many were new since.
    new: u64,
}

impl Seen {
    fn is_known(&mut self, name: &str, now: Instant) -> bool {
        let turned = *self.turned.get_or_insert(now);
        if now.saturating_duration_since(turned) >= KNOWN || self.known.len() >= KNOWN_MAX {
            self.known_before = std::mem::take(&mut self.known);
            self.turned = Some(now);
        }
        if self.known.contains(name) {
            return true;
        }
        if let Some(name) = self.known_before.take(name) {
            self.known.insert(name);
            return true;
        }
        false
    }

    fn is_counted(&self, now: Instant) -> bool {
        self.counted.is_some_and(|(at, _)| now.saturating_duration_since(at) < COUNT_AGE)
    }

    /// Takes a place for a new name, if there is one.
    fn take(&mut self, name: Option<&str>, limit: u64) -> bool {
        let has_room = self.counted.is_some_and(|(_, count)| count.saturating_add(self.new) < limit);
        if has_room {
            self.new += 1;
            self.known.extend(name.map(Box::from));
        }
        has_room
    }
}

impl Names {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Queues {
    fn names(&self, kind: Named) -> &Names {
        let Admission(names) = &self.0.admission;
        // The array has a place for each kind.
        names.get(kind as usize).unwrap_or(&names[0])
    }

    /// Returns whether there is room for a new name, which then is taken. A store that cannot be counted refuses none: the
    /// call itself reports that it is away.
    async fn has_room(&self, kind: Named, name: Option<&str>) -> bool {
        let (names, limit) = (self.names(kind), self.options().quotas.of(kind));
        let take = || {
            let mut seen = names.seen();
            seen.is_counted(Instant::now()).then(|| seen.take(name, limit))
        };
        if let Some(taken) = take() {
            return taken;
        }
        let _counting = names.counting.lock().await;
        if let Some(taken) = take() {
            return taken;
        }
        let began = Instant::now();
        match self.0.store.how_many(kind, limit).await {
            Ok(count) => {
                let mut seen = names.seen();
                (seen.counted, seen.new) = (Some((began, count)), 0);
                seen.take(name, limit)
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), ?kind, "names could not be counted");
                true
            }
        }
    }

    /// Refuses a name that would be one too many. `exists` is asked only where there is no room.
    async fn admit(
        &self,
        kind: Named,
        name: &str,
        exists: impl Future<Output = Result<bool>> + Send,
    ) -> Result<()> {
        let is_known = self.names(kind).seen().is_known(name, Instant::now());
        if is_known || self.has_room(kind, Some(name)).await {
            return Ok(());
        }
        if exists.await? {
            self.names(kind).seen().known.insert(name.into());
            return Ok(());
        }
        Err(Error::LimitReached { kind, limit: self.options().quotas.of(kind) })
    }

    /// Returns those of these queues that this server does not know.
    pub(super) fn new_queues<'a>(&self, queues: impl Iterator<Item = &'a QueueName>) -> HashSet<QueueName> {
        let (mut seen, now) = (self.names(Named::Queues).seen(), Instant::now());
        queues.filter(|queue| !seen.is_known(queue.as_str(), now)).cloned().collect()
    }

    /// Returns those of these queues that do not exist, and would be too many.
    pub(super) async fn refused_queues(&self, new: HashSet<QueueName>) -> Result<HashSet<QueueName>> {
        let mut refused = HashSet::new();
        for queue in new {
            match self.admit(Named::Queues, queue.as_str(), self.is_queue(&queue)).await {
                Ok(()) => {}
                Err(Error::LimitReached { .. }) => drop(refused.insert(queue)),
                Err(error) => return Err(error),
            }
        }
        Ok(refused)
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
    pub(super) async fn admit_queues(&self, new: HashSet<QueueName>) -> Result<()> {
        let refused = self.refused_queues(new).await?;
        self.check_queues(&refused, refused.iter())
    }

    async fn is_queue(&self, queue: &QueueName) -> Result<bool> {
        let is_configured = self.rules().settings(queue).is_some();
        Ok(is_configured || self.0.store.counts(queue).await? != QueueCounts::default())
    }

    /// Refuses the first settings of a queue that does not exist, if that would be one too many.
    pub(super) async fn admit_settings(&self, queue: &QueueName) -> Result<()> {
        self.admit(Named::Settings, queue.as_str(), self.is_queue(queue)).await
    }

    /// Refuses a worker that would be one too many.
    pub(super) async fn admit_worker(&self, worker: &WorkerName) -> Result<()> {
        let exists = async { Ok(self.0.store.worker(worker).await?.is_some()) };
        self.admit(Named::Workers, worker.as_str(), exists).await
    }

    /// Refuses a semaphore that would be one too many.
    pub(super) async fn admit_semaphore(&self, name: &SemaphoreName) -> Result<()> {
        let exists =
            async { Ok(self.0.store.unknown_semaphores(std::slice::from_ref(name)).await?.is_empty()) };
        self.admit(Named::Semaphores, name.as_str(), exists).await
    }

    /// Refuses a schedule that does not exist, and would be one too many.
    pub(super) async fn admit_new_schedule(&self) -> Result<()> {
        self.admit_new(Named::Schedules, async { Ok(false) }).await
    }

    /// Refuses an idempotency key that would be one too many. These names are used once or twice, and are not kept here.
    pub(super) async fn admit_request(&self, id: &str) -> Result<()> {
        self.admit_new(Named::Requests, async { Ok(self.0.store.knows_request(id).await?) }).await
    }

    async fn admit_new(&self, kind: Named, exists: impl Future<Output = Result<bool>> + Send) -> Result<()> {
        if self.has_room(kind, None).await || exists.await? {
            return Ok(());
        }
        Err(Error::LimitReached { kind, limit: self.options().quotas.of(kind) })
    }
}
