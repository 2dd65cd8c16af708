//! What a key does not see: what is in other queues, and what needs the scope `read`.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mongodb::bson::{Document, doc};

use super::support::*;

/// Walks a list one element a page: the names, and the cursors as they decode.
async fn walk(server: &Server, key: &str, path: &str, field: &str) -> (Vec<String>, Vec<String>) {
    let (mut names, mut cursors, mut query) = (Vec::new(), Vec::new(), "?limit=1".to_owned());
    loop {
        let (status, page) = get(server, key, &format!("{path}{query}")).await;
        assert_eq!(status, 200, "{page}");
        let items = page[field].as_array().unwrap();
        assert_eq!(items.len(), 1, "a page that is not full has no cursor: {page}");
        let name = |item: &Value| item["name"].as_str().or(item["queue"].as_str()).unwrap().to_owned();
        names.extend(items.iter().map(name));
        let Some(cursor) = page["cursor"].as_str() else { return (names, cursors) };
        cursors.push(String::from_utf8(URL_SAFE_NO_PAD.decode(cursor).unwrap()).unwrap());
        query = format!("?limit=1&cursor={cursor}");
    }
}

pub async fn lists_and_their_cursors_name_nothing_elsewhere(place: &Place) {
    let server = locked(place).await;
    // What the patterns match, in the order of the names, among names that they do not match.
    let within = ["m.", "m.1", "m.2", "m.2.x", "one"];
    let others = ["a1", "a2", "m", "m-x", "mx", "n1", "n2", "one1", "z1", "z2"];
    for (n, name) in within.iter().chain(&others).enumerate() {
        ok(&put(&server, ADMIN, &format!("/v1/semaphores/{name}"), json!({"capacity": 1})).await);
        ok(&post(&server, ADMIN, &format!("/v1/workers/{name}/heartbeat"), json!({})).await);
        match n % 2 {
            0 => ok(&put(&server, ADMIN, &format!("/v1/queues/{name}"), json!({"lease_ms": 1000})).await),
            _ => drop(push(&server, ADMIN, name, json!({"payload": 1})).await),
        }
        // A schedule is of its queue, whatever its own name is.
        let rule = json!({"cron": "0 0 1 1 *", "queue": name, "job": {"payload": 1}});
        ok(&put(&server, ADMIN, &format!("/v1/schedules/s{n:02}"), rule).await);
    }
    let keys = [
        key_for(&server, &["read"], &["m.*", "one"]).await,
        key_for(&server, &["read"], &["one", "m.2*", "m.*", "m.2.x", "none", "zz*"]).await,
    ];
    for key in &keys {
        for (path, field) in
            [("/v1/queues", "queues"), ("/v1/semaphores", "semaphores"), ("/v1/workers", "workers")]
        {
            let (names, cursors) = walk(&server, key, path, field).await;
            assert_eq!(names, within, "{path}");
            assert_eq!(cursors, within[..within.len() - 1], "{path}");
        }
        let (names, cursors) = walk(&server, key, "/v1/schedules", "schedules").await;
        assert_eq!(names, ["s00", "s01", "s02", "s03", "s04"]);
        assert_eq!(cursors, ["s00", "s01", "s02", "s03"]);
    }
    let none = key_for(&server, &["read"], &["q*"]).await;
    for (path, field) in [("/v1/queues", "queues"), ("/v1/schedules", "schedules")] {
        assert_eq!(get(&server, &none, path).await.1, json!({ field: [] }));
    }
    let (names, _) = walk(&server, ADMIN, "/v1/queues", "queues").await;
    assert_eq!(names.len(), within.len() + others.len());
}

fn keys_of(answer: &Value) -> Vec<&str> {
    answer.as_object().unwrap().keys().map(String::as_str).collect()
}

