//! Deletions that never reached MongoDB: that the job is gone afterwards is the doing of others.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::proxy::Fault;
use crate::common::server::{Place, Server, UNHURRIED};
use crate::world::{LONG_MS, Pair, push, take};

/// For how long a job is held before its commit.
const HELD_MS: u64 = 2150;

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
    commit_that_is_overtaken(&Pair::patient(place).await, || {}).await;
}

/// The same where the machine of the first server stood still meanwhile: what it knows of the store's clock is from before the end of the
/// lease.
pub async fn a_commit_that_never_arrived_is_not_acknowledged_after_a_sleep(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let faults = ("TAILBACK_FAULTS", points.path().to_str().unwrap());
    let pair = Pair::start_with(place, &[UNHURRIED, faults]).await;
    commit_that_is_overtaken(&pair, || std::fs::write(points.path().join("clock.slept"), "60000").unwrap())
        .await;
}

/// `meanwhile`: what happens between the deletion and the look.
async fn commit_that_is_overtaken(Pair { proxy, far, near }: &Pair, meanwhile: impl Fn()) {
    // How long before the end of its lease a commit begins: longer where the machine is slower.
    for before_ms in (350..=3500).step_by(350) {
        let id = push(near, json!({"payload": 1})).await;
        let ask = json!({"lease_ms": HELD_MS + before_ms});
        let stale = far.reserve("work", ask).await.remove(0);
        tokio::time::sleep(Duration::from_millis(HELD_MS)).await;
        let deletion = proxy.next("delete", "jobs", Fault::HoldThenCut);
        let mut commit = begin_settle(far, &stale);
        tokio::select! {
            () = deletion.met() => {}
            late = &mut commit => {
                // The machine was too slow: the lease ended before the commit began, or the store did not respond in time.
                assert!([409, 503].contains(&late.unwrap().0));
                drop(deletion);
                let again = take(near).await;
                assert_eq!(near.settle(&again, "commit", json!({})).await.0, 200);
                continue;
            }
        }
        proxy.part();
        deletion.release();
        meanwhile();
        let second = take(near).await;
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

/// The same where the deletion happened and only its answer was lost, well before the lease ends: that is known.
pub async fn a_commit_that_arrived_is_acknowledged(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
    push(&near, json!({"payload": 1})).await;
    let held = far.reserve("work", json!({"lease_ms": LONG_MS})).await.remove(0);
    let _deletion = proxy.next("delete", "jobs", Fault::CutAfter);
    let (status, answer) = far.settle(&held, "commit", json!({})).await;
    assert_eq!(status, 200, "{answer}");
}

/// A rollback whose answer was lost, and whose job another worker has by now: it is not said not to have happened.
pub async fn a_rollback_that_arrived_is_not_refused(place: &Place) {
    let Pair { proxy, far, near } = Pair::patient(place).await;
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
    let Pair { proxy, far, near } = Pair::patient(place).await;
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
