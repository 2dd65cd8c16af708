//! What a push meets: the job that holds its key, the room in its queue. One decision for both stores.

use std::collections::{BTreeSet, HashMap};

use super::record::{KeyConflict, KeyHold, KeyUntil};
use super::state::Verb;
use super::transition::{Edit, Next, Operation, Outcome, Step, Surroundings, step};
use super::{
    Child, Content, Job, JobId, JobKey, Meta, NewJob, QueueName, Reach, Rules, State, Timestamp, Visible,
};

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
    /// Its key is taken by a job that waits, which has its payload and its time now.
    Replaced {
        /// The job that has the key.
        id: JobId,
        /// That job's state.
        state: Visible,
        /// When that job is due now.
        run_at: Timestamp,
    },
    /// Its key is taken by a job with another payload, or it wanted to share it with none; nothing was stored.
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
            Self::Created | Self::Blocked => Ok(Child::new(job)),
            Self::Duplicate { id, run_at, .. } => {
                Ok(Child { id, queue, run_at, deduplicated: true, replaced: false })
            }
            Self::Replaced { id, run_at, .. } => {
                Ok(Child { id, queue, run_at, deduplicated: true, replaced: true })
            }
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
    /// The end of the key's time.
    pub until: Timestamp,
    /// Until when the job has it.
    pub lasts: KeyUntil,
    /// Whether the job is where it was pushed to, under the key, so that another push may replace what it does.
    pub is_home: bool,
    /// Whether the job can be read: otherwise it cannot be replaced.
    pub is_readable: bool,
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

/// Returns the key that a step frees although its time is not over: the job was cancelled or has expired, and nothing was done, so that
/// another push with the key is meant as one. A job that was moved on has left its key behind, and does not know it.
pub fn freed<'m>(before: &'m Meta, step: &Step) -> Option<&'m JobKey> {
    let is_removed = step.next == Next::Delete && step.outcome == Outcome::Removed;
    // What was done stays done, also where it is removed from the history.
    before.key.as_ref().filter(|_| is_removed && before.state != State::Done)
}

/// Returns the key that a step takes: a move may give the job one in the queue that it goes to. The one that it had there where it was
/// pushed to stays behind, as with any move.
pub fn taken<'o>(operation: &'o Operation, step: &Step) -> Option<&'o KeyHold> {
    match operation {
        Operation::Move { key, .. } => key.as_ref().filter(|_| matches!(step.next, Next::Write { .. })),
        _ => None,
    }
}

/// Returns the job that keeps this one from taking a key which `holder` took last: two that are there already cannot become one.
pub fn kept_from<'h>(holder: Option<&'h Holder>, id: &JobId, now: Timestamp) -> Option<&'h JobId> {
    holder.filter(|holder| holder.id != *id && holder.holds(now)).map(|holder| &holder.id)
}

impl Holder {
    /// Returns the holder that a job becomes which takes the key where it is moved to.
    pub fn moved(job: &Meta, digest: [u8; 32], hold: &KeyHold, now: Timestamp) -> Self {
        let (id, run_at, state) = (job.id.clone(), job.run_at, Some(job.visible(now)));
        let (until, lasts) = (hold.until, hold.lasts);
        Self { id, digest, until, lasts, is_home: true, is_readable: true, run_at, state }
    }

    /// Returns the holder that a job becomes once it is stored in this state.
    pub fn new(job: &NewJob, hold: &KeyHold, state: Visible) -> Self {
        let (id, digest) = (job.id.clone(), job.spec.payload.digest());
        let (until, lasts) = (hold.until, hold.lasts);
        let (is_home, is_readable) = (true, true);
        Self { id, digest, until, lasts, is_home, is_readable, run_at: job.run_at, state: Some(state) }
    }

    /// Returns the holder once a push has replaced what it does.
    pub fn replaced(&self, by: Replacement<'_>, hold: &KeyHold, state: Visible) -> Self {
        let (digest, until) = (by.payload.digest(), self.until.max(hold.until));
        Self { digest, until, run_at: by.run_at, state: Some(state), ..self.clone() }
    }

