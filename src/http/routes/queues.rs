//! Queues: settings, pause and resume, and bulk operations on jobs.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::view::{Identity, Shown};
use crate::http::access::Granted;
use crate::http::body::{Body, Whole, parse};
use crate::http::keyed::Keyed;
use crate::http::params::{IfMatch, InQueue, Query, cursor};
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::{Backoff, Invalid, QueueName, QueueSettings, Scope, Timestamp, Visible};
use crate::queue::{FinishedRange, QueueView, Queues};

/// A queue and its settings.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueueResponse {
    /// Its name.
    #[schema(value_type = String)]
    name: QueueName,
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
    /// How long dead jobs are kept, in milliseconds; 0: until they are deleted.
    retain_dead_ms: u64,
    /// Whether delivery is stopped.
    paused: bool,
}

impl From<QueueView> for QueueResponse {
    fn from(view: QueueView) -> Self {
        let QueueView { name, settings, rules, unreadable, .. } = view;
        let effective = EffectiveSettings {
            lease_ms: rules.lease_ms(&name),
            max_attempts: rules.max_attempts(&name),
            backoff: rules.backoff(&name),
            retain_done_ms: rules.retain_done_ms(&name).unwrap_or(0),
            retain_dead_ms: rules.retain_dead_ms(&name).unwrap_or(0),
            paused: rules.paused(&name),
        };
        Self { name, settings, effective, unreadable }
    }
}

/// Returns the queue with its version as the entity tag; to a caller without the scope `read`, which it is.
fn tagged(by: &Granted, view: QueueView) -> ApiResult<Response> {
    let tag = HeaderValue::try_from(format!("\"{}\"", view.version)).map_err(|_| {
        Problem::new(Code::Internal, "the version of the settings is not a valid header value")
    })?;
    let version = Some(view.version.clone());
    let queue = QueueResponse::from(view);
    let name = queue.name.to_string();
    let shown = if by.caller.has(Scope::Read) {
        Shown::Whole(Box::new(queue))
    } else {
        Shown::Identity(Identity { name, version })
    };
    Ok(([(header::ETAG, tag)], Json(shown)).into_response())
}

/// Queues.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueuesPage {
    /// The queues that have settings or jobs, by name.
    queues: Vec<QueueResponse>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the queues
#[utoipa::path(get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The queues that have settings or jobs", body = QueuesPage)))]
pub async fn list(State(queues): State<Queues>, by: Granted, query: Query) -> ApiResult<Json<QueuesPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let page = queues.list(query.cursor::<QueueName>()?.as_ref(), query.limit()?, &by.caller.reach()).await?;
    Ok(Json(QueuesPage {
        queues: page.items.into_iter().map(QueueResponse::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Get a queue
///
/// Queues need not be created: one without settings has the defaults.
#[utoipa::path(get, path = "/v1/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")),
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
    params(("queue" = String, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the settings")),
    request_body = QueueSettings,
    responses(
        (status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, Identity>,
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
#[utoipa::path(patch, path = "/v1/queues/{queue}", operation_id = "change_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the settings")),
    request_body = QueueSettings,
    responses(
        (status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, Identity>,
            headers(("ETag" = String, description = "The version of the settings, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn patch(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    Body(changes): Body<serde_json::Map<String, serde_json::Value>>,
) -> ApiResult<Response> {
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
    merge(&mut whole, changes);
    parse(&whole.to_string()).map_err(|error| error.under(""))
}

/// Applies a JSON merge patch (RFC 7396, section 2).
fn merge(target: &mut serde_json::Value, changes: &serde_json::Map<String, serde_json::Value>) {
    if !target.is_object() {
        *target = serde_json::Value::Object(serde_json::Map::new());
    }
    let Some(object) = target.as_object_mut() else {
        return;
    };
    for (name, change) in changes {
        match change {
            serde_json::Value::Null => drop(object.shift_remove(name)),
            serde_json::Value::Object(inner) => {
                merge(object.entry(name.clone()).or_insert(serde_json::Value::Null), inner);
            }
            value => drop(object.insert(name.clone(), value.clone())),
        }
    }
}

/// Delete a queue
///
/// Deletes a queue's settings. If the queue has jobs, it is deleted only with `force`, together with its jobs,
/// including reserved ones.
#[utoipa::path(delete, path = "/v1/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("force" = Option<bool>, Query, description = "Delete the queue's jobs as well"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the settings")),
    responses(
        (status = 204, description = "The queue is deleted"),
        (status = 409, description = "`queue-not-empty`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    query: Query,
) -> ApiResult<StatusCode> {
    let force = query.only(&["force"])?.force()?;
    queues.delete_queue(&queue, &precondition, force).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An empty object; the body may also be absent.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Pause a queue
///
/// Stops delivery from the queue. Pushes are still accepted, and waiting requests keep waiting.
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, Identity>)))]
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
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue after the call; without the scope `read` its name and version",
            body = Shown<QueueResponse, Identity>)))]
pub async fn resume(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    _: Body<Nothing>,
) -> ApiResult<Response> {
    tagged(&by, queues.pause(&queue, false).await?)
}

/// Which jobs to purge.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeRequest {
    /// The state of the jobs; reserved jobs cannot be purged.
    state: Visible,
    /// Only jobs from before this time: by `finished_at` for done and dead jobs, else by `created_at`.
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
}

/// Which dead jobs to redrive.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedriveRequest {
    /// Always `dead`.
    #[schema(value_type = Option<String>)]
    state: Option<Visible>,
    /// Only jobs that died at this time or later: by `finished_at` or, of those that were dead-lettered into the queue and did
    /// not die here again, by `dead_lettered_from.at`.
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Only jobs that died before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// The maximum number of jobs.
    #[schema(minimum = 1)]
    limit: Option<u64>,
}

/// Which done jobs to replay.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Only jobs that finished at this time or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Only jobs that finished before this time.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// The maximum number of jobs.
    #[schema(minimum = 1)]
    limit: Option<u64>,
}

/// How many jobs were affected.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AffectedResponse {
    /// How many jobs were affected.
    pub affected: u64,
}

/// Purge a queue
///
/// Removes the jobs that are in one state, each counted by one call. A job that was blocked by one that is removed stays.
#[utoipa::path(post, path = "/v1/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")), request_body = PurgeRequest,
    responses((status = 200, description = "How many jobs were removed", body = AffectedResponse)))]
