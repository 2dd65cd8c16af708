//! Changes of semaphores, each with its row of the audit.

use futures::TryStreamExt as _;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;

use crate::job::{BatchId, QueueName, SemaphoreName, State};
use crate::store::audit::Seen;
use crate::store::mongo::BATCHES;
use crate::store::mongo::JOBS;
use crate::store::mongo::SEMAPHORES;
use crate::store::mongo::jobs::document::{Row, readable};
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{Transaction, Tx, TxError, Verdict};
use crate::store::semaphores::needed_for_callback;
use crate::store::{NEEDED_MAX, NEEDED_NAMED, NEEDING, Needed, Removal, Result};

/// A capacity that cannot be read is none: the semaphore is shown with 0, has no room, and a `PUT` mends it.
pub fn capacity(document: &Document) -> Result<(SemaphoreName, u64)> {
    let row = Row(document);
    let capacity = row.number("capacity").unwrap_or_else(|error| {
        tracing::error!(error = crate::store::chain(&error), "a semaphore has no valid capacity");
        0
    });
    Ok((row.text("_id")?, capacity))
}

/// Returns a stored capacity as the audit shows it.
fn shown(document: &Stored) -> Option<u64> {
    capacity(document).ok().map(|(_, capacity)| capacity)
}

/// A semaphore, and the row of the act.
///
/// Idempotence: a repeat writes the same again.
pub struct Save<'a> {
    pub name: &'a SemaphoreName,
    pub capacity: i64,
}

impl Transaction for Save<'_> {
    type Done = ();

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<()>, TxError> {
        let all = tx.collection(SEMAPHORES);
        let found = all.find_one(doc! { "_id": self.name.as_str() }).session(tx.session()).await?;
        tx.sees(Seen::of_semaphore(found.as_ref().and_then(shown), u64::try_from(self.capacity).ok()));
        let update = doc! { "$set": { "capacity": self.capacity, "rev": rand::random::<i64>() } };
        let statement = doc! { "q": { "_id": self.name.as_str() }, "u": update, "upsert": true };
        tx.write(doc! { "update": SEMAPHORES, "updates": [statement] }).await?;
        tx.record().await?;
        Ok(Verdict::Commit(()))
    }
}

/// A semaphore is removed that no unfinished job needs, nor the callback of a batch.
///
/// Idempotence: a repeat after an unknown outcome finds the semaphore as it was, or gone.
pub struct Remove<'a>(pub &'a SemaphoreName);

impl Transaction for Remove<'_> {
    type Done = Removal;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Removal>, TxError> {
        let (name, all, jobs) = (self.0.as_str(), tx.collection(SEMAPHORES), tx.collection(JOBS));
        let removed = all.find_one_and_delete(doc! { "_id": name }).session(tx.session()).await?;
        let Some(removed) = removed else { return Ok(Verdict::Abort(Removal::Unknown)) };
        tx.sees(Seen::of_semaphore(shown(&removed), None));
        let needed = doc! { "semaphores": name, "state": { "$in": NEEDING.map(State::as_str).to_vec() } };
        let needed = jobs.find(needed).projection(doc! { "queue": 1, "state": 1 });
        let needed = needed.hint(Hint::Name("needs".to_owned())).limit(NEEDED_MAX as i64);
        let mut needed = needed.session(tx.session()).await?;
        let needed: Vec<Stored> = needed.stream(tx.session()).try_collect().await?;
        if !needed.is_empty() {
            let who = |document: &Document| {
                let row = Row(document);
                Ok((row.text("_id")?, row.text("queue")?, row.state()?))
            };
            let some = readable(&needed, who).into_iter().take(NEEDED_NAMED).collect();
            let needed = Needed { jobs: needed.len() as u64, some, callbacks: Vec::new() };
            return Ok(Verdict::Abort(Removal::InUse(needed)));
        }
        let callbacks = callbacks(self.0, tx).await?;
        if !callbacks.is_empty() {
            return Ok(Verdict::Abort(Removal::InUse(Needed { callbacks, ..Needed::default() })));
        }
        tx.record().await?;
        Ok(Verdict::Commit(Removal::Done))
    }
}

/// Returns batches that are not over, and whose callbacks need the semaphore. They are texts.
async fn callbacks(name: &SemaphoreName, tx: &mut Tx<'_>) -> Result<Vec<(BatchId, QueueName)>, TxError> {
    let text = doc! { "$regex": format!("\\Q\"{name}\"\\E") };
    let open = doc! { "finished_at": { "$exists": false }, "on_finished": text };
    let batches = tx.collection(BATCHES);
    let find = batches.find(open).projection(doc! { "on_finished": 1 });
    let mut found = find.session(tx.session()).await?;
    let mut callbacks = Vec::new();
    while callbacks.len() < NEEDED_NAMED
        && let Some(batch) = found.next(tx.session()).await.transpose()?
    {
        let queue = batch.get_str("on_finished").ok().and_then(|text| needed_for_callback(text, name));
        let id = readable(std::slice::from_ref(&batch), |batch| Row(batch).text("_id")).pop();
        callbacks.extend(id.zip(queue));
    }
    Ok(callbacks)
}
