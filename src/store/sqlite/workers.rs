//! Workers: heartbeats and timeouts. Each verb is one transaction or one query, so that no heartbeat comes
//! between finding that a worker has timed out and reading what it holds.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::job::backoff::YEAR_MS;
use crate::job::settings::LEASE_MAX_MS;
use crate::job::{Claim, JobId, Timestamp, WorkerName};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::workers::{Holding, Suspect, TIMED_OUT_KEPT_MS, TimeoutDecision, WORKERS_PER_CHECK};
use crate::store::{Holdings, Report, Result, StoreError, TimedOut, Worker, Workers};

#[async_trait]
impl Workers for SqliteStore {
    async fn heartbeat(&self, worker: &WorkerName, report: &Report) -> Result<Holdings> {
        let (worker, report) = (worker.clone(), report.clone());
        self.writer.run(move |tx, now| heartbeat(tx, &worker, &report, now)).await
    }

    async fn workers(&self, after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>> {
        let after = after.cloned();
        self.read(move |db, now| list(db, after.as_ref(), limit, now)).await
    }

    async fn worker(&self, worker: &WorkerName) -> Result<Option<Worker>> {
        let worker = worker.clone();
        self.read(move |db, now| one(db, &worker, now)).await.map_err(StoreError::unreadable)
    }

    async fn timed_out_workers(&self, heard_ms: u64, limit: usize) -> Result<TimedOut> {
        // Almost always no worker has timed out: a reader finds that, beside the thread that writes.
        match self.read(next_timeout).await? {
            Some(0) => self.writer.run(move |tx, now| timed_out_workers(tx, heard_ms, limit, now)).await,
            next_in_ms => Ok(TimedOut { next_in_ms, ..TimedOut::default() }),
        }
    }

    async fn held_by(&self, worker: &WorkerName, limit: usize) -> Result<Vec<(JobId, Claim)>> {
        let worker = worker.clone();
        let held = self.read(move |db, _| held(db, &worker, limit)).await?;
        Ok(held.into_iter().map(|holding| (holding.id, holding.claim)).collect())
    }

    async fn forget_worker(&self, worker: &WorkerName) -> Result<bool> {
        let worker = worker.clone();
        let forget = move |db: &Tx<'_>, _| {
            let gone =
                db.prepare_cached("DELETE FROM workers WHERE name = ?1")?.execute([worker.as_str()])?;
            if gone > 0 {
                db.acts_on(0);
            }
            Ok(gone > 0)
        };
        self.writer.run(forget).await
    }
}

/// Gives everything that a worker holds more time, as [`Meta::kept_until`](crate::job::Meta::kept_until) says. No job changes its state, so
/// that nothing is to be counted.
pub const EXTEND: &str = "UPDATE jobs INDEXED BY jobs_worker \
     SET reserved_until = max(coalesce(reserved_until, 0), min(?2 + min(max(coalesce(lease_ms, 0), 0), ?3), \
     coalesce(started_at + CASE WHEN max_run_ms BETWEEN 0 AND ?4 THEN max_run_ms END, ?2 + ?3))), rev = random() \
     WHERE worker = ?1 AND state = 'reserved' RETURNING id, queue, reserved_until, cancel_requested";

fn heartbeat(
    db: &Connection,
    worker: &WorkerName,
    report: &Report,
    now: Timestamp,
) -> Result<Holdings, Fault> {
    db.prepare_cached(
        "INSERT INTO workers (name, version, slots, seen_at, timeout_ms, silent_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name) DO UPDATE SET version = excluded.version, \
         slots = excluded.slots, seen_at = excluded.seen_at, timeout_ms = excluded.timeout_ms, \
         silent_at = excluded.silent_at, forget_at = NULL",
    )?
    .execute(params![
        worker.as_str(),
        report.version.as_ref().map(|version| version.as_str()),
        report.slots,
        now.millis(),
        row::signed(report.timeout_ms),
        now.plus_ms(report.timeout_ms).millis(),
    ])?;
    let mut extend = db.prepare_cached(EXTEND)?;
    let mut rows = extend.query(params![
        worker.as_str(),
        now.millis(),
        row::signed(LEASE_MAX_MS),
        row::signed(YEAR_MS)
    ])?;
    let mut holdings = Holdings::default();
    while let Some(found) = rows.next()? {
        let until = Timestamp::from_millis(found.get(2)?);
        let (id, queue) = (row::parsed(found, 0, "id"), row::parsed(found, 1, "queue"));
        if let (Some(id), Some(queue)) = (readable(id)?, readable(queue)?) {
            holdings.add(id, queue, until, found.get(3)?);
        }
    }
    Ok(holdings)
}

