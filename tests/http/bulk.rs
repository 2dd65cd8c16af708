//! Purge, redrive, replay.

use std::sync::atomic::{AtomicBool, Ordering};

use reqwest::Method;

use super::support::*;
use crate::common::fleet::{Tally, fleet, push_many};

async fn affected(server: &Server, queue: &str, call: &str, body: Value) -> u64 {
    let (status, answer) = server.post(&format!("/v1/queues/{queue}/{call}"), body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer.as_object().unwrap().len(), 1);
    answer["affected"].as_u64().unwrap()
}

async fn count(server: &Server, queue: &str, state: &str) -> usize {
    let (_, page) = server.get(&format!("/v1/queues/{queue}/jobs?state={state}&limit=1000")).await;
    page["jobs"].as_array().unwrap().len()
}

/// A job in each state but blocked: two ready, two scheduled, two reserved, two done, two dead.
async fn mix(server: &Server, queue: &str) {
    let settings = json!({"retain_done_ms": 600_000, "max_attempts": 1, "lease_ms": 600_000});
    configure(server, queue, settings).await;
    for end in ["commit", "rollback", ""] {
        for _ in 0..2 {
            let taken = push_and_take(server, queue).await;
            if !end.is_empty() {
                assert_eq!(server.settle(&taken, end, json!({})).await.0, 200);
            }
        }
    }
    for _ in 0..2 {
        server.push(queue, json!({"payload": 1})).await;
        server.push(queue, json!({"payload": 1, "delay_ms": 3_600_000})).await;
    }
}

pub async fn a_purge_takes_one_state_away(place: &Place) {
    let server = Server::start(&place.url).await;
    mix(&server, "mail").await;
    server.push("other", json!({"payload": 1})).await;
    let mut left = vec!["ready", "scheduled", "reserved", "done", "dead"];
    for state in ["ready", "scheduled", "done", "dead"] {
        assert_eq!(affected(&server, "mail", "purge", json!({ "state": state })).await, 2, "{state}");
        left.retain(|other| *other != state);
        assert_eq!(count(&server, "mail", state).await, 0);
        for other in &left {
            assert_eq!(count(&server, "mail", other).await, 2, "{other} after {state}");
        }
        assert_eq!(affected(&server, "mail", "purge", json!({ "state": state })).await, 0, "{state}");
    }
    assert_eq!(affected(&server, "mail", "purge", json!({"state": "blocked"})).await, 0);
    invalid(&server.post("/v1/queues/mail/purge", json!({"state": "reserved"})).await, "/state");
    invalid(&server.post("/v1/queues/mail/purge", json!({})).await, "/state");
    invalid(&server.post("/v1/queues/mail/purge", json!({"state": "lost"})).await, "/state");
    invalid(&server.post("/v1/queues/mail/purge", json!({"state": "ready", "before": "x"})).await, "/before");
    invalid(&server.post("/v1/queues/mail/purge", json!({"state": "ready", "limit": 1})).await, "/limit");
    assert_eq!(count(&server, "mail", "reserved").await, 2);
    assert_eq!(count(&server, "other", "ready").await, 1);
}

/// Two moments of the store's clock differ only once a millisecond has passed.
async fn later_than(server: &Server, moment: &str) {
    until("the store's clock has gone on", || async {
        let probe = server.push("clock", json!({"payload": 1})).await;
        see(server, &probe).await["created_at"].as_str().unwrap() > moment
    })
    .await;
}

pub async fn a_purge_takes_what_is_older(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    for state in ["ready", "done"] {
        let mut moments = Vec::new();
        for _ in 0..2 {
            let pushed = server.push("mail", json!({"payload": 1})).await;
            if state == "done" {
                server.settle(&take(&server, "mail").await, "commit", json!({})).await;
            }
            let seen = see(&server, &pushed).await;
            let moment = if state == "done" { &seen["finished_at"] } else { &seen["created_at"] };
            moments.push(moment.as_str().unwrap().to_owned());
            later_than(&server, moments.last().unwrap()).await;
        }
        for (before, expected) in [(&moments[0], 0), (&moments[1], 1)] {
            let body = json!({"state": state, "before": before});
            assert_eq!(affected(&server, "mail", "purge", body).await, expected, "{state}");
        }
        assert_eq!(affected(&server, "mail", "purge", json!({ "state": state })).await, 1);
    }
}

