//! Figures of the past, and rates that can be trusted.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::support::*;

/// The points of a figure: when, and how much.
async fn points(server: &Server, query: &str) -> Vec<(String, u64)> {
    let (status, series) = server.get(&format!("/v1/series?{query}")).await;
    assert_eq!(status, 200, "{series}");
    let point = |point: &Value| (point["at"].as_str().unwrap().to_owned(), point["value"].as_u64().unwrap());
    series["points"].as_array().unwrap().iter().map(point).collect()
}

/// The sum over the last hour.
async fn sum(server: &Server, query: &str) -> u64 {
    points(server, query).await.iter().map(|(_, value)| value).sum()
}

/// Every kind of event that a queue has seen, and how often.
async fn events(server: &Server, of: &str) -> HashMap<&'static str, u64> {
    let names =
        ["pushed", "reserved", "committed", "rolled_back", "moved", "lapsed", "expired", "dead", "cancelled"];
    let mut events = HashMap::new();
    for name in names {
        let count = sum(server, &format!("metric={name}{of}")).await;
        if count > 0 {
            events.insert(name, count);
        }
    }
    events
}

/// Waits until everything that has happened before is in the store: nothing more is written.
async fn until_written(server: &Server) {
    let task = async || {
        let (_, stats) = server.get("/stats").await;
        let tasks = stats["tasks"].as_array().unwrap().clone();
        tasks.into_iter().find(|task| task["name"] == "series").unwrap()
    };
    let written = async || {
        let task = task().await;
        task["runs"].as_u64().unwrap() - task["failures"].as_u64().unwrap()
    };
    let before = written().await;
    until("two steps are over", || async { written().await >= before + 2 }).await;
}

/// One of everything in the queue `mail`, and a push into another one.
async fn live(server: &Server) {
    configure(server, "mail", json!({"max_attempts": 1, "lease_ms": 600_000})).await;
    for end in ["commit", "commit", "rollback", ""] {
        let taken = push_and_take(server, "mail").await;
        if !end.is_empty() {
            assert_eq!(server.settle(&taken, end, json!({})).await.0, 200);
        }
    }
    let taken = push_and_take(server, "mail").await;
    assert_eq!(server.settle(&taken, "move", json!({"queue": "other"})).await.0, 200);
    for _ in 0..3 {
        let id = server.push("mail", json!({"payload": 1, "delay_ms": 600_000})).await;
        assert_eq!(server.send(reqwest::Method::DELETE, &format!("/v1/jobs/{id}"), None).await.0, 200);
    }
    server.push("mail", json!({"payload": 1, "delay_ms": 600_000})).await;
    server.push("other", json!({"payload": 1})).await;
}

fn of_mail() -> HashMap<&'static str, u64> {
    [
        ("pushed", 9),
        ("reserved", 5),
        ("committed", 2),
        ("rolled_back", 1),
        ("moved", 1),
        ("dead", 1),
        ("cancelled", 3),
    ]
    .into()
}

pub async fn what_happened_survives_the_server(place: &Place) {
    let mut server = Server::start(&place.url).await;
    live(&server).await;
    let check = async |server: &Server| {
        assert_eq!(events(server, "&queue=mail").await, of_mail());
        let mut all = of_mail();
        all.insert("pushed", 10);
        assert_eq!(events(server, "").await, all, "the total");
        assert_eq!(events(server, "&queue=other").await, [("pushed", 1)].into());
        assert_eq!(events(server, "&queue=never").await, [].into());
        for of in ["", "&queue=mail"] {
            let percentiles = points(server, &format!("metric=run_time_p95&from=-1h&step=1h{of}")).await;
            assert_eq!(percentiles.len(), 1, "of all that happened: {percentiles:?}");
        }
        assert!(points(server, "metric=run_time_p95&queue=other").await.is_empty(), "nothing was done there");
    };
    check(&server).await;
    // A server that stops writes what it knows; one that is killed has written what was a step ago.
    let since = Instant::now();
    assert!(server.terminate().await.success());
    // It takes a second for that at most. On a machine that is very busy it may have ended before.
    let is_written = since.elapsed() < Duration::from_secs(1);
    let mut server = Server::start(&place.url).await;
    if is_written {
        check(&server).await;
    }
    let pushed = async |server: &Server| {
        [sum(server, "metric=pushed&queue=other").await, sum(server, "metric=pushed").await]
    };
    let [in_other, in_all] = pushed(&server).await;
    server.push("other", json!({"payload": 1})).await;
    until_written(&server).await;
    server.kill();
    let server = Server::start(&place.url).await;
    assert_eq!(pushed(&server).await, [in_other + 1, in_all + 1]);
}

