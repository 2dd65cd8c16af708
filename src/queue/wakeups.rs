//! Who waits for jobs, and waking them: in the order in which they began to wait.
//!
//! A waiter registers *before* it looks for jobs, so that what arrives while it looks wakes it again. A
//! wake-up that its waiter does not use (it left, or had found jobs already) goes on to the next one, on
//! another server if there is none here. Where nobody knows how many jobs there are, those who find some wake
//! the next ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::others::Others;
use crate::job::{QueueName, QueuePattern};

/// The register of waiters.
#[derive(Default)]
pub struct Wakeups {
    register: Mutex<Register>,
    /// The waiters on other servers.
    pub others: Others,
}

#[derive(Default)]
struct Register {
    /// Grows with each waiter; the smallest has waited longest.
    next: u64,
    /// Those that wait for named queues.
    by_name: HashMap<QueueName, BTreeMap<u64, Arc<Waiter>>>,
    /// Those that wait for queues by the beginning of their names.
    by_prefix: BTreeMap<u64, Arc<Waiter>>,
}

struct Waiter {
    patterns: Vec<QueuePattern>,
    /// What it was woken for, until it says that it noticed.
    woken_for: Mutex<Option<Call>>,
    /// Whether it has looked in vain and sleeps.
    asleep: AtomicBool,
    bell: Notify,
}

/// What a waiter is woken for.
#[derive(Clone)]
struct Call {
    queue: QueueName,
    /// Whether there may be more jobs than this waiter takes: if it finds some, others are to look, too.
    more: bool,
}

/// How many are woken by one who was called and found jobs: nobody waits for long where there is plenty, and
/// where there are few jobs, those who have waited longest get them.
const PASSED_ON_TO: usize = 2;

impl Waiter {
    fn sleeps(&self) -> bool {
        self.asleep.load(Ordering::Acquire)
    }
}

/// A place among the waiters; dropping it gives it up.
pub struct Ticket<'a> {
    register: &'a Wakeups,
    number: u64,
    waiter: Arc<Waiter>,
    /// What it was woken for and now looks into.
    looking_for: Mutex<Option<Call>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Wakeups {
    /// Begins to wait for jobs of these queues.
    pub fn register(&self, patterns: &[QueuePattern]) -> Ticket<'_> {
        let waiter = Arc::new(Waiter {
            patterns: patterns.to_vec(),
            woken_for: Mutex::new(None),
            asleep: AtomicBool::new(false),
            bell: Notify::new(),
        });
        let mut register = lock(&self.register);
        let number = register.next;
        register.next += 1;
        register.insert(number, &waiter);
        Ticket { register: self, number, waiter, looking_for: Mutex::new(None) }
    }

    /// Wakes up to `jobs` of those who wait for this queue: here, and where too few do, on other servers.
    pub fn wake(&self, queue: &QueueName, jobs: usize) {
        let woken = self.wake_here(queue, jobs);
        self.others.note_ready(queue, jobs - woken);
    }

    /// Wakes up to `jobs` of those who wait for this queue on this server. Answers how many.
    pub fn wake_here(&self, queue: &QueueName, jobs: usize) -> usize {
        self.call(&Call { queue: queue.clone(), more: false }, jobs)
    }

    /// There are jobs in this queue, nobody knows how many: wakes whoever has waited longest, and if it finds
    /// some, the next ones, and so on. Answers whether anybody waits for this queue.
    pub fn wake_in_turn(&self, queue: &QueueName) -> bool {
        self.call(&Call { queue: queue.clone(), more: true }, 1) > 0
    }

    fn call(&self, call: &Call, waiters: usize) -> usize {
        let mut register = lock(&self.register);
        for woken in 0..waiters {
            let Some((number, waiter)) = register.first(&call.queue) else {
                return woken;
            };
            register.remove(number, &waiter.patterns);
            *lock(&waiter.woken_for) = Some(call.clone());
            waiter.bell.notify_one();
        }
        waiters
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        let register = lock(&self.register);
        register.by_name.is_empty() && register.by_prefix.is_empty()
    }

    /// What those who sleep wait for: queues by name, and prefixes of names of which none begins with another.
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

    /// What those who sleep wait for, as they said it.
    pub fn patterns(&self) -> HashSet<QueuePattern> {
        let register = lock(&self.register);
        let names = register.names().cloned().map(QueuePattern::One);
        names.chain(register.prefixes().map(QueuePattern::Prefix)).collect()
    }
}

impl Register {
    /// The queues that those who sleep wait for by name.
    fn names(&self) -> impl Iterator<Item = &QueueName> {
        let wanted = |waiters: &BTreeMap<_, Arc<Waiter>>| waiters.values().any(|waiter| waiter.sleeps());
        self.by_name.iter().filter(move |(_, waiters)| wanted(waiters)).map(|(name, _)| name)
    }