pub async fn a_purge_goes_on_until_nothing_is_left(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..1000).map(|n| json!({ "payload": n })).collect();
    for _ in 0..2 {
        server.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await;
    }
    assert_eq!(affected(&server, "mail", "purge", json!({"state": "ready"})).await, 2000);
    assert!(server.reserve("mail", json!({})).await.is_empty());
}

/// What is purged unblocks what it blocked, which then is ready, but was not when the call was made.
pub async fn a_purge_leaves_what_was_blocked(place: &Place) {
    let server = Server::start(&place.url).await;
    for (state, delay_ms) in [("ready", 0), ("scheduled", 3_600_000)] {
        for group in ["a", "b"] {
            for n in 0..4 {
                let job = json!({"payload": n, "group": group, "delay_ms": delay_ms});
                server.push(state, job).await;
            }
        }
        server.push(state, json!({"payload": "alone", "delay_ms": delay_ms})).await;
        let purge = json!({ "state": state });
        assert_eq!(affected(&server, state, "purge", purge.clone()).await, 3, "{state}");
        assert_eq!((count(&server, state, state).await, count(&server, state, "blocked").await), (2, 4));
        assert_eq!(affected(&server, state, "purge", purge).await, 2, "{state}");
        assert_eq!(affected(&server, state, "purge", json!({"state": "blocked"})).await, 2);
        assert_eq!(count(&server, state, state).await, 2, "{state}");
    }
}

/// A callback has an older id than the jobs of its batch, and was not there before the last of them was removed.
pub async fn a_purge_leaves_the_callback_that_it_causes(place: &Place) {
    let server = Server::start(&place.url).await;
    let callback = |queue: &str| json!({"queue": queue, "payload": "end"});
    for (queue, is_deleted) in [("mail", false), ("gone", true)] {
        let open = json!({"sealed": false, "on_finished": callback(queue)});
        let (status, batch) = server.post("/v1/batches", open).await;
        assert_eq!(status, 201, "{batch}");
        let path = format!("/v1/batches/{}", id(&batch));
        let jobs = json!({"jobs": [{"queue": queue, "payload": 1}]});
        let (status, added) = server.post(&format!("{path}/jobs"), jobs).await;
        assert_eq!(status, 200, "{added}");
        assert_eq!(server.post(&format!("{path}/seal"), json!({})).await.0, 200);
        if is_deleted {
            let (status, told) =
                server.send(Method::DELETE, &format!("/v1/queues/{queue}?force=true"), None).await;
            assert_eq!(status, 200, "{told}");
            assert_eq!(count(&server, queue, "ready").await, 0, "all that is there goes with the queue");
            continue;
        }
        let purge = json!({"state": "ready"});
        assert_eq!(affected(&server, queue, "purge", purge.clone()).await, 1);
        let waiting = server.get(&format!("/v1/queues/{queue}/jobs")).await.1;
        assert_eq!(waiting["jobs"][0]["payload"], "end", "{waiting}");
        later_than(&server, waiting["jobs"][0]["created_at"].as_str().unwrap()).await;
        assert_eq!(affected(&server, queue, "purge", purge).await, 1, "it was there before");
    }
}

