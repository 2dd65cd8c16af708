//! Every verb that writes: what must be there before, the call, and what shows that it was done.

use reqwest::Method;
use serde_json::{Value, json};

use super::site::{Act, Call, LEASE_MS, Site};
use crate::common::server::{looked, until};

const DAY_MS: u64 = 86_400_000;

// --- jobs come and go ------------------------------------------------------------------------------------------------

pub async fn push(site: Site) -> Call {
    site.post("/queues/@/jobs", json!({"payload": {"n": 1}}))
}

pub async fn push_with_key(site: Site) -> Call {
    site.post("/queues/@/jobs", json!({"payload": 1, "key": "k", "key_ttl_ms": DAY_MS}))
}

pub async fn push_to_a_group(site: Site) -> Call {
    site.push(json!({"payload": 0, "group": "g"})).await;
    site.post("/queues/@/jobs", json!({"payload": 1, "group": "g", "key": "k"}))
}

pub async fn push_many(site: Site) -> Call {
    let job = |n: usize| json!({"payload": [n, "x".repeat(3000)], "key": format!("k{n}"), "group": "g"});
    site.post("/queues/@/jobs/batch", json!({"jobs": (0..4).map(job).collect::<Vec<_>>()}))
}

pub async fn reserve(site: Site) -> Call {
    for n in 0..2 {
        site.push(json!({"payload": n})).await;
    }
    site.post("/queues/@/reserve", json!({"count": 2, "lease_ms": LEASE_MS, "worker": "@"}))
}

pub async fn reserve_with_key(site: Site) -> Call {
    reserve(site).await.with_key("a")
}

pub async fn reserve_with_semaphores(site: Site) -> Call {
    site.must(Method::PUT, "/semaphores/@", json!({"capacity": 1})).await;
    for n in 0..2 {
        site.push(json!({"payload": n, "semaphores": ["@"]})).await;
    }
    let call = site.post("/queues/@/reserve", json!({"count": 1, "lease_ms": LEASE_MS}));
    call.and_look(site.path("/semaphores/@"))
}

pub async fn pop(site: Site) -> Call {
    site.push(json!({"payload": 1})).await;
    site.post("/queues/@/pop", json!({})).by_lease()
}

pub async fn commit(site: Site) -> Call {
    let job = site.held(json!({"payload": 1, "key": "k"})).await;
    site.settle(&job, "commit", json!({}))
}

pub async fn commit_into_history(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@", json!({"retain_done_ms": LEASE_MS})).await;
    let job = site.held(json!({"payload": 1})).await;
    site.settle(&job, "commit", json!({"result": {"of": "work"}}))
}

pub async fn commit_with_pushes(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    let child = |n: u64| json!({"queue": "@.next", "payload": n, "group": "g"});
    site.settle(&job, "commit", json!({"push": [child(1), child(2)]}))
}

pub async fn commit_along_a_route(site: Site) -> Call {
    let job = site.held(json!({"payload": 1, "then": [{"queue": format!("{}.next", site.name)}]})).await;
    site.settle(&job, "commit", json!({"result": 2}))
}

pub async fn commit_of_a_batch(site: Site) -> Call {
    let id = batch(&site, true).await;
    let job = site.reserve(1).await.remove(0);
    site.settle(&job, "commit", json!({"result": 2})).and_look(format!("/v1/batches/{id}"))
}

pub async fn commit_in_a_group(site: Site) -> Call {
    let job = site.held(json!({"payload": 1, "group": "g"})).await;
    site.push(json!({"payload": 2, "group": "g"})).await;
    site.settle(&job, "commit", json!({}))
}

pub async fn rollback(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.settle(&job, "rollback", json!({"delay_ms": 0, "error": "failed"}))
}

pub async fn rollback_to_dead(site: Site) -> Call {
    let job = site.held(json!({"payload": 1, "max_attempts": 1})).await;
    site.settle(&job, "rollback", json!({"error": "failed"}))
}

pub async fn rollback_to_a_dead_letter_queue(site: Site) -> Call {
    let dead = format!("{}.dead", site.name);
    site.must(Method::PUT, "/queues/@", json!({"dead_letter": dead, "max_attempts": 1})).await;
    let job = site.held(json!({"payload": 1, "key": "k"})).await;
    site.settle(&job, "rollback", json!({"error": "failed"}))
}

