//! Semaphores, `max_reserved` and `rate`, as clients see them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures::future::join_all;
use reqwest::Method;

use super::support::*;

async fn make(server: &Server, name: &str, capacity: u64) -> Value {
    let body = json!({"capacity": capacity});
    let (status, answer) = server.send(Method::PUT, &format!("/v1/semaphores/{name}"), Some(body)).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn semaphore(server: &Server, name: &str) -> Value {
    let (status, answer) = server.get(&format!("/v1/semaphores/{name}")).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn delete(server: &Server, name: &str) -> (u16, Value) {
    server.send(Method::DELETE, &format!("/v1/semaphores/{name}"), None).await
}

pub async fn a_semaphore_shows_who_holds_it(place: &Place) {
    let server = Server::start(&place.url).await;
    let made = make(&server, "db", 1).await;
    let empty = json!({"name": "db", "capacity": 1, "held": 0, "holders": [], "waiting": 0});
    assert_eq!(made, empty);
    for n in 0..3 {
        server.push("work", json!({"payload": n, "semaphores": ["db"]})).await;
    }
    let taken = take(&server, "work").await;
    assert!(server.reserve("work", json!({})).await.is_empty());
    let shown = semaphore(&server, "db").await;
    assert_eq!((&shown["held"], &shown["waiting"]), (&json!(1), &json!(2)), "{shown}");
    let holder = json!({
        "id": taken["id"], "queue": "work", "worker": "w1", "started_at": taken["started_at"],
        "reserved_until": taken["reserved_until"],
    });
    assert_eq!(shown["holders"], json!([holder]));
    let (_, page) = server.get("/v1/queues/work/jobs?state=blocked").await;
    let blocked = page["jobs"].as_array().unwrap();
    assert_eq!((blocked.len(), &blocked[0]["waits_for"]), (2, &json!("db")), "{page}");
    let in_use = delete(&server, "db").await;
    refused(&in_use, 409, "semaphore-in-use");
    let detail = in_use.1["detail"].as_str().unwrap();
    assert!(
        detail.contains("3 jobs") && detail.contains(&format!("{} (reserved in work)", id(&taken))),
        "{detail}"
    );

    make(&server, "cpu", 5).await;
    let (status, page) = server.get("/v1/semaphores?limit=1").await;
    assert_eq!(
        (status, &page["semaphores"]),
        (200, &json!([{"name": "cpu", "capacity": 5, "held": 0, "waiting": 0}]))
    );
    let (_, page) = server.get(&format!("/v1/semaphores?cursor={}", page["cursor"].as_str().unwrap())).await;
    assert_eq!((&page["semaphores"][0]["name"], &page["cursor"]), (&json!("db"), &Value::Null), "{page}");
    assert_eq!(delete(&server, "cpu").await.0, 200);
    refused(&delete(&server, "cpu").await, 404, "unknown-semaphore");
    refused(&server.get("/v1/semaphores/cpu").await, 404, "unknown-semaphore");
    for capacity in [json!(0), json!(1_000_001)] {
        let body = json!({"capacity": capacity});
        invalid(&server.send(Method::PUT, "/v1/semaphores/db", Some(body)).await, "/capacity");
    }
    let body = json!({"capacity": 1, "colour": "red"});
    refused(&server.send(Method::PUT, "/v1/semaphores/db", Some(body)).await, 422, "invalid-field");
    bad_parameter(&server.get("/v1/semaphores/a%20b").await, "name");
}

/// What is pushed at the end of a batch is a job to be.
pub async fn a_semaphore_that_a_batch_needs_at_its_end_stays(place: &Place) {
    let server = Server::start(&place.url).await;
    make(&server, "db", 1).await;
    let on_finished = json!({"queue": "after", "semaphores": ["db"]});
    let body = json!({"jobs": [{"queue": "work", "payload": 1}], "on_finished": on_finished});
    let (status, batch) = server.post("/v1/batches", body).await;
    assert_eq!(status, 201, "{batch}");
    let in_use = delete(&server, "db").await;
    refused(&in_use, 409, "semaphore-in-use");
    let detail = in_use.1["detail"].as_str().unwrap();
    assert!(detail.contains("end of a batch") && detail.contains(&id(&batch)), "{detail}");
    for queue in ["work", "after"] {
        let job = take(&server, queue).await;
        refused(&delete(&server, "db").await, 409, "semaphore-in-use");
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    assert_eq!(delete(&server, "db").await.0, 200);
}

pub async fn an_unknown_semaphore_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    make(&server, "db", 1).await;
    let job = json!({"payload": 1, "semaphores": ["db", "none"]});
    let queued = json!({"queue": "work", "payload": 1, "semaphores": ["db", "none"]});
    invalid(&server.post("/v1/queues/work/jobs", job.clone()).await, "/semaphores/1");
    let good = json!({"payload": 1, "semaphores": ["db"]});
    let (_, answer) = server.post("/v1/queues/work/jobs/batch", json!({"jobs": [job.clone(), good]})).await;
    invalid(&(422, answer["results"][0]["problem"].clone()), "/jobs/0/semaphores/1");
    assert_eq!(answer["results"][1]["status"], 201, "{answer}");
    let taken = take(&server, "work").await;
    invalid(
        &server.settle(&taken, "commit", json!({"push": [queued.clone()]})).await,
        "/push/0/semaphores/1",
    );
    invalid(&server.post("/v1/batches", json!({"jobs": [queued.clone()]})).await, "/jobs/0/semaphores/1");
    let batch = json!({"sealed": false, "on_finished": queued});
    invalid(&server.post("/v1/batches", batch).await, "/on_finished/semaphores/1");
    let schedule = json!({"cron": "0 4 * * *", "queue": "work", "job": job});
    invalid(&server.send(Method::PUT, "/v1/schedules/nightly", Some(schedule)).await, "/job/semaphores/1");
    make(&server, "none", 1).await;
    server.push("work", json!({"payload": 1, "semaphores": ["db", "none"]})).await;
}

pub async fn a_release_wakes_who_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    make(&server, "db", 1).await;
    server.push("one", json!({"payload": 1, "semaphores": ["db"]})).await;
    let mut taken = take(&server, "one").await;
    for (n, verb) in ["commit", "rollback", "move"].into_iter().enumerate() {
        let waiting = server.push("two", json!({"payload": 2, "semaphores": ["db"]})).await;
        let since = Instant::now();
        let waiter = begin_reserve(&server, "two");
        until("it is blocked", || async { see(&server, &waiting).await["state"] == "blocked" }).await;
        let body = match verb {
            "move" => json!({"queue": "three"}),
            "rollback" => json!({"delay_ms": 3_600_000}), // it must not come back beside the others
            _ => json!({}),
        };
        assert_eq!(server.settle(&taken, verb, body).await.0, 200);
        let (status, answer) = waiter.await.unwrap();
        assert_eq!((status, &answer["jobs"][0]["id"]), (200, &json!(waiting)), "{n}: {answer}");
        assert!(since.elapsed() < WOKEN, "nobody woke the waiter");
        taken = answer["jobs"][0].clone();
    }
    // So does room that is made.
    let waiting = server.push("two", json!({"payload": 2, "semaphores": ["db"]})).await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "two");
    until("it is blocked", || async { see(&server, &waiting).await["state"] == "blocked" }).await;
    make(&server, "db", 2).await;
    assert_eq!(woken(since, waiter).await, [waiting]);
}

