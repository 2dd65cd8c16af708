//! Searching: whatever the filter, a store finds what the filter accepts, page by page in both directions.

use tailback::job::error_group;
use tailback::job::record::{Failure, Origin};
use tailback::job::state::State;
use tailback::job::{
    BatchId, Claim, FieldIs, Filter, HeaderIs, Job, JobId, QueuePattern, Reach, Span, Timestamp, Visible,
};
use tailback::store::search::SCANNED_MAX;
use tailback::store::{Found, Search, Store};

use super::support::*;

const JOBS: usize = 300;
const FILTERS: usize = 250;
const QUEUES: [&str; 6] = ["mail", "mail.in", "mail.out", "mailer", "reports", "x"];
const STATES: [Visible; 6] =
    [Visible::Scheduled, Visible::Ready, Visible::Reserved, Visible::Blocked, Visible::Done, Visible::Dead];
const ERRORS: [&str; 6] = [
    "timeout after 30 s",
    "timeout after 7 s",
    "no such user 'Ann'",
    "a.*b (c) [d] $1 ^x \\",
    "Zeile\nzwei",
    "\0",
];
const PAYLOADS: [&str; 16] = [
    "null",
    "{}",
    r#"{"user":{"id":42}}"#,
    r#"{"user":{"id":42.0}}"#,
    r#"{"user":{"id":"42"}}"#,
    r#"{"user":{"id":4.2e1,"x":1.50}}"#,
    r#"{"user":{"id":[41,42]}}"#,
    r#"{"user":[{"id":42},{"id":[7]},[{"id":9}]]}"#,
    r#"{"user":{"id":123456789012345678901234567890}}"#,
    r#"{"user":{"id":9007199254740993}}"#,
    r#"{"user":{"id":9007199254740992.0}}"#,
    r#"{"user":{"id":1152921504606846976}}"#,
    r#"{"user":{"id":1.152921504606847e18}}"#,
    r#"{"user":{"id":null},"user.id":42}"#,
    r#"{"$user":{"id":42},"user":{"$id":42}}"#,
    r#"{"user":{"id":{"a":1,"b":[true]}},"0":"z"}"#,
];
const FIELDS: [(&str, &str); 24] = [
    ("user.id", "42"),
    ("user.id", "42.00"),
    ("user.id", "\"42\""),
    ("user.id", "042"),
    ("user.id", "7"),
    ("user.id", "9"),
    ("user.id", "null"),
    ("user.id.0", "41"),
    ("user.1.id", "7"),
    ("user.1.id.0", "7"),
    ("user.2.0.id", "9"),
    ("user.id", "123456789012345678901234567890"),
    ("user.id", "9007199254740993"),
    ("user.id", "9007199254740992"),
    ("user.id", "1152921504606846976"),
    ("user.id", "1152921504606847000"),
    ("user.id", "[41,42]"),
    ("user.id", r#"{"a":1.0,"b":[true]}"#),
    ("user.id.b", "true"),
    ("user", "{}"),
    ("user.$id", "42"),
    ("$user.id", "42"),
    ("0", "z"),
    ("user.x", "1.5"),
];

/// Numbers that look random, and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }

    /// Once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.roll(times) == 0
    }
}

fn at(now: Timestamp, ms: i64) -> Timestamp {
    Timestamp::from_millis(now.millis() + ms)
}

