//! Schedules: setting, reading, and running them by hand; what is due, `maintenance` runs.
//!
//! Each change and each firing is guarded by the `rev` that was read (optimistic concurrency): of several at
//! once one succeeds, and the others are conflicts.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use futures::FutureExt as _;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use super::audit::{Act, shown};
use super::bulk::CLOCKS_DIFFER_MS;
use super::configure::back_off;
use super::keyed::answer_of;
use super::meter::Event;
use super::quotas::Places;
use super::{CallKey, CallOutcome, Error, IdempotencyKey, Page, Precondition, Queues, Result};
use crate::faults;
use crate::job::schedule::{Overlap, ScheduledJob, Turn};
use crate::job::spec::check_year;
use crate::job::{
    Invalid, JobSpec, NewJob, Reach, Schedule, ScheduleName, ScheduleRule, ScheduleRun, Timestamp,
};
use crate::store::audit::along;
use crate::store::{Answering, Fired, Firing, Keyed, ListedSchedule, Named, Once, Saved, StoreError};
use crate::telemetry::trace;

/// How many times a change that ends in a conflict is retried.
const TRIES: usize = 20;
/// How long an act waits for the others on its schedule on this server, which would be conflicts.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// The turns of those who act on schedules, by a part of the names.
#[derive(Default)]
pub(super) struct Turns([Mutex<()>; 32]);

impl Turns {
    /// Waits for the turn; nothing where that takes too long: conflicts are found all the same.
    async fn take(&self, name: &ScheduleName) -> Option<MutexGuard<'_, ()>> {
        let add = |sum: usize, byte: u8| sum.wrapping_mul(31).wrapping_add(byte.into());
        let turn = self.0.get(name.as_str().bytes().fold(0, add) % self.0.len())?;
        timeout(TURN_WAIT, turn.lock()).await.ok()
    }
}

impl Queues {
    /// Returns the schedules of these queues by name; with those of all queues also those that cannot be read.
    pub async fn schedules(
        &self,
        after: Option<&ScheduleName>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<ListedSchedule, ScheduleName>> {
        let name = |listed: &ListedSchedule| match listed {
            Ok(schedule) => schedule.name.clone(),
            Err((name, _)) => name.clone(),
        };
        let store = &self.0.store;
        let read = |after: Option<ScheduleName>, limit| {
            async move { store.schedules(after.as_ref(), limit).await }.boxed()
        };
        let shown = |listed: &ListedSchedule| match listed {
            Ok(schedule) => within.has(&schedule.rule.queue),
            Err(_) => within.patterns().is_none(), // of which queue it is cannot be read
        };
        self.page(after, limit, None, name, shown, read).await
    }

    /// Returns the schedule.
    pub async fn schedule(&self, name: &ScheduleName) -> Result<Schedule> {
        let found = self.0.store.schedule(name).await?;
        found.ok_or_else(|| Error::UnknownSchedule(name.clone()))
    }

    /// Creates a schedule, or replaces its rule and keeps its last runs. An occurrence that is due at this
    /// moment is not lost where rule and time zone stay the same.
    pub async fn set_schedule(
        &self,
        name: &ScheduleName,
        rule: ScheduleRule,
        precondition: &Precondition,
    ) -> Result<Schedule> {
        self.check_job(&rule.job).await?;
        self.check_comes(&rule)?;
        let stages = rule.job.then.iter().map(|stage| &stage.queue);
        let new = self.new_queues(stages.chain(std::iter::once(&rule.queue)));
        let queues = self.admit_queues(new).await?;
        let _turn = self.0.schedule_turns.take(name).await;
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let found = match self.0.store.schedule(name).await {
                Err(StoreError::Unreadable(_)) if *precondition == Precondition::None => {
                    self.0.store.discard_unreadable_schedule(name).await?;
                    continue;
                }
                found => found?,
            };
            if !allows(precondition, found.as_ref()) {
                return Err(Error::ScheduleChanged(name.clone()));
            }
            let place = match &found {
                None => Some(self.admit_new_schedule(name).await?),
                Some(_) => None,
            };
            let paused = rule.paused.or(found.as_ref().map(|found| found.rule.paused).unwrap_or_default());
            let rule = ScheduleRule { paused, ..rule.clone() };
            if let Some(schedule) = self.replace(name, found, rule).await? {
                place.into_iter().chain([queues]).for_each(Places::keep_all);
                return Ok(schedule);
            }
        }
        Err(too_many_conflicts())
    }

