//! What claims bring together is bounded.
//!
//! What a claim brings is known only once it is in memory, and counts in the budget only once a response has it. So each takes a part of a
//! fixed sum before it is sent: for as much as it may bring, judged by how large the jobs were that the last claim of its queue has brought.
//! Once it is known what came, the rest of its part is given back; what is kept ends with the response. One that cannot bring much takes
//! none. No queue has more than half of the sum, so that one whose claims take long leaves room for those of others. A queue whose jobs have become
//! large since is claimed from once with too small a part: what that may bring the store bounds.
//!
//! A call that has jobs already never waits for a part, so that no two wait for each other.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Error, Result};
use crate::job::QueueName;

/// What all claims may bring together, in bytes, before their responses have it.
const SUM: usize = 64 << 20;
/// The sum is divided into units of so many bytes. Claims of no more take none.
const UNIT: usize = 64 << 10;
/// A claim brings no more, but for one job: the stores read no more at once.
const CLAIM_MAX: usize = 16 << 20;
/// Queues are divided among so many shares, each of half of the sum.
const SHARES: usize = 32;
/// How many of the jobs of a claim are measured.
const MEASURED_MAX: usize = 16;
/// For how long after a claim its jobs say how large those of the next one are.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// For how long a queue of which no job was seen is taken to have none.
const EMPTY_FOR: Duration = Duration::from_secs(10);
/// How often that is noted of a queue whose jobs are no larger than before.
const NOTED_EVERY: Duration = Duration::from_secs(1);
/// How often a part is tried for again.
const RETRY: Duration = Duration::from_millis(10);
/// Of how many queues it is known.
const QUEUES_MAX: usize = 10_000;

fn units(bytes: usize) -> usize {
    bytes.min(CLAIM_MAX).div_ceil(UNIT)
}

/// The part of a claim, which ends with the last share of it.
#[derive(Clone)]
pub(super) struct Part(Arc<Mutex<[OwnedSemaphorePermit; 2]>>);

impl Part {
    /// Gives back what is not needed for so many bytes.
    pub fn shrink(&self, bytes: usize) {
        let mut permits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for permit in &mut *permits {
            let surplus = permit.num_permits().saturating_sub(units(bytes));
            drop(permit.split(surplus));
        }
    }
}

