//! Workers on the verge of silence, with two servers' stores over one MongoDB: what a heartbeat has answered is
//! not taken for a silence before it. And what a server makes of a silence while the store does not do as it should. MongoDB only: in an
//! embedded file one transaction does it all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "shown when a test fails or with --no-capture")]

mod common;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::open_transaction::{FOR_AN_HOUR, OpenTransaction};
use common::own_mongod::OwnMongod;
use common::server::{PATIENCE, Place, SHIPPED_DEADLINE, Server, until};
use common::stores::open_mongo;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::{Client, Database};
use serde_json::{Value, json};
use tailback::job::{Claim, IdSource, JobSpec, NewJob, Payload, Rules, Timestamp, WorkerName};
use tailback::store::mongo::Mongo;
use tailback::store::{ClaimAsk, Figures as _, Jobs as _, Report, Store as _, Workers as _};

const JOBS: usize = 20;
const ROUNDS: usize = 100;
const TIMEOUT_MS: u64 = 60;
/// Longer than the test takes.
const LEASE_MS: u64 = 600_000;

fn job(store: &Mongo, ids: &IdSource) -> NewJob {
    let now = store.now().unwrap();
    let spec = JobSpec { max_attempts: Some(1_000_000), ..JobSpec::new(Payload::parse("1").unwrap()) };
    NewJob::new(ids.next(now), "q".parse().unwrap(), spec, now)
}

/// What a server does all the time: finds who is silent, and a moment later takes what they hold.
async fn take_from_silent(store: Arc<Mongo>, end: Arc<AtomicBool>) -> usize {
    let mut taken = 0;
    while !end.load(Ordering::Relaxed) {
        let changes = store.timed_out_workers(u64::MAX, 100).await.unwrap().changes;
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..40))).await; // a server that is busy
        let applied = store.apply(changes, &Rules::default()).await;
        taken += applied.into_iter().filter(|applied| applied.is_ok()).count();
    }
    taken
}

async fn what_a_heartbeat_answers_holds(place: &Place) {
    let (one, other) = (open_mongo(&place.url).await, open_mongo(&place.url).await);
    let ids = IdSource::default();
    let jobs = (0..JOBS).map(|_| job(&one, &ids)).collect();
    one.push(jobs, &Rules::default()).await.into_iter().for_each(|pushed| drop(pushed.unwrap()));
    let name: WorkerName = "w".parse().unwrap();
    let report = Report { version: None, slots: None, timeout_ms: TIMEOUT_MS };
    let end = Arc::new(AtomicBool::new(false));
    let takers = [&one, &other].map(|store| tokio::spawn(take_from_silent(store.clone(), end.clone())));
    let (mut judged, mut partial, mut kept, mut sign) = (0, 0, 0, Instant::now());
    let end_of_patience = Instant::now() + PATIENCE;
    let mut n = 0;
    // A machine that is busy may need more rounds until something can be said.
    while n < ROUNDS || (judged == 0 || kept == 0) && Instant::now() < end_of_patience {
        n += 1;
        let store = [&one, &other][n % 2];
        let ask = ClaimAsk {
            queue: "q".parse().unwrap(),
            count: JOBS,
            claim: Claim::random(),
            lease_ms: LEASE_MS,
            yields: false,
            worker: Some(name.clone()),
            pop: false,
        };
        if !store.claim(&[ask], &Rules::default()).await.won.remove(0).unwrap().is_empty() {
            sign = Instant::now();
        }
        // Its last sign of life is about as long ago as it may be.
        let pause = Duration::from_millis(TIMEOUT_MS - 10 + rand::random_range(0..50));
        tokio::time::sleep_until((sign + pause).into()).await;
        let sent = Instant::now();
        let told = store.heartbeat(&name, &report).await.unwrap();
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..20))).await;
        let held = store.held_by(&name, 2 * JOBS).await.unwrap().len();
        if sent.elapsed() < Duration::from_millis(TIMEOUT_MS) {
            assert_eq!(held as u64, told.jobs, "jobs were taken after the heartbeat had told of them");
            judged += 1;
        }
        kept += usize::from(told.jobs == JOBS as u64);
        partial += usize::from(told.jobs > 0 && told.jobs < JOBS as u64);
        sign = sent;
    }
    end.store(true, Ordering::Relaxed);
    let mut taken = 0;
    for taker in takers {
        taken += taker.await.unwrap();
    }
    let seen =
        format!("{judged} of {n} rounds judged, {kept} without a loss, {partial} in the middle of one");
    println!("{seen}");
    assert!(judged > 0 && kept > 0 && taken > 0, "nothing was tried: {seen}");
    other.close().await; // what it has counted is stored
    let counts = one.summary(0).await.unwrap().total.counts;
    assert_eq!(counts.ready + counts.reserved, JOBS as u64, "none is lost");
    one.close().await;
}

