//! The product: one method of [`Queues`] for each thing that a client can ask for. Knows no HTTP and no
//! database.
//!
//! | file | what it does |
//! |---|---|
//! | `push` | new jobs |
//! | `push_all` | new jobs that are stored together, or not at all |
//! | `reserve` | reserve and pop: claiming, waiting, giving back what its client did not receive |
//! | `delivery` | jobs on their way to a client |
//! | `ask` | what a reserve or pop asks for |
//! | `claiming` | claims from several queues, one after the other |
//! | `large` | what claims bring together is bounded |
//! | `once` | reserves with an `Idempotency-Key` |
//! | `keyed`, `keyed_pop` | other calls with one: done once, and answered alike each time |
//! | `settle` | commit, rollback, extend, move; the repeats of lost responses |
//! | `next` | settles that take the next jobs with them |
//! | `jobs` | read, change, cancel and browse jobs |
//! | `endings` | waiting for jobs to finish |
//! | `batches` | jobs that belong together, and a job at their end |
//! | `settings`, `configure` | the queues and their settings, and changes of them |
//! | `access`, `key_limits` | API keys, and how much each may ask for |
//! | `credential` | whether what a request has shown still holds when it acts |
//! | `search`, `groups` | jobs by filter; groups |
//! | `semaphores` | semaphores |
//! | `schedules` | schedules |
//! | `bulk` | purge, redrive, replay |
//! | `changes` | changes that the server itself wants, and of many jobs |
//! | `operations`, `audit` | operations over many jobs, and who has done what |
//! | `sweep` | deleting queues by prefix |
//! | `workers` | heartbeats, and the jobs of removed workers |
//! | `stats` | how many jobs there are |
//! | `total_load` | what is tried again and what workers hold, of all queues |
//! | `meter`, `flows` | what happens on this server, and lately on all of them |
//! | `totals` | what happened on this server since its start |
//! | `history` | what happened in each queue within the last quarter of an hour |
//! | `board`, `attention` | the figures of all queues at one moment, and which of them need a person |
//! | `held` | what keeps blocked jobs from being delivered |
//! | `listing` | lists of queues with their figures |
//! | `ledger`, `depths`, `series` | what is written of that, how many jobs there were, and reading both |
//! | `census`, `emptied` | what else `/metrics` shows |
//! | `feed`, `picture` | the figures as clients follow them |
//! | `quotas` | how many queues, workers and so on there may be |
//! | `pages`, `reached` | lists, page by page; those by name of what a caller reaches |
//! | `returning` | gives back jobs that their clients did not receive |
//! | `rounds` | batching: calls that arrive together share a call of the store |
//! | `waiters`, `peers` | waiters for jobs on this server, and on the other servers over the same store |
//! | `outcomes` | a cache of how jobs were settled lately |
//! | `maintenance`, `alarm` | what background tasks do, and what wakes them |
//! | `stuck` | jobs, semaphores and schedules that the store does not change for a while, left out of what others need |
//! | `readiness` | whether this server can serve |

