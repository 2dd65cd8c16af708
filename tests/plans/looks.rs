//! Figures, lists and searches.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mongodb::IndexModel;
use mongodb::bson::{Bson, Document, doc};
use tailback::job::{FieldIs, JobId, JobKey, QueueName, Reach, Visible};
use tailback::store::{
    ALL_SCAN_LIMIT, Figures as _, Filter, Found, Jobs as _, QUEUES_SCAN_LIMIT, QueueCounts, Search,
    Store as _,
};

use super::bench::{Bench, JOBS, QUEUES, SLACK, document, queue};
use crate::common::server::PATIENCE;

/// The figures of all queues, and what they have looked at. A slow machine counts until its time is over, and says so: it is asked again.
async fn exact_summary(bench: &Bench) -> (HashMap<QueueName, QueueCounts>, Vec<Document>) {
    let end = Instant::now() + PATIENCE;
    loop {
        let (figures, entries) = bench.watch(bench.store.summary(usize::MAX)).await;
        let figures = figures.unwrap().queues;
        if Instant::now() >= end || figures.values().all(|queue| !queue.split_is_approximate) {
            return (figures, entries);
        }
    }
}

/// The figures never read a job, nor walk the backlog: but for the scheduled jobs, whose entries in the index
/// `due` are counted up to a bound, they look at the first job of each priority of a queue. Comparing them
/// with what is there goes in small steps, in the index alone.
pub async fn counting(bench: &Bench) {
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
        let (figures, entries) = exact_summary(bench).await;
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
    // What is tried again and what is held, in all queues: so many jobs of each kind, and no more.
    let queues: Vec<_> = (0..QUEUES).map(queue).collect();
    let (load, entries) = bench.watch(bench.store.total_load(&queues)).await;
    let load = load.unwrap();
    assert_eq!(load.reserved.iter().sum::<u64>(), ALL_SCAN_LIMIT);
    assert!(load.is_partial && load.ages_are_partial && load.oldest_first.is_some());
    assert_eq!(entries.len(), 3, "the scheduled, the reserved and the due: {entries:?}");
    for entry in &entries {
        let (keys, docs) = (number(entry, "keysExamined"), number(entry, "docsExamined"));
        let most = ALL_SCAN_LIMIT as i64 + QUEUES_SCAN_LIMIT as i64 * 10; // a seek for each priority
        assert!(keys <= most && docs <= most, "{keys} keys, {docs} documents: {entry}");
    }
}

pub async fn looking(bench: &Bench) {
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
        bench.build_index(filter).await;
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

/// What the statements of a search have looked at: by which indexes, and the most keys and documents of one of them.
async fn looked_at(bench: &Bench, ask: &Search) -> (Found, Vec<String>, i64, i64) {
    let (found, entries) = bench.watch(bench.store.search(ask)).await;
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
pub async fn searching(bench: &Bench) {
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
    let (tally, are_all) = tally.unwrap(); // time ends it on a slow machine
    assert!(tally.counted() > 0 && (tally.counted() == one_in_20 as u64 || !are_all), "{}", tally.counted());
    assert!(
        entries.iter().all(|entry| entry.get_str("planSummary").unwrap_or_default() == BROWSE),
        "{entries:?}"
    );
}

/// An index that people make on a field of payloads serves the searches for it.
pub async fn searching_payloads(bench: &Bench) {
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
            // A search that finds the other index still being built counts by this one and then walks by id.
            let is_served = keys <= SLACK && docs <= SLACK;
            if is_served && plans.iter().any(|plan| plan.contains("IXSCAN { payload.n: 1 }")) {
                let expected = [77, JOBS + 1].into_iter().filter(|n| within.has(&queue(*n))).count();
                assert_eq!((found.jobs.len(), found.stopped_at.is_none()), (expected, true));
                break;
            }
            assert!(Instant::now() < end, "the index is not used: {keys} keys, {docs} documents: {plans:?}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    // One that is dropped is done without.
    jobs.drop_index("payload.n_1").await.unwrap();
    let filter = Filter { payload, within: Reach::one(&queue(77)), ..Filter::default() };
    assert_eq!(bench.store.find(&filter, None, 100).await.unwrap().len(), 1);
    jobs.drop_index("payload_texts").await.unwrap();
    jobs.delete_one(doc! { "_id": format!("JOB{:010}", JOBS + 1) }).await.unwrap();
}
