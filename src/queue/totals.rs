//! What happened on this server since its start, for Prometheus: of all queues together, of some by name, and of the others
//! together.
//!
//! A counter must only grow, or begin anew at 0. So each event counts once, where it belongs when it happens: for its queue, if
//! that has a place, else for the others. A queue that loses its place takes its counters with it: they end, and are not added
//! to those of the others, which would look like a burst. One that gets a place begins at 0, and what it did among the others
//! stays there. Places go to the first queues. While all are taken, once a minute, queues without one take those of queues
//! that have done less than half as much lately; and who has done nothing for an hour makes room.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::meter::Event;
use crate::job::QueueName;

/// For how long a queue without events keeps its place.
pub const IDLE_MAX: Duration = Duration::from_secs(3600);
/// How often places are given anew.
const PERIOD: Duration = Duration::from_secs(60);
/// Of how many queues without a place it is noted how busy they are.
const CANDIDATES_MAX: usize = 10_000;

/// The upper bounds of the buckets of times, in milliseconds.
const BOUNDS_MS: [u64; 12] =
    [5, 25, 100, 500, 1000, 5000, 15_000, 60_000, 300_000, 1_800_000, 7_200_000, 43_200_000];
/// Which of these the histograms of single queues have.
const COARSE: [usize; 7] = [0, 2, 4, 6, 7, 9, 11];

/// Times, counted by size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// How many lie within each bound and above the one before; the last one is without a bound.
    buckets: [u64; BOUNDS_MS.len() + 1],
    sum_ms: u64,
}

impl Times {
    fn record(&mut self, ms: u64) {
        let within = BOUNDS_MS.partition_point(|bound| *bound < ms);
        if let Some(bucket) = self.buckets.get_mut(within) {
            *bucket += 1;
        }
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    /// Returns how many times there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns their sum, in seconds.
    pub fn sum_s(&self) -> f64 {
        self.sum_ms as f64 / 1e3
    }

    /// Returns bounds in seconds, and how many times lie within each: all of them, or for a single queue, some.
    pub fn within(&self, is_of_queue: bool) -> impl Iterator<Item = (f64, u64)> {
        let sums = self.buckets.iter().scan(0, |sum, count| {
            *sum += count;
            Some(*sum)
        });
        let all = BOUNDS_MS.into_iter().zip(sums).enumerate();
        let wanted = all.filter(move |(at, _)| !is_of_queue || COARSE.contains(at));
        wanted.map(|(_, (bound, count))| (bound as f64 / 1e3, count)).collect::<Vec<_>>().into_iter()
    }
}

/// What happened to the jobs of a queue, or of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Total {
    /// How many events there were, in the order of [`Event::ALL`].
    pub events: [u64; Event::ALL.len()],
    /// From being due to being delivered.
    pub queue_time: Times,
    /// From being delivered to being done.
    pub run_time: Times,
}

/// A queue with a place.
struct Row {
    total: Total,
    /// How many events there were since places were last given, and lately before.
    recent: u64,
    lately: u64,
    last: Instant,
}

/// All that is counted.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Of all queues.
    pub all: Total,
    /// Of those with a place, by name.
    pub queues: Vec<(QueueName, Total)>,
    /// Of those without one.
    pub others: Total,
}

struct Counted {
    places: usize,
    all: Total,
    others: Total,
    queues: HashMap<QueueName, Row>,
    /// Those without a place: how many events there were since places were last given, and lately before.
    candidates: HashMap<QueueName, (u64, u64)>,
    given: Instant,
}

/// See the module's documentation.
pub struct Totals(Mutex<Counted>);

impl Totals {
    /// Nothing has happened; so many queues have a place.
    pub fn new(places: usize) -> Self {
        let (all, others) = (Total::default(), Total::default());
        let (queues, candidates) = (HashMap::new(), HashMap::new());
        let given = Instant::now();
        Self(Mutex::new(Counted { places, all, others, queues, candidates, given }))
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Begins to count.
    pub fn begin(&self, now: Instant) -> Counting<'_> {
        Counting { now, counted: self.counted() }
    }

