//! Operations over many jobs: what is wanted, which jobs are meant, and how far it has come. A store keeps all of it as one record,
//! whose revision guards each step.

mod filter;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::filter::{BulkFilter, OperationConditions};

use super::state::State;
use super::transition::{Edit, Operation};
use super::{ApiKeyId, BulkId, Job, JobId, Meta, QueueName, QueuePattern, Reach, Span, Timestamp, Visible};

/// By how much the clocks of servers may differ, as estimates of the store's, in milliseconds. An operation counts jobs as there from the
/// beginning for so long after it was asked for, and acts only after twice as long: what follows from its effect comes later.
pub const CLOCKS_DIFFER_MS: u64 = 250;

/// What is done to each job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OperationAction)]
pub enum BulkAction {
    /// Dead jobs, and those that wait for their time, are ready at once where they are, their attempts counted anew.
    Retry,
    /// Jobs that are not reserved or done go to the queue `to`, where their attempts start again.
    Move,
    /// Jobs that are not reserved are deleted.
    Delete,
    /// Dead jobs are ready again, and those that were dead-lettered return to where they came from.
    Redrive,
    /// Copies of finished jobs are pushed.
    Replay,
    /// Jobs that wait get `priority`.
    SetPriority,
}

impl BulkAction {
    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Move => "move",
            Self::Delete => "delete",
            Self::Redrive => "redrive",
            Self::Replay => "replay",
            Self::SetPriority => "set_priority",
        }
    }

    /// Returns whether it can concern jobs in this state.
    fn concerns(self, state: Visible) -> bool {
        match self {
            Self::Retry => matches!(state, Visible::Scheduled | Visible::Ready | Visible::Dead),
            Self::Move => !matches!(state, Visible::Reserved | Visible::Done),
            Self::Delete => state != Visible::Reserved,
            Self::Redrive => !matches!(state, Visible::Reserved | Visible::Done),
            Self::Replay => matches!(state, Visible::Done | Visible::Dead),
            Self::SetPriority => matches!(state, Visible::Scheduled | Visible::Ready | Visible::Blocked),
        }
    }
}

/// What is wanted: stored before anything is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BulkIntent {
    /// Which jobs.
    pub filter: BulkFilter,
    /// What is done to each.
    pub action: BulkAction,
    /// The queue that they are moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
    /// The priority that they get, or have where they are moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The most jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Whether it looks at the latest jobs first. Those of a group that come after one that it deletes are passed by then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub newest_first: bool,
    /// The queues in which it may act; without them in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Vec<QueuePattern>>,
    /// The key that asked for it, where that limits who may see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ApiKeyId>,
}

impl BulkIntent {
    /// Returns the first field that does not fit the others, and what is wrong with it.
    pub fn fault(&self) -> Option<(&'static str, String)> {
        let action = self.action.as_str();
        let takes_priority = matches!(self.action, BulkAction::Move | BulkAction::SetPriority);
        match self {
            Self { to: None, action: BulkAction::Move, .. } => Some(("/to", "must be given".to_owned())),
            Self { to: Some(to), filter, .. } if filter.queue == Some(QueuePattern::One(to.clone())) => {
                Some(("/to", "must be another queue than filter.queue".to_owned()))
            }
            Self { to: Some(_), action: not_move, .. } if *not_move != BulkAction::Move => {
                Some(("/to", format!("is not for the action {action}")))
            }
            Self { priority: None, action: BulkAction::SetPriority, .. } => {
                Some(("/priority", "must be given".to_owned()))
            }
            Self { priority: Some(_), .. } if !takes_priority => {
                Some(("/priority", format!("is not for the action {action}")))
            }
            Self { limit: Some(0), .. } => Some(("/limit", "must be at least 1".to_owned())),
            Self { filter, .. } if filter.states().iter().any(|state| !self.action.concerns(*state)) => {
                let concerned = Visible::ALL.into_iter().filter(|state| self.action.concerns(*state));
                let concerned: Vec<&str> = concerned.map(|state| state.as_str()).collect();
                let pointer = if filter.state.is_some() { "/filter/state" } else { "/filter/states" };
                Some((pointer, format!("must be one of: {}, for the action {action}", concerned.join(", "))))
            }
            _ => self.filter.fault(),
        }
    }

