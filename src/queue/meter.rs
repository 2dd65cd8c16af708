//! What happened lately on this server: counts and times over the last minute, of every queue that is in
//! use and of all together. The totals since the start are beside it, in `totals`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::totals::{Counting, Totals};
use crate::job::QueueName;

/// The time that the figures are about.
const WINDOW: Duration = Duration::from_secs(60);
/// The most queues that figures are kept of: a bound on memory, about 8 MB.
const QUEUES_MAX: usize = 200;
/// Times are kept up to a day.
const TIME_MAX_MS: u64 = 86_400_000;

/// Something that happened to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was pushed.
    Pushed,
    /// It was delivered.
    Reserved,
    /// It was done.
    Committed,
    /// It failed.
    RolledBack,
    /// It was put into another queue.
    Moved,
    /// Its reservation ran out, or its worker was lost.
    Lapsed,
    /// It was removed at its `expires_at`.
    Expired,
    /// Its attempts were used up.
    Dead,
}

impl Event {
    /// Every kind of event.
    pub const ALL: [Self; 8] = [
        Self::Pushed,
        Self::Reserved,
        Self::Committed,
        Self::RolledBack,
        Self::Moved,
        Self::Lapsed,
        Self::Expired,
        Self::Dead,
    ];

    /// Returns the word for it in `/stats` and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pushed => "pushed",
            Self::Reserved => "reserved",
            Self::Committed => "committed",
            Self::RolledBack => "rolled_back",
            Self::Moved => "moved",
            Self::Lapsed => "lapsed",
            Self::Expired => "expired",
            Self::Dead => "dead",
        }
    }
}

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

/// What happened to the jobs of a queue, or of all queues, during about the last minute.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flow {
    /// Per second, in the order of [`Event::ALL`].
    pub rates: [f64; 8],
    /// From being due to being delivered.
    pub queue_time: Percentiles,
    /// From being delivered to being done.
    pub run_time: Percentiles,
}

struct Window {
    counts: [u64; 8],
    queue_time: Option<Histogram<u32>>,
    run_time: Option<Histogram<u32>>,
}

impl Window {
    const EMPTY: Self = Self { counts: [0; 8], queue_time: None, run_time: None };
}

/// This minute and the last one.
struct Windows {
    now: Window,
    before: Window,
    since: Instant,
}

impl Windows {
    fn new(now: Instant) -> Self {
        Self { now: Window::EMPTY, before: Window::EMPTY, since: now }
    }

    fn turn(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.since);
        if age >= WINDOW {
            let ended = std::mem::replace(&mut self.now, Window::EMPTY);
            self.before = if age < 2 * WINDOW { ended } else { Window::EMPTY };
            self.since = now;
        }
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        self.turn(now);
        self.now.counts == [0; 8] && self.before.counts == [0; 8]
    }

    /// Returns the last minute: this window and the share of the one before that still lies within it.
    fn flow(&mut self, now: Instant) -> Flow {
        self.turn(now);
        let age = now.saturating_duration_since(self.since).as_secs_f64() / WINDOW.as_secs_f64();
        let share = (1.0 - age).clamp(0.0, 1.0);
        let mut rates = [0.0; 8];
        for (rate, (now, before)) in rates.iter_mut().zip(self.now.counts.iter().zip(&self.before.counts)) {
            *rate = (*now as f64 + *before as f64 * share) / WINDOW.as_secs_f64();
        }
        Flow {
            rates,
            queue_time: percentiles(&self.now.queue_time, &self.before.queue_time),
            run_time: percentiles(&self.now.run_time, &self.before.run_time),
        }
    }
}

fn percentiles(now: &Option<Histogram<u32>>, before: &Option<Histogram<u32>>) -> Percentiles {
    let Some(mut all) = now.clone().or_else(|| before.clone()) else {
        return Percentiles::default();
    };
    if let (Some(_), Some(before)) = (now, before)
        && all.add(before).is_err()
    {
        return Percentiles::default(); // both have the same bounds, so that this cannot happen
    }
    let at = |quantile| all.value_at_quantile(quantile);
    Percentiles { p50: at(0.5), p95: at(0.95), p99: at(0.99) }
}

fn record(histogram: &mut Option<Histogram<u32>>, ms: u64) {
    if histogram.is_none() {
        *histogram = Histogram::new_with_bounds(1, TIME_MAX_MS, 2).ok();
    }
    if let Some(histogram) = histogram {
        histogram.saturating_record(ms);
    }
}

