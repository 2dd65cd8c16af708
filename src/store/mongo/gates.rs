//! One gate for each of many things that is for one caller at a time within this server: counting the jobs of a queue
//! that has a `max_jobs` and adding to them, so that the limit is exact; and changing the line of a group, so that the
//! transactions of one server do not meet there.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedMutexGuard;

/// See the module's documentation.
pub struct Gates<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for Gates<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Ord + Hash> Gates<K> {
    /// Waits at the gates of all of these; dropping the guards opens them again.
    pub async fn enter(&self, keys: impl Iterator<Item = K>) -> Vec<OwnedMutexGuard<()>> {
        // Everybody enters in the order of the names, so that no two wait for each other.
        let keys: BTreeSet<K> = keys.collect();
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            guards.push(self.gate(key).lock_owned().await);
        }
        guards
    }

    fn gate(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut gates = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::new(tokio::sync::Mutex::new(()));
        gates.insert(key, Arc::downgrade(&gate));
        gate
    }
}
