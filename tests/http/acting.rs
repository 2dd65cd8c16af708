//! What operators do to one job, and what is remembered of it.

use reqwest::Method;

use tailback::job::audit::ACTS;

use super::support::*;
use crate::common::server::{client_with, command};

async fn post(server: &Server, id: &str, verb: &str, body: Value) -> (u16, Value) {
    server.post(&format!("/v1/jobs/{id}/{verb}"), body).await
}

pub async fn a_scheduled_job_is_run_now(place: &Place) {
    let server = Server::start(&place.url).await;
    push_and_take(&server, "mail").await;
    let late = server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    let (status, job) = post(&server, &late, "run", json!({})).await;
    assert_eq!((status, &job["state"]), (200, &json!("ready")), "{job}");
    let taken = take(&server, "mail").await;
    assert_eq!(id(&taken), late);
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
    let (status, job) = post(&server, &late, "run", json!({})).await;
    assert_eq!((status, &job["attempt"]), (200, &json!(1)), "its attempts stay: {job}");
    assert_eq!(take(&server, "mail").await["attempt"], 2);
    refused(&post(&server, &late, "run", json!({})).await, 409, "wrong-state");
    refused(&post(&server, "nobody", "run", json!({})).await, 404, "unknown-job");
}

pub async fn a_job_is_taken_back(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let taken = push_and_take(&server, "mail").await;
    let job = id(&taken);
    let since = std::time::Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 2).await;
    let (status, released) = post(&server, &job, "release", json!({})).await;
    assert_eq!(
        (status, &released["state"], &released["id"]),
        (200, &json!("ready"), &json!(job)),
        "{released}"
    );
    assert_eq!(woken(since, waiter).await, std::slice::from_ref(&job), "who waits gets it");
    lost(&server.settle(&taken, "commit", json!({})).await, false);
    lost(&server.settle(&taken, "extend", json!({})).await, false);
    assert_eq!(see(&server, &job).await["attempt"], 1, "the delivery that was taken back does not count");
    // One that was to be cancelled leaves.
    assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{job}"), None).await.0, 202);
    let (status, released) = post(&server, &job, "release", json!({})).await;
    assert_eq!((status, &released["state"]), (200, &json!("removed")), "{released}");
    refused(&server.get(&format!("/v1/jobs/{job}")).await, 404, "unknown-job");
    let ready = server.push("mail", json!({"payload": 1})).await;
    refused(&post(&server, &ready, "release", json!({})).await, 409, "wrong-state");
    refused(&post(&server, "nobody", "release", json!({})).await, 404, "unknown-job");
}

pub async fn a_job_is_moved_without_a_token(place: &Place) {
    let server = Server::start(&place.url).await;
    let ready = server.push("mail", json!({"payload": {"n": 1}, "priority": 2})).await;
    let (status, moved) = post(&server, &ready, "move", json!({"queue": "post"})).await;
    assert_eq!((status, &moved["queue"], &moved["state"]), (200, &json!("post"), &json!("ready")), "{moved}");
    let job = see(&server, &ready).await;
    assert_eq!((&job["priority"], &job["payload"]), (&json!(2), &json!({"n": 1})));
    let later = json!({"queue": "third", "delay_ms": 60_000, "priority": -1});
    let (status, moved) = post(&server, &ready, "move", later).await;
    assert_eq!((status, &moved["state"]), (200, &json!("scheduled")), "{moved}");
    for (field, value) in [("payload", json!(1)), ("headers", json!({"a": "b"})), ("key", json!("k"))] {
        let mut body = json!({"queue": "post"});
        body[field] = value;
        invalid(&post(&server, &ready, "move", body).await, &format!("/{field}"));
    }
    let held = push_and_take(&server, "mail").await;
    refused(&post(&server, &id(&held), "move", json!({"queue": "post"})).await, 409, "wrong-state");
    refused(&post(&server, "nobody", "move", json!({"queue": "post"})).await, 404, "unknown-job");
    configure(&server, "small", json!({"max_jobs": 1})).await;
    server.push("small", json!({"payload": 1})).await;
    refused(&post(&server, &ready, "move", json!({"queue": "small"})).await, 429, "queue-full");
    assert_eq!(see(&server, &ready).await["queue"], "third");
}

