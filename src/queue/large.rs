//! Claims that may bring a lot take turns.
//!
//! What a claim brings is known only once it is in memory, and counts in the budget only once a response has it. So those of which a lot may
//! come run a few at a time, from before they are sent until the response has their jobs. How much may come is judged by how large the jobs
//! were that the last claim of the queue has brought. Of few jobs it cannot be a lot, and nothing is looked up. A queue whose jobs have
//! become large since is claimed from once without a turn: what that may bring the store bounds.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::once::TURN_WAIT;
use super::{Error, Result};
use crate::job::QueueName;

/// How many claims of which a lot may come run at once.
const TURNS: usize = 4;
/// From how many bytes on that is a lot.
const LOT: usize = 4 << 20;
/// How many of the jobs of a claim are looked at.
const LOOKED_AT: usize = 16;
/// For how long after a claim its jobs say how large those of the next one are.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// For how long a queue of which no job was seen is taken to have none.
const EMPTY_FOR: Duration = Duration::from_secs(10);
/// How often that is noted of a queue whose jobs are no larger than before.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// Of how many queues it is known.
const QUEUES_MAX: usize = 10_000;

/// The turn of a claim, which ends with the last share of it.
pub(super) type Turn = Arc<OwnedSemaphorePermit>;

/// See the module's documentation.
pub(super) struct LargeClaims {
    turns: Arc<Semaphore>,
    /// How large jobs are of which nothing is known.
    payload_bytes: usize,
    queues: RwLock<HashMap<QueueName, Known>>,
}

/// What the last claim of a queue has shown.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The size of a job; 0: none was seen.
    bytes: usize,
    at: Instant,
}

impl Known {
    fn lasts(&self) -> bool {
        self.at.elapsed() < if self.bytes == 0 { EMPTY_FOR } else { KNOWN_FOR }
    }
}

impl LargeClaims {
    /// Nothing is known of any queue; payloads have so many bytes at most.
    pub fn new(payload_bytes: usize) -> Self {
        Self { turns: Arc::new(Semaphore::new(TURNS)), payload_bytes, queues: RwLock::default() }
    }

    /// Returns whether a lot may come of so many jobs, however large the queue's are.
    fn may_be_any(&self, count: usize) -> bool {
        count.saturating_mul(self.payload_bytes) > LOT
    }

    fn known(&self, queue: &QueueName) -> Option<Known> {
        let queues = self.queues.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        queues.get(queue).copied().filter(Known::lasts)
    }

    /// Returns whether a lot may come of a claim of so many jobs, which needs a turn then.
    pub fn may_be(&self, queue: &QueueName, count: usize) -> bool {
        self.may_be_any(count)
            && self.known(queue).is_none_or(|known| count.saturating_mul(known.bytes) > LOT)
    }

    /// A claim of so many jobs has brought jobs of these sizes.
    pub fn note(&self, queue: &QueueName, count: usize, sizes: impl Iterator<Item = usize>) {
        if !self.may_be_any(count) {
            return;
        }
        let before = self.known(queue);
        // Of an empty queue it stays known how large its jobs were.
        let bytes = sizes.take(LOOKED_AT).max().or(before.map(|before| before.bytes)).unwrap_or(0);
        if before.is_some_and(|before| bytes <= before.bytes && before.at.elapsed() < NOTED_EVERY) {
            return;
        }
        let mut queues = self.queues.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if queues.len() >= QUEUES_MAX && !queues.contains_key(queue) {
            queues.clear();
        }
        queues.insert(queue.clone(), Known { bytes, at: Instant::now() });
    }

    /// Returns a turn, if there is one now.
    pub fn try_turn(&self) -> Option<Turn> {
        self.turns.clone().try_acquire_owned().ok().map(Arc::new)
    }

    /// Waits for a turn, for a while.
    pub async fn turn(&self) -> Result<Turn> {
        let turn = tokio::time::timeout(TURN_WAIT, self.turns.clone().acquire_owned()).await;
        turn.ok().and_then(std::result::Result::ok).map(Arc::new).ok_or(Error::NoRoom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_judged_by_the_jobs_of_the_one_before() {
        let claims = LargeClaims::new(1 << 20);
        let (queue, other): (QueueName, QueueName) = ("q".parse().unwrap(), "other".parse().unwrap());
        assert!(!claims.may_be(&queue, 4), "it cannot be a lot");
        assert!(claims.may_be(&queue, 5), "nothing is known");
        claims.note(&queue, 1, [10].into_iter());
        assert!(claims.may_be(&queue, 5), "of a claim that cannot be large nothing is noted");
        claims.note(&queue, 5, [10, 1000, 10].into_iter());
        assert!(!claims.may_be(&queue, 1000) && claims.may_be(&other, 1000));
        claims.note(&queue, 1000, [1 << 20].into_iter());
        assert!(claims.may_be(&queue, 5), "they are larger by now");
        claims.note(&queue, 1000, std::iter::empty());
        assert!(claims.may_be(&queue, 5), "that it is empty says nothing of the next ones");
        claims.note(&other, 1000, std::iter::empty());
        assert!(!claims.may_be(&other, 1000), "it was empty just now");
        assert!(!LargeClaims::new(1000).may_be(&queue, 1000), "no payload is large");
    }

    #[tokio::test]
    async fn a_few_claims_have_turns() {
        let claims = LargeClaims::new(1 << 20);
        let turns: Vec<Turn> = (0..TURNS).map(|_| claims.try_turn().unwrap()).collect();
        assert!(claims.try_turn().is_none());
        let mut waits = Box::pin(claims.turn());
        assert!(futures::poll!(&mut waits).is_pending());
        let kept = turns[0].clone();
        drop(turns);
        assert!(waits.await.is_ok());
        drop(kept);
        assert_eq!(claims.turns.available_permits(), TURNS);
    }
}
