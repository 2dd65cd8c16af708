//! Operations over many jobs.

use std::cell::RefCell;

use reqwest::Method;

use super::support::*;

/// Pushes jobs that die at once.
async fn kill(server: &Server, queue: &str, count: usize) -> Vec<String> {
    let jobs: Vec<Value> = (0..count).map(|n| json!({"payload": n, "max_attempts": 1})).collect();
    let (status, pushed) =
        server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({"jobs": jobs})).await;
    assert_eq!(status, 200, "{pushed}");
    let taken = server.reserve(queue, json!({"count": count, "lease_ms": 600_000})).await;
    assert_eq!(taken.len(), count);
    let rollback: Vec<Value> = taken
        .iter()
        .map(|job| json!({"id": job["id"], "reservation": job["reservation"], "error": "no"}))
        .collect();
    let (status, settled) = server.post("/v1/settle", json!({"rollback": rollback})).await;
    assert_eq!(status, 200, "{settled}");
    ids(&taken)
}

async fn begin_one(server: &Server, body: Value) -> String {
    let (status, operation) = server.post("/v1/operations", body).await;
    assert_eq!((status, &operation["state"]), (202, &json!("queued")), "{operation}");
    id(&operation)
}

async fn operation(server: &Server, id: &str) -> Value {
    let (status, operation) = server.get(&format!("/v1/operations/{id}")).await;
    assert_eq!(status, 200, "{operation}");
    operation
}

/// Waits until an operation is over.
async fn over(server: &Server, id: &str) -> Value {
    until("the operation is over", || async {
        let now = operation(server, id).await;
        now["state"] != "queued" && now["state"] != "running"
    })
    .await;
    operation(server, id).await
}

/// What a dry run has found once it has looked at all jobs: on a slow machine its time is over before, and it says so.
async fn dry_run(server: &Server, body: Value) -> Value {
    let sample = RefCell::new(Value::Null);
    until("all jobs are looked at", || async {
        let (status, found) = server.post("/v1/operations", body.clone()).await;
        assert_eq!(status, 200, "{found}");
        let is_complete = found["complete"] == true;
        *sample.borrow_mut() = found;
        is_complete
    })
    .await;
    sample.into_inner()
}

async fn count(server: &Server, queue: &str, state: &str) -> usize {
    let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?state={state}&limit=1000")).await;
    assert_eq!(status, 200, "{page}");
    page["jobs"].as_array().unwrap().len()
}

pub async fn an_operation_retries_many_jobs_in_the_background(place: &Place) {
    let server = Server::start(&place.url).await;
    let dead = kill(&server, "mail", 250).await;
    kill(&server, "other", 3).await;
    let body = json!({"filter": {"queue": "mail", "state": "dead"}, "action": "retry"});
    let id = begin_one(&server, body).await;
    let now = over(&server, &id).await;
    assert_eq!(
        (&now["state"], &now["affected"], &now["skipped"]),
        (&json!("done"), &json!(250), &json!(0)),
        "{now}"
    );
    assert_eq!((&now["matched"], &now["filter"]), (&json!(250), &json!({"queue": "mail", "state": "dead"})));
    assert!(now["started_at"].is_string() && now["finished_at"].is_string() && now["rate_per_s"].is_number());
    assert_eq!((count(&server, "mail", "ready").await, count(&server, "other", "dead").await), (250, 3));
    let again = see(&server, &dead[0]).await;
    assert_eq!((&again["attempt"], &again["state"]), (&json!(0), &json!("ready")));
    let (_, list) = server.get("/v1/operations?limit=1").await;
    assert_eq!((&list["operations"][0]["id"], list.get("cursor")), (&json!(id), None), "{list}");
    refused(&server.get("/v1/operations/nobody").await, 404, "unknown-operation");
}

