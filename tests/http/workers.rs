//! Workers: heartbeats, silence, removal, and jobs that are asked to stop.

use std::time::{Duration, Instant};

use futures::future::join_all;
use reqwest::Method;
use tailback::job::Timestamp;

use super::support::*;

/// The shortest timeout that there is.
const SHORT_MS: u64 = 1000;
/// Longer than any of these cases takes.
const LEASE_MS: u64 = 600_000;

/// Sends a heartbeat; as a client would, again where the store did not answer in time.
async fn beat(server: &Server, name: &str, body: Value) -> Value {
    for _ in 0..5 {
        let (status, answer) = server.post(&format!("/v1/workers/{name}/heartbeat"), body.clone()).await;
        if status != 503 {
            assert_eq!(status, 200, "{answer}");
            return answer;
        }
    }
    panic!("the store is away");
}

async fn worker(server: &Server, name: &str) -> (u16, Value) {
    server.get(&format!("/v1/workers/{name}")).await
}

/// Removes a worker, again as long as it still holds jobs since the store was slow.
async fn remove(server: &Server, name: &str) -> (u16, Value) {
    let mut affected = 0;
    loop {
        let (status, mut answer) = server.send(Method::DELETE, &format!("/v1/workers/{name}"), None).await;
        affected += answer["affected"].as_u64().unwrap_or_default();
        match status {
            200 if answer["more"] == true => {}
            200 => {
                answer["affected"] = json!(affected);
                return (status, answer);
            }
            // It held nothing any more.
            404 if affected > 0 => return (200, json!({ "affected": affected })),
            _ => return (status, answer),
        }
    }
}

/// Pushes jobs and reserves them under this name.
async fn hold(server: &Server, queue: &str, name: &str, count: usize) -> Vec<Value> {
    for n in 0..count {
        server.push(queue, json!({"payload": n})).await;
    }
    let ask = json!({"count": count, "worker": name, "lease_ms": LEASE_MS});
    let jobs = server.reserve(queue, ask).await;
    assert_eq!(jobs.len(), count);
    jobs
}

