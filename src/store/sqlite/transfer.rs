//! Everything that is stored, for another store and from another store.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::job::record::KeyUntil;
use crate::job::{Claim, Job, JobId, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::answers;
use crate::store::sqlite::audit;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::jobs::receipts;
use crate::store::sqlite::jobs::row::{self, job_columns};
use crate::store::sqlite::tx::Tx;
use crate::store::transfer::same;
use crate::store::{
    AuditRow, HeldKey, Imported, KeyedCall, Memo, MemoKind, PageBuilder, RestoreMark, Result, Transfer,
};

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

    async fn export_memos(&self, kind: MemoKind, after: Option<&Memo>, limit: usize) -> Result<Vec<Memo>> {
        let after = after.cloned();
        self.read(move |db, _| export_memos(db, kind, after.as_ref(), limit)).await
    }

    async fn import_memos(&self, memos: Vec<Memo>) -> Vec<Result<Imported>> {
        let count = memos.len();
        match self.writer.run(move |db, _| import_memos(db, &memos)).await {
            Ok(imported) => imported.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    async fn import_audit(&self, rows: Vec<AuditRow>) -> Vec<Result<Imported>> {
        let count = rows.len();
        match self.writer.run(move |db, _| import_audit(db, &rows)).await {
            Ok(imported) => imported.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    async fn restoring(&self) -> Result<Option<RestoreMark>> {
        self.read(|db, _| restoring(db)).await
    }

    async fn mark_restoring(&self, seen: Option<&RestoreMark>, to: Option<&RestoreMark>) -> Result<bool> {
        let (seen, to) = (seen.cloned(), to.cloned());
        let mark = move |db: &Tx<'_>, _| {
            let there = restoring(db)?;
            if there != seen {
                return Ok(there == to);
            }
            note_restoring(db, to.as_ref())?;
            Ok(true)
        };
        self.writer.run(mark).await
    }
}

fn import_audit(db: &Connection, rows: &[AuditRow]) -> Result<Vec<Imported>, Fault> {
    let mut imported = Vec::with_capacity(rows.len());
    for row in rows {
        imported.push(match audit::there(db, &row.id)? {
            Some(there) if there == *row => Imported::Same,
            Some(_) => Imported::Different,
            None => {
                audit::write(db, row)?;
                Imported::New
            }
        });
    }
    Ok(imported)
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
        page.push(row::canonical_job(found)?);
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
                row::insert_whole(tx, job, now)?;
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
        "SELECT queue, key, job, digest, until, run_at, lasts FROM keys WHERE (queue, key) > (?1, ?2) \
         ORDER BY queue, key LIMIT ?3",
    )?;
    let mut rows = all.query(params![queue, key, row::signed(limit)])?;
    let mut keys = Vec::new();
    while let Some(found) = rows.next()? {
        keys.push(held(found)?);
    }
    Ok(keys)
}

/// Reads a key from its row.
pub fn held(found: &rusqlite::Row<'_>) -> Result<HeldKey, Fault> {
    Ok(HeldKey {
        queue: row::parsed(found, 0, "queue of a key")?,
        key: row::parsed(found, 1, "key")?,
        job: row::parsed(found, 2, "job of a key")?,
        digest: found.get(3)?,
        until: Timestamp::from_millis(found.get(4)?),
        run_at: Timestamp::from_millis(found.get(5)?),
        lasts: KeyUntil::from_word(row::text(found, 6)?),
    })
}

/// Returns what is remembered of the keys of these queues and names.
pub fn keys_like(db: &Connection, keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>, Fault> {
    let mut by_key = db.prepare_cached(
        "SELECT queue, key, job, digest, until, run_at, lasts FROM keys WHERE queue = ?1 AND key = ?2",
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
        "INSERT INTO keys (queue, key, job, digest, until, run_at, look_at, lasts) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?5, ?7)",
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
                    push::lasts(key.lasts),
                ])?;
                Imported::New
            }
        });
    }
    Ok(imported)
}

/// Returns the columns of a kind of memos, those first that name one.
pub fn columns(kind: MemoKind) -> &'static str {
    match kind {
        MemoKind::Receipts => receipts::SELECT,
        MemoKind::Requests | MemoKind::Answers => "SELECT id, digest, claim, won, until FROM requests",
        MemoKind::Deliveries => "SELECT queue, recent FROM deliveries",
    }
}

/// Returns what is remembered, in the order of the primary keys.
fn export_memos(
    db: &Connection,
    kind: MemoKind,
    after: Option<&Memo>,
    limit: usize,
) -> Result<Vec<Memo>, Fault> {
    let (first, second) = match after {
        Some(Memo::Receipt { receipt, .. }) => (receipt.id.to_string(), receipt.claim.as_str().to_owned()),
        Some(memo) => (memo.id(), String::new()),
        None => Default::default(),
    };
    let behind = match kind {
        MemoKind::Receipts => "WHERE (job, claim) > (?1, ?2) ORDER BY job, claim",
        MemoKind::Requests => "WHERE id > ?1 AND ?2 = '' AND claim <> '' ORDER BY id",
        MemoKind::Answers => "WHERE id > ?1 AND ?2 = '' AND claim = '' ORDER BY id",
        MemoKind::Deliveries => "WHERE queue > ?1 AND ?2 = '' ORDER BY queue",
    };
    let mut all = db.prepare_cached(&format!("{} {behind} LIMIT ?3", columns(kind)))?;
    let mut rows = all.query(params![first, second, row::signed(limit)])?;
    let mut page = PageBuilder::new(limit);
    while !page.is_full()
        && let Some(found) = rows.next()?
    {
        page.push(memo(kind, found)?);
    }
    Ok(page.into_items())
}

