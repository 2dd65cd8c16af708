//! Queues: settings, pause and resume, and bulk operations on jobs.

use crate::http::json::Json;
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::openapi::{ObjectBuilder, Type};

use super::view::{Deleted, QueueIdentity, Shown};
use crate::http::access::Granted;
use crate::http::body::{Body, Whole};
use crate::http::budget::Budget;
use crate::http::keyed::Keyed;
use crate::http::merge_patch;
use crate::http::params::{IfMatch, InQueue, Query, cursor};
use crate::http::parse::parse;
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::names::NAME_RULE;
use crate::job::settings::Lapsed;
use crate::job::{
    Backoff, BulkId, Invalid, Payload, QueueName, QueuePattern, QueueSettings, Scope, Timestamp, Visible,
};
use crate::queue::{Affected, FinishedRange, QueueView, Queues, Swept};

/// A queue and its settings.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Queue)]
pub struct QueueResponse {
    /// Its name.
    queue: QueueName,
    /// The version of its settings, as in the entity tag.
    version: String,
    /// Its settings.
    #[serde(flatten)]
    settings: QueueSettings,
    /// The effective settings, defaults included.
    effective: EffectiveSettings,
    /// What of the stored settings cannot be read, because another program wrote them; the rest is in effect. A `PUT`
    /// replaces them.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

/// The effective settings of a queue, defaults included.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EffectiveSettings {
    /// The default lease of a reservation, in milliseconds.
    lease_ms: u64,
    /// The default maximum number of deliveries of a job.
    max_attempts: u32,
    /// The default backoff of a job.
    backoff: Backoff,
    /// How long done jobs are kept as history, in milliseconds; 0: not at all.
    retain_done_ms: u64,
    /// How long done jobs are kept for their results at least, in milliseconds, where they do not say; 0: as `retain_done_ms` says.
    retain_result_ms: u64,
    /// How long dead jobs are kept, in milliseconds; 0: until they are deleted.
    retain_dead_ms: u64,
    /// Where a job comes back whose reservation ran out, or whose worker was lost.
    lapsed: Lapsed,
    /// Whether delivery is stopped.
    paused: bool,
}

impl From<QueueView> for QueueResponse {
    fn from(view: QueueView) -> Self {
        let QueueView { name: queue, settings, rules, unreadable, version } = view;
        let effective = EffectiveSettings {
            lease_ms: rules.lease_ms(&queue),
            max_attempts: rules.max_attempts(&queue),
            backoff: rules.backoff(&queue),
            retain_done_ms: rules.retain_done_ms(&queue).unwrap_or(0),
            retain_result_ms: rules.retain_result_ms(&queue).unwrap_or(0),
            retain_dead_ms: rules.retain_dead_ms(&queue).unwrap_or(0),
            lapsed: if rules.lapsed_come_first(&queue) { Lapsed::First } else { Lapsed::Now },
            paused: rules.paused(&queue),
        };
        Self { queue, version, settings, effective, unreadable }
    }
}

/// Returns the queue with its version as the entity tag; to a caller without the scope `read`, which it is.
fn tagged(by: &Granted, view: QueueView) -> ApiResult<Response> {
    let tag = HeaderValue::try_from(format!("\"{}\"", view.version)).map_err(|_| {
        Problem::new(Code::Internal, "the version of the settings is not a valid header value")
    })?;
    let version = Some(view.version.clone());
    let queue = QueueResponse::from(view);
    let name = queue.queue.clone();
    let shown = if by.caller.has(Scope::Read) {
        Shown::Whole(Box::new(queue))
    } else {
        Shown::Identity(QueueIdentity { queue: name, version })
    };
    Ok(([(header::ETAG, tag)], Json(shown)).into_response())
}

/// Returns the prefix of names that a query has.
pub fn prefix(query: &Query) -> ApiResult<Option<String>> {
    let invalid = || Problem::parameter("prefix", format!("must be the beginning of a name: {NAME_RULE}"));
    let Some(prefix) = query.get::<String>("prefix", NAME_RULE)? else { return Ok(None) };
    match format!("{prefix}*").parse() {
        Ok(QueuePattern::Prefix(_)) => Ok(Some(prefix)),
        _ => Err(invalid()),
    }
}

