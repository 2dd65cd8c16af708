//! Applying operations to jobs, and the receipts that answer their repeats.

use rusqlite::{Connection, params};

use crate::job::state::Verb;
use crate::job::transition::{Next, Operation, Outcome, Refusal, Step, Surroundings, step};
use crate::job::{Claim, JobId, Meta, QueueName, Rules, Timestamp, batch, group, semaphore};
use crate::store::sqlite::batches;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::children;
use crate::store::sqlite::jobs::children::Committed;
use crate::store::sqlite::jobs::groups;
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::jobs::row;
use crate::store::sqlite::tx::Tx;
use crate::store::{Applied, Change, Denied};

/// How long the outcome of a move or of such a commit can be asked for again, in milliseconds.
const RECEIPT_MS: u64 = 600_000;

/// Applies the changes in order, each for itself.
pub fn apply(
    tx: &Tx<'_>,
    changes: &[Change],
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<Result<Applied, Denied>>, Fault> {
    let mut applied = Vec::with_capacity(changes.len());
    for change in changes {
        applied.push(match apply_one(tx, change, rules, now) {
            Ok(answer) => answer,
            // Met while reading, before anything was written: no reason to undo the others.
            Err(fault @ Fault::Stored { .. }) => Err(Denied::Store(fault.into())),
            Err(fault) => return Err(fault),
        });
    }
    Ok(applied)
}

fn apply_one(
    tx: &Tx<'_>,
    change: &Change,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Applied, Denied>, Fault> {
    let Change { id, operation } = change;
    let refused = |refusal| Err(Denied::Refused(refusal));
    let Some(found) = row::meta_of(tx, id)? else {
        return Ok(match operation.claim() {
            Some(claim) => receipt(tx, id, claim, operation.verb())?
                .map_or_else(|| refused(Refusal::Lost { gone: true }), Ok),
            None => refused(Refusal::Unknown),
        });
    };
    let meta = &found.job;
    let around = Surroundings { now, rules, chance: rand::random() };
    let mut done = match (step(meta, operation, around), operation.claim()) {
        (Ok(done), _) => done,
        (Err(lost @ Refusal::Lost { .. }), Some(claim)) => {
            return Ok(receipt(tx, id, claim, operation.verb())?.map_or_else(|| refused(lost), Ok));
        }
        (Err(refusal), _) => return Ok(refused(refusal)),
    };
    if done.next == Next::Keep {
        return kept(tx, operation, meta, done.outcome).map(Ok);
    }
    if let (Operation::Move { queue, .. }, Next::Write { .. }) = (operation, &done.next)
        && *queue != meta.queue
        && push::room(tx, queue, 0, rules)? == Some(0)
    {
        return Ok(refused(Refusal::Full));
    }
    let pushes = operation.pushes();
    let children =
        match children::check(tx, pushes, Some(Committed { before: meta, next: &done.next }), rules, now)? {
            Ok(children) => children,
            Err(push) => return Ok(Err(Denied::PushRefused(push))),
        };
    let unblocked = write(tx, &found, &mut done, now)?;
    let pushed = children::store(tx, pushes, children, now)?;
    let callback = match batch::finish(meta, &done, operation.result(), now) {
        Some(finish) => batches::count(tx, &finish, rules, now)?,
        None => None,
    };
    let applied = Applied {
        outcome: done.outcome,
        queue: meta.queue.clone(),
        started_at: meta.started_at,
        pushed,
        callback,
        unblocked,
        released: semaphore::released(meta, &done.next),
        repeated: false,
    };
    if let (Some(claim), true) = (operation.claim(), operation.leaves_receipt(meta, &applied.outcome)) {
        write_receipt(tx, meta, claim, operation.verb(), &applied, now)?;
    }
    Ok(Ok(applied))
}

/// Writes what is to become of the job, in the lines of groups as well; answers whose turn has come with that.
fn write(
    tx: &Tx<'_>,
    found: &row::Found<Meta>,
    step: &mut Step,
    now: Timestamp,
) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let vacated = group::vacated(&found.job, &step.next);
    groups::join(tx, step, vacated.as_ref())?;
    match &step.next {
        Next::Keep => {}
        Next::Write { meta, payload, result } => {
            row::update(tx, found, meta, payload.as_ref(), result.as_ref(), now)?;
        }
        Next::Delete => row::delete(tx, found)?,
    }
    groups::advance(tx, vacated, now)
}

/// The answer where there is nothing to write for what is allowed: it had happened before. A receipt tells more of
/// that than history does.
fn kept(tx: &Tx<'_>, operation: &Operation, meta: &Meta, outcome: Outcome) -> Result<Applied, Fault> {
    let earlier = match operation.claim() {
        Some(claim) => receipt(tx, &meta.id, claim, operation.verb())?,
        None => None,
    };
    let (queue, started_at) = (meta.queue.clone(), meta.started_at);
    let (pushed, callback) = (Vec::new(), None);
    let (unblocked, released) = (Vec::new(), Vec::new());
    let kept = Applied { outcome, queue, started_at, pushed, callback, unblocked, released, repeated: true };
    Ok(earlier.unwrap_or(kept))
}

/// The words by which receipts tell verbs apart.
fn word(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Move => Some("move"),
        Verb::Commit => Some("commit"),
        _ => None, // no other verb writes receipts
    }
}

fn write_receipt(
    db: &Connection,
    before: &Meta,
    claim: &Claim,
    verb: Verb,
    applied: &Applied,
    now: Timestamp,
) -> Result<(), Fault> {
    let (returned_to, run_at, is_blocked) = match &applied.outcome {
        Outcome::Returned { queue, run_at, blocked } => {
            (Some(queue.as_str()), Some(run_at.millis()), *blocked)
        }
        _ => (None, None, false),
    };
    db.prepare_cached(
        "INSERT OR REPLACE INTO receipts (job, claim, verb, queue, started_at, returned_to, run_at, until, \
         pushed, blocked) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        before.id.as_str(),
        claim.as_str(),
        word(verb),
        before.queue.as_str(),
        before.started_at.map(Timestamp::millis),
        returned_to,
        run_at,
        now.plus_ms(RECEIPT_MS).millis(),
        row::to_json(Some(&applied.pushed).filter(|pushed| !pushed.is_empty()))?,
        is_blocked,
    ])?;
    Ok(())
}

/// What an earlier call of this verb with this claim has answered, if a receipt tells.
fn receipt(db: &Connection, id: &JobId, claim: &Claim, verb: Verb) -> Result<Option<Applied>, Fault> {
    let Some(word) = word(verb) else {
        return Ok(None);
    };
    let mut by_claim = db.prepare_cached(
        "SELECT queue, started_at, returned_to, run_at, pushed, blocked FROM receipts \
         WHERE job = ?1 AND claim = ?2 AND verb = ?3",
    )?;
    let mut rows = by_claim.query([id.as_str(), claim.as_str(), word])?;
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let outcome = match row::parsed_if_any(found, 2, "queue of a receipt")? {
        Some(queue) => {
            let run_at = Timestamp::from_millis(found.get(3)?);
            Outcome::Returned { queue, run_at, blocked: found.get(5)? }
        }
        None if verb == Verb::Commit => Outcome::Done,
        None => Outcome::Removed,
    };
    Ok(Some(Applied {
        outcome,
        queue: row::parsed(found, 0, "queue of a receipt")?,
        started_at: row::time(found, 1)?,
        pushed: row::json(found, 4, "jobs of a receipt")?.unwrap_or_default(),
        callback: None, // it was told of when it was pushed
        unblocked: Vec::new(),
        released: Vec::new(),
        repeated: true,
    }))
}
