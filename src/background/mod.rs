//! What runs by itself: the table of background tasks. What each does, and when it wants to run again, is in
//! [`Maintenance`]; `driver` runs them all alike.

pub mod driver;

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;

pub use self::driver::{Driver, Task, TaskStatus};
use crate::queue::{Maintenance, Run};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// What the configuration says about background tasks.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The longest that the reaper sleeps.
    pub reaper_interval: Duration,
    /// The most jobs that the reaper changes in one step.
    pub reaper_batch: usize,
}

/// Starts tasks: a row for each, with its name in `/stats`, its longest sleep, which alarm ends that early,
/// and the method that it runs.
macro_rules! start_all {
    ($driver:ident, $maintenance:ident:
        $($name:literal every $interval:expr $(, or at $alarm:ident)? => $method:ident($($arg:expr),*);)*
    ) => {
        $({
            let maintenance = $maintenance.clone();
            let task = Task::new($name, $interval, move || maintenance.clone().$method($($arg),*));
            $(let task = task.woken_by($maintenance.$alarm());)?
            $driver.start(task);
        })*
    };
}

/// Starts every task that needs the store.
pub fn start(driver: &mut Driver, maintenance: &Arc<Maintenance>, options: Options) {
    let Options { reaper_batch: batch, reaper_interval: interval } = options;
    let poll_interval = maintenance.poll_interval().min(SECOND);
    start_all! { driver, maintenance:
        "settings" every SECOND / 2 => refresh_settings();
        "reaper" every interval, or at reaper_alarm => reap(batch, interval);
        "workers" every SECOND => take_from_timed_out_workers();
        "due" every SECOND, or at due_alarm => wake_for_due_jobs(SECOND);
        "scheduler" every SECOND, or at scheduler_alarm => run_due_schedules(SECOND);
        "semaphores" every SECOND, or at semaphores_alarm => unblock_waiting_jobs(SECOND);
        "waiter_poll" every poll_interval, or at waiter_poll_alarm => poll_for_waiters();
        "finished_jobs" every SECOND, or at endings_alarm => wake_for_finished_jobs();
        "operations" every 5 * SECOND, or at operations_alarm => work_on_operations();
        "key_uses" every 60 * SECOND => save_api_key_uses();
        "pruner" every 5 * SECOND => prune();
        "series" every 10 * SECOND => write_series();
        "series_folder" every 60 * SECOND => fold_series();
        "reconciler" every HOUR => reconcile();
    }
    if maintenance.has_peers() {
        start_all! { driver, maintenance:
            "signal_publisher" every SECOND, or at publisher_alarm => publish_signals();
            "series_reader" every 12 * SECOND => read_series_of_others();
            "signal_listener" every SECOND => listen_for_signals(SECOND);
        }
    }
    // The last one, since it may say that the server is ready: then all the others are known.
    start_all! { driver, maintenance:
        "store_probe" every SECOND => probe_store();
    }
}

/// Keeps the metrics small: drains what was observed since the last run into the histograms. Otherwise
/// every single observation would be kept until the metrics are read.
pub fn histogram_drain(metrics: PrometheusHandle) -> Task {
    Task::new("histogram_drain", 2 * SECOND, move || {
        metrics.run_upkeep();
        async { Ok(Run::default()) }
    })
}