/// A change is answered with what it was about, and with nothing of what is there.
pub async fn who_may_not_read_is_shown_no_content(place: &Place) {
    let server = locked(place).await;
    let operator = key_for(&server, &["operate", "push"], &[]).await;
    let id = push(&server, ADMIN, "q", json!({"payload": "secret", "headers": {"h": "secret"}})).await;
    let path = format!("/v1/jobs/{id}");
    let (status, job) = call_with(&server, Some(&operator), Method::PATCH, &path, &[], Some(json!({}))).await;
    assert_eq!((status, &job), (200, &json!({"id": id, "queue": "q", "state": "ready"})));

    let rule = json!({"cron": "0 0 1 1 *", "queue": "q", "job": {"payload": "secret"}});
    ok(&put(&server, ADMIN, "/v1/schedules/s", rule.clone()).await);
    for call in ["pause", "resume"] {
        let (status, answer) = post(&server, &operator, &format!("/v1/schedules/s/{call}"), json!({})).await;
        assert_eq!((status, keys_of(&answer)), (200, vec!["name", "version"]), "{answer}");
    }
    let (status, answer) = put(&server, &operator, "/v1/schedules/s", rule).await;
    assert_eq!((status, keys_of(&answer)), (200, vec!["name", "version"]), "{answer}");

    ok(&put(&server, ADMIN, "/v1/queues/q", json!({"dead_letter": "secret"})).await);
    for call in ["pause", "resume"] {
        let (status, answer) = post(&server, &operator, &format!("/v1/queues/q/{call}"), json!({})).await;
        assert_eq!((status, keys_of(&answer)), (200, vec!["queue", "version"]), "{answer}");
    }
    for method in [Method::PATCH, Method::PUT] {
        let body = Some(json!({"lease_ms": 1000}));
        let (status, answer) = call_with(&server, Some(&operator), method, "/v1/queues/q", &[], body).await;
        assert_eq!((status, keys_of(&answer)), (200, vec!["queue", "version"]), "{answer}");
    }

    let (status, answer) = put(&server, &operator, "/v1/semaphores/s", json!({"capacity": 1})).await;
    assert_eq!((status, &answer), (200, &json!({"name": "s"})));

    let jobs = json!({"jobs": [{"queue": "q", "payload": 1}], "sealed": false});
    let (status, batch) = post(&server, &operator, "/v1/batches", jobs).await;
    assert_eq!((status, keys_of(&batch)), (201, vec!["id", "sealed", "jobs"]), "{batch}");
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let more = json!({"jobs": [{"queue": "q", "payload": 1}]});
    let (status, answer) = post(&server, &operator, &format!("{path}/jobs"), more).await;
    assert_eq!((status, keys_of(&answer)), (200, vec!["id", "sealed", "jobs"]), "{answer}");
    let (status, answer) = post(&server, &operator, &format!("{path}/seal"), json!({})).await;
    assert_eq!((status, &answer), (200, &json!({"id": batch["id"], "sealed": true})));
}

/// Of jobs in other queues that need the same semaphore.
pub async fn a_semaphore_shows_its_holders_in_the_queues_of_the_key(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["operate", "read"], &["mine", "shared"]).await;
    let path = "/v1/semaphores/shared";
    ok(&put(&server, ADMIN, path, json!({"capacity": 2})).await);
    for queue in ["mine", "theirs"] {
        push(&server, ADMIN, queue, json!({"payload": 1, "semaphores": ["shared"]})).await;
        reserve(&server, ADMIN, queue, 1).await;
    }
    for answer in [get(&server, &key, path).await, put(&server, &key, path, json!({"capacity": 3})).await] {
        let holders = answer.1["holders"].as_array().unwrap();
        assert_eq!((answer.0, holders.len(), &holders[0]["queue"]), (200, 1, &json!("mine")), "{}", answer.1);
    }
}

