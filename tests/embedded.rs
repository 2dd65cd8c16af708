//! What only the embedded store has: one server for one file, damaged files, a full disk. And what is wrong
//! before any store is there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "shown when a test fails or with --no-capture")]

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::fleet::{browse, text};
use common::server::{Server, command};
use serde_json::json;

/// Runs a server that must end by itself.
async fn refused(store: &str, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = command(store, environment);
    command.stderr(Stdio::piped());
    ended(command).await
}

async fn ended(mut command: Command) -> (Option<i32>, String) {
    let run = move || command.output().unwrap();
    let Output { status, stderr, .. } = tokio::task::spawn_blocking(run).await.unwrap();
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

fn url(file: &Path) -> String {
    format!("sqlite:{}", file.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_for_one_server() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tailback.db");
    let mut first = Server::start(&url(&file)).await;
    let id = first.push("work", json!({"payload": 1})).await;
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for name in [&file, &link] {
        let (code, said) = refused(&url(name), &[]).await;
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("in use by another server") && said.contains("tailback.db"), "{said}");
    }
    assert_eq!(first.get(&format!("/v1/jobs/{id}")).await.0, 200, "the first one is not disturbed");
    first.kill();
    let second = Server::start(&url(&file)).await;
    assert_eq!(second.get(&format!("/v1/jobs/{id}")).await.0, 200);
}

/// Bytes of a database that a server has filled and closed.
async fn some_database() -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tailback.db");
    let mut server = Server::start(&url(&file)).await;
    for n in 0..200 {
        server.push("work", json!({"payload": {"n": n, "text": "x".repeat(300)}})).await;
    }
    assert_eq!(server.terminate().await.code(), Some(0));
    std::fs::read(&file).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_reported_and_left_as_it_is() {
    let intact = some_database().await;
    let mut without_head = intact.clone();
    without_head[..100].fill(0);
    let mut broken_schema = intact.clone();
    broken_schema[100..400].fill(0xff);
    let mut halved = intact.clone();
    halved.truncate(intact.len() / 2);
    let cases = [
        ("no database at all", b"name,age\nada,36\n".repeat(200)),
        ("its first bytes are gone", without_head),
        ("its schema is broken", broken_schema),
        ("its second half is gone", halved),
    ];
    for (what, bytes) in cases {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tailback.db");
        std::fs::write(&file, &bytes).unwrap();
        let (code, said) = refused(&url(&file), &[]).await;
        assert_eq!(code, Some(1), "{what}: {said}");
        assert!(said.contains("tailback.db") && said.contains("damaged"), "{what}: {said}");
        assert!(std::fs::read(&file).unwrap() == bytes, "{what}: the file was changed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_of_another_program_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes.db");
    let db = rusqlite::Connection::open(&file).unwrap();
    db.execute_batch("CREATE TABLE notes (text TEXT); INSERT INTO notes VALUES ('mine')").unwrap();
    drop(db);
    let bytes = std::fs::read(&file).unwrap();
    let (code, said) = refused(&url(&file), &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("another program"), "{said}");
    assert!(std::fs::read(&file).unwrap() == bytes);
}

/// A small disk; unmounted when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    /// `None` where the machine allows no mounting, which CI's does.
    fn new(size: &str) -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let Err(refused) = disk.mount(&format!("size={size}")) else { return Some(disk) };
        assert!(std::env::var_os("CI").is_none(), "CI must be allowed to mount a small disk: {refused}");
        eprintln!("not tested, since this machine lets only root mount a small disk: {refused}");
        None
    }

    fn resize(&self, size: &str) {
        self.mount(&format!("remount,size={size}")).unwrap();
    }

    fn mount(&self, options: &str) -> Result<(), String> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tailback-test"]).arg(self.0.path());
        let done = mount.output().expect("this test needs the command mount");
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a server that a failed test left behind may still have a file open.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_writes_and_nothing_else() {
    let Some(disk) = Disk::new("3m") else { return };
    let file = disk.0.path().join("tailback.db");
    let mut server = Server::start(&url(&file)).await;
    let text_of = |n: usize| format!("{n} {}", "x".repeat(20_000));
    let mut stored = Vec::new();
    let problem = loop {
        let job = json!({"payload": text_of(stored.len())});
        let (status, answer) = server.post("/v1/queues/work/jobs", job).await;
        match status {
            201 => stored.push(text(&answer, "id")),
            _ => break (status, answer),
        }
        assert!(stored.len() < 1000, "the disk does not fill up");
    };
    assert!(!stored.is_empty());
    assert_eq!((problem.0, &problem.1["code"]), (507, &json!("store-full")), "{}", problem.1);
    assert_eq!(problem.1["retryable"], true);
    let batch: Vec<_> = (0..20).map(|n| json!({"payload": text_of(n)})).collect();
    let (status, answer) = server.post("/v1/queues/work/jobs/batch", json!({"jobs": batch})).await;
    let results = answer["results"].as_array().cloned().unwrap_or_default();
    assert!(status == 507 || results.iter().all(|result| result["status"] == 507), "{status} {answer}");
    assert_eq!(server.get(&format!("/v1/jobs/{}", stored[0])).await.0, 200);
    let ids = |jobs: &[serde_json::Value]| jobs.iter().map(|job| text(job, "id")).collect::<Vec<_>>();
    assert_eq!(ids(&browse(&server, "work").await), stored, "reads go on, and nothing was half written");
    for path in ["/v1/queues", "/v1/queues/work/stats", "/stats", "/healthz", "/metrics"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    disk.resize("24m");
    stored.push(server.push("work", json!({"payload": text_of(stored.len())})).await);
    server.kill();
    let server = Server::start(&url(&file)).await;
    let mut delivered = Vec::new();
    for (n, id) in stored.iter().enumerate() {
        let job = server.reserve("work", json!({})).await.remove(0);
        assert_eq!((&job["id"], &job["payload"]), (&json!(id), &json!(text_of(n))));
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
        delivered.push(text(&job, "id"));
    }
    assert_eq!(delivered, stored);
    assert!(server.reserve("work", json!({})).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_memory_every_server_is_for_itself() {
    let (one, other) = (Server::start("sqlite::memory:").await, Server::start("sqlite::memory:").await);
    let id = one.push("work", json!({"payload": 1})).await;
    assert!(other.reserve("work", json!({})).await.is_empty());
    let job = one.reserve("work", json!({})).await.remove(0);
    assert_eq!(job["id"], json!(id));
    assert_eq!(one.get("/v1/queues/work/stats").await.1["counts"]["reserved"], 1);
    assert_eq!(one.settle(&job, "commit", json!({})).await.0, 200);
    assert!(browse(&one, "work").await.is_empty());
    assert!(!Path::new(":memory:").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_in_the_configuration_ends_with_2_and_is_named() {
    let memory = "sqlite::memory:";
    for (store, environment, named) in [
        (memory, vec![("TAILBACK_REAPER__BATCH", "0")], vec!["reaper.batch", "TAILBACK_REAPER__BATCH"]),
        (memory, vec![("TAILBACK_REAPER__BACH", "1")], vec!["bach", "TAILBACK_REAPER__BACH"]),
        (memory, vec![("TAILBACK_DEFAULTS__LEASE_MS", "soon")], vec!["defaults.lease_ms"]),
        (memory, vec![("TAILBACK_CONFIG", "/nowhere/at/all.toml")], vec!["/nowhere/at/all.toml"]),
        ("redis://host/0", vec![], vec!["store", "--store"]),
        ("mongodb://host", vec![], vec!["store", "--store"]),
        ("sqlite:", vec![], vec!["store", "--store"]),
    ] {
        let (code, said) = refused(store, &environment).await;
        assert_eq!(code, Some(2), "{store} {environment:?}: {said}");
        for word in named {
            assert!(said.contains(word), "{store} {environment:?} should name {word}: {said}");
        }
    }
    let mut usage = Command::new(env!("CARGO_BIN_EXE_tailback"));
    usage.args(["serve", "--lissten", "127.0.0.1:0"]).stderr(Stdio::piped());
    let (code, said) = ended(usage).await;
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--lissten"), "{said}");
}
