//! Batches over HTTP.

use std::time::Instant;

use reqwest::Method;

use super::support::*;

async fn create(server: &Server, body: Value) -> Value {
    let (status, answer) = server.post("/v1/batches", body).await;
    assert_eq!(status, 201, "{answer}");
    answer
}

fn path(batch: &Value) -> String {
    format!("/v1/batches/{}", id(batch))
}

async fn counts(server: &Server, batch: &Value) -> [u64; 4] {
    let (status, shown) = server.get(&path(batch)).await;
    assert_eq!(status, 200, "{shown}");
    ["pending", "done", "dead", "cancelled"].map(|field| shown[field].as_u64().unwrap())
}

pub async fn a_batch_goes_on_to_the_next_task(place: &Place) {
    let server = Server::start(&place.url).await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "analyze");
    until_looked(&server, 1).await;
    let jobs: Vec<Value> =
        (0..3).map(|n| json!({"queue": format!("check-{}", n % 2), "payload": {"n": n}})).collect();
    let on_finished =
        json!({"queue": "analyze", "payload": {"of": 1.50}, "headers": {"trace": "t"}, "priority": 2});
    let body = json!({"jobs": jobs, "on_finished": on_finished}).to_string();
    let reply = post_text(&server, "/v1/batches", &body).await;
    let batch = reply.json();
    assert_eq!((reply.status, reply.header("location")), (201, path(&batch).as_str()), "{batch}");
    assert_eq!((&batch["sealed"], &batch["pending"]), (&json!(true), &json!(3)));
    assert_eq!(server.get(&path(&batch)).await.1["callback_queue"], "analyze");
    let pushed = ids(batch["jobs"].as_array().unwrap());
    assert_eq!(see(&server, &pushed[0]).await["batch"], batch["id"]);
    assert_eq!(server.get(&format!("/v1/jobs/{}", batch["callback"].as_str().unwrap())).await.0, 404);
    for name in ["check-0", "check-1"] {
        for job in server.reserve(name, json!({"count": 9, "lease_ms": 600_000})).await {
            let n = &job["payload"]["n"];
            assert_eq!(server.settle(&job, "commit", json!({"result": {"was": n}})).await.0, 200);
        }
    }
    assert_eq!(woken(since, waiter).await, [batch["callback"].as_str().unwrap()]);
    assert_eq!(counts(&server, &batch).await, [0, 3, 0, 0]);
    let called = see(&server, batch["callback"].as_str().unwrap()).await;
    assert_eq!((&called["payload"], &called["priority"]), (&json!({"of": 1.5}), &json!(2)));
    let headers = json!({
        "trace": "t", "batch-id": batch["id"], "batch-done": "3", "batch-dead": "0", "batch-cancelled": "0",
    });
    assert_eq!(called["headers"], headers);
    let (mut cursor, mut seen) = (String::new(), Vec::new());
    loop {
        let (status, page) = server.get(&format!("{}/results?limit=2{cursor}", path(&batch))).await;
        assert_eq!(status, 200, "{page}");
        seen.extend(page["results"].as_array().unwrap().iter().cloned());
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(ids(&seen), pushed);
    assert_eq!((&seen[2]["state"], &seen[2]["result"]), (&json!("done"), &json!({"was": 2})));
}

pub async fn a_batch_is_filled_and_sealed(place: &Place) {
    let server = Server::start(&place.url).await;
    let batch = create(&server, json!({"sealed": false})).await;
    assert_eq!((&batch["sealed"], batch.get("callback")), (&json!(false), None));
    assert_eq!(batch.get("callback_queue"), None);
    let add = async || {
        let body = json!({"jobs": [{"queue": "a", "payload": 1}]});
        server.post(&format!("{}/jobs", path(&batch)), body).await
    };
    let (status, answer) = add().await;
    assert_eq!((status, &answer["pending"], answer["jobs"].as_array().unwrap().len()), (200, &json!(1), 1));
    let first = server.send(Method::POST, &format!("{}/seal", path(&batch)), None).await;
    assert_eq!((first.0, &first.1["sealed"]), (200, &json!(true)));
    assert_eq!(server.send(Method::POST, &format!("{}/seal", path(&batch)), None).await, first);
    refused(&add().await, 409, "batch-sealed");
}

