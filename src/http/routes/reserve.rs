//! Delivery: reserve and pop.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::view::{JobView, ReservedJob};
use crate::http::access::Granted;
use crate::http::answer;
use crate::http::body::Body;
use crate::http::budget::Budget;
use crate::http::keyed::{self, Answer, Keyed, kept, render};
use crate::http::params::{Idempotency, InQueue};
use crate::http::problem::ApiResult;
use crate::http::waiting::{Place, Waiting};
use crate::job::list::at_most;
use crate::job::{Job, QueueName, QueuePattern, WorkerName};
use crate::queue::{IdempotencyKey, PopAsk, QUEUES_MAX, Queues, ReserveAsk};
use crate::store::Weight as _;

pub(super) fn one() -> usize {
    1
}

/// A request to reserve jobs.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest {
    /// The maximum number of jobs.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    count: usize,
    /// The maximum number of bytes of their payloads, of JSON ones by their texts, of binary ones by their bytes; a single job may have more.
    /// Jobs are taken until the next one would not fit, or would not if it were as large as those before it. With an `Idempotency-Key` there
    /// may be fewer.
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    max_bytes: Option<u64>,
    /// How long to wait for a job if none is ready, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: u64,
    /// The lease of the reservations, in milliseconds; default: the queue's.
    #[schema(minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// The name of the worker, shown with the jobs.
    worker: Option<WorkerName>,
}

/// A request to reserve jobs of several queues.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReserveManyRequest {
    /// The queues to reserve from, in this order: names, or prefixes of names followed by `*`.
    #[serde(deserialize_with = "at_most::<{ QUEUES_MAX }, _, _>")]
    #[schema(min_items = 1, max_items = 100)]
    pub(super) queues: Vec<QueuePattern>,
    /// The maximum number of jobs.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    pub(super) count: usize,
    /// The maximum number of bytes of their payloads, of JSON ones by their texts, of binary ones by their bytes; a single job may have more.
    /// Jobs are taken until the next one would not fit, or would not if it were as large as those before it. With an `Idempotency-Key` there
    /// may be fewer.
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    pub(super) max_bytes: Option<u64>,
    /// How long to wait for a job if none is ready, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    pub(super) wait_ms: u64,
    /// The lease of the reservations, in milliseconds; default: each queue's.
    #[schema(minimum = 100, maximum = 86400000)]
    pub(super) lease_ms: Option<u64>,
    /// The name of the worker, shown with the jobs.
    pub(super) worker: Option<WorkerName>,
}

/// Reserved jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReserveResponse {
    /// The jobs in the order of delivery; empty if there are none.
    jobs: Vec<ReservedJob>,
}

async fn respond(
    queues: &Queues,
    budget: &Budget,
    waiting: Waiting,
    by: &Granted,
    idempotency_key: Option<IdempotencyKey>,
    request: ReserveManyRequest,
) -> ApiResult<Response> {
    let (ask, _place) = to_ask(budget, waiting, by, idempotency_key, request)?;
    let jobs = queues.reserve(ask).await?;
    let held = budget.take_anyway(jobs.iter().map(|job| job.weight()).sum());
    Ok(answer::jobs(views(queues, jobs)?, held))
}

/// Returns what a request asks for, and the place where it may wait, if there is one.
pub(super) fn to_ask(
    budget: &Budget,
    waiting: Waiting,
    by: &Granted,
    idempotency_key: Option<IdempotencyKey>,
    request: ReserveManyRequest,
) -> ApiResult<(ReserveAsk, Option<Place>)> {
    let ReserveManyRequest { queues, count, max_bytes, wait_ms, lease_ms, worker } = request;
    if let Some(worker) = &worker {
        by.name("worker", worker.as_str())?;
    }
    // A repeat waits for the first request, whatever it says itself.
    let place = waiting.place(wait_ms > 0 || idempotency_key.is_some());
    let (may_wait, credential, room) = (place.is_some(), by.credential.clone(), budget.room());
    let ask = ReserveAsk {
        queues,
        count,
        max_bytes,
        wait_ms,
        may_wait,
        lease_ms,
        worker,
        idempotency_key,
        credential,
        room,
    };
    Ok((ask, place))
}

