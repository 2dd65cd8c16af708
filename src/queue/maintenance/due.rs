//! Wakes waiters when scheduled jobs come due. Nothing happens to a job at its due time: this only saves
//! waiters the time until the next poll. Dormant while there are none.

use std::sync::Arc;
use std::time::Duration;

use super::{Maintenance, Run, lock};
use crate::job::{QueueName, Timestamp};
use crate::queue::Result;

/// How many jobs one run reads ahead.
const LOOK_AHEAD: usize = 256;
/// The most that the estimate of the store's clock lags behind it, in milliseconds.
const LAG_MS: u64 = 100;

/// The jobs that the last run read ahead: their queues, and when they come due.
pub(super) type Coming = Vec<(QueueName, Timestamp)>;

impl Maintenance {
    /// Wakes waiters for jobs that came due since the last run, and reads ahead which come next. Counts the
    /// jobs that came due.
    pub async fn wake_for_due_jobs(self: Arc<Self>, interval: Duration) -> Result<Run> {
        let alarm = &self.queues.0.due;
        let done = self.wake_for_known(self.queues.now()?);
        if self.queues.0.waiters.is_empty() {
            alarm.sleep_dormant();
            return Ok(Run { done, again_in: None });
        }
        alarm.begin();
        let coming = self.queues.0.store.upcoming(LOOK_AHEAD).await?;
        let now = self.queues.now()?;
        let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        let next = self.note_coming(coming, now).map_or(interval, |at| at.ms_since(now)).min(interval);
        alarm.sleep_until(now.plus_ms(next).millis());
        // A millisecond more: then the time has surely come, also by the estimate of the store's clock.
        Ok(Run { done, again_in: Some(Duration::from_millis(next + 1)) })
    }

    /// Wakes waiters for what has come due since the last run, and returns how many jobs that are.
    fn wake_for_known(&self, now: Timestamp) -> u64 {
        let due: Coming = lock(&self.coming).extract_if(.., |(_, at)| *at <= now).collect();
        for (queue, _) in &due {
            self.queues.0.waiters.wake_here(queue, 1);
        }
        due.len() as u64
    }

    /// Notes what the store says is coming, and keeps what is due for the store but not yet by the estimate
    /// of its clock, which lags behind. Returns the earliest moment.
    fn note_coming(&self, coming: Coming, now: Timestamp) -> Option<Timestamp> {
        let mut known = lock(&self.coming);
        known.retain(|(_, at)| *at <= now.plus_ms(LAG_MS));
        known.extend(coming);
        known.iter().map(|(_, at)| *at).min()
    }
}
