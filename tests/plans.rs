//! How MongoDB runs what the store really sends, beside 100,000 jobs: every hot query is served by an index,
//! looks at little more than it answers, and sorts nothing. MongoDB only: its profiler tells what it did.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::server::{PATIENCE, Place};
use common::stores::open_mongo;
use futures::TryStreamExt as _;
use futures::future::BoxFuture;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Client, Database, IndexModel};
use tailback::job::settings::{Defaults, Rate};
use tailback::job::transition::{Fate, Operation};
use tailback::job::{
    Claim, FieldIs, IdSource, Job, JobId, JobKey, JobSpec, NewJob, Payload, QueueName, QueueSettings, Reach,
    Rules, SemaphoreName, Visible, When, WorkerName,
};
use tailback::store::mongo::Mongo;
use tailback::store::{
    Change, ClaimAsk, Figures as _, Filter, Found, Jobs as _, Pushed, Report, Search, Semaphores as _, Store,
    Workers as _,
};

const JOBS: i64 = 100_000;
const QUEUES: i64 = 50;
/// What a query may look at beyond twice its answers: one seek and one overshoot for each of ten priorities
/// or five states, and some.
const SLACK: i64 = 40;
const HOUR_MS: i64 = 3_600_000;

fn name_of(n: i64) -> String {
    format!("queue-{:02}", n % QUEUES)
}

/// A job in the public form, as another program may write it. Of twenty jobs of a queue and a priority, one is
/// reserved, one dead, one done, six are scheduled, and three carry what other indexes are about.
fn document(n: i64, now: i64) -> Document {
    let at = |ms: i64| DateTime::from_millis(ms);
    let mut job = doc! {
        "_id": format!("JOB{n:010}"), "v": 1, "queue": name_of(n), "state": "ready",
        "priority": (n / QUEUES % 10) as i32, "run_at": at(now - HOUR_MS + n), "attempts": 0_i64,
        "created_at": at(now - HOUR_MS + n), "rev": 0_i64, "payload": { "n": n, "text": "some more bytes" },
    };
    match n / (QUEUES * 10) % 20 {
        0 => job.extend(doc! {
            "state": "reserved", "claim": Claim::random().as_str(), "reserved_until": at(now + HOUR_MS + n),
            "started_at": at(now), "lease_ms": 2 * HOUR_MS, "attempts": 1_i64,
        }),
        1 => job.extend(doc! { "state": "dead", "finished_at": at(now - HOUR_MS + n) }),
        2 => job.extend(doc! {
            "state": "done", "finished_at": at(now - HOUR_MS + n), "purge_at": at(now + 9 * HOUR_MS),
        }),
        3..=8 => job.extend(doc! { "run_at": at(now + HOUR_MS + n), "due": at(now + HOUR_MS + n) }),
        9 => job.extend(doc! { "expires_at": at(now + HOUR_MS + n) }),
        10 => job
            .extend(doc! { "origin": { "queue": "x", "at": "2026-01-31T08:00:00.000Z", "attempts": 1_i64 } }),
        11 => job.extend(doc! { "key": format!("key-{n}") }),
        _ => {}
    }
    job
}

/// A store, and the profiler of its database.
struct Bench {
    store: Arc<Mongo>,
    database: Database,
}

impl Bench {
    async fn open(place: &Place) -> Self {
        let store = open_mongo(&place.url).await;
        let client = Client::with_uri_str(&place.url).await.unwrap();
        Self { store, database: client.default_database().unwrap() }
    }

    async fn insert(&self, documents: Vec<Document>) {
        let jobs = self.database.collection::<Document>("jobs");
        jobs.insert_many(documents).ordered(false).await.unwrap();
    }

    async fn profile(&self, level: i32) {
        self.database.run_command(doc! { "profile": level, "slowms": 0 }).await.unwrap();
    }

    /// What MongoDB did for this piece of work, one entry for each statement on the jobs.
    async fn watch<T>(&self, work: impl Future<Output = T>) -> (T, Vec<Document>) {
        self.profile(0).await;
        let entries = self.database.collection::<Document>("system.profile");
        entries.drop().await.unwrap();
        self.profile(2).await;
        let answer = work.await;
        self.profile(0).await;
        let of_jobs = doc! { "ns": format!("{}.jobs", self.database.name()), "op": { "$ne": "insert" } };
        let entries = entries.find(of_jobs).await.unwrap().try_collect().await.unwrap();
        (answer, entries)
    }

