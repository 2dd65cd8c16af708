//! The page of metrics: what it has is what the catalog, its documentation, the dashboard and the alerts say; counters begin at 0;
//! it stays small and costs the store little, however many queues there are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use common::server::{PATIENCE, Place, Server, metric, until};
use reqwest::Method;
use serde_json::json;
use tailback::telemetry::catalog::{ALL, Kind};

/// One line of the page.
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

/// A metric of each part that is read from the store: of the queues, of what needs attention, of what is counted beside them.
const PARTS: [&str; 7] = [
    "tailback_queues",
    "tailback_attention_unjudged_queues",
    "tailback_workers",
    "tailback_schedules",
    "tailback_schedule_lag_seconds",
    "tailback_semaphores",
    "tailback_store_size_bytes",
];

/// A page, read strictly: samples of each metric together, behind its help and its type.
struct Page {
    types: BTreeMap<String, String>,
    samples: Vec<Sample>,
}

/// Reads `name="value",…}`, and returns what is behind it.
fn labels(mut text: &str) -> (BTreeMap<String, String>, &str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, rest) = text.split_once("=\"").unwrap();
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c => c,
                }),
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice");
        text = &rest[end + 1..];
        match text.strip_prefix(',') {
            Some(more) => text = more,
            None => return (labels, text.strip_prefix('}').unwrap()),
        }
    }
}

impl Page {
    async fn of(server: &Server) -> Self {
        let url = format!("{}/metrics", server.base);
        let text = server.http.get(url).send().await.unwrap().text().await.unwrap();
        let (mut types, mut samples) = (BTreeMap::new(), Vec::new());
        let (mut current, mut helped) = (String::new(), String::new());
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(!help.is_empty());
                name.clone_into(&mut helped);
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, helped, "no help");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} in two places");
                name.clone_into(&mut current);
            } else {
                let at = line.find(['{', ' ']).unwrap();
                let (name, rest) = line.split_at(at);
                let (labels, value) = match rest.strip_prefix('{') {
                    Some(rest) => labels(rest),
                    None => (BTreeMap::new(), rest),
                };
                let value = value.trim().parse().unwrap_or_else(|_| panic!("{line}"));
                assert_eq!(family(name, &types), current, "{line}");
                samples.push(Sample { name: name.to_owned(), labels, value });
            }
        }
        let unique: BTreeSet<_> = samples.iter().map(|sample| (&sample.name, &sample.labels)).collect();
        assert_eq!(unique.len(), samples.len(), "a series twice");
        Self { types, samples }
    }

    /// One that has all of its parts, and how many pages it took: a part that the store does not give in time is left out.
    async fn whole(server: &Server) -> (Self, u32) {
        let (end, mut pages) = (Instant::now() + PATIENCE, 1);
        loop {
            let page = Self::of(server).await;
            let missing = PARTS.iter().find(|name| page.of_metric(name).next().is_none());
            let Some(missing) = missing else { return (page, pages) };
            assert!(Instant::now() < end, "no page has {missing}");
            pages += 1;
        }
    }

    fn of_metric(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| family(&sample.name, &self.types) == name)
    }
}

/// The metric that a series is of.
fn family(name: &str, types: &BTreeMap<String, String>) -> String {
    let ends = ["_bucket", "_sum", "_count"].into_iter().filter_map(|end| name.strip_suffix(end));
    let mut histograms = ends.filter(|base| types.get(*base).is_some_and(|kind| kind == "histogram"));
    histograms.next().unwrap_or(name).to_owned()
}

