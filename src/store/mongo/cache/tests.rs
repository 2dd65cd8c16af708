//! What is remembered of a head, and when it is forgotten.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::job::{Job, JobSpec, NewJob, Payload, QueueName, Timestamp};
use crate::store::mongo::cache::ahead::{AHEAD_BYTES, AheadCache, KEPT_FOR};
use crate::store::mongo::cache::head::{AGE_MAX, Begun, HeadCache, Reading, Rest, Window};
use crate::store::mongo::cache::position::Position;
use crate::store::mongo::clock::Moment;

const MIB: usize = 1 << 20;

/// A cache, and a queue of it.
struct Bench {
    heads: HeadCache,
    queue: QueueName,
    start: Instant,
}

fn at(priority: i32, run_at: i64) -> Position {
    Position { priority, run_at: Timestamp::from_millis(run_at) }
}

fn job(priority: i32, run_at: i64, payload_bytes: usize) -> Job {
    let payload = Payload::parse(&format!("\"{}\"", "x".repeat(payload_bytes))).unwrap();
    let mut spec = JobSpec::new(payload);
    spec.priority = priority;
    let run_at = Timestamp::from_millis(run_at);
    let id = format!("J{}", run_at.millis()).parse().unwrap();
    NewJob::new(id, "q".parse().unwrap(), spec, run_at).into_job()
}

fn jobs(run_at: Range<i64>) -> Vec<Job> {
    run_at.map(|run_at| job(0, run_at, 1)).collect()
}

fn times(jobs: &[Job]) -> Vec<i64> {
    jobs.iter().map(|job| job.meta.run_at.millis()).collect()
}

impl Bench {
    fn new() -> Self {
        Self { heads: HeadCache::default(), queue: "q".parse().unwrap(), start: Instant::now() }
    }

    /// So much after the start, when the store's clock showed 1000 to 1002.
    fn moment(&self, ms: i64) -> Moment {
        let shown = |base: i64| Timestamp::from_millis(base + ms);
        let instant = self.start + Duration::from_millis(ms.try_into().unwrap());
        Moment { instant, at_least: shown(1000), at_most: shown(1002) }
    }

    fn begin(&self, wanted: usize, ms: i64) -> Begun {
        self.heads.begin(&self.queue, wanted, true, self.moment(ms))
    }

    fn read(&self, wanted: usize, ms: i64) -> Reading {
        match self.begin(wanted, ms) {
            Begun::Read(reading) => reading,
            Begun::Kept(jobs, _) => panic!("{:?} were kept", times(&jobs)),
        }
    }

    fn kept(&self, wanted: usize, ms: i64) -> Option<(Vec<Job>, Rest)> {
        match self.begin(wanted, ms) {
            Begun::Read(_) => None,
            Begun::Kept(jobs, rest) => Some((jobs, rest)),
        }
    }

    fn lower_bound(&self, ms: i64) -> Option<Position> {
        let mut reading = self.read(1, ms);
        self.heads.set_upcoming(&self.queue, &mut reading, None);
        reading.lower_bound
    }

    fn set(&self, reading: &Reading, first: Position, more: usize) {
        self.heads.set(&self.queue, reading, first, 100, more);
    }

    fn came(&self, ms: i64, position: Position) {
        self.heads.note_ready(Some(self.moment(ms)), [(&self.queue, position)]);
    }

    /// A queue that is busy: it was read at the front and once more. Returns the second reading, at 10 ms.
    fn busy(&self, wanted: usize) -> Reading {
        let first = self.read(wanted, 0);
        assert_eq!((first.lower_bound, first.limit, first.unknown), (None, wanted, None));
        self.set(&first, at(0, 100), 0);
        let mut second = self.read(wanted, 10);
        self.heads.set_upcoming(&self.queue, &mut second, None);
        assert_eq!(second.lower_bound, Some(at(0, 100)));
        second
    }

    /// The same, where the second read has found these jobs behind those that were asked for.
    fn keeping(next: Vec<Job>) -> Self {
        let bench = Self::new();
        let reading = bench.busy(1);
        bench.set(&reading, at(0, 100), next.len());
        bench.keep(reading.rest(next));
        bench
    }

    fn keep(&self, rest: Rest) {
        self.heads.keep(&self.queue, rest);
    }

    /// How many jobs are kept.
    fn count(&self) -> usize {
        self.heads.kept(&self.queue)
    }
}

#[test]
fn a_read_begins_where_the_head_was_or_where_something_came_before_it() {
    let bench = Bench::new();
    bench.set(&bench.read(1, 0), at(0, 100), 0);
    assert_eq!(bench.lower_bound(1), Some(at(0, 100)));
    bench.came(2, at(0, 200));
    bench.came(2, at(-1, 50));
    bench.heads.note_ready(Some(bench.moment(2)), [(&"other".parse().unwrap(), at(9, 0))]);
    assert_eq!(bench.lower_bound(3), Some(at(0, 100)), "what comes behind the head changes nothing");
    bench.came(4, at(0, 90));
    assert_eq!(bench.lower_bound(5), Some(at(0, 90)));
    bench.came(6, at(1, 500));
    assert_eq!(bench.lower_bound(7), Some(at(1, 500)), "a higher priority comes first");
}

