//! Jobs that another program spoiled: each concerns itself only, and can be mended over HTTP.

use mongodb::bson::{Bson, DateTime, Document, doc};
use reqwest::Method;
use serde_json::{Value, json};

use super::spoiled::{database, execute, put, rule};
use crate::common::server::{Place, Server, until};

/// Spoils a field of these jobs that nothing looks for them by.
pub(super) async fn spoil(place: &Place, ids: &[&str]) {
    if place.url.starts_with("sqlite:") {
        let ids: Vec<String> = ids.iter().map(|id| format!("'{id}'")).collect();
        return execute(place, &format!("UPDATE jobs SET backoff = '{{' WHERE id IN ({})", ids.join(", ")));
    }
    let jobs = database(place).await.collection::<Document>("jobs");
    let update = jobs.update_many(doc! { "_id": { "$in": ids } }, doc! { "$set": { "backoff": 7 } });
    let spoiled = update.bypass_document_validation(true).await.unwrap().matched_count;
    assert_eq!(spoiled, ids.len() as u64);
}

/// Lets a time of a job be over, `reserved_until` or `expires_at`, while no server runs: however long that takes, none is over before.
async fn run_out(place: &Place, field: &str, id: &str) {
    if place.url.starts_with("sqlite:") {
        return execute(place, &format!("UPDATE jobs SET {field} = 1 WHERE id = '{id}'"));
    }
    let jobs = database(place).await.collection::<Document>("jobs");
    let past = doc! { "$set": { field: DateTime::from_millis(1_000_000_000_000) } };
    let update = jobs.update_one(doc! { "_id": id }, past).bypass_document_validation(true).await;
    assert_eq!(update.unwrap().modified_count, 1);
}

async fn unreadable(server: &Server, path: &str) -> Vec<String> {
    let (status, page) = server.get(path).await;
    assert_eq!(status, 200, "{page}");
    let listed = page["unreadable"].as_array().into_iter().flatten();
    assert!(listed.clone().all(|job| job["detail"].as_str().unwrap().contains("backoff")), "{page}");
    listed.map(|job| job["id"].as_str().unwrap().to_owned()).collect()
}

/// Another push of the same call is stored all the same.
async fn a_spoiled_job_is_not_replaced(server: &Server, keyed: &str) {
    let replaces = |payload: u8| json!({"payload": payload, "key": "k", "key_conflict": "replace"});
    let jobs = json!({"jobs": [replaces(1), replaces(2), {"payload": 3, "key": "other"}]});
    let (_, many) = server.post("/v1/queues/keyed/jobs/batch", jobs).await;
    let statuses: Vec<&Value> =
        many["results"].as_array().unwrap().iter().map(|result| &result["status"]).collect();
    assert_eq!(statuses, [200, 409, 201], "{many}");
    assert_eq!((&many["results"][0]["id"], &many["results"][0]["replaced"]), (&json!(keyed), &Value::Null));
}

/// Each of these spoiled jobs is shown as dead, and is removed.
async fn are_removed(server: &Server, ids: &[&String]) {
    for id in ids {
        let path = format!("/v1/jobs/{id}");
        let (status, shown) = server.get(&path).await;
        assert_eq!((status, &shown["state"]), (200, &json!("dead")), "{shown}");
        assert!(shown["unreadable"].as_str().unwrap().contains("backoff"), "{shown}");
        assert_eq!(server.send(Method::DELETE, &path, None).await.0, 200);
        assert_eq!(server.get(&path).await.0, 404);
    }
}

