//! Settling jobs: commit, rollback, extend, move, one at a time or many.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::push::{QueuedPush, parse_queued};
use super::{align, parse_each};
use crate::http::access::Granted;
use crate::http::body::{Body, optional_payload, present};
use crate::http::params::SettledJob;
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::transition::Outcome;
use crate::job::{Child, JobId, QueueName, State as JobState, Timestamp, Visible};
use crate::queue::settle::{Action, SETTLE_MAX};
use crate::queue::{Error, Queues, Settle, Settled};

/// A commit: the work succeeded.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    /// The token that the reserve returned.
    reservation: String,
    /// The result: any JSON value. Kept with the job in history, or its payload in the next stage.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Jobs to push with the commit, up to 1000. Atomic: they are stored with the commit, or nothing happens.
    #[serde(default)]
    #[schema(value_type = Vec<QueuedPush>, max_items = 1000)]
    push: Vec<Box<RawValue>>,
}

/// A rollback: the work failed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The token that the reserve returned.
    reservation: String,
    /// The delay before the retry, in milliseconds; default: the job's backoff.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    delay_ms: Option<u64>,
    /// The error message; kept with the job.
    error: Option<String>,
}

/// An extension of a reservation: the worker needs more time.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The token that the reserve returned.
    reservation: String,
    /// The new lease, in milliseconds from now; default: the lease of the reserve.
    #[schema(minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// The progress: any JSON value, shown with the job and passed to the next attempt.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    progress: Option<Box<RawValue>>,
}

/// A move to another queue.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The token that the reserve returned.
    reservation: String,
    /// The target queue. The job's attempts start at 0 there.
    #[schema(value_type = String)]
    queue: QueueName,
    /// The new payload: any JSON value; default: unchanged.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The delay before delivery from the target queue, in milliseconds.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    delay_ms: Option<u64>,
    /// The new priority; default: unchanged.
    priority: Option<i32>,
}

/// A request body that becomes a settle, of one job or as an item of many.
trait IntoAction {
    fn into_action(self) -> ApiResult<(String, Action)>;
}

impl IntoAction for CommitRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let result = optional_payload(self.result.as_deref(), "/result")?;
        Ok((self.reservation, Action::Commit { result, push: parse_queued(&self.push, "/push")? }))
    }
}

impl IntoAction for RollbackRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        Ok((self.reservation, Action::Rollback { delay_ms: self.delay_ms, error: self.error }))
    }
}

impl IntoAction for ExtendRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let progress = optional_payload(self.progress.as_deref(), "/progress")?;
        Ok((self.reservation, Action::Extend { lease_ms: self.lease_ms, progress }))
    }
}

impl IntoAction for MoveRequest {
    fn into_action(self) -> ApiResult<(String, Action)> {
        let payload = optional_payload(self.payload.as_deref(), "/payload")?;
        let Self { reservation, queue, delay_ms, priority, .. } = self;
        Ok((reservation, Action::Move { queue, payload, delay_ms, priority }))
    }
}

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

/// The result of a settle. Which fields are present depends on the operation.
#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
pub struct SettleResponse {
    /// The job.
    #[schema(value_type = String)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<JobId>,
    /// The new state of the job (commit, rollback, move).
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<SettledState>,
    /// The new queue of the job (move; rollback into a dead-letter queue).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    queue: Option<QueueName>,
    /// The earliest time of the next delivery (rollback, move).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// When the reservation expires (extend).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    reserved_until: Option<Timestamp>,
    /// Whether cancellation of the job was requested (extend).
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested: Option<bool>,
    /// The jobs that were pushed with the commit, in the order of the request (commit).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pushed: Vec<Child>,
}

/// The state of a job after a settle.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettledState {
    /// Finished successfully.
    Done,
    /// Ready for delivery.
    Ready,
    /// Waiting for its `run_at`.
    Scheduled,
    /// Waiting for its group.
    Blocked,
    /// Out of attempts.
    Dead,
    /// Removed: its cancellation had been requested, or its `expires_at` had passed.
    Removed,
}

impl From<Settled> for SettleResponse {
    fn from(settled: Settled) -> Self {
        let Settled { id, outcome, pushed, now } = settled;
        let response = Self { id: Some(id), pushed, ..Self::default() };
        match outcome {
            Outcome::Done => Self { state: Some(SettledState::Done), ..response },
            Outcome::Removed => Self { state: Some(SettledState::Removed), ..response },
            Outcome::Dead { moved_to } => {
                Self { state: Some(SettledState::Dead), queue: moved_to, ..response }
            }
            Outcome::Returned { queue, run_at, blocked } => {
                let state =
                    match if blocked { JobState::Blocked } else { JobState::Ready }.visible(run_at, now) {
                        Visible::Blocked => SettledState::Blocked,
                        Visible::Scheduled => SettledState::Scheduled,
                        _ => SettledState::Ready,
                    };
                Self { state: Some(state), queue: Some(queue), run_at: Some(run_at), ..response }
            }
            Outcome::Held { reserved_until, cancel_requested } => Self {
                reserved_until: Some(reserved_until),
                cancel_requested: Some(cancel_requested),
                ..response
            },
        }
    }
}

