//! Where jobs live: the contract that a database behind Tailback keeps.
//!
//! [`Store`] is a set of small traits of atomic verbs, one trait for each subject. Those on the hot path are
//! batch-first: each takes a list and returns a result for each element, in the same order, so that requests
//! which arrive together share a round trip. What an operation does to a job is not a store's business:
//! [`crate::job::transition::step`] says it, a store makes it atomic and durable. `tests/conformance.rs` holds
//! every store to this contract.
//!
//! | trait | what it is about |
//! |---|---|
//! | [`Store`] | the store as a whole |
//! | [`Jobs`] | pushing, claiming, changing and finding jobs |
//! | [`Batches`], [`Schedules`], [`Semaphores`], [`Workers`] | what clients name beside jobs |
//! | [`Settings`] | the settings of queues |
//! | [`Requests`] | reserves with an `Idempotency-Key` |
//! | [`Answers`] | other calls with one, and what they were answered |
//! | [`Access`] | API keys, and the secret of reservation tokens |
//! | [`Operations`] | operations over many jobs |
//! | [`Audit`] | what operators did |
//! | [`Figures`] | how many jobs there are, and how the database is used |
//! | [`Series`] | how many there were, and what happened |
//! | [`Signals`] | signals between the servers over one database |
//! | [`Transfer`] | copying everything from one store to another, and marking what is being restored |
//!
//! [`picture`] reads all of it as it was at one moment, for a backup.
//!
//! [`hold`] keeps what a call holds, such as memory, for as long as work for it goes on.
//!
//! `mongo` and `sqlite` implement each trait in the file about it; [`metered`] wraps either.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use crate::job::{Claim, JobId, QueueName, Timestamp};

pub mod access;
pub mod admission;
pub mod answers;
pub mod audit;
pub mod batches;
pub mod delivered;
pub mod fence;
pub mod figures;
pub mod hold;
pub mod jobs;
pub mod metered;
mod migrations;
pub mod mongo;
pub mod next;
pub mod operations;
pub mod page;
pub mod picture;
mod prune;
pub mod receipts;
pub mod requests;
pub mod schedules;
pub mod search;
pub mod semaphores;
pub mod series;
pub mod settings;
pub mod signals;
pub mod sqlite;
pub mod transfer;
pub mod workers;

pub use crate::job::Filter;
pub use crate::job::push::{PushRefused, Pushed};
pub use access::{Access, StoredKeys, TokenSecret, UnreadableKey};
pub use answers::{Answering, Answers, Keyed, KeyedCall, Once, Recalled};
pub use audit::{Audit, AuditFilter, AuditRow};
pub use batches::{BatchChange, BatchChanged, BatchDenied, Batches, CalledBack};
pub use figures::{
    ALL_SCAN_LIMIT, BLOCKED_SCAN_LIMIT, Blockers, Counts, DUE_SCAN_LIMIT, DeadHead, Figures, Load, Named,
    Pool, QUEUES_SCAN_LIMIT, QueueCounts, RESERVED_AGES_MS, Reconciled, SCAN_LIMIT, StoreSize, Summary,
};
pub use jobs::{
    AHEAD_MAX, Applied, Change, ClaimAsk, Claims, Denied, GroupLine, Jobs, LOOK_AHEAD_MS, LineHead,
    ListedJob, Obstacles, Overdue, UnreadableJob, listed_id,
};
pub use next::{TakeAsk, Taken};
pub use operations::{BegunBy, BulkDone, BulkEffect, BulkNext, BulkRow, BulkStep, Operations};
pub use page::{PAGE_BYTES, PageBuilder, Weight};
pub use requests::{Opened, Request, Requests};
pub use schedules::{Fired, Firing, ListedSchedule, Schedules};
pub use search::{Found, Search};
pub use semaphores::{
    Holder, NEEDED_MAX, NEEDED_NAMED, NEEDING, Needed, Removal, SemaphoreUse, SemaphoreView, Semaphores,
    UNBLOCKED_QUEUES_MAX, Unblocked,
};
pub use series::{
    Depth, RecentTally, Series, SeriesRead, SeriesRow, SeriesRun, SeriesWrite, Span, StepOfOther, Subject,
    ToldStep,
};
pub use settings::{Expected, Saved, Settings, SettingsChange, SettingsSnapshot, StoredSettings};
pub use signals::{Arrivals, KnownServer, Signal, SignalEvent, Signals};
pub use transfer::{HeldKey, Imported, Memo, MemoKind, RestoreMark, Transfer};
pub use workers::{Holdings, Report, TimedOut, Worker, Workers};

/// Why nothing is done with a part of a backup.
pub const RESTORING: &str = "a backup is being restored into it, or another store copied. Once `tailback import` or `tailback migrate` \
                             has ended, a server may start; if that was interrupted, run it again with the same backup, or the \
                             same --from and --to";

