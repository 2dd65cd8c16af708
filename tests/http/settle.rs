//! Settling: commit, rollback, extend, move, and what a worker tells with them.

use super::support::*;

pub async fn a_commit_takes_the_job_away(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let answer = server.settle(&taken, "commit", json!({"result": {"n": 1}})).await;
    assert_eq!(answer, (200, json!({"id": taken["id"], "state": "done"})));
    refused(&server.get(&format!("/v1/jobs/{}", id(&taken))).await, 404, "unknown-job");
}

pub async fn a_commit_becomes_history_with_its_result(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    for result in [json!({"n": [1.0]}), Value::Null] {
        let taken = push_and_take(&server, "mail").await;
        assert_eq!(server.settle(&taken, "commit", json!({"result": result})).await.0, 200);
        let seen = see(&server, &id(&taken)).await;
        assert_eq!((&seen["state"], &seen["result"]), (&json!("done"), &result));
        assert!(seen.get("result").is_some(), "a result of null is a result");
        assert_eq!((&seen["worker"], &seen["attempt"]), (&json!("w1"), &json!(1)));
        for field in ["created_at", "started_at", "finished_at", "purge_at"] {
            assert!(seen[field].is_string(), "{field}: {seen}");
        }
    }
    let taken = push_and_take(&server, "mail").await;
    server.settle(&taken, "commit", json!({})).await;
    assert!(see(&server, &id(&taken)).await.get("result").is_none());
}

pub async fn a_rollback_brings_the_job_back(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut taken = push_and_take(&server, "mail").await;
    for attempt in 1..=3 {
        let error = format!("failure {attempt}");
        let (status, answer) =
            server.settle(&taken, "rollback", json!({"delay_ms": 0, "error": error})).await;
        assert_eq!((status, &answer["state"], &answer["queue"]), (200, &json!("ready"), &json!("mail")));
        assert!(answer["run_at"].is_string());
        let again = take(&server, "mail").await;
        assert_eq!((&again["id"], &again["attempt"]), (&taken["id"], &json!(attempt + 1)));
        assert_ne!(again["reservation"], taken["reservation"]);
        let failure = &again["errors"][attempt - 1];
        assert_eq!((&failure["message"], &failure["attempt"]), (&json!(error), &json!(attempt)));
        assert_eq!(failure["worker"], "w1");
        assert!(failure["at"].is_string());
        taken = again;
    }
}

pub async fn a_rollback_waits_as_long_as_it_is_told(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"backoff": {"kind": "fixed", "base_ms": 3_600_000, "jitter": 0}}))
        .await;
    for body in [json!({}), json!({"delay_ms": 3_600_000})] {
        let taken = push_and_take(&server, "mail").await;
        let (status, answer) = server.settle(&taken, "rollback", body).await;
        assert_eq!((status, &answer["state"]), (200, &json!("scheduled")), "{answer}");
        let seen = see(&server, &id(&taken)).await;
        assert_eq!((&seen["state"], &seen["run_at"]), (&json!("scheduled"), &answer["run_at"]));
        assert!(seen["run_at"].as_str() > taken["reserved_until"].as_str(), "an hour is more than the lease");
        assert_eq!(seen["errors"][0]["message"], "rolled back without an error");
    }
    // The job's own backoff wins over the queue's, and delay_ms over both.
    server.push("mail", json!({"payload": 1, "backoff": {"kind": "fixed", "base_ms": 0}})).await;
    let taken = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "rollback", json!({})).await.1["state"], "ready");
    let taken = take(&server, "mail").await;
    assert_eq!(
        server.settle(&taken, "rollback", json!({"delay_ms": 9_000_000})).await.1["state"],
        "scheduled"
    );
}

pub async fn a_job_without_attempts_left_is_dead(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 2, "retain_dead_ms": 600_000})).await;
    let taken = push_and_take(&server, "mail").await;
    server.settle(&taken, "rollback", json!({"delay_ms": 0})).await;
    let taken = take(&server, "mail").await;
    let answer = server.settle(&taken, "rollback", json!({"delay_ms": 0, "error": "enough"})).await;
    assert_eq!(answer, (200, json!({"id": taken["id"], "state": "dead"})));
    let seen = see(&server, &id(&taken)).await;
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("dead"), &json!(2)));
    assert!(seen["finished_at"].is_string() && seen["purge_at"].is_string());
    assert_eq!(seen["errors"][1]["message"], "enough");
    assert!(server.reserve("mail", json!({})).await.is_empty());
}

