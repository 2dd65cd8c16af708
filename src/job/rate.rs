//! The sliding window of a queue's rate limit: what it has delivered lately.

use serde::{Deserialize, Serialize};

use super::Timestamp;
use super::settings::Rate;

/// Into how many parts a window is divided: the deliveries of one part count as if all were at the time of the last.
const PARTS: u64 = 200;

/// The deliveries of a window, the oldest first: hardly more entries than the window has parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deliveries(Vec<(i64, i64)>);

/// By how much the clocks of two primaries of a store may differ: what is ahead by less counts, so that there are never too many deliveries.
pub const CLOCKS_DIFFER_MS: u64 = 60_000;

/// Returns whether a delivery counts. One that lies further ahead is of a clock that was wrong: it must not stop the queue until its time
/// comes.
fn is_within(rate: Rate, at: Timestamp, now: Timestamp) -> bool {
    at.plus_ms(rate.per_ms) > now && at <= now.plus_ms(rate.per_ms.max(CLOCKS_DIFFER_MS))
}

impl Deliveries {
    fn within(&self, rate: Rate, now: Timestamp) -> impl Iterator<Item = (Timestamp, u64)> {
        let all = self.0.iter().map(|(at, count)| (Timestamp::from_millis(*at), count.unsigned_abs()));
        all.filter(move |(at, _)| is_within(rate, *at, now))
    }

    /// Returns how many more may be delivered now.
    pub fn room(&self, rate: Rate, now: Timestamp) -> u64 {
        rate.limit.saturating_sub(self.within(rate, now).map(|(_, count)| count).sum())
    }

    /// Returns when the next one may be delivered, if none may now.
    pub fn resumes_at(&self, rate: Rate, now: Timestamp) -> Option<Timestamp> {
        let mut there: u64 = self.within(rate, now).map(|(_, count)| count).sum();
        if there < rate.limit {
            return None;
        }
        let enough = self.within(rate, now).find(|(_, count)| {
            there = there.saturating_sub(*count);
            there < rate.limit
        });
        enough.map(|(at, _)| at.plus_ms(rate.per_ms))
    }

    /// Counts deliveries at this moment. What is older than the window is dropped.
    pub fn note(&mut self, rate: Rate, now: Timestamp, count: u64) {
        self.0.retain(|(at, _)| is_within(rate, Timestamp::from_millis(*at), now));
        let part = (rate.per_ms / PARTS).max(1).cast_signed();
        let count = count.cast_signed();
        match self.0.last_mut() {
            // A clock that was set back must not make the window longer or the list unordered.
            Some(last) if last.0 / part >= now.millis() / part => {
                *last = (last.0.max(now.millis()), last.1 + count);
            }
            _ => self.0.push((now.millis(), count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn deliveries_of_a_clock_that_was_years_ahead_do_not_count() {
        let rate = Rate { limit: 2, per_ms: 1000 };
        let mut deliveries = Deliveries::default();
        deliveries.note(rate, at(315_360_000_000), 2);
        assert_eq!((deliveries.room(rate, at(5000)), deliveries.resumes_at(rate, at(5000))), (2, None));
        deliveries.note(rate, at(5000), 2);
        assert_eq!(deliveries.resumes_at(rate, at(5001)), Some(at(6000)));
        assert_eq!(deliveries.room(rate, at(6000)), 2);
    }

    #[test]
    fn a_window_slides() {
        let rate = Rate { limit: 5, per_ms: 100 };
        let mut deliveries = Deliveries::default();
        assert_eq!((deliveries.room(rate, at(0)), deliveries.resumes_at(rate, at(0))), (5, None));
        deliveries.note(rate, at(1000), 2);
        deliveries.note(rate, at(1040), 3);
        assert_eq!(
            (deliveries.room(rate, at(1099)), deliveries.resumes_at(rate, at(1099))),
            (0, Some(at(1100)))
        );
        assert_eq!((deliveries.room(rate, at(1100)), deliveries.resumes_at(rate, at(1100))), (2, None));
        deliveries.note(rate, at(1100), 2);
        assert_eq!(deliveries.resumes_at(rate, at(1101)), Some(at(1140)));
        let lower = Rate { limit: 1, per_ms: 100 };
        assert_eq!(deliveries.resumes_at(lower, at(1101)), Some(at(1200)));
    }

    #[test]
    fn the_list_stays_short_and_never_allows_too_much() {
        let rate = Rate { limit: 1000, per_ms: 10_000 };
        let (mut deliveries, mut all) = (Deliveries::default(), Vec::new());
        let mut now = 5_000_000;
        for step in 0..20_000_i64 {
            now += step * 7919 % 13;
            if deliveries.room(rate, at(now)) > 0 {
                deliveries.note(rate, at(now), 1);
                all.push(now);
            }
        }
        assert!(deliveries.0.len() <= 256, "{}", deliveries.0.len());
        let within = |(n, first): (usize, &i64)| all.partition_point(|at| *at < first + 10_000) - n;
        let most = all.iter().enumerate().map(within).max().unwrap();
        assert!((980..=1000).contains(&most), "{most}");
    }
}
