//! Where the heads of queues were lately, so that reading them does not begin at the very front.
//!
//! Index entries of jobs that have left stay in the way until WiredTiger forgets them, minutes later: after
//! 100,000 of them, reading the head takes 9 ms instead of 0.3 (measured). A read that begins where the head
//! was last passes none of them. What this server puts before that position is noticed here; for what others
//! put there, the position is forgotten often enough.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::job::{QueueName, Timestamp};

/// How long a job that another server puts before the head may stay hidden.
const AGE_MAX: Duration = Duration::from_millis(800);
/// How many queues are remembered before those that are not in use are thrown out.
const QUEUES: usize = 1000;

/// A position in the order of delivery: the lower priority is the later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The job's priority.
    pub priority: i32,
    /// When the job is due.
    pub run_at: Timestamp,
}

impl Position {
    fn is_before(&self, other: &Self) -> bool {
        (other.priority, self.run_at) < (self.priority, other.run_at)
    }

    fn earlier(self, other: Option<Self>) -> Self {
        other.filter(|other| other.is_before(&self)).unwrap_or(self)
    }
}

struct Entry {
    head: Option<Position>,
    /// When the queue was last read from its very front.
    since: Instant,
    /// The earliest position where a job has come since the last read.
    came: Option<Position>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct HeadCache(Mutex<HashMap<QueueName, Entry>>);

impl HeadCache {
    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Entry>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Where to begin to read; `None`: at the front.
    pub fn lower_bound(&self, queue: &QueueName) -> Option<Position> {
        self.lower_bound_at(queue, Instant::now())
    }

    fn lower_bound_at(&self, queue: &QueueName, now: Instant) -> Option<Position> {
        let mut heads = self.lock();
        if heads.len() >= QUEUES {
            heads.retain(|_, entry| now.saturating_duration_since(entry.since) < AGE_MAX);
        }
        // From here on what comes is noticed.
        let new = || Entry { head: None, since: now, came: None };
        let entry = heads.entry(queue.clone()).or_insert_with(new);
        if now.saturating_duration_since(entry.since) >= AGE_MAX {
            entry.head = None;
            entry.since = now;
        }
        entry.head
    }

    /// A read from where [`HeadCache::lower_bound`] said has found this job first.
    pub fn set(&self, queue: &QueueName, first: Position) {
        if let Some(entry) = self.lock().get_mut(queue) {
            entry.head = Some(first.earlier(entry.came.take()));
        }
    }

    /// Jobs have become ready in these positions: they are stored, and no waiter has been woken yet.
    pub fn note_ready<'a>(&self, positions: impl IntoIterator<Item = (&'a QueueName, Position)>) {
        let mut heads = self.lock();
        for (queue, position) in positions {
            if let Some(entry) = heads.get_mut(queue) {
                entry.came = Some(position.earlier(entry.came));
                entry.head = entry.head.map(|head| head.earlier(Some(position)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(priority: i32, run_at: i64) -> Position {
        Position { priority, run_at: Timestamp::from_millis(run_at) }
    }

    #[test]
    fn a_read_begins_where_the_head_was_or_where_something_came_before_it() {
        let (heads, queue, other) = (HeadCache::default(), "q".parse().unwrap(), "other".parse().unwrap());
        assert_eq!(heads.lower_bound(&queue), None);
        heads.set(&queue, at(0, 100));
        assert_eq!(heads.lower_bound(&queue), Some(at(0, 100)));
        heads.note_ready([(&queue, at(0, 200)), (&queue, at(-1, 50)), (&other, at(9, 0))]);
        assert_eq!(heads.lower_bound(&queue), Some(at(0, 100)), "what comes behind the head changes nothing");
        heads.note_ready([(&queue, at(0, 90))]);
        assert_eq!(heads.lower_bound(&queue), Some(at(0, 90)));
        heads.note_ready([(&queue, at(1, 500))]);
        assert_eq!(heads.lower_bound(&queue), Some(at(1, 500)), "a higher priority comes first");
    }

    #[test]
    fn what_comes_during_a_read_counts_behind_it() {
        let (heads, queue) = (HeadCache::default(), "q".parse().unwrap());
        heads.lower_bound(&queue);
        heads.note_ready([(&queue, at(0, 70))]);
        heads.set(&queue, at(0, 100));
        assert_eq!(heads.lower_bound(&queue), Some(at(0, 70)));
    }

    #[test]
    fn the_position_is_forgotten_in_time() {
        let (heads, queue) = (HeadCache::default(), "q".parse().unwrap());
        let start = Instant::now();
        heads.lower_bound_at(&queue, start);
        heads.set(&queue, at(0, 100));
        assert!(heads.lower_bound_at(&queue, start + AGE_MAX / 2).is_some());
        heads.set(&queue, at(0, 110));
        assert_eq!(
            heads.lower_bound_at(&queue, start + AGE_MAX),
            None,
            "however often it was read in between"
        );
        heads.set(&queue, at(0, 120));
        assert!(heads.lower_bound_at(&queue, start + AGE_MAX + AGE_MAX / 2).is_some());
    }
}
