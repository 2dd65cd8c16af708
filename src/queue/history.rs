//! What happened in each queue within the last quarter of an hour, on all servers, in memory: short enough to be there for every queue
//! of a list at once, where `/v1/series` reads one queue from the store. This server's part comes from its meter, what other servers did
//! from what they announce of each step, and what was before this server, or announced while it could not listen, from their records.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Queues;
use super::attention::remembered;
use super::meter::{Event, Step};
use crate::job::{QueueName, Tally, Timestamp};
use crate::store::series::TOLD_MS;
use crate::store::{RecentTally, Span, chain};

/// How long a step is, in milliseconds.
pub const STEP_MS: i64 = 30_000;
/// The most queues of which they are kept.
pub const QUEUES_MAX: usize = 20_000;
/// How many steps are kept, the one under way included.
pub const STEPS: usize = 30;
/// How long that is.
pub const KEPT: Duration = Duration::from_secs(900);
/// After so long it is tried again to read what was before; after twice as long each time that fails, up to [`KEPT`].
const FILLED_AGAIN: Duration = Duration::from_secs(60);
/// How far back the records of other servers are read, in milliseconds: what was late, and at the start all that the rates are about.
const LATE_MS: u64 = 40_000;
const FIRST_MS: u64 = 80_000;
/// A record within this many milliseconds of its expiry may vanish before it is read.
const EXPIRING_MS: u64 = 60_000;

/// What happened in a queue in a step, or in several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Jobs that were stored.
    pub pushed: u32,
    /// Jobs that were committed or moved on.
    pub finished: u32,
    /// Attempts that failed: rolled back, or taken back.
    pub failed: u32,
    /// Jobs that left in another way: they expired, died, or were cancelled.
    pub gone: u32,
}

impl Sum {
    fn of(tally: &Tally) -> Self {
        let of =
            |events: &[Event]| events.iter().fold(0_u32, |sum, event| sum.saturating_add(tally.of(*event)));
        Self {
            pushed: of(&[Event::Pushed]),
            finished: of(&[Event::Committed, Event::Moved]),
            failed: of(&[Event::RolledBack, Event::Lapsed]),
            gone: of(&[Event::Expired, Event::Dead, Event::Cancelled]),
        }
    }

    fn add(&mut self, other: Self) {
        self.pushed = self.pushed.saturating_add(other.pushed);
        self.finished = self.finished.saturating_add(other.finished);
        self.failed = self.failed.saturating_add(other.failed);
        self.gone = self.gone.saturating_add(other.gone);
    }
}

/// The steps of one queue, each where its number falls.
#[derive(Clone)]
struct Ring {
    /// The number of the latest step.
    last: i64,
    steps: [Sum; STEPS],
    delivered_at: Option<Timestamp>,
    left_at: Option<Timestamp>,
}

impl Ring {
    fn new(number: i64) -> Self {
        Self { last: number, steps: [Sum::default(); STEPS], delivered_at: None, left_at: None }
    }

    fn index(number: i64) -> usize {
        usize::try_from(number.rem_euclid(STEPS as i64)).unwrap_or(0)
    }

    fn add(&mut self, number: i64, sum: Sum) {
        if number > self.last {
            let behind = (self.last + 1).max(number - STEPS as i64 + 1);
            for passed in behind..=number {
                if let Some(step) = self.steps.get_mut(Self::index(passed)) {
                    *step = Sum::default();
                }
            }
            self.last = number;
        }
        if number > self.last - STEPS as i64
            && let Some(step) = self.steps.get_mut(Self::index(number))
        {
            step.add(sum);
        }
    }

    fn at(&self, number: i64) -> Sum {
        let is_kept = number <= self.last && number > self.last - STEPS as i64;
        is_kept.then(|| self.steps.get(Self::index(number)).copied()).flatten().unwrap_or_default()
    }
}

fn number(at: Timestamp) -> i64 {
    at.millis().div_euclid(STEP_MS)
}