pub async fn a_series_says_how_many_jobs_there_were(place: &Place) {
    let server = Server::start(&place.url).await;
    live(&server).await;
    let last = async |metric: &str, of: &str| {
        points(&server, &format!("metric={metric}{of}")).await.last().map(|(_, value)| *value)
    };
    let expected = [("ready", 0), ("scheduled", 1), ("reserved", 1), ("blocked", 0), ("dead", 1)];
    for (state, count) in expected {
        until("it is known", || async {
            last(&format!("depth_{state}"), "&queue=mail").await == Some(count)
        })
        .await;
    }
    for (metric, of, count) in
        [("depth_ready", "&queue=other", 2), ("depth_ready", "", 2), ("depth_dead", "", 1)]
    {
        until("it is known", || async { last(metric, of).await == Some(count) }).await;
    }
    assert!(last("oldest_ready_age_ms", "&queue=other").await.is_some());
    assert_eq!(last("depth_ready", "&queue=never").await, None);
    // It stays so without being written again, and ends with the last job.
    for job in server.reserve("other", json!({"count": 2, "lease_ms": 600_000})).await {
        assert_eq!(server.settle(&job, "commit", json!({})).await.0, 200);
    }
    until("it is empty", || async { last("depth_ready", "&queue=other").await == Some(0) }).await;
}

pub async fn a_series_has_equal_steps(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1})).await;
    let get = async |query: &str| server.get(&format!("/v1/series?metric=pushed&queue=mail{query}")).await;
    for (query, step_ms, most) in [
        ("", 10_000, 360),
        ("&from=-20m&step=1m", 60_000, 20),
        ("&from=-20m&step=15s", 20_000, 60),
        ("&from=-6h", 60_000, 360),
        ("&from=-6h&step=10s", 60_000, 360),
        ("&from=-7d", 3_600_000, 168),
        ("&from=-7d&step=1d", 86_400_000, 7),
        ("&from=2020-01-01T00:00:00Z&to=2020-01-02T00:00:00Z", 10_000, 1),
    ] {
        let (status, series) = get(query).await;
        assert_eq!((status, &series["step_ms"]), (200, &json!(step_ms)), "{query}: {series}");
        assert_eq!((&series["metric"], &series["queue"]), (&json!("pushed"), &json!("mail")));
        let there = series["points"].as_array().unwrap();
        // No server was there before this one.
        assert!(there.len() < most, "{query}: {series}");
        assert_eq!(there.is_empty(), query.contains("2020"), "{query}: {series}");
    }
    for (query, name) in [
        ("metric=pushed&from=x", "from"),
        ("metric=pushed&from=-1w", "from"),
        ("metric=pushed&from=-1m&to=-2m", "from"),
        ("metric=pushed&to=yesterday", "to"),
        ("metric=pushed&step=0", "step"),
        ("metric=pushed&step=-1s", "step"),
        ("metric=pushed&queue=no%20name", "queue"),
        ("metric=pushed&every=1m", "query"),
        ("metric=done", "metric"),
        ("queue=mail", "metric"),
    ] {
        bad_parameter(&server.get(&format!("/v1/series?{query}")).await, name);
    }
    let (_, problem) = server.get("/v1/series?metric=done").await;
    assert!(problem["detail"].as_str().unwrap().contains("committed, rolled_back"), "{problem}");
}

