//! What producers say of deliveries (`lease_ms`, `max_run_ms`, `max_attempts: 0`), headers of any value, and changes of jobs that
//! wait.

use std::time::{Duration, Instant};

use reqwest::Method;

use super::support::*;

async fn patch(server: &Server, id: &str, change: Value) -> (u16, Value) {
    server.send(Method::PATCH, &format!("/v1/jobs/{id}"), Some(change)).await
}

/// Between two times that a job shows.
fn ms_between(from: &Value, to: &Value) -> i64 {
    let ms = |time: &Value| time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond();
    ms(to) - ms(from)
}

fn lease_ms(job: &Value) -> i64 {
    ms_between(&job["started_at"], &job["reserved_until"])
}

pub async fn the_lease_of_the_request_the_job_and_the_queue(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"lease_ms": 50_000})).await;
    server.push("mail", json!({"payload": 1, "lease_ms": 70_000})).await;
    server.push("mail", json!({"payload": 2})).await;
    let taken = server.reserve("mail", json!({"count": 2})).await;
    assert_eq!(taken.iter().map(lease_ms).collect::<Vec<_>>(), [70_000, 50_000]);
    assert_eq!((&taken[0]["lease_ms"], taken[1].get("lease_ms")), (&json!(70_000), None), "its own one");
    for job in &taken {
        assert_eq!(server.settle(job, "rollback", json!({"delay_ms": 0})).await.0, 200);
    }
    let taken = server.reserve("mail", json!({"count": 2, "lease_ms": 60_000})).await;
    assert_eq!(taken.iter().map(lease_ms).collect::<Vec<_>>(), [60_000, 60_000]);
    // A repeat of a keyed reserve keeps to it as well.
    server.push("keyed", json!({"payload": 1, "lease_ms": 80_000})).await;
    let keyed = async || {
        let path = "/v1/queues/keyed/reserve";
        raw(&server, "POST", path, &[("idempotency-key", "k")], "{}").await.json()["jobs"][0].clone()
    };
    let since = Instant::now();
    let (first, again) = (keyed().await, keyed().await);
    assert_eq!((&first["id"], lease_ms(&first)), (&again["id"], 80_000));
    // It may be so much longer as the repeat came later.
    let most = 110_000 + since.elapsed().as_millis() as i64;
    assert!((80_000..most).contains(&lease_ms(&again)), "{again}");
}

pub async fn a_delivery_ends_after_its_longest_time(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1, "max_run_ms": 1500, "max_attempts": 2})).await;
    let taken = server.reserve("mail", json!({"worker": "w1", "lease_ms": 60_000})).await.remove(0);
    assert_eq!((lease_ms(&taken), &taken["max_run_ms"]), (1500, &json!(1500)), "the first lease is cut");
    let (status, extended) = server.settle(&taken, "extend", json!({"lease_ms": 60_000})).await;
    if status == 200 {
        assert_eq!(extended["reserved_until"], taken["reserved_until"], "and so is every other");
    }
    let beat = server.post("/v1/workers/w1/heartbeat", json!({"timeout_ms": 60_000})).await;
    assert_eq!(beat.0, 200);
    until("it lapsed", || async { see(&server, &id(&taken)).await["state"] == "ready" }).await;
    lost(&server.settle(&taken, "extend", json!({})).await, false);
    let seen = see(&server, &id(&taken)).await;
    assert_eq!((&seen["attempt"], &seen["errors"][0]["message"]), (&json!(1), &json!("max_run_ms was over")));
}

pub async fn attempts_may_be_without_limit(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1})).await;
    server.push("mail", json!({"payload": 1, "max_attempts": 0})).await;
    for attempt in 1..8 {
        let taken = take(&server, "mail").await;
        assert_eq!((&taken["attempt"], &taken["max_attempts"]), (&json!(attempt), &json!(0)));
        assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 0})).await.1["state"], "ready");
    }
    configure(&server, "post", json!({"max_attempts": 0})).await;
    let (_, queue) = server.get("/v1/queues/post").await;
    assert_eq!((&queue["max_attempts"], &queue["effective"]["max_attempts"]), (&json!(0), &json!(0)));
    server.push("post", json!({"payload": 1})).await;
    for _ in 0..7 {
        let taken = take(&server, "post").await;
        assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 0})).await.1["state"], "ready");
    }
}

