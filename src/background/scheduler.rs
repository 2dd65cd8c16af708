//! Runs schedules whose time has come.
//!
//! Every server does. Between looks it sleeps until the next occurrence that it knows of, by the store's clock, and
//! at most a second, since others may set schedules as well; one that is set on this server rings its bell.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use super::driver::{Run, Task};
use crate::queue::{Error, Queues};

/// See the module's documentation. Its runs count the occurrences that they ran.
pub struct Scheduler(Queues);

impl Scheduler {
    /// Runs the schedules over these queues.
    pub fn new(queues: Queues) -> Self {
        Self(queues)
    }
}

#[async_trait]
impl Task for Scheduler {
    fn name(&self) -> &'static str {
        "scheduler"
    }

    fn interval(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn bell(&self) -> Option<&Notify> {
        Some(self.0.scheduler_bell())
    }

    async fn run_once(&self) -> Result<Run, Error> {
        let mut done = 0;
        loop {
            self.0.scheduler_wakes();
            let runs = self.0.run_due_schedules().await?;
            done += runs.done;
            if runs.more {
                continue; // the next occurrence of one that was due may be due as well
            }
            let now = self.0.now()?;
            let interval = u64::try_from(self.interval().as_millis()).unwrap_or(u64::MAX);
            let sleep = runs.next_at.map_or(interval, |at| at.ms_since(now)).min(interval);
            self.0.scheduler_sleeps_until(now.plus_ms(sleep));
            return Ok(Run { done, again_in: Some(Duration::from_millis(sleep)) });
        }
    }
}
