//! Schedules: cron rules that push jobs.

use crate::http::json::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::queues::Nothing;
use super::view::{Deleted, Identity, Shown};
use crate::http::access::Granted;
use crate::http::body::Body;
use crate::http::budget::Budget;
use crate::http::keyed::{Answer, Keyed, kept, recalled, render, respond};
use crate::http::params::{IfMatch, Named, Query, cursor};
use crate::http::problem::{ApiResult, Code, Problem};
use crate::job::schedule::Skipped;
use crate::job::{JobId, Schedule, ScheduleName, ScheduleRule, ScheduleRun, Scope, Timestamp};
use crate::queue::{CallOutcome, Precondition, Queues};

/// How many of the next occurrences are shown.
const NEXT_SHOWN: usize = 5;

/// A schedule with its next and last runs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Schedule)]
pub struct ScheduleResponse {
    /// Its name.
    name: ScheduleName,
    /// The version of its rule, as in the entity tag; runs do not change it.
    version: String,
    /// The rule.
    #[serde(flatten)]
    rule: ScheduleRule,
    /// The next five occurrences; empty while it is paused.
    next_runs: Vec<Timestamp>,
    /// The last ten runs, oldest first.
    last_runs: Vec<ScheduleRunResponse>,
}

/// A run: of an occurrence, or a manual one.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = ScheduleRun)]
pub struct ScheduleRunResponse {
    /// The time of the occurrence (the first one if the run stands for several) or of the manual run.
    at: Timestamp,
    /// The job that was pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<JobId>,
    /// Why no job was pushed: `overlap`, the job of an earlier run was unfinished; `misfire`, no server ran it in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<Skipped>,
    /// The run stands for all occurrences that were missed from `at` on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    misfire: bool,
    /// The run was requested by a client.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    manual: bool,
}

impl From<Schedule> for ScheduleResponse {
    fn from(schedule: Schedule) -> Self {
        let next_runs = schedule.next_runs(NEXT_SHOWN);
        let Schedule { name, rule, last_runs, version, .. } = schedule;
        Self { name, version, rule, next_runs, last_runs: last_runs.into_iter().map(Into::into).collect() }
    }
}

impl From<ScheduleRun> for ScheduleRunResponse {
    fn from(run: ScheduleRun) -> Self {
        let ScheduleRun { at, job_id, skipped, misfire, manual, request: _ } = run;
        Self { at, job_id, skipped, misfire, manual }
    }
}

/// Returns the schedule with its version as the entity tag; to a caller without the scope `read`, which it is.
fn tagged(by: &Granted, schedule: Schedule) -> ApiResult<Response> {
    let tag = HeaderValue::try_from(format!("\"{}\"", schedule.version)).map_err(|_| {
        Problem::new(Code::Internal, "the version of the schedule is not a valid header value")
    })?;
    let identity = Identity { name: schedule.name.to_string(), version: Some(schedule.version.clone()) };
    let shown = match by.caller.has(Scope::Read) {
        true => Shown::Whole(Box::new(ScheduleResponse::from(schedule))),
        false => Shown::Identity(identity),
    };
    Ok(([(header::ETAG, tag)], Json(shown)).into_response())
}

/// A schedule that cannot be read.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct UnreadableSchedule {
    /// Its name.
    name: ScheduleName,
    /// What is wrong with it.
    detail: String,
}

/// Schedules.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SchedulesPage {
    /// The schedules, by name.
    schedules: Vec<ScheduleResponse>,
    /// Those that cannot be read, because another program wrote them. They do not run; `PUT` replaces one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<UnreadableSchedule>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the schedules
#[utoipa::path(get, path = "/v1/schedules", operation_id = "list_schedules", tag = "schedules",
    params(("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The schedules", body = SchedulesPage)))]
