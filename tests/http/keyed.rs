//! `Idempotency-Key` on what creates or takes: it takes effect once, and a repeat gets the same response.

use std::time::Instant;

use futures::future::join_all;

use super::keyed_pops::POP;
use super::support::*;

pub(super) async fn keyed(server: &Server, path: &str, key: &str, body: Value) -> Reply {
    raw(server, "POST", path, &[("idempotency-key", key)], body.to_string()).await
}

/// A call that must be answered like the one before.
pub(super) async fn again(server: &Server, path: &str, key: &str, body: Value, first: &Reply) {
    let repeat = keyed(server, path, key, body).await;
    assert_eq!((repeat.status, &repeat.text), (first.status, &first.text));
    assert_eq!(repeat.header("location"), first.header("location"));
    assert_eq!(repeat.header("content-type"), first.header("content-type"));
}

pub(super) async fn count(server: &Server, queue: &str) -> usize {
    let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
    assert_eq!(status, 200, "{page}");
    page["jobs"].as_array().unwrap().len()
}

const JOBS: &str = "/v1/queues/mail/jobs";

pub async fn a_keyed_push_is_done_once(place: &Place) {
    let server = Server::start(&place.url).await;
    for (n, job) in [
        json!({"payload": {"n": 1.50, "ä": "€"}}),
        json!({"payload": 1, "delay_ms": 3_600_000}),
        json!({"payload": 1, "key": "k"}),
        json!({"payload": 1, "group": "g", "expires_in_ms": 3_600_000}),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{n}");
        let first = keyed(&server, JOBS, &key, job.clone()).await;
        assert_eq!(first.status, 201, "{}", first.text);
        assert_eq!(first.header("location"), format!("/v1/jobs/{}", id(&first.json())));
        again(&server, JOBS, &key, job.clone(), &first).await;
        // The same JSON is the same request, however it is spaced.
        let spaced = serde_json::to_string_pretty(&job).unwrap();
        let repeat = raw(&server, "POST", JOBS, &[("idempotency-key", &key)], spaced).await;
        assert_eq!((repeat.status, &repeat.text), (201, &first.text));
        assert_eq!(count(&server, "mail").await, n + 1);
        refused(
            &keyed(&server, JOBS, &key, json!({"payload": 2})).await.answer(),
            422,
            "idempotency-key-reused",
        );
    }
    // Another key, no key and another path are other calls.
    let job = json!({"payload": {"n": 1.50, "ä": "€"}});
    assert_eq!(keyed(&server, JOBS, "other", job.clone()).await.status, 201);
    server.push("mail", job.clone()).await;
    assert_eq!(keyed(&server, "/v1/queues/other/jobs", "k0", job).await.status, 201);
    assert_eq!((count(&server, "mail").await, count(&server, "other").await), (6, 1));
    bad_parameter(&keyed(&server, JOBS, "a b", json!({"payload": 1})).await.answer(), "Idempotency-Key");
}

/// Keyed, in a batch and beside a commit: a push that makes a job due wakes whoever waits for it.
pub async fn a_repeat_may_encode_its_path_otherwise(place: &Place) {
    let server = Server::start(&place.url).await;
    let first = keyed(&server, "/v1/queues/mail:eu/jobs", "k", json!({"payload": 1})).await;
    assert_eq!(first.status, 201, "{}", first.text);
    again(&server, "/v1/queues/mail%3Aeu/jobs", "k", json!({"payload": 1}), &first).await;
    again(&server, "/v1/queues/%6dail%3aeu/jobs", "k", json!({"payload": 1}), &first).await;
    assert_eq!(count(&server, "mail:eu").await, 1);
}

