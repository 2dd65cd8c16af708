//! Jobs that another program spoiled, and that cannot be made dead either: an index of its own, the size of a document or an open transaction
//! is in the way. Those behind them are delivered all the same.

use mongodb::bson::{DateTime, Document, doc};
use mongodb::options::IndexOptions;
use mongodb::{Client, Collection, IndexModel};
use reqwest::Method;
use serde_json::{Value, json};

use super::spoiled::{database, put};
use super::spoiled_jobs::spoil;
use super::spoiled_lines::blocked;
use super::spoiled_operations::delete_all;
use crate::common::foreign::{foreign_ids, insert};
use crate::common::open_transaction::{FOR_AN_HOUR, OpenTransaction};
use crate::common::own_mongod::OwnMongod;
use crate::common::server::{Place, SHIPPED_DEADLINE, Server, until};

/// As many jobs as the server ends the leases of at once.
const READ_AT_ONCE: u32 = 500;

/// The jobs, with an index of another program that has each mark once in a state.
async fn marked(place: &Place) -> Collection<Document> {
    let jobs = database(place).await.collection::<Document>("jobs");
    let with_mark = doc! { "mark": { "$exists": true } };
    let options = IndexOptions::builder().unique(true).partial_filter_expression(with_mark).build();
    let index = IndexModel::builder().keys(doc! { "mark": 1, "state": 1 }).options(options).build();
    jobs.create_index(index).await.unwrap();
    jobs
}

async fn kill(server: &Server, queue: &str) -> String {
    let id = server.push(queue, json!({"payload": 1, "priority": 9})).await;
    let held = server.reserve(queue, json!({"lease_ms": 600_000})).await.remove(0);
    assert_eq!(held["id"], json!(id));
    assert_eq!(server.settle(&held, "rollback", json!({"dead": true})).await.0, 200);
    id
}

/// A dead job that has this mark: no other one with it can be made dead.
async fn take_mark(jobs: &Collection<Document>, dead: &Document, mark: &str) {
    let mut other = dead.clone();
    other.extend(doc! { "_id": format!("d-{mark}"), "mark": mark });
    jobs.insert_one(other).await.unwrap();
}

/// Spoils these jobs so that none of them can be made dead.
async fn stick(jobs: &Collection<Document>, dead: &Document, ids: &[String]) {
    for id in ids {
        take_mark(jobs, dead, id).await;
        let update = jobs.update_one(doc! { "_id": id }, doc! { "$set": { "backoff": 7, "mark": id } });
        assert_eq!(update.bypass_document_validation(true).await.unwrap().modified_count, 1);
    }
}

async fn taken(server: &Server, queue: &str) -> Vec<Value> {
    let jobs = server.reserve(queue, json!({"lease_ms": 600_000, "wait_ms": 60_000})).await;
    jobs.into_iter().map(|job| job["id"].clone()).collect()
}

/// However many stand at the head of a queue, and whatever their ids are, also such as no driver reads.
pub async fn jobs_that_cannot_be_made_dead_stop_no_other(place: &Place) {
    let server = Server::start(&place.url).await;
    let (jobs, database) = (marked(place).await, database(place).await);
    let dead = kill(&server, "elsewhere").await;
    let dead = jobs.find_one(doc! { "_id": dead }).await.unwrap().unwrap();
    for (n, setting) in ["max_attempts", "max_reserved"].into_iter().enumerate() {
        let queue = format!("work-{n}");
        put(&server, &format!("/v1/queues/{queue}"), json!({setting: 5})).await;
        let mut stuck = Vec::new();
        for _ in 0..5 {
            stuck.push(server.push(&queue, json!({"payload": 1, "priority": 5})).await);
        }
        stick(&jobs, &dead, &stuck).await;
        let mut foreign = 0;
        for (k, id) in foreign_ids(n).into_iter().enumerate() {
            let mark = format!("foreign-{n}-{k}");
            take_mark(&jobs, &dead, &mark).await;
            let mut job = dead.clone();
            let past = DateTime::from_millis(1_000_000_000_000);
            job.extend(doc! { "_id": id, "queue": &queue, "state": "ready", "priority": 7 });
            job.extend(doc! { "run_at": past, "mark": mark });
            foreign += u32::from(insert(&database, "jobs", &job).await);
        }
        assert!(foreign >= 3, "{foreign}");
        let good = [
            server.push(&queue, json!({"payload": 2})).await,
            server.push(&queue, json!({"payload": 3})).await,
        ];
        for id in &good {
            assert_eq!(taken(&server, &queue).await, [json!(id)], "{queue}");
        }
        let ready = doc! { "queue": &queue, "state": "ready" };
        assert_eq!(jobs.count_documents(ready).await.unwrap(), 5 + u64::from(foreign), "they stay");
        for id in &stuck {
            assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{id}"), None).await.0, 200);
        }
    }
}