pub async fn extend(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.settle(&job, "extend", json!({"lease_ms": DAY_MS, "progress": {"percent": 50}}))
}

pub async fn move_on(site: Site) -> Call {
    let job = site.held(json!({"payload": 1, "key": "k"})).await;
    site.settle(&job, "move", json!({"queue": format!("{}.next", site.name), "payload": 2}))
}

pub async fn settle_many(site: Site) -> Call {
    for n in 0..4 {
        site.push(json!({"payload": n})).await;
    }
    let jobs = site.reserve(4).await;
    let of = |n: usize, mut with: Value| {
        with["id"] = jobs[n]["id"].clone();
        with["reservation"] = jobs[n]["reservation"].clone();
        with
    };
    let next = format!("{}.next", site.name);
    site.post(
        "/settle",
        json!({
            "commit": [of(0, json!({}))], "rollback": [of(1, json!({"delay_ms": 0}))],
            "extend": [of(2, json!({"lease_ms": DAY_MS}))], "move": [of(3, json!({"queue": next}))],
        }),
    )
    .in_steps()
}

// --- jobs are changed ------------------------------------------------------------------------------------------------

pub async fn edit(site: Site) -> Call {
    let id = site.push(json!({"payload": 1})).await;
    site.call(Method::PATCH, &format!("/jobs/{id}"), json!({"priority": 5, "payload": 2}))
}

pub async fn cancel(site: Site) -> Call {
    let id = site.push(json!({"payload": 1, "key": "k", "group": "g"})).await;
    site.push(json!({"payload": 2, "group": "g"})).await;
    site.call(Method::DELETE, &format!("/jobs/{id}"), Value::Null)
}

pub async fn cancel_a_held_job(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.call(Method::DELETE, &format!("/jobs/{}", job["id"].as_str().unwrap()), Value::Null)
}

pub async fn cancel_by_force(site: Site) -> Call {
    let job = site.held(json!({"payload": 1})).await;
    site.call(Method::DELETE, &format!("/jobs/{}?force=true", job["id"].as_str().unwrap()), Value::Null)
}

pub async fn dead(site: &Site) {
    for n in 0..2 {
        let job = site.held(json!({"payload": n, "max_attempts": 1})).await;
        let rollback = site.settle(&job, "rollback", json!({"error": "failed"}));
        assert_eq!(site.make(&rollback.act).await.unwrap().0, 200);
    }
}

pub async fn redrive(site: Site) -> Call {
    dead(&site).await;
    site.post("/queues/@/redrive", json!({}))
}

pub async fn redrive_from_a_dead_letter_queue(site: Site) -> Call {
    let target = format!("{}.dead", site.name);
    site.must(Method::PUT, "/queues/@", json!({"dead_letter": target})).await;
    dead(&site).await;
    site.post("/queues/@.dead/redrive", json!({}))
}

pub async fn replay(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@", json!({"retain_done_ms": LEASE_MS})).await;
    site.push(json!({"payload": 1})).await;
    site.must(Method::POST, "/queues/@/pop", json!({})).await;
    site.post("/queues/@/replay", json!({}))
}

pub async fn purge(site: Site) -> Call {
    dead(&site).await;
    site.post("/queues/@/purge", json!({"state": "dead"}))
}

// --- queues, semaphores, workers, schedules, batches -----------------------------------------------------------------

pub async fn settings(site: Site) -> Call {
    site.push(json!({"payload": 1})).await;
    let call = site.call(Method::PUT, "/queues/@", json!({"max_attempts": 3, "dead_letter": "@.dead"}));
    call.and_look(site.path("/queues/@"))
}

pub async fn pause(site: Site) -> Call {
    site.post("/queues/@/pause", json!({})).and_look(site.path("/queues/@"))
}

pub async fn resume(site: Site) -> Call {
    site.push(json!({"payload": 1})).await;
    site.must(Method::POST, "/queues/@/pause", json!({})).await;
    site.post("/queues/@/resume", json!({})).and_look(site.path("/queues/@"))
}

