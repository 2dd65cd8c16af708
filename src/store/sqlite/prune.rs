//! Deleting what has expired, in small steps.

use rusqlite::{Connection, Statement, params};

use crate::job::{State, Timestamp};
use crate::store::prune::{KEY_CHECKED_AGAIN_MS, holding, purged};
use crate::store::sqlite::audit;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::operations;
use crate::store::sqlite::tx::Tx;

#[cfg(test)]
mod tests;

/// How many bytes of payloads one call rewrites at most, give or take one job: to clear the mark of a job is to write its whole row.
const REWRITTEN_BYTES: usize = 2 << 20;
/// How many bytes of finished jobs one call deletes at most, give or take one job: the pages of a long payload are read to be freed.
const DELETED_BYTES: usize = 8 << 20;

/// Deletes up to so many records of one kind, and returns how many.
type Forget = fn(&Tx<'_>, usize, Timestamp) -> Result<usize, Fault>;

/// Deletes up to `limit` records and returns how many. Clears up to as many due marks as well, which only keeps the
/// count of scheduled jobs cheap; they count where there are more, so that the caller comes again soon.
pub fn prune(tx: &Tx<'_>, limit: usize, now: Timestamp) -> Result<u64, Fault> {
    let mut forgotten = 0;
    let each: [Forget; 8] = [
        forget_keys,
        forget_receipts,
        forget_requests,
        forget_workers,
        forget_history,
        forget_batches,
        |tx, limit, now| operations::forget(tx, limit, now),
        |tx, limit, now| audit::forget(tx, limit, now),
    ];
    for forget in each {
        forgotten += forget(tx, limit - forgotten, now)?;
    }
    forgotten += wipe_marks(tx, limit, now)?;
    Ok(forgotten as u64)
}

/// The words of these states, as a list of SQL.
fn words(states: impl Iterator<Item = State>) -> String {
    states.map(|state| format!("'{}'", state.as_str())).collect::<Vec<_>>().join(", ")
}

/// Keys whose job is unfinished are checked again later. No text is read: another program may have written what is none.
fn forget_keys(db: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let first = "(queue, key) IN (SELECT queue, key FROM keys INDEXED BY keys_look_at WHERE look_at <= ?1 \
         ORDER BY look_at LIMIT ?2)";
    let is_taken =
        format!("EXISTS (SELECT 1 FROM jobs WHERE jobs.id = keys.job AND state IN ({}))", words(holding()));
    db.prepare_cached(&format!("UPDATE keys SET look_at = ?3 WHERE {first} AND {is_taken}"))?
        .execute(params![now.millis(), row::signed(limit), now.plus_ms(KEY_CHECKED_AGAIN_MS).millis()])?;
    sweep(db, &format!("DELETE FROM keys WHERE {first} AND NOT {is_taken}"), limit, now)
}

fn forget_receipts(db: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    sweep(
        db,
        "DELETE FROM receipts WHERE (job, claim, verb) IN (SELECT job, claim, verb FROM receipts \
         INDEXED BY receipts_until WHERE until <= ?1 ORDER BY until LIMIT ?2)",
        limit,
        now,
    )
}

fn forget_requests(db: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    sweep(
        db,
        "DELETE FROM requests WHERE id IN (SELECT id FROM requests INDEXED BY requests_until \
         WHERE until <= ?1 ORDER BY until LIMIT ?2)",
        limit,
        now,
    )
}

fn forget_workers(db: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    sweep(
        db,
        "DELETE FROM workers WHERE name IN (SELECT name FROM workers INDEXED BY workers_forget_at \
         WHERE forget_at <= ?1 ORDER BY forget_at LIMIT ?2)",
        limit,
        now,
    )
}

fn forget_history(tx: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let mut finished = tx.prepare_cached(&format!(
        "SELECT rowid, octet_length(payload) + coalesce(octet_length(payload_binary), 0) + coalesce(octet_length(result), 0) \
         FROM jobs INDEXED BY jobs_purge_at WHERE purge_at <= ?1 AND state IN ({}) ORDER BY purge_at LIMIT ?2",
        words(purged()),
    ))?;
    let (rowids, _) = up_to(&mut finished, DELETED_BYTES, limit, now)?;
    let mut forget = tx.prepare_cached("DELETE FROM jobs WHERE rowid = ?1 RETURNING queue, state")?;
    for rowid in &rowids {
        let mut rows = forget.query([rowid])?;
        while let Some(found) = rows.next()? {
            if let Some(queue) = readable(row::parsed(found, 0, "queue"))? {
                tx.leaves(&queue, row::state(found, 1)?, false);
            }
        }
    }
    Ok(rowids.len())
}

/// Returns the rowids that a statement finds, and how long these rows are in all: not many more bytes than so many.
fn up_to(
    statement: &mut Statement<'_>,
    most: usize,
    limit: usize,
    now: Timestamp,
) -> Result<(Vec<i64>, usize), Fault> {
    let (mut rowids, mut bytes): (Vec<i64>, usize) = (Vec::new(), 0);
    let mut rows = statement.query([now.millis(), row::signed(limit)])?;
    while bytes < most
        && let Some(found) = rows.next()?
    {
        rowids.push(found.get(0)?);
        bytes = bytes.saturating_add(usize::try_from(found.get::<_, i64>(1)?).unwrap_or(0));
    }
    Ok((rowids, bytes))
}

/// The results of a batch go first, so that none is ever left without its batch.
fn forget_batches(tx: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let first =
        "SELECT id FROM batches INDEXED BY batches_purge_at WHERE purge_at <= ?1 ORDER BY purge_at LIMIT 1";
    let results = format!(
        "DELETE FROM batch_results WHERE rowid IN \
         (SELECT rowid FROM batch_results WHERE batch = ({first}) ORDER BY job LIMIT ?2)"
    );
    let batch = format!("DELETE FROM batches WHERE id = ({first})");
    let mut forgotten = 0;
    while forgotten < limit {
        forgotten += sweep(tx, &results, limit - forgotten, now)?;
        if forgotten < limit {
            match tx.prepare_cached(&batch)?.execute([now.millis()])? {
                0 => break,
                gone => forgotten += gone,
            }
        }
    }
    Ok(forgotten)
}

/// The length of a payload is read without the payload.
pub const PASSED_MARKS: &str = "SELECT rowid, octet_length(payload) + coalesce(octet_length(payload_binary), 0) \
     FROM jobs INDEXED BY jobs_due WHERE due <= ?1 ORDER BY due LIMIT ?2";

/// Clears due marks that have passed, and returns how many, if there may be more.
fn wipe_marks(tx: &Tx<'_>, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let mut passed = tx.prepare_cached(PASSED_MARKS)?;
    let (rowids, bytes) = up_to(&mut passed, REWRITTEN_BYTES, limit, now)?;
    let mut wipe = tx.prepare_cached("UPDATE jobs SET due = NULL WHERE rowid = ?1 RETURNING queue")?;
    for rowid in &rowids {
        let mut rows = wipe.query([rowid])?;
        while let Some(found) = rows.next()? {
            if let Some(queue) = readable(row::parsed(found, 0, "queue"))? {
                tx.unmarks(&queue);
            }
        }
    }
    let may_be_more = rowids.len() >= limit || bytes >= REWRITTEN_BYTES;
    Ok(if may_be_more { rowids.len() } else { 0 })
}

fn sweep(db: &Connection, sql: &str, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    Ok(db.prepare_cached(sql)?.execute([now.millis(), row::signed(limit)])?)
}
