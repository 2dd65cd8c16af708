//! Runs schedules whose time has come.
//!
//! Between runs the task sleeps until the next occurrence that it knows of, by the store's clock, and at most
//! its interval, since other servers may set schedules as well; one that is set on this server wakes it. Each
//! firing is guarded by what was read of the schedule, so that an occurrence runs once however many servers
//! see it.
//!
//! On MongoDB a transaction that a killed server has left open may hold a schedule for a minute, and each try to run that takes a call's
//! deadline. Such schedules are left out for a while, and then tried one by one; after each that fails, the others catch up before the next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use rand::seq::SliceRandom as _;

use super::{Maintenance, Run};
use crate::faults;
use crate::job::{Schedule, ScheduleName, Timestamp};
use crate::queue::Result;
use crate::queue::stuck::Sorted;
use crate::store::{Fired, StoreError, chain};
use crate::telemetry::trace::{self, End, Kind, Span, text};

/// How many schedules one step finds at most, beside those that are left out.
const STEP: usize = 128;
/// How many of them run at once.
const AT_ONCE: usize = 8;
/// A step that takes longer, in milliseconds, was interrupted: what came meanwhile did not wait for others.
const STOOD_STILL_MS: u64 = 30_000;
/// For how long one is left out that failed while others ran: so short that after a single failure its occurrence is not missed.
pub(super) const LEFT_OUT: Duration = Duration::from_secs(2);

/// What one step has led to.
#[derive(Default)]
struct Step {
    /// How many occurrences this server has run.
    done: u64,
    /// Whether some were due.
    more: bool,
    /// When the next occurrence comes.
    next_at: Option<Timestamp>,
    /// Whether one that had failed before was retried, and has failed again.
    retried_in_vain: bool,
}

/// What is recorded of a run in its trace.
fn ended(schedule: &Schedule, fired: &Result<Fired>, took: Duration) -> End {
    let mut attributes = vec![
        text("tailback.schedule", schedule.name.as_str()),
        text("messaging.system", "tailback"),
        text("messaging.destination.name", schedule.rule.queue.as_str()),
    ];
    if let Ok(Fired::Done(run)) = fired {
        attributes.extend(run.job_id.as_ref().map(|id| text("messaging.message.id", id.as_str())));
    }
    let error = fired.is_err().then(|| "the store failed".into());
    End { name: "schedule".into(), kind: Kind::Internal, took, attributes, error }
}

impl Maintenance {
    /// Runs the occurrences that are due. Counts those that this server ran.
    pub async fn run_due_schedules(self: Arc<Self>, interval: Duration) -> Result<Run> {
        let alarm = &self.queues.0.scheduler;
        let (mut done, mut may_retry) = (0, true);
        let mut begun = self.queues.now()?;
        let mut last = begun;
        loop {
            let now = self.queues.now()?;
            // What came while this server or the store stood still was missed.
            if now.ms_since(last) > STOOD_STILL_MS {
                begun = now;
            }
            last = now;
            alarm.begin();
            let step = self.run_step(may_retry, begun).await?;
            done += step.done;
            // The next occurrence of one that was due may be due as well, and others came due during a retry in vain. Until none is due there
            // is no further one: each takes so long that they would miss their times.
            may_retry &= !step.retried_in_vain;
            if step.more || step.retried_in_vain {
                continue;
            }
            let now = self.queues.now()?;
            let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
            let sleep = step.next_at.map_or(interval, |at| at.ms_since(now)).min(interval);
            alarm.sleep_until(now.plus_ms(sleep).millis());
            return Ok(Run { done, again_in: Some(Duration::from_millis(sleep)) });
        }
    }

    /// Runs the next occurrence of each schedule that is due. `may_retry`: also of one that failed before. `begun`: since when one is run
    /// after the other.
    async fn run_step(&self, may_retry: bool, begun: Timestamp) -> Result<Step> {
        let left_out = self.stuck_schedules.count(); // these come first
        let coming = self.queues.0.store.next_occurrences(STEP + left_out).await?;
        let now = self.queues.now()?;
        let next_at = coming.iter().map(|(_, at)| *at).find(|at| *at > now);
        let due: Vec<ScheduleName> =
            coming.into_iter().filter(|(_, at)| *at <= now).map(|(name, _)| name).collect();
        let Sorted { mut others, mut again, .. } = self.stuck_schedules.sort(due, |name| name);
        others.shuffle(&mut rand::rng()); // servers that run at the same moment begin with different ones
        again.shuffle(&mut rand::rng());
        let again = again.pop().filter(|_| may_retry);
        let step = self.run_all(others, again, begun).await?;
        Ok(Step { next_at, ..step })
    }

    /// Runs the occurrences of these schedules; `again` failed before. One that fails keeps none of the others from being run.
    async fn run_all(
        &self,
        others: Vec<ScheduleName>,
        again: Option<ScheduleName>,
        begun: Timestamp,
    ) -> Result<Step> {
        let others = others.into_iter().map(|name| (name, false));
        let all: Vec<(ScheduleName, bool)> = others.chain(again.map(|name| (name, true))).collect();
        let runs = all.into_iter().map(|(name, is_known)| async move {
            let ran = self.run_due(&name, begun).await;
            (name, is_known, ran)
        });
        let runs: Vec<(ScheduleName, bool, Result<Option<u64>>)> =
            futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
        let (mut step, mut failed, mut failure) = (Step::default(), Vec::new(), None);
        for (name, is_known, ran) in runs {
            match ran {
                Ok(ran) => {
                    // One that cannot be read stays due, and must not be tried again at once.
                    step.more |= ran.is_some();
                    step.done += ran.unwrap_or(0);
                    self.stuck_schedules.forget(&name);
                }
                Err(error) => {
                    let (schedule, why) = (name.as_str(), chain(&error));
                    tracing::debug!(schedule, error = why, "a schedule could not be run");
                    if is_known {
                        step.retried_in_vain = true;
                    } else {
                        failure.get_or_insert((error, why));
                    }
                    failed.push(name);
                }
            }
        }
        // Where others fail and none runs, the store is away.
        let (error, why) = failure.unzip();
        if let Some(error) = error.filter(|_| !step.more) {
            return Err(error);
        }
        let count = failed.len();
        if let Some(name) = self.stuck_schedules.note(failed) {
            let (schedule, error) = (name.as_str(), why.unwrap_or_default());
            tracing::warn!(schedule, count, error, "some schedules cannot be run, others can; retrying");
        }
        Ok(step)
    }

    /// Runs the occurrence of this schedule that is due, unless another server has done so. Returns how many
    /// it ran; `None` if the schedule cannot be read.
    async fn run_due(&self, name: &ScheduleName, begun: Timestamp) -> Result<Option<u64>> {
        let found = match self.queues.0.store.schedule(name).await {
            Err(StoreError::Unreadable(_)) => return Ok(None), // logged where it is read; a PUT mends it
            found => found?,
        };
        let Some(schedule) = found else { return Ok(Some(0)) };
        let Some(turn) = schedule.turn(self.queues.now()?, begun) else { return Ok(Some(0)) };
        faults::point("schedule.read").await;
        // Each run begins a trace of its own.
        let (span, began) = (Span::of_own(), Instant::now());
        let fired = trace::within(span.clone(), self.queues.fire(&schedule, turn)).await;
        if let Some(span) = span {
            span.end(ended(&schedule, &fired, began.elapsed()));
        }
        Ok(Some(u64::from(matches!(fired?, Fired::Done(_)))))
    }
}
