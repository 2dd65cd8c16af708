//! Operations over many jobs: documents of the collection `operations`, each with its record as a JSON text.

use std::collections::BTreeSet;

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};

use crate::job::push::{Pushed, Room};
use crate::job::transition::Refusal;
use crate::job::{Bulk, BulkId, NewJob, QueueName, Rules, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::OPERATIONS;
use crate::store::mongo::answers;
use crate::store::mongo::client::{fault, write};
use crate::store::mongo::jobs::apply_atomic::{CarryOut, Written};
use crate::store::mongo::jobs::apply_once::{self, Planned};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::jobs::groups::Lines;
use crate::store::mongo::jobs::push;
use crate::store::mongo::jobs::query;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::operations::{KEPT_MAX, KEPT_MS};
use crate::store::{
    AuditRow, BegunBy, BulkDone, BulkEffect, BulkStep, Denied, Operations, Result, Store as _, StoreError,
};

/// How often a step is planned at most, where it conflicts with others.
const ATTEMPTS: usize = 4;

#[async_trait]
impl Operations for Mongo {
    async fn add_operation(
        &self,
        operation: &Bulk,
        row: Option<&AuditRow>,
        by: Option<&BegunBy>,
    ) -> Result<bool> {
        let save = Save { to: operation, seen: None, row, by };
        Ok(transaction::until(self, self.connection.end()).retrying_duplicate_keys().run(save).await?)
    }

    async fn operation(&self, id: &BulkId) -> Result<Option<Bulk>> {
        let reading = async {
            let all = self.collection(OPERATIONS).await?;
            let found = all.find_one(doc! { "_id": id.as_str() }).await.map_err(fault)?;
            found.as_deref().map(parse).transpose().map_err(StoreError::unreadable)
        };
        self.connection.within(reading).await
    }

    async fn operations(&self, before: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>> {
        let filter = before.map_or_else(Document::new, |before| doc! { "_id": { "$lt": before.as_str() } });
        self.connection.within(list(self, filter, -1, limit)).await
    }

    async fn open_operations(&self, after: Option<&BulkId>, limit: usize) -> Result<Vec<Bulk>> {
        let mut filter = doc! { "open": true };
        filter.extend(after.map(|after| ("_id".to_owned(), doc! { "$gt": after.as_str() }.into())));
        self.connection.within(list(self, filter, 1, limit)).await
    }

    async fn save_operation(&self, to: &Bulk, seen: i64, row: Option<&AuditRow>) -> Result<bool> {
        let save = Save { to, seen: Some(seen), row, by: None };
        Ok(transaction::until(self, self.connection.end()).run(save).await?)
    }

    async fn step_operation(&self, step: BulkStep, rules: &Rules) -> Result<Option<BulkDone>> {
        let done = match &step.effect {
            BulkEffect::Change(changes) if !changes.is_empty() => change(self, &step, changes, rules).await?,
            BulkEffect::Change(_) => {
                let end = self.connection.end();
                transaction::until(self, end)
                    .run(Push { step: &step, jobs: None, room: Room::default() })
                    .await?
            }
            BulkEffect::Push(jobs) => push_jobs(self, &step, jobs, rules).await?,
        };
        self.last_write.note();
        Ok(done)
    }
}

async fn list(mongo: &Mongo, filter: Document, order: i32, limit: usize) -> Result<Vec<Bulk>> {
    let all = mongo.collection(OPERATIONS).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let cursor = all.find(filter).sort(doc! { "_id": order }).limit(limit).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let read = |document: &Stored| {
        parse(document).inspect_err(|error| {
            tracing::error!(error = crate::store::chain(error), "an operation cannot be read");
        })
    };
    Ok(documents.iter().filter_map(|document| read(document).ok()).collect())
}

/// Reads an operation.
pub fn parse(document: &Document) -> Result<Bulk> {
    let body: String = Row(document).text("body")?;
    serde_json::from_str(&body).map_err(|_| Row(document).fault("body"))
}

fn document(operation: &Bulk) -> Result<Document> {
    let body = serde_json::to_string(operation).map_err(StoreError::internal)?;
    let mut document = doc! { "_id": operation.id.as_str(), "rev": operation.rev, "body": body };
    match operation.finished_at {
        Some(at) => document.insert("finished_at", date(at)),
        None => document.insert("open", true),
    };
    Ok(document)
}

/// Replaces a record that is still of this revision. Returns whether it was.
async fn replace(to: &Bulk, seen: i64, tx: &mut Tx<'_>) -> Result<bool, TxError> {
    let guard = doc! { "_id": to.id.as_str(), "rev": seen };
    let statement = doc! { "q": guard, "u": document(to)? };
    Ok(tx.write(doc! { "update": OPERATIONS, "updates": [statement] }).await? == 1)
}

/// Replaces the record of a step that has come to this, and writes its row. Returns whether it was of the revision that was seen.
async fn end(step: &BulkStep, done: &BulkDone, tx: &mut Tx<'_>) -> Result<bool, TxError> {
    let next = (step.next)(done);
    if !replace(&next, step.seen, tx).await? {
        return Ok(false);
    }
    if let Some(row) = (step.row)(&next) {
        tx.write_row(&row).await?;
    }
    Ok(true)
}

/// A record, the row of the act that changes it, and what is remembered of its call.
///
/// Idempotence: an id is new, and a change is guarded by the revision, which it replaces: a repeat after an unknown outcome finds
/// another one, and changes nothing.
struct Save<'a> {
    to: &'a Bulk,
    seen: Option<i64>,
    row: Option<&'a AuditRow>,
    by: Option<&'a BegunBy>,
}

impl Transaction for Save<'_> {
    type Done = bool;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<bool>, TxError> {
        match self.seen {
            Some(seen) if !replace(self.to, seen, tx).await? => return Ok(Verdict::Abort(false)),
            Some(_) => {}
            None => {
                if let Some(by) = self.by {
                    if by.was_there(answers::find(&by.call, tx).await?.as_ref()) {
                        return Ok(Verdict::Commit(false));
                    }
                    answers::keep(&by.call, &by.answer, tx).await?;
                }
                let by_id = doc! { "_id": self.to.id.as_str() };
                let all = tx.collection(OPERATIONS);
                let find = all.find_one(by_id.clone()).projection(doc! { "_id": 1 });
                if find.session(tx.session()).await?.is_some() {
                    return Ok(Verdict::Commit(false)); // it must be durable before it is shown
                }
                let statement = doc! { "q": by_id, "u": document(self.to)?, "upsert": true };
                tx.write(doc! { "update": OPERATIONS, "updates": [statement] }).await?;
            }
        }
        if let Some(row) = self.row {
            tx.write_row(row).await?;
        }
        Ok(Verdict::Commit(true))
    }
}

