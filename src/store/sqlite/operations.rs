//! Operations over many jobs.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use crate::job::{Bulk, BulkId, NewJob, Rules, Timestamp};
use crate::store::operations::{KEPT_MAX, KEPT_MS};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::answers;
use crate::store::sqlite::audit;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::apply;
use crate::store::sqlite::jobs::push::{self, New};
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::{
    AuditRow, BegunBy, BulkDone, BulkEffect, BulkStep, Operations, Pushed, Result, StoreError,
};

#[async_trait]
impl Operations for SqliteStore {
    async fn add_operation(
        &self,
        operation: &Bulk,
        row: Option<&AuditRow>,
        by: Option<&BegunBy>,
    ) -> Result<bool> {
        let (operation, row, by) = (operation.clone(), row.cloned(), by.cloned());
        let add = move |db: &Tx<'_>, now| {
            if let Some(by) = &by {
                if by.was_there(answers::find(db, &by.call, now)?.as_ref()) {
                    return Ok(false);
                }
                answers::keep(db, &by.call, &by.answer)?;
            }
            if rev(db, &operation.id)?.is_some() {
                return Ok(false);
            }
            put(db, &operation)?;
            row.iter().try_for_each(|row| audit::write(db, row))?;
            Ok(true)
        };
        self.writer.run(add).await
    }

    async fn operation(&self, id: &BulkId) -> Result<Option<Bulk>> {
        let id = id.clone();
        let read = move |db: &Connection, _| {
            let mut by_id = db.prepare_cached("SELECT body FROM operations WHERE id = ?1")?;
            let mut rows = by_id.query([id.as_str()])?;
            rows.next()?.map(operation).transpose()
        };
        self.read(read).await.map_err(StoreError::unreadable)
    }

    async fn operations(&self, before: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>> {
        let before = before.map_or("\u{7f}", BulkId::as_str).to_owned(); // behind all ids
        let sql = "SELECT body FROM operations WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
        self.read(move |db, _| list(db, sql, params![before, row::signed(limit)])).await
    }

    async fn open_operations(&self, after: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>> {
        let after = after.map_or("", BulkId::as_str).to_owned();
        let sql = "SELECT body FROM operations INDEXED BY operations_open WHERE finished_at IS NULL AND id > ?1 \
             ORDER BY id LIMIT ?2";
        self.read(move |db, _| list(db, sql, params![after, row::signed(limit)])).await
    }

    async fn save_operation(&self, to: &Bulk, seen: i64, row: Option<&AuditRow>) -> Result<bool> {
        let (to, row) = (to.clone(), row.cloned());
        let save = move |db: &Tx<'_>, _| {
            if rev(db, &to.id)? != Some(seen) {
                return Ok(false);
            }
            put(db, &to)?;
            row.iter().try_for_each(|row| audit::write(db, row))?;
            Ok(true)
        };
        self.writer.run(save).await
    }

    async fn step_operation(&self, step: BulkStep, rules: &Rules) -> Result<Option<BulkDone>> {
        let BulkStep { effect, id, seen, next, row } = step;
        let rules = rules.clone();
        let work = move |tx: &Tx<'_>, now| {
            if rev(tx, &id)? != Some(seen) {
                return Ok(None);
            }
            let done = match &effect {
                BulkEffect::Change(changes) => BulkDone::Changed(apply::apply(tx, changes, &rules, now)?),
                BulkEffect::Push(jobs) => BulkDone::Pushed(store(tx, jobs, &rules, now)?),
            };
            let next = next(&done);
            put(tx, &next)?;
            row(&next).iter().try_for_each(|row| audit::write(tx, row))?;
            Ok(Some(done))
        };
        self.writer.run(work).await
    }
}

fn store(tx: &Tx<'_>, jobs: &[NewJob], rules: &Rules, now: Timestamp) -> Result<Vec<Pushed>, Fault> {
    let new: Vec<New> = jobs.iter().cloned().map(New::from).collect();
    let pushed: Result<Vec<Pushed>> = push::push(tx, &new, rules, now)?.into_iter().collect();
    pushed.map_err(|error| Fault::stored("job that was pushed", error))
}

fn operation(found: &Row<'_>) -> Result<Bulk, Fault> {
    row::json(found, 0, "operation")?.ok_or_else(|| Fault::stored("operation", "it is missing"))
}

fn list(db: &Connection, sql: &str, values: impl rusqlite::Params) -> Result<Vec<Bulk>, Fault> {
    let mut all = db.prepare_cached(sql)?;
    let mut rows = all.query(values)?;
    let mut operations = Vec::new();
    while let Some(found) = rows.next()? {
        operations.extend(readable(operation(found))?);
    }
    Ok(operations)
}

fn rev(db: &Connection, id: &BulkId) -> Result<Option<i64>, Fault> {
    let mut by_id = db.prepare_cached("SELECT rev FROM operations WHERE id = ?1")?;
    Ok(by_id.query_row([id.as_str()], |row| row.get(0)).optional()?)
}

fn put(db: &Connection, operation: &Bulk) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO operations (id, rev, finished_at, body) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![
        operation.id.as_str(),
        operation.rev,
        operation.finished_at.map(Timestamp::millis),
        row::to_json(Some(operation))?,
    ])?;
    Ok(())
}

/// Deletes operations that are over and past their time, and the oldest of those that are too many.
pub fn forget(db: &Connection, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let past = now.millis().saturating_sub_unsigned(KEPT_MS);
    let old = db
        .prepare_cached(
            "DELETE FROM operations WHERE id IN (SELECT id FROM operations INDEXED BY operations_finished \
             WHERE finished_at <= ?1 ORDER BY finished_at LIMIT ?2)",
        )?
        .execute(params![past, row::signed(limit)])?;
    let surplus = db
        .prepare_cached(
            "DELETE FROM operations WHERE id IN (SELECT id FROM operations INDEXED BY operations_finished \
             WHERE finished_at IS NOT NULL ORDER BY finished_at DESC LIMIT ?1 OFFSET ?2)",
        )?
        .execute(params![row::signed(limit - old), row::signed(KEPT_MAX)])?;
    Ok(old + surplus)
}
