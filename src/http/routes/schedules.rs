//! Schedules: cron rules that push jobs.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::queues::Nothing;
use crate::http::body::Body;
use crate::http::params::{Idempotency, IfMatch, Named, Query, cursor};
use crate::http::problem::{Answer, Code, Problem};
use crate::job::schedule::Skipped;
use crate::job::{JobId, Schedule, ScheduleName, ScheduleRule, ScheduleRun, Timestamp};
use crate::queue::Queues;

/// How many of the next occurrences are shown.
const NEXT_SHOWN: usize = 5;

/// A schedule, what it will do and what it did.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduleResponse {
    /// Its name.
    #[schema(value_type = String)]
    name: ScheduleName,
    /// What its owner has set.
    #[serde(flatten)]
    rule: ScheduleRule,
    /// The next five occurrences; none while it is paused.
    #[schema(value_type = Vec<String>)]
    next_runs: Vec<Timestamp>,
    /// The last ten runs, oldest first.
    last_runs: Vec<ScheduleRunResponse>,
}

/// What became of an occurrence, or of a run by hand.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ScheduleRunResponse {
    /// The occurrence, the first one where it stands for several; the moment of a run by hand.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// The job that was pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    job_id: Option<JobId>,
    /// Why none was: `overlap`, the job of an earlier run was still unfinished; `misfire`, nobody ran it in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<Skipped>,
    /// It stands for all occurrences that were missed from `at` on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    misfire: bool,
    /// Somebody asked for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    manual: bool,
}

impl From<Schedule> for ScheduleResponse {
    fn from(schedule: Schedule) -> Self {
        let next_runs = schedule.next_runs(NEXT_SHOWN);
        let Schedule { name, rule, last_runs, .. } = schedule;
        Self { name, rule, next_runs, last_runs: last_runs.into_iter().map(Into::into).collect() }
    }
}

impl From<ScheduleRun> for ScheduleRunResponse {
    fn from(run: ScheduleRun) -> Self {
        let ScheduleRun { at, job_id, skipped, misfire, manual, request: _ } = run;
        Self { at, job_id, skipped, misfire, manual }
    }
}

/// The schedule with its version as an entity tag.
fn tagged(schedule: Schedule) -> Answer<Response> {
    let tag = HeaderValue::try_from(format!("\"{}\"", schedule.version))
        .map_err(|_| Problem::new(Code::Internal, "the schedule has no valid version"))?;
    Ok(([(header::ETAG, tag)], Json(ScheduleResponse::from(schedule))).into_response())
}

/// Schedules.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SchedulesPage {
    /// The schedules, by name.
    schedules: Vec<ScheduleResponse>,
    /// Where the next page begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the schedules
#[utoipa::path(get, path = "/v1/schedules", operation_id = "list_schedules", tag = "schedules",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; 100 if absent"),
        ("cursor" = Option<String>, Query, description = "Where the page begins, from the page before")),
    responses((status = 200, description = "The schedules", body = SchedulesPage)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> Answer<Json<SchedulesPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let page = queues.schedules(query.cursor::<ScheduleName>()?.as_ref(), query.limit()?).await?;
    Ok(Json(SchedulesPage {
        schedules: page.items.into_iter().map(ScheduleResponse::from).collect(),
        cursor: page.next.as_ref().map(cursor),
    }))
}

/// Look at a schedule
///
/// Shows its rule, the next five occurrences, and the last ten runs with the jobs that they pushed.
#[utoipa::path(get, path = "/v1/schedules/{name}", operation_id = "get_schedule", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses(
        (status = 200, description = "The schedule", body = ScheduleResponse,
            headers(("ETag" = String, description = "The version of the rule, for If-Match; runs do not change it"))),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(State(queues): State<Queues>, Named(name): Named<ScheduleName>) -> Answer<Response> {
    tagged(queues.schedule(&name).await?)
}

