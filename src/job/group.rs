//! Groups: jobs of one queue that are delivered one after the other, in the order of their pushes.
//!
//! The unfinished jobs of a group stand in a line. The first one may be delivered, or is held by a worker, or waits for
//! its `run_at`; the others are blocked. One that comes back keeps its place. A store numbers the places in the order of
//! the pushes and, when the first job leaves, unblocks the next in the same atomic step.

use super::transition::{Next, Outcome, Step};
use super::{GroupName, Meta, QueueName, State};

/// The line of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// The queue.
    pub queue: QueueName,
    /// The group.
    pub group: GroupName,
}

/// A place in a line that a step makes free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vacated {
    /// The line.
    pub line: Line,
    /// The number of the place.
    pub turn: i64,
    /// Whether it was the first: then the next job's turn has come.
    pub was_first: bool,
}

impl Line {
    /// The line that a job belongs to, whether or not it stands there.
    pub fn of(meta: &Meta) -> Option<Self> {
        Some(Self { queue: meta.queue.clone(), group: meta.group.clone()? })
    }

    /// The line that a job must be put at the end of before it is stored like this. A dead-lettered job stands in none.
    pub fn to_join(meta: &Meta) -> Option<Self> {
        let joins = meta.state == State::Ready && meta.turn.is_none() && meta.origin.is_none();
        if joins { Self::of(meta) } else { None }
    }
}

/// The place that a job leaves, if it leaves one.
pub fn vacated(before: &Meta, next: &Next) -> Option<Vacated> {
    let (line, turn) = (Line::of(before)?, before.turn?);
    let stays = match next {
        Next::Keep => true,
        Next::Write { meta, .. } => meta.turn == before.turn && meta.queue == before.queue,
        Next::Delete => false,
    };
    // Blocked without a semaphore: by those before it.
    let was_first = before.state != State::Blocked || before.waits_for.is_some();
    if stays { None } else { Some(Vacated { line, turn, was_first }) }
}

impl Meta {
    /// Puts the job into its line; it is blocked unless it is the first.
    pub fn stand(&mut self, turn: i64, is_first: bool) {
        self.turn = Some(turn);
        self.state = if is_first { State::Ready } else { State::Blocked };
    }
}

impl Step {
    /// Puts the job that the step writes into its line, and says so in the outcome.
    pub fn stand(&mut self, turn: i64, is_first: bool) {
        if let Next::Write { meta, .. } = &mut self.next {
            meta.stand(turn, is_first);
        }
        if let Outcome::Returned { blocked, .. } = &mut self.outcome {
            *blocked = !is_first;
        }
    }
}