/// What was deleted of the queues of a prefix.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct DeletedQueues {
    /// How many queues were deleted.
    deleted: u64,
    /// How many have jobs, and were left as they are.
    not_empty: u64,
    /// Whether there is more to do: call again, with the cursor if there is one.
    more: bool,
    /// Where to go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// Delete the queues of a prefix
///
/// Deletes the queues whose names begin with `prefix`, as the deletion of each of them does: those that have jobs only with `force`,
/// together with their jobs, including reserved ones. `confirm` says the prefix again. A call ends after about a second with what it has
/// done by then, and says whether there is `more`.
#[utoipa::path(delete, path = "/v1/queues", operation_id = "delete_queues", tag = "queues",
    params(("prefix" = String, Query, description = "How the names begin; not empty", max_length = 128),
        ("confirm" = String, Query, description = "The same text", max_length = 128),
        ("force" = Option<bool>, Query, description = "Delete the queues' jobs as well"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous call")),
    responses((status = 200, description = "What was deleted", body = DeletedQueues)))]
pub async fn delete_many(
    State(queues): State<Queues>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<DeletedQueues>> {
    let query = query.only(&["prefix", "confirm", "force", "cursor"])?;
    let given = prefix(&query)?.filter(|prefix| !prefix.is_empty());
    let prefix = given.ok_or_else(|| Problem::parameter("prefix", "must be given, and not be empty"))?;
    if query.get::<String>("confirm", NAME_RULE)?.as_ref() != Some(&prefix) {
        return Err(Problem::parameter("confirm", "must be the same as prefix"));
    }
    let (after, force) = (query.cursor::<QueueName>()?, query.force()?);
    let swept = queues.delete_queues(&prefix, after.as_ref(), force, &by.caller.reach()).await?;
    let Swept { deleted, not_empty, last, more } = swept;
    let cursor = last.as_ref().filter(|_| more).map(cursor);
    Ok(Json(DeletedQueues { deleted, not_empty, more, cursor }))
}

/// Get a queue
///
/// Queues need not be created: one without settings has the defaults.
#[utoipa::path(get, path = "/v1/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = QueueResponse,
        headers(("ETag" = String, description = "The version of the settings, for If-Match")))))]
pub async fn get(State(queues): State<Queues>, by: Granted, InQueue(queue): InQueue) -> ApiResult<Response> {
    tagged(&by, queues.queue(&queue).await?)
}

