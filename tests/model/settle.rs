//! What operations do to the model's jobs, and what they answer.

use std::collections::BTreeMap;

use tailback::job::record::TrailReason;
use tailback::job::transition::{Operation, Outcome, Refusal};
use tailback::job::{Claim, Ending, JobId, QueueName, SemaphoreName, State, Timestamp, Visible, When as Due};
use tailback::store::{Applied, Change, Denied, PushRefused};

use super::job::{Failed, Job, Left, Turn, Waits, When};
use super::lines::{Line, are_told};
use super::state::{Admitted, Checked, Model, Repeatable};

/// How many failures a job remembers.
const ERRORS_KEPT: usize = 10;

/// What becomes of a job.
#[derive(Debug)]
pub enum Becomes {
    Done,
    Returned { queue: QueueName, run_at: When },
    Dead { moved_to: Option<QueueName> },
    Held { until: When, cancel_requested: bool },
    Removed,
}

/// What a call must answer.
#[derive(Debug)]
struct Answer {
    becomes: Becomes,
    pushed: Vec<Admitted>,
    is_blocked: bool,
    unblocked: Vec<(QueueName, When)>,
    released: Vec<SemaphoreName>,
    /// Whether no other change of the same call concerns the same lines.
    is_sure: bool,
}

/// Why nothing happens. Of the states any one may be told.
#[derive(Debug)]
pub enum No {
    Lost {
        gone: bool,
    },
    Unknown,
    Conflict(Vec<Visible>),
    Full,
    Push(PushRefused),
    /// Another job has the key that it was to get.
    Key(JobId),
}

/// The token that an operation shows, and what its repeat is.
fn shows(operation: &Operation) -> (Option<&Claim>, Option<Repeatable>) {
    match operation {
        Operation::Commit { claim, .. } | Operation::Pop { claim } => (Some(claim), Some(Repeatable::Commit)),
        Operation::Move { claim, .. } => (Some(claim), Some(Repeatable::Move)),
        Operation::Rollback { claim, .. }
        | Operation::Extend { claim, .. }
        | Operation::TakeOver { claim, .. }
        | Operation::Release { claim, .. }
        | Operation::Lapse { claim, .. }
        | Operation::Abandon { claim, .. } => (Some(claim), None),
        _ => (None, None),
    }
}

impl Model {
    /// What there was to answer to a change, and what it has done.
    pub fn settle(&mut self, change: &Change, told: &Result<Applied, Denied>, now: When) -> Checked {
        let expected = match self.repeat_of(change) {
            Some(earlier) => {
                // History does not say when it was.
                let same = |told: &Applied| Applied { at: told.at, ..earlier.clone() } == *told;
                let is_at = |told: &Applied| earlier.outcome == Outcome::Done || told.at == earlier.at;
                let is_right = told.as_ref().is_ok_and(|told| same(told) && is_at(told));
                return if is_right {
                    Ok(())
                } else {
                    Err(format!("a repeat was told {told:?}, expected {earlier:?}"))
                };
            }
            None => self.jobs.get(&change.id).cloned(),
        };
        let (claim, repeatable) = shows(&change.operation);
        let is_sure = self.concerned(change).is_disjoint(&self.contested);
        match (self.change(change, is_sure, now), told) {
            (Ok(answer), Ok(told)) => {
                let before = expected.ok_or("there was no job")?;
                answer.check(&before, told)?;
                // The next change of the same call may depend on it.
                if let (Outcome::Returned { run_at, .. }, Some(job)) =
                    (&told.outcome, self.jobs.get_mut(&change.id))
                {
                    job.run_at = When::at(*run_at);
                    if let Operation::Move { queue, key: Some(hold), .. } = &change.operation
                        && let Some(key) = self.keys.get_mut(&(queue.clone(), hold.key.clone()))
                    {
                        key.run_at = *run_at;
                    }
                }
                let remembered = match &change.operation {
                    Operation::Move { .. } => true,
                    Operation::Commit { push, .. } => {
                        !push.is_empty() || before.batch.is_some() || !matches!(answer.becomes, Becomes::Done)
                    }
                    _ => false,
                };
                if let (Some(claim), Some(repeatable), true) = (claim, repeatable, remembered) {
                    let mut told = Applied { repeated: true, callback: None, ..told.clone() };
                    (told.unblocked, told.released) = (Vec::new(), Vec::new());
                    self.answered.insert((change.id.clone(), claim.clone(), repeatable), told);
                }
                Ok(())
            }
            (Err(no), Err(denied)) if no.is(denied, is_sure) => Ok(()),
            (Ok(answer), told) => Err(format!("told {told:?}, expected {answer:?}")),
            (Err(no), told) => Err(format!("told {told:?}, expected {no:?}")),
        }
    }