pub async fn what_is_replaced_wakes_a_waiter(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = |key: &str, delay_ms: u64| json!({"queue": key, "payload": delay_ms, "key": "k", "key_conflict": "replace", "delay_ms": delay_ms});
    let of_queue = |key: &str, delay_ms: u64| {
        let mut body = job(key, delay_ms);
        body.as_object_mut().unwrap().remove("queue");
        body
    };
    server.push("from", json!({"payload": 1})).await;
    let held = server.reserve("from", json!({"lease_ms": 600_000})).await.remove(0);
    for queue in ["keyed", "together", "batch", "commit"] {
        let first = server.push(queue, of_queue(queue, 600_000)).await;
        let waiter = waiting_reserve(&server, queue).await;
        let since = Instant::now();
        let now = job(queue, 0);
        let status = match queue {
            "keyed" => {
                keyed(&server, &format!("/v1/queues/{queue}/jobs"), "k", of_queue(queue, 0)).await.status
            }
            "together" => server.post("/v1/jobs", json!({"jobs": [now]})).await.0,
            "batch" => {
                let jobs = json!([now, {"queue": "other", "payload": 1}]);
                server.post("/v1/batches", json!({"jobs": jobs})).await.0
            }
            _ => server.settle(&held, "commit", json!({"push": [now]})).await.0,
        };
        assert!((200..300).contains(&status), "{queue}: {status}");
        assert_eq!(woken(since, waiter).await, [first], "{queue}");
    }
}

pub async fn a_keyed_push_is_answered_alike_when_its_job_is_gone(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = json!({"payload": 1, "key": "k", "key_ttl_ms": 0});
    let first = keyed(&server, JOBS, "one", job.clone()).await;
    // A push that met a taken key is remembered as such.
    let duplicate = keyed(&server, JOBS, "two", job.clone()).await;
    assert_eq!((duplicate.status, &duplicate.json()["deduplicated"]), (200, &json!(true)));
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    again(&server, JOBS, "one", job.clone(), &first).await;
    again(&server, JOBS, "two", job.clone(), &duplicate).await;
    assert_eq!(count(&server, "mail").await, 0);
    assert_eq!(keyed(&server, JOBS, "three", job).await.status, 201);
}

pub async fn a_keyed_push_that_was_refused_is_tried_again(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_jobs": 1})).await;
    let held = push_and_take(&server, "mail").await;
    let job = json!({"payload": 1, "key": "k"});
    refused(&keyed(&server, JOBS, "full", job.clone()).await.answer(), 429, "queue-full");
    invalid(&keyed(&server, JOBS, "bad", json!({"payload": 1, "delay_ms": -1})).await.answer(), "/delay_ms");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    let first = keyed(&server, JOBS, "full", job.clone()).await;
    assert_eq!(first.status, 201, "{}", first.text);
    again(&server, JOBS, "full", job, &first).await;
    let conflict = json!({"payload": 2, "key": "k"});
    refused(&keyed(&server, JOBS, "conflict", conflict.clone()).await.answer(), 409, "key-conflict");
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 0})).await.0, 200);
    refused(&keyed(&server, JOBS, "conflict", conflict).await.answer(), 409, "key-conflict");
    // What was refused may say something else the next time.
    assert_eq!(keyed(&server, "/v1/queues/other/jobs", "bad", json!({"payload": 1})).await.status, 201);
}

