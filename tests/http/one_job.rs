//! What operators do to one job, and looking at what comes next.

use reqwest::Method;

use super::support::*;

async fn post(server: &Server, id: &str, verb: &str) -> (u16, Value) {
    server.post(&format!("/v1/jobs/{id}/{verb}"), json!({})).await
}

async fn kill(server: &Server, queue: &str, job: Value) -> String {
    let mut job = job;
    job["max_attempts"] = json!(1);
    server.push(queue, job).await;
    let taken = take(server, queue).await;
    assert_eq!(server.settle(&taken, "rollback", json!({"error": "no"})).await.0, 200);
    id(&taken)
}

pub async fn a_job_is_retried_by_its_id(place: &Place) {
    let server = Server::start(&place.url).await;
    // One that is dead, in the queue where it is.
    let dead = kill(&server, "mail", json!({"payload": 1})).await;
    let (status, job) = post(&server, &dead, "retry").await;
    assert_eq!((status, &job["state"], &job["attempt"]), (200, &json!("ready"), &json!(0)), "{job}");
    assert_eq!((job.get("finished_at"), &job["errors"][0]["message"]), (None, &json!("no")));
    let taken = take(&server, "mail").await;
    assert_eq!((id(&taken), &taken["attempt"]), (dead.clone(), &json!(1)));
    // One that a worker holds, and one that is done or gone.
    refused(&post(&server, &dead, "retry").await, 409, "wrong-state");
    // One that waits for its backoff, and one that has not been delivered yet.
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
    assert_eq!(see(&server, &dead).await["state"], "dead", "one attempt was all it had");
    let late = server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    let failed = server.push("other", json!({"payload": 1})).await;
    let taken = take(&server, "other").await;
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
    for (job, queue) in [(late, "mail"), (failed, "other")] {
        let (status, answer) = post(&server, &job, "retry").await;
        assert_eq!((status, &answer["state"], &answer["attempt"]), (200, &json!("ready"), &json!(0)));
        // Again it changes nothing.
        assert_eq!(post(&server, &job, "retry").await, (200, answer));
        assert_eq!(id(&take(&server, queue).await), job);
    }
    refused(&post(&server, "nobody", "retry").await, 404, "unknown-job");
}

pub async fn a_retry_wakes_whoever_waits_and_keeps_groups(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let dead = kill(&server, "mail", json!({"payload": 1, "group": "g"})).await;
    let next = server.push("mail", json!({"payload": 2, "group": "g"})).await;
    assert_eq!(see(&server, &next).await["state"], "blocked", "the dead one holds its group");
    refused(&post(&server, &next, "retry").await, 409, "wrong-state");
    let since = std::time::Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 2).await;
    assert_eq!(post(&server, &dead, "retry").await.0, 200);
    assert_eq!(woken(since, waiter).await, [dead]);
}

pub async fn a_job_is_redriven_by_its_id(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"dead_letter": "letters"})).await;
    let (letter, stays) = (
        kill(&server, "mail", json!({"payload": 1})).await,
        kill(&server, "mail", json!({"payload": 2})).await,
    );
    let own = kill(&server, "other", json!({"payload": 3})).await;
    for (job, home) in [(&letter, "mail"), (&own, "other")] {
        let (status, answer) = post(&server, job, "redrive").await;
        assert_eq!(
            (status, &answer["queue"], &answer["state"]),
            (200, &json!(home), &json!("ready")),
            "{answer}"
        );
        refused(&post(&server, job, "redrive").await, 409, "wrong-state");
    }
    assert_eq!(see(&server, &stays).await["queue"], "letters");
    refused(&post(&server, "nobody", "redrive").await, 404, "unknown-job");
}

pub async fn a_job_is_replayed_by_its_id(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 3_600_000, "max_jobs": 2})).await;
    let job = json!({"payload": {"n": 1.50}, "key": "k", "priority": 3, "headers": {"h": "x"}});
    let done = server.push("mail", job).await;
    refused(&post(&server, &done, "replay").await, 409, "wrong-state");
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "commit", json!({"result": 1})).await.0, 200);
    let path = format!("/v1/jobs/{done}/replay");
    let first = raw(&server, "POST", &path, &[("idempotency-key", "k")], "{}").await;
    assert_eq!(first.status, 201, "{}", first.text);
    let copy = see(&server, first.json()["id"].as_str().unwrap()).await;
    assert_eq!(first.header("location"), format!("/v1/jobs/{}", id(&copy)));
    assert_eq!(
        (&copy["replay_of"], &copy["payload"], &copy["priority"]),
        (&json!(done), &json!({"n": 1.50}), &json!(3))
    );
    assert_eq!((copy.get("key"), &copy["headers"]), (None, &json!({"h": "x"})));
    // A repeat pushes nothing, another call does, until the queue is full.
    let again = raw(&server, "POST", &path, &[("idempotency-key", "k")], "{}").await;
    assert_eq!((again.status, &again.text), (201, &first.text));
    assert_eq!(post(&server, &done, "replay").await.0, 201);
    refused(&post(&server, &done, "replay").await, 429, "queue-full");
    assert_eq!(see(&server, &done).await["result"], 1);
    let dead = kill(&server, "other", json!({"payload": 2})).await;
    assert_eq!(post(&server, &dead, "replay").await.0, 201);
    refused(&post(&server, "nobody", "replay").await, 404, "unknown-job");
}

