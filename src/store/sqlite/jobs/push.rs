//! Storing new jobs: keys, limits, rows.

use rusqlite::{Connection, ErrorCode, params};

use crate::job::push::{self as rule, Decision, Holder, Pushed, Replacement, Room};
use crate::job::record::{KeyHold, KeyUntil};
use crate::job::transition::Next;
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
    let pushed: Vec<Result<Pushed, StoreError>> =
        jobs.iter().map(|job| push_one(tx, job, rules, now)).collect::<Result<_, Fault>>()?;
    let is_stored =
        |pushed: &&Result<Pushed, StoreError>| matches!(pushed, Ok(Pushed::Created | Pushed::Blocked));
    match pushed.iter().filter(is_stored).count() {
        0 => {}
        stored => tx.acts_on(stored),
    }
    Ok(pushed)
}

fn push_one(
    tx: &Tx<'_>,
    new @ New { job, hold }: &New,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Pushed, StoreError>, Fault> {
    let holder = match hold {
        Some(hold) => match holder(tx, &job.meta.queue, hold, None, now) {
            // What another program wrote there concerns this job, not those beside it.
            Err(fault @ Fault::Stored { .. }) => return Ok(Err(fault.into())),
            holder => holder?,
        },
        None => None,
    };
    let conflict = hold.as_ref().map(|hold| hold.conflict).unwrap_or_default();
    let asked = (holder.as_ref(), conflict);
    let decision = rule::decide(&job.meta.id, &job.payload, asked, now, || {
        Ok::<_, Fault>(room(tx, &job.meta.queue, 0, rules)? != Some(0))
    })?;
    match (decision, &holder, hold) {
        (Decision::Settled(pushed), ..) => return Ok(Ok(pushed)),
        (Decision::Replace, Some(holder), Some(hold)) => {
            return replace(tx, holder, hold, job.into(), now).map(Ok);
        }
        _ => {}
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
        take(tx, &job.meta, job.payload.digest(), hold)?;
    }
    Ok(job.meta.state)
}

/// Takes a key for a job that is about to be moved. Returns the job that has it, and takes nothing, if that is another one.
pub fn move_key(tx: &Tx<'_>, next: &Next, hold: &KeyHold, now: Timestamp) -> Result<Option<JobId>, Fault> {
    let Next::Write { meta: moved, payload, .. } = next else { return Ok(None) };
    let holder = holder(tx, &moved.queue, hold, None, now)?;
    if let Some(other) = rule::kept_from(holder.as_ref(), &moved.id, now) {
        return Ok(Some(other.clone()));
    }
    let digest = match payload {
        Some(payload) => payload.digest(),
        None => {
            let job = row::job_of(tx, &moved.id)?.ok_or_else(|| Fault::stored("job", "missing"))?;
            job.payload.digest()
        }
    };
    take(tx, moved, digest, hold)?;
    Ok(None)
}

/// Replaces what the job does that has the key, and notes it with the key.
pub fn replace(
    tx: &Tx<'_>,
    holder: &Holder,
    hold: &KeyHold,
    by: Replacement<'_>,
    now: Timestamp,
) -> Result<Pushed, Fault> {
    let (id, run_at) = (holder.id.clone(), by.run_at);
    let Some(found) = row::meta_of(tx, &id)? else { return Ok(holder.stays(by.payload)) };
    let Some(meta) = by.of(&found.job, now) else { return Ok(holder.stays(by.payload)) };
    row::update(tx, &found, &meta, row::Contents { payload: Some(by.payload), ..Default::default() }, now)?;
    let state = meta.visible(now);
    let replaced = holder.replaced(by, hold, state);
    tx.prepare_cached(
        "UPDATE keys SET digest = ?3, until = ?4, run_at = ?5, look_at = max(look_at, ?4) WHERE queue = ?1 AND key = ?2",
    )?
    .execute(params![
        meta.queue.as_str(),
        hold.key.as_str(),
        replaced.digest,
        replaced.until.millis(),
        run_at.millis(),
    ])?;
    Ok(Pushed::Replaced { id, state, run_at })
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
    Ok(Some(Room::of(max_jobs, unfinished.max(0).unsigned_abs(), leaving)))
}

/// Returns the job that took this key last, if the key is known. What becomes of `committed` has happened before.
pub fn holder(
    db: &Connection,
    queue: &QueueName,
    hold: &KeyHold,
    committed: Option<Committed<'_>>,
    now: Timestamp,
) -> Result<Option<Holder>, Fault> {
    let mut by_key = db
        .prepare_cached("SELECT job, digest, until, run_at, lasts FROM keys WHERE queue = ?1 AND key = ?2")?;
    let mut rows = by_key.query([queue.as_str(), hold.key.as_str()])?;
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let id: JobId = row::parsed(found, 0, "job of a key")?;
    let (digest, until) = (found.get(1)?, Timestamp::from_millis(found.get(2)?));
    // Wherever the job has been moved to.
    let is_home = |meta: &Meta| meta.queue == *queue && meta.key.as_ref() == Some(&hold.key);
    let facts = |meta: &Meta| (meta.run_at, meta.visible(now), is_home(meta));
    let (job, is_readable) = match committed.and_then(|committed| committed.after(&id)) {
        Some(after) => (after.map(facts), true),
        None => {
            let (job, is_readable) = held_by(db, &id)?;
            (job.as_ref().map(facts), is_readable)
        }
    };
    let run_at = Timestamp::from_millis(found.get(3)?);
    let lasts = KeyUntil::from_word(row::text(found, 4)?);
    let (run_at, state, is_home) = match job {
        Some((run_at, state, is_home)) => (run_at, Some(state), is_home),
        None => (run_at, None, false),
    };
    Ok(Some(Holder { id, digest, until, lasts, is_home, is_readable, run_at, state }))
}

/// Returns the job of a key, and whether it can be read whole. It holds the key also where it cannot.
fn held_by(db: &Connection, id: &JobId) -> Result<(Option<Meta>, bool), Fault> {
    let (found, is_readable) = match row::meta_of(db, id) {
        Err(Fault::Stored { .. }) => (row::salvaged(db, id)?, false),
        found => (found?, true),
    };
    Ok((found.map(|found| found.job), is_readable))
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

fn take(db: &Connection, job: &Meta, digest: [u8; 32], hold: &KeyHold) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO keys (queue, key, job, digest, until, run_at, look_at, lasts) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5, ?7)",
    )?
    .execute(params![
        job.queue.as_str(),
        hold.key.as_str(),
        job.id.as_str(),
        digest,
        hold.until.millis(),
        job.run_at.millis(),
        lasts(hold.lasts),
    ])?;
    Ok(())
}

/// Until when a job has its key, as the column holds it.
pub fn lasts(lasts: KeyUntil) -> Option<&'static str> {
    (!lasts.is_usual()).then_some(lasts.as_str())
}
