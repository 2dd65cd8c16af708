//! Further verbs that write: what operators do to one job, calls with an `Idempotency-Key`, settles that take the next jobs.

use reqwest::Method;
use serde_json::{Value, json};

use super::site::{Act, Call, LEASE_MS, Site};
use super::verbs::{batch, batch_of, dead, later, rule};

const DAY_MS: u64 = 86_400_000;

// --- pushes ----------------------------------------------------------------------------------------------------------

pub async fn push_once(site: Site) -> Call {
    site.post("/queues/@/jobs", json!({"payload": 1})).with_key(&site.name)
}

pub async fn push_that_replaces(site: Site) -> Call {
    site.push(json!({"payload": 1, "key": "k", "delay_ms": DAY_MS})).await;
    let more = json!({"payload": 2, "key": "k", "key_conflict": "replace", "delay_ms": DAY_MS});
    site.post("/queues/@/jobs", more)
}

pub async fn push_many_once(site: Site) -> Call {
    let jobs = json!([{"payload": 1}, {"payload": 2, "key": "k"}, {"payload": 3, "group": "g"}]);
    site.post("/queues/@/jobs/batch", json!({"jobs": jobs})).with_key(&site.name)
}

fn of_queues() -> Value {
    json!([{"queue": "@", "payload": 1}, {"queue": "@.next", "payload": 2, "key": "k"}, {"queue": "@", "payload": 3, "group": "g"}])
}

pub async fn push_together(site: Site) -> Call {
    site.post("/jobs", json!({"jobs": of_queues()}))
}

pub async fn push_together_once(site: Site) -> Call {
    site.post("/jobs", json!({"jobs": of_queues()})).with_key(&site.name)
}

pub async fn push_beside_each_other(site: Site) -> Call {
    site.post("/jobs", json!({"jobs": of_queues(), "atomic": false})).with_key(&site.name)
}

// --- one job ---------------------------------------------------------------------------------------------------------

async fn one_dead(site: &Site) -> String {
    let job = site.held(json!({"payload": 1, "max_attempts": 1})).await;
    let rollback = site.settle(&job, "rollback", json!({"error": "failed"}));
    assert_eq!(site.make(&rollback.act).await.unwrap().0, 200);
    id(&job)
}

async fn one_done(site: &Site) -> String {
    site.must(Method::PUT, "/queues/@", json!({"retain_done_ms": LEASE_MS})).await;
    let job = site.held(json!({"payload": 1})).await;
    let commit = site.settle(&job, "commit", json!({}));
    assert_eq!(site.make(&commit.act).await.unwrap().0, 200);
    id(&job)
}

fn id(job: &Value) -> String {
    job["id"].as_str().unwrap().to_owned()
}

pub async fn retry(site: Site) -> Call {
    let id = one_dead(&site).await;
    site.post(&format!("/jobs/{id}/retry"), json!({}))
}

pub async fn redrive_a_job(site: Site) -> Call {
    let target = format!("{}.dead", site.name);
    site.must(Method::PUT, "/queues/@", json!({"dead_letter": target})).await;
    let id = one_dead(&site).await;
    site.post(&format!("/jobs/{id}/redrive"), json!({}))
}

pub async fn replay_a_job(site: Site) -> Call {
    let id = one_done(&site).await;
    site.post(&format!("/jobs/{id}/replay"), json!({}))
}

pub async fn replay_a_job_once(site: Site) -> Call {
    replay_a_job(site.clone()).await.with_key(&site.name)
}

pub async fn run_now(site: Site) -> Call {
    let id = site.push(json!({"payload": 1, "delay_ms": DAY_MS})).await;
    site.post(&format!("/jobs/{id}/run"), json!({}))
}

pub async fn release(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.post(&format!("/jobs/{}/release", id(&job)), json!({}))
}

pub async fn move_without_a_token(site: Site) -> Call {
    let id = site.push(json!({"payload": 1})).await;
    site.post(&format!("/jobs/{id}/move"), json!({"queue": "@.next"}))
}

