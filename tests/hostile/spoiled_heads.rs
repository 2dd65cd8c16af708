//! Jobs at the head of a queue that no server can read: those behind them are delivered at once.

use std::time::{Duration, Instant};

use mongodb::bson::raw::cstr;
use mongodb::bson::{DateTime, Document, RawDocumentBuf, doc};
use reqwest::Method;
use serde_json::{Value, json};

use super::spoiled::{database, put};
use super::spoiled_jobs::spoil;
use crate::common::foreign::{foreign, insert_raw};
use crate::common::server::{Place, Server, until};

/// What makes it unknown which `rev` a job has: a name that is not UTF-8 behind it or before it, or a second one.
const WAYS: [&str; 3] = ["name-behind", "name-before", "twice"];

/// Returns a job that is spoiled in one of these ways.
fn hiding_its_rev(mut job: Document, way: &str) -> RawDocumentBuf {
    let rev = job.remove("rev").unwrap();
    match way {
        "name-before" => job.extend(doc! { "?BAD": 1, "rev": rev }),
        "name-behind" => job.extend(doc! { "rev": rev, "?BAD": 1 }),
        _ => job.extend(doc! { "rev": rev }),
    }
    let mut job = foreign(&job);
    if way == "twice" {
        job.append(cstr!("rev"), 7_i64);
    }
    job
}

/// Returns the ids of what one claim wins: the first that takes no longer than usual. Under a limit, one that a MongoDB which stands still
/// has kept for half of its deadline returns nothing.
async fn reserved(server: &Server, queue: &str) -> Vec<Value> {
    loop {
        let since = Instant::now();
        let jobs = server.reserve(queue, json!({"lease_ms": 600_000})).await;
        if !jobs.is_empty() || since.elapsed() < Duration::from_secs(20) {
            return jobs.into_iter().map(|job| job["id"].clone()).collect();
        }
    }
}

/// It is listed as dead, cannot be mended, and is removed.
async fn is_removed(server: &Server, queue: &str, id: &str) {
    let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?state=dead")).await;
    let listed = &page["unreadable"][0];
    assert_eq!((status, &listed["id"], &listed["state"]), (200, &json!(id), &json!("dead")), "{page}");
    let path = format!("/v1/jobs/{id}");
    let (status, problem) = server.send(Method::PATCH, &path, Some(json!({"payload": 2}))).await;
    assert_eq!((status, &problem["code"]), (409, &json!("unreadable")), "{problem}");
    let (status, removed) = server.send(Method::DELETE, &path, None).await;
    assert_eq!(status, 200, "{removed}");
    assert_eq!(server.get(&path).await.0, 404);
}

/// Nothing guards the burial of such a job by its `rev`, which is there all the same.
pub async fn a_job_whose_rev_is_hidden_stops_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(place).await;
    let jobs = database.collection::<Document>("jobs");
    let id = server.push("template", json!({"payload": 1})).await;
    let template = jobs.find_one(doc! { "_id": &id }).await.unwrap().unwrap();
    let past = DateTime::from_millis(1_000_000_000_000);
    let is_dead = async |id: &str| {
        let dead = jobs.count_documents(doc! { "_id": id, "state": "dead" });
        dead.await.unwrap() == 1
    };
    for way in WAYS {
        let mut held = template.clone();
        held.extend(doc! { "_id": format!("held-{way}"), "queue": "held", "state": "reserved" });
        held.extend(doc! { "claim": "c", "reserved_until": past });
        assert!(insert_raw(&database, "jobs", hiding_its_rev(held, way)).await, "{way}");
        for setting in ["max_attempts", "max_reserved"] {
            let queue = format!("{way}-{setting}");
            put(&server, &format!("/v1/queues/{queue}"), json!({setting: 5})).await;
            let mut first = template.clone();
            first.extend(doc! { "_id": &queue, "queue": &queue, "run_at": past });
            assert!(insert_raw(&database, "jobs", hiding_its_rev(first, way)).await, "{queue}");
            let good = server.push(&queue, json!({"payload": 2})).await;
            assert_eq!(reserved(&server, &queue).await, [json!(good)], "{queue}");
            assert!(is_dead(&queue).await, "{queue}");
            is_removed(&server, &queue, &queue).await;
        }
    }
    for way in WAYS {
        until("the reaper finds it", || async { is_dead(&format!("held-{way}")).await }).await;
    }
}

/// One claim of a limited queue reads on where none of the jobs that it has read can be read.
pub async fn spoiled_jobs_end_no_claim_under_a_limit(place: &Place) {
    let server = Server::start(&place.url).await;
    let limits = [
        ("counted", json!({"max_reserved": 5})),
        ("rated", json!({"rate": {"limit": 5, "per_ms": 3_600_000}})),
    ];
    for (queue, limit) in limits {
        put(&server, &format!("/v1/queues/{queue}"), limit).await;
        let mut ids = Vec::new();
        for n in 0..4 {
            ids.push(server.push(queue, json!({"payload": n, "priority": 4 - n})).await);
        }
        let good = ids.pop().unwrap();
        spoil(place, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
        assert_eq!(reserved(&server, queue).await, [json!(good)], "{queue}");
        let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?state=dead")).await;
        assert_eq!((status, page["unreadable"].as_array().map(Vec::len)), (200, Some(3)), "{page}");
    }
}