/// Whether the record is still of the revision that the step has seen: read before anything is written.
async fn is_current(step: &BulkStep, tx: &mut Tx<'_>) -> Result<bool, TxError> {
    let all = tx.collection(OPERATIONS);
    let guard = doc! { "_id": step.id.as_str(), "rev": step.seen };
    Ok(all.find_one(guard).projection(doc! { "_id": 1 }).session(tx.session()).await?.is_some())
}

/// Applies the changes of a step. They are planned outside of the transaction, and guarded by the `rev` of each job.
async fn change(
    mongo: &Mongo,
    step: &BulkStep,
    changes: &[crate::store::Change],
    rules: &Rules,
) -> Result<Option<BulkDone>> {
    let end = mongo.connection.end();
    for _ in 0..ATTEMPTS {
        let Planned { mut plans, mut denied } =
            mongo.connection.until(end, apply_once::planned(mongo, changes, rules)).await?;
        let mut targets: Vec<QueueName> =
            plans.iter().filter_map(|(_, plan)| plan.target().cloned()).collect();
        targets.retain(|queue| rules.max_jobs(queue).is_some());
        targets.sort();
        targets.dedup();
        let joined: Vec<_> = plans.iter().filter_map(|(_, plan)| plan.joined().cloned()).collect();
        let locks = mongo.connection.until(end, async {
            let queues = mongo.queue_mutex.lock(targets.iter().cloned()).await;
            let groups = mongo.group_mutex.lock(joined.iter().cloned()).await;
            Ok(((queues, groups), query::room(mongo, &targets, &[], rules).await?))
        });
        let (_locks, mut room) = locks.await?;
        let mut fitting = Vec::with_capacity(plans.len());
        for (n, plan) in plans.drain(..) {
            match plan.target().is_none_or(|queue| room.take(queue)) {
                true => fitting.push((n, plan)),
                false => denied.push((n, Denied::Refused(Refusal::Full))),
            }
        }
        fitting.iter().filter_map(|(_, plan)| plan.written()).for_each(|meta| mongo.indexes.note(meta));
        let deadlines: Vec<Timestamp> = fitting.iter().filter_map(|(_, plan)| plan.expires_at()).collect();
        let carry_out = CarryOut { plans: &mut fitting, room, rules };
        let work = Work { step, carry_out, denied: &denied, count: changes.len() };
        let done = transaction::until(mongo, end).run(work).await?;
        mongo.deadlines.note(deadlines);
        match done {
            Outcome::Done(done) => return Ok(Some(done)),
            Outcome::Overtaken => return Ok(None),
            Outcome::Stale => {}
        }
    }
    Err(StoreError::unavailable("the jobs were changed by others again and again"))
}

/// What an attempt of a step has come to.
enum Outcome {
    Done(BulkDone),
    /// Another server has the operation, or it was stopped.
    Overtaken,
    /// A job is not as it was read.
    Stale,
}

/// The changes of a step, and the record of its operation.
///
/// Idempotence: guarded by the revision of the record, which it replaces, so that of all attempts on all servers one happens.
struct Work<'a> {
    step: &'a BulkStep,
    carry_out: CarryOut<'a>,
    denied: &'a [(usize, Denied)],
    count: usize,
}

