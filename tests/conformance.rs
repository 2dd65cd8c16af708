//! What every store keeps: the contract of [`tailback::store::Store`], case by case.
//!
//! A case is a plain function over `&dyn Store` and judges nothing but the trait. There is one list of
//! them, which becomes a module of tests for each store at the end of this file; each case has a database
//! of its own. A new store needs a [`Fixture`](common::stores::Fixture) that opens an empty one, and a line.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod conformance {
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
    pub mod semaphores;
    pub mod series;
    pub mod settings;
    pub mod settling;
    pub mod stocked;
    pub mod transfer;
    pub mod workers;
}

/// Every case: what a store must keep.
macro_rules! every_case {
    ($store:ident, $open:path) => {
        suite! { $store, $open,
            order {
                a_higher_priority_comes_first
                the_extreme_priorities_are_kept_and_ordered
                an_earlier_run_at_comes_first
                the_smaller_id_comes_first_at_one_run_at
                a_big_mix_is_delivered_in_order_by_small_claims
                what_comes_before_the_head_is_next
                a_scheduled_job_is_never_early
                scheduled_jobs_are_left_where_they_are
                scheduled_jobs_are_never_in_the_way
                a_job_that_came_due_takes_its_rank
                expired_jobs_are_passed_over
                queues_do_not_mix
            }
            claims {
                a_claim_takes_no_more_than_it_asks_for
                a_queue_that_never_was_is_empty
                a_claim_writes_the_reservation
                the_answer_is_what_is_stored
                each_delivery_counts_as_an_attempt
                every_ask_has_its_answer_at_its_place
                many_claims_of_large_jobs_all_win
                two_asks_for_one_queue_share_it
                sixteen_claimers_never_win_the_same_job
                pushes_and_claims_at_once_lose_nothing
                held_answers_what_a_claim_holds
                history_is_not_held
            }
            settling {
                a_commit_takes_the_job_away
                a_commit_becomes_history_where_it_is_kept
                history_tells_the_repeat_of_a_commit
                without_history_the_repeat_of_a_commit_is_lost
                a_job_in_history_cannot_be_settled_otherwise
                a_stale_claim_changes_nothing
                a_claim_settles_its_own_jobs_only
                unknown_jobs_are_told_by_what_was_asked
                a_late_settle_succeeds_until_the_job_was_taken_back
                a_release_is_not_counted
                an_extend_moves_the_deadline
                progress_reaches_the_next_attempt
                one_id_twice_in_a_call_is_applied_in_order
                every_change_has_its_answer_at_its_place
                a_round_of_large_changes_is_carried_out
                a_change_among_stale_ones_is_known_to_have_happened
                an_empty_call_answers_nothing
                settles_at_once_happen_once
            }
            failing {
                a_rollback_waits_as_long_as_it_says
                a_rollback_without_delay_comes_back_at_once
                the_backoff_of_the_queue_grows
                the_backoff_of_the_job_comes_before_the_queues
                used_up_attempts_end_dead
                the_attempts_of_the_job_come_before_the_queues
                dead_jobs_are_kept_as_long_as_the_queue_says
                a_dead_letter_arrives_ready_elsewhere
                a_failure_is_remembered_whole
                the_last_ten_errors_are_kept
                a_long_message_is_cut_between_characters
                a_dead_job_gets_another_chance
                a_dead_letter_goes_home
                a_dead_letter_that_dies_again_goes_home_at_once
                a_circle_of_dead_letter_queues_ends
                only_the_dead_are_redriven
                a_job_that_is_given_up_is_dead_at_once
                a_job_is_put_off_for_nothing
                a_job_back_in_its_place_comes_first
            }
            deadlines {
                a_lapsed_reservation_comes_back
                lapses_use_attempts_up
                an_extend_in_time_keeps_the_job
                a_lapse_yields_to_an_extend
                a_lapse_yields_to_a_commit
                two_reapers_let_a_job_lapse_once
                nothing_is_overdue_before_its_time
                the_longest_overdue_come_first
                lapses_and_expiries_are_one_line
                an_expired_job_is_removed
                a_reserved_job_does_not_expire
                an_expiry_is_guarded_by_its_moment
                a_dead_letter_expires
                a_dead_job_does_not_expire_and_has_no_other_chance
                what_is_redriven_expires_as_it_was_pushed
                a_lapse_ends_what_was_asked_to_stop
                the_next_due_moments_come_in_order
                only_scheduled_jobs_are_upcoming
            }
            delivering {
                a_job_has_a_lease_of_its_own
                a_delivery_lasts_no_longer_than_its_job_says
                a_take_over_ends_with_its_delivery
                attempts_without_a_limit_never_end
                headers_have_any_value
                an_edit_changes_limits_and_lifetime
                a_job_changes_its_line
                changes_of_lines_at_once_lose_nobody
                only_a_waiting_job_changes_its_line
            }
            acting {
                what_is_run_is_due_and_keeps_its_attempts
                what_is_run_behind_others_stays_there
                a_job_is_taken_back_from_its_worker
                what_is_taken_back_and_was_cancelled_leaves
                what_nobody_holds_is_put_into_another_queue
                what_leaves_its_group_frees_it
                a_full_queue_takes_no_more
                what_one_claim_holds_is_taken_back_again
            }
            operations {
                an_operation_is_stored_once_as_it_is
                operations_are_listed_and_those_that_are_open_found
                an_operation_that_is_forgotten_is_not_begun_again
                a_step_and_its_record_are_one
                of_two_servers_one_makes_the_step
                a_step_fills_a_queue_and_no_more
                the_pushes_of_a_step_happen_once
                the_end_of_an_operation_has_a_row
                what_comes_to_wait_says_since_when
                an_act_and_its_row_are_one
                a_row_counts_the_jobs_of_its_act
                settings_semaphores_and_operations_have_rows
                rows_are_found_by_what_they_say
            }
            editing {
                a_retry_makes_a_job_ready_where_it_is
                a_retry_keeps_the_line_of_a_group
                what_nobody_holds_is_cancelled_and_nothing_else
                an_edit_changes_what_it_names
                an_edit_reorders
                an_edit_postpones_and_hurries
                only_waiting_jobs_can_be_edited
                a_cancel_removes_what_nobody_holds
                the_holder_learns_of_a_cancel
                a_cancelled_job_can_still_be_committed
                force_removes_a_reserved_job
                a_purge_takes_one_state_only
                a_job_that_has_left_its_queue_is_unknown
            }
            flowing {
                a_commit_and_its_pushes_happen_together
                a_commit_whose_push_is_refused_does_not_happen
                one_refused_commit_keeps_no_other_from_happening
                the_repeat_of_a_commit_that_pushed_answers_the_same
                a_stale_commit_pushes_nothing
                pushes_of_a_commit_have_keys
                a_commit_makes_room_in_its_own_queue
                a_commit_makes_no_room_where_there_are_too_many
                a_job_that_ends_leaves_its_key_to_what_it_pushes
                many_commits_push_much
                a_commit_hands_a_job_to_its_next_stage
                the_repeat_of_such_a_commit_answers_the_same
                a_route_rests_in_a_dead_letter_queue
                a_route_ends_where_somebody_asked_for_it
                a_moved_job_keeps_its_route
                a_key_is_taken_until_the_last_stage_has_ended
            }
            groups {
                jobs_of_a_group_come_one_at_a_time
                a_push_says_who_has_to_wait
                a_job_that_is_rolled_back_keeps_its_place
                neither_delay_nor_priority_reorders_a_group
                a_dead_job_holds_its_group
                a_group_goes_on_without_a_dead_job_where_it_may
                dead_letters_stand_in_no_line
                a_moved_job_joins_the_end
                a_route_joins_the_groups_of_its_queues
                a_pop_and_history_free_their_group
                who_leaves_the_middle_of_a_line_moves_nobody
                a_whole_line_leaves_in_one_call
                what_expires_frees_its_group
                what_lapses_comes_back_to_its_place
                jobs_of_groups_are_stored_with_others
                a_full_queue_has_no_room_for_who_waits
                a_group_can_be_browsed
                a_blocked_job_can_be_changed_and_taken_away
                the_order_holds_with_many_at_work
            }
            batches {
                batches_are_listed_by_id
                a_batch_counts_its_jobs_and_calls_back
                the_repeat_of_the_last_commit_calls_back_once
                a_batch_takes_jobs_until_it_is_sealed
                a_batch_with_nothing_pending_ends_at_once
                a_batch_is_stored_whole_or_not_at_all
                a_job_that_was_there_is_not_counted
                a_batch_of_duplicates_is_denied
                adding_only_duplicates_to_an_empty_batch_is_denied
                a_batch_that_only_replaces_is_denied
                a_job_under_way_is_pending
                dead_is_finished_whatever_comes_later
                what_is_taken_away_counts_as_cancelled
                many_that_end_at_once_call_back_once
                adding_and_ending_at_once_add_up
                a_finished_batch_is_forgotten_after_its_time
                a_batch_comes_over_as_it_is
                long_batches_make_short_pages
            }
            moving {
                a_move_gives_a_key
                a_move_to_a_taken_key_moves_nothing
                a_moved_job_holds_its_key_as_it_says
                a_move_may_give_its_own_key_again
                a_move_starts_again_elsewhere
                a_move_takes_payload_delay_and_priority
                a_move_forgets_progress
                the_repeat_of_a_move_answers_the_same
                a_receipt_answers_its_own_claim_and_verb_only
                a_move_happens_once_within_one_call
                a_move_leaves_the_key_behind
                a_full_queue_refuses_a_move
                the_room_of_a_queue_holds_within_one_call
                a_move_within_a_full_queue_is_not_refused
                a_move_ends_what_was_asked_to_stop
            }
            keys {
                bytes_are_equal_by_their_type_as_well
                the_same_key_and_payload_is_a_duplicate
                the_same_key_with_another_payload_is_a_conflict
                keys_are_seen_within_one_call
                keys_are_unique_within_a_queue_only
                keys_are_any_text
                a_key_until_reserved_is_free_while_its_job_is
                a_key_until_reserved_is_free_once_its_job_has_left
                a_key_for_a_time_is_free_after_it
                a_push_may_refuse_to_share_a_key
                a_push_replaces_what_the_job_with_its_key_does
                what_is_replaced_expires_as_its_push_says
                a_commit_replaces_what_another_job_does
                a_key_is_not_freed_while_its_job_is_unfinished
                a_key_outlives_its_job_for_its_time
                a_key_is_free_after_its_time_and_its_jobs_end
                a_done_job_frees_its_key_after_its_time
                a_dead_job_holds_its_key_until_it_is_gone
                a_cancelled_job_frees_its_key
                an_expired_job_frees_its_key
                a_purge_frees_keys_but_those_of_done_jobs
                a_cancel_frees_no_key_of_another_job
                an_edit_does_not_change_what_a_key_stands_for
                pushes_at_once_share_a_key
            }
            limits {
                a_queue_takes_exactly_as_many_as_it_may
                unfinished_jobs_count_whatever_they_wait_for
                a_duplicate_needs_no_room
                pushes_at_once_never_pass_the_limit
                dead_letters_find_room_in_a_full_queue
            }
            semaphores {
                a_semaphore_has_no_more_holders_than_its_capacity
                claimers_at_once_never_pass_the_capacity
                all_semaphores_are_taken_or_none
                jobs_that_wait_hold_up_nobody
                whatever_ends_a_reservation_releases
                the_highest_priority_is_called_first
                who_was_called_is_not_called_again
                nobody_passes_who_has_lost_patience
                a_paused_queue_keeps_nothing_from_others
                a_capacity_may_change_at_any_time
                what_nobody_has_made_has_no_room
                a_semaphore_in_use_stays
                a_blocked_job_is_like_any_that_waits
                pops_pass_over_jobs_that_need_semaphores
                semaphores_are_listed_by_name
                a_long_line_is_worked_off
                who_asks_again_and_again_is_served_in_order
                a_refusal_holds_for_those_who_need_the_same_only
                a_head_that_is_read_in_parts_is_judged_in_each
                a_queue_that_misses_its_call_keeps_nothing
                who_is_first_in_line_is_called_whatever_its_queue
                semaphores_that_jobs_wait_for_are_listed_by_name
            }
            reserving {
                a_queue_has_no_more_reserved_than_it_may
                claims_at_once_never_pass_max_reserved
                a_rate_holds_in_every_window
                claims_at_once_never_pass_the_rate
                a_pop_is_a_delivery
            }
            looking {
                a_peek_is_in_the_order_of_delivery
                jobs_are_counted_now
                the_store_says_what_it_takes
                it_is_told_which_jobs_have_not_finished
                get_answers_each_id_at_its_place
                a_new_job_is_shown_as_it_was_pushed
                every_write_changes_the_revision
                browsing_goes_by_id_whatever_the_state
                browsing_by_state
                browsing_by_key
                browsing_the_dead_lettered
                browsing_by_time
                queues_are_listed_by_name
                a_queue_without_jobs_has_no_figures
                the_oldest_ready_job_is_known
                the_figures_equal_a_count_after_a_random_mix
                the_figures_of_many_queues_are_added_up
                the_figures_follow_a_job_that_comes_due
            }
            stocked {
                queues_with_due_jobs_are_stocked
                only_jobs_that_can_be_delivered_stock_a_queue
                scheduled_jobs_do_not_hide_those_that_are_due
                a_job_that_comes_due_stocks_its_queue
                many_queues_are_asked_for_at_once
            }
            settings {
                settings_come_back_as_they_were_saved
                the_revision_grows_with_every_change
                a_change_needs_the_expected_version
                settings_can_be_removed
                of_two_changes_at_once_one_is_made
                several_queues_are_changed_at_once
                dead_letter_queues_close_no_circle
                of_the_dead_letter_queues_of_a_ring_one_is_refused
            }
            answers {
                jobs_are_stored_together_or_not_at_all
                a_push_of_all_or_none_is_answered_once
                a_push_is_answered_once
                a_refused_push_is_not_remembered
                an_answer_is_forgotten_after_its_time
                a_long_answer_comes_back_whole
                of_calls_at_once_one_takes_effect
                changes_are_answered_once
                a_batch_is_answered_once
            }
            requests {
                a_request_is_new_once
                a_finished_request_answers_what_it_won
                a_request_that_won_nothing_is_forgotten
                a_request_is_forgotten_after_its_time
                a_request_whose_runner_died_is_taken_over
                a_job_that_is_taken_over_has_one_token
                a_mark_finds_what_was_taken_with_a_settle
                what_was_handed_out_again_is_not_given_back
                a_request_runs_as_long_as_its_server_is_alive
                a_key_stands_for_one_request
                of_two_runners_at_once_one_runs
            }
            schedules {
                a_schedule_comes_back_as_it_was_saved
                a_schedule_changes_only_as_it_was_seen
                schedules_are_listed_by_name
                the_next_occurrences_come_in_order
                a_firing_pushes_and_moves_on
                an_occurrence_is_fired_once_however_many_try
                the_repeat_of_a_firing_changes_nothing
                a_firing_of_what_has_changed_does_nothing
                a_missed_occurrence_may_push_nothing
                a_firing_yields_while_the_last_job_is_unfinished
                a_firing_finds_room_in_a_full_queue
            }
            payloads {
                binary_payloads_come_back_as_they_were
                a_payload_may_change_its_form
                a_result_takes_the_place_of_bytes
                numbers_keep_their_text
                strings_stay_what_they_are
                any_key_may_occur
                keys_keep_their_order
                any_value_is_a_payload
                nesting_may_be_deep
                a_payload_may_be_long
                headers_come_back
                results_and_progress_are_exact_as_well
                a_result_of_null_is_a_result
                arbitrary_values_survive
            }
            keeping {
                a_done_job_is_kept_for_its_result
                a_semaphore_that_a_callback_needs_stays
                a_migrated_store_needs_no_migration
                the_clock_goes_on
                an_immediate_job_is_due_for_the_very_next_claim
                pruning_leaves_what_is_still_good
                pruning_leaves_work_that_is_to_be_done
                pruning_forgets_keys_whose_time_is_over
                pruning_forgets_history_whose_time_is_over
                a_whole_life_leaves_nothing_behind
            }
            series {
                what_servers_write_adds_up
                one_depth_counts_in_a_step
                every_turn_is_kept
                a_turn_stays_between_what_was_said_before_and_with_it
                steps_get_longer_with_age
                servers_tell_each_other
                one_server_says_how_many_jobs_there_are
                every_queue_has_a_depth
                a_load_tells_what_is_tried_again
                what_was_before_a_server_is_read_at_once
                workers_are_counted_queue_by_queue
                what_holds_blocked_jobs_is_found
            }
            workers {
                a_heartbeat_extends_up_to_the_longest_lease_and_the_end_of_the_run
                a_heartbeat_extends_each_reservation_by_its_own_lease
                a_heartbeat_never_shortens
                a_heartbeat_tells_what_was_asked_to_stop
                settles_follow_a_heartbeat
                a_lapse_yields_to_a_heartbeat
                a_silent_worker_gives_back_what_it_holds
                silences_use_attempts_up
                a_heartbeat_keeps_what_silence_has_not_taken
                any_other_change_puts_a_silence_off
                a_delivery_is_a_sign_of_life
                an_extend_is_a_sign_of_life
                only_who_sent_a_heartbeat_falls_silent
                a_silence_that_nobody_listened_to_is_none
                silence_is_dealt_with_in_steps
                the_next_silence_is_foreseen
                a_silence_ends_what_was_asked_to_stop
                workers_are_listed_by_name
                a_removed_worker_gives_back_what_it_holds
            }
            access {
                api_keys_come_back_as_they_were_stored
                changes_of_api_keys_raise_the_revision
                an_api_key_that_is_gone_stays_gone
                the_last_use_of_an_api_key_is_the_latest
                a_restore_is_noted_until_it_has_ended
                the_secret_of_tokens_is_made_once
            }
            searching {
                each_condition_finds_what_it_accepts
                conditions_together_find_what_they_accept
                a_step_of_a_search_ends_at_its_bound
                what_comes_meanwhile_shifts_no_page
                without_contents_long_payloads_are_not_read
                the_dead_are_counted_by_their_errors
            }
            transfer {
                every_job_comes_over_as_it_is
                what_is_there_stays_as_it_is
                jobs_of_all_queues_are_exported_by_id
                long_jobs_make_short_pages
                an_imported_reservation_is_held
                imported_jobs_are_counted_and_delivered
                imported_jobs_go_on
                every_key_is_exported_once
                an_imported_key_is_taken
                what_ran_out_long_ago_is_overdue_as_soon_as_it_comes
            }
        }
    };
}

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

every_case!(mongo, crate::common::stores::Fixture::mongo);
every_case!(sqlite_memory, crate::common::stores::Fixture::sqlite_memory);
every_case!(sqlite_file, crate::common::stores::Fixture::sqlite_file);

// What a store may do, and MongoDB leaves to a second step.
suite! { sqlite_steps, crate::common::stores::Fixture::sqlite_memory,
    requests {
        what_is_next_is_taken_with_a_settle
    }
}
