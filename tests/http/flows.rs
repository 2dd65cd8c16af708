//! Commits that lead on: with pushes, and along a route.

use std::time::Instant;

use mongodb::bson::{Document, doc};

use super::support::*;
use crate::common::fleet::fleet;

pub async fn a_commit_pushes_what_it_led_to(place: &Place) {
    let server = Server::start(&place.url).await;
    let taken = push_and_take(&server, "fetch").await;
    let since = Instant::now();
    let waiter = begin_reserve(&server, "parse");
    until_looked(&server, 2).await;
    let push = json!([{"queue": "parse", "payload": {"n": 1}}, {"queue": "log", "payload": null, "delay_ms": 90_000}]);
    let body = json!({"result": 1, "push": push});
    let (status, answer) = server.settle(&taken, "commit", body.clone()).await;
    assert_eq!((status, &answer["state"]), (200, &json!("done")), "{answer}");
    let pushed = answer["pushed"].as_array().unwrap();
    let told = |n: usize| (pushed[n]["queue"].clone(), pushed[n]["deduplicated"].clone());
    assert_eq!((told(0), told(1)), ((json!("parse"), json!(false)), (json!("log"), json!(false))));
    assert_eq!(woken(since, waiter).await, [id(&pushed[0])]);
    let later = see(&server, &id(&pushed[1])).await;
    assert_eq!((&later["state"], &later["run_at"]), (&json!("scheduled"), &pushed[1]["run_at"]));
    assert_eq!(
        server.settle(&taken, "commit", body).await,
        repeat_of(&(200, answer)),
        "the repeat answers the same"
    );
}

pub async fn what_is_wrong_with_a_push_is_named(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "full", json!({"max_jobs": 1})).await;
    server.push("full", json!({"payload": 1})).await;
    server.push("out", json!({"payload": 1, "key": "k"})).await;
    let taken = push_and_take(&server, "in").await;
    let good = json!({"queue": "out", "payload": 1});
    for (wrong, pointer) in [
        (json!({"queue": "out", "priority": "x"}), "/push/1/priority"),
        (json!({"payload": 1}), "/push/1/queue"),
        (json!({"queue": "no queue", "payload": 1}), "/push/1/queue"),
        (json!({"queue": "out", "payload": 1, "priorit": 1}), "/push/1/priorit"),
        (json!({"queue": "out", "payload": 1, "max_attempts": -1}), "/push/1/max_attempts"),
        (
            json!({"queue": "out", "payload": 1, "then": [{"queue": "b", "delay_ms": -1}]}),
            "/push/1/then/0/delay_ms",
        ),
    ] {
        let answer = server.settle(&taken, "commit", json!({"push": [good, wrong]})).await;
        invalid(&answer, pointer);
    }
    let many = vec![good.clone(); 1001];
    invalid(&server.settle(&taken, "commit", json!({"push": many})).await, "/push");
    let refused_by = |push: Value| server.settle(&taken, "commit", json!({"push": [good, push]}));
    refused(&refused_by(json!({"queue": "full", "payload": 1})).await, 429, "queue-full");
    refused(&refused_by(json!({"queue": "out", "payload": 2, "key": "k"})).await, 409, "key-conflict");
    let (_, stats) = server.get("/v1/queues/out/stats").await;
    assert_eq!(stats["counts"]["ready"], 1, "nothing was pushed: {stats}");
    assert_eq!(refused_by(good.clone()).await.0, 200);
}

pub async fn settles_among_others_push_too(place: &Place) {
    let server = Server::start(&place.url).await;
    let (one, two) = (push_and_take(&server, "in").await, push_and_take(&server, "in").await);
    let item = |job: &Value, to: &str| json!({"id": job["id"], "reservation": job["reservation"], "push": [{"queue": to, "payload": 1}]});
    let body = json!({"commit": [item(&one, "out"), item(&two, "no queue")]});
    let (status, answer) = server.post("/v1/settle", body).await;
    assert_eq!(
        (status, &answer["commit"][0]["status"], &answer["commit"][1]["status"]),
        (200, &json!(200), &json!(422))
    );
    assert_eq!(id(&answer["commit"][0]["pushed"][0]), id(&take(&server, "out").await));
    assert_eq!(answer["commit"][1]["problem"]["pointer"], "/commit/1/push/0/queue");
}

