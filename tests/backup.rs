//! `tailback export` and `tailback import`: a store as it was at one moment, in a file, and back into a store of either kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::mongod;
use common::own_mongod::OwnMongod;
use common::server::{PATIENCE, Place, Server, command, until};
use common::stores::open_mongo;
use mongodb::Client;
use mongodb::bson::doc;
use serde_json::{Value, json};
use tailback::store::fence::{Fence, behind};
use tailback::store::{Imported, RestoreMark, Semaphores as _, Store as _, Transfer as _};

fn tailback(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tailback"));
    command.args(arguments).env("TAILBACK_LOG__FILTER", "warn").stdin(Stdio::null());
    command
}

async fn run(mut command: Command) -> (bool, String) {
    let running = tokio::task::spawn_blocking(move || command.output().unwrap());
    let Output { status, stdout, stderr } = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (status.success(), text(&stdout) + &text(&stderr))
}

/// A store of a test, on a MongoDB of its own: the shared one keeps no past.
struct Home {
    place: Place,
    mongod: Option<OwnMongod>,
}

impl Home {
    async fn sqlite() -> Self {
        Self { place: Place::sqlite().await, mongod: None }
    }

    async fn mongo() -> Self {
        let mongod = OwnMongod::start().await;
        Self { place: Place::at(mongod.url()), mongod: Some(mongod) }
    }

    async fn clear(self) {
        match self.mongod {
            Some(mongod) => drop(mongod),
            None => self.place.clear().await,
        }
    }
}

/// A folder for backups.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

async fn export(store: &Place, file: &Path) -> String {
    let (done, told) =
        run(tailback(&["export", "--store", &store.url, "--out", file.to_str().unwrap()])).await;
    assert!(done, "{told}");
    told
}

fn import(store: &str, file: &Path) -> Command {
    tailback(&["import", "--store", store, "--in", file.to_str().unwrap()])
}

async fn restore(store: &Place, file: &Path) -> String {
    let (done, told) = run(import(&store.url, file)).await;
    assert!(done && told.contains("verified"), "{told}");
    told
}

async fn refused(command: Command) -> String {
    let (done, told) = run(command).await;
    assert!(!done, "{told}");
    told
}

fn lines(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap().lines().map(str::to_owned).collect()
}

/// The lines of this kind.
fn of_kind(lines: &[String], kind: &str) -> Vec<Value> {
    let parsed = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.filter(|line| line["kind"] == kind).collect()
}

async fn put(server: &Server, path: &str, body: Value) {
    let (status, answer) = server.send(reqwest::Method::PUT, path, Some(body)).await;
    assert!(status < 300, "{answer}");
}

async fn taken(server: &Server, queue: &str, job: Value) -> Value {
    server.push(queue, job).await;
    server.reserve(queue, json!({"worker": "w-1", "lease_ms": 3_600_000})).await.remove(0)
}

