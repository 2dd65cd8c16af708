//! The past as clients read it: one figure of one queue, or of all, in steps of equal length.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::ledger::Unwritten;
use super::{Queues, Result};
use crate::job::{Event, Tally, Times, Timestamp};
use crate::store::{Depth, SeriesRead, SeriesRun, Span, Subject};

/// The approximate number of points where the caller does not say how long a step is.
const POINTS: u64 = 400;
/// The steps that are chosen from then, in milliseconds.
const STEPS_MS: [u64; 5] = [10_000, 60_000, 600_000, 3_600_000, 21_600_000];
/// No step is longer: it is all that is known.
const LONGEST_MS: u64 = KEPT_MS.unsigned_abs();
/// How far back anything is known, in milliseconds.
pub const KEPT_MS: i64 = Span::Coarse.kept_ms();

/// How many jobs there were, by what they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DepthOf {
    /// They could be delivered.
    Ready,
    /// They waited for their `run_at`.
    Scheduled,
    /// Workers held them.
    Reserved,
    /// They waited for their group or a semaphore.
    Blocked,
    /// Their attempts were used up.
    Dead,
}

/// A figure that has a past.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Metric {
    /// How often something happened.
    Events(Event),
    /// How many jobs there were.
    Depth(DepthOf),
    /// For how long the oldest ready job had been so, in milliseconds.
    OldestReadyAge,
    /// The time from due to delivery that this share of the jobs did not exceed, in milliseconds.
    QueueTime(f64),
    /// The time from delivery to commit that this share of the jobs did not exceed, in milliseconds.
    RunTime(f64),
}

/// Every figure that has a past, by its name.
pub const METRICS: [(&str, Metric); 23] = [
    ("pushed", Metric::Events(Event::Pushed)),
    ("reserved", Metric::Events(Event::Reserved)),
    ("committed", Metric::Events(Event::Committed)),
    ("rolled_back", Metric::Events(Event::RolledBack)),
    ("moved", Metric::Events(Event::Moved)),
    ("lapsed", Metric::Events(Event::Lapsed)),
    ("expired", Metric::Events(Event::Expired)),
    ("dead", Metric::Events(Event::Dead)),
    ("cancelled", Metric::Events(Event::Cancelled)),
    ("depth_ready", Metric::Depth(DepthOf::Ready)),
    ("depth_scheduled", Metric::Depth(DepthOf::Scheduled)),
    ("depth_reserved", Metric::Depth(DepthOf::Reserved)),
    ("depth_blocked", Metric::Depth(DepthOf::Blocked)),
    ("depth_dead", Metric::Depth(DepthOf::Dead)),
    ("oldest_ready_age_ms", Metric::OldestReadyAge),
    ("queue_time_p50", Metric::QueueTime(0.5)),
    ("queue_time_p90", Metric::QueueTime(0.9)),
    ("queue_time_p95", Metric::QueueTime(0.95)),
    ("queue_time_p99", Metric::QueueTime(0.99)),
    ("run_time_p50", Metric::RunTime(0.5)),
    ("run_time_p90", Metric::RunTime(0.9)),
    ("run_time_p95", Metric::RunTime(0.95)),
    ("run_time_p99", Metric::RunTime(0.99)),
];

impl Metric {
    /// Returns the figure of this name.
    pub fn named(name: &str) -> Option<Self> {
        METRICS.iter().find(|(of, _)| *of == name).map(|(_, metric)| *metric)
    }
}

/// What is asked of the past.
#[derive(Debug, Clone)]
pub struct SeriesAsk {
    /// Of one queue, or of all.
    pub subject: Subject,
    /// Which figure.
    pub metric: Metric,
    /// From when on.
    pub from: Timestamp,
    /// Until when; not later than now.
    pub to: Timestamp,
    /// How long a step is at least, in milliseconds.
    pub step_ms: Option<u64>,
}

/// A figure in steps of equal length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeriesAnswer {
    /// How long a step is, in milliseconds.
    pub step_ms: u64,
    /// When each began of which something is known, and the figure.
    pub points: Vec<(Timestamp, u64)>,
    /// Whether something happened in that time in queues beyond the bound, so that this may lack some of it.
    pub is_partial: bool,
}

/// Steps of equal length, one after the other. What is kept allows 1,450 of them at most.
struct Steps {
    begin: i64,
    end: i64,
    step: i64,
    count: usize,
}

