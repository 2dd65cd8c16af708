//! Pushes to several queues at once.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::jobs::{BATCH_MAX, PushBatchResponse, PushResponse};
use super::push::{QueuedPush, parse_queued};
use super::{align, parse_each};
use crate::http::access::Granted;
use crate::http::keyed::{Answer, Keyed, kept, recalled, render, respond};
use crate::http::problem::{ApiResult, Problem};
use crate::job::list::at_most;
use crate::job::{QueueName, Scope};
use crate::queue::{CallKey, CallOutcome, Error, NewPush, PushAnswer, Queues};

fn yes() -> bool {
    true
}

/// Jobs to push to several queues.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushManyRequest {
    /// The jobs, 1 to 1000, each with its queue. Their ids sort in this order.
    #[serde(deserialize_with = "at_most::<{ BATCH_MAX }, _, _>")]
    #[schema(value_type = Vec<QueuedPush>, min_items = 1, max_items = 1000)]
    jobs: Vec<Box<RawValue>>,
    /// Whether either all jobs are stored or none. If not, each succeeds or fails independently of the others.
    #[serde(default = "yes")]
    #[schema(default = true)]
    atomic: bool,
}

/// Push jobs to several queues
///
/// All or none: where one job is refused, nothing is stored, and the problem's `pointer` names the job (`/jobs/3`) or its field
/// (`/jobs/3/priority`). A duplicate by its `key` is not refused: it is `deduplicated`, with the status 200. With `atomic: false` each
/// job has a result or a problem of its own.
#[utoipa::path(post, path = "/v1/jobs", operation_id = "push_to_queues", tag = "jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = PushManyRequest,
    responses(
        (status = 200, description = "One result for each job", body = PushBatchResponse),
        (status = 409, description = "`key-conflict`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn push_many(
    State(queues): State<Queues>,
    by: Granted,
    Keyed { key, body: request, .. }: Keyed<PushManyRequest>,
) -> ApiResult<Response> {
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    if !(1..=BATCH_MAX).contains(&request.jobs.len()) {
        return Err(Problem::field("/jobs", "must be 1 to 1000 jobs"));
    }
    match request.atomic {
        true => push_all(queues, by, key, &request.jobs).await,
        false => push_each(queues, by, key, &request.jobs).await,
    }
}

/// Refuses a push that the key does not allow.
fn judge(by: &Granted, queue: &QueueName, push: &NewPush) -> ApiResult<()> {
    by.need(Scope::Push, queue)?;
    by.spec(&push.spec)
}

async fn push_all(
    queues: Queues,
    by: Granted,
    key: Option<CallKey>,
    raw: &[Box<RawValue>],
) -> ApiResult<Response> {
    let pushes = parse_queued(raw, "/jobs")?;
    for (n, (queue, push)) in pushes.iter().enumerate() {
        judge(&by, queue, push).map_err(|problem| problem.in_job(n))?;
    }
    let render = render(|pushed: &Vec<PushAnswer>| {
        let results = pushed.iter().cloned().map(|pushed| Ok(PushResponse::from(pushed)).into());
        Answer::new(StatusCode::OK, &PushBatchResponse { results: results.collect() })
    });
    let told = match &key {
        None => queues.push_all(pushes).await.map(CallOutcome::Plain),
        Some(key) => queues.push_all_once(pushes, key, kept(&render)).await,
    };
    respond(told.map_err(|error| by.problem(error))?, &render)
}

async fn push_each(
    queues: Queues,
    by: Granted,
    key: Option<CallKey>,
    raw: &[Box<RawValue>],
) -> ApiResult<Response> {
    let (elements, pushes) = parse_each(raw, |request: QueuedPush| {
        let (queue, push) = (request.queue.clone(), request.into_push()?);
        judge(&by, &queue, &push)?;
        Ok::<_, Problem>((queue, push))
    });
    let render = render(move |pushed: &Vec<Result<PushAnswer, Error>>| {
        let results =
            align(elements.clone(), pushed.iter().cloned()).into_iter().enumerate().map(|(n, result)| {
                let result = result.and_then(|pushed| pushed.map_err(|error| by.problem(error)));
                result.map(PushResponse::from).map_err(|problem| problem.under(&format!("/jobs/{n}"))).into()
            });
        Answer::new(StatusCode::OK, &PushBatchResponse { results: results.collect() })
    });
    let told = match &key {
        None => CallOutcome::Plain(queues.push_each(pushes).await),
        Some(key) => {
            let whole = kept(&render);
            // Where no job was stored or found, nothing took effect.
            let answer = Arc::new(move |pushed: &Vec<Result<PushAnswer, Error>>| {
                pushed.iter().any(Result::is_ok).then(|| whole(pushed)).flatten()
            });
            queues.push_each_once(pushes, key, answer).await?
        }
    };
    respond(told, &render)
}
