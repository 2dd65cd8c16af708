//! One file for each resource.

pub mod batches;
pub mod jobs;
pub mod operations;
pub mod push;
pub mod queues;
pub mod reserve;
pub mod schedules;
pub mod semaphores;
pub mod settle;
pub mod stats;
pub mod view;
pub mod workers;

use axum::Router;
use axum::response::Redirect;
use axum::routing::get;
use serde_json::value::RawValue;
use utoipa_swagger_ui::SwaggerUi;

use super::AppState;
use super::body::parse;
use super::problem::{Code, Problem};

/// `/openapi.json` and the interactive page of it.
pub fn docs(api: utoipa::openapi::OpenApi) -> Router<AppState> {
    let page = SwaggerUi::new("/docs").url("/openapi.json", api);
    Router::new().merge(page).route("/", get(|| async { Redirect::temporary("/docs/") }))
}

/// Elements that stand for themselves: each is read on its own, so that one that is wrong spoils no other.
/// Answers which are in order, and those that are.
fn each<T: serde::de::DeserializeOwned, U>(
    raw: &[Box<RawValue>],
    convert: impl Fn(T) -> Result<U, Problem>,
) -> (Vec<Result<(), Problem>>, Vec<U>) {
    let mut good = Vec::with_capacity(raw.len());
    let read = |raw: &RawValue| parse(raw.get()).and_then(&convert).map(|element| good.push(element));
    (raw.iter().map(|raw| &**raw).map(read).collect(), good)
}

/// Puts the answers to the elements that were in order back among those that were not.
fn align<A>(
    elements: Vec<Result<(), Problem>>,
    mut answers: impl Iterator<Item = A>,
) -> Vec<Result<A, Problem>> {
    let lost = || Problem::new(Code::Internal, "an element was left unanswered");
    elements.into_iter().map(|element| element.and_then(|()| answers.next().ok_or_else(lost))).collect()
}
