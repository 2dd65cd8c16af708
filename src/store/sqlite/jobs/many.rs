//! What claims and commits write of many jobs. Those that get the same values are written by one statement, so that they share
//! what starting one costs: a reservation takes 3.2 µs instead of 5.9 then, a deletion 2.0 instead of 2.9. For a few jobs
//! it is the other way round, by what the list of their rowids costs.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use rusqlite::params;

use crate::job::transition::delivery::RESERVE;
use crate::job::{Claim, Job, JobId, Meta, QueueName, State, Timestamp, WorkerName};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::column::Column;
use crate::store::sqlite::jobs::row::Found;
use crate::store::sqlite::tx::Tx;

/// From how many jobs on one statement is faster than one for each.
const MANY: usize = 6;

/// Selects the rows of a statement by a list of their rowids, or by one; `NOT INDEXED` in front, so that no index seems better to SQLite.
macro_rules! of_rowids {
    (many $($sql:literal)+) => { concat!($($sql,)+ " rowid IN (SELECT value FROM json_each(?1))") };
    (one $($sql:literal)+) => { concat!($($sql,)+ " rowid = ?1") };
}

macro_rules! reserve_sql {
    ($how:ident) => {
        of_rowids!($how "UPDATE jobs NOT INDEXED SET state = ?2, due = NULL, attempts = ?3, started_at = ?4, \
            reserved_until = ?5, lease_ms = ?6, worker = ?7, claim = ?8, rev = ?9 WHERE")
    };
}

pub const RESERVE_MANY: &str = reserve_sql!(many);

/// What a claim writes into a job.
#[derive(PartialEq, Eq, Hash)]
struct Reservation<'a> {
    state: State,
    attempts: u32,
    started_at: Option<Timestamp>,
    reserved_until: Option<Timestamp>,
    lease_ms: Option<u64>,
    worker: &'a Option<WorkerName>,
    claim: &'a Option<Claim>,
}

impl<'a> Reservation<'a> {
    fn of(meta: &'a Meta) -> Self {
        Self {
            state: meta.state,
            attempts: meta.attempts,
            started_at: meta.started_at,
            reserved_until: meta.reserved_until,
            lease_ms: meta.lease_ms,
            worker: &meta.worker,
            claim: &meta.claim,
        }
    }
}

/// Writes the reservations of jobs that need no semaphores: what [`update`](super::row::update) would write, and nothing else. They get
/// a new `rev`, which they share.
pub fn reserve(tx: &Tx<'_>, jobs: &mut [Found<Job>]) -> Result<(), Fault> {
    if jobs.iter().any(|found| !found.job.meta.semaphores.is_empty()) {
        return Err(Fault::stored("semaphores", "the job was not judged by them"));
    }
    let rev = rand::random();
    jobs.iter_mut().for_each(|found| found.job.meta.rev = rev);
    let alike = alike(jobs.iter().map(|found| (Reservation::of(&found.job.meta), found.rowid)));
    for (to, rowids) in &alike {
        let (state, started_at, reserved_until) =
            (to.state.write()?, to.started_at.write()?, to.reserved_until.write()?);
        let (lease_ms, worker, claim) = (to.lease_ms.write()?, to.worker.write()?, to.claim.write()?);
        let write = |sql, rowid: &dyn rusqlite::ToSql| {
            tx.prepare_cached(sql)?.execute(params![
                rowid,
                state,
                to.attempts,
                started_at,
                reserved_until,
                lease_ms,
                worker,
                claim,
                rev
            ])
        };
        if rowids.len() < MANY {
            rowids.iter().try_for_each(|rowid| write(reserve_sql!(one), rowid).map(drop))?;
        } else {
            write(RESERVE_MANY, &list(rowids.iter().copied()))?;
        }
    }
    for Found { job: Job { meta, .. }, marked, .. } in jobs {
        tx.leaves(&meta.queue, RESERVE.from, *marked);
        tx.enters(&meta.queue, meta.state, false);
    }
    Ok(())
}

macro_rules! delete_sql {
    ($how:ident) => {
        of_rowids!($how "DELETE FROM jobs NOT INDEXED WHERE rev = ?2 AND queue = ?3 AND state = ?4 AND claim = ?5 AND batch IS NULL AND")
    };
}

pub const DELETE_MANY: &str = concat!(delete_sql!(many), " RETURNING rowid, id");
const DELETE_ONE: &str = concat!(delete_sql!(one), " AND id = ?6");

/// What shows that a job is as it was delivered. Its `rev` does wherever this server wrote; the rest is there for other programs, which may
/// not know about it.
#[derive(PartialEq, Eq, Hash)]
struct Delivered<'a> {
    rev: i64,
    queue: &'a QueueName,
    state: State,
    claim: &'a Option<Claim>,
}

/// Deletes those of these jobs that are as they were delivered. Returns their ids.
pub fn delete_delivered<'a>(tx: &Tx<'_>, jobs: &'a [(Meta, i64)]) -> Result<HashSet<&'a JobId>, Fault> {
    let delivered = |meta: &'a Meta| Delivered {
        rev: meta.rev,
        queue: &meta.queue,
        state: meta.state,
        claim: &meta.claim,
    };
    let mut deleted = HashSet::new();
    for (as_it_was, alike) in alike(jobs.iter().map(|job| (delivered(&job.0), job))) {
        let Delivered { rev, queue, state, claim } = as_it_was;
        let (name, word, claim) = (queue.as_str(), state.write()?, claim.write()?);
        let before = deleted.len();
        if alike.len() < MANY {
            let mut delete = tx.prepare_cached(DELETE_ONE)?;
            for (meta, rowid) in alike {
                if delete.execute(params![rowid, rev, name, word, claim, meta.id.as_str()])? > 0 {
                    deleted.insert(&meta.id);
                }
            }
        } else {
            let mut delete = tx.prepare_cached(DELETE_MANY)?;
            let rowids = list(alike.iter().map(|(_, rowid)| *rowid));
            let ids: HashMap<i64, &JobId> =
                alike.into_iter().map(|(meta, rowid)| (*rowid, &meta.id)).collect();
            let mut rows = delete.query(params![rowids, rev, name, word, claim])?;
            while let Some(row) = rows.next()? {
                let id = ids
                    .get(&row.get(0)?)
                    .filter(|id| row.get_ref(1).is_ok_and(|it| it.as_str() == Ok(id.as_str())));
                // Nothing is kept then, and what waited for this transaction is done one by one.
                deleted
                    .insert(*id.ok_or_else(|| Fault::stored("id", "another job has the rowid of this one"))?);
            }
        }
        (before..deleted.len()).for_each(|_| tx.leaves(queue, state, false));
    }
    Ok(deleted)
}

/// Brings together what has the same key.
fn alike<K: Eq + Hash, V>(values: impl Iterator<Item = (K, V)>) -> HashMap<K, Vec<V>> {
    let mut alike: HashMap<K, Vec<V>> = HashMap::new();
    values.for_each(|(key, value)| alike.entry(key).or_default().push(value));
    alike
}

/// Returns the rowids as a JSON array.
fn list(rowids: impl Iterator<Item = i64>) -> String {
    let rowids: Vec<String> = rowids.map(|rowid| rowid.to_string()).collect();
    format!("[{}]", rowids.join(","))
}
