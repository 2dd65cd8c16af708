//! What it takes to copy a store into another: see [`Transfer`].

use async_trait::async_trait;

use super::Result;
use crate::job::{Job, JobId, JobKey, Meta, QueueName, Timestamp};

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
}

/// Returns whether two jobs are equal in all that clients can see: all but the guard of their writes.
pub fn same(one: &Job, other: &Job) -> bool {
    let meta = Meta { rev: other.meta.rev, ..one.meta.clone() };
    meta == other.meta
        && one.payload == other.payload
        && one.headers == other.headers
        && one.result == other.result
}
