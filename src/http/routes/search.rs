//! Searching jobs: in one queue, in all of them, of a worker; and the payload of one.

use std::str::FromStr;

use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;

use super::jobs::{JobsPage, UnreadableView};
use super::view::JobView;
use crate::http::access::Granted;
use crate::http::answer;
use crate::http::budget::Budget;
use crate::http::params::{InQueue, Named, OfJob, Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::filter::{ERROR_MAX, FIELDS_MAX};
use crate::job::names::{KEY_RULE, NAME_RULE};
use crate::job::{
    BatchId, Content, FieldIs, Filter, GroupName, HeaderIs, JobId, JobKey, QueueName, QueuePattern, Reach,
    Span, Timestamp, Visible, WorkerName,
};
use crate::queue::Queues;
use crate::store::search::SCANNED_MAX;
use crate::store::{ListedJob, Search, UnreadableJob, Weight as _};

const STATES: &str = "scheduled, ready, reserved, blocked, done, dead";
const ORDERS: &str = "oldest, newest";
const SHOWN: &str = "none, head, full";
/// How many characters of the name of a condition are repeated.
const NAME_SHOWN: usize = 64;
/// How much of a payload is its head, in bytes.
const HEAD_BYTES: usize = 1024;

/// The parameters of a filter.
const FILTER: [&str; 20] = [
    "state",
    "group",
    "key",
    "batch",
    "worker",
    "dead_lettered",
    "created_from",
    "created_before",
    "finished_from",
    "finished_before",
    "run_at_from",
    "run_at_before",
    "priority_min",
    "priority_max",
    "attempts_min",
    "attempts_max",
    "error",
    "error_group",
    "queue",
    "queue_prefix",
];
/// The parameters of what is shown of what a filter means.
const PAGE: [&str; 4] = ["order", "payload", "limit", "cursor"];

/// The bytes of a binary payload.
#[derive(Debug)]
pub struct RawPayload;

impl utoipa::PartialSchema for RawPayload {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        let binary = SchemaFormat::KnownFormat(KnownFormat::Binary);
        ObjectBuilder::new().schema_type(Type::String).format(Some(binary)).into()
    }
}

impl utoipa::ToSchema for RawPayload {}

/// The order of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SearchOrder)]
pub enum Order {
    /// What was pushed first comes first.
    Oldest,
    /// What was pushed last comes first.
    Newest,
}

/// How much of each payload is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = PayloadShown)]
pub enum PayloadShown {
    /// Nothing, nor of the result.
    None,
    /// All of a short payload; of a long one the beginning of its text.
    Head,
    /// All of it.
    Full,
}

/// The conditions that a search and the list of a queue have in common, and what is shown. This type describes them for the document;
/// `filter` reads them.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "it is a description")]
pub struct FilterParams {
    /// Only jobs in this state, or in one of these, with commas between them: `dead,done`. It may also be given several times.
    #[param(style = Form, explode = false)]
    state: Option<Vec<Visible>>,
    /// Only jobs of this group.
    group: Option<GroupName>,
    /// Only jobs with this key.
    key: Option<JobKey>,
    /// Only jobs of this batch.
    batch: Option<BatchId>,
    /// Only jobs that this worker reserved last.
    worker: Option<WorkerName>,
    /// Only jobs that were dead-lettered into their queue.
    dead_lettered: Option<bool>,
    /// Only jobs pushed at this time or later.
    created_from: Option<Timestamp>,
    /// Only jobs pushed before this time.
    created_before: Option<Timestamp>,
    /// Only jobs that were done or dead at this time or later.
    finished_from: Option<Timestamp>,
    /// Only jobs that were done or dead before this time.
    finished_before: Option<Timestamp>,
    /// Only jobs whose `run_at` is this time or later.
    run_at_from: Option<Timestamp>,
    /// Only jobs whose `run_at` is before this time.
    run_at_before: Option<Timestamp>,
    /// Only jobs of this priority or a higher one.
    priority_min: Option<i32>,
    /// Only jobs of this priority or a lower one.
    priority_max: Option<i32>,
    /// Only jobs delivered so often or more from their queue.
    attempts_min: Option<u32>,
    /// Only jobs delivered so often or less from their queue.
    attempts_max: Option<u32>,
    /// Only jobs whose last error has this text in it, as it is written.
    #[param(max_length = 512)]
    error: Option<String>,
    /// Only jobs whose last error is of this group, as `GET /v1/dead` names it; empty: those without an error.
    #[param(max_length = 512)]
    error_group: Option<String>,
    /// Which jobs come first. Default: `oldest`.
    order: Option<Order>,
    /// How much is shown of each payload. Default: `full`. A field of it is a condition: `payload.user.id=42`; so is a header:
    /// `headers.trace=abc`.
    payload: Option<PayloadShown>,
    /// 1 to 1000; default 100.
    limit: Option<usize>,
    /// The cursor of the previous page.
    cursor: Option<String>,
}

