//! Random sequences of everything that can be asked of a store, on each store and on a model of it.
//!
//! `model/state.rs` and its neighbours say what every job must look like after each step, written from the meanings that
//! the calls have and not from the code; `model/world.rs` takes a step in both and compares the answer and what it has
//! changed; every few steps all that the store shows is compared (`model/checks.rs`).
//!
//! Each test prints its seed, which is the same in every run; `just model` takes others. `TAILBACK_MODEL_SEED=… scripts/test -E 'binary(model)'` takes exactly the same steps, and
//! `TAILBACK_MODEL_STEPS=…` takes more of them. A failure says which seed its sequence has, and shows the fewest steps
//! that were found to go wrong as well.
//!
//! Steps are drawn by proptest's strategies and simplified by them; the loop around them is our own. The crate
//! `proptest-state-machine` wants a model that goes its way without the store, but this one learns from it the
//! moments that only the store can choose; and it leaves steps out one by one, where sequences are long and begin
//! with a new database.
//!
//! To add to it: what is new in a job goes into `model/job.rs`, what a producer says of it into `model/drafts.rs`, what a call
//! means into `model/held.rs`, `model/unheld.rs` or a neighbour, the step into `model/steps.rs` and `model/draws.rs`, and its
//! taking into `model/acts.rs`, `model/world.rs` or `model/others.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "shown when a test fails or with --no-capture")]

mod common;

mod model {
    pub mod acts;
    pub mod batches;
    pub mod bytes;
    pub mod checks;
    pub mod claims;
    pub mod drafts;
    pub mod draws;
    pub mod failing;
    pub mod held;
    pub mod job;
    pub mod lines;
    pub mod next;
    pub mod others;
    pub mod run;
    pub mod semaphores;
    pub mod settle;
    pub mod state;
    pub mod steps;
    pub mod unheld;
    pub mod words;
    pub mod workers;
    pub mod world;
}

/// Tests that each take so many steps; several for a store, so that they run beside each other.
macro_rules! tests {
    ($($name:ident: $steps:literal steps on $open:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            model::run::run(stringify!($name), $steps, common::stores::Fixture::$open).await;
        })*
    };
}

tests! {
    sqlite_memory_one: 11_000 steps on sqlite_memory;
    sqlite_memory_two: 11_000 steps on sqlite_memory;
    sqlite_memory_three: 11_000 steps on sqlite_memory;
    sqlite_memory_four: 11_000 steps on sqlite_memory;
    sqlite_file_one: 2_000 steps on sqlite_file;
    sqlite_file_two: 2_000 steps on sqlite_file;
    mongo_one: 2_000 steps on mongo;
    mongo_two: 2_000 steps on mongo;
    mongo_three: 2_000 steps on mongo;
}
