//! For operators: liveness, readiness, metrics.

use std::fmt::Write as _;

use crate::http::json::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::http::AppState;
use crate::http::problem::{ApiResult, Code, Problem};
use crate::queue::Stats;
use crate::telemetry;
use crate::telemetry::{JOBS, OLDEST_READY_SECONDS, QUEUES};

/// The status of the server.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HealthResponse {
    /// `ok` or `ready`.
    #[schema(value_type = String)]
    status: &'static str,
}

/// Liveness
///
/// The process is alive. Does not check the store: restarting the server would not repair it.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "operations",
    responses((status = 200, description = "The server is alive", body = HealthResponse)))]
pub async fn healthz() -> Json<HealthResponse> {
    Json(HealthResponse { status: "ok" })
}

/// Readiness
///
/// The server is ready: its store is available and it is not shutting down.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "operations",
    responses((status = 200, description = "The server is ready", body = HealthResponse)))]
pub async fn readyz(State(state): State<AppState>) -> ApiResult<Json<HealthResponse>> {
    if state.queues.is_leaving() {
        return Err(Problem::new(Code::Draining, "the server is shutting down"));
    }
    match state.server.readiness.get() {
        Ok(()) => Ok(Json(HealthResponse { status: "ready" })),
        Err(reason) => Err(Problem::new(Code::StoreUnavailable, reason)),
    }
}

/// Metrics
///
/// Returns the metrics in the text format of Prometheus, without the figures of the queues while the store is
/// unavailable. With more queues than `limits.metrics_queues`, those with the most unfinished jobs have series of their
/// own, and the others are one series, `queue="(others)"`.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub async fn metrics(State(state): State<AppState>) -> Response {
    let mut text = match &state.server.metrics {
        Some(metrics) => {
            telemetry::memory(state.budget.used());
            metrics.run_upkeep();
            metrics.render()
        }
        None => String::new(),
    };
    if let Ok(stats) = state.queues.stats().await {
        write_queues(&mut text, &stats);
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// The label of all queues that are not listed, together. It is no valid name of a queue.
const OTHERS: &str = "(others)";

/// Writes the figures of the queues directly from the counts, so that no series of a deleted queue remains.
fn write_queues(text: &mut String, stats: &Stats) {
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = text.write_fmt(arguments);
    };
    line(format_args!("# HELP {JOBS} Number of jobs, by queue and state\n# TYPE {JOBS} gauge\n"));
    let listed = stats.queues.iter().map(|(queue, figures)| (queue.as_str(), figures.counts));
    for (queue, counts) in listed.chain(stats.others.map(|counts| (OTHERS, counts))) {
        let states = [
            ("ready", counts.ready),
            ("scheduled", counts.scheduled),
            ("reserved", counts.reserved),
            ("blocked", counts.blocked),
            ("dead", counts.dead),
            ("done", counts.done),
        ];
        for (state, count) in states {
            line(format_args!("{JOBS}{{queue=\"{queue}\",state=\"{state}\"}} {count}\n"));
        }
    }
    line(format_args!(
        "# HELP {OLDEST_READY_SECONDS} Age of the oldest ready job, by queue\n\
         # TYPE {OLDEST_READY_SECONDS} gauge\n"
    ));
    for (queue, figures) in &stats.queues {
        if let Some(age_ms) = stats.age_ms(figures) {
            let seconds = age_ms as f64 / 1e3;
            line(format_args!("{OLDEST_READY_SECONDS}{{queue=\"{queue}\"}} {seconds}\n"));
        }
    }
    line(format_args!("# HELP {QUEUES} Number of queues that have jobs\n# TYPE {QUEUES} gauge\n"));
    line(format_args!("{QUEUES} {}\n", stats.count));
}