pub async fn a_lapse_releases(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    make(&server, "db", 1).await;
    server.push("one", json!({"payload": 1, "semaphores": ["db"]})).await;
    assert_eq!(server.reserve("one", json!({"lease_ms": 300})).await.len(), 1);
    let waiting = server.push("two", json!({"payload": 2, "semaphores": ["db"]})).await;
    let since = Instant::now();
    assert_eq!(woken(since, begin_reserve(&server, "two")).await, [waiting]);
}

pub async fn max_reserved_holds_and_a_settle_wakes(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    configure(&server, "mail", json!({"max_reserved": 2})).await;
    for n in 0..5 {
        server.push("mail", json!({"payload": n})).await;
    }
    let held = server.reserve("mail", json!({"count": 5, "lease_ms": 600_000})).await;
    assert_eq!(held.len(), 2);
    let since = Instant::now();
    let waiter = waiting_reserve(&server, "mail").await;
    assert_eq!(server.settle(&held[0], "commit", json!({})).await.0, 200);
    assert_eq!(woken(since, waiter).await.len(), 1);
    let waiter = waiting_reserve(&server, "mail").await;
    configure(&server, "mail", json!({"max_reserved": 3})).await;
    assert_eq!(woken(since, waiter).await.len(), 1);
}

pub async fn a_rate_wakes_when_it_allows_more(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    configure(&server, "mail", json!({"rate": {"limit": 2, "per_ms": 700}})).await;
    for n in 0..6 {
        server.push("mail", json!({"payload": n})).await;
    }
    let since = Instant::now();
    let mut times: Vec<String> = Vec::new();
    while times.len() < 6 {
        let call = ["reserve", "pop"][times.len() % 4 / 2];
        let (status, answer) =
            server.post(&format!("/v1/queues/mail/{call}"), json!({"count": 5, "wait_ms": LONG_MS})).await;
        let jobs = answer["jobs"].as_array().unwrap();
        assert!(status == 200 && (1..=2).contains(&jobs.len()), "{answer}");
        times.extend(jobs.iter().map(|job| job["started_at"].as_str().unwrap().to_owned()));
        assert!(since.elapsed() < WOKEN, "nobody woke the waiter");
    }
    let millis: Vec<i64> =
        times.iter().map(|at| at.parse::<tailback::job::Timestamp>().unwrap().millis()).collect();
    assert!(millis.windows(3).all(|three| three[2] - three[0] >= 700), "{times:?}");
}

