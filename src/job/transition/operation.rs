//! What can happen to a job that is already there.

use crate::job::record::{FAILURES_KEPT, Failure, KeyHold};
use crate::job::spec::Headers;
use crate::job::state::{Verb, Visible};
use crate::job::transition::delivery::BURY;
use crate::job::{
    BatchId, Claim, Content, GroupName, Job, Meta, NewJob, Payload, QueueName, Reach, State, Timestamp, When,
    group,
};

/// Something that is to happen to a job that is already there. Where an operation has `within`, a job that is in another queue
/// by now is unknown to it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "a variant says what its fields are")]
pub enum Operation {
    /// The work is done. The jobs in `push` are stored with it, all of them, or it does not happen.
    Commit { claim: Claim, result: Option<Payload>, push: Vec<NewJob> },
    /// A reserve that deletes the job at once, whatever stages it has before it.
    Pop { claim: Claim },
    /// The work failed, or is put off.
    Rollback { claim: Claim, kind: RollbackKind, error: Option<String> },
    /// The worker needs more time (`None`: as much as it first asked for).
    Extend { claim: Claim, lease_ms: Option<u64>, progress: Option<Payload> },
    /// The worker puts the job into another queue, where its attempts start again, and has this key. Nothing happens where another job
    /// has that.
    Move {
        claim: Claim,
        queue: QueueName,
        payload: Option<Content>,
        when: When,
        priority: Option<i32>,
        headers: Option<Headers>,
        key: Option<KeyHold>,
    },
    /// A commit or a move that is refused before it is sent, such as for what it pushes: its first call may have taken effect while it
    /// could. The repeat of that gets its outcome, and nothing happens.
    Recall { claim: Claim, verb: Verb },
    /// A repeat of the request that won the job gets it under its own claim; the old token is dead from here on. Where both claims
    /// are one, it is only handed out again, and its lease begins anew.
    TakeOver { claim: Claim, to: Claim, lease_ms: u64 },
    /// The delivery reached no client: the job goes back where it was, the attempt not counted. `unless_seen`: not where a repeat of
    /// the call has handed it out since, or its lease was extended.
    Release { claim: Claim, unless_seen: bool },
    /// The reservation ran out. `reserved_until` is the deadline that the store found to have passed.
    Lapse { claim: Claim, reserved_until: Timestamp },
    /// The worker that holds the job is lost: the job comes back before its reservation runs out.
    Abandon { claim: Claim, loss: Loss },
    /// The store found the job's `expires_at` to have passed.
    Expire { expires_at: Timestamp },
    /// Changes a job that is not reserved.
    Edit { within: Reach, edit: Box<Edit> },
    /// Takes the job away; one that is reserved is only asked to stop, unless forced.
    Cancel { within: Reach, force: bool },
    /// Takes the job away unless it is reserved.
    CancelUnheld { within: Reach },
    /// Takes an unfinished job of this batch away; one that is reserved is only asked to stop.
    CancelOfBatch { within: Reach, batch: BatchId },
    /// Takes the job away if it is in one of these states.
    Purge { within: Reach, states: Vec<Visible> },
    /// The store was seen to be unable to read it.
    Bury,
    /// Another chance for a dead job, or for one that was dead-lettered from a queue of `home`.
    Redrive { within: Reach, home: Reach },
    /// A dead job, or one that waits for its time, is to be delivered at once, where it is.
    Retry { within: Reach },
    /// The time of a job that waits for it has come. Its attempts stay.
    Run { within: Reach },
    /// The job goes back from its worker to where it was, the attempt not counted: the token is dead from here on.
    Revoke { within: Reach },
    /// Puts a job that no worker holds into another queue, where its attempts start again.
    Relocate { within: Reach, queue: QueueName, when: Option<When>, priority: Option<i32> },
}

