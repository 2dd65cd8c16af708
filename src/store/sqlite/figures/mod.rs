//! Figures: how many jobs there are in each state. [`load`] has who works on a queue, what is tried again, and what is blocked for good.

mod load;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::job::{QueueName, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::priorities::{FIRST_OF_PRIORITY, NEXT_DUE};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::readers::Readers;
use crate::store::sqlite::recount;
use crate::store::{
    Blockers, Counts, Figures, Load, Named, Pool, QueueCounts, Reconciled, Result, StoreSize, Summary, chain,
};

/// Up to so many scheduled jobs of a queue are counted for its own figures. Where there are more, those that have come due
/// since are counted instead: few, but among those of all queues.
const SCHEDULED_COUNTED: u64 = 50_000;
/// When the counts are compared again where that has failed.
const COMPARED_AGAIN: Duration = Duration::from_secs(600);
/// How many priorities of a queue are scanned.
pub const PRIORITIES_SCAN_LIMIT: usize = 32;

#[async_trait]
impl Figures for SqliteStore {
    async fn summary(&self, most: usize) -> Result<Summary> {
        self.read(move |db, now| summary(db, most, now)).await
    }

    async fn counts(&self, queue: &QueueName) -> Result<QueueCounts> {
        let queue = queue.clone();
        self.read(move |db, now| counts(db, &queue, now)).await
    }

    async fn count_now(&self, queue: &QueueName) -> Result<Counts> {
        let queue = queue.clone();
        self.read(move |db, now| count_now(db, &queue, now)).await
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        let queue = queue.clone();
        self.read(move |db, now| next_due(db, &queue, now)).await
    }

    async fn load(&self, queue: &QueueName) -> Result<Load> {
        let queue = queue.clone();
        self.read(move |db, now| load::load(db, &queue, now)).await
    }

    async fn total_load(&self, queues: &[QueueName]) -> Result<Load> {
        let queues = queues.to_vec();
        self.read(move |db, now| load::total_load(db, &queues, now)).await
    }

    async fn workers_of(&self, queues: &[QueueName]) -> Result<HashMap<QueueName, u64>> {
        let queues = queues.to_vec();
        self.read(move |db, _| load::workers_of(db, &queues)).await
    }

    async fn blockers(&self, queue: &QueueName) -> Result<Blockers> {
        let queue = queue.clone();
        self.read(move |db, _| load::blockers(db, &queue)).await
    }

    async fn how_many(&self, of: Named, _: u64) -> Result<u64> {
        self.read(move |db, _| how_many(db, of)).await
    }

    async fn with_jobs(&self, queues: &[QueueName]) -> Result<HashSet<QueueName>> {
        let queues = queues.to_vec();
        self.read(move |db, _| with_jobs(db, &queues)).await
    }

    async fn size(&self) -> Result<StoreSize> {
        let data = self.read(|db, _| size(db)).await?;
        Ok(StoreSize { data, indexes: None, log: self.readers.as_ref().and_then(Readers::log_bytes) })
    }

    /// The transaction of every change counts: only what another program may have done is compared, once after a start.
    async fn reconcile(&self) -> Result<Reconciled> {
        let done = |corrected| Reconciled { corrected, again_in: Duration::MAX, is_settled: true };
        if self.is_compared.swap(true, Ordering::Relaxed) {
            return Ok(done(0));
        }
        Ok(recount::check(self).await.map(done).unwrap_or_else(|error| {
            tracing::warn!(
                error = chain(&error),
                "the counts cannot be compared with the jobs, and stay as they are"
            );
            self.is_compared.store(false, Ordering::Relaxed);
            Reconciled { again_in: COMPARED_AGAIN, ..done(0) }
        }))
    }

