//! Changes of one job in one call happen one after the other, in passes; those that ask for the same share one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::job::state::Verb;
use crate::job::transition::{Operation, Refusal};
use crate::job::{Claim, JobId};
use crate::store::{Applied, Change, Denied, Result};

type Answer = Result<Applied, Denied>;

/// What one pass makes: of each job the first change. A change goes with its index in the call.
#[derive(Default)]
pub struct Pass {
    pub changes: Vec<(usize, Change)>,
    /// Settles with the verb and the token of a change of this pass, with the index of that one.
    alike: Vec<(usize, usize, Change)>,
    later: Vec<(usize, Change)>,
}

/// The change of a job in this pass.
struct First {
    index: usize,
    /// Whether only changes that ask for the same came since: what stands behind another one stays behind it.
    is_open: bool,
}

impl Pass {
    /// Returns the first pass of these changes, which are in order.
    pub fn of(waiting: Vec<(usize, Change)>) -> Self {
        let mut pass = Self::default();
        let mut firsts: HashMap<JobId, First> = HashMap::new();
        for (n, change) in waiting {
            let mut entry = match firsts.entry(change.id.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(First { index: pass.changes.len(), is_open: true });
                    pass.changes.push((n, change));
                    continue;
                }
                Entry::Occupied(entry) => entry,
            };
            let first = entry.get_mut();
            let Some((index, made)) = pass.changes.get_mut(first.index) else { continue };
            first.is_open &= asks_the_same(&made.operation, &change.operation);
            if first.is_open
                && token(&made.operation).is_some_and(|own| Some(own) == token(&change.operation))
            {
                join(&mut made.operation, &change.operation);
                pass.alike.push((*index, n, change));
            } else {
                pass.later.push((n, change));
            }
        }
        pass
    }

    /// Gives the answers of this pass to what asks for the same, and returns what is left for the next one.
    pub fn rest(self, answers: &mut [Option<Answer>]) -> Vec<(usize, Change)> {
        let Self { alike, mut later, .. } = self;
        for (index, n, change) in alike {
            let shared = answers.get(index).and_then(Option::as_ref);
            match shared.filter(|answer| is_shared(&change.operation, answer)).cloned() {
                Some(answer) => answers[n] = Some(answer),
                None => later.push((n, change)),
            }
        }
        later.sort_by_key(|(n, _)| *n);
        later
    }
}

/// Returns the token of a settle.
fn token(operation: &Operation) -> Option<&Claim> {
    match operation.verb() {
        Verb::Commit | Verb::Rollback | Verb::Extend | Verb::Move => operation.claim(),
        _ => None,
    }
}

/// Whether two operations have the same verb, and extends the same lease.
fn asks_the_same(one: &Operation, other: &Operation) -> bool {
    match (one, other) {
        (Operation::Extend { lease_ms: one, .. }, Operation::Extend { lease_ms: other, .. }) => one == other,
        _ => one.verb() == other.verb(),
    }
}

/// Lets an extend note the progress of a later one as well.
fn join(made: &mut Operation, later: &Operation) {
    if let (Operation::Extend { progress, .. }, Operation::Extend { progress: said, .. }) = (made, later) {
        *progress = said.clone().or(progress.take());
    }
}

