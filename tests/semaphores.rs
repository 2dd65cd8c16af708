//! Limits that hold across servers: many clients of several servers over one store, and what they see by themselves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::fleet::{Tally, browse, fleet, push_many, text};
use common::open_transaction::{FOR_AN_HOUR, OpenTransaction};
use common::own_mongod::OwnMongod;
use common::server::{Place, SHIPPED_DEADLINE, Server, until};
use mongodb::Client;
use mongodb::bson::{Document, doc};
use reqwest::Method;
use serde_json::{Value, json};
use tailback::job::Timestamp;
use tokio::task::JoinSet;

/// How many clients work at once.
const CLIENTS: usize = 12;
/// Longer than any of these tests takes: nothing lapses by accident.
const LONG_MS: u64 = 600_000;

/// How many jobs the clients hold, by what they know themselves: from the answer of a reserve to the call that
/// settles it.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    fn take(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn give(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn put(server: &Server, path: &str, body: Value) {
    let (status, answer) = server.send(Method::PUT, path, Some(body)).await;
    assert_eq!(status, 200, "{answer}");
}

/// Reserves and commits until so many jobs are done; answers when each was delivered. The first one is held until another one is as
/// well, however slow the clients are.
async fn work_off(servers: &[Arc<Server>], jobs: usize, gauge: &Arc<Gauge>) -> Vec<i64> {
    let done = Tally::default();
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (server, done, gauge) = (servers[n % servers.len()].clone(), done.clone(), gauge.clone());
        clients.spawn(async move {
            let mut started = Vec::new();
            while done.len() < jobs {
                let ask = json!({"queues": ["a", "b"], "wait_ms": 500, "lease_ms": LONG_MS});
                let (status, answer) = server.post("/v1/reserve", ask).await;
                assert!([200, 503].contains(&status), "{answer}");
                for job in answer["jobs"].as_array().into_iter().flatten() {
                    gauge.take();
                    until("two are held", || async { gauge.most.load(Ordering::SeqCst) >= 2 }).await;
                    assert_eq!(job["attempt"], 1, "{job}");
                    started.push(text(job, "started_at").parse::<Timestamp>().unwrap().millis());
                    tokio::time::sleep(Duration::from_millis(rand::random_range(0..10))).await; // the work
                    gauge.give();
                    let id = text(job, "id");
                    let commit = json!({"reservation": job["reservation"]});
                    let mut status = 503;
                    while status == 503 {
                        status = server.post(&format!("/v1/jobs/{id}/commit"), commit.clone()).await.0;
                    }
                    assert!([200, 409].contains(&status), "{status}"); // 409: a lost answer had come through
                    assert_eq!(done.note(&id), 1);
                }
            }
            started
        });
    }
    let mut started = clients.join_all().await.concat();
    started.sort_unstable();
    started
}

async fn no_semaphore_has_too_many_holders_across_servers(place: &Place) {
    const JOBS: usize = 150;
    let servers = fleet(place).await;
    put(&servers[0], "/v1/semaphores/s", json!({"capacity": 3})).await;
    put(&servers[0], "/v1/semaphores/t", json!({"capacity": 50})).await;
    push_many(&servers[0], "a", JOBS / 2, json!({"semaphores": ["s"]})).await;
    push_many(&servers[0], "b", JOBS / 2, json!({"semaphores": ["t", "s"]})).await;
    let gauge = Arc::new(Gauge::default());
    let started = work_off(&servers, JOBS, &gauge).await;
    assert_eq!(started.len(), JOBS);
    let most = gauge.most.load(Ordering::SeqCst);
    assert!((2..=3).contains(&most), "{most} held it at once");
    for queue in ["a", "b"] {
        assert_eq!(browse(&servers[0], queue).await, Vec::<Value>::new());
    }
    let (_, semaphore) = servers[0].get("/v1/semaphores/s").await;
    assert_eq!((&semaphore["held"], &semaphore["waiting"]), (&json!(0), &json!(0)), "{semaphore}");
}

