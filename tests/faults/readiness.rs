//! Readiness while writes stall.

use std::time::{Duration, Instant};

use mongodb::Collection;
use mongodb::bson::{Document, doc};
use serde_json::json;

use crate::common::proxy::Fault;
use crate::common::server::{PATIENCE, Place, Server, until};
use crate::world::{DEADLINE, PROMPT, Pair};

/// For so long a write proves that writes reach a majority, and readiness writes nothing.
const PROVEN: Duration = Duration::from_millis(2500);
/// How long a server whose writes stall may say that it is ready; and that it is longer where the machine is busy.
const READY_FOR: Duration = Duration::from_millis(6000);

/// MongoDB answers, but no write reaches a majority.
pub async fn a_server_whose_writes_stall_is_not_ready(place: &Place) {
    let Pair { proxy, far, near: _near } = Pair::start(place).await;
    let stalled: Vec<_> = ["insert", "update", "delete", "findAndModify", "commitTransaction"]
        .into_iter()
        .map(|name| proxy.every(name, "", Fault::HoldAfter))
        .collect();
    // What was sent before may still be answered, until the server gives up on it, and is a proof for a while.
    let since = Instant::now();
    until("it is not ready", || async {
        far.get("/readyz").await.0 == 503 && since.elapsed() > DEADLINE + PROVEN + Duration::from_secs(1)
    })
    .await;
    let (_, problem) = far.get("/readyz").await;
    assert_eq!(problem["code"], "store-unavailable", "{problem}");
    // It stays so, and says so, until a write goes through.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        assert_eq!(far.get("/readyz").await.0, 503, "after {:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(stalled);
    let since = Instant::now();
    far.until_ready().await;
    println!("ready after {:?}", since.elapsed());
}

/// It stands to its last verdict for a while only, also while a probe waits.
pub async fn a_server_whose_writes_stall_is_soon_not_ready(place: &Place) {
    let Pair { proxy, far, near: _near } = Pair::start(place).await;
    for _ in 0..5 {
        far.until_ready().await;
        let pushed = far.post("/v1/queues/work/jobs", json!({"payload": 1})).await.0;
        let since = Instant::now();
        let stalled: Vec<_> = ["insert", "update", "delete", "findAndModify", "commitTransaction"]
            .into_iter()
            .map(|name| proxy.every(name, "", Fault::HoldAfter))
            .collect();
        until("it is not ready", || async { far.get("/readyz").await.0 == 503 }).await;
        let took = since.elapsed();
        println!("not ready after {took:?}, the push: {pushed}");
        drop(stalled);
        if took < READY_FOR {
            return;
        }
    }
    panic!("it is ready for too long");
}

/// The write that readiness makes where nothing else has shown that writes reach a majority.
async fn probe(meta: &Collection<Document>) -> Option<Document> {
    meta.find_one(doc! { "_id": "probe" }).await.unwrap()
}

/// Pushes for longer than a proof lasts, and asks for readiness after each push. Returns the probe of before and after, or
/// nothing where the machine was too busy: more time passed between two writes than the proof of one lasts.
async fn under_load(server: &Server, meta: &Collection<Document>) -> Option<[Option<Document>; 2]> {
    let push = async || server.post("/v1/queues/work/jobs", json!({"payload": 1})).await.0;
    let mut sent = Instant::now();
    let mut is_steady = push().await == 201;
    let mut before = probe(meta).await;
    let since = Instant::now();
    while is_steady && since.elapsed() < DEADLINE + PROVEN + Duration::from_secs(2) {
        // What was begun before the first push may take as long as that.
        if since.elapsed() < DEADLINE {
            before = probe(meta).await;
        }
        let previous = std::mem::replace(&mut sent, Instant::now());
        is_steady =
            push().await == 201 && server.get("/readyz").await.0 == 200 && previous.elapsed() < PROVEN;
    }
    let after = probe(meta).await;
    (is_steady && sent.elapsed() < PROVEN).then_some([before, after])
}

/// The writes of clients prove what readiness would have to prove by a write of its own.
pub async fn readiness_writes_nothing_under_load(place: &Place) {
    let server = Server::start_with(&place.url, PROMPT).await;
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let meta = client.default_database().unwrap().collection::<Document>("meta");
    let end = Instant::now() + PATIENCE;
    let [before, after] = loop {
        assert!(Instant::now() < end, "the machine is too busy, or the server is never ready");
        if let Some(probes) = under_load(&server, &meta).await {
            break probes;
        }
    };
    assert_eq!(before, after, "readiness has written under load");
    // And it writes that document once nothing else is written.
    until("readiness has written", || async {
        server.get("/readyz").await;
        probe(&meta).await != after
    })
    .await;
}
