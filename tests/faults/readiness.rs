//! Readiness while writes stall.

use std::time::{Duration, Instant};

use crate::common::proxy::Fault;
use crate::common::server::{Place, until_within};
use crate::world::Pair;

/// MongoDB answers, but no write reaches a majority.
pub async fn a_server_whose_writes_stall_is_not_ready(place: &Place) {
    let Pair { proxy, far, near: _near } = Pair::start(place).await;
    let stalled: Vec<_> = ["insert", "update", "delete", "findAndModify", "commitTransaction"]
        .into_iter()
        .map(|name| proxy.every(name, "", Fault::HoldAfter))
        .collect();
    let since = Instant::now();
    until_within(Duration::from_secs(20), "it is not ready", || async { far.get("/readyz").await.0 == 503 })
        .await;
    println!("not ready after {:?}", since.elapsed());
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
