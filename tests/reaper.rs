//! Expired reservations and expired jobs, while servers die.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

#[path = "conformance/support.rs"]
#[allow(dead_code, reason = "written for the conformance cases")]
mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::fleet::{Tally, browse, fleet, kill_9, push_many, text};
use common::open_transaction::{FOR_AN_HOUR, OpenTransaction};
use common::own_mongod::OwnMongod;
use common::proxy::{Fault, Proxy};
use common::server::{Place, SHIPPED_DEADLINE, Server, until};
use common::stores::open_mongo;
use mongodb::{Client, Database};
use serde_json::{Value, json};
use tailback::job::{Rules, Timestamp};
use tailback::store::{Jobs as _, Store as _};
use tokio::sync::RwLock;
use tokio::task::JoinSet;

/// Longer than any of these tests takes: nothing lapses by accident.
const LONG_MS: u64 = 600_000;
/// A safety net so far below that a test which passes was not caught by it.
const NO_POLL: &[(&str, &str)] = &[("TAILBACK_WAIT__POLL_MS", "60000")];
/// Under the wait, and long enough for a machine that is busy, or a MongoDB that stands still for 40 s.
const SOON: Duration = Duration::from_secs(50);
/// By how much a server's estimate of the store's clock may lag behind it.
const LAG_MS: i64 = 250;
/// How many jobs of each queue are given to workers that never settle.
const JOBS: usize = 100;

type Servers = Arc<RwLock<Vec<Arc<Server>>>>;

/// Workers take every job twice and never settle; meanwhile most of the servers are killed. Where there is
/// but one, it is killed and started again.
async fn every_lost_reservation_comes_back_and_ends_dead_once(place: &Place) {
    let servers = fleet(place).await;
    let settings = json!({"dead_letter": "graveyard", "max_attempts": 2});
    let (status, _) = servers[0].send(reqwest::Method::PUT, "/v1/queues/buried", Some(settings)).await;
    assert!(status < 300);
    let kept = push_many(&servers[0], "kept", JOBS, json!({"max_attempts": 2})).await;
    let buried = push_many(&servers[0], "buried", JOBS, json!({})).await;
    // The queue's settings must have reached every server before one of them buries a job.
    for server in &servers {
        until("the settings are known", || async {
            server.get("/v1/queues/buried").await.1["effective"]["max_attempts"] == 2
        })
        .await;
    }
    let servers: Servers = Arc::new(RwLock::new(servers));
    let delivered = Tally::default();
    let mut workers = JoinSet::new();
    for n in 0..6 {
        workers.spawn(take_and_forget(servers.clone(), n, delivered.clone()));
    }
    kill_some(place, &servers, &delivered).await;
    let last = servers.read().await[0].clone();
    until("every job is dead", || async {
        let dead = last.get("/v1/queues/kept/jobs?state=dead&limit=1000").await.1;
        let buried = last.get("/v1/queues/graveyard/jobs?limit=1000").await.1;
        [dead, buried].iter().all(|page| page["jobs"].as_array().is_some_and(|jobs| jobs.len() == JOBS))
    })
    .await;
    workers.abort_all();
    for id in &kept {
        let job = last.get(&format!("/v1/jobs/{id}")).await.1;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("dead"), &json!(2)), "{job}");
        assert_errors(&job);
    }
    assert!(browse(&last, "buried").await.is_empty());
    let graves = browse(&last, "graveyard").await;
    assert!(buried.iter().all(|id| graves.iter().any(|job| job["id"] == json!(id))));
    for job in &graves {
        assert_eq!((&job["state"], &job["attempt"]), (&json!("ready"), &json!(0)), "{job}");
        assert_eq!(job["trail"].as_array().map(Vec::len), Some(1), "it died once: {job}");
        assert_eq!(job["dead_lettered_from"]["attempts"], 2, "{job}");
        assert_errors(job);
    }
}

fn assert_errors(job: &Value) {
    let errors = job["errors"].as_array().unwrap();
    let attempts: Vec<&Value> = errors.iter().map(|error| &error["attempt"]).collect();
    assert_eq!(attempts, [&json!(1), &json!(2)], "{job}");
    for error in errors {
        assert_eq!(error["message"], "the reservation ran out", "{job}");
        assert_eq!(error["worker"], "forgetful", "{job}");
    }
}

