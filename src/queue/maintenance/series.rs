//! The past: each server writes what happened on it at the end of each step, and reads what happened on the others; any of them makes
//! longer steps of what is old.

use std::sync::Arc;
use std::time::Duration;

use super::{Maintenance, Run};
use crate::job::Timestamp;
use crate::queue::{Queues, Result};
use crate::store::{Span, chain};

/// When the step is written that has ended, in milliseconds: servers do so one after the other, as it happens.
const WRITTEN_AFTER_MS: std::ops::Range<u64> = 100..700;
/// When it is read what the others have written of it.
const READ_AFTER_MS: u64 = 1500;
/// How many records one run folds, and how long to rest where there are more.
const FOLD_STEP: usize = 1000;
const FOLD_REST: Duration = Duration::from_millis(200);

/// How long it is until so many milliseconds after the end of the step under way.
fn until_after(now: Timestamp, ms: u64) -> Duration {
    let end = Span::Step.start(now).plus_ms(Span::Step.ms().unsigned_abs() + ms);
    Duration::from_millis(end.ms_since(now))
}

impl Maintenance {
    /// Writes what happened on this server in the step that has ended, and how many jobs there are. Counts the records.
    pub async fn write_series(self: Arc<Self>) -> Result<Run> {
        let done = self.queues.write_series(self.has_peers(), false).await?;
        let after = rand::random_range(WRITTEN_AFTER_MS);
        Ok(Run { done, again_in: Some(until_after(self.queues.now()?, after)) })
    }

    /// Reads what happened on other servers. Counts their steps.
    pub async fn read_series_of_others(self: Arc<Self>) -> Result<Run> {
        let now = self.queues.now()?;
        let done = self.queues.read_steps_of_others(now).await?;
        Ok(Run { done, again_in: Some(until_after(now, READ_AFTER_MS)) })
    }

    /// Makes longer steps of what is old, and deletes what is too old. Counts the records.
    pub async fn fold_series(self: Arc<Self>) -> Result<Run> {
        let done = self.queues.0.store.fold_series(FOLD_STEP).await?;
        Ok(Run { done, again_in: (done > 0).then_some(FOLD_REST) })
    }
}

impl Queues {
    /// Writes what is not written yet, and returns how many records that are. `is_last`: the server stops.
    pub async fn write_series(&self, tells: bool, is_last: bool) -> Result<u64> {
        let _writing = self.0.series_writing.lock().await;
        let (now, ledger) = (self.now()?, &self.0.ledger);
        self.note_history(now);
        let moved = self.meter().has_unwritten() || self.0.others.take_news();
        let depths = if is_last { Ok(Vec::new()) } else { self.changed_depths(now, moved).await };
        let depths = depths.unwrap_or_else(|error| {
            // What happened is taken over all the same, so that its time is known when the store is there again.
            tracing::debug!(error = chain(&error), "cannot count jobs; retrying with the next step");
            Vec::new()
        });
        ledger.take_over(self.meter(), now, depths, tells, is_last);
        let mut done = 0;
        loop {
            let (next, given_up) = ledger.next(now);
            if given_up > 0 {
                self.0.said.forget();
                tracing::warn!(
                    steps = given_up,
                    "figures of the past could not be written for half an hour, and are lost"
                );
            }
            let Some(next) = next else { return Ok(done) };
            self.0.store.write_series(&next).await?;
            ledger.written(&next);
            done += next.rows.len() as u64;
        }
    }

    /// Reads what other servers did since it was read last, and what was late by then. Returns how many steps it found.
    async fn read_steps_of_others(&self, now: Timestamp) -> Result<u64> {
        let (from, is_broken) = self.0.history.heard(now);
        let told = self.0.store.steps_of_others(&self.0.ledger.server, from).await?;
        let found = told.len() as u64;
        self.0.history.note_heard(from, now, is_broken);
        self.0.others.note(told, now, &self.0.history);
        Ok(found)
    }
}
