//! Who works, and how it goes wrong.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use super::{Actor, ENDLESS, WORKED, backoff};
use crate::checker::client::mark;
use crate::checker::{Outcome, Verb, jobs};

/// How many dead tokens a worker remembers.
const STALE: usize = 20;

/// Takes jobs away from a queue of its own.
pub async fn popper(mut actor: Actor) {
    while !actor.shared.is_over() {
        let count = actor.dice.random_range(1..3);
        let ask = json!({"count": count, "wait_ms": 100});
        let key = actor.chance(50).then(|| actor.key());
        let times = if key.is_some() { 4 } else { 1 };
        actor.insist_keyed(Verb::Pop, "pops", &ask, key.as_deref(), times).await;
        actor.pause(60).await;
    }
}

/// Works until all is over. A third of the workers send heartbeats; they never drop a job, which they would hold for ever.
pub async fn worker(mut actor: Actor, number: usize) {
    let (name, is_alive) = (format!("w{number}"), number.is_multiple_of(3));
    let mut queues = WORKED;
    while !actor.shared.is_over() {
        if is_alive {
            let client = actor.client();
            client.call(Verb::Heartbeat, &name, json!({"timeout_ms": 4000})).await;
        }
        queues.shuffle(&mut actor.dice);
        let asked = if actor.chance(70) { queues.as_slice() } else { &queues[..3] };
        let lease_ms = actor.dice.random_range(1200..3000);
        let count = actor.dice.random_range(1..5);
        let ask =
            json!({"queues": asked, "count": count, "wait_ms": 100, "lease_ms": lease_ms, "worker": name});
        let found = reserve(&mut actor, ask).await;
        if found.len() > 1 && actor.chance(25) {
            settle_together(&mut actor, &found).await;
            continue;
        }
        let mut found = VecDeque::from(found);
        while let Some(job) = found.pop_front() {
            actor.pause(25).await;
            let next = work(&mut actor, &name, &job, lease_ms, is_alive).await;
            found.extend(next);
        }
    }
}

/// Reserves, every third time under a key, which is repeated where no response came.
async fn reserve(actor: &mut Actor, ask: Value) -> Vec<Value> {
    if !actor.chance(33) {
        return jobs(&actor.client().call(Verb::Reserve, "", ask).await);
    }
    let key = actor.key();
    for _ in 0..3 {
        let outcome = actor.client().call_keyed(Verb::Reserve, "", ask.clone(), Some(&key)).await;
        if outcome.answer().is_some() {
            return jobs(&outcome);
        }
        actor.pause(60).await;
    }
    Vec::new()
}

async fn settle(actor: &mut Actor, verb: Verb, job: &Value, mut body: Value) -> Outcome {
    body["reservation"] = job["reservation"].clone();
    actor.insist(verb, job["id"].as_str().unwrap(), &body, 3).await
}

/// What its commit says: children, or a result.
fn commit(actor: &mut Actor, job: &Value) -> Value {
    match job["queue"].as_str().unwrap() {
        "in" => {
            let child = |n| {
                let payload = json!({"of": job["payload"], "n": n});
                let mut child = json!({"queue": "out", "payload": payload, "max_attempts": ENDLESS, "backoff": backoff()});
                mark(&mut child);
                child
            };
            json!({"push": (0..actor.dice.random_range(2..4)).map(child).collect::<Vec<Value>>()})
        }
        "first" => json!({"result": {"half": job["payload"]}}),
        _ => json!({}),
    }
}

/// Asks for the next jobs with a settle, every fifth time.
fn ask_next(actor: &mut Actor, name: &str, lease_ms: u64, body: &mut Value) {
    if actor.chance(20) && !actor.shared.is_over() {
        let count = actor.dice.random_range(1..3);
        body["next"] = json!({"count": count, "lease_ms": lease_ms, "worker": name});
    }
}

/// The next jobs that came with the answer to a settle.
fn next_jobs(outcome: &Outcome) -> Vec<Value> {
    let jobs = outcome.answer().and_then(|answer| answer["next"]["jobs"].as_array());
    jobs.cloned().unwrap_or_default()
}

/// Remembers a token that is not used any more.
fn keep_stale(actor: &mut Actor, job: &Value) {
    actor.stale.push(job.clone());
    if actor.stale.len() > STALE {
        actor.stale.remove(0);
    }
}

