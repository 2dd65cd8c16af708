//! What operators did.

use axum::extract::State;
use serde::Serialize;

use crate::http::json::Json;
use crate::http::params::{Query, cursor};
use crate::http::problem::{ApiResult, Problem};
use crate::job::audit::{ACTS, AuditRow};
use crate::job::names::NAME_RULE;
use crate::job::{JobId, QueueName};
use crate::queue::Queues;
use crate::store::AuditFilter;

/// What operators did.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct AuditPage {
    /// The acts, the latest first.
    entries: Vec<AuditRow>,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List what operators did
///
/// Each administrative act has an entry, which is written in the transaction of the act: settings, pauses, keys, semaphores, schedules,
/// operations, and what is done to single jobs by force. An operation has an entry when it begins (`operation.begin`), and one when it is
/// over, with how many jobs it has affected (`operation.end`, or `operation.cancel`). Kept for 90 days, the last 100,000 of them.
#[utoipa::path(get, path = "/v1/audit", operation_id = "list_audit", tag = "operations",
    params(("from" = Option<String>, Query, description = "Only acts at this time or later", format = "date-time"),
        ("to" = Option<String>, Query, description = "Only acts before this time", format = "date-time"),
        ("by" = Option<String>, Query, description = "Only acts of the key of this id; `admin` for that of the configuration", max_length = 64),
        ("what" = Option<String>, Query, description = "Only acts of this kind, such as `queue.pause`", max_length = 64),
        ("queue" = Option<QueueName>, Query, description = "Only acts about this queue"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The acts, the latest first", body = AuditPage)))]
pub async fn list(State(queues): State<Queues>, query: Query) -> ApiResult<Json<AuditPage>> {
    let query = query.only(&["from", "to", "by", "what", "queue", "limit", "cursor"])?;
    let what = query.get::<String>("what", "a text")?;
    if what.as_ref().is_some_and(|what| !ACTS.contains(&what.as_str())) {
        return Err(Problem::parameter("what", format!("must be one of: {}", ACTS.join(", "))));
    }
    let filter = AuditFilter {
        from: query.time("from")?,
        to: query.time("to")?,
        by: query.get("by", "a text")?,
        what,
        queue: query.get("queue", NAME_RULE)?,
    };
    let page = queues.audit(&filter, query.cursor::<JobId>()?.as_ref(), query.limit()?).await?;
    Ok(Json(AuditPage { entries: page.items, cursor: page.next.as_ref().map(cursor) }))
}
