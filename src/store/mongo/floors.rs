//! Where the heads of queues were lately, so that reading them does not begin at the very front.
//!
//! Index entries of jobs that have left stay in the way until WiredTiger forgets them, minutes later: after
//! 100,000 of them, reading the head takes 9 ms instead of 0.3 (measured). A read that begins where the head
//! was last passes none of them. What this server puts before that place is noticed here; for what others
//! put there, the place is forgotten often enough.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::job::{QueueName, Timestamp};

/// How long a job that another server puts before the head may stay hidden.
const AGE_MAX: Duration = Duration::from_millis(800);
/// How many queues are remembered before those that are not in use are thrown out.
const QUEUES: usize = 1000;

/// A place in the order of delivery: the lower priority is the later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The job's priority.
    pub priority: i32,
    /// When the job is due.
    pub run_at: Timestamp,
}

impl Place {
    fn is_before(&self, other: &Self) -> bool {
        (other.priority, self.run_at) < (self.priority, other.run_at)
    }

    fn earlier(self, other: Option<Self>) -> Self {
        other.filter(|other| other.is_before(&self)).unwrap_or(self)
    }
}

struct Floor {
    head: Option<Place>,
    /// When the queue was last read from its very front.
    since: Instant,
    /// The earliest place where a job has come since the last read.
    came: Option<Place>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Floors(Mutex<HashMap<QueueName, Floor>>);

impl Floors {
    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Floor>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Where to begin to read; `None`: at the front.
    pub fn begin(&self, queue: &QueueName) -> Option<Place> {
        self.begin_at(queue, Instant::now())
    }

    fn begin_at(&self, queue: &QueueName, now: Instant) -> Option<Place> {
        let mut floors = self.lock();
        if floors.len() >= QUEUES {
            floors.retain(|_, floor| now.saturating_duration_since(floor.since) < AGE_MAX);
        }
        // From here on what comes is noticed.
        let new = || Floor { head: None, since: now, came: None };
        let floor = floors.entry(queue.clone()).or_insert_with(new);
        if now.saturating_duration_since(floor.since) >= AGE_MAX {
            floor.head = None;
            floor.since = now;
        }
        floor.head
    }

    /// A read from where [`Floors::begin`] said has found this job first.
    pub fn found(&self, queue: &QueueName, first: Place) {
        if let Some(floor) = self.lock().get_mut(queue) {
            floor.head = Some(first.earlier(floor.came.take()));
        }
    }

    /// Jobs have become ready in these places: they are there, and nobody has been told so yet.
    pub fn came<'a>(&self, places: impl IntoIterator<Item = (&'a QueueName, Place)>) {
        let mut floors = self.lock();
        for (queue, place) in places {
            if let Some(floor) = floors.get_mut(queue) {
                floor.came = Some(place.earlier(floor.came));
                floor.head = floor.head.map(|head| head.earlier(Some(place)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(priority: i32, run_at: i64) -> Place {
        Place { priority, run_at: Timestamp::from_millis(run_at) }
    }

    #[test]
    fn a_read_begins_where_the_head_was_or_where_something_came_before_it() {
        let (floors, queue, other) = (Floors::default(), "q".parse().unwrap(), "other".parse().unwrap());
        assert_eq!(floors.begin(&queue), None);
        floors.found(&queue, at(0, 100));
        assert_eq!(floors.begin(&queue), Some(at(0, 100)));
        floors.came([(&queue, at(0, 200)), (&queue, at(-1, 50)), (&other, at(9, 0))]);
        assert_eq!(floors.begin(&queue), Some(at(0, 100)), "what comes behind the head changes nothing");
        floors.came([(&queue, at(0, 90))]);
        assert_eq!(floors.begin(&queue), Some(at(0, 90)));
        floors.came([(&queue, at(1, 500))]);
        assert_eq!(floors.begin(&queue), Some(at(1, 500)), "a higher priority comes first");
    }

    #[test]
    fn what_comes_during_a_read_counts_behind_it() {
        let (floors, queue) = (Floors::default(), "q".parse().unwrap());
        floors.begin(&queue);
        floors.came([(&queue, at(0, 70))]);
        floors.found(&queue, at(0, 100));
        assert_eq!(floors.begin(&queue), Some(at(0, 70)));
    }

    #[test]
    fn the_place_is_forgotten_in_time() {
        let (floors, queue) = (Floors::default(), "q".parse().unwrap());
        let start = Instant::now();
        floors.begin_at(&queue, start);
        floors.found(&queue, at(0, 100));
        assert!(floors.begin_at(&queue, start + AGE_MAX / 2).is_some());
        floors.found(&queue, at(0, 110));
        assert_eq!(floors.begin_at(&queue, start + AGE_MAX), None, "however often it was read in between");
        floors.found(&queue, at(0, 120));
        assert!(floors.begin_at(&queue, start + AGE_MAX + AGE_MAX / 2).is_some());
    }
}
