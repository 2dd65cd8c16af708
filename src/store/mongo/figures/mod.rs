//! Figures: how many jobs there are in each state.
//!
//! | file | what it does |
//! |---|---|
//! | `counters` | counts what this server writes |
//! | `counts` | reads the counters, the scheduled jobs and the oldest ones |
//! | `load` | who works on a queue, what is tried again, and what is blocked for good |
//! | `now` | reads figures of one queue from its jobs |
//! | `summary` | puts the figures of all queues, or of one, together |
//! | `reconcile` | compares them with the index and corrects them |

pub mod counters;
pub mod counts;
mod load;
mod now;
pub mod reconcile;
pub mod summary;

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;

use crate::job::{QueueName, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::{
    Blockers, Counts, Figures, Load, Named, Pool, QueueCounts, Reconciled, Result, StoreError, StoreSize,
    Summary,
};

/// How many times its usual deadline reading the figures of many queues may take.
const COUNT_DEADLINES: u32 = 5;

#[async_trait]
impl Figures for Mongo {
    async fn summary(&self, most: usize) -> Result<Summary> {
        let deadline = self.connection.deadline() * COUNT_DEADLINES;
        let late = |_| StoreError::unavailable(format_args!("no counts within {} ms", deadline.as_millis()));
        tokio::time::timeout(deadline, summary::of_all(self, most)).await.map_err(late)?
    }

    async fn counts(&self, queue: &QueueName) -> Result<QueueCounts> {
        self.connection.within(summary::of_queue(self, queue)).await
    }

    async fn count_now(&self, queue: &QueueName) -> Result<Counts> {
        let late = |_| StoreError::unavailable("the jobs were not counted in time");
        tokio::time::timeout(now::COUNTED_WITHIN, now::count(self, queue)).await.map_err(late)?
    }

    async fn next_due(&self, queue: &QueueName) -> Result<Option<Timestamp>> {
        self.connection.within(now::next_due(self, queue)).await
    }

    async fn load(&self, queue: &QueueName) -> Result<Load> {
        self.connection.within(load::load(self, queue)).await
    }

    async fn total_load(&self, queues: &[QueueName]) -> Result<Load> {
        self.connection.within(load::total_load(self, queues)).await
    }

    async fn workers_of(&self, queues: &[QueueName]) -> Result<HashMap<QueueName, u64>> {
        load::workers_of(self, queues).await
    }

    async fn blockers(&self, queue: &QueueName) -> Result<Blockers> {
        self.connection.within(load::blockers(self, queue)).await
    }

    async fn how_many(&self, of: Named, limit: u64) -> Result<u64> {
        self.connection.within(summary::how_many(self, of, limit)).await
    }

    async fn with_jobs(&self, queues: &[QueueName]) -> Result<HashSet<QueueName>> {
        self.connection.within(summary::with_jobs(self, queues)).await
    }

    async fn size(&self) -> Result<StoreSize> {
        self.connection.within(summary::size(self)).await
    }

    async fn reconcile(&self) -> Result<Reconciled> {
        let late = |_| StoreError::unavailable("the counters were not compared in time");
        tokio::time::timeout(counts::BACKGROUND_DEADLINE, reconcile::reconcile(self)).await.map_err(late)?
    }

    fn pool(&self) -> Option<Pool> {
        Some(self.connection.pool())
    }
}
