//! The part of the contract that is about schedules.

use async_trait::async_trait;

use super::{Result, Saved};
use crate::job::{NewJob, Schedule, ScheduleName, ScheduleRun, Timestamp};

/// One run of a schedule that is to happen.
#[derive(Debug, Clone, PartialEq)]
pub struct Firing {
    /// The schedule.
    pub name: ScheduleName,
    /// The `rev` that it must have.
    pub seen: i64,
    /// The `rev` that it has afterwards.
    pub rev: i64,
    /// The next occurrence from then on.
    pub next_at: Option<Timestamp>,
    /// How the run is to be remembered; names the job, if there is one.
    pub run: ScheduleRun,
    /// The job, to be stored whatever limits its queue has.
    pub job: Option<NewJob>,
    /// Nothing is pushed where the job that the schedule pushed last is unfinished, wherever that is now; the
    /// run is remembered as skipped.
    pub yields: bool,
}

impl Firing {
    /// Returns the record of the run where the firing yields to an earlier job.
    pub(super) fn yielded(&self) -> ScheduleRun {
        let skipped = Some(crate::job::schedule::Skipped::Overlap);
        ScheduleRun { job_id: None, skipped, ..self.run.clone() }
    }

    /// Returns what became of this firing if it is among these runs: what an attempt of unknown outcome has
    /// done.
    pub(super) fn found_in(&self, runs: &[ScheduleRun]) -> Option<Fired> {
        let own = runs.iter().rev().find(|run| **run == self.run || **run == self.yielded());
        own.cloned().map(Fired::Done)
    }
}

/// A schedule of a list, or one that cannot be read, and why.
pub type ListedSchedule = Result<Schedule, (ScheduleName, String)>;

/// What became of a [`Firing`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fired {
    /// It happened, and is remembered like this.
    Done(ScheduleRun),
    /// The schedule has changed since it was read; nothing happened.
    Conflict,
}

/// Schedules: their rows are read, changed as a whole, and fired.
#[async_trait]
pub trait Schedules {
    /// Returns schedules by name, those after `after`.
    async fn schedules(&self, after: Option<&ScheduleName>, limit: usize) -> Result<Vec<ListedSchedule>>;

    /// Returns the schedule of this name. One that cannot be read is [`StoreError::Unreadable`](super::StoreError).
    async fn schedule(&self, name: &ScheduleName) -> Result<Option<Schedule>>;

    /// Removes what is stored under this name if it cannot be read.
    async fn discard_unreadable_schedule(&self, name: &ScheduleName) -> Result<()>;

    /// Creates, replaces or removes a schedule whose `rev` is the one that was read; `None`: there must be
    /// none. Returns [`Saved::Conflict`] where it is another.
    async fn save_schedule(
        &self,
        name: &ScheduleName,
        to: Option<&Schedule>,
        seen: Option<i64>,
    ) -> Result<Saved>;

    /// Returns the schedules whose next occurrence comes first, whether or not it has passed, and when that
    /// is. Cheap: it reads no jobs and no rules.
    async fn next_occurrences(&self, limit: usize) -> Result<Vec<(ScheduleName, Timestamp)>>;

    /// Runs a schedule: the job, the next occurrence and the memory of the run are stored in one step, or
    /// nothing is. Of several firings that saw the same `rev`, one happens.
    async fn fire(&self, firing: &Firing) -> Result<Fired>;
}
