//! Batches: one document each, which counts the batch's jobs in the transactions that change these. Transactions
//! write it first and conflict there: one goes on, the others retry after a random pause, and so the counts add up and
//! the callback is pushed once, across all servers.

pub mod document;

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::ReturnDocument;
use tokio::time::Instant;

use crate::job::batch::{End, Endings, Finish, counted};
use crate::job::push::Room;
use crate::job::{Batch, BatchId, BatchResult, Child, JobId, NewJob, Rules, Timestamp};
use crate::store::fence::fence;
use crate::store::mongo::BATCH_RESULTS;
use crate::store::mongo::BATCHES;
use crate::store::mongo::Mongo;
use crate::store::mongo::answers::record;
use crate::store::mongo::batches::document::{
    from_batch, from_result, number, result_id, to_batch, to_result,
};
use crate::store::mongo::client::{barrier, fault, insert_each, write_raw};
use crate::store::mongo::indexes::Rare;
use crate::store::mongo::jobs::document::{Row, date, readable};
use crate::store::mongo::jobs::groups::Lines;
use crate::store::mongo::jobs::push;
use crate::store::mongo::jobs::query;
use crate::store::mongo::stored::{Stored, deletion};
use crate::store::mongo::transaction::{self, InsertMissing, Transaction, Tx, TxError, Verdict};
use crate::store::{
    BatchChange, BatchChanged, BatchDenied, Batches, CalledBack, Keyed, Once, PageBuilder, Result,
    Store as _, StoreError,
};

