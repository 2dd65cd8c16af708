//! Reserve and pop, without waiting.

use super::support::*;

pub async fn a_reserved_job_shows_what_a_worker_needs(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = json!({"payload": {"to": "ada"}, "priority": 3, "headers": {"x": "y"}, "max_attempts": 4});
    let pushed = server.push("mail", job).await;
    let (status, answer) =
        server.post("/v1/queues/mail/reserve", json!({"worker": "w1", "lease_ms": 86_400_000})).await;
    assert_eq!(status, 200);
    let job = &answer["jobs"][0];
    assert_eq!(
        (&job["id"], &job["queue"], &job["state"]),
        (&json!(pushed), &json!("mail"), &json!("reserved"))
    );
    assert_eq!((&job["attempt"], &job["max_attempts"]), (&json!(1), &json!(4)));
    assert_eq!((&job["priority"], &job["worker"]), (&json!(3), &json!("w1")));
    assert_eq!((&job["payload"], &job["headers"]), (&json!({"to": "ada"}), &json!({"x": "y"})));
    let token = job["reservation"].as_str().unwrap();
    assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'), "{token}");
    assert!(job["reserved_until"].as_str() > job["started_at"].as_str());
    assert!(job["run_at"].is_string() && job["created_at"].is_string());
    // Nobody else sees the token.
    let seen = see(&server, &pushed).await;
    assert!(seen.get("reservation").is_none());
    assert_eq!((&seen["state"], &seen["reserved_until"]), (&json!("reserved"), &job["reserved_until"]));
    assert!(server.reserve("mail", json!({})).await.is_empty());
}

pub async fn a_reserve_takes_what_is_most_urgent_first(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut expected = Vec::new();
    for (rank, job) in [
        (3, json!({"payload": 3})),
        (4, json!({"payload": 4})),
        (2, json!({"payload": 2, "run_at": "2001-01-01T00:00:00Z"})),
        (0, json!({"payload": 0, "priority": 9})),
        (5, json!({"payload": 5, "priority": -1})),
        (1, json!({"payload": 1, "run_at": "2000-01-01T00:00:00Z"})),
    ] {
        expected.push((rank, server.push("mail", job).await));
    }
    expected.sort();
    let mut got = ids(&server.reserve("mail", json!({"count": 4})).await);
    got.extend(ids(&server.reserve("mail", json!({"count": 1000})).await));
    assert_eq!(got, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
}

pub async fn several_queues_are_taken_from_in_the_order_given(place: &Place) {
    let server = Server::start(&place.url).await;
    let (a1, a2) = (
        server.push("a", json!({"payload": 1})).await,
        server.push("a", json!({"payload": 2, "priority": 9})).await,
    );
    let b = server.push("b", json!({"payload": 3, "priority": 99})).await;
    let mail = server.push("mail.in", json!({"payload": 4})).await;
    let out = server.push("mail.out", json!({"payload": 5})).await;
    server.push("mailer", json!({"payload": 6})).await;
    let reserve = |body: Value| {
        let server = &server;
        async move {
            let (status, answer) = server.post("/v1/reserve", body).await;
            assert_eq!(status, 200, "{answer}");
            answer["jobs"].as_array().unwrap().clone()
        }
    };
    let jobs = reserve(json!({"queues": ["b", "a"], "count": 2, "lease_ms": 100_000, "worker": "w1"})).await;
    assert_eq!(ids(&jobs), [b, a2]);
    assert_eq!((&jobs[1]["queue"], &jobs[1]["worker"]), (&json!("a"), &json!("w1")));
    // A prefix stands for its queues by name; one named twice is asked once.
    let jobs = reserve(json!({"queues": ["never", "mail.*", "a", "mail.in"], "count": 10})).await;
    assert_eq!(ids(&jobs), [mail, out, a1]);
    assert_eq!(reserve(json!({"queues": ["*"], "count": 10})).await.len(), 1, "the one of mailer");
    assert!(reserve(json!({"queues": ["a", "b"]})).await.is_empty());
}

pub async fn a_reserve_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = server.push("q", json!({"payload": 1})).await;
    for (pointer, body) in [
        ("/count", json!({"count": 0})),
        ("/count", json!({"count": 1001})),
        ("/count", json!({"count": "1"})),
        ("/wait_ms", json!({"wait_ms": 60_001})),
        ("/wait_ms", json!({"wait_ms": -1})),
        ("/lease_ms", json!({"lease_ms": 99})),
        ("/lease_ms", json!({"lease_ms": 86_400_001})),
        ("/worker", json!({"worker": "a b"})),
        ("/worker", json!({"worker": ""})),
        ("/colour", json!({"colour": 1})),
    ] {
        invalid(&server.post("/v1/queues/q/reserve", body.clone()).await, pointer);
        let mut many = body.clone();
        many["queues"] = json!(["q"]);
        invalid(&server.post("/v1/reserve", many).await, pointer);
        if !["/lease_ms", "/worker"].contains(&pointer) {
            invalid(&server.post("/v1/queues/q/pop", body).await, pointer);
        }
    }
    for field in ["lease_ms", "worker", "queues"] {
        invalid(&server.post("/v1/queues/q/pop", json!({ field: 1 })).await, &format!("/{field}"));
    }
    invalid(&server.post("/v1/queues/q/reserve", json!({"queues": ["q"]})).await, "/queues");
    for (pointer, queues) in [
        ("/queues", json!([])),
        ("/queues", json!(vec!["q"; 101])),
        ("/queues", json!("q")),
        ("/queues/1", json!(["q", "a*b"])),
        ("/queues/0", json!([".*"])),
    ] {
        invalid(&server.post("/v1/reserve", json!({ "queues": queues })).await, pointer);
    }
    invalid(&server.post("/v1/reserve", json!({})).await, "/queues");
    assert_eq!(see(&server, &job).await["state"], "ready");
}