async fn settle_one(
    queues: &Queues,
    by: &Granted,
    id: JobId,
    request: impl IntoAction,
) -> ApiResult<Json<SettleResponse>> {
    let results = queues.settle(vec![to_settle(queues, by, id, request)?]).await;
    let missing = || Problem::new(Code::Internal, "the settle has no result");
    let settled = results.into_iter().next().ok_or_else(missing)?.map_err(|error| by.problem(error))?;
    Ok(Json(settled.into()))
}

/// Commit a job
///
/// The work succeeded: the job is removed, or kept as history if its queue retains done jobs. A job with a route
/// (`then`) moves to the next stage instead, with `result` as its payload if given. The jobs in `push` are stored
/// atomically with the commit: all of them, or nothing happens.
#[utoipa::path(post, path = "/v1/jobs/{id}/commit", operation_id = "commit_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = CommitRequest,
    responses(
        (status = 200, description = "The job is committed", body = SettleResponse),
        (status = 409, description = "`reservation-lost`; `key-conflict` of a pushed job", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`: the queue of a pushed job", body = Problem, content_type = "application/problem+json")))]
pub async fn commit(
    State(queues): State<Queues>,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<CommitRequest>,
) -> ApiResult<Json<SettleResponse>> {
    settle_one(&queues, &by, id, request).await
}

/// Roll a job back
///
/// The work failed: the job is retried after a delay, or is dead if it is out of attempts.
#[utoipa::path(post, path = "/v1/jobs/{id}/rollback", operation_id = "rollback_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = RollbackRequest,
    responses(
        (status = 200, description = "The state of the job", body = SettleResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json")))]
pub async fn rollback(
    State(queues): State<Queues>,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<RollbackRequest>,
) -> ApiResult<Json<SettleResponse>> {
    settle_one(&queues, &by, id, request).await
}

/// Extend a reservation
///
/// Extends the lease of a job. Returns whether its cancellation was requested.
#[utoipa::path(post, path = "/v1/jobs/{id}/extend", operation_id = "extend_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = ExtendRequest,
    responses(
        (status = 200, description = "The reservation is extended", body = SettleResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json")))]
pub async fn extend(
    State(queues): State<Queues>,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<ExtendRequest>,
) -> ApiResult<Json<SettleResponse>> {
    settle_one(&queues, &by, id, request).await
}

/// Move a job
///
/// Moves a reserved job to another queue atomically: a stage of a pipeline.
#[utoipa::path(post, path = "/v1/jobs/{id}/move", operation_id = "move_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = MoveRequest,
    responses(
        (status = 200, description = "The job is in the target queue", body = SettleResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn move_job(
    State(queues): State<Queues>,
    by: Granted,
    SettledJob(id): SettledJob,
    Body(request): Body<MoveRequest>,
) -> ApiResult<Json<SettleResponse>> {
    settle_one(&queues, &by, id, request).await
}

macro_rules! items {
    ($($(#[doc = $doc:literal])* $item:ident of $request:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {
        $(
            $(#[doc = $doc])*
            #[derive(Debug, Deserialize, utoipa::ToSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $item {
                /// The job.
                id: String,
                $($(#[$attr])* $field: $type,)*
            }

            impl $item {
                fn into_settle(self, queues: &Queues, by: &Granted) -> ApiResult<Settle> {
                    let unknown = |_| Problem::reservation_lost("there is no job with this id");
                    let id = self.id.parse().map_err(unknown)?;
                    to_settle(queues, by, id, $request { $($field: self.$field,)* })
                }
            }
        )*
    };
}

items! {
    /// A commit of one of many jobs.
    CommitItem of CommitRequest {
        /// The token that the reserve returned.
        reservation: String,
        /// See the commit call.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        result: Option<Box<RawValue>>,
        /// See the commit call.
        #[serde(default)]
        #[schema(value_type = Vec<QueuedPush>, max_items = 1000)]
        push: Vec<Box<RawValue>>,
    }
    /// A rollback of one of many jobs.
    RollbackItem of RollbackRequest {
        /// The token that the reserve returned.
        reservation: String,
        /// See the rollback call.
        delay_ms: Option<u64>,
        /// See the rollback call.
        error: Option<String>,
    }
    /// An extend of one of many jobs.
    ExtendItem of ExtendRequest {
        /// The token that the reserve returned.
        reservation: String,
        /// See the extend call.
        lease_ms: Option<u64>,
        /// See the extend call.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        progress: Option<Box<RawValue>>,
    }
    /// A move of one of many jobs.
    MoveItem of MoveRequest {
        /// The token that the reserve returned.
        reservation: String,
        /// See the move call.
        #[schema(value_type = String)]
        queue: QueueName,
        /// See the move call.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        payload: Option<Box<RawValue>>,
        /// See the move call.
        delay_ms: Option<u64>,
        /// See the move call.
        priority: Option<i32>,
    }
}

/// Jobs to settle together, up to 1000 in all.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SettleRequest {
    /// Jobs to commit.
    #[schema(value_type = Vec<CommitItem>)]
    commit: Vec<Box<RawValue>>,
    /// Jobs to roll back.
    #[schema(value_type = Vec<RollbackItem>)]
    rollback: Vec<Box<RawValue>>,
    /// Jobs whose reservations to extend.
    #[schema(value_type = Vec<ExtendItem>)]
    extend: Vec<Box<RawValue>>,
    /// Jobs to move to another queue.
    #[serde(rename = "move")]
    #[schema(value_type = Vec<MoveItem>)]
    moves: Vec<Box<RawValue>>,
}

/// The result for one of many jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SettleResult {
    /// The status that a settle of only this job would return.
    status: u16,
    #[serde(flatten)]
    settled: SettleResponse,
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
}

/// Settle many jobs
///
/// Not atomic: each element succeeds or fails independently. Pointers in problems name the element as well:
/// `/rollback/3/delay_ms`.
#[utoipa::path(post, path = "/v1/settle", operation_id = "settle_jobs", tag = "work", request_body = SettleRequest,
    responses((status = 200, description = "One result for each element", body = SettleManyResponse)))]
pub async fn settle(
    State(queues): State<Queues>,
    by: Granted,
    Body(request): Body<SettleRequest>,
) -> ApiResult<Json<SettleManyResponse>> {
    let SettleRequest { commit, rollback, extend, moves } = request;
    let total = commit.len() + rollback.len() + extend.len() + moves.len();
    if total > SETTLE_MAX {
        return Err(Problem::field("", format!("has {total} jobs; at most 1000 can be settled together")));
    }
    let lists = [
        ("commit", parse_each(&commit, |item: CommitItem| item.into_settle(&queues, &by)), &commit),
        ("rollback", parse_each(&rollback, |item: RollbackItem| item.into_settle(&queues, &by)), &rollback),
        ("extend", parse_each(&extend, |item: ExtendItem| item.into_settle(&queues, &by)), &extend),
        ("move", parse_each(&moves, |item: MoveItem| item.into_settle(&queues, &by)), &moves),
    ];
    let pushed: usize = lists[0].1.1.iter().map(Settle::pushes).sum();
    if pushed > SETTLE_MAX {
        return Err(Problem::field(
            "/commit",
            format!("pushes {pushed} jobs; at most 1000 can be pushed together"),
        ));
    }
    let mut settles = Vec::with_capacity(total);
    let lists = lists.map(|(name, (elements, valid), raw)| {
        settles.extend(valid);
        (name, elements, raw)
    });
    let mut settled = queues.settle(settles).await.into_iter();
    let [commit, rollback, extend, moves] = lists.map(|(name, elements, raw)| {
        let aligned = align(elements, settled.by_ref()).into_iter().zip(raw).enumerate();
        aligned
            .map(|(n, (outcome, raw))| {
                let outcome = outcome.and_then(|outcome| outcome.map_err(|error| by.problem(error)));
                result(outcome.map_err(|problem| problem.under(&format!("/{name}/{n}"))), raw)
            })
            .collect()
    });
    Ok(Json(SettleManyResponse { commit, rollback, extend, moves }))
}

fn result(outcome: ApiResult<Settled>, raw: &RawValue) -> SettleResult {
    match outcome {
        Ok(settled) => SettleResult { status: 200, settled: settled.into(), problem: None },
        Err(problem) => {
            let settled = SettleResponse { id: id_in(raw), ..SettleResponse::default() };
            SettleResult { status: problem.status(), settled, problem: Some(problem) }
        }
    }
}

/// Returns the id in a rejected element, so that the response can name it.
fn id_in(raw: &RawValue) -> Option<JobId> {
    #[derive(Deserialize)]
    struct Named {
        id: JobId,
    }
    serde_json::from_str::<Named>(raw.get()).ok().map(|named| named.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_distinguished_by_the_stores_clock() {
        let state = |run_at, blocked| {
            let run_at = Timestamp::from_millis(run_at);
            let outcome = Outcome::Returned { queue: "q".parse().unwrap(), run_at, blocked };
            let (id, now) = ("a".parse().unwrap(), Timestamp::from_millis(1000));
            let settled = Settled { id, outcome, pushed: Vec::new(), now };
            serde_json::to_value(SettleResponse::from(settled)).unwrap()["state"].clone()
        };
        assert_eq!((state(1000, false), state(1001, false)), ("ready".into(), "scheduled".into()));
        assert_eq!(state(1001, true), "blocked");
    }
}
