//! Administrative acts: who makes them, for the audit, and a line in the log for what has no entry there.

use std::sync::atomic::Ordering;

use axum::extract::Request;
use axum::http::{Method, StatusCode};

use super::access::Granted;
use super::context::Context;
use crate::job::Caller;
use crate::job::Scope::Operate;
use crate::queue::Actor;

/// Returns whether a request may be an administrative act, so that it is to be known who makes it. What is called most often is none.
pub fn may_be_act(request: &Request, route: Option<&str>) -> bool {
    const FREQUENT: [&str; 9] =
        ["/jobs", "/batch", "/reserve", "/pop", "/commit", "/rollback", "/extend", "/settle", "/heartbeat"];
    let route = route.unwrap_or_default();
    let is_frequent = *request.method() == Method::POST && FREQUENT.iter().any(|end| route.ends_with(end));
    !request.method().is_safe() && !is_frequent
}

/// Returns who makes a request, for the audit.
pub fn actor(request: &Request, granted: &Granted) -> Actor {
    let name = match &granted.caller {
        Caller::Key(key) => Some(key.name.to_string()),
        Caller::Anyone | Caller::Admin => None,
    };
    let address =
        Context::of(request.extensions()).and_then(Context::address).map(|address| address.to_canonical());
    Actor::new(granted.caller.identity(), name, address)
}

/// What a key did with the scope `operate`: logged when it is over, so that it can be found what a leaked key has done. An act that has an
/// entry in the audit is logged with that instead.
pub struct Act {
    actor: Actor,
    method: Method,
    path: String,
    /// `None` where the client left before: it may be done all the same.
    pub status: Option<StatusCode>,
}

impl Act {
    /// Returns whether a request is an operator's, by its key.
    pub fn is_of_operator(granted: &Granted) -> bool {
        granted.scope == Operate && !matches!(granted.caller, Caller::Anyone)
    }

    /// A request of an operator that has just begun.
    pub fn new(request: &Request, actor: Actor) -> Self {
        let path = request.uri().path().to_owned();
        Self { actor, method: request.method().clone(), path, status: None }
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        let Self { actor: Actor { by, name, address, is_recorded }, method, path, status } = self;
        let may_be_done = status.is_none_or(|status| status.is_success() || status.is_server_error());
        if may_be_done && !is_recorded.load(Ordering::Relaxed) {
            let (status, by_name) = (status.map(|status| status.as_u16()), name.as_deref());
            let address = address.map(tracing::field::display);
            tracing::info!(by, by_name, address, %method, path, status, "request of an operator");
        }
    }
}
