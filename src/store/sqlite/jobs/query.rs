//! Reading without changing anything: jobs by id, queues, and what is due when.

use rusqlite::Connection;

use crate::job::{JobId, QueueName, Timestamp};
use crate::store::ListedJob;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::unreadable;

/// Returns the jobs with these ids, each at the index of its id.
pub fn get(db: &Connection, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>, Fault> {
    ids.iter().map(|id| unreadable::listed(db, id, true)).collect()
}

/// Returns those of these jobs that have not finished.
pub fn unfinished(db: &Connection, ids: &[JobId]) -> Result<Vec<JobId>, Fault> {
    let mut by_id = db.prepare_cached(
        "SELECT 1 FROM jobs WHERE id = ?1 AND state IN ('ready', 'reserved', 'blocked') AND origin IS NULL",
    )?;
    let mut unfinished = Vec::new();
    for id in ids {
        if by_id.exists([id.as_str()])? {
            unfinished.push(id.clone());
        }
    }
    Ok(unfinished)
}

/// Returns the queues that have jobs: those that have counters.
pub fn queues(
    db: &Connection,
    prefix: &str,
    after: Option<&QueueName>,
    limit: usize,
) -> Result<Vec<QueueName>, Fault> {
    // Names are ASCII, so everything that begins with the prefix sorts below this.
    let end = format!("{prefix}\u{10ffff}");
    let after = after.map_or("", QueueName::as_str);
    let mut named = db.prepare_cached(
        "SELECT queue FROM counters WHERE queue >= ?1 AND queue < ?2 AND queue > ?3 ORDER BY queue",
    )?;
    let mut rows = named.query([prefix, &end, after])?;
    let mut queues = Vec::new();
    while queues.len() < limit
        && let Some(found) = rows.next()?
    {
        queues.extend(readable(row::parsed(found, 0, "queue"))?);
    }
    Ok(queues)
}

pub const UPCOMING: &str =
    "SELECT queue, due FROM jobs INDEXED BY jobs_due WHERE due > ?1 ORDER BY due, queue LIMIT ?2";

/// Returns the scheduled jobs that are due next.
pub fn upcoming(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let mut next = db.prepare_cached(UPCOMING)?;
    let mut rows = next.query([now.millis(), row::signed(limit)])?;
    let mut moments = Vec::new();
    while let Some(found) = rows.next()? {
        let at = Timestamp::from_millis(found.get(1)?);
        moments.extend(readable(row::parsed(found, 0, "queue"))?.map(|queue| (queue, at)));
    }
    Ok(moments)
}
