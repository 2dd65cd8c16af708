//! Batches: jobs that belong together, and a callback when all have finished.

use crate::http::json::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::jobs::BATCH_MAX;
use super::push::{OnFinishedRequest, QueuedPush, parse_queued};
use super::queues::AffectedResponse;
use super::view::Shown;
use crate::http::access::Granted;
use crate::http::budget::Budget;
use crate::http::keyed::{Answer, Keyed, kept, recalled, render, respond};
use crate::http::params::{OfBatch, Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::list::at_most;
use crate::job::{Batch, BatchId, BatchResult, Child, Ending, JobId, Payload, QueueName, Timestamp};
use crate::queue::{BatchState, CallOutcome, NewBatch, Queues};
use crate::store::BatchChanged;

/// A batch to create.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBatchRequest {
    /// Its first jobs, up to 1000, in any queues.
    #[serde(default, deserialize_with = "at_most::<{ BATCH_MAX }, _, _>")]
    #[schema(value_type = Vec<QueuedPush>, max_items = 1000)]
    jobs: Vec<Box<RawValue>>,
    /// The callback: a job that is pushed when the last one has finished.
    on_finished: Option<OnFinishedRequest>,
    /// Whether these are all of its jobs. If not, add more, then seal it.
    #[serde(default = "yes")]
    #[schema(default = true)]
    sealed: bool,
}

fn yes() -> bool {
    true
}

/// Jobs to add to a batch.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddToBatchRequest {
    /// The jobs, 1 to 1000, in any queues.
    #[serde(deserialize_with = "at_most::<{ BATCH_MAX }, _, _>")]
    #[schema(value_type = Vec<QueuedPush>, min_items = 1, max_items = 1000)]
    jobs: Vec<Box<RawValue>>,
}

/// A batch and the counts of its jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Batch)]
pub struct BatchView {
    /// Its id.
    id: BatchId,
    /// Whether it accepts no more jobs.
    sealed: bool,
    /// How many jobs are unfinished.
    pending: u64,
    /// How many are done.
    done: u64,
    /// How many are dead.
    dead: u64,
    /// How many were removed: cancelled, purged, or expired.
    cancelled: u64,
    /// When it was created.
    created_at: Timestamp,
    /// When it finished: it was sealed and its last job had finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    /// When it is deleted with its results.
    #[serde(skip_serializing_if = "Option::is_none")]
    purge_at: Option<Timestamp>,
    /// The id of the callback, if there is one; the job does not exist before the batch finishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    callback: Option<JobId>,
    /// The queue of the callback.
    #[serde(skip_serializing_if = "Option::is_none")]
    callback_queue: Option<QueueName>,
}

impl From<Batch> for BatchView {
    fn from(batch: Batch) -> Self {
        let callback_queue = batch.on_finished.map(|on_finished| on_finished.queue);
        let callback = callback_queue.is_some().then_some(batch.callback);
        Self {
            id: batch.id,
            sealed: batch.sealed,
            pending: batch.pending,
            done: batch.endings.done,
            dead: batch.endings.dead,
            cancelled: batch.endings.cancelled,
            created_at: batch.created_at,
            finished_at: batch.finished_at,
            purge_at: batch.purge_at,
            callback,
            callback_queue,
        }
    }
}

/// Which batch it is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BatchIdentity {
    /// Its id.
    id: BatchId,
    /// Whether it accepts no more jobs.
    sealed: bool,
}

impl From<&BatchView> for BatchIdentity {
    fn from(batch: &BatchView) -> Self {
        Self { id: batch.id.clone(), sealed: batch.sealed }
    }
}

/// A batch and the jobs that were added to it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BatchJobsResponse {
    /// The batch after the call.
    #[serde(flatten)]
    batch: Shown<BatchView, BatchIdentity>,
    /// The jobs, in the order of the request.
    jobs: Vec<BatchMember>,
}

/// A job that was to be added to a batch.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BatchMember {
    /// The job: the new one, or the one that has the key.
    id: JobId,
    /// The queue that it was pushed to.
    queue: QueueName,
    /// When it is, or was, due.
    run_at: Timestamp,
    /// Whether an existing job has its key, and no job was stored.
    deduplicated: bool,
    /// The payload and the time of this existing job were replaced by those of the push (`key_conflict: replace`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replaced: bool,
    /// Whether this call has counted it in the batch. A duplicate is not counted: the batch does not wait for its end.
    counted: bool,
}

impl From<Child> for BatchMember {
    fn from(Child { id, queue, run_at, deduplicated, replaced }: Child) -> Self {
        Self { id, queue, run_at, deduplicated, replaced, counted: !deduplicated }
    }
}

