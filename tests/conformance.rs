//! What every store keeps: the contract of [`tailback::store::Store`], case by case.
//!
//! A case is a plain function over `&dyn Store` and judges nothing but the trait. There is one list of
//! them (`conformance/cases.rs`), which becomes a module of tests for each store at the end of this file; each case has a
//! database of its own. A new store needs a [`Fixture`](common::stores::Fixture) that opens an empty one, and a line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

/// A module of tests for one store.
macro_rules! suite {
    ($store:ident, $open:path, $($group:ident { $($case:ident)* })*) => {
        mod $store {
            $(mod $group {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let fixture = $open().await;
                    crate::conformance::$group::$case(&*fixture.store).await;
                    fixture.close().await;
                })*
            })*
        }
    };
}

#[macro_use]
mod conformance {
    #[macro_use]
    pub mod cases;
    pub mod support;

    pub mod access;
    pub mod acting;
    pub mod answers;
    pub mod batches;
    pub mod claims;
    pub mod deadlines;
    pub mod delivering;
    pub mod editing;
    pub mod failing;
    pub mod flowing;
    pub mod groups;
    pub mod keeping;
    pub mod keys;
    pub mod limits;
    pub mod looking;
    pub mod moving;
    pub mod operations;
    pub mod order;
    pub mod payloads;
    pub mod requests;
    pub mod reserving;
    pub mod schedules;
    pub mod searching;
    pub mod semaphore_lines;
    pub mod semaphores;
    pub mod series;
    pub mod settings;
    pub mod settling;
    pub mod stocked;
    pub mod transfer;
    pub mod workers;
}

every_case!(mongo, crate::common::stores::Fixture::mongo);
every_case!(sqlite_memory, crate::common::stores::Fixture::sqlite_memory);
every_case!(sqlite_file, crate::common::stores::Fixture::sqlite_file);

// What a store may do, and MongoDB leaves to a second step.
suite! { sqlite_steps, crate::common::stores::Fixture::sqlite_memory,
    requests {
        what_is_next_is_taken_with_a_settle
        a_settle_stands_where_nothing_is_next
    }
}
