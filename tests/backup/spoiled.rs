//! What another program has spoiled in a store.

use mongodb::Client;
use mongodb::bson::{DateTime, Document, doc};
use serde_json::json;

use super::support::{Folder, Home, export, indexed, lines, of_kind, put, refused, restore, run, tailback};
use crate::common::foreign;
use crate::common::server::{Place, Server};

/// What another program has spoiled is named, and left out only where that was asked for. One of it is a job that another one stands in for.
async fn spoiled(place: &Place, names: &[&str]) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let command = || tailback(&["export", "--store", &place.url, "--out", file.to_str().unwrap()]);
    let told = refused(command()).await;
    for name in names {
        assert!(told.contains(name), "{name} in {told}");
    }
    assert!(folder.names().is_empty(), "no file is left");
    let mut rest = command();
    rest.arg("--skip-unreadable");
    let (done, told) = run(rest).await;
    let left_out = names.len() - 1;
    assert!(done && told.contains(&format!("left out, since it cannot be read: {left_out}")), "{told}");
    assert!(told.contains("dead in it, since only a part of it can be read: 1"), "{told}");
    let lines = lines(&file);
    let end = &of_kind(&lines, "end")[0];
    assert_eq!((&end["left_out"], &end["salvaged"]), (&json!(left_out), &json!(1)));
    assert_eq!(of_kind(&lines, "job").len(), 2);
    let target = Place::sqlite().await;
    restore(&target, &file).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_documents_are_named() {
    let home = Home::mongo().await;
    let place = &home.place;
    let mut server = Server::start(&place.url).await;
    server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let database = client.default_database().unwrap();
    for (collection, document) in [
        ("jobs", doc! { "_id": "odd", "queue": "plain", "state": "ready" }),
        ("jobs", doc! { "_id": 7, "queue": "plain", "state": "ready" }),
        ("queues", doc! { "_id": "loud", "settings": { "max_attempts": "many" }, "version": "v" }),
        ("semaphores", doc! { "_id": "wide", "capacity": "very" }),
        ("schedules", doc! { "_id": "never", "rule": 1 }),
        (
            "batch_results",
            doc! { "_id": "gone/A", "batch": "gone", "job": "A", "queue": "plain", "state": "done", "finished_at": DateTime::now() },
        ),
    ] {
        assert!(foreign::insert(&database, collection, &document).await, "{document}");
    }
    spoiled(place, &["odd", "the job 7", "loud", "wide", "never", "there is no batch gone"]).await;
    home.clear().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_rows_are_named() {
    let place = Place::sqlite().await;
    let mut server = Server::start(&place.url).await;
    for n in 0..2 {
        server.push("plain", json!({"payload": n})).await;
    }
    let id = server.push("zz", json!({"payload": 3})).await;
    put(&server, "/v1/queues/loud", json!({"max_attempts": 3})).await;
    assert!(server.terminate().await.success());
    let db = rusqlite::Connection::open(place.url.strip_prefix("sqlite:").unwrap()).unwrap();
    db.execute_batch("UPDATE settings SET settings = '{\"max_attempts\":\"many\"}'; DELETE FROM jobs WHERE queue = 'plain' AND rowid = 1")
        .unwrap();
    db.execute("UPDATE jobs SET headers = 'no JSON' WHERE id = ?1", [&id]).unwrap();
    drop(db);
    spoiled(&place, &[&id, "loud"]).await;
}

/// A job whose batch is gone ends without a result, and a batch that is left out takes its results with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_left_out_takes_its_results_with_it() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let path = place.url.strip_prefix("sqlite:").unwrap();
    let file = folder.file("all.jsonl");
    let export = |more: &'static [&'static str]| {
        let mut command = tailback(&["export", "--store", &place.url, "--out", file.to_str().unwrap()]);
        command.args(more);
        command
    };
    let mut server = Server::start(&place.url).await;
    let mut batches = Vec::new();
    for queue in ["a", "b"] {
        let job = json!({"queue": queue, "payload": 1});
        let (status, batch) = server.post("/v1/batches", json!({"sealed": true, "jobs": [job, job]})).await;
        assert_eq!(status, 201, "{batch}");
        batches.push(batch["id"].as_str().unwrap().to_owned());
    }
    let done = server.reserve("a", json!({})).await.remove(0);
    assert_eq!(server.settle(&done, "commit", json!({})).await.0, 200);
    assert!(server.terminate().await.success());
    let db = rusqlite::Connection::open(path).unwrap();
    assert_eq!(
        db.execute("UPDATE batches SET on_finished = 'no JSON' WHERE id = ?1", [&batches[0]]).unwrap(),
        1
    );
    assert_eq!(db.execute("DELETE FROM batches WHERE id = ?1", [&batches[1]]).unwrap(), 1);
    drop(db);
    let mut server = Server::start(&place.url).await;
    for job in server.reserve("b", json!({"count": 2})).await {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    let told = refused(export(&[])).await;
    assert!(told.contains(&batches[0]) && !told.contains(&batches[1]), "{told}");
    let (done, told) = run(export(&["--skip-unreadable"])).await;
    assert!(done && told.contains("left out, since it cannot be read: 2"), "{told}");
    assert!(of_kind(&lines(&file), "batch_result").is_empty());
    restore(&Place::sqlite().await, &file).await;

    // What servers before this one have left behind.
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute("UPDATE batch_results SET batch = ?1", [&batches[1]]).unwrap();
    drop(db);
    let told = refused(export(&[])).await;
    assert!(told.contains("there is no batch"), "{told}");
    let (done, told) = run(export(&["--skip-unreadable"])).await;
    assert!(done, "{told}");
    restore(&Place::sqlite().await, &file).await;
}

