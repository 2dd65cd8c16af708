//! Rows of SQLite whose ids, or the names of whose lines, are none. No call can name them: those beside them are listed, delivered, deleted
//! and counted as ever.

use reqwest::Method;
use serde_json::{Value, json};

use super::spoiled::{execute, put};
use super::spoiled_lines::blocked;
use super::spoiled_operations::delete_all;
use crate::common::server::{Place, Server, until};

/// What stands in place of an id: texts that are not UTF-8, one that is no id, and an empty one.
const NO_IDS: [&str; 4] = ["CAST(x'ff41' AS TEXT)", "CAST(x'41ff' AS TEXT)", "'no id'", "''"];

fn rename(place: &Place, id: &str, to: &str) {
    execute(place, &format!("UPDATE jobs SET id = {to} WHERE id = '{id}'"));
}

async fn push(server: &Server, queue: &str, count: u8) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(server.push(queue, json!({"payload": n})).await);
    }
    ids
}

fn ids(listed: &Value) -> Vec<String> {
    listed.as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the ids on all pages of a list, whose items are under this name.
async fn pages(server: &Server, path: &str, items: &str) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.get(&format!("{path}{cursor}")).await;
        assert_eq!(status, 200, "{path}: {page}");
        all.extend(ids(&page[items]));
        let Some(next) = page["cursor"].as_str() else { return all };
        cursor = format!("&cursor={next}");
    }
}

async fn are_gone(server: &Server, ids: &[String]) {
    for id in ids {
        assert_eq!(server.get(&format!("/v1/jobs/{id}")).await.0, 404, "{id}");
    }
}

/// The others of its queue are on every page, and are deleted.
pub async fn a_row_without_an_id_hides_no_other(place: &Place) {
    let server = Server::start(&place.url).await;
    put(&server, "/v1/queues/work", json!({"max_jobs": 99})).await;
    let mut good = push(&server, "work", 6).await;
    for (id, to) in good.drain(1..5).zip(NO_IDS) {
        rename(place, &id, to);
    }
    for path in ["/v1/queues/work/jobs", "/v1/jobs"] {
        for limit in [1, 100] {
            let oldest = pages(&server, &format!("{path}?limit={limit}&order=oldest"), "jobs").await;
            assert_eq!(oldest, good, "{path}, {limit}");
            let newest = pages(&server, &format!("{path}?limit={limit}&order=newest"), "jobs").await;
            assert!(newest.iter().rev().eq(&good), "{path}, {limit}: {newest:?}");
        }
    }
    let [_, affected, _] = delete_all(&server, "work", "ready").await;
    assert_eq!(affected, 2);
    are_gone(&server, &good).await;
    let more = push(&server, "work", 3).await;
    let (status, deleted) = server.send(Method::DELETE, "/v1/queues/work?force=true", None).await;
    assert_eq!(status, 200, "{deleted}");
    are_gone(&server, &more).await;
    assert_eq!(pages(&server, "/v1/queues/work/jobs?limit=9", "jobs").await, [""; 0]);
}

/// Nothing that it holds is held for ever: `max_reserved`, a semaphore, and its group.
pub async fn a_reservation_without_an_id_ends(place: &Place) {
    let server = Server::start(&place.url).await;
    for (n, to) in NO_IDS.into_iter().enumerate() {
        let (queue, semaphore) = (format!("held-{n}"), format!("s-{n}"));
        put(&server, &format!("/v1/queues/{queue}"), json!({"max_reserved": 1})).await;
        put(&server, &format!("/v1/semaphores/{semaphore}"), json!({"capacity": 1})).await;
        let job = json!({"payload": 1, "group": "g", "semaphores": [semaphore]});
        let held = server.push(&queue, job.clone()).await;
        let next = server.push(&queue, job).await;
        let reserved = server.reserve(&queue, json!({"lease_ms": 600_000})).await;
        assert_eq!(ids(&json!(reserved)), std::slice::from_ref(&held));
        rename(place, &held, &format!("{to}, reserved_until = 1"));
        until("it is dead", || async {
            let counts = server.get(&format!("/v1/queues/{queue}/stats")).await.1["counts"].clone();
            (&counts["reserved"], &counts["dead"]) == (&json!(0), &json!(1))
        })
        .await;
        assert_eq!(server.get(&format!("/v1/semaphores/{semaphore}")).await.1["held"], 0, "{to}");
        let taken = server.reserve(&queue, json!({"wait_ms": 30_000})).await;
        assert_eq!(ids(&json!(taken)), [next], "{to}");
    }
}

