//! The counts that are maintained equal a real count, once it is quiet: after anything that clients do on several
//! servers, after servers and databases that were killed, and after what other programs did. MongoDB only: in
//! SQLite the transaction of every change counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::fleet::{kill_9, push_many, text};
use common::own_mongod::OwnMongod;
use common::server::{PATIENCE, Place, SHIPPED_DEADLINE, Server, metric, until, until_within};
use futures::TryStreamExt as _;
use mongodb::bson::{DateTime, Document, doc};
use mongodb::{Client, Collection, Database};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const QUEUES: [&str; 4] = ["a", "b", "c", "graves"];
const STATES: [&str; 6] = ["ready", "scheduled", "reserved", "blocked", "dead", "done"];

type Counts = BTreeMap<String, u64>;

async fn database(url: &str) -> Database {
    Client::with_uri_str(url).await.unwrap().default_database().unwrap()
}

/// What is there, counted.
async fn counted(jobs: &Collection<Document>, queue: &str) -> Option<Counts> {
    let later = doc! { "$and": [{ "$eq": ["$state", "ready"] }, { "$gt": ["$run_at", "$$NOW"] }] };
    let pipeline = [
        doc! { "$match": { "queue": queue } },
        doc! { "$group": { "_id": { "$cond": [later, "scheduled", "$state"] }, "n": { "$sum": 1 } } },
    ];
    let groups: Vec<Document> = jobs.aggregate(pipeline).await.ok()?.try_collect().await.ok()?;
    let mut counts: Counts = STATES.iter().map(|state| ((*state).to_owned(), 0)).collect();
    for group in groups {
        let state = group.get_str("_id").unwrap().to_owned();
        counts.insert(state, u64::try_from(group.get_i32("n").unwrap()).unwrap());
    }
    Some(counts)
}

async fn shown(server: &Server, queue: &str) -> Option<Counts> {
    let stats = server.try_send(Method::GET, &format!("/v1/queues/{queue}/stats"), None).await.ok()?;
    serde_json::from_value(stats.1["counts"].clone()).ok()
}

/// What is exact at every moment: for which of them it is time depends on the clock.
fn exact(counts: Option<Counts>) -> Counts {
    let mut counts = counts.unwrap();
    let scheduled = counts.remove("scheduled").unwrap();
    *counts.get_mut("ready").unwrap() += scheduled;
    counts
}

/// Waits until a server shows what is there. Nobody else is at work any more but reapers.
async fn agree(server: &Server, jobs: &Collection<Document>, queues: &[impl AsRef<str>]) {
    // Comparing takes a fiftieth of the time: where a count takes long because the machine is busy, so do the pauses.
    for queue in queues.iter().map(AsRef::as_ref) {
        until_within(2 * PATIENCE, &format!("the counts of {queue} are right"), || async {
            let (there, shown) = (counted(jobs, queue).await, shown(server, queue).await);
            there.is_some() && there == shown
        })
        .await;
    }
}

/// One client that does everything, by dice, in the queues with this ending.
async fn do_everything(server: Arc<Server>, ending: &str, seed: u64, times: usize, lease_ms: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    for n in 0..times {
        let queue = format!("{}{ending}", QUEUES[dice.random_range(0..3)]);
        let path = |call: &str| format!("/v1/queues/{queue}/{call}");
        let delay = json!(dice.random_range(0..2) * 3_600_000);
        match dice.random_range(0..12) {
            0..=3 => {
                let job = json!({"payload": n, "delay_ms": delay, "max_attempts": 1 + n % 2});
                server.post(&path("jobs/batch"), json!({"jobs": vec![job; dice.random_range(1..9)]})).await;
            }
            4 => drop(server.post(&path("jobs"), json!({"payload": 1, "key": format!("k{}", n % 5)})).await),
            5 => drop(server.post(&path("pop"), json!({"count": 2})).await),
            6 => drop(server.post(&path("purge"), json!({"state": STATES[[1, 4, 5][n % 3]]})).await),
            7 => drop(server.post(&path("redrive"), json!({"limit": 3})).await),
            8 => drop(server.post(&path("replay"), json!({"limit": 2})).await),
            _ => {
                for job in settle(&server, &queue, ending, &mut dice, lease_ms).await {
                    edit(&server, &job, &mut dice).await;
                }
            }
        }
    }
}

