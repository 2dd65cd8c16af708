//! Queues: settings, pause and resume, and what is done to many jobs at once.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::http::body::{Body, parse};
use crate::http::params::{IfMatch, InQueue, Query, cursor};
use crate::http::problem::{Answer, Code, Problem};
use crate::job::{Backoff, QueueName, QueueSettings, Timestamp, Visible};
use crate::queue::{Error, QueueView, Queues, ReplayRange};

/// A queue and its settings.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueueResponse {
    /// Its name.
    #[schema(value_type = String)]
    name: QueueName,
    /// What its owner has set.
    #[serde(flatten)]
    settings: QueueSettings,
    /// What holds, set or not.
    effective: EffectiveSettings,
}

/// What holds for a queue, set or not.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct EffectiveSettings {
    /// How long a reservation lasts when the reserve does not say.
    lease_ms: u64,
    /// How often a job is delivered before it is dead, when the job does not say.
    max_attempts: u32,
    /// How long a rolled back job waits, when the job does not say.
    backoff: Backoff,
    /// How long finished jobs are kept; 0: not at all.
    retain_done_ms: u64,
    /// How long dead jobs are kept; 0: until somebody takes them away.
    retain_dead_ms: u64,
    /// Whether delivery is stopped.
    paused: bool,
}

impl From<QueueView> for QueueResponse {
    fn from(view: QueueView) -> Self {
        let QueueView { name, settings, rules, .. } = view;
        let effective = EffectiveSettings {
            lease_ms: rules.lease_ms(&name),
            max_attempts: rules.max_attempts(&name),
            backoff: rules.backoff(&name),
            retain_done_ms: rules.retain_done_ms(&name).unwrap_or(0),
            retain_dead_ms: rules.retain_dead_ms(&name).unwrap_or(0),
            paused: rules.paused(&name),
        };
        Self { name, settings, effective }
    }
}

/// The queue with its version as an entity tag.
fn tagged(view: QueueView) -> Answer<Response> {
    let tag = HeaderValue::try_from(format!("\"{}\"", view.version))
        .map_err(|_| Problem::new(Code::Internal, "the settings have no valid version"))?;
    Ok(([(header::ETAG, tag)], Json(QueueResponse::from(view))).into_response())
}

/// Queues.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueuesPage {
    /// The queues that have settings or jobs, by name.
    queues: Vec<QueueResponse>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the queues
