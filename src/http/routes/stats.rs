//! Figures for operators.

use std::collections::BTreeMap;

use crate::http::json::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::openapi::{ObjectBuilder, Type};

use crate::background::TaskStatus;
use crate::http::AppState;
use crate::http::params::{InQueue, Query};
use crate::http::problem::ApiResult;
use crate::job::{QueueName, Timestamp};
use crate::queue::flows::Percentiles;
use crate::queue::meter::Event;
use crate::queue::{Attention, Figures, QueueFigures, Queues, TotalLoad};
use crate::store::{Counts, Load};

/// How many jobs are in each state, about a second ago, longer where counting takes long; with `exact=true` now.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = JobCounts)]
pub struct CountsView {
    /// Ready for delivery.
    ready: u64,
    /// Waiting for their `run_at`.
    scheduled: u64,
    /// Reserved by workers.
    reserved: u64,
    /// Waiting for their group or a semaphore.
    blocked: u64,
    /// Out of attempts.
    dead: u64,
    /// Kept as history.
    done: u64,
}

impl From<Counts> for CountsView {
    fn from(counts: Counts) -> Self {
        let Counts { ready, scheduled, reserved, blocked, dead, done } = counts;
        Self { ready, scheduled, reserved, blocked, dead, done }
    }
}

/// Percentiles of a duration over the last minute, in milliseconds, at most 6.25 % (a sixteenth) off.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Percentiles)]
pub struct PercentilesView {
    p50: u64,
    p95: u64,
    p99: u64,
}

impl From<Percentiles> for PercentilesView {
    fn from(Percentiles { p50, p95, p99 }: Percentiles) -> Self {
        Self { p50, p95, p99 }
    }
}

/// The schema of the rates: one for each event.
struct EventRates;

impl utoipa::PartialSchema for EventRates {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        let rate = || ObjectBuilder::new().schema_type(Type::Number).minimum(Some(0));
        let rates = ObjectBuilder::new().schema_type(Type::Object).description(Some("Events per second."));
        let add = |rates: ObjectBuilder, event: &Event| {
            rates.property(event.as_str(), rate()).required(event.as_str())
        };
        Event::ALL.iter().fold(rates, add).into()
    }
}

impl utoipa::ToSchema for EventRates {}

/// Figures of one queue, or of all of them together.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Figures)]
pub struct FiguresView {
    /// How many jobs are in each state.
    counts: CountsView,
    /// With very many scheduled jobs, those that became due a moment ago may still be counted as `scheduled`; the
    /// sum of `ready` and `scheduled` is exact.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    split_is_approximate: bool,
    /// The age of the oldest ready job, in milliseconds. With many busy queues it may be that of a job that was
    /// reserved a few seconds ago; of all queues together, it is the oldest of those with the most unfinished jobs
    /// (a thousand, or `limits.metrics_queues`).
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_age_ms: Option<u64>,
    /// Whether that job was looked up more than 30 s ago, and its queue has changed since: it may be another one by now. Absent where it
    /// was not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oldest_is_approximate: bool,
    /// Events on all servers per second, over `rates_over_ms`: `pushed`, `reserved`, `committed`, `rolled_back`, `moved`, `lapsed`,
    /// `expired`, `dead`, `cancelled`. What happened on another server is in them within twenty seconds.
    #[schema(value_type = EventRates)]
    rates_per_s: BTreeMap<&'static str, f64>,
    /// How much of the last minute was seen, in milliseconds, by the server that saw most of it. What happened on each is divided by
    /// how much of it that one saw, a second at least.
    rates_over_ms: u64,
    /// Whether more than `limits.series_queues` (20,000) queues moved on one server within a second, so that some of what happened is in the total
    /// only, and not in the figures of its queue.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    rates_are_partial: bool,
    /// The time from due to delivery, on all servers; absent where nothing was delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_time_ms: Option<PercentilesView>,
    /// The time from delivery to commit, on all servers; absent where nothing was committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_time_ms: Option<PercentilesView>,
    /// The calls that wait for jobs.
    waiting: WaitingView,
}

