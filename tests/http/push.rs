//! Push: one job.

use super::support::*;

pub async fn a_push_keeps_every_field(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = json!({
        "payload": {"to": "ada"}, "run_at": "2001-02-03T04:05:06.789+01:00", "priority": -7, "key": "order 1",
        "key_ttl_ms": 0, "max_attempts": 3, "expires_in_ms": 600_000, "headers": {"traceparent": "00-ab", "x": ""},
        "backoff": {"kind": "fixed", "base_ms": 5}
    });
    let reply = post_text(&server, "/v1/queues/mail/jobs", &job.to_string()).await;
    let answer = reply.json();
    assert_eq!(reply.status, 201, "{answer}");
    assert_eq!(reply.header("location"), format!("/v1/jobs/{}", id(&answer)));
    let expected = json!({"id": answer["id"], "queue": "mail", "state": "ready",
        "run_at": "2001-02-03T03:05:06.789Z", "deduplicated": false});
    assert_eq!(answer, expected);

    let seen = see(&server, &id(&answer)).await;
    for field in ["payload", "priority", "key", "max_attempts", "headers"] {
        assert_eq!(seen[field], job[field], "{field}");
    }
    assert_eq!((&seen["run_at"], &seen["attempt"]), (&expected["run_at"], &json!(0)));
    assert_eq!((&seen["backoff"]["kind"], &seen["backoff"]["base_ms"]), (&json!("fixed"), &json!(5)));
    assert!(seen["expires_at"].as_str() > seen["created_at"].as_str());
    assert_eq!(seen["errors"], json!([]));
    for absent in ["started_at", "finished_at", "worker", "reserved_until", "progress", "trail", "result"] {
        assert!(seen.get(absent).is_none(), "{absent}: {seen}");
    }
}

pub async fn what_a_push_leaves_out_falls_back(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 9})).await;
    let seen = see(&server, &server.push("mail", json!({})).await).await;
    assert_eq!((&seen["payload"], &seen["priority"]), (&Value::Null, &json!(0)));
    assert_eq!((&seen["max_attempts"], &seen["headers"]), (&json!(9), &json!({})));
    let backoff =
        json!({"kind": "exponential", "base_ms": 1000, "factor": 2.0, "max_ms": 600_000, "jitter": 0.2});
    assert_eq!(seen["backoff"], backoff);
    assert!(seen.get("key").is_none() && seen.get("expires_at").is_none());
    assert_eq!(seen["run_at"], seen["created_at"]);
}

pub async fn a_delayed_push_is_scheduled(place: &Place) {
    let server = Server::start(&place.url).await;
    let path = "/v1/queues/mail/jobs";
    for job in [
        json!({"payload": 1, "delay_ms": 3_600_000}),
        json!({"payload": 1, "run_at": "2999-01-01T00:00:00Z"}),
    ] {
        let (status, answer) = server.post(path, job).await;
        assert_eq!((status, &answer["state"]), (201, &json!("scheduled")));
        let seen = see(&server, &id(&answer)).await;
        assert_eq!((&seen["state"], &seen["run_at"]), (&json!("scheduled"), &answer["run_at"]));
        assert!(seen["run_at"].as_str() > seen["created_at"].as_str());
    }
    assert!(server.reserve("mail", json!({})).await.is_empty());
}

pub async fn a_taken_key_answers_the_first_job(place: &Place) {
    let server = Server::start(&place.url).await;
    let path = "/v1/queues/mail/jobs";
    let text = r#"{"key":"order 1","payload":{"a":1,"b":"x"},"delay_ms":3600000}"#;
    let first = post_text(&server, path, text).await.json();
    // Equal is what means the same: white space and escapes make no other payload, nor do other fields.
    let same = r#"{"priority":5, "payload": {"a": 1, "b": "\u0078"}, "key": "order 1"}"#;
    let second = post_text(&server, path, same).await;
    assert_eq!((second.status, &second.json()["deduplicated"]), (200, &json!(true)));
    assert_eq!(second.header("location"), format!("/v1/jobs/{}", id(&first)));
    for field in ["id", "queue", "state", "run_at"] {
        assert_eq!(second.json()[field], first[field], "{field}");
    }
    assert_eq!(see(&server, &id(&first)).await["priority"], 0);
    // The key is the queue's own.
    let elsewhere = post_text(&server, "/v1/queues/other/jobs", text).await;
    assert_eq!(elsewhere.status, 201);
    assert_eq!(server.get("/v1/queues/mail/jobs").await.1["jobs"].as_array().unwrap().len(), 1);
}