/// Reserves some jobs and does something with each of them, which it returns.
async fn settle(server: &Server, queue: &str, ending: &str, dice: &mut StdRng, lease_ms: u64) -> Vec<Value> {
    let ask = json!({"count": 4, "lease_ms": lease_ms});
    let (_, mut taken) = server.post(&format!("/v1/queues/{queue}/reserve"), ask).await;
    let Value::Array(jobs) = taken["jobs"].take() else { return Vec::new() };
    for job in &jobs {
        let delay = json!(dice.random_range(0..2) * 3_600_000);
        let to = format!("{}{ending}", QUEUES[dice.random_range(0..4)]);
        let (call, body) = [
            ("commit", json!({})),
            ("rollback", json!({"delay_ms": delay, "error": "x"})),
            ("rollback", json!({"error": "x"})),
            ("extend", json!({"lease_ms": lease_ms / 10})),
            ("move", json!({"queue": to, "delay_ms": delay})),
        ][dice.random_range(0..5)]
        .clone();
        server.settle(job, call, body).await;
    }
    jobs
}

/// Changes the job now and then, and may take it away, whatever has become of it.
async fn edit(server: &Server, job: &Value, dice: &mut StdRng) {
    if dice.random_range(0..6) > 0 {
        return;
    }
    let path = format!("/v1/jobs/{}", text(job, "id"));
    let change = json!({"priority": 3, "run_at": "2030-01-01T00:00:00Z"});
    server.send(Method::PATCH, &path, Some(change)).await;
    if dice.random_range(0..2) == 0 {
        server.send(Method::DELETE, &format!("{path}?force=true"), None).await;
    }
}

async fn configure(server: &Server, ending: &str) {
    let settings = json!({"retain_done_ms": 3_600_000, "dead_letter": format!("graves{ending}")});
    server.send(Method::PUT, &format!("/v1/queues/b{ending}"), Some(settings)).await;
    server.send(Method::PUT, &format!("/v1/queues/c{ending}"), Some(json!({"max_jobs": 60}))).await;
}

/// Eight clients that are never after the same jobs. Each does everything in queues of its own; in those that all of
/// them share they only push, reserve and settle. Returns the names of all queues.
///
/// Where a purge meets another deletion MongoDB tells how many jobs were found and not which, so that both may count
/// one, and mark its queue.
async fn work_of_eight(server: &Arc<Server>) -> Vec<String> {
    let clients = (0..8).map(|n| async move {
        let ending = format!("-{n}");
        configure(server, &ending).await;
        do_everything(server.clone(), &ending, 100 + n, 60, 3_600_000).await;
        let mut dice = StdRng::seed_from_u64(n);
        for n in 0..15 {
            let jobs = json!({"jobs": vec![json!({"payload": n}); 4]});
            server.post("/v1/queues/a-all/jobs/batch", jobs).await;
            settle(server, "a-all", "-all", &mut dice, 3_600_000).await;
        }
    });
    futures::future::join_all(clients).await;
    let endings = (0..8).map(|n| n.to_string()).chain(["all".to_owned()]);
    endings.flat_map(|ending| QUEUES.map(|queue| format!("{queue}-{ending}"))).collect()
}

/// The reconciler's status.
async fn reconciler(server: &Server) -> Value {
    let (_, stats) = server.get("/stats").await;
    let task = stats["tasks"].as_array().unwrap().iter().find(|task| task["name"] == "reconciler");
    task.unwrap().clone()
}

async fn until_everything_was_compared(database: &Database) {
    let counters = database.collection::<Document>("counters");
    let doubtful = doc! { "$expr": { "$ne": ["$changes", "$checked"] } };
    until_within(2 * PATIENCE, "everything was compared", || async {
        counters.count_documents(doubtful.clone()).await.unwrap() == 0
    })
    .await;
}