mod access;
mod alarm;
mod ask;
pub mod attention;
mod audit;
mod batches;
mod board;
mod bulk;
mod census;
mod changes;
mod claiming;
mod configure;
mod credential;
mod delivery;
mod depths;
mod emptied;
mod endings;
mod error;
mod feed;
pub mod flows;
mod groups;
mod held;
pub mod history;
mod jobs;
mod key_limits;
mod keyed;
mod keyed_pop;
mod large;
mod ledger;
pub mod listing;
mod lost;
mod maintenance;
pub mod meter;
mod next;
mod once;
mod operations;
mod outcomes;
mod pages;
mod peers;
mod picture;
mod push;
mod push_all;
mod quotas;
mod reached;
mod readiness;
mod reserve;
mod rest;
mod returning;
mod rounds;
mod schedules;
mod search;
mod semaphores;
pub mod series;
mod settings;
pub mod settle;
mod stats;
mod stuck;
mod sweep;
mod total_load;
pub mod totals;
mod traced;
mod turns;
mod waiters;
mod waiting_for;
mod workers;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use futures::TryFutureExt as _;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::access::KeyRing;
pub use self::access::{FreshKey, NewApiKey, Recognised};
use self::alarm::{Alarm, PollAlarm};
pub use self::ask::{PopAsk, ReserveAsk, Room};
pub use self::attention::{Attention, Thresholds};
pub use self::audit::{Actor, acting};
pub use self::batches::{BatchState, NewBatch};
use self::board::BoardCache;
pub use self::board::{Board, BoardQueue};
pub use self::bulk::{Affected, FinishedRange};
pub use self::census::Census;
use self::census::CensusCache;
use self::configure::ConfigureRounds;
pub use self::credential::{Credential, Shown};
use self::depths::Said;
use self::emptied::Emptied;
use self::endings::Endings;
pub use self::endings::FinishAsk;
pub use self::error::{Error, Result};
use self::feed::Feed;
pub use self::feed::{Changes, Follower, Happening, Part, QueueState};
use self::flows::Others;
pub use self::groups::GroupsFound;
use self::held::HeldCache;
use self::history::History;
pub use self::jobs::{Cancelled, OfHeld, Relocation};
pub use self::key_limits::Permit;
pub use self::keyed::{CallKey, CallOutcome};
use self::large::LargeClaims;
use self::ledger::Ledger;
pub use self::maintenance::{Maintenance, Run};
use self::meter::Meter;
pub use self::next::{Next, NextAsk};
pub use self::once::IdempotencyKey;
use self::once::Runs;
pub use self::operations::{ALL_QUEUES, NewBulk, Sample};
use self::outcomes::Outcomes;
pub use self::pages::Page;
use self::push::PushRounds;
pub use self::push::{NewPush, PushAnswer};
use self::quotas::Admission;
pub use self::quotas::Quotas;
pub use self::readiness::Readiness;
use self::reserve::ClaimRounds;
pub use self::reserve::{QUEUES_MAX, WAIT_MAX_MS};
pub use self::search::Sought;
use self::semaphores::SemaphoreNotes;
use self::settings::Refreshed;
pub use self::settings::{Precondition, QueueView};
use self::settle::SettleRounds;
pub use self::settle::{Settle, Settled};
use self::stats::StatsCache;
pub use self::stats::{Figures, QueueFigures, Stats};
use self::stuck::Stuck;
pub use self::sweep::Swept;
use self::total_load::LoadCache;
pub use self::total_load::TotalLoad;
use self::traced::Traced;
use self::turns::Turns;
use self::waiters::Waiters;
pub use self::waiting_for::{Reason, WaitingFor};
pub use self::workers::{Heartbeat, Removed};
use crate::job::settings::Defaults;
use crate::job::{IdSource, JobId, QueueName, Rules, Timestamp, Tokens};
pub use crate::store::hold;
use crate::store::{SettingsSnapshot, Store, StoreError};

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
    /// The most queues with series of their own in `/metrics`.
    pub metrics_queues: usize,
    /// The most queues whose figures this server keeps one by one: within a second, and in the records of an hour.
    pub series_queues: usize,
    /// When a queue needs attention.
    pub attention: Thresholds,
    /// How many streams of events may be open at once.
    pub event_streams: usize,
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
/// How many calls over many jobs read them whole at once, and push their copies.
const COPYING: usize = 2;