pub async fn a_redrive_revives_the_queues_own_dead(place: &Place) {
    let server = Server::start(&place.url).await;
    mix(&server, "mail").await;
    assert_eq!(affected(&server, "mail", "redrive", json!({"limit": 1})).await, 1);
    assert_eq!((count(&server, "mail", "dead").await, count(&server, "mail", "ready").await), (1, 3));
    assert_eq!(affected(&server, "mail", "redrive", json!({"state": "dead"})).await, 1);
    assert_eq!(affected(&server, "mail", "redrive", json!({})).await, 0);
    let revived = server.reserve("mail", json!({"count": 10})).await;
    let again: Vec<&Value> =
        revived.iter().filter(|job| !job["errors"].as_array().unwrap().is_empty()).collect();
    assert_eq!((revived.len(), again.len()), (4, 2));
    for job in again {
        assert_eq!(job["attempt"], 1, "attempts start again");
        assert!(job.get("finished_at").is_none() && job.get("purge_at").is_none(), "{job}");
    }
    for (pointer, body) in
        [("/limit", json!({"limit": 0})), ("/state", json!({"state": "done"})), ("/to", json!({"to": 1}))]
    {
        invalid(&server.post("/v1/queues/mail/redrive", body).await, pointer);
    }
}

pub async fn a_redrive_returns_dead_letters_to_where_they_died(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut died = Vec::new();
    for queue in ["mail", "post"] {
        configure(&server, queue, json!({"max_attempts": 1, "dead_letter": "dead"})).await;
        let taken = push_and_take(&server, queue).await;
        server.settle(&taken, "rollback", json!({"error": "no"})).await;
        died.push(id(&taken));
    }
    let own = server.push("dead", json!({"payload": "pushed here"})).await;
    assert_eq!(affected(&server, "dead", "redrive", json!({"limit": 1})).await, 1);
    assert_eq!(count(&server, "dead", "ready").await, 2);
    // One that waits after a rollback there is among them.
    let other = take(&server, "dead").await;
    let (other, first) =
        if id(&other) == own { (take(&server, "dead").await, Some(other)) } else { (other, None) };
    assert_eq!(server.settle(&other, "rollback", json!({"delay_ms": 600_000})).await.0, 200);
    if let Some(first) = first {
        assert_eq!(server.settle(&first, "rollback", json!({"delay_ms": 0})).await.0, 200);
    }
    assert_eq!(affected(&server, "dead", "redrive", json!({})).await, 1);
    assert_eq!(ids(&server.reserve("dead", json!({"count": 5})).await), [own], "its own jobs stay");
    for (queue, id) in ["mail", "post"].into_iter().zip(died) {
        let job = take(&server, queue).await;
        assert_eq!((&job["id"], &job["attempt"]), (&json!(id), &json!(1)));
        assert!(job.get("dead_lettered_from").is_none(), "{job}");
        let reasons: Vec<&Value> =
            job["trail"].as_array().unwrap().iter().map(|step| &step["reason"]).collect();
        assert_eq!(reasons, ["dead", "redriven"]);
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
}

/// Lets a job die in `mail`, which hands it on, and then in `dead`.
async fn die_twice(server: &Server) -> String {
    let taken = push_and_take(server, "mail").await;
    for queue in ["mail", "dead"] {
        let taken = if queue == "mail" { taken.clone() } else { take(server, queue).await };
        let (_, answer) = server.settle(&taken, "rollback", json!({"error": queue})).await;
        assert_eq!(answer["state"], "dead", "{answer}");
    }
    id(&taken)
}

pub async fn a_letter_that_died_again_is_redriven_once_and_home(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1, "dead_letter": "dead"})).await;
    configure(&server, "dead", json!({"max_attempts": 1})).await;
    let twice = die_twice(&server).await;
    assert_eq!(see(&server, &twice).await["state"], "dead");
    assert_eq!(affected(&server, "dead", "redrive", json!({"limit": 1})).await, 1);
    let home = take(&server, "mail").await;
    assert_eq!((&home["id"], &home["attempt"]), (&json!(twice), &json!(1)));
    assert!(home.get("dead_lettered_from").is_none() && home.get("finished_at").is_none(), "{home}");
    assert_eq!(server.settle(&home, "commit", json!({})).await.0, 200);
    // Beside one that waits there, and one that has never been elsewhere.
    let twice = die_twice(&server).await;
    let own = push_and_take(&server, "dead").await;
    assert_eq!(server.settle(&own, "rollback", json!({})).await.0, 200);
    let once = push_and_take(&server, "mail").await;
    assert_eq!(server.settle(&once, "rollback", json!({})).await.0, 200);
    assert_eq!(affected(&server, "dead", "redrive", json!({})).await, 3);
    assert_eq!(affected(&server, "dead", "redrive", json!({})).await, 0);
    let mut back = ids(&server.reserve("mail", json!({"count": 5})).await);
    back.sort();
    assert_eq!(back, [twice, id(&once)]);
    assert_eq!(ids(&server.reserve("dead", json!({"count": 5})).await), [id(&own)]);
}

