//! Tokens that are not current, and calls that are repeated because their answer was lost.

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::support::*;
use crate::common::server::client_with;

/// Every call that settles, with the least that it needs.
const CALLS: [&str; 4] = ["commit", "rollback", "extend", "move"];

fn body(call: &str) -> Value {
    if call == "move" { json!({"queue": "next"}) } else { json!({}) }
}

async fn all_lost(server: &Server, job: &Value, gone: bool) {
    for call in CALLS {
        lost(&server.settle(job, call, body(call)).await, gone);
    }
}

pub async fn a_token_of_the_past_settles_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1})).await;
    let stale = server.reserve("mail", json!({"lease_ms": 100})).await.remove(0);
    let mut current = Value::Null;
    until("the reservation was taken back", || async { see(&server, &id(&stale)).await["state"] == "ready" })
        .await;
    all_lost(&server, &stale, false).await;
    current["job"] = take(&server, "mail").await;
    all_lost(&server, &stale, false).await;
    let seen = see(&server, &id(&stale)).await;
    assert_eq!((&seen["state"], &seen["attempt"]), (&json!("reserved"), &json!(2)));
    assert_eq!(server.settle(&current["job"], "commit", json!({})).await.0, 200);
    all_lost(&server, &stale, true).await;
}

pub async fn a_token_that_never_was_settles_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1})).await;
    server.push("mail", json!({"payload": 2})).await;
    // They are held through fifty calls.
    let jobs = server.reserve("mail", json!({"count": 2, "lease_ms": 600_000})).await;
    for token in ["", "x", "not a token!", "ä", &"x".repeat(65), jobs[1]["reservation"].as_str().unwrap()] {
        let mut job = jobs[0].clone();
        job["reservation"] = json!(token);
        all_lost(&server, &job, false).await;
    }
    for id in ["unknown", "a.b", "%20", "%FF", &"x".repeat(65)] {
        let mut job = jobs[0].clone();
        job["id"] = json!(id);
        all_lost(&server, &job, true).await;
    }
    // A job that nobody holds has no token that would fit.
    let idle = json!({"id": server.push("mail", json!({"payload": 3})).await, "reservation": jobs[0]["reservation"]});
    all_lost(&server, &idle, false).await;
    for job in &jobs {
        assert_eq!(see(&server, &id(job)).await["state"], "reserved");
        assert_eq!(server.settle(job, "commit", json!({})).await.0, 200);
    }
}

pub async fn a_repeat_of_a_settle_answers_the_same(place: &Place) {
    let server = Server::start(&place.url).await;
    for call in ["commit", "rollback", "move"] {
        let taken = push_and_take(&server, "mail").await;
        let body = match call {
            "move" => json!({"queue": "next", "delay_ms": 3_600_000}),
            "rollback" => json!({"delay_ms": 3_600_000, "error": "once"}),
            _ => json!({}),
        };
        let first = server.settle(&taken, call, body.clone()).await;
        assert_eq!(first.0, 200, "{call}: {}", first.1);
        assert_eq!(server.settle(&taken, call, body).await, repeat_of(&first), "{call}");
        // Another call with the token comes too late, whatever the first one did.
        for other in CALLS.into_iter().filter(|other| *other != call) {
            lost(&server.settle(&taken, other, self::body(other)).await, call == "commit");
        }
        if call != "commit" {
            let seen = see(&server, &id(&taken)).await;
            assert_eq!(seen["errors"].as_array().unwrap().len(), usize::from(call == "rollback"));
            assert_eq!(seen["run_at"], first.1["run_at"]);
        }
    }
}

pub async fn a_repeat_is_recognised_after_the_job_went_on(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let first = server.settle(&taken, "rollback", json!({"delay_ms": 0})).await;
    let again = take(&server, "mail").await;
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 0})).await, repeat_of(&first));
    assert_eq!(see(&server, &id(&taken)).await["state"], "reserved", "the repeat did nothing");
    let moved = server.settle(&again, "move", json!({"queue": "next"})).await;
    let next = take(&server, "next").await;
    assert_eq!(server.settle(&again, "move", json!({"queue": "next"})).await, repeat_of(&moved));
    assert_eq!(server.settle(&next, "commit", json!({})).await.0, 200);
    assert_eq!(server.settle(&again, "move", json!({"queue": "next"})).await, repeat_of(&moved));
    assert_eq!(server.settle(&next, "commit", json!({})).await.0, 200);
    lost(&server.settle(&next, "extend", json!({})).await, true);
}

pub async fn a_repeat_of_a_death_answers_the_same(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_attempts": 1})).await;
    configure(&server, "post", json!({"max_attempts": 1, "dead_letter": "dead"})).await;
    for queue in ["mail", "post"] {
        let taken = push_and_take(&server, queue).await;
        let first = server.settle(&taken, "rollback", json!({})).await;
        assert_eq!((first.0, &first.1["state"]), (200, &json!("dead")));
        assert_eq!(server.settle(&taken, "rollback", json!({})).await, repeat_of(&first));
        lost(&server.settle(&taken, "commit", json!({})).await, false);
    }
    assert_eq!(server.reserve("dead", json!({"count": 5})).await.len(), 1);
}

