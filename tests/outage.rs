//! MongoDB goes away, freezes, and comes back. MongoDB only: an embedded file cannot go away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::fleet::{Tally, browse, push_many, text};
use common::own_mongod::OwnMongod;
use common::server::{LOOKED, SHIPPED_DEADLINE, Server, command, metric, until, until_looked};
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

/// Longer than any of these tests takes: nothing lapses by accident.
const LONG_MS: u64 = 600_000;
/// How soon a call must say that the store is away.
const PROMPT: Duration = Duration::from_secs(2);

/// The calls that people and programs rely on, with a job and a token that may or may not exist.
fn calls() -> Vec<(Method, &'static str, Option<Value>)> {
    let token = json!({"reservation": "AAAAAAAAAAAAAAAAAAAAAAAAAA"});
    vec![
        (Method::POST, "/v1/queues/work/jobs", Some(json!({"payload": 1}))),
        (Method::POST, "/v1/queues/work/jobs", Some(json!({"payload": 1, "key": "k"}))),
        (Method::POST, "/v1/queues/work/reserve", Some(json!({}))),
        (Method::POST, "/v1/queues/work/reserve", Some(json!({"wait_ms": 30_000}))),
        (Method::POST, "/v1/reserve", Some(json!({"queues": ["work", "other"], "wait_ms": 30_000}))),
        (Method::POST, "/v1/queues/work/pop", Some(json!({"wait_ms": 30_000}))),
        (Method::POST, "/v1/jobs/01AAAAAAAAAAAAAAAAAAAAAAAA/commit", Some(token.clone())),
        (Method::POST, "/v1/jobs/01AAAAAAAAAAAAAAAAAAAAAAAA/rollback", Some(token.clone())),
        (Method::POST, "/v1/jobs/01AAAAAAAAAAAAAAAAAAAAAAAA/extend", Some(token)),
        (Method::GET, "/v1/jobs/01AAAAAAAAAAAAAAAAAAAAAAAA", None),
        (Method::DELETE, "/v1/jobs/01AAAAAAAAAAAAAAAAAAAAAAAA", None),
        (Method::GET, "/v1/queues", None),
        (Method::GET, "/v1/queues/work/jobs", None),
        (Method::PUT, "/v1/queues/work", Some(json!({"lease_ms": 5000}))),
        (Method::GET, "/v1/queues/work/stats", None),
        (Method::GET, "/stats", None),
    ]
}

/// Fills a queue with jobs, whose ids it returns: by a server of its own, whose deadline no machine runs into.
async fn filled(mongod: &OwnMongod, queue: &str, count: usize, job: Value) -> Vec<String> {
    let mut server = Server::start(&mongod.url()).await;
    let ids = push_many(&server, queue, count, job).await;
    assert!(server.terminate().await.success());
    ids
}

/// All jobs of a queue, by such a server.
async fn all(mongod: &OwnMongod, queue: &str) -> Vec<Value> {
    browse(&Server::start(&mongod.url()).await, queue).await
}

/// Makes a call of a server with the shipped deadline, again where the store did not answer in time: on a busy machine it may not.
async fn patiently(server: &Server, path: &str, body: Value) -> (u16, Value) {
    let last = Mutex::new((0, Value::Null));
    until("the store answers in time", || async {
        let answer = server.post(path, body.clone()).await;
        let is_in_time = answer.0 != 503;
        *last.lock().unwrap() = answer;
        is_in_time
    })
    .await;
    last.into_inner().unwrap()
}

/// Every call answers 503, soon. One that is late has more chances: the machine may have been busy.
async fn all_calls_say_that_the_store_is_away(server: &Server) {
    let answers = calls().into_iter().map(|(method, path, body)| async move {
        let mut took = Duration::MAX;
        if path.ends_with("stats") {
            until("the figures of before are too old", || async { server.get(path).await.0 != 200 }).await;
        }
        for _ in 0..10 {
            let start = Instant::now();
            let mut request = server.http.request(method.clone(), format!("{}{path}", server.base));
            if let Some(body) = &body {
                request = request.json(body);
            }
            let response = request.send().await.unwrap();
            let (status, retry_after) = (response.status(), response.headers().get("retry-after").cloned());
            let problem: Value = response.json().await.unwrap_or_default();
            assert_eq!(status, 503, "{method} {path}: {problem}");
            assert_eq!(problem["code"], "store-unavailable", "{method} {path}: {problem}");
            assert_eq!(problem["retryable"], true, "{method} {path}: {problem}");
            assert!(retry_after.is_some(), "{method} {path}: no Retry-After");
            took = took.min(start.elapsed());
            if took < PROMPT {
                break;
            }
        }
        (took >= PROMPT).then(|| format!("{method} {path} took {took:?}"))
    });
    let late: Vec<String> = join_all(answers).await.into_iter().flatten().collect();
    assert!(late.is_empty(), "{late:?}");
}

async fn is_alive_but_not_ready(server: &Server) {
    assert_eq!(server.get("/healthz").await.0, 200);
    until("it is not ready", || async { server.get("/readyz").await.0 == 503 }).await;
}

