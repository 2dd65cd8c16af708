//! The product: one method for each thing that a client can ask for. Knows no HTTP and no database.
//!
//! | file | what it does |
//! |---|---|
//! | `push` | new jobs |
//! | `reserve` | reserve and pop: claiming, waiting, giving back what nobody took |
//! | `once` | reserves that carry an `Idempotency-Key` |
//! | `settle` | commit, rollback, extend, move; the repeats of lost answers |
//! | `jobs` | look at, change, cancel and browse jobs |
//! | `batches` | jobs that belong together, and a job at their end |
//! | `settings` | the queues and their settings |
//! | `semaphores` | semaphores, and calling those who wait for them |
//! | `schedules` | schedules, and running what is due |
//! | `bulk` | purge, redrive, replay |
//! | `workers` | who works: heartbeats, and the jobs of workers that are lost |
//! | `stats`, `meter` | the figures |
//! | `rounds` | what arrives together travels together |
//! | `wakeups`, `sweep` | who waits for jobs, and looking on behalf of all of them |
//! | `others` | the other servers over the same store |
//! | `outcomes` | how jobs were settled lately |

mod batches;
mod bulk;
mod jobs;
pub mod meter;
mod once;
mod others;
mod outcomes;
mod push;
mod reserve;
mod rounds;
mod schedules;
mod semaphores;
mod settings;
pub mod settle;
mod stats;
mod waiter_poll;
mod wakeups;
mod workers;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::batches::NewBatch;
pub use self::bulk::ReplayRange;
pub use self::jobs::{Cancelled, Edit, Page};
use self::meter::Meter;
pub use self::once::IdempotencyKey;
use self::outcomes::Outcomes;
use self::push::PushRounds;
pub use self::push::{NewPush, PushAnswer, When};
use self::reserve::ClaimRounds;
pub use self::reserve::{PopAsk, ReserveAsk};
use self::rounds::Turned;
pub use self::schedules::DueRuns;
use self::semaphores::SemaphoreNotes;
pub use self::settings::{Precondition, QueueView};
use self::settle::SettleRounds;
pub use self::settle::{Settle, Settled};
use self::stats::StatsCache;
pub use self::stats::{Figures, Stats};
use self::waiter_poll::PollAlarm;
use self::wakeups::Wakeups;
pub use self::workers::Heartbeat;
use crate::job::settings::Defaults;
use crate::job::transition::Refusal;
use crate::job::{
    BatchId, IdSource, JobId, QueueName, Rules, ScheduleName, SemaphoreName, Timestamp, Visible, WorkerName,
};
use crate::store::{Denied, PushRefused, SettingsSnapshot, Store, StoreError};

/// Why a call was refused or failed. What it means for a client is `http/problem.rs`'s to say.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A value is out of its range.
    #[error("{pointer} {detail}")]
    Invalid {
        /// Where it is, as a JSON pointer (RFC 6901).
        pointer: String,
        /// What would be right.
        detail: String,
    },
    /// There is no such job.
    #[error("there is no job {0}")]
    UnknownJob(JobId),
    /// There is no such worker.
    #[error("worker {0} has sent no heartbeat lately and holds no jobs")]
    UnknownWorker(WorkerName),
    /// There is no such batch.
    #[error("there is no batch {0}")]
    UnknownBatch(BatchId),
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
    #[error("the schedule {0} is not of the version in If-Match")]
    ScheduleChanged(ScheduleName),
    /// The same idempotency key came with another request.
    #[error("the Idempotency-Key was used for another request")]
    IdempotencyKeyReused,
    /// The first request with this idempotency key is still running.
    #[error("the first request with this Idempotency-Key is still running")]
    RequestPending,
    /// Too much was waiting for the store already; nothing happened.
    #[error("too many requests are waiting for the store; nothing happened")]
    Overloaded,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Turned> for Error {
    fn from(turned: Turned) -> Self {
        match turned {
            Turned::Away => Self::Overloaded,
            Turned::Lost => StoreError::internal("a round ended without an answer").into(),
        }
    }
}

