//! What comes from outside and means no good: clients that are slow, broken or malicious, values past every bound,
//! documents that another program spoiled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the cases print their figures")]

mod common;

mod hostile {
    pub mod answers;
    pub mod edge;
    pub mod extremes;
    pub mod memory;
    pub mod memory_of_jobs;
    pub mod names;
    pub mod pages;
    pub mod slow;
    pub mod spoiled;
    pub mod spoiled_heads;
    pub mod spoiled_ids;
    pub mod spoiled_jobs;
    pub mod spoiled_lines;
    pub mod spoiled_operations;
    pub mod spoiled_stay;
    pub mod wire;
}

use std::time::{Duration, Instant};

use common::server::{PATIENCE, Place, Server, until};
use hostile::{
    answers::*, edge::*, extremes::*, memory::*, memory_of_jobs::*, names::*, pages::*, slow::*, spoiled::*,
    spoiled_heads::*, spoiled_ids::*, spoiled_jobs::*, spoiled_lines::*, spoiled_operations::*,
    spoiled_stay::*, wire::*,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap()
}

/// Sends these bytes and reads until the server closes the connection.
async fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server).await;
    // The server may refuse before it has read everything.
    let _ = stream.write_all(bytes).await;
    read_to_end(&mut stream).await
}

async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = async {
        let mut part = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut part).await {
            bytes.extend_from_slice(&part[..read]);
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the server does not close the connection");
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn still_serves(server: &Server) {
    let id = server.push("after", json!({"payload": 1})).await;
    let jobs = server.reserve("after", json!({"lease_ms": 600_000})).await;
    assert_eq!(jobs[0]["id"], id);
    assert_eq!(server.settle(&jobs[0], "commit", json!({})).await.0, 200);
}

async fn half_a_head_is_closed(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__HEADER_WAIT_MS", "2000")]).await;
    for bytes in [
        "",
        "G",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ",
    ] {
        let since = Instant::now();
        let answer = exchange(&server, bytes.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert!(since.elapsed() >= Duration::from_millis(1900), "it had its time: {bytes:?}");
    }
    // Nor does a connection stay open that has said something once, and nothing since.
    let answer = exchange(&server, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    still_serves(&server).await;
}

async fn a_stalled_body_is_given_up(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__BODY_PAUSE_MS", "1500")]).await;
    let head = "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    for rest in ["content-length: 100\r\n\r\n{\"payl", "transfer-encoding: chunked\r\n\r\n5\r\n{\"pay\r\n"] {
        let answer = exchange(&server, format!("{head}{rest}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
        assert!(answer.contains("\"code\":\"request-timeout\""), "{answer}");
    }
    still_serves(&server).await;
}

async fn a_body_that_breaks_off_stores_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    let whole = r#"{"payload":1}"#;
    for rest in [
        format!("content-length: 100\r\n\r\n{whole}"),
        format!("transfer-encoding: chunked\r\n\r\nd\r\n{whole}\r\n"),
    ] {
        let mut stream = connect(&server).await;
        let head = "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\n";
        stream.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    assert_eq!(server.get("/v1/queues/mail/jobs").await.1["jobs"], json!([]));
    still_serves(&server).await;
}

async fn garbage_is_refused(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__HEADER_WAIT_MS", "3000")]).await;
    let random: Vec<u8> = (0..4096).map(|_| rand::random()).collect();
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec();
    let h2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let many =
        (0..500).fold("GET / HTTP/1.1\r\n".to_owned(), |text, n| text + &format!("h{n}: x\r\n")) + "\r\n";
    let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "a".repeat(1_000_000));
    for bytes in [
        random,
        vec![0; 1000],
        tls,
        h2,
        many.into_bytes(),
        long.into_bytes(),
        b"GET\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"GET /a b HTTP/1.1\r\n\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n".to_vec(),
        b"POST /v1/settle HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n".to_vec(),
        b"POST /v1/settle HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}"
            .to_vec(),
        b"POST /v1/settle HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec(),
    ] {
        let answer = exchange(&server, &bytes).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    still_serves(&server).await;
}

async fn too_much_is_refused_before_it_is_read(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__BODY_BYTES", "1024")]).await;
    let head = "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let huge = format!("{head}content-length: 1000000000000\r\n\r\n{}", " ".repeat(4096));
    let chunks = format!("{head}transfer-encoding: chunked\r\n\r\n1000\r\n{}\r\n", " ".repeat(4096));
    for bytes in [huge, chunks] {
        let answer = exchange(&server, bytes.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("\"code\":\"too-large\""), "{answer}");
    }
    still_serves(&server).await;
}

async fn old_and_hasty_clients_are_served(place: &Place) {
    let server = Server::start(&place.url).await;
    let answer = exchange(&server, b"GET /healthz HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("{\"status\":\"ok\"}\n"), "{answer}");

    // Three requests at once, the second of them wrong: three answers in that order.
    let push = r#"{"payload":1}"#;
    let bytes = format!(
        "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {0}\r\n\r\n{push}\
         GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n\
         POST /v1/queues/mail/pop HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}",
        push.len()
    );
    let answer = exchange(&server, bytes.as_bytes()).await;
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|one| &one[..3]).collect();
    assert_eq!(statuses, ["201", "404", "200"], "{answer}");
    assert!(answer.ends_with("]}\n") && answer.contains("\"state\":\"done\""), "{answer}");

    // A body in chunks of one byte each is a body.
    let chunks: String = push.chars().map(|c| format!("1\r\n{c}\r\n")).collect();
    let head = "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let answer = exchange(&server, format!("{head}{chunks}0\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    still_serves(&server).await;
}

async fn clients_that_leave_at_once_leave_nothing_behind(place: &Place) {
    let server = Server::start(&place.url).await;
    for n in 0..100 {
        let mut stream = connect(&server).await;
        let bytes = "POST /v1/queues/mail/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-length: 17\r\n\r\n{\"wait_ms\":60000}";
        stream.write_all(&bytes.as_bytes()[..n.min(bytes.len())]).await.unwrap();
    }
    until("their connections are closed", || async {
        let text =
            server.http.get(format!("{}/metrics", server.base)).send().await.unwrap().text().await.unwrap();
        text.lines().any(|line| line == "tailback_http_connections 1")
    })
    .await;
    still_serves(&server).await;
}

on_every_store! {
    no_extreme_spoils_the_store
    a_schedule_that_is_years_ahead_comes_in_time_once_it_is_set_again
    a_count_that_no_store_holds_is_refused
    long_lists_of_small_numbers_fit_into_a_job
    a_response_carries_what_it_may_and_at_least_one_job
    every_list_ends_where_the_response_is_full
    everything_of_a_job_counts_in_a_response
    a_page_of_large_jobs_comes_in_time
    a_client_that_does_not_read_is_closed
    large_batches_let_others_pass
    claims_of_large_jobs_at_once_all_win
    what_a_client_that_left_has_pushed_counts_until_it_is_stored
    calls_that_wait_for_jobs_hold_no_memory
    a_spoiled_job_concerns_itself_only
    a_spoiled_job_can_be_mended
    a_spoiled_job_leaves_its_line
    a_spoiled_job_leaves_the_line_of_its_semaphore
    a_mend_takes_all_of_an_edit
    a_spoiled_job_ends_for_its_batch
    a_spoiled_job_does_not_stop_its_schedule
    spoiled_deliveries_do_not_stop_their_queue
    spoiled_jobs_end_no_claim_under_a_limit
    an_operation_deletes_spoiled_jobs
    an_operation_deletes_what_a_claim_made_dead
}

/// What only one store can hold.
mod one_store {
    use super::*;

    on_one_store! {
        mongo:
        a_spoiled_document_stops_nothing_else
        a_field_that_nobody_knows_keeps_no_job
        what_a_state_needs_is_missed
        a_job_whose_rev_is_hidden_stops_nothing
        a_spoiled_job_keeps_none_before_it_from_ending
        a_dead_job_keeps_no_room_in_a_semaphore
        a_job_that_is_too_long_to_be_delivered_stops_no_other
        jobs_that_cannot_be_made_dead_stop_no_other
        a_job_that_is_too_long_to_be_made_dead_stops_no_other
        a_blocked_job_that_cannot_be_made_dead_keeps_no_room
        leases_run_out_behind_jobs_that_cannot_be_made_dead
        a_batch_that_is_held_stops_no_claim
        a_job_that_is_mended_meanwhile_is_not_removed
        a_group_goes_on_behind_a_job_that_was_removed_past_the_servers
        a_name_that_ends_in_a_newline_is_refused
        a_batch_of_a_client_that_left_counts_until_it_is_stored
    }
    on_one_store! {
        sqlite:
        a_spoiled_row_stops_nothing_else
        what_a_row_needs_is_missed
        a_row_without_an_id_hides_no_other
        a_reservation_without_an_id_ends
        a_row_without_an_id_keeps_none_from_its_semaphore
        a_line_without_a_name_hides_no_other
        a_result_without_an_id_hides_no_other
        counts_are_those_of_the_jobs_after_a_start
        a_damaged_page_is_told
    }
}

/// How much of the store's jobs is in memory at once: what MongoDB's driver adds is not the server's.
mod jobs_in_memory {
    use super::*;

    on_one_store! {
        sqlite:
        claims_of_many_queues_share_the_memory
        claims_of_one_queue_share_the_memory
        replays_share_the_memory
    }
}

/// The bytes of a connection: the store has no part in this, so that one is enough.
mod bytes {
    use super::*;

    on_one_store! {
        sqlite:
        half_a_head_is_closed
        a_stalled_body_is_given_up
        a_body_that_breaks_off_stores_nothing
        a_trickled_body_is_given_up
        health_is_served_when_all_connections_are_in_use
        waiting_calls_leave_connections_for_others
        waiting_calls_leave_room_for_others
        repeats_of_a_keyed_reserve_take_places_as_well
        no_request_hides_behind_another
        each_request_has_one_response
        a_request_whose_body_nothing_reads_is_the_last_one
        a_peer_that_goes_on_takes_no_place_from_others
        a_place_that_is_free_is_given
        a_peer_has_its_share_of_the_connections
        clients_behind_a_trusted_proxy_have_a_share_each
        garbage_is_refused
        too_much_is_refused_before_it_is_read
        old_and_hasty_clients_are_served
        clients_that_leave_at_once_leave_nothing_behind
        unfinished_bodies_share_the_memory
        half_heads_take_little_memory
        bodies_of_many_small_values_take_little_memory
        long_lists_take_little_memory
        slow_readers_keep_nobody_from_working
        full_memory_stops_neither_work_nor_operators
        unread_responses_share_the_memory
        what_could_be_read_in_two_ways_is_refused
        every_refusal_is_a_problem
        a_body_that_is_too_large_is_refused_before_it_arrives
        a_repeated_idempotency_key_is_refused
        every_response_says_what_browsers_must_not_do
        a_foreign_page_changes_nothing
        a_name_that_is_not_listed_reaches_nothing
        a_host_is_judged_anew_where_it_is_another
    }
}