pub async fn an_empty_body_asks_for_one_job(place: &Place) {
    let server = Server::start(&place.url).await;
    for _ in 0..2 {
        server.push("mail", json!({"payload": 1})).await;
    }
    for call in ["reserve", "pop"] {
        let reply = raw(&server, "POST", &format!("/v1/queues/mail/{call}"), &[], "").await;
        assert_eq!((reply.status, reply.json()["jobs"].as_array().unwrap().len()), (200, 1));
        let again = raw(&server, "POST", &format!("/v1/queues/empty/{call}"), &[], "").await;
        assert_eq!((again.status, again.json()), (200, json!({"jobs": []})));
    }
}

pub async fn the_queues_lease_holds_when_the_reserve_does_not_say(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"lease_ms": 100})).await;
    server.push("mail", json!({"payload": 1})).await;
    let first = server.reserve("mail", json!({"worker": "w1"})).await.remove(0);
    let mut second = Vec::new();
    until("the reservation has run out", || async {
        server.reserve("mail", json!({"lease_ms": 60_000})).await.first().is_some_and(|job| {
            assert_eq!((&job["id"], &job["attempt"]), (&first["id"], &json!(2)));
            assert_eq!(job["errors"][0]["attempt"], 1);
            assert_eq!(job["errors"][0]["worker"], "w1");
            true
        })
    })
    .await;
    second.extend(server.reserve("mail", json!({})).await);
    assert!(second.is_empty());
}

pub async fn a_pop_takes_a_job_once(place: &Place) {
    let server = Server::start(&place.url).await;
    let (low, high) = (
        server.push("mail", json!({"payload": 1})).await,
        server.push("mail", json!({"payload": 2, "priority": 1})).await,
    );
    let third = server.push("mail", json!({"payload": 3})).await;
    let (status, answer) = server.post("/v1/queues/mail/pop", json!({"count": 2})).await;
    let jobs = answer["jobs"].as_array().unwrap();
    assert_eq!((status, ids(jobs)), (200, vec![high, low.clone()]));
    assert_eq!((&jobs[0]["state"], &jobs[0]["attempt"]), (&json!("done"), &json!(1)));
    assert!(jobs[0]["finished_at"].is_string() && jobs[0].get("reservation").is_none());
    refused(&server.get(&format!("/v1/jobs/{low}")).await, 404, "unknown-job");
    let (_, answer) = server.post("/v1/queues/mail/pop", json!({"count": 2})).await;
    assert_eq!(ids(answer["jobs"].as_array().unwrap()), [third]);
    assert_eq!(server.post("/v1/queues/mail/pop", json!({})).await, (200, json!({"jobs": []})));
}

pub async fn a_popped_job_becomes_history_where_it_is_kept(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    let pushed = server.push("mail", json!({"payload": {"n": 1}})).await;
    assert_eq!(id(&server.post("/v1/queues/mail/pop", json!({})).await.1["jobs"][0]), pushed);
    let seen = see(&server, &pushed).await;
    assert_eq!((&seen["state"], &seen["payload"]), (&json!("done"), &json!({"n": 1})));
    for field in ["created_at", "started_at", "finished_at", "purge_at"] {
        assert!(seen[field].is_string(), "{field}: {seen}");
    }
    assert_eq!(server.post("/v1/queues/mail/pop", json!({})).await.1["jobs"], json!([]));
}

pub async fn many_workers_never_get_the_same_job(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..60).map(|n| json!({ "payload": n })).collect();
    server.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await;
    let asks: Vec<_> = (0..24)
        .map(|n| {
            let call = if n % 2 == 0 { "reserve" } else { "pop" };
            begin(&server, &format!("/v1/queues/mail/{call}"), &[], json!({"count": 5}))
        })
        .collect();
    let mut got = Vec::new();
    for ask in asks {
        let (status, answer) = ask.await.unwrap();
        assert_eq!(status, 200, "{answer}");
        got.extend(ids(answer["jobs"].as_array().unwrap()));
    }
    // Those who came away with less left the rest to others.
    got.extend(ids(&server.reserve("mail", json!({"count": 100})).await));
    let count = got.len();
    got.sort();
    got.dedup();
    assert_eq!((got.len(), count), (60, 60));
}
