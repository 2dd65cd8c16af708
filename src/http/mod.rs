//! The HTTP layer: extract, call one method of [`crate::queue::Queues`], respond. Does not depend on a store.

pub mod access;
pub mod act;
pub mod answer;
pub mod authority;
pub mod body;
pub mod budget;
pub mod connection;
pub mod context;
pub mod encoding;
pub mod exposition;
pub mod frequent;
pub mod json;
pub mod keyed;
pub mod listen;
pub mod merge_patch;
pub mod openapi;
pub mod origin;
pub mod params;
pub mod parse;
pub mod peers;
pub mod problem;
pub mod queryless;
pub mod reader;
pub mod request_id;
pub mod routes;
pub mod security;
pub mod session;
pub mod stream;
pub mod tls;
pub mod trace;
pub mod waiting;
pub mod wire;

use std::convert::Infallible;
use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRef, MatchedPath, Request};
use axum::http::{HeaderValue, Method, header};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use http_body_util::Either;
use metrics_exporter_prometheus::PrometheusHandle;
use tower::{Layer as _, Service};
use tower_http::compression::predicate::{And, DefaultPredicate, Predicate as _, SizeAbove};
use tower_http::compression::{CompressionBody, CompressionLayer};
use utoipa::openapi::path::{Operation, PathItem};

use self::budget::Budget;
use self::context::Context;
use self::frequent::Frequent;
use self::origin::Hosts;
use self::problem::{Code, Problem};
use self::queryless::Queryless;
use crate::background::driver::Statuses;
use crate::dashboard;
use crate::faults;
use crate::queue::{Queues, Readiness, hold};
use crate::telemetry;
use crate::telemetry::Throttle;
use crate::telemetry::trace::{within, within_sync};

/// The state that all handlers share. Every request clones it several times, so that it is one pointer.
#[derive(Clone)]
pub struct AppState(Arc<Services>);

impl AppState {
    /// The state of handlers that use these.
    pub fn new(services: Services) -> Self {
        Self(Arc::new(services))
    }
}

impl Deref for AppState {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.0
    }
}

/// What handlers use.
pub struct Services {
    /// The operations on queues and jobs.
    pub queues: Queues,
    /// What only the operations routes need.
    pub server: ServerInfo,
    /// The limits on request bodies.
    pub limits: Limits,
    /// The memory for requests and responses.
    pub budget: Budget,
    /// Whether and which keys are required.
    pub access: access::Options,
    /// Whether requests may change nothing.
    pub read_only: bool,
    /// The logins that failed lately.
    pub attempts: session::Attempts,
}

/// What the operations routes report about the server itself.
pub struct ServerInfo {
    /// Whether the server is ready to serve.
    pub readiness: Readiness,
    /// The status of each background task.
    pub tasks: Statuses,
    /// Renders the metrics; `None` if no recorder is installed.
    pub metrics: Option<PrometheusHandle>,
    /// When the server started.
    pub started: Instant,
    /// The kind of store in use.
    pub store: &'static str,
}

impl FromRef<AppState> for Queues {
    fn from_ref(state: &AppState) -> Self {
        state.queues.clone()
    }
}

impl FromRef<AppState> for Budget {
    fn from_ref(state: &AppState) -> Self {
        state.budget.clone()
    }
}

/// The configured limits on requests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The maximum size of a body, in bytes.
    pub body_bytes: usize,
    /// The longest pause allowed while a client sends a body.
    pub body_pause: Duration,
    /// The timeout for receiving a whole body.
    pub request: Duration,
}

/// The router, and what is judged before it.
struct Entry {
    router: Router,
    hosts: Hosts,
    state: AppState,
    queryless: Arc<Queryless>,
}

/// A response, compressed if its client takes that and it is large enough.
pub type Answer = axum::http::Response<Either<Body, CompressionBody<Body>>>;

