//! Workers and their heartbeats.

use crate::http::json::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use crate::http::access::Granted;
use crate::http::body::Body;
use crate::http::params::{Named, Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::{JobId, QueueName, Timestamp, WorkerName, WorkerVersion};
use crate::queue::{Heartbeat, Queues, Removed};
use crate::store::Worker;

/// A heartbeat. Each one replaces the values of the previous one.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// How many jobs it can run at once.
    #[schema(minimum = 0, maximum = 1000000)]
    slots: Option<u32>,
    /// The version of its program, for people.
    version: Option<WorkerVersion>,
    /// The timeout, in milliseconds: without a heartbeat for this long, its jobs are released. Default:
    /// `defaults.worker_timeout_ms` of the configuration.
    #[schema(minimum = 1000, maximum = 86400000)]
    timeout_ms: Option<u64>,
}

/// The jobs that a worker holds after its heartbeat.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HeartbeatResponse {
    /// The timeout for the next heartbeat, in milliseconds; send one about every third of it.
    timeout_ms: u64,
    /// How many jobs it holds.
    held: u64,
    /// When the first of their reservations expires unless another heartbeat arrives.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_until: Option<Timestamp>,
    /// Those of its jobs whose cancellation was requested.
    cancel_requested: Vec<UnwantedJob>,
}

/// A job whose cancellation was requested.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct UnwantedJob {
    /// The job.
    id: JobId,
    /// The queue that it is in.
    queue: QueueName,
}

/// A worker that has sent a heartbeat.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Worker)]
pub struct WorkerView {
    /// Its name.
    name: WorkerName,
    /// The version of its program, if it gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<WorkerVersion>,
    /// How many jobs it can run at once, if it gave a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    /// When its last heartbeat arrived.
    seen_at: Timestamp,
    /// The timeout, in milliseconds: without a heartbeat for this long, its jobs are released.
    timeout_ms: u64,
    /// Whether it has timed out: no heartbeat, reserve or extend came in time.
    silent: bool,
    /// How many jobs it holds.
    reserved: u64,
}

impl WorkerView {
    fn new(worker: Worker) -> Self {
        let Worker { name, seen_at, is_silent, report, reserved } = worker;
        Self {
            name,
            version: report.version,
            slots: report.slots,
            seen_at,
            timeout_ms: report.timeout_ms,
            silent: is_silent,
            reserved,
        }
    }
}

/// Workers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WorkersPage {
    /// The workers that have sent a heartbeat, by name.
    workers: Vec<WorkerView>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the workers
///
/// Lists the workers that have sent a heartbeat. One that has timed out stays in the list for an hour.
#[utoipa::path(get, path = "/v1/workers", operation_id = "list_workers", tag = "workers",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The workers, by name", body = WorkersPage)))]
pub async fn list(State(queues): State<Queues>, by: Granted, query: Query) -> ApiResult<Json<WorkersPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let (after, limit) = (query.cursor::<WorkerName>()?, query.limit()?);
    let page = queues.workers(after.as_ref(), limit, &by.caller.reach()).await?;
    Ok(Json(WorkersPage {
        workers: page.items.into_iter().map(WorkerView::new).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Get a worker
#[utoipa::path(get, path = "/v1/workers/{name}", operation_id = "get_worker", tag = "workers",
    params(("name" = WorkerName, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker", body = WorkerView),
        (status = 404, description = "`unknown-worker`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<WorkerName>,
) -> ApiResult<Json<WorkerView>> {
    by.name("worker", name.as_str())?;
    let worker = queues.worker(&name).await?;
    Ok(Json(WorkerView::new(worker)))
}

/// Send a heartbeat
///
/// Extends all reservations of the worker, each by its own lease, and returns the jobs whose cancellation was
/// requested. From its first heartbeat on, a worker without a heartbeat for `timeout_ms` has timed out: its jobs are
/// released at once, before their leases expire. A reserve counts as a heartbeat.
#[utoipa::path(post, path = "/v1/workers/{name}/heartbeat", operation_id = "send_heartbeat", tag = "workers",
    params(("name" = WorkerName, Path, description = "The name with which the worker reserves")),
    request_body = HeartbeatRequest,
    responses((status = 200, description = "The jobs that the worker holds", body = HeartbeatResponse)))]
pub async fn heartbeat(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<WorkerName>,
    Body(request): Body<HeartbeatRequest>,
) -> ApiResult<Json<HeartbeatResponse>> {
    by.name("worker", name.as_str())?;
    let HeartbeatRequest { slots, version, timeout_ms } = request;
    let (holdings, timeout_ms) = queues.heartbeat(&name, Heartbeat { version, slots, timeout_ms }).await?;
    let unwanted = holdings.cancel_requested.into_iter().filter(|(_, queue)| by.caller.reaches(queue));
    Ok(Json(HeartbeatResponse {
        timeout_ms,
        held: holdings.jobs,
        reserved_until: holdings.reserved_until,
        cancel_requested: unwanted.map(|(id, queue)| UnwantedJob { id, queue }).collect(),
    }))
}

/// What the removal of a worker has done.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RemovedWorkerResponse {
    /// How many jobs were released.
    affected: u64,
    /// Whether the worker still holds jobs, because releasing all of them took too long: repeat the call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// Remove a worker
///
/// Releases its jobs at once, whether or not it sent heartbeats, and deletes it. Its later settles are rejected. Where it
/// holds so many jobs that releasing them takes longer than about 10 seconds, the response has `more`, and the call is to
/// be repeated.
#[utoipa::path(delete, path = "/v1/workers/{name}", operation_id = "delete_worker", tag = "workers",
    params(("name" = WorkerName, Path, description = "The worker")),
    responses(
        (status = 200, description = "How many jobs were released", body = RemovedWorkerResponse),
        (status = 404, description = "`unknown-worker`", body = Problem, content_type = "application/problem+json")))]
pub async fn remove(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<WorkerName>,
) -> ApiResult<Json<RemovedWorkerResponse>> {
    by.name("worker", name.as_str())?;
    let Removed { affected, holds_more: more } = queues.remove_worker(&name).await?;
    Ok(Json(RemovedWorkerResponse { affected, more }))
}
