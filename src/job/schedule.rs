//! Schedules: their rules, their last runs, and what happens when one is due.
//!
//! Everything here is pure. A store keeps the rows and makes each firing atomic; when an occurrence is due, missed or
//! next is decided here for both stores.

use serde::{Deserialize, Serialize};

use super::cron::{CronRule, Zone};
use super::names::text_type;
use super::spec::flat_spec;
use super::{JobId, QueueName, Timestamp};

text_type! {
    /// The name of a schedule.
    ScheduleName, super::names::is_name, super::names::NAME_RULE, super::names::NAME_FORM
}

/// The most runs that are kept of a schedule: the last ones.
pub const RUNS_KEPT: usize = 10;
/// How late an occurrence may run, in milliseconds: after that it was missed.
pub const MISSED_AFTER_MS: u64 = 5000;

/// What happens when the job of the last run is still unfinished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ScheduleOverlap)]
pub enum Overlap {
    /// Another job is pushed.
    #[default]
    Allow,
    /// No job is pushed.
    Skip,
}

/// What happens to occurrences that were missed because no server or no store was available.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ScheduleMisfire)]
pub enum Misfire {
    /// One job is pushed for all of them together.
    #[default]
    Once,
    /// No job is pushed.
    Skip,
}

flat_spec! {
    /// The job that a schedule pushes.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct ScheduledJob {
        ..payload,
        /// The delay before delivery, in milliseconds from the occurrence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(minimum = 0, maximum = 31536000000_u64)]
        delay_ms: Option<u64>,
        ..priority,
        ..others,
    }
}

/// The rule of a schedule.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleRule {
    /// The cron expression: minute, hour, day of the month, month and day of the week, or six fields with seconds
    /// first. Lists, ranges, steps, names of months and days, `L`, `W` and `#` are known. `@hourly`, `@daily`, `@weekly`, `@monthly` and
    /// `@yearly` stand for such expressions, and are shown as these.
    #[schema(value_type = String, max_length = 256)]
    pub cron: CronRule,
    /// The time zone of that, by its name in the IANA database.
    #[serde(default)]
    #[schema(value_type = String, default = "UTC", max_length = 128)]
    pub time_zone: Zone,
    /// The queue that the jobs go to.
    pub queue: QueueName,
    /// The job.
    #[serde(deserialize_with = "super::backoff::required_object")]
    pub job: ScheduledJob,
    /// What happens when the job of the last run is still unfinished.
    #[serde(default)]
    #[schema(default = "allow")]
    pub overlap: Overlap,
    /// What happens to missed occurrences.
    #[serde(default)]
    #[schema(default = "once")]
    pub misfire: Misfire,
    /// Whether it has no occurrences for now. Where a request does not say so it stays as it is; a new schedule is not paused.
    #[serde(default)]
    #[schema(value_type = bool, required = false)]
    pub paused: Paused,
}

/// Whether a schedule is paused, if that is said.
#[derive(Debug, Clone, Copy, Default)]
pub struct Paused(Option<bool>);

impl Paused {
    /// Returns whether it is; not, where nothing is said.
    pub fn is(self) -> bool {
        self.0.unwrap_or(false)
    }

    /// Returns what is said, or else what was before.
    pub fn or(self, before: Self) -> Self {
        Self(self.0.or(before.0))
    }
}

impl From<bool> for Paused {
    fn from(is: bool) -> Self {
        Self(Some(is))
    }
}

impl PartialEq for Paused {
    fn eq(&self, other: &Self) -> bool {
        self.is() == other.is()
    }
}

impl<'de> Deserialize<'de> for Paused {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bool::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for Paused {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.is().serialize(serializer)
    }
}

impl ScheduleRule {
    /// Returns the first occurrence after this moment; none while it is paused.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        if self.paused.is() { None } else { self.cron.next(after, &self.time_zone) }
    }
}

/// Why a run pushed no job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ScheduleSkipped)]
pub enum Skipped {
    /// The job of an earlier run was still unfinished.
    Overlap,
    /// It was missed.
    Misfire,
}

