//! What calls have in memory of the store's jobs is bounded as well: of claims that come at once, and of replays.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use super::memory::{judge, start};
use crate::common::server::{PATIENCE, Place, Server};

/// How large the jobs are.
const LARGE: usize = 1_000_000;
/// How many are pushed with one call.
const TOGETHER: usize = 3;

/// Pushes so many large jobs.
async fn push(server: &Server, queue: &str, count: usize) {
    let job = json!({"payload": "x".repeat(LARGE)});
    let path = format!("/v1/queues/{queue}/jobs/batch");
    for first in (0..count).step_by(TOGETHER) {
        let jobs = vec![&job; TOGETHER.min(count - first)];
        let (status, answer) = server.post(&path, json!({ "jobs": jobs })).await;
        assert_eq!(status, 200, "{answer}");
    }
}

/// Makes a call again until the server has room for it, and returns what it answers then.
async fn once_there_is_room(server: &Server, path: &str, body: &Value) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        let call = server.http.post(format!("{}{path}", server.base)).json(body);
        let response = call.send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        if status == 200 {
            return text;
        }
        assert!(status == 503 && Instant::now() < end, "{status}: {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Reserves from a queue until so many jobs have come.
async fn reserve_all(server: &Server, queue: &str, ask: &Value, count: usize) {
    let (path, end) = (format!("/v1/queues/{queue}/reserve"), Instant::now() + PATIENCE);
    let mut come = 0;
    while come < count {
        assert!(Instant::now() < end, "{come} of {count} jobs of {queue} have come");
        // What did not fit into a response is given back, and comes later.
        come += once_there_is_room(server, &path, ask).await.matches("\"reservation\":").count();
    }
    assert_eq!(come, count, "each job of {queue} comes once");
}

pub async fn claims_of_many_queues_share_the_memory(place: &Place) {
    const QUEUES: usize = 24;
    const JOBS: usize = 16;
    let (server, before) = start(place).await;
    let queues: Vec<String> = (0..QUEUES).map(|n| format!("large{n}")).collect();
    for queue in &queues {
        push(&server, queue, JOBS).await;
    }
    let ask = json!({"count": 1000, "lease_ms": 600_000});
    join_all(queues.iter().map(|queue| reserve_all(&server, queue, &ask, JOBS))).await;
    judge("claims of many queues", &server, before);
}

pub async fn claims_of_one_queue_share_the_memory(place: &Place) {
    const JOBS: usize = 240;
    let (server, before) = start(place).await;
    push(&server, "large", JOBS).await;
    let ask = json!({"lease_ms": 600_000});
    join_all((0..JOBS).map(|_| reserve_all(&server, "large", &ask, 1))).await;
    judge("claims of one queue", &server, before);
    let (_, stats) = server.get("/v1/queues/large/stats").await;
    assert_eq!(stats["counts"]["reserved"], json!(JOBS), "{stats}");
}

/// More than one read of the store brings: each call gets its job all the same.
pub async fn claims_of_large_jobs_at_once_all_win(place: &Place) {
    const JOBS: usize = 24;
    let server = Server::start(&place.url).await;
    push(&server, "large", JOBS).await;
    let reserves = (0..JOBS).map(|_| server.reserve("large", json!({"lease_ms": 600_000})));
    let won: Vec<Value> = join_all(reserves).await.concat();
    let ids: HashSet<&str> = won.iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!((won.len(), ids.len()), (JOBS, JOBS));
}

pub async fn replays_share_the_memory(place: &Place) {
    const JOBS: usize = 8;
    const REPLAYS: usize = 48;
    let (server, before) = start(place).await;
    let keeps = json!({"retain_done_ms": 86_400_000});
    assert_eq!(server.send(Method::PUT, "/v1/queues/large", Some(keeps)).await.0, 200);
    push(&server, "large", JOBS).await;
    for _ in 0..JOBS {
        let (status, popped) = server.post("/v1/queues/large/pop", json!({})).await;
        assert_eq!((status, popped["jobs"].as_array().map(Vec::len)), (200, Some(1)));
    }
    let ask = json!({ "limit": JOBS });
    let replays = (0..REPLAYS).map(|_| once_there_is_room(&server, "/v1/queues/large/replay", &ask));
    for answer in join_all(replays).await {
        assert_eq!(serde_json::from_str::<Value>(&answer).unwrap()["affected"], json!(JOBS), "{answer}");
    }
    judge("replays", &server, before);
    let (_, stats) = server.get("/v1/queues/large/stats").await;
    assert!(stats["counts"]["ready"].as_u64().unwrap() >= (REPLAYS * JOBS) as u64, "{stats}");
}