/// A job in any state, as it may be after a while.
fn any_job(store: &dyn Store, dice: &mut Dice, n: usize) -> Job {
    let now = store.now().unwrap();
    let mut draft = job(dice.one(&QUEUES)).payload(dice.one(&PAYLOADS)).priority(dice.roll(5) as i32 - 2);
    if dice.once_in(10) {
        draft = draft.carrying(binary(br#"{"user":{"id":42}}"#, "application/json"));
    }
    if dice.once_in(3) {
        draft = draft.header("trace", dice.one(&["a", "b"]));
    }
    if dice.once_in(4) {
        draft = draft.json_header("a.b", dice.one(&["1", "1.0", "\"1\"", "[1]"]));
    }
    let mut job = draft.build(store).into_job();
    let meta = &mut job.meta;
    meta.created_at = at(now, -600_000 + 1000 * n as i64);
    meta.attempts = dice.roll(4) as u32;
    meta.key = dice.once_in(4).then(|| format!("key-{}", dice.roll(3)).parse().unwrap());
    meta.worker = dice.once_in(2).then(|| format!("worker-{}", dice.roll(2)).parse().unwrap());
    meta.batch = dice.once_in(4).then(|| batch(dice.roll(2)));
    for attempt in 0..dice.roll(3) {
        let message = dice.one(&ERRORS).to_owned();
        meta.errors.push(Failure { at: now, attempt: attempt as u32 + 1, worker: None, message });
    }
    if dice.once_in(8) {
        let error = dice.once_in(2).then(|| dice.one(&ERRORS).to_owned());
        meta.origin = Some(Origin { queue: queue("x"), at: now, attempts: 1, error });
    }
    let state = dice.one(&STATES);
    meta.state = state.stored();
    match state {
        Visible::Scheduled => meta.run_at = at(now, 600_000 + 1000 * n as i64),
        Visible::Ready => meta.run_at = at(now, -1000 * n as i64),
        Visible::Reserved => {
            (meta.claim, meta.reserved_until) = (Some(Claim::random()), Some(at(now, 600_000)));
            (meta.started_at, meta.lease_ms) = (Some(now), Some(600_000));
        }
        Visible::Blocked => meta.waits_for = Some("database".parse().unwrap()),
        Visible::Done | Visible::Dead => {
            meta.finished_at = Some(at(now, -300_000 + 1000 * n as i64));
            meta.purge_at = Some(at(now, 3_600_000));
        }
    }
    if dice.once_in(3) {
        meta.group = Some(format!("group-{}", dice.roll(2)).parse().unwrap());
        if meta.state.is_unfinished() && meta.origin.is_none() {
            meta.turn = Some(n as i64 + 1);
        }
    }
    job
}

fn batch(n: usize) -> BatchId {
    ["01K9ZZZZZZZZZZZZZZZZZZZZZA", "01K9ZZZZZZZZZZZZZZZZZZZZZB"][n].parse().unwrap()
}

async fn store_jobs(store: &dyn Store, dice: &mut Dice) -> Vec<Job> {
    let jobs: Vec<Job> = (0..JOBS).map(|n| any_job(store, dice, n)).collect();
    for imported in store.import(jobs.clone()).await {
        imported.unwrap();
    }
    jobs
}

/// A filter with this condition, which is one of so many.
const CONDITIONS: usize = 17;

fn add(filter: &mut Filter, condition: usize, dice: &mut Dice, now: Timestamp) {
    let time = |dice: &mut Dice| {
        let from = dice.once_in(2).then(|| at(now, -500_000 + 1000 * dice.roll(1200) as i64));
        let before = dice.once_in(2).then(|| at(now, -200_000 + 1000 * dice.roll(1200) as i64));
        Span { from, before }
    };
    let number = |dice: &mut Dice| {
        let from = dice.once_in(2).then(|| dice.roll(4) as i64 - 2);
        Span { from, before: dice.once_in(2).then(|| dice.roll(4) as i64) }
    };
    match condition {
        0 => filter.within = Reach::one(&queue(dice.one(&QUEUES))),
        1 => filter.within = Reach::of(vec!["mail*".parse().unwrap()]),
        2 => {
            let patterns = ["mail.*", "reports", "mail.out", "nothing*"].map(|text| text.parse().unwrap());
            filter.within = Reach::of(patterns.to_vec());
        }
        3 => filter.states = vec![dice.one(&STATES)],
        4 => filter.states = STATES.into_iter().filter(|_| dice.once_in(2)).collect(),
        5 => filter.key = Some(format!("key-{}", dice.roll(4)).parse().unwrap()),
        6 => filter.group = Some(format!("group-{}", dice.roll(3)).parse().unwrap()),
        7 => filter.batch = Some(batch(dice.roll(2))),
        8 => filter.worker = Some(format!("worker-{}", dice.roll(3)).parse().unwrap()),
        9 => filter.dead_lettered = true,
        10 => filter.created = time(dice),
        11 => filter.finished = time(dice),
        12 => filter.run_at = time(dice),
        13 => (filter.priority, filter.attempts) = (number(dice), number(dice)),
        14 => {
            let parts = ["timeout", "Ann", ".*", "(c) [d] $1 ^x \\", "\n", "\0", "nothing"];
            filter.error = Some(dice.one(&parts).to_owned());
        }
        15 => filter.error_group = Some(error_group::of(dice.one(&["", ERRORS[0], ERRORS[2], "nothing"]))),
        _ => {
            let (path, value) = dice.one(&FIELDS);
            filter.payload.push(FieldIs::new(path, value).unwrap());
            if dice.once_in(4) {
                let (name, value) =
                    dice.one(&[("trace", "a"), ("a.b", "1"), ("a.b", "\"1\""), ("none", "x")]);
                filter.headers.push(HeaderIs::new(name, value).unwrap());
            }
        }
    }
}

/// Searches page by page, each of which is what it should be.
async fn searched(store: &dyn Store, ask: &Search) -> Vec<JobId> {
    let (mut ask, mut ids) = (ask.clone(), Vec::new());
    loop {
        let Found { jobs, scanned, stopped_at } = store.search(&ask).await.unwrap();
        assert!(jobs.len() <= ask.limit && scanned >= jobs.len() as u64);
        let found: Vec<JobId> = jobs.into_iter().map(|job| job.unwrap().meta.id).collect();
        let is_behind = |id: &JobId, after: &JobId| if ask.newest_first { id < after } else { id > after };
        if let (Some(after), Some(stopped_at)) = (&ask.after, &stopped_at) {
            assert!(is_behind(stopped_at, after), "it does not get on");
        }
        ids.extend(found);
        let Some(stopped_at) = stopped_at else { return ids };
        ask.after = Some(stopped_at);
    }
}

async fn check(store: &dyn Store, jobs: &[Job], filter: &Filter, dice: &mut Dice) {
    let now = store.now().unwrap();
    let meant = jobs.iter().filter(|job| filter.accepts(job, now)).map(|job| job.meta.id.clone());
    let mut expected: Vec<JobId> = meant.collect();
    expected.sort();
    for newest_first in [false, true] {
        let limit = dice.one(&[3, 40, 1000]);
        let (with_contents, scanned_max) = (dice.once_in(2), dice.one(&[7, 100, SCANNED_MAX]));
        let ask = Search { newest_first, with_contents, scanned_max, ..Search::new(filter.clone(), limit) };
        assert_eq!(searched(store, &ask).await, expected, "{ask:?}");
        expected.reverse();
    }
}

pub async fn each_condition_finds_what_it_accepts(store: &dyn Store) {
    let mut dice = Dice(1);
    let jobs = store_jobs(store, &mut dice).await;
    let now = store.now().unwrap();
    check(store, &jobs, &Filter::default(), &mut dice).await;
    for condition in 0..CONDITIONS {
        for _ in 0..4 {
            let mut filter = Filter::default();
            add(&mut filter, condition, &mut dice, now);
            check(store, &jobs, &filter, &mut dice).await;
        }
    }
    for (path, value) in FIELDS {
        let payload = vec![FieldIs::new(path, value).unwrap()];
        check(store, &jobs, &Filter { payload, ..Filter::default() }, &mut dice).await;
    }
}

pub async fn conditions_together_find_what_they_accept(store: &dyn Store) {
    let mut dice = Dice(2);
    let jobs = store_jobs(store, &mut dice).await;
    let (now, mut found) = (store.now().unwrap(), 0);
    for _ in 0..FILTERS {
        let mut filter = Filter::default();
        for _ in 0..2 + dice.roll(3) {
            let condition = dice.roll(CONDITIONS);
            add(&mut filter, condition, &mut dice, now);
        }
        found += usize::from(jobs.iter().any(|job| filter.accepts(job, now)));
        check(store, &jobs, &filter, &mut dice).await;
    }
    assert!(found > FILTERS / 10, "only {found} filters mean any job");
}

pub async fn a_step_of_a_search_ends_at_its_bound(store: &dyn Store) {
    let drafts = (0..100).map(|n| job("q").payload(&format!("{{\"n\":{n}}}"))).collect();
    let pushed = push_all(store, drafts).await;
    let payload = vec![FieldIs::new("n", "99").unwrap()];
    let filter = Filter { payload, ..Filter::all(queue("q")) };
    let mut ask = Search { scanned_max: 30, ..Search::new(filter, 10) };
    let (mut steps, mut scanned, mut ids) = (0, 0, Vec::new());
    loop {
        let found = store.search(&ask).await.unwrap();
        assert!(found.scanned <= 30, "{}", found.scanned);
        (steps, scanned) = (steps + 1, scanned + found.scanned);
        ids.extend(found.jobs.into_iter().map(|job| job.unwrap().meta.id));
        let Some(stopped_at) = found.stopped_at else { break };
        ask.after = Some(stopped_at);
    }
    assert_eq!((scanned, ids), (100, pushed[99..].to_vec()));
    assert!(steps >= 4);
}

pub async fn what_comes_meanwhile_shifts_no_page(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"); 20]).await;
    for newest_first in [false, true] {
        let mut ask = Search { newest_first, ..Search::new(Filter::all(queue("q")), 7) };
        let mut ids = Vec::new();
        loop {
            let found = store.search(&ask).await.unwrap();
            ids.extend(found.jobs.into_iter().map(|job| job.unwrap().meta.id));
            let Some(stopped_at) = found.stopped_at else { break };
            ask.after = Some(stopped_at);
            if ids.len() < 20 {
                push_one(store, job("q")).await;
            }
        }
        let mut own = ids.clone();
        own.retain(|id| pushed.contains(id));
        own.sort();
        assert_eq!(own, pushed);
        let count = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), count, "a job came twice");
    }
}

