//! Turns: while several servers over one database are busy, each lets more requests gather before it begins the next round of
//! a lane.
//!
//! Most of what a round costs the database does not depend on how much it carries. Beside others a server gets a share of the requests, and
//! would send as many rounds as one that gets all of them, each with a share of what it could carry. So a lane that has just ended a round
//! waits until those are back that took part in it, and for as long at most as the others need for a round of theirs each. A request that
//! comes alone never waits: none is expected beside it. Busy servers say so by a signal. Nothing but time depends on all of this: a
//! server that stands still, or is gone, delays the rounds of others by milliseconds, until its signal is old.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The most requests that are waited for: rounds that carry more cost hardly less for each, and leave other lanes idle.
const ENOUGH_MAX: usize = 24;
/// The longest that a lane waits for others to gather.
const GATHER_MAX: Duration = Duration::from_millis(15);
/// The longest that it waits once a request has come to an empty lane.
const FOLLOW_MAX: Duration = Duration::from_millis(3);
/// For how long a lane remembers who took part in its last round.
pub(super) const REMEMBERED: Duration = Duration::from_millis(50);
/// How long it is measured whether this server is busy, and for how much of that it must run rounds of several requests.
const MEASURE: Duration = Duration::from_millis(250);
const BUSY_FROM: Duration = Duration::from_millis(60);
/// For how long a server that says so is busy, in milliseconds, and how often it says so.
pub(super) const BUSY_HOLDS_MS: u64 = 5_000;
const REPEAT_AFTER: Duration = Duration::from_secs(2);

/// How a lane lets requests gather after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gathering {
    /// How many requests are expected: more are not waited for.
    pub enough: usize,
    /// How long they are waited for from the end of the round on.
    pub most: Duration,
    /// How long, from the first one on, where no other came in that time.
    pub follow: Duration,
}

/// Returns how a lane lets requests gather, whose last round had `carried` and took `took`, where so many wait already and so many
/// other servers are busy; `None`: it does not.
fn gathering(others: usize, carried: usize, waiting: usize, took: Duration) -> Option<Gathering> {
    let enough = (carried + waiting).min(ENOUGH_MAX);
    // A single request does not wait. Without requests in the last round none is expected.
    if others == 0 || enough < 2 || carried == 0 || waiting >= enough {
        return None;
    }
    let shares = u32::try_from(others).unwrap_or(u32::MAX);
    let most = took.saturating_mul(shares).min(GATHER_MAX);
    Some(Gathering { enough, most, follow: took.min(FOLLOW_MAX).min(most) })
}

/// See the module's documentation.
pub(super) struct Turns {
    /// What the other servers have said, and until when it holds.
    busy: Mutex<HashMap<Arc<str>, Instant>>,
    own: Mutex<Own>,
    /// Whether this server is to say that it is busy.
    to_say: AtomicBool,
    /// Notified when it is.
    notify: Arc<Notify>,
    /// A server that is about to stop does not wait.
    pub draining: CancellationToken,
}

