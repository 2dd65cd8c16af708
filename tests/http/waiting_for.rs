//! Why a job is not delivered, in each state and for each reason.

use reqwest::Method;

use super::support::*;
use crate::common::server::client_with;

/// The reasons, and the whole.
async fn why(server: &Server, id: &str) -> (Vec<String>, Value) {
    let job = see(server, id).await;
    let all = job["waiting_for"].clone();
    let reasons = all.as_array().unwrap_or_else(|| panic!("{job}")).iter();
    (reasons.map(|one| one["reason"].as_str().unwrap().to_owned()).collect(), all)
}

fn says(all: &Value, text: &str) {
    let said = all.as_array().unwrap().iter().any(|one| one["detail"].as_str().unwrap().contains(text));
    assert!(said, "{text:?} is not said in {all}");
}

pub async fn an_unfinished_job_says_what_it_waits_for(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    // A worker, then its turn.
    let job = server.push("mail", json!({"payload": 1})).await;
    let (reasons, all) = why(&server, &job).await;
    assert_eq!(reasons, ["worker"], "{all}");
    let paused = server.push("halted", json!({"payload": 1})).await;
    assert_eq!(server.post("/v1/queues/halted/pause", json!({})).await.0, 200);
    let waiter =
        begin(&server, "/v1/reserve", &[], json!({"queues": ["halted", "other"], "wait_ms": LONG_MS}));
    until_looked(&server, 1).await;
    let (reasons, all) = why(&server, &paused).await;
    assert_eq!(reasons, ["paused"], "{all}");
    assert_eq!(server.post("/v1/queues/halted/resume", json!({})).await.0, 200);
    assert_eq!(waiter.await.unwrap().0, 200);

    // Its time, a failure, and who has it.
    let later = server.push("later", json!({"payload": 1, "run_at": "2199-01-01T00:00:00Z"})).await;
    let (reasons, all) = why(&server, &later).await;
    assert_eq!((reasons, &all[0]["until"]), (vec!["due".to_owned()], &json!("2199-01-01T00:00:00.000Z")));
    says(&all, "2199-01-01T00:00:00.000Z");
    let taken = server.reserve("mail", json!({"worker": "w-1", "lease_ms": 600_000})).await;
    let (reasons, all) = why(&server, &job).await;
    assert_eq!(reasons, ["reserved"], "{all}");
    assert_eq!((&all[0]["worker"], &all[0]["until"]), (&json!("w-1"), &taken[0]["reserved_until"]));
    let failed = json!({"error": "no", "delay_ms": 3_600_000});
    assert_eq!(server.settle(&taken[0], "rollback", failed).await.0, 200);
    assert_eq!(why(&server, &job).await.0, ["backoff"]);

    // Limits of the queue.
    configure(&server, "few", json!({"max_reserved": 1, "rate": {"limit": 1, "per_ms": 3_600_000}})).await;
    let [first, second] = [1, 2].map(async |n| server.push("few", json!({"payload": n})).await);
    let (first, second) = (first.await, second.await);
    let held = take(&server, "few").await;
    assert_eq!(id(&held), first);
    until("the counts know", || async {
        why(&server, &second).await.0 == ["max_reserved", "rate", "worker"]
    })
    .await;
    let (_, all) = why(&server, &second).await;
    says(&all, "1 jobs of the queue few are reserved, of 1 at most");
    assert!(all[1]["until"].is_string(), "{all}");

    // A group behind its first job, whatever its state is.
    let batch = json!({"jobs": vec![json!({"payload": 1, "group": "account-7", "max_attempts": 1}); 3]});
    let (_, pushed) = server.post("/v1/queues/accounts/jobs/batch", batch).await;
    let line = ids(pushed["results"].as_array().unwrap());
    let (reasons, all) = why(&server, &line[2]).await;
    assert_eq!((reasons, &all[0]["job"]), (vec!["group".to_owned()], &json!(line[0])));
    says(&all, "it is number 3 in the group account-7");
    assert_eq!(all[0]["group"], "account-7");
    let head = take(&server, "accounts").await;
    says(&why(&server, &line[1]).await.1, "is reserved");
    assert_eq!(server.settle(&head, "rollback", json!({})).await.1["state"], "dead");
    let (_, all) = why(&server, &line[1]).await;
    says(&all, "it is number 2 in the group account-7");
    says(&all, "is dead: it holds the group");
    assert_eq!(all[0]["job"], json!(line[0]));
}

pub async fn a_finished_job_waits_for_nothing(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "kept", json!({"retain_done_ms": 3_600_000, "max_attempts": 1})).await;
    let done = push_and_take(&server, "kept").await;
    assert_eq!(server.settle(&done, "commit", json!({})).await.0, 200);
    let dead = push_and_take(&server, "kept").await;
    assert_eq!(server.settle(&dead, "rollback", json!({})).await.0, 200);
    for (job, state) in [(done, "done"), (dead, "dead")] {
        let seen = see(&server, &id(&job)).await;
        assert_eq!((&seen["state"], seen.get("waiting_for")), (&json!(state), None), "{seen}");
    }
    // Lists do not say it: it would cost a query for each job.
    server.push("kept", json!({"payload": 1})).await;
    let (_, listed) = server.get("/v1/queues/kept/jobs?state=ready").await;
    assert_eq!(listed["jobs"][0].get("waiting_for"), None);
}

