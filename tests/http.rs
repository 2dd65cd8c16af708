//! The HTTP contract, call by call, on every store: each case has a server process, a port and a database of
//! its own. The cases are in `tests/http/`, by what they are about; this is the list of them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

mod http {
    pub mod acting;
    pub mod batch;
    pub mod batches;
    pub mod binary;
    pub mod bulk;
    pub mod delivering;
    pub mod draining;
    pub mod figures;
    pub mod flows;
    pub mod giving_back;
    pub mod groups;
    pub mod jobs;
    pub mod keyed;
    pub mod keyed_pops;
    pub mod limits;
    pub mod many;
    pub mod mistakes;
    pub mod next;
    pub mod once;
    pub mod one_job;
    pub mod operations;
    pub mod payloads;
    pub mod push;
    pub mod queue_list;
    pub mod queues;
    pub mod reserve;
    pub mod results;
    pub mod schedules;
    pub mod search;
    pub mod semaphores;
    pub mod series;
    pub mod settle;
    pub mod signals;
    pub mod stale;
    pub mod support;
    pub mod together;
    pub mod turns;
    pub mod unique;
    pub mod waiting;
    pub mod waiting_for;
    pub mod wire;
    pub mod workers;
}

use http::{
    acting::*, batch::*, batches::*, binary::*, bulk::*, delivering::*, draining::*, figures::*, flows::*,
    giving_back::*, groups::*, jobs::*, keyed::*, keyed_pops::*, limits::*, many::*, mistakes::*, next::*,
    once::*, one_job::*, operations::*, payloads::*,
};
use http::{
    push::*, queue_list::*, queues::*, reserve::*, results::*, schedules::*, search::*, semaphores::*,
    series::*, settle::*, stale::*, together::*, waiting::*, waiting_for::*, wire::*, workers::*,
};