/// Its jobs would be blocked until it is made again.
pub async fn a_semaphore_that_a_schedule_needs_stays(place: &Place) {
    let server = Server::start(&place.url).await;
    let set = server.send(Method::PUT, "/v1/semaphores/api", Some(json!({"capacity": 1}))).await;
    assert_eq!(set.0, 200, "{}", set.1);
    let rule = json!({"cron": "0 0 1 1 *", "queue": "work", "job": {"payload": 1, "semaphores": ["api"]}});
    assert_eq!(server.send(Method::PUT, "/v1/schedules/yearly", Some(rule)).await.0, 200);
    let kept = server.send(Method::DELETE, "/v1/semaphores/api", None).await;
    refused(&kept, 409, "semaphore-in-use");
    assert!(kept.1["detail"].as_str().unwrap().contains("schedule yearly"), "{}", kept.1);
    assert_eq!(server.send(Method::DELETE, "/v1/schedules/yearly", None).await.0, 200);
    assert_eq!(server.send(Method::DELETE, "/v1/semaphores/api", None).await.0, 200);
}

/// What others write at the same time is none of its changes.
pub async fn a_refused_delete_of_a_semaphore_is_no_act(place: &Place) {
    let server = Server::start(&place.url).await;
    make(&server, "s", 1).await;
    server.push("work", json!({"payload": 1, "semaphores": ["s"]})).await;
    let is_over = AtomicBool::new(false);
    let push = async |n: usize| {
        while !is_over.load(Ordering::Relaxed) {
            server.push(&format!("other{n}"), json!({"payload": 1})).await;
        }
    };
    let delete_often = async {
        for _ in 0..30 {
            refused(&delete(&server, "s").await, 409, "semaphore-in-use");
        }
        is_over.store(true, Ordering::Relaxed);
    };
    tokio::join!(join_all((0..8_usize).map(&push)), delete_often);
    let (status, page) = server.get("/v1/audit").await;
    assert_eq!(status, 200, "{page}");
    let acts: Vec<&Value> = page["entries"].as_array().unwrap().iter().map(|entry| &entry["what"]).collect();
    assert_eq!(acts, ["semaphore.set"], "{page}");
}
