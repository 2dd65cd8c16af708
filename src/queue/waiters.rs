//! The waiters for jobs on this server. They are woken in the order in which they began to wait.
//!
//! A waiter registers *before* it queries the store, so that what arrives meanwhile wakes it again. A wake-up
//! that its waiter does not use (it left, or had found jobs already) goes on to the next one, on another
//! server if there is none here. Where it is not known how many jobs there are, the waiters that find some
//! wake the next ones.

mod prefixes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

pub(super) use self::prefixes::{Prefixes, beginnings};
use super::peers::{PATTERNS_MAX, Peers};
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
    /// Each waiter once.
    all: Line,
    /// The waiters for queues by name.
    by_name: HashMap<QueueName, Line>,
    /// The waiters for queues by prefix: those for a queue are found under the beginnings of its name.
    by_prefix: HashMap<Arc<str>, Line>,
}

/// Waiters by their numbers.
type Line = BTreeMap<u64, Arc<Waiter>>;

struct Waiter {
    /// What it waits for, without prefixes that begin with another one of its own.
    patterns: Vec<QueuePattern>,
    /// The names among them that one of its prefixes stands for as well.
    covered: HashSet<QueueName>,
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
    /// Whether other servers learn of these jobs without this one: they get the same signal, or query the store themselves.
    is_known_elsewhere: bool,
}

/// How many waiters a waiter wakes that was woken so and found jobs: with many jobs all are woken soon, and
/// with few jobs those get them that have waited longest.
const PASSED_ON_TO: usize = 2;

impl Waiter {
    fn new(patterns: &[QueuePattern], is_pop: bool) -> Self {
        let prefixes = Prefixes::of(patterns);
        let (mut kept, mut covered) = (Vec::with_capacity(patterns.len()), HashSet::new());
        for pattern in patterns {
            if let QueuePattern::One(queue) = pattern {
                kept.push(pattern.clone());
                if prefixes.stand_for(queue.as_str()) {
                    covered.insert(queue.clone());
                }
            }
        }
        kept.extend(prefixes.iter().cloned().map(QueuePattern::Prefix));
        Self {
            patterns: kept,
            covered,
            is_pop,
            woken_for: Mutex::new(None),
            asleep: AtomicBool::new(false),
            notify: Notify::new(),
        }
    }

    fn sleeps(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }
}

/// How many waiters wait for each queue.
#[derive(Default)]
pub(super) struct WaiterCounts {
    /// Without those that a prefix counts.
    by_name: HashMap<QueueName, u64>,
    by_prefix: HashMap<Arc<str>, u64>,
}

impl WaiterCounts {
    /// Returns how many wait for this queue.
    pub fn of(&self, queue: &QueueName) -> u64 {
        let prefixed = beginnings(queue.as_str()).filter_map(|beginning| self.by_prefix.get(beginning));
        self.by_name.get(queue).into_iter().chain(prefixed).sum()
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
        let waiter = Arc::new(Waiter::new(patterns, is_pop));
        let mut register = lock(&self.register);
        let number = register.next;
        register.next += 1;
        register.insert(number, &waiter);
        Ticket { waiters: self, number, waiter, querying: Mutex::new(None) }
    }

    /// Wakes up to `jobs` waiters for this queue: here, and where these are too few, on other servers.
    pub fn wake(&self, queue: &QueueName, jobs: usize) {
        let wake_up = WakeUp { queue: queue.clone(), more: false, is_known_elsewhere: false };
        let woken = self.deliver(&wake_up, jobs);
        self.peers.note_ready(queue, jobs - woken);
    }

    /// Wakes up to `jobs` waiters for this queue on this server, for what other servers learn of without it. Returns how many.
    pub fn wake_here(&self, queue: &QueueName, jobs: usize) -> usize {
        self.deliver(&WakeUp { queue: queue.clone(), more: false, is_known_elsewhere: true }, jobs)
    }

