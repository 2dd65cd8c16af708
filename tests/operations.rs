//! Operations over thousands of jobs, whose servers are killed or stand still in the middle: each job is taken once, and none is left out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::path::Path;

use common::fleet::kill_9;
use common::server::{Place, Server, until};
use common::signal::{self, Signal};
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
    fill_with(server, |n| json!({"payload": n})).await;
}

async fn fill_with(server: &Server, job: impl Fn(usize) -> Value) {
    for _ in 0..JOBS / PAGE {
        let jobs: Vec<Value> = (0..PAGE).map(&job).collect();
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
    // It waits there to be killed: if it killed itself, the first one might do so before it has told of the operation.
    plan(faults.path(), POINTS[0], "pause");
    let id = begin(&server).await;
    for (n, point) in POINTS.iter().enumerate() {
        struck(faults.path(), point).await;
        kill_9(&server).await;
        if let Some(next) = POINTS.get(n + 1) {
            plan(faults.path(), next, "pause");
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
        // Whichever has it: both are struck in turn, and whoever is killed comes back. It waits there to be killed, and so has told of
        // the operation.
        plan(faults.path(), point, "pause");
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
    plan(faults.path(), POINTS[0], "pause");
    let id = begin(&server).await;
    struck(faults.path(), POINTS[0]).await;
    signal::send(server.child.id(), Signal::SIGSTOP);
    // It stands still in front of its first step. Another one comes, waits for the lease, and does it all.
    let other = Server::start(&place.url).await;
    judge(&other, &id).await;
    std::fs::write(faults.path().join(format!("{}.go", POINTS[0])), "").unwrap();
    signal::send(server.child.id(), Signal::SIGCONT);
    until("it answers again", || async { server.get("/readyz").await.0 == 200 }).await;
    judge(&server, &id).await;
}

/// Ends all jobs of a queue.
async fn end(server: &Server, queue: &str, verb: &str, how: Value) {
    loop {
        let taken = server.reserve(queue, json!({"count": PAGE, "lease_ms": 600_000})).await;
        if taken.is_empty() {
            return;
        }
        let settled = |job: &Value| {
            let mut settled = how.clone();
            settled["id"] = job["id"].clone();
            settled["reservation"] = job["reservation"].clone();
            settled
        };
        let all: Vec<Value> = taken.iter().map(settled).collect();
        let (status, answer) = server.post("/v1/settle", json!({verb: all})).await;
        assert_eq!(status, 200, "{answer}");
    }
}

/// Makes a call with a key. Nothing where no response comes.
async fn keyed(server: &Server, path: &str) -> Option<Value> {
    let call = server.http.post(format!("{}{path}", server.base)).header("idempotency-key", "k");
    let response = call.json(&json!({})).send().await.ok()?;
    let (status, answer) = (response.status(), response.json::<Value>().await.ok()?);
    assert_eq!(status, 200, "{answer}");
    Some(answer)
}

/// The call has affected some jobs, and its operation the others.
async fn judge_call(server: &Server, answer: &Value) {
    let (own, id) = (answer["affected"].as_u64().unwrap(), answer["operation"]["id"].as_str());
    let operation = over(server, id.expect("the call does not do all of it itself")).await;
    assert_eq!((&operation["state"], &operation["skipped"]), (&json!("done"), &json!(0)), "{operation}");
    let all = own + operation["affected"].as_u64().unwrap();
    assert!(own > 0 && own < JOBS as u64 && all == JOBS as u64, "{answer}: {operation}");
    let (_, operations) = server.get("/v1/operations").await;
    assert_eq!(operations["operations"].as_array().unwrap().len(), 1, "{operations}");
}

async fn again(server: &mut Server, place: &Place, faults: &Path) {
    kill_9(server).await;
    *server = start(place, faults).await;
}

/// A call begins a purge, and an operation goes on, whose server is killed. What a purged job has blocked stays.
async fn a_large_purge_goes_on_as_an_operation(place: &Place) {
    let faults = tempfile::tempdir().unwrap();
    let mut server = start(place, faults.path()).await;
    let grouped: Vec<Value> =
        (0..PAGE).map(|n| json!({"payload": n, "group": format!("g{}", n % 500)})).collect();
    let (status, pushed) = server.post("/v1/queues/from/jobs/batch", json!({"jobs": grouped})).await;
    assert_eq!(status, 200, "{pushed}");
    fill(&server).await;
    // The operation does not begin before the call is answered.
    plan(faults.path(), POINTS[0], "pause");
    let (status, answer) = server.post("/v1/queues/from/purge", json!({"state": "ready"})).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["operation"]["id"].as_str().unwrap();
    struck(faults.path(), POINTS[0]).await;
    plan(faults.path(), POINTS[1], "kill");
    std::fs::write(faults.path().join(format!("{}.go", POINTS[0])), "").unwrap();
    struck(faults.path(), POINTS[1]).await;
    again(&mut server, place, faults.path()).await;
    let operation = over(&server, id).await;
    let affected = answer["affected"].as_u64().unwrap() + operation["affected"].as_u64().unwrap();
    assert_eq!((&operation["state"], affected), (&json!("done"), JOBS as u64 + 500), "{answer}: {operation}");
    let left = all(&server, "from").await;
    assert_eq!(left.len(), 500, "those that were blocked");
    assert!(left.iter().all(|job| job["state"] == "ready" && job["payload"].as_u64().unwrap() >= 500));
}

/// What is redriven while the operation of a purge is under way was not ready when the call was made.
async fn a_large_purge_leaves_what_is_revived_meanwhile(place: &Place) {
    const DEAD: usize = 250;
    let faults = tempfile::tempdir().unwrap();
    let server = start(place, faults.path()).await;
    // They are the first ones: the purge comes to them last.
    let dead: Vec<Value> = (0..DEAD).map(|_| json!({"payload": "revived"})).collect();
    let (status, pushed) = server.post("/v1/queues/from/jobs/batch", json!({"jobs": dead})).await;
    assert_eq!(status, 200, "{pushed}");
    end(&server, "from", "rollback", json!({"dead": true})).await;
    fill(&server).await;
    plan(faults.path(), POINTS[0], "pause");
    let (status, answer) = server.post("/v1/queues/from/purge", json!({"state": "ready"})).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["operation"]["id"].as_str().unwrap();
    struck(faults.path(), POINTS[0]).await;
    let (status, redriven) = server.post("/v1/queues/from/redrive", json!({})).await;
    assert_eq!((status, &redriven), (200, &json!({"affected": DEAD})));
    std::fs::write(faults.path().join(format!("{}.go", POINTS[0])), "").unwrap();
    let operation = over(&server, id).await;
    let affected = answer["affected"].as_u64().unwrap() + operation["affected"].as_u64().unwrap();
    assert_eq!((&operation["state"], affected), (&json!("done"), JOBS as u64), "{answer}: {operation}");
    let left = all(&server, "from").await;
    assert!(left.iter().all(|job| job["state"] == "ready" && job["payload"] == "revived"), "{left:?}");
    assert_eq!(left.len(), DEAD);
}

/// Purges a queue in this state, whose first jobs are these, and does something once the purge's operation has begun: it comes to them
/// last. They are left, and all others are purged.
async fn purged_but(
    server: &Server,
    faults: &Path,
    state: &str,
    left: &[&str],
    meanwhile: impl Future<Output = ()>,
) {
    plan(faults, POINTS[0], "pause");
    let (status, answer) = server.post("/v1/queues/from/purge", json!({"state": state})).await;
    assert_eq!(status, 200, "{answer}");
    let id = answer["operation"]["id"].as_str().unwrap();
    struck(faults, POINTS[0]).await;
    meanwhile.await;
    std::fs::write(faults.join(format!("{}.go", POINTS[0])), "").unwrap();
    let operation = over(server, id).await;
    let affected = answer["affected"].as_u64().unwrap() + operation["affected"].as_u64().unwrap();
    assert_eq!((&operation["state"], affected), (&json!("done"), JOBS as u64), "{answer}: {operation}");
    let jobs = all(server, "from").await;
    let found: Vec<_> = jobs.iter().map(|job| (job["payload"].as_str(), job["state"].as_str())).collect();
    let wanted: Vec<_> = left.iter().map(|payload| (Some(*payload), Some(state))).collect();
    assert_eq!(found, wanted);
}

async fn push_first(server: &Server, jobs: Value) {
    let (status, pushed) = server.post("/v1/queues/from/jobs/batch", json!({"jobs": jobs})).await;
    assert_eq!(status, 200, "{pushed}");
}

/// What a worker held when the call was made, and puts off meanwhile, was not scheduled.
async fn a_large_purge_leaves_what_a_worker_puts_off_meanwhile(place: &Place) {
    const LATER: u64 = 3_600_000;
    let faults = tempfile::tempdir().unwrap();
    let server = start(place, faults.path()).await;
    push_first(&server, json!([{"payload": "held"}])).await;
    let held = server.reserve("from", json!({"lease_ms": 600_000})).await.remove(0);
    fill_with(&server, |n| json!({"payload": n, "delay_ms": LATER})).await;
    let put_off = async {
        let how = json!({"count_attempt": false, "delay_ms": LATER});
        assert_eq!(server.settle(&held, "rollback", how).await.0, 200);
    };
    purged_but(&server, faults.path(), "scheduled", &["held"], put_off).await;
}

/// What was blocked when the call was made, by its group or by a semaphore, and is ready meanwhile, was not ready.
async fn a_large_purge_leaves_what_is_unblocked_meanwhile(place: &Place) {
    let faults = tempfile::tempdir().unwrap();
    let server = start(place, faults.path()).await;
    let one = Some(json!({"capacity": 1}));
    assert!(server.send(reqwest::Method::PUT, "/v1/semaphores/one", one).await.0 < 300);
    let grouped = |payload| json!({"payload": payload, "group": "g"});
    let limited = |payload| json!({"payload": payload, "semaphores": ["one"]});
    let first = json!([grouped("head"), limited("holder"), grouped("behind"), limited("waiting")]);
    push_first(&server, first).await;
    let held = server.reserve("from", json!({"count": 2, "lease_ms": 600_000})).await;
    assert_eq!(held.len(), 2);
    let count = async |state: &str| {
        let jobs = all(&server, "from").await;
        jobs.iter().filter(|job| job["payload"].is_string() && job["state"] == state).count()
    };
    until("two are blocked", || async {
        assert_eq!(server.reserve("from", json!({})).await, Vec::<Value>::new());
        count("blocked").await == 2
    })
    .await;
    fill(&server).await;
    let end = async {
        for job in &held {
            assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
        }
        until("both are ready", || async { count("ready").await == 2 }).await;
    };
    purged_but(&server, faults.path(), "ready", &["behind", "waiting"], end).await;
}

/// As many replays as may wait for room in a full queue: what makes room is begun all the same, but no further replay.
async fn what_makes_room_begins_beside_replays_that_wait_for_it(place: &Place) {
    const WAITING: usize = 100;
    let server = Server::start(&place.url).await;
    let settings = json!({"retain_done_ms": 600_000, "max_jobs": 1});
    assert_eq!(server.send(reqwest::Method::PUT, "/v1/queues/from", Some(settings)).await.0, 200);
    push_first(&server, json!([{"payload": "done"}])).await;
    end(&server, "from", "commit", json!({})).await;
    push_first(&server, json!([{"payload": "in the way"}])).await;
    let replay = async || {
        let body = json!({"filter": {"queue": "from", "state": "done"}, "action": "replay"});
        server.post("/v1/operations", body).await
    };
    for _ in 0..WAITING {
        let (status, operation) = replay().await;
        assert_eq!(status, 202, "{operation}");
    }
    let waiting = async || {
        let (_, all) = server.get("/v1/operations?limit=200").await;
        let all = all["operations"].as_array().unwrap().clone();
        all.iter()
            .filter(|operation| operation["errors"].as_array().is_some_and(|errors| !errors.is_empty()))
            .count()
    };
    until("all of them wait", || async { waiting().await == WAITING }).await;
    let (status, refused) = replay().await;
    assert_eq!(status, 429, "{refused}");
    let body = json!({"filter": {"queue": "from", "state": "ready"}, "action": "move", "to": "to"});
    let (status, moving) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{moving}");
    let moved = over(&server, moving["id"].as_str().unwrap()).await;
    assert_eq!((&moved["state"], &moved["affected"]), (&json!("done"), &json!(1)), "{moved}");
    // One of those that waited has the room.
    let is_copy = |job: &Value| job["replay_of"].is_string();
    until("a copy is made", || async {
        all(&server, "from").await.iter().filter(|job| is_copy(job)).count() == 1
    })
    .await;
}

/// A keyed call is killed before its operation is stored, and its repeat behind that: the third one gets the response of both, and there is
/// one operation, which is killed as well.
async fn a_large_call_is_repeated(place: &Place, call: &str, affects: impl AsyncFn(&Server)) {
    let faults = tempfile::tempdir().unwrap();
    let mut server = start(place, faults.path()).await;
    let settings = json!({"retain_done_ms": 600_000, "max_attempts": 1});
    assert_eq!(server.send(reqwest::Method::PUT, "/v1/queues/from", Some(settings)).await.0, 200);
    fill(&server).await;
    match call {
        "redrive" => end(&server, "from", "rollback", json!({"dead": true})).await,
        _ => end(&server, "from", "commit", json!({})).await,
    }
    let path = format!("/v1/queues/from/{call}");
    // The operation does not begin before the server is killed that has stored it.
    plan(faults.path(), POINTS[0], "pause");
    for point in ["bulk.handing_over", "bulk.handed_over"] {
        plan(faults.path(), point, "kill");
        assert_eq!(keyed(&server, &path).await, None, "it was killed at {point}");
        kill_9(&server).await;
        if point == "bulk.handed_over" {
            let _ = std::fs::remove_file(faults.path().join(POINTS[0]));
            plan(faults.path(), POINTS[1], "kill");
        }
        server = Server::launch(&place.url, &[("TAILBACK_FAULTS", faults.path().to_str().unwrap())]);
        if point == "bulk.handing_over" {
            server.until_ready().await;
        }
    }
    struck(faults.path(), POINTS[1]).await;
    again(&mut server, place, faults.path()).await;
    let answer = keyed(&server, &path).await.unwrap();
    judge_call(&server, &answer).await;
    assert_eq!(keyed(&server, &path).await, Some(answer), "a repeat has the same response");
    affects(&server).await;
}

async fn a_large_redrive_goes_on_as_an_operation(place: &Place) {
    let revived = async |server: &Server| {
        let jobs = all(server, "from").await;
        let is_ready = |job: &&Value| job["state"] == "ready";
        assert_eq!((jobs.len(), jobs.iter().filter(is_ready).count()), (JOBS, JOBS));
    };
    a_large_call_is_repeated(place, "redrive", revived).await;
}

async fn a_large_replay_goes_on_as_an_operation(place: &Place) {
    let copied = async |server: &Server| {
        let jobs = all(server, "from").await;
        let copies = jobs.iter().filter_map(|job| job["replay_of"].as_str());
        let originals: std::collections::HashSet<&str> = copies.clone().collect();
        assert_eq!((jobs.len(), copies.count(), originals.len()), (2 * JOBS, JOBS, JOBS));
    };
    a_large_call_is_repeated(place, "replay", copied).await;
}

on_every_store! {
    killed_again_and_again
    a_large_purge_goes_on_as_an_operation
    a_large_purge_leaves_what_is_revived_meanwhile
    a_large_purge_leaves_what_a_worker_puts_off_meanwhile
    a_large_purge_leaves_what_is_unblocked_meanwhile
    what_makes_room_begins_beside_replays_that_wait_for_it
    a_large_redrive_goes_on_as_an_operation
    a_large_replay_goes_on_as_an_operation
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
