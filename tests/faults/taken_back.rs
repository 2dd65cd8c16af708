//! What an old primary shows and the next one does not have: it was taken back, so that it is not answered, although the next one
//! confirms all that it has itself.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::server::{Server, until};
use crate::set::Set;

/// A purge that only the old primary has is found by another one, which waits to have it confirmed while the primary changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_old_primary_showed_is_not_confirmed_by_the_next_one() {
    let mut set = Set::start().await;
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let url = set.url_of_all();
    let (one, two) = tokio::join!(Server::start(&url), Server::start_with(&url, &faults));
    let id = one.push("purged", json!({"payload": 1})).await;
    let look = format!("/v1/jobs/{id}");
    until("both servers see the job", || async { two.get(&look).await.0 == 200 }).await;

    set.cut_off();
    let first = purge(&one);
    until("the primary has the purge", || async { two.get(&look).await.0 == 404 }).await;
    // Who made it goes: it would make it again at the next primary, at a moment of its own.
    first.abort();
    drop(one);
    stop_at("confirm", points.path());
    let second = purge(&two);
    until("it found nothing to purge", || async { points.path().join("confirm.met").exists() }).await;
    set.fail_over().await;
    until("the job is back", || async { two.get(&look).await.0 == 200 }).await;
    std::fs::write(points.path().join("confirm.go"), "").unwrap();

    let (status, answer) = second.await.unwrap();
    assert_eq!(status, 503, "an answer that was taken back: {answer}");
    // A busy set may not answer the one that purges it.
    until("a repeat purges it", || async {
        purge(&two).await.unwrap().0 == 200 && two.get(&look).await.0 == 404
    })
    .await;
}

fn stop_at(point: &str, points: &Path) {
    std::fs::write(points.join(point), "pause").unwrap();
}

fn purge(server: &Server) -> tokio::task::JoinHandle<(u16, Value)> {
    let call =
        server.http.post(format!("{}/v1/queues/purged/purge", server.base)).json(&json!({"state": "ready"}));
    tokio::spawn(async move {
        let response = call.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    })
}
