//! Which jobs: the conditions of lists, searches and operations.
//!
//! [`Filter::accepts`] is what a filter means. A store may ask its indexes first, for what is certainly all that can be accepted, and
//! judges each job by this function in the end: so both stores agree on every filter.

mod field;

pub use field::{FIELD_RULE, FieldIs, HeaderIs, PATH_MAX, VALUE_MAX};

use super::error_group;
use super::spec::Headers;
use super::{
    BatchId, Content, GroupName, Job, JobKey, Meta, QueueName, QueuePattern, Reach, Timestamp, Visible,
    WorkerName,
};

/// The most conditions on payloads, and the most on headers.
pub const FIELDS_MAX: usize = 16;
/// The longest text of an error to look for, in bytes.
pub const ERROR_MAX: usize = 512;

/// The values from one on, and before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<T> {
    /// The first one.
    pub from: Option<T>,
    /// The first one that is not among them any more.
    pub before: Option<T>,
}

impl<T> Default for Span<T> {
    /// All values.
    fn default() -> Self {
        Self { from: None, before: None }
    }
}

impl<T: Ord + Copy> Span<T> {
    /// Returns the values that are in both.
    pub fn and(self, other: Self) -> Self {
        let before = [self.before, other.before].into_iter().flatten().min();
        Self { from: self.from.max(other.from), before }
    }
}

impl<T: PartialOrd + Copy> Span<T> {
    /// Whether this value is among them.
    pub fn has(&self, value: T) -> bool {
        self.from.is_none_or(|from| value >= from) && self.before.is_none_or(|before| value < before)
    }

    /// The same of something that may have no value: that is among all values only.
    pub fn has_some(&self, value: Option<T>) -> bool {
        self.is_all() || value.is_some_and(|value| self.has(value))
    }

    /// Whether all values are among them.
    pub fn is_all(&self) -> bool {
        self.from.is_none() && self.before.is_none()
    }

    /// Whether there can be no value among them.
    pub fn is_empty(&self) -> bool {
        self.from.zip(self.before).is_some_and(|(from, before)| from >= before)
    }
}

/// Which jobs. A condition that is not set is met by all of them; a job must meet all that are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// Only jobs in these queues.
    pub within: Reach,
    /// Only jobs in one of these states; none: in any state.
    pub states: Vec<Visible>,
    /// Only jobs pushed with this key.
    pub key: Option<JobKey>,
    /// Only jobs of this group.
    pub group: Option<GroupName>,
    /// Only jobs of this batch.
    pub batch: Option<BatchId>,
    /// Only jobs that this worker reserved last.
    pub worker: Option<WorkerName>,
    /// Only jobs that were dead-lettered into their queue.
    pub dead_lettered: bool,
    /// Only jobs pushed in this time.
    pub created: Span<Timestamp>,
    /// Only jobs that were done or dead in this time.
    pub finished: Span<Timestamp>,
    /// Only jobs with such an earliest time of delivery.
    pub run_at: Span<Timestamp>,
    /// Only jobs with such a priority.
    pub priority: Span<i64>,
    /// Only jobs delivered so often from their queue.
    pub attempts: Span<i64>,
    /// Only jobs whose [last error](Meta::last_error) has this text in it.
    pub error: Option<String>,
    /// Only jobs whose last error is of this [group](error_group::of); those without an error are of the group "".
    pub error_group: Option<String>,
    /// Only jobs with these fields in their payload.
    pub payload: Vec<FieldIs>,
    /// Only jobs with these headers.
    pub headers: Vec<HeaderIs>,
}

impl Filter {
    /// Returns a filter for every job of the queue.
    pub fn all(queue: QueueName) -> Self {
        Self { within: Reach::one(&queue), ..Self::default() }
    }

    /// Returns a filter for the jobs of the queue in this state.
    pub fn state(queue: QueueName, state: Visible) -> Self {
        Self { states: vec![state], ..Self::all(queue) }
    }

