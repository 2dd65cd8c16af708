//! Everything at once, while servers are killed at any instant: ordered groups, commits that push, routes, batches,
//! semaphores, schedules, workers that fail. Three servers over one MongoDB, one over an SQLite file; clients that try
//! again elsewhere. In the end `tests/checker` judges by what the clients saw.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "shown when a test fails or with --no-capture")]

mod checker;
mod common;
mod load;

use std::sync::Arc;
use std::time::{Duration, Instant};

use checker::{Setup, Verb, Violation};
use common::fleet::{fleet, kill_9};
use common::server::{AS_LEFT, PATIENCE, Place, Server, until};
use load::{Load, Size};
use rand::Rng as _;

/// How many servers are killed at least, and how many commits succeed meanwhile.
const KILLS: usize = 12;
const COMMITS: usize = 100;
/// Longer than MongoDB keeps what a killed server had locked.
const DRAIN: Duration = Duration::from_secs(90);

fn commits(load: &Load) -> usize {
    let calls = load.shared.recorder.history().calls;
    calls.iter().filter(|call| call.verb == Verb::Commit && call.outcome.answer().is_some()).count()
}

async fn killed_servers_lose_and_double_nothing(place: &Place) {
    let mut servers = fleet(place).await;
    let bases = |servers: &[Arc<Server>]| servers.iter().map(|server| server.base.clone()).collect();
    let seed = rand::random();
    println!("seed {seed}");
    let mut load = Load::start(bases(&servers), Size::LARGE, seed, Duration::from_secs(10)).await;
    let (mut kills, deadline) = (0, Instant::now() + PATIENCE);
    while kills < KILLS || (commits(&load) < COMMITS && Instant::now() < deadline) {
        let (pause, n) = {
            let mut dice = rand::rng();
            (dice.random_range(100..900), dice.random_range(0..servers.len()))
        };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        kill_9(&servers[n]).await;
        servers[n] = Arc::new(Server::start_with(&place.url, &[AS_LEFT]).await);
        *load.shared.bases.write().unwrap() = bases(&servers);
        kills += 1;
    }
    until("the clients have worked", || async { commits(&load) >= COMMITS }).await;
    load.stop().await;
    let (_, violations) = load.verdict(&Setup { slack_ms: 500, ..Setup::default() }, DRAIN).await;
    println!("{kills} kills, {} calls, {} commits", load.shared.recorder.len(), commits(&load));
    let broken: Vec<String> = violations.iter().take(20).map(Violation::to_string).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

on_every_store! {
    killed_servers_lose_and_double_nothing
}
