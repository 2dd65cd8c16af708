//! Settling jobs: commit, rollback, extend, move, and many of them at once.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::push::{QueuedPush, queued};
use super::{align, each};
use crate::http::body::{Body, maybe_payload, present};
use crate::http::params::SettledJob;
use crate::http::problem::{Answer, Code, Problem};
use crate::job::transition::Outcome;
use crate::job::{Child, JobId, QueueName, State as JobState, Timestamp, Visible};
use crate::queue::settle::{Action, SETTLE_MAX};
use crate::queue::{Queues, Settle, Settled};

/// The work is done.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CommitRequest {
    /// The token that the reserve answered.
    reservation: String,
    /// What came of it: any JSON value, kept with the job in history, or its payload in the next stage.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Box<RawValue>>,
    /// Jobs to push with it, up to 1000: they are stored with the commit, or nothing happens.
    #[serde(default)]
    #[schema(value_type = Vec<QueuedPush>, max_items = 1000)]
    push: Vec<Box<RawValue>>,
}

/// The work failed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The token that the reserve answered.
    reservation: String,
    /// The job comes back after so many milliseconds; absent: by its backoff.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    delay_ms: Option<u64>,
    /// Why it failed; kept with the job.
    error: Option<String>,
}

/// The worker needs more time.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// The token that the reserve answered.
    reservation: String,
    /// The reservation lasts so many milliseconds from now; absent: as long as it first did.
    #[schema(minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// How far the work is: any JSON value, shown with the job and handed to the next attempt.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    progress: Option<Box<RawValue>>,
}

/// The job goes on in another queue.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The token that the reserve answered.
    reservation: String,
    /// Where the job goes on. Its attempts start again there.
    #[schema(value_type = String)]
    queue: QueueName,
    /// What is to be done there: any JSON value; absent: what was to be done here.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Due there after so many milliseconds.
    #[schema(minimum = 0, maximum = 31536000000_u64)]
    delay_ms: Option<u64>,
    /// Its priority there; absent: as here.
    priority: Option<i32>,
}

/// What a settle asks for, whether it came alone or with others.
trait Ask {
    fn into_action(self) -> Answer<(String, Action)>;
}

impl Ask for CommitRequest {
    fn into_action(self) -> Answer<(String, Action)> {
        let result = maybe_payload(self.result.as_deref(), "/result")?;
        Ok((self.reservation, Action::Commit { result, push: queued(&self.push, "/push")? }))
    }
}

impl Ask for RollbackRequest {
    fn into_action(self) -> Answer<(String, Action)> {
        Ok((self.reservation, Action::Rollback { delay_ms: self.delay_ms, error: self.error }))
    }
}

impl Ask for ExtendRequest {
    fn into_action(self) -> Answer<(String, Action)> {
        let progress = maybe_payload(self.progress.as_deref(), "/progress")?;
        Ok((self.reservation, Action::Extend { lease_ms: self.lease_ms, progress }))
    }
}

impl Ask for MoveRequest {
    fn into_action(self) -> Answer<(String, Action)> {
        let payload = maybe_payload(self.payload.as_deref(), "/payload")?;
        let Self { reservation, queue, delay_ms, priority, .. } = self;
        Ok((reservation, Action::Move { queue, payload, delay_ms, priority }))
    }
}

fn settle_of(id: JobId, ask: impl Ask) -> Answer<Settle> {
    let (reservation, action) = ask.into_action()?;
    Ok(Settle { id, reservation: reservation.parse().ok(), action })
}

/// What a settle has led to. Which fields there are depends on the call.
#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
pub struct SettleResponse {
    /// The job.
    #[schema(value_type = String)]
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<JobId>,
    /// What has become of the job (commit, rollback, move).
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<SettledState>,
    /// The queue that the job is in now (move; a dead job that has a dead-letter queue).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    queue: Option<QueueName>,
    /// When the job is due (rollback, move).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// When the reservation runs out (extend).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    reserved_until: Option<Timestamp>,
    /// Whether somebody asked for the job's end (extend).
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel_requested: Option<bool>,
    /// The jobs that were pushed with it, in the order of the request (commit).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pushed: Vec<Child>,
}

/// What has become of a job that was settled.
#[derive(Debug, Clone, Copy, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettledState {
    /// It is done.
    Done,
    /// It can be delivered again.
    Ready,
    /// It can be delivered again from its `run_at` on.
    Scheduled,
    /// It waits for its turn in its group.
    Blocked,
    /// Its attempts are used up.
    Dead,
    /// It has left: somebody had asked for its end, or its `expires_at` had passed.
    Removed,
}