/// Returns the response of a call that has added to a batch.
fn added(status: StatusCode, by: &Granted, changed: &BatchChanged) -> ApiResult<Answer> {
    let BatchChanged { batch, pushed, .. } = changed.clone();
    let jobs = pushed.into_iter().map(BatchMember::from).collect();
    Answer::new(status, &BatchJobsResponse { batch: Shown::to(by, batch.into()), jobs })
}

/// Create a batch
///
/// Pushes jobs that belong together. When the last of them has finished (done, dead, or removed), the job in
/// `on_finished` is pushed exactly once, with the headers `batch-id`, `batch-done`, `batch-dead` and
/// `batch-cancelled`. Atomic: the batch and all its jobs are stored, or nothing is. A job whose key is in use by an
/// equal job is a duplicate and is not counted: the batch does not wait for it. If all jobs are duplicates the batch would end
/// at once, and is refused; use an `Idempotency-Key` to send a batch again.
#[utoipa::path(post, path = "/v1/batches", operation_id = "create_batch", tag = "batches",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = CreateBatchRequest,
    responses(
        (status = 201, description = "The batch and its jobs are stored", body = BatchJobsResponse,
            headers(("Location" = String, description = "The batch's path"))),
        (status = 409, description = "`key-conflict`, `batch-of-duplicates`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn create(
    State(queues): State<Queues>,
    by: Granted,
    Keyed { key, body: request, .. }: Keyed<CreateBatchRequest>,
) -> ApiResult<Response> {
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    let on_finished = request.on_finished.map(OnFinishedRequest::into_callback).transpose();
    let on_finished = on_finished.map_err(|invalid| invalid.under("/on_finished"))?;
    if let Some(on_finished) = &on_finished {
        by.on_finished(on_finished)?;
    }
    let jobs = parse_queued(&request.jobs, "/jobs")?;
    by.pushes(&jobs)?;
    let new = NewBatch { jobs, on_finished, sealed: request.sealed, owner: by.owner() };
    let reader = by.clone();
    let render = render(move |changed: &BatchChanged| {
        let location = format!("/v1/batches/{}", changed.batch.id);
        Ok(added(StatusCode::CREATED, &reader, changed)?.at(location))
    });
    let told = match &key {
        None => queues.create_batch(new).await.map(CallOutcome::Plain),
        Some(key) => queues.create_batch_once(new, key, kept(&render)).await,
    };
    respond(told.map_err(|error| by.problem(error))?, &render)
}

/// Add jobs to a batch
///
/// Fails if it is sealed. Atomic: all of the jobs are stored, or none.
#[utoipa::path(post, path = "/v1/batches/{id}/jobs", operation_id = "add_to_batch", tag = "batches",
    params(("id" = BatchId, Path, description = "The batch"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = AddToBatchRequest,
    responses(
        (status = 200, description = "The jobs are stored", body = BatchJobsResponse),
        (status = 404, description = "`unknown-batch`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`batch-of-duplicates`; `batch-sealed`, `key-conflict`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn add(
    State(queues): State<Queues>,
    by: Granted,
    OfBatch(id): OfBatch,
    Keyed { key, body: request, .. }: Keyed<AddToBatchRequest>,
) -> ApiResult<Response> {
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    let jobs = parse_queued(&request.jobs, "/jobs")?;
    by.pushes(&jobs)?;
    by.batch(&queues, &id).await?;
    let reader = by.clone();
    let render = render(move |changed: &BatchChanged| added(StatusCode::OK, &reader, changed));
    let told = match &key {
        None => queues.add_to_batch(&id, jobs).await.map(CallOutcome::Plain),
        Some(key) => queues.add_to_batch_once(&id, jobs, key, kept(&render)).await,
    };
    respond(told.map_err(|error| by.problem(error))?, &render)
}

/// Seal a batch
///
/// A sealed batch accepts no more jobs. If all of its jobs have finished, it finishes now. Idempotent.
#[utoipa::path(post, path = "/v1/batches/{id}/seal", operation_id = "seal_batch", tag = "batches",
    params(("id" = BatchId, Path, description = "The batch")),
    responses(
        (status = 200, description = "The batch after the call; without the scope `read` its id and whether it is sealed",
            body = Shown<BatchView, BatchIdentity>),
        (status = 404, description = "`unknown-batch`", body = Problem, content_type = "application/problem+json")))]
pub async fn seal(
    State(queues): State<Queues>,
    by: Granted,
    OfBatch(id): OfBatch,
) -> ApiResult<Json<Shown<BatchView, BatchIdentity>>> {
    by.batch(&queues, &id).await?;
    Ok(Json(Shown::to(&by, queues.seal_batch(&id).await?.into())))
}

/// Batches.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BatchesPage {
    /// The batches, oldest first.
    batches: Vec<BatchView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the batches
///
/// The batches that are there, oldest first; to a key for some queues only those that it created. Where few are shown of many, a page ends
/// after less than a second, with those that were found by then, or none, and a `cursor`.
#[utoipa::path(get, path = "/v1/batches", operation_id = "list_batches", tag = "batches",
    params(("state" = Option<BatchState>, Query, description = "Only batches in this state"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "Batches, oldest first", body = BatchesPage)))]