/// Jobs that have been spoiled where they wait, are held, are next in a group, or have a key.
pub async fn a_spoiled_job_concerns_itself_only(place: &Place) {
    let mut server = Server::start(&place.url).await;
    put(&server, "/v1/semaphores/s", json!({"capacity": 1})).await;
    let waiting = server.push("work", json!({"payload": 1, "priority": 1, "semaphores": ["s"]})).await;
    let good = server.push("work", json!({"payload": 2, "semaphores": ["s"]})).await;
    let expiring =
        server.push("late", json!({"payload": 1, "expires_in_ms": 600_000, "delay_ms": 60_000})).await;
    let keyed = server.push("keyed", json!({"payload": 1, "key": "k"})).await;
    server.push("line", json!({"payload": 1, "group": "g"})).await;
    let next = server.push("line", json!({"payload": 2, "group": "g"})).await;
    let held = server.push("held", json!({"payload": 1})).await;
    let first = server.reserve("line", json!({"lease_ms": 600_000})).await.remove(0);
    let lost = server.reserve("held", json!({"lease_ms": 600_000})).await.remove(0);
    assert!(server.terminate().await.success());
    spoil(place, &[&waiting, &expiring, &keyed, &next, &held]).await;
    run_out(place, "expires_at", &expiring).await;
    run_out(place, "reserved_until", &held).await;
    let mut server = Server::start(&place.url).await;

    assert_eq!(unreadable(&server, "/v1/queues/work/jobs").await, std::slice::from_ref(&waiting));
    let ask = json!({"queues": ["w*"], "count": 9, "lease_ms": 600_000});
    let taken = server.post("/v1/reserve", ask).await;
    assert_eq!((taken.0, &taken.1["jobs"][0]["id"]), (200, &json!(good)), "{taken:?}");
    assert_eq!(unreadable(&server, "/v1/queues/work/jobs?state=dead").await, std::slice::from_ref(&waiting));
    until("it is counted as dead", || async {
        server.get("/v1/queues/work/stats").await.1["counts"]["dead"] == 1
    })
    .await;
    assert_eq!(server.settle(&lost, "commit", json!({})).await.1["code"], "unreadable");
    assert_eq!(
        server.settle(&first, "commit", json!({})).await.0,
        200,
        "its end is one thing, its group another"
    );
    let again = server.post("/v1/queues/keyed/jobs", json!({"payload": 1, "key": "k"})).await;
    assert_eq!((again.0, &again.1["id"]), (200, &json!(keyed)), "{again:?}");
    a_spoiled_job_is_not_replaced(&server, &keyed).await;
    for id in [&held, &expiring] {
        let queue = if *id == held { "held" } else { "late" };
        let dead = format!("/v1/queues/{queue}/jobs?state=dead");
        until("it is out of the way", || async { unreadable(&server, &dead).await == [id.clone()] }).await;
    }
    for queue in ["work", "held", "line"] {
        assert_eq!(server.post(&format!("/v1/queues/{queue}/redrive"), json!({})).await.1["affected"], 0);
    }
    assert!(server.terminate().await.success());
    let server = Server::start(&place.url).await;
    are_removed(&server, &[&waiting, &expiring, &keyed, &next, &held]).await;
    assert_eq!(server.get("/v1/semaphores/s").await.1["held"], 1, "the valid one alone holds it");
    server.push("line", json!({"payload": 3, "group": "g"})).await;
    let next = server.reserve("line", json!({"lease_ms": 600_000})).await;
    assert_eq!(next.len(), 1, "the group goes on");
    until("the counts are exact", || async {
        let total = server.get("/stats").await.1["counts"].clone();
        (total["dead"].clone(), total["reserved"].clone()) == (json!(0), json!(2))
    })
    .await;
}

/// Spoils the payload of a job.
async fn spoil_payload(place: &Place, id: &str) {
    if place.url.starts_with("sqlite:") {
        return execute(place, &format!("UPDATE jobs SET payload = '{{' WHERE id = '{id}'"));
    }
    let jobs = database(place).await.collection::<Document>("jobs");
    let broken = doc! { "$set": { "payload_json": "{" }, "$unset": { "payload": "" } };
    let update = jobs.update_one(doc! { "_id": id }, broken).bypass_document_validation(true).await;
    assert_eq!(update.unwrap().modified_count, 1);
}

/// Nothing makes it ready: no worker could get it.
async fn a_spoiled_job_is_not_made_ready(server: &Server, id: &str) {
    for (verb, body) in [
        ("retry", json!({})),
        ("redrive", json!({})),
        ("run", json!({})),
        ("move", json!({"queue": "other"})),
    ] {
        let (status, problem) = server.post(&format!("/v1/jobs/{id}/{verb}"), body).await;
        assert_eq!((status, &problem["code"]), (409, &json!("unreadable")), "{verb}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains("PATCH"), "{problem}");
        assert!(!problem["detail"].as_str().unwrap().contains("unexpected"), "{problem}");
    }
    assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.1["state"], "dead");
}

