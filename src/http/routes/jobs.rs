//! Jobs: push, look, change, cancel, browse.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::push::PushRequest;
use super::view::JobView;
use super::{align, each};
use crate::http::body::{Body, maybe_payload, present};
use crate::http::params::{InQueue, OfJob, Query, cursor};
use crate::http::problem::{Answer, Code, Problem};
use crate::job::names::{KEY_RULE, NAME_RULE};
use crate::job::{JobId, QueueName, Timestamp, Visible};
use crate::queue::{Cancelled, Edit, PushAnswer, Queues};
use crate::store::Filter;

/// The most jobs of one batch.
const BATCH_MAX: usize = 1000;
const STATES: &str = "scheduled, ready, reserved, blocked, done, dead";

/// A job that was pushed, or that has the key.
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
    /// When it is, or was, due.
    #[schema(value_type = String, format = DateTime)]
    run_at: Timestamp,
    /// Whether the key was taken by this job, and nothing was stored.
    deduplicated: bool,
}

impl PushResponse {
    fn new(queue: &QueueName, answer: PushAnswer) -> Self {
        let PushAnswer { id, state, run_at, deduplicated } = answer;
        Self { id, queue: queue.clone(), state, run_at, deduplicated }
    }

    fn status(&self) -> StatusCode {
        if self.deduplicated { StatusCode::OK } else { StatusCode::CREATED }
    }
}

/// Push a job
///
/// Adds a job to a queue, for now or for later. The answer comes after the job is durable. A queue exists
/// as soon as it is named.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs", operation_id = "push_job", tag = "jobs",
    params(("queue" = String, Path, description = "The queue")),
    request_body = PushRequest,
    responses(
        (status = 201, description = "The job is stored", body = PushResponse,
            headers(("Location" = String, description = "The job's path"))),
        (status = 200, description = "The key is taken by a job with an equal payload: that job", body = PushResponse),
        (status = 409, description = "`key-conflict`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn push(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<PushRequest>,
) -> Answer<Response> {
    let answers = queues.push(&queue, vec![request.into_push()?]).await;
    let lost = || Problem::new(Code::Internal, "the push was left unanswered");
    let answer = PushResponse::new(&queue, answers.into_iter().next().ok_or_else(lost)??);
    let location = HeaderValue::try_from(format!("/v1/jobs/{}", answer.id)).map_err(|_| lost())?;
    Ok((answer.status(), [(header::LOCATION, location)], Json(answer)).into_response())
}

/// Jobs to push together.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushBatchRequest {
    /// The jobs, up to 1000. Their ids sort in this order.
    #[schema(value_type = Vec<PushRequest>, max_items = 1000)]
    jobs: Vec<Box<RawValue>>,
}

/// What became of one job of a batch: the fields of a push's answer, or a problem.
#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
pub struct PushResult {
    /// The status that a push of this job alone would have had.
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
    /// When it is, or was, due.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// Whether the key was taken by this job, and nothing was stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    deduplicated: Option<bool>,
    /// Why the job was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl From<Answer<PushResponse>> for PushResult {
    fn from(answer: Answer<PushResponse>) -> Self {
        match answer {
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

/// What became of the jobs of a batch.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PushBatchResponse {
    /// One result for each job, at its place.
    results: Vec<PushResult>,
}

/// Push many jobs
///
/// Each job stands for itself: one that is refused keeps no other from being stored. Pointers in problems
/// are relative to the job.
#[utoipa::path(post, path = "/v1/queues/{queue}/jobs/batch", operation_id = "push_jobs", tag = "jobs",
    params(("queue" = String, Path, description = "The queue")),
    request_body = PushBatchRequest,
    responses((status = 200, description = "One result for each job", body = PushBatchResponse)))]
pub async fn push_batch(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<PushBatchRequest>,
) -> Answer<Json<PushBatchResponse>> {
    if !(1..=BATCH_MAX).contains(&request.jobs.len()) {
        return Err(Problem::field("/jobs", "must be 1 to 1000 jobs"));
    }
    let (elements, pushes) = each(&request.jobs, PushRequest::into_push);
    let answers = queues.push(&queue, pushes).await;
    let results = align(elements, answers.into_iter()).into_iter().map(|answer| {
        let answer = answer.and_then(|pushed| pushed.map_err(Problem::from));
        answer.map(|pushed| PushResponse::new(&queue, pushed)).into()
    });
    Ok(Json(PushBatchResponse { results: results.collect() }))
}