/// Inserts a job that is as long as a document may be, and has no `rev`: MongoDB refuses to write one into it.
async fn insert_longest(jobs: &Collection<Document>, id: &str, state: &str) {
    let past = DateTime::from_millis(1_700_000_000_000);
    let mut long = doc! {
        "_id": id, "v": 1, "queue": "work", "state": state, "priority": 5, "run_at": past, "attempts": 0_i64,
        "created_at": past, "finished_at": past, "payload": "",
    };
    let room = (16 << 20) - long.to_vec().unwrap().len();
    long.insert("payload", "x".repeat(room));
    jobs.insert_one(long).bypass_document_validation(true).await.unwrap();
}

/// A document in which no `rev` has room, at the head of a queue or among dead jobs. It is removed nevertheless, by itself and beside others.
pub async fn a_job_that_is_too_long_to_be_made_dead_stops_no_other(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = database(place).await.collection::<Document>("jobs");
    let first = kill(&server, "work").await;
    insert_longest(&jobs, "M", "dead").await;
    insert_longest(&jobs, "L", "ready").await;
    let good = server.push("work", json!({"payload": 2})).await;
    assert_eq!(taken(&server, "work").await, [json!(good)]);
    let still = jobs.count_documents(doc! { "_id": "L", "state": "ready" });
    assert_eq!(still.await.unwrap(), 1, "it cannot be made dead");
    let (status, removed) = server.send(Method::DELETE, "/v1/jobs/L", None).await;
    assert_eq!(status, 200, "{removed}");
    assert_eq!(delete_all(&server, "work", "dead").await, [2, 2, 0]);
    let ids = ["L", "M", first.as_str()];
    let left = jobs.count_documents(doc! { "_id": { "$in": ids } });
    assert_eq!(left.await.unwrap(), 0);
}

/// They are blocked by a semaphore, and the first in its line, more than one call reads: the one behind them has its turn.
pub async fn a_blocked_job_that_cannot_be_made_dead_keeps_no_room(place: &Place) {
    // Whatever waits is impatient: room is kept for the first from those behind.
    let patience = [("TAILBACK_DEFAULTS__SEMAPHORE_PATIENCE_MS", "0")];
    let server = Server::start_with(&place.url, &patience).await;
    let (held, first, behind) = blocked(&server).await;
    let mut stuck = vec![first];
    for _ in 0..7 {
        let job = json!({"payload": 1, "priority": 2, "semaphores": ["s"]});
        let id = server.push("work", job).await;
        until("it is blocked", || async {
            assert!(server.reserve("work", json!({"count": 9})).await.is_empty());
            server.get(&format!("/v1/jobs/{id}")).await.1["state"] == "blocked"
        })
        .await;
        stuck.push(id);
    }
    let jobs = marked(place).await;
    let dead = kill(&server, "elsewhere").await;
    let dead = jobs.find_one(doc! { "_id": dead }).await.unwrap().unwrap();
    stick(&jobs, &dead, &stuck).await;
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    assert_eq!(taken(&server, "work").await, [json!(behind)]);
    let still = jobs.count_documents(doc! { "_id": { "$in": &stuck }, "state": "blocked" });
    assert_eq!(still.await.unwrap(), 8, "they cannot be made dead");
}

