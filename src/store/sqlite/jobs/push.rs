//! Storing new jobs: keys, limits, rows.

use rusqlite::{Connection, ErrorCode, params};

use crate::job::push::{self as rule, Decision, Holder, Pushed, Room};
use crate::job::record::KeyHold;
use crate::job::{Job, JobId, JobKey, Meta, NewJob, QueueName, Rules, State, Timestamp};
use crate::store::StoreError;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::children::Committed;
use crate::store::sqlite::jobs::groups;
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;

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
    let holder = match hold {
        Some(hold) => holder(tx, &job.meta.queue, hold, None, now)?,
        None => None,
    };
    let decision = rule::decide(&job.meta.id, &job.payload, holder.as_ref(), now, || {
        Ok::<_, Fault>(room(tx, &job.meta.queue, 0, rules)? != Some(0))
    })?;
    if let Decision::Settled(pushed) = decision {
        return Ok(Ok(pushed));
    }
    match store(tx, new, now) {
        Ok(state) => Ok(Ok(Pushed::stored(state))),
        // The statement alone was undone: the other jobs of the push are not affected.
        Err(Fault::Sql(error)) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
            Ok(Err(StoreError::internal(error)))
        }
        Err(fault) => Err(fault),
    }
}

/// Stores a job whose key is free. Returns the state that it has then: its group may block it.
pub fn store(tx: &Tx<'_>, New { job, hold }: &New, now: Timestamp) -> Result<State, Fault> {
    let placed = groups::placed(tx, job)?;
    let job = placed.as_ref().unwrap_or(job);
    row::insert(tx, job, now)?;
    if let Some(hold) = hold {
        take(tx, job, hold)?;
    }
    Ok(job.meta.state)
}

/// Returns how many more unfinished jobs the queue takes once `leaving` of them have left it, if its settings limit
/// it.
pub fn room(tx: &Tx<'_>, queue: &QueueName, leaving: u64, rules: &Rules) -> Result<Option<u64>, Fault> {
    let Some(max_jobs) = rules.max_jobs(queue) else {
        return Ok(None);
    };
    tx.flush()?;
    let mut unfinished =
        tx.prepare_cached("SELECT ready + reserved + blocked FROM counters WHERE queue = ?1")?;
    let mut rows = unfinished.query([queue.as_str()])?;
    let unfinished: i64 = rows.next()?.map_or(Ok(0), |row| row.get(0))?;
    Ok(Some(Room::of(max_jobs, unfinished.unsigned_abs(), leaving)))
}

/// Returns the job that took this key last, if the key is known. What becomes of `committed` has happened before.
pub fn holder(
    db: &Connection,
    queue: &QueueName,
    hold: &KeyHold,
    committed: Option<Committed<'_>>,
    now: Timestamp,
) -> Result<Option<Holder>, Fault> {
    let mut by_key =
        db.prepare_cached("SELECT job, digest, until, run_at FROM keys WHERE queue = ?1 AND key = ?2")?;
    let mut rows = by_key.query([queue.as_str(), hold.key.as_str()])?;
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let id: JobId = row::parsed(found, 0, "job of a key")?;
    let (digest, until) = (found.get(1)?, Timestamp::from_millis(found.get(2)?));
    // Wherever the job has been moved to.
    let job = match committed.and_then(|committed| committed.after(&id)) {
        Some(after) => after.map(|meta| (meta.run_at, meta.visible(now))),
        None => held_by(db, &id)?.map(|meta| (meta.run_at, meta.visible(now))),
    };
    let (run_at, state) = job.unzip();
    let run_at = run_at.unwrap_or(Timestamp::from_millis(found.get(3)?));
    Ok(Some(Holder { id, digest, until, run_at, state }))
}

/// Returns the job of a key. It holds the key also where it cannot be read whole.
fn held_by(db: &Connection, id: &JobId) -> Result<Option<Meta>, Fault> {
    let found = match row::meta_of(db, id) {
        Err(Fault::Stored { .. }) => row::salvaged(db, id)?,
        found => found?,
    };
    Ok(found.map(|found| found.job))
}

/// Frees the key of a job that leaves, where it is still its own.
pub fn free(db: &Connection, job: &Meta, key: &JobKey) -> Result<(), Fault> {
    db.prepare_cached("DELETE FROM keys WHERE queue = ?1 AND key = ?2 AND job = ?3")?.execute([
        job.queue.as_str(),
        key.as_str(),
        job.id.as_str(),
    ])?;
    Ok(())
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
