//! Waiting for many prefixes: what a server does for it does not grow with them.

use tokio::task::JoinHandle;

use super::support::*;
use crate::common::server::metric;

const WAITERS: usize = 20;
/// As many as one reserve may have.
const PREFIXES: usize = 100;
/// Reads of the names of queues.
const NAMES_READ: &str = "tailback_store_call_seconds_count{call=\"queues\"}";
const POLLED: &str = "tailback_store_call_seconds_count{call=\"stocked\"}";

/// A server that polls so often, and a key for some of its queues.
async fn narrow(place: &Place, poll_ms: &str) -> (Server, String) {
    let environment = [("TAILBACK_AUTH__OPEN", "[metrics]"), ("TAILBACK_WAIT__POLL_MS", poll_ms)];
    let server = locked_with(place, &environment).await;
    let key = key_for(&server, &["consume"], &["mail.*"]).await;
    (server, key)
}

/// A reserve that goes on beside the case.
fn begin(server: &Server, key: &str, queues: &[String]) -> JoinHandle<Value> {
    let body = json!({"queues": queues, "wait_ms": 60_000});
    let request = server.http.post(format!("{}/v1/reserve", server.base)).bearer_auth(key).json(&body);
    tokio::spawn(async move {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        response.json::<Value>().await.unwrap()
    })
}

/// Begins reserves, each with prefixes of its own. Returns once all of them wait.
async fn begin_all(server: &Server, key: &str) -> Vec<JoinHandle<Value>> {
    let prefixes = |waiter: usize| (0..PREFIXES).map(|n| format!("mail.w{waiter}-{n}.*")).collect::<Vec<_>>();
    let waiters: Vec<_> = (0..WAITERS).map(|waiter| begin(server, key, &prefixes(waiter))).collect();
    for waiter in 0..WAITERS {
        let path = format!("/v1/queues/mail.w{waiter}-0.in/stats");
        until("it waits", || async { get(server, ADMIN, &path).await.1["waiting"]["here"] == 1 }).await;
    }
    waiters
}

/// Only the waiter for this queue gets its job.
async fn wakes_the_one(server: &Server, mut waiters: Vec<JoinHandle<Value>>) {
    let pushed = push(server, ADMIN, "mail.w7-42.in", json!({"payload": 1})).await;
    let got = waiters.remove(7).await.unwrap();
    assert_eq!(got["jobs"][0]["id"], json!(pushed), "{got}");
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
}

pub async fn a_poll_costs_no_call_for_each_prefix(place: &Place) {
    let (server, key) = narrow(place, "100").await;
    for n in 0..3 {
        push(&server, ADMIN, &format!("mail.other-{n}"), json!({"payload": n})).await;
    }
    let waiters = begin_all(&server, &key).await;
    // For a queue that is waited for by name each poll asks whether it has jobs.
    let named = begin(&server, ADMIN, &["named".to_owned()]);
    until("it polls", || async { metric(&server, POLLED).await > 0.0 }).await;
    let polled = metric(&server, POLLED).await;
    let read = metric(&server, NAMES_READ).await;
    until("it has polled", || async { metric(&server, POLLED).await >= polled + 5.0 }).await;
    let read = metric(&server, NAMES_READ).await - read;
    let polls = metric(&server, POLLED).await - polled;
    // One reads the names, and one finds that there are no more; a poll may be under way.
    assert!(read <= 2.0 * (polls + 2.0), "{read} reads of names in {polls} polls");
    wakes_the_one(&server, waiters).await;
    assert!(!named.is_finished());
}

pub async fn a_push_wakes_who_waits_for_many_prefixes(place: &Place) {
    let (server, key) = narrow(place, "60000").await;
    let waiters = begin_all(&server, &key).await;
    let read = metric(&server, NAMES_READ).await;
    wakes_the_one(&server, waiters).await;
    let read = metric(&server, NAMES_READ).await - read;
    assert!(read < PREFIXES as f64, "{read} reads of names for one that was woken");
}

pub async fn many_prefixes_are_taken_from_in_the_order_given(place: &Place) {
    let (server, key) = narrow(place, "60000").await;
    // So many queues are not read at once.
    let mut queues: Vec<String> = (0..1100).map(|n| format!("mail.a{n:04}")).collect();
    queues.extend((0..40).flat_map(|n| [format!("mail.q{n:02}.x"), format!("mail.q{n:02}.y")]));
    for queues in queues.chunks(1000) {
        let jobs: Vec<Value> = queues.iter().map(|queue| json!({"queue": queue, "payload": 1})).collect();
        ok(&post(&server, ADMIN, "/v1/jobs", json!({ "jobs": jobs })).await);
    }
    let mut asked = vec!["mail.none".to_owned(), "mail.q05.y".to_owned()];
    asked.extend((0..40).rev().map(|n| format!("mail.q{n:02}.*")));
    asked.push("mail.*".to_owned());
    let mut expected = vec!["mail.q05.y".to_owned()];
    for n in (0..40).rev() {
        expected.push(format!("mail.q{n:02}.x"));
        if n != 5 {
            expected.push(format!("mail.q{n:02}.y")); // a queue is asked once
        }
    }
    expected.extend((0..20).map(|n| format!("mail.a{n:04}")));
    let body = json!({"queues": asked, "count": expected.len()});
    let (status, answer) = post(&server, &key, "/v1/reserve", body).await;
    assert_eq!(status, 200, "{answer}");
    let jobs = answer["jobs"].as_array().unwrap();
    let taken: Vec<&str> = jobs.iter().map(|job| job["queue"].as_str().unwrap()).collect();
    assert_eq!(taken, expected);
}