impl Error {
    /// An [`Error::Invalid`] at this JSON pointer.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Invalid { pointer: pointer.into(), detail: detail.into() }
    }

    fn denied(id: &JobId, denied: Denied) -> Self {
        match denied {
            Denied::Refused(Refusal::Lost { gone }) => Self::ReservationLost { id: id.clone(), gone },
            Denied::Refused(Refusal::Unknown) => Self::UnknownJob(id.clone()),
            Denied::Refused(Refusal::Conflict { state }) => Self::WrongState { id: id.clone(), state },
            // Only a move can meet a full queue, and it names the queue itself.
            Denied::Refused(Refusal::Full) => Self::ReservationLost { id: id.clone(), gone: false },
            Denied::PushRefused(PushRefused { key_of: Some(id), .. }) => Self::KeyConflict(id),
            Denied::PushRefused(PushRefused { queue, .. }) => Self::QueueFull(queue),
            Denied::Store(error) => Self::Store(error),
        }
    }

    /// The same for a value that stands under this pointer.
    fn under(self, prefix: &str) -> Self {
        match self {
            Self::Invalid { pointer, detail } => Self::invalid(format!("{prefix}{pointer}"), detail),
            other => other,
        }
    }
}

/// The answer of a method of [`Queues`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the configuration says about queues.
#[derive(Debug, Clone)]
pub struct Options {
    /// What queues fall back on.
    pub defaults: Arc<Defaults>,
    /// The largest payload, in bytes of its JSON text.
    pub payload_bytes: usize,
    /// How often the server looks by itself for what its waiters wait for, whatever wakes them or not.
    pub poll: Duration,
    /// How long a caller waits for the store, the rounds before its own included.
    pub patience: Duration,
}

/// All queues, behind one store. Cheap to clone.
#[derive(Clone)]
pub struct Queues(Arc<Shared>);

/// What the methods share.
pub struct Shared {
    store: Arc<dyn Store>,
    options: Options,
    ids: IdSource,
    pushes: PushRounds,
    claims: ClaimRounds,
    settles: SettleRounds,
    wakeups: Wakeups,
    outcomes: Outcomes,
    meter: Meter,
    stats: StatsCache,
    settings: RwLock<(Arc<SettingsSnapshot>, Rules)>,
    refreshing: tokio::sync::Mutex<()>,
    due: Alarm,
    reaper: Alarm,
    scheduler: Alarm,
    sweep: PollAlarm,
    semaphores: SemaphoreNotes,
    /// Tells those who wait that the store stays away.
    away: Notify,
    draining: CancellationToken,
}

