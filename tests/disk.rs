//! The disk under SQLite, and the machine's clock: every operation on the file is struck once, by a kill, a torn write,
//! a power cut or an error, for every verb that writes; the disk is full for a while, fails, or stalls; the clock is set back
//! or ahead. The library in `tests/shim` does all that to one server, see `common/shim.rs`.
//!
//! Usually one fault of each operation is tried; `TAILBACK_DISK_CASES=all` (`just disk`) tries all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the table of the cases is for people")]

#[path = "disk/cases.rs"]
mod cases;
#[path = "disk/clock.rs"]
mod clock;
mod common;
#[path = "disk/full.rs"]
mod full;
#[path = "disk/lane.rs"]
mod lane;
#[path = "disk/lifecycle.rs"]
mod lifecycle;
#[path = "disk/site.rs"]
mod site;
#[path = "disk/stalled.rs"]
mod stalled;
#[path = "disk/verbs.rs"]
mod verbs;
#[path = "disk/verbs_more.rs"]
mod verbs_more;

/// A test for each verb.
macro_rules! each_operation_of {
    ($name:ident of $verbs:ident: $($verb:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $verb() {
                crate::cases::run(stringify!($verb), crate::$verbs::$verb).await;
            })*
        }
    };
}

each_operation_of! {
    each_operation_of of verbs:
    push push_with_key push_to_a_group push_many
    reserve reserve_with_key reserve_with_semaphores pop
    commit commit_into_history commit_with_pushes commit_along_a_route commit_of_a_batch commit_in_a_group
    rollback rollback_to_dead rollback_to_a_dead_letter_queue extend move_on settle_many
    edit cancel cancel_a_held_job cancel_by_force
    redrive redrive_from_a_dead_letter_queue replay purge
    settings pause resume delete_a_queue set_a_semaphore delete_a_semaphore
    heartbeat remove_a_worker set_a_schedule run_a_schedule pause_a_schedule resume_a_schedule delete_a_schedule
    add_an_api_key rotate_an_api_key remove_an_api_key
    create_a_batch add_to_a_batch seal_a_batch cancel_a_batch
    lapse lapse_of_the_last_attempt expiry unblocking firing pruning start
}

each_operation_of! {
    each_operation_of_further of verbs_more:
    push_once push_that_replaces push_many_once push_together push_together_once push_beside_each_other
    retry redrive_a_job replay_a_job replay_a_job_once run_now release move_without_a_token edit_the_group
    reserve_from_patterns pop_once commit_with_next rollback_in_its_place move_to_a_key settle_many_with_next
    redrive_once replay_once delete_queues settings_in_part run_a_schedule_unkeyed
    create_a_batch_once add_to_a_batch_once pruning_of_a_batch
}
