//! One look for everybody who waits: instead of a poll by each of them.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Instant;

use tokio::sync::Notify;

use super::{Queues, Result};
use crate::job::QueueName;
use crate::store::StoreError;

/// When a sweep is wanted sooner than the next one comes by itself, and a bell that tells of it.
#[derive(Default)]
pub(super) struct PollAlarm {
    by: Mutex<Option<Instant>>,
    bell: Notify,
}

impl PollAlarm {
    fn by(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.by.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Queues {
    /// A sweep is wanted at this moment.
    pub(super) fn sweep_by(&self, at: Instant) {
        let mut by = self.0.sweep.by();
        *by = Some(by.map_or(at, |by| by.min(at)));
        drop(by);
        self.0.sweep.bell.notify_one();
    }

    /// When a sweep is wanted, if one is.
    pub fn sweep_wanted(&self) -> Option<Instant> {
        *self.0.sweep.by()
    }

    /// Rings when a sweep is wanted.
    pub fn sweep_bell(&self) -> &Notify {
        &self.0.sweep.bell
    }

    /// Looks for jobs that anybody on this server waits for, and begins to wake those who wait for the queues
    /// that have some. Answers how many were woken at once.
    pub async fn sweep(&self) -> Result<u64> {
        // What is wanted from here on is wanted of the next sweep.
        *self.0.sweep.by() = None;
        let (names, prefixes) = self.0.wakeups.waited_for();
        let mut queues = BTreeSet::from_iter(names);
        for prefix in prefixes {
            queues.extend(self.queues_of(&prefix).await?);
        }
        let rules = self.rules();
        let queues: Vec<QueueName> = queues.into_iter().filter(|queue| !rules.paused(queue)).collect();
        if queues.is_empty() {
            return Ok(0);
        }
        let stocked = self.0.store.stocked(&queues).await?;
        let woken = stocked.iter().filter(|queue| self.0.wakeups.wake_in_turn(queue));
        Ok(woken.count() as u64)
    }

    /// The store stays away: who waits is told so, as if it had asked now.
    pub fn end_waits(&self) {
        self.0.away.notify_waiters();
    }

    /// What those are told who waited while the store stayed away.
    pub(super) fn stayed_away() -> StoreError {
        StoreError::unavailable("the store stayed away while the call waited")
    }
}