/// The next one in the line of a semaphore has lost its id: the one behind it has its turn.
pub async fn a_row_without_an_id_keeps_none_from_its_semaphore(place: &Place) {
    let server = Server::start(&place.url).await;
    let (held, first, behind) = blocked(&server).await;
    rename(place, &first, NO_IDS[0]);
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    let taken = server.reserve("work", json!({"wait_ms": 30_000})).await;
    assert_eq!(ids(&json!(taken)), [behind]);
}

/// Returns the groups that are listed, and their queues.
async fn groups(server: &Server) -> Vec<(String, String)> {
    let (status, page) = server.get("/v1/groups").await;
    assert_eq!(status, 200, "{page}");
    let name = |group: &Value, field: &str| group[field].as_str().unwrap().to_owned();
    let listed = page["groups"].as_array().unwrap().iter();
    listed.map(|group| (name(group, "queue"), name(group, "group"))).collect()
}

pub async fn a_line_without_a_name_hides_no_other(place: &Place) {
    let server = Server::start(&place.url).await;
    let add = async |queue: &str, group: &str| {
        let job = json!({"payload": 1, "group": group});
        server.push(queue, job).await
    };
    for (queue, group) in [("lines", "a"), ("lines", "b"), ("lines", "c"), ("m", "a"), ("n", "a")] {
        add(queue, group).await;
    }
    let (head, next) = (add("lines", "d").await, add("lines", "d").await);
    execute(place, "UPDATE jobs SET group_name = CAST(x'62ff' AS TEXT) WHERE group_name = 'b'");
    execute(place, "UPDATE jobs SET queue = CAST(x'6dff' AS TEXT) WHERE queue = 'm'");
    rename(place, &head, NO_IDS[0]);
    let named = [("lines", "a"), ("lines", "c"), ("n", "a")];
    assert_eq!(groups(&server).await, named.map(|(queue, group)| (queue.to_owned(), group.to_owned())));
    let (status, shown) = server.get(&format!("/v1/jobs/{next}")).await;
    assert_eq!((status, &shown["state"]), (200, &json!("blocked")), "{shown}");
    // A claim finds the first of its line, which leaves it.
    until("the next one is delivered", || async {
        ids(&json!(server.reserve("lines", json!({"count": 9})).await)).contains(&next)
    })
    .await;
}

/// What has happened to the jobs of a batch is on every page, whatever stands between.
pub async fn a_result_without_an_id_hides_no_other(place: &Place) {
    let server = Server::start(&place.url).await;
    let jobs: Vec<Value> = (0..6).map(|n| json!({"queue": "work", "payload": n})).collect();
    let (status, batch) = server.post("/v1/batches", json!({"jobs": jobs, "sealed": true})).await;
    assert_eq!(status, 201, "{batch}");
    assert_eq!(server.post("/v1/queues/work/pop", json!({"count": 9})).await.0, 200);
    let mut good = ids(&batch["jobs"]);
    // They stand where they stood: one that sorts behind all others hides none.
    let spoiled = ["CAST(job || x'ff' AS TEXT)", "job || ' '"].into_iter().cycle();
    for (id, to) in good.drain(1..5).zip(spoiled) {
        execute(place, &format!("UPDATE batch_results SET job = {to} WHERE job = '{id}'"));
    }
    let path = format!("/v1/batches/{}/results", batch["id"].as_str().unwrap());
    for limit in [1, 2, 100] {
        assert_eq!(pages(&server, &format!("{path}?limit={limit}"), "results").await, good, "{limit}");
    }
}
