//! What it takes to copy a store into another: see [`Transfer`].

use async_trait::async_trait;

use super::{AuditRow, KeyedCall, Result};
use crate::job::rate::Deliveries;
use crate::job::receipt::Receipt;
use crate::job::record::KeyUntil;
use crate::job::{Claim, Job, JobId, JobKey, Meta, QueueName, Timestamp};

/// What became of something that was imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// It was not there; now it is.
    New,
    /// It was there, and equal.
    Same,
    /// Something else of that name was there, and still is: nothing is ever overwritten.
    Different,
}

/// What a store keeps of a key: see [`KeyHold`](crate::job::record::KeyHold).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldKey {
    /// The queue of the push.
    pub queue: QueueName,
    /// The key.
    pub key: JobKey,
    /// The job that took it, which may be gone by now.
    pub job: JobId,
    /// Equal where another push with the key has an equal payload.
    pub digest: [u8; 32],
    /// Taken until this moment, and for as long as the job is unfinished.
    pub until: Timestamp,
    /// When the job was due at its push.
    pub run_at: Timestamp,
    /// Until when the job has it.
    pub lasts: KeyUntil,
}

/// What a store remembers for a while.
#[derive(Debug, Clone, PartialEq)]
pub enum Memo {
    /// The receipt of a call, for a repeat of it.
    Receipt {
        /// The receipt.
        receipt: Receipt,
        /// How long it is kept.
        until: Timestamp,
    },
    /// A request with an `Idempotency-Key`. One that was running when its server ended is taken over by its repeat.
    Request {
        /// See [`Request::id`](super::Request::id).
        id: String,
        /// See [`Request::digest`](super::Request::digest).
        digest: [u8; 32],
        /// Marks what it has won.
        claim: Claim,
        /// The jobs that it has won, once it is closed.
        won: Option<Vec<JobId>>,
        /// How long it is kept.
        until: Timestamp,
    },
    /// What another call with an `Idempotency-Key` was answered.
    Answer {
        /// The call.
        call: KeyedCall,
        /// Its answer.
        answer: String,
    },
    /// The deliveries that the `rate` of a queue counts.
    Deliveries {
        /// The queue.
        queue: QueueName,
        /// The deliveries.
        recent: Deliveries,
    },
}

/// The kinds of [`Memo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as what they are kinds of")]
pub enum MemoKind {
    Receipts,
    Requests,
    Answers,
    Deliveries,
}

impl MemoKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Receipts, Self::Requests, Self::Answers, Self::Deliveries];
}

impl Memo {
    /// Returns what names it among those of its kind.
    pub fn id(&self) -> String {
        match self {
            Self::Receipt { receipt: Receipt { id, claim, .. }, .. } => format!("{id}/{}", claim.as_str()),
            Self::Request { id, .. } => id.clone(),
            Self::Answer { call, .. } => call.id.clone(),
            Self::Deliveries { queue, .. } => queue.to_string(),
        }
    }

    /// Returns when it is forgotten, where that is known.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::Receipt { until, .. } | Self::Request { until, .. } => Some(*until),
            Self::Answer { call, .. } => Some(call.until),
            Self::Deliveries { .. } => None,
        }
    }

    /// Returns its kind.
    pub fn kind(&self) -> MemoKind {
        match self {
            Self::Receipt { .. } => MemoKind::Receipts,
            Self::Request { .. } => MemoKind::Requests,
            Self::Answer { .. } => MemoKind::Answers,
            Self::Deliveries { .. } => MemoKind::Deliveries,
        }
    }
}

/// What says that a store has a part of what is to come into it: a backup is being restored, or another store copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreMark {
    /// Where that comes from: the id of the backup, or a digest of the other store's secret. MongoDB keeps it as `backup`.
    pub origin: String,
    /// A random number that the process which fills the store replaces again and again, as a sign that it goes on; 0: none is known.
    pub beat: i64,
}

/// Copying jobs and keys from one store to another. Batches, schedules and the rest are copied by the verbs
/// about them.
#[async_trait]
pub trait Transfer: Send + Sync {
    /// Returns every job of every queue, by id, those after `after`: up to `limit`, fewer where they are
    /// long, and none only where there are no more.
    async fn export(&self, after: Option<&JobId>, limit: usize) -> Result<Vec<Job>>;

    /// Stores jobs of another store as they are, with their states, tokens, deadlines and history. What is
    /// there already stays as it is. No limit applies and no key is taken; `rev` need not be kept.
    async fn import(&self, jobs: Vec<Job>) -> Vec<Result<Imported>>;

    /// Returns every key that is stored, in an order of the store's own, those after `after`; none only where
    /// there are no more.
    async fn export_keys(&self, after: Option<&HeldKey>, limit: usize) -> Result<Vec<HeldKey>>;

    /// Returns what is stored of the keys of these queues and names, in this order.
    async fn keys_like(&self, keys: &[HeldKey]) -> Result<Vec<Option<HeldKey>>>;

    /// Stores keys of another store, whether or not their jobs are here. What is there already stays.
    async fn import_keys(&self, keys: Vec<HeldKey>) -> Vec<Result<Imported>>;

    /// Returns everything of a kind that is remembered, in an order of the store's own, what comes after `after`: up to `limit`, fewer
    /// where they are long, and nothing only where there is no more.
    async fn export_memos(&self, kind: MemoKind, after: Option<&Memo>, limit: usize) -> Result<Vec<Memo>>;

    /// Remembers what another store did. What is there already stays.
    async fn import_memos(&self, memos: Vec<Memo>) -> Vec<Result<Imported>>;

    /// Stores rows of the audit of another store. What is there already stays.
    async fn import_audit(&self, rows: Vec<AuditRow>) -> Vec<Result<Imported>>;

    /// Returns the mark of a restore or a copy into this store that has begun and not ended, if there is one.
    async fn restoring(&self) -> Result<Option<RestoreMark>>;

    /// Replaces that mark, if it is still as it was seen; without a new one the run has ended. Returns whether it is so from now on: a
    /// repeat after an unknown outcome as well.
    async fn mark_restoring(&self, seen: Option<&RestoreMark>, to: Option<&RestoreMark>) -> Result<bool>;
}

/// Returns whether two jobs are equal in all that clients can see: all but the guard of their writes.
pub fn same(one: &Job, other: &Job) -> bool {
    // A payload that another program wrote need not be canonical.
    let canonical = |job: &Job| job.clone().canonical();
    is_same(one, other)
        || canonical(one).is_ok_and(|one| canonical(other).is_ok_and(|other| is_same(&one, &other)))
}

fn is_same(one: &Job, other: &Job) -> bool {
    let meta = Meta { rev: other.meta.rev, ..one.meta.clone() };
    meta == other.meta
        && one.payload == other.payload
        && one.headers == other.headers
        && one.result == other.result
}
