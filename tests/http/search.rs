//! Searching jobs in all queues, the dead by their errors, the jobs of a worker, and the payload of one.

use std::cell::RefCell;

use super::support::*;

fn found(page: &Value) -> Vec<String> {
    ids(page["jobs"].as_array().unwrap())
}

/// All that a search finds, page by page.
async fn sought(server: &Server, query: &str) -> Vec<String> {
    let (mut all, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = server.get(&format!("/v1/jobs?{query}{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        assert_eq!(page["complete"], json!(page["cursor"].is_null()), "{page}");
        assert!(page["scanned"].as_u64().unwrap() >= page["jobs"].as_array().unwrap().len() as u64);
        all.extend(found(&page));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// A job that has died of this error.
async fn dead_of(server: &Server, queue: &str, error: &str) -> String {
    server.push(queue, json!({"payload": error, "max_attempts": 1})).await;
    let taken = take(server, queue).await;
    server.settle(&taken, "rollback", json!({"error": error})).await;
    id(&taken)
}

/// The dead by their errors once all are counted: a slow machine counts until its time is over, and says so.
async fn dead_by_error(server: &Server, query: &str) -> Value {
    let counted = RefCell::new(Value::Null);
    until("all of the dead are counted", || async {
        let (status, dead) = server.get(&format!("/v1/dead?group_by=error{query}")).await;
        assert_eq!(status, 200, "{dead}");
        let is_complete = dead["complete"] == true;
        *counted.borrow_mut() = dead;
        is_complete
    })
    .await;
    counted.into_inner()
}

/// All groups that are listed, page by page, and how many were looked at.
async fn groups(server: &Server, query: &str) -> (Vec<Value>, u64) {
    let (mut all, mut scanned, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let (status, page) = server.get(&format!("/v1/groups?{query}{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        assert_eq!(page["complete"], json!(page["cursor"].is_null()), "{page}");
        scanned += page["scanned"].as_u64().unwrap();
        all.extend(page["groups"].as_array().unwrap().clone());
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (all, scanned),
        }
    }
}

pub async fn jobs_of_all_queues_are_found(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut pushed = Vec::new();
    for (n, queue) in ["mail.in", "mail.out", "reports", "mail.in"].into_iter().enumerate() {
        let job = json!({
            "payload": {"user": {"id": n, "tags": ["a", n]}}, "priority": n, "group": format!("g{n}"), "key": format!("k{n}"),
            "headers": {"trace": format!("t{n}"), "n.x": n},
        });
        pushed.push(server.push(queue, job).await);
    }
    let last = server.push("mail.in", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    let of = |numbers: &[usize]| numbers.iter().map(|n| pushed[*n].clone()).collect::<Vec<String>>();
    let all: Vec<String> = pushed.iter().chain([&last]).cloned().collect();
    assert_eq!(sought(&server, "").await, all);
    assert_eq!(sought(&server, "limit=2").await, all);
    let newest: Vec<String> = all.iter().rev().cloned().collect();
    assert_eq!(sought(&server, "order=newest&limit=2").await, newest);
    for (query, numbers) in [
        ("queue=mail.in&state=ready", &[0, 3][..]),
        ("queue_prefix=mail.&state=ready&limit=1", &[0, 1, 3]),
        ("queue_prefix=&state=ready,reserved", &[0, 1, 2, 3]),
        ("queue_prefix=&state=ready&state=reserved", &[0, 1, 2, 3]),
        ("state=reserved,dead", &[]),
        ("state=reserved&state=dead", &[]),
        ("priority_min=1&priority_max=2", &[1, 2]),
        ("attempts_max=0&group=g2", &[2]),
        ("key=k1", &[1]),
        ("payload.user.id=2", &[2]),
        ("payload.user.id=2.0&queue=reports", &[2]),
        ("payload.user.id=%222%22", &[]),
        ("payload.user.tags=a&payload.user.tags=3", &[3]),
        ("payload.user.tags.1=1", &[1]),
        ("headers.trace=t0", &[0]),
        ("headers.n.x=3&headers.trace=t3", &[3]),
        ("headers.n.x=%223%22", &[]),
        ("created_from=2020-01-01T00:00:00Z&created_before=2021-01-01T00:00:00Z", &[]),
        ("run_at_from=2020-01-01T00:00:00Z&state=ready", &[0, 1, 2, 3]),
        ("finished_from=1990-01-01T00:00:00Z", &[]),
        ("worker=nobody", &[]),
        ("dead_lettered=true", &[]),
    ] {
        assert_eq!(sought(&server, query).await, of(numbers), "{query}");
    }
    let (_, page) = server.get("/v1/queues/mail.in/jobs?payload.user.id=3").await;
    assert_eq!(found(&page), of(&[3]));
}

pub async fn the_dead_are_found_by_their_errors(place: &Place) {
    let server = Server::start(&place.url).await;
    let one = dead_of(&server, "a", "timeout of 10.0.0.7:5432 after 30 s (user 'Ann')").await;
    let two = dead_of(&server, "b", "timeout of 10.0.0.8:5432 after 7 s (user 'Bob')").await;
    let three = dead_of(&server, "mail.x", "[.*] it's broken").await;
    let dead = dead_by_error(&server, "").await;
    assert_eq!(dead["scanned"], 3, "{dead}");
    let group = &dead["groups"][0];
    assert_eq!(group["error"], "timeout of <address> after <n> s (user <text>)");
    assert_eq!((&group["count"], &group["queues"]), (&json!(2), &json!(["a", "b"])));
    assert_eq!(group["samples"], json!([one, two]));
    assert!(group["first_seen"].as_str().unwrap() <= group["last_seen"].as_str().unwrap());
    assert_eq!(dead["groups"][1]["error"], "[.*] it's broken");
    let first = dead_by_error(&server, "&limit=1").await;
    assert_eq!((first["groups"].as_array().unwrap().len(), &first["other"]["count"]), (1, &json!(1)));
    for (query, count) in [("queue=a", 1), ("queue_prefix=mail.", 1), ("queue_prefix=", 3), ("queue=none", 0)]
    {
        let dead = dead_by_error(&server, &format!("&{query}")).await;
        assert_eq!(dead["scanned"], count, "{query}: {dead}");
    }
    let both = [one, two.clone()];
    let group = "error_group=timeout+of+%3Caddress%3E+after+%3Cn%3E+s+(user+%3Ctext%3E)";
    assert_eq!(sought(&server, &format!("state=dead&{group}")).await, both);
    assert_eq!(sought(&server, "state=dead&error=.*").await, [three]);
    assert_eq!(sought(&server, "error=user+%27Bob").await, [two]);
    assert_eq!(sought(&server, "error=Timeout").await, Vec::<String>::new());
    assert_eq!(sought(&server, "state=dead&finished_before=2990-01-01T00:00:00Z").await.len(), 3);
    for query in ["", "group_by=queue", "group_by=error&limit=0"] {
        let parameter = if query.contains("limit") { "limit" } else { "group_by" };
        bad_parameter(&server.get(&format!("/v1/dead?{query}")).await, parameter);
    }
    bad_parameter(&server.get("/v1/dead?group_by=error&colour=red").await, "query");
}

pub async fn a_wrong_search_names_the_parameter(place: &Place) {
    let server = Server::start(&place.url).await;
    let long = "x".repeat(1100);
    let many: String = (0..17).map(|n| format!("payload.f{n}=1&")).collect();
    for (query, parameter) in [
        ("state=running", "state"),
        ("state=", "state"),
        ("state=dead&state=", "state"),
        ("state=dead,", "state"),
        ("state=dead,dead", "state"),
        ("queue=a%20b", "queue"),
        ("queue=", "queue"),
        ("queue_prefix=%20", "queue_prefix"),
        ("queue=a&queue_prefix=a", "queue_prefix"),
        ("group=%00", "group"),
        ("key=", "key"),
        ("batch=a%20b", "batch"),
        ("worker=*", "worker"),
        ("dead_lettered=yes", "dead_lettered"),
        ("created_from=yesterday", "created_from"),
        ("created_from=2020-01-01T00:00:00Z&created_before=2020-01-01T00:00:00Z", "created_before"),
        ("finished_before=1969-01-01T00:00:00Z", "finished_before"),
        ("run_at_from=", "run_at_from"),
        ("priority_min=2147483648", "priority_min"),
        ("priority_min=2&priority_max=1", "priority_max"),
        ("attempts_min=-1", "attempts_min"),
        ("attempts_max=1e3", "attempts_max"),
        ("error=", "error"),
        (&format!("error={long}"), "error"),
        (&format!("error_group={long}"), "error_group"),
        ("payload=some", "payload"),
        ("payload.=1", "payload."),
        ("payload.a..b=1", "payload.a..b"),
        ("payload.a%00=1", "payload.a\0"),
        (&format!("payload.a={long}"), "payload.a"),
        ("payload.a={%22b%22:1,%22b%22:2}", "payload.a"),
        ("headers.=1", "headers."),
        (&many, "payload"),
        ("order=random", "order"),
        ("limit=1001", "limit"),
        ("cursor=!", "cursor"),
        ("colour=red", "query"),
        ("queue=a&queue=a", "query"),
        ("payloads.a=1", "query"),
    ] {
        bad_parameter(&server.get(&format!("/v1/jobs?{query}")).await, parameter);
    }
    for query in ["queue=a", "queue_prefix=a"] {
        bad_parameter(&server.get(&format!("/v1/queues/mail/jobs?{query}")).await, "query");
    }
    for harmless in [
        "error=%5B(.*%2B%3F%7B%5C",
        "error=%00",
        "payload.$where=1",
        "headers.$x=1",
        "payload.a={%22$gt%22:0}",
    ] {
        assert_eq!(sought(&server, harmless).await, Vec::<String>::new(), "{harmless}");
    }
}

pub async fn as_much_is_shown_of_payloads_as_is_asked_for(place: &Place) {
    let server = Server::start(&place.url).await;
    let long = "ü".repeat(2000);
    let short = server.push("q", json!({"payload": {"a": 1}})).await;
    server.push("q", json!({"payload": long})).await;
    let bytes = json!({"payload_base64": "AAEC".repeat(1000), "payload_type": "application/x-thing"});
    server.push("q", bytes).await;
    let (_, page) = server.get("/v1/jobs?queue=q&payload=none").await;
    for job in page["jobs"].as_array().unwrap() {
        assert_eq!((&job["payload"], &job["payload_omitted"]), (&Value::Null, &json!(true)), "{job}");
        assert!(job["payload_base64"].is_null());
    }
    let (_, page) = server.get("/v1/queues/q/jobs?payload=head").await;
    let jobs = page["jobs"].as_array().unwrap();
    assert_eq!((&jobs[0]["id"], &jobs[0]["payload"]), (&json!(short), &json!({"a": 1})));
    assert!(jobs[0]["payload_omitted"].is_null());
    let head = jobs[1]["payload_head"].as_str().unwrap();
    assert!(head.starts_with("\"üü") && head.len() <= 1024 && head.len() > 1000, "{}", head.len());
    assert_eq!((&jobs[1]["payload_bytes"], &jobs[1]["payload_omitted"]), (&json!(4002), &json!(true)));
    assert_eq!(
        (&jobs[2]["payload_bytes"], &jobs[2]["payload_type"]),
        (&json!(3000), &json!("application/x-thing"))
    );
    assert!(jobs[2]["payload_base64"].is_null() && jobs[2]["payload_head"].is_null());
    let (_, page) = server.get("/v1/jobs?queue=q").await;
    assert_eq!(page["jobs"][1]["payload"], json!(long));
}

pub async fn a_payload_is_had_as_it_is(place: &Place) {
    let server = Server::start(&place.url).await;
    let bytes = |media: &str| json!({"payload_base64": "AAEC/w==", "payload_type": media});
    for (job, media, body) in [
        (json!({"payload": {"a": [1.0, "ü"]}}), "application/json", r#"{"a":[1.0,"ü"]}"#.as_bytes()),
        (json!({}), "application/json", b"null"),
        (bytes("image/png"), "image/png", b"\0\x01\x02\xff"),
        (bytes("text/html; charset=utf-8"), "application/octet-stream", b"\0\x01\x02\xff"),
        (bytes("image/SVG+xml"), "application/octet-stream", b"\0\x01\x02\xff"),
    ] {
        let job = server.push("q", job).await;
        let response =
            server.http.get(format!("{}/v1/jobs/{job}/payload", server.base)).send().await.unwrap();
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!((response.status().as_u16(), header("content-type").as_str()), (200, media));
        assert_eq!(
            (header("x-content-type-options"), header("content-disposition")),
            ("nosniff".into(), "attachment".into())
        );
        assert!(header("content-security-policy").contains("default-src 'none'"));
        assert_eq!(response.bytes().await.unwrap(), body);
    }
    refused(&server.get("/v1/jobs/unknown/payload").await, 404, "unknown-job");
    let job = server.push("q", json!({})).await;
    bad_parameter(&server.get(&format!("/v1/jobs/{job}/payload?x=1")).await, "query");
}

pub async fn the_jobs_of_a_worker_are_those_that_it_holds(place: &Place) {
    let server = Server::start(&place.url).await;
    for _ in 0..5 {
        server.push("q", json!({"payload": 1})).await;
    }
    let held = server.reserve("q", json!({"count": 3, "worker": "w1", "lease_ms": 600_000})).await;
    server.reserve("q", json!({"count": 1, "worker": "w2", "lease_ms": 600_000})).await;
    let (status, page) = server.get("/v1/workers/w1/jobs?limit=2&payload=none").await;
    assert_eq!((status, page["complete"].as_bool()), (200, Some(false)), "{page}");
    let cursor = page["cursor"].as_str().unwrap();
    let (_, rest) = server.get(&format!("/v1/workers/w1/jobs?cursor={cursor}")).await;
    let all: Vec<String> = found(&page).into_iter().chain(found(&rest)).collect();
    assert_eq!(all, ids(&held));
    assert_eq!(found(&server.get("/v1/workers/nobody/jobs").await.1), Vec::<String>::new());
    assert_eq!(sought(&server, "worker=w2").await.len(), 1);
    bad_parameter(&server.get("/v1/workers/a%20b/jobs").await, "name");
    bad_parameter(&server.get("/v1/workers/w1/jobs?state=dead").await, "query");
}

pub async fn groups_are_listed_with_their_first_jobs(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut heads = Vec::new();
    for queue in ["a", "b"] {
        for group in ["g1", "g2"] {
            heads.push(server.push(queue, json!({"payload": 1, "group": group, "max_attempts": 1})).await);
            server.push(queue, json!({"payload": 1, "group": group})).await;
        }
    }
    let taken = take(&server, "b").await;
    server.settle(&taken, "rollback", json!({"error": "it broke"})).await;
    let group = |queue: &str, group: &str, head: &str, state: &str| json!({"queue": queue, "group": group, "head": head, "state": state, "waiting": 1});
    let expected = [
        group("a", "g1", &heads[0], "ready"),
        group("a", "g2", &heads[1], "ready"),
        group("b", "g1", &heads[2], "dead"),
        group("b", "g2", &heads[3], "ready"),
    ];
    for query in ["limit=100", "limit=1"] {
        assert_eq!(groups(&server, query).await, (expected.to_vec(), 4), "{query}");
    }
    for (query, numbers) in [
        ("state=dead", &[2][..]),
        ("queue=a", &[0, 1]),
        ("queue_prefix=b&state=ready,reserved", &[3]),
        ("queue=c", &[]),
    ] {
        let (found, _) = groups(&server, query).await;
        let expected: Vec<Value> = numbers.iter().map(|n| expected[*n].clone()).collect();
        assert_eq!(found, expected, "{query}");
    }
    for (query, parameter) in
        [("state=x", "state"), ("cursor=aa", "cursor"), ("queue=%20", "queue"), ("group=x", "query")]
    {
        bad_parameter(&server.get(&format!("/v1/groups?{query}")).await, parameter);
    }
}

pub async fn the_server_is_among_the_servers(place: &Place) {
    let server = Server::start(&place.url).await;
    let servers = servers_listed(&server, 1).await;
    assert_eq!(servers[0]["this"], true, "{servers:?}");
    assert_eq!(servers[0]["version"], env!("CARGO_PKG_VERSION"));
    assert!(servers[0]["since"].as_str().unwrap() <= servers[0]["seen_at"].as_str().unwrap(), "{servers:?}");
    bad_parameter(&server.get("/v1/servers?x=1").await, "query");
}