    fn pool(&self) -> Option<Pool> {
        self.readers.as_ref().map(Readers::pool)
    }
}

/// Returns how many bytes the pages of the database take.
fn size(db: &Connection) -> Result<u64, Fault> {
    let read = |name| db.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (pages, bytes) = (read("page_count")?, read("page_size")?);
    Ok(pages.unsigned_abs().saturating_mul(bytes.unsigned_abs()))
}

const TOTAL: &str = "SELECT coalesce(sum(ready), 0), coalesce(sum(marked), 0), coalesce(sum(reserved), 0), \
         coalesce(sum(blocked), 0), coalesce(sum(done), 0), coalesce(sum(dead), 0), count(*) FROM counters";

const BUSIEST: &str = "SELECT ready, marked, reserved, blocked, done, dead, queue FROM counters \
         ORDER BY ready + reserved + blocked DESC, dead + done DESC, queue LIMIT ?1";

pub const OF_QUEUE: &str =
    "SELECT ready, marked, reserved, blocked, done, dead FROM counters WHERE queue = ?1";

/// Returns the figures of all queues, and of each of the busiest.
fn summary(db: &Connection, most: usize, now: Timestamp) -> Result<Summary, Fault> {
    let came_due = came_due(db, now)?;
    let (row, count) =
        db.prepare_cached(TOTAL)?.query_row([], |row| Ok((by_state(row), row.get::<_, i64>(6)?)))?;
    let counts = split(row?, |marked| marked.saturating_sub(came_due.values().sum()));
    let mut total = QueueCounts { counts, ..QueueCounts::default() };
    let mut queues = HashMap::new();
    let mut busiest = db.prepare_cached(BUSIEST)?;
    let mut rows = busiest.query([i64::try_from(most).unwrap_or(i64::MAX)])?;
    while let Some(found) = rows.next()? {
        let Some(queue) = readable(row::parsed::<QueueName>(found, 6, "queue"))? else { continue };
        let due = came_due.get(&queue).copied().unwrap_or(0);
        let counts = split(by_state(found)?, |marked| marked.saturating_sub(due));
        let oldest_ready = oldest_if_any(db, &queue, &counts, now)?;
        total.oldest_ready = [total.oldest_ready, oldest_ready].into_iter().flatten().min();
        queues.insert(queue, QueueCounts { counts, oldest_ready, ..QueueCounts::default() });
    }
    Ok(Summary { total, count: count.unsigned_abs(), queues })
}

/// Returns how many jobs each queue has.
pub fn depths(db: &Connection, now: Timestamp) -> Result<Vec<(QueueName, Counts)>, Fault> {
    let came_due = came_due(db, now)?;
    let mut all =
        db.prepare_cached("SELECT ready, marked, reserved, blocked, done, dead, queue FROM counters")?;
    let (mut rows, mut depths) = (all.query([])?, Vec::new());
    while let Some(found) = rows.next()? {
        let Some(queue) = readable(row::parsed::<QueueName>(found, 6, "queue"))? else { continue };
        let due = came_due.get(&queue).copied().unwrap_or(0);
        depths.push((queue, split(by_state(found)?, |marked| marked.saturating_sub(due))));
    }
    Ok(depths)
}

/// Returns the figures of one queue.
fn counts(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<QueueCounts, Fault> {
    let mut of_queue = db.prepare_cached(OF_QUEUE)?;
    let found = of_queue.query_row([queue.as_str()], |row| Ok(by_state(row))).optional()?;
    let Some(row) = found.transpose()? else { return Ok(QueueCounts::default()) };
    let scheduled = match row {
        [_, 0, ..] => 0,
        [_, marked, ..] => scheduled(db, queue, marked.unsigned_abs(), now)?,
    };
    let counts = split(row, |_| scheduled);
    let oldest_ready = oldest_if_any(db, queue, &counts, now)?;
    Ok(QueueCounts { counts, oldest_ready, ..QueueCounts::default() })
}

pub const COUNT_NOW: &str = "SELECT state, 0, count(*) FROM jobs INDEXED BY jobs_browse WHERE queue = ?1 GROUP BY state \
         UNION ALL SELECT 'ready', 1, count(*) FROM jobs INDEXED BY jobs_head \
         WHERE queue = ?1 AND state = 'ready' AND run_at > ?2";

/// Counts the jobs of a queue, in two indexes alone.
fn count_now(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<Counts, Fault> {
    let mut by_state = db.prepare_cached(COUNT_NOW)?;
    let mut rows = by_state.query(params![queue.as_str(), now.millis()])?;
    let mut counts = Counts::default();
    while let Some(found) = rows.next()? {
        let Some(state) = readable(row::state(found, 0))? else { continue };
        let (is_scheduled, count) = (found.get(1)?, found.get::<_, i64>(2)?.unsigned_abs());
        *counts.of(state, is_scheduled) += count;
    }
    counts.ready = counts.ready.saturating_sub(counts.scheduled);
    Ok(counts)
}

/// Returns when the next job of a queue comes due: the first of each priority that lies ahead.
fn next_due(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<Option<Timestamp>, Fault> {
    let (mut ahead, mut first) = (db.prepare_cached(NEXT_DUE)?, db.prepare_cached(FIRST_OF_PRIORITY)?);
    let (mut above, mut next) = (i64::MAX, None);
    for _ in 0..PRIORITIES_SCAN_LIMIT {
        let found = first.query_row(params![queue.as_str(), above], |row| row.get::<_, i64>(0)).optional()?;
        let Some(priority) = found else { break };
        above = priority;
        let due = params![queue.as_str(), priority, now.millis()];
        let due = ahead.query_row(due, |row| row.get::<_, i64>(0)).optional()?;
        next = [next, due].into_iter().flatten().min();
    }
    Ok(next.map(Timestamp::from_millis))
}

fn how_many(db: &Connection, of: Named) -> Result<u64, Fault> {
    let sql = match of {
        Named::Queues => "SELECT count(*) FROM counters",
        Named::Settings => "SELECT count(*) FROM settings",
        Named::Workers => "SELECT count(*) FROM workers",
        Named::Schedules => "SELECT count(*) FROM schedules",
        Named::Semaphores => "SELECT count(*) FROM semaphores",
        Named::Requests => "SELECT count(*) FROM requests",
    };
    let count: i64 = db.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Returns those of these queues that have jobs: no others have counters.
fn with_jobs(db: &Connection, queues: &[QueueName]) -> Result<HashSet<QueueName>, Fault> {
    let mut of_queue = db.prepare_cached("SELECT 1 FROM counters WHERE queue = ?1")?;
    let mut there = HashSet::new();
    for queue in queues {
        if of_queue.exists([queue.as_str()])? {
            there.insert(queue.clone());
        }
    }
    Ok(there)
}

/// Returns the columns of `counters` in the order of its statements.
fn by_state(row: &Row<'_>) -> Result<[i64; 6], Fault> {
    Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?])
}

/// Returns the counts of a row of `counters`; `scheduled` returns how many of the marked jobs lie ahead.
fn split(row: [i64; 6], scheduled: impl FnOnce(u64) -> u64) -> Counts {
    let [ready, marked, reserved, blocked, done, dead] = row.map(|count| u64::try_from(count).unwrap_or(0));
    let scheduled = scheduled(marked).min(ready);
    Counts { ready: ready - scheduled, scheduled, reserved, blocked, dead, done }
}

/// Read in the order of the index: to group by the queue alone would sort all marks that have passed, in memory.
pub const CAME_DUE: &str =
    "SELECT queue, count(*) FROM jobs INDEXED BY jobs_due WHERE due <= ?1 GROUP BY due, queue";

/// Returns how many jobs of each queue have a due mark that has passed: few, since claims and `prune` clear them.
fn came_due(db: &Connection, now: Timestamp) -> Result<HashMap<QueueName, u64>, Fault> {
    let mut past = db.prepare_cached(CAME_DUE)?;
    let mut rows = past.query([now.millis()])?;
    let mut by_name: HashMap<String, u64> = HashMap::new();
    while let Some(found) = rows.next()? {
        let Some(name) = readable(row::text(found, 0))?.flatten() else { continue };
        let count = found.get::<_, i64>(1)?.unsigned_abs();
        if let Some(sum) = by_name.get_mut(name) {
            *sum += count;
        } else {
            by_name.insert(name.to_owned(), count);
        }
    }
    let mut counts = HashMap::new();
    for (name, count) in by_name {
        let queue = name.parse::<QueueName>().map_err(|error| Fault::stored("queue", error));
        counts.extend(readable(queue)?.map(|queue| (queue, count)));
    }
    Ok(counts)
}

pub const SCHEDULED: &str = "SELECT count(*) FROM (SELECT 1 FROM jobs INDEXED BY jobs_head \
         WHERE queue = ?1 AND state = 'ready' AND priority = ?2 AND run_at > ?3 LIMIT ?4)";

/// Returns how many jobs of a queue, of which so many have a due mark, wait for their `run_at`.
fn scheduled(db: &Connection, queue: &QueueName, marked: u64, now: Timestamp) -> Result<u64, Fault> {
    let (mut of_priority, mut first) = (db.prepare_cached(SCHEDULED)?, db.prepare_cached(FIRST_OF_PRIORITY)?);
    let (mut above, mut count) = (i64::MAX, 0_u64);
    for _ in 0..PRIORITIES_SCAN_LIMIT {
        let found = first.query_row(params![queue.as_str(), above], |row| row.get::<_, i64>(0)).optional()?;
        let Some(priority) = found else { return Ok(count) };
        above = priority;
        let left = (SCHEDULED_COUNTED + 1).saturating_sub(count).cast_signed();
        let ahead = of_priority
            .query_row(params![queue.as_str(), priority, now.millis(), left], |row| row.get::<_, i64>(0))?;
        count += ahead.unsigned_abs();
        if count > SCHEDULED_COUNTED {
            break;
        }
    }
    Ok(marked.saturating_sub(came_due(db, now)?.get(queue).copied().unwrap_or(0)))
}

fn oldest_if_any(
    db: &Connection,
    queue: &QueueName,
    counts: &Counts,
    now: Timestamp,
) -> Result<Option<Timestamp>, Fault> {
    if counts.ready == 0 { Ok(None) } else { oldest_ready(db, queue, now) }
}

/// Returns the earliest `run_at` of a due job: the first of each priority, as the head index has them.
fn oldest_ready(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<Option<Timestamp>, Fault> {
    let mut first = db.prepare_cached(FIRST_OF_PRIORITY)?;
    let (mut above, mut oldest) = (i64::MAX, None);
    for _ in 0..PRIORITIES_SCAN_LIMIT {
        let mut rows = first.query(params![queue.as_str(), above])?;
        let Some(found) = rows.next()? else {
            break;
        };
        above = found.get(0)?;
        let run_at = Timestamp::from_millis(found.get(1)?);
        if run_at <= now && oldest.is_none_or(|oldest| run_at < oldest) {
            oldest = Some(run_at);
        }
    }
    Ok(oldest)
}
