//! Settling jobs: commit, rollback, extend, move, one at a time or many.

use crate::http::json::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::next::{Asking, NextRequest, NextResponse, respond};
use super::push::QueuedPush;
use super::settle_request::IntoAction;
pub use super::settle_request::{CommitRequest, ExtendRequest, MoveRequest, RollbackRequest};
use super::settled::{CommitResponse, ExtendResponse, MoveResponse, RollbackResponse, SettledView};
use super::{align, parse_each};
use crate::http::access::Granted;
use crate::http::body::{Body, present};
use crate::http::budget::Budget;
use crate::http::keyed::{self, Answer, Keyed, kept, recalled, render};
use crate::http::params::SettledJob;
use crate::http::problem::{ApiResult, Code, Problem};
use crate::http::waiting::Waiting;
use crate::job::list::at_most;
use crate::job::record::KeyUntil;
use crate::job::spec::{Headers, JobHeaders};
use crate::job::{Base64, Claim, JobId, JobKey, MediaType, QueueName, Reservation, Scope, Timestamp};
use crate::queue::settle::{PUSHES_MAX, SETTLE_MAX};
use crate::queue::{Error, Queues, Settle, Settled};

/// Returns the settle that is requested, if the key allows what it leads to.
fn to_settle(queues: &Queues, by: &Granted, id: JobId, request: impl IntoAction) -> ApiResult<Settle> {
    let (reservation, action) = request.into_action()?;
    by.action(&action)?;
    let claim = queues.claim_behind(&reservation, &id, &by.caller);
    if claim.is_none() && by.caller.is_known() {
        // The same for every job: whether there is one is not for everybody who knows its id.
        return Err(Error::ReservationLost { id, gone: false }.into());
    }
    Ok(Settle { id, claim, action })
}

async fn settle_one<T: From<Settled>>(
    queues: &Queues,
    by: &Granted,
    id: JobId,
    request: impl IntoAction,
) -> ApiResult<Json<T>> {
    let settle = to_settle(queues, by, id.clone(), request)?;
    let claim = settle.claim.clone();
    let results = queues.settle(vec![settle]).await;
    match only(results)? {
        Ok(settled) => Ok(Json(settled.into())),
        Err(error) => Err(lost(queues, by, &id, claim.as_ref(), error).await),
    }
}

/// Returns the problem of a settle that was refused. Where the token was given for this job once, it says what has become of the job
/// since.
async fn lost(queues: &Queues, by: &Granted, id: &JobId, claim: Option<&Claim>, error: Error) -> Problem {
    let why = match (&error, claim) {
        (Error::ReservationLost { .. }, Some(claim)) => queues.why_lost(id, claim, &by.caller).await,
        _ => None,
    };
    let problem = by.problem(error);
    match why {
        Some(why) => problem.because(&why),
        None => problem,
    }
}

/// Returns what has become of the only job of a call.
fn only(results: Vec<Result<Settled, Error>>) -> ApiResult<Result<Settled, Error>> {
    let missing = || Problem::new(Code::Internal, "the settle has no result");
    results.into_iter().next().ok_or_else(missing)
}

/// The same where the next jobs may be taken with it.
async fn settle_and_take<T: From<Settled> + Serialize>(
    asking: Asking<'_>,
    id: JobId,
    mut request: impl IntoAction,
) -> ApiResult<Response> {
    let Asking { queues, budget, by, .. } = asking;
    let Some(next) = request.take_next() else {
        return Ok(settle_one::<T>(queues, by, id, request).await?.into_response());
    };
    let settle = to_settle(queues, by, id.clone(), request)?;
    let claim = settle.claim.clone();
    let (next, _place) = asking.ask(next, std::slice::from_ref(&settle)).await?;
    let (results, next) =
        queues.settle_and_take(vec![settle], next).await.map_err(|error| by.problem(error))?;
    match only(results)? {
        Ok(settled) => respond(queues, budget, by, &T::from(settled), next),
        Err(error) => Err(lost(queues, by, &id, claim.as_ref(), error).await),
    }
}

