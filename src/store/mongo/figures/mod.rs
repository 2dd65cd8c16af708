//! Figures: how many jobs there are in each state.
//!
//! | file | what it does |
//! |---|---|
//! | `counters` | counts what this server writes |
//! | `counts` | reads the figures |
//! | `reconcile` | compares them with the index and corrects them |

pub mod counters;
pub mod counts;
pub mod reconcile;

use std::collections::HashMap;

use async_trait::async_trait;

use crate::job::QueueName;
use crate::store::mongo::Mongo;
use crate::store::{Figures, QueueCounts, Reconciled, Result, StoreError};

/// How many times its usual deadline reading the figures of many queues may take.
const COUNT_DEADLINES: u32 = 5;

#[async_trait]
impl Figures for Mongo {
    async fn counts(&self) -> Result<HashMap<QueueName, QueueCounts>> {
        let deadline = self.connection.deadline() * COUNT_DEADLINES;
        let late = |_| StoreError::unavailable(format_args!("no counts within {} ms", deadline.as_millis()));
        tokio::time::timeout(deadline, counts::counts(self)).await.map_err(late)?
    }

    async fn reconcile(&self) -> Result<Reconciled> {
        let late = |_| StoreError::unavailable("the counters were not compared in time");
        tokio::time::timeout(counts::BACKGROUND_DEADLINE, reconcile::reconcile(self)).await.map_err(late)?
    }
}
