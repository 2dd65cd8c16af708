//! Operations over many jobs, some of which another program spoiled.

use mongodb::bson::{Document, doc};
use serde_json::json;

use super::spoiled::{database, put};
use super::spoiled_jobs::spoil;
use crate::common::server::{Place, Server, until};

/// Spoils what guards each write of a job on MongoDB.
async fn spoil_rev(place: &Place, id: &str) {
    if place.url.starts_with("sqlite:") {
        return; // its transactions need none
    }
    let jobs = database(place).await.collection::<Document>("jobs");
    let update = jobs.update_one(doc! { "_id": id }, doc! { "$set": { "rev": "x" } });
    assert_eq!(update.bypass_document_validation(true).await.unwrap().modified_count, 1);
}

/// Deletes the jobs of a queue in this state by an operation. Returns how many it has looked at, deleted and skipped.
pub(super) async fn delete_all(server: &Server, queue: &str, state: &str) -> [u64; 3] {
    let body = json!({"filter": {"queue": queue, "state": state}, "action": "delete"});
    let (status, begun) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{begun}");
    let path = format!("/v1/operations/{}", begun["id"].as_str().unwrap());
    until("the operation is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    let over = server.get(&path).await.1;
    assert_eq!(over["state"], "done", "{over}");
    ["scanned", "affected", "skipped"].map(|name| over[name].as_u64().unwrap())
}

/// Those that cannot be read are deleted with the others, and the next job of a group has its turn.
pub async fn an_operation_deletes_spoiled_jobs(place: &Place) {
    let server = Server::start(&place.url).await;
    put(&server, "/v1/queues/line", json!({"on_group_dead": "hold"})).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(server.push("work", json!({"payload": n})).await);
    }
    let head = server.push("line", json!({"payload": 1, "group": "g"})).await;
    let next = server.push("line", json!({"payload": 2, "group": "g"})).await;
    for (queue, jobs) in [("work", 5), ("line", 1)] {
        let taken = server.reserve(queue, json!({"count": 9, "lease_ms": 600_000})).await;
        assert_eq!(taken.len(), jobs);
        for job in taken {
            assert_eq!(server.settle(&job, "rollback", json!({"dead": true})).await.0, 200);
        }
    }
    spoil(place, &[&ids[1], &ids[3], &head]).await;
    spoil_rev(place, &ids[3]).await;

    assert_eq!(delete_all(&server, "work", "dead").await, [5, 5, 0]);
    assert_eq!(delete_all(&server, "line", "dead").await, [1, 1, 0]);
    let page = server.get("/v1/queues/work/jobs").await.1;
    assert_eq!(page["jobs"], json!([]), "{page}");
    assert!(page["unreadable"].as_array().is_none_or(Vec::is_empty), "{page}");
    for id in ids.iter().chain([&head]) {
        assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 404);
    }
    let jobs = server.reserve("line", json!({"wait_ms": 60_000})).await;
    assert_eq!(jobs.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(next)]);
    until("the counts are exact", || async {
        let total = server.get("/stats").await.1["counts"].clone();
        (&total["dead"], &total["blocked"], &total["reserved"]) == (&json!(0), &json!(0), &json!(1))
    })
    .await;
}

/// Jobs that cannot be read are dead once a claim has met them; an operation knows since when.
pub async fn an_operation_deletes_what_a_claim_made_dead(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(server.push("work", json!({"payload": n})).await);
    }
    spoil(place, &[&ids[0], &ids[1]]).await;
    until("a claim has met those that are spoiled", || async {
        let page = server.get("/v1/queues/work/jobs?state=dead").await.1;
        page["unreadable"].as_array().map_or(0, Vec::len) == 2 || {
            server.reserve("work", json!({"count": 9, "lease_ms": 600_000})).await;
            false
        }
    })
    .await;
    for id in &ids[..2] {
        let (status, shown) = server.get(&format!("/v1/jobs/{id}")).await;
        assert_eq!((status, shown["finished_at"].is_string()), (200, true), "{shown}");
    }
    assert_eq!(delete_all(&server, "work", "dead").await, [2, 2, 0]);
    assert_eq!(server.get(&format!("/v1/jobs/{}", ids[2])).await.1["state"], "reserved");
}
