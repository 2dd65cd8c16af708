//! `tailback migrate --from --to`: a store is copied into another while no server runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod transfer {
    pub mod interrupted;
}

use std::collections::BTreeMap;
use std::process::{Command, Output};

use common::server::{PATIENCE, Place, Server, UNHURRIED, until};
use serde_json::{Value, json};
use transfer::interrupted::{
    a_copy_that_stood_still_copies_nothing, an_interrupted_copy_is_completed,
    what_was_done_since_is_not_copied_again,
};

/// A copy that runs or has run.
fn migrate(from: &str, to: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(["migrate", "--from", from, "--to", to]);
    command.env("TAILBACK_LOG__FILTER", "warn").envs([UNHURRIED]);
    command
}

async fn run(mut command: Command) -> Output {
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap()
}

/// A copy that must succeed.
async fn copy(from: &Place, to: &Place) -> String {
    verified(run(migrate(&from.url, &to.url)).await)
}

/// What a copy says that has succeeded.
fn verified(output: Output) -> String {
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}\n{errors}");
    assert!(out.contains("verified"), "{out}");
    out
}

/// A copy that must fail; answers what it says.
async fn refused(from: &str, to: &str) -> (Option<i32>, String) {
    let output = run(migrate(from, to)).await;
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const QUEUES: [&str; 7] = ["plain", "busy", "kept", "failing", "graves", "next", "timed"];

/// All jobs, as the server shows them, all settings and all schedules.
async fn everything(server: &Server) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for queue in QUEUES {
        all.insert(queue.to_owned(), server.get(&format!("/v1/queues/{queue}")).await.1);
        let (status, list) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
        assert_eq!(status, 200, "{list}");
        for job in list["jobs"].as_array().unwrap() {
            let id = job["id"].as_str().unwrap();
            all.insert(id.to_owned(), server.get(&format!("/v1/jobs/{id}")).await.1);
        }
    }
    all.insert("schedules".to_owned(), server.get("/v1/schedules").await.1);
    all
}

async fn set(server: &Server, queue: &str, settings: Value) {
    let path = format!("/v1/queues/{queue}");
    let (status, answer) = server.send(reqwest::Method::PUT, &path, Some(settings)).await;
    assert!(status < 300, "{answer}");
}

/// Sets a schedule that comes long after any test.
async fn set_schedule(server: &Server, name: &str, payload: Value) {
    let rule = json!({"cron": "0 0 29 2 *", "time_zone": "Asia/Tokyo", "queue": "timed", "job": {"payload": payload}});
    let path = format!("/v1/schedules/{name}");
    let (status, answer) = server.send(reqwest::Method::PUT, &path, Some(rule)).await;
    assert_eq!(status, 200, "{answer}");
}

/// Pushes a job and takes it for an hour.
async fn taken(server: &Server, queue: &str, job: Value) -> Value {
    server.push(queue, job).await;
    server.reserve(queue, json!({"worker": "w-1", "lease_ms": 3_600_000})).await.remove(0)
}

