//! What operators do to one job, and what is delivered next.

use crate::http::json::Json;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;

use super::jobs::PushResponse;
use super::queues::Nothing;
use super::settled::ReleaseResponse;
use super::view::{JobIdentity, JobView, Shown};
use crate::http::access::Granted;
use crate::http::answer;
use crate::http::body::Body;
use crate::http::budget::Budget;
use crate::http::keyed::{Answer, Keyed, kept, recalled, render, respond};
use crate::http::params::{InQueue, OfJob, Query};
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::{Job, JobId, JobSpec, QueueName};
use crate::queue::{CallKey, Error, PushAnswer, Queues};
use crate::store::{Weight as _, hold};

fn shown(queues: &Queues, by: &Granted, job: Job) -> ApiResult<Json<Shown<JobView, JobIdentity>>> {
    Ok(Json(Shown::to(by, JobView::new(job, &queues.rules(), queues.now()?))))
}

/// Retry a job
///
/// Makes a job ready at once in the queue where it is: a dead one, or one that waits for its `run_at`, after a failure or from the
/// beginning. Its attempts start again.
#[utoipa::path(post, path = "/v1/jobs/{id}/retry", operation_id = "retry_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The job after the call; without the scope `read` its id, queue and state",
            body = Shown<JobView, JobIdentity>),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`: it is reserved, blocked or done, or past its expiry", body = Problem, content_type = "application/problem+json")))]
pub async fn retry(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    _: Body<Nothing>,
) -> ApiResult<Json<Shown<JobView, JobIdentity>>> {
    budget.check()?; // the job is shown whole
    let job = queues.retry(&id, &by.caller.reach()).await.map_err(Problem::needing(
        "a retry needs a job that is dead, scheduled or ready, and not past its expiry",
    ))?;
    shown(&queues, &by, job)
}

/// Run a job now
///
/// Makes a scheduled job due at once, where it is: one that is put off, or waits for its backoff. Its attempts stay as they are. One that
/// is blocked is due once nothing blocks it any more.
#[utoipa::path(post, path = "/v1/jobs/{id}/run", operation_id = "run_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The job after the call; without the scope `read` its id, queue and state",
            body = Shown<JobView, JobIdentity>),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`: it is reserved, done or dead, or past its expiry", body = Problem, content_type = "application/problem+json")))]
pub async fn run(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    _: Body<Nothing>,
) -> ApiResult<Json<Shown<JobView, JobIdentity>>> {
    budget.check()?; // the job is shown whole
    let job = queues.run(&id, &by.caller.reach()).await.map_err(Problem::needing("run needs a job that is scheduled, ready or blocked, and not past its expiry; retry revives a dead one"))?;
    shown(&queues, &by, job)
}

/// Take a job back
///
/// Takes a reserved job from its worker, whose token is worth nothing from then on: what it settles is 409, and its next extension or
/// heartbeat says so. The job comes back at once to the place that it had in the order of delivery, and the attempt does not count. One
/// whose cancellation was requested leaves.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", operation_id = "release_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "What has become of the job", body = ReleaseResponse),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`: it is not reserved", body = Problem, content_type = "application/problem+json")))]
pub async fn release(
    State(queues): State<Queues>,
    by: Granted,
    OfJob(id): OfJob,
    _: Body<Nothing>,
) -> ApiResult<Json<ReleaseResponse>> {
    let released = queues
        .release(&id, &by.caller.reach())
        .await
        .map_err(Problem::needing("release needs a job that is reserved"))?;
    Ok(Json(released.into()))
}

/// Redrive a job
///
/// Returns a dead-lettered job to the queue where it died, and makes a dead one ready where it is, as a redrive of its queue does.
#[utoipa::path(post, path = "/v1/jobs/{id}/redrive", operation_id = "redrive_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The job after the call; without the scope `read` its id, queue and state",
            body = Shown<JobView, JobIdentity>),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`: it is neither dead nor dead-lettered, is reserved, or is past its expiry", body = Problem, content_type = "application/problem+json")))]
pub async fn redrive(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    _: Body<Nothing>,
) -> ApiResult<Json<Shown<JobView, JobIdentity>>> {
    budget.check()?; // the job is shown whole
    let job = queues.redrive_job(&id, &by.caller.reach()).await.map_err(Problem::needing(
        "a redrive needs a job that is dead or dead-lettered, not reserved, and not past its expiry",
    ))?;
    shown(&queues, &by, job)
}

/// Replay a job
///
/// Pushes a copy of a done or dead job to the queue where it is, with a new id, without key, expiry and route. The job itself is not
/// changed.
#[utoipa::path(post, path = "/v1/jobs/{id}/replay", operation_id = "replay_job", tag = "jobs",
    params(("id" = JobId, Path, description = "The job"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = Nothing,
    responses(
        (status = 201, description = "The copy", body = PushResponse,
            headers(("Location" = String, description = "The path of the copy"))),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`wrong-state`: it has not finished", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn replay(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    Keyed { key, .. }: Keyed<Nothing>,
) -> ApiResult<Response> {
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    budget.check()?; // the job is read whole
    let turn = queues.turn_to_copy().await?;
    hold::keeping(turn, copy(&queues, by, id, key.as_ref())).await
}

/// Pushes a copy of this job.
async fn copy(queues: &Queues, by: Granted, id: JobId, key: Option<&CallKey>) -> ApiResult<Response> {
    let job = queues.job(&id, &by.caller.reach()).await?;
    let job = job.map_err(|unreadable| by.unreadable(&id, &unreadable.why))?;
    by.job(&job)?;
    by.spec(&JobSpec::again(job.clone()))?;
    let render = render(move |results: &Vec<Result<PushAnswer, Error>>| {
        let missing = || Problem::new(Code::Internal, "the push has no result");
        let result = results.first().cloned().ok_or_else(missing)?;
        let pushed = PushResponse::from(result.map_err(|error| by.problem(error))?);
        Ok(Answer::new(pushed.status(), &pushed)?.at(format!("/v1/jobs/{}", pushed.id)))
    });
    let keyed = key.map(|key| (key, kept(&render)));
    let needs = "a replay needs a job that is done or dead; a retry makes one that waits ready";
    respond(queues.replay_job(job, keyed).await.map_err(Problem::needing(needs))?, &render)
}

/// The jobs that are delivered next.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PeekResponse {
    /// The jobs in the order of delivery; empty if none is ready.
    jobs: Vec<JobView>,
}

/// Peek into a queue
///
/// Returns the jobs that are ready, in the order in which they would be delivered, and leaves them as they are. What keeps jobs from
/// being delivered now is not considered: a pause, `max_reserved`, `rate`, semaphores without room. Jobs that are blocked already
/// are not among them.
#[utoipa::path(get, path = "/v1/queues/{queue}/peek", operation_id = "peek_jobs", tag = "jobs",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100")),
    responses((status = 200, description = "Jobs, the next one first", body = PeekResponse)))]
pub async fn peek(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    InQueue(queue): InQueue,
    query: Query,
) -> ApiResult<Response> {
    let limit = query.only(&["limit"])?.limit()?;
    let turn = budget.page().await?;
    let jobs = turn.during(queues.peek(&queue, limit)).await?;
    let held = budget.take(jobs.iter().map(|job| job.weight()).sum())?;
    drop(turn);
    let (rules, now) = (queues.rules(), queues.now()?);
    Ok(answer::jobs(jobs.into_iter().map(|job| JobView::new(job, &rules, now)).collect(), held))
}
