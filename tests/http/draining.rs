//! Stopping: whoever waits is answered, what runs is finished.

use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::*;
use crate::common::server::command;
use crate::common::signal::{self, Signal};

pub async fn waiting_calls_are_answered_at_the_end(place: &Place) {
    let mut server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    let kept = server.push("kept", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    let waiters = [
        begin_reserve(&server, "mail"),
        begin(&server, "/v1/queues/mail/pop", &[], json!({"wait_ms": LONG_MS})),
        begin(&server, "/v1/reserve", &[], json!({"queues": ["a", "b*"], "wait_ms": LONG_MS})),
        begin(&server, "/v1/queues/x/reserve", &[("idempotency-key", "k")], json!({"wait_ms": LONG_MS})),
    ];
    until_looked(&server, 4).await;
    let status = server.terminate().await;
    assert_eq!(status.code(), Some(0));
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), (200, json!({"jobs": []})));
    }
    assert!(since.elapsed() < WOKEN);
    assert!(TcpStream::connect(server.base.trim_start_matches("http://")).await.is_err());
    // And the next server goes on where this one ended.
    let next = Server::start(&place.url).await;
    assert_eq!(see(&next, &kept).await["state"], "scheduled");
}

pub async fn a_call_that_runs_is_finished(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let address = server.base.trim_start_matches("http://").to_owned();
    let mut slow = TcpStream::connect(&address).await.unwrap();
    let mut late = TcpStream::connect(&address).await.unwrap();
    let body = r#"{"payload":"late"}"#;
    // With this header the server asks for the body: then the call is surely under way.
    let head = format!(
        "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 1024];
    let read = slow.read(&mut answer).await.unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 100"), "{}", String::from_utf8_lossy(&answer[..read]));
    late.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    server.get("/healthz").await;

    signal::send(server.child.id(), Signal::SIGTERM);
    until("nobody new gets in", || async { TcpStream::connect(&address).await.is_err() }).await;
    // A request that was begun before learns that the server is draining, unless its connection was closed
    // before the server had read any of it.
    let mut told = String::new();
    let _ = late.write_all(b"\r\n").await;
    let _ = late.read_to_string(&mut told).await;
    if !told.is_empty() {
        assert!(told.starts_with("HTTP/1.1 503"), "{told}");
        assert!(
            told.contains("\"code\":\"draining\"") && told.to_lowercase().contains("retry-after: "),
            "{told}"
        );
    }
    slow.write_all(body.as_bytes()).await.unwrap();
    let mut pushed = String::new();
    slow.read_to_string(&mut pushed).await.unwrap();
    assert!(pushed.starts_with("HTTP/1.1 201"), "{pushed}");
    assert_eq!(server.terminate().await.code(), Some(0));
    let next = Server::start(&place.url).await;
    assert_eq!(take(&next, "mail").await["payload"], "late");
}

pub async fn a_stop_does_not_wait_for_ever(place: &Place) {
    // By file, the way that no other case of a running server goes.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "shutdown_ms = 200").unwrap();
    let config = file.path().to_str().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut command = command(&place.url, &[("TAILBACK_CONFIG", config)]);
    command.stderr(log.reopen().unwrap());
    let mut server = Server::of(command);
    server.until_ready().await;
    let mut stuck = TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap();
    let head = "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    stuck.write_all(head.as_bytes()).await.unwrap();
    assert!(stuck.read(&mut [0; 64]).await.unwrap() > 0, "the call is under way, and its body never comes");
    assert_eq!(server.terminate().await.code(), Some(0));
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("aborted requests that were still in flight after shutdown_ms"), "{log}");
}

pub async fn a_stop_gives_notice(place: &Place) {
    let mut server =
        Server::start_with(&place.url, &[("TAILBACK__SHUTDOWN_NOTICE_MS", "3600000"), ONLY_WOKEN[0]]).await;
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 1).await;
    signal::send(server.child.id(), Signal::SIGTERM);
    until("the load balancer sees it", || async { server.get("/readyz").await.0 == 503 }).await;
    assert_eq!(server.get("/readyz").await.1["code"], "draining");
    assert_eq!(server.get("/healthz").await.0, 200);
    // Everything is served meanwhile, also who waits.
    let pushed = server.push("mail", json!({"payload": 1})).await;
    let (status, given) = waiter.await.unwrap();
    assert_eq!((status, &given["jobs"][0]["id"]), (200, &json!(pushed)));
    assert_eq!(server.settle(&given["jobs"][0], "commit", json!({})).await.0, 200);
    // The second signal ends the notice.
    assert_eq!(server.terminate().await.code(), Some(0));
}
