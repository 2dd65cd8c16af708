//! Payloads of bytes: taken wherever a payload is taken, and given back wherever one is given.

use super::support::*;

/// All of the alphabet's last two characters and padding: `fb ff 00`, and an odd number of bytes.
const BYTES: &str = "+/8A/w==";
const TYPE: &str = "application/x-protobuf; messageType=\"a.B\"";
const LIMITS: &[(&str, &str)] = &[("TAILBACK_LIMITS__PAYLOAD_BYTES", "300")];

fn bytes() -> Value {
    json!({"payload_base64": BYTES, "payload_type": TYPE})
}

/// The fields of a job that are told of its payload.
fn carried(job: &Value) -> Value {
    json!({"payload": job["payload"], "payload_base64": job["payload_base64"], "payload_type": job["payload_type"]})
}

fn expected() -> Value {
    json!({"payload": null, "payload_base64": BYTES, "payload_type": TYPE})
}

fn with(mut one: Value, other: &Value) -> Value {
    one.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    one
}

/// Takes the one job of the queue away, which has the bytes.
async fn has_them(server: &Server, queue: &str) {
    let taken = take(server, queue).await;
    assert_eq!(carried(&taken), expected(), "{queue}");
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
}

pub async fn bytes_are_taken_wherever_a_payload_is(place: &Place) {
    let server = Server::start(&place.url).await;
    let (status, _) = server.post("/v1/queues/q/jobs", bytes()).await;
    assert_eq!(status, 201);
    has_them(&server, "q").await;
    let (status, _) = server.post("/v1/queues/q/jobs/batch", json!({"jobs": [bytes()]})).await;
    assert_eq!(status, 200);
    has_them(&server, "q").await;
    let together = json!({"jobs": [with(json!({"queue": "q"}), &bytes())]});
    assert_eq!(server.post("/v1/jobs", together.clone()).await.0, 200);
    has_them(&server, "q").await;
    // The jobs of a batch, its callback, and jobs that are added.
    let callback = with(json!({"queue": "after"}), &bytes());
    let batch = with(json!({"on_finished": callback, "sealed": false}), &together);
    let (status, made) = server.post("/v1/batches", batch).await;
    assert_eq!(status, 201, "{made}");
    let path = format!("/v1/batches/{}", id(&made));
    has_them(&server, "q").await;
    assert_eq!(server.post(&format!("{path}/jobs"), together.clone()).await.0, 200);
    has_them(&server, "q").await;
    assert_eq!(server.post(&format!("{path}/seal"), json!({})).await.0, 200);
    has_them(&server, "after").await;
    // With a commit, one and many.
    let taken = push_and_take(&server, "other").await;
    let push = json!({"push": together["jobs"]});
    assert_eq!(server.settle(&taken, "commit", push.clone()).await.0, 200);
    has_them(&server, "q").await;
    let taken = push_and_take(&server, "other").await;
    let item = with(json!({"id": taken["id"], "reservation": taken["reservation"]}), &push);
    let (status, answer) = server.post("/v1/settle", json!({"commit": [item]})).await;
    assert_eq!((status, &answer["commit"][0]["status"]), (200, &json!(200)), "{answer}");
    has_them(&server, "q").await;
    // A schedule takes what it shows.
    let rule = json!({"cron": "0 0 1 1 *", "queue": "q", "job": bytes()});
    let put = async |rule: Value| server.send(reqwest::Method::PUT, "/v1/schedules/s", Some(rule)).await;
    let (status, shown) = put(rule).await;
    assert_eq!((status, carried(&shown["job"])), (200, expected()), "{shown}");
    let again = json!({"cron": shown["cron"], "queue": "q", "job": shown["job"]});
    let (status, again) = put(again).await;
    assert_eq!((status, &again["job"]), (200, &shown["job"]), "{again}");
    assert_eq!(server.post("/v1/schedules/s/run", json!({})).await.0, 200);
    has_them(&server, "q").await;
    // A change and a move, one and many.
    let changed = server.push("q", json!({"payload": {"a": 1}})).await;
    let path = format!("/v1/jobs/{changed}");
    let (status, shown) = server.send(reqwest::Method::PATCH, &path, Some(bytes())).await;
    assert_eq!((status, carried(&shown)), (200, expected()), "{shown}");
    has_them(&server, "q").await;
    let taken = push_and_take(&server, "other").await;
    assert_eq!(server.settle(&taken, "move", with(json!({"queue": "q"}), &bytes())).await.0, 200);
    has_them(&server, "q").await;
    let taken = push_and_take(&server, "other").await;
    let item = json!({"id": taken["id"], "reservation": taken["reservation"], "queue": "q"});
    let (_, answer) = server.post("/v1/settle", json!({"move": [with(item, &bytes())]})).await;
    assert_eq!(answer["move"][0]["status"], 200, "{answer}");
    has_them(&server, "q").await;
}