    /// Returns the parts of the work in one queue, one behind the other: a state, or all of them, and whether only dead letters are
    /// meant.
    pub fn parts(&self) -> Vec<BulkPart> {
        let part = |states: &[Visible], dead_lettered| BulkPart { states: states.to_vec(), dead_lettered };
        let (letters, mut states) = (self.filter.dead_lettered, self.filter.states());
        if states.is_empty() {
            let all = [Visible::Blocked, Visible::Scheduled, Visible::Ready, Visible::Done, Visible::Dead];
            let is_meant = |state: &Visible| match self.action {
                BulkAction::Replay => *state == Visible::Done,
                BulkAction::Retry => matches!(state, Visible::Scheduled | Visible::Dead),
                action => action.concerns(*state),
            };
            states = all.into_iter().filter(is_meant).collect();
        }
        if self.action != BulkAction::Redrive {
            return vec![part(&states, letters)];
        }
        // The dead last: a letter that dies here meanwhile is still found. The others together: they change their states.
        let (dead, waiting): (Vec<Visible>, Vec<Visible>) =
            states.into_iter().partition(|state| *state == Visible::Dead);
        let parts = [part(&waiting, true), part(&dead, letters)];
        parts.into_iter().filter(|part| !part.states.is_empty()).collect()
    }

    /// Returns the beginning of the names of the queues that are meant.
    pub fn prefix(&self) -> &str {
        match &self.filter.queue {
            Some(QueuePattern::One(queue)) => queue.as_str(),
            Some(QueuePattern::Prefix(prefix)) => prefix,
            None => "",
        }
    }

    /// Returns the queue that it is about, where it is about one.
    pub fn queue(&self) -> Option<&QueueName> {
        match &self.filter.queue {
            Some(QueuePattern::One(queue)) => Some(queue),
            _ => None,
        }
    }

    /// Returns whether jobs of this queue are meant, and may be.
    pub fn means(&self, queue: &QueueName) -> bool {
        let is_meant = self.filter.queue.as_ref().is_none_or(|pattern| pattern.matches(queue));
        is_meant && self.reach().has(queue) && self.to.as_ref() != Some(queue)
    }

    /// Returns the queues in which it may act.
    pub fn reach(&self) -> Reach {
        self.within.clone().map_or_else(Reach::default, Reach::of)
    }

    /// Returns the states that are meant, if not all are: what is tried again of itself was not asked for.
    fn states(&self) -> Vec<Visible> {
        match self.filter.states() {
            states if states.is_empty() && self.action == BulkAction::Retry => {
                vec![Visible::Scheduled, Visible::Dead]
            }
            states => states,
        }
    }

    /// Whether the action concerned the job in the state that it had when the operation began, and its time is meant: when it ended, or
    /// was pushed where it has not. What is found in the state that is asked for, and came to it since, is known by its `run_at` (it was
    /// revived or replaced then, or was not due) or by its `came_at` (it was reserved or blocked).
    fn is_meant(&self, job: &Meta, began: Timestamp) -> bool {
        let time = Span { from: self.filter.from, before: self.filter.before };
        let at = if job.state.is_unfinished() { Some(job.created_at) } else { job.finished_at };
        let (was, states) = (job.visible(began), self.states());
        // One that was blocked then, which is meant as well.
        let was_unblocked =
            states.contains(&Visible::Blocked) && was == Visible::Ready && !was_held_since(job, began);
        let has_come = is_since(job.came_at, began) && !was_unblocked;
        self.action.concerns(was)
            && (states.is_empty() || (states.contains(&was) && !has_come))
            && !was_held(job, began)
            && !(self.action == BulkAction::Delete && was_held_since(job, began))
            && (time.is_all() || at.is_some_and(|at| time.has(at)))
            && self.filter.died().has_some(job.died_at())
    }