pub async fn a_taken_key_with_another_payload_conflicts(place: &Place) {
    let server = Server::start(&place.url).await;
    let first = server.push("mail", json!({"key": "k", "payload": {"a": 1, "b": 2}})).await;
    for payload in [r#"{"b":2,"a":1}"#, r#"{"a":1.0,"b":2}"#, "null", r#"{"a":1}"#] {
        let text = format!(r#"{{"key":"k","payload":{payload}}}"#);
        let answer = post_text(&server, "/v1/queues/mail/jobs", &text).await.answer();
        refused(&answer, 409, "key-conflict");
        assert_eq!((&answer.1["job_id"], &answer.1["retryable"]), (&json!(first), &json!(false)));
    }
}

/// A waiting push wakes whoever waits, replaces, and says so; a busy one is left alone.
pub async fn a_key_can_debounce_and_be_exclusive(place: &Place) {
    let server = Server::start(&place.url).await;
    let path = "/v1/queues/mail/jobs";
    let debounced = |payload: u8, delay_ms: u64| json!({"key": "k", "payload": payload, "delay_ms": delay_ms, "key_until": "reserved", "key_conflict": "replace"});
    let (status, first) = server.post(path, debounced(1, 600_000)).await;
    assert_eq!((status, &first["replaced"]), (201, &Value::Null), "{first}");
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 1).await;
    let (status, second) = server.post(path, debounced(2, 0)).await;
    assert_eq!((status, &second["id"], &second["replaced"]), (200, &first["id"], &json!(true)), "{second}");
    assert_eq!((&second["deduplicated"], &second["state"]), (&json!(true), &json!("ready")), "{second}");
    let (_, taken) = waiter.await.unwrap();
    assert_eq!((&taken["jobs"][0]["id"], &taken["jobs"][0]["payload"]), (&first["id"], &json!(2)), "{taken}");
    let (status, next) = server.post(path, debounced(3, 0)).await;
    assert!(status == 201 && next["id"] != first["id"], "reserved, it has left its key: {next}");

    let exclusive = json!({"key": "x", "payload": 1, "key_conflict": "refuse"});
    let (status, holder) = server.post(path, exclusive.clone()).await;
    assert_eq!(status, 201, "{holder}");
    let answer = server.post(path, exclusive.clone()).await;
    refused(&answer, 409, "key-conflict");
    assert_eq!(answer.1["job_id"], holder["id"]);
    let cancelled = format!("/v1/jobs/{}", holder["id"].as_str().unwrap());
    assert_eq!(server.send(reqwest::Method::DELETE, &cancelled, None).await.0, 200);
    let (_, many) =
        server.post(&format!("{path}/batch"), json!({"jobs": [exclusive, debounced(4, 0)]})).await;
    assert_eq!(
        (&many["results"][0]["status"], &many["results"][1]["replaced"]),
        (&json!(201), &json!(true)),
        "{many}"
    );

    for (field, value) in [("key_until", "ttl"), ("key_conflict", "refuse")] {
        let mut body = json!({"payload": 1});
        body[field] = json!(value);
        invalid(&server.post(path, body).await, &format!("/{field}"));
    }
    let both = json!({"payload": 1, "key": "z", "key_until": "reserved", "key_ttl_ms": 5});
    invalid(&server.post(path, both).await, "/key_ttl_ms");
}

pub async fn a_key_outlives_its_job_by_its_ttl_only(place: &Place) {
    let server = Server::start(&place.url).await;
    let path = "/v1/queues/mail/jobs";
    let (kept, freed) =
        (json!({"key": "kept", "payload": 1}), json!({"key": "freed", "payload": 1, "key_ttl_ms": 0}));
    for job in [&kept, &freed] {
        assert_eq!(server.post(path, job.clone()).await.0, 201);
        assert_eq!(server.post(path, job.clone()).await.0, 200);
        let taken = take(&server, "mail").await;
        assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    }
    let (status, answer) = server.post(path, kept).await;
    assert_eq!((status, &answer["state"]), (200, &json!("done")), "{answer}");
    assert_eq!(server.post(path, freed).await.0, 201);
}