pub async fn headers_are_any_json(place: &Place) {
    let server = Server::start(&place.url).await;
    let text = r#"{"big":123456789012345678901234567890,"flags":[true,null],"none":null,"price":1.10,"trace":"00-ab","x":{"b":1e5,"a":""}}"#;
    let pushed =
        post_text(&server, "/v1/queues/mail/jobs", &format!(r#"{{"payload":1,"headers":{text}}}"#)).await;
    assert_eq!(pushed.status, 201, "{}", pushed.text);
    let path = format!("/v1/jobs/{}", id(&pushed.json()));
    let shown = |reply: Reply| {
        assert!(reply.text.contains(&format!("\"headers\":{text}")), "{}", reply.text);
        reply.json()
    };
    shown(raw(&server, "GET", &path, &[], "").await);
    let reserved = shown(post_text(&server, "/v1/queues/mail/reserve", "{}").await);
    assert_eq!(server.settle(&reserved["jobs"][0], "move", json!({"queue": "next"})).await.0, 200);
    shown(raw(&server, "GET", &path, &[], "").await);
    shown(raw(&server, "PATCH", &path, &[], r#"{"priority":1}"#).await);
    // Schedules and callbacks of batches have the same.
    let rule = format!(r#"{{"cron":"0 0 1 1 *","queue":"later","job":{{"payload":1,"headers":{text}}}}}"#);
    let set = raw(&server, "PUT", "/v1/schedules/s", &[], rule).await;
    assert_eq!(set.status, 200, "{}", set.text);
    assert_eq!(server.post("/v1/schedules/s/run", json!({})).await.0, 200);
    shown(post_text(&server, "/v1/queues/later/reserve", "{}").await);
    let batch =
        r#"{"jobs":[],"on_finished":{"queue":"over","payload":1,"lease_ms":70000,"headers":{"price":1.10}}}"#;
    let made = post_text(&server, "/v1/batches", batch).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let called = post_text(&server, "/v1/queues/over/reserve", "{}").await;
    assert!(called.text.contains(r#""price":1.10"#), "{}", called.text);
    assert_eq!(lease_ms(&called.json()["jobs"][0]), 70_000);
}

pub async fn a_waiting_job_gets_other_limits(place: &Place) {
    let server = Server::start(&place.url).await;
    let body = json!({"payload": 1, "headers": {"a": "1"}, "max_attempts": 3, "expires_in_ms": 600_000});
    let pushed = server.push("mail", body).await;
    let change = json!({"max_attempts": 0, "headers": {"b": [1]}, "expires_in_ms": 900_000});
    let (status, seen) = patch(&server, &pushed, change).await;
    assert_eq!(
        (status, &seen["max_attempts"], &seen["headers"]),
        (200, &json!(0), &json!({"b": [1]})),
        "{seen}"
    );
    assert!(ms_between(&seen["created_at"], &seen["expires_at"]) >= 900_000);
    let (_, seen) =
        patch(&server, &pushed, json!({"max_attempts": null, "headers": null, "expires_in_ms": null})).await;
    assert_eq!(
        (&seen["max_attempts"], &seen["headers"], seen.get("expires_at")),
        (&json!(5), &json!({}), None)
    );
    let (_, same) = patch(&server, &pushed, json!({})).await;
    assert_eq!(same, seen);
    for (pointer, change) in [
        ("/max_attempts", json!({"max_attempts": 1_000_001})),
        ("/max_attempts", json!({"max_attempts": -1})),
        ("/expires_in_ms", json!({"expires_in_ms": 0})),
        ("/headers", json!({"headers": {"a b": 1}})),
        ("/headers", json!({"headers": [1]})),
        ("/group", json!({"group": "-"})),
    ] {
        invalid(&patch(&server, &pushed, change).await, pointer);
    }
    // One that is over at once is taken away.
    let (status, answer) = patch(&server, &pushed, json!({"expires_in_ms": 1})).await;
    // It may have left before the server has read what it is now.
    assert!(status == 200 || answer["code"] == "store-unavailable", "{status} {answer}");
    until("it expired", || async { server.get(&format!("/v1/jobs/{pushed}")).await.0 == 404 }).await;
}

pub async fn a_waiting_job_changes_its_group(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut all = Vec::new();
    for group in ["a", "a", "b"] {
        all.push(server.push("mail", json!({"payload": 1, "group": group})).await);
    }
    let waiter = begin_reserve(&server, "elsewhere");
    assert_eq!(see(&server, &all[1]).await["state"], "blocked");
    let (status, seen) = patch(&server, &all[0], json!({"group": "b"})).await;
    assert_eq!((status, &seen["state"], &seen["group"]), (200, &json!("blocked"), &json!("b")));
    assert_eq!(see(&server, &all[1]).await["state"], "ready", "its turn has come");
    let (_, seen) = patch(&server, &all[0], json!({"group": null})).await;
    assert_eq!((&seen["state"], seen.get("group")), (&json!("ready"), None));
    let (_, seen) = patch(&server, &all[0], json!({"group": "a"})).await;
    assert_eq!(seen["state"], "blocked", "at the end of the line");
    let taken = server.reserve("mail", json!({"count": 9, "lease_ms": 600_000})).await;
    assert_eq!(ids(&taken), [all[1].clone(), all[2].clone()]);
    refused(&patch(&server, &all[1], json!({"group": "b"})).await, 409, "wrong-state");
    assert_eq!(server.settle(&taken[0], "commit", json!({})).await.0, 200);
    assert_eq!(id(&take(&server, "mail").await), all[0]);
    waiter.abort();
}

/// A worker that only extends one of its jobs, after one heartbeat, keeps all of them.
pub async fn an_extend_shows_that_its_worker_lives(place: &Place) {
    let server = Server::start(&place.url).await;
    for n in 0..2 {
        server.push("mail", json!({"payload": n})).await;
    }
    let jobs = server.reserve("mail", json!({"count": 2, "worker": "w", "lease_ms": 600_000})).await;
    let (begin, mut heard) = (Instant::now(), Instant::now());
    let beat = server.post("/v1/workers/w/heartbeat", json!({"timeout_ms": 2000})).await;
    assert_eq!(beat.0, 200);
    let mut late = false;
    // From before one call was sent until the next one is answered: no longer was it silent in between.
    let too_long = Duration::from_millis(1000);
    while begin.elapsed() < Duration::from_secs(6) {
        let before = Instant::now();
        let (status, _) = server.settle(&jobs[1], "extend", json!({})).await;
        late |= heard.elapsed() > too_long || status != 200;
        heard = before;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let held = see(&server, &id(&jobs[0])).await;
    late |= heard.elapsed() > too_long;
    assert!(late || held["state"] == "reserved", "three timeouts later: {held}");
    // Once it extends no more, it is silent.
    until("it is taken back", || async { see(&server, &id(&jobs[0])).await["state"] == "ready" }).await;
}

pub async fn what_is_out_of_range_of_a_delivery_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    for (pointer, field) in [
        ("/lease_ms", json!({"lease_ms": 99})),
        ("/lease_ms", json!({"lease_ms": 86_400_001})),
        ("/max_run_ms", json!({"max_run_ms": 99})),
        ("/max_run_ms", json!({"max_run_ms": 31_536_000_001_u64})),
        ("/max_run_ms", json!({"max_run_ms": "1"})),
    ] {
        let mut job = field.clone();
        job["payload"] = json!(1);
        invalid(&server.post("/v1/queues/mail/jobs", job.clone()).await, pointer);
        let rule = json!({"cron": "* * * * *", "queue": "mail", "job": job});
        let (status, problem) = server.send(Method::PUT, "/v1/schedules/s", Some(rule)).await;
        assert_eq!((status, &problem["pointer"]), (422, &json!(format!("/job{pointer}"))), "{problem}");
    }
}