impl Steps {
    /// Returns the shortest steps that what is known allows, or as long ones as was asked for.
    fn new(ask: &SeriesAsk, shortest: Span) -> Self {
        let begin = shortest.start(ask.from).millis();
        let (end, shortest) = (ask.to.millis(), shortest.ms().unsigned_abs());
        let range = end.abs_diff(begin);
        let step = match ask.step_ms {
            Some(step) => step.min(LONGEST_MS).max(shortest).next_multiple_of(shortest),
            None => {
                let is_long = |step: &u64| *step >= shortest && range.div_ceil(*step) <= POINTS;
                STEPS_MS.into_iter().find(is_long).unwrap_or(LONGEST_MS)
            }
        };
        // One that is as long as the time itself is all of it, although that may begin within a shortest step.
        let is_whole = step >= ask.to.ms_since(ask.from);
        let count = if is_whole { 1 } else { range.div_ceil(step) };
        Self { begin, end, step: step.cast_signed(), count: usize::try_from(count).unwrap_or(0) }
    }

    /// Returns the number of the step that this moment is in, if there is one.
    fn number(&self, at: Timestamp) -> Option<usize> {
        let at = at.millis();
        let number = usize::try_from((at - self.begin) / self.step).ok()?.min(self.count.checked_sub(1)?);
        (self.begin..self.end).contains(&at).then_some(number)
    }

    fn at(&self, number: usize) -> Timestamp {
        Timestamp::from_millis(self.begin + self.step * number as i64)
    }

    /// Returns when the last moment of a step is over.
    fn end(&self, number: usize) -> Timestamp {
        let end = Timestamp::from_millis(self.end);
        if number + 1 == self.count { end } else { self.at(number + 1) }
    }
}

impl Queues {
    /// Returns a figure of the past. A step in which no server is known to have been there has no point, nor one without jobs
    /// to take a percentile of; one in which nothing happened has 0.
    pub async fn series(&self, ask: SeriesAsk) -> Result<SeriesAnswer> {
        let now = self.now()?;
        let kept = Timestamp::from_millis(now.millis() - KEPT_MS);
        let ask = SeriesAsk { from: ask.from.max(kept), to: ask.to.min(now.plus_ms(1)), ..ask };
        if ask.from >= ask.to {
            let step_ms = ask.step_ms.unwrap_or(STEPS_MS[0]);
            return Ok(SeriesAnswer { step_ms, points: Vec::new(), is_partial: false });
        }
        let since = self.meter().turn(now);
        // Before the store is read, so that nothing is missed on its way there. What is found in both is the same.
        let unwritten = self.0.ledger.unwritten(self.meter(), &ask.subject);
        let from = Span::Coarse.start(ask.from);
        let (read, others) =
            tokio::try_join!(self.0.store.read_series(&ask.subject, from, ask.to), self.others(&ask, from))?;
        let SeriesRead { tallies, depths, before, mut runs, turns } = read;
        let server = &self.0.ledger.server;
        runs.push(SeriesRun { server: server.clone(), since, seen: now, turn: None });
        let all = all_tallies(&ask.subject, server, unwritten, tallies);
        let is_meant = |(_, span, at): &&(Arc<str>, Span, Timestamp)| {
            at.plus_ms(span.ms().unsigned_abs()) > ask.from && *at < ask.to
        };
        let spans = all.keys().filter(is_meant).map(|(_, span, _)| *span);
        let steps = Steps::new(&ask, shortest(&ask, now, spans));
        let mut tallies = vec![None::<Sum>; steps.count];
        for ((_, _, at), tally) in &all {
            if let Some(sum) = steps.number(*at).and_then(|n| tallies.get_mut(n)) {
                sum.get_or_insert_default().add(ask.metric, tally);
            }
        }
        let others: HashSet<usize> = others.into_iter().filter_map(|at| steps.number(at)).collect();
        // What is not said of a queue when a server begins to say it of each is 0.
        let turns =
            runs.iter().filter_map(|run| run.turn).chain(turns).filter(|_| ask.subject != Subject::All);
        let depths = depths_in(&steps, before.into_iter().chain(depths), turns);
        let is_there = |n: usize| {
            let (begin, end) = (steps.at(n), steps.end(n));
            runs.iter().any(|run| run.since <= end && run.seen >= begin)
        };
        let point = |n: usize| {
            let sum = tallies.get(n).and_then(Option::as_ref);
            if sum.is_none() && !is_there(n) {
                return None;
            }
            let value = match ask.metric {
                // What happened in it may be among that of the others.
                Metric::Events(_) if sum.is_none() && others.contains(&n) => None,
                Metric::Events(_) => Some(sum.map_or(0, |sum| sum.events)),
                Metric::QueueTime(share) | Metric::RunTime(share) => {
                    sum.and_then(|sum| sum.times.quantile(share))
                }
                Metric::Depth(of) => depths.get(n).copied().flatten().map(|(_, depth)| of.count(&depth)),
                Metric::OldestReadyAge => depths.get(n).copied().flatten().and_then(|(at, depth)| {
                    depth.oldest_ready.map(|oldest| at.max(steps.at(n)).ms_since(oldest))
                }),
            };
            value.map(|value| (steps.at(n), value))
        };
        let points = (0..steps.count).filter_map(point).collect();
        Ok(SeriesAnswer { step_ms: steps.step.unsigned_abs(), points, is_partial: !others.is_empty() })
    }

