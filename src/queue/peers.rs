//! The other servers over the same store, its peers: what their waiters wait for, and what is to be published
//! to them.
//!
//! A server announces what its waiters wait for, and again for as long as they do; what peers announce is
//! kept here. Jobs that no waiter here was woken for, or only a pop that found none, are published only if a
//! peer waits for such jobs: where no server waits, nothing is written. What arrives while a signal is under
//! way is collected and travels in the next one. All of this saves time only; beside it, every server polls
//! by itself.
//! `maintenance/signals.rs` sends and receives the signals.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::waiters::Prefixes;
use super::{Queues, Result};
use crate::job::{QueueName, QueuePattern, Timestamp};
use crate::store::{Arrivals, KnownServer};

/// How long an announcement of waiters holds, in milliseconds: its server may have died since.
pub(super) const ANNOUNCEMENT_HOLDS_MS: u64 = 10_000;
/// How often it is repeated; also how long a queue stays in it after its last waiter left, since the next one
/// usually comes soon.
const REPEAT_AFTER: Duration = Duration::from_secs(4);
/// The most queues and prefixes of an announcement; a server with more announces some of them and, as the last, that it waits for any queue.
pub(super) const PATTERNS_MAX: usize = 256;
/// Jobs that come due later than this are not published: every server with waiters reads ahead once a second.
const DUE_SOON_MS: u64 = 2_000;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Peers {
    /// Whether there can be any.
    possible: AtomicBool,
    /// Whether any peer is known to have waiters: the first check for every job.
    waiting: AtomicBool,
    /// Whether settings have changed here since they were last published.
    settings: AtomicBool,
    state: Mutex<State>,
    /// Notified when there is something to publish.
    notify: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// What the waiters of each peer wait for.
    peers: HashMap<Arc<str>, Peer>,
    /// What is to be published of jobs.
    arrivals: Arrivals,
    announced: Announced,
}

/// The waiters of another server.
struct Peer {
    queues: HashSet<QueueName>,
    prefixes: Prefixes,
    /// Whether they were too many, so that it has announced any queue.
    are_too_many: bool,
    until: Instant,
}

impl Peer {
    fn waits_for(&self, queue: &QueueName) -> bool {
        self.are_too_many || self.names(queue)
    }

    /// Returns whether it surely does.
    fn names(&self, queue: &QueueName) -> bool {
        self.queues.contains(queue) || self.prefixes.stand_for(queue.as_str())
    }
}

/// What this server has announced of its own waiters.
#[derive(Default)]
struct Announced {
    patterns: HashSet<QueuePattern>,
    at: Option<Instant>,
    /// What waiters went to sleep for since.
    wanted: HashSet<QueuePattern>,
}

impl Announced {
    fn covers(&self, pattern: &QueuePattern) -> bool {
        self.patterns.contains(pattern) || self.patterns.contains(&any_queue())
    }

    fn is_older_than(&self, age: Duration) -> bool {
        self.at.is_none_or(|at| at.elapsed() >= age)
    }
}

/// What this server is about to announce of its waiters.
pub(super) struct Announcement {
    /// What they wait for.
    pub patterns: HashSet<QueuePattern>,
    /// Whether some of it is new to the peers.
    pub news: bool,
}

fn any_queue() -> QueuePattern {
    QueuePattern::Prefix("".into())
}

