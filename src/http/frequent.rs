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
use super::routes::{jobs, reserve, settle};

/// Such a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frequent {
    /// Push a job.
    Push,
    /// Reserve jobs of a queue.
    Reserve,
    /// Pop jobs of a queue.
    Pop,
    /// Commit a job.
    Commit,
    /// Roll a job back.
    Rollback,
    /// Extend a reservation.
    Extend,
}

impl Frequent {
    /// Returns which of these calls a request is, and the parameter of its path.
    pub fn of<'p>(method: &Method, path: &'p str) -> Option<(Self, &'p str)> {
        let rest = path.strip_prefix("/v1/").filter(|_| *method == Method::POST)?;
        let (collection, rest) = rest.split_once('/')?;
        let (segment, verb) = rest.split_once('/')?;
        let call = match (collection, verb) {
            ("queues", "jobs") => Self::Push,
            ("queues", "reserve") => Self::Reserve,
            ("queues", "pop") => Self::Pop,
            ("jobs", "commit") => Self::Commit,
            ("jobs", "rollback") => Self::Rollback,
            ("jobs", "extend") => Self::Extend,
            _ => return None,
        };
        (!segment.is_empty() && !segment.contains('%')).then_some((call, segment))
    }

    /// Returns its path in the document.
    pub fn route(self) -> &'static str {
        match self {
            Self::Push => "/v1/queues/{queue}/jobs",
            Self::Reserve => "/v1/queues/{queue}/reserve",
            Self::Pop => "/v1/queues/{queue}/pop",
            Self::Commit => "/v1/jobs/{id}/commit",
            Self::Rollback => "/v1/jobs/{id}/rollback",
            Self::Extend => "/v1/jobs/{id}/extend",
        }
    }

    /// Handles the request, whose parameter is this segment.
    pub fn handle(
        self,
        mut request: Request,
        segment: String,
        state: AppState,
    ) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Context::of_mut(request.extensions_mut()).segment = Some(segment);
        match self {
            Self::Push => Handler::call(jobs::push, request, state),
            Self::Reserve => Handler::call(reserve::reserve, request, state),
            Self::Pop => Handler::call(reserve::pop, request, state),
            Self::Commit => Handler::call(settle::commit, request, state),
            Self::Rollback => Handler::call(settle::rollback, request, state),
            Self::Extend => Handler::call(settle::extend, request, state),
        }
    }
}

#[cfg(test)]
mod tests {
    use utoipa::openapi::path::Operation;

    use super::*;
    use crate::http::{openapi, operations_of};

    const ALL: [Frequent; 6] = [
        Frequent::Push,
        Frequent::Reserve,
        Frequent::Pop,
        Frequent::Commit,
        Frequent::Rollback,
        Frequent::Extend,
    ];

    #[test]
    fn each_is_a_call_of_the_document_with_one_parameter_in_its_path() {
        let api = openapi::router().split_for_parts().1;
        for call in ALL {
            let path = call.route();
            let there = operations_of(&api.paths.paths[path]).into_iter().any(|(method, _)| method == "POST");
            let filled = path.replace("{queue}", "a.b-c").replace("{id}", "a.b-c");
            assert!(there, "{path}");
            assert_eq!(Frequent::of(&Method::POST, &filled), Some((call, "a.b-c")), "{path}");
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
            "/v1/reserve",
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
