//! Many clients at once: no job for two, no token beyond its time, no limit passed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use common::fleet::{Tally, browse, fleet, push_many, text};
use common::server::{Place, Server, connections, until};
use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Longer than any of these tests takes: nothing lapses by accident.
const LONG_MS: u64 = 600_000;

async fn every_job_goes_to_one_of_many_reservers(place: &Place) {
    const JOBS: usize = 5000;
    let servers = fleet(place).await;
    push_many(&servers[0], "work", JOBS, json!({})).await;
    let (delivered, committed) = (Tally::default(), Tally::default());
    let mut reservers = JoinSet::new();
    for n in 0..64 {
        let (server, count) = (servers[n % servers.len()].clone(), [1, 7, 30, 100][n % 4]);
        let (delivered, committed) = (delivered.clone(), committed.clone());
        reservers.spawn(async move {
            while delivered.len() < JOBS {
                let jobs = take(&server, "reserve", json!({"count": count, "lease_ms": LONG_MS})).await;
                assert!(jobs.len() <= count, "asked for {count}, given {}", jobs.len());
                for job in &jobs {
                    assert_eq!(delivered.note(&text(job, "id")), 1, "delivered twice: {job}");
                    assert_eq!(job["attempt"], 1, "{job}");
                }
                commit_all(&server, &jobs, &committed).await;
            }
        });
    }
    reservers.join_all().await;
    assert_eq!((delivered.len(), committed.len()), (JOBS, JOBS));
    assert_eq!(browse(&servers[0], "work").await, Vec::<Value>::new());
}

/// Reserves or pops. On a busy machine a call may run into its deadline: what it won is given back.
async fn take(server: &Server, call: &str, ask: Value) -> Vec<Value> {
    let (status, answer) = server.post(&format!("/v1/queues/work/{call}"), ask).await;
    assert!([200, 503].contains(&status), "{answer}");
    answer["jobs"].as_array().cloned().unwrap_or_default()
}

/// Commits them, again where the outcome was not known; gone then means that the first try did it.
async fn commit_all(server: &Server, jobs: &[Value], committed: &Tally) {
    let mut left = jobs.to_vec();
    let mut again = false;
    while !left.is_empty() {
        let commit = |job: &Value| json!({"id": job["id"], "reservation": job["reservation"]});
        let commits: Vec<Value> = left.iter().map(commit).collect();
        let (status, answer) = server.post("/v1/settle", json!({"commit": commits})).await;
        assert_eq!(status, 200, "{answer}");
        let results = answer["commit"].as_array().unwrap().clone();
        let mut unknown = Vec::new();
        for (result, job) in results.iter().zip(left) {
            match result["status"].as_u64() {
                Some(503) => unknown.push(job),
                Some(409) if again && result["problem"]["gone"] == true => {
                    committed.note(&text(&job, "id"));
                }
                Some(200) => assert_eq!(committed.note(&text(&job, "id")), 1, "committed twice: {job}"),
                _ => panic!("{result}"),
            }
        }
        (left, again) = (unknown, true);
    }
}

async fn every_job_is_popped_at_most_once(place: &Place) {
    const JOBS: usize = 1000;
    let servers = fleet(place).await;
    let ids = push_many(&servers[0], "work", JOBS, json!({})).await;
    let popped = Tally::default();
    let mut poppers = JoinSet::new();
    for n in 0..32 {
        let (server, popped) = (servers[n % servers.len()].clone(), popped.clone());
        poppers.spawn(async move {
            while popped.len() < JOBS {
                let count = [1, 5, 40][n % 3];
                let ask = json!({"count": count});
                let jobs = take(&server, "pop", ask).await;
                // A pop whose answer was lost may have taken its jobs with it.
                if jobs.is_empty() && browse(&server, "work").await.is_empty() {
                    break;
                }
                for job in jobs {
                    assert_eq!(popped.note(&text(&job, "id")), 1, "popped twice: {job}");
                }
            }
        });
    }
    poppers.join_all().await;
    assert!(popped.len() > JOBS * 9 / 10, "only {} were popped", popped.len());
    assert!(popped.seen().keys().all(|id| ids.contains(id)));
    assert_eq!(browse(&servers[0], "work").await, Vec::<Value>::new());
}

