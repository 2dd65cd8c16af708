//! What operators watch beside the queues: workers, semaphores, schedules, and what the database takes. Read while a client asks,
//! at most every five seconds, and rarely where reading takes long.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Queues, Result};
use crate::job::SemaphoreName;
use crate::store::{self, Named, Pool, SemaphoreView, StoreError, StoreSize};

/// How old the figures may be.
const AGE_MAX: Duration = Duration::from_secs(5);
/// They may be so many times as old as reading them took.
const RESTS: u32 = 20;
/// Where a part could not be read, they are older than this for no other reason.
const AGE_MAX_IN_PART: Duration = Duration::from_secs(60);
/// The most semaphores that are listed: the first ones by name.
pub const LISTED_MAX: usize = 100;
/// How many of them are read in one call of the store, which counts the jobs of each.
const LISTED_AT_ONCE: usize = 10;

/// See the module's documentation. What could not be read is `None`.
#[derive(Debug, Clone, Default)]
pub struct Census {
    /// How many workers there are.
    pub workers: Option<u64>,
    /// How many schedules there are.
    pub schedules: Option<u64>,
    /// For how long the schedule that is due for longest has not run, in milliseconds.
    pub schedule_lag_ms: Option<u64>,
    /// How many semaphores there are.
    pub semaphores: Option<u64>,
    /// The first of them; those that could be read.
    pub listed: Vec<SemaphoreView>,
    /// What the database takes; `None` also where it does not say.
    pub size: Option<StoreSize>,
}

impl Census {
    /// Returns whether nothing could be read.
    fn is_empty(&self) -> bool {
        let counts = [self.workers, self.schedules, self.schedule_lag_ms, self.semaphores];
        counts.iter().all(Option::is_none) && self.listed.is_empty() && self.size.is_none()
    }

    /// For how long it holds that was read in this time. `is_whole`: every part of it could be read.
    fn holds(&self, took: Duration, is_whole: bool) -> Duration {
        let is_whole = is_whole
            && ![self.workers, self.schedules, self.schedule_lag_ms, self.semaphores].contains(&None);
        let most = if is_whole { Duration::MAX } else { AGE_MAX_IN_PART };
        AGE_MAX.max((took * RESTS).min(most))
    }
}

/// When reading began, for how long it holds, and what was read.
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
        let (at, holds, census) = last.as_ref()?;
        (at.elapsed() < *holds).then(|| census.clone())
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
        let began = Instant::now();
        let (mut census, names) = self.read_counts().await;
        let (listed, is_whole) = match names {
            Ok(names) => self.read_listed(&names).await,
            Err(_) => (Vec::new(), false),
        };
        census.listed = listed;
        if census.is_empty() {
            return Err(StoreError::unavailable("nothing could be read").into());
        }
        let (holds, census) = (census.holds(began.elapsed(), is_whole), Arc::new(census));
        let read = (Instant::now(), holds, census.clone());
        *self.0.census.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(read);
        Ok(census)
    }

    /// Returns all but the listed semaphores, each part for itself, and the names of those.
    async fn read_counts(&self) -> (Census, store::Result<Vec<SemaphoreName>>) {
        let (store, quotas) = (&self.0.store, &self.options().quotas);
        let (workers, schedules, semaphores, next, size, listed) = tokio::join!(
            store.how_many(Named::Workers, quotas.workers),
            store.how_many(Named::Schedules, quotas.schedules),
            store.how_many(Named::Semaphores, quotas.semaphores),
            store.next_occurrences(1),
            store.size(), // a user may lack the right to ask
            store.capacities(None, LISTED_MAX),
        );
        let lag = next.ok().zip(self.now().ok());
        let census = Census {
            workers: workers.ok(),
            schedules: schedules.ok(),
            schedule_lag_ms: lag.map(|(next, now)| next.first().map_or(0, |(_, at)| now.ms_since(*at))),
            semaphores: semaphores.ok(),
            listed: Vec::new(),
            size: size.ok(),
        };
        (census, listed.map(|listed| listed.into_iter().map(|(name, _)| name).collect()))
    }

    /// Returns these semaphores, and whether all could be read: some at a time, each call with a deadline of its own, up to the first that
    /// fails.
    async fn read_listed(&self, names: &[SemaphoreName]) -> (Vec<SemaphoreView>, bool) {
        let (mut listed, mut is_whole) = (Vec::new(), true);
        for names in names.chunks(LISTED_AT_ONCE) {
            match self.0.store.semaphores(names).await {
                Ok(views) => listed.extend(views),
                Err(_) => {
                    is_whole = false;
                    break;
                }
            }
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        (listed, is_whole)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_fails_neither_empties_the_census_nor_keeps_it_for_long() {
        let whole = Census {
            workers: Some(1),
            schedules: Some(1),
            schedule_lag_ms: Some(0),
            semaphores: Some(1),
            ..Census::default()
        };
        let part = Census { workers: Some(1), ..Census::default() };
        let s = Duration::from_secs;
        assert!(Census::default().is_empty() && !part.is_empty());
        assert_eq!((whole.holds(s(0), true), whole.holds(s(10), true)), (AGE_MAX, s(200)));
        assert_eq!(whole.holds(s(10), false), AGE_MAX_IN_PART, "not all semaphores were read");
        assert_eq!((part.holds(s(10), true), part.holds(s(0), true)), (AGE_MAX_IN_PART, AGE_MAX));
    }
}