#[async_trait]
impl Batches for Mongo {
    async fn create_batch(
        &self,
        batch: Batch,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied> {
        change(self, &BatchChange::Create(Box::new(batch)), &jobs, rules).await
    }

    async fn add_to_batch(
        &self,
        id: &BatchId,
        jobs: Vec<NewJob>,
        rules: &Rules,
    ) -> Result<BatchChanged, BatchDenied> {
        change(self, &BatchChange::Add(id.clone()), &jobs, rules).await
    }

    async fn seal_batch(&self, id: &BatchId, rules: &Rules) -> Result<BatchChanged, BatchDenied> {
        change(self, &BatchChange::Seal(id.clone()), &[], rules).await
    }

    async fn count_lost(&self, id: &BatchId, lost: u64, rules: &Rules) -> Result<BatchChanged, BatchDenied> {
        change(self, &BatchChange::Lose(id.clone(), lost), &[], rules).await
    }

    async fn batch(&self, id: &BatchId) -> Result<Option<Batch>> {
        let find = async {
            let batches = self.collection(BATCHES).await?;
            let found = batches.find_one(doc! { "_id": id.as_str() }).await.map_err(fault)?;
            found.as_deref().map(to_batch).transpose().map_err(StoreError::unreadable)
        };
        self.connection.within(find).await
    }

    async fn batch_results(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<BatchResult>> {
        self.connection.within(results(self, id, after, limit)).await
    }

    async fn unfinished_in_batch(
        &self,
        id: &BatchId,
        after: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<JobId>> {
        let behind = doc! { "$gt": after.map_or("", JobId::as_str) };
        let filter = doc! { "batch": id.as_str(), "_id": behind, "state": { "$in": ["ready", "blocked", "reserved"] } };
        let find = async {
            self.indexes.need(Rare::Batch).await?;
            query::all(self, filter, doc! { "_id": 1 }, doc! { "_id": 1 }, limit).await
        };
        let found = self.connection.within(find).await?;
        Ok(readable(&found, |document| Row(document).text("_id")))
    }

    async fn batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>> {
        let behind = doc! { "_id": { "$gt": after.map_or("", BatchId::as_str) } };
        let at_once = u32::try_from(limit).unwrap_or(u32::MAX);
        let find = async {
            let all = self.collection(BATCHES).await?;
            let find = all.find(behind).sort(doc! { "_id": 1 }).batch_size(at_once);
            let mut cursor = find.await.map_err(fault)?;
            let mut page = PageBuilder::new(limit);
            while !page.is_full()
                && let Some(found) = cursor.try_next().await.map_err(fault)?
            {
                readable(std::slice::from_ref(&found), to_batch)
                    .into_iter()
                    .for_each(|batch| page.push(batch));
            }
            Ok(page.into_items())
        };
        self.connection.within(find).await
    }

    async fn export_batches(&self, after: Option<&BatchId>, limit: usize) -> Result<Vec<Batch>> {
        let behind = doc! { "_id": { "$gt": after.map_or("", BatchId::as_str) } };
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let find = async {
            let all = self.collection(BATCHES).await?;
            let mut cursor = all.find(behind).sort(doc! { "_id": 1 }).limit(most).await.map_err(fault)?;
            let mut page = PageBuilder::new(limit);
            while !page.is_full()
                && let Some(found) = cursor.try_next().await.map_err(fault)?
            {
                page.push(to_batch(&found)?);
            }
            Ok(page.into_items())
        };
        self.connection.within(find).await
    }

    async fn import_batch(&self, batch: Batch, results: Vec<BatchResult>) -> Result<bool> {
        self.connection.within(import(self, &batch, &results)).await
    }
}

/// The jobs of one batch that end in a transaction.
pub struct Counted<'a> {
    /// The batch as it is then, but for what is pushed at its end.
    batch: Batch,
    finishes: Vec<&'a Finish>,
}

/// So many batches are forgotten together at most.
const PRUNED_TOGETHER: u64 = 100;
/// What is read of a batch that is only counted.
const COUNTED: [&str; 9] =
    ["sealed", "pending", "done", "dead", "cancelled", "created_at", "finished_at", "purge_at", "callback"];

/// Returns the projection of these fields. The driver cannot read the reply of a `findAndModify` in which any text is not UTF-8: one
/// that another program added must not keep the jobs of a batch from ending.
fn fields<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> Document {
    names.into_iter().map(|name| ((*name).to_owned(), 1.into())).collect()
}

/// Counts jobs that end, in the order of the batches' ids. It must come first in its transaction: a
/// transaction that conflicts here has done nothing in vain.
pub async fn count<'a>(
    finishes: impl Iterator<Item = &'a Finish>,
    tx: &mut Tx<'_>,
) -> Result<Vec<Counted<'a>>, TxError> {
    let mut by_batch: BTreeMap<&BatchId, Vec<&Finish>> = BTreeMap::new();
    finishes.for_each(|finish| by_batch.entry(&finish.batch).or_default().push(finish));
    let batches = tx.collection(BATCHES);
    let mut counted = Vec::with_capacity(by_batch.len());
    for (id, finishes) in by_batch {
        let mut ended = Endings::default();
        finishes.iter().for_each(|finish| ended.add(finish.result.state));
        let increments = doc! {
            "pending": -number(ended.total()), "done": number(ended.done), "dead": number(ended.dead),
            "cancelled": number(ended.cancelled),
        };
        let mut filter = doc! { "_id": id.as_str() };
        let counts = increments.keys().map(|field| (field.clone(), doc! { "$type": "number" }.into()));
        filter.extend(counts.collect::<Vec<_>>());
        let update = batches
            .find_one_and_update(filter, doc! { "$inc": increments })
            .return_document(ReturnDocument::After)
            .projection(fields(&COUNTED));
        // There is none where another program named a batch that never was, or spoiled it.
        let found = Vec::from_iter(update.session(tx.session()).await?);
        counted.extend(readable(&found, to_batch).pop().map(|batch| Counted { batch, finishes }));
    }
    Ok(counted)
}

/// Keeps the results of jobs that were counted, and ends the batches whose last job was among them. Returns their
/// callbacks, which are still to be stored.
pub async fn conclude(
    counted: Vec<Counted<'_>>,
    rules: &Rules,
    tx: &mut Tx<'_>,
) -> Result<Vec<(BatchId, NewJob)>, TxError> {
    let (batches, now) = (tx.collection(BATCHES), tx.mongo.now()?);
    let mut callbacks = Vec::new();
    for Counted { batch, finishes } in counted {
        let kept = finishes.iter().map(|finish| from_result(&finish.batch, &finish.result).into());
        let kept: Vec<Stored> = kept.collect();
        tx.collection(BATCH_RESULTS).insert_many(kept).session(tx.session()).await?;
        if !batch.is_over() {
            continue;
        }
        let whole = batches.find_one(doc! { "_id": batch.id.as_str() }).session(tx.session());
        let whole = Vec::from_iter(whole.await?);
        let Some(mut batch) = readable(&whole, to_batch).pop() else { continue };
        let callback = end(&mut batch, rules, now, tx).await?;
        callbacks.extend(callback.map(|callback| (batch.id, callback)));
    }
    Ok(callbacks)
}