    /// Limits it further to a time: by when jobs were done or dead where only such are meant, else by when they were pushed.
    pub fn during(self, time: Span<Timestamp>) -> Self {
        let is_finished = |state: &Visible| !state.stored().is_unfinished();
        match !self.states.is_empty() && self.states.iter().all(is_finished) {
            true => Self { finished: self.finished.and(time), ..self },
            false => Self { created: self.created.and(time), ..self },
        }
    }

    /// Returns the only queue whose jobs are meant, if that is one.
    pub fn queue(&self) -> Option<&QueueName> {
        match self.within.patterns()? {
            [QueuePattern::One(queue)] => Some(queue),
            _ => None,
        }
    }

    /// Whether nothing of a job's payload or headers is asked.
    pub fn asks_only_meta(&self) -> bool {
        self.payload.is_empty() && self.headers.is_empty()
    }

    /// Whether this job is meant.
    pub fn accepts(&self, job: &Job, now: Timestamp) -> bool {
        self.accepts_meta(&job.meta, now) && self.accepts_contents(&job.payload, &job.headers)
    }

    /// Whether a job with this metadata may be meant.
    pub fn accepts_meta(&self, meta: &Meta, now: Timestamp) -> bool {
        fn is<T: PartialEq>(wanted: &Option<T>, value: Option<&T>) -> bool {
            wanted.as_ref().is_none_or(|wanted| value == Some(wanted))
        }
        self.within.has(&meta.queue)
            && (self.states.is_empty() || self.states.contains(&meta.visible(now)))
            && is(&self.key, meta.key.as_ref())
            && is(&self.group, meta.group.as_ref())
            && is(&self.batch, meta.batch.as_ref())
            && is(&self.worker, meta.worker.as_ref())
            && (!self.dead_lettered || meta.origin.is_some())
            && self.created.has(meta.created_at)
            && self.finished.has_some(meta.finished_at)
            && self.run_at.has(meta.run_at)
            && self.priority.has(meta.priority.into())
            && self.attempts.has(meta.attempts.into())
            && self.accepts_error(meta.last_error())
    }

    fn accepts_error(&self, error: Option<&str>) -> bool {
        let has = |part: &String| error.is_some_and(|error| error.contains(part.as_str()));
        let is_of = |group: &String| error_group::of(error.unwrap_or_default()) == *group;
        self.error.as_ref().is_none_or(has) && self.error_group.as_ref().is_none_or(is_of)
    }

    fn accepts_contents(&self, payload: &Content, headers: &Headers) -> bool {
        let has_field = |field: &FieldIs| payload.json().is_some_and(|payload| field.is_in(payload));
        self.payload.iter().all(has_field) && self.headers.iter().all(|header| header.is_in(headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_half_open() {
        let span = Span { from: Some(1), before: Some(3) };
        assert!(!span.has(0) && span.has(1) && span.has(2) && !span.has(3) && !span.is_empty());
        assert!(Span { from: Some(3), before: Some(3) }.is_empty());
        assert!(Span::<i64>::default().has_some(None) && !span.has_some(None));
        assert_eq!(span.and(Span { from: Some(2), before: None }), Span { from: Some(2), before: Some(3) });
        assert_eq!(span.and(Span { from: None, before: Some(2) }), Span { from: Some(1), before: Some(2) });
        assert_eq!(span.and(Span::default()), span);
    }

    #[test]
    fn a_time_is_that_of_the_end_where_all_have_ended() {
        let time = Span { from: Some(Timestamp::from_millis(5)), before: None };
        let queue: QueueName = "q".parse().unwrap();
        let of = |states: &[Visible]| {
            Filter { states: states.to_vec(), ..Filter::all(queue.clone()) }.during(time)
        };
        assert_eq!(of(&[Visible::Done, Visible::Dead]).finished, time);
        assert_eq!(of(&[Visible::Done, Visible::Ready]).created, time);
        assert_eq!(of(&[]).created, time);
    }
}
