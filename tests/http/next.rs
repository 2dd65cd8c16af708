//! `next`: a settle that takes the next jobs with it.

use std::time::Instant;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::support::*;

/// The ids of the next jobs of an answer, which must have no problem.
#[track_caller]
fn next(answer: &(u16, Value)) -> Vec<String> {
    assert_eq!(answer.0, 200, "{}", answer.1);
    let next = &answer.1["next"];
    assert!(next.get("problem").is_none(), "{}", answer.1);
    ids(next["jobs"].as_array().unwrap_or_else(|| panic!("no next jobs: {}", answer.1)))
}

/// What identifies the deliveries of the next jobs.
fn deliveries(answer: &(u16, Value)) -> Vec<(Value, Value)> {
    let jobs = answer.1["next"]["jobs"].as_array().unwrap();
    let mut all: Vec<_> = jobs.iter().map(|job| (job["id"].clone(), job["reservation"].clone())).collect();
    all.sort_by_key(|(id, _)| id.to_string());
    all
}

async fn fill(server: &Server, queue: &str, count: usize) -> Vec<String> {
    let jobs: Vec<Value> = (0..count).map(|n| json!({ "payload": n })).collect();
    let (_, answer) = server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({ "jobs": jobs })).await;
    ids(answer["results"].as_array().unwrap())
}

/// So many jobs of the queue `mail`, and the first one taken. Its reservation lasts: that a job is gone proves no commit once
/// it may have run out.
async fn first_of(server: &Server, count: usize) -> (Vec<String>, Value) {
    let pushed = fill(server, "mail", count).await;
    let mut jobs = server.reserve("mail", json!({"worker": "w1", "lease_ms": 600_000})).await;
    assert_eq!(jobs.len(), 1);
    (pushed, jobs.remove(0))
}

fn item(job: &Value) -> Value {
    json!({"id": job["id"], "reservation": job["reservation"]})
}

pub async fn a_settle_takes_the_next_jobs(place: &Place) {
    let server = Server::start(&place.url).await;
    let (pushed, taken) = first_of(&server, 8).await;
    let ask = json!({"next": {"count": 2, "worker": "w7", "lease_ms": 60_000}});
    let answer = server.settle(&taken, "commit", ask).await;
    assert_eq!((&answer.1["id"], &answer.1["state"]), (&taken["id"], &json!("done")));
    assert_eq!(next(&answer), pushed[1..3]);
    let jobs = answer.1["next"]["jobs"].as_array().unwrap().clone();
    assert_eq!((&jobs[0]["attempt"], &jobs[0]["worker"]), (&json!(1), &json!("w7")));
    assert!(jobs[0]["reserved_until"].is_string());
    let answer = server.settle(&jobs[0], "rollback", json!({"delay_ms": 3_600_000, "next": {}})).await;
    assert_eq!((&answer.1["state"], next(&answer)), (&json!("scheduled"), vec![pushed[3].clone()]));
    let third = answer.1["next"]["jobs"][0].clone();
    let body = json!({"commit": [item(&jobs[1])], "extend": [item(&third)], "next": {"count": 3}});
    let answer = server.post("/v1/settle", body).await;
    assert_eq!(
        (&answer.1["commit"][0]["status"], &answer.1["extend"][0]["status"]),
        (&json!(200), &json!(200))
    );
    assert_eq!(next(&answer), pushed[4..7]);
    // What came back to its place is the next one, too.
    let answer = server.settle(&third, "rollback", json!({"keep_place": true, "next": {}})).await;
    assert_eq!(next(&answer), [pushed[3].clone()]);
    assert_eq!(answer.1["next"]["jobs"][0]["attempt"], 2);
}

pub async fn the_next_jobs_come_from_the_queues_that_are_named(place: &Place) {
    let server = Server::start(&place.url).await;
    let (_, taken) = first_of(&server, 2).await;
    let (one, two) = (fill(&server, "a.1", 1).await, fill(&server, "a.2", 1).await);
    let ask = json!({"next": {"queues": ["a.*", "none"], "count": 9}});
    let answer = server.settle(&taken, "commit", ask).await;
    assert_eq!(next(&answer), [one, two].concat());
    // Without a name: the queues of the jobs that were settled.
    let (third, fourth) = (fill(&server, "a.1", 1).await, fill(&server, "a.2", 1).await);
    let held = answer.1["next"]["jobs"].as_array().unwrap();
    let body = json!({"rollback": held.iter().map(|job| {
        let mut item = item(job);
        item["delay_ms"] = json!(3_600_000);
        item
    }).collect::<Vec<_>>(), "next": {"count": 9}});
    assert_eq!(next(&server.post("/v1/settle", body).await), [third, fourth].concat());
}

