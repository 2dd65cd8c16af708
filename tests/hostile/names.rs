//! Jobs that another program inserts into MongoDB: the validator refuses names that are none, also one that only ends in
//! a newline, and what got past it stops nothing else.

use mongodb::bson::{DateTime, Document, doc};
use serde_json::json;

use crate::common::server::{Place, Server};

/// The smallest valid job.
fn job(id: &str, queue: &str) -> Document {
    let now = DateTime::from_millis(DateTime::now().timestamp_millis() - 60_000);
    doc! {
        "_id": id, "v": 1, "queue": queue, "state": "ready", "priority": 0, "run_at": now, "attempts": 0,
        "created_at": now, "rev": 0, "payload": 1,
    }
}

pub async fn a_name_that_ends_in_a_newline_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = mongodb::Client::with_uri_str(&place.url).await.unwrap().default_database().unwrap();
    let jobs = database.collection::<Document>("jobs");
    jobs.insert_one(job("valid", "valid")).await.unwrap();
    let with = |more: Document| {
        let mut job = job("one", "one");
        job.extend(more);
        job
    };
    for spoiled in [
        doc! { "_id": "one\n" },
        doc! { "queue": "abc\n" },
        doc! { "queue": "" },
        doc! { "group": "g\n", "turn": "one/g/0000000000000001" },
        doc! { "turn": "one/g/0000000000000001\n", "group": "g" },
        doc! { "batch": "b\n" },
        doc! { "worker": "w\n" },
        doc! { "semaphores": ["s\n"] },
        doc! { "waits_for": "s\n" },
        doc! { "replay_of": "r\n" },
        doc! { "headers": { "h": 1 } },
    ] {
        let refused = jobs.insert_one(with(spoiled.clone())).await;
        assert!(refused.unwrap_err().to_string().contains("validation"), "{spoiled}");
    }

    // What a validator of a version before let pass.
    let past = |id: &str, queue: &str| {
        jobs.insert_one(job(id, queue)).bypass_document_validation(true).into_future()
    };
    past("past1", "abc\n").await.unwrap();
    past("past2", "not a name").await.unwrap();
    let due =
        with(doc! { "_id": "past3", "queue": "abc\n", "due": DateTime::from_millis(4_000_000_000_000) });
    jobs.insert_one(due).bypass_document_validation(true).await.unwrap();
    let waits = with(doc! { "_id": "past4", "state": "blocked", "semaphores": ["s\n"], "waits_for": "s\n" });
    jobs.insert_one(waits).bypass_document_validation(true).await.unwrap();
    let (status, queues) = server.get("/v1/queues").await;
    assert_eq!(status, 200, "{queues}");
    assert!(queues["queues"].to_string().contains("valid"), "{queues}");
    let (status, taken) = server.post("/v1/reserve", json!({"queues": ["*"], "count": 9})).await;
    assert_eq!((status, taken["jobs"][0]["id"].as_str()), (200, Some("valid")), "{taken}");
    for path in ["/stats", "/metrics", "/v1/queues/valid/stats"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    drop(server);
    let server = Server::start(&place.url).await;
    assert_eq!(server.get("/v1/queues").await.0, 200);
}
