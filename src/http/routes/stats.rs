//! Figures for operators.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use crate::background::TaskStatus;
use crate::http::AppState;
use crate::http::params::InQueue;
use crate::http::problem::ApiResult;
use crate::job::QueueName;
use crate::queue::meter::{Event, Percentiles};
use crate::queue::{Figures, Queues};
use crate::store::Counts;

/// How many jobs are in each state, at most a second ago.
#[derive(Debug, Serialize, utoipa::ToSchema)]
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

/// Figures of one queue, or of all of them together.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct FiguresView {
    /// How many jobs are in each state.
    counts: CountsView,
    /// With very many scheduled jobs, those that became due a moment ago may still be counted as `scheduled`; the
    /// sum of `ready` and `scheduled` is exact.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    split_is_approximate: bool,
    /// The age of the oldest ready job, in milliseconds. With many busy queues it may be that of a job that was
    /// reserved a few seconds ago; of all queues together, it is the oldest of those with the most unfinished jobs
    /// (`limits.metrics_queues`).
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ready_age_ms: Option<u64>,
    /// Events on this server per second, over about the last minute: `pushed`, `reserved`,
    /// `committed`, `rolled_back`, `moved`, `lapsed`, `expired`, `dead`.
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
    #[schema(value_type = String)]
    queue: QueueName,
    /// Whether delivery is stopped.
    paused: bool,
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
    #[serde(flatten)]
    figures: FiguresView,
    /// The status of this server's background tasks.
    tasks: Vec<TaskStatus>,
}

/// Get the figures of all queues
#[utoipa::path(get, path = "/stats", operation_id = "server_stats", tag = "operations",
    responses((status = 200, description = "The figures", body = ServerStats)))]
pub async fn server(State(state): State<AppState>) -> ApiResult<Json<ServerStats>> {
    let (figures, queues) = state.queues.total_figures().await?;
    Ok(Json(ServerStats {
        version: env!("CARGO_PKG_VERSION"),
        store: state.server.store,
        uptime_ms: u64::try_from(state.server.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        queues,
        figures: figures.into(),
        tasks: state.server.tasks.list(),
    }))
}

/// Get the figures of a queue
#[utoipa::path(get, path = "/v1/queues/{queue}/stats", operation_id = "queue_stats", tag = "operations",
    params(("queue" = String, Path, description = "The queue")),
    responses((status = 200, description = "The figures", body = QueueStats)))]
pub async fn queue(State(queues): State<Queues>, InQueue(queue): InQueue) -> ApiResult<Json<QueueStats>> {
    let figures = queues.figures(&queue).await?.into();
    let paused = queues.rules().paused(&queue);
    Ok(Json(QueueStats { queue, paused, figures }))
}
