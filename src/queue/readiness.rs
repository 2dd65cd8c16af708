//! Whether this server can serve.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::telemetry;

/// How old the last proof that the store takes writes may be.
const PROVEN_FOR: Duration = Duration::from_secs(5);

/// Whether this server can serve, and why not; cheap to clone.
#[derive(Clone)]
pub struct Readiness(Arc<watch::Sender<Result<Instant, String>>>);

impl Default for Readiness {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Err("the store has not been reached yet".to_owned()))))
    }
}

impl Readiness {
    /// `Ok`, or the reason in words for an operator. While a probe waits for a store that does not answer, the last verdict grows old.
    pub fn get(&self) -> Result<(), String> {
        let proven = (*self.0.borrow()).clone()?;
        match proven.elapsed() {
            age if age <= PROVEN_FOR => Ok(()),
            age => Err(format!("the store has not been seen to take writes for {} ms", age.as_millis())),
        }
    }

    /// Notes when the store was seen to take writes, or why it does not; changes in both directions are logged.
    pub fn set(&self, to: Result<Instant, String>) {
        self.0.send_modify(|now| {
            if now.is_ok() != to.is_ok() {
                match &to {
                    // What failed since the last line that said so.
                    Ok(_) => match telemetry::STORE_FAILURES.end() {
                        0 => tracing::info!("ready"),
                        more => tracing::info!(
                            more,
                            "ready; `more` calls of the store failed since the last line"
                        ),
                    },
                    Err(reason) => tracing::warn!(reason, "not ready"),
                }
            }
            *now = to;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_grows_old() {
        let readiness = Readiness::default();
        assert!(readiness.get().is_err());
        readiness.set(Ok(Instant::now() + PROVEN_FOR * 100)); // young, also if this thread stands still
        assert_eq!(readiness.get(), Ok(()));
        let Some(long_ago) = Instant::now().checked_sub(PROVEN_FOR + Duration::from_millis(1)) else {
            return;
        };
        readiness.set(Ok(long_ago));
        let told = readiness.get().unwrap_err();
        let age = told.strip_prefix("the store has not been seen to take writes for ").unwrap();
        let age_ms: u128 = age.strip_suffix(" ms").unwrap().parse().unwrap();
        assert!(age_ms > PROVEN_FOR.as_millis(), "{told}");
    }
}
