//! Workers in the model: who was seen when, and what follows from a silence.

use tailback::job::transition::{Loss, Operation};
use tailback::job::{JobId, State, WorkerName};
use tailback::store::{Change, Holdings, Report};

use super::job::{Rev, When};
use super::state::{Checked, Model};

#[derive(Debug, Clone)]
pub struct Worker {
    pub seen_at: When,
    pub report: Report,
    /// Whether its next heartbeat is waited for.
    pub is_awaited: bool,
}

impl Model {
    /// What a worker holds.
    pub fn held_by(&self, worker: &WorkerName) -> Vec<JobId> {
        let jobs = self.jobs.values();
        let held = jobs.filter(|job| job.state == State::Reserved && job.worker.as_ref() == Some(worker));
        held.map(|job| job.id.clone()).collect()
    }

    /// A heartbeat extends every reservation by its own lease, and shortens none.
    pub fn heartbeat(&mut self, name: &WorkerName, report: &Report, told: &Holdings, now: When) -> Checked {
        let worker = Worker { seen_at: now, report: report.clone(), is_awaited: true };
        self.workers.insert(name.clone(), worker);
        let held = self.held_by(name);
        let mut asked_to_stop = Vec::new();
        for id in &held {
            let Some(mut job) = self.jobs.get(id).cloned() else { continue };
            let until = now.plus(job.lease_ms.unwrap_or(0));
            let until = job.within_run(job.started_at.unwrap_or(now), until);
            job.reserved_until = job.reserved_until.map(|before| before.or_later(until));
            if job.cancel_requested {
                asked_to_stop.push((id.clone(), job.queue.clone()));
            }
            self.put(job);
        }
        let mut told_to_stop = told.cancel_requested.clone();
        told_to_stop.sort_by(|a, b| a.0.cmp(&b.0));
        if told.jobs != held.len() as u64 || told_to_stop != asked_to_stop {
            return Err(format!("a heartbeat of {name} told {told:?}, which holds {held:?}"));
        }
        let first = held
            .iter()
            .filter_map(|id| self.jobs.get(id)?.reserved_until)
            .reduce(|a, b| When { from: a.from.min(b.from), to: a.to.min(b.to) });
        let is_right = match (first, told.reserved_until) {
            (Some(first), Some(told)) => first.has(told),
            (first, told) => first.is_none() && told.is_none(),
        };
        if is_right { Ok(()) } else { Err(format!("a heartbeat told {told:?}, expected {first:?}")) }
    }

    /// What is taken from workers that were not heard of for their timeout. The harness has waited until the timeouts
    /// of all of them are over, or far ahead.
    pub fn timed_out_workers(&mut self, heard_ms: u64, told: &[Change], now: When) -> Checked {
        let mut lost = Vec::new();
        for name in self.workers.keys().cloned().collect::<Vec<_>>() {
            let held = self.held_by(&name);
            let Some(worker) = self.workers.get_mut(&name) else { continue };
            let timeout_ms = worker.report.timeout_ms;
            if !worker.is_awaited || timeout_ms > heard_ms || !worker.seen_at.plus(timeout_ms).is_past(now) {
                continue;
            }
            worker.is_awaited = !held.is_empty();
            lost.extend(held);
        }
        lost.sort();
        let mut seen: Vec<&Change> = told.iter().collect();
        seen.sort_by(|a, b| a.id.cmp(&b.id));
        let is_right = seen.len() == lost.len()
            && seen.iter().zip(&lost).all(|(seen, id)| match (&seen.operation, self.jobs.get(id)) {
                (Operation::Abandon { claim, loss: Loss::TimedOut { rev } }, Some(job)) => {
                    let same = matches!(job.rev, Rev::Same(known) if known == *rev);
                    seen.id == *id && job.claim.as_ref() == Some(claim) && same
                }
                _ => false,
            });
        if is_right { Ok(()) } else { Err(format!("silence takes {told:?}, expected {lost:?}")) }
    }
}