/// Reads the filter of a query, without its queues. Returns the other parameters.
fn filter(query: Query, known: &[&'static str], within: Reach) -> ApiResult<(Filter, Query)> {
    let (query, fields) = query.with_fields(known, "state")?;
    let times = |from, before| -> ApiResult<Span<Timestamp>> {
        span(before, Span { from: query.time(from)?, before: query.time(before)? })
    };
    let mut filter = Filter {
        within,
        states: states(&query)?,
        group: query.get("group", NAME_RULE)?,
        key: query.get("key", KEY_RULE)?,
        batch: query.get("batch", "the id of a batch")?,
        worker: query.get("worker", NAME_RULE)?,
        dead_lettered: query.get("dead_lettered", "true or false")?.unwrap_or(false),
        created: times("created_from", "created_before")?,
        finished: times("finished_from", "finished_before")?,
        run_at: times("run_at_from", "run_at_before")?,
        priority: numbers::<i32>(&query, "priority_min", "priority_max", "a whole number of 32 bits")?,
        attempts: numbers::<u32>(&query, "attempts_min", "attempts_max", "a whole number from 0 on")?,
        error: error_text(&query, "error")?,
        error_group: error_text(&query, "error_group")?,
        ..Filter::default()
    };
    if filter.error.as_ref().is_some_and(String::is_empty) {
        return Err(Problem::parameter("error", "must not be empty"));
    }
    for (name, value) in fields {
        let shown: String = name.chars().take(NAME_SHOWN).collect();
        let wrong = |rule: String| Problem::parameter(shown, rule);
        let (is_payload, path) = match (name.strip_prefix("payload."), name.strip_prefix("headers.")) {
            (Some(path), _) => (true, path),
            (_, path) => (false, path.unwrap_or_default()),
        };
        if is_payload {
            filter.payload.push(FieldIs::new(path, &value).map_err(wrong)?);
        } else {
            filter.headers.push(HeaderIs::new(path, &value).map_err(wrong)?);
        }
    }
    for (name, count) in [("payload", filter.payload.len()), ("headers", filter.headers.len())] {
        if count > FIELDS_MAX {
            return Err(Problem::parameter(name, format!("must be at most {FIELDS_MAX} conditions")));
        }
    }
    Ok((filter, query))
}

/// Returns the states that a query names.
pub fn states(query: &Query) -> ApiResult<Vec<Visible>> {
    let mut states: Vec<Visible> = Vec::new();
    for state in query.words("state", STATES)? {
        if states.contains(&state) {
            return Err(Problem::parameter("state", "must not have a state twice"));
        }
        states.push(state);
    }
    Ok(states)
}

fn error_text(query: &Query, name: &'static str) -> ApiResult<Option<String>> {
    let text: Option<String> = query.get(name, "a text")?;
    if text.as_ref().is_some_and(|text| text.len() > ERROR_MAX) {
        return Err(Problem::parameter(name, format!("must be at most {ERROR_MAX} bytes long")));
    }
    Ok(text)
}

/// Refuses a span that has nothing in it.
fn span<T: PartialOrd + Copy>(name: &'static str, span: Span<T>) -> ApiResult<Span<T>> {
    match span.is_empty() {
        true => Err(Problem::parameter(name, "leaves nothing between it and the beginning of its range")),
        false => Ok(span),
    }
}

fn numbers<T: FromStr + Into<i64>>(
    query: &Query,
    min: &'static str,
    max: &'static str,
    rule: &str,
) -> ApiResult<Span<i64>> {
    let from = query.get::<T>(min, rule)?.map(Into::into);
    let before = query.get::<T>(max, rule)?.map(|max| max.into() + 1);
    span(max, Span { from, before })
}

/// Returns the queues that a search is about, out of those of the caller.
pub fn within(query: &Query, by: &Granted) -> ApiResult<Reach> {
    let queue: Option<QueueName> = query.get("queue", NAME_RULE)?;
    let prefix: Option<String> = query.get("queue_prefix", NAME_RULE)?;
    let pattern = match (queue, prefix) {
        (Some(_), Some(_)) => {
            return Err(Problem::parameter("queue_prefix", "cannot be combined with queue"));
        }
        (Some(queue), None) => QueuePattern::One(queue),
        (None, Some(prefix)) => {
            let rule = || {
                Problem::parameter("queue_prefix", format!("must be the beginning of a name: {NAME_RULE}"))
            };
            format!("{prefix}*").parse().map_err(|_| rule())?
        }
        (None, None) => return Ok(by.caller.reach()),
    };
    match &pattern {
        QueuePattern::Prefix(prefix) if prefix.is_empty() => Ok(by.caller.reach()),
        _ => Ok(Reach::of(by.patterns(vec![pattern])?)),
    }
}

/// Answers a search.
async fn answered(queues: &Queues, budget: &Budget, filter: Filter, query: &Query) -> ApiResult<Response> {
    let order = query.word("order", ORDERS)?.unwrap_or(Order::Oldest);
    let shown = query.word("payload", SHOWN)?.unwrap_or(PayloadShown::Full);
    let ask = Search {
        filter,
        after: query.cursor::<JobId>()?,
        newest_first: order == Order::Newest,
        limit: query.limit()?,
        scanned_max: SCANNED_MAX,
        with_contents: shown != PayloadShown::None,
    };
    let turn = budget.page().await?;
    let sought = turn.during(queues.search(ask)).await?;
    let held = budget.take(sought.jobs.iter().map(ListedJob::weight).sum())?;
    drop(turn);
    let (rules, now) = (queues.rules(), queues.now()?);
    let (mut jobs, mut unreadable) = (Vec::with_capacity(sought.jobs.len()), Vec::new());
    for listed in sought.jobs {
        match listed {
            Ok(job) => jobs.push(cut(JobView::new(job, &rules, now), shown)),
            Err(UnreadableJob { id, why, remains }) => {
                let state = remains.map_or(Visible::Dead, |job| job.meta.visible(now));
                unreadable.push(UnreadableView { id, state, detail: why });
            }
        }
    }
    Ok(answer::page(jobs, unreadable, sought.scanned, sought.next.as_ref().map(cursor), held))
}

/// Leaves out what is not to be shown of a payload.
fn cut(mut job: JobView, shown: PayloadShown) -> JobView {
    if shown == PayloadShown::None {
        job.payload_omitted = true;
    }
    if shown != PayloadShown::Head {
        return job;
    }
    let bytes = job.payload_base64.as_ref().map_or(job.payload.as_str().len(), |base64| base64.0.len());
    if bytes > HEAD_BYTES {
        let text = job.payload.as_str();
        let mut end = HEAD_BYTES.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let is_text = job.payload_base64.take().is_none();
        job.payload_head = is_text.then(|| text[..end].to_owned());
        (job.payload_omitted, job.payload_bytes) = (true, Some(bytes as u64));
        job.payload = crate::job::Payload::null();
    }
    job
}

/// Search jobs
///
/// Returns the jobs of all queues that meet every condition, the oldest first or the newest. A search ends in time: it looks at a bounded
/// number of jobs (`scanned`), and where `complete` is `false` goes on with the `cursor`, also if it has found nothing yet. Jobs that come
/// or go meanwhile neither shift nor repeat what is found. `payload.` before a path is a condition on a field of the payload
/// (`payload.user.id=42`), `headers.` before a name one on a header: the value is read as JSON, else as a text. Up to 16 of each.
#[utoipa::path(get, path = "/v1/jobs", operation_id = "search_jobs", tag = "jobs",
    params(("queue" = Option<QueueName>, Query, description = "Only jobs in this queue"),
        ("queue_prefix" = Option<String>, Query, max_length = 128, description = "Only jobs in queues whose names begin so"),
        FilterParams),
    responses((status = 200, description = "Jobs, by the time of their push", body = JobsPage)))]
