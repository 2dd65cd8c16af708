//! What a push meets: the job that holds its key, the room in its queue. One decision for both stores.

use std::collections::HashMap;

use super::record::KeyHold;
use super::state::Verb;
use super::transition::{Next, Outcome, Step};
use super::{Child, JobId, JobKey, Meta, NewJob, Payload, QueueName, State, Timestamp, Visible};

/// What became of one job that was pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pushed {
    /// It is stored.
    Created,
    /// It is stored, and waits for its turn in its group.
    Blocked,
    /// Its key is taken by a job with an equal payload; nothing was stored.
    Duplicate {
        /// The job that has the key.
        id: JobId,
        /// That job's state; `done` if it has left.
        state: Visible,
        /// When that job was, or is, due.
        run_at: Timestamp,
    },
    /// Its key is taken by a job with another payload; nothing was stored.
    KeyConflict {
        /// The job that has the key.
        id: JobId,
    },
    /// The queue has as many unfinished jobs as its `max_jobs` allows; nothing was stored.
    Full,
}

/// Why a job that was to be stored with a commit was not, and so nothing happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushRefused {
    /// Its index among those of the commit.
    pub index: usize,
    /// The queue that it was for.
    pub queue: QueueName,
    /// The job of another payload that has its key; `None`: the queue has as many unfinished jobs as it takes.
    pub key_of: Option<JobId>,
}

impl Pushed {
    /// Returns what became of a job that was stored in this state.
    pub fn stored(state: State) -> Self {
        if state == State::Blocked { Self::Blocked } else { Self::Created }
    }

    /// Returns what is said of `job` where it was pushed together with others, unless it was refused.
    pub fn into_child(self, index: usize, job: &NewJob) -> Result<Child, PushRefused> {
        let queue = job.queue.clone();
        match self {
            Self::Created | Self::Blocked => {
                Ok(Child { id: job.id.clone(), queue, run_at: job.run_at, deduplicated: false })
            }
            Self::Duplicate { id, run_at, .. } => Ok(Child { id, queue, run_at, deduplicated: true }),
            Self::KeyConflict { id } => Err(PushRefused { index, queue, key_of: Some(id) }),
            Self::Full => Err(PushRefused { index, queue, key_of: None }),
        }
    }
}

/// The job that took a key last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The job.
    pub id: JobId,
    /// The digest of its payload.
    pub digest: [u8; 32],
    /// The key is taken until this moment at least.
    pub until: Timestamp,
    /// When the job was, or is, due.
    pub run_at: Timestamp,
    /// The job's state; `None` if the job is gone.
    pub state: Option<Visible>,
}

/// Whether a job in this state holds its key, whatever the key's time. A dead one does, in its own queue as in a dead-letter queue:
/// a redrive gives it another chance, and there are never two of one key that may be delivered.
pub fn holds_key(state: State) -> bool {
    state.is_unfinished() || state == State::Dead
}

/// Returns the key that a step frees although its time is not over: the job was cancelled, so that another push with the key is
/// meant as one. A job that was moved on has left its key behind, and does not know it.
pub fn freed<'m>(before: &'m Meta, verb: Verb, step: &Step) -> Option<&'m JobKey> {
    let is_removed = step.next == Next::Delete && step.outcome == Outcome::Removed;
    let is_cancelled = before.cancel_requested || matches!(verb, Verb::Cancel | Verb::Purge);
    // What was done stays done, also where it is removed from the history.
    before.key.as_ref().filter(|_| is_removed && is_cancelled && before.state != State::Done)
}

impl Holder {
    /// Returns the holder that a job becomes once it is stored in this state.
    pub fn new(job: &NewJob, hold: &KeyHold, state: Visible) -> Self {
        let (id, digest) = (job.id.clone(), job.spec.payload.digest());
        Self { id, digest, until: hold.until, run_at: job.run_at, state: Some(state) }
    }

    /// Whether the key is still taken: until its time is over and the job has ended, in whatever queue the job is.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until > now || self.state.is_some_and(|state| holds_key(state.stored()))
    }

    /// Returns what a job meets whose key this one has.
    fn conflict(&self, id: &JobId, payload: &Payload) -> Pushed {
        if self.id == *id {
            // A retry of a push whose commit was carried out although its result was unknown.
            Pushed::stored(self.state.map_or(State::Ready, Visible::stored))
        } else if self.digest == payload.digest() {
            let state = self.state.unwrap_or(Visible::Done);
            Pushed::Duplicate { id: self.id.clone(), state, run_at: self.run_at }
        } else {
            Pushed::KeyConflict { id: self.id.clone() }
        }
    }
}

/// What is to be done with a job that is pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Store it.
    Store,
    /// Store nothing: this has become of it.
    Settled(Pushed),
}