impl From<Settled> for SettleResponse {
    fn from(settled: Settled) -> Self {
        let Settled { id, outcome, pushed, now } = settled;
        let answer = Self { id: Some(id), pushed, ..Self::default() };
        match outcome {
            Outcome::Done => Self { state: Some(SettledState::Done), ..answer },
            Outcome::Removed => Self { state: Some(SettledState::Removed), ..answer },
            Outcome::Dead { moved_to } => Self { state: Some(SettledState::Dead), queue: moved_to, ..answer },
            Outcome::Returned { queue, run_at, blocked } => {
                let state =
                    match if blocked { JobState::Blocked } else { JobState::Ready }.visible(run_at, now) {
                        Visible::Blocked => SettledState::Blocked,
                        Visible::Scheduled => SettledState::Scheduled,
                        _ => SettledState::Ready,
                    };
                Self { state: Some(state), queue: Some(queue), run_at: Some(run_at), ..answer }
            }
            Outcome::Held { reserved_until, cancel_requested } => Self {
                reserved_until: Some(reserved_until),
                cancel_requested: Some(cancel_requested),
                ..answer
            },
        }
    }
}

async fn settle_one(queues: &Queues, id: JobId, ask: impl Ask) -> Answer<Json<SettleResponse>> {
    let answers = queues.settle(vec![settle_of(id, ask)?]).await;
    let lost = || Problem::new(Code::Internal, "the settle was left unanswered");
    Ok(Json(answers.into_iter().next().ok_or_else(lost)??.into()))
}

