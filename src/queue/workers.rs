//! Workers: heartbeats, and giving back what lost workers hold.

use super::{Error, Page, Queues, Result};
use crate::job::settings::{WORKER_TIMEOUT_MAX_MS, WORKER_TIMEOUT_MIN_MS};
use crate::job::transition::{Loss, Operation};
use crate::job::{WorkerName, WorkerVersion};
use crate::store::{Change, Holdings, Report, TimedOut, Worker};

/// How many jobs are given back in one step. On MongoDB a step is one transaction, which a settle of any of its
/// jobs makes begin anew.
const STEP: usize = 200;
/// The most slots that a worker may report.
const SLOTS_MAX: u32 = 1_000_000;

/// What a worker says of itself.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat {
    /// What it runs.
    pub version: Option<WorkerVersion>,
    /// How many jobs it can hold at once.
    pub slots: Option<u32>,
    /// After how long a silence it gives back what it holds, in milliseconds; `None`: what the configuration says.
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
    /// The worker is alive: extends all that it holds, and answers what that is, together with the timeout that
    /// it is held to from now on, in milliseconds.
    pub async fn heartbeat(&self, worker: &WorkerName, heartbeat: Heartbeat) -> Result<(Holdings, u64)> {
        let report = heartbeat.report(self.options().defaults.worker_timeout_ms)?;
        let holdings = self.0.store.heartbeat(worker, &report).await?;
        Ok((holdings, report.timeout_ms))
    }

    /// The workers that have sent a heartbeat, by name.
    pub async fn workers(
        &self,
        after: Option<&WorkerName>,
        limit: usize,
    ) -> Result<Page<Worker, WorkerName>> {
        let workers = self.0.store.workers(after, limit + 1).await?;
        Ok(Page::cut(workers, limit, |worker| worker.name.clone()))
    }

    /// One of them.
    pub async fn worker(&self, name: &WorkerName) -> Result<Worker> {
        let worker = self.0.store.worker(name).await?;
        worker.ok_or_else(|| Error::UnknownWorker(name.clone()))
    }

    /// Gives back at once what a worker holds, and forgets it. Answers how many jobs that were.
    pub async fn remove_worker(&self, name: &WorkerName) -> Result<u64> {
        let mut affected = 0;
        loop {
            let held = self.0.store.held_by(name, STEP).await?;
            let found = held.len();
            let abandon = |claim| Operation::Abandon { claim, loss: Loss::Removed };
            let changes =
                held.into_iter().map(|(id, claim)| Change { id, operation: abandon(claim) }).collect();
            let given_back = self.apply_overdue(changes).await?;
            affected += given_back as u64;
            if found < STEP || given_back == 0 {
                break;
            }
        }
        // Only now: should this server die before, the worker is found silent by another one.
        let was_known = self.0.store.forget_worker(name).await?;
        if affected == 0 && !was_known {
            return Err(Error::UnknownWorker(name.clone()));
        }
        Ok(affected)
    }

    /// Gives back what workers hold that have fallen silent, some of it: answers how many jobs that were, and
    /// in how many milliseconds the next worker falls silent; nothing where it should be asked again at once.
    /// `heard_ms`: for how long this server would have heard a heartbeat.
    pub async fn give_back_of_silent(&self, heard_ms: u64) -> Result<(usize, Option<u64>)> {
        let TimedOut { changes, next_in_ms } = self.0.store.timed_out_workers(heard_ms, STEP).await?;
        let found = changes.len();
        if found == 0 {
            return Ok((0, next_in_ms));
        }
        let given_back = self.apply_overdue(changes).await?;
        tracing::info!(found, given_back, "workers fell silent; their jobs are given back");
        Ok((given_back, next_in_ms))
    }
}
