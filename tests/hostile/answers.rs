//! Responses have a limit, and clients that do not read them are closed.

use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::common::server::{PATIENCE, Place, SHIPPED_DEADLINE, Server, metric, until};
use crate::connect;

fn ids(answer: &Value) -> Vec<String> {
    answer["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

/// Pushes jobs with payloads of this size, and returns their ids.
async fn push(server: &Server, queue: &str, count: usize, bytes: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(server.push(queue, json!({"payload": "x".repeat(bytes)})).await);
    }
    ids
}

pub async fn a_response_carries_what_it_may_and_at_least_one_job(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__ANSWER_BYTES", "100000")]).await;
    for queue in ["browsed", "reserved", "popped"] {
        let mut pushed = push(&server, queue, 12, 20_000).await;
        pushed.extend(push(&server, queue, 2, 300_000).await);
        pushed.extend(push(&server, queue, 3, 20_000).await);
        // Nothing comes back before all of them were taken.
        let ask = json!({"count": 1000, "wait_ms": 60_000, "lease_ms": 600_000});
        let (mut found, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
        while found.len() < pushed.len() {
            pages += 1;
            let (status, answer) = match queue {
                "browsed" => server.get(&format!("/v1/queues/{queue}/jobs?limit=1000{cursor}")).await,
                "reserved" => server.post(&format!("/v1/queues/{queue}/reserve"), ask.clone()).await,
                _ => {
                    let ask = json!({"count": 1000, "wait_ms": 60_000});
                    server.post(&format!("/v1/queues/{queue}/pop"), ask).await
                }
            };
            assert_eq!(status, 200);
            let page = ids(&answer);
            assert!(
                !page.is_empty() && (page.len() == 1 || answer.to_string().len() < 110_000),
                "{}",
                page.len()
            );
            let attempts = answer["jobs"].as_array().unwrap().iter().map(|job| &job["attempt"]);
            assert!(
                queue == "browsed" || attempts.clone().all(|attempt| *attempt == 1),
                "given back uncounted"
            );
            found.extend(page);
            cursor = answer["cursor"].as_str().map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
            assert_eq!(queue == "browsed" && found.len() < pushed.len(), !cursor.is_empty());
        }
        assert!((5..=17).contains(&pages), "{queue}: {pages}");
        found.sort();
        pushed.sort();
        assert_eq!(found, pushed, "{queue}: each once");
    }
}

pub async fn a_page_of_large_jobs_comes_in_time(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let pushed = push(&server, "large", 60, 1_000_000).await;
    assert!(server.terminate().await.success());
    // They are read with the deadline that the server is shipped with.
    let server = Server::start_with(&place.url, &[SHIPPED_DEADLINE]).await;
    let (mut found, mut cursor) = (Vec::new(), String::new());
    let mut until = Instant::now() + PATIENCE;
    while found.len() < pushed.len() {
        let answer =
            server.http.get(format!("{}/v1/queues/large/jobs?{cursor}", server.base)).send().await.unwrap();
        if answer.status() == 503 && Instant::now() < until {
            continue; // a machine that is busy with other tests; a page that is too large would never come
        }
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.unwrap();
        assert!(text.len() <= 17 << 20, "{} bytes", text.len());
        let answer: Value = serde_json::from_str(&text).unwrap();
        found.extend(ids(&answer));
        cursor = answer["cursor"].as_str().map(|cursor| format!("cursor={cursor}")).unwrap_or_default();
        until = Instant::now() + PATIENCE;
    }
    assert_eq!(found, pushed);
    let jobs = loop {
        let (status, answer) = server.post("/v1/queues/large/reserve", json!({"count": 1000})).await;
        if status == 503 && Instant::now() < until {
            continue; // as above
        }
        assert_eq!(status, 200, "{answer}");
        break ids(&answer);
    };
    assert!((1..=16).contains(&jobs.len()), "{}", jobs.len());
}

pub async fn a_client_that_does_not_read_is_closed(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__WRITE_WAIT_MS", "1000")]).await;
    push(&server, "large", 14, 1_000_000).await;
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut stream = connect(&server).await;
        stream.write_all(b"GET /v1/queues/large/jobs HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        streams.push(stream);
    }
    let open = async || metric(&server, "tailback_http_connections").await;
    until("their connections are closed", || async { open().await <= 1.0 }).await;
    drop(streams);
}

pub async fn every_list_ends_where_the_response_is_full(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__ANSWER_BYTES", "100000")]).await;
    let long = "x".repeat(30_000);
    let jobs: Vec<Value> = (0..10).map(|n| json!({"queue": "mail", "payload": n})).collect();
    let (status, batch) = server.post("/v1/batches", json!({"jobs": jobs, "sealed": true})).await;
    assert_eq!(status, 201, "{batch}");
    for job in server.reserve("mail", json!({"count": 10, "lease_ms": 600_000})).await {
        assert_eq!(server.settle(&job, "commit", json!({"result": long})).await.0, 200);
    }
    for n in 0..10 {
        let rule = json!({"cron": "0 0 1 1 *", "queue": "mail", "job": {"payload": long}});
        assert_eq!(
            server.send(reqwest::Method::PUT, &format!("/v1/schedules/s{n}"), Some(rule)).await.0,
            200
        );
    }
    let results = format!("/v1/batches/{}/results", batch["id"].as_str().unwrap());
    for (path, list) in [(results.as_str(), "results"), ("/v1/schedules", "schedules")] {
        let (mut found, mut cursor, mut pages) = (0, String::new(), 0);
        loop {
            let (status, page) = server.get(&format!("{path}?limit=1000{cursor}")).await;
            assert_eq!(status, 200, "{page}");
            assert!(page.to_string().len() < 110_000, "{path}: {} bytes", page.to_string().len());
            (found, pages) = (found + page[list].as_array().unwrap().len(), pages + 1);
            let Some(next) = page["cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!((found, pages), (10, 4), "{path}: three of them in a response");
    }
}