/// Reserves from whichever server it finds. An answer may be lost, but no delivery is made twice.
async fn take_and_forget(servers: Servers, n: usize, delivered: Tally) {
    let queue = ["kept", "buried"][n % 2];
    loop {
        let server = {
            let servers = servers.read().await;
            servers[rand::random_range(0..servers.len())].clone()
        };
        let ask = json!({"count": 9, "lease_ms": 300, "wait_ms": 500, "worker": "forgetful"});
        let path = format!("/v1/queues/{queue}/reserve");
        let Ok((200, answer)) = server.try_send(reqwest::Method::POST, &path, Some(ask)).await else {
            tokio::time::sleep(Duration::from_millis(20)).await; // the pace of trying again
            continue;
        };
        for job in answer["jobs"].as_array().unwrap() {
            let delivery = format!("{} {}", text(job, "id"), job["attempt"]);
            assert_eq!(delivered.note(&delivery), 1, "delivered twice: {job}");
        }
    }
}

async fn kill_some(place: &Place, servers: &Servers, delivered: &Tally) {
    for step in 1..=2 {
        let reached = step * JOBS / 2;
        until("some jobs are held", || async { delivered.len() >= reached }).await;
        let mut servers = servers.write().await;
        if servers.len() > 1 {
            let victim = rand::random_range(0..servers.len());
            kill_9(&servers.swap_remove(victim)).await;
        } else {
            kill_9(&servers[0]).await;
            servers[0] = Arc::new(Server::start(&place.url).await);
        }
    }
}

/// The server that gave the reservation is dead; where there is but one, its successor takes it back.
async fn a_reservation_outlives_the_server_that_gave_it_but_not_its_lease(place: &Place) {
    let mut giver = Server::start(&place.url).await;
    let id = giver.push("work", json!({"payload": 1})).await;
    let first = giver.reserve("work", json!({"lease_ms": 1500})).await.remove(0);
    let other = if place.url.starts_with("mongodb") {
        let other = Server::start_with(&place.url, NO_POLL).await;
        giver.kill();
        other
    } else {
        giver.kill();
        Server::start_with(&place.url, NO_POLL).await
    };
    let again = other.reserve("work", json!({"wait_ms": 50_000, "lease_ms": LONG_MS})).await.remove(0);
    assert_eq!((&again["id"], &again["attempt"]), (&json!(id), &json!(2)));
    let at = |job: &Value, field: &str| text(job, field).parse::<Timestamp>().unwrap().millis();
    let (started, end) = (at(&again, "started_at"), at(&first, "reserved_until"));
    assert!(started + LAG_MS >= end, "{first} {again}");
    assert_eq!(other.settle(&first, "commit", json!({})).await.0, 409);
    assert_eq!(other.settle(&again, "commit", json!({})).await.0, 200);
}

async fn a_lapse_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, NO_POLL).await;
    server.push("work", json!({"payload": 1})).await;
    let first = server.reserve("work", json!({"lease_ms": 300})).await.remove(0);
    let start = Instant::now();
    let again = server.reserve("work", json!({"wait_ms": 55_000, "lease_ms": LONG_MS})).await;
    assert_eq!((&again[0]["id"], &again[0]["attempt"]), (&first["id"], &json!(2)));
    assert!(start.elapsed() < SOON, "only the safety net woke it: {:?}", start.elapsed());
}

async fn an_extended_reservation_is_left_alone(place: &Place) {
    let server = Server::start(&place.url).await;
    // On a machine that is busy the extend may come too late; then the next one has more time.
    for lease_ms in [1000, 4000, 16_000] {
        let (since, queue) = (Instant::now(), format!("work-{lease_ms}"));
        let id = server.push(&queue, json!({"payload": 1})).await;
        let other = server.push(&queue, json!({"payload": 2})).await;
        let jobs = server.reserve(&queue, json!({"count": 2, "lease_ms": lease_ms})).await;
        let job = jobs.iter().find(|job| job["id"] == json!(id)).unwrap();
        let (status, answer) = server.settle(job, "extend", json!({"lease_ms": LONG_MS})).await;
        if status == 409 && since.elapsed() >= Duration::from_millis(lease_ms) {
            continue;
        }
        assert_eq!(status, 200, "{answer}");
        until("the other one has lapsed", || async {
            server.get(&format!("/v1/jobs/{other}")).await.1["state"] == "ready"
        })
        .await;
        let now = server.get(&format!("/v1/jobs/{id}")).await.1;
        assert_eq!((&now["state"], &now["attempt"]), (&json!("reserved"), &json!(1)), "{now}");
        assert_eq!(now["reserved_until"], answer["reserved_until"]);
        assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
        return;
    }
    panic!("no extend came in time");
}