/// Commit a job
///
/// The work succeeded: the job is removed, or kept as history if its queue retains done jobs. A job with a route
/// (`then`) moves to the next stage instead, with `result` as its payload if given. The jobs in `push` are stored
/// atomically with the commit: all of them, or nothing happens. With `next` the response has the next jobs, too: the turn of a worker
/// in one call. They are taken once the commit has taken effect, which stands whatever becomes of that; a repeat after a lost response
/// takes none, and returns those of the first call that are still held.
#[utoipa::path(post, path = "/v1/jobs/{id}/commit", operation_id = "commit_job", tag = "work",
    params(("id" = JobId, Path, description = "The job")), request_body = CommitRequest,
    responses(
        (status = 200, description = "The job is committed", body = CommitResponse),
        (status = 409, description = "`reservation-lost`; `key-conflict` of a pushed job", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`: the queue of a pushed job", body = Problem, content_type = "application/problem+json")))]
pub async fn commit(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<CommitRequest>,
) -> ApiResult<Response> {
    let asking = Asking { queues: &queues, budget: &budget, waiting, by: &by };
    settle_and_take::<CommitResponse>(asking, id, request).await
}

/// Roll a job back
///
/// The work failed: the job is retried after a delay, or is dead if it is out of attempts or `dead` says so. With
/// `"count_attempt": false` it is only put off: the attempt does not count. With `next` the response has the next jobs, too, as that of
/// a commit.
#[utoipa::path(post, path = "/v1/jobs/{id}/rollback", operation_id = "rollback_job", tag = "work",
    params(("id" = JobId, Path, description = "The job")), request_body = RollbackRequest,
    responses(
        (status = 200, description = "The state of the job", body = RollbackResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json")))]
pub async fn rollback(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<RollbackRequest>,
) -> ApiResult<Response> {
    let asking = Asking { queues: &queues, budget: &budget, waiting, by: &by };
    settle_and_take::<RollbackResponse>(asking, id, request).await
}

/// Extend a reservation
///
/// Extends the lease of a job. Returns whether its cancellation was requested.
#[utoipa::path(post, path = "/v1/jobs/{id}/extend", operation_id = "extend_job", tag = "work",
    params(("id" = JobId, Path, description = "The job")), request_body = ExtendRequest,
    responses(
        (status = 200, description = "The reservation is extended", body = ExtendResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json")))]
pub async fn extend(
    State(queues): State<Queues>,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<ExtendRequest>,
) -> ApiResult<Json<ExtendResponse>> {
    settle_one(&queues, &by, id, request).await
}

/// Move a job
///
/// Moves a reserved job to another queue atomically: a stage of a pipeline. Without a `reservation` it is for operators, who need the
/// scope `operate`: they move a job that is not reserved or done, also a dead one, whose attempts start again in the target queue.
#[utoipa::path(post, path = "/v1/jobs/{id}/move", operation_id = "move_job", tag = "work",
    params(("id" = JobId, Path, description = "The job"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a move without a reservation safe to repeat: the response of the first one is sent again")),
    request_body = MoveRequest,
    responses(
        (status = 200, description = "The job is in the target queue", body = MoveResponse),
        (status = 404, description = "`unknown-job`, without a reservation", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "`reservation-lost`; `key-conflict`: another job has the `key` in the target queue; without a reservation `wrong-state`: it is reserved or done, or past its expiry", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn move_job(
    State(queues): State<Queues>,
    by: Granted,
    SettledJob(id): SettledJob,
    Keyed { key, body: request, .. }: Keyed<MoveRequest>,
) -> ApiResult<Response> {
    if request.reservation.is_some() {
        by.scoped(Scope::Consume)?;
        return Ok(settle_one::<MoveResponse>(&queues, &by, id, request).await?.into_response());
    }
    by.scoped(Scope::Operate)?;
    let to = request.into_relocation()?;
    by.need(Scope::Push, &to.queue)?;
    let needs = "without a reservation a move needs a job that no worker holds, that is not done, and not past its expiry: send its \
         reservation, or release it first";
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    let render = render(|moved: &Settled| Answer::new(StatusCode::OK, &MoveResponse::from(moved.clone())));
    let keyed = key.as_ref().map(|key| (key, kept(&render)));
    let moved = queues.relocate(&id, to, &by.caller.reach(), keyed).await.map_err(Problem::needing(needs))?;
    keyed::respond(moved, &render)
}

macro_rules! items {
    ($($(#[doc = $doc:literal])* $item:ident of $request:ident $(without $alone:ident)? { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Deserialize, utoipa::ToSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $item {
                /// The job.
                #[schema(value_type = JobId)]
                id: String,
                $($(#[$attr])* $field: $type,)*
            }

            impl $item {
                fn into_settle(self, queues: &Queues, by: &Granted) -> ApiResult<Settle> {
                    let unknown = |_| Problem::reservation_lost("there is no job with this id");
                    let id = self.id.parse().map_err(unknown)?;
                    to_settle(queues, by, id, $request { $($field: self.$field,)* $($alone: None,)? })
                }
            }
        )*
    };
}

items! {
    /// A commit of one of many jobs.
    CommitItem of CommitRequest without next {
        /// The token that the reserve returned.
        #[schema(value_type = Reservation)]
        reservation: String,
        /// The result: any JSON value. Kept with the job in history, or its payload in the next stage.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        result: Option<Box<RawValue>>,
        /// Jobs to push with the commit, up to 1000. Atomic: they are stored with it, or nothing happens to this job.
        #[serde(default, deserialize_with = "at_most::<{ PUSHES_MAX }, _, _>")]
        #[schema(value_type = Vec<QueuedPush>, max_items = 1000)]
        push: Vec<Box<RawValue>>,
    }
    /// A rollback of one of many jobs.
    RollbackItem of RollbackRequest without next {
        /// The token that the reserve returned.
        #[schema(value_type = Reservation)]
        reservation: String,
        /// The delay before the next delivery, in milliseconds; not together with `run_at`. Default: the job's backoff; none where
        /// the attempt does not count.
        #[schema(minimum = 0, maximum = 31536000000_u64)]
        delay_ms: Option<u64>,
        /// The earliest time of the next delivery, instead of `delay_ms`; a time in the past is allowed, and sorts earlier.
        run_at: Option<Timestamp>,
        /// The error message; its first 4096 bytes are kept with the job.
        #[schema(max_length = 1048576)]
        error: Option<String>,
        /// `true`: the job is dead now, whatever attempts are left. Default: `false`.
        dead: Option<bool>,
        /// `false`: the job is only put off, and the attempt does not count. Default: `true`.
        count_attempt: Option<bool>,
        /// `true`: the job comes back at once to the place that it had in the order of delivery. Default: `false`.
        keep_place: Option<bool>,
    }
    /// An extend of one of many jobs.
    ExtendItem of ExtendRequest {
        /// The token that the reserve returned.
        #[schema(value_type = Reservation)]
        reservation: String,
        /// The new lease, in milliseconds from now. Default: the lease of the reserve.
        #[schema(minimum = 100, maximum = 86400000)]
        lease_ms: Option<u64>,
        /// The progress: any JSON value, shown with the job and passed to the next attempt.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        progress: Option<Box<RawValue>>,
    }
    /// A move of one of many jobs.
    MoveItem of MoveRequest {
        /// The token that the reserve returned.
        #[schema(value_type = Reservation)]
        reservation: Option<String>,
        /// The target queue. The job's attempts start at 0 there.
        queue: QueueName,
        /// The new payload: any JSON value. Default: unchanged.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        payload: Option<Box<RawValue>>,
        /// A new binary payload instead, as base64.
        payload_base64: Option<Base64>,
        /// The media type of a new binary payload. Default: `application/octet-stream`.
        payload_type: Option<MediaType>,
        /// The delay before delivery from the target queue, in milliseconds; not together with `run_at`.
        #[schema(minimum = 0, maximum = 31536000000_u64)]
        delay_ms: Option<u64>,
        /// The earliest time of delivery from the target queue; not together with `delay_ms`.
        run_at: Option<Timestamp>,
        /// The new priority. Default: unchanged.
        priority: Option<i32>,
        /// The new headers, in place of all that it has. Default: unchanged.
        #[serde(default, deserialize_with = "crate::job::headers::distinct_if_any")]
        #[schema(value_type = Option<JobHeaders>)]
        headers: Option<Headers>,
        /// The deduplication key that the job has in the target queue. Default: none. Where another job has it, nothing is moved.
        key: Option<JobKey>,
        /// How long the key stays in use at least, in milliseconds. Default: as long as one of a push.
        #[schema(minimum = 0, maximum = 31536000000_u64)]
        key_ttl_ms: Option<u64>,
        /// Until when the job has the key. Default: `finished`.
        key_until: Option<KeyUntil>,
    }
}

/// Jobs to settle together, up to 1000 in all.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// Jobs to commit.
    #[serde(default, deserialize_with = "at_most::<{ SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<CommitItem>, max_items = 1000, default = json!([]))]
    commit: Vec<Box<RawValue>>,
    /// Jobs to roll back.
    #[serde(default, deserialize_with = "at_most::<{ SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<RollbackItem>, max_items = 1000, default = json!([]))]
    rollback: Vec<Box<RawValue>>,
    /// Jobs whose reservations to extend.
    #[serde(default, deserialize_with = "at_most::<{ SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<ExtendItem>, max_items = 1000, default = json!([]))]
    extend: Vec<Box<RawValue>>,
    /// Jobs to move to another queue.
    #[serde(default, rename = "move", deserialize_with = "at_most::<{ SETTLE_MAX }, _, _>")]
    #[schema(value_type = Vec<MoveItem>, max_items = 1000, default = json!([]))]
    moves: Vec<Box<RawValue>>,
    /// The next jobs, taken with the same call; it must commit, roll back or move something.
    next: Option<NextRequest>,
}

/// The result for one of many jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SettleResult {
    /// The status that a settle of only this job would return.
    status: u16,
    #[serde(flatten)]
    settled: SettledView,
    /// Why the settle was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// The results, each list in the order of the request.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SettleManyResponse {
    commit: Vec<SettleResult>,
    rollback: Vec<SettleResult>,
    extend: Vec<SettleResult>,
    #[serde(rename = "move")]
    moves: Vec<SettleResult>,
    /// The next jobs, where the request asked for some: taken if the call has ended a delivery.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<NextResponse>,
}

/// Settle many jobs
///
/// Not atomic: each element succeeds or fails independently. Pointers in problems name the element as well:
/// `/rollback/3/delay_ms`. With `next` the response has the next jobs, too, as that of a commit.
#[utoipa::path(post, path = "/v1/settle", operation_id = "settle_jobs", tag = "work", request_body = SettleRequest,
    responses((status = 200, description = "One result for each element", body = SettleManyResponse)))]
pub async fn settle(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    waiting: Waiting,
    by: Granted,
    Body(request): Body<SettleRequest>,
) -> ApiResult<Response> {
    let SettleRequest { commit, rollback, extend, moves, next } = request;
    let total = commit.len() + rollback.len() + extend.len() + moves.len();
    if total > SETTLE_MAX {
        return Err(Problem::field("", "must have at most 1000 jobs in all lists together"));
    }
    let lists = [
        list("commit", commit, |item: CommitItem| item.into_settle(&queues, &by)),
        list("rollback", rollback, |item: RollbackItem| item.into_settle(&queues, &by)),
        list("extend", extend, |item: ExtendItem| item.into_settle(&queues, &by)),
        list("move", moves, |item: MoveItem| item.into_settle(&queues, &by)),
    ];
    if lists[0].3.iter().map(Settle::pushes).sum::<usize>() > PUSHES_MAX {
        return Err(Problem::field("/commit", "must push at most 1000 jobs in all commits together"));
    }
    let mut settles = Vec::with_capacity(total);
    let lists = lists.map(|(name, ids, elements, valid)| {
        settles.extend(valid);
        (name, ids, elements)
    });
    let (settled, next) = match next {
        None => (queues.settle(settles).await, None),
        Some(next) => {
            let asking = Asking { queues: &queues, budget: &budget, waiting, by: &by };
            let (next, place) = asking.ask(next, &settles).await?;
            let (settled, next) =
                queues.settle_and_take(settles, next).await.map_err(|error| by.problem(error))?;
            drop(place);
            (settled, Some(next))
        }
    };
    let mut settled = settled.into_iter();
    let [commit, rollback, extend, moves] = lists.map(|(name, ids, elements)| {
        let aligned = align(elements, settled.by_ref()).into_iter().zip(ids).enumerate();
        aligned
            .map(|(n, (outcome, id))| {
                let outcome = outcome.and_then(|outcome| outcome.map_err(|error| by.problem(error)));
                result(outcome.map_err(|problem| problem.under(&format!("/{name}/{n}"))), id)
            })
            .collect()
    });
    let told = SettleManyResponse { commit, rollback, extend, moves, next: None };
    match next {
        None => Ok(Json(told).into_response()),
        Some(next) => respond(&queues, &budget, &by, &told, next),
    }
}

fn result(outcome: ApiResult<Settled>, id: Option<JobId>) -> SettleResult {
    match outcome {
        Ok(settled) => SettleResult { status: 200, settled: settled.into(), problem: None },
        Err(problem) => {
            let settled = SettledView::unsettled(id);
            SettleResult { status: problem.status(), settled, problem: Some(problem) }
        }
    }
}

/// What is kept of a list while it is worked on: its name, the ids of its elements, which of them are valid, and those.
type List = (&'static str, Vec<Option<JobId>>, Vec<Result<(), Problem>>, Vec<Settle>);

/// Returns what is kept of a list. Its text, which may be long, is not: the call may wait for the next jobs.
fn list<T: DeserializeOwned, E: Into<Problem>>(
    name: &'static str,
    raw: Vec<Box<RawValue>>,
    convert: impl Fn(T) -> Result<Settle, E>,
) -> List {
    let (elements, valid) = parse_each(&raw, convert);
    let mut settles = valid.iter();
    let id = |(raw, element): (Box<RawValue>, &Result<(), Problem>)| match element {
        Ok(()) => settles.next().map(|settle| settle.id.clone()),
        Err(_) => id_in(&raw),
    };
    let ids = raw.into_iter().zip(&elements).map(id).collect();
    (name, ids, elements, valid)
}

/// Returns the id in a rejected element, so that the response can name it.
fn id_in(raw: &RawValue) -> Option<JobId> {
    #[derive(Deserialize)]
    struct Named {
        id: JobId,
    }
    serde_json::from_str::<Named>(raw.get()).ok().map(|named| named.id)
}
