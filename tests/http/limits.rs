//! `max_jobs`, `expires_in_ms`, and the sizes of bodies and payloads.

use std::time::{Duration, Instant};

use futures::StreamExt as _;

use super::support::*;
use crate::common::server::PATIENCE;

pub async fn a_full_queue_refuses_until_a_job_ends(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_jobs": 2})).await;
    server.push("mail", json!({"payload": 1, "key": "k"})).await;
    server.push("mail", json!({"payload": 2, "delay_ms": 3_600_000})).await;
    let reply = post_text(&server, "/v1/queues/mail/jobs", r#"{"payload":3}"#).await;
    refused(&reply.answer(), 429, "queue-full");
    assert_eq!(reply.json()["retryable"], true);
    assert!(reply.header("retry-after").parse::<u32>().is_ok_and(|seconds| seconds >= 1));
    // A reserved job is unfinished, too.
    let taken = take(&server, "mail").await;
    refused(&server.post("/v1/queues/mail/jobs", json!({"payload": 3})).await, 429, "queue-full");
    server.settle(&taken, "commit", json!({})).await;
    server.push("mail", json!({"payload": 3})).await;
    refused(&server.post("/v1/queues/mail/jobs", json!({"payload": 4})).await, 429, "queue-full");
    configure(&server, "mail", json!({"max_jobs": 3})).await;
    server.push("mail", json!({"payload": 4})).await;
}

const FEW: &[(&str, &str)] = &[
    ("TAILBACK_LIMITS__QUEUES", "2"),
    ("TAILBACK_LIMITS__WORKERS", "1"),
    ("TAILBACK_LIMITS__SCHEDULES", "1"),
    ("TAILBACK_LIMITS__SEMAPHORES", "1"),
    ("TAILBACK_LIMITS__IDEMPOTENCY_KEYS", "1"),
];

pub async fn there_are_only_so_many_queues(place: &Place) {
    let mut server = Server::start_with(&place.url, FEW).await;
    let (one, full) = (json!({"payload": 1}), "limit-reached");
    for queue in ["a", "b", "a"] {
        server.push(queue, one.clone()).await;
    }
    let taken = server.reserve("a", json!({"lease_ms": 600_000})).await.remove(0); // beyond the next start
    server.terminate().await;
    // A server that has just started knows no names.
    let server = Server::start_with(&place.url, FEW).await;
    let push = async |queue: &str, job| server.post(&format!("/v1/queues/{queue}/jobs"), job).await;
    let answer = push("c", one.clone()).await;
    assert!(answer.1["detail"].as_str().unwrap().contains("limits.queues"), "{answer:?}");
    refused(&answer, 429, full);
    for queue in ["a", "b", "a"] {
        assert_eq!(push(queue, one.clone()).await.0, 201, "what there is keeps working");
    }
    refused(&push("a", json!({"payload": 1, "then": [{"queue": "c"}]})).await, 429, full);
    refused(&server.settle(&taken, "move", json!({"queue": "c"})).await, 429, full);
    let pushing = json!({"push": [{"queue": "c", "payload": 1}]});
    refused(&server.settle(&taken, "commit", pushing).await, 429, full);
    let batch = json!({"jobs": [{"queue": "c", "payload": 1}]});
    refused(&server.post("/v1/batches", batch).await, 429, full);
    let dead_letter = json!({"dead_letter": "c"});
    let put = async |queue: &str, settings| {
        server.send(reqwest::Method::PUT, &format!("/v1/queues/{queue}"), Some(settings)).await
    };
    refused(&put("a", dead_letter).await, 429, full);
    assert_eq!(server.settle(&taken, "move", json!({"queue": "b"})).await.0, 200);
    // Queues with settings are counted for themselves.
    for queue in ["c", "d", "a", "c"] {
        assert_eq!(put(queue, json!({"max_attempts": 3})).await.0, 200, "{queue}");
    }
    refused(&put("e", json!({})).await, 429, full);
    assert_eq!(push("c", one.clone()).await.0, 201);
    for queue in ["a", "b", "c", "d"] {
        server.send(reqwest::Method::DELETE, &format!("/v1/queues/{queue}?force=true"), None).await;
    }
    until("there is room again", || async { push("f", one.clone()).await.0 == 201 }).await;
}

pub async fn there_are_only_so_many_names(place: &Place) {
    let server = Server::start_with(&place.url, FEW).await;
    let schedule = json!({"cron": "0 0 1 1 *", "queue": "q", "job": {"payload": 1}});
    let put = reqwest::Method::PUT;
    for (method, path, body) in [
        (reqwest::Method::POST, "/v1/workers/NAME/heartbeat", json!({})),
        (put.clone(), "/v1/semaphores/NAME", json!({"capacity": 1})),
        (put, "/v1/schedules/NAME", schedule),
    ] {
        let send =
            async |name| server.send(method.clone(), &path.replace("NAME", name), Some(body.clone())).await;
        assert_eq!(send("one").await.0, 200, "{path}");
        refused(&send("two").await, 429, "limit-reached");
        assert_eq!(send("one").await.0, 200, "{path}");
        refused(&send("two").await, 429, "limit-reached");
    }
    let (first, _) =
        (server.push("q", json!({"payload": 1})).await, server.push("q", json!({"payload": 1})).await);
    let reserve = async |key: &str| {
        let (headers, ask) = ([("idempotency-key", key)], r#"{"count":1,"lease_ms":600000}"#);
        raw(&server, "POST", "/v1/queues/q/reserve", &headers, ask).await.answer()
    };
    for (key, status) in [("one", 200), ("two", 429), ("one", 200)] {
        let (got, answer) = reserve(key).await;
        assert_eq!(got, status, "{key}: {answer}");
        assert!(status != 200 || answer["jobs"][0]["id"] == first.as_str(), "{answer}");
    }
}

/// As it is shipped: each of them may push a job every second. Those that are stored while they are counted may count twice for a
/// moment, so that one is refused too early: that one is tried again.
pub async fn a_server_runs_at_most_a_thousand_schedules(place: &Place) {
    let server = Server::start(&place.url).await;
    let rule = json!({"cron": "* * * * * *", "queue": "q", "job": {"payload": 1}, "paused": true});
    let put = async |n: usize| {
        let path = format!("/v1/schedules/s{n}");
        (n, server.send(reqwest::Method::PUT, &path, Some(rule.clone())).await.0)
    };
    // For how long none was stored: how long all of them take is the machine's business.
    let (mut refused, mut since): (Vec<usize>, _) = ((0..1010).collect(), Instant::now());
    while refused.len() > 10 {
        assert!(since.elapsed() < PATIENCE, "{} are refused", refused.len());
        let puts = futures::stream::iter(refused).map(&put).buffer_unordered(32).collect::<Vec<_>>().await;
        assert!(puts.iter().all(|(_, status)| [200, 429].contains(status)), "{puts:?}");
        if puts.iter().any(|(_, status)| *status == 200) {
            since = Instant::now();
        }
        refused = puts.into_iter().filter(|(_, status)| *status == 429).map(|(n, _)| n).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(refused.len(), 10);
    for n in refused {
        assert_eq!(put(n).await, (n, 429));
    }
}

/// What stores nothing takes no place, now or later.
pub async fn a_call_that_does_nothing_takes_no_place(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__QUEUES", "4")]).await;
    server.push("a", json!({"payload": 1})).await;
    let never = json!({"id": "01AAAAAAAAAAAAAAAAAAAAAAAA", "reservation": "AAAAAAAAAAAAAAAAAAAAAAAAAA"});
    let settle = async |call: &str, body: Value| {
        let body = if body.is_object() { body } else { Value::Null };
        let mut request = never.clone();
        request.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let path = format!("/v1/jobs/{}/{call}", request["id"].as_str().unwrap());
        request.as_object_mut().unwrap().remove("id");
        server.post(&path, request).await
    };
    let counts = async || metric(&server, "tailback_store_call_seconds_count{call=\"how_many\"}").await;
    for names in [["b", "c", "d"], ["e", "f", "g"]] {
        let before = counts().await;
        until("the queues are counted anew", || async {
            for name in names {
                refused(&settle("move", json!({"queue": name})).await, 409, "reservation-lost");
                let invalid = json!({"payload": 1, "priority": 1, "max_attempts": -1});
                refused(
                    &server.post(&format!("/v1/queues/{name}/jobs"), invalid).await,
                    422,
                    "invalid-field",
                );
            }
            counts().await > before
        })
        .await;
    }
    let pushes: Vec<Value> = (0..900).map(|n| json!({"queue": format!("n{n}"), "payload": 1})).collect();
    refused(&settle("commit", json!({"push": pushes[..3]})).await, 409, "reservation-lost");
    let asked = async || {
        let call = |name| format!("tailback_store_call_seconds_count{{call=\"{name}\"}}");
        metric(&server, &call("counts")).await + metric(&server, &call("with_jobs")).await
    };
    let before = asked().await;
    refused(&settle("commit", json!({"push": pushes})).await, 429, "limit-reached");
    assert!(asked().await <= before + 1.0, "names are asked about together");
    let mut answers = Vec::new();
    for name in ["b", "c", "d", "e", "f", "g"] {
        answers.push(server.post(&format!("/v1/queues/{name}/jobs"), json!({"payload": 1})).await.0);
    }
    assert_eq!(answers, [201, 201, 201, 429, 429, 429]);
}

pub async fn what_was_deleted_is_counted_anew(place: &Place) {
    let server = Server::start_with(&place.url, FEW).await;
    let (put, delete) = (reqwest::Method::PUT, reqwest::Method::DELETE);
    for (make, method, path) in [
        ("/v1/semaphores/NAME", put, "/v1/semaphores/NAME"),
        ("/v1/workers/NAME/heartbeat", reqwest::Method::POST, "/v1/workers/NAME"),
    ] {
        let body = if method == reqwest::Method::PUT { json!({"capacity": 1}) } else { json!({}) };
        let send =
            async |name| server.send(method.clone(), &make.replace("NAME", name), Some(body.clone())).await;
        assert_eq!(send("one").await.0, 200, "{make}");
        let gone = server.send(delete.clone(), &path.replace("NAME", "one"), None).await;
        assert!(gone.0 < 300, "{gone:?}");
        until("there is room again", || async { send("two").await.0 == 200 }).await;
        refused(&send("one").await, 429, "limit-reached");
    }
}

/// What is wrong by itself asks the store nothing.
pub async fn too_many_semaphores_do_not_reach_the_store(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let names: Vec<String> = (0..100_000).map(|n| format!("s{n}")).collect();
    let job = json!({"payload": 1, "semaphores": names});
    let queued = json!({"queue": "mail", "payload": 1, "semaphores": names});
    invalid(&server.post("/v1/queues/mail/jobs", job.clone()).await, "/semaphores");
    invalid(&server.settle(&taken, "commit", json!({"push": [queued]})).await, "/push/0/semaphores");
    invalid(&server.post("/v1/batches", json!({"jobs": [queued]})).await, "/jobs/0/semaphores");
    let batch = json!({"jobs": [], "on_finished": queued});
    invalid(&server.post("/v1/batches", batch).await, "/on_finished/semaphores");
    let schedule = json!({"cron": "0 0 1 1 *", "queue": "mail", "job": job});
    let path = "/v1/schedules/leap";
    invalid(&server.send(reqwest::Method::PUT, path, Some(schedule)).await, "/job/semaphores");
    let asked = metric(&server, "tailback_store_call_seconds_count{call=\"unknown_semaphores\"}").await;
    assert!(asked == 0.0, "the store was asked {asked} times");
}

pub async fn a_full_queue_refuses_a_move(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "next", json!({"max_jobs": 1})).await;
    server.push("next", json!({"payload": 1})).await;
    let taken = push_and_take(&server, "mail").await;
    refused(&server.settle(&taken, "move", json!({"queue": "next"})).await, 429, "queue-full");
    let path = format!("/v1/jobs/{}/move", id(&taken));
    let body = json!({"reservation": taken["reservation"], "queue": "next"}).to_string();
    assert!(!post_text(&server, &path, &body).await.header("retry-after").is_empty());
    // Nothing has happened: the job is held as before, and moves once there is room.
    let seen = see(&server, &id(&taken)).await;
    assert_eq!((&seen["queue"], &seen["state"]), (&json!("mail"), &json!("reserved")));
    let other = take(&server, "next").await;
    server.settle(&other, "commit", json!({})).await;
    assert_eq!(server.settle(&taken, "move", json!({"queue": "next"})).await.0, 200);
}

pub async fn a_dead_letter_queue_is_never_full(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "dead", json!({"max_jobs": 1})).await;
    configure(&server, "mail", json!({"dead_letter": "dead", "max_attempts": 1})).await;
    server.push("dead", json!({"payload": 1})).await;
    let taken = push_and_take(&server, "mail").await;
    let (status, answer) = server.settle(&taken, "rollback", json!({})).await;
    assert_eq!((status, &answer["state"], &answer["queue"]), (200, &json!("dead"), &json!("dead")));
    assert_eq!(server.reserve("dead", json!({"count": 5})).await.len(), 2);
}

pub async fn an_expired_job_leaves(place: &Place) {
    let server = Server::start(&place.url).await;
    let expired = server.push("mail", json!({"payload": 1, "expires_in_ms": 50})).await;
    let delayed =
        server.push("mail", json!({"payload": 1, "expires_in_ms": 50, "delay_ms": 3_600_000})).await;
    let kept = server.push("mail", json!({"payload": 2, "expires_in_ms": 600_000})).await;
    for id in [expired, delayed] {
        until("the job has expired", || async { server.get(&format!("/v1/jobs/{id}")).await.0 == 404 }).await;
    }
    assert_eq!(ids(&server.reserve("mail", json!({"count": 9})).await), [kept]);
}

pub async fn a_reserved_job_expires_once_it_is_given_back(place: &Place) {
    let server = Server::start(&place.url).await;
    for queue in ["commit", "rollback", "lapse"] {
        let job = json!({"payload": 1, "expires_in_ms": 500});
        let id = server.push(queue, job.clone()).await;
        let lease_ms = if queue == "lapse" { 600 } else { 600_000 };
        let mut reserved = server.reserve(queue, json!({"lease_ms": lease_ms})).await;
        // On a machine that is very busy the job may have expired before anybody could reserve it.
        let Some(taken) = reserved.pop() else { continue };
        assert_eq!(taken["id"], id);
        let expiry = taken["expires_at"].as_str().unwrap().to_owned();
        until("the expiry has passed by the store's clock", || async {
            let probe = see(&server, &server.push("clock", json!({"payload": 1})).await).await;
            probe["created_at"].as_str().unwrap() > expiry.as_str()
        })
        .await;
        match queue {
            "commit" => assert_eq!(server.settle(&taken, "commit", json!({})).await.1["state"], "done"),
            "rollback" => {
                let (status, answer) = server.settle(&taken, "rollback", json!({"delay_ms": 0})).await;
                assert_eq!((status, &answer["state"]), (200, &json!("removed")));
            }
            _ => {}
        }
        until("the job has left", || async { server.get(&format!("/v1/jobs/{id}")).await.0 == 404 }).await;
    }
}

pub async fn payloads_and_bodies_have_limits(place: &Place) {
    let limits = [("TAILBACK_LIMITS__PAYLOAD_BYTES", "100"), ("TAILBACK_LIMITS__BODY_BYTES", "4096")];
    let server = Server::start_with(&place.url, &limits).await;
    configure(&server, "mail", json!({"retain_done_ms": 60_000})).await;
    let (fits, long) = ("x".repeat(98), "x".repeat(99)); // and two quotation marks
    let invalid = |answer: &(u16, Value), pointer: &str| {
        refused(answer, 413, "too-large");
        assert_eq!(answer.1["pointer"], pointer, "{}", answer.1);
    };
    invalid(&server.post("/v1/queues/mail/jobs", json!({"payload": long})).await, "/payload");
    let pushed = server.push("mail", json!({"payload": fits})).await;
    // White space is not part of a payload.
    let spacious = format!(r#"{{"payload":[{}1]}}"#, " ".repeat(500));
    assert_eq!(post_text(&server, "/v1/queues/mail/jobs", &spacious).await.status, 201);
    let (status, answer) =
        server.post("/v1/queues/mail/jobs/batch", json!({"jobs": [{"payload": long}, {"payload": 1}]})).await;
    assert_eq!((status, &answer["results"][1]["status"]), (200, &json!(201)));
    assert_eq!(answer["results"][0]["status"], 413);
    invalid(&(413, answer["results"][0]["problem"].clone()), "/jobs/0/payload");
    let path = format!("/v1/jobs/{pushed}");
    invalid(&server.send(reqwest::Method::PATCH, &path, Some(json!({"payload": long}))).await, "/payload");

    let taken = take(&server, "mail").await;
    invalid(&server.settle(&taken, "commit", json!({"result": long})).await, "/result");
    invalid(&server.settle(&taken, "extend", json!({"progress": long})).await, "/progress");
    invalid(&server.settle(&taken, "move", json!({"queue": "q", "payload": long})).await, "/payload");
    assert_eq!(server.settle(&taken, "commit", json!({"result": fits})).await.0, 200);
    assert_eq!(see(&server, &pushed).await["result"], fits);

    for path in ["/v1/queues/mail/jobs", "/v1/settle", "/v1/reserve"] {
        let reply = post_text(&server, path, &format!("{{{}}}", " ".repeat(4096))).await;
        refused(&reply.answer(), 413, "too-large");
    }
}

/// What no name and no number bounds has an end, too.
pub async fn texts_have_an_end(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "q").await;
    let over = json!({"error": "\u{fc}".repeat(1_048_577)});
    invalid(&server.settle(&taken, "rollback", over.clone()).await, "/error");
    let mut item = json!({"id": taken["id"], "reservation": taken["reservation"]});
    item["error"] = over["error"].clone();
    let (_, answer) = server.post("/v1/settle", json!({"rollback": [item]})).await;
    invalid(&(422, answer["rollback"][0]["problem"].clone()), "/rollback/0/error");
    let longest = json!({"error": "\u{fc}".repeat(1_048_576)});
    assert_eq!(server.settle(&taken, "rollback", longest).await.0, 200);
    let kept = see(&server, &id(&taken)).await["errors"][0]["message"].as_str().unwrap().to_owned();
    assert_eq!(kept, "\u{fc}".repeat(2048));
    let rule = json!({"cron": "0 0 1 1 *", "queue": "q", "job": {}, "time_zone": "x".repeat(129)});
    invalid(&server.send(reqwest::Method::PUT, "/v1/schedules/s", Some(rule)).await, "/time_zone");
    let long = "a".repeat(513);
    for path in ["/v1/queues", "/v1/queues/q/jobs", "/v1/batches", "/v1/schedules", "/v1/workers"] {
        bad_parameter(&server.get(&format!("{path}?cursor={long}")).await, "cursor");
    }
    bad_parameter(&server.get(&format!("/v1/queues?prefix={}", "a".repeat(129))).await, "prefix");
    let path = format!("/v1/queues?prefix=a&confirm={long}");
    bad_parameter(&server.send(reqwest::Method::DELETE, &path, None).await, "confirm");
    let tags = format!("\"{}\"", "a".repeat(1023));
    let reply = raw(&server, "PUT", "/v1/queues/q", &[("if-match", &tags)], "{}").await;
    bad_parameter(&reply.answer(), "If-Match");
    invalid(&server.post("/v1/session", json!({"key": "k".repeat(4097)})).await, "/key");
}