pub async fn an_operation_takes_no_job_twice(place: &Place) {
    // What dies again while the operation runs, in another queue that it means, is not taken again.
    let server = Server::start(&place.url).await;
    configure(&server, "a", json!({"dead_letter": "b"})).await;
    configure(&server, "b", json!({"max_attempts": 1})).await;
    let letters = kill(&server, "a", 1).await;
    let body = json!({"filter": {"dead_lettered": true}, "action": "redrive", "confirm": "all queues"});
    let id = begin_one(&server, body.clone()).await;
    let now = over(&server, &id).await;
    assert_eq!((&now["state"], &now["affected"]), (&json!("done"), &json!(1)), "{now}");
    assert_eq!(see(&server, &letters[0]).await["queue"], "a");
    // It dies again, after the next operation was asked for and before that acts.
    let id = begin_one(&server, body).await;
    let taken = take(&server, "a").await;
    assert_eq!(server.settle(&taken, "rollback", json!({"dead": true})).await.0, 200);
    let now = over(&server, &id).await;
    let letter = see(&server, &letters[0]).await;
    let was_there = now["affected"] == 1; // it died before the moment that counts
    assert_eq!(letter["queue"] == "a", was_there, "{now} {letter}");
    assert_eq!(now["state"], "done");
}

pub async fn an_operation_takes_the_conditions_of_a_search(place: &Place) {
    let server = Server::start(&place.url).await;
    for n in 0..30 {
        let user = json!({"user": {"id": n % 3}, "n": n});
        server.push("mail", json!({"payload": user, "headers": {"of": n % 2}, "max_attempts": 1})).await;
        let taken = take(&server, "mail").await;
        let error = if n < 20 { format!("no answer after {n} ms") } else { "refused".to_owned() };
        assert_eq!(server.settle(&taken, "rollback", json!({"error": error})).await.0, 200);
    }
    let run = async |filter: Value| {
        let filter = filter.as_object().unwrap().clone();
        let mut body = json!({"filter": {"queue": "mail", "state": "dead"}, "action": "retry"});
        body["filter"].as_object_mut().unwrap().extend(filter);
        let id = begin_one(&server, body).await;
        let now = over(&server, &id).await;
        assert_eq!((&now["state"], now.get("error")), (&json!("done"), None), "{now}");
        now["affected"].as_u64().unwrap()
    };
    let largest = RefCell::new(Value::Null);
    until("all are counted", || async {
        let (_, groups) = server.get("/v1/dead?group_by=error&queue=mail").await;
        *largest.borrow_mut() = groups["groups"][0].clone();
        groups["complete"] == true // a slow machine counts until its time is over
    })
    .await;
    let largest = largest.into_inner();
    assert_eq!(largest["count"], 20, "{largest}");
    assert_eq!(run(json!({"error_group": largest["error"], "payload": {"user.id": 1}})).await, 7);
    assert_eq!(
        run(json!({"error": "answer", "headers": {"of": 1}})).await,
        10 - 4,
        "n = 1, 7, 13, 19 are retried"
    );
    assert_eq!(run(json!({"payload": {"n": 25}, "worker": "nobody"})).await, 0);
    assert_eq!(run(json!({"payload": {"n": 25}})).await, 1);
    assert_eq!(count(&server, "mail", "dead").await, 30 - 7 - 6 - 1);
    for (filter, pointer) in [
        (json!({"queue": "mail", "error": ""}), "/filter/error"),
        (json!({"queue": "mail", "error_group": "e".repeat(513)}), "/filter/error_group"),
        (json!({"queue": "mail", "payload": {"a..b": 1}}), "/filter/payload"),
        (json!({"queue": "mail", "headers": {"": 1}}), "/filter/headers"),
    ] {
        invalid(&server.post("/v1/operations", json!({"filter": filter, "action": "retry"})).await, pointer);
    }
}

pub async fn everything_must_be_asked_for_by_name(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail.in", json!({"payload": 1})).await;
    server.push("post", json!({"payload": 1})).await;
    let ask = |filter: Value, confirm: Option<&str>| {
        let mut body = json!({"filter": filter, "action": "delete"});
        if let Some(confirm) = confirm {
            body["confirm"] = json!(confirm);
        }
        server.post("/v1/operations", body)
    };
    invalid(&ask(json!({}), None).await, "/confirm");
    invalid(&ask(json!({"queue": "*"}), Some("*")).await, "/confirm");
    invalid(&ask(json!({"queue": "mail.*"}), Some("all queues")).await, "/confirm");
    invalid(&ask(json!({"queue": "mail in"}), None).await, "/filter/queue");
    invalid(&ask(json!({"stat": "dead"}), None).await, "/filter/stat");
    invalid(&ask(json!({"queue": "post", "state": "reserved"}), None).await, "/filter/state");
    assert_eq!((count(&server, "post", "ready").await, count(&server, "mail.in", "ready").await), (1, 1));
    let (status, one) = ask(json!({"queue": "mail.*"}), Some("mail.*")).await;
    assert_eq!(status, 202, "{one}");
    assert_eq!(over(&server, &id(&one)).await["affected"], 1);
    let (status, all) = ask(json!({}), Some("all queues")).await;
    assert_eq!(status, 202, "{all}");
    assert_eq!(over(&server, &id(&all)).await["affected"], 1);
    for (body, pointer) in [
        (json!({"filter": {"queue": "q"}, "action": "move"}), "/to"),
        (json!({"filter": {"queue": "q"}, "action": "retry", "to": "p"}), "/to"),
        (json!({"filter": {"queue": "q"}, "action": "set_priority"}), "/priority"),
        (json!({"filter": {"queue": "q"}, "action": "delete", "limit": 0}), "/limit"),
        (json!({"filter": {"queue": "q"}, "action": "burn"}), "/action"),
        (json!({"action": "delete"}), "/filter"),
    ] {
        invalid(&server.post("/v1/operations", body).await, pointer);
    }
}

