//! Documents of schema version 1, as other programs and servers of old have written them, load for ever; and
//! malformed ones never get into the database. MongoDB only: an SQLite file is nobody else's to write.
//!
//! The files in `tests/frozen/` are never changed once they are released. A new version adds files.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::path::{Path, PathBuf};

use common::server::{Place, Server};
use mongodb::bson::{Bson, Document, doc};
use mongodb::{Client, Collection};
use serde_json::{Value, json};

/// MongoDB's `DocumentValidationFailure`.
const REFUSED: i32 = 121;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/frozen")
}

fn file(name: &str) -> Value {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Extended JSON as the document that it means.
fn document(json: &Value) -> Document {
    match Bson::try_from(json.clone()).unwrap() {
        Bson::Document(document) => document,
        other => panic!("no document: {other}"),
    }
}

async fn jobs(place: &Place) -> Collection<Document> {
    let client = Client::with_uri_str(&place.url).await.unwrap();
    client.default_database().unwrap().collection("jobs")
}

async fn loads(place: &Place, name: &str) {
    let case = file(name);
    let written = document(&case["document"]);
    let id = written.get_str("_id").unwrap().to_owned();
    let server = Server::start(&place.url).await;
    let jobs = jobs(place).await;
    jobs.insert_one(&written).await.unwrap_or_else(|error| panic!("{name} is refused: {error}"));
    let response = server.http.get(format!("{}/v1/jobs/{id}", server.base)).send().await.unwrap();
    let text = response.text().await.unwrap();
    let shown: Value = serde_json::from_str(&text).unwrap();
    for (field, value) in case["shows"].as_object().unwrap() {
        assert_eq!(&shown[field], value, "{name}, {field}: {text}");
    }
    if let Some(payload) = case["payload_text"].as_str() {
        assert!(text.contains(&format!("\"payload\":{payload}")), "{name}: {text}");
    }
    let (status, page) = server.get("/v1/queues/frozen/jobs").await;
    // Lists do not say why a job is not done.
    let mut shown = shown;
    shown.as_object_mut().unwrap().remove("waiting_for");
    assert_eq!((status, &page["jobs"]), (200, &json!([shown])), "{name}");
    assert_delivery(&server, &jobs, &case, &shown, &written).await;
}

/// What is ready is delivered, fails once, is delivered again and committed; what is not stays as it is.
async fn assert_delivery(
    server: &Server,
    jobs: &Collection<Document>,
    case: &Value,
    shown: &Value,
    written: &Document,
) {
    let by_id = || doc! { "_id": shown["id"].as_str().unwrap() };
    let first = server.reserve("frozen", json!({})).await;
    if case["delivered"] == false {
        assert!(first.is_empty(), "{first:?}");
        assert_eq!(jobs.find_one(by_id()).await.unwrap().as_ref(), Some(written));
        return;
    }
    assert_eq!((&first[0]["id"], &first[0]["payload"]), (&shown["id"], &shown["payload"]));
    assert_eq!(first[0]["attempt"], 1);
    assert_eq!(server.settle(&first[0], "rollback", json!({"delay_ms": 0})).await.0, 200);
    let stored = jobs.find_one(by_id()).await.unwrap().unwrap();
    for field in case["keeps"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        assert_eq!(stored.get(field), written.get(field), "{field} was not let be");
    }
    let again = server.reserve("frozen", json!({})).await.remove(0);
    assert_eq!((&again["attempt"], &again["payload"]), (&json!(2), &shown["payload"]));
    assert_eq!(server.settle(&again, "commit", json!({})).await.0, 200);
    assert_eq!(jobs.find_one(by_id()).await.unwrap(), None);
}

/// Each file with a document, in a database of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_document_loads() {
    let names =
        std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut documents: Vec<String> = names.filter(|name| file(name)["document"].is_object()).collect();
    documents.sort_unstable();
    assert!(documents.len() >= 14, "{documents:?}");
    for name in &documents {
        let place = Place::mongo().await;
        loads(&place, name).await;
        place.clear().await;
    }
}

