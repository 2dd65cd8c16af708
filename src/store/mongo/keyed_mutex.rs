//! One mutex for each of many things that is for one caller at a time within this server: counting the jobs of a queue
//! that has a `max_jobs` and adding to them, so that the limit is exact; and changing the line of a group, so that the
//! transactions of one server do not conflict there.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::OwnedMutexGuard;

/// See the module's documentation.
pub struct KeyedMutex<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Ord + Hash> KeyedMutex<K> {
    /// Locks the mutexes of all of these, until the guards are dropped.
    pub async fn lock(&self, keys: impl Iterator<Item = K>) -> Vec<OwnedMutexGuard<()>> {
        // Locked in the order of the names, so that there is no deadlock.
        let keys: BTreeSet<K> = keys.collect();
        let mut guards = Vec::with_capacity(keys.len());
        for key in keys {
            guards.push(self.mutex(key).lock_owned().await);
        }
        guards
    }

    fn mutex(&self, key: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut mutexes = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(mutex) = mutexes.get(&key).and_then(Weak::upgrade) {
            return mutex;
        }
        mutexes.retain(|_, mutex| mutex.strong_count() > 0);
        let mutex = Arc::new(tokio::sync::Mutex::new(()));
        mutexes.insert(key, Arc::downgrade(&mutex));
        mutex
    }
}