pub async fn each_action_does_what_it_says(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "done", json!({"retain_done_ms": 3_600_000})).await;
    for _ in 0..3 {
        server.push("q", json!({"payload": 1})).await;
        let done = push_and_take(&server, "done").await;
        assert_eq!(server.settle(&done, "commit", json!({})).await.0, 200);
    }
    let act = async |body: Value| over(&server, &begin_one(&server, body).await).await;
    let raised =
        act(json!({"filter": {"queue": "q"}, "action": "set_priority", "priority": 7, "limit": 2})).await;
    assert_eq!((&raised["affected"], &raised["limit"]), (&json!(2), &json!(2)), "{raised}");
    let (_, jobs) = server.get("/v1/queues/q/jobs").await;
    let priorities: Vec<i64> =
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["priority"].as_i64().unwrap()).collect();
    assert_eq!(priorities, [7, 7, 0]);
    let moved =
        act(json!({"filter": {"queue": "q", "state": "ready"}, "action": "move", "to": "p", "priority": 1}))
            .await;
    assert_eq!((&moved["affected"], count(&server, "p", "ready").await), (&json!(3), 3), "{moved}");
    let replayed = act(json!({"filter": {"queue": "done"}, "action": "replay"})).await;
    assert_eq!((&replayed["affected"], count(&server, "done", "ready").await), (&json!(3), 3), "{replayed}");
    assert_eq!(count(&server, "done", "done").await, 3, "history stays");
    let deleted = act(json!({"filter": {"queue": "done", "state": "done"}, "action": "delete"})).await;
    assert_eq!((&deleted["affected"], count(&server, "done", "done").await), (&json!(3), 0), "{deleted}");
    // Where there is no room, it says so.
    configure(&server, "small", json!({"max_jobs": 2})).await;
    let failed = act(json!({"filter": {"queue": "p"}, "action": "move", "to": "small"})).await;
    assert_eq!((&failed["state"], &failed["affected"]), (&json!("failed"), &json!(2)), "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("small"), "{failed}");
    assert_eq!((count(&server, "small", "ready").await, count(&server, "p", "ready").await), (2, 1));
}

/// Copies that a full queue refuses are made once there is room, each once.
pub async fn a_replay_into_a_full_queue_goes_on_later(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "small", json!({"retain_done_ms": 600_000})).await;
    for _ in 0..5 {
        let taken = push_and_take(&server, "small").await;
        assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    }
    configure(&server, "small", json!({"retain_done_ms": 600_000, "max_jobs": 2})).await;
    let id = begin_one(&server, json!({"filter": {"queue": "small"}, "action": "replay"})).await;
    let full = "queue small has as many unfinished jobs as its max_jobs allows";
    until("it says why it waits", || async { operation(&server, &id).await["errors"] == json!([full]) })
        .await;
    let waits = operation(&server, &id).await;
    let figures =
        |now: &Value| [&now["affected"], &now["scanned"], &now["skipped"]].map(|n| n.as_u64().unwrap());
    assert_eq!((&waits["state"], figures(&waits)), (&json!("running"), [2, 2, 0]), "{waits}");
    until("all are copied", || async {
        for taken in server.reserve("small", json!({"count": 2, "lease_ms": 600_000})).await {
            assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
        }
        operation(&server, &id).await["state"] != "running"
    })
    .await;
    let done = operation(&server, &id).await;
    assert_eq!((&done["state"], figures(&done)), (&json!("done"), [5, 5, 0]), "{done}");
    let (_, page) = server.get("/v1/queues/small/jobs?limit=1000").await;
    let copied = |job: &Value| job["replay_of"].as_str().map(str::to_owned);
    let mut originals: Vec<String> = page["jobs"].as_array().unwrap().iter().filter_map(copied).collect();
    originals.sort();
    originals.dedup();
    assert_eq!((page["jobs"].as_array().unwrap().len(), originals.len()), (10, 5));
}