pub async fn a_settle_stands_where_nothing_is_next(place: &Place) {
    let server = Server::start(&place.url).await;
    let ask = || json!({"next": {"count": 5}});
    let (_, taken) = first_of(&server, 1).await;
    let answer = server.settle(&taken, "commit", ask()).await;
    assert_eq!(answer, (200, json!({"id": taken["id"], "state": "done", "next": {"jobs": []}})));
    // A queue that is paused meanwhile.
    let (pushed, taken) = first_of(&server, 2).await;
    server.post("/v1/queues/mail/pause", json!({})).await;
    assert_eq!(next(&server.settle(&taken, "commit", ask()).await), Vec::<String>::new());
    server.post("/v1/queues/mail/resume", json!({})).await;
    let taken = take(&server, "mail").await;
    assert_eq!(id(&taken), pushed[1]);
    // A full semaphore: the settle leaves room for one, and others hold the rest.
    let (status, _) =
        server.send(reqwest::Method::PUT, "/v1/semaphores/s", Some(json!({"capacity": 1}))).await;
    assert_eq!(status, 200);
    let held = server.push("calls", json!({"payload": 1, "semaphores": ["s"]})).await;
    let waits = server.push("calls", json!({"payload": 2, "semaphores": ["s"]})).await;
    let holder = take(&server, "calls").await;
    assert_eq!(id(&holder), held);
    let answer = server.settle(&taken, "commit", json!({"next": {"queues": ["calls"]}})).await;
    assert_eq!(next(&answer), Vec::<String>::new());
    let ask = json!({"next": {"wait_ms": LONG_MS}});
    assert_eq!(next(&server.settle(&holder, "commit", ask).await), [waits]);
    // And a settle that was refused takes nothing.
    let (_, taken) = first_of(&server, 2).await;
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
    lost(&server.settle(&taken, "commit", json!({"next": {}})).await, false);
    let body = json!({"commit": [item(&taken)], "next": {}});
    assert_eq!(next(&server.post("/v1/settle", body).await), Vec::<String>::new());
    assert_eq!(server.reserve("mail", json!({})).await.len(), 1);
}

pub async fn a_next_of_a_group_comes_with_the_settle(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed = [
        server.push("mail", json!({"payload": 1, "group": "g"})).await,
        server.push("mail", json!({"payload": 2, "group": "g"})).await,
    ];
    let taken = take(&server, "mail").await;
    assert_eq!(next(&server.settle(&taken, "commit", json!({"next": {"count": 5}})).await), pushed[1..]);
}