/// See the module's documentation.
pub struct Meter(Mutex<(Windows, HashMap<QueueName, Windows>)>, Totals);

/// What is being noted of many jobs at once: held briefly, never while waiting for anything.
pub struct Notes<'a> {
    now: Instant,
    meter: MutexGuard<'a, (Windows, HashMap<QueueName, Windows>)>,
    totals: Counting<'a>,
}

impl Notes<'_> {
    fn each(&mut self, queue: &QueueName, change: impl Fn(&mut Window)) {
        let now = self.now;
        let (all, queues) = &mut *self.meter;
        change(&mut all.now);
        if let Some(windows) = queues.get_mut(queue) {
            windows.turn(now);
            return change(&mut windows.now);
        }
        if queues.len() >= QUEUES_MAX {
            queues.retain(|_, windows| !windows.is_idle(now));
        }
        if queues.len() < QUEUES_MAX {
            change(&mut queues.entry(queue.clone()).or_insert_with(|| Windows::new(now)).now);
        }
    }

    /// Something happened to a job of this queue.
    pub fn count(&mut self, queue: &QueueName, event: Event) {
        self.totals.count(queue, event);
        self.each(queue, |window| window.counts[event as usize] += 1);
    }

    /// A job of this queue was delivered so many milliseconds after it was due.
    pub fn queue_time(&mut self, queue: &QueueName, ms: u64) {
        self.totals.queue_time(queue, ms);
        self.each(queue, |window| record(&mut window.queue_time, ms));
    }

    /// A job of this queue was done so many milliseconds after it was delivered.
    pub fn run_time(&mut self, queue: &QueueName, ms: u64) {
        self.totals.run_time(queue, ms);
        self.each(queue, |window| record(&mut window.run_time, ms));
    }
}

impl Meter {
    /// Nothing has happened; so many queues have totals of their own.
    pub fn new(own_totals: usize) -> Self {
        Self(Mutex::new((Windows::new(Instant::now()), HashMap::new())), Totals::new(own_totals))
    }

    /// Returns what happened since the start.
    pub fn totals(&self) -> &Totals {
        &self.1
    }

    /// Begins to note what happened.
    pub fn notes(&self) -> Notes<'_> {
        let now = Instant::now();
        let mut meter = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        meter.0.turn(now);
        Notes { now, meter, totals: self.1.begin(now) }
    }

    /// Returns what happened during about the last minute: to the jobs of one queue, or of all.
    pub fn flow(&self, queue: Option<&QueueName>) -> Flow {
        let now = Instant::now();
        let mut guard = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (all, queues) = &mut *guard;
        match queue {
            None => all.flow(now),
            Some(queue) => queues.get_mut(queue).map(|windows| windows.flow(now)).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_count_for_their_queue_and_for_all() {
        let meter = Meter::new(10);
        let (a, b): (QueueName, QueueName) = ("a".parse().unwrap(), "b".parse().unwrap());
        let mut notes = meter.notes();
        for _ in 0..60 {
            notes.count(&a, Event::Pushed);
        }
        notes.count(&b, Event::Dead);
        for ms in 1..=100 {
            notes.run_time(&a, ms);
        }
        drop(notes);
        let rate = |queue, event: Event| meter.flow(queue).rates[event as usize];
        assert_eq!(rate(Some(&a), Event::Pushed), 1.0);
        assert_eq!(rate(Some(&a), Event::Dead), 0.0);
        assert_eq!(rate(None, Event::Pushed), 1.0);
        assert!(rate(None, Event::Dead) > 0.0);
        let times = meter.flow(Some(&a)).run_time;
        assert_eq!((times.p50, times.p99), (50, 99));
        assert_eq!(meter.flow(Some(&b)).run_time, Percentiles::default());
    }

    #[test]
    fn the_last_minute_fades() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        windows.now.counts[0] = 60;
        let rate =
            |windows: &mut Windows, seconds| windows.flow(start + Duration::from_secs(seconds)).rates[0];
        assert_eq!(rate(&mut windows, 59), 1.0);
        assert_eq!(rate(&mut windows, 60), 1.0);
        assert_eq!(rate(&mut windows, 90), 0.5);
        assert_eq!(rate(&mut windows, 300), 0.0);
    }
}
