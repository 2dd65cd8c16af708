//! Which spans are exported, and how they belong together.

use std::time::Instant;

use opentelemetry_proto::tonic::trace::v1::Span;
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::cli;
use crate::common::server::{Place, Server, command, connections, metric, until};
use crate::on_every_store;
use crate::trace::receiver::{
    LONG_MS, Receiver, all_arrive, attribute, context, ids, post_in, reserved, send_in,
};

on_every_store! {
    one_trace_leads_through_the_queue
    a_worker_in_a_trace_of_its_own_is_linked_with_its_jobs
    a_round_is_linked_with_the_requests_that_it_carries
    callers_decide_and_else_chance
    a_run_of_a_schedule_begins_a_trace
    lines_of_the_log_name_their_trace
    what_is_left_is_sent_at_the_end
    a_request_whose_client_leaves_has_a_span
    what_a_worker_settles_is_in_the_trace_of_its_job
}

const EXPORTED: &str = "tailback_trace_spans_exported_total";

/// A trace and a span in it.
type Ids = (Vec<u8>, Vec<u8>);

/// Whether a span is of this trace and a part of this span.
fn is_child(span: &Span, (trace, parent): &Ids) -> bool {
    span.trace_id == *trace && span.parent_span_id == *parent
}

fn own(span: &Span) -> Ids {
    (span.trace_id.clone(), span.span_id.clone())
}

fn links(span: &Span) -> Vec<Ids> {
    span.links.iter().map(|link| (link.trace_id.clone(), link.span_id.clone())).collect()
}

/// Waits for the span of the time that a job has waited in a queue. It must be a part of this one.
async fn queue_time(receiver: &Receiver, parent: &Ids, queue: &str, attempt: u64) -> Span {
    let of = (queue.to_owned(), attempt.to_string());
    let is_it = |span: &Span| {
        let about = (attribute(span, "messaging.destination.name"), attribute(span, "tailback.job.attempt"));
        span.name == "queue time" && about == of
    };
    let span = receiver.span("a queue time", is_it).await;
    assert!(is_child(&span, parent), "{span:?}");
    span
}

/// Waits for the span of a settle. It must be a part of this one.
async fn settle_span(receiver: &Receiver, parent: &Ids, job: &Value, call: &str) {
    let name = format!("POST /v1/jobs/{{id}}/{call}");
    let path = format!("/v1/jobs/{}/{call}", job["id"].as_str().unwrap());
    let is_it = |span: &Span| span.name == name && attribute(span, "url.path") == path;
    let span = receiver.span("a settle", is_it).await;
    assert!(is_child(&span, parent), "{span:?}");
}

/// Calls of the store are parts of the round that carried the request, and nothing else was recorded.
fn only_rounds_have_no_parent(receiver: &Receiver) {
    let spans = receiver.spans();
    assert!(spans.iter().any(|span| span.name == "store push" && span.kind == 3), "{spans:#?}");
    for span in spans.iter().filter(|span| span.parent_span_id.is_empty()) {
        assert!(span.name.starts_with("round "), "{span:?}");
    }
}

