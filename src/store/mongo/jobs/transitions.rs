//! The transitions that one statement writes for many jobs. What they do is said by [`delivery`]; this encodes the jobs
//! that it leaves. Together with `document.rs`, which writes whole jobs, the only place that writes states.
//!
//! Every statement is guarded by the state before and by the `rev` with which each job was read ([`as_read`]): a job that it
//! finds is the job that was read.

use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};

use crate::job::record::FAILURES_KEPT;
use crate::job::state::Transition;
use crate::job::transition::Refusal;
use crate::job::transition::delivery::{self, ATTEMPTS_PER_DELIVERY, BLOCK, RESERVE, UNBLOCK};
use crate::job::{Claim, Job, Meta, Timestamp};
use crate::store::mongo::jobs::document::date;
use crate::store::mongo::jobs::guard::{as_read, lacks_rev};
use crate::store::mongo::stored::Stored;
use crate::store::{ClaimAsk, Result, StoreError};

/// The fields of a job that has waited for a semaphore.
const WAITING: [&str; 3] = ["waits_for", "waiting_since", "called_at"];

/// What is removed from a job that waits neither for its time nor for a semaphore any more.
fn waits_no_longer() -> Document {
    let mut unset = doc! { "due": "" };
    unset.extend(WAITING.map(|field| (field.to_owned(), "".into())));
    unset
}

/// A field that differs from one request to another.
struct Field {
    name: &'static str,
    value: fn(&Meta) -> Bson,
    is_same: fn(&Meta, &Meta) -> bool,
}

const FIELDS: [Field; 4] = [
    Field {
        name: "claim",
        value: |meta| meta.claim.as_ref().map(Claim::as_str).into(),
        is_same: |one, other| one.claim == other.claim,
    },
    Field {
        name: "lease_ms",
        value: |meta| meta.lease_ms.map(u64::cast_signed).into(),
        is_same: |one, other| one.lease_ms == other.lease_ms,
    },
    Field {
        name: "reserved_until",
        value: |meta| meta.reserved_until.map(date).into(),
        is_same: |one, other| one.reserved_until == other.reserved_until,
    },
    Field {
        name: "worker",
        value: |meta| meta.worker.as_ref().map(|worker| worker.as_str()).into(),
        is_same: |one, other| one.worker == other.worker,
    },
];

fn statement<'a>(
    transition: Transition,
    jobs: impl IntoIterator<Item = (&'a str, i64)>,
    update: impl Into<Bson>,
) -> Document {
    let mut guard = as_read(jobs);
    guard.insert("state", transition.from.as_str());
    doc! { "q": guard, "u": update, "multi": true, "hint": { "_id": 1 } }
}

/// Returns the job as it is once the request has it.
pub fn reserved(mut job: Job, ask: &ClaimAsk, rev: i64, now: Timestamp) -> Result<Job> {
    delivery::reserve(&mut job.meta, ask.delivery(now)).map_err(not_as_read)?;
    job.meta.rev = rev;
    Ok(job)
}

/// Returns the error where a query found a job that the rules refuse.
pub fn not_as_read(refusal: Refusal) -> StoreError {
    StoreError::internal(format_args!("a job is not in the state that was asked for: {refusal:?}"))
}

/// Returns the statement that reserves these jobs, for one request or several; the jobs are as they are then, all with
/// one `rev`. `revs`: those that they were read with, in the same order.
pub fn reserve(jobs: &[Job], revs: &[i64]) -> Document {
    let ids: Vec<&str> = jobs.iter().map(|job| job.meta.id.as_str()).collect();
    let read = || ids.iter().copied().zip(revs.iter().copied());
    let Some(Job { meta: first, .. }) = jobs.first() else { return statement(RESERVE, read(), doc! {}) };
    let is_same = |field: &Field| jobs.iter().all(|job| (field.is_same)(&job.meta, first));
    let started_at = Bson::from(first.started_at.map(date));
    let mut set = doc! { "state": first.state.as_str(), "started_at": started_at, "rev": first.rev };
    let attempts = i64::from(ATTEMPTS_PER_DELIVERY);
    if FIELDS.iter().all(is_same) {
        let mut unset = doc! { "due": "" };
        for Field { name, value, .. } in &FIELDS {
            match value(first) {
                Bson::Null => drop(unset.insert(*name, "")),
                value => drop(set.insert(*name, value)),
            }
        }
        let update = doc! { "$set": set, "$unset": unset, "$inc": { "attempts": attempts } };
        return statement(RESERVE, read(), update);
    }
    // Which request gets which job: the job's index among the ids is that of its values.
    let index = doc! { "$indexOfArray": [{ "$literal": &ids }, "$_id"] };
    for field in &FIELDS {
        let value = match (is_same(field), (field.value)(first)) {
            (true, Bson::Null) => "$$REMOVE".into(),
            (true, value) => Bson::from(doc! { "$literal": value }),
            (false, _) => {
                let values: Vec<Bson> = jobs.iter().map(|job| (field.value)(&job.meta)).collect();
                let picked = doc! { "$arrayElemAt": [{ "$literal": values }, &index] };
                Bson::from(doc! { "$ifNull": [picked, "$$REMOVE"] })
            }
        };
        set.insert(field.name, value);
    }
    set.insert("attempts", doc! { "$toLong": { "$add": ["$attempts", attempts] } });
    set.insert("due", "$$REMOVE");
    statement(RESERVE, read(), vec![doc! { "$set": set }])
}

