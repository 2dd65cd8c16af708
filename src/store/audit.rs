//! The part of the contract that is about the audit: a row for each administrative act, written in the transaction of the act.
//!
//! A verb that is such an act, and changes one thing, takes its row from the call that it is made in ([`along`]): so it is for all of
//! them alike, and none has a parameter more. Verbs that do several things at once take a row with each of them.
//!
//! **A store counts the jobs**: where such a row has `affected`, each transaction of the call that changes or stores jobs adds how many to
//! what it says there of them by then. So it is true however many transactions an act takes, and wherever it is interrupted.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::json;

use super::Result;
pub use crate::job::audit::AuditRow;
use crate::job::audit::{shown, shown_job};
use crate::job::transition::Next;
use crate::job::{JobId, Meta, Payload, QueueName, Timestamp};

/// How many rows are kept at most.
pub const ROWS_MAX: usize = 100_000;
/// How long a row is kept, in milliseconds: 90 days.
pub const KEPT_MS: u64 = 90 * 86_400_000;

tokio::task_local! {
    static ROW: Entry;
}

/// Makes one call of a store with this row, which the store writes in the transaction of what the call does, if it does something.
pub async fn along<T>(row: Option<impl Into<Entry>>, call: impl Future<Output = T>) -> T {
    match row {
        Some(row) => ROW.scope(row.into(), call).await,
        None => call.await,
    }
}

/// Returns the row of the current call.
pub fn row() -> Option<Entry> {
    ROW.try_with(Clone::clone).ok()
}

/// The row of an act, and as what it was stored. Its line is logged when the last clone is dropped: then the act is over, and all of its
/// transactions have counted their jobs. So what is not stored is not logged.
#[derive(Debug, Clone)]
pub struct Entry(Arc<Recorded>);

#[derive(Debug)]
struct Recorded {
    row: AuditRow,
    written: Mutex<Written>,
}

/// What is known of a row in the store.
#[derive(Debug)]
enum Written {
    Nothing,
    /// The outcome of its transaction is unknown.
    Perhaps(AuditRow),
    Stored(AuditRow),
}

impl From<AuditRow> for Entry {
    fn from(row: AuditRow) -> Self {
        Self(Arc::new(Recorded { row, written: Mutex::new(Written::Nothing) }))
    }
}

impl Deref for Entry {
    type Target = AuditRow;

    fn deref(&self) -> &AuditRow {
        &self.0.row
    }
}

impl Entry {
    /// Notes that a transaction with this row was committed.
    pub fn stored(&self, row: AuditRow) {
        *self.0.written.lock().unwrap_or_else(PoisonError::into_inner) = Written::Stored(row);
    }

    /// Notes that the outcome of a transaction with this row is unknown.
    pub fn perhaps_stored(&self, row: AuditRow) {
        let mut written = self.0.written.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*written, Written::Stored(_)) {
            *written = Written::Perhaps(row);
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        match self.written.get_mut().unwrap_or_else(PoisonError::into_inner) {
            Written::Nothing => {}
            Written::Perhaps(row) => log(row, Some("unknown")),
            Written::Stored(row) => log(row, None),
        }
    }
}

/// Logs a row that is stored, or whose outcome is this.
pub fn log(row: &AuditRow, outcome: Option<&str>) {
    let AuditRow { id, by, by_name, address, what, on, queue, affected, at: _, before: _, after: _ } = row;
    let (by_name, queue) = (by_name.as_deref(), queue.as_ref().map(QueueName::as_str));
    let address = address.map(tracing::field::display);
    tracing::info!(what, on, queue, by, by_name, address, affected, outcome, entry = %id, "operated");
}

/// The row of the act that a transaction is, and what of it the current attempt has written.
#[derive(Debug, Default)]
pub struct Recording {
    /// The row.
    pub row: Option<Entry>,
    /// What the attempt has found and made.
    pub seen: Option<Seen>,
    /// The row as the attempt has written it.
    pub written: Option<AuditRow>,
}

impl Recording {
    /// That of the current call.
    pub fn of_call() -> Self {
        Self { row: row(), ..Self::default() }
    }

    /// Forgets the attempt before.
    pub fn begin(&mut self) {
        (self.seen, self.written) = (None, None);
    }

    /// Notes that the attempt was committed, or may have been.
    pub fn end(&mut self, is_certain: bool) {
        match (&self.row, self.written.take()) {
            (Some(entry), Some(written)) if is_certain => entry.stored(written),
            (Some(entry), Some(written)) => entry.perhaps_stored(written),
            _ => {}
        }
    }
}

/// What a transaction has found and made, where only it knows that.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// What it was before.
    pub before: Option<Payload>,
    /// What it is from then on.
    pub after: Option<Payload>,
}

impl Seen {
    /// What becomes of a job.
    pub fn of_job(before: &Meta, next: &Next, now: Timestamp) -> Self {
        let after = match next {
            Next::Write { meta, .. } => shown_job(meta, now),
            Next::Keep | Next::Delete => None,
        };
        Self { before: shown_job(before, now), after }
    }

    /// How many may hold a semaphore, where there is one.
    pub fn of_semaphore(before: Option<u64>, after: Option<u64>) -> Self {
        let shown = |capacity: u64| shown(&json!({ "capacity": capacity }));
        Self { before: before.and_then(shown), after: after.and_then(shown) }
    }
}

/// Returns a row with what its transaction has seen.
pub fn seeing(row: &AuditRow, seen: Option<Seen>) -> AuditRow {
    let Seen { before, after } = seen.unwrap_or_default();
    let row = row.clone();
    AuditRow { before: before.or(row.before), after: after.or(row.after), ..row }
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
