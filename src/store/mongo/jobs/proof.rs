//! What became of a plan that was sent without a certain response: what the job's document, its absence or a receipt prove of it.

use crate::faults;
use crate::job::Meta;
use crate::job::state::Verb;
use crate::job::transition::Operation;
use crate::store::mongo::Mongo;
use crate::store::mongo::jobs::plan::Plan;
use crate::store::mongo::jobs::receipts;
use crate::store::{Applied, Result};

/// What is known of a plan that was sent without a certain response.
pub enum Proof {
    /// It was carried out.
    Done(Applied),
    /// It may have been carried out; that will never be known.
    Unknown,
    /// It was not, as far as is known: the change is planned again.
    Nothing,
    /// Others have written the job since, before it or after it: the change is planned again, and if it is refused
    /// then, it is unknown whether it had happened.
    Overtaken,
}

/// Whether no client waits for its outcome.
fn is_internal(verb: Verb) -> bool {
    matches!(verb, Verb::TakeOver | Verb::Release | Verb::Lapse | Verb::Abandon | Verb::Expire)
}

impl Proof {
    /// It was carried out: this plan.
    fn done(plan: &Plan) -> Self {
        Self::Done(plan.applied(Vec::new(), None))
    }

    /// It was carried out: this plan, or that of an earlier call with the same token.
    fn done_by_one(plan: &Plan) -> Self {
        Self::Done(Applied { perhaps_earlier: true, ..plan.applied(Vec::new(), None) })
    }
}

/// Returns what the document, its absence or a receipt prove of a plan that was sent.
pub async fn of(mongo: &Mongo, plan: &Plan, operation: &Operation, found: Option<&Meta>) -> Result<Proof> {
    let deletes = plan.deletes();
    let receipt = match &plan.meta.claim {
        Some(claim) if plan.receipt.is_some() || (found.is_none() && deletes) => {
            receipts::find(mongo, &plan.meta.id, claim).await?
        }
        _ => None,
    };
    let has_changed = found.is_none_or(|meta| meta.rev != plan.meta.rev);
    let is_overtaken = !deletes && has_changed && !is_internal(operation.verb());
    let proof = match (found, &receipt, plan.receipt) {
        // A duplicate of the same call may have written it, and have pushed other jobs: what it says counts.
        (_, Some(receipt), Some(verb)) if receipt.verb == verb && verb != Verb::Cancel => {
            let applied = receipt.clone().into();
            return Ok(Proof::Done(Applied { repeated: false, perhaps_earlier: true, ..applied }));
        }
        (_, _, Some(Verb::Commit | Verb::Move)) => Proof::Nothing,
        (Some(meta), ..) if !deletes && plan.wrote(meta.rev) => {
            // It may have landed after it was noted, and a claim have read in between.
            mongo.note_ready(plan.position());
            Proof::done(plan)
        }
        (None, Some(receipt), None) if deletes && receipt.verb != Verb::Cancel => Proof::done_by_one(plan),
        // A forced cancel, this one or another.
        (None, _, Some(Verb::Cancel)) if plan.is_lost => Proof::Unknown,
        (None, None, _) if deletes => by_absence(mongo, plan, operation).await?,
        _ if is_overtaken => Proof::Overtaken,
        _ => Proof::Nothing,
    };
    if let Proof::Done(_) = proof {
        mongo.counters.stepped(&plan.meta, &plan.step.next);
    }
    Ok(proof)
}

/// Returns what the absence of a job proves of a deletion that was sent.
///
/// As long as the reservation has certainly not run out, only calls with its token delete its job without a receipt: this deletion,
/// or a duplicate of the same call. What else ends a reservation early leaves a receipt. Once it may have run out, another worker may
/// have committed the job; and no reservation protects what a client cancels or purges: there absence proves nothing.
async fn by_absence(mongo: &Mongo, plan: &Plan, operation: &Operation) -> Result<Proof> {
    match operation.verb() {
        Verb::Cancel | Verb::Purge if plan.is_lost => return Ok(Proof::Unknown),
        // No client waits for these, and the counters of the queue are unsure.
        Verb::Expire | Verb::Lapse | Verb::Abandon if plan.is_lost => return Ok(Proof::Nothing),
        _ if operation.claim().is_none() || faults::bug("absence_proves") => {
            return Ok(Proof::done_by_one(plan));
        }
        _ => {}
    }
    // Asked after the job was found to be gone: the estimate counts on with the clock of this machine, which may have stood
    // still, and the store's may have been set forward since it was read.
    mongo.hello().await?;
    let latest = mongo.moment()?.at_most;
    Ok(if plan.meta.may_be_overdue(latest) { Proof::Unknown } else { Proof::done_by_one(plan) })
}
