//! Who pushes.

use std::collections::BTreeSet;

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::{Actor, ENDLESS, backoff};
use crate::checker::client::mark;
use crate::checker::{History, Outcome, Verb};

/// A payload of some size; the number makes it one of its kind.
fn payload(dice: &mut StdRng) -> Value {
    let number: u64 = dice.random();
    match dice.random_range(0..4) {
        0 => json!(number),
        1 => json!({"z": number, "a": [1.5, null, "ä\u{1f980}"], "$inc": {"x": true}}),
        2 => json!(format!("{number:x}").repeat(dice.random_range(1..40))),
        _ => json!({ "n": number }),
    }
}

/// A job for any queue.
fn job(dice: &mut StdRng) -> Value {
    let mut job = json!({"payload": payload(dice), "max_attempts": ENDLESS, "backoff": backoff()});
    match dice.random_range(0..10) {
        // On a busy machine the shorter ones are over before a worker asks.
        0 if dice.random() => job["delay_ms"] = json!(5000),
        0 => job["delay_ms"] = json!(dice.random_range(400..1500)),
        1 => job["priority"] = json!(dice.random_range(-3..4)),
        2 => job["expires_in_ms"] = json!(dice.random_range(500..4000)),
        _ => {}
    }
    mark(&mut job);
    job
}

/// One push of any kind, and its repeat where there was no answer.
async fn push(actor: &mut Actor) {
    let mut body = job(&mut actor.dice);
    let (queue, times) = match actor.dice.random_range(0..100) {
        0..24 => ("work", 1),
        24..34 => {
            let names = [json!(["db"]), json!(["db", "gpu"]), json!(["gpu"])];
            body["semaphores"] = names[actor.dice.random_range(0..3)].clone();
            ("work", 1)
        }
        34..46 => {
            // Now and then another producer's key: then one of the two is a duplicate, or a conflict.
            body["key"] = json!(format!("{}-{}", actor.shared.seed, actor.dice.random_range(0..40)));
            body["key_ttl_ms"] = json!(60_000);
            body["payload"] = json!("the same");
            ("work", 3)
        }
        46..62 => ("in", 2),
        62..72 => {
            body["then"] = json!([{"queue": "second", "delay_ms": 600}]);
            ("first", 1)
        }
        72..80 => {
            body.as_object_mut().unwrap().remove("max_attempts");
            ("mortal", 1)
        }
        80..86 => ("pops", 1),
        86..92 => {
            let (queue, key) = (if actor.chance(50) { "work" } else { "pops" }, actor.key());
            actor.insist_keyed(Verb::Push, queue, &body, Some(&key), 3).await;
            return;
        }
        92..96 => return push_together(actor).await,
        _ => {
            let jobs: Vec<Value> = (0..actor.dice.random_range(2..8)).map(|_| job(&mut actor.dice)).collect();
            let client = actor.client();
            client.push_many("work", jobs).await;
            return;
        }
    };
    actor.insist(Verb::Push, queue, &body, times).await;
}

/// Jobs of several queues, all of them or none, or each for itself.
async fn push_together(actor: &mut Actor) {
    let mut of_queue = |queue: &str| {
        let mut job = job(&mut actor.dice);
        job["queue"] = json!(queue);
        job
    };
    let jobs = ["work", "in", "pops"].map(&mut of_queue);
    let (is_whole, is_keyed) = (actor.chance(70), actor.chance(50));
    let body = json!({"jobs": jobs, "atomic": is_whole});
    let key = is_keyed.then(|| actor.key());
    let times = if is_keyed { 3 } else { 1 };
    actor.insist_keyed(Verb::PushTogether, "", &body, key.as_deref(), times).await;
}

/// The first priority that only operations give.
const PRIORITIES: i32 = 1000;

/// An operation over many jobs; some are cancelled.
async fn operation(actor: &mut Actor) {
    let (queue, action) = if actor.chance(30) {
        ("graves", json!({"action": "redrive"}))
    } else {
        // By its priority the judge recognises which operation took a job.
        let priority = PRIORITIES + actor.dice.random_range(0..1_000_000);
        ("work", json!({"action": "set_priority", "priority": priority}))
    };
    let mut body = json!({"filter": {"queue": queue}});
    body.as_object_mut().unwrap().extend(action.as_object().unwrap().clone());
    let key = actor.chance(50).then(|| actor.key());
    let times = if key.is_some() { 3 } else { 1 };
    let begun = actor.insist_keyed(Verb::Operation, queue, &body, key.as_deref(), times).await;
    let id = begun.answer().and_then(|answer| answer["id"].as_str()).map(str::to_owned);
    if let Some(id) = id.filter(|_| actor.chance(40)) {
        actor.pause(900).await;
        actor.insist(Verb::CancelOperation, &id, &Value::Null, 3).await;
    }
}

