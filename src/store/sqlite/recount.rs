//! What is kept beside the jobs is compared with them once after a start: the counts of the queues, and that who holds a semaphore is
//! reserved. Both are written with every change, and differ only where another program changed the file: by hand, or to save what a
//! damaged one had.

use std::collections::HashMap;

use rusqlite::{Connection, Row, params};

use crate::faults;
use crate::store::Result as Stored;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::tx::Tx;

/// Ready, marked, reserved, blocked, done and dead jobs, by the bytes of the queue's name.
type Counts = HashMap<Vec<u8>, [i64; 6]>;

/// Both are read from indexes alone, in their order, and in little memory.
pub const BY_STATE: &str = "SELECT queue, sum(state = 'ready'), 0, sum(state = 'reserved'), sum(state = 'blocked'), \
     sum(state = 'done'), sum(state = 'dead') FROM jobs INDEXED BY jobs_browse GROUP BY queue";
pub const MARKED: &str = "SELECT queue, 0, count(*), 0, 0, 0, 0 FROM jobs INDEXED BY jobs_due WHERE due IS NOT NULL \
     GROUP BY due, queue";

const KEPT: &str = "SELECT queue, ready, marked, reserved, blocked, done, dead FROM counters";

/// Holders of semaphores that hold none.
const HOLD_NOTHING: &str = "SELECT EXISTS (SELECT 1 FROM semaphores s \
     CROSS JOIN needs n INDEXED BY needs_state ON n.semaphore = s.name AND n.state = 'reserved' \
     LEFT JOIN jobs j ON j.id = n.job WHERE j.state IS NOT 'reserved')";

/// Takes away rows of `needs` that disagree with their jobs, or have none.
const DROP_NEEDS: &str =
    "DELETE FROM needs WHERE state IS NOT (SELECT state FROM jobs WHERE jobs.id = needs.job)";

/// Adds those that are missing, of the jobs in a range of rows. Names that are none are left out: others are found by them.
const MISSING_NEEDS: &str = "INSERT OR IGNORE INTO needs (semaphore, job, queue, state, priority, run_at, waits, waiting_since) \
     SELECT each.value, jobs.id, jobs.queue, jobs.state, jobs.priority, jobs.run_at, \
            coalesce(jobs.waits_for = each.value, 0), jobs.waiting_since \
     FROM jobs, json_each(CASE WHEN json_valid(jobs.semaphores) THEN jobs.semaphores ELSE '[]' END) each \
     WHERE jobs.rowid > ?1 AND jobs.rowid <= ?2 AND jobs.semaphores IS NOT NULL \
       AND jobs.state IN ('ready', 'blocked', 'reserved') AND each.type = 'text' \
       AND each.value NOT GLOB '*[^A-Za-z0-9._:-]*' AND jobs.queue NOT GLOB '*[^A-Za-z0-9._:-]*' \
       AND jobs.id NOT GLOB '*[^A-Za-z0-9_-]*'";

/// The end of a range of so many rows.
const RANGE_END: &str =
    "SELECT max(rowid) FROM (SELECT rowid FROM jobs WHERE rowid > ?1 ORDER BY rowid LIMIT ?2)";
/// How many rows of jobs one transaction reads: others wait for the writer, too.
const RANGE: i64 = 10_000;

/// Compares, and writes anew what differs from the jobs. Returns by how many jobs the counts were off. The counts come last: where it
/// ends before, the next start begins again.
pub async fn check(store: &SqliteStore) -> Stored<u64> {
    if faults::bug("trust_counts") {
        return Ok(0); // a test reads what a crash has left
    }
    if !store.read(|db, _| differs(db)).await? {
        return Ok(0);
    }
    tracing::warn!("the counts were not those of the jobs, which another program has changed: counting anew");
    store.writer.run(|tx, _| Ok(tx.execute(DROP_NEEDS, [])?)).await?;
    let mut behind = Some(i64::MIN);
    while let Some(from) = behind {
        behind = store.writer.run(move |tx, _| add_missing(tx, from)).await?;
    }
    store.writer.run(|tx, _| recount(tx)).await
}

/// Adds the rows of `needs` that are missing behind this row of `jobs`. Returns where to go on.
fn add_missing(tx: &Tx<'_>, from: i64) -> Result<Option<i64>, Fault> {
    let end: Option<i64> = tx.prepare_cached(RANGE_END)?.query_row([from, RANGE], |row| row.get(0))?;
    if let Some(end) = end {
        tx.prepare_cached(MISSING_NEEDS)?.execute([from, end])?;
    }
    Ok(end)
}

fn differs(db: &Connection) -> Result<bool, Fault> {
    Ok(counted(db)? != kept(db)? || db.query_row(HOLD_NOTHING, [], |row| row.get(0))?)
}

fn counted(db: &Connection) -> Result<Counts, Fault> {
    let mut counts = Counts::new();
    [BY_STATE, MARKED].into_iter().try_for_each(|sql| add(db, sql, &mut counts))?;
    Ok(counts)
}

fn kept(db: &Connection) -> Result<Counts, Fault> {
    let mut counts = Counts::new();
    add(db, KEPT, &mut counts)?;
    Ok(counts)
}

/// Writes the counts anew that differ. Nothing else writes meanwhile.
fn recount(tx: &Tx<'_>) -> Result<u64, Fault> {
    tx.flush()?;
    let (mut counted, mut kept) = (counted(tx)?, kept(tx)?);
    let queues: Vec<Vec<u8>> = counted.keys().chain(kept.keys()).cloned().collect();
    let mut corrected = 0;
    for queue in queues {
        // The second time, where it is in both, nothing is left.
        let (right, wrong) = (counted.remove(&queue), kept.remove(&queue));
        let pairs = right.unwrap_or_default().into_iter().zip(wrong.unwrap_or_default());
        corrected += pairs.map(|(right, wrong)| right.abs_diff(wrong)).sum::<u64>();
        if right == wrong {
            continue;
        }
        tx.prepare_cached("DELETE FROM counters WHERE queue = CAST(?1 AS TEXT)")?.execute([&queue])?;
        if let Some([ready, marked, reserved, blocked, done, dead]) = right {
            tx.prepare_cached(
                "INSERT INTO counters (queue, ready, marked, reserved, blocked, done, dead) \
                 VALUES (CAST(?1 AS TEXT), ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![queue, ready, marked, reserved, blocked, done, dead])?;
        }
    }
    Ok(corrected)
}

fn add(db: &Connection, sql: &str, to: &mut Counts) -> Result<(), Fault> {
    let mut counts = db.prepare(sql)?;
    let mut rows = counts.query([])?;
    while let Some(row) = rows.next()? {
        let name = name(row)?;
        if !to.contains_key(name) {
            to.insert(name.to_vec(), [0; 6]);
        }
        for (column, sum) in to.get_mut(name).into_iter().flatten().enumerate() {
            *sum += row.get::<_, i64>(column + 1)?;
        }
    }
    Ok(())
}

/// Returns the name of a queue, which may be none that is valid.
fn name<'a>(row: &'a Row<'_>) -> Result<&'a [u8], Fault> {
    row.get_ref(0)?.as_bytes().map_err(|error| Fault::stored("queue", error))
}