/// Why a verb did not do its work. After [`StoreError::Unavailable`] it may still have been done: an error
/// behind a sent command means *unknown*, never *not done*.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, has no primary, or took too long. A retry may succeed.
    #[error("the store cannot be reached at the moment")]
    Unavailable(#[source] Cause),
    /// The index that serves this is being built, once, in a store with many jobs. A retry succeeds when it is there.
    #[error("the index that serves this is being built, once; with many jobs that takes a while")]
    Building,
    /// The database has no room left. Nothing was stored.
    #[error("the store has no room left; nothing was stored")]
    Full(#[source] Cause),
    /// The database's file is damaged, or its disk cannot be read, which looks alike. What was sent may have been done.
    #[error("the database file is damaged, or its disk cannot be read")]
    Damaged(#[source] Cause),
    /// The database is not one that Tailback can run on; says why, and what to do about it.
    #[error("the store cannot be used: {0}")]
    Unsuitable(String),
    /// What is stored under this name cannot be read: another program wrote it. It concerns nothing else, and writing or
    /// deleting it mends it.
    #[error("what is stored cannot be read")]
    Unreadable(#[source] Cause),
    /// A unique index that another program made has a value already which was to be written; it is named. It concerns nothing else, and
    /// nothing of it was stored.
    #[error(
        "the unique index `{0}`, which another program made, has such a value already; nothing was stored"
    )]
    NotUnique(Cause),
    /// The database returned something that it never should.
    #[error("the store failed in an unexpected way")]
    Internal(#[source] Cause),
}

/// What is behind a [`StoreError`]: for the log, not for the caller.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub Arc<str>);

impl StoreError {
    /// Returns the error of a call that has stored so many things already: that there is no room for the rest does not
    /// mean that nothing was stored.
    pub fn after(self, stored: u64) -> Self {
        match self {
            Self::Full(cause) if stored > 0 => Self::Unavailable(cause),
            error => error,
        }
    }

    /// Whether the store is away as a whole, and may come back: a disk that could not be read may be mended.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Damaged(_))
    }

    /// Whether there is no room for what was to be written, which may change.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Returns a [`StoreError::Unavailable`] with this cause.
    pub fn unavailable(cause: impl std::fmt::Display) -> Self {
        Self::Unavailable(Cause(cause.to_string().into()))
    }

    /// Returns the error of something that was read by its name, which says that it cannot be read where it cannot.
    pub(super) fn unreadable(self) -> Self {
        if let Self::Internal(cause) = self { Self::Unreadable(cause) } else { self }
    }

    /// Returns a [`StoreError::Internal`] with this cause.
    pub fn internal(cause: impl std::fmt::Display) -> Self {
        Self::Internal(Cause(cause.to_string().into()))
    }
}

/// Returns an error and all its causes, in one line for the log.
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

/// In which time what is read was so: a failover begins another one, whose primary need not have it. Of a store without failovers there
/// is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Term(Option<[u8; 12]>);

impl Term {
    /// Returns the term that began with this election.
    pub fn of(election: [u8; 12]) -> Self {
        Self(Some(election))
    }
}

/// What a verb returns.
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
    + Answers
    + Access
    + Operations
    + Audit
    + Figures
    + Series
    + Signals
    + Transfer
    + 'static
{
    /// Returns which database it is, as OpenTelemetry calls it (`db.system.name`).
    fn system(&self) -> &'static str;

    /// Brings the database's schema up to this version and returns the names of the migrations that were
    /// missing. Idempotent, never destructive, safe when several servers do it at once.
    async fn migrate(&self) -> Result<Vec<String>>;

    /// Fails where only a part is there of a backup, or of another store: nothing but what brings the rest may use that.
    async fn check_whole(&self) -> Result<()> {
        match self.restoring().await? {
            Some(_) => Err(StoreError::Unsuitable(RESTORING.to_owned())),
            None => Ok(()),
        }
    }

    /// Checks that the database takes writes, and reads its clock: keeps [`Store::now`] true. Returns when a write was last seen to be
    /// durable, a few seconds ago at most.
    async fn ping(&self) -> Result<Instant>;

    /// Returns the term in which what is read from now on is read.
    fn term(&self) -> Term {
        Term::default()
    }

    /// Returns once all that this caller has read since it noted this term is durable: where it decides an answer that reports an effect
    /// and nothing is written, a failover must not take it back. Fails where another term has begun.
    async fn confirm(&self, _since: Term) -> Result<()> {
        Ok(())
    }

    /// Returns the time by the store's clock, estimated without a round trip. A lower bound: never ahead of
    /// the clock, so that a job pushed for now is due for the very next claim.
    fn now(&self) -> Result<Timestamp>;

    /// Returns the queue of a reserved job that is remembered, if a commit by this claim that pushes nothing ends it and changes nothing
    /// else, and the time until which the absence of the job proves it, at least [`PROOF_MS`](crate::job::PROOF_MS) ahead: then the next jobs may be
    /// claimed while it is carried out. Only of a store that gains something by that.
    fn ends_alone(&self, _id: &JobId, _claim: &Claim) -> Option<(QueueName, Timestamp)> {
        None
    }

    /// Returns by how many milliseconds the store's clock is ahead of the machine's, because that was set back. Only of a store whose
    /// clock is the machine's.
    fn ahead_ms(&self) -> u64 {
        0
    }

    /// Deletes up to `limit` records whose time has passed, and returns how many: keys whose job has ended,
    /// history and, where the database does not do it by itself, receipts and requests. What else it clears of the past counts while there
    /// is more of it: where it returns 0, there is nothing to do for now.
    async fn prune(&self, limit: usize) -> Result<u64>;

    /// Closes all connections.
    async fn close(&self);
}
