//! Jobs that a read of a head has found behind those that were asked for, unclaimed: the next claims need no read.
//!
//! They are what a read would find first now, as long as nothing has come before them: what this server stores there
//! drops them and what comes due is known before (`head`); what others write there is not noticed, and so they are
//! forgotten soon. That a job is still as it was read is for its claim to find out, whose write is guarded by `rev`.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::job::{Job, QueueName, Timestamp};
use crate::store::Weight as _;
use crate::store::mongo::cache::position::Position;

/// How long jobs are kept from before their read was sent, and so how long a job that another program puts before
/// them may be passed over.
pub(super) const KEPT_FOR: Duration = Duration::from_millis(100);
/// How many times as many jobs are read as are asked for.
const TIMES: usize = 4;
/// The most jobs that are read at once where that is more than what is asked for.
const JOBS_MAX: usize = 128;
/// The most bytes of one queue: larger payloads are not read ahead.
pub const AHEAD_BYTES: usize = 1 << 20;
/// The most bytes of all queues together.
const BYTES_MAX: usize = 16 << 20;
/// The most queues.
const QUEUES_MAX: usize = 1000;
/// The most reads in a row that do not read ahead because it was in vain.
const PAUSE_MAX: u32 = 63;

/// The jobs of one queue.
pub(super) struct Ahead {
    /// In the order of delivery.
    pub jobs: Vec<Job>,
    /// When their read began.
    pub read_at: Instant,
    bytes: usize,
}

impl Ahead {
    fn is_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.read_at) >= KEPT_FOR
    }

    /// Whether the first jobs are enough, and surely not expired by this time of the store's clock.
    pub fn serves(&self, wanted: usize, now: Instant, latest: Timestamp) -> bool {
        let lasts = |job: &Job| job.meta.expires_at.is_none_or(|at| at > latest);
        !self.is_old(now) && self.jobs.get(..wanted).is_some_and(|jobs| jobs.iter().all(lasts))
    }
}

/// The jobs of all queues.
#[derive(Default)]
pub(super) struct AheadCache {
    queues: HashMap<QueueName, Ahead>,
    bytes: usize,
}

impl AheadCache {
    /// Keeps the jobs of a queue, unless they are too large or too many.
    pub fn put(&mut self, queue: &QueueName, mut jobs: Vec<Job>, read_at: Instant) {
        let (mut bytes, mut few) = (0, 0);
        for job in &jobs {
            if bytes + job.weight() > AHEAD_BYTES {
                break;
            }
            bytes += job.weight();
            few += 1;
        }
        jobs.truncate(few);
        drop(self.take(queue));
        let is_full = |own: &Self| own.bytes + bytes > BYTES_MAX || own.queues.len() >= QUEUES_MAX;
        if is_full(self) {
            self.queues.retain(|_, ahead| !ahead.is_old(read_at));
            self.bytes = self.queues.values().map(|ahead| ahead.bytes).sum();
        }
        if !jobs.is_empty() && !is_full(self) {
            self.bytes += bytes;
            self.queues.insert(queue.clone(), Ahead { jobs, read_at, bytes });
        }
    }

    /// Takes what there is of a queue: of two claims at once, one has it.
    pub fn take(&mut self, queue: &QueueName) -> Option<Ahead> {
        let ahead = self.queues.remove(queue)?;
        self.bytes -= ahead.bytes;
        Some(ahead)
    }

    /// Returns how many jobs of a queue there are.
    #[cfg(test)]
    pub fn count(&self, queue: &QueueName) -> usize {
        self.queues.get(queue).map_or(0, |ahead| ahead.jobs.len())
    }

    /// A job has come here: drops all that is not before it.
    pub fn cut(&mut self, queue: &QueueName, came: Position) {
        let Some(ahead) = self.queues.get_mut(queue) else { return };
        cut(&mut ahead.jobs, came);
        if ahead.jobs.is_empty() {
            self.take(queue);
        }
    }
}

/// Drops the jobs that are not before this position.
pub(super) fn cut(jobs: &mut Vec<Job>, came: Position) {
    jobs.truncate(jobs.partition_point(|job| Position::of(&job.meta).is_before(&came)));
}

/// Whether it pays to read ahead in a queue: where claims follow each other soon, and have used what was read before.
#[derive(Default)]
pub(super) struct Pace {
    last: Option<Instant>,
    /// The size of a job, by the last read.
    job_bytes: usize,
    /// What was read ahead last has not been used yet.
    is_unused: bool,
    pause: u32,
    /// How many reads are left of the pause.
    pausing: u32,
}

impl Pace {
    /// A claim begins. Returns whether the last one was lately.
    fn begin(&mut self, now: Instant) -> bool {
        let last = self.last.replace(now);
        last.is_some_and(|last| now.saturating_duration_since(last) < KEPT_FOR)
    }

    /// A claim needs no read.
    pub fn used(&mut self, now: Instant) {
        self.begin(now);
        (self.is_unused, self.pause) = (false, 0);
    }

    /// Returns how many jobs a claim is to read that asks for so many.
    pub fn limit(&mut self, wanted: usize, may_read_ahead: bool, now: Instant) -> usize {
        let is_busy = self.begin(now);
        if std::mem::take(&mut self.is_unused) {
            self.pause = (2 * self.pause + 1).min(PAUSE_MAX);
            self.pausing = self.pause;
        }
        if !may_read_ahead || !is_busy || wanted == 0 {
            return wanted;
        }
        if self.pausing > 0 {
            self.pausing -= 1;
            return wanted;
        }
        let fitting = AHEAD_BYTES / (wanted * self.job_bytes).max(1);
        wanted * TIMES.min(JOBS_MAX / wanted).min(fitting).max(1)
    }

    /// A read has found jobs of this size, and so many more than were asked for.
    pub fn found(&mut self, job_bytes: usize, more: usize) {
        (self.job_bytes, self.is_unused) = (job_bytes, more > 0);
    }
}