pub async fn a_push_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    let year = 31_536_000_000_u64;
    let long = "x".repeat(257);
    let many: serde_json::Map<String, Value> = (0..65).map(|n| (format!("h{n}"), json!("x"))).collect();
    let cases = [
        ("/run_at", json!({"delay_ms": 1, "run_at": "2030-01-01T00:00:00Z"})),
        ("/run_at", json!({"run_at": "tomorrow"})),
        ("/run_at", json!({"run_at": 5})),
        ("/run_at", json!({"run_at": "1969-12-31T23:59:59.999Z"})),
        ("/delay_ms", json!({"delay_ms": year + 1})),
        ("/delay_ms", json!({"delay_ms": -1})),
        ("/delay_ms", json!({"delay_ms": 1.5})),
        ("/delay_ms", json!({"delay_ms": "1"})),
        ("/priority", json!({"priority": 2_147_483_648_u64})),
        ("/priority", json!({"priority": null})),
        ("/key", json!({"key": ""})),
        ("/key", json!({"key": long})),
        ("/key", json!({"key": "a\u{0}b"})),
        ("/key_ttl_ms", json!({"key": "k", "key_ttl_ms": year + 1})),
        ("/key_ttl_ms", json!({"key_ttl_ms": 1})),
        ("/max_attempts", json!({"max_attempts": -1})),
        ("/max_attempts", json!({"max_attempts": 1_000_001})),
        ("/backoff/jitter", json!({"backoff": {"kind": "fixed", "base_ms": 1, "jitter": 1.1}})),
        ("/backoff/base_ms", json!({"backoff": {"kind": "fixed", "base_ms": year + 1}})),
        ("/backoff/base_ms", json!({"backoff": {"kind": "fixed"}})),
        ("/backoff/kind", json!({"backoff": {"kind": "random", "base_ms": 1}})),
        ("/backoff/factor", json!({"backoff": {"kind": "exponential", "base_ms": 1, "factor": 0.5}})),
        ("/backoff/max_ms", json!({"backoff": {"kind": "exponential", "base_ms": 1, "max_ms": year + 1}})),
        ("/backoff/x", json!({"backoff": {"kind": "fixed", "base_ms": 1, "x": 1}})),
        ("/expires_in_ms", json!({"expires_in_ms": 0})),
        ("/expires_in_ms", json!({"expires_in_ms": year + 1})),
        ("/headers", json!({"headers": {"a b": "x"}})),
        ("/headers", json!({"headers": many})),
        ("/headers", json!({"headers": {"x": "y".repeat(8192)}})),
        ("/headers", json!({"headers": {"x": {"a": "y".repeat(8192)}}})),
        ("/colour", json!({"colour": "red"})),
    ];
    for (pointer, mut job) in cases {
        job["payload"] = json!(1);
        let answer = server.post("/v1/queues/mail/jobs", job).await;
        invalid(&answer, pointer);
        assert!(answer.1["detail"].as_str().unwrap().starts_with(pointer), "{}", answer.1);
    }
    let nothing = raw(&server, "POST", "/v1/queues/mail/jobs", &[], "").await;
    invalid(&nothing.answer(), ""); // a body that was lost on its way pushes nothing
    assert_eq!(server.get("/v1/queues/mail/jobs").await.1["jobs"], json!([]));
}

pub async fn the_widest_values_are_accepted(place: &Place) {
    let server = Server::start(&place.url).await;
    let year = 31_536_000_000_u64;
    let queue = "q".repeat(128);
    for job in [
        json!({"priority": i32::MAX, "delay_ms": year, "key": "x".repeat(256), "key_ttl_ms": year}),
        json!({"priority": i32::MIN, "delay_ms": 0, "max_attempts": 1_000_000, "expires_in_ms": year}),
        json!({"run_at": "1970-01-01T00:00:00Z", "max_attempts": 1, "headers": {"A.b_c:d-1": "\u{0}ü"}}),
        json!({"run_at": "9999-12-30T22:00:00Z", "backoff": {"kind": "exponential", "base_ms": 0, "jitter": 1}}),
    ] {
        let mut whole = job.clone();
        whole["payload"] = json!(1);
        let seen = see(&server, &server.push(&queue, whole).await).await;
        for field in ["priority", "key", "headers", "max_attempts"] {
            assert!(job.get(field).is_none_or(|value| seen[field] == *value), "{field}: {seen}");
        }
    }
}

pub async fn a_name_that_is_none_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    let long = "q".repeat(129);
    for name in [".a", "a%20b", "a%2Fb", "%C3%A4", "%FF", "a*", &long] {
        let path = format!("/v1/queues/{name}/jobs");
        bad_parameter(&server.post(&path, json!({"payload": 1})).await, "queue");
        bad_parameter(&server.get(&path).await, "queue");
        bad_parameter(&server.get(&format!("/v1/queues/{name}")).await, "queue");
        bad_parameter(&server.get(&format!("/v1/queues/{name}/stats")).await, "queue");
        for call in ["reserve", "pop", "pause", "resume", "purge", "redrive", "replay", "jobs/batch"] {
            let answer = server.post(&format!("/v1/queues/{name}/{call}"), json!({})).await;
            bad_parameter(&answer, "queue");
        }
    }
}