/// One server has found it full, and is asked all the time; room is made at another one, that has nobody waiting.
async fn room_that_is_made_elsewhere_is_found(place: &Place) {
    const JOBS: usize = 20;
    let servers = fleet(place).await;
    let (asked, other) = (&servers[0], servers.last().unwrap());
    put(other, "/v1/semaphores/s", json!({"capacity": 1})).await;
    push_many(other, "a", JOBS, json!({"semaphores": ["s"]})).await;
    let take = async |server: &Server, mut ask: Value| {
        ask["lease_ms"] = json!(LONG_MS);
        server.post("/v1/queues/a/reserve", ask).await.1["jobs"].clone()
    };
    let mut holder = take(other, json!({})).await;
    for n in 0..JOBS - 1 {
        for _ in 0..3 {
            assert_eq!(take(asked, json!({"count": 2})).await, json!([]));
        }
        let waiting = take(asked, json!({"wait_ms": 60_000}));
        let release = async {
            let mut body = json!({"reservation": holder[0]["reservation"]});
            let mut path = format!("/v1/jobs/{}/commit", text(&holder[0], "id"));
            if n == 3 {
                path = path.replace("commit", "rollback");
                body["dead"] = json!(true);
            }
            let (status, answer) = other.post(&path, body).await;
            assert_eq!(status, 200, "{answer}");
        };
        let (won, ()) = tokio::join!(waiting, release);
        assert_eq!(won.as_array().map(Vec::len), Some(1), "after {n}");
        holder = won;
    }
    for _ in 0..3 {
        assert_eq!(take(asked, json!({"count": 2})).await, json!([]));
    }
    // What another server pushes behind refused jobs, or raises, is found as well.
    push_many(other, "a", 2, json!({"semaphores": ["s"]})).await;
    put(other, "/v1/semaphores/s", json!({"capacity": 2})).await;
    assert_eq!(take(asked, json!({"wait_ms": 60_000})).await.as_array().map(Vec::len), Some(1));
    push_many(other, "a", 1, json!({})).await;
    let plain = take(asked, json!({"wait_ms": 60_000})).await;
    assert!(plain[0]["semaphores"].as_array().is_none_or(Vec::is_empty), "{plain}");
    assert!(plain[0].is_object(), "{plain}");
}

async fn limits_of_a_queue_hold_across_servers(place: &Place) {
    const JOBS: usize = 90;
    let servers = fleet(place).await;
    let settings = json!({"max_reserved": 4, "rate": {"limit": 20, "per_ms": 500}});
    put(&servers[0], "/v1/queues/a", settings).await;
    for server in &servers {
        let path = "/v1/queues/a";
        until("the settings are known", || async { server.get(path).await.1["max_reserved"] == 4 }).await;
    }
    push_many(&servers[0], "a", JOBS, json!({})).await;
    let gauge = Arc::new(Gauge::default());
    let started = work_off(&servers, JOBS, &gauge).await;
    let most = gauge.most.load(Ordering::SeqCst);
    assert!((2..=4).contains(&most), "{most} were reserved at once");
    for first in &started {
        let within = started.iter().filter(|at| (*first..first + 500).contains(*at)).count();
        assert!(within <= 20, "{within} deliveries in one window");
    }
}

/// More semaphores than one check is about.
async fn every_semaphore_is_checked_in_its_turn(place: &Place) {
    const SEMAPHORES: usize = 1001;
    let mut server = Server::start(&place.url).await;
    let names: Vec<String> = (0..SEMAPHORES).map(|n| format!("s{n:04}")).collect();
    for name in &names {
        put(&server, &format!("/v1/semaphores/{name}"), json!({"capacity": 1})).await;
    }
    let push_all = async |queue: &str, jobs: Vec<Value>| {
        let (status, answer) =
            server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({"jobs": jobs})).await;
        assert_eq!(status, 200, "{answer}");
    };
    push_all("held", names.chunks(16).map(|names| json!({"payload": 1, "semaphores": names})).collect())
        .await;
    let ask = json!({"count": 1000, "lease_ms": LONG_MS});
    assert_eq!(server.reserve("held", ask.clone()).await.len(), SEMAPHORES.div_ceil(16));
    for names in names.chunks(1000) {
        push_all("work", names.iter().map(|name| json!({"payload": name, "semaphores": [name]})).collect())
            .await;
    }
    assert_eq!(server.reserve("work", ask.clone()).await, Vec::<Value>::new());
    assert!(server.terminate().await.success());
    // Room that no server has heard of, behind the first thousand.
    let file = rusqlite::Connection::open(place.url.trim_start_matches("sqlite:")).unwrap();
    let last = &names[SEMAPHORES - 1];
    file.execute("UPDATE semaphores SET capacity = 2 WHERE name = ?1", [last]).unwrap();
    drop(file);
    let server = Server::start(&place.url).await;
    let won = server.reserve("work", json!({"wait_ms": 60_000})).await;
    assert_eq!(won.iter().map(|job| &job["payload"]).collect::<Vec<_>>(), [last]);
}