/// Ends a batch that is stored already, if it is over, and returns its callback.
async fn end(
    batch: &mut Batch,
    rules: &Rules,
    now: Timestamp,
    tx: &mut Tx<'_>,
) -> Result<Option<NewJob>, TxError> {
    let Some(End { callback }) = batch.end_if_over(now, rules) else { return Ok(None) };
    let mut set = doc! { "finished_at": date(now) };
    set.extend(batch.purge_at.map(|at| ("purge_at".to_owned(), date(at).into())));
    let batches = tx.collection(BATCHES);
    let update = batches.update_one(doc! { "_id": batch.id.as_str() }, doc! { "$set": set });
    update.session(tx.session()).await?;
    Ok(callback)
}

type Changed = Result<BatchChanged, BatchDenied>;
type ChangedOnce = Result<Once<BatchChanged>, BatchDenied>;

/// Changes a batch and stores its new jobs in one transaction.
async fn change(mongo: &Mongo, what: &BatchChange, jobs: &[NewJob], rules: &Rules) -> Changed {
    match change_in_one(mongo, what, jobs, rules, None).await? {
        Once::Now(changed, _) => Ok(changed),
        Once::Before(_) => Err(StoreError::internal("a batch was changed by a call without a key").into()),
    }
}

/// The same together with the answer of the call, unless it was answered before.
pub async fn change_once(
    mongo: &Mongo,
    change: BatchChange,
    jobs: &[NewJob],
    rules: &Rules,
    keyed: &Keyed<BatchChanged>,
) -> ChangedOnce {
    change_in_one(mongo, &change, jobs, rules, Some(keyed)).await
}

async fn change_in_one(
    mongo: &Mongo,
    what: &BatchChange,
    jobs: &[NewJob],
    rules: &Rules,
    keyed: Option<&Keyed<BatchChanged>>,
) -> ChangedOnce {
    let end = mongo.connection.end();
    let (_locks, room) = push::locked_room(mongo, jobs, rules, end).await?;
    transaction::until(mongo, end)
        .run(Change { what, jobs, room, rules, keyed })
        .await
        .map_err(StoreError::from)?
}

/// A batch is created, added to or sealed.
///
/// Idempotence: within the call, no attempt follows one that may be stored. The ids of the batch, its callback and its
/// jobs are made before the first one. After an unknown outcome a batch shows whether it was created or sealed, and to
/// seal it again changes nothing; jobs that were added are found by their keys, where they have any.
struct Change<'a> {
    what: &'a BatchChange,
    jobs: &'a [NewJob],
    room: Room,
    rules: &'a Rules,
    keyed: Option<&'a Keyed<BatchChanged>>,
}

impl Transaction for Change<'_> {
    type Done = ChangedOnce;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<ChangedOnce>, TxError> {
        let Self { what, jobs, rules, .. } = self;
        if let Some(keyed) = self.keyed
            && let Some(before) = record::find(&keyed.call, tx).await?
        {
            return Ok(Verdict::Commit(Ok(Once::Before(before))));
        }
        let mut room = self.room.clone();
        let mut batch = match lock(what, jobs.len() as u64, tx).await? {
            Ok(batch) => batch,
            Err(denied) => return Ok(Verdict::Abort(Err(denied))),
        };
        let asked: Vec<&NewJob> = jobs.iter().collect();
        let mut lines = Lines::default();
        let mut resolved = push::resolve(&asked, &mut room, &mut lines, tx).await?;
        let pushed = std::mem::take(&mut resolved.pushed);
        let children =
            jobs.iter().zip(pushed).enumerate().map(|(index, (job, pushed))| pushed.into_child(index, job));
        let pushed: Vec<Child> = match children.collect() {
            Ok(children) => children,
            Err(refused) => return Ok(Verdict::Abort(Err(BatchDenied::PushRefused(refused)))),
        };
        let before = batch.counted().saturating_sub(jobs.len() as u64);
        if let Some(denied) = BatchDenied::by_pushes(before, &pushed) {
            return Ok(Verdict::Abort(Err(denied)));
        }
        let counts = (jobs.len() as u64, counted(&pushed));
        let callback = settle(what, &mut batch, counts, rules, tx).await?;
        if let Some(callback) = &callback {
            lines.load(push::line(callback).into_iter(), tx).await?;
            resolved.add(callback, &mut lines, tx.mongo.now()?)?;
        }
        lines.write(tx).await?;
        push::write(resolved, tx).await?;
        let callback = callback.as_ref().map(CalledBack::from);
        let changed = BatchChanged { batch, pushed, callback };
        let answer = self.keyed.and_then(|keyed| Some((keyed, keyed.answered(&changed)?)));
        if let Some((keyed, answer)) = &answer {
            record::keep(&keyed.call, answer, tx).await?;
        }
        Ok(Verdict::Commit(Ok(Once::Now(changed, answer.map(|(_, answer)| answer)))))
    }
}

