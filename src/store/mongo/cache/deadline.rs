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
pub struct DeadlineCache(Mutex<Reaped>);

#[derive(Default)]
struct Reaped {
    /// From where on a read begins, and since when all before it was not read.
    bound: Option<(Timestamp, Instant)>,
    /// The first deadline that came to lie in the past since a read began.
    came: Option<Timestamp>,
}

impl DeadlineCache {
    fn lock(&self) -> std::sync::MutexGuard<'_, Reaped> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Where a read that begins now may begin.
    pub fn lower_bound(&self) -> Timestamp {
        let mut reaped = self.lock();
        reaped.came = None;
        let bound = reaped.bound.filter(|(_, since)| since.elapsed() < ALL_EVERY);
        bound.map_or(Timestamp::from_millis(0), |(floor, _)| floor)
    }

    /// At this moment nothing had run out, from `floor` on.
    pub fn set(&self, floor: Timestamp, now: Timestamp) {
        let mut reaped = self.lock();
        let since = reaped.bound.filter(|_| floor.millis() > 0).map_or_else(Instant::now, |(_, since)| since);
        let reached = Timestamp::from_millis(now.millis().saturating_sub(MARGIN_MS as i64));
        reaped.bound = Some((reaped.came.map_or(reached, |came| came.min(reached)), since));
    }

    /// Jobs with these deadlines have been written, which may have passed long ago: a job that was reserved when it
    /// expired, and is ready again.
    pub fn note(&self, deadlines: impl IntoIterator<Item = Timestamp>) {
        let Some(first) = deadlines.into_iter().min() else { return };
        let mut reaped = self.lock();
        reaped.came = Some(reaped.came.map_or(first, |came| came.min(first)));
        reaped.bound = reaped.bound.map(|(floor, since)| (floor.min(first), since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_deadline_in_the_past_is_read_next() {
        let deadlines = DeadlineCache::default();
        deadlines.set(deadlines.lower_bound(), at(100_000));
        assert_eq!(deadlines.lower_bound(), at(95_000));
        deadlines.note([at(98_000), at(70_000)]);
        deadlines.note([]);
        assert_eq!(deadlines.lower_bound(), at(70_000));
        deadlines.set(at(70_000), at(101_000));
        assert_eq!(deadlines.lower_bound(), at(96_000), "it was read");
        deadlines.note([at(60_000)]);
        deadlines.set(at(96_000), at(102_000));
        assert_eq!(deadlines.lower_bound(), at(60_000), "it came during the read");
    }
}