impl Operation {
    /// Returns the verb of the state table that this operation stands for.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Commit { .. } | Self::Pop { .. } => Verb::Commit,
            Self::Rollback { .. } => Verb::Rollback,
            Self::Extend { .. } => Verb::Extend,
            Self::Move { .. } => Verb::Move,
            Self::Recall { verb, .. } => *verb,
            Self::TakeOver { .. } => Verb::TakeOver,
            Self::Release { .. } => Verb::Release,
            Self::Lapse { .. } => Verb::Lapse,
            Self::Abandon { .. } => Verb::Abandon,
            Self::Expire { .. } => Verb::Expire,
            Self::Edit { .. } => Verb::Edit,
            Self::Cancel { .. } | Self::CancelUnheld { .. } | Self::CancelOfBatch { .. } => Verb::Cancel,
            Self::Purge { .. } => Verb::Purge,
            Self::Bury => Verb::Bury,
            Self::Redrive { .. } => Verb::Redrive,
            Self::Retry { .. } => Verb::Retry,
            Self::Run { .. } => Verb::Run,
            Self::Revoke { .. } => Verb::Revoke,
            Self::Relocate { .. } => Verb::Relocate,
        }
    }

    /// Returns what it does to a job that the store cannot read.
    pub fn of_unreadable(&self) -> OfUnreadable {
        match self {
            Self::Cancel { within, .. } | Self::CancelUnheld { within } => {
                OfUnreadable::Remove(Self::Cancel { within: within.clone(), force: true })
            }
            Self::Purge { .. } => OfUnreadable::Remove(self.clone()),
            Self::Lapse { .. }
            | Self::Abandon { .. }
            | Self::Expire { .. }
            | Self::CancelOfBatch { .. }
            | Self::Bury => OfUnreadable::Bury,
            Self::Edit { edit, .. } => OfUnreadable::Mend(edit.clone()),
            _ => OfUnreadable::Refuse,
        }
    }

    /// Whether the payload must be read to know that the job is readable; otherwise its metadata suffices.
    pub fn looks_at_contents(&self) -> bool {
        matches!(self, Self::Bury | Self::Edit { .. })
    }

    /// Returns how many bytes come with it: of a payload, a result or a progress.
    pub fn size(&self) -> usize {
        let json = |value: &Option<Payload>| value.as_ref().map_or(0, |value| value.as_str().len());
        let content = |payload: &Option<Content>| payload.as_ref().map_or(0, Content::weight);
        match self {
            Self::Commit { result: value, .. } | Self::Extend { progress: value, .. } => json(value),
            Self::Move { payload, .. } => content(payload),
            Self::Edit { edit, .. } => content(&edit.payload),
            _ => 0,
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
            | Self::CancelUnheld { within }
            | Self::CancelOfBatch { within, .. }
            | Self::Purge { within, .. }
            | Self::Redrive { within, .. }
            | Self::Retry { within }
            | Self::Run { within }
            | Self::Revoke { within }
            | Self::Relocate { within, .. } => Some(within),
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
            | Self::Recall { claim, .. }
            | Self::TakeOver { claim, .. }
            | Self::Release { claim, .. }
            | Self::Lapse { claim, .. }
            | Self::Abandon { claim, .. } => Some(claim),
            Self::Expire { .. }
            | Self::Edit { .. }
            | Self::Cancel { .. }
            | Self::CancelUnheld { .. }
            | Self::CancelOfBatch { .. }
            | Self::Purge { .. }
            | Self::Bury
            | Self::Redrive { .. }
            | Self::Retry { .. }
            | Self::Run { .. }
            | Self::Revoke { .. }
            | Self::Relocate { .. } => None,
        }
    }
}

/// What becomes of a job that its worker gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RollbackKind {
    /// The attempt counts: it comes back, or is dead once its attempts are used up.
    Retry(Back),
    /// It comes back, and the attempt does not count.
    Snooze(Back),
    /// It is dead, whatever attempts are left.
    Dead,
}

impl RollbackKind {
    /// Returns a retry after so many milliseconds; `None`: by the backoff.
    pub fn retry(delay_ms: Option<u64>) -> Self {
        Self::Retry(delay_ms.map_or(Back::ByBackoff, |ms| Back::At(When::In(ms))))
    }
}

