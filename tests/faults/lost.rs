//! Deletions that never reached MongoDB: that the job is gone afterwards is the doing of others.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::own_mongod::OwnMongod;
use crate::common::proxy::Fault;
use crate::common::server::{Place, Server, until};
use crate::common::shim::Shim;
use crate::world::{LONG_MS, Pair, push, take};

fn begin_settle(server: &Server, job: &Value) -> tokio::task::JoinHandle<(u16, Value)> {
    let url = format!("{}/v1/jobs/{}/commit", server.base, job["id"].as_str().unwrap());
    let body = json!({"reservation": job["reservation"]});
    let call = server.http.post(url).json(&body);
    tokio::spawn(async move { answer(call).await })
}

async fn answer(call: reqwest::RequestBuilder) -> (u16, Value) {
    let response = call.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap_or_default())
}

/// The first holder's deletion is lost just before its lease ends, and it looks again when a second holder has
/// committed the job.
pub async fn a_commit_that_never_arrived_is_not_acknowledged(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    for _ in 0..10 {
        let id = push(&near, json!({"payload": 1})).await;
        let lease_ms = 2500;
        let stale = far.reserve("work", json!({"lease_ms": lease_ms})).await.remove(0);
        tokio::time::sleep(Duration::from_millis(lease_ms - 350)).await;
        let deletion = proxy.next("delete", "jobs", Fault::HoldThenCut);
        let mut commit = begin_settle(&far, &stale);
        tokio::select! {
            () = deletion.met() => {}
            late = &mut commit => {
                // The machine was too slow: the lease ended before the commit began, or the store did not respond in time.
                assert!([409, 503].contains(&late.unwrap().0));
                drop(deletion);
                let again = take(&near).await;
                assert_eq!(near.settle(&again, "commit", json!({})).await.0, 200);
                continue;
            }
        }
        proxy.part();
        deletion.release();
        let second = take(&near).await;
        assert_eq!(second["id"], json!(id));
        assert_eq!(near.settle(&second, "commit", json!({})).await.0, 200);
        proxy.heal();
        let (status, answer) = commit.await.unwrap();
        assert!([409, 503].contains(&status), "a commit that never happened: {status} {answer}");
        let (status, answer) = far.settle(&stale, "commit", json!({})).await;
        assert_eq!((status, &answer["gone"]), (409, &json!(true)), "{answer}");
        return;
    }
    panic!("no commit began before its lease ended");
}

/// Waits until a reserve gets a job: the store may not respond in time.
async fn take_for(server: &Server, lease_ms: u64) -> Value {
    let taken = std::sync::Mutex::new(None);
    until("a job is delivered", || async {
        let (status, answer) = server.post("/v1/queues/work/reserve", json!({"lease_ms": lease_ms})).await;
        let first = answer["jobs"][0].clone();
        let is_there = status == 200 && first.is_object();
        *taken.lock().unwrap() = Some(first);
        is_there
    })
    .await;
    taken.into_inner().unwrap().unwrap()
}

/// The first holder's deletion is lost, and MongoDB's clock is set forward past the end of its lease, which the first server cannot see.
/// When it looks again a second holder has committed the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_not_proven_by_a_clock_that_was_set_forward() {
    let shim = Shim::clock();
    let mut mongod = OwnMongod::idle();
    let environment = shim.environment();
    mongod.environment.extend(environment.into_iter().map(|(name, value)| (name.into(), value.into())));
    mongod.run().await;
    assert!(shim.attached() > 0, "the mongod has a clock of its own");
    for attempt in 1.. {
        assert!(attempt <= 10, "the machine is too slow");
        let Pair { proxy, far, near } = Pair::start(&Place::at(mongod.url())).await;
        push(&near, json!({"payload": 1})).await;
        let stale = take_for(&far, 300_000).await;
        let deletion = proxy.next("delete", "jobs", Fault::HoldThenCut);
        let mut commit = begin_settle(&far, &stale);
        tokio::select! {
            () = deletion.met() => {}
            early = &mut commit => {
                assert_eq!(early.unwrap().0, 503); // the store did not respond in time
                shim.shift_clock(600_000 * attempt);
                continue;
            }
        }
        proxy.part();
        shim.shift_clock(600_000 * attempt);
        let mut second = take_for(&near, LONG_MS).await;
        while second["id"] != stale["id"] {
            second = take_for(&near, LONG_MS).await; // that was left by an attempt before
        }
        let (committed, _) = near.settle(&second, "commit", json!({})).await;
        assert!([200, 503].contains(&committed));
        deletion.release();
        let is_in_time = !commit.is_finished();
        proxy.heal();
        let (status, answer) = commit.await.unwrap();
        assert!([409, 503].contains(&status), "a commit that never happened: {status} {answer}");
        if is_in_time && committed == 200 {
            return;
        }
    }
}

/// The same where the deletion happened and only its answer was lost, well before the lease ends: that is known.
pub async fn a_commit_that_arrived_is_acknowledged(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    push(&near, json!({"payload": 1})).await;
    let held = far.reserve("work", json!({"lease_ms": LONG_MS})).await.remove(0);
    let _deletion = proxy.next("delete", "jobs", Fault::CutAfter);
    let (status, answer) = far.settle(&held, "commit", json!({})).await;
    assert_eq!(status, 200, "{answer}");
}

/// A rollback whose answer was lost, and whose job another worker has by now: it is not said not to have happened.
pub async fn a_rollback_that_arrived_is_not_refused(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    push(&near, json!({"payload": 1})).await;
    let held = far.reserve("work", json!({"lease_ms": LONG_MS})).await.remove(0);
    let update = proxy.next("update", "jobs", Fault::HoldThenLose);
    let url = format!("{}/v1/jobs/{}/rollback", far.base, held["id"].as_str().unwrap());
    let body = json!({"reservation": held["reservation"], "delay_ms": 0, "error": "it failed"});
    let rollback = tokio::spawn(answer(far.http.post(url).json(&body)));
    update.met().await;
    proxy.part();
    let second = take(&near).await;
    assert_eq!(second["errors"][0]["message"], "it failed");
    update.release();
    proxy.heal();
    let (status, answer) = rollback.await.unwrap();
    assert!([200, 503].contains(&status), "a rollback that happened: {status} {answer}");
    assert_eq!(near.settle(&second, "commit", json!({})).await.0, 200);
}

/// No reservation protects a job that is cancelled: others may have worked on it, and committed it.
pub async fn a_cancel_that_never_arrived_is_not_acknowledged(place: &Place) {
    let Pair { proxy, far, near } = Pair::start(place).await;
    let id = push(&near, json!({"payload": 1})).await;
    let deletion = proxy.next("delete", "jobs", Fault::HoldThenCut);
    let cancel = far.http.delete(format!("{}/v1/jobs/{id}", far.base));
    let cancel = tokio::spawn(answer(cancel));
    deletion.met().await;
    proxy.part();
    deletion.release();
    let held = take(&near).await;
    assert_eq!(near.settle(&held, "commit", json!({})).await.0, 200);
    proxy.heal();
    let (status, answer) = cancel.await.unwrap();
    assert!([404, 503].contains(&status), "a cancel that never happened: {status} {answer}");
}
