//! What this server has to write of the past: the steps that have ended, and of each what is written at once and what waits for the end of
//! its minute. It is kept here until the store has it, so that it can be read all the time, and is counted once.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use super::meter::{Meter, Step};
use crate::job::{QueueName, Tally, Timestamp};
use crate::store::series::HOUR_MS;
use crate::store::{SeriesRow, SeriesRun, SeriesWrite, Span, Subject, ToldStep};

/// So many queues, those where most happened, are written with each step; the others with each minute.
pub(super) const BUSIEST: usize = 500;
/// What could not be written for so many milliseconds is given up: by then it could be a part of a longer span already.
const WRITTEN_WITHIN_MS: u64 = 1_800_000;
/// What other servers learn of a step is for their rates of the last minute.
const TOLD_WITHIN_MS: u64 = 60_000;

/// See the module's documentation.
pub(super) struct Ledger {
    /// The name of this server, for as long as it runs.
    pub server: Arc<str>,
    /// The most queues that have records in an hour.
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The minute under way, and what happened in it that is not written with its steps.
    minute: Timestamp,
    rest: HashMap<QueueName, Tally>,
    /// The hour under way, and the queues that have records in it: names that are never used twice would fill the store.
    hour: i64,
    named: HashSet<QueueName>,
    /// What the store does not have yet, for all that is known.
    waiting: VecDeque<Arc<SeriesWrite>>,
    /// When this server began to say how many jobs each queue has.
    turn: Option<Timestamp>,
}

/// What of a queue, or of all, is not in the store yet: how long it took, when that began, and what happened.
pub(super) type Unwritten = Vec<(Span, Timestamp, Tally)>;

impl State {
    /// Takes what happened in a step that has ended. `most` queues have records in an hour: what happens in the others is one record.
    fn enter(&mut self, step: Step, most: usize, rows: &mut Vec<SeriesRow>) {
        self.turn(Span::Minute.start(step.at), rows);
        let row = |subject, tally| SeriesRow {
            subject,
            span: Span::Step,
            at: step.at,
            tally: Some(tally),
            depth: None,
        };
        rows.push(row(Subject::All, step.total));
        let mut queues: Vec<(QueueName, Tally)> = step.queues.into_iter().collect();
        let hour = step.at.millis() / HOUR_MS;
        if self.hour != hour {
            (self.hour, self.named) = (hour, HashSet::new());
        }
        let mut others = step.others;
        queues.retain(|(queue, tally)| {
            let is_new = !self.named.contains(queue);
            if is_new && self.named.len() < most {
                self.named.insert(queue.clone());
                return true;
            }
            if is_new {
                others.add(tally);
            }
            !is_new
        });
        if !others.is_none() {
            rows.push(row(Subject::Others, others));
        }
        let rest = if queues.len() > BUSIEST {
            queues.select_nth_unstable_by_key(BUSIEST, |(_, tally)| std::cmp::Reverse(tally.events()));
            queues.split_off(BUSIEST)
        } else {
            Vec::new()
        };
        rows.extend(queues.into_iter().map(|(queue, tally)| row(Subject::Queue(queue), tally)));
        for (queue, tally) in rest {
            self.rest.entry(queue).or_default().add(&tally);
        }
    }

    /// Begins another minute, if this is one: what is left of the last one is written.
    fn turn(&mut self, minute: Timestamp, rows: &mut Vec<SeriesRow>) {
        // Never back, since what was written of a minute never changes; unless the store's clock was set back.
        if minute > self.minute || self.minute.millis() - minute.millis() > Span::Minute.ms() {
            self.close(rows);
            self.minute = minute;
        }
    }

    /// What others were to learn of steps that are over for long is of no use to them, and large.
    fn forget_told(&mut self, now: Timestamp) {
        for write in &mut self.waiting {
            if write.told.is_some() && now.ms_since(write.run.seen) > TOLD_WITHIN_MS {
                Arc::make_mut(write).told = None;
            }
        }
    }

    fn close(&mut self, rows: &mut Vec<SeriesRow>) {
        let at = self.minute;
        rows.extend(self.rest.drain().map(|(queue, tally)| SeriesRow {
            subject: Subject::Queue(queue),
            span: Span::Minute,
            at,
            tally: Some(tally),
            depth: None,
        }));
    }
}