async fn is_gone(server: &Server, id: &str) -> bool {
    server.get(&format!("/v1/jobs/{id}")).await.0 == 404
}

/// A job that expires in so long.
fn expiring(ms: u64) -> Value {
    json!({"payload": 1, "expires_in_ms": ms})
}

/// A job that is held, and how long after its push it expires.
async fn held_and_expiring(server: &Server, queue: &str, lease_ms: u64) -> (Value, u64) {
    // On a machine that is busy it may have expired before it is delivered; then the next one has more time.
    for expires_ms in [3000, 12_000, 48_000] {
        server.push(queue, expiring(expires_ms)).await;
        if let Some(job) = server.reserve(queue, json!({"lease_ms": lease_ms})).await.pop() {
            return (job, expires_ms);
        }
    }
    panic!("no job was delivered in time");
}

async fn a_job_past_its_expiry_leaves_unless_it_is_held(place: &Place) {
    let server = Server::start(&place.url).await;
    let (mut held, mut last) = (Vec::new(), 0);
    for queue in ["settled", "rolled-back", "lapsing"] {
        let lease_ms = if queue == "lapsing" { 4000 } else { LONG_MS };
        let (job, expires_ms) = held_and_expiring(&server, queue, lease_ms).await;
        held.push(job);
        last = expires_ms.max(last);
    }
    let ready = server.push("idle", expiring(100)).await;
    let mut scheduled = expiring(last + 1000);
    scheduled["delay_ms"] = json!(LONG_MS);
    let scheduled = server.push("idle", scheduled).await;
    until("the ready one is gone", || is_gone(&server, &ready)).await;
    until("the scheduled one is gone", || is_gone(&server, &scheduled)).await; // and so is the time of the held ones
    for job in &held[..2] {
        assert_eq!(server.get(&format!("/v1/jobs/{}", text(job, "id"))).await.1["state"], "reserved");
    }
    assert_eq!(server.settle(&held[0], "commit", json!({})).await.0, 200);
    let (status, answer) = server.settle(&held[1], "rollback", json!({"delay_ms": 0})).await;
    assert_eq!(status, 200, "{answer}");
    assert!(is_gone(&server, &text(&held[1], "id")).await);
    until("the lapsed one is gone", || is_gone(&server, held[2]["id"].as_str().unwrap())).await;
    for queue in ["settled", "rolled-back", "lapsing", "idle"] {
        assert!(browse(&server, queue).await.is_empty(), "{queue}");
    }
}

/// Reserves jobs, again where the store is too slow for the server's deadline, until some are delivered.
async fn delivered(server: &Server, queue: &str, ask: Value) -> Vec<Value> {
    let jobs = Mutex::new(Vec::new());
    until("a job is delivered", || async {
        let (status, answer) = server.post(&format!("/v1/queues/{queue}/reserve"), ask.clone()).await;
        assert!([200, 503].contains(&status), "{answer}");
        *jobs.lock().unwrap() = answer["jobs"].as_array().cloned().unwrap_or_default();
        !jobs.lock().unwrap().is_empty()
    })
    .await;
    jobs.into_inner().unwrap()
}

/// Reserves the job of this queue, and holds it in a transaction before its lease is over. Returns the job and how long the lease was.
async fn held_in_a_transaction(
    server: &Server,
    database: &Database,
    queue: &str,
) -> (Value, u64, OpenTransaction) {
    // On a machine that is busy the transaction may come too late; then the next lease is longer.
    for lease_ms in [300, 1200, 4800, 19_200] {
        let ask = json!({"lease_ms": lease_ms, "wait_ms": 5000});
        let job = delivered(server, queue, ask).await.remove(0);
        if let Some(open) = OpenTransaction::on(database, &text(&job, "id"), "reserved").await {
            return (job, lease_ms, open);
        }
    }
    panic!("no transaction came in time");
}