/// The columns that [`worker`] reads.
const COLUMNS: &str = "name, version, slots, seen_at, timeout_ms";

fn worker(db: &Connection, found: &Row<'_>, now: Timestamp) -> Result<Worker, Fault> {
    let name: WorkerName = row::parsed(found, 0, "name of a worker")?;
    let seen_at = Timestamp::from_millis(found.get(3)?);
    let timeout_ms = found.get::<_, i64>(4)?.unsigned_abs();
    let reserved: i64 = db.prepare_cached(COUNT)?.query_row([name.as_str()], |row| row.get(0))?;
    let is_late = |heard_at: Timestamp| heard_at.plus_ms(timeout_ms) <= now;
    Ok(Worker {
        seen_at,
        is_silent: is_late(seen_at) && is_late(heard_at(db, &name)?),
        report: Report {
            version: row::parsed_if_any(found, 1, "version of a worker")?,
            slots: found.get(2)?,
            timeout_ms,
        },
        reserved: reserved.unsigned_abs(),
        name,
    })
}

/// When a worker was last delivered, or extended, what it holds.
fn heard_at(db: &Connection, worker: &WorkerName) -> Result<Timestamp, Fault> {
    let mut latest = db.prepare_cached(HEARD)?;
    let (started, extended): (Option<i64>, Option<i64>) =
        latest.query_row([worker.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(started.max(extended).map(Timestamp::from_millis).unwrap_or_default())
}

const HEARD: &str = "SELECT max(started_at), max(extended_at) FROM jobs INDEXED BY jobs_worker \
     WHERE worker = ?1 AND state = 'reserved'";

pub const COUNT: &str =
    "SELECT count(*) FROM jobs INDEXED BY jobs_worker WHERE worker = ?1 AND state = 'reserved'";

fn list(
    db: &Connection,
    after: Option<&WorkerName>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Worker>, Fault> {
    let sql = format!("SELECT {COLUMNS} FROM workers WHERE name > ?1 ORDER BY name");
    let mut all = db.prepare_cached(&sql)?;
    let mut rows = all.query([after.map_or("", WorkerName::as_str)])?;
    let mut workers = Vec::new();
    while workers.len() < limit
        && let Some(found) = rows.next()?
    {
        workers.extend(readable(worker(db, found, now))?);
    }
    Ok(workers)
}

fn one(db: &Connection, name: &WorkerName, now: Timestamp) -> Result<Option<Worker>, Fault> {
    let mut by_name = db.prepare_cached(&format!("SELECT {COLUMNS} FROM workers WHERE name = ?1"))?;
    let mut rows = by_name.query([name.as_str()])?;
    rows.next()?.map(|found| worker(db, found, now)).transpose()
}

/// Milliseconds until a worker times out; 0 if one has.
fn next_timeout(db: &Connection, now: Timestamp) -> Result<Option<u64>, Fault> {
    let first: Option<i64> = db
        .prepare_cached(
            "SELECT silent_at FROM workers INDEXED BY workers_silent_at WHERE silent_at IS NOT NULL \
             ORDER BY silent_at LIMIT 1",
        )?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(first.map(|at| Timestamp::from_millis(at).ms_since(now)))
}

fn timed_out_workers(
    db: &Connection,
    heard_ms: u64,
    limit: usize,
    now: Timestamp,
) -> Result<TimedOut, Fault> {
    let mut suspects = suspects(db, heard_ms, now)?;
    let mut holdings = Vec::new();
    for worker in &mut suspects {
        let left = limit.saturating_sub(holdings.len());
        if left == 0 {
            break;
        }
        let held = held(db, &worker.name, left)?;
        if held.len() >= left {
            // There may be more, which it may have extended.
            let at: Option<i64> =
                db.prepare_cached(EXTENDED)?.query_row([worker.name.as_str()], |row| row.get(0))?;
            worker.extended_at = at.map(Timestamp::from_millis);
        }
        holdings.extend(held);
    }
    let complete = holdings.len() < limit;
    let decision = TimeoutDecision::of(&suspects, holdings, complete, now);
    for name in &decision.idle {
        db.prepare_cached("UPDATE workers SET silent_at = NULL, forget_at = ?2 WHERE name = ?1")?
            .execute(params![name.as_str(), now.plus_ms(TIMED_OUT_KEPT_MS).millis()])?;
    }
    for (name, silent_at) in &decision.later {
        db.prepare_cached("UPDATE workers SET silent_at = ?2 WHERE name = ?1")?
            .execute(params![name.as_str(), silent_at.millis()])?;
    }
    let ahead: Option<i64> = db
        .prepare_cached(
            "SELECT min(silent_at) FROM workers INDEXED BY workers_silent_at WHERE silent_at > ?1",
        )?
        .query_row([now.millis()], |row| row.get(0))?;
    let ahead_ms = ahead.map(|at| Timestamp::from_millis(at).ms_since(now));
    let next_in_ms = decision.next_in_ms(now, suspects.len(), ahead_ms);
    Ok(TimedOut { changes: decision.changes, workers: decision.workers, next_in_ms })
}

fn suspects(db: &Connection, heard_ms: u64, now: Timestamp) -> Result<Vec<Suspect>, Fault> {
    let mut past = db.prepare_cached(
        "SELECT name, timeout_ms FROM workers INDEXED BY workers_silent_at \
         WHERE silent_at <= ?1 AND timeout_ms <= ?2 ORDER BY silent_at LIMIT ?3",
    )?;
    let mut rows =
        past.query(params![now.millis(), row::signed(heard_ms), row::signed(WORKERS_PER_CHECK)])?;
    let mut suspects = Vec::new();
    while let Some(found) = rows.next()? {
        let timeout_ms = found.get::<_, i64>(1)?.unsigned_abs();
        let name: Option<WorkerName> = readable(row::parsed(found, 0, "name of a worker"))?;
        if let Some(name) = name {
            suspects.push(Suspect { name, timeout_ms, extended_at: None });
        }
    }
    Ok(suspects)
}

/// When a worker last extended what it holds.
const EXTENDED: &str =
    "SELECT max(extended_at) FROM jobs INDEXED BY jobs_worker WHERE worker = ?1 AND state = 'reserved'";

/// Returns what a worker holds, the latest delivery first.
pub const HELD: &str = "SELECT id, claim, rev, started_at, extended_at FROM jobs INDEXED BY jobs_worker \
     WHERE worker = ?1 AND state = 'reserved' ORDER BY started_at DESC LIMIT ?2";

fn held(db: &Connection, worker: &WorkerName, limit: usize) -> Result<Vec<Holding>, Fault> {
    let mut of_worker = db.prepare_cached(HELD)?;
    let mut rows = of_worker.query(params![worker.as_str(), row::signed(limit)])?;
    let mut held = Vec::new();
    while let Some(found) = rows.next()? {
        held.extend(readable(holding(worker, found))?);
    }
    Ok(held)
}

fn holding(worker: &WorkerName, found: &Row<'_>) -> Result<Holding, Fault> {
    Ok(Holding {
        worker: worker.clone(),
        id: row::parsed(found, 0, "id")?,
        claim: Claim::from_stored(&found.get::<_, String>(1)?),
        rev: found.get(2)?,
        started_at: row::time(found, 3)?.unwrap_or_default(),
        extended_at: row::time(found, 4)?,
    })
}
