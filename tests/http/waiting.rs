//! Waiting for jobs: whoever waits is woken, and in the order in which they came.

use std::time::Instant;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::support::*;

pub async fn a_push_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    for (n, call) in ["reserve", "pop"].into_iter().enumerate() {
        let since = Instant::now();
        let path = format!("/v1/queues/mail/{call}");
        let waiter = begin(&server, &path, &[], json!({"wait_ms": LONG_MS}));
        until_looked(&server, 2 * n as u32 + 1).await;
        let pushed = server.push("mail", json!({"payload": n})).await;
        assert_eq!(woken(since, waiter).await, [pushed]);
    }
}

pub async fn a_batch_wakes_a_waiter_for_each_job(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    let waiters: Vec<_> = (0..3).map(|_| begin_reserve(&server, "mail")).collect();
    until_looked(&server, 3).await;
    let jobs = json!([{"payload": 1}, {"payload": 2}, {"payload": 3}]);
    let (_, answer) = server.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await;
    let mut got = Vec::new();
    for waiter in waiters {
        got.extend(woken(since, waiter).await);
    }
    got.sort();
    assert_eq!(got, ids(answer["results"].as_array().unwrap()));
}

pub async fn a_due_time_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    // One that was scheduled before anybody waited, and one that was pushed while somebody waits.
    let first = server.push("mail", json!({"payload": 1, "delay_ms": 300})).await;
    let waiter = begin_reserve(&server, "mail");
    assert_eq!(woken(since, waiter).await, [first]);
    let since = Instant::now();
    let looked = metric(&server, LOOKED).await as u32;
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, looked + 1).await;
    let second = server.push("mail", json!({"payload": 2, "delay_ms": 200})).await;
    assert_eq!(woken(since, waiter).await, [second]);
}

pub async fn an_earlier_run_at_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let pushed = server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 1).await;
    let change = json!({"run_at": "2000-01-01T00:00:00Z"});
    let path = format!("/v1/jobs/{pushed}");
    assert_eq!(server.send(reqwest::Method::PATCH, &path, Some(change)).await.0, 200);
    assert_eq!(woken(since, waiter).await, [pushed]);
}

pub async fn a_rollback_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let taken = push_and_take(&server, "mail").await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 2).await;
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 0})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [id(&taken)]);
}

pub async fn a_move_and_a_death_wake_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    configure(&server, "next", json!({"dead_letter": "dead", "max_attempts": 1})).await;
    let taken = push_and_take(&server, "mail").await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "next");
    until_looked(&server, 2).await;
    assert_eq!(server.settle(&taken, "move", json!({"queue": "next"})).await.0, 200);
    let answer = waiter.await.unwrap().1;
    let moved = answer["jobs"][0].clone();
    assert_eq!(moved["id"], taken["id"]);
    let waiter = begin_reserve(&server, "dead");
    until_looked(&server, 4).await;
    assert_eq!(server.settle(&moved, "rollback", json!({})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [id(&taken)]);
}

pub async fn an_expiry_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    assert_eq!(server.reserve("mail", json!({"lease_ms": 300})).await.len(), 1);
    let since = Instant::now();
    assert_eq!(woken(since, begin_reserve(&server, "mail")).await, [pushed]);
}

pub async fn a_resume_wakes_whoever_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    assert_eq!(server.post("/v1/queues/mail/pause", json!({})).await.0, 200);
    let since = Instant::now();
    // A paused queue is not looked into; the other one shows when the waiter has taken its place.
    let body = json!({"queues": ["mail", "other"], "wait_ms": LONG_MS});
    let waiter = begin(&server, "/v1/reserve", &[], body);
    until_looked(&server, 1).await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    assert_eq!(see(&server, &pushed).await["state"], "ready");
    until_looked(&server, 2).await; // woken by the push, it found the queue paused and goes on waiting
    assert!(!waiter.is_finished());
    assert_eq!(server.post("/v1/queues/mail/resume", json!({})).await.0, 200);
    assert_eq!(woken(since, waiter).await, [pushed]);
}