pub async fn without_contents_long_payloads_are_not_read(store: &dyn Store) {
    let long = format!("\"{}\"", "x".repeat(2 << 20));
    push_all(store, (0..12).map(|_| job("q").payload(&long).header("trace", "a")).collect()).await;
    let whole = store.search(&Search::new(Filter::all(queue("q")), 100)).await.unwrap();
    assert!(whole.jobs.len() < 12 && whole.stopped_at.is_some());
    let ask = Search { with_contents: false, ..Search::new(Filter::all(queue("q")), 100) };
    let short = store.search(&ask).await.unwrap();
    assert!(short.jobs.len() == 12 && short.stopped_at.is_none());
    for job in short.jobs.into_iter().map(Result::unwrap) {
        assert_eq!((text_of(&job), job.headers.len()), ("null", 1));
    }
}

pub async fn the_dead_are_counted_by_their_errors(store: &dyn Store) {
    let mut dice = Dice(3);
    let jobs = store_jobs(store, &mut dice).await;
    let reach = Reach::of(vec!["mail.*".parse::<QueuePattern>().unwrap(), "x".parse().unwrap()]);
    for within in [Reach::default(), Reach::one(&queue("mail")), reach] {
        let is_meant = |job: &&Job| job.meta.state == State::Dead && within.has(&job.meta.queue);
        let dead: Vec<&Job> = jobs.iter().filter(is_meant).collect();
        // On a busy machine the time of one call may be over before.
        let tally = until("all of them are counted in time", async || {
            let (tally, complete) = store.tally_dead(&within).await.unwrap();
            complete.then_some(tally)
        })
        .await;
        assert_eq!(tally.counted(), dead.len() as u64);
        let (groups, other) = tally.largest(100);
        assert!(other.is_none());
        assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), dead.len() as u64);
        for group in groups {
            let of_group =
                |job: &&&Job| error_group::of(job.meta.last_error().unwrap_or_default()) == group.error;
            let own: Vec<&&Job> = dead.iter().filter(of_group).collect();
            assert_eq!(group.count, own.len() as u64, "{}", group.error);
            assert_eq!(group.first_seen, own.iter().filter_map(|job| job.meta.finished_at).min());
            assert_eq!(group.last_seen, own.iter().filter_map(|job| job.meta.finished_at).max());
            assert!(group.samples.iter().all(|id| own.iter().any(|job| job.meta.id == *id)));
            let filter = Filter {
                within: within.clone(),
                states: vec![Visible::Dead],
                error_group: Some(group.error.clone()),
                ..Filter::default()
            };
            let found = searched(store, &Search::new(filter, 1000)).await;
            assert_eq!(found.len(), own.len(), "{}", group.error);
        }
    }
}
