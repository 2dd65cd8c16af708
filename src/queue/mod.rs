//! The product: one method of [`Queues`] for each thing that a client can ask for. Knows no HTTP and no
//! database.
//!
//! | file | what it does |
//! |---|---|
//! | `push` | new jobs |
//! | `reserve` | reserve and pop: claiming, waiting, giving back what its client did not receive |
//! | `ask` | what a reserve or pop asks for |
//! | `once` | reserves with an `Idempotency-Key` |
//! | `keyed` | other calls with one: done once, and answered alike each time |
//! | `settle` | commit, rollback, extend, move; the repeats of lost responses |
//! | `jobs` | read, change, cancel and browse jobs |
//! | `batches` | jobs that belong together, and a job at their end |
//! | `settings`, `configure` | the queues and their settings, and changes of them |
//! | `access`, `key_limits` | API keys, and how much each may ask for |
//! | `credential` | whether what a request has shown still holds when it acts |
//! | `semaphores` | semaphores |
//! | `schedules` | schedules |
//! | `bulk` | purge, redrive, replay |
//! | `workers` | heartbeats, and the jobs of removed workers |
//! | `stats`, `meter` | the figures |
//! | `quotas` | how many queues, workers and so on there may be |
//! | `pages`, `reached` | lists, page by page; those by name of what a caller reaches |
//! | `rounds` | batching: calls that arrive together share a call of the store |
//! | `waiters`, `peers` | waiters for jobs on this server, and on the other servers over the same store |
//! | `outcomes` | a cache of how jobs were settled lately |
//! | `maintenance`, `alarm` | what background tasks do, and what wakes them |
//! | `readiness` | whether this server can serve |

mod access;
mod alarm;
mod ask;
mod batches;
mod bulk;
mod configure;
mod credential;
mod jobs;
mod key_limits;
mod keyed;
mod maintenance;
pub mod meter;
mod once;
mod outcomes;
mod pages;
mod peers;
mod push;
mod quotas;
mod reached;
mod readiness;
mod reserve;
mod rounds;
mod schedules;
mod semaphores;
mod settings;
pub mod settle;
mod stats;
mod waiters;
mod workers;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use self::access::KeyRing;
pub use self::access::{FreshKey, NewApiKey, Recognised};
use self::alarm::{Alarm, PollAlarm};
pub use self::ask::{PopAsk, ReserveAsk, Room};
pub use self::batches::NewBatch;
pub use self::bulk::FinishedRange;
use self::configure::ConfigureRounds;
pub use self::credential::{Credential, Shown};
pub use self::jobs::{Cancelled, Edit};
pub use self::key_limits::Permit;
pub use self::keyed::{CallKey, Told};
pub use self::maintenance::{Maintenance, Run};
use self::meter::Meter;
pub use self::once::IdempotencyKey;
use self::once::Runs;
use self::outcomes::Outcomes;
pub use self::pages::Page;
use self::push::PushRounds;
pub use self::push::{NewPush, PushAnswer, When};
use self::quotas::Admission;
pub use self::quotas::Quotas;
pub use self::readiness::Readiness;
use self::reserve::ClaimRounds;
use self::rounds::RoundError;
use self::semaphores::SemaphoreNotes;
use self::settings::Refreshed;
pub use self::settings::{Precondition, QueueView};
use self::settle::SettleRounds;
pub use self::settle::{Settle, Settled};
use self::stats::StatsCache;
pub use self::stats::{Figures, Stats};
use self::waiters::Waiters;
pub use self::workers::{Heartbeat, Removed};
use crate::job::settings::Defaults;
use crate::job::transition::Refusal;
use crate::job::{
    BatchId, IdSource, Invalid, JobId, QueueName, Rules, ScheduleName, SemaphoreName, StoredKeyId, Timestamp,
    Tokens, Visible, WorkerName,
};
pub use crate::store::hold;
use crate::store::{Denied, Named, PushRefused, SettingsSnapshot, Store, StoreError};

