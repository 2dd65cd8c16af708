//! Receipts: what a call did, written in the transaction that did it, so that any server can answer its
//! repeat. MongoDB deletes them ten minutes later.

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};

use super::client::fault;
use super::document::{Row, date};
use super::{Mongo, RECEIPTS};
use crate::job::state::Verb;
use crate::job::transition::Outcome;
use crate::job::{Claim, JobId, QueueName, Timestamp};
use crate::store::{Applied, Result, Store as _};

/// How long a receipt is kept, in milliseconds.
const KEPT_MS: u64 = 600_000;

/// What was done to a job by the holder of a claim (or to the holder, by a forced cancel).
#[derive(Debug, Clone)]
pub struct Receipt {
    pub id: JobId,
    pub claim: Claim,
    pub verb: Verb,
    pub queue: QueueName,
    pub outcome: Outcome,
    pub started_at: Option<Timestamp>,
}

impl Receipt {
    /// The answer that the first call had.
    pub fn applied(self) -> Applied {
        Applied { outcome: self.outcome, queue: self.queue, started_at: self.started_at, repeated: true }
    }
}

fn key(id: &JobId, claim: &Claim) -> String {
    format!("{id}/{}", claim.as_str())
}

/// Writes receipts as part of a transaction.
pub async fn insert(mongo: &Mongo, receipts: &[Receipt], session: &mut ClientSession) -> Result<()> {
    let until = date(mongo.now()?.plus_ms(KEPT_MS));
    let documents: Vec<Document> = receipts
        .iter()
        .map(|receipt| {
            let mut document = doc! {
                "_id": key(&receipt.id, &receipt.claim),
                "verb": match receipt.verb { Verb::Move => "move", _ => "cancel" },
                "queue": receipt.queue.as_str(),
                "until": until,
            };
            if let Outcome::Returned { queue, run_at } = &receipt.outcome {
                document.extend(doc! { "to": queue.as_str(), "run_at": date(*run_at) });
            }
            document.extend(receipt.started_at.map(|at| ("started_at".to_owned(), date(at).into())));
            document
        })
        .collect();
    let collection = mongo.collection(RECEIPTS).await?;
    collection.insert_many(documents).session(session).await.map_err(fault)?;
    Ok(())
}

/// The receipt of a call with this token, if there is one.
pub async fn find(mongo: &Mongo, id: &JobId, claim: &Claim) -> Result<Option<Receipt>> {
    let collection = mongo.collection(RECEIPTS).await?;
    let found = collection.find_one(doc! { "_id": key(id, claim) }).await.map_err(fault)?;
    let Some(document) = found else { return Ok(None) };
    let row = Row(&document);
    let outcome = match row.time("run_at")? {
        Some(run_at) => Outcome::Returned { queue: row.text("to")?, run_at },
        None => Outcome::Removed,
    };
    let verb =
        if document.get_str("verb").is_ok_and(|verb| verb == "move") { Verb::Move } else { Verb::Cancel };
    let (queue, started_at) = (row.text("queue")?, row.time("started_at")?);
    Ok(Some(Receipt { id: id.clone(), claim: claim.clone(), verb, queue, outcome, started_at }))
}
