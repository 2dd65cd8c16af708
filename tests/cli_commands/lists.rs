//! What the lists of the command line show, and what is done to what they show.

use serde_json::json;

use crate::common::cli::run;
use crate::common::server::{Place, Server, until};

/// Pushes three jobs that are ready, and one for later.
async fn fill(server: &Server) {
    for n in 0..3 {
        run(
            server,
            &["push", "list.a", &format!("{{\"n\":{n}}}"), "--header", "tenant=a", "--max-attempts", "1"],
        )
        .await
        .with(0);
    }
    run(server, &["push", "list.b", "1", "--delay", "1h", "--job-key", "k", "--group", "g"]).await.with(0);
}

pub async fn jobs_are_found_and_listed(place: &Place) {
    let server = Server::start(&place.url).await;
    fill(&server).await;
    let found = run(
        &server,
        &["jobs", "--prefix", "list.", "--where", "payload.n=2", "--where", "headers.tenant=a", "--json"],
    )
    .await;
    assert_eq!(found.with(0).json()["jobs"].as_array().unwrap().len(), 1);
    let found = run(&server, &["jobs", "--state", "scheduled", "--job-key", "k", "--created-from", "1h"])
        .await
        .with(0)
        .out;
    assert!(found.contains("list.b") && found.contains("scheduled") && found.contains("in 59m"), "{found}");
    let pages =
        run(&server, &["jobs", "--queue", "list.a", "--limit", "1", "--all", "--json"]).await.with(0).out;
    assert!(pages.lines().count() >= 3, "{pages}");
    let page = run(&server, &["jobs", "--queue", "list.a", "--limit", "1"]).await.with(0).out;
    assert!(page.contains("--cursor"), "{page}");
    assert!(run(&server, &["jobs", "--queue", "none"]).await.with(0).out.contains("no jobs"));
}

pub async fn dead_jobs_and_queues_are_shown_and_changed(place: &Place) {
    let server = Server::start(&place.url).await;
    fill(&server).await;
    let reserved = run(&server, &["reserve", "list.a", "--json", "--lease", "10m"]).await.with(0);
    let job = reserved.json()["jobs"][0].clone();
    let [id, token] = ["id", "reservation"].map(|field| job[field].as_str().unwrap().to_owned());
    run(&server, &["rollback", &id, "--reservation", &token, "--error", "no route to 10.0.0.7"])
        .await
        .with(0);
    let dead = run(&server, &["dead"]).await.with(0).out;
    assert!(dead.contains("no route to <address>") && dead.contains(&id), "{dead}");
    run(&server, &["job", &id, "retry"]).await.with(0);
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.1["state"], "ready");
    run(&server, &["job", &id, "move", "--to", "list.c"]).await.with(0);
    run(&server, &["job", &id, "move"]).await.with(2);
    assert!(run(&server, &["job", &id, "cancel"]).await.with(0).out.contains("deleted"));

    until("the queues are shown with their counts", || async {
        let queues = run(&server, &["queues", "--prefix", "list."]).await.with(0).out;
        let row = |name: &str| queues.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        row("list.a").is_some_and(|row| row.split_whitespace().nth(1) == Some("2"))
    })
    .await;
    let listed =
        run(&server, &["queues", "--prefix", "list.", "--sort=-ready", "--json"]).await.with(0).json();
    assert_eq!(
        (&listed["queues"][0]["queue"], &listed["queues"][0]["figures"]["counts"]["ready"]),
        (&json!("list.a"), &json!(2)),
        "{listed}"
    );
    let needing = run(&server, &["queues", "--attention=stuck", "--json"]).await.with(0).json();
    assert_eq!(needing["queues"], json!([]), "{needing}");
    run(&server, &["queues", "pause", "list.a"]).await.with(0);
    assert!(run(&server, &["queues"]).await.with(0).out.contains("paused"));
    assert!(run(&server, &["queues", "show", "list.a"]).await.with(0).out.contains("yes"));
    assert!(run(&server, &["stats", "list.a"]).await.with(0).out.contains("paused"));
    run(&server, &["queues", "resume", "list.a"]).await.with(0);
    let unsaid = run(&server, &["queues", "purge", "list.a", "--state", "ready"]).await.with(2);
    assert!(unsaid.err.contains("--confirm list.a"), "{unsaid:?}");
    run(&server, &["queues", "purge", "list.a", "--state", "ready", "--confirm", "list.b"]).await.with(2);
    let purged =
        run(&server, &["queues", "purge", "list.a", "--state", "ready", "--confirm", "list.a"]).await;
    assert!(purged.with(0).out.contains("2 jobs"));
    assert!(run(&server, &["stats"]).await.with(0).out.contains("queues"));
}

pub async fn semaphores_schedules_and_workers_are_shown_and_changed(place: &Place) {
    // The worker is alive for as long as it takes to look.
    let patient = [("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "600000")];
    let server = Server::start_with(&place.url, &patient).await;
    run(&server, &["semaphores", "set", "db", "2"]).await.with(0);
    assert!(run(&server, &["semaphores"]).await.with(0).out.contains("db"));
    assert!(run(&server, &["semaphores", "show", "db"]).await.with(0).out.contains("0 of 2"));
    run(&server, &["semaphores", "delete", "db"]).await.with(0);
    run(&server, &["semaphores", "show", "db"]).await.with(3);
    let rule = json!({"cron": "0 3 * * *", "queue": "list.a", "job": {"payload": 1}});
    server.send(reqwest::Method::PUT, "/v1/schedules/nightly", Some(rule)).await;
    assert!(run(&server, &["schedules"]).await.with(0).out.contains("0 3 * * *"));
    run(&server, &["schedules", "run", "nightly"]).await.with(0);
    run(&server, &["schedules", "pause", "nightly"]).await.with(0);
    assert!(run(&server, &["schedules", "show", "nightly"]).await.with(0).out.contains("by hand"));
    server.post("/v1/workers/w1/heartbeat", json!({"slots": 3})).await;
    assert!(run(&server, &["workers"]).await.with(0).out.contains("alive"));
    run(&server, &["reserve", "list.a", "--worker", "w1", "--lease", "10m"]).await.with(0);
    assert!(run(&server, &["workers", "show", "w1"]).await.with(0).out.contains("reserved"));
    assert!(run(&server, &["workers", "remove", "w1"]).await.with(0).out.contains("1 jobs released"));
}

/// A page may have none but jobs that cannot be read.
#[tokio::test]
async fn jobs_that_cannot_be_read_are_listed_on_whichever_page() {
    let place = Place::sqlite().await;
    let mut server = Server::start(&place.url).await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(server.push("spoiled", json!({"payload": n})).await);
    }
    assert!(server.terminate().await.success());
    let file = rusqlite::Connection::open(place.url.trim_start_matches("sqlite:")).unwrap();
    file.execute("UPDATE jobs SET backoff = '{' WHERE id = ?", [&ids[1]]).unwrap();
    drop(file);
    let server = Server::start(&place.url).await;
    let pages = ["jobs", "--queue", "spoiled", "--limit", "1", "--all"];
    let listed = run(&server, &pages).await.with(0).out;
    let unreadable = format!("{} cannot be read", ids[1]);
    assert!(ids.iter().all(|id| listed.contains(id)) && listed.contains(&unreadable), "{listed}");
}
