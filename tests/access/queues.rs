//! Keys for some queues: what they may reach, and where what they say may lead.

use super::support::*;

pub async fn a_push_stays_in_the_queues_of_its_key(place: &Place) {
    let server = locked(place).await;
    for name in ["mail.limit", "others"] {
        ok(&put(&server, ADMIN, &format!("/v1/semaphores/{name}"), json!({"capacity": 1})).await);
    }
    let key = key_for(&server, &["push"], &["mail.*", "reports"]).await;
    push(&server, &key, "mail.out", json!({"payload": 1, "semaphores": ["mail.limit"]})).await;
    push(&server, &key, "reports", json!({"payload": 1, "then": [{"queue": "mail.out"}]})).await;
    forbidden(&post(&server, &key, "/v1/queues/mailbox/jobs", json!({"payload": 1})).await);
    for bad in [
        json!({"payload": 1, "then": [{"queue": "mail.out"}, {"queue": "other"}]}),
        json!({"payload": 1, "semaphores": ["others"]}),
    ] {
        forbidden(&post(&server, &key, "/v1/queues/mail.out/jobs", bad.clone()).await);
        let several = json!({"jobs": [{"payload": 2}, bad]});
        let (status, answer) = post(&server, &key, "/v1/queues/mail.out/jobs/batch", several).await;
        assert_eq!((status, &answer["results"][0]["status"]), (200, &json!(201)), "{answer}");
        assert_eq!(answer["results"][1]["problem"]["code"], "forbidden", "{answer}");
    }
    // The job that holds a key is not shown to a client that may not read.
    let first = push(&server, &key, "mail.out", json!({"payload": 1, "key": "k"})).await;
    let again = json!({"payload": 2, "key": "k"});
    let conflict = post(&server, &key, "/v1/queues/mail.out/jobs", again.clone()).await;
    refused(&conflict, 409, "key-conflict");
    assert!(!conflict.1.to_string().contains(&first), "{}", conflict.1);
    let conflict = post(&server, ADMIN, "/v1/queues/mail.out/jobs", again).await;
    assert_eq!(conflict.1["job_id"], json!(first));
}

pub async fn settles_lead_to_the_queues_of_the_key_only(place: &Place) {
    let server = locked(place).await;
    let consumer = key_for(&server, &["consume"], &["mail.*"]).await;
    let both = key_for(&server, &["consume", "push"], &["mail.*"]).await;
    for n in 0..3 {
        push(&server, ADMIN, "mail.in", json!({"payload": n})).await;
    }
    let jobs = reserve(&server, &both, "mail.in", 3).await;
    let lead = |queue: &str| json!({"push": [{"queue": queue, "payload": 1}]});
    forbidden(&settle(&server, &consumer, &jobs[0], "commit", lead("mail.out")).await);
    forbidden(&settle(&server, &both, &jobs[0], "commit", lead("other")).await);
    let then = json!({"push": [{"queue": "mail.out", "payload": 1, "then": [{"queue": "other"}]}]});
    forbidden(&settle(&server, &both, &jobs[0], "commit", then).await);
    ok(&settle(&server, &both, &jobs[0], "commit", lead("mail.out")).await);
    forbidden(&settle(&server, &consumer, &jobs[1], "move", json!({"queue": "mail.out"})).await);
    forbidden(&settle(&server, &both, &jobs[1], "move", json!({"queue": "other"})).await);
    ok(&settle(&server, &both, &jobs[1], "move", json!({"queue": "mail.out"})).await);
    let named = |job: &Value, queue: &str| json!({"id": job["id"], "reservation": job["reservation"], "queue": queue});
    let many = json!({"move": [named(&jobs[2], "other")]});
    let (status, answer) = post(&server, &both, "/v1/settle", many).await;
    assert_eq!((status, &answer["move"][0]["problem"]["code"]), (200, &json!("forbidden")), "{answer}");
    let (status, answer) =
        post(&server, &both, "/v1/settle", json!({"move": [named(&jobs[2], "mail.x")]})).await;
    assert_eq!((status, &answer["move"][0]["status"]), (200, &json!(200)), "{answer}");
    assert_eq!(get(&server, ADMIN, "/v1/queues/other/jobs").await.1["jobs"], json!([]));
}