pub async fn purge(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<PurgeRequest>,
) -> ApiResult<Json<AffectedResponse>> {
    let affected = queues.purge(&queue, request.state, request.before).await?;
    Ok(Json(AffectedResponse { affected }))
}

/// Redrive dead jobs
///
/// Makes the queue's dead jobs ready again, with their attempts reset, and returns the jobs that were dead-lettered
/// into it to their original queues, also those that died again here. Each job counts once. Jobs past their `expires_at`
/// are left where they are. A repeat with the same `Idempotency-Key` goes on where the first call was interrupted, and
/// returns the same number once that is over.
#[utoipa::path(post, path = "/v1/queues/{queue}/redrive", operation_id = "redrive_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = RedriveRequest,
    responses((status = 200, description = "How many jobs were redriven", body = AffectedResponse)))]
pub async fn redrive(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<RedriveRequest>,
) -> ApiResult<Json<AffectedResponse>> {
    if request.state.is_some_and(|state| state != Visible::Dead) {
        return Err(Problem::field("/state", "must be dead"));
    }
    let range = FinishedRange { from: request.from, to: request.to, limit: limit(request.limit)? };
    let affected = queues.redrive(&queue, range, &by.caller, key.as_ref()).await?;
    Ok(Json(AffectedResponse { affected }))
}

/// Replay finished jobs
///
/// Pushes copies of done jobs from the queue's history, which is not changed. Without `to`, all that was committed before
/// the call is repeated, and what the call itself pushes is not. A repeat with the same `Idempotency-Key` goes on
/// where the first call was interrupted, and returns the same number once that is over.
#[utoipa::path(post, path = "/v1/queues/{queue}/replay", operation_id = "replay_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    request_body = ReplayRequest,
    responses((status = 200, description = "How many jobs were pushed", body = AffectedResponse)))]
pub async fn replay(
    State(queues): State<Queues>,
    by: Granted,
    InQueue(queue): InQueue,
    Keyed { key, body: request, .. }: Keyed<ReplayRequest>,
) -> ApiResult<Json<AffectedResponse>> {
    let range = FinishedRange { from: request.from, to: request.to, limit: limit(request.limit)? };
    let affected = queues.replay(&queue, range, &by.caller, key.as_ref()).await?;
    Ok(Json(AffectedResponse { affected }))
}

fn limit(limit: Option<u64>) -> ApiResult<Option<u64>> {
    match limit {
        Some(0) => Err(Problem::field("/limit", "must be at least 1")),
        other => Ok(other),
    }
}
