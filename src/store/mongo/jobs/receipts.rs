//! Receipts as documents, written in the transaction of the call, so that every server finds them. MongoDB deletes them
//! by a TTL index. The loss of a worker is kept as a `cancel`, like a forced one.

use std::collections::HashMap;

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};

use crate::job::receipt::{self, Receipt, WentTo};
use crate::job::state::Verb;
use crate::job::{Claim, JobId, Timestamp};
use crate::store::Result;
use crate::store::mongo::Mongo;
use crate::store::mongo::RECEIPTS;
use crate::store::mongo::client::{fault, parts};
use crate::store::mongo::jobs::document::{Row, date, serialized};
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{Tx, TxError};

fn key(id: &JobId, claim: &Claim) -> String {
    format!("{id}/{}", claim.as_str())
}

/// Writes receipts as part of a transaction.
pub async fn insert(receipts: &[Receipt], tx: &mut Tx<'_>) -> Result<(), TxError> {
    if receipts.is_empty() {
        return Ok(());
    }
    // One claim may lose a job more than once: that of a keyed pop is the same for each of its calls.
    let (lost, others): (Vec<_>, Vec<_>) = receipts.iter().partition(|receipt| receipt.verb == Verb::Cancel);
    let documents: Vec<Stored> =
        others.into_iter().map(|receipt| document(receipt, receipt.until())).collect::<Result<_>>()?;
    if !documents.is_empty() {
        tx.collection(RECEIPTS).insert_many(documents).session(tx.session()).await?;
    }
    let replace = |receipt: &Receipt| -> Result<Document> {
        let by_id = doc! { "_id": key(&receipt.id, &receipt.claim) };
        let stored = document(receipt, receipt.until())?;
        Ok(doc! { "q": by_id, "u": &*stored, "upsert": true })
    };
    for part in parts(lost.into_iter().map(replace).collect::<Result<_>>()?)? {
        tx.write(doc! { "update": RECEIPTS, "updates": part }).await?;
    }
    Ok(())
}

/// Returns the document of a receipt that is kept until then.
pub fn document(receipt: &Receipt, until: Timestamp) -> Result<Stored> {
    let mut document = doc! {
        "_id": key(&receipt.id, &receipt.claim),
        "verb": receipt::word(receipt.verb),
        "queue": receipt.queue.as_str(),
        "until": date(until),
    };
    if let Some(WentTo { queue, run_at, blocked }) = receipt.went_to() {
        document.extend(doc! { "to": queue.as_str(), "run_at": date(run_at), "blocked": blocked });
    }
    if !receipt.pushed.is_empty() {
        document.insert("pushed", serialized(&receipt.pushed)?);
    }
    document.extend(receipt.started_at.map(|at| ("started_at".to_owned(), date(at).into())));
    Ok(document.into())
}

/// Returns the receipt of a call with this claim, if there is one.
pub async fn find(mongo: &Mongo, id: &JobId, claim: &Claim) -> Result<Option<Receipt>> {
    let collection = mongo.collection(RECEIPTS).await?;
    let found = collection.find_one(doc! { "_id": key(id, claim) }).await.map_err(fault)?;
    found.map(|document| read(&document, id.clone(), claim.clone())).transpose()
}

/// The receipts of several calls, by their keys. One that cannot be read concerns its own call only.
#[derive(Default)]
pub struct Receipts(HashMap<String, Result<Receipt>>);

impl Receipts {
    /// Reads those that calls on these jobs with these claims have left, all of them at once.
    pub async fn of(mongo: &Mongo, calls: &[(&JobId, &Claim)]) -> Result<Self> {
        if calls.is_empty() {
            return Ok(Self::default());
        }
        let calls: HashMap<String, (&JobId, &Claim)> =
            calls.iter().map(|(id, claim)| (key(id, claim), (*id, *claim))).collect();
        let keys: Vec<&str> = calls.keys().map(String::as_str).collect();
        let at_once = u32::try_from(keys.len()).unwrap_or(u32::MAX).saturating_add(1);
        let collection = mongo.collection(RECEIPTS).await?;
        let cursor = collection.find(doc! { "_id": { "$in": keys } }).batch_size(at_once).await;
        let documents: Vec<Stored> = cursor.map_err(fault)?.try_collect().await.map_err(fault)?;
        let found = documents.into_iter().filter_map(|document| {
            let key = document.get_str("_id").ok()?.to_owned();
            let (id, claim) = *calls.get(&key)?;
            let receipt = read(&document, id.clone(), claim.clone());
            Some((key, receipt))
        });
        Ok(Self(found.collect()))
    }

    /// Returns the receipt of a call, if there is one.
    pub fn get(&self, id: &JobId, claim: &Claim) -> Result<Option<Receipt>> {
        let found = if self.0.is_empty() { None } else { self.0.get(&key(id, claim)) };
        found.cloned().transpose()
    }
}

/// Reads the receipt of a call with this claim.
pub fn read(document: &Document, id: JobId, claim: Claim) -> Result<Receipt> {
    let row = Row(document);
    let verb = document.get_str("verb").ok().and_then(receipt::verb).ok_or_else(|| row.fault("verb"))?;
    let went_to = match row.time("run_at")? {
        Some(run_at) => {
            let blocked = document.get_bool("blocked").unwrap_or(false);
            Some(WentTo { queue: row.text("to")?, run_at, blocked })
        }
        None => None,
    };
    Ok(Receipt {
        id,
        claim,
        verb,
        queue: row.text("queue")?,
        outcome: Receipt::outcome_of(verb, went_to),
        started_at: row.time("started_at")?,
        pushed: row.part("pushed")?.unwrap_or_default(),
        at: Receipt::made_at(row.time("until")?.unwrap_or_default()),
    })
}
