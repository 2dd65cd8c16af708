//! Applying operations to jobs, and the receipts that answer their repeats.

use rusqlite::{Connection, params};

use super::fault::Fault;
use super::tx::Tx;
use super::{push, row};
use crate::job::state::Verb;
use crate::job::transition::{Next, Operation, Outcome, Refusal, Surroundings, step};
use crate::job::{Claim, JobId, Meta, Rules, Timestamp};
use crate::store::{Applied, Change, Denied};

/// How long the outcome of a move can be asked for again, in milliseconds.
const RECEIPT_MS: u64 = 600_000;

/// Applies the changes in order, each for itself.
pub(super) fn apply(
    tx: &Tx<'_>,
    changes: &[Change],
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<Result<Applied, Denied>>, Fault> {
    let mut applied = Vec::with_capacity(changes.len());
    for change in changes {
        applied.push(match apply_one(tx, change, rules, now) {
            Ok(answer) => answer.map_err(Denied::Refused),
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
) -> Result<Result<Applied, Refusal>, Fault> {
    let Change { id, operation } = change;
    let Some(found) = row::meta_of(tx, id)? else {
        return Ok(match operation.claim() {
            Some(claim) => receipt(tx, id, claim, operation.verb())?.ok_or(Refusal::Lost { gone: true }),
            None => Err(Refusal::Unknown),
        });
    };
    let meta = &found.job;
    let around = Surroundings { now, rules, chance: rand::random() };
    let done = match (step(meta, operation, around), operation.claim()) {
        (Ok(done), _) => done,
        (Err(lost @ Refusal::Lost { .. }), Some(claim)) => {
            return Ok(receipt(tx, id, claim, operation.verb())?.ok_or(lost));
        }
        (Err(refusal), _) => return Ok(Err(refusal)),
    };
    if let (Operation::Move { queue, .. }, Next::Write { .. }) = (operation, &done.next)
        && *queue != meta.queue
        && push::is_full(tx, queue, rules)?
    {
        return Ok(Err(Refusal::Full));
    }
    match &done.next {
        Next::Keep => {}
        Next::Write { meta, payload, result } => {
            row::update(tx, &found, meta, payload.as_ref(), result.as_ref(), now)?
        }
        Next::Delete => row::delete(tx, &found)?,
    }
    let applied = Applied {
        outcome: done.outcome,
        queue: meta.queue.clone(),
        started_at: meta.started_at,
        // Nothing to write for what is allowed: it had happened before.
        repeated: done.next == Next::Keep,
    };
    if let Operation::Move { claim, .. } = operation {
        write_receipt(tx, meta, claim, Verb::Move, &applied, now)?;
    }
    Ok(Ok(applied))
}

/// The words by which receipts tell verbs apart.
fn word(verb: Verb) -> Option<&'static str> {
    match verb {
        Verb::Move => Some("move"),
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
    let (returned_to, run_at) = match &applied.outcome {
        Outcome::Returned { queue, run_at } => (Some(queue.as_str()), Some(run_at.millis())),
        _ => (None, None),
    };
    db.prepare_cached(
        "INSERT OR REPLACE INTO receipts (job, claim, verb, queue, started_at, returned_to, run_at, until) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
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
    ])?;
    Ok(())
}

/// What an earlier call of this verb with this claim has answered, if a receipt tells.
fn receipt(db: &Connection, id: &JobId, claim: &Claim, verb: Verb) -> Result<Option<Applied>, Fault> {
    let Some(verb) = word(verb) else {
        return Ok(None);
    };
    let mut by_claim = db.prepare_cached(
        "SELECT queue, started_at, returned_to, run_at FROM receipts WHERE job = ?1 AND claim = ?2 AND verb = ?3",
    )?;
    let mut rows = by_claim.query([id.as_str(), claim.as_str(), verb])?;
    let Some(found) = rows.next()? else {
        return Ok(None);
    };
    let outcome = match row::parsed_if_any(found, 2, "queue of a receipt")? {
        Some(queue) => Outcome::Returned { queue, run_at: Timestamp::from_millis(found.get(3)?) },
        None => Outcome::Removed,
    };
    Ok(Some(Applied {
        outcome,
        queue: row::parsed(found, 0, "queue of a receipt")?,
        started_at: row::time(found, 1)?,
        repeated: true,
    }))
}
