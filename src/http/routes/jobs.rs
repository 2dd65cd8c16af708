//! Jobs: push, get, change, cancel.

use std::sync::Arc;

use crate::http::json::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::push::PushRequest;
use super::view::{JobIdentity, JobView, Shown};
use super::{align, parse_each};
use crate::http::access::Granted;
use crate::http::body::{Body, changed, optional_content, present};
use crate::http::budget::Budget;
use crate::http::keyed::{Answer, Keyed, kept, recalled, render, respond};
use crate::http::params::{InQueue, OfJob, Query};
use crate::http::problem::{ApiResult, Code, Problem};
use crate::http::waiting::Waiting;
use crate::job::headers::distinct_if_any;
use crate::job::list::at_most;
use crate::job::spec::Headers;
use crate::job::transition::Edit;
use crate::job::{Base64, GroupName, JobId, MediaType, QueueName, Scope, Timestamp, Visible};
use crate::queue::{CallOutcome, Cancelled, Error, FinishAsk, OfHeld, PushAnswer, Queues, WAIT_MAX_MS};
use crate::store::UnreadableJob;

/// The maximum number of jobs in one push.
pub(super) const BATCH_MAX: usize = 1000;
const WAIT_RULE: &str = "0 to 60000";

/// The job that was pushed, or the existing one with the same key.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PushResponse {
    /// The job.
    pub(super) id: JobId,
    /// Its queue.
    queue: QueueName,
    /// Its state.
    state: Visible,
    /// Its earliest time of delivery.
    run_at: Timestamp,
    /// Whether this existing job has the key of the push; no job was stored then.
    deduplicated: bool,
    /// The payload and the time of this existing job were replaced by those of the push (`key_conflict: replace`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replaced: bool,
}

impl From<PushAnswer> for PushResponse {
    fn from(PushAnswer { id, queue, state, run_at, deduplicated, replaced }: PushAnswer) -> Self {
        Self { id, queue, state, run_at, deduplicated, replaced }
    }
}

impl PushResponse {
    pub(super) fn status(&self) -> StatusCode {
        if self.deduplicated { StatusCode::OK } else { StatusCode::CREATED }
    }
}

/// Push a job
///
/// Adds a job to a queue, to be delivered now or later. The response is sent once the job is durable. Queues need
/// not be created first.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs", operation_id = "push_job", tag = "jobs",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = PushRequest,
    responses(
        (status = 201, description = "The job is stored", body = PushResponse,
            headers(("Location" = String, description = "The path of the job"))),
        (status = 200, description = "The key is in use by a job with an equal payload: that job", body = PushResponse,
            headers(("Location" = String, description = "The path of that job"))),
        (status = 409, description = "`key-conflict`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn push(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, is_empty, .. }: Keyed<PushRequest>,
) -> ApiResult<Response> {
    if is_empty {
        // Most likely the body was lost on its way; a job without payload is pushed by {}.
        return Err(Problem::field(
            "",
            "is required; send {\"payload\": …}, or {} for a job without payload",
        ));
    }
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    let push = request.into_push()?;
    by.spec(&push.spec)?;
    let render = render(move |results: &Vec<Result<PushAnswer, Error>>| {
        let missing = || Problem::new(Code::Internal, "the push has no result");
        let result = results.first().cloned().ok_or_else(missing)?;
        let pushed = PushResponse::from(result.map_err(|error| by.problem(error))?);
        Ok(Answer::new(pushed.status(), &pushed)?.at(format!("/v1/jobs/{}", pushed.id)))
    });
    let told = match &key {
        None => CallOutcome::Plain(queues.push(&queue, vec![push]).await),
        Some(key) => queues.push_once(&queue, vec![push], key, kept(&render)).await?,
    };
    respond(told, &render)
}

/// Jobs to push together.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBatchRequest {
    /// The jobs, up to 1000. Their ids sort in this order.
    #[serde(deserialize_with = "at_most::<{ BATCH_MAX }, _, _>")]
    #[schema(value_type = Vec<PushRequest>, max_items = 1000)]
    jobs: Vec<Box<RawValue>>,
}