pub async fn a_batch_can_be_cancelled(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = json!([{"queue": "a", "payload": 1}, {"queue": "a", "payload": 2}, {"queue": "b", "payload": 3, "delay_ms": 60_000}]);
    let batch = create(
        &server,
        json!({"jobs": jobs, "sealed": false, "on_finished": {"queue": "after", "payload": null}}),
    )
    .await;
    let held = server.reserve("a", json!({"lease_ms": 600_000})).await.remove(0);
    let (status, answer) = server.send(Method::DELETE, &path(&batch), None).await;
    assert_eq!((status, &answer), (200, &json!({"affected": 2})));
    assert_eq!(counts(&server, &batch).await, [1, 0, 0, 2]);
    assert!(server.reserve("after", json!({})).await.is_empty());
    let (_, extended) = server.settle(&held, "extend", json!({})).await;
    assert_eq!(extended["cancel_requested"], true, "its worker learns of it: {extended}");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    let called = take(&server, "after").await;
    assert_eq!(called["headers"]["batch-cancelled"], "2");
    assert_eq!(server.send(Method::DELETE, &path(&batch), None).await, (200, json!({"affected": 0})));
}

/// Jobs end between the moment in which a cancel finds them and the one in which it takes them away.
pub async fn a_cancel_leaves_the_jobs_of_a_batch_that_have_ended(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Server::start_with(&place.url, &faults).await;
    configure(&server, "a", json!({"retain_done_ms": 600_000})).await;
    configure(&server, "b", json!({"dead_letter": "graves"})).await;
    let one = json!({"queue": "a", "payload": 1, "max_attempts": 1});
    let other = json!({"queue": "b", "payload": 1, "max_attempts": 1});
    let batch = create(&server, json!({"jobs": [one, one, one, other]})).await;
    let mut held = server.reserve("a", json!({"count": 2, "lease_ms": 600_000})).await;
    held.extend(server.reserve("b", json!({"lease_ms": 600_000})).await);
    std::fs::write(points.path().join("batch.found"), "pause").unwrap();
    let url = format!("{}{}", server.base, path(&batch));
    let call = server.http.delete(url).send();
    let cancel = tokio::spawn(async move { call.await.unwrap().json::<Value>().await.unwrap() });
    until("the cancel has found them", || async { points.path().join("batch.found.met").exists() }).await;
    assert_eq!(server.settle(&held[0], "commit", json!({})).await.0, 200);
    for lost in &held[1..] {
        assert_eq!(server.settle(lost, "rollback", json!({"error": "no"})).await.0, 200);
    }
    std::fs::write(points.path().join("batch.found.go"), "").unwrap();
    assert_eq!(cancel.await.unwrap(), json!({"affected": 1}));
    for (job, state) in held.iter().zip(["done", "dead", "ready"]) {
        let (status, shown) = server.get(&format!("/v1/jobs/{}", id(job))).await;
        assert_eq!((status, &shown["state"]), (200, &json!(state)), "{shown}");
    }
    assert_eq!(counts(&server, &batch).await, [0, 1, 2, 1]);
}

