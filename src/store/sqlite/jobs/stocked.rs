//! Which queues have something to deliver: one query for all waiters of the server.

use rusqlite::{Connection, params};

use crate::job::{QueueName, Timestamp};
use crate::store::sqlite::fault::Fault;

/// Returns those of these queues that have a ready job that is due: one seek for each queue, and one for each of its
/// priorities whose first job is scheduled.
pub fn stocked(db: &Connection, queues: &[QueueName], now: Timestamp) -> Result<Vec<QueueName>, Fault> {
    let mut first = db.prepare_cached(FIRST_OF_PRIORITY)?;
    let mut stocked = Vec::new();
    for queue in queues {
        let mut below = i64::MAX;
        while let Some(found) = first.query(params![queue.as_str(), below])?.next()? {
            if found.get::<_, i64>(1)? <= now.millis() {
                stocked.push(queue.clone());
                break;
            }
            below = found.get(0)?;
        }
    }
    Ok(stocked)
}

/// The first job of the highest priority below this one.
pub const FIRST_OF_PRIORITY: &str = "SELECT priority, run_at FROM jobs INDEXED BY jobs_head \
     WHERE queue = ?1 AND state = 'ready' AND priority < ?2 ORDER BY priority DESC, run_at LIMIT 1";