/// What was done, the latest first: what, and on which thing.
async fn acts(server: &Server, query: &str) -> Vec<(String, String)> {
    let (status, page) = server.get(&format!("/v1/audit{query}")).await;
    assert_eq!(status, 200, "{page}");
    let entry = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap().to_owned();
        (text("what"), text("on"))
    };
    page["entries"].as_array().unwrap().iter().map(entry).collect()
}

/// Does some acts, and what is none. Returns the ids of the job and of the operation.
async fn operate(server: &Server) -> (String, String) {
    configure(server, "mail", json!({"max_attempts": 1})).await;
    assert_eq!(server.post("/v1/queues/mail/pause", json!({})).await.0, 200);
    assert_eq!(server.post("/v1/queues/mail/resume", json!({})).await.0, 200);
    assert_eq!(server.post("/v1/queues/mail/resume", json!({})).await.0, 200, "which changes nothing");
    assert_eq!(server.send(Method::PUT, "/v1/semaphores/m", Some(json!({"capacity": 2}))).await.0, 200);
    assert_eq!(server.send(Method::DELETE, "/v1/semaphores/m", None).await.0, 200);
    let rule = json!({"cron": "@yearly", "queue": "mail", "job": {"payload": "a secret"}});
    assert_eq!(server.send(Method::PUT, "/v1/schedules/s", Some(rule)).await.0, 200);
    assert_eq!(server.post("/v1/schedules/s/run", json!({})).await.0, 200);
    assert_eq!(server.send(Method::DELETE, "/v1/schedules/s", None).await.0, 200);
    let taken = take(server, "mail").await;
    let job = id(&taken);
    assert_eq!(post(server, &job, "release", json!({})).await.0, 200);
    let taken = take(server, "mail").await;
    assert_eq!(server.settle(&taken, "rollback", json!({})).await.0, 200);
    assert_eq!(post(server, &job, "retry", json!({})).await.0, 200);
    assert_eq!(post(server, &job, "move", json!({"queue": "post"})).await.0, 200);
    take(server, "post").await;
    assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{job}?force=true"), None).await.0, 200);
    // What a client does with its own jobs is none.
    let own = server.push("mail", json!({"payload": 1})).await;
    assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{own}"), None).await.0, 200);
    refused(&post(server, "nobody", "retry", json!({})).await, 404, "unknown-job");
    let (status, operation) =
        server.post("/v1/operations", json!({"filter": {"queue": "mail"}, "action": "delete"})).await;
    assert_eq!(status, 202, "{operation}");
    let path = format!("/v1/operations/{}", id(&operation));
    until("the operation is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    (job, id(&operation))
}

pub async fn each_act_is_remembered(place: &Place) {
    let server = Server::start(&place.url).await;
    let (job, operation) = operate(&server).await;
    let all = [
        ("operation.end", operation.clone()),
        ("operation.begin", operation),
        ("job.cancel", job.clone()),
        ("job.move", job.clone()),
        ("job.retry", job.clone()),
        ("job.release", job.clone()),
        ("schedule.delete", "s".to_owned()),
        ("schedule.run", "s".to_owned()),
        ("schedule.set", "s".to_owned()),
        ("semaphore.delete", "m".to_owned()),
        ("semaphore.set", "m".to_owned()),
        ("queue.resume", "mail".to_owned()),
        ("queue.pause", "mail".to_owned()),
        ("queue.set", "mail".to_owned()),
    ];
    let all = all.map(|(what, on)| (what.to_owned(), on));
    assert_eq!(acts(&server, "").await, all);
    let (_, page) = server.get("/v1/audit?what=queue.pause&queue=mail").await;
    let pause = &page["entries"][0];
    let (_, ends) = server.get("/v1/audit?what=operation.end").await;
    let end = &ends["entries"][0];
    assert_eq!(
        (&end["by"], &end["queue"], &end["affected"]),
        (&json!(""), &json!("mail"), &json!(0)),
        "{end}"
    );
    assert_eq!(end["after"]["state"], "done", "{end}");
    assert_eq!((&pause["by"], &pause["address"]), (&json!(""), &json!("127.0.0.1")), "{pause}");
    assert_eq!(
        (&pause["before"]["paused"], &pause["after"]["paused"]),
        (&Value::Null, &json!(true)),
        "{pause}"
    );
    assert!(
        !server.get("/v1/audit").await.1.to_string().contains("a secret"),
        "payloads are nobody's business"
    );
    // Page by page.
    let (_, first) = server.get("/v1/audit?limit=5").await;
    let rest = format!("?limit=100&cursor={}", first["cursor"].as_str().unwrap());
    assert_eq!(acts(&server, &rest).await, all[5..]);
    let at = pause["at"].as_str().unwrap();
    assert_eq!(acts(&server, &format!("?from={at}")).await[..13], all[..13]);
    let earlier = acts(&server, &format!("?to={at}")).await;
    assert!(earlier.is_empty() || earlier == all[13..], "{earlier:?}");
    bad_parameter(&server.get("/v1/audit?from=yesterday").await, "from");
}

/// The acts, and how many jobs each has affected.
async fn affected(server: &Server) -> Vec<(String, Option<u64>)> {
    let (status, page) = server.get("/v1/audit").await;
    assert_eq!(status, 200, "{page}");
    let entry = |entry: &Value| (entry["what"].as_str().unwrap().to_owned(), entry["affected"].as_u64());
    page["entries"].as_array().unwrap().iter().map(entry).collect()
}

pub async fn acts_on_many_jobs_are_remembered_with_how_many(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1, "retain_done_ms": 600_000})).await;
    for end in ["commit", "commit", "rollback"] {
        let taken = push_and_take(&server, "mail").await;
        assert_eq!(server.settle(&taken, end, json!({})).await.0, 200);
    }
    let (_, done) = server.get("/v1/queues/mail/jobs?state=done").await;
    let finished = id(&done["jobs"][0]);
    assert_eq!(post(&server, &finished, "replay", json!({})).await.0, 201);
    assert_eq!(server.post("/v1/queues/mail/replay", json!({})).await.1, json!({"affected": 2}));
    assert_eq!(server.post("/v1/queues/mail/redrive", json!({})).await.1, json!({"affected": 1}));
    assert_eq!(server.post("/v1/queues/mail/redrive", json!({})).await.1, json!({"affected": 0}));
    for n in 0..2 {
        server.push("mail", json!({"payload": n, "group": "g"})).await;
    }
    let purged = server.post("/v1/queues/mail/purge", json!({"state": "ready"})).await;
    assert_eq!(purged.1, json!({"affected": 5}), "the second one of the group was blocked");
    let held = server.reserve("mail", json!({"worker": "w", "lease_ms": 600_000})).await;
    assert_eq!(held.len(), 1);
    assert_eq!(server.post("/v1/workers/w/heartbeat", json!({"timeout_ms": 600_000})).await.0, 200);
    for _ in 0..2 {
        assert_eq!(server.send(Method::DELETE, "/v1/workers/w", None).await.0, 200);
        // The second time it holds nothing: there is no row of that.
        assert_eq!(server.post("/v1/workers/w/heartbeat", json!({})).await.0, 200);
    }
    let batch = json!({"jobs": [{"queue": "a", "payload": 1}, {"queue": "b", "payload": 2}]});
    let (status, batch) = server.post("/v1/batches", batch).await;
    assert_eq!(status, 201, "{batch}");
    let path = format!("/v1/batches/{}", id(&batch));
    for _ in 0..2 {
        assert_eq!(server.send(Method::DELETE, &path, None).await.0, 200);
    }
    assert_eq!(server.send(Method::DELETE, "/v1/queues/mail?force=true", None).await.0, 200);
    let all = [
        ("queue.delete", None),
        ("queue.empty", Some(3)),
        ("batch.cancel", Some(2)),
        ("worker.remove", Some(1)),
        ("queue.purge", Some(5)),
        ("queue.redrive", Some(1)),
        ("queue.replay", Some(2)),
        ("job.replay", Some(1)),
        ("queue.set", None),
    ];
    assert_eq!(affected(&server).await, all.map(|(what, affected)| (what.to_owned(), affected)));
}