pub async fn a_dry_run_changes_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    let dead = kill(&server, "mail", 12).await;
    server.push("mail", json!({"payload": 1})).await;
    let body = json!({"filter": {"queue": "mail"}, "action": "retry", "dry_run": true});
    let sample = dry_run(&server, body).await;
    assert_eq!(sample["matched"], 12, "{sample}");
    assert_eq!((&sample["estimate"], sample["samples"].as_array().unwrap().len()), (&json!(12), 10));
    assert_eq!(sample["samples"][0], json!({"id": dead[0], "queue": "mail", "state": "dead"}));
    assert_eq!(count(&server, "mail", "dead").await, 12);
    assert_eq!(server.get("/v1/operations").await.1, json!({"operations": []}));
}

pub async fn an_operation_is_stopped(place: &Place) {
    let server = Server::start(&place.url).await;
    kill(&server, "mail", 5).await;
    let body = json!({"filter": {"queue": "mail", "state": "dead"}, "action": "retry"});
    let id = begin_one(&server, body).await;
    // It acts half a second later at the earliest.
    let path = format!("/v1/operations/{id}");
    let (status, stopped) = server.send(Method::DELETE, &path, None).await;
    assert_eq!(status, 200, "{stopped}");
    let now = operation(&server, &id).await;
    assert!(["cancelled", "done"].contains(&now["state"].as_str().unwrap()), "{now}");
    assert_eq!(now["affected"].as_u64().unwrap() as usize, count(&server, "mail", "ready").await);
    assert_eq!(server.send(Method::DELETE, &path, None).await.1["state"], now["state"], "again");
    refused(&server.send(Method::DELETE, "/v1/operations/nobody", None).await, 404, "unknown-operation");
}

pub async fn a_repeat_begins_no_second_operation(place: &Place) {
    let server = Server::start(&place.url).await;
    kill(&server, "mail", 2).await;
    let body = json!({"filter": {"queue": "mail", "state": "dead"}, "action": "retry"}).to_string();
    let key = [("idempotency-key", "k1")];
    let first = raw(&server, "POST", "/v1/operations", &key, body.clone()).await;
    assert_eq!(
        (first.status, first.header("location")),
        (202, format!("/v1/operations/{}", id(&first.json())).as_str())
    );
    over(&server, &id(&first.json())).await;
    let again = raw(&server, "POST", "/v1/operations", &key, body.clone()).await.json();
    assert_eq!((id(&again), &again["state"]), (id(&first.json()), &json!("done")));
    let other = raw(&server, "POST", "/v1/operations", &key, body.replace("retry", "delete")).await;
    refused(&other.answer(), 422, "idempotency-key-reused");
    assert_eq!(server.get("/v1/operations").await.1["operations"].as_array().unwrap().len(), 1);
}

/// A condition of a filter as the parameters of a search.
fn query_of(condition: &Value) -> String {
    let query: Vec<String> = condition
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| match value {
            Value::Array(states) => {
                let states: Vec<&str> = states.iter().map(|state| state.as_str().unwrap()).collect();
                format!("state={}", states.join(","))
            }
            Value::String(text) => format!("{name}={text}"),
            number => format!("{name}={number}"),
        })
        .collect();
    query.join("&")
}

