//! Semaphores: shared limits on how many jobs are reserved at once.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use crate::http::body::Body;
use crate::http::params::{Named, Query, cursor};
use crate::http::problem::{Answer, Problem};
use crate::job::{JobId, QueueName, SemaphoreName, Timestamp, WorkerName};
use crate::queue::Queues;
use crate::store::{Holder, SemaphoreView};

/// What a semaphore is to be.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SemaphoreRequest {
    /// How many jobs may hold it at once (1 to 1000000).
    #[schema(minimum = 1, maximum = 1000000)]
    capacity: u64,
}

/// A semaphore and who holds it.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SemaphoreResponse {
    /// Its name.
    #[schema(value_type = String)]
    name: SemaphoreName,
    /// How many jobs may hold it at once.
    capacity: u64,
    /// How many hold it: more than its capacity for a while where that was lowered.
    held: u64,
    /// The jobs that hold it, those first whose reservations run out first: up to 1000. Not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderResponse>>,
    /// How many jobs that need it are blocked or, while it is full, ready.
    waiting: u64,
}

/// A job that holds a semaphore.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HolderResponse {
    /// The job.
    #[schema(value_type = String)]
    id: JobId,
    /// Its queue.
    #[schema(value_type = String)]
    queue: QueueName,
    /// Who reserved it, where the reserve gave a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    worker: Option<WorkerName>,
    /// When the reservation runs out.
    #[schema(value_type = String, format = DateTime)]
    reserved_until: Timestamp,
}

impl From<Holder> for HolderResponse {
    fn from(Holder { id, queue, worker, reserved_until }: Holder) -> Self {
        Self { id, queue, worker, reserved_until }
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

/// Semaphores.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SemaphoresPage {
    /// The semaphores, by name.
    semaphores: Vec<SemaphoreResponse>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the semaphores
#[utoipa::path(get, path = "/v1/semaphores", operation_id = "list_semaphores", tag = "semaphores",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; 100 if absent"),
        ("cursor" = Option<String>, Query, description = "Where the page begins, from the page before")),
    responses((status = 200, description = "The semaphores", body = SemaphoresPage)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> Answer<Json<SemaphoresPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let page = queues.semaphores(query.cursor::<SemaphoreName>()?.as_ref(), query.limit()?).await?;
    Ok(Json(SemaphoresPage {
        semaphores: page.items.into_iter().map(SemaphoreResponse::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Look at a semaphore
///
/// Shows the jobs that hold it, and how many wait for it.
#[utoipa::path(get, path = "/v1/semaphores/{name}", operation_id = "get_semaphore", tag = "semaphores",
    params(("name" = String, Path, description = "The semaphore")),
    responses(
        (status = 200, description = "The semaphore", body = SemaphoreResponse),
        (status = 404, description = "`unknown-semaphore`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    Named(name): Named<SemaphoreName>,
) -> Answer<Json<SemaphoreResponse>> {
    Ok(Json(queues.semaphore(&name).await?.into()))
}

/// Set a semaphore
///
/// Makes a semaphore, or changes its capacity, at any time. A job that lists it in `semaphores` is delivered only while
/// fewer jobs than that hold it, in whatever queues they are, and only together with all the others that it lists. It
/// holds them until it is settled, or its reservation ends in another way. Where the capacity is lowered, who holds the
/// semaphore keeps it. Who waits for room is served by priority, then by `run_at`; after `semaphore_patience_ms`, jobs
/// behind a waiting one in that order wait for it.
#[utoipa::path(put, path = "/v1/semaphores/{name}", operation_id = "set_semaphore", tag = "semaphores",
    params(("name" = String, Path, description = "The semaphore")),
    request_body = SemaphoreRequest,
    responses((status = 200, description = "The semaphore as it is now", body = SemaphoreResponse)))]
pub async fn put(
    State(queues): State<Queues>,
    Named(name): Named<SemaphoreName>,
    Body(ask): Body<SemaphoreRequest>,
) -> Answer<Json<SemaphoreResponse>> {
    Ok(Json(queues.set_semaphore(&name, ask.capacity).await?.into()))
}

/// Delete a semaphore
///
/// Refused while a job needs it that is not finished.
#[utoipa::path(delete, path = "/v1/semaphores/{name}", operation_id = "delete_semaphore", tag = "semaphores",
    params(("name" = String, Path, description = "The semaphore")),
    responses(
        (status = 204, description = "The semaphore is gone"),
        (status = 404, description = "`unknown-semaphore`", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`semaphore-in-use`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(State(queues): State<Queues>, Named(name): Named<SemaphoreName>) -> Answer<StatusCode> {
    queues.delete_semaphore(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