/// Returns how long it takes until what was before is read again, after so many attempts.
fn filled_again(times: u32) -> Duration {
    FILLED_AGAIN.saturating_mul(1_u32.checked_shl(times.saturating_sub(1)).unwrap_or(u32::MAX)).min(KEPT)
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct History(Mutex<State>);

#[derive(Default)]
struct State {
    /// What happened on this server.
    own: Side,
    /// What happened on others: read anew as a whole where a part of it was missed.
    told: Side,
    /// From then on other servers announce what they did; what was before is read.
    told_from: Option<Timestamp>,
    /// Until when all that other servers announced was read; what they announced later may not be known.
    heard_until: Option<Timestamp>,
    /// Since when nothing of what others did was missed, where something was.
    unbroken_since: Option<Timestamp>,
    /// Since when everything is known.
    known_since: Option<Timestamp>,
    fill: Fill,
    /// Incremented when the history is reloaded; an older read is discarded.
    reading: u32,
    swept: i64,
    /// For how long it is remembered when a job was delivered, in milliseconds: as long as the steps at least.
    remembered_ms: u64,
    /// When something happened last in queues that are not named, since too many moved.
    unnamed: Option<Timestamp>,
}

/// What happened on this server, or on the others.
#[derive(Default)]
struct Side {
    queues: HashMap<QueueName, Ring>,
    /// When something happened last that was not noted, since there were too many queues.
    refused: Option<Timestamp>,
}

#[derive(Default)]
enum Fill {
    #[default]
    Wanted,
    /// When it was begun last, and how often it was.
    Begun(Instant, u32),
    Done,
}

impl Side {
    fn note(&mut self, queue: &QueueName, tally: &Tally, (begin, end): (Timestamp, Timestamp)) {
        let number = number(begin);
        if !self.queues.contains_key(queue) && self.queues.len() >= QUEUES_MAX {
            self.refused = self.refused.max(Some(end));
            return;
        }
        let ring = self.queues.entry(queue.clone()).or_insert_with(|| Ring::new(number));
        let sum = Sum::of(tally);
        ring.add(number, sum);
        if sum.finished > 0 || sum.gone > 0 {
            ring.left_at = ring.left_at.max(Some(end));
        }
        if tally.of(Event::Reserved) > 0 {
            ring.delivered_at = ring.delivered_at.max(Some(end));
        }
    }

    /// Forgets queues in which nothing has happened since this step, and no job was delivered since then.
    fn sweep(&mut self, step: i64, first: Timestamp) {
        let is_told = |ring: &Ring| ring.delivered_at.is_some_and(|delivered| delivered >= first);
        self.queues.retain(|_, ring| ring.last > step || is_told(ring));
        self.refused = self.refused.filter(|refused| *refused >= first);
    }
}

impl State {
    fn sides(&self) -> [&Side; 2] {
        [&self.own, &self.told]
    }

    /// Forgets queues in which nothing has happened for as long as is kept.
    fn sweep(&mut self, now: Timestamp) {
        let (at, first) = (now, self.remembered_from(now));
        let now = number(at);
        if now != self.swept {
            self.swept = now;
            self.own.sweep(now - STEPS as i64, first);
            self.told.sweep(now - STEPS as i64, first);
            self.unnamed = self.unnamed.filter(|unnamed| *unnamed >= first);
        }
    }

    fn recent(&self, queue: &QueueName, steps: RangeInclusive<i64>, now: Timestamp) -> Recent {
        let (mut recent, mut missed) = (Recent::default(), self.unnamed);
        for side in self.sides() {
            match side.queues.get(queue) {
                Some(ring) => {
                    steps.clone().for_each(|number| recent.sum.add(ring.at(number)));
                    recent.delivered_at = recent.delivered_at.max(ring.delivered_at);
                    recent.left_at = recent.left_at.max(ring.left_at);
                }
                None => missed = missed.max(side.refused),
            }
        }
        // What was missed may have been a delivery of this queue, unless one is known that was later.
        let missed = missed.filter(|missed| *missed >= self.remembered_from(now));
        recent.is_unknown = missed.is_some_and(|missed| recent.delivered_at.is_none_or(|at| missed > at));
        recent
    }

    /// Returns since when it is remembered when a job was delivered.
    fn remembered_from(&self, now: Timestamp) -> Timestamp {
        now.minus_ms(self.remembered_ms.max(u64::try_from(KEPT.as_millis()).unwrap_or(0)))
    }
}

/// What happened in a queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Recent {
    /// Within the time that was asked for.
    pub sum: Sum,
    /// When a job was delivered last, where that is not too long ago.
    pub delivered_at: Option<Timestamp>,
    /// When a job left it last, finished or in another way, likewise.
    pub left_at: Option<Timestamp>,
    /// Whether something may have happened that was not noted, since there were too many queues.
    pub is_unknown: bool,
}

