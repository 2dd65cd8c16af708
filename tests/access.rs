//! Who may do what: API keys, their scopes and their queues, over HTTP, on every store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "tables, shown with --no-capture")]

mod common;

mod access {
    pub mod hidden;
    pub mod keys;
    pub mod late;
    pub mod limits;
    pub mod prefixes;
    pub mod queues;
    pub mod routes;
    pub mod sessions;
    pub mod start;
    pub mod support;
    pub mod tokens;
}

use access::{
    hidden::*, keys::*, late::*, limits::*, prefixes::*, queues::*, routes::*, sessions::*, start::*,
    tokens::*,
};

on_every_store! {
    each_route_needs_its_scope
    what_is_open_needs_no_key
    without_keys_everything_is_open

    a_key_is_shown_once
    a_rotated_key_has_a_new_secret
    what_is_wrong_with_a_new_key_is_named
    the_last_use_is_shown
    acts_of_operators_are_logged
    keys_are_printed_nowhere
    a_stored_key_makes_keys_required
    keys_are_made_in_the_store
    a_key_that_cannot_be_read_is_shown_and_deleted

    a_key_has_a_rate
    a_rate_goes_on_when_its_time_has_passed
    a_key_has_so_many_requests_in_flight
    what_goes_on_without_its_client_is_in_flight
    an_unread_page_is_in_flight
    unread_jobs_are_in_flight
    the_limits_of_a_key_last

    a_poll_costs_no_call_for_each_prefix
    a_push_wakes_who_waits_for_many_prefixes
    many_prefixes_are_taken_from_in_the_order_given

    a_push_stays_in_the_queues_of_its_key
    settles_lead_to_the_queues_of_the_key_only
    a_search_stays_in_the_queues_of_its_key
    the_next_jobs_are_of_the_queues_of_the_key
    a_next_is_judged_by_the_jobs_that_are_held
    a_proven_settle_names_no_queue_that_is_not_the_keys
    patterns_and_lists_are_the_keys
    a_job_elsewhere_is_unknown
    a_push_to_several_queues_needs_each_of_them
    one_job_elsewhere_is_not_touched
    settings_and_schedules_name_the_queues_of_the_key
    batches_belong_to_their_key
    workers_and_semaphores_are_matched_by_name
    a_redrive_returns_jobs_where_the_key_may_push

    lists_and_their_cursors_name_nothing_elsewhere
    operations_of_others_leave_no_cursor
    who_may_not_read_is_shown_no_content
    a_semaphore_shows_its_holders_in_the_queues_of_the_key
    a_batch_ends_at_the_queues_of_its_key
    a_heartbeat_names_jobs_in_the_queues_of_the_key
    a_token_that_was_never_given_tells_nothing
    a_circle_of_dead_letters_names_the_queues_of_the_key
    a_schedule_is_resumed_by_who_may_push
    a_schedule_that_appears_meanwhile_is_not_replaced
    a_replay_pushes_what_the_key_may_push

    an_idempotency_key_is_its_clients
    tokens_of_one_reserve_are_not_derived
    a_token_is_not_derived_without_keys
    an_unsigned_token_of_an_older_claim_is_good

    a_session_stands_for_its_key
    a_forged_session_does_not_use_its_key
    a_login_has_a_small_body
    a_refused_login_gets_a_short_response
    logins_are_limited_and_need_tls
    a_login_that_succeeds_forgives_no_other
    a_session_over_tls_has_a_cookie_that_no_other_host_can_set

    an_exposed_server_needs_a_key

    a_key_that_ends_while_a_body_comes_does_nothing
    a_key_that_ends_while_it_waits_wins_nothing
    a_wait_for_a_result_ends_with_its_key
    what_began_without_a_key_ends_with_the_first_key
}

mod several_servers {
    use super::access::keys::{
        a_key_changes_on_every_server_within_two_seconds,
        a_key_spoiled_past_a_server_ends_where_keys_are_listed, a_spoiled_key_opens_nothing,
        an_act_whose_client_leaves_is_logged,
    };

    // An SQLite file has one server, and no other program writes to it.
    use super::access::hidden::a_spoiled_schedule_is_unknown_to_a_key_for_some_queues;

    crate::on_one_store! { mongo:
        a_spoiled_schedule_is_unknown_to_a_key_for_some_queues
        a_key_changes_on_every_server_within_two_seconds
        a_key_spoiled_past_a_server_ends_where_keys_are_listed
        a_spoiled_key_opens_nothing
        an_act_whose_client_leaves_is_logged
    }
}

mod one_file {
    use super::access::start::files_are_their_owners;

    // Only SQLite has files.
    crate::on_one_store! { sqlite: files_are_their_owners }
}
