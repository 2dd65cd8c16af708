//! The figures of every queue at one moment, for lists: read together, about once a second while a client asks, and never otherwise. Where
//! reading takes long, they are as old as some times that, by some seconds at most. Event streams and lists show the same board.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::attention::{Attention, Held, Reason, Seen, Thresholds, judge, may_be_held};
use super::flows::{Flow, Flows};
use super::history::Recent;
use super::meter::Event;
use super::{Queues, Result};
use crate::job::{QueueName, Rules, Timestamp};
use crate::store::{Counts, QueueCounts, StoreError};

/// Of so many queues, those with the most unfinished jobs, it is known since when their oldest job has been ready.
pub const LISTED_MAX: usize = 10_000;
/// How old the board may be, and when it is read again.
const AGE_MAX: Duration = Duration::from_millis(900);
const REFRESHED_AT: Duration = Duration::from_millis(600);
/// Where reading takes long it may be as old as so many times that, and is read again some time before.
const AGE: Age = Age { least: AGE_MAX, rests: 6, most: Duration::from_secs(10) };
const AGE_BEFORE: Age = Age { least: REFRESHED_AT, rests: 4, most: Duration::from_secs(6) };
/// The same for who asks now and then.
const AGE_RARELY: Age = Age { least: Duration::from_secs(2), rests: 20, most: Duration::from_secs(30) };
/// Without a request for so long it is not read any more.
const REFRESHED_FOR: Duration = Duration::from_millis(2500);
/// For how long after its last page a board is kept, and how many queues the kept ones have together.
const KEPT_FOR: Duration = Duration::from_secs(30);
const KEPT_MAX: usize = 100_000;

/// How old a board may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Age {
    /// It may always be so old.
    pub least: Duration,
    /// It may be so many times as old as reading it took.
    pub rests: u32,
    /// But not longer than this after it was read: a single slow read does not make it old for minutes.
    pub most: Duration,
}

impl Age {
    fn of(self, took: Duration) -> Duration {
        self.least.max((took * self.rests).min(took + self.most))
    }
}

/// A queue on the board.
#[derive(Debug, Clone)]
pub struct BoardQueue {
    /// Its name.
    pub name: QueueName,
    /// How many jobs it has, and since when the oldest has been ready.
    pub counts: QueueCounts,
    /// Whether it is among those of which the oldest ready job is known.
    pub is_listed: bool,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// What happened in it during the last minute.
    pub flow: Flow,
    /// How many calls wait for its jobs on this server.
    pub waiting_here: u64,
    /// Whether any wait on others, or may.
    pub waiting_elsewhere: bool,
    /// Whether they surely do: a server with too many announces that it waits for any queue.
    pub surely_elsewhere: bool,
    /// Why it needs attention.
    pub attention: Vec<Attention>,
    /// Whether it is not known yet if it does for some reason: what holds its blocked jobs, since when its oldest job has been ready, or
    /// what happened in it.
    pub is_unjudged: bool,
}

impl BoardQueue {
    /// Returns how many jobs were finished per second.
    pub fn finished_per_s(&self) -> f64 {
        self.flow.rate(Event::Committed) + self.flow.rate(Event::Moved)
    }

    /// Returns how many attempts failed per second.
    pub fn failed_per_s(&self) -> f64 {
        self.flow.rate(Event::RolledBack) + self.flow.rate(Event::Lapsed)
    }
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Board {
    /// Identifies the board.
    pub id: u64,
    /// When reading it began, by the store's clock.
    pub at: Timestamp,
    /// The queues that have jobs or settings, by name.
    pub queues: Vec<BoardQueue>,
    /// Of how many queues with jobs it is not known since when the oldest has been ready.
    pub left_out: u64,
}

impl Board {
    /// Returns how many queues need attention, by the reason.
    pub fn attention(&self) -> [u64; Reason::ALL.len()] {
        attention_of(self.queues.iter())
    }