/// A key that may not take what is next is refused before anything happens.
pub async fn the_next_jobs_are_of_the_queues_of_the_key(place: &Place) {
    let server = locked(place).await;
    let (mail, other) = (&["mail.*"], &["other"]);
    let (mine, theirs) =
        (key_for(&server, &["consume"], mail).await, key_for(&server, &["consume"], other).await);
    for n in 0..4 {
        push(&server, ADMIN, "mail.in", json!({"payload": n})).await;
    }
    push(&server, ADMIN, "other", json!({"payload": 1})).await;
    let job = reserve(&server, &mine, "mail.in", 1).await.remove(0);
    let item = json!({"id": job["id"], "reservation": job["reservation"]});
    for next in
        [json!({"queues": ["other"]}), json!({"queues": ["mail.in", "other"]}), json!({"worker": "w"})]
    {
        let body = json!({ "next": next });
        forbidden(&settle(&server, &mine, &job, "commit", body.clone()).await);
        forbidden(&settle(&server, &mine, &job, "rollback", body).await);
        forbidden(&post(&server, &mine, "/v1/settle", json!({"commit": [item], "next": next})).await);
    }
    // Who was handed the token may settle the job, and not take from its queue.
    for call in ["commit", "rollback"] {
        forbidden(&settle(&server, &theirs, &job, call, json!({"next": {}})).await);
    }
    forbidden(&post(&server, &theirs, "/v1/settle", json!({"commit": [item], "next": {}})).await);
    assert_eq!(
        get(&server, ADMIN, &format!("/v1/jobs/{}", job["id"].as_str().unwrap())).await.1["state"],
        "reserved"
    );
    let (status, answer) = settle(
        &server,
        &theirs,
        &job,
        "rollback",
        json!({"delay_ms": 3_600_000,
        "next": {"queues": ["*"], "count": 9}}),
    )
    .await;
    assert_eq!((status, &answer["next"]["jobs"][0]["queue"]), (200, &json!("other")), "{answer}");
    assert_eq!(answer["next"]["jobs"].as_array().unwrap().len(), 1, "{answer}");
    // Its repeat by another key is shown nothing that this one does not reach.
    let (status, answer) = settle(&server, &mine, &job, "rollback", json!({"next": {}})).await;
    assert_eq!((status, &answer["next"]), (200, &json!({"jobs": []})), "{answer}");
    let job = reserve(&server, &mine, "mail.in", 1).await.remove(0);
    let (status, answer) = settle(&server, &mine, &job, "commit", json!({"next": {"count": 9}})).await;
    assert_eq!((status, answer["next"]["jobs"].as_array().unwrap().len()), (200, 2), "{answer}");
}

/// Only jobs that are held may forbid a `next`: wherever the others are, a repeat gets its response, and a lost token no queue.
pub async fn a_next_is_judged_by_the_jobs_that_are_held(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["consume"], &["work"]).await;
    let take = async |count: usize, lease_ms: u64| {
        let ask = json!({"count": count, "lease_ms": lease_ms});
        let (status, answer) = post(&server, &key, "/v1/queues/work/reserve", ask).await;
        let jobs = answer["jobs"].as_array().unwrap().clone();
        assert_eq!((status, jobs.len()), (200, count), "{answer}");
        jobs
    };
    let next = || json!({"next": {"lease_ms": 600_000}});
    push(&server, ADMIN, "work", json!({"payload": 1, "then": [{"queue": "stage2"}]})).await;
    push(&server, ADMIN, "work", json!({"payload": 2})).await;
    let gone_on = take(1, 600_000).await.remove(0);
    let first = settle(&server, &key, &gone_on, "commit", next()).await.1;
    let again = settle(&server, &key, &gone_on, "commit", next()).await;
    assert_eq!((again.0, &again.1["repeated"]), (200, &json!(true)), "{}", again.1);
    let taken = &again.1["next"]["jobs"][0];
    assert_eq!((&taken["payload"], &taken["id"]), (&json!(2), &first["next"]["jobs"][0]["id"]), "{first}");
    ok(&settle(&server, &key, taken, "commit", json!({})).await);

    let settings = json!({"dead_letter": "ops.dead", "max_attempts": 1});
    ok(&put(&server, ADMIN, "/v1/queues/work", settings).await);
    let dies = push(&server, ADMIN, "work", json!({"payload": 3})).await;
    let lost = take(1, 100).await.remove(0);
    let path = format!("/v1/jobs/{dies}");
    until("it has died", || async { get(&server, ADMIN, &path).await.1["queue"] == "ops.dead" }).await;
    let late = settle(&server, &key, &lost, "commit", next()).await;
    refused(&late, 409, "reservation-lost");
    for n in 4..6 {
        push(&server, ADMIN, "work", json!({"payload": n})).await;
    }
    let held = take(2, 600_000).await;
    let item = |job: &Value| json!({"id": job["id"], "reservation": job["reservation"]});
    let body = json!({"commit": [item(&held[0]), item(&lost), item(&held[1])], "next": {"count": 9}});
    let (status, many) = post(&server, &key, "/v1/settle", body).await;
    let statuses: Vec<&Value> = many["commit"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!((status, statuses), (200, vec![&json!(200), &json!(409), &json!(200)]), "{many}");
    assert_eq!(many["next"], json!({"jobs": []}), "{many}");
    assert!(!format!("{} {many}", late.1).contains("ops.dead"), "{} {many}", late.1);
    assert_eq!(get(&server, ADMIN, &path).await.1["state"], "ready", "it was not taken");
}