/// When a job comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// After its backoff; at once where no attempt counts.
    ByBackoff,
    /// Then.
    At(When),
    /// At once, to the place that it had in the order of delivery.
    InPlace,
}

/// What to change of a job that is not reserved; what is absent stays. `Some(None)` takes a value away.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Edit {
    /// Higher is delivered first.
    pub priority: Option<i32>,
    /// When it is due.
    pub run_at: Option<Timestamp>,
    /// What is to be done.
    pub payload: Option<Content>,
    /// See [`JobSpec::headers`](crate::job::JobSpec::headers).
    pub headers: Option<Headers>,
    /// How often it is delivered at most; `Some(None)`: as its queue says.
    pub max_attempts: Option<Option<u32>>,
    /// How long from now on it lives, in milliseconds; `Some(None)`: for ever.
    pub expires_in_ms: Option<Option<u64>>,
    /// The group whose line it joins at the end; `Some(None)`: none.
    pub group: Option<Option<GroupName>>,
}

impl Edit {
    /// Returns what a job becomes that could not be read: dead, so that a redrive gives it another chance, or done if it was.
    /// `found` and `contents` are what can be read of it; nothing comes of it without a payload.
    pub fn mended(self, found: &Meta, contents: Salvaged, now: Timestamp) -> Option<Job> {
        let buried = BURY.iter().find(|bury| bury.from == found.state).map(|bury| bury.to);
        let expires_at = self.expires_in_ms.map(|ms| ms.map(|ms| now.plus_ms(ms)));
        let mut meta = Meta {
            state: buried.unwrap_or(found.state),
            priority: self.priority.unwrap_or(found.priority),
            run_at: self.run_at.unwrap_or(found.run_at),
            max_attempts: self.max_attempts.unwrap_or(found.max_attempts),
            expires_at: expires_at.unwrap_or(found.expires_at),
            finished_at: found.finished_at.or(Some(now)),
            // Dead, only the first of its line has a place there.
            turn: found.turn.filter(|_| !group::is_behind_others(found)),
            ..super::free(found, now)
        };
        if let Some(group) = self.group.filter(|group| *group != found.group) {
            meta = Meta { group, turn: None, ..meta };
        }
        let Salvaged { payload, headers, result } = contents;
        let headers = self.headers.unwrap_or(headers);
        let result = result.filter(|_| meta.state == State::Done);
        Some(Job { meta, payload: self.payload.or(payload)?, headers, result })
    }
}

/// What can be read of the contents of a job that cannot be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Salvaged {
    /// The payload.
    pub payload: Option<Content>,
    /// Those of the headers that can be read.
    pub headers: Headers,
    /// The result.
    pub result: Option<Payload>,
}

impl Salvaged {
    /// Returns a job in place of one that cannot be read, of which `found` and this are what can: dead, with the reason among its failures,
    /// or done if it was. A payload that cannot be read is `null`.
    pub fn stand_in(self, found: &Meta, why: &str, now: Timestamp) -> Option<Job> {
        let canonical = |payload: Payload| payload.canonical().ok();
        let payload = self.payload.and_then(|payload| payload.canonical().ok());
        let edit = Edit { payload: Some(payload.unwrap_or_else(Content::null)), ..Edit::default() };
        let result = self.result.and_then(canonical);
        let mut job = edit.mended(found, Self { payload: None, result, ..self }, now)?;
        job.meta.progress = job.meta.progress.and_then(canonical);
        let surplus = job.meta.errors.len().saturating_sub(FAILURES_KEPT - 1);
        job.meta.errors.drain(..surplus);
        job.meta.errors.push(Failure::unreadable(why, found.attempts, now));
        Some(job)
    }
}

/// What an operation does to a job that the store cannot read, because another program wrote it.
#[derive(Debug, Clone, PartialEq)]
pub enum OfUnreadable {
    /// This is done with what can be read of it: it cannot be settled, so that its holder is not asked.
    Remove(Operation),
    /// It is made dead, out of the way of what the server does by itself.
    Bury,
    /// It becomes a dead job that can be read, by what is said of it and what can be read of it.
    Mend(Box<Edit>),
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
