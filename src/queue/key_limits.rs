//! The limits of an API key: how many requests it may make in a time, and how many at once. Each server counts for itself.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use governor::clock::{Clock as _, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

use super::{Error, Result};
use crate::job::{ApiKey, Rate, Timestamp};

type Limiter = RateLimiter<NotKeyed, InMemoryState, MonotonicClock, NoOpMiddleware<std::time::Instant>>;

/// What this server knows of the use of a key.
pub struct Usage {
    /// When it was used last, in milliseconds; 0: never.
    last_at: AtomicI64,
    /// Its requests that are being worked on.
    in_flight: Arc<AtomicU32>,
    rate: Option<Limiter>,
}

/// A request of a key with limits, in flight until this is dropped.
pub struct Permit(Arc<AtomicU32>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns a limiter that admits `limit` requests at once, and then one whenever its part of `per_ms` has passed (the generic cell
/// rate algorithm).
fn limiter(rate: Rate) -> Option<Limiter> {
    let burst = NonZeroU32::new(u32::try_from(rate.limit).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
    let interval = Duration::from_millis(rate.per_ms) / burst.get();
    let quota = Quota::with_period(interval.max(Duration::from_nanos(1)))?.allow_burst(burst);
    Some(RateLimiter::direct_with_clock(quota, MonotonicClock))
}

impl Usage {
    /// Returns the use of a key that has not been used here.
    pub fn new(key: &ApiKey) -> Self {
        Self { last_at: AtomicI64::new(0), in_flight: Arc::default(), rate: key.rate.and_then(limiter) }
    }

    /// Remembers that the key was used at this time, here or elsewhere.
    pub fn note(&self, at: Option<Timestamp>) {
        let at = at.map_or(0, Timestamp::millis);
        // Most requests come within a millisecond of another one: they need not take the cache line from each other.
        if at > self.last_at.load(Ordering::Relaxed) {
            self.last_at.fetch_max(at, Ordering::Relaxed);
        }
    }

    /// Returns when the key was used last.
    pub fn last(&self) -> Option<Timestamp> {
        Some(self.last_at.load(Ordering::Relaxed)).filter(|at| *at > 0).map(Timestamp::from_millis)
    }

    /// Admits a request, unless that would exceed a limit of the key. One that is refused counts for neither.
    pub fn admit(&self, key: &ApiKey) -> Result<Permit> {
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.in_flight.clone()); // counts back where the request is refused
        if let Some(most) = key.max_concurrent.filter(|most| in_flight >= *most) {
            let what = format!("the key has {most} requests in flight, which is its max_concurrent");
            return Err(Error::KeyLimited { what, wait: Duration::from_secs(1) });
        }
        if let (Some(limiter), Some(Rate { limit, per_ms })) = (&self.rate, key.rate)
            && let Err(refusal) = limiter.check()
        {
            let what = format!("the key has made its {limit} requests in {per_ms} ms, which is its rate");
            return Err(Error::KeyLimited { what, wait: refusal.wait_time_from(MonotonicClock.now()) });
        }
        Ok(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Scope, SecretHash};

    fn key(rate: Option<Rate>, max_concurrent: Option<u32>) -> ApiKey {
        ApiKey {
            id: ApiKey::fresh_id(),
            name: "n".parse().unwrap(),
            hash: SecretHash::of("x"),
            scopes: vec![Scope::Read],
            queues: Vec::new(),
            created_at: Timestamp::from_millis(0),
            expires_at: None,
            rate,
            max_concurrent,
            last_used_at: None,
        }
    }

    #[test]
    fn a_rate_admits_a_burst_and_says_when_the_next_is_admitted() {
        let key = key(Some(Rate { limit: 3, per_ms: 3_600_000 }), None);
        let usage = Usage::new(&key);
        let admitted = (0..10).filter(|_| usage.admit(&key).is_ok()).count();
        assert_eq!(admitted, 3);
        let Err(Error::KeyLimited { wait, .. }) = usage.admit(&key) else { panic!("must be refused") };
        assert!((1_100..=1_200).contains(&wait.as_secs()), "{wait:?}");
    }

    #[test]
    fn what_is_refused_is_not_in_flight() {
        let key = key(None, Some(2));
        let usage = Usage::new(&key);
        let held: Vec<Permit> = (0..2).map(|_| usage.admit(&key).unwrap()).collect();
        for _ in 0..5 {
            assert!(usage.admit(&key).is_err());
        }
        drop(held);
        assert!(usage.admit(&key).is_ok());
    }

    #[test]
    fn extreme_rates_are_limits() {
        for rate in [Rate { limit: 1, per_ms: 86_400_000 }, Rate { limit: 1_000_000, per_ms: 1 }] {
            assert!(limiter(rate).is_some(), "{rate:?}");
        }
    }
}
