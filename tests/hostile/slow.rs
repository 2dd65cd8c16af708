//! Clients that hold connections: with bodies that come a byte now and then, or with as many connections as there are.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::common::server::{Place, Server, metric, until};
use crate::{connect, exchange, read_to_end, still_serves};

const PUSH: &str =
    "POST /v1/queues/mail/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

/// Sends a head, and then a part of the body again and again, until the server closes the connection. Returns its response.
async fn trickle(server: &Server, head: &str, part: &'static str, pause: Duration) -> String {
    let (mut reader, mut writer) = connect(server).await.into_split();
    writer.write_all(head.as_bytes()).await.unwrap();
    let writing = tokio::spawn(async move {
        while writer.write_all(part.as_bytes()).await.is_ok() {
            tokio::time::sleep(pause).await;
        }
    });
    let mut answer = String::new();
    let reading = tokio::io::AsyncReadExt::read_to_string(&mut reader, &mut answer);
    let ended = tokio::time::timeout(crate::common::server::PATIENCE, reading).await;
    writing.abort();
    assert!(ended.is_ok(), "the connection was held for ever");
    answer
}

pub async fn a_trickled_body_is_given_up(place: &Place) {
    let server = Server::start(&place.url).await;
    let slow = Duration::from_millis(500);
    for (rest, part) in
        [("content-length: 100000\r\n\r\n", " "), ("transfer-encoding: chunked\r\n\r\n", "1\r\n \r\n")]
    {
        let answer = trickle(&server, &format!("{PUSH}{rest}"), part, slow).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request-timeout"), "{answer}");
    }
    // Fast enough for that, but not in time.
    drop(server);
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__REQUEST_MS", "1500")]).await;
    let part = "                                                                                                    ";
    let head = format!("{PUSH}content-length: 1000000\r\n\r\n");
    let answer = trickle(&server, &head, part, Duration::from_millis(20)).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    still_serves(&server).await;
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

pub async fn health_is_served_when_all_connections_are_in_use(place: &Place) {
    let limits = &[("TAILBACK_LIMITS__CONNECTIONS", "2"), ("TAILBACK_LIMITS__HEADER_WAIT_MS", "60000")];
    let server = Server::start_with(&place.url, limits).await;
    // The client of this test keeps one connection open.
    let held = connect(&server).await;
    until("all are in use", || async {
        exchange(&server, get("/v1/queues").as_bytes()).await.starts_with("HTTP/1.1 503")
    })
    .await;
    // A client that is slow itself loses such a connection, and a store that is slow is not ready.
    for path in ["/healthz", "/readyz", "/metrics"] {
        until(&format!("{path} is served"), || async {
            exchange(&server, get(path).as_bytes()).await.starts_with("HTTP/1.1 200")
        })
        .await;
    }
    until("all else is refused", || async {
        let answer = exchange(&server, get("/v1/queues").as_bytes()).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.contains("\"code\":\"overloaded\"") && answer.contains("limits.connections")
    })
    .await;
    // Those that hold the spare ones do not for long.
    let spare: Vec<TcpStream> = futures::future::join_all((0..16).map(|_| connect(&server))).await;
    assert!(exchange(&server, get("/healthz").as_bytes()).await.starts_with("HTTP/1.1 200"));
    drop(spare);
    drop(held);
    until("the place that became free is taken", || async {
        exchange(&server, get("/v1/queues").as_bytes()).await.starts_with("HTTP/1.1 200")
    })
    .await;
}

pub async fn a_peer_has_its_share_of_the_connections(place: &Place) {
    let limits =
        &[("TAILBACK_LIMITS__CONNECTIONS_PER_PEER", "3"), ("TAILBACK_LIMITS__HEADER_WAIT_MS", "60000")];
    let server = Server::start_with(&place.url, limits).await;
    let held = [connect(&server).await, connect(&server).await];
    until("this peer has as many as it may have", || async {
        let answer = exchange(&server, get("/v1/queues").as_bytes()).await;
        answer.starts_with("HTTP/1.1 503") && answer.contains("limits.connections_per_peer")
    })
    .await;
    // What it says about itself changes nothing.
    let request = get("/v1/queues")
        .replace("connection", "x-forwarded-for: 192.0.2.7\r\nforwarded: for=192.0.2.8\r\nconnection");
    assert!(exchange(&server, request.as_bytes()).await.starts_with("HTTP/1.1 503"));
    drop(held);
    until("it is served again", || async {
        exchange(&server, get("/v1/queues").as_bytes()).await.starts_with("HTTP/1.1 200")
    })
    .await;
}

pub async fn clients_behind_a_trusted_proxy_have_a_share_each(place: &Place) {
    let limits = &[
        ("TAILBACK_LIMITS__CONNECTIONS_PER_PEER", "2"),
        ("TAILBACK_HTTP__TRUSTED_PROXIES", "[127.0.0.0/8]"),
    ];
    let server = Server::start_with(&place.url, limits).await;
    // A request whose body does not come is one until it is given up.
    let hold = || {
        let base = server.base.trim_start_matches("http://").to_owned();
        let head = "POST /v1/queues/none/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    x-forwarded-for: 203.0.113.9, 192.0.2.1\r\ncontent-length: 15\r\nconnection: close\r\n\r\n";
        tokio::spawn(async move {
            loop {
                let mut stream = TcpStream::connect(&base).await.unwrap();
                stream.write_all(head.as_bytes()).await.unwrap();
                read_to_end(&mut stream).await;
            }
        })
    };
    let held = [hold(), hold()];
    let request = |client: &str| {
        get("/v1/queues").replace("connection", &format!("x-forwarded-for: {client}\r\nconnection"))
    };
    let status = async |client: &str| exchange(&server, request(client).as_bytes()).await;
    until("this client has as many as it may have", || async {
        status("192.0.2.1").await.starts_with("HTTP/1.1 503")
    })
    .await;
    let answer = status("192.0.2.2").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    held.iter().for_each(|held| held.abort());
    until("its places are given back", || async { status("192.0.2.1").await.starts_with("HTTP/1.1 200") })
        .await;
}

pub async fn waiting_calls_leave_room_for_others(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__WAITING", "3")]).await;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let request = server.http.post(format!("{}/v1/queues/mail/reserve", server.base));
            let request = request.json(&json!({"wait_ms": 60_000}));
            Box::pin(async move {
                // The calls of the test below may have its place.
                loop {
                    let answer = request.try_clone().unwrap().send().await.unwrap();
                    if answer.status() != 503 {
                        return answer;
                    }
                }
            })
        })
        .map(tokio::spawn)
        .collect();
    let ask = json!({"wait_ms": 1});
    until("as many wait as may", || async {
        server.post("/v1/queues/mail/reserve", ask.clone()).await.0 == 503
    })
    .await;
    for path in ["/v1/queues/mail/reserve", "/v1/queues/mail/pop"] {
        let (status, problem) = server.post(path, ask.clone()).await;
        assert_eq!((status, &problem["code"]), (503, &json!("overloaded")));
        assert!(problem["detail"].as_str().unwrap().contains("limits.waiting"), "{problem}");
    }
    // All else is served, and so is a call that need not wait.
    assert_eq!(server.post("/v1/queues/mail/reserve", json!({})).await.1["jobs"], json!([]));
    server.push("other", json!({"payload": 1})).await;
    let jobs = server.reserve("other", json!({"wait_ms": 60_000})).await;
    assert_eq!(server.settle(&jobs[0], "commit", json!({})).await.0, 200);
    server.push("mail", json!({"payload": 1})).await;
    let answers = futures::future::select_all(waiting).await;
    assert_eq!(answers.0.unwrap().status(), 200);
    until("the place that became free is taken", || async {
        server.post("/v1/queues/mail/reserve", ask.clone()).await.0 == 200
    })
    .await;
}