async fn mended_jobs_are_redriven(
    server: &Server,
    [scheduled, empty]: [&str; 2],
    [grouped, behind]: [&str; 2],
) {
    for (queue, jobs) in [("work", 2), ("line", 1)] {
        assert_eq!(server.post(&format!("/v1/queues/{queue}/redrive"), json!({})).await.1["affected"], jobs);
    }
    let jobs = server.reserve("work", json!({"count": 9, "lease_ms": 600_000})).await;
    let got: Vec<&Value> = jobs.iter().map(|job| &job["id"]).collect();
    assert_eq!(got, [&json!(scheduled), &json!(empty)]);
    assert_eq!(server.get("/v1/semaphores/s").await.1["held"], 1);
    for job in jobs {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    for (id, payload) in [(grouped, 9), (behind, 2)] {
        let job = server.reserve("line", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await.remove(0);
        assert_eq!((&job["id"], &job["payload"]), (&json!(id), &json!(payload)));
        assert!(server.reserve("line", json!({})).await.is_empty(), "one of a group at a time");
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    until("the counts are exact", || async {
        let total = server.get("/stats").await.1["counts"].clone();
        ["ready", "scheduled", "blocked", "reserved", "dead"].iter().all(|state| total[state] == json!(0))
    })
    .await;
}

/// A job that cannot be read is dead as soon as somebody looks, can be mended, and then gets another chance.
pub async fn a_spoiled_job_can_be_mended(place: &Place) {
    let mut server = Server::start(&place.url).await;
    put(&server, "/v1/semaphores/s", json!({"capacity": 1})).await;
    let later = json!({"payload": 1, "semaphores": ["s"], "headers": {"h": "x", "n": {"a": 1}}, "delay_ms": 600_000, "key": "k"});
    let scheduled = server.push("work", later).await;
    let empty = server.push("work", json!({"payload": {"a": 1}, "priority": 3})).await;
    let grouped = server.push("line", json!({"payload": 1, "group": "g"})).await;
    let behind = server.push("line", json!({"payload": 2, "group": "g"})).await;
    assert!(server.terminate().await.success());
    spoil(place, &[&scheduled, &grouped]).await;
    spoil_payload(place, &empty).await;
    let server = Server::start(&place.url).await;
    let patch =
        async |id: &str, body: Value| server.send(Method::PATCH, &format!("/v1/jobs/{id}"), Some(body)).await;

    let page = server.get("/v1/queues/work/jobs").await.1;
    let listed = page["unreadable"].as_array().unwrap();
    assert!(listed.len() == 2 && listed.iter().all(|job| job["state"] == "dead"), "{page}");
    until("they are counted as dead", || async {
        let counts = server.get("/v1/queues/work/stats").await.1["counts"].clone();
        (&counts["dead"], &counts["ready"], &counts["scheduled"]) == (&json!(2), &json!(0), &json!(0))
    })
    .await;
    let shown = server.get(&format!("/v1/jobs/{empty}")).await.1;
    assert_eq!((&shown["payload"], &shown["priority"]), (&Value::Null, &json!(3)), "{shown}");
    assert!(shown["unreadable"].as_str().unwrap().contains("payload"), "{shown}");

    a_spoiled_job_is_not_made_ready(&server, &empty).await;
    let refused = patch(&empty, json!({"priority": 4})).await;
    assert_eq!((refused.0, &refused.1["code"]), (409, &json!("unreadable")), "{refused:?}");
    let (status, mended) = patch(&empty, json!({"payload": {"b": 2}})).await;
    assert_eq!((status, &mended["state"], &mended["payload"]), (200, &json!("dead"), &json!({"b": 2})));
    assert_eq!((&mended["priority"], &mended["unreadable"]), (&json!(3), &Value::Null), "{mended}");
    let (status, mended) = patch(&scheduled, json!({"priority": 7})).await;
    assert_eq!((status, &mended["state"], &mended["priority"]), (200, &json!("dead"), &json!(7)), "{mended}");
    assert_eq!((&mended["headers"]["h"], &mended["semaphores"][0]), (&json!("x"), &json!("s")), "{mended}");
    assert_eq!(mended["headers"]["n"], json!({"a": 1}), "{mended}");
    let wrong = patch(&scheduled, json!({"priority": 8})).await;
    assert_eq!((wrong.0, &wrong.1["code"]), (409, &json!("wrong-state")), "it can be read: {wrong:?}");
    assert_eq!(patch(&grouped, json!({"payload": 9})).await.0, 200);
    mended_jobs_are_redriven(&server, [&scheduled, &empty], [&grouped, &behind]).await;
}

/// A job that waits behind others in its group is looked at: dead, it is not the first of its line.
pub async fn a_spoiled_job_leaves_its_line(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let of = |payload: u32| json!({"payload": payload, "group": "g"});
    let head = server.push("line", of(1)).await;
    let (mended, removed) = (server.push("line", of(2)).await, server.push("line", of(3)).await);
    let (moved, last) = (server.push("line", of(4)).await, server.push("line", of(5)).await);
    let held = server.reserve("line", json!({"lease_ms": 600_000})).await.remove(0);
    assert_eq!(held["id"], json!(head));
    assert!(server.terminate().await.success());
    spoil(place, &[&mended, &removed, &moved]).await;
    let server = Server::start(&place.url).await;
    for id in [&mended, &removed] {
        let shown = server.get(&format!("/v1/jobs/{id}")).await.1;
        assert_eq!(shown["state"], "dead", "{shown}");
    }
    assert_eq!(server.send(Method::DELETE, &format!("/v1/jobs/{removed}"), None).await.0, 200);
    let patch =
        async |id: &str, body: Value| server.send(Method::PATCH, &format!("/v1/jobs/{id}"), Some(body)).await;
    assert_eq!(patch(&mended, json!({"priority": 1})).await.0, 200);
    // Not looked at before.
    let (status, shown) = patch(&moved, json!({"group": "other", "expires_in_ms": 600_000})).await;
    assert_eq!(
        (status, &shown["group"], shown["expires_at"].is_string()),
        (200, &json!("other"), true),
        "{shown}"
    );
    assert_eq!(server.post("/v1/queues/line/redrive", json!({})).await.1["affected"], 2);
    let other = server.reserve("line", json!({"count": 9})).await;
    assert_eq!(other.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(moved)], "the head is held");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    for id in [&last, &mended] {
        let next = server.reserve("line", json!({"wait_ms": 60_000, "lease_ms": 600_000, "count": 9})).await;
        assert_eq!(next.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(id)]);
        assert_eq!(server.settle(&next[0], "commit", json!({})).await.0, 200);
    }
}

/// A mend takes the first job of a line out of its group: the next one's turn comes. A done job keeps its result.
pub async fn a_mend_takes_all_of_an_edit(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let first = server.push("line", json!({"payload": 1, "group": "g"})).await;
    let next = server.push("line", json!({"payload": 2, "group": "g"})).await;
    let done = server.push("done", json!({"payload": 1, "retain_result_ms": 600_000})).await;
    let held = server.reserve("done", json!({"lease_ms": 600_000})).await.remove(0);
    assert_eq!(server.settle(&held, "commit", json!({"result": {"r": 1}})).await.0, 200);
    assert!(server.terminate().await.success());
    spoil(place, &[&first, &done]).await;
    let server = Server::start(&place.url).await;
    let patch =
        async |id: &str, body: Value| server.send(Method::PATCH, &format!("/v1/jobs/{id}"), Some(body)).await;
    let (status, shown) = patch(&first, json!({"group": null})).await;
    assert_eq!((status, &shown["state"], &shown["group"]), (200, &json!("dead"), &Value::Null), "{shown}");
    let (status, shown) = patch(&done, json!({"priority": 3})).await;
    assert_eq!(
        (status, &shown["state"], &shown["result"]),
        (200, &json!("done"), &json!({"r": 1})),
        "{shown}"
    );
    let got = server.reserve("line", json!({"count": 9, "wait_ms": 60_000})).await;
    assert_eq!(got.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(next)]);
}