/// The result for one job: the fields of a push's response, or a problem.
#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
pub struct PushResult {
    /// The status that a push of only this job would return.
    status: u16,
    /// The job.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<JobId>,
    /// Its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueName>,
    /// Its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Visible>,
    /// Its earliest time of delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<Timestamp>,
    /// Whether the push was a duplicate of this existing job; nothing was stored then.
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplicated: Option<bool>,
    /// The payload and the time of this existing job were replaced by those of the push.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replaced: bool,
    /// Why the job was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl From<ApiResult<PushResponse>> for PushResult {
    fn from(result: ApiResult<PushResponse>) -> Self {
        match result {
            Ok(job) => Self {
                status: job.status().as_u16(),
                id: Some(job.id),
                queue: Some(job.queue),
                state: Some(job.state),
                run_at: Some(job.run_at),
                deduplicated: Some(job.deduplicated),
                replaced: job.replaced,
                problem: None,
            },
            Err(problem) => Self { status: problem.status(), problem: Some(problem), ..Self::default() },
        }
    }
}

/// The results of a push of many jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PushBatchResponse {
    /// One result for each job, in the order of the request.
    pub(super) results: Vec<PushResult>,
}

/// Push many jobs
///
/// Not atomic: each job succeeds or fails independently of the others. Pointers in problems name the job as well:
/// `/jobs/3/priority`. With an `Idempotency-Key` the response is remembered unless every job was refused.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/batch", operation_id = "push_jobs", tag = "jobs",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = PushBatchRequest,
    responses((status = 200, description = "One result for each job", body = PushBatchResponse)))]
pub async fn push_batch(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<PushBatchRequest>,
) -> ApiResult<Response> {
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    if !(1..=BATCH_MAX).contains(&request.jobs.len()) {
        return Err(Problem::field("/jobs", "must be 1 to 1000 jobs"));
    }
    let (elements, pushes) = parse_each(&request.jobs, |request: PushRequest| {
        let push = request.into_push()?;
        by.spec(&push.spec)?;
        Ok::<_, Problem>(push)
    });
    let render = render(move |pushed: &Vec<Result<PushAnswer, Error>>| {
        let results =
            align(elements.clone(), pushed.iter().cloned()).into_iter().enumerate().map(|(n, result)| {
                let result = result.and_then(|pushed| pushed.map_err(|error| by.problem(error)));
                let result = result.map_err(|problem| problem.under(&format!("/jobs/{n}")));
                result.map(PushResponse::from).into()
            });
        Answer::new(StatusCode::OK, &PushBatchResponse { results: results.collect() })
    });
    let told = match &key {
        None => CallOutcome::Plain(queues.push(&queue, pushes).await),
        Some(key) => {
            let whole = kept(&render);
            // Where no job was stored or found, nothing took effect.
            let answer = Arc::new(move |pushed: &Vec<Result<PushAnswer, Error>>| {
                pushed.iter().any(Result::is_ok).then(|| whole(pushed)).flatten()
            });
            queues.push_once(&queue, pushes, key, answer).await?
        }
    };
    respond(told, &render)
}

/// What to wait for.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WaitUntil)]
pub enum Until {
    /// The job is done or dead; a dead letter is dead.
    Finished,
}