impl Peers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// From now on there may be other servers, to which signals are published.
    pub fn enable(&self) {
        self.possible.store(true, Ordering::Release);
    }

    /// Returns whether there may be other servers.
    pub fn are_possible(&self) -> bool {
        self.possible.load(Ordering::Acquire)
    }

    /// Notified when there is something to publish.
    pub fn notify(&self) -> Arc<Notify> {
        self.notify.clone()
    }

    /// A waiter of this server begins to sleep until there are jobs in these queues.
    pub fn note_waiter(&self, patterns: &[QueuePattern]) {
        if !self.possible.load(Ordering::Acquire) {
            return;
        }
        let mut news = false;
        let announced = &mut self.state().announced;
        for pattern in patterns {
            if announced.wanted.len() <= PATTERNS_MAX && !announced.wanted.contains(pattern) {
                announced.wanted.insert(pattern.clone());
            }
            news |= !announced.covers(pattern);
        }
        if news {
            self.notify.notify_one();
        }
    }

    /// Returns whether the waiters of another server wait for this queue, by what it announced last.
    pub fn wait_for(&self, queue: &QueueName) -> bool {
        let now = Instant::now();
        self.state().peers.values().any(|peer| peer.until > now && peer.waits_for(queue))
    }

    /// Returns whether the waiters of another server surely wait for this queue: not where it has too many to announce them all.
    pub fn surely_wait_for(&self, queue: &QueueName) -> bool {
        let now = Instant::now();
        self.state().peers.values().any(|peer| peer.until > now && peer.names(queue))
    }

    /// Returns whether another server has any waiters, by what it announced last.
    pub fn any_wait(&self) -> bool {
        let now = Instant::now();
        self.state().peers.values().any(|peer| peer.until > now)
    }

    /// Jobs came into this queue, and no waiter of this server was woken for them, or only a pop, which may have passed over them.
    pub fn note_ready(&self, queue: &QueueName, jobs: usize) {
        if jobs > 0 {
            self.note(queue, |arrivals| arrivals.add(queue, jobs));
        }
    }

    /// A job came into this queue that comes due in so many milliseconds.
    pub fn note_scheduled(&self, queue: &QueueName, at: Timestamp, in_ms: u64) {
        if in_ms <= DUE_SOON_MS {
            self.note(queue, |arrivals| arrivals.add_due(at));
        }
    }

    fn note(&self, queue: &QueueName, add: impl FnOnce(&mut Arrivals)) {
        if !self.waiting.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state();
        let now = Instant::now();
        state.peers.retain(|_, peer| peer.until > now);
        self.waiting.store(!state.peers.is_empty(), Ordering::Release);
        if state.peers.values().any(|peer| peer.waits_for(queue)) {
            add(&mut state.arrivals);
            self.notify.notify_one();
        }
    }

    /// Settings have changed here: the other servers read them at once.
    pub fn note_settings(&self) {
        if self.possible.load(Ordering::Acquire) {
            self.settings.store(true, Ordering::Release);
            self.notify.notify_one();
        }
    }

    /// Returns whether it is to be published that settings have changed, once.
    pub fn take_settings(&self) -> bool {
        self.settings.swap(false, Ordering::AcqRel)
    }

    /// Takes what is to be published of jobs, if anything.
    pub fn take_arrivals(&self) -> Option<Arrivals> {
        let arrivals = std::mem::take(&mut self.state().arrivals);
        (!arrivals.is_empty()).then_some(arrivals)
    }

    /// Replaces what the waiters of another server wait for. Returns whether that server is new.
    pub fn set(&self, server: Arc<str>, patterns: Vec<QueuePattern>, holds: Duration) -> bool {
        let (mut state, mut new) = (self.state(), false);
        if patterns.is_empty() || holds.is_zero() {
            state.peers.remove(&server);
        } else {
            let any = any_queue();
            let are_too_many = patterns.len() >= PATTERNS_MAX && patterns.contains(&any);
            let until = Instant::now() + holds;
            let (mut queues, mut prefixes) = (HashSet::new(), Vec::new());
            for pattern in patterns {
                match pattern {
                    pattern if are_too_many && pattern == any => {}
                    QueuePattern::One(queue) => drop(queues.insert(queue)),
                    QueuePattern::Prefix(prefix) => prefixes.push(prefix),
                }
            }
            let prefixes = prefixes.into_iter().collect();
            new = state.peers.insert(server, Peer { queues, prefixes, are_too_many, until }).is_none();
        }
        self.waiting.store(!state.peers.is_empty(), Ordering::Release);
        new
    }

    /// Publishes that any queue may have got jobs, so that the peers poll.
    pub fn note_any_arrivals(&self) {
        self.state().arrivals.unnamed = true;
        self.notify.notify_one();
    }

    /// Forgets what the peers announced: it follows anew.
    pub fn forget_all(&self) {
        self.state().peers.clear();
        self.waiting.store(false, Ordering::Release);
    }

    /// Returns what is to be announced of this server's waiters, if anything. `waiting` returns what they
    /// wait for now.
    pub fn next_announcement(&self, waiting: impl FnOnce() -> HashSet<QueuePattern>) -> Option<Announcement> {
        let announced = &mut self.state().announced;
        let repeat = announced.is_older_than(REPEAT_AFTER);
        if !repeat && announced.wanted.iter().all(|pattern| announced.covers(pattern)) {
            return None;
        }
        let mut patterns = waiting();
        patterns.extend(std::mem::take(&mut announced.wanted));
        if !repeat {
            patterns.extend(announced.patterns.iter().cloned());
        }
        if patterns.is_empty() && announced.patterns.is_empty() {
            return None;
        }
        if patterns.len() > PATTERNS_MAX {
            // Which has as many as may be and any queue among them was cut.
            patterns.remove(&any_queue());
            patterns = patterns.into_iter().take(PATTERNS_MAX - 1).chain([any_queue()]).collect();
        }
        // Peers have forgotten what was announced too long ago.
        let news = announced.is_older_than(Duration::from_millis(ANNOUNCEMENT_HOLDS_MS))
            || patterns.iter().any(|pattern| !announced.covers(pattern));
        Some(Announcement { patterns, news })
    }

    /// Notes that this was announced.
    pub fn announced(&self, patterns: HashSet<QueuePattern>) {
        let announced = &mut self.state().announced;
        (announced.patterns, announced.at) = (patterns, Some(Instant::now()));
        // A waiter may have gone to sleep meanwhile, relying on the announcement before.
        if announced.wanted.iter().any(|pattern| !announced.covers(pattern)) {
            self.notify.notify_one();
        }
    }
}