    /// There are jobs in this queue, it is not known how many: wakes the waiter that has waited longest, and
    /// if it finds some, the next ones, and so on. Returns whether there is a waiter for this queue.
    pub fn wake_in_turn(&self, queue: &QueueName) -> bool {
        // Other servers poll, too, and know themselves when a limit lets them go on.
        self.deliver(&WakeUp { queue: queue.clone(), more: true, is_known_elsewhere: true }, 1) > 0
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

    /// Wakes the waiter that has waited longest of those that are no pops: here, and where there is none, on another server.
    fn wake_reserve(&self, wake_up: &WakeUp) {
        let mut register = lock(&self.register);
        if let Some((number, waiter)) = register.first(&wake_up.queue, |waiter| !waiter.is_pop) {
            register.wake(number, &waiter, wake_up);
            return;
        }
        drop(register);
        // What came by a signal is not passed on: servers where only pops wait would signal each other without end.
        if !wake_up.is_known_elsewhere {
            self.peers.note_ready(&wake_up.queue, 1);
        }
    }

    /// Returns whether there is a waiter for this queue, here or on another server.
    pub fn wait_for(&self, queue: &QueueName) -> bool {
        let is_here = lock(&self.register).lines(queue).next().is_some();
        is_here || self.peers.wait_for(queue)
    }

    /// Returns whether there is a waiter for this queue that is no pop, here, or any on another server, which does not say what it is.
    pub fn reserve_for(&self, queue: &QueueName) -> bool {
        let is_here = lock(&self.register).first(queue, |waiter| !waiter.is_pop).is_some();
        is_here || self.peers.wait_for(queue)
    }

    /// Returns how many waiters of this server wait for a queue, or for any.
    pub fn count(&self, queue: Option<&QueueName>) -> u64 {
        let register = lock(&self.register);
        let Some(queue) = queue else {
            return register.all.values().filter(|waiter| waiter.sleeps()).count() as u64;
        };
        let named = register.by_name.get(queue).into_iter().flat_map(BTreeMap::values);
        let named = named.filter(|waiter| !waiter.covered.contains(queue));
        let prefixed = register.prefixed(queue).flat_map(BTreeMap::values);
        named.chain(prefixed).filter(|waiter| waiter.sleeps()).count() as u64
    }

    /// Returns how many waiters of this server wait for each queue.
    pub fn counts(&self) -> WaiterCounts {
        let register = lock(&self.register);
        WaiterCounts {
            by_name: counted(&register.by_name, |name, waiter| !waiter.covered.contains(name)),
            by_prefix: counted(&register.by_prefix, |_, _| true),
        }
    }

    /// Returns whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        lock(&self.register).all.is_empty()
    }

    /// Returns what sleeping waiters wait for: queues by name, and prefixes of which none begins with
    /// another.
    pub fn waited_for(&self) -> (Vec<QueueName>, Prefixes) {
        let register = lock(&self.register);
        let names: Vec<QueueName> = awaited(&register.by_name).cloned().collect();
        let prefixes: Vec<Arc<str>> = awaited(&register.by_prefix).cloned().collect();
        drop(register); // no push waits while they are sorted
        (names, prefixes.into_iter().collect())
    }

    /// Returns what sleeping waiters wait for; a part of it where it is more than is announced by name.
    pub fn patterns(&self) -> HashSet<QueuePattern> {
        let register = lock(&self.register);
        let names = awaited(&register.by_name).cloned().map(QueuePattern::One);
        let prefixes = awaited(&register.by_prefix).cloned().map(QueuePattern::Prefix);
        names.chain(prefixes).take(PATTERNS_MAX + 1).collect()
    }
}

/// Returns what sleeping waiters of these wait for.
fn awaited<K>(lines: &HashMap<K, Line>) -> impl Iterator<Item = &K> {
    lines.iter().filter(|(_, line)| line.values().any(|waiter| waiter.sleeps())).map(|(key, _)| key)
}

/// Returns how many of these waiters sleep and are meant, where any do.
fn counted<K: Clone + Eq + Hash>(
    lines: &HashMap<K, Line>,
    is_meant: impl Fn(&K, &Waiter) -> bool,
) -> HashMap<K, u64> {
    let count = |(key, line): (&K, &Line)| {
        let asleep = line.values().filter(|waiter| waiter.sleeps() && is_meant(key, waiter)).count() as u64;
        (asleep > 0).then(|| (key.clone(), asleep))
    };
    lines.iter().filter_map(count).collect()
}