/// Which calls of the store that change jobs took longer than a second at least once.
async fn slow_calls(server: &Server) -> BTreeSet<&'static str> {
    let mut slow = BTreeSet::new();
    // Replays store what they copy by `push_all`; there may be none to copy.
    for call in ["push", "push_all", "claim", "apply"] {
        let all = metric(server, &format!("tailback_store_call_seconds_count{{call=\"{call}\"}}")).await;
        let quick = format!("tailback_store_call_seconds_bucket{{call=\"{call}\",le=\"1\"}}");
        let quick = metric(server, &quick).await;
        assert!(quick > 0.0 || call == "push_all", "the figures of {call} were not found");
        if quick < all {
            slow.insert(call);
        }
    }
    slow
}

/// The counters alone: the reconciler cannot work until the server that counted is gone, and a queue that is unsure
/// stays so.
///
/// A count may then be wrong for one reason only: the outcome of a write was not known to the server, which marks the
/// queue. That happens where a write, or the increments themselves, ran into the deadline of the store (here a
/// minute), or where the answer to a commit was lost, also to MongoDB's own limit for transactions (3 s in tests).
/// The client need not notice: what is repeated within the call is answered 200, and not counted. So a mark is
/// excused where a call was slow, and by nothing else.
async fn counts_need_no_correction_on_one_server(place: &Place) {
    let database = database(&place.url).await;
    let no_lease = doc! { "_id": { "$ne": "reconciler" } };
    database.create_collection("meta").validator(no_lease).await.unwrap();
    let mut server = Arc::new(Server::start(&place.url).await);
    let queues = work_of_eight(&server).await;
    let (task, slow) = (reconciler(&server).await, slow_calls(&server).await);
    assert_eq!(task["runs"], task["failures"], "the reconciler has worked: {task}");
    // A server that stops has sent everything that it counted.
    assert!(Arc::get_mut(&mut server).unwrap().terminate().await.success());
    let kept = database.collection::<Document>("counters");
    let jobs = database.collection("jobs");
    let mut unsure = 0;
    for queue in &queues {
        let counters = kept.find_one(doc! { "_id": queue }).await.unwrap().unwrap_or_default();
        if counters.get_bool("unsure").is_ok() {
            assert!(!slow.is_empty(), "no call was slow, and still it is not known what one did: {counters}");
            unsure += 1;
            continue;
        }
        for (state, there) in exact(counted(&jobs, queue).await) {
            let kept = counters.get_i64(&state).unwrap_or(0);
            assert_eq!(kept, there.cast_signed(), "{state} in {queue}: {counters}");
        }
    }
    // Where all is known and nobody is at work, a server that compares everything finds nothing to correct.
    database.run_command(doc! { "collMod": "meta", "validator": {} }).await.unwrap();
    let next = Server::start(&place.url).await;
    agree(&next, &jobs, &queues).await;
    until_everything_was_compared(&database).await;
    let task = reconciler(&next).await;
    assert!(unsure > 0 || task["done"] == 0, "{task}");
}

/// Nobody corrects the counters here: a job that two purges counted would stay missing.
async fn what_two_servers_purge_at_once_is_counted_once(place: &Place) {
    let database = database(&place.url).await;
    let no_lease = doc! { "_id": { "$ne": "reconciler" } };
    database.create_collection("meta").validator(no_lease).await.unwrap();
    let start = || Server::start(&place.url);
    let servers: [Server; 2] = tokio::join!(start(), start()).into();
    let jobs = database.collection("jobs");
    for round in 0..4 {
        push_many(&servers[0], "a", 1200, json!({ "delay_ms": 3_600_000 })).await;
        let purge = async |server: &Server| {
            let purged = server.post("/v1/queues/a/purge", json!({"state": "scheduled"})).await;
            purged.1["affected"].as_u64().unwrap()
        };
        let purged = tokio::join!(purge(&servers[0]), purge(&servers[1]));
        assert_eq!(purged.0 + purged.1, 1200, "{purged:?} in round {round}");
        push_many(&servers[1], "a", 7, json!({})).await;
        for server in &servers {
            agree(server, &jobs, &["a"]).await;
        }
        let purged = servers[0].post("/v1/queues/a/purge", json!({"state": "ready"})).await;
        assert_eq!(purged.1["affected"], 7);
    }
    let task = reconciler(&servers[0]).await;
    assert_eq!(task["runs"], task["failures"], "the reconciler has worked: {task}");
}

