//! Lists of queues with their figures: in every order, page by page, and which of them need attention.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use reqwest::Method;

use super::support::*;

/// Nothing must be delivered for a second only until a queue is starved, and what came and left is compared over a second.
const SOON: &[(&str, &str)] =
    &[("TAILBACK_ATTENTION__IDLE_MS", "1000"), ("TAILBACK_ATTENTION__WINDOW_MS", "1000")];

const QUEUES: usize = 300;
/// Longer than any of these cases takes: what comes back counts anew.
const LEASE_MS: u64 = 600_000;

fn name(n: usize) -> String {
    format!("q.{n:03}")
}

/// Some jobs in each queue: ready, dead, reserved and done ones, as many as its number says.
async fn fill(server: &Server) {
    for n in 0..QUEUES {
        let queue = name(n);
        let jobs = vec![json!({"payload": n, "max_attempts": 1}); n % 7 + 2];
        let pushed = server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({"jobs": jobs})).await;
        assert_eq!(pushed.0, 200, "{pushed:?}");
        if n % 5 == 1 {
            server.reserve(&queue, json!({"worker": "w", "lease_ms": LEASE_MS})).await;
        } else if n % 5 == 2 {
            let job = &server.reserve(&queue, json!({"lease_ms": LEASE_MS})).await[0];
            assert_eq!(server.settle(job, "rollback", json!({})).await.0, 200);
        } else if n % 5 == 3 {
            let path = format!("/v1/queues/{queue}/pop");
            assert_eq!(server.post(&path, json!({})).await.0, 200);
        }
    }
}

