//! One job: look, change, cancel. A queue's jobs: browse.

use reqwest::Method;

use super::support::*;

async fn patch(server: &Server, id: &str, change: Value) -> (u16, Value) {
    server.send(Method::PATCH, &format!("/v1/jobs/{id}"), Some(change)).await
}

async fn delete(server: &Server, id: &str, query: &str) -> (u16, Value) {
    server.send(Method::DELETE, &format!("/v1/jobs/{id}{query}"), None).await
}

pub async fn a_job_that_is_not_there_is_unknown(place: &Place) {
    let server = Server::start(&place.url).await;
    for id in ["unknown", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "a.b", "%20", "%FF", &"x".repeat(65)] {
        refused(&server.get(&format!("/v1/jobs/{id}")).await, 404, "unknown-job");
        refused(&patch(&server, id, json!({"priority": 1})).await, 404, "unknown-job");
        refused(&delete(&server, id, "").await, 404, "unknown-job");
        refused(&delete(&server, id, "?force=true").await, 404, "unknown-job");
    }
}

pub async fn a_waiting_job_can_be_changed(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed = server.push("mail", json!({"payload": 1, "key": "k", "delay_ms": 3_600_000})).await;
    let mut before = see(&server, &pushed).await;
    assert_eq!(before.as_object_mut().unwrap().remove("waiting_for").unwrap()[0]["reason"], "due");
    assert_eq!(patch(&server, &pushed, json!({})).await, (200, before.clone()));
    let (status, changed) = patch(&server, &pushed, json!({"priority": 7})).await;
    assert_eq!((status, &changed["priority"], &changed["run_at"]), (200, &json!(7), &before["run_at"]));
    let (_, changed) = patch(&server, &pushed, json!({"payload": null})).await;
    assert_eq!((&changed["payload"], &changed["priority"]), (&Value::Null, &json!(7)));
    let (_, changed) = patch(&server, &pushed, json!({"run_at": "2000-01-01T00:00:00.5Z"})).await;
    assert_eq!(
        (&changed["state"], &changed["run_at"]),
        (&json!("ready"), &json!("2000-01-01T00:00:00.500Z"))
    );
    let mut seen = see(&server, &pushed).await;
    seen.as_object_mut().unwrap().remove("waiting_for");
    assert_eq!(changed, seen);
    // The key compares the payload as it was pushed.
    let (status, answer) = server.post("/v1/queues/mail/jobs", json!({"payload": 1, "key": "k"})).await;
    assert_eq!((status, &answer["id"]), (200, &json!(pushed)));
    let taken = take(&server, "mail").await;
    assert_eq!((&taken["priority"], &taken["payload"]), (&json!(7), &Value::Null));
}

pub async fn a_change_orders_the_job_anew(place: &Place) {
    let server = Server::start(&place.url).await;
    let first = server.push("mail", json!({"payload": 1})).await;
    let second = server.push("mail", json!({"payload": 2})).await;
    let third = server.push("mail", json!({"payload": 3})).await;
    patch(&server, &third, json!({"priority": 1})).await;
    patch(&server, &second, json!({"run_at": "2000-01-01T00:00:00Z"})).await;
    assert_eq!(ids(&server.reserve("mail", json!({"count": 3})).await), [third, second, first]);
}

pub async fn a_job_that_is_held_or_finished_stays_as_it_is(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000, "max_attempts": 1})).await;
    let reserved = push_and_take(&server, "mail").await;
    let done = push_and_take(&server, "mail").await;
    server.settle(&done, "commit", json!({})).await;
    let dead = push_and_take(&server, "mail").await;
    server.settle(&dead, "rollback", json!({})).await;
    for job in [&reserved, &done, &dead] {
        let before = see(&server, &id(job)).await;
        for change in
            [json!({"priority": 1}), json!({"payload": 2}), json!({"run_at": "2000-01-01T00:00:00Z"})]
        {
            let answer = patch(&server, &id(job), change).await;
            refused(&answer, 409, "wrong-state");
            let state = before["state"].as_str().unwrap();
            assert!(answer.1["detail"].as_str().unwrap().contains(state), "{}", answer.1);
        }
        assert_eq!(see(&server, &id(job)).await, before);
    }
    // Each of them can be deleted, the one that is held by force.
    for (job, query) in [(&reserved, "?force=true"), (&done, ""), (&dead, "?force=false")] {
        assert_eq!(
            delete(&server, &id(job), query).await,
            (200, json!({"deleted": true, "cancel_requested": false}))
        );
        refused(&delete(&server, &id(job), query).await, 404, "unknown-job");
    }
}

pub async fn a_change_out_of_range_names_the_field(place: &Place) {
    let server = Server::start(&place.url).await;
    let pushed = server.push("mail", json!({"payload": 1})).await;
    for (pointer, change) in [
        ("/priority", json!({"priority": "high"})),
        ("/priority", json!({"priority": -2_147_483_649_i64})),
        ("/run_at", json!({"run_at": "2026-13-01T00:00:00Z"})),
        ("/delay_ms", json!({"delay_ms": 1})),
        ("", json!([])),
    ] {
        invalid(&patch(&server, &pushed, change).await, pointer);
    }
    for (query, parameter) in [
        ("?force=maybe", "force"),
        ("?force", "force"),
        ("?colour=1", "query"),
        ("?force=true&force=true", "query"),
    ] {
        bad_parameter(&delete(&server, &pushed, query).await, parameter);
    }
    assert_eq!(see(&server, &pushed).await["state"], "ready");
}

