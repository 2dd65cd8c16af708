//! A backup has everything, as it was at one moment, and brings it back.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use super::support::{
    Folder, export, import, indexed, keyed, lines, of_kind, put, refused, restore, run, tailback, taken,
};
use crate::common::server::{Place, Server, until};

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
pub async fn everything_comes_back(from: &Place, to: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&from.url).await;
    indexed(from).await;
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
pub async fn a_backup_shows_one_moment(place: &Place) {
    const CHAINS: u64 = 40;
    const EXPORTS: usize = 4;
    let server = Server::start(&place.url).await;
    indexed(place).await;
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

/// The audit has it as it is, and so has a backup.
pub async fn what_was_asked_for_is_kept_however_deep_it_is_nested(place: &Place) {
    let folder = Folder::new();
    let file = folder.file("all.jsonl");
    let mut server = Server::start(&place.url).await;
    let nested = [124, 127, 500].map(|depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
    for deep in &nested {
        let filter = format!(r#"{{"queue":"q","state":"dead","payload":{{"a":{deep}}}}}"#);
        let body = format!(r#"{{"filter":{filter},"action":"retry"}}"#);
        let call = server.http.post(format!("{}/v1/operations", server.base));
        let answer = call.header("content-type", "application/json").body(body).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 202, "{}", answer.text().await.unwrap());
    }
    let call = server.http.get(format!("{}/v1/audit?what=operation.begin", server.base));
    let audit = call.send().await.unwrap().text().await.unwrap();
    assert!(server.terminate().await.success());
    export(place, &file).await;
    let rows: Vec<String> =
        lines(&file).into_iter().filter(|line| line.contains("\"operation.begin\"")).collect();
    assert_eq!(rows.len(), nested.len(), "{rows:?}");
    for deep in nested {
        let kept = format!("\"payload\":{{\"a\":{deep}}}");
        assert!(audit.contains(&kept) && rows.iter().any(|row| row.contains(&kept)), "{kept}: {audit}");
    }
}