/// Takes a waiter out of the line under this key, and the line away if it was the last.
fn leave<K: Eq + Hash>(lines: &mut HashMap<K, Line>, key: &K, number: u64) {
    if let Some(line) = lines.get_mut(key) {
        line.remove(&number);
        if line.is_empty() {
            lines.remove(key);
        }
    }
}

impl Register {
    /// The waiters for this queue by prefix. A waiter stands in one of these lines at most.
    fn prefixed(&self, queue: &QueueName) -> impl Iterator<Item = &Line> {
        beginnings(queue.as_str()).filter_map(move |beginning| self.by_prefix.get(beginning))
    }

    /// The waiters for this queue, by name and by prefix; none of these lines is empty.
    fn lines(&self, queue: &QueueName) -> impl Iterator<Item = &Line> {
        self.by_name.get(queue).into_iter().chain(self.prefixed(queue))
    }

    fn insert(&mut self, number: u64, waiter: &Arc<Waiter>) {
        self.all.insert(number, waiter.clone());
        for pattern in &waiter.patterns {
            let line = match pattern {
                QueuePattern::One(queue) => self.by_name.entry(queue.clone()).or_default(),
                QueuePattern::Prefix(prefix) => self.by_prefix.entry(prefix.clone()).or_default(),
            };
            line.insert(number, waiter.clone());
        }
    }

    fn remove(&mut self, number: u64, waiter: &Waiter) {
        self.all.remove(&number);
        for pattern in &waiter.patterns {
            match pattern {
                QueuePattern::One(queue) => leave(&mut self.by_name, queue, number),
                QueuePattern::Prefix(prefix) => leave(&mut self.by_prefix, prefix, number),
            }
        }
    }

    /// Returns the waiter that has waited longest for jobs of this queue, of those that are meant.
    fn first(&self, queue: &QueueName, is_meant: impl Fn(&Waiter) -> bool) -> Option<(u64, Arc<Waiter>)> {
        let firsts = self.lines(queue).filter_map(|line| line.iter().find(|(_, waiter)| is_meant(waiter)));
        let (number, waiter) = firsts.min_by_key(|(number, _)| **number)?;
        Some((*number, waiter.clone()))
    }

    /// Wakes a waiter, which leaves the register until it queries.
    fn wake(&mut self, number: u64, waiter: &Waiter, wake_up: &WakeUp) {
        self.remove(number, waiter);
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
            // A query before this one may have failed, and its wake-up is unused.
            let unused = std::mem::replace(&mut *lock(&self.querying), woken);
            unused.iter().for_each(|wake_up| self.pass_on(wake_up, wake_up.more));
        }
    }

    /// The waiter cannot query for a while: others get what wakes it, until it [returns](Self::return_to_line).
    pub fn leave(&self) {
        lock(&self.waiters.register).remove(self.number, &self.waiter);
        // Taken in a statement of its own: the next waiter must not be woken under this lock.
        for wake_up in self.unused() {
            // What came by a signal the others have heard: it would go back and forth between servers without room.
            let is_known = wake_up.more || wake_up.is_known_elsewhere;
            self.pass_on(&wake_up, is_known);
        }
    }

    /// Takes the wake-ups that the waiter has not used.
    fn unused(&self) -> impl Iterator<Item = WakeUp> {
        [lock(&self.waiter.woken_for).take(), lock(&self.querying).take()].into_iter().flatten()
    }

    /// The waiter is going to query, and has its old place.
    pub fn return_to_line(&self) {
        lock(&self.waiters.register).insert(self.number, &self.waiter);
    }

    /// Wakes the next waiter: here, and where there is none, on another server, unless it is known there.
    fn pass_on(&self, wake_up: &WakeUp, is_known: bool) {
        let woken = self.waiters.deliver(wake_up, 1);
        if !is_known {
            self.waiters.peers.note_ready(&wake_up.queue, 1 - woken);
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
        lock(&self.waiters.register).remove(self.number, &self.waiter);
        self.unused().for_each(|wake_up| self.pass_on(&wake_up, wake_up.more));
    }
}

#[cfg(test)]
mod tests;
