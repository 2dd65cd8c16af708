//! What becomes of jobs that cannot be read: each is dead where it would be in the way, and can be mended. Its batch and its group follow.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};

use crate::job::batch::{self, Finish};
use crate::job::group::{self, Vacated};
use crate::job::record::Failure;
use crate::job::transition::delivery::BURY;
use crate::job::transition::{Edit, Next, Refusal};
use crate::job::{QueueName, Reach, Rules, State, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::batches;
use crate::store::mongo::client::{fault, write_raw};
use crate::store::mongo::jobs::document::{
    Row, lacking, mending as mending_of, salvaged, salvaged_contents, serialized,
};
use crate::store::mongo::jobs::groups::{self, Lines};
use crate::store::mongo::jobs::push;
use crate::store::mongo::jobs::rewrite;
use crate::store::mongo::jobs::transitions;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::{Applied, CalledBack, Denied, Result, Store as _, StoreError};

/// Makes a job that cannot be read one that can be. Returns nothing where it has no payload then, or where it is not known in which
/// queue it is.
pub async fn mend(
    mongo: &Mongo,
    document: &Stored,
    mending: Edit,
    within: Option<Reach>,
    rules: &Rules,
) -> Result<Option<Result<Applied, Denied>>> {
    let Ok(found) = salvaged(document) else { return Ok(None) };
    if within.is_some_and(|within| !within.has(&found.queue)) {
        return Ok(Some(Err(Denied::Refused(Refusal::Unknown))));
    }
    let jobs = mongo.collection(JOBS).await?;
    // What was read before lacks the contents.
    let Some(document) = jobs.find_one(doc! { "_id": found.id.as_str() }).await.map_err(fault)? else {
        return Ok(Some(Err(Denied::Refused(Refusal::Unknown))));
    };
    let Ok(found) = salvaged(&document) else { return Ok(None) };
    let now = mongo.now()?;
    let Some(job) = mending.mended(&found, salvaged_contents(&document), now) else { return Ok(None) };
    let update = RawDocumentBuf::try_from(&mending_of(&job, now)?).map_err(StoreError::internal)?;
    let next = Next::Write { meta: Box::new(job.meta.clone()), payload: None, result: None, headers: None };
    let carry_out = CarryOut {
        statements: vec![rawdoc! { "q": document.as_read()?, "u": update }],
        vacated: group::vacated(&found, &next),
        finish: batch::buried(&found, now),
        moved: (&found.queue, found.state, job.meta.state),
        rules,
    };
    let done = transaction::until(mongo, mongo.connection.end()).run(carry_out).await?;
    let changed = || StoreError::unavailable("the job was changed while it was mended");
    let Done { callback, unblocked } = done.ok_or_else(changed)?;
    Ok(Some(Ok(Applied { callback, unblocked, ..Applied::mended(&job.meta, now) })))
}

/// Returns how such a job ends for its batch where it is made dead.
pub fn finish(document: &Document, now: Timestamp) -> Option<Finish> {
    batch::buried(&salvaged(document).ok()?, now)
}

/// Makes these jobs dead, so that they are not found where jobs are looked for. An operator finds them among the dead. Those that are
/// the first in the lines of their groups keep their places.
pub async fn bury(mongo: &Mongo, spoiled: &[&Stored], rules: &Rules) -> Result<()> {
    let now = mongo.now()?;
    let (counted, others): (Vec<&Stored>, Vec<&Stored>) =
        spoiled.iter().partition(|document| finish(document, now).is_some());
    let mut outcome = if others.is_empty() { Ok(()) } else { bury_uncounted(mongo, &others).await };
    for document in counted {
        outcome = outcome.and(bury_counted(mongo, document, rules).await);
    }
    outcome
}

/// The same for those that are in no batch.
pub async fn bury_uncounted(mongo: &Mongo, spoiled: &[&Stored]) -> Result<()> {
    log(spoiled);
    let database = mongo.connection.database().await?;
    for bury in BURY {
        let mut by_queue: HashMap<Option<QueueName>, Vec<RawDocumentBuf>> = HashMap::new();
        for document in spoiled {
            // MongoDB may know a state that cannot be read here, and compares it.
            if document.get_str("state").map_or(true, |state| state == bury.from.as_str()) {
                let queue = Row(document).text("queue").ok();
                let failure = failure(document, mongo.now()?)?;
                by_queue.entry(queue).or_default().extend(transitions::bury(bury, document, failure)?);
            }
        }
        for (queue, statements) in by_queue {
            let sent = mongo.counters.sending(&queue);
            let updates: RawArrayBuf = statements.into_iter().collect();
            let update = rawdoc! { "update": JOBS, "updates": updates, "ordered": false };
            let buried = write_raw(database, update).await?;
            queue.iter().for_each(|queue| mongo.counters.moved(queue, bury.from, bury.to, buried));
            sent.answered();
        }
    }
    Ok(())
}

/// The same for one that is in a batch, which counts it as dead.
async fn bury_counted(mongo: &Mongo, document: &Stored, rules: &Rules) -> Result<()> {
    let (found, now) = (salvaged(document)?, mongo.now()?);
    let Some(bury) = BURY.into_iter().find(|bury| bury.from == found.state) else { return Ok(()) };
    log(&[document]);
    let carry_out = CarryOut {
        statements: transitions::bury(bury, document, failure(document, now)?)?,
        vacated: None, // the place of a job that is behind others: no job has waited for this one alone
        finish: batch::buried(&found, now),
        moved: (&found.queue, bury.from, bury.to),
        rules,
    };
    // Where it is not as it was read, another call has met it.
    transaction::until(mongo, mongo.connection.end()).run(carry_out).await.map(drop).map_err(StoreError::from)
}

fn log(spoiled: &[&Stored]) {
    let ids: Vec<&Bson> = spoiled.iter().filter_map(|document| document.get("_id")).collect();
    tracing::error!(?ids, "jobs that cannot be read are made dead");
}

/// A job that cannot be read is changed, together with its batch and the line that it leaves.
///
/// Idempotence: the statements change the job only as it was read, so that it is counted once.
struct CarryOut<'a> {
    statements: Vec<RawDocumentBuf>,
    vacated: Option<Vacated>,
    finish: Option<Finish>,
    moved: (&'a QueueName, State, State),
    rules: &'a Rules,
}

/// What was stored beside the job.
#[derive(Default)]
struct Done {
    callback: Option<CalledBack>,
    unblocked: Vec<(QueueName, Timestamp)>,
}

impl Transaction for CarryOut<'_> {
    type Done = Option<Done>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Option<Done>>, TxError> {
        let mut lines = Lines::default();
        self.vacated.iter().for_each(|vacated| lines.vacate(vacated));
        let mut next = lines.advance(tx).await?;
        let counted = batches::count(self.finish.iter(), tx).await?;
        let updates: RawArrayBuf = self.statements.iter().cloned().collect();
        if tx.write_raw(rawdoc! { "update": JOBS, "updates": updates }).await? == 0 {
            return Ok(Verdict::Abort(None));
        }
        let unblocking = groups::unblocking(&mut next);
        if rewrite::write(unblocking, Vec::new(), tx).await? != next.len() as u64 {
            return Err(TxError::Conflict);
        }
        let callbacks = batches::conclude(counted, self.rules, tx).await?;
        lines.load(callbacks.iter().filter_map(|(_, job)| push::line(job)), tx).await?;
        let (mut resolved, now) = (push::Resolved::default(), tx.mongo.now()?);
        for (_, callback) in &callbacks {
            resolved.add(callback, &mut lines, now)?;
        }
        lines.write(tx).await?;
        push::write(resolved, tx).await?;
        let (queue, from, to) = self.moved;
        tx.changes.moved(queue, from, to, 1);
        for next in &next {
            tx.changes.moved(&next.line.queue, State::Blocked, State::Ready, 1);
            tx.becomes_ready(&next.line.queue, next.position);
        }
        Ok(Verdict::Commit(Some(Done {
            callback: callbacks.first().map(|(_, callback)| CalledBack::from(callback)),
            unblocked: next.iter().map(groups::Next::arrival).collect(),
        })))
    }
}

/// Returns what is noted with a job that could be read but for a field that its state needs: once it is dead, it can be read.
fn failure(document: &Document, now: Timestamp) -> Result<Option<Bson>> {
    let Ok(Some(field)) = lacking(document) else { return Ok(None) };
    let failure = Failure {
        at: now,
        attempt: Row(document).number("attempts")?,
        worker: None,
        message: format!(
            "the stored job had no {field}, which it needs where it is {}",
            document.get_str("state").unwrap_or_default()
        ),
    };
    serialized(&failure).map(Some)
}