/// What comes back to a dead-letter queue from its own is a dead letter there, as it was.
pub async fn a_letter_of_a_letter_is_one_again_where_it_came_from(place: &Place) {
    let server = Server::start(&place.url).await;
    let settings = json!({"max_attempts": 1, "dead_letter": "dead", "on_group_dead": "skip"});
    configure(&server, "mail", settings).await;
    configure(&server, "dead", json!({"max_attempts": 1, "dead_letter": "deader"})).await;
    let die = async |queue: &str| {
        let taken = take(&server, queue).await;
        assert_eq!(server.settle(&taken, "rollback", json!({"error": queue})).await.1["state"], "dead");
    };
    for is_committed in [true, false] {
        let job = json!({"payload": 1, "group": "g", "then": [{"queue": "next"}]});
        let pushed = server.push("mail", job).await;
        die("mail").await;
        die("dead").await;
        assert_eq!(see(&server, &pushed).await["queue"], "deader");
        assert_eq!(affected(&server, "deader", "redrive", json!({})).await, 1);
        let letter = take(&server, "dead").await;
        let origin = &letter["dead_lettered_from"];
        assert_eq!((&origin["queue"], &origin["error"]), (&json!("mail"), &json!("mail")), "{letter}");
        if is_committed {
            assert_eq!(server.settle(&letter, "commit", json!({})).await.0, 200);
            assert_eq!(count(&server, "next", "ready").await, 0, "its route is suspended");
            continue;
        }
        assert_eq!(server.post(&format!("/v1/jobs/{pushed}/release"), json!({})).await.0, 200);
        assert_eq!(affected(&server, "dead", "redrive", json!({})).await, 1);
        let home = take(&server, "mail").await;
        assert!(home["id"] == pushed && home.get("dead_lettered_from").is_none(), "{home}");
        assert_eq!(server.settle(&home, "commit", json!({})).await.0, 200);
        assert_eq!(ids(&server.reserve("next", json!({})).await), [pushed], "its route goes on");
    }
}

pub async fn a_redrive_takes_what_died_in_a_time(place: &Place) {
    let server = Server::start(&place.url).await;
    for (queue, settings) in
        [("mail", json!({"max_attempts": 1, "dead_letter": "letters"})), ("own", json!({"max_attempts": 1}))]
    {
        configure(&server, queue, settings).await;
        let (mut moments, mut died) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let taken = push_and_take(&server, queue).await;
            assert_eq!(server.settle(&taken, "rollback", json!({})).await.0, 200);
            let seen = see(&server, &id(&taken)).await;
            let at = if queue == "own" { &seen["finished_at"] } else { &seen["dead_lettered_from"]["at"] };
            moments.push(at.as_str().unwrap().to_owned());
            died.push(id(&taken));
            later_than(&server, &moments[moments.len() - 1]).await;
        }
        let dead = if queue == "own" { "own" } else { "letters" };
        let body = json!({"to": moments[0]});
        assert_eq!(affected(&server, dead, "redrive", body).await, 0, "{queue}");
        let body = json!({"from": moments[1], "to": moments[2], "state": "dead"});
        assert_eq!(affected(&server, dead, "redrive", body).await, 1, "{queue}");
        assert_eq!(ids(&server.reserve(queue, json!({"count": 5})).await), [died[1].clone()]);
        let body = json!({"from": moments[1], "limit": 1});
        assert_eq!(affected(&server, dead, "redrive", body).await, 1, "{queue}");
        assert_eq!(ids(&server.reserve(queue, json!({"count": 5})).await), [died[2].clone()]);
        assert_eq!(affected(&server, dead, "redrive", json!({"from": moments[0]})).await, 1, "{queue}");
    }
    invalid(&server.post("/v1/queues/own/redrive", json!({"from": "x"})).await, "/from");
}

