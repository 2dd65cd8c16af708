//! Who may use which route: the one table of what each needs, and its check before every handler.
//!
//! A route that is not in the table is refused while keys are required. What a handler does beyond its path, such as a
//! push into another queue, it checks itself with [`Granted`].

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::act::{Act, actor, may_be_act};
use super::context::Context;
use super::problem::{Code, Problem};
use super::queryless::Queryless;
use super::{AppState, session};
use crate::job::{Caller, QueueName, Scope, SecretHash, Timestamp};
use crate::queue::{self, Credential, Permit, Queues, Recognised, Shown};
use crate::store::hold;

/// What the configuration says about access.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Whether keys are required; `None`: where the server is exposed, or there are any.
    pub required: Option<bool>,
    /// The hash of the admin key.
    pub admin: Option<SecretHash>,
    /// Whether the server listens beyond loopback.
    pub is_exposed: bool,
    /// Whether `/metrics` needs no key.
    pub open_metrics: bool,
    /// Whether `/docs` and `/openapi.json` need no key.
    pub open_docs: bool,
}

impl Options {
    /// Returns whether requests need a key; `None`: not known before the stored keys were read.
    pub fn is_required(&self, queues: &Queues) -> Option<bool> {
        match self.required {
            None if self.is_exposed || self.admin.is_some() => Some(true),
            None => queues.has_api_keys(),
            required => required,
        }
    }

    /// Returns why the server must not start as it is configured, if it must not: no request could have a key.
    pub fn fault(&self, queues: &Queues) -> Option<&'static str> {
        let has_keys = self.admin.is_some() || queues.has_api_keys() == Some(true);
        let is_locked = self.is_required(queues) == Some(true) && !has_keys;
        is_locked.then_some(
            "keys are required (the server listens beyond loopback, or auth.required = true), but there is none: set \
             auth.admin_key_file, or make a key with `tailback keys create`, or listen on 127.0.0.1 only, or \
             allow every client everything with auth.required = false",
        )
    }
}

/// What a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing.
    Open,
    /// Any valid key.
    Any,
    /// This scope, unless the configuration opens the metrics.
    Metrics(Scope),
    /// Any valid key, unless the configuration opens the documentation.
    Docs,
    /// This scope, in the queues that the call is about.
    Of(Scope),
    /// These two scopes, likewise.
    Both(Scope, Scope),
    /// One of these two scopes, likewise: the handler knows which.
    Either(Scope, Scope),
    /// This scope, in all queues.
    Whole(Scope),
}

impl Need {
    /// Returns the scopes that a key must have; none where any key will do, or none is needed.
    pub fn scopes(self) -> impl Iterator<Item = Scope> {
        let scopes = match self {
            Self::Open | Self::Any | Self::Docs => [None, None],
            Self::Of(scope) | Self::Whole(scope) | Self::Metrics(scope) => [Some(scope), None],
            Self::Both(one, other) | Self::Either(one, other) => [Some(one), Some(other)],
        };
        scopes.into_iter().flatten()
    }

    /// Returns a scope that the caller would need and does not have.
    fn missing(self, caller: &Caller) -> Option<Scope> {
        let is_enough = matches!(self, Self::Either(..)) && self.scopes().any(|scope| caller.has(scope));
        self.scopes().find(|scope| !is_enough && !caller.has(*scope))
    }
}

fn lacks(scope: Scope) -> Problem {
    Problem::new(Code::Forbidden, format!("the key does not have the scope {scope}"))
}

use Need::{Any, Both, Docs, Either, Metrics, Of, Open, Whole};
use Scope::{Admin, Consume, Operate, Push, Read};