    /// Does the work, whose answer has `answered` elements, and judges each statement that it took.
    async fn judge<T>(&self, what: &str, answered: usize, work: impl Future<Output = T>) -> T {
        let (answer, entries) = self.watch(work).await;
        assert!(!entries.is_empty(), "{what}: nothing was seen");
        for entry in &entries {
            let number = |field: &str| match entry.get(field) {
                Some(Bson::Int32(number)) => Some(i64::from(*number)),
                Some(Bson::Int64(number)) => Some(*number),
                _ => None,
            };
            let counts = matches!(entry.get_str("op"), Ok("command"));
            let own = ["nreturned", "nMatched", "ndeleted"].into_iter().find_map(number);
            let returned = if counts { answered as i64 } else { own.unwrap_or(0).min(answered as i64) };
            let plan = entry.get_str("planSummary").unwrap_or_default();
            let (keys, docs) = (number("keysExamined").unwrap_or(0), number("docsExamined").unwrap_or(0));
            let seen =
                format!("{what}: {plan} looked at {keys} keys and {docs} documents for {returned}: {entry}");
            let by_index = ["IXSCAN", "IDHACK", "COUNT_SCAN", "DISTINCT_SCAN"];
            assert!(by_index.iter().any(|stage| plan.contains(stage)), "{seen}");
            assert!(keys <= 2 * returned + SLACK, "{seen}");
            assert!(docs <= 2 * returned + SLACK, "{seen}");
            // A scan of distinct names answers these and no jobs: what is sorted is one name for each queue.
            let sorts = entry.get_bool("hasSortStage").unwrap_or(false) && !plan.contains("DISTINCT_SCAN");
            assert!(!sorts, "{seen}");
        }
        answer
    }
}

fn queue(n: i64) -> QueueName {
    name_of(n).parse().unwrap()
}

fn rules(max_jobs: Option<u64>) -> Rules {
    let settings = QueueSettings { max_jobs, ..QueueSettings::default() };
    let queues = (0..QUEUES).map(|n| (queue(n), settings.clone())).collect();
    Rules::new(Arc::new(Defaults::default()), queues)
}

async fn every_hot_query_is_served_by_one_index(place: &Place) {
    let bench = Bench::open(place).await;
    let now = bench.store.now().unwrap().millis();
    for start in (0..JOBS).step_by(10_000) {
        bench.insert((start..start + 10_000).map(|n| document(n, now)).collect()).await;
    }
    counting(&bench).await;
    looking(&bench).await;
    searching(&bench).await;
    searching_payloads(&bench).await;
    let jobs = claiming(&bench).await;
    settling(&bench, jobs).await;
    pushing(&bench).await;
    reaping(&bench, now).await;
    working(&bench, now).await;
    in_groups(&bench).await;
    limiting(&bench, now).await;
}