pub async fn a_server_that_only_shows_changes_nothing(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let job = server.push("mail", json!({"payload": 1})).await;
    server.terminate().await;
    let server = Server::start_with(&place.url, &[("TAILBACK_HTTP__READ_ONLY", "true")]).await;
    // That it is ready was seen at its start: while the store is slow it may not be for a moment.
    for path in ["/v1/queues", "/stats", "/v1/operations", "/v1/audit"] {
        assert_eq!(server.get(path).await.0, 200, "{path}");
    }
    assert_eq!(see(&server, &job).await["state"], "ready");
    let path = format!("/v1/jobs/{job}");
    for (method, path, body) in [
        (Method::POST, "/v1/queues/mail/jobs", Some(json!({"payload": 1}))),
        (Method::POST, "/v1/queues/mail/reserve", Some(json!({}))),
        (Method::POST, "/v1/queues/mail/pause", Some(json!({}))),
        (Method::PUT, "/v1/queues/mail", Some(json!({}))),
        (Method::PATCH, path.as_str(), Some(json!({"priority": 1}))),
        (Method::DELETE, path.as_str(), None),
        (Method::POST, "/v1/settle", Some(json!({"commit": []}))),
    ] {
        refused(&server.send(method, path, body).await, 403, "read-only");
    }
    // What only looks is answered.
    let mut body = json!({"filter": {"queue": "mail"}, "action": "delete"});
    refused(&server.post("/v1/operations", body.clone()).await, 403, "read-only");
    body["dry_run"] = json!(true);
    let (status, sample) = server.post("/v1/operations", body).await;
    assert_eq!((status, &sample["matched"]), (200, &json!(1)), "{sample}");
    assert_eq!(see(&server, &job).await["priority"], 0);
    refused(&server.post("/v1/nowhere", json!({})).await, 404, "not-found");
}