/// Returns the batch with all of the new jobs pending. It is written before all else, so that others conflict early.
async fn lock(what: &BatchChange, jobs: u64, tx: &mut Tx<'_>) -> Result<Result<Batch, BatchDenied>, TxError> {
    let batches = tx.collection(BATCHES);
    let (id, filter, update) = match what {
        BatchChange::Create(batch) => return Ok(Ok(Batch { pending: jobs, ..(**batch).clone() })),
        BatchChange::Add(id) => {
            (id, doc! { "_id": id.as_str(), "sealed": false }, doc! { "$inc": { "pending": number(jobs) } })
        }
        BatchChange::Seal(id) => (id, doc! { "_id": id.as_str() }, doc! { "$set": { "sealed": true } }),
        BatchChange::Lose(id, lost) => {
            let increments = doc! { "pending": -number(*lost), "dead": number(*lost) };
            (id, doc! { "_id": id.as_str() }, doc! { "$inc": increments })
        }
    };
    let known = fields(COUNTED.iter().chain(&["owner", "on_finished", "on_finished_headers"]));
    let update = batches.find_one_and_update(filter, update).return_document(ReturnDocument::After);
    let update = update.projection(known);
    match update.session(tx.session()).await? {
        Some(found) => Ok(Ok(to_batch(&found)?)),
        None => {
            let there = batches.find_one(doc! { "_id": id.as_str() }).session(tx.session()).await?;
            let sealed = there.map(|there| there.get_bool("sealed").unwrap_or(true));
            Ok(Err(what.denied(sealed).unwrap_or(BatchDenied::Unknown)))
        }
    }
}

/// Writes the batch as it is once so many of the new jobs are stored, and returns its callback if that ends it.
async fn settle(
    what: &BatchChange,
    batch: &mut Batch,
    (asked, stored): (u64, u64),
    rules: &Rules,
    tx: &mut Tx<'_>,
) -> Result<Option<NewJob>, TxError> {
    let (batches, now) = (tx.collection(BATCHES), tx.mongo.now()?);
    let surplus = asked - stored; // their keys were taken by equal jobs
    batch.pending = batch.pending.saturating_sub(surplus);
    if let BatchChange::Create(_) = what {
        let end = batch.end_if_over(now, rules);
        batches.insert_one(Stored::from(from_batch(batch)?)).session(tx.session()).await?;
        return Ok(end.and_then(|end| end.callback));
    }
    if surplus > 0 {
        let update = doc! { "$inc": { "pending": -number(surplus) } };
        let update = batches.update_one(doc! { "_id": batch.id.as_str() }, update);
        update.session(tx.session()).await?;
    }
    end(batch, rules, now, tx).await
}

/// The results of a batch, by the ids of their jobs.
async fn results(
    mongo: &Mongo,
    batch: &BatchId,
    after: Option<&JobId>,
    limit: usize,
) -> Result<Vec<BatchResult>> {
    let kept = mongo.collection(BATCH_RESULTS).await?;
    query::page(kept, results_after(batch, after), limit, to_result).await
}

fn results_after(batch: &BatchId, after: Option<&JobId>) -> Document {
    let behind = format!("{batch}/{}", after.map_or("", JobId::as_str));
    // What follows a slash among the characters: no token has either.
    doc! { "_id": { "$gt": behind, "$lt": format!("{batch}0") } }
}

/// Forgets up to `limit` results and batches whose time has passed, for half as long as a verb may take: the next call goes on.
pub async fn prune(mongo: &Mongo, limit: usize) -> Result<u64> {
    let end = Instant::now() + mongo.connection.deadline() / 2;
    let (limit, mut forgotten) = (limit as u64, 0);
    while forgotten < limit && Instant::now() < end {
        match prune_together(mongo, limit - forgotten).await? {
            0 => break,
            some => forgotten += some,
        }
    }
    Ok(forgotten)
}