/// Commits a job, in as many calls as that takes where the store is too slow for the deadline.
async fn commit(server: &Server, job: &Value) {
    until("the job is committed", || async {
        let (status, answer) = server.settle(job, "commit", json!({})).await;
        assert!([200, 503].contains(&status), "{answer}");
        status == 200
    })
    .await;
}

/// The id of the job of this queue, once it is delivered, likewise.
async fn delivered(server: &Server, queue: &str) -> String {
    let id = Mutex::new(String::new());
    until("the job is delivered", || async {
        let ask = json!({"wait_ms": 5000, "lease_ms": LONG_MS});
        let (status, answer) = server.post(&format!("/v1/queues/{queue}/reserve"), ask).await;
        assert!([200, 503].contains(&status), "{answer}");
        let Some(job) = answer["jobs"].get(0) else { return false };
        *id.lock().unwrap() = text(job, "id");
        true
    })
    .await;
    id.into_inner().unwrap()
}

/// A transaction that holds a blocked job, as a killed server leaves one behind, keeps only the semaphore of that job from being served.
async fn a_semaphore_does_not_wait_for_a_transaction_on_a_job_of_another(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    // Of another server, whose deadline no machine runs into.
    let mut before = Server::start(&mongod.url()).await;
    let (mut holders, mut blocked) = (Vec::new(), Vec::new());
    for name in ["a", "b"] {
        put(&before, &format!("/v1/semaphores/{name}"), json!({"capacity": 1})).await;
        let job = json!({"payload": 1, "semaphores": [name]});
        before.push(name, job.clone()).await;
        holders.push(before.reserve(name, json!({"lease_ms": LONG_MS})).await.remove(0));
        let id = before.push(name, job).await;
        assert_eq!(before.reserve(name, json!({})).await, Vec::<Value>::new());
        let path = format!("/v1/jobs/{id}");
        until("it is blocked", || async { before.get(&path).await.1["state"] == "blocked" }).await;
        blocked.push(id);
    }
    assert!(before.terminate().await.success());
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let database = Client::with_uri_str(mongod.url()).await.unwrap().default_database().unwrap();
    let open = OpenTransaction::on(&database, &blocked[0], "blocked").await;
    let mut open = open.expect("nobody else changes it");
    for holder in &holders {
        commit(&server, holder).await;
    }
    // The transaction lives for much longer than is waited for this one.
    assert_eq!(delivered(&server, "b").await, blocked[1]);
    let jobs = database.collection::<Document>("jobs");
    let held = jobs.find_one(doc! { "_id": &blocked[0], "state": "blocked" }).await.unwrap();
    assert!(held.is_some(), "it was unblocked");
    assert!(open.is_open().await, "the transaction is over");
    open.abort().await;
    assert_eq!(delivered(&server, "a").await, blocked[0]);
}

/// What one store does not have, or lets another program do to a stopped server's database so simply.
mod one_store {
    use super::*;

    on_one_store! { mongo: a_semaphore_does_not_wait_for_a_transaction_on_a_job_of_another }
    on_one_store! { sqlite: every_semaphore_is_checked_in_its_turn }
}

on_every_store! {
    no_semaphore_has_too_many_holders_across_servers
    room_that_is_made_elsewhere_is_found
    limits_of_a_queue_hold_across_servers
}
