//! Listens to the other servers over the same store, and wakes who waits here for what happens there.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::sync::Mutex;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};
use crate::store::Heard;

/// See the module's documentation. Its runs count what they heard.
pub struct SignalListener {
    queues: Queues,
    signals: Mutex<BoxStream<'static, Heard>>,
}

impl SignalListener {
    /// Hears these signals on behalf of those who wait for these queues.
    pub fn new(queues: Queues, signals: BoxStream<'static, Heard>) -> Self {
        Self { queues, signals: Mutex::new(signals) }
    }
}

#[async_trait]
impl Task for SignalListener {
    fn name(&self) -> &'static str {
        "signal_listener"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// A run listens for a second, so that the task is seen to be alive.
    async fn run_once(&self) -> Result<Run, Error> {
        let mut signals = self.signals.lock().await;
        let end = Instant::now() + self.interval();
        let mut done = 0;
        while Instant::now() < end
            && let Ok(Some(heard)) = tokio::time::timeout_at(end.into(), signals.next()).await
        {
            self.queues.heard(heard);
            done += 1;
        }
        Ok(Run { done, again_in: Some(end.saturating_duration_since(Instant::now())) })
    }
}
