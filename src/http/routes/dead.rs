//! The dead of all queues, by their errors.

use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::search;
use crate::http::access::Granted;
use crate::http::budget::Budget;
use crate::http::json::Json;
use crate::http::params::Query;
use crate::http::problem::{ApiResult, Problem};
use crate::job::error_group::ErrorGroup;
use crate::job::{JobId, QueueName, Timestamp};
use crate::queue::Queues;

/// What the dead are grouped by.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DeadGroupedBy)]
pub enum GroupBy {
    /// Their last errors, without numbers, ids, texts in quotes and addresses.
    Error,
}

/// The dead of one error.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = DeadGroup)]
pub struct GroupView {
    /// The error, without what is different each time; empty: they have none. `GET /v1/jobs?state=dead&error_group=…` finds these jobs.
    error: String,
    /// How many there are.
    count: u64,
    /// When the first of them died.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seen: Option<Timestamp>,
    /// When the last of them died.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen: Option<Timestamp>,
    /// Some of their queues, up to 10.
    queues: Vec<QueueName>,
    /// Some of these jobs, up to 10.
    samples: Vec<JobId>,
}

/// The dead of all other errors together.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = OtherDead)]
pub struct OtherView {
    /// How many there are.
    count: u64,
    /// When the first of them died.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seen: Option<Timestamp>,
    /// When the last of them died.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen: Option<Timestamp>,
}

/// The dead by their errors.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = DeadByError)]
pub struct DeadResponse {
    /// The groups, the largest first.
    groups: Vec<GroupView>,
    /// Those that are in no group of this response, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    other: Option<OtherView>,
    /// How many dead jobs were counted.
    scanned: u64,
    /// Whether that were all.
    complete: bool,
}

impl From<ErrorGroup> for GroupView {
    fn from(group: ErrorGroup) -> Self {
        let ErrorGroup { error, count, first_seen, last_seen, queues, samples } = group;
        Self { error, count, first_seen, last_seen, queues: queues.into_iter().collect(), samples }
    }
}

/// Group the dead
///
/// Counts the dead jobs of all queues by their last errors. Of very many dead jobs not all are counted (`complete` is `false`), and of very
/// many different errors those met once only are counted together.
#[utoipa::path(get, path = "/v1/dead", operation_id = "group_dead_jobs", tag = "jobs",
    params(("group_by" = GroupBy, Query, description = "What they are grouped by"),
        ("queue" = Option<QueueName>, Query, description = "Only jobs in this queue"),
        ("queue_prefix" = Option<String>, Query, max_length = 128, description = "Only jobs in queues whose names begin so"),
        ("limit" = Option<usize>, Query, description = "How many groups: 1 to 1000; default 100")),
    responses((status = 200, description = "The groups", body = DeadResponse)))]
pub async fn group(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<DeadResponse>> {
    let query = query.only(&["group_by", "queue", "queue_prefix", "limit"])?;
    let Some(GroupBy::Error) = query.word("group_by", "error")? else {
        return Err(Problem::parameter("group_by", "must be given, as one of: error"));
    };
    let (within, limit) = (search::within(&query, &by)?, query.limit()?);
    let turn = budget.page().await?;
    let (tally, complete) = turn.during(queues.dead_by_error(&within)).await?;
    let scanned = tally.counted();
    let (groups, other) = tally.largest(limit);
    let other = other.map(|ErrorGroup { count, first_seen, last_seen, .. }| OtherView {
        count,
        first_seen,
        last_seen,
    });
    Ok(Json(DeadResponse { groups: groups.into_iter().map(Into::into).collect(), other, scanned, complete }))
}