/// Get a job
///
/// With `wait_ms` the response comes once the job is done or dead, with its `result` if it has one, and else as it is when the
/// time is over. A done job is there to be found for as long as `retain_result_ms` says, or its queue's `retain_done_ms`; one that
/// is not kept, or is removed, is `job-gone` for those that wait.
#[utoipa::path(get, path = "/v1/jobs/{id}", operation_id = "get_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job"),
        ("wait_ms" = Option<u64>, Query, minimum = 0, maximum = 60000, description = "How long to wait for the job to finish, in milliseconds. Default: 0."),
        ("until" = Option<Until>, Query, description = "What to wait for. Default: `finished`.")),
    responses(
        (status = 200, description = "The job", body = JobView),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "`job-gone`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    waiting: Waiting,
    by: Granted,
    OfJob(id): OfJob,
    query: Query,
) -> ApiResult<Json<JobView>> {
    let query = query.only(&["wait_ms", "until"])?;
    let Until::Finished = query.word("until", "finished")?.unwrap_or(Until::Finished);
    let wait_ms = match query.get("wait_ms", WAIT_RULE)?.unwrap_or(0) {
        ms if ms <= WAIT_MAX_MS => ms,
        _ => return Err(Problem::parameter("wait_ms", format!("must be {WAIT_RULE}"))),
    };
    let place = waiting.place(wait_ms > 0);
    let (may_wait, within, credential) = (place.is_some(), by.caller.reach(), by.credential.clone());
    let ask = FinishAsk { id: id.clone(), wait_ms, may_wait, within, credential };
    let (job, unreadable) = match queues.finished_job(&ask).await? {
        Ok(job) => (job, None),
        Err(UnreadableJob { why, remains, .. }) => {
            // Its queue is unknown where nothing remains: then only a key that reaches all queues sees that it is there.
            let remains = remains.ok_or_else(|| by.unreadable(&id, &why))?;
            (*remains, Some(why))
        }
    };
    by.job(&job)?;
    let waiting_for = match unreadable {
        Some(_) => Vec::new(),
        // What keeps it may be spoiled, or the store away since: the job itself was read.
        None => queues.waiting_for(&job, |queue| by.caller.may(Scope::Read, queue)).await.unwrap_or_default(),
    };
    let waiting_for = Some(waiting_for).filter(|all| !all.is_empty());
    Ok(Json(JobView { unreadable, waiting_for, ..JobView::new(job, &queues.rules(), queues.now()?) }))
}

/// The changes to a job; absent fields stay as they are.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateJobRequest)]
pub struct EditRequest {
    /// The priority; higher is delivered first.
    priority: Option<i32>,
    /// The earliest time of delivery; a time in the past is allowed.
    run_at: Option<Timestamp>,
    /// The payload: any JSON value.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// A binary payload instead, as base64.
    payload_base64: Option<Base64>,
    /// The media type of a binary payload; default: `application/octet-stream`.
    payload_type: Option<MediaType>,
    /// The headers, in place of all that it has; `null` for none.
    #[serde(default, deserialize_with = "changed_headers")]
    #[schema(value_type = Option<crate::job::spec::JobHeaders>)]
    headers: Option<Option<Headers>>,
    /// The maximum number of deliveries before the job is dead, 0 for no limit; `null` for the queue's.
    #[serde(default, deserialize_with = "changed")]
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 1000000)]
    max_attempts: Option<Option<u32>>,
    /// The job expires this long after the change, in milliseconds; `null` for never.
    #[serde(default, deserialize_with = "changed")]
    #[schema(value_type = Option<u64>, minimum = 1, maximum = 31536000000_u64)]
    expires_in_ms: Option<Option<u64>>,
    /// The group: the job joins the end of its line. `null` takes it out of its group.
    #[serde(default, deserialize_with = "changed")]
    group: Option<Option<GroupName>>,
}

/// Reads the headers of a change such that `null` takes them away.
fn changed_headers<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Option<Headers>>, D::Error> {
    distinct_if_any(from).map(Some)
}

