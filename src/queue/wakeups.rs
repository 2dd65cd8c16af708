//! Who waits for jobs, and waking them: in the order in which they began to wait.
//!
//! A waiter registers *before* it looks for jobs, so that what arrives while it looks wakes it again. A
//! wake-up that its waiter does not use (it left, or had found jobs already) goes on to the next one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::job::{QueueName, QueuePattern};

/// The register of waiters.
#[derive(Default)]
pub struct Wakeups(Mutex<Register>);

#[derive(Default)]
struct Register {
    /// Grows with each waiter; the smallest has waited longest.
    next: u64,
    /// Those that wait for named queues.
    by_name: HashMap<QueueName, BTreeMap<u64, std::sync::Arc<Waiter>>>,
    /// Those that wait for queues by the beginning of their names.
    by_prefix: BTreeMap<u64, std::sync::Arc<Waiter>>,
}

struct Waiter {
    patterns: Vec<QueuePattern>,
    /// The queue that it was woken for, until it says that it noticed.
    woken_for: Mutex<Option<QueueName>>,
    bell: Notify,
}

/// A place among the waiters; dropping it gives it up.
pub struct Ticket<'a> {
    register: &'a Wakeups,
    number: u64,
    waiter: std::sync::Arc<Waiter>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Wakeups {
    /// Begins to wait for jobs of these queues.
    pub fn register(&self, patterns: &[QueuePattern]) -> Ticket<'_> {
        let waiter = std::sync::Arc::new(Waiter {
            patterns: patterns.to_vec(),
            woken_for: Mutex::new(None),
            bell: Notify::new(),
        });
        let mut register = lock(&self.0);
        let number = register.next;
        register.next += 1;
        register.insert(number, &waiter);
        Ticket { register: self, number, waiter }
    }

    /// Wakes up to `jobs` of those who wait for this queue.
    pub fn wake(&self, queue: &QueueName, jobs: usize) {
        let mut register = lock(&self.0);
        for _ in 0..jobs {
            let Some((number, waiter)) = register.first(queue) else {
                return;
            };
            register.remove(number, &waiter.patterns);
            *lock(&waiter.woken_for) = Some(queue.clone());
            waiter.bell.notify_one();
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        let register = lock(&self.0);
        register.by_name.is_empty() && register.by_prefix.is_empty()
    }
}

impl Register {
    fn insert(&mut self, number: u64, waiter: &std::sync::Arc<Waiter>) {
        for pattern in &waiter.patterns {
            match pattern {
                QueuePattern::One(queue) => {
                    self.by_name.entry(queue.clone()).or_default().insert(number, waiter.clone());
                }
                QueuePattern::Prefix(_) => drop(self.by_prefix.insert(number, waiter.clone())),
            }
        }
    }

    fn remove(&mut self, number: u64, patterns: &[QueuePattern]) {
        for pattern in patterns {
            match pattern {
                QueuePattern::One(queue) => {
                    if let Some(waiters) = self.by_name.get_mut(queue) {
                        waiters.remove(&number);
                        if waiters.is_empty() {
                            self.by_name.remove(queue);
                        }
                    }
                }
                QueuePattern::Prefix(_) => drop(self.by_prefix.remove(&number)),
            }
        }
    }

    /// Whoever has waited longest for jobs of this queue.
    fn first(&self, queue: &QueueName) -> Option<(u64, std::sync::Arc<Waiter>)> {
        let named = self.by_name.get(queue).and_then(BTreeMap::first_key_value);
        let matches = |waiter: &Waiter| waiter.patterns.iter().any(|pattern| pattern.matches(queue));
        let prefixed = self.by_prefix.iter().find(|(_, waiter)| matches(waiter));
        let (number, waiter) = named.into_iter().chain(prefixed).min_by_key(|(number, _)| **number)?;
        Some((*number, waiter.clone()))
    }
}

impl Ticket<'_> {
    /// Returns once somebody woke this waiter since it last looked.
    pub async fn woken(&self) {
        self.waiter.bell.notified().await;
    }

    /// The waiter is about to look: what arrives from now on wakes it again. It keeps its place.
    pub fn look(&self) {
        let woken = lock(&self.waiter.woken_for).take();
        if woken.is_some() {
            lock(&self.register.0).insert(self.number, &self.waiter);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.register.0).remove(self.number, &self.waiter.patterns);
        // Taken in a statement of its own: the next waiter must not be woken under this lock.
        let unused = lock(&self.waiter.woken_for).take();
        if let Some(queue) = unused {
            self.register.wake(&queue, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn one(queue: &str) -> Vec<QueuePattern> {
        vec![queue.parse().unwrap()]
    }

    fn is_woken(ticket: &Ticket<'_>) -> bool {
        ticket.woken().now_or_never().is_some()
    }

    #[test]
    fn the_longest_waiting_is_woken_first() {
        let wakeups = Wakeups::default();
        let queue = "mail.out".parse().unwrap();
        let (prefix, first, second) = (
            wakeups.register(&one("mail*")),
            wakeups.register(&one("mail.out")),
            wakeups.register(&one("mail.out")),
        );
        let other = wakeups.register(&one("other"));
        wakeups.wake(&queue, 2);
        assert!(is_woken(&prefix) && is_woken(&first));
        assert!(!is_woken(&second) && !is_woken(&other));
        first.look();
        wakeups.wake(&queue, 1);
        assert!(is_woken(&first), "it found nothing and kept its place");
        assert!(!is_woken(&second));
    }

    #[test]
    fn an_unused_wake_up_goes_on_to_the_next() {
        let wakeups = Wakeups::default();
        let queue: QueueName = "a".parse().unwrap();
        let (first, second) = (wakeups.register(&one("a")), wakeups.register(&one("a")));
        wakeups.wake(&queue, 1);
        drop(first);
        assert!(is_woken(&second));
        second.look();
        drop(second);
        assert!(wakeups.is_empty());
    }

    #[test]
    fn a_wake_up_while_looking_is_not_lost() {
        let wakeups = Wakeups::default();
        let ticket = wakeups.register(&one("a"));
        ticket.look();
        wakeups.wake(&"a".parse().unwrap(), 1);
        assert!(is_woken(&ticket));
    }
}
