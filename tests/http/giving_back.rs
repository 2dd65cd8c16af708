//! Rollbacks that are more than a retry: buried, put off, or back in their place.

use super::support::*;

/// Reserves so many jobs of the queue `mail`, in the order of delivery.
async fn order(server: &Server, count: usize) -> Vec<String> {
    ids(&server.reserve("mail", json!({"count": count})).await)
}

pub async fn a_job_is_given_up_for_good(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let first = server.settle(&taken, "rollback", json!({"dead": true, "error": "hopeless"})).await;
    assert_eq!(first, (200, json!({"id": taken["id"], "state": "dead"})));
    let seen = see(&server, &id(&taken)).await;
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("dead"), &json!(1)));
    assert_eq!(seen["errors"][0]["message"], "hopeless");
    assert!(seen["finished_at"].is_string());
    assert_eq!(server.settle(&taken, "rollback", json!({"dead": true})).await, repeat_of(&first));
    let redriven = server.post("/v1/queues/mail/redrive", json!({})).await;
    assert_eq!(redriven.1["affected"], 1);

    // As any death: into the dead-letter queue, out of its group, counted in its batch.
    configure(&server, "post", json!({"dead_letter": "graves", "on_group_dead": "skip"})).await;
    let job = |n: usize| json!({"queue": "post", "payload": n, "group": "g"});
    let body = json!({"jobs": [job(1), job(2)], "on_finished": {"queue": "over", "payload": 0}});
    let (status, batch) = server.post("/v1/batches", body).await;
    assert_eq!(status, 201, "{batch}");
    let taken = take(&server, "post").await;
    let answer = server.settle(&taken, "rollback", json!({"dead": true})).await;
    assert_eq!(answer.1, json!({"id": taken["id"], "state": "dead", "queue": "graves"}));
    let letter = take(&server, "graves").await;
    assert_eq!(letter["dead_lettered_from"]["error"], "given up without an error");
    let next = take(&server, "post").await;
    assert_ne!(next["id"], taken["id"], "the group goes on");
    assert_eq!(server.settle(&next, "commit", json!({})).await.0, 200);
    assert_eq!(take(&server, "over").await["headers"]["batch-dead"], "1");
}

pub async fn a_job_is_put_off_without_counting(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1})).await;
    let mut taken = push_and_take(&server, "mail").await;
    for _ in 0..3 {
        let (status, answer) = server.settle(&taken, "rollback", json!({"count_attempt": false})).await;
        assert_eq!((status, &answer["state"]), (200, &json!("ready")), "at once, and never dead: {answer}");
        taken = take(&server, "mail").await;
        assert_eq!((&taken["attempt"], &taken["errors"]), (&json!(1), &json!([])));
    }
    let body = json!({"count_attempt": false, "delay_ms": 3_600_000, "error": "not yet"});
    let (_, answer) = server.settle(&taken, "rollback", body).await;
    assert_eq!(answer["state"], "scheduled");
    let seen = see(&server, &id(&taken)).await;
    assert_eq!((&seen["attempt"], &seen["errors"][0]["message"]), (&json!(0), &json!("not yet")));
    let (status, _) = server
        .send(
            reqwest::Method::PATCH,
            &format!("/v1/jobs/{}", id(&taken)),
            Some(json!({"run_at": seen["created_at"]})),
        )
        .await;
    assert_eq!(status, 200);
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "rollback", json!({})).await.1["state"], "dead", "this one counts");
}

