//! Stopping: whoever waits is answered, what runs is finished.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::*;
use crate::common::server::command;
use crate::common::signal::{self, Signal};

/// The head of a push with so many bytes. The server asks for the body: then the call is surely under way.
fn head_of_push(bytes: usize) -> String {
    format!(
        "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: {bytes}\r\n\r\n"
    )
}

/// How long the server waits for a body of few bytes.
const BODY_WAIT: Duration = Duration::from_secs(10);

pub async fn waiting_calls_are_answered_at_the_end(place: &Place) {
    let mut server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let kept = server.push("kept", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    let since = Instant::now();
    let waiters = [
        begin_reserve(&server, "mail"),
        begin(&server, "/v1/queues/mail/pop", &[], json!({"wait_ms": LONG_MS})),
        begin(&server, "/v1/reserve", &[], json!({"queues": ["a", "b*"], "wait_ms": LONG_MS})),
        begin(&server, "/v1/queues/x/reserve", &[("idempotency-key", "k")], json!({"wait_ms": LONG_MS})),
    ];
    until_looked(&server, 4).await;
    // The stop itself may take longer.
    let answered = async {
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), (200, json!({"jobs": []})));
        }
        since.elapsed()
    };
    let (status, waited) = tokio::join!(server.terminate(), answered);
    assert_eq!(status.code(), Some(0));
    assert!(waited < WOKEN);
    assert!(TcpStream::connect(server.base.trim_start_matches("http://")).await.is_err());
    // And the next server goes on where this one ended.
    let next = Server::start(&place.url).await;
    assert_eq!(see(&next, &kept).await["state"], "scheduled");
}

pub async fn a_call_that_runs_is_finished(place: &Place) {
    while !call_beside_a_stop(place).await {}
    let next = Server::start(&place.url).await;
    assert_eq!(take(&next, "mail").await["payload"], "late");
}

/// Stops a server in the middle of a push. Returns whether that was finished: on a busy machine its body may come too late.
async fn call_beside_a_stop(place: &Place) -> bool {
    let patient = [("TAILBACK__SHUTDOWN_MS", "3600000"), ("TAILBACK_LIMITS__HEADER_WAIT_MS", "3600000")];
    let mut server = Server::start_with(&place.url, &patient).await;
    let address = server.base.trim_start_matches("http://").to_owned();
    let mut slow = TcpStream::connect(&address).await.unwrap();
    let mut late = TcpStream::connect(&address).await.unwrap();
    let (body, since) = (r#"{"payload":"late"}"#, Instant::now());
    slow.write_all(head_of_push(body.len()).as_bytes()).await.unwrap();
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
    // Once it was answered, its connection may be closed.
    let _ = slow.write_all(body.as_bytes()).await;
    let mut pushed = String::new();
    let _ = slow.read_to_string(&mut pushed).await;
    let is_done = pushed.starts_with("HTTP/1.1 201");
    assert!(is_done || since.elapsed() >= BODY_WAIT, "{pushed}");
    assert_eq!(server.terminate().await.code(), Some(0));
    is_done
}

pub async fn a_stop_does_not_wait_for_ever(place: &Place) {
    // By file, the way that no other case of a running server goes.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "shutdown_ms = 200").unwrap();
    let config = file.path().to_str().unwrap();
    loop {
        let log = tempfile::NamedTempFile::new().unwrap();
        let mut command = command(&place.url, &[("TAILBACK_CONFIG", config)]);
        command.stderr(log.reopen().unwrap());
        let mut server = Server::of(command);
        server.until_ready().await;
        let mut stuck = TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap();
        let since = Instant::now();
        stuck.write_all(head_of_push(9).as_bytes()).await.unwrap();
        let asked = stuck.read(&mut [0; 64]).await.unwrap() > 0;
        assert!(asked, "the call is under way, and its body never comes");
        assert_eq!(server.terminate().await.code(), Some(0));
        let log = std::fs::read_to_string(log.path()).unwrap();
        if log.contains("aborted requests that were still in flight after shutdown_ms") {
            return;
        }
        // On a busy machine the call may have ended before the stop: its body was too late.
        assert!(since.elapsed() >= BODY_WAIT, "{log}");
    }
}

pub async fn a_stop_gives_notice(place: &Place) {
    let mut server =
        Server::start_with(&place.url, &[("TAILBACK__SHUTDOWN_NOTICE_MS", "3600000"), ONLY_WOKEN[0]]).await;
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 1).await;
    signal::send(server.child.id(), Signal::SIGTERM);
    // While the store is slow it may have another reason for a moment.
    until("the load balancer sees it", || async {
        let (status, answer) = server.get("/readyz").await;
        status == 503 && answer["code"] == "draining"
    })
    .await;
    assert_eq!(server.get("/healthz").await.0, 200);
    // Everything is served meanwhile, also who waits.
    let pushed = server.push("mail", json!({"payload": 1})).await;
    let (status, given) = waiter.await.unwrap();
    assert_eq!((status, &given["jobs"][0]["id"]), (200, &json!(pushed)));
    assert_eq!(server.settle(&given["jobs"][0], "commit", json!({})).await.0, 200);
    // The second signal ends the notice.
    assert_eq!(server.terminate().await.code(), Some(0));
}