/// Why a call was refused or failed. `http/problem.rs` says what it means for a client.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A value is out of its range.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There is no such job.
    #[error("there is no job {0}")]
    UnknownJob(JobId),
    /// There is no such worker.
    #[error("worker {0} has sent no heartbeat lately and holds no jobs")]
    UnknownWorker(WorkerName),
    /// There is no such batch.
    #[error("there is no batch {0}")]
    UnknownBatch(BatchId),
    /// All jobs of the batch are duplicates.
    #[error(
        "all jobs of the batch are duplicates, the first one of job {0}: the batch would count none of them, and end before they \
         have; nothing was stored. With an Idempotency-Key a batch can be sent again"
    )]
    OnlyDuplicates(JobId),
    /// The batch takes no more jobs.
    #[error("batch {0} is sealed")]
    BatchSealed(BatchId),
    /// The token is not, or no longer, the one that holds the job.
    #[error("the reservation of job {id} is not, or no longer, yours")]
    ReservationLost {
        /// The job.
        id: JobId,
        /// Whether the job does not exist any more either.
        gone: bool,
    },
    /// The job's state does not allow it.
    #[error("job {id} is {state:?}, which does not allow this")]
    WrongState {
        /// The job.
        id: JobId,
        /// What it is.
        state: Visible,
    },
    /// The key is taken by a job with another payload.
    #[error("the key is taken by job {0}, whose payload is another")]
    KeyConflict(JobId),
    /// The queue has as many unfinished jobs as it takes.
    #[error("queue {0} has as many unfinished jobs as its max_jobs allows")]
    QueueFull(QueueName),
    /// There are as many of these as there may be, and this is none of them.
    #[error("there are as many {} as limits.{} allows ({limit})", kind.as_str(), kind.option())]
    LimitReached {
        /// What there are too many of.
        kind: Named,
        /// How many there may be.
        limit: u64,
    },
    /// The queue cannot be deleted while it has jobs.
    #[error("queue {0} still has jobs")]
    QueueNotEmpty(QueueName),
    /// The settings have changed since the version that the caller knows.
    #[error("the settings of queue {0} are not of the version in If-Match")]
    SettingsChanged(QueueName),
    /// There is no such semaphore.
    #[error("there is no semaphore {0}")]
    UnknownSemaphore(SemaphoreName),
    /// The semaphore cannot be deleted while jobs need it.
    #[error("jobs that are not finished need the semaphore {0}")]
    SemaphoreInUse(SemaphoreName),
    /// There is no such schedule.
    #[error("there is no schedule {0}")]
    UnknownSchedule(ScheduleName),
    /// The schedule has changed since the version that the caller knows.
    #[error(
        "the schedule {0} is not of the version in If-Match, or was changed by another call at the same moment"
    )]
    ScheduleChanged(ScheduleName),
    /// The key with which the request began has ended since, or keys are required by now.
    #[error("{0}")]
    Unauthorized(&'static str),
    /// Jobs would go from a dead-letter queue to the next, and come back.
    #[error("makes a circle: {}", .0.iter().map(QueueName::as_str).collect::<Vec<_>>().join(" → "))]
    DeadLetterCircle(Vec<QueueName>),
    /// There is no such API key.
    #[error("there is no key {0}")]
    UnknownApiKey(StoredKeyId),
    /// The API key cannot be read: another program wrote it.
    #[error("the key {id} cannot be read: {why}; it can only be deleted")]
    UnreadableApiKey {
        /// What names it.
        id: StoredKeyId,
        /// What is wrong with it.
        why: String,
    },
    /// The same idempotency key came with another request.
    #[error("the Idempotency-Key was used for another request")]
    IdempotencyKeyReused,
    /// The first request with this idempotency key is still running.
    #[error("the first request with this Idempotency-Key is still running")]
    RequestPending,
    /// The server is about to stop, and the first request with this idempotency key still running elsewhere.
    #[error("the server is shutting down; the first request with this Idempotency-Key is still running")]
    Draining,
    /// Too much was waiting for the store already; nothing happened.
    #[error("too many requests are waiting for the store; nothing happened")]
    Overloaded,
    /// The API key is at one of its limits.
    #[error("{what}; nothing happened")]
    KeyLimited {
        /// Which limit.
        what: String,
        /// After which time to try again.
        wait: Duration,
    },
    /// The memory for responses is in use.
    #[error("{NO_ROOM}")]
    NoRoom,
    /// As many calls wait for jobs as may; there is no job now.
    #[error(
        "there is no job now, and too many calls wait for one (limits.waiting, and four fifths of limits.connections; of this peer, of \
         limits.connections_per_peer)"
    )]
    TooManyWaiting,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<RoundError> for Error {
    fn from(error: RoundError) -> Self {
        match error {
            RoundError::Overloaded => Self::Overloaded,
            RoundError::Lost => StoreError::internal("a round ended without a result").into(),
        }
    }
}