pub async fn waiting_calls_leave_connections_for_others(place: &Place) {
    for limit in ["TAILBACK_LIMITS__CONNECTIONS", "TAILBACK_LIMITS__CONNECTIONS_PER_PEER"] {
        let server = Server::start_with(&place.url, &[(limit, "20")]).await;
        let url = format!("{}/v1/queues/none/reserve", server.base);
        let wait = || {
            let request = server.http.post(&url).json(&json!({"wait_ms": 60_000}));
            tokio::spawn(async move { request.send().await.unwrap().status().as_u16() })
        };
        let waiting: Vec<_> = (0..20).map(|_| wait()).collect();
        until("four of them are refused", || async {
            waiting.iter().filter(|call| call.is_finished()).count() == 4
        })
        .await;
        server.push("mail", json!({"payload": 1})).await;
        let jobs = server.reserve("mail", json!({"wait_ms": 60_000})).await;
        assert_eq!(server.settle(&jobs[0], "commit", json!({})).await.0, 200);
        let (status, problem) = server.post("/v1/queues/none/pop", json!({"wait_ms": 10})).await;
        assert_eq!((status, &problem["code"]), (503, &json!("overloaded")));
        for _ in 0..16 {
            server.push("none", json!({"payload": 1})).await;
        }
        let mut ended: Vec<u16> = Vec::new();
        for call in waiting {
            ended.push(call.await.unwrap());
        }
        ended.sort();
        assert_eq!(
            (ended[..16].iter().all(|status| *status == 200), &ended[16..]),
            (true, &[503; 4][..]),
            "{limit}"
        );
    }
}

pub async fn repeats_of_a_keyed_reserve_take_places_as_well(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__WAITING", "1")]).await;
    let ask = |until_it_waits: bool| {
        let request = server.http.post(format!("{}/v1/queues/mail/reserve", server.base));
        let request = request.header("idempotency-key", "k1").json(&json!({"wait_ms": 60_000}));
        async move {
            loop {
                let answer = request.try_clone().unwrap().send().await.unwrap();
                // A repeat may have its place, and a refused one be remembered for a moment.
                if !until_it_waits || answer.status() == 200 {
                    return (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
                }
            }
        }
    };
    let first = tokio::spawn(ask(true));
    until("the first one waits", || async { metric(&server, "tailback_waiting_consumers").await == 1.0 })
        .await;
    until("a repeat finds no place to wait", || async {
        let (status, problem) = ask(false).await;
        (status, &problem["code"]) == (409, &json!("request-pending"))
    })
    .await;
    server.push("mail", json!({"payload": 1})).await;
    for (status, won) in [first.await.unwrap(), ask(false).await] {
        assert_eq!((status, won["jobs"].as_array().unwrap().len()), (200, 1), "{won}");
    }
}
