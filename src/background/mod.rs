//! What runs by itself: one small task a file, all driven alike.
//!
//! | task | what it does |
//! |---|---|
//! | `pulse` | asks the store for the time, and whether it is there |
//! | `settings` | keeps the queues' settings fresh |
//! | `reaper` | takes back expired reservations, removes expired jobs |
//! | `workers` | takes back what workers hold that have fallen silent |
//! | `due` | wakes waiters when scheduled jobs come due |
//! | `scheduler` | runs schedules whose time has come |
//! | `semaphores` | calls jobs that wait for semaphores which have room |
//! | `sweep` | looks for jobs on behalf of all waiters |
//! | `listener`, `teller` | hear and tell the other servers over the same store |
//! | `pruner` | forgets records whose time has passed |
//! | `reconciler` | compares the figures with what is there |
//! | `upkeep` | keeps the metrics small |

pub mod driver;
mod due;
mod listener;
mod pruner;
mod pulse;
mod reaper;
mod reconciler;
mod scheduler;
mod semaphores;
mod settings;
mod sweep;
mod teller;
mod upkeep;
mod workers;

use std::sync::Arc;
use std::time::Duration;

pub use self::driver::{Driver, TaskStatus};
pub use self::pulse::{Pulse, Readiness};
pub use self::upkeep::Upkeep;
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
    driver.start(pulse::Pulse::new(store.clone(), readiness.clone()));
    driver.start(settings::Refresh::new(queues.clone()));
    driver.start(reaper::Reaper::new(queues.clone(), store.clone(), options));
    driver.start(workers::Silence::new(queues.clone()));
    driver.start(due::Due::new(queues.clone(), store.clone()));
    driver.start(scheduler::Scheduler::new(queues.clone()));
    driver.start(semaphores::Semaphores::new(queues.clone()));
    driver.start(sweep::Sweep::new(queues.clone()));
    driver.start(pruner::Pruner::new(store.clone()));
    driver.start(reconciler::Reconcile::new(store.clone()));
    if let Some(signals) = store.signals() {
        driver.start(teller::Teller::new(queues.clone()));
        driver.start(listener::Listener::new(queues.clone(), signals));
    }
}