/// Spoils a field of these jobs that nothing looks for them by.
async fn spoil(place: &Place, ids: &[&str]) {
    if let Some(path) = place.url.strip_prefix("sqlite:") {
        let db = rusqlite::Connection::open(path).unwrap();
        for id in ids {
            assert_eq!(db.execute("UPDATE jobs SET headers = 'no JSON' WHERE id = ?1", [id]).unwrap(), 1);
        }
        return;
    }
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let jobs = client.default_database().unwrap().collection::<Document>("jobs");
    let update = jobs.update_many(doc! { "_id": { "$in": ids } }, doc! { "$set": { "backoff": 7 } });
    let spoiled = update.bypass_document_validation(true).await.unwrap().matched_count;
    assert_eq!(spoiled, ids.len() as u64);
}

/// Jobs that cannot be read are dead after a restore: the line of their group goes on once an operator has decided, and their batch ends.
pub async fn a_job_that_cannot_be_read_is_restored_dead(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&from.url).await;
    indexed(from).await;
    let mut line = Vec::new();
    for n in 0..3 {
        line.push(server.push("line", json!({"payload": n, "group": "g"})).await);
    }
    let jobs = json!([{"queue": "part", "payload": 1}]);
    let batch = json!({"sealed": true, "jobs": jobs, "on_finished": {"queue": "after", "payload": "over"}});
    let (status, batch) = server.post("/v1/batches", batch).await;
    assert_eq!(status, 201, "{batch}");
    let (_, part) = server.get("/v1/queues/part/jobs").await;
    let part = part["jobs"][0]["id"].as_str().unwrap();
    assert!(server.terminate().await.success());
    spoil(from, &[&line[0], &line[1], part]).await;
    let (done, told) = run(tailback(&[
        "export",
        "--store",
        &from.url,
        "--out",
        file.to_str().unwrap(),
        "--skip-unreadable",
    ]))
    .await;
    assert!(done && told.contains("only a part of it can be read: 3"), "{told}");
    restore(to, &file).await;

    let mut server = Server::start(&to.url).await;
    let (_, first) = server.get(&format!("/v1/jobs/{}", line[0])).await;
    assert_eq!((&first["state"], &first["payload"]), (&json!("dead"), &json!(0)), "{first}");
    assert!(first["errors"][0]["message"].as_str().unwrap().contains("could not be read"), "{first}");
    assert!(server.reserve("line", json!({})).await.is_empty(), "a dead job holds its group");
    let (status, told) = server.post(&format!("/v1/jobs/{}/redrive", line[0]), json!({})).await;
    assert_eq!(status, 200, "{told}");
    for id in [&line[0], &line[2]] {
        let job = server.reserve("line", json!({})).await.remove(0);
        assert_eq!(job["id"].as_str(), Some(id.as_str()), "the second one has no place any more");
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    let (_, batch) = server.get(&format!("/v1/batches/{}", batch["id"].as_str().unwrap())).await;
    assert_eq!((&batch["pending"], &batch["dead"]), (&json!(0), &json!(1)), "{batch}");
    assert_eq!(server.reserve("after", json!({})).await[0]["payload"], "over");
    assert!(server.terminate().await.success());
}

