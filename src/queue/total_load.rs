//! What is tried again and what workers hold, of all queues together. No count is kept of that: it is read from the jobs, for those who
//! ask for it only, one read at a time. While a store is slow, requests get the last one, or none.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Queues;
use super::stats::Stats;
use crate::faults;
use crate::job::Timestamp;
use crate::store::{Load, chain};

/// How long after a read the next one begins at the earliest: this, or so many times what the last one took, but not more than the last.
const REST: Duration = Duration::from_millis(900);
const RESTS: u32 = 20;
const REST_MAX: Duration = Duration::from_secs(10);
/// How old it may be at most.
const AGE_MAX: Duration = Duration::from_secs(20);
/// How long a request waits for a read where the last one is of a moment ago, and else.
const PATIENCE: Duration = Duration::from_millis(50);
const PATIENCE_LATE: Duration = Duration::from_millis(500);

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
    state: Mutex<State>,
    /// A read has ended.
    read: Notify,
}

#[derive(Default)]
struct State {
    /// The last one that could be read, and when reading it began.
    last: Option<(Instant, TotalLoad)>,
    /// When the next read may begin, and how long after the last one that is.
    rests_until: Option<Instant>,
    rest: Duration,
    is_read: bool,
}

impl State {
    fn last(&self) -> Option<TotalLoad> {
        self.last.filter(|(began, _)| began.elapsed() < AGE_MAX).map(|(_, load)| load)
    }

    /// Returns how long a request waits for a read.
    fn patience(&self) -> Duration {
        let is_young = self.last.is_some_and(|(began, _)| began.elapsed() < self.rest * 2);
        if is_young { PATIENCE } else { PATIENCE_LATE }
    }

    /// Returns whether a read is to begin.
    fn begin(&mut self) -> bool {
        let may_begin = !self.is_read && self.rests_until.is_none_or(|until| until <= Instant::now());
        self.is_read |= may_begin;
        may_begin
    }
}

impl LoadCache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A read that ends when it is dropped, however it goes.
struct Reading {
    queues: Queues,
    began: Instant,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let loads = &self.queues.0.loads;
        let rest = (self.began.elapsed() * RESTS).clamp(REST, REST_MAX);
        {
            let mut state = loads.state();
            (state.is_read, state.rest, state.rests_until) = (false, rest, Some(Instant::now() + rest));
        }
        loads.read.notify_waiters();
    }
}

impl Queues {
    /// Returns what is tried again and what workers hold in all queues; `None` where that could not be read in time.
    pub(super) async fn total_load(&self, stats: &Arc<Stats>) -> Option<TotalLoad> {
        let loads = &self.0.loads;
        let read = loads.read.notified(); // from here on no end of a read is missed
        let (begins, waits, patience) = {
            let mut state = loads.state();
            let begins = state.begin();
            (begins, state.is_read, state.patience())
        };
        if begins {
            let (reading, stats) = (Reading { queues: self.clone(), began: Instant::now() }, stats.clone());
            tokio::spawn(async move { reading.read(&stats).await });
        }
        if waits {
            let _ = tokio::time::timeout(patience, read).await; // late: the last one is returned
        }
        loads.state().last()
    }
}

impl Reading {
    async fn read(&self, stats: &Stats) {
        let Ok(at) = self.queues.now() else { return };
        faults::point("load.read").await;
        match self.queues.0.store.total_load(&stats.oldest.queues).await {
            Ok(mut load) => {
                load.ages_are_partial |= stats.oldest.may_be_elsewhere(&load);
                self.queues.0.loads.state().last = Some((self.began, TotalLoad { at, load }));
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "cannot read what is tried again in all queues");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_a_read_unless_the_last_one_is_young() {
        let ago = |age_s| Instant::now().checked_sub(Duration::from_secs(age_s)).unwrap();
        let load = TotalLoad { at: Timestamp::default(), load: Load::default() };
        let last = |age_s, rest_s| State {
            last: Some((ago(age_s), load)),
            rest: Duration::from_secs(rest_s),
            ..State::default()
        };
        assert_eq!(State::default().patience(), PATIENCE_LATE);
        assert_eq!(last(90, 60).patience(), PATIENCE, "reading takes long");
        assert_eq!(last(3, 1).patience(), PATIENCE_LATE, "none has asked for a while");
        assert!(last(3, 1).last().is_some() && last(21, 1).last().is_none());
    }

    #[test]
    fn one_read_runs_at_a_time_and_rests() {
        let mut state = State::default();
        assert!(state.begin() && !state.begin());
        state.is_read = false;
        state.rests_until = Some(Instant::now() + Duration::from_secs(60));
        assert!(!state.begin());
        state.rests_until = Some(Instant::now());
        assert!(state.begin());
    }
}