pub async fn edit_the_group(site: Site) -> Call {
    site.push(json!({"payload": 1, "group": "g"})).await;
    let id = site.push(json!({"payload": 2})).await;
    site.call(Method::PATCH, &format!("/jobs/{id}"), json!({"group": "g", "expires_in_ms": DAY_MS}))
}

// --- deliveries and settles ------------------------------------------------------------------------------------------

/// From one of them: each queue has a round of its own, and what another one failed to give is not missed.
pub async fn reserve_from_patterns(site: Site) -> Call {
    site.push(json!({"payload": 1, "key": "k", "key_until": "reserved"})).await;
    let ask = json!({"queues": ["@", "@.*"], "count": 1, "lease_ms": LEASE_MS, "worker": "@"});
    site.post("/reserve", ask)
}

pub async fn pop_once(site: Site) -> Call {
    site.push(json!({"payload": 1})).await;
    site.post("/queues/@/pop", json!({})).by_lease().with_key(&site.name)
}

fn next() -> Value {
    json!({"count": 1, "lease_ms": LEASE_MS, "worker": "@"})
}

pub async fn commit_with_next(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.push(json!({"payload": 2})).await;
    let push = json!([{"queue": "@.next", "payload": 3}]);
    site.settle(&job, "commit", json!({"push": push, "next": next()}))
}

pub async fn rollback_in_its_place(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.settle(&job, "rollback", json!({"keep_place": true, "count_attempt": false, "error": "failed"}))
}

pub async fn move_to_a_key(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.settle(&job, "move", json!({"queue": "@.next", "key": "k"}))
}

/// With one item: the next job proves the end of one delivery only, so that a server which was restarted says less of the others.
pub async fn settle_many_with_next(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.push(json!({"payload": 2})).await;
    let item = json!({"id": job["id"], "reservation": job["reservation"]});
    site.post("/settle", json!({"commit": [item], "next": next()}))
}

// --- queues, schedules, batches --------------------------------------------------------------------------------------

pub async fn redrive_once(site: Site) -> Call {
    dead(&site).await;
    site.post("/queues/@/redrive", json!({})).with_key(&site.name)
}

pub async fn replay_once(site: Site) -> Call {
    one_done(&site).await;
    site.post("/queues/@/replay", json!({})).with_key(&site.name)
}

pub async fn delete_queues(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@.next", json!({"max_attempts": 3})).await;
    for queue in ["", ".next"] {
        site.must(Method::POST, &format!("/queues/@{queue}/jobs"), json!({"payload": 1, "key": "k"})).await;
    }
    let prefix = format!("{}.", site.name);
    let path = format!("/queues?prefix={prefix}&confirm={prefix}&force=true");
    site.call(Method::DELETE, &path, Value::Null).and_look(site.path("/queues/@.next")).in_steps()
}

pub async fn settings_in_part(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@", json!({"max_attempts": 3})).await;
    let call = site.call(Method::PATCH, "/queues/@", json!({"lease_ms": 4321}));
    call.and_look(site.path("/queues/@"))
}

pub async fn run_a_schedule_unkeyed(site: Site) -> Call {
    site.must(Method::PUT, "/schedules/@", rule()).await;
    site.post("/schedules/@/run", json!({})).and_look(site.path("/schedules/@"))
}

pub async fn create_a_batch_once(site: Site) -> Call {
    site.post("/batches", batch_of(true)).with_key(&site.name)
}

pub async fn add_to_a_batch_once(site: Site) -> Call {
    let id = batch(&site, false).await;
    let jobs = [2, 3].map(|n| json!({"queue": "@", "payload": n, "key": format!("k{n}")}));
    let call = site.post(&format!("/batches/{id}/jobs"), json!({"jobs": jobs}));
    call.and_look(format!("/v1/batches/{id}")).with_key(&site.name)
}

// --- what the server does by itself ----------------------------------------------------------------------------------

pub async fn pruning_of_a_batch(site: Site) -> Call {
    let id = batch(&site, true).await;
    site.must(Method::POST, "/queues/@/pop", json!({})).await;
    site.must(Method::POST, "/queues/@.next/pop", json!({})).await;
    later(Act::Start).and_look(format!("/v1/batches/{id}"))
}
