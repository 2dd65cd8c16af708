//! Copies that are killed or stand still, and those behind them.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::server::{Place, Server, command, until};
use crate::{copy, migrate, refused, run, text, verified};

/// A copy that is struck at the points of this directory.
fn struck(from: &Place, to: &Place, points: &Path) -> Command {
    let mut copy = migrate(&from.url, &to.url);
    copy.env("TAILBACK_FAULTS", points);
    copy
}

async fn ready(store: &Place) -> Value {
    let mut server = Server::start(&store.url).await;
    let counts = server.get("/v1/queues/plain/stats").await.1["counts"].clone();
    assert!(server.terminate().await.success());
    counts["ready"].clone()
}

pub async fn an_interrupted_copy_is_completed(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    for batch in 0..4 {
        let jobs: Vec<Value> =
            (0..1000).map(|n| json!({"payload": {"n": n}, "key": format!("{batch}/{n}")})).collect();
        let (status, _) = server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await;
        assert_eq!(status, 200);
    }
    assert!(server.terminate().await.success());
    let points = tempfile::tempdir().unwrap();
    // None of those that are killed is alive, which the next one waits for.
    std::fs::write(points.path().join("restore.silent"), "1000").unwrap();
    let kill_at = async |point: &str| {
        std::fs::write(points.path().join(point), "kill").unwrap();
        let output = run(struck(from, to, points.path())).await;
        assert_eq!(output.status.code(), None, "{point}: {}", text(&output.stderr));
    };
    kill_at("copy.checked").await;
    assert_eq!(ready(to).await, 0, "it has stored nothing, and keeps no server away");
    for point in ["copy.page", "copy.page", "copy.equal"] {
        kill_at(point).await;
        nothing_else_goes_on(to, points.path()).await;
    }
    let told = verified(run(struck(from, to, points.path())).await);
    assert!(told.contains("4000 jobs") && told.contains("4000 keys"), "{told}");
    assert_eq!(ready(to).await, 4000, "the very first answer is right");
}

/// On a part of a store no server starts, and no copy of another one is completed.
async fn nothing_else_goes_on(part: &Place, points: &Path) {
    let (mut server, other) = (command(&part.url, &[]), Place::sqlite().await);
    assert_eq!(ready(&other).await, 0);
    server.stdin(Stdio::null()).stderr(Stdio::piped());
    for (what, command) in [("a server", server), ("a copy of another store", struck(&other, part, points))] {
        let output = run(command).await;
        let told = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{what}: {told}");
        assert!(told.contains("another store copied"), "{what}: {told}");
    }
}

/// Stores two jobs, and returns the id of one of them.
async fn two_jobs(store: &Place) -> String {
    let mut server = Server::start(&store.url).await;
    let id = server.push("plain", json!({"payload": 1})).await;
    server.push("plain", json!({"payload": 2})).await;
    assert!(server.terminate().await.success());
    id
}

async fn delete(store: &Place, id: &str) {
    let mut server = Server::start(&store.url).await;
    assert_eq!(server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{id}"), None).await.0, 200);
    assert!(server.terminate().await.success());
}

/// What servers did on the target of a complete copy is not undone by another copy.
pub async fn what_was_done_since_is_not_copied_again(from: &Place, to: &Place) {
    let id = two_jobs(from).await;
    copy(from, to).await;
    delete(to, &id).await;
    let (code, told) = refused(&from.url, &to.url).await;
    assert!(code == Some(1) && told.contains("nothing was written") && told.contains(&id), "{told}");
    assert_eq!(ready(to).await, 1);
}

/// A copy stands still before its first write; another one is completed, and a server works on what that has copied.
pub async fn a_copy_that_stood_still_copies_nothing(from: &Place, to: &Place) {
    let id = two_jobs(from).await;
    let points = tempfile::tempdir().unwrap();
    std::fs::write(points.path().join("copy.checked"), "pause").unwrap();
    let stalled = tokio::spawn(run(struck(from, to, points.path())));
    let met = points.path().join("copy.checked.met");
    until("it stands still", || async { met.exists() }).await;
    copy(from, to).await;
    delete(to, &id).await;
    std::fs::write(points.path().join("copy.checked.go"), "").unwrap();
    let output = stalled.await.unwrap();
    let told = text(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains("meanwhile"), "{told}");
    assert_eq!(ready(to).await, 1, "and no server is kept away");
}