/// The run of an occurrence, or a run on request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRun {
    /// The occurrence, the first one of several that were missed; the time of a run on request.
    pub at: Timestamp,
    /// The job that was pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Why none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    /// Whether it stands for all occurrences that were missed from `at` on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub misfire: bool,
    /// Whether it was requested.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub manual: bool,
    /// Recognizes a retry of the request for it, where that had an `Idempotency-Key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// A schedule as a store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Its name.
    pub name: ScheduleName,
    /// The rule.
    pub rule: ScheduleRule,
    /// Changes with every change of the rule; compared by equality only.
    pub version: String,
    /// A random number that every write replaces, for optimistic concurrency; runs are writes, too.
    pub rev: i64,
    /// The first occurrence that was not run yet; none while it is paused.
    pub next_at: Option<Timestamp>,
    /// The job that was pushed last.
    pub last_job: Option<JobId>,
    /// The last runs, oldest first.
    pub last_runs: Vec<ScheduleRun>,
}

/// What is to happen to an occurrence that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// The run, as it is kept.
    pub run: ScheduleRun,
    /// When the job is due, before its own delay, if one is to be pushed.
    pub push_at: Option<Timestamp>,
    /// The next occurrence.
    pub next_at: Option<Timestamp>,
}

impl Schedule {
    /// Returns what is to happen at this moment, if an occurrence is due. `begun`: since when the server has run one that is due after the
    /// other: what has to wait for others meanwhile is not missed.
    pub fn turn(&self, now: Timestamp, begun: Timestamp) -> Option<Turn> {
        let at = self.next_at.filter(|at| *at <= now)?;
        let run =
            ScheduleRun { at, job_id: None, skipped: None, misfire: false, manual: false, request: None };
        if begun.min(now).ms_since(at) <= MISSED_AFTER_MS {
            return Some(Turn { run, push_at: Some(at), next_at: self.rule.next(at) });
        }
        // What else was missed in the meantime is over with this one.
        let next_at = self.rule.next(now);
        Some(match self.rule.misfire {
            Misfire::Once => Turn { run: ScheduleRun { misfire: true, ..run }, push_at: Some(now), next_at },
            Misfire::Skip => {
                let skipped = Some(Skipped::Misfire);
                Turn { run: ScheduleRun { skipped, misfire: true, ..run }, push_at: None, next_at }
            }
        })
    }

    /// Returns the next occurrences, up to `count`.
    pub fn next_runs(&self, count: usize) -> Vec<Timestamp> {
        std::iter::successors(self.next_at, |at| self.rule.next(*at)).take(count).collect()
    }

    /// Keeps a run, and drops the oldest where there are too many.
    pub fn remember(&mut self, run: ScheduleRun) {
        if let Some(job) = &run.job_id {
            self.last_job = Some(job.clone());
        }
        self.last_runs.push(run);
        let surplus = self.last_runs.len().saturating_sub(RUNS_KEPT);
        self.last_runs.drain(..surplus);
    }

