//! Waking background tasks before they would run again by themselves.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::Notify;

/// Until when a background task sleeps, by the store's clock; wakes it for what happens before that.
pub(super) struct Alarm {
    /// Until when the task sleeps, or one of the two constants below.
    until: AtomicI64,
    /// The earliest moment that was noted since the task began to run.
    first: AtomicI64,
    notify: Arc<Notify>,
}

/// The task sleeps because nothing needs it: no moment wakes it.
const DORMANT: i64 = i64::MIN;
/// The task runs, and may have passed what is noted now; it checks for that before it sleeps.
const RUNNING: i64 = i64::MIN + 1;

impl Default for Alarm {
    fn default() -> Self {
        Self {
            until: AtomicI64::new(DORMANT),
            first: AtomicI64::new(i64::MAX),
            notify: Arc::new(Notify::new()),
        }
    }
}

impl Alarm {
    /// Notified when the task should run now.
    pub fn notify(&self) -> Arc<Notify> {
        self.notify.clone()
    }

    /// The task begins to run.
    pub fn begin(&self) {
        self.first.store(i64::MAX, Ordering::SeqCst);
        self.until.store(RUNNING, Ordering::SeqCst);
    }

    /// The task has run, and sleeps until this moment unless an earlier one was noted meanwhile.
    pub fn sleep_until(&self, until: i64) {
        self.until.store(until, Ordering::SeqCst);
        if self.first.load(Ordering::SeqCst) < until {
            self.notify.notify_one();
        }
    }

    /// The task has run, and sleeps without knowing the time: nothing wakes it before its interval is over.
    pub fn sleep_unwoken(&self) {
        self.sleep_until(RUNNING);
    }

    /// The task has run, and sleeps until [`Alarm::wake_if_dormant`].
    pub fn sleep_dormant(&self) {
        self.sleep_until(DORMANT);
    }

    /// Something happens at this moment.
    pub fn note(&self, at: i64) {
        self.first.fetch_min(at, Ordering::SeqCst);
        if at < self.until.load(Ordering::SeqCst) {
            self.notify.notify_one();
        }
    }

    /// Wakes a task that sleeps because nothing needed it.
    pub fn wake_if_dormant(&self) {
        if self.until.load(Ordering::SeqCst) == DORMANT {
            self.notify.notify_one();
        }
    }
}

/// When the store is to be queried on behalf of all waiters, if that is sooner than the next regular poll.
#[derive(Default)]
pub(super) struct PollAlarm {
    by: Mutex<Option<Instant>>,
    notify: Arc<Notify>,
}

impl PollAlarm {
    fn by(&self) -> MutexGuard<'_, Option<Instant>> {
        self.by.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Notified when a poll is wanted.
    pub fn notify(&self) -> Arc<Notify> {
        self.notify.clone()
    }

    /// A poll is wanted at this moment.
    pub fn poll_by(&self, at: Instant) {
        let mut by = self.by();
        *by = Some(by.map_or(at, |by| by.min(at)));
        drop(by);
        self.notify.notify_one();
    }

    /// When a poll is wanted, if one is.
    pub fn wanted(&self) -> Option<Instant> {
        *self.by()
    }

    /// A poll begins: what is wanted from now on is wanted of the next one.
    pub fn begin(&self) {
        *self.by() = None;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn only_a_moment_before_the_next_run_wakes_the_task() {
        let alarm = Alarm::default();
        let is_woken = || alarm.notify.notified().now_or_never().is_some();
        alarm.note(5);
        assert!(!is_woken(), "it is dormant");
        alarm.begin();
        alarm.note(50);
        alarm.note(40);
        assert!(!is_woken(), "it runs");
        alarm.sleep_until(30);
        assert!(!is_woken(), "it runs again before that");
        alarm.note(29);
        assert!(is_woken());
        alarm.begin();
        alarm.note(20);
        alarm.sleep_until(30);
        assert!(is_woken(), "noted while it ran");
    }
}
