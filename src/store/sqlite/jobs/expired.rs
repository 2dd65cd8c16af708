//! What has expired: reservations that were not settled in time, and jobs past their `expires_at`.

use rusqlite::Connection;

use crate::job::transition::Operation;
use crate::job::{Claim, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::{Change, Overdue};

/// A deadline of a job.
type Deadline = (Timestamp, Change);

/// Returns what has expired, the longest overdue first.
pub fn overdue(db: &Connection, limit: usize, now: Timestamp) -> Result<Overdue, Fault> {
    // One more than asked for shows whether the next deadline has passed as well.
    let most = limit.saturating_add(1);
    let mut due = lapsed(db, most, now)?;
    due.extend(expired(db, most, now)?);
    due.sort_by_key(|(deadline, _)| *deadline);
    let next_in_ms = if due.len() > limit { Some(0) } else { next_deadline(db, now)? };
    due.truncate(limit);
    let changes = due.into_iter().map(|(_, change)| change).collect();
    Ok(Overdue { changes, next_in_ms })
}

pub const LAPSED: &str = "SELECT id, reserved_until, claim FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until <= ?1 AND claim IS NOT NULL ORDER BY reserved_until LIMIT ?2";

fn lapsed(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Deadline>, Fault> {
    let mut lapsed = db.prepare_cached(LAPSED)?;
    let mut rows = lapsed.query([now.millis(), row::signed(limit)])?;
    let mut due = Vec::new();
    while let Some(found) = rows.next()? {
        let reserved_until = Timestamp::from_millis(found.get(1)?);
        let claim = Claim::from_stored(&found.get::<_, String>(2)?);
        let id = readable(row::parsed(found, 0, "id"))?;
        let change = |id| Change { id, operation: Operation::Lapse { claim, reserved_until } };
        due.extend(id.map(|id| (reserved_until, change(id))));
    }
    Ok(due)
}

pub const EXPIRED: &str = "SELECT id, expires_at FROM jobs INDEXED BY jobs_expires_at \
         WHERE expires_at <= ?1 AND state IN ('ready', 'blocked') ORDER BY expires_at LIMIT ?2";

fn expired(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Deadline>, Fault> {
    let mut expired = db.prepare_cached(EXPIRED)?;
    let mut rows = expired.query([now.millis(), row::signed(limit)])?;
    let mut due = Vec::new();
    while let Some(found) = rows.next()? {
        let expires_at = Timestamp::from_millis(found.get(1)?);
        let id = readable(row::parsed(found, 0, "id"))?;
        let change = |id| Change { id, operation: Operation::Expire { expires_at } };
        due.extend(id.map(|id| (expires_at, change(id))));
    }
    Ok(due)
}

pub const NEXT_DEADLINE: &str = "SELECT min(reserved_until) FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until > ?1 \
         UNION ALL SELECT min(expires_at) FROM jobs INDEXED BY jobs_expires_at \
         WHERE expires_at > ?1 AND state IN ('ready', 'blocked')";

/// Returns the milliseconds until the first deadline in the future.
fn next_deadline(db: &Connection, now: Timestamp) -> Result<Option<u64>, Fault> {
    let mut first = db.prepare_cached(NEXT_DEADLINE)?;
    let moments = first.query_map([now.millis()], |row| row.get::<_, Option<i64>>(0))?;
    let moments: Vec<Option<i64>> = moments.collect::<Result<_, _>>()?;
    let first = moments.into_iter().flatten().min();
    Ok(first.map(|moment| Timestamp::from_millis(moment).ms_since(now)))
}
