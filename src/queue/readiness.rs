//! Whether this server can serve.

use std::sync::Arc;

use tokio::sync::watch;

use crate::telemetry;

/// Whether this server can serve, and why not; cheap to clone.
#[derive(Clone)]
pub struct Readiness(Arc<watch::Sender<Result<(), String>>>);

impl Default for Readiness {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Err("the store has not been reached yet".to_owned()))))
    }
}

impl Readiness {
    /// `Ok`, or the reason in words for an operator.
    pub fn get(&self) -> Result<(), String> {
        self.0.borrow().clone()
    }

    /// Notes a change; both directions are logged.
    pub fn set(&self, to: Result<(), String>) {
        self.0.send_if_modified(|now| {
            if now.is_ok() != to.is_ok() {
                match &to {
                    // What failed since the last line that said so.
                    Ok(()) => match telemetry::STORE_FAILURES.end() {
                        0 => tracing::info!("ready"),
                        more => tracing::info!(
                            more,
                            "ready; `more` calls of the store failed since the last line"
                        ),
                    },
                    Err(reason) => tracing::warn!(reason, "not ready"),
                }
            }
            let changed = *now != to;
            *now = to;
            changed
        });
    }
}