/// The producer is in a trace, and its worker sends nothing of it.
async fn one_trace_leads_through_the_queue(place: &Place) {
    let receiver = Receiver::start().await;
    let secret = ("TAILBACK_TRACE__HEADERS", r#"["authorization: Bearer secret"]"#);
    let environment: Vec<_> = receiver.environment("0").into_iter().chain([secret]).collect();
    let server = Server::start_with(&place.url, &environment).await;
    let sent = context("01");
    let sent_ids = ids(&sent);
    let headers = [("traceparent", &*sent), ("tracestate", "a=1"), ("x-request-id", "the-push")];
    let path = "/v1/queues/first/jobs";
    let body = json!({"payload": 1, "then": [{"queue": "second"}]});
    assert_eq!(post_in(&server, path, &headers, body).await.0, 201);
    let request =
        receiver.span("the push", |span| attribute(span, "tailback.request_id") == "the-push").await;
    assert!(is_child(&request, &sent_ids), "{request:?}");
    assert_eq!((&*request.name, request.kind), ("POST /v1/queues/{queue}/jobs", 2));
    assert_eq!(
        (attribute(&request, "http.response.status_code"), &*request.trace_state),
        ("201".into(), "a=1")
    );
    assert_eq!(attribute(&request, "url.path"), path);
    assert!(request.end_time_unix_nano > request.start_time_unix_nano);

    let waited = async |queue: &str, attempt: u64| queue_time(&receiver, &sent_ids, queue, attempt).await;
    // A settle belongs to its job.
    let settled = async |job: &Value, call: &str, body: Value| {
        assert_eq!(server.settle(job, call, body).await.0, 200);
        settle_span(&receiver, &sent_ids, job, call).await;
    };
    let job = reserved(&server, "first").await;
    assert_eq!(job["headers"]["traceparent"], json!(sent));
    let span = waited("first", 1).await;
    assert_eq!(attribute(&span, "messaging.message.id"), job["id"]);
    settled(&job, "rollback", json!({"delay_ms": 300})).await;
    let job = reserved(&server, "first").await;
    let span = waited("first", 2).await;
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano);
    settled(&job, "commit", json!({"push": [{"queue": "child"}]})).await;
    assert_eq!(reserved(&server, "child").await["headers"]["traceparent"], json!(sent));
    waited("child", 1).await;
    let job = reserved(&server, "second").await;
    waited("second", 1).await;
    settled(&job, "move", json!({"queue": "third"})).await;
    let popped = server.post("/v1/queues/third/pop", json!({})).await.1;
    assert_eq!(popped["jobs"][0]["headers"]["traceparent"], json!(sent));
    waited("third", 1).await;

    only_rounds_have_no_parent(&receiver);
    let (headers, service) = receiver.said.lock().unwrap()[0].clone();
    assert_eq!(
        (&headers["content-type"], &headers["authorization"]),
        (&"application/x-protobuf".parse().unwrap(), &"Bearer secret".parse().unwrap())
    );
    assert!(service.contains(&("service.name".to_owned(), "tailback".to_owned())), "{service:?}");
    until("what was exported is counted", || async { metric(&server, EXPORTED).await >= 10.0 }).await;
}

async fn a_worker_in_a_trace_of_its_own_is_linked_with_its_jobs(place: &Place) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("0")).await;
    let sent = context("01");
    let sent_ids = ids(&sent);
    assert_eq!(post_in(&server, "/v1/queues/first/jobs", &[("traceparent", &sent)], json!({})).await.0, 201);
    let worker = context("01");
    let in_worker = [("traceparent", &*worker), ("x-request-id", "the-reserve")];
    let ask = json!({"lease_ms": LONG_MS});
    let (_, answer) = post_in(&server, "/v1/queues/first/reserve", &in_worker, ask).await;
    let job = &answer["jobs"][0];
    let reserve =
        receiver.span("the reserve", |span| attribute(span, "tailback.request_id") == "the-reserve").await;
    assert!(is_child(&reserve, &ids(&worker)) && links(&reserve).contains(&sent_ids), "{reserve:?}");
    let by = own(&reserve);
    let span = receiver
        .span("its queue time", |span| span.name == "queue time" && links(span) == [by.clone()])
        .await;
    assert!(is_child(&span, &sent_ids));
    let (path, body) = (
        format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap()),
        json!({"reservation": job["reservation"]}),
    );
    let in_worker = [("traceparent", &*worker), ("x-request-id", "the-commit")];
    assert_eq!(post_in(&server, &path, &in_worker, body).await.0, 200);
    let commit =
        receiver.span("the commit", |span| attribute(span, "tailback.request_id") == "the-commit").await;
    assert!(is_child(&commit, &ids(&worker)) && links(&commit).contains(&sent_ids), "{commit:?}");
    only_rounds_have_no_parent(&receiver);
}

