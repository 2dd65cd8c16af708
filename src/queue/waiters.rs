//! The waiters for jobs on this server. They are woken in the order in which they began to wait.
//!
//! A waiter registers *before* it queries the store, so that what arrives meanwhile wakes it again. A wake-up
//! that its waiter does not use (it left, or had found jobs already) goes on to the next one, on another
//! server if there is none here. Where it is not known how many jobs there are, the waiters that find some
//! wake the next ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::peers::Peers;
use crate::job::{QueueName, QueuePattern};

/// All waiters.
#[derive(Default)]
pub(super) struct Waiters {
    register: Mutex<Register>,
    /// The waiters on other servers.
    pub peers: Peers,
}

#[derive(Default)]
struct Register {
    /// Grows with each waiter; the smallest has waited longest.
    next: u64,
    /// The waiters for queues by name.
    by_name: HashMap<QueueName, BTreeMap<u64, Arc<Waiter>>>,
    /// The waiters for queues by prefix.
    by_prefix: BTreeMap<u64, Arc<Waiter>>,
}

struct Waiter {
    patterns: Vec<QueuePattern>,
    /// Whether it is a pop, which passes over jobs that need semaphores.
    is_pop: bool,
    /// What it was woken for, until it takes notice.
    woken_for: Mutex<Option<WakeUp>>,
    /// Whether it has found nothing and sleeps.
    asleep: AtomicBool,
    notify: Notify,
}

/// What a waiter is woken for.
#[derive(Clone)]
struct WakeUp {
    queue: QueueName,
    /// Whether there may be more jobs than this waiter takes: if it finds some, the next waiters are woken,
    /// too.
    more: bool,
}

/// How many waiters a waiter wakes that was woken so and found jobs: with many jobs all are woken soon, and
/// with few jobs those get them that have waited longest.
const PASSED_ON_TO: usize = 2;

impl Waiter {
    fn sleeps(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }
}

/// How many waiters wait for each queue.
#[derive(Default)]
pub(super) struct WaiterCounts {
    by_name: HashMap<QueueName, u64>,
    /// Those with a prefix among what they wait for, which may name queues as well.
    by_patterns: HashMap<Vec<QueuePattern>, u64>,
}

impl WaiterCounts {
    /// Returns how many wait for this queue.
    pub fn of(&self, queue: &QueueName) -> u64 {
        let is_named = |pattern: &QueuePattern| matches!(pattern, QueuePattern::One(name) if name == queue);
        let by_prefix = self.by_patterns.iter().filter(|(patterns, _)| {
            let is_meant = patterns.iter().any(|pattern| pattern.matches(queue));
            is_meant && !patterns.iter().any(is_named) // those are counted by name
        });
        let named = self.by_name.get(queue).copied().unwrap_or(0);
        named + by_prefix.map(|(_, count)| count).sum::<u64>()
    }
}

