//! Jobs as rows of the table `jobs`, and back.

use std::str::FromStr;

use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, Statement, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::transition::delivery::RESERVE;
use crate::job::{Job, JobId, Meta, Payload, State, Timestamp};
use crate::store::Weight as _;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::column::Column;
use crate::store::sqlite::jobs::needs;
use crate::store::sqlite::tx::Tx;

/// The most bytes that are read of a head, give or take one job: large payloads come in smaller batches.
pub const HEAD_BYTES: usize = 16 << 20;

/// Every field of the metadata and its column, handed to the macro `$then`: its list, its reading and its writing
/// are made from this table. A new field stands here once, in the group that says when its column is written, and in a
/// migration. The column `rev` is beside it: every write makes a new one.
macro_rules! meta_table {
    ($($then:tt)+) => {
        $($then)+! {
            // With the push, and never again.
            push {
                id "id",
                created_at "created_at",
                replay_of "replay_of",
                group "group_name",
                semaphores "semaphores",
            }
            // With the push, and with every update.
            both {
                queue "queue",
                state "state",
                priority "priority",
                run_at "run_at",
                attempts "attempts",
                max_attempts "max_attempts",
                backoff "backoff",
                key "key",
                expires_at "expires_at",
                cancel_requested "cancel_requested",
                route "route",
                batch "batch",
                turn "turn",
            }
            // With every update; NULL from the push until then.
            update {
                started_at "started_at",
                finished_at "finished_at",
                purge_at "purge_at",
                worker "worker",
                claim "claim",
                reserved_until "reserved_until",
                lease_ms "lease_ms",
                progress "progress",
                errors "errors",
                trail "trail",
                origin "origin",
                waits_for "waits_for",
                waiting_since "waiting_since",
            }
        }
    };
}

macro_rules! names {
    ($($when:ident { $($field:ident $column:literal,)* })*) => { concat!($($($column, ", ",)*)* "rev") };
}

/// The columns of the metadata, in the order in which [`meta`] reads them. A macro, so that statements
/// are put together when this is compiled.
macro_rules! meta_columns {
    () => {
        $crate::store::sqlite::jobs::row::meta_table!($crate::store::sqlite::jobs::row::names)
    };
}

/// The columns of a whole job, in the order in which [`job`] reads them.
macro_rules! job_columns {
    () => {
        concat!($crate::store::sqlite::jobs::row::meta_columns!(), ", headers, result, payload")
    };
}
pub(in crate::store::sqlite) use {job_columns, meta_columns, meta_table, names};

/// A row of the table `jobs`, and what only this store knows of it.
pub struct Found<T> {
    /// Its place in the table: the fastest way back to it within one transaction.
    pub rowid: i64,
    /// Whether it has a due mark.
    pub marked: bool,
    /// The job, or its metadata.
    pub job: T,
}

/// The columns of a [`Found`], behind those of its job.
macro_rules! found_columns {
    () => {
        ", rowid, due IS NOT NULL"
    };
}
pub(in crate::store::sqlite) use found_columns;

impl<T> Found<T> {
    fn read(row: &Row<'_>, job: impl FnOnce(&mut Cells<'_>) -> Result<T, Fault>) -> Result<Self, Fault> {
        let mut cells = Cells { row, next: 0 };
        let job = job(&mut cells)?;
        Ok(Self { rowid: cells.read("rowid")?, marked: cells.read("due")?, job })
    }
}

/// The columns of a row that are still to be read.
struct Cells<'a> {
    row: &'a Row<'a>,
    next: usize,
}

impl Cells<'_> {
    fn read<T: Column>(&mut self, name: &'static str) -> Result<T, Fault> {
        let at = self.next;
        self.next += 1;
        T::read(self.row, at, name)
    }
}

/// Reads the columns `meta_columns!`.
fn meta(cells: &mut Cells<'_>) -> Result<Meta, Fault> {
    macro_rules! read {
        ($($when:ident { $($field:ident $column:literal,)* })*) => {
            Meta { $($($field: cells.read($column)?,)*)* rev: cells.read("rev")? }
        };
    }
    Ok(meta_table!(read))
}