pub async fn delete_a_queue(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@", json!({"max_attempts": 3})).await;
    site.held(json!({"payload": 1})).await;
    site.push(json!({"payload": 2, "key": "k"})).await;
    let call = site.call(Method::DELETE, "/queues/@?force=true", Value::Null);
    call.and_look(site.path("/queues/@")).in_steps()
}

pub async fn set_a_semaphore(site: Site) -> Call {
    let call = site.call(Method::PUT, "/semaphores/@", json!({"capacity": 3}));
    call.and_look(site.path("/semaphores/@"))
}

pub async fn delete_a_semaphore(site: Site) -> Call {
    site.must(Method::PUT, "/semaphores/@", json!({"capacity": 3})).await;
    let call = site.call(Method::DELETE, "/semaphores/@", Value::Null);
    call.and_look(site.path("/semaphores/@"))
}

async fn held_by_worker(site: &Site) {
    site.push(json!({"payload": 1})).await;
    let ask = json!({"lease_ms": LEASE_MS, "worker": "@"});
    site.must(Method::POST, "/queues/@/reserve", ask).await;
}

pub async fn heartbeat(site: Site) -> Call {
    held_by_worker(&site).await;
    let call = site.post("/workers/@/heartbeat", json!({"timeout_ms": DAY_MS, "version": "1"}));
    call.and_look(site.path("/workers/@"))
}

pub async fn remove_a_worker(site: Site) -> Call {
    site.must(Method::POST, "/workers/@/heartbeat", json!({"timeout_ms": DAY_MS})).await;
    held_by_worker(&site).await;
    let call = site.call(Method::DELETE, "/workers/@", Value::Null);
    call.and_look(site.path("/workers/@")).in_steps()
}

pub fn rule() -> Value {
    json!({"cron": "0 0 * * *", "queue": "@", "job": {"payload": {"from": "rule"}}})
}

pub async fn set_a_schedule(site: Site) -> Call {
    site.call(Method::PUT, "/schedules/@", rule()).and_look(site.path("/schedules/@"))
}

pub async fn run_a_schedule(site: Site) -> Call {
    site.must(Method::PUT, "/schedules/@", rule()).await;
    site.post("/schedules/@/run", json!({})).and_look(site.path("/schedules/@")).with_key(&site.name)
}

pub async fn pause_a_schedule(site: Site) -> Call {
    site.must(Method::PUT, "/schedules/@", rule()).await;
    site.post("/schedules/@/pause", json!({})).and_look(site.path("/schedules/@"))
}

pub async fn resume_a_schedule(site: Site) -> Call {
    site.must(Method::PUT, "/schedules/@", rule()).await;
    site.must(Method::POST, "/schedules/@/pause", json!({})).await;
    site.post("/schedules/@/resume", json!({})).and_look(site.path("/schedules/@"))
}

pub async fn delete_a_schedule(site: Site) -> Call {
    site.must(Method::PUT, "/schedules/@", rule()).await;
    site.call(Method::DELETE, "/schedules/@", Value::Null).and_look(site.path("/schedules/@"))
}

fn api_key() -> Value {
    json!({"name": "@", "scopes": ["read"], "queues": ["@.*"]})
}

pub async fn add_an_api_key(site: Site) -> Call {
    site.post("/keys", api_key()).and_look(site.path("/keys"))
}

/// That it is done shows in the text of before, which is refused.
pub async fn rotate_an_api_key(site: Site) -> Call {
    let key = site.must(Method::POST, "/keys", api_key()).await;
    let path = format!("/keys/{}/rotate", key["id"].as_str().unwrap());
    site.post(&path, json!({})).and_show(key["key"].as_str().unwrap())
}

pub async fn remove_an_api_key(site: Site) -> Call {
    let key = site.must(Method::POST, "/keys", api_key()).await;
    let path = format!("/keys/{}", key["id"].as_str().unwrap());
    site.call(Method::DELETE, &path, Value::Null).and_look(site.path("/keys"))
}

pub async fn batch(site: &Site, sealed: bool) -> String {
    let created = site.must(Method::POST, "/batches", batch_of(sealed)).await;
    created["id"].as_str().unwrap().to_owned()
}