/// Returns the whole service. What applies to every request is done once, around the router and not around each
/// route: axum would clone every layer of a route for every request.
pub fn service(
    state: AppState,
    hosts: Hosts,
) -> impl Service<Request, Response = Answer, Error = Infallible, Future: Send> + Clone + Send + use<> {
    let (router, api) = openapi::router().split_for_parts();
    routes_of(&api).for_each(|(method, path)| telemetry::route_known(method, path));
    let queryless = Arc::new(Queryless::of(&api));
    let router: Router = router
        .merge(routes::docs::docs())
        .merge(dashboard::routes())
        .fallback(|| async { Problem::new(Code::NotFound, "no route matches this path; see /docs") })
        .method_not_allowed_fallback(|route: Option<MatchedPath>, method: Method| async move {
            access::unsupported(route.as_ref().map_or("", MatchedPath::as_str), &method)
        })
        .layer(middleware::from_fn_with_state((state.clone(), queryless.clone()), access::guard))
        .with_state(state.clone());
    let entry = Arc::new(Entry { router, hosts, state, queryless });
    // Kilobytes, which are not to be moved by everything that they pass.
    let plain = tower::service_fn(move |request| Box::pin(respond(entry.clone(), request)));
    let compressing = CompressionLayer::new().compress_when(compressible()).layer(plain.clone());
    tower::service_fn(move |mut request: Request| {
        // Few clients of a queue ask for it; the others need not pay for the layer.
        let response = match encoding::negotiate(request.headers_mut()) {
            false => Either::Left(plain.clone().call(request)),
            true => Either::Right(compressing.clone().call(request)),
        };
        async move {
            Ok(match response {
                Either::Left(response) => response.await?.map(Either::Left),
                Either::Right(response) => response.await?.map(Either::Right),
            })
        }
    })
}

/// Returns the routes of the document, by method and path.
fn routes_of(api: &utoipa::openapi::OpenApi) -> impl Iterator<Item = (&'static str, &str)> {
    let paths = api.paths.paths.iter();
    paths.flat_map(|(path, item)| {
        operations_of(item).into_iter().map(move |(method, _)| (method, path.as_str()))
    })
}

/// Returns the calls of a path, by their methods.
fn operations_of(item: &PathItem) -> Vec<(&'static str, &Operation)> {
    let methods = [
        ("GET", &item.get),
        ("PUT", &item.put),
        ("POST", &item.post),
        ("DELETE", &item.delete),
        ("PATCH", &item.patch),
    ];
    methods.into_iter().filter_map(|(method, call)| Some((method, call.as_ref()?))).collect()
}

/// What is said of requests that are 503.
static UNAVAILABLE: Throttle = Throttle::new();

