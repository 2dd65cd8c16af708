//! The next jobs, taken with a settle.

use axum::response::Response;
use serde::{Deserialize, Serialize};

use super::reserve::{ReserveManyRequest, one, to_ask, views};
use super::view::ReservedJob;
use crate::http::access::Granted;
use crate::http::answer;
use crate::http::budget::Budget;
use crate::http::problem::{ApiResult, Problem};
use crate::http::waiting::{Place, Waiting};
use crate::job::list::at_most_if_any;
use crate::job::{QueuePattern, WorkerName};
use crate::queue::{Next, NextAsk, QUEUES_MAX, Queues, Settle};
use crate::store::Weight as _;

/// The next jobs that a worker wants, as in a reserve. They are taken once the settle has taken effect, which waits for nothing.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NextRequest {
    /// The queues to take from, in this order: names, or prefixes of names followed by `*`. Default: the queue of the settled job, or
    /// the queues of the settled jobs in their order.
    #[serde(default, deserialize_with = "at_most_if_any::<{ QUEUES_MAX }, _, _>")]
    #[schema(min_items = 1, max_items = 100)]
    queues: Option<Vec<QueuePattern>>,
    /// The maximum number of jobs.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    count: usize,
    /// The maximum number of bytes of their payloads, of JSON ones by their texts, of binary ones by their bytes; a single job may have more, and
    /// there may be fewer.
    #[schema(minimum = 1, maximum = 9223372036854775807_u64)]
    max_bytes: Option<u64>,
    /// How long the response waits for a job if none is ready, in milliseconds.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 60000, default = 0)]
    wait_ms: u64,
    /// The lease of the reservations, in milliseconds; default: each queue's.
    #[schema(minimum = 100, maximum = 86400000)]
    lease_ms: Option<u64>,
    /// The name of the worker, shown with the jobs.
    worker: Option<WorkerName>,
}

/// The next jobs.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct NextResponse {
    /// The jobs in the order of delivery; empty if there are none. A repeat of the call takes none, and returns those that the first
    /// call has taken and that are still held.
    jobs: Vec<ReservedJob>,
    /// Why there are none, if they could not be taken. The settle stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// Who asks for the next jobs, and the place of the response.
pub(super) struct Asking<'a> {
    pub queues: &'a Queues,
    pub budget: &'a Budget,
    pub waiting: Waiting,
    pub by: &'a Granted,
}

impl Asking<'_> {
    /// Returns what is to be taken with these settles, unless the key does not allow it: that is refused before anything happens. The
    /// place is to be kept until it is over.
    pub async fn ask(self, request: NextRequest, settles: &[Settle]) -> ApiResult<(NextAsk, Option<Place>)> {
        let NextRequest { queues: from, count, max_bytes, wait_ms, lease_ms, worker } = request;
        let names_queues = from.is_some();
        let from = match from {
            Some(from) => self.by.patterns(from)?,
            None => {
                if self.by.caller.is_limited() {
                    let from = self.queues.queues_of_held(settles).await?;
                    from.iter().try_for_each(|queue| self.by.in_queue(queue))?;
                }
                Vec::new()
            }
        };
        let request = ReserveManyRequest { queues: from, count, max_bytes, wait_ms, lease_ms, worker };
        let (ask, place) = to_ask(self.budget, self.waiting, self.by, None, request)?;
        Ok((NextAsk { ask, names_queues, within: self.by.caller.reach() }, place))
    }
}

/// Returns the response that says this, with the next jobs.
pub(super) fn respond(
    queues: &Queues,
    budget: &Budget,
    by: &Granted,
    told: &impl Serialize,
    Next { jobs, problem }: Next,
) -> ApiResult<Response> {
    let held = budget.take_anyway(jobs.iter().map(|job| job.weight()).sum());
    let problem = problem.map(|error| by.problem(error));
    answer::with_next(told, views(queues, jobs)?, problem.as_ref(), held)
}