fn moment(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

async fn state(server: &Server, job: &Value) -> Value {
    see(server, &id(job)).await["state"].clone()
}

pub async fn a_heartbeat_extends_all_that_its_worker_holds(place: &Place) {
    let server = Server::start(&place.url).await;
    for n in 0..3 {
        server.push("mail", json!({"payload": n})).await;
    }
    let ask = |lease_ms: u64| json!({"worker": "w1", "lease_ms": lease_ms});
    let short = server.reserve("mail", ask(300_000)).await.remove(0);
    let long = server.reserve("mail", ask(LEASE_MS)).await.remove(0);
    let other = server.reserve("mail", json!({"worker": "w2", "lease_ms": LEASE_MS})).await.remove(0);
    let said = json!({"slots": 4, "version": "mailer 1.2", "timeout_ms": 300_000});
    let answer = loop {
        let answer = beat(&server, "w1", said.clone()).await;
        // Deadlines have milliseconds, and this one may be of the same as the reserve.
        if moment(&answer["reserved_until"]) > moment(&short["reserved_until"])
            && moment(&see(&server, &id(&long)).await["reserved_until"]) > moment(&long["reserved_until"])
        {
            break answer;
        }
    };
    assert_eq!((&answer["held"], &answer["timeout_ms"]), (&json!(2), &json!(300_000)));
    assert_eq!(answer["cancel_requested"], json!([]));
    for job in [&short, &long] {
        let now = see(&server, &id(job)).await;
        assert!(moment(&now["reserved_until"]) > moment(&job["reserved_until"]), "{now}");
        assert_eq!(now["attempt"], 1);
    }
    assert_eq!(answer["reserved_until"], see(&server, &id(&short)).await["reserved_until"]);
    assert_eq!(see(&server, &id(&other)).await["reserved_until"], other["reserved_until"]);

    let (status, shown) = worker(&server, "w1").await;
    assert_eq!(status, 200, "{shown}");
    let expected = json!({"name": "w1", "version": "mailer 1.2", "slots": 4, "seen_at": shown["seen_at"],
        "timeout_ms": 300_000, "silent": false, "reserved": 2});
    assert_eq!(shown, expected);

    assert_eq!(server.settle(&short, "commit", json!({})).await.0, 200);
    assert_eq!(server.settle(&long, "rollback", json!({})).await.0, 200);
    // Nothing needs to be said, and what is not said is not known.
    let reply = raw(&server, "POST", "/v1/workers/w1/heartbeat", &[], "").await;
    assert_eq!((reply.status, &reply.json()["held"]), (200, &json!(0)));
    let (_, shown) = worker(&server, "w1").await;
    assert!(shown.get("slots").is_none() && shown.get("version").is_none(), "{shown}");
    let answer = beat(&server, "w1", json!({})).await;
    assert_eq!(answer, json!({"timeout_ms": 15_000, "held": 0, "cancel_requested": []}));
}

pub async fn a_heartbeat_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    for (pointer, body) in [
        ("/timeout_ms", json!({"timeout_ms": 999})),
        ("/timeout_ms", json!({"timeout_ms": 86_400_001})),
        ("/timeout_ms", json!({"timeout_ms": "1s"})),
        ("/slots", json!({"slots": 1_000_001})),
        ("/slots", json!({"slots": -1})),
        ("/version", json!({"version": ""})),
        ("/version", json!({"version": "a\u{0}b"})),
        ("/version", json!({"version": "x".repeat(129)})),
        ("/lease_ms", json!({"lease_ms": 1000})),
        ("", json!([])),
    ] {
        invalid(&server.post("/v1/workers/w1/heartbeat", body).await, pointer);
    }
    bad_parameter(&server.post("/v1/workers/a%20b/heartbeat", json!({})).await, "name");
    bad_parameter(&worker(&server, "-x").await, "name");
    bad_parameter(&remove(&server, &"x".repeat(129)).await, "name");
    refused(&worker(&server, "w1").await, 404, "unknown-worker");
    assert_eq!(server.get("/v1/workers").await.1, json!({"workers": []}), "none of them did anything");
    beat(&server, "w1", json!({"timeout_ms": 86_400_000, "slots": 0, "version": "ü"})).await;
}

