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

/// Both are read from indexes alone, in their order: a large file is compared in a few seconds, and in little memory.
pub const BY_STATE: &str = "SELECT queue, sum(state = 'ready'), 0, sum(state = 'reserved'), sum(state = 'blocked'), \
     sum(state = 'done'), sum(state = 'dead') FROM jobs INDEXED BY jobs_browse GROUP BY queue";
pub const MARKED: &str = "SELECT queue, 0, count(*), 0, 0, 0, 0 FROM jobs INDEXED BY jobs_due WHERE due IS NOT NULL \
     GROUP BY due, queue";

const KEPT: &str = "SELECT queue, ready, marked, reserved, blocked, done, dead FROM counters";

/// Holders of semaphores that hold none.
const HOLD_NOTHING: &str = "SELECT EXISTS (SELECT 1 FROM semaphores s \
     CROSS JOIN needs n INDEXED BY needs_state ON n.semaphore = s.name AND n.state = 'reserved' \
     LEFT JOIN jobs j ON j.id = n.job WHERE j.state IS NOT 'reserved')";

const REBUILD_NEEDS: &str = "DELETE FROM needs;
     INSERT OR IGNORE INTO needs (semaphore, job, queue, state, priority, run_at, waits, waiting_since)
     SELECT each.value, jobs.id, jobs.queue, jobs.state, jobs.priority, jobs.run_at,
            coalesce(jobs.waits_for = each.value, 0), jobs.waiting_since
     FROM jobs, json_each(CASE WHEN json_valid(jobs.semaphores) THEN jobs.semaphores ELSE '[]' END) each
     WHERE jobs.semaphores IS NOT NULL AND jobs.state IN ('ready', 'blocked', 'reserved') AND each.type = 'text';";

/// Compares, and writes anew what differs from the jobs. Returns by how many jobs the counts were off. Where the file is too damaged for
/// that, it stays as it is: what can be read is served.
pub async fn check(store: &SqliteStore) -> Stored<u64> {
    if faults::bug("trust_counts") {
        return Ok(0); // a test looks at what a crash has left
    }
    if !store.read(|db, _| differs(db)).await? {
        return Ok(0);
    }
    tracing::warn!("the counts were not those of the jobs, which another program has changed: counting anew");
    let corrected = store.writer.run(|tx, _| recount(tx)).await?;
    store.writer.run(|tx, _| Ok(tx.execute_batch(REBUILD_NEEDS)?)).await?;
    Ok(corrected)
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
