//! Semaphores: which jobs may be delivered while others hold what they need. Pure, and the same for both stores.
//!
//! A job is pushed `ready`. A claim that finds no room in one of its semaphores blocks it, and it waits for that one;
//! once there is room it is *called*: it is ready again, and may be claimed by any worker of its queue. All of its
//! semaphores are taken at once or none is, so that there are no deadlocks.
//!
//! For a job that has waited for longer than the patience, room is reserved from the jobs behind it in the order of
//! delivery, in whatever queue they are. That order is total, and its first job waits for holders only: so no job
//! starves.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::transition::{Next, delivery};
use super::{JobId, Meta, QueueName, Rules, SemaphoreName, State, Timestamp, rate};
use crate::faults;

/// The largest capacity.
pub const CAPACITY_MAX: u64 = 1_000_000;
/// For how long room is reserved for a job that was called, in milliseconds: there may be no worker to claim it.
pub const CALLED_MS: u64 = 1000;
/// How many of the jobs that wait for a semaphore are considered, the first in the order of delivery.
pub const LINE: usize = 32;
/// The most jobs of one queue that are called at once.
pub const CALLS_MAX: u64 = 8;

/// A job that semaphores have kept from being delivered.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiter {
    /// The job.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// `Blocked`, or `Ready` once it was called.
    pub state: State,
    /// Its priority.
    pub priority: i32,
    /// When it is due.
    pub run_at: Timestamp,
    /// Since when it waits.
    pub waiting_since: Timestamp,
    /// When it was called, if it is ready.
    pub called_at: Option<Timestamp>,
    /// What it needs.
    pub semaphores: Vec<SemaphoreName>,
}

/// Where a job stands in the order of delivery.
#[derive(Debug, Clone, Copy)]
pub struct Rank<'a> {
    priority: i32,
    run_at: Timestamp,
    id: &'a JobId,
}

impl<'a> From<&'a Meta> for Rank<'a> {
    fn from(meta: &'a Meta) -> Self {
        Self { priority: meta.priority, run_at: meta.run_at, id: &meta.id }
    }
}

impl<'a> From<&'a Waiter> for Rank<'a> {
    fn from(waiter: &'a Waiter) -> Self {
        Self { priority: waiter.priority, run_at: waiter.run_at, id: &waiter.id }
    }
}

impl Waiter {
    fn is_before(&self, other: Rank<'_>) -> bool {
        (other.priority, self.run_at, &self.id) < (self.priority, other.run_at, other.id)
    }
}

/// What is known of a semaphore at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Gauge {
    /// How many may hold it; 0 where there is no such semaphore.
    pub capacity: u64,
    /// How many hold it.
    pub held: u64,
    /// The first of the jobs that wait for it, in the order of delivery.
    pub line: Vec<Waiter>,
}

impl Gauge {
    /// Returns how many more may hold it.
    pub fn room(&self) -> u64 {
        self.capacity.saturating_sub(self.held) + u64::from(faults::bug("widen_semaphore"))
    }
}

/// Decides which jobs are delivered.
pub struct Admission<'a> {
    gauges: HashMap<SemaphoreName, Gauge>,
    now: Timestamp,
    rules: &'a Rules,
}

impl<'a> Admission<'a> {
    /// Returns the admission with these semaphores as they are now. Those of `missing`, and those without capacity, do
    /// not exist: a job that waits for one of them gets no room reserved.
    pub fn new(
        mut gauges: HashMap<SemaphoreName, Gauge>,
        mut missing: Vec<SemaphoreName>,
        now: Timestamp,
        rules: &'a Rules,
    ) -> Self {
        missing.extend(gauges.iter().filter(|(_, gauge)| gauge.capacity == 0).map(|(name, _)| name.clone()));
        if !missing.is_empty() {
            for gauge in gauges.values_mut() {
                gauge.line.retain(|waiter| !waiter.semaphores.iter().any(|name| missing.contains(name)));
            }
        }
        Self { gauges, now, rules }
    }

