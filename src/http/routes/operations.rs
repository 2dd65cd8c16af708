//! For those who run the server: liveness, readiness, metrics.

use std::fmt::Write as _;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::http::AppState;
use crate::http::problem::{Answer, Code, Problem};
use crate::queue::Stats;
use crate::telemetry::{JOBS, OLDEST_READY_SECONDS};

/// How the server is.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct HealthResponse {
    /// `ok` or `ready`.
    status: &'static str,
}

/// Liveness
///
/// The process runs and answers. Says nothing about the store: restarting the server would not bring it back.
#[utoipa::path(get, path = "/healthz", operation_id = "healthz", tag = "operations",
    responses((status = 200, description = "The server is alive", body = HealthResponse)))]
pub async fn healthz() -> Json<HealthResponse> {
    Json(HealthResponse { status: "ok" })
}

/// Readiness
///
/// Whether the server can serve: it has reached its store and is not shutting down.
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "operations",
    responses((status = 200, description = "The server is ready", body = HealthResponse)))]
pub async fn readyz(State(state): State<AppState>) -> Answer<Json<HealthResponse>> {
    if state.queues.is_draining() {
        return Err(Problem::new(Code::Draining, "the server is shutting down"));
    }
    match state.server.readiness.get() {
        Ok(()) => Ok(Json(HealthResponse { status: "ready" })),
        Err(reason) => Err(Problem::new(Code::StoreUnavailable, reason)),
    }
}

/// Metrics
///
/// In the text format of Prometheus. While the store is away, the figures of the queues are left out.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "operations",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub async fn metrics(State(state): State<AppState>) -> Response {
    let mut text = match &state.server.metrics {
        Some(metrics) => {
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

/// The figures of the queues, written from the counts themselves: a queue that has gone leaves nothing behind.
fn write_queues(text: &mut String, stats: &Stats) {
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = text.write_fmt(arguments);
    };
    line(format_args!("# HELP {JOBS} Jobs, by queue and state\n# TYPE {JOBS} gauge\n"));
    for queue in stats.queues.keys() {
        let (counts, _) = stats.of(queue);
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
        "# HELP {OLDEST_READY_SECONDS} Age of the job that has been ready for longest, by queue\n\
         # TYPE {OLDEST_READY_SECONDS} gauge\n"
    ));
    for queue in stats.queues.keys() {
        if let (_, Some(age_ms)) = stats.of(queue) {
            let seconds = age_ms as f64 / 1e3;
            line(format_args!("{OLDEST_READY_SECONDS}{{queue=\"{queue}\"}} {seconds}\n"));
        }
    }
}