pub async fn search(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    query: Query,
) -> ApiResult<Response> {
    let known: Vec<&str> = FILTER.into_iter().chain(PAGE).collect();
    let (filter, query) = filter(query, &known, Reach::default())?;
    let within = within(&query, &by)?;
    answered(&queues, &budget, Filter { within, ..filter }, &query).await
}

/// Browse a queue
///
/// A search of one queue.
#[utoipa::path(get, path = "/v1/queues/{queue}/jobs", operation_id = "list_jobs", tag = "jobs",
    params(("queue" = QueueName, Path, description = "The queue"), FilterParams),
    responses((status = 200, description = "Jobs, by the time of their push", body = JobsPage)))]
pub async fn browse(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    InQueue(queue): InQueue,
    query: Query,
) -> ApiResult<Response> {
    let known: Vec<&str> = FILTER.into_iter().filter(|name| !name.starts_with("queue")).chain(PAGE).collect();
    let (filter, query) = filter(query, &known, Reach::one(&queue))?;
    answered(&queues, &budget, filter, &query).await
}

/// List the jobs of a worker
///
/// Returns the jobs that the worker holds.
#[utoipa::path(get, path = "/v1/workers/{name}/jobs", operation_id = "list_worker_jobs", tag = "workers",
    params(("name" = WorkerName, Path, description = "The worker"),
        ("order" = Option<Order>, Query, description = "Which jobs come first. Default: `oldest`."),
        ("payload" = Option<PayloadShown>, Query, description = "How much is shown of each payload. Default: `full`."),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "Jobs, by the time of their push", body = JobsPage)))]