pub async fn a_worker_that_is_heard_of_keeps_its_jobs(place: &Place) {
    const MS: u64 = 1500;
    let timeout = [("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "1500")];
    let server = Server::start_with(&place.url, &timeout).await;
    let push = async |count: usize| {
        for n in 0..count {
            server.push("mail", json!({"payload": n, "max_attempts": 1000})).await;
        }
    };
    push(3).await;
    let mut jobs = Vec::new();
    let (mut since, mut last) = (Instant::now(), Instant::now());
    loop {
        let sent = Instant::now();
        if jobs.len() < 3 {
            remove(&server, "slow").await;
            let ask = json!({"count": 3, "worker": "slow", "lease_ms": MS});
            (jobs, since) = (server.reserve("mail", ask).await, sent);
        } else {
            let mut held = beat(&server, "slow", json!({})).await["held"] == 3;
            // Both the leases and the timeout would have run out twice.
            if held && since.elapsed() >= Duration::from_millis(4000) {
                let mut committed = 0;
                for job in &jobs {
                    committed += usize::from(server.settle(job, "commit", json!({})).await.0 == 200);
                }
                if committed == 3 {
                    return;
                }
                push(committed).await;
                held = false;
            }
            if !held {
                // On a busy machine it may have been silent for too long: then it begins again. By less than the time itself, since a
                // lease begins at the server's estimate of the store's clock, which is a little behind.
                let silence = last.elapsed();
                let is_long = silence >= Duration::from_millis(MS / 2);
                assert!(is_long, "it lost jobs after a silence of {silence:?}");
                jobs.clear();
            }
        }
        last = sent;
        tokio::time::sleep(Duration::from_millis(100)).await; // the pace of the worker
    }
}

pub async fn a_silent_worker_gives_back_what_it_holds(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let held = hold(&server, "mail", "w1", 1).await.remove(0);
    server.settle(&held, "extend", json!({"lease_ms": LEASE_MS, "progress": 40})).await;
    assert_eq!(beat(&server, "w1", json!({"timeout_ms": SHORT_MS})).await["timeout_ms"], SHORT_MS);
    let seen_at = moment(&worker(&server, "w1").await.1["seen_at"]);
    let since = Instant::now();
    let waiter = begin_reserve(&server, "mail");
    assert_eq!(woken(since, waiter).await, [id(&held)]);
    let again = see(&server, &id(&held)).await;
    assert_eq!((&again["attempt"], &again["progress"]), (&json!(2), &json!(40)));
    let failure = &again["errors"][0];
    assert_eq!((&failure["message"], &failure["worker"]), (&json!("the worker fell silent"), &json!("w1")));
    let after_ms = moment(&failure["at"]).ms_since(seen_at);
    // A second is promised, on a machine that has time; without a look at its time it would be a minute. When it was seen says the store's
    // clock, and when it gave back the server's estimate of that, which is a little behind.
    assert!((SHORT_MS / 2..SHORT_MS + 50_000).contains(&after_ms), "given back after {after_ms} ms");
    assert_eq!(again["run_at"], failure["at"]);
    lost(&server.settle(&held, "commit", json!({})).await, false);
    let (_, shown) = worker(&server, "w1").await;
    assert_eq!((&shown["silent"], &shown["reserved"]), (&json!(true), &json!(0)));
    // It comes back to life, and holds nothing.
    assert_eq!(beat(&server, "w1", json!({})).await["held"], 0);
    assert_eq!(worker(&server, "w1").await.1["silent"], false);
}

pub async fn who_sends_no_heartbeats_keeps_its_leases(place: &Place) {
    let short = [("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "1000")];
    let server = Server::start_with(&place.url, &short).await;
    let quiet = hold(&server, "mail", "quiet", 1).await.remove(0);
    let nameless = push_and_take_nameless(&server).await;
    let lost = hold(&server, "mail", "lost", 1).await.remove(0);
    assert_eq!(beat(&server, "lost", json!({})).await["timeout_ms"], 1000);
    until("the silent one gave back its job", || async { state(&server, &lost).await == "ready" }).await;
    for job in [&quiet, &nameless] {
        assert_eq!(state(&server, job).await, "reserved");
        assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
    }
}

async fn push_and_take_nameless(server: &Server) -> Value {
    server.push("mail", json!({"payload": 1})).await;
    server.reserve("mail", json!({"lease_ms": LEASE_MS})).await.remove(0)
}

pub async fn silences_end_dead(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1, "dead_letter": "graves"})).await;
    let held = hold(&server, "mail", "w1", 1).await.remove(0);
    beat(&server, "w1", json!({"timeout_ms": SHORT_MS})).await;
    until("the job is buried", || async { see(&server, &id(&held)).await["queue"] == "graves" }).await;
    let buried = see(&server, &id(&held)).await;
    assert_eq!(buried["dead_lettered_from"]["error"], "the worker fell silent", "{buried}");
}

pub async fn a_removed_worker_gives_back_at_once(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    let held = hold(&server, "mail", "w1", 5).await;
    let other = hold(&server, "mail", "w2", 1).await.remove(0);
    beat(&server, "w1", json!({"timeout_ms": 600_000})).await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "mail");
    until_looked(&server, 7).await;
    assert_eq!(remove(&server, "w1").await, (200, json!({"affected": 5})));
    assert_eq!(woken(since, waiter).await, [id(&held[0])]);
    for (n, job) in held.iter().enumerate() {
        lost(&server.settle(job, "commit", json!({})).await, false);
        let seen = see(&server, &id(job)).await;
        assert_eq!(seen["state"], if n == 0 { "reserved" } else { "ready" });
        assert_eq!(seen["errors"][0]["message"], "the worker was removed");
    }
    refused(&worker(&server, "w1").await, 404, "unknown-worker");
    refused(&remove(&server, "w1").await, 404, "unknown-worker");
    // One that never sent a heartbeat is known by what it holds.
    refused(&worker(&server, "w2").await, 404, "unknown-worker");
    assert_eq!(remove(&server, "w2").await, (200, json!({"affected": 1})));
    assert_eq!(state(&server, &other).await, "ready");
    refused(&remove(&server, "w2").await, 404, "unknown-worker");
    // And one that holds nothing by its heartbeats.
    beat(&server, "w3", json!({})).await;
    assert_eq!(remove(&server, "w3").await, (200, json!({"affected": 0})));
    until("the figures say so", || async {
        let counts = server.get("/v1/queues/mail/stats").await.1["counts"].clone();
        (&counts["ready"], &counts["reserved"]) == (&json!(5), &json!(1))
    })
    .await;
}