pub async fn every_busy_queue_has_rates(place: &Place) {
    let server = Server::start(&place.url).await;
    for round in 0..6 {
        let jobs: Vec<Value> =
            (0..500).map(|n| json!({"queue": format!("q{}", round * 500 + n), "payload": n})).collect();
        let (status, answer) = server.post("/v1/jobs", json!({"jobs": jobs})).await;
        assert!(status < 300, "{answer}");
    }
    let (_, all) = server.get("/stats").await;
    let seen =
        all["rates_per_s"]["pushed"].as_f64().unwrap() * all["rates_over_ms"].as_f64().unwrap() / 1000.0;
    // The rates are of the last minute: where the server was there for longer, they may be of a part only.
    let is_whole = |stats: &Value| stats["rates_over_ms"].as_u64().unwrap() <= 50_000;
    assert!(seen < 3001.0 && (seen > 2999.0 || !is_whole(&all)), "{seen}: {all}");
    for n in [0, 199, 200, 201, 299, 499, 500, 1700, 2999] {
        let (_, stats) = server.get(&format!("/v1/queues/q{n}/stats")).await;
        assert!(stats["rates_per_s"]["pushed"].as_f64().unwrap() > 0.0 || !is_whole(&stats), "{stats}");
        assert!(stats.get("rates_are_partial").is_none(), "{stats}");
        assert_eq!(sum(&server, &format!("metric=pushed&queue=q{n}")).await, 1);
    }
    // Those that are written with the minute are there all the time.
    until_written(&server).await;
    for n in [0, 499, 500, 2999] {
        assert_eq!(sum(&server, &format!("metric=pushed&queue=q{n}&from=-10m")).await, 1);
    }
    assert_eq!(sum(&server, "metric=pushed").await, 3000);
}

pub async fn figures_without_data_are_absent(place: &Place) {
    let server = Server::start(&place.url).await;
    server.push("mail", json!({"payload": 1})).await;
    let stats = async |path: &str| server.get(path).await.1;
    for path in ["/stats", "/v1/queues/mail/stats"] {
        let stats = stats(path).await;
        assert!(stats.get("queue_time_ms").is_none() && stats.get("run_time_ms").is_none(), "{stats}");
    }
    let taken = take(&server, "mail").await;
    assert!(stats("/v1/queues/mail/stats").await["queue_time_ms"]["p99"].is_u64());
    assert!(stats("/v1/queues/mail/stats").await.get("run_time_ms").is_none());
    // What is tried again is told from what was never tried.
    assert_eq!(server.settle(&taken, "rollback", json!({"delay_ms": 600_000})).await.0, 200);
    server.push("mail", json!({"payload": 1, "delay_ms": 600_000})).await;
    server.push("mail", json!({"payload": 1, "run_at": "2000-01-01T00:00:00Z"})).await;
    until("the figures are those of now", || async {
        let stats = stats("/v1/queues/mail/stats").await;
        (&stats["counts"]["scheduled"], &stats["backoff"]) == (&json!(2), &json!(1))
    })
    .await;
    let before = stats("/v1/queues/mail/stats").await;
    assert!(before["oldest_first_attempt_age_ms"].as_u64() > Some(86_400_000), "{before}");
    assert!(before.get("oldest_retry_age_ms").is_none(), "{before}");
    let ask = json!({"worker": "w1", "lease_ms": 600_000});
    assert_eq!(server.reserve("mail", ask).await.len(), 1);
    let waiter = begin_reserve(&server, "mail");
    until("one works and one waits", || async {
        let stats = stats("/v1/queues/mail/stats").await;
        (stats["workers"] == 1, stats["reserved_for"]["under_1_minute"] == 1, stats["waiting"]["here"] == 1)
            == (true, true, true)
    })
    .await;
    assert_eq!(stats("/stats").await["waiting"], json!({"here": 1, "elsewhere": false}));
    waiter.abort();
}

