//! The part of the contract that is about workers: heartbeats, what each worker holds, and which have timed
//! out.
//!
//! **A worker whose heartbeat succeeds loses nothing.** A heartbeat first writes that the worker was seen,
//! then extends every job that it holds and gives it a new `rev`; only then it returns.
//! [`Workers::timed_out_workers`] first reads what a worker holds, and then checks that the worker is still
//! timed out; the changes that it returns take jobs back only as they were read, guarded by `rev`
//! ([`Loss::TimedOut`](crate::job::transition::Loss)). So if a heartbeat was written before that check,
//! nothing is taken; and if it was written after it, its new `rev`s come after the read: each job either was
//! taken before, which the heartbeat returns, or is a conflict and stays. A store that does all of that in
//! one transaction needs no second check.
//!
//! A delivery is a sign of life as well: a worker that has just reserved a job does not lose it, although its
//! last heartbeat may have been long ago, when it was idle. So is an extend, which leaves its time in the job that it writes anyway
//! (`extended_at`), and is read there only of workers without a heartbeat for their timeout.

use std::collections::HashMap;

use async_trait::async_trait;

use super::{Change, Result};
use crate::job::transition::{Loss, Operation};
use crate::job::{Claim, JobId, QueueName, Timestamp, WorkerName, WorkerVersion};

/// How many timed-out workers one check reads at most.
pub(super) const WORKERS_PER_CHECK: usize = 100;
/// How long a worker that has timed out stays in the list, in milliseconds: for operators to see.
pub(super) const TIMED_OUT_KEPT_MS: u64 = 3_600_000;

/// What a worker reports with a heartbeat. It replaces the report before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What it runs.
    pub version: Option<WorkerVersion>,
    /// How many jobs it can hold at once.
    pub slots: Option<u32>,
    /// After how long without a heartbeat it loses what it holds, in milliseconds.
    pub timeout_ms: u64,
}

/// A worker that has sent a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub name: WorkerName,
    /// When its last heartbeat came.
    pub seen_at: Timestamp,
    /// Whether it had timed out when it was read: no heartbeat in time, nor since then a delivery or an extend of a job that it holds.
    pub is_silent: bool,
    /// What that reported.
    pub report: Report,
    /// How many jobs it holds.
    pub reserved: u64,
}

/// What a worker holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holdings {
    /// How many jobs.
    pub jobs: u64,
    /// When the first of their reservations runs out.
    pub reserved_until: Option<Timestamp>,
    /// The jobs whose cancel was requested.
    pub cancel_requested: Vec<(JobId, QueueName)>,
}

impl Holdings {
    /// Adds a job.
    pub(super) fn add(&mut self, id: JobId, queue: QueueName, until: Timestamp, cancel_requested: bool) {
        self.jobs += 1;
        self.reserved_until = Some(self.reserved_until.map_or(until, |first| first.min(until)));
        if cancel_requested {
            self.cancel_requested.push((id, queue));
        }
    }
}

/// What is to be done about workers that have timed out.
#[derive(Debug, Clone, Default)]
pub struct TimedOut {
    /// [`Operation::Abandon`] for the jobs that they hold, up to the limit. Where there are some, there may be more.
    pub changes: Vec<Change>,
    /// The workers that hold these jobs, and those that hold none any more.
    pub workers: Vec<WorkerName>,
    /// Milliseconds until the next worker times out, unless its heartbeat comes before.
    pub next_in_ms: Option<u64>,
}

/// The verbs about workers; part of the contract of [`super::Store`].
#[async_trait]
pub trait Workers: Send + Sync {
    /// Extends each reservation of the worker to at least its own lease from now on, by the store's clock;
    /// none is shortened. Returns what the worker holds then. Once it returns, none of that is lost to an
    /// earlier timeout.
    async fn heartbeat(&self, worker: &WorkerName, report: &Report) -> Result<Holdings>;