/// Commits a job whose lease is long.
async fn commit(server: &Server, job: &Value) {
    let path = format!("/v1/jobs/{}/commit", text(job, "id"));
    let (status, answer) = patiently(server, &path, json!({"reservation": job["reservation"]})).await;
    assert_eq!(status, 200, "{answer}");
}

/// One whole life, tried again while the store is not yet back for everybody.
async fn serves_again(server: &Server) {
    server.until_ready().await;
    until("a push works", || async {
        server.post("/v1/queues/again/jobs", json!({"payload": 1})).await.0 == 201
    })
    .await;
    until("the job is delivered", || async {
        let (status, answer) = server.post("/v1/queues/again/reserve", json!({"lease_ms": LONG_MS})).await;
        if status != 200 || answer["jobs"] == json!([]) {
            return false;
        }
        commit(server, &answer["jobs"][0]).await;
        true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_start_before_its_database() {
    let mut mongod = OwnMongod::idle();
    let server = Server::launch(&mongod.url(), &[SHIPPED_DEADLINE]);
    is_alive_but_not_ready(&server).await;
    all_calls_say_that_the_store_is_away(&server).await;
    mongod.run().await;
    serves_again(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_killed_is_waited_for() {
    let mut mongod = OwnMongod::start().await;
    let mut ids = filled(&mongod, "work", 60, json!({})).await;
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let ask = json!({"count": 20, "lease_ms": LONG_MS});
    let (status, answer) = patiently(&server, "/v1/queues/work/reserve", ask).await;
    assert_eq!(status, 200, "{answer}");
    let held = answer["jobs"].as_array().unwrap();
    assert!(!held.is_empty());
    let looked = metric(&server, LOOKED).await as u32;
    let ask = json!({"wait_ms": 60_000});
    let waiting = async { server.post("/v1/queues/idle/reserve", ask).await };
    let outage = async {
        until_looked(&server, looked + 1).await; // it found nothing, and waits
        mongod.kill();
        all_calls_say_that_the_store_is_away(&server).await;
        is_alive_but_not_ready(&server).await;
    };
    let ((status, problem), ()) = tokio::join!(waiting, outage);
    assert_eq!((status, &problem["code"]), (503, &json!("store-unavailable")), "{problem}");
    mongod.run().await;
    serves_again(&server).await;
    for job in held {
        commit(&server, job).await;
        ids.retain(|id| job["id"] != json!(id));
    }
    ids.sort();
    let left = all(&mongod, "work").await.iter().map(|job| text(job, "id")).collect::<Vec<_>>();
    assert_eq!(left.iter().filter(|id| ids.contains(id)).count(), ids.len(), "{ids:?} {left:?}");
}

/// However many ask at once: none waits for what others ask the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_say_soon_that_the_store_is_away() {
    let mongod = OwnMongod::start().await;
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let pushed = patiently(&server, "/v1/queues/work/jobs", json!({"payload": 1})).await;
    assert_eq!(pushed.0, 201, "{}", pushed.1);
    tokio::time::sleep(Duration::from_secs(2)).await; // at least: what was counted may be a second old
    mongod.freeze();
    let call = |round: usize, n: usize| {
        let (path, body) = match n % 2 {
            0 => (format!("/v1/queues/new{round}-{n}/jobs"), json!({"payload": 1})),
            _ => ("/v1/queues/work/reserve".to_owned(), json!({})),
        };
        let request = server.http.post(format!("{}{path}", server.base)).json(&body);
        let request = request.header("idempotency-key", format!("k{round}-{n}"));
        async move {
            let start = Instant::now();
            let status = request.send().await.unwrap().status().as_u16();
            (status, start.elapsed())
        }
    };
    // Those that are late have more chances: the machine may have been busy.
    let mut late = Vec::new();
    for round in 0..5 {
        let answers = join_all((0..40).map(|n| call(round, n))).await;
        assert!(answers.iter().all(|(status, _)| *status == 503), "{answers:?}");
        late = answers.into_iter().filter(|(_, took)| *took > Duration::from_secs(8)).collect();
        if late.is_empty() {
            break;
        }
    }
    mongod.thaw();
    assert!(late.is_empty(), "{late:?}");
}

/// Somebody waits on one server and is woken by a push on another.
async fn a_push_is_heard_elsewhere(one: &Server, other: &Server, queue: &str) {
    const SWEPT: &str = "tailback_store_call_seconds_count{call=\"stocked\"}";
    let path = |call: &str| format!("/v1/queues/{queue}/{call}");
    let (swept, reserve, stats, jobs) =
        (metric(other, SWEPT).await, path("reserve"), path("stats"), path("jobs"));
    let waiting = patiently(other, &reserve, json!({"wait_ms": 50_000}));
    let pushing = async {
        // Then it has looked for what came before the other server knew of its waiter.
        until("the waiter's server has looked again", || async { metric(other, SWEPT).await > swept }).await;
        // Signals that were heard may be older ones: who has subscribed anew reads them again.
        until("the waiter is known", || async { one.get(&stats).await.1["waiting"]["elsewhere"] == true })
            .await;
        let since = Instant::now();
        let (status, pushed) = patiently(one, &jobs, json!({"payload": 1})).await;
        assert_eq!(status, 201, "{pushed}");
        since
    };
    let ((status, answer), since) = tokio::join!(waiting, pushing);
    assert_eq!((status, answer["jobs"].as_array().map(Vec::len)), (200, Some(1)), "{answer}");
    assert!(since.elapsed() < Duration::from_secs(20), "nobody woke the waiter");
}

/// Servers hear each other through a stream that MongoDB feeds. They look by themselves only once a minute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_hear_each_other_again_after_an_outage() {
    let mut mongod = OwnMongod::start().await;
    let alone = [("TAILBACK_WAIT__POLL_MS", "60000"), SHIPPED_DEADLINE];
    let one = Server::start_with(&mongod.url(), &alone).await;
    let other = Server::start_with(&mongod.url(), &alone).await;
    a_push_is_heard_elsewhere(&one, &other, "before").await;
    mongod.kill();
    is_alive_but_not_ready(&one).await;
    is_alive_but_not_ready(&other).await;
    mongod.run().await;
    serves_again(&one).await;
    serves_again(&other).await;
    a_push_is_heard_elsewhere(&one, &other, "after").await;
}

/// Clients go on while the database stands still for some seconds. Some of their calls end without an answer
/// from it, and must neither lose a job nor leave two workers with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_freezes_loses_nothing() {
    let mongod = OwnMongod::start().await;
    let ids = filled(&mongod, "work", 300, json!({"max_attempts": 1000})).await;
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let tokens: Mutex<HashMap<String, Vec<Value>>> = Mutex::default();
    let reserve = |_| async {
        for _ in 0..40 {
            let ask = json!({"count": 3, "lease_ms": LONG_MS});
            let (status, answer) = server.post("/v1/queues/work/reserve", ask).await;
            assert!([200, 503].contains(&status), "{answer}");
            for job in answer["jobs"].as_array().into_iter().flatten() {
                tokens.lock().unwrap().entry(text(job, "id")).or_default().push(job.clone());
            }
        }
    };
    let acknowledged = Tally::default();
    let push = |_| async {
        for _ in 0..20 {
            let (status, answer) = server.post("/v1/queues/pushed/jobs", json!({"payload": 1})).await;
            assert!([201, 503].contains(&status), "{answer}");
            if status == 201 {
                assert_eq!(acknowledged.note(&text(&answer, "id")), 1);
            }
        }
    };
    let freeze = async {
        until("jobs are given out", || async { tokens.lock().unwrap().len() > 20 }).await;
        mongod.freeze();
        all_calls_say_that_the_store_is_away(&server).await;
        is_alive_but_not_ready(&server).await;
        mongod.thaw();
    };
    tokio::join!(join_all((0..8).map(reserve)), join_all((0..4).map(push)), freeze);
    serves_again(&server).await;
    collect_the_rest(&server, &tokens, &ids).await;
    let tokens = tokens.into_inner().unwrap();
    for (id, jobs) in &tokens {
        let (path, mut valid) = (format!("/v1/jobs/{id}/extend"), 0);
        for job in jobs {
            let body = json!({"lease_ms": LONG_MS, "reservation": job["reservation"]});
            let (status, answer) = patiently(&server, &path, body).await;
            assert!([200, 409].contains(&status), "{answer}");
            valid += usize::from(status == 200);
        }
        assert_eq!(valid, 1, "valid tokens of {id}: {jobs:?}");
    }
    let pushed: Vec<String> = all(&mongod, "pushed").await.iter().map(|job| text(job, "id")).collect();
    assert!(acknowledged.seen().keys().all(|id| pushed.contains(id)), "an acknowledged push was lost");
}

/// What calls without an answer may have won is given back by itself, long before its lease is over. None is lost.
async fn collect_the_rest(server: &Server, tokens: &Mutex<HashMap<String, Vec<Value>>>, ids: &[String]) {
    until("every job has been delivered", || async {
        let ask = json!({"count": 100, "lease_ms": LONG_MS});
        let (status, answer) = server.post("/v1/queues/work/reserve", ask).await;
        assert!([200, 503].contains(&status), "{answer}");
        let mut tokens = tokens.lock().unwrap();
        for job in answer["jobs"].as_array().into_iter().flatten() {
            tokens.entry(text(job, "id")).or_default().push(job.clone());
        }
        // The calls during the outage pushed some more.
        ids.iter().all(|id| tokens.contains_key(id))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_mongod_is_refused_with_the_command_that_mends_it() {
    let mongod = OwnMongod::standalone().await;
    let with_set = mongod.url();
    let without_set = with_set.split('?').next().unwrap().to_owned();
    for url in [with_set, without_set] {
        let mut refused = command(&url, &[]);
        refused.stderr(std::process::Stdio::piped());
        let output = tokio::task::spawn_blocking(move || refused.output().unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--replSet") && said.contains("rs.initiate"), "{said}");
    }
}
