//! A claim that has won a part of what it asked for, and whose jobs are written by others before it looks which.

use std::path::Path;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use serde_json::{Value, json};

use crate::common::server::{Place, Server, until};

fn stop_at(point: &str, points: &Path) {
    std::fs::write(points.join(point), "pause").unwrap();
}

async fn until_at(point: &str, points: &Path) {
    let met = points.join(format!("{point}.met"));
    until("the claim is there", || async { met.exists() }).await;
}

fn go_on(point: &str, points: &Path) {
    std::fs::write(points.join(format!("{point}.go")), "").unwrap();
}

/// Of three jobs another program changes one, so that the claim wins two; a heartbeat of its worker writes both, and one is to be
/// cancelled.
pub async fn what_a_claim_has_won_is_handed_out_whoever_wrote_it_since(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Server::start_with(&place.url, &faults).await;
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let jobs = client.default_database().unwrap().collection::<Document>("jobs");
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(server.push("mail", json!({"payload": n})).await);
    }

    stop_at("claim.read", points.path());
    stop_at("claim.written", points.path());
    let ask = json!({"count": 3, "worker": "w", "lease_ms": 600_000});
    let call = server.http.post(format!("{}/v1/queues/mail/reserve", server.base)).json(&ask);
    let reserve = tokio::spawn(async move { call.send().await.unwrap().json::<Value>().await.unwrap() });
    until_at("claim.read", points.path()).await;
    jobs.update_one(doc! { "_id": &ids[0] }, doc! { "$set": { "rev": 1_i64 } }).await.unwrap();
    go_on("claim.read", points.path());
    until_at("claim.written", points.path()).await;
    let (status, answer) = server.post("/v1/workers/w/heartbeat", json!({"timeout_ms": 600_000})).await;
    assert_eq!((status, &answer["held"]), (200, &json!(2)), "{answer}");
    let (status, answer) = server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{}", ids[2]), None).await;
    assert_eq!(status, 202, "{answer}");
    go_on("claim.written", points.path());

    let answer = reserve.await.unwrap();
    let won = answer["jobs"].as_array().unwrap();
    let named = |id: &String| won.iter().find(|job| job["id"] == **id);
    for id in &ids[1..] {
        let job = named(id).unwrap_or_else(|| panic!("{id} is held by nobody: {answer}"));
        let commit = json!({"reservation": job["reservation"]});
        let (status, answer) = server.post(&format!("/v1/jobs/{id}/commit"), commit).await;
        assert_eq!(status, 200, "{answer}");
    }
}