/// Jobs in every state. Answers one that is reserved.
async fn fill(server: &Server) -> Value {
    set(server, "kept", json!({"retain_done_ms": 3_600_000, "retain_dead_ms": 3_600_000})).await;
    set(server, "failing", json!({"dead_letter": "graves", "max_attempts": 1, "max_jobs": 2})).await;
    set(server, "busy", json!({"backoff": {"kind": "fixed", "base_ms": 3_600_000, "jitter": 0.3}})).await;
    for payload in [json!({"$a": [1.5, "ü😀\u{1}"]}), json!(null), json!({"b": 1, "a": {"c.d": []}})] {
        let headers = json!({"trace": "t"});
        server.push("plain", json!({"payload": payload, "priority": 3, "headers": headers})).await;
    }
    server.push("plain", json!({"payload": 1, "delay_ms": 3_600_000, "expires_in_ms": 7_200_000})).await;
    server.push("plain", json!({"payload": {"k": 1}, "key": "a/key", "key_ttl_ms": 3_600_000})).await;
    let kept = taken(server, "kept", json!({"payload": 2, "key": "k"})).await;
    assert_eq!(server.settle(&kept, "commit", json!({"result": {"rows": 10}})).await.0, 200);
    let dead = taken(server, "kept", json!({"payload": 3, "max_attempts": 1})).await;
    assert_eq!(server.settle(&dead, "rollback", json!({"error": "no"})).await.0, 200);
    let letter = taken(server, "failing", json!({"payload": 4})).await;
    assert_eq!(server.settle(&letter, "rollback", json!({"error": "never"})).await.0, 200);
    let waiting = taken(server, "busy", json!({"payload": 5})).await;
    assert_eq!(server.settle(&waiting, "rollback", json!({"error": "later"})).await.0, 200);
    let moved = taken(server, "busy", json!({"payload": 6})).await;
    assert_eq!(server.settle(&moved, "move", json!({"queue": "next", "payload": [6.0]})).await.0, 200);
    for name in ["leap", "year"] {
        set_schedule(server, name, json!({"exact": 1.50})).await;
    }
    assert_eq!(server.post("/v1/schedules/leap/run", json!({})).await.0, 200);
    let held = taken(server, "busy", json!({"payload": 7})).await;
    let progress = json!({"progress": {"at": 0.5}, "lease_ms": 3_600_000});
    assert_eq!(server.settle(&held, "extend", progress).await.0, 200);
    held
}

/// A batch that is not over yet, with a result. Answers its path.
async fn begin_batch(server: &Server) -> String {
    let body = json!({
        "sealed": false, "jobs": [{"queue": "batched", "payload": 1}],
        "on_finished": {"queue": "after", "payload": 1.5},
    });
    let (status, batch) = server.post("/v1/batches", body).await;
    assert_eq!(status, 201, "{batch}");
    let job = server.reserve("batched", json!({"lease_ms": 600_000})).await.remove(0);
    assert_eq!(server.settle(&job, "commit", json!({"result": {"rows": 1}})).await.0, 200);
    format!("/v1/batches/{}", batch["id"].as_str().unwrap())
}

async fn everything_arrives(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    let held = fill(&server).await;
    let batch = begin_batch(&server).await;
    let batch_before = (server.get(&batch).await, server.get(&format!("{batch}/results")).await);
    let before = everything(&server).await;
    assert!(server.terminate().await.success());
    let told = copy(from, to).await;
    assert!(told.contains("12 jobs") && told.contains("2 schedules"), "{told}");
    assert_eq!(copy(from, to).await, told, "a repeat changes nothing");

    let mut server = Server::start(&to.url).await;
    assert_eq!(everything(&server).await, before);
    let batch_now = (server.get(&batch).await, server.get(&format!("{batch}/results")).await);
    assert_eq!(
        (batch_now.1.1["results"][0]["result"]["rows"].clone(), &batch_now),
        (json!(1), &batch_before)
    );
    assert_eq!(server.post(&format!("{batch}/seal"), json!({})).await.0, 200);
    assert_eq!(server.reserve("after", json!({})).await.len(), 1);
    let repeat = json!({"payload": {"k": 1}, "key": "a/key"});
    let (status, answer) = server.post("/v1/queues/plain/jobs", repeat).await;
    assert_eq!((status, &answer["deduplicated"]), (200, &json!(true)), "{answer}");
    let (status, answer) = server.post("/v1/queues/kept/jobs", json!({"payload": 0, "key": "k"})).await;
    assert_eq!(status, 409, "{answer}");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    assert_eq!(server.reserve("plain", json!({"count": 10})).await.len(), 4);
    assert!(server.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1), "the target was used since: {told}");
}