    /// Returns all that is counted.
    pub fn snapshot(&self) -> Snapshot {
        let mut counted = self.counted();
        counted.give_places(Instant::now());
        let queues = counted.queues.iter().map(|(queue, row)| (queue.clone(), row.total)).collect();
        let mut snapshot = Snapshot { all: counted.all, queues, others: counted.others };
        drop(counted);
        snapshot.queues.sort_by(|(one, _), (other, _)| one.cmp(other));
        snapshot
    }
}

/// The right to count what happened at one moment.
pub struct Counting<'a> {
    now: Instant,
    counted: MutexGuard<'a, Counted>,
}

impl Counting<'_> {
    /// Something happened to a job of this queue.
    pub fn count(&mut self, queue: &QueueName, event: Event) {
        let (now, at) = (self.now, event as usize);
        self.counted.give_places(now);
        self.counted.place(queue, now);
        let counted = &mut *self.counted;
        counted.all.events[at] += 1;
        match counted.queues.get_mut(queue) {
            Some(row) => {
                row.total.events[at] += 1;
                row.recent += 1;
                row.last = now;
            }
            None => {
                counted.others.events[at] += 1;
                counted.note_candidate(queue);
            }
        }
    }

    /// A job of this queue was delivered so many milliseconds after it was due.
    pub fn queue_time(&mut self, queue: &QueueName, ms: u64) {
        self.both(queue, |total| total.queue_time.record(ms));
    }

    /// A job of this queue was done so many milliseconds after it was delivered.
    pub fn run_time(&mut self, queue: &QueueName, ms: u64) {
        self.both(queue, |total| total.run_time.record(ms));
    }

    fn both(&mut self, queue: &QueueName, change: impl Fn(&mut Total)) {
        self.counted.place(queue, self.now);
        let counted = &mut *self.counted;
        change(&mut counted.all);
        change(counted.queues.get_mut(queue).map_or(&mut counted.others, |row| &mut row.total));
    }
}

impl Counted {
    /// Gives a queue a place where one is free.
    fn place(&mut self, queue: &QueueName, now: Instant) {
        if self.queues.len() < self.places && !self.queues.contains_key(queue) {
            let row = Row { total: Total::default(), recent: 0, lately: 0, last: now };
            self.queues.insert(queue.clone(), row);
            self.candidates.remove(queue);
        }
    }

    fn note_candidate(&mut self, queue: &QueueName) {
        if let Some((recent, _)) = self.candidates.get_mut(queue) {
            *recent += 1;
        } else if self.places > 0 && self.candidates.len() < CANDIDATES_MAX {
            self.candidates.insert(queue.clone(), (1, 0));
        }
    }

