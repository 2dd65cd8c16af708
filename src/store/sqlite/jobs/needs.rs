//! The table `needs`: the semaphores of unfinished jobs, brought up to date with every write of such a job.

use rusqlite::{Connection, Row, params};

use crate::faults;
use crate::job::semaphore::{Gauge, LINE, Waiter};
use crate::job::{JobId, Meta, SemaphoreName, State, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::semaphores::found_text;
use crate::store::sqlite::tx::Tx;

/// Writes what the job needs. Costs nothing where it needs no semaphores.
pub fn write(db: &Connection, meta: &Meta) -> Result<(), Fault> {
    if meta.semaphores.is_empty() {
        return Ok(());
    }
    if !meta.state.is_unfinished() {
        return remove(db, meta);
    }
    let mut put = db.prepare_cached(
        "INSERT OR REPLACE INTO needs (semaphore, job, queue, state, priority, run_at, waits, waiting_since) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for semaphore in &meta.semaphores {
        put.execute(params![
            semaphore.as_str(),
            meta.id.as_str(),
            meta.queue.as_str(),
            meta.state.as_str(),
            meta.priority,
            meta.run_at.millis(),
            meta.waits_for.as_ref() == Some(semaphore),
            meta.waiting_since.map(Timestamp::millis),
        ])?;
    }
    Ok(())
}

/// Removes what the job needs.
pub fn remove(db: &Connection, meta: &Meta) -> Result<(), Fault> {
    if meta.semaphores.is_empty() || faults::bug("leak_semaphore") {
        return Ok(());
    }
    meta.semaphores.iter().try_for_each(|semaphore| forget_one(db, semaphore, &meta.id))
}

/// The name may be bytes: another program may have written what is no text.
pub const FORGET: &str = "DELETE FROM needs WHERE semaphore = CAST(?1 AS TEXT) AND job = ?2";

/// Removes that a job needs this semaphore.
pub fn forget_one(db: &Connection, semaphore: &SemaphoreName, id: &JobId) -> Result<(), Fault> {
    db.prepare_cached(FORGET)?.execute([semaphore.as_str(), id.as_str()])?;
    Ok(())
}

pub const FORGET_LOST: &str = "DELETE FROM needs INDEXED BY needs_state \
     WHERE semaphore = ?1 AND state = 'reserved' \
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = needs.job)";

/// Removes the holders of these semaphores that are no jobs: another program has given them ids that are none. It reads all holders of
/// a semaphore, and so once in a transaction, which makes no others.
pub fn forget_lost(tx: &Tx<'_>, semaphores: &[SemaphoreName]) -> Result<(), Fault> {
    for semaphore in semaphores.iter().filter(|semaphore| tx.is_first_comparison_of(semaphore)) {
        tx.prepare_cached(FORGET_LOST)?.execute([semaphore.as_str()])?;
    }
    Ok(())
}

/// Returns the semaphores that the row of a job names, from this column of it; nothing where they cannot be read.
pub fn named_at(row: &Row<'_>, at: usize) -> Result<Option<Vec<SemaphoreName>>, Fault> {
    Ok(readable(row::json(row, at, "semaphores"))?.map(Option::unwrap_or_default))
}

/// The same for the job with this id.
pub fn named(db: &Connection, id: &JobId) -> Result<Option<Vec<SemaphoreName>>, Fault> {
    let mut by_id = db.prepare_cached("SELECT semaphores FROM jobs WHERE id = ?1")?;
    let mut rows = by_id.query([id.as_str()])?;
    match rows.next()? {
        Some(found) => named_at(found, 0),
        None => Ok(None),
    }
}

pub const NEXT_NAME: &str = "SELECT min(semaphore) FROM needs WHERE semaphore > CAST(?1 AS TEXT)";

/// Removes what a job needs that cannot be read. `named`: the semaphores that its row names, by which that is found. Where they cannot be
/// read, all that any job needs are tried, each of which counts as a job that the transaction makes dead.
pub fn forget(tx: &Tx<'_>, id: &JobId, named: Option<&[SemaphoreName]>) -> Result<(), Fault> {
    if let Some(semaphores) = named {
        return semaphores.iter().try_for_each(|semaphore| forget_one(tx, semaphore, id));
    }
    let (mut next, mut remove) = (tx.prepare_cached(NEXT_NAME)?, tx.prepare_cached(FORGET)?);
    let mut last: Vec<u8> = Vec::new();
    while let Some(name) = found_text(&mut next, [&last])? {
        remove.execute(params![name, id.as_str()])?;
        tx.buries(1);
        last = name;
    }
    Ok(())
}

/// Notes that the job was unblocked at this moment.
pub fn note_unblocked(db: &Connection, meta: &Meta, now: Timestamp) -> Result<(), Fault> {
    let mut note = db.prepare_cached("UPDATE needs SET called_at = ?3 WHERE semaphore = ?1 AND job = ?2")?;
    for semaphore in &meta.semaphores {
        note.execute(params![semaphore.as_str(), meta.id.as_str(), now.millis()])?;
    }
    Ok(())
}

/// Returns a semaphore as it is now; one that does not exist has no room.
pub fn gauge(db: &Connection, name: &SemaphoreName) -> Result<Gauge, Fault> {
    Ok(Gauge {
        capacity: crate::store::sqlite::semaphores::capacity(db, name)?.unwrap_or(0),
        held: count(db, name, State::Reserved, None)?,
        line: line(db, name)?,
    })
}

pub const COUNT: &str = "SELECT count(*) FROM needs INDEXED BY needs_state \
     WHERE semaphore = ?1 AND state = ?2 AND run_at <= ?3";

/// Returns how many jobs in this state, due by then where that is given, need the semaphore.
pub fn count(
    db: &Connection,
    name: &SemaphoreName,
    state: State,
    due_by: Option<Timestamp>,
) -> Result<u64, Fault> {
    let due_by = due_by.map_or(i64::MAX, Timestamp::millis);
    let mut count = db.prepare_cached(COUNT)?;
    let count: i64 = count.query_row(params![name.as_str(), state.as_str(), due_by], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

pub const FIRST_IN_LINE: &str = "SELECT n.job, n.queue, n.state, n.priority, n.run_at, n.waiting_since, \
     n.called_at, j.semaphores FROM needs n INDEXED BY needs_line CROSS JOIN jobs j ON j.id = n.job \
     WHERE n.semaphore = ?1 AND n.waiting_since IS NOT NULL ORDER BY n.priority DESC, n.run_at, n.job LIMIT ?2";

/// Returns the first of the jobs that wait for the semaphore.
fn line(db: &Connection, name: &SemaphoreName) -> Result<Vec<Waiter>, Fault> {
    let mut first = db.prepare_cached(FIRST_IN_LINE)?;
    let mut rows = first.query(params![name.as_str(), row::signed(LINE)])?;
    let mut line = Vec::new();
    while let Some(found) = rows.next()? {
        line.extend(readable(waiter(found))?);
    }
    Ok(line)
}

fn waiter(found: &Row<'_>) -> Result<Waiter, Fault> {
    Ok(Waiter {
        id: row::parsed(found, 0, "job of a need")?,
        queue: row::parsed(found, 1, "queue of a need")?,
        state: row::state(found, 2)?,
        priority: found.get(3)?,
        run_at: Timestamp::from_millis(found.get(4)?),
        waiting_since: Timestamp::from_millis(found.get(5)?),
        called_at: row::time(found, 6)?,
        semaphores: row::json(found, 7, "semaphores")?.unwrap_or_default(),
    })
}

pub const QUEUES: &str = "SELECT min(queue) FROM needs INDEXED BY needs_waits \
     WHERE semaphore = ?1 AND waits = 1 AND queue > CAST(?2 AS TEXT)";

pub const FIRST_WAITING: &str = "SELECT job FROM needs INDEXED BY needs_waits \
     WHERE semaphore = ?1 AND waits = 1 AND queue = ?2 ORDER BY priority DESC, run_at, job LIMIT ?3";

/// Returns the jobs of a queue that are blocked by the semaphore, the first ones in the order of delivery.
pub fn waiting(db: &Connection, name: &SemaphoreName, queue: &str, limit: u64) -> Result<Vec<JobId>, Fault> {
    let mut first = db.prepare_cached(FIRST_WAITING)?;
    let mut rows = first.query(params![name.as_str(), queue, row::signed(limit)])?;
    let mut jobs = Vec::new();
    while let Some(found) = rows.next()? {
        jobs.extend(readable(row::parsed(found, 0, "job of a need"))?);
    }
    Ok(jobs)
}