    /// Returns of how many queues it is not known yet whether they need attention for some reason.
    pub fn unjudged(&self) -> u64 {
        self.queues.iter().filter(|queue| queue.is_unjudged).count() as u64
    }

    /// Returns in how many queues the oldest ready job was looked up a while ago, and may have been taken since.
    pub fn approximate(&self) -> u64 {
        self.queues.iter().filter(|queue| queue.counts.oldest_is_approximate).count() as u64
    }
}

/// Returns how many of these queues need attention, by the reason.
pub fn attention_of<'b>(queues: impl Iterator<Item = &'b BoardQueue>) -> [u64; Reason::ALL.len()] {
    let mut counts = [0; Reason::ALL.len()];
    for attention in queues.flat_map(|queue| &queue.attention) {
        if let Some(count) = counts.get_mut(attention.reason as usize) {
            *count += 1;
        }
    }
    counts
}

/// The board that was read last.
#[derive(Default)]
pub(super) struct BoardCache {
    last: Mutex<Last>,
    /// Held while it is read.
    reading: tokio::sync::Mutex<()>,
    /// Boards of which pages are being read, the oldest first.
    kept: Mutex<VecDeque<(Instant, Arc<Board>)>>,
}

#[derive(Default)]
struct Last {
    /// The board, when reading it began, and how long that took.
    board: Option<(Instant, Duration, Arc<Board>)>,
    /// When reading it began, if that has failed since.
    failed: Option<Instant>,
    wanted: Option<Instant>,
    is_refreshed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl BoardCache {
    fn younger_than(&self, age: Age) -> Option<Arc<Board>> {
        let last = lock(&self.last);
        let (began, took, board) = last.board.as_ref()?;
        (began.elapsed() < age.of(*took)).then(|| board.clone())
    }

    /// Returns what came of a read that began after this moment.
    fn read_since(&self, asked: Instant) -> Option<Result<Arc<Board>>> {
        let last = lock(&self.last);
        let failed = || StoreError::unavailable("the figures could not be read a moment ago").into();
        let read = last.board.as_ref().filter(|(began, _, _)| *began >= asked);
        let is_failed = last.failed.is_some_and(|began| began >= asked);
        read.map(|(_, _, board)| Ok(board.clone())).or_else(|| is_failed.then(|| Err(failed())))
    }

    /// Notes a request. Returns whether a task must begin to read it again and again, since requests keep coming.
    fn want(&self) -> bool {
        let mut last = lock(&self.last);
        let is_repeated = last.wanted.is_some_and(|wanted| wanted.elapsed() < REFRESHED_FOR);
        last.wanted = Some(Instant::now());
        is_repeated && !std::mem::replace(&mut last.is_refreshed, true)
    }

    /// Returns whether it is still to be read again; if not, another task may begin to.
    fn is_wanted(&self) -> bool {
        let mut last = lock(&self.last);
        last.is_refreshed = last.wanted.is_some_and(|wanted| wanted.elapsed() < REFRESHED_FOR);
        last.is_refreshed
    }

    /// Returns for how long it needs not be read again.
    fn rest(&self) -> Duration {
        let last = lock(&self.last);
        let rest =
            last.board.as_ref().map(|(began, took, _)| AGE_BEFORE.of(*took).saturating_sub(began.elapsed()));
        rest.unwrap_or(REFRESHED_AT)
    }

    /// Keeps a board for those who read page after page of it.
    pub fn keep(&self, board: &Arc<Board>) {
        let mut kept = lock(&self.kept);
        kept.retain(|(at, other)| at.elapsed() < KEPT_FOR && other.id != board.id);
        kept.push_back((Instant::now(), board.clone()));
        let mut queues = kept.iter().map(|(_, board)| board.queues.len()).sum::<usize>();
        while kept.len() > 1 && queues > KEPT_MAX {
            queues -= kept.pop_front().map_or(0, |(_, board)| board.queues.len());
        }
    }

    /// Returns the board of the pages before, if it is kept.
    pub fn kept(&self, id: u64) -> Option<Arc<Board>> {
        let kept = lock(&self.kept);
        let found = kept.iter().find(|(at, board)| board.id == id && at.elapsed() < KEPT_FOR);
        found.map(|(_, board)| board.clone())
    }
}

impl Queues {
    /// Returns the figures of all queues, about a second old; where reading them takes long, as old as some times that.
    pub async fn board(&self) -> Result<Arc<Board>> {
        if self.0.board.want() {
            tokio::spawn(self.clone().refresh_board());
        }
        self.board_younger_than(AGE).await
    }

