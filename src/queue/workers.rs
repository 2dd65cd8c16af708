//! Workers: heartbeats, and taking back what removed workers hold.

use async_trait::async_trait;

use super::reached::{self, ByName};
use super::{Error, Page, Queues, Result};
use crate::job::settings::{WORKER_TIMEOUT_MAX_MS, WORKER_TIMEOUT_MIN_MS};
use crate::job::transition::{Loss, Operation};
use crate::job::{Reach, WorkerName, WorkerVersion};
use crate::store::{Change, Holdings, Named, Report, Worker};

/// How many jobs are taken back in one step. On MongoDB a step is one transaction, and a conflict with the
/// settle of any of its jobs makes all of it retry.
pub(super) const STEP: usize = 200;
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

    /// Takes back at once what a worker holds, and forgets it. Returns how many jobs those were.
    pub async fn remove_worker(&self, name: &WorkerName) -> Result<u64> {
        let mut affected = 0;
        loop {
            let held = self.0.store.held_by(name, STEP).await.map_err(|error| error.after(affected))?;
            let found = held.len();
            let abandon = |claim| Operation::Abandon { claim, loss: Loss::Removed };
            let changes =
                held.into_iter().map(|(id, claim)| Change { id, operation: abandon(claim) }).collect();
            let taken = self.apply_overdue(changes).await.map_err(|error| error.after(affected))?;
            affected += taken as u64;
            if found < STEP || taken == 0 {
                break;
            }
        }
        // Only now: should this server die before, another one finds that the worker has timed out.
        let forgotten = self.0.store.forget_worker(name).await;
        let was_known = forgotten.map_err(|error| error.after(affected))?;
        self.forget(Named::Workers, name.as_str());
        if affected == 0 && !was_known {
            return Err(Error::UnknownWorker(name.clone()));
        }
        Ok(affected)
    }
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
