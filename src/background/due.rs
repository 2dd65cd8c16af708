//! Wakes waiters when scheduled jobs come due. Nothing happens to a job at its due time: this only saves
//! those who wait for it the time until their next look. Dormant while nobody waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::driver::{Run, Task};
use crate::job::{QueueName, Timestamp};
use crate::queue::{Error, Queues};
use crate::store::Store;

/// How many jobs one run looks ahead.
const LOOK_AHEAD: usize = 256;
/// The most that the estimate of the store's clock lags behind it, in milliseconds.
const LAG_MS: u64 = 100;

/// See the module's documentation. Its runs count the jobs that came due.
pub struct Due {
    queues: Queues,
    store: Arc<dyn Store>,
    /// What the last run saw coming.
    coming: Mutex<Vec<(QueueName, Timestamp)>>,
}

impl Due {
    /// Wakes who waits for these queues.
    pub fn new(queues: Queues, store: Arc<dyn Store>) -> Self {
        Self { queues, store, coming: Mutex::default() }
    }

    fn coming(&self) -> std::sync::MutexGuard<'_, Vec<(QueueName, Timestamp)>> {
        self.coming.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wakes those who wait for what has come due since the last run.
    fn wake(&self, now: Timestamp) -> u64 {
        let due: Vec<_> = self.coming().extract_if(.., |(_, at)| *at <= now).collect();
        due.iter().for_each(|(queue, _)| self.queues.wake_here(queue, 1));
        due.len() as u64
    }

    /// Notes what the store says is coming, and keeps what is due for the store but not yet by the estimate
    /// of its clock, which lags behind. Answers the first moment.
    fn note(&self, coming: Vec<(QueueName, Timestamp)>, now: Timestamp) -> Option<Timestamp> {
        let mut known = self.coming();
        known.retain(|(_, at)| *at <= now.plus_ms(LAG_MS));
        known.extend(coming);
        known.iter().map(|(_, at)| *at).min()
    }
}

#[async_trait]
impl Task for Due {
    fn name(&self) -> &'static str {
        "due"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn bell(&self) -> Option<&Notify> {
        Some(self.queues.due_bell())
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let done = self.wake(self.queues.now()?);
        if !self.queues.has_waiters() {
            self.queues.due_sleeps_until(None);
            return Ok(Run { done, again_in: None });
        }
        self.queues.due_wakes();
        let coming = self.store.upcoming(LOOK_AHEAD).await?;
        let now = self.queues.now()?;
        let interval = u64::try_from(self.interval().as_millis()).unwrap_or(u64::MAX);
        let next = self.note(coming, now).map_or(interval, |at| at.ms_since(now)).min(interval);
        self.queues.due_sleeps_until(Some(now.plus_ms(next)));
        // A millisecond more: then the time has surely come, also by the estimate of the store's clock.
        Ok(Run { done, again_in: Some(Duration::from_millis(next + 1)) })
    }
}