pub async fn a_load_that_is_late_holds_up_no_other_figure(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    std::fs::write(points.path().join("load.read"), "pause").unwrap();
    let environment = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let server = Server::start_with(&place.url, &environment).await;
    server.push("a", json!({"payload": 1})).await;
    until("the counts are told without it", || async {
        let (status, stats) = server.get("/stats").await;
        assert_eq!((status, stats.get("backoff"), stats.get("reserved_for")), (200, None, None), "{stats}");
        stats["counts"]["ready"] == 1
    })
    .await;
    let met = points.path().join("load.read.met");
    until("it stands still", || async { met.exists() }).await;
    // The page does not wait for a slow store either: then it lacks the counts.
    until("the page has the counts without it", || async {
        let page = raw(&server, "GET", "/metrics", &[], "").await;
        assert_eq!(page.status, 200, "{}", page.text);
        page.text.contains("tailback_jobs{")
    })
    .await;
    std::fs::write(points.path().join("load.read.go"), "").unwrap();
    until("it is there", || async { server.get("/stats").await.1["backoff"] == 0 }).await;
}

pub async fn all_queues_together_tell_what_is_tried_again(place: &Place) {
    let server = Server::start(&place.url).await;
    let stats = async || server.get("/stats").await.1;
    // More queues than are looked at; the oldest job that is tried again is in the last of them.
    for n in 0..25 {
        let age = format!("2000-01-01T00:{:02}:00Z", 59 - n);
        server.push(&format!("q{n:02}"), json!({"payload": n, "run_at": age})).await;
    }
    until("the oldest one is known", || async {
        let stats = stats().await;
        // The two are of moments that may be some seconds apart, and the next oldest job is a minute younger.
        let [oldest, first] =
            ["oldest_ready_age_ms", "oldest_first_attempt_age_ms"].map(|age| stats[age].as_u64());
        let apart = oldest.zip(first).map(|(oldest, first)| oldest.abs_diff(first));
        stats["oldest_ready_queue"] == "q24" && apart.is_some_and(|apart| apart < 30_000)
    })
    .await;
    let now = stats().await;
    assert!(now.get("oldest_retry_age_ms").is_none(), "{now}");
    assert_eq!((&now["backoff"], now.get("is_partial")), (&json!(0), None), "{now}");
    assert_eq!(now["oldest_ages_are_partial"], true, "one may be in a twenty-first queue: {now}");
    for (queue, back) in [("q24", json!({})), ("q23", json!({"delay_ms": 600_000}))] {
        let taken = server.reserve(queue, json!({"lease_ms": 600_000})).await.remove(0);
        let mut ask = back;
        ask["keep_place"] = json!(queue == "q24");
        assert_eq!(server.settle(&taken, "rollback", ask).await.0, 200);
    }
    server.reserve("q22", json!({"lease_ms": 600_000})).await;
    until("all of it is told", || async {
        let now = stats().await;
        let held = json!({"under_1_minute": 1, "under_10_minutes": 0, "under_1_hour": 0, "longer": 0});
        let retried = now["oldest_retry_age_ms"].as_u64();
        let first = now["oldest_first_attempt_age_ms"].as_u64();
        (&now["backoff"], &now["reserved_for"]) == (&json!(1), &held) && retried > first && first.is_some()
    })
    .await;
    until("no other queue can have an older one", || async {
        stats().await.get("oldest_ages_are_partial").is_none()
    })
    .await;
}

pub async fn stats_and_the_list_count_the_same_queues(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__METRICS_QUEUES", "2")]).await;
    for queue in ["a", "b", "c", "d"] {
        server.push(queue, json!({"payload": 1})).await;
    }
    configure(&server, "a", json!({"max_attempts": 1})).await;
    configure(&server, "d", json!({"max_attempts": 1})).await;
    configure(&server, "empty", json!({"max_attempts": 1})).await;
    until("both say five", || async {
        let listed = server.get("/v1/queues").await.1["queues"].as_array().unwrap().len();
        (listed, &server.get("/stats").await.1["queues"]) == (5, &json!(5))
    })
    .await;
}

