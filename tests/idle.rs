//! What a server asks of MongoDB while many wait and nothing happens. MongoDB only: an embedded file is asked
//! by nobody else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::own_mongod::OwnMongod;
use common::server::{LOOKED, Server, metric, until_looked};
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use serde_json::json;
use tokio::task::JoinSet;

const WAITERS: usize = 200;
const QUEUES: usize = 50;
/// The most commands that a server may send in a second, soon after its start, when figures are read first as well.
const PER_SECOND: f64 = 30.0;
/// Heartbeats of the driver, streams that wait for news, and this very question.
const APART: [&str; 4] = ["hello", "isMaster", "getMore", "serverStatus"];

/// How many commands MongoDB has carried out.
async fn commands(client: &Client) -> i64 {
    let status = client.database("admin").run_command(doc! { "serverStatus": 1 }).await.unwrap();
    let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
    let total = |(name, figures): (&String, &Bson)| match figures.as_document()?.get("total")? {
        Bson::Int64(total) if !APART.contains(&name.as_str()) => Some(*total),
        _ => None,
    };
    let totals: Vec<i64> = commands.iter().filter_map(total).collect();
    assert!(totals.len() > 50, "the figures were not found");
    totals.iter().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_costs_next_to_nothing() {
    let mongod = OwnMongod::start().await;
    let server = Server::start(&mongod.url()).await;
    let mut waiters = JoinSet::new();
    for n in 0..WAITERS {
        let url = format!("{}/v1/queues/idle-{}/reserve", server.base, n % QUEUES);
        let ask = server.http.post(url).json(&json!({"wait_ms": 50_000}));
        waiters.spawn(async move { ask.send().await.unwrap().status() });
    }
    until_looked(&server, WAITERS as u32).await;
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    // Not a wait for something: a stretch of time in which is counted what happens.
    let (before, since) = (commands(&client).await, Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (after, took) = (commands(&client).await, since.elapsed().as_secs_f64());
    // Hellos of the driver cannot be told from those of the server, which asks for the time once a second.
    let per_second = (after - before) as f64 / took + 1.0;
    assert!(per_second <= PER_SECOND, "{per_second} commands a second");
    assert_eq!(metric(&server, LOOKED).await, WAITERS as f64, "nobody looked by itself");
    let signals = client.default_database().unwrap().collection::<Document>("signals");
    assert_eq!(signals.count_documents(doc! { "ready": { "$exists": true } }).await.unwrap(), 0);
    assert_eq!(waiters.len(), WAITERS);
    assert!(waiters.try_join_next().is_none(), "everybody waits");
}
