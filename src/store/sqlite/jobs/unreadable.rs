//! Jobs that cannot be read, because another program wrote them. Each concerns itself only: it is shown, it is dead where it
//! would be in the way, and it can be removed.

use rusqlite::{Connection, OptionalExtension as _, Row};

use crate::job::group::{Line, Vacated};
use crate::job::record::{FAILURES_KEPT, Failure};
use crate::job::transition::delivery::{BLOCK, BURY};
use crate::job::transition::{Edit, Next, Refusal, Salvaged};
use crate::job::{
    Content, GroupName, Job, JobId, Meta, QueueName, Reach, Rules, State, Timestamp, batch, group,
};
use crate::store::sqlite::batches;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::groups;
use crate::store::sqlite::jobs::needs;
use crate::store::sqlite::jobs::row::{self, Found, content_at, json, parsed, parsed_if_any, payload, state};
use crate::store::sqlite::tx::Tx;
use crate::store::{Applied, ListedJob, UnreadableJob};

#[cfg(test)]
mod tests;

/// Returns the bytes of a text, which may be none that is valid; no bytes for NULL.
pub fn bytes(row: &Row<'_>, at: usize, what: &'static str) -> Result<Vec<u8>, Fault> {
    let bytes = row.get_ref(at)?.as_bytes_or_null().map_err(|error| Fault::stored(what, error))?;
    Ok(bytes.unwrap_or_default().to_vec())
}

/// Returns what can be read of the contents of such a job.
fn salvaged_contents(db: &Connection, rowid: i64) -> Result<Salvaged, Fault> {
    let mut contents = db.prepare_cached(
        "SELECT headers, result, payload, payload_type, payload_binary FROM jobs WHERE rowid = ?1",
    )?;
    let mut rows = contents.query([rowid])?;
    rows.next()?.map_or_else(|| Ok(Salvaged::default()), |row| salvaged_contents_at(row, 0))
}

/// The same from the columns that a whole job has behind its metadata, the first of which is at this index.
fn salvaged_contents_at(row: &Row<'_>, at: usize) -> Result<Salvaged, Fault> {
    Ok(Salvaged {
        payload: readable(content_at(row, at + 2))?.flatten(),
        headers: readable(json(row, at, "headers"))?.flatten().unwrap_or_default(),
        result: readable(payload(row, at + 1, "result"))?.flatten(),
    })
}

/// Returns a job in place of one that cannot be read, from a row of the columns `job_columns!`.
pub fn stand_in(row: &Row<'_>, why: &str, now: Timestamp) -> Result<Option<Job>, Fault> {
    let Some((found, behind)) = readable(row::salvaged_at(row))? else { return Ok(None) };
    Ok(salvaged_contents_at(row, behind)?.stand_in(&found, why, now))
}

/// Returns the job with this id as a list shows it, with its payload and its result or without.
pub fn listed(db: &Connection, id: &JobId, with_contents: bool) -> Result<Option<ListedJob>, Fault> {
    let read = if with_contents { row::job_of } else { row::job_without_contents_of };
    match read(db, id) {
        Err(fault @ Fault::Stored { .. }) => {
            tracing::error!(%id, %fault, "a job cannot be read");
            let remains = match readable(row::salvaged(db, id))?.flatten() {
                Some(Found { job: meta, rowid, .. }) => {
                    let Salvaged { payload, headers, result } = salvaged_contents(db, rowid)?;
                    let payload = payload.unwrap_or_else(Content::null);
                    Some(Box::new(Job { meta, payload, headers, result }))
                }
                None => None,
            };
            Ok(Some(Err(UnreadableJob { id: id.clone(), why: fault.to_string(), remains })))
        }
        read => Ok(read?.map(Ok)),
    }
}

/// Makes a job that cannot be read one that can be. Returns nothing where it has no payload then.
pub fn mend(
    tx: &Tx<'_>,
    id: &JobId,
    mending: Edit,
    within: Option<&Reach>,
    rules: &Rules,
    now: Timestamp,
) -> Result<Option<Result<Applied, Refusal>>, Fault> {
    let found =
        row::salvaged(tx, id)?.filter(|found| within.is_none_or(|within| within.has(&found.job.queue)));
    let Some(found) = found else { return Ok(Some(Err(Refusal::Unknown))) };
    let contents = salvaged_contents(tx, found.rowid)?;
    let Some(job) = mending.mended(&found.job, contents, now) else { return Ok(None) };
    let named = needs::named(tx, id)?;
    // Written anew, since some columns are written only then.
    row::delete(tx, &found)?;
    needs::forget(tx, id, named.as_deref())?;
    row::insert_whole(tx, &job, now)?;
    let next = Next::Write { meta: Box::new(job.meta.clone()), payload: None, result: None, headers: None };
    let unblocked = groups::advance(tx, group::vacated(&found.job, &next), rules, now)?;
    let callback = match batch::buried(&found.job, now) {
        Some(finish) => batches::count(tx, &finish, rules, now)?,
        None => None,
    };
    Ok(Some(Ok(Applied { unblocked, callback, ..Applied::mended(&job.meta, now) })))
}

