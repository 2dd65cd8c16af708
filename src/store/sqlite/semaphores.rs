//! Semaphores: their rows, the jobs that hold them, and unblocking the jobs that wait for them.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::str::FromStr;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Params, Row, Statement, params};

use crate::job::semaphore::{Admission, Waiter, others, waiting_states};
use crate::job::transition::delivery::UNBLOCK;
use crate::job::{JobId, Meta, QueueName, Rules, SemaphoreName, State, Timestamp};
use crate::store::audit::Seen;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::needs;
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::unreadable;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    Holder, Removal, Result, SemaphoreUse, SemaphoreView, Semaphores, UNBLOCKED_QUEUES_MAX, Unblocked,
};

mod needed;

#[async_trait]
impl Semaphores for SqliteStore {
    async fn capacities(
        &self,
        after: Option<&SemaphoreName>,
        limit: usize,
    ) -> Result<Vec<(SemaphoreName, u64)>> {
        let after = after.cloned();
        self.read(move |db, _| capacities(db, after.as_ref(), limit)).await
    }

    async fn semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreView>> {
        let names = names.to_vec();
        self.read(move |db, now| views(db, &names, now)).await
    }

    async fn uses(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreUse>> {
        let names = names.to_vec();
        self.read(move |db, _| uses(db, &names)).await
    }

    async fn holders(&self, name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>> {
        let name = name.clone();
        self.read(move |db, _| holders(db, &name, limit)).await
    }

    async fn unknown_semaphores(&self, names: &[SemaphoreName]) -> Result<Vec<SemaphoreName>> {
        let names = names.to_vec();
        self.read(move |db, _| missing(db, names.iter())).await
    }

    async fn kept_from(&self, job: &Meta, rules: &Rules) -> Result<Option<(SemaphoreName, Waiter)>> {
        let (job, rules) = (job.clone(), rules.clone());
        let kept = move |db: &Connection, now| {
            Ok(admission(db, job.semaphores.iter(), &rules, now)?.kept_from(&job))
        };
        self.read(kept).await
    }

    async fn save_semaphore(&self, name: &SemaphoreName, capacity: u64) -> Result<()> {
        let name = name.clone();
        self.writer.run(move |tx, _| save(tx, &name, capacity)).await
    }

    async fn remove_semaphore(&self, name: &SemaphoreName) -> Result<Removal> {
        needed::remove(self, name).await
    }

    async fn waited_for(&self, after: Option<&SemaphoreName>, limit: usize) -> Result<Vec<SemaphoreName>> {
        let after = after.cloned();
        self.read(move |db, _| waited_for(db, after.as_ref(), limit)).await
    }

    async fn unblock_waiters(&self, names: &[SemaphoreName], rules: &Rules) -> Result<Vec<Unblocked>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let (names, rules) = (names.to_vec(), rules.clone());
        self.writer.run(move |tx, now| unblock_waiters(tx, &names, &rules, now)).await
    }
}

/// Returns how many may hold the semaphore, if it exists.
pub fn capacity(db: &Connection, name: &SemaphoreName) -> Result<Option<u64>, Fault> {
    let mut by_name = db.prepare_cached("SELECT capacity FROM semaphores WHERE name = ?1")?;
    let capacity: Option<i64> = by_name.query_row([name.as_str()], |row| row.get(0)).optional()?;
    Ok(capacity.map(i64::unsigned_abs))
}

/// Returns those of these that do not exist.
pub fn missing<'n>(
    db: &Connection,
    names: impl Iterator<Item = &'n SemaphoreName>,
) -> Result<Vec<SemaphoreName>, Fault> {
    let mut missing = Vec::new();
    for name in names {
        if capacity(db, name)?.is_none() {
            missing.push(name.clone());
        }
    }
    Ok(missing)
}

