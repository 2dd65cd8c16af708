//! What a server remembers of the heads of queues, so that claims read less of them.
//!
//! - **A lower bound.** Index entries of jobs that have left stay in the way until WiredTiger forgets them, minutes
//!   later: after 100,000 of them, reading the head takes 9 ms instead of 0.3 (measured). A read that begins where the
//!   head was last passes none of them.
//! - **What comes due.** Nothing is written at a due time, and a lower bound hides what comes due above it. So it is
//!   used only once the store was asked for the first job of a higher priority that comes due meanwhile, and up to then.
//! - **Jobs that were read ahead** (`ahead`).
//!
//! What this server puts before any of that is noticed here. What others put there is not: all of it is forgotten often
//! enough.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::job::{Job, QueueName, Timestamp};
use crate::store::mongo::cache::ahead::{AheadCache, Pace, cut};
use crate::store::mongo::cache::position::Position;
use crate::store::mongo::clock::Moment;

/// How long a job that another server puts before the head may stay hidden.
pub(super) const AGE_MAX: Duration = Duration::from_millis(800);
/// How many queues are remembered before those that are not in use are thrown out.
const QUEUES: usize = 1000;

/// No job with a priority above this one comes due before this time.
#[derive(Clone, Copy)]
struct Upcoming {
    above: i32,
    until: Timestamp,
}

struct Entry {
    head: Option<Position>,
    /// When the queue was last read from its very front.
    since: Moment,
    /// What is known of the jobs that come due after that.
    upcoming: Option<Upcoming>,
    /// The earliest position where a job has come since the last read began.
    came: Option<Position>,
    /// The highest priority and the earliest time of those that have come since then, and come due later.
    coming: Option<Position>,
    /// The read that began last: only what it finds is remembered, since only for it what came is known.
    read: u64,
    pace: Pace,
}

impl Entry {
    fn new(since: Moment) -> Self {
        let (head, upcoming, came, coming) = (None, None, None, None);
        Self { head, since, upcoming, came, coming, read: 0, pace: Pace::default() }
    }

    fn is_old(&self, now: Moment) -> bool {
        now.instant.saturating_duration_since(self.since.instant) >= AGE_MAX
            || self.upcoming.is_some_and(|upcoming| upcoming.until <= now.at_most)
    }

    /// What must be known before the lower bound may be used.
    fn unknown(&self) -> Option<Window> {
        let above = self.head?.priority;
        let is_known = self.upcoming.is_some_and(|upcoming| upcoming.above <= above);
        let age_ms = u64::try_from(AGE_MAX.as_millis()).unwrap_or(u64::MAX);
        let until = self.since.at_most.plus_ms(age_ms.saturating_add(1));
        (!is_known).then_some(Window { above, after: self.since.at_least, until })
    }

    fn note_coming(&mut self, Position { priority, run_at }: Position) {
        self.coming = Some(self.coming.map_or(Position { priority, run_at }, |coming| Position {
            priority: coming.priority.max(priority),
            run_at: coming.run_at.min(run_at),
        }));
        if let Some(upcoming) = self.upcoming.as_mut().filter(|upcoming| upcoming.above < priority) {
            upcoming.until = upcoming.until.min(run_at);
        }
    }
}

/// Jobs of a higher priority than this one that come due after one time and up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The priority.
    pub above: i32,
    /// The first time, exclusive.
    pub after: Timestamp,
    /// The last time, inclusive.
    pub until: Timestamp,
}

/// A read of the head of a queue.
pub struct Reading {
    number: u64,
    began: Moment,
    /// Where to begin to read; `None`: at the front.
    pub lower_bound: Option<Position>,
    /// How many jobs to read: as many as are asked for, or more.
    pub limit: usize,
    /// What must be asked first, for [`HeadCache::set_upcoming`].
    pub unknown: Option<Window>,
}

impl Reading {
    /// Returns what was found behind the jobs that were asked for.
    pub fn rest(&self, jobs: Vec<Job>) -> Rest {
        Rest { number: self.number, read_at: self.began.instant, jobs }
    }
}

/// Jobs that come next behind those of a claim, to be kept once that claim has succeeded.
pub struct Rest {
    number: u64,
    /// When the read began that found them.
    read_at: Instant,
    jobs: Vec<Job>,
}

/// How a claim begins.
pub enum Begun {
    /// The queue must be read.
    Read(Reading),
    /// These jobs were read ahead.
    Kept(Vec<Job>, Rest),
}

