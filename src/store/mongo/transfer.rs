//! Everything that is stored, for another store and from another store.

use std::collections::HashMap;

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::Collection;
use mongodb::bson::{Binary, Document, RawDocumentBuf, doc, spec::BinarySubtype};
use serde::Serialize;

use crate::job::group::Line;
use crate::job::record::KeyUntil;
use crate::job::{Claim, Job, JobId, Meta, State, Timestamp};
use crate::store::fence::fence;
use crate::store::mongo::AUDIT;
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::LIMITS;
use crate::store::mongo::META;
use crate::store::mongo::Mongo;
use crate::store::mongo::RECEIPTS;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::answers::record;
use crate::store::mongo::audit;
use crate::store::mongo::cache::Position;
use crate::store::mongo::client::{NotInserted, fault, insert_each, is_duplicate};
use crate::store::mongo::jobs::document::{Row, date, from_job, serialized, to_job};
use crate::store::mongo::jobs::groups;
use crate::store::mongo::jobs::receipts;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, InsertMissing};
use crate::store::transfer::same;
use crate::store::{
    AuditRow, HeldKey, Imported, Memo, MemoKind, PageBuilder, RestoreMark, Result, Store as _, StoreError,
    Transfer,
};

#[async_trait]
impl Transfer for Mongo {
    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
        self.connection.within(export(self, after, limit)).await
    }

    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>> {
        let count = jobs.len();
        let imported = self.connection.within(import(self, jobs)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
        self.connection.within(export_keys(self, after, limit)).await
    }

    async fn keys_like(&self, keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>> {
        self.connection.within(keys_like(self, keys)).await
    }

    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>> {
        let count = keys.len();
        let imported = self.connection.within(import_keys(self, keys)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn export_memos(&self, kind: MemoKind, after: Option<&Memo>, limit: usize) -> Result<Vec<Memo>> {
        self.connection.within(export_memos(self, kind, after, limit)).await
    }

    async fn import_memos(&self, memos: Vec<Memo>) -> Vec<Result<Imported>> {
        let count = memos.len();
        let imported = self.connection.within(import_memos(self, memos)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn import_audit(&self, rows: Vec<AuditRow>) -> Vec<Result<Imported>> {
        let count = rows.len();
        let imported = self.connection.within(import_audit(self, rows)).await;
        imported.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn restoring(&self) -> Result<Option<RestoreMark>> {
        self.connection.within(restoring(self)).await
    }

    async fn mark_restoring(&self, seen: Option<&RestoreMark>, to: Option<&RestoreMark>) -> Result<bool> {
        self.connection.within(mark_restoring(self, seen, to)).await
    }
}

async fn import_audit(mongo: &Mongo, rows: Vec<AuditRow>) -> Result<Vec<Result<Imported>>> {
    let documents: Vec<Stored> =
        rows.iter().map(|row| Ok(Stored::from(audit::document(row)?))).collect::<Result<_>>()?;
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    insert_or_compare(mongo, AUDIT, documents, &ids, |n, there| Ok(audit::parse(there)? == rows[n])).await
}

/// Jobs of every queue, by id. A page ends early where the jobs are long.
pub async fn export(mongo: &Mongo, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>> {
    let behind = doc! { "_id": { "$gt": after.map_or("", JobId::as_str) } };
    let most = i64::try_from(limit).unwrap_or(i64::MAX);
    let all = mongo.collection(JOBS).await?;
    let mut cursor = all.find(behind).sort(doc! { "_id": 1 }).limit(most).await.map_err(fault)?;
    let mut page = PageBuilder::new(limit);
    while !page.is_full()
        && let Some(document) = cursor.try_next().await.map_err(fault)?
    {
        page.push(to_job(&document)?);
    }
    Ok(page.into_items())
}

/// When the reaper has something to do with a job.
fn deadline(meta: &Meta) -> Option<Timestamp> {
    match meta.state {
        State::Reserved => meta.reserved_until,
        State::Ready | State::Blocked => meta.expires_at,
        State::Done | State::Dead => None,
    }
}

/// Stores the jobs as they are, unless their ids are there.
pub async fn import(mongo: &Mongo, jobs: Vec<Job>) -> Result<Vec<Result<Imported>>> {
    let now = mongo.now()?;
    jobs.iter().for_each(|job| mongo.indexes.note(&job.meta));
    let documents: Vec<RawDocumentBuf> = jobs.iter().map(|job| from_job(job, now)).collect::<Result<_>>()?;
    let ids: Vec<&str> = jobs.iter().map(|job| job.meta.id.as_str()).collect();
    let sent = mongo.counters.sending(jobs.iter().map(|job| &job.meta.queue));
    let imported =
        insert_or_compare(mongo, JOBS, documents, &ids, |n, there| Ok(same(&to_job(there)?, &jobs[n])))
            .await?;
    let places = jobs.iter().filter_map(|job| Some((Line::of(&job.meta)?, job.meta.turn?)));
    groups::import(mongo, places).await?;
    let ready = jobs.iter().filter(|job| job.meta.state == State::Ready);
    mongo.note_ready(ready.map(|job| (&job.meta.queue, Position::of(&job.meta))));
    mongo.deadlines.note(jobs.iter().filter_map(|job| deadline(&job.meta)));
    for (job, imported) in jobs.iter().zip(&imported) {
        if matches!(imported, Ok(Imported::New)) {
            mongo.counters.came(&job.meta.queue, job.meta.state, 1);
        }
    }
    // What is there already may be the work of a run that was interrupted before it was counted.
    if imported.iter().all(|imported| matches!(imported, Ok(Imported::New))) {
        sent.answered();
    }
    Ok(imported)
}

/// Inserts documents; one whose id is there is compared with what is there. For a restore, in a transaction.
async fn insert_or_compare<T: Serialize + Send + Sync>(
    mongo: &Mongo,
    collection: &str,
    documents: Vec<T>,
    ids: &[&str],
    is_same: impl Fn(usize, &Document) -> Result<bool>,
) -> Result<Vec<Result<Imported>>> {
    let mut imported = vec![Ok(Imported::New); ids.len()];
    if ids.is_empty() {
        return Ok(imported);
    }
    if fence().is_some() {
        let insert = InsertMissing { collection, documents: &documents, ids };
        let attempts = transaction::until(mongo, mongo.connection.end()).retrying_duplicate_keys();
        let there = attempts.run(insert).await?;
        for (imported, (n, id)) in imported.iter_mut().zip(ids.iter().enumerate()) {
            if let Some(there) = there.get(*id) {
                *imported = compared(is_same(n, there));
            }
        }
        return Ok(imported);
    }
    let collection: Collection<T> = mongo.collection(collection).await?.clone_with_type();
    let (met, refused): (Vec<_>, Vec<_>) =
        insert_each(&collection, documents).await?.into_iter().partition(NotInserted::is_there);
    for refused in refused {
        imported[refused.index] = Err(refused.fault());
    }
    let met: Vec<usize> = met.into_iter().map(|met| met.index).collect();
    let met_ids: Vec<&str> = met.iter().map(|n| ids[*n]).collect();
    let there = by_id(&collection.clone_with_type(), &met_ids).await?;
    for n in met {
        imported[n] = match there.get(ids[n]) {
            Some(there) => compared(is_same(n, there)),
            None => Err(StoreError::unavailable("a document left while it was compared")),
        };
    }
    Ok(imported)
}

fn compared(is_same: Result<bool>) -> Result<Imported> {
    is_same.map(|is_same| if is_same { Imported::Same } else { Imported::Different })
}

/// The documents with these ids. Asked for in pages of bounded memory by the caller.
async fn by_id(collection: &Collection<Stored>, ids: &[&str]) -> Result<HashMap<String, Stored>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let cursor = collection.find(doc! { "_id": { "$in": ids } }).await.map_err(fault)?;
    let found: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let named = found.into_iter().filter_map(|found| Some((found.get_str("_id").ok()?.to_owned(), found)));
    Ok(named.collect())
}

/// Queue names have no slash, so that the first one ends the queue's name.
fn key_id(key: &HeldKey) -> String {
    format!("{}/{}", key.queue, key.key)
}

/// The keys that are remembered, by the ids of their records.
pub async fn export_keys(mongo: &Mongo, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>> {
    let behind = doc! { "_id": { "$gt": after.map(key_id).unwrap_or_default() } };
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let all = mongo.collection(KEYS).await?;
    let cursor = all.find(behind).sort(doc! { "_id": 1 }).limit(limit).await.map_err(fault)?;
    let records: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    records.iter().map(|record| held(record)).collect()
}

/// Reads a key from its record.
pub fn held(record: &Document) -> Result<HeldKey> {
    let row = Row(record);
    let named = record.get_str("_id").ok().and_then(|id| id.split_once('/'));
    let (queue, key) = named.ok_or_else(|| row.fault("_id"))?;
    let digest = record.get_binary_generic("digest").map_err(|_| row.fault("digest"))?;
    Ok(HeldKey {
        queue: queue.parse().map_err(|_| row.fault("_id"))?,
        key: key.parse().map_err(|_| row.fault("_id"))?,
        job: row.text("job")?,
        digest: digest.as_slice().try_into().map_err(|_| row.fault("digest"))?,
        until: row.time("until")?.ok_or_else(|| row.fault("until"))?,
        run_at: row.time("run_at")?.ok_or_else(|| row.fault("run_at"))?,
        lasts: KeyUntil::from_word(record.get_str("lasts").ok()),
    })
}

/// Returns what is remembered of the keys of these queues and names.
pub async fn keys_like(mongo: &Mongo, keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>> {
    let ids: Vec<String> = keys.iter().map(key_id).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let there = by_id(&mongo.collection(KEYS).await?, &ids).await?;
    ids.iter().map(|id| there.get(*id).map(|there| held(there)).transpose()).collect()
}

/// Remembers the keys, unless they are there.
pub async fn import_keys(mongo: &Mongo, keys: Vec<HeldKey>) -> Result<Vec<Result<Imported>>> {
    let ids: Vec<String> = keys.iter().map(key_id).collect();
    let record = |(key, id): (&HeldKey, &String)| {
        let digest = Binary { subtype: BinarySubtype::Generic, bytes: key.digest.to_vec() };
        let until = date(key.until);
        let mut record = doc! {
            "_id": id, "job": key.job.as_str(), "digest": digest, "until": until,
            "run_at": date(key.run_at), "check_at": until,
        };
        if !key.lasts.is_usual() {
            record.insert("lasts", key.lasts.as_str());
        }
        Stored::from(record)
    };
    let records: Vec<Stored> = keys.iter().zip(&ids).map(record).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    insert_or_compare(mongo, KEYS, records, &ids, |n, there| Ok(held(there)? == keys[n])).await
}

/// The collection of a kind of memos.
fn collection_of(kind: MemoKind) -> &'static str {
    match kind {
        MemoKind::Receipts => RECEIPTS,
        MemoKind::Requests | MemoKind::Answers => REQUESTS,
        MemoKind::Deliveries => LIMITS,
    }
}

/// What is remembered, by the ids of its documents. Among the requests stand the words of servers that are alive and the answers of calls, and among the
/// limits those of queues without a rate.
async fn export_memos(
    mongo: &Mongo,
    kind: MemoKind,
    after: Option<&Memo>,
    limit: usize,
) -> Result<Vec<Memo>> {
    let after = after.map(Memo::id).unwrap_or_default();
    let mut filter = doc! { "_id": { "$gt": &after } };
    match kind {
        MemoKind::Receipts => {}
        // Those of reserves: others have an answer, and no claim.
        MemoKind::Requests => drop(filter.insert("claim", doc! { "$exists": true })),
        MemoKind::Answers => return record::export(mongo, &after, limit).await,
        MemoKind::Deliveries => drop(filter.insert("recent", doc! { "$exists": true })),
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let all = mongo.collection(collection_of(kind)).await?;
    let cursor = all.find(filter).sort(doc! { "_id": 1 }).limit(limit).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    documents.iter().map(|document| memo(kind, document)).collect()
}

/// Reads what is remembered from its document.
pub fn memo(kind: MemoKind, document: &Document) -> Result<Memo> {
    let row = Row(document);
    let until = || row.time("until")?.ok_or_else(|| row.fault("until"));
    match kind {
        MemoKind::Receipts => {
            let named = document.get_str("_id").ok().and_then(|id| id.split_once('/'));
            let (id, claim) = named.ok_or_else(|| row.fault("_id"))?;
            let id = id.parse().map_err(|_| row.fault("_id"))?;
            Ok(Memo::Receipt {
                receipt: receipts::read(document, id, Claim::from_stored(claim))?,
                until: until()?,
            })
        }
        MemoKind::Requests => {
            let digest = document.get_binary_generic("digest").map_err(|_| row.fault("digest"))?;
            Ok(Memo::Request {
                id: row.text("_id")?,
                digest: digest.as_slice().try_into().map_err(|_| row.fault("digest"))?,
                claim: Claim::from_stored(document.get_str("claim").map_err(|_| row.fault("claim"))?),
                won: row.part("ids")?,
                until: until()?,
            })
        }
        MemoKind::Answers => Err(row.fault("answer")), // see `record::export`
        MemoKind::Deliveries => {
            let recent = row.part("recent")?.ok_or_else(|| row.fault("recent"))?;
            Ok(Memo::Deliveries { queue: row.text("_id")?, recent })
        }
    }
}

/// The documents of what is remembered, the one that names it last.
fn memo_documents(memo: &Memo) -> Result<Vec<Stored>> {
    let document = match memo {
        Memo::Receipt { receipt, until } => receipts::document(receipt, *until)?,
        Memo::Answer { call, answer } => {
            let named = |(id, mut document): (String, Document)| {
                document.insert("_id", id);
                document.into()
            };
            return Ok(record::documents(call, answer).into_iter().map(named).rev().collect());
        }
        Memo::Request { id, digest, claim, won, until } => {
            let digest = Binary { subtype: BinarySubtype::Generic, bytes: digest.to_vec() };
            let until = date(*until);
            let mut document = doc! { "_id": id, "digest": digest, "claim": claim.as_str(), "until": until };
            let ended = date(Timestamp::from_millis(0));
            match won {
                Some(ids) => {
                    let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
                    drop(document.insert("ids", ids));
                }
                // Whatever server ran it is gone.
                None => document.extend(doc! { "runner": "", "alive_until": ended, "pending_until": ended }),
            }
            document.into()
        }
        Memo::Deliveries { queue, recent } => {
            doc! { "_id": queue.as_str(), "recent": serialized(recent)? }.into()
        }
    };
    Ok(vec![document])
}

/// Remembers these, each kind for itself, unless they are there.
async fn import_memos(mongo: &Mongo, memos: Vec<Memo>) -> Result<Vec<Result<Imported>>> {
    let mut imported = vec![Ok(Imported::New); memos.len()];
    for kind in MemoKind::ALL {
        let (mut indexes, mut documents) = (Vec::new(), Vec::new());
        for (index, memo) in memos.iter().enumerate().filter(|(_, memo)| memo.kind() == kind) {
            let of_memo = memo_documents(memo)?;
            indexes.extend(of_memo.iter().map(|_| index));
            documents.extend(of_memo);
        }
        let own: Vec<Document> = documents.iter().map(|document| (**document).clone()).collect();
        let ids: Vec<&str> = own.iter().map(|document| document.get_str("_id").unwrap_or_default()).collect();
        let is_same = |n: usize, there: &Document| match kind {
            MemoKind::Answers => Ok(own[n].iter().all(|(field, value)| there.get(field) == Some(value))),
            _ => Ok(memo(kind, there)? == memos[indexes[n]]),
        };
        let told = insert_or_compare(mongo, collection_of(kind), documents, &ids, is_same).await?;
        // The last document says whether it was there, and each that it was another.
        for (index, told) in indexes.iter().zip(told) {
            if !matches!(imported[*index], Ok(Imported::Different) | Err(_)) {
                imported[*index] = told;
            }
        }
    }
    Ok(imported)
}

async fn restoring(mongo: &Mongo) -> Result<Option<RestoreMark>> {
    let found = mongo.collection(META).await?.find_one(doc! { "_id": "restoring" }).await.map_err(fault)?;
    Ok(found.map(|found| RestoreMark {
        origin: found.get_str("backup").unwrap_or_default().to_owned(),
        beat: found.get_i64("beat").unwrap_or(0),
    }))
}

/// One command each, guarded by what was seen: of two at once one takes effect.
async fn mark_restoring(mongo: &Mongo, seen: Option<&RestoreMark>, to: Option<&RestoreMark>) -> Result<bool> {
    let meta = mongo.collection(META).await?;
    let by_id = doc! { "_id": "restoring" };
    let guard = seen.map(|seen| {
        let beat = if seen.beat == 0 {
            doc! { "$in": [0_i64, mongodb::bson::Bson::Null] }
        } else {
            doc! { "$eq": seen.beat }
        };
        doc! { "_id": "restoring", "backup": &seen.origin, "beat": beat }
    });
    let fields = |mark: &RestoreMark| doc! { "backup": &mark.origin, "beat": mark.beat };
    let is_done = match (guard, to) {
        (Some(guard), Some(to)) => {
            meta.update_one(guard, doc! { "$set": fields(to) }).await.map_err(fault)?.matched_count > 0
        }
        (Some(guard), None) => meta.delete_one(guard).await.map_err(fault)?.deleted_count > 0,
        (None, Some(to)) => {
            let set = doc! { "$setOnInsert": fields(to) };
            match meta.update_one(by_id, set).upsert(true).await {
                Ok(done) => done.upserted_id.is_some(),
                Err(error) if is_duplicate(&error) => false,
                Err(error) => return Err(fault(error)),
            }
        }
        (None, None) => return Ok(restoring(mongo).await?.is_none()),
    };
    Ok(is_done || restoring(mongo).await?.as_ref() == to)
}