/// Its jobs may be moved, or dead-lettered, by others.
pub async fn a_batch_ends_at_the_queues_of_its_key(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["push", "read", "operate"], &["mine"]).await;
    let job = json!({"queue": "mine", "payload": 1});
    let jobs = json!({"jobs": [job, job, job, job], "sealed": false});
    let (status, batch) = post(&server, &key, "/v1/batches", jobs).await;
    assert_eq!(status, 201, "{batch}");
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    let held = reserve(&server, ADMIN, "mine", 3).await;
    ok(&settle(&server, ADMIN, &held[0], "commit", json!({"result": "own"})).await);
    for job in &held[1..] {
        ok(&settle(&server, ADMIN, job, "move", json!({"queue": "theirs"})).await);
    }
    let there = reserve(&server, ADMIN, "theirs", 1).await.remove(0);
    ok(&settle(&server, ADMIN, &there, "commit", json!({"result": "secret"})).await);
    let list = async |key: &str| get(&server, key, &format!("{path}/results?limit=1")).await.1;
    let own = list(&key).await;
    assert_eq!((&own["results"][0]["result"], &own["cursor"]), (&json!("own"), &Value::Null), "{own}");
    assert!(list(ADMIN).await["cursor"].is_string());
    assert_eq!(delete(&server, &key, &path).await, (200, json!({"affected": 1})));
    let left = get(&server, ADMIN, "/v1/queues/theirs/jobs").await.1;
    assert_eq!(left["jobs"].as_array().unwrap().len(), 1, "{left}");
    assert_eq!(delete(&server, ADMIN, &path).await, (200, json!({"affected": 1})));
}

pub async fn a_heartbeat_names_jobs_in_the_queues_of_the_key(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["consume"], &["mine", "w"]).await;
    for queue in ["mine", "theirs"] {
        let id = push(&server, ADMIN, queue, json!({"payload": 1})).await;
        let ask = json!({"worker": "w", "lease_ms": 600_000});
        ok(&post(&server, ADMIN, &format!("/v1/queues/{queue}/reserve"), ask).await);
        ok(&delete(&server, ADMIN, &format!("/v1/jobs/{id}")).await);
    }
    for (key, queues) in [(key.as_str(), vec!["mine"]), (ADMIN, vec!["mine", "theirs"])] {
        let (status, beat) = post(&server, key, "/v1/workers/w/heartbeat", json!({})).await;
        let named = beat["cancel_requested"].as_array().unwrap();
        let mut named: Vec<&str> = named.iter().map(|job| job["queue"].as_str().unwrap()).collect();
        named.sort_unstable();
        assert_eq!((status, &beat["held"], named), (200, &json!(2), queues), "{beat}");
    }
}

/// The same for a job that is there and for one that is not.
pub async fn a_token_that_was_never_given_tells_nothing(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["consume"], &["mine"]).await;
    let theirs = push(&server, ADMIN, "theirs", json!({"payload": 1})).await;
    let mut missing = theirs.clone();
    missing.replace_range(theirs.len() - 4.., "AAAA");
    for token in ["x", "AAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"] {
        for verb in ["commit", "rollback", "extend"] {
            let mut answers = Vec::new();
            for id in [&theirs, &missing] {
                let answer =
                    post(&server, &key, &format!("/v1/jobs/{id}/{verb}"), json!({"reservation": token}))
                        .await;
                refused(&answer, 409, "reservation-lost");
                let many = json!({verb: [{"id": id, "reservation": token}]});
                let many = post(&server, &key, "/v1/settle", many).await.1;
                let told =
                    |problem: &Value| json!([problem["gone"], problem["detail"]]).to_string().replace(id, "");
                answers.push((told(&answer.1), told(&many[verb][0]["problem"])));
            }
            assert_eq!(answers[0], answers[1], "{token} {verb}");
        }
    }
}

pub async fn a_circle_of_dead_letters_names_the_queues_of_the_key(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["operate", "push"], &["mine", "shared"]).await;
    for (queue, target) in [("shared", "theirs"), ("theirs", "mine")] {
        ok(&put(&server, ADMIN, &format!("/v1/queues/{queue}"), json!({"dead_letter": target})).await);
    }
    let settings = json!({"dead_letter": "shared"});
    let patch = call_with(&server, Some(&key), Method::PATCH, "/v1/queues/mine", &[], Some(settings.clone()));
    for answer in [patch.await, put(&server, &key, "/v1/queues/mine", settings.clone()).await] {
        refused(&answer, 422, "invalid-field");
        assert_eq!(answer.1["pointer"], "/dead_letter");
        assert!(!answer.1.to_string().contains("theirs"), "{}", answer.1);
    }
    let told = put(&server, ADMIN, "/v1/queues/mine", settings).await.1;
    assert!(told["detail"].as_str().unwrap().contains("mine → shared → theirs"), "{told}");
}