/// Does something with a job. Returns the jobs that came with its settle.
async fn work(actor: &mut Actor, name: &str, job: &Value, lease_ms: u64, is_alive: bool) -> Vec<Value> {
    let id = job["id"].as_str().unwrap().to_owned();
    match actor.dice.random_range(0..100) {
        0..52 => {
            let mut body = commit(actor, job);
            ask_next(actor, name, lease_ms, &mut body);
            return next_jobs(&settle(actor, Verb::Commit, job, body).await);
        }
        52..60 => {
            let lease_ms = actor.dice.random_range(500..3000);
            settle(actor, Verb::Extend, job, json!({"lease_ms": lease_ms, "progress": 1})).await;
            actor.pause(40).await;
            let body = commit(actor, job);
            settle(actor, Verb::Commit, job, body).await;
        }
        60..74 => {
            let delay_ms = actor.dice.random_range(0..3) * 400;
            let mut body = json!({"delay_ms": delay_ms, "error": "dice"});
            ask_next(actor, name, lease_ms, &mut body);
            return next_jobs(&settle(actor, Verb::Rollback, job, body).await);
        }
        74..80 => {
            let mut body = json!({"queue": "moved"});
            if actor.chance(50) {
                body["payload"] = json!({"moved": job["payload"]});
            }
            settle(actor, Verb::Move, job, body).await;
        }
        80..84 => {
            let mut body = commit(actor, job);
            body["reservation"] = json!("bm90LWEtdG9rZW4tYXQtYWxs");
            actor.client().call(Verb::Commit, &id, body).await;
        }
        84..87 => {
            actor.client().call(Verb::Cancel, &id, Value::Null).await;
            let verb = if actor.chance(50) { Verb::Commit } else { Verb::Rollback };
            settle(actor, verb, job, json!({})).await;
        }
        87..89 => {
            actor.client().call(Verb::ForceCancel, &id, Value::Null).await;
            settle(actor, Verb::Commit, job, json!({})).await;
        }
        89..91 => {
            actor.client().call(Verb::RemoveWorker, name, Value::Null).await;
            keep_stale(actor, job);
        }
        91..93 => {
            actor.client().call(Verb::Release, &id, json!({})).await;
            keep_stale(actor, job);
        }
        // Dropped: it comes back when its lease is over.
        93..96 if !is_alive => keep_stale(actor, job),
        _ => overstay(actor, job, lease_ms).await,
    }
    Vec::new()
}

/// Works for longer than its lease, and settles then.
async fn overstay(actor: &mut Actor, job: &Value, lease_ms: u64) {
    let body = commit(actor, job);
    let mut late = Actor::new(&actor.shared, "late", actor.dice.random());
    let job = job.clone();
    let until = Instant::now() + Duration::from_millis(lease_ms + 400);
    let settled = async move {
        while Instant::now() < until && !late.shared.is_over() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        settle(&mut late, Verb::Commit, &job, body).await;
    };
    let mut tasks = actor.shared.late.lock().unwrap();
    while tasks.try_join_next().is_some() {}
    tasks.spawn(settled);
}

/// Settles all of them in one request.
async fn settle_together(actor: &mut Actor, found: &[Value]) {
    let mut body = json!({"commit": [], "rollback": [], "extend": [], "move": []});
    for job in found {
        // Where it is known, the token of an earlier delivery, beside those that are valid.
        let before = actor.stale.iter().find(|stale| stale["id"] == job["id"]).cloned();
        let before = before.filter(|_| actor.chance(50));
        let token = &before.as_ref().unwrap_or(job)["reservation"];
        let mut item = json!({"id": job["id"], "reservation": token});
        let list = match actor.dice.random_range(0..10) {
            0..7 => {
                let more = commit(actor, job);
                item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                "commit"
            }
            7..9 => "rollback",
            _ => {
                item["queue"] = json!("moved");
                "move"
            }
        };
        body[list].as_array_mut().unwrap().push(item);
    }
    // Dead tokens of other jobs, which somebody else may hold by now.
    let is_here = |stale: &Value| found.iter().any(|job| job["id"] == stale["id"]);
    let mut named: Vec<&Value> = Vec::new();
    for stale in actor.stale.iter().filter(|stale| !is_here(stale)).rev().take(2) {
        if !named.contains(&&stale["id"]) {
            let item = json!({"id": stale["id"], "reservation": stale["reservation"]});
            body["commit"].as_array_mut().unwrap().push(item);
            named.push(&stale["id"]);
        }
    }
    actor.insist(Verb::Settle, "", &body, 3).await;
}