/// What each route needs, by method and path.
pub const ROUTES: &[(&str, &str, Need)] = &[
    ("GET", "/", Open),
    ("GET", "/ui/{version}/{*file}", Open),
    ("GET", "/healthz", Open),
    ("GET", "/readyz", Open),
    ("GET", "/metrics", Metrics(Read)),
    ("GET", "/docs", Docs),
    ("GET", "/docs/", Docs),
    ("GET", "/docs/{*rest}", Docs),
    ("GET", "/openapi.json", Docs),
    ("GET", "/openapi-3.0.json", Docs),
    ("GET", "/stats", Whole(Read)),
    ("GET", "/v1/series", Of(Read)),
    ("GET", "/v1/servers", Whole(Read)),
    ("POST", "/v1/queues/{queue}/jobs", Of(Push)),
    ("POST", "/v1/queues/{queue}/jobs/batch", Of(Push)),
    ("POST", "/v1/jobs", Of(Push)),
    ("GET", "/v1/queues/{queue}/jobs", Of(Read)),
    ("GET", "/v1/jobs", Of(Read)),
    ("GET", "/v1/dead", Of(Read)),
    ("GET", "/v1/groups", Of(Read)),
    ("GET", "/v1/jobs/{id}/payload", Of(Read)),
    ("GET", "/v1/jobs/{id}", Of(Read)),
    ("PATCH", "/v1/jobs/{id}", Of(Operate)),
    ("DELETE", "/v1/jobs/{id}", Of(Operate)),
    ("POST", "/v1/jobs/{id}/retry", Of(Operate)),
    ("POST", "/v1/jobs/{id}/redrive", Both(Operate, Push)),
    ("POST", "/v1/jobs/{id}/replay", Both(Operate, Push)),
    ("POST", "/v1/jobs/{id}/run", Of(Operate)),
    ("POST", "/v1/jobs/{id}/release", Of(Operate)),
    ("GET", "/v1/queues/{queue}/peek", Of(Read)),
    ("POST", "/v1/queues/{queue}/reserve", Of(Consume)),
    ("POST", "/v1/reserve", Of(Consume)),
    ("POST", "/v1/queues/{queue}/pop", Of(Consume)),
    ("POST", "/v1/jobs/{id}/commit", Of(Consume)),
    ("POST", "/v1/jobs/{id}/rollback", Of(Consume)),
    ("POST", "/v1/jobs/{id}/extend", Of(Consume)),
    ("POST", "/v1/jobs/{id}/move", Either(Consume, Operate)),
    ("POST", "/v1/settle", Of(Consume)),
    ("POST", "/v1/batches", Of(Push)),
    ("GET", "/v1/batches", Of(Read)),
    ("POST", "/v1/batches/{id}/jobs", Of(Push)),
    ("POST", "/v1/batches/{id}/seal", Of(Push)),
    ("GET", "/v1/batches/{id}", Of(Read)),
    ("GET", "/v1/batches/{id}/results", Of(Read)),
    ("DELETE", "/v1/batches/{id}", Of(Operate)),
    ("GET", "/v1/queues", Of(Read)),
    ("DELETE", "/v1/queues", Of(Operate)),
    ("GET", "/v1/queues/{queue}", Of(Read)),
    ("GET", "/v1/queues/{queue}/stats", Of(Read)),
    ("PUT", "/v1/queues/{queue}", Of(Operate)),
    ("PATCH", "/v1/queues/{queue}", Of(Operate)),
    ("DELETE", "/v1/queues/{queue}", Of(Operate)),
    ("POST", "/v1/queues/{queue}/pause", Of(Operate)),
    ("POST", "/v1/queues/{queue}/resume", Of(Operate)),
    ("POST", "/v1/queues/{queue}/purge", Of(Operate)),
    ("POST", "/v1/queues/{queue}/redrive", Both(Operate, Push)),
    ("POST", "/v1/queues/{queue}/replay", Both(Operate, Push)),
    ("GET", "/v1/events", Of(Read)),
    ("GET", "/v1/operations", Of(Read)),
    ("POST", "/v1/operations", Of(Operate)),
    ("GET", "/v1/operations/{id}", Of(Read)),
    ("DELETE", "/v1/operations/{id}", Of(Operate)),
    ("GET", "/v1/audit", Whole(Admin)),
    ("GET", "/v1/semaphores", Of(Read)),
    ("GET", "/v1/semaphores/{name}", Of(Read)),
    ("PUT", "/v1/semaphores/{name}", Of(Operate)),
    ("DELETE", "/v1/semaphores/{name}", Of(Operate)),
    ("GET", "/v1/schedules", Of(Read)),
    ("GET", "/v1/schedules/{name}", Of(Read)),
    ("PUT", "/v1/schedules/{name}", Of(Operate)),
    ("DELETE", "/v1/schedules/{name}", Of(Operate)),
    ("POST", "/v1/schedules/{name}/run", Of(Operate)),
    ("POST", "/v1/schedules/{name}/pause", Of(Operate)),
    ("POST", "/v1/schedules/{name}/resume", Of(Operate)),
    ("GET", "/v1/workers", Of(Read)),
    ("GET", "/v1/workers/{name}", Of(Read)),
    ("GET", "/v1/workers/{name}/jobs", Of(Read)),
    ("POST", "/v1/workers/{name}/heartbeat", Of(Consume)),
    ("DELETE", "/v1/workers/{name}", Of(Operate)),
    ("GET", "/v1/session", Any),
    ("POST", "/v1/session", Open),
    ("DELETE", "/v1/session", Open),
    ("GET", "/v1/keys", Whole(Admin)),
    ("POST", "/v1/keys", Whole(Admin)),
    ("POST", "/v1/keys/{id}/rotate", Whole(Admin)),
    ("DELETE", "/v1/keys/{id}", Whole(Admin)),
];

