//! Which queues have something to deliver: one query for all waiters of the server.

use rusqlite::Connection;

use crate::job::{QueueName, Timestamp};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::priorities::{SkippedCache, Step, WALKED_MAX, Walk};

/// Returns those of these queues that have a ready job that is due, or so many priorities that a claim is to check: one seek for each queue, and
/// one for each of its priorities whose first job is scheduled.
pub fn stocked(
    db: &Connection,
    cache: &SkippedCache,
    queues: &[QueueName],
    now: Timestamp,
) -> Result<Vec<QueueName>, Fault> {
    let mut stocked = Vec::new();
    for queue in queues {
        match Walk::begin(db, cache, (queue, false), WALKED_MAX, now).next()? {
            Step::Due(_) | Step::Enough => stocked.push(queue.clone()),
            Step::End => {}
        }
    }
    Ok(stocked)
}