async fn a_round_is_linked_with_the_requests_that_it_carries(place: &Place) {
    let (receiver, points) = (Receiver::start().await, tempfile::tempdir().unwrap());
    let faults = ("TAILBACK_FAULTS", points.path().to_str().unwrap());
    let environment: Vec<_> = receiver.environment("0").into_iter().chain([faults]).collect();
    let server = Server::start_with(&place.url, &environment).await;
    // Of those that wait while the first round is under way, the next takes all. So it waits until all are there.
    std::fs::write(points.path().join("round.begin"), "pause").unwrap();
    let contexts: Vec<String> = (0..64).map(|n| context(if n % 8 == 7 { "00" } else { "01" })).collect();
    let push = async |sent: &String| {
        assert_eq!(post_in(&server, "/v1/queues/q/jobs", &[("traceparent", sent)], json!({})).await.0, 201);
    };
    let let_go = async {
        until("all are there", || async { connections(&server).await >= 64.0 }).await;
        std::fs::write(points.path().join("round.begin.go"), "").unwrap();
    };
    tokio::join!(futures::future::join_all(contexts.iter().map(push)), let_go);
    let requests = || receiver.spans().into_iter().filter(|span| span.kind == 2).collect::<Vec<Span>>();
    until("all requests", || async { requests().len() == 56 }).await;
    let rounds =
        || receiver.spans().into_iter().filter(|span| span.name == "round push").collect::<Vec<Span>>();
    until("all rounds", || async { rounds().iter().map(|round| round.links.len()).sum::<usize>() == 56 })
        .await;
    let (requests, rounds) = (requests(), rounds());
    assert!(rounds.iter().any(|round| round.links.len() > 1), "{rounds:?}");
    for round in &rounds {
        assert!(
            round.parent_span_id.is_empty()
                && attribute(round, "tailback.round.size").parse::<usize>().unwrap() >= round.links.len()
        );
        for link in links(round) {
            let request = requests.iter().find(|request| own(request) == link).unwrap();
            assert!(links(request).contains(&own(round)), "and back: {request:?}");
        }
        receiver.span("its call", |span| span.name == "store push" && is_child(span, &own(round))).await;
    }
}

async fn callers_decide_and_else_chance(place: &Place) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("1")).await;
    let not_sampled = context("00");
    let push = async |server: &Server, headers: &[(&str, &str)]| {
        assert_eq!(post_in(server, "/v1/queues/q/jobs", headers, json!({})).await.0, 201);
        reserved(server, "q").await
    };
    let job = push(&server, &[("traceparent", &not_sampled)]).await;
    assert_eq!(job["headers"]["traceparent"], json!(not_sampled));
    // What begins here is recorded, and the job is in the trace that begins with its push.
    let job = push(&server, &[("x-request-id", "begins")]).await;
    let begins = receiver.span("the push", |span| attribute(span, "tailback.request_id") == "begins").await;
    assert!(begins.parent_span_id.is_empty());
    let carried = ids(job["headers"]["traceparent"].as_str().unwrap());
    assert_eq!(carried, own(&begins));
    receiver.span("its queue time", |span| span.name == "queue time" && is_child(span, &carried)).await;
    assert_eq!(server.settle(&job, "commit", json!({"push": [{"queue": "child"}]})).await.0, 200);
    assert_eq!(reserved(&server, "child").await["headers"], job["headers"]);
    let commit = receiver.span("the commit", |span| span.name.ends_with("/commit")).await;
    assert!(is_child(&commit, &carried), "{commit:?}");
    // What was not to be recorded came before all of that.
    assert!(receiver.spans().iter().all(|span| span.trace_id != ids(&not_sampled).0));
    // Probes tell nothing.
    assert!(receiver.spans().iter().all(|span| attribute(span, "url.path") != "/readyz"));
    drop(server);

    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("0")).await;
    assert_eq!(push(&server, &[]).await["headers"], json!({}));
    let sampled = context("01");
    push(&server, &[("traceparent", &sampled)]).await;
    receiver.span("what the caller wants", |span| span.trace_id == ids(&sampled).0).await;
    let roots = receiver.spans().into_iter().filter(|span| span.parent_span_id.is_empty());
    assert!(roots.clone().all(|span| span.name.starts_with("round ")), "{:?}", roots.collect::<Vec<_>>());
}

async fn a_run_of_a_schedule_begins_a_trace(place: &Place) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("1")).await;
    let rule = json!({"cron": "* * * * * *", "queue": "runs", "job": {"payload": 1}});
    let set = send_in(&server, Method::PUT, "/v1/schedules/often", &[], rule).await;
    assert!(set.0 < 300, "{set:?}");
    let mut traces = Vec::new();
    for _ in 0..2 {
        let job = reserved(&server, "runs").await;
        let carried = ids(job["headers"]["traceparent"].as_str().unwrap());
        let run = receiver.span("the run", |span| own(span) == carried).await;
        assert_eq!((&*run.name, run.parent_span_id.len()), ("schedule", 0));
        assert_eq!(attribute(&run, "tailback.schedule"), "often");
        assert_eq!(attribute(&run, "messaging.message.id"), job["id"]);
        let call = |span: &Span| span.name == "store fire" && is_child(span, &carried);
        let call = receiver.span("its call", call).await;
        let system = if place.url.starts_with("mongodb") { "mongodb" } else { "sqlite" };
        assert_eq!(attribute(&call, "db.system.name"), system);
        receiver.span("its queue time", |span| span.name == "queue time" && is_child(span, &carried)).await;
        traces.push(carried.0);
    }
    assert_ne!(traces[0], traces[1]);
}

