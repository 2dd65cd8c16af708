//! Batches: jobs that belong together, and the job that is pushed when the last of them is finished.

use serde::{Deserialize, Serialize};

use super::record::NewJob;
use super::spec::flat_spec;
use super::transition::{Next, Outcome, Step};
use super::{ApiKeyId, BatchId, Child, JobId, JobSpec, Meta, Payload, QueueName, Rules, Timestamp};
use crate::faults;

flat_spec! {
    /// The job that is pushed when the last job of a batch is finished, as stores keep it. Unknown fields are ignored: a
    /// newer server may have written them.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
    pub struct OnFinished {
        /// Where it goes.
        queue: QueueName,
        ..payload,
        /// Due so many milliseconds after it was pushed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delay_ms: Option<u64>,
        ..priority,
        ..others,
    }
}

/// How a job of a batch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = BatchResultState)]
pub enum Ending {
    /// The work is done.
    Done,
    /// Its attempts were used up.
    Dead,
    /// It was taken away: cancelled, purged, or past its expiry.
    Cancelled,
}

impl Ending {
    /// Every ending.
    pub const ALL: [Self; 3] = [Self::Done, Self::Dead, Self::Cancelled];

    /// Returns the word that a store keeps.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for Ending {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|ending| ending.as_str() == word)
            .ok_or_else(|| format!("{word:?} is no ending"))
    }
}

/// How many jobs of a batch have ended in each way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Endings {
    /// Those whose work is done.
    pub done: u64,
    /// Those whose attempts were used up.
    pub dead: u64,
    /// Those that were taken away.
    pub cancelled: u64,
}

impl Endings {
    /// Counts one more job that has ended.
    pub fn add(&mut self, ending: Ending) {
        match ending {
            Ending::Done => self.done += 1,
            Ending::Dead => self.dead += 1,
            Ending::Cancelled => self.cancelled += 1,
        }
    }

    /// Returns how many have ended.
    pub fn total(&self) -> u64 {
        self.done + self.dead + self.cancelled
    }
}

/// A batch as a store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Its id.
    pub id: BatchId,
    /// Whether no more jobs may be added.
    pub sealed: bool,
    /// How many of its jobs are unfinished.
    pub pending: u64,
    /// How the others have ended.
    pub endings: Endings,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was sealed and its last job finished: then its callback was pushed.
    pub finished_at: Option<Timestamp>,
    /// When the store deletes it with its results.
    pub purge_at: Option<Timestamp>,
    /// The id of the callback, chosen when the batch is created, so that pushing it is idempotent.
    pub callback: JobId,
    /// What is pushed at the end, if anything.
    pub on_finished: Option<OnFinished>,
    /// The id of the API key that created it, if it is for some queues only: no other such key may use it.
    pub owner: Option<ApiKeyId>,
}

impl Batch {
    /// Returns a batch that has no jobs yet.
    pub fn new(
        id: BatchId,
        callback: JobId,
        on_finished: Option<OnFinished>,
        sealed: bool,
        now: Timestamp,
    ) -> Self {
        Self {
            id,
            sealed,
            pending: 0,
            endings: Endings::default(),
            created_at: now,
            finished_at: None,
            purge_at: None,
            callback,
            on_finished,
            owner: None,
        }
    }

    /// Returns how many jobs it has counted, whatever became of them.
    pub fn counted(&self) -> u64 {
        self.pending + self.endings.total()
    }

    /// The same batch, in which so many of the pending jobs count as dead.
    pub fn without(mut self, lost: u64) -> Self {
        self.pending = self.pending.saturating_sub(lost);
        self.endings.dead += lost;
        self
    }

    /// Returns whether it is sealed and has no pending job, but is not marked as finished yet.
    pub fn is_over(&self) -> bool {
        is_over(self.sealed, self.pending, self.finished_at)
    }

    /// Ends it if it is over. Then it is to be written, together with its callback if it has one.
    pub fn end_if_over(&mut self, now: Timestamp, rules: &Rules) -> Option<End> {
        let is_over = self.is_over();
        is_over.then(|| End { callback: self.finish(now, rules.defaults().retain_batch_ms) })
    }

    /// Marks it as finished, and returns the callback that is to be stored in the same transaction, if there is one.
    fn finish(&mut self, now: Timestamp, retain_ms: u64) -> Option<NewJob> {
        self.finished_at = Some(now);
        self.purge_at = Some(now.plus_ms(retain_ms));
        let callback = self.on_finished.clone().filter(|_| !faults::bug("never_call_back"))?;
        let (queue, delay_ms) = (callback.queue.clone(), callback.delay_ms.unwrap_or(0));
        let mut spec = JobSpec::from(callback);
        let Endings { done, dead, cancelled } = self.endings;
        spec.headers.insert("batch-id".to_owned(), Payload::string(self.id.as_str()));
        for (name, count) in [("batch-done", done), ("batch-dead", dead), ("batch-cancelled", cancelled)] {
            spec.headers.insert(name.to_owned(), Payload::string(&count.to_string()));
        }
        Some(NewJob { run_at: now.plus_ms(delay_ms), ..NewJob::new(self.callback.clone(), queue, spec, now) })
    }
}