pub async fn patterns_and_lists_are_the_keys(place: &Place) {
    let server = locked(place).await;
    for queue in ["a.one", "a.two", "b"] {
        push(&server, ADMIN, queue, json!({"payload": queue})).await;
    }
    let key = key_for(&server, &["consume", "read"], &["a.*"]).await;
    let (status, list) = get(&server, &key, "/v1/queues").await;
    let names: Vec<&Value> = list["queues"].as_array().unwrap().iter().map(|queue| &queue["queue"]).collect();
    assert_eq!((status, names), (200, vec![&json!("a.one"), &json!("a.two")]));
    for queues in [json!(["b"]), json!(["b.*"]), json!(["a.one", "b"])] {
        forbidden(&post(&server, &key, "/v1/reserve", json!({"queues": queues})).await);
    }
    let (status, answer) = post(&server, &key, "/v1/reserve", json!({"queues": ["*"], "count": 9})).await;
    let queues: Vec<&Value> = answer["jobs"].as_array().unwrap().iter().map(|job| &job["queue"]).collect();
    assert_eq!((status, queues), (200, vec![&json!("a.one"), &json!("a.two")]), "{answer}");
    let series = ["/v1/series?metric=pushed", "/v1/series?metric=pushed&queue=b"];
    assert_eq!(get(&server, &key, "/v1/series?metric=pushed&queue=a.one").await.0, 200);
    let whole = ["/v1/queues/b", "/v1/queues/b/jobs", "/v1/queues/b/stats", "/stats", "/metrics", "/v1/keys"];
    for path in whole.into_iter().chain(series) {
        forbidden(&get(&server, &key, path).await);
    }
}

pub async fn a_job_elsewhere_is_unknown(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["read", "operate"], &["a"]).await;
    let mine = push(&server, ADMIN, "a", json!({"payload": 1})).await;
    let theirs = push(&server, ADMIN, "b", json!({"payload": 1})).await;
    for (id, there) in [(mine, true), (theirs.clone(), false)] {
        let path = format!("/v1/jobs/{id}");
        let change = Some(json!({"priority": 3}));
        let answers = [
            get(&server, &key, &path).await,
            call_with(&server, Some(&key), Method::PATCH, &path, &[], change).await,
            delete(&server, &key, &path).await,
        ];
        for answer in answers {
            match there {
                true => ok(&answer),
                false => refused(&answer, 404, "unknown-job"),
            }
        }
    }
    assert_eq!(get(&server, ADMIN, &format!("/v1/jobs/{theirs}")).await.1["priority"], 0);
}

