//! What can happen to a job that is already there.

use crate::job::state::{Verb, Visible};
use crate::job::{Claim, NewJob, Payload, QueueName, Reach, Timestamp};

/// Something that is to happen to a job that is already there. Where an operation has `within`, a job that is in another queue
/// by now is unknown to it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Operation {
    /// The work is done. The jobs in `push` are stored with it, all of them, or it does not happen.
    Commit { claim: Claim, result: Option<Payload>, push: Vec<NewJob> },
    /// A reserve that deletes the job at once, whatever stages it has before it.
    Pop { claim: Claim },
    /// The work failed; comes back after `delay_ms` (`None`: by its backoff), or is dead.
    Rollback { claim: Claim, delay_ms: Option<u64>, error: Option<String> },
    /// The worker needs more time (`None`: as much as it first asked for).
    Extend { claim: Claim, lease_ms: Option<u64>, progress: Option<Payload> },
    /// The worker puts the job into another queue, where its attempts start again.
    Move {
        claim: Claim,
        queue: QueueName,
        payload: Option<Payload>,
        delay_ms: Option<u64>,
        priority: Option<i32>,
    },
    /// A repeat of the request that won the job gets it under its own claim; the old token is dead from here on.
    TakeOver { claim: Claim, to: Claim, lease_ms: u64 },
    /// The delivery reached no client: the job goes back where it was, the attempt not counted.
    Release { claim: Claim },
    /// The reservation ran out. `reserved_until` is the deadline that the store found to have passed.
    Lapse { claim: Claim, reserved_until: Timestamp },
    /// The worker that holds the job is lost: the job comes back before its reservation runs out.
    Abandon { claim: Claim, loss: Loss },
    /// The store found the job's `expires_at` to have passed.
    Expire { expires_at: Timestamp },
    /// Changes a job that is not reserved.
    Edit { within: Reach, priority: Option<i32>, run_at: Option<Timestamp>, payload: Option<Payload> },
    /// Takes the job away; one that is reserved is only asked to stop, unless forced.
    Cancel { within: Reach, force: bool },
    /// Takes the job away if it is in this state.
    Purge { within: Reach, state: Visible },
    /// Another chance for a dead job, or for one that was dead-lettered from a queue of `home`.
    Redrive { within: Reach, home: Reach },
}

impl Operation {
    /// Returns the verb of the state table that this operation stands for.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Commit { .. } | Self::Pop { .. } => Verb::Commit,
            Self::Rollback { .. } => Verb::Rollback,
            Self::Extend { .. } => Verb::Extend,
            Self::Move { .. } => Verb::Move,
            Self::TakeOver { .. } => Verb::TakeOver,
            Self::Release { .. } => Verb::Release,
            Self::Lapse { .. } => Verb::Lapse,
            Self::Abandon { .. } => Verb::Abandon,
            Self::Expire { .. } => Verb::Expire,
            Self::Edit { .. } => Verb::Edit,
            Self::Cancel { .. } => Verb::Cancel,
            Self::Purge { .. } => Verb::Purge,
            Self::Redrive { .. } => Verb::Redrive,
        }
    }

    /// Returns what it does to a job that the store cannot read.
    pub fn of_unreadable(&self) -> OfUnreadable {
        match self {
            Self::Cancel { within, .. } => {
                OfUnreadable::Remove(Self::Cancel { within: within.clone(), force: true })
            }
            Self::Purge { .. } => OfUnreadable::Remove(self.clone()),
            Self::Lapse { .. } | Self::Abandon { .. } | Self::Expire { .. } => OfUnreadable::Bury,
            _ => OfUnreadable::Refuse,
        }
    }

    /// Returns the JSON value that comes with it, if any.
    pub fn value(&self) -> Option<&Payload> {
        match self {
            Self::Commit { result: value, .. }
            | Self::Extend { progress: value, .. }
            | Self::Move { payload: value, .. }
            | Self::Edit { payload: value, .. } => value.as_ref(),
            _ => None,
        }
    }

    /// Returns the result of the work.
    pub fn result(&self) -> Option<&Payload> {
        match self {
            Self::Commit { result, .. } => result.as_ref(),
            _ => None,
        }
    }

    /// Returns the jobs that are to be stored with it.
    pub fn pushes(&self) -> &[NewJob] {
        match self {
            Self::Commit { push, .. } => push,
            _ => &[],
        }
    }

    /// Returns the queues in which the job must be.
    pub fn within(&self) -> Option<&Reach> {
        match self {
            Self::Edit { within, .. }
            | Self::Cancel { within, .. }
            | Self::Purge { within, .. }
            | Self::Redrive { within, .. } => Some(within),
            _ => None,
        }
    }

    /// Returns the claim that must hold the job.
    pub fn claim(&self) -> Option<&Claim> {
        match self {
            Self::Commit { claim, .. }
            | Self::Pop { claim }
            | Self::Rollback { claim, .. }
            | Self::Extend { claim, .. }
            | Self::Move { claim, .. }
            | Self::TakeOver { claim, .. }
            | Self::Release { claim }
            | Self::Lapse { claim, .. }
            | Self::Abandon { claim, .. } => Some(claim),
            Self::Expire { .. }
            | Self::Edit { .. }
            | Self::Cancel { .. }
            | Self::Purge { .. }
            | Self::Redrive { .. } => None,
        }
    }
}

/// What an operation does to a job that the store cannot read, because another program wrote it.
#[derive(Debug, Clone, PartialEq)]
pub enum OfUnreadable {
    /// This is done with what can be read of it: nobody could settle it, so that its holder is not asked.
    Remove(Operation),
    /// It is made dead, out of the way of what the server does by itself.
    Bury,
    /// Nothing.
    Refuse,
}

/// How a job's worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Loss {
    /// It sent no heartbeat within its timeout. `rev` is that of the job when the timeout was noticed: a later
    /// heartbeat replaces it, so that a worker which is back keeps what it has not lost yet.
    TimedOut { rev: i64 },
    /// A client removed it.
    Removed,
}

impl Loss {
    /// What is kept with the job as the failure's message.
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::TimedOut { .. } => "the worker fell silent",
            Self::Removed => "the worker was removed",
        }
    }
}
