//! Forgets records whose time has passed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::driver::{Run, Task};
use crate::queue::Error;
use crate::store::Store;

/// How many records one step forgets.
const STEP: usize = 1000;
/// How long to rest between two steps while there is more.
const REST: Duration = Duration::from_millis(50);

/// See the module's documentation. Its runs count the records that they forgot.
pub struct Pruner(Arc<dyn Store>);

impl Pruner {
    /// A pruner for this store.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }
}

#[async_trait]
impl Task for Pruner {
    fn name(&self) -> &'static str {
        "pruner"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(5)
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let done = self.0.prune(STEP).await?;
        Ok(Run { done, again_in: (done > 0).then_some(REST) })
    }
}