/// What this server has done lately.
struct Own {
    since: Instant,
    spent: Duration,
    said: Option<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Turns {
    /// No server is known to be busy.
    pub fn new(notify: Arc<Notify>, draining: CancellationToken) -> Arc<Self> {
        let own = Mutex::new(Own { since: Instant::now(), spent: Duration::ZERO, said: None });
        Arc::new(Self { busy: Mutex::default(), own, to_say: AtomicBool::new(false), notify, draining })
    }

    /// A round of a lane has ended, in which so many requests were carried, while others wait. Returns how the lane lets more gather.
    pub fn round_ended(&self, carried: usize, waiting: usize, took: Duration) -> Option<Gathering> {
        if carried + waiting > 1 {
            self.note_load(took, Instant::now());
        }
        if self.draining.is_cancelled() {
            return None;
        }
        gathering(self.others(Instant::now()), carried, waiting, took)
    }

    fn note_load(&self, took: Duration, now: Instant) {
        let mut own = lock(&self.own);
        own.spent += took;
        if now.saturating_duration_since(own.since) < MEASURE {
            return;
        }
        let is_busy = own.spent >= BUSY_FROM;
        (own.since, own.spent) = (now, Duration::ZERO);
        if is_busy && own.said.is_none_or(|said| now.saturating_duration_since(said) >= REPEAT_AFTER) {
            own.said = Some(now);
            self.to_say.store(true, Ordering::Release);
            self.notify.notify_one();
        }
    }

    /// Returns whether it is to be published that this server is busy, once.
    pub fn take_busy(&self) -> bool {
        self.to_say.swap(false, Ordering::AcqRel)
    }

    /// Another server is busy, for so long.
    pub fn set_busy(&self, server: Arc<str>, holds: Duration) {
        lock(&self.busy).insert(server, Instant::now() + holds);
    }

    /// Returns how many other servers are busy.
    fn others(&self, now: Instant) -> usize {
        let mut busy = lock(&self.busy);
        busy.retain(|_, until| *until > now);
        busy.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn turns() -> Arc<Turns> {
        Turns::new(Arc::default(), CancellationToken::new())
    }

    #[test]
    fn who_took_part_is_waited_for_while_others_are_busy() {
        let gather = |enough, most, follow| Some(Gathering { enough, most, follow });
        assert_eq!(gathering(1, 8, 0, 2 * MS), gather(8, 2 * MS, 2 * MS));
        assert_eq!(gathering(3, 8, 4, 2 * MS), gather(12, 6 * MS, 2 * MS));
        assert_eq!(gathering(1, 1, 1, 2 * MS), gather(2, 2 * MS, 2 * MS));
        assert_eq!(gathering(1, 40, 10, 2 * MS), gather(ENOUGH_MAX, 2 * MS, 2 * MS));
        assert_eq!(gathering(1, 1, ENOUGH_MAX, 2 * MS), None, "enough are there");
        // However long a round took, and however many others there are.
        assert_eq!(gathering(2, 8, 0, 5000 * MS), gather(8, GATHER_MAX, FOLLOW_MAX));
        assert_eq!(gathering(usize::MAX, 8, 0, Duration::MAX), gather(8, GATHER_MAX, FOLLOW_MAX));
        assert_eq!(gathering(0, 8, 8, 2 * MS), None, "nobody else is busy");
        assert_eq!(gathering(3, 1, 0, 2 * MS), None, "who comes alone does not wait");
        assert_eq!(gathering(3, 0, 5, 2 * MS), None);
    }

    #[test]
    fn what_others_said_holds_for_a_while() {
        let turns = turns();
        turns.set_busy("s1".into(), 60 * Duration::from_secs(1));
        turns.set_busy("s1".into(), 60 * Duration::from_secs(1));
        turns.set_busy("s2".into(), Duration::ZERO);
        turns.set_busy("s3".into(), 30 * Duration::from_secs(1));
        let now = Instant::now();
        assert_eq!(turns.others(now + Duration::from_secs(1)), 2);
        assert_eq!(turns.others(now + Duration::from_secs(45)), 1);
        assert_eq!(turns.others(now + Duration::from_secs(120)), 0);
        turns.set_busy("s1".into(), 60 * Duration::from_secs(1));
        assert!(turns.round_ended(8, 0, MS).is_some());
        turns.draining.cancel();
        assert!(turns.round_ended(8, 0, MS).is_none(), "a server that stops waits for nobody");
    }

    #[test]
    fn a_server_says_so_while_it_is_busy() {
        let turns = turns();
        let begin = lock(&turns.own).since;
        turns.note_load(BUSY_FROM, begin);
        assert!(!turns.take_busy(), "not yet");
        turns.note_load(MS, begin + 2 * MEASURE);
        assert!(turns.take_busy() && !turns.take_busy());
        turns.note_load(BUSY_FROM, begin + 4 * MEASURE);
        assert!(!turns.take_busy(), "it holds");
        turns.note_load(BUSY_FROM, begin + 2 * MEASURE + REPEAT_AFTER);
        assert!(turns.take_busy(), "it is said again");
        turns.note_load(BUSY_FROM / 2, begin + 2 * MEASURE + 2 * REPEAT_AFTER);
        assert!(!turns.take_busy(), "it is not busy any more");
    }

    #[test]
    fn a_lone_client_makes_nobody_busy() {
        let turns = turns();
        lock(&turns.own).since -= 2 * MEASURE; // as if so long ago
        turns.round_ended(1, 0, Duration::from_secs(10));
        assert!(!turns.take_busy());
        turns.round_ended(2, 0, Duration::from_secs(10));
        assert!(turns.take_busy());
    }
}
