//! Records whose time has passed, while the store is slow.

use std::time::Duration;

use mongodb::bson::{DateTime, Document, doc};

use crate::common::proxy::Proxy;
use crate::common::server::{Place, Server, until};
use crate::world::PROMPT;

/// Each command takes so long that not even a few dozen batches were deleted one by one before the server gave up.
pub async fn many_small_batches_that_are_overdue_hold_up_nothing_else(place: &Place) {
    const BATCHES: usize = 1000;
    let proxy = Proxy::before(&place.url).await;
    let _server = Server::start_with(&proxy.url(&place.url), PROMPT).await;
    proxy.slow(Duration::from_millis(25));
    let database = mongodb::Client::with_uri_str(&place.url).await.unwrap().default_database().unwrap();
    let collection = |name: &str| database.collection::<Document>(name);
    let long_ago = DateTime::from_millis(1_700_000_000_000);
    collection("audit").insert_one(doc! { "_id": "0" }).await.unwrap();
    let operation = doc! { "_id": "0", "finished_at": long_ago };
    collection("operations").insert_one(operation).await.unwrap();
    let results = (0..BATCHES).map(|n| doc! { "_id": format!("b{n}/a") });
    collection("batch_results").insert_many(results).await.unwrap();
    let batch = |n| doc! { "_id": format!("b{n}"), "sealed": true, "purge_at": long_ago };
    collection("batches").insert_many((0..BATCHES).map(batch)).await.unwrap();
    for name in ["batches", "batch_results", "operations"] {
        let all = collection(name);
        until(name, || async { all.count_documents(doc! {}).await.unwrap() == 0 }).await;
    }
    let all = collection("audit");
    until("audit", || async { all.count_documents(doc! { "_id": "0" }).await.unwrap() == 0 }).await;
}
