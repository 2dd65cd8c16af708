//! Whether this server can serve.

use std::sync::Arc;

use tokio::sync::watch;

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
                    Ok(()) => tracing::info!("ready"),
                    Err(reason) => tracing::warn!(reason, "not ready"),
                }
            }
            let changed = *now != to;
            *now = to;
            changed
        });
    }
}
