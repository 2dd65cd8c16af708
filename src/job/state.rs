//! The states of a job, and the one table of how they follow from each other.

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// The state of a job as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Can be delivered, as soon as its `run_at` has come.
    Ready,
    /// A worker holds it.
    Reserved,
    /// Waits for its group or a semaphore.
    Blocked,
    /// Finished; kept as history.
    Done,
    /// Its attempts are used up.
    Dead,
}

impl State {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 5] = [Self::Ready, Self::Reserved, Self::Blocked, Self::Done, Self::Dead];

    /// Returns the word that a store keeps.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Reserved => "reserved",
            Self::Blocked => "blocked",
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }

    /// Returns the state that this word stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Returns the state as clients see it at `now`, for a job that is due at `run_at`.
    pub fn visible(self, run_at: Timestamp, now: Timestamp) -> Visible {
        match self {
            Self::Ready if run_at > now => Visible::Scheduled,
            Self::Ready => Visible::Ready,
            Self::Reserved => Visible::Reserved,
            Self::Blocked => Visible::Blocked,
            Self::Done => Visible::Done,
            Self::Dead => Visible::Dead,
        }
    }

    /// Whether the job is neither done nor dead.
    pub fn is_unfinished(self) -> bool {
        !matches!(self, Self::Done | Self::Dead)
    }
}

/// The state of a job as clients see it: `scheduled` is `ready` with a `run_at` in the future.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = JobState)]
pub enum Visible {
    /// Waits for its `run_at`.
    Scheduled,
    /// Can be delivered now.
    Ready,
    /// A worker holds it.
    Reserved,
    /// Waits for its group or a semaphore.
    Blocked,
    /// Finished; kept as history.
    Done,
    /// Its attempts are used up.
    Dead,
}

impl Visible {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Scheduled, Self::Ready, Self::Reserved, Self::Blocked, Self::Done, Self::Dead];

    /// Returns the stored state behind this one.
    pub fn stored(self) -> State {
        match self {
            Self::Scheduled | Self::Ready => State::Ready,
            Self::Reserved => State::Reserved,
            Self::Blocked => State::Blocked,
            Self::Done => State::Done,
            Self::Dead => State::Dead,
        }
    }

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            other => other.stored().as_str(),
        }
    }
}

/// What may happen to a stored job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// A worker reserves it.
    Reserve,
    /// A claim finds no room in a semaphore that it needs, or it joins its group behind other jobs.
    Block,
    /// It is the first of its group now, or its semaphore has room.
    Unblock,
    /// A store cannot read it.
    Bury,
    /// The work is done.
    Commit,
    /// The work failed.
    Rollback,
    /// The worker needs more time.
    Extend,
    /// The worker puts it into another queue.
    Move,
    /// Another request, a repeat of the one that holds it, gets it.
    TakeOver,
    /// It goes back as if it had not been delivered.
    Release,
    /// Its reservation ran out.
    Lapse,
    /// Its worker timed out or was removed.
    Abandon,
    /// Its `expires_at` passed while no worker held it.
    Expire,
    /// A client changes it.
    Edit,
    /// A client deletes it.
    Cancel,
    /// A client empties the queue.
    Purge,
    /// A dead or dead-lettered job gets another chance.
    Redrive,
    /// A client wants it delivered at once, where it is, its attempts counted anew.
    Retry,
    /// A client wants it delivered at once, where it is.
    Run,
    /// A client takes it back from its worker.
    Revoke,
    /// A client puts it into another queue while no worker holds it.
    Relocate,
}

/// What can become of a job by a [`Verb`]: a state, or `None` where it is deleted.
pub type Target = Option<State>;

const GONE: Target = None;
const READY: Target = Some(State::Ready);
const RESERVED: Target = Some(State::Reserved);
const BLOCKED: Target = Some(State::Blocked);
const DONE: Target = Some(State::Done);
const DEAD: Target = Some(State::Dead);

/// A row of the table: a state, what happens, what can become of the job by that, and the function that says so.
pub type Row = (State, Verb, &'static [Target], &'static str);