/// What the methods share.
pub struct Shared {
    store: Arc<dyn Store>,
    options: Options,
    ids: IdSource,
    pushes: PushRounds,
    claims: ClaimRounds,
    settles: SettleRounds,
    turns: Arc<Turns>,
    waiters: Waiters,
    endings: Endings,
    /// The places of calls that wait for jobs.
    waiting: Semaphore,
    /// The turns of repeated requests that read what the first one won.
    repeats: Semaphore,
    /// The turns of claims of which a lot may come.
    large: LargeClaims,
    /// The turns of calls that read finished jobs whole, and push their copies.
    copying: Arc<Semaphore>,
    outcomes: Outcomes,
    traced: Traced,
    meter: Meter,
    others: Others,
    history: History,
    board: BoardCache,
    held: HeldCache,
    ledger: Ledger,
    said: Said,
    /// Held while what happened is written.
    series_writing: tokio::sync::Mutex<()>,
    stats: StatsCache,
    loads: LoadCache,
    census: CensusCache,
    emptied: Emptied,
    feed: Feed,
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
    stuck: Stuck<JobId>,
    scheduler: Alarm,
    schedule_turns: schedules::Turns,
    poll: PollAlarm,
    semaphores: SemaphoreNotes,
    /// Notified when an operation was asked for.
    operations: Arc<Notify>,
    /// Ends all waits with an error: the store stays away.
    away: Notify,
    draining: CancellationToken,
    /// What gives back jobs that their clients did not receive.
    returning: TaskTracker,
    /// Set a notice before `draining`.
    leaving: CancellationToken,
    runs: Runs,
}

impl Queues {
    /// Queues over this store. Settings are unknown until [`Maintenance::load_settings`] has read them.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let rules = Rules::new(options.defaults.clone(), Default::default());
        let (waiters, draining) = (Waiters::default(), CancellationToken::new());
        let turns = Turns::new(waiters.peers.notify(), draining.clone());
        Self(Arc::new_cyclic(|shared| Shared {
            store,
            waiting: Semaphore::new(options.waiting),
            repeats: Semaphore::new(REPEATS),
            large: LargeClaims::new(options.payload_bytes),
            copying: Arc::new(Semaphore::new(COPYING)),
            meter: Meter::new(options.metrics_queues, options.series_queues),
            ledger: Ledger::new(options.series_queues),
            feed: Feed::new(options.event_streams),
            options,
            ids: IdSource::default(),
            pushes: push::rounds(shared, &turns),
            claims: reserve::rounds(shared, &turns),
            settles: settle::rounds(shared, &turns),
            turns,
            waiters,
            endings: Endings::default(),
            outcomes: Outcomes::default(),
            traced: Traced::default(),
            others: Others::default(),
            history: History::default(),
            board: BoardCache::default(),
            held: HeldCache::default(),
            said: Said::default(),
            series_writing: tokio::sync::Mutex::default(),
            stats: StatsCache::default(),
            loads: LoadCache::default(),
            census: CensusCache::default(),
            emptied: Emptied::default(),
            admission: Admission::default(),
            settings: RwLock::new((Arc::default(), rules)),
            configures: configure::rounds(shared),
            refreshing: tokio::sync::Mutex::default(),
            refreshes: AtomicU64::default(),
            keys: KeyRing::default(),
            tokens: OnceLock::new(),
            due: Alarm::default(),
            reaper: Alarm::default(),
            stuck: Stuck::default(),
            scheduler: Alarm::default(),
            schedule_turns: schedules::Turns::default(),
            poll: PollAlarm::default(),
            semaphores: SemaphoreNotes::default(),
            operations: Arc::default(),
            away: Notify::new(),
            draining,
            returning: TaskTracker::new(),
            leaving: CancellationToken::new(),
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
    /// happened is unknown. No `async fn`: that would have room for the work twice.
    fn in_time<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
        let late = |_| StoreError::unavailable("the store's answer did not come in time").into();
        tokio::time::timeout(self.options().patience, work).map_err(late)
    }

    /// Returns the counts and times of what happened lately.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// Ends all waits for jobs, also those that begin later: they return no jobs.
    pub fn drain(&self) {
        self.0.leaving.cancel();
        self.0.draining.cancel();
    }

    /// The server is going to stop, and still serves everything until [`Queues::drain`].
    pub fn leave(&self) {
        self.0.leaving.cancel();
    }

    /// Returns whether the server wants no new clients.
    pub fn is_leaving(&self) -> bool {
        self.0.leaving.is_cancelled()
    }

    /// Returns whether the server is about to stop.
    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Returns once the server is about to stop.
    pub async fn drained(&self) {
        self.0.draining.cancelled().await;
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
