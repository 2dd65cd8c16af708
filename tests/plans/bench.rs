//! The jobs, and what MongoDB does to find them.

use std::sync::Arc;

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, DateTime, Document, doc};
use mongodb::{Client, Database};
use tailback::job::settings::Defaults;
use tailback::job::{Claim, QueueName, QueueSettings, Rules};
use tailback::store::mongo::Mongo;
use tailback::store::{Filter, Jobs as _};

use crate::common::server::{Place, until};
use crate::common::stores::open_mongo;

pub const JOBS: i64 = 100_000;
pub const QUEUES: i64 = 50;
/// What a query may look at beyond twice its answers: one seek and one overshoot for each of ten priorities
/// or five states, and some.
pub const SLACK: i64 = 40;
pub const HOUR_MS: i64 = 3_600_000;

pub fn name_of(n: i64) -> String {
    format!("queue-{:02}", n % QUEUES)
}

/// A job in the public form, as another program may write it. Of twenty jobs of a queue and a priority, one is
/// reserved, one dead, one done, six are scheduled, and three carry what other indexes are about.
pub fn document(n: i64, now: i64) -> Document {
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
pub struct Bench {
    pub store: Arc<Mongo>,
    pub database: Database,
}

impl Bench {
    pub async fn open(place: &Place) -> Self {
        let store = open_mongo(&place.url).await;
        let client = Client::with_uri_str(&place.url).await.unwrap();
        Self { store, database: client.default_database().unwrap() }
    }

    pub async fn insert(&self, documents: Vec<Document>) {
        let jobs = self.database.collection::<Document>("jobs");
        jobs.insert_many(documents).ordered(false).await.unwrap();
    }

    /// Looks for the first jobs, so that the index is built that serves this: a slow machine may take longer than a look waits for it.
    pub async fn build_index(&self, filter: &Filter) {
        until("the index is built", || async { self.store.find(filter, None, 1).await.is_ok() }).await;
    }

    pub async fn profile(&self, level: i32) {
        self.database.run_command(doc! { "profile": level }).await.unwrap();
    }

    /// What MongoDB did for this piece of work, one entry for each statement that found jobs. Neither the list of indexes nor the end of a
    /// cursor does: a slow machine ends one early, where time is over.
    pub async fn watch<T>(&self, work: impl Future<Output = T>) -> (T, Vec<Document>) {
        self.profile(0).await;
        let entries = self.database.collection::<Document>("system.profile");
        entries.drop().await.unwrap();
        self.profile(2).await;
        let answer = work.await;
        self.profile(0).await;
        let of_jobs = doc! {
            "ns": format!("{}.jobs", self.database.name()), "op": { "$ne": "insert" },
            "command.killCursors": { "$exists": false }, "command.listIndexes": { "$exists": false },
        };
        let entries = entries.find(of_jobs).await.unwrap().try_collect().await.unwrap();
        (answer, entries)
    }

    /// Does the work, whose answer has `answered` elements, and judges each statement that it took.
    pub async fn judge<T>(&self, what: &str, answered: usize, work: impl Future<Output = T>) -> T {
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

pub fn queue(n: i64) -> QueueName {
    name_of(n).parse().unwrap()
}

pub fn rules(max_jobs: Option<u64>) -> Rules {
    let settings = QueueSettings { max_jobs, ..QueueSettings::default() };
    let queues = (0..QUEUES).map(|n| (queue(n), settings.clone())).collect();
    Rules::new(Arc::new(Defaults::default()), queues)
}