    /// Returns when something happened in queues beyond the bound, where that may be missing in what is asked for: how many jobs there
    /// are is said of every queue.
    async fn others(&self, ask: &SeriesAsk, from: Timestamp) -> crate::store::Result<HashSet<Timestamp>> {
        let is_of_events =
            matches!(ask.metric, Metric::Events(_) | Metric::QueueTime(_) | Metric::RunTime(_));
        if !matches!(ask.subject, Subject::Queue(_)) || !is_of_events {
            return Ok(HashSet::new());
        }
        let own = self.0.ledger.unwritten(self.meter(), &Subject::Others);
        let read = self.0.store.read_series(&Subject::Others, from, ask.to).await?;
        let read = read.tallies.into_iter().map(|(_, _, at, _)| at);
        Ok(own.into_iter().map(|(_, at, _)| at).chain(read).collect())
    }
}

/// Returns what this server has not written yet with what is in the store, each once.
fn all_tallies(
    subject: &Subject,
    server: &Arc<str>,
    unwritten: Unwritten,
    tallies: Vec<(Arc<str>, Span, Timestamp, Tally)>,
) -> HashMap<(Arc<str>, Span, Timestamp), Tally> {
    let mut all: HashMap<(Arc<str>, Span, Timestamp), Tally> =
        unwritten.into_iter().map(|(span, at, tally)| ((server.clone(), span, at), tally)).collect();
    // A minute that was written meanwhile has its steps in it.
    let is_own_minute =
        |(by, span, ..): &&(Arc<str>, Span, Timestamp, Tally)| by == server && *span == Span::Minute;
    let minutes: HashSet<Timestamp> = tallies.iter().filter(is_own_minute).map(|(_, _, at, _)| *at).collect();
    if *subject != Subject::All {
        all.retain(|(_, span, at), _| *span != Span::Step || !minutes.contains(&Span::Minute.start(*at)));
    }
    all.extend(tallies.into_iter().map(|(server, span, at, tally)| ((server, span, at), tally)));
    all
}

/// Returns the shortest span in which the whole time is known: by its age, and by what was found.
fn shortest(ask: &SeriesAsk, now: Timestamp, found: impl Iterator<Item = Span>) -> Span {
    let age = now.ms_since(ask.from).cast_signed();
    let by_age = Span::ALL.into_iter().find(|span| age <= span.kept_ms()).unwrap_or(Span::Coarse);
    found.chain([by_age]).max().unwrap_or(by_age)
}

/// What happened in a step, as far as the figure is about it.
#[derive(Clone, Default)]
struct Sum {
    events: u64,
    times: Times,
}

impl Sum {
    fn add(&mut self, metric: Metric, tally: &Tally) {
        match metric {
            Metric::Events(event) => self.events += u64::from(tally.of(event)),
            Metric::QueueTime(_) => self.times.add(&tally.queue_time),
            Metric::RunTime(_) => self.times.add(&tally.run_time),
            Metric::Depth(_) | Metric::OldestReadyAge => {}
        }
    }
}

impl DepthOf {
    fn count(self, depth: &Depth) -> u64 {
        match self {
            Self::Ready => depth.counts.ready,
            Self::Scheduled => depth.counts.scheduled,
            Self::Reserved => depth.counts.reserved,
            Self::Blocked => depth.counts.blocked,
            Self::Dead => depth.counts.dead,
        }
    }
}