/// The reconciler beside the work: what is under way is not taken for an error.
///
/// Its corrections are certain only as long as every answer comes, and is counted, within its grace of a second
/// (`reconcile.rs`). A later one is corrected, and corrected back once it has come; and see above for writes whose
/// outcome stays unknown. So where a call took longer there may be corrections, and otherwise there is none.
async fn what_is_under_way_is_not_corrected(place: &Place) {
    let server = Arc::new(Server::start(&place.url).await);
    let queues = work_of_eight(&server).await;
    let database = database(&place.url).await;
    agree(&server, &database.collection("jobs"), &queues).await;
    until_everything_was_compared(&database).await;
    let (task, slow) = (reconciler(&server).await, slow_calls(&server).await);
    assert!(task["done"] == 0 || !slow.is_empty(), "{task}");
}

async fn counts_are_right_after_everything_on_two_servers(place: &Place) {
    let servers = [Arc::new(Server::start(&place.url).await), Arc::new(Server::start(&place.url).await)];
    configure(&servers[0], "").await;
    let mut clients = JoinSet::new();
    for n in 0..8 {
        clients.spawn(do_everything(servers[n % 2].clone(), "", n as u64, 60, 1000));
    }
    clients.join_all().await;
    let jobs = database(&place.url).await.collection("jobs");
    // What lapses later would do so between two looks.
    for queue in QUEUES {
        until(&format!("no lease of {queue} runs"), || async {
            counted(&jobs, queue).await.is_some_and(|counts| counts["reserved"] == 0)
        })
        .await;
    }
    for server in &servers {
        agree(server, &jobs, &QUEUES).await;
    }
    // A server that stops has sent everything that it counted.
    let [mut first, mut second] = servers.map(|server| Arc::into_inner(server).unwrap());
    first.push("a", json!({"payload": 1})).await;
    second.push("b", json!({"payload": 1})).await;
    let stopped = tokio::join!(first.terminate(), second.terminate());
    assert!(stopped.0.success() && stopped.1.success());
    let next = Server::start(&place.url).await;
    for queue in ["a", "b"] {
        assert_eq!(exact(shown(&next, queue).await), exact(counted(&jobs, queue).await), "{queue}");
    }
}

async fn a_killed_server_leaves_counters_that_others_mend(place: &Place) {
    let (doomed, other) = (Arc::new(Server::start(&place.url).await), Server::start(&place.url).await);
    push_many(&other, "a", 2000, json!({})).await;
    let mut clients = JoinSet::new();
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..6 {
        let (server, stop) = (doomed.clone(), stop.clone());
        clients.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let work = json!({"jobs": vec![json!({"payload": 1}); 5]});
                let _ = server.try_send(Method::POST, "/v1/queues/b/jobs/batch", Some(work)).await;
                let ask = json!({"count": 5, "lease_ms": 1000});
                let taken = server.try_send(Method::POST, "/v1/queues/a/reserve", Some(ask)).await;
                let Ok((200, taken)) = taken else { continue };
                for job in taken["jobs"].as_array().unwrap() {
                    let body = json!({"reservation": job["reservation"]});
                    let path = format!("/v1/jobs/{}/commit", text(job, "id"));
                    let _ = server.try_send(Method::POST, &path, Some(body)).await;
                }
            }
        });
    }
    let jobs = database(&place.url).await.collection("jobs");
    until("there is work under way", || async {
        counted(&jobs, "b").await.is_some_and(|counts| counts["ready"] > 500)
    })
    .await;
    kill_9(&doomed).await;
    stop.store(true, Ordering::Relaxed);
    clients.join_all().await;
    agree(&other, &jobs, &["a", "b"]).await;
}