/// Makes a job that cannot be read dead, so that queries for jobs do not find it. An operator finds it among the
/// dead, and its batch counts it as such. The first in the line of its group keeps its place; one that waits for those before it leaves
/// it: dead, it would else be taken for the first. `is_next`: it waits for no other job any more. One whose id is none cannot be
/// removed: it leaves its place wherever that is, and is not counted by its batch.
pub fn bury(tx: &Tx<'_>, rowid: i64, is_next: bool, rules: &Rules, now: Timestamp) -> Result<(), Fault> {
    let vacated = bury_alone(tx, rowid, is_next, rules, now)?;
    groups::advance(tx, vacated, rules, now).map(drop)
}

/// The same for these jobs, until the transaction has made enough of them dead. Returns whether some are left: what finds those again makes
/// them dead in another transaction.
pub fn bury_some(tx: &Tx<'_>, rowids: &[i64], rules: &Rules, now: Timestamp) -> Result<bool, Fault> {
    for rowid in rowids {
        if tx.has_buried_enough() {
            return Ok(true);
        }
        bury(tx, *rowid, false, rules, now)?;
    }
    Ok(false)
}

/// The same as [`bury`], but unblocks none behind it. Returns the place that it has left, if its id is none.
pub fn bury_alone(
    tx: &Tx<'_>,
    rowid: i64,
    is_next: bool,
    rules: &Rules,
    now: Timestamp,
) -> Result<Option<Vacated>, Fault> {
    let mut by_rowid = tx.prepare_cached(
        "SELECT id, queue, state, due IS NOT NULL, waits_for IS NULL, group_name, turn, semaphores FROM jobs \
         WHERE rowid = ?1",
    )?;
    let mut rows = by_rowid.query([rowid])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    tx.buries(1);
    let (id, from): (Option<JobId>, State) = (readable(parsed(row, 0, "id"))?, state(row, 2)?);
    let Some(bury) = BURY.iter().find(|bury| bury.from == from) else { return Ok(None) };
    let (queue, marked): (Option<QueueName>, bool) = (readable(parsed(row, 1, "queue"))?, row.get(3)?);
    let is_behind_others = from == BLOCK.to && row.get(4)?;
    let (mut vacated, named): (Option<Vacated>, _) = (None, needs::named_at(row, 7)?);
    if id.is_none() {
        let group: Option<GroupName> = readable(parsed_if_any(row, 5, "group_name"))?.flatten();
        let line = queue.clone().zip(group).map(|(queue, group)| Line { queue, group });
        let place = line.zip(row.get::<_, Option<i64>>(6)?);
        vacated = place.map(|(line, turn)| Vacated { line, turn, was_first: !is_behind_others });
    }
    let leaves = id.is_none() || (is_behind_others && !is_next);
    drop(rows);
    tracing::error!(?id, rowid, "a job that cannot be read is dead now");
    let found = id.as_ref().map(|id| readable(row::salvaged(tx, id))).transpose()?;
    let found: Option<Meta> = found.flatten().flatten().map(|found| found.job);
    match &id {
        // One that holds a place would keep it where its row names that semaphore no more.
        Some(id) => needs::forget(tx, id, named.as_deref().filter(|_| from != State::Reserved))?,
        None => needs::forget_lost(tx, &named.unwrap_or_default())?,
    }
    let failures = found.as_ref().and_then(|meta| {
        let failure = Failure::lacking(meta.lacking()?, meta.state.as_str(), meta.attempts, now);
        let kept = meta.errors.len().saturating_sub(FAILURES_KEPT - 1);
        Some([&meta.errors[kept..], &[failure]].concat())
    });
    row::set_dead(tx, rowid, bury.to, leaves, failures, now)?;
    if let Some(queue) = queue {
        tx.leaves(&queue, bury.from, marked);
        tx.enters(&queue, bury.to, false);
    }
    if let Some(finish) = found.and_then(|found| batch::buried(&found, now)) {
        batches::count(tx, &finish, rules, now)?;
    }
    Ok(vacated)
}

/// Makes those of the jobs with these rowids dead whose ids are none, until the transaction has made enough of them dead.
pub fn bury_nameless(tx: &Tx<'_>, rowids: &[i64], now: Timestamp) -> Result<(), Fault> {
    let rules = Rules::default(); // they are asked how long a batch is kept, which such a job does not end
    let mut by_rowid = tx.prepare_cached("SELECT id FROM jobs WHERE rowid = ?1")?;
    for rowid in rowids {
        if tx.has_buried_enough() {
            break; // the reaper finds them again
        }
        let mut rows = by_rowid.query([rowid])?;
        // Another job may have the rowid by now.
        let is_nameless = rows.next()?.is_some_and(|row| parsed::<JobId>(row, 0, "id").is_err());
        drop(rows);
        if is_nameless {
            bury(tx, *rowid, false, &rules, now)?;
        }
    }
    Ok(())
}

/// The same as [`bury`] for the job with this id.
pub fn bury_by_id(
    tx: &Tx<'_>,
    id: &JobId,
    is_next: bool,
    rules: &Rules,
    now: Timestamp,
) -> Result<(), Fault> {
    let mut by_id = tx.prepare_cached("SELECT rowid FROM jobs WHERE id = ?1")?;
    match by_id.query_row([id.as_str()], |row| row.get(0)).optional()? {
        Some(rowid) => bury(tx, rowid, is_next, rules, now),
        None => Ok(()),
    }
}