/// What a worker does that was too slow: each of its calls must change nothing.
async fn a_token_whose_job_was_given_to_another_is_refused(place: &Place) {
    let servers = fleet(place).await;
    let (one, other) = (&servers[0], servers.last().unwrap());
    let id = one.push("work", json!({"payload": 1})).await;
    let stale = one.reserve("work", json!({"lease_ms": 100, "worker": "slow"})).await.remove(0);
    let ask = json!({"lease_ms": LONG_MS, "wait_ms": 60_000, "worker": "quick"});
    let current = other.reserve("work", ask).await.remove(0);
    assert_eq!((&current["id"], &current["attempt"]), (&json!(id), &json!(2)));
    assert_ne!(stale["reservation"], current["reservation"]);
    let before = one.get(&format!("/v1/jobs/{id}")).await;
    let calls = [
        ("commit", json!({})),
        ("rollback", json!({"error": "late"})),
        ("extend", json!({"lease_ms": 1000, "progress": 9})),
        ("move", json!({"queue": "elsewhere"})),
    ];
    for server in &servers {
        let settles = calls.iter().map(|(call, body)| server.settle(&stale, call, body.clone()));
        for (status, problem) in join_all(settles).await {
            assert_eq!((status, &problem["code"]), (409, &json!("reservation-lost")), "{problem}");
            assert_eq!(problem["gone"], false, "{problem}");
        }
    }
    assert_eq!(one.get(&format!("/v1/jobs/{id}")).await, before);
    assert_eq!(one.settle(&current, "commit", json!({})).await.0, 200);
    for server in &servers {
        for (call, body) in &calls {
            let (status, problem) = server.settle(&stale, call, body.clone()).await;
            assert_eq!((status, &problem["gone"]), (409, &json!(true)), "{call}: {problem}");
        }
    }
    assert_eq!(browse(one, "elsewhere").await, Vec::<Value>::new());
}

/// While a third worker takes what comes back and commits it, which must not make the loser a winner.
async fn of_a_commit_and_a_rollback_at_once_one_takes_effect(place: &Place) {
    const JOBS: usize = 300;
    let servers = fleet(place).await;
    push_many(&servers[0], "work", JOBS, json!({})).await;
    let held = servers[0].reserve("work", json!({"count": JOBS, "lease_ms": LONG_MS})).await;
    assert_eq!(held.len(), JOBS);
    let committed = Tally::default();
    let mut rolled_back = 0;
    for group in held.chunks(20) {
        let both = group.iter().enumerate().map(|(n, job)| {
            let (one, other) = (&servers[n % servers.len()], &servers[(n + 1) % servers.len()]);
            let commit = one.settle(job, "commit", json!({}));
            let rollback = other.settle(job, "rollback", json!({"delay_ms": 0}));
            async move { tokio::join!(commit, rollback) }
        });
        for (((commit, a), (rollback, b)), job) in join_all(both).await.into_iter().zip(group) {
            match (commit, rollback) {
                (200, 409) => assert_eq!(committed.note(&text(job, "id")), 1, "committed twice: {job}"),
                (409, 200) => {
                    assert_eq!(b["state"], "ready", "{b}");
                    rolled_back += 1;
                }
                _ => panic!("commit: {commit} {a}; rollback: {rollback} {b}"),
            }
        }
    }
    // Only now: a deletion by somebody else in the same moment could not be told from the commit's own, which
    // ARCHITECTURE names as a limit.
    take_what_comes_back(servers[0].clone(), committed.clone(), JOBS).await;
    assert_eq!(committed.len(), JOBS);
    assert!(committed.seen().values().all(|times| *times == 1), "{rolled_back} were rolled back");
}

