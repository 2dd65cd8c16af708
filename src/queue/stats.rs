//! The figures that operators watch, from a cache. A task reads them about once a second while requests keep
//! coming, so that only the first request waits for the store; without requests it does not read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::meter::Flow;
use super::{Queues, Result};
use crate::job::{QueueName, Timestamp};
use crate::store::{Counts, QueueCounts, StoreError};

/// How old the counts may be.
const AGE_MAX: Duration = Duration::from_millis(900);
/// How old they are when they are read again.
const REFRESHED_AT: Duration = Duration::from_millis(600);
/// Without a request for so long, the cache is not refreshed any more.
const REFRESHED_FOR: Duration = Duration::from_millis(2500);

/// A cache of the last counts that were read.
#[derive(Default)]
pub(super) struct StatsCache {
    seen: Mutex<Seen>,
    /// Held while they are read.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Seen {
    /// The counts, and when reading them began.
    last: Option<(Instant, Arc<Stats>)>,
    wanted: Option<Instant>,
    is_refreshed: bool,
}

impl StatsCache {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the last counts, if they are younger than this.
    fn younger_than(&self, age: Duration) -> Option<Arc<Stats>> {
        let seen = self.seen();
        let (at, stats) = seen.last.as_ref()?;
        (at.elapsed() < age).then(|| stats.clone())
    }

    /// Notes a request. Returns whether a task must begin to refresh the counts, since requests keep coming.
    fn want(&self) -> bool {
        let mut seen = self.seen();
        let is_repeated = seen.wanted.is_some_and(|wanted| wanted.elapsed() < REFRESHED_FOR);
        seen.wanted = Some(Instant::now());
        is_repeated && !std::mem::replace(&mut seen.is_refreshed, true)
    }

    /// Returns whether the counts are still to be refreshed; if not, another task may begin to.
    fn is_wanted(&self) -> bool {
        let mut seen = self.seen();
        seen.is_refreshed = seen.wanted.is_some_and(|wanted| wanted.elapsed() < REFRESHED_FOR);
        seen.is_refreshed
    }
}

/// The counts of every queue, and the moment they are of.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// When they were counted, by the store's clock.
    pub at: Timestamp,
    /// Each queue that has jobs.
    pub queues: HashMap<QueueName, QueueCounts>,
    /// All of them together.
    total: QueueCounts,
}

/// The figures of one queue, or of all.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// Whether the split of `ready` and `scheduled` is of a moment ago.
    pub split_is_approximate: bool,
    /// For how long the job that has been ready for longest has been so, in milliseconds.
    pub oldest_ready_age_ms: Option<u64>,
    /// What happened lately on this server.
    pub flow: Flow,
}

impl Stats {
    fn new(at: Timestamp, queues: HashMap<QueueName, QueueCounts>) -> Self {
        let mut all = QueueCounts::default();
        let total = &mut all.counts;
        for QueueCounts { counts, .. } in queues.values() {
            total.ready += counts.ready;
            total.scheduled += counts.scheduled;
            total.reserved += counts.reserved;
            total.blocked += counts.blocked;
            total.dead += counts.dead;
            total.done += counts.done;
        }
        all.oldest_ready = queues.values().filter_map(|counts| counts.oldest_ready).min();
        all.split_is_approximate = queues.values().any(|counts| counts.split_is_approximate);
        Self { at, queues, total: all }
    }

    fn age_ms(&self, counts: &QueueCounts) -> Option<u64> {
        counts.oldest_ready.map(|oldest| self.at.ms_since(oldest))
    }

    /// Returns the counts of a queue, and the age of its oldest ready job.
    pub fn of(&self, queue: &QueueName) -> (Counts, Option<u64>) {
        self.queues.get(queue).map(|counts| (counts.counts, self.age_ms(counts))).unwrap_or_default()
    }

    fn figures(&self, counts: &QueueCounts, flow: Flow) -> Figures {
        Figures {
            counts: counts.counts,
            split_is_approximate: counts.split_is_approximate,
            oldest_ready_age_ms: self.age_ms(counts),
            flow,
        }
    }
}

impl Queues {
    /// Returns the counts of every queue, at most a second old.
    pub async fn stats(&self) -> Result<Arc<Stats>> {
        if self.0.stats.want() {
            tokio::spawn(self.clone().refresh_stats());
        }
        if let Some(stats) = self.0.stats.younger_than(AGE_MAX) {
            return Ok(stats);
        }
        // In a task of its own: a read that takes longer than the caller waits serves the next request.
        let this = self.clone();
        let reading = tokio::spawn(async move { this.read_stats(AGE_MAX).await });
        self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    /// Reads the counts, unless there are some that are younger than this.
    async fn read_stats(&self, age: Duration) -> Result<Arc<Stats>> {
        let _reading = self.0.stats.reading.lock().await;
        if let Some(stats) = self.0.stats.younger_than(age) {
            return Ok(stats);
        }
        // The age counts from before the query: the counts are about then.
        let began = Instant::now();
        let stats = Arc::new(Stats::new(self.now()?, self.0.store.counts().await?));
        self.0.stats.seen().last = Some((began, stats.clone()));
        Ok(stats)
    }

    /// Reads the counts again and again, before they are too old, for as long as requests keep coming.
    async fn refresh_stats(self) {
        while self.0.stats.is_wanted() && !self.is_draining() {
            // A request returns the error itself; here the next round retries.
            let read = self.read_stats(REFRESHED_AT).await;
            let age = self.0.stats.seen().last.as_ref().map(|(at, _)| at.elapsed());
            let rest = REFRESHED_AT.saturating_sub(age.filter(|_| read.is_ok()).unwrap_or_default());
            tokio::time::sleep(rest).await;
        }
    }

    /// Returns the figures of a queue.
    pub async fn figures(&self, queue: &QueueName) -> Result<Figures> {
        let stats = self.stats().await?;
        let counts = stats.queues.get(queue).cloned().unwrap_or_default();
        Ok(stats.figures(&counts, self.meter().flow(Some(queue))))
    }

    /// Returns the figures of all queues together, and how many queues have jobs.
    pub async fn total_figures(&self) -> Result<(Figures, usize)> {
        let stats = self.stats().await?;
        Ok((stats.figures(&stats.total, self.meter().flow(None)), stats.queues.len()))
    }
}