pub async fn a_dead_job_goes_to_the_dead_letter_queue(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1, "dead_letter": "dead.mail"})).await;
    let pushed = server.push("mail", json!({"payload": {"n": 1}, "key": "k"})).await;
    let taken = take(&server, "mail").await;
    let answer = server.settle(&taken, "rollback", json!({"error": "no"})).await;
    assert_eq!(answer, (200, json!({"id": pushed, "state": "dead", "queue": "dead.mail"})));
    let buried = take(&server, "dead.mail").await;
    assert_eq!((&buried["id"], &buried["payload"]), (&json!(pushed), &json!({"n": 1})));
    assert_eq!((&buried["attempt"], &buried["max_attempts"]), (&json!(1), &json!(5)));
    let origin = &buried["dead_lettered_from"];
    assert_eq!(
        (&origin["queue"], &origin["error"], &origin["attempts"]),
        (&json!("mail"), &json!("no"), &json!(1))
    );
    assert_eq!(
        (&buried["trail"][0]["queue"], &buried["trail"][0]["reason"]),
        (&json!("mail"), &json!("dead"))
    );
    assert!(buried.get("key").is_none(), "its key stays behind");
    assert_eq!(server.settle(&buried, "commit", json!({})).await.0, 200);
}

pub async fn an_extend_gives_more_time(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    let taken = server.reserve("mail", json!({"lease_ms": 60_000})).await.remove(0);
    let (status, longer) = server.settle(&taken, "extend", json!({"lease_ms": 86_400_000})).await;
    assert_eq!((status, &longer["cancel_requested"]), (200, &json!(false)));
    assert_eq!(longer["id"], pushed);
    assert!(longer["reserved_until"].as_str() > taken["reserved_until"].as_str());
    assert_eq!(see(&server, &pushed).await["reserved_until"], longer["reserved_until"]);
    // Without a length it is the lease that was asked for at first, from now on: shorter again.
    let (_, first) = server.settle(&taken, "extend", json!({})).await;
    assert!(first["reserved_until"].as_str() < longer["reserved_until"].as_str());
    assert!(first["reserved_until"].as_str() >= taken["reserved_until"].as_str());
}

pub async fn progress_is_handed_on(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    assert!(taken.get("progress").is_none());
    server.settle(&taken, "extend", json!({"progress": {"done": 40}})).await;
    assert_eq!(see(&server, &id(&taken)).await["progress"], json!({"done": 40}));
    server.settle(&taken, "extend", json!({})).await;
    server.settle(&taken, "rollback", json!({"delay_ms": 0})).await;
    let again = take(&server, "mail").await;
    assert_eq!((&again["progress"], &again["attempt"]), (&json!({"done": 40}), &json!(2)));
    server.settle(&again, "extend", json!({"progress": null})).await;
    server.settle(&again, "rollback", json!({"delay_ms": 0})).await;
    let third = take(&server, "mail").await;
    assert_eq!(third.get("progress"), Some(&Value::Null), "a progress of null is a progress");
    server.settle(&third, "move", json!({"queue": "next"})).await;
    assert!(take(&server, "next").await.get("progress").is_none(), "a stage starts afresh");
}