async fn malformed_ones_are_refused(place: &Place) {
    refused(place, "refused.json").await;
}

async fn those_of_the_second_validator_too(place: &Place) {
    refused(place, "refused_0014.json").await;
}

async fn those_of_the_third_validator_too(place: &Place) {
    refused(place, "refused_0017.json").await;
}

/// As it lay there before the validator had bounds: no answer could show it.
async fn a_backoff_of_no_number_cannot_be_read(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = jobs(place).await;
    let mut old = document(&file("refused_0017.json")["good"]);
    old.insert("backoff", doc! { "kind": "exponential", "base_ms": 1, "factor": f64::NAN });
    jobs.insert_one(&old).bypass_document_validation(true).await.unwrap();
    let (status, shown) = server.get("/v1/jobs/good").await;
    assert_eq!((status, &shown["state"]), (200, &json!("dead")), "{shown}");
    assert!(shown["unreadable"].as_str().unwrap().contains("backoff"), "{shown}");
}

async fn those_with_malformed_bytes_too(place: &Place) {
    refused(place, "refused_binary.json").await;
}

async fn refused(place: &Place, name: &str) {
    let cases = file(name);
    let _server = Server::start(&place.url).await;
    let jobs = jobs(place).await;
    jobs.insert_one(document(&cases["good"])).await.unwrap();
    for (n, case) in cases["bad"].as_array().unwrap().iter().enumerate() {
        let mut bad = document(&cases["good"]);
        bad.insert("_id", format!("bad-{n}"));
        for field in case["without"].as_array().into_iter().flatten() {
            bad.remove(field.as_str().unwrap());
        }
        if !case["with"].is_null() {
            bad.extend(document(&case["with"]));
        }
        let code = match jobs.insert_one(bad).await {
            Ok(_) => panic!("{}: it was stored", case["why"]),
            Err(error) => match *error.kind {
                mongodb::error::ErrorKind::Write(mongodb::error::WriteFailure::WriteError(write)) => {
                    write.code
                }
                other => panic!("{}: {other}", case["why"]),
            },
        };
        assert_eq!(code, REFUSED, "{}", case["why"]);
    }
    assert_eq!(jobs.count_documents(doc! {}).await.unwrap(), 1);
}

/// Also by an update, such as somebody makes by hand.
async fn a_job_cannot_be_made_malformed(place: &Place) {
    let cases = file("refused.json");
    let _server = Server::start(&place.url).await;
    let jobs = jobs(place).await;
    jobs.insert_one(document(&cases["good"])).await.unwrap();
    for update in [doc! { "$set": { "state": "running" } }, doc! { "$unset": { "payload": "" } }] {
        assert!(jobs.update_one(doc! { "_id": "good" }, update.clone()).await.is_err(), "{update}");
    }
    assert_eq!(jobs.find_one(doc! {}).await.unwrap(), Some(document(&cases["good"])));
}

/// Documents that older validators took, and this one would refuse, are no burden to whoever changes them.
async fn what_lay_there_before_can_be_changed(place: &Place) {
    let cases = file("refused_0014.json");
    let _server = Server::start(&place.url).await;
    let jobs = jobs(place).await;
    let mut old = document(&cases["good"]);
    old.insert("v", 2);
    jobs.insert_one(&old).bypass_document_validation(true).await.unwrap();
    jobs.update_one(doc! { "_id": "good" }, doc! { "$set": { "priority": 5 } }).await.unwrap();
    jobs.update_one(doc! { "_id": "good" }, doc! { "$set": { "v": 1 } }).await.unwrap();
    assert!(jobs.update_one(doc! { "_id": "good" }, doc! { "$set": { "v": 2 } }).await.is_err());
}

on_one_store! { mongo:
    malformed_ones_are_refused
    those_of_the_second_validator_too
    those_of_the_third_validator_too
    a_backoff_of_no_number_cannot_be_read
    those_with_malformed_bytes_too
    what_lay_there_before_can_be_changed
    a_job_cannot_be_made_malformed
}