    /// Returns the first of its semaphores that keeps this job from being delivered.
    pub fn stopped_by<'j>(&self, job: &'j Meta) -> Option<&'j SemaphoreName> {
        job.semaphores.iter().find(|name| !self.allows(name, job.into()))
    }

    /// Whether this semaphore alone would let the job pass.
    pub fn allows(&self, name: &SemaphoreName, job: Rank<'_>) -> bool {
        let Some(gauge) = self.gauges.get(name) else { return false };
        let reserved = gauge.line.iter().filter(|waiter| self.reserves(gauge, waiter, job)).count() as u64;
        gauge.room() > reserved
    }

    /// Returns the first of its semaphores whose room is all kept for jobs before this one, and the first of those.
    pub fn kept_from(&self, job: &Meta) -> Option<(SemaphoreName, Waiter)> {
        job.semaphores.iter().find_map(|name| {
            let gauge = self.gauges.get(name).filter(|gauge| gauge.room() > 0)?;
            let kept = gauge.line.iter().filter(|waiter| self.reserves(gauge, waiter, job.into()));
            let kept: Vec<&Waiter> = kept.collect();
            let first = kept.first().filter(|_| gauge.room() <= kept.len() as u64)?;
            Some((name.clone(), (*first).clone()))
        })
    }

    /// Whether room in this semaphore, which both need, is reserved for this waiter from that job.
    fn reserves(&self, gauge: &Gauge, waiter: &Waiter, from: Rank<'_>) -> bool {
        if !waiter.is_before(from) || waiter.run_at > self.now || self.rules.paused(&waiter.queue) {
            return false;
        }
        let patience_ms = self.rules.defaults().semaphore_patience_ms;
        let is_impatient = waiter.waiting_since.plus_ms(patience_ms) <= self.now;
        match waiter.state {
            State::Ready if self.has_missed_call(waiter) => false,
            State::Ready => is_impatient || waiter.priority > from.priority,
            // Without consumers of its queue the reserved capacity would stay unused. That one behind it was not claimed shows nothing: those
            // before that keep the consumers busy.
            _ => {
                let is_missed = |other: &Waiter| {
                    other.queue == waiter.queue
                        && other.is_before(waiter.into())
                        && self.has_missed_call(other)
                };
                is_impatient && !gauge.line.iter().any(is_missed)
            }
        }
    }

    /// Whether the job could have been claimed for as long as room is reserved for one that was called. A call that lies far ahead is of a
    /// clock that was wrong.
    fn has_missed_call(&self, waiter: &Waiter) -> bool {
        let is_called = |at: Timestamp| {
            at.plus_ms(CALLED_MS) > self.now && at <= self.now.plus_ms(rate::CLOCKS_DIFFER_MS)
        };
        waiter.state == State::Ready && waiter.run_at <= self.now && !waiter.called_at.is_some_and(is_called)
    }

    /// Whether a semaphore has room left, which may be reserved.
    pub fn has_room(&self, name: &SemaphoreName) -> bool {
        self.gauges.get(name).is_some_and(|gauge| gauge.room() > 0)
    }

    /// Delivers the job, which takes all that it needs.
    pub fn grant(&mut self, job: &Meta) {
        for name in &job.semaphores {
            if let Some(gauge) = self.gauges.get_mut(name) {
                gauge.held += 1;
                gauge.line.retain(|waiter| waiter.id != job.id);
            }
        }
    }

    /// Returns the job's semaphores that have room left for other jobs.
    pub fn offers<'j>(&self, job: &'j Meta) -> impl Iterator<Item = &'j SemaphoreName> {
        job.semaphores.iter().filter(|name| self.has_room(name))
    }

    /// Returns the queues whose jobs are called for this semaphore, each once, and how many of each are to be considered: first the
    /// queues of the jobs that are first in line, in their order, since room may be reserved for these from all others, and then
    /// those of `by_name`.
    pub fn turns<'q>(
        &'q self,
        name: &'q SemaphoreName,
        by_name: &'q [QueueName],
    ) -> impl Iterator<Item = (&'q QueueName, u64)> {
        let line = self.gauges.get(name).map_or(&[][..], |gauge| &gauge.line);
        let blocked = line.iter().filter(|waiter| waiter.state == State::Blocked);
        let mut seen = HashSet::new();
        let queues =
            blocked.map(|waiter| &waiter.queue).chain(by_name).filter(move |queue| seen.insert(*queue));
        queues.map(|queue| (queue, self.calls(name, queue))).filter(|(_, calls)| *calls > 0)
    }

    /// Returns the job as it is once it is called for this semaphore, if it still waits and would pass. `before`: how many of its queue were
    /// considered in this turn. There is a call for as many as there is room for, with those before it that were called and not claimed yet.
    pub fn called(&self, name: &SemaphoreName, job: &Meta, before: usize) -> Option<Meta> {
        let gauge = self.gauges.get(name)?;
        let called = self.called_of(gauge, &job.queue).filter(|waiter| waiter.is_before(job.into())).count();
        let has_call = ((called + before) as u64) < gauge.room().min(CALLS_MAX);
        let mut ready = job.clone();
        let is_called =
            has_call && self.allows(name, job.into()) && delivery::unblock(&mut ready, self.now).is_ok();
        is_called.then_some(ready)
    }

    /// Returns the jobs of this queue that were called and not claimed yet.
    fn called_of<'g>(&self, gauge: &'g Gauge, queue: &QueueName) -> impl Iterator<Item = &'g Waiter> {
        let is_called = move |waiter: &&Waiter| {
            waiter.state == State::Ready && waiter.queue == *queue && waiter.run_at <= self.now
        };
        gauge.line.iter().filter(is_called)
    }

    /// Returns how many jobs of this queue are to be considered for this semaphore: as many as there is room for, less those that were called
    /// and not claimed yet. These do not count where one of them stands behind a blocked one: its consumers may never come to it.
    fn calls(&self, name: &SemaphoreName, queue: &QueueName) -> u64 {
        let Some(gauge) = self.gauges.get(name) else { return 0 };
        let mut blocked = gauge.line.iter().filter(|waiter| waiter.state == State::Blocked);
        let first = blocked.find(|waiter| waiter.queue == *queue);
        let (mut called, mut is_behind) = (0, false);
        for waiter in self.called_of(gauge, queue) {
            called += 1;
            is_behind |= first.is_some_and(|first| first.is_before(waiter.into()));
        }
        let most = gauge.room().min(CALLS_MAX);
        if is_behind { most } else { most.saturating_sub(called) }
    }
}

