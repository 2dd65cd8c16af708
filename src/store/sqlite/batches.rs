//! Batches: rows that count their jobs, in the transactions that change these.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use crate::job::batch::{Endings, Finish, counted, is_over};
use crate::job::{
    ApiKeyId, Batch, BatchId, BatchResult, Child, Ending, JobId, NewJob, Payload, Rules, Timestamp,
};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::children::{self, ChildDecision};
use crate::store::sqlite::jobs::push::{self, New};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    BatchChange, BatchChanged, BatchDenied, Batches, CalledBack, PageBuilder, Result, StoreError,
};

#[async_trait]
impl Batches for SqliteStore {
    async fn create_batch(
        &self,
        batch: Batch,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied> {
        let (rules, create) = (rules.clone(), BatchChange::Create(Box::new(batch)));
        self.writer.run(move |tx, now| change_by(tx, &create, &jobs, &rules, now)).await?
    }

    async fn add_to_batch(
        &self,
        id: &BatchId,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied> {
        let (rules, add) = (rules.clone(), BatchChange::Add(id.clone()));
        self.writer.run(move |tx, now| change_by(tx, &add, &jobs, &rules, now)).await?
    }

    async fn seal_batch(&self, id: &BatchId, rules: &Rules) -> Result<BatchChanged, BatchDenied> {
        let (rules, seal) = (rules.clone(), BatchChange::Seal(id.clone()));
        self.writer.run(move |tx, now| change_by(tx, &seal, &[], &rules, now)).await?
    }

    async fn count_lost(&self, id: &BatchId, lost: u64, rules: &Rules) -> Result<BatchChanged, BatchDenied> {
        let (rules, lose) = (rules.clone(), BatchChange::Lose(id.clone(), lost));
        self.writer.run(move |tx, now| change_by(tx, &lose, &[], &rules, now)).await?
    }

    async fn batch(&self, id: &BatchId) -> Result<Option<Batch>> {
        let id = id.clone();
        self.read(move |db, _| get(db, &id)).await.map_err(StoreError::unreadable)
    }

    async fn batch_results(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<BatchResult>> {
        let (id, after) = (id.clone(), after.cloned());
        self.read(move |db, _| results(db, &id, after.as_ref(), limit)).await
    }

    async fn unfinished_in_batch(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>> {
        let (id, after) = (id.clone(), after.cloned());
        self.read(move |db, _| unfinished(db, &id, after.as_ref(), limit)).await
    }

    async fn batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>> {
        let after = after.cloned();
        self.read(move |db, _| list(db, after.as_ref(), limit)).await
    }

    async fn export_batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>> {
        let after = after.cloned();
        self.read(move |db, _| export(db, after.as_ref(), limit)).await
    }

    async fn import_batch(&self, batch: Batch, results: Vec<BatchResult>) -> Result<bool> {
        self.writer.run(move |tx, _| import(tx, &batch, &results)).await
    }
}

/// Counts a job of a batch that has ended. Returns the callback, if it was the last one.
pub fn count(
    tx: &Tx<'_>,
    finish: &Finish,
    rules: &Rules,
    now: Timestamp,
) -> Result<Option<CalledBack>, Fault> {
    let mut ended = Endings::default();
    ended.add(finish.result.state);
    let is_over = {
        let mut count = tx.prepare_cached(
            "UPDATE batches SET pending = max(pending - 1, 0), done = done + ?2, dead = dead + ?3, \
             cancelled = cancelled + ?4 WHERE id = ?1 RETURNING sealed, pending, finished_at",
        )?;
        let by = params![
            finish.batch.as_str(),
            row::signed(ended.done),
            row::signed(ended.dead),
            row::signed(ended.cancelled),
        ];
        let mut rows = count.query(by)?;
        let counted = |row: &Row<'_>| {
            let pending = row.get::<_, i64>(1)?.unsigned_abs();
            Ok::<_, Fault>(is_over(row.get(0)?, pending, row::time(row, 2)?))
        };
        let is_over = rows.next()?.map(counted).transpose()?;
        // The statement ends only when it has been read to its end.
        while rows.next()?.is_some() {}
        is_over
    };
    if is_over.is_some() {
        keep(tx, &finish.batch, &finish.result)?; // never without its batch: nothing would ever remove it
    }
    // One that cannot be read ends without its callback: the end of its jobs is more than that.
    let batch = if is_over == Some(true) { readable(get(tx, &finish.batch))?.flatten() } else { None };
    match batch {
        Some(mut batch) => {
            let callback = end_if_over(tx, &mut batch, rules, now)?;
            put(tx, &batch)?;
            Ok(callback)
        }
        None => Ok(None), // other jobs are pending, or another program named a batch that never was
    }
}

/// Creates a batch, adds to one or seals it, unless that or one of the jobs is refused.
pub fn change_by(
    tx: &Tx<'_>,
    by: &BatchChange,
    jobs: &[NewJob],
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<BatchChanged, BatchDenied>, Fault> {
    let found = match by {
        BatchChange::Create(_) => None,
        BatchChange::Add(id) | BatchChange::Seal(id) | BatchChange::Lose(id, _) => get(tx, id)?,
    };
    if let Some(denied) = by.denied(found.as_ref().map(|batch| batch.sealed)) {
        return Ok(Err(denied));
    }
    let mut batch = match (by, found) {
        (BatchChange::Create(batch), _) => (**batch).clone(),
        (BatchChange::Add(_), Some(batch)) => batch,
        (BatchChange::Seal(_), Some(batch)) => Batch { sealed: true, ..batch },
        (BatchChange::Lose(_, lost), Some(batch)) => batch.without(*lost),
        (_, None) => return Ok(Err(BatchDenied::Unknown)),
    };
    let decisions: Vec<ChildDecision> = match children::check(tx, jobs, None, rules, now)? {
        Ok(decisions) => decisions,
        Err(refused) => return Ok(Err(BatchDenied::PushRefused(refused))),
    };
    if let Some(denied) = BatchDenied::by_pushes(batch.counted(), &children::foreseen(jobs, &decisions)) {
        return Ok(Err(denied));
    }
    let pushed: Vec<Child> = children::store(tx, jobs, decisions, now)?;
    batch.pending += counted(&pushed);
    let callback = end_if_over(tx, &mut batch, rules, now)?;
    put(tx, &batch)?;
    Ok(Ok(BatchChanged { batch, pushed, callback }))
}

fn end_if_over(
    tx: &Tx<'_>,
    batch: &mut Batch,
    rules: &Rules,
    now: Timestamp,
) -> Result<Option<CalledBack>, Fault> {
    let Some(callback) = batch.end_if_over(now, rules).and_then(|end| end.callback) else { return Ok(None) };
    let called_back = CalledBack::from(&callback);
    push::store(tx, &New::from(callback), now)?;
    Ok(Some(called_back))
}

macro_rules! columns {
    () => {
        "id, sealed, pending, done, dead, cancelled, created_at, finished_at, purge_at, callback, on_finished, \
         owner"
    };
}

/// The statement that reads all batches.
pub const ALL: &str = concat!("SELECT ", columns!(), " FROM batches ORDER BY id");

/// The statement that reads all results, each with its batch in the last column.
pub const ALL_RESULTS: &str = "SELECT job, queue, state, finished_at, result, batch, EXISTS (SELECT 1 FROM batches WHERE id = batch) \
     FROM batch_results ORDER BY batch, job";

fn put(db: &Connection, batch: &Batch) -> Result<(), Fault> {
    let Endings { done, dead, cancelled } = batch.endings;
    db.prepare_cached(concat!(
        "INSERT OR REPLACE INTO batches (",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
    ))?
    .execute(params![
        batch.id.as_str(),
        batch.sealed,
        row::signed(batch.pending),
        row::signed(done),
        row::signed(dead),
        row::signed(cancelled),
        batch.created_at.millis(),
        batch.finished_at.map(Timestamp::millis),
        batch.purge_at.map(Timestamp::millis),
        batch.callback.as_str(),
        row::to_json(batch.on_finished.as_ref())?,
        batch.owner.as_ref().map(ApiKeyId::as_str),
    ])?;
    Ok(())
}

/// Reads a batch from its row.
pub fn read(found: &Row<'_>) -> Result<Batch, Fault> {
    let count = |at: usize| Ok::<u64, Fault>(u64::try_from(found.get::<_, i64>(at)?).unwrap_or(0));
    Ok(Batch {
        id: row::parsed(found, 0, "id of a batch")?,
        sealed: found.get(1)?,
        pending: count(2)?,
        endings: Endings { done: count(3)?, dead: count(4)?, cancelled: count(5)? },
        created_at: Timestamp::from_millis(found.get(6)?),
        finished_at: row::time(found, 7)?,
        purge_at: row::time(found, 8)?,
        callback: row::parsed(found, 9, "callback of a batch")?,
        on_finished: row::json(found, 10, "on_finished of a batch")?,
        owner: row::parsed_if_any(found, 11, "owner of a batch")?,
    })
}

fn get(db: &Connection, id: &BatchId) -> Result<Option<Batch>, Fault> {
    let mut by_id = db.prepare_cached(concat!("SELECT ", columns!(), " FROM batches WHERE id = ?1"))?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map(read).transpose()
}

fn list(db: &Connection, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>, Fault> {
    let mut all =
        db.prepare_cached(concat!("SELECT ", columns!(), " FROM batches WHERE id > ?1 ORDER BY id"))?;
    let mut rows = all.query([after.map_or("", BatchId::as_str)])?;
    let mut page = PageBuilder::new(limit);
    while !page.is_full()
        && let Some(found) = rows.next()?
    {
        readable(read(found))?.into_iter().for_each(|batch| page.push(batch));
    }
    Ok(page.into_items())
}

fn export(db: &Connection, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>, Fault> {
    let mut all = db.prepare_cached(concat!(
        "SELECT ",
        columns!(),
        " FROM batches WHERE id > ?1 ORDER BY id LIMIT ?2"
    ))?;
    let mut rows = all.query(params![after.map_or("", BatchId::as_str), row::signed(limit)])?;
    let mut page = PageBuilder::new(limit);
    while !page.is_full()
        && let Some(found) = rows.next()?
    {
        page.push(read(found)?);
    }
    Ok(page.into_items())
}

fn keep(db: &Connection, batch: &BatchId, result: &BatchResult) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR IGNORE INTO batch_results (batch, job, queue, state, finished_at, result) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        batch.as_str(),
        result.id.as_str(),
        result.queue.as_str(),
        result.state.as_str(),
        result.finished_at.millis(),
        result.result.as_ref().map(|result| result.as_str()),
    ])?;
    Ok(())
}

fn results(
    db: &Connection,
    batch: &BatchId,
    after: Option<&JobId>,
    limit: usize,
) -> Result<Vec<BatchResult>, Fault> {
    let mut of_batch = db.prepare_cached(
        "SELECT job, queue, state, finished_at, result FROM batch_results WHERE batch = ?1 AND job > ?2 \
         ORDER BY job",
    )?;
    let after = after.map_or("", JobId::as_str);
    let mut rows = of_batch.query([batch.as_str(), after])?;
    let mut results = PageBuilder::new(limit);
    while !results.is_full()
        && let Some(found) = rows.next()?
    {
        readable(result(found))?.into_iter().for_each(|result| results.push(result));
    }
    Ok(results.into_items())
}

/// Reads a result from its row.
pub fn result(found: &Row<'_>) -> Result<BatchResult, Fault> {
    let result = row::payload(found, 4, "result")?.map(Payload::canonical);
    Ok(BatchResult {
        id: row::parsed(found, 0, "job of a result")?,
        queue: row::parsed(found, 1, "queue of a result")?,
        state: row::parsed::<Ending>(found, 2, "state of a result")?,
        finished_at: Timestamp::from_millis(found.get(3)?),
        result: result.transpose().map_err(|error| Fault::stored("result", error))?,
    })
}

fn unfinished(
    db: &Connection,
    batch: &BatchId,
    after: Option<&JobId>,
    limit: usize,
) -> Result<Vec<JobId>, Fault> {
    let mut of_batch = db.prepare_cached(
        "SELECT id FROM jobs INDEXED BY jobs_batch WHERE batch = ?1 AND id > ?2 \
         AND state IN ('ready', 'blocked', 'reserved') ORDER BY id",
    )?;
    let after = after.map_or("", JobId::as_str);
    let mut rows = of_batch.query([batch.as_str(), after])?;
    let mut ids = Vec::new();
    while ids.len() < limit
        && let Some(found) = rows.next()?
    {
        ids.extend(readable(row::parsed(found, 0, "id"))?);
    }
    Ok(ids)
}

fn import(tx: &Tx<'_>, batch: &Batch, results: &[BatchResult]) -> Result<bool, Fault> {
    let there = get(tx, &batch.id)?;
    if there.as_ref().is_some_and(|there| there != batch) {
        return Ok(false);
    }
    let mut of_job = tx.prepare_cached(
        "SELECT job, queue, state, finished_at, result FROM batch_results WHERE batch = ?1 AND job = ?2",
    )?;
    for ours in results {
        let mut rows = of_job.query([batch.id.as_str(), ours.id.as_str()])?;
        if rows.next()?.map(result).transpose()?.is_some_and(|there| there != *ours) {
            return Ok(false);
        }
    }
    if there.is_none() {
        put(tx, batch)?;
    }
    for result in results {
        keep(tx, &batch.id, result)?;
    }
    Ok(true)
}