pub async fn list(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<SchedulesPage>> {
    let query = query.only(&["limit", "cursor"])?;
    let turn = budget.page().await?;
    let (after, limit, within) = (query.cursor::<ScheduleName>()?, query.limit()?, by.caller.reach());
    let page = turn.during(queues.schedules(after.as_ref(), limit, &within)).await?;
    let mut response = SchedulesPage {
        schedules: Vec::new(),
        unreadable: Vec::new(),
        cursor: page.next.as_ref().map(cursor),
    };
    for listed in page.items {
        match listed {
            Ok(schedule) => response.schedules.push(schedule.into()),
            Err((name, detail)) => response.unreadable.push(UnreadableSchedule { name, detail }),
        }
    }
    Ok(Json(response))
}

/// Get a schedule
///
/// Returns its rule, the next five occurrences, and the last ten runs with the jobs that they pushed.
#[utoipa::path(get, path = "/v1/schedules/{name}", operation_id = "get_schedule", tag = "schedules",
    params(("name" = ScheduleName, Path, description = "The schedule")),
    responses(
        (status = 200, description = "The schedule", body = ScheduleResponse,
            headers(("ETag" = String, description = "The version of the rule, for If-Match; runs do not change it"))),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json")))]
pub async fn get(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<ScheduleName>,
) -> ApiResult<Response> {
    let schedule = by.schedule(&queues, &name).await?;
    tagged(&by, schedule)
}

/// Set a schedule
///
/// Creates a schedule or replaces its rule; the record of its runs is kept. Each occurrence pushes exactly one job,
/// however many servers run, also into a full queue. The job's `run_at` is the occurrence plus its `delay_ms`.
///
/// Daylight saving time: a rule without `*` in its seconds, minutes and hours names times of day, each of which occurs
/// once a day. A local time that is skipped when clocks are put forward occurs at that moment; one that exists twice
/// occurs the first time. A rule with a `*` there is an interval: a skipped time is left out, and one that exists
/// twice occurs twice. If both the day of the month and the day of the week are given, a day that matches either one
/// is enough.
///
/// An occurrence that no server ran within five seconds is missed: `misfire` determines what happens to it and to all
/// others that were missed with it.
#[utoipa::path(put, path = "/v1/schedules/{name}", operation_id = "set_schedule", tag = "schedules",
    params(("name" = ScheduleName, Path, description = "The schedule"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the rule; `*`: any")),
    request_body = ScheduleRule,
    responses(
        (status = 200, description = "The schedule after the call; without the scope `read` its name and version",
            body = Shown<ScheduleResponse, Identity>,
            headers(("ETag" = String, description = "The version of the rule, for If-Match"))),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn put(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    Named(name): Named<ScheduleName>,
    IfMatch(precondition): IfMatch,
    Body(rule): Body<ScheduleRule>,
) -> ApiResult<Response> {
    budget.check()?; // the schedule is shown whole
    by.rule(&rule)?;
    let precondition = by.schedule_to_set(&queues, &name, precondition).await?;
    tagged(&by, queues.set_schedule(&name, rule, &precondition).await?)
}

/// Delete a schedule
///
/// Jobs that it has pushed are not affected.
#[utoipa::path(delete, path = "/v1/schedules/{name}", operation_id = "delete_schedule", tag = "schedules",
    params(("name" = ScheduleName, Path, description = "The schedule"),
        ("If-Match" = Option<String>, Header, description = "The expected version of the rule; `*`: any")),
    responses(
        (status = 200, description = "The schedule is deleted", body = Deleted),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`", body = Problem, content_type = "application/problem+json")))]
pub async fn delete(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<ScheduleName>,
    IfMatch(precondition): IfMatch,
) -> ApiResult<Json<Deleted>> {
    let precondition = by.schedule_to_change(&queues, &name, precondition).await?;
    queues.delete_schedule(&name, &precondition).await?;
    Ok(Json(Deleted { deleted: true }))
}

/// Run a schedule now
///
/// Pushes its job at once, also while it is paused; the next occurrences are not affected. If `overlap` is `skip`
/// and the job of the last run is unfinished, nothing is pushed and the response has `skipped`. A retry with the same
/// `Idempotency-Key` returns the first run; without a key it is another run.
#[utoipa::path(post, path = "/v1/schedules/{name}/run", operation_id = "run_schedule", tag = "schedules",
    params(("name" = ScheduleName, Path, description = "The schedule"),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes the call safe to repeat: the response of the first one is sent again")),
    responses(
        (status = 200, description = "The run", body = ScheduleRunResponse),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`: by another call, while the key was judged", body = Problem, content_type = "application/problem+json")))]
pub async fn run(
    State(queues): State<Queues>,
    by: Granted,
    Named(name): Named<ScheduleName>,
    Keyed { key, sent, .. }: Keyed<Nothing>,
) -> ApiResult<Response> {
    if let Some(response) = recalled(&queues, key.as_ref()).await? {
        return Ok(response);
    }
    let precondition = by.schedule_to_start(&queues, &name).await?;
    let render =
        render(|run: &ScheduleRun| Answer::new(StatusCode::OK, &ScheduleRunResponse::from(run.clone())));
    let told = match (&key, &sent) {
        (Some(key), Some(sent)) => {
            queues.run_schedule_once(&name, (key, sent), precondition, kept(&render)).await?
        }
        _ => CallOutcome::Plain(queues.run_schedule(&name, precondition).await?),
    };
    respond(told, &render)
}

/// Pause a schedule
///
/// A paused schedule has no occurrences until it is resumed.
#[utoipa::path(post, path = "/v1/schedules/{name}/pause", operation_id = "pause_schedule", tag = "schedules",
    params(("name" = ScheduleName, Path, description = "The schedule")),
    responses(
        (status = 200, description = "The schedule after the call; without the scope `read` its name and version",
            body = Shown<ScheduleResponse, Identity>,
            headers(("ETag" = String, description = "The version of the rule"))),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`: by another call, while the key was judged", body = Problem, content_type = "application/problem+json")))]
pub async fn pause(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    Named(name): Named<ScheduleName>,
    _: Body<Nothing>,
) -> ApiResult<Response> {
    budget.check()?; // the schedule is shown whole
    let precondition = by.schedule_to_change(&queues, &name, Precondition::None).await?;
    tagged(&by, queues.pause_schedule(&name, true, &precondition).await?)
}

/// Resume a schedule
///
/// Occurrences start again from now on; those during the pause are skipped, not missed. With a key that is limited to queues, the call
/// is refused (412) where another one changes the rule meanwhile: send it again.
#[utoipa::path(post, path = "/v1/schedules/{name}/resume", operation_id = "resume_schedule", tag = "schedules",
    params(("name" = ScheduleName, Path, description = "The schedule")),
    responses(
        (status = 200, description = "The schedule after the call; without the scope `read` its name and version",
            body = Shown<ScheduleResponse, Identity>,
            headers(("ETag" = String, description = "The version of the rule"))),
        (status = 404, description = "`unknown-schedule`", body = Problem, content_type = "application/problem+json"),
        (status = 412, description = "`settings-changed`: by another call, while the key was judged", body = Problem, content_type = "application/problem+json")))]
pub async fn resume(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    Named(name): Named<ScheduleName>,
    _: Body<Nothing>,
) -> ApiResult<Response> {
    budget.check()?; // the schedule is shown whole
    let precondition = by.schedule_to_start(&queues, &name).await?;
    tagged(&by, queues.pause_schedule(&name, false, &precondition).await?)
}