    /// Returns the same for who asks now and then: some seconds old, and not read again and again.
    pub async fn board_for_metrics(&self) -> Result<Arc<Board>> {
        self.board_younger_than(AGE_RARELY).await
    }

    /// Returns the board, read anew unless it is young enough.
    async fn board_younger_than(&self, age: Age) -> Result<Arc<Board>> {
        if let Some(board) = self.0.board.younger_than(age) {
            return Ok(board);
        }
        // In a task of its own: a read that takes longer than the caller waits serves the next request.
        let this = self.clone();
        let reading = tokio::spawn(async move { this.read_board(age).await });
        self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    async fn refresh_board(self) {
        while self.0.board.is_wanted() && !self.is_draining() {
            // A request gets the error itself; here the next round tries again.
            let read = self.read_board(AGE_BEFORE).await;
            let rest = if read.is_ok() { self.0.board.rest() } else { REFRESHED_AT };
            tokio::time::sleep(rest).await;
        }
    }

    /// Returns the board when it is read, unless it is young enough; however long that takes. Those who wait for it at once get one of
    /// the same read.
    pub(super) async fn read_board(&self, age: Age) -> Result<Arc<Board>> {
        let (cache, asked) = (&self.0.board, Instant::now());
        let _reading = cache.reading.lock().await;
        if let Some(board) = cache.younger_than(age) {
            return Ok(board);
        }
        if let Some(read) = cache.read_since(asked) {
            return read;
        }
        let began = Instant::now();
        let read = self.make_board().await.map(Arc::new);
        let mut last = lock(&cache.last);
        match &read {
            Ok(board) => (last.board, last.failed) = (Some((began, began.elapsed(), board.clone())), None),
            Err(_) => last.failed = Some(began),
        }
        drop(last);
        read
    }

    async fn make_board(&self) -> Result<Board> {
        // Before anything is read: what it shows is no older than it says.
        let at = self.now()?;
        let summary = self.0.store.summary(LISTED_MAX).await?;
        let left_out = summary.count.saturating_sub(summary.queues.len() as u64);
        let mut counts: BTreeMap<QueueName, (QueueCounts, bool)> = BTreeMap::new();
        if left_out > 0 {
            let some = |(queue, counts): (QueueName, Counts)| {
                (queue, (QueueCounts { counts, ..QueueCounts::default() }, false))
            };
            counts.extend(self.0.store.depths().await?.into_iter().map(some));
        }
        counts.extend(summary.queues.into_iter().map(|(queue, counts)| (queue, (counts, true))));
        for queue in self.snapshot().queues.keys() {
            counts.entry(queue.clone()).or_insert_with(|| (QueueCounts::default(), true));
        }
        let held = self.all_held(counts.iter().map(|(queue, (counts, _))| (queue, &counts.counts))).await;
        self.drawn(at, counts, &held, left_out)
    }

    /// Puts together what was read and what is known here.
    fn drawn(
        &self,
        at: Timestamp,
        counts: BTreeMap<QueueName, (QueueCounts, bool)>,
        held: &HashMap<QueueName, Arc<Held>>,
        left_out: u64,
    ) -> Result<Board> {
        let (now, rules, flows) = (self.now()?, self.rules(), self.flows());
        self.note_history(now);
        self.fill_history(now);
        let recent = self.0.history.recent(counts.keys(), self.options().attention.window, now);
        let (waiting, idle) = (self.0.waiters.counts(), idle_flow(&flows));
        let moment = self.moment(now);
        let queue = |((name, (counts, is_listed)), recent): ((QueueName, (QueueCounts, bool)), Recent)| {
            let mut queue = BoardQueue {
                is_listed,
                paused: rules.paused(&name),
                flow: flows.queues.get(&name).unwrap_or(&idle).clone(),
                waiting_here: waiting.of(&name),
                waiting_elsewhere: self.0.waiters.peers.wait_for(&name),
                surely_elsewhere: self.0.waiters.peers.surely_wait_for(&name),
                attention: Vec::new(),
                is_unjudged: false,
                counts,
                name,
            };
            let held = held.get(&queue.name);
            moment.judge(&mut queue, &recent, held.map(Arc::as_ref));
            queue
        };
        let queues = counts.into_iter().zip(recent).map(queue).collect();
        Ok(Board { id: rand::random(), at, queues, left_out })
    }

    fn moment(&self, now: Timestamp) -> Moment {
        let hears = self.0.waiters.peers.are_possible();
        let observed_ms = self.0.history.observed_ms(self.meter().turn(now), hears, now);
        Moment { now, observed_ms, rules: self.rules(), thresholds: self.options().attention }
    }

    /// Returns why a queue with these counts needs attention, and whether that may not be all.
    pub(super) async fn attention(
        &self,
        name: &QueueName,
        counts: &QueueCounts,
        flow: &Flow,
    ) -> Result<(Vec<Attention>, bool)> {
        let held = self.held(name, &counts.counts).await;
        let now = self.now()?;
        self.note_history(now);
        self.fill_history(now);
        let recent = self.0.history.recent([name].into_iter(), self.options().attention.window, now);
        let waiters = &self.0.waiters;
        let mut queue = BoardQueue {
            name: name.clone(),
            counts: counts.clone(),
            is_listed: true,
            paused: self.rules().paused(name),
            flow: flow.clone(),
            waiting_here: waiters.count(Some(name)),
            waiting_elsewhere: waiters.peers.wait_for(name),
            surely_elsewhere: waiters.peers.surely_wait_for(name),
            attention: Vec::new(),
            is_unjudged: false,
        };
        let recent = recent.into_iter().next().unwrap_or_default();
        self.moment(now).judge(&mut queue, &recent, held.as_deref());
        Ok((queue.attention, queue.is_unjudged))
    }
}

/// What holds for all queues while they are judged.
struct Moment {
    now: Timestamp,
    /// For how long this server has been there.
    observed_ms: u64,
    rules: Rules,
    thresholds: Thresholds,
}

impl Moment {
    /// Says why a queue needs attention.
    fn judge(&self, queue: &mut BoardQueue, recent: &Recent, held: Option<&Held>) {
        let known_from = self.now.minus_ms(self.observed_ms);
        queue.counts.oldest_is_approximate &= !still_stands(&queue.counts, recent, known_from);
        let is_timed = queue.is_listed && !queue.counts.oldest_is_approximate;
        let counts = &queue.counts.counts;
        // Whether jobs stand still is known once that was watched for long enough.
        let idle = u64::try_from(self.thresholds.idle.as_millis()).unwrap_or(u64::MAX);
        let is_unseen = self.observed_ms < idle
            && recent.delivered_at.is_none_or(|at| self.now.ms_since(at) >= idle)
            && queue.counts.oldest_ready.is_none_or(|at| self.now.ms_since(at) >= idle);
        queue.is_unjudged = (may_be_held(counts) && held.is_none())
            || (counts.ready > 0 && !queue.paused && (recent.is_unknown || !is_timed || is_unseen));
        queue.attention = self.judged(queue, recent, held);
    }

