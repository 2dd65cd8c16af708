//! The producer waits for its job to finish, and for the result.

use std::time::Instant;

use super::support::*;

/// How many times the server has looked how one job is durably.
const READ: &str = "tailback_store_call_seconds_count{call=\"get_durable\"}";

/// A GET that goes on beside the case, once its job was read.
async fn begin_wait(server: &Server, id: &str, ms: u64) -> tokio::task::JoinHandle<(u16, Value)> {
    let before = metric(server, READ).await;
    let request = server.http.get(format!("{}/v1/jobs/{id}?wait_ms={ms}&until=finished", server.base));
    let waiter = tokio::spawn(async move {
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    });
    until("the job was read", || async { metric(server, READ).await > before }).await;
    waiter
}

async fn result_of(since: Instant, waiter: tokio::task::JoinHandle<(u16, Value)>) -> (u16, Value) {
    let answer = waiter.await.unwrap();
    assert!(since.elapsed() < WOKEN, "nobody woke the waiter: {answer:?}");
    answer
}

pub async fn a_producer_waits_for_the_result(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    let job = json!({"payload": 1, "retain_result_ms": 3_600_000});
    let pushed = server.push("sums", job.clone()).await;
    let waiters = [begin_wait(&server, &pushed, LONG_MS).await, begin_wait(&server, &pushed, LONG_MS).await];
    let taken = take(&server, "sums").await;
    assert_eq!(taken["retain_result_ms"], 3_600_000);
    assert_eq!(server.settle(&taken, "commit", json!({"result": {"sum": 3}})).await.0, 200);
    for waiter in waiters {
        let (status, job) = result_of(since, waiter).await;
        assert_eq!((status, &job["state"], &job["result"]), (200, &json!("done"), &json!({"sum": 3})));
        assert!(job["purge_at"].is_string(), "{job}");
    }
    // Who comes later finds it, and waits for nothing. Without a result it is kept as well.
    let (status, job) = server.get(&format!("/v1/jobs/{pushed}?wait_ms={LONG_MS}")).await;
    assert_eq!((status, &job["result"]), (200, &json!({"sum": 3})));
    let other = server.push("sums", job_without_history()).await;
    let waiter = begin_wait(&server, &other, LONG_MS).await;
    let taken = take(&server, "sums").await;
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    let (status, job) = result_of(since, waiter).await;
    assert_eq!((status, &job["state"], job.get("result")), (200, &json!("done"), None));
}

fn job_without_history() -> Value {
    json!({"payload": 2, "retain_result_ms": 60_000})
}

pub async fn a_wait_for_a_result_ends_with_the_job_as_it_is(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed = server.push("sums", json!({"payload": 1})).await;
    for query in ["", "?wait_ms=0", "?until=finished", "?wait_ms=50", "?wait_ms=50&until=finished"] {
        let (status, job) = server.get(&format!("/v1/jobs/{pushed}{query}")).await;
        assert_eq!((status, &job["state"]), (200, &json!("ready")), "{query}");
    }
    for (query, parameter) in
        [("wait_ms=60001", "wait_ms"), ("wait_ms=-1", "wait_ms"), ("until=dead", "until"), ("x=1", "query")]
    {
        bad_parameter(&server.get(&format!("/v1/jobs/{pushed}?{query}")).await, parameter);
    }
    refused(&server.get("/v1/jobs/nobody?wait_ms=50").await, 404, "unknown-job");
}

pub async fn death_ends_a_wait_for_a_result(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    configure(&server, "lettered", json!({"dead_letter": "letters"})).await;
    let since = Instant::now();
    for queue in ["sums", "lettered"] {
        let pushed = server.push(queue, json!({"payload": 1, "max_attempts": 1})).await;
        let waiter = begin_wait(&server, &pushed, LONG_MS).await;
        let taken = take(&server, queue).await;
        assert_eq!(server.settle(&taken, "rollback", json!({"error": "no"})).await.0, 200);
        let (status, job) = result_of(since, waiter).await;
        assert_eq!((status, &job["errors"][0]["message"]), (200, &json!("no")), "{job}");
        // A dead letter has finished, although it can be taken from the queue where it is now.
        let has_died = job["state"] == "dead" || job["dead_lettered_from"]["queue"] == queue;
        assert!(has_died, "{job}");
    }
}

