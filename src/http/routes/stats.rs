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
use crate::queue::meter::{Event, Percentiles};
use crate::queue::{Figures, Queues};
use crate::store::Counts;

/// How many jobs are in each state, at most a second ago; with `exact=true` now.
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

/// Percentiles of a duration over about the last minute, in milliseconds.
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
    /// Events on this server per second, over about the last minute: `pushed`, `reserved`,
    /// `committed`, `rolled_back`, `moved`, `lapsed`, `expired`, `dead`.
    #[schema(value_type = EventRates)]
    rates_per_s: BTreeMap<&'static str, f64>,
    /// The time from due to delivery, on this server.
    queue_time_ms: PercentilesView,
    /// The time from delivery to commit, on this server.
    run_time_ms: PercentilesView,
}

impl From<Figures> for FiguresView {
    fn from(figures: Figures) -> Self {
        let rounded = |rate: f64| (rate * 1000.0).round() / 1000.0;
        let rates =
            Event::ALL.iter().zip(figures.flow.rates).map(|(event, rate)| (event.as_str(), rounded(rate)));
        Self {
            counts: figures.counts.into(),
            split_is_approximate: figures.split_is_approximate,
            oldest_ready_age_ms: figures.oldest_ready_age_ms,
            rates_per_s: rates.collect(),
            queue_time_ms: figures.flow.queue_time.into(),
            run_time_ms: figures.flow.run_time.into(),
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
    /// How many queues have jobs.
    queues: u64,
    /// By how many milliseconds the store's clock is ahead of the machine's, which was set back; only where it is, on SQLite. It loses one in
    /// eight until they agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    clock_ahead_ms: Option<u64>,
    #[serde(flatten)]
    figures: FiguresView,
    /// The status of this server's background tasks.
    tasks: Vec<TaskStatus>,
}

/// Get the figures of all queues
#[utoipa::path(get, path = "/stats", operation_id = "get_server_stats", tag = "operations",
    responses((status = 200, description = "The figures", body = ServerStats)))]
pub async fn server(State(state): State<AppState>) -> ApiResult<Json<ServerStats>> {
    let (figures, queues) = state.queues.total_figures().await?;
    Ok(Json(ServerStats {
        version: env!("CARGO_PKG_VERSION"),
        store: state.server.store,
        uptime_ms: u64::try_from(state.server.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        queues,
        clock_ahead_ms: state.queues.clock_ahead_ms(),
        figures: figures.into(),
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
    let figures = match query.only(&["exact"])?.get("exact", "true or false")?.unwrap_or(false) {
        true => queues.exact_figures(&queue).await?,
        false => queues.figures(&queue).await?,
    };
    let (paused, next_due_at) = (queues.rules().paused(&queue), figures.next_due_at);
    Ok(Json(QueueStats { queue, paused, next_due_at, figures: figures.into() }))
}