pub async fn an_operation_takes_every_condition_of_a_search(place: &Place) {
    let server = Server::start(&place.url).await;
    kill(&server, "w.s", 2).await;
    let jobs: Vec<Value> = (1..=4).map(|n| json!({"payload": n, "priority": n})).collect();
    let (status, pushed) = server.post("/v1/queues/w.s/jobs/batch", json!({"jobs": jobs})).await;
    assert_eq!(status, 200, "{pushed}");
    server.push("w.s", json!({"payload": 5, "run_at": "2199-01-01T00:00:00Z"})).await;
    let failed = take(&server, "w.s").await;
    assert_eq!(server.settle(&failed, "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
    server.push("w.t", json!({"payload": 6})).await;
    server.push("v", json!({"payload": 7})).await;
    let (past, soon) = ("2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z");
    for (condition, count) in [
        (json!({"priority_min": 3}), 2),
        (json!({"priority_max": 2}), 6),
        (json!({"attempts_min": 1}), 3),
        (json!({"attempts_max": 0}), 5),
        (json!({"run_at_from": soon}), 1),
        (json!({"run_at_before": soon}), 7),
        (json!({"created_from": past, "created_before": soon}), 8),
        (json!({"created_before": past}), 0),
        (json!({"finished_from": past}), 2),
        (json!({"finished_before": soon, "finished_from": past}), 2),
        (json!({"states": ["ready", "dead"]}), 6),
        (json!({"states": ["dead"], "priority_max": 0}), 2),
    ] {
        let mut filter = condition.clone();
        filter["queue_prefix"] = json!("w.");
        let body = json!({"filter": filter, "action": "delete", "dry_run": true, "confirm": "w.*"});
        let found = dry_run(&server, body).await;
        assert_eq!(found["matched"], count, "{condition}: {found}");
        let (_, sought) = server.get(&format!("/v1/jobs?queue_prefix=w.&{}", query_of(&condition))).await;
        assert_eq!(sought["jobs"].as_array().unwrap().len(), count, "{condition}: {sought}");
    }
    // What is done, and shown: with the names that servers of older versions know.
    let body = json!({"filter": {"queue_prefix": "w.", "states": ["dead"], "attempts_max": 1}, "action": "delete", "confirm": "w.*"});
    let one = over(&server, &begin_one(&server, body).await).await;
    assert_eq!(one["affected"], 2, "{one}");
    assert_eq!(one["filter"], json!({"queue": "w.*", "state": "dead", "attempts_max": 1}));
    let body = json!({"filter": {"queue": "w.s", "states": ["scheduled", "ready"], "priority_min": 1}, "action": "delete"});
    let several = over(&server, &begin_one(&server, body).await).await;
    assert_eq!(several["affected"], 4, "{several}");
    assert_eq!(several["filter"]["states"], json!(["scheduled", "ready"]));
    let (_, left) = server.get("/v1/jobs?queue_prefix=w.").await;
    assert_eq!(left["jobs"].as_array().unwrap().len(), 2, "{left}");
}

pub async fn what_is_wrong_with_a_filter_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    let (past, soon) = ("2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z");
    for (filter, pointer) in [
        (json!({"queue": "w.s", "queue_prefix": "w."}), "/filter/queue_prefix"),
        (json!({"queue_prefix": "-"}), "/filter/queue_prefix"),
        (json!({"queue": "w.s", "state": "dead", "states": ["ready"]}), "/filter/states"),
        (json!({"queue": "w.s", "states": ["ready", "ready"]}), "/filter/states"),
        (json!({"queue": "w.s", "states": ["ready", "reserved"]}), "/filter/states"),
        (json!({"queue": "w.s", "priority_min": 2, "priority_max": 1}), "/filter/priority_max"),
        (json!({"queue": "w.s", "run_at_from": soon, "run_at_before": past}), "/filter/run_at_before"),
    ] {
        let answer = server.post("/v1/operations", json!({"filter": filter, "action": "delete"})).await;
        invalid(&answer, pointer);
    }
}

pub async fn a_sample_says_what_it_has_looked_at_and_what_to_expect(place: &Place) {
    let server = Server::start(&place.url).await;
    for (queue, count) in [("big.a", 30), ("big.b", 20), ("small", 5)] {
        let jobs: Vec<Value> = (0..count).map(|n| json!({"payload": {"n": n}})).collect();
        let (status, pushed) =
            server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({"jobs": jobs})).await;
        assert_eq!(status, 200, "{pushed}");
    }
    let dry = async |filter: Value, limit: Option<u64>| {
        let body = json!({"filter": filter, "action": "delete", "dry_run": true, "confirm": "big.*", "limit": limit});
        let found = dry_run(&server, body).await;
        assert_eq!(found.get("estimate_is_approximate"), None, "{found}");
        ["matched", "scanned", "estimate"].map(|name| found[name].as_u64().unwrap())
    };
    assert_eq!(dry(json!({"queue": "big.*"}), None).await, [50, 50, 50]);
    assert_eq!(dry(json!({"queue": "big.*"}), Some(10)).await, [50, 50, 10]);
    assert_eq!(dry(json!({"queue": "big.*", "payload": {"n": 3}}), None).await, [2, 50, 2]);
    // What it does is told by the counts of all queues that are meant.
    until("the counts know of all", || async {
        let (_, stats) = server.get("/stats").await;
        stats["counts"]["ready"] == 55
    })
    .await;
    let change =
        json!({"filter": {"queue": "big.*"}, "action": "set_priority", "priority": 2, "confirm": "big.*"});
    let whole = over(&server, &begin_one(&server, change).await).await;
    assert_eq!([&whole["matched"], &whole["affected"], &whole["scanned"]], [50, 50, 50], "{whole}");
    let change = json!({"filter": {"queue": "big.*", "payload": {"n": 3}}, "action": "set_priority", "priority": 3, "confirm": "big.*"});
    let few = over(&server, &begin_one(&server, change).await).await;
    assert_eq!([&few["affected"], &few["scanned"]], [2, 50], "{few}");
    assert_eq!(few.get("matched"), None, "{few}");
}