pub async fn what_is_wrong_with_a_batch_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    let good = json!({"queue": "a", "payload": 1});
    for (body, pointer) in [
        (json!({"jobs": [good, {"queue": "a", "delay_ms": -1}]}), "/jobs/1/delay_ms"),
        (json!({"jobs": [good, {"queue": "-", "payload": 1}]}), "/jobs/1/queue"),
        (json!({"jobs": [{"queue": "a", "payload": 1, "max_attempts": -1}]}), "/jobs/0/max_attempts"),
        (json!({"jobs": vec![good.clone(); 1001]}), "/jobs"),
        (json!({"jobs": [good], "on_finished": {"payload": 1}}), "/on_finished/queue"),
        (
            json!({"jobs": [good], "on_finished": {"queue": "a", "payload": 1, "key": "k"}}),
            "/on_finished/key",
        ),
        (
            json!({"jobs": [good], "on_finished": {"queue": "a", "payload": 1, "max_attempts": -1}}),
            "/on_finished/max_attempts",
        ),
        (json!({"jobs": [good], "seal": true}), "/seal"),
    ] {
        invalid(&server.post("/v1/batches", body).await, pointer);
    }
    for path in ["/v1/batches/nobody", "/v1/batches/no.token", "/v1/batches/nobody/results"] {
        refused(&server.get(path).await, 404, "unknown-batch");
    }
    refused(&server.send(Method::DELETE, "/v1/batches/nobody", None).await, 404, "unknown-batch");
    refused(&server.post("/v1/batches/nobody/jobs", json!({"jobs": [good]})).await, 404, "unknown-batch");
    let open = create(&server, json!({"sealed": false})).await;
    invalid(&server.post(&format!("{}/jobs", path(&open)), json!({"jobs": []})).await, "/jobs");
    configure(&server, "full", json!({"max_jobs": 1})).await;
    let two = json!({"jobs": [good, {"queue": "full", "payload": 1}, {"queue": "full", "payload": 1}]});
    refused(&server.post("/v1/batches", two).await, 429, "queue-full");
    assert!(server.reserve("a", json!({})).await.is_empty(), "nothing was pushed");
}

/// Two servers end the jobs of one batch at once, some of them both.
pub async fn two_servers_call_back_once(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    let jobs = vec![json!({"queue": "a", "payload": 1}); 200];
    let batch = create(&one, json!({"jobs": jobs, "on_finished": {"queue": "after", "payload": 0}})).await;
    let taken = one.reserve("a", json!({"count": 200, "lease_ms": 600_000})).await;
    let commit = |job: &Value| json!({"id": job["id"], "reservation": job["reservation"], "result": 1});
    let settle = async |server: &Server, jobs: &[Value]| {
        for part in jobs.chunks(8) {
            let body = json!({"commit": part.iter().map(commit).collect::<Vec<_>>()});
            let (status, answer) = server.post("/v1/settle", body).await;
            assert_eq!(status, 200, "{answer}");
            let settled = answer["commit"].as_array().unwrap();
            assert!(settled.iter().all(|one| one["status"] == 200), "{answer}");
        }
    };
    tokio::join!(settle(&one, &taken[..120]), settle(&two, &taken[80..]));
    assert_eq!(counts(&two, &batch).await, [0, 200, 0, 0]);
    assert_eq!(ids(&two.reserve("after", json!({"count": 9})).await), [batch["callback"].as_str().unwrap()]);
}

pub async fn batches_are_listed(place: &Place) {
    let server = Server::start(&place.url).await;
    let (status, page) = server.get("/v1/batches").await;
    assert_eq!((status, page), (200, json!({"batches": []})));
    let jobs = json!([{"queue": "a", "payload": 1}]);
    let open = create(&server, json!({"sealed": false})).await;
    let sealed = create(&server, json!({"jobs": jobs})).await;
    let finished = create(&server, json!({"jobs": [{"queue": "b", "payload": 1}]})).await;
    let taken = take(&server, "b").await;
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    let list = async |query: &str| {
        let (status, page) = server.get(&format!("/v1/batches{query}")).await;
        assert_eq!(status, 200, "{page}");
        page
    };
    let all = list("").await;
    assert_eq!(ids(all["batches"].as_array().unwrap()), [id(&open), id(&sealed), id(&finished)]);
    assert_eq!(all["batches"][1], server.get(&path(&sealed)).await.1);
    for (state, batch) in [("open", &open), ("sealed", &sealed), ("finished", &finished)] {
        let page = list(&format!("?state={state}")).await;
        assert_eq!(ids(page["batches"].as_array().unwrap()), [id(batch)]);
    }
    let (mut seen, mut query) = (Vec::new(), "?limit=1".to_owned());
    loop {
        let page = list(&query).await;
        seen.extend(ids(page["batches"].as_array().unwrap()));
        let Some(cursor) = page["cursor"].as_str() else { break };
        query = format!("?limit=1&cursor={cursor}");
    }
    assert_eq!(seen, [id(&open), id(&sealed), id(&finished)]);
    for (query, parameter) in [("state=done", "state"), ("limit=0", "limit"), ("x=1", "query")] {
        bad_parameter(&server.get(&format!("/v1/batches?{query}")).await, parameter);
    }
}
