//! Schedules: rows, and firing them.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::job::{JobId, Schedule, ScheduleName, State, Timestamp};
use crate::store::schedules::FireStep;
use crate::store::settings::valid_version;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::push::{self, New};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::{Fired, Firing, ListedSchedule, PageBuilder, Result, Saved, Schedules, StoreError};

#[async_trait]
impl Schedules for SqliteStore {
    async fn schedules(&self, after: Option<&ScheduleName>, limit: usize) -> Result<Vec<ListedSchedule>> {
        let after = after.cloned();
        self.read(move |db, _| list(db, after.as_ref(), limit)).await
    }

    async fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>> {
        let name = name.clone();
        self.read(move |db, _| find(db, &name)).await.map_err(StoreError::unreadable)
    }

    async fn discard_unreadable_schedule(&self, name: &ScheduleName) -> Result<()> {
        let name = name.clone();
        let discard = move |db: &Tx<'_>| match find(db, &name) {
            Err(Fault::Stored { .. }) => {
                db.prepare_cached("DELETE FROM schedules WHERE name = ?1")?.execute([name.as_str()])?;
                Ok(())
            }
            found => found.map(drop),
        };
        self.writer.run(move |db, _| discard(db)).await
    }

    async fn save_schedule(
        &self,
        name: &ScheduleName,
        to: Option<&Schedule>,
        seen: Option<i64>,
    ) -> Result<Saved> {
        let (name, to) = (name.clone(), to.cloned());
        self.writer.run(move |db, _| save(db, &name, to.as_ref(), seen)).await
    }

    async fn next_occurrences(&self, limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>> {
        self.read(move |db, _| next(db, limit)).await
    }

    async fn fire(&self, firing: &Firing) -> Result<Fired> {
        let firing = firing.clone();
        let job = firing.job.clone().map(New::from);
        self.writer.run(move |tx, now| fire(tx, &firing, job.as_ref(), now)).await
    }
}

/// The columns that [`schedule`] reads and [`put`] writes, in this order.
macro_rules! columns {
    () => {
        "name, version, rev, next_at, last_job, last_runs, rule"
    };
}

/// Returns schedules by name.
fn list(db: &Connection, after: Option<&ScheduleName>, limit: usize) -> Result<Vec<ListedSchedule>, Fault> {
    let mut all = db.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM schedules WHERE name > ?1 ORDER BY name LIMIT ?2"
    ))?;
    let mut rows = all.query(params![after.map_or("", ScheduleName::as_str), row::signed(limit)])?;
    let mut schedules = PageBuilder::new(limit);
    while !schedules.is_full()
        && let Some(found) = rows.next()?
    {
        match schedule(found) {
            Err(error @ Fault::Stored { .. }) => {
                tracing::error!(%error, "a schedule cannot be read");
                if let Ok(name) = row::parsed(found, 0, "name of a schedule") {
                    schedules.push(Err((name, error.to_string())));
                }
            }
            read => schedules.push(Ok(read?)),
        }
    }
    Ok(schedules.into_items())
}

fn find(db: &Connection, name: &ScheduleName) -> Result<Option<Schedule>, Fault> {
    let mut by_name = db.prepare_cached(concat!("SELECT ", columns!(), " FROM schedules WHERE name = ?1"))?;
    let mut rows = by_name.query([name.as_str()])?;
    rows.next()?.map(schedule).transpose()
}

/// The statement that reads all schedules.
pub const ALL: &str = concat!("SELECT ", columns!(), " FROM schedules ORDER BY name");