    /// Gives the places anew, once a minute.
    fn give_places(&mut self, now: Instant) {
        if now.saturating_duration_since(self.given) < PERIOD {
            return;
        }
        self.given = now;
        self.queues.retain(|_, row| now.saturating_duration_since(row.last) < IDLE_MAX);
        for row in self.queues.values_mut() {
            row.lately = row.lately / 2 + std::mem::take(&mut row.recent);
        }
        self.candidates.retain(|_, (recent, lately)| {
            *lately = *lately / 2 + std::mem::take(recent);
            *lately > 0
        });
        let mut coming: Vec<(u64, QueueName)> =
            self.candidates.iter().map(|(queue, (_, lately))| (*lately, queue.clone())).collect();
        coming.sort_unstable_by(|one, other| other.cmp(one));
        let mut going: Vec<(u64, QueueName)> =
            self.queues.iter().map(|(queue, row)| (row.lately, queue.clone())).collect();
        going.sort_unstable();
        let mut going = going.into_iter();
        for (lately, queue) in coming {
            if self.queues.len() >= self.places {
                let least = going.next().filter(|(least, _)| least.saturating_mul(2) < lately);
                let Some((_, least)) = least else { return };
                self.queues.remove(&least);
            }
            self.candidates.remove(&queue);
            self.queues.insert(queue, Row { total: Total::default(), recent: 0, lately, last: now });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    fn push(totals: &Totals, queue: &str, count: u64, now: Instant) {
        let mut counting = totals.begin(now);
        for _ in 0..count {
            counting.count(&name(queue), Event::Pushed);
        }
    }

    fn pushed(snapshot: &Snapshot, queue: &str) -> Option<u64> {
        let found = snapshot.queues.iter().find(|(known, _)| known.as_str() == queue);
        found.map(|(_, total)| total.events[Event::Pushed as usize])
    }

    /// Nothing is counted twice or left out, wherever it counts.
    fn others(snapshot: &Snapshot) -> u64 {
        snapshot.others.events[Event::Pushed as usize]
    }

    #[test]
    fn a_busy_queue_takes_the_place_of_an_idle_one_and_no_counter_jumps() {
        let (totals, start) = (Totals::new(2), Instant::now());
        let minute = |n: u32| start + n * PERIOD;
        push(&totals, "a", 10, start);
        push(&totals, "b", 100, start);
        push(&totals, "c", 50, start); // no place is left
        let read = totals.snapshot();
        assert_eq!((pushed(&read, "a"), pushed(&read, "b"), pushed(&read, "c")), (Some(10), Some(100), None));
        assert_eq!(others(&read), 50);
        push(&totals, "c", 1, minute(1)); // places are given: c did more than twice as much as a
        let read = totals.snapshot();
        assert_eq!((pushed(&read, "a"), pushed(&read, "c")), (None, Some(1)), "c begins anew");
        assert_eq!(others(&read), 50, "the others neither lose c's nor get a's");
        push(&totals, "a", 60, minute(2));
        assert_eq!(others(&totals.snapshot()), 110);
        push(&totals, "c", 40, minute(2));
        push(&totals, "b", 50, minute(2));
        push(&totals, "a", 1, minute(3));
        assert_eq!(others(&totals.snapshot()), 111, "a did not do twice as much as b or c");
        assert_eq!(totals.snapshot().all.events[Event::Pushed as usize], 10 + 100 + 51 + 61 + 40 + 50);
    }

    #[test]
    fn an_idle_queue_makes_room_after_an_hour() {
        let (totals, start) = (Totals::new(1), Instant::now());
        push(&totals, "a", 1000, start);
        push(&totals, "b", 1, start + IDLE_MAX - PERIOD);
        assert_eq!(pushed(&totals.snapshot(), "b"), None);
        push(&totals, "b", 1, start + IDLE_MAX + PERIOD);
        assert_eq!(pushed(&totals.snapshot(), "b"), Some(1));
    }

    #[test]
    fn without_places_all_are_others() {
        let (totals, start) = (Totals::new(0), Instant::now());
        push(&totals, "a", 3, start);
        push(&totals, "a", 3, start + PERIOD);
        assert_eq!((totals.snapshot().queues.len(), others(&totals.snapshot())), (0, 6));
    }

    #[test]
    fn times_are_counted_within_bounds() {
        let totals = Totals::new(1);
        let mut counting = totals.begin(Instant::now());
        counting.count(&name("a"), Event::Reserved);
        for ms in [0, 5, 6, 100, 43_200_000, 43_200_001] {
            counting.queue_time(&name("a"), ms);
        }
        drop(counting);
        let read = totals.snapshot();
        let times = &read.queues[0].1.queue_time;
        assert_eq!((times, times.count()), (&read.all.queue_time, 6));
        let all: Vec<u64> = times.within(false).map(|(_, count)| count).collect();
        assert_eq!(all, [2, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5]);
        let coarse: Vec<(f64, u64)> = times.within(true).collect();
        assert_eq!(coarse[..2], [(0.005, 2), (0.1, 4)]);
        assert_eq!((coarse.len(), times.sum_s()), (COARSE.len(), 86_400.112));
    }
}
