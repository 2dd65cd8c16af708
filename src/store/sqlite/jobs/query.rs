//! Reading without changing anything: browsing, figures, and what is due when.

use std::collections::HashMap;

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use crate::job::transition::Operation;
use crate::job::{Claim, Job, JobId, QueueName, State, Timestamp, Visible};
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;
use crate::store::{Change, Counts, Filter, Overdue, QueueCounts};

/// The jobs with these ids, each at its place.
pub fn get(db: &Connection, ids: &[JobId]) -> Result<Vec<Option<Job>>, Fault> {
    ids.iter().map(|id| row::job_of(db, id)).collect()
}

/// The jobs that the filter means, by id.
pub fn find(
    db: &Connection,
    filter: &Filter,
    after: Option<&JobId>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<Job>, Fault> {
    let narrow = [
        (filter.key.is_some(), "jobs_key"),
        (filter.group.is_some(), "jobs_group"),
        (filter.dead_lettered, "jobs_origin"),
    ];
    let narrow = narrow.into_iter().find(|(applies, _)| *applies);
    let mut ids = match (narrow, filter.state) {
        (Some((_, index)), _) => matching(db, index, filter, None, after, limit, now)?,
        (None, Some(state)) => matching(db, "jobs_browse", filter, Some(state.stored()), after, limit, now)?,
        // Each state is in the order of ids; the first of all are among the first of each.
        (None, None) => {
            let mut ids = Vec::new();
            for state in State::ALL {
                ids.extend(matching(db, "jobs_browse", filter, Some(state), after, limit, now)?);
            }
            ids.sort_unstable();
            ids
        }
    };
    ids.truncate(limit);
    let mut jobs = Vec::with_capacity(ids.len());
    for id in &ids {
        jobs.extend(row::job_of(db, id)?);
    }
    Ok(jobs)
}

/// The first ids that an index has for the filter, with `state` as an equality in that index.
fn matching(
    db: &Connection,
    index: &str,
    filter: &Filter,
    state: Option<State>,
    after: Option<&JobId>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<JobId>, Fault> {
    let mut sql = format!("SELECT id FROM jobs INDEXED BY {index} WHERE queue = ? AND id > ?");
    let mut values: Vec<Value> =
        vec![filter.queue.as_str().to_owned().into(), after.map_or("", JobId::as_str).to_owned().into()];
    let mut only = |condition: &str, value: Option<Value>| {
        sql.push_str(condition);
        values.extend(value);
    };
    if let Some(state) = state.or(filter.state.map(Visible::stored)) {
        only(" AND state = ?", Some(state.as_str().to_owned().into()));
    }
    match filter.state {
        Some(Visible::Ready) => only(" AND run_at <= ?", Some(now.millis().into())),
        Some(Visible::Scheduled) => only(" AND run_at > ?", Some(now.millis().into())),
        _ => {}
    }
    if let Some(key) = &filter.key {
        only(" AND key = ?", Some(key.as_str().to_owned().into()));
    }
    if let Some(group) = &filter.group {
        only(" AND group_name = ?", Some(group.as_str().to_owned().into()));
    }
    if filter.dead_lettered {
        only(" AND origin IS NOT NULL", None);
    }
    let moment = "CASE WHEN state IN ('done', 'dead') THEN finished_at ELSE created_at END";
    if let Some(from) = filter.from {
        only(&format!(" AND {moment} >= ?"), Some(from.millis().into()));
    }
    if let Some(before) = filter.before {
        only(&format!(" AND {moment} < ?"), Some(before.millis().into()));
    }
    only(" ORDER BY id LIMIT ?", Some(row::signed(limit).into()));
    let mut matching = db.prepare_cached(&sql)?;
    let mut rows = matching.query(params_from_iter(values))?;
    let mut ids = Vec::new();
    while let Some(found) = rows.next()? {
        ids.push(row::parsed(found, 0, "id")?);
    }
    Ok(ids)
}

/// The queues that have jobs: those that have counters.
pub fn queues(
    db: &Connection,
    prefix: &str,
    after: Option<&QueueName>,
    limit: usize,
) -> Result<Vec<QueueName>, Fault> {
    // Names are ASCII, so everything that begins with the prefix sorts below this.
    let end = format!("{prefix}\u{10ffff}");
    let after = after.map_or("", QueueName::as_str);
    let mut named = db.prepare_cached(
        "SELECT queue FROM counters WHERE queue >= ?1 AND queue < ?2 AND queue > ?3 ORDER BY queue LIMIT ?4",
    )?;
    let mut rows = named.query(params![prefix, end, after, row::signed(limit)])?;
    let mut queues = Vec::new();
    while let Some(found) = rows.next()? {
        queues.push(row::parsed(found, 0, "queue")?);
    }
    Ok(queues)
}

/// The figures of every queue that has jobs.
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

/// How many jobs of each queue have a due mark whose moment has passed: few, since claims and `prune` wipe them.
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

/// How many priorities the search for the oldest ready job looks at.
const PRIORITIES_LOOKED_AT: usize = 32;

pub const OLDEST_READY: &str = "SELECT priority, run_at FROM jobs INDEXED BY jobs_head \
         WHERE queue = ?1 AND state = 'ready' AND priority < ?2 ORDER BY priority DESC, run_at LIMIT 1";

/// The earliest `run_at` of a due job: the first of each priority, as the head index has them.
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

pub const UPCOMING: &str =
    "SELECT queue, due FROM jobs INDEXED BY jobs_due WHERE due > ?1 ORDER BY due, queue LIMIT ?2";

/// The scheduled jobs that are due next.
pub fn upcoming(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let mut next = db.prepare_cached(UPCOMING)?;
    let mut rows = next.query([now.millis(), row::signed(limit)])?;
    let mut moments = Vec::new();
    while let Some(found) = rows.next()? {
        moments.push((row::parsed(found, 0, "queue")?, Timestamp::from_millis(found.get(1)?)));
    }
    Ok(moments)
}

/// A deadline of a job.
type Deadline = (Timestamp, Change);

/// What has run out, the longest overdue first.
pub fn overdue(db: &Connection, limit: usize, now: Timestamp) -> Result<Overdue, Fault> {
    // One more than asked for tells whether the next deadline has passed as well.
    let most = limit.saturating_add(1);
    let mut due = lapsed(db, most, now)?;
    due.extend(expired(db, most, now)?);
    due.sort_by_key(|(deadline, _)| *deadline);
    let next_in_ms = if due.len() > limit { Some(0) } else { next_deadline(db, now)? };
    due.truncate(limit);
    let changes = due.into_iter().map(|(_, change)| change).collect();
    Ok(Overdue { changes, next_in_ms })
}
pub const LAPSED: &str = "SELECT id, reserved_until, claim FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until <= ?1 ORDER BY reserved_until LIMIT ?2";

fn lapsed(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Deadline>, Fault> {
    let mut lapsed = db.prepare_cached(LAPSED)?;
    let mut rows = lapsed.query([now.millis(), row::signed(limit)])?;
    let mut due = Vec::new();
    while let Some(found) = rows.next()? {
        let reserved_until = Timestamp::from_millis(found.get(1)?);
        let claim = Claim::from_stored(&found.get::<_, String>(2)?);
        let change = Change {
            id: row::parsed(found, 0, "id")?,
            operation: Operation::Lapse { claim, reserved_until },
        };
        due.push((reserved_until, change));
    }
    Ok(due)
}
pub const EXPIRED: &str = "SELECT id, expires_at FROM jobs INDEXED BY jobs_expires_at \
         WHERE expires_at <= ?1 AND state IN ('ready', 'blocked') ORDER BY expires_at LIMIT ?2";

fn expired(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<Deadline>, Fault> {
    let mut expired = db.prepare_cached(EXPIRED)?;
    let mut rows = expired.query([now.millis(), row::signed(limit)])?;
    let mut due = Vec::new();
    while let Some(found) = rows.next()? {
        let expires_at = Timestamp::from_millis(found.get(1)?);
        let change = Change { id: row::parsed(found, 0, "id")?, operation: Operation::Expire { expires_at } };
        due.push((expires_at, change));
    }
    Ok(due)
}

pub const NEXT_DEADLINE: &str = "SELECT min(reserved_until) FROM jobs INDEXED BY jobs_reserved_until \
         WHERE state = 'reserved' AND reserved_until > ?1 \
         UNION ALL SELECT min(expires_at) FROM jobs INDEXED BY jobs_expires_at \
         WHERE expires_at > ?1 AND state IN ('ready', 'blocked')";

/// Milliseconds until the first deadline that lies ahead.
fn next_deadline(db: &Connection, now: Timestamp) -> Result<Option<u64>, Fault> {
    let mut first = db.prepare_cached(NEXT_DEADLINE)?;
    let moments = first.query_map([now.millis()], |row| row.get::<_, Option<i64>>(0))?;
    let moments: Vec<Option<i64>> = moments.collect::<Result<_, _>>()?;
    let first = moments.into_iter().flatten().min();
    Ok(first.map(|moment| Timestamp::from_millis(moment).ms_since(now)))
}
