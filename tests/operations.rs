//! Operations over thousands of jobs, whose servers are killed or stand still in the middle: each job is taken once, and none is left out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use common::fleet::kill_9;
use common::server::{Place, Server, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// How many jobs there are, and how many of one page.
const JOBS: usize = 3000;
const PAGE: usize = 1000;

/// Where a server is struck that works on an operation: before a step, within its transaction, and behind it.
const POINTS: [&str; 4] = ["operation.chosen", "operation.stepped", "operation.chosen", "operation.stepped"];

/// A server that is struck where this folder says.
async fn start(place: &Place, faults: &Path) -> Server {
    Server::start_with(&place.url, &[("TAILBACK_FAULTS", faults.to_str().unwrap())]).await
}

async fn fill(server: &Server) {
    for _ in 0..JOBS / PAGE {
        let jobs: Vec<Value> = (0..PAGE).map(|n| json!({"payload": n})).collect();
        let (status, pushed) = server.post("/v1/queues/from/jobs/batch", json!({"jobs": jobs})).await;
        assert_eq!(status, 200, "{pushed}");
    }
}

async fn begin(server: &Server) -> String {
    let body = json!({"filter": {"queue": "from"}, "action": "move", "to": "to"});
    let (status, operation) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{operation}");
    operation["id"].as_str().unwrap().to_owned()
}

async fn now(server: &Server, id: &str) -> Value {
    let (status, operation) = server.get(&format!("/v1/operations/{id}")).await;
    assert_eq!(status, 200, "{operation}");
    operation
}

async fn over(server: &Server, id: &str) -> Value {
    until("the operation is over", || async { now(server, id).await["finished_at"].is_string() }).await;
    now(server, id).await
}

/// All jobs of a queue.
async fn all(server: &Server, queue: &str) -> Vec<Value> {
    let (mut jobs, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit={PAGE}{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        jobs.extend(page["jobs"].as_array().unwrap().iter().cloned());
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return jobs,
        }
    }
}

/// Each job was moved once.
async fn judge(server: &Server, id: &str) {
    let operation = over(server, id).await;
    assert_eq!((&operation["state"], &operation["affected"]), (&json!("done"), &json!(JOBS)), "{operation}");
    assert_eq!((&operation["skipped"], &operation["scanned"]), (&json!(0), &json!(JOBS)), "{operation}");
    let moved = all(server, "to").await;
    let twice = moved.iter().find(|job| job["trail"].as_array().is_none_or(|trail| trail.len() != 1));
    assert_eq!((moved.len(), twice), (JOBS, None));
    assert_eq!(all(server, "from").await.len(), 0, "some were left out");
}

fn plan(faults: &Path, point: &str, action: &str) {
    let _ = std::fs::remove_file(faults.join(format!("{point}.met")));
    std::fs::write(faults.join(point), action).unwrap();
}

async fn struck(faults: &Path, point: &str) {
    let met = faults.join(format!("{point}.met"));
    until("a server is struck", || async { met.exists() }).await;
}

async fn killed_again_and_again(place: &Place) {
    let faults = tempfile::tempdir().unwrap();
    let mut server = start(place, faults.path()).await;
    fill(&server).await;
    plan(faults.path(), POINTS[0], "kill");
    let id = begin(&server).await;
    for (n, point) in POINTS.iter().enumerate() {
        struck(faults.path(), point).await;
        kill_9(&server).await;
        if let Some(next) = POINTS.get(n + 1) {
            plan(faults.path(), next, "kill");
        }
        // It may be struck before it is ready.
        server = Server::launch(&place.url, &[("TAILBACK_FAULTS", faults.path().to_str().unwrap())]);
    }
    server.until_ready().await;
    judge(&server, &id).await;
}

/// The one that works on the operation is killed, and the other one takes it over.
async fn taken_over_by_another_server(place: &Place) {
    let [faults, spared] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let watching = start(place, spared.path()).await;
    let mut server = start(place, faults.path()).await;
    fill(&server).await;
    let mut id = None;
    for point in &POINTS[..2] {
        // Whichever has it: both are struck in turn, and whoever is killed comes back.
        plan(faults.path(), point, "kill");
        let id = match &id {
            Some(id) => id,
            None => id.insert(begin(&server).await),
        };
        let met = faults.path().join(format!("{point}.met"));
        let is_over = async || now(&watching, id).await["finished_at"].is_string();
        until("one is struck, or the other has done it", || async { met.exists() || is_over().await }).await;
        if met.exists() {
            kill_9(&server).await;
            server = start(place, faults.path()).await;
        }
    }
    judge(&watching, &id.unwrap()).await;
}

/// A server that stood still while another one took its operation over does its step in vain.
async fn a_server_that_stood_still_does_nothing_twice(place: &Place) {
    let faults = tempfile::tempdir().unwrap();
    let server = start(place, faults.path()).await;
    fill(&server).await;
    plan(faults.path(), POINTS[0], "stop");
    let id = begin(&server).await;
    struck(faults.path(), POINTS[0]).await;
    // It stands still in front of its first step. Another one comes, waits for the lease, and does it all.
    let other = Server::start(&place.url).await;
    judge(&other, &id).await;
    kill(Pid::from_raw(i32::try_from(server.child.id()).unwrap()), Signal::SIGCONT).unwrap();
    until("it answers again", || async { server.get("/readyz").await.0 == 200 }).await;
    judge(&server, &id).await;
}

on_every_store! {
    killed_again_and_again
}

// An embedded store has one server.
mod servers {
    use super::{a_server_that_stood_still_does_nothing_twice, taken_over_by_another_server};

    crate::on_one_store! {
        mongo:
        taken_over_by_another_server
        a_server_that_stood_still_does_nothing_twice
    }
}