/// Returns what a route needs; `None` where it is not in the table.
pub fn need(method: &str, path: &str) -> Option<Need> {
    static NEEDS: LazyLock<HashMap<(&str, &str), Need>> =
        LazyLock::new(|| ROUTES.iter().map(|(of, at, need)| ((*of, *at), *need)).collect());
    let method = if method == "HEAD" { "GET" } else { method };
    NEEDS.get(&(method, path)).copied()
}

/// What a request may do: put into it before its handler runs. One pointer: the key itself all requests share, and counting
/// who uses it costs more than anything else about it.
#[derive(Debug, Clone)]
pub struct Granted(Arc<Grant>);

impl Deref for Granted {
    type Target = Grant;

    fn deref(&self) -> &Grant {
        &self.0
    }
}

/// What [`Granted`] consists of.
#[derive(Debug)]
pub struct Grant {
    /// Where the request comes from.
    pub caller: Caller,
    /// What it has shown: this must still hold when it acts.
    pub credential: Credential,
    /// When the browser's session ends that it has shown, if it has.
    pub session_ends: Option<Timestamp>,
    /// The scope under which its route runs.
    pub scope: Scope,
}

/// Checks the key of a request, and records the matched route in the response: only the router knows it.
pub async fn guard(
    State((state, queryless)): State<(AppState, Arc<Queryless>)>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let name = route.as_ref().map(MatchedPath::as_str);
    let mut response = guarded(&state, &queryless, name, request, |request| next.run(request)).await;
    if let Some(route) = route {
        response.extensions_mut().insert(route);
    }
    response
}

/// Runs a request of this route if its key allows it.
pub async fn guarded<F: Future<Output = Response>>(
    state: &AppState,
    queryless: &Queryless,
    route: Option<&str>,
    mut request: Request,
    run: impl FnOnce(Request) -> F,
) -> Response {
    let granted = grant(state, route, &request);
    let admitted = granted.and_then(|granted| {
        check_changes(state, route, request.method())?;
        queryless.check(&request, route)?;
        Ok((admit(&state.queues, &granted.caller)?, granted))
    });
    match admitted {
        Ok((permit, granted)) => {
            let granted = Granted(Arc::new(granted));
            Context::of_mut(request.extensions_mut()).granted = Some(granted.clone());
            let is_of_operator = Act::is_of_operator(&granted);
            let may_act = is_of_operator || may_be_act(&request, route);
            let actor = may_act.then(|| actor(&request, &granted));
            let mut act = actor.clone().filter(|_| is_of_operator).map(|actor| Act::new(&request, actor));
            let in_flight = permit.map(|permit| InFlight(Arc::new(permit)));
            // What goes on where the client leaves keeps the place; most keys have no limit that needs one.
            let mut response = match (actor, in_flight.clone()) {
                (Some(actor), place) => queue::acting(actor, hold::keeping(place, run(request))).await,
                (None, Some(place)) => hold::keeping(place, run(request)).await,
                (None, None) => run(request).await,
            };
            act.iter_mut().for_each(|act| act.status = Some(response.status()));
            // It is in flight until its client has read it, which is seen where it is sent.
            in_flight.into_iter().for_each(|place| drop(response.extensions_mut().insert(place)));
            response
        }
        Err(problem) => problem.into_response(),
    }
}

