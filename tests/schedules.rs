//! Schedules beside one that a killed server has left locked. MongoDB only: an embedded file has one server, whose locks end with it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::cell::Cell;

use common::open_transaction::{FOR_AN_HOUR, OpenTransaction};
use common::own_mongod::OwnMongod;
use common::server::{Place, SHIPPED_DEADLINE, Server, until};
use mongodb::bson::{Document, doc};
use mongodb::{Client, Database};
use reqwest::Method;
use serde_json::json;

/// How many occurrences of one schedule run while the other one is locked.
const RUNS: u64 = 6;

/// The first occurrence of this schedule that has not run.
async fn next_at(database: &Database, name: &str) -> i64 {
    let schedules = database.collection::<Document>("schedules");
    let found = schedules.find_one(doc! { "_id": name }).await.unwrap().unwrap();
    found.get_datetime("next_at").unwrap().timestamp_millis()
}

/// How often the server has looked for schedules that are due, and how many occurrences it has run in those looks that did not fail.
async fn scheduler(server: &Server) -> (u64, u64) {
    let seen = Cell::new(None);
    until("the server says how its tasks are doing", || async {
        let (_, stats) = server.get("/stats").await;
        let mut tasks = stats["tasks"].as_array().into_iter().flatten();
        let task = tasks.find(|task| task["name"] == "scheduler");
        seen.set(task.map(|task| (task["runs"].as_u64().unwrap(), task["done"].as_u64().unwrap())));
        task.is_some()
    })
    .await;
    seen.get().unwrap()
}

/// A transaction that holds a schedule, as a server leaves one behind that is killed while it fires, keeps no other schedule from its
/// occurrences. Every look finds the one that is locked: a server that lets it spoil the look has no look that does not fail.
async fn a_schedule_that_is_locked_holds_up_no_other(_: &Place) {
    let mongod = OwnMongod::with_parameters(&[FOR_AN_HOUR]).await;
    // Of another server, whose deadline no machine runs into.
    let mut before = Server::start(&mongod.url()).await;
    for name in ["locked", "other"] {
        let rule = json!({"cron": "* * * * * *", "queue": name, "misfire": "skip", "job": {"payload": 1}});
        let (status, answer) = before.send(Method::PUT, &format!("/v1/schedules/{name}"), Some(rule)).await;
        assert_eq!(status, 200, "{answer}");
    }
    assert!(before.terminate().await.success());
    let server = Server::start_with(&mongod.url(), &[SHIPPED_DEADLINE]).await;
    let database = Client::with_uri_str(mongod.url()).await.unwrap().default_database().unwrap();
    let open = OpenTransaction::on_schedule(&database, "locked").await;
    let mut open = open.expect("it is there");
    let overdue = next_at(&database, "locked").await;
    until("it is overdue", || async { next_at(&database, "other").await > overdue }).await;
    // A look that had begun before is over when the second one is.
    let (looks, _) = scheduler(&server).await;
    until("the server has looked since", || async { scheduler(&server).await.0 >= looks + 2 }).await;
    let (_, done) = scheduler(&server).await;
    until("the other one runs", || async { scheduler(&server).await.1 >= done + RUNS }).await;
    assert_eq!(next_at(&database, "locked").await, overdue, "it has run");
    assert!(open.is_open().await, "the transaction is over");
    open.abort().await;
    until("it runs again", || async { next_at(&database, "locked").await > overdue }).await;
}

on_one_store! { mongo:
    a_schedule_that_is_locked_holds_up_no_other
}
