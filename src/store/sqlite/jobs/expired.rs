//! What has expired: reservations that were not settled in time, and jobs past their `expires_at`.

use rusqlite::{Connection, Row};

use crate::job::transition::deadline;
use crate::job::{Claim, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::{Change, Overdue};

/// Returns what has expired, the longest overdue first.
pub fn overdue(db: &Connection, limit: usize, now: Timestamp) -> Result<Overdue, Fault> {
    // One more than asked for shows whether the next deadline has passed as well.
    let most = limit.saturating_add(1);
    let mut due = passed(db, LAPSED, most, now)?;
    due.extend(passed(db, EXPIRED, most, now)?);
    due.extend(passed(db, ENDLESS, most, now)?);
    let overdue = Overdue::first(due, limit);
    let next_in_ms = match overdue.next_in_ms {
        Some(past) => Some(past),
        None => next_deadline(db, now)?,
    };
    Ok(Overdue { next_in_ms, ..overdue })
}

pub const LAPSED: &str = "SELECT id, state, claim, reserved_until, expires_at FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until <= ?1 ORDER BY reserved_until LIMIT ?2";

/// Reservations without an end, which another program wrote.
pub const ENDLESS: &str = "SELECT id, state, claim, ?1, expires_at FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until IS NULL LIMIT ?2";

pub const EXPIRED: &str = "SELECT id, state, claim, reserved_until, expires_at FROM jobs INDEXED BY jobs_expires_at \
         WHERE expires_at <= ?1 AND state IN ('ready', 'blocked') ORDER BY expires_at LIMIT ?2";

/// Reads jobs with a deadline that has passed, and what that means.
fn passed(
    db: &Connection,
    sql: &str,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<(Timestamp, Change)>, Fault> {
    let mut passed = db.prepare_cached(sql)?;
    let mut rows = passed.query([now.millis(), row::signed(limit)])?;
    let mut due = Vec::new();
    while let Some(found) = rows.next()? {
        due.extend(readable(change(found))?.flatten());
    }
    Ok(due)
}

/// Returns what a row calls for. A job whose claim is missing or cannot be read is made dead where the change meets it.
fn change(found: &Row<'_>) -> Result<Option<(Timestamp, Change)>, Fault> {
    let claim = Claim::from_stored(row::text(found, 2).ok().flatten().unwrap_or_default());
    let deadline = deadline(row::state(found, 1)?, Some(&claim), row::time(found, 3)?, row::time(found, 4)?);
    let Some((at, operation)) = deadline else { return Ok(None) };
    Ok(Some((at, Change { id: row::parsed(found, 0, "id")?, operation })))
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
