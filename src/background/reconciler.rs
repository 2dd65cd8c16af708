//! Keeps the figures right: has the store compare what it has counted with what is there, a little at a time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::driver::{Run, Task};
use crate::queue::Error;
use crate::store::Store;

/// See the module's documentation. Its runs count the jobs by which counters were off.
pub struct Reconcile(Arc<dyn Store>);

impl Reconcile {
    /// Of the figures of this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

#[async_trait]
impl Task for Reconcile {
    fn name(&self) -> &'static str {
        "reconciler"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(3600)
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let reconciled = self.0.reconcile().await?;
        Ok(Run { done: reconciled.corrected, again_in: Some(reconciled.again_in) })
    }
}