async fn lines_of_the_log_name_their_trace(place: &Place) {
    let (log, sent) = (tempfile::NamedTempFile::new().unwrap(), context("00"));
    let trace_id = sent.split('-').nth(1).unwrap().to_owned();
    for format in ["json", "human"] {
        let environment = [("TAILBACK_LOG__FORMAT", format)];
        let mut command = command(&place.url, &environment);
        command.env("TAILBACK_LOG__FILTER", "debug").stderr(std::fs::File::create(log.path()).unwrap());
        let server = Server::of(command);
        server.until_ready().await;
        let path = "/v1/queues/logged/jobs";
        assert_eq!(post_in(&server, path, &[("traceparent", &sent)], json!({})).await.0, 201);
        assert_eq!(post_in(&server, "/v1/queues/silent/jobs", &[], json!({})).await.0, 201);
        let lines = || std::fs::read_to_string(log.path()).unwrap();
        let line = |path: &str| lines().lines().find(|line| line.contains(path)).map(str::to_owned);
        until("both lines", || async { line(path).is_some() && line("silent").is_some() }).await;
        let (with, without) = (line(path).unwrap(), line("silent").unwrap());
        if format == "json" {
            let line: Value = serde_json::from_str(&with).unwrap();
            assert_eq!(
                (&line["trace_id"], &line["message"]),
                (&json!(trace_id), &json!("request")),
                "{line}"
            );
            assert!(serde_json::from_str::<Value>(&without).unwrap().get("trace_id").is_none());
        } else {
            assert!(with.ends_with(&format!(" trace_id={trace_id}")), "{with}");
            assert!(!without.contains("trace_id"), "{without}");
        }
    }
}

async fn what_is_left_is_sent_at_the_end(place: &Place) {
    let began = Instant::now();
    loop {
        let receiver = Receiver::start().await;
        let server = Server::start_with(&place.url, &receiver.environment("0")).await;
        let sent = context("01");
        for _ in 0..20 {
            let pushed = post_in(&server, "/v1/queues/q/jobs", &[("traceparent", &sent)], json!({})).await;
            assert_eq!(pushed.0, 201);
        }
        if all_arrive(server, &receiver, 20, began).await {
            return;
        }
    }
}

async fn a_request_whose_client_leaves_has_a_span(place: &Place) {
    let receiver = Receiver::start().await;
    let server = Server::start_with(&place.url, &receiver.environment("0")).await;
    let sent = context("01");
    let headers = [("traceparent", &*sent), ("x-request-id", "the-left")];
    let waiting = post_in(&server, "/v1/queues/nothing/reserve", &headers, json!({"wait_ms": 60_000}));
    // The reserve waits for jobs that never come, and its client gives up.
    tokio::select! {
        answer = waiting => panic!("nothing is to be had: {answer:?}"),
        () = until("it waits", || async {
            server.get("/v1/queues/nothing/stats").await.1["waiting"]["here"] == 1
        }) => {}
    }
    let span = receiver.span("its span", |span| attribute(span, "tailback.request_id") == "the-left").await;
    assert!(is_child(&span, &ids(&sent)), "{span:?}");
    assert_eq!(attribute(&span, "error.type"), "client-left");
    assert_eq!(attribute(&span, "http.response.status_code"), "");
}

/// Also where the environment of `tailback work` names another trace.
async fn what_a_worker_settles_is_in_the_trace_of_its_job(place: &Place) {
    let receiver = Receiver::start().await;
    let patient = [("TAILBACK_DEFAULTS__WORKER_TIMEOUT_MS", "600000")];
    let environment = [&receiver.environment("0")[..], &patient].concat();
    let server = Server::start_with(&place.url, &environment).await;
    let (of_job, of_worker) = (context("01"), context("01"));
    let path = "/v1/queues/work/jobs";
    assert_eq!(post_in(&server, path, &[("traceparent", &of_job)], json!({})).await.0, 201);
    let mut work = cli::command(&server.base, &["work", "work", "--once", "--lease", "10m", "--", "true"]);
    work.env("TRACEPARENT", &of_worker);
    cli::finish(work).await.with(0);
    let is_settle = |span: &Span| span.kind == 2 && span.name.ends_with("/commit");
    let span = receiver.span("the commit", is_settle).await;
    assert_eq!(span.trace_id, ids(&of_job).0, "{span:?}");
    assert!(receiver.spans().iter().all(|span| span.trace_id != ids(&of_worker).0));
}
