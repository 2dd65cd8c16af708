//! What jobs carry, with and without an export.

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::server::{Place, Server};
use crate::on_every_store;
use crate::trace::receiver::{LONG_MS, context, post_in, reserved, send_in};

on_every_store! {
    a_worker_gets_the_trace_of_the_push
    what_the_producer_says_of_its_job_wins
    hostile_headers_are_no_error_and_no_trace
    a_full_job_is_pushed_without_a_trace
    repeats_and_duplicates_have_the_trace_of_the_first
    what_a_job_leads_to_stays_in_its_trace
    the_span_of_a_worker_is_nearer_than_that_of_its_job
    redrives_replays_and_callbacks_stay_in_the_trace
    moves_and_edits_of_headers_say_what_they_say
    runs_by_hand_are_in_the_trace_of_their_call
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

async fn a_worker_gets_the_trace_of_the_push(place: &Place) {
    let server = Server::start(&place.url).await;
    let headers = [("traceparent", PARENT), ("tracestate", "a=1"), ("tracestate", "b=2")];
    let jobs = json!([{"payload": 1}, {"payload": 2, "headers": {"x": 1}}]);
    let queued = json!([{"queue": "q2", "payload": 1}]);
    for (queue, path, body) in [
        ("q0", "/v1/queues/q0/jobs", json!({"payload": 1})),
        ("q1", "/v1/queues/q1/jobs/batch", json!({"jobs": jobs})),
        ("q2", "/v1/jobs", json!({"jobs": queued})),
        ("q2", "/v1/jobs", json!({"atomic": false, "jobs": queued})),
        ("q2", "/v1/batches", json!({"jobs": queued})),
    ] {
        for key in
            [None, Some(format!("key-{path}-{body}").replace(|c: char| !c.is_ascii_alphanumeric(), "-"))]
        {
            let key = key.as_deref().map(|key| ("Idempotency-Key", &key[..key.len().min(100)]));
            let headers: Vec<_> = headers.iter().copied().chain(key).collect();
            let (status, answer) = post_in(&server, path, &headers, body.clone()).await;
            assert!((200..300).contains(&status), "{path}: {answer}");
            let jobs = server.reserve(queue, json!({"count": 10, "lease_ms": LONG_MS})).await;
            assert!(!jobs.is_empty());
            for job in jobs {
                let mut expected = json!({"traceparent": PARENT, "tracestate": "a=1,b=2"});
                if job["payload"] == 2 {
                    expected["x"] = json!(1);
                }
                assert_eq!(job["headers"], expected, "{path} {key:?}");
                let (_, shown) = server.get(&format!("/v1/jobs/{}", job["id"].as_str().unwrap())).await;
                assert_eq!(shown["headers"], expected);
            }
        }
    }
    // Who sends none has none, and nothing is begun for him.
    server.push("none", json!({"payload": 1})).await;
    assert_eq!(reserved(&server, "none").await["headers"], json!({}));
    // One that is not recorded is handed on as well.
    let not_recorded = context("00");
    post_in(&server, "/v1/queues/none/jobs", &[("traceparent", &not_recorded)], json!({})).await;
    assert_eq!(reserved(&server, "none").await["headers"], json!({"traceparent": not_recorded}));
}

async fn what_the_producer_says_of_its_job_wins(place: &Place) {
    let server = Server::start(&place.url).await;
    for own in [
        json!({"traceparent": context("00")}),
        json!({"traceparent": context("01"), "tracestate": "own=1"}),
        json!({"traceparent": "nonsense"}),
        json!({"traceparent": null}),
        json!({"traceparent": {"deep": [1, "x"]}, "other": true}),
        json!({"tracestate": "own=1"}),
    ] {
        let (headers, body) = ([("traceparent", PARENT)], json!({"headers": own}));
        assert_eq!(post_in(&server, "/v1/queues/q/jobs", &headers, body).await.0, 201);
        assert_eq!(reserved(&server, "q").await["headers"], own);
    }
}

async fn hostile_headers_are_no_error_and_no_trace(place: &Place) {
    let server = Server::start(&place.url).await;
    let long = "0".repeat(4000);
    let future = format!("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-{}", "x".repeat(1000));
    for (sent, kept) in [
        ("", None),
        ("00", None),
        ("-", None),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01", None),
        ("00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01", None),
        ("'; DROP TABLE jobs; --aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", None),
        (&*long, None),
        (&*future, Some(PARENT)),
        (PARENT, Some(PARENT)),
    ] {
        let headers = [("traceparent", sent), ("tracestate", "a=1")];
        let (status, answer) = post_in(&server, "/v1/queues/q/jobs", &headers, json!({})).await;
        assert_eq!(status, 201, "{sent}: {answer}");
        let expected = kept.map_or(json!({}), |kept| json!({"traceparent": kept, "tracestate": "a=1"}));
        assert_eq!(reserved(&server, "q").await["headers"], expected, "{sent}");
    }
    // Several of them say nothing, not even if they are equal.
    let headers = [("traceparent", PARENT), ("traceparent", PARENT)];
    assert_eq!(post_in(&server, "/v1/queues/q/jobs", &headers, json!({})).await.0, 201);
    assert_eq!(reserved(&server, "q").await["headers"], json!({}));
    let members = |count: usize| (0..count).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
    let [long, longer] = ["x".repeat(200), "y".repeat(200)];
    let kept = format!("a=1,b={long},c={longer},e=5");
    let too_long = format!("a=1,b={long},c={longer},d={},e=5", "z".repeat(200));
    for (state, kept) in [
        (members(32), Some(members(32))),
        (members(33), None),
        (too_long, Some(kept)),
        (format!("a=1,b={}", "x".repeat(257)), None),
        ("a=1,=".to_owned(), None),
        ("a=1,\u{e4}=2".to_owned(), None),
        (String::new(), None),
    ] {
        let headers = [("traceparent", PARENT), ("tracestate", &*state)];
        assert_eq!(post_in(&server, "/v1/queues/q/jobs", &headers, json!({})).await.0, 201);
        let mut expected = json!({"traceparent": PARENT});
        if let Some(kept) = kept {
            expected["tracestate"] = json!(kept);
        }
        assert_eq!(reserved(&server, "q").await["headers"], expected, "{state}");
    }
}

async fn a_full_job_is_pushed_without_a_trace(place: &Place) {
    let server = Server::start(&place.url).await;
    let many: serde_json::Map<String, Value> = (0..64).map(|n| (format!("h{n}"), json!(n))).collect();
    for own in [Value::Object(many), json!({"h": "x".repeat(8191)})] {
        let body = json!({"headers": own});
        let (status, answer) = post_in(&server, "/v1/queues/q/jobs", &[("traceparent", PARENT)], body).await;
        assert_eq!(status, 201, "{answer}");
        assert_eq!(reserved(&server, "q").await["headers"], own);
    }
    let body = json!({"headers": {"h": "x".repeat(8192)}});
    let (status, problem) = post_in(&server, "/v1/queues/q/jobs", &[("traceparent", PARENT)], body).await;
    assert_eq!((status, &problem["pointer"]), (422, &json!("/headers")), "{problem}");
}

async fn repeats_and_duplicates_have_the_trace_of_the_first(place: &Place) {
    let server = Server::start(&place.url).await;
    let (first, second) = (context("01"), context("01"));
    let push = async |trace: &str, idempotency_key: Option<&str>, body: Value| {
        let mut headers = vec![("traceparent", trace)];
        headers.extend(idempotency_key.map(|key| ("Idempotency-Key", key)));
        post_in(&server, "/v1/queues/q/jobs", &headers, body).await
    };
    // The trace is no part of the body that tells a repeat from another call.
    let (status, answer) = push(&first, Some("once"), json!({"payload": 1})).await;
    assert_eq!(status, 201, "{answer}");
    assert_eq!(push(&second, Some("once"), json!({"payload": 1})).await, (201, answer));
    assert_eq!(reserved(&server, "q").await["headers"], json!({"traceparent": first}));
    assert_eq!(push(&first, None, json!({"payload": 2, "key": "k"})).await.0, 201);
    let (status, answer) = push(&second, None, json!({"payload": 2, "key": "k"})).await;
    assert_eq!((status, &answer["deduplicated"]), (200, &json!(true)));
    assert_eq!(reserved(&server, "q").await["headers"], json!({"traceparent": first}));
}

/// The headers of a push in a trace.
const IN_TRACE: [(&str, &str); 2] = [("traceparent", PARENT), ("tracestate", "a=1")];

/// The headers of the job.
fn in_trace() -> Value {
    json!({"traceparent": PARENT, "tracestate": "a=1"})
}

async fn push(server: &Server, queue: &str, body: Value) {
    let (status, answer) = post_in(server, &format!("/v1/queues/{queue}/jobs"), &IN_TRACE, body).await;
    assert_eq!(status, 201, "{answer}");
}

/// A job whose producer is in a trace; neither its worker nor anybody else says anything of traces, but where they are asked to.
async fn what_a_job_leads_to_stays_in_its_trace(place: &Place) {
    let server = Server::start(&place.url).await;
    let in_trace = in_trace();
    // The next stage, a retry, and what is pushed with the commit: alone, with an extend before, with many, and keyed.
    push(&server, "stages", json!({"then": [{"queue": "second"}]})).await;
    let job = reserved(&server, "stages").await;
    assert_eq!(server.settle(&job, "commit", json!({"result": 1})).await.0, 200);
    let job = reserved(&server, "second").await;
    assert_eq!(job["headers"], in_trace);
    assert_eq!(server.settle(&job, "rollback", json!({"delay_ms": 0})).await.0, 200);
    let job = reserved(&server, "second").await;
    assert_eq!((&job["headers"], &job["attempt"]), (&in_trace, &json!(2)));
    assert_eq!(server.settle(&job, "extend", json!({"lease_ms": LONG_MS})).await.0, 200);
    let own = context("01");
    let children = json!([{"queue": "children"}, {"queue": "own", "headers": {"traceparent": own}},
        {"queue": "children", "headers": {"x": 1}}]);
    let (status, answer) = server.settle(&job, "commit", json!({"push": children})).await;
    assert_eq!(status, 200, "{answer}");
    let jobs = server.reserve("children", json!({"count": 2, "lease_ms": LONG_MS})).await;
    assert_eq!(jobs[0]["headers"], in_trace);
    assert_eq!(jobs[1]["headers"], json!({"traceparent": PARENT, "tracestate": "a=1", "x": 1}));
    assert_eq!(reserved(&server, "own").await["headers"], json!({"traceparent": own}));
    for (n, keyed) in [false, true].into_iter().enumerate() {
        // On MongoDB at a server that has not delivered the job, and must read it.
        let job = &jobs[n];
        let other =
            if place.url.starts_with("sqlite") { None } else { Some(Server::start(&place.url).await) };
        let at = other.as_ref().unwrap_or(&server);
        let commit =
            json!({"id": job["id"], "reservation": job["reservation"], "push": [{"queue": "grandchildren"}]});
        let key: &[(&str, &str)] = if keyed { &[("Idempotency-Key", "settled")] } else { &[] };
        // The trace of a settle of many is none of theirs.
        let headers: Vec<_> = key.iter().copied().chain([("traceparent", &*own)]).collect();
        let unknown = json!({"id": "unknown", "reservation": "unknown"});
        let (status, answer) =
            post_in(at, "/v1/settle", &headers, json!({"commit": [commit, unknown]})).await;
        assert_eq!((status, &answer["commit"][0]["status"]), (200, &json!(200)), "{answer}");
        assert_eq!(reserved(&server, "grandchildren").await["headers"], in_trace);
    }
}

async fn the_span_of_a_worker_is_nearer_than_that_of_its_job(place: &Place) {
    let server = Server::start(&place.url).await;
    let own = context("01");
    push(&server, "parents", json!({})).await;
    let job = reserved(&server, "parents").await;
    let path = format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap());
    let body = json!({"reservation": job["reservation"], "push": [{"queue": "nearer"}]});
    assert_eq!(post_in(&server, &path, &[("traceparent", &own)], body).await.0, 200);
    assert_eq!(reserved(&server, "nearer").await["headers"], json!({"traceparent": own}));
}