    /// Stops a schedule's occurrences, or lets them come again: from now on, none is made up for.
    pub async fn pause_schedule(
        &self,
        name: &ScheduleName,
        paused: bool,
        precondition: &Precondition,
    ) -> Result<Schedule> {
        let _turn = self.0.schedule_turns.take(name).await;
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let found = self.schedule(name).await?;
            if !allows(precondition, Some(&found)) {
                return Err(Error::ScheduleChanged(name.clone()));
            }
            let rule = ScheduleRule { paused: paused.into(), ..found.rule.clone() };
            if let Some(schedule) = self.replace(name, Some(found), rule).await? {
                return Ok(schedule);
            }
        }
        Err(too_many_conflicts())
    }

    /// Removes a schedule; the jobs that it has pushed stay.
    pub async fn delete_schedule(&self, name: &ScheduleName, precondition: &Precondition) -> Result<()> {
        let _turn = self.0.schedule_turns.take(name).await;
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let found = match self.schedule(name).await {
                Err(Error::Store(StoreError::Unreadable(_))) if *precondition == Precondition::None => {
                    let row = self.row(act_on("schedule.delete", None, None, name));
                    return Ok(along(row, self.0.store.discard_unreadable_schedule(name)).await?);
                }
                found => found?,
            };
            if !allows(precondition, Some(&found)) {
                return Err(Error::ScheduleChanged(name.clone()));
            }
            let row = self.row(act_on("schedule.delete", Some(&found), None, name));
            if along(row, self.0.store.save_schedule(name, None, Some(found.rev))).await? == Saved::Done {
                return Ok(());
            }
        }
        Err(too_many_conflicts())
    }

    /// Gives a schedule this rule; `None` on a conflict with another change, or with a run.
    async fn replace(
        &self,
        name: &ScheduleName,
        found: Option<Schedule>,
        rule: ScheduleRule,
    ) -> Result<Option<Schedule>> {
        let seen = found.as_ref().map(|found| found.rev);
        let row = self.row(act_on("schedule.set", found.as_ref(), Some(&rule), name));
        let times = |rule: &ScheduleRule| (rule.cron.clone(), rule.time_zone.clone(), rule.paused.is());
        // An occurrence that has run, by a clock of which this server's estimate lags behind, does not run again.
        self.0.store.ping().await?;
        let now = self.now()?;
        let latest = now.plus_ms(CLOCKS_DIFFER_MS);
        // What a clock that was far ahead has left does not count: neither its runs, nor what was to come after them.
        // Nor does what another program has left without a next occurrence.
        let is_kept = |found: &&Schedule| {
            let is_there = found.next_at.is_some() || rule.paused.is();
            times(&found.rule) == times(&rule) && is_there && found.next_at <= rule.next(latest)
        };
        let next_at = match found.as_ref().filter(is_kept) {
            Some(found) => found.next_at,
            None => {
                let is_near = |run: &&ScheduleRun| !run.manual && run.at <= latest;
                let runs = found.iter().flat_map(|found| &found.last_runs).filter(is_near);
                rule.next(runs.map(|run| run.at).fold(now, Timestamp::max))
            }
        };
        let (last_job, last_runs) = found.map(|found| (found.last_job, found.last_runs)).unwrap_or_default();
        let version = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 9]>());
        let rev = rand::random();
        let schedule = Schedule { name: name.clone(), rule, version, rev, next_at, last_job, last_runs };
        if along(row, self.0.store.save_schedule(name, Some(&schedule), seen)).await? == Saved::Conflict {
            return Ok(None);
        }
        if let Some(at) = next_at {
            self.0.scheduler.note(at.millis());
        }
        Ok(Some(schedule))
    }

    /// Runs a schedule now, paused or not, and returns the record of the run. Goes on where its caller leaves.
    pub async fn run_schedule(&self, name: &ScheduleName, precondition: Precondition) -> Result<ScheduleRun> {
        let (this, name) = (self.clone(), name.clone());
        match self.to_the_end(async move { this.run_by_hand(&name, None, &precondition).await }).await? {
            CallOutcome::Plain(run) => Ok(run),
            CallOutcome::Answer(_) => {
                Err(StoreError::internal("a run without a key was answered as one").into())
            }
        }
    }

    /// The same for a keyed call. Older servers know a run by its key as long as it is among the last ones: so does this one.
    pub async fn run_schedule_once(
        &self,
        name: &ScheduleName,
        (key, text): (&CallKey, &IdempotencyKey),
        precondition: Precondition,
        answer: Answering<ScheduleRun>,
    ) -> Result<CallOutcome<ScheduleRun>> {
        let place = self.admit_request(&key.id).await?;
        let answer = move |fired: &Fired| match fired {
            Fired::Done(run) => answer(run),
            Fired::Conflict => None,
        };
        let by_key = ByKey { request: text.digest(), keyed: self.keyed(key, Arc::new(answer))? };
        let (this, name) = (self.clone(), name.clone());
        let told = self.to_the_end(async move { this.run_by_hand(&name, Some(by_key), &precondition).await });
        let told = told.await?;
        if let CallOutcome::Answer(_) = &told {
            place.keep_all();
        }
        Ok(told)
    }

    async fn run_by_hand(
        &self,
        name: &ScheduleName,
        by_key: Option<ByKey>,
        precondition: &Precondition,
    ) -> Result<CallOutcome<ScheduleRun>> {
        let request = by_key.as_ref().map(|by_key| by_key.request.clone());
        let _turn = self.0.schedule_turns.take(name).await;
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let since = self.0.store.term();
            let schedule = self.schedule(name).await?;
            if !allows(precondition, Some(&schedule)) {
                return Err(Error::ScheduleChanged(name.clone()));
            }
            let now = self.now()?;
            let ttl_ms = self.options().idempotency_ttl_ms;
            let is_first = |run: &&ScheduleRun| {
                request.is_some() && run.request == request && run.at.plus_ms(ttl_ms) > now
            };
            let first = schedule.last_runs.iter().find(is_first).cloned();
            let request = request.clone();
            let run =
                ScheduleRun { at: now, job_id: None, skipped: None, misfire: false, manual: true, request };
            let turn = Turn { run, push_at: Some(now), next_at: schedule.next_at };
            let Some(ByKey { keyed, .. }) = &by_key else {
                if let Fired::Done(run) = self.fire(&schedule, turn).await? {
                    return Ok(CallOutcome::Plain(run));
                }
                continue;
            };
            // Where it is remembered both ways, its answer counts.
            if let Some(first) = first {
                let answer = self.0.store.recall(&keyed.call).await?;
                if answer.is_none() {
                    self.0.store.confirm(since).await?;
                }
                return answer.map_or(Ok(CallOutcome::Plain(first)), |answer| {
                    answer_of(answer).map(CallOutcome::Answer)
                });
            }
            let once = self.fire_once(&schedule, turn, keyed.clone()).await?;
            if !matches!(once, Once::Now(Fired::Conflict, _)) {
                let told = Self::outcome_of(once, self.no_places(Named::Requests), |_| {})?;
                return match told {
                    CallOutcome::Answer(answer) => Ok(CallOutcome::Answer(answer)),
                    CallOutcome::Plain(_) => Err(StoreError::internal("a run was not remembered").into()),
                };
            }
        }
        Err(too_many_conflicts())
    }

    /// Fires a schedule as this turn says, if it is still as it was read.
    pub(super) async fn fire(&self, schedule: &Schedule, turn: Turn) -> Result<Fired> {
        let firing = self.firing(schedule, turn)?;
        let row = self.row(act_on("schedule.run", Some(schedule), None, &schedule.name));
        let fired = along(row, self.0.store.fire(&firing)).await?;
        self.note_fired(schedule, &firing, &fired);
        Ok(fired)
    }

    /// The same for a keyed call.
    async fn fire_once(&self, schedule: &Schedule, turn: Turn, keyed: Keyed<Fired>) -> Result<Once<Fired>> {
        let firing = self.firing(schedule, turn)?;
        let row = self.row(act_on("schedule.run", Some(schedule), None, &schedule.name));
        let once = along(row, self.0.store.fire_once(&firing, keyed)).await?;
        faults::point("keyed.stored").await;
        if let Once::Now(fired, _) = &once {
            self.note_fired(schedule, &firing, fired);
        }
        Ok(once)
    }

    fn firing(&self, schedule: &Schedule, turn: Turn) -> Result<Firing> {
        let rule = &schedule.rule;
        let job = turn.push_at.map(|at| self.scheduled(rule, at)).transpose()?;
        Ok(Firing {
            name: schedule.name.clone(),
            seen: schedule.rev,
            rev: rand::random(),
            next_at: turn.next_at,
            run: ScheduleRun { job_id: job.as_ref().map(|job| job.id.clone()), ..turn.run },
            yields: job.is_some() && rule.overlap == Overlap::Skip,
            job,
        })
    }

    /// Counts the job of a firing, and wakes a waiter for it.
    fn note_fired(&self, schedule: &Schedule, firing: &Firing, fired: &Fired) {
        let (Fired::Done(ScheduleRun { job_id: Some(_), .. }), Some(job)) = (fired, &firing.job) else {
            return;
        };
        if let Some(expires_at) = job.expires_at() {
            self.note_deadline(expires_at);
        }
        self.meter().notes().count(&schedule.rule.queue, Event::Pushed);
        self.announce(&schedule.rule.queue, job.run_at);
    }

    /// Returns the job of an occurrence.
    fn scheduled(&self, rule: &ScheduleRule, at: Timestamp) -> Result<NewJob> {
        let now = self.now()?;
        let mut spec = JobSpec::from(rule.job.clone());
        if let Some(trace) = trace::carried() {
            trace.carry(&mut spec.headers);
        }
        let run_at = at.plus_ms(rule.job.delay_ms.unwrap_or(0));
        Ok(NewJob { run_at, ..NewJob::new(self.0.ids.next(now), rule.queue.clone(), spec, now) })
    }

    /// Refuses an interval all of whose times are skipped each time that clocks are put forward.
    fn check_comes(&self, rule: &ScheduleRule) -> Result<()> {
        rule.cron.check_names().map_err(|invalid| Invalid::new("/cron", invalid.to_string()))?;
        if rule.cron.next(self.now()?, &rule.time_zone).is_some() {
            return Ok(());
        }
        let zone = rule.time_zone.as_str();
        Err(Invalid::new("/cron", format!("never comes in {zone}: there is no such time on any day")).into())
    }

    async fn check_job(&self, job: &ScheduledJob) -> Result<()> {
        let spec = JobSpec::from(job.clone());
        let checked = job.check_payload().and_then(|()| spec.check(self.options().payload_bytes));
        checked
            .and_then(|()| check_year(job.delay_ms, "/delay_ms"))
            .map_err(|invalid| invalid.under("/job"))?;
        self.check_semaphores(&spec).await.map_err(|error| error.under("/job"))
    }
}