on_every_store! {
    what_is_no_word_names_the_words
    an_operation_is_not_begun_by_mistake
    a_key_that_is_there_twice_is_refused a_refusal_does_not_grow_with_what_it_quotes
    a_call_without_parameters_refuses_them
    a_first_key_does_not_lock_its_maker_out
    a_wrong_state_says_what_is_needed
    times_may_have_an_offset
    queues_are_listed_in_every_order_page_by_page
    a_queue_of_a_list_has_its_figures
    what_is_no_order_or_cursor_is_refused
    nobody_there_and_nothing_delivered_need_attention
    blocked_jobs_need_attention_where_nothing_will_free_them
    every_blocked_queue_is_judged_and_until_then_counted_as_unjudged
    failures_growth_the_dead_and_a_pause_need_attention
    a_scheduled_job_is_run_now
    a_job_is_taken_back
    a_job_is_moved_without_a_token
    each_act_is_remembered
    each_act_is_a_line_of_the_log
    an_act_says_what_was_before_and_after
    acts_on_many_jobs_are_remembered_with_how_many
    a_server_that_only_shows_changes_nothing
    an_operation_retries_many_jobs_in_the_background
    an_operation_takes_no_job_twice
    everything_must_be_asked_for_by_name an_operation_takes_the_conditions_of_a_search
    an_operation_takes_every_condition_of_a_search
    what_is_wrong_with_a_filter_is_named
    each_action_does_what_it_says
    a_dry_run_changes_nothing
    a_repeat_finds_its_operation_among_many
    a_whole_group_is_deleted_by_its_states all_that_were_blocked_are_deleted_by_their_state
    a_delete_whose_jobs_are_gone_is_not_refused
    a_replay_leaves_out_what_needs_a_semaphore_that_is_gone
    a_pop_that_waits_keeps_no_job_from_a_reserve
    a_sample_says_what_it_has_looked_at_and_what_to_expect
    a_replay_into_a_full_queue_goes_on_later
    an_operation_is_stopped
    a_repeat_begins_no_second_operation
    a_push_keeps_every_field
    what_a_push_leaves_out_falls_back
    a_delayed_push_is_scheduled
    a_taken_key_answers_the_first_job
    a_taken_key_with_another_payload_conflicts
    a_key_outlives_its_job_by_its_ttl_only
    a_key_can_debounce_and_be_exclusive
    a_push_out_of_range_names_the_field
    the_widest_values_are_accepted
    a_name_that_is_none_is_refused

    an_unfinished_job_says_what_it_waits_for
    a_lost_reservation_says_why
    a_lost_reservation_tells_no_content
    a_finished_job_waits_for_nothing
    a_key_learns_nothing_of_other_queues_holders
    a_job_that_lets_another_pass_says_which
    only_a_pop_that_waits_is_nobody_for_semaphores

    a_group_goes_one_by_one
    a_failed_job_holds_its_group
    a_move_says_that_the_job_has_to_wait
    what_is_wrong_with_a_group_is_named

    a_batch_answers_each_job_at_its_place
    a_batch_takes_a_thousand_jobs
    a_full_queue_takes_a_part_of_a_batch

    a_full_queue_refuses_until_a_job_ends
    a_full_queue_refuses_a_move
    a_dead_letter_queue_is_never_full
    an_expired_job_leaves
    a_reserved_job_expires_once_it_is_given_back
    payloads_and_bodies_have_limits
    texts_have_an_end
    there_are_only_so_many_queues
    there_are_only_so_many_names
    a_server_runs_at_most_a_thousand_schedules
    a_call_that_does_nothing_takes_no_place
    what_was_deleted_is_counted_anew
    too_many_semaphores_do_not_reach_the_store

    a_semaphore_shows_who_holds_it
    an_unknown_semaphore_is_refused
    a_semaphore_that_a_schedule_needs_stays
    a_semaphore_that_a_batch_needs_at_its_end_stays a_refused_delete_of_a_semaphore_is_no_act
    a_release_wakes_who_waits
    a_lapse_releases
    max_reserved_holds_and_a_settle_wakes
    a_rate_wakes_when_it_allows_more

    a_reserved_job_shows_what_a_worker_needs
    a_reserve_takes_what_is_most_urgent_first
    several_queues_are_taken_from_in_the_order_given
    a_reserve_out_of_range_names_the_field
    an_empty_body_asks_for_one_job
    the_queues_lease_holds_when_the_reserve_does_not_say
    a_pop_takes_a_job_once
    a_popped_job_becomes_history_where_it_is_kept
    many_workers_never_get_the_same_job

    a_push_wakes_whoever_waits
    a_batch_wakes_a_waiter_for_each_job
    a_due_time_wakes_whoever_waits
    an_earlier_run_at_wakes_whoever_waits
    a_rollback_wakes_whoever_waits
    a_move_and_a_death_wake_whoever_waits
    an_expiry_wakes_whoever_waits
    a_resume_wakes_whoever_waits
    who_came_first_is_served_first
    a_wait_ends_empty_in_time
    a_poll_stays_underneath
    a_client_that_leaves_gets_nothing

    a_producer_waits_for_the_result
    a_wait_for_a_result_ends_with_the_job_as_it_is
    death_ends_a_wait_for_a_result
    a_job_that_is_gone_ends_a_wait_for_its_result
    a_wait_for_a_result_ends_when_the_server_stops
    a_client_that_leaves_frees_its_place
    a_queue_keeps_results_for_who_waits

    a_job_is_retried_by_its_id
    a_retry_wakes_whoever_waits_and_keeps_groups
    a_job_is_redriven_by_its_id
    a_job_is_replayed_by_its_id
    a_delete_leaves_what_a_worker_holds_where_it_is_told_to
    a_peek_shows_what_comes_next
    a_reserve_takes_so_many_bytes
    batches_are_listed
    stats_tell_what_comes_due_and_count_exactly
    queues_are_listed_by_prefix
    queues_are_deleted_by_prefix
    a_schedule_understands_words

    jobs_of_several_queues_are_pushed_together
    one_job_refuses_all_that_are_pushed_together
    jobs_that_are_pushed_beside_each_other_stand_for_themselves
    a_keyed_push_to_several_queues_is_done_once

    a_repeat_gets_the_same_jobs
    a_keyed_reserve_of_so_many_bytes_claims_once
    a_repeat_shows_only_what_is_still_held
    a_key_belongs_to_its_request
    an_empty_answer_is_not_remembered
    a_repeat_while_the_first_runs_waits_for_it
    a_key_must_be_visible_ascii

    a_keyed_push_is_done_once
    a_repeat_may_encode_its_path_otherwise
    what_is_replaced_wakes_a_waiter
    a_keyed_push_is_answered_alike_when_its_job_is_gone
    a_keyed_push_that_was_refused_is_tried_again
    a_keyed_push_of_many_is_done_once
    a_keyed_batch_is_created_once
    a_batch_of_duplicates_is_refused
    a_batch_that_is_sent_twice_in_parts_calls_back_once
    a_keyed_move_is_done_once
    a_keyed_pop_takes_once
    a_keyed_pop_of_large_jobs_is_remembered
    a_keyed_pop_waits_and_wakes
    a_keyed_pop_takes_no_more_than_it_asks_for
    of_keyed_calls_at_once_one_takes_effect
    a_schedule_is_run_once_by_a_key
    a_keyed_redrive_and_replay_are_done_once
    a_keyed_redrive_of_many_steps_is_done_once
    a_keyed_replay_into_a_limited_queue_copies_each_job_once
    a_keyed_call_is_forgotten_after_its_time
    a_keyed_call_whose_answer_was_lost_is_repeated
    a_keyed_pop_of_a_server_that_was_killed_goes_on

    a_commit_takes_the_job_away
    a_commit_becomes_history_with_its_result
    a_rollback_brings_the_job_back
    a_rollback_waits_as_long_as_it_is_told
    a_job_without_attempts_left_is_dead
    a_dead_job_goes_to_the_dead_letter_queue
    an_extend_gives_more_time
    progress_is_handed_on
    a_move_starts_the_next_stage
    a_worker_learns_that_its_job_is_not_wanted
    a_settle_out_of_range_names_the_field

    a_job_is_given_up_for_good
    a_job_is_put_off_without_counting
    a_job_comes_back_at_a_moment
    a_job_goes_back_to_its_place
    a_lapsed_job_keeps_its_place_where_its_queue_says_so
    a_move_brings_new_headers
    what_contradicts_itself_in_a_rollback_is_named
    a_repeat_is_told_the_state_of_the_first

    the_lease_of_the_request_the_job_and_the_queue
    a_delivery_ends_after_its_longest_time
    attempts_may_be_without_limit
    headers_are_any_json
    a_waiting_job_gets_other_limits
    a_waiting_job_changes_its_group
    an_extend_shows_that_its_worker_lives
    what_is_out_of_range_of_a_delivery_is_named

    a_commit_pushes_what_it_led_to
    what_is_replaced_beside_something_else_says_so a_commit_is_repeated_without_the_semaphore_of_its_push
    many_commits_push_jobs_with_keys a_settle_is_repeated_where_no_queue_may_come
    what_is_wrong_with_a_push_is_named
    settles_among_others_push_too
    a_settle_pushes_a_thousand_jobs_at_most
    a_pop_ends_a_route
    a_job_goes_through_its_stages
    a_route_out_of_range_names_the_field

    a_batch_goes_on_to_the_next_task
    a_batch_is_filled_and_sealed
    a_batch_can_be_cancelled
    a_cancel_leaves_the_jobs_of_a_batch_that_have_ended
    what_is_wrong_with_a_batch_is_named

    a_token_of_the_past_settles_nothing
    a_token_that_never_was_settles_nothing
    a_repeat_of_a_settle_answers_the_same
    a_repeat_is_recognised_after_the_job_went_on
    a_repeat_of_a_death_answers_the_same
    a_commit_can_be_repeated_while_history_lasts
    a_repeat_says_what_was_pushed
    a_forced_delete_takes_the_token
    concurrent_repeats_answer_the_same
    a_commit_whose_client_left_can_be_repeated

    a_settle_takes_the_next_jobs
    the_next_jobs_come_from_the_queues_that_are_named
    a_settle_stands_where_nothing_is_next
    a_next_of_a_group_comes_with_the_settle
    a_repeat_returns_the_next_jobs_that_are_held
    a_repeat_after_a_kill_returns_the_next_jobs
    a_settle_takes_effect_before_it_waits
    who_leaves_while_it_waits_for_the_next_gets_nothing
    what_is_wrong_with_a_next_is_named
    a_settle_that_waits_for_the_next_is_answered_at_the_end

    each_element_of_a_settle_stands_for_itself
    a_settle_takes_a_thousand_jobs all_lists_of_a_settle_have_a_thousand_jobs_together
    a_settle_of_nothing_answers_nothing
    the_same_job_twice_in_a_settle

    a_job_that_is_not_there_is_unknown
    a_waiting_job_can_be_changed
    a_change_orders_the_job_anew
    a_job_that_is_held_or_finished_stays_as_it_is
    a_change_out_of_range_names_the_field
    a_deleted_job_is_gone
    a_queue_is_browsed_page_by_page
    a_queue_is_browsed_by_state_and_key
    a_wrong_query_names_the_parameter
    jobs_of_all_queues_are_found
    the_dead_are_found_by_their_errors
    a_wrong_search_names_the_parameter
    as_much_is_shown_of_payloads_as_is_asked_for
    a_payload_is_had_as_it_is
    the_jobs_of_a_worker_are_those_that_it_holds
    groups_are_listed_with_their_first_jobs
    the_server_is_among_the_servers

    a_queue_without_settings_has_the_defaults
    settings_are_replaced_and_merged
    a_patch_merges_within_the_backoff
    a_put_has_a_body_and_a_patch_known_fields
    settings_change_only_as_they_are_known
    of_many_that_change_settings_at_once_one_succeeds
    settings_out_of_range_name_the_field
    dead_letter_queues_make_no_circle
    queues_are_listed_by_name
    a_queue_with_jobs_is_deleted_by_force_only
    a_paused_queue_delivers_nothing_and_takes_pushes
    a_call_that_changes_nothing_keeps_the_version
    a_put_leaves_a_pause_as_it_is

    a_schedule_is_shown_as_it_was_set
    a_schedule_changes_only_as_it_is_known
    a_schedule_out_of_range_names_the_field
    a_schedule_pushes_each_occurrence
    a_rule_that_does_not_say_so_resumes_nothing
    a_run_by_hand_pushes_at_once
    runs_at_once_are_all_remembered
    none_of_many_runs_at_once_fails
    an_overlap_is_skipped
    a_schedule_fills_a_full_queue
    missed_occurrences_are_made_up_for_once_or_not

    a_purge_takes_one_state_away
    a_purge_takes_what_is_older
    a_purge_goes_on_until_nothing_is_left
    a_purge_leaves_what_was_blocked a_purge_leaves_the_callback_that_it_causes
    a_redrive_revives_the_queues_own_dead
    a_redrive_returns_dead_letters_to_where_they_died
    a_letter_that_died_again_is_redriven_once_and_home a_letter_of_a_letter_is_one_again_where_it_came_from
    a_redrive_takes_what_died_in_a_time
    an_expiry_outlives_death
    a_replay_repeats_what_was_finished_before_it
    a_replay_copies_history
    a_replay_stops_at_a_full_queue

    a_heartbeat_extends_all_that_its_worker_holds
    a_heartbeat_out_of_range_names_the_field
    a_worker_that_is_heard_of_keeps_its_jobs
    a_silent_worker_gives_back_what_it_holds
    who_sends_no_heartbeats_keeps_its_leases
    silences_end_dead
    a_worker_that_only_extends_is_not_silent
    workers_that_extend_are_never_shown_silent
    a_removed_worker_gives_back_at_once
    workers_are_listed_page_by_page
    a_job_that_is_not_wanted_is_told_and_taken_by_force
    a_server_that_was_away_listens_first

    what_happened_survives_the_server
    a_series_says_how_many_jobs_there_were
    a_series_has_equal_steps
    past_a_bound_nothing_is_said_to_be_zero
    every_busy_queue_has_rates
    figures_without_data_are_absent
    stats_and_the_list_count_the_same_queues
    all_queues_together_tell_what_is_tried_again
    a_load_that_is_late_holds_up_no_other_figure

    stats_count_what_is_there
    metrics_list_so_many_queues
    stats_list_the_background_tasks
    a_paused_queue_says_so
    a_server_tells_how_it_is
    metrics_can_be_read

    a_page_of_another_site_changes_nothing
    a_path_that_must_be_decoded_is_served_alike
    an_unknown_path_is_not_found
    a_method_that_a_path_has_not_is_refused
    head_answers_like_get_without_a_body
    only_json_is_read
    every_answer_has_the_id_of_its_request
    answers_say_what_they_are
    a_big_answer_is_compressed_where_that_is_asked_for
    no_accept_encoding_spoils_a_response
    the_document_and_its_page_are_served

    odd_payloads_come_back_as_they_were
    a_payload_may_be_as_big_as_the_limit
    arbitrary_payloads_come_back_as_they_were
    ambiguous_payloads_are_refused
    a_header_that_is_named_twice_is_refused
    results_and_progress_come_back_as_they_were
    what_is_not_json_is_malformed

    bytes_are_taken_wherever_a_payload_is
    bytes_are_given_wherever_a_payload_is
    what_is_wrong_with_bytes_is_named
    limits_count_the_bytes_of_a_payload
    a_move_gives_a_job_a_key

    waiting_calls_are_answered_at_the_end
    a_call_that_runs_is_finished
    a_stop_does_not_wait_for_ever
    a_stop_gives_notice
}

