//! A receiver that is away, slow or wrong costs spans, which are counted, and nothing else.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};

use crate::common::server::{PATIENCE, Place, Server, command, metric, until};
use crate::on_every_store;
use crate::trace::receiver::{Receiver, all_arrive, context, post_in, reserved};

on_every_store! {
    a_receiver_that_is_away_costs_spans_only
    a_receiver_that_never_answers_costs_spans_only
    a_receiver_that_refuses_is_not_asked_again
    a_receiver_that_is_busy_is_asked_again
    what_comes_during_a_send_is_sent_at_the_end
}

/// Less than for how long a batch is tried again.
const TRIED_FOR: Duration = Duration::from_secs(10);

fn dropped(reason: &str) -> String {
    format!("tailback_trace_spans_dropped_total{{reason=\"{reason}\"}}")
}

/// Takes some jobs through their lives, all of them recorded.
async fn lives(server: &Server, count: usize) {
    for _ in 0..count {
        let sent = context("01");
        let (status, answer) =
            post_in(server, "/v1/queues/q/jobs", &[("traceparent", &sent)], json!({})).await;
        assert_eq!(status, 201, "{answer}");
        let job = reserved(server, "q").await;
        assert_eq!(job["headers"]["traceparent"], json!(sent));
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
}

async fn a_receiver_that_is_away_costs_spans_only(place: &Place) {
    // A port that belongs to this socket, which does not listen.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let log = tempfile::NamedTempFile::new().unwrap();
    let environment = [
        ("TAILBACK_TRACE__ENDPOINT", &*url),
        ("TAILBACK_TRACE__QUEUE", "512"),
        ("TAILBACK_LOG__FORMAT", "json"),
    ];
    let mut command = command(&place.url, &environment);
    command.stderr(std::fs::File::create(log.path()).unwrap());
    let begin = Instant::now();
    let mut server = Server::of(command);
    server.until_ready().await;
    // More spans than wait at most.
    until("spans find the queue full", || async {
        lives(&server, 20).await;
        metric(&server, &dropped("queue-full")).await > 0.0
    })
    .await;
    until("a batch is given up", || async { metric(&server, &dropped("unreachable")).await > 0.0 }).await;
    lives(&server, 5).await;
    assert!(server.terminate().await.success());
    // It says so in a few lines, with the cause.
    let text = std::fs::read_to_string(log.path()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let about = |line: &&Value| line["message"].as_str().unwrap().starts_with("spans ");
    let lines: Vec<&Value> = lines.iter().filter(about).collect();
    let periods = 2 + begin.elapsed().as_secs() / 5;
    assert!((1..=2 * periods).contains(&(lines.len() as u64)), "{lines:#?}");
    assert!(
        lines.iter().any(|line| line["error"].as_str().is_some_and(|error| error.contains("connect"))),
        "{lines:?}"
    );
}

async fn a_receiver_that_never_answers_costs_spans_only(place: &Place) {
    // It takes connections, and reads nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let held = tokio::spawn(async move {
        let mut connections = Vec::new();
        loop {
            connections.push(listener.accept().await.unwrap());
        }
    });
    let environment = [
        ("TAILBACK_TRACE__ENDPOINT", &*url),
        ("TAILBACK_TRACE__QUEUE", "512"),
        ("TAILBACK_TRACE__TIMEOUT_MS", "60000"),
    ];
    let mut server = Server::start_with(&place.url, &environment).await;
    until("spans find the queue full", || async {
        lives(&server, 20).await;
        metric(&server, &dropped("queue-full")).await > 0.0
    })
    .await;
    lives(&server, 5).await;
    // Nor does it keep the server from ending: the request to it would go on for a minute.
    let begin = Instant::now();
    assert!(server.terminate().await.success());
    assert!(begin.elapsed().as_secs() < 55, "{:?}", begin.elapsed());
    held.abort();
}

async fn a_receiver_that_refuses_is_not_asked_again(place: &Place) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("0")).await;
    receiver.respond(500);
    lives(&server, 5).await;
    until("they are dropped", || async { metric(&server, &dropped("refused")).await >= 15.0 }).await;
    assert!(receiver.spans().is_empty());
    receiver.respond(200);
    lives(&server, 1).await;
    receiver.span("those that come later", |span| span.name == "queue time").await;
}

async fn a_receiver_that_is_busy_is_asked_again(place: &Place) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("0")).await;
    receiver.respond(429);
    // Not for long: after some tries a batch is dropped.
    let asked = async {
        until("it was asked", || async { receiver.requests.load(Ordering::SeqCst) > 0 }).await;
        receiver.respond(200);
    };
    tokio::join!(lives(&server, 5), asked);
    let count = || receiver.spans().iter().filter(|span| span.name == "queue time").count();
    until("all of them", || async { count() == 5 }).await;
    assert_eq!(metric(&server, &dropped("unreachable")).await, 0.0);
    assert_eq!(metric(&server, &dropped("refused")).await, 0.0);
}

async fn what_comes_during_a_send_is_sent_at_the_end(place: &Place) {
    let began = Instant::now();
    loop {
        let receiver = Receiver::start().await;
        receiver.respond(503);
        let server = Server::start_with(&place.url, &receiver.environment("0")).await;
        let sent = context("01");
        let push = async || {
            let pushed = post_in(&server, "/v1/queues/q/jobs", &[("traceparent", &sent)], json!({})).await;
            assert_eq!(pushed.0, 201);
        };
        let first = Instant::now();
        push().await;
        until("a send fails", || async { receiver.requests.load(Ordering::SeqCst) > 0 }).await;
        for _ in 0..5 {
            push().await;
        }
        receiver.respond(200);
        // On a machine that is busy the first batch may have been tried for too long, and was dropped.
        if first.elapsed() > TRIED_FOR && began.elapsed() < PATIENCE {
            continue;
        }
        if all_arrive(server, &receiver, 6, began).await {
            return;
        }
    }
}
