//! A cache of how jobs were settled during the last minute: settling is idempotent, so that the repeat of a
//! call whose response was lost returns the same although the job has gone.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::job::state::Verb;
use crate::job::transition::Outcome;
use crate::job::{Claim, JobId, Timestamp};
use crate::store::Change;

/// How long an outcome is cached at least; at most twice as long.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How many outcomes either half holds at most: a bound on memory, 18 MB where they are commits that push nothing. It
/// holds a minute of 15,000 a second, and is what fits into a table of a million entries.
const HALF: usize = 900_000;

/// See the module's documentation.
pub struct Outcomes {
    /// Two hashes under two keys of the process identify a call; 128 bits do not collide by chance.
    hashers: [RandomState; 2],
    halves: Mutex<Halves>,
}

/// The newer half takes what comes; after a minute it becomes the older one, which was thrown away.
struct Halves {
    newer: Half,
    older: Half,
    since: Instant,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What has become of the job.
    pub outcome: Outcome,
    /// When; no time for a job that is done.
    pub at: Timestamp,
    /// Whether it pushed jobs: only its receipt knows them.
    pub has_pushed: bool,
}

/// Most calls are commits that push nothing, which all end alike: for them it is enough to know that they were.
#[derive(Default)]
struct Half {
    done: HashSet<u128>,
    others: HashMap<u128, Ended>,
}

impl Half {
    fn len(&self) -> usize {
        self.done.len() + self.others.len()
    }

    fn get(&self, key: u128) -> Option<Ended> {
        match self.done.contains(&key) {
            true => Some(Ended { outcome: Outcome::Done, at: Timestamp::default(), has_pushed: false }),
            false => self.others.get(&key).cloned(),
        }
    }
}

impl Default for Outcomes {
    fn default() -> Self {
        let halves = Halves { newer: Half::default(), older: Half::default(), since: Instant::now() };
        Self { hashers: [RandomState::new(), RandomState::new()], halves: Mutex::new(halves) }
    }
}

impl Outcomes {
    fn key(&self, id: &JobId, claim: &Claim, verb: Verb) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|hasher| hasher.hash_one((id, claim, verb)));
        u128::from(high) << 64 | u128::from(low)
    }

    /// Remembers how a call ended.
    pub fn remember(&self, id: &JobId, claim: &Claim, verb: Verb, ended: Ended) {
        let key = self.key(id, claim, verb);
        let mut halves = self.halves.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if halves.since.elapsed() >= REMEMBERED || halves.newer.len() >= HALF {
            halves.older = std::mem::take(&mut halves.newer);
            halves.since = Instant::now();
        }
        match ended {
            Ended { outcome: Outcome::Done, has_pushed: false, .. } => drop(halves.newer.done.insert(key)),
            other => drop(halves.newer.others.insert(key, other)),
        }
    }

    /// Returns how the very same call ended before.
    pub fn recall(&self, id: &JobId, claim: &Claim, verb: Verb) -> Option<Ended> {
        let key = self.key(id, claim, verb);
        let halves = self.halves.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        halves.newer.get(key).or_else(|| halves.older.get(key))
    }
}

/// What of a change is said when it has happened.
pub(super) struct Noted {
    pub id: JobId,
    pub verb: Verb,
}

impl Noted {
    pub fn of(change: &Change) -> Self {
        Self { id: change.id.clone(), verb: change.operation.verb() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_same_call_is_recalled() {
        let outcomes = Outcomes::default();
        let (id, claim): (JobId, _) = ("a".parse().unwrap(), Claim::random());
        let at = Timestamp::from_millis(5);
        let ended = |outcome, has_pushed| Ended { outcome, at, has_pushed };
        outcomes.remember(&id, &claim, Verb::Commit, ended(Outcome::Done, false));
        let recalled = |verb| outcomes.recall(&id, &claim, verb);
        assert_eq!(
            recalled(Verb::Commit).map(|it| (it.outcome, it.has_pushed)),
            Some((Outcome::Done, false))
        );
        assert_eq!(recalled(Verb::Rollback), None);
        let dead = ended(Outcome::Dead { moved_to: None }, false);
        outcomes.remember(&id, &claim, Verb::Rollback, dead.clone());
        assert_eq!(recalled(Verb::Rollback), Some(dead));
        let (other, pushed) = (Claim::random(), ended(Outcome::Done, true));
        outcomes.remember(&id, &other, Verb::Commit, pushed.clone());
        assert_eq!(outcomes.recall(&id, &other, Verb::Commit), Some(pushed));
        assert_eq!(outcomes.recall(&id, &Claim::random(), Verb::Commit), None);
        assert_eq!(outcomes.recall(&"b".parse().unwrap(), &claim, Verb::Commit), None);
    }
}