pub async fn workers_are_listed_page_by_page(place: &Place) {
    let server = Server::start(&place.url).await;
    assert_eq!(server.get("/v1/workers").await, (200, json!({"workers": []})));
    for n in [3, 1, 2] {
        beat(&server, &format!("w{n}"), json!({"slots": n})).await;
    }
    hold(&server, "mail", "w2", 3).await;
    let (_, page) = server.get("/v1/workers?limit=2").await;
    let rows = |page: &Value| -> Vec<(Value, Value)> {
        let workers = page["workers"].as_array().unwrap().iter();
        workers.map(|worker| (worker["name"].clone(), worker["reserved"].clone())).collect()
    };
    assert_eq!(rows(&page), [(json!("w1"), json!(0)), (json!("w2"), json!(3))]);
    let next = format!("/v1/workers?limit=2&cursor={}", page["cursor"].as_str().unwrap());
    let (_, page) = server.get(&next).await;
    assert_eq!(rows(&page), [(json!("w3"), json!(0))]);
    assert!(page.get("cursor").is_none());
    for (query, parameter) in [("limit=0", "limit"), ("cursor=!", "cursor"), ("colour=red", "query")] {
        bad_parameter(&server.get(&format!("/v1/workers?{query}")).await, parameter);
    }
}

pub async fn a_job_that_is_not_wanted_is_told_and_taken_by_force(place: &Place) {
    let server = Server::start(&place.url).await;
    let held = hold(&server, "mail", "w1", 2).await;
    let path = format!("/v1/jobs/{}", id(&held[1]));
    let answer = server.send(Method::DELETE, &path, None).await;
    assert_eq!(answer, (202, json!({"deleted": false, "cancel_requested": true})));
    let told = beat(&server, "w1", json!({})).await;
    assert_eq!(told["held"], 2);
    assert_eq!(told["cancel_requested"], json!([{"id": id(&held[1]), "queue": "mail"}]));
    assert_eq!(server.settle(&held[1], "extend", json!({})).await.1["cancel_requested"], true);
    assert_eq!(server.settle(&held[0], "extend", json!({})).await.1["cancel_requested"], false);
    // The worker does not listen.
    assert_eq!(server.send(Method::DELETE, &format!("{path}?force=true"), None).await.0, 200);
    for call in ["commit", "rollback", "extend", "move"] {
        let body = if call == "move" { json!({"queue": "next"}) } else { json!({}) };
        lost(&server.settle(&held[1], call, body).await, true);
    }
    let told = beat(&server, "w1", json!({})).await;
    assert_eq!((&told["held"], &told["cancel_requested"]), (&json!(1), &json!([])));
    refused(&server.get(&path).await, 404, "unknown-job");
    assert_eq!(server.settle(&held[0], "commit", json!({})).await.0, 200);
    assert!(server.reserve("next", json!({})).await.is_empty());
}

