//! What becomes of jobs that cannot be read: each is dead where it would be in the way, and can be mended. Its batch and its group follow.

use std::collections::HashMap;

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};
use mongodb::options::Hint;
use tokio::time::{Instant, timeout_at};

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
    Row, lacking, mending as mending_of, salvaged, salvaged_contents, serialized, to_meta,
};
use crate::store::mongo::jobs::groups::{self, Lines};
use crate::store::mongo::jobs::push;
use crate::store::mongo::jobs::rewrite;
use crate::store::mongo::jobs::transitions;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::{Applied, CalledBack, Denied, Result, Store as _, StoreError};

/// Makes a job that cannot be read one that can be. Returns nothing where it has no payload then, where it is not known in which
/// queue it is, or where what is written would be as [hidden](Stored::hides) as it was.
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
    let update = mending_of(&job, now)?;
    if update.get_document("$set").is_ok_and(|set| set.keys().any(|name| document.hides(name))) {
        return Ok(None);
    }
    let update = RawDocumentBuf::try_from(&update).map_err(StoreError::internal)?;
    let next = Next::Write { meta: Box::new(job.meta.clone()), payload: None, result: None, headers: None };
    let end = mongo.connection.end();
    for _ in 0..MEND_ATTEMPTS {
        let carry_out = CarryOut {
            statements: vec![rawdoc! { "q": document.as_read()?, "u": update.clone() }],
            vacated: group::vacated(&found, &next),
            finish: batch::buried(&found, now),
            moved: (&found.queue, found.state, job.meta.state),
            rules,
        };
        match transaction::until(mongo, end).run(carry_out).await? {
            Carried::Done(Done { callback, unblocked }) => {
                return Ok(Some(Ok(Applied { callback, unblocked, ..Applied::mended(&job.meta, now) })));
            }
            Carried::Behind(spoiled) => bury_first(mongo, &spoiled, rules).await?,
            Carried::Stale => break,
        }
    }
    Err(StoreError::unavailable("the job was changed while it was mended"))
}

/// Returns how such a job ends for its batch where it is made dead.
pub fn finish(document: &Document, now: Timestamp) -> Option<Finish> {
    batch::buried(&salvaged(document).ok()?, now)
}

/// Makes these jobs dead, so that queries for jobs do not find them. An operator finds them among the dead. Those that are
/// the first in the lines of their groups keep their places. Returns how many it has made dead: fewer where others were quicker.
///
/// # Errors
///
/// Among others that it was not over by the end, and may still happen: each write is guarded by what was read.
pub async fn bury(mongo: &Mongo, spoiled: &[&Stored], end: Instant, rules: &Rules) -> Result<u64> {
    let now = mongo.now()?;
    let (counted, others): (Vec<&Stored>, Vec<&Stored>) =
        spoiled.iter().partition(|document| finish(document, now).is_some());
    let mut outcome = if others.is_empty() { Ok(0) } else { bury_uncounted(mongo, &others, end).await };
    for document in counted {
        if Instant::now() >= end {
            return outcome.and(Err(late()));
        }
        let buried = bury_counted(mongo, document, end, rules).await;
        outcome = outcome.and_then(|sum| buried.map(|buried| sum + u64::from(buried)));
    }
    outcome
}

/// The same for those that are in no batch.
pub async fn bury_uncounted(mongo: &Mongo, spoiled: &[&Stored], end: Instant) -> Result<u64> {
    timeout_at(end, write_dead(mongo, spoiled)).await.map_err(|_| late())?
}

fn late() -> StoreError {
    StoreError::unavailable("jobs that cannot be read were not made dead in time")
}

async fn write_dead(mongo: &Mongo, spoiled: &[&Stored]) -> Result<u64> {
    log(spoiled);
    let mut sum = 0;
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
            sum += buried;
            queue.iter().for_each(|queue| mongo.counters.moved(queue, bury.from, bury.to, buried));
            sent.answered();
        }
    }
    Ok(sum)
}