/// Whether a settle with this verb and token would get the same answer: extends are made as one, and a token that is lost, or has done
/// it before, stays so.
fn is_shared(operation: &Operation, answer: &Answer) -> bool {
    match answer {
        _ if operation.verb() == Verb::Extend => true,
        Ok(applied) => applied.repeated,
        Err(denied) => matches!(denied, Denied::Refused(Refusal::Lost { .. })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::transition::{Back, Outcome, RollbackKind};
    use crate::job::{Payload, QueueName, Timestamp, When};

    fn of(id: &str, operation: Operation) -> Change {
        Change { id: id.parse().unwrap(), operation }
    }

    fn extend(claim: &str, lease_ms: u64, progress: Option<&str>) -> Operation {
        let progress = progress.map(|text| Payload::parse(text).unwrap());
        Operation::Extend { claim: Claim::from_stored(claim), lease_ms: Some(lease_ms), progress }
    }

    fn commit(claim: &str) -> Operation {
        Operation::Commit { claim: Claim::from_stored(claim), result: None, push: Vec::new() }
    }

    fn rollback(claim: &str) -> Operation {
        let kind = RollbackKind::Retry(Back::At(When::In(0)));
        Operation::Rollback { claim: Claim::from_stored(claim), kind, error: None }
    }

    fn indexed(operations: Vec<Operation>) -> Vec<(usize, Change)> {
        operations.into_iter().map(|operation| of("a", operation)).enumerate().collect()
    }

    fn done(repeated: bool) -> Answer {
        let queue: QueueName = "mail".parse().unwrap();
        Ok(Applied { repeated, ..Applied::new(Outcome::Done, queue, None, Timestamp::default()) })
    }

    fn lost() -> Answer {
        Err(Denied::Refused(Refusal::Lost { gone: true }))
    }

    /// Makes passes until nothing is left. Returns the indexes of the changes of each.
    fn passes(mut waiting: Vec<(usize, Change)>, answer: impl Fn(&Change) -> Answer) -> Vec<Vec<usize>> {
        let mut answers: Vec<Option<Answer>> = waiting.iter().map(|_| None).collect();
        let mut made = Vec::new();
        while !waiting.is_empty() {
            let pass = Pass::of(waiting);
            made.push(pass.changes.iter().map(|(n, _)| *n).collect());
            for (n, change) in &pass.changes {
                answers[*n] = Some(answer(change));
            }
            waiting = pass.rest(&mut answers);
        }
        assert!(answers.iter().all(Option::is_some));
        made
    }

    #[test]
    fn extends_of_one_token_are_made_as_one() {
        let many = [extend("x", 100, Some("1")), extend("x", 100, Some("2")), extend("x", 100, None)];
        let pass = Pass::of(indexed(many.to_vec()));
        assert_eq!(pass.changes, vec![(0, of("a", extend("x", 100, Some("2"))))]);
        assert_eq!(passes(indexed(vec![extend("x", 100, None); 1000]), |_| done(false)), [[0]]);
        let leases = [100, 200, 100].map(|lease_ms| extend("x", lease_ms, None));
        assert_eq!(passes(indexed(leases.to_vec()), |_| done(false)), [[0], [1], [2]]);
        // Also between others with tokens that are lost.
        let mixed = (0..1000).map(|n| extend(if n % 2 == 0 { "x" } else { "" }, 100, None)).collect();
        assert_eq!(passes(indexed(mixed), |_| done(false)).len(), 2);
    }

    #[test]
    fn what_a_token_has_done_or_lost_is_not_tried_again() {
        assert_eq!(passes(indexed(vec![commit("x"); 1000]), |_| lost()), [[0]]);
        assert_eq!(passes(indexed(vec![commit("x"); 1000]), |_| done(true)), [[0]]);
        // The first one does it, which the second one finds.
        assert_eq!(passes(indexed(vec![commit("x"); 3]), |_| done(false)), [[0], [1], [2]]);
    }

    #[test]
    fn what_comes_behind_another_verb_stays_behind_it() {
        let changes = vec![extend("x", 100, None), rollback("x"), extend("x", 200, None), commit("x")];
        assert_eq!(passes(indexed(changes), |_| done(false)), [[0], [1], [2], [3]]);
    }

    #[test]
    fn different_jobs_share_a_pass() {
        let changes = ["a", "b", "c", "a"].map(|id| of(id, commit("x")));
        assert_eq!(passes(changes.into_iter().enumerate().collect(), |_| lost()), [[0, 1, 2]]);
    }
}