/// Takes every job of a queue away. One that came at another server a moment ago may be due a moment later here.
async fn empty(server: &Server, queue: &str) {
    until("no job is left", || async {
        let path = format!("/v1/queues/{queue}/purge");
        let (status, answer) = server.post(&path, json!({"state": "ready"})).await;
        assert_eq!(status, 200, "{answer}");
        server.get(&format!("/v1/queues/{queue}/jobs")).await.1["jobs"] == json!([])
    })
    .await;
}

/// For MongoDB alone: a file has one server.
pub async fn two_servers_say_the_same(place: &Place) {
    let servers = [Server::start(&place.url).await, Server::start(&place.url).await];
    for (server, times) in servers.iter().zip([3, 5]) {
        for _ in 0..times {
            let taken = push_and_take(server, "mail").await;
            assert_eq!(server.settle(&taken, "commit", json!({})).await.0, 200);
        }
    }
    for server in &servers {
        until("both have read what both have written", || async {
            let counts =
                [sum(server, "metric=pushed").await, sum(server, "metric=committed&queue=mail").await];
            counts == [8, 8]
        })
        .await;
    }
    for (one, (other, queue)) in [(0, (1, "one")), (1, (0, "two"))] {
        until("it knows what happens on the other one", || async {
            servers[other].push(queue, json!({"payload": 1})).await;
            let (_, stats) = servers[one].get(&format!("/v1/queues/{queue}/stats")).await;
            stats["rates_per_s"]["pushed"].as_f64().unwrap() > 0.0
        })
        .await;
        empty(&servers[one], queue).await;
    }
    let depths =
        async |server: &Server| points(server, "metric=depth_ready").await.last().map(|(_, value)| *value);
    for server in &servers {
        until("one of them has counted", || async { depths(server).await == Some(0) }).await;
    }
}

pub async fn past_a_bound_nothing_is_said_to_be_zero(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__SERIES_QUEUES", "2")]).await;
    let queues = ["a", "b", "c", "d"];
    for queue in queues {
        server.push(queue, json!({"payload": 1})).await;
    }
    until_written(&server).await;
    let mut named = 0;
    for queue in queues {
        named += sum(&server, &format!("metric=pushed&queue={queue}")).await;
    }
    let others = points(&server, "metric=pushed&others=true").await;
    let in_others: u64 = others.iter().map(|(_, value)| value).sum();
    assert_eq!((named, in_others, sum(&server, "metric=pushed").await), (2, 2, 4), "{others:?}");
    let full: Vec<&String> = others.iter().filter(|(_, value)| *value > 0).map(|(at, _)| at).collect();
    for queue in queues.into_iter().chain(["e"]) {
        let (_, series) = server.get(&format!("/v1/series?metric=pushed&queue={queue}")).await;
        assert_eq!(series["is_partial"], true, "{series}");
        let is_said_zero = |point: &Value| point["value"] == 0 && full.iter().any(|at| point["at"] == **at);
        assert!(!series["points"].as_array().unwrap().iter().any(is_said_zero), "{series}");
    }
    let (_, total) = server.get("/v1/series?metric=pushed").await;
    assert_eq!((total.get("is_partial"), total.get("others")), (None, None), "{total}");
    // How many jobs there are is said of each.
    let (_, depth) = server.get("/v1/series?metric=depth_ready&queue=d").await;
    assert_eq!(depth.get("is_partial"), None, "{depth}");
    let (_, shown) = server.get("/v1/series?metric=run_time_p50&others=true").await;
    assert_eq!((&shown["others"], shown.get("queue")), (&json!(true), None), "{shown}");
    let answer = server.get("/v1/series?metric=pushed&queue=a&others=true").await;
    refused(&answer, 422, "invalid-field");
}
