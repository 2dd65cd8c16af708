//! An estimate of the store's clock that is never ahead of it, and an upper bound of that clock.
//!
//! Inserts cannot use `$$NOW`, so what a push writes must come from here. `hello` returns the server's
//! `localTime`, taken before its reply arrived: counting on from the arrival with a monotonic clock stays
//! behind the store by at most the reply's way, whatever this machine's wall clock does.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use crate::faults;
use crate::job::Timestamp;

/// How many readings are kept: the best of them counts, so that one slow reply does no harm, and the
/// worst that a clock stepped backwards can do ends after as many pings.
const READINGS: usize = 8;

/// A step back of the estimate that is smaller than this is one of the readings: the best of them has become too old. A larger one is one
/// of the store's clock.
const STEP_MS: i64 = 1000;

/// See the module's documentation.
pub struct Clock {
    started: Instant,
    readings: Mutex<VecDeque<Reading>>,
    /// The latest estimate: jobs that are pushed one after the other are delivered in that order.
    latest: AtomicI64,
}

/// A moment, and what the store's clock shows then.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// By this server's monotonic clock.
    pub instant: Instant,
    /// What the store's clock shows at least.
    pub at_least: Timestamp,
    /// What the store's clock shows at most.
    pub at_most: Timestamp,
}

/// What the store's clock showed when the clock was started, in milliseconds.
struct Reading {
    at_least: i64,
    at_most: i64,
}

impl Clock {
    /// A clock that knows nothing yet.
    pub fn new() -> Self {
        let (readings, latest) = (Mutex::new(VecDeque::new()), AtomicI64::new(i64::MIN));
        Self { started: Instant::now(), readings, latest }
    }

    fn elapsed_ms(&self, until: Instant) -> i64 {
        let slept = faults::millis("clock.slept").unwrap_or(0).cast_signed();
        i64::try_from(until.saturating_duration_since(self.started).as_millis())
            .map_or(i64::MAX, |ms| ms - slept)
    }

    /// The store said that it was `local_time`; it was asked at `sent`, and the response arrived at `arrival`.
    pub fn read(&self, local_time: Timestamp, sent: Instant, arrival: Instant) {
        // Rounded up: a millisecond that has begun counts as elapsed, which keeps the estimate behind.
        let at_least = local_time.millis() - self.elapsed_ms(arrival) - 1;
        let at_most = local_time.millis() - self.elapsed_ms(sent) + 1;
        let mut readings = self.readings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        readings.push_back(Reading { at_least, at_most });
        if readings.len() > READINGS {
            readings.pop_front();
        }
    }

    /// What is known of the time now, once the store's clock has been read.
    pub fn moment(&self) -> Option<Moment> {
        let readings = self.readings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let at_least = readings.iter().map(|reading| reading.at_least).max()?;
        // By the most careful of the readings, since that clock may have been stepped forward between them.
        let at_most = readings.iter().map(|reading| reading.at_most).max()?;
        let instant = Instant::now();
        let shown = |base: i64| base + self.elapsed_ms(instant);
        let at_least = self.not_earlier(shown(at_least));
        let at_most = shown(at_most).max(at_least);
        let time = Timestamp::from_millis;
        Some(Moment { instant, at_least: time(at_least), at_most: time(at_most) })
    }

    /// Returns this estimate, or the latest one where that is a little later: the store's clock was not behind it then.
    fn not_earlier(&self, estimate: i64) -> i64 {
        let is_reading = |latest: i64| (0..STEP_MS).contains(&latest.saturating_sub(estimate));
        let later = |latest| (!is_reading(latest)).then_some(estimate);
        let replaced = self.latest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        replaced.map_or_else(|latest| latest, |_| estimate)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_estimate_does_not_step_back_with_its_readings() {
        let (clock, read_at) = (Clock::new(), Instant::now());
        clock.read(Timestamp::from_millis(5_000_000), read_at, read_at);
        let before = clock.moment().unwrap().at_least;
        // The later ones were half a second on their way.
        for _ in 0..READINGS {
            clock.read(Timestamp::from_millis(5_000_000), read_at, read_at + Duration::from_millis(500));
        }
        let moment = clock.moment().unwrap();
        assert!(moment.at_least >= before && moment.at_most >= moment.at_least, "{before:?} {moment:?}");
    }

    #[test]
    fn the_best_reading_counts_until_it_is_old() {
        let clock = Clock::new();
        assert!(clock.moment().is_none());
        let arrival = Instant::now();
        clock.read(Timestamp::from_millis(5_000_000), arrival, arrival);
        // An answer that was five seconds on its way shows an old time.
        clock.read(Timestamp::from_millis(5_000_000), arrival, arrival + Duration::from_secs(5));
        let now = clock.moment().unwrap().at_least.millis();
        let latest = 5_000_000 + i64::try_from(arrival.elapsed().as_millis()).unwrap();
        assert!((4_999_990..=latest).contains(&now), "{now} {latest}");
        assert!(clock.moment().unwrap().at_most.millis() > now);
        // The store's clock was set back by an hour.
        for _ in 0..READINGS {
            clock.read(Timestamp::from_millis(1_400_000), Instant::now(), Instant::now());
        }
        assert!(clock.moment().unwrap().at_least.millis() < 1_500_000);
    }
}