/// See the module's documentation.
pub(super) struct LargeClaims {
    sum: Arc<Semaphore>,
    shares: [Arc<Semaphore>; SHARES],
    hasher: RandomState,
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
        let semaphore = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        Self {
            sum: semaphore(SUM),
            shares: std::array::from_fn(|_| semaphore(SUM / 2)),
            hasher: RandomState::new(),
            payload_bytes,
            queues: RwLock::default(),
        }
    }

    /// Returns whether much may come of so many jobs, however large the queue's are.
    fn may_be_any(&self, count: usize) -> bool {
        count.saturating_mul(self.payload_bytes) > UNIT
    }

    fn known(&self, queue: &QueueName) -> Option<Known> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.get(queue).copied().filter(Known::lasts)
    }

    /// Returns how many units a claim of so many jobs needs.
    fn needs(&self, queue: &QueueName, count: usize) -> usize {
        if !self.may_be_any(count) {
            return 0;
        }
        let bytes = self.known(queue).map_or(self.payload_bytes, |known| known.bytes);
        let bytes = count.saturating_mul(bytes);
        if bytes > UNIT { units(bytes) } else { 0 }
    }

    /// A claim of so many jobs has brought jobs of these sizes; none: also where it failed.
    pub fn note(&self, queue: &QueueName, count: usize, sizes: impl Iterator<Item = usize>) {
        if !self.may_be_any(count) {
            return;
        }
        let before = self.known(queue);
        // Of an empty queue it stays known how large its jobs were.
        let bytes = sizes.take(MEASURED_MAX).max().or(before.map(|before| before.bytes)).unwrap_or(0);
        if before.is_some_and(|before| bytes <= before.bytes && before.at.elapsed() < NOTED_EVERY) {
            return;
        }
        let mut queues = self.queues.write().unwrap_or_else(PoisonError::into_inner);
        if queues.len() >= QUEUES_MAX && !queues.contains_key(queue) {
            queues.retain(|_, known| known.lasts());
            let (full, mut stays) = (queues.len() >= QUEUES_MAX, false);
            queues.retain(|_, _| {
                stays = !stays;
                stays || !full
            });
        }
        queues.insert(queue.clone(), Known { bytes, at: Instant::now() });
    }

    /// Takes the part of a claim of so many jobs: `None` where it needs none. `patience`: for how long it waits for one.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] where the others have the sum until then.
    pub async fn part(&self, queue: &QueueName, count: usize, patience: Duration) -> Result<Option<Part>> {
        let units = u32::try_from(self.needs(queue, count)).unwrap_or(u32::MAX);
        if units == 0 {
            return Ok(None);
        }
        let share = &self.shares[self.hasher.hash_one(queue) as usize % SHARES];
        let until = tokio::time::Instant::now() + patience;
        loop {
            let both =
                (share.clone().try_acquire_many_owned(units), self.sum.clone().try_acquire_many_owned(units));
            if let (Ok(share), Ok(sum)) = both {
                return Ok(Some(Part(Arc::new(Mutex::new([share, sum])))));
            }
            let now = tokio::time::Instant::now();
            if now >= until {
                return Err(Error::NoRoom);
            }
            // A place in the line of a semaphore would take what comes free from those that try only, and that need little.
            tokio::time::sleep_until(until.min(now + RETRY)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn queue(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    #[test]
    fn a_claim_is_judged_by_the_jobs_of_the_one_before() {
        let claims = LargeClaims::new(MIB);
        let (queue, other) = (queue("q"), queue("other"));
        assert_eq!(claims.needs(&queue, 1), units(MIB), "nothing is known");
        assert_eq!(claims.needs(&queue, 1000), units(CLAIM_MAX), "the store brings no more");
        claims.note(&queue, 5, [10, 1000, 10].into_iter());
        assert_eq!((claims.needs(&queue, 50), claims.needs(&other, 50)), (0, units(CLAIM_MAX)));
        assert_eq!(claims.needs(&queue, 1000), units(1_000_000));
        claims.note(&queue, 1000, [MIB].into_iter());
        assert_eq!(claims.needs(&queue, 2), units(2 * MIB), "they are larger by now");
        claims.note(&queue, 1000, std::iter::empty());
        assert_eq!(claims.needs(&queue, 2), units(2 * MIB), "that it is empty says nothing of the next ones");
        claims.note(&other, 1000, std::iter::empty());
        assert_eq!(claims.needs(&other, 1000), 0, "it was empty, or failed, just now");
        assert_eq!(LargeClaims::new(60).needs(&queue, 1000), 0, "no payload is large");
    }

    #[test]
    fn few_queues_are_known() {
        let claims = LargeClaims::new(MIB);
        for n in 0..QUEUES_MAX + 5 {
            claims.note(&queue(&format!("q{n}")), 1, [n].into_iter());
        }
        let known = claims.queues.read().unwrap().len();
        assert!((QUEUES_MAX / 2..=QUEUES_MAX).contains(&known), "{known}");
    }

    #[tokio::test]
    async fn claims_share_the_sum_and_give_back_what_they_do_not_need() {
        let claims = LargeClaims::new(MIB);
        let now = Duration::ZERO;
        let (first, second) = (queue("q"), queue("q"));
        let part = async |queue: &QueueName| claims.part(queue, 1000, now).await;
        let held = [part(&first).await.unwrap(), part(&second).await.unwrap()];
        assert!(part(&first).await.is_err(), "a queue has half of the sum");
        let mut others = Vec::new();
        for n in 0..1000 {
            others.extend(part(&queue(&format!("other{n}"))).await.ok());
        }
        assert_eq!(others.len(), 2, "others have the rest");
        assert_eq!(claims.sum.available_permits(), 0);
        let kept = held[0].clone().unwrap();
        kept.shrink(3 * UNIT + 1);
        assert_eq!(claims.sum.available_permits(), units(CLAIM_MAX) - 4);
        kept.shrink(CLAIM_MAX);
        assert_eq!(claims.sum.available_permits(), units(CLAIM_MAX) - 4, "nothing is taken again");
        drop((held, others));
        assert_eq!(claims.sum.available_permits(), SUM / UNIT - 4, "the last share keeps it");
        drop(kept);
        assert_eq!(claims.sum.available_permits(), SUM / UNIT);
        assert!(claims.shares.iter().all(|share| share.available_permits() == SUM / 2 / UNIT));
    }

    #[tokio::test]
    async fn who_has_patience_gets_the_next_part() {
        let claims = LargeClaims::new(MIB);
        let q = queue("q");
        let held = [(); 2].map(|()| claims.part(&q, 1000, Duration::ZERO));
        let held = futures::future::try_join_all(held).await.unwrap();
        let mut waits = Box::pin(claims.part(&q, 1000, Duration::from_secs(600)));
        assert!(futures::poll!(&mut waits).is_pending());
        assert!(claims.part(&q, 1, Duration::from_millis(1)).await.is_err());
        let other = (0..).map(|n| queue(&format!("other{n}"))).find(|other| {
            let at = |queue: &QueueName| claims.hasher.hash_one(queue) as usize % SHARES;
            at(other) != at(&q)
        });
        let small = claims.part(&other.unwrap(), 2, Duration::ZERO).await;
        assert!(small.unwrap().is_some(), "who waits takes nothing from others");
        drop(held);
        assert!(waits.await.unwrap().is_some());
    }
}