    /// Whether the key is still taken: as a rule until its time is over and the job has ended, in whatever queue the job is. Nothing
    /// frees it when the job is reserved, or leaves for another queue: what the job is then is judged here, when a push asks for the
    /// key.
    pub fn holds(&self, now: Timestamp) -> bool {
        match self.lasts {
            KeyUntil::Finished => {
                self.until > now || self.state.is_some_and(|state| holds_key(state.stored()))
            }
            KeyUntil::Reserved => self.is_home && self.waits(),
            KeyUntil::Ttl => self.until > now,
        }
    }

    fn waits(&self) -> bool {
        self.state.is_some_and(|state| matches!(state.stored(), State::Ready | State::Blocked))
    }

    /// Returns what becomes of a job whose key this one has.
    fn conflict(&self, id: &JobId, payload: &Content, conflict: KeyConflict) -> Decision {
        if self.id == *id {
            // A retry of a push whose commit was carried out although its result was unknown.
            let state = self.state.map_or(State::Ready, Visible::stored);
            return Decision::Settled(Pushed::stored(state));
        }
        match conflict {
            KeyConflict::Refuse => Decision::Settled(Pushed::KeyConflict { id: self.id.clone() }),
            KeyConflict::Replace if self.is_home && self.is_readable && self.waits() => Decision::Replace,
            _ => Decision::Settled(self.stays(payload)),
        }
    }

    /// Returns what becomes of a push with this payload where the job stays as it is.
    pub fn stays(&self, payload: &Content) -> Pushed {
        let id = self.id.clone();
        if self.digest != payload.digest() {
            return Pushed::KeyConflict { id };
        }
        Pushed::Duplicate { id, state: self.state.unwrap_or(Visible::Done), run_at: self.run_at }
    }
}

/// What is to be done with a job that is pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Store it.
    Store,
    /// Replace what the job does that has its key: see [`Replacement`].
    Replace,
    /// Store nothing: this has become of it.
    Settled(Pushed),
}

/// What a push brings to the job that has its key, and which it replaces. Priority and all else stay as they are.
#[derive(Debug, Clone, Copy)]
pub struct Replacement<'a> {
    /// What the job is to do.
    pub payload: &'a Content,
    /// When it is due.
    pub run_at: Timestamp,
    /// When it expires: an expiry of before was meant for what it did before.
    pub expires_at: Option<Timestamp>,
}

impl<'a> From<&'a NewJob> for Replacement<'a> {
    fn from(job: &'a NewJob) -> Self {
        Self { payload: &job.spec.payload, run_at: job.run_at, expires_at: job.expires_at() }
    }
}

impl<'a> From<&'a Job> for Replacement<'a> {
    fn from(Job { meta, payload, .. }: &'a Job) -> Self {
        Self { payload, run_at: meta.run_at, expires_at: meta.expires_at }
    }
}

impl Replacement<'_> {
    /// Returns the job with what the push brings, which is its payload then; `None` if it is not to be changed.
    pub fn of(self, job: &Meta, now: Timestamp) -> Option<Meta> {
        let (payload, run_at) = (Some(self.payload.clone()), Some(self.run_at));
        let edit = Box::new(Edit { run_at, payload, ..Edit::default() });
        let rules = Rules::default();
        let around = Surroundings { now, rules: &rules, chance: 0.0 };
        match step(job, &Operation::Edit { within: Reach::default(), edit }, around) {
            Ok(Step { next: Next::Write { meta, .. }, .. }) => {
                Some(Meta { expires_at: self.expires_at, ..*meta })
            }
            _ => None,
        }
    }
}

/// Decides about a job: its key comes before its queue's room, so that a duplicate is found in a full queue, too.
/// `holder` has the job's key, which asks for it as `conflict` says; `take_room` takes room for one job in the queue, if there is some.
pub fn decide<E>(
    id: &JobId,
    payload: &Content,
    (holder, conflict): (Option<&Holder>, KeyConflict),
    now: Timestamp,
    take_room: impl FnOnce() -> Result<bool, E>,
) -> Result<Decision, E> {
    if let Some(holder) = holder.filter(|holder| holder.holds(now)) {
        return Ok(holder.conflict(id, payload, conflict));
    }
    Ok(if take_room()? { Decision::Store } else { Decision::Settled(Pushed::Full) })
}

/// Returns the queue whose room limits a step: the one that a worker moves the job to. What the rules move (a stage of
/// a route, a dead letter, a redrive) always finds room.
pub fn entered<'o>(verb: Verb, before: &Meta, outcome: &'o Outcome) -> Option<&'o QueueName> {
    match outcome {
        Outcome::Returned { queue, .. }
            if matches!(verb, Verb::Move | Verb::Relocate) && *queue != before.queue =>
        {
            Some(queue)
        }
        _ => None,
    }
}