/// One that dies before it expires, as soon as the machine has time; a dead letter where there is a queue for them. It is
/// returned as it was delivered: the letter may have expired by now.
async fn dead_before_expiry(server: &Server, queue: &str) -> Value {
    let mut in_ms = 250;
    loop {
        in_ms *= 2;
        let job = json!({"payload": 1, "max_attempts": 1, "expires_in_ms": in_ms});
        server.push(queue, job).await;
        for taken in server.reserve(queue, json!({})).await {
            let (_, answer) = server.settle(&taken, "rollback", json!({})).await;
            if answer["state"] == "dead" {
                return taken;
            }
        }
    }
}

pub async fn an_expiry_outlives_death(place: &Place) {
    let server = Server::start(&place.url).await;
    // What is taken last must not come back: it would be dead then, too.
    configure(&server, "mail", json!({"dead_letter": "letters", "lease_ms": 600_000})).await;
    configure(&server, "own", json!({"lease_ms": 600_000})).await;
    for queue in ["mail", "own"] {
        let job = json!({"payload": 1, "max_attempts": 1, "expires_in_ms": 3_600_000});
        let pushed = server.push(queue, job).await;
        let expires_at = see(&server, &pushed).await["expires_at"].clone();
        let taken = take(&server, queue).await;
        assert_eq!(server.settle(&taken, "rollback", json!({})).await.1["state"], "dead");
        assert_eq!(see(&server, &pushed).await["expires_at"], expires_at, "dead in {queue}");
        let dead = if queue == "own" { "own" } else { "letters" };
        assert_eq!(affected(&server, dead, "redrive", json!({})).await, 1);
        assert_eq!(take(&server, queue).await["expires_at"], expires_at, "back in {queue}");
    }
    // A letter expires like every job that waits; what is dead is kept, but gets no other chance then.
    let letter = dead_before_expiry(&server, "mail").await;
    let path = format!("/v1/jobs/{}", id(&letter));
    until("the letter has expired", || async { server.get(&path).await.0 == 404 }).await;
    let dead = dead_before_expiry(&server, "own").await;
    later_than(&server, dead["expires_at"].as_str().unwrap()).await;
    assert_eq!(affected(&server, "own", "redrive", json!({})).await, 0);
    assert_eq!(see(&server, &id(&dead)).await["state"], "dead");
    assert_eq!(affected(&server, "own", "purge", json!({"state": "dead"})).await, 1);
}

pub async fn a_replay_copies_history(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    let mut done = Vec::new();
    for n in 0..3 {
        let job = json!({"payload": {"n": n}, "key": format!("k{n}"), "priority": n, "headers": {"x": "y"}});
        server.push("mail", job).await;
        let taken = take(&server, "mail").await;
        server.settle(&taken, "commit", json!({"result": n})).await;
        let seen = see(&server, &id(&taken)).await;
        later_than(&server, seen["finished_at"].as_str().unwrap()).await;
        done.push(seen);
    }
    // From this moment on, before that one.
    let body = json!({"from": done[1]["finished_at"], "to": done[2]["finished_at"]});
    assert_eq!(affected(&server, "mail", "replay", body).await, 1);
    let copy = take(&server, "mail").await;
    assert_eq!(copy["replay_of"], done[1]["id"]);
    assert_ne!(copy["id"], done[1]["id"]);
    for field in ["payload", "priority", "headers"] {
        assert_eq!(copy[field], done[1][field], "{field}");
    }
    for absent in ["key", "result", "finished_at"] {
        assert!(copy.get(absent).is_none(), "{absent}: {copy}");
    }
    server.settle(&copy, "rollback", json!({"delay_ms": 3_600_000})).await;
    for before in &done {
        assert_eq!(see(&server, &id(before)).await, *before, "history stays as it is");
    }
    assert_eq!(affected(&server, "mail", "replay", json!({"limit": 2})).await, 2);
    assert_eq!(affected(&server, "mail", "replay", json!({})).await, 3);
    let body = json!({"from": "2999-01-01T00:00:00Z"});
    assert_eq!(affected(&server, "mail", "replay", body).await, 0);
    assert_eq!(server.reserve("mail", json!({"count": 10})).await.len(), 5);
    for (pointer, body) in [
        ("/limit", json!({"limit": 0})),
        ("/from", json!({"from": "x"})),
        ("/state", json!({"state": "done"})),
    ] {
        invalid(&server.post("/v1/queues/mail/replay", body).await, pointer);
    }
}

