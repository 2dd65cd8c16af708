//! What happened during the last minute, on all servers: the one source of rates and percentiles, of each queue, of all queues
//! one by one, and of all together.
//!
//! A server counts what it does itself as it does it, and reads every ten seconds what the others did in the step before. Each
//! is divided by how much of the minute its server was there: one that began five seconds ago by five seconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Queues;
use super::history::History;
use super::meter::{AHEAD_MS, Event, Step};
use crate::job::tally::EVENTS;
use crate::job::{QueueName, Tally, Times, Timestamp};
use crate::store::{Span, StepOfOther, Subject};

/// The time that the rates are about, in milliseconds.
const WINDOW_MS: i64 = 60_000;
/// Less than so many milliseconds say nothing of a rate.
const SHORTEST_MS: i64 = 1000;
/// What another server says of a step is there so many milliseconds after the step, unless nothing happened in it.
const HEARD_WITHIN_MS: i64 = 2 * Span::Step.ms();

/// Percentiles of a time, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Half of the jobs took no longer.
    pub p50: u64,
    /// 95 of 100 took no longer.
    pub p95: u64,
    /// 99 of 100 took no longer.
    pub p99: u64,
}

impl Percentiles {
    /// Returns those of some times, if there are any.
    pub fn of(times: &Times) -> Option<Self> {
        let at = |share| times.quantile(share);
        Some(Self { p50: at(0.5)?, p95: at(0.95)?, p99: at(0.99)? })
    }
}

/// What happened to the jobs of a queue, or of all queues, during the last minute.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// Per second, in the order of [`Event::ALL`].
    pub rates: [f64; EVENTS],
    /// From being due to being delivered, where any were.
    pub queue_time: Option<Percentiles>,
    /// From being delivered to being done, where any were.
    pub run_time: Option<Percentiles>,
    /// How much of the minute was seen, in milliseconds, by the server that saw most of it.
    pub over_ms: u64,
    /// Whether more queues moved on one server than are counted one by one: what is missing here is in the total.
    pub is_partial: bool,
}

impl Flow {
    /// Returns how often this happened, per second.
    pub fn rate(&self, event: Event) -> f64 {
        self.rates.get(event as usize).copied().unwrap_or(0.0)
    }
}

/// What happened everywhere during the last minute.
#[derive(Debug, Clone, Default)]
pub struct Flows {
    /// In all queues together.
    pub total: Flow,
    /// In each queue where something did.
    pub queues: HashMap<QueueName, Flow>,
    /// In those queues beyond the ones that are counted one by one.
    pub others: Flow,
}

/// The last steps of one server, and how much of the last minute they are about.
struct Seen<T> {
    steps: Vec<(Timestamp, T)>,
    until: Timestamp,
    over_ms: i64,
}

impl<T> Seen<T> {
    fn new(steps: Vec<(Timestamp, T)>, since: Timestamp, until: Timestamp) -> Self {
        let over_ms = (until.millis() - since.millis()).clamp(SHORTEST_MS, WINDOW_MS);
        Self { steps, until, over_ms }
    }

    /// Returns the steps, with how much of each lies within the last minute, per second of it.
    fn weighed(&self) -> impl Iterator<Item = (f64, &T)> {
        let begin = self.until.millis() - WINDOW_MS;
        let steps = self.steps.iter().filter(move |(at, _)| !is_ahead(*at, self.until));
        steps.map(move |(at, step)| {
            let share = (at.millis() + Span::Step.ms() - begin) as f64 / Span::Step.ms() as f64;
            (share.clamp(0.0, 1.0) * 1000.0 / self.over_ms as f64, step)
        })
    }
}

/// Whether a step began at a time that is not there yet: the store's clock was set back since.
fn is_ahead(step: Timestamp, now: Timestamp) -> bool {
    step.millis() - now.millis() > AHEAD_MS
}

/// Adds up what happened in one queue.
#[derive(Default)]
struct Sum {
    rates: [f64; EVENTS],
    queue_time: Times,
    run_time: Times,
}

impl Sum {
    fn add(&mut self, weight: f64, tally: &Tally) {
        if weight == 0.0 {
            return;
        }
        for (rate, count) in self.rates.iter_mut().zip(tally.counts) {
            *rate += f64::from(count) * weight;
        }
        self.queue_time.add(&tally.queue_time);
        self.run_time.add(&tally.run_time);
    }

    fn flow(&self, over_ms: i64, is_partial: bool) -> Flow {
        Flow {
            rates: self.rates,
            queue_time: Percentiles::of(&self.queue_time),
            run_time: Percentiles::of(&self.run_time),
            over_ms: over_ms.unsigned_abs(),
            is_partial,
        }
    }
}

/// What the other servers announced of their last steps.
#[derive(Default)]
pub(super) struct Others {
    servers: Mutex<HashMap<Arc<str>, Other>>,
    has_news: AtomicBool,
}

struct Other {
    since: Timestamp,
    steps: HashMap<Timestamp, Arc<Step>>,
}

