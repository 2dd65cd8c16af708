//! Jobs that another program spoiled, removed or made too long: those behind them in a line or a queue go on.

use mongodb::bson::{DateTime, Document, doc};
use reqwest::Method;
use serde_json::{Value, json};

use super::spoiled::{database, put};
use super::spoiled_jobs::spoil;
use crate::common::server::{Place, Server, until};

/// A job that holds a semaphore, and the ids of two that are blocked by it, in their order.
pub(super) async fn blocked(server: &Server) -> (Value, String, String) {
    put(server, "/v1/semaphores/s", json!({"capacity": 1})).await;
    server.push("held", json!({"payload": 1, "semaphores": ["s"]})).await;
    let held = server.reserve("held", json!({"lease_ms": 600_000})).await.remove(0);
    let first = server.push("work", json!({"payload": 1, "priority": 1, "semaphores": ["s"]})).await;
    let behind = server.push("work", json!({"payload": 2, "semaphores": ["s"]})).await;
    for id in [&first, &behind] {
        until("it is blocked", || async {
            assert!(server.reserve("work", json!({"count": 9})).await.is_empty());
            server.get(&format!("/v1/jobs/{id}")).await.1["state"] == "blocked"
        })
        .await;
    }
    (held, first, behind)
}

/// A job that is blocked by a semaphore is dead as soon as its turn comes: no room is kept for it.
pub async fn a_spoiled_job_leaves_the_line_of_its_semaphore(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let (held, first, behind) = blocked(&server).await;
    assert!(server.terminate().await.success());
    spoil(place, &[&first]).await;
    // Whatever waits is impatient: room is kept for the first from those behind.
    let patience = [("TAILBACK_DEFAULTS__SEMAPHORE_PATIENCE_MS", "0")];
    let server = Server::start_with(&place.url, &patience).await;
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    let next = server.reserve("work", json!({"wait_ms": 60_000})).await;
    assert_eq!(next.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(behind)]);
    assert_eq!(server.get(&format!("/v1/jobs/{first}")).await.1["state"], "dead");
}

/// Jobs that stand in a line on MongoDB as those of older servers did which made them dead, and left them there.
pub async fn a_dead_job_keeps_no_room_in_a_semaphore(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_DEFAULTS__SEMAPHORE_PATIENCE_MS", "0")]).await;
    let (held, dead, behind) = blocked(&server).await;
    let jobs = database(place).await.collection::<Document>("jobs");
    let left = doc! { "$set": { "state": "dead", "rev": 7_i64 } };
    assert_eq!(jobs.update_one(doc! { "_id": &dead }, left).await.unwrap().modified_count, 1);
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    let next = server.reserve("work", json!({"wait_ms": 60_000})).await;
    assert_eq!(next.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(behind)]);
}

/// Delivers and commits the only job that is ready.
async fn is_next(server: &Server, id: &str) {
    let jobs = server.reserve("line", json!({"wait_ms": 60_000, "lease_ms": 600_000, "count": 9})).await;
    assert_eq!(jobs.iter().map(|job| &job["id"]).collect::<Vec<&Value>>(), [&json!(id)]);
    assert_eq!(server.settle(&jobs[0], "commit", json!({})).await.0, 200);
}

/// Where the first job of a group was removed past the servers, the next one stays blocked until it is deleted, and no other does.
pub async fn a_group_goes_on_behind_a_job_that_was_removed_past_the_servers(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = database(place).await.collection::<Document>("jobs");
    let remove = async |ids: &[&str]| {
        let removed = jobs.delete_many(doc! { "_id": { "$in": ids } }).await.unwrap();
        assert_eq!(removed.deleted_count, ids.len() as u64);
    };
    let push = async || server.push("line", json!({"payload": 1, "group": "g"})).await;
    let delete = async |id: &str| {
        assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{id}"), None).await.0, 200);
    };

    // The next one is deleted, and another is behind it.
    let (first, next, last) = (push().await, push().await, push().await);
    remove(&[&first]).await;
    delete(&next).await;
    is_next(&server, &last).await;
    is_next(&server, &push().await).await;

    // None is behind it.
    let (first, next) = (push().await, push().await);
    remove(&[&first]).await;
    delete(&next).await;
    is_next(&server, &push().await).await;
}

/// A document so long that nothing fits in: MongoDB refuses to reserve it.
pub async fn a_job_that_is_too_long_to_be_delivered_stops_no_other(place: &Place) {
    let server = Server::start(&place.url).await;
    let now = DateTime::from_millis(1_700_000_000_000);
    let mut long = doc! {
        "_id": "L", "v": 1, "queue": "work", "state": "ready", "priority": 0, "run_at": now, "attempts": 0_i64, "created_at": now,
        "rev": 0_i64, "payload": "",
    };
    let room = (16 << 20) - long.to_vec().unwrap().len() - 50;
    long.insert("payload", "x".repeat(room));
    database(place).await.collection::<Document>("jobs").insert_one(long).await.unwrap();
    let other = server.push("work", json!({"payload": 1})).await;
    let next = server.reserve("work", json!({"wait_ms": 60_000})).await;
    assert_eq!(next.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(other)]);
    let (status, page) = server.get("/v1/jobs?queue=work&state=dead&payload=none").await;
    assert_eq!((status, &page["jobs"][0]["id"]), (200, &json!("L")), "{page}");
    assert_eq!(server.send(Method::DELETE, "/v1/jobs/L", None).await.0, 200);
}