async fn what_other_programs_do_is_counted(place: &Place) {
    let server = Server::start(&place.url).await;
    push_many(&server, "a", 100, json!({})).await;
    let jobs = database(&place.url).await.collection("jobs");
    agree(&server, &jobs, &["a"]).await;
    let document = |n: i32, queue: &str| {
        let now = DateTime::now();
        doc! {
            "_id": format!("FOREIGN{n}"), "v": 1, "queue": queue, "state": "ready", "priority": 0, "run_at": now,
            "attempts": 0, "created_at": now, "rev": 0, "payload": n,
        }
    };
    jobs.insert_many((0..30).map(|n| document(n, ["a", "never.named"][n as usize % 2]))).await.unwrap();
    agree(&server, &jobs, &["a", "never.named"]).await;
    until("so are the totals", || async {
        let (_, stats) = server.get("/stats").await;
        (&stats["queues"], &stats["counts"]["ready"]) == (&json!(2), &json!(130))
    })
    .await;
    jobs.delete_many(doc! { "queue": "never.named" }).await.unwrap();
    agree(&server, &jobs, &["a", "never.named"]).await;
    // Nobody tells of this one: neither does the number of documents change, nor anything that is counted.
    let some = doc! { "_id": { "$gte": "FOREIGN", "$lt": "FOREIGN2" } };
    jobs.update_many(some, doc! { "$set": { "state": "dead" } }).await.unwrap();
    agree(&server, &jobs, &["a"]).await;
}

async fn history_leaves_the_counts_when_it_is_forgotten(place: &Place) {
    let servers = [Server::start(&place.url).await, Server::start(&place.url).await];
    let settings = json!({"retain_done_ms": 1});
    servers[0].send(Method::PUT, "/v1/queues/a", Some(settings)).await;
    push_many(&servers[0], "a", 300, json!({})).await;
    let taken = servers[0].reserve("a", json!({"count": 250})).await;
    let commits: Vec<Value> =
        taken.iter().map(|job| json!({"id": job["id"], "reservation": job["reservation"]})).collect();
    servers[0].post("/v1/settle", json!({"commit": commits})).await;
    let jobs = database(&place.url).await.collection("jobs");
    until("history is forgotten", || async {
        counted(&jobs, "a").await.is_some_and(|counts| counts["done"] == 0)
    })
    .await;
    agree(&servers[0], &jobs, &["a"]).await;
    agree(&servers[1], &jobs, &["a"]).await;
}

/// Has a MongoDB of its own, which is killed again and again: nobody knows what became of what was under way.
async fn lost_answers_are_counted_in_the_end(_: &Place) {
    let mut mongod = OwnMongod::start().await;
    let server = Arc::new(
        Server::start_with(&mongod.url(), &[("TAILBACK_LOG__FILTER", "error"), SHIPPED_DEADLINE]).await,
    );
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for seed in 0..6 {
        let (server, stop) = (server.clone(), stop.clone());
        clients.spawn(async move {
            let mut dice = StdRng::seed_from_u64(seed);
            while !stop.load(Ordering::Relaxed) {
                let jobs = json!({"jobs": vec![json!({"payload": 1, "max_attempts": 2}); 5]});
                server.post("/v1/queues/a/jobs/batch", jobs).await;
                for job in settle(&server, "a", "", &mut dice, 1000).await {
                    edit(&server, &job, &mut dice).await;
                }
            }
        });
    }
    for n in 1..=3 {
        until("there is work under way", || async {
            let shown = shown(&server, "a").await;
            shown.is_some_and(|counts| counts.values().sum::<u64>() > 100 * n)
        })
        .await;
        mongod.kill();
        mongod.run().await;
    }
    stop.store(true, Ordering::Relaxed);
    clients.join_all().await;
    let jobs = database(&mongod.url()).await.collection("jobs");
    agree(&server, &jobs, &["a", "b", "c", "graves"]).await;
}

on_one_store! { mongo:
    counts_need_no_correction_on_one_server
    what_two_servers_purge_at_once_is_counted_once
    what_is_under_way_is_not_corrected
    counts_are_right_after_everything_on_two_servers
    a_killed_server_leaves_counters_that_others_mend
    what_other_programs_do_is_counted
    history_leaves_the_counts_when_it_is_forgotten
    lost_answers_are_counted_in_the_end
}
