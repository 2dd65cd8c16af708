//! One poll on behalf of all waiters of this server, instead of a poll by each of them: the safety net under
//! the wake-ups, and how jobs are noticed that other programs wrote into the database. No poll while there
//! are no waiters.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::QueueName;
use crate::queue::Result;

/// So many failures in a row mean that the store stays away, and waiters should learn it.
const STAYS_AWAY: u32 = 2;

/// When the next regular poll comes, and how the last ones ended.
pub(super) struct PollState {
    next: Instant,
    failures: u32,
}

impl PollState {
    /// The first poll comes after this interval.
    pub fn new(interval: Duration) -> Self {
        Self { next: Instant::now() + interval, failures: 0 }
    }
}

impl Maintenance {
    /// Finds jobs that waiters on this server wait for, and wakes the first of them for each queue that has
    /// some. Counts the waiters that it woke. Where polls fail in a row, all waits end with an error.
    pub async fn poll_for_waiters(self: Arc<Self>) -> Result<Run> {
        let regular = lock(&self.poll).next;
        let at = self.queues.0.poll.wanted().map_or(regular, |at| at.min(regular));
        let wait = at.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Ok(Run { done: 0, again_in: Some(wait) });
        }
        match self.poll().await {
            Ok(done) => {
                *lock(&self.poll) = PollState::new(self.queues.options().poll);
                Ok(Run { done, again_in: None })
            }
            Err(error) => {
                let mut poll = lock(&self.poll);
                poll.failures += 1;
                // The next moment has passed already, so that the next run tries again.
                poll.next = Instant::now();
                if poll.failures >= STAYS_AWAY {
                    self.queues.0.away.notify_waiters();
                }
                Err(error)
            }
        }
    }

    async fn poll(&self) -> Result<u64> {
        let queues = &self.queues;
        queues.0.poll.begin();
        let (names, prefixes) = queues.0.waiters.waited_for();
        let mut wanted = BTreeSet::from_iter(names);
        wanted.extend(queues.queues_of_all(&prefixes).await?);
        let rules = queues.rules();
        let wanted: Vec<QueueName> = wanted.into_iter().filter(|queue| !rules.paused(queue)).collect();
        if wanted.is_empty() {
            return Ok(0);
        }
        let stocked = queues.0.store.stocked(&wanted).await?;
        let woken = stocked.iter().filter(|queue| queues.0.waiters.wake_in_turn(queue));
        Ok(woken.count() as u64)
    }
}
