//! Restores: interrupted, beside each other, into what is not empty, and with operations that go on.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};
use serde_json::{Value, json};
use tailback::store::fence::{Fence, behind};
use tailback::store::{Access as _, Imported, RestoreMark, Semaphores as _, Store as _, Transfer as _};

use super::support::{
    Folder, export, import, indexed, is_past, keyed, lines, moment, of_kind, refused, restore, run, tailback,
};
use crate::common::fail_point;
use crate::common::own_mongod::OwnMongod;
use crate::common::rare_indexes::make;
use crate::common::server::{Place, Server, command, until};
use crate::common::stores::open_mongo;

/// Fills a store with many jobs, and writes a backup of it.
async fn many(place: &Place, file: &Path) {
    let mut server = Server::start(&place.url).await;
    indexed(place).await;
    for batch in 0..4 {
        let job =
            |n: usize| json!({"payload": {"n": n, "text": "x".repeat(1500)}, "key": format!("{batch}/{n}")});
        let jobs: Vec<Value> = (0..1000).map(job).collect();
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    export(place, file).await;
}

/// Kills restores in the middle: no server starts on what is there then, and another run completes it.
pub async fn an_interrupted_restore_is_completed(from: &Place, to: &Place) {
    let folder = Folder::new();
    let (file, other) = (folder.file("all.jsonl"), folder.file("other.jsonl"));
    many(from, &file).await;
    export(from, &other).await;
    // Standard input that breaks off is like a kill, always in the same place.
    let all = std::fs::read(&file).unwrap();
    let half = folder.file("half");
    std::fs::write(&half, &all[..all.len() * 3 / 4]).unwrap();
    let mut broken = tailback(&["import", "--store", &to.url]);
    broken.stdin(std::fs::File::open(&half).unwrap());
    let told = refused(broken).await;
    assert!(told.contains("breaks off"), "{told}");
    // None of those before is alive, which the next one waits for.
    let faults = tempfile::tempdir().unwrap();
    std::fs::write(faults.path().join("restore.silent"), "3000").unwrap();
    let import = |store: &str, file: &Path| {
        let mut command = import(store, file);
        command.env("TAILBACK_FAULTS", faults.path());
        command
    };
    nothing_is_done_with_a_part(to).await;
    let told = refused(import(&to.url, &other)).await;
    assert!(told.contains("another backup"), "{told}");
    for delay_ms in [30, 100, 200, 400] {
        let mut child = import(&to.url, &file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (done, told) = run(import(&to.url, &file)).await;
    assert!(done || told.contains("not empty"), "{told}");
    let server = Server::start(&to.url).await;
    let counts = server.get("/v1/queues/plain/stats").await.1["counts"].clone();
    assert_eq!(counts["ready"], 4000, "the very first answer is right: {counts}");
}

/// Of two restores at once one is refused, or finds that the other one has ended. What is there is the backup.
pub async fn two_restores_at_once_are_kept_apart(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    many(from, &file).await;
    let both = tokio::join!(run(import(&to.url, &file)), run(import(&to.url, &file)));
    let both = [both.0, both.1];
    let told: Vec<&str> = both.iter().filter(|(done, _)| !done).map(|(_, told)| told.as_str()).collect();
    assert_eq!(told.len(), 1, "{both:?}");
    // Or it cannot see whether the store is empty, since the other one has built an index meanwhile.
    let refusals = ["is under way", "not empty", "cannot read this moment any more"];
    assert!(told.iter().all(|told| refusals.iter().any(|refusal| told.contains(refusal))), "{told:?}");
    let server = Server::start(&to.url).await;
    let counts = server.get("/v1/queues/plain/stats").await.1["counts"].clone();
    assert_eq!(counts["ready"], 4000, "{counts}");
}

/// A restore that stood still may have sent what arrives once another one has taken the store over, or has ended: that is not stored.
pub async fn what_a_restore_sent_before_it_was_taken_over_is_not_stored(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    for n in 0..3 {
        server.push("plain", json!({"payload": n})).await;
    }
    assert!(server.terminate().await.success());
    let jobs = open_mongo(&from.url).await.export(None, 10).await.unwrap();
    let store = open_mongo(&to.url).await;
    store.ping().await.unwrap();
    let mark = |beat| RestoreMark { origin: "b".to_owned(), beat };
    let (one, other) = (mark(1), mark(2));
    assert!(store.mark_restoring(None, Some(&one)).await.unwrap());
    let fence = Fence::new(one.clone());
    let import = async |n: usize| {
        let imported = behind(fence.clone(), store.import(vec![jobs[n].clone()])).await;
        imported.into_iter().next().unwrap()
    };
    let semaphore = "s".parse().unwrap();
    let save = async || behind(fence.clone(), store.save_semaphore(&semaphore, 3)).await;
    let secret = async |n: u8| behind(fence.clone(), store.token_secret([n; 32])).await;
    assert_eq!((import(0).await.unwrap(), import(0).await.unwrap()), (Imported::New, Imported::Same));
    assert!(save().await.is_ok());
    assert!(store.mark_restoring(Some(&one), Some(&other)).await.unwrap(), "it is taken over");
    assert!(import(1).await.is_err() && save().await.is_err() && secret(1).await.is_err());
    assert!(store.mark_restoring(Some(&other), None).await.unwrap(), "the other one ends");
    assert!(import(0).await.is_err() && import(2).await.is_err() && secret(2).await.is_err());
    assert_eq!(store.token_secret([3; 32]).await.unwrap(), [3; 32], "there is no other secret");
    let there = store.export(None, 10).await.unwrap();
    let there: Vec<_> = there.iter().map(|job| &job.meta.id).collect();
    assert_eq!(there, [&jobs[0].meta.id], "no other job is there");
}

/// The comparison at the end of a restore may take longer than MongoDB keeps the past, and an index may be built beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_comparison_that_takes_long_is_completed() {
    const HELD: Duration = Duration::from_secs(6);
    let (source, folder) = (Place::sqlite().await, Folder::new());
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&source.url).await;
    for _ in 0..2 {
        let jobs: Vec<Value> = (0..1000).map(|n| json!({"payload": n})).collect();
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    export(&source, &file).await;
    let mongod = OwnMongod::with_parameters(&["enableTestCommands=1"]).await;
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.default_database().unwrap();
    // Nothing before the comparison reads more jobs than one reply has.
    let held = fail_point::hold(&client, "getMore", "tailback.jobs", HELD).await;
    let importing = tokio::spawn(run(import(&mongod.url(), &file)));
    until("the comparison is held", || async { held.has_come().await || importing.is_finished() }).await;
    let begun = moment(&database).await;
    let none = doc! { "setParameter": 1, "minSnapshotHistoryWindowInSeconds": 0 };
    client.database("admin").run_command(none).await.unwrap();
    let other = client.database("other").collection::<Document>("other");
    until("the moment has passed out of the history, or it is over", || async {
        other.insert_one(doc! {}).await.unwrap();
        is_past(&database, begun).await || importing.is_finished()
    })
    .await;
    make(&database, &["group"]).await;
    let (done, told) = importing.await.unwrap();
    assert!(done && told.contains("verified"), "{told}");
    assert!(held.has_come().await, "the comparison was not held");
}

/// A store whose restore has not ended is neither served, exported, copied nor given keys.
async fn nothing_is_done_with_a_part(part: &Place) {
    let mut server = command(&part.url, &[]);
    server.stdin(Stdio::null());
    let empty = Place::sqlite().await;
    let (part, empty) = (part.url.as_str(), empty.url.as_str());
    for command in [
        server,
        tailback(&["export", "--store", part]),
        tailback(&["migrate", "--from", part, "--to", empty]),
        tailback(&["migrate", "--from", empty, "--to", part]),
        tailback(&["keys", "create", "--store", part, "--name", "a", "--scope", "admin"]),
    ] {
        let words = format!("{command:?}");
        let told = refused(command).await;
        assert!(told.contains("being restored"), "{words}: {told}");
    }
}

/// A backup has operations and what calls were answered: what was begun before it is not begun again, and what was done is remembered.
pub async fn an_operation_is_not_begun_again(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&from.url).await;
    server.push("from", json!({"payload": 1})).await;
    let body = json!({"filter": {"queue": "from"}, "action": "move", "to": "to"});
    let (status, first) = keyed(&server, "/v1/operations", body.clone()).await;
    assert_eq!(status, 202, "{first}");
    let id = |operation: &str| serde_json::from_str::<Value>(operation).unwrap()["id"].clone();
    let path = format!("/v1/operations/{}", id(&first).as_str().unwrap());
    until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    let (operation, audit) = (server.get(&path).await, server.get("/v1/audit").await);
    server.push("from", json!({"payload": 2})).await;
    assert!(server.terminate().await.success());
    export(from, &file).await;
    let kept = ["operation", "audit"].map(|kind| of_kind(&lines(&file), kind).len());
    assert_eq!(kept, [1, 2], "the audit has its begin and its end");
    restore(to, &file).await;
    let mut server = Server::start(&to.url).await;
    assert_eq!((server.get(&path).await, server.get("/v1/audit").await), (operation, audit));
    let (status, again) = keyed(&server, "/v1/operations", body).await;
    assert_eq!((status, id(&again)), (202, id(&first)), "{again}");
    assert_eq!(server.get("/v1/queues/from/stats").await.1["counts"]["ready"], 1);
    assert!(server.terminate().await.success());
}

/// A backup that is taken in the middle of an operation: after the restore it goes on, and does nothing twice.
pub async fn an_operation_goes_on_after_a_restore(from: &Place, to: &Place) {
    let (folder, faults) = (Folder::new(), tempfile::tempdir().unwrap());
    let file = folder.file("all.jsonl");
    let server = Server::start_with(&from.url, &[("TAILBACK_FAULTS", faults.path().to_str().unwrap())]).await;
    let jobs: Vec<Value> = (0..1000).map(|n| json!({"payload": n})).collect();
    assert_eq!(server.post("/v1/queues/from/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    let body = json!({"filter": {"queue": "from"}, "action": "move", "to": "to"});
    let (status, operation) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{operation}");
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    let moved = async || server.get(&path).await.1["affected"].as_u64().unwrap();
    // It stands still behind a step that was not its first.
    until("some are moved", || async { moved().await > 0 }).await;
    std::fs::write(faults.path().join("operation.stepped"), "pause").unwrap();
    let met = faults.path().join("operation.stepped.met");
    until("it stands still, or is over", || async { met.exists() || moved().await == 1000 }).await;
    export(from, &file).await;
    drop(server);
    let shown = of_kind(&lines(&file), "operation").remove(0);
    let there = of_kind(&lines(&file), "job");
    let done = there.iter().filter(|job| job["queue"] == "to").count() as u64;
    assert_eq!(shown["affected"].as_u64().unwrap(), done, "the picture is of one moment: {shown}");
    restore(to, &file).await;
    let mut server = Server::start(&to.url).await;
    until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    let (_, over) = server.get(&path).await;
    assert_eq!(
        (&over["state"], &over["affected"], &over["skipped"]),
        (&json!("done"), &json!(1000), &json!(0))
    );
    let (_, all) = server.get("/v1/queues/to/jobs?limit=1000").await;
    let once = |job: &&Value| job["trail"].as_array().unwrap().len() == 1;
    assert_eq!(all["jobs"].as_array().unwrap().iter().filter(once).count(), 1000);
    assert!(server.terminate().await.success());
}

pub async fn a_store_that_is_not_empty_is_refused(place: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&place.url).await;
    let id = server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    export(place, &file).await;
    let told = refused(import(&place.url, &file)).await;
    assert!(told.contains("not empty"), "{told}");
    let server = Server::start(&place.url).await;
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 200);
}

async fn made(place: &Place) -> Collection<Document> {
    let client = Client::with_uri_str(&place.url).await.unwrap();
    client.default_database().unwrap().collection("migrations")
}

/// Returns how many migrations a store has.
async fn migrations(place: &Place) -> u64 {
    let Some(path) = place.url.strip_prefix("sqlite:") else {
        return made(place).await.count_documents(doc! {}).await.unwrap();
    };
    let db = rusqlite::Connection::open(path).unwrap();
    u64::from(db.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0)).unwrap())
}

/// A store of an older version: the version that wrote it must still open it.
pub async fn an_older_store_is_left_as_it_is(place: &Place) {
    let (source, folder) = (Place::sqlite().await, Folder::new());
    let file = folder.file("all.jsonl");
    assert!(Server::start(&source.url).await.terminate().await.success());
    export(&source, &file).await;
    if let Some(path) = place.url.strip_prefix("sqlite:") {
        let db = rusqlite::Connection::open(path).unwrap();
        db.execute_batch(include_str!("../../migrations/sqlite/0001_jobs.sql")).unwrap();
        db.execute_batch("PRAGMA application_id = 1415670124; PRAGMA user_version = 1").unwrap();
    } else {
        assert!(Server::start(&place.url).await.terminate().await.success());
        let last = i64::try_from(migrations(place).await).unwrap();
        let deleted = made(place).await.delete_one(doc! { "_id": last }).await.unwrap();
        assert_eq!(deleted.deleted_count, 1);
    }
    let before = migrations(place).await;
    let told = refused(import(&place.url, &file)).await;
    assert!(told.contains("older version") && told.contains("Nothing was written"), "{told}");
    assert_eq!(migrations(place).await, before);
}