/// However a job of a batch is found to be unreadable, it counts as dead, once, and the batch ends.
pub async fn a_spoiled_job_ends_for_its_batch(place: &Place) {
    for way in ["look", "list", "reserve", "lapse", "mend", "remove"] {
        let mut server = Server::start(&place.url).await;
        let work = format!("work.{way}");
        let called = format!("called.{way}");
        let batch = json!({
            "jobs": [{"queue": work, "payload": 1}, {"queue": format!("good.{way}"), "payload": 2}],
            "sealed": true, "on_finished": {"queue": called, "payload": 3},
        });
        let (status, batch) = server.post("/v1/batches", batch).await;
        assert_eq!(status, 201, "{batch}");
        let spoiled = batch["jobs"][0]["id"].as_str().unwrap().to_owned();
        let good = server.reserve(&format!("good.{way}"), json!({"lease_ms": 600_000})).await.remove(0);
        assert_eq!(server.settle(&good, "commit", json!({})).await.0, 200);
        if way == "lapse" {
            assert_eq!(server.reserve(&work, json!({"lease_ms": 600_000})).await.len(), 1);
        }
        assert!(server.terminate().await.success());
        spoil(place, &[&spoiled]).await;
        if way == "lapse" {
            run_out(place, "reserved_until", &spoiled).await;
        }
        let server = Server::start(&place.url).await;
        let path = format!("/v1/jobs/{spoiled}");
        let status = match way {
            "look" => server.get(&path).await.0,
            "list" => server.get(&format!("/v1/queues/{work}/jobs")).await.0,
            "mend" => server.send(Method::PATCH, &path, Some(json!({"priority": 1}))).await.0,
            "remove" => server.send(Method::DELETE, &path, None).await.0,
            "reserve" => server.post(&format!("/v1/queues/{work}/reserve"), json!({})).await.0,
            _ => 200,
        };
        assert!(status < 300, "{way}: {status}");
        let shown = async || server.get(&format!("/v1/batches/{}", batch["id"].as_str().unwrap())).await.1;
        until("the batch ends", || async { shown().await["finished_at"].is_string() }).await;
        let ended = if way == "remove" { "cancelled" } else { "dead" };
        assert_eq!(server.reserve(&called, json!({"wait_ms": 60_000})).await.len(), 1, "{way}");
        server.send(Method::DELETE, &path, None).await;
        let batch = shown().await;
        let counts = (&batch["pending"], &batch["done"], &batch[ended]);
        assert_eq!(counts, (&json!(0), &json!(1), &json!(1)), "{way}: {batch}");
    }
}

