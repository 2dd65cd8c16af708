//! Asks the store every second for the time and whether it takes writes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::driver::{Run, Task};
use crate::queue::Error;
use crate::store::Store;

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

/// See the module's documentation. Its runs do one thing each.
pub struct StoreProbe {
    store: Arc<dyn Store>,
    readiness: Readiness,
}

impl StoreProbe {
    /// A pulse that tells this readiness.
    pub fn new(store: Arc<dyn Store>, readiness: Readiness) -> Self {
        Self { store, readiness }
    }
}

#[async_trait]
impl Task for StoreProbe {
    fn name(&self) -> &'static str {
        "store_probe"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let pinged = self.store.ping().await;
        self.readiness.set(pinged.clone().map_err(|error| error.to_string()));
        pinged?;
        Ok(Run { done: 1, again_in: None })
    }
}
