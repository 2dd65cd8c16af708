//! Reserving jobs.
//!
//! The order of delivery is priority, `run_at`, id; and jobs whose `run_at` lies ahead must neither be
//! delivered nor be walked. In the index `jobs_head` the scheduled jobs of one priority lie behind its due
//! ones, so a claim reads the due range of each priority and jumps to the next lower priority: a queue
//! costs one seek for each priority in use, however many jobs wait in it. (Marking jobs as due when their
//! time comes would need no jumps, but a million jobs due at midnight would then hold up the writer.)

use rusqlite::{Connection, params};

use super::fault::Fault;
use super::row::{self, job_columns};
use crate::job::{Claim, Job, QueueName, State, Timestamp};
use crate::store::ClaimAsk;

/// Reserves what this request asks for, in the order of delivery.
pub(super) fn claim(db: &Connection, ask: &ClaimAsk, now: Timestamp) -> Result<Vec<Job>, Fault> {
    let mut jobs = Vec::new();
    let mut above = i64::MAX;
    while jobs.len() < ask.count
        && let Some(priority) = next_priority(db, &ask.queue, above)?
    {
        let want = ask.count - jobs.len();
        for mut job in due(db, &ask.queue, priority, want, now)? {
            reserve(db, &mut job, ask, now)?;
            jobs.push(job);
        }
        above = priority;
    }
    Ok(jobs)
}

/// The highest priority below this one that a ready job of the queue has.
fn next_priority(db: &Connection, queue: &QueueName, below: i64) -> Result<Option<i64>, Fault> {
    let mut next = db.prepare_cached(NEXT_PRIORITY)?;
    let mut rows = next.query(params![queue.as_str(), below])?;
    Ok(rows.next()?.map(|row| row.get(0)).transpose()?)
}

pub(super) const NEXT_PRIORITY: &str = "SELECT priority FROM jobs INDEXED BY jobs_head \
     WHERE queue = ?1 AND state = 'ready' AND priority < ?2 ORDER BY priority DESC LIMIT 1";

/// The first due jobs of one priority. Expired ones are passed over: the reaper takes them away.
fn due(
    db: &Connection,
    queue: &QueueName,
    priority: i64,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Job>, Fault> {
    let mut due = db.prepare_cached(DUE)?;
    row::jobs(&mut due, params![queue.as_str(), priority, now.millis(), row::signed(limit)])
}

pub(super) const DUE: &str = concat!(
    "SELECT ",
    job_columns!(),
    " FROM jobs INDEXED BY jobs_head WHERE queue = ?1 AND state = 'ready' AND priority = ?2 AND run_at <= ?3 \
     AND (expires_at IS NULL OR expires_at > ?3) ORDER BY run_at, id LIMIT ?4"
);

fn reserve(db: &Connection, job: &mut Job, ask: &ClaimAsk, now: Timestamp) -> Result<(), Fault> {
    let meta = &mut job.meta;
    meta.state = State::Reserved;
    meta.attempts = meta.attempts.saturating_add(1);
    meta.started_at = Some(now);
    meta.reserved_until = Some(now.plus_ms(ask.lease_ms));
    meta.lease_ms = Some(ask.lease_ms);
    meta.worker = ask.worker.clone();
    meta.claim = Some(ask.claim.clone());
    meta.rev = rand::random();
    db.prepare_cached(
        "UPDATE jobs SET state = 'reserved', due = NULL, attempts = ?2, started_at = ?3, reserved_until = ?4, \
         lease_ms = ?5, worker = ?6, claim = ?7, rev = ?8 WHERE id = ?1",
    )?
    .execute(params![
        meta.id.as_str(),
        meta.attempts,
        now.millis(),
        meta.reserved_until.map(Timestamp::millis),
        row::signed(ask.lease_ms),
        ask.worker.as_ref().map(|worker| worker.as_str()),
        ask.claim.as_str(),
        meta.rev,
    ])?;
    Ok(())
}

/// The jobs of these queues that the claim holds, in the order of delivery within each queue.
pub(super) fn held(db: &Connection, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>, Fault> {
    // Asked for rarely: after a repeat of a request whose runner died. Walks the queue's reserved jobs.
    let mut held = db.prepare_cached(concat!(
        "SELECT ",
        job_columns!(),
        " FROM jobs INDEXED BY jobs_browse WHERE queue = ?1 AND state = 'reserved' AND claim = ?2 \
         ORDER BY priority DESC, run_at, id"
    ))?;
    let mut jobs = Vec::new();
    for queue in queues {
        jobs.extend(row::jobs(&mut held, [queue.as_str(), claim.as_str()])?);
    }
    Ok(jobs)
}
