//! Runs schedules whose time has come.
//!
//! Between runs the task sleeps until the next occurrence that it knows of, by the store's clock, and at most
//! its interval, since other servers may set schedules as well; one that is set on this server wakes it. Each
//! firing is guarded by what was read of the schedule, so that an occurrence runs once however many servers
//! see it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use rand::seq::SliceRandom as _;

use super::{Maintenance, Run};
use crate::faults;
use crate::job::{Schedule, ScheduleName, Timestamp};
use crate::queue::Result;
use crate::store::{Fired, StoreError};
use crate::telemetry::trace::{self, End, Kind, Span, text};

/// How many schedules one step finds at most.
const STEP: usize = 128;
/// How many of them run at once.
const AT_ONCE: usize = 8;

/// What one step has led to.
struct Step {
    /// How many occurrences this server has run.
    done: u64,
    /// Whether some were due.
    more: bool,
    /// When the next occurrence comes.
    next_at: Option<Timestamp>,
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
        let mut done = 0;
        loop {
            alarm.begin();
            let step = self.run_step().await?;
            done += step.done;
            if step.more {
                continue; // the next occurrence of one that was due may be due as well
            }
            let now = self.queues.now()?;
            let interval = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
            let sleep = step.next_at.map_or(interval, |at| at.ms_since(now)).min(interval);
            alarm.sleep_until(now.plus_ms(sleep).millis());
            return Ok(Run { done, again_in: Some(Duration::from_millis(sleep)) });
        }
    }

    async fn run_step(&self) -> Result<Step> {
        let coming = self.queues.0.store.next_occurrences(STEP).await?;
        let now = self.queues.now()?;
        let next_at = coming.iter().map(|(_, at)| *at).find(|at| *at > now);
        let mut due: Vec<ScheduleName> =
            coming.into_iter().filter(|(_, at)| *at <= now).map(|(name, _)| name).collect();
        due.shuffle(&mut rand::rng()); // servers that run at the same moment begin with different ones
        let runs = due.into_iter().map(|name| async move { self.run_due(&name).await });
        let runs: Vec<Result<Option<u64>>> =
            futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
        // One that fails keeps none of the others from being run.
        let (mut done, mut more) = (0, false);
        for ran in runs {
            let ran = ran?;
            more |= ran.is_some(); // one that cannot be read stays due, and must not be tried again at once
            done += ran.unwrap_or(0);
        }
        Ok(Step { done, more, next_at })
    }

    /// Runs the occurrence of this schedule that is due, unless another server has done so. Returns how many
    /// it ran; `None` if the schedule cannot be read.
    async fn run_due(&self, name: &ScheduleName) -> Result<Option<u64>> {
        let found = match self.queues.0.store.schedule(name).await {
            Err(StoreError::Unreadable(_)) => return Ok(None), // logged where it is read; a PUT mends it
            found => found?,
        };
        let Some(schedule) = found else { return Ok(Some(0)) };
        let Some(turn) = schedule.turn(self.queues.now()?) else { return Ok(Some(0)) };
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