/// Change a job
///
/// Changes a job that is not reserved, done or dead. Fields that are absent stay as they are. A job that gets another group leaves
/// its place in the line of the one before, and stands behind all that is in the new one.
///
/// One that cannot be read, because another program wrote it, is a dead job that can be read then, if it has a payload: what could
/// not be read of it is left out or zero. A redrive gives it another chance.
#[utoipa::path(patch, path = "/v1/jobs/{id}", operation_id = "update_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    request_body = EditRequest,
    responses(
        (status = 200, description = "The job after the call; without the scope `read` its id, queue and state",
            body = Shown<JobView, JobIdentity>),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`; `key-conflict`: a unique index of another program", body = Problem, content_type = "application/problem+json")))]
pub async fn edit(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    Body(request): Body<EditRequest>,
) -> ApiResult<Json<Shown<JobView, JobIdentity>>> {
    budget.check()?; // the job is shown whole
    let EditRequest { payload, payload_base64, payload_type, .. } = request;
    let payload = optional_content(payload.as_deref(), payload_base64, payload_type)?;
    let EditRequest { priority, run_at, headers, max_attempts, expires_in_ms, group, .. } = request;
    let headers = headers.map(Option::unwrap_or_default);
    let edit = Edit { priority, run_at, payload, headers, max_attempts, expires_in_ms, group };
    let needs = "a change needs a job that no worker holds and that is not done; the priority and the time only of one that waits";
    let job = queues.edit(&id, edit, &by.caller.reach()).await.map_err(Problem::needing(needs))?;
    Ok(Json(Shown::to(&by, JobView::new(job, &queues.rules(), queues.now()?))))
}

/// What to do about a job that a worker holds.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = WhenReserved)]
pub enum OfReserved {
    /// Request its cancellation of the worker.
    Request,
    /// Refuse the call.
    Refuse,
}

/// What a DELETE did to a job: one of both.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CancelResponse {
    /// The job has been removed.
    deleted: bool,
    /// The job is reserved, and still there: its worker is asked to stop.
    cancel_requested: bool,
}

/// Cancel a job
///
/// A job that is not reserved is removed at once. For a reserved job, cancellation is requested: its worker sees
/// `cancel_requested` in the response of an extend or a heartbeat, and the job is removed when it is rolled back or
/// its reservation expires. With `force` it is removed at once, and the worker's settle is rejected. With `reserved=refuse` a
/// reserved job stays as it is, and the call is refused.
#[utoipa::path(delete, path = "/v1/jobs/{id}", operation_id = "cancel_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job"),
        ("force" = Option<bool>, Query, description = "Remove the job even if it is reserved. Default: `false`."),
        ("reserved" = Option<OfReserved>, Query, description = "What to do about a reserved job. Default: `request`.")),
    responses(
        (status = 200, description = "The job has been removed", body = CancelResponse),
        (status = 202, description = "The job is reserved; cancellation was requested", body = CancelResponse),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`", body = Problem, content_type = "application/problem+json")))]
pub async fn cancel(
    State(queues): State<Queues>,
    by: Granted,
    OfJob(id): OfJob,
    query: Query,
) -> ApiResult<Response> {
    let query = query.only(&["force", "reserved"])?;
    let held = match (query.force()?, query.word("reserved", "request, refuse")?) {
        (true, Some(_)) => return Err(Problem::parameter("reserved", "cannot be combined with force")),
        (true, None) => OfHeld::Remove,
        (false, Some(OfReserved::Refuse)) => OfHeld::Refuse,
        (false, Some(OfReserved::Request) | None) => OfHeld::Ask,
    };
    let cancelled = queues.cancel(&id, held, &by.caller.reach()).await;
    let needs = "with reserved=refuse the job must not be reserved";
    let (status, deleted) = match cancelled.map_err(Problem::needing(needs))? {
        Cancelled::Removed => (StatusCode::OK, true),
        Cancelled::Requested => (StatusCode::ACCEPTED, false),
    };
    Ok((status, Json(CancelResponse { deleted, cancel_requested: !deleted })).into_response())
}

/// A job that cannot be read.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = UnreadableJob)]
pub struct UnreadableView {
    /// The job.
    pub(super) id: JobId,
    /// Its state: `dead`, or `done` if it was finished before.
    pub(super) state: Visible,
    /// What is wrong with it.
    pub(super) detail: String,
}

/// Jobs that a search has found.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct JobsPage {
    /// The jobs, by the time of their push.
    jobs: Vec<JobView>,
    /// Those that cannot be read, because another program wrote them. They are delivered to nobody: `GET` shows what can be read of
    /// one, `PATCH` mends it, `DELETE` removes it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableView>,
    /// How many jobs were looked at.
    scanned: u64,
    /// Whether that were all; else the search goes on with the cursor.
    complete: bool,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}
