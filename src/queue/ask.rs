//! What callers ask for when they reserve or pop.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use super::{Credential, IdempotencyKey, Queues, Result};
use crate::job::{QueueName, QueuePattern, WorkerName};

/// The most queues that a prefix stands for in one query.
const PREFIX_QUEUES_MAX: usize = 1000;
/// The most queues that all patterns of a reserve stand for in one query.
const EXPANDED_MAX: usize = 1000;

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

    /// Returns the queues that a prefix stands for now.
    pub(super) async fn queues_of(&self, prefix: &str) -> Result<Vec<QueueName>> {
        Ok(self.0.store.queues(prefix, None, PREFIX_QUEUES_MAX).await?)
    }
}