/// A place among the waiters; dropping it gives it up.
pub(super) struct Ticket<'a> {
    waiters: &'a Waiters,
    number: u64,
    waiter: Arc<Waiter>,
    /// What it was woken for and now queries.
    querying: Mutex<Option<WakeUp>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Waiters {
    /// Registers a waiter for jobs of these queues, which may be a pop.
    pub fn register(&self, patterns: &[QueuePattern], is_pop: bool) -> Ticket<'_> {
        let waiter = Arc::new(Waiter {
            patterns: patterns.to_vec(),
            is_pop,
            woken_for: Mutex::new(None),
            asleep: AtomicBool::new(false),
            notify: Notify::new(),
        });
        let mut register = lock(&self.register);
        let number = register.next;
        register.next += 1;
        register.insert(number, &waiter);
        Ticket { waiters: self, number, waiter, querying: Mutex::new(None) }
    }

    /// Wakes up to `jobs` waiters for this queue: here, and where these are too few, on other servers.
    pub fn wake(&self, queue: &QueueName, jobs: usize) {
        let woken = self.wake_here(queue, jobs);
        self.peers.note_ready(queue, jobs - woken);
    }

    /// Wakes up to `jobs` waiters for this queue on this server. Returns how many.
    pub fn wake_here(&self, queue: &QueueName, jobs: usize) -> usize {
        self.deliver(&WakeUp { queue: queue.clone(), more: false }, jobs)
    }

    /// There are jobs in this queue, it is not known how many: wakes the waiter that has waited longest, and
    /// if it finds some, the next ones, and so on. Returns whether there is a waiter for this queue.
    pub fn wake_in_turn(&self, queue: &QueueName) -> bool {
        self.deliver(&WakeUp { queue: queue.clone(), more: true }, 1) > 0
    }

    /// Wakes up to `waiters` waiters, those first that have waited longest. Returns how many.
    fn deliver(&self, wake_up: &WakeUp, waiters: usize) -> usize {
        let mut register = lock(&self.register);
        for woken in 0..waiters {
            let Some((number, waiter)) = register.first(&wake_up.queue, |_| true) else {
                return woken;
            };
            register.wake(number, &waiter, wake_up);
        }
        waiters
    }

    /// Wakes the waiter that has waited longest of those that are no pops.
    fn wake_reserve(&self, wake_up: &WakeUp) {
        let mut register = lock(&self.register);
        if let Some((number, waiter)) = register.first(&wake_up.queue, |waiter| !waiter.is_pop) {
            register.wake(number, &waiter, wake_up);
        }
    }

    /// Returns whether there is a waiter for this queue, here or on another server.
    pub fn wait_for(&self, queue: &QueueName) -> bool {
        let register = lock(&self.register);
        let is_named = register.by_name.contains_key(queue);
        let is_meant = |waiter: &Arc<Waiter>| waiter.patterns.iter().any(|pattern| pattern.matches(queue));
        let is_here = is_named || register.by_prefix.values().any(is_meant);
        drop(register);
        is_here || self.peers.wait_for(queue)
    }

    /// Returns whether there is a waiter for this queue that is no pop, here, or any on another server, which does not say what it is.
    pub fn reserve_for(&self, queue: &QueueName) -> bool {
        let register = lock(&self.register);
        let named = register.by_name.get(queue).into_iter().flat_map(BTreeMap::values);
        let is_meant = |waiter: &&Arc<Waiter>| waiter.patterns.iter().any(|pattern| pattern.matches(queue));
        let mut meant = named.chain(register.by_prefix.values().filter(is_meant));
        let is_here = meant.any(|waiter| !waiter.is_pop);
        drop(register);
        is_here || self.peers.wait_for(queue)
    }

    /// Returns how many waiters of this server wait for a queue, or for any.
    pub fn count(&self, queue: Option<&QueueName>) -> u64 {
        let register = lock(&self.register);
        let is_meant = |waiter: &Arc<Waiter>| {
            let meant = |queue| waiter.patterns.iter().any(|pattern| pattern.matches(queue));
            waiter.sleeps() && queue.is_none_or(meant)
        };
        let named = register.by_name.iter().filter(|(name, _)| queue.is_none_or(|queue| queue == *name));
        let named = named.flat_map(|(_, waiters)| waiters.iter());
        let all = named.chain(&register.by_prefix).filter(|(_, waiter)| is_meant(waiter));
        all.map(|(number, _)| *number).collect::<HashSet<u64>>().len() as u64
    }

    /// Returns how many waiters of this server wait for each queue.
    pub fn counts(&self) -> WaiterCounts {
        let register = lock(&self.register);
        let mut counts = WaiterCounts::default();
        for (name, waiters) in &register.by_name {
            let asleep = waiters.values().filter(|waiter| waiter.sleeps()).count() as u64;
            if asleep > 0 {
                counts.by_name.insert(name.clone(), asleep);
            }
        }
        for waiter in register.by_prefix.values().filter(|waiter| waiter.sleeps()) {
            match counts.by_patterns.get_mut(&waiter.patterns) {
                Some(count) => *count += 1,
                None => drop(counts.by_patterns.insert(waiter.patterns.clone(), 1)),
            }
        }
        counts
    }

    /// Returns whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        let register = lock(&self.register);
        register.by_name.is_empty() && register.by_prefix.is_empty()
    }

    /// Returns what sleeping waiters wait for: queues by name, and prefixes of which none begins with
    /// another.
    pub fn waited_for(&self) -> (Vec<QueueName>, Vec<Arc<str>>) {
        let register = lock(&self.register);
        let prefixes: BTreeSet<Arc<str>> = register.prefixes().collect();
        let mut outermost: Vec<Arc<str>> = Vec::new();
        for prefix in prefixes {
            // In their order, a prefix comes right before everything that begins with it.
            if !outermost.last().is_some_and(|outer| prefix.starts_with(&**outer)) {
                outermost.push(prefix);
            }
        }
        (register.names().cloned().collect(), outermost)
    }

    /// Returns what sleeping waiters wait for, as they asked for it.
    pub fn patterns(&self) -> HashSet<QueuePattern> {
        let register = lock(&self.register);
        let names = register.names().cloned().map(QueuePattern::One);
        names.chain(register.prefixes().map(QueuePattern::Prefix)).collect()
    }
}