    /// Returns what is to happen to a job of this queue that was found and cannot be read, if anything is.
    pub fn operation_on_unreadable(&self, queue: &QueueName) -> Option<Operation> {
        let states = self.filter.states();
        let is_meant = self.action == BulkAction::Delete && !states.is_empty() && self.filter.is_of_time();
        is_meant.then(|| Operation::Purge { within: Reach::one(queue), states })
    }

    /// Returns what is to happen to a job that was found in a part, if anything is; copies are made otherwise.
    pub fn operation(&self, job: &Meta, began: Timestamp) -> Option<Operation> {
        let within = Reach::one(&job.queue);
        if !was_there(job, began) || !self.is_meant(job, began) {
            return None;
        }
        match self.action {
            BulkAction::Retry => Some(Operation::Retry { within }),
            BulkAction::Move => {
                let (queue, priority) = (self.to.clone()?, self.priority);
                Some(Operation::Relocate { within, queue, when: None, priority })
            }
            BulkAction::Delete => Some(match self.filter.states() {
                states if states.is_empty() => Operation::CancelUnheld { within },
                states => Operation::Purge { within, states },
            }),
            BulkAction::Redrive => Some(Operation::Redrive { within, home: self.reach() }),
            BulkAction::SetPriority => {
                let edit = Edit { priority: self.priority, ..Edit::default() };
                Some(Operation::Edit { within, edit: Box::new(edit) })
            }
            BulkAction::Replay => None,
        }
    }

    /// Returns whether a copy of this job is to be pushed.
    pub fn copies(&self, job: &Job, began: Timestamp) -> bool {
        let may_use = |name: &str| {
            self.within.as_ref().is_none_or(|within| within.iter().any(|pattern| pattern.matches_text(name)))
        };
        self.action == BulkAction::Replay
            && was_there(&job.meta, began)
            && self.is_meant(&job.meta, began)
            && !job.meta.state.is_unfinished()
            && !is_new_copy(&job.meta, began)
            && job.meta.semaphores.iter().all(|semaphore| may_use(semaphore.as_str()))
    }
}

/// Whether the job was as it is, and where it is, when an operation began. What came to match since, also by its own effect, is left
/// alone: a job that is retried and dies again is not taken twice.
fn was_there(job: &Meta, began: Timestamp) -> bool {
    let has_ended = matches!(job.state, State::Done | State::Dead);
    let ended = job.finished_at.filter(|_| has_ended);
    let came = job.trail.last().map(|step| step.at);
    job.created_at < began
        && !is_new_callback(job, began.minus_ms(CLOCKS_DIFFER_MS))
        && [ended, came].into_iter().flatten().all(|at| at < began)
}

/// Whether the job is the callback of a batch that has ended since then, when an operation was asked for, or a call was made: that may
/// have ended the batch itself. The id of a callback is as old as its batch.
pub fn is_new_callback(job: &Meta, asked_at: Timestamp) -> bool {
    job.created_at >= asked_at && job.id < JobId::first_of(job.created_at)
}

fn is_since(at: Option<Timestamp>, began: Timestamp) -> bool {
    at.is_some_and(|at| at >= began)
}

/// Whether a worker held the job when an operation began: it was given back since, and not delivered.
fn was_held(job: &Meta, began: Timestamp) -> bool {
    is_since(job.given_back_at, began) && !is_since(job.started_at, began)
}

/// Whether a worker has held the job since an operation began: it was delivered, given back, or has failed, which older servers note as
/// well.
fn was_held_since(job: &Meta, began: Timestamp) -> bool {
    let failed = job.errors.last().map(|failure| failure.at);
    [job.started_at, job.given_back_at, failed].into_iter().any(|at| is_since(at, began))
}