async fn keyed_call(server: &Server, path: &str, key: &str, body: Value) -> (u16, String) {
    let call = server.http.post(format!("{}{path}", server.base)).header("idempotency-key", key);
    let answer = call.json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// What calls are answered that create and take; what is popped is more than MongoDB takes in one document of an answer.
async fn keyed_calls(server: &Server) -> Vec<(u16, String)> {
    let long: Vec<Value> = (0..6).map(|_| json!({"payload": "x".repeat(1_000_000)})).collect();
    let calls = [
        ("/v1/queues/keyed/jobs", "p", json!({"payload_base64": "AP8=", "payload_type": "image/png"})),
        ("/v1/queues/long/jobs/batch", "b", json!({"jobs": long})),
        ("/v1/queues/long/pop", "o", json!({"count": 9})),
    ];
    let mut answers = Vec::new();
    for (path, key, body) in calls {
        let answer = keyed_call(server, path, key, body).await;
        assert!(answer.0 < 300, "{}", &answer.1[..answer.1.len().min(500)]);
        answers.push(answer);
    }
    assert!(answers[2].1.len() > 6_000_000);
    answers
}

/// Retries are answered as before, and rates go on to count.
async fn what_serves_retries_arrives(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    set(&server, "rated", json!({"rate": {"limit": 2, "per_ms": 3_600_000}})).await;
    for queue in ["rated", "rated", "rated", "once"] {
        server.push(queue, json!({"payload": 1})).await;
    }
    assert_eq!(server.reserve("rated", json!({"count": 3})).await.len(), 2);
    let once = async |server: &Server| {
        let ask = json!({"count": 5, "lease_ms": 3_600_000});
        let call = server.http.post(format!("{}/v1/queues/once/reserve", server.base));
        let answer = call.header("idempotency-key", "k").json(&ask).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        answer.json::<Value>().await.unwrap()["jobs"].clone()
    };
    let held = once(&server).await;
    assert_eq!(held.as_array().unwrap().len(), 1);
    let moved = taken(&server, "busy", json!({"payload": 6})).await;
    let go_on = json!({"queue": "next", "delay_ms": 3_600_000});
    let first = server.settle(&moved, "move", go_on.clone()).await;
    let led_on = taken(&server, "busy", json!({"payload": 7})).await;
    let push = json!({"push": [{"queue": "next", "payload": 1}]});
    let pushed = server.settle(&led_on, "commit", push.clone()).await;
    assert_eq!((first.0, pushed.0), (200, 200), "{} {}", first.1, pushed.1);
    let keyed = keyed_calls(&server).await;
    assert!(server.terminate().await.success());
    let told = copy(from, to).await;
    assert!(told.contains("7 records of retries and rates"), "{told}");
    assert_eq!(copy(from, to).await, told, "a repeat changes nothing");

    let mut server = Server::start(&to.url).await;
    let repeated = |(status, mut answer): (u16, Value)| {
        answer["repeated"] = json!(true);
        (status, answer)
    };
    assert_eq!(server.settle(&moved, "move", go_on).await, repeated(first));
    assert_eq!(server.settle(&led_on, "commit", push).await, repeated(pushed), "and nothing is pushed twice");
    assert_eq!(server.get("/v1/queues/next/stats").await.1["counts"]["ready"], 1);
    assert_eq!(once(&server).await, held);
    assert_eq!(keyed_calls(&server).await, keyed, "each call gets the first response");
    assert_eq!(server.get("/v1/queues/keyed/stats").await.1["counts"]["ready"], 1);
    assert_eq!(server.get("/v1/queues/long/stats").await.1["counts"]["ready"], 0);
    let other = keyed_call(&server, "/v1/queues/keyed/jobs", "p", json!({"payload": 2})).await;
    assert_eq!(other.0, 422, "{}", other.1);
    assert_eq!(server.reserve("rated", json!({"count": 3})).await, Vec::<Value>::new());
    server.push("other", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    // A target that remembers something else is refused.
    let mut server = Server::start(&from.url).await;
    let late = taken(&server, "busy", json!({"payload": 8})).await;
    assert_eq!(server.settle(&late, "move", json!({"queue": "next"})).await.0, 200);
    assert!(server.terminate().await.success());
    assert_eq!(refused(&to.url, &from.url).await.0, Some(1));
}

async fn a_tampered_target_is_reported(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    let id = server.push("plain", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    server.push("plain", json!({"payload": 2})).await;
    assert!(server.terminate().await.success());
    copy(from, to).await;
    let mut server = Server::start(&to.url).await;
    let patch = Some(json!({"payload": 1.0}));
    assert_eq!(server.send(reqwest::Method::PATCH, &format!("/v1/jobs/{id}"), patch).await.0, 200);
    assert!(server.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1));
    assert!(told.contains(&id) && told.contains("payload") && !told.contains("priority"), "{told}");
}

async fn a_target_with_other_jobs_is_refused(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    let mut server = Server::start(&to.url).await;
    let other = server.push("own", json!({"payload": 2})).await;
    assert!(server.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1));
    assert!(told.contains(&other) && told.contains("nothing was written"), "{told}");
    let server = Server::start(&to.url).await;
    assert!(server.get("/v1/queues/plain/jobs").await.1["jobs"].as_array().unwrap().is_empty());
}

/// Operations are not copied: one that is not over would end in the middle.
async fn a_store_with_an_open_operation_is_refused(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    server.push("from", json!({"payload": 1})).await;
    let body = json!({"filter": {"queue": "from"}, "action": "move", "to": "to"});
    let (status, operation) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{operation}");
    let id = operation["id"].as_str().unwrap();
    let path = format!("/v1/operations/{id}");
    until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    assert!(server.terminate().await.success());
    let db = |sql: &str| {
        let db = rusqlite::Connection::open(from.url.strip_prefix("sqlite:").unwrap()).unwrap();
        assert_eq!(db.execute(sql, []).unwrap(), 1);
    };
    db("UPDATE operations SET finished_at = NULL");
    for (one, other) in [(&from.url, &to.url), (&to.url, &from.url)] {
        // The second way the target has it, and the first way has left no job there.
        let mut server = Server::start(&to.url).await;
        assert_eq!(server.get("/v1/queues/to/stats").await.1["counts"]["ready"], 0);
        assert!(server.terminate().await.success());
        let (code, told) = refused(one, other).await;
        assert_eq!(code, Some(1));
        assert!(told.contains(id) && told.contains("nothing was written"), "{told}");
    }
    db("UPDATE operations SET finished_at = 1");
    let told = copy(from, to).await;
    assert!(told.contains("1 jobs") && told.contains("operations"), "{told}");
}

async fn a_target_with_another_schedule_is_refused(from: &Place, to: &Place) {
    for (place, payload) in [(from, 1), (to, 2)] {
        let mut server = Server::start(&place.url).await;
        set_schedule(&server, "leap", json!(payload)).await;
        if place.url == from.url {
            server.push("plain", json!({"payload": 1})).await;
        }
        assert!(server.terminate().await.success());
    }
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1));
    assert!(told.contains("schedule leap") && told.contains("nothing was written"), "{told}");
    let server = Server::start(&to.url).await;
    assert!(server.get("/v1/queues/plain/jobs").await.1["jobs"].as_array().unwrap().is_empty());
    assert_eq!(server.get("/v1/schedules/leap").await.1["job"]["payload"], 2);
}