    /// Returns whether two schedules are equal but for their `rev`.
    pub fn same(&self, other: &Self) -> bool {
        *self == Self { rev: self.rev, ..other.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(cron: &str, misfire: Misfire, next_at: &str) -> Schedule {
        let text = format!(r#"{{"cron":"{cron}","queue":"q","job":{{"payload":1.50}}}}"#);
        let rule: ScheduleRule = serde_json::from_str(&text).unwrap();
        Schedule {
            name: "nightly".parse().unwrap(),
            rule: ScheduleRule { misfire, ..rule },
            version: "v".to_owned(),
            rev: 0,
            next_at: Some(next_at.parse().unwrap()),
            last_job: None,
            last_runs: Vec::new(),
        }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_happens_before_its_time() {
        let hourly = schedule("0 * * * *", Misfire::Once, "2026-01-31T08:00:00Z");
        assert_eq!(hourly.turn(time("2026-01-31T07:59:59.999Z"), time("2026-01-31T07:59:59.999Z")), None);
        let paused = Schedule { next_at: None, ..hourly };
        assert_eq!(paused.turn(time("2030-01-31T08:00:00Z"), time("2030-01-31T08:00:00Z")), None);
    }

    #[test]
    fn one_that_is_a_little_late_is_run_as_if_it_were_not() {
        let every_second = schedule("* * * * * *", Misfire::Skip, "2026-01-31T08:00:00Z");
        let behind_others = every_second.turn(time("2026-01-31T08:01:00Z"), time("2026-01-31T08:00:04Z"));
        assert!(!behind_others.unwrap().run.misfire, "the server was at work all the time");
        let turn = every_second.turn(time("2026-01-31T08:00:05Z"), time("2026-01-31T08:00:05Z")).unwrap();
        assert_eq!((turn.push_at, turn.next_at), (Some(turn.run.at), Some(time("2026-01-31T08:00:01Z"))));
        assert_eq!((turn.run.at, turn.run.misfire), (time("2026-01-31T08:00:00Z"), false));
    }

    #[test]
    fn what_was_missed_is_over_with_one_turn() {
        let now = time("2026-01-31T11:30:00Z");
        let hourly = schedule("0 * * * *", Misfire::Once, "2026-01-31T08:00:00Z");
        let turn = hourly.turn(now, now).unwrap();
        assert_eq!((turn.push_at, turn.next_at), (Some(now), Some(time("2026-01-31T12:00:00Z"))));
        assert!(turn.run.misfire && turn.run.skipped.is_none());
        let skipping = schedule("0 * * * *", Misfire::Skip, "2026-01-31T08:00:00Z");
        let turn = skipping.turn(now, now).unwrap();
        assert_eq!((turn.push_at, turn.next_at), (None, Some(time("2026-01-31T12:00:00Z"))));
        assert_eq!(turn.run.skipped, Some(Skipped::Misfire));
    }

    #[test]
    fn the_last_ten_runs_are_remembered() {
        let mut hourly = schedule("0 * * * *", Misfire::Once, "2026-01-31T08:00:00Z");
        for n in 0..12 {
            let at = Timestamp::from_millis(n);
            let job_id = (n != 11).then(|| format!("j{n}").parse().unwrap());
            let run = ScheduleRun { at, job_id, skipped: None, misfire: false, manual: true, request: None };
            hourly.remember(run);
        }
        assert_eq!(hourly.last_runs.len(), RUNS_KEPT);
        assert_eq!(hourly.last_runs[0].at, Timestamp::from_millis(2));
        assert_eq!(hourly.last_job.unwrap().as_str(), "j10");
    }

    #[test]
    fn the_next_runs_begin_with_the_one_that_is_due() {
        let hourly = schedule("0 * * * *", Misfire::Once, "2026-01-31T08:00:00Z");
        let next = hourly.next_runs(3);
        assert_eq!(next, ["T08", "T09", "T10"].map(|hour| time(&format!("2026-01-31{hour}:00:00Z"))));
        assert!(Schedule { next_at: None, ..hourly }.next_runs(5).is_empty());
    }

    #[test]
    fn a_rule_comes_back_from_its_text() {
        let text = r#"{"cron":"0 8 * * 1","time_zone":"Europe/Berlin","queue":"q","job":{"payload":{"n":1.50},"delay_ms":5,"priority":3,"headers":{"a":"b"}},"overlap":"skip","misfire":"skip","paused":true}"#;
        let rule: ScheduleRule = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&rule).unwrap(), text);
        let unset = r#"{"cron":"0 8 * * 1","queue":"q","job":{"payload":null}}"#;
        let rule: ScheduleRule = serde_json::from_str(unset).unwrap();
        assert_eq!(
            (rule.time_zone.as_str(), rule.overlap, rule.misfire),
            ("UTC", Overlap::Allow, Misfire::Once)
        );
        assert_eq!((rule.job.payload.as_str(), rule.paused.is()), ("null", false));
    }
}
