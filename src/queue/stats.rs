//! The figures that operators watch. They are read at most once a second, whoever asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::meter::Flow;
use super::{Queues, Result};
use crate::job::{QueueName, Timestamp};
use crate::store::{Counts, QueueCounts, StoreError};

/// How old the counts may be.
const AGE_MAX: Duration = Duration::from_millis(900);

/// The last counts that were read. Whoever comes while they are being read waits for them.
#[derive(Default)]
pub(super) struct StatsCache(Mutex<Option<(Instant, Arc<Stats>)>>);

/// The counts of every queue, and the moment they are of.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// When they were counted, by the store's clock.
    pub at: Timestamp,
    /// Each queue that has jobs.
    pub queues: HashMap<QueueName, QueueCounts>,
}

/// The figures of one queue, or of all.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// For how long the job that has been ready for longest has been so, in milliseconds.
    pub oldest_ready_age_ms: Option<u64>,
    /// What happened lately on this server.
    pub flow: Flow,
}

impl Stats {
    fn age_ms(&self, counts: &QueueCounts) -> Option<u64> {
        counts.oldest_ready.map(|oldest| self.at.ms_since(oldest))
    }

    /// The counts of a queue, and the age of its oldest ready job.
    pub fn of(&self, queue: &QueueName) -> (Counts, Option<u64>) {
        self.queues.get(queue).map(|counts| (counts.counts, self.age_ms(counts))).unwrap_or_default()
    }

    /// The counts of all queues together, and the age of the oldest ready job.
    pub fn total(&self) -> (Counts, Option<u64>) {
        let mut total = Counts::default();
        for QueueCounts { counts, .. } in self.queues.values() {
            total.ready += counts.ready;
            total.scheduled += counts.scheduled;
            total.reserved += counts.reserved;
            total.blocked += counts.blocked;
            total.dead += counts.dead;
            total.done += counts.done;
        }
        (total, self.queues.values().filter_map(|counts| self.age_ms(counts)).max())
    }
}

impl Queues {
    /// The counts of every queue, at most a second old.
    pub async fn stats(&self) -> Result<Arc<Stats>> {
        // In a task of its own: counting that takes longer than the caller waits serves the next one.
        let this = self.clone();
        let counting = tokio::spawn(async move { this.count().await });
        self.in_time(counting).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    async fn count(&self) -> Result<Arc<Stats>> {
        let mut cached = self.0.stats.0.lock().await;
        if let Some((at, stats)) = &*cached
            && at.elapsed() < AGE_MAX
        {
            return Ok(stats.clone());
        }
        // The age counts from the moment the question was asked: the answer is about then.
        let asked = Instant::now();
        let stats = Arc::new(Stats { at: self.now()?, queues: self.0.store.counts().await? });
        *cached = Some((asked, stats.clone()));
        Ok(stats)
    }

    /// The figures of a queue.
    pub async fn figures(&self, queue: &QueueName) -> Result<Figures> {
        let (counts, oldest_ready_age_ms) = self.stats().await?.of(queue);
        Ok(Figures { counts, oldest_ready_age_ms, flow: self.meter().flow(Some(queue)) })
    }

    /// The figures of all queues together.
    pub async fn total_figures(&self) -> Result<Figures> {
        let (counts, oldest_ready_age_ms) = self.stats().await?.total();
        Ok(Figures { counts, oldest_ready_age_ms, flow: self.meter().flow(None) })
    }
}
