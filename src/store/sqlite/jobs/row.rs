//! Jobs as rows of the table `jobs`, and back.

use std::str::FromStr;

use bytes::Bytes;
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, Statement, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::record::Failure;
use crate::job::spec::Headers;
use crate::job::{Binary, Content, Job, JobId, Meta, Payload, State, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
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
                default_lease_ms "default_lease_ms",
                max_run_ms "max_run_ms",
                semaphores "semaphores",
                retain_result_ms "retain_result_ms",
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
                group "group_name",
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
                extended_at "extended_at",
                progress "progress",
                errors "errors",
                trail "trail",
                origin "origin",
                waits_for "waits_for",
                waiting_since "waiting_since",
                came_at "came_at",
                given_back_at "given_back_at",
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
        concat!(
            $crate::store::sqlite::jobs::row::meta_columns!(),
            ", headers, result, payload, payload_type, payload_binary"
        )
    };
}
pub(in crate::store::sqlite) use {job_columns, meta_columns, meta_table, names};

/// A row of the table `jobs`, and what only this store knows of it.
pub struct Found<T> {
    /// Its row: the fastest way back to it within one transaction.
    pub rowid: i64,
    /// Whether it has a due mark.
    pub marked: bool,
    /// The job, or its metadata.
    pub job: T,
}

/// The columns of a [`Found`], behind those of its job.
macro_rules! found_columns {
    () => {
        ", jobs.rowid, due IS NOT NULL"
    };
}
pub(in crate::store::sqlite) use found_columns;

impl<T> Found<T> {
    fn read(row: &Row<'_>, job: impl FnOnce(&mut Cells<'_>) -> Result<T, Fault>) -> Result<Self, Fault> {
        let mut cells = Cells::of(row);
        let job = job(&mut cells)?;
        Ok(Self { rowid: cells.read("rowid")?, marked: cells.read("due")?, job })
    }
}

/// The columns of a row that are still to be read.
struct Cells<'a> {
    row: &'a Row<'a>,
    next: usize,
    /// Whether what cannot be read is left out, where a job can do without it.
    salvages: bool,
}

impl<'a> Cells<'a> {
    fn of(row: &'a Row<'a>) -> Self {
        Self { row, next: 0, salvages: false }
    }

    fn read<T: Column>(&mut self, name: &'static str) -> Result<T, Fault> {
        let at = self.next;
        self.next += 1;
        match T::read(self.row, at, name) {
            Err(fault @ Fault::Stored { .. }) if self.salvages => T::instead().ok_or(fault),
            read => read,
        }
    }
}

/// Reads the columns `meta_columns!`.
fn meta(cells: &mut Cells<'_>) -> Result<Meta, Fault> {
    macro_rules! read {
        ($($when:ident { $($field:ident $column:literal,)* })*) => {
            Meta { $($($field: cells.read($column)?,)*)* rev: cells.read("rev")? }
        };
    }
    let meta = meta_table!(read);
    match meta.lacking() {
        Some(what) if !cells.salvages => Err(Fault::stored(what, "missing")),
        _ => Ok(meta),
    }
}

fn job_in(cells: &mut Cells<'_>) -> Result<Job, Fault> {
    Ok(Job {
        meta: meta(cells)?,
        headers: cells.read("headers")?,
        result: cells.read("result")?,
        payload: content(cells)?,
    })
}

fn content(cells: &mut Cells<'_>) -> Result<Content, Fault> {
    let at = cells.next;
    cells.next += CONTENT_COLUMNS;
    let missing = || Fault::stored("payload", "missing");
    content_at(cells.row, at)?.ok_or_else(missing)
}

/// How many columns a payload has.
const CONTENT_COLUMNS: usize = 3;

