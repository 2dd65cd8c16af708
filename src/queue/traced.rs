//! Jobs whose traces are recorded: how long they waited, and which of them a settle is about.
//!
//! What this server has delivered is remembered for a while, so that a settle is found in the trace of its job although its caller names
//! none. That is for people only: what is forgotten, or was delivered by another server, is a trace with one span less.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::Queues;
use crate::job::{Job, JobId, TraceContext};
use crate::telemetry::trace::{self, Delivery, KeyValue, number, text};

/// How many jobs are remembered at most, in either half.
const HALF: usize = 10_000;

/// The traces of the jobs that were delivered lately.
#[derive(Default)]
pub(super) struct Traced(Mutex<Halves>);

/// The newer half takes what comes; once it is full it becomes the older one, which is thrown away.
#[derive(Default)]
struct Halves {
    newer: HashMap<JobId, TraceContext>,
    older: HashMap<JobId, TraceContext>,
}

impl Traced {
    fn halves(&self) -> MutexGuard<'_, Halves> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn remember(&self, jobs: impl Iterator<Item = (JobId, TraceContext)>) {
        let mut halves = self.halves();
        for (id, context) in jobs {
            halves.older.remove(&id);
            halves.newer.insert(id, context);
            if halves.newer.len() >= HALF {
                halves.older = std::mem::take(&mut halves.newer);
            }
        }
    }

    fn of<'a>(&self, ids: impl Iterator<Item = &'a JobId>) -> Vec<TraceContext> {
        let halves = self.halves();
        let known = |id: &JobId| halves.newer.get(id).or_else(|| halves.older.get(id)).cloned();
        ids.filter_map(known).collect()
    }
}

impl Queues {
    /// Jobs are delivered: records how long those have waited whose traces are recorded.
    pub(super) fn trace_deliveries(&self, jobs: &[Job]) {
        if !trace::is_on() {
            return;
        }
        let recorded = |job: &Job| TraceContext::of(&job.headers).filter(TraceContext::is_sampled);
        let recorded: Vec<(&Job, TraceContext)> =
            jobs.iter().filter_map(|job| Some((job, recorded(job)?))).collect();
        if recorded.is_empty() {
            return;
        }
        trace::delivered(recorded.iter().map(|(job, context)| Delivery {
            context,
            waited: waited(job),
            attributes: attributes(job),
        }));
        self.0.traced.remember(recorded.into_iter().map(|(job, context)| (job.meta.id.clone(), context)));
    }

    /// The current request settles these jobs: it is a part of their traces, where they are recorded and known here.
    pub(super) fn trace_settles<'a>(&self, ids: impl Iterator<Item = &'a JobId>) {
        if trace::is_on() {
            self.0.traced.of(ids).iter().for_each(trace::adopt);
        }
    }
}

/// Returns how long a job has waited for its delivery since it was due, by the store's clock.
fn waited(job: &Job) -> Duration {
    let ms = job.meta.started_at.map_or(0, |started_at| started_at.ms_since(job.meta.run_at));
    Duration::from_millis(ms)
}

fn attributes(Job { meta, .. }: &Job) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("messaging.system", "tailback"),
        text("messaging.destination.name", meta.queue.as_str()),
        text("messaging.message.id", meta.id.as_str()),
        number("tailback.job.attempt", meta.attempts),
    ];
    attributes.extend(meta.worker.as_ref().map(|worker| text("messaging.client.id", worker.as_str())));
    attributes
}