/// The steps of a queue, the oldest first.
pub type Steps = Vec<Sum>;

impl History {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes parts of steps of this server.
    pub fn note_own(&self, parts: &[std::sync::Arc<Step>], began: Timestamp, now: Timestamp) {
        let mut state = self.state();
        state.known_since.get_or_insert(began);
        for part in parts {
            let end = part.at.plus_ms(Span::Step.ms().unsigned_abs()).min(now);
            part.queues.iter().for_each(|(queue, tally)| state.own.note(queue, tally, (part.at, end)));
            if part.others != Tally::default() {
                state.unnamed = state.unnamed.max(Some(end));
            }
        }
        state.sweep(now);
    }

    /// Returns where to resume reading the records of other servers, and whether some were lost.
    pub fn heard(&self, now: Timestamp) -> (Timestamp, bool) {
        let from = match self.state().heard_until {
            Some(heard) => heard.min(now).minus_ms(LATE_MS),
            None => return (now.minus_ms(FIRST_MS), false),
        };
        let kept = now.minus_ms(TOLD_MS);
        if from >= kept { (from, false) } else { (kept.plus_ms(EXPIRING_MS), true) }
    }

    /// What other servers announced from this moment on was read, all of it until `now`. `is_broken`: some before was missed, so that
    /// all of it is read anew from what is written.
    pub fn note_heard(&self, from: Timestamp, now: Timestamp, is_broken: bool) {
        // It counts from the next whole minute on: what was before is read in whole minutes.
        let minute = Span::Minute.start(from.plus_ms(Span::Minute.ms().unsigned_abs() - 1));
        let mut state = self.state();
        state.heard_until = Some(now);
        if is_broken {
            (state.told, state.fill) = (Side::default(), Fill::Wanted);
            state.reading = state.reading.wrapping_add(1);
            (state.told_from, state.unbroken_since, state.known_since) =
                (Some(minute), Some(minute), Some(minute));
        }
        state.told_from.get_or_insert(minute);
    }

    /// Returns for how long this server knows what happened, which began to count at this moment; in milliseconds. `hears`: other servers
    /// announce what they do.
    pub fn observed_ms(&self, began: Timestamp, hears: bool, now: Timestamp) -> u64 {
        let state = self.state();
        let is_deaf = state.heard_until.is_none_or(|heard| now.ms_since(heard) > LATE_MS);
        if hears && is_deaf {
            return 0;
        }
        now.ms_since(state.unbroken_since.map_or(began, |since| since.max(began)))
    }

    /// Something happened by then in queues that are not named, since they are too many.
    pub fn note_unnamed(&self, at: Timestamp) {
        let mut state = self.state();
        state.unnamed = state.unnamed.max(Some(at));
    }

    /// From now on it is remembered for so long when a job was delivered.
    pub fn remember_for(&self, time: Duration) {
        self.state().remembered_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    }

