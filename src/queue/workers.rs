//! Workers: heartbeats, and taking back what removed workers hold.

use std::time::{Duration, Instant};

use async_trait::async_trait;

use super::audit::Act;
use super::reached::{self, ByName};
use super::{Error, Page, Queues, Result};
use crate::faults;
use crate::job::settings::{WORKER_TIMEOUT_MAX_MS, WORKER_TIMEOUT_MIN_MS};
use crate::job::transition::{Loss, Operation};
use crate::job::{Reach, WorkerName, WorkerVersion};
use crate::store::audit::along;
use crate::store::{Change, Holdings, Named, Report, Worker};

/// How many jobs are taken back in one step. On MongoDB a step is one transaction, and a conflict with the
/// settle of any of its jobs makes all of it retry.
pub(super) const STEP: usize = 200;
/// For how long jobs of a removed worker are taken back within one call, in about.
const REMOVE_MAX: Duration = Duration::from_secs(10);
/// After how many steps in a row that did nothing the call ends.
const FAILURES_MAX: usize = 2;
/// The most slots that a worker may report.
const SLOTS_MAX: u32 = 1_000_000;

/// What a worker reports with a heartbeat.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat {
    /// What it runs.
    pub version: Option<WorkerVersion>,
    /// How many jobs it can hold at once.
    pub slots: Option<u32>,
    /// After how long without a heartbeat it loses what it holds, in milliseconds; `None`: the configured
    /// default.
    pub timeout_ms: Option<u64>,
}

/// What the removal of a worker has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// How many jobs were taken back.
    pub affected: u64,
    /// Whether it still held jobs when the time was over. Then it is not removed yet.
    pub holds_more: bool,
}

impl Heartbeat {
    fn report(self, default_timeout_ms: u64) -> Result<Report> {
        let Self { version, slots, timeout_ms } = self;
        if slots.is_some_and(|slots| slots > SLOTS_MAX) {
            return Err(Error::invalid("/slots", "must be 0 to 1000000"));
        }
        let timeout_ms = timeout_ms.unwrap_or(default_timeout_ms);
        if !(WORKER_TIMEOUT_MIN_MS..=WORKER_TIMEOUT_MAX_MS).contains(&timeout_ms) {
            return Err(Error::invalid("/timeout_ms", "must be 1000 to 86400000"));
        }
        Ok(Report { version, slots, timeout_ms })
    }
}

impl Queues {
    /// Takes a heartbeat: extends all that the worker holds, and returns what that is, together with the
    /// timeout that holds for it from now on, in milliseconds.
    pub async fn heartbeat(&self, worker: &WorkerName, heartbeat: Heartbeat) -> Result<(Holdings, u64)> {
        let report = heartbeat.report(self.options().defaults.worker_timeout_ms)?;
        let place = self.admit_worker(worker).await?;
        let holdings = self.0.store.heartbeat(worker, &report).await?;
        place.keep_all();
        Ok((holdings, report.timeout_ms))
    }

    /// Returns the workers that have sent a heartbeat and whose names are within reach, by name.
    pub async fn workers(
        &self,
        after: Option<&WorkerName>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<Worker, WorkerName>> {
        reached::page(&Workers(self), within, after, limit).await
    }

    /// Returns one of them.
    pub async fn worker(&self, name: &WorkerName) -> Result<Worker> {
        let worker = self.0.store.worker(name).await?;
        worker.ok_or_else(|| Error::UnknownWorker(name.clone()))
    }

    /// Takes back at once what a worker holds, in steps, and forgets it once it holds nothing.
    pub async fn remove_worker(&self, name: &WorkerName) -> Result<Removed> {
        let (end, mut step, mut affected, mut failures) = (Instant::now() + REMOVE_MAX, STEP, 0, 0);
        let act = Act { what: "worker.remove", on: name.as_str(), ..Act::default() };
        let row = self.counting_row(act);
        loop {
            let taken = along(row.clone(), self.take_from(name, step)).await;
            let Taken { found, taken, failed } =
                taken.unwrap_or_else(|error| Taken { found: 0, taken: 0, failed: Some(error) });
            affected += taken;
            match failed {
                None if found == 0 => break, // fewer than asked for may be those that can be read
                // Others have settled all of these: that says nothing of what it holds beside them.
                None if taken == 0 => failures += 1,
                None => failures = 0,
                // What is done is done. Fewer jobs may do where so many do not end in time; where none do, nothing will.
                Some(error) if affected == 0 => return Err(error),
                Some(_) => {
                    failures = if taken == 0 { failures + 1 } else { 0 };
                    step = (step / 4).max(1);
                }
            }
            if Instant::now() >= end || failures == FAILURES_MAX {
                return Ok(Removed { affected, holds_more: true });
            }
        }
        // A worker that held nothing leaves whenever it ends: that is no act on jobs.
        let row = row.filter(|_| affected > 0);
        // Only now: should this server die before, another one finds that the worker has timed out.
        let forgotten = along(row, self.0.store.forget_worker(name)).await;
        let was_known = forgotten.map_err(|error| error.after(affected))?;
        self.forget(Named::Workers, name.as_str());
        if affected == 0 && !was_known {
            return Err(Error::UnknownWorker(name.clone()));
        }
        Ok(Removed { affected, holds_more: false })
    }

    /// Takes back some of what a worker holds.
    async fn take_from(&self, name: &WorkerName, most: usize) -> Result<Taken> {
        let held = self.0.store.held_by(name, most).await?;
        let found = held.len();
        let abandon = |claim| Operation::Abandon { claim, loss: Loss::Removed };
        let changes = held.into_iter().map(|(id, claim)| Change { id, operation: abandon(claim) }).collect();
        faults::point("overdue.read").await;
        let (done, failed) = self.apply_all(changes).await?;
        Ok(Taken { found, taken: done.len() as u64, failed: failed.map(Error::from) })
    }
}

/// What came of taking back some jobs.
struct Taken {
    found: usize,
    taken: u64,
    /// The failure of the store behind which not all are taken back.
    failed: Option<Error>,
}

/// The workers that have sent a heartbeat.
struct Workers<'a>(&'a Queues);

#[async_trait]
impl ByName for Workers<'_> {
    type Name = WorkerName;
    type Item = Worker;

    async fn after(&self, after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>> {
        Ok(self.0.0.store.workers(after, limit).await?)
    }

    async fn at(&self, name: &WorkerName) -> Result<Option<Worker>> {
        Ok(self.0.0.store.worker(name).await?)
    }

    fn name(worker: &Worker) -> &WorkerName {
        &worker.name
    }
}