/// Cases about several servers: only MongoDB has several, one SQLite file has one.
mod several_servers {
    use super::http::batches::two_servers_call_back_once;
    use super::http::figures::a_store_that_is_away_is_told;
    use super::http::flows::one_commit_on_two_servers_pushes_once;
    use super::http::giving_back::another_server_tells_a_repeat_the_state_of_the_first;
    use super::http::keyed::a_keyed_call_is_repeated_at_another_server;
    use super::http::next::{
        a_push_at_another_server_wakes_a_settle_that_waits,
        a_repeat_at_another_server_gets_the_same_next_jobs,
    };
    use super::http::once::{
        a_repeat_at_another_server_gets_the_same_jobs, a_repeat_at_another_server_waits_for_the_first,
    };
    use super::http::results::a_result_is_waited_for_on_another_server;
    use super::http::schedules::an_occurrence_is_pushed_once_by_many_servers;
    use super::http::series::two_servers_say_the_same;
    use super::http::signals::*;
    use super::http::stale::{
        a_dead_token_commits_nothing_beside_a_live_one,
        a_dead_token_that_pushes_commits_nothing_beside_a_live_one,
        another_server_knows_a_commit_by_its_history_only,
    };
    use super::http::turns::{
        a_busy_server_that_is_killed_is_waited_for_no_more, busy_servers_take_turns_and_lose_nothing,
        who_comes_alone_does_not_wait_for_a_busy_server,
    };
    use super::http::unique::*;
    use super::http::waiting_for::who_waits_on_another_server_is_known;
    use super::http::workers::{
        a_heartbeat_at_another_server_counts, a_silence_is_noticed_without_the_server_that_heard_last,
    };