pub async fn a_job_comes_back_at_a_moment(place: &Place) {
    let server = Server::start(&place.url).await;
    for body in [json!({}), json!({"count_attempt": false})] {
        let taken = push_and_take(&server, "mail").await;
        let mut body = body;
        body["run_at"] = json!("2100-01-01T00:00:00.000Z");
        let first = server.settle(&taken, "rollback", body).await;
        assert_eq!(
            (&first.1["state"], &first.1["run_at"]),
            (&json!("scheduled"), &json!("2100-01-01T00:00:00.000Z"))
        );
        // Who repeats it with something else is told what the first one did.
        let again = server.settle(&taken, "rollback", json!({"delay_ms": 0, "dead": false})).await;
        assert_eq!(again, repeat_of(&first));
        assert_eq!(see(&server, &id(&taken)).await["state"], "scheduled");
    }
    let taken = push_and_take(&server, "mail").await;
    let (_, answer) =
        server.settle(&taken, "move", json!({"queue": "next", "run_at": "2100-01-01T00:00:00Z"})).await;
    assert_eq!(
        (&answer["state"], &answer["run_at"]),
        (&json!("scheduled"), &json!("2100-01-01T00:00:00.000Z"))
    );
    // A moment that has passed sorts earlier, as with a push.
    let (one, two) =
        (server.push("mail", json!({"payload": 1})).await, server.push("mail", json!({"payload": 2})).await);
    let jobs = server.reserve("mail", json!({"count": 2, "lease_ms": 600_000})).await;
    let past = json!({"run_at": "2001-01-01T00:00:00Z"});
    assert_eq!(server.settle(&jobs[0], "rollback", json!({"delay_ms": 0})).await.0, 200);
    assert_eq!(server.settle(&jobs[1], "rollback", past).await.1["state"], "ready");
    assert_eq!(order(&server, 2).await, [two, one]);
}

pub async fn a_job_goes_back_to_its_place(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut all = Vec::new();
    for n in 0..3 {
        all.push(server.push("mail", json!({"payload": n})).await);
    }
    for body in [json!({"count_attempt": false, "keep_place": true}), json!({"keep_place": true})] {
        let taken = server.reserve("mail", json!({"count": 1, "lease_ms": 600_000})).await.remove(0);
        assert_eq!(id(&taken), all[0]);
        let (_, answer) = server.settle(&taken, "rollback", body).await;
        assert_eq!((&answer["state"], &answer["run_at"]), (&json!("ready"), &taken["run_at"]));
    }
    let taken = server.reserve("mail", json!({"count": 1, "lease_ms": 600_000})).await.remove(0);
    assert_eq!((id(&taken), &taken["attempt"]), (all[0].clone(), &json!(2)));
    assert_eq!(server.settle(&taken, "rollback", json!({"count_attempt": false})).await.0, 200);
    all.rotate_left(1);
    assert_eq!(order(&server, 3).await, all, "else it comes behind all that waits");
}

pub async fn a_lapsed_job_keeps_its_place_where_its_queue_says_so(place: &Place) {
    let server = Server::start(&place.url).await;
    for (lapsed, is_first) in [(json!("first"), true), (json!("now"), false), (Value::Null, false)] {
        let (_, queue) =
            server.send(reqwest::Method::PATCH, "/v1/queues/mail", Some(json!({"lapsed": lapsed}))).await;
        assert_eq!(queue.get("lapsed"), (!lapsed.is_null()).then_some(&lapsed), "{queue}");
        assert_eq!(queue["effective"]["lapsed"], if is_first { "first" } else { "now" }, "{queue}");
        let mut all = Vec::new();
        for n in 0..3 {
            all.push(server.push("mail", json!({"payload": n})).await);
        }
        // One whose lease runs out, and one whose worker is removed.
        for lose in ["lapse", "removal"] {
            let lease_ms = if lose == "lapse" { 100 } else { 60_000 };
            let held = server.reserve("mail", json!({"count": 1, "worker": "w", "lease_ms": lease_ms})).await;
            assert_eq!(id(&held[0]), all[0], "{lapsed} {lose}");
            if lose == "removal" {
                let removed = server.send(reqwest::Method::DELETE, "/v1/workers/w", None).await;
                assert_eq!(removed.0, 200, "{}", removed.1);
            }
            until("it came back", || async { see(&server, &id(&held[0])).await["state"] == "ready" }).await;
            let seen = see(&server, &id(&held[0])).await;
            assert_eq!(seen["run_at"] == held[0]["run_at"], is_first, "{lapsed} {lose}: {seen}");
            assert_eq!(seen["attempt"], if lose == "removal" && is_first { 2 } else { 1 });
            if !is_first {
                all.rotate_left(1);
            }
        }
        let rest = server.reserve("mail", json!({"count": 3, "lease_ms": 600_000})).await;
        assert_eq!(ids(&rest), all, "{lapsed}");
        for job in &rest {
            assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
        }
    }
}