/// What makes a run by hand recognisable.
struct ByKey {
    /// What the run remembers of the key.
    request: String,
    keyed: Keyed<Fired>,
}

/// Returns whether the schedule is as the precondition demands.
fn allows(precondition: &Precondition, found: Option<&Schedule>) -> bool {
    match precondition {
        Precondition::None => true,
        Precondition::Absent => found.is_none(),
        Precondition::Exists => found.is_some(),
        Precondition::Versions(versions) => found.is_some_and(|found| versions.contains(&found.version)),
    }
}

fn too_many_conflicts() -> Error {
    StoreError::unavailable("the schedule was changed by others again and again").into()
}

/// Returns an act on a schedule, for the audit: without the job, whose payload is confidential.
fn act_on<'a>(
    what: &'static str,
    before: Option<&'a Schedule>,
    after: Option<&'a ScheduleRule>,
    name: &'a ScheduleName,
) -> Act<'a> {
    let rule = |rule: &ScheduleRule| {
        let ScheduleRule { cron, time_zone, queue, overlap, misfire, paused, .. } = rule;
        shown(&json!({
            "cron": cron, "time_zone": time_zone, "queue": queue, "overlap": overlap, "misfire": misfire, "paused": paused,
        }))
    };
    let queue = after.or(before.map(|schedule| &schedule.rule)).map(|rule| &rule.queue);
    let (before, after) = (before.and_then(|schedule| rule(&schedule.rule)), after.and_then(rule));
    Act { what, on: name.as_str(), queue, before, after }
}