#[derive(Default)]
struct Memory {
    queues: HashMap<QueueName, Entry>,
    ahead: AheadCache,
    reads: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct HeadCache(Mutex<Memory>);

impl HeadCache {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Begins a claim of so many jobs. It takes what was read ahead, and may use it only where no other server is known to
    /// put jobs into the queue (`may_read_ahead`).
    pub fn begin(&self, queue: &QueueName, wanted: usize, may_read_ahead: bool, now: Moment) -> Begun {
        let Memory { queues, ahead, reads } = &mut *self.lock();
        if queues.len() >= QUEUES {
            queues.retain(|_, entry| !entry.is_old(now));
        }
        let kept = ahead.take(queue);
        let entry = queues.entry(queue.clone()).or_insert_with(|| Entry::new(now));
        if entry.is_old(now) {
            (entry.head, entry.upcoming, entry.since) = (None, None, now);
        }
        // From here on what comes is noticed.
        *reads += 1;
        (entry.read, entry.came, entry.coming) = (*reads, None, None);
        let kept = kept.filter(|kept| {
            may_read_ahead && entry.upcoming.is_some() && kept.serves(wanted, now.instant, now.at_most)
        });
        if let Some(mut kept) = kept {
            let rest = kept.jobs.split_off(wanted);
            entry.head = kept.jobs.first().map(|first| Position::of(&first.meta));
            entry.pace.used(now.instant);
            let rest = Rest { number: entry.read, read_at: kept.read_at, jobs: rest };
            return Begun::Kept(kept.jobs, rest);
        }
        let limit = entry.pace.limit(wanted, may_read_ahead && entry.head.is_some(), now.instant);
        let (lower_bound, unknown) = (entry.head, entry.unknown());
        Begun::Read(Reading { number: entry.read, began: now, lower_bound, limit, unknown })
    }

    /// This is when the first job comes due of what was asked for, if there is one. Where it may be due already, the
    /// read begins at the front.
    pub fn set_upcoming(&self, queue: &QueueName, reading: &mut Reading, first: Option<Timestamp>) {
        let Some(Window { above, until, .. }) = reading.unknown.take() else { return };
        let mut until = first.unwrap_or(until);
        if let Some(entry) = self.lock().queues.get_mut(queue).filter(|entry| entry.read == reading.number) {
            let coming = entry.coming.filter(|coming| coming.priority > above);
            until = coming.map_or(until, |coming| coming.run_at.min(until));
            entry.upcoming = Some(Upcoming { above, until });
        }
        if until <= reading.began.at_most {
            reading.lower_bound = None;
        }
    }

    /// The read has found this job first, jobs of this size on average, and so many more than were asked for.
    pub fn set(&self, queue: &QueueName, reading: &Reading, first: Position, job_bytes: usize, more: usize) {
        if let Some(entry) = self.lock().queues.get_mut(queue).filter(|entry| entry.read == reading.number) {
            entry.head = Some(first.earlier(entry.came));
            entry.pace.found(job_bytes, more);
        }
    }

    /// Returns how many jobs of a queue are kept.
    #[cfg(test)]
    pub fn kept(&self, queue: &QueueName) -> usize {
        self.lock().ahead.count(queue)
    }

    /// A claim has won all jobs before these. Those are kept that surely are the next ones for a while, and of which no
    /// other claim needs to decide more than that they are ready.
    pub fn keep(&self, queue: &QueueName, Rest { number, read_at, mut jobs }: Rest) {
        let Memory { queues, ahead, .. } = &mut *self.lock();
        let Some(entry) = queues.get(queue).filter(|entry| entry.read == number) else { return };
        let Some(Upcoming { above, .. }) = entry.upcoming else { return };
        let is_plain = |job: &Job| job.meta.priority >= above && job.meta.semaphores.is_empty();
        jobs.truncate(jobs.iter().take_while(|job| is_plain(job)).count());
        if let Some(came) = entry.came {
            cut(&mut jobs, came);
        }
        ahead.put(queue, jobs, read_at);
    }

    /// Jobs have become ready in these positions: they are stored, and no waiter has been woken yet. Without a moment
    /// they may be due or come due.
    pub fn note_ready<'a>(
        &self,
        now: Option<Moment>,
        positions: impl IntoIterator<Item = (&'a QueueName, Position)>,
    ) {
        let Memory { queues, ahead, .. } = &mut *self.lock();
        for (queue, position) in positions {
            let Some(entry) = queues.get_mut(queue) else {
                ahead.take(queue);
                continue;
            };
            if now.is_none_or(|now| position.run_at <= now.at_most) {
                entry.came = Some(position.earlier(entry.came));
                entry.head = entry.head.map(|head| head.earlier(Some(position)));
                ahead.cut(queue, position);
            }
            if now.is_none_or(|now| position.run_at > now.at_least) {
                entry.note_coming(position);
            }
        }
    }
}