pub async fn a_commit_can_be_repeated_while_history_lasts(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000})).await;
    let taken = push_and_take(&server, "mail").await;
    let first = server.settle(&taken, "commit", json!({"result": 1})).await;
    assert_eq!(server.settle(&taken, "commit", json!({"result": 2})).await, repeat_of(&first));
    assert_eq!(see(&server, &id(&taken)).await["result"], 1, "the first one counts");
    for call in ["rollback", "extend", "move"] {
        lost(&server.settle(&taken, call, body(call)).await, false);
    }
}

/// Also where the repeat does not say it again.
pub async fn a_repeat_says_what_was_pushed(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "kept", json!({"retain_done_ms": 600_000})).await;
    for queue in ["kept", "gone"] {
        let taken = push_and_take(&server, queue).await;
        let first = server.settle(&taken, "commit", json!({"push": [{"queue": "out", "payload": 1}]})).await;
        assert_eq!((first.0, first.1["pushed"].as_array().map(Vec::len)), (200, Some(1)), "{first:?}");
        assert_eq!(server.settle(&taken, "commit", json!({})).await, repeat_of(&first), "{queue}");
    }
    // Why the token is lost is remembered all the same.
    let taken = push_and_take(&server, "gone").await;
    server.settle(&taken, "commit", json!({"push": [{"queue": "out", "payload": 1}]})).await;
    let (status, problem) = server.settle(&taken, "rollback", json!({})).await;
    assert!(status == 409 && problem.to_string().contains("committed"), "{problem}");
}

pub async fn a_forced_delete_takes_the_token(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "mail").await;
    let path = format!("/v1/jobs/{}?force=true", id(&taken));
    assert_eq!(server.send(reqwest::Method::DELETE, &path, None).await.0, 200);
    all_lost(&server, &taken, true).await;
}

pub async fn concurrent_repeats_answer_the_same(place: &Place) {
    let server = Server::start(&place.url).await;
    for call in ["commit", "rollback", "move"] {
        let taken = push_and_take(&server, "mail").await;
        let mut whole = body(call);
        whole["reservation"] = taken["reservation"].clone();
        if call == "rollback" {
            whole["delay_ms"] = json!(3_600_000);
        }
        let path = format!("/v1/jobs/{}/{call}", id(&taken));
        let calls: Vec<_> = (0..8).map(|_| begin(&server, &path, &[], whole.clone())).collect();
        let mut answers = Vec::new();
        for call in calls {
            answers.push(call.await.unwrap());
        }
        let (repeats, firsts): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|(_, answer)| answer["repeated"] == true);
        assert_eq!(firsts.len(), 1, "{call}: {firsts:?}");
        assert!(repeats.iter().all(|answer| *answer == repeat_of(&firsts[0])), "{call}: {repeats:?}");
    }
}

pub async fn a_commit_whose_client_left_can_be_repeated(place: &Place) {
    let server = Server::start(&place.url).await;
    for _ in 0..20 {
        let taken = push_and_take(&server, "mail").await;
        let body = json!({"reservation": taken["reservation"]}).to_string();
        let head = format!("POST /v1/jobs/{}/commit HTTP/1.1\r\nhost: localhost\r\n", id(&taken));
        let mut leaves = TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap();
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        leaves.write_all(request.as_bytes()).await.unwrap();
        drop(leaves);
        // Whether the server carried it out, is about to, or never saw it: it is never wrong to ask again.
        let (status, answer) = server.settle(&taken, "commit", json!({})).await;
        assert_eq!((status, &answer["state"]), (200, &json!("done")), "{answer}");
    }
}

pub async fn a_lost_reservation_says_why(place: &Place) {
    let server = Server::start(&place.url).await;
    let says = |answer: &(u16, Value), text: &str| {
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(answer.0 == 409 && detail.contains(text), "{text:?} is not said: {answer:?}");
    };
    let job = server.push("mail", json!({"payload": 1})).await;
    let first = server.reserve("mail", json!({"lease_ms": 100})).await.remove(0);
    until("it has lapsed", || async { see(&server, &job).await["state"] == "ready" }).await;
    let late = server.settle(&first, "commit", json!({})).await;
    says(&late, "the job is ready; delivery 1 ended at 2");
    says(&late, "the reservation ran out");
    let second = take(&server, "mail").await;
    says(
        &server.settle(&first, "extend", json!({"lease_ms": 1000})).await,
        "it was delivered again; delivery 1 ended",
    );
    assert_eq!(server.settle(&second, "commit", json!({})).await.0, 200);
    says(&server.settle(&first, "rollback", json!({})).await, "there is no such job any more");
    says(&server.settle(&second, "rollback", json!({})).await, "it was committed with this reservation");
    let job = server.push("mail", json!({"payload": 1})).await;
    let taken = take(&server, "mail").await;
    assert_eq!(server.post(&format!("/v1/jobs/{job}/release"), json!({})).await.0, 200);
    says(&server.settle(&taken, "commit", json!({})).await, "the job is ready; it was taken back, or given");
    let again = take(&server, "mail").await;
    says(&server.settle(&taken, "commit", json!({})).await, "it was delivered again; it was taken back, or");
    assert_eq!(server.settle(&again, "move", json!({"queue": "r3"})).await.0, 200);
    says(&server.settle(&again, "commit", json!({})).await, "it was moved with this reservation at 2");
    says(&server.settle(&taken, "commit", json!({})).await, "the job is ready; it was moved to r3 at 2");
    // Who never had it learns nothing.
    let other = push_and_take(&server, "mail").await;
    let mut stranger = second.clone();
    stranger["id"] = other["id"].clone();
    let (status, problem) = server.settle(&stranger, "commit", json!({})).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(status == 409 && detail.ends_with("not, or no longer, yours"), "{problem}");
}