pub async fn a_repeat_returns_the_next_jobs_that_are_held(place: &Place) {
    let server = Server::start(&place.url).await;
    for (call, body) in [("commit", json!({})), ("rollback", json!({"delay_ms": 3_600_000}))] {
        let (pushed, taken) = first_of(&server, 6).await;
        let ask = |more: Value| {
            let mut body = body.clone();
            body["next"] = more;
            body
        };
        let first = server.settle(&taken, call, ask(json!({"count": 3, "lease_ms": 60_000}))).await;
        assert_eq!(next(&first), pushed[1..4]);
        // Also where it says something else.
        for more in [json!({"count": 3, "lease_ms": 60_000}), json!({"count": 1, "queues": ["other"]})] {
            let again = server.settle(&taken, call, ask(more)).await;
            assert_eq!(again.1["repeated"], true, "{}", again.1);
            assert_eq!((&again.1["state"], deliveries(&again)), (&first.1["state"], deliveries(&first)));
        }
        let many = json!({call: [item(&taken)], "next": {}});
        assert_eq!(deliveries(&server.post("/v1/settle", many).await), deliveries(&first));
        let jobs = first.1["next"]["jobs"].as_array().unwrap();
        assert_eq!(server.settle(&jobs[0], "commit", json!({})).await.0, 200);
        assert_eq!(server.settle(&jobs[1], "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
        let again = server.settle(&taken, call, ask(json!({"count": 3}))).await;
        assert_eq!(next(&again), [id(&jobs[2])], "those that are still held");
        assert_eq!(server.settle(&jobs[2], "commit", json!({})).await.0, 200);
        let again = server.settle(&taken, call, ask(json!({"count": 3, "wait_ms": LONG_MS}))).await;
        assert_eq!(next(&again), Vec::<String>::new(), "a repeat takes nothing, and waits for nothing");
        server.send(reqwest::Method::DELETE, "/v1/queues/mail?force=true", None).await;
    }
}

pub async fn a_repeat_after_a_kill_returns_the_next_jobs(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let (pushed, taken) = first_of(&server, 4).await;
    let ask = || json!({"next": {"count": 2, "lease_ms": 600_000}});
    let first = server.settle(&taken, "commit", ask()).await;
    assert_eq!(next(&first), pushed[1..3]);
    server.kill();
    let server = Server::start(&place.url).await;
    let again = server.settle(&taken, "commit", ask()).await;
    assert_eq!((&again.1["state"], &again.1["repeated"]), (&json!("done"), &json!(true)), "{}", again.1);
    assert_eq!(deliveries(&again), deliveries(&first));
    for job in again.1["next"]["jobs"].as_array().unwrap() {
        assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
    }
    lost(&server.settle(&taken, "commit", ask()).await, true);
    lost(&server.settle(&taken, "rollback", ask()).await, true);
}

pub async fn a_settle_takes_effect_before_it_waits(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    let (_, taken) = first_of(&server, 1).await;
    let path = format!("/v1/jobs/{}/rollback", id(&taken));
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 2).await;
    let body = json!({"reservation": taken["reservation"], "delay_ms": 0,
        "next": {"queues": ["other"], "wait_ms": LONG_MS}});
    let settle = begin(&server, &path, &[], body);
    assert_eq!(woken(since, waiter).await, [id(&taken)], "what came back is delivered at once");
    until_looked(&server, 4).await;
    let pushed = server.push("other", json!({"payload": 1})).await;
    let answer = settle.await.unwrap();
    assert_eq!((&answer.1["state"], next(&answer)), (&json!("ready"), vec![pushed]));
    assert!(since.elapsed() < WOKEN);
    // A wait that ends in vain.
    let taken = answer.1["next"]["jobs"][0].clone();
    let answer = server.settle(&taken, "commit", json!({"next": {"wait_ms": 50}})).await;
    assert_eq!(next(&answer), Vec::<String>::new());
}

pub async fn who_leaves_while_it_waits_for_the_next_gets_nothing(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let (_, taken) = first_of(&server, 1).await;
    let body = json!({"reservation": taken["reservation"], "next": {"wait_ms": LONG_MS}}).to_string();
    let mut leaves = TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap();
    let head = format!(
        "POST /v1/jobs/{}/commit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        id(&taken),
        body.len()
    );
    leaves.write_all(head.as_bytes()).await.unwrap();
    // A look may come beside the commit: it waits once that is over.
    let waiting = async || server.get("/v1/queues/mail/stats").await.1["waiting"]["here"].clone();
    until("it waits", || async { waiting().await == 1 }).await;
    assert_eq!(server.get(&format!("/v1/jobs/{}", id(&taken))).await.0, 404, "it is committed");
    drop(leaves);
    until("the server has seen the client leave", || async { waiting().await == 0 }).await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    let got = take(&server, "mail").await;
    assert_eq!((id(&got), &got["attempt"]), (pushed, &json!(1)), "it was never delivered to anybody else");
}

pub async fn what_is_wrong_with_a_next_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    let (pushed, taken) = first_of(&server, 2).await;
    for (pointer, next) in [
        ("/next/count", json!({"count": 0})),
        ("/next/count", json!({"count": 1001})),
        ("/next/wait_ms", json!({"wait_ms": 60_001})),
        ("/next/lease_ms", json!({"lease_ms": 99})),
        ("/next/max_bytes", json!({"max_bytes": 0})),
        ("/next/queues", json!({"queues": []})),
        ("/next/queues/0", json!({"queues": ["a b"]})),
        ("/next/worker", json!({"worker": "a b"})),
        ("/next/extra", json!({"extra": 1})),
        ("/next", json!(1)),
    ] {
        let body = json!({ "next": next });
        invalid(&server.settle(&taken, "commit", body.clone()).await, pointer);
        invalid(&server.settle(&taken, "rollback", body).await, pointer);
        invalid(&server.post("/v1/settle", json!({"commit": [item(&taken)], "next": next})).await, pointer);
    }
    invalid(&server.post("/v1/settle", json!({"extend": [item(&taken)], "next": {}})).await, "/next");
    invalid(&server.settle(&taken, "extend", json!({"next": {}})).await, "/next");
    invalid(&server.settle(&taken, "move", json!({"queue": "q", "next": {}})).await, "/next");
    // None of it has done anything.
    assert_eq!(next(&server.settle(&taken, "commit", json!({"next": {}})).await), pushed[1..]);
}