impl Queues {
    /// Queues over this store. Settings are unknown until [`Queues::refresh_settings`] has read them.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let rules = Rules::new(options.defaults.clone(), Default::default());
        Self(Arc::new_cyclic(|shared| Shared {
            store,
            options,
            ids: IdSource::default(),
            pushes: push::rounds(shared),
            claims: reserve::rounds(shared),
            settles: settle::rounds(shared),
            wakeups: Wakeups::default(),
            outcomes: Outcomes::default(),
            meter: Meter::default(),
            stats: StatsCache::default(),
            settings: RwLock::new((Arc::default(), rules)),
            refreshing: tokio::sync::Mutex::default(),
            due: Alarm::default(),
            reaper: Alarm::default(),
            scheduler: Alarm::default(),
            sweep: PollAlarm::default(),
            semaphores: SemaphoreNotes::default(),
            away: Notify::new(),
            draining: CancellationToken::new(),
        }))
    }

    /// The queues' settings as this server knows them.
    pub fn rules(&self) -> Rules {
        self.0.settings.read().unwrap_or_else(|poisoned| poisoned.into_inner()).1.clone()
    }

    /// The store's clock.
    pub fn now(&self) -> Result<Timestamp> {
        Ok(self.0.store.now()?)
    }

    /// The configuration.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// The answer of work that goes on without its caller, if it comes in time; else whether it happened is
    /// unknown.
    async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let late = |_| StoreError::unavailable("the store's answer did not come in time").into();
        tokio::time::timeout(self.options().patience, work).await.map_err(late)
    }

    /// Counts and times of what happened lately.
    pub fn meter(&self) -> &Meter {
        &self.0.meter
    }

    /// From now on nobody waits for jobs: whoever does gets an empty answer.
    pub fn drain(&self) {
        self.0.draining.cancel();
    }

    /// Whether the server is about to stop.
    pub fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
    }

    /// Rings when the due-time task should look again.
    pub fn due_bell(&self) -> &Notify {
        &self.0.due.bell
    }

    /// The due-time task begins to look.
    pub fn due_wakes(&self) {
        self.0.due.wakes();
    }

    /// The due-time task sleeps until this moment; `None`: it sleeps because nobody waits.
    pub fn due_sleeps_until(&self, until: Option<Timestamp>) {
        self.0.due.sleeps(until.map_or(DORMANT, Timestamp::millis));
    }

    /// Rings when the reaper should look again.
    pub fn reaper_bell(&self) -> &Notify {
        &self.0.reaper.bell
    }

    /// The reaper begins to look.
    pub fn reaper_wakes(&self) {
        self.0.reaper.wakes();
    }

    /// The reaper sleeps for so long.
    pub fn reaper_sleeps(&self, sleep: Duration) {
        let until = self.now().map(|now| now.plus_ms(sleep.as_millis() as u64).millis());
        self.0.reaper.sleeps(until.unwrap_or(AWAKE)); // it cannot tell, and looks when its time is over
    }

    /// Something is to be taken back at this moment.
    fn note_deadline(&self, at: Timestamp) {
        self.0.reaper.note(at.millis());
    }

    /// Whether anybody waits for jobs.
    pub fn has_waiters(&self) -> bool {
        !self.0.wakeups.is_empty()
    }

    /// Wakes whoever has waited longest on this server for jobs of this queue, up to `jobs` of them.
    pub fn wake_here(&self, queue: &QueueName, jobs: usize) {
        self.0.wakeups.wake_here(queue, jobs);
    }

    /// A job is in `queue` and due at `run_at`: somebody is woken then, here or on another server.
    fn announce(&self, queue: &QueueName, run_at: Timestamp) {
        match self.0.store.now() {
            Ok(now) if run_at > now => {
                self.0.due.note(run_at.millis());
                self.0.wakeups.others.note_scheduled(queue, run_at, run_at.ms_since(now));
            }
            // An unreadable clock only makes the wake-up early.
            _ => self.0.wakeups.wake(queue, 1),
        }
    }
}

/// When a background task will look again by itself, and a bell for what comes earlier.
struct Alarm {
    /// Until when the task sleeps, or one of the two below.
    until: AtomicI64,
    /// The first moment that was noted since the task woke up.
    first: AtomicI64,
    bell: Notify,
}

/// The task sleeps because nobody needs it: no moment rings.
const DORMANT: i64 = i64::MIN;
/// The task is at work, and may have passed what is noted now; it hears of it before it sleeps.
const AWAKE: i64 = i64::MIN + 1;

impl Default for Alarm {
    fn default() -> Self {
        Self { until: AtomicI64::new(DORMANT), first: AtomicI64::new(i64::MAX), bell: Notify::new() }
    }
}

impl Alarm {
    /// The task begins to look.
    fn wakes(&self) {
        self.first.store(i64::MAX, Ordering::SeqCst);
        self.until.store(AWAKE, Ordering::SeqCst);
    }

    /// The task has looked, and sleeps until this moment unless an earlier one was noted meanwhile.
    fn sleeps(&self, until: i64) {
        self.until.store(until, Ordering::SeqCst);
        if self.first.load(Ordering::SeqCst) < until {
            self.bell.notify_one();
        }
    }

    /// Something happens at this moment.
    fn note(&self, at: i64) {
        self.first.fetch_min(at, Ordering::SeqCst);
        if at < self.until.load(Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    /// Wakes a task that sleeps because nobody needed it.
    fn ring_if_dormant(&self) {
        if self.until.load(Ordering::SeqCst) == DORMANT {
            self.bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::Alarm;

    #[test]
    fn a_moment_rings_only_if_it_comes_before_the_task_looks_again() {
        let alarm = Alarm::default();
        let rings = || alarm.bell.notified().now_or_never().is_some();
        alarm.note(5);
        assert!(!rings(), "nobody needs it");
        alarm.wakes();
        alarm.note(50);
        alarm.note(40);
        assert!(!rings(), "it is awake");
        alarm.sleeps(30);
        assert!(!rings(), "it looks before that");
        alarm.note(29);
        assert!(rings());
        alarm.wakes();
        alarm.note(20);
        alarm.sleeps(30);
        assert!(rings(), "noted while it was at work");
    }
}
