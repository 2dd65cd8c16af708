//! Takes back at once what workers hold that have timed out. Any server does it for all.
//!
//! A server judges only timeouts during which it listened itself. After a start, or after its store was away,
//! every worker seems to have timed out, although there was no server to take its heartbeats; so the server
//! first listens for as long as the worker's timeout. A server that was there all the time need not wait.
//!
//! Whether the store is there is judged by reads and by its probe, not by whether it changes what a worker holds: on MongoDB a transaction
//! that a killed server has left open may hold these jobs for a minute. All other workers time out meanwhile.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Maintenance, Run, lock};
use crate::job::WorkerName;
use crate::queue::Result;
use crate::queue::workers::STEP;
use crate::store::TimedOut;

/// A server that has not checked for so long may have missed heartbeats: the machine slept, or the store was
/// away.
const GAP: Duration = Duration::from_secs(3);
/// The shortest sleep: what could not be taken back now is tried again after it.
const SLEEP_MIN_MS: u64 = 50;
/// How many workers one line of the log names.
const NAMES_MAX: usize = 20;

/// Since when this server would have seen heartbeats.
pub(super) struct Listening {
    since: Instant,
    checked: Instant,
}

impl Listening {
    fn begin(now: Instant) -> Self {
        Self { since: now, checked: now }
    }

    /// Notes that the server checks now, and returns for how long it has listened.
    fn check(&mut self, now: Instant) -> Duration {
        if now.saturating_duration_since(self.checked) > GAP {
            *self = Self::begin(now);
        }
        self.checked = now;
        now.saturating_duration_since(self.since)
    }
}

impl Maintenance {
    /// Takes back what workers hold that have timed out. Counts the jobs that came back. Its interval must be
    /// no longer than the shortest timeout, so that a worker whose first heartbeat another server takes is
    /// known in time.
    pub async fn take_from_timed_out_workers(self: Arc<Self>) -> Result<Run> {
        let mut done = 0;
        let mut named = Named::default();
        loop {
            let heard_ms = u64::try_from(self.listen(true).as_millis()).unwrap_or(u64::MAX);
            let (taken, next_in_ms) = self.take_step(heard_ms, &mut named).await?;
            done += taken as u64;
            if taken == 0 {
                // A millisecond more, so that the time has surely come.
                let next = next_in_ms.map(|ms| Duration::from_millis(ms.max(SLEEP_MIN_MS) + 1));
                return Ok(Run { done, again_in: next });
            }
        }
    }

    /// Notes whether the store is there: while it is away it takes no heartbeats either. Returns for how long this server has listened.
    pub(super) fn listen(&self, is_there: bool) -> Duration {
        let (now, mut listening) = (Instant::now(), lock(&self.listening));
        if !is_there {
            *listening = None;
        }
        listening.get_or_insert_with(|| Listening::begin(now)).check(now)
    }

    /// Takes back some jobs of timed-out workers. Returns how many, and in how many milliseconds the next
    /// worker times out. `heard_ms`: for how long this server would have seen a heartbeat. `named`: those that were named before.
    async fn take_step(&self, heard_ms: u64, named: &mut Named) -> Result<(usize, Option<u64>)> {
        let store = &self.queues.0.store;
        let timed_out = store.timed_out_workers(heard_ms, STEP).await;
        if timed_out.is_err() {
            self.listen(false);
        }
        let TimedOut { changes, workers, next_in_ms } = timed_out?;
        let jobs = changes.len();
        let mut taken = 0;
        if jobs > 0 {
            let applied = self.queues.apply_overdue(changes).await;
            if applied.is_err() {
                self.listen(store.ping().await.is_ok()); // the next check may come before the next probe
            }
            taken = applied?.done;
        }
        let fresh = workers.iter().filter(|name| named.in_feed.insert((*name).clone()));
        fresh.for_each(|worker| self.queues.0.feed.note_lost(worker));
        // Where another server was quicker, the line is its own.
        if taken > 0 {
            let workers = workers.into_iter().filter(|name| named.in_log.insert(name.clone()));
            log_lost(&workers.collect::<Vec<_>>(), jobs, taken);
        }
        Ok((taken, next_in_ms))
    }
}

/// The workers that were named as lost before.
#[derive(Default)]
struct Named {
    in_feed: HashSet<WorkerName>,
    in_log: HashSet<WorkerName>,
}

fn log_lost(workers: &[WorkerName], jobs: usize, taken: usize) {
    if !workers.is_empty() {
        let lost = workers.len();
        let names: Vec<&str> = workers.iter().take(NAMES_MAX).map(WorkerName::as_str).collect();
        let workers = names.join(", ");
        tracing::info!(workers, lost, jobs, taken, "workers timed out; what they held is taken back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_did_not_check_has_not_listened() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut listening = Listening::begin(start);
        for n in 1..=20 {
            assert_eq!(listening.check(start + n * second), n * second);
        }
        assert_eq!(listening.check(start + 20 * second + 2 * GAP), Duration::ZERO);
        assert_eq!(listening.check(start + 21 * second + 2 * GAP), second);
    }
}