pub async fn who_came_first_is_served_first(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let mut waiters = Vec::new();
    for n in 0..4 {
        let since = Instant::now();
        // By name, by prefix, among others: one line for all of them.
        let waiter = match n {
            0 => begin_reserve(&server, "mail.in"),
            1 => begin(&server, "/v1/reserve", &[], json!({"queues": ["mail.*"], "wait_ms": LONG_MS})),
            2 => begin(&server, "/v1/queues/mail.in/pop", &[], json!({"wait_ms": LONG_MS})),
            _ => {
                let body = json!({"queues": ["mail.out", "mail.in"], "wait_ms": LONG_MS});
                begin(&server, "/v1/reserve", &[], body)
            }
        };
        waiters.push((since, waiter));
        // A prefix without queues asks the store for names only, and claims nothing.
        let (looked, names) = (if n == 0 { 1 } else { n } + u32::from(n == 3), u32::from(n >= 1));
        until_looked(&server, looked).await;
        until("the prefix has been looked up", || async {
            let series = "tailback_store_call_seconds_count{call=\"queues\"}";
            metric(&server, series).await >= f64::from(names)
        })
        .await;
    }
    // Who begins to wait is announced, and then the server looks once for all: whoever that wakes looks, too.
    until_no_poll_is_due(&server).await;
    for (since, waiter) in waiters {
        let pushed = server.push("mail.in", json!({"payload": 1})).await;
        assert_eq!(woken(since, waiter).await, [pushed]);
    }
}

/// Waits until all that wait are announced, and what the server polls for then is over.
async fn until_no_poll_is_due(server: &Server) {
    let polls = async || metric(server, "tailback_store_call_seconds_count{call=\"stocked\"}").await;
    loop {
        let before = polls().await;
        // The first of these runs may have begun before, and the second one may be one that puts a poll off.
        for task in ["signal_publisher", "waiter_poll"] {
            let times = runs(server, task).await.map(|times| times + 3);
            until("the task has run", || async { runs(server, task).await >= times }).await;
        }
        if polls().await == before {
            return;
        }
    }
}

/// How often a task has run, if the server has it: one over a file has no others to announce anything to.
async fn runs(server: &Server, name: &str) -> Option<u64> {
    let (_, stats) = server.get("/stats").await;
    let task = stats["tasks"].as_array().unwrap().iter().find(|task| task["name"] == name)?;
    task["runs"].as_u64()
}

pub async fn a_wait_ends_empty_in_time(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    for call in ["reserve", "pop"] {
        let since = Instant::now();
        let answer = server.post(&format!("/v1/queues/mail/{call}"), json!({"wait_ms": 200})).await;
        assert_eq!(answer, (200, json!({"jobs": []})));
        assert!(since.elapsed().as_millis() >= 200);
    }
}

pub async fn a_poll_stays_underneath(place: &Place) {
    // Nobody wakes the waiter, and the server looks all the same: one look for all, none by the waiters themselves.
    let server = Server::start_with(&place.url, &[("TAILBACK_WAIT__POLL_MS", "50")]).await;
    let since = Instant::now();
    let waiters = [begin_reserve(&server, "mail"), begin_reserve(&server, "mail")];
    until_looked(&server, 2).await;
    let sweeps = "tailback_store_call_seconds_count{call=\"stocked\"}";
    let before = metric(&server, sweeps).await;
    until("the server has looked", || async { metric(&server, sweeps).await >= before + 3.0 }).await;
    assert_eq!(metric(&server, LOOKED).await, 2.0);
    let pushed =
        [server.push("mail", json!({"payload": 1})).await, server.push("mail", json!({"payload": 2})).await];
    let mut got = Vec::new();
    for waiter in waiters {
        got.extend(woken(since, waiter).await);
    }
    got.sort();
    assert_eq!(got, pushed);
}

pub async fn a_client_that_leaves_gets_nothing(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let body = json!({"wait_ms": LONG_MS}).to_string();
    let mut leaves = TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "POST /v1/queues/mail/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    leaves.write_all(head.as_bytes()).await.unwrap();
    until_looked(&server, 1).await;
    let since = Instant::now();
    let next = begin_reserve(&server, "mail");
    until_looked(&server, 2).await;
    let connections = metric(&server, "tailback_http_connections").await;
    drop(leaves);
    until("the server has seen the client leave", || async {
        metric(&server, "tailback_http_connections").await < connections
    })
    .await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    let (status, answer) = next.await.unwrap();
    assert_eq!((status, id(&answer["jobs"][0])), (200, pushed));
    assert_eq!(answer["jobs"][0]["attempt"], 1, "it was never delivered to anybody else");
    assert!(since.elapsed() < WOKEN);
}

/// A pop passes over a job that needs a semaphore: its wake-up is for whoever takes it.
pub async fn a_pop_that_waits_keeps_no_job_from_a_reserve(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    assert_eq!(
        server.send(reqwest::Method::PUT, "/v1/semaphores/s", Some(json!({"capacity": 1}))).await.0,
        200
    );
    let pop = begin(&server, "/v1/queues/mail/pop", &[], json!({"wait_ms": LONG_MS}));
    until_looked(&server, 1).await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 2).await;
    let pushed = server.push("mail", json!({"payload": 1, "semaphores": ["s"]})).await;
    assert_eq!(woken(since, waiter).await, [pushed]);
    pop.abort();
}
