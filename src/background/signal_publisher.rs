//! Tells the other servers over the same store what concerns them: what the waiters here wait for, and that
//! jobs came which nobody here waits for. Dormant while there is nothing to tell.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};

/// See the module's documentation. Its runs count the signals that they sent.
pub struct SignalPublisher(Queues);

impl SignalPublisher {
    /// Tells the others of these queues.
    pub fn new(queues: Queues) -> Self {
        queues.expect_others();
        Self(queues)
    }
}

#[async_trait]
impl Task for SignalPublisher {
    fn name(&self) -> &'static str {
        "signal_publisher"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn bell(&self) -> Option<&Notify> {
        Some(self.0.others_bell())
    }

    async fn run_once(&self) -> Result<Run, Error> {
        Ok(Run { done: self.0.tell_others().await?, again_in: None })
    }
}