/// Forgets some of them, however small each batch is in a few commands. Results go first, so that none is ever left without its batch. What
/// was read is confirmed before: a failover may take back that a batch has ended.
async fn prune_together(mongo: &Mongo, limit: u64) -> Result<u64> {
    let (batches, kept) = (mongo.collection(BATCHES).await?, mongo.collection(BATCH_RESULTS).await?);
    let since = mongo.connection.term();
    let over = batches.find(doc! { "purge_at": { "$lte": date(mongo.now()?) } }).sort(doc! { "purge_at": 1 });
    let over = over.projection(doc! { "_id": 1 }).limit(limit.min(PRUNED_TOGETHER).cast_signed());
    let over: Vec<Stored> = over.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let (mut ids, mut gone): (Vec<BatchId>, u64) = (Vec::new(), 0);
    for batch in over {
        match Row(&batch).text("_id") {
            Ok(id) => ids.push(id),
            Err(_) => {
                // Another program's; nothing belongs to it.
                let database = mongo.connection.database().await?;
                gone += write_raw(database, deletion(BATCHES, batch.by_id()?)).await?;
            }
        }
    }
    if ids.is_empty() {
        return Ok(gone);
    }
    barrier(&mongo.connection, since).await?;
    let of_all = doc! { "$or": ids.iter().map(|id| results_after(id, None)).collect::<Vec<_>>() };
    let most = limit.saturating_sub(gone);
    let found = kept.find(of_all.clone()).sort(doc! { "_id": 1 }).projection(doc! { "_id": 1 });
    let found = found.limit(most.cast_signed()).await.map_err(fault)?;
    let results: Vec<Stored> = found.try_collect().await.map_err(fault)?;
    let are_all = (results.len() as u64) < most;
    if !results.is_empty() {
        let named: Vec<&str> = results.iter().filter_map(|result| result.get_str("_id").ok()).collect();
        // By their ranges also those whose ids cannot be read. Where none of too many can be named, they are left.
        let these = if are_all {
            of_all
        } else {
            doc! { "_id": { "$in": named } }
        };
        gone += kept.delete_many(these).await.map_err(fault)?.deleted_count;
    }
    if are_all {
        ids.truncate(usize::try_from(limit.saturating_sub(gone)).unwrap_or(usize::MAX));
        let ids: Vec<&str> = ids.iter().map(BatchId::as_str).collect();
        gone += batches.delete_many(doc! { "_id": { "$in": ids } }).await.map_err(fault)?.deleted_count;
    }
    Ok(gone)
}

async fn import(mongo: &Mongo, batch: &Batch, results: &[BatchResult]) -> Result<bool> {
    let (batches, kept) = (mongo.collection(BATCHES).await?, mongo.collection(BATCH_RESULTS).await?);
    let there = batches.find_one(doc! { "_id": batch.id.as_str() }).await.map_err(fault)?;
    let there = there.as_deref().map(to_batch).transpose()?;
    if there.as_ref().is_some_and(|there| there != batch) {
        return Ok(false);
    }
    let ids: Vec<String> = results.iter().map(|result| result_id(&batch.id, &result.id)).collect();
    let mut found = kept.find(doc! { "_id": { "$in": &ids } }).await.map_err(fault)?;
    while let Some(document) = found.try_next().await.map_err(fault)? {
        let there = to_result(&document)?;
        if !results.contains(&there) {
            return Ok(false);
        }
    }
    if there.is_none() {
        insert_new(mongo, BATCHES, vec![from_batch(batch)?.into()], &[batch.id.as_str()]).await?;
    }
    let documents = results.iter().map(|result| from_result(&batch.id, result).into()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    insert_new(mongo, BATCH_RESULTS, documents, &ids).await?;
    Ok(true)
}

/// Inserts documents, unless they are there. For a restore, in a transaction.
async fn insert_new(mongo: &Mongo, collection: &str, documents: Vec<Stored>, ids: &[&str]) -> Result<()> {
    if documents.is_empty() {
        return Ok(());
    }
    if fence().is_some() {
        let insert = InsertMissing { collection, documents: &documents, ids };
        let attempts = transaction::until(mongo, mongo.connection.end()).retrying_duplicate_keys();
        return Ok(attempts.run(insert).await.map(drop)?);
    }
    let refused = insert_each(&mongo.collection(collection).await?, documents).await?;
    match refused.into_iter().find(|refused| !refused.is_there()) {
        Some(refused) => Err(refused.fault()),
        None => Ok(()),
    }
}