pub async fn producer(mut actor: Actor, pause_ms: u64) {
    while !actor.shared.is_over() {
        push(&mut actor).await;
        actor.pause(pause_ms).await;
    }
}

/// Pushes to one group, each job once the one before it was acknowledged.
pub async fn group(mut actor: Actor, number: usize, pause_ms: u64) {
    let mut n = 0;
    while !actor.shared.is_over() {
        let payload = json!({"group": number, "n": n});
        let mut body = json!({"payload": payload, "group": format!("g{number}"), "max_attempts": ENDLESS, "backoff": backoff()});
        if n % 6 == 5 {
            body["semaphores"] = json!(["db"]);
        }
        if n % 5 == 4 {
            body["delay_ms"] = json!(300);
        }
        mark(&mut body);
        actor.insist(Verb::Push, "line", &body, 1).await;
        n += 1;
        actor.pause(2 * pause_ms).await;
    }
}

/// Creates batches: whole, or bit by bit; a few are cancelled.
pub async fn batches(mut actor: Actor, pause_ms: u64) {
    while !actor.shared.is_over() {
        let member = |dice: &mut StdRng| {
            let mut job = json!({"queue": "batch", "payload": payload(dice), "max_attempts": ENDLESS, "backoff": backoff()});
            mark(&mut job);
            job
        };
        let jobs: Vec<Value> = (0..actor.dice.random_range(1..5)).map(|_| member(&mut actor.dice)).collect();
        let is_open = actor.chance(40);
        let callback = json!({"queue": "after", "payload": {"batch": true}, "max_attempts": ENDLESS, "backoff": backoff()});
        let body = json!({"jobs": jobs, "sealed": !is_open, "on_finished": callback});
        let created = actor.insist(Verb::CreateBatch, "", &body, 1).await;
        let id = created.answer().and_then(|answer| answer["id"].as_str()).map(str::to_owned);
        if let Some(id) = id {
            if is_open {
                let more = json!({"jobs": [member(&mut actor.dice)]});
                actor.insist(Verb::AddToBatch, &id, &more, 1).await;
                actor.pause(pause_ms).await;
                actor.insist(Verb::Seal, &id, &Value::Null, 3).await;
            }
            if actor.chance(5) {
                actor.insist(Verb::CancelBatch, &id, &Value::Null, 1).await;
            }
        }
        actor.pause(pause_ms).await;
    }
}

/// The batches that were created open and may not have been sealed.
pub fn open_batches(history: &History) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for call in &history.calls {
        let id = match (call.verb, &call.outcome) {
            (Verb::CreateBatch, Outcome::Ok { answer, .. }) => answer["id"].as_str(),
            (Verb::Seal | Verb::CancelBatch, Outcome::Ok { .. }) => {
                open.remove(&call.target);
                continue;
            }
            _ => continue,
        };
        if let Some(id) = id.filter(|_| call.body["sealed"] == false) {
            open.insert(id.to_owned());
        }
    }
    open
}

/// Cancels and revives.
pub async fn operator(mut actor: Actor, pause_ms: u64) {
    let mut known: Vec<String> = Vec::new();
    while !actor.shared.is_over() {
        match actor.dice.random_range(0..5) {
            4 => operation(&mut actor).await,
            0 => {
                let body = job(&mut actor.dice);
                let pushed = actor.insist(Verb::Push, "work", &body, 1).await;
                known.extend(pushed.answer().and_then(|answer| answer["id"].as_str()).map(str::to_owned));
            }
            1 => {
                if let Some(id) = known.pop() {
                    let verb = if actor.chance(50) { Verb::Cancel } else { Verb::ForceCancel };
                    actor.insist(verb, &id, &Value::Null, 1).await;
                }
            }
            2 => {
                actor.insist(Verb::Redrive, "graves", &json!({}), 1).await;
            }
            _ => {
                let settings = json!({"max_attempts": 2, "dead_letter": "graves"});
                actor.insist(Verb::PutSettings, "mortal", &settings, 1).await;
            }
        }
        actor.pause(pause_ms).await;
    }
}
