//! Indexes that are built when they are first needed. MongoDB only: an index of SQLite costs nothing where it lists nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::Instant;

use common::open_transaction::FOR_AN_HOUR;
use common::own_mongod::OwnMongod;
use common::rare_indexes::{RARE, make};
use common::server::{PATIENCE, Place, Server, until};
use futures::TryStreamExt as _;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use mongodb::{Client, ClientSession, Database, IndexModel};
use reqwest::Method;
use serde_json::{Value, json};

/// The keys that MongoDB takes out of its indexes for a job that none of those lists.
const KEYS: i64 = 12;

async fn database(url: &str) -> Database {
    Client::with_uri_str(url).await.unwrap().default_database().unwrap()
}

/// Those of [`RARE`] that are there.
async fn there(database: &Database) -> Vec<String> {
    let mut names = database.collection::<Document>("jobs").list_index_names().await.unwrap();
    names.retain(|name| RARE.contains(&name.as_str()));
    names.sort();
    names
}

async fn until_there(database: &Database, wanted: &[&str]) {
    until(&format!("the indexes are {wanted:?}"), || async { there(database).await == wanted }).await;
}

/// Starts servers until one has done this: a start gives up what waits for too long behind others, and MongoDB may be busy. Returns the last
/// one, and how many there were.
async fn start_until(place: &str, what: &str, is_so: impl AsyncFn() -> bool) -> (Server, u64) {
    let (end, mut starts) = (Instant::now() + PATIENCE, 1);
    loop {
        let server = Server::start(place).await;
        if is_so().await {
            return (server, starts);
        }
        assert!(Instant::now() < end, "{starts} starts, and still {what}");
        starts += 1;
    }
}

/// A start that has dropped all of these indexes but those.
async fn start_leaving(place: &Place, database: &Database, left: &[&str]) -> Server {
    let is_so = async || there(database).await == left;
    start_until(&place.url, &format!("there is not only {left:?}"), is_so).await.0
}

/// A job with this field, as another program writes it.
async fn insert(database: &Database, id: &str, field: &str, value: impl Into<mongodb::bson::Bson>) {
    let now = DateTime::now();
    let mut job = doc! {
        "_id": id, "v": 1, "queue": "mail", "state": "ready", "priority": 0, "run_at": now, "attempts": 0_i64, "created_at": now,
        "rev": 0_i64, "payload": 1,
    };
    job.insert(field, value);
    if field == "group" {
        job.insert("turn", format!("mail/{id}/0000000000000001"));
    }
    database.collection::<Document>("jobs").insert_one(job).await.unwrap();
}