async fn take_what_comes_back(server: Arc<Server>, committed: Tally, jobs: usize) {
    until("all jobs are committed", || async {
        let back = take(&server, "reserve", json!({"count": 50, "lease_ms": LONG_MS})).await;
        commit_all(&server, &back, &committed).await;
        committed.len() == jobs
    })
    .await;
}

async fn of_many_pushes_with_one_key_one_makes_a_job(place: &Place) {
    let servers = fleet(place).await;
    for round in 0..10 {
        let key = format!("order-{round}");
        let pushes = (0..16).map(|n| {
            let job = json!({"payload": {"order": round}, "key": key});
            servers[n % servers.len()].send(reqwest::Method::POST, "/v1/queues/orders/jobs", Some(job))
        });
        let answers = join_all(pushes).await;
        let created = answers.iter().filter(|(status, _)| *status == 201).count();
        assert_eq!(created, 1, "{answers:?}");
        for (status, answer) in &answers {
            assert!([200, 201].contains(status), "{answer}");
            assert_eq!(answer["deduplicated"], json!(*status == 200), "{answer}");
            assert_eq!(answer["id"], answers[0].1["id"], "{answer}");
        }
    }
    assert_eq!(browse(&servers[0], "orders").await.len(), 10);
}

/// On one server, because only there it is promised to be exact.
async fn max_jobs_is_exact(place: &Place) {
    const LIMIT: usize = 50;
    let server = Arc::new(Server::start(&place.url).await);
    let settings = json!({"max_jobs": LIMIT});
    let (status, answer) = server.send(reqwest::Method::PUT, "/v1/queues/small", Some(settings)).await;
    assert!(status < 300, "{answer}");
    let stored: usize = join_all((0..16).map(|n| push_some(&server, n))).await.into_iter().sum();
    assert_eq!(stored, LIMIT);
    assert_eq!(browse(&server, "small").await.len(), LIMIT);
    let jobs = server.reserve("small", json!({"count": 7, "lease_ms": LONG_MS})).await;
    assert_eq!(push_some(&server, 0).await, 0, "reserved jobs count as well");
    commit_all(&server, &jobs, &Tally::default()).await;
    let stored: usize = join_all((16..32).map(|n| push_some(&server, n))).await.into_iter().sum();
    assert_eq!(stored, 7);
}

/// Pushes ten jobs in one of the three ways there are, and answers how many were stored.
async fn push_some(server: &Server, n: usize) -> usize {
    let (path, mut stored) = ("/v1/queues/small/jobs", 0);
    if n.is_multiple_of(3) {
        let jobs: Vec<Value> = (0..10).map(|k| json!({"payload": k})).collect();
        let (status, answer) = server.post(&format!("{path}/batch"), json!({"jobs": jobs})).await;
        assert_eq!(status, 200, "{answer}");
        let results = answer["results"].as_array().unwrap();
        return results.iter().filter(|result| is_stored(&result["status"], &result["problem"])).count();
    }
    for k in 0..10 {
        let job = match n % 3 {
            1 => json!({"payload": k}),
            _ => json!({"payload": k, "key": format!("{n}-{k}")}),
        };
        let (status, answer) = server.post(path, job).await;
        stored += usize::from(is_stored(&json!(status), &answer));
    }
    stored
}

fn is_stored(status: &Value, problem: &Value) -> bool {
    if *status == 201 {
        return true;
    }
    assert_eq!((status, &problem["code"]), (&json!(429), &json!("queue-full")), "{problem}");
    false
}

async fn a_claim_that_waited_for_its_round_meets_the_pause(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let environment = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Arc::new(Server::start_with(&place.url, &environment).await);
    push_many(&server, "work", 3, json!({})).await;
    let point = |name: &str| points.path().join(format!("round.begin{name}"));
    for call in ["reserve", "pop"] {
        std::fs::write(point(""), "pause").unwrap();
        let caller = server.clone();
        let call = tokio::spawn(async move { take(&caller, call, json!({})).await });
        until("the round is about to begin", || async { point(".met").exists() }).await;
        let paused = |is: bool| server.send(Method::PUT, "/v1/queues/work", Some(json!({"paused": is})));
        assert_eq!(paused(true).await.0, 200);
        std::fs::write(point(".go"), "").unwrap();
        assert_eq!(call.await.unwrap(), Vec::<Value>::new(), "delivered after the pause");
        assert_eq!(paused(false).await.0, 200);
        for name in [".met", ".go"] {
            std::fs::remove_file(point(name)).unwrap();
        }
    }
    assert_eq!(take(&server, "reserve", json!({"count": 5})).await.len(), 3);
}