pub async fn a_settle_that_waits_for_the_next_is_answered_at_the_end(place: &Place) {
    let mut server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let (_, taken) = first_of(&server, 1).await;
    let body = json!({"reservation": taken["reservation"], "next": {"wait_ms": LONG_MS}});
    let waits = begin(&server, &format!("/v1/jobs/{}/commit", id(&taken)), &[], body);
    until_looked(&server, 2).await;
    assert_eq!(server.terminate().await.code(), Some(0));
    let answer = json!({"id": taken["id"], "state": "done", "next": {"jobs": []}});
    assert_eq!(waits.await.unwrap(), (200, answer));
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn a_repeat_at_another_server_gets_the_same_next_jobs(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    for (call, body) in [
        ("commit", json!({})),
        ("rollback", json!({"delay_ms": 3_600_000})),
        ("rollback", json!({"delay_ms": 0, "count_attempt": false})),
        ("rollback", json!({"dead": true})),
    ] {
        let (pushed, taken) = first_of(&one, 4).await;
        let mut body = body;
        body["next"] = json!({"count": 2, "lease_ms": 600_000});
        let first = one.settle(&taken, call, body.clone()).await;
        assert_eq!(next(&first).len(), 2, "of {pushed:?}: {}", first.1);
        let again = two.settle(&taken, call, body.clone()).await;
        assert_eq!(again.0, 200, "{}", again.1);
        assert_eq!(deliveries(&again), deliveries(&first));
        for field in ["id", "state", "run_at"] {
            assert_eq!(again.1[field], first.1[field], "{}", again.1);
        }
        assert_eq!(again.1["repeated"], true);
        // Both at once, too.
        let many = json!({call: [item(&taken)], "next": {}});
        let both = tokio::join!(two.post("/v1/settle", many.clone()), one.post("/v1/settle", many));
        assert_eq!((deliveries(&both.0), deliveries(&both.1)), (deliveries(&first), deliveries(&first)));
        for job in again.1["next"]["jobs"].as_array().unwrap() {
            assert_eq!(two.settle(job, "commit", json!({})).await.0, 200);
        }
        let gone = two.settle(&taken, call, body).await;
        assert_eq!(gone.0, 409, "as without the next jobs: {}", gone.1);
        one.send(reqwest::Method::DELETE, "/v1/queues/mail?force=true", None).await;
    }
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn a_push_at_another_server_wakes_a_settle_that_waits(place: &Place) {
    let one = Server::start_with(&place.url, ONLY_WOKEN).await;
    let two = Server::start_with(&place.url, ONLY_WOKEN).await;
    let since = Instant::now();
    let (_, taken) = first_of(&one, 1).await;
    let body = json!({"reservation": taken["reservation"], "next": {"wait_ms": LONG_MS}});
    let waits = begin(&one, &format!("/v1/jobs/{}/commit", id(&taken)), &[], body);
    until_looked(&one, 2).await;
    let pushed = two.push("mail", json!({"payload": 1})).await;
    assert_eq!(next(&waits.await.unwrap()), [pushed]);
    assert!(since.elapsed() < WOKEN);
}