/// Reads a schedule from its row.
pub fn schedule(found: &Row<'_>) -> Result<Schedule, Fault> {
    Ok(Schedule {
        name: row::parsed(found, 0, "name of a schedule")?,
        version: valid_version(row::own(found, 1, "version of a schedule")?)
            .ok_or_else(|| Fault::stored("version of a schedule", "not a version"))?,
        rev: row::own(found, 2, "rev of a schedule")?,
        next_at: row::own::<Option<i64>>(found, 3, "next run of a schedule")?.map(Timestamp::from_millis),
        last_job: row::parsed_if_any(found, 4, "job of a schedule")?,
        last_runs: row::json(found, 5, "runs of a schedule")?.unwrap_or_default(),
        rule: row::json(found, 6, "rule of a schedule")?
            .ok_or_else(|| Fault::stored("rule of a schedule", "missing"))?,
    })
}

fn rev(db: &Connection, name: &ScheduleName) -> Result<Option<i64>, Fault> {
    let mut by_name = db.prepare_cached("SELECT rev FROM schedules WHERE name = ?1")?;
    Ok(by_name.query_row([name.as_str()], |row| row.get(0)).optional()?)
}

/// Writes or removes a schedule unless it has changed since it was read.
fn save(
    db: &Connection,
    name: &ScheduleName,
    to: Option<&Schedule>,
    seen: Option<i64>,
) -> Result<Saved, Fault> {
    if rev(db, name)? != seen {
        return Ok(Saved::Conflict);
    }
    match to {
        Some(schedule) => put(db, schedule)?,
        None => {
            db.prepare_cached("DELETE FROM schedules WHERE name = ?1")?.execute([name.as_str()])?;
        }
    }
    Ok(Saved::Done)
}

fn put(db: &Connection, schedule: &Schedule) -> Result<(), Fault> {
    db.prepare_cached(concat!(
        "INSERT OR REPLACE INTO schedules (",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
    ))?
    .execute(params![
        schedule.name.as_str(),
        schedule.version,
        schedule.rev,
        schedule.next_at.map(Timestamp::millis),
        schedule.last_job.as_ref().map(|id| id.as_str()),
        row::to_json(Some(&schedule.last_runs).filter(|runs| !runs.is_empty()))?,
        row::to_json(Some(&schedule.rule))?,
    ])?;
    Ok(())
}

pub const NEXT: &str = "SELECT name, next_at FROM schedules INDEXED BY schedules_next_at \
     WHERE next_at IS NOT NULL ORDER BY next_at, name LIMIT ?1";

fn next(db: &Connection, limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>, Fault> {
    let mut next = db.prepare_cached(NEXT)?;
    let mut rows = next.query([row::signed(limit)])?;
    let mut moments = Vec::new();
    while let Some(found) = rows.next()? {
        match row::parsed(found, 0, "name of a schedule") {
            Ok(name) => moments.push((name, Timestamp::from_millis(found.get(1)?))),
            Err(error) => tracing::error!(%error, "a schedule cannot be read"),
        }
    }
    Ok(moments)
}

/// Returns the state of this job, wherever it is now, if it is there and can be read: the rest of it does not matter.
fn state_of(db: &Connection, id: &JobId) -> Result<Option<State>, Fault> {
    let mut state = db.prepare_cached("SELECT state FROM jobs WHERE id = ?1")?;
    let mut rows = state.query([id.as_str()])?;
    let Some(found) = rows.next()? else { return Ok(None) };
    readable(row::state(found, 0))
}

/// Stores the job and what the schedule is then.
pub fn fire(tx: &Tx<'_>, firing: &Firing, job: Option<&New>, now: Timestamp) -> Result<Fired, Fault> {
    let found = find(tx, &firing.name)?;
    let last = match found.as_ref().and_then(|schedule| firing.yields_to(schedule)) {
        Some(id) => state_of(tx, id)?,
        None => None,
    };
    let (schedule, run) = match firing.onto(found, last) {
        FireStep::Answer(fired) => return Ok(fired),
        FireStep::Fire { schedule, run } => (schedule, run),
    };
    if let Some(job) = job.filter(|_| run.job_id.is_some()) {
        push::store(tx, job, now)?;
    }
    put(tx, &schedule)?;
    Ok(Fired::Done(run))
}