async fn redrives_replays_and_callbacks_stay_in_the_trace(place: &Place) {
    let server = Server::start(&place.url).await;
    let in_trace = in_trace();
    send_in(
        &server,
        Method::PUT,
        "/v1/queues/dying",
        &[],
        json!({"dead_letter": "morgue", "max_attempts": 1}),
    )
    .await;
    push(&server, "dying", json!({})).await;
    let job = reserved(&server, "dying").await;
    assert_eq!(server.settle(&job, "rollback", json!({})).await.1["state"], "dead");
    assert_eq!(server.get("/v1/queues/morgue/jobs").await.1["jobs"][0]["headers"], in_trace);
    assert_eq!(server.post("/v1/queues/morgue/redrive", json!({})).await.1["affected"], 1);
    assert_eq!(reserved(&server, "dying").await["headers"], in_trace);
    send_in(&server, Method::PUT, "/v1/queues/kept", &[], json!({"retain_done_ms": 600_000})).await;
    push(&server, "kept", json!({})).await;
    let job = reserved(&server, "kept").await;
    assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    assert_eq!(server.post("/v1/queues/kept/replay", json!({})).await.1["affected"], 1);
    assert_eq!(reserved(&server, "kept").await["headers"], in_trace);
    let batch = json!({"jobs": [{"queue": "part"}], "on_finished": {"queue": "callback"}});
    assert_eq!(post_in(&server, "/v1/batches", &IN_TRACE, batch).await.0, 201);
    let job = reserved(&server, "part").await;
    assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    let callback = reserved(&server, "callback").await;
    assert_eq!(callback["headers"]["traceparent"], PARENT);
    assert_eq!(callback["headers"]["tracestate"], "a=1");
}

