//! Removing a semaphore, and what keeps it there: the jobs and the callbacks that need it.
//!
//! The table `needs` leads to the unfinished jobs. No index leads to the dead, nor to the callbacks of batches, and there may be millions of
//! those: to scan them would keep the one thread that writes busy for seconds, while all other calls wait. So readers read `needs`
//! first, and then scan the others in steps. The thread that writes reads `needs` alone once more, and removes the semaphore. What
//! is missed between the two: a job that was pushed or redriven and is dead by then, and a batch that was made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Row, params};

use crate::job::{BatchId, JobId, QueueName, SemaphoreName, State};
use crate::store::audit::Seen;
use crate::store::semaphores::needed_for_callback;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::jobs::unreadable;
use crate::store::sqlite::semaphores::capacity;
use crate::store::sqlite::tx::Tx;
use crate::store::{NEEDED_MAX, NEEDED_NAMED, Needed, Removal, Result};

#[cfg(test)]
mod tests;

/// How many rows one step scans, and how long it takes, in about.
const STEP_ROWS: usize = 5000;
const STEP_TIME: Duration = Duration::from_millis(100);

const UNFINISHED: &str = "SELECT job, queue, state FROM needs WHERE semaphore = ?1 LIMIT ?2";

const QUEUES_WITH_DEAD: &str = "SELECT queue FROM counters WHERE dead > 0";

/// The dead jobs of a queue behind one of them, and whether each needs the semaphore. Names need no escapes in JSON.
const DEAD: &str = "SELECT id, queue, state, coalesce(instr(semaphores, ?3) > 0, 0) FROM jobs INDEXED BY jobs_browse \
     WHERE queue = CAST(?1 AS TEXT) AND state = 'dead' AND id > CAST(?2 AS TEXT) ORDER BY id";

/// The batches behind one of them, each with its callback if it is not over and that needs the semaphore. Names need no escapes in JSON.
const CALLBACKS: &str = "SELECT id, CASE WHEN finished_at IS NULL AND instr(on_finished, ?2) > 0 THEN on_finished END \
     FROM batches WHERE id > CAST(?1 AS TEXT) ORDER BY id";

/// A job that needs a semaphore.
struct Needing {
    /// The bytes of its id, which may be none.
    id: Vec<u8>,
    /// Nothing where that cannot be read.
    who: Option<(JobId, QueueName, State)>,
}

impl Needing {
    /// Reads one from a row of its id, its queue and its state.
    fn read(found: &Row<'_>) -> Result<Self, Fault> {
        let id = unreadable::bytes(found, 0, "id")?;
        let who = || -> Result<(JobId, QueueName, State), Fault> {
            Ok((row::parsed(found, 0, "id")?, row::parsed(found, 1, "queue")?, row::state(found, 2)?))
        };
        Ok(Self { id, who: readable(who())? })
    }
}

/// Those that were found so far.
#[derive(Default)]
struct Jobs {
    /// One that dies meanwhile is found twice.
    ids: HashSet<Vec<u8>>,
    some: Vec<(JobId, QueueName, State)>,
}

impl Jobs {
    fn add(&mut self, found: Vec<Needing>) {
        for Needing { id, who } in found {
            if !self.are_enough() && self.ids.insert(id) && self.some.len() < NEEDED_NAMED {
                self.some.extend(who);
            }
        }
    }

    fn are_enough(&self) -> bool {
        self.ids.len() >= NEEDED_MAX
    }
}

impl From<Jobs> for Needed {
    fn from(Jobs { ids, some }: Jobs) -> Self {
        Self { jobs: ids.len() as u64, some, ..Self::default() }
    }
}

/// Where a walk over the dead jobs goes on.
#[derive(Default)]
struct Cursor {
    /// In this queue of the list.
    queue: usize,
    /// Behind this job. Another program may have written an id that is no text.
    id: Vec<u8>,
}

/// What a step has found, and where the next one goes on, if there may be more.
struct Step<T, P> {
    found: Vec<T>,
    behind: Option<P>,
}

/// What a step may still cost.
struct Budget {
    rows: usize,
    end: Instant,
}

impl Budget {
    fn begin() -> Self {
        Self { rows: STEP_ROWS, end: Instant::now() + STEP_TIME }
    }

    /// Counts a row that was scanned. Returns whether the step is over.
    fn is_spent_by_row(&mut self) -> bool {
        self.rows = self.rows.saturating_sub(1);
        self.rows == 0 || Instant::now() >= self.end
    }
}

/// Removes the semaphore, unless something needs it.
pub async fn remove(store: &SqliteStore, name: &SemaphoreName) -> Result<Removal> {
    let own = name.clone();
    let begin = move |db: &Connection, _| match capacity(db, &own)? {
        Some(_) => unfinished(db, &own).map(Some),
        None => Ok(None),
    };
    let Some(unfinished) = store.read(begin).await? else { return Ok(Removal::Unknown) };
    let mut needed = needed_by_jobs(store, name, unfinished).await?;
    if needed.jobs == 0 {
        needed.callbacks = callbacks(store, name).await?;
    }
    if needed != Needed::default() {
        return Ok(Removal::InUse(needed));
    }
    let name = name.clone();
    store.writer.run(move |tx, _| remove_unneeded(tx, &name)).await
}

