//! Everything at once, while servers are killed at any instant: ordered groups, commits that push, routes, batches,
//! semaphores, schedules, workers that fail. Three servers over one MongoDB, one over an SQLite file; clients that try
//! again elsewhere. In the end the clients' own records tell whether every guarantee held.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "shown when a test fails or with --no-capture")]

mod common;

mod crashes {
    pub mod book;
    pub mod clients;
    pub mod world;
}

use std::time::{Duration, Instant};

use common::server::{PATIENCE, Place, until};
use crashes::book::SEMAPHORES;
use crashes::clients::{producers, worker};
use crashes::world::World;
use serde_json::json;
use tokio::task::JoinSet;

/// How many workers there are.
const WORKERS: usize = 8;
/// How many servers are killed at least.
const KILLS: usize = 12;

async fn what_clients_were_told_holds(place: &Place) {
    let world = World::start(place).await;
    for (name, capacity) in SEMAPHORES {
        let (status, answer) =
            world.call("PUT", &format!("/v1/semaphores/{name}"), json!({ "capacity": capacity })).await;
        assert_eq!(status, 200, "{answer}");
    }
    let rule = json!({"cron": "* * * * * *", "queue": "ticks", "job": {"payload": {"kind": "tick"}, "max_attempts": 1000}});
    assert_eq!(world.call("PUT", "/v1/schedules/tick", rule).await.0, 200);
    let mut tasks = JoinSet::new();
    producers(&world, &mut tasks);
    for n in 0..WORKERS {
        tasks.spawn(worker(world.clone(), n));
    }
    let killing = tokio::spawn(world.clone().kill_now_and_then(place.url.clone(), KILLS));
    let done = async {
        killing.await.unwrap();
        let deadline = Instant::now() + 2 * PATIENCE;
        while !world.book().missing().is_empty() {
            if Instant::now() >= deadline {
                let missing = world.book().missing();
                panic!("waited in vain: {missing:?}; there are {:#?}", world.left().await);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(world.call("DELETE", "/v1/schedules/tick", json!(null)).await.0, 204);
        until("nothing is left", || async { world.left().await.is_empty() }).await;
    };
    tokio::select! {
        () = done => {}
        () = failure(&mut tasks) => unreachable!("a failure ends the test"),
    }
    world.stop();
    tokio::time::timeout(Duration::from_secs(60), tasks.join_all()).await.unwrap();
    world.book().judge();
    for (name, _) in SEMAPHORES {
        let (_, semaphore) = world.call("GET", &format!("/v1/semaphores/{name}"), json!(null)).await;
        assert_eq!((&semaphore["holders"], &semaphore["waiting"]), (&json!([]), &json!(0)), "{semaphore}");
    }
}

/// Ends the test with the first client that found a mistake.
async fn failure(tasks: &mut JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    std::future::pending().await
}

on_every_store! {
    what_clients_were_told_holds
}
