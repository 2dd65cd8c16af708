//! Jobs as rows of the table `jobs`, and back.

use std::str::FromStr;

use rusqlite::{Connection, Row, Statement, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::job::transition::delivery::RESERVE;
use crate::job::{Claim, Job, JobId, Meta, Payload, State, Timestamp};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::needs;
use crate::store::sqlite::tx::Tx;

/// The columns of the bookkeeping, in the order in which [`meta`] reads them. A macro, so that statements
/// are put together when this is compiled.
macro_rules! meta_columns {
    () => {
        "id, queue, state, priority, run_at, attempts, max_attempts, backoff, key, created_at, started_at, \
         finished_at, expires_at, purge_at, worker, claim, reserved_until, lease_ms, cancel_requested, \
         replay_of, rev, progress, errors, trail, origin, route, batch, group_name, turn, semaphores, \
         waits_for, waiting_since"
    };
}

/// The columns of a whole job, in the order in which [`job`] reads them.
macro_rules! job_columns {
    () => {
        concat!($crate::store::sqlite::jobs::row::meta_columns!(), ", headers, result, payload")
    };
}
pub(in crate::store::sqlite) use {job_columns, meta_columns};

/// A row of the table `jobs`, and what only this store knows of it.
pub struct Found<T> {
    /// Its place in the table: the fastest way back to it within one transaction.
    pub rowid: i64,
    /// Whether it has a due mark.
    pub marked: bool,
    /// The job, or its bookkeeping.
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
    /// What the row holds, whose job has so many columns.
    fn read(
        row: &Row<'_>,
        columns: usize,
        job: impl FnOnce(&Row<'_>) -> Result<T, Fault>,
    ) -> Result<Self, Fault> {
        Ok(Self { rowid: row.get(columns)?, marked: row.get(columns + 1)?, job: job(row)? })
    }
}

/// How many columns the bookkeeping has.
const META_COLUMNS: usize = 32;
/// How many columns a job has.
const JOB_COLUMNS: usize = 35;

/// The bookkeeping in a row of the columns `meta_columns!`.
pub fn meta(row: &Row<'_>) -> Result<Meta, Fault> {
    Ok(Meta {
        id: parsed(row, 0, "id")?,
        queue: parsed(row, 1, "queue")?,
        state: state(row, 2)?,
        priority: row.get(3)?,
        run_at: Timestamp::from_millis(row.get(4)?),
        attempts: row.get(5)?,
        max_attempts: row.get(6)?,
        backoff: json(row, 7, "backoff")?,
        key: parsed_if_any(row, 8, "key")?,
        created_at: Timestamp::from_millis(row.get(9)?),
        started_at: time(row, 10)?,
        finished_at: time(row, 11)?,
        expires_at: time(row, 12)?,
        purge_at: time(row, 13)?,
        worker: parsed_if_any(row, 14, "worker")?,
        claim: text(row, 15)?.map(Claim::from_stored),
        reserved_until: time(row, 16)?,
        lease_ms: row.get::<_, Option<i64>>(17)?.map(i64::unsigned_abs),
        cancel_requested: row.get(18)?,
        replay_of: parsed_if_any(row, 19, "replay_of")?,
        rev: row.get(20)?,
        progress: payload(row, 21, "progress")?,
        errors: json(row, 22, "errors")?.unwrap_or_default(),
        trail: json(row, 23, "trail")?.unwrap_or_default(),
        origin: json(row, 24, "origin")?,
        route: json(row, 25, "route")?.unwrap_or_default(),
        batch: parsed_if_any(row, 26, "batch")?,
        group: parsed_if_any(row, 27, "group")?,
        turn: row.get(28)?,
        semaphores: json(row, 29, "semaphores")?.unwrap_or_default(),
        waits_for: parsed_if_any(row, 30, "waits_for")?,
        waiting_since: time(row, 31)?,
    })
}

/// The job in a row of the columns `job_columns!`.
pub fn job(row: &Row<'_>) -> Result<Job, Fault> {
    Ok(Job {
        meta: meta(row)?,
        headers: json(row, 32, "headers")?.unwrap_or_default(),
        result: payload(row, 33, "result")?,
        payload: payload(row, 34, "payload")?.ok_or_else(|| Fault::stored("payload", "missing"))?,
    })
}

/// The bookkeeping of the job with this id.
pub fn meta_of(db: &Connection, id: &JobId) -> Result<Option<Found<Meta>>, Fault> {
    let mut by_id =
        db.prepare_cached(concat!("SELECT ", meta_columns!(), found_columns!(), " FROM jobs WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(|row| Found::read(row, META_COLUMNS, meta)).transpose()
}

/// The job with this id.
pub fn job_of(db: &Connection, id: &JobId) -> Result<Option<Job>, Fault> {
    let mut by_id = db.prepare_cached(concat!("SELECT ", job_columns!(), " FROM jobs WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(job).transpose()
}

/// Every row of this query as a job.
pub fn jobs(statement: &mut Statement<'_>, params: impl rusqlite::Params) -> Result<Vec<Job>, Fault> {
    let mut rows = statement.query(params)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.push(job(row)?);
    }
    Ok(jobs)
}

/// Every row of this query as a job that is about to be changed.
pub fn found_jobs(
    statement: &mut Statement<'_>,
    params: impl rusqlite::Params,
) -> Result<Vec<Found<Job>>, Fault> {
    let mut rows = statement.query(params)?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        jobs.push(Found::read(row, JOB_COLUMNS, job)?);
    }
    Ok(jobs)
}

/// Stores a job that is new. An id that is there already is refused with a constraint error, which
/// changes nothing.
pub fn insert(tx: &Tx<'_>, job: &Job, now: Timestamp) -> Result<(), Fault> {
    let meta = &job.meta;
    let due = meta.due(now).map(Timestamp::millis);
    tx.prepare_cached(
        "INSERT INTO jobs (id, queue, state, priority, run_at, due, attempts, max_attempts, backoff, key, \
         created_at, expires_at, cancel_requested, replay_of, rev, headers, payload, route, batch, \
         group_name, turn, semaphores) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11, 0, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, \
         ?20)",
    )?
    .execute(params![
        meta.id.as_str(),
        meta.queue.as_str(),
        meta.state.as_str(),
        meta.priority,
        meta.run_at.millis(),
        due,
        meta.max_attempts,
        to_json(meta.backoff.as_ref())?,
        meta.key.as_ref().map(|key| key.as_str()),
        meta.created_at.millis(),
        meta.expires_at.map(Timestamp::millis),
        meta.replay_of.as_ref().map(|id| id.as_str()),
        rand::random::<i64>(),
        to_json(Some(&job.headers).filter(|headers| !headers.is_empty()))?,
        job.payload.as_str(),
        to_json(Some(&meta.route).filter(|route| !route.is_empty()))?,
        meta.batch.as_ref().map(|batch| batch.as_str()),
        meta.group.as_ref().map(|group| group.as_str()),
        meta.turn,
        to_json(Some(&meta.semaphores).filter(|semaphores| !semaphores.is_empty()))?,
    ])?;
    tx.enters(&meta.queue, meta.state, due.is_some());
    needs::write(tx, meta)
}

/// Writes the reservation of a job that needs no semaphores: what [`update`] would write, and nothing else.
pub fn reserve(tx: &Tx<'_>, found: &Found<Job>) -> Result<(), Fault> {
    let meta = &found.job.meta;
    tx.prepare_cached(
        "UPDATE jobs SET state = ?9, due = NULL, attempts = ?2, started_at = ?3, reserved_until = ?4, \
         lease_ms = ?5, worker = ?6, claim = ?7, rev = ?8 WHERE rowid = ?1",
    )?
    .execute(params![
        found.rowid,
        meta.attempts,
        meta.started_at.map(Timestamp::millis),
        meta.reserved_until.map(Timestamp::millis),
        meta.lease_ms.map(signed),
        meta.worker.as_ref().map(|worker| worker.as_str()),
        meta.claim.as_ref().map(Claim::as_str),
        meta.rev,
        meta.state.as_str(),
    ])?;
    tx.leaves(&meta.queue, RESERVE.from, found.marked);
    tx.enters(&meta.queue, meta.state, false);
    Ok(())
}

/// Writes a job's new bookkeeping and, where given, a new payload and a result. Answers the `rev` that it has then.
pub fn update(
    tx: &Tx<'_>,
    found: &Found<Meta>,
    meta: &Meta,
    payload: Option<&Payload>,
    result: Option<&Payload>,
    now: Timestamp,
) -> Result<i64, Fault> {
    let rev: i64 = rand::random();
    let at = |time: Option<Timestamp>| time.map(Timestamp::millis);
    let due = at(meta.due(now));
    tx.prepare_cached(
        "UPDATE jobs SET queue = ?2, state = ?3, priority = ?4, run_at = ?5, due = ?6, attempts = ?7, \
         max_attempts = ?8, backoff = ?9, key = ?10, started_at = ?11, finished_at = ?12, expires_at = ?13, \
         purge_at = ?14, worker = ?15, claim = ?16, reserved_until = ?17, lease_ms = ?18, \
         cancel_requested = ?19, rev = ?20, progress = ?21, errors = ?22, trail = ?23, origin = ?24, \
         result = coalesce(?25, result), payload = coalesce(?26, payload), route = ?27, batch = ?28, \
         turn = ?29, waits_for = ?30, waiting_since = ?31 WHERE rowid = ?1",
    )?
    .execute(params![
        found.rowid,
        meta.queue.as_str(),
        meta.state.as_str(),
        meta.priority,
        meta.run_at.millis(),
        due,
        meta.attempts,
        meta.max_attempts,
        to_json(meta.backoff.as_ref())?,
        meta.key.as_ref().map(|key| key.as_str()),
        at(meta.started_at),
        at(meta.finished_at),
        at(meta.expires_at),
        at(meta.purge_at),
        meta.worker.as_ref().map(|worker| worker.as_str()),
        meta.claim.as_ref().map(Claim::as_str),
        at(meta.reserved_until),
        meta.lease_ms.map(signed),
        meta.cancel_requested,
        rev,
        meta.progress.as_ref().map(Payload::as_str),
        to_json(Some(&meta.errors).filter(|errors| !errors.is_empty()))?,
        to_json(Some(&meta.trail).filter(|trail| !trail.is_empty()))?,
        to_json(meta.origin.as_ref())?,
        result.map(Payload::as_str),
        payload.map(Payload::as_str),
        to_json(Some(&meta.route).filter(|route| !route.is_empty()))?,
        meta.batch.as_ref().map(|batch| batch.as_str()),
        meta.turn,
        meta.waits_for.as_ref().map(|semaphore| semaphore.as_str()),
        at(meta.waiting_since),
    ])?;
    tx.leaves(&found.job.queue, found.job.state, found.marked);
    tx.enters(&meta.queue, meta.state, due.is_some());
    needs::write(tx, meta)?;
    Ok(rev)
}

/// Takes a job away.
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

fn text<'a>(row: &'a Row<'_>, at: usize) -> Result<Option<&'a str>, Fault> {
    let value = row.get_ref(at)?.as_str_or_null();
    value.map_err(|error| Fault::Sql(error.into()))
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
