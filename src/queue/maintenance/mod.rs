//! What a server does by itself: one method for each background task. Each says what it did and when it wants
//! to run again; `background` has the table of the tasks, and runs them.
//!
//! Every server does all of this. What a method changes is guarded by what it read, so that of several
//! servers that find the same, one succeeds.
//!
//! | file | what its method does |
//! |---|---|
//! | `due` | wakes waiters when scheduled jobs come due |
//! | `endings` | wakes those that wait for jobs to finish |
//! | `operations` | works on operations over many jobs |
//! | `reaper` | takes back expired reservations, removes expired jobs |
//! | `schedules` | runs schedules whose time has come |
//! | `semaphores` | unblocks jobs whose semaphores have room |
//! | `series` | writes what happened, reads what happened on other servers, makes longer steps of the past |
//! | `signals` | sends signals to other servers, and receives theirs |
//! | `waiter_poll` | queries the store on behalf of all waiters |
//! | `workers` | takes back what workers hold that have timed out |

mod due;
mod endings;
mod operations;
mod reaper;
mod schedules;
mod semaphores;
mod series;
mod signals;
mod waiter_poll;
mod workers;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use self::due::Coming;
use self::endings::EndingsState;
use self::operations::Steps;
use self::signals::SignalStream;
use self::waiter_poll::PollState;
use self::workers::Listening;
use super::stuck::Stuck;
use super::{Queues, Readiness, Result};
use crate::job::{ScheduleName, SemaphoreName};
use crate::store::StoreError;

/// How many records one run of [`Maintenance::prune`] deletes.
const PRUNE_STEP: usize = 1000;
/// How long to rest between two such runs while there is more.
const PRUNE_REST: Duration = Duration::from_millis(50);

/// What one run of a background task has led to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Run {
    /// How many things it did; the method says what they are.
    pub done: u64,
    /// When it wants to run again; `None`: after its interval.
    pub again_in: Option<Duration>,
}

/// See the module's documentation.
pub struct Maintenance {
    queues: Queues,
    readiness: Readiness,
    coming: Mutex<Coming>,
    listening: Mutex<Option<Listening>>,
    poll: Mutex<PollState>,
    endings: Mutex<EndingsState>,
    /// When all semaphores were checked last.
    semaphores_checked: Mutex<Option<Instant>>,
    /// The last semaphore that was checked, where more of them come behind it.
    last_semaphore: Mutex<Option<SemaphoreName>>,
    stuck_semaphores: Stuck<SemaphoreName>,
    stuck_schedules: Stuck<ScheduleName>,
    signals: Option<SignalStream>,
    /// Identifies this server in the records of operations.
    runner: String,
    /// The operations that it works on.
    steps: Mutex<Steps>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Maintenance {
    /// Maintains these queues; `readiness` follows whether the store is there.
    pub fn new(queues: Queues, readiness: Readiness) -> Arc<Self> {
        let signals = queues.0.store.signals().map(SignalStream::new);
        if signals.is_some() {
            queues.0.waiters.peers.enable();
        }
        Arc::new(Self {
            poll: Mutex::new(PollState::new(queues.options().poll)),
            queues,
            readiness,
            coming: Mutex::default(),
            listening: Mutex::default(),
            endings: Mutex::default(),
            semaphores_checked: Mutex::default(),
            last_semaphore: Mutex::default(),
            stuck_semaphores: Stuck::default(),
            stuck_schedules: Stuck::leaving_out_for(schedules::LEFT_OUT),
            signals,
            runner: ulid::Ulid::new().to_string(),
            steps: Mutex::default(),
        })
    }

    /// Joins the other servers, and reads the settings for the first time: before that the store takes no other calls.
    pub async fn load_settings(&self) -> Result<(), StoreError> {
        if let Err(error) = self.queues.0.store.join().await {
            // Signals only save time. A store that is away is reported by what follows.
            tracing::debug!(error = crate::store::chain(&error), "cannot announce this server to others");
        }
        self.queues.load_settings().await?;
        // From now on it counts what happens: nothing has, since the store took no calls.
        self.queues.meter().turn(self.queues.0.store.now()?);
        Ok(())
    }

    /// Returns the queues that are maintained.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Returns how often the store is polled on behalf of waiters.
    pub fn poll_interval(&self) -> Duration {
        self.queues.options().poll
    }

    /// Returns whether there can be other servers over the same store.
    pub fn has_peers(&self) -> bool {
        self.signals.is_some()
    }

    /// Asks the store for the time and whether it takes writes. Counts one thing.
    pub async fn probe_store(self: Arc<Self>) -> Result<Run> {
        let pinged = self.queues.0.store.ping().await;
        self.listen(pinged.is_ok());
        self.readiness.set(pinged.clone().map_err(|error| error.to_string()));
        pinged?;
        Ok(Run { done: 1, again_in: None })
    }

    /// Reads the settings of queues if another server has changed some. Counts nothing.
    pub async fn refresh_settings(self: Arc<Self>) -> Result<Run> {
        self.queues.refresh_settings().await?;
        Ok(Run::default())
    }

    /// Stores when API keys were used last, and counts those that were used.
    pub async fn save_api_key_uses(self: Arc<Self>) -> Result<Run> {
        let done = self.queues.save_api_key_uses().await?;
        Ok(Run { done, again_in: None })
    }

    /// Deletes some records whose time has passed, and counts them.
    pub async fn prune(self: Arc<Self>) -> Result<Run> {
        let done = self.queues.0.store.prune(PRUNE_STEP).await?;
        Ok(Run { done, again_in: (done > 0).then_some(PRUNE_REST) })
    }

    /// Has the store compare some of its counters with what is there. Counts the jobs by which they were off.
    pub async fn reconcile(self: Arc<Self>) -> Result<Run> {
        let reconciled = self.queues.0.store.reconcile().await?;
        Ok(Run { done: reconciled.corrected, again_in: Some(reconciled.again_in) })
    }

    /// Notified when [`Maintenance::reap`] should run now.
    pub fn reaper_alarm(&self) -> Arc<Notify> {
        self.queues.0.reaper.notify()
    }

    /// Notified when [`Maintenance::wake_for_due_jobs`] should run now.
    pub fn due_alarm(&self) -> Arc<Notify> {
        self.queues.0.due.notify()
    }

    /// Notified when [`Maintenance::run_due_schedules`] should run now.
    pub fn scheduler_alarm(&self) -> Arc<Notify> {
        self.queues.0.scheduler.notify()
    }

    /// Notified when a semaphore may have room.
    pub fn semaphores_alarm(&self) -> Arc<Notify> {
        self.queues.0.semaphores.notify()
    }

    /// Notified when [`Maintenance::poll_for_waiters`] is wanted before its time.
    pub fn waiter_poll_alarm(&self) -> Arc<Notify> {
        self.queues.0.poll.notify()
    }

    /// Notified when a client waits for a job to finish.
    pub fn endings_alarm(&self) -> Arc<Notify> {
        self.queues.0.endings.alarm()
    }

    /// Notified when an operation was asked for.
    pub fn operations_alarm(&self) -> Arc<Notify> {
        self.queues.0.operations.clone()
    }

    /// Notified when there is something to publish.
    pub fn publisher_alarm(&self) -> Arc<Notify> {
        self.queues.0.waiters.peers.notify()
    }
}