/// Returns whether such a run of the schedule `s` was of an occurrence.
async fn has_occurred(server: &Server, is_such: fn(&Value) -> bool) -> bool {
    let schedule = server.get("/v1/schedules/s").await.1;
    let mut runs = schedule["last_runs"].as_array().unwrap().iter();
    runs.any(|run| run["manual"].is_null() && is_such(run))
}

/// A schedule yields to the job that it pushed last as long as that is unfinished, whether or not the rest of the job can be read.
pub async fn a_spoiled_job_does_not_stop_its_schedule(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut rule = rule();
    (rule["cron"], rule["overlap"]) = (json!("0 0 29 2 *"), json!("skip"));
    put(&server, "/v1/schedules/s", rule.clone()).await;
    let run = async || {
        let (status, run) = server.post("/v1/schedules/s/run", json!({})).await;
        assert_eq!(status, 200, "{run}");
        run
    };
    let pushed = |run: &Value| run["job_id"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned();
    let state = async |id: &str| server.get(&format!("/v1/jobs/{id}")).await.1["state"].clone();
    let first = pushed(&run().await);
    spoil(place, &[&first]).await;
    assert_eq!(run().await["skipped"], "overlap", "nobody has looked at it: it is unfinished");
    assert_eq!(state(&first).await, "dead");
    let second = pushed(&run().await);
    spoil(place, &[&second]).await;
    // The same of occurrences.
    rule["cron"] = json!("* * * * * *");
    put(&server, "/v1/schedules/s", rule).await;
    until("an occurrence yields", || has_occurred(&server, |run| run["skipped"] == "overlap")).await;
    assert_eq!(state(&second).await, "dead");
    until("an occurrence pushes a job", || has_occurred(&server, |run| run["job_id"].is_string())).await;
}

/// Documents that lack what their states need, past the validator.
pub async fn what_a_state_needs_is_missed(place: &Place) {
    let server = Server::start(&place.url).await;
    let head = server.push("line", json!({"payload": 1, "group": "g"})).await;
    let jobs = database(place).await.collection::<Document>("jobs");
    let past = mongodb::bson::DateTime::from_millis(1_000_000_000_000);
    let cases = [
        ("group-without-turn", doc! { "queue": "line", "state": "ready", "priority": 9, "group": "g" }),
        ("reserved-without-deadline", doc! { "queue": "held", "state": "reserved", "claim": "c" }),
        ("reserved-without-claim", doc! { "queue": "held", "state": "reserved", "reserved_until": past }),
        ("blocked-by-nothing", doc! { "queue": "stuck", "state": "blocked" }),
    ];
    for (id, with) in cases {
        let mut document = doc! {
            "_id": id, "v": 1, "priority": 0, "run_at": past, "attempts": 0, "created_at": past, "rev": 0, "payload": 1,
            "errors": Bson::Null,
        };
        document.extend(with);
        assert!(jobs.insert_one(document.clone()).await.is_err(), "{id}: the validator refuses it");
        jobs.insert_one(document).bypass_document_validation(true).await.unwrap();
    }
    let state = async |id: &str| {
        let found = jobs.find_one(doc! { "_id": id }).await.unwrap().unwrap();
        found.get_str("state").unwrap().to_owned()
    };
    let taken = server.reserve("line", json!({"count": 9, "lease_ms": 600_000})).await;
    assert_eq!(taken.iter().map(|job| &job["id"]).collect::<Vec<_>>(), [&json!(head)]);
    assert_eq!(state("group-without-turn").await, "dead");
    for id in ["reserved-without-deadline", "reserved-without-claim"] {
        until("the reaper finds it", || async { state(id).await == "dead" }).await;
    }
    let page = server.get("/v1/queues/stuck/jobs").await.1;
    assert_eq!(
        (&page["unreadable"][0]["state"], state("blocked-by-nothing").await.as_str()),
        (&json!("dead"), "dead")
    );
    let dead = server.get("/v1/jobs/group-without-turn").await.1;
    assert!(dead["errors"][0]["message"].as_str().unwrap().contains("turn"), "the reason stays: {dead}");
    assert_eq!(server.post("/v1/queues/line/redrive", json!({})).await.1["affected"], 1);
    assert!(server.reserve("line", json!({})).await.is_empty(), "it stands in its line now");
    assert_eq!(server.settle(&taken[0], "commit", json!({})).await.0, 200);
    let next = server.reserve("line", json!({"wait_ms": 60_000})).await;
    assert_eq!(next[0]["id"], "group-without-turn");
}

/// The next job of a group has a field of another type: those before and behind it go on.
pub async fn a_spoiled_job_keeps_none_before_it_from_ending(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs = database(place).await.collection::<Document>("jobs");
    let wrong = [
        doc! { "rev": "x" },
        doc! { "priority": "x" },
        doc! { "rev": [5] },
        doc! { "waits_for": "s", "run_at": 5 },
    ];
    for (n, wrong) in wrong.into_iter().enumerate() {
        let of = |payload: u32| json!({"payload": payload, "group": format!("g{n}")});
        server.push("line", of(1)).await;
        let (next, last) = (server.push("line", of(2)).await, server.push("line", of(3)).await);
        let update = jobs.update_one(doc! { "_id": &next }, doc! { "$set": &wrong });
        assert_eq!(update.bypass_document_validation(true).await.unwrap().modified_count, 1, "{wrong}");
        let first = server.reserve("line", json!({"lease_ms": 600_000})).await.remove(0);
        let (status, settled) = server.settle(&first, "commit", json!({})).await;
        assert_eq!(status, 200, "{wrong}: {settled}");
        assert_eq!(server.get(&format!("/v1/jobs/{next}")).await.1["state"], "dead", "{wrong}");
        let after = server.reserve("line", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await.remove(0);
        assert_eq!(after["id"], json!(last), "{wrong}");
        assert_eq!(server.settle(&after, "commit", json!({})).await.0, 200);
    }
    until("the counts are exact", || async {
        let counts = server.get("/v1/queues/line/stats").await.1["counts"].clone();
        (&counts["dead"], &counts["blocked"], &counts["ready"]) == (&json!(4), &json!(0), &json!(0))
    })
    .await;
}

/// Reservations without a claim or an end, and text that is none.
pub async fn what_a_row_needs_is_missed(place: &Place) {
    let mut server = Server::start(&place.url).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        server.push("held", json!({"payload": 1})).await;
        held.push(server.reserve("held", json!({"lease_ms": 600_000})).await.remove(0));
    }
    let first = server.push("work", json!({"payload": 1, "priority": 5})).await;
    let good = server.push("work", json!({"payload": 2})).await;
    for key in ["pruned", "spoiled", "read"] {
        server.push("keyed", json!({"payload": 1, "key": key})).await;
    }
    assert_eq!(server.post("/v1/queues/keyed/pop", json!({"count": 2})).await.0, 200);
    let batch = json!({"jobs": [], "sealed": true});
    assert_eq!(server.post("/v1/batches", batch).await.0, 201);
    assert!(server.terminate().await.success());
    let id = |n: usize| held[n]["id"].as_str().unwrap().to_owned();
    execute(
        place,
        &format!(
            "UPDATE jobs SET claim = NULL, reserved_until = 1 WHERE id = '{}';
             UPDATE jobs SET reserved_until = NULL WHERE id = '{}';
             UPDATE jobs SET claim = CAST(x'ff' AS TEXT), reserved_until = 1 WHERE id = '{}';
             UPDATE jobs SET reserved_until = 1 WHERE id = '{}';
             UPDATE jobs SET id = CAST(x'ff41' AS TEXT) WHERE id = '{first}';
             UPDATE keys SET look_at = 1 WHERE key <> 'read';
             UPDATE keys SET key = CAST(x'ff' AS TEXT) WHERE key = 'spoiled';
             UPDATE keys SET job = CAST(x'ff' AS TEXT) WHERE key = 'read';
             UPDATE batches SET id = CAST(x'ff' AS TEXT), purge_at = 1;",
            id(0),
            id(1),
            id(2),
            id(3),
        ),
    );
    let server = Server::start(&place.url).await;
    for (n, (state, field)) in
        [("dead", "claim"), ("dead", "reserved_until"), ("dead", ""), ("ready", "")].into_iter().enumerate()
    {
        let path = format!("/v1/jobs/{}", id(n));
        until("the reaper finds it", || async { server.get(&path).await.1["state"] == state }).await;
        let shown = server.get(&path).await.1;
        let reason = shown["errors"][0]["message"].as_str().unwrap_or_default();
        assert!(reason.contains(field), "{field}: {shown}");
    }
    assert_eq!(server.reserve("work", json!({})).await[0]["id"], json!(good));
    let jobs = json!({"jobs": [{"payload": 1, "key": "read"}, {"payload": 2}]});
    let (status, pushed) = server.post("/v1/queues/keyed/jobs/batch", jobs).await;
    assert_eq!(status, 200, "{pushed}");
    assert_eq!(pushed["results"][0]["status"], 500, "{pushed}");
    assert!(pushed["results"][1]["id"].is_string(), "{pushed}");
    until("what is over is forgotten", || async {
        let file = rusqlite::Connection::open(place.url.trim_start_matches("sqlite:")).unwrap();
        let left = "SELECT (SELECT count(*) FROM keys) + (SELECT count(*) FROM batches)";
        file.query_row(left, [], |row| row.get::<_, i64>(0)).unwrap() == 1
    })
    .await;
}