    fn judged(&self, queue: &BoardQueue, recent: &Recent, held: Option<&Held>) -> Vec<Attention> {
        let left = [Event::Committed, Event::Moved, Event::Expired, Event::Dead, Event::Cancelled];
        let left: f64 = left.iter().map(|event| queue.flow.rate(*event)).sum();
        let seen = Seen {
            queue: &queue.name,
            now: self.now,
            counts: queue.counts.counts,
            oldest_ready: queue.counts.oldest_ready.filter(|_| !queue.counts.oldest_is_approximate),
            paused: queue.paused,
            max_reserved: self.rules.max_reserved(&queue.name),
            is_waited_for: queue.waiting_here > 0 || queue.surely_elsewhere,
            observed_ms: if recent.is_unknown { 0 } else { self.observed_ms },
            delivered_at: recent.delivered_at,
            recent: recent.sum,
            growth_per_s: queue.flow.rate(Event::Pushed) - left,
            held,
        };
        judge(&seen, &self.thresholds)
    }
}

/// Whether the oldest job that was looked up a while ago is the oldest still: what happened since then is known, and no job was delivered,
/// finished or gone.
fn still_stands(counts: &QueueCounts, recent: &Recent, known_from: Timestamp) -> bool {
    let Some(seen) = counts.oldest_seen.filter(|seen| *seen >= known_from) else { return false };
    let is_before = |at: Option<Timestamp>| at.is_none_or(|at| at <= seen);
    !recent.is_unknown && is_before(recent.delivered_at) && is_before(recent.left_at)
}

/// What happened in a queue of which nothing is known to have happened.
fn idle_flow(flows: &Flows) -> Flow {
    Flow {
        over_ms: flows.total.over_ms,
        is_partial: flows.others.rates.iter().any(|rate| *rate > 0.0),
        ..Flow::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_read_does_not_make_the_board_old_for_long() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!([ms(1), ms(500), s(2), s(60)].map(|took| AGE.of(took)), [AGE_MAX, s(3), s(12), s(70)]);
        assert_eq!([s(1), s(60)].map(|took| AGE_RARELY.of(took)), [s(20), s(90)]);
        assert_eq!([ms(1), ms(500), s(60)].map(|took| AGE_BEFORE.of(took)), [REFRESHED_AT, s(2), s(66)]);
    }

    #[test]
    fn an_old_answer_stands_as_long_as_nothing_has_left() {
        let at = Timestamp::from_millis;
        let counts = QueueCounts {
            oldest_ready: Some(at(10)),
            oldest_is_approximate: true,
            oldest_seen: Some(at(1000)),
            ..QueueCounts::default()
        };
        let stands = |delivered: Option<i64>, left: Option<i64>| Recent {
            delivered_at: delivered.map(at),
            left_at: left.map(at),
            ..Recent::default()
        };
        for (recent, known_from, is_so) in [
            (stands(None, None), 0, true),
            (stands(Some(1000), Some(900)), 1000, true),
            (stands(Some(1001), None), 0, false),
            (stands(None, Some(1001)), 0, false),
            (stands(None, None), 1001, false),
            (Recent { is_unknown: true, ..stands(None, None) }, 0, false),
        ] {
            assert_eq!(still_stands(&counts, &recent, at(known_from)), is_so, "{recent:?} {known_from}");
        }
        let fresh = QueueCounts { oldest_seen: None, ..counts };
        assert!(!still_stands(&fresh, &stands(None, None), at(0)));
    }

    #[test]
    fn who_waits_for_a_read_gets_what_came_of_it() {
        let (cache, began) = (BoardCache::default(), Instant::now());
        assert!(cache.read_since(began).is_none());
        lock(&cache.last).failed = Some(began);
        assert!(cache.read_since(began).is_some_and(|read| read.is_err()));
        let later = began + Duration::from_millis(1);
        assert!(cache.read_since(later).is_none(), "it asked after that read began");
        lock(&cache.last).board = Some((later, Duration::from_secs(9), Arc::default()));
        assert!(cache.read_since(later).is_some_and(|read| read.is_ok()));
    }
}