/// Sends a request that must succeed.
async fn send(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let body = Some(body).filter(|body| !body.is_null());
    let (status, answer) = server.send(method.parse().unwrap(), path, body).await;
    assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    answer
}

async fn act_on_settings(server: &Server) {
    configure(server, "mail", json!({"max_attempts": 1, "retain_done_ms": 600_000})).await;
    send(server, "PATCH", "/v1/queues/mail", json!({"lease_ms": 60_000})).await;
    for call in ["pause", "resume"] {
        send(server, "POST", &format!("/v1/queues/mail/{call}"), json!({})).await;
    }
    for capacity in [2, 3] {
        send(server, "PUT", "/v1/semaphores/m", json!({"capacity": capacity})).await;
    }
    send(server, "DELETE", "/v1/semaphores/m", Value::Null).await;
    let rule = json!({"cron": "@yearly", "queue": "other", "job": {"payload": 1}});
    send(server, "PUT", "/v1/schedules/s", rule).await;
    send(server, "POST", "/v1/schedules/s/run", json!({})).await;
    send(server, "DELETE", "/v1/schedules/s", Value::Null).await;
}

async fn act_on_a_job(server: &Server) {
    let job = server.push("mail", json!({"payload": "a secret", "delay_ms": 3_600_000})).await;
    assert_eq!(post(server, &job, "run", json!({})).await.0, 200);
    take(server, "mail").await;
    assert_eq!(post(server, &job, "release", json!({})).await.0, 200);
    for call in ["retry", "redrive"] {
        let taken = take(server, "mail").await;
        assert_eq!(server.settle(&taken, "rollback", json!({})).await.0, 200);
        assert_eq!(post(server, &job, call, json!({})).await.0, 200);
    }
    assert_eq!(post(server, &job, "move", json!({"queue": "post", "priority": 3})).await.0, 200);
    take(server, "post").await;
    send(server, "DELETE", &format!("/v1/jobs/{job}?force=true"), Value::Null).await;
    for end in ["commit", "rollback"] {
        let taken = push_and_take(server, "mail").await;
        assert_eq!(server.settle(&taken, end, json!({})).await.0, 200);
    }
    let (_, done) = server.get("/v1/queues/mail/jobs?state=done").await;
    assert_eq!(post(server, &id(&done["jobs"][0]), "replay", json!({})).await.0, 201);
}