/// Returns the semaphores that waiters of these need and that are not among these.
pub fn others(gauges: &HashMap<SemaphoreName, Gauge>) -> BTreeSet<&SemaphoreName> {
    let waiters = gauges.values().flat_map(|gauge| &gauge.line);
    waiters.flat_map(|waiter| &waiter.semaphores).filter(|name| !gauges.contains_key(name)).collect()
}

/// Returns the states in which jobs wait for a semaphore; of one whose jobs do so only once they are due, by when they must be. Ready
/// jobs wait for it only while it is full.
pub fn waiting_states(
    capacity: u64,
    held: u64,
    now: Timestamp,
) -> impl Iterator<Item = (State, Option<Timestamp>)> {
    let ready = (held >= capacity).then_some((State::Ready, Some(now)));
    std::iter::once((State::Blocked, None)).chain(ready)
}

/// Returns the semaphores that other jobs may get now because this job has changed: it holds them no longer, or has
/// another position among the waiters.
pub fn released(before: &Meta, next: &Next) -> Vec<SemaphoreName> {
    let waits = |meta: &Meta| meta.waiting_since.is_some();
    let position = |meta: &Meta| (meta.queue.clone(), meta.state, meta.priority, meta.run_at, waits(meta));
    match next {
        _ if before.semaphores.is_empty() || !before.state.is_unfinished() => Vec::new(),
        Next::Keep => Vec::new(),
        Next::Write { meta, .. } if meta.state == State::Reserved || position(meta) == position(before) => {
            Vec::new()
        }
        Next::Write { .. } | Next::Delete => before.semaphores.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, NewJob, Payload};

    const NOW: i64 = 1_000_000;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn name(text: &str) -> SemaphoreName {
        text.parse().unwrap()
    }

    fn job(id: &str, priority: i32, run_at: i64, needs: &[&str]) -> Meta {
        let semaphores = needs.iter().map(|text| name(text)).collect();
        let spec = JobSpec { priority, semaphores, ..JobSpec::new(Payload::parse("1").unwrap()) };
        NewJob::new(id.parse().unwrap(), "q".parse().unwrap(), spec, at(run_at)).into_job().meta
    }

    fn waiter(job: &Meta, state: State, since: i64, called_at: Option<i64>) -> Waiter {
        Waiter {
            id: job.id.clone(),
            queue: job.queue.clone(),
            state,
            priority: job.priority,
            run_at: job.run_at,
            waiting_since: at(since),
            called_at: called_at.map(at),
            semaphores: job.semaphores.clone(),
        }
    }

    fn admission<'r>(rules: &'r Rules, gauges: &[(&str, u64, u64, &[Waiter])]) -> Admission<'r> {
        let gauge = |(text, capacity, held, line): &(&str, u64, u64, &[Waiter])| {
            (name(text), Gauge { capacity: *capacity, held: *held, line: line.to_vec() })
        };
        Admission::new(gauges.iter().map(gauge).collect(), vec![name("gone")], at(NOW), rules)
    }

    #[test]
    fn all_semaphores_are_taken_or_none() {
        let rules = Rules::default();
        let mut admission = admission(&rules, &[("a", 2, 1, &[]), ("b", 1, 1, &[])]);
        let both = job("1", 0, 0, &["a", "b"]);
        assert_eq!(admission.stopped_by(&both), Some(&name("b")));
        assert_eq!(admission.offers(&both).collect::<Vec<_>>(), [&name("a")]);
        let one = job("2", 0, 0, &["a"]);
        assert_eq!(admission.stopped_by(&one), None);
        admission.grant(&one);
        assert_eq!(admission.stopped_by(&job("3", 0, 0, &["a"])), Some(&name("a")));
        assert_eq!(admission.stopped_by(&job("4", 0, 0, &["unknown"])), Some(&name("unknown")));
        assert_eq!(admission.stopped_by(&job("5", 0, 0, &[])), None);
    }

    #[test]
    fn ready_jobs_that_are_due_wait_for_a_full_semaphore() {
        let states = |capacity, held| waiting_states(capacity, held, at(NOW)).collect::<Vec<_>>();
        let blocked: (State, Option<Timestamp>) = (State::Blocked, None);
        assert_eq!(states(2, 1), [blocked]);
        for (capacity, held) in [(2, 2), (2, 3), (0, 0)] {
            assert_eq!(states(capacity, held), [blocked, (State::Ready, Some(at(NOW)))]);
        }
    }

    #[test]
    fn no_later_job_overtakes_one_that_has_lost_patience() {
        let rules = Rules::default();
        let first = job("5", 0, 50, &["a", "b"]);
        let long_ago = NOW - 10_000;
        let patient = waiter(&first, State::Blocked, long_ago + 1, None);
        let impatient = waiter(&first, State::Blocked, long_ago, None);
        let stopped = |waiter: &Waiter, other: &Meta| {
            let line = [waiter.clone()];
            admission(&rules, &[("a", 1, 0, &line)]).stopped_by(other).is_some()
        };
        let behind = [job("6", 0, 50, &["a"]), job("1", 0, 51, &["a"]), job("1", -1, 0, &["a"])];
        let before = [job("4", 0, 50, &["a"]), job("9", 0, 49, &["a"]), job("9", 1, 90, &["a"])];
        for other in &behind {
            assert!(stopped(&impatient, other) && !stopped(&patient, other));
        }
        let line = [impatient.clone()];
        let kept = admission(&rules, &[("a", 1, 0, &line)]).kept_from(&behind[0]);
        assert_eq!(kept, Some((name("a"), impatient.clone())));
        for (capacity, held, line) in
            [(1, 1, &line[..]), (2, 0, &line), (1, 0, std::slice::from_ref(&patient))]
        {
            assert_eq!(admission(&rules, &[("a", capacity, held, line)]).kept_from(&behind[0]), None);
        }
        assert!(!before.iter().any(|other| stopped(&impatient, other)));
        let line = [impatient.clone()];
        let itself = admission(&rules, &[("a", 1, 0, &line), ("b", 1, 0, &line)]);
        assert_eq!(itself.stopped_by(&first), None);
        let later = Waiter { run_at: at(NOW + 1), ..impatient.clone() };
        assert!(!stopped(&later, &job("9", -1, NOW + 2, &["a"])), "it could not be delivered itself");
        let stuck = Waiter { semaphores: vec![name("a"), name("gone")], ..impatient };
        assert!(!stopped(&stuck, &behind[0]), "it waits for a semaphore that does not exist");
    }

    #[test]
    fn one_place_is_reserved_for_each() {
        let rules = Rules::default();
        let line = [1, 2].map(|n| {
            let first = job(&n.to_string(), 0, 0, &["a", "b"]);
            waiter(&first, State::Blocked, NOW - 20_000, None)
        });
        let stopped = |held, line: &[Waiter]| {
            let admission = admission(&rules, &[("a", 3, held, line)]);
            admission.stopped_by(&job("9", 0, 0, &["a"])).is_some()
        };
        assert!(!stopped(0, &line) && stopped(1, &line) && !stopped(1, &line[..1]) && stopped(2, &line[..1]));
    }

    #[test]
    fn room_is_reserved_for_a_moment_for_a_called_job() {
        let rules = Rules::default();
        let first = job("5", 3, 50, &["a"]);
        let stopped = |waiter: Waiter, other: &Meta| {
            admission(&rules, &[("a", 1, 0, &[waiter])]).stopped_by(other).is_some()
        };
        let (lower, equal) = (job("6", 2, 50, &["a"]), job("6", 3, 50, &["a"]));
        let called = waiter(&first, State::Ready, NOW - 5, Some(NOW - 900));
        assert!(stopped(called.clone(), &lower) && !stopped(called.clone(), &equal));
        let long = waiter(&first, State::Ready, NOW - 10_000, Some(NOW - 900));
        assert!(stopped(long, &equal));
        let missed = waiter(&first, State::Ready, NOW - 10_000, Some(NOW - 1000));
        assert!(!stopped(missed.clone(), &lower));
        let next = waiter(&job("6", 3, 50, &["a"]), State::Blocked, NOW - 10_000, None);
        let line = [missed, next.clone()];
        assert!(stopped(next.clone(), &lower));
        let is_stopped =
            |line: &[Waiter]| admission(&rules, &[("a", 1, 0, line)]).stopped_by(&lower).is_some();
        assert!(!is_stopped(&line), "nobody comes for its queue");
        let elsewhere = Waiter { queue: "r".parse().unwrap(), ..next };
        assert!(is_stopped(&[line[0].clone(), elsewhere]), "its queue is another");
        let line = [called];
        let admission = admission(&rules, &[("a", 3, 1, &line)]);
        assert_eq!(admission.calls(&name("a"), &"q".parse().unwrap()), 1, "one was called already");
        assert_eq!(admission.calls(&name("a"), &"r".parse().unwrap()), 2);
    }

    #[test]
    fn queues_in_line_have_their_turn_before_others_and_each_once() {
        let rules = Rules::default();
        let in_queue = |waiter: Waiter, queue: &str| Waiter { queue: queue.parse().unwrap(), ..waiter };
        let blocked = |id: &str| waiter(&job(id, 0, 0, &["a"]), State::Blocked, NOW, None);
        let called = |id: &str| waiter(&job(id, 0, 0, &["a"]), State::Ready, NOW, Some(NOW));
        let line = [
            in_queue(called("1"), "called"),
            in_queue(blocked("2"), "z"),
            in_queue(blocked("3"), "y"),
            in_queue(blocked("4"), "z"),
            in_queue(called("5"), "y"),
        ];
        let by_name: Vec<QueueName> = ["called", "x", "y"].map(|name| name.parse().unwrap()).into();
        let turns = |capacity, line: &[Waiter]| -> Vec<(String, u64)> {
            let admission = admission(&rules, &[("a", capacity, 0, line)]);
            let a = name("a");
            let turns = admission.turns(&a, &by_name);
            turns.map(|(queue, calls)| (queue.to_string(), calls)).collect()
        };
        let own =
            |turns: &[(&str, u64)]| turns.iter().map(|(q, n)| ((*q).to_owned(), *n)).collect::<Vec<_>>();
        assert_eq!(turns(2, &line), own(&[("z", 2), ("y", 2), ("called", 1), ("x", 2)]));
        assert_eq!(
            turns(1, &line),
            own(&[("z", 1), ("y", 1), ("x", 1)]),
            "those of which enough were called have none, unless they stand behind others"
        );
        assert_eq!(turns(0, &line), []);
        assert_eq!(turns(100, &[]), own(&[("called", CALLS_MAX), ("x", CALLS_MAX), ("y", CALLS_MAX)]));
    }

    #[test]
    fn a_job_is_called_that_waits_and_would_pass() {
        let rules = Rules::default();
        let blocked = Meta { state: State::Blocked, waits_for: Some(name("a")), ..job("1", 0, 0, &["a"]) };
        let free = admission(&rules, &[("a", 1, 0, &[])]);
        let ready = free.called(&name("a"), &blocked, 0).unwrap();
        assert_eq!((ready.state, ready.waits_for), (State::Ready, None));
        assert_eq!(free.called(&name("a"), &blocked, 1), None, "there is room for one");
        assert_eq!(free.called(&name("a"), &Meta { state: State::Done, ..blocked.clone() }, 0), None);
        let full = admission(&rules, &[("a", 1, 1, &[])]);
        assert_eq!(full.called(&name("a"), &blocked, 0), None);
    }

    #[test]
    fn a_job_that_was_called_is_in_the_way_of_none_before_it() {
        let (rules, long_ago) = (Rules::default(), NOW - 10_000);
        let needs = ["a"];
        let (first, second, last) = (job("1", 5, 0, &needs), job("2", 4, 0, &needs), job("3", 0, 0, &needs));
        let missed = waiter(&last, State::Ready, long_ago, Some(NOW - 5000));
        let line = [
            waiter(&first, State::Blocked, long_ago, None),
            waiter(&second, State::Blocked, long_ago, None),
            missed.clone(),
        ];
        let admission = admission(&rules, &[("a", 1, 0, &line)]);
        assert_eq!(admission.calls(&name("a"), &first.queue), 1);
        let waiting = |job: &Meta| Meta { state: State::Blocked, waits_for: Some(name("a")), ..job.clone() };
        assert!(admission.called(&name("a"), &waiting(&first), 0).is_some());
        let other = Meta { queue: "r".parse().unwrap(), ..job("9", 5, 1, &needs) };
        assert!(admission.stopped_by(&other).is_some(), "its room is kept all the same");
        let behind = waiting(&job("4", 0, 0, &needs));
        assert_eq!(admission.called(&name("a"), &behind, 0), None, "one before it was called");
        // Called while the clock was an hour ahead.
        let ahead = Waiter { called_at: Some(at(NOW + 3_600_000)), ..missed };
        let of_ahead = [ahead];
        let lower = job("5", -1, 0, &needs);
        let admission = super::tests::admission(&rules, &[("a", 1, 0, &of_ahead)]);
        assert!(admission.stopped_by(&lower).is_none());
    }
}