pub async fn a_deleted_job_is_gone(place: &Place) {
    let server = Server::start(&place.url).await;
    let ready = server.push("mail", json!({"payload": 1})).await;
    let scheduled = server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    for id in [ready, scheduled] {
        let reply = raw(&server, "DELETE", &format!("/v1/jobs/{id}"), &[], "").await;
        assert_eq!(reply.answer(), (200, json!({"deleted": true, "cancel_requested": false})));
        refused(&server.get(&format!("/v1/jobs/{id}")).await, 404, "unknown-job");
    }
    assert!(server.reserve("mail", json!({})).await.is_empty());
}

async fn browse(server: &Server, query: &str) -> (Vec<String>, Option<String>) {
    let (status, page) = server.get(&format!("/v1/queues/mail/jobs{query}")).await;
    assert_eq!(status, 200, "{page}");
    let cursor = page.get("cursor").map(|cursor| cursor.as_str().unwrap().to_owned());
    (ids(page["jobs"].as_array().unwrap()), cursor)
}

pub async fn a_queue_is_browsed_page_by_page(place: &Place) {
    let server = Server::start(&place.url).await;
    // Priorities and due times do not matter here: oldest first.
    let jobs: Vec<Value> = (0..250)
        .map(|n| json!({"payload": n, "priority": n % 3, "delay_ms": if n % 2 == 0 { 0 } else { 3_600_000 }}))
        .collect();
    let (_, answer) = server.post("/v1/queues/mail/jobs/batch", json!({ "jobs": jobs })).await;
    let pushed = ids(answer["results"].as_array().unwrap());
    server.push("other", json!({"payload": 1})).await;

    let (mut seen, mut cursor, mut sizes) = (Vec::new(), None::<String>, Vec::new());
    loop {
        let query = cursor.map_or_else(String::new, |cursor| format!("?cursor={cursor}"));
        let (page, next) = browse(&server, &query).await;
        sizes.push(page.len());
        seen.extend(page);
        let Some(next) = next else { break };
        assert!(next.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)), "{next}");
        cursor = Some(next);
    }
    assert_eq!((seen, sizes), (pushed.clone(), vec![100, 100, 50]));

    let (page, next) = browse(&server, "?limit=249").await;
    assert_eq!((page, next.is_some()), (pushed[..249].to_vec(), true));
    let (page, next) = browse(&server, &format!("?limit=1&cursor={}", next.unwrap())).await;
    assert_eq!((page, next), (pushed[249..].to_vec(), None));
    assert_eq!(browse(&server, "?limit=250").await, (pushed.clone(), None));
    assert_eq!(browse(&server, "?limit=1000").await, (pushed.clone(), None));

    // A page goes on where the last one ended, also when jobs have left in the meantime.
    let (_, next) = browse(&server, "?limit=10").await;
    for id in &pushed[8..12] {
        delete(&server, id, "").await;
    }
    let (page, _) = browse(&server, &format!("?limit=3&cursor={}", next.unwrap())).await;
    assert_eq!(page, pushed[12..15]);
    let (page, next) = browse(&server, "?state=scheduled&limit=2").await;
    assert_eq!(page, [pushed[1].clone(), pushed[3].clone()]);
    let (page, _) = browse(&server, &format!("?state=scheduled&limit=2&cursor={}", next.unwrap())).await;
    assert_eq!(page, [pushed[5].clone(), pushed[7].clone()]);
}

pub async fn a_queue_is_browsed_by_state_and_key(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"retain_done_ms": 600_000, "max_attempts": 1})).await;
    let mut of = std::collections::HashMap::new();
    for state in ["done", "dead", "reserved"] {
        let taken = push_and_take(&server, "mail").await;
        match state {
            "done" => drop(server.settle(&taken, "commit", json!({})).await),
            "dead" => drop(server.settle(&taken, "rollback", json!({})).await),
            _ => {}
        }
        of.insert(state, id(&taken));
    }
    of.insert("ready", server.push("mail", json!({"payload": 1, "key": "a b&ü"})).await);
    of.insert("scheduled", server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await);
    for (state, id) in &of {
        assert_eq!(browse(&server, &format!("?state={state}")).await, (vec![id.clone()], None), "{state}");
        assert_eq!(see(&server, id).await["state"], *state);
    }
    assert_eq!(browse(&server, "?state=blocked").await.0, Vec::<String>::new());
    assert_eq!(browse(&server, "").await.0.len(), 5);
    assert_eq!(browse(&server, "?key=a%20b%26%C3%BC").await.0, [of["ready"].clone()]);
    assert_eq!(browse(&server, "?key=a+b%26%C3%BC&state=ready").await.0, [of["ready"].clone()]);
    assert!(browse(&server, "?key=a%20b%26%C3%BC&state=done").await.0.is_empty());
    assert!(browse(&server, "?key=other").await.0.is_empty());
}

pub async fn a_wrong_query_names_the_parameter(place: &Place) {
    let server = Server::start(&place.url).await;
    for (query, parameter) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=-1", "limit"),
        ("cursor=!", "cursor"),
        ("cursor=", "cursor"),
        ("cursor=%FF", "cursor"),
        ("cursor=aa", "cursor"),
        ("colour=red", "query"),
        ("limit=1&limit=2", "query"),
    ] {
        bad_parameter(&server.get(&format!("/v1/queues/mail/jobs?{query}")).await, parameter);
        bad_parameter(&server.get(&format!("/v1/queues?{query}")).await, parameter);
    }
    for (query, parameter) in [
        ("state=running", "state"),
        ("state=", "state"),
        ("state=Ready", "state"),
        ("key=", "key"),
        ("key=%00", "key"),
    ] {
        bad_parameter(&server.get(&format!("/v1/queues/mail/jobs?{query}")).await, parameter);
    }
}
