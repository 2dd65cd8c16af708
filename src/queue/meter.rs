//! What happens on this server: counts and times, of every queue and of all together, in steps of ten seconds. Finished
//! steps are immutable and shared without the lock: the last minute is what the rates are of, and
//! each step is written to the store once. The totals since the start are beside it, in `totals`.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::totals::{Counting, Totals};
pub use crate::job::Event;
use crate::job::{QueueName, Tally, Timestamp};
use crate::store::{Span, Subject};

/// For how long steps are kept for the rates: the last minute, and what of one more is still in it.
const KEPT_MS: i64 = 7 * Span::Step.ms();
/// So many milliseconds a step may be ahead of the store's clock, which is an estimate. What is further ahead is of a time before that
/// clock was set back.
pub(super) const AHEAD_MS: i64 = 2 * Span::Step.ms();
/// How often at most what happens is made a piece that can be handed out.
const SEALED_EVERY: Duration = Duration::from_secs(1);

/// What happened in a step, or in a part of it.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// When the step began.
    pub at: Timestamp,
    /// In all queues together.
    pub total: Tally,
    /// In each queue where something did.
    pub queues: HashMap<QueueName, Tally>,
    /// In queues beyond those that are counted one by one, together.
    pub others: Tally,
}

impl Step {
    fn each(&mut self, queue: &QueueName, most: usize, change: impl Fn(&mut Tally)) {
        change(&mut self.total);
        if let Some(tally) = self.queues.get_mut(queue) {
            change(tally);
        } else if self.queues.len() < most {
            change(self.queues.entry(queue.clone()).or_default());
        } else {
            change(&mut self.others);
        }
    }

    /// Returns what happened in a queue, or in all.
    pub fn of(&self, queue: Option<&QueueName>) -> Option<&Tally> {
        queue.map_or(Some(&self.total), |queue| self.queues.get(queue))
    }

    /// Returns what happened in what a record is about, if anything did.
    pub fn of_subject(&self, subject: &Subject) -> Option<&Tally> {
        match subject {
            Subject::All => Some(&self.total),
            Subject::Others => Some(&self.others).filter(|others| !others.is_none()),
            Subject::Queue(queue) => self.queues.get(queue),
        }
    }

    /// Adds what happened in another part of it.
    pub fn add(&mut self, other: &Self) {
        self.total.add(&other.total);
        self.others.add(&other.others);
        for (queue, tally) in &other.queues {
            match self.queues.get_mut(queue) {
                Some(own) => own.add(tally),
                None => drop(self.queues.insert(queue.clone(), tally.clone())),
            }
        }
    }
}

#[derive(Default)]
struct State {
    /// The most queues that are counted one by one within a second: a bound on memory, about 200 bytes each, for a minute.
    most: usize,
    /// When this server began to count, by the store's clock; known once that is.
    began: Option<Timestamp>,
    now: Step,
    /// When the step under way is over, by this machine's clock: it ends in time also without requests.
    ends: Option<Instant>,
    sealed: Option<Instant>,
    /// The last steps, in parts.
    ended: VecDeque<Arc<Step>>,
    /// Those that are not handed over to be written yet.
    unwritten: VecDeque<Arc<Step>>,
    /// Those that the history does not have yet.
    unseen: Vec<Arc<Step>>,
}

impl State {
    /// Begins another step if the time of this one is over.
    fn turn(&mut self, now: Timestamp) {
        let at = Span::Step.start(now);
        if self.began.is_none() {
            (self.began, self.now.at) = (Some(now), at);
        }
        let ahead_ms = self.now.at.millis() - at.millis();
        if !(0..=AHEAD_MS).contains(&ahead_ms) {
            self.seal();
            self.now.at = at;
            self.began = self.began.map(|began| began.min(now));
            self.ended.retain(|step| step.at <= at && step.at.millis() > at.millis() - KEPT_MS);
        }
        let end = self.now.at.plus_ms(Span::Step.ms().unsigned_abs());
        self.ends = Some(Instant::now() + Duration::from_millis(end.ms_since(now)));
    }

    /// Makes what happened until now a part, unless that was done less than a second ago.
    fn seal_again(&mut self, now: Timestamp) {
        self.turn(now);
        if self.sealed.is_none_or(|at| at.elapsed() >= SEALED_EVERY) {
            self.seal();
            self.sealed = Some(Instant::now());
        }
    }

