//! Semaphores: shared limits on how many jobs are reserved at once.

use crate::http::json::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::view::{Deleted, Identity, Shown};
use crate::http::access::Granted;
use crate::http::body::Body;
use crate::http::params::{Named, Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::{JobId, QueueName, SemaphoreName, Timestamp, WorkerName};
use crate::queue::Queues;
use crate::store::{Holder, SemaphoreView};

/// The settings of a semaphore.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SemaphoreSettings)]
pub struct SemaphoreRequest {
    /// How many jobs may hold it at once (1 to 1000000).
    #[schema(minimum = 1, maximum = 1000000)]
    capacity: u64,
}

/// A semaphore and its holders.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Semaphore)]
pub struct SemaphoreResponse {
    /// Its name.
    name: SemaphoreName,
    /// How many jobs may hold it at once.
    capacity: u64,
    /// How many jobs hold it; more than its capacity for a while after that was lowered.
    held: u64,
    /// Up to 1000 jobs that hold it, ordered by when their reservations expire. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderResponse>>,
    /// How many jobs wait for it: blocked ones and, while it is full, ready ones.
    waiting: u64,
}

/// A job that holds a semaphore.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = SemaphoreHolder)]
pub struct HolderResponse {
    /// The job.
    id: JobId,
    /// Its queue.
    queue: QueueName,
    /// The worker that reserved it, if the reserve named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<WorkerName>,
    /// When it was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Timestamp>,
    /// When the reservation expires.
    reserved_until: Timestamp,
}

impl From<Holder> for HolderResponse {
    fn from(Holder { id, queue, worker, started_at, reserved_until }: Holder) -> Self {
        Self { id, queue, worker, started_at, reserved_until }
    }
}

impl From<SemaphoreView> for SemaphoreResponse {
    fn from(SemaphoreView { name, capacity, held, waiting }: SemaphoreView) -> Self {
        Self { name, capacity, held, holders: None, waiting }
    }
}

impl From<(SemaphoreView, Vec<Holder>)> for SemaphoreResponse {
    fn from((view, holders): (SemaphoreView, Vec<Holder>)) -> Self {
        Self { holders: Some(holders.into_iter().map(Into::into).collect()), ..view.into() }
    }
}

impl From<&SemaphoreResponse> for Identity {
    fn from(semaphore: &SemaphoreResponse) -> Self {
        Self { name: semaphore.name.to_string(), version: None }
    }
}

/// Semaphores.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SemaphoresPage {
    /// The semaphores, by name.
    semaphores: Vec<SemaphoreResponse>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the semaphores
#[utoipa::path(get, path = "/v1/semaphores", operation_id = "list_semaphores", tag = "semaphores",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The semaphores", body = SemaphoresPage)))]
pub async fn list(
    State(queues): State<Queues>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<SemaphoresPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let (after, limit) = (query.cursor::<SemaphoreName>()?, query.limit()?);
    let page = queues.semaphores(after.as_ref(), limit, &by.caller.reach()).await?;
    Ok(Json(SemaphoresPage {
        semaphores: page.items.into_iter().map(SemaphoreResponse::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Returns a semaphore with those of its holders that the caller may see.
fn held_within(by: &Granted, (view, mut holders): (SemaphoreView, Vec<Holder>)) -> SemaphoreResponse {
    holders.retain(|holder| by.caller.reaches(&holder.queue));
    (view, holders).into()
}

/// Get a semaphore
///
/// Returns the semaphore with the jobs that hold it and how many wait for it.
#[utoipa::path(get, path = "/v1/semaphores/{name}", operation_id = "get_semaphore", tag = "semaphores",
    params(("name" = SemaphoreName, Path, description = "The semaphore")),
    responses(
        (status = 200, description = "The semaphore", body = SemaphoreResponse),
        (status = 404, description = "`unknown-semaphore`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<SemaphoreName>,
) -> ApiResult<Json<SemaphoreResponse>> {
    by.name("semaphore", name.as_str())?;
    Ok(Json(held_within(&by, queues.semaphore(&name).await?)))
}

/// Set a semaphore
///
/// Creates a semaphore or changes its capacity. A job that lists it in `semaphores` is delivered only while fewer jobs
/// than its capacity hold it, across all queues, and only if it can acquire all of its semaphores at once. It holds
/// them until it is settled or its reservation ends in another way. If the capacity is lowered, current holders keep
/// the semaphore. Waiting jobs are served by priority, then by `run_at`; once a job has waited for
/// `semaphore_patience_ms`, later jobs in that order no longer pass it.
#[utoipa::path(put, path = "/v1/semaphores/{name}", operation_id = "set_semaphore", tag = "semaphores",
    params(("name" = SemaphoreName, Path, description = "The semaphore")),
    request_body = SemaphoreRequest,
    responses((status = 200, description = "The semaphore after the call",
        body = Shown<SemaphoreResponse, Identity>)))]
pub async fn put(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<SemaphoreName>,
    Body(ask): Body<SemaphoreRequest>,
) -> ApiResult<Json<Shown<SemaphoreResponse, Identity>>> {
    by.name("semaphore", name.as_str())?;
    let semaphore = held_within(&by, queues.set_semaphore(&name, ask.capacity).await?);
    Ok(Json(Shown::to(&by, semaphore)))
}

/// Delete a semaphore
///
/// Fails while a job needs it that waits, is scheduled, reserved or dead, or that a schedule or the end of a batch is to push; the detail
/// says how many there are, and names some.
#[utoipa::path(delete, path = "/v1/semaphores/{name}", operation_id = "delete_semaphore", tag = "semaphores",
    params(("name" = SemaphoreName, Path, description = "The semaphore")),
    responses(
        (status = 200, description = "The semaphore is deleted", body = Deleted),
        (status = 404, description = "`unknown-semaphore`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`semaphore-in-use`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<SemaphoreName>,
) -> ApiResult<Json<Deleted>> {
    by.name("semaphore", name.as_str())?;
    queues.delete_semaphore(&name, &by.caller.reach()).await?;
    Ok(Json(Deleted { deleted: true }))
}