impl Register {
    /// The queues that sleeping waiters wait for by name.
    fn names(&self) -> impl Iterator<Item = &QueueName> {
        let wanted = |waiters: &BTreeMap<_, Arc<Waiter>>| waiters.values().any(|waiter| waiter.sleeps());
        self.by_name.iter().filter(move |(_, waiters)| wanted(waiters)).map(|(name, _)| name)
    }

    /// The prefixes that sleeping waiters wait for; the same may come more than once.
    fn prefixes(&self) -> impl Iterator<Item = Arc<str>> {
        let asleep = self.by_prefix.values().filter(|waiter| waiter.sleeps());
        let patterns = asleep.flat_map(|waiter| &waiter.patterns);
        patterns.filter_map(|pattern| match pattern {
            QueuePattern::Prefix(prefix) => Some(prefix.clone()),
            QueuePattern::One(_) => None,
        })
    }

    fn insert(&mut self, number: u64, waiter: &Arc<Waiter>) {
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

    /// Returns the waiter that has waited longest for jobs of this queue, of those that are meant.
    fn first(&self, queue: &QueueName, is_meant: impl Fn(&Waiter) -> bool) -> Option<(u64, Arc<Waiter>)> {
        let named = self.by_name.get(queue).and_then(|all| all.iter().find(|(_, waiter)| is_meant(waiter)));
        let matches = |waiter: &Waiter| waiter.patterns.iter().any(|pattern| pattern.matches(queue));
        let prefixed = self.by_prefix.iter().find(|(_, waiter)| is_meant(waiter) && matches(waiter));
        let (number, waiter) = named.into_iter().chain(prefixed).min_by_key(|(number, _)| **number)?;
        Some((*number, waiter.clone()))
    }

    /// Wakes a waiter, which leaves the register until it queries.
    fn wake(&mut self, number: u64, waiter: &Waiter, wake_up: &WakeUp) {
        self.remove(number, &waiter.patterns);
        *lock(&waiter.woken_for) = Some(wake_up.clone());
        waiter.notify.notify_one();
    }
}

impl Ticket<'_> {
    /// Returns once this waiter was woken since it last queried.
    pub async fn woken(&self) {
        self.waiter.notify.notified().await;
    }

    /// The waiter is about to query the store: what arrives from now on wakes it again. It keeps its place.
    pub fn begin_query(&self) {
        self.waiter.asleep.store(false, Ordering::Release);
        let woken = lock(&self.waiter.woken_for).take();
        if woken.is_some() {
            lock(&self.waiters.register).insert(self.number, &self.waiter);
            *lock(&self.querying) = woken;
        }
    }

    /// The waiter found nothing and is going to sleep. Only now it concerns other servers: where every query
    /// finds something, nothing needs to be published.
    pub fn sleep(&self) {
        self.waiter.asleep.store(true, Ordering::Release);
        self.waiters.peers.note_waiter(&self.waiter.patterns);
    }