async fn keyed(server: &Server, path: &str, body: Value) -> (u16, String) {
    let call = server.http.post(format!("{}{path}", server.base)).header("idempotency-key", "once");
    let answer = call.json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// What was handed out and answered before the backup.
struct Before {
    held: Value,
    moved: Value,
    move_answer: (u16, Value),
    popped: (u16, String),
    batch: String,
    all: BTreeMap<String, Value>,
}

const EXACT: &str = r#"{"n":12345678901234567890,"z":1.50,"a":"ü😀","deep":[[[]]],"__proto__":1E5}"#;
const QUEUES: [&str; 9] =
    ["plain", "busy", "kept", "failing", "graves", "next", "timed", "grouped", "limited"];

/// Pushes jobs in every state, and one of everything else.
async fn fill(server: &Server) -> Before {
    put(server, "/v1/queues/kept", json!({"retain_done_ms": 36_000_000, "retain_dead_ms": 36_000_000})).await;
    put(server, "/v1/queues/kept-2", json!({"max_attempts": 3})).await;
    server.push("plain-2", json!({"payload": 1, "key": "b", "delay_ms": 36_000_000})).await;
    put(server, "/v1/queues/failing", json!({"dead_letter": "graves", "max_attempts": 1, "max_jobs": 9}))
        .await;
    put(server, "/v1/queues/limited", json!({"rate": {"limit": 2, "per_ms": 3_600_000}, "paused": false}))
        .await;
    put(server, "/v1/semaphores/database", json!({"capacity": 1})).await;
    let rule = json!({"cron": "0 0 29 2 *", "queue": "timed", "job": {"payload": {"exact": 1.50}}});
    put(server, "/v1/schedules/leap", rule).await;
    assert_eq!(server.post("/v1/schedules/leap/run", json!({})).await.0, 200);
    let exact = format!(r#"{{"payload":{EXACT},"headers":{{"trace":"t"}},"priority":3}}"#);
    let call = server.http.post(format!("{}/v1/queues/plain/jobs", server.base));
    assert_eq!(
        call.header("content-type", "application/json").body(exact).send().await.unwrap().status(),
        201
    );
    let binary = json!({"payload_base64": "AP8=", "payload_type": "image/png", "delay_ms": 36_000_000});
    server.push("plain", binary).await;
    server.push("plain", json!({"payload": null, "key": "a/key", "key_ttl_ms": 36_000_000})).await;
    for n in 0..2 {
        server.push("grouped", json!({"payload": n, "group": "account-7"})).await;
        server.push("limited", json!({"payload": n, "semaphores": ["database"]})).await;
    }
    assert_eq!(server.reserve("limited", json!({"count": 2, "lease_ms": 3_600_000})).await.len(), 1);
    let kept = taken(server, "kept", json!({"payload": 2, "key": "k"})).await;
    assert_eq!(server.settle(&kept, "commit", json!({"result": null})).await.0, 200);
    let dead = taken(server, "kept", json!({"payload": 3, "max_attempts": 1})).await;
    assert_eq!(server.settle(&dead, "rollback", json!({"error": "no"})).await.0, 200);
    let letter = taken(server, "failing", json!({"payload": 4})).await;
    assert_eq!(server.settle(&letter, "rollback", json!({"error": "never"})).await.0, 200);
    let moved = taken(server, "busy", json!({"payload": 6})).await;
    let move_answer = server.settle(&moved, "move", json!({"queue": "next", "payload": [6.0]})).await;
    assert_eq!(move_answer.0, 200);
    let held = taken(server, "busy", json!({"payload": 7})).await;
    let progress = json!({"progress": {"at": 0.5}, "lease_ms": 3_600_000});
    assert_eq!(server.settle(&held, "extend", progress).await.0, 200);
    server.push("popped", json!({"payload": "x".repeat(100_000)})).await;
    let popped = keyed(server, "/v1/queues/popped/pop", json!({"count": 2})).await;
    let open = json!({
        "sealed": false, "jobs": [{"queue": "batched", "payload": 1}, {"queue": "batched", "payload": 2}],
        "on_finished": {"queue": "after", "payload": 1.5},
    });
    let (_, batch) = server.post("/v1/batches", open).await;
    let done = server.reserve("batched", json!({})).await.remove(0);
    assert_eq!(server.settle(&done, "commit", json!({"result": {"rows": 1}})).await.0, 200);
    let batch = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let all = everything(server, &batch).await;
    Before { held, moved, move_answer, popped, batch, all }
}

/// All jobs, as the server shows them, all settings, and the rest.
async fn everything(server: &Server, batch: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for queue in QUEUES {
        all.insert(queue.to_owned(), server.get(&format!("/v1/queues/{queue}")).await.1);
        let (status, list) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
        assert_eq!(status, 200, "{list}");
        for job in list["jobs"].as_array().unwrap() {
            let id = job["id"].as_str().unwrap();
            all.insert(id.to_owned(), server.get(&format!("/v1/jobs/{id}")).await.1);
        }
    }
    for path in ["/v1/schedules", "/v1/semaphores", batch, &format!("{batch}/results")] {
        all.insert(path.to_owned(), server.get(path).await.1);
    }
    all
}

/// A backup is taken while the server runs, restored, and served.
async fn everything_comes_back(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&from.url).await;
    let before = fill(&server).await;
    export(from, &file).await;
    assert_eq!(folder.names(), ["all.jsonl"], "no partial file is left");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let stored = lines(&file);
    assert!(stored.iter().any(|line| line.contains(&format!("\"payload\":{EXACT}"))), "byte for byte");
    assert!(server.terminate().await.success());
    let kinds: BTreeSet<String> = stored
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].as_str().unwrap().to_owned())
        .collect();
    let states: BTreeSet<String> =
        of_kind(&stored, "job").iter().map(|job| job["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states.len(), 5, "{states:?}");
    for kind in ["token_secret", "settings", "key", "semaphore", "batch", "batch_result", "receipt", "answer"]
    {
        assert!(kinds.contains(kind), "{kind} in {kinds:?}");
    }
    let (done, told) = run(tailback(&["import", "--dry-run", "--in", file.to_str().unwrap()])).await;
    assert!(done && told.contains("complete"), "{told}");
    restore(to, &file).await;
    let told = refused(import(&to.url, &file)).await;
    assert!(told.contains("not empty"), "{told}");

    // What the target keeps is what the source had.
    let again = folder.file("again.jsonl");
    export(to, &again).await;
    let sorted = |file: &Path| {
        let lines = lines(file);
        lines[1..lines.len() - 1].iter().cloned().collect::<BTreeSet<String>>()
    };
    assert_eq!(sorted(&again), sorted(&file));

    let mut server = Server::start(&to.url).await;
    assert_eq!(everything(&server, &before.batch).await, before.all);
    let mut repeated = before.move_answer.clone();
    repeated.1["repeated"] = json!(true);
    let moved = server.settle(&before.moved, "move", json!({"queue": "next", "payload": [6.0]})).await;
    assert_eq!(moved, repeated, "a repeat is answered as before");
    assert_eq!(keyed(&server, "/v1/queues/popped/pop", json!({"count": 2})).await, before.popped);
    assert_eq!(server.settle(&before.held, "commit", json!({})).await.0, 200, "its token is valid");
    let (status, answer) =
        server.post("/v1/queues/plain/jobs", json!({"payload": null, "key": "a/key"})).await;
    assert_eq!((status, &answer["deduplicated"]), (200, &json!(true)), "{answer}");
    assert_eq!(server.reserve("plain", json!({"count": 10})).await.len(), 2);
    assert_eq!(server.reserve("grouped", json!({"count": 10})).await.len(), 1);
    assert_eq!(server.reserve("limited", json!({"count": 10})).await.len(), 0, "the semaphore is taken");
    assert_eq!(server.post(&format!("{}/seal", before.batch), json!({})).await.0, 200);
    let last = server.reserve("batched", json!({})).await.remove(0);
    assert_eq!(server.settle(&last, "commit", json!({})).await.0, 200);
    assert_eq!(server.reserve("after", json!({})).await.len(), 1, "the batch calls back");
    assert!(server.terminate().await.success());
}

/// Each line of a chain is pushed by the commit of the one before: at every moment there is one job of each.
async fn a_backup_shows_one_moment(place: &Place) {
    const CHAINS: u64 = 40;
    const EXPORTS: usize = 4;
    let server = Server::start(&place.url).await;
    let filler: Vec<Value> =
        (0..1000).map(|n| json!({"payload": {"n": n, "text": "x".repeat(1000)}})).collect();
    for _ in 0..3 {
        let (status, _) = server.post("/v1/queues/filler/jobs/batch", json!({"jobs": filler})).await;
        assert_eq!(status, 200);
    }
    for n in 0..CHAINS {
        server.push("chain", json!({"payload": n})).await;
    }
    let (is_over, links) = (AtomicBool::new(false), AtomicU64::new(0));
    let chain = async || {
        while !is_over.load(Ordering::Relaxed) {
            for job in server.reserve("chain", json!({"count": 5, "lease_ms": 3_600_000})).await {
                let push = json!({"push": [{"queue": "chain", "payload": job["payload"]}]});
                assert_eq!(server.settle(&job, "commit", push).await.0, 200);
                links.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    let batches = async || {
        while !is_over.load(Ordering::Relaxed) {
            let jobs: Vec<Value> = (0..4).map(|n| json!({"queue": "batched", "payload": n})).collect();
            assert_eq!(server.post("/v1/batches", json!({"jobs": jobs})).await.0, 201);
            for job in server.reserve("batched", json!({"count": 3, "lease_ms": 3_600_000})).await {
                assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
            }
        }
    };
    let exports = async {
        let folder = Folder::new();
        for n in 0..EXPORTS {
            let before = links.load(Ordering::Relaxed);
            until("the chains go on", || async { links.load(Ordering::Relaxed) > before + 20 }).await;
            let file = folder.file(&n.to_string());
            export(place, &file).await;
            is_one_moment(&lines(&file), CHAINS);
        }
        assert!(links.load(Ordering::Relaxed) > 0);
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(chain(), chain(), chain(), batches(), batches(), exports);
}

fn is_one_moment(lines: &[String], chains: u64) {
    let jobs = of_kind(lines, "job");
    let chain = jobs.iter().filter(|job| job["queue"] == "chain");
    let mut there: Vec<u64> = chain.map(|job| job["payload"].as_u64().unwrap()).collect();
    there.sort_unstable();
    assert_eq!(there, (0..chains).collect::<Vec<_>>(), "a commit and what it pushed come together");
    let count = |all: &[Value], id: &Value| all.iter().filter(|one| one["batch"] == *id).count() as u64;
    let (batches, results) = (of_kind(lines, "batch"), of_kind(lines, "batch_result"));
    for batch in &batches {
        let id = &batch["id"];
        assert_eq!(batch["pending"].as_u64().unwrap(), count(&jobs, id), "the pending jobs of {batch}");
        assert_eq!(batch["done"].as_u64().unwrap(), count(&results, id), "the results of {batch}");
    }
    assert!(!batches.is_empty());
}

/// Fills a store with many jobs, and writes a backup of it.
async fn many(place: &Place, file: &Path) {
    let mut server = Server::start(&place.url).await;
    for batch in 0..4 {
        let job =
            |n: usize| json!({"payload": {"n": n, "text": "x".repeat(1500)}, "key": format!("{batch}/{n}")});
        let jobs: Vec<Value> = (0..1000).map(job).collect();
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    export(place, file).await;
}

/// Kills restores in the middle: no server starts on what is there then, and another run completes it.
async fn an_interrupted_restore_is_completed(from: &Place, to: &Place) {
    let folder = Folder::new();
    let (file, other) = (folder.file("all.jsonl"), folder.file("other.jsonl"));
    many(from, &file).await;
    export(from, &other).await;
    // Standard input that breaks off is like a kill, always in the same place.
    let all = std::fs::read(&file).unwrap();
    let half = folder.file("half");
    std::fs::write(&half, &all[..all.len() * 3 / 4]).unwrap();
    let mut broken = tailback(&["import", "--store", &to.url]);
    broken.stdin(std::fs::File::open(&half).unwrap());
    let told = refused(broken).await;
    assert!(told.contains("breaks off"), "{told}");
    // None of those before is alive, which the next one waits for.
    let faults = tempfile::tempdir().unwrap();
    std::fs::write(faults.path().join("restore.silent"), "3000").unwrap();
    let import = |store: &str, file: &Path| {
        let mut command = import(store, file);
        command.env("TAILBACK_FAULTS", faults.path());
        command
    };
    nothing_is_done_with_a_part(to).await;
    let told = refused(import(&to.url, &other)).await;
    assert!(told.contains("another backup"), "{told}");
    for delay_ms in [30, 100, 200, 400] {
        let mut child = import(&to.url, &file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success());
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let (done, told) = run(import(&to.url, &file)).await;
    assert!(done || told.contains("not empty"), "{told}");
    let server = Server::start(&to.url).await;
    let counts = server.get("/v1/queues/plain/stats").await.1["counts"].clone();
    assert_eq!(counts["ready"], 4000, "the very first answer is right: {counts}");
}

/// Of two restores at once one is refused, or finds that the other one has ended. What is there is the backup.
async fn two_restores_at_once_are_kept_apart(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    many(from, &file).await;
    let both = tokio::join!(run(import(&to.url, &file)), run(import(&to.url, &file)));
    let both = [both.0, both.1];
    let told: Vec<&str> = both.iter().filter(|(done, _)| !done).map(|(_, told)| told.as_str()).collect();
    assert_eq!(told.len(), 1, "{both:?}");
    let is_refusal = |told: &&str| told.contains("is under way") || told.contains("not empty");
    assert!(told.iter().all(is_refusal), "{told:?}");
    let server = Server::start(&to.url).await;
    let counts = server.get("/v1/queues/plain/stats").await.1["counts"].clone();
    assert_eq!(counts["ready"], 4000, "{counts}");
}

/// A restore that stood still may have sent what arrives once another one has taken the store over, or has ended: that is not stored.
async fn what_a_restore_sent_before_it_was_taken_over_is_not_stored(from: &Place, to: &Place) {
    let mut server = Server::start(&from.url).await;
    for n in 0..3 {
        server.push("plain", json!({"payload": n})).await;
    }
    assert!(server.terminate().await.success());
    let jobs = open_mongo(&from.url).await.export(None, 10).await.unwrap();
    let store = open_mongo(&to.url).await;
    store.ping().await.unwrap();
    let mark = |beat| RestoreMark { backup: "b".to_owned(), beat };
    let (one, other) = (mark(1), mark(2));
    assert!(store.mark_restoring(None, Some(&one)).await.unwrap());
    let fence = Fence::new(one.clone());
    let import = async |n: usize| {
        let imported = behind(fence.clone(), store.import(vec![jobs[n].clone()])).await;
        imported.into_iter().next().unwrap()
    };
    let semaphore = "s".parse().unwrap();
    let save = async || behind(fence.clone(), store.save_semaphore(&semaphore, 3)).await;
    assert_eq!((import(0).await.unwrap(), import(0).await.unwrap()), (Imported::New, Imported::Same));
    assert!(save().await.is_ok());
    assert!(store.mark_restoring(Some(&one), Some(&other)).await.unwrap(), "it is taken over");
    assert!(import(1).await.is_err() && save().await.is_err());
    assert!(store.mark_restoring(Some(&other), None).await.unwrap(), "the other one ends");
    assert!(import(0).await.is_err() && import(2).await.is_err());
    let there = store.export(None, 10).await.unwrap();
    let there: Vec<_> = there.iter().map(|job| &job.meta.id).collect();
    assert_eq!(there, [&jobs[0].meta.id], "no other job is there");
}

/// A store whose restore has not ended is neither served, exported, copied nor given keys.
async fn nothing_is_done_with_a_part(part: &Place) {
    let mut server = command(&part.url, &[]);
    server.stdin(Stdio::null());
    let empty = Place::sqlite().await;
    let (part, empty) = (part.url.as_str(), empty.url.as_str());
    for command in [
        server,
        tailback(&["export", "--store", part]),
        tailback(&["migrate", "--from", part, "--to", empty]),
        tailback(&["migrate", "--from", empty, "--to", part]),
        tailback(&["keys", "create", "--store", part, "--name", "a", "--scope", "admin"]),
    ] {
        let words = format!("{command:?}");
        let told = refused(command).await;
        assert!(told.contains("being restored"), "{words}: {told}");
    }
}

/// A backup has operations and what calls were answered: what was begun before it is not begun again, and what was done is remembered.
async fn an_operation_is_not_begun_again(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&from.url).await;
    server.push("from", json!({"payload": 1})).await;
    let body = json!({"filter": {"queue": "from"}, "action": "move", "to": "to"});
    let (status, first) = keyed(&server, "/v1/operations", body.clone()).await;
    assert_eq!(status, 202, "{first}");
    let id = |operation: &str| serde_json::from_str::<Value>(operation).unwrap()["id"].clone();
    let path = format!("/v1/operations/{}", id(&first).as_str().unwrap());
    until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    let (operation, audit) = (server.get(&path).await, server.get("/v1/audit").await);
    server.push("from", json!({"payload": 2})).await;
    assert!(server.terminate().await.success());
    export(from, &file).await;
    let kept = ["operation", "audit"].map(|kind| of_kind(&lines(&file), kind).len());
    assert_eq!(kept, [1, 2], "the audit has its begin and its end");
    restore(to, &file).await;
    let mut server = Server::start(&to.url).await;
    assert_eq!((server.get(&path).await, server.get("/v1/audit").await), (operation, audit));
    let (status, again) = keyed(&server, "/v1/operations", body).await;
    assert_eq!((status, id(&again)), (202, id(&first)), "{again}");
    assert_eq!(server.get("/v1/queues/from/stats").await.1["counts"]["ready"], 1);
    assert!(server.terminate().await.success());
}

/// A backup that is taken in the middle of an operation: after the restore it goes on, and does nothing twice.
async fn an_operation_goes_on_after_a_restore(from: &Place, to: &Place) {
    let (folder, faults) = (Folder::new(), tempfile::tempdir().unwrap());
    let file = folder.file("all.jsonl");
    let server = Server::start_with(&from.url, &[("TAILBACK_FAULTS", faults.path().to_str().unwrap())]).await;
    let jobs: Vec<Value> = (0..1000).map(|n| json!({"payload": n})).collect();
    assert_eq!(server.post("/v1/queues/from/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    let body = json!({"filter": {"queue": "from"}, "action": "move", "to": "to"});
    let (status, operation) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{operation}");
    let path = format!("/v1/operations/{}", operation["id"].as_str().unwrap());
    let moved = async || server.get(&path).await.1["affected"].as_u64().unwrap();
    // It stands still behind a step that was not its first.
    until("some are moved", || async { moved().await > 0 }).await;
    std::fs::write(faults.path().join("operation.stepped"), "pause").unwrap();
    let met = faults.path().join("operation.stepped.met");
    until("it stands still, or is over", || async { met.exists() || moved().await == 1000 }).await;
    export(from, &file).await;
    drop(server);
    let shown = of_kind(&lines(&file), "operation").remove(0);
    let there = of_kind(&lines(&file), "job");
    let done = there.iter().filter(|job| job["queue"] == "to").count() as u64;
    assert_eq!(shown["affected"].as_u64().unwrap(), done, "the picture is of one moment: {shown}");
    restore(to, &file).await;
    let mut server = Server::start(&to.url).await;
    until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    let (_, over) = server.get(&path).await;
    assert_eq!(
        (&over["state"], &over["affected"], &over["skipped"]),
        (&json!("done"), &json!(1000), &json!(0))
    );
    let (_, all) = server.get("/v1/queues/to/jobs?limit=1000").await;
    let once = |job: &&Value| job["trail"].as_array().unwrap().len() == 1;
    assert_eq!(all["jobs"].as_array().unwrap().iter().filter(once).count(), 1000);
    assert!(server.terminate().await.success());
}

async fn a_store_that_is_not_empty_is_refused(place: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&place.url).await;
    let id = server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    export(place, &file).await;
    let told = refused(import(&place.url, &file)).await;
    assert!(told.contains("not empty"), "{told}");
    let server = Server::start(&place.url).await;
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 200);
}

/// A file with these lines between a head and an end that counts them, or with lines that are no backup at all.
fn forged(lines: &[&[u8]]) -> Vec<u8> {
    lines.iter().flat_map(|line| [line, &b"\n"[..]].concat()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_files_are_refused_by_their_line() {
    let place = Place::sqlite().await;
    let folder = Folder::new();
    let (file, bad) = (folder.file("all.jsonl"), folder.file("bad.jsonl"));
    let mut server = Server::start(&place.url).await;
    put(&server, "/v1/semaphores/database", json!({"capacity": 1})).await;
    for n in 0..2 {
        server.push("plain", json!({"payload": n})).await;
    }
    assert!(server.terminate().await.success());
    export(&place, &file).await;
    let text = std::fs::read_to_string(&file).unwrap();
    let whole: Vec<&str> = text.lines().collect();
    let (head, secret, semaphore, job, last, act, end) =
        (whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6]);
    let deep = format!(r#"{{"kind":"job","payload":{}1{}}}"#, "[".repeat(300_000), "]".repeat(300_000));
    let changed = |line: &str, from: &str, to: &str| {
        assert!(line.contains(from), "{from} in {line}");
        line.replacen(from, to, 1).into_bytes()
    };
    let h = head.as_bytes();
    let cases: Vec<(Vec<Vec<u8>>, &[&str])> = vec![
        (vec![], &["empty"]),
        (vec![b"hello".to_vec()], &["line 1", "head"]),
        (vec![b"null".to_vec()], &["line 1"]),
        (vec![changed(head, "\"version\":1", "\"version\":2")], &["version 2", "newer"]),
        (vec![changed(head, "tailback-backup", "dump")], &["line 1", "dump"]),
        (vec![h.into()], &["breaks off"]),
        (vec![h.into(), b"\xff\xfe".to_vec()], &["line 2", "UTF-8"]),
        (vec![h.into(), br#"{"kind":"__proto__"}"#.to_vec()], &["line 2", "__proto__"]),
        (vec![h.into(), br#"{"kind":"job"}"#.to_vec()], &["line 2", "missing field"]),
        (vec![h.into(), br#"{"kind":["job"]}"#.to_vec()], &["line 2", "kind"]),
        (vec![h.into(), deep.into_bytes()], &["line 2"]),
        (vec![h.into(), changed(secret, ":\"", ":1,\"")], &["line 2"]),
        (vec![h.into(), br#"{"kind":"token_secret","secret":"AA=="}"#.to_vec()], &["line 2", "32 bytes"]),
        (vec![h.into(), changed(semaphore, "1}", "-1}")], &["line 2", "capacity"]),
        (vec![h.into(), changed(semaphore, "1}", "18446744073709551615}")], &["line 2", "capacity"]),
        (vec![h.into(), changed(semaphore, "1}", "1,\"__proto__\":{}}")], &["line 2", "__proto__"]),
        (vec![h.into(), changed(semaphore, "1}", "1,\"capacity\":2}")], &["line 2", "duplicate field"]),
        (vec![h.into(), changed(job, "\"state\":\"ready\"", "\"state\":\"odd\"")], &["line 2", "state"]),
        (vec![h.into(), changed(job, "\"state\":\"ready\"", "\"state\":\"reserved\"")], &["line 2", "claim"]),
        (vec![h.into(), changed(job, "\"attempts\":0", "\"attempts\":-1")], &["line 2", "attempts"]),
        (vec![h.into(), changed(job, "\"queue\":\"plain\"", "\"queue\":\"a/b\"")], &["line 2", "queue"]),
        (vec![h.into(), changed(act, "\"at\":\"", "\"at\":\"x")], &["line 2", "at"]),
        (vec![h.into(), changed(act, "\"by\":", "\"bye\":")], &["line 2", "by"]),
        (vec![h.into(), br#"{"kind":"operation","id":"x"}"#.to_vec()], &["line 2", "missing field"]),
        (vec![h.into(), job.into(), job.into()], &["line 3", "twice"]),
        (vec![h.into(), last.into(), job.into()], &["line 3", "not in its place"]),
        (vec![h.into(), job.into(), semaphore.into()], &["line 3", "not in its place"]),
        (vec![h.into(), secret.into(), semaphore.into(), job.into(), end.into()], &["counts"]),
        (
            vec![
                h.into(),
                secret.into(),
                semaphore.into(),
                job.into(),
                changed(last, "\"payload\":1", "\"payload\":2"),
                act.into(),
                end.into(),
            ],
            &["SHA-256"],
        ),
        (
            [&whole[..], &[job]].concat().iter().map(|line| line.as_bytes().to_vec()).collect(),
            &["line 8", "behind the end"],
        ),
    ];
    for (lines, expected) in cases {
        let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
        std::fs::write(&bad, forged(&lines)).unwrap();
        let told = refused(tailback(&["import", "--dry-run", "--in", bad.to_str().unwrap()])).await;
        let is_told = expected.iter().all(|part| told.contains(part)) && told.len() < 2000;
        assert!(is_told && !told.contains("panicked"), "{expected:?} in {told:.2000}");
    }
    // A file that is cut anywhere is refused, and nothing is written.
    let target = Place::sqlite().await;
    for cut in [1, head.len(), text.len() / 2, text.len() - end.len() - 1, text.len() - 1] {
        std::fs::write(&bad, &text[..cut]).unwrap();
        refused(import(&target.url, &bad)).await;
        assert!(!Path::new(target.url.strip_prefix("sqlite:").unwrap()).exists(), "{cut}");
    }
    restore(&target, &file).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_is_told() {
    let place = Place::sqlite().await;
    let told = refused(tailback(&["export", "--store", &place.url])).await;
    assert!(told.contains("no file"), "{told}");
    for (arguments, expected) in [
        (["export", "--store", "sqlite::memory:"], "in memory"),
        (["import", "--store", "sqlite::memory:"], "in memory"),
    ] {
        let told = refused(tailback(&arguments)).await;
        assert!(told.contains(expected), "{told}");
    }
    // Another program's file, and one of nothing.
    let path = place.url.strip_prefix("sqlite:").unwrap();
    std::fs::write(
        path,
        "no database, but long enough to be read as the head of one, which it is not at all",
    )
    .unwrap();
    let told = refused(tailback(&["export", "--store", &place.url])).await;
    assert!(told.contains("not a database"), "{told}");
    std::fs::remove_file(path).unwrap();
    rusqlite::Connection::open(path).unwrap().execute_batch("CREATE TABLE notes (text)").unwrap();
    let told = refused(tailback(&["export", "--store", &place.url])).await;
    assert!(told.contains("another program"), "{told}");
    let empty = mongod::mongodb_url();
    let told = refused(tailback(&["export", "--store", &empty])).await;
    assert!(told.contains("no Tailback store"), "{told}");
    let folder = Folder::new();
    let nowhere = folder.file("none/all.jsonl");
    let told =
        refused(tailback(&["export", "--store", &place.url, "--out", nowhere.to_str().unwrap()])).await;
    assert!(told.contains("cannot create"), "{told}");
}

/// What another program has spoiled is named, and left out only where that was asked for.
async fn spoiled(place: &Place, names: &[&str]) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let command = || tailback(&["export", "--store", &place.url, "--out", file.to_str().unwrap()]);
    let told = refused(command()).await;
    for name in names {
        assert!(told.contains(name), "{name} in {told}");
    }
    assert!(folder.names().is_empty(), "no file is left");
    let mut rest = command();
    rest.arg("--skip-unreadable");
    let (done, told) = run(rest).await;
    assert!(done && told.contains(&format!("left out, since it cannot be read: {}", names.len())), "{told}");
    let lines = lines(&file);
    assert_eq!(of_kind(&lines, "end")[0]["left_out"], names.len());
    assert_eq!(of_kind(&lines, "job").len(), 1);
    let target = Place::sqlite().await;
    restore(&target, &file).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_documents_are_named() {
    let home = Home::mongo().await;
    let place = &home.place;
    let mut server = Server::start(&place.url).await;
    server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let database = client.default_database().unwrap();
    for (collection, document) in [
        ("jobs", doc! { "_id": "odd", "queue": "plain", "state": "ready" }),
        ("jobs", doc! { "_id": 7, "queue": "plain", "state": "ready" }),
        ("queues", doc! { "_id": "loud", "settings": { "max_attempts": "many" }, "version": "v" }),
        ("semaphores", doc! { "_id": "wide", "capacity": "very" }),
        ("schedules", doc! { "_id": "never", "rule": 1 }),
    ] {
        assert!(common::foreign::insert(&database, collection, &document).await, "{document}");
    }
    spoiled(place, &["odd", "the job 7", "loud", "wide", "never"]).await;
    home.clear().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn spoiled_rows_are_named() {
    let place = Place::sqlite().await;
    let mut server = Server::start(&place.url).await;
    for n in 0..2 {
        server.push("plain", json!({"payload": n})).await;
    }
    let id = server.push("zz", json!({"payload": 3})).await;
    put(&server, "/v1/queues/loud", json!({"max_attempts": 3})).await;
    assert!(server.terminate().await.success());
    let db = rusqlite::Connection::open(place.url.strip_prefix("sqlite:").unwrap()).unwrap();
    db.execute_batch("UPDATE settings SET settings = '{\"max_attempts\":\"many\"}'; DELETE FROM jobs WHERE queue = 'plain' AND rowid = 1")
        .unwrap();
    db.execute("UPDATE jobs SET headers = 'no JSON' WHERE id = ?1", [&id]).unwrap();
    drop(db);
    spoiled(&place, &[&id, "loud"]).await;
}

/// A job whose batch is gone ends without a result, and a batch that is left out takes its results with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_left_out_takes_its_results_with_it() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let path = place.url.strip_prefix("sqlite:").unwrap();
    let file = folder.file("all.jsonl");
    let export = |more: &'static [&'static str]| {
        let mut command = tailback(&["export", "--store", &place.url, "--out", file.to_str().unwrap()]);
        command.args(more);
        command
    };
    let mut server = Server::start(&place.url).await;
    let mut batches = Vec::new();
    for queue in ["a", "b"] {
        let job = json!({"queue": queue, "payload": 1});
        let (status, batch) = server.post("/v1/batches", json!({"sealed": true, "jobs": [job, job]})).await;
        assert_eq!(status, 201, "{batch}");
        batches.push(batch["id"].as_str().unwrap().to_owned());
    }
    let done = server.reserve("a", json!({})).await.remove(0);
    assert_eq!(server.settle(&done, "commit", json!({})).await.0, 200);
    assert!(server.terminate().await.success());
    let db = rusqlite::Connection::open(path).unwrap();
    assert_eq!(
        db.execute("UPDATE batches SET on_finished = 'no JSON' WHERE id = ?1", [&batches[0]]).unwrap(),
        1
    );
    assert_eq!(db.execute("DELETE FROM batches WHERE id = ?1", [&batches[1]]).unwrap(), 1);
    drop(db);
    let mut server = Server::start(&place.url).await;
    for job in server.reserve("b", json!({"count": 2})).await {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    let told = refused(export(&[])).await;
    assert!(told.contains(&batches[0]) && !told.contains(&batches[1]), "{told}");
    let (done, told) = run(export(&["--skip-unreadable"])).await;
    assert!(done && told.contains("left out, since it cannot be read: 2"), "{told}");
    assert!(of_kind(&lines(&file), "batch_result").is_empty());
    restore(&Place::sqlite().await, &file).await;

    // What servers before this one have left behind.
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute("UPDATE batch_results SET batch = ?1", [&batches[1]]).unwrap();
    drop(db);
    let told = refused(export(&[])).await;
    assert!(told.contains("there is no batch"), "{told}");
    let (done, told) = run(export(&["--skip-unreadable"])).await;
    assert!(done, "{told}");
    restore(&Place::sqlite().await, &file).await;
}

/// Only a regular file is replaced: a pipe is written, a link is followed, and a directory is refused.
#[tokio::test(flavor = "multi_thread")]
async fn only_a_regular_file_is_replaced() {
    let (place, folder) = (Place::sqlite().await, Folder::new());
    let mut server = Server::start(&place.url).await;
    server.push("plain", json!({"payload": 1})).await;
    assert!(server.terminate().await.success());
    let to = |path: &Path| tailback(&["export", "--store", &place.url, "--out", path.to_str().unwrap()]);
    let [directory, fifo, link, dangling] =
        ["directory", "fifo", "link", "dangling"].map(|name| folder.file(name));
    std::fs::create_dir(&directory).unwrap();
    let told = refused(to(&directory)).await;
    assert!(told.contains("is a directory"), "{told}");

    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let reading = tokio::task::spawn_blocking({
        let fifo = fifo.clone();
        move || std::fs::read_to_string(fifo).unwrap()
    });
    let (done, told) = run(to(&fifo)).await;
    assert!(done, "{told}");
    let piped = tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap();
    assert!(piped.starts_with("{\"kind\":\"head\"") && piped.contains("\"kind\":\"end\""), "{piped}");
    let output = to(Path::new("/dev/stdout")).output().unwrap();
    assert!(output.status.success() && output.stdout.ends_with(b"}\n"), "{output:?}");
    let (done, told) = run(to(Path::new("/dev/null"))).await;
    assert!(done && !Path::new("/dev/null").is_file(), "{told}");

    let behind = folder.file("directory/all.jsonl");
    std::fs::write(&behind, "old").unwrap();
    std::os::unix::fs::symlink(&behind, &link).unwrap();
    std::os::unix::fs::symlink("directory/new.jsonl", &dangling).unwrap();
    for (link, file) in [(&link, behind.clone()), (&dangling, folder.file("directory/new.jsonl"))] {
        let (done, told) = run(to(link)).await;
        assert!(done && link.is_symlink(), "{told}");
        assert_eq!(of_kind(&lines(&file), "job").len(), 1);
    }
    let left = std::fs::read_dir(&directory).unwrap().count() + folder.names().len();
    assert_eq!(left, 2 + 4, "no partial file is left");
}

/// A signal ends an export whose output nobody takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_an_export_to_standard_output_at_once() {
    let place = Place::sqlite().await;
    let mut server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..1000).map(|_| json!({"payload": "x".repeat(2000)})).collect();
    for _ in 0..3 {
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    assert!(server.terminate().await.success());
    let mut export = tailback(&["export", "--store", &place.url]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = export.stdout.take().unwrap();
    // It has begun; or its first read is too old already, and there is nothing.
    let _ = out.read(&mut [0; 1]).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(export.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let ended = tokio::task::spawn_blocking(move || export.wait().unwrap());
    let ended = tokio::time::timeout(PATIENCE, ended).await.expect("it is stuck in its output").unwrap();
    assert!(!ended.success());
    drop(out);
}

/// A server that writes all the time on a file does not keep it from being read, nor the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_still_refused_while_a_file_is_read() {
    let place = Place::sqlite().await;
    let server = Server::start(&place.url).await;
    server.push("plain", json!({"payload": 1})).await;
    // An export whose output nobody takes stays in the middle.
    let jobs: Vec<Value> = (0..1000).map(|_| json!({"payload": "x".repeat(2000)})).collect();
    for _ in 0..5 {
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    let mut export = tailback(&["export", "--store", &place.url]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = export.stdout.take().unwrap();
    let mut first = [0; 1];
    out.read_exact(&mut first).unwrap();
    let mut second = command(&place.url, &[]);
    second.stdin(Stdio::null());
    let told = refused(second).await;
    assert!(told.contains("in use"), "{told}");
    for _ in 0..20 {
        server.push("later", json!({"payload": 1})).await;
    }
    let file = Folder::new();
    let path = file.file("piped");
    let mut whole = first.to_vec();
    out.read_to_end(&mut whole).unwrap();
    std::fs::write(&path, whole).unwrap();
    assert!(export.wait().unwrap().success());
    let lines = lines(&path);
    assert_eq!(of_kind(&lines, "job").len(), 5001, "none of those that came later");
    let target = Place::sqlite().await;
    restore(&target, &path).await;
    assert_eq!(server.get("/v1/queues/later/stats").await.1["counts"]["ready"], 20);
}

/// An export that takes longer than MongoDB keeps the past says so, and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_takes_too_long_says_what_to_do() {
    let mongod = OwnMongod::with_parameters(&["minSnapshotHistoryWindowInSeconds=0"]).await;
    let server = Server::start(&mongod.url()).await;
    let jobs: Vec<Value> = (0..1000).map(|_| json!({"payload": "x".repeat(2000)})).collect();
    for _ in 0..5 {
        assert_eq!(server.post("/v1/queues/plain/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    }
    let mut export = tailback(&["export", "--store", &mongod.url()]);
    let mut export = export.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = export.stdout.take().unwrap();
    out.read_exact(&mut [0; 1]).unwrap();
    let client = Client::with_uri_str(mongod.url()).await.unwrap();
    let database = client.default_database().unwrap();
    let moment =
        database.run_command(doc! { "ping": 1 }).await.unwrap().get_timestamp("operationTime").unwrap();
    until("the moment has passed out of the history", || async {
        server.push("later", json!({"payload": 1})).await;
        let concern = doc! { "level": "snapshot", "atClusterTime": moment };
        let read = doc! { "find": "jobs", "limit": 1, "readConcern": concern };
        database.run_command(read).await.is_err_and(|error| error.to_string().contains("SnapshotTooOld"))
    })
    .await;
    std::io::copy(&mut out, &mut std::io::sink()).unwrap();
    let Output { status, stderr, .. } = export.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&stderr);
    assert!(!status.success() && told.contains("minSnapshotHistoryWindowInSeconds: 3600"), "{told}");
}

/// One list of cases, each an `async fn(&Place, &Place)`, as a module of tests for a pair of stores.
macro_rules! from_to {
    ($name:ident, $from:ident, $to:ident: $($case:ident)*) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (from, to) = (super::Home::$from().await, super::Home::$to().await);
                super::$case(&from.place, &to.place).await;
                from.clear().await;
                to.clear().await;
            })*
        }
    };
}

/// The same for one store.
macro_rules! on_one_home {
    ($store:ident: $($case:ident)*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let home = super::Home::$store().await;
                super::$case(&home.place).await;
                home.clear().await;
            })*
        }
    };
}

from_to! { mongo_to_sqlite, mongo, sqlite: everything_comes_back an_interrupted_restore_is_completed an_operation_is_not_begun_again an_operation_goes_on_after_a_restore }
from_to! { sqlite_to_mongo, sqlite, mongo: everything_comes_back an_interrupted_restore_is_completed an_operation_is_not_begun_again an_operation_goes_on_after_a_restore }
from_to! { sqlite_to_sqlite, sqlite, sqlite: everything_comes_back }
from_to! { mongo_to_mongo, mongo, mongo: everything_comes_back two_restores_at_once_are_kept_apart what_a_restore_sent_before_it_was_taken_over_is_not_stored }
on_one_home! { mongo: a_backup_shows_one_moment a_store_that_is_not_empty_is_refused }
on_one_home! { sqlite: a_backup_shows_one_moment a_store_that_is_not_empty_is_refused }
