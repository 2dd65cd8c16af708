//! The lines of groups: who comes next. A line is the rows that have a `turn`, and its order is theirs; the first
//! one is never blocked by the group, and all others are.

use rusqlite::{Connection, OptionalExtension, params};

use super::fault::Fault;
use super::tx::Tx;
use crate::job::group::{Line, Vacated};
use crate::job::transition::{Next, Step};
use crate::job::{Job, QueueName, State, Timestamp};

/// The number of the last place that is taken.
pub(super) const LAST: &str = "SELECT turn FROM jobs INDEXED BY jobs_turn \
     WHERE queue = ?1 AND group_name = ?2 AND turn IS NOT NULL ORDER BY turn DESC LIMIT 1";
/// The first place that is taken.
pub(super) const FIRST: &str = "SELECT rowid, run_at FROM jobs INDEXED BY jobs_turn \
     WHERE queue = ?1 AND group_name = ?2 AND turn IS NOT NULL ORDER BY turn LIMIT 1";

fn last(db: &Connection, line: &Line) -> Result<Option<i64>, Fault> {
    let mut last = db.prepare_cached(LAST)?;
    Ok(last.query_row([line.queue.as_str(), line.group.as_str()], |row| row.get(0)).optional()?)
}

/// The new job with its place at the end of its line, if it belongs into one.
pub(super) fn placed(db: &Connection, job: &Job) -> Result<Option<Job>, Fault> {
    let Some(line) = Line::to_join(&job.meta) else { return Ok(None) };
    let last = last(db, &line)?;
    let mut job = job.clone();
    job.meta.stand(last.unwrap_or(0) + 1, last.is_none());
    Ok(Some(job))
}

/// Puts the job that the step writes at the end of the line that it comes to. `from`: the place that it leaves, which
/// may be in the same line, and is still taken.
pub(super) fn join(db: &Connection, step: &mut Step, from: Option<&Vacated>) -> Result<(), Fault> {
    let Next::Write { meta, .. } = &step.next else { return Ok(()) };
    let Some(line) = Line::to_join(meta) else { return Ok(()) };
    let last = last(db, &line)?;
    let is_own =
        |last: i64| from.is_some_and(|from| from.line == line && from.turn == last && from.was_first);
    step.stand(last.unwrap_or(0) + 1, last.is_none_or(is_own));
    Ok(())
}

/// After a job has left its place: whose turn has come, if it was the first.
pub(super) fn advance(
    tx: &Tx<'_>,
    vacated: Option<Vacated>,
    now: Timestamp,
) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let Some(Vacated { line: Line { queue, group }, was_first: true, .. }) = vacated else {
        return Ok(Vec::new());
    };
    let mut first = tx.prepare_cached(FIRST)?;
    let first = first.query_row([queue.as_str(), group.as_str()], |row| Ok((row.get(0)?, row.get(1)?)));
    let Some((rowid, run_at)) = first.optional()? else { return Ok(Vec::new()) };
    let (rowid, run_at): (i64, Timestamp) = (rowid, Timestamp::from_millis(run_at));
    let due = Some(run_at).filter(|at| *at > now).map(Timestamp::millis);
    let unblocked = tx
        .prepare_cached(
            "UPDATE jobs SET state = 'ready', due = ?2, rev = ?3 WHERE rowid = ?1 AND state = 'blocked'",
        )?
        .execute(params![rowid, due, rand::random::<i64>()])?;
    if unblocked == 0 {
        return Ok(Vec::new()); // it came to the line in this very step, alone
    }
    tx.leaves(&queue, State::Blocked, false);
    tx.enters(&queue, State::Ready, due.is_some());
    Ok(vec![(queue, run_at)])
}
