//! Operations over many jobs.

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};

use crate::http::AppState;
use crate::http::access::{Granted, only_shows};
use crate::http::budget::Budget;
use crate::http::json::Json;
use crate::http::keyed::Keyed;
use crate::http::params::{OfOperation, Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::backoff::required_object;
use crate::job::bulk::{BulkAction, BulkFilter, BulkState};
use crate::job::{Bulk, BulkId, JobId, QueueName, QueuePattern, Scope, Timestamp, Visible};
use crate::queue::{NewBulk, Queues, Sample};

/// What is to be done, and to which jobs.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    /// Which jobs. Those are meant that are in such a queue and state when it is asked for: what comes there since is left alone.
    #[serde(deserialize_with = "required_object")]
    filter: BulkFilter,
    /// What is done to each of them.
    action: BulkAction,
    /// The queue that they are moved to.
    to: Option<QueueName>,
    /// The priority that they get; of a move: that they have in the queue `to`. Default of a move: unchanged.
    priority: Option<i32>,
    /// The maximum number of jobs.
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    limit: Option<u64>,
    /// `true`: looks at some of the jobs for a second at most, and changes none. Default: `false`.
    #[serde(default)]
    #[schema(default = false)]
    dry_run: bool,
    /// Where `filter.queue` is not one queue it must be said again: the same pattern, such as `mail.*`, or `all queues`. Where it is one
    /// queue its name may be said.
    #[schema(max_length = 129)]
    confirm: Option<String>,
}

/// An operation over many jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Operation)]
pub struct OperationView {
    /// Its id.
    id: BulkId,
    /// How it is doing.
    state: BulkState,
    /// What is done.
    action: BulkAction,
    /// To which jobs.
    filter: BulkFilter,
    /// The queue that they are moved to.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<QueueName>,
    /// The priority that they get.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    /// The maximum number of jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// The id of the key that asked for it, `admin` for the admin key; empty while keys are not required.
    by: String,
    /// When it was asked for.
    created_at: Timestamp,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    /// When it was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    /// About how many jobs matched when it began, `limit` at most, where the counts of the queues tell that: no job is counted for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched: Option<u64>,
    /// How many jobs were looked at.
    scanned: u64,
    /// How many jobs were changed, deleted or copied.
    affected: u64,
    /// How many of the others did not allow it, or changed in between.
    skipped: u64,
    /// How many jobs a second were affected so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_per_s: Option<f64>,
    /// About how long it takes from now on, in milliseconds, where `matched` is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
    /// The last reasons why jobs were skipped, where they say more than that their state did not allow it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl OperationView {
    fn new(operation: Bulk, now: Timestamp) -> Self {
        let Bulk { id, intent, state, by, created_at, started_at, finished_at, matched, affected, .. } =
            operation;
        let ran_ms = started_at.map(|from| finished_at.unwrap_or(now).ms_since(from)).filter(|ms| *ms > 0);
        let rate = ran_ms.map(|ms| affected as f64 * 1e3 / ms as f64);
        let left = matched.filter(|_| state.is_open()).map(|matched| matched.saturating_sub(affected));
        let remaining = left.zip(rate).filter(|(_, rate)| *rate > 0.0);
        Self {
            id,
            state,
            action: intent.action,
            filter: intent.filter,
            to: intent.to,
            priority: intent.priority,
            limit: intent.limit,
            by,
            created_at,
            started_at,
            finished_at,
            matched,
            scanned: operation.scanned,
            affected,
            skipped: operation.skipped,
            rate_per_s: rate.map(|rate| (rate * 10.0).round() / 10.0),
            remaining_ms: remaining.map(|(left, rate)| (left as f64 * 1e3 / rate) as u64),
            errors: operation.errors,
            error: operation.error,
        }
    }
}

/// What an operation would do.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct DryRunResponse {
    /// How many jobs match, of those that were looked at.
    matched: u64,
    /// How many were looked at.
    scanned: u64,
    /// Whether those are all that could match.
    complete: bool,
    /// About how many would be affected, `limit` at most: how many match where all were looked at, else by the counts of the queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimate: Option<u64>,
    /// Whether `estimate` is concluded: by the counts of the queues, and by how many match of those that were looked at. Absent where it is
    /// not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimate_is_approximate: bool,
    /// The first jobs that match.
    samples: Vec<SampleView>,
}

/// A job that matches.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OperationSample)]
pub struct SampleView {
    /// Its id.
    id: JobId,
    /// Its queue.
    queue: QueueName,
    /// Its state.
    state: Visible,
}

/// The operation, or of a `dry_run` what it would do: one type for both, since generators of clients know one of each call.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "it is a description")]
#[serde(untagged)]
pub enum BegunOperation {
    /// The operation.
    Operation(Box<OperationView>),
    /// What it would do.
    DryRun(DryRunResponse),
}