/// Returns the admission with these semaphores as they are now.
pub fn admission<'r, 'n>(
    db: &Connection,
    names: impl Iterator<Item = &'n SemaphoreName>,
    rules: &'r Rules,
    now: Timestamp,
) -> Result<Admission<'r>, Fault> {
    let mut gauges = HashMap::new();
    for name in names {
        if !gauges.contains_key(name) {
            gauges.insert(name.clone(), needs::gauge(db, name)?);
        }
    }
    let missing = missing(db, others(&gauges).into_iter())?;
    Ok(Admission::new(gauges, missing, now, rules))
}

fn capacities(
    db: &Connection,
    after: Option<&SemaphoreName>,
    limit: usize,
) -> Result<Vec<(SemaphoreName, u64)>, Fault> {
    let mut all = db.prepare_cached("SELECT name, capacity FROM semaphores WHERE name > ?1 ORDER BY name")?;
    let mut rows = all.query([after.map_or("", SemaphoreName::as_str)])?;
    let mut semaphores = Vec::new();
    while semaphores.len() < limit
        && let Some(found) = rows.next()?
    {
        let capacity = found.get::<_, i64>(1)?.unsigned_abs();
        let name = readable(row::parsed(found, 0, "name of a semaphore"))?;
        semaphores.extend(name.map(|name| (name, capacity)));
    }
    Ok(semaphores)
}

fn uses(db: &Connection, names: &[SemaphoreName]) -> Result<Vec<SemaphoreUse>, Fault> {
    let mut uses = Vec::new();
    for name in names {
        let Some(capacity) = capacity(db, name)? else { continue };
        let held = needs::count(db, name, State::Reserved, None)?;
        uses.push(SemaphoreUse { name: name.clone(), capacity, held });
    }
    Ok(uses)
}

fn views(db: &Connection, names: &[SemaphoreName], now: Timestamp) -> Result<Vec<SemaphoreView>, Fault> {
    let mut views = Vec::new();
    for SemaphoreUse { name, capacity, held } in uses(db, names)? {
        let mut waiting = 0;
        for (state, due_by) in waiting_states(capacity, held, now) {
            waiting += needs::count(db, &name, state, due_by)?;
        }
        views.push(SemaphoreView { name, capacity, held, waiting });
    }
    Ok(views)
}

fn holders(db: &Connection, name: &SemaphoreName, limit: usize) -> Result<Vec<Holder>, Fault> {
    let mut holders = db.prepare_cached(
        "SELECT j.id, j.queue, j.worker, j.reserved_until, j.started_at FROM needs n INDEXED BY needs_state \
         CROSS JOIN jobs j ON j.id = n.job WHERE n.semaphore = ?1 AND n.state = 'reserved' \
         ORDER BY j.reserved_until, j.id LIMIT ?2",
    )?;
    let mut rows = holders.query(params![name.as_str(), row::signed(limit)])?;
    let mut holders = Vec::new();
    while let Some(found) = rows.next()? {
        holders.extend(readable(holder(found))?);
    }
    Ok(holders)
}

fn holder(found: &Row<'_>) -> Result<Holder, Fault> {
    Ok(Holder {
        id: row::parsed(found, 0, "id")?,
        queue: row::parsed(found, 1, "queue")?,
        worker: row::parsed_if_any(found, 2, "worker")?,
        started_at: row::time(found, 4)?,
        reserved_until: row::time(found, 3)?.unwrap_or_default(),
    })
}

fn save(tx: &Tx<'_>, name: &SemaphoreName, to: u64) -> Result<(), Fault> {
    tx.sees(Seen::of_semaphore(capacity(tx, name)?, Some(to)));
    tx.prepare_cached("INSERT OR REPLACE INTO semaphores (name, capacity) VALUES (?1, ?2)")?
        .execute(params![name.as_str(), row::signed(to)])?;
    Ok(())
}

pub const WAITED_FOR: &str = "SELECT min(semaphore) FROM needs INDEXED BY needs_waits \
     WHERE waits = 1 AND semaphore > CAST(?1 AS TEXT)";