pub async fn settings_and_schedules_name_the_queues_of_the_key(place: &Place) {
    let server = locked(place).await;
    let operator = key_for(&server, &["operate", "push", "read"], &["a.*"]).await;
    let idle = key_for(&server, &["operate"], &["a.*"]).await;
    let graves = |queue: &str| json!({"dead_letter": queue});
    forbidden(&put(&server, &operator, "/v1/queues/a.x", graves("b")).await);
    forbidden(&put(&server, &idle, "/v1/queues/a.x", graves("a.dead")).await);
    ok(&put(&server, &operator, "/v1/queues/a.x", graves("a.dead")).await);
    let patch = |body| call_with(&server, Some(&operator), Method::PATCH, "/v1/queues/a.x", &[], Some(body));
    forbidden(&patch(graves("b")).await);
    ok(&patch(json!({"paused": true})).await);

    let rule = |queue: &str| json!({"cron": "0 0 1 1 *", "queue": queue, "job": {"payload": 1}});
    ok(&put(&server, ADMIN, "/v1/schedules/theirs", rule("b")).await);
    forbidden(&put(&server, &operator, "/v1/schedules/mine", rule("b")).await);
    forbidden(&put(&server, &idle, "/v1/schedules/mine", rule("a.x")).await);
    ok(&put(&server, &operator, "/v1/schedules/mine", rule("a.x")).await);
    ok(&put(&server, &operator, "/v1/schedules/mine", rule("a.y")).await);
    let mut leading = rule("a.x");
    leading["job"]["then"] = json!([{"queue": "b"}]);
    forbidden(&put(&server, &operator, "/v1/schedules/mine", leading).await);
    forbidden(&put(&server, &operator, "/v1/schedules/theirs", rule("a.x")).await);
    forbidden(&post(&server, &idle, "/v1/schedules/mine/run", json!({})).await);
    ok(&post(&server, &operator, "/v1/schedules/mine/run", json!({})).await);
    for (name, there) in [("theirs", false), ("mine", true)] {
        let path = format!("/v1/schedules/{name}");
        let answers = [
            get(&server, &operator, &path).await,
            post(&server, &operator, &format!("{path}/pause"), json!({})).await,
            post(&server, &operator, &format!("{path}/resume"), json!({})).await,
            post(&server, &operator, &format!("{path}/run"), json!({})).await,
            delete(&server, &operator, &path).await,
        ];
        for answer in answers {
            match there {
                true => ok(&answer),
                false => refused(&answer, 404, "unknown-schedule"),
            }
        }
    }
    assert_eq!(get(&server, &operator, "/v1/schedules").await.1["schedules"], json!([]));
    assert_eq!(get(&server, ADMIN, "/v1/schedules").await.1["schedules"][0]["name"], "theirs");
}

pub async fn batches_belong_to_their_key(place: &Place) {
    let server = locked(place).await;
    let scopes = ["push", "read", "operate"];
    let (mine, theirs) = (key_for(&server, &scopes, &["a"]).await, key_for(&server, &scopes, &["a"]).await);
    let job = |queue: &str| json!([{"queue": queue, "payload": 1}]);
    forbidden(&post(&server, &mine, "/v1/batches", json!({"jobs": job("b")})).await);
    let callback = json!({"jobs": job("a"), "on_finished": {"queue": "b", "payload": 1}});
    forbidden(&post(&server, &mine, "/v1/batches", callback).await);
    let (status, batch) =
        post(&server, &mine, "/v1/batches", json!({"jobs": job("a"), "sealed": false})).await;
    assert_eq!(status, 201, "{batch}");
    let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
    for (key, there) in [(theirs.as_str(), false), (mine.as_str(), true), (ADMIN, true)] {
        let mut answers = vec![
            get(&server, key, &path).await,
            get(&server, key, &format!("{path}/results")).await,
            post(&server, key, &format!("{path}/jobs"), json!({"jobs": job("a")})).await,
        ];
        if key != mine {
            answers.push(post(&server, key, &format!("{path}/seal"), json!({})).await);
            answers.push(delete(&server, key, &path).await);
        }
        for answer in answers {
            match there {
                true => ok(&answer),
                false => refused(&answer, 404, "unknown-batch"),
            }
        }
    }
}

