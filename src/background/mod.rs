//! What runs by itself: one small task a file, all driven alike.
//!
//! | task | what it does |
//! |---|---|
//! | `store_probe` | asks the store for the time, and whether it is there |
//! | `settings` | keeps the queues' settings fresh |
//! | `reaper` | takes back expired reservations, removes expired jobs |
//! | `workers` | takes back what workers hold that have fallen silent |
//! | `due` | wakes waiters when scheduled jobs come due |
//! | `scheduler` | runs schedules whose time has come |
//! | `semaphores` | calls jobs that wait for semaphores which have room |
//! | `waiter_poll` | looks for jobs on behalf of all waiters |
//! | `signal_listener`, `signal_publisher` | hear and tell the other servers over the same store |
//! | `pruner` | forgets records whose time has passed |
//! | `reconciler` | compares the figures with what is there |
//! | `metrics_upkeep` | keeps the metrics small |

pub mod driver;
mod due;
mod metrics_upkeep;
mod pruner;
mod reaper;
mod reconciler;
mod scheduler;
mod semaphores;
mod settings;
mod signal_listener;
mod signal_publisher;
mod store_probe;
mod waiter_poll;
mod workers;

use std::sync::Arc;
use std::time::Duration;

pub use self::driver::{Driver, TaskStatus};
pub use self::metrics_upkeep::MetricsUpkeep;
pub use self::store_probe::{Readiness, StoreProbe};
use crate::queue::Queues;
use crate::store::Store;

/// What the configuration says about background tasks.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The longest that the reaper sleeps.
    pub reaper_interval: Duration,
    /// The most jobs that the reaper changes in one step.
    pub reaper_batch: usize,
}

/// Starts every task that needs the store.
pub fn start(
    driver: &mut Driver,
    queues: &Queues,
    store: &Arc<dyn Store>,
    readiness: &Readiness,
    options: Options,
) {
    driver.start(store_probe::StoreProbe::new(store.clone(), readiness.clone()));
    driver.start(settings::Refresh::new(queues.clone()));
    driver.start(reaper::Reaper::new(queues.clone(), store.clone(), options));
    driver.start(workers::Silence::new(queues.clone()));
    driver.start(due::Due::new(queues.clone(), store.clone()));
    driver.start(scheduler::Scheduler::new(queues.clone()));
    driver.start(semaphores::Semaphores::new(queues.clone()));
    driver.start(waiter_poll::WaiterPoll::new(queues.clone()));
    driver.start(pruner::Pruner::new(store.clone()));
    driver.start(reconciler::Reconcile::new(store.clone()));
    if let Some(signals) = store.signals() {
        driver.start(signal_publisher::SignalPublisher::new(queues.clone()));
        driver.start(signal_listener::SignalListener::new(queues.clone(), signals));
    }
}