/// Set a schedule
///
/// Makes a schedule, or replaces its rule; what is remembered of its runs stays. Each occurrence pushes one job,
/// however many servers run, also into a queue that is full. Its `run_at` is the occurrence and its `delay_ms`.
///
/// The local times of a rule without `*` in its seconds, minutes and hours come once a day: one that does not exist
/// because clocks are put forward comes when they are, one that exists twice comes the first time. A rule with a
/// `*` there is an interval: what does not exist is left out, what exists twice comes twice. Where both the day of
/// the month and the day of the week are given, either is enough.
///
/// An occurrence that no server ran within five seconds was missed: `misfire` says what happens to it, and to all
/// others that were missed with it.
#[utoipa::path(put, path = "/v1/schedules/{name}", operation_id = "set_schedule", tag = "schedules",
    params(("name" = String, Path, description = "The schedule"),
        ("If-Match" = Option<String>, Header, description = "The version that the rule must have; `*`: any")),
    request_body = ScheduleRule,
    responses(
        (status = 200, description = "The schedule as it is now", body = ScheduleResponse,
            headers(("ETag" = String, description = "The version of the rule, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn put(
    State(queues): State<Queues>,
    Named(name): Named<ScheduleName>,
    IfMatch(precondition): IfMatch,
    Body(rule): Body<ScheduleRule>,
) -> Answer<Response> {
    tagged(queues.set_schedule(&name, rule, &precondition).await?)
}

/// Delete a schedule
///
/// The jobs that it has pushed stay.
#[utoipa::path(delete, path = "/v1/schedules/{name}", operation_id = "delete_schedule", tag = "schedules",
    params(("name" = String, Path, description = "The schedule"),
        ("If-Match" = Option<String>, Header, description = "The version that the rule must have; `*`: any")),
    responses(
        (status = 204, description = "The schedule is gone"),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(
    State(queues): State<Queues>,
    Named(name): Named<ScheduleName>,
    IfMatch(precondition): IfMatch,
) -> Answer<StatusCode> {
    queues.delete_schedule(&name, &precondition).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Run a schedule now
///
/// Pushes its job at once, also while it is paused; the occurrences stay what they are. Where `overlap` is `skip`
/// and the job of the last run is unfinished, nothing is pushed and the answer says `skipped`. A repeat with the
/// same `Idempotency-Key` answers the first run for as long as that is among the last ten; without one it is
/// another run.
#[utoipa::path(post, path = "/v1/schedules/{name}/run", operation_id = "run_schedule", tag = "schedules",
    params(("name" = String, Path, description = "The schedule"),
        ("Idempotency-Key" = Option<String>, Header, description = "Your own name for this run")),
    responses(
        (status = 200, description = "The run", body = ScheduleRunResponse),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json")))]
pub async fn run(
    State(queues): State<Queues>,
    Named(name): Named<ScheduleName>,
    Idempotency(key): Idempotency,
    _: Body<Nothing>,
) -> Answer<Json<ScheduleRunResponse>> {
    Ok(Json(queues.run_schedule(&name, key.as_ref()).await?.into()))
}

/// Pause a schedule
///
/// It has no occurrences until it is resumed.
#[utoipa::path(post, path = "/v1/schedules/{name}/pause", operation_id = "pause_schedule", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses(
        (status = 200, description = "The schedule as it is now", body = ScheduleResponse),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json")))]
pub async fn pause(
    State(queues): State<Queues>,
    Named(name): Named<ScheduleName>,
    _: Body<Nothing>,
) -> Answer<Response> {
    tagged(queues.pause_schedule(&name, true).await?)
}

/// Resume a schedule
///
/// Its occurrences come again from now on; those of the pause were not missed, and are not made up for.
#[utoipa::path(post, path = "/v1/schedules/{name}/resume", operation_id = "resume_schedule", tag = "schedules",
    params(("name" = String, Path, description = "The schedule")),
    responses(
        (status = 200, description = "The schedule as it is now", body = ScheduleResponse),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json")))]
pub async fn resume(
    State(queues): State<Queues>,
    Named(name): Named<ScheduleName>,
    _: Body<Nothing>,
) -> Answer<Response> {
    tagged(queues.pause_schedule(&name, false).await?)
}
