//! The limits of a key: its rate, and how many of its requests are worked on at once.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::support::*;
use crate::common::server::connections;

/// A GET with a key: the status, `Retry-After`, and the body.
async fn tried(server: &Server, key: &str) -> (u16, Option<u64>, Value) {
    let request = server.http.get(format!("{}/v1/queues", server.base)).bearer_auth(key);
    let response = request.send().await.unwrap();
    let after = response.headers().get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    (response.status().as_u16(), after, response.json().await.unwrap())
}

pub async fn a_key_has_a_rate(place: &Place) {
    let server = locked(place).await;
    let asked = json!({"name": "a", "scopes": ["read"], "rate": {"limit": 5, "per_ms": 3_600_000}});
    let (id, key) = make(&server, asked).await;
    assert_eq!(
        get(&server, ADMIN, "/v1/keys").await.1["keys"][0]["rate"],
        json!({"limit": 5, "per_ms": 3_600_000})
    );
    let (_, other) = make(&server, json!({"name": "b", "scopes": ["read"]})).await;
    for _ in 0..5 {
        assert_eq!(tried(&server, &key).await.0, 200);
    }
    // What the key does not allow counts for nothing, and neither does what is refused.
    forbidden(&post(&server, &key, "/v1/queues/q/jobs", json!({"payload": 1})).await);
    for _ in 0..3 {
        let (status, after, problem) = tried(&server, &key).await;
        refused(&(status, problem.clone()), 429, "key-limited");
        assert_eq!(problem["retryable"], true, "{problem}");
        // The next is admitted when a fifth of the hour has passed since the first.
        assert!(after.is_some_and(|seconds| (600..=720).contains(&seconds)), "{after:?}");
    }
    // Other keys are not concerned, and a new secret does not make a new start.
    assert_eq!(tried(&server, &other).await.0, 200);
    assert_eq!(tried(&server, ADMIN).await.0, 200);
    let rotated = post(&server, ADMIN, &format!("/v1/keys/{id}/rotate"), json!({})).await.1;
    assert_eq!(tried(&server, rotated["key"].as_str().unwrap()).await.0, 429);
    assert_eq!(rotated["rate"], json!({"limit": 5, "per_ms": 3_600_000}));
}

pub async fn a_rate_goes_on_when_its_time_has_passed(place: &Place) {
    let server = locked(place).await;
    let asked = json!({"name": "a", "scopes": ["read"], "rate": {"limit": 1, "per_ms": 300}});
    let (_, key) = make(&server, asked).await;
    assert_eq!(tried(&server, &key).await.0, 200);
    until("the key may go on", || async { tried(&server, &key).await.0 == 200 }).await;
}

pub async fn a_key_has_so_many_requests_in_flight(place: &Place) {
    let server = locked(place).await;
    let asked = json!({"name": "a", "scopes": ["consume", "push", "read"], "max_concurrent": 2});
    let (_, key) = make(&server, asked).await;
    let wait = || {
        let (http, key) = (server.http.clone(), key.clone());
        let url = format!("{}/v1/queues/q/reserve", server.base);
        // Whether both wait is asked with the same key, which may take the place of one for a moment.
        tokio::spawn(async move {
            loop {
                let request = http.post(&url).bearer_auth(&key).json(&json!({"wait_ms": 60_000}));
                match request.send().await.unwrap().status().as_u16() {
                    429 => tokio::task::yield_now().await,
                    status => return status,
                }
            }
        })
    };
    let waiting = [wait(), wait()];
    until("both wait", || async { tried(&server, &key).await.0 == 429 }).await;
    let (status, after, problem) = tried(&server, &key).await;
    refused(&(status, problem), 429, "key-limited");
    assert_eq!(after, Some(1));
    for n in 0..2 {
        push(&server, ADMIN, "q", json!({"payload": n})).await;
    }
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), 200);
    }
    until("their places are free", || async { tried(&server, &key).await.0 == 200 }).await;
    // A client that leaves while it waits frees its place as well.
    let left = [wait(), wait()];
    until("both wait again", || async { tried(&server, &key).await.0 == 429 }).await;
    left.iter().for_each(tokio::task::JoinHandle::abort);
    until("the places of those that left are free", || async { tried(&server, &key).await.0 == 200 }).await;
}