pub async fn bytes_are_given_wherever_a_payload_is(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "q", json!({"retain_done_ms": 600_000, "max_attempts": 1, "dead_letter": "dead"}))
        .await;
    let job = server.push("q", json!({"payload_base64": BYTES, "payload_type": TYPE, "key": "k"})).await;
    let seen = async || carried(&see(&server, &job).await);
    assert_eq!(seen().await, expected());
    for path in ["/v1/queues/q/jobs", "/v1/queues/q/peek"] {
        assert_eq!(carried(&server.get(path).await.1["jobs"][0]), expected(), "{path}");
    }
    // A duplicate is one by its bytes and their type, not by how they are written beside others.
    let again = json!({"payload": null, "key": "k", "payload_type": TYPE, "payload_base64": BYTES});
    let (status, answer) = server.post("/v1/queues/q/jobs", again).await;
    assert_eq!((status, &answer["id"]), (200, &json!(job)), "{answer}");
    for other in [json!({"payload_base64": BYTES, "key": "k"}), json!({"payload": BYTES, "key": "k"})] {
        refused(&server.post("/v1/queues/q/jobs", other).await, 409, "key-conflict");
    }
    // Dead, redriven, done, and once more as a copy.
    let taken = take(&server, "q").await;
    assert_eq!(server.settle(&taken, "rollback", json!({})).await.0, 200);
    assert_eq!(carried(&server.get("/v1/queues/dead/jobs").await.1["jobs"][0]), expected());
    assert_eq!(server.post("/v1/queues/dead/redrive", json!({})).await.1["affected"], 1);
    has_them(&server, "q").await;
    assert_eq!((seen().await, &see(&server, &job).await["state"]), (expected(), &json!("done")));
    assert_eq!(server.post("/v1/queues/q/replay", json!({})).await.1["affected"], 1);
    let (status, popped) = server.post("/v1/queues/q/pop", json!({})).await;
    assert_eq!((status, carried(&popped["jobs"][0])), (200, expected()), "{popped}");
    // The type is said also where the producer did not say it; and no bytes are a payload, too.
    let plain = server.push("plain", json!({"payload_base64": ""})).await;
    let shown = json!({"payload": null, "payload_base64": "", "payload_type": "application/octet-stream"});
    assert_eq!(carried(&see(&server, &plain).await), shown);
    // JSON takes their place, and a job of JSON says nothing of bytes.
    let path = format!("/v1/jobs/{plain}");
    let (_, shown) = server.send(reqwest::Method::PATCH, &path, Some(json!({"payload": "AA=="}))).await;
    assert_eq!(shown["payload"], "AA==");
    assert!(!shown.as_object().unwrap().keys().any(|field| field.starts_with("payload_")), "{shown}");
    let (_, shown) = server.send(reqwest::Method::PATCH, &path, Some(json!({"priority": 1}))).await;
    assert_eq!(shown["payload"], "AA==");
}

/// So many bytes, in Base64.
fn long(bytes: usize) -> String {
    "AAAA".repeat(bytes / 3)
}

/// The body of a call that takes this job below that pointer.
fn body_with(under: &str, body: &Value) -> Value {
    match under {
        "/jobs/0" => json!({"jobs": [with(json!({"queue": "q"}), body)]}),
        "/push/0" => json!({"push": [with(json!({"queue": "q"}), body)]}),
        "/on_finished" => json!({"jobs": [], "on_finished": with(json!({"queue": "q"}), body)}),
        "/job" => json!({"cron": "0 0 1 1 *", "queue": "q", "job": body}),
        "/queue" => with(json!({"queue": "q"}), body),
        _ => body.clone(),
    }
}

pub async fn what_is_wrong_with_bytes_is_named(place: &Place) {
    let server = Server::start_with(&place.url, LIMITS).await;
    configure(&server, "held", json!({"lease_ms": 600_000})).await; // the calls below are many
    let held = push_and_take(&server, "held").await;
    let waiting = server.push("waiting", json!({"payload": 1})).await;
    let wrong = [
        (json!({"payload": 1, "payload_base64": BYTES}), 422, "/payload_base64"),
        (json!({"payload_type": TYPE}), 422, "/payload_type"),
        (json!({"payload": {"a": 1}, "payload_type": TYPE}), 422, "/payload_type"),
        (json!({"payload_base64": "-_8="}), 422, "/payload_base64"),
        (json!({"payload_base64": "AAE"}), 422, "/payload_base64"),
        (json!({"payload_base64": "AAA=\n"}), 422, "/payload_base64"),
        (json!({"payload_base64": "AB=="}), 422, "/payload_base64"),
        (json!({"payload_base64": 7}), 422, "/payload_base64"),
        (json!({"payload_base64": BYTES, "payload_type": "png"}), 422, "/payload_type"),
        (json!({"payload_base64": BYTES, "payload_type": ""}), 422, "/payload_type"),
        (json!({"payload_base64": BYTES, "payload_type": "a/b\r\nx: y"}), 422, "/payload_type"),
        (
            json!({"payload_base64": BYTES, "payload_type": format!("a/{}", "b".repeat(254))}),
            422,
            "/payload_type",
        ),
        (json!({"payload_base64": long(303)}), 413, "/payload_base64"),
    ];
    let calls = [
        ("POST", "/v1/queues/q/jobs".to_owned(), ""),
        ("POST", "/v1/jobs".to_owned(), "/jobs/0"),
        ("POST", "/v1/batches".to_owned(), "/jobs/0"),
        ("POST", "/v1/batches".to_owned(), "/on_finished"),
        ("PUT", "/v1/schedules/s".to_owned(), "/job"),
        ("PATCH", format!("/v1/jobs/{waiting}"), ""),
        ("POST", format!("/v1/jobs/{}/commit", id(&held)), "/push/0"),
        ("POST", format!("/v1/jobs/{}/move", id(&held)), "/queue"),
    ];
    for (method, path, under) in &calls {
        for (body, status, field) in &wrong {
            let mut body = body_with(under, body);
            if path.ends_with("/commit") || path.ends_with("/move") {
                body["reservation"] = held["reservation"].clone();
            }
            let answer = server.send(method.parse().unwrap(), path, Some(body.clone())).await;
            let code = if *status == 413 { "too-large" } else { "invalid-field" };
            refused(&answer, *status, code);
            let pointer = format!("{}{field}", if *under == "/queue" { "" } else { under });
            assert_eq!(answer.1["pointer"], pointer, "{path} {body}: {}", answer.1);
        }
    }
    assert_eq!(see(&server, &waiting).await["payload"], 1);
    assert_eq!(see(&server, &id(&held)).await["state"], "reserved");
    assert_eq!(server.get("/v1/queues/q/stats").await.1["counts"]["ready"], 0);
}

