//! Deleting the queues whose names begin alike, in steps that end in time.

use std::time::{Duration, Instant};

use super::{Error, Precondition, Queues, Result};
use crate::job::{QueueName, Reach};
use crate::store::StoreError;

/// After how long a call answers what it has done so far.
const SWEEP_MAX: Duration = Duration::from_secs(1);
/// How many names are read at once.
const NAMES: usize = 100;
/// How many jobs of one queue are removed before the time is checked.
const JOBS: u64 = 500;

/// What a call has deleted.
#[derive(Debug, Clone, Default)]
pub struct Swept {
    /// How many queues were deleted.
    pub deleted: u64,
    /// How many have jobs, and were left.
    pub not_empty: u64,
    /// The last queue that was checked, where there are more behind it.
    pub last: Option<QueueName>,
    /// Whether there are more, or some are not empty yet.
    pub more: bool,
}

impl Queues {
    /// Deletes the queues within reach whose names begin so, those behind `after`. Those that have jobs only when forced, and their jobs
    /// with them. Ends after a while with what is done; a call with its last queue goes on there.
    pub async fn delete_queues(
        &self,
        prefix: &str,
        after: Option<&QueueName>,
        force: bool,
        within: &Reach,
    ) -> Result<Swept> {
        let (end, mut swept) = (Instant::now() + SWEEP_MAX, Swept::default());
        swept.last = after.cloned();
        loop {
            let names = self.queue_names(prefix, swept.last.as_ref(), NAMES, within).await;
            let names = names.map_err(|error| error.after(swept.deleted))?;
            for name in names.items {
                match self.sweep(&name, force, end).await {
                    Ok(true) => swept.deleted += 1,
                    // It is not empty yet: a call goes on with it.
                    Ok(false) => return Ok(Swept { more: true, ..swept }),
                    Err(Error::QueueNotEmpty(_)) => swept.not_empty += 1,
                    Err(error) => return swept.or(error),
                }
                swept.last = Some(name);
                if Instant::now() >= end {
                    return Ok(Swept { more: true, ..swept });
                }
            }
            if names.next.is_none() {
                return Ok(swept);
            }
        }
    }

    /// Deletes one of them. Returns whether that is done.
    async fn sweep(&self, name: &QueueName, force: bool, end: Instant) -> Result<bool> {
        while force && self.empty_some(name, JOBS).await? == JOBS {
            if Instant::now() >= end {
                // These may have been its last: then no later call finds the queue, to count it.
                return match self.delete_queue(name, &Precondition::None, false).await {
                    Ok(()) => Ok(true),
                    Err(Error::QueueNotEmpty(_)) => Ok(false),
                    Err(error) => Err(error),
                };
            }
        }
        self.delete_queue(name, &Precondition::None, force).await.map(|()| true)
    }
}

impl Swept {
    /// What is done is done: an error counts only where nothing is.
    fn or(self, error: Error) -> Result<Self> {
        match error {
            Error::Store(StoreError::Unavailable(_)) if self.deleted > 0 => Ok(Self { more: true, ..self }),
            error => Err(error.after(self.deleted)),
        }
    }
}
