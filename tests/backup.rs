//! `tailback export` and `tailback import`: a store as it was at one moment, in a file, and back into a store of either kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod backup {
    mod exports;
    mod hostile;
    pub mod restores;
    pub mod spoiled;
    pub mod support;
    pub mod whole;
}

use backup::restores::{
    a_store_that_is_not_empty_is_refused, an_interrupted_restore_is_completed,
    an_older_store_is_left_as_it_is, an_operation_goes_on_after_a_restore, an_operation_is_not_begun_again,
    two_restores_at_once_are_kept_apart, what_a_restore_sent_before_it_was_taken_over_is_not_stored,
};
use backup::spoiled::a_job_that_cannot_be_read_is_restored_dead;
use backup::whole::{
    a_backup_shows_one_moment, everything_comes_back, what_was_asked_for_is_kept_however_deep_it_is_nested,
};

/// One list of cases, each an `async fn(&Place, &Place)`, as a module of tests for a pair of stores.
macro_rules! from_to {
    ($name:ident, $from:ident, $to:ident: $($case:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (from, to) = (crate::backup::support::Home::$from().await, crate::backup::support::Home::$to().await);
                super::$case(&from.place, &to.place).await;
                from.clear().await;
                to.clear().await;
            })*
        }
    };
}

/// The same for one store.
macro_rules! on_one_home {
    ($store:ident: $($case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let home = crate::backup::support::Home::$store().await;
                super::$case(&home.place).await;
                home.clear().await;
            })*
        }
    };
}

from_to! { mongo_to_sqlite, mongo, sqlite: everything_comes_back a_job_that_cannot_be_read_is_restored_dead an_interrupted_restore_is_completed an_operation_is_not_begun_again an_operation_goes_on_after_a_restore }
from_to! { sqlite_to_mongo, sqlite, mongo: everything_comes_back a_job_that_cannot_be_read_is_restored_dead an_interrupted_restore_is_completed an_operation_is_not_begun_again an_operation_goes_on_after_a_restore }
from_to! { sqlite_to_sqlite, sqlite, sqlite: everything_comes_back }
from_to! { mongo_to_mongo, mongo, mongo: everything_comes_back two_restores_at_once_are_kept_apart what_a_restore_sent_before_it_was_taken_over_is_not_stored }
on_one_home! { mongo: a_backup_shows_one_moment a_store_that_is_not_empty_is_refused an_older_store_is_left_as_it_is what_was_asked_for_is_kept_however_deep_it_is_nested }
on_one_home! { sqlite: a_backup_shows_one_moment a_store_that_is_not_empty_is_refused an_older_store_is_left_as_it_is what_was_asked_for_is_kept_however_deep_it_is_nested }
