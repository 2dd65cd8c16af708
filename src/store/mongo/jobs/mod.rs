//! The jobs themselves: the collection `jobs`, and what is written in one transaction with it.
//!
//! | file | what it does |
//! |---|---|
//! | `document`, `field`, `payload` | jobs as BSON: the table of the fields; how each type is kept; payloads |
//! | `push` | new jobs, with their keys and groups |
//! | `head` | the first jobs of a queue that may be delivered |
//! | `claim`, `claim_limited` | reserving; the second where semaphores or limits apply |
//! | `deletion` | jobs that leave together |
//! | `plan`, `apply`, `apply_atomic` | what an operation writes; writing it alone, or in a transaction with other documents |
//! | `proof` | what became of a plan whose response was lost, or of an earlier call: what is looked up for that, and what it proves |
//! | `next` | which commits the next jobs are claimed beside, and what proves them |
//! | `rewrite` | how changes are written within a transaction |
//! | `transitions` | what one statement writes for many jobs: reserve, block, unblock, bury |
//! | `unreadable`, `bury` | what can be read of jobs that another program spoiled; making them dead, mending them |
//! | `in_the_way` | those that stand before others: made dead, or left out for a while |
//! | `groups` | the order within groups |
//! | `receipts` | outcomes kept for repeated calls |
//! | `push_once`, `apply_once` | pushes and changes of calls with an `Idempotency-Key`, with their answers |
//! | `obstacles` | why a job is not delivered |
//! | `search`, `lines` | jobs by filter; groups |
//! | `query`, `expired`, `stocked` | jobs by id, pages; reservations and jobs past their deadline; queues with due jobs |

mod apply;
pub mod apply_atomic;
pub mod apply_once;
pub mod bury;
mod claim;
mod claim_limited;
mod deletion;
pub mod document;
mod expired;
mod field;
pub mod groups;
mod guard;
mod head;
mod holders;
pub mod in_the_way;
mod lines;
pub mod next;
mod obstacles;
mod oversized;
mod passes;
mod payload;
pub mod plan;
mod proof;
pub mod push;
pub mod push_once;
pub mod query;
pub mod receipts;
pub mod rewrite;
pub mod search;
mod stocked;
pub mod transitions;
pub mod unreadable;

use async_trait::async_trait;
use mongodb::options::ReadConcern;

use crate::job::error_group::Tally;
use crate::job::group::Line;
use crate::job::{Claim, Job, JobId, Mark, Meta, NewJob, QueueName, Reach, Rules, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::{
    Applied, Change, ClaimAsk, Claims, Denied, Found, GroupLine, Jobs, ListedJob, Obstacles, Overdue, Pushed,
    Result, Search,
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

    async fn marked(&self, marks: &[Mark]) -> Result<Vec<Job>> {
        self.connection.within(async { claim::marked(self.connection.database().await?, marks).await }).await
    }

    async fn apply(&self, changes: Vec<Change>, rules: &Rules) -> Vec<Result<Applied, Denied>> {
        let applied = apply::apply(self, changes, rules).await;
        self.semaphores.released(applied.iter().flatten().flat_map(|applied| &applied.released));
        if applied.iter().flatten().any(|applied| !applied.repeated) {
            self.last_write.note();
        }
        applied
    }

    async fn prove_commit(&self, id: &JobId, claim: &Claim, until: Timestamp) -> Result<bool> {
        self.connection.within(next::prove_commit(self, id, claim, until)).await
    }

    async fn overdue(&self, limit: usize) -> Result<Overdue> {
        self.connection.within(expired::expired(self, limit)).await
    }

    async fn upcoming(&self, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
        self.connection.within(query::upcoming(self, limit)).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>> {
        self.connection.within(query::get(self, ids, ReadConcern::local())).await
    }

    async fn get_durable(&self, ids: &[JobId]) -> Result<Vec<Option<ListedJob>>> {
        self.connection.within(query::get(self, ids, ReadConcern::majority())).await
    }

    async fn unfinished(&self, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.connection.within(query::unfinished(self, ids)).await
    }

    async fn search(&self, ask: &Search) -> Result<Found> {
        self.connection.within(search::search(self, ask)).await
    }

    async fn tally_dead(&self, within: &Reach) -> Result<(Tally, bool)> {
        self.connection.within(search::tally_dead(self, within)).await
    }

    async fn groups(&self, within: &Reach, after: Option<&Line>, limit: usize) -> Result<Vec<GroupLine>> {
        self.connection.within(lines::groups(self, within, after, limit)).await
    }

    async fn peek(&self, queue: &QueueName, limit: usize) -> Result<Vec<Job>> {
        self.connection.within(head::peek(self, queue, limit)).await
    }

    async fn obstacles(&self, job: &Meta) -> Result<Obstacles> {
        self.connection.within(obstacles::obstacles(self, job)).await
    }

    async fn queues(&self, prefix: &str, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.connection.within(query::queues(self, prefix, after, limit)).await
    }

    async fn stocked(&self, queues: &[QueueName]) -> Result<Vec<QueueName>> {
        self.connection.within(stocked::stocked(self, queues)).await
    }
}