/// Reads a payload from the columns `payload`, `payload_type` and `payload_binary`, the first of which is at this index.
pub fn content_at(row: &Row<'_>, at: usize) -> Result<Option<Content>, Fault> {
    let bytes =
        row.get_ref(at + 2)?.as_blob_or_null().map_err(|error| Fault::stored("payload_binary", error))?;
    // Where there is JSON as well, it counts, as on MongoDB.
    let is_json =
        row.get_ref(at)?.as_bytes_or_null().is_ok_and(|text| text.is_some_and(|text| !text.is_empty()));
    let Some(bytes) = bytes.filter(|_| !is_json) else {
        return Ok(payload(row, at, "payload")?.map(Content::Json));
    };
    let media_type = parsed_if_any(row, at + 1, "payload_type")?.unwrap_or_default();
    Ok(Some(Content::Binary(Binary { bytes: Bytes::copy_from_slice(bytes), media_type })))
}

/// Returns what these columns hold. The text is empty beside bytes, which no JSON is.
fn content_columns(payload: &Content) -> (&str, Option<&str>, Option<&[u8]>) {
    match payload {
        Content::Json(payload) => (payload.as_str(), None, None),
        Content::Binary(Binary { bytes, media_type }) => ("", Some(media_type.as_str()), Some(bytes)),
    }
}

/// Reads the job from a row of the columns `job_columns!`.
pub fn job(row: &Row<'_>) -> Result<Job, Fault> {
    job_in(&mut Cells::of(row))
}

/// The same for another store, with canonical payloads. Claims do without: each is parsed once more for that.
pub fn canonical_job(row: &Row<'_>) -> Result<Job, Fault> {
    job(row)?.canonical().map_err(|(what, error)| Fault::stored(what, error))
}

/// Returns the metadata of the job with this id.
pub fn meta_of(db: &Connection, id: &JobId) -> Result<Option<Found<Meta>>, Fault> {
    let mut by_id = db.prepare_cached(META_OF)?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(|row| Found::read(row, meta)).transpose()
}

const META_OF: &str = concat!("SELECT ", meta_columns!(), found_columns!(), " FROM jobs WHERE id = ?1");

/// Returns what can be read of the metadata of a job that cannot be read.
pub fn salvaged(db: &Connection, id: &JobId) -> Result<Option<Found<Meta>>, Fault> {
    let mut by_id = db.prepare_cached(META_OF)?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(|row| Found::read(row, salvage)).transpose()
}

/// The same from a row of the columns `meta_columns!`, with the index of the column behind them.
pub fn salvaged_at(row: &Row<'_>) -> Result<(Meta, usize), Fault> {
    let mut cells = Cells::of(row);
    let found = salvage(&mut cells)?;
    Ok((found, cells.next))
}

fn salvage(cells: &mut Cells<'_>) -> Result<Meta, Fault> {
    cells.salvages = true;
    meta(cells)
}