/// Lets reservations run out in so long, in as many calls as that takes where the store is too slow for the deadline.
async fn shorten(server: &Server, jobs: &[Value], lease_ms: u64) {
    for job in jobs {
        until("the lease is shorter", || async {
            let (status, answer) = server.settle(job, "extend", json!({"lease_ms": lease_ms})).await;
            assert!([200, 409, 503].contains(&status), "{answer}");
            status != 503 // 409: a call that was not answered did it, and the lease is over
        })
        .await;
    }
}

/// What lapses at the same time as a job that a transaction holds, as a killed server leaves one behind, does not wait for its end.
async fn a_lapse_does_not_wait_for_a_transaction_on_another_job(_: &Place) {
    const OTHERS: usize = 5;
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    // Of another server, whose deadline no machine runs into.
    let mut before = Server::start(&mongod.url()).await;
    let id = before.push("held", json!({"payload": 1, "max_attempts": 100})).await;
    let mut others = push_many(&before, "others", OTHERS, json!({})).await;
    let reserved = before.reserve("others", json!({"count": OTHERS, "lease_ms": LONG_MS})).await;
    assert_eq!(reserved.len(), OTHERS);
    assert!(before.terminate().await.success());
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let database = Client::with_uri_str(mongod.url()).await.unwrap().default_database().unwrap();
    let (held, lease_ms, mut open) = held_in_a_transaction(&server, &database, "held").await;
    assert_eq!(held["id"], json!(id));
    shorten(&server, &reserved, lease_ms + 2000).await; // behind that of the job that is held
    // The transaction lives for much longer than is waited for them.
    let mut lapsed = Vec::new();
    while lapsed.len() < OTHERS {
        let ask = json!({"count": OTHERS, "wait_ms": 5000, "lease_ms": LONG_MS});
        lapsed.extend(delivered(&server, "others", ask).await);
    }
    let mut ids: Vec<String> = lapsed.iter().map(|job| text(job, "id")).collect();
    ids.sort();
    others.sort();
    assert_eq!(ids, others);
    assert!(lapsed.iter().all(|job| job["attempt"] == 2), "{lapsed:?}");
    until("nothing else is found", || async {
        let (status, answer) = server.post("/v1/queues/held/reserve", json!({})).await;
        assert!(status == 503 || answer["jobs"] == json!([]), "{answer}");
        status == 200
    })
    .await;
    assert!(open.is_open().await, "the transaction is over");
    open.abort().await;
    let freed = delivered(&server, "held", json!({"wait_ms": 5000, "lease_ms": LONG_MS})).await;
    assert_eq!(freed[0]["id"], json!(id));
}

/// A deadline that comes between the read of what has run out and the one of what is next.
async fn a_deadline_that_comes_between_two_reads_is_next(place: &Place) {
    let proxy = Proxy::before(&place.url).await;
    let store = open_mongo(&proxy.url(&place.url)).await;
    store.ping().await.unwrap();
    let mut lease_ms = 1000;
    loop {
        support::push_one(&*store, support::job("q")).await;
        let held = support::claim(&*store, support::ask_for("q", 1, lease_ms)).await.remove(0);
        let first = proxy.next("find", "jobs", Fault::HoldAfter);
        let looking = tokio::spawn({
            let store = store.clone();
            async move { store.overdue(10).await.unwrap() }
        });
        first.met().await;
        until("the lease is over", || async { store.now().ok() > held.meta.reserved_until }).await;
        first.release();
        let overdue = looking.await.unwrap();
        if overdue.changes.is_empty() {
            assert!(overdue.next_in_ms.is_some(), "nothing is said to come");
            break;
        }
        // The lease was over before the first read.
        support::apply_all(&*store, overdue.changes, &Rules::default()).await;
        lease_ms *= 4;
    }
    store.close().await;
}

/// What only one store has: transactions of other programs that hold single jobs, and two reads of what runs out.
mod one_store {
    use super::*;

    on_one_store! {
        mongo:
        a_lapse_does_not_wait_for_a_transaction_on_another_job
        a_deadline_that_comes_between_two_reads_is_next
    }
}

on_every_store! {
    every_lost_reservation_comes_back_and_ends_dead_once
    a_reservation_outlives_the_server_that_gave_it_but_not_its_lease
    a_lapse_wakes_whoever_waits
    an_extended_reservation_is_left_alone
    a_job_past_its_expiry_leaves_unless_it_is_held
}
