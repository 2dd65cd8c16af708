//! What one member of a replica set has and no majority: it may be taken back, so that no answer is made of it.

use std::path::Path;

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::server::{Server, until};
use crate::set::Set;
use crate::world::{LONG_MS, PROMPT};

/// A call whose write no majority has until the set goes on.
fn begin(server: &Server, path: &str, key: Option<&str>, body: Value) -> JoinHandle<(u16, Value)> {
    let mut call = server.http.post(format!("{}{path}", server.base)).json(&body);
    if let Some(key) = key {
        call = call.header("idempotency-key", key);
    }
    send(call)
}

fn begin_delete(server: &Server, path: &str) -> JoinHandle<(u16, Value)> {
    send(server.http.delete(format!("{}{path}", server.base)))
}

fn send(call: reqwest::RequestBuilder) -> JoinHandle<(u16, Value)> {
    tokio::spawn(async move {
        let response = call.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    })
}

async fn until_so(what: &str, is_so: impl AsyncFn() -> bool) {
    until(what, || is_so()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_majority_has_is_not_answered() {
    let set = Set::start().await;
    let (points, of_two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let prompt = [PROMPT, &[("TAILBACK_FAULTS", of_two.path().to_str().unwrap())]].concat();
    // The one waits for its writes for a minute, the other for some seconds.
    let url = set.url();
    let (one, two) = tokio::join!(Server::start_with(&url, &faults), Server::start_with(&url, &prompt));
    let mut wrong = Vec::new();
    wrong.extend(a_result(&set, &one, &two).await);
    wrong.extend(a_keyed_pop(&set, &one, &two, points.path()).await);
    wrong.extend(a_pause(&set, &one, &two).await);
    wrong.extend(a_purge(&set, &one, &two).await);
    wrong.extend(a_cancelled_operation(&set, &one, &two, [points.path(), of_two.path()]).await);
    wrong.extend(a_cancelled_batch(&set, &one, &two, of_two.path()).await);
    wrong.extend(a_run_of_a_schedule(&set, &one, &two).await);
    assert!(wrong.is_empty(), "answers that may be taken back: {wrong:#?}");
}

/// What is wrong with an answer that should not be there yet.
fn unless(is_right: bool, what: &str, (status, answer): (u16, Value)) -> Option<String> {
    (!is_right).then(|| format!("{what}: {status} {answer}"))
}

/// A wait for a result at another server does not return a commit that may be taken back.
async fn a_result(set: &Set, one: &Server, two: &Server) -> Option<String> {
    let id = one.push("result", json!({"payload": 1, "retain_result_ms": LONG_MS})).await;
    let job = one.reserve("result", json!({"lease_ms": LONG_MS})).await.remove(0);
    set.stall();
    let body = json!({"reservation": job["reservation"], "result": 7});
    let commit = begin(one, &format!("/v1/jobs/{id}/commit"), None, body);
    let look = format!("/v1/jobs/{id}");
    until_so("the primary has it", async || two.get(&look).await.1["state"] == "done").await;
    let told = two.get(&format!("{look}?wait_ms=1000")).await;
    let wrong = unless(told.0 == 503 || told.1["state"] == "reserved", "a result", told);
    set.go_on();
    assert_eq!(commit.await.unwrap().0, 200);
    until_so("the result is told", async || {
        let (status, answer) = two.get(&format!("{look}?wait_ms=20000")).await;
        assert!(status == 503 || answer["result"] == 7, "{status} {answer}");
        status == 200
    })
    .await;
    wrong
}

/// The repeat of a keyed pop does not return that there is nothing while the first call has the job.
async fn a_keyed_pop(set: &Set, one: &Server, two: &Server, points: &Path) -> Option<String> {
    let id = one.push("pop", json!({"payload": 1})).await;
    let at = |name: &str| points.join(name);
    std::fs::write(at("pop.claimed"), "pause").unwrap();
    let first = begin(one, "/v1/queues/pop/pop", Some("k"), json!({}));
    until("the job is claimed", || async { at("pop.claimed.met").exists() }).await;
    set.stall();
    std::fs::write(at("pop.claimed.go"), "").unwrap();
    let look = format!("/v1/jobs/{id}");
    until_so("the primary has it", async || two.get(&look).await.0 == 404).await;
    let repeat = async || begin(two, "/v1/queues/pop/pop", Some("k"), json!({})).await.unwrap();
    let told = repeat().await;
    let wrong = unless(told.0 == 503, "the repeat of a keyed pop", told);
    set.go_on();
    let first = first.await.unwrap();
    assert_eq!((first.0, &first.1["jobs"][0]["id"]), (200, &json!(id)), "{}", first.1);
    until_so("the repeat is told the same", async || repeat().await == first).await;
    wrong
}

/// A call that finds done what it wants does not return so before a majority has that.
async fn a_pause(set: &Set, one: &Server, two: &Server) -> Option<String> {
    set.stall();
    let path = "/v1/queues/paused/pause";
    let pause = begin(one, path, None, json!({}));
    let is_paused = async || two.get("/v1/queues/paused").await.1["effective"]["paused"] == true;
    until_so("the primary has it", is_paused).await;
    let told = two.post(path, json!({})).await;
    let wrong = unless(told.0 == 503, "a pause", told);
    set.go_on();
    assert_eq!(pause.await.unwrap().0, 200);
    until_so("it is paused", async || two.post(path, json!({})).await.0 == 200).await;
    wrong
}

/// The same for one that finds nothing to do.
async fn a_purge(set: &Set, one: &Server, two: &Server) -> Option<String> {
    let id = one.push("purged", json!({"payload": 1})).await;
    set.stall();
    let (path, body) = ("/v1/queues/purged/purge", json!({"state": "ready"}));
    let purge = begin(one, path, None, body.clone());
    let look = format!("/v1/jobs/{id}");
    until_so("the primary has it", async || two.get(&look).await.0 == 404).await;
    let told = two.post(path, body.clone()).await;
    let wrong = unless(told.0 == 503, "a purge", told);
    set.go_on();
    assert_eq!(purge.await.unwrap().0, 200);
    until_so("it is told that nothing is left", async || two.post(path, body.clone()).await.0 == 200).await;
    wrong
}

/// The cancel of an operation that finds it cancelled.
async fn a_cancelled_operation(set: &Set, one: &Server, two: &Server, points: [&Path; 2]) -> Option<String> {
    one.push("operated", json!({"payload": 1})).await;
    let stop = |points: &Path| std::fs::write(points.join("operation.chosen"), "pause").unwrap();
    points.into_iter().for_each(stop); // it stays open until it is cancelled
    let body = json!({"filter": {"queue": "operated"}, "action": "set_priority", "priority": 1});
    let (status, operation) = one.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{operation}");
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    set.stall();
    let cancel = begin_delete(one, &path);
    until_so("the primary has it", async || two.get(&path).await.1["state"] == "cancelled").await;
    let told = begin_delete(two, &path).await.unwrap();
    let wrong = unless(told.0 == 503, "the cancel of an operation", told);
    set.go_on();
    assert_eq!(cancel.await.unwrap().0, 200);
    points.into_iter().for_each(|points| std::fs::write(points.join("operation.chosen.go"), "").unwrap());
    until_so("it is cancelled", async || begin_delete(two, &path).await.unwrap().0 == 200).await;
    wrong
}

/// The cancel of a batch that finds none of its jobs unfinished.
async fn a_cancelled_batch(set: &Set, one: &Server, two: &Server, points: &Path) -> Option<String> {
    let body = json!({"jobs": [{"queue": "batched", "payload": 1}]});
    let (status, batch) = one.post("/v1/batches", body).await;
    assert_eq!(status, 201, "{batch}");
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let job = format!("/v1/jobs/{}", batch["jobs"][0]["id"].as_str().unwrap());
    std::fs::write(points.join("batch.sealed"), "pause").unwrap();
    let told = begin_delete(two, &path);
    until("the batch is sealed", || async { points.join("batch.sealed.met").exists() }).await;
    set.stall();
    let cancel = begin_delete(one, &job);
    until_so("the primary has it", async || two.get(&job).await.0 == 404).await;
    std::fs::write(points.join("batch.sealed.go"), "").unwrap();
    let told = told.await.unwrap();
    let wrong = unless(told.0 == 503, "the cancel of a batch", told);
    set.go_on();
    assert_eq!(cancel.await.unwrap().0, 200);
    until_so("it is cancelled", async || begin_delete(two, &path).await.unwrap().0 == 200).await;
    wrong
}

/// The repeat of a run of a schedule by hand, which finds it among the last runs.
async fn a_run_of_a_schedule(set: &Set, one: &Server, two: &Server) -> Option<String> {
    let rule = json!({"cron": "0 0 1 1 *", "queue": "scheduled", "job": {"payload": 1}});
    let set_rule = one.http.put(format!("{}/v1/schedules/yearly", one.base)).json(&rule);
    assert!(send(set_rule).await.unwrap().0 < 300);
    set.stall();
    let path = "/v1/schedules/yearly/run";
    let run = begin(one, path, Some("k"), json!({}));
    let has_run = async || two.get("/v1/schedules/yearly").await.1["last_runs"][0].is_object();
    until_so("the primary has it", has_run).await;
    let repeat = async || begin(two, path, Some("k"), json!({})).await.unwrap();
    let told = repeat().await;
    let wrong = unless(told.0 == 503, "the repeat of a run", told);
    set.go_on();
    let run = run.await.unwrap();
    assert_eq!(run.0, 200, "{}", run.1);
    until_so("the repeat is told the same", async || repeat().await == run).await;
    wrong
}