/// Texts that another program wrote need not be as this one writes them. One that no request could have is named.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_was_edited_by_hand_comes_back() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&place.url).await;
    let id = server.push("plain", json!({"payload": 1})).await;
    let jobs = json!([{"queue": "part", "payload": 1}]);
    assert_eq!(server.post("/v1/batches", json!({"sealed": true, "jobs": jobs})).await.0, 201);
    let part = server.reserve("part", json!({})).await.remove(0);
    assert_eq!(server.settle(&part, "commit", json!({"result": 1})).await.0, 200);
    assert!(server.terminate().await.success());
    let db = rusqlite::Connection::open(place.url.strip_prefix("sqlite:").unwrap()).unwrap();
    let set = "UPDATE jobs SET payload = '{\"to\":\n\"b@x\"}', progress = '[ 1.0 ]' WHERE queue = 'plain';
               UPDATE batch_results SET result = '{ }'";
    db.execute_batch(set).unwrap();
    export(&place, &file).await;
    let target = Place::sqlite().await;
    restore(&target, &file).await;
    let copied = Place::sqlite().await;
    // The second one finds what the first one has stored.
    for _ in 0..2 {
        let (done, told) = run(tailback(&["migrate", "--from", &place.url, "--to", &copied.url])).await;
        assert!(done && told.contains("verified"), "{told}");
    }
    for store in [target, copied] {
        let server = Server::start(&store.url).await;
        assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.1["payload"], json!({"to": "b@x"}));
    }
    db.execute("UPDATE jobs SET payload = '{\"a\":1,\"a\":2}' WHERE id = ?1", [&id]).unwrap();
    let told = refused(tailback(&["export", "--store", &place.url, "--out", file.to_str().unwrap()])).await;
    assert!(told.contains(&id) && told.contains("twice"), "{told}");
}

/// What can be read, and is nothing that a restore would take, spoils no backup.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restore_would_refuse_is_named() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let file = folder.file("all.jsonl");
    let key = ["keys", "create", "--store", &place.url, "--name", "a", "--scope", "read"];
    let (done, told) = run(tailback(&key)).await;
    assert!(done, "{told}");
    let db = rusqlite::Connection::open(place.url.strip_prefix("sqlite:").unwrap()).unwrap();
    assert_eq!(db.execute("UPDATE api_keys SET scopes = '[]'", []).unwrap(), 1);
    let export = || tailback(&["export", "--store", &place.url, "--out", file.to_str().unwrap()]);
    let told = refused(export()).await;
    assert!(told.contains("the api_key") && told.contains("scopes must be"), "{told}");
    let mut rest = export();
    rest.arg("--skip-unreadable");
    let (done, told) = run(rest).await;
    assert!(done && told.contains("left out, since it cannot be read: 1"), "{told}");
    restore(&Place::sqlite().await, &file).await;
}
