//! Taking jobs: reserve and pop.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::view::{JobView, ReservedJob};
use crate::http::body::Body;
use crate::http::params::{Idempotency, InQueue};
use crate::http::problem::Answer;
use crate::job::{Job, QueuePattern, WorkerName};
use crate::queue::{IdempotencyKey, PopAsk, Queues, ReserveAsk};

fn one() -> usize {
    1
}

/// A request for jobs to work on.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// The most jobs to take.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    count: usize,
    /// How long to wait for the first job, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: u64,
    /// How long the reservations last, in milliseconds; absent: what the queue says.
    #[schema(minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// Your name, shown with the jobs.
    #[schema(value_type = Option<String>)]
    worker: Option<WorkerName>,
}

/// A request for jobs of several queues.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveManyRequest {
    /// Where to take from, in this order: names, or beginnings of names followed by `*`.
    #[schema(value_type = Vec<String>, min_items = 1, max_items = 100)]
    queues: Vec<QueuePattern>,
    /// The most jobs to take.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    count: usize,
    /// How long to wait for the first job, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: u64,
    /// How long the reservations last, in milliseconds; absent: what each queue says.
    #[schema(minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// Your name, shown with the jobs.
    #[schema(value_type = Option<String>)]
    worker: Option<WorkerName>,
}

/// Jobs to work on.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReserveResponse {
    /// The jobs, most urgent first; empty when there are none.
    jobs: Vec<ReservedJob>,
}

async fn answer(queues: &Queues, ask: ReserveAsk) -> Answer<Json<ReserveResponse>> {
    let jobs = queues.reserve(ask).await?;
    let (rules, now) = (queues.rules(), queues.now()?);
    let reserved = |job: Job| {
        let reservation = job.meta.claim.as_ref()?.reservation(&job.meta.id);
        Some(ReservedJob { reservation, job: JobView::new(job, &rules, now) })
    };
    Ok(Json(ReserveResponse { jobs: jobs.into_iter().filter_map(reserved).collect() }))
}

/// Reserve jobs
///
/// Takes jobs for a limited time: the highest priority first, then the one that has been due for longest.
/// Settle each with its `reservation` before `reserved_until`, or it is delivered again.
#[utoipa::path(post, path = "/v1/queues/{queue}/reserve", operation_id = "reserve_jobs", tag = "work",
    params(("queue" = String, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header,
            description = "Makes the request safe to repeat: a repeat within the lease answers the same jobs")),
    request_body = ReserveRequest,
    responses((status = 200, description = "Jobs; empty when there was nothing in time", body = ReserveResponse)))]
pub async fn reserve(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Idempotency(idempotency_key): Idempotency,
    Body(request): Body<ReserveRequest>,
) -> Answer<Json<ReserveResponse>> {
    let ReserveRequest { count, wait_ms, lease_ms, worker } = request;
    let from = vec![QueuePattern::One(queue)];
    answer(&queues, ReserveAsk { queues: from, count, wait_ms, lease_ms, worker, idempotency_key }).await
}

/// Reserve jobs of several queues
///
/// The same as reserving from one queue, over several in the order given. A name that ends in `*` stands
/// for every queue whose name begins so, by name.
#[utoipa::path(post, path = "/v1/reserve", operation_id = "reserve_from_queues", tag = "work",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "Makes the request safe to repeat: a repeat within the lease answers the same jobs")),
    request_body = ReserveManyRequest,
    responses((status = 200, description = "Jobs; empty when there was nothing in time", body = ReserveResponse)))]
pub async fn reserve_many(
    State(queues): State<Queues>,
    Idempotency(idempotency_key): Idempotency,
    Body(request): Body<ReserveManyRequest>,
) -> Answer<Json<ReserveResponse>> {
    let ReserveManyRequest { queues: from, count, wait_ms, lease_ms, worker } = request;
    let idempotency_key: Option<IdempotencyKey> = idempotency_key;
    answer(&queues, ReserveAsk { queues: from, count, wait_ms, lease_ms, worker, idempotency_key }).await
}

/// A request for jobs to take away.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopRequest {
    /// The most jobs to take.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    count: usize,
    /// How long to wait for the first job, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: u64,
}

/// Jobs that were taken away.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PopResponse {
    /// The jobs, most urgent first; empty when there are none.
    jobs: Vec<JobView>,
}

/// Pop jobs
///
/// Takes jobs away in one step. A job whose answer is lost is lost with it: reserve where that matters.
#[utoipa::path(post, path = "/v1/queues/{queue}/pop", operation_id = "pop_jobs", tag = "work",
    params(("queue" = String, Path, description = "The queue")),
    request_body = PopRequest,
    responses((status = 200, description = "Jobs; empty when there was nothing in time", body = PopResponse)))]
pub async fn pop(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<PopRequest>,
) -> Answer<Json<PopResponse>> {
    let PopRequest { count, wait_ms } = request;
    let jobs = queues.pop(PopAsk { queue, count, wait_ms }).await?;
    let (rules, now) = (queues.rules(), queues.now()?);
    Ok(Json(PopResponse { jobs: jobs.into_iter().map(|job| JobView::new(job, &rules, now)).collect() }))
}