pub async fn a_keyed_push_of_many_is_done_once(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_jobs": 3})).await;
    let path = "/v1/queues/mail/jobs/batch";
    let some = json!({"jobs": [{"payload": 1}, {"payload": 2, "key": "k"}, {"payload": 3, "key": "k"}, {"priority": "x"},
        {"payload": 2, "key": "k"}, {"payload": 4}, {"payload": 5}]});
    let first = keyed(&server, path, "k", some.clone()).await;
    let statuses = |reply: &Reply| {
        let answer = reply.json();
        let results = answer["results"].as_array().unwrap();
        results.iter().map(|result| result["status"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(statuses(&first), [201, 201, 409, 422, 200, 201, 429], "{}", first.text);
    again(&server, path, "k", some.clone(), &first).await;
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    again(&server, path, "k", some, &first).await;
    assert_eq!(count(&server, "mail").await, 2);
    // One of which nothing was stored is not remembered.
    let none = json!({"jobs": [{"payload": 1}, {"payload": 2}]});
    server.push("mail", json!({"payload": 1})).await;
    assert_eq!(statuses(&keyed(&server, path, "none", none.clone()).await), [429, 429]);
    configure(&server, "mail", json!({"max_jobs": 9})).await;
    let stored = keyed(&server, path, "none", none.clone()).await;
    assert_eq!(statuses(&stored), [201, 201]);
    again(&server, path, "none", none, &stored).await;
}

pub async fn a_keyed_batch_is_created_once(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("a", json!({"payload": 1, "key": "there"})).await;
    let body = json!({"sealed": false, "on_finished": {"queue": "after", "payload": 1},
        "jobs": [{"queue": "a", "payload": 1, "key": "there"}, {"queue": "a", "payload": 2, "key": "new"}]});
    let first = keyed(&server, "/v1/batches", "k", body.clone()).await;
    assert_eq!(first.status, 201, "{}", first.text);
    let batch = first.json();
    let member = |n: usize| (&batch["jobs"][n]["deduplicated"], &batch["jobs"][n]["counted"]);
    assert_eq!(member(0), (&json!(true), &json!(false)));
    assert_eq!(member(1), (&json!(false), &json!(true)));
    assert_eq!(batch["pending"], 1);
    again(&server, "/v1/batches", "k", body.clone(), &first).await;
    let path = format!("/v1/batches/{}", id(&batch));
    assert_eq!(first.header("location"), path);
    let more = json!({"jobs": [{"queue": "a", "payload": 3}]});
    let added = keyed(&server, &format!("{path}/jobs"), "k", more.clone()).await;
    assert_eq!((added.status, &added.json()["pending"]), (200, &json!(2)), "{}", added.text);
    assert_eq!(server.post(&format!("{path}/seal"), json!({})).await.0, 200);
    again(&server, &format!("{path}/jobs"), "k", more, &added).await;
    again(&server, "/v1/batches", "k", body, &first).await;
    for job in server.reserve("a", json!({"count": 9, "lease_ms": 600_000})).await {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    let called = server.reserve("after", json!({"count": 9})).await;
    assert_eq!(called.len(), 1);
    assert_eq!(called[0]["headers"]["batch-done"], "2");
    refused(
        &keyed(&server, "/v1/batches", "k", json!({"jobs": []})).await.answer(),
        422,
        "idempotency-key-reused",
    );
}

/// It would count none of its jobs, and call back before any has run.
pub async fn a_batch_of_duplicates_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs: Vec<Value> =
        (0..3).map(|n| json!({"queue": "a", "payload": n, "key": n.to_string()})).collect();
    let body = json!({"jobs": jobs, "on_finished": {"queue": "after", "payload": 1}});
    let (status, batch) = server.post("/v1/batches", body.clone()).await;
    assert_eq!(status, 201, "{batch}");
    let twice = server.post("/v1/batches", body).await;
    refused(&twice, 409, "batch-of-duplicates");
    assert_eq!(twice.1["job_id"], batch["jobs"][0]["id"]);
    assert_eq!(count(&server, "after").await, 0);
    for job in server.reserve("a", json!({"count": 9, "lease_ms": 600_000})).await {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    assert_eq!(count(&server, "after").await, 1);
    // Without jobs it is no duplicate.
    let (status, empty) = server.post("/v1/batches", json!({"jobs": []})).await;
    assert_eq!((status, empty["finished_at"].is_string()), (201, true), "{empty}");
}

/// The second time all of its jobs are duplicates: it would count none, and call back before any has run.
pub async fn a_batch_that_is_sent_twice_in_parts_calls_back_once(place: &Place) {
    let server = Server::start(&place.url).await;
    let open = async || {
        let body = json!({"jobs": [], "sealed": false, "on_finished": {"queue": "after", "payload": 1}});
        let (status, batch) = server.post("/v1/batches", body).await;
        assert_eq!(status, 201, "{batch}");
        format!("/v1/batches/{}", id(&batch))
    };
    let parts =
        json!({"jobs": [{"queue": "a", "payload": 1, "key": "a"}, {"queue": "a", "payload": 2, "key": "b"}]});
    let first = open().await;
    assert_eq!(server.post(&format!("{first}/jobs"), parts.clone()).await.0, 200);
    assert_eq!(server.post(&format!("{first}/jobs"), parts.clone()).await.0, 200, "its own jobs");
    assert_eq!(server.post(&format!("{first}/seal"), json!({})).await.0, 200);
    let second = open().await;
    refused(&server.post(&format!("{second}/jobs"), parts).await, 409, "batch-of-duplicates");
    assert_eq!(count(&server, "after").await, 0, "it has called back");
    for job in server.reserve("a", json!({"count": 9, "lease_ms": 600_000})).await {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    assert_eq!(count(&server, "after").await, 1);
}

/// A move without a token, which an operator makes.
pub async fn a_keyed_move_is_done_once(place: &Place) {
    let server = Server::start(&place.url).await;
    let job = server.push("a", json!({"payload": 1})).await;
    let path = format!("/v1/jobs/{job}/move");
    let first = keyed(&server, &path, "k", json!({"queue": "b"})).await;
    assert_eq!((first.status, &first.json()["queue"]), (200, &json!("b")), "{}", first.text);
    assert_eq!(server.post(&path, json!({"queue": "c"})).await.0, 200);
    again(&server, &path, "k", json!({"queue": "b"}), &first).await;
    assert_eq!(
        (count(&server, "b").await, count(&server, "c").await),
        (0, 1),
        "it stays where it was moved to"
    );
    let other = keyed(&server, &path, "k", json!({"queue": "d"})).await.answer();
    refused(&other, 422, "idempotency-key-reused");
    // What was refused is not remembered.
    configure(&server, "full", json!({"max_jobs": 1})).await;
    let blocker = server.push("full", json!({"payload": 1})).await;
    let full = keyed(&server, &path, "full", json!({"queue": "full"})).await.answer();
    refused(&full, 429, "queue-full");
    assert_eq!(server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{blocker}"), None).await.0, 200);
    let moved = keyed(&server, &path, "full", json!({"queue": "full"})).await;
    assert_eq!((moved.status, &moved.json()["queue"]), (200, &json!("full")), "{}", moved.text);
    let (_, audit) = server.get("/v1/audit?what=job.move").await;
    assert_eq!(audit["entries"].as_array().unwrap().len(), 3, "each move once: {audit}");
}

/// A call by a client that asks again where the first one takes so long that it is said to be still in flight.
async fn keyed_to_the_end(server: &Server, path: &str, key: &str, body: Value) -> Reply {
    loop {
        let reply = keyed(server, path, key, body.clone()).await;
        if reply.json()["code"] != "request-pending" {
            return reply;
        }
    }
}

pub async fn of_keyed_calls_at_once_one_takes_effect(place: &Place) {
    let server = Server::start(&place.url).await;
    let many = |path: &'static str, body: Value| {
        let server = &server;
        async move {
            let calls = (0..8).map(|_| keyed_to_the_end(server, path, "k", body.clone()));
            let replies = join_all(calls).await;
            for reply in &replies {
                assert_eq!((reply.status, &reply.text), (replies[0].status, &replies[0].text));
            }
            replies[0].json()
        }
    };
    let pushed = many(JOBS, json!({"payload": 1})).await;
    assert_eq!(count(&server, "mail").await, 1);
    server.push("mail", json!({"payload": 2})).await;
    let popped = many(POP, json!({})).await;
    assert_eq!(ids(popped["jobs"].as_array().unwrap()).len(), 1);
    // What the others had claimed is given back, and nothing is lost.
    until("what was given back is there", || async {
        let (_, page) = server.get("/v1/queues/mail/jobs?state=ready").await;
        page["jobs"].as_array().unwrap().len() == 1
    })
    .await;
    let left = take(&server, "mail").await;
    assert_ne!(left["id"], popped["jobs"][0]["id"]);
    assert!([&left["id"], &popped["jobs"][0]["id"]].contains(&&pushed["id"]));
    let jobs = json!({"jobs": [{"queue": "b", "payload": 1}]});
    many("/v1/batches", jobs).await;
    assert_eq!(count(&server, "b").await, 1);
}

pub async fn a_schedule_is_run_once_by_a_key(place: &Place) {
    let server = Server::start(&place.url).await;
    let rule = json!({"cron": "0 0 1 1 *", "queue": "work", "job": {"payload": 1}});
    let (status, made) = server.send(reqwest::Method::PUT, "/v1/schedules/yearly", Some(rule)).await;
    assert_eq!(status, 200, "{made}");
    let path = "/v1/schedules/yearly/run";
    let first = keyed(&server, path, "k", json!({})).await;
    assert_eq!(first.status, 200, "{}", first.text);
    // Also once it is not among the last runs any more.
    for n in 0..12 {
        assert_eq!(keyed(&server, path, &n.to_string(), json!({})).await.status, 200);
    }
    again(&server, path, "k", json!({}), &first).await;
    assert_eq!(raw(&server, "POST", path, &[("idempotency-key", "k")], "").await.text, first.text);
    assert_eq!(count(&server, "work").await, 13);
}

pub async fn a_keyed_redrive_and_replay_are_done_once(place: &Place) {
    let server = Server::start(&place.url).await;
    for (verb, call) in [("rollback", "redrive"), ("commit", "replay")] {
        configure(&server, call, json!({"retain_done_ms": 600_000, "max_attempts": 1})).await;
        let end = async |count: usize| {
            for _ in 0..count {
                let taken = push_and_take(&server, call).await;
                assert_eq!(server.settle(&taken, verb, json!({})).await.0, 200);
            }
        };
        let ready = async || {
            let (_, page) = server.get(&format!("/v1/queues/{call}/jobs?state=ready")).await;
            page["jobs"].as_array().unwrap().len()
        };
        let path = format!("/v1/queues/{call}/{call}");
        end(3).await;
        let first = keyed(&server, &path, "k", json!({})).await;
        assert_eq!((first.status, &first.json()), (200, &json!({"affected": 3})), "{call}");
        assert_eq!(ready().await, 3, "{call}");
        let taken = server.reserve(call, json!({"count": 9, "lease_ms": 600_000})).await;
        end(2).await;
        again(&server, &path, "k", json!({}), &first).await;
        assert_eq!(ready().await, 0, "{call}");
        refused(
            &keyed(&server, &path, "k", json!({"limit": 1})).await.answer(),
            422,
            "idempotency-key-reused",
        );
        let limited = keyed(&server, &path, "limited", json!({"limit": 1})).await;
        assert_eq!(limited.json(), json!({"affected": 1}));
        again(&server, &path, "limited", json!({"limit": 1}), &limited).await;
        assert_eq!(ready().await, 1, "{call}");
        assert_eq!(taken.len(), 3);
    }
}

/// Where there is room for a part of them, the repeat goes on behind it.
pub async fn a_keyed_replay_into_a_limited_queue_copies_each_job_once(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    for n in 0..5 {
        server.push("mail", json!({ "payload": n })).await;
        let taken = server.reserve("mail", json!({"lease_ms": 600_000})).await.remove(0);
        assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    }
    configure(&server, "mail", json!({"retain_done_ms": 600_000, "max_jobs": 3})).await;
    let (mut copied, mut refused) = (Vec::new(), 0);
    let last = loop {
        let answer = keyed(&server, "/v1/queues/mail/replay", "k", json!({})).await;
        for job in server.reserve("mail", json!({"count": 9, "lease_ms": 600_000})).await {
            assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
            copied.push(job["payload"].as_u64().unwrap());
        }
        if answer.status != 429 {
            break answer;
        }
        refused += 1;
        assert!(refused < 5, "the repeats come to no end: {copied:?}");
    };
    assert_eq!((last.status, last.json()), (200, json!({"affected": 5})));
    copied.sort_unstable();
    assert_eq!(copied, [0, 1, 2, 3, 4]);
    assert!(refused > 0, "there was no room for all of them");
}

/// More jobs than one step takes.
pub async fn a_keyed_redrive_of_many_steps_is_done_once(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1})).await;
    let jobs: Vec<Value> = (0..700).map(|n| json!({ "payload": n })).collect();
    assert_eq!(server.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await.0, 200);
    let taken = server.reserve("mail", json!({"count": 700, "lease_ms": 600_000})).await;
    let rollback: Vec<Value> =
        taken.iter().map(|job| json!({"id": job["id"], "reservation": job["reservation"]})).collect();
    assert_eq!(server.post("/v1/settle", json!({ "rollback": rollback })).await.0, 200);
    let path = "/v1/queues/mail/redrive";
    let first = keyed(&server, path, "k", json!({})).await;
    assert_eq!((first.status, &first.json()), (200, &json!({"affected": 700})));
    again(&server, path, "k", json!({}), &first).await;
    assert_eq!(server.reserve("mail", json!({"count": 1000})).await.len(), 700);
}

pub async fn a_keyed_call_is_forgotten_after_its_time(place: &Place) {
    let environment = [("TAILBACK_LIMITS__IDEMPOTENCY_TTL_MS", "1000")];
    let server = Server::start_with(&place.url, &environment).await;
    let job = json!({"payload": 1});
    let first = keyed(&server, JOBS, "k", job.clone()).await;
    until("the call is a new one", || async {
        let reply = keyed(&server, JOBS, "k", job.clone()).await;
        assert_eq!(reply.status, 201, "{}", reply.text);
        reply.text != first.text
    })
    .await;
    // Then it may say something else as well.
    until("another body is another call", || async {
        keyed(&server, JOBS, "k", json!({"payload": 2})).await.status == 201
    })
    .await;
}

/// The server is killed once the effect is stored, before it has said so.
pub async fn a_keyed_call_whose_answer_was_lost_is_repeated(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let environment = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let mut server = Server::start_with(&place.url, &environment).await;
    server.push("mail", json!({"payload": 0})).await;
    let rule = json!({"cron": "0 0 1 1 *", "queue": "work", "job": {"payload": 1}});
    assert_eq!(server.send(reqwest::Method::PUT, "/v1/schedules/yearly", Some(rule)).await.0, 200);
    for (path, body, queue, left) in [
        (POP, json!({}), "mail", 0),
        (JOBS, json!({"payload": 1}), "mail", 1),
        ("/v1/queues/many/jobs/batch", json!({"jobs": [{"payload": 1}, {"payload": 2}]}), "many", 2),
        ("/v1/batches", json!({"jobs": [{"queue": "b", "payload": 1}]}), "b", 1),
        ("/v1/schedules/yearly/run", json!({}), "work", 1),
    ] {
        std::fs::write(points.path().join("keyed.stored"), "kill").unwrap();
        let request = server.http.post(format!("{}{path}", server.base)).header("idempotency-key", "k");
        let lost = request.json(&body).send().await;
        assert!(lost.is_err(), "{path}: {lost:?}");
        drop(server);
        server = Server::start_with(&place.url, &environment).await;
        let first = keyed(&server, path, "k", body.clone()).await;
        assert!(first.status < 300, "{path}: {}", first.text);
        again(&server, path, "k", body, &first).await;
        assert_eq!(count(&server, queue).await, left, "{path}: {}", first.text);
        if path == POP {
            assert_eq!(first.json()["jobs"][0]["payload"], 0, "{}", first.text);
        }
    }
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn a_keyed_call_is_repeated_at_another_server(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    let jobs = json!({"jobs": [{"queue": "b", "payload": 1}]});
    for (path, body) in [(JOBS, json!({"payload": 1})), (POP, json!({})), ("/v1/batches", jobs)] {
        let first = keyed(&one, path, "k", body.clone()).await;
        assert!(first.status < 300, "{}", first.text);
        again(&two, path, "k", body, &first).await;
        refused(&keyed(&two, path, "k", json!({"unknown": 1})).await.answer(), 422, "invalid-field");
    }
    let both = join_all((0..8).map(|n| {
        let server = if n % 2 == 0 { &one } else { &two };
        keyed(server, JOBS, "at-once", json!({"payload": 1}))
    }));
    let replies = both.await;
    for reply in &replies {
        assert_eq!((reply.status, &reply.text), (201, &replies[0].text));
    }
    assert_eq!(count(&one, "mail").await, 1);
}
