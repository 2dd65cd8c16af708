//! Who works on a queue, what is tried again, and what is blocked for good.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::job::{QueueName, Timestamp};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::figures::PRIORITIES_SCAN_LIMIT;
use crate::store::sqlite::jobs::priorities::FIRST_OF_PRIORITY;
use crate::store::sqlite::jobs::row;
use crate::store::{
    ALL_SCAN_LIMIT, BLOCKED_SCAN_LIMIT, Blockers, DUE_SCAN_LIMIT, DeadHead, Load, QUEUES_SCAN_LIMIT,
    RESERVED_AGES_MS, SCAN_LIMIT,
};

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

/// What [`AHEAD`] says of one priority of a queue, of all queues.
pub const ALL_AHEAD: &str = "SELECT count(*), count(CASE WHEN attempts > 0 THEN 1 END) \
     FROM (SELECT attempts FROM jobs INDEXED BY jobs_due WHERE due > ?1 LIMIT ?2)";

/// What [`HELD`] says of one queue, of all.
pub const ALL_HELD: &str = "SELECT count(*), count(DISTINCT worker), \
     count(CASE WHEN started_at > ?1 THEN 1 END), count(CASE WHEN started_at > ?2 THEN 1 END), \
     count(CASE WHEN started_at > ?3 THEN 1 END) \
     FROM (SELECT started_at, worker FROM jobs INDEXED BY jobs_reserved_until WHERE state = 'reserved' LIMIT ?4)";

/// Returns who works on a queue, and what is tried again, of its first priorities.
pub fn load(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<Load, Fault> {
    let mut load = Load::default();
    add_ready(db, queue, now, [SCAN_LIMIT; 2], &mut load)?;
    let [minute, ten, hour] = ages_began(now);
    let at = params![queue.as_str(), minute, ten, hour, SCAN_LIMIT.cast_signed()];
    add_held(db.prepare_cached(HELD)?.query_row(at, held)?, SCAN_LIMIT, &mut load);
    Ok(load)
}

/// Returns the same of all queues, but the oldest due jobs only of these.
pub fn total_load(db: &Connection, queues: &[QueueName], now: Timestamp) -> Result<Load, Fault> {
    let mut load = Load::default();
    for queue in queues.iter().take(QUEUES_SCAN_LIMIT) {
        add_ready(db, queue, now, [DUE_SCAN_LIMIT, 0], &mut load)?;
    }
    let most = ALL_SCAN_LIMIT.cast_signed();
    let (count, retried) = db.prepare_cached(ALL_AHEAD)?.query_row(params![now.millis(), most], ahead)?;
    load.backoff = retried;
    load.is_partial = count >= ALL_SCAN_LIMIT;
    let [minute, ten, hour] = ages_began(now);
    let at = params![minute, ten, hour, most];
    add_held(db.prepare_cached(ALL_HELD)?.query_row(at, held)?, ALL_SCAN_LIMIT, &mut load);
    Ok(load)
}

/// Adds the due jobs of a queue, and those that wait to be tried again, of its first priorities: of so many of either kind.
fn add_ready(
    db: &Connection,
    queue: &QueueName,
    now: Timestamp,
    [dues_most, aheads_most]: [u64; 2],
    load: &mut Load,
) -> Result<(), Fault> {
    let (mut due, mut is_ahead) = (db.prepare_cached(DUE)?, db.prepare_cached(AHEAD)?);
    let mut first = db.prepare_cached(FIRST_OF_PRIORITY)?;
    let (mut above, mut dues, mut aheads) = (i64::MAX, 0, 0);
    let left = |seen: u64, most: u64| most.saturating_sub(seen).cast_signed();
    let earlier = |one: Option<Timestamp>, other: Option<i64>| {
        one.into_iter().chain(other.map(Timestamp::from_millis)).min()
    };
    for n in 0..=PRIORITIES_SCAN_LIMIT {
        let found = first.query_row(params![queue.as_str(), above], |row| row.get::<_, i64>(0)).optional()?;
        let Some(priority) = found else { break };
        if n == PRIORITIES_SCAN_LIMIT {
            (load.is_partial, load.ages_are_partial) = (true, true);
            break;
        }
        above = priority;
        let at = params![queue.as_str(), priority, now.millis(), left(dues, dues_most)];
        let (count, fresh, retried) =
            due.query_row(at, |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get(2)?)))?;
        load.oldest_first = earlier(load.oldest_first, fresh);
        load.oldest_retried = earlier(load.oldest_retried, retried);
        dues += count.unsigned_abs();
        if aheads_most > 0 {
            let at = params![queue.as_str(), priority, now.millis(), left(aheads, aheads_most)];
            let (count, retried) = is_ahead.query_row(at, ahead)?;
            load.backoff += retried;
            aheads += count;
        }
    }
    load.is_partial |= aheads_most > 0 && aheads >= aheads_most;
    load.ages_are_partial |= dues >= dues_most;
    Ok(())
}

