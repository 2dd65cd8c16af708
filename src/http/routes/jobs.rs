//! Jobs: push, get, change, cancel, browse.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::push::PushRequest;
use super::view::{JobIdentity, JobView, Shown};
use super::{align, parse_each};
use crate::http::access::Granted;
use crate::http::answer;
use crate::http::body::{Body, optional_payload, present};
use crate::http::budget::Budget;
use crate::http::keyed::{Answer, Keyed, kept, recalled, render, respond};
use crate::http::params::{InQueue, OfJob, Query, cursor};
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::names::{KEY_RULE, NAME_RULE};
use crate::job::{JobId, QueueName, Timestamp, Visible};
use crate::queue::{Cancelled, Edit, Error, PushAnswer, Queues, Told};
use crate::store::{Filter, Weight as _};

/// The maximum number of jobs in one push.
const BATCH_MAX: usize = 1000;
const STATES: &str = "scheduled, ready, reserved, blocked, done, dead";

/// The job that was pushed, or the existing one with the same key.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PushResponse {
    /// The job.
    #[schema(value_type = String)]
    id: JobId,
    /// Its queue.
    #[schema(value_type = String)]
    queue: QueueName,
    /// Its state.
    state: Visible,
    /// Its earliest time of delivery.
    #[schema(value_type = String, format = DateTime)]
    run_at: Timestamp,
    /// Whether the push was a duplicate of this existing job; nothing was stored then.
    deduplicated: bool,
}

impl From<PushAnswer> for PushResponse {
    fn from(PushAnswer { id, queue, state, run_at, deduplicated }: PushAnswer) -> Self {
        Self { id, queue, state, run_at, deduplicated }
    }
}

impl PushResponse {
    fn status(&self) -> StatusCode {
        if self.deduplicated { StatusCode::OK } else { StatusCode::CREATED }
    }
}

/// Push a job
///
/// Adds a job to a queue, to be delivered now or later. The response is sent once the job is durable. Queues need
/// not be created first.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs", operation_id = "push_job", tag = "jobs",
    params(("queue" = String, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = PushRequest,
    responses(
        (status = 201, description = "The job is stored", body = PushResponse,
            headers(("Location" = String, description = "The path of the job"))),
        (status = 200, description = "The key is in use by a job with an equal payload: that job", body = PushResponse),
        (status = 409, description = "`key-conflict`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn push(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<PushRequest>,
) -> ApiResult<Response> {
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
        None => Told::Now(queues.push(&queue, vec![push]).await),
        Some(key) => queues.push_once(&queue, vec![push], key, kept(&render)).await?,
    };
    respond(told, &render)
}

/// Jobs to push together.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBatchRequest {
    /// The jobs, up to 1000. Their ids sort in this order.
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
    #[schema(value_type = Option<String>)]
    id: Option<JobId>,
    /// Its queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    queue: Option<QueueName>,
    /// Its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Visible>,
    /// Its earliest time of delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// Whether the push was a duplicate of this existing job; nothing was stored then.
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplicated: Option<bool>,
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
    results: Vec<PushResult>,
}

/// Push many jobs
///
/// Not atomic: each job succeeds or fails independently of the others. Pointers in problems name the job as well:
/// `/jobs/3/priority`. With an `Idempotency-Key` the response is remembered unless every job was refused.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/batch", operation_id = "push_jobs", tag = "jobs",
    params(("queue" = String, Path, description = "The queue"),
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
        None => Told::Now(queues.push(&queue, pushes).await),
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

/// Get a job
#[utoipa::path(get, path = "/v1/jobs/{id}", operation_id = "get_job", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "The job", body = JobView),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(State(queues): State<Queues>, by: Granted, OfJob(id): OfJob) -> ApiResult<Json<JobView>> {
    let job = queues.job(&id).await?;
    by.job(&job)?;
    Ok(Json(JobView::new(job, &queues.rules(), queues.now()?)))
}

/// The changes to a job; absent fields stay as they are.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// The priority; higher is delivered first.
    priority: Option<i32>,
    /// The earliest time of delivery; a time in the past is allowed.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// The payload: any JSON value.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
}