/// Commit a job
///
/// The work is done: the job leaves, or becomes history where its queue keeps some. If it has a route (`then`), it
/// goes on in the next stage, with `result` as its payload if there is one. The jobs in `push` are stored in the same
/// atomic step: all of them with the commit, or nothing happens.
#[utoipa::path(post, path = "/v1/jobs/{id}/commit", operation_id = "commit_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = CommitRequest,
    responses(
        (status = 200, description = "The job is done", body = SettleResponse),
        (status = 409, description = "`reservation-lost`; `key-conflict` of a job to push", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`: that of a job to push", body = Problem, content_type = "application/problem+json")))]
pub async fn commit(
    State(queues): State<Queues>,
    SettledJob(id): SettledJob,
    Body(request): Body<CommitRequest>,
) -> Answer<Json<SettleResponse>> {
    settle_one(&queues, id, request).await
}

/// Roll a job back
///
/// The work failed: the job comes back after a delay, or is dead when its attempts are used up.
#[utoipa::path(post, path = "/v1/jobs/{id}/rollback", operation_id = "rollback_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = RollbackRequest,
    responses(
        (status = 200, description = "What has become of the job", body = SettleResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json")))]
pub async fn rollback(
    State(queues): State<Queues>,
    SettledJob(id): SettledJob,
    Body(request): Body<RollbackRequest>,
) -> Answer<Json<SettleResponse>> {
    settle_one(&queues, id, request).await
}

/// Extend a reservation
///
/// The worker is alive and needs more time. Tells whether somebody asked for the job's end.
#[utoipa::path(post, path = "/v1/jobs/{id}/extend", operation_id = "extend_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = ExtendRequest,
    responses(
        (status = 200, description = "The reservation lasts longer", body = SettleResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json")))]
pub async fn extend(
    State(queues): State<Queues>,
    SettledJob(id): SettledJob,
    Body(request): Body<ExtendRequest>,
) -> Answer<Json<SettleResponse>> {
    settle_one(&queues, id, request).await
}

/// Move a job
///
/// Puts a reserved job into another queue in one atomic step: a stage of a pipeline.
#[utoipa::path(post, path = "/v1/jobs/{id}/move", operation_id = "move_job", tag = "work",
    params(("id" = String, Path, description = "The job")), request_body = MoveRequest,
    responses(
        (status = 200, description = "The job is in the other queue", body = SettleResponse),
        (status = 409, description = "`reservation-lost`", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "`queue-full`", body = Problem, content_type = "application/problem+json")))]
pub async fn move_job(
    State(queues): State<Queues>,
    SettledJob(id): SettledJob,
    Body(request): Body<MoveRequest>,
) -> Answer<Json<SettleResponse>> {
    settle_one(&queues, id, request).await
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
                fn into_settle(self) -> Answer<Settle> {
                    let id = self.id.parse().map_err(|_| Problem::lost("there is no job with such an id"))?;
                    settle_of(id, $request { $($field: self.$field,)* })
                }
            }
        )*
    };
}

items! {
    /// A commit among others.
    CommitItem of CommitRequest {
        /// The token that the reserve answered.
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
    /// A rollback among others.
    RollbackItem of RollbackRequest {
        /// The token that the reserve answered.
        reservation: String,
        /// See the rollback call.
        delay_ms: Option<u64>,
        /// See the rollback call.
        error: Option<String>,
    }
    /// An extend among others.
    ExtendItem of ExtendRequest {
        /// The token that the reserve answered.
        reservation: String,
        /// See the extend call.
        lease_ms: Option<u64>,
        /// See the extend call.
        #[serde(default, deserialize_with = "present")]
        #[schema(value_type = Option<serde_json::Value>)]
        progress: Option<Box<RawValue>>,
    }
    /// A move among others.
    MoveItem of MoveRequest {
        /// The token that the reserve answered.
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
    /// Jobs whose work is done.
    #[schema(value_type = Vec<CommitItem>)]
    commit: Vec<Box<RawValue>>,
    /// Jobs whose work failed.
    #[schema(value_type = Vec<RollbackItem>)]
    rollback: Vec<Box<RawValue>>,
    /// Jobs that need more time.
    #[schema(value_type = Vec<ExtendItem>)]
    extend: Vec<Box<RawValue>>,
    /// Jobs that go on in another queue.
    #[serde(rename = "move")]
    #[schema(value_type = Vec<MoveItem>)]
    moves: Vec<Box<RawValue>>,
}

/// What became of one job among others.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SettleResult {
    /// The status that the call alone would have had.
    status: u16,
    #[serde(flatten)]
    settled: SettleResponse,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// What became of the jobs, each list aligned with that of the request.
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
/// Each element stands for itself. Pointers in problems are relative to the element.
#[utoipa::path(post, path = "/v1/settle", operation_id = "settle_jobs", tag = "work", request_body = SettleRequest,
    responses((status = 200, description = "One result for each element", body = SettleManyResponse)))]
pub async fn settle(
    State(queues): State<Queues>,
    Body(request): Body<SettleRequest>,
) -> Answer<Json<SettleManyResponse>> {
    let SettleRequest { commit, rollback, extend, moves } = request;
    let total = commit.len() + rollback.len() + extend.len() + moves.len();
    if total > SETTLE_MAX {
        return Err(Problem::field("", format!("has {total} jobs; at most 1000 can be settled together")));
    }
    let lists = [
        (each(&commit, CommitItem::into_settle), &commit),
        (each(&rollback, RollbackItem::into_settle), &rollback),
        (each(&extend, ExtendItem::into_settle), &extend),
        (each(&moves, MoveItem::into_settle), &moves),
    ];
    let pushed: usize = lists[0].0.1.iter().map(Settle::pushes).sum();
    if pushed > SETTLE_MAX {
        return Err(Problem::field(
            "/commit",
            format!("pushes {pushed} jobs; at most 1000 can be pushed together"),
        ));
    }
    let mut settles = Vec::with_capacity(total);
    let lists = lists.map(|((elements, good), raw)| {
        settles.extend(good);
        (elements, raw)
    });
    let mut answers = queues.settle(settles).await.into_iter();
    let [commit, rollback, extend, moves] = lists.map(|(elements, raw)| {
        let aligned = align(elements, answers.by_ref()).into_iter().zip(raw);
        aligned
            .map(|(answer, raw)| result(answer.and_then(|answer| answer.map_err(Problem::from)), raw))
            .collect()
    });
    Ok(Json(SettleManyResponse { commit, rollback, extend, moves }))
}

fn result(answer: Answer<Settled>, raw: &RawValue) -> SettleResult {
    match answer {
        Ok(settled) => SettleResult { status: 200, settled: settled.into(), problem: None },
        Err(problem) => {
            let settled = SettleResponse { id: id_in(raw), ..SettleResponse::default() };
            SettleResult { status: problem.status(), settled, problem: Some(problem) }
        }
    }
}

/// The id in an element that was refused, so that the answer can name it.
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
    fn states_are_told_apart_by_the_stores_clock() {
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
