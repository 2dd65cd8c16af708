//! The lines of groups. A line is the rows that have a `turn`, in that order; the first one is never blocked by the
//! group, and all others are.

use rusqlite::{Connection, OptionalExtension};

use crate::job::group::{Line, Vacated};
use crate::job::transition::delivery::{self, BURY, UNBLOCK};
use crate::job::transition::{Next, Step};
use crate::job::{GroupName, Job, JobId, Meta, QueueName, Rules, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::claim::not_as_listed;
use crate::store::sqlite::jobs::row::{self, Found};
use crate::store::sqlite::jobs::unreadable;
use crate::store::sqlite::tx::Tx;

/// The number of the last place that is taken. Places that no line has ever had come from another program.
pub const LAST: &str = "SELECT turn FROM jobs INDEXED BY jobs_turn \
     WHERE queue = ?1 AND group_name = ?2 AND turn < 4611686018427387904 ORDER BY turn DESC LIMIT 1";
/// The first place that is taken.
pub const FIRST: &str = "SELECT rowid, id, state, due IS NOT NULL FROM jobs INDEXED BY jobs_turn \
     WHERE queue = ?1 AND group_name = ?2 AND turn IS NOT NULL ORDER BY turn LIMIT 1";

fn last(db: &Connection, line: &Line) -> Result<Option<i64>, Fault> {
    let mut last = db.prepare_cached(LAST)?;
    Ok(last.query_row([line.queue.as_str(), line.group.as_str()], |row| row.get(0)).optional()?)
}

/// Returns the new job with its place at the end of its line, if it belongs into one.
pub fn placed(db: &Connection, job: &Job) -> Result<Option<Job>, Fault> {
    let Some(line) = Line::to_join(&job.meta) else { return Ok(None) };
    let last = last(db, &line)?;
    let mut job = job.clone();
    delivery::join_line(&mut job.meta, last.unwrap_or(0) + 1, last.is_none());
    Ok(Some(job))
}

/// Puts the job that the step writes at the end of the line that it joins. `from`: the place that it leaves, which may
/// be in the same line, and is still taken.
pub fn join(db: &Connection, step: &mut Step, from: Option<&Vacated>) -> Result<(), Fault> {
    let Next::Write { meta, .. } = &step.next else { return Ok(()) };
    let Some(line) = Line::to_join(meta) else { return Ok(()) };
    let last = last(db, &line)?;
    let is_own =
        |last: i64| from.is_some_and(|from| from.line == line && from.turn == last && from.was_first);
    step.join_line(last.unwrap_or(0) + 1, last.is_none_or(is_own));
    Ok(())
}

/// Unblocks the next job of a line that has lost its first. Returns its queue and when it is due.
pub fn advance(
    tx: &Tx<'_>,
    vacated: Option<Vacated>,
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let Some(Vacated { line: Line { queue, group }, was_first: true, .. }) = vacated else {
        return Ok(Vec::new());
    };
    let Some(found) = first(tx, &queue, &group, rules, now)? else { return Ok(Vec::new()) };
    if found.job.state != UNBLOCK.from {
        return Ok(Vec::new()); // it joined the line in this very step, alone
    }
    let mut ready = found.job.clone();
    delivery::unblock(&mut ready, now).map_err(not_as_listed)?;
    row::update(tx, &found, &ready, row::Contents::default(), now)?;
    Ok(vec![(queue, ready.run_at)])
}

/// Returns the first job of a line, if it can be read: dead, it holds its group until it is removed. One whose id is none cannot be
/// removed, and leaves its place. Where the transaction has made enough of those dead, the next one stays the first: a claim or the reaper
/// finds it, makes it dead, and goes on from there.
fn first(
    tx: &Tx<'_>,
    queue: &QueueName,
    group: &GroupName,
    rules: &Rules,
    now: Timestamp,
) -> Result<Option<Found<Meta>>, Fault> {
    let mut first = tx.prepare_cached(FIRST)?;
    loop {
        let mut rows = first.query([queue.as_str(), group.as_str()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let (rowid, id) = (row.get(0)?, readable(row::parsed::<JobId>(row, 1, "id"))?);
        let (state, marked) = (row::state(row, 2)?, row.get(3)?);
        drop(rows);
        // What is dead already only leaves.
        if id.is_none() && tx.has_buried_enough() && BURY.iter().any(|bury| bury.from == state) {
            if state == UNBLOCK.from {
                row::set_unblocked(tx, rowid, UNBLOCK.to, now)?;
                tx.leaves(queue, state, marked);
                tx.enters(queue, UNBLOCK.to, false);
            }
            return Ok(None);
        }
        if let Some(id) = &id
            && let Some(found) = readable(row::meta_of(tx, id))?
        {
            return Ok(found);
        }
        unreadable::bury_alone(tx, rowid, id.is_some(), rules, now)?;
        if id.is_some() {
            return Ok(None);
        }
        tx.prepare_cached("UPDATE jobs SET turn = NULL WHERE rowid = ?1")?.execute([rowid])?;
    }
}
