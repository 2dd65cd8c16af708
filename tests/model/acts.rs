//! What is done to a job that is there, or was: from the numbers of a step to a change.

use std::collections::BTreeSet;

use tailback::job::transition::{Back, Edit, Loss, Operation, RollbackKind};
use tailback::job::{Claim, JobId, QueueName, Reach, State, Timestamp, Visible, When};
use tailback::store::Change;

use super::drafts::{hold, json, ms, nth, other_edit, payload, queue};
use super::job::{Job, Rev};
use super::steps::{Act, Which};
use super::world::World;

/// By how much a deadline is shown that may be the wrong one.
fn off_by(is_right: bool) -> u64 {
    if is_right { 0 } else { 1 }
}

impl World<'_> {
    pub async fn act(&mut self, acts: &[(Which, Act)]) -> Result<bool, String> {
        let mut calls: Vec<Vec<Change>> = vec![Vec::new()];
        let (mut settled, mut touched) = (BTreeSet::new(), BTreeSet::new());
        for (which, act) in acts {
            let Some(change) = self.resolve(*which, act)? else { continue };
            let repeatable = matches!(change.operation, Operation::Commit { .. } | Operation::Move { .. });
            // Another call with the same token would be taken for a repeat: repeats are steps of their own.
            if repeatable && (self.model.is_remembered(&change) || !settled.insert(change.id.clone())) {
                continue;
            }
            // What has just come back may be due, or not, and what was just extended may last as long as before: nobody
            // waits within a step.
            let depends = matches!(change.operation, Operation::Purge { .. } | Operation::Lapse { .. });
            if depends && !touched.insert(change.id.clone()) {
                continue;
            }
            touched.insert(change.id.clone());
            if self.stands_alone(&change) {
                calls.extend([vec![change], Vec::new()]);
            } else if let Some(call) = calls.last_mut() {
                call.push(change);
            }
        }
        let has_some = calls.iter().any(|call| !call.is_empty());
        for call in calls {
            self.apply(call).await?;
        }
        Ok(has_some)
    }

    /// Changes of different jobs in one call have no order: one whose answer depends on the others goes alone.
    fn stands_alone(&self, change: &Change) -> bool {
        let is_limited = |queue: &QueueName| self.model.max_jobs(queue).is_some();
        match &change.operation {
            Operation::Move { queue, key, .. } => key.is_some() || is_limited(queue),
            // Whether it is blocked depends on those before it.
            Operation::Purge { .. } | Operation::Retry { .. } => {
                self.model.jobs.get(&change.id).is_some_and(|job| job.group.is_some())
            }
            Operation::Commit { push, .. } => {
                push.iter().any(|job| job.key.is_some() || is_limited(&job.queue))
            }
            _ => false,
        }
    }

    /// The job and, where it has one, the token that an operation shows.
    fn find(&self, which: Which) -> Option<(JobId, Option<Claim>)> {
        let jobs = self.model.jobs.values();
        match which {
            Which::Held(place) => {
                let held: Vec<_> = jobs.filter(|job| job.state == State::Reserved).collect();
                nth(&held, place).map(|job| (job.id.clone(), job.claim.clone()))
            }
            Which::Any(place) => nth(&jobs.collect::<Vec<_>>(), place).map(|job| (job.id.clone(), None)),
            Which::Stale(place) => {
                let now_has = |id: &JobId| self.model.jobs.get(id).and_then(|job| job.claim.as_ref());
                let (others, old): (Vec<_>, Vec<_>) = (self.deliveries.iter())
                    .filter(|(id, claim)| now_has(id) != Some(claim))
                    .partition(|(id, _)| now_has(id).is_some());
                // The tokens of jobs that somebody else has now are the ones that matter.
                let stale = if place.is_multiple_of(2) && !others.is_empty() { &others } else { &old };
                nth(stale, place / 2).map(|(id, claim)| (id.clone(), Some(claim.clone())))
            }
            Which::Gone(place) => {
                let gone: Vec<_> =
                    self.known.iter().filter(|id| !self.model.jobs.contains_key(*id)).collect();
                nth(&gone, place).map(|id| ((*id).clone(), None))
            }
        }
    }

    pub fn resolve(&mut self, which: Which, act: &Act) -> Result<Option<Change>, String> {
        let Some((id, claim)) = self.find(which) else { return Ok(None) };
        let claim = claim.unwrap_or_else(|| Claim::from_stored("nobody"));
        let job = self.model.jobs.get(&id).cloned();
        let operation = match self.of_anybody(act, job.as_ref())? {
            Some(operation) => operation,
            None => self.of_holder(act, claim, job.as_ref())?,
        };
        Ok(Some(Change { id, operation }))
    }

    /// What the holder does, or who speaks for the holder.
    fn of_holder(&mut self, act: &Act, claim: Claim, job: Option<&Job>) -> Result<Operation, String> {
        Ok(match act {
            Act::Commit { result, push } => {
                let push = self.build_all(push, None)?;
                Operation::Commit { claim, result: result.map(json), push }
            }
            Act::Rollback { delay, has_error, kind, in_place } => {
                let error = has_error.then(|| "it broke".to_owned());
                let back = match (delay, in_place) {
                    (Some(delay), _) => Back::At(When::In(ms(*delay))),
                    (None, true) => Back::InPlace,
                    (None, false) => Back::ByBackoff,
                };
                let kind = match kind {
                    0 => RollbackKind::Dead,
                    1..=3 => RollbackKind::Snooze(back),
                    _ => RollbackKind::Retry(back),
                };
                Operation::Rollback { claim, kind, error }
            }
            Act::Extend { lease, progress } => {
                Operation::Extend { claim, lease_ms: lease.map(ms), progress: progress.map(json) }
            }
            Act::Move { queue: to, payload: new, delay, priority, key } => Operation::Move {
                claim,
                queue: queue(*to),
                payload: new.map(payload),
                when: delay.map_or(When::Now, |delay| When::In(ms(delay))),
                priority: *priority,
                headers: None,
                key: match key {
                    Some((key, until, lasts)) => Some(hold(*key, *until, *lasts, self.now()?)),
                    None => None,
                },
            },
            Act::Release => Operation::Release { claim, unless_seen: false },
            Act::Lapse { is_right } => {
                let until = job.and_then(|job| job.reserved_until).map_or(Timestamp::default(), |at| at.from);
                Operation::Lapse { claim, reserved_until: until.plus_ms(off_by(*is_right)) }
            }
            Act::Silence { is_right } => {
                let rev = match job.map(|job| &job.rev) {
                    Some(Rev::Same(rev)) => rev.wrapping_add(off_by(*is_right).cast_signed()),
                    _ => 0,
                };
                Operation::Abandon { claim, loss: Loss::TimedOut { rev } }
            }
            Act::Removal => Operation::Abandon { claim, loss: Loss::Removed },
            other => return Err(format!("{other:?} is not the holder's")),
        })
    }

    /// What anybody may do.
    fn of_anybody(&self, act: &Act, job: Option<&Job>) -> Result<Option<Operation>, String> {
        let within = Reach::default();
        Ok(Some(match act {
            Act::Expire { is_right } => {
                let at = job.and_then(|job| job.expires_at).map_or(Timestamp::default(), |at| at.from);
                Operation::Expire { expires_at: at.plus_ms(off_by(*is_right)) }
            }
            Act::Edit { priority, due, payload: new, other, group: to } => {
                let now = self.now()?;
                let run_at = due.map(|due| now.plus_ms(ms(due)));
                let edit = Edit {
                    priority: *priority,
                    run_at,
                    payload: new.map(payload),
                    ..other_edit(*other, *to)
                };
                Operation::Edit { within, edit: Box::new(edit) }
            }
            Act::Cancel { force } => Operation::Cancel { within, force: *force },
            Act::CancelUnheld => Operation::CancelUnheld { within },
            Act::Retry => Operation::Retry { within },
            Act::Run => Operation::Run { within },
            Act::Revoke => Operation::Revoke { within },
            Act::Relocate { queue: to, delay, priority } => Operation::Relocate {
                within,
                queue: queue(*to),
                when: delay.map(|delay| When::In(ms(delay))),
                priority: *priority,
            },
            Act::Purge { state } => {
                let states = [
                    Visible::Ready,
                    Visible::Scheduled,
                    Visible::Reserved,
                    Visible::Blocked,
                    Visible::Done,
                    Visible::Dead,
                ];
                Operation::Purge { within, states: vec![states[*state as usize]] }
            }
            Act::Redrive { is_right } => {
                let own = job.filter(|_| *is_right).map(|job| job.queue.clone());
                let within = Reach::one(&own.unwrap_or_else(|| queue(0)));
                Operation::Redrive { within, home: Reach::default() }
            }
            _ => return Ok(None),
        }))
    }
}