/// The same for one that is in a batch, which counts it as dead. Returns whether it is made dead.
async fn bury_counted(mongo: &Mongo, document: &Stored, end: Instant, rules: &Rules) -> Result<bool> {
    let (found, now) = (salvaged(document)?, mongo.now()?);
    let Some(bury) = BURY.into_iter().find(|bury| bury.from == found.state) else { return Ok(false) };
    log(&[document]);
    let carry_out = CarryOut {
        statements: transitions::bury(bury, document, failure(document, now)?)?,
        vacated: None, // the place of a job that is behind others: no job has waited for this one alone
        finish: batch::buried(&found, now),
        moved: (&found.queue, bury.from, bury.to),
        rules,
    };
    let carried = transaction::until(mongo, end).run(carry_out).await?;
    // Where it is not as it was read, another call has met it.
    Ok(matches!(carried, Carried::Done(_)))
}

/// Returns the jobs whose turn comes in these lines. Where one of them cannot be read it is made dead, so that it leaves its place, and
/// the lines are to be read again. This comes first in a transaction: it must hold nothing yet that the burial needs.
pub async fn advance(
    lines: &mut Lines,
    rules: &Rules,
    tx: &mut Tx<'_>,
) -> Result<Option<Vec<groups::Next>>, TxError> {
    match lines.advance(tx).await? {
        Ok(next) => Ok(Some(next)),
        Err(spoiled) => {
            bury_first(tx.mongo, &spoiled, rules).await?;
            Ok(None)
        }
    }
}

/// How often a mend is tried where jobs behind it in its line cannot be read either.
const MEND_ATTEMPTS: usize = 5;
/// How many jobs of a line are read once one of them cannot be read.
const SCAN_LIMIT: i64 = 5;

/// Makes the first jobs of these lines dead, from these on, up to the first one that can be read by now.
async fn bury_first(mongo: &Mongo, spoiled: &[Stored], rules: &Rules) -> Result<()> {
    let jobs = mongo.collection(JOBS).await?;
    for first in spoiled {
        let turn = Row(first).text::<String>("turn")?;
        let line = turn.rsplit_once('/').map_or(&*turn, |(line, _)| line);
        let onward = doc! { "turn": { "$gte": &turn, "$lt": format!("{line}/g") } }; // turns are hexadecimal
        let find = jobs.find(onward).sort(doc! { "turn": 1 }).limit(SCAN_LIMIT);
        let find = find.hint(Hint::Name("turn".into())).await.map_err(fault)?;
        let found: Vec<Stored> = find.try_collect().await.map_err(fault)?;
        let unreadable: Vec<&Stored> =
            found.iter().take_while(|document| to_meta(document).is_err()).collect();
        for document in &unreadable {
            // Whatever it waits for, and whatever its state is: it stands behind others, which must not wait for it.
            let leaves = rawdoc! { "q": document.as_read()?, "u": { "$unset": { "turn": "" } } };
            let database = mongo.connection.database().await?;
            write_raw(database, rawdoc! { "update": JOBS, "updates": [leaves] }).await?;
        }
        if !unreadable.is_empty() {
            bury(mongo, &unreadable, mongo.connection.end(), rules).await?;
        }
    }
    Ok(())
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

/// How it ended.
enum Carried {
    Done(Done),
    /// The job is not as it was read: another call has met it.
    Stale,
    /// These come next in the line, and cannot be read either. Nothing was stored.
    Behind(Vec<Stored>),
}

impl Transaction for CarryOut<'_> {
    type Done = Carried;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Carried>, TxError> {
        let mut lines = Lines::default();
        self.vacated.iter().for_each(|vacated| lines.vacate(vacated));
        let mut next = match lines.advance(tx).await? {
            Ok(next) => next,
            Err(spoiled) => return Ok(Verdict::Abort(Carried::Behind(spoiled))),
        };
        let counted = batches::count(self.finish.iter(), tx).await?;
        let updates: RawArrayBuf = self.statements.iter().cloned().collect();
        if tx.write_raw(rawdoc! { "update": JOBS, "updates": updates }).await? == 0 {
            return Ok(Verdict::Abort(Carried::Stale));
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
        Ok(Verdict::Commit(Carried::Done(Done {
            callback: callbacks.first().map(|(_, callback)| CalledBack::from(callback)),
            unblocked: next.iter().map(groups::Next::arrival).collect(),
        })))
    }
}

/// Returns what is noted with a job that could be read but for a field that its state needs: once it is dead, it can be read.
fn failure(document: &Document, now: Timestamp) -> Result<Option<Bson>> {
    let Ok(Some(field)) = lacking(document) else { return Ok(None) };
    let state = document.get_str("state").unwrap_or_default();
    let failure = Failure::lacking(field, state, Row(document).number("attempts")?, now);
    serialized(&failure).map(Some)
}