#[test]
fn what_comes_during_a_read_counts_behind_it() {
    let bench = Bench::new();
    let reading = bench.read(1, 0);
    bench.came(1, at(0, 70));
    bench.set(&reading, at(0, 100), 0);
    assert_eq!(bench.lower_bound(2), Some(at(0, 70)));
}

#[test]
fn of_two_reads_at_once_the_last_one_is_remembered() {
    let bench = Bench::new();
    let (first, second) = (bench.read(1, 0), bench.read(1, 1));
    bench.came(2, at(0, 70));
    bench.set(&second, at(0, 100), 0);
    bench.set(&first, at(0, 100), 0);
    assert_eq!(bench.lower_bound(3), Some(at(0, 70)));
    bench.set(&first, at(0, 100), 0);
    bench.keep(first.rest(jobs(101..104)));
    assert_eq!(bench.count(), 0);
}

#[test]
fn the_position_is_forgotten_in_time() {
    let bench = Bench::new();
    let age = i64::try_from(AGE_MAX.as_millis()).unwrap();
    bench.set(&bench.read(1, 0), at(0, 100), 0);
    assert!(bench.lower_bound(age / 2).is_some());
    bench.set(&bench.read(1, age / 2), at(0, 110), 0);
    assert_eq!(bench.lower_bound(age), None, "however often it was read in between");
    bench.set(&bench.read(1, age), at(0, 120), 0);
    assert!(bench.lower_bound(age + age / 2).is_some());
}

#[test]
fn a_higher_priority_that_comes_due_ends_the_position() {
    let bench = Bench::new();
    bench.set(&bench.read(1, 0), at(0, 100), 0);
    let mut reading = bench.read(1, 10);
    let window =
        Window { above: 0, after: Timestamp::from_millis(1000), until: Timestamp::from_millis(1803) };
    assert_eq!(reading.unknown, Some(window));
    bench.heads.set_upcoming(&bench.queue, &mut reading, Some(Timestamp::from_millis(1200)));
    assert_eq!(reading.lower_bound, Some(at(0, 100)));
    assert_eq!(bench.lower_bound(190), Some(at(0, 100)));
    assert_eq!(bench.lower_bound(198), None, "it may be due");
    // One that this server stores is known.
    bench.set(&bench.read(1, 198), at(0, 100), 0);
    assert_eq!(bench.lower_bound(200), Some(at(0, 100)));
    bench.came(201, at(0, 1300));
    bench.came(201, at(1, 1400));
    assert_eq!(bench.lower_bound(390), Some(at(0, 100)));
    assert_eq!(bench.lower_bound(398), None);
    // Also where it is stored while the store is asked.
    bench.set(&bench.read(1, 398), at(0, 100), 0);
    let mut reading = bench.read(1, 399);
    bench.came(400, at(1, 1500));
    bench.heads.set_upcoming(&bench.queue, &mut reading, None);
    assert_eq!(bench.lower_bound(490), Some(at(0, 100)));
    assert_eq!(bench.lower_bound(498), None);
    // One that may be due already is not passed over.
    bench.set(&bench.read(1, 498), at(0, 100), 0);
    let mut reading = bench.read(1, 499);
    bench.heads.set_upcoming(&bench.queue, &mut reading, Some(Timestamp::from_millis(1501)));
    assert_eq!(reading.lower_bound, None);
}

#[test]
fn what_was_read_ahead_is_used_in_order_and_once() {
    let bench = Bench::keeping(jobs(101..105));
    let (first, rest) = bench.kept(2, 20).unwrap();
    assert_eq!((times(&first), bench.count()), (vec![101, 102], 0), "another claim at once finds none");
    bench.keep(rest);
    let (second, rest) = bench.kept(1, 21).unwrap();
    assert_eq!(times(&second), [103]);
    bench.keep(rest);
    // Too few are as good as none, and are read again.
    let reading = bench.read(2, 22);
    assert_eq!((reading.lower_bound, bench.count()), (Some(at(0, 103)), 0));
    // What came during a claim is known to the one that began last.
    let bench = Bench::keeping(jobs(101..105));
    let (_, rest) = bench.kept(1, 20).unwrap();
    bench.read(1, 21);
    bench.keep(rest);
    assert_eq!(bench.count(), 0);
}

#[test]
fn what_was_read_ahead_is_forgotten_in_time() {
    let age = i64::try_from(KEPT_FOR.as_millis()).unwrap();
    for (ms, is_kept) in [(9 + age, true), (10 + age, false)] {
        let bench = Bench::keeping(jobs(101..104));
        assert_eq!(bench.kept(1, ms).is_some(), is_kept, "read at 10 ms, asked for at {ms}");
    }
    // Using a part makes the rest no younger.
    let bench = Bench::keeping(jobs(101..104));
    let (_, rest) = bench.kept(1, 9 + age).unwrap();
    bench.keep(rest);
    assert!(bench.kept(1, 10 + age).is_none());
    // What may be expired is the store's to judge.
    for (expires_at, is_kept) in [(1023, true), (1022, false)] {
        let mut next = jobs(101..104);
        next[0].meta.expires_at = Some(Timestamp::from_millis(expires_at));
        let bench = Bench::keeping(next);
        assert_eq!(bench.kept(1, 20).is_some(), is_kept, "expires at {expires_at}, asked for until 1022");
    }
}

