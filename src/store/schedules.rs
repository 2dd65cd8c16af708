//! The part of the contract that is about schedules.

use async_trait::async_trait;

use super::{Result, Saved};
use crate::job::{JobId, NewJob, Schedule, ScheduleName, ScheduleRun, State, Timestamp};

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
    fn yielded(&self) -> ScheduleRun {
        let skipped = Some(crate::job::schedule::Skipped::Overlap);
        ScheduleRun { job_id: None, skipped, ..self.run.clone() }
    }

    /// Returns what became of this firing if it is among these runs: what an attempt of unknown outcome has
    /// done.
    fn found_in(&self, runs: &[ScheduleRun]) -> Option<Fired> {
        let own = runs.iter().rev().find(|run| **run == self.run || **run == self.yielded());
        own.cloned().map(Fired::Done)
    }
}

/// What is to be done for a [`Firing`].
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FireStep {
    /// Nothing, and this is returned: it has happened, or the schedule has changed.
    Answer(Fired),
    /// The schedule is replaced by this one; it remembers `run`, whose job is stored if `run` names one.
    Fire { schedule: Box<Schedule>, run: ScheduleRun },
}

impl Firing {
    /// Returns the job whose state decides whether this firing yields, if one does.
    pub(super) fn yields_to<'s>(&self, schedule: &'s Schedule) -> Option<&'s JobId> {
        schedule.last_job.as_ref().filter(|_| self.yields && schedule.rev == self.seen)
    }

    /// Decides what the firing does to a schedule; `last` is the state of the job that it [yields to](Self::yields_to), if that is
    /// there. A repeat finds the run that its first call has left.
    pub(super) fn onto(&self, schedule: Option<Schedule>, last: Option<State>) -> FireStep {
        let Some(mut schedule) = schedule else { return FireStep::Answer(Fired::Conflict) };
        if schedule.rev != self.seen {
            return FireStep::Answer(self.found_in(&schedule.last_runs).unwrap_or(Fired::Conflict));
        }
        let yields = self.yields && last.is_some_and(State::is_unfinished);
        let run = if yields { self.yielded() } else { self.run.clone() };
        schedule.remember(run.clone());
        let schedule = Box::new(Schedule { rev: self.rev, next_at: self.next_at, ..schedule });
        FireStep::Fire { schedule, run }
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
    /// nothing is. Of several firings that saw the same `rev`, one happens. A repeat of one that happened gets the outcome
    /// that is remembered, as long as the schedule remembers it.
    async fn fire(&self, firing: &Firing) -> Result<Fired>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobSpec, Payload};

    const SEEN: i64 = 1;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn schedule() -> Schedule {
        let rule = r#"{"cron":"*/5 * * * * *","queue":"q","job":{"payload":1}}"#;
        Schedule {
            name: "s".parse().unwrap(),
            rule: serde_json::from_str(rule).unwrap(),
            version: "v".to_owned(),
            rev: SEEN,
            next_at: Some(at(5)),
            last_job: Some("LAST".parse().unwrap()),
            last_runs: Vec::new(),
        }
    }

    fn firing(yields: bool) -> Firing {
        let spec = JobSpec::new(Payload::parse("1").unwrap());
        let job = NewJob::new("A".parse().unwrap(), "q".parse().unwrap(), spec, at(5));
        let run = ScheduleRun {
            at: at(5),
            job_id: Some(job.id.clone()),
            skipped: None,
            misfire: false,
            manual: false,
            request: None,
        };
        let (name, next_at) = ("s".parse().unwrap(), Some(at(10)));
        Firing { name, seen: SEEN, rev: 2, next_at, run, job: Some(job), yields }
    }

    fn fired(step: FireStep) -> (Schedule, ScheduleRun) {
        let FireStep::Fire { schedule, run } = step else { panic!("{step:?}") };
        (*schedule, run)
    }

    #[test]
    fn a_firing_moves_the_schedule_on_and_yields_to_an_unfinished_job() {
        for yields in [false, true] {
            let firing = firing(yields);
            assert_eq!(firing.yields_to(&schedule()).is_some(), yields);
            for last in State::ALL.map(Some).into_iter().chain([None]) {
                let (after, run) = fired(firing.onto(Some(schedule()), last));
                let is_skipped = yields && last.is_some_and(State::is_unfinished);
                assert_eq!(run, if is_skipped { firing.yielded() } else { firing.run.clone() }, "{last:?}");
                let last_job = run.job_id.clone().or(schedule().last_job);
                assert_eq!((after.rev, after.next_at, after.last_job), (2, Some(at(10)), last_job));
                assert_eq!(after.last_runs, [run]);
            }
        }
    }

    #[test]
    fn a_schedule_that_has_changed_tells_of_a_run_that_it_remembers() {
        let firing = firing(true);
        assert_eq!(firing.onto(None, None), FireStep::Answer(Fired::Conflict));
        let changed = Schedule { rev: 7, ..schedule() };
        assert_eq!(firing.yields_to(&changed), None);
        assert_eq!(firing.onto(Some(changed.clone()), None), FireStep::Answer(Fired::Conflict));
        for run in [firing.run.clone(), firing.yielded()] {
            let last_runs = vec![run.clone(), ScheduleRun { at: at(6), ..run.clone() }];
            let found = firing.onto(Some(Schedule { last_runs, ..changed.clone() }), None);
            assert_eq!(found, FireStep::Answer(Fired::Done(run)));
        }
    }
}
