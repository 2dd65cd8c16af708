//! Settings of queues and rules of schedules from the command line: what is named is changed, and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::cli::run;
use common::server::{Place, Server};
use serde_json::{Value, json};

#[tokio::test]
async fn the_settings_of_a_queue_that_are_named_are_changed() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let settings = async || server.get("/v1/queues/mail").await.1;
    let first =
        ["lease_ms=1m30s", "max_attempts=3", "rate.limit=5", "rate.per_ms=1000", "dead_letter=mail.dead"];
    let set = run(&server, &[&["queues", "set", "mail"], &first[..]].concat()).await.with(0).out;
    assert!(set.contains("1m30s") && set.contains("mail.dead"), "{set}");
    let queue = settings().await;
    assert_eq!((&queue["lease_ms"], &queue["max_attempts"]), (&json!(90_000), &json!(3)), "{queue}");
    assert_eq!(queue["rate"], json!({"limit": 5, "per_ms": 1000}), "{queue}");
    let version = queue["version"].as_str().unwrap().to_owned();
    run(&server, &["queues", "set", "mail", "rate.limit=7", "dead_letter=", "--if-version", &version])
        .await
        .with(0);
    let queue = settings().await;
    assert_eq!(queue["rate"], json!({"limit": 7, "per_ms": 1000}), "{queue}");
    assert_eq!((&queue["lease_ms"], &queue["dead_letter"]), (&json!(90_000), &Value::Null), "{queue}");
    let set = run(&server, &["queues", "set", "mail", "paused=true", "--json"]).await.with(0).json();
    assert_eq!((&set["paused"], &set["max_attempts"]), (&json!(true), &json!(3)), "{set}");
    for (arguments, code, says) in [
        (&["lease_ms=1"][..], 4, "lease_ms must be"),
        (&["no_such_setting=1"], 4, "no_such_setting"),
        (&["lease_ms=30s", "--if-version", &version], 4, "settings-changed"),
        (&["lease_ms"], 2, "KEY=VALUE"),
        (&["rate..limit=5"], 2, "KEY=VALUE"),
        (&["rate=5", "rate.limit=5"], 2, "rate"),
        (&[], 2, "KEY=VALUE"),
    ] {
        let done = run(&server, &[&["queues", "set", "mail"], arguments].concat()).await.with(code);
        assert!(done.err.contains(says), "{arguments:?}: {done:?}");
    }
    assert_eq!(settings().await["lease_ms"], 90_000);
}

#[tokio::test]
async fn the_rule_of_a_schedule_is_made_and_changed() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    let set = async |arguments: &[&str]| {
        run(&server, &[&["schedules", "set", "nightly"], arguments].concat()).await
    };
    let rule = async || run(&server, &["schedules", "show", "nightly", "--json"]).await.with(0);
    let made = set(&["cron=0 3 * * *", "queue=reports", r#"job.payload={"n": 1.10}"#, "job.priority=5"])
        .await
        .with(0);
    assert!(made.out.contains("0 3 * * *") && made.out.contains("next "), "{made:?}");
    assert_eq!(rule().await.json()["job"]["priority"], 5);
    let version = rule().await.json()["version"].as_str().unwrap().to_owned();
    set(&["time_zone=Europe/Berlin", "overlap=skip", "job.priority=", "--if-version", &version])
        .await
        .with(0);
    let after = rule().await;
    let (text, after) = (after.out.clone(), after.json());
    assert_eq!(
        (&after["cron"], &after["time_zone"]),
        (&json!("0 3 * * *"), &json!("Europe/Berlin")),
        "{text}"
    );
    assert!(text.contains("1.10") && after["overlap"] == "skip", "the payload is as it was written: {text}");
    assert!(after["job"]["priority"].is_null() || after["job"]["priority"] == 0, "{text}");
    for (arguments, code, says) in [
        (&["cron=never"][..], 4, "cron"),
        (&["time_zone=UTC", "--if-version", &version], 4, "settings-changed"),
        (&["cron"], 2, "KEY=VALUE"),
    ] {
        let done = set(arguments).await.with(code);
        assert!(done.err.contains(says), "{arguments:?}: {done:?}");
    }
    let none = run(&server, &["schedules", "set", "new", "cron=@daily"]).await.with(4);
    assert!(none.err.contains("queue"), "{none:?}");
    run(&server, &["schedules", "set", "new", "cron=@daily", "queue=q", "--if-version", "x"]).await.with(4);
    assert_eq!(server.get("/v1/schedules/new").await.0, 404);
}
