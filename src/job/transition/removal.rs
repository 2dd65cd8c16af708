//! What takes jobs away: clients, and their expiry.

use super::{Operation, Outcome, Refusal, Step};
use crate::job::state::{State, Visible};
use crate::job::{Meta, Timestamp};

/// Takes the job away. What a worker holds is only taken by force.
pub fn cancel(meta: &Meta, operation: &Operation, now: Timestamp) -> Result<Step, Refusal> {
    match operation {
        Operation::CancelUnheld { .. } if meta.state == State::Reserved => {
            Err(Refusal::Conflict { state: meta.visible(now) })
        }
        // Its end was counted meanwhile: it is history, dead, or in a dead-letter queue.
        Operation::CancelOfBatch { batch, .. }
            if !meta.state.is_unfinished() || meta.batch.as_ref() != Some(batch) =>
        {
            Err(Refusal::Conflict { state: meta.visible(now) })
        }
        Operation::Cancel { force: false, .. } | Operation::CancelOfBatch { .. }
            if meta.state == State::Reserved =>
        {
            let reserved_until = meta.reserved_until.unwrap_or(now);
            Ok(Step::held(Meta { cancel_requested: true, ..meta.clone() }, reserved_until))
        }
        _ => Ok(Step::delete(Outcome::Removed)),
    }
}

/// Takes the job away if its expiry is still the one that has passed.
pub fn expire(meta: &Meta, expires_at: Timestamp, now: Timestamp) -> Result<Step, Refusal> {
    if meta.expires_at != Some(expires_at) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    Ok(Step::delete(Outcome::Removed))
}

/// Takes the job away if it is in the state that is purged.
pub fn purge(meta: &Meta, states: &[Visible], now: Timestamp) -> Result<Step, Refusal> {
    if !states.contains(&meta.visible(now)) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    Ok(Step::delete(Outcome::Removed))
}
