//! What operators look at: stats, health, metrics.

use super::support::*;

/// Makes a mix of jobs and answers what `counts` must say.
async fn mix(server: &Server) -> Value {
    let settings = json!({"retain_done_ms": 600_000, "max_attempts": 1, "lease_ms": 600_000});
    configure(server, "mail", settings).await;
    for (count, end) in [(3, "commit"), (1, "rollback"), (2, "")] {
        for _ in 0..count {
            let taken = push_and_take(server, "mail").await;
            if !end.is_empty() {
                assert_eq!(server.settle(&taken, end, json!({})).await.0, 200);
            }
        }
    }
    for _ in 0..4 {
        server.push("mail", json!({"payload": 1, "delay_ms": 3_600_000})).await;
    }
    for _ in 0..5 {
        server.push("mail", json!({"payload": 1})).await;
    }
    json!({"ready": 5, "scheduled": 4, "reserved": 2, "blocked": 0, "dead": 1, "done": 3})
}

/// The metrics as they are now. While the store is slow, what is read from it may be missing.
async fn page(server: &Server) -> String {
    server.http.get(format!("{}/metrics", server.base)).send().await.unwrap().text().await.unwrap()
}

pub async fn metrics_list_so_many_queues(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__METRICS_QUEUES", "2")]).await;
    for (queue, jobs) in [("a", 1), ("b", 3), ("c", 2), ("d", 1)] {
        for n in 0..jobs {
            server.push(queue, json!({"payload": n})).await;
        }
    }
    let series = |queue: &str| format!(r#"tailback_jobs{{queue="{queue}",state="ready"}}"#);
    until("all are counted", || async { metric(&server, "tailback_queues").await == 4.0 }).await;
    until("the others are one series", || async { metric(&server, &series("(others)")).await == 2.0 }).await;
    until("two queues are listed", || async {
        let text = page(&server).await;
        let count = |head: &str| text.lines().filter(|line| line.starts_with(head)).count();
        let has = |queue: &str, jobs: u32| text.contains(&format!("{} {jobs}\n", series(queue)));
        (count("tailback_jobs{"), count("tailback_oldest_ready_seconds{")) == (3 * 6, 2)
            && has("b", 3)
            && has("c", 2)
    })
    .await;
    let (_, all) = server.get("/stats").await;
    assert_eq!((&all["queues"], &all["counts"]["ready"]), (&json!(4), &json!(7)));
}

pub async fn stats_count_what_is_there(place: &Place) {
    let server = Server::start(&place.url).await;
    let expected = mix(&server).await;
    server.push("other", json!({"payload": 1, "run_at": "2000-01-01T00:00:00Z"})).await;
    until("the counts are those of the queue", || async {
        server.get("/v1/queues/mail/stats").await.1["counts"] == expected
    })
    .await;
    let (status, stats) = server.get("/v1/queues/mail/stats").await;
    assert_eq!((status, &stats["queue"], &stats["paused"]), (200, &json!("mail"), &json!(false)));
    assert!(stats["oldest_ready_age_ms"].as_u64().is_some_and(|age| age < 600_000), "{stats}");
    // 15 pushes within the time that the server has been there. The rates are of the last minute: where it was there for longer, on a
    // busy machine, the first ten seconds may be a part of it only.
    let is_whole = stats["rates_over_ms"].as_u64().unwrap() <= 50_000;
    for (event, count) in
        [("pushed", 15.0), ("reserved", 6.0), ("committed", 3.0), ("rolled_back", 1.0), ("dead", 1.0)]
    {
        let rate = stats["rates_per_s"][event].as_f64().unwrap();
        let seen = rate * stats["rates_over_ms"].as_f64().unwrap() / 1000.0;
        assert!(seen < count + 0.5 && (seen > count - 0.5 || !is_whole), "{event}: {stats}");
    }
    for times in ["queue_time_ms", "run_time_ms"] {
        let at = |quantile: &str| stats[times][quantile].as_u64().unwrap();
        assert!(at("p50") <= at("p95") && at("p95") <= at("p99"), "{stats}");
    }
    let oldest = server.get("/v1/queues/other/stats").await.1["oldest_ready_age_ms"].clone();
    assert!(oldest.as_u64().unwrap() > 86_400_000, "it has been due since the year 2000");

    until("the counts are those of all queues", || async {
        let (_, all) = server.get("/stats").await;
        (&all["counts"]["ready"], &all["counts"]["done"]) == (&json!(6), &json!(3))
    })
    .await;
    let (status, all) = server.get("/stats").await;
    assert_eq!(
        (status, &all["queues"], &all["version"]),
        (200, &json!(2), &json!(env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(all["store"], if place.url.starts_with("sqlite") { "sqlite" } else { "mongodb" });
    assert!(all["oldest_ready_age_ms"].as_u64() >= oldest.as_u64());
    assert!(all["uptime_ms"].is_u64());
    // What has gone is not counted any more.
    server.send(reqwest::Method::DELETE, "/v1/queues/mail?force=true", None).await;
    until("the queue is empty", || async {
        let counts = server.get("/v1/queues/mail/stats").await.1["counts"].clone();
        counts.as_object().unwrap().values().all(|count| *count == 0)
    })
    .await;
    assert!(server.get("/v1/queues/mail/stats").await.1.get("oldest_ready_age_ms").is_none());
}

pub async fn stats_list_the_background_tasks(place: &Place) {
    let server = Server::start(&place.url).await;
    let mut expected = vec![
        "due",
        "finished_jobs",
        "key_uses",
        "operations",
        "pruner",
        "store_probe",
        "reaper",
        "reconciler",
        "scheduler",
        "semaphores",
        "series",
        "series_folder",
        "settings",
        "waiter_poll",
        "histogram_drain",
        "workers",
    ];
    if place.url.starts_with("mongodb") {
        expected.extend(["series_reader", "signal_listener", "signal_publisher"]); // where there may be other servers
    }
    expected.sort_unstable();
    // A server that is ready has started them.
    let (_, stats) = server.get("/stats").await;
    let tasks = stats["tasks"].as_array().unwrap().iter();
    let mut names: Vec<&str> = tasks.map(|task| task["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, expected);
}

pub async fn a_paused_queue_says_so(place: &Place) {
    let server = Server::start(&place.url).await;
    let (status, stats) = server.get("/v1/queues/never/stats").await;
    assert_eq!((status, &stats["paused"], &stats["counts"]["ready"]), (200, &json!(false), &json!(0)));
    server.post("/v1/queues/never/pause", json!({})).await;
    assert_eq!(server.get("/v1/queues/never/stats").await.1["paused"], true);
}

pub async fn a_server_tells_how_it_is(place: &Place) {
    let server = Server::start(&place.url).await;
    assert_eq!(server.get("/healthz").await, (200, json!({"status": "ok"})));
    // While the store is slow it may not be ready for a moment.
    let ready = (200, json!({"status": "ready"}));
    until("it is ready", || async { server.get("/readyz").await == ready }).await;
}

/// A line of the text format: `name{label="value",…} number`.
fn is_sample(line: &str) -> bool {
    let Some((series, value)) = line.rsplit_once(' ') else { return false };
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let is_name =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let Some(labels) = labels.strip_suffix('}') else { return false };
    // No label of ours has a comma or an escape in its value.
    let is_label = |label: &str| {
        label.split_once('=').is_some_and(|(name, value)| {
            is_name(name) && value.len() >= 2 && value.starts_with('"') && value.ends_with('"')
        })
    };
    is_name(name) && (labels.is_empty() || labels.split(',').all(is_label)) && value.parse::<f64>().is_ok()
}

pub async fn metrics_can_be_read(place: &Place) {
    let server = Server::start(&place.url).await;
    mix(&server).await;
    server.get("/nothing/here").await;
    let wanted = "tailback_jobs{queue=\"mail\",state=\"scheduled\"}";
    until("the counts have been read anew", || async { metric(&server, wanted).await == 4.0 }).await;
    let reply = raw(&server, "GET", "/metrics", &[], "").await;
    assert!(reply.header("content-type").starts_with("text/plain; version=0.0.4"));
    for line in reply.text.lines().filter(|line| !line.is_empty()) {
        let is_ours = |text: &str| text.starts_with("tailback_") || text.starts_with("process_");
        let comment = ["# HELP ", "# TYPE "].iter().any(|head| line.strip_prefix(head).is_some_and(is_ours));
        assert!(comment || (is_ours(line) && is_sample(line)), "{line}");
    }
    for name in [
        "tailback_http_requests_total",
        "tailback_http_request_seconds_bucket",
        "tailback_http_connections",
        "tailback_job_events_total",
        "tailback_job_queue_seconds_count",
        "tailback_job_run_seconds_sum",
        "tailback_jobs",
        "tailback_oldest_ready_seconds",
        "tailback_store_call_seconds_count",
        "tailback_store_batch_size_count",
        "tailback_task_runs_total",
        "tailback_task_last_run_seconds",
        "tailback_task_done_total",
    ] {
        let is_of_it = |line: &str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{') || rest.starts_with(' '))
        };
        until(&format!("{name} is there"), || async { page(&server).await.lines().any(is_of_it) }).await;
    }
    for (series, value) in [
        ("tailback_job_events_total{event=\"pushed\"}", 15.0),
        ("tailback_job_events_total{event=\"committed\"}", 3.0),
        ("tailback_job_events_total{event=\"rolled_back\"}", 1.0),
        ("tailback_job_events_total{event=\"dead\"}", 1.0),
        ("tailback_jobs{queue=\"mail\",state=\"done\"}", 3.0),
        ("tailback_http_requests_total{method=\"GET\",route=\"none\",status=\"404\"}", 1.0),
    ] {
        until(&format!("{series} is {value}"), || async { metric(&server, series).await == value }).await;
    }
}

/// For MongoDB alone: an SQLite file is there or the server does not start.
pub async fn a_store_that_is_away_is_told(_: &Place) {
    let store = "mongodb://127.0.0.1:1/away?replicaSet=rs0&serverSelectionTimeoutMS=200";
    // Whether there are keys is in the store: a server that may have some lets nobody in before it has been reached.
    let environment = [
        ("TAILBACK_MONGODB__DEADLINE_MS", "300"),
        ("TAILBACK_LOG__FILTER", "off"),
        ("TAILBACK_AUTH__REQUIRED", "false"),
    ];
    let server = Server::launch(store, &environment);
    assert_eq!(server.get("/healthz").await.0, 200, "it lives, only its store is away");
    for (method, path, body) in [
        ("GET", "/readyz", ""),
        ("POST", "/v1/queues/mail/jobs", r#"{"payload":1}"#),
        ("POST", "/v1/queues/mail/reserve", "{}"),
        ("POST", "/v1/queues/mail/pop", "{}"),
        ("POST", "/v1/queues/mail/purge", r#"{"state":"ready"}"#),
        ("POST", "/v1/jobs/a/commit", r#"{"reservation":"x"}"#),
        ("GET", "/v1/jobs/a", ""),
        ("DELETE", "/v1/jobs/a", ""),
        ("GET", "/v1/queues/mail/jobs", ""),
        ("GET", "/v1/queues/mail", ""),
        ("PUT", "/v1/queues/mail", "{}"),
        ("GET", "/v1/queues", ""),
        ("GET", "/stats", ""),
        ("GET", "/v1/series?metric=pushed", ""),
    ] {
        let reply = raw(&server, method, path, &[], body).await;
        refused(&reply.answer(), 503, "store-unavailable");
        assert_eq!(reply.json()["retryable"], true, "{path}");
        assert!(!reply.header("retry-after").is_empty(), "{path}");
    }
    // What is wrong by itself is said without the store.
    invalid(&server.post("/v1/queues/mail/jobs", json!({"priority": "x"})).await, "/priority");
    let (status, answer) = server.post("/v1/queues/mail/jobs/batch", json!({"jobs": [{"payload": 1}]})).await;
    assert_eq!((status, &answer["results"][0]["problem"]["code"]), (200, &json!("store-unavailable")));
    assert_eq!(raw(&server, "GET", "/metrics", &[], "").await.status, 200);
}

pub async fn stats_tell_what_comes_due_and_count_exactly(place: &Place) {
    let server = Server::start(&place.url).await;
    // A count that takes more than twenty seconds is given up.
    let exact = async || loop {
        let (status, stats) = server.get("/v1/queues/mail/stats?exact=true").await;
        if status == 200 {
            break stats;
        }
        assert_eq!(status, 503, "{stats}");
    };
    assert_eq!((&exact().await["counts"]["ready"], exact().await.get("next_due_at")), (&json!(0), None));
    // Of each priority the first, and of these the first.
    for (priority, at) in [(0, "2999-01-02"), (9, "2999-01-03"), (0, "2999-01-01"), (-3, "2999-01-04")] {
        let run_at = format!("{at}T00:00:00Z");
        server.push("mail", json!({"payload": 1, "priority": priority, "run_at": run_at})).await;
    }
    server.push("other", json!({"payload": 1, "run_at": "2998-01-01T00:00:00Z"})).await;
    let next = json!("2999-01-01T00:00:00.000Z");
    assert_eq!(exact().await["next_due_at"], next);
    let mut expected = mix(&server).await;
    expected["scheduled"] = json!(8);
    let stats = exact().await;
    assert_eq!((&stats["counts"], stats.get("split_is_approximate")), (&expected, None));
    until("the usual figures say so, too", || async {
        let (_, stats) = server.get("/v1/queues/mail/stats").await;
        stats["counts"] == expected && stats["next_due_at"].is_string()
    })
    .await;
    bad_parameter(&server.get("/v1/queues/mail/stats?exact=x").await, "exact");
}
