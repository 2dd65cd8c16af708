//! Administrative acts: who makes them, for the audit, and a line in the log when they are over.

use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};

use super::access::Need::{Both, Of, Whole};
use super::access::{Granted, need};
use super::connection::Wire;
use super::waiting::Client;
use crate::job::Caller;
use crate::job::Scope::Operate;
use crate::queue::Actor;

/// Returns whether a request may be an administrative act, so that it is to be known who makes it. What is called most often is none.
pub fn may_be_act(request: &Request, route: Option<&MatchedPath>) -> bool {
    const FREQUENT: [&str; 9] =
        ["/jobs", "/batch", "/reserve", "/pop", "/commit", "/rollback", "/extend", "/settle", "/heartbeat"];
    let route = route.map_or("", MatchedPath::as_str);
    let is_frequent = *request.method() == Method::POST && FREQUENT.iter().any(|end| route.ends_with(end));
    !request.method().is_safe() && !is_frequent
}

/// Returns who makes a request, for the audit.
pub fn actor(request: &Request, granted: &Granted) -> Actor {
    let name = match &granted.caller {
        Caller::Key(key) => Some(key.name.to_string()),
        Caller::Anyone | Caller::Admin => None,
    };
    let behind_proxy = request.extensions().get::<Client>().map(|client| client.0);
    let direct = || request.extensions().get::<Arc<Wire>>().map(|wire| wire.address);
    let address = behind_proxy.or_else(direct).map(|address| address.to_canonical());
    Actor { by: granted.caller.identity().to_owned(), name, address }
}

/// What an operator does: logged when it is over, so that it can be found who has paused a queue, and what a leaked key has done.
pub struct Act {
    granted: Granted,
    method: Method,
    path: String,
    /// `None` where the client left before: it may be done all the same.
    pub status: Option<StatusCode>,
}

impl Act {
    /// Returns the act that a request is, if it is one.
    pub fn of(request: &Request, granted: Granted, route: Option<&MatchedPath>) -> Option<Self> {
        let is_one = match &granted.caller {
            Caller::Anyone => route.is_some_and(|route| is_act_of_anyone(request.method(), route.as_str())),
            _ => granted.scope == Operate,
        };
        let path = || request.uri().path().to_owned();
        is_one.then(|| Self { granted, method: request.method().clone(), path: path(), status: None })
    }
}

/// Returns whether a request is an operator's where no keys are required. Not what changes one job: an application cancels
/// its own like that.
fn is_act_of_anyone(method: &Method, route: &str) -> bool {
    // What is called most often is none; looking it up would cost each call.
    let is_frequent = *method == Method::GET
        || *method == Method::POST && (route.ends_with("/jobs") || route.ends_with("/reserve"))
        || route.starts_with("/v1/jobs")
        || route == "/v1/settle";
    !is_frequent
        && matches!(need(method.as_str(), route), Some(Of(Operate) | Whole(Operate) | Both(Operate, _)))
}

impl Drop for Act {
    fn drop(&mut self) {
        let Self { granted, method, path, status } = self;
        if status.is_none_or(|status| status.is_success() || status.is_server_error()) {
            let status = status.map(|status| status.as_u16());
            tracing::info!(by = granted.caller.identity(), %method, path, status, "operated");
        }
    }
}