/// What another worker has said of its failure is shown to nobody who may not read jobs.
pub async fn a_lost_reservation_tells_no_content(place: &Place) {
    let admin = "0123456789012345678901234567890123456789";
    let mut server = Server::start_with(&place.url, &[("TAILBACK_AUTH__ADMIN_KEY", admin)]).await;
    let with = |key: &str| {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {key}").parse().unwrap());
        client_with(headers)
    };
    server.http = with(admin);
    let asked = json!({"name": "worker", "scopes": ["consume"], "queues": ["mail", "w1"]});
    let worker = server.post("/v1/keys", asked).await.1["key"].as_str().unwrap().to_owned();
    server.push("mail", json!({"payload": 1})).await;
    server.http = with(&worker);
    let first = take(&server, "mail").await;
    assert_eq!(server.settle(&first, "rollback", json!({"error": "canary", "delay_ms": 0})).await.0, 200);
    let second = take(&server, "mail").await;
    let late = server.settle(&first, "commit", json!({})).await;
    let detail = late.1["detail"].as_str().unwrap();
    assert!(
        late.0 == 409 && detail.contains("delivery 1 ended at 2") && !detail.contains("canary"),
        "{late:?}"
    );
    // Where the job has gone the worker does not reach it, and learns nothing of it.
    assert_eq!(server.settle(&second, "rollback", json!({"delay_ms": 3_600_000})).await.0, 200);
    server.http = with(admin);
    let moved = json!({"payload": 2, "then": [{"queue": "theirs"}]});
    server.push("mail", moved).await;
    server.http = with(&worker);
    let third = take(&server, "mail").await;
    assert_eq!(server.settle(&third, "commit", json!({})).await.0, 200);
    let late = server.settle(&third, "rollback", json!({})).await;
    assert!(late.1["detail"].as_str().unwrap().ends_with("not, or no longer, yours"), "{late:?}");
}

/// For MongoDB alone: one SQLite file has one server.
pub async fn another_server_knows_a_commit_by_its_history_only(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    configure(&one, "kept", json!({"retain_done_ms": 600_000})).await;
    for queue in ["kept", "gone"] {
        let taken = push_and_take(&one, queue).await;
        let first = one.settle(&taken, "commit", json!({})).await;
        let again = two.settle(&taken, "commit", json!({})).await;
        if queue == "kept" {
            assert_eq!(again, repeat_of(&first));
        } else {
            lost(&again, true);
        }
    }
}

/// The first holder's server remembers the delivery, and does not learn that the job was taken from it. Then both jobs are
/// delivered by one claim of another server, so that they have one `rev`, which the first server reads with the other job.
async fn a_dead_token_beside_a_live_one(place: &Place, more: Value) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    let stale = push_and_take(&one, "in").await;
    let other = one.push("in", json!({"payload": {"n": 2}})).await;
    let (status, answer) = two.post(&format!("/v1/jobs/{}/release", id(&stale)), json!({})).await;
    assert_eq!(status, 200, "{answer}");
    let jobs = two.reserve("in", json!({"count": 2, "lease_ms": 600_000})).await;
    let held = |id: &str| jobs.iter().find(|job| job["id"] == id).unwrap();
    let (first, second) = (held(&id(&stale)), held(&other));
    let item = |job: &Value| {
        let mut item = json!({"id": job["id"], "reservation": job["reservation"]});
        item.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        item
    };
    let (_, answer) = one.post("/v1/settle", json!({"commit": [item(&stale), item(second)]})).await;
    let result = |n: usize| (&answer["commit"][n]["status"], &answer["commit"][n]["problem"]["gone"]);
    assert_eq!(result(0), (&json!(409), &json!(false)), "a dead token: {answer}");
    assert_eq!(result(1), (&json!(200), &Value::Null), "{answer}");
    let (status, answer) = two.settle(first, "commit", more).await;
    assert_eq!(status, 200, "the holder's token: {answer}");
}

pub async fn a_dead_token_commits_nothing_beside_a_live_one(place: &Place) {
    a_dead_token_beside_a_live_one(place, json!({})).await;
}

pub async fn a_dead_token_that_pushes_commits_nothing_beside_a_live_one(place: &Place) {
    a_dead_token_beside_a_live_one(place, json!({"push": [{"queue": "out", "payload": 1}]})).await;
}
