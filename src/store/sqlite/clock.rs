//! The clock of an embedded store: the machine's.

use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use crate::job::Timestamp;

/// A step back of the machine's clock that is worth a warning, in milliseconds. Time services slew smaller ones.
const STEP_MS: i64 = 500;

/// Returns the time, and warns in the log when the machine's clock is set back.
///
/// A clock that is set back loses and duplicates nothing: jobs wait for their `run_at` and reservations for
/// their deadline as much longer as the clock jumped, and who holds a job is decided by its claim, not by time.
pub struct Clock {
    started: Instant,
    /// The machine's clock less the time since `started`, at the last reading: constant unless the clock is set.
    ahead_ms: Mutex<i64>,
    /// What a test adds to the machine's clock.
    #[cfg(test)]
    pub shift_ms: std::sync::atomic::AtomicI64,
}

impl Clock {
    /// Starts to watch the machine's clock.
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
            ahead_ms: Mutex::new(wall_ms()),
            #[cfg(test)]
            shift_ms: Default::default(),
        }
    }

    #[cfg(not(test))]
    fn wall_ms(&self) -> i64 {
        wall_ms()
    }

    #[cfg(test)]
    fn wall_ms(&self) -> i64 {
        wall_ms() + self.shift_ms.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the time by the machine's clock.
    pub fn now(&self) -> Timestamp {
        let now_ms = self.wall_ms();
        let passed_ms = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(0);
        let back_ms = self.set_back_ms(now_ms, passed_ms);
        if back_ms >= STEP_MS {
            tracing::warn!(
                back_ms,
                "the machine's clock was set back; due times and deadlines are that much later"
            );
        }
        Timestamp::from_millis(now_ms)
    }

    /// Returns how far the clock was set back since the last reading; negative if it was set forward.
    fn set_back_ms(&self, now_ms: i64, passed_ms: i64) -> i64 {
        let mut ahead_ms = self.ahead_ms.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let seen = now_ms.saturating_sub(passed_ms);
        let back_ms = ahead_ms.saturating_sub(seen);
        *ahead_ms = seen;
        back_ms
    }
}

#[expect(clippy::disallowed_methods, reason = "here the machine's clock is the store's")]
fn wall_ms() -> i64 {
    // A clock before 1970 is a broken one; it counts as 1970.
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_back_is_reported_once_and_a_step_forward_never() {
        let clock = Clock::new();
        clock.set_back_ms(1_000_000, 0);
        assert_eq!(clock.set_back_ms(1_005_000, 5000), 0);
        assert_eq!(clock.set_back_ms(946_000, 6000), 60_000);
        assert_eq!(clock.set_back_ms(947_000, 7000), 0);
        assert!(clock.set_back_ms(2_000_000, 8000) < 0);
    }
}