/// Gives each of these workers a job, by a server whose deadline no machine runs into, and stops that. Returns the jobs.
async fn held_by(mongod: &OwnMongod, workers: &[&str]) -> Vec<String> {
    let mut before = Server::start(&mongod.url()).await;
    let mut jobs = Vec::new();
    for name in workers {
        jobs.push(before.push(name, json!({"payload": 1})).await);
        let taken = before.reserve(name, json!({"worker": name, "lease_ms": LEASE_MS})).await;
        assert_eq!(taken.len(), 1);
        let path = format!("/v1/workers/{name}/heartbeat");
        let (status, answer) = before.post(&path, json!({"timeout_ms": LEASE_MS})).await;
        assert_eq!(status, 200, "{answer}");
    }
    assert!(before.terminate().await.success());
    jobs
}

async fn job_at(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/jobs/{id}")).await.1
}

/// How often the server has failed to take back what workers hold, where the store is quick enough for it to say so.
async fn failures(server: &Server) -> Option<u64> {
    let (_, stats) = server.get("/stats").await;
    let mut tasks = stats["tasks"].as_array()?.iter();
    tasks.find(|task| task["name"] == "workers")?["failures"].as_u64()
}

/// Makes a worker silent for longer than its timeout. Written past the server, so that no machine is too slow for what is done before.
async fn fall_silent(database: &Database, name: &str, timeout_ms: i64) {
    let silent = doc! { "$set": { "timeout_ms": timeout_ms, "silent_at": DateTime::from_millis(0) } };
    let workers = database.collection::<Document>("workers");
    let changed = workers.update_one(doc! { "_id": name }, silent).await.unwrap();
    assert_eq!(changed.matched_count, 1);
}

/// A worker is lost together with its server, whose transaction still holds the worker's only job.
async fn a_worker_whose_job_is_locked_keeps_no_other_from_timing_out(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    let jobs = held_by(&mongod, &["locked", "other"]).await;
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let database = Client::with_uri_str(mongod.url()).await.unwrap().default_database().unwrap();
    let open = OpenTransaction::on(&database, &jobs[0], "reserved").await;
    let mut open = open.expect("nobody else changes it");
    fall_silent(&database, "locked", 1000).await;
    until("its job cannot be taken back", || async { failures(&server).await.is_some_and(|n| n > 0) }).await;
    // For longer than a server may not look without listening anew: one that did after each failure would never have listened for so long.
    fall_silent(&database, "other", 4000).await;
    until("the job of the other one is back", || async {
        job_at(&server, &jobs[1]).await["state"] == "ready"
    })
    .await;
    let held = database.collection::<Document>("jobs");
    let held = held.find_one(doc! { "_id": &jobs[0], "state": "reserved" }).await.unwrap();
    assert!(held.is_some(), "it was taken back");
    assert!(open.is_open().await, "the transaction is over");
    open.abort().await;
    until("its own job is back", || async { job_at(&server, &jobs[0]).await["state"] == "ready" }).await;
}

/// What is silent because the store was away keeps its jobs until the server has listened for its timeout.
async fn a_store_that_was_away_has_heard_nothing(_: &Place) {
    const AWAY_MS: u64 = 8000;
    /// At most so long before its return the server began to listen: it looks at least every three seconds, or listens anew, and the store
    /// answers only the last look.
    const HEARD_MS: u64 = 6000;
    /// By how much a server's estimate of the store's clock may lag behind it.
    const LAG_MS: u64 = 500;
    let mongod = OwnMongod::start().await;
    let job = held_by(&mongod, &["w"]).await.remove(0);
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let beaten = Cell::new(Instant::now());
    until("the heartbeat is heard", || async {
        beaten.set(Instant::now());
        server.post("/v1/workers/w/heartbeat", json!({"timeout_ms": AWAY_MS})).await.0 == 200
    })
    .await;
    mongod.freeze();
    let was_late = beaten.get().elapsed() >= Duration::from_millis(AWAY_MS / 2);
    // Not a wait for something: the time in which no heartbeat can be heard.
    tokio::time::sleep(Duration::from_millis(AWAY_MS + 500)).await;
    let thawed = Timestamp::from_millis(DateTime::now().timestamp_millis());
    mongod.thaw();
    let lost_at: Cell<Option<Timestamp>> = Cell::new(None);
    until("the job is back", || async {
        let job = job_at(&server, &job).await;
        let at = job["errors"][0]["at"].as_str();
        lost_at.set(at.map(|at| at.parse().unwrap()));
        at.is_some()
    })
    .await;
    let lost_at: Timestamp = lost_at.get().unwrap();
    let earliest = thawed.plus_ms(AWAY_MS - HEARD_MS - LAG_MS);
    assert!(was_late || lost_at >= earliest, "away until {thawed}, and the job lost at {lost_at}");
}

on_one_store! { mongo:
    what_a_heartbeat_answers_holds
    a_worker_whose_job_is_locked_keeps_no_other_from_timing_out
    a_store_that_was_away_has_heard_nothing
}