/// Rounds a rate to thousandths.
pub fn rounded(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

/// The calls that wait for jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = WaitingCalls)]
pub struct WaitingView {
    /// How many wait on this server.
    pub here: u64,
    /// Whether any wait on other servers, which is known within some seconds.
    pub elsewhere: bool,
}

impl From<Figures> for FiguresView {
    fn from(figures: Figures) -> Self {
        let rates =
            Event::ALL.iter().zip(figures.flow.rates).map(|(event, rate)| (event.as_str(), rounded(rate)));
        Self {
            counts: figures.counts.into(),
            split_is_approximate: figures.split_is_approximate,
            oldest_ready_age_ms: figures.oldest_ready_age_ms,
            oldest_is_approximate: figures.oldest_is_approximate,
            rates_per_s: rates.collect(),
            rates_over_ms: figures.flow.over_ms,
            rates_are_partial: figures.flow.is_partial,
            queue_time_ms: figures.flow.queue_time.map(Into::into),
            run_time_ms: figures.flow.run_time.map(Into::into),
            waiting: WaitingView { here: figures.waiting_here, elsewhere: figures.waiting_elsewhere },
        }
    }
}

/// The figures of a queue.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct QueueStats {
    /// The queue.
    queue: QueueName,
    /// Whether delivery is stopped.
    paused: bool,
    /// When the next scheduled job comes due; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_due_at: Option<Timestamp>,
    #[serde(flatten)]
    figures: FiguresView,
    #[serde(flatten)]
    load: LoadView,
    /// How many named workers hold jobs of the queue.
    workers: u64,
    /// Why the queue needs attention, the most urgent reason first; empty where it needs none.
    attention: Vec<Attention>,
    /// Whether that may not be all: what holds its blocked jobs, since when its oldest job has been ready, or what happened in it is not
    /// known yet. Absent where it is.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    attention_is_partial: bool,
}

/// What is tried again and what workers hold, in a queue.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Load)]
pub struct LoadView {
    /// How many of the scheduled jobs wait to be tried again: they were delivered before.
    backoff: u64,
    /// The age of the oldest ready job that was never delivered, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_first_attempt_age_ms: Option<u64>,
    /// The age of the oldest ready job that was delivered before, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_retry_age_ms: Option<u64>,
    /// For how long workers have held the reserved jobs.
    reserved_for: ReservedFor,
    /// Whether the queue has so many jobs that these figures, and `workers`, are of a part of them: of the first 10,000 ready, scheduled and
    /// reserved ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_partial: bool,
}

impl LoadView {
    /// Ages are from this moment.
    fn new(load: &Load, at: Timestamp) -> Self {
        let age = |oldest: Option<Timestamp>| oldest.map(|oldest| at.ms_since(oldest));
        let [under_1_minute, under_10_minutes, under_1_hour, longer] = load.reserved;
        Self {
            backoff: load.backoff,
            oldest_first_attempt_age_ms: age(load.oldest_first),
            oldest_retry_age_ms: age(load.oldest_retried),
            reserved_for: ReservedFor { under_1_minute, under_10_minutes, under_1_hour, longer },
            is_partial: load.is_partial || load.ages_are_partial,
        }
    }
}

/// What is tried again and what workers hold, in all queues together. It is read from the jobs, and may be about twenty times as old as
/// reading it takes, twenty seconds at most. Absent where it could not be read in time.
#[derive(Debug, Default, Serialize, utoipa::ToSchema)]
#[schema(as = TotalLoad)]
pub struct TotalLoadView {
    /// How many of the scheduled jobs wait to be tried again: they were delivered before. Absent where that could not be read in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<u64>,
    /// The age of the oldest ready job that was never delivered, in milliseconds, of the 20 queues whose oldest ready jobs are the oldest.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_first_attempt_age_ms: Option<u64>,
    /// The same of those that were delivered before.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_retry_age_ms: Option<u64>,
    /// Whether there may be older ones than these two, or one where there is none: in another queue, or behind the first 100 ready jobs of
    /// one of the 20.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    oldest_ages_are_partial: bool,
    /// For how long workers have held the reserved jobs. Absent where that could not be read in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_for: Option<ReservedFor>,
    /// Whether there are so many jobs that `backoff` and `reserved_for` are of a part of them: of 2,000 scheduled and 2,000 reserved ones.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_partial: bool,
}