/// A server that stands still at the beginning of its first round, and the folder that says so.
async fn held_server(place: &Place) -> (Arc<Server>, TempDir) {
    let points = tempfile::tempdir().unwrap();
    let environment = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Arc::new(Server::start_with(&place.url, &environment).await);
    std::fs::write(points.path().join("round.begin"), "pause").unwrap();
    (server, points)
}

/// Lets it go on once so many calls have come: to a machine that is busy they may come so slowly that each has a round of its own.
async fn let_go((server, points): &(Arc<Server>, TempDir), calls: usize) {
    until("the calls have come", || async { connections(server).await >= calls as f64 }).await;
    std::fs::write(points.path().join("round.begin.go"), "").unwrap();
}

async fn many_queues_are_configured_at_once(place: &Place) {
    const QUEUES: usize = 160;
    let count = if place.url.starts_with("mongodb") { 3 } else { 1 };
    let held = join_all((0..count).map(|_| held_server(place))).await;
    let servers: Vec<Arc<Server>> = held.iter().map(|(server, _)| server.clone()).collect();
    let mut callers = JoinSet::new();
    for n in 0..QUEUES {
        let server = servers[n % servers.len()].clone();
        callers.spawn(async move {
            let path = format!("/v1/queues/q{n}");
            let set = json!({"max_attempts": n + 1});
            // On a busy machine a call may run into its deadline; it is repeated as a client would.
            until("the settings are stored", || async {
                let (status, answer) = server.send(Method::PUT, &path, Some(set.clone())).await;
                assert!([200, 503].contains(&status), "{answer}");
                status == 200
            })
            .await;
        });
    }
    // Meanwhile others change one queue, each another field of it: none of that is lost.
    for (n, field) in ["lease_ms", "retain_done_ms", "retain_dead_ms", "max_jobs"].into_iter().enumerate() {
        let server = servers[n % servers.len()].clone();
        callers.spawn(async move {
            until("the field is stored", || async {
                server.send(Method::PATCH, "/v1/queues/one", Some(json!({ field: 500 }))).await.0 == 200
            })
            .await;
        });
    }
    for held in &held {
        let_go(held, QUEUES / count).await;
    }
    callers.join_all().await;
    for server in &servers {
        for n in [0, QUEUES - 1] {
            let (_, queue) = server.get(&format!("/v1/queues/q{n}")).await;
            assert_eq!(queue["max_attempts"], n + 1, "{queue}");
        }
        let (_, one) = server.get("/v1/queues/one").await;
        let fields = ["lease_ms", "retain_done_ms", "retain_dead_ms", "max_jobs"];
        assert!(fields.iter().all(|field| one[field] == 500), "{one}");
    }
    let mut calls = 0.0;
    for server in &servers {
        calls += metric(server, "tailback_store_call_seconds_count{call=\"save_settings\"").await;
    }
    assert!(calls <= QUEUES as f64 / 2.0, "{calls} calls of the store for {QUEUES} changes at once");
}

