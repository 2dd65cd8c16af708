//! The HTTP contract, call by call, on every store.

mod common;

use common::server::{Place, Server};
use serde_json::json;

async fn a_whole_life(place: &Place) {
    let server = Server::start(&place.url).await;
    let id = server.push("mail", json!({"payload": {"to": "ada"}})).await;
    let jobs = server.reserve("mail", json!({"worker": "w1"})).await;
    assert_eq!(jobs.len(), 1);
    assert_eq!((&jobs[0]["id"], &jobs[0]["payload"]["to"]), (&json!(id), &json!("ada")));
    let (status, answer) = server.settle(&jobs[0], "commit", json!({})).await;
    assert_eq!((status, &answer["state"]), (200, &json!("done")));
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 404);
}

on_every_store! {
    a_whole_life
}