/// Returns reserved jobs as they are shown to their holder.
pub(super) fn views(queues: &Queues, jobs: Vec<Job>) -> ApiResult<Vec<ReservedJob>> {
    let (rules, now) = (queues.rules(), queues.now()?);
    let reserved = |job: Job| {
        Some(ReservedJob { reservation: queues.reservation(&job)?, job: JobView::new(job, &rules, now) })
    };
    Ok(jobs.into_iter().filter_map(reserved).collect())
}

/// Reserve jobs
///
/// Reserves jobs for a limited time (a lease): the highest priority first, then the earliest `run_at`.
/// Settle each with its `reservation` before `reserved_until`, or it is delivered again.
#[utoipa::path(post, path = "/v1/queues/{queue}/reserve", operation_id = "reserve_jobs", tag = "work",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header,
            description = "Makes the request safe to repeat: a repeat returns those of its jobs that are still held, with the same tokens, and takes no others")),
    request_body = ReserveRequest,
    responses((status = 200, description = "Jobs; empty if none was ready in time", body = ReserveResponse)))]
pub async fn reserve(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    InQueue(queue): InQueue,
    Idempotency(idempotency_key): Idempotency,
    Body(request): Body<ReserveRequest>,
) -> ApiResult<Response> {
    let ReserveRequest { count, max_bytes, wait_ms, lease_ms, worker } = request;
    let from = vec![QueuePattern::One(queue)];
    let request = ReserveManyRequest { queues: from, count, max_bytes, wait_ms, lease_ms, worker };
    respond(&queues, &budget, waiting, &by, idempotency_key, request).await
}

/// Reserve jobs of several queues
///
/// Like reserving from one queue, but over several, in the given order. A name that ends in `*` matches every
/// queue with this prefix, in the order of the names.
#[utoipa::path(post, path = "/v1/reserve", operation_id = "reserve_from_queues", tag = "work",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "Makes the request safe to repeat: a repeat returns those of its jobs that are still held, with the same tokens, and takes no others")),
    request_body = ReserveManyRequest,
    responses((status = 200, description = "Jobs; empty if none was ready in time", body = ReserveResponse)))]
pub async fn reserve_many(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    Idempotency(idempotency_key): Idempotency,
    Body(request): Body<ReserveManyRequest>,
) -> ApiResult<Response> {
    let request = ReserveManyRequest { queues: by.patterns(request.queues)?, ..request };
    let idempotency_key = idempotency_key.map(IdempotencyKey::of_lists);
    respond(&queues, &budget, waiting, &by, idempotency_key, request).await
}

/// A request to pop jobs.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PopRequest {
    /// The maximum number of jobs.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    count: usize,
    /// How long to wait for a job if none is ready, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: u64,
}

/// Popped jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct PopResponse {
    /// The jobs in the order of delivery; empty if there are none.
    jobs: Vec<JobView>,
}

/// Pop jobs
///
/// Reserves and commits jobs in one step: at-most-once delivery. If the response is lost, its jobs are lost, unless the call is
/// repeated with the same `Idempotency-Key`; use reserve if that matters. Without jobs the response is not remembered.
#[utoipa::path(post, path = "/v1/queues/{queue}/pop", operation_id = "pop_jobs", tag = "work",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = PopRequest,
    responses((status = 200, description = "Jobs; empty if none was ready in time", body = PopResponse)))]
pub async fn pop(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<PopRequest>,
) -> ApiResult<Response> {
    if let Some(key) = &key {
        budget.check()?; // what it was answered may be large
        if let Some(text) = queues.recalled_jobs(key).await? {
            return keyed::repeated(&text);
        }
    }
    let PopRequest { count, wait_ms } = request;
    let place = waiting.place(wait_ms > 0);
    let (may_wait, credential, room) = (place.is_some(), by.credential.clone(), budget.room());
    let ask = PopAsk { queue, count, wait_ms, may_wait, credential, room };
    let (rules, now) = (queues.rules(), queues.now()?);
    if let Some(key) = &key {
        let render = render(move |jobs: &Vec<Job>| {
            let jobs = jobs.iter().map(|job| JobView::new(job.clone(), &rules, now)).collect();
            Answer::new(StatusCode::OK, &PopResponse { jobs })
        });
        return keyed::respond(queues.pop_once(ask, key, kept(&render)).await?, &render);
    }
    let jobs = queues.pop(ask).await?;
    let held = budget.take_anyway(jobs.iter().map(|job| job.weight()).sum());
    let (rules, now) = (queues.rules(), queues.now()?);
    Ok(answer::jobs(jobs.into_iter().map(|job| JobView::new(job, &rules, now)).collect(), held))
}
