//! One gate for each queue that has a `max_jobs`: counting its jobs and adding to them is for one caller
//! at a time, so that the limit is exact within this server.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedMutexGuard;

use crate::job::QueueName;

/// See the module's documentation.
#[derive(Default)]
pub struct Gates(Mutex<HashMap<QueueName, Weak<tokio::sync::Mutex<()>>>>);

impl Gates {
    /// Waits at the gates of all these queues; dropping the guards opens them again.
    pub async fn enter(&self, queues: impl Iterator<Item = QueueName>) -> Vec<OwnedMutexGuard<()>> {
        // Everybody enters in the order of the names, so that no two wait for each other.
        let queues: BTreeSet<QueueName> = queues.collect();
        let mut guards = Vec::with_capacity(queues.len());
        for queue in queues {
            guards.push(self.gate(queue).lock_owned().await);
        }
        guards
    }

    fn gate(&self, queue: QueueName) -> Arc<tokio::sync::Mutex<()>> {
        let mut gates = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(gate) = gates.get(&queue).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(tokio::sync::Mutex::new(()));
        gates.insert(queue, Arc::downgrade(&gate));
        gate
    }
}
