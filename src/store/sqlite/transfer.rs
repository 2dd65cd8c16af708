//! Everything that is stored, for another store and from another store.

use async_trait::async_trait;
use rusqlite::{Connection, params};

use crate::job::{Job, JobId, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row::{self, job_columns};
use crate::store::sqlite::tx::Tx;
use crate::store::transfer::same;
use crate::store::{HeldKey, Imported, PageBuilder, Result, Transfer};

#[async_trait]
impl Transfer for SqliteStore {
    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        let after = after.cloned();
        self.read(move |db, _| export(db, after.as_ref(), limit)).await
    }

    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>> {
        let count = jobs.len();
        let imported = self.writer.run(move |tx, now| import(tx, &jobs, now)).await;
        match imported {
            Ok(imported) => imported.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
        let after = after.cloned();
        self.read(move |db, _| export_keys(db, after.as_ref(), limit)).await
    }

    async fn keys_like(&self, keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>> {
        let keys = keys.to_vec();
        self.read(move |db, _| keys_like(db, &keys)).await
    }

    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>> {
        let count = keys.len();
        match self.writer.run(move |db, _| import_keys(db, &keys)).await {
            Ok(imported) => imported.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }
}

/// Returns jobs of every queue, by id. A page ends early where the jobs are long.
pub fn export(db: &Connection, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>, Fault> {
    let mut all = db.prepare_cached(concat!(
        "SELECT ",
        job_columns!(),
        " FROM jobs WHERE id > ?1 ORDER BY id LIMIT ?2"
    ))?;
    let mut rows = all.query(params![after.map_or("", JobId::as_str), row::signed(limit)])?;
    let mut page = PageBuilder::new(limit);
    while !page.is_full()
        && let Some(found) = rows.next()?
    {
        page.push(row::job(found)?);
    }
    Ok(page.into_items())
}

/// Stores the jobs as they are, unless their ids are there.
pub fn import(tx: &Tx<'_>, jobs: &[Job], now: Timestamp) -> Result<Vec<Imported>, Fault> {
    let mut imported = Vec::with_capacity(jobs.len());
    for job in jobs {
        imported.push(match row::job_of(tx, &job.meta.id)? {
            Some(there) if same(&there, job) => Imported::Same,
            Some(_) => Imported::Different,
            None => {
                // The first statement writes what never changes, the second one the rest: so there is one
                // list of what a push writes, and one of what a change does.
                row::insert(tx, job, now)?;
                if let Some(found) = row::meta_of(tx, &job.meta.id)? {
                    row::update(tx, &found, &job.meta, None, job.result.as_ref(), now)?;
                }
                Imported::New
            }
        });
    }
    Ok(imported)
}

/// Returns the keys that are remembered, by queue and key.
pub fn export_keys(db: &Connection, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>, Fault> {
    let (queue, key) = after.map_or(("", ""), |after| (after.queue.as_str(), after.key.as_str()));
    let mut all = db.prepare_cached(
        "SELECT queue, key, job, digest, until, run_at FROM keys WHERE (queue, key) > (?1, ?2) \
         ORDER BY queue, key LIMIT ?3",
    )?;
    let mut rows = all.query(params![queue, key, row::signed(limit)])?;
    let mut keys = Vec::new();
    while let Some(found) = rows.next()? {
        keys.push(held(found)?);
    }
    Ok(keys)
}

fn held(found: &rusqlite::Row<'_>) -> Result<HeldKey, Fault> {
    Ok(HeldKey {
        queue: row::parsed(found, 0, "queue of a key")?,
        key: row::parsed(found, 1, "key")?,
        job: row::parsed(found, 2, "job of a key")?,
        digest: found.get(3)?,
        until: Timestamp::from_millis(found.get(4)?),
        run_at: Timestamp::from_millis(found.get(5)?),
    })
}

/// Returns what is remembered of the keys of these queues and names.
pub fn keys_like(db: &Connection, keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>, Fault> {
    let mut by_key = db.prepare_cached(
        "SELECT queue, key, job, digest, until, run_at FROM keys WHERE queue = ?1 AND key = ?2",
    )?;
    let mut there = Vec::with_capacity(keys.len());
    for key in keys {
        let mut rows = by_key.query([key.queue.as_str(), key.key.as_str()])?;
        there.push(rows.next()?.map(held).transpose()?);
    }
    Ok(there)
}

/// Remembers the keys, unless they are there.
pub fn import_keys(db: &Connection, keys: &[HeldKey]) -> Result<Vec<Imported>, Fault> {
    let mut insert = db.prepare_cached(
        "INSERT INTO keys (queue, key, job, digest, until, run_at, look_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5)",
    )?;
    let mut imported = Vec::with_capacity(keys.len());
    for (key, there) in keys.iter().zip(keys_like(db, keys)?) {
        imported.push(match there {
            Some(there) if there == *key => Imported::Same,
            Some(_) => Imported::Different,
            None => {
                insert.execute(params![
                    key.queue.as_str(),
                    key.key.as_str(),
                    key.job.as_str(),
                    key.digest,
                    key.until.millis(),
                    key.run_at.millis(),
                ])?;
                Imported::New
            }
        });
    }
    Ok(imported)
}