async fn moves_and_edits_of_headers_say_what_they_say(place: &Place) {
    let server = Server::start(&place.url).await;
    let push = async || {
        post_in(&server, "/v1/queues/q/jobs", &[("traceparent", PARENT)], json!({})).await.1["id"].clone()
    };
    push().await;
    let job = reserved(&server, "q").await;
    assert_eq!(server.settle(&job, "move", json!({"queue": "moved"})).await.0, 200);
    let job = reserved(&server, "moved").await;
    assert_eq!(job["headers"], json!({"traceparent": PARENT}));
    // Headers that a worker gives replace all; they are in the worker's trace, if it is in one.
    let own = context("01");
    let path = format!("/v1/jobs/{}/move", job["id"].as_str().unwrap());
    let body = json!({"reservation": job["reservation"], "queue": "again", "headers": {"x": 1}});
    assert_eq!(post_in(&server, &path, &[("traceparent", &own)], body).await.0, 200);
    let job = reserved(&server, "again").await;
    assert_eq!(job["headers"], json!({"traceparent": own, "x": 1}));
    assert_eq!(server.settle(&job, "move", json!({"queue": "last", "headers": {}})).await.0, 200);
    assert_eq!(reserved(&server, "last").await["headers"], json!({}));
    let id = push().await;
    let path = format!("/v1/jobs/{}", id.as_str().unwrap());
    let edit = json!({"headers": {"y": 2}});
    assert_eq!(send_in(&server, Method::PATCH, &path, &[("traceparent", &own)], edit).await.0, 200);
    assert_eq!(reserved(&server, "q").await["headers"], json!({"y": 2}));
}

