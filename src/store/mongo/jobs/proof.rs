//! What became of a plan that was sent without a certain response: what the job's document, its absence or a receipt prove of it.

use crate::faults;
use crate::job::receipt::Receipt;
use crate::job::state::Verb;
use crate::job::transition::Operation;
use crate::job::{Claim, JobId, Meta, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::jobs::plan::Plan;
use crate::store::mongo::jobs::receipts::Receipts;
use crate::store::{Applied, Change, Result};

/// For how long after a deletion was planned the receipt of what ended its reservation before is certainly kept: one that was read then has
/// been kept for nine of its ten minutes at most.
const RECEIPTS_LAST_MS: u64 = 60_000;

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

/// What must be looked up beside the jobs before changes are judged.
#[derive(Default)]
pub struct Questions<'a> {
    /// The calls whose receipts count.
    calls: Vec<(&'a JobId, &'a Claim)>,
    /// Whether a job is gone that was to be deleted, so that the time counts.
    asks_time: bool,
}

impl<'a> Questions<'a> {
    /// Asks what became of a plan that was sent for this change, whose job is as it was found now.
    pub fn about_plan(&mut self, plan: &'a Plan, change: &Change, found: Option<&Meta>) {
        self.calls.extend(needed_receipt(plan, found).map(|claim| (&plan.meta.id, claim)));
        self.asks_time |= found.is_none() && plan.deletes() && change.operation.claim().is_some();
    }

    /// Asks whether this very call was carried out before.
    pub fn about_call(&mut self, change: &'a Change) {
        self.calls.extend(leaving_receipt(&change.operation).map(|claim| (&change.id, claim)));
    }

    /// Looks all of that up at once: with a round trip for each of many jobs a call would not end in time. The jobs were read before.
    pub async fn answer(self, mongo: &Mongo) -> Result<Evidence> {
        let receipts = Receipts::of(mongo, &self.calls).await?;
        let mut latest = None;
        if self.asks_time {
            // Asked after the jobs were found to be gone: the estimate counts on with the clock of this machine, which may have
            // stood still, and the store's may have been set forward since it was read.
            mongo.hello().await?;
            latest = Some(mongo.moment()?.at_most);
        }
        Ok(Evidence { receipts, latest })
    }
}

/// What was looked up.
pub struct Evidence {
    receipts: Receipts,
    /// The latest that the store's clock may have shown after the jobs were read, where that counts.
    latest: Option<Timestamp>,
}

impl Evidence {
    /// Returns the receipt which shows that this very call was carried out before. It is one that was [asked
    /// about](Questions::about_call).
    pub fn receipt_of(&self, change: &Change) -> Result<Option<Receipt>> {
        let Some(claim) = leaving_receipt(&change.operation) else { return Ok(None) };
        let receipt = self.receipts.get(&change.id, claim)?;
        Ok(receipt.filter(|receipt| receipt.verb == change.operation.verb()))
    }
}

/// Returns the claim of a call whose repeat may find a receipt.
fn leaving_receipt(operation: &Operation) -> Option<&Claim> {
    match operation {
        Operation::Commit { claim, .. } | Operation::Move { claim, .. } | Operation::Recall { claim, .. } => {
            Some(claim)
        }
        _ => None,
    }
}

/// Returns the claim whose receipt proves something of a plan that was sent.
fn needed_receipt<'a>(plan: &'a Plan, found: Option<&Meta>) -> Option<&'a Claim> {
    let counts = plan.receipt.is_some() || (found.is_none() && plan.deletes());
    plan.meta.claim.as_ref().filter(|_| counts)
}

/// Returns what the document, its absence or a receipt prove of a plan that was sent, and [asked about](Questions::about_plan).
pub fn of(
    mongo: &Mongo,
    plan: &Plan,
    operation: &Operation,
    found: Option<&Meta>,
    evidence: &Evidence,
) -> Result<Proof> {
    let deletes = plan.deletes();
    let receipt = match needed_receipt(plan, found) {
        Some(claim) => evidence.receipts.get(&plan.meta.id, claim)?,
        None => None,
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
        (None, None, _) if deletes => by_absence(plan, operation, evidence.latest),
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
///
/// Receipts go after ten minutes. Where the machine stood still since the deletion was planned, they may be gone as well.
///
/// `latest`: the latest that the store's clock may have shown once the job was found to be gone.
fn by_absence(plan: &Plan, operation: &Operation, latest: Option<Timestamp>) -> Proof {
    match operation.verb() {
        Verb::Cancel | Verb::Purge if plan.is_lost => return Proof::Unknown,
        // No client waits for these, and the counters of the queue are unsure.
        Verb::Expire | Verb::Lapse | Verb::Abandon if plan.is_lost => return Proof::Nothing,
        _ if operation.claim().is_none() || faults::bug("absence_proves") => return Proof::done_by_one(plan),
        _ => {}
    }
    match latest {
        Some(latest) if !plan.meta.may_be_overdue(latest) && latest <= plan.at.plus_ms(RECEIPTS_LAST_MS) => {
            Proof::done_by_one(plan)
        }
        _ => Proof::Unknown,
    }
}