/// The end of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// What is pushed then, if anything.
    pub callback: Option<NewJob>,
}

/// Whether a batch with these fields is over, but not marked as finished yet.
pub fn is_over(sealed: bool, pending: u64, finished_at: Option<Timestamp>) -> bool {
    let pending = pending - u64::from(pending == 1 && faults::bug("call_back_early"));
    sealed && pending == 0 && finished_at.is_none()
}

/// Returns how many jobs a batch counts of those that were pushed with it: a duplicate is of no batch, or of that of the job that
/// was there.
pub fn counted(pushed: &[Child]) -> u64 {
    pushed.iter().filter(|child| !child.deduplicated).count() as u64
}

/// What is kept with a batch of a job that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchResult {
    /// The job.
    pub id: JobId,
    /// The queue that it was in.
    pub queue: QueueName,
    /// How it has ended.
    pub state: Ending,
    /// The result of its commit.
    pub result: Option<Payload>,
    /// When it ended.
    pub finished_at: Timestamp,
}

/// How a job of a batch has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// The batch.
    pub batch: BatchId,
    /// What is kept of the job.
    pub result: BatchResult,
}

/// Returns the first of the jobs that were to be added to a batch which has `counted` none yet, where all of them are duplicates of jobs
/// that were there. They are refused: a batch that is sent again, at once or in parts, would count none of its jobs, and call back
/// before they have run.
pub fn only_duplicates(counted: u64, pushed: &[Child]) -> Option<&JobId> {
    pushed
        .first()
        .filter(|_| counted == 0 && pushed.iter().all(|child| child.deduplicated))
        .map(|child| &child.id)
}

/// Returns the end of a job of a batch that cannot be read and is made dead: `found` is what can be read of it.
pub fn buried(found: &Meta, now: Timestamp) -> Option<Finish> {
    let batch = found.batch.clone().filter(|_| found.state.is_unfinished())?;
    let (id, queue) = (found.id.clone(), found.queue.clone());
    let result = BatchResult { id, queue, state: Ending::Dead, result: None, finished_at: now };
    Some(Finish { batch, result })
}

/// Returns how a step ends a job of a batch, if it does. A job ends once for its batch: one that was finished already
/// (a dead job that is purged, say) has been counted, and one that goes to its next stage or is moved is unfinished.
/// `result` is that of the commit, if the step is one.
pub fn finish(before: &Meta, step: &Step, result: Option<&Payload>, now: Timestamp) -> Option<Finish> {
    let batch = before.batch.clone()?;
    if !before.state.is_unfinished() || step.next == Next::Keep {
        return None;
    }
    let state = match &step.outcome {
        Outcome::Done => Ending::Done,
        Outcome::Dead { .. } => Ending::Dead,
        Outcome::Removed => Ending::Cancelled,
        Outcome::Returned { .. } | Outcome::Held { .. } => return None,
    };
    let result = result.filter(|_| state == Ending::Done).cloned();
    let (id, queue) = (before.id.clone(), before.queue.clone());
    Some(Finish { batch, result: BatchResult { id, queue, state, result, finished_at: now } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn a_batch_ends_once_when_it_is_sealed_and_nothing_is_pending() {
        let callback: OnFinished = serde_json::from_str(r#"{"queue":"done","payload":1}"#).unwrap();
        let new = Batch::new("B".parse().unwrap(), "C".parse().unwrap(), Some(callback), true, at(1));
        for (sealed, pending, finished_at, ends) in [
            (true, 0, None, true),
            (true, 1, None, false),
            (false, 0, None, false),
            (true, 0, Some(at(2)), false),
        ] {
            let before = Batch { sealed, pending, finished_at, ..new.clone() };
            let mut batch = before.clone();
            let end = batch.end_if_over(at(3), &Rules::default());
            assert_eq!(end.is_some(), ends, "{before:?}");
            match end {
                Some(End { callback }) => {
                    assert_eq!(callback.map(|job| (job.id, job.run_at)), Some((before.callback, at(3))));
                    assert_eq!(batch.finished_at, Some(at(3)));
                    assert!(batch.purge_at > batch.finished_at);
                    assert_eq!(batch.end_if_over(at(4), &Rules::default()), None, "once");
                }
                None => assert_eq!(batch, before),
            }
        }
        let mut silent = Batch { on_finished: None, ..new };
        assert_eq!(silent.end_if_over(at(3), &Rules::default()), Some(End { callback: None }));
    }

    #[test]
    fn duplicates_are_not_counted() {
        let child = |id: &str, deduplicated| {
            let (id, queue) = (id.parse().unwrap(), "q".parse().unwrap());
            Child { id, queue, run_at: at(1), deduplicated, replaced: false }
        };
        let (new, old) = (child("N", false), child("O", true));
        assert_eq!(counted(&[new.clone(), old.clone(), new.clone()]), 2);
        assert_eq!(only_duplicates(0, &[old.clone(), new.clone()]), None);
        assert_eq!(only_duplicates(0, &[old.clone(), old.clone()]), Some(&old.id));
        assert_eq!(only_duplicates(0, &[]), None);
        assert_eq!(only_duplicates(1, std::slice::from_ref(&old)), None);
    }
}