impl Queues {
    /// Returns the servers over the store that have said lately that they are there.
    pub async fn servers(&self) -> Result<Vec<KnownServer>> {
        Ok(self.0.store.servers().await?)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<QueuePattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn queue(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    fn is_notified(peers: &Peers) -> bool {
        peers.notify.notified().now_or_never().is_some()
    }

    /// Notes that this was announced, just now for as long as this thread may stand still.
    fn announced_just_now(peers: &Peers, patterns: HashSet<QueuePattern>) {
        peers.announced(patterns);
        peers.state().announced.at = Some(Instant::now() + Duration::from_secs(3600));
    }

    #[test]
    fn only_what_a_peer_waits_for_is_published() {
        let peers = Peers::default();
        peers.note_ready(&queue("a"), 1);
        assert!(peers.take_arrivals().is_none() && !is_notified(&peers));
        let holds = Duration::from_secs(60);
        peers.set("s1".into(), patterns(&["a", "mail.*"]), holds);
        peers.note_ready(&queue("b"), 1);
        peers.note_ready(&queue("a"), 0);
        assert!(peers.take_arrivals().is_none() && !is_notified(&peers));
        peers.note_ready(&queue("a"), 2);
        peers.note_ready(&queue("mail.out"), 1);
        peers.note_scheduled(&queue("a"), Timestamp::from_millis(7), DUE_SOON_MS);
        peers.note_scheduled(&queue("a"), Timestamp::from_millis(5), DUE_SOON_MS + 1);
        let arrivals = peers.take_arrivals().unwrap();
        assert_eq!(arrivals.ready, HashMap::from([(queue("a"), 2), (queue("mail.out"), 1)]));
        assert_eq!(arrivals.due, Some(Timestamp::from_millis(7)));
        assert!(is_notified(&peers) && peers.take_arrivals().is_none());
        peers.set("s1".into(), Vec::new(), holds);
        peers.note_ready(&queue("a"), 1);
        peers.set("s2".into(), patterns(&["a"]), Duration::from_nanos(1));
        peers.note_ready(&queue("a"), 1);
        assert!(peers.take_arrivals().is_none(), "there are no waiters any more");
    }

    #[test]
    fn waiters_are_announced_when_they_are_news() {
        let peers = Peers::default();
        peers.note_waiter(&patterns(&["a"]));
        assert!(!is_notified(&peers), "there are no peers");
        peers.possible.store(true, Ordering::Release);
        assert!(peers.next_announcement(HashSet::new).is_none());
        peers.note_waiter(&patterns(&["a"]));
        assert!(is_notified(&peers));
        let next = peers.next_announcement(HashSet::new).unwrap();
        assert_eq!((next.patterns.len(), next.news), (1, true));
        announced_just_now(&peers, next.patterns);
        peers.note_waiter(&patterns(&["a"]));
        assert!(!is_notified(&peers) && peers.next_announcement(HashSet::new).is_none());
        let many: Vec<String> = (0..=PATTERNS_MAX).map(|n| format!("q{n}")).collect();
        peers.note_waiter(&patterns(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        let next = peers.next_announcement(HashSet::new).unwrap();
        assert!(next.news && next.patterns.len() == PATTERNS_MAX && next.patterns.contains(&any_queue()));
        let (other, holds) = (Peers::default(), Duration::from_secs(60));
        other.set("s1".into(), next.patterns.iter().cloned().collect(), holds);
        let named = (0..=PATTERNS_MAX).filter(|n| other.surely_wait_for(&queue(&format!("q{n}")))).count();
        assert!(named >= PATTERNS_MAX - 2 && !other.surely_wait_for(&queue("another")));
        assert!(other.wait_for(&queue("another")), "it may");
        other.set("s1".into(), patterns(&["*"]), holds);
        assert!(other.surely_wait_for(&queue("another")), "that is what a call waits for");
        announced_just_now(&peers, next.patterns);
        peers.note_waiter(&patterns(&["another", "any*"]));
        assert!(!is_notified(&peers) || peers.next_announcement(HashSet::new).is_none());
    }

    #[test]
    fn waiters_that_left_are_not_announced_for_long() {
        let peers = Peers::default();
        peers.possible.store(true, Ordering::Release);
        peers.note_waiter(&patterns(&["a"]));
        peers.announced(peers.next_announcement(HashSet::new).unwrap().patterns);
        let age = |peers: &Peers| peers.state().announced.at = Some(Instant::now() - REPEAT_AFTER);
        age(&peers);
        let next = peers.next_announcement(|| HashSet::from_iter(patterns(&["b"]))).unwrap();
        assert!(next.news && next.patterns == HashSet::from_iter(patterns(&["b"])));
        peers.announced(next.patterns);
        age(&peers);
        let next = peers.next_announcement(HashSet::new).unwrap();
        assert!(!next.news && next.patterns.is_empty());
        peers.announced(next.patterns);
        age(&peers);
        assert!(peers.next_announcement(HashSet::new).is_none(), "no waiters, and the peers know");
    }
}