/// While workers finish what it pushes, again and again.
pub async fn a_replay_repeats_what_was_finished_before_it(place: &Place) {
    // More than one step takes; with their copies fewer than a call looks at before it leaves the rest to an operation.
    const JOBS: usize = 900;
    let servers = fleet(place).await;
    configure(&servers[0], "mail", json!({"retain_done_ms": 600_000})).await;
    let ids = push_many(&servers[0], "mail", JOBS, json!({})).await;
    let (done, is_over) = (Tally::default(), AtomicBool::new(true));
    let work = async |server: &Server| loop {
        let was_over = is_over.load(Ordering::Acquire);
        let taken = server.reserve("mail", json!({"count": 100, "lease_ms": 600_000})).await;
        if taken.is_empty() && was_over {
            return;
        }
        let commit = |job: &Value| json!({"id": job["id"], "reservation": job["reservation"]});
        let commits: Vec<Value> = taken.iter().map(commit).collect();
        let (status, answer) = server.post("/v1/settle", json!({"commit": commits})).await;
        assert_eq!(status, 200, "{answer}");
        for settled in answer["commit"].as_array().unwrap() {
            assert_eq!(settled["status"], 200, "{settled}");
            done.note(&id(settled));
        }
    };
    work(&servers[0]).await;
    assert_eq!(done.len(), ids.len());
    // At once, by a server whose clock is another estimate of the store's.
    is_over.store(false, Ordering::Release);
    let replay = async {
        let last = servers.last().unwrap();
        let count = affected(last, "mail", "replay", json!({})).await;
        is_over.store(true, Ordering::Release);
        count
    };
    let (count, ()) = tokio::join!(replay, work(&servers[0]));
    assert_eq!((count, done.len()), (JOBS as u64, 2 * JOBS));
}

pub async fn a_replay_stops_at_a_full_queue(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    for _ in 0..2 {
        server.settle(&push_and_take(&server, "mail").await, "commit", json!({})).await;
    }
    configure(&server, "mail", json!({"retain_done_ms": 600_000, "max_jobs": 1})).await;
    refused(&server.post("/v1/queues/mail/replay", json!({})).await, 429, "queue-full");
    assert_eq!(count(&server, "mail", "ready").await, 1);
    assert_eq!(count(&server, "mail", "done").await, 2);
}

/// A copy would wait for ever.
pub async fn a_replay_leaves_out_what_needs_a_semaphore_that_is_gone(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    let semaphore = "/v1/semaphores/s";
    assert_eq!(server.send(reqwest::Method::PUT, semaphore, Some(json!({"capacity": 1}))).await.0, 200);
    for job in [json!({"payload": 1, "semaphores": ["s"]}), json!({"payload": 2})] {
        server.push("mail", job).await;
        let taken = take(&server, "mail").await;
        assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
    }
    assert_eq!(server.send(reqwest::Method::DELETE, semaphore, None).await.0, 200);
    assert_eq!(affected(&server, "mail", "replay", json!({})).await, 1);
    assert_eq!(take(&server, "mail").await["payload"], 2);
    let body = json!({"filter": {"queue": "mail", "state": "done"}, "action": "replay"});
    let (status, operation) = server.post("/v1/operations", body).await;
    assert_eq!(status, 202, "{operation}");
    let path = format!("/v1/operations/{}", id(&operation));
    until("it is over", || async { server.get(&path).await.1["finished_at"].is_string() }).await;
    let now = server.get(&path).await.1;
    assert_eq!((&now["affected"], &now["skipped"]), (&json!(1), &json!(1)), "{now}");
}