async fn act_on_many_jobs(server: &Server) {
    for call in ["replay", "redrive"] {
        send(server, "POST", &format!("/v1/queues/mail/{call}"), json!({})).await;
    }
    send(server, "POST", "/v1/queues/mail/purge", json!({"state": "ready"})).await;
    server.push("mail", json!({"payload": 1})).await;
    assert_eq!(server.reserve("mail", json!({"worker": "w"})).await.len(), 1);
    send(server, "DELETE", "/v1/workers/w", Value::Null).await;
    let batch = send(server, "POST", "/v1/batches", json!({"jobs": [{"queue": "a", "payload": 1}]})).await;
    send(server, "DELETE", &format!("/v1/batches/{}", id(&batch)), Value::Null).await;
}

/// Begins an operation that ends by itself, and one that is cancelled.
async fn run_operations(server: &Server, points: &std::path::Path) {
    let all = json!({"filter": {"queue": "mail"}, "action": "delete"});
    for stops in [false, true] {
        server.push("mail", json!({"payload": 1})).await;
        if stops {
            std::fs::write(points.join("operation.chosen"), "pause").unwrap();
        }
        let operation = send(server, "POST", "/v1/operations", all.clone()).await;
        let path = format!("/v1/operations/{}", id(&operation));
        if stops {
            until("it acts", || async { points.join("operation.chosen.met").exists() }).await;
            send(server, "DELETE", &path, Value::Null).await;
            std::fs::remove_file(points.join("operation.chosen.met")).unwrap();
        }
        until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    }
}

/// As soon as there is a key, each call needs one.
async fn act_on_keys(server: &mut Server) {
    let key = send(server, "POST", "/v1/keys", json!({"name": "ann", "scopes": ["admin"]})).await;
    let path = format!("/v1/keys/{}", id(&key));
    use_key(server, &key);
    let key = send(server, "POST", &format!("{path}/rotate"), json!({})).await;
    use_key(server, &key);
    let other = send(server, "POST", "/v1/keys", json!({"name": "bob", "scopes": ["read"]})).await;
    send(server, "DELETE", &format!("/v1/keys/{}", id(&other)), Value::Null).await;
}

/// Does each act that there is, and makes a key the last.
async fn do_all_acts(server: &mut Server, points: &std::path::Path) {
    act_on_settings(server).await;
    act_on_a_job(server).await;
    act_on_many_jobs(server).await;
    run_operations(server, points).await;
    send(server, "DELETE", "/v1/queues/mail?force=true", Value::Null).await;
    act_on_keys(server).await;
}

fn use_key(server: &mut Server, key: &Value) {
    let mut headers = reqwest::header::HeaderMap::new();
    headers.insert("authorization", format!("Bearer {}", key["key"].as_str().unwrap()).parse().unwrap());
    server.http = client_with(headers);
}

