//! The due jobs of one priority, from a place in the order of delivery on.
//!
//! Some of them may not be delivered: they have expired, or a pop passes over them since they need semaphores. The index does not say so:
//! each costs a read of its row. A million jobs that expired together would keep the one thread that writes busy with every claim of
//! their queue, while all other queues wait. So a read ends once it has passed over as many as it may. The place is remembered
//! (see `priorities`), and the claim goes on from there in another transaction. Those that cannot be read, and that the claim makes
//! dead, count alike: the next transaction does not find them any more.

use rusqlite::{Connection, Row, Statement, params};

use crate::job::{Job, QueueName, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::priorities::Place;
use crate::store::sqlite::jobs::row::{self, Found, found_columns, job_columns};
use crate::store::{PageBuilder, Weight as _};

#[cfg(test)]
mod tests;

/// Of a job that may not be delivered the row has its place and nothing else, so that its payload is not read.
macro_rules! due_sql {
    ($only:literal) => {
        concat!(
            "SELECT ",
            job_columns!(),
            found_columns!(),
            ", at, name FROM (SELECT rowid AS job_row, run_at AS at, id AS name FROM jobs INDEXED BY jobs_head \
             WHERE queue = ?1 AND state = 'ready' AND priority = ?2 AND run_at <= ?3 AND (run_at, id) >= (?4, ?5)) \
             LEFT JOIN jobs ON jobs.rowid = job_row AND (expires_at IS NULL OR expires_at > ?3)",
            $only,
            " ORDER BY at, name"
        )
    };
}

/// The due jobs of one priority, for a reserve. Expired ones are passed over: the reaper takes them away.
pub const DUE: &str = due_sql!("");
/// The same for a pop, which passes over jobs that need semaphores, too.
pub const DUE_FOR_POP: &str = due_sql!(" AND semaphores IS NULL");

/// How many columns stand behind those of the job.
const COLUMNS_BEHIND: usize = 4;

/// Where the columns behind those of the job are.
struct Columns {
    /// NULL in the row of a job that may not be delivered.
    rowid: usize,
    run_at: usize,
    id: usize,
}

impl Columns {
    fn of(statement: &Statement<'_>) -> Self {
        let rowid = statement.column_count().saturating_sub(COLUMNS_BEHIND);
        Self { rowid, run_at: rowid + 2, id: rowid + 3 }
    }

    /// Returns the place of the row; nothing where the id, which another program wrote, is no text.
    fn place(&self, row: &Row<'_>) -> Result<Option<Place>, Fault> {
        let Ok(id) = row.get_ref(self.id)?.as_str() else { return Ok(None) };
        Ok(Some(Place { run_at: row.get(self.run_at)?, id: id.to_owned() }))
    }
}

/// The most that one read returns, and passes over, give or take one.
pub struct Most {
    /// So many jobs.
    pub jobs: usize,
    /// So many bytes of them.
    pub bytes: usize,
    /// So many jobs that may not be delivered, or cannot be read.
    pub passed: usize,
}

/// What a read has found.
#[derive(Default)]
pub struct Due {
    /// The jobs that may be delivered, in order.
    pub jobs: Vec<Found<Job>>,
    /// The rowids of those that cannot be read.
    pub spoiled: Vec<i64>,
    /// How many bytes the jobs have.
    pub bytes: usize,
    /// How many jobs were passed over.
    pub passed: usize,
    /// How many of those come before all that was found, and the place of the last one.
    pub ahead: Option<(usize, Place)>,
    /// Whether it ended because so many were passed over, or cannot be read: there may be more behind them.
    pub is_cut: bool,
}

/// Reads the due jobs of a priority from this place on.
pub fn read(
    db: &Connection,
    sql: &str,
    (queue, priority): (&QueueName, i64),
    from: &Place,
    most: &Most,
    now: Timestamp,
) -> Result<Due, Fault> {
    let mut statement = db.prepare_cached(sql)?;
    let columns = Columns::of(&statement);
    let mut rows =
        statement.query(params![queue.as_str(), priority, now.millis(), from.run_at, from.id.as_str()])?;
    let mut due = Due::default();
    while due.jobs.len() + due.spoiled.len() < most.jobs
        && due.bytes < most.bytes
        && !due.is_cut
        && let Some(row) = rows.next()?
    {
        let Some(rowid) = row.get::<_, Option<i64>>(columns.rowid)? else {
            due.pass(columns.place(row)?, from, most);
            continue;
        };
        match readable(row::found_job(row))? {
            Some(found) => {
                due.bytes += found.job.weight();
                due.jobs.push(found);
            }
            None => due.spoil(rowid, most),
        }
    }
    Ok(due)
}

impl Due {
    /// Passes over a job in this place. Where no place behind `from` is known, the read goes on: no other transaction could begin further on.
    fn pass(&mut self, place: Option<Place>, from: &Place, most: &Most) {
        self.passed += 1;
        let is_first = self.jobs.is_empty() && self.spoiled.is_empty();
        if let Some(place) = place.filter(|_| is_first) {
            self.ahead = Some((self.passed, place));
        }
        let gets_on = !is_first || self.ahead.as_ref().is_some_and(|(_, place)| place > from);
        self.is_cut = self.are_enough(most) && gets_on;
    }

    /// Notes a job that cannot be read.
    fn spoil(&mut self, rowid: i64, most: &Most) {
        self.spoiled.push(rowid);
        self.is_cut = self.are_enough(most);
    }

    fn are_enough(&self, most: &Most) -> bool {
        self.passed + self.spoiled.len() >= most.passed
    }
}

/// Adds the jobs of a priority that may be delivered to a page, from this place on.
pub fn peek(
    db: &Connection,
    (queue, priority): (&QueueName, i64),
    from: &Place,
    now: Timestamp,
    page: &mut PageBuilder<Job>,
) -> Result<(), Fault> {
    let mut due = db.prepare_cached(DUE)?;
    let rowid = Columns::of(&due).rowid;
    let mut rows =
        due.query(params![queue.as_str(), priority, now.millis(), from.run_at, from.id.as_str()])?;
    while !page.is_full()
        && let Some(found) = rows.next()?
    {
        if found.get::<_, Option<i64>>(rowid)?.is_some() {
            readable(row::job(found))?.into_iter().for_each(|job| page.push(job));
        }
    }
    Ok(())
}
