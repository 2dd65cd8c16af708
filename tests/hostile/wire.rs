//! Requests that are not HTTP as it is meant, byte by byte.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::common::server::{Place, Server};
use crate::{connect, exchange, read_to_end, still_serves};

/// The status, the headers in lower case, and the body of a response that closes its connection.
fn parts(answer: &str) -> (u16, String, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, head.to_ascii_lowercase(), body.to_owned())
}

/// Sends bytes that get this status and code as a problem, after which the connection is closed.
async fn refused(server: &Server, bytes: &str, status: u16, code: &str) -> Value {
    let answer = exchange(server, bytes.as_bytes()).await;
    let (got, head, body) = parts(&answer);
    assert_eq!(got, status, "{bytes:?}: {answer}");
    let problem: Value =
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{bytes:?}: {error}: {answer}"));
    assert_eq!(problem["code"], code, "{bytes:?}: {answer}");
    assert!(head.contains("content-type: application/problem+json"), "{answer}");
    assert!(
        head.contains(&format!("x-request-id: {}", problem["request_id"].as_str().unwrap()).to_lowercase())
    );
    assert!(problem["request_id"].as_str().is_some_and(|id| !id.is_empty()), "{answer}");
    problem
}

const PUSH: &str = "{\"payload\":1}";

pub async fn what_could_be_read_in_two_ways_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    let host = "Host: localhost\r\n";
    let (length, chunked) = ("Content-Length: 13\r\n", "Transfer-Encoding: chunked\r\n");
    for headers in [
        String::new(),
        format!("{host}{host}"),
        format!("{host}hOST: other\r\n"),
        "Host: \r\n".to_owned(),
        "Host: a b\r\n".to_owned(),
        "Host: user@localhost\r\n".to_owned(),
        "Host: localhost/path\r\n".to_owned(),
        "Host: localhost:port\r\n".to_owned(),
        format!("{host}{length}{chunked}"),
        format!("{host}{chunked}{length}"),
        format!("{host}{length}{length}"),
        format!("{host}{length}Content-Length: 14\r\n"),
        format!("{host}Content-Length: 13, 13\r\n"),
        format!("{host}Content-Length: +13\r\n"),
        format!("{host}Content-Length: 0x0d\r\n"),
        format!("{host}Content-Length: \r\n"),
        format!("{host}Content-Length: 99999999999999999999\r\n"),
        format!("{host}{chunked}{chunked}"),
        format!("{host}Transfer-Encoding: gzip, chunked\r\n"),
        format!("{host}Transfer-Encoding: chunked, chunked\r\n"),
        format!("{host}Transfer-Encoding: identity\r\n"),
        format!("{host}Transfer-Encoding: chunked, identity\r\n"),
        format!("{host}Transfer-Encoding: xchunked\r\n"),
    ] {
        let head =
            format!("POST /v1/queues/mail/jobs HTTP/1.1\r\n{headers}content-type: application/json\r\n\r\n");
        for body in [PUSH, "d\r\n{\"payload\":1}\r\n0\r\n\r\n", ""] {
            refused(&server, &format!("{head}{body}"), 400, "malformed").await;
        }
    }
    let old =
        format!("POST /v1/queues/mail/jobs HTTP/1.0\r\n{chunked}content-type: application/json\r\n\r\n");
    refused(&server, &format!("{old}d\r\n{PUSH}\r\n0\r\n\r\n"), 400, "malformed").await;
    assert_eq!(server.get("/v1/queues/mail/jobs").await.1["jobs"], json!([]), "nothing of it was stored");

    // Behind a valid request, and in parts.
    let valid = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = exchange(&server, format!("{valid}{valid}GET /readyz HTTP/1.1\r\n\r\n").as_bytes()).await;
    let statuses: Vec<&str> = answer.split("HTTP/1.1 ").skip(1).map(|one| &one[..3]).collect();
    assert_eq!(statuses, ["200", "200", "400"], "{answer}");
    let mut stream = connect(&server).await;
    for byte in b"GET /readyz HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n" {
        let _ = stream.write_all(&[*byte]).await; // it may be closed by now
    }
    assert_eq!(parts(&read_to_end(&mut stream).await).0, 400);
    still_serves(&server).await;
}

