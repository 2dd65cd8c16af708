//! What callers ask for when they reserve or pop.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use super::waiters::{Prefixes, beginnings};
use super::{Credential, IdempotencyKey, Queues, Result};
use crate::job::{QueueName, QueuePattern, WorkerName};

/// The most queues that a prefix stands for in one query.
const PREFIX_QUEUES_MAX: usize = 1000;
/// The most queues that all patterns of a reserve stand for in one query.
const EXPANDED_MAX: usize = 1000;
/// The most prefixes that are looked up one by one; the queues of more are found by a walk over all queues.
const SINGLY_MAX: usize = 32;
/// How many queues a step of that walk reads.
const WALKED_AT_ONCE: usize = 1000;

/// How large a response may be at the moment.
pub trait Room: Debug + Send + Sync {
    /// Returns whether there is any.
    fn is_left(&self) -> bool;

    /// Returns the most bytes of jobs; a single job may be larger.
    fn bytes(&self) -> usize;
}

/// A request for jobs to work on.
#[derive(Debug, Clone)]
pub struct ReserveAsk {
    /// Where to take from, in this order.
    pub queues: Vec<QueuePattern>,
    /// The most jobs to take.
    pub count: usize,
    /// The most bytes of payloads to take; a single job may have more. `None`: as many as a response may have. With an idempotency
    /// key, each queue is asked once, for so many jobs as are likely to fit: there may be fewer than would.
    pub max_bytes: Option<u64>,
    /// How long to wait for the first one, in milliseconds.
    pub wait_ms: u64,
    /// Whether there is a place to wait in, beside `limits.waiting`.
    pub may_wait: bool,
    /// How long the reservations last, in milliseconds; `None`: what each queue says.
    pub lease_ms: Option<u64>,
    /// The worker that asks.
    pub worker: Option<WorkerName>,
    /// Makes the request safe to repeat.
    pub idempotency_key: Option<IdempotencyKey>,
    /// What must hold for as long as it waits.
    pub credential: Credential,
    /// The room for the jobs, beside `limits.answer_bytes`.
    pub room: Arc<dyn Room>,
}

/// A request for jobs to take away.
#[derive(Debug, Clone)]
pub struct PopAsk {
    /// Where to take from.
    pub queue: QueueName,
    /// The most jobs to take.
    pub count: usize,
    /// How long to wait for the first one, in milliseconds.
    pub wait_ms: u64,
    /// Whether there is a place to wait in, beside `limits.waiting`.
    pub may_wait: bool,
    /// What must hold for as long as it waits.
    pub credential: Credential,
    /// The room for the jobs, beside `limits.answer_bytes`.
    pub room: Arc<dyn Room>,
}

impl Queues {
    /// Returns the queues that match the patterns now, each once, in the order of the patterns.
    pub(super) async fn expand(&self, patterns: &[QueuePattern]) -> Result<Vec<QueueName>> {
        if patterns.len() > SINGLY_MAX
            && let Some(queues) = self.expand_by_walk(patterns).await?
        {
            return Ok(queues);
        }
        let (mut queues, mut seen) = (Vec::new(), HashSet::new());
        for pattern in patterns {
            let meant = match pattern {
                QueuePattern::One(queue) => vec![queue.clone()],
                QueuePattern::Prefix(prefix) => self.queues_of(prefix).await?,
            };
            for queue in meant {
                if queues.len() < EXPANDED_MAX && seen.insert(queue.clone()) {
                    queues.push(queue);
                }
            }
        }
        Ok(queues)
    }

    /// Returns the same by a walk over all queues; `None` where there are few prefixes, or too many queues.
    async fn expand_by_walk(&self, patterns: &[QueuePattern]) -> Result<Option<Vec<QueueName>>> {
        // Each queue with the index of its name, and with that of the first prefix that it begins with.
        let mut chosen: BTreeSet<(usize, QueueName)> = BTreeSet::new();
        let (mut indexes, mut prefixes): (HashMap<&str, usize>, usize) = (HashMap::new(), 0);
        for (index, pattern) in patterns.iter().enumerate() {
            match pattern {
                QueuePattern::One(queue) => {
                    chosen.insert((index, queue.clone()));
                }
                QueuePattern::Prefix(prefix) => {
                    prefixes += 1;
                    indexes.entry(prefix).or_insert(index);
                }
            }
        }
        if prefixes <= SINGLY_MAX {
            return Ok(None);
        }
        // A queue that is named may be there twice.
        let most = EXPANDED_MAX + patterns.len();
        let outermost = Prefixes::of(patterns);
        let walk = self.walk(&outermost, prefixes, |_, queue| {
            let matching = beginnings(queue.as_str()).filter_map(|beginning| indexes.get(beginning));
            chosen.extend(matching.min().map(|index| (*index, queue)));
            if chosen.len() > most {
                chosen.pop_last();
            }
        });
        if !walk.await? {
            return Ok(None);
        }
        let mut seen = HashSet::new();
        let queues = chosen.into_iter().map(|(_, queue)| queue).filter(|queue| seen.insert(queue.clone()));
        Ok(Some(queues.take(EXPANDED_MAX).collect()))
    }

    /// Returns the queues that a prefix stands for now.
    async fn queues_of(&self, prefix: &str) -> Result<Vec<QueueName>> {
        Ok(self.0.store.queues(prefix, None, PREFIX_QUEUES_MAX).await?)
    }

    /// Returns the queues that each of these prefixes stands for now.
    pub(super) async fn queues_of_all(&self, prefixes: &Prefixes) -> Result<BTreeSet<QueueName>> {
        let mut queues = BTreeSet::new();
        if prefixes.count() > SINGLY_MAX {
            let mut rooms = vec![PREFIX_QUEUES_MAX; prefixes.count()];
            let walk = self.walk(prefixes, prefixes.count(), |index, queue| {
                if let Some(room) = rooms.get_mut(index).filter(|room| **room > 0) {
                    *room -= 1;
                    queues.insert(queue);
                }
            });
            if walk.await? {
                return Ok(queues);
            }
        }
        for prefix in prefixes.iter() {
            queues.extend(self.queues_of(prefix).await?);
        }
        Ok(queues)
    }

    /// Calls `found` with each queue that one of these prefixes stands for now, and with the index of that prefix, in the order of the
    /// names. Reads all queues that begin as all of the prefixes do. Returns false where it ends after so many steps, before the last one.
    async fn walk(
        &self,
        prefixes: &Prefixes,
        steps: usize,
        mut found: impl FnMut(usize, QueueName) + Send,
    ) -> Result<bool> {
        let mut after: Option<QueueName> = None;
        for _ in 0..steps {
            let queues = self.0.store.queues(prefixes.common(), after.as_ref(), WALKED_AT_ONCE).await?;
            let Some(last) = queues.last().cloned() else { return Ok(true) };
            for queue in queues {
                if let Some(index) = prefixes.index_of(queue.as_str()) {
                    found(index, queue);
                }
            }
            if prefixes.end_before(last.as_str()) {
                return Ok(true);
            }
            after = Some(last);
        }
        Ok(false)
    }
}