pub async fn workers_and_semaphores_are_matched_by_name(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["consume", "operate", "read"], &["a.*"]).await;
    let beat = |name: &str| format!("/v1/workers/{name}/heartbeat");
    forbidden(&post(&server, &key, &beat("alice"), json!({})).await);
    ok(&post(&server, &key, &beat("a.w1"), json!({})).await);
    ok(&post(&server, ADMIN, &beat("alice"), json!({})).await);
    forbidden(&post(&server, &key, "/v1/queues/a.x/reserve", json!({"worker": "alice"})).await);
    ok(&post(&server, &key, "/v1/queues/a.x/reserve", json!({"worker": "a.w1"})).await);
    forbidden(&delete(&server, &key, "/v1/workers/alice").await);
    forbidden(&get(&server, &key, "/v1/workers/alice").await);
    let list = get(&server, &key, "/v1/workers").await.1;
    assert_eq!(list["workers"].as_array().unwrap().len(), 1, "{list}");
    ok(&delete(&server, &key, "/v1/workers/a.w1").await);

    forbidden(&put(&server, &key, "/v1/semaphores/s", json!({"capacity": 1})).await);
    for (by, name) in [(key.as_str(), "a.s"), (ADMIN, "s")] {
        ok(&put(&server, by, &format!("/v1/semaphores/{name}"), json!({"capacity": 1})).await);
    }
    let list = get(&server, &key, "/v1/semaphores").await.1;
    assert_eq!(list["semaphores"].as_array().unwrap().len(), 1, "{list}");
    forbidden(&delete(&server, &key, "/v1/semaphores/s").await);
    ok(&delete(&server, &key, "/v1/semaphores/a.s").await);
}

pub async fn a_redrive_returns_jobs_where_the_key_may_push(place: &Place) {
    let server = locked(place).await;
    let operator = key_for(&server, &["operate", "push"], &["graves", "mine"]).await;
    let idle = key_for(&server, &["operate"], &["graves"]).await;
    let settings = json!({"dead_letter": "graves", "max_attempts": 1});
    for queue in ["mine", "theirs"] {
        ok(&put(&server, ADMIN, &format!("/v1/queues/{queue}"), settings.clone()).await);
        push(&server, ADMIN, queue, json!({"payload": queue})).await;
        let job = reserve(&server, ADMIN, queue, 1).await.remove(0);
        ok(&settle(&server, ADMIN, &job, "rollback", json!({})).await);
    }
    for call in ["redrive", "replay"] {
        forbidden(&post(&server, &idle, &format!("/v1/queues/graves/{call}"), json!({})).await);
    }
    let (status, answer) = post(&server, &operator, "/v1/queues/graves/redrive", json!({})).await;
    assert_eq!((status, &answer["affected"]), (200, &json!(1)), "{answer}");
    let count = async |queue: &str| {
        let list = get(&server, ADMIN, &format!("/v1/queues/{queue}/jobs")).await.1;
        list["jobs"].as_array().unwrap().len()
    };
    assert_eq!((count("mine").await, count("theirs").await, count("graves").await), (1, 0, 1));
}

pub async fn a_schedule_is_resumed_by_who_may_push(place: &Place) {
    let server = locked(place).await;
    let idle = key_for(&server, &["operate"], &["a"]).await;
    let pusher = key_for(&server, &["operate", "push"], &["a"]).await;
    let mut rule = json!({"cron": "0 0 1 1 *", "queue": "a", "job": {"payload": 1}});
    ok(&put(&server, ADMIN, "/v1/schedules/s", rule.clone()).await);
    ok(&post(&server, &idle, "/v1/schedules/s/pause", json!({})).await);
    forbidden(&post(&server, &idle, "/v1/schedules/s/resume", json!({})).await);
    ok(&post(&server, &pusher, "/v1/schedules/s/resume", json!({})).await);
    rule["job"]["then"] = json!([{"queue": "b"}]);
    ok(&put(&server, ADMIN, "/v1/schedules/s", rule).await);
    ok(&post(&server, &pusher, "/v1/schedules/s/pause", json!({})).await);
    forbidden(&post(&server, &pusher, "/v1/schedules/s/resume", json!({})).await);
}