    /// The prefixes that those who sleep wait for; the same may come more than once.
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

    /// Whoever has waited longest for jobs of this queue.
    fn first(&self, queue: &QueueName) -> Option<(u64, Arc<Waiter>)> {
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
        self.waiter.asleep.store(false, Ordering::Release);
        let woken = lock(&self.waiter.woken_for).take();
        if woken.is_some() {
            lock(&self.register.register).insert(self.number, &self.waiter);
            *lock(&self.looking_for) = woken;
        }
    }

    /// The waiter looked in vain and is going to sleep. Only now is it a concern of other servers: where every
    /// look finds something, nobody needs to be told of anything.
    pub fn sleep(&self) {
        self.waiter.asleep.store(true, Ordering::Release);
        self.register.others.note_waiter(&self.waiter.patterns);
    }

    /// The look is over; it took jobs of these queues, or found none at all. A wake-up for a queue of which it
    /// took nothing, because it found what it wanted in another, is still unused.
    pub fn looked<'q>(&self, taken: impl Iterator<Item = &'q QueueName>) {
        let mut looking_for = lock(&self.looking_for);
        let mut found = taken.peekable();
        let empty = found.peek().is_none();
        let used = found.any(|queue| looking_for.as_ref().is_some_and(|call| call.queue == *queue));
        let answered = if empty || used { looking_for.take() } else { None };
        drop(looking_for);
        if let Some(call) = answered.filter(|call| used && call.more) {
            self.register.call(&call, PASSED_ON_TO);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.register.register).remove(self.number, &self.waiter.patterns);
        // Taken in a statement of its own: the next waiter must not be woken under this lock.
        let unused = [lock(&self.waiter.woken_for).take(), lock(&self.looking_for).take()];
        for call in unused.into_iter().flatten() {
            let woken = self.register.call(&call, 1);
            if !call.more {
                self.register.others.note_ready(&call.queue, 1 - woken);
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
    fn a_wake_up_that_its_waiter_uses_otherwise_goes_on() {
        let wakeups = Wakeups::default();
        let (a, b): (QueueName, QueueName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let both = ["a".parse().unwrap(), "b".parse().unwrap()];
        for (taken, goes_on) in [(vec![&a, &b], false), (vec![], false), (vec![&a], true)] {
            let (first, second) = (wakeups.register(&both), wakeups.register(&one("b")));
            wakeups.wake(&b, 1);
            first.look();
            first.looked(taken.into_iter());
            drop(first);
            assert_eq!(is_woken(&second), goes_on);
        }
        // One that left while it looked.
        let (first, second) = (wakeups.register(&both), wakeups.register(&one("b")));
        wakeups.wake(&b, 1);
        first.look();
        drop(first);
        assert!(is_woken(&second));
    }

    #[test]
    fn who_was_called_in_turn_and_found_jobs_wakes_the_next() {
        let wakeups = Wakeups::default();
        let queue: QueueName = "a".parse().unwrap();
        let tickets: Vec<_> = (0..4).map(|_| wakeups.register(&one("a"))).collect();
        let woken = || tickets.iter().map(is_woken).collect::<Vec<bool>>();
        assert!(wakeups.wake_in_turn(&queue) && !wakeups.wake_in_turn(&"b".parse().unwrap()));
        assert_eq!(woken(), [true, false, false, false], "it has waited longest");
        tickets[0].look();
        tickets[0].looked(std::iter::once(&queue));
        drop(wakeups.register(&one("b")));
        // It still has its place until it leaves, and may be called again.
        assert_eq!(woken(), [true, true, false, false]);
        tickets[1].look();
        tickets[1].looked(std::iter::empty());
        assert_eq!(woken(), [false; 4], "there was nothing more");
    }

    #[test]
    fn what_is_waited_for_is_known_without_repeats() {
        let wakeups = Wakeups::default();
        let texts = ["mail.out", "mail.*", "mail.in.*", "a", "mail.*", "zoo*"];
        let tickets: Vec<_> = texts.iter().map(|text| wakeups.register(&one(text))).collect();
        assert_eq!(wakeups.waited_for(), (Vec::new(), Vec::new()), "nobody sleeps yet");
        tickets.iter().for_each(Ticket::sleep);
        let (mut names, prefixes) = wakeups.waited_for();
        names.sort();
        assert_eq!(names, ["a", "mail.out"].map(|name| name.parse().unwrap()));
        assert_eq!(prefixes, ["mail.", "zoo"].map(Arc::from));
        assert_eq!(wakeups.patterns().len(), 5);
        drop(tickets);
        assert_eq!(wakeups.waited_for(), (Vec::new(), Vec::new()));
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
