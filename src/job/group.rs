//! Groups: jobs of one queue that are delivered one after the other, in the order of their pushes.
//!
//! The unfinished jobs of a group form a line. The first one may be delivered, is reserved, or waits for its `run_at`;
//! the others are blocked. A job that comes back keeps its place. A store numbers the places in the order of the pushes
//! and, when the first job leaves, unblocks the next in the same transaction.

use std::fmt;
use std::str::FromStr;

use super::names::InvalidText;
use super::transition::{Next, Outcome, Step, delivery};
use super::{GroupName, Meta, QueueName, State};

/// The line of a group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// The queue.
    pub queue: QueueName,
    /// The group.
    pub group: GroupName,
}

impl fmt::Display for Line {
    /// Names have no slash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.queue, self.group)
    }
}

impl FromStr for Line {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let (queue, group) = text.split_once('/').ok_or(InvalidText("a queue and a group"))?;
        Ok(Self { queue: queue.parse()?, group: group.parse()? })
    }
}

/// A place in a line that a step frees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vacated {
    /// The line.
    pub line: Line,
    /// The number of the place.
    pub turn: i64,
    /// Whether it was the first: then the next job is to be unblocked.
    pub was_first: bool,
}

impl Line {
    /// Returns the line of a job's group, whether or not the job has a place in it.
    pub fn of(meta: &Meta) -> Option<Self> {
        Some(Self { queue: meta.queue.clone(), group: meta.group.clone()? })
    }

    /// Returns the line that a job joins when it is stored like this. A dead-lettered job is in none.
    pub fn to_join(meta: &Meta) -> Option<Self> {
        let joins = meta.state == State::Ready && meta.turn.is_none() && meta.origin.is_none();
        if joins { Self::of(meta) } else { None }
    }
}

/// Whether the job waits for those before it in its line: it is blocked, and not by a semaphore. What makes such a job dead takes its
/// place away: a dead job that has one is the first of its line, and holds it.
pub fn is_behind_others(meta: &Meta) -> bool {
    meta.state == State::Blocked && meta.waits_for.is_none()
}

/// Returns the place that a job leaves, if it leaves one.
pub fn vacated(before: &Meta, next: &Next) -> Option<Vacated> {
    let (line, turn) = (Line::of(before)?, before.turn?);
    let stays = match next {
        Next::Keep => true,
        Next::Write { meta, .. } => meta.turn == before.turn && meta.queue == before.queue,
        Next::Delete => false,
    };
    let was_first = !is_behind_others(before);
    if stays { None } else { Some(Vacated { line, turn, was_first }) }
}

impl Step {
    /// Gives the job that the step writes its place in the line, and notes in the outcome whether it is blocked.
    pub fn join_line(&mut self, turn: i64, is_first: bool) {
        if let Next::Write { meta, .. } = &mut self.next {
            delivery::join_line(meta, turn, is_first);
        }
        if let Outcome::Returned { blocked, .. } = &mut self.outcome {
            *blocked = !is_first;
        }
    }
}
