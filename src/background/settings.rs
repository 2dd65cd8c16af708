//! Keeps the queues' settings fresh: what another server changed holds here within a second.

use std::time::Duration;

use async_trait::async_trait;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};

/// See the module's documentation.
pub struct Refresh(Queues);

impl Refresh {
    /// Keeps these queues' settings fresh.
    pub fn new(queues: Queues) -> Self {
        Self(queues)
    }
}

#[async_trait]
impl Task for Refresh {
    fn name(&self) -> &'static str {
        "settings"
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(500)
    }

    async fn run_once(&self) -> Result<Run, Error> {
        self.0.refresh_settings().await?;
        Ok(Run::default())
    }
}
