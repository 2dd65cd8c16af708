//! Workers as a store knows them: who has sent a heartbeat, what each holds, and who has fallen silent.
//!
//! **A worker that is heard of loses nothing.** Its heartbeat first writes that it was seen, and then gives every
//! job that it holds more time and a new `rev`; only then it is answered. [`Workers::timed_out_workers`] first reads what a
//! worker holds, and then makes sure that the worker is still silent; what it answers takes jobs back only as
//! they were read, by their `rev` ([`Loss::TimedOut`](crate::job::transition::Loss)). So if a heartbeat was written
//! before that second look, nothing is taken; and if it was written after it, its new `rev`s come after the
//! reading, and each job either was taken before, which the heartbeat's answer tells, or cannot be taken any
//! more. A store that does all of that in one transaction needs no second look.
//!
//! A delivery is a sign of life, too: a worker that has just reserved a job is not about to lose it, although its
//! last heartbeat may have been long ago, when it was idle.

use std::collections::HashMap;

use async_trait::async_trait;

use super::{Change, Result};
use crate::job::transition::{Loss, Operation};
use crate::job::{Claim, JobId, QueueName, Timestamp, WorkerName, WorkerVersion};

/// How many silent workers one look judges at most.
pub(super) const WORKERS_PER_LOOK: usize = 100;
/// How long a worker that has fallen silent stays in the list, in milliseconds: for people to see.
pub(super) const SILENT_KEPT_MS: u64 = 3_600_000;

/// What a worker says of itself with a heartbeat. It replaces what the heartbeat before said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What it runs.
    pub version: Option<WorkerVersion>,
    /// How many jobs it can hold at once.
    pub slots: Option<u32>,
    /// After how long a silence it gives back what it holds, in milliseconds.
    pub timeout_ms: u64,
}

/// A worker that has sent a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub name: WorkerName,
    /// When its last heartbeat came.
    pub seen_at: Timestamp,
    /// What that said.
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
    /// The jobs that somebody asked to stop.
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

/// What is to be done about workers that have fallen silent.
#[derive(Debug, Clone, Default)]
pub struct TimedOut {
    /// [`Operation::Abandon`] for the jobs that they hold, up to the limit. Where there are some, there may be more.
    pub changes: Vec<Change>,
    /// Milliseconds until the next worker falls silent, if it is not heard of before.
    pub next_in_ms: Option<u64>,
}

/// The verbs about workers; part of the contract of [`super::Store`].
#[async_trait]
pub trait Workers: Send + Sync {
    /// The worker is alive: each of its reservations lasts at least for its own lease from now on, by the
    /// store's clock, and none is shortened. Answers what the worker holds then. Once it is answered, none of that is
    /// taken from the worker for a silence before.
    async fn heartbeat(&self, worker: &WorkerName, report: &Report) -> Result<Holdings>;

    /// The workers that have sent a heartbeat, by name, from the one behind `after` on. Those that fell silent
    /// stay for an hour.
    async fn workers(&self, after: Option<&WorkerName>, limit: usize) -> Result<Vec<Worker>>;

    /// One of them.
    async fn worker(&self, worker: &WorkerName) -> Result<Option<Worker>>;

    /// What is to be taken from workers that were not seen for their timeout, up to `limit` jobs. Only workers are
    /// judged whose timeout is at most `heard_ms`: for so long whoever asks would have heard a heartbeat. A worker
    /// that holds nothing any more is not waited for until its next heartbeat. Next to nothing where there are none.
    async fn timed_out_workers(&self, heard_ms: u64, limit: usize) -> Result<TimedOut>;

    /// Up to `limit` jobs that a worker holds, whether or not it has ever sent a heartbeat.
    async fn held_by(&self, worker: &WorkerName, limit: usize) -> Result<Vec<(JobId, Claim)>>;

    /// Forgets that the worker was seen; false if it never was. What it holds it keeps.
    async fn forget_worker(&self, worker: &WorkerName) -> Result<bool>;
}

/// A worker that was not seen for its timeout.
pub(super) struct Quiet {
    pub name: WorkerName,
    pub timeout_ms: u64,
}

/// A job that such a worker holds.
pub(super) struct Holding {
    pub worker: WorkerName,
    pub id: JobId,
    pub claim: Claim,
    pub rev: i64,
    pub started_at: Timestamp,
}

/// What follows from what silent workers hold.
#[derive(Default)]
pub(super) struct Judgement {
    /// What is to be taken back.
    pub changes: Vec<Change>,
    /// They hold nothing, and need not be waited for.
    pub idle: Vec<WorkerName>,
    /// They took a job lately, and are silent only from this moment on.
    pub later: Vec<(WorkerName, Timestamp)>,
}

impl Judgement {
    /// Judges workers that are silent at this moment. `held` has the latest delivery of each worker first;
    /// unless it is `complete`, who has none in it may still hold something.
    pub fn of(quiet: &[Quiet], held: Vec<Holding>, complete: bool, now: Timestamp) -> Self {
        let mut by_worker: HashMap<WorkerName, Vec<Holding>> = HashMap::new();
        for holding in held {
            by_worker.entry(holding.worker.clone()).or_default().push(holding);
        }
        let mut judgement = Self::default();
        for Quiet { name, timeout_ms } in quiet {
            let held = by_worker.remove(name).unwrap_or_default();
            let silent_at = held.first().map(|latest| latest.started_at.plus_ms(*timeout_ms));
            match silent_at {
                Some(silent_at) if silent_at > now => judgement.later.push((name.clone(), silent_at)),
                Some(_) => judgement.changes.extend(held.into_iter().map(abandon)),
                None if complete => judgement.idle.push(name.clone()),
                None => {}
            }
        }
        judgement
    }

    /// Milliseconds until the first worker falls silent that is not yet; `judged`: how many silent ones the look
    /// has found, where there may be more.
    pub fn next_in_ms(&self, now: Timestamp, judged: usize, ahead_ms: Option<u64>) -> Option<u64> {
        let more = (judged >= WORKERS_PER_LOOK).then_some(0);
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
        Holding { worker, id, claim: Claim::random(), rev: 7, started_at: at(started_at) }
    }

    #[test]
    fn who_took_a_job_lately_is_not_silent() {
        let quiet = |name: &str| Quiet { name: name.parse().unwrap(), timeout_ms: 100 };
        let workers = [quiet("gone"), quiet("back"), quiet("idle")];
        let jobs = || vec![held("gone", 900), held("gone", 100), held("back", 950), held("back", 10)];
        let judgement = Judgement::of(&workers, jobs(), true, at(1000));
        let taken: Vec<&str> = judgement.changes.iter().map(|change| change.id.as_str()).collect();
        assert_eq!(taken, ["gone-900", "gone-100"]);
        assert_eq!(judgement.later, [("back".parse().unwrap(), at(1050))]);
        assert_eq!(judgement.idle, ["idle".parse().unwrap()]);
        assert_eq!(judgement.next_in_ms(at(1000), 3, Some(70)), Some(50));
        assert_eq!(judgement.next_in_ms(at(1000), WORKERS_PER_LOOK, Some(70)), Some(0));
        // Where not all was read, nobody is known to hold nothing.
        assert!(Judgement::of(&workers, jobs(), false, at(1000)).idle.is_empty());
    }
}