/// Set a queue's settings
///
/// Replaces all settings; absent ones fall back to the defaults, and `{}` resets all. Only a pause stays, unless `paused` says
/// otherwise: it is an operator's act. A call that changes nothing keeps the version. Settings apply when they are used, also
/// to jobs that were pushed before.
#[utoipa::path(put, path = "/v1/queues/{queue}", operation_id = "set_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the settings")),
    request_body = QueueSettings,
    responses(
        (status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, QueueIdentity>,
            headers(("ETag" = String, description = "The version of the settings, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn put(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    Whole(settings): Whole<QueueSettings>,
) -> ApiResult<Response> {
    settings.dead_letter.iter().try_for_each(|target| by.need(Scope::Push, target))?;
    let changed = queues.configure(&queue, settings, &precondition).await;
    tagged(&by, changed.map_err(|error| by.problem(error))?)
}

/// Change a queue's settings
///
/// Applies a JSON merge patch (RFC 7396): absent settings stay as they are, null resets one to the default.
#[utoipa::path(patch, path = "/v1/queues/{queue}", operation_id = "update_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the settings")),
    request_body = QueueSettings,
    responses(
        (status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, QueueIdentity>,
            headers(("ETag" = String, description = "The version of the settings, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn patch(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    Body(patch): Body<Payload>,
) -> ApiResult<Response> {
    let changes = merge_patch::changes(&patch)?;
    // What is no name is refused when it is merged.
    let target = changes.get("dead_letter").and_then(|name| name.as_str()?.parse().ok());
    target.iter().try_for_each(|target| by.need(Scope::Push, target))?;
    let merge = move |settings: QueueSettings| Ok(merged(settings, &changes)?);
    let changed = queues.reconfigure(&queue, &precondition, merge).await;
    tagged(&by, changed.map_err(|error| by.problem(error))?)
}

fn merged(
    settings: QueueSettings,
    changes: &serde_json::Map<String, serde_json::Value>,
) -> Result<QueueSettings, Invalid> {
    if let Some(unknown) = QueueSettings::unknown_field(changes) {
        return Err(unknown);
    }
    let unwritable = |error: serde_json::Error| Invalid::new("", error.to_string());
    let mut whole = serde_json::to_value(&settings).map_err(unwritable)?;
    merge_patch::apply(&mut whole, changes);
    parse(&whole.to_string()).map_err(|error| error.under(""))
}

/// Delete a queue
///
/// Deletes a queue's settings. If the queue has jobs, it is deleted only with `force`, together with its jobs,
/// including reserved ones.
#[utoipa::path(delete, path = "/v1/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("force" = Option<bool>, Query, description = "Delete the queue's jobs as well. Default: `false`."),
        ("If-Match" = Option<String>, Header, description = "The expected version of the settings")),
    responses(
        (status = 200, description = "The queue is deleted", body = Deleted),
        (status = 409, description = "`queue-not-empty`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    query: Query,
) -> ApiResult<Json<Deleted>> {
    let force = query.only(&["force"])?.force()?;
    queues.delete_queue(&queue, &precondition, force).await?;
    Ok(Json(Deleted { deleted: true }))
}

/// An empty object; the body may also be absent.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EmptyRequest)]
pub struct Nothing {}

/// Pause a queue
///
/// Stops delivery from the queue. Pushes are still accepted, and waiting requests keep waiting. Where that changes something, the queue
/// has a new version: a `PUT` or `PATCH` with the `If-Match` of before is refused. A `PUT` without `paused` leaves the pause as it is.
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")),
    responses((status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, QueueIdentity>,
            headers(("ETag" = String, description = "The version of the settings")))))]
pub async fn pause(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    _: Body<Nothing>,
) -> ApiResult<Response> {
    tagged(&by, queues.pause(&queue, true).await?)
}

/// Resume a queue
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")),
    responses((status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, QueueIdentity>,
            headers(("ETag" = String, description = "The version of the settings")))))]
pub async fn resume(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    _: Body<Nothing>,
) -> ApiResult<Response> {
    tagged(&by, queues.pause(&queue, false).await?)
}

fn words(words: &'static [&'static str]) -> utoipa::openapi::schema::Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied())).build()
}

fn purgeable() -> utoipa::openapi::schema::Object {
    words(&["ready", "scheduled", "blocked", "done", "dead"])
}

fn only_dead() -> utoipa::openapi::schema::Object {
    words(&["dead"])
}

/// The states of jobs that can be purged.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Purgeable {
    Ready,
    Scheduled,
    Blocked,
    Done,
    Dead,
}

impl From<Purgeable> for Visible {
    fn from(state: Purgeable) -> Self {
        match state {
            Purgeable::Ready => Self::Ready,
            Purgeable::Scheduled => Self::Scheduled,
            Purgeable::Blocked => Self::Blocked,
            Purgeable::Done => Self::Done,
            Purgeable::Dead => Self::Dead,
        }
    }
}

/// The state of jobs that can be redriven.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DeadOnly {
    Dead,
}

/// Which jobs to purge.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeRequest {
    /// The state of the jobs; reserved jobs cannot be purged.
    #[schema(schema_with = purgeable)]
    state: Purgeable,
    /// Only jobs from before this time: by `finished_at` for done and dead jobs, else by `created_at`.
    before: Option<Timestamp>,
}

/// Which dead jobs to redrive.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedriveRequest {
    /// Always `dead`.
    #[schema(schema_with = only_dead)]
    #[expect(dead_code, reason = "it says again what is meant")]
    state: Option<DeadOnly>,
    /// Only jobs that died at this time or later: by `finished_at` or, of those that were dead-lettered into the queue and did
    /// not die here again, by `dead_lettered_from.at`.
    from: Option<Timestamp>,
    /// Only jobs that died before this time.
    to: Option<Timestamp>,
    /// The maximum number of jobs.
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    limit: Option<u64>,
}