impl Error {
    /// An [`Error::Invalid`] at this JSON pointer.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Invalid::new(pointer, detail).into()
    }

    /// Returns the error of a call that has stored so many things already; see [`StoreError::after`].
    fn after(self, stored: u64) -> Self {
        match self {
            Self::Store(error) => Self::Store(error.after(stored)),
            error => error,
        }
    }

    fn denied(id: &JobId, denied: Denied) -> Self {
        match denied {
            Denied::Refused(Refusal::Lost { gone }) => Self::ReservationLost { id: id.clone(), gone },
            Denied::Refused(Refusal::Unknown) => Self::UnknownJob(id.clone()),
            Denied::Refused(Refusal::Conflict { state }) => Self::WrongState { id: id.clone(), state },
            // Only a move ends so, and names the queue itself.
            Denied::Refused(Refusal::Full) => Self::ReservationLost { id: id.clone(), gone: false },
            Denied::PushRefused(PushRefused { key_of: Some(id), .. }) => Self::KeyConflict(id),
            Denied::PushRefused(PushRefused { queue, .. }) => Self::QueueFull(queue),
            Denied::Store(error) => Self::Store(error),
        }
    }

    /// Returns the same error for a value under this pointer.
    fn under(self, prefix: &str) -> Self {
        match self {
            Self::Invalid(invalid) => invalid.under(prefix).into(),
            other => other,
        }
    }
}

/// What a method of [`Queues`] returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the configuration says about queues.
#[derive(Debug, Clone)]
pub struct Options {
    /// What queues fall back on.
    pub defaults: Arc<Defaults>,
    /// The largest payload, in bytes of its JSON text.
    pub payload_bytes: usize,
    /// How many bytes of payloads and results one response has at most, but at least one job.
    pub answer_bytes: usize,
    /// How many calls may wait for jobs at once.
    pub waiting: usize,
    /// The most queues whose figures are listed one by one.
    pub metrics_queues: usize,
    /// How many queues, workers and so on there may be.
    pub quotas: Quotas,
    /// How often the server polls the store for jobs that its waiters wait for, beside all wake-ups.
    pub poll: Duration,
    /// How long the answers of calls with an `Idempotency-Key` are remembered, in milliseconds.
    pub idempotency_ttl_ms: u64,
    /// How long a caller waits for the store, the rounds before its own included.
    pub patience: Duration,
}

/// All queues, behind one store. Cheap to clone.
#[derive(Clone)]
pub struct Queues(Arc<Shared>);

/// Why nothing more is delivered while memory is short.
pub const NO_ROOM: &str = "requests and responses take as much memory as they may (limits.memory_bytes)";
/// How many repeated requests read at once what the first one won.
const REPEATS: usize = 4;

