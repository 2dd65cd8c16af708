//! What operators watch beside the queues: workers, semaphores, schedules, and what the database takes. Read while somebody asks,
//! at most every five seconds, and rarely where reading takes long.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Queues, Result};
use crate::store::{Named, Pool, SemaphoreView, StoreError, StoreSize};

/// How old the figures may be.
const AGE_MAX: Duration = Duration::from_secs(5);
/// They may be so many times as old as reading them took.
const RESTS: u32 = 20;
/// The most semaphores that are listed: the first ones by name.
pub const LISTED_MAX: usize = 100;

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Census {
    /// How many workers there are.
    pub workers: u64,
    /// How many schedules there are.
    pub schedules: u64,
    /// For how long the schedule that is due for longest has not run, in milliseconds.
    pub schedule_lag_ms: u64,
    /// How many semaphores there are.
    pub semaphores: u64,
    /// The first of them.
    pub listed: Vec<SemaphoreView>,
    /// What the database takes; `None` where it does not say.
    pub size: Option<StoreSize>,
}

/// When reading began, how long it took, and what was read.
type Read = (Instant, Duration, Arc<Census>);

/// The figures that were read last.
#[derive(Default)]
pub(super) struct CensusCache {
    last: Mutex<Option<Read>>,
    /// Held while they are read.
    reading: tokio::sync::Mutex<()>,
}

impl CensusCache {
    fn last(&self) -> Option<Arc<Census>> {
        let last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (at, took, census) = last.as_ref()?;
        (at.elapsed() < AGE_MAX.max(*took * RESTS)).then(|| census.clone())
    }
}

impl Queues {
    /// Returns the figures, some seconds old.
    pub async fn census(&self) -> Result<Arc<Census>> {
        if let Some(census) = self.0.census.last() {
            return Ok(census);
        }
        // In a task of its own: a read that takes longer than the caller waits serves the next request.
        let this = self.clone();
        let reading = tokio::spawn(async move { this.read_census().await });
        self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    async fn read_census(&self) -> Result<Arc<Census>> {
        let _reading = self.0.census.reading.lock().await;
        if let Some(census) = self.0.census.last() {
            return Ok(census);
        }
        let (store, quotas, began) = (&self.0.store, &self.options().quotas, Instant::now());
        let first = store.capacities(None, LISTED_MAX).await?;
        let names: Vec<_> = first.into_iter().map(|(name, _)| name).collect();
        let mut listed = store.semaphores(&names).await?;
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        let next = store.next_occurrences(1).await?;
        let now = self.now()?;
        let census = Arc::new(Census {
            workers: store.how_many(Named::Workers, quotas.workers).await?,
            schedules: store.how_many(Named::Schedules, quotas.schedules).await?,
            schedule_lag_ms: next.first().map_or(0, |(_, at)| now.ms_since(*at)),
            semaphores: store.how_many(Named::Semaphores, quotas.semaphores).await?,
            listed,
            size: store.size().await.ok(), // a user may lack the right to ask
        });
        let read = (began, began.elapsed(), census.clone());
        *self.0.census.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(read);
        Ok(census)
    }

    /// Returns how many calls wait for jobs or for the end of one on this server, and how many may.
    pub fn waiting_calls(&self) -> (usize, usize) {
        let most = self.options().waiting;
        (most.saturating_sub(self.0.waiting.available_permits()), most)
    }

    /// Returns how the connections of this server to the database are used.
    pub fn pool(&self) -> Option<Pool> {
        self.0.store.pool()
    }
}