/// Returns semaphores by which jobs are blocked: one seek in the index for each.
fn waited_for(
    db: &Connection,
    after: Option<&SemaphoreName>,
    limit: usize,
) -> Result<Vec<SemaphoreName>, Fault> {
    let mut next = db.prepare_cached(WAITED_FOR)?;
    let mut names: Vec<SemaphoreName> = Vec::new();
    let mut last: Vec<u8> = after.map_or(Vec::new(), |name| name.as_str().into());
    while names.len() < limit
        && let Some(name) = found_text(&mut next, [&last])?
    {
        names.extend(readable(parsed(&name, "semaphore"))?);
        last = name;
    }
    Ok(names)
}

/// Returns the bytes of what a query has found, if it has: another program may have written what is no text.
pub fn found_text(query: &mut Statement<'_>, params: impl Params) -> Result<Option<Vec<u8>>, Fault> {
    let mut rows = query.query(params)?;
    let Some(found) = rows.next()? else { return Ok(None) };
    let text = found.get_ref(0)?.as_bytes_or_null().map_err(|error| Fault::stored("text", error))?;
    Ok(text.map(<[u8]>::to_vec))
}

fn parsed<T: FromStr>(bytes: &[u8], what: &'static str) -> Result<T, Fault>
where
    T::Err: Display,
{
    let text = std::str::from_utf8(bytes).map_err(|error| Fault::stored(what, error))?;
    text.parse().map_err(|error| Fault::stored(what, error))
}

/// Unblocks jobs that wait for these semaphores, where there is room for them, and returns them.
fn unblock_waiters(
    tx: &Tx<'_>,
    names: &[SemaphoreName],
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<Unblocked>, Fault> {
    let (mut unblocked, mut done) = (Vec::new(), HashSet::new());
    for name in names {
        let by_name = queues(tx, name)?;
        if by_name.is_empty() || !done.insert(name) {
            continue;
        }
        let admission = admission(tx, [name].into_iter(), rules, now)?;
        for (queue, calls) in admission.turns(name, &by_name) {
            for (before, id) in needs::waiting(tx, name, queue.as_str(), calls)?.iter().enumerate() {
                unblocked.extend(unblock(tx, (id, before), name, &admission, (rules, now))?);
            }
        }
    }
    Unblocked::sort(&mut unblocked);
    Ok(unblocked)
}

/// Returns the first queues, by name, in which jobs are blocked by the semaphore.
fn queues(db: &Connection, name: &SemaphoreName) -> Result<Vec<QueueName>, Fault> {
    let mut next = db.prepare_cached(needs::QUEUES)?;
    let (mut queues, mut last): (Vec<QueueName>, Vec<u8>) = (Vec::new(), Vec::new());
    while queues.len() < UNBLOCKED_QUEUES_MAX
        && let Some(queue) = found_text(&mut next, (name.as_str(), &last))?
    {
        queues.extend(readable(parsed(&queue, "queue"))?);
        last = queue;
    }
    Ok(queues)
}

/// Unblocks a job, if the semaphore has room for it.
fn unblock(
    tx: &Tx<'_>,
    (id, before): (&JobId, usize),
    name: &SemaphoreName,
    admission: &Admission<'_>,
    (rules, now): (&Rules, Timestamp),
) -> Result<Option<Unblocked>, Fault> {
    let Some(found) = readable(row::meta_of(tx, id))? else {
        // It would be the first in its queue for ever, also where its row no longer names the semaphore.
        unreadable::bury_by_id(tx, id, false, rules, now)?;
        needs::forget_one(tx, name, id)?;
        return Ok(None);
    };
    let Some(found) = found else {
        needs::forget_one(tx, name, id)?; // another program has removed or renamed the job
        return Ok(None);
    };
    if found.job.state != UNBLOCK.from || found.job.waits_for.as_ref() != Some(name) {
        needs::forget_one(tx, name, id)?; // another program has changed it
        needs::write(tx, &found.job)?;
        return Ok(None);
    }
    let Some(ready) = admission.called(name, &found.job, before) else { return Ok(None) };
    row::update(tx, &found, &ready, row::Contents::default(), now)?;
    needs::note_unblocked(tx, &ready, now)?;
    Ok(Some(Unblocked { queue: ready.queue, priority: ready.priority, run_at: ready.run_at }))
}
