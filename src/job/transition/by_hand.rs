//! What operators do to jobs: another chance, another queue, or back from their workers.

use super::{Refusal, Step, free, has_expired, rehomed, returned, taken_back_in_place};
use crate::job::record::{Origin, TrailReason, TrailStep};
use crate::job::{Meta, QueueName, Reach, State, Timestamp, When};

/// The job in another queue, where it is not as a worker has left it but as an operator wants it. A dead one lives again there.
pub fn relocate(
    meta: &Meta,
    queue: &QueueName,
    when: Option<When>,
    priority: i32,
    now: Timestamp,
) -> Result<Step, Refusal> {
    if has_expired(meta, now) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    let free = if meta.state == State::Dead { revived(meta, now) } else { free(meta, now) };
    let run_at = when.map_or(free.run_at, |when| when.from(now));
    let moved = Meta { run_at, priority, ..rehomed(free, queue, TrailReason::Moved, now) };
    Ok(returned(Meta { progress: None, ..moved }))
}

/// The job where it came from or, if it died here, where it is: ready again. Where it came from it is what it was: if that is a dead-letter
/// queue, a dead letter.
pub fn redrive(meta: &Meta, home: &Reach, now: Timestamp) -> Result<Step, Refusal> {
    let is_out_of_reach = meta.origin.as_ref().is_some_and(|origin| !home.has(&origin.queue));
    if is_out_of_reach || has_expired(meta, now) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    let revived = revived(meta, now);
    match &meta.origin {
        Some(origin) => {
            let home = rehomed(revived, &origin.queue, TrailReason::Redriven, now);
            Ok(returned(Meta { origin: origin_of(&home), ..home }))
        }
        None if meta.state == State::Dead => Ok(returned(Meta { attempts: 0, ..revived })),
        None => Err(Refusal::Conflict { state: meta.visible(now) }),
    }
}

/// Returns the death that brought a job as a dead letter to where it is, as its trail shows it: each return takes back the last one.
fn origin_of(meta: &Meta) -> Option<Origin> {
    let mut deaths: Vec<&TrailStep> = Vec::new();
    for step in &meta.trail {
        match step.reason {
            TrailReason::Dead => deaths.push(step),
            TrailReason::Redriven => drop(deaths.pop()),
            TrailReason::Moved | TrailReason::Committed => deaths.clear(),
        }
    }
    let TrailStep { queue, at, attempts, .. } = deaths.pop()?;
    let error = meta.errors.iter().rfind(|failure| failure.at == *at).map(|failure| failure.message.clone());
    Some(Origin { queue: queue.clone(), at: *at, attempts: *attempts, error })
}

/// The job at once, where it is, its attempts counted anew.
pub fn retry(meta: &Meta, now: Timestamp) -> Result<Step, Refusal> {
    if has_expired(meta, now) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    let next = match meta.state {
        State::Dead => revived(meta, now),
        _ => Meta { run_at: meta.run_at.min(now), ..meta.clone() },
    };
    Ok(returned(Meta { attempts: 0, ..next }))
}

/// The job at once, where it is; one that waits for its turn goes on waiting.
pub fn run(meta: &Meta, now: Timestamp) -> Result<Step, Refusal> {
    if has_expired(meta, now) {
        return Err(Refusal::Conflict { state: meta.visible(now) });
    }
    Ok(returned(Meta { run_at: meta.run_at.min(now), ..meta.clone() }))
}

/// The job without its worker, where it was before its delivery.
pub fn revoke(meta: &Meta, now: Timestamp) -> Step {
    taken_back_in_place(meta, now)
}

/// A dead job that is to be delivered again.
fn revived(meta: &Meta, now: Timestamp) -> Meta {
    Meta {
        run_at: now,
        finished_at: None,
        purge_at: None,
        batch: None, // it was counted as dead
        ..free(meta, now)
    }
}
