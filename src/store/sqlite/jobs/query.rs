//! Reading without changing anything: jobs by id and by filter, queues, and what is due when.

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use crate::job::{JobId, QueueName, State, Timestamp, Visible};
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::unreadable;
use crate::store::{Filter, ListedJob, PageBuilder};

/// Returns the jobs with these ids, each at its place.
pub fn get(db: &Connection, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>, Fault> {
    ids.iter().map(|id| unreadable::listed(db, id)).collect()
}

/// Returns those of these jobs that have not finished.
pub fn unfinished(db: &Connection, ids: &[JobId]) -> Result<Vec<JobId>, Fault> {
    let mut by_id = db.prepare_cached(
        "SELECT 1 FROM jobs WHERE id = ?1 AND state IN ('ready', 'reserved', 'blocked') AND origin IS NULL",
    )?;
    let mut unfinished = Vec::new();
    for id in ids {
        if by_id.exists([id.as_str()])? {
            unfinished.push(id.clone());
        }
    }
    Ok(unfinished)
}

/// Returns the jobs that the filter selects, by id.
pub fn find(
    db: &Connection,
    filter: &Filter,
    after: Option<&JobId>,
    limit: usize,
    now: Timestamp,
) -> Result<Vec<ListedJob>, Fault> {
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
    let mut page = PageBuilder::new(limit);
    for id in &ids {
        if page.is_full() {
            break;
        }
        unreadable::listed(db, id)?.into_iter().for_each(|job| page.push(job));
    }
    Ok(page.into_items())
}

/// Returns the first ids that an index has for the filter, with `state` as an equality in that index.
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
    only(" ORDER BY id", None);
    let mut matching = db.prepare_cached(&sql)?;
    let mut rows = matching.query(params_from_iter(values))?;
    let mut ids = Vec::new();
    while ids.len() < limit
        && let Some(found) = rows.next()?
    {
        ids.extend(readable(row::parsed(found, 0, "id"))?);
    }
    Ok(ids)
}

/// Returns the queues that have jobs: those that have counters.
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
        "SELECT queue FROM counters WHERE queue >= ?1 AND queue < ?2 AND queue > ?3 ORDER BY queue",
    )?;
    let mut rows = named.query([prefix, &end, after])?;
    let mut queues = Vec::new();
    while queues.len() < limit
        && let Some(found) = rows.next()?
    {
        queues.extend(readable(row::parsed(found, 0, "queue"))?);
    }
    Ok(queues)
}

pub const UPCOMING: &str =
    "SELECT queue, due FROM jobs INDEXED BY jobs_due WHERE due > ?1 ORDER BY due, queue LIMIT ?2";

/// Returns the scheduled jobs that are due next.
pub fn upcoming(db: &Connection, limit: usize, now: Timestamp) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let mut next = db.prepare_cached(UPCOMING)?;
    let mut rows = next.query([now.millis(), row::signed(limit)])?;
    let mut moments = Vec::new();
    while let Some(found) = rows.next()? {
        let at = Timestamp::from_millis(found.get(1)?);
        moments.extend(readable(row::parsed(found, 0, "queue"))?.map(|queue| (queue, at)));
    }
    Ok(moments)
}