/// Assigns the request an id, returns a response even if the handler panics, and counts and logs the request.
async fn respond(entry: Arc<Entry>, mut request: Request) -> Result<Response, Infallible> {
    let start = Instant::now();
    let budget = &entry.state.budget;
    let account = (!request.body().is_end_stream()).then(|| budget.account());
    if account.is_some() {
        Context::of_mut(request.extensions_mut()).account.clone_from(&account);
    }
    // Nothing reads this body. Where the response has none either, hyper would take the next request, and so on, and keep the heads of
    // all responses that the client does not read.
    let is_last = request.method().is_safe() && !request.body().is_end_stream();
    let (method, uri) = (method_name(request.method()), request.uri().clone());
    let id = request_id::of(&request);
    let span = trace::of(&request, is_operational(uri.path()));
    let unanswered = trace::Unanswered::new(span.clone(), method, uri.path(), &id);
    let guarded = AssertUnwindSafe(route(&entry, request)).catch_unwind();
    let guarded = hold::holding(account.clone().map(|account| account as hold::Held), guarded);
    let guarded = within(span.clone(), guarded);
    let (mut response, frequent) = request_id::scope(id.clone(), guarded).await.unwrap_or_else(|_| {
        let problem = Problem::new(Code::Internal, "an unexpected error occurred in the server");
        (problem.into_response(), None)
    });
    faults::point("http.response").await;
    if response.status().is_client_error() && !problem::is_problem(&response) {
        let unknown = || Problem::new(Code::NotFound, "there is no such page; see /docs/").into_response();
        response = request_id::scope_sync(id.clone(), unknown);
    }
    drop(account);
    let is_to_be_lost = method == "GET" && !is_operational(uri.path());
    let in_flight = response.extensions_mut().remove::<access::InFlight>();
    response = request_id::scope(id.clone(), budget.count(response, is_to_be_lost, in_flight)).await;
    request_id::set_header(&id, &mut response);
    if is_last {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    security::add(uri.path(), response.headers_mut());
    let matched = response.extensions_mut().remove::<MatchedPath>();
    let route = frequent.or(matched.as_ref().map(MatchedPath::as_str)).unwrap_or("none");
    let (status, took) = (response.status().as_u16(), start.elapsed());
    let (path, took_ms) = (uri.path(), took.as_secs_f64() * 1e3);
    // While the store is away every request is 503: a few lines say so for all.
    let more = if status == 503 { UNAVAILABLE.due() } else { Some(0) };
    within_sync(span.clone(), || match more {
        Some(more) if status >= 500 => {
            tracing::warn!(request_id = id, method, path, status, took_ms, more, "request failed")
        }
        _ => tracing::debug!(request_id = id, method, path, status, took_ms, "request"),
    });
    telemetry::http_request(method, route, status, took);
    unanswered.answered();
    if let Some(span) = span {
        trace::end(
            &span,
            &trace::RequestEnd { method, route, path, request_id: &id, status: Some(status), took },
        );
    }
    Ok(response)
}

/// Returns the response, and the route where the router does not say it.
async fn route(entry: &Entry, request: Request) -> (Response, Option<&'static str>) {
    if let Err(problem) = check(entry, &request) {
        return (problem, None);
    }
    if let Some((call, segment)) = Frequent::of(request.method(), request.uri().path()) {
        let (route, segment, state) = (call.route(), segment.to_owned(), &entry.state);
        let run = |request| call.handle(request, segment, state.clone());
        return (access::guarded(state, &entry.queryless, Some(route), request, run).await, Some(route));
    }
    match entry.router.clone().call(request).await {
        Ok(response) => (response, None),
        Err(never) => match never {},
    }
}

/// Refuses what no route is to see.
fn check(entry: &Entry, request: &Request) -> Result<(), Response> {
    let context = Context::of(request.extensions());
    let closing = |problem: Problem| ([(header::CONNECTION, "close")], problem).into_response();
    if let Some(wire::Refusal { code, detail }) = context.and_then(|context| context.refusal) {
        return Err(closing(Problem::new(code, detail)));
    }
    if context.is_some_and(|context| context.is_spare) && !is_operational(request.uri().path()) {
        let detail = "all connections are in use (limits.connections); nothing was done";
        return Err(closing(Problem::new(Code::Overloaded, detail)));
    }
    // A foreign page that has its own name resolved to this server has no key.
    let are_judged =
        !entry.hosts.is_default || entry.state.access.is_required(&entry.state.queues) != Some(true);
    origin::check(request, &entry.hosts, are_judged).map_err(Problem::into_response)
}

/// Returns whether this is what operators look at: served when all other connections are in use.
fn is_operational(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz" | "/metrics")
}

/// Returns what is compressed: compressing a small response costs more than it saves.
fn compressible() -> And<DefaultPredicate, SizeAbove> {
    DefaultPredicate::new().and(SizeAbove::new(4096))
}

/// Returns the method as a metric label; a client may send any word, and labels must stay bounded.
fn method_name(method: &axum::http::Method) -> &'static str {
    ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
        .into_iter()
        .find(|name| *name == method.as_str())
        .unwrap_or("other")
}
