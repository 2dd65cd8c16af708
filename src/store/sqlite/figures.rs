//! Figures: how many jobs there are in each state.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::job::{QueueName, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;
use crate::store::{Counts, Figures, QueueCounts, Reconciled, Result};

#[async_trait]
impl Figures for SqliteStore {
    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>> {
        self.read(counts).await
    }

    /// The transaction of every change counts: there is nothing to compare.
    async fn reconcile(&self) -> Result<Reconciled> {
        Ok(Reconciled { corrected: 0, again_in: Duration::MAX, is_settled: true })
    }
}

/// Returns the figures of every queue that has jobs.
pub fn counts(db: &Connection, now: Timestamp) -> Result<HashMap<QueueName, QueueCounts>, Fault> {
    let came_due = came_due(db, now)?;
    let mut all =
        db.prepare_cached("SELECT queue, ready, marked, reserved, blocked, done, dead FROM counters")?;
    let mut rows = all.query([])?;
    let mut figures = HashMap::new();
    while let Some(found) = rows.next()? {
        let queue: QueueName = row::parsed(found, 0, "queue")?;
        let count = |at: usize| Ok::<u64, Fault>(u64::try_from(found.get::<_, i64>(at)?).unwrap_or(0));
        let (ready, marked) = (count(1)?, count(2)?);
        let scheduled = marked.saturating_sub(came_due.get(&queue).copied().unwrap_or(0));
        let counts = Counts {
            ready: ready.saturating_sub(scheduled),
            scheduled,
            reserved: count(3)?,
            blocked: count(4)?,
            done: count(5)?,
            dead: count(6)?,
        };
        let oldest_ready = match counts.ready {
            0 => None,
            _ => oldest_ready(db, &queue, now)?,
        };
        figures.insert(queue, QueueCounts { counts, oldest_ready, split_is_approximate: false });
    }
    Ok(figures)
}

pub const CAME_DUE: &str =
    "SELECT queue, count(*) FROM jobs INDEXED BY jobs_due WHERE due <= ?1 GROUP BY queue";

/// Returns how many jobs of each queue have a due mark that has passed: few, since claims and `prune` clear them.
fn came_due(db: &Connection, now: Timestamp) -> Result<HashMap<QueueName, u64>, Fault> {
    let mut past = db.prepare_cached(CAME_DUE)?;
    let mut rows = past.query([now.millis()])?;
    let mut counts = HashMap::new();
    while let Some(found) = rows.next()? {
        let count: i64 = found.get(1)?;
        counts.insert(row::parsed(found, 0, "queue")?, count.unsigned_abs());
    }
    Ok(counts)
}

/// How many priorities the search for the oldest ready job reads.
const PRIORITIES_LOOKED_AT: usize = 32;

pub const OLDEST_READY: &str = "SELECT priority, run_at FROM jobs INDEXED BY jobs_head \
         WHERE queue = ?1 AND state = 'ready' AND priority < ?2 ORDER BY priority DESC, run_at LIMIT 1";

/// Returns the earliest `run_at` of a due job: the first of each priority, as the head index has them.
fn oldest_ready(db: &Connection, queue: &QueueName, now: Timestamp) -> Result<Option<Timestamp>, Fault> {
    let mut first = db.prepare_cached(OLDEST_READY)?;
    let (mut above, mut oldest) = (i64::MAX, None);
    for _ in 0..PRIORITIES_LOOKED_AT {
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