    /// Takes what another server announced of a queue in a step.
    pub fn note_told<'a>(&self, at: Timestamp, tallies: impl Iterator<Item = (&'a QueueName, &'a Tally)>) {
        let mut state = self.state();
        if state.told_from.is_some_and(|from| at >= from) {
            let end = at.plus_ms(Span::Step.ms().unsigned_abs());
            tallies.for_each(|(queue, tally)| state.told.note(queue, tally, (at, end)));
        }
    }

    /// Returns until when what was before is to be read, if it is, and which reading that is. `hears`: other servers announce what they do.
    fn unfilled(&self, hears: bool, now: Timestamp) -> Option<(Timestamp, u32)> {
        let mut state = self.state();
        let (is_due, times) = match state.fill {
            Fill::Wanted => (true, 0),
            Fill::Begun(at, times) => (at.elapsed() >= filled_again(times), times),
            Fill::Done => (false, 0),
        };
        let until = if hears { state.told_from? } else { now };
        // What ended a moment ago is written by now.
        let is_written = !hears || now.ms_since(until) >= 2 * Span::Step.ms().unsigned_abs();
        if !is_due || !is_written {
            return None;
        }
        state.fill = Fill::Begun(Instant::now(), times.saturating_add(1)); // until it is done
        Some((until, state.reading))
    }

    /// Takes what was written of the time from then on by others.
    fn fill(&self, from: Timestamp, reading: u32, recent: Vec<RecentTally>) {
        let mut state = self.state();
        if state.reading != reading {
            return; // more was missed since
        }
        for RecentTally { queue, span, at, tally } in recent {
            let end = at.plus_ms(span.ms().unsigned_abs());
            state.told.note(&queue, &tally, (at, end));
        }
        state.known_since = Some(state.known_since.map_or(from, |since| since.min(from)));
        state.unbroken_since = state.unbroken_since.map(|since| since.min(from));
        state.fill = Fill::Done;
    }

    /// Returns what happened in each of these queues within the steps that this time touches.
    pub fn recent<'q>(
        &self,
        queues: impl Iterator<Item = &'q QueueName>,
        window: Duration,
        now: Timestamp,
    ) -> Vec<Recent> {
        let window = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let (first, last) = (number(now.minus_ms(window)), number(now));
        let first = first.max(last - STEPS as i64 + 1);
        let state = self.state();
        queues.map(|queue| state.recent(queue, first..=last, now)).collect()
    }

    /// Returns when the first step begins of which everything is known, and the steps from then on of each of these queues; `None` where
    /// nothing happened in any.
    pub fn steps(&self, queues: &[&QueueName], now: Timestamp) -> (Timestamp, Vec<Option<Steps>>) {
        let state = self.state();
        let last = number(now);
        let known = state.known_since.map_or(last, number);
        let first = known.clamp(last - STEPS as i64 + 1, last);
        let of_queue = |queue: &&QueueName| {
            let rings = state.sides().map(|side| side.queues.get(*queue));
            let of_step = |number| {
                let mut sum = Sum::default();
                rings.into_iter().flatten().for_each(|ring| sum.add(ring.at(number)));
                sum
            };
            let steps: Steps = (first..=last).map(of_step).collect();
            steps.iter().any(|step| *step != Sum::default()).then_some(steps)
        };
        (Timestamp::from_millis(first * STEP_MS), queues.iter().map(of_queue).collect())
    }
}

impl Queues {
    /// Takes what has happened on this server since the last time.
    pub(super) fn note_history(&self, now: Timestamp) {
        let began = self.meter().turn(now);
        let parts = self.meter().take_unseen(now);
        self.0.history.remember_for(remembered(self.options().attention.idle));
        self.0.history.note_own(&parts, began, now);
    }

    /// Begins to read what was before this server, if that is not known yet.
    pub(super) fn fill_history(&self, now: Timestamp) {
        let hears = self.0.waiters.peers.are_possible();
        let Some((until, reading)) = self.0.history.unfilled(hears, now) else { return };
        let (this, from) = (self.clone(), now.minus_ms(u64::try_from(KEPT.as_millis()).unwrap_or(0)));
        // A step of ours has only whole minutes in it.
        let from = Timestamp::from_millis((number(from) + 1) * STEP_MS);
        tokio::spawn(async move {
            let server = &this.0.ledger.server;
            match this.0.store.recent_tallies(server, Span::Minute.start(from), until).await {
                Ok(recent) => this.0.history.fill(from, reading, recent),
                Err(error) => {
                    tracing::debug!(error = chain(&error), "cannot load the history; retrying");
                }
            }
        });
    }
}

#[cfg(test)]
mod tests;
