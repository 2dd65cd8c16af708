//! The calls that each job costs: they are dispatched before the router, which costs a request some thousand instructions.
//!
//! They are in the router as well, which the document is made of. It also takes those of them whose path has to be decoded.

use std::pin::Pin;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::Method;
use axum::response::Response;

use super::AppState;
use super::context::Context;
use super::routes::{jobs, push_many, reserve, settle};

/// Such a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frequent {
    /// Push a job.
    Push,
    /// Push jobs to a queue.
    PushBatch,
    /// Push jobs to several queues.
    PushMany,
    /// Reserve jobs of a queue.
    Reserve,
    /// Reserve jobs of several queues.
    ReserveMany,
    /// Pop jobs of a queue.
    Pop,
    /// Commit a job.
    Commit,
    /// Roll a job back.
    Rollback,
    /// Extend a reservation.
    Extend,
    /// Settle several jobs.
    Settle,
}

impl Frequent {
    /// Returns which of these calls a request is, and the parameter of its path, which is empty where it has none.
    pub fn of<'p>(method: &Method, path: &'p str) -> Option<(Self, &'p str)> {
        let path = path.strip_prefix("/v1/").filter(|_| *method == Method::POST)?;
        let Some((collection, rest)) = path.split_once('/') else {
            return Self::without_parameter(path).map(|call| (call, ""));
        };
        let (segment, verb) = rest.split_once('/')?;
        let call = match (collection, verb) {
            ("queues", "jobs") => Self::Push,
            ("queues", "jobs/batch") => Self::PushBatch,
            ("queues", "reserve") => Self::Reserve,
            ("queues", "pop") => Self::Pop,
            ("jobs", "commit") => Self::Commit,
            ("jobs", "rollback") => Self::Rollback,
            ("jobs", "extend") => Self::Extend,
            _ => return None,
        };
        (!segment.is_empty() && !segment.contains('%')).then_some((call, segment))
    }

    fn without_parameter(path: &str) -> Option<Self> {
        match path {
            "jobs" => Some(Self::PushMany),
            "reserve" => Some(Self::ReserveMany),
            "settle" => Some(Self::Settle),
            _ => None,
        }
    }

    /// Returns its path in the document.
    pub fn route(self) -> &'static str {
        match self {
            Self::Push => "/v1/queues/{queue}/jobs",
            Self::PushBatch => "/v1/queues/{queue}/jobs/batch",
            Self::PushMany => "/v1/jobs",
            Self::Reserve => "/v1/queues/{queue}/reserve",
            Self::ReserveMany => "/v1/reserve",
            Self::Pop => "/v1/queues/{queue}/pop",
            Self::Commit => "/v1/jobs/{id}/commit",
            Self::Rollback => "/v1/jobs/{id}/rollback",
            Self::Extend => "/v1/jobs/{id}/extend",
            Self::Settle => "/v1/settle",
        }
    }

    /// Handles the request, whose parameter is this segment.
    pub fn handle(
        self,
        mut request: Request,
        segment: String,
        state: AppState,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        // An empty one is none: the path of such a call has no parameter.
        let segment = Some(segment).filter(|segment| !segment.is_empty());
        Context::of_mut(request.extensions_mut()).segment = segment;
        match self {
            Self::Push => Handler::call(jobs::push, request, state),
            Self::PushBatch => Handler::call(jobs::push_batch, request, state),
            Self::PushMany => Handler::call(push_many::push_many, request, state),
            Self::Reserve => Handler::call(reserve::reserve, request, state),
            Self::ReserveMany => Handler::call(reserve::reserve_many, request, state),
            Self::Pop => Handler::call(reserve::pop, request, state),
            Self::Commit => Handler::call(settle::commit, request, state),
            Self::Rollback => Handler::call(settle::rollback, request, state),
            Self::Extend => Handler::call(settle::extend, request, state),
            Self::Settle => Handler::call(settle::settle, request, state),
        }
    }
}

#[cfg(test)]
mod tests {
    use utoipa::openapi::path::Operation;

    use super::*;
    use crate::http::{openapi, operations_of};

    const ALL: [Frequent; 10] = [
        Frequent::Push,
        Frequent::PushBatch,
        Frequent::PushMany,
        Frequent::Reserve,
        Frequent::ReserveMany,
        Frequent::Pop,
        Frequent::Commit,
        Frequent::Rollback,
        Frequent::Extend,
        Frequent::Settle,
    ];

    #[test]
    fn each_is_a_call_of_the_document_with_at_most_one_parameter_in_its_path() {
        let api = openapi::router().split_for_parts().1;
        for call in ALL {
            let path = call.route();
            let there = operations_of(&api.paths.paths[path]).into_iter().any(|(method, _)| method == "POST");
            let filled = path.replace("{queue}", "a.b-c").replace("{id}", "a.b-c");
            let parameter = if filled == path { "" } else { "a.b-c" };
            assert!(there, "{path}");
            assert_eq!(Frequent::of(&Method::POST, &filled), Some((call, parameter)), "{path}");
        }
    }

    #[test]
    fn whatever_is_not_quite_one_is_left_to_the_router() {
        for path in [
            "/v1/queues/a/jobs/",
            "/v1/queues/a/jobs/x",
            "/v1/queues//jobs",
            "/v1/queues/a%20/jobs",
            "/v1/queues/a/commit",
            "/v1/jobs/a/jobs",
            "/v2/queues/a/jobs",
            "/v1/queues/jobs",
            "/v1/queues/a/jobs/batch/",
            "/v1/queues//jobs/batch",
            "/v1/queues",
            "/v1/reserve/",
            "/v1/settle/a",
            "/v1/jobs/",
            "/v1/jobs/a",
            "/v1/settl%65",
            "v1/settle",
            "v1/queues/a/jobs",
            "//v1/queues/a/jobs",
            "/v1//queues/a/jobs",
            "/v1/queues/a/JOBS",
            "/",
            "",
        ] {
            assert_eq!(Frequent::of(&Method::POST, path), None, "{path}");
        }
        assert_eq!(Frequent::of(&Method::GET, "/v1/queues/a/jobs"), None);
        assert_eq!(Frequent::of(&Method::GET, "/v1/jobs"), None);
    }

    #[test]
    fn no_call_of_the_document_is_taken_for_another() {
        let api = openapi::router().split_for_parts().1;
        let calls = api.paths.paths.iter().flat_map(|(path, item)| {
            operations_of(item).into_iter().map(move |(method, _): (&str, &Operation)| (method, path))
        });
        for (method, path) in calls {
            let filled = path.replace(['{', '}'], "");
            let found = Frequent::of(&method.parse().unwrap(), &filled);
            assert!(found.is_none_or(|(call, _)| call.route() == path), "{method} {path}");
        }
    }
}
