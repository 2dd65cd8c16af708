//! How MongoDB runs what the store really sends, beside 100,000 jobs: every hot query is served by an index,
//! looks at little more than it answers, and sorts nothing. MongoDB only: its profiler tells what it did.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod plans {
    pub mod bench;
    pub mod jobs;
    pub mod looks;
}

use common::server::Place;
use plans::bench::{Bench, JOBS, document};
use plans::jobs::{claiming, in_groups, limiting, pushing, reaping, settling, working};
use plans::looks::{counting, looking, searching, searching_payloads};
use tailback::store::Store as _;

async fn every_hot_query_is_served_by_one_index(place: &Place) {
    let bench = Bench::open(place).await;
    let now = bench.store.now().unwrap().millis();
    for start in (0..JOBS).step_by(10_000) {
        bench.insert((start..start + 10_000).map(|n| document(n, now)).collect()).await;
    }
    counting(&bench).await;
    looking(&bench).await;
    searching(&bench).await;
    searching_payloads(&bench).await;
    let jobs = claiming(&bench).await;
    settling(&bench, jobs).await;
    pushing(&bench).await;
    reaping(&bench, now).await;
    working(&bench, now).await;
    in_groups(&bench).await;
    limiting(&bench, now).await;
}

on_one_store! { mongo:
    every_hot_query_is_served_by_one_index
}
