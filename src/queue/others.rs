//! The other servers over the same store: what their waiters wait for, and what they are told.
//!
//! A server says what its waiters wait for, and says it again while they do; what others say, it keeps here.
//! Jobs that no waiter of its own was woken for are told to the others only if one of them waits for such
//! jobs: where nobody waits elsewhere, nothing is written. What cannot be told at once gathers and is told
//! together. All of this saves time only; underneath, every server looks by itself (`sweep`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::{Queues, Result};
use crate::job::{QueueName, QueuePattern, Timestamp};
use crate::store::{Arrivals, Heard, Signal};

/// How long what a server says of its waiters holds, in milliseconds: it may have died since.
const WAITING_HOLDS_MS: u64 = 10_000;
/// How often it is said again; also how long a queue is named after its last waiter left, since the next one
/// usually comes soon.
const SAY_AGAIN: Duration = Duration::from_secs(4);
/// The most queues and prefixes that are named; with more, the server waits for whatever there is.
const PATTERNS_MAX: usize = 256;
/// When the others have surely heard what this server said.
const HEARD_AFTER: Duration = Duration::from_millis(50);
/// Jobs that come due later than this are no news: every server with waiters looks ahead once a second.
const DUE_SOON_MS: u64 = 2_000;

/// See the module's documentation.
#[derive(Default)]
pub struct Others {
    /// Whether there can be any.
    possible: AtomicBool,
    /// Whether waiters of any are known: what every job asks first.
    waiting: AtomicBool,
    state: Mutex<State>,
    /// Rings when there is something to tell.
    bell: Notify,
}

#[derive(Default)]
struct State {
    /// What the waiters of the others wait for.
    peers: HashMap<Arc<str>, Peer>,
    /// What is to be told.
    arrivals: Arrivals,
    said: Said,
}

/// The waiters of another server.
struct Peer {
    queues: HashSet<QueueName>,
    prefixes: Vec<Arc<str>>,
    until: Instant,
}

impl Peer {
    fn waits_for(&self, queue: &QueueName) -> bool {
        self.queues.contains(queue)
            || self.prefixes.iter().any(|prefix| queue.as_str().starts_with(&**prefix))
    }
}

/// What this server has said of its own waiters.
#[derive(Default)]
struct Said {
    patterns: HashSet<QueuePattern>,
    at: Option<Instant>,
    /// What waiters went to sleep for since.
    asked: HashSet<QueuePattern>,
}

impl Said {
    fn covers(&self, pattern: &QueuePattern) -> bool {
        self.patterns.contains(pattern) || self.patterns.contains(&anything())
    }

    fn is_older_than(&self, age: Duration) -> bool {
        self.at.is_none_or(|at| at.elapsed() >= age)
    }
}

/// What this server is about to say of its waiters.
struct Saying {
    patterns: HashSet<QueuePattern>,
    /// Whether the others do not know all of it yet.
    news: bool,
}

fn anything() -> QueuePattern {
    QueuePattern::Prefix("".into())
}

impl Others {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A waiter of this server begins to sleep until there are jobs in these queues.
    pub fn note_waiter(&self, patterns: &[QueuePattern]) {
        if !self.possible.load(Ordering::Acquire) {
            return;
        }
        let mut news = false;
        let said = &mut self.state().said;
        for pattern in patterns {
            if said.asked.len() <= PATTERNS_MAX && !said.asked.contains(pattern) {
                said.asked.insert(pattern.clone());
            }
            news |= !said.covers(pattern);
        }
        if news {
            self.bell.notify_one();
        }
    }