impl Ledger {
    /// Nothing is to be written; so many queues have records in an hour.
    pub fn new(most: usize) -> Self {
        Self { server: format!("{:016x}", rand::random::<u64>()).into(), most, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes over the steps that have ended, and how many jobs there are. `tells`: other servers want to know of them; `is_last`: the
    /// server stops, and the step under way is over as well.
    pub fn take_over(
        &self,
        meter: &Meter,
        now: Timestamp,
        depths: Vec<SeriesRow>,
        tells: bool,
        is_last: bool,
    ) {
        let since = meter.turn(now);
        // Locked in this order by those who read, too: nothing is between the two.
        let mut state = self.state();
        state.forget_told(now);
        let mut steps: BTreeMap<Timestamp, Step> = BTreeMap::new();
        for part in meter.take_unwritten(is_last) {
            steps.entry(part.at).or_insert_with(|| Step { at: part.at, ..Step::default() }).add(&part);
        }
        let run = SeriesRun { server: self.server.clone(), since, seen: now, turn: state.turn };
        let mut first = depths;
        for step in steps.into_values() {
            let told = tells.then(|| told(&step));
            let mut rows = std::mem::take(&mut first);
            state.enter(step, self.most, &mut rows);
            state.waiting.push_back(Arc::new(SeriesWrite { run: run.clone(), rows, told }));
        }
        if is_last {
            state.close(&mut first);
        }
        state.turn(Span::Minute.start(now), &mut first);
        // Until now it was there, also where nothing happened.
        if is_last || !first.is_empty() {
            state.waiting.push_back(Arc::new(SeriesWrite { run, rows: first, told: None }));
        }
    }

    /// What is written from now on of how many jobs there are is of every queue that has some.
    pub fn begin_turn(&self, at: Timestamp) {
        self.state().turn = Some(at);
    }

    /// Returns what is to be written next, and how much was given up before it.
    pub fn next(&self, now: Timestamp) -> (Option<Arc<SeriesWrite>>, usize) {
        let mut state = self.state();
        let over = |write: &SeriesWrite| {
            let last = write.rows.iter().map(|row| row.at).max();
            now.ms_since(last.unwrap_or(write.run.seen)) > WRITTEN_WITHIN_MS
        };
        let before = state.waiting.len();
        state.waiting.retain(|write| !over(write));
        (state.waiting.front().cloned(), before - state.waiting.len())
    }

    /// This is in the store.
    pub fn written(&self, write: &Arc<SeriesWrite>) {
        self.state().waiting.retain(|other| !Arc::ptr_eq(other, write));
    }

    /// Returns what of a queue, or of all, is not in the store yet.
    pub fn unwritten(&self, meter: &Meter, subject: &Subject) -> Unwritten {
        let queue = match subject {
            Subject::All | Subject::Others => None,
            Subject::Queue(queue) => Some(queue),
        };
        let state = self.state();
        let mut unwritten: Unwritten = Vec::new();
        for row in state.waiting.iter().flat_map(|write| &write.rows).filter(|row| row.subject == *subject) {
            unwritten.extend(row.tally.clone().map(|tally| (row.span, row.at, tally)));
        }
        let rest = queue.and_then(|queue| state.rest.get(queue)).cloned();
        unwritten.extend(rest.map(|tally| (Span::Minute, state.minute, tally)));
        let mut steps: BTreeMap<Timestamp, Tally> = BTreeMap::new();
        for (at, tally) in meter.unwritten_in(subject) {
            steps.entry(at).or_default().add(&tally);
        }
        unwritten.extend(steps.into_iter().map(|(at, tally)| (Span::Step, at, tally)));
        unwritten
    }
}

fn told(step: &Step) -> ToldStep {
    let queues = step.queues.iter().map(|(queue, tally)| (Subject::Queue(queue.clone()), tally.clone()));
    ToldStep {
        at: step.at,
        tallies: [(Subject::All, step.total.clone())].into_iter().chain(queues).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Event;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000_020_000 + seconds * 1000)
    }

    fn pushed(unwritten: &Unwritten) -> u32 {
        unwritten.iter().map(|(_, _, tally)| tally.of(Event::Pushed)).sum()
    }

    #[test]
    fn everything_is_written_once() {
        let (meter, ledger) = (Meter::new(10, 1000), Ledger::new(1000));
        meter.turn(at(0));
        let queues: Vec<QueueName> = (0..BUSIEST + 100).map(|n| format!("q{n}").parse().unwrap()).collect();
        let push = |times: usize| {
            for (n, queue) in queues.iter().enumerate() {
                // The last ones are the busiest.
                (0..times + n / 100).for_each(|_| meter.notes().count(queue, Event::Pushed));
            }
        };
        let mut rows = Vec::new();
        let write = |now: i64, is_last| {
            ledger.take_over(&meter, at(now), Vec::new(), true, is_last);
            let mut rows = Vec::new();
            while let (Some(write), 0) = ledger.next(at(now)) {
                assert_eq!(write.told.as_ref().map_or(601, |told| told.tallies.len()), 601);
                rows.extend(write.rows.clone());
                ledger.written(&write);
            }
            rows
        };
        push(1);
        let (first, total) = (Subject::Queue(queues[0].clone()), Subject::All);
        assert_eq!(pushed(&ledger.unwritten(&meter, &total)), 600 + 1500);
        rows.extend(write(10, false));
        assert_eq!(rows.len(), 1 + BUSIEST);
        assert!(rows.iter().all(|row| row.subject != first && row.at == at(0)), "it is none of the busiest");
        assert_eq!(ledger.unwritten(&meter, &first).len(), 1);
        assert_eq!(pushed(&ledger.unwritten(&meter, &total)), 0);
        push(1);
        rows.extend(write(20, false));
        assert_eq!(rows.len(), 2 * (1 + BUSIEST));
        rows.extend(write(65, false));
        assert_eq!(rows.len(), 2 * (1 + BUSIEST) + 100, "the minute is over");
        push(1);
        rows.extend(write(66, true));
        assert!(ledger.unwritten(&meter, &first).is_empty());
        for subject in queues.iter().cloned().map(Subject::Queue).chain([total]) {
            let of_subject = rows.iter().filter(|row| row.subject == subject);
            let sum: u32 = of_subject.map(|row| row.tally.as_ref().unwrap().of(Event::Pushed)).sum();
            let all: u32 = match &subject {
                Subject::All | Subject::Others => 3 * 2100,
                Subject::Queue(queue) => 3 * (1 + queue.as_str()[1..].parse::<u32>().unwrap() / 100),
            };
            assert_eq!(sum, all, "{subject:?}");
        }
    }

    #[test]
    fn what_happens_beyond_the_bound_is_one_record() {
        // The meter knows four queues within a second, the ledger three within an hour.
        let (meter, ledger) = (Meter::new(10, 4), Ledger::new(3));
        meter.turn(at(0));
        let push = |names: &[&str]| {
            names.iter().for_each(|name| meter.notes().count(&name.parse().unwrap(), Event::Pushed));
        };
        push(&["a", "b", "c", "d", "e"]);
        assert_eq!(pushed(&ledger.unwritten(&meter, &Subject::Others)), 1, "the meter's own");
        ledger.take_over(&meter, at(10), Vec::new(), true, false);
        assert_eq!(pushed(&ledger.unwritten(&meter, &Subject::Others)), 2);
        push(&["e"]);
        ledger.take_over(&meter, at(20), Vec::new(), true, false);
        assert_eq!(pushed(&ledger.unwritten(&meter, &Subject::Others)), 3);
        let sums = ["a", "b", "c", "d", "e"]
            .map(|name| pushed(&ledger.unwritten(&meter, &Subject::Queue(name.parse().unwrap()))));
        assert_eq!((sums.iter().sum::<u32>(), pushed(&ledger.unwritten(&meter, &Subject::All))), (3, 6));
        // Another hour, another three.
        push(&["e"]);
        ledger.take_over(&meter, at(3600), Vec::new(), true, false);
        push(&["e"]);
        ledger.take_over(&meter, at(3610), Vec::new(), true, false);
        assert!(pushed(&ledger.unwritten(&meter, &Subject::Queue("e".parse().unwrap()))) > 0);
    }

    #[test]
    fn a_server_that_stops_says_that_it_was_there_until_then() {
        let (meter, ledger) = (Meter::new(10, 1000), Ledger::new(1000));
        meter.turn(at(0));
        meter.notes().count(&"a".parse().unwrap(), Event::Pushed);
        let write = |now: i64, is_last| {
            ledger.take_over(&meter, at(now), Vec::new(), false, is_last);
            let mut seen = None;
            while let (Some(write), 0) = ledger.next(at(now)) {
                seen = Some((write.run.seen, write.rows.len()));
                ledger.written(&write);
            }
            seen
        };
        assert_eq!(write(10, false), Some((at(10), 2)));
        assert_eq!(write(20, false), None, "nothing happened");
        assert_eq!(write(1200, true), Some((at(1200), 0)));
    }

    #[test]
    fn a_clock_that_is_set_back_begins_a_minute_of_its_time() {
        let (meter, ledger) = (Meter::new(10, 1000), Ledger::new(1000));
        meter.turn(at(7200));
        let queues: Vec<QueueName> = (0..BUSIEST + 100).map(|n| format!("q{n}").parse().unwrap()).collect();
        let minutes = |now: i64| {
            queues.iter().for_each(|queue| meter.notes().count(queue, Event::Pushed));
            ledger.take_over(&meter, at(now), Vec::new(), false, false);
            let mut minutes = Vec::new();
            while let (Some(write), 0) = ledger.next(at(now)) {
                minutes.extend(write.rows.iter().filter(|row| row.span == Span::Minute).map(|row| row.at));
                ledger.written(&write);
            }
            minutes
        };
        assert!(minutes(7210).is_empty());
        let before = minutes(0);
        assert!(before.len() >= 100 && before.iter().all(|minute| *minute == at(7200)), "{before:?}");
        assert!(minutes(10).is_empty());
        let after = minutes(60);
        assert!(after.len() >= 100 && after.iter().all(|minute| *minute == at(0)), "{after:?}");
    }

    #[test]
    fn what_waits_too_long_is_given_up() {
        let (meter, ledger) = (Meter::new(10, 1000), Ledger::new(1000));
        meter.turn(at(0));
        meter.notes().count(&"a".parse().unwrap(), Event::Pushed);
        ledger.take_over(&meter, at(10), Vec::new(), false, false);
        assert!(ledger.next(at(1800)).0.is_some());
        assert_eq!(ledger.next(at(1811)).1, 1);
        assert!(ledger.next(at(1811)).0.is_none());
    }
}