fn read_told(StepOfOther { server, since, step }: StepOfOther) -> (Arc<str>, Timestamp, Arc<Step>) {
    let mut read = Step { at: step.at, ..Step::default() };
    for (subject, tally) in step.tallies {
        match subject {
            Subject::All => read.total = tally,
            Subject::Others => {} // what is left of the total, below
            Subject::Queue(queue) => drop(read.queues.insert(queue, tally)),
        }
    }
    // Only the queues that were counted one by one are announced; how often it happened in the others is what is left of the total.
    read.others.counts = read.total.counts;
    for tally in read.queues.values() {
        for (left, count) in read.others.counts.iter_mut().zip(tally.counts) {
            *left = left.saturating_sub(count);
        }
    }
    (server, since, Arc::new(read))
}

impl Others {
    fn servers(&self) -> MutexGuard<'_, HashMap<Arc<str>, Other>> {
        self.servers.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether anything new was announced since the last time.
    pub fn take_news(&self) -> bool {
        self.has_news.swap(false, Ordering::AcqRel)
    }

    /// Notes what was announced, and forgets what is too old. What is new of it is a part of the history.
    pub fn note(&self, told: Vec<StepOfOther>, now: Timestamp, history: &History) {
        // Each is read several times; what is known is not built again, and nothing is built under the lock.
        let knows = |servers: &HashMap<Arc<str>, Other>, told: &StepOfOther| {
            let known = servers.get(&told.server).and_then(|other| other.steps.get(&told.step.at));
            known.is_some_and(|step| step.queues.len() + 1 >= told.step.tallies.len())
        };
        let new: Vec<StepOfOther> = {
            let servers = self.servers();
            told.into_iter().filter(|told| !is_ahead(told.step.at, now) && !knows(&servers, told)).collect()
        };
        let is_news = !new.is_empty();
        let read: Vec<_> = new.into_iter().map(read_told).collect();
        let mut servers = self.servers();
        for (server, since, step) in read {
            let other = servers.entry(server).or_insert_with(|| Other { since, steps: HashMap::new() });
            let before = other.steps.insert(step.at, step.clone());
            let is_known =
                |queue: &QueueName| before.as_ref().is_some_and(|before| before.queues.contains_key(queue));
            history.note_told(step.at, step.queues.iter().filter(|(queue, _)| !is_known(queue)));
        }
        // A step that was written a moment ago may have been read in part.
        let is_whole = |step: &Step| now.millis() - step.at.millis() >= HEARD_WITHIN_MS;
        let whole = servers.values().flat_map(|other| other.steps.values()).filter(|step| is_whole(step));
        let unnamed = whole.filter(|step| !step.others.is_none()).map(|step| step.at).max();
        if let Some(at) = unnamed {
            history.note_unnamed(at.plus_ms(Span::Step.ms().unsigned_abs()));
        }
        let over = now.millis() - WINDOW_MS - HEARD_WITHIN_MS;
        servers.retain(|_, other| {
            other.steps.retain(|at, _| at.millis() > over && !is_ahead(*at, now));
            !other.steps.is_empty()
        });
        if is_news {
            self.has_news.store(true, Ordering::Release);
        }
    }

    /// Returns the last steps of each.
    fn seen(&self, now: Timestamp) -> Vec<Seen<Arc<Step>>> {
        let heard = Timestamp::from_millis(now.millis() - HEARD_WITHIN_MS);
        let seen = |other: &Other| {
            let steps: Vec<_> = other.steps.iter().map(|(at, step)| (*at, step.clone())).collect();
            let end = steps.iter().map(|(at, _)| at.plus_ms(Span::Step.ms().unsigned_abs())).max();
            let until = end.unwrap_or(now).clamp(heard, now);
            Seen::new(steps, other.since, until)
        };
        self.servers().values().map(seen).collect()
    }
}

impl Queues {
    /// Returns what happened during the last minute in one queue, or in all together, on all servers.
    pub fn flow(&self, queue: Option<&QueueName>) -> Flow {
        let Ok(now) = self.now() else { return Flow::default() };
        let began = self.meter().turn(now);
        let own = Seen::new(self.meter().lately_in(queue, now), began, now);
        let (mut sum, mut over_ms) = (Sum::default(), own.over_ms);
        own.weighed().for_each(|(weight, tally)| sum.add(weight, tally));
        for other in self.0.others.seen(now) {
            over_ms = over_ms.max(other.over_ms);
            for (weight, step) in other.weighed() {
                step.of(queue).into_iter().for_each(|tally| sum.add(weight, tally));
            }
        }
        let is_partial = queue.is_some() && self.meter().has_others();
        sum.flow(over_ms, is_partial)
    }