    /// Jobs came into this queue, and no waiter of this server was woken for them.
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
            self.bell.notify_one();
        }
    }

    /// What is to be told of jobs, if anything.
    fn take_arrivals(&self) -> Option<Arrivals> {
        let arrivals = std::mem::take(&mut self.state().arrivals);
        (!arrivals.is_empty()).then_some(arrivals)
    }

    /// The waiters of another server wait for these queues. Answers whether it was not known to wait before.
    fn set_peer(&self, server: Arc<str>, patterns: Vec<QueuePattern>, holds: Duration) -> bool {
        let (mut state, mut new) = (self.state(), false);
        if patterns.is_empty() || holds.is_zero() {
            state.peers.remove(&server);
        } else {
            let mut peer =
                Peer { queues: HashSet::new(), prefixes: Vec::new(), until: Instant::now() + holds };
            for pattern in patterns {
                match pattern {
                    QueuePattern::One(queue) => drop(peer.queues.insert(queue)),
                    QueuePattern::Prefix(prefix) => peer.prefixes.push(prefix),
                }
            }
            new = state.peers.insert(server, peer).is_none();
        }
        self.waiting.store(!state.peers.is_empty(), Ordering::Release);
        new
    }

    /// The others are to look for themselves.
    fn note_anything(&self) {
        self.state().arrivals.unnamed = true;
        self.bell.notify_one();
    }

    /// What the others said is said anew from now on.
    fn forget_peers(&self) {
        self.state().peers.clear();
        self.waiting.store(false, Ordering::Release);
    }

    /// What is to be said of this server's waiters, if anything. `waiting` tells what they wait for now.
    fn next_saying(&self, waiting: impl FnOnce() -> HashSet<QueuePattern>) -> Option<Saying> {
        let said = &mut self.state().said;
        let again = said.is_older_than(SAY_AGAIN);
        if !again && said.asked.iter().all(|pattern| said.covers(pattern)) {
            return None;
        }
        let mut patterns = waiting();
        patterns.extend(std::mem::take(&mut said.asked));
        if !again {
            patterns.extend(said.patterns.iter().cloned());
        }
        if patterns.is_empty() && said.patterns.is_empty() {
            return None;
        }
        if patterns.len() > PATTERNS_MAX {
            patterns = HashSet::from([anything()]);
        }
        // What was said too long ago has been forgotten.
        let news = said.is_older_than(Duration::from_millis(WAITING_HOLDS_MS))
            || patterns.iter().any(|pattern| !said.covers(pattern));
        Some(Saying { patterns, news })
    }

    fn has_said(&self, patterns: HashSet<QueuePattern>) {
        let said = &mut self.state().said;
        (said.patterns, said.at) = (patterns, Some(Instant::now()));
        // Somebody may have gone to sleep meanwhile, trusting what was said before.
        if said.asked.iter().any(|pattern| !said.covers(pattern)) {
            self.bell.notify_one();
        }
    }
}

impl Queues {
    /// From now on there may be other servers, and they are told what concerns them.
    pub fn expect_others(&self) {
        self.0.wakeups.others.possible.store(true, Ordering::Release);
    }

    /// Rings when there is something to tell the other servers.
    pub fn others_bell(&self) -> &Notify {
        &self.0.wakeups.others.bell
    }

    /// Tells the other servers what there is to tell. Answers how many signals that took.
    pub async fn tell_others(&self) -> Result<u64> {
        let (waiting, arrivals) = tokio::join!(self.tell_waiting(), self.tell_arrivals());
        Ok(waiting? + arrivals?)
    }

    async fn tell_waiting(&self) -> Result<u64> {
        let wakeups = &self.0.wakeups;
        let Some(Saying { patterns, news }) = wakeups.others.next_saying(|| wakeups.patterns()) else {
            return Ok(0);
        };
        let until = self.now()?.plus_ms(WAITING_HOLDS_MS);
        let signal = Signal::Waiting { patterns: patterns.iter().cloned().collect(), until };
        self.0.store.signal(&signal).await?;
        wakeups.others.has_said(patterns);
        if news {
            // What came after the waiters looked, and before the others knew of them, is found now.
            self.sweep_by(Instant::now() + HEARD_AFTER);
        }
        Ok(1)
    }

    /// One signal after the other; what comes meanwhile travels in the next one.
    async fn tell_arrivals(&self) -> Result<u64> {
        let mut told = 0;
        while let Some(arrivals) = self.0.wakeups.others.take_arrivals() {
            self.0.store.signal(&Signal::Arrived(arrivals)).await?;
            told += 1;
        }
        Ok(told)
    }

