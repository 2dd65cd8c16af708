//! The calls that have no query parameters: one that is given all the same is refused, as an unknown one is elsewhere.

use std::collections::HashSet;

use axum::extract::Request;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::problem::Problem;

/// The calls of the document that have no query parameters, each as its method and its path.
#[derive(Debug)]
pub struct Queryless(HashSet<(&'static str, String)>);

impl Queryless {
    /// Those of this document under `/v1`, and `/stats`. The probes, the metrics and the pages stay as they are, whatever a monitor adds
    /// to their addresses.
    pub fn of(api: &OpenApi) -> Self {
        let is_of_query = |parameter: &RefOr<Parameter>| match parameter {
            RefOr::T(parameter) => parameter.parameter_in == ParameterIn::Query,
            RefOr::Ref(_) => true, // not known here: left alone
        };
        let has_none = |operation: &Operation| !operation.parameters.iter().flatten().any(is_of_query);
        let paths = api.paths.paths.iter().filter(|(path, _)| path.starts_with("/v1/") || *path == "/stats");
        let calls = paths.flat_map(|(path, item)| {
            let operations = super::operations_of(item).into_iter();
            operations
                .filter(|(_, operation)| has_none(operation))
                .map(move |(method, _)| (method, path.clone()))
        });
        Self(calls.collect())
    }

    /// Refuses a request of such a call that has parameters.
    pub fn check(&self, request: &Request, route: Option<&str>) -> Result<(), Problem> {
        let (Some(query), Some(route)) = (request.uri().query(), route) else { return Ok(()) };
        let is_one = || {
            let method = super::method_name(request.method());
            self.0.contains(&(method, route.to_owned()))
        };
        if query.is_empty() || !is_one() {
            return Ok(());
        }
        let is_post = *request.method() == axum::http::Method::POST;
        let hint = if is_post { "; what the call takes is in its body" } else { "" };
        Err(Problem::parameter("query", format!("must be empty: this call has no query parameters{hint}")))
    }
}