/// Removes the semaphore, unless an unfinished job needs it by now. It reads no other table: others wait for this.
fn remove_unneeded(tx: &Tx<'_>, name: &SemaphoreName) -> Result<Removal, Fault> {
    let Some(before) = capacity(tx, name)? else { return Ok(Removal::Unknown) };
    let mut jobs = Jobs::default();
    jobs.add(unfinished(tx, name)?);
    if !jobs.ids.is_empty() {
        return Ok(Removal::InUse(jobs.into()));
    }
    tx.prepare_cached("DELETE FROM semaphores WHERE name = ?1")?.execute([name.as_str()])?;
    tx.sees(Seen::of_semaphore(Some(before), None));
    Ok(Removal::Done)
}

fn unfinished(db: &Connection, name: &SemaphoreName) -> Result<Vec<Needing>, Fault> {
    let mut of_semaphore = db.prepare_cached(UNFINISHED)?;
    let mut rows = of_semaphore.query(params![name.as_str(), row::signed(NEEDED_MAX)])?;
    let mut all = Vec::new();
    while let Some(found) = rows.next()? {
        all.push(Needing::read(found)?);
    }
    Ok(all)
}

/// Adds the dead to these jobs, which were found before them.
async fn needed_by_jobs(
    store: &SqliteStore,
    name: &SemaphoreName,
    unfinished: Vec<Needing>,
) -> Result<Needed> {
    let mut jobs = Jobs::default();
    jobs.add(unfinished);
    let queues: Arc<[Vec<u8>]> = store.read(|db, _| queues_with_dead(db)).await?.into();
    let mut behind = Some(Cursor::default());
    while !jobs.are_enough()
        && let Some(from) = behind
    {
        let (queues, name) = (Arc::clone(&queues), name.clone());
        let step = store.read(move |db, _| dead(db, &name, &queues, &from)).await?;
        jobs.add(step.found);
        behind = step.behind;
    }
    Ok(jobs.into())
}

fn queues_with_dead(db: &Connection) -> Result<Vec<Vec<u8>>, Fault> {
    let mut all = db.prepare_cached(QUEUES_WITH_DEAD)?;
    let mut rows = all.query([])?;
    let mut queues = Vec::new();
    while let Some(found) = rows.next()? {
        queues.push(unreadable::bytes(found, 0, "queue")?);
    }
    Ok(queues)
}

/// Scans some dead jobs of these queues.
fn dead(
    db: &Connection,
    name: &SemaphoreName,
    queues: &[Vec<u8>],
    from: &Cursor,
) -> Result<Step<Needing, Cursor>, Fault> {
    let (mut budget, mut found, text) = (Budget::begin(), Vec::new(), in_json(name));
    let mut of_queue = db.prepare_cached(DEAD)?;
    for (n, queue) in queues.iter().enumerate().skip(from.queue) {
        let after: &[u8] = if n == from.queue { &from.id } else { &[] };
        let mut rows = of_queue.query(params![queue, after, text])?;
        while let Some(job) = rows.next()? {
            if job.get::<_, bool>(3)? {
                found.push(Needing::read(job)?);
            }
            if budget.is_spent_by_row() {
                let behind = Cursor { queue: n, id: unreadable::bytes(job, 0, "id")? };
                return Ok(Step { found, behind: Some(behind) });
            }
        }
    }
    Ok(Step { found, behind: None })
}

/// Returns batches that are not over, and whose callbacks need the semaphore.
async fn callbacks(store: &SqliteStore, name: &SemaphoreName) -> Result<Vec<(BatchId, QueueName)>> {
    let (mut callbacks, mut behind) = (Vec::new(), Some(Vec::<u8>::new()));
    while callbacks.len() < NEEDED_NAMED
        && let Some(from) = behind
    {
        let name = name.clone();
        let step = store.read(move |db, _| some_callbacks(db, &name, &from)).await?;
        callbacks.extend(step.found);
        behind = step.behind;
    }
    callbacks.truncate(NEEDED_NAMED);
    Ok(callbacks)
}

/// Scans some batches behind this one.
fn some_callbacks(
    db: &Connection,
    name: &SemaphoreName,
    from: &[u8],
) -> Result<Step<(BatchId, QueueName), Vec<u8>>, Fault> {
    let (mut budget, mut found) = (Budget::begin(), Vec::new());
    let mut all = db.prepare_cached(CALLBACKS)?;
    let mut rows = all.query(params![from, in_json(name)])?;
    while let Some(batch) = rows.next()? {
        let callback = readable(row::text(batch, 1))?.flatten();
        if let Some(queue) = callback.and_then(|text| needed_for_callback(text, name)) {
            let id: Option<BatchId> = readable(row::parsed(batch, 0, "id of a batch"))?;
            found.extend(id.map(|id| (id, queue)));
        }
        if budget.is_spent_by_row() {
            return Ok(Step { found, behind: Some(unreadable::bytes(batch, 0, "id of a batch")?) });
        }
    }
    Ok(Step { found, behind: None })
}

/// Returns what the semaphore is in the JSON of those that need it.
fn in_json(name: &SemaphoreName) -> String {
    format!("\"{name}\"")
}