impl From<Sample> for DryRunResponse {
    fn from(sample: Sample) -> Self {
        let Sample { matched, scanned, is_complete: complete, estimate, is_approximate, jobs } = sample;
        let sample = |(id, queue, state)| SampleView { id, queue, state };
        let samples = jobs.into_iter().map(sample).collect();
        Self { matched, scanned, complete, estimate, estimate_is_approximate: is_approximate, samples }
    }
}

/// Operations.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct OperationsPage {
    /// The operations, the newest first.
    operations: Vec<OperationView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Begin an operation over many jobs
///
/// Stores what is wanted and returns at once; servers do it in the background, in small steps, also where they are killed meanwhile:
/// each job is affected once. It acts on the jobs that match and were in that queue and state when it was called (a quarter of a second is
/// added for the servers' clocks; it begins half a second after the call), and on none that comes there since: one that is retried and dies
/// again is not taken twice. In a group, jobs that become ready since the one before them was deleted are deleted as well where blocked
/// ones are meant. `GET` shows how far it is, `DELETE` stops it.
///
/// Those that are over are kept for a week, the last 1000 of them. `move`, `redrive` and `replay` also need the scope `push`, and
/// `dry_run` the scope `read`.
#[utoipa::path(post, path = "/v1/operations", operation_id = "begin_operation", tag = "operations",
    params(("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the operation of the first one is returned, as it is by then")),
    request_body = OperationRequest,
    responses(
        (status = 200, description = "What it would do (`dry_run`)", body = BegunOperation),
        (status = 202, description = "The operation", body = BegunOperation,
            headers(("Location" = String, description = "The path of the operation")))))]
pub async fn begin(
    State(state): State<AppState>,
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    Keyed { key, body: request, .. }: Keyed<OperationRequest>,
) -> ApiResult<Response> {
    let OperationRequest { filter, action, to, priority, limit, dry_run, confirm } = request;
    if state.read_only && !dry_run {
        return Err(only_shows());
    }
    if let Some(QueuePattern::One(queue)) = &filter.queue {
        by.in_queue(queue)?;
    }
    if matches!(action, BulkAction::Move | BulkAction::Redrive | BulkAction::Replay) {
        by.scoped(Scope::Push)?;
    }
    to.iter().try_for_each(|to| by.need(Scope::Push, to))?;
    let new = NewBulk { filter, action, to, priority, limit, confirm };
    if dry_run {
        by.scoped(Scope::Read)?;
        let turn = budget.scan().await?;
        let sample = turn.during(queues.sample_operation(new, &by.caller)).await?;
        return Ok(Json(DryRunResponse::from(sample)).into_response());
    }
    let operation = queues.begin_operation(new, &by.caller, key.as_ref()).await?;
    let location = HeaderValue::try_from(format!("/v1/operations/{}", operation.id));
    let view = OperationView::new(operation, queues.now()?);
    let mut response = (StatusCode::ACCEPTED, Json(view)).into_response();
    response.headers_mut().extend(location.ok().map(|location| (header::LOCATION, location)));
    Ok(response)
}

/// List the operations over many jobs
#[utoipa::path(get, path = "/v1/operations", operation_id = "list_operations", tag = "operations",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The operations, the newest first; for a key of some queues those that it began", body = OperationsPage)))]
pub async fn list(
    State(queues): State<Queues>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<OperationsPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let before = query.cursor::<BulkId>()?;
    let page = queues.operations(before.as_ref(), query.limit()?, &by.caller).await?;
    let now = queues.now()?;
    Ok(Json(OperationsPage {
        operations: page.items.into_iter().map(|operation| OperationView::new(operation, now)).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Get an operation over many jobs
#[utoipa::path(get, path = "/v1/operations/{id}", operation_id = "get_operation", tag = "operations",
    params(("id" = BulkId, Path, description = "The operation")),
    responses((status = 200, description = "The operation", body = OperationView),
        (status = 404, description = "`unknown-operation`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    by: Granted,
    OfOperation(id): OfOperation,
) -> ApiResult<Json<OperationView>> {
    let operation = queues.operation(&id, &by.caller).await?;
    Ok(Json(OperationView::new(operation, queues.now()?)))
}

/// Stop an operation over many jobs
///
/// No further job is affected; what was done by then stays. One that is over stays as it is.
#[utoipa::path(delete, path = "/v1/operations/{id}", operation_id = "cancel_operation", tag = "operations",
    params(("id" = BulkId, Path, description = "The operation")),
    responses((status = 200, description = "The operation after the call", body = OperationView),
        (status = 404, description = "`unknown-operation`", body = Problem, content_type = "application/problem+json")))]
pub async fn cancel(
    State(queues): State<Queues>,
    by: Granted,
    OfOperation(id): OfOperation,
) -> ApiResult<Json<OperationView>> {
    let operation = queues.cancel_operation(&id, &by.caller).await?;
    Ok(Json(OperationView::new(operation, queues.now()?)))
}