/// Returns how many jobs there were last in each step: as many as before, as long as nothing else is said. At `turns` all was said that
/// was not 0.
fn depths_in(
    steps: &Steps,
    depths: impl Iterator<Item = (Timestamp, Depth)>,
    turns: impl Iterator<Item = Timestamp>,
) -> Vec<Option<(Timestamp, Depth)>> {
    let mut said: BTreeMap<Timestamp, Depth> = turns.map(|at| (at, Depth::default())).collect();
    let mut first = None;
    for (at, depth) in depths {
        said.insert(at, depth);
        first = Some(first.map_or(at, |first: Timestamp| first.min(at)));
    }
    let (begin, mut last) = (Timestamp::from_millis(steps.begin), None);
    let mut by_step: BTreeMap<usize, (Timestamp, Depth)> = BTreeMap::new();
    for (at, depth) in said.into_iter().filter(|(at, _)| first.is_some_and(|first| *at >= first)) {
        match steps.number(at) {
            Some(n) => drop(by_step.insert(n, (at, depth))),
            None if at < begin => last = Some((at, depth)),
            None => {}
        }
    }
    let in_step = |n| {
        last = by_step.get(&n).copied().or(last);
        last
    };
    (0..steps.count).map(in_step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn ask(from_ms_ago: i64, step_ms: Option<u64>) -> SeriesAsk {
        let (from, to) = (Timestamp::from_millis(NOW - from_ms_ago), Timestamp::from_millis(NOW));
        SeriesAsk { subject: Subject::All, metric: Metric::Events(Event::Pushed), from, to, step_ms }
    }

    #[test]
    fn steps_are_as_short_as_what_is_known() {
        let step = |ask: &SeriesAsk, found: &[Span]| {
            let shortest = shortest(ask, Timestamp::from_millis(NOW), found.iter().copied());
            let steps = Steps::new(ask, shortest);
            (steps.step, steps.count)
        };
        let (hour, day) = (3_600_000, 86_400_000);
        assert_eq!(step(&ask(hour, None), &[]), (10_000, 360));
        assert_eq!(step(&ask(hour, None), &[Span::Step, Span::Minute]), (60_000, 60));
        assert_eq!(step(&ask(hour, Some(3_600_000)), &[Span::Minute]), (3_600_000, 1));
        assert_eq!(step(&ask(hour, Some(15_000)), &[]), (20_000, 180));
        assert_eq!(step(&ask(day, None), &[]), (600_000, 144));
        assert_eq!(step(&ask(day, Some(1)), &[]), (60_000, 1440));
        assert_eq!(step(&ask(7 * day, Some(1)), &[]), (600_000, 1008));
        assert_eq!(step(&ask(7 * day, None), &[]), (3_600_000, 168));
        assert_eq!(step(&ask(7 * day, Some(u64::MAX)), &[]), (7 * day, 1));
        // Also where the time begins within a shortest step.
        let whole =
            SeriesAsk { from: Timestamp::from_millis(NOW - hour - 5000), ..ask(hour, Some(3_605_000)) };
        let steps = Steps::new(&whole, Span::Step);
        assert_eq!(
            (steps.step, steps.count, steps.number(Timestamp::from_millis(NOW - 1))),
            (3_610_000, 1, Some(0))
        );
    }

    #[test]
    fn a_depth_lasts_until_another_is_said() {
        let steps = Steps::new(&ask(60_000, None), Span::Step);
        let depth = |ready| Depth {
            counts: crate::store::Counts { ready, ..Default::default() },
            oldest_ready: None,
        };
        let at = |ms: i64| Timestamp::from_millis(NOW - 60_000 + ms);
        let said = vec![
            (at(-10_000), depth(1)),
            (at(10_000), depth(2)),
            (at(14_000), depth(3)),
            (at(40_000), depth(0)),
        ];
        let ready = |said: &[(Timestamp, Depth)], turns: &[Timestamp]| -> Vec<Option<u64>> {
            let depths = depths_in(&steps, said.iter().copied(), turns.iter().copied());
            depths.iter().map(|depth| depth.map(|(_, depth)| depth.counts.ready)).collect()
        };
        assert_eq!(ready(&said, &[]), [1, 3, 3, 3, 0, 0].map(Some));
        assert_eq!(ready(&said[1..3], &[]), [None, Some(3), Some(3), Some(3), Some(3), Some(3)]);
        // Another server says all that is not 0, and nothing of this queue.
        let turns = [at(0), at(14_000), at(30_000)];
        assert_eq!(ready(&said[1..3], &turns), [None, Some(3), Some(3), Some(0), Some(0), Some(0)]);
        assert_eq!(ready(&[], &turns), [None; 6]);
    }

    #[test]
    fn every_name_is_of_one_figure() {
        for (n, (name, metric)) in METRICS.iter().enumerate() {
            assert_eq!(Metric::named(name), Some(*metric));
            assert!(METRICS[n + 1..].iter().all(|(other, of)| other != name && of != metric), "{name}");
        }
        assert!(Event::ALL.iter().all(|event| Metric::named(event.as_str()) == Some(Metric::Events(*event))));
        assert_eq!(Metric::named("done"), None);
    }
}