/// Of two who create it at once: the rule of a queue that is not the key's is never replaced.
pub async fn a_schedule_that_appears_meanwhile_is_not_replaced(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["operate", "push", "read"], &["mine"]).await;
    let rule = |queue: &str| json!({"cron": "0 0 1 1 *", "queue": queue, "job": {"payload": 1}});
    for n in 0..300 {
        let path = format!("/v1/schedules/s{n}");
        let (own, others) =
            tokio::join!(put(&server, &key, &path, rule("mine")), put(&server, ADMIN, &path, rule("theirs")));
        ok(&others);
        assert!([200, 403, 412].contains(&own.0), "{}", own.1);
        let stored = get(&server, ADMIN, &path).await.1;
        assert_eq!(stored["queue"], "theirs", "round {n}: {}", own.0);
    }
}

pub async fn a_replay_pushes_what_the_key_may_push(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["operate", "push"], &["a", "a.s"]).await;
    ok(&put(&server, ADMIN, "/v1/queues/a", json!({"retain_done_ms": 600_000})).await);
    for name in ["a.s", "theirs"] {
        ok(&put(&server, ADMIN, &format!("/v1/semaphores/{name}"), json!({"capacity": 9})).await);
        push(&server, ADMIN, "a", json!({"payload": name, "semaphores": [name]})).await;
    }
    for job in reserve(&server, ADMIN, "a", 2).await {
        ok(&settle(&server, ADMIN, &job, "commit", json!({})).await);
    }
    let replay = async |key: &str| post(&server, key, "/v1/queues/a/replay", json!({})).await;
    assert_eq!(replay(&key).await, (200, json!({"affected": 1})));
    let copy = reserve(&server, ADMIN, "a", 1).await.remove(0);
    assert_eq!(copy["semaphores"], json!(["a.s"]));
    assert_eq!(replay(ADMIN).await, (200, json!({"affected": 2})));
}

pub async fn a_push_to_several_queues_needs_each_of_them(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["push"], &["a.*"]).await;
    let jobs = |second: &str| json!([{"queue": "a.x", "payload": 1}, {"queue": second, "payload": 2}]);
    let refused = post(&server, &key, "/v1/jobs", json!({"jobs": jobs("b")})).await;
    forbidden(&refused);
    assert_eq!(refused.1["pointer"], "/jobs/1", "{}", refused.1);
    assert_eq!(get(&server, ADMIN, "/v1/queues/a.x/jobs").await.1["jobs"], json!([]));
    let (status, each) = post(&server, &key, "/v1/jobs", json!({"jobs": jobs("b"), "atomic": false})).await;
    assert_eq!(
        (status, &each["results"][0]["status"], &each["results"][1]["status"]),
        (200, &json!(201), &json!(403))
    );
    ok(&post(&server, &key, "/v1/jobs", json!({"jobs": jobs("a.y")})).await);
}

