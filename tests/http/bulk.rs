//! Purge, redrive, replay.

use super::support::*;

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
    configure(server, queue, json!({"retain_done_ms": 600_000, "max_attempts": 1})).await;
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