/// A server on which something of everything has happened.
async fn busy(place: &Place) -> Server {
    let server = Server::start(&place.url).await;
    let (put, semaphore) = (Method::PUT, json!({"capacity": 2}));
    assert_eq!(server.send(put.clone(), "/v1/semaphores/db", Some(semaphore)).await.0, 200);
    let rule = json!({"cron": "0 0 1 1 *", "queue": "mail", "job": {"payload": 1}});
    assert!(server.send(put, "/v1/schedules/yearly", Some(rule)).await.0 < 300);
    assert_eq!(server.post("/v1/workers/w/heartbeat", json!({})).await.0, 200);
    for call in ["commit", "rollback"] {
        server.push("mail", json!({"payload": 1, "max_attempts": 1, "semaphores": ["db"]})).await;
        let jobs = server.reserve("mail", json!({"wait_ms": 60_000, "lease_ms": 600_000})).await;
        assert_eq!(server.settle(&jobs[0], call, json!({})).await.0, 200);
    }
    server.push("mail", json!({"payload": 1})).await;
    until("the counts are read", || async {
        metric(&server, r#"tailback_jobs{queue="mail",state="ready"}"#).await == 1.0
    })
    .await;
    server
}

/// Metrics that a server has not, over a store of one server.
const OF_SEVERAL: [&str; 2] = ["tailback_signals_told_total", "tailback_signals_heard_total"];

async fn the_page_has_what_the_catalog_says(place: &Place) {
    let server = busy(place).await;
    until("the census is read", || async { metric(&server, "tailback_semaphores").await == 1.0 }).await;
    let (page, _) = Page::whole(&server).await;
    for known in ALL {
        if place.url.starts_with("sqlite") && OF_SEVERAL.contains(&known.name) {
            continue;
        }
        assert_eq!(
            page.types.get(known.name).map(String::as_str),
            Some(known.kind.as_str()),
            "{}",
            known.name
        );
        let mut named: BTreeSet<&str> = known.labels.iter().copied().collect();
        for sample in page.of_metric(known.name) {
            match sample.name.ends_with("_bucket") && known.kind == Kind::Histogram {
                true => named.insert("le"),
                false => named.remove("le"),
            };
            let found: BTreeSet<&str> = sample.labels.keys().map(String::as_str).collect();
            assert_eq!(found, named, "{}", sample.name);
        }
    }
    for name in page.types.keys() {
        assert!(ALL.iter().any(|known| known.name == name), "{name} is not in the catalog");
    }
    for (series, value) in [
        (r#"tailback_job_events_total{event="dead"}"#, 1.0),
        (r#"tailback_queue_job_events_total{queue="mail",event="pushed"}"#, 3.0),
        (r#"tailback_queue_job_events_total{queue="(others)",event="pushed"}"#, 0.0),
        (r#"tailback_queue_job_run_seconds_count{queue="mail"}"#, 1.0),
        (r#"tailback_jobs{queue="mail",state="dead"}"#, 1.0),
        (r#"tailback_semaphore_capacity{semaphore="db"}"#, 2.0),
        ("tailback_workers", 1.0),
        ("tailback_schedules", 1.0),
        ("tailback_schedule_lag_seconds", 0.0),
        ("tailback_ready", 1.0),
    ] {
        until(&format!("{series} is {value}"), || async { metric(&server, series).await == value }).await;
    }
    for series in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        r#"tailback_store_size_bytes{part="data"}"#,
        "tailback_store_connections_opened_total",
    ] {
        until(&format!("there is {series}"), || async { metric(&server, series).await > 0.0 }).await;
    }
}

async fn counters_begin_at_zero(place: &Place) {
    let server = Server::start(&place.url).await;
    let failed = |sample: &&Sample| sample.labels["outcome"] == "error";
    let tasks = |page: &Page| page.of_metric("tailback_task_runs_total").filter(failed).count();
    until("the tasks are started", || async { tasks(&Page::of(&server).await) >= 12 }).await;
    let page = Page::of(&server).await;
    let events: BTreeMap<&str, f64> = page
        .of_metric("tailback_job_events_total")
        .map(|event| (&*event.labels["event"], event.value))
        .collect();
    let all =
        ["cancelled", "committed", "dead", "expired", "lapsed", "moved", "pushed", "reserved", "rolled_back"];
    assert_eq!(events, all.map(|event| (event, 0.0)).into());
    let documented = include_str!("../docs/metrics.md").lines().find(|line| line.starts_with("| `event` |"));
    for event in all {
        assert!(documented.unwrap().contains(&format!("`{event}`")), "{event}: {documented:?}");
    }
    let kinds = page.of_metric("tailback_store_errors_total");
    assert_eq!(kinds.map(|kind| &*kind.labels["kind"]).collect::<BTreeSet<_>>().len(), 6);
    assert!(page.of_metric("tailback_task_runs_total").filter(failed).all(|task| task.value == 0.0));
    let failures =
        r#"tailback_http_requests_total{method="POST",route="/v1/queues/{queue}/jobs",status="503"}"#;
    let (name, rest) = failures.split_once('{').unwrap();
    let (wanted, _) = labels(rest);
    assert!(page.samples.iter().any(|sample| sample.name == name && sample.labels == wanted), "{failures}");
}

async fn an_emptied_queue_stays_at_zero(place: &Place) {
    let server = Server::start(&place.url).await;
    let ready = r#"tailback_jobs{queue="mail",state="ready"}"#;
    server.push("mail", json!({"payload": 1})).await;
    until("the job is counted", || async { metric(&server, ready).await == 1.0 }).await;
    assert_eq!(server.post("/v1/queues/mail/pop", json!({})).await.0, 200);
    until("the queue is empty", || async {
        let (page, _) = Page::whole(&server).await;
        let mine: Vec<f64> = page
            .of_metric("tailback_jobs")
            .filter(|sample| sample.labels["queue"] == "mail")
            .map(|sample| sample.value)
            .collect();
        assert_eq!(mine.len(), 6, "it has not gone");
        mine.iter().all(|value| *value == 0.0)
    })
    .await;
    let (page, _) = Page::whole(&server).await;
    let age: Vec<f64> = page.of_metric("tailback_oldest_ready_seconds").map(|sample| sample.value).collect();
    assert_eq!(age, [0.0]);
}

/// How often this server has called this method of the store.
async fn calls(server: &Server, call: &str) -> f64 {
    metric(server, &format!("tailback_store_call_seconds_count{{call=\"{call}\"}}")).await
}

async fn many_queues_are_a_bounded_page_and_no_call_each(place: &Place) {
    let server = Server::start_with(&place.url, &[("TAILBACK_LIMITS__METRICS_QUEUES", "50")]).await;
    for part in 0..10 {
        let job = |n: usize| json!({"queue": format!("q{n}"), "payload": n});
        let jobs: Vec<_> = (part * 1000..(part + 1) * 1000).map(job).collect();
        assert_eq!(server.post("/v1/jobs", json!({"jobs": jobs})).await.0, 200);
    }
    until("all are counted", || async { metric(&server, "tailback_queues").await == 10_000.0 }).await;
    let began = (calls(&server, "counts").await, calls(&server, "with_jobs").await);
    let (page, pages) = Page::whole(&server).await;
    let ended = (calls(&server, "counts").await, calls(&server, "with_jobs").await);
    assert_eq!(began.0, ended.0, "no queue is asked for by itself");
    // Before it and behind it there is one more.
    assert!(ended.1 - began.1 <= f64::from(2 + pages), "one call at most for each page");
    let listed = |name: &str| {
        page.of_metric(name).map(|sample| sample.labels["queue"].clone()).collect::<BTreeSet<_>>().len()
    };
    assert_eq!((listed("tailback_jobs"), listed("tailback_queue_job_events_total")), (51, 51));
    // The others have neither an age nor a pause. No queue was emptied, and which of them need attention is a matter of time.
    let of_queues = page.samples.iter().filter(|sample| sample.labels.contains_key("queue"));
    let of_attention = |sample: &&Sample| sample.name == "tailback_queue_attention";
    let (attention, others): (Vec<&Sample>, Vec<&Sample>) = of_queues.partition(of_attention);
    assert_eq!(others.len(), (29 + 8) * 50 + 29 + 6);
    assert!(listed("tailback_queue_attention") <= 50 && attention.len() <= 7 * 50, "{}", attention.len());
    let sum = |name: &str, label: &str, value: &str| -> f64 {
        page.of_metric(name).filter(|sample| sample.labels[label] == value).map(|sample| sample.value).sum()
    };
    assert_eq!(sum("tailback_jobs", "state", "ready"), 10_000.0);
    assert_eq!(sum("tailback_queue_job_events_total", "event", "pushed"), 10_000.0);
    assert_eq!(sum("tailback_job_events_total", "event", "pushed"), 10_000.0);
}

/// The names of metrics in a text, with the text behind each.
fn named(text: &str) -> Vec<(&str, &str)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let begins = ["tailback_", "process_"].into_iter().flat_map(|begin| text.match_indices(begin));
    let begins = begins.filter(|(at, _)| !text[..*at].ends_with(is_part)).map(|(at, _)| at);
    begins
        .map(|at| {
            let end = text[at..].find(|c| !is_part(c)).map_or(text.len(), |end| at + end);
            (&text[at..end], &text[end..])
        })
        .collect()
}

/// The matchers of a selector `{label="value", …}` right behind a name: label, operator, value.
fn matchers(behind: &str) -> Vec<(String, &'static str, String)> {
    let Some(inside) = behind.strip_prefix('{').and_then(|rest| rest.split_once('}')) else {
        return Vec::new();
    };
    let parts = inside.0.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let operator = ["=~", "!=", "!~", "="].into_iter().find(|op| part.contains(op)).unwrap();
            let (label, value) = part.split_once(operator).unwrap();
            (label.to_owned(), operator, value.trim_matches(['"', '\\']).to_owned())
        })
        .collect()
}

/// What Prometheus itself adds to every series.
const ADDED: [&str; 2] = ["instance", "job"];

async fn the_dashboard_and_the_alerts_name_what_is_there(place: &Place) {
    let server = busy(place).await;
    until("the census is read", || async { metric(&server, "tailback_semaphores").await == 1.0 }).await;
    let (page, _) = Page::whole(&server).await;
    let dashboard = include_str!("../ops/grafana.json").replace("\\\"", "\"");
    let alerts = include_str!("../ops/alerts.yaml").replace("\\\"", "\"");
    let mut seen = 0;
    for (name, behind) in named(&dashboard).into_iter().chain(named(&alerts)) {
        let samples: Vec<&Sample> = page.samples.iter().filter(|sample| sample.name == name).collect();
        assert!(!samples.is_empty(), "the page has no {name}");
        for (label, operator, value) in matchers(behind) {
            if ADDED.contains(&&*label) {
                continue;
            }
            // Of one queue only those reasons are there that it has; of all queues every one is counted.
            let counted = |one: &&Sample| label == "reason" && one.name == "tailback_attention_queues";
            let samples = samples.iter().copied().chain(page.samples.iter().filter(counted));
            let known: BTreeSet<&str> =
                samples.filter_map(|one| one.labels.get(&label)).map(|v| &**v).collect();
            assert!(!known.is_empty(), "{name} has no label {label}");
            // Statuses and names are open; what else is asked for must be there.
            if ["queue", "status"].contains(&&*label) {
                continue;
            }
            assert!(["=", "=~"].contains(&operator), "{name}{{{label}{operator}…}} is not judged here");
            for one in value.split('|') {
                assert!(known.contains(one), "{name} has no {label}=\"{one}\", only {known:?}");
            }
        }
        seen += 1;
    }
    assert!(seen > 80, "{seen}");
    for grouping in [&dashboard, &alerts].into_iter().flat_map(|text| text.split("by (").skip(1)) {
        for label in grouping.split(')').next().unwrap().split(',').map(str::trim) {
            let is_known = label == "le" || ALL.iter().any(|known| known.labels.contains(&label));
            assert!(is_known || ADDED.contains(&label), "no metric has the label {label}");
        }
    }
}

#[test]
fn the_documentation_lists_the_catalog() {
    let text = include_str!("../docs/metrics.md");
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `tailback_") || line.starts_with("| `process_"))
        .collect();
    let wanted = ALL.iter().map(|known| {
        let unit = match known.name {
            name if name.contains("_seconds") => "seconds",
            name if name.contains("_bytes") => "bytes",
            _ => "",
        };
        let labels: Vec<String> = known.labels.iter().map(|label| format!("`{label}`")).collect();
        let row = format!(
            "| `{}` | {} | {unit} | {} | {} |",
            known.name,
            known.kind.as_str(),
            labels.join(", "),
            known.help
        );
        row.replace("|  |", "| |").replace("|  |", "| |")
    });
    assert_eq!(rows, wanted.collect::<Vec<_>>());
    for label in ALL.iter().flat_map(|known| known.labels) {
        let is_told =
            text.lines().any(|line| line.starts_with("| `") && line.contains(&format!("`{label}`")));
        assert!(is_told, "what the values of {label} are");
    }
}

on_every_store! {
    the_page_has_what_the_catalog_says
    counters_begin_at_zero
    an_emptied_queue_stays_at_zero
    many_queues_are_a_bounded_page_and_no_call_each
    the_dashboard_and_the_alerts_name_what_is_there
}