pub async fn a_key_learns_nothing_of_other_queues_holders(place: &Place) {
    let admin = "0123456789012345678901234567890123456789";
    let mut server = Server::start_with(&place.url, &[("TAILBACK_AUTH__ADMIN_KEY", admin)]).await;
    let anonymous = server.http.clone();
    let with = |key: &str| {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {key}").parse().unwrap());
        client_with(headers)
    };
    server.http = with(admin);
    let (_, key) =
        server.post("/v1/keys", json!({"name": "reader", "scopes": ["read"], "queues": ["mine"]})).await;
    let reader = key["key"].as_str().unwrap().to_owned();
    assert_eq!(server.send(Method::PUT, "/v1/semaphores/db", Some(json!({"capacity": 1}))).await.0, 200);
    let holder = server.push("theirs", json!({"payload": 1, "semaphores": ["db"]})).await;
    let waiting = server.push("mine", json!({"payload": 1, "semaphores": ["db"]})).await;
    take(&server, "theirs").await;
    let (reasons, all) = why(&server, &waiting).await;
    assert_eq!(
        (reasons, &all[0]["semaphore"]),
        (vec!["semaphore".to_owned(), "worker".to_owned()], &json!("db"))
    );
    says(&all, &format!("held 1 times of 1 by {holder} of the queue theirs"));
    server.http = with(&reader);
    let (_, all) = why(&server, &waiting).await;
    says(&all, "the semaphore db is held 1 times of 1");
    assert!(!all.to_string().contains("theirs") && !all.to_string().contains(&holder), "{all}");
    server.http = anonymous;
}

pub async fn who_waits_on_another_server_is_known(place: &Place) {
    let one = Server::start_with(&place.url, ONLY_WOKEN).await;
    let other = Server::start_with(&place.url, ONLY_WOKEN).await;
    configure(&one, "mail", json!({"rate": {"limit": 1, "per_ms": 3_600_000}})).await;
    push_and_take(&one, "mail").await;
    let job = one.push("mail", json!({"payload": 2})).await;
    assert_eq!(why(&one, &job).await.0, ["rate", "worker"]);
    let waiter = begin_reserve(&other, "mail");
    until("it is known that one waits there", || async { why(&one, &job).await.0 == ["rate"] }).await;
    configure(&one, "mail", json!({})).await;
    let taken = waiter.await.unwrap().1;
    assert_eq!(ids(taken["jobs"].as_array().unwrap()), [job]);
}

pub async fn a_job_that_lets_another_pass_says_which(place: &Place) {
    let impatient = [("TAILBACK_DEFAULTS__SEMAPHORE_PATIENCE_MS", "1"), ONLY_WOKEN[0]];
    let server = Server::start_with(&place.url, &impatient).await;
    for name in ["p1", "p2"] {
        let path = format!("/v1/semaphores/{name}");
        assert_eq!(server.send(Method::PUT, &path, Some(json!({"capacity": 1}))).await.0, 200);
    }
    server.push("held", json!({"payload": 1, "semaphores": ["p1"]})).await;
    take(&server, "held").await;
    // The first waits for the other semaphore, and has lost patience: no other job may take its second one.
    let first = server.push("q", json!({"payload": 1, "semaphores": ["p1", "p2"]})).await;
    assert_eq!(server.reserve("q", json!({})).await, Vec::<Value>::new());
    until("the first is blocked", || async { see(&server, &first).await["state"] == "blocked" }).await;
    tokio::time::sleep(std::time::Duration::from_millis(20)).await; // longer than its patience
    let second = server.push("q", json!({"payload": 2, "semaphores": ["p2"]})).await;
    let waiter = begin_reserve(&server, "q");
    until_looked(&server, 1).await;
    until("both are blocked", || async { see(&server, &second).await["state"] == "blocked" }).await;
    assert_eq!(see(&server, &first).await["state"], "blocked");
    let (reasons, all) = why(&server, &second).await;
    assert_eq!(reasons, ["semaphore"], "{all}");
    assert_eq!((&all[0]["semaphore"], &all[0]["job"]), (&json!("p2"), &json!(first)), "{all}");
    says(&all, "kept for the job");
    says(&why(&server, &first).await.1, "the semaphore p1 is held 1 times of 1");
    drop(waiter);
}

pub async fn only_a_pop_that_waits_is_nobody_for_semaphores(place: &Place) {
    let server = Server::start_with(&place.url, ONLY_WOKEN).await;
    assert_eq!(server.send(Method::PUT, "/v1/semaphores/db", Some(json!({"capacity": 1}))).await.0, 200);
    let waiter = begin(&server, "/v1/queues/q/pop", &[], json!({"wait_ms": LONG_MS}));
    until_looked(&server, 1).await;
    let job = server.push("q", json!({"payload": 1, "semaphores": ["db"]})).await;
    // While it looks after its wake-up it is no waiter.
    let only_a_pop = "only a pop waits for the queue q, and pops pass over jobs that need semaphores";
    until("it waits again", || async {
        let (reasons, all) = why(&server, &job).await;
        assert_eq!(reasons, ["worker"], "{all}");
        all[0]["detail"].as_str().unwrap().contains(only_a_pop)
    })
    .await;
    waiter.abort();
}