pub async fn a_settle_pushes_a_thousand_jobs_at_most(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "in", json!({"lease_ms": 600_000})).await; // so many take a while on a busy machine
    let taken = [push_and_take(&server, "in").await, push_and_take(&server, "in").await];
    let body = |pushes: [usize; 2]| {
        let push = |n| vec![json!({"queue": "out", "payload": 1}); n];
        let items = taken.iter().zip(pushes);
        let item = |(job, n): (&Value, usize)| json!({"id": job["id"], "reservation": job["reservation"], "push": push(n)});
        json!({"commit": items.map(item).collect::<Vec<_>>()})
    };
    for pushes in [[501, 500], [1001, 0]] {
        let answer = server.post("/v1/settle", body(pushes)).await;
        invalid(&answer, "/commit");
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains("must push at most 1000 jobs in all commits together"), "{detail}");
    }
    let (_, answer) = server.post("/v1/settle", body([501, 499])).await;
    let pushed = |n: usize| answer["commit"][n]["pushed"].as_array().unwrap().len();
    assert_eq!((pushed(0), pushed(1)), (501, 499));
}

pub async fn a_pop_ends_a_route(place: &Place) {
    let server = Server::start(&place.url).await;
    let id = server.push("a", json!({"payload": 1, "then": [{"queue": "b"}]})).await;
    let (_, popped) = server.post("/v1/queues/a/pop", json!({})).await;
    assert_eq!(popped["jobs"][0]["state"], "done");
    refused(&server.get(&format!("/v1/jobs/{id}")).await, 404, "unknown-job");
}

pub async fn a_job_goes_through_its_stages(place: &Place) {
    let server = Server::start(&place.url).await;
    let then = json!([{"queue": "b", "priority": 3}, {"queue": "c", "max_attempts": 2, "delay_ms": 0}]);
    let pushed = server.push("a", json!({"payload": {"n": 1.0}, "then": then})).await;
    assert_eq!(see(&server, &pushed).await["then"], then);
    let first = take(&server, "a").await;
    let (status, answer) = server.settle(&first, "commit", json!({"result": {"n": 2}})).await;
    assert_eq!((status, &answer["state"], &answer["queue"]), (200, &json!("ready"), &json!("b")), "{answer}");
    let second = take(&server, "b").await;
    assert_eq!(
        (id(&second), &second["payload"], &second["priority"]),
        (pushed.clone(), &json!({"n": 2}), &json!(3))
    );
    assert_eq!(server.settle(&first, "commit", json!({"result": {"n": 2}})).await, repeat_of(&(200, answer)));
    lost(&server.settle(&first, "rollback", json!({})).await, false);
    server.settle(&second, "commit", json!({})).await;
    let third = take(&server, "c").await;
    assert_eq!(
        (&third["payload"], &third["max_attempts"], third.get("then")),
        (&json!({"n": 2}), &json!(2), None)
    );
    let trail: Vec<_> =
        third["trail"].as_array().unwrap().iter().map(|step| (&step["queue"], &step["reason"])).collect();
    assert_eq!(trail, [(&json!("a"), &json!("committed")), (&json!("b"), &json!("committed"))]);
    assert_eq!(server.settle(&third, "commit", json!({})).await.1["state"], "done");
}

pub async fn a_route_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    let push = |then: Value| server.post("/v1/queues/a/jobs", json!({"payload": 1, "then": then}));
    for (then, pointer) in [
        (json!([{"queue": "b"}, {"queue": "-"}]), "/then/1/queue"),
        (json!([{"queue": "b", "lease_ms": 1}]), "/then/0/lease_ms"),
        (json!([{"queue": "b", "max_attempts": -1}]), "/then/0/max_attempts"),
        (
            json!([{"queue": "b", "backoff": {"kind": "fixed", "base_ms": 1, "jitter": 2}}]),
            "/then/0/backoff/jitter",
        ),
        (json!(vec![json!({"queue": "b"}); 101]), "/then"),
    ] {
        invalid(&push(then).await, pointer);
    }
    assert_eq!(push(json!(vec![json!({"queue": "b"}); 100])).await.0, 201);
}

