//! The routes: one file for each resource.

pub mod audit;
pub mod batches;
pub mod bulk;
pub mod dead;
pub mod docs;
pub mod events;
pub mod groups;
pub mod jobs;
pub mod keys;
pub mod metrics;
mod next;
pub mod one_job;
pub mod operations;
pub mod push;
pub mod push_many;
pub mod queue_list;
pub mod queues;
pub mod reserve;
pub mod schedules;
pub mod search;
pub mod semaphores;
pub mod series;
pub mod servers;
pub mod session;
pub mod settle;
mod settle_request;
mod settled;
pub mod stats;
pub mod view;
pub mod workers;

use serde_json::value::RawValue;

use super::body::off_worker;
use super::parse::parse;
use super::problem::{Code, Problem};

/// Parses independent elements: an invalid one does not affect the others. Returns the outcome for each element,
/// and the valid ones converted.
fn parse_each<T: serde::de::DeserializeOwned, U, E: Into<Problem>>(
    raw: &[Box<RawValue>],
    convert: impl Fn(T) -> Result<U, E>,
) -> (Vec<Result<(), Problem>>, Vec<U>) {
    let mut valid = Vec::with_capacity(raw.len());
    let read = |raw: &RawValue| {
        valid.push(convert(parse(raw.get())?).map_err(Into::into)?);
        Ok(())
    };
    let bytes = raw.iter().map(|raw| raw.get().len()).sum();
    (off_worker(bytes, || raw.iter().map(|raw| &**raw).map(read).collect()), valid)
}

/// Merges the results of the valid elements with the problems of the invalid ones, in the order of the request.
fn align<A>(
    elements: Vec<Result<(), Problem>>,
    mut results: impl Iterator<Item = A>,
) -> Vec<Result<A, Problem>> {
    let missing = || Problem::new(Code::Internal, "an element has no result");
    elements.into_iter().map(|element| element.and_then(|()| results.next().ok_or_else(missing))).collect()
}
