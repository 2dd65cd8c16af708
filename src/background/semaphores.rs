//! Calls jobs that wait for semaphores once these have room.
//!
//! What makes room rings the bell. Once a second the task looks at every semaphore that somebody waits for: what
//! servers that died have left undone, and what time alone has changed, such as somebody's patience.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};

/// See the module's documentation. Its runs count the jobs that they called.
pub struct Semaphores {
    queues: Queues,
    /// When it last looked at all of them.
    looked: Mutex<Option<Instant>>,
}

impl Semaphores {
    /// Calls the jobs of these queues.
    pub fn new(queues: Queues) -> Self {
        Self { queues, looked: Mutex::new(None) }
    }

    fn looked(&self) -> MutexGuard<'_, Option<Instant>> {
        self.looked.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[async_trait]
impl Task for Semaphores {
    fn name(&self) -> &'static str {
        "semaphores"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn bell(&self) -> Option<&Notify> {
        Some(self.queues.semaphores_bell())
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let since = self.looked().map_or(Duration::MAX, |looked| looked.elapsed());
        let all = since >= self.interval();
        let done = self.queues.call_waiting(all).await?;
        if all {
            *self.looked() = Some(Instant::now());
        }
        let left = self.interval().saturating_sub(if all { Duration::ZERO } else { since });
        Ok(Run { done, again_in: Some(left) })
    }
}