fn job_in(cells: &mut Cells<'_>) -> Result<Job, Fault> {
    Ok(Job {
        meta: meta(cells)?,
        headers: cells.read("headers")?,
        result: cells.read("result")?,
        payload: cells.read("payload")?,
    })
}

/// Reads the job from a row of the columns `job_columns!`.
pub fn job(row: &Row<'_>) -> Result<Job, Fault> {
    job_in(&mut Cells { row, next: 0 })
}

/// Returns the metadata of the job with this id.
pub fn meta_of(db: &Connection, id: &JobId) -> Result<Option<Found<Meta>>, Fault> {
    let mut by_id =
        db.prepare_cached(concat!("SELECT ", meta_columns!(), found_columns!(), " FROM jobs WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(|row| Found::read(row, meta)).transpose()
}

/// Returns the job with this id.
pub fn job_of(db: &Connection, id: &JobId) -> Result<Option<Job>, Fault> {
    let mut by_id = db.prepare_cached(concat!("SELECT ", job_columns!(), " FROM jobs WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(job).transpose()
}

/// Reads every row of this query as a job.
pub fn jobs(statement: &mut Statement<'_>, params: impl rusqlite::Params) -> Result<Vec<Job>, Fault> {
    let mut rows = statement.query(params)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.push(job(row)?);
    }
    Ok(jobs)
}

/// Reads every row of this query as a job that is about to be changed.
pub fn found_jobs(
    statement: &mut Statement<'_>,
    params: impl rusqlite::Params,
    bytes: &mut usize,
) -> Result<Vec<Found<Job>>, Fault> {
    let mut rows = statement.query(params)?;
    let mut jobs = Vec::new();
    while *bytes < HEAD_BYTES
        && let Some(row) = rows.next()?
    {
        let found = Found::read(row, job_in)?;
        *bytes += found.job.weight();
        jobs.push(found);
    }
    Ok(jobs)
}

macro_rules! mark {
    ($column:literal) => {
        "?, "
    };
}

/// Stores a job that is new. An id that is there already is refused with a constraint error, which
/// changes nothing.
pub fn insert(tx: &Tx<'_>, job: &Job, now: Timestamp) -> Result<(), Fault> {
    let (meta, due, rev) = (&job.meta, job.meta.due(now), rand::random::<i64>());
    macro_rules! execute {
        (
            push { $($once:ident $once_column:literal,)* }
            both { $($field:ident $column:literal,)* }
            update { $($rest:tt)* }
        ) => {
            tx.prepare_cached(concat!(
                "INSERT INTO jobs (", $($once_column, ", ",)* $($column, ", ",)* "due, rev, headers, payload) \
                 VALUES (", $(mark!($once_column),)* $(mark!($column),)* "?, ?, ?, ?)",
            ))?
            .execute(params![
                $(meta.$once.write()?,)*
                $(meta.$field.write()?,)*
                due.write()?,
                rev,
                job.headers.write()?,
                job.payload.write()?,
            ])?
        };
    }
    meta_table!(execute);
    tx.enters(&meta.queue, meta.state, due.is_some());
    needs::write(tx, meta)
}

/// Writes the reservation of a job that needs no semaphores: what [`update`] would write, and nothing else.
pub fn reserve(tx: &Tx<'_>, found: &Found<Job>) -> Result<(), Fault> {
    let meta = &found.job.meta;
    if !meta.semaphores.is_empty() {
        return Err(Fault::stored("semaphores", "the job was not judged by them"));
    }
    tx.prepare_cached(
        "UPDATE jobs SET state = ?, due = NULL, attempts = ?, started_at = ?, reserved_until = ?, \
         lease_ms = ?, worker = ?, claim = ?, rev = ? WHERE rowid = ?",
    )?
    .execute(params![
        meta.state.write()?,
        meta.attempts,
        meta.started_at.write()?,
        meta.reserved_until.write()?,
        meta.lease_ms.write()?,
        meta.worker.write()?,
        meta.claim.write()?,
        meta.rev,
        found.rowid,
    ])?;
    tx.leaves(&meta.queue, RESERVE.from, found.marked);
    tx.enters(&meta.queue, meta.state, false);
    Ok(())
}

/// Writes a job's new metadata and, where given, a new payload and a result. Returns the `rev` that it has then.
pub fn update(
    tx: &Tx<'_>,
    found: &Found<Meta>,
    meta: &Meta,
    payload: Option<&Payload>,
    result: Option<&Payload>,
    now: Timestamp,
) -> Result<i64, Fault> {
    let (due, rev) = (meta.due(now), rand::random::<i64>());
    macro_rules! execute {
        (
            push { $($once:tt)* }
            both { $($field:ident $column:literal,)* }
            update { $($later:ident $later_column:literal,)* }
        ) => {
            tx.prepare_cached(concat!(
                "UPDATE jobs SET ", $($column, " = ?, ",)* $($later_column, " = ?, ",)* "due = ?, rev = ?, \
                 result = coalesce(?, result), payload = coalesce(?, payload) WHERE rowid = ?",
            ))?
            .execute(params![
                $(meta.$field.write()?,)*
                $(meta.$later.write()?,)*
                due.write()?,
                rev,
                result.map(Payload::as_str),
                payload.map(Payload::as_str),
                found.rowid,
            ])?
        };
    }
    meta_table!(execute);
    tx.leaves(&found.job.queue, found.job.state, found.marked);
    tx.enters(&meta.queue, meta.state, due.is_some());
    needs::write(tx, meta)?;
    Ok(rev)
}

/// Deletes a job.
pub fn delete(tx: &Tx<'_>, found: &Found<Meta>) -> Result<(), Fault> {
    tx.prepare_cached("DELETE FROM jobs WHERE rowid = ?1")?.execute([found.rowid])?;
    tx.leaves(&found.job.queue, found.job.state, found.marked);
    needs::remove(tx, &found.job)
}

/// A count or a length as SQLite keeps it.
pub fn signed(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// The value as JSON text, if there is one.
pub fn to_json<T: Serialize>(value: Option<&T>) -> Result<Option<String>, Fault> {
    value
        .map(serde_json::to_string)
        .transpose()
        .map_err(|error| Fault::Sql(rusqlite::Error::ToSqlConversionFailure(error.into())))
}

/// The text of a column that is read as JSON; nothing for NULL.
pub fn json<T: DeserializeOwned>(row: &Row<'_>, at: usize, what: &'static str) -> Result<Option<T>, Fault> {
    text(row, at)?.map(serde_json::from_str).transpose().map_err(|error| Fault::stored(what, error))
}

/// A value of SQLite; where the column holds one of another type, an error that names it.
pub fn own<T: FromSql>(row: &Row<'_>, at: usize, what: &'static str) -> Result<T, Fault> {
    row.get(at).map_err(|error| Fault::stored(what, error))
}

/// The text of a column as something that is parsed.
pub fn parsed<T: FromStr>(row: &Row<'_>, at: usize, what: &'static str) -> Result<T, Fault>
where
    T::Err: std::fmt::Display,
{
    parsed_if_any(row, at, what)?.ok_or_else(|| Fault::stored(what, "missing"))
}

/// The text of a column as something that is parsed; nothing for NULL.
pub fn parsed_if_any<T: FromStr>(row: &Row<'_>, at: usize, what: &'static str) -> Result<Option<T>, Fault>
where
    T::Err: std::fmt::Display,
{
    text(row, at)?.map(str::parse).transpose().map_err(|error| Fault::stored(what, error))
}

/// A JSON value as people sent it; nothing for NULL.
pub fn payload(row: &Row<'_>, at: usize, what: &'static str) -> Result<Option<Payload>, Fault> {
    text(row, at)?
        .map(|text| Payload::from_canonical(text.to_owned()))
        .transpose()
        .map_err(|error| Fault::stored(what, error))
}

/// The text of a column; nothing for NULL.
pub fn text<'a>(row: &'a Row<'_>, at: usize) -> Result<Option<&'a str>, Fault> {
    let value = row.get_ref(at)?.as_str_or_null();
    value.map_err(|error| Fault::stored("text", error))
}

/// A state.
pub fn state(row: &Row<'_>, at: usize) -> Result<State, Fault> {
    let word = text(row, at)?.unwrap_or_default();
    State::from_word(word).ok_or_else(|| Fault::stored("state", "no such state"))
}

/// A moment; nothing for NULL.
pub fn time(row: &Row<'_>, at: usize) -> Result<Option<Timestamp>, Fault> {
    Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_millis))
}
