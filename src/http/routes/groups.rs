//! Groups.

use axum::extract::State;
use serde::Serialize;

use super::search;
use crate::http::access::Granted;
use crate::http::budget::Budget;
use crate::http::json::Json;
use crate::http::params::{Query, cursor};
use crate::http::problem::ApiResult;
use crate::job::{GroupName, JobId, QueueName, Visible};
use crate::queue::Queues;
use crate::store::GroupLine;

/// A group that has jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = JobGroup)]
pub struct GroupView {
    /// The queue.
    queue: QueueName,
    /// The group.
    group: GroupName,
    /// Its first job, which all others wait for.
    head: JobId,
    /// The state of that: `dead` where it holds the group.
    state: Visible,
    /// How many jobs are behind it, up to 1000.
    waiting: u64,
}

impl From<(GroupLine, Visible)> for GroupView {
    fn from((group, state): (GroupLine, Visible)) -> Self {
        let GroupLine { line, head, waiting, .. } = group;
        Self { queue: line.queue, group: line.group, head, state, waiting }
    }
}

/// Groups.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct GroupsPage {
    /// The groups that have jobs.
    groups: Vec<GroupView>,
    /// How many groups were looked at.
    scanned: u64,
    /// Whether that were all; else the list goes on with the cursor.
    complete: bool,
    /// The cursor of the next page, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
}

/// List the groups
///
/// Lists the groups that have unfinished jobs, or a dead one that holds them. With `state=dead` those that are held. A call looks at a
/// bounded number of groups, and goes on with the cursor where `complete` is `false`.
#[utoipa::path(get, path = "/v1/groups", operation_id = "list_groups", tag = "queues",
    params(("state" = Option<Vec<Visible>>, Query, style = Form, explode = false, description = "Only groups whose first job is in this state, or in one of these: `ready,dead`. It may also be given several times"),
        ("queue" = Option<QueueName>, Query, description = "Only groups of this queue"),
        ("queue_prefix" = Option<String>, Query, max_length = 128, description = "Only groups of queues whose names begin so"),
        ("limit" = Option<usize>, Query, description = "1 to 1000; default 100"),
        ("cursor" = Option<String>, Query, description = "The cursor of the previous page")),
    responses((status = 200, description = "The groups", body = GroupsPage)))]
pub async fn list(
    State(queues): State<Queues>,
    State(budget): State<Budget>,
    by: Granted,
    query: Query,
) -> ApiResult<Json<GroupsPage>> {
    let query = query.only_repeating(&["queue", "queue_prefix", "limit", "cursor"], "state")?;
    let (within, states) = (search::within(&query, &by)?, search::states(&query)?);
    let turn = budget.page().await?;
    let found = turn.during(queues.groups(&within, &states, query.cursor()?, query.limit()?)).await?;
    Ok(Json(GroupsPage {
        groups: found.groups.into_iter().map(Into::into).collect(),
        scanned: found.scanned,
        complete: found.next.is_none(),
        cursor: found.next.as_ref().map(cursor),
    }))
}