pub async fn a_delete_leaves_what_a_worker_holds_where_it_is_told_to(place: &Place) {
    let server = Server::start(&place.url).await;
    let held = push_and_take(&server, "mail").await;
    let delete = async |id: &str, query: &str| {
        server.send(Method::DELETE, &format!("/v1/jobs/{id}?{query}"), None).await
    };
    refused(&delete(&id(&held), "reserved=refuse").await, 409, "wrong-state");
    assert_eq!(see(&server, &id(&held)).await.get("cancel_requested"), None);
    bad_parameter(&delete(&id(&held), "reserved=refuse&force=true").await, "reserved");
    bad_parameter(&delete(&id(&held), "reserved=x").await, "reserved");
    assert_eq!(delete(&id(&held), "reserved=request").await.0, 202);
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    let ready = server.push("mail", json!({"payload": 1, "key": "k"})).await;
    assert_eq!(delete(&ready, "reserved=refuse").await.0, 200);
    assert_ne!(server.push("mail", json!({"payload": 1, "key": "k"})).await, ready, "its key is free");
}

pub async fn a_peek_shows_what_comes_next(place: &Place) {
    let server = Server::start(&place.url).await;
    let peek = async |query: &str| {
        let (status, answer) = server.get(&format!("/v1/queues/mail/peek{query}")).await;
        assert_eq!(status, 200, "{answer}");
        ids(answer["jobs"].as_array().unwrap())
    };
    assert!(peek("").await.is_empty());
    let push = async |job: Value| server.push("mail", job).await;
    let usual = push(json!({"payload": 1})).await;
    let second = push(json!({"payload": 2, "group": "g"})).await;
    let urgent = push(json!({"payload": 3, "priority": 7})).await;
    let early = push(json!({"payload": 4, "run_at": "2000-01-01T00:00:00Z"})).await;
    push(json!({"payload": 5, "delay_ms": 3_600_000, "priority": 9})).await;
    push(json!({"payload": 6, "group": "g"})).await;
    let expected = [urgent.clone(), early.clone(), usual.clone(), second.clone()];
    assert_eq!(peek("").await, expected);
    assert_eq!(peek("?limit=2").await, expected[..2]);
    // A pause is not considered, and nothing is reserved by it.
    let (status, _) = server.post("/v1/queues/mail/pause", json!({})).await;
    assert_eq!((status, peek("?limit=1").await), (200, vec![urgent.clone()]));
    server.post("/v1/queues/mail/resume", json!({})).await;
    let taken = server.reserve("mail", json!({"count": 4})).await;
    assert_eq!(ids(&taken), expected);
    assert!(peek("").await.is_empty());
    bad_parameter(&server.get("/v1/queues/mail/peek?limit=0").await, "limit");
}

pub async fn a_reserve_takes_so_many_bytes(place: &Place) {
    let server = Server::start(&place.url).await;
    let text = |bytes: usize| "x".repeat(bytes - 2); // and its quotes
    let fill = async |queue: &str, sizes: &[usize]| {
        for bytes in sizes {
            server.push(queue, json!({"payload": text(*bytes)})).await;
        }
    };
    let sizes = async |path: &str, body: Value| {
        let (status, answer) = server.post(path, body).await;
        assert_eq!(status, 200, "{answer}");
        let jobs = answer["jobs"].as_array().unwrap().iter();
        jobs.map(|job| job["payload"].as_str().unwrap().len() + 2).collect::<Vec<usize>>()
    };
    fill("a", &[1000; 20]).await;
    let path = "/v1/queues/a/reserve";
    let ask = |max_bytes: u64| json!({"count": 1000, "max_bytes": max_bytes});
    assert_eq!(sizes(path, ask(1)).await, [1000], "at least one");
    assert_eq!(sizes(path, ask(3999)).await, [1000; 3]);
    assert_eq!(sizes(path, ask(4000)).await, [1000; 4]);
    assert_eq!(sizes(path, json!({"count": 2, "max_bytes": 1_000_000})).await, [1000; 2]);
    assert_eq!(sizes(path, ask(u64::MAX)).await, [1000; 10]);
    // What did not fit was not delivered, and comes next.
    fill("b", &[100, 5000, 100, 100_000]).await;
    let many = |max_bytes: u64| json!({"queues": ["b", "c"], "count": 10, "max_bytes": max_bytes});
    assert_eq!(sizes("/v1/reserve", many(1000)).await, [100]);
    let look = async || {
        let (_, page) = server.get("/v1/queues/b/peek").await;
        page["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["attempt"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    until("the others are there again", || async { look().await.len() == 3 }).await;
    assert_eq!(look().await, [0; 3]);
    fill("c", &[200]).await;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        seen.extend(sizes("/v1/reserve", many(6000)).await); // what was given back is there again soon
    }
    seen.sort();
    assert_eq!(seen, [100, 200, 5000, 100_000]);
    invalid(&server.post(path, json!({"max_bytes": 0})).await, "/max_bytes");
    assert_eq!(server.post(path, json!({"max_bytes": -1})).await.0, 422);
}
