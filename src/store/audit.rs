//! The part of the contract that is about the audit: a row for each administrative act, written in the transaction of the act.
//!
//! A verb that is such an act, and changes one thing, takes its row from the call that it is made in ([`along`]): so it is for all of
//! them alike, and none has a parameter more. Verbs that do several things at once take a row with each of them.
//!
//! **A store counts the jobs**: where such a row has `affected`, each transaction of the call that changes or stores jobs adds how many to
//! what it says there of them by then. So it is true however many transactions an act takes, and wherever it is interrupted.

use async_trait::async_trait;

use super::Result;
pub use crate::job::audit::AuditRow;
use crate::job::{JobId, QueueName, Timestamp};

/// How many rows are kept at most.
pub const ROWS_MAX: usize = 100_000;
/// How long a row is kept, in milliseconds: 90 days.
pub const KEPT_MS: u64 = 90 * 86_400_000;

tokio::task_local! {
    static ROW: AuditRow;
}

/// Makes one call of a store with this row, which the store writes in the transaction of what the call does, if it does something.
pub async fn along<T>(row: Option<AuditRow>, call: impl Future<Output = T>) -> T {
    match row {
        Some(row) => ROW.scope(row, call).await,
        None => call.await,
    }
}

/// Returns the row of the current call.
pub fn row() -> Option<AuditRow> {
    ROW.try_with(Clone::clone).ok()
}

/// Returns the row of a call as it is to be written once so many more jobs were affected; `there`: as it is by now.
pub fn counted(row: &AuditRow, there: Option<AuditRow>, more: u64) -> AuditRow {
    let before = there.and_then(|there| there.affected).or(row.affected).unwrap_or(0);
    AuditRow { affected: Some(before.saturating_add(more)), ..row.clone() }
}

/// Which rows.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Of acts at this time or later.
    pub from: Option<Timestamp>,
    /// Of acts before this time.
    pub to: Option<Timestamp>,
    /// Of acts of this key.
    pub by: Option<String>,
    /// Of acts of this kind.
    pub what: Option<String>,
    /// Of acts about this queue.
    pub queue: Option<QueueName>,
}

impl AuditFilter {
    /// Returns the ids between which rows may be: from the first one on, and before the second one.
    pub fn ids(&self, before: Option<&JobId>) -> (Option<JobId>, Option<JobId>) {
        let to = self.to.map(JobId::first_of);
        let end = match (to, before) {
            (Some(to), Some(before)) => Some(to.min(before.clone())),
            (to, before) => to.or_else(|| before.cloned()),
        };
        (self.from.map(JobId::first_of), end)
    }
}

/// What was done by whom.
#[async_trait]
pub trait Audit: Send + Sync {
    /// Returns the rows that match, the latest first, those before `before`.
    async fn audit(
        &self,
        filter: &AuditFilter,
        before: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<AuditRow>>;
}
