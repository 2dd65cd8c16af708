//! Who works on a queue, and what is tried again.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::job::{QueueName, Timestamp};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::figures::{OLDEST_READY, PRIORITIES_LOOKED_AT};
use crate::store::{LOOKED_AT, Load, RESERVED_AGES_MS};

pub const DUE: &str = "SELECT count(*), min(CASE WHEN attempts = 0 THEN run_at END), \
     min(CASE WHEN attempts > 0 THEN run_at END) \
     FROM (SELECT attempts, run_at FROM jobs INDEXED BY jobs_head \
     WHERE queue = ?1 AND state = 'ready' AND priority = ?2 AND run_at <= ?3 ORDER BY run_at LIMIT ?4)";

pub const AHEAD: &str = "SELECT count(*), count(CASE WHEN attempts > 0 THEN 1 END) \
     FROM (SELECT attempts FROM jobs INDEXED BY jobs_head \
     WHERE queue = ?1 AND state = 'ready' AND priority = ?2 AND run_at > ?3 LIMIT ?4)";

pub const HELD: &str = "SELECT count(*), count(DISTINCT worker), \
     count(CASE WHEN started_at > ?2 THEN 1 END), count(CASE WHEN started_at > ?3 THEN 1 END), \
     count(CASE WHEN started_at > ?4 THEN 1 END) \
     FROM (SELECT started_at, worker FROM jobs INDEXED BY jobs_browse \
     WHERE queue = ?1 AND state = 'reserved' LIMIT ?5)";

/// Returns who works on a queue, and what is tried again, of its first priorities.
pub fn load(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<Load, Fault> {
    let mut load = Load::default();
    let (mut due, mut ahead) = (db.prepare_cached(DUE)?, db.prepare_cached(AHEAD)?);
    let mut first = db.prepare_cached(OLDEST_READY)?;
    let (mut above, mut dues, mut aheads) = (i64::MAX, 0, 0);
    let left = |seen: u64| LOOKED_AT.saturating_sub(seen).cast_signed();
    let earlier = |one: Option<Timestamp>, other: Option<i64>| {
        one.into_iter().chain(other.map(Timestamp::from_millis)).min()
    };
    for n in 0..=PRIORITIES_LOOKED_AT {
        let found = first.query_row(params![queue.as_str(), above], |row| row.get::<_, i64>(0)).optional()?;
        let Some(priority) = found else { break };
        if n == PRIORITIES_LOOKED_AT {
            load.is_partial = true;
            break;
        }
        above = priority;
        let at = params![queue.as_str(), priority, now.millis(), left(dues)];
        let (count, fresh, retried) =
            due.query_row(at, |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?)))?;
        load.oldest_first = earlier(load.oldest_first, fresh);
        load.oldest_retried = earlier(load.oldest_retried, retried);
        dues += count.unsigned_abs();
        let at = params![queue.as_str(), priority, now.millis(), left(aheads)];
        let (count, retried) =
            ahead.query_row(at, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        load.backoff += retried.unsigned_abs();
        aheads += count.unsigned_abs();
    }
    let since = |age: u64| now.millis() - age.cast_signed();
    let [minute, ten, hour] = RESERVED_AGES_MS.map(since);
    let at = params![queue.as_str(), minute, ten, hour, LOOKED_AT.cast_signed()];
    let held = db.prepare_cached(HELD)?.query_row(at, |row| {
        let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
        Ok([count(0)?, count(1)?, count(2)?, count(3)?, count(4)?])
    })?;
    let [all, workers, minute, ten, hour] = held;
    load.workers = workers;
    load.reserved = [minute, ten - minute, hour - ten, all - hour];
    load.is_partial |= [dues, aheads, all].iter().any(|seen| *seen >= LOOKED_AT);
    Ok(load)
}