#[utoipa::path(get, path = "/v1/queues", operation_id = "list_queues", tag = "queues",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; 100 if absent"),
        ("cursor" = Option<String>, Query, description = "Where the page begins, from the page before")),
    responses((status = 200, description = "The queues that have settings or jobs", body = QueuesPage)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> Answer<Json<QueuesPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let page = queues.list(query.cursor::<QueueName>()?.as_ref(), query.limit()?).await?;
    Ok(Json(QueuesPage {
        queues: page.items.into_iter().map(QueueResponse::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Look at a queue
///
/// A queue exists as soon as it is named: one without settings has the defaults.
#[utoipa::path(get, path = "/v1/queues/{queue}", operation_id = "get_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue", body = QueueResponse,
        headers(("ETag" = String, description = "The version of the settings, for If-Match")))))]
pub async fn get(State(queues): State<Queues>, InQueue(queue): InQueue) -> Answer<Response> {
    tagged(queues.queue(&queue).await?)
}

/// Set a queue's settings
///
/// Replaces all settings: what is absent falls back on the defaults. Settings apply when they are used,
/// also to jobs that were pushed before.
#[utoipa::path(put, path = "/v1/queues/{queue}", operation_id = "set_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The version that the settings must have")),
    request_body = QueueSettings,
    responses(
        (status = 200, description = "The queue as it is now", body = QueueResponse,
            headers(("ETag" = String, description = "The version of the settings, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn put(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    Body(settings): Body<QueueSettings>,
) -> Answer<Response> {
    tagged(queues.configure(&queue, settings, &precondition).await?)
}

/// Change a queue's settings
///
/// A JSON merge patch (RFC 7396): what is absent stays, and null falls back on the default.
#[utoipa::path(patch, path = "/v1/queues/{queue}", operation_id = "change_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("If-Match" = Option<String>, Header, description = "The version that the settings must have")),
    request_body = QueueSettings,
    responses(
        (status = 200, description = "The queue as it is now", body = QueueResponse,
            headers(("ETag" = String, description = "The version of the settings, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn patch(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    Body(changes): Body<serde_json::Map<String, serde_json::Value>>,
) -> Answer<Response> {
    let merge = |settings: QueueSettings| merged(settings, &changes).map_err(invalid);
    tagged(queues.reconfigure(&queue, &precondition, merge).await?)
}

fn merged(
    settings: QueueSettings,
    changes: &serde_json::Map<String, serde_json::Value>,
) -> Result<QueueSettings, Problem> {
    let mut whole = serde_json::to_value(&settings).unwrap_or_default();
    merge(&mut whole, changes);
    parse(&whole.to_string())
}

/// RFC 7396, section 2.
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
/// Removes a queue's settings. A queue that has jobs is only deleted with `force`, and its jobs with it,
/// also those that workers hold.
#[utoipa::path(delete, path = "/v1/queues/{queue}", operation_id = "delete_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue"),
        ("force" = Option<bool>, Query, description = "Delete the queue's jobs as well"),
        ("If-Match" = Option<String>, Header, description = "The version that the settings must have")),
    responses(
        (status = 204, description = "The queue has no settings any more"),
        (status = 409, description = "`queue-not-empty`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    IfMatch(precondition): IfMatch,
    query: Query,
) -> Answer<StatusCode> {
    let force = query.only(&["force"])?.force()?;
    queues.delete_queue(&queue, &precondition, force).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Nothing needs to be said.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Pause a queue
///
/// Stops delivery from the queue; pushes go on, and whoever waits goes on waiting.
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", operation_id = "pause_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue as it is now", body = QueueResponse)))]
pub async fn pause(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    _: Body<Nothing>,
) -> Answer<Response> {
    tagged(queues.pause(&queue, true).await?)
}

/// Resume a queue
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", operation_id = "resume_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "The queue as it is now", body = QueueResponse)))]
pub async fn resume(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    _: Body<Nothing>,
) -> Answer<Response> {
    tagged(queues.pause(&queue, false).await?)
}

/// Jobs to take away.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PurgeRequest {
    /// Only jobs in this state; reserved ones cannot be purged.
    state: Visible,
    /// Only jobs from before this moment: by `finished_at` in history and among the dead, else by `created_at`.
    #[schema(value_type = Option<String>, format = DateTime)]
    before: Option<Timestamp>,
}

/// Dead jobs that get another chance.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RedriveRequest {
    /// Always `dead`.
    #[schema(value_type = Option<String>)]
    state: Option<Visible>,
    /// The most jobs.
    #[schema(minimum = 1)]
    limit: Option<u64>,
}

/// Finished jobs to repeat.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// Finished at this moment or later.
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    /// Finished before this moment.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// The most jobs.
    #[schema(minimum = 1)]
    limit: Option<u64>,
}

/// How many jobs it was.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AffectedResponse {
    /// How many jobs it was.
    pub affected: u64,
}

/// Purge a queue
///
/// Takes away the jobs that are in one state.
#[utoipa::path(post, path = "/v1/queues/{queue}/purge", operation_id = "purge_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")), request_body = PurgeRequest,
    responses((status = 200, description = "How many jobs were taken away", body = AffectedResponse)))]
pub async fn purge(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<PurgeRequest>,
) -> Answer<Json<AffectedResponse>> {
    let affected = queues.purge(&queue, request.state, request.before).await?;
    Ok(Json(AffectedResponse { affected }))
}

/// Redrive dead jobs
///
/// Gives the queue's dead jobs another chance, their attempts starting again, and returns those that were
/// dead-lettered into it to the queues that they came from.
#[utoipa::path(post, path = "/v1/queues/{queue}/redrive", operation_id = "redrive_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")), request_body = RedriveRequest,
    responses((status = 200, description = "How many jobs got another chance", body = AffectedResponse)))]
pub async fn redrive(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<RedriveRequest>,
) -> Answer<Json<AffectedResponse>> {
    if request.state.is_some_and(|state| state != Visible::Dead) {
        return Err(Problem::field("/state", "must be dead"));
    }
    let affected = queues.redrive(&queue, limit(request.limit)?).await?;
    Ok(Json(AffectedResponse { affected }))
}

/// Replay finished jobs
///
/// Pushes copies of finished jobs from the queue's history, which stays as it is.
#[utoipa::path(post, path = "/v1/queues/{queue}/replay", operation_id = "replay_queue", tag = "queues",
    params(("queue" = String, Path, description = "The queue")), request_body = ReplayRequest,
    responses((status = 200, description = "How many jobs were pushed again", body = AffectedResponse)))]
pub async fn replay(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    Body(request): Body<ReplayRequest>,
) -> Answer<Json<AffectedResponse>> {
    let range = ReplayRange { from: request.from, to: request.to, limit: limit(request.limit)? };
    let affected = queues.replay(&queue, range).await?;
    Ok(Json(AffectedResponse { affected }))
}

fn limit(limit: Option<u64>) -> Answer<Option<u64>> {
    match limit {
        Some(0) => Err(Problem::field("/limit", "must be at least 1")),
        other => Ok(other),
    }
}

/// A problem that a change of settings meets half-way, as the inside knows it.
fn invalid(problem: Problem) -> Error {
    problem.into_invalid()
}
