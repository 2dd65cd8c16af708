//! What a review from outside found at the edge: where the framing and hyper could disagree, and what could be held.

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use crate::common::server::{Place, Server, until};
use crate::{connect, exchange, read_to_end, still_serves};

const HOST: &str = "host: localhost\r\n";

fn statuses(answer: &str) -> Vec<&str> {
    answer.split("HTTP/1.1 ").skip(1).map(|one| &one[..3]).collect()
}

pub async fn no_request_hides_behind_another(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("victim", json!({"payload": 1})).await;
    let get = format!("GET /v1/queues/victim HTTP/1.1\r\n{HOST}\r\n");
    let pause = format!(
        "POST /v1/queues/mail/pause HTTP/1.1\r\n{HOST}content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let smuggled = "POST /v1/reserve HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    for (bytes, expected) in [
        // Behind a CONNECT hyper would go on, and nothing would be judged.
        (format!("CONNECT localhost:80 HTTP/1.1\r\n{HOST}\r\n{smuggled}"), ["405"]),
        (format!("CONNECT localhost:80 HTTP/1.1\r\n{HOST}content-length: 5\r\n\r\nhello{get}"), ["405"]),
        // A line that ends in LF alone ends for one and not for the other.
        (format!("{pause}2\r\n{{}}\r\n0\r\na: b\n\r\n{get}"), ["400"]),
        (format!("{pause}2\r\n{{}}\r\n0\r\na: b\r\r\n\r\n{get}"), ["400"]),
        (format!("{pause}2\n{{}}\r\n0\r\n\r\n{get}"), ["400"]),
        (format!("{pause}2\r\n{{}}\n0\r\n\r\n{get}"), ["400"]),
        (format!("{pause}2\r\n{{}}\r\n0\r\n\n{get}"), ["400"]),
    ] {
        for part in [bytes.len(), 1] {
            let mut stream = connect(&server).await;
            for part in bytes.as_bytes().chunks(part) {
                let _ = stream.write_all(part).await; // it may be closed by now
            }
            let answer = read_to_end(&mut stream).await;
            assert_eq!(statuses(&answer), expected, "{bytes:?}: {answer}");
        }
    }
    assert_eq!(
        server.get("/v1/queues/mail").await.1["effective"]["paused"],
        json!(false),
        "none of it was done"
    );
    still_serves(&server).await;
}

pub async fn each_request_has_one_response(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__HEADER_WAIT_MS", "60000")]).await;
    let push = "{\"payload\":1}";
    let head = format!("POST /v1/queues/mail/jobs HTTP/1.1\r\n{HOST}content-type: application/json\r\n");
    let valid = format!("{head}content-length: {}\r\n\r\n{push}", push.len());
    for (bytes, expected) in [
        (
            format!("{head}expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nfffffff\r\nabc"),
            vec!["413"],
        ),
        // What comes behind a valid request does not concern it.
        (format!("{valid}\0garbage\r\n\r\n"), vec!["201", "400"]),
        (format!("{valid}GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000)), vec!["201", "431"]),
        // Refused at once, not after the end of the head, which never comes.
        (format!("GET / HTTP/1.1\r\nb@d\r\n{}", "x: y\r\n".repeat(1000)), vec!["400"]),
        (format!("GET / HTTP/1.1\r\n{HOST}{}", "x: y\r\n".repeat(101)), vec!["431"]),
        (format!("{head}content-length: {}\r\n\r\n", u64::MAX), vec!["400"]),
        (format!("GET http:// HTTP/1.1\r\n{HOST}\r\n"), vec!["400"]),
        (format!("GET http:///v1/queues HTTP/1.1\r\n{HOST}\r\n"), vec!["400"]),
        (
            "GET http://localhost/v1/queues HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
                .to_owned(),
            vec!["400"],
        ),
    ] {
        let answer = exchange(&server, bytes.as_bytes()).await;
        let finals: Vec<&str> = statuses(&answer).into_iter().filter(|status| *status != "100").collect();
        assert_eq!(finals, expected, "{:?}…: {answer}", &bytes[..bytes.len().min(200)]);
        assert_eq!(answer.matches("x-request-id:").count(), expected.len(), "{answer}");
    }
    still_serves(&server).await;
}

/// Else the heads of all responses would be kept for a client that does not read them: one connection could take all memory.
pub async fn a_request_whose_body_nothing_reads_is_the_last_one(place: &Place) {
    let server = Server::start(&place.url).await;
    for (request, expects) in
        [("HEAD /healthz", "expect: 100-continue\r\n"), ("HEAD /v1/queues", ""), ("GET /docs", "")]
    {
        let one = format!("{request} HTTP/1.1\r\n{HOST}{expects}content-length: 1\r\n\r\nx");
        let answer = exchange(&server, one.repeat(2).as_bytes()).await;
        assert_eq!(answer.matches("x-request-id:").count(), 1, "{request}: {answer}");
        assert!(answer.contains("connection: close\r\n"), "{request}: {answer}");
    }
    // Without a body the connection goes on.
    let one = format!("HEAD /healthz HTTP/1.1\r\n{HOST}\r\n");
    let answer = exchange(
        &server,
        format!("{}{}", one.repeat(2), one.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")).as_bytes(),
    )
    .await;
    assert_eq!(answer.matches("x-request-id:").count(), 3, "{answer}");
    still_serves(&server).await;
}

pub async fn a_peer_that_goes_on_takes_no_place_from_others(place: &Place) {
    let limits = &[
        ("TAILBACK_LIMITS__CONNECTIONS", "4"),
        ("TAILBACK_LIMITS__CONNECTIONS_PER_PEER", "2"),
        ("TAILBACK_LIMITS__HEADER_WAIT_MS", "60000"),
    ];
    let server = Server::start_with(&place.url, limits).await;
    let address: std::net::SocketAddr = server.base.trim_start_matches("http://").parse().unwrap();
    let mut held: Vec<TcpStream> = Vec::new();
    for _ in 0..10 {
        for _ in 0..20 {
            held.push(connect(&server).await);
        }
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut other = socket.connect(address).await.unwrap();
        let get = format!("GET /v1/queues HTTP/1.1\r\n{HOST}connection: close\r\n\r\n");
        other.write_all(get.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut other).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

pub async fn a_place_that_is_free_is_given(place: &Place) {
    let mut server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__CONNECTIONS", "2")]).await;
    let get = format!("GET /v1/queues HTTP/1.1\r\n{HOST}connection: close\r\n\r\n");
    // A client with a pool may open one more connection than it needs, at any time, and keep it.
    server.http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    // The request for the metric may still have the other place.
    for _ in 0..6 {
        until("the connection before has ended", || async {
            crate::common::server::metric(&server, "tailback_http_connections").await <= 1.0
        })
        .await;
        let answer = exchange(&server, get.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

pub async fn everything_of_a_job_counts_in_a_response(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__ANSWER_BYTES", "100000")]).await;
    let headers: serde_json::Map<String, serde_json::Value> =
        (0..5).map(|n| (format!("h{n}"), json!("\u{1}".repeat(1000)))).collect();
    for _ in 0..6 {
        server.push("headers", json!({"payload": 1, "headers": headers})).await;
        server.push("progress", json!({"payload": 1})).await;
    }
    for job in server.reserve("progress", json!({"count": 10})).await {
        let progress = json!({"lease_ms": 60_000, "progress": "x".repeat(40_000)});
        assert_eq!(server.settle(&job, "extend", progress).await.0, 200);
    }
    for queue in ["headers", "progress"] {
        let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
        let length = page.to_string().len();
        assert!(status == 200 && length < 110_000 && page["cursor"].is_string(), "{queue}: {length} bytes");
    }
}