    fn seal(&mut self) {
        let at = self.now.at;
        if !self.now.total.is_none() {
            let sealed = Arc::new(std::mem::replace(&mut self.now, Step { at, ..Step::default() }));
            self.unwritten.push_back(sealed.clone());
            self.unseen.push(sealed.clone());
            self.ended.push_back(sealed);
        }
    }
}

/// See the module's documentation.
pub struct Meter(Mutex<State>, Totals);

/// What is being noted of many jobs at once: held briefly, never while waiting for anything.
pub struct Notes<'a> {
    meter: MutexGuard<'a, State>,
    totals: Counting<'a>,
}

impl Notes<'_> {
    /// Something happened to a job of this queue.
    pub fn count(&mut self, queue: &QueueName, event: Event) {
        self.totals.count(queue, event);
        self.each(queue, |tally| tally.count(event));
    }

    /// A job of this queue was delivered so many milliseconds after it was due.
    pub fn queue_time(&mut self, queue: &QueueName, ms: u64) {
        self.totals.queue_time(queue, ms);
        self.each(queue, |tally| tally.queue_time.record(ms));
    }

    /// A job of this queue was done so many milliseconds after it was delivered.
    pub fn run_time(&mut self, queue: &QueueName, ms: u64) {
        self.totals.run_time(queue, ms);
        self.each(queue, |tally| tally.run_time.record(ms));
    }

    fn each(&mut self, queue: &QueueName, change: impl Fn(&mut Tally)) {
        let most = self.meter.most;
        self.meter.now.each(queue, most, change);
    }
}

impl Meter {
    /// Nothing has happened; so many queues have totals of their own, and so many are counted one by one within a second. What
    /// happens in further ones is in the total, and in `others`.
    pub fn new(own_totals: usize, most: usize) -> Self {
        Self(Mutex::new(State { most, ..State::default() }), Totals::new(own_totals))
    }

    /// Returns what happened since the start.
    pub fn totals(&self) -> &Totals {
        &self.1
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Begins to note what happened.
    pub fn notes(&self) -> Notes<'_> {
        let mut meter = self.state();
        if let Some(late) = meter.ends.and_then(|ends| Instant::now().checked_duration_since(ends)) {
            let late_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
            let now = meter.now.at.plus_ms(late_ms.saturating_add(Span::Step.ms().unsigned_abs()));
            meter.turn(now);
        }
        Notes { meter, totals: self.1.begin(Instant::now()) }
    }

    /// Begins another step if the time of this one is over. Returns when this server began to count.
    pub fn turn(&self, now: Timestamp) -> Timestamp {
        let mut state = self.state();
        state.turn(now);
        state.began.unwrap_or(now)
    }

    /// Returns the parts of the last minute's steps, which it makes anew once a second at most.
    pub fn lately(&self, now: Timestamp) -> Vec<Arc<Step>> {
        let mut state = self.state();
        state.seal_again(now);
        state.ended.iter().cloned().collect()
    }

    /// Takes those parts that were not taken so before; the last one is made at most once a second.
    pub fn take_unseen(&self, now: Timestamp) -> Vec<Arc<Step>> {
        let mut state = self.state();
        state.seal_again(now);
        std::mem::take(&mut state.unseen)
    }

    /// Returns what happened lately in one queue, or in all, with when its step began.
    pub fn lately_in(&self, queue: Option<&QueueName>, now: Timestamp) -> Vec<(Timestamp, Tally)> {
        let mut state = self.state();
        state.turn(now);
        let parts = state.ended.iter().map(Arc::as_ref).chain([&state.now]);
        parts.filter_map(|step| Some((step.at, step.of(queue)?.clone()))).collect()
    }

    /// Whether more queues moved lately than are counted one by one.
    pub fn has_others(&self) -> bool {
        let state = self.state();
        !state.now.others.is_none() || state.ended.iter().any(|step| !step.others.is_none())
    }

    /// Whether anything happened that is not handed over yet.
    pub fn has_unwritten(&self) -> bool {
        let state = self.state();
        !state.now.total.is_none() || !state.unwritten.is_empty()
    }

    /// Takes what is not handed over yet of steps that have ended; of the one under way as well where the server stops.
    pub fn take_unwritten(&self, is_last: bool) -> Vec<Arc<Step>> {
        let mut state = self.state();
        if is_last {
            state.seal();
        }
        let under_way = state.now.at;
        let ended = state.unwritten.iter().take_while(|step| is_last || step.at != under_way).count();
        state.unwritten.drain(..ended).collect()
    }

