//! Faults at the one moment where the server's own reasoning could fail: an answer that is lost, a server that
//! stands still for longer than a lease, a client that leaves. Then the rest of the system goes on, and then the
//! first server comes back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is printed")]

mod common;

#[path = "faults/beside.rs"]
mod beside;
#[path = "faults/counts.rs"]
mod counts;
#[path = "faults/draining.rs"]
mod draining;
#[path = "faults/keyed.rs"]
mod keyed;
#[path = "faults/large.rs"]
mod large;
#[path = "faults/leaving.rs"]
mod leaving;
#[path = "faults/lost.rs"]
mod lost;
#[path = "faults/pruning.rs"]
mod pruning;
#[path = "faults/readiness.rs"]
mod readiness;
#[path = "faults/set.rs"]
mod set;
#[path = "faults/stalled.rs"]
mod stalled;
#[path = "faults/taken_back.rs"]
mod taken_back;
#[path = "faults/won.rs"]
mod won;
#[path = "faults/world.rs"]
mod world;

use beside::*;
use counts::*;
use draining::*;
use keyed::*;
use large::*;
use leaving::*;
use lost::*;
use pruning::*;
use readiness::*;
use won::*;

on_one_store! { sqlite:
    a_client_that_leaves_early_leaves_nothing_pending
    a_server_that_was_killed_leaves_nothing_pending
    a_stop_waits_for_what_is_given_back
    a_stop_gives_back_what_calls_that_it_ends_have_claimed
    waiting_repeats_end_when_the_server_drains
}

// Most need something between the server and its store, or a second server.
on_one_store! { mongo:
    a_client_that_leaves_early_leaves_nothing_pending
    a_server_that_was_killed_leaves_nothing_pending
    a_stop_waits_for_what_is_given_back
    a_stop_gives_back_what_calls_that_it_ends_have_claimed
    waiting_repeats_end_when_the_server_drains
    a_claim_beside_a_commit_that_never_arrived_proves_nothing
    a_commit_and_the_claim_beside_it_are_found_by_a_repeat
    a_repeat_that_proves_nothing_leaves_the_next_job_alone
    what_a_repeat_in_time_has_handed_out_stays_with_its_client
    what_a_claim_has_won_is_handed_out_whoever_wrote_it_since
    a_claim_whose_answer_was_lost_has_one_holder
    a_claim_whose_server_stood_still_has_one_holder
    a_claim_that_lands_after_the_takeover_is_given_back
    a_server_that_was_taken_over_hands_out_no_dead_token
    a_record_that_cannot_be_closed_is_closed_in_the_end
    a_server_takes_nothing_over_from_itself
    a_commit_that_never_arrived_is_not_acknowledged
    a_commit_that_never_arrived_is_not_acknowledged_after_a_sleep
    a_commit_that_arrived_is_acknowledged
    a_rollback_that_arrived_is_not_refused
    a_cancel_that_never_arrived_is_not_acknowledged
    a_client_that_leaves_while_its_record_is_opened_leaves_nothing_pending
    an_opening_that_failed_leaves_nothing_pending
    a_claim_of_a_server_that_was_killed_goes_to_the_repeat
    a_repeat_that_waits_for_another_server_ends_with_its_own
    a_server_that_drains_claims_nothing_for_a_repeat
    counts_are_right_soon_after_a_slow_store
    a_server_whose_writes_stall_is_not_ready
    a_server_whose_writes_stall_is_soon_not_ready
    readiness_writes_nothing_under_load
    a_large_reserve_under_semaphores_goes_in_parts
    a_reserve_returns_what_it_won_before_a_part_that_does_not_end
    a_part_of_a_claim_that_lands_later_is_given_back_as_well
    many_small_batches_that_are_overdue_hold_up_nothing_else
    a_large_settle_of_which_a_job_is_gone_ends_in_time
    a_large_settle_of_lost_jobs_is_refused_in_time
    the_removal_of_a_worker_goes_on_behind_a_step_that_does_not_end
}
