//! What acts later than it was judged: while its body came or it waited for a job, its key has ended.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::*;
use crate::common::own_mongod::OwnMongod;
use crate::common::server::{SHIPPED_DEADLINE, metric, until_looked};

/// A push whose head has been judged, and whose body has begun.
struct Begun {
    since: Instant,
    stream: TcpStream,
    /// What came of the response.
    came: Vec<u8>,
    rest: &'static str,
}

const CONTINUE: &[u8] = b"HTTP/1.1 100 ";

/// Sends the head of a push, and a part of its body as soon as the server asks for it: it has judged the head by then (RFC 9110,
/// section 10.1.1). A head that it refuses is answered instead.
async fn begin(server: &Server, key: Option<&str>, queue: &str) -> Begun {
    let (body, host) = (r#"{"payload":1}"#, server.base.strip_prefix("http://").unwrap());
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
    let head = format!(
        "POST /v1/queues/{queue}/jobs HTTP/1.1\r\nhost: {host}\r\n{key}content-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let since = Instant::now();
    let mut stream = TcpStream::connect(host).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut came = Vec::new();
    while !came.ends_with(b"\r\n\r\n") && stream.read_buf(&mut came).await.unwrap() > 0 {}
    if came.starts_with(CONTINUE) {
        came.clear();
    }
    let (part, rest) = body.split_at(4);
    let _ = stream.write_all(part.as_bytes()).await; // where it was refused, nobody reads it
    Begun { since, stream, came, rest }
}

impl Begun {
    /// Sends the rest, and returns the answer.
    async fn finish(mut self) -> (u16, Value) {
        let _ = self.stream.write_all(self.rest.as_bytes()).await; // it may have been refused before
        let _ = self.stream.read_to_end(&mut self.came).await; // likewise: it may be closed on what was not read
        let text = String::from_utf8(self.came).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// The answer, unless its body came too late: one of few bytes has ten seconds.
    async fn finished(self) -> Option<(u16, Value)> {
        if self.since.elapsed() >= Duration::from_secs(9) {
            return None;
        }
        Some(self.finish().await)
    }
}

/// Makes a key that ends by itself, soon.
async fn short(server: &Server) -> String {
    let asked = json!({"name": "a", "scopes": ["push", "consume"], "expires_in_ms": 2000});
    make(server, asked).await.1
}

pub async fn a_key_that_ends_while_a_body_comes_does_nothing(place: &Place) {
    let server = locked(place).await;
    let key = json!({"name": "a", "scopes": ["push"]});
    let ((revoked_id, revoked), (rotated_id, rotated)) =
        (make(&server, key.clone()).await, make(&server, key.clone()).await);
    let (_, valid) = make(&server, key).await;
    // One after the other: a body that pauses for ten seconds is given up.
    let begun = begin(&server, Some(&revoked), "q").await;
    let lasting = begin(&server, Some(&valid), "other").await;
    ok(&delete(&server, ADMIN, &format!("/v1/keys/{revoked_id}")).await);
    begun.finished().await.iter().for_each(|it| refused(it, 401, "unauthorized"));
    assert!(lasting.finished().await.is_none_or(|it| it.0 == 201));
    let begun = begin(&server, Some(&rotated), "q").await;
    ok(&post(&server, ADMIN, &format!("/v1/keys/{rotated_id}/rotate"), json!({})).await);
    begun.finished().await.iter().for_each(|it| refused(it, 401, "unauthorized"));
    let expired = short(&server).await;
    let begun = begin(&server, Some(&expired), "q").await;
    until("the key has expired", || async {
        post(&server, &expired, "/v1/queues/q/reserve", json!({})).await.0 == 401
    })
    .await;
    begun.finished().await.iter().for_each(|it| refused(it, 401, "unauthorized"));
    assert_eq!(get(&server, ADMIN, "/v1/queues/q/jobs").await.1["jobs"], json!([]));
}

pub async fn what_began_without_a_key_ends_with_the_first_key(place: &Place) {
    let server = Server::start(&place.url).await;
    let waiting = server.post("/v1/queues/q/reserve", json!({"wait_ms": 60_000}));
    let making = async {
        until_looked(&server, 1).await;
        let begun = begin(&server, None, "q").await;
        let (status, made) = server.post("/v1/keys", json!({"name": "first", "scopes": ["admin"]})).await;
        assert_eq!(status, 201, "{made}");
        begun.finished().await.iter().for_each(|it| refused(it, 401, "unauthorized"));
        made["key"].as_str().unwrap().to_owned()
    };
    let start = Instant::now();
    let (waited, first) = tokio::join!(waiting, making);
    refused(&waited, 401, "unauthorized");
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
    assert_eq!(get(&server, &first, "/v1/queues/q/jobs").await.1["jobs"], json!([]));
}

/// They are answered at once, and win no job that comes later; whose key is valid keeps waiting.
pub async fn a_key_that_ends_while_it_waits_wins_nothing(place: &Place) {
    let server = locked_with(place, &[("TAILBACK_AUTH__OPEN", "[metrics]")]).await;
    let key = json!({"name": "a", "scopes": ["consume"]});
    let ((revoked_id, revoked), (rotated_id, rotated)) =
        (make(&server, key.clone()).await, make(&server, key.clone()).await);
    let (_, valid) = make(&server, key).await;
    let start = Instant::now();
    let wait = |key: &str, call: &str| {
        let (key, path) = (key.to_owned(), format!("/v1/queues/q/{call}"));
        let server = &server;
        async move { post(server, &key, &path, json!({"wait_ms": 60_000})).await }
    };
    let keyed = async {
        let headers = [("idempotency-key", "k")];
        let body = Some(json!({"wait_ms": 60_000}));
        call_with(&server, Some(&revoked), Method::POST, "/v1/queues/q/reserve", &headers, body).await
    };
    let expiring = async {
        // Made only now, so that it is valid when it begins to wait.
        until_looked(&server, 5).await;
        let expired = short(&server).await;
        wait(&expired, "reserve").await
    };
    let ended = async {
        until_looked(&server, 5).await;
        ok(&delete(&server, ADMIN, &format!("/v1/keys/{revoked_id}")).await);
        ok(&post(&server, ADMIN, &format!("/v1/keys/{rotated_id}/rotate"), json!({})).await);
    };
    let refusals = async {
        let (reserve, pop, rotated, expired, keyed, ()) = tokio::join!(
            wait(&revoked, "reserve"),
            wait(&revoked, "pop"),
            wait(&rotated, "reserve"),
            expiring,
            keyed,
            ended
        );
        for answer in [reserve, pop, rotated, expired, keyed] {
            refused(&answer, 401, "unauthorized");
        }
        let took = start.elapsed();
        push(&server, ADMIN, "q", json!({"payload": 1})).await;
        took
    };
    let (won, took) = tokio::join!(wait(&valid, "reserve"), refusals);
    assert_eq!((won.0, &won.1["jobs"][0]["attempt"]), (200, &json!(1)), "{}", won.1);
    assert!(took < Duration::from_secs(50), "{took:?}");
}

/// Whether keys are required is not known before the store has been reached: until then nobody may do anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_let_in_before_the_keys_are_known() {
    let mut mongod = OwnMongod::start().await;
    let mut server = Server::start(&mongod.url()).await;
    let (status, made) = server.post("/v1/keys", json!({"name": "first", "scopes": ["admin"]})).await;
    assert_eq!(status, 201, "{made}");
    let first = made["key"].as_str().unwrap().to_owned();
    server.terminate().await;
    mongod.kill();
    let server = Server::launch(&mongod.url(), &[SHIPPED_DEADLINE]);
    let begun = begin(&server, None, "q").await;
    for path in ["/v1/queues", "/stats", "/metrics", "/docs/", "/v1/keys"] {
        refused(&server.get(path).await, 503, "store-unavailable");
        refused(&get(&server, &first, path).await, 503, "store-unavailable");
    }
    ok(&server.get("/healthz").await);
    mongod.run().await;
    server.until_ready().await;
    if let Some((status, answer)) = begun.finished().await {
        assert!([401, 503].contains(&status), "{status} {answer}");
    }
    refused(&server.get("/v1/queues").await, 401, "unauthorized");
    assert_eq!(get(&server, &first, "/v1/queues/q/jobs").await.1["jobs"], json!([]));
}

/// Who waits for a job to finish is judged again, like who waits for jobs.
pub async fn a_wait_for_a_result_ends_with_its_key(place: &Place) {
    let server = locked_with(place, &[("TAILBACK_AUTH__OPEN", "[metrics]")]).await;
    let (id, key) = make(&server, json!({"name": "a", "scopes": ["read"]})).await;
    let job = push(&server, ADMIN, "q", json!({"payload": 1})).await;
    let url = format!("{}/v1/jobs/{job}?wait_ms=55000", server.base);
    let request = server.http.get(url).bearer_auth(&key);
    let waiter = tokio::spawn(async move {
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    });
    let read = "tailback_store_call_seconds_count{call=\"get_durable\"}";
    until("it waits", || async { metric(&server, read).await > 0.0 }).await;
    let since = Instant::now();
    ok(&delete(&server, ADMIN, &format!("/v1/keys/{id}")).await);
    refused(&waiter.await.unwrap(), 401, "unauthorized");
    assert!(since.elapsed() < Duration::from_secs(50));
}