/// A repeat finds what was begun, also where no other one may begin.
pub async fn a_repeat_finds_its_operation_among_many(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let server =
        Server::start_with(&place.url, &[("TAILBACK_FAULTS", points.path().to_str().unwrap())]).await;
    kill(&server, "mail", 1).await;
    std::fs::write(points.path().join("operation.chosen"), "pause").unwrap();
    let body = json!({"filter": {"queue": "mail", "state": "dead"}, "action": "retry"});
    begin_one(&server, body.clone()).await;
    // While the first one stands still, none of those that come is worked on.
    let met = points.path().join("operation.chosen.met");
    until("the first one stands still", || async { met.exists() }).await;
    for _ in 1..99 {
        begin_one(&server, body.clone()).await;
    }
    let key = [("idempotency-key", "k")];
    let first = raw(&server, "POST", "/v1/operations", &key, body.to_string()).await;
    assert_eq!(first.status, 202, "{}", first.text);
    refused(&server.post("/v1/operations", body.clone()).await, 429, "limit-reached");
    let again = raw(&server, "POST", "/v1/operations", &key, body.to_string()).await;
    assert_eq!((again.status, &again.json()["id"]), (202, &first.json()["id"]), "{}", again.text);
    std::fs::write(points.path().join("operation.chosen.go"), "").unwrap();
}

/// The end of those before it makes the next one ready: it was blocked, which was asked for as well.
pub async fn a_whole_group_is_deleted_by_its_states(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..150).map(|n| json!({"payload": n, "group": "g"})).collect();
    let (status, pushed) = server.post("/v1/queues/mail/jobs/batch", json!({"jobs": jobs})).await;
    assert_eq!(status, 200, "{pushed}");
    let filter = json!({"queue": "mail", "states": ["ready", "blocked"]});
    let id = begin_one(&server, json!({"filter": filter, "action": "delete"})).await;
    let now = over(&server, &id).await;
    assert_eq!((&now["affected"], &now["skipped"]), (&json!(150), &json!(0)), "{now}");
}

/// A group is deleted from its end on, so that none of it becomes ready meanwhile.
pub async fn all_that_were_blocked_are_deleted_by_their_state(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "held", json!({"on_group_dead": "hold"})).await;
    for (queue, state, first) in [
        ("held", "dead", json!({"payload": 0, "group": "g", "max_attempts": 1})),
        ("later", "scheduled", json!({"payload": 0, "group": "g", "delay_ms": 3_600_000})),
    ] {
        server.push(queue, first).await;
        let jobs: Vec<Value> = (0..150).map(|n| json!({"payload": n, "group": "g"})).collect();
        let (status, pushed) =
            server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({"jobs": jobs})).await;
        assert_eq!(status, 200, "{pushed}");
        if state == "dead" {
            let taken = take(&server, queue).await;
            assert_eq!(server.settle(&taken, "rollback", json!({})).await.0, 200);
        }
        let filter = json!({"queue": queue, "states": [state, "blocked"]});
        let now =
            over(&server, &begin_one(&server, json!({"filter": filter, "action": "delete"})).await).await;
        assert_eq!((&now["affected"], &now["skipped"]), (&json!(151), &json!(0)), "{now}");
    }
}
