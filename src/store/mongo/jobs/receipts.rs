//! Receipts: what a call did, written in the transaction that did it, so that any server can answer its
//! repeat. MongoDB deletes them ten minutes later.

use mongodb::bson::{Document, doc};

use crate::job::state::Verb;
use crate::job::transition::Outcome;
use crate::job::{Child, Claim, JobId, QueueName, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::RECEIPTS;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, date, serialized};
use crate::store::mongo::transaction::{Tx, TxError};
use crate::store::{Applied, Result, Store as _};

/// How long a receipt is kept, in milliseconds.
const KEPT_MS: u64 = 600_000;

/// What was done to a job by the holder of a claim (or to the holder, by a forced cancel or the loss of its
/// worker: both are kept as `cancel`).
#[derive(Debug, Clone)]
pub struct Receipt {
    pub id: JobId,
    pub claim: Claim,
    pub verb: Verb,
    pub queue: QueueName,
    pub outcome: Outcome,
    pub started_at: Option<Timestamp>,
    /// The jobs that it pushed.
    pub pushed: Vec<Child>,
}

impl Receipt {
    /// The answer that the first call had.
    pub fn applied(self) -> Applied {
        let Self { outcome, queue, started_at, pushed, .. } = self;
        // A callback was told of when it was pushed.
        let (callback, unblocked, released) = (None, Vec::new(), Vec::new());
        Applied { outcome, queue, started_at, pushed, callback, unblocked, released, repeated: true }
    }
}

fn key(id: &JobId, claim: &Claim) -> String {
    format!("{id}/{}", claim.as_str())
}

/// Writes receipts as part of a transaction.
pub async fn insert(receipts: &[Receipt], tx: &mut Tx<'_>) -> Result<(), TxError> {
    if receipts.is_empty() {
        return Ok(());
    }
    let until = date(tx.mongo.now()?.plus_ms(KEPT_MS));
    let documents: Vec<Document> = receipts
        .iter()
        .map(|receipt| {
            let mut document = doc! {
                "_id": key(&receipt.id, &receipt.claim),
                "verb": word(receipt.verb),
                "queue": receipt.queue.as_str(),
                "until": until,
            };
            if let Outcome::Returned { queue, run_at, blocked } = &receipt.outcome {
                document.extend(doc! { "to": queue.as_str(), "run_at": date(*run_at), "blocked": *blocked });
            }
            if !receipt.pushed.is_empty() {
                document.insert("pushed", serialized(&receipt.pushed));
            }
            document.extend(receipt.started_at.map(|at| ("started_at".to_owned(), date(at).into())));
            document
        })
        .collect();
    tx.collection(RECEIPTS).insert_many(documents).session(tx.session()).await?;
    Ok(())
}

/// The receipt of a call with this token, if there is one.
pub async fn find(mongo: &Mongo, id: &JobId, claim: &Claim) -> Result<Option<Receipt>> {
    let collection = mongo.collection(RECEIPTS).await?;
    let found = collection.find_one(doc! { "_id": key(id, claim) }).await.map_err(fault)?;
    let Some(document) = found else { return Ok(None) };
    let row = Row(&document);
    let found = document.get_str("verb").ok();
    let verb = VERBS.into_iter().find(|verb| found == Some(word(*verb))).ok_or_else(|| row.fault("verb"))?;
    let outcome = match row.time("run_at")? {
        Some(run_at) => {
            let blocked = document.get_bool("blocked").unwrap_or(false);
            Outcome::Returned { queue: row.text("to")?, run_at, blocked }
        }
        None if verb == Verb::Commit => Outcome::Done,
        None => Outcome::Removed,
    };
    Ok(Some(Receipt {
        id: id.clone(),
        claim: claim.clone(),
        verb,
        queue: row.text("queue")?,
        outcome,
        started_at: row.time("started_at")?,
        pushed: row.part("pushed")?.unwrap_or_default(),
    }))
}

/// What leaves receipts.
const VERBS: [Verb; 3] = [Verb::Commit, Verb::Move, Verb::Cancel];

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Commit => "commit",
        Verb::Move => "move",
        _ => "cancel",
    }
}