pub async fn what_goes_on_without_its_client_is_in_flight(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let environment =
        [("TAILBACK_FAULTS", points.path().to_str().unwrap()), ("TAILBACK_AUTH__OPEN", "[metrics]")];
    let server = locked_with(place, &environment).await;
    let asked = json!({"name": "a", "scopes": ["push", "read"], "max_concurrent": 1});
    let (_, key) = make(&server, asked).await;
    std::fs::write(points.path().join("round.begin"), "pause").unwrap();
    let before = connections(&server).await;
    let request = reqwest::Client::new().post(format!("{}/v1/queues/q/jobs", server.base)).bearer_auth(&key);
    let push = tokio::spawn(request.json(&json!({"payload": 1})).send());
    until("it is worked on", || async { points.path().join("round.begin.met").exists() }).await;
    push.abort();
    assert!(push.await.is_err());
    until("the server has seen it leave", || async { connections(&server).await <= before }).await;
    assert_eq!(tried(&server, &key).await.0, 429);
    std::fs::write(points.path().join("round.begin.go"), "").unwrap();
    until("its place is free", || async { tried(&server, &key).await.0 == 200 }).await;
}

/// A response that is written in pieces is in flight until its client has read it.
pub async fn an_unread_page_is_in_flight(place: &Place) {
    let server = locked(place).await;
    let (_, key) = make(&server, json!({"name": "a", "scopes": ["read"], "max_concurrent": 1})).await;
    for _ in 0..12 {
        push(&server, ADMIN, "q", json!({"payload": "x".repeat(1_000_000)})).await;
    }
    // A page of a slow machine ends early.
    until("a page has more jobs than the system keeps for its client", || async {
        let mut unread = begun_page(&server, &key).await;
        let meanwhile = tried(&server, &key).await.0;
        let (mut page, mut came) = (0, [0; 64 << 10]);
        while let Ok(read @ 1..) = unread.read(&mut came).await {
            page += read;
        }
        let is_long = page > 3_000_000;
        assert!(meanwhile == 429 || !is_long, "{meanwhile}");
        until("it has been read", || async { tried(&server, &key).await.0 == 200 }).await;
        is_long
    })
    .await;
}

/// A page of jobs that has begun to come, to a client whose system keeps little that it has not read.
async fn begun_page(server: &Server, key: &str) -> TcpStream {
    let host = server.base.strip_prefix("http://").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut stream = socket.connect(host.parse().unwrap()).await.unwrap();
    let head = format!(
        "GET /v1/queues/q/jobs?limit=12 HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut came = [0; 12];
    stream.read_exact(&mut came).await.unwrap();
    assert_eq!(&came, b"HTTP/1.1 200");
    stream
}

/// The same of one whose length is known: here the jobs of a keyed pop.
pub async fn unread_jobs_are_in_flight(place: &Place) {
    let server = locked(place).await;
    let (_, key) =
        make(&server, json!({"name": "a", "scopes": ["read", "consume"], "max_concurrent": 1})).await;
    for _ in 0..12 {
        push(&server, ADMIN, "q", json!({"payload": "x".repeat(1_000_000)})).await;
    }
    let pop = server.http.post(format!("{}/v1/queues/q/pop", server.base)).bearer_auth(&key);
    let pop = pop.header("idempotency-key", "k").json(&json!({"count": 12}));
    let unread = pop.send().await.unwrap();
    assert!(unread.content_length().unwrap() > 8_000_000, "{:?}", unread.headers());
    assert_eq!(tried(&server, &key).await.0, 429);
    unread.bytes().await.unwrap();
    until("it has been read", || async { tried(&server, &key).await.0 == 200 }).await;
}

pub async fn the_limits_of_a_key_last(place: &Place) {
    let mut server = locked(place).await;
    let asked = json!({"name": "a", "scopes": ["read"], "rate": {"limit": 1_000_000, "per_ms": 86_400_000}, "max_concurrent": 100_000});
    make(&server, asked).await;
    let before = get(&server, ADMIN, "/v1/keys").await;
    server.terminate().await;
    let server = locked(place).await;
    assert_eq!(get(&server, ADMIN, "/v1/keys").await, before);
    assert_eq!(before.1["keys"][0]["max_concurrent"], 100_000);
}
