//! Producers and workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::rngs::StdRng;
use rand::{SeedableRng as _, seq::SliceRandom as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::book::{BATCHES, GROUPS, MEMBERS, PARENTS, PER_GROUP, QUEUES, ROUTES, SHARED};
use super::world::World;
use crate::common::fleet::text;

/// Long enough for a worker on a busy machine, short enough for what a killed one held to be back soon.
const LEASE_MS: u64 = 2000;

/// Producers spread their work over the time in which servers are killed.
const PAUSE_MS: u64 = 600;

/// Pushes a job, after a pause; its key makes the push safe to repeat.
async fn push(world: &World, queue: &str, key: &str, mut job: Value) {
    job["key"] = json!(key);
    job["key_ttl_ms"] = json!(600_000);
    job["max_attempts"] = json!(1000);
    let pause = Duration::from_millis(rand::rng().random_range(0..PAUSE_MS));
    tokio::time::sleep(pause).await;
    let (status, answer) = world.call("POST", &format!("/v1/queues/{queue}/jobs"), job).await;
    assert!(matches!(status, 200 | 201), "{status} {answer}");
}

/// Whoever pushes: one for each group, in order, and one for each other kind.
pub fn producers(world: &Arc<World>, tasks: &mut JoinSet<()>) {
    for group in 0..GROUPS {
        let world = world.clone();
        tasks.spawn(async move {
            for n in 0..PER_GROUP {
                let payload = json!({"kind": "group", "group": group, "n": n});
                let mut job = json!({"payload": payload, "group": format!("g{group}")});
                if n % 4 == 0 {
                    job["semaphores"] = json!(["db"]);
                }
                push(&world, "work", &format!("g{group}-{n}"), job).await;
            }
        });
    }
    let spawned = world.clone();
    tasks.spawn(async move {
        for n in 0..PARENTS {
            push(&spawned, "in", &format!("p{n}"), json!({"payload": {"kind": "parent", "n": n}})).await;
        }
    });
    let spawned = world.clone();
    tasks.spawn(async move {
        for n in 0..ROUTES {
            let then = json!([{"queue": "second"}]);
            push(
                &spawned,
                "first",
                &format!("r{n}"),
                json!({"payload": {"kind": "route", "n": n}, "then": then}),
            )
            .await;
        }
    });
    let spawned = world.clone();
    tasks.spawn(async move {
        for n in 0..SHARED {
            let semaphores = [json!(["db"]), json!(["db", "gpu"]), json!(["gpu"])][n % 3].clone();
            let job =
                json!({"payload": {"kind": "shared", "n": n}, "semaphores": semaphores, "priority": n % 2});
            push(&spawned, "work", &format!("s{n}"), job).await;
        }
    });
    let spawned = world.clone();
    tasks.spawn(async move {
        for batch in 0..BATCHES {
            let member = |n| json!({"queue": "work", "max_attempts": 1000, "payload": {"kind": "member", "batch": batch, "n": n}});
            let jobs: Vec<Value> = (0..MEMBERS).map(member).collect();
            let on_finished = json!({"queue": "after", "max_attempts": 1000, "payload": {"kind": "callback", "batch": batch}});
            let body = json!({"jobs": jobs, "on_finished": on_finished});
            let (status, answer) = spawned.call("POST", "/v1/batches", body).await;
            assert_eq!(status, 201, "{answer}");
            tokio::time::sleep(Duration::from_millis(4 * PAUSE_MS)).await;
            spawned.book().batch_was_answered(&answer);
        }
    });
}

/// What a worker does with a job.
enum Fate {
    Commit,
    ExtendAndCommit,
    RollBack,
    /// It is never heard of again; the job comes back when its lease runs out.
    Drop,
    /// Somebody removes the worker.
    Removal,
}

/// A worker that sends heartbeats never drops a job: it would hold it for ever.
fn fate(dice: &mut StdRng, is_alive: bool) -> Fate {
    match dice.random_range(0..100) {
        0..76 => Fate::Commit,
        76..82 => Fate::ExtendAndCommit,
        82..93 => Fate::RollBack,
        93..96 if !is_alive => Fate::Drop,
        _ => Fate::Removal,
    }
}

/// Works until all is over. Every other worker sends heartbeats.
pub async fn worker(world: Arc<World>, number: usize) {
    let mut dice = StdRng::seed_from_u64(number as u64);
    let name = format!("worker-{number}");
    let (mut queues, sends_heartbeats) = (QUEUES, number.is_multiple_of(2));
    while !world.is_over() {
        if sends_heartbeats {
            let body = json!({"timeout_ms": 5000, "slots": 2});
            let (status, answer) = world.call("POST", &format!("/v1/workers/{name}/heartbeat"), body).await;
            assert_eq!(status, 200, "{answer}");
        }
        queues.shuffle(&mut dice);
        let ask = json!({"queues": queues, "count": dice.random_range(1..3), "wait_ms": 100, "lease_ms": LEASE_MS, "worker": name});
        let asked = Instant::now();
        let (status, answer) = world.call("POST", "/v1/reserve", ask).await;
        assert_eq!(status, 200, "{answer}");
        for job in answer["jobs"].as_array().unwrap() {
            let delivery = world.book().delivered(job, asked);
            tokio::time::sleep(Duration::from_millis(dice.random_range(0..15))).await;
            let sent = Instant::now();
            let is_settled = match fate(&mut dice, sends_heartbeats) {
                Fate::Commit => commit(&world, job).await,
                Fate::ExtendAndCommit => {
                    settle(&world, job, "extend", json!({"progress": 1})).await.is_some()
                        && commit(&world, job).await
                }
                Fate::RollBack => {
                    let body = json!({"error": "dice", "delay_ms": dice.random_range(0..40)});
                    settle(&world, job, "rollback", body).await == Some(true)
                }
                Fate::Drop => false,
                Fate::Removal => {
                    let (status, answer) =
                        world.call("DELETE", &format!("/v1/workers/{name}"), json!(null)).await;
                    assert!(matches!(status, 200 | 204 | 404), "{status} {answer}");
                    false
                }
            };
            if is_settled {
                world.book().held(job, delivery, sent);
            }
        }
    }
}

/// Commits a job, with what it leads to; whether it was certainly held until then.
async fn commit(world: &World, job: &Value) -> bool {
    let body = match job["payload"]["kind"].as_str() {
        Some("parent") => {
            let child = |n| {
                let payload = json!({"kind": "child", "parent": job["payload"]["n"], "n": n});
                json!({"queue": "out", "payload": payload, "max_attempts": 1000})
            };
            json!({"push": [child(0), child(1)]})
        }
        _ => json!({}),
    };
    world.book().committing(job);
    let settled = settle(world, job, "commit", body).await;
    if settled.is_some() {
        world.book().finished(job);
    }
    settled == Some(true)
}

/// `Some`: it has happened; and whether that was certainly this call's doing. `None`: the reservation was lost.
async fn settle(world: &World, job: &Value, call: &str, mut body: Value) -> Option<bool> {
    body["reservation"] = job["reservation"].clone();
    let path = format!("/v1/jobs/{}/{call}", text(job, "id"));
    let (status, answer, is_repeat) = world.call_and_tell("POST", &path, body).await;
    match status {
        200 => Some(true),
        // The first try may have done it, and its answer was lost with its server.
        409 if is_repeat && answer["gone"] == true => Some(false),
        409 => None,
        _ => panic!("{call}: {status} {answer}"),
    }
}
