//! What an operator reads in the log: few lines in an outage, each with its cause, and acts and lost workers by name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use common::own_mongod::OwnMongod;
use common::server::{SHIPPED_DEADLINE, Server, command, until};
use futures::future::join_all;
use serde_json::{Value, json};

/// Starts a server whose log goes into this file.
async fn logging(store: &str, environment: &[(&str, &str)], log: &Path) -> Server {
    let mut command = command(store, environment);
    command.env("TAILBACK_LOG__FILTER", "info").stderr(File::create(log).unwrap());
    let server = Server::of(command);
    server.until_ready().await;
    server
}

fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_a_few_lines_with_their_cause() {
    let mut mongod = OwnMongod::start().await;
    let log = tempfile::NamedTempFile::new().unwrap();
    let server = logging(&mongod.url(), &[SHIPPED_DEADLINE], log.path()).await;
    let before = lines(log.path()).len();
    let begin = Instant::now();
    mongod.kill();
    let client = async |n: usize| {
        for _ in 0..8 {
            let path = format!("/v1/queues/q{n}/jobs");
            assert_eq!(server.post(&path, json!({"payload": 1})).await.0, 503);
        }
    };
    join_all((0..8).map(client)).await;
    let lines = lines(log.path()).split_off(before);
    let periods = 1 + begin.elapsed().as_secs() / 5; // of those lines, and of any that come meanwhile
    let is = |line: &&Value, message: &str| line["message"].as_str().unwrap().starts_with(message);
    let failing: Vec<&Value> = lines.iter().filter(|line| is(line, "calls of the store fail")).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| is(line, "request failed")).collect();
    assert!((1..=periods).contains(&(failing.len() as u64)), "{failing:?}");
    assert!((1..=periods).contains(&(requests.len() as u64)), "{requests:?}");
    assert!(failing[0]["error"].as_str().unwrap().len() > 30, "no cause: {}", failing[0]);
    // Beside them only that the server is not ready, and that it does not hear others.
    assert!(lines.len() as u64 <= 2 * periods + 12, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_workers_and_acts_are_named() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let server = logging("sqlite::memory:", &[], log.path()).await;
    let job = server.push("mail", json!({"payload": 1})).await;
    assert_eq!(server.reserve("mail", json!({"worker": "robot-7", "lease_ms": 600_000})).await.len(), 1);
    // Behind that: a worker that holds nothing when it times out is not looked at again before its next heartbeat.
    let beat = json!({"timeout_ms": 1000});
    let (status, answer) = server.post("/v1/workers/robot-7/heartbeat", beat).await;
    assert_eq!(status, 200, "{answer}");
    until("the job is taken back", || async {
        server.get(&format!("/v1/jobs/{job}")).await.1["state"] != "reserved"
    })
    .await;
    until("the log says so", || async {
        lines(log.path()).iter().any(|line| {
            line["level"] == "INFO" && line["workers"] == "robot-7" && line["jobs"] == 1 && line["taken"] == 1
        })
    })
    .await;
    assert_eq!(server.post("/v1/queues/mail/pause", json!({})).await.0, 200);
    until("the log names the act", || async {
        lines(log.path()).iter().any(|line| {
            line["message"] == "operated" && line["what"] == "queue.pause" && line["on"] == "mail"
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_at_the_start_is_said_again() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let url =
        "mongodb://127.0.0.1:1/jobs?serverSelectionTimeoutMS=100&connectTimeoutMS=100&directConnection=true";
    let environment = [("TAILBACK_LOG__FILTER", "warn"), ("TAILBACK_MONGODB__DEADLINE_MS", "500")];
    let mut command = command(url, &environment);
    command.stderr(File::create(log.path()).unwrap());
    let _server = Server::of(command);
    let said = || {
        let lines = lines(log.path()).into_iter();
        let away =
            lines.filter(|line| line["message"].as_str().unwrap().starts_with("the store is unavailable"));
        away.map(|line| line["tries"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    // There may be as few tries as lines where each of them takes long.
    let are_more = |said: &[u64]| said.iter().zip(1..).any(|(tries, line)| *tries > line);
    until("it is said again, with the tries by then", || async { are_more(&said()) }).await;
    let said = said();
    assert!(said[0] == 1 && said.is_sorted_by(|one, other| one < other), "{said:?}");
}