/// Refuses writes at a read-only server. A login changes nothing that is stored.
fn check_changes(state: &AppState, route: Option<&str>, method: &Method) -> Result<(), Problem> {
    let Some(route) = route.filter(|_| state.read_only) else { return Ok(()) };
    // An operation says in its body whether it only looks (`dry_run`): its handler refuses it otherwise.
    let is_judged_later = *method == Method::POST && route == "/v1/operations";
    let only_reads = method.is_safe() || route == "/v1/session";
    if only_reads || is_judged_later { Ok(()) } else { Err(only_shows()) }
}

/// Returns the problem of a write at a read-only server.
pub fn only_shows() -> Problem {
    let detail =
        "this server is read-only (http.read_only); nothing was changed; send writes to another server";
    Problem::new(Code::ReadOnly, detail)
}

/// Admits a request within the limits of its key.
fn admit(queues: &Queues, caller: &Caller) -> Result<Option<Permit>, Problem> {
    match caller {
        Caller::Key(key) => Ok(queues.admit_key(key)?),
        Caller::Anyone | Caller::Admin => Ok(None),
    }
}

/// The place of a request among those of its key that are in flight; given back with the last copy.
#[derive(Clone)]
pub struct InFlight(#[expect(dead_code, reason = "held")] Arc<Permit>);

/// Returns what the request may do, if it may use its route.
fn grant(state: &AppState, route: Option<&str>, request: &Request) -> Result<Grant, Problem> {
    let required = state.access.is_required(&state.queues);
    if required == Some(false) {
        let is_settled = state.access.required.is_some();
        let credential = if is_settled { Credential::Lasting } else { Credential::NoKey };
        return Ok(Grant { caller: Caller::Anyone, credential, session_ends: None, scope: Admin });
    }
    let need = route.map(|route| need(request.method().as_str(), route));
    let (is_open, scope) = match need {
        Some(Some(Open)) => (true, Read),
        Some(Some(Metrics(scope))) => (state.access.open_metrics, scope),
        Some(Some(Docs)) => (state.access.open_docs, Read),
        Some(Some(Of(scope) | Both(scope, _) | Either(scope, _) | Whole(scope))) => (false, scope),
        Some(Some(Any)) | Some(None) | None => (false, Read),
    };
    if is_open {
        let (caller, credential) = (Caller::Anyone, Credential::Lasting);
        return Ok(Grant { caller, credential, session_ends: None, scope });
    }
    if required.is_none() {
        let detail = "the store has not been reached yet, so that it is not known whether keys are required";
        return Err(Problem::new(Code::StoreUnavailable, detail));
    }
    let narrowings = state.queues.narrowings(); // before: what changes from here on is noticed
    let (caller, session_ends) = authenticate(&state.access, &state.queues, request)?;
    if let (Some(None), Some(route)) = (need, route) {
        return Err(undeclared(route, request.method()));
    }
    // Where there is no such path, a key has been shown, and that is all.
    let missing = need.flatten().and_then(|need| need.missing(&caller));
    if let Some(scope) = missing {
        return Err(lacks(scope));
    }
    if matches!(need, Some(Some(Whole(_) | Metrics(_)))) && caller.is_limited() {
        let detail = "this route covers all queues; the key is limited to some";
        return Err(Problem::new(Code::Forbidden, detail));
    }
    let credential = match &caller {
        Caller::Key(key) => Credential::Key(Arc::new(Shown { key: key.clone(), narrowings })),
        Caller::Anyone | Caller::Admin => Credential::Lasting,
    };
    Ok(Grant { caller, credential, session_ends, scope })
}

/// Returns the refusal of a method that the table does not have: the path does not support it, or it was forgotten there.
fn undeclared(path: &str, method: &Method) -> Problem {
    if !ROUTES.iter().any(|(_, at, _)| *at == path) {
        return Problem::new(Code::Forbidden, "no scope allows this path");
    }
    unsupported(path, method)
}

/// Returns the refusal of a method that a path does not support.
pub fn unsupported(path: &str, method: &Method) -> Problem {
    let allowed: Vec<&str> = ROUTES.iter().filter(|(_, at, _)| *at == path).map(|(of, _, _)| *of).collect();
    let which = match allowed.is_empty() {
        true => "see the Allow header, or /docs".to_owned(),
        false => format!("it supports {}", allowed.join(", ")),
    };
    Problem::new(Code::MethodNotAllowed, format!("this path does not support {method}; {which}"))
}

/// Returns where a request comes from, by its key or its session, and when that session ends.
fn authenticate(
    access: &Options,
    queues: &Queues,
    request: &Request,
) -> Result<(Caller, Option<Timestamp>), Problem> {
    let headers = request.headers();
    let Some(text) = bearer(headers)? else {
        let is_encrypted = Context::of(request.extensions()).is_some_and(|context| context.is_encrypted);
        if let Some((caller, ends)) = session::caller(access, queues, headers, is_encrypted)? {
            return Ok((caller, Some(ends)));
        }
        let detail = "a key is required: send it in the header Authorization, as Bearer KEY";
        return Err(Problem::new(Code::Unauthorized, detail));
    };
    by_key(access, queues, text).map(|caller| (caller, None))
}

/// Returns whose key this is.
pub fn by_key(access: &Options, queues: &Queues, text: &str) -> Result<Caller, Problem> {
    let hash = SecretHash::of(text);
    if access.admin.is_some_and(|admin| admin == hash) {
        return Ok(Caller::Admin);
    }
    match queues.recognise(text, &hash)? {
        Recognised::Key(key) => Ok(Caller::Key(key)),
        Recognised::Expired => Err(Problem::new(Code::Unauthorized, "the key has expired")),
        Recognised::Unknown => {
            Err(Problem::new(Code::Unauthorized, "the key is wrong, or was deleted or replaced"))
        }
    }
}

/// Returns the key in `Authorization`, if there is one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Problem::new(Code::Malformed, "the header authorization must not be repeated"));
    }
    let text = HeaderValue::to_str(value).unwrap_or_default();
    let key = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let wrong = || Problem::new(Code::Unauthorized, "the header authorization must be: Bearer KEY");
    key.map(|(_, key)| Some(key.trim())).ok_or_else(wrong)
}

