//! Requests and responses share a budget of memory, and leave room for others. What full attacks cost the defaults, `bench/attack`
//! measures.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::common::server::{PATIENCE, Place, Server, connections, metric, until};
use crate::{connect, read_to_end};

const MB: usize = 1 << 20;

/// Limits that small attacks reach.
const LIMITS: &[(&str, &str)] = &[
    ("TAILBACK_LIMITS__BODY_BYTES", "4194304"),
    ("TAILBACK_LIMITS__ANSWER_BYTES", "4194304"),
    ("TAILBACK_LIMITS__MEMORY_BYTES", "33554432"),
];
const BODY: usize = 4 * MB;
/// By how much the server may grow: some bodies of which three times their size is counted, and what MongoDB's driver, the allocator and
/// a build without optimisation add, which was 128 MB at most.
const GROWTH: usize = 192 * MB;

/// A figure of the server's process in bytes, such as `VmRSS`.
fn memory(server: &Server, field: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Fails if the server has ever been larger than it may.
pub(super) fn judge(what: &str, server: &Server, before: usize) {
    let peak = memory(server, "VmHWM");
    println!("{what}: {} MB before, {} MB at most", before / MB, peak / MB);
    assert!(peak - before <= GROWTH, "{what}: grew from {before} to {peak} bytes");
}

pub(super) async fn start(place: &Place) -> (Server, usize) {
    start_with(place, LIMITS).await
}

/// The same with other limits.
async fn start_with(place: &Place, limits: &[(&str, &str)]) -> (Server, usize) {
    let server = Server::start_with(&place.url, limits).await;
    server.push("warm", json!({"payload": 1})).await;
    let before = memory(&server, "VmRSS");
    (server, before)
}

/// Sends a head that announces a body, and all of it but the end.
async fn unfinished(server: &Server, body: usize) -> TcpStream {
    let mut stream = connect(server).await;
    let head = format!(
        "POST /v1/queues/q/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {body}\r\n\r\n{{\"payload\":\""
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let part = vec![b'x'; 64 << 10];
    for _ in 0..(body - MB / 2) / part.len() {
        // The server refuses what is too much, and closes.
        if stream.write_all(&part).await.is_err() {
            break;
        }
    }
    stream
}

pub async fn unfinished_bodies_share_the_memory(place: &Place) {
    let (server, before) = start(place).await;
    let all = (0..80).map(|_| unfinished(&server, BODY));
    let (mut slowest, mut used) = (Duration::ZERO, 0.0_f64);
    let sending = futures::future::join_all(all);
    tokio::pin!(sending);
    let mut streams = loop {
        let began = Instant::now();
        tokio::select! {
            streams = &mut sending => break streams,
            _ = server.push("healthy", json!({"payload": 1})) => {
                slowest = slowest.max(began.elapsed());
                used = used.max(metric(&server, USED).await);
            }
        }
    };
    // Room is left for small ones, and what is full is said at once.
    server.push("healthy", json!({"payload": 1})).await;
    assert_eq!(server.get("/healthz").await.0, 200);
    println!("slowest healthy push: {slowest:?}");
    judge("unfinished bodies", &server, before);
    // Those that are awaited are given up after a while.
    used = used.max(metric(&server, USED).await);
    assert!(used > 0.0, "some of the bodies were awaited meanwhile");
    let last = read_to_end(streams.last_mut().unwrap()).await;
    assert!(last.is_empty() || last.contains("503") || last.contains("408"), "{last}");
    drop(streams);
    until("all is given back", || async { metric(&server, "tailback_http_memory_bytes").await == 0.0 }).await;
}

pub async fn half_heads_take_little_memory(place: &Place) {
    let (server, before) = start(place).await;
    let half = async || {
        let mut stream = connect(&server).await;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ").await.unwrap();
        let part = [b'x'; 10_000];
        for _ in 0..39 {
            if stream.write_all(&part).await.is_err() {
                break;
            }
        }
        stream
    };
    let streams = futures::future::join_all((0..300).map(|_| half())).await;
    server.push("healthy", json!({"payload": 1})).await;
    judge("half heads", &server, before);
    drop(streams);
}

pub async fn large_batches_let_others_pass(place: &Place) {
    let (server, before) = start(place).await;
    let payload = "x".repeat(16_000);
    let count = (BODY - MB / 4) / 16_100;
    let jobs: Vec<Value> = (0..count.min(1000)).map(|_| json!({"payload": payload})).collect();
    let body = json!({ "jobs": jobs }).to_string();
    let batch = async || {
        let request = server.http.post(format!("{}/v1/queues/large/jobs/batch", server.base));
        let request = request.header("content-type", "application/json").body(body.clone());
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let mut answers: Vec<(u16, Value)> = Vec::new();
    let (began, mut slowest, mut passed) = (Instant::now(), Duration::ZERO, 0);
    // On a busy machine some batches may be over before others had their turns.
    while passed < 3 {
        assert!(began.elapsed() < PATIENCE, "no others passed: {passed}");
        passed = 0;
        let sending = futures::future::join_all((0..10).map(|_| batch()));
        tokio::pin!(sending);
        loop {
            let began = Instant::now();
            tokio::select! {
                sent = &mut sending => break answers.extend(sent),
                _ = server.push("healthy", json!({"payload": 1})) => {
                    (slowest, passed) = (slowest.max(began.elapsed()), passed + 1);
                }
            }
        }
    }
    let took = began.elapsed();
    let stored = answers.iter().filter(|(status, _)| *status == 200).count();
    println!("{stored} of {} batches in {took:?}; {passed} others, the slowest {slowest:?}", answers.len());
    for (status, answer) in &answers {
        let is_stored = *status == 200
            && answer["results"].as_array().unwrap().iter().all(|result| result["id"].is_string());
        let is_refused = *status == 503 && answer["code"] == "overloaded";
        assert!(is_stored || is_refused, "{status}: {answer}");
    }
    assert!(stored >= 2, "some are stored");
    judge("large batches", &server, before);
    until("each is stored once", || async {
        let (_, stats) = server.get("/v1/queues/large/stats").await;
        stats["counts"]["ready"] == json!(stored * jobs.len())
    })
    .await;
}

const USED: &str = "tailback_http_memory_bytes";

/// Sends a request, leaves once it is worked on, and looks whether its body counts until the work is over. `pause` is where
/// the work stands still meanwhile.
async fn leaves(place: &Place, pause: &str, path: &str, body: Value) {
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Server::start_with(&place.url, &faults).await;
    server.push("warm", json!({"payload": 1})).await;
    let text = body.to_string();
    std::fs::write(points.path().join(pause), "pause").unwrap();
    let before = connections(&server).await;
    let request = reqwest::Client::new().post(format!("{}{path}", server.base)).json(&body);
    let call = tokio::spawn(request.send());
    until("it is worked on", || async { points.path().join(format!("{pause}.met")).exists() }).await;
    call.abort();
    assert!(call.await.is_err());
    until("the server has seen it leave", || async { connections(&server).await <= before }).await;
    let used = metric(&server, USED).await;
    assert!(used >= text.len() as f64, "{used} of {} bytes count while they are worked on", text.len());
    std::fs::write(points.path().join(format!("{pause}.go")), "").unwrap();
    until("all is given back", || async { metric(&server, USED).await == 0.0 }).await;
}

pub async fn what_a_client_that_left_has_pushed_counts_until_it_is_stored(place: &Place) {
    let job = json!({"payload": "x".repeat(MB / 2)});
    leaves(place, "round.begin", "/v1/queues/large/jobs", job).await;
}

pub async fn a_batch_of_a_client_that_left_counts_until_it_is_stored(place: &Place) {
    let jobs = json!({"jobs": [{"queue": "large", "payload": "x".repeat(MB / 2)}]});
    leaves(place, "transaction.attempted", "/v1/batches", jobs).await;
}

/// A large body whose call then waits for jobs.
pub async fn calls_that_wait_for_jobs_hold_no_memory(place: &Place) {
    const WAIT_MS: u64 = 60_000;
    let server = Server::start(&place.url).await;
    server.push("full", json!({"payload": 1})).await;
    let job = &server.reserve("full", json!({"lease_ms": 600_000})).await[0];
    let next = json!({"queues": ["empty"], "wait_ms": WAIT_MS});
    let commit = json!({"reservation": job["reservation"], "next": next});
    server.push("full", json!({"payload": 2})).await;
    let job_of_many = &server.reserve("full", json!({"lease_ms": 600_000})).await[0];
    // What is rejected is not kept, either.
    let rejected = json!({"id": "?", "result": "x".repeat(MB / 2)});
    let settled = json!({"id": job_of_many["id"], "reservation": job_of_many["reservation"]});
    let settle = json!({"commit": [settled, rejected, rejected], "next": next});
    let waits = json!({ "wait_ms": WAIT_MS });
    let calls = [
        ("/v1/queues/empty/reserve".to_owned(), None, &waits),
        ("/v1/queues/empty/reserve".to_owned(), Some("again"), &waits),
        ("/v1/queues/empty/pop".to_owned(), None, &waits),
        (format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap()), None, &commit),
        ("/v1/settle".to_owned(), None, &settle),
    ];
    let calls: Vec<_> = calls
        .into_iter()
        .map(|(path, key, body)| {
            let body = format!("{body}{}", " ".repeat(2 * MB));
            let request = server.http.post(format!("{}{path}", server.base));
            let request = request.header("content-type", "application/json").body(body);
            tokio::spawn(
                key.into_iter().fold(request, |request, key| request.header("idempotency-key", key)).send(),
            )
        })
        .collect();
    const WAITING: &str = "tailback_waiting_consumers";
    // The page of metrics itself counts until the server has seen it read: zero is waited for, not asserted once.
    until("all wait, and none of their bodies counts", || async {
        let late = calls.iter().position(|call| call.is_finished());
        assert_eq!(late, None, "a call ended before all of them waited without their bodies");
        metric(&server, USED).await == 0.0 && metric(&server, WAITING).await == calls.len() as f64
    })
    .await;
    // A job for each, so that none waits on.
    for n in 0..calls.len() {
        server.push("empty", json!({"payload": n})).await;
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
}

pub async fn unread_responses_share_the_memory(place: &Place) {
    let (server, before) = start(place).await;
    let payload = "x".repeat(MB / 2);
    for _ in 0..BODY / (MB / 2) {
        server.push("large", json!({"payload": payload})).await;
    }
    let unread = async || {
        let mut stream = connect(&server).await;
        stream
            .write_all(b"GET /v1/queues/large/jobs?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        stream
    };
    let streams = futures::future::join_all((0..80).map(|_| unread())).await;
    until("the budget is in use", || async {
        metric(&server, "tailback_http_memory_bytes").await > (BODY / 2) as f64
    })
    .await;
    for _ in 0..10 {
        server.push("healthy", json!({"payload": 1})).await;
    }
    judge("unread responses", &server, before);
    drop(streams);
    until("all is given back", || async { metric(&server, "tailback_http_memory_bytes").await == 0.0 }).await;
}

/// Reserves from a queue over a connection whose system reads little for the client, and waits for the beginning of the response.
async fn reserve_unread(server: &Server, queue: &str, count: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let address = server.base.trim_start_matches("http://").parse().unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let request = format!(
        "POST /v1/queues/{queue}/reserve HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 11\r\n\r\n{{\"count\":{count}}}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    assert_eq!(stream.peek(&mut start).await.unwrap(), start.len());
    assert_eq!(std::str::from_utf8(&start), Ok("HTTP/1.1 200"));
    stream
}

/// Reads a little at a time, for ever; ends when the server has closed the connection.
async fn read_slowly(mut stream: TcpStream) {
    let mut part = vec![0; 8 << 10];
    while let Ok(1..) = stream.read(&mut part).await {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub async fn slow_readers_keep_nobody_from_working(place: &Place) {
    let limits = [LIMITS, &[("TAILBACK_LIMITS__WRITE_WAIT_MS", "3000")]].concat();
    let server = Server::start_with(&place.url, &limits).await;
    let mut readers = Vec::new();
    for n in 0..12 {
        let queue = format!("large{n}");
        for _ in 0..8 {
            server.push(&queue, json!({"payload": "x".repeat(MB / 2)})).await;
        }
        let stream = reserve_unread(&server, &queue, 8).await;
        readers.push(tokio::spawn(read_slowly(stream)));
    }
    let large = json!({"payload": "x".repeat(MB - 10)});
    for _ in 0..5 {
        server.push("healthy", large.clone()).await;
        let jobs = server.reserve("healthy", json!({})).await;
        assert_eq!(server.settle(&jobs[0], "commit", json!({})).await.0, 200);
    }
    // They go on reading, but too slowly.
    until("they are closed", || async { readers.iter().all(|reader| reader.is_finished()) }).await;
    until("all is given back", || async { metric(&server, USED).await == 0.0 }).await;
}

pub async fn full_memory_stops_neither_work_nor_operators(place: &Place) {
    let limits = [
        ("TAILBACK_LIMITS__BODY_BYTES", "1048576"),
        ("TAILBACK_LIMITS__MEMORY_BYTES", "8388608"),
        ("TAILBACK_LIMITS__WRITE_WAIT_MS", "60000"),
    ];
    let server = Server::start_with(&place.url, &limits).await;
    server.push("work", json!({"payload": 1})).await;
    let held = server.reserve("work", json!({"lease_ms": 600_000})).await.remove(0);
    let delayed = server.push("work", json!({"payload": 1, "delay_ms": 600_000})).await;
    let wait = |ms: u64| {
        let request = server.http.post(format!("{}/v1/queues/later/reserve", server.base));
        tokio::spawn(request.json(&json!({"wait_ms": ms})).send())
    };
    let waits = wait(60_000);
    for _ in 0..9 {
        server.push("large", json!({"payload": "x".repeat(1_000_000)})).await;
    }
    let mut unread = Vec::new();
    for _ in 0..9 {
        unread.push(reserve_unread(&server, "large", 1).await);
    }
    let refused = |(status, problem): (u16, Value)| {
        assert_eq!((status, &problem["code"]), (503, &json!("overloaded")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("limits.memory_bytes"), "{problem}");
    };
    refused(server.post("/v1/queues/work/reserve", json!({})).await);
    refused(server.post("/v1/queues/work/pop", json!({})).await);
    let path = format!("/v1/jobs/{delayed}");
    refused(server.send(reqwest::Method::PATCH, &path, Some(json!({"priority": 1}))).await);
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    assert_eq!(server.post("/v1/queues/large/pause", json!({})).await.0, 200);
    assert_eq!(server.send(reqwest::Method::DELETE, &path, None).await.0, 200);
    // Who waits goes on waiting, also when there is a job, for as long as the call may.
    server.push("later", json!({"payload": 1})).await;
    assert_eq!(wait(300).await.unwrap().unwrap().status(), 503);
    drop(unread);
    let answer = waits.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json::<Value>().await.unwrap()["jobs"].as_array().unwrap().len(), 1);
    until("all is given back", || async { metric(&server, USED).await == 0.0 }).await;
}

/// As values they would take some forty times their size.
pub async fn bodies_of_many_small_values_take_little_memory(place: &Place) {
    let (server, before) = start(place).await;
    server.send(reqwest::Method::PUT, "/v1/queues/q", Some(json!({}))).await;
    let zeros = "0,".repeat(BODY / 2 - 100) + "0";
    let brackets = "[".repeat(BODY / 2 - 100) + &"]".repeat(BODY / 2 - 100);
    for (method, path, body) in [
        (reqwest::Method::POST, "/v1/queues/q/jobs", format!("{{\"key_until\":0,\"x\":[{zeros}]}}")),
        (reqwest::Method::PATCH, "/v1/queues/q", format!("{{\"x\":[{zeros}]}}")),
        (reqwest::Method::PATCH, "/v1/queues/q", format!("{{\"rate\":[{zeros}]}}")),
        (reqwest::Method::POST, "/v1/queues/q/jobs", format!("{{\"payload\":{brackets}}}")),
    ] {
        let call = server.http.request(method, format!("{}{path}", server.base));
        let call = call.header("content-type", "application/json").body(body);
        let status = call.send().await.unwrap().status().as_u16();
        assert!([413, 422].contains(&status), "{path}: {status}");
    }
    judge("many small values", &server, before);
}

/// The largest body as it is shipped: what is in such a list would take more than [`GROWTH`].
const LONG: usize = 16 * MB;
const FOR_LONG: &[(&str, &str)] =
    &[("TAILBACK_LIMITS__BODY_BYTES", "16777216"), ("TAILBACK_LIMITS__MEMORY_BYTES", "134217728")];

/// Sends a body that has too many of something, and looks how large the server has become.
async fn is_too_many(server: &Server, before: usize, path: &str, body: String) {
    let what = format!("{path} {}…", &body[..14]);
    let call = server.http.post(format!("{}{path}", server.base));
    let response = call.header("content-type", "application/json").body(body).send().await.unwrap();
    let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
    assert_eq!(status, 422, "{what}: {text}");
    judge(&what, server, before);
}

/// How many there may be is judged when all have come: what is too many must not be kept until then.
pub async fn long_lists_take_little_memory(place: &Place) {
    let (server, before) = start_with(place, FOR_LONG).await;
    for (path, open, element, close) in [
        ("/v1/queues/q/jobs/batch", r#"{"jobs":["#, "1", "]}"),
        ("/v1/jobs", r#"{"jobs":["#, "1", "]}"),
        ("/v1/batches", r#"{"jobs":["#, "1", "]}"),
        ("/v1/settle", r#"{"commit":["#, "1", "]}"),
        ("/v1/reserve", r#"{"queues":["#, r#""a""#, "]}"),
        ("/v1/queues/q/jobs", r#"{"semaphores":["#, r#""a""#, "]}"),
        ("/v1/queues/q/jobs", r#"{"then":["#, r#"{"queue":"a"}"#, "]}"),
    ] {
        let elements = format!("{element},").repeat((LONG - 100) / (element.len() + 1));
        is_too_many(&server, before, path, format!("{open}{elements}{element}{close}")).await;
    }
    let headers: Vec<String> = (0..LONG / 12).map(|n| format!("\"{n:x}\":1")).collect();
    let body = format!("{{\"headers\":{{{}}}}}", headers.join(","));
    is_too_many(&server, before, "/v1/queues/q/jobs", body).await;
}
