//! When the iterations of a phase begin: as fast as possible (closed loop), or at a fixed rate (open loop).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The timer's maximum delay, which must not count as the server's latency.
const GRAIN: Duration = Duration::from_millis(2);

/// Schedules the iterations.
#[derive(Debug)]
pub struct Pace {
    start: Instant,
    /// Iterations per second in all; `None`: each client begins its next iteration when its last has ended.
    per_s: Option<f64>,
    next: AtomicU64,
}

impl Pace {
    /// Returns a pace that begins now.
    pub fn new(per_s: Option<f64>) -> Self {
        Self { start: Instant::now(), per_s, next: AtomicU64::new(0) }
    }

    /// Waits for the next iteration; returns the time that its latency counts from.
    pub async fn next_start(&self) -> Instant {
        let Some(per_s) = self.per_s else { return Instant::now() };
        begin(self.intended(per_s)).await
    }

    fn intended(&self, per_s: f64) -> Instant {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        self.start + Duration::from_secs_f64(n as f64 / per_s)
    }
}

/// Waits until something is due; returns the time that its latency counts from: the due time if no client was free
/// in time. Otherwise a stalled server would get fewer requests, and the delay of those not sent would not be
/// counted (coordinated omission).
pub async fn begin(intended: Instant) -> Instant {
    if Instant::now() >= intended {
        return intended;
    }
    tokio::time::sleep_until(intended.into()).await;
    counted_from(intended, Instant::now())
}

/// Returns the start for a client that was free in time and slept: the timer's delay is left out, but not that of
/// a busy machine.
fn counted_from(intended: Instant, woken: Instant) -> Instant {
    if woken.saturating_duration_since(intended) <= GRAIN { woken.max(intended) } else { intended }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_spread_evenly_whoever_takes_them() {
        let pace = Pace::new(Some(200.0));
        let moments: Vec<Duration> = (0..4).map(|_| pace.intended(200.0) - pace.start).collect();
        assert_eq!(moments, [0, 5, 10, 15].map(Duration::from_millis));
    }

    #[tokio::test]
    async fn a_turn_that_is_late_counts_from_when_it_was_due() {
        let due = Instant::now();
        let late = due + Duration::from_millis(500);
        assert_eq!(counted_from(due, late), due);
        assert_eq!(counted_from(due, due + Duration::from_millis(1)), due + Duration::from_millis(1));
        let missed = Instant::now() - Duration::from_millis(300);
        assert_eq!(begin(missed).await, missed);
        let ahead = Instant::now() + Duration::from_millis(20);
        assert!(begin(ahead).await >= ahead, "an iteration that is not due yet is waited for");
    }

    #[tokio::test]
    async fn without_a_rate_a_turn_begins_at_once() {
        let pace = Pace::new(None);
        let before = Instant::now();
        assert!(pace.next_start().await >= before);
        assert_eq!(pace.next.load(Ordering::Relaxed), 0);
    }
}