impl<S: Send + Sync> FromRequestParts<S> for Granted {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        of(parts).cloned()
    }
}

/// Returns what a request may do. A request that was not checked may do nothing.
pub fn of(parts: &Parts) -> Result<&Granted, Problem> {
    let unchecked = || Problem::new(Code::Internal, "the request was not checked");
    Context::of(&parts.extensions).and_then(|context| context.granted.as_ref()).ok_or_else(unchecked)
}

impl Granted {
    /// Returns the scope under which the route runs.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Refuses a key without this scope, where the route alone does not say that it needs it.
    pub fn scoped(&self, scope: Scope) -> Result<(), Problem> {
        if self.caller.has(scope) { Ok(()) } else { Err(lacks(scope)) }
    }

    /// Refuses a queue that is not among those of the key.
    pub fn in_queue(&self, queue: &QueueName) -> Result<(), Problem> {
        self.need(self.scope, queue)
    }

    /// Refuses what the key does not allow in this queue.
    pub fn need(&self, scope: Scope, queue: &QueueName) -> Result<(), Problem> {
        if self.caller.may(scope, queue) {
            return Ok(());
        }
        Err(Problem::new(
            Code::Forbidden,
            format!("the key does not have the scope {scope} in the queue {queue}"),
        ))
    }
}
