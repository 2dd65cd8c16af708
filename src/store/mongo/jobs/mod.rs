//! The jobs themselves: the collection `jobs`, and what is written in one transaction with it.
//!
//! | file | what it does |
//! |---|---|
//! | `document`, `field`, `payload` | jobs as BSON: the table of the fields; how each type is kept; payloads |
//! | `push` | new jobs, with their keys and groups |
//! | `head` | the first jobs of a queue that may be delivered |
//! | `claim`, `claim_limited` | reserving; the second where semaphores or limits apply |
//! | `plan`, `apply`, `apply_atomic` | what an operation writes; writing it alone, or in a transaction with other documents |
//! | `transitions` | what one statement writes for many jobs: reserve, block, unblock, bury |
//! | `unreadable` | jobs that another program spoiled |
//! | `groups` | the order within groups |
//! | `receipts` | outcomes kept for repeated calls |
//! | `push_once`, `apply_once` | pushes and changes of calls with an `Idempotency-Key`, with their answers |
//! | `query`, `expired`, `stocked` | jobs by filter; reservations and jobs past their deadline; queues with due jobs |

mod apply;
mod apply_atomic;
pub mod apply_once;
mod claim;
mod claim_limited;
pub mod document;
mod expired;
mod field;
pub mod groups;
mod head;
mod payload;
mod plan;
pub mod push;
pub mod push_once;
pub mod query;
pub mod receipts;
mod stocked;
pub mod transitions;
pub mod unreadable;

use async_trait::async_trait;

use crate::job::{Claim, Job, JobId, NewJob, QueueName, Rules, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::{
    Applied, Change, ClaimAsk, Claims, Denied, Filter, Jobs, ListedJob, Overdue, Pushed, Result,
};

#[async_trait]
impl Jobs for Mongo {
    async fn push(&self, jobs: Vec<NewJob>, rules: &Rules) -> Vec<Result<Pushed>> {
        let pushed = push::push(self, jobs, rules).await;
        if pushed.iter().any(|pushed| matches!(pushed, Ok(Pushed::Created | Pushed::Blocked))) {
            self.last_write.note();
        }
        pushed
    }

    async fn claim(&self, asks: &[ClaimAsk], rules: &Rules) -> Claims {
        let claims = self.connection.within(claim::claim_all(self, asks, rules)).await;
        let claims = claims.unwrap_or_else(|error| Claims::failed(asks.len(), &error));
        if claims.won.iter().flatten().any(|jobs| !jobs.is_empty()) {
            self.last_write.note();
        }
        claims
    }

    async fn held(&self, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
        self.connection
            .within(async { claim::held(self.connection.database().await?, queues, claim).await })
            .await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        let applied = apply::apply(self, changes, rules).await;
        if applied.iter().flatten().any(|applied| !applied.repeated) {
            self.last_write.note();
        }
        applied
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        self.connection.within(expired::expired(self, limit)).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.connection.within(query::upcoming(self, limit)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>> {
        self.connection.within(query::get(self, ids)).await
    }

    async fn find(&self, filter: &Filter, after: Option<&JobId>, limit: usize) -> Result<Vec<ListedJob>> {
        self.connection.within(query::find(self, filter, after, limit)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.connection.within(query::queues(self, prefix, after, limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        self.connection.within(stocked::stocked(self, queues)).await
    }
}