/// Reads how many are scheduled, and how many of them are tried again.
fn ahead(row: &Row<'_>) -> rusqlite::Result<(u64, u64)> {
    Ok((row.get::<_, i64>(0)?.unsigned_abs(), row.get::<_, i64>(1)?.unsigned_abs()))
}

/// Since when jobs have been held for so long.
fn ages_began(now: Timestamp) -> [i64; 3] {
    RESERVED_AGES_MS.map(|age| now.millis() - age.cast_signed())
}

/// Reads how many jobs are held, by how many workers, and how many for less than each age.
fn held(row: &Row<'_>) -> rusqlite::Result<[u64; 5]> {
    let count = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
    Ok([count(0)?, count(1)?, count(2)?, count(3)?, count(4)?])
}

fn add_held([all, workers, minute, ten, hour]: [u64; 5], most: u64, load: &mut Load) {
    load.workers = workers;
    load.reserved = [minute, ten - minute, hour - ten, all - hour];
    load.is_partial |= all >= most;
}

pub const HOLDERS: &str = "SELECT count(DISTINCT worker) FROM (SELECT worker FROM jobs INDEXED BY jobs_browse \
     WHERE queue = ?1 AND state = 'reserved' LIMIT ?2)";

/// Returns how many named workers hold jobs of each of these queues.
pub fn workers_of(db: &Connection, queues: &[QueueName]) -> Result<HashMap<QueueName, u64>, Fault> {
    let mut holders = db.prepare_cached(HOLDERS)?;
    let mut found = HashMap::new();
    for queue in queues {
        let of_queue = params![queue.as_str(), SCAN_LIMIT.cast_signed()];
        let workers = holders.query_row(of_queue, |row| row.get::<_, i64>(0))?.unsigned_abs();
        if workers > 0 {
            found.insert(queue.clone(), workers);
        }
    }
    Ok(found)
}

/// A dead job that has a place in the line of its group is the first of it.
pub const DEAD_HEADS: &str = "SELECT id, group_name, finished_at \
     FROM (SELECT id, group_name, finished_at, turn FROM jobs INDEXED BY jobs_browse \
     WHERE queue = ?1 AND state = 'dead' ORDER BY id LIMIT ?2) WHERE turn IS NOT NULL";

pub const WAITED_FOR: &str = "SELECT DISTINCT waits_for FROM (SELECT waits_for FROM jobs INDEXED BY jobs_browse \
     WHERE queue = ?1 AND state = 'blocked' ORDER BY id LIMIT ?2) WHERE waits_for IS NOT NULL ORDER BY waits_for";

/// Returns what may keep the blocked jobs of a queue from ever being delivered.
pub fn blockers(db: &Connection, queue: &QueueName) -> Result<Blockers, Fault> {
    let mut blockers = Blockers::default();
    let of_queue = params![queue.as_str(), BLOCKED_SCAN_LIMIT.cast_signed()];
    let mut heads = db.prepare_cached(DEAD_HEADS)?;
    let mut rows = heads.query(of_queue)?;
    while let Some(found) = rows.next()? {
        blockers.dead_heads += 1;
        if blockers.head.is_none() {
            let id = readable(row::parsed(found, 0, "id"))?;
            let group = readable(row::parsed(found, 1, "group_name"))?;
            let since = readable(row::time(found, 2))?.flatten();
            blockers.head = id.zip(group).map(|(id, group)| DeadHead { id, group, since });
        }
    }
    let mut waited_for = db.prepare_cached(WAITED_FOR)?;
    let mut rows = waited_for.query(of_queue)?;
    while let Some(found) = rows.next()? {
        blockers.semaphores.extend(readable(row::parsed(found, 0, "waits_for"))?);
    }
    Ok(blockers)
}
