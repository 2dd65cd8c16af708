//! The HTTP face: extract, call one method of [`crate::queue::Queues`], answer. Knows no store.

pub mod body;
pub mod listen;
pub mod openapi;
pub mod params;
pub mod problem;
pub mod request_id;
pub mod routes;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, MatchedPath, Request};
use axum::http::HeaderValue;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use metrics_exporter_prometheus::PrometheusHandle;
use tower::{Layer as _, Service};
use tower_http::compression::predicate::{And, DefaultPredicate, Predicate as _, SizeAbove};
use tower_http::compression::{CompressionBody, CompressionLayer};

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
    /// What bodies may be like.
    pub limits: Limits,
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

impl FromRef<AppState> for Queues {
    fn from_ref(state: &AppState) -> Self {
        state.queues.clone()
    }
}

impl FromRef<AppState> for Limits {
    fn from_ref(state: &AppState) -> Self {
        state.limits
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

/// An answer, compressed where that is worth it.
pub type Compressed = axum::http::Response<CompressionBody<Body>>;

/// The whole service. What holds for every request is done once, around the router and not around each of
/// its routes: axum would copy every layer for every request.
pub fn service(
    state: AppState,
) -> impl Service<Request, Response = Compressed, Error = Infallible, Future: Send> + Clone + Send + use<> {
    let (router, api) = openapi::router().split_for_parts();
    let api = openapi::finish(api);
    let router: Router = router
        .merge(routes::docs(api))
        .fallback(|| async { Problem::new(Code::NotFound, "there is nothing at this path; see /docs") })
        .method_not_allowed_fallback(|| async {
            Problem::new(
                Code::MethodNotAllowed,
                "this path has other methods; see the Allow header, or /docs",
            )
        })
        .layer(middleware::from_fn(tell_route))
        .with_state(state);
    let answer = move |request| answer(router.clone(), request);
    CompressionLayer::new().compress_when(compressible()).layer(tower::service_fn(answer))
}

/// Gives the request an id, answers it whatever happens, and counts and logs it.
async fn answer(router: Router, request: Request) -> Result<Response, Infallible> {
    let start = Instant::now();
    let (method, uri) = (method_name(request.method()), request.uri().clone());
    let id = request_id::of(&request);
    let guarded = AssertUnwindSafe(route(router, request)).catch_unwind();
    let mut response = request_id::scope(id.clone(), guarded).await.unwrap_or_else(|_| {
        Problem::new(Code::Internal, "the server failed in an unexpected way").into_response()
    });
    request_id::show(&id, &mut response);
    let route = response.extensions_mut().remove::<MatchedPath>();
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    let (status, took) = (response.status().as_u16(), start.elapsed());
    let (path, took_ms) = (uri.path(), took.as_secs_f64() * 1e3);
    if status >= 500 {
        tracing::warn!(request_id = id, method, path, status, took_ms, "request failed");
    } else {
        tracing::debug!(request_id = id, method, path, status, took_ms, "request");
    }
    telemetry::http_request(method, route, status, took);
    Ok(response)
}

/// A page that somebody visits may make the browser post to a server on the same machine, without reading
/// the answer. Browsers say where such a request comes from (Fetch Metadata, W3C); other clients say nothing.
async fn route(mut router: Router, request: Request) -> Response {
    let from = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    if matches!(from, Some(b"cross-site")) && !request.method().is_safe() {
        return Problem::new(Code::CrossSite, "web pages of other sites may not change anything here")
            .into_response();
    }
    match router.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Only the router knows which of its routes an answer comes from.
async fn tell_route(route: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

/// Compressing a small answer costs more than it saves.
fn compressible() -> And<DefaultPredicate, SizeAbove> {
    DefaultPredicate::new().and(SizeAbove::new(4096))
}

/// A client may send any word as a method; a label must not grow without bounds.
fn method_name(method: &axum::http::Method) -> &'static str {
    ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
        .into_iter()
        .find(|name| *name == method.as_str())
        .unwrap_or("other")
}