/// Whatever the target has that the source has not is found before anything is written.
async fn a_target_with_another_key_is_refused(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    set(&server, "plain", json!({"max_attempts": 3})).await;
    server.push("plain", json!({"payload": 1, "key": "k"})).await;
    assert!(server.terminate().await.success());
    let mut server = Server::start(&to.url).await;
    let other = taken(&server, "plain", json!({"payload": 2, "key": "k"})).await;
    assert_eq!(server.settle(&other, "commit", json!({})).await.0, 200); // its key is still taken
    assert!(server.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1));
    assert!(told.contains("the key \"k\"") && told.contains("nothing was written"), "{told}");
    let mut server = Server::start(&to.url).await;
    assert_ne!(server.get("/v1/queues/plain").await.1["max_attempts"], 3, "no setting was written");
    // A key that the source has not is no better.
    let own = taken(&server, "other", json!({"payload": 2, "key": "own"})).await;
    assert_eq!(server.settle(&own, "commit", json!({})).await.0, 200);
    assert!(server.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert!(code == Some(1) && told.contains("nothing was written"), "{told}");
}

async fn a_target_with_another_batch_is_refused(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    set(&server, "plain", json!({"max_attempts": 3})).await;
    server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    let mut server = Server::start(&to.url).await;
    let (status, batch) = server.post("/v1/batches", json!({"jobs": [], "sealed": false})).await;
    assert_eq!(status, 201, "{batch}");
    assert!(server.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1));
    let id = batch["id"].as_str().unwrap();
    assert!(told.contains(id) && told.contains("nothing was written"), "{told}");
    let server = Server::start(&to.url).await;
    assert_ne!(server.get("/v1/queues/plain").await.1["max_attempts"], 3, "no setting was written");
}