pub async fn one_job_elsewhere_is_not_touched(place: &Place) {
    let server = locked(place).await;
    let key = key_for(&server, &["read", "operate", "push"], &["a"]).await;
    let theirs = push(&server, ADMIN, "b", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    for verb in ["retry", "redrive", "replay"] {
        let answer = post(&server, &key, &format!("/v1/jobs/{theirs}/{verb}"), json!({})).await;
        super::support::refused(&answer, 404, "unknown-job");
    }
    let answer = get(&server, &key, &format!("/v1/jobs/{theirs}?wait_ms=60000")).await;
    super::support::refused(&answer, 404, "unknown-job");
    assert_eq!(get(&server, ADMIN, &format!("/v1/jobs/{theirs}")).await.1["state"], "scheduled");
    // Queues of others are not deleted by a prefix that matches them.
    let operator = key_for(&server, &["operate"], &["b.mine*"]).await;
    for queue in ["b.mine", "b.theirs"] {
        ok(&put(&server, ADMIN, &format!("/v1/queues/{queue}"), json!({"lease_ms": 1000})).await);
    }
    let (status, swept) = delete(&server, &operator, "/v1/queues?prefix=b&confirm=b").await;
    assert_eq!((status, &swept["deleted"]), (200, &json!(1)), "{swept}");
    let (_, left) = get(&server, ADMIN, "/v1/queues?prefix=b.").await;
    assert_eq!(left["queues"].as_array().unwrap().len(), 1);
    // Batches of others are not listed.
    let pusher = key_for(&server, &["push", "read"], &["a"]).await;
    ok(&post(&server, ADMIN, "/v1/batches", json!({"sealed": false})).await);
    assert_eq!(get(&server, &pusher, "/v1/batches").await.1, json!({"batches": []}));
    ok(&post(&server, &pusher, "/v1/batches", json!({"sealed": false})).await);
    assert_eq!(get(&server, &pusher, "/v1/batches").await.1["batches"].as_array().unwrap().len(), 1);
}

/// Returns whether a key is shown one group and no more: where the store is slow a page ends before all are looked at.
async fn is_shown_one_group(server: &Server, key: &str) -> bool {
    let (_, page) = get(server, key, "/v1/groups").await;
    assert_eq!(page["groups"].as_array().unwrap().len(), 1, "{page}");
    page["complete"] == true
}

pub async fn a_search_stays_in_the_queues_of_its_key(place: &Place) {
    let server = locked(place).await;
    for queue in ["mail.in", "mail.out", "mailer", "other", "reports"] {
        for n in 0..3 {
            push(
                &server,
                ADMIN,
                queue,
                json!({"payload": {"n": n}, "max_attempts": 1, "key": format!("k{n}")}),
            )
            .await;
        }
        let job = reserve(&server, ADMIN, queue, 1).await.remove(0);
        ok(&settle(&server, ADMIN, &job, "rollback", json!({"error": format!("of {queue}")})).await);
    }
    let key = key_for(&server, &["read"], &["mail.*", "reports"]).await;
    for (query, found, scanned) in [
        ("", 9, 9),
        ("payload.n=1", 3, 9),
        ("payload.n=7", 0, 9),
        ("state=dead", 3, 3),
        ("key=k1", 3, 3),
        ("queue_prefix=", 9, 9),
        ("queue_prefix=mail", 6, 6),
        ("queue_prefix=mail.o&payload.n=1", 1, 3),
        ("queue=reports", 3, 3),
        ("error=of+other", 0, 9),
    ] {
        let (status, page) = get(&server, &key, &format!("/v1/jobs?{query}")).await;
        assert_eq!(status, 200, "{page}");
        let jobs = page["jobs"].as_array().unwrap();
        assert!(jobs.iter().all(|job| !["mailer", "other"].contains(&job["queue"].as_str().unwrap())));
        assert_eq!((jobs.len(), &page["scanned"]), (found, &json!(scanned)), "{query}: {page}");
    }
    for query in ["queue=other", "queue_prefix=other", "queue_prefix=mailer"] {
        forbidden(&get(&server, &key, &format!("/v1/jobs?{query}")).await);
        forbidden(&get(&server, &key, &format!("/v1/dead?group_by=error&{query}")).await);
    }
    let (_, dead) = get(&server, &key, "/v1/dead?group_by=error").await;
    assert_eq!((&dead["scanned"], dead["groups"].as_array().unwrap().len()), (&json!(3), 3), "{dead}");
    let hidden = push(&server, ADMIN, "other", json!({"payload": 1})).await;
    refused(&get(&server, &key, &format!("/v1/jobs/{hidden}/payload")).await, 404, "unknown-job");
    let taken = json!({"count": 1, "worker": "mail.w", "lease_ms": 600_000});
    for queue in ["other", "mail.in"] {
        ok(&post(&server, ADMIN, &format!("/v1/queues/{queue}/reserve"), taken.clone()).await);
    }
    let (_, page) = get(&server, &key, "/v1/workers/mail.w/jobs").await;
    assert_eq!((page["jobs"].as_array().unwrap().len(), &page["scanned"]), (1, &json!(1)), "{page}");
    forbidden(&get(&server, &key, "/v1/workers/w/jobs").await);
    for queue in ["other", "mail.in", "mailer"] {
        push(&server, ADMIN, queue, json!({"payload": 1, "group": "g"})).await;
    }
    let (_, page) = get(&server, &key, "/v1/groups?limit=1").await;
    assert_eq!((&page["groups"][0]["queue"], &page["scanned"]), (&json!("mail.in"), &json!(1)), "{page}");
    until("all groups are looked at", || is_shown_one_group(&server, &key)).await;
    forbidden(&get(&server, &key, "/v1/groups?queue=other").await);
    forbidden(&get(&server, &key, "/v1/servers").await);
}
