//! Storing new jobs: keys, limits, rows.

use rusqlite::{Connection, ErrorCode, params};

use crate::job::record::KeyHold;
use crate::job::{Job, JobId, NewJob, Payload, QueueName, Rules, State, Timestamp, Visible};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::children::Committed;
use crate::store::sqlite::jobs::groups;
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::{Pushed, StoreError};

/// A job that is about to be stored, and what its key asks for.
pub struct New {
    job: Job,
    hold: Option<KeyHold>,
}

impl From<NewJob> for New {
    fn from(new: NewJob) -> Self {
        Self { hold: new.key.clone(), job: new.into_job() }
    }
}

/// Stores the jobs, each for itself, so that later ones see the keys and the room of earlier ones.
pub fn push(
    tx: &Tx<'_>,
    jobs: &[New],
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<Result<Pushed, StoreError>>, Fault> {
    jobs.iter().map(|job| push_one(tx, job, rules, now)).collect()
}

fn push_one(
    tx: &Tx<'_>,
    new @ New { job, hold }: &New,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Pushed, StoreError>, Fault> {
    if let Some(hold) = hold
        && let Some(taken) = taken(tx, &job.meta.queue, &job.payload, hold, None, now)?
    {
        return Ok(Ok(taken));
    }
    if room(tx, &job.meta.queue, 0, rules)? == Some(0) {
        return Ok(Ok(Pushed::Full));
    }
    match store(tx, new, now) {
        Ok(State::Blocked) => Ok(Ok(Pushed::Blocked)),
        Ok(_) => Ok(Ok(Pushed::Created)),
        // The statement alone was undone: the other jobs of the push are not affected.
        Err(Fault::Sql(error)) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            Ok(Err(StoreError::internal(error)))
        }
        Err(fault) => Err(fault),
    }
}

/// Stores a job whose key is free, and answers the state that it has then: it may have to wait for its group.
pub fn store(tx: &Tx<'_>, New { job, hold }: &New, now: Timestamp) -> Result<State, Fault> {
    let placed = groups::placed(tx, job)?;
    let job = placed.as_ref().unwrap_or(job);
    row::insert(tx, job, now)?;
    if let Some(hold) = hold {
        take(tx, job, hold)?;
    }
    Ok(job.meta.state)
}

/// How many more unfinished jobs the queue takes once `leaving` of them have left it, if its settings limit it. A
/// queue may have more than it takes.
pub fn room(tx: &Tx<'_>, queue: &QueueName, leaving: u64, rules: &Rules) -> Result<Option<u64>, Fault> {
    let Some(max_jobs) = rules.max_jobs(queue) else {
        return Ok(None);
    };
    tx.flush()?;
    let mut unfinished =
        tx.prepare_cached("SELECT ready + reserved + blocked FROM counters WHERE queue = ?1")?;
    let mut rows = unfinished.query([queue.as_str()])?;
    let unfinished: i64 = rows.next()?.map_or(Ok(0), |row| row.get(0))?;
    Ok(Some(max_jobs.saturating_sub(unfinished.unsigned_abs().saturating_sub(leaving))))
}

/// What a push with this key meets, unless the key is free. What becomes of `committed` has happened before it.
pub fn taken(
    db: &Connection,
    queue: &QueueName,
    payload: &Payload,
    hold: &KeyHold,
    committed: Option<Committed<'_>>,
    now: Timestamp,
) -> Result<Option<Pushed>, Fault> {
    let mut by_key =
        db.prepare_cached("SELECT job, digest, until, run_at FROM keys WHERE queue = ?1 AND key = ?2")?;
    let mut rows = by_key.query([queue.as_str(), hold.key.as_str()])?;
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let id: JobId = row::parsed(found, 0, "job of a key")?;
    let same = found.get::<_, [u8; 32]>(1)? == payload.digest();
    let until = Timestamp::from_millis(found.get(2)?);
    let holder = match committed.and_then(|committed| committed.after(&id)) {
        Some(after) => after.cloned(),
        None => row::meta_of(db, &id)?.map(|found| found.job),
    };
    // The job that took the key holds it wherever it has been moved to, until its end.
    let unfinished = holder.as_ref().is_some_and(|meta| meta.state.is_unfinished());
    if until <= now && !unfinished {
        return Ok(None);
    }
    if !same {
        return Ok(Some(Pushed::KeyConflict { id }));
    }
    let (state, run_at) = match &holder {
        Some(meta) => (meta.visible(now), meta.run_at),
        None => (Visible::Done, Timestamp::from_millis(found.get(3)?)),
    };
    Ok(Some(Pushed::Duplicate { id, state, run_at }))
}

fn take(db: &Connection, job: &Job, hold: &KeyHold) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO keys (queue, key, job, digest, until, run_at, look_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5)",
    )?
    .execute(params![
        job.meta.queue.as_str(),
        hold.key.as_str(),
        job.meta.id.as_str(),
        job.payload.digest(),
        hold.until.millis(),
        job.meta.run_at.millis(),
    ])?;
    Ok(())
}