    crate::on_one_store! {
        mongo:
        one_commit_on_two_servers_pushes_once a_unique_index_of_another_program_refuses_its_own
        two_servers_say_the_same an_operation_leaves_what_a_unique_index_refuses
        who_waits_on_another_server_is_known two_servers_call_back_once
        a_result_is_waited_for_on_another_server
        a_repeat_at_another_server_gets_the_same_jobs
        a_repeat_at_another_server_waits_for_the_first
        a_keyed_call_is_repeated_at_another_server
        a_push_at_another_server_wakes_a_settle_that_waits
        a_repeat_at_another_server_gets_the_same_next_jobs
        a_dead_token_commits_nothing_beside_a_live_one
        a_dead_token_that_pushes_commits_nothing_beside_a_live_one
        another_server_knows_a_commit_by_its_history_only
        another_server_tells_a_repeat_the_state_of_the_first
        a_store_that_is_away_is_told
        a_push_wakes_who_waits_on_another_server
        what_comes_back_wakes_who_waits_on_another_server
        a_batch_wakes_waiters_on_all_servers
        a_resume_wakes_who_waits_on_another_server
        a_change_of_settings_is_known_at_other_servers_by_a_signal
        the_first_job_at_a_server_that_has_just_started_wakes_who_waits_on_another
        nothing_is_told_that_nobody_waits_for
        a_pop_keeps_no_job_from_a_reserve_on_another_server
        what_only_pops_pass_over_is_told_once
        a_stream_that_ends_is_opened_again a_server_that_stops_is_not_told_any_more
        servers_over_one_store_know_each_other
        servers_tell_an_older_one_and_hear_it
        the_collection_of_the_news_is_mended
        who_comes_alone_does_not_wait_for_a_busy_server
        busy_servers_take_turns_and_lose_nothing
        a_busy_server_that_is_killed_is_waited_for_no_more
        a_job_that_another_program_wrote_is_found
        a_program_that_says_what_it_inserts_wakes_who_waits
        an_occurrence_is_pushed_once_by_many_servers
        a_heartbeat_at_another_server_counts
        a_silence_is_noticed_without_the_server_that_heard_last
    }
}
