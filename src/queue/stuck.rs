//! What the store does not change while it changes others: jobs, semaphores of which jobs wait, and schedules.
//!
//! On MongoDB a transaction that a killed server has left open holds its documents until `transactionLifetimeLimitSeconds` are over, and a
//! write of another server waits for it. What travels with such a document waits as well, so that it is left out for a while, and then
//! tried apart from the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// For how long it is left out, unless its owner says otherwise.
const LEFT_OUT: Duration = Duration::from_secs(5);
/// For how long it is remembered from then on.
const REMEMBERED: Duration = Duration::from_secs(60);

/// See the module's documentation.
pub(super) struct Stuck<K> {
    /// Until when each is left out.
    until: Mutex<HashMap<K, Instant>>,
    left_out: Duration,
}

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
        Self::leaving_out_for(LEFT_OUT)
    }
}

impl<K> Stuck<K> {
    /// Leaves out for so long what is noted.
    pub fn leaving_out_for(left_out: Duration) -> Self {
        Self { until: Mutex::default(), left_out }
    }
}

impl<K: Eq + Hash + Clone> Stuck<K> {
    fn known(&self) -> MutexGuard<'_, HashMap<K, Instant>> {
        self.until.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Leaves these out from now on. Returns the first of which that was not known.
    pub fn note(&self, keys: impl IntoIterator<Item = K>) -> Option<K> {
        let (mut known, until) = (self.known(), Instant::now() + self.left_out);
        let mut first_new = None;
        for key in keys {
            if known.insert(key.clone(), until).is_none() {
                first_new.get_or_insert(key);
            }
        }
        first_new
    }

    /// Forgets one that could be changed: it travels with the others again.
    pub fn forget(&self, key: &K) {
        self.known().remove(key);
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

    #[test]
    fn one_that_could_be_changed_travels_with_the_others() {
        let stuck = Stuck::leaving_out_for(Duration::ZERO);
        assert_eq!(stuck.note(["a", "b"]), Some("a"));
        let Sorted { others, again, .. } = stuck.sort(vec!["a", "b", "c"], |it| it);
        assert_eq!((others, again), (vec!["c"], vec!["a", "b"]));
        stuck.forget(&"a");
        let Sorted { others, again, .. } = stuck.sort(vec!["a", "b", "c"], |it| it);
        assert_eq!((others, again), (vec!["a", "c"], vec!["b"]));
        assert_eq!(stuck.note(["a", "b"]), Some("a"), "it is noted anew");
    }
}