pub async fn a_job_that_is_gone_ends_a_wait_for_its_result(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    // Done and not kept.
    let pushed = server.push("sums", json!({"payload": 1})).await;
    let waiter = begin_wait(&server, &pushed, LONG_MS).await;
    let taken = take(&server, "sums").await;
    assert_eq!(server.settle(&taken, "commit", json!({"result": 1})).await.0, 200);
    refused(&result_of(since, waiter).await, 410, "job-gone");
    refused(&server.get(&format!("/v1/jobs/{pushed}?wait_ms={LONG_MS}")).await, 404, "unknown-job");
    // Cancelled, purged, expired and popped.
    for end in ["cancel", "purge", "expire", "pop"] {
        let job = if end == "expire" {
            json!({"payload": 1, "expires_in_ms": 3_600_000, "delay_ms": 3_600_000})
        } else {
            json!({"payload": 1})
        };
        let since = Instant::now();
        let pushed = server.push("sums", job).await;
        let waiter = begin_wait(&server, &pushed, LONG_MS).await;
        let path = format!("/v1/jobs/{pushed}");
        let status = match end {
            "cancel" => server.send(reqwest::Method::DELETE, &path, None).await.0,
            "purge" => server.post("/v1/queues/sums/purge", json!({"state": "ready"})).await.0,
            "pop" => server.post("/v1/queues/sums/pop", json!({})).await.0,
            // Only now, so that it is there when the wait begins.
            _ => server.send(reqwest::Method::PATCH, &path, Some(json!({"expires_in_ms": 500}))).await.0,
        };
        // What expires soon may be gone before the response can show it.
        let is_soon = end == "expire" && status == 503;
        assert!((200..300).contains(&status) || is_soon, "{end}: {status}");
        refused(&result_of(since, waiter).await, 410, "job-gone");
    }
}

pub async fn a_wait_for_a_result_ends_when_the_server_stops(place: &Place) {
    let patient = [ONLY_WOKEN[0], ("TAILBACK__SHUTDOWN_MS", "120000")];
    let mut server = Server::start_with(&place.url, &patient).await;
    let since = Instant::now();
    let pushed = server.push("sums", json!({"payload": 1})).await;
    let waiter = begin_wait(&server, &pushed, LONG_MS).await;
    assert_eq!(server.terminate().await.code(), Some(0));
    let (status, job) = result_of(since, waiter).await;
    assert_eq!((status, &job["state"]), (200, &json!("ready")));
}

pub async fn a_client_that_leaves_frees_its_place(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__WAITING", "1")]).await;
    let pushed = server.push("sums", json!({"payload": 1})).await;
    let path = format!("/v1/jobs/{pushed}?wait_ms={LONG_MS}");
    let waiter = begin_wait(&server, &pushed, LONG_MS).await;
    refused(&server.get(&path).await, 503, "overloaded");
    waiter.abort();
    // Its place is free again, and so is that of the next one.
    for _ in 0..2 {
        let short = format!("/v1/jobs/{pushed}?wait_ms=1");
        until("there is a place", || async { server.get(&short).await.0 == 200 }).await;
    }
}

pub async fn a_queue_keeps_results_for_who_waits(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "sums", json!({"retain_result_ms": 3_600_000})).await;
    let (_, queue) = server.get("/v1/queues/sums").await;
    assert_eq!(
        (&queue["retain_result_ms"], &queue["effective"]["retain_result_ms"]),
        (&json!(3_600_000), &json!(3_600_000))
    );
    assert_eq!(queue["effective"]["retain_done_ms"], 0);
    // The job's own word counts for more, also where it wants none.
    for (own, is_kept) in
        [(json!({"payload": 1}), true), (json!({"payload": 1, "retain_result_ms": 0}), false)]
    {
        let pushed = server.push("sums", own).await;
        let taken = take(&server, "sums").await;
        assert_eq!(server.settle(&taken, "commit", json!({"result": 1})).await.0, 200);
        assert_eq!(server.get(&format!("/v1/jobs/{pushed}")).await.0, if is_kept { 200 } else { 404 });
    }
    let path = "/v1/queues/sums/jobs";
    let too_long = json!({"payload": 1, "retain_result_ms": 31_536_000_001_u64});
    invalid(&server.post(path, too_long).await, "/retain_result_ms");
    let too_long = json!({"retain_result_ms": 31_536_000_001_u64});
    let answer = server.send(reqwest::Method::PUT, "/v1/queues/sums", Some(too_long)).await;
    invalid(&answer, "/retain_result_ms");
}

/// On several servers over one database.
pub async fn a_result_is_waited_for_on_another_server(place: &Place) {
    let (one, other) =
        (Server::start_with(&place.url, ONLY_WOKEN).await, Server::start_with(&place.url, ONLY_WOKEN).await);
    let since = Instant::now();
    let pushed = one.push("sums", job_without_history()).await;
    let waiter = begin_wait(&other, &pushed, LONG_MS).await;
    let taken = take(&one, "sums").await;
    assert_eq!(one.settle(&taken, "commit", json!({"result": 3})).await.0, 200);
    let (status, job) = result_of(since, waiter).await;
    assert_eq!((status, &job["state"], &job["result"]), (200, &json!("done"), &json!(3)));
    let pushed = one.push("sums", json!({"payload": 1})).await;
    let waiter = begin_wait(&other, &pushed, LONG_MS).await;
    assert_eq!(one.send(reqwest::Method::DELETE, &format!("/v1/jobs/{pushed}"), None).await.0, 200);
    refused(&result_of(since, waiter).await, 410, "job-gone");
}