/// Change a job
///
/// Changes the priority, `run_at` or payload of a job that is not reserved, done or dead.
#[utoipa::path(patch, path = "/v1/jobs/{id}", operation_id = "edit_job", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    request_body = EditRequest,
    responses(
        (status = 200, description = "The job after the call; without the scope `read` its id, queue and state",
            body = Shown<JobView, JobIdentity>),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`", body = Problem, content_type = "application/problem+json")))]
pub async fn edit(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    Body(request): Body<EditRequest>,
) -> ApiResult<Json<Shown<JobView, JobIdentity>>> {
    budget.check()?; // the job is shown whole
    let payload = optional_payload(request.payload.as_deref(), "/payload")?;
    let edit = Edit { priority: request.priority, run_at: request.run_at, payload };
    let job = queues.edit(&id, edit, &by.caller.reach()).await?;
    Ok(Json(Shown::to(&by, JobView::new(job, &queues.rules(), queues.now()?))))
}

/// The job still exists; its cancellation was requested.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CancelResponse {
    /// Always true.
    cancel_requested: bool,
}

/// Cancel a job
///
/// A job that is not reserved is removed at once. For a reserved job, cancellation is requested: its worker sees
/// `cancel_requested` in the response of an extend or a heartbeat, and the job is removed when it is rolled back or
/// its reservation expires. With `force` it is removed at once, and the worker's settle is rejected.
#[utoipa::path(delete, path = "/v1/jobs/{id}", operation_id = "cancel_job", tag = "jobs",
    params(("id" = String, Path, description = "The job"),
        ("force" = Option<bool>, Query, description = "Remove the job even if it is reserved")),
    responses(
        (status = 204, description = "The job has been removed"),
        (status = 202, description = "The job is reserved; cancellation was requested", body = CancelResponse),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json")))]
pub async fn cancel(
    State(queues): State<Queues>,
    by: Granted,
    OfJob(id): OfJob,
    query: Query,
) -> ApiResult<Response> {
    let force = query.only(&["force"])?.force()?;
    Ok(match queues.cancel(&id, force, &by.caller.reach()).await? {
        Cancelled::Removed => StatusCode::NO_CONTENT.into_response(),
        Cancelled::Requested => {
            (StatusCode::ACCEPTED, Json(CancelResponse { cancel_requested: true })).into_response()
        }
    })
}

/// A job that cannot be read.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct UnreadableJob {
    /// The job.
    #[schema(value_type = String)]
    id: JobId,
    /// What is wrong with it.
    detail: String,
}

/// Jobs of a queue.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct JobsPage {
    /// The jobs, oldest first.
    jobs: Vec<JobView>,
    /// Those that cannot be read, because another program wrote them. They are delivered to nobody; `DELETE` removes one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableJob>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Browse a queue
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs", operation_id = "browse_jobs", tag = "jobs",
    params(("queue" = String, Path, description = "The queue"),
        ("state" = Option<Visible>, Query, description = "Only jobs in this state"),
        ("group" = Option<String>, Query, description = "Only jobs of this group"),
        ("key" = Option<String>, Query, description = "Only jobs with this key"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "Jobs, oldest first", body = JobsPage)))]
pub async fn browse(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    InQueue(queue): InQueue,
    query: Query,
) -> ApiResult<Response> {
    let query = query.only(&["state", "group", "key", "limit", "cursor"])?;
    let filter = Filter {
        state: query.word("state", STATES)?,
        group: query.get("group", NAME_RULE)?,
        key: query.get("key", KEY_RULE)?,
        ..Filter::all(queue)
    };
    let (cursor_of, limit) = (query.cursor::<JobId>()?, query.limit()?);
    let turn = budget.page().await?;
    let page = queues.browse(&filter, cursor_of.as_ref(), limit).await?;
    let held = budget.take(page.items.iter().map(|job| job.weight()).sum())?;
    drop(turn);
    let (rules, now) = (queues.rules(), queues.now()?);
    let (mut jobs, mut unreadable) = (Vec::with_capacity(page.items.len()), Vec::new());
    for listed in page.items {
        match listed {
            Ok(job) => jobs.push(JobView::new(job, &rules, now)),
            Err((id, detail)) => unreadable.push(UnreadableJob { id, detail }),
        }
    }
    Ok(answer::page(jobs, unreadable, page.next.as_ref().map(cursor), held))
}