pub fn batch_of(sealed: bool) -> Value {
    let jobs = [json!({"queue": "@", "payload": 1})];
    json!({"jobs": jobs, "sealed": sealed, "on_finished": {"queue": "@.next", "payload": "finished"}})
}

pub async fn create_a_batch(site: Site) -> Call {
    site.post("/batches", batch_of(true))
}

pub async fn add_to_a_batch(site: Site) -> Call {
    let id = batch(&site, false).await;
    let jobs = [2, 3].map(|n| json!({"queue": "@", "payload": n, "key": format!("k{n}")}));
    site.post(&format!("/batches/{id}/jobs"), json!({"jobs": jobs})).and_look(format!("/v1/batches/{id}"))
}

pub async fn seal_a_batch(site: Site) -> Call {
    let id = batch(&site, false).await;
    site.must(Method::POST, "/queues/@/pop", json!({})).await;
    site.post(&format!("/batches/{id}/seal"), json!({})).and_look(format!("/v1/batches/{id}"))
}

pub async fn cancel_a_batch(site: Site) -> Call {
    let id = batch(&site, true).await;
    site.call(Method::DELETE, &format!("/batches/{id}"), Value::Null).and_look(format!("/v1/batches/{id}"))
}

// --- what the server does by itself ----------------------------------------------------------------------------------

pub fn later(act: Act) -> Call {
    Call::new(act)
}

pub async fn lapse(site: Site) -> Call {
    site.held(json!({"payload": 1})).await;
    later(Act::Later)
}

pub async fn lapse_of_the_last_attempt(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@", json!({"dead_letter": format!("{}.dead", site.name)})).await;
    site.held(json!({"payload": 1, "max_attempts": 1, "group": "g"})).await;
    site.push(json!({"payload": 2, "group": "g"})).await;
    later(Act::Later)
}

pub async fn expiry(site: Site) -> Call {
    site.push(json!({"payload": 1, "expires_in_ms": LEASE_MS, "group": "g"})).await;
    site.push(json!({"payload": 2, "group": "g"})).await;
    later(Act::Later)
}

/// The first of two jobs that need one semaphore lapses: it comes back, and so does the one that waits.
pub async fn unblocking(site: Site) -> Call {
    site.must(Method::PUT, "/semaphores/@", json!({"capacity": 2})).await;
    site.held(json!({"payload": 1, "semaphores": ["@"]})).await;
    site.must(Method::PUT, "/semaphores/@", json!({"capacity": 1})).await;
    site.push(json!({"payload": 2, "semaphores": ["@"]})).await;
    let none = site.must(Method::POST, "/queues/@/reserve", json!({})).await;
    assert_eq!(none["jobs"], json!([]));
    later(Act::Later).until_none_is("blocked")
}

pub async fn firing(site: Site) -> Call {
    site.must(Method::PUT, "/schedules/@", rule()).await;
    later(Act::Later).and_look(site.path("/schedules/@"))
}

pub async fn pruning(site: Site) -> Call {
    site.must(Method::PUT, "/queues/@", json!({"retain_done_ms": LEASE_MS})).await;
    site.push(json!({"payload": 1, "key": "k", "key_ttl_ms": LEASE_MS})).await;
    site.must(Method::POST, "/queues/@/pop", json!({})).await;
    later(Act::Start)
}

/// A keyed reserve is under way when the server ends: the next one takes it for dead.
pub async fn start(site: Site) -> Call {
    site.push(json!({"payload": 1, "delay_ms": LEASE_MS})).await;
    let before = looked(&site.server).await;
    let waiting = site.post("/queues/@.next/reserve", json!({"wait_ms": 60_000})).with_key("a");
    let Act::Request { method, path, body, .. } = waiting.act else { panic!("not a request") };
    let request = site.server.http.request(method, format!("{}{path}", site.server.base));
    let request = request.header("idempotency-key", "a").json(&body);
    tokio::spawn(async move { drop(request.send().await) });
    until("the reserve has looked", || async { looked(&site.server).await > before }).await;
    later(Act::Start)
}