    /// Returns what is not handed over yet of a queue, or of all or the others, with when its step began.
    pub fn unwritten_in(&self, subject: &Subject) -> Vec<(Timestamp, Tally)> {
        let state = self.state();
        let parts = state.unwritten.iter().map(Arc::as_ref).chain([&state.now]);
        parts.filter_map(|step| Some((step.at, step.of_subject(subject)?.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000_000 + seconds * 1000)
    }

    fn queue(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    fn pushed(steps: &[(Timestamp, Tally)]) -> Vec<(i64, u32)> {
        let seconds = |step: Timestamp| (step.millis() - at(0).millis()) / 1000;
        steps.iter().map(|(step, tally)| (seconds(*step), tally.of(Event::Pushed))).collect()
    }

    #[test]
    fn what_happens_is_in_the_step_of_its_time() {
        let meter = Meter::new(10, 10);
        assert_eq!(meter.turn(at(0)), at(0));
        let push = |name: &str, times: u32| {
            (0..times).for_each(|_| meter.notes().count(&queue(name), Event::Pushed));
        };
        push("a", 2);
        push("b", 1);
        assert_eq!(meter.lately(at(0)).len(), 1);
        push("a", 3);
        assert_eq!(meter.lately(at(0)).len(), 1, "it was made anew just now");
        let a = queue("a");
        assert_eq!(pushed(&meter.lately_in(Some(&a), at(0))), [(0, 2), (0, 3)]);
        assert!(meter.take_unwritten(false).is_empty(), "the step goes on");
        assert_eq!(pushed(&meter.unwritten_in(&Subject::Queue(a.clone()))), [(0, 2), (0, 3)]);
        push("a", 1);
        assert_eq!(pushed(&meter.lately_in(None, at(10))), [(0, 3), (0, 4), (10, 0)]);
        let mut step = Step::default();
        meter.take_unwritten(false).iter().for_each(|part| step.add(part));
        assert_eq!(step.of(Some(&a)).unwrap().of(Event::Pushed), 6);
        assert_eq!(step.of(None).unwrap().of(Event::Pushed), 7);
        push("b", 1);
        assert!(meter.take_unwritten(false).is_empty());
        assert_eq!(meter.take_unwritten(true).len(), 1);
        assert!(pushed(&meter.lately_in(Some(&a), at(80))).is_empty(), "it was more than a minute ago");
    }

    #[test]
    fn a_clock_that_is_set_back_begins_a_step_of_its_time() {
        let meter = Meter::new(10, 10);
        let a = queue("a");
        let push = || meter.notes().count(&a, Event::Pushed);
        assert_eq!(meter.turn(at(3600)), at(3600));
        push();
        assert_eq!(meter.turn(at(3585)), at(3600), "estimates differ");
        push();
        assert_eq!(pushed(&meter.lately_in(None, at(3585))), [(3600, 2)]);
        assert_eq!(meter.turn(at(5)), at(5), "it was there from now on at the latest");
        assert_eq!(pushed(&meter.lately_in(None, at(5))), [(0, 0)]);
        assert_eq!(meter.take_unwritten(false).len(), 1, "what happened before is written as it was");
        push();
        assert_eq!(pushed(&meter.lately_in(Some(&a), at(15))), [(0, 1)]);
        push();
        assert_eq!(pushed(&meter.lately_in(Some(&a), at(15))), [(0, 1), (10, 1)]);
        assert_eq!(meter.take_unwritten(false).len(), 1);
        assert!(pushed(&meter.lately_in(Some(&a), at(90))).is_empty());
        assert_eq!(meter.take_unwritten(false).len(), 1);
    }

    #[test]
    fn no_more_queues_than_the_bound_are_counted_one_by_one() {
        let mut step = Step::default();
        for n in 0..100 + 5 {
            step.each(&queue(&format!("q{n}")), 100, |tally| tally.count(Event::Pushed));
        }
        step.each(&queue("q0"), 100, |tally| tally.count(Event::Pushed));
        let of = |tally: &Tally| tally.of(Event::Pushed) as usize;
        assert_eq!((step.queues.len(), of(&step.others), of(&step.total)), (100, 5, 106));
    }
}
