//! What operators did.

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use crate::job::{JobId, Timestamp};
use crate::store::audit::{KEPT_MS, ROWS_MAX, counted};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::{Fault, readable};
use crate::store::sqlite::jobs::row;
use crate::store::{Audit, AuditFilter, AuditRow, Result};

#[async_trait]
impl Audit for SqliteStore {
    async fn audit(
        &self,
        filter: &AuditFilter,
        before: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<AuditRow>> {
        let (filter, before) = (filter.clone(), before.cloned());
        self.read(move |db, _| find(db, &filter, before.as_ref(), limit)).await
    }
}

/// Writes a row, in the transaction of its act.
pub fn write(db: &Connection, row: &AuditRow) -> Result<(), Fault> {
    db.prepare_cached(
        // One that is written anew keeps its number, by which rows are counted.
        "INSERT INTO audit (id, by_key, what, queue, body) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT (id) DO UPDATE SET body = excluded.body",
    )?
    .execute(params![
        row.id.as_str(),
        row.by,
        row.what,
        row.queue.as_ref().map(|queue| queue.as_str()),
        row::to_json(Some(row))?,
    ])?;
    Ok(())
}

/// Writes the row of an act that affects so many more jobs, and returns it.
pub fn count(db: &Connection, row: &AuditRow, more: u64) -> Result<AuditRow, Fault> {
    let row = counted(row, readable(there(db, &row.id))?.flatten(), more);
    write(db, &row)?;
    Ok(row)
}

/// Returns a row.
pub fn there(db: &Connection, id: &JobId) -> Result<Option<AuditRow>, Fault> {
    let mut by_id = db.prepare_cached("SELECT body FROM audit WHERE id = ?1")?;
    let mut rows = by_id.query([id.as_str()])?;
    rows.next()?.map_or(Ok(None), |found| row::json(found, 0, "row of the audit"))
}

fn find(
    db: &Connection,
    filter: &AuditFilter,
    before: Option<&JobId>,
    limit: usize,
) -> Result<Vec<AuditRow>, Fault> {
    let (first, end) = filter.ids(before);
    let conditions = [
        (" AND id >= ?", first.map(|id| id.as_str().to_owned())),
        (" AND id < ?", end.map(|id| id.as_str().to_owned())),
        (" AND by_key = ?", filter.by.clone()),
        (" AND what = ?", filter.what.clone()),
        (" AND queue = ?", filter.queue.as_ref().map(|queue| queue.as_str().to_owned())),
    ];
    let (mut sql, mut values) = ("SELECT body FROM audit WHERE TRUE".to_owned(), Vec::<Value>::new());
    for (condition, value) in conditions {
        if let Some(value) = value {
            sql.push_str(condition);
            values.push(value.into());
        }
    }
    sql.push_str(" ORDER BY id DESC LIMIT ?");
    values.push(row::signed(limit).into());
    let mut matching = db.prepare_cached(&sql)?;
    let mut rows = matching.query(params_from_iter(values))?;
    let mut found = Vec::new();
    while let Some(each) = rows.next()? {
        found.extend(readable(row::json(each, 0, "row of the audit"))?.flatten());
    }
    Ok(found)
}

/// Deletes rows past their time, and the oldest of those that are too many.
pub fn forget(db: &Connection, limit: usize, now: Timestamp) -> Result<usize, Fault> {
    let first_kept = JobId::first_of(Timestamp::from_millis(now.millis().saturating_sub_unsigned(KEPT_MS)));
    let old = db
        .prepare_cached(
            "DELETE FROM audit WHERE n IN (SELECT n FROM audit WHERE id < ?1 ORDER BY id LIMIT ?2)",
        )?
        .execute(params![first_kept.as_str(), row::signed(limit)])?;
    let surplus = db
        .prepare_cached(
            "DELETE FROM audit WHERE n IN (SELECT n FROM audit WHERE n <= (SELECT max(n) FROM audit) - ?1 \
             ORDER BY n LIMIT ?2)",
        )?
        .execute(params![row::signed(ROWS_MAX), row::signed(limit - old)])?;
    Ok(old + surplus)
}