/// Returns the update that reserves a job which is so then, and may have waited for a semaphore.
pub fn reserve_one(meta: &Meta) -> Document {
    let started_at = Bson::from(meta.started_at.map(date));
    let mut set = doc! {
        "state": meta.state.as_str(), "started_at": started_at, "rev": meta.rev, "attempts": i64::from(meta.attempts),
    };
    let mut unset = waits_no_longer();
    for Field { name, value, .. } in &FIELDS {
        match value(meta) {
            Bson::Null => drop(unset.insert(*name, "")),
            value => drop(set.insert(*name, value)),
        }
    }
    doc! { "$set": set, "$unset": unset }
}

/// Returns the update that blocks a job by a semaphore, which is so then but for its `rev`.
pub fn block_one(meta: &Meta, rev: i64) -> Document {
    let waits_for = Bson::from(meta.waits_for.as_ref().map(|semaphore| semaphore.as_str()));
    let since = Bson::from(meta.waiting_since.map(date));
    let came_at = Bson::from(meta.came_at.map(date));
    let set = doc! {
        "rev": rev, "state": meta.state.as_str(), "waits_for": waits_for, "waiting_since": since, "came_at": came_at,
    };
    doc! { "$set": set, "$unset": { "due": "", "called_at": "" } }
}

/// Returns the update that unblocks a job which is the first of its group from this moment on. `due`: when it is due, if that is in the
/// future.
pub fn unblock_first(due: Option<Timestamp>, now: Timestamp, rev: i64) -> Document {
    let mut set = doc! { "state": UNBLOCK.to.as_str(), "came_at": date(now), "rev": rev };
    set.extend(due.map(|at| ("due".to_owned(), date(at).into())));
    doc! { "$set": set }
}

/// Returns the statement that unblocks these jobs, which are as they are then but for their `rev`s, because a semaphore
/// has room, and notes when.
pub fn unblock_waiters(jobs: &[Meta]) -> Document {
    let read = jobs.iter().map(|meta| (meta.id.as_str(), meta.rev));
    let due = doc! { "$cond": [{ "$gt": ["$run_at", "$$NOW"] }, "$run_at", "$$REMOVE"] };
    let mut set = doc! { "called_at": "$$NOW", "due": due, "rev": rand::random::<i64>() };
    if let Some(Meta { state, waits_for, came_at, .. }) = jobs.first() {
        set.extend(came_at.map(|at| ("came_at".to_owned(), date(at).into())));
        let waits_for = waits_for.as_ref().map_or("$$REMOVE", |semaphore| semaphore.as_str());
        set.extend(doc! { "state": state.as_str(), "waits_for": waits_for });
    }
    statement(UNBLOCK, read, vec![doc! { "$set": set }])
}

/// Returns the statements that bury a document that cannot be read: one of them does at most. A mend or a claim gives it another
/// `rev`, or one where it has none that is a number. `failure` is noted with it. A job that waits for those before it in its line leaves its place: dead, it would else be taken for the first.
/// It leaves the lines of semaphores as well: their indexes list what has these fields, and room would be kept for it.
pub fn bury(transition: Transition, job: &Stored, failure: Option<Bson>) -> Result<Vec<RawDocumentBuf>> {
    let mut set = doc! { "state": transition.to.as_str(), "rev": rand::random::<i64>() };
    let mut push = Document::new();
    if let Some(failure) = failure {
        let last = i32::try_from(FAILURES_KEPT).unwrap_or(i32::MAX);
        match job.get("errors") {
            None | Some(Bson::Array(_)) => {
                push.insert("errors", doc! { "$each": [failure], "$slice": -last });
            }
            Some(_) => drop(set.insert("errors", vec![failure])),
        }
    }
    let statement = |waits_for: Option<Document>, leaves: bool| -> Result<RawDocumentBuf> {
        let mut guard = job.by_id()?;
        guard.append(cstr!("state"), transition.from.as_str());
        match job.get("rev") {
            // What MongoDB has there is not known, nor needed: no write makes the job readable, so that no server claims it.
            _ if job.hides("rev") => {}
            Some(Bson::Int64(rev)) => guard.append(cstr!("rev"), *rev),
            Some(Bson::Int32(rev)) => guard.append(cstr!("rev"), *rev),
            _ => {
                let lacks_rev = RawDocumentBuf::try_from(&lacks_rev()).map_err(StoreError::internal)?;
                guard.append(cstr!("$expr"), lacks_rev);
            }
        }
        if let Some(waits_for) = waits_for {
            guard.append(
                cstr!("waits_for"),
                RawDocumentBuf::try_from(&waits_for).map_err(StoreError::internal)?,
            );
        }
        let mut unset = waits_no_longer();
        if leaves {
            unset.insert("turn", "");
        }
        // Operations over the dead find those that were so before they began.
        let mut update = doc! { "$set": &set, "$unset": unset, "$currentDate": { "finished_at": true } };
        if !push.is_empty() {
            update.insert("$push", &push);
        }
        let update = RawDocumentBuf::try_from(&update).map_err(StoreError::internal)?;
        Ok(rawdoc! { "q": guard, "u": update })
    };
    if transition.from != BLOCK.to {
        return Ok(vec![statement(None, false)?]);
    }
    let none = Bson::Null;
    Ok(vec![statement(Some(doc! { "$eq": &none }), true)?, statement(Some(doc! { "$ne": none }), false)?])
}