/// A transaction holds the batch of a spoiled job, as one of a killed server does: claims of its queue do not wait for it.
pub async fn a_batch_that_is_held_stops_no_claim(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    let place = Place::at(mongod.url());
    let database = database(&place).await;
    // Of another server, whose deadline no machine runs into.
    let mut before = Server::start(&place.url).await;
    let jobs = json!({"jobs": [{"queue": "work", "payload": 1, "priority": 5}], "sealed": true});
    let (status, batch) = before.post("/v1/batches", jobs).await;
    assert_eq!(status, 201, "{batch}");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (batch, spoiled) = (text(&batch["id"]), text(&batch["jobs"][0]["id"]));
    let good = before.push("work", json!({"payload": 2})).await;
    assert!(before.terminate().await.success());
    spoil(&place, &[&spoiled]).await;
    let open = OpenTransaction::on_batch(&database, &batch).await;
    let mut open = open.expect("nobody else changes it");

    let server = Server::start_with(&place.url, &[SHIPPED_DEADLINE]).await;
    let reserve = async || {
        let (status, taken) = server.post("/v1/queues/work/reserve", json!({"lease_ms": 600_000})).await;
        (status == 200).then(|| taken["jobs"][0]["id"].clone())
    };
    // The transaction lives for much longer than is waited for this one.
    until("the one behind is delivered", || async { reserve().await == Some(json!(good)) }).await;
    assert!(open.is_open().await, "the transaction is over");
    open.abort().await;
    let jobs = database.collection::<Document>("jobs");
    until("it is made dead", || async {
        reserve().await;
        jobs.count_documents(doc! { "_id": &spoiled, "state": "dead" }).await.unwrap() == 1
    })
    .await;
    until("it is counted", || async {
        let (status, shown) = server.get(&format!("/v1/batches/{batch}")).await;
        status == 200 && shown["dead"] == 1 && shown["finished_at"].is_string()
    })
    .await;
}

/// Another program mends a job that a worker holds while a client removes it, which has read it before: it is not what was read any more.
pub async fn a_job_that_is_mended_meanwhile_is_not_removed(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    let server = Server::start(&mongod.url()).await;
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let jobs = client.default_database().unwrap().collection::<Document>("jobs");
    let id = server.push("work", json!({"payload": 1})).await;
    let held = server.reserve("work", json!({"lease_ms": 600_000})).await.remove(0);
    let whole = jobs.find_one(doc! { "_id": &id }).await.unwrap().unwrap();
    let spoiling = doc! { "$set": { "backoff": 7 }, "$unset": { "rev": "" } };
    let update = jobs.update_one(doc! { "_id": &id }, spoiling);
    assert_eq!(update.bypass_document_validation(true).await.unwrap().modified_count, 1);
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    jobs.replace_one(doc! { "_id": &id }, &whole).session(&mut session).await.unwrap();

    let aborted = async || {
        let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
        status.get_document("transactions").unwrap().get_i64("totalAborted").unwrap()
    };
    let (path, before) = (format!("/v1/jobs/{id}"), aborted().await);
    let mending = async {
        until("the removal conflicts with it", || async { aborted().await > before }).await;
        session.commit_transaction().await.unwrap();
    };
    let ((status, answer), ()) = tokio::join!(server.send(Method::DELETE, &path, None), mending);
    assert_eq!((status, &answer["cancel_requested"]), (202, &json!(true)), "{answer}");
    assert_eq!(server.get(&path).await.1["state"], "reserved");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
}

/// Leases run out behind as many spoiled jobs as a server that starts reads at once, whose deadlines are before all others and which stay.
pub async fn leases_run_out_behind_jobs_that_cannot_be_made_dead(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let jobs = marked(place).await;
    let dead = kill(&server, "elsewhere").await;
    let dead = jobs.find_one(doc! { "_id": dead }).await.unwrap().unwrap();
    let past = DateTime::from_millis(1_000_000_000_000);
    let mut many = Vec::new();
    for n in 0..READ_AT_ONCE {
        let mark = format!("m{n}");
        let with_mark = doc! { "mark": &mark, "backoff": 7 };
        for (id, state) in [(format!("d{n}"), "dead"), (format!("r{n}"), "reserved")] {
            let mut job = dead.clone();
            job.extend(with_mark.clone());
            job.extend(doc! { "_id": id, "queue": "stuck", "state": state, "reserved_until": past });
            many.push(job);
        }
    }
    jobs.insert_many(many).bypass_document_validation(true).await.unwrap();
    let id = server.push("work", json!({"payload": 1})).await;
    let held = server.reserve("work", json!({"lease_ms": 600_000})).await;
    assert_eq!(held[0]["id"], json!(id));
    assert!(server.terminate().await.success());
    let later = doc! { "$set": { "reserved_until": DateTime::from_millis(1_000_000_000_001) } };
    assert_eq!(jobs.update_one(doc! { "_id": &id }, later).await.unwrap().modified_count, 1);
    let server = Server::start(&place.url).await;
    assert_eq!(taken(&server, "work").await, [json!(id)]);
    let still = jobs.count_documents(doc! { "queue": "stuck", "state": "reserved" });
    assert_eq!(still.await.unwrap(), u64::from(READ_AT_ONCE), "they cannot be made dead");
}
