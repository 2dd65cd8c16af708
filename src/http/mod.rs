//! The HTTP face: extract, call one method of [`crate::queue::Queues`], answer. Knows no store.

pub mod body;
pub mod listen;
pub mod openapi;
pub mod params;
pub mod problem;
pub mod request_id;
pub mod routes;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use metrics_exporter_prometheus::PrometheusHandle;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{And, DefaultPredicate, Predicate as _, SizeAbove};
use tower_http::timeout::RequestBodyTimeoutLayer;

use self::problem::{Code, Problem};
use crate::background::Readiness;
use crate::background::driver::Statuses;
use crate::queue::Queues;
use crate::telemetry;

/// What the handlers share.
#[derive(Clone)]
pub struct AppState {
    /// The product.
    pub queues: Queues,
    /// What only the operators' pages need.
    pub server: Arc<ServerInfo>,
}

/// What the operators' pages show of the server itself.
pub struct ServerInfo {
    /// Whether it can serve.
    pub readiness: Readiness,
    /// How its background tasks are doing.
    pub tasks: Statuses,
    /// Renders the metrics; absent where nobody keeps any.
    pub metrics: Option<PrometheusHandle>,
    /// When it started.
    pub started: Instant,
    /// What kind of store is behind it.
    pub store: &'static str,
}

impl axum::extract::FromRef<AppState> for Queues {
    fn from_ref(state: &AppState) -> Self {
        state.queues.clone()
    }
}

/// What the configuration says about requests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The largest body, in bytes.
    pub body_bytes: usize,
    /// How long a client may pause while it sends a body.
    pub body_pause: Duration,
}

/// The whole service.
pub fn service(state: AppState, limits: Limits) -> Router {
    let (router, api) = openapi::router().split_for_parts();
    let api = openapi::finish(api);
    router
        .merge(routes::docs(api))
        .fallback(|| async { Problem::new(Code::NotFound, "there is nothing at this path; see /docs") })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                Code::MethodNotAllowed,
                "this path has other methods; see the Allow header, or /docs",
            )
        })
        .layer(DefaultBodyLimit::max(limits.body_bytes))
        .layer(RequestBodyTimeoutLayer::new(limits.body_pause))
        .layer(CompressionLayer::new().compress_when(compressible()))
        .layer(CatchPanicLayer::custom(|_| {
            Problem::new(Code::Internal, "the server failed in an unexpected way").into_response()
        }))
        .layer(middleware::from_fn(same_site))
        .layer(middleware::from_fn(observe))
        .layer(middleware::from_fn(request_id::assign))
        .with_state(state)
}

/// A page that somebody visits may make the browser post to a server on the same machine, without reading
/// the answer. Browsers say where such a request comes from (Fetch Metadata, W3C); other clients say nothing.
async fn same_site(request: Request, next: Next) -> Response {
    let from = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    if matches!(from, Some(b"cross-site")) && !request.method().is_safe() {
        return Problem::new(Code::CrossSite, "web pages of other sites may not change anything here")
            .into_response();
    }
    next.run(request).await
}

/// Compressing a small answer costs more than it saves.
fn compressible() -> And<DefaultPredicate, SizeAbove> {
    DefaultPredicate::new().and(SizeAbove::new(4096))
}

/// Counts and logs a request.
async fn observe(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = method_name(request.method());
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let path = request.uri().path().to_owned();
    let response = next.run(request).await;
    let (status, took) = (response.status().as_u16(), start.elapsed());
    let request_id = request_id::current();
    let took_ms = took.as_secs_f64() * 1e3;
    if status >= 500 {
        tracing::warn!(request_id, method, path, status, took_ms, "request failed");
    } else {
        tracing::debug!(request_id, method, path, status, took_ms, "request");
    }
    telemetry::http_request(method, route, status, took);
    response
}

/// A client may send any word as a method; a label must not grow without bounds.
fn method_name(method: &axum::http::Method) -> &'static str {
    ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
        .into_iter()
        .find(|name| *name == method.as_str())
        .unwrap_or("other")
}