/// After a restart the jobs that were taken with a rollback prove how it ended. Where its own job is now is read, and may be elsewhere.
pub async fn a_proven_settle_names_no_queue_that_is_not_the_keys(place: &Place) {
    let mut server = locked(place).await;
    let key = key_for(&server, &["consume"], &["work"]).await;
    for n in 0..2 {
        push(&server, ADMIN, "work", json!({"payload": n})).await;
    }
    let job = reserve(&server, &key, "work", 1).await.remove(0);
    let body = || json!({"delay_ms": 3_600_000, "next": {"lease_ms": 600_000}});
    let first = settle(&server, &key, &job, "rollback", body()).await;
    assert_eq!((first.0, &first.1["queue"]), (200, &json!("work")), "{}", first.1);
    let path = format!("/v1/jobs/{}/move", job["id"].as_str().unwrap());
    ok(&post(&server, ADMIN, &path, json!({"queue": "secret"})).await);
    server.kill();
    let server = locked(place).await;
    let again = settle(&server, &key, &job, "rollback", body()).await;
    assert_eq!((again.0, &again.1["repeated"]), (200, &json!(true)), "{}", again.1);
    assert_eq!(again.1["state"], "scheduled", "{}", again.1);
    let taken = |answer: &(u16, Value)| answer.1["next"]["jobs"][0]["id"].clone();
    assert_eq!((taken(&again), taken(&again).is_string()), (taken(&first), true), "{}", again.1);
    assert!(!again.1.to_string().contains("secret"), "{}", again.1);
}

/// What another program wrote.
pub async fn a_spoiled_schedule_is_unknown_to_a_key_for_some_queues(place: &Place) {
    let server = locked(place).await;
    let rule = json!({"cron": "0 0 1 1 *", "queue": "mine", "job": {"payload": 1}});
    ok(&put(&server, ADMIN, "/v1/schedules/s", rule.clone()).await);
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let schedules = client.default_database().unwrap().collection::<Document>("schedules");
    schedules.update_one(doc! { "_id": "s" }, doc! { "$set": { "rule": "secret" } }).await.unwrap();
    refused(&get(&server, ADMIN, "/v1/schedules/s").await, 409, "unreadable");
    let key = key_for(&server, &["operate", "push", "read"], &["mine"]).await;
    for answer in [
        get(&server, &key, "/v1/schedules/s").await,
        post(&server, &key, "/v1/schedules/s/pause", json!({})).await,
        post(&server, &key, "/v1/schedules/s/resume", json!({})).await,
        post(&server, &key, "/v1/schedules/s/run", json!({})).await,
        delete(&server, &key, "/v1/schedules/s").await,
    ] {
        refused(&answer, 404, "unknown-schedule");
    }
    forbidden(&put(&server, &key, "/v1/schedules/s", rule.clone()).await);
    assert_eq!(get(&server, &key, "/v1/schedules").await.1, json!({"schedules": []}));
    ok(&put(&server, ADMIN, "/v1/schedules/s", rule).await);
}

pub async fn operations_of_others_leave_no_cursor(place: &Place) {
    let server = locked(place).await;
    for _ in 0..3 {
        let body = json!({"filter": {"queue": "theirs"}, "action": "delete"});
        assert_eq!(post(&server, ADMIN, "/v1/operations", body).await.0, 202);
    }
    let key = key_for(&server, &["read", "operate"], &["mine"]).await;
    assert_eq!(get(&server, &key, "/v1/operations?limit=1").await, (200, json!({"operations": []})));
    let body = json!({"filter": {"queue": "mine"}, "action": "delete", "dry_run": true});
    ok(&post(&server, &key, "/v1/operations", body.clone()).await);
    // What it would find is for those who may read.
    let blind = key_for(&server, &["operate"], &["mine"]).await;
    forbidden(&post(&server, &blind, "/v1/operations", body).await);
}
