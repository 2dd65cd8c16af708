//! Claims where semaphores or limits of the queue apply: what both stores decide alike. A store reads and
//! writes, in one transaction.

use crate::job::rate::Deliveries;
use crate::job::semaphore::Admission;
use crate::job::settings::Rate;
use crate::job::transition::delivery::Delivery;
use crate::job::{Job, Meta, QueueName, Rules, SemaphoreName, Timestamp};
use crate::store::ClaimAsk;

impl ClaimAsk {
    /// Returns what the request gives to each job that it wins at this time.
    pub fn delivery(&self, at: Timestamp) -> Delivery<'_> {
        let Self { claim, lease_ms, yields, worker, .. } = self;
        Delivery { claim, lease_ms: *lease_ms, yields: *yields, worker: worker.as_ref(), at }
    }
}

/// What one queue has given.
#[derive(Debug, Default)]
pub struct Given {
    /// For each request, at its index.
    pub won: Vec<Vec<Job>>,
    /// When another claim may win more.
    pub resume_at: Option<Timestamp>,
    /// Semaphores that other jobs may get now.
    pub offers: Vec<SemaphoreName>,
    /// The semaphore for which jobs were left ready.
    pub refused: Option<SemaphoreName>,
    /// Whether as much was read of it as one call reads, before all requests had some.
    pub is_cut: bool,
}

/// Whether a claim of these jobs at the head of the queue needs an [`Admission`] or an [`Allowance`].
pub fn is_limited<'m>(queue: &QueueName, mut heads: impl Iterator<Item = &'m Meta>, rules: &Rules) -> bool {
    rules.max_reserved(queue).is_some()
        || rules.rate(queue).is_some()
        || heads.any(|meta| !meta.semaphores.is_empty())
}

/// A request that lacks a job.
#[derive(Debug, Clone, Copy)]
pub struct Want<'a> {
    /// Its index among the requests.
    pub index: usize,
    /// The request.
    pub ask: &'a ClaimAsk,
}

/// Returns the requests that still lack jobs, each once for each job, in order.
pub fn wants<'a>(asks: &[&'a ClaimAsk], won: &[Vec<Job>]) -> Vec<Want<'a>> {
    let asks = asks.iter().zip(won).enumerate();
    let missing = asks.map(|(index, (ask, won))| (Want { index, ask }, ask.count.saturating_sub(won.len())));
    missing.flat_map(|(want, count)| std::iter::repeat_n(want, count)).collect()
}

/// How many jobs the limits of a queue let it deliver now.
#[derive(Debug)]
pub struct Allowance {
    jobs: u64,
    rate: Option<(Rate, Deliveries)>,
    now: Timestamp,
}

impl Allowance {
    /// Returns the allowance of a queue that has `reserved` jobs (asked for only under a limit) and these
    /// recent deliveries (likewise).
    pub fn new(max_reserved: Option<(u64, u64)>, rate: Option<(Rate, Deliveries)>, now: Timestamp) -> Self {
        let room = max_reserved.map_or(u64::MAX, |(max, reserved)| max.saturating_sub(reserved));
        let left = rate.as_ref().map_or(u64::MAX, |(rate, recent)| recent.room(*rate, now));
        Self { jobs: room.min(left), rate, now }
    }

    /// Returns the time that it was taken at.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Returns how many of `wanted` jobs it allows.
    pub fn most(&self, wanted: usize) -> usize {
        usize::try_from(self.jobs).unwrap_or(usize::MAX).min(wanted)
    }

    /// Whether a queue that has delivered so many jobs may deliver no more.
    pub fn is_spent(&self, granted: usize) -> bool {
        granted as u64 == self.jobs
    }

    /// Counts deliveries. Returns what is to be remembered of them, if anything is.
    pub fn note(&mut self, granted: usize, now: Timestamp) -> Option<&Deliveries> {
        self.now = now;
        let (rate, recent) = self.rate.as_mut().filter(|_| granted > 0)?;
        recent.note(*rate, now, granted as u64);
        Some(recent)
    }

    /// Returns when the rate allows the next delivery, if it allows none now.
    pub fn resumes_at(&self) -> Option<Timestamp> {
        self.rate.as_ref().and_then(|(rate, recent)| recent.resumes_at(*rate, self.now))
    }
}

/// What is to become of the jobs at the head of a queue.
#[derive(Debug)]
pub struct Verdicts<'a, J> {
    /// The jobs that are delivered, and to which request.
    pub granted: Vec<(J, Want<'a>)>,
    /// The jobs that are blocked, and by which semaphore.
    pub blocked: Vec<(J, SemaphoreName)>,
    /// Semaphores that other jobs may get now.
    pub offers: Vec<SemaphoreName>,
}

/// Decides for each job at the head, in order, whether it is delivered or blocked, until `wants` are served.
pub fn judge<'a, J>(
    heads: impl IntoIterator<Item = J>,
    wants: &[Want<'a>],
    admission: &mut Admission<'_>,
    meta: impl Fn(&J) -> &Meta,
) -> Verdicts<'a, J> {
    let (mut granted, mut blocked, mut offers) = (Vec::new(), Vec::new(), Vec::new());
    for job in heads {
        let Some(want) = wants.get(granted.len()) else { break };
        match admission.stopped_by(meta(&job)).cloned() {
            Some(semaphore) => {
                offers.extend(admission.offers(meta(&job)).filter(|name| **name != semaphore).cloned());
                blocked.push((job, semaphore));
            }
            None => {
                admission.grant(meta(&job));
                offers.extend(admission.offers(meta(&job)).cloned());
                granted.push((job, *want));
            }
        }
    }
    Verdicts { granted, blocked, offers }
}