/// A client that got no answer asks again, elsewhere, while its first call may still be on its way.
pub async fn one_commit_on_two_servers_pushes_once(place: &Place) {
    let (one, two) = (Server::start(&place.url).await, Server::start(&place.url).await);
    for _ in 0..10 {
        let taken = push_and_take(&one, "in").await;
        let body = json!({"push": [{"queue": "out", "payload": 1}, {"queue": "out", "payload": 2}]});
        let (first, second) =
            tokio::join!(one.settle(&taken, "commit", body.clone()), two.settle(&taken, "commit", body));
        let mut answers = [first, second];
        answers.sort_by_key(|(_, answer)| answer["repeated"] == true);
        let [first, second] = answers;
        assert_eq!((first.0, &second), (200, &repeat_of(&first)));
        // They stay reserved, so that the next round finds its own ones only.
        let there = two.reserve("out", json!({"count": 9, "lease_ms": 600_000})).await;
        assert_eq!(ids(&there), ids(first.1["pushed"].as_array().unwrap()));
    }
}

/// The semaphore that a pushed job needed was deleted since: a new commit is refused, and the repeat of the first one is not.
pub async fn a_commit_is_repeated_without_the_semaphore_of_its_push(place: &Place) {
    // On MongoDB the first call comes to another server than the one that has delivered the job, and gets the repeat.
    let servers = fleet(place).await;
    let (server, other) = (&servers[0], servers.last().unwrap());
    let path = "/v1/semaphores/s";
    let put = server.send(reqwest::Method::PUT, path, Some(json!({"capacity": 1}))).await;
    assert_eq!(put.0, 200, "{}", put.1);
    let long = json!({"lease_ms": 600_000, "wait_ms": 20_000});
    server.push("in", json!({"payload": 1})).await;
    let taken = server.reserve("in", long.clone()).await.remove(0);
    let body = json!({"push": [{"queue": "out", "payload": 1, "semaphores": ["s"]}]});
    let first = other.settle(&taken, "commit", body.clone()).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let child = server.reserve("out", long.clone()).await.remove(0);
    assert_eq!(id(&child), id(&first.1["pushed"][0]));
    assert_eq!(server.settle(&child, "commit", json!({})).await.0, 200);
    let deleted = server.send(reqwest::Method::DELETE, path, None).await;
    assert_eq!(deleted.0, 200, "{}", deleted.1);
    assert_eq!(server.settle(&taken, "commit", body.clone()).await, repeat_of(&first));
    let items = json!([{"id": taken["id"], "reservation": taken["reservation"], "push": body["push"]}]);
    let (_, answer) = server.post("/v1/settle", json!({"commit": items})).await;
    assert_eq!(answer["commit"][0]["pushed"], first.1["pushed"], "{answer}");
    server.push("in", json!({"payload": 2})).await;
    let held = server.reserve("in", long).await.remove(0);
    invalid(&server.settle(&held, "commit", body.clone()).await, "/push/0/semaphores/0");
    assert_eq!(see(server, &id(&held)).await["state"], "reserved");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    invalid(&server.settle(&held, "commit", body).await, "/push/0/semaphores/0");
}

/// There are as many queues by now as there may be, and what the first calls named is none of them: their repeats are not refused.
pub async fn a_settle_is_repeated_where_no_queue_may_come(place: &Place) {
    let mut server = Server::start(&place.url).await;
    for n in 0..3 {
        server.push("in", json!({ "payload": n })).await;
    }
    let taken = server.reserve("in", json!({"count": 3, "lease_ms": 600_000})).await;
    let (push, to) = (json!({"push": [{"queue": "out", "payload": 1}]}), json!({"queue": "moved"}));
    let committed = server.settle(&taken[0], "commit", push.clone()).await;
    let moved = server.settle(&taken[1], "move", to.clone()).await;
    assert_eq!((committed.0, moved.0), (200, 200), "{} {}", committed.1, moved.1);
    for queue in ["out", "moved"] {
        let job = server.reserve(queue, json!({"lease_ms": 600_000})).await.remove(0);
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
        server.push(&format!("beside-{queue}"), json!({"payload": 1})).await;
    }
    assert!(server.terminate().await.success());
    // A server that has just started knows no names, and remembers no outcomes.
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__QUEUES", "3")]).await;
    assert_eq!(server.settle(&taken[0], "commit", push.clone()).await, repeat_of(&committed));
    assert_eq!(server.settle(&taken[1], "move", to.clone()).await, repeat_of(&moved));
    refused(&server.settle(&taken[2], "commit", push).await, 429, "limit-reached");
    refused(&server.settle(&taken[2], "move", to).await, 429, "limit-reached");
    assert_eq!(server.settle(&taken[2], "commit", json!({})).await.0, 200);
}

