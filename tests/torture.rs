//! Load, faults, and the judge of `tests/checker`: nothing may be lost, doubled or out of order, whatever fails.
//!
//! - `TAILBACK_TORTURE_S`: how long the random rounds last on each store, in seconds
//! - `TAILBACK_TORTURE_SEED`: the seed of the first round
//! - `TAILBACK_TORTURE_KINDS`: the only kinds of faults (`PrimaryKilled,SteppedDown`)
//! - `TAILBACK_TORTURE_ELECTABLE`: how many of the three members may become primary (3)
//! - `TAILBACK_OLD_SERVER`: an older build that runs beside the new one (`just torture` builds it)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is shown")]

mod checker;
mod common;
mod load;

mod torture {
    pub mod bugs;
    pub mod faults;
    pub mod net;
    pub mod recorded;
    pub mod rounds;
    pub mod world;
}

use std::time::Duration;

use common::server::Place;
use torture::bugs::{BUGS, BUGS_OF_SQLITE, answer_before_the_majority, find_nothing, hunt_all};
use torture::faults::{Kind, OF_MONGO, OF_SQLITE};
use torture::rounds::rounds;
use torture::world::World;

/// How long the random rounds last on each store where nothing else is asked for.
const TOTAL_S: u64 = 60;
/// How long the faults of one round last at most.
const ROUND: Duration = Duration::from_secs(60);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

fn total() -> Duration {
    Duration::from_secs(number("TAILBACK_TORTURE_S").unwrap_or(TOTAL_S))
}

/// At least two rounds: one with pauses between its faults, one without.
fn each() -> Duration {
    ROUND.min(total() / 2)
}

fn kinds(all: &[Kind]) -> Vec<Kind> {
    let Ok(wanted) = std::env::var("TAILBACK_TORTURE_KINDS") else { return all.to_vec() };
    let is_wanted = |kind: &&Kind| wanted.split(',').any(|name| name == format!("{kind:?}"));
    all.iter().filter(is_wanted).copied().collect()
}

fn seed() -> u64 {
    number("TAILBACK_TORTURE_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000_000))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_mistake_is_found_in_sqlite() {
    hunt_all("SQLite", Place::sqlite, BUGS.iter().chain(BUGS_OF_SQLITE).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_mistake_is_found_in_mongodb() {
    hunt_all("MongoDB", Place::mongo, BUGS.iter().collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_before_the_majority_are_found() {
    answer_before_the_majority().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_over_three_mongods_keep_every_guarantee() {
    let mut world = World::mongo(&[]).await;
    rounds(&mut world, &kinds(OF_MONGO), total(), each(), seed()).await;
    world.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_a_file_keeps_every_guarantee() {
    let mut world = World::sqlite(&[]).await;
    rounds(&mut world, &kinds(OF_SQLITE), total(), each(), seed()).await;
    world.close().await;
}

on_every_store! {
    find_nothing
}
