//! The transitions around a claim: reserve, take over, block, unblock, bury.
//!
//! A claim writes many jobs with one statement. So these rules change a [`Meta`] in place, and each is one row of the
//! table with one target: a store guards its statement by [`Transition::from`] and encodes the `Meta` that the rule
//! leaves.

use super::{Refusal, Step};
use crate::faults;
use crate::job::state::{Transition, Verb};
use crate::job::{Claim, Meta, SemaphoreName, Timestamp, WorkerName};

/// A worker reserves the job.
pub const RESERVE: Transition = Transition::of(Verb::Reserve);
/// The job waits for a semaphore, or for the jobs before it in its group.
pub const BLOCK: Transition = Transition::of(Verb::Block);
/// Nothing blocks the job any more.
pub const UNBLOCK: Transition = Transition::of(Verb::Unblock);
/// The store cannot read the job, so that there is no [`Meta`] to change: it must not stay where jobs are looked for.
pub const BURY: [Transition; 3] =
    [Transition::of(Verb::Bury), Transition::nth_of(Verb::Bury, 1), Transition::nth_of(Verb::Bury, 2)];

/// How many attempts a delivery counts as.
pub const ATTEMPTS_PER_DELIVERY: u32 = 1;

/// What a claim gives to each job that it reserves.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    /// The claim's token.
    pub claim: &'a Claim,
    /// How long the reservation lasts, in milliseconds.
    pub lease_ms: u64,
    /// Whether a job that has a lease of its own gets that one.
    pub yields: bool,
    /// The worker that holds the job, where the request gave a name.
    pub worker: Option<&'a WorkerName>,
    /// The time of the delivery.
    pub at: Timestamp,
}

/// Reserves the job. Its `rev` is the store's business.
pub fn reserve(
    meta: &mut Meta,
    Delivery { claim, lease_ms, yields, worker, at }: Delivery<'_>,
) -> Result<(), Refusal> {
    change_state(meta, RESERVE, at)?;
    meta.attempts = meta.attempts.saturating_add(ATTEMPTS_PER_DELIVERY);
    meta.started_at = Some(at);
    let lease_ms = meta.default_lease_ms.filter(|_| yields).unwrap_or(lease_ms);
    let lease_ms = if faults::bug("short_lease") { lease_ms / 20 } else { lease_ms };
    meta.reserved_until = Some(meta.within_run(at.plus_ms(lease_ms)));
    meta.lease_ms = Some(lease_ms);
    meta.worker = worker.cloned();
    meta.claim = Some(claim.clone());
    (meta.waits_for, meta.waiting_since) = (None, None);
    Ok(())
}

/// Gives a reserved job to a repeat of the request that won it. The lease is never shortened.
pub fn take_over(meta: &Meta, to: &Claim, lease_ms: u64, now: Timestamp) -> Result<Step, Refusal> {
    if meta.run_ends_at().is_some_and(|end| end <= now) {
        return Err(Refusal::Lost { gone: false }); // its delivery is over, and the next one is due
    }
    let until = meta.within_run(now.plus_ms(lease_ms));
    let until = meta.reserved_until.map_or(until, |earlier| earlier.max(until));
    let (claim, lease_ms) = (Some(to.clone()), Some(lease_ms));
    // The server that claimed it must see that it was handed out.
    let taken = Meta { claim, lease_ms, extended_at: Some(now), reserved_until: Some(until), ..meta.clone() };
    Ok(Step::held(taken, until))
}

/// Blocks the job by a semaphore. Its time of waiting goes on where it has waited before.
pub fn block(meta: &mut Meta, semaphore: &SemaphoreName, now: Timestamp) -> Result<(), Refusal> {
    change_state(meta, BLOCK, now)?;
    meta.waits_for = Some(semaphore.clone());
    meta.waiting_since = meta.waiting_since.or(Some(now));
    meta.came_at = Some(now);
    Ok(())
}

/// Gives a job that is about to come to a line its place there; behind other jobs it is blocked. A retried transaction
/// may give it another place than the attempt before, so that nothing of that one stays.
pub fn join_line(meta: &mut Meta, turn: i64, is_first: bool) {
    meta.turn = Some(turn);
    meta.state = if is_first || faults::bug("ignore_group") { BLOCK.from } else { BLOCK.to };
}

/// Makes a blocked job ready: it is the first of its group now, or its semaphore has room.
pub fn unblock(meta: &mut Meta, now: Timestamp) -> Result<(), Refusal> {
    change_state(meta, UNBLOCK, now)?;
    meta.waits_for = None;
    meta.came_at = Some(now);
    Ok(())
}

fn change_state(meta: &mut Meta, transition: Transition, now: Timestamp) -> Result<(), Refusal> {
    if meta.state != transition.from {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    meta.state = transition.to;
    Ok(())
}