    /// The query is over; it took jobs of these queues, or found none at all. A wake-up for a queue of which
    /// it took nothing, because it found what it wanted in another, is still unused.
    pub fn end_query<'q>(&self, taken: impl Iterator<Item = &'q QueueName>) {
        let mut querying = lock(&self.querying);
        let mut found = taken.peekable();
        let empty = found.peek().is_none();
        let used = found.any(|queue| querying.as_ref().is_some_and(|wake_up| wake_up.queue == *queue));
        let done = if empty || used { querying.take() } else { None };
        drop(querying);
        match done {
            Some(wake_up) if used && wake_up.more => drop(self.waiters.deliver(&wake_up, PASSED_ON_TO)),
            // It may have passed over a job that a reserve takes.
            Some(wake_up) if empty && self.waiter.is_pop => self.waiters.wake_reserve(&wake_up),
            _ => {}
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.waiters.register).remove(self.number, &self.waiter.patterns);
        // Taken in a statement of its own: the next waiter must not be woken under this lock.
        let unused = [lock(&self.waiter.woken_for).take(), lock(&self.querying).take()];
        for wake_up in unused.into_iter().flatten() {
            let woken = self.waiters.deliver(&wake_up, 1);
            if !wake_up.more {
                self.waiters.peers.note_ready(&wake_up.queue, 1 - woken);
            }
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
        let waiters = Waiters::default();
        let queue = "mail.out".parse().unwrap();
        let (prefix, first, second) = (
            waiters.register(&one("mail*"), false),
            waiters.register(&one("mail.out"), false),
            waiters.register(&one("mail.out"), false),
        );
        let other = waiters.register(&one("other"), false);
        waiters.wake(&queue, 2);
        assert!(is_woken(&prefix) && is_woken(&first));
        assert!(!is_woken(&second) && !is_woken(&other));
        first.begin_query();
        waiters.wake(&queue, 1);
        assert!(is_woken(&first), "it found nothing and kept its place");
        assert!(!is_woken(&second));
    }

    #[test]
    fn an_unused_wake_up_goes_on_to_the_next() {
        let waiters = Waiters::default();
        let queue: QueueName = "a".parse().unwrap();
        let (first, second) = (waiters.register(&one("a"), false), waiters.register(&one("a"), false));
        waiters.wake(&queue, 1);
        drop(first);
        assert!(is_woken(&second));
        second.begin_query();
        drop(second);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_wake_up_that_its_waiter_uses_otherwise_goes_on() {
        let waiters = Waiters::default();
        let (a, b): (QueueName, QueueName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let both = ["a".parse().unwrap(), "b".parse().unwrap()];
        for (taken, goes_on) in [(vec![&a, &b], false), (vec![], false), (vec![&a], true)] {
            let (first, second) = (waiters.register(&both, false), waiters.register(&one("b"), false));
            waiters.wake(&b, 1);
            first.begin_query();
            first.end_query(taken.into_iter());
            drop(first);
            assert_eq!(is_woken(&second), goes_on);
        }
        // One that left during its query.
        let (first, second) = (waiters.register(&both, false), waiters.register(&one("b"), false));
        waiters.wake(&b, 1);
        first.begin_query();
        drop(first);
        assert!(is_woken(&second));
    }

    #[test]
    fn a_waiter_that_was_woken_in_turn_and_found_jobs_wakes_the_next() {
        let waiters = Waiters::default();
        let queue: QueueName = "a".parse().unwrap();
        let tickets: Vec<_> = (0..4).map(|_| waiters.register(&one("a"), false)).collect();
        let woken = || tickets.iter().map(is_woken).collect::<Vec<bool>>();
        assert!(waiters.wake_in_turn(&queue) && !waiters.wake_in_turn(&"b".parse().unwrap()));
        assert_eq!(woken(), [true, false, false, false], "it has waited longest");
        tickets[0].begin_query();
        tickets[0].end_query(std::iter::once(&queue));
        drop(waiters.register(&one("b"), false));
        // It still has its place until it leaves, and may be woken again.
        assert_eq!(woken(), [true, true, false, false]);
        tickets[1].begin_query();
        tickets[1].end_query(std::iter::empty());
        assert_eq!(woken(), [false; 4], "there was nothing more");
    }

    #[test]
    fn what_is_waited_for_is_known_without_repeats() {
        let waiters = Waiters::default();
        let texts = ["mail.out", "mail.*", "mail.in.*", "a", "mail.*", "zoo*"];
        let tickets: Vec<_> = texts.iter().map(|text| waiters.register(&one(text), false)).collect();
        assert_eq!(waiters.waited_for(), (Vec::new(), Vec::new()), "none sleeps yet");
        tickets.iter().for_each(Ticket::sleep);
        let (mut names, prefixes) = waiters.waited_for();
        names.sort();
        assert_eq!(names, ["a", "mail.out"].map(|name| name.parse().unwrap()));
        assert_eq!(prefixes, ["mail.", "zoo"].map(Arc::from));
        assert_eq!(waiters.patterns().len(), 5);
        drop(tickets);
        assert_eq!(waiters.waited_for(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_wake_up_while_looking_is_not_lost() {
        let waiters = Waiters::default();
        let ticket = waiters.register(&one("a"), false);
        ticket.begin_query();
        waiters.wake(&"a".parse().unwrap(), 1);
        assert!(is_woken(&ticket));
    }
}