/// The figures never read a job, nor walk the backlog: but for the scheduled jobs, whose entries in the index
/// `due` are counted up to a bound, they look at the first job of each priority of a queue. Comparing them
/// with what is there goes in small steps, in the index alone.
async fn counting(bench: &Bench) {
    const STEP: i64 = 20_000;
    let number = |entry: &Document, field: &str| match entry.get(field) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        _ => 0,
    };
    let mut steps = 0;
    loop {
        let (step, entries) = bench.watch(bench.store.reconcile()).await;
        for entry in &entries {
            let (keys, docs) = (number(entry, "keysExamined"), number(entry, "docsExamined"));
            assert!(docs == 0 && keys <= STEP + SLACK, "a step of comparing: {entry}");
        }
        steps += 1;
        assert!(steps < 500, "it never ends");
        if step.unwrap().is_settled {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await; // the pace of asking again
    }
    assert!(steps > JOBS / STEP);
    let scheduled = JOBS * 6 / 20;
    for _ in 0..2 {
        let (figures, entries) = bench.watch(bench.store.summary(usize::MAX)).await;
        let figures = figures.unwrap().queues;
        assert_eq!(figures.len() as i64, QUEUES);
        assert_eq!(figures.values().map(|queue| queue.counts.scheduled).sum::<u64>() as i64, scheduled);
        assert!(figures.values().all(|queue| queue.counts.done == 100 && queue.oldest_ready.is_some()));
        assert!(figures.values().all(|queue| !queue.split_is_approximate));
        for entry in &entries {
            let (keys, docs) = (number(entry, "keysExamined"), number(entry, "docsExamined"));
            let counts_scheduled = entry.to_string().contains("\"due\"");
            let most = if counts_scheduled { scheduled } else { QUEUES * 10 * 2 };
            assert!(docs == 0 && keys <= most + SLACK, "{keys} keys, {docs} documents: {entry}");
        }
    }
    // One queue's own figures look at its own scheduled jobs, and at the first job of each of its priorities.
    let (own, entries) = bench.watch(bench.store.counts(&queue(7))).await;
    let own = own.unwrap();
    assert_eq!((own.counts.scheduled as i64, own.counts.done), (scheduled / QUEUES, 100));
    assert!(own.oldest_ready.is_some() && !own.split_is_approximate);
    assert_eq!(entries.len(), 2, "the scheduled jobs and the oldest one: {entries:?}");
    for entry in &entries {
        let (keys, docs) = (number(entry, "keysExamined"), number(entry, "docsExamined"));
        assert!(docs == 0 && keys <= scheduled / QUEUES + SLACK, "{keys} keys, {docs} documents: {entry}");
    }
}

async fn claiming(bench: &Bench) -> Vec<Job> {
    let mut won = Vec::new();
    for count in [1, 100, 900] {
        let claim = Claim::random();
        let ask = ClaimAsk {
            queue: queue(7),
            count,
            claim,
            lease_ms: 60_000,
            yields: false,
            worker: None,
            pop: false,
        };
        let asks = [ask];
        let jobs =
            bench.judge(&format!("a claim of {count}"), count, bench.store.claim(&asks, &rules(None))).await;
        let jobs = jobs.won.into_iter().next().unwrap().unwrap();
        assert_eq!(jobs.len(), count);
        won.extend(jobs);
    }
    won
}

async fn settling(bench: &Bench, jobs: Vec<Job>) {
    let changes = |jobs: &[Job], operation: &dyn Fn(Claim) -> Operation| -> Vec<Change> {
        let change = |job: &Job| {
            let claim = job.meta.claim.clone().unwrap();
            Change { id: job.meta.id.clone(), operation: operation(claim) }
        };
        jobs.iter().map(change).collect()
    };
    let commit = |claim| Operation::Commit { claim, result: None, push: Vec::new() };
    let rollback = |claim| Operation::Rollback { claim, fate: Fate::retry(Some(9_000_000)), error: None };
    let target = queue(8);
    let to = |claim| Operation::Move {
        claim,
        queue: target.clone(),
        payload: None,
        when: When::Now,
        priority: None,
        headers: None,
        key: None,
    };
    let rules = rules(None);
    for (what, changes) in [
        ("commits", changes(&jobs[..300], &commit)),
        ("rollbacks", changes(&jobs[300..600], &rollback)),
        ("moves", changes(&jobs[600..620], &to)),
    ] {
        let count = changes.len();
        for applied in bench.judge(what, count, bench.store.apply(changes, &rules)).await {
            applied.unwrap();
        }
    }
}

fn new_job(bench: &Bench, ids: &IdSource, n: i64) -> NewJob {
    let now = bench.store.now().unwrap();
    NewJob::new(ids.next(now), queue(n), JobSpec::new(Payload::parse("1").unwrap()), now)
}

async fn pushing(bench: &Bench) {
    // The count stops at the limit, however many jobs there are.
    let (limit, limited) = (100, rules(Some(100)));
    let pushed = bench
        .judge(
            "the room in a full queue",
            limit,
            bench.store.push(vec![new_job(bench, &IdSource::default(), 1)], &limited),
        )
        .await;
    assert_eq!(*pushed[0].as_ref().unwrap(), Pushed::Full);
}

