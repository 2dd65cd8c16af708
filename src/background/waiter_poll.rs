//! Looks for jobs on behalf of everybody who waits on this server: the safety net under the wake-ups, and how
//! jobs are noticed that other programs wrote into the database. One look for all, and none while nobody waits.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};

/// The longest sleep: a sweep that failed is tried again after it.
const TICK: Duration = Duration::from_secs(1);
/// So many failures in a row mean that the store stays away, and those who wait should know.
const STAYS_AWAY: u32 = 2;

/// See the module's documentation. Its runs count the waiters that they woke.
pub struct WaiterPoll {
    queues: Queues,
    /// When the next one comes by itself.
    next: Mutex<Instant>,
    failures: AtomicU32,
}

impl WaiterPoll {
    /// Sweeps for those who wait for these queues.
    pub fn new(queues: Queues) -> Self {
        let next = Mutex::new(Instant::now() + queues.options().poll);
        Self { queues, next, failures: AtomicU32::new(0) }
    }

    fn next(&self) -> MutexGuard<'_, Instant> {
        self.next.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[async_trait]
impl Task for WaiterPoll {
    fn name(&self) -> &'static str {
        "waiter_poll"
    }

    fn interval(&self) -> Duration {
        self.queues.options().poll.min(TICK)
    }

    fn bell(&self) -> Option<&Notify> {
        Some(self.queues.sweep_bell())
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let at = self.queues.sweep_wanted().into_iter().fold(*self.next(), Instant::min);
        let wait = at.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Ok(Run { done: 0, again_in: Some(wait) });
        }
        match self.queues.sweep().await {
            Ok(done) => {
                self.failures.store(0, Ordering::Relaxed);
                *self.next() = Instant::now() + self.queues.options().poll;
                Ok(Run { done, again_in: None })
            }
            Err(error) => {
                // The next moment stays in the past, so that the next run tries again.
                if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= STAYS_AWAY {
                    self.queues.end_waits();
                }
                *self.next() = Instant::now();
                Err(error)
            }
        }
    }
}