pub async fn every_refusal_is_a_problem(place: &Place) {
    let server = Server::start(&place.url).await;
    let host = "host: localhost\r\nconnection: close\r\n";
    for bytes in [
        "GET\r\n\r\n".to_owned(),
        format!("GET /a b HTTP/1.1\r\n{host}\r\n"),
        format!("GET / HTTP/9.9\r\n{host}\r\n"),
        format!("GET / HTTP/1.1\r\nno colon\r\n{host}\r\n"),
        format!("GET / HTTP/1.1\r\n{host}x: \u{1}\r\n\r\n"),
        format!("G\u{e9}T / HTTP/1.1\r\n{host}\r\n"),
    ] {
        refused(&server, &bytes, 400, "malformed").await;
    }
    let long = "a".repeat(20_000);
    refused(&server, &format!("GET /{long} HTTP/1.1\r\n{host}\r\n"), 414, "uri-too-long").await;
    refused(&server, &format!("GET / HTTP/1.1\r\n{host}x: {long}\r\n\r\n"), 431, "head-too-large").await;
    let many = (0..200).fold(String::new(), |text, n| text + &format!("h{n}: x\r\n"));
    refused(&server, &format!("GET / HTTP/1.1\r\n{host}{many}\r\n"), 431, "head-too-large").await;
    for path in ["/nowhere", "/docs/nowhere", "/docs/../x", "/docs/swagger-ui.css.map"] {
        refused(&server, &format!("GET {path} HTTP/1.1\r\n{host}\r\n"), 404, "not-found").await;
    }
    for (method, path) in [("POST", "/docs/"), ("TRACE", "/healthz"), ("CONNECT", "localhost:1")] {
        let answer = exchange(&server, format!("{method} {path} HTTP/1.1\r\n{host}\r\n").as_bytes()).await;
        let (status, head, _) = parts(&answer);
        assert!((400..500).contains(&status) && head.contains("problem+json"), "{method} {path}: {answer}");
    }
    still_serves(&server).await;
}

pub async fn a_body_that_is_too_large_is_refused_before_it_arrives(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__BODY_BYTES", "1048576")]).await;
    let head = "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    // Announced, and nothing of it is sent.
    for rest in [
        "content-length: 1048577\r\n\r\n",
        "content-length: 1048577\r\nexpect: 100-continue\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n100001\r\n",
        "transfer-encoding: chunked\r\n\r\n2\r\n{ \r\nfffff\r\n",
        "transfer-encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    ] {
        let problem = refused(&server, &format!("{head}{rest}"), 413, "too-large").await;
        assert!(problem["detail"].as_str().unwrap().contains("limits.body_bytes"), "{problem}");
    }
    // A client that reads only once it has written everything sees it, too.
    let body = " ".repeat(8 << 20);
    for rest in [
        format!("content-length: {}\r\n\r\n{body}", body.len()),
        format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
    ] {
        let mut stream = connect(&server).await;
        stream.write_all(format!("{head}{rest}").as_bytes()).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("too-large"), "{answer}");
    }
    still_serves(&server).await;
}

pub async fn a_repeated_idempotency_key_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    let head = "POST /v1/queues/mail/reserve HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    let keys = "idempotency-key: one\r\nIdempotency-Key: two\r\n\r\n";
    refused(&server, &format!("{head}{keys}"), 400, "malformed").await;
}

pub async fn every_response_says_what_browsers_must_not_do(place: &Place) {
    let server = Server::start(&place.url).await;
    let host = "host: localhost\r\nconnection: close\r\n\r\n";
    for request in [
        "GET /healthz HTTP/1.1",
        "GET /nowhere HTTP/1.1",
        "GET /docs/ HTTP/1.1",
        "GET / HTTP/1.1",
        "GET /openapi.json HTTP/1.1",
        "GET /metrics HTTP/1.1",
        "GET /v1/queues HTTP/1.1",
        "BAD",
    ] {
        let answer = exchange(&server, format!("{request}\r\n{host}").as_bytes()).await;
        let head = parts(&answer).1;
        for header in [
            "x-content-type-options: nosniff",
            "frame-ancestors 'none'",
            "cache-control: no-store",
            "content-security-policy: default-src '",
        ] {
            assert!(head.contains(header), "{request}: {header} is missing: {head}");
        }
    }
}