/// Returns the job with this id.
pub fn job_of(db: &Connection, id: &JobId) -> Result<Option<Job>, Fault> {
    let mut by_id = db.prepare_cached(concat!("SELECT ", job_columns!(), " FROM jobs WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(job).transpose()
}

/// The same without its payload and its result, which may be long: they are `null` and none.
pub fn job_without_contents_of(db: &Connection, id: &JobId) -> Result<Option<Job>, Fault> {
    let mut by_id = db.prepare_cached(concat!(
        "SELECT ",
        meta_columns!(),
        ", headers, NULL, 'null', NULL, NULL FROM jobs WHERE id = ?1"
    ))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(job).transpose()
}

/// Reads every row of this query as a job; those that cannot be read are skipped.
pub fn jobs(statement: &mut Statement<'_>, params: impl rusqlite::Params) -> Result<Vec<Job>, Fault> {
    let mut rows = statement.query(params)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.extend(readable(job(row))?);
    }
    Ok(jobs)
}

/// Reads a job that is about to be changed from a row of the columns `job_columns!` and `found_columns!`.
pub fn found_job(row: &Row<'_>) -> Result<Found<Job>, Fault> {
    Found::read(row, job_in)
}

/// Writes that a job which cannot be read is dead since now, and why, if that is known; with `leaves` it loses its place in the line of its
/// group. Operations over the dead find those that were so before they began.
pub fn set_dead(
    tx: &Tx<'_>,
    rowid: i64,
    dead: State,
    leaves: bool,
    failures: Option<Vec<Failure>>,
    now: Timestamp,
) -> Result<(), Fault> {
    tx.prepare_cached(
        "UPDATE jobs SET state = ?2, due = NULL, turn = iif(?3, NULL, turn), errors = coalesce(?4, errors), \
         finished_at = ?5, rev = random() WHERE rowid = ?1",
    )?
    .execute(params![rowid, dead.write()?, leaves, failures.write()?, now.write()?])?;
    Ok(())
}

/// Writes that a job whose id is none is due in this state: it cannot be read, and the claim that finds it makes it dead.
pub fn set_unblocked(tx: &Tx<'_>, rowid: i64, to: State, now: Timestamp) -> Result<(), Fault> {
    tx.skipped.clear(); // it may be due where nothing is expected
    tx.prepare_cached(
        "UPDATE jobs SET state = ?2, due = NULL, run_at = min(run_at, ?3), waits_for = NULL, rev = random() \
         WHERE rowid = ?1",
    )?
    .execute(params![rowid, to.write()?, now.write()?])?;
    Ok(())
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
    let (payload, payload_type, payload_binary) = content_columns(&job.payload);
    macro_rules! execute {
        (
            push { $($once:ident $once_column:literal,)* }
            both { $($field:ident $column:literal,)* }
            update { $($rest:tt)* }
        ) => {
            tx.prepare_cached(concat!(
                "INSERT INTO jobs (", $($once_column, ", ",)* $($column, ", ",)* "due, rev, headers, payload, \
                 payload_type, payload_binary) \
                 VALUES (", $(mark!($once_column),)* $(mark!($column),)* "?, ?, ?, ?, ?, ?)",
            ))?
            .execute(params![
                $(meta.$once.write()?,)*
                $(meta.$field.write()?,)*
                due.write()?,
                rev,
                job.headers.write()?,
                payload,
                payload_type,
                payload_binary,
            ])?
        };
    }
    meta_table!(execute);
    tx.enters(&meta.queue, meta.state, due.is_some());
    tx.skipped.note(meta, due.is_some());
    needs::write(tx, meta)
}

/// Stores a job that has lived already. The first statement writes what never changes, the second one the rest: so there is one list of
/// what a push writes, and one of what a change does.
pub fn insert_whole(tx: &Tx<'_>, job: &Job, now: Timestamp) -> Result<(), Fault> {
    insert(tx, job, now)?;
    let marked = job.meta.due(now).is_some();
    let inserted = Found { rowid: tx.last_insert_rowid(), marked, job: job.meta.clone() };
    let contents = Contents { result: job.result.as_ref(), ..Contents::default() };
    update(tx, &inserted, &job.meta, contents, now).map(drop)
}

/// What is new of a job beside its metadata.
#[derive(Clone, Copy, Default)]
pub struct Contents<'a> {
    /// The payload.
    pub payload: Option<&'a Content>,
    /// The result.
    pub result: Option<&'a Payload>,
    /// The headers.
    pub headers: Option<&'a Headers>,
}

/// Writes a job's new metadata and what is new beside it. Returns the `rev` that it has then.
pub fn update(
    tx: &Tx<'_>,
    found: &Found<Meta>,
    meta: &Meta,
    Contents { payload, result, headers }: Contents<'_>,
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
                 result = coalesce(?, result) WHERE rowid = ?",
            ))?
            .execute(params![
                $(meta.$field.write()?,)*
                $(meta.$later.write()?,)*
                due.write()?,
                rev,
                result.map(Payload::as_str),
                found.rowid,
            ])?
        };
    }
    meta_table!(execute);
    tx.leaves(&found.job.queue, found.job.state, found.marked);
    if let Some(headers) = headers {
        tx.prepare_cached("UPDATE jobs SET headers = ?2 WHERE rowid = ?1")?
            .execute(params![found.rowid, headers.write()?])?;
    }
    if let Some(payload) = payload {
        let (text, media_type, bytes) = content_columns(payload);
        let set = "UPDATE jobs SET payload = ?2, payload_type = ?3, payload_binary = ?4 WHERE rowid = ?1";
        tx.prepare_cached(set)?.execute(params![found.rowid, text, media_type, bytes])?;
    }
    tx.enters(&meta.queue, meta.state, due.is_some());
    tx.skipped.note(meta, due.is_some());
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