async fn runs_by_hand_are_in_the_trace_of_their_call(place: &Place) {
    let server = Server::start(&place.url).await;
    let rule = json!({"cron": "@yearly", "queue": "runs", "job": {"payload": 1}});
    let set =
        send_in(&server, Method::PUT, "/v1/schedules/s", &[("traceparent", &context("01"))], rule).await;
    assert!(set.0 < 300, "{set:?}");
    assert_eq!(
        set.1["job"].get("headers").cloned().unwrap_or(json!({})),
        json!({}),
        "a rule is as it was set"
    );
    let (status, run) = post_in(&server, "/v1/schedules/s/run", &[("traceparent", PARENT)], json!({})).await;
    assert!(status < 300, "{run}");
    assert_eq!(reserved(&server, "runs").await["headers"], json!({"traceparent": PARENT}));
    let headers = [("traceparent", PARENT), ("Idempotency-Key", "run")];
    assert!(post_in(&server, "/v1/schedules/s/run", &headers, json!({})).await.0 < 300);
    assert_eq!(reserved(&server, "runs").await["headers"], json!({"traceparent": PARENT}));
    assert!(server.post("/v1/schedules/s/run", json!({})).await.0 < 300);
    assert_eq!(reserved(&server, "runs").await["headers"], json!({}));
}