pub async fn list(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<BatchesPage>> {
    let query = query.only(&["state", "limit", "cursor"])?;
    let state = query.word("state", "open, sealed, finished")?;
    let (after, limit) = (query.cursor::<BatchId>()?, query.limit()?);
    let owner = by.owner();
    // Of some only a few may be shown, and many are read.
    let turn = if owner.is_none() && state.is_none() { budget.page().await? } else { budget.scan().await? };
    let page = turn.during(queues.batches(state, owner.as_ref(), after.as_ref(), limit)).await?;
    Ok(Json(BatchesPage {
        batches: page.items.into_iter().map(BatchView::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Get a batch
#[utoipa::path(get, path = "/v1/batches/{id}", operation_id = "get_batch", tag = "batches",
    params(("id" = BatchId, Path, description = "The batch")),
    responses(
        (status = 200, description = "The batch", body = BatchView),
        (status = 404, description = "`unknown-batch`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    by: Granted,
    OfBatch(id): OfBatch,
) -> ApiResult<Json<BatchView>> {
    by.batch(&queues, &id).await?;
    Ok(Json(queues.batch(&id).await?.into()))
}

/// Cancel a batch
///
/// Seals it, removes those of its jobs that are not reserved, and returns how many. For reserved jobs cancellation is
/// requested, as by a DELETE of the job: they end when their workers settle them; then the batch finishes.
#[utoipa::path(delete, path = "/v1/batches/{id}", operation_id = "cancel_batch", tag = "batches",
    params(("id" = BatchId, Path, description = "The batch")),
    responses(
        (status = 200, description = "How many jobs were removed", body = AffectedResponse),
        (status = 404, description = "`unknown-batch`", body = Problem, content_type = "application/problem+json")))]
pub async fn cancel(
    State(queues): State<Queues>,
    by: Granted,
    OfBatch(id): OfBatch,
) -> ApiResult<Json<AffectedResponse>> {
    by.batch(&queues, &id).await?;
    Ok(Json(queues.cancel_batch(&id, &by.caller.reach()).await?.into()))
}

/// The result of a job of a batch.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = BatchResult)]
pub struct BatchResultView {
    /// The job.
    id: JobId,
    /// The queue that it was in.
    queue: QueueName,
    /// How it ended.
    state: Ending,
    /// The result of the commit: any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Payload>,
    /// When it ended.
    finished_at: Timestamp,
}

impl From<BatchResult> for BatchResultView {
    fn from(BatchResult { id, queue, state, result, finished_at }: BatchResult) -> Self {
        Self { id, queue, state, result, finished_at }
    }
}

/// Results of a batch.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct BatchResultsPage {
    /// The results, ordered by job id.
    results: Vec<BatchResultView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the results of a batch
///
/// Returns the results of its finished jobs, whether or not their queues keep history.
#[utoipa::path(get, path = "/v1/batches/{id}/results", operation_id = "get_batch_results", tag = "batches",
    params(("id" = BatchId, Path, description = "The batch"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses(
        (status = 200, description = "Results, ordered by job id", body = BatchResultsPage),
        (status = 404, description = "`unknown-batch`", body = Problem, content_type = "application/problem+json")))]
pub async fn results(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfBatch(id): OfBatch,
    query: Query,
) -> ApiResult<Json<BatchResultsPage>> {
    let query = query.only(&["limit", "cursor"])?;
    by.batch(&queues, &id).await?;
    let turn = budget.page().await?;
    let (after, limit, within) = (query.cursor::<JobId>()?, query.limit()?, by.caller.reach());
    let page = turn.during(queues.batch_results(&id, after.as_ref(), limit, &within)).await?;
    Ok(Json(BatchResultsPage {
        results: page.items.into_iter().map(BatchResultView::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}
