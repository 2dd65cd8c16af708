//! Where jobs live: the contract that a database behind Tailback keeps.
//!
//! [`Store`] is a small set of atomic verbs. Those on the hot path are batch-first: each takes a list and
//! answers for each element at its place, so that requests which arrive together can travel together. What
//! an operation does to a job is not a store's business: [`crate::job::transition::step`] says it, a store
//! makes it atomic and durable. `tests/conformance.rs` holds every store to this contract.

use std::sync::Arc;

use async_trait::async_trait;

use crate::job::Timestamp;

pub mod admission;
pub mod batches;
pub mod figures;
pub mod jobs;
pub mod metered;
pub mod mongo;
pub mod receipts;
pub mod requests;
pub mod schedules;
pub mod semaphores;
pub mod settings;
pub mod signals;
pub mod sqlite;
pub mod transfer;
pub mod workers;

pub use crate::job::push::{PushRefused, Pushed};
pub use batches::{BatchChanged, BatchDenied, Batches, CalledBack};
pub use figures::{Counts, Figures, QueueCounts, Reconciled};
pub use jobs::{Applied, Change, ClaimAsk, Claims, Denied, Filter, Jobs, LOOK_AHEAD_MS, Overdue};
pub use requests::{Opened, Request, Requests};
pub use schedules::{Fired, Firing, Schedules};
pub use semaphores::{Called, Holder, Removal, SemaphoreView, Semaphores};
pub use settings::{Expected, Saved, Settings, SettingsSnapshot, StoredSettings};
pub use signals::{Arrivals, Signal, SignalEvent, Signals};
pub use transfer::{HeldKey, Imported, Transfer};
pub use workers::{Holdings, Report, TimedOut, Worker, Workers};

/// Why a verb did not do its work. After [`StoreError::Unavailable`] it may still have been done: an error
/// behind a sent command means *unknown*, never *not done*.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, has no primary, or took too long. It is worth trying again.
    #[error("the store cannot be reached at the moment")]
    Unavailable(#[source] Cause),
    /// The database has no room left. Nothing was stored.
    #[error("the store has no room left; nothing was stored")]
    Full(#[source] Cause),
    /// The database is not one that Tailback can run on; says why, and what to do about it.
    #[error("the store cannot be used: {0}")]
    Unsuitable(String),
    /// The database answered something that it never should.
    #[error("the store failed in an unexpected way")]
    Internal(#[source] Cause),
}

/// What is behind a [`StoreError`]: for the log, not for the caller.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub Arc<str>);

impl StoreError {
    /// An [`StoreError::Unavailable`] with this text behind it.
    pub fn unavailable(cause: impl std::fmt::Display) -> Self {
        Self::Unavailable(Cause(cause.to_string().into()))
    }

    /// An [`StoreError::Internal`] with this text behind it.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self::Internal(Cause(cause.to_string().into()))
    }
}

/// An error and all that is behind it, in one line for the log.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut behind = error.source();
    while let Some(cause) = behind {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        behind = cause.source();
    }
    text
}

/// The answer of a verb.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// A database that keeps jobs: all parts of the contract, and what concerns the database as a whole. See the
/// module's documentation.
///
/// A verb that writes returns after the write is durable. Every verb has a deadline of its own and ends in
/// [`StoreError::Unavailable`] when it runs into it.
#[async_trait]
pub trait Store:
    Jobs
    + Batches
    + Schedules
    + Semaphores
    + Workers
    + Settings
    + Requests
    + Figures
    + Signals
    + Transfer
    + 'static
{
    /// Brings the database's schema up to this version and answers the names of the migrations that were
    /// missing. Idempotent, never destructive, safe when several servers do it at once.
    async fn migrate(&self) -> Result<Vec<String>>;

    /// Whether the database can take writes, and what time it is there: keeps [`Store::now`] true.
    async fn ping(&self) -> Result<()>;

    /// The store's clock, estimated without a round trip and never ahead of it, so that a job pushed for
    /// now is due for the very next claim.
    fn now(&self) -> Result<Timestamp>;

    /// Forgets up to `limit` records whose time has passed: keys whose job has ended, history and,
    /// where the database does not do it by itself, receipts and requests. Answers how many.
    async fn prune(&self, limit: usize) -> Result<u64>;

    /// Lets go of the database.
    async fn close(&self);
}