impl From<TotalLoad> for TotalLoadView {
    fn from(TotalLoad { at, load }: TotalLoad) -> Self {
        let LoadView { backoff, oldest_first_attempt_age_ms, oldest_retry_age_ms, reserved_for, .. } =
            LoadView::new(&load, at);
        Self {
            backoff: Some(backoff),
            oldest_first_attempt_age_ms,
            oldest_retry_age_ms,
            oldest_ages_are_partial: load.ages_are_partial,
            reserved_for: Some(reserved_for),
            is_partial: load.is_partial,
        }
    }
}

/// How many jobs workers hold, by how long they have.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ReservedFor {
    /// For less than a minute.
    under_1_minute: u64,
    /// For a minute or more, and less than ten.
    under_10_minutes: u64,
    /// For ten minutes or more, and less than an hour.
    under_1_hour: u64,
    /// For an hour or more.
    longer: u64,
}

/// The figures of the server and of all queues together.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ServerStats {
    /// The version of this server.
    version: &'static str,
    /// The kind of store in use.
    store: &'static str,
    /// The server's uptime, in milliseconds.
    uptime_ms: u64,
    /// How many queues there are, as `GET /v1/queues` lists them: those that have jobs, and those that have settings.
    queues: u64,
    /// How many workers there are, as `GET /v1/workers` lists them.
    workers: u64,
    /// By how many milliseconds the store's clock is ahead of the machine's, which was set back; only where it is, on SQLite. It loses one in
    /// eight until they agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ahead_ms: Option<u64>,
    #[serde(flatten)]
    figures: FiguresView,
    #[serde(flatten)]
    load: TotalLoadView,
    /// The queue that has the oldest ready job, whose age `oldest_ready_age_ms` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_queue: Option<QueueName>,
    /// The status of this server's background tasks.
    tasks: Vec<TaskStatus>,
}

/// Get the figures of all queues
#[utoipa::path(get, path = "/stats", operation_id = "get_server_stats", tag = "operations",
    responses((status = 200, description = "The figures", body = ServerStats)))]
pub async fn server(State(state): State<AppState>) -> ApiResult<Json<ServerStats>> {
    let (figures, stats, load) = state.queues.total_figures().await?;
    Ok(Json(ServerStats {
        version: env!("CARGO_PKG_VERSION"),
        store: state.server.store,
        uptime_ms: u64::try_from(state.server.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        queues: stats.listed,
        workers: stats.workers,
        clock_ahead_ms: state.queues.clock_ahead_ms(),
        figures: figures.into(),
        load: load.map(TotalLoadView::from).unwrap_or_default(),
        oldest_ready_queue: stats.oldest_in.clone(),
        tasks: state.server.tasks.list(),
    }))
}

/// Get the figures of a queue
///
/// The counts are kept with every change of a job, and cost nothing to read; on MongoDB, what other programs and servers that were
/// killed have changed is in them some time later. With `exact=true` the jobs are counted in the store now, which takes as long as the
/// queue is long.
#[utoipa::path(get, path = "/v1/queues/{queue}/stats", operation_id = "get_queue_stats", tag = "operations",
    params(("queue" = QueueName, Path, description = "The queue"),
        ("exact" = Option<bool>, Query, description = "Count the jobs now. Default: false.")),
    responses((status = 200, description = "The figures", body = QueueStats)))]
pub async fn queue(
    State(queues): State<Queues>,
    InQueue(queue): InQueue,
    query: Query,
) -> ApiResult<Json<QueueStats>> {
    let found = match query.only(&["exact"])?.get("exact", "true or false")?.unwrap_or(false) {
        true => queues.exact_figures(&queue).await?,
        false => queues.figures(&queue).await?,
    };
    let paused = queues.rules().paused(&queue);
    let QueueFigures { figures, at, next_due_at, load, attention, attention_is_partial } = found;
    Ok(Json(QueueStats {
        queue,
        paused,
        next_due_at,
        figures: figures.into(),
        load: LoadView::new(&load, at),
        workers: load.workers,
        attention,
        attention_is_partial,
    }))
}