impl Transaction for Work<'_> {
    type Done = Outcome;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Outcome>, TxError> {
        if !is_current(self.step, tx).await? {
            return Ok(Verdict::Abort(Outcome::Overtaken));
        }
        let mut all: Vec<_> = (0..self.count).map(|_| Err(Denied::Refused(Refusal::Unknown))).collect();
        for (n, denied) in self.denied {
            all[*n] = Err(denied.clone());
        }
        if !self.carry_out.plans.is_empty() {
            match self.carry_out.attempt(tx).await? {
                Verdict::Commit(Written::Done(together)) => {
                    for (n, applied) in together.applied(self.carry_out.plans) {
                        all[n] = Ok(applied);
                    }
                }
                Verdict::Commit(_) | Verdict::Abort(_) => return Ok(Verdict::Abort(Outcome::Stale)),
            }
        }
        let done = BulkDone::Changed(all);
        if !end(self.step, &done, tx).await? {
            return Ok(Verdict::Abort(Outcome::Overtaken));
        }
        Ok(Verdict::Commit(Outcome::Done(done)))
    }
}

/// Pushes the jobs of a step.
async fn push_jobs(
    mongo: &Mongo,
    step: &BulkStep,
    jobs: &[NewJob],
    rules: &Rules,
) -> Result<Option<BulkDone>> {
    let end = mongo.connection.end();
    let mut limited: Vec<QueueName> = jobs.iter().map(|job| job.queue.clone()).collect();
    limited.retain(|queue| rules.max_jobs(queue).is_some());
    limited.sort();
    limited.dedup();
    let locks = mongo.connection.until(end, async {
        let queues = mongo.queue_mutex.lock(limited.iter().cloned()).await;
        let groups = mongo.group_mutex.lock(jobs.iter().filter_map(push::line)).await;
        Ok(((queues, groups), query::room(mongo, &limited, &[], rules).await?))
    });
    let (_locks, room) = locks.await?;
    Ok(transaction::until(mongo, end).run(Push { step, jobs: Some(jobs), room }).await?)
}

/// The pushes of a step, if it has any, and the record of its operation.
///
/// Idempotence: as that of [`Work`].
struct Push<'a> {
    step: &'a BulkStep,
    jobs: Option<&'a [NewJob]>,
    room: Room,
}

impl Transaction for Push<'_> {
    type Done = Option<BulkDone>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Self::Done>, TxError> {
        if !is_current(self.step, tx).await? {
            return Ok(Verdict::Abort(None));
        }
        let done = match self.jobs {
            None => BulkDone::Changed(Vec::new()),
            Some(jobs) => BulkDone::Pushed(self.push(jobs, tx).await?),
        };
        if !end(self.step, &done, tx).await? {
            return Ok(Verdict::Abort(None));
        }
        Ok(Verdict::Commit(Some(done)))
    }
}

impl Push<'_> {
    async fn push(&self, jobs: &[NewJob], tx: &mut Tx<'_>) -> Result<Vec<Pushed>, TxError> {
        let (mut room, mut lines) = (self.room.clone(), Lines::default());
        let jobs: Vec<&NewJob> = jobs.iter().collect();
        let mut resolved = push::resolve(&jobs, &mut room, &mut lines, tx).await?;
        let pushed = std::mem::take(&mut resolved.pushed);
        lines.write(tx).await?;
        push::write(resolved, tx).await?;
        Ok(pushed)
    }
}

/// Deletes operations that are over and past their time, and the oldest of those that are too many.
pub async fn prune(mongo: &Mongo, limit: usize) -> Result<u64> {
    if limit == 0 {
        return Ok(0);
    }
    let past = Timestamp::from_millis(mongo.now()?.millis().saturating_sub_unsigned(KEPT_MS));
    let all = mongo.collection(OPERATIONS).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let over = doc! { "finished_at": { "$type": "date" } };
    let surplus = all.find(over).sort(doc! { "finished_at": -1 }).skip(KEPT_MAX as u64).limit(limit);
    let old =
        all.find(doc! { "finished_at": { "$lte": date(past) } }).sort(doc! { "finished_at": 1 }).limit(limit);
    let mut gone = BTreeSet::new();
    for find in [surplus, old] {
        let cursor = find.projection(doc! { "_id": 1 }).await.map_err(fault)?;
        let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
        gone.extend(documents.iter().filter_map(|document| document.get_str("_id").ok().map(str::to_owned)));
    }
    let ids: Vec<&str> = gone.iter().map(String::as_str).collect();
    if ids.is_empty() {
        return Ok(0);
    }
    let statement = doc! { "q": { "_id": { "$in": ids } }, "limit": 0 };
    write(mongo.connection.database().await?, doc! { "delete": OPERATIONS, "deletes": [statement] }).await
}