/// What the audit and the log say alike.
fn said(of: &Value, id: &str) -> Vec<Value> {
    let fields = [id, "what", "on", "queue", "by", "by_name", "address", "affected"];
    fields.map(|field| of[field].clone()).to_vec()
}

pub async fn each_act_is_a_line_of_the_log(place: &Place) {
    let (log, points) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    let environment =
        [("TAILBACK_LOG__FILTER", "info"), ("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let mut command = command(&place.url, &environment);
    command.stderr(log.reopen().unwrap());
    let mut server = Server::of(command);
    server.until_ready().await;
    do_all_acts(&mut server, points.path()).await;
    let (_, page) = server.get("/v1/audit?limit=1000").await;
    let entries = page["entries"].as_array().unwrap();
    let mut acts: Vec<&str> = entries.iter().map(|entry| entry["what"].as_str().unwrap()).collect();
    acts.sort_unstable();
    acts.dedup();
    assert_eq!(acts, ACTS, "each that there is");
    let logged = || {
        let text = std::fs::read_to_string(log.path()).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut said: Vec<_> =
            lines.filter(|line| line["message"] == "operated").map(|line| said(&line, "entry")).collect();
        said.sort_by_key(|said| said[0].to_string());
        said
    };
    until("all lines are there", || async { logged().len() >= entries.len() }).await;
    let mut remembered: Vec<_> = entries.iter().map(|entry| said(entry, "id")).collect();
    remembered.sort_by_key(|said| said[0].to_string());
    assert_eq!(logged(), remembered);
    let text = std::fs::read_to_string(log.path()).unwrap();
    assert!(!text.contains("a secret"), "{text}");
}

pub async fn an_act_says_what_was_before_and_after(place: &Place) {
    let server = Server::start(&place.url).await;
    for capacity in [2, 3] {
        let body = json!({"capacity": capacity});
        assert_eq!(server.send(Method::PUT, "/v1/semaphores/m", Some(body)).await.0, 200);
    }
    assert_eq!(server.send(Method::DELETE, "/v1/semaphores/m", None).await.0, 200);
    let job = server.push("mail", json!({"payload": "a secret", "delay_ms": 3_600_000})).await;
    assert_eq!(post(&server, &job, "run", json!({})).await.0, 200);
    take(&server, "mail").await;
    assert_eq!(post(&server, &job, "release", json!({})).await.0, 200);
    assert_eq!(post(&server, &job, "move", json!({"queue": "post", "priority": 3})).await.0, 200);
    take(&server, "post").await;
    assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{job}?force=true"), None).await.0, 200);
    let (_, page) = server.get("/v1/audit").await;
    let shown = |of: &Value| match of {
        Value::Null => Value::Null,
        of if of["capacity"].is_number() => of["capacity"].clone(),
        of => {
            assert!(of["run_at"].is_string(), "{of}");
            json!([of["queue"], of["state"], of["attempt"], of["priority"]])
        }
    };
    let entries = page["entries"].as_array().unwrap().iter();
    let seen: Vec<Value> = entries
        .map(|entry| json!([entry["what"], shown(&entry["before"]), shown(&entry["after"])]))
        .collect();
    let all = json!([
        ["job.cancel", ["post", "reserved", 1, 3], null],
        ["job.move", ["mail", "ready", 0, 0], ["post", "ready", 0, 3]],
        ["job.release", ["mail", "reserved", 1, 0], ["mail", "ready", 0, 0]],
        ["job.run", ["mail", "scheduled", 0, 0], ["mail", "ready", 0, 0]],
        ["semaphore.delete", 3, null],
        ["semaphore.set", 2, 3],
        ["semaphore.set", null, 2],
    ]);
    assert_eq!(json!(seen), all);
    assert!(!page.to_string().contains("a secret"), "{page}");
}
