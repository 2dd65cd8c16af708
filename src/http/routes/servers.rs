//! The servers over one store.

use axum::extract::State;
use serde::Serialize;

use crate::http::json::Json;
use crate::http::params::Query;
use crate::http::problem::ApiResult;
use crate::job::Timestamp;
use crate::queue::Queues;
use crate::store::KnownServer;

/// A server.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Server)]
pub struct ServerView {
    /// Its name, for as long as it runs.
    id: String,
    /// Its version, if it says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Since when it runs, if it says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// When it last said that it is there.
    seen_at: Timestamp,
    /// Whether it is the one that responds.
    this: bool,
}

impl From<KnownServer> for ServerView {
    fn from(server: KnownServer) -> Self {
        let KnownServer { id, version, since, seen_at, is_own } = server;
        Self { id, version, since, seen_at, this: is_own }
    }
}

/// Servers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ServersResponse {
    /// The servers, by name.
    servers: Vec<ServerView>,
}

/// List the servers
///
/// Lists the servers over the store that have said within the last 15 seconds that they are there. One that has just started may not be
/// among them yet. Over SQLite it is this one.
#[utoipa::path(get, path = "/v1/servers", operation_id = "list_servers", tag = "operations",
    responses((status = 200, description = "The servers", body = ServersResponse)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> ApiResult<Json<ServersResponse>> {
    query.only(&[])?;
    let servers = queues.servers().await?;
    Ok(Json(ServersResponse { servers: servers.into_iter().map(Into::into).collect() }))
}