/// Whether the job is a copy that was pushed since an operation was asked for that counts jobs as there before `began`. The call that
/// asked for it may have pushed it, and a worker may have finished it since.
fn is_new_copy(job: &Meta, began: Timestamp) -> bool {
    let asked_at = began.minus_ms(CLOCKS_DIFFER_MS);
    job.replay_of.is_some() && job.id >= JobId::first_of(asked_at)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A part of the work in one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkPart {
    /// The states of the jobs.
    pub states: Vec<Visible>,
    /// Whether they must have been dead-lettered into the queue.
    pub dead_lettered: bool,
}

/// How an operation is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OperationState)]
pub enum BulkState {
    /// Nothing was done yet.
    Queued,
    /// It is under way.
    Running,
    /// It is over.
    Done,
    /// It was stopped; what was done by then stays.
    Cancelled,
    /// It ended early, and `error` says why; what was done by then stays.
    Failed,
}

impl BulkState {
    /// Returns whether there is more to do.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Queued | Self::Running)
    }
}

/// Where the next step begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkCursor {
    /// The queue; before the first step none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// The part of the work in it.
    pub part: usize,
    /// The last job of that part which was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<JobId>,
    /// Whether all of that part was looked at: what is behind is looked at once more, and not counted again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub was_over: bool,
}

impl BulkCursor {
    /// Behind a job in a part of the work in a queue; without a job at the beginning of the part.
    pub fn at(queue: QueueName, part: usize, after: Option<JobId>) -> Self {
        Self { queue: Some(queue), part, after, was_over: false }
    }
}

/// An operation over many jobs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bulk {
    /// Its id.
    pub id: BulkId,
    /// What is wanted.
    pub intent: BulkIntent,
    /// How it is doing.
    pub state: BulkState,
    /// Who asked for it: the id of the key; empty while none are required.
    pub by: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When the first step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// About how many jobs match, where that was known without a count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<u64>,
    /// How many jobs were looked at.
    pub scanned: u64,
    /// How many jobs it has changed, deleted or copied.
    pub affected: u64,
    /// How many of those that were looked at did not allow it, or changed in between.
    pub skipped: u64,
    /// The last reasons why a job did not allow it, or a step had to be repeated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where the next step begins.
    pub cursor: BulkCursor,
    /// Whether it goes on once a queue has room for its copies.
    #[serde(default, skip_serializing_if = "is_false")]
    pub waits_for_room: bool,
    /// Grows with each change: guards it.
    pub rev: i64,
    /// The server that works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner: Option<String>,
    /// Until when no other server takes it over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_until: Option<Timestamp>,
}

/// How many errors an operation remembers.
const ERRORS_KEPT: usize = 10;

impl Bulk {
    /// Returns one that was just asked for.
    pub fn new(id: BulkId, intent: BulkIntent, by: String, now: Timestamp) -> Self {
        Self {
            id,
            intent,
            state: BulkState::Queued,
            by,
            created_at: now,
            started_at: None,
            finished_at: None,
            matched: None,
            scanned: 0,
            affected: 0,
            skipped: 0,
            errors: Vec::new(),
            error: None,
            cursor: BulkCursor::default(),
            waits_for_room: false,
            rev: 0,
            runner: None,
            leased_until: None,
        }
    }

    /// Returns the moment before which a job must have been there.
    pub fn began(&self) -> Timestamp {
        self.created_at.plus_ms(CLOCKS_DIFFER_MS)
    }

    /// Returns the moment from which on it may act.
    pub fn acts_at(&self) -> Timestamp {
        self.created_at.plus_ms(2 * CLOCKS_DIFFER_MS)
    }

    /// Returns how many more jobs it may affect.
    pub fn left(&self) -> u64 {
        self.intent.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.affected))
    }

    /// Returns the next revision of it.
    pub fn revised(&self) -> Self {
        Self { rev: self.rev.wrapping_add(1), ..self.clone() }
    }

    /// Returns it as it is once it is over.
    pub fn ended(self, state: BulkState, error: Option<String>, now: Timestamp) -> Self {
        let revised = self.revised();
        Self { state, error, finished_at: Some(now), runner: None, leased_until: None, ..revised }
    }

    /// Remembers an error, unless it is the last one again.
    pub fn note(&mut self, error: String) {
        if self.errors.last() == Some(&error) {
            return;
        }
        self.errors.push(error);
        let surplus = self.errors.len().saturating_sub(ERRORS_KEPT);
        self.errors.drain(..surplus);
    }
}