/// Look at a job
#[utoipa::path(get, path = "/v1/jobs/{id}", operation_id = "get_job", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    responses(
        (status = 200, description = "The job", body = JobView),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(State(queues): State<Queues>, OfJob(id): OfJob) -> Answer<Json<JobView>> {
    let job = queues.job(&id).await?;
    Ok(Json(JobView::new(job, &queues.rules(), queues.now()?)))
}

/// What to change of a job; what is absent stays.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// Higher is delivered first.
    priority: Option<i32>,
    /// Due at this moment; one that has passed sorts earlier.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// What is to be done: any JSON value.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
}

/// Change a job
///
/// Changes priority, due time or payload of a job that is not reserved, done or dead.
#[utoipa::path(patch, path = "/v1/jobs/{id}", operation_id = "edit_job", tag = "jobs",
    params(("id" = String, Path, description = "The job")),
    request_body = EditRequest,
    responses(
        (status = 200, description = "The job as it is now", body = JobView),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`", body = Problem, content_type = "application/problem+json")))]
pub async fn edit(
    State(queues): State<Queues>,
    OfJob(id): OfJob,
    Body(request): Body<EditRequest>,
) -> Answer<Json<JobView>> {
    let payload = maybe_payload(request.payload.as_deref(), "/payload")?;
    let edit = Edit { priority: request.priority, run_at: request.run_at, payload };
    let job = queues.edit(&id, edit).await?;
    Ok(Json(JobView::new(job, &queues.rules(), queues.now()?)))
}

/// The job is still there; its worker was asked to stop.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct CancelResponse {
    /// Always true.
    cancel_requested: bool,
}

/// Cancel a job
///
/// A job that nobody holds leaves at once. One that a worker holds is asked to stop: extends answer
/// `cancel_requested`, and rolled back or expired, the job leaves. With `force` it is taken from its
/// worker, whose settle is then refused.
#[utoipa::path(delete, path = "/v1/jobs/{id}", operation_id = "cancel_job", tag = "jobs",
    params(("id" = String, Path, description = "The job"),
        ("force" = Option<bool>, Query, description = "Take the job away from its worker")),
    responses(
        (status = 204, description = "The job has left"),
        (status = 202, description = "The job's worker was asked to stop", body = CancelResponse),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json")))]
pub async fn cancel(State(queues): State<Queues>, OfJob(id): OfJob, query: Query) -> Answer<Response> {
    let force = query.only(&["force"])?.force()?;
    Ok(match queues.cancel(&id, force).await? {
        Cancelled::Removed => StatusCode::NO_CONTENT.into_response(),
        Cancelled::Requested => {
            (StatusCode::ACCEPTED, Json(CancelResponse { cancel_requested: true })).into_response()
        }
    })
}

/// Jobs of a queue.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct JobsPage {
    /// The jobs, oldest first.
    jobs: Vec<JobView>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Browse a queue
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs", operation_id = "browse_jobs", tag = "jobs",
    params(("queue" = String, Path, description = "The queue"),
        ("state" = Option<Visible>, Query, description = "Only jobs in this state"),
        ("group" = Option<String>, Query, description = "Only jobs of this group"),
        ("key" = Option<String>, Query, description = "Only jobs pushed with this key"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; 100 if absent"),
        ("cursor" = Option<String>, Query, description = "Where the page begins, from the page before")),
    responses((status = 200, description = "Jobs, oldest first", body = JobsPage)))]
pub async fn browse(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    query: Query,
) -> Answer<Json<JobsPage>> {
    let query = query.only(&["state", "group", "key", "limit", "cursor"])?;
    let filter = Filter {
        state: query.word("state", STATES)?,
        group: query.get("group", NAME_RULE)?,
        key: query.get("key", KEY_RULE)?,
        ..Filter::all(queue)
    };
    let page = queues.browse(&filter, query.cursor::<JobId>()?.as_ref(), query.limit()?).await?;
    let (rules, now) = (queues.rules(), queues.now()?);
    Ok(Json(JobsPage {
        jobs: page.items.into_iter().map(|job| JobView::new(job, &rules, now)).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}
