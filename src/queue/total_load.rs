//! What is tried again and what workers hold, of all queues together. No count is kept of that: it is read from the jobs, for those who
//! ask for it only, into a cache of its own. A store that is too slow for it holds up no other figure.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Queues;
use super::stats::Stats;
use crate::faults;
use crate::job::Timestamp;
use crate::store::{Load, chain};

/// How old it may be, and as how many times what reading it took where that is more; but this old at most.
const AGE: Duration = Duration::from_millis(900);
const RESTS: u32 = 20;
const AGE_MAX: Duration = Duration::from_secs(10);
/// How long a request waits for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is tried again and what workers hold, and the moment that it is of.
#[derive(Debug, Clone, Copy)]
pub struct TotalLoad {
    /// By the store's clock.
    pub at: Timestamp,
    /// Its oldest jobs are those of the queues whose oldest ready jobs are the oldest.
    pub load: Load,
}

/// The last one.
#[derive(Default)]
pub(super) struct LoadCache {
    last: Mutex<Option<Known>>,
    /// Held while it is read.
    reading: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy)]
struct Known {
    began: Instant,
    took: Duration,
    /// None: it could not be read, which is not tried again at once either.
    read: Option<TotalLoad>,
}

impl LoadCache {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<Known>> {
        self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn fresh(&self) -> Option<Known> {
        let known = (*self.last())?;
        let age = (known.took * RESTS).clamp(AGE, AGE_MAX);
        Some(known).filter(|known| known.began.elapsed() < age)
    }
}

impl Queues {
    /// Returns what is tried again and what workers hold in all queues; `None` where that could not be read in time.
    pub(super) async fn total_load(&self, stats: &Arc<Stats>) -> Option<TotalLoad> {
        if let Some(known) = self.0.loads.fresh() {
            return known.read;
        }
        // In a task of its own: a read that takes longer than the caller waits serves the next request.
        let (this, stats) = (self.clone(), stats.clone());
        let reading = tokio::spawn(async move { this.read_total_load(&stats).await });
        tokio::time::timeout(PATIENCE, reading).await.ok()?.ok()?
    }

    async fn read_total_load(&self, stats: &Stats) -> Option<TotalLoad> {
        let _reading = self.0.loads.reading.lock().await;
        if let Some(known) = self.0.loads.fresh() {
            return known.read;
        }
        let (began, at) = (Instant::now(), self.now().ok()?);
        faults::point("load.read").await;
        let read = self.0.store.total_load(&stats.oldest.queues).await;
        let read = read.inspect_err(|error| {
            tracing::debug!(error = chain(error), "cannot read what is tried again in all queues");
        });
        let read = read.ok().map(|mut load| {
            load.ages_are_partial |= stats.oldest.may_be_elsewhere(&load);
            TotalLoad { at, load }
        });
        *self.0.loads.last() = Some(Known { began, took: began.elapsed(), read });
        read
    }
}