/// What the methods share.
pub struct Shared {
    store: Arc<dyn Store>,
    options: Options,
    ids: IdSource,
    pushes: PushRounds,
    claims: ClaimRounds,
    settles: SettleRounds,
    waiters: Waiters,
    /// The places of calls that wait for jobs.
    waiting: Semaphore,
    /// The turns of repeated requests that read what the first one won.
    repeats: Semaphore,
    outcomes: Outcomes,
    meter: Meter,
    stats: StatsCache,
    admission: Admission,
    settings: RwLock<(Arc<SettingsSnapshot>, Rules)>,
    configures: ConfigureRounds,
    refreshing: tokio::sync::Mutex<Refreshed>,
    /// How many times the settings were begun to be read.
    refreshes: AtomicU64,
    keys: KeyRing,
    /// Known before any other call is let through to the store.
    tokens: OnceLock<Tokens>,
    due: Alarm,
    reaper: Alarm,
    scheduler: Alarm,
    poll: PollAlarm,
    semaphores: SemaphoreNotes,
    /// Ends all waits with an error: the store stays away.
    away: Notify,
    draining: CancellationToken,
    runs: Runs,
}

impl Queues {
    /// Queues over this store. Settings are unknown until [`Maintenance::load_settings`] has read them.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let rules = Rules::new(options.defaults.clone(), Default::default());
        Self(Arc::new_cyclic(|shared| Shared {
            store,
            waiting: Semaphore::new(options.waiting),
            repeats: Semaphore::new(REPEATS),
            options,
            ids: IdSource::default(),
            pushes: push::rounds(shared),
            claims: reserve::rounds(shared),
            settles: settle::rounds(shared),
            waiters: Waiters::default(),
            outcomes: Outcomes::default(),
            meter: Meter::default(),
            stats: StatsCache::default(),
            admission: Admission::default(),
            settings: RwLock::new((Arc::default(), rules)),
            configures: configure::rounds(shared),
            refreshing: tokio::sync::Mutex::default(),
            refreshes: AtomicU64::default(),
            keys: KeyRing::default(),
            tokens: OnceLock::new(),
            due: Alarm::default(),
            reaper: Alarm::default(),
            scheduler: Alarm::default(),
            poll: PollAlarm::default(),
            semaphores: SemaphoreNotes::default(),
            away: Notify::new(),
            draining: CancellationToken::new(),
            runs: Runs::default(),
        }))
    }

    /// Returns the queues' settings as this server knows them.
    pub fn rules(&self) -> Rules {
        self.0.settings.read().unwrap_or_else(|poisoned| poisoned.into_inner()).1.clone()
    }

    /// Returns the time by the store's clock.
    pub fn now(&self) -> Result<Timestamp> {
        Ok(self.0.store.now()?)
    }

    /// Returns the configuration.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Returns the result of work that goes on without its caller, if it comes in time; else whether it
    /// happened is unknown.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let late = |_| StoreError::unavailable("the store's answer did not come in time").into();
        tokio::time::timeout(self.options().patience, work).await.map_err(late)
    }

    /// Returns the counts and times of what happened lately.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// Ends all waits for jobs, also those that begin later: they return no jobs.
    pub fn drain(&self) {
        self.0.draining.cancel();
    }

    /// Returns whether the server is about to stop.
    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Wakes the reaper if it would sleep past this deadline.
    fn note_deadline(&self, at: Timestamp) {
        self.0.reaper.note(at.millis());
    }

    /// A job is in `queue` and due at `run_at`: wakes a waiter then, here or on another server.
    fn announce(&self, queue: &QueueName, run_at: Timestamp) {
        match self.0.store.now() {
            Ok(now) if run_at > now => {
                self.0.due.note(run_at.millis());
                self.0.waiters.peers.note_scheduled(queue, run_at, run_at.ms_since(now));
            }
            // An unreadable clock only makes the wake-up early.
            _ => self.0.waiters.wake(queue, 1),
        }
    }
}
