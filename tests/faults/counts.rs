//! The counts soon after a store that was slow.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::proxy::{Fault, Proxy};
use crate::common::server::{Place, Server, until, until_within};
use crate::world::{PROMPT, push_batch};

async fn reconciler(server: &Server) -> Value {
    let (_, stats) = server.get("/stats").await;
    let tasks = stats["tasks"].as_array().cloned().unwrap_or_default();
    tasks.into_iter().find(|task| task["name"] == "reconciler").unwrap_or_default()
}

/// Comparing was slow, and rests; an answer was lost, and nobody knows what it did; then the store is well again.
pub async fn counts_are_right_soon_after_a_slow_store(place: &Place) {
    let proxy = Proxy::before(&place.url).await;
    let far = Server::start_with(&proxy.url(&place.url), PROMPT).await;
    let mut all = Vec::new();
    // A machine that is busy for a while is given another try.
    while all.iter().all(|took| *took >= Duration::from_secs(5)) {
        assert!(all.len() < 5, "{all:?}");
        all.push(right_after(&proxy, &far, &format!("work-{}", all.len())).await);
    }
    println!("right after {all:?}");
}

/// Returns how long it takes from when the store is well; no end where the machine was too slow for the lost answer.
async fn right_after(proxy: &Proxy, far: &Server, queue: &str) -> Duration {
    push_batch(far, queue, 50).await;
    proxy.slow(Duration::from_millis(120));
    until("a slow step has been made", || async {
        reconciler(far).await["last_run_took_ms"].as_f64().is_some_and(|ms| ms > 700.0)
    })
    .await;
    let answer = proxy.next("insert", "jobs", Fault::SwallowReply);
    let (status, _) = far.post(&format!("/v1/queues/{queue}/jobs"), json!({"payload": 1})).await;
    assert_eq!(status, 503);
    let is_stored = answer.times() > 0;
    drop(answer);
    proxy.slow(Duration::ZERO);
    if !is_stored {
        return Duration::MAX; // the server gave up before MongoDB had answered
    }
    let since = Instant::now();
    until_within(Duration::from_secs(100), "the counts are right", || async {
        let (_, stats) = far.get(&format!("/v1/queues/{queue}/stats")).await;
        stats["counts"]["ready"] == json!(51)
    })
    .await;
    since.elapsed()
}