/// Not its characters in Base64.
pub async fn limits_count_the_bytes_of_a_payload(place: &Place) {
    let server = Server::start_with(&place.url, LIMITS).await;
    server.push("q", json!({"payload_base64": long(300)})).await;
    server.push("q", json!({"payload_base64": long(300)})).await;
    assert_eq!(server.reserve("q", json!({"count": 9, "max_bytes": 599})).await.len(), 1);
    server.push("q", json!({"payload_base64": long(300)})).await;
    assert_eq!(server.reserve("q", json!({"count": 9, "max_bytes": 600})).await.len(), 2);
}

pub async fn a_move_gives_a_job_a_key(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "a").await;
    let go_on = json!({"queue": "b", "key": "k", "key_ttl_ms": 0});
    let first = server.settle(&taken, "move", go_on.clone()).await;
    assert_eq!(first.0, 200, "{}", first.1);
    assert_eq!(see(&server, &id(&taken)).await["key"], "k");
    assert_eq!(ids(server.get("/v1/queues/b/jobs?key=k").await.1["jobs"].as_array().unwrap()), [id(&taken)]);
    assert_eq!(server.settle(&taken, "move", go_on.clone()).await, repeat_of(&first));
    let (status, answer) = server.post("/v1/queues/b/jobs", json!({"payload": {"n": 1}, "key": "k"})).await;
    assert_eq!((status, &answer["id"]), (200, &taken["id"]), "{answer}");
    // Another one is not moved to it, and stays with its worker; alone as among others.
    let second = push_and_take(&server, "a").await;
    let refusal = server.settle(&second, "move", go_on.clone()).await;
    refused(&refusal, 409, "key-conflict");
    assert_eq!(refusal.1["job_id"], taken["id"]);
    let item = with(json!({"id": second["id"], "reservation": second["reservation"]}), &go_on);
    let (_, answer) = server.post("/v1/settle", json!({"move": [item]})).await;
    assert_eq!(
        (&answer["move"][0]["status"], &answer["move"][0]["problem"]["code"]),
        (&json!(409), &json!("key-conflict"))
    );
    let still = see(&server, &id(&second)).await;
    assert_eq!((&still["state"], &still["queue"]), (&json!("reserved"), &json!("a")));
    for (wrong, pointer) in [
        (json!({"queue": "b", "key": ""}), "/key"),
        (json!({"queue": "b", "key": "x".repeat(257)}), "/key"),
        (json!({"queue": "b", "key_ttl_ms": 1}), "/key_ttl_ms"),
        (json!({"queue": "b", "key_until": "ttl"}), "/key_until"),
        (json!({"queue": "b", "key": "l", "key_ttl_ms": 31_536_000_001_u64}), "/key_ttl_ms"),
        (json!({"queue": "b", "key": "l", "key_ttl_ms": 1, "key_until": "reserved"}), "/key_ttl_ms"),
        (json!({"queue": "b", "key": "l", "key_until": "for ever"}), "/key_until"),
    ] {
        invalid(&server.settle(&second, "move", wrong).await, pointer);
    }
    // Null is none. Once the first is done, the key is free.
    assert_eq!(server.settle(&second, "move", json!({"queue": "c", "key": null})).await.0, 200);
    assert!(see(&server, &id(&second)).await["key"].is_null());
    let done = take(&server, "b").await;
    assert_eq!(server.settle(&done, "commit", json!({})).await.0, 200);
    let second = take(&server, "c").await;
    assert_eq!(server.settle(&second, "move", go_on).await.0, 200);
}