    /// Another server told something.
    pub fn heard(&self, heard: Heard) {
        let others = &self.0.wakeups.others;
        match heard {
            Heard::Begins => {
                others.forget_peers();
                self.sweep_by(Instant::now());
            }
            Heard::Signal { server, signal: Signal::Waiting { patterns, until } } => {
                let holds_ms = self.now().map_or(0, |now| until.ms_since(now)).min(WAITING_HOLDS_MS);
                if others.set_peer(server, patterns, Duration::from_millis(holds_ms)) {
                    // What came before this server knew of it may be what its waiters wait for.
                    others.note_anything();
                }
            }
            Heard::Signal { signal: Signal::Arrived(Arrivals { ready, unnamed, due }), .. } => {
                // These are not passed on: whoever told of them told everybody.
                for (queue, jobs) in ready {
                    self.0.wakeups.wake_here(&queue, jobs);
                }
                if unnamed {
                    self.sweep_by(Instant::now());
                }
                if let Some(due) = due {
                    self.0.due.note(due.millis());
                }
            }
        }
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

    fn rings(others: &Others) -> bool {
        others.bell.notified().now_or_never().is_some()
    }

    #[test]
    fn only_what_somebody_else_waits_for_is_told() {
        let others = Others::default();
        others.note_ready(&queue("a"), 1);
        assert!(others.take_arrivals().is_none() && !rings(&others));
        let holds = Duration::from_secs(60);
        others.set_peer("s1".into(), patterns(&["a", "mail.*"]), holds);
        others.note_ready(&queue("b"), 1);
        others.note_ready(&queue("a"), 0);
        assert!(others.take_arrivals().is_none() && !rings(&others));
        others.note_ready(&queue("a"), 2);
        others.note_ready(&queue("mail.out"), 1);
        others.note_scheduled(&queue("a"), Timestamp::from_millis(7), DUE_SOON_MS);
        others.note_scheduled(&queue("a"), Timestamp::from_millis(5), DUE_SOON_MS + 1);
        let arrivals = others.take_arrivals().unwrap();
        assert_eq!(arrivals.ready, HashMap::from([(queue("a"), 2), (queue("mail.out"), 1)]));
        assert_eq!(arrivals.due, Some(Timestamp::from_millis(7)));
        assert!(rings(&others) && others.take_arrivals().is_none());
        others.set_peer("s1".into(), Vec::new(), holds);
        others.note_ready(&queue("a"), 1);
        others.set_peer("s2".into(), patterns(&["a"]), Duration::from_nanos(1));
        others.note_ready(&queue("a"), 1);
        assert!(others.take_arrivals().is_none(), "nobody waits any more");
    }

    #[test]
    fn waiters_are_announced_when_they_are_news() {
        let others = Others::default();
        others.note_waiter(&patterns(&["a"]));
        assert!(!rings(&others), "there is nobody else");
        others.possible.store(true, Ordering::Release);
        assert!(others.next_saying(HashSet::new).is_none());
        others.note_waiter(&patterns(&["a"]));
        assert!(rings(&others));
        let saying = others.next_saying(HashSet::new).unwrap();
        assert_eq!((saying.patterns.len(), saying.news), (1, true));
        others.has_said(saying.patterns);
        others.note_waiter(&patterns(&["a"]));
        assert!(!rings(&others) && others.next_saying(HashSet::new).is_none());
        let many: Vec<String> = (0..=PATTERNS_MAX).map(|n| format!("q{n}")).collect();
        others.note_waiter(&patterns(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        let saying = others.next_saying(HashSet::new).unwrap();
        assert!(saying.news && saying.patterns == HashSet::from([anything()]));
        others.has_said(saying.patterns);
        others.note_waiter(&patterns(&["another", "any*"]));
        assert!(!rings(&others) || others.next_saying(HashSet::new).is_none());
    }

    #[test]
    fn who_has_left_is_not_announced_for_long() {
        let others = Others::default();
        others.possible.store(true, Ordering::Release);
        others.note_waiter(&patterns(&["a"]));
        others.has_said(others.next_saying(HashSet::new).unwrap().patterns);
        let age = |others: &Others| others.state().said.at = Some(Instant::now() - SAY_AGAIN);
        age(&others);
        let saying = others.next_saying(|| HashSet::from_iter(patterns(&["b"]))).unwrap();
        assert!(saying.news && saying.patterns == HashSet::from_iter(patterns(&["b"])));
        others.has_said(saying.patterns);
        age(&others);
        let saying = others.next_saying(HashSet::new).unwrap();
        assert!(!saying.news && saying.patterns.is_empty());
        others.has_said(saying.patterns);
        age(&others);
        assert!(others.next_saying(HashSet::new).is_none(), "nobody waits, and everybody knows");
    }
}