/// A server that has run on the target has left a secret there, by which no token of the source is good.
async fn held_jobs_need_their_secret(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    set(&server, "plain", json!({"max_attempts": 3})).await;
    let held = taken(&server, "plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    assert!(Server::start(&to.url).await.terminate().await.success());
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains(held["id"].as_str().unwrap()) && told.contains("nothing was written"), "{told}");
    let mut server = Server::start(&to.url).await;
    assert_ne!(server.get("/v1/queues/plain").await.1["max_attempts"], 3, "no setting was written");
    assert!(server.terminate().await.success());
    // As the error advises: without reserved jobs it may keep its secret.
    let mut server = Server::start(&from.url).await;
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    assert!(server.terminate().await.success());
    copy(from, to).await;
}

async fn a_server_on_a_file_is_in_the_way(from: &Place, to: &Place) {
    let server = Server::start(&from.url).await;
    let (code, told) = refused(&from.url, &to.url).await;
    assert_eq!(code, Some(1));
    assert!(told.contains("--from") && told.contains("in use"), "{told}");
    drop(server);
    until("the lock is given back", || async { refused(&from.url, &to.url).await.0 == Some(0) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_is_told() {
    let place = Place::sqlite().await;
    let nowhere = format!("{}-nowhere", place.url);
    let (code, told) = refused(&nowhere, &place.url).await;
    assert!(code == Some(1) && told.contains("there is no file"), "{told}");
    assert!(!std::path::Path::new(nowhere.strip_prefix("sqlite:").unwrap()).exists());
    let (code, told) = refused(&place.url, &place.url).await;
    assert!(code == Some(1) && told.contains("same store"), "{told}");
    for (from, to) in [("sqlite::memory:", &*place.url), ("redis://x", &place.url)] {
        assert_eq!(refused(from, to).await.0, Some(2));
    }
    let mut alone = Command::new(env!("CARGO_BIN_EXE_tailback"));
    alone.args(["migrate", "--from", &place.url]);
    assert_eq!(run(alone).await.status.code(), Some(2));
    place.clear().await;
}

/// One list of cases, each an `async fn(&Place, &Place)`, as a module of tests for a pair of stores.
macro_rules! from_to {
    ($name:ident, $from:ident, $to:ident: $($case:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (from, to) = (super::Place::$from().await, super::Place::$to().await);
                super::$case(&from, &to).await;
                from.clear().await;
                to.clear().await;
            })*
        }
    };
}

from_to! { mongo_to_sqlite, mongo, sqlite:
    everything_arrives what_serves_retries_arrives an_interrupted_copy_is_completed a_tampered_target_is_reported
    a_target_with_other_jobs_is_refused a_target_with_another_schedule_is_refused
    a_target_with_another_key_is_refused a_target_with_another_batch_is_refused held_jobs_need_their_secret
}
from_to! { sqlite_to_mongo, sqlite, mongo:
    everything_arrives what_serves_retries_arrives an_interrupted_copy_is_completed a_tampered_target_is_reported
    a_target_with_other_jobs_is_refused a_target_with_another_schedule_is_refused
    a_target_with_another_key_is_refused a_target_with_another_batch_is_refused held_jobs_need_their_secret
    a_server_on_a_file_is_in_the_way
}
from_to! { sqlite_to_sqlite, sqlite, sqlite:
    everything_arrives what_serves_retries_arrives a_store_with_an_open_operation_is_refused
    what_was_done_since_is_not_copied_again
}
from_to! { mongo_to_mongo, mongo, mongo:
    everything_arrives what_serves_retries_arrives a_copy_that_stood_still_copies_nothing what_was_done_since_is_not_copied_again
}
