//! What the store does not change while it changes others: jobs, and semaphores of which jobs wait.
//!
//! On MongoDB a transaction that a killed server has left open holds its jobs until `transactionLifetimeLimitSeconds` are over, and a
//! write of another server waits for it. What travels with such a job waits as well, so that it is left out for a while, and then
//! tried apart from the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For how long it is left out.
const LEFT_OUT: Duration = Duration::from_secs(5);
/// For how long it is remembered from then on.
const REMEMBERED: Duration = Duration::from_secs(60);

/// See the module's documentation. The time is the one until which something is left out.
pub(super) struct Stuck<K>(Mutex<HashMap<K, Instant>>);

/// Things by what is known of them.
pub(super) struct Sorted<T> {
    /// Those of which nothing is known.
    pub others: Vec<T>,
    /// Those that were left out, and may be tried again.
    pub again: Vec<T>,
    /// Those that are left out now.
    pub left_out: Vec<T>,
}

impl<K> Default for Stuck<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> Stuck<K> {
    fn known(&self) -> MutexGuard<'_, HashMap<K, Instant>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Leaves these out from now on. Returns the first of which that was not known.
    pub fn note(&self, keys: impl IntoIterator<Item = K>) -> Option<K> {
        let (mut known, until) = (self.known(), Instant::now() + LEFT_OUT);
        let mut first_new = None;
        for key in keys {
            if known.insert(key.clone(), until).is_none() {
                first_new.get_or_insert(key);
            }
        }
        first_new
    }

    /// Returns how many are left out now.
    pub fn count(&self) -> usize {
        let now = Instant::now();
        self.known().values().filter(|until| **until > now).count()
    }

    /// Sorts things by what is known of their keys.
    pub fn sort<T>(&self, things: Vec<T>, key: impl Fn(&T) -> &K) -> Sorted<T> {
        let (mut known, now) = (self.known(), Instant::now());
        known.retain(|_, until| *until + REMEMBERED > now);
        let (mut others, mut again, mut left_out) =
            (Vec::with_capacity(things.len()), Vec::new(), Vec::new());
        for thing in things {
            match known.get(key(&thing)) {
                None => others.push(thing),
                Some(until) if *until <= now => again.push(thing),
                Some(_) => left_out.push(thing),
            }
        }
        Sorted { others, again, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_are_noted_are_left_out_and_then_tried_apart() {
        let stuck = Stuck::default();
        assert_eq!(stuck.note(["a", "b", "c"]), Some("a"));
        assert_eq!(stuck.note(["c", "b"]), None);
        let sorted = |stuck: &Stuck<&'static str>| {
            let Sorted { others, again, left_out } = stuck.sort(vec!["a", "b", "c", "d"], |it| it);
            (stuck.count(), others.len(), again.len(), left_out.len())
        };
        // For longer than this thread may stand still.
        let hour = Duration::from_secs(3600);
        stuck.known().values_mut().for_each(|until| *until += hour);
        assert_eq!(sorted(&stuck), (3, 1, 0, 3));
        stuck.known().values_mut().for_each(|until| *until -= hour + LEFT_OUT);
        assert_eq!(sorted(&stuck), (0, 1, 3, 0));
        stuck.known().values_mut().for_each(|until| *until -= REMEMBERED);
        assert_eq!(sorted(&stuck), (0, 4, 0, 0), "they are forgotten");
    }
}