/// Beside many lines of many jobs: whose turn comes is found by its place, also behind a gap.
async fn in_groups(bench: &Bench) {
    const LINES: i64 = 20;
    let ids = IdSource::default();
    let new = |n: i64| {
        let mut job = new_job(bench, &ids, n);
        job.queue = "grouped".parse().unwrap();
        job.spec.group = Some(format!("group-{}", n % LINES).parse().unwrap());
        job
    };
    let jobs: Vec<NewJob> = (0..LINES * 50).map(new).collect();
    let second = jobs[usize::try_from(LINES).unwrap()].id.clone();
    let pushed = bench.store.push(jobs, &rules(None)).await;
    assert!(pushed.iter().all(|pushed| matches!(pushed, Ok(Pushed::Created | Pushed::Blocked))));
    let gap = vec![Change {
        id: second,
        operation: Operation::Cancel { within: tailback::job::Reach::default(), force: false },
    }];
    let group = Some("group-7".parse().unwrap());
    let filter = Filter { group, ..Filter::all("grouped".parse().unwrap()) };
    bench.store.find(&filter, None, 1).await.unwrap(); // its index is there now, and is not built beside the others
    bench.judge("leaving a line", 1, bench.store.apply(gap, &rules(None))).await.remove(0).unwrap();
    let found = bench.judge("browsing a group", 20, bench.store.find(&filter, None, 20)).await.unwrap();
    assert_eq!(found.len(), 20);
    let ask = ClaimAsk {
        queue: "grouped".parse().unwrap(),
        count: 100,
        claim: Claim::random(),
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let taken = bench.store.claim(&[ask], &rules(None)).await.won.remove(0).unwrap();
    assert_eq!(taken.len() as i64, LINES);
    let commit = |job: &Job| Change {
        id: job.meta.id.clone(),
        operation: Operation::Commit {
            claim: job.meta.claim.clone().unwrap(),
            result: None,
            push: Vec::new(),
        },
    };
    let changes: Vec<Change> = taken.iter().map(commit).collect();
    let applied =
        bench.judge("whose turn comes", 3 * taken.len(), bench.store.apply(changes, &rules(None))).await;
    assert!(applied.iter().all(|applied| applied.as_ref().unwrap().unblocked.len() == 1));
}

/// What the statements of a search have looked at: by which indexes, and the most keys and documents of one of them.
async fn looked_at(bench: &Bench, ask: &Search) -> (Found, Vec<String>, i64, i64) {
    let (found, mut entries) = bench.watch(bench.store.search(ask)).await;
    entries.retain(|entry| entry.contains_key("planSummary")); // a list of indexes has no plan
    let most = |field: &str| {
        let number = |entry: &Document| match entry.get(field) {
            Some(Bson::Int32(number)) => i64::from(*number),
            Some(Bson::Int64(number)) => *number,
            _ => 0,
        };
        entries.iter().map(number).max().unwrap_or(0)
    };
    let plans = entries.iter().map(|entry| entry.get_str("planSummary").unwrap_or_default().to_owned());
    (found.unwrap(), plans.collect(), most("keysExamined"), most("docsExamined"))
}

/// A search looks at what its documentation says, and a step at a bounded number of documents.
async fn searching(bench: &Bench) {
    const BROWSE: &str = "IXSCAN { queue: 1, state: 1, _id: 1 }";
    let one_in_20 = JOBS / 20;
    let dead = Filter { states: vec![Visible::Dead], ..Filter::default() };
    let (found, plans, keys, docs) = looked_at(bench, &Search::new(dead.clone(), 100)).await;
    assert_eq!((found.jobs.len(), found.scanned), (100, 100));
    assert!(
        plans.iter().all(|plan| plan == BROWSE || plan == "IXSCAN { _id: 1 }" || plan.contains("COUNT")),
        "{plans:?}"
    );
    assert!(docs <= 100 && keys <= one_in_20 + 10 * QUEUES, "{keys} keys, {docs} documents");
    // Many jobs in all queues: by id, a few thousand at a time.
    let payload = vec![FieldIs::new("nothing", "1").unwrap()];
    let nothing = Search::new(Filter { payload: payload.clone(), ..Filter::default() }, 100);
    let (found, plans, keys, docs) = looked_at(bench, &nothing).await;
    assert!(found.jobs.is_empty() && found.scanned > 0 && found.stopped_at.is_some());
    assert!(plans.iter().all(|plan| plan == "IXSCAN { _id: 1 }"), "{plans:?}");
    assert!(docs <= 8192 && keys <= 8192 + SLACK, "{keys} keys, {docs} documents");
    // Who reaches some queues is led past their jobs only.
    let within = Reach::of(vec!["queue-0*".parse().unwrap()]);
    let some = Search::new(Filter { payload, within, ..Filter::default() }, 100);
    let (found, plans, keys, docs) = looked_at(bench, &some).await;
    assert!(
        plans.iter().all(|plan| plan == BROWSE || plan == "IXSCAN { _id: 1 }" || plan.contains("COUNT")),
        "{plans:?}"
    );
    assert!(
        found.scanned <= (JOBS / 5) as u64 && docs <= 8192 && keys <= JOBS / 5 + 10 * QUEUES,
        "{keys} keys, {docs} documents"
    );
    let (tally, entries) = bench.watch(bench.store.tally_dead(&Reach::default())).await;
    assert_eq!(tally.unwrap().0.counted(), one_in_20 as u64);
    assert!(
        entries.iter().all(|entry| entry.get_str("planSummary").unwrap_or_default() == BROWSE),
        "{entries:?}"
    );
}

/// An index that people make on a field of payloads serves the searches for it.
async fn searching_payloads(bench: &Bench) {
    let jobs = bench.database.collection::<Document>("jobs");
    let text = "{\"n\":77,\"x\":1.50}";
    let mut beyond = document(JOBS + 1, bench.store.now().unwrap().millis());
    beyond.remove("payload");
    beyond.insert("payload_json", text);
    bench.insert(vec![beyond]).await;
    jobs.create_index(IndexModel::builder().keys(doc! { "payload.n": 1 }).build()).await.unwrap();
    let payload = vec![FieldIs::new("n", "77.0").unwrap()];
    for within in [Reach::default(), Reach::one(&queue(77)), Reach::one(&queue(78))] {
        let filter = Filter { payload: payload.clone(), within: within.clone(), ..Filter::default() };
        let end = Instant::now() + PATIENCE;
        loop {
            let (found, plans, keys, docs) = looked_at(bench, &Search::new(filter.clone(), 100)).await;
            if plans.iter().any(|plan| plan.contains("IXSCAN { payload.n: 1 }")) {
                let expected = [77, JOBS + 1].into_iter().filter(|n| within.has(&queue(*n))).count();
                assert_eq!((found.jobs.len(), found.stopped_at.is_none()), (expected, true));
                assert!(keys <= SLACK && docs <= SLACK, "{keys} keys, {docs} documents: {plans:?}");
                break;
            }
            assert!(Instant::now() < end, "the index is not used: {plans:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    // One that is dropped is done without.
    jobs.drop_index("payload.n_1").await.unwrap();
    let filter = Filter { payload, within: Reach::one(&queue(77)), ..Filter::default() };
    assert_eq!(bench.store.search(&Search::new(filter, 100)).await.unwrap().jobs.len(), 1);
    jobs.drop_index("payload_texts").await.unwrap();
    jobs.delete_one(doc! { "_id": format!("JOB{:010}", JOBS + 1) }).await.unwrap();
}

async fn looking(bench: &Bench) {
    const PAGE: usize = 100;
    let store = &bench.store;
    let half: JobId = format!("JOB{:010}", JOBS / 2).parse().unwrap();
    let key: JobKey = format!("key-{}", QUEUES * 10 * 11 + 3).parse().unwrap();
    let filters = [
        ("all", Filter::all(queue(3)), PAGE),
        ("ready", Filter::state(queue(3), Visible::Ready), PAGE),
        ("reserved", Filter::state(queue(3), Visible::Reserved), PAGE),
        ("dead", Filter::state(queue(3), Visible::Dead), PAGE),
        ("done", Filter::state(queue(3), Visible::Done), PAGE),
        ("a key", Filter { key: Some(key), ..Filter::all(queue(3)) }, 1),
        ("dead-lettered", Filter { dead_lettered: true, ..Filter::all(queue(3)) }, PAGE),
    ];
    for (what, filter, answers) in &filters {
        store.find(filter, None, PAGE).await.unwrap(); // the first one builds its index
        for after in [None, Some(&half)] {
            let find = store.find(filter, after, PAGE);
            let jobs = bench.judge(&format!("browsing {what}"), PAGE, find).await.unwrap();
            assert!(
                jobs.len() <= *answers && (after.is_some() || !jobs.is_empty()),
                "{what}: {}",
                jobs.len()
            );
        }
    }
    let ids: Vec<JobId> = (0..200).map(|n| format!("JOB{:010}", n * 431).parse().unwrap()).collect();
    let found = bench.judge("reading by ids", ids.len(), store.get(&ids)).await.unwrap();
    assert!(found.iter().all(Option::is_some));
    let left = bench.judge("who has not finished", ids.len(), store.unfinished(&ids)).await.unwrap();
    assert!(left.len() < ids.len() && !left.is_empty());
    let next = bench.judge("a peek", 50, store.peek(&queue(3), 50)).await.unwrap();
    assert_eq!(next.len(), 50);
    assert!(bench.judge("what comes due next", 10, store.next_due(&queue(3))).await.unwrap().is_some());
    let all = bench.judge("counting a queue", 2000, store.count_now(&queue(3))).await.unwrap();
    assert!(all.scheduled > 0 && all.ready > 0 && all.done > 0, "{all:?}");
    // BUG: `scheduled` is not judged. It shares the state, and so the entries of `browse`, with `ready`; the two
    // are told apart only after the fetch, so that a page of the rarer one walks past the other.
    let names = bench.judge("the queues", QUEUES as usize, store.queues("", None, 1000)).await.unwrap();
    assert_eq!(names.len() as i64, QUEUES);
    let names = bench.judge("the queues of a prefix", 10, store.queues("queue-1", None, 1000)).await.unwrap();
    assert_eq!(names.len(), 10);
    let waited_for: Vec<QueueName> = (0..QUEUES).map(queue).collect();
    let stocked = bench.judge("the queues that have jobs", QUEUES as usize, store.stocked(&waited_for)).await;
    assert_eq!(stocked.unwrap().len() as i64, QUEUES);
    let empty: Vec<QueueName> = (0..900).map(|n| format!("queue-{n:03}-x").parse().unwrap()).collect();
    let stocked = bench.judge("the queues that have none", empty.len() / 2, store.stocked(&empty)).await;
    assert!(stocked.unwrap().is_empty());
    let coming = bench.judge("what comes next", 256, store.upcoming(256)).await.unwrap();
    assert_eq!(coming.len(), 256);
}

async fn reaping(bench: &Bench, now: i64) {
    let past = |n: i64| DateTime::from_millis(now - n);
    let late = (JOBS..JOBS + 600).map(|n| {
        let mut job = document(n, now);
        job.remove("due");
        job.insert("expires_at", past(n));
        if n % 2 == 0 {
            job.remove("expires_at");
            job.extend(doc! { "state": "reserved", "claim": "c", "reserved_until": past(n) });
        } else {
            job.insert("state", "ready");
        }
        job
    });
    bench.insert(late.collect()).await;
    let work: BoxFuture<'_, _> = Box::pin(bench.store.overdue(200));
    let overdue = bench.judge("the reaper", 200, work).await.unwrap();
    assert_eq!(overdue.changes.len(), 200);
    let count = overdue.changes.len();
    let applied =
        bench.judge("what the reaper does", count, bench.store.apply(overdue.changes, &rules(None))).await;
    assert!(applied.into_iter().all(|applied| applied.is_ok()));
    loop {
        let changes = bench.store.overdue(500).await.unwrap().changes;
        if changes.is_empty() {
            break;
        }
        bench.store.apply(changes, &rules(None)).await;
    }
    // From here on it begins where nothing was left.
    let overdue = bench.judge("the reaper in vain", 1, bench.store.overdue(500)).await.unwrap();
    assert!(overdue.changes.is_empty());
}

/// What workers hold is found by their names, also where it is found to be lost.
async fn working(bench: &Bench, now: i64) {
    const HELD: usize = 100;
    let names: Vec<WorkerName> = (0..6).map(|n| format!("worker-{n}").parse().unwrap()).collect();
    let held = (2 * JOBS..2 * JOBS + (6 * HELD) as i64).map(|n| {
        let mut job = document(0, now); // a reserved one
        let started_at = DateTime::from_millis(now - HOUR_MS);
        job.extend(doc! {
            "_id": format!("HELD{n}"), "started_at": started_at, "worker": names[n as usize % 6].as_str(),
        });
        job
    });
    bench.insert(held.collect()).await;
    for name in &names {
        let report = Report { version: None, slots: None, timeout_ms: 1 };
        let told = bench.judge("a heartbeat", HELD, bench.store.heartbeat(name, &report)).await.unwrap();
        assert_eq!(told.jobs, HELD as u64);
    }
    let listed = bench.judge("the workers", 6 * HELD, bench.store.workers(None, 100)).await.unwrap();
    assert!(listed.len() == 6 && listed.iter().all(|worker| worker.reserved == HELD as u64));
    let held = bench.judge("what one holds", HELD, bench.store.held_by(&names[3], 1000)).await.unwrap();
    assert_eq!(held.len(), HELD);
    let silent =
        bench.judge("who is silent", 200, bench.store.timed_out_workers(u64::MAX, 200)).await.unwrap();
    assert_eq!(silent.changes.len(), 200);
    let applied = bench.judge("what they lose", 200, bench.store.apply(silent.changes, &rules(None))).await;
    assert!(applied.into_iter().all(|applied| applied.is_ok()));
}

/// Holders, those who wait and those who are called are found by the semaphore, in a line of thousands.
async fn limiting(bench: &Bench, now: i64) {
    const WAITING: usize = 2000;
    let (one, other) = ("one".parse::<SemaphoreName>().unwrap(), "other".parse::<SemaphoreName>().unwrap());
    bench.store.save_semaphore(&one, 5).await.unwrap();
    bench.store.save_semaphore(&other, 1).await.unwrap();
    let line = (3 * JOBS..3 * JOBS + 2 * WAITING as i64).map(|n| {
        let mut job = document(12 * QUEUES * 10, now); // a ready one
        let at = DateTime::from_millis(now - 5000 + n % 1000);
        job.extend(doc! {
            "_id": format!("NEED{n}"), "queue": format!("limited-{}", n % 4), "run_at": at,
            "semaphores": if n % 3 == 0 { vec!["one", "other"] } else { vec!["one"] },
        });
        if n % 2 == 0 {
            job.extend(doc! { "state": "blocked", "waits_for": "one", "waiting_since": at });
        }
        job
    });
    bench.insert(line.collect()).await;
    let called =
        bench.judge("a call", 8, bench.store.unblock_waiters(std::slice::from_ref(&one), &rules(None))).await;
    let called = called.unwrap().len();
    assert!((5..=10).contains(&called), "{called} for five places, in two queues");
    let all = bench.judge("a look for all", 8, bench.store.waited_for(None, 1000)).await.unwrap();
    let again =
        bench.judge("a call of all", 8, bench.store.unblock_waiters(&all, &rules(None))).await.unwrap();
    assert!(again.len() <= 10, "{}", again.len());
    let ask = ClaimAsk {
        queue: "limited-1".parse().unwrap(),
        count: 3,
        claim: Claim::random(),
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let asks = [ask];
    let claims = bench.judge("a claim with semaphores", 32, bench.store.claim(&asks, &rules(None))).await;
    assert!(claims.won[0].as_ref().unwrap().len() <= 3);
    let shown = bench.judge("a semaphore", 2 * WAITING, bench.store.semaphores(&[one.clone(), other])).await;
    assert_eq!(shown.unwrap().len(), 2);
    // Not judged: they are no more than the capacity, and are sorted for whoever looks at them.
    assert!(bench.store.holders(&one, 1000).await.unwrap().len() <= 3);
    let limited = QueueSettings {
        max_reserved: Some(50),
        rate: Some(Rate { limit: 50, per_ms: 60_000 }),
        ..QueueSettings::default()
    };
    let rules = Rules::new(Arc::new(Defaults::default()), [(queue(9), limited)].into());
    let claim = Claim::random();
    let ask = ClaimAsk {
        queue: queue(9),
        count: 100,
        claim,
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let asks = [ask];
    let claims = bench.judge("a claim under limits", 100, bench.store.claim(&asks, &rules)).await;
    assert!(claims.won[0].as_ref().unwrap().len() <= 50);
}

on_one_store! { mongo:
    every_hot_query_is_served_by_one_index
}
