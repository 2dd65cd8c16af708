//! What has expired: reservations that were not settled in time, and jobs past their `expires_at`.

use rusqlite::{Connection, Row};

use crate::job::transition::deadline;
use crate::job::{Claim, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::unreadable;
use crate::store::{Change, Overdue, Result as Stored};

/// Jobs with a deadline that has passed.
#[derive(Default)]
struct Passed {
    /// What that means.
    due: Vec<(Timestamp, Change)>,
    /// The rowids of those whose ids are none, which no change can name.
    nameless: Vec<i64>,
}

/// Returns what has expired, the longest overdue first. Jobs whose ids are none are dead then.
pub async fn overdue(store: &SqliteStore, limit: usize) -> Stored<Overdue> {
    let (overdue, nameless) = store.read(move |db, now| read(db, limit, now)).await?;
    if nameless.is_empty() {
        return Ok(overdue);
    }
    store.writer.run(move |tx, now| unreadable::bury_nameless(tx, &nameless, now)).await?;
    Ok(Overdue { next_in_ms: Some(0), ..overdue }) // they were read in the places of others
}

/// Returns what has expired, and the rowids of the jobs whose ids are none.
fn read(db: &Connection, limit: usize, now: Timestamp) -> Result<(Overdue, Vec<i64>), Fault> {
    // One more than asked for shows whether the next deadline has passed as well.
    let (most, mut all) = (limit.saturating_add(1), Passed::default());
    for sql in [LAPSED, EXPIRED, ENDLESS] {
        passed(db, sql, most, now, &mut all)?;
    }
    let overdue = Overdue::first(all.due, limit);
    let next_in_ms = match overdue.next_in_ms {
        Some(past) => Some(past),
        None => next_deadline(db, now)?,
    };
    Ok((Overdue { next_in_ms, ..overdue }, all.nameless))
}

pub const LAPSED: &str = "SELECT id, state, claim, reserved_until, expires_at, rowid FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until <= ?1 ORDER BY reserved_until LIMIT ?2";

/// Reservations without an end, which another program wrote.
pub const ENDLESS: &str = "SELECT id, state, claim, ?1, expires_at, rowid FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until IS NULL LIMIT ?2";

pub const EXPIRED: &str = "SELECT id, state, claim, reserved_until, expires_at, rowid FROM jobs INDEXED BY jobs_expires_at \
         WHERE expires_at <= ?1 AND state IN ('ready', 'blocked') ORDER BY expires_at LIMIT ?2";

/// Reads jobs with a deadline that has passed.
fn passed(db: &Connection, sql: &str, limit: usize, now: Timestamp, all: &mut Passed) -> Result<(), Fault> {
    let mut passed = db.prepare_cached(sql)?;
    let mut rows = passed.query([now.millis(), row::signed(limit)])?;
    while let Some(found) = rows.next()? {
        match readable(change(found))? {
            Some(change) => all.due.extend(change),
            None => all.nameless.push(found.get(5)?),
        }
    }
    Ok(())
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