    /// Returns the workers that have sent a heartbeat, by name, those after `after`. Those that timed out
    /// stay for an hour.
    async fn workers(&self, after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>>;

    /// Returns one of them.
    async fn worker(&self, worker: &WorkerName) -> Result<Option<Worker>>;

    /// Returns what is to be taken from workers without a heartbeat for their timeout, up to `limit` jobs.
    /// Only workers count whose timeout is at most `heard_ms`: for so long the caller would have seen a
    /// heartbeat. A worker that holds nothing any more is not checked until its next heartbeat. Costs next to
    /// nothing where there are none.
    async fn timed_out_workers(&self, heard_ms: u64, limit: usize) -> Result<TimedOut>;

    /// Returns up to `limit` jobs that a worker holds, whether or not it has ever sent a heartbeat.
    async fn held_by(&self, worker: &WorkerName, limit: usize) -> Result<Vec<(JobId, Claim)>>;

    /// Deletes the record of a worker, and returns whether there was one. What it holds it keeps.
    async fn forget_worker(&self, worker: &WorkerName) -> Result<bool>;
}

/// A worker without a heartbeat for its timeout.
pub(super) struct Suspect {
    pub name: WorkerName,
    pub timeout_ms: u64,
    /// When it last extended something that it still holds, where not all of that was read.
    pub extended_at: Option<Timestamp>,
}

/// A job that such a worker holds.
pub(super) struct Holding {
    pub worker: WorkerName,
    pub id: JobId,
    pub claim: Claim,
    pub rev: i64,
    pub started_at: Timestamp,
    pub extended_at: Option<Timestamp>,
}

/// What follows from what timed-out workers hold.
#[derive(Default)]
pub(super) struct TimeoutDecision {
    /// What is to be taken back.
    pub changes: Vec<Change>,
    /// Who held it, and who is idle.
    pub workers: Vec<WorkerName>,
    /// They hold nothing, and need not be checked again.
    pub idle: Vec<WorkerName>,
    /// They reserved a job lately, and time out only at this moment.
    pub later: Vec<(WorkerName, Timestamp)>,
}

impl TimeoutDecision {
    /// Decides about workers that had no heartbeat for their timeout. `held` has the latest delivery of each
    /// worker first; unless it is `complete`, a worker without a job in it may still hold some.
    pub fn of(suspects: &[Suspect], held: Vec<Holding>, complete: bool, now: Timestamp) -> Self {
        let mut by_worker: HashMap<WorkerName, Vec<Holding>> = HashMap::new();
        for holding in held {
            by_worker.entry(holding.worker.clone()).or_default().push(holding);
        }
        let mut decision = Self::default();
        for Suspect { name, timeout_ms, extended_at } in suspects {
            let held = by_worker.remove(name).unwrap_or_default();
            let extended_at = held.iter().filter_map(|held| held.extended_at).max().max(*extended_at);
            let times_out_at = held.first().map(|latest| {
                extended_at.map_or(latest.started_at, |at| at.max(latest.started_at)).plus_ms(*timeout_ms)
            });
            match times_out_at {
                Some(at) if at > now => decision.later.push((name.clone(), at)),
                Some(_) => {
                    decision.changes.extend(held.into_iter().map(abandon));
                    decision.workers.push(name.clone());
                }
                None if complete => {
                    decision.idle.push(name.clone());
                    decision.workers.push(name.clone());
                }
                None => {}
            }
        }
        decision
    }

    /// Returns the milliseconds until the next worker times out. `found`: how many the check has found, which
    /// may not be all.
    pub fn next_in_ms(&self, now: Timestamp, found: usize, ahead_ms: Option<u64>) -> Option<u64> {
        let more = (found >= WORKERS_PER_CHECK).then_some(0);
        self.later.iter().map(|(_, at)| at.ms_since(now)).chain(ahead_ms).chain(more).min()
    }
}

fn abandon(Holding { id, claim, rev, .. }: Holding) -> Change {
    Change { id, operation: Operation::Abandon { claim, loss: Loss::TimedOut { rev } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn held(worker: &str, started_at: i64) -> Holding {
        let (worker, id) = (worker.parse().unwrap(), format!("{worker}-{started_at}").parse().unwrap());
        Holding { worker, id, claim: Claim::random(), rev: 7, started_at: at(started_at), extended_at: None }
    }

    #[test]
    fn a_worker_that_reserved_a_job_lately_has_not_timed_out() {
        let suspect = |name: &str, extended_at: Option<i64>| Suspect {
            name: name.parse().unwrap(),
            timeout_ms: 100,
            extended_at: extended_at.map(at),
        };
        let workers = [suspect("gone", Some(899)), suspect("back", None), suspect("idle", None)];
        let jobs = || vec![held("gone", 900), held("gone", 100), held("back", 950), held("back", 10)];
        let decision = TimeoutDecision::of(&workers, jobs(), true, at(1000));
        let taken: Vec<&str> = decision.changes.iter().map(|change| change.id.as_str()).collect();
        assert_eq!(taken, ["gone-900", "gone-100"]);
        assert_eq!(decision.later, [("back".parse().unwrap(), at(1050))]);
        assert_eq!(decision.idle, ["idle".parse().unwrap()]);
        assert_eq!(decision.next_in_ms(at(1000), 3, Some(70)), Some(50));
        assert_eq!(decision.next_in_ms(at(1000), WORKERS_PER_CHECK, Some(70)), Some(0));
        let decision = TimeoutDecision::of(&[suspect("gone", Some(901))], jobs(), true, at(1000));
        assert!(decision.changes.is_empty() && decision.later == [("gone".parse().unwrap(), at(1001))]);
        let mut extended = jobs();
        extended[1].extended_at = Some(at(902));
        let decision = TimeoutDecision::of(&[suspect("gone", None)], extended, true, at(1000));
        assert!(decision.changes.is_empty() && decision.later == [("gone".parse().unwrap(), at(1002))]);
        // Where not all was read, no worker is known to hold nothing.
        assert!(TimeoutDecision::of(&workers, jobs(), false, at(1000)).idle.is_empty());
    }
}