pub async fn a_move_starts_the_next_stage(place: &Place) {
    let server = Server::start(&place.url).await;
    server
        .push("extract", json!({"payload": {"n": 1}, "priority": 4, "key": "k", "headers": {"x": "y"}}))
        .await;
    let taken = take(&server, "extract").await;
    let (status, answer) = server.settle(&taken, "move", json!({"queue": "transform"})).await;
    assert_eq!((status, &answer["state"], &answer["queue"]), (200, &json!("ready"), &json!("transform")));
    let moved = take(&server, "transform").await;
    for field in ["id", "payload", "headers", "priority", "created_at"] {
        assert_eq!(moved[field], taken[field], "{field}");
    }
    assert_eq!((&moved["attempt"], &moved["errors"]), (&json!(1), &json!([])));
    assert!(moved.get("key").is_none());
    assert_eq!(moved["trail"][0]["queue"], "extract");
    assert_eq!((&moved["trail"][0]["reason"], &moved["trail"][0]["attempts"]), (&json!("moved"), &json!(1)));

    let body = json!({"queue": "load", "payload": null, "delay_ms": 3_600_000, "priority": -2});
    let (_, answer) = server.settle(&moved, "move", body).await;
    assert_eq!((&answer["state"], &answer["queue"]), (&json!("scheduled"), &json!("load")));
    let seen = see(&server, &id(&taken)).await;
    assert_eq!((&seen["queue"], &seen["payload"]), (&json!("load"), &Value::Null));
    assert_eq!((&seen["priority"], &seen["attempt"]), (&json!(-2), &json!(0)));
    assert_eq!((&seen["run_at"], seen["trail"].as_array().unwrap().len()), (&answer["run_at"], 2));
    assert!(server.reserve("extract", json!({})).await.is_empty());
}

pub async fn a_worker_learns_that_its_job_is_not_wanted(place: &Place) {
    let server = Server::start(&place.url).await;
    for (end, state) in [("commit", "done"), ("rollback", "removed"), ("move", "removed")] {
        let taken = push_and_take(&server, "mail").await;
        let path = format!("/v1/jobs/{}", id(&taken));
        let answer = server.send(reqwest::Method::DELETE, &path, None).await;
        assert_eq!(answer, (202, json!({"deleted": false, "cancel_requested": true})));
        assert_eq!(server.settle(&taken, "extend", json!({})).await.1["cancel_requested"], true);
        assert_eq!(see(&server, &id(&taken)).await["cancel_requested"], true);
        let body = if end == "move" { json!({"queue": "next"}) } else { json!({}) };
        let (status, answer) = server.settle(&taken, end, body).await;
        assert_eq!((status, &answer["state"]), (200, &json!(state)), "{end}: {answer}");
        refused(&server.get(&path).await, 404, "unknown-job");
    }
    // One that lapses leaves as well.
    server.push("mail", json!({"payload": 1})).await;
    let taken = server.reserve("mail", json!({"lease_ms": 300})).await.remove(0);
    let path = format!("/v1/jobs/{}", id(&taken));
    server.send(reqwest::Method::DELETE, &path, None).await;
    until("the job has left", || async { server.get(&path).await.0 == 404 }).await;
    assert!(server.reserve("mail", json!({})).await.is_empty());
}

pub async fn a_settle_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let year = 31_536_000_000_u64;
    for (call, pointer, body) in [
        ("commit", "/colour", json!({"colour": 1})),
        ("commit", "/push", json!({"push": {}})),
        ("rollback", "/delay_ms", json!({"delay_ms": year + 1})),
        ("rollback", "/delay_ms", json!({"delay_ms": -1})),
        ("rollback", "/error", json!({"error": {"m": 1}})),
        ("extend", "/lease_ms", json!({"lease_ms": 99})),
        ("extend", "/lease_ms", json!({"lease_ms": 86_400_001})),
        ("extend", "/delay_ms", json!({"delay_ms": 1})),
        ("move", "/queue", json!({})),
        ("move", "/queue", json!({"queue": "a b"})),
        ("move", "/delay_ms", json!({"queue": "q", "delay_ms": year + 1})),
        ("move", "/priority", json!({"queue": "q", "priority": 1.5})),
    ] {
        invalid(&server.settle(&taken, call, body).await, pointer);
    }
    for call in ["commit", "rollback", "extend", "move"] {
        let path = format!("/v1/jobs/{}/{call}", id(&taken));
        let without = server.post(&path, json!({"queue": "q"})).await;
        if call == "move" {
            refused(&without, 409, "wrong-state"); // an operator's move, which takes nothing from a worker
        } else {
            invalid(&without, "/queue");
        }
        invalid(&server.post(&path, json!({"reservation": 1})).await, "/reservation");
    }
    assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200, "none of them did anything");
}