    /// What a call answers that has happened before.
    fn repeat_of(&self, change: &Change) -> Option<Applied> {
        let (Some(claim), Some(repeatable)) = shows(&change.operation) else { return None };
        let remembered = self.answered.get(&(change.id.clone(), claim.clone(), repeatable));
        let in_history = || {
            let job = self.jobs.get(&change.id)?;
            let is_it = job.state == State::Done && job.claim.as_ref() == Some(claim);
            (is_it && repeatable == Repeatable::Commit).then(|| Applied {
                outcome: Outcome::Done,
                queue: job.queue.clone(),
                started_at: job.started_at.map(|when| when.from),
                pushed: Vec::new(),
                callback: None,
                unblocked: Vec::new(),
                released: Vec::new(),
                repeated: true,
                perhaps_earlier: false,
                at: Timestamp::default(),
            })
        };
        remembered.cloned().or_else(in_history)
    }

    /// Whether a call without that many words would be taken for the repeat of another one.
    pub fn is_remembered(&self, change: &Change) -> bool {
        matches!(shows(&change.operation), (Some(claim), Some(repeatable))
            if self.answered.contains_key(&(change.id.clone(), claim.clone(), repeatable)))
    }

    fn change(&mut self, change: &Change, is_sure: bool, now: When) -> Result<Answer, No> {
        let (claim, _) = shows(&change.operation);
        let job = match (self.jobs.get(&change.id), claim) {
            (None, Some(_)) => return Err(No::Lost { gone: true }),
            (None, None) => return Err(No::Unknown),
            (Some(job), Some(claim)) if job.state != State::Reserved || job.claim.as_ref() != Some(claim) => {
                return Err(No::Lost { gone: false });
            }
            (Some(job), _) => job.clone(),
        };
        let was_unfinished = job.is_unfinished();
        let before = self.before(&change.operation);
        self.unblocked.clear();
        let becomes = match claim {
            Some(_) => self.settle_held(&job, &change.operation, now)?,
            None => self.change_unheld(&job, &change.operation, now)?,
        };
        if matches!(becomes, Becomes::Removed) && job.state != State::Done {
            self.free_key(&job);
        }
        let (push, result): (&[_], _) = match &change.operation {
            Operation::Commit { push, result, .. } => (push, result.as_ref()),
            _ => (&[], None),
        };
        let pushed = match self.admit(push, Some(&job.id), now) {
            Ok(pushed) => pushed,
            Err(refused) => {
                (self.jobs, self.lines) = before; // nothing has happened
                return Err(No::Push(refused));
            }
        };
        self.store_admitted(push, &pushed);
        let ending = match becomes {
            Becomes::Done => Some(Ending::Done),
            Becomes::Dead { .. } => Some(Ending::Dead),
            Becomes::Removed => Some(Ending::Cancelled),
            Becomes::Returned { .. } | Becomes::Held { .. } => None,
        };
        if let (Some(ending), true) = (ending, was_unfinished) {
            self.ended(&job, ending, result, now);
        }
        let next = self.jobs.get(&job.id);
        let is_blocked = next.is_some_and(|next| next.state == State::Blocked);
        let released = released(&job, next);
        let unblocked = std::mem::take(&mut self.unblocked);
        Ok(Answer { becomes, pushed, is_blocked, unblocked, released, is_sure })
    }

    /// A job that is cancelled, or has expired, leaves its key to others.
    fn free_key(&mut self, job: &Job) {
        if let Some(key) = &job.key {
            let name = (job.queue.clone(), key.clone());
            self.keys.retain(|other, key| *other != name || key.job != job.id);
        }
    }

    /// What there is, where all of it may have to be as it was again.
    fn before(&self, operation: &Operation) -> (BTreeMap<JobId, Job>, BTreeMap<Line, Vec<JobId>>) {
        match operation {
            Operation::Commit { push, .. } if !push.is_empty() => (self.jobs.clone(), self.lines.clone()),
            _ => Default::default(),
        }
    }