pub async fn of_worker(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    Named(name): Named<WorkerName>,
    query: Query,
) -> ApiResult<Response> {
    by.name("worker", name.as_str())?;
    let query = query.only(&PAGE)?;
    let (worker, states, within) = (Some(name), vec![Visible::Reserved], by.caller.reach());
    answered(&queues, &budget, Filter { worker, states, within, ..Filter::default() }, &query).await
}

/// Get the payload of a job
///
/// Returns its bytes as they are: JSON as `application/json`, a binary payload under its media type, unless a browser could run that.
#[utoipa::path(get, path = "/v1/jobs/{id}/payload", operation_id = "get_job_payload", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The payload, with the media type that it was pushed with",
            content((serde_json::Value = "application/json"), (RawPayload = "application/octet-stream"))),
        (status = 404, description = "`unknown-job`", body = Problem, content_type = "application/problem+json")))]
pub async fn payload(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    OfJob(id): OfJob,
    query: Query,
) -> ApiResult<Response> {
    query.only(&[])?;
    budget.check()?;
    let job = queues.job(&id, &by.caller.reach()).await?;
    let job = job.map_err(|unreadable| by.unreadable(&id, &unreadable.why))?;
    by.job(&job)?;
    let (media, bytes) = match job.payload {
        Content::Json(payload) => ("application/json".to_owned(), payload.as_str().to_owned().into()),
        Content::Binary(binary) => (served_as(binary.media_type.as_str()).to_owned(), binary.bytes),
    };
    let fallback = HeaderValue::from_static(BYTES);
    let media = HeaderValue::from_str(&media).unwrap_or(fallback);
    let attachment = HeaderValue::from_static("attachment");
    let headers = [(header::CONTENT_TYPE, media), (header::CONTENT_DISPOSITION, attachment)];
    Ok((headers, axum::body::Body::from(bytes)).into_response())
}

const BYTES: &str = "application/octet-stream";

/// Returns the media type under which bytes are served that a producer says are of this one: what a browser could run, or show as a page,
/// is bytes, besides being an attachment under a policy that allows nothing.
fn served_as(media: &str) -> &str {
    let lower = media.to_ascii_lowercase();
    let is_active =
        ["html", "xml", "svg", "script", "multipart/", "pdf"].iter().any(|part| lower.contains(part));
    if is_active { BYTES } else { media }
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema as _;

    use super::FILTER;
    use crate::job::bulk::BulkFilter;

    #[test]
    fn an_operation_takes_each_condition_of_a_search() {
        let schema = serde_json::to_value(BulkFilter::schema()).unwrap();
        for name in FILTER.into_iter().chain(["states", "payload", "headers"]) {
            assert!(schema["properties"].get(name).is_some(), "{name}: {schema}");
        }
    }
}