#[test]
fn beside_another_server_nothing_is_read_ahead() {
    let bench = Bench::keeping(jobs(101..104));
    let Begun::Read(reading) = bench.heads.begin(&bench.queue, 1, false, bench.moment(20)) else {
        panic!("it was used");
    };
    assert_eq!((reading.limit, bench.count()), (1, 0));
}

#[test]
fn what_comes_drops_what_is_not_before_it() {
    let cases = [(at(0, 104), 3), (at(0, 103), 2), (at(0, 101), 0), (at(1, 900), 0), (at(-1, 0), 3)];
    for (came, left) in cases {
        let before = Bench::keeping(jobs(101..104));
        before.came(20, came);
        // While the read is under way, and while a claim of what was read ahead is.
        let during = Bench::new();
        let reading = during.busy(1);
        during.came(20, came);
        during.keep(reading.rest(jobs(101..104)));
        let again = Bench::keeping(jobs(100..104));
        let (_, rest) = again.kept(1, 20).unwrap();
        again.came(20, came);
        again.keep(rest);
        for bench in [before, during, again] {
            assert_eq!(bench.count(), left, "{came:?} came");
        }
    }
}

#[test]
fn what_comes_due_before_it_ends_what_was_read_ahead() {
    for (came, is_kept) in [(at(1, 1050), false), (at(1, 1090), true), (at(0, 1050), true)] {
        let bench = Bench::keeping(jobs(101..104));
        bench.came(20, came);
        assert_eq!(bench.kept(3, 60).is_some(), is_kept, "{came:?} came");
    }
    let bench = Bench::new();
    bench.set(&bench.read(1, 0), at(0, 100), 0);
    let mut reading = bench.read(1, 10);
    bench.heads.set_upcoming(&bench.queue, &mut reading, Some(Timestamp::from_millis(1050)));
    bench.keep(reading.rest(jobs(101..104)));
    assert!(bench.kept(1, 60).is_none());
}

#[test]
fn only_plain_jobs_are_kept_before_which_all_is_known() {
    let mut next = jobs(101..104);
    next[1].meta.semaphores = vec!["s".parse().unwrap()];
    assert_eq!(Bench::keeping(next).count(), 1);
    // The store was asked for what comes due with a priority above 0.
    let next = vec![job(2, 101, 1), job(0, 102, 1), job(-1, 103, 1)];
    assert_eq!(Bench::keeping(next).count(), 2);
    let bench = Bench::new();
    let first = bench.read(1, 0);
    bench.set(&first, at(0, 100), 3);
    bench.keep(first.rest(jobs(101..104)));
    assert_eq!(bench.count(), 0, "it was not asked at all");
}

#[test]
fn bytes_are_bounded() {
    let large = |count: i64| (101..=100 + count).map(|run_at| job(0, run_at, MIB / 4)).collect::<Vec<_>>();
    assert_eq!(Bench::keeping(large(7)).count(), 3);
    let (mut ahead, start) = (AheadCache::default(), Instant::now());
    let queue = |n: usize| format!("q{n}").parse::<QueueName>().unwrap();
    (0..100).for_each(|n| ahead.put(&queue(n), large(3), start));
    let kept = (0..100).filter(|n| ahead.count(&queue(*n)) > 0).count();
    assert_eq!(kept, 21, "three quarters of a MiB each");
    ahead.put(&queue(1), large(3), start);
    ahead.put(&queue(1000), large(3), start + KEPT_FOR);
    assert_eq!((ahead.count(&queue(1)), ahead.count(&queue(1000))), (0, 3), "what is old makes room");
}

#[test]
fn reading_ahead_is_for_queues_where_it_pays() {
    for (wanted, limit) in [(1, 4), (20, 80), (40, 120), (64, 128), (65, 65), (1000, 1000)] {
        assert_eq!(Bench::new().busy(wanted).limit, limit);
    }
    let bench = Bench::new();
    let reading = bench.busy(1);
    bench.heads.set(&bench.queue, &reading, at(0, 100), AHEAD_BYTES / 2, 0);
    assert_eq!(bench.read(1, 21).limit, 2, "of large jobs fewer");
    bench.set(&bench.read(1, 22), at(0, 100), 0);
    assert_eq!(bench.read(1, 122).limit, 1, "the queue is read seldom");
    // Where it is in vain it is tried less and less often.
    let limits = (123..153).map(|ms| {
        let reading = bench.read(1, ms);
        bench.set(&reading, at(0, 100), reading.limit - 1);
        reading.limit
    });
    let limits: Vec<usize> = limits.collect();
    let tried: Vec<usize> = (0..30).filter(|n| limits[*n] > 1).collect();
    assert_eq!(tried, [0, 2, 6, 14], "{limits:?}");
}
