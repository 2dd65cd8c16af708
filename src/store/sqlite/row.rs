//! Jobs as rows of the table `jobs`, and back.

use std::str::FromStr;

use rusqlite::{Connection, Row, Statement, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fault::Fault;
use crate::job::{Claim, Job, JobId, Meta, Payload, State, Timestamp};

/// The columns of the bookkeeping, in the order in which [`meta`] reads them. A macro, so that statements
/// are put together when this is compiled.
macro_rules! meta_columns {
    () => {
        "id, queue, state, priority, run_at, attempts, max_attempts, backoff, key, created_at, started_at, \
         finished_at, expires_at, purge_at, worker, claim, reserved_until, lease_ms, cancel_requested, \
         replay_of, rev, progress, errors, trail, origin"
    };
}

/// The columns of a whole job, in the order in which [`job`] reads them.
macro_rules! job_columns {
    () => {
        concat!($crate::store::sqlite::row::meta_columns!(), ", headers, result, payload")
    };
}
pub(super) use {job_columns, meta_columns};

/// The bookkeeping in a row of the columns `meta_columns!`.
pub fn meta(row: &Row<'_>) -> Result<Meta, Fault> {
    Ok(Meta {
        id: parsed(row, 0, "id")?,
        queue: parsed(row, 1, "queue")?,
        state: State::from_word(row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?)
            .ok_or_else(|| Fault::stored("state", "no such state"))?,
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
    })
}

/// The job in a row of the columns `job_columns!`.
pub fn job(row: &Row<'_>) -> Result<Job, Fault> {
    Ok(Job {
        meta: meta(row)?,
        headers: json(row, 25, "headers")?.unwrap_or_default(),
        result: payload(row, 26, "result")?,
        payload: payload(row, 27, "payload")?.ok_or_else(|| Fault::stored("payload", "missing"))?,
    })
}

/// The bookkeeping of the job with this id.
pub fn meta_of(db: &Connection, id: &JobId) -> Result<Option<Meta>, Fault> {
    let mut by_id = db.prepare_cached(concat!("SELECT ", meta_columns!(), " FROM jobs WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(meta).transpose()
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

/// Stores a job that is new. An id that is there already is refused with a constraint error, which
/// changes nothing.
pub fn insert(db: &Connection, job: &Job, now: Timestamp) -> Result<(), Fault> {
    let meta = &job.meta;
    db.prepare_cached(
        "INSERT INTO jobs (id, queue, state, priority, run_at, due, attempts, max_attempts, backoff, key, \
         created_at, expires_at, cancel_requested, replay_of, rev, headers, payload) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, ?8, ?9, ?10, ?11, 0, ?12, ?13, ?14, ?15)",
    )?
    .execute(params![
        meta.id.as_str(),
        meta.queue.as_str(),
        meta.state.as_str(),
        meta.priority,
        meta.run_at.millis(),
        meta.due(now).map(Timestamp::millis),
        meta.max_attempts,
        to_json(meta.backoff.as_ref())?,
        meta.key.as_ref().map(|key| key.as_str()),
        meta.created_at.millis(),
        meta.expires_at.map(Timestamp::millis),
        meta.replay_of.as_ref().map(|id| id.as_str()),
        rand::random::<i64>(),
        to_json(Some(&job.headers).filter(|headers| !headers.is_empty()))?,
        job.payload.as_str(),
    ])?;
    Ok(())
}

/// Writes a job's bookkeeping and, where given, a new payload and a result.
pub fn update(
    db: &Connection,
    meta: &Meta,
    payload: Option<&Payload>,
    result: Option<&Payload>,
    now: Timestamp,
) -> Result<(), Fault> {
    let at = |time: Option<Timestamp>| time.map(Timestamp::millis);
    db.prepare_cached(
        "UPDATE jobs SET queue = ?2, state = ?3, priority = ?4, run_at = ?5, due = ?6, attempts = ?7, \
         max_attempts = ?8, backoff = ?9, key = ?10, started_at = ?11, finished_at = ?12, expires_at = ?13, \
         purge_at = ?14, worker = ?15, claim = ?16, reserved_until = ?17, lease_ms = ?18, \
         cancel_requested = ?19, rev = ?20, progress = ?21, errors = ?22, trail = ?23, origin = ?24, \
         result = coalesce(?25, result), payload = coalesce(?26, payload) WHERE id = ?1",
    )?
    .execute(params![
        meta.id.as_str(),
        meta.queue.as_str(),
        meta.state.as_str(),
        meta.priority,
        meta.run_at.millis(),
        at(meta.due(now)),
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
        rand::random::<i64>(),
        meta.progress.as_ref().map(Payload::as_str),
        to_json(Some(&meta.errors).filter(|errors| !errors.is_empty()))?,
        to_json(Some(&meta.trail).filter(|trail| !trail.is_empty()))?,
        to_json(meta.origin.as_ref())?,
        result.map(Payload::as_str),
        payload.map(Payload::as_str),
    ])?;
    Ok(())
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

fn payload(row: &Row<'_>, at: usize, what: &'static str) -> Result<Option<Payload>, Fault> {
    text(row, at)?
        .map(|text| Payload::from_canonical(text.to_owned()))
        .transpose()
        .map_err(|error| Fault::stored(what, error))
}

fn text<'a>(row: &'a Row<'_>, at: usize) -> Result<Option<&'a str>, Fault> {
    let value = row.get_ref(at)?.as_str_or_null();
    value.map_err(|error| Fault::Sql(error.into()))
}

/// A moment; nothing for NULL.
pub fn time(row: &Row<'_>, at: usize) -> Result<Option<Timestamp>, Fault> {
    Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_millis))
}