/// Every transition there is, and which function of [`transition`](super::transition) says what it writes; stores only encode that.
/// What is not listed is refused. A push makes a job `ready`, and whatever makes a job
/// `ready` in a group with other jobs before it then blocks it.
pub const TRANSITIONS: &[Row] = &[
    (State::Ready, Verb::Reserve, &[RESERVED], "delivery::reserve"),
    (State::Ready, Verb::Block, &[BLOCKED], "delivery::block"),
    (State::Blocked, Verb::Unblock, &[READY], "delivery::unblock"),
    (State::Ready, Verb::Bury, &[DEAD], "delivery::BURY"),
    (State::Reserved, Verb::Bury, &[DEAD], "delivery::BURY"),
    (State::Blocked, Verb::Bury, &[DEAD], "delivery::BURY"),
    (State::Reserved, Verb::Commit, &[DONE, GONE, READY], "commit"), // ready: in the next stage of its route
    (State::Done, Verb::Commit, &[DONE], "finish"), // the repeat of a commit whose response was lost
    (State::Reserved, Verb::Rollback, &[READY, DEAD, GONE], "roll_back"),
    (State::Reserved, Verb::Extend, &[RESERVED], "extend"),
    (State::Reserved, Verb::Move, &[READY, GONE], "move_to"),
    (State::Reserved, Verb::TakeOver, &[RESERVED], "delivery::take_over"),
    (State::Reserved, Verb::Release, &[READY, GONE], "release"),
    (State::Reserved, Verb::Lapse, &[READY, DEAD, GONE], "take_back"),
    (State::Reserved, Verb::Abandon, &[READY, DEAD, GONE], "take_back"),
    (State::Ready, Verb::Expire, &[GONE], "removal::expire"),
    (State::Blocked, Verb::Expire, &[GONE], "removal::expire"),
    (State::Ready, Verb::Edit, &[READY], "change"),
    (State::Blocked, Verb::Edit, &[BLOCKED, READY], "change"), // ready: out of its group
    (State::Reserved, Verb::Cancel, &[RESERVED, GONE], "removal::cancel"),
    (State::Ready, Verb::Cancel, &[GONE], "removal::cancel"),
    (State::Blocked, Verb::Cancel, &[GONE], "removal::cancel"),
    (State::Done, Verb::Cancel, &[GONE], "removal::cancel"),
    (State::Dead, Verb::Cancel, &[GONE], "removal::cancel"),
    (State::Ready, Verb::Purge, &[GONE], "removal::purge"),
    (State::Blocked, Verb::Purge, &[GONE], "removal::purge"),
    (State::Done, Verb::Purge, &[GONE], "removal::purge"),
    (State::Dead, Verb::Purge, &[GONE], "removal::purge"),
    (State::Dead, Verb::Redrive, &[READY], "by_hand::redrive"),
    (State::Ready, Verb::Redrive, &[READY], "by_hand::redrive"), // back from the dead-letter queue
    (State::Dead, Verb::Retry, &[READY], "by_hand::retry"),
    (State::Ready, Verb::Retry, &[READY], "by_hand::retry"), // its time has come
    (State::Blocked, Verb::Redrive, &[READY], "by_hand::redrive"), // the same for one that waits for a semaphore there
    (State::Ready, Verb::Run, &[READY], "by_hand::run"),           // its time has come
    (State::Blocked, Verb::Run, &[BLOCKED], "by_hand::run"),       // it still waits for its turn
    (State::Reserved, Verb::Revoke, &[READY, GONE], "by_hand::revoke"),
    (State::Ready, Verb::Relocate, &[READY], "by_hand::relocate"),
    (State::Blocked, Verb::Relocate, &[READY], "by_hand::relocate"),
    (State::Dead, Verb::Relocate, &[READY], "by_hand::relocate"),
];

/// Returns what can follow, or `None` where the verb does not apply.
pub fn targets(from: State, verb: Verb) -> Option<&'static [Target]> {
    TRANSITIONS.iter().find(|(state, v, ..)| *state == from && *v == verb).map(|(_, _, targets, _)| *targets)
}

/// A row of the table with one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The state that a job must have.
    pub from: State,
    /// The state that it has then.
    pub to: State,
}

impl Transition {
    /// Reads the row of a verb. Called in constants only: a verb without a row does not compile.
    pub const fn of(verb: Verb) -> Self {
        Self::nth_of(verb, 0)
    }

    /// Reads the row of a verb that has so many rows before it.
    pub const fn nth_of(verb: Verb, mut before: usize) -> Self {
        let mut row = 0;
        while TRANSITIONS[row].1 as u8 != verb as u8 || before > 0 {
            if TRANSITIONS[row].1 as u8 == verb as u8 {
                before -= 1;
            }
            row += 1;
        }
        let (from, _, targets, _) = TRANSITIONS[row];
        let to = match targets[0] {
            Some(to) => to,
            None => from,
        };
        Self { from, to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_no_row_twice() {
        for (n, (state, verb, ..)) in TRANSITIONS.iter().enumerate() {
            assert!(!TRANSITIONS[..n].iter().any(|(s, v, ..)| s == state && v == verb), "{state:?} {verb:?}");
        }
    }

    #[test]
    fn words_round_trip() {
        for state in State::ALL {
            assert_eq!(State::from_word(state.as_str()), Some(state));
        }
        assert_eq!(State::from_word("scheduled"), None);
    }
}
