//! Workers: who works, seen by heartbeats.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::queues::AffectedResponse;
use crate::http::body::Body;
use crate::http::params::{Named, Query, cursor};
use crate::http::problem::{Answer, Problem};
use crate::job::{JobId, QueueName, Timestamp, WorkerName, WorkerVersion};
use crate::queue::{Heartbeat, Queues};
use crate::store::Worker;

/// What a worker says of itself. Each heartbeat replaces what the one before said.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// How many jobs it can hold at once.
    #[schema(minimum = 0, maximum = 1000000)]
    slots: Option<u32>,
    /// What it runs, for people to read.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 128)]
    version: Option<WorkerVersion>,
    /// After so many milliseconds without a heartbeat it gives back what it holds; absent: what the
    /// configuration says (`defaults.worker_timeout_ms`).
    #[schema(minimum = 1000, maximum = 86400000)]
    timeout_ms: Option<u64>,
}

/// What a worker holds after its heartbeat.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HeartbeatResponse {
    /// The next heartbeat must come within so many milliseconds; a third of it is a good pace.
    timeout_ms: u64,
    /// How many jobs it holds.
    held: u64,
    /// When the first of their reservations runs out, unless another heartbeat comes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    reserved_until: Option<Timestamp>,
    /// Those of its jobs that somebody asked to stop.
    cancel_requested: Vec<UnwantedJob>,
}

/// A job that somebody asked to stop.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct UnwantedJob {
    /// The job.
    #[schema(value_type = String)]
    id: JobId,
    /// The queue that it is in.
    #[schema(value_type = String)]
    queue: QueueName,
}

/// A worker that has sent a heartbeat.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Worker)]
pub struct WorkerView {
    /// Its name.
    #[schema(value_type = String)]
    name: WorkerName,
    /// What it runs, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    version: Option<WorkerVersion>,
    /// How many jobs it can hold at once, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    /// When its last heartbeat came.
    #[schema(value_type = String, format = DateTime)]
    seen_at: Timestamp,
    /// After so many milliseconds without a heartbeat it gives back what it holds.
    timeout_ms: u64,
    /// Whether its last heartbeat is longer ago than that.
    silent: bool,
    /// How many jobs it holds.
    reserved: u64,
}

impl WorkerView {
    fn new(worker: Worker, now: Timestamp) -> Self {
        let Worker { name, seen_at, report, reserved } = worker;
        Self {
            name,
            version: report.version,
            slots: report.slots,
            seen_at,
            timeout_ms: report.timeout_ms,
            silent: seen_at.plus_ms(report.timeout_ms) <= now,
            reserved,
        }
    }
}

/// Workers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WorkersPage {
    /// The workers that have sent a heartbeat, by name.
    workers: Vec<WorkerView>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the workers
///
/// Those that have sent a heartbeat; one that fell silent stays in the list for an hour.
#[utoipa::path(get, path = "/v1/workers", operation_id = "list_workers", tag = "workers",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; 100 if absent"),
        ("cursor" = Option<String>, Query, description = "Where the page begins, from the page before")),
    responses((status = 200, description = "The workers, by name", body = WorkersPage)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> Answer<Json<WorkersPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let page = queues.workers(query.cursor::<WorkerName>()?.as_ref(), query.limit()?).await?;
    let now = queues.now()?;
    Ok(Json(WorkersPage {
        workers: page.items.into_iter().map(|worker| WorkerView::new(worker, now)).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Look at a worker
#[utoipa::path(get, path = "/v1/workers/{name}", operation_id = "get_worker", tag = "workers",
    params(("name" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "The worker", body = WorkerView),
        (status = 404, description = "`unknown-worker`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(State(queues): State<Queues>, Named(name): Named<WorkerName>) -> Answer<Json<WorkerView>> {
    let worker = queues.worker(&name).await?;
    Ok(Json(WorkerView::new(worker, queues.now()?)))
}

/// Send a heartbeat
///
/// Extends everything that the worker holds, each job by its own lease, and tells which of its jobs were asked
/// to stop. From its first heartbeat on, a worker that is silent for `timeout_ms` gives back at once what it
/// holds, before the leases run out. A reserve is a sign of life, too.
#[utoipa::path(post, path = "/v1/workers/{name}/heartbeat", operation_id = "send_heartbeat", tag = "workers",
    params(("name" = String, Path, description = "The name that the worker reserves under")),
    request_body = HeartbeatRequest,
    responses((status = 200, description = "What the worker holds now", body = HeartbeatResponse)))]
pub async fn heartbeat(
    State(queues): State<Queues>,
    Named(name): Named<WorkerName>,
    Body(request): Body<HeartbeatRequest>,
) -> Answer<Json<HeartbeatResponse>> {
    let HeartbeatRequest { slots, version, timeout_ms } = request;
    let (holdings, timeout_ms) = queues.heartbeat(&name, Heartbeat { version, slots, timeout_ms }).await?;
    let unwanted = holdings.cancel_requested.into_iter();
    Ok(Json(HeartbeatResponse {
        timeout_ms,
        held: holdings.jobs,
        reserved_until: holdings.reserved_until,
        cancel_requested: unwanted.map(|(id, queue)| UnwantedJob { id, queue }).collect(),
    }))
}

/// Remove a worker
///
/// Gives back at once what it holds, heartbeats or not, and forgets it. A settle of its own is too late then.
#[utoipa::path(delete, path = "/v1/workers/{name}", operation_id = "remove_worker", tag = "workers",
    params(("name" = String, Path, description = "The worker")),
    responses(
        (status = 200, description = "How many jobs were given back", body = AffectedResponse),
        (status = 404, description = "`unknown-worker`", body = Problem, content_type = "application/problem+json")))]
pub async fn remove(
    State(queues): State<Queues>,
    Named(name): Named<WorkerName>,
) -> Answer<Json<AffectedResponse>> {
    let affected = queues.remove_worker(&name).await?;
    Ok(Json(AffectedResponse { affected }))
}
