//! A lower bound of the deadlines that have not passed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::job::Timestamp;

/// How much of the past is read again each time, in milliseconds: more than the estimates of the servers
/// lag behind the store's clock, by which they write deadlines.
const MARGIN_MS: u64 = 5000;
/// How often all of the past is read, for deadlines that other programs have written there.
const ALL_EVERY: Duration = Duration::from_secs(10);

/// How far back nothing has run out. Where it was all taken back, index entries of jobs that have left stay
/// in the way of reads from the beginning, like those at the head of a queue (see `head`).
#[derive(Default)]
pub struct DeadlineCache(Mutex<Option<(Timestamp, Instant)>>);

impl DeadlineCache {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Timestamp, Instant)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Where a read may begin.
    pub fn lower_bound(&self) -> Timestamp {
        let reaped = self.lock().filter(|(_, since)| since.elapsed() < ALL_EVERY);
        reaped.map_or(Timestamp::from_millis(0), |(floor, _)| floor)
    }

    /// At this moment nothing had run out, from `floor` on.
    pub fn set(&self, floor: Timestamp, now: Timestamp) {
        let mut reaped = self.lock();
        let since = reaped.filter(|_| floor.millis() > 0).map_or_else(Instant::now, |(_, since)| since);
        *reaped = Some((Timestamp::from_millis(now.millis().saturating_sub(MARGIN_MS as i64)), since));
    }
}