/// Decides about a job: its key comes before its queue's room, so that a duplicate is found in a full queue, too.
/// `holder` has the job's key; `take_room` takes room for one job in the queue, if there is some.
pub fn decide<E>(
    id: &JobId,
    payload: &Payload,
    holder: Option<&Holder>,
    now: Timestamp,
    take_room: impl FnOnce() -> Result<bool, E>,
) -> Result<Decision, E> {
    if let Some(holder) = holder.filter(|holder| holder.holds(now)) {
        return Ok(Decision::Settled(holder.conflict(id, payload)));
    }
    Ok(if take_room()? { Decision::Store } else { Decision::Settled(Pushed::Full) })
}

/// Returns the queue whose room limits a step: the one that a worker moves the job to. What the rules move (a stage of
/// a route, a dead letter, a redrive) always finds room.
pub fn entered<'o>(verb: Verb, before: &Meta, outcome: &'o Outcome) -> Option<&'o QueueName> {
    match outcome {
        Outcome::Returned { queue, .. } if verb == Verb::Move && *queue != before.queue => Some(queue),
        _ => None,
    }
}

/// How many more unfinished jobs each limited queue takes.
#[derive(Debug, Clone, Default)]
pub struct Room(HashMap<QueueName, u64>);

impl Room {
    /// Returns how many more jobs a queue takes that has `unfinished` ones, once `leaving` of them have left it. A
    /// queue may have more than it takes.
    pub fn of(max_jobs: u64, unfinished: u64, leaving: u64) -> u64 {
        max_jobs.saturating_sub(unfinished.saturating_sub(leaving))
    }

    /// Whether the room of this queue is known.
    pub fn knows(&self, queue: &QueueName) -> bool {
        self.0.contains_key(queue)
    }

    /// Sets how many more jobs a queue takes.
    pub fn set(&mut self, queue: QueueName, room: u64) {
        self.0.insert(queue, room);
    }

    /// Takes room for one job in the queue; false if there is none left. A queue without a limit always has some.
    pub fn take(&mut self, queue: &QueueName) -> bool {
        match self.0.get_mut(queue) {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(holder: Option<&Holder>, id: &str, payload: &str, room: bool) -> Decision {
        let decided: Result<_, ()> = decide(
            &id.parse().unwrap(),
            &Payload::parse(payload).unwrap(),
            holder,
            Timestamp::from_millis(1000),
            || Ok(room),
        );
        decided.unwrap()
    }

    fn holder(until: i64, state: Option<Visible>) -> Holder {
        let digest = Payload::parse("1").unwrap().digest();
        let (until, run_at) = (Timestamp::from_millis(until), Timestamp::from_millis(5));
        Holder { id: "A".parse().unwrap(), digest, until, run_at, state }
    }

    #[test]
    fn a_key_comes_before_the_room() {
        let taken = holder(1001, None);
        let duplicate =
            Pushed::Duplicate { id: taken.id.clone(), state: Visible::Done, run_at: taken.run_at };
        assert_eq!(decided(Some(&taken), "B", "1", false), Decision::Settled(duplicate));
        let conflict = Pushed::KeyConflict { id: taken.id.clone() };
        assert_eq!(decided(Some(&taken), "B", "2", false), Decision::Settled(conflict));
        assert_eq!(decided(None, "B", "1", false), Decision::Settled(Pushed::Full));
        assert_eq!(decided(None, "B", "1", true), Decision::Store);
    }

    #[test]
    fn a_key_is_free_after_its_time_and_the_end_of_its_job() {
        let free = [None, Some(Visible::Done)];
        let taken = [Visible::Ready, Visible::Scheduled, Visible::Reserved, Visible::Blocked, Visible::Dead];
        assert!(
            free.iter().all(|state| decided(Some(&holder(1000, *state)), "B", "2", true) == Decision::Store)
        );
        assert!(taken.iter().all(|state| holder(0, Some(*state)).holds(Timestamp::from_millis(1000))));
        assert!(free.iter().all(|state| holder(1001, *state).holds(Timestamp::from_millis(1000))));
    }

    #[test]
    fn a_retry_finds_itself() {
        let stored = |state| decided(Some(&holder(0, Some(state))), "A", "1", false);
        assert_eq!(stored(Visible::Blocked), Decision::Settled(Pushed::Blocked));
        assert_eq!(stored(Visible::Ready), Decision::Settled(Pushed::Created));
    }

    #[test]
    fn room_is_taken_once() {
        let mut room = Room::default();
        let (limited, free): (QueueName, QueueName) = ("q".parse().unwrap(), "r".parse().unwrap());
        room.set(limited.clone(), Room::of(3, 4, 2));
        assert!(room.take(&limited) && !room.take(&limited) && room.take(&free) && room.take(&free));
        assert_eq!(Room::of(3, 5, 1), 0);
    }
}
