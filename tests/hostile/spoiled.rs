//! Documents and rows that another program spoiled: each concerns itself only. It is shown, stops neither the others
//! nor a start, and is mended over HTTP.

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use reqwest::Method;
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::common::foreign::foreign;
use crate::common::server::{Place, Server, until};

/// The database behind a place, as another program sees it.
pub(super) async fn database(place: &Place) -> mongodb::Database {
    mongodb::Client::with_uri_str(&place.url).await.unwrap().default_database().unwrap()
}

async fn replace(database: &mongodb::Database, collection: &str, document: Document) {
    let id = doc! { "_id": document.get("_id").unwrap().clone() };
    let collection = database.collection::<RawDocumentBuf>(collection);
    collection.replace_one(id, foreign(&document)).upsert(true).await.unwrap();
}

pub(super) fn execute(place: &Place, sql: &str) {
    let file = Connection::open(place.url.trim_start_matches("sqlite:")).unwrap();
    file.busy_timeout(crate::common::server::PATIENCE).unwrap();
    file.execute_batch(sql).unwrap();
}

pub(super) fn rule() -> Value {
    json!({"cron": "* * * * * *", "queue": "timed", "job": {"payload": 1}})
}

pub(super) async fn put(server: &Server, path: &str, body: Value) -> Value {
    let (status, answer) = server.send(Method::PUT, path, Some(body)).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// Things that are valid, beside those that will be spoiled.
async fn fill(server: &Server) {
    put(server, "/v1/queues/good", json!({"max_jobs": 7})).await;
    put(server, "/v1/queues/bad", json!({"max_jobs": 7, "paused": true})).await;
    put(server, "/v1/semaphores/good", json!({"capacity": 1})).await;
    put(server, "/v1/semaphores/bad", json!({"capacity": 1})).await;
    put(server, "/v1/schedules/bad", rule()).await;
    put(server, "/v1/schedules/good", rule()).await;
    for worker in ["bad", "good"] {
        let path = format!("/v1/workers/{worker}/heartbeat");
        assert_eq!(server.post(&path, json!({"timeout_ms": 1000})).await.0, 200);
    }
}

/// What is spoiled is shown as such, and everything else works as ever.
async fn only_the_spoiled_is_concerned(server: &Server, capacity: Option<u64>) {
    let bad = server.get("/v1/queues/bad").await.1;
    assert!(bad["unreadable"].as_str().unwrap().contains("not"), "{bad}");
    let queues = server.get("/v1/queues").await.1;
    assert!(queues["queues"].to_string().contains("unreadable"), "{queues}");
    assert_eq!(server.get("/v1/queues/good").await.1["max_jobs"], 7);
    server.push("bad", json!({"payload": 1})).await;
    server.push("good", json!({"payload": 1, "semaphores": ["good"]})).await;
    assert_eq!(server.reserve("good", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await.len(), 1);
    let (status, semaphores) = server.get("/v1/semaphores").await;
    assert_eq!((status, semaphores["semaphores"].as_array().unwrap().len()), (200, 2), "{semaphores}");
    if let Some(capacity) = capacity {
        assert_eq!(server.get("/v1/semaphores/bad").await.1["capacity"], capacity);
    }
    let schedules = server.get("/v1/schedules").await.1;
    assert_eq!(schedules["schedules"][0]["name"], "good", "{schedules}");
    assert_eq!(schedules["unreadable"][0]["name"], "bad", "{schedules}");
    let (status, problem) = server.get("/v1/schedules/bad").await;
    assert_eq!((status, problem["code"].as_str()), (409, Some("unreadable")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("PUT"), "{problem}");
    assert_eq!(server.get("/v1/workers").await.0, 200);
    let runs = async || server.get("/v1/schedules/good").await.1["last_runs"].to_string();
    let before = runs().await;
    until("the valid schedule runs", || async { runs().await != before }).await;
}

async fn writing_mends(server: &Server) {
    let mended = put(server, "/v1/queues/bad", json!({"max_jobs": 8})).await;
    assert_eq!((&mended["max_jobs"], &mended["unreadable"]), (&json!(8), &Value::Null));
    assert_eq!(put(server, "/v1/semaphores/bad", json!({"capacity": 3})).await["capacity"], 3);
    put(server, "/v1/schedules/bad", rule()).await;
    assert_eq!(server.get("/v1/schedules/bad").await.0, 200);
    assert_eq!(server.send(Method::DELETE, "/v1/schedules/bad", None).await.0, 200);
    assert_eq!(server.post("/v1/workers/bad/heartbeat", json!({})).await.0, 200);
    assert!(server.get("/v1/workers").await.1["workers"].to_string().contains("\"bad\""));
}

/// Each way in which documents of MongoDB have been spoiled.
pub async fn a_spoiled_document_stops_nothing_else(place: &Place) {
    let mut server = Server::start(&place.url).await;
    fill(&server).await;
    let database = database(place).await;
    let many = doc! { "max_jobs": "many", "paused": true };
    let list = || Bson::Array(vec![]);
    let cases = [
        (Bson::Null, list()),
        (many.into(), list()),
        (list(), list()),
        (doc! { "lease_ms": 1 }.into(), list()),
        ("?BAD".into(), "?BAD".into()),
        (doc! { "max_jobs": 7, "?BAD": "?BAD" }.into(), doc! { "?BAD": 1 }.into()),
        (doc! { "max_jobs": { "$oid": 5 } }.into(), doc! { "$oid": "x" }.into()),
        (doc! { "max_jobs": { "$numberLong": "7" } }.into(), doc! { "$date": 1 }.into()),
    ];
    for (settings, wrong) in cases {
        let bad = doc! { "_id": "bad", "settings": settings, "version": wrong.clone() };
        replace(&database, "queues", bad).await;
        let nameless = doc! { "_id": "no name\n", "settings": {}, "version": "1" };
        replace(&database, "queues", nameless).await;
        replace(&database, "semaphores", doc! { "_id": "bad", "capacity": wrong.clone(), "rev": Bson::Null })
            .await;
        replace(
            &database,
            "schedules",
            doc! { "_id": "bad", "rule": wrong.clone(), "next_at": mongodb::bson::DateTime::MIN },
        )
        .await;
        let worker = doc! { "_id": "bad", "silent_at": mongodb::bson::DateTime::MIN, "timeout_ms": 0, "beat": wrong.clone() };
        replace(&database, "workers", worker).await;
        replace(&database, "meta", doc! { "_id": "settings", "revision": wrong.clone() }).await;
        replace(&database, "meta", doc! { "_id": "reservations", "secret": wrong }).await;
        assert!(server.terminate().await.success());
        server = Server::start(&place.url).await;
        only_the_spoiled_is_concerned(&server, Some(0)).await;
        writing_mends(&server).await;
        put(&server, "/v1/schedules/bad", rule()).await;
        assert_eq!(server.send(Method::DELETE, "/v1/queues/good?force=true", None).await.0, 200);
        put(&server, "/v1/queues/good", json!({"max_jobs": 7})).await;
    }
}

/// The same in the file of SQLite.
pub async fn a_spoiled_row_stops_nothing_else(place: &Place) {
    let mut server = Server::start(&place.url).await;
    fill(&server).await;
    assert!(server.terminate().await.success());
    execute(place, "UPDATE settings SET settings = '{\"max_jobs\":\"x\"}' WHERE queue = 'bad'");
    execute(place, "UPDATE schedules SET rule = '{}', next_at = 0 WHERE name = 'bad'");
    let mut server = Server::start(&place.url).await;
    only_the_spoiled_is_concerned(&server, None).await;
    writing_mends(&server).await;
    assert!(server.terminate().await.success());
    // What versions before took, and MongoDB does not hold.
    execute(
        place,
        "UPDATE settings SET settings = '{\"max_jobs\":18446744073709551615}' WHERE queue = 'bad'",
    );
    let server = Server::start(&place.url).await;
    assert_eq!(server.get("/v1/queues/bad").await.1["max_jobs"], 9_223_372_036_854_775_807_u64);
}

/// Rows that another program took away or changed: nothing stays full for ever.
pub async fn counts_are_those_of_the_jobs_after_a_start(place: &Place) {
    let mut server = Server::start(&place.url).await;
    put(&server, "/v1/semaphores/s", json!({"capacity": 1})).await;
    put(&server, "/v1/queues/full", json!({"max_jobs": 2})).await;
    put(&server, "/v1/queues/busy", json!({"max_reserved": 1})).await;
    for _ in 0..2 {
        server.push("full", json!({"payload": 1})).await;
        server.push("busy", json!({"payload": 1})).await;
    }
    let held = server.push("work", json!({"payload": 1, "semaphores": ["s"]})).await;
    let waits = server.push("work", json!({"payload": 2, "semaphores": ["s"]})).await;
    server.push("later", json!({"payload": 1, "delay_ms": 600_000})).await;
    let later = server.push("later", json!({"payload": 1, "delay_ms": 600_000})).await;
    for (queue, count) in [("work", 1), ("work", 0), ("busy", 1)] {
        assert_eq!(server.reserve(queue, json!({"lease_ms": 600_000})).await.len(), count);
    }
    assert!(server.terminate().await.success());
    execute(
        place,
        &format!(
            "DELETE FROM jobs WHERE id IN ('{held}', '{later}') OR queue = 'full' OR state = 'reserved';
             UPDATE counters SET dead = 7 WHERE queue = 'busy'"
        ),
    );
    let server = Server::start(&place.url).await;
    until("the counts are exact", || async {
        let counts = server.get("/stats").await.1["counts"].clone();
        let states = ["ready", "scheduled", "reserved", "blocked", "done", "dead"];
        states.map(|state| counts[state].as_u64().unwrap()) == [2, 1, 0, 0, 0, 0]
    })
    .await;
    server.push("full", json!({"payload": 1})).await;
    assert_eq!(server.reserve("busy", json!({})).await.len(), 1);
    assert_eq!(server.reserve("work", json!({"wait_ms": 30_000})).await[0]["id"], json!(waits));
    assert_eq!(server.get("/v1/semaphores/s").await.1["held"], 1);
}

/// Pages of the file that are damaged: who meets one is told so, and what to do; the rest goes on.
pub async fn a_damaged_page_is_told(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let text = "x".repeat(2000);
    let jobs: Vec<Value> = (0..500).map(|_| json!({ "payload": text })).collect();
    assert_eq!(server.post("/v1/queues/work/jobs/batch", json!({ "jobs": jobs })).await.0, 200);
    assert!(server.terminate().await.success());
    let path = place.url.trim_start_matches("sqlite:");
    let mut bytes = std::fs::read(path).unwrap();
    let half = bytes.len() / 2 / 4096 * 4096;
    bytes[half..].fill(0xff);
    std::fs::write(path, bytes).unwrap();
    let server = Server::start(&place.url).await;
    let (status, problem) = server.get("/v1/queues/work/jobs?limit=1000").await;
    assert_eq!((status, &problem["code"]), (503, &json!("store-damaged")), "{problem}");
    assert_eq!(problem["retryable"], false);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("backup") && detail.contains("disk"), "{detail}");
    assert_eq!(server.get("/healthz").await.0, 200);
}

/// What another program adds to the documents that a commit and a claim write, in bytes that no driver reads.
pub async fn a_field_that_nobody_knows_keeps_no_job(place: &Place) {
    let server = Server::start(&place.url).await;
    put(&server, "/v1/queues/work", json!({"max_reserved": 5, "rate": {"limit": 100, "per_ms": 1000}})).await;
    let jobs =
        json!({"jobs": [{"queue": "work", "payload": 1}, {"queue": "work", "payload": 2}], "sealed": true});
    let (status, batch) = server.post("/v1/batches", jobs).await;
    assert_eq!(status, 201, "{batch}");
    let id = batch["id"].as_str().unwrap();
    let first = server.reserve("work", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await.remove(0);
    let database = database(place).await;
    for (collection, id) in [("batches", id), ("limits", "work")] {
        let all = database.collection::<Document>(collection);
        let found = all.find_one(doc! { "_id": id }).await.unwrap();
        let mut document = found.unwrap_or_else(|| panic!("no {collection}/{id}"));
        document.insert("note", "?BAD");
        replace(&database, collection, document).await;
    }
    assert_eq!(server.settle(&first, "commit", json!({})).await.0, 200);
    let second = server.reserve("work", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await.remove(0);
    assert_eq!(server.settle(&second, "commit", json!({})).await.0, 200);
    let (_, batch) = server.get(&format!("/v1/batches/{id}")).await;
    assert_eq!((&batch["done"], batch["finished_at"].is_string()), (&json!(2), true), "{batch}");
}

/// Spoils what is stored of the deliveries of a queue.
async fn spoil_deliveries(place: &Place, queue: &str) {
    if place.url.starts_with("sqlite:") {
        return execute(place, &format!("UPDATE deliveries SET recent = 'spoiled' WHERE queue = '{queue}'"));
    }
    let limits = database(place).await.collection::<Document>("limits");
    let spoiled = doc! { "$set": { "recent": "spoiled" } };
    let update = limits.update_one(doc! { "_id": queue }, spoiled).await.unwrap();
    assert_eq!(update.matched_count, 1);
}

/// Where it cannot be read what a queue has delivered lately, the window of its rate begins anew.
pub async fn spoiled_deliveries_do_not_stop_their_queue(place: &Place) {
    let server = Server::start(&place.url).await;
    put(&server, "/v1/queues/work", json!({"rate": {"limit": 1, "per_ms": 3_600_000}})).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(server.push("work", json!({"payload": n})).await);
    }
    let take = async |ms: u64| server.reserve("work", json!({"lease_ms": 600_000, "wait_ms": ms})).await;
    assert_eq!(take(60_000).await.len(), 1);
    assert!(take(0).await.is_empty(), "the rate is used up");
    spoil_deliveries(place, "work").await;
    let (status, shown) = server.get(&format!("/v1/jobs/{}", ids[1])).await;
    assert_eq!((status, &shown["state"]), (200, &json!("ready")), "{shown}");
    let taken = take(60_000).await;
    assert_eq!(taken.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(ids[1])]);
    assert!(take(0).await.is_empty(), "the rate counts again");
}

/// As it is left by a clock of the store that was ten years ahead.
pub async fn a_schedule_that_is_years_ahead_comes_in_time_once_it_is_set_again(place: &Place) {
    const AHEAD_MS: i64 = 315_360_000_000;
    let mut server = Server::start(&place.url).await;
    let first = |schedule: &Value| schedule["next_runs"][0].as_str().unwrap().to_owned();
    let rule = json!({"cron": "0 * * * *", "queue": "timed", "job": {"payload": 1}});
    let near = first(&put(&server, "/v1/schedules/s", rule.clone()).await);
    assert!(server.terminate().await.success());
    if place.url.starts_with("sqlite:") {
        execute(place, &format!("UPDATE schedules SET next_at = next_at + {AHEAD_MS}"));
    } else {
        let ahead = doc! { "$set": { "next_at": { "$add": ["$next_at", AHEAD_MS] } } };
        let schedules = database(place).await.collection::<Document>("schedules");
        assert_eq!(schedules.update_many(doc! {}, vec![ahead]).await.unwrap().modified_count, 1);
    }
    let server = Server::start(&place.url).await;
    let far = first(&server.get("/v1/schedules/s").await.1);
    assert!(far[..4].parse::<u16>().unwrap() >= near[..4].parse::<u16>().unwrap() + 9, "{far}");
    let again = first(&put(&server, "/v1/schedules/s", rule).await);
    assert!(again >= near && again < far, "{again}");
}