/// Which done jobs to replay.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Only jobs that finished at this time or later.
    from: Option<Timestamp>,
    /// Only jobs that finished before this time.
    to: Option<Timestamp>,
    /// The maximum number of jobs.
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    limit: Option<u64>,
}

/// How many jobs were affected.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AffectedResponse {
    /// How many jobs were affected by the call.
    pub affected: u64,
    /// The operation that goes on with the other jobs, where there were too many for the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<FollowingOperation>,
}

/// An operation that goes on where a call has ended.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct FollowingOperation {
    /// Its id, for `GET /v1/operations/{id}`. It counts the jobs that it affects, not those of the call.
    pub id: BulkId,
}

impl From<u64> for AffectedResponse {
    fn from(affected: u64) -> Self {
        Self { affected, operation: None }
    }
}

impl From<Affected> for AffectedResponse {
    fn from(Affected { affected, operation }: Affected) -> Self {
        Self { affected, operation: operation.map(|id| FollowingOperation { id }) }
    }
}

/// Purge a queue
///
/// Removes the jobs that are in one state, each counted by one call. A job that was blocked by one that is removed stays.
///
/// A call looks at 2000 jobs, the latest first, and counts in `affected` what it has removed. Where there are more, it stores an operation
/// that removes them in the background, and the response says which: together they remove each job once. Jobs that are redriven, retried or
/// given back by their workers meanwhile stay; a push with a `key` that meets a job which is still to be removed is removed with it.
#[utoipa::path(post, path = "/v1/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue")), request_body = PurgeRequest,
    responses((status = 200, description = "How many jobs were removed", body = AffectedResponse)))]
pub async fn purge(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    Body(request): Body<PurgeRequest>,
) -> ApiResult<Json<AffectedResponse>> {
    let affected = queues.purge(&queue, request.state.into(), request.before, &by.caller).await?;
    Ok(Json(affected.into()))
}

/// Redrive dead jobs
///
/// Makes the queue's dead jobs ready again, with their attempts reset, and returns the jobs that were dead-lettered
/// into it to their original queues, also those that died again here. Each job counts once. Jobs past their `expires_at`
/// are left where they are. A repeat with the same `Idempotency-Key` goes on where the first call was interrupted, and
/// returns the same response once that is over. A call looks at 2000 jobs; where there are more, it stores an `operation` that goes on
/// with them in the background.
#[utoipa::path(post, path = "/v1/queues/{queue}/redrive", operation_id = "redrive_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = RedriveRequest,
    responses((status = 200, description = "How many jobs were redriven", body = AffectedResponse)))]
pub async fn redrive(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<RedriveRequest>,
) -> ApiResult<Json<AffectedResponse>> {
    let range = FinishedRange { from: request.from, to: request.to, limit: limit(request.limit)? };
    budget.check()?; // the jobs are read whole
    let affected = queues.redrive(&queue, range, &by.caller, key.as_ref()).await?;
    Ok(Json(affected.into()))
}

/// Replay finished jobs
///
/// Pushes copies of done jobs from the queue's history, which is not changed. Without `to`, all that was committed before
/// the call is repeated, and what the call itself pushes is not. A repeat with the same `Idempotency-Key` goes on
/// where the first call was interrupted, and returns the same response once that is over. A call looks at 2000 jobs; where there are more,
/// it stores an `operation` that goes on with them in the background.
#[utoipa::path(post, path = "/v1/queues/{queue}/replay", operation_id = "replay_queue", tag = "queues",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = ReplayRequest,
    responses((status = 200, description = "How many jobs were pushed", body = AffectedResponse)))]
pub async fn replay(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<ReplayRequest>,
) -> ApiResult<Json<AffectedResponse>> {
    let range = FinishedRange { from: request.from, to: request.to, limit: limit(request.limit)? };
    budget.check()?; // the jobs are read whole
    let affected = queues.replay(&queue, range, &by.caller, key.as_ref()).await?;
    Ok(Json(affected.into()))
}

fn limit(limit: Option<u64>) -> ApiResult<Option<u64>> {
    match limit {
        Some(0) => Err(Problem::field("/limit", "must be at least 1")),
        other => Ok(other),
    }
}