    pub fn comes_back(&mut self, job: Job) -> Becomes {
        let becomes = Becomes::Returned { queue: job.queue.clone(), run_at: job.run_at };
        self.put(job);
        becomes
    }

    pub fn leaves(&mut self, job: &Job) -> Becomes {
        self.remove(&job.id);
        Becomes::Removed
    }
}

/// Whether a job leaves as soon as nobody holds it.
pub fn is_over(job: &Job, now: When) -> bool {
    job.cancel_requested || job.expires_at.is_some_and(|at| at.is_past(now))
}

/// The job without its reservation.
pub fn unheld(job: &Job) -> Job {
    Job {
        state: State::Ready,
        claim: None,
        reserved_until: None,
        lease_ms: None,
        extended_at: None,
        cancel_requested: false,
        waits_for: Waits::No,
        waiting_since: None,
        ..job.clone()
    }
}

/// The job without its reservation, and with its failure.
pub fn failed(job: &Job, message: &str, now: When) -> Job {
    let mut failed = unheld(job);
    let (attempt, worker) = (job.attempts, job.worker.clone());
    failed.errors.push(Failed { at: now, attempt, worker, message: message.to_owned() });
    if failed.errors.len() > ERRORS_KEPT {
        failed.errors.remove(0);
    }
    failed
}

pub fn due(when: Due, now: When) -> When {
    match when {
        Due::Now => now,
        Due::In(ms) => now.plus(ms),
        Due::At(at) => When::at(at),
    }
}

/// The job in another queue, where its attempts start again and its key is not its own, nor its place in a line.
pub fn elsewhere(mut job: Job, queue: &QueueName, reason: TrailReason, now: When) -> Job {
    job.trail.push(Left { at: now, queue: job.queue.clone(), reason, attempts: job.attempts });
    Job { queue: queue.clone(), attempts: 0, key: None, origin: None, turn: Turn::None, ..job }
}

/// The semaphores that others may have after this: it holds them no longer, or does not stand where it stood.
fn released(before: &Job, next: Option<&Job>) -> Vec<SemaphoreName> {
    let waits = |job: &Job| job.waiting_since.is_some();
    let position = |job: &Job| (job.queue.clone(), job.state, job.priority, job.run_at, waits(job));
    let stays = next.is_some_and(|next| next.state == State::Reserved || position(next) == position(before));
    if before.is_unfinished() && !stays { before.semaphores.clone() } else { Vec::new() }
}

impl Answer {
    fn check(&self, before: &Job, told: &Applied) -> Checked {
        let is_right = match (&self.becomes, &told.outcome) {
            (Becomes::Done, Outcome::Done) | (Becomes::Removed, Outcome::Removed) => true,
            (
                Becomes::Returned { queue, run_at },
                Outcome::Returned { queue: told, run_at: seen, blocked },
            ) => queue == told && run_at.has(*seen) && (*blocked == self.is_blocked || !self.is_sure),
            (Becomes::Dead { moved_to }, Outcome::Dead { moved_to: told }) => moved_to == told,
            (
                Becomes::Held { until, cancel_requested },
                Outcome::Held { reserved_until, cancel_requested: told },
            ) => until.has(*reserved_until) && cancel_requested == told,
            _ => false,
        };
        let started_at = before.started_at.map(|when| when.from);
        let rest = (&before.queue, started_at, false);
        let is_right =
            is_right && Admitted::are(&self.pushed, &told.pushed) && told.released == self.released;
        let is_right = is_right && (!self.is_sure || are_told(&self.unblocked, &told.unblocked));
        if is_right && rest == (&told.queue, told.started_at, told.repeated) {
            return Ok(());
        }
        Err(format!(
            "told {told:?}, expected {self:?} of a job in {} that started at {started_at:?}",
            before.queue
        ))
    }
}

impl No {
    fn is(&self, denied: &Denied, is_sure: bool) -> bool {
        match (self, denied) {
            (Self::Lost { gone }, Denied::Refused(Refusal::Lost { gone: told })) => gone == told,
            (Self::Unknown, Denied::Refused(Refusal::Unknown)) => true,
            (Self::Conflict(states), Denied::Refused(Refusal::Conflict { state })) => {
                states.contains(state) || !is_sure
            }
            (Self::Full, Denied::Refused(Refusal::Full)) => true,
            (Self::Push(refused), Denied::PushRefused(told)) => refused == told,
            (Self::Key(holder), Denied::KeyTaken(told)) => holder == told,
            _ => false,
        }
    }
}