    /// Returns the same of all queues at once: a read of what is in memory, about a second old. It costs some
    /// milliseconds where ten thousand queues are busy.
    pub fn flows(&self) -> Flows {
        let Ok(now) = self.now() else { return Flows::default() };
        let began = self.meter().turn(now);
        let own = self.meter().lately(now).into_iter().map(|step| (step.at, step)).collect();
        let mut seen = self.0.others.seen(now);
        seen.push(Seen::new(own, began, now));
        let over_ms = seen.iter().map(|seen| seen.over_ms).max().unwrap_or(0);
        let (mut total, mut others, mut queues) = (Sum::default(), Sum::default(), HashMap::new());
        for (weight, step) in seen.iter().flat_map(Seen::weighed) {
            total.add(weight, &step.total);
            others.add(weight, &step.others);
            for (queue, tally) in &step.queues {
                queues.entry(queue).or_insert_with(Sum::default).add(weight, tally);
            }
        }
        let is_partial = others.rates.iter().any(|rate| *rate > 0.0);
        let of_queue = |(queue, sum): (&QueueName, Sum)| (queue.clone(), sum.flow(over_ms, is_partial));
        Flows {
            queues: queues.into_iter().map(of_queue).collect(),
            total: total.flow(over_ms, false),
            others: others.flow(over_ms, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ToldStep;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(1_000_000_000 + ms)
    }

    fn tally(pushed: u32) -> Tally {
        let mut tally = Tally::default();
        (0..pushed).for_each(|_| tally.count(Event::Pushed));
        tally
    }

    fn rate(steps: &[(i64, u32)], since: i64, until: i64) -> f64 {
        let steps = steps.iter().map(|(step, pushed)| (at(*step), tally(*pushed))).collect();
        let mut sum = Sum::default();
        Seen::new(steps, at(since), at(until)).weighed().for_each(|(weight, tally)| sum.add(weight, tally));
        (sum.rates[0] * 1000.0).round() / 1000.0
    }

    #[test]
    fn a_rate_is_of_the_time_that_was_seen() {
        assert_eq!(rate(&[(0, 10)], 0, 5000), 2.0, "five seconds");
        assert_eq!(rate(&[(0, 10)], 0, 10), 10.0, "a second at least");
        assert_eq!(rate(&[(0, 60), (10_000, 60)], -600_000, 15_000), 2.0, "a minute at most");
        // Half of the first step is no longer in the last minute.
        assert_eq!(rate(&[(0, 60), (60_000, 60)], -600_000, 65_000), 1.5);
        assert_eq!(rate(&[(0, 60)], -600_000, 70_000), 0.0);
        assert_eq!(rate(&[(0, 60), (3_600_000, 60)], -600_000, 15_000), 1.0, "nothing happened in an hour");
    }

    #[test]
    fn queues_that_are_told_of_together_are_noticed_once_their_step_is_whole() {
        let (others, history) = (Others::default(), History::default());
        let queue: QueueName = "q".parse().unwrap();
        let told = |pushed, own| {
            let tallies = vec![(Subject::All, tally(pushed)), (Subject::Queue(queue.clone()), tally(own))];
            StepOfOther { server: "b".into(), since: at(-600_000), step: ToldStep { at: at(0), tallies } }
        };
        let is_unknown = |now: i64| {
            history.recent([&queue].into_iter(), std::time::Duration::from_secs(60), at(now))[0].is_unknown
        };
        others.note(vec![told(6, 4)], at(11_500), &history);
        assert!(!is_unknown(11_500), "the rest of it may come");
        others.note(vec![told(6, 4)], at(21_500), &history);
        assert!(is_unknown(21_500), "two happened in queues without names");
        assert_eq!(others.seen(at(21_500))[0].steps[0].1.others.of(Event::Pushed), 2);
        let (others, history) = (Others::default(), History::default());
        others.note(vec![told(4, 4)], at(21_500), &history);
        let recent = history.recent([&queue].into_iter(), std::time::Duration::from_secs(60), at(21_500));
        assert!(!recent[0].is_unknown, "none did");
    }

    #[test]
    fn others_are_heard_for_a_minute() {
        let (others, history) = (Others::default(), History::default());
        let told = |step: i64, pushed| StepOfOther {
            server: "b".into(),
            since: at(-600_000),
            step: ToldStep { at: at(step), tallies: vec![(Subject::All, tally(pushed))] },
        };
        others.note(vec![told(0, 6)], at(11_000), &history);
        assert!(others.take_news());
        others.note(vec![told(0, 6)], at(12_000), &history);
        assert!(!others.take_news(), "a repeat is no news");
        others.note(vec![told(10_000, 6)], at(21_000), &history);
        let pushed = |now: i64| {
            let mut sum = Sum::default();
            for seen in others.seen(at(now)) {
                seen.weighed().for_each(|(weight, step)| sum.add(weight, &step.total));
            }
            (sum.rates[0] * 60.0).round()
        };
        assert_eq!(pushed(21_000), 12.0);
        assert_eq!(pushed(85_000), 9.0, "it is silent, and its minute goes on");
        others.note(Vec::new(), at(200_000), &history);
        assert!(others.seen(at(200_000)).is_empty());
        // The store's clock is set back: what was announced before, and is read again, is of no time.
        others.note(vec![told(3_600_000, 6)], at(3_611_000), &history);
        others.take_news();
        for _ in 0..2 {
            others.note(vec![told(3_600_000, 6)], at(200_000), &history);
            assert!(others.seen(at(200_000)).is_empty() && !others.take_news());
        }
    }
}