/// Reads what is remembered from its row.
pub fn memo(kind: MemoKind, found: &rusqlite::Row<'_>) -> Result<Memo, Fault> {
    Ok(match kind {
        MemoKind::Receipts => {
            let (receipt, until) = receipts::read(found)?;
            Memo::Receipt { receipt, until }
        }
        MemoKind::Requests => Memo::Request {
            id: found.get(0)?,
            digest: found.get(1)?,
            claim: Claim::from_stored(&found.get::<_, String>(2)?),
            won: row::json(found, 3, "jobs of a request")?,
            until: Timestamp::from_millis(found.get(4)?),
        },
        MemoKind::Answers => {
            let (id, digest, until) = (found.get(0)?, found.get(1)?, Timestamp::from_millis(found.get(4)?));
            let answer = row::text(found, 3)?.unwrap_or_default().to_owned();
            Memo::Answer { call: KeyedCall { id, digest, until }, answer }
        }
        MemoKind::Deliveries => Memo::Deliveries {
            queue: row::parsed(found, 0, "queue with a rate")?,
            recent: row::json(found, 1, "deliveries")?.unwrap_or_default(),
        },
    })
}

/// Returns what is remembered under the name of this one.
fn memo_like(db: &Connection, of: &Memo) -> Result<Option<Memo>, Fault> {
    let found = |kind: MemoKind, named: &str, by: &[&dyn rusqlite::ToSql]| {
        let mut by_name = db.prepare_cached(&format!("{} WHERE {named}", columns(kind)))?;
        let mut rows = by_name.query(by)?;
        rows.next()?.map(|found| memo(kind, found)).transpose()
    };
    match of {
        Memo::Receipt { receipt, .. } => found(
            MemoKind::Receipts,
            "job = ?1 AND claim = ?2",
            &[&receipt.id.as_str(), &receipt.claim.as_str()],
        ),
        Memo::Request { id, .. } => found(MemoKind::Requests, "id = ?1", &[id]),
        Memo::Answer { call, .. } => found(MemoKind::Answers, "id = ?1 AND claim = ''", &[&call.id]),
        Memo::Deliveries { queue, .. } => found(MemoKind::Deliveries, "queue = ?1", &[&queue.as_str()]),
    }
}

/// Remembers these, unless they are there.
fn import_memos(db: &Connection, memos: &[Memo]) -> Result<Vec<Imported>, Fault> {
    let mut imported = Vec::with_capacity(memos.len());
    for memo in memos {
        imported.push(match memo_like(db, memo)? {
            Some(there) if there == *memo => Imported::Same,
            Some(_) => Imported::Different,
            None => {
                write_memo(db, memo)?;
                Imported::New
            }
        });
    }
    Ok(imported)
}

fn write_memo(db: &Connection, memo: &Memo) -> Result<(), Fault> {
    match memo {
        Memo::Receipt { receipt, until } => return receipts::insert(db, receipt, *until),
        // One that was running is dead: its server has ended.
        Memo::Request { id, digest, claim, won, until } => {
            let won = row::to_json(won.as_ref())?;
            db.prepare_cached(
                "INSERT INTO requests (id, digest, claim, pending_until, won, until) VALUES (?1, ?2, ?3, 0, ?4, ?5)",
            )?
            .execute(params![id, digest, claim.as_str(), won, until.millis()])?;
        }
        Memo::Answer { call, answer } => answers::keep(db, call, answer)?,
        Memo::Deliveries { queue, recent } => {
            db.prepare_cached("INSERT INTO deliveries (queue, recent) VALUES (?1, ?2)")?
                .execute(params![queue.as_str(), row::to_json(Some(recent))?])?;
        }
    }
    Ok(())
}

/// Returns the mark of a restore or a copy that has not ended. It stands beside the secret, in a table of names and values: the origin, which
/// has no slash, and the beat.
pub fn restoring(db: &Connection) -> Result<Option<RestoreMark>, Fault> {
    let mut read = db.prepare_cached("SELECT value FROM secrets WHERE name = 'restoring'")?;
    let found: Option<Vec<u8>> = read.query_row([], |found| found.get(0)).optional()?;
    Ok(found.map(|mark| {
        let mark = String::from_utf8_lossy(&mark).into_owned();
        let (origin, beat) = mark.split_once('/').unwrap_or((&mark, "0"));
        RestoreMark { origin: origin.to_owned(), beat: beat.parse().unwrap_or(0) }
    }))
}

fn note_restoring(db: &Connection, mark: Option<&RestoreMark>) -> Result<(), Fault> {
    match mark {
        Some(RestoreMark { origin, beat }) => db
            .prepare_cached("INSERT OR REPLACE INTO secrets (name, value) VALUES ('restoring', ?1)")?
            .execute([format!("{origin}/{beat}").into_bytes()])?,
        None => db.prepare_cached("DELETE FROM secrets WHERE name = 'restoring'")?.execute([])?,
    };
    Ok(())
}
