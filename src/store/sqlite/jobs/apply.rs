//! Applying operations to jobs, and the receipts for their repeats.

use crate::job::push::{entered, freed, taken};
use crate::job::receipt::Receipt;
use crate::job::transition::{
    Next, OfUnreadable, Operation, Outcome, Refusal, Step, Surroundings, missing, step,
};
use crate::job::{Meta, QueueName, Rules, State, Timestamp, batch, group, semaphore};
use crate::store::audit::Seen;
use crate::store::sqlite::batches;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::children;
use crate::store::sqlite::jobs::children::Committed;
use crate::store::sqlite::jobs::groups;
use crate::store::sqlite::jobs::many;
use crate::store::sqlite::jobs::needs;
use crate::store::sqlite::jobs::push;
use crate::store::sqlite::jobs::receipts;
use crate::store::sqlite::jobs::row::{self, Contents};
use crate::store::sqlite::jobs::unreadable;
use crate::store::sqlite::tx::Tx;
use crate::store::{Applied, Change, Denied, StoreError};

/// Applies the changes in order, each for itself.
pub fn apply(
    tx: &Tx<'_>,
    changes: &[Change],
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<Result<Applied, Denied>>, Fault> {
    let mut applied = Vec::with_capacity(changes.len());
    for changes in changes.chunk_by(|one, next| may_end_at_once(one) == may_end_at_once(next)) {
        let mut ended = Vec::new();
        if changes.first().is_some_and(may_end_at_once) {
            ended = end_delivered(tx, changes, rules, now)?;
        }
        ended.resize_with(changes.len(), || None);
        for (change, ended) in changes.iter().zip(ended) {
            let before = tx.total_changes();
            applied.push(
                match ended.map_or_else(|| apply_one(tx, change, rules, now), |ended| Ok(Ok(ended))) {
                    Ok(result) => result,
                    // Found while reading, before anything was written: no reason to undo the others.
                    Err(fault @ Fault::Stored { .. }) if tx.total_changes() == before => {
                        Err(Denied::Store(StoreError::from(fault).unreadable()))
                    }
                    Err(fault) => return Err(fault),
                },
            );
        }
    }
    let done = applied.iter().filter(|applied| applied.is_ok()).count();
    if done > 0 {
        tx.acts_on(done);
    }
    Ok(applied)
}

fn apply_one(
    tx: &Tx<'_>,
    change: &Change,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Applied, Denied>, Fault> {
    if change.operation.looks_at_contents()
        && let Err(fault @ Fault::Stored { .. }) = row::job_of(tx, &change.id)
    {
        return of_unreadable(tx, change, fault, rules, now);
    }
    match row::meta_of(tx, &change.id) {
        Ok(Some(found)) => carry_out(tx, &found, change, rules, now),
        Ok(None) => refused(tx, change, missing(&change.operation)),
        Err(fault @ Fault::Stored { .. }) => of_unreadable(tx, change, fault, rules, now),
        Err(fault) => Err(fault),
    }
}

/// Whether the change is one that [`end_delivered`] may carry out.
fn may_end_at_once(Change { operation, .. }: &Change) -> bool {
    matches!(operation, Operation::Commit { .. } | Operation::Pop { .. }) && operation.pushes().is_empty()
}

/// Ends jobs that nothing has changed since they were delivered, as their `rev` proves, and that are remembered so that they need not be
/// read. Returns nothing for a change, and does nothing, where more happens than that the job goes: the usual way does all of it.
fn end_delivered(
    tx: &Tx<'_>,
    changes: &[Change],
    rules: &Rules,
    now: Timestamp,
) -> Result<Vec<Option<Applied>>, Fault> {
    let (mut ending, mut outcomes) = (Vec::new(), Vec::with_capacity(changes.len()));
    for Change { id, operation } in changes {
        let known = operation.claim().and_then(|claim| tx.delivered.take(id, claim));
        let around = Surroundings { now, rules, chance: rand::random() };
        outcomes.push(known.and_then(|(meta, rowid)| {
            let Step { next, outcome } = step(&meta, operation, around).ok()?;
            let only_goes = next == Next::Delete && !operation.leaves_receipt(&meta, &outcome);
            only_goes.then(|| {
                ending.push((meta, rowid));
                (ending.len() - 1, outcome)
            })
        }));
    }
    let deleted = many::delete_delivered(tx, &ending)?;
    let ended = outcomes.into_iter().map(|outcome| {
        let (index, outcome) = outcome?;
        let (meta, _) = ending.get(index).filter(|(meta, _)| deleted.contains(&meta.id))?;
        Some(Applied::new(outcome, meta.queue.clone(), meta.started_at, now))
    });
    Ok(ended.collect())
}

/// Returns what becomes of a job that cannot be read: it can be removed, and what the server wants of it by itself takes it
/// out of the way.
fn of_unreadable(
    tx: &Tx<'_>,
    change: &Change,
    fault: Fault,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Applied, Denied>, Fault> {
    let Change { id, operation } = change;
    tracing::error!(%id, %fault, "a job cannot be read");
    match operation.of_unreadable() {
        OfUnreadable::Remove(operation) => {
            let Some(found) = row::salvaged(tx, id)? else {
                return refused(tx, change, Refusal::Unknown);
            };
            let named = needs::named(tx, id)?; // behind the removal there is no row
            let removed = carry_out(tx, &found, &Change { id: id.clone(), operation }, rules, now)?;
            if removed.is_ok() {
                let is_held = found.job.state == State::Reserved;
                needs::forget(tx, id, named.as_deref().filter(|_| !is_held))?;
            }
            Ok(removed)
        }
        OfUnreadable::Bury => {
            unreadable::bury_by_id(tx, id, false, rules, now)?;
            Ok(Err(Denied::Refused(Refusal::Unknown)))
        }
        OfUnreadable::Mend(mending) => {
            match unreadable::mend(tx, id, *mending, operation.within(), rules, now)? {
                Some(Ok(mended)) => Ok(Ok(mended)),
                Some(Err(refusal)) => refused(tx, change, refusal),
                None => Ok(Err(Denied::Store(StoreError::from(fault).unreadable()))),
            }
        }
        OfUnreadable::Refuse => Ok(Err(Denied::Store(StoreError::from(fault).unreadable()))),
    }
}

fn carry_out(
    tx: &Tx<'_>,
    found: &row::Found<Meta>,
    change: &Change,
    rules: &Rules,
    now: Timestamp,
) -> Result<Result<Applied, Denied>, Fault> {
    let operation = &change.operation;
    let meta = &found.job;
    let around = Surroundings { now, rules, chance: rand::random() };
    let mut done = match step(meta, operation, around) {
        Ok(done) => done,
        Err(refusal) => return refused(tx, change, refusal),
    };
    if done.next == Next::Keep {
        return kept(tx, operation, meta, done.outcome, now).map(Ok);
    }
    if let Some(queue) = entered(operation.verb(), meta, &done.outcome)
        && push::room(tx, queue, 0, rules)? == Some(0)
    {
        return Ok(Err(Denied::Refused(Refusal::Full)));
    }
    if let Some(hold) = taken(operation, &done)
        && let Some(holder) = push::move_key(tx, &done.next, hold, now)?
    {
        return Ok(Err(Denied::KeyTaken(holder)));
    }
    let pushes = children::inheriting(tx, found.rowid, operation.pushes())?;
    let pushes = &*pushes;
    let children =
        match children::check(tx, pushes, Some(Committed { before: meta, next: &done.next }), rules, now)? {
            Ok(children) => children,
            Err(push) => return Ok(Err(Denied::PushRefused(push))),
        };
    let unblocked = write(tx, found, &mut done, (rules, now))?;
    let pushed = children::store(tx, pushes, children, now)?;
    let callback = match batch::finish(meta, &done, operation.result(), now) {
        Some(finish) => batches::count(tx, &finish, rules, now)?,
        None => None,
    };
    let released = semaphore::released(meta, &done.next);
    let applied = Applied::new(done.outcome, meta.queue.clone(), meta.started_at, now);
    let applied = Applied { pushed, callback, unblocked, released, ..applied };
    if operation.leaves_receipt(meta, &applied.outcome)
        && let Some(receipt) = Receipt::new(operation.verb(), meta, &applied.outcome, &applied.pushed, now)
    {
        receipts::insert(tx, &receipt, receipt.until())?;
    }
    Ok(Ok(applied))
}

/// Returns the refusal, unless a receipt shows that it is only the repeat of a call that was carried out.
fn refused(tx: &Tx<'_>, change: &Change, refusal: Refusal) -> Result<Result<Applied, Denied>, Fault> {
    let earlier = match (refusal, change.operation.claim()) {
        (Refusal::Lost { .. }, Some(claim)) => {
            receipts::find(tx, &change.id, claim, change.operation.verb())?
        }
        _ => None,
    };
    Ok(earlier.map(Applied::from).ok_or(Denied::Refused(refusal)))
}

/// Writes what is to become of the job, in the lines of groups as well. Returns the jobs that this unblocks.
fn write(
    tx: &Tx<'_>,
    found: &row::Found<Meta>,
    step: &mut Step,
    (rules, now): (&Rules, Timestamp),
) -> Result<Vec<(QueueName, Timestamp)>, Fault> {
    let vacated = group::vacated(&found.job, &step.next);
    groups::join(tx, step, vacated.as_ref())?;
    match &step.next {
        Next::Keep => {}
        Next::Write { meta, payload, result, headers } => {
            let contents =
                Contents { payload: payload.as_ref(), result: result.as_ref(), headers: headers.as_ref() };
            row::update(tx, found, meta, contents, now)?;
        }
        Next::Delete => row::delete(tx, found)?,
    }
    if tx.acts_on_one_job() {
        tx.sees(Seen::of_job(&found.job, &step.next, now));
    }
    if let Some(key) = freed(&found.job, step) {
        push::free(tx, &found.job, key)?;
    }
    groups::advance(tx, vacated, rules, now)
}

/// Returns the result where there is nothing to write, since it had happened before. A receipt has more of that than
/// history.
fn kept(
    tx: &Tx<'_>,
    operation: &Operation,
    meta: &Meta,
    outcome: Outcome,
    at: Timestamp,
) -> Result<Applied, Fault> {
    let earlier = match operation.claim() {
        Some(claim) => receipts::find(tx, &meta.id, claim, operation.verb())?,
        None => None,
    };
    let kept = Applied { repeated: true, ..Applied::new(outcome, meta.queue.clone(), meta.started_at, at) };
    Ok(earlier.map_or(kept, Applied::from))
}