/// The sum of the series that begin so.
async fn metric(server: &Server, series: &str) -> f64 {
    let text =
        server.http.get(format!("{}/metrics", server.base)).send().await.unwrap().text().await.unwrap();
    let lines = text.lines().filter(|line| line.starts_with(series));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Each queue of a ring gets the next one as its dead-letter queue, all at once: one of them is the last, and is refused.
async fn dead_letter_queues_set_at_once_make_no_circle(place: &Place) {
    let servers = fleet(place).await;
    for (round, length) in (0..24).map(|round| (round, 2 + round % 3)) {
        let name = |n: usize| format!("ring-{round}-{}", n % length);
        let sets = (0..length).map(|n| {
            let (server, path) = (&servers[n % servers.len()], format!("/v1/queues/{}", name(n)));
            let settings = json!({"dead_letter": name(n + 1), "max_attempts": 1});
            async move {
                loop {
                    let (status, answer) =
                        server.send(reqwest::Method::PUT, &path, Some(settings.clone())).await;
                    if status != 503 {
                        return (status, answer);
                    }
                }
            }
        });
        let answers = join_all(sets).await;
        let refused: Vec<_> = answers.iter().filter(|(status, _)| *status == 422).collect();
        assert_eq!(refused.len(), 1, "of {length}: {answers:?}");
        assert!(answers.iter().all(|(status, _)| [200, 422].contains(status)), "{answers:?}");
        let (_, problem) = refused[0];
        assert_eq!(problem["pointer"], "/dead_letter", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(" → "), "{problem}");
    }
}

/// Several purges at once, of two servers where there are: each job is counted by the call that took it away.
async fn every_job_is_purged_once(place: &Place) {
    const JOBS: usize = 2500;
    let servers = fleet(place).await;
    for (state, delay_ms) in [("ready", 0), ("scheduled", 3_600_000)] {
        push_many(&servers[0], state, JOBS, json!({ "delay_ms": delay_ms })).await;
        let purges = (0..4).map(|n| purge(&servers[n % servers.len()], state, state));
        let counted: Vec<usize> = join_all(purges).await;
        assert_eq!(counted.iter().sum::<usize>(), JOBS, "{counted:?}");
        for server in &servers {
            assert_eq!(browse(server, state).await, Vec::<Value>::new());
        }
    }
}

/// How many it has purged, in as many calls as that takes where the store is too busy for one.
async fn purge(server: &Server, queue: &str, state: &str) -> usize {
    let path = format!("/v1/queues/{queue}/purge");
    let (status, answer) = server.post(&path, json!({ "state": state })).await;
    assert_eq!(status, 200, "{answer}");
    let mut affected = answer["affected"].as_u64().unwrap();
    // What is too much for a call goes on as an operation.
    if let Some(id) = answer["operation"]["id"].as_str() {
        let operation = async || server.get(&format!("/v1/operations/{id}")).await.1;
        until("the operation is over", || async { operation().await["state"] == "done" }).await;
        affected += operation().await["affected"].as_u64().unwrap();
    }
    usize::try_from(affected).unwrap()
}

/// Beside a worker that takes the same jobs: each is either delivered or purged.
async fn what_is_purged_is_delivered_to_nobody(place: &Place) {
    const JOBS: usize = 3000;
    let servers = fleet(place).await;
    push_many(&servers[0], "work", JOBS, json!({})).await;
    let delivered = Tally::default();
    let work = async {
        loop {
            let jobs = take(&servers[0], "reserve", json!({"count": 20, "lease_ms": LONG_MS})).await;
            if jobs.is_empty() && browse(&servers[0], "work").await.iter().all(|job| job["state"] != "ready")
            {
                return;
            }
            for job in &jobs {
                assert_eq!(delivered.note(&text(job, "id")), 1, "delivered twice: {job}");
            }
        }
    };
    let (purged, ()) = tokio::join!(purge(servers.last().unwrap(), "work", "ready"), work);
    assert_eq!(purged + delivered.len(), JOBS, "{purged} were purged");
}

on_every_store! {
    many_queues_are_configured_at_once
    every_job_is_purged_once
    what_is_purged_is_delivered_to_nobody
    dead_letter_queues_set_at_once_make_no_circle
    a_claim_that_waited_for_its_round_meets_the_pause
    every_job_goes_to_one_of_many_reservers
    every_job_is_popped_at_most_once
    a_token_whose_job_was_given_to_another_is_refused
    of_a_commit_and_a_rollback_at_once_one_takes_effect
    of_many_pushes_with_one_key_one_makes_a_job
    max_jobs_is_exact
}