/// A server that was away has heard nothing, and must not conclude that there was nothing to hear.
pub async fn a_server_that_was_away_listens_first(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let held = hold(&server, "mail", "w1", 2).await;
    let beaten = Instant::now();
    beat(&server, "w1", json!({"timeout_ms": 5000})).await;
    let seen_at = moment(&worker(&server, "w1").await.1["seen_at"]);
    server.kill();
    let was_silent = beaten.elapsed() >= Duration::from_millis(4000);
    // By the clock of the store, which is this machine's: nobody is there to be asked.
    tokio::time::sleep(Duration::from_millis(5100)).await;
    let began = Instant::now();
    let server = Server::start(&place.url).await;
    until("it has looked for silent workers", || async { runs(&server).await >= 2 }).await;
    let (_, shown) = worker(&server, "w1").await;
    let answer = beat(&server, "w1", json!({"timeout_ms": SHORT_MS})).await;
    // Unless the machine is so busy that the server has listened for the whole timeout by now, or the first one had.
    let has_listened = was_silent || began.elapsed() >= Duration::from_millis(5000);
    if !has_listened {
        assert_eq!((&shown["silent"], &shown["reserved"]), (&json!(true), &json!(2)), "{shown}");
        assert_eq!(answer["held"], 2, "{answer}");
    }
    // Now it listens.
    until("it has heard nothing", || async { state(&server, &held[0]).await == "ready" }).await;
    let lost_at = moment(&see(&server, &id(&held[0])).await["errors"][0]["at"]);
    assert!(was_silent || lost_at > seen_at.plus_ms(5000), "{lost_at}");
}

/// How often the task has looked.
async fn runs(server: &Server) -> u64 {
    let (_, stats) = server.get("/stats").await;
    let tasks = stats["tasks"].as_array().unwrap().iter();
    tasks.filter(|task| task["name"] == "workers").map(|task| task["runs"].as_u64().unwrap()).sum()
}

pub async fn a_heartbeat_at_another_server_counts(place: &Place) {
    let (one, other) = (Server::start(&place.url).await, Server::start(&place.url).await);
    let held = hold(&one, "mail", "w1", 4).await;
    // The server that delivered the jobs remembers what they were like before.
    assert_eq!(beat(&other, "w1", json!({"timeout_ms": LEASE_MS})).await["held"], 4);
    assert_eq!(one.settle(&held[0], "commit", json!({})).await.0, 200);
    assert_eq!(other.settle(&held[1], "commit", json!({})).await.0, 200);
    assert_eq!(beat(&one, "w1", json!({"timeout_ms": LEASE_MS})).await["held"], 2);
    assert_eq!(one.settle(&held[2], "rollback", json!({"delay_ms": LEASE_MS})).await.0, 200);
    assert_eq!(beat(&one, "w1", json!({"timeout_ms": SHORT_MS})).await["held"], 1);
    until("the last one was given back", || async { state(&other, &held[3]).await == "ready" }).await;
    for server in [&one, &other] {
        lost(&server.settle(&held[3], "commit", json!({})).await, false);
        assert_eq!(worker(server, "w1").await.1["reserved"], 0);
    }
}

pub async fn a_silence_is_noticed_without_the_server_that_heard_last(place: &Place) {
    let mut one = Server::start_with(&place.url, ONLY_WOKEN).await;
    let other = Server::start_with(&place.url, ONLY_WOKEN).await;
    let held = hold(&one, "mail", "w1", 1).await.remove(0);
    beat(&one, "w1", json!({"timeout_ms": 2000})).await;
    one.kill();
    let since = Instant::now();
    let waiter = begin_reserve(&other, "mail");
    assert_eq!(woken(since, waiter).await, [id(&held)]);
    lost(&other.settle(&held, "commit", json!({})).await, false);
}