pub async fn a_move_brings_new_headers(place: &Place) {
    let server = Server::start(&place.url).await;
    let push = json!({"payload": 1, "headers": {"a": "1", "b": "2"}});
    server.push("mail", push).await;
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "move", json!({"queue": "next"})).await.0, 200);
    let taken = take(&server, "next").await;
    assert_eq!(taken["headers"], json!({"a": "1", "b": "2"}), "they stay");
    let headers = json!({"b": "3", "c": ""});
    assert_eq!(server.settle(&taken, "move", json!({"queue": "third", "headers": headers})).await.0, 200);
    let taken = take(&server, "third").await;
    assert_eq!(taken["headers"], headers, "in place of all");
    assert_eq!(server.settle(&taken, "move", json!({"queue": "fourth", "headers": {}})).await.0, 200);
    assert_eq!(take(&server, "fourth").await["headers"], json!({}));
}

pub async fn what_contradicts_itself_in_a_rollback_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let (at, many) = ("2100-01-01T00:00:00Z", json!({"x".repeat(129): "1"}));
    for (call, pointer, body) in [
        ("rollback", "/run_at", json!({"run_at": at, "delay_ms": 1})),
        ("rollback", "/run_at", json!({"run_at": "soon"})),
        ("rollback", "/dead", json!({"dead": true, "delay_ms": 1})),
        ("rollback", "/dead", json!({"dead": true, "run_at": at})),
        ("rollback", "/dead", json!({"dead": true, "count_attempt": false})),
        ("rollback", "/dead", json!({"dead": true, "keep_place": true})),
        ("rollback", "/dead", json!({"dead": 1})),
        ("rollback", "/keep_place", json!({"keep_place": true, "delay_ms": 1})),
        ("rollback", "/keep_place", json!({"keep_place": true, "run_at": at})),
        ("rollback", "/count_attempt", json!({"count_attempt": "no"})),
        ("rollback", "/delay_ms", json!({"count_attempt": false, "delay_ms": 31_536_000_001_u64})),
        ("move", "/run_at", json!({"queue": "next", "run_at": at, "delay_ms": 1})),
        ("move", "/headers", json!({"queue": "next", "headers": many})),
        ("move", "/headers", json!({"queue": "next", "headers": {"a": "x".repeat(8192)}})),
    ] {
        invalid(&server.settle(&taken, call, body.clone()).await, pointer);
        let mut item = body;
        (item["id"], item["reservation"]) = (taken["id"].clone(), taken["reservation"].clone());
        let (_, answer) = server.post("/v1/settle", json!({call: [item]})).await;
        assert_eq!(answer[call][0]["problem"]["pointer"], format!("/{call}/0{pointer}"), "{answer}");
    }
    // What says nothing changes nothing.
    let body = json!({"dead": false, "keep_place": false, "count_attempt": true, "delay_ms": 0});
    assert_eq!(server.settle(&taken, "rollback", body).await.1["state"], "ready");
}

/// What a call was told counts for its repeats, also once the job has come due.
pub async fn a_repeat_is_told_the_state_of_the_first(place: &Place) {
    let server = Server::start(&place.url).await;
    for call in ["rollback", "move"] {
        let taken = push_and_take(&server, "mail").await;
        let body =
            if call == "move" { json!({"queue": "next", "delay_ms": 300}) } else { json!({"delay_ms": 300}) };
        let first = server.settle(&taken, call, body.clone()).await;
        assert_eq!(first.1["state"], "scheduled");
        until("it is due", || async { see(&server, &id(&taken)).await["state"] == "ready" }).await;
        assert_eq!(server.settle(&taken, call, body).await, repeat_of(&first), "{call}");
        server.post("/v1/queues/mail/purge", json!({"state": "ready"})).await;
    }
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn another_server_tells_a_repeat_the_state_of_the_first(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    let taken = push_and_take(&one, "mail").await;
    let body = json!({"queue": "next", "delay_ms": 300});
    let first = one.settle(&taken, "move", body.clone()).await;
    assert_eq!(first.1["state"], "scheduled");
    until("it is due", || async { see(&one, &id(&taken)).await["state"] == "ready" }).await;
    assert_eq!(two.settle(&taken, "move", body).await, repeat_of(&first));
}