pub async fn what_is_replaced_beside_something_else_says_so(place: &Place) {
    let server = Server::start(&place.url).await;
    let replaces = |payload: u8| json!({"queue": "out", "payload": payload, "key": "k", "key_conflict": "replace", "delay_ms": 600_000});
    let first = server.post("/v1/jobs", json!({"jobs": [replaces(1)]})).await;
    assert_eq!(first.0, 200, "{}", first.1);
    let taken = push_and_take(&server, "in").await;
    let push = json!({"push": [replaces(2), {"queue": "out", "payload": 0}]});
    let (status, done) = server.settle(&taken, "commit", push.clone()).await;
    let pushed = &done["pushed"];
    assert_eq!(
        (status, &pushed[0]["deduplicated"], &pushed[0]["replaced"]),
        (200, &json!(true), &json!(true)),
        "{done}"
    );
    assert_eq!((&pushed[1]["deduplicated"], &pushed[1]["replaced"]), (&json!(false), &Value::Null), "{done}");
    let (_, repeated) = server.settle(&taken, "commit", push).await;
    assert_eq!((&repeated["repeated"], &repeated["pushed"]), (&json!(true), pushed), "{repeated}");
    let jobs = json!({"jobs": [replaces(3), {"queue": "out", "payload": 0}]});
    let (status, batch) = server.post("/v1/batches", jobs).await;
    assert_eq!(
        (status, &batch["jobs"][0]["replaced"], &batch["jobs"][1]["replaced"]),
        (201, &json!(true), &Value::Null),
        "{batch}"
    );
}

/// Their transactions are shared: one after the other they would run into the deadline of the call.
pub async fn many_commits_push_jobs_with_keys(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..300).map(|n| json!({"payload": n})).collect();
    assert_eq!(server.post("/v1/queues/in/jobs/batch", json!({"jobs": jobs})).await.0, 200);
    // One of the keys is taken by another job: of those that share a transaction with it, all others are committed.
    server.push("out", json!({"payload": "another", "key": "7"})).await;
    let held = server.reserve("in", json!({"count": 300, "lease_ms": 600_000})).await;
    assert_eq!(held.len(), 300);
    let commit = |(n, job): (usize, &Value)| {
        json!({"id": job["id"], "reservation": job["reservation"],
            "push": [{"queue": "out", "payload": n, "key": n.to_string()}]})
    };
    let commits: Vec<Value> = held.iter().enumerate().map(commit).collect();
    let database = profiled(place).await;
    let mut statuses = vec![json!(503)];
    for _ in 0..20 {
        if !statuses.contains(&json!(503)) {
            break;
        }
        // What a busy store had no time for is settled by a repeat.
        let (_, answer) = server.post("/v1/settle", json!({"commit": commits})).await;
        let commits = answer["commit"].as_array().unwrap();
        statuses = commits.iter().map(|one| one["status"].clone()).collect();
    }
    for (n, status) in statuses.iter().enumerate() {
        assert_eq!(*status, if n == 7 { 409 } else { 200 }, "{n}");
    }
    let count = async |queue: &str| {
        let (_, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit=1000")).await;
        page["jobs"].as_array().unwrap().len()
    };
    assert_eq!((count("out").await, count("in").await), (300, 1), "the refused one is still held");
    if let Some(database) = database {
        let receipts = doc! { "op": "insert", "ns": format!("{}.receipts", database.name()) };
        let profile = database.collection::<Document>("system.profile");
        let transactions = profile.count_documents(receipts).await.unwrap();
        assert!((3..=60).contains(&transactions), "{transactions} transactions for 300 commits");
    }
}

/// Returns the database, which keeps a record of its commands from now on.
async fn profiled(place: &Place) -> Option<mongodb::Database> {
    if !place.url.starts_with("mongodb") {
        return None;
    }
    let client = mongodb::Client::with_uri_str(&place.url).await.unwrap();
    let database = client.default_database().unwrap();
    // As it is made by MongoDB it has room for 1 MB only, beyond which it forgets.
    let room = 64 * 1024 * 1024;
    let record = doc! { "create": "system.profile", "capped": true, "size": room };
    database.run_command(record).await.unwrap();
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    Some(database)
}