/// An extend is a sign of life: what keeps its jobs is not shown as if it had lost them.
pub async fn a_worker_that_only_extends_is_not_silent(place: &Place) {
    let server = Server::start(&place.url).await;
    beat(&server, "idle", json!({"timeout_ms": SHORT_MS})).await;
    // On a machine that stands still it may be silent: then it begins again.
    until("it has lived for longer than its timeout", || only_extends(&server)).await;
}

/// Extends until the heartbeat is older than the timeout. Returns whether all of that was in time.
async fn only_extends(server: &Server) -> bool {
    let kept = hold(server, "mail", "lives", 1).await.remove(0);
    let mut last = Instant::now();
    beat(server, "lives", json!({"timeout_ms": 2 * SHORT_MS})).await;
    let seen_at = moment(&worker(server, "lives").await.1["seen_at"]);
    loop {
        let sent = Instant::now();
        let extended = server.settle(&kept, "extend", json!({"lease_ms": LEASE_MS})).await;
        let shown = worker(server, "lives").await.1;
        let (_, page) = server.get("/v1/workers").await;
        // Before its time is over, since an extend is noted at the server's estimate of the store's clock, which is a little behind.
        if last.elapsed() >= Duration::from_millis(SHORT_MS * 3 / 2) {
            return false;
        }
        last = sent;
        assert_eq!(extended.0, 200, "{}", extended.1);
        assert_eq!((&shown["silent"], moment(&shown["seen_at"])), (&json!(false), seen_at), "{shown}");
        let now = moment(&extended.1["reserved_until"]).millis() - i64::try_from(LEASE_MS).unwrap();
        if now > seen_at.plus_ms(2 * SHORT_MS + 200).millis() {
            let silent = |name: &str| {
                let workers = page["workers"].as_array().unwrap();
                workers.iter().find(|worker| worker["name"] == name).unwrap()["silent"].clone()
            };
            assert_eq!((silent("lives"), silent("idle")), (json!(false), json!(true)), "{page}");
            return true;
        }
    }
}

/// A worker is judged at the moment when it is read: who has extended is alive though its heartbeat grows too old while the list is read.
pub async fn workers_that_extend_are_never_shown_silent(place: &Place) {
    let server = Server::start(&place.url).await;
    until("all have outlived their heartbeats", || all_extend(&server)).await;
}

/// Extends the jobs of many until all heartbeats are too old. Returns whether all of that was in time.
async fn all_extend(server: &Server) -> bool {
    let names: Vec<String> = (0..30).map(|n| format!("w{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(hold(server, name, name, 1).await.remove(0));
    }
    let (begin, mut last) = (Instant::now(), Instant::now());
    let timeout = |n: usize| 2 * SHORT_MS + 50 * u64::try_from(n).unwrap();
    let beats =
        names.iter().enumerate().map(|(n, name)| beat(server, name, json!({"timeout_ms": timeout(n)})));
    join_all(beats).await;
    while begin.elapsed() < Duration::from_millis(timeout(names.len()) + 200) {
        let sent = Instant::now();
        let extends = held.iter().map(|job| server.settle(job, "extend", json!({"lease_ms": LEASE_MS})));
        let extended = join_all(extends).await;
        let (_, page) = server.get("/v1/workers?limit=1000").await;
        if last.elapsed() >= Duration::from_millis(SHORT_MS * 3 / 2) {
            return false;
        }
        last = sent;
        assert!(extended.iter().all(|(status, _)| *status == 200), "{extended:?}");
        let silent: Vec<&Value> =
            page["workers"].as_array().unwrap().iter().filter(|worker| worker["silent"] == true).collect();
        assert!(silent.is_empty(), "{silent:?}");
    }
    true
}