/// Returns those of these queues that take only so many unfinished jobs, in the order in which their room is locked, each once.
pub fn limited(queues: impl IntoIterator<Item = QueueName>, rules: &Rules) -> Vec<QueueName> {
    let queues = queues.into_iter().filter(|queue| rules.max_jobs(queue).is_some());
    queues.collect::<BTreeSet<_>>().into_iter().collect()
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
    use crate::job::{Payload, QueueSettings};

    fn payload_of(text: &str) -> Content {
        Payload::parse(text).unwrap().into()
    }

    #[test]
    fn limited_queues_have_one_order() {
        let name = |text: &str| -> QueueName { text.parse().unwrap() };
        let few = QueueSettings { max_jobs: Some(1), ..Default::default() };
        let settings = ["b", "a"].map(|queue| (name(queue), few.clone()));
        let rules = Rules::new(Default::default(), settings.into_iter().collect());
        assert_eq!(limited(["b", "c", "a", "b"].map(name), &rules), ["a", "b"].map(name));
    }

    fn decided(holder: Option<&Holder>, id: &str, payload: &str, room: bool) -> Decision {
        let decided: Result<_, ()> = decide(
            &id.parse().unwrap(),
            &payload_of(payload),
            (holder, KeyConflict::Return),
            Timestamp::from_millis(1000),
            || Ok(room),
        );
        decided.unwrap()
    }

    fn holder(until: i64, state: Option<Visible>) -> Holder {
        let digest = Payload::parse("1").unwrap().digest();
        let (until, run_at) = (Timestamp::from_millis(until), Timestamp::from_millis(5));
        let (id, lasts) = ("A".parse().unwrap(), KeyUntil::Finished);
        Holder { id, digest, until, lasts, is_home: true, is_readable: true, run_at, state }
    }

    #[test]
    fn a_key_lasts_as_its_job_says() {
        let now = Timestamp::from_millis(1000);
        let states = [Visible::Ready, Visible::Scheduled, Visible::Blocked, Visible::Reserved, Visible::Dead];
        for (n, state) in states.into_iter().map(Some).chain([Some(Visible::Done), None]).enumerate() {
            let lasts = |until, lasts| Holder { lasts, ..holder(until, state) }.holds(now);
            assert_eq!(lasts(5000, KeyUntil::Reserved), n < 3, "{state:?}");
            let elsewhere =
                Holder { is_home: false, lasts: KeyUntil::Reserved, ..holder(5000, state) }.holds(now);
            assert!(!elsewhere, "{state:?}");
            assert!(lasts(1001, KeyUntil::Ttl) && !lasts(1000, KeyUntil::Ttl), "{state:?}");
        }
        assert_eq!(KeyUntil::from_word(Some("later")), KeyUntil::Finished);
        for lasts in [KeyUntil::Finished, KeyUntil::Reserved, KeyUntil::Ttl] {
            assert_eq!(KeyUntil::from_word(Some(lasts.as_str())), lasts);
        }
    }

    #[test]
    fn a_taken_key_is_met_as_the_push_says() {
        let met = |holder: &Holder, payload: &str, conflict| {
            holder.conflict(&"B".parse().unwrap(), &payload_of(payload), conflict)
        };
        let refused = Decision::Settled(Pushed::KeyConflict { id: "A".parse().unwrap() });
        let waiting = holder(5000, Some(Visible::Scheduled));
        assert_eq!(met(&waiting, "1", KeyConflict::Refuse), refused);
        assert_eq!(met(&waiting, "2", KeyConflict::Replace), Decision::Replace);
        let spoiled = Holder { is_readable: false, ..waiting.clone() };
        let elsewhere = Holder { is_home: false, ..waiting };
        for holder in [spoiled, elsewhere, holder(5000, Some(Visible::Reserved)), holder(5000, None)] {
            assert_eq!(met(&holder, "2", KeyConflict::Replace), refused);
            let shared = met(&holder, "1", KeyConflict::Replace);
            assert!(matches!(shared, Decision::Settled(Pushed::Duplicate { .. })), "{shared:?}");
        }
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
