//! For operators: liveness and readiness.

use crate::http::json::Json;
use axum::extract::State;
use serde::Serialize;

use crate::http::AppState;
use crate::http::problem::{ApiResult, Code, Problem};

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
