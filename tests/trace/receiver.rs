//! A receiver of spans, and clients that are in traces.

use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use reqwest::Method;
use reqwest::header::HeaderValue;
use serde_json::{Value, json};

use crate::common::server::{PATIENCE, Server, until};

/// The headers of a request, and the attributes of the service.
pub type Said = (HeaderMap, Vec<(String, String)>);

/// A receiver on a port of its own.
#[derive(Clone, Default)]
pub struct Receiver {
    pub url: String,
    spans: Arc<Mutex<Vec<Span>>>,
    /// What every request said beside its spans: its headers, and the attributes of the service.
    pub said: Arc<Mutex<Vec<Said>>>,
    status: Arc<AtomicU16>,
    pub requests: Arc<AtomicUsize>,
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let receiver = Self { url, ..Self::default() };
        receiver.respond(200);
        let this = receiver.clone();
        let take = move |headers: HeaderMap, body: Bytes| async move { this.take(headers, body) };
        let router = Router::new().route("/v1/traces", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        receiver
    }

    fn take(&self, headers: HeaderMap, body: Bytes) -> (StatusCode, Vec<u8>) {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let status = StatusCode::from_u16(self.status.load(Ordering::SeqCst)).unwrap();
        if status != StatusCode::OK {
            return (status, Vec::new());
        }
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        for of in request.resource_spans {
            let attributes = of.resource.unwrap().attributes.into_iter();
            let attributes = attributes.map(|pair| (pair.key.clone(), string(pair.value)));
            self.said.lock().unwrap().push((headers.clone(), attributes.collect()));
            let spans = of.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.spans.lock().unwrap().extend(spans);
        }
        (status, Vec::new())
    }

    /// From now on requests get this response.
    pub fn respond(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }

    /// Waits until there is a span for which this holds, and returns it.
    pub async fn span(&self, what: &str, holds: impl Fn(&Span) -> bool) -> Span {
        until(what, || async { self.spans().iter().any(&holds) }).await;
        self.spans().into_iter().find(holds).unwrap()
    }

    /// The environment of a server that exports to it.
    pub fn environment<'a>(&'a self, ratio: &'a str) -> [(&'a str, &'a str); 2] {
        [("TAILBACK_TRACE__ENDPOINT", &self.url), ("TAILBACK_TRACE__SAMPLE_RATIO", ratio)]
    }
}

fn string(value: Option<opentelemetry_proto::tonic::common::v1::AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Any::StringValue(text)) => text,
        Some(Any::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

/// An attribute of a span as a text; empty where there is none.
pub fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|pair| pair.key == key);
    found.map(|pair| string(pair.value.clone())).unwrap_or_default()
}

/// The parts of a `traceparent`: the trace and the span.
pub fn ids(traceparent: &str) -> (Vec<u8>, Vec<u8>) {
    let mut parts = traceparent.split('-').skip(1);
    let mut bytes = || {
        let text = parts.next().unwrap();
        (0..text.len()).step_by(2).map(|n| u8::from_str_radix(&text[n..n + 2], 16).unwrap()).collect()
    };
    (bytes(), bytes())
}

/// A new context with these flags.
pub fn context(flags: &str) -> String {
    format!("00-{:032x}-{:016x}-{flags}", rand::random::<u128>().max(1), rand::random::<u64>().max(1))
}

/// A POST with these headers.
pub async fn post_in(server: &Server, path: &str, headers: &[(&str, &str)], body: Value) -> (u16, Value) {
    send_in(server, Method::POST, path, headers, body).await
}

/// Any method with these headers.
pub async fn send_in(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Value,
) -> (u16, Value) {
    let mut request = server.http.request(method, format!("{}{path}", server.base)).json(&body);
    for (name, value) in headers {
        request = request.header(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or(Value::Null))
}

/// For how long a job is reserved: longer than a test takes.
pub const LONG_MS: u64 = 600_000;

/// For how long a server that stops sends what is left.
const FLUSH: Duration = Duration::from_secs(2);

/// Stops a server to which so many requests have come, and returns whether all of them are here. Where it took longer than it may, some may
/// be missing, for a while.
pub async fn all_arrive(mut server: Server, receiver: &Receiver, requests: usize, began: Instant) -> bool {
    let stopping = Instant::now();
    assert!(server.terminate().await.success());
    let arrived = receiver.spans().into_iter().filter(|span| span.kind == 2).count();
    let is_late = stopping.elapsed() >= FLUSH && began.elapsed() < PATIENCE;
    assert!(arrived == requests || is_late, "{arrived} of {requests} have come");
    arrived == requests
}

/// The only job of a queue, reserved.
pub async fn reserved(server: &Server, queue: &str) -> Value {
    let jobs = server.reserve(queue, json!({"wait_ms": 60_000, "lease_ms": LONG_MS})).await;
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    jobs[0].clone()
}