/// Returns all pages of a list.
async fn pages(server: &Server, query: &str, limit: usize) -> Vec<Value> {
    loop {
        let (since, mut all, mut cursor) = (Instant::now(), Vec::new(), String::new());
        loop {
            let (status, page) = server.get(&format!("/v1/queues?{query}&limit={limit}{cursor}")).await;
            assert_eq!(status, 200, "{page}");
            let queues = page["queues"].as_array().unwrap();
            assert!(queues.len() <= limit && (queues.len() == limit || page["cursor"].is_null()), "{page}");
            all.extend(queues.iter().cloned());
            let Some(next) = page["cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        // The board of the first page is kept for half a minute.
        if since.elapsed() < Duration::from_secs(25) {
            return all;
        }
    }
}

fn names(queues: &[Value]) -> Vec<&str> {
    queues.iter().map(|queue| queue["queue"].as_str().unwrap()).collect()
}

/// What a queue is sorted by, larger where there is more of it; `None` where it has no such figure.
fn value(key: &str, queue: &Value) -> Option<f64> {
    let figures = &queue["figures"];
    let waiting = &figures["waiting"];
    match key {
        "oldest" => figures["oldest_ready_age_ms"].as_f64(),
        "pushed" | "finished" | "failed" => figures["rates_per_s"][key].as_f64(),
        "waiting" => Some(waiting["here"].as_f64()? + f64::from(u8::from(waiting["elsewhere"].as_bool()?))),
        "queue_time_p95" => figures["queue_time_ms"]["p95"].as_f64(),
        "run_time_p95" => figures["run_time_ms"]["p95"].as_f64(),
        "attention" => {
            let order = ["paused", "dead", "growing", "failing", "blocked", "stuck", "starved"];
            let reason = figures["attention"][0]["reason"].as_str()?;
            order.iter().position(|other| *other == reason).map(|at| at as f64)
        }
        state => figures["counts"][state].as_f64(),
    }
}

pub async fn queues_are_listed_in_every_order_page_by_page(place: &Place) {
    let server = Server::start(&place.url).await;
    fill(&server).await;
    until("all queues are on the board", || async {
        let (_, page) = server.get("/v1/queues?figures=true&limit=1").await;
        let (_, last) = server.get(&format!("/v1/queues/{}/stats", name(QUEUES - 1))).await;
        let shown = pages(&server, "prefix=q.299&figures=true", 1).await;
        page["figures"]["matched"] == QUEUES
            && shown.first().is_some_and(|shown| shown["figures"]["counts"] == last["counts"])
    })
    .await;
    for key in [
        "ready",
        "scheduled",
        "reserved",
        "blocked",
        "dead",
        "done",
        "oldest",
        "pushed",
        "finished",
        "failed",
        "waiting",
        "queue_time_p95",
        "run_time_p95",
        "attention",
    ] {
        for (sort, sign) in [(key.to_owned(), 1.0), (format!("-{key}"), -1.0)] {
            let all = pages(&server, &format!("sort={sort}"), 37).await;
            let found: BTreeSet<&str> = names(&all).into_iter().collect();
            assert_eq!((all.len(), found.len()), (QUEUES, QUEUES), "{sort}: each once");
            let keys: Vec<(bool, f64)> = all
                .iter()
                .map(|queue| value(key, queue))
                .map(|value| (value.is_none(), value.map_or(0.0, |value| value * sign)))
                .collect();
            assert!(keys.is_sorted(), "{sort}: {keys:?}");
            for (pair, two) in keys.windows(2).zip(all.windows(2)) {
                assert!(pair[0] != pair[1] || key == "oldest" || names(two).is_sorted(), "{sort}: by name");
            }
        }
    }
    let all: Vec<String> = (0..QUEUES).map(name).collect();
    for query in ["sort=name", "figures=true", "figures=false"] {
        assert_eq!(names(&pages(&server, query, 37).await), all, "{query}");
    }
    let mut back = names(&pages(&server, "sort=-name&figures=false", 100).await).join(" ");
    assert!(back.starts_with("q.299 q.298 ") && back.ends_with(" q.000"), "{back}");
    back.clear();
    let some = pages(&server, "prefix=q.01&sort=-dead", 3).await;
    assert_eq!(names(&some)[..2], ["q.012", "q.017"]);
    assert_eq!(some.len(), 10);
}

pub async fn a_queue_of_a_list_has_its_figures(place: &Place) {
    let server = Server::start(&place.url).await;
    configure(&server, "mail", json!({"max_reserved": 5})).await;
    for _ in 0..3 {
        server.push("mail", json!({"payload": 1})).await;
    }
    server.reserve("mail", json!({"worker": "w1", "lease_ms": LEASE_MS})).await;
    let taken = &server.reserve("mail", json!({"worker": "w2", "lease_ms": LEASE_MS})).await[0];
    assert_eq!(server.settle(taken, "commit", json!({})).await.0, 200);
    let waiter = begin_reserve(&server, "other");
    until("the figures are there", || async {
        let (_, page) = server.get("/v1/queues?figures=true").await;
        let figures = &page["queues"][0]["figures"];
        let (_, stats) = server.get("/v1/queues/mail/stats").await;
        // What happened in this second counts from the next one on.
        let are_whole = ["queue_time_ms", "run_time_ms"]
            .iter()
            .all(|field| figures[field] != Value::Null && figures[field] == stats[field]);
        let rates = &figures["rates_per_s"];
        figures["counts"]["reserved"] == 1
            && figures["sparkline"]["finished"] != Value::Null
            && are_whole
            && rates["pushed"].as_f64() > rates["finished"].as_f64()
            && rates["finished"].as_f64() > Some(0.0)
    })
    .await;
    let (_, page) = server.get("/v1/queues?figures=true").await;
    let queue = &page["queues"][0];
    let (figures, of_list) = (&queue["figures"], &page["figures"]);
    assert_eq!((&queue["queue"], &queue["max_reserved"]), (&json!("mail"), &json!(5)));
    let (_, stats) = server.get("/v1/queues/mail/stats").await;
    for field in ["counts", "queue_time_ms", "run_time_ms", "waiting", "workers", "attention"] {
        assert_eq!(figures[field], stats[field], "{field}: {figures}");
    }
    assert!(figures["rates_per_s"]["pushed"].as_f64() > figures["rates_per_s"]["finished"].as_f64());
    let steps = |figure: &str| -> (usize, u64) {
        let steps = figures["sparkline"][figure].as_array().unwrap();
        (steps.len(), steps.iter().map(|step| step.as_u64().unwrap()).sum())
    };
    let (length, pushed) = steps("pushed");
    assert_eq!((pushed, steps("finished"), steps("failed")), (3, (length, 1), (length, 0)));
    assert_eq!((&of_list["matched"], &of_list["step_ms"]), (&json!(1), &json!(30_000)));
    assert_eq!(of_list["attention"]["starved"], 0);
    let (_, plain) = server.get("/v1/queues").await;
    assert!(plain["queues"][0].get("figures").is_none() && plain.get("figures").is_none(), "{plain}");
    let (_, hidden) = server.get("/v1/queues?sort=-ready&figures=false").await;
    assert!(hidden["queues"][0].get("figures").is_none() && hidden["queues"][0]["queue"] == "mail");
    drop(waiter);
}

pub async fn what_is_no_order_or_cursor_is_refused(place: &Place) {
    let server = Server::start(&place.url).await;
    for n in 0..3 {
        server.push(&name(n), json!({"payload": 1})).await;
    }
    for sort in
        ["", "-", "size", "Ready", "--ready", "ready,dead", "workers", "%00", "ready%20", "%F0%9F%92%A9"]
    {
        bad_parameter(&server.get(&format!("/v1/queues?sort={sort}")).await, "sort");
    }
    for attention in ["", "yes", "dead,", "dead,huh", "Dead", "dead%20"] {
        bad_parameter(&server.get(&format!("/v1/queues?attention={attention}")).await, "attention");
    }
    for figures in ["", "1", "yes"] {
        bad_parameter(&server.get(&format!("/v1/queues?figures={figures}")).await, "figures");
    }
    for limit in ["0", "1001", "-1", "x", "99999999999999999999"] {
        bad_parameter(&server.get(&format!("/v1/queues?sort=ready&limit={limit}")).await, "limit");
    }
    until("the queues are on the board", || async {
        server.get("/v1/queues?figures=true").await.1["figures"]["matched"] == 3
    })
    .await;
    let cursor = async |query: &str| {
        let (_, page) = server.get(&format!("/v1/queues?limit=1&{query}")).await;
        page["cursor"].as_str().unwrap().to_owned()
    };
    let (plain, by_ready) = (cursor("prefix=q").await, cursor("sort=ready").await);
    for (query, cursor) in [
        ("sort=-ready", by_ready.as_str()),
        ("sort=name", by_ready.as_str()),
        ("prefix=q", by_ready.as_str()),
        ("sort=ready", plain.as_str()),
        ("sort=ready", "!"),
        ("sort=ready", "AAAA"),
        ("sort=ready", ""),
        ("sort=ready", &"A".repeat(600)),
    ] {
        bad_parameter(&server.get(&format!("/v1/queues?{query}&cursor={cursor}")).await, "cursor");
    }
    // A cursor of a board that nobody has any more goes on behind its value.
    let old = "cmVhZHkgMTIzIDEgcS4wMDA"; // "ready 123 1 q.000"
    let (status, page) = server.get(&format!("/v1/queues?sort=ready&cursor={old}")).await;
    assert_eq!((status, names(page["queues"].as_array().unwrap())), (200, vec!["q.001", "q.002"]));
}

/// Returns why a queue needs attention, as its figures say.
async fn attention(server: &Server, queue: &str) -> Vec<Value> {
    let (status, stats) = server.get(&format!("/v1/queues/{queue}/stats")).await;
    assert_eq!(status, 200, "{stats}");
    stats["attention"].as_array().unwrap().clone()
}

/// Waits until a queue needs attention for this reason, and returns what is said of it. It is not looked at again: a waiter that is just
/// looking for jobs is none for a moment, and without one a queue is not stuck.
async fn until_raised(server: &Server, queue: &str, reason: &str) -> Value {
    let raised = RefCell::new(None);
    until(&format!("{queue} is {reason}"), || async {
        let found = attention(server, queue).await.into_iter().find(|it| it["reason"] == reason);
        let is_raised = found.is_some();
        *raised.borrow_mut() = found;
        is_raised
    })
    .await;
    let found: Value = raised.into_inner().unwrap();
    assert!(found["detail"].as_str().unwrap().len() > 10 && found["next_step"].as_str().unwrap().len() > 10);
    until("the list says so", || async {
        let (_, page) = server.get(&format!("/v1/queues?attention={reason}&prefix={queue}")).await;
        page["queues"][0]["queue"] == queue && page["figures"]["attention"][reason] != 0
    })
    .await;
    found
}

/// Reserves the first job of a queue, and keeps it.
async fn hold(server: &Server, queue: &str) -> Value {
    let jobs = server.reserve(queue, json!({"worker": "w1", "lease_ms": LEASE_MS})).await;
    assert_eq!(jobs.len(), 1, "queue {queue} has no job to reserve");
    jobs.into_iter().next().unwrap()
}

async fn until_cleared(server: &Server, queue: &str, reason: &str) {
    until(&format!("{queue} is not {reason} any more"), || async {
        !attention(server, queue).await.iter().any(|it| it["reason"] == reason)
    })
    .await;
    until("the list does not say so any more", || async {
        let (_, page) = server.get(&format!("/v1/queues?attention={reason}&prefix={queue}")).await;
        page["queues"] == json!([])
    })
    .await;
}

pub async fn nobody_there_and_nothing_delivered_need_attention(place: &Place) {
    let server = Server::start_with(&place.url, SOON).await;
    server.push("starved", json!({"payload": 1})).await;
    let raised = until_raised(&server, "starved", "starved").await;
    assert_eq!((&raised["jobs"], raised["since"].is_string()), (&json!(1), true), "{raised}");
    let series = r#"tailback_queue_attention{queue="starved",reason="starved"}"#;
    until("the metric says so", || async { metric(&server, series).await == 1.0 }).await;
    hold(&server, "starved").await;
    until_cleared(&server, "starved", "starved").await;
    let total = r#"tailback_attention_queues{reason="starved"}"#;
    until("the metric is 0", || async { metric(&server, total).await == 0.0 }).await;

    // One consumer holds all that may be held, and another one waits.
    configure(&server, "stuck", json!({"max_reserved": 1})).await;
    server.push("stuck", json!({"payload": 1})).await;
    server.push("stuck", json!({"payload": 2})).await;
    let held = hold(&server, "stuck").await;
    let waiter = begin_reserve(&server, "stuck");
    let raised = until_raised(&server, "stuck", "stuck").await;
    assert!(raised["detail"].as_str().unwrap().contains("max_reserved of 1"), "{raised}");
    assert_eq!(server.settle(&held, "commit", json!({})).await.0, 200);
    assert_eq!(waiter.await.unwrap().0, 200);
    until_cleared(&server, "stuck", "stuck").await;
}

pub async fn blocked_jobs_need_attention_where_nothing_will_free_them(place: &Place) {
    let server = Server::start_with(&place.url, SOON).await;
    for _ in 0..2 {
        server.push("groups", json!({"payload": 1, "group": "account-7", "max_attempts": 1})).await;
    }
    let head = take(&server, "groups").await;
    assert!(attention(&server, "groups").await.is_empty(), "it is being worked on");
    assert_eq!(server.settle(&head, "rollback", json!({"error": "no"})).await.0, 200);
    let raised = until_raised(&server, "groups", "blocked").await;
    assert_eq!((&raised["job"], &raised["group"]), (&head["id"], &json!("account-7")), "{raised}");
    assert_eq!((&raised["jobs"], raised["since"].is_string()), (&json!(1), true), "{raised}");
    let path = format!("/v1/jobs/{}/retry", head["id"].as_str().unwrap());
    assert_eq!(server.post(&path, json!({})).await.0, 200);
    until_cleared(&server, "groups", "blocked").await;

    let (put, one) = (Method::PUT, json!({"capacity": 1}));
    assert_eq!(server.send(put, "/v1/semaphores/database", Some(one)).await.0, 200);
    for queue in ["holds", "needs"] {
        server.push(queue, json!({"payload": 1, "semaphores": ["database"]})).await;
    }
    let holder = hold(&server, "holds").await;
    assert!(server.reserve("needs", json!({})).await.is_empty());
    let raised = until_raised(&server, "needs", "blocked").await;
    assert_eq!(raised["semaphore"], "database", "{raised}");
    assert_eq!(server.settle(&holder, "commit", json!({})).await.0, 200);
    until_cleared(&server, "needs", "blocked").await;
}

/// Each is looked at, however many there are; until then it is said of how many that is not known, and of one queue what is.
pub async fn every_blocked_queue_is_judged_and_until_then_counted_as_unjudged(place: &Place) {
    const BLOCKED: usize = 120;
    let server = Server::start_with(&place.url, SOON).await;
    for n in 0..BLOCKED {
        let jobs = vec![json!({"payload": n, "group": "g", "max_attempts": 1}); 2];
        let pushed = server.post(&format!("/v1/queues/{}/jobs/batch", name(n)), json!({"jobs": jobs})).await;
        assert_eq!(pushed.0, 200, "{pushed:?}");
        let head = take(&server, &name(n)).await;
        assert_eq!(server.settle(&head, "rollback", json!({})).await.0, 200);
    }
    let path = format!("/v1/queues/{}/stats", name(BLOCKED - 1));
    let (list, stats) = tokio::join!(server.get("/v1/queues?attention=true"), server.get(&path));
    let (figures, stats) = (&list.1["figures"], &stats.1);
    let unjudged = figures["unjudged"].as_u64().unwrap();
    assert!(unjudged + figures["attention"]["blocked"].as_u64().unwrap() <= BLOCKED as u64, "{figures}");
    let is_partial = stats["attention_is_partial"] == true;
    assert!(is_partial || stats["attention"][0]["reason"] == "blocked", "{stats}");
    until("all are judged", || async {
        let (_, page) = server.get("/v1/queues?attention=blocked&limit=1").await;
        let figures = &page["figures"];
        figures["attention"]["blocked"] == BLOCKED
            && figures["matched"] == BLOCKED
            && figures["unjudged"] == 0
    })
    .await;
    let blocked = r#"tailback_attention_queues{reason="blocked"}"#;
    until("the metric says so", || async { metric(&server, blocked).await == BLOCKED as f64 }).await;
    until("none is left out", || async {
        metric(&server, "tailback_attention_unjudged_queues").await == 0.0
    })
    .await;
}

pub async fn failures_growth_the_dead_and_a_pause_need_attention(place: &Place) {
    let server = Server::start_with(&place.url, SOON).await;
    for _ in 0..5 {
        server.push("mail", json!({"payload": 1, "max_attempts": 1})).await;
        let job = take(&server, "mail").await;
        assert_eq!(server.settle(&job, "rollback", json!({"error": "no"})).await.0, 200);
    }
    let raised = until_raised(&server, "mail", "dead").await;
    assert_eq!(raised["jobs"], 5, "{raised}");
    until("it has failed too often", || async {
        // What has failed is compared over a moment only: here it goes on.
        server.push("mail", json!({"payload": 1, "max_attempts": 1})).await;
        let job = take(&server, "mail").await;
        server.settle(&job, "rollback", json!({"error": "no"})).await;
        attention(&server, "mail")
            .await
            .iter()
            .any(|it| it["reason"] == "failing" && it["jobs"].as_u64() > Some(4))
    })
    .await;
    until("followers are told", || async {
        let told = raw(&server, "GET", "/v1/events?queue=mail&for_ms=200", &[], "").await.text;
        told.contains(r#""attention":["dead"]"#) || told.contains(r#""attention":["failing","dead"]"#)
    })
    .await;
    until("enough goes well", || async {
        for _ in 0..20 {
            server.push("mail", json!({"payload": 1})).await;
            let job = take(&server, "mail").await;
            server.settle(&job, "commit", json!({})).await;
        }
        !attention(&server, "mail").await.iter().any(|it| it["reason"] == "failing")
    })
    .await;
    let purge = json!({"state": "dead"});
    assert_eq!(server.post("/v1/queues/mail/purge", purge).await.0, 200);
    until_cleared(&server, "mail", "dead").await;

    let jobs = vec![json!({"payload": 1}); 200];
    until("it grows", || async {
        server.post("/v1/queues/grows/jobs/batch", json!({"jobs": jobs})).await;
        hold(&server, "grows").await; // somebody is there
        attention(&server, "grows").await.iter().any(|it| it["reason"] == "growing")
    })
    .await;
    while server.post("/v1/queues/grows/pop", json!({"count": 1000})).await.1["jobs"] != json!([]) {}
    until_cleared(&server, "grows", "growing").await;

    assert_eq!(server.post("/v1/queues/held/pause", json!({})).await.0, 200);
    until_raised(&server, "held", "paused").await;
    server.push("held", json!({"payload": 1})).await;
    until("jobs wait in it", || async { attention(&server, "held").await[0]["jobs"] == 1 }).await;
    assert_eq!(attention(&server, "held").await.len(), 1, "a paused queue is neither starved nor stuck");
    assert_eq!(server.post("/v1/queues/held/resume", json!({})).await.0, 200);
    until_cleared(&server, "held", "paused").await;
    let (_, stats) = server.get("/stats").await;
    assert_eq!(stats["oldest_ready_queue"], "held", "{stats}");
}