/// The ids in a list of the jobs.
async fn listed(server: &Server, query: &str) -> Vec<String> {
    let (status, page) = server.get(&format!("/v1/queues/mail/jobs?{query}")).await;
    assert_eq!(status, 200, "{page}");
    page["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

async fn a_job_that_no_list_has_costs_no_more_than_it_must(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(&place.url).await;
    assert!(there(&database).await.is_empty());
    server.push("mail", json!({"payload": 1})).await;
    let job = server.reserve("mail", json!({"lease_ms": 600_000})).await.remove(0);
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    database.run_command(doc! { "profile": 0 }).await.unwrap();
    let of_jobs = doc! { "ns": format!("{}.jobs", database.name()), "op": "remove" };
    let removed = database.collection::<Document>("system.profile").find_one(of_jobs).await.unwrap().unwrap();
    let keys = removed.get_i32("keysDeleted").map(i64::from).or_else(|_| removed.get_i64("keysDeleted"));
    assert_eq!(keys.unwrap(), KEYS, "{removed}");
    assert!(there(&database).await.is_empty());
}

async fn the_first_job_brings_its_index(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(&place.url).await;
    let keyed = server.push("mail", json!({"payload": 1, "key": "k"})).await;
    until_there(&database, &["key"]).await;
    assert_eq!(listed(&server, "key=k").await, [keyed]);
    let grouped = server.push("mail", json!({"payload": 1, "group": "g"})).await;
    until_there(&database, &["group", "key"]).await;
    assert_eq!(listed(&server, "group=g").await, [grouped]);

    let put = server.send(Method::PUT, "/v1/queues/dying", Some(json!({"dead_letter": "graves"})));
    assert_eq!(put.await.0, 200);
    server.push("dying", json!({"payload": 1, "max_attempts": 1})).await;
    let job = server.reserve("dying", json!({"lease_ms": 600_000})).await.remove(0);
    assert_eq!(server.settle(&job, "rollback", json!({})).await.0, 200);
    until_there(&database, &["dead_lettered", "group", "key"]).await;

    let batch = json!({"jobs": [{"queue": "mail", "payload": 1}], "sealed": true});
    assert_eq!(server.post("/v1/batches", batch).await.0, 201);
    until_there(&database, &RARE).await;
}

/// A child of a commit, the callback of a batch.
async fn what_is_stored_within_a_transaction_brings_its_index(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(&place.url).await;
    server.push("mail", json!({"payload": 1})).await;
    let job = server.reserve("mail", json!({"lease_ms": 600_000})).await.remove(0);
    let push = json!({"push": [{"queue": "mail", "payload": 2, "group": "g"}]});
    assert_eq!(server.settle(&job, "commit", push).await.0, 200);
    until_there(&database, &["group"]).await;
}

async fn what_another_program_wrote_is_listed_too(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(&place.url).await;
    insert(&database, "A", "key", "k").await;
    assert_eq!(listed(&server, "key=k").await, ["A"]);
    until_there(&database, &["key"]).await;
    let (status, redriven) = server.post("/v1/queues/mail/redrive", json!({})).await;
    assert_eq!((status, &redriven["affected"]), (200, &json!(0)), "{redriven}");
    until_there(&database, &["dead_lettered", "key"]).await;
}

async fn a_start_drops_what_no_job_needs(place: &Place) {
    drop(Server::start(&place.url).await);
    let database = database(&place.url).await;
    make(&database, &RARE).await;
    insert(&database, "A", "group", "g").await;
    let server = start_leaving(place, &database, &["group"]).await;
    // What was needed once is not dropped again, whether or not a job is in it.
    server.push("mail", json!({"payload": 1, "key": "k"})).await;
    until_there(&database, &["group", "key"]).await;
    drop(server);
    database.collection::<Document>("jobs").delete_many(doc! {}).await.unwrap();
    let _server = Server::start(&place.url).await;
    assert_eq!(there(&database).await, ["group", "key"]);
}

/// All of its jobs may have ended just now.
async fn a_start_keeps_what_is_in_use_without_a_job(place: &Place) {
    drop(Server::start(&place.url).await);
    let database = database(&place.url).await;
    make(&database, &RARE).await;
    for collection in ["keys", "groups"] {
        database.collection::<Document>(collection).insert_one(doc! { "_id": "mail/x" }).await.unwrap();
    }
    start_leaving(place, &database, &["group", "key"]).await;
}

async fn a_start_builds_what_is_needed_and_gone(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let mut server = Server::start_with(&place.url, &faults).await;
    let database = database(&place.url).await;
    std::fs::write(points.path().join("indexes.recorded"), "kill").unwrap();
    let push = json!({"payload": 1, "key": "k"});
    let _ = server.try_send(Method::POST, "/v1/queues/mail/jobs", Some(push)).await; // its server may have died first
    until("it is killed", || async { points.path().join("indexes.recorded.met").exists() }).await;
    server.kill();
    assert!(there(&database).await.is_empty());
    let _server = Server::start(&place.url).await;
    until_there(&database, &["key"]).await;
}

/// Whether the index is there and is not being built any more.
async fn is_built(database: &Database, name: &str) -> bool {
    let built = doc! { "name": name, "building": { "$ne": true } };
    let indexes = database.collection::<Document>("jobs");
    let mut found = indexes.aggregate([doc! { "$indexStats": {} }, doc! { "$match": built }]).await.unwrap();
    found.advance().await.unwrap()
}

async fn a_list_is_right_without_its_index(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(&place.url).await;
    let keyed = server.push("mail", json!({"payload": 1, "key": "k"})).await;
    server.push("mail", json!({"payload": 1})).await;
    until("the index is built", || is_built(&database, "key")).await;
    assert_eq!(listed(&server, "key=k").await, std::slice::from_ref(&keyed));
    database.collection::<Document>("jobs").drop_index("key").await.unwrap();
    assert_eq!(listed(&server, "key=k").await, [keyed]);
    assert!(there(&database).await.is_empty(), "it is remembered");
}

/// One server finds an index unused, and another one needs it before it is dropped.
async fn an_index_that_is_dropped_as_it_is_needed_is_built(place: &Place) {
    let server = Server::start(&place.url).await;
    let database = database(&place.url).await;
    make(&database, &["key"]).await;
    let points = tempfile::tempdir().unwrap();
    std::fs::write(points.path().join("indexes.unused"), "pause").unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let dropping = Server::launch(&place.url, &faults);
    until("it is about to drop", || async { points.path().join("indexes.unused.met").exists() }).await;
    let keyed = server.push("mail", json!({"payload": 1, "key": "k"})).await;
    assert_eq!(listed(&server, "key=k").await, [keyed]); // the first server knows that the index is there
    std::fs::write(points.path().join("indexes.unused.go"), "").unwrap();
    dropping.until_ready().await;
    until_there(&database, &["key"]).await;
}

/// A list waits for its index for a moment, and says then what it is about. A push does not wait.
async fn a_list_whose_index_takes_long_says_so(_: &Place) {
    let mongod = OwnMongod::with_parameters(&["enableTestCommands=1"]).await;
    let url = format!("{}&serverSelectionTimeoutMS=20000", mongod.url());
    let server = Server::start_with(&url, &[("TAILBACK_MONGODB__DEADLINE_MS", "10000")]).await;
    let hang = |mode: &str| doc! { "configureFailPoint": "hangAfterStartingIndexBuild", "mode": mode };
    let admin = Client::with_uri_str(mongod.url()).await.unwrap().database("admin");
    server.push("other", json!({"payload": 1})).await; // in an empty collection nothing is built
    let foreign: Vec<Document> = (0..10_001).map(|n| doc! { "_id": format!("F{n:05}") }).collect();
    let jobs = Client::with_uri_str(&url).await.unwrap().default_database().unwrap();
    let jobs_there = jobs.collection::<Document>("jobs"); // fewer are read without the index
    jobs_there.insert_many(foreign).bypass_document_validation(true).await.unwrap();
    admin.run_command(hang("alwaysOn")).await.unwrap();
    let keyed = server.push("mail", json!({"payload": 1, "key": "k"})).await;
    let (status, problem) = server.get("/v1/queues/mail/jobs?key=k").await;
    assert_eq!((status, problem["retryable"].as_bool()), (503, Some(true)), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("index"), "{problem}");
    let (_, plain): (u16, Value) = server.get("/v1/queues/mail/jobs").await;
    assert_eq!(plain["jobs"].as_array().unwrap().len(), 1, "other lists do not wait: {plain}");
    admin.run_command(hang("off")).await.unwrap();
    let list = async || server.get("/v1/queues/mail/jobs?key=k").await;
    until("it is built", || async { list().await.0 == 200 }).await;
    assert_eq!(listed(&server, "key=k").await, [keyed]);
    let names: Vec<Document> = jobs
        .collection::<Document>("meta")
        .find(doc! { "_id": "indexes" })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert!(names[0].get_bool("key").unwrap());
}

/// By default it would wait for every member, also for one that is down.
async fn a_build_asks_for_a_majority_of_the_members(_: &Place) {
    let mongod = OwnMongod::with_parameters(&["enableTestCommands=1"]).await;
    let server = Server::start(&mongod.url()).await;
    server.push("mail", json!({"payload": 1})).await;
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.default_database().unwrap();
    let built = doc! { "command.createIndexes": "jobs" };
    // Only these commands: the profile has room for few.
    database.run_command(doc! { "profile": 1, "filter": built.clone() }).await.unwrap();
    server.push("mail", json!({"payload": 1, "key": "k"})).await;
    until_there(&database, &["key"]).await;
    let profile = database.collection::<Document>("system.profile");
    until("the build is in the profile", || async {
        profile.find_one(built.clone()).await.unwrap().is_some()
    })
    .await;
    let built = profile.find_one(built.clone()).await.unwrap().unwrap();
    let quorum = built.get_document("command").unwrap().get_str("commitQuorum");
    assert_eq!(quorum.unwrap(), "majority", "{built}");
}

/// A build waits for the transactions that hold jobs, also for one of a server that is no more, and all others wait behind it.
async fn a_build_does_not_hold_up_others_behind_a_transaction(_: &Place) {
    let mongod = OwnMongod::with_parameters(&["transactionLifetimeLimitSeconds=3600"]).await;
    let server = Server::start(&mongod.url()).await;
    server.push("mail", json!({"payload": 1})).await;
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.default_database().unwrap();
    let mut session = holding_a_job(&database).await;
    server.push("mail", json!({"payload": 1, "key": "k"})).await;
    until_it_waits(&database, "createIndexes").await;
    for _ in 0..3 {
        server.push("other", json!({"payload": 1})).await;
    }
    assert_eq!(there(&database).await, [""; 0]);
    session.abort_transaction().await.unwrap();
    until_there(&database, &["key"]).await;
}

/// A transaction that holds a job, for as long as the session is there.
async fn holding_a_job(database: &Database) -> ClientSession {
    let (end, jobs) = (Instant::now() + PATIENCE, database.collection::<Document>("jobs"));
    let mut session = database.client().start_session().await.unwrap();
    loop {
        session.start_transaction().await.unwrap();
        let touch = doc! { "$set": { "touched": 1 } };
        let touched = jobs.update_one(doc! {}, touch).session(&mut session).await;
        let Err(error) = touched else { return session };
        // It may not see yet how the collection has just been changed.
        let may_try_again = error.contains_label(TRANSIENT_TRANSACTION_ERROR) && Instant::now() < end;
        assert!(may_try_again, "{error}");
        session.abort_transaction().await.unwrap();
    }
}

async fn until_it_waits(database: &Database, command: &str) {
    // The command `currentOp` would cut off one that is as long as a validator.
    let pipeline = [doc! { "$currentOp": {} }, doc! { "$match": { format!("command.{command}"): "jobs" } }];
    let admin = database.client().database("admin");
    until(&format!("{command} waits"), || async {
        let mut found = admin.aggregate(pipeline.clone()).await.unwrap();
        found.advance().await.unwrap()
    })
    .await;
}

/// A server of a newer version that starts beside others.
async fn a_migration_does_not_hold_up_others_behind_a_transaction(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    let server = Server::start(&mongod.url()).await;
    server.push("mail", json!({"payload": 1})).await;
    let database = database(&mongod.url()).await;
    let newest = schema(&database).await;
    let jobs = database.collection::<Document>("jobs");
    for (number, command) in [(8, "createIndexes"), (17, "collMod")] {
        if command == "createIndexes" {
            jobs.drop_index("line").await.unwrap();
        }
        let migration = doc! { "_id": number };
        let removed = database.collection::<Document>("migrations").delete_one(migration).await.unwrap();
        assert_eq!(removed.deleted_count, 1);
        let mut session = holding_a_job(&database).await;
        let starting = Server::launch(&mongod.url(), &[]);
        until_it_waits(&database, command).await;
        for _ in 0..3 {
            server.push("other", json!({"payload": 1})).await;
        }
        assert_ne!(starting.get("/readyz").await.0, 200);
        session.abort_transaction().await.unwrap();
        starting.until_ready().await;
        let (options, mut indexes) = schema(&database).await;
        indexes.sort_by_key(|index| newest.1.iter().position(|known| known == index));
        assert_eq!((options, indexes), newest);
    }
}

/// The index of the payloads that are texts, beside one that people made.
async fn the_index_of_texts_does_not_hold_up_others_behind_a_transaction(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    let server = Server::start(&mongod.url()).await;
    server.push("mail", json!({"payload": {"a": 1}})).await;
    let database = database(&mongod.url()).await;
    let jobs = database.collection::<Document>("jobs");
    jobs.create_index(IndexModel::builder().keys(doc! { "payload.a": 1 }).build()).await.unwrap();
    let mut session = holding_a_job(&database).await;
    assert_eq!(listed(&server, "payload.a=1").await.len(), 1);
    until_it_waits(&database, "createIndexes").await;
    for _ in 0..3 {
        server.push("other", json!({"payload": 1})).await;
    }
    session.abort_transaction().await.unwrap();
    until("it is built", || async {
        jobs.list_index_names().await.unwrap().iter().any(|name| name == "payload_texts")
    })
    .await;
}

/// How `jobs` is made, and its indexes.
async fn schema(database: &Database) -> (Document, Vec<Document>) {
    let list = async |command: Document| {
        let found = database.run_cursor_command(command).await.unwrap();
        found.try_collect::<Vec<Document>>().await.unwrap()
    };
    let jobs = list(doc! { "listCollections": 1, "filter": { "name": "jobs" } }).await.remove(0);
    (jobs.get_document("options").unwrap().clone(), list(doc! { "listIndexes": "jobs" }).await)
}

/// Of servers that begin at once on an empty database, one may run a migration that another has done, and later ones with it.
async fn a_server_that_migrates_late_leaves_the_newest_schema(place: &Place) {
    let database = database(&place.url).await;
    let mut first = Server::start(&place.url).await;
    assert!(first.terminate().await.success());
    let newest = schema(&database).await;
    let late = doc! { "_id": { "$in": [1, 3, 7] } };
    let removed = database.collection::<Document>("migrations").delete_many(late).await.unwrap();
    assert_eq!(removed.deleted_count, 3);
    let server = Server::start(&place.url).await;
    assert_eq!(schema(&database).await, newest);
    server.push("mail", json!({"payload": 1})).await;
    // One of an older version was late, or killed before it could mend that: the next start does.
    drop(server);
    // Only these commands: the profile has room for few.
    let filter = doc! { "command.collMod": "jobs" };
    database.run_command(doc! { "profile": 1, "filter": filter.clone() }).await.unwrap();
    let older = doc! { "collMod": "jobs", "validator": { "queue": { "$type": "string" } } };
    database.run_command(older).await.unwrap();
    assert_ne!(schema(&database).await, newest);
    let is_newest = async || schema(&database).await == newest;
    let (server, starts) = start_until(&place.url, "the validator is an older one", &is_newest).await;
    server.push("mail", json!({"payload": 1})).await;
    drop(server);
    let profile = database.collection::<Document>("system.profile");
    let sets = async || profile.count_documents(filter.clone()).await.unwrap();
    let before = sets().await;
    assert!((2..=1 + starts).contains(&before), "{before}: by this test, and by each start");
    // Where it is the newest one it is not set again: that locks all jobs.
    let server = Server::start(&place.url).await;
    assert!(is_newest().await);
    server.push("mail", json!({"payload": 1})).await;
    assert_eq!(sets().await, before);
}

/// All other calls would wait behind it.
async fn a_start_does_not_wait_for_a_transaction_to_mend_a_validator(_: &Place) {
    let mongod = OwnMongod::with_parameters(&["transactionLifetimeLimitSeconds=3600"]).await;
    let mut first = Server::start(&mongod.url()).await;
    first.push("mail", json!({"payload": 1})).await;
    assert!(first.terminate().await.success());
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.default_database().unwrap();
    let newest = schema(&database).await;
    let older = doc! { "collMod": "jobs", "validator": { "queue": { "$type": "string" } } };
    database.run_command(older).await.unwrap();
    let older = schema(&database).await;
    let mut session = holding_a_job(&database).await;
    let mut server = Server::start(&mongod.url()).await;
    assert_eq!(schema(&database).await, older);
    server.push("mail", json!({"payload": 2})).await;
    session.abort_transaction().await.unwrap();
    assert!(server.terminate().await.success());
    let is_newest = async || schema(&database).await == newest;
    start_until(&mongod.url(), "the validator is an older one", is_newest).await;
}

on_one_store! { mongo:
    a_server_that_migrates_late_leaves_the_newest_schema
    a_start_does_not_wait_for_a_transaction_to_mend_a_validator
    a_job_that_no_list_has_costs_no_more_than_it_must
    the_first_job_brings_its_index
    what_is_stored_within_a_transaction_brings_its_index
    what_another_program_wrote_is_listed_too
    a_start_drops_what_no_job_needs
    a_start_keeps_what_is_in_use_without_a_job
    a_build_asks_for_a_majority_of_the_members
    a_build_does_not_hold_up_others_behind_a_transaction
    a_migration_does_not_hold_up_others_behind_a_transaction
    the_index_of_texts_does_not_hold_up_others_behind_a_transaction
    a_start_builds_what_is_needed_and_gone
    a_list_is_right_without_its_index
    an_index_that_is_dropped_as_it_is_needed_is_built
    a_list_whose_index_takes_long_says_so
}
