//! What follows from jobs that a backup lacks: their batches would wait for them for ever.

use std::sync::Arc;

use crate::job::settings::Defaults;
use crate::job::{BatchId, JobId, Rules};
use crate::store::{BatchDenied, StoreError};
use crate::transfer::Hold;

/// The most batches or jobs of one call.
const PAGE: usize = 500;

/// Counts the jobs that batches wait for, and that are not there or dead, as dead. It comes last, behind the comparison with the backup: a
/// restore that is interrupted in it finds batches that differ.
pub async fn count_lost(hold: &Hold, defaults: Arc<Defaults>) -> anyhow::Result<()> {
    let target = hold.target();
    let settings = hold.with_retries(async || target.settings(None).await).await?.unwrap_or_default();
    let queues = settings.queues.into_iter().map(|(queue, stored)| (queue, stored.settings));
    let rules = Rules::new(defaults, queues.collect());
    let mut after: Option<BatchId> = None;
    loop {
        let page = hold.with_retries(async || target.export_batches(after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.id.clone());
        for batch in page.iter().filter(|batch| batch.pending > 0) {
            count_lost_of(&batch.id, hold, &rules).await?;
        }
    }
}

async fn count_lost_of(batch: &BatchId, hold: &Hold, rules: &Rules) -> anyhow::Result<()> {
    let (target, unfinished) = (hold.target(), unfinished(batch, hold).await?);
    // Read again in each attempt: one before may have been stored.
    let count = async || {
        let pending = target.batch(batch).await?.map_or(0, |batch| batch.pending);
        let lost = pending.saturating_sub(unfinished);
        if lost == 0 {
            return Ok(());
        }
        tracing::warn!(%batch, lost, "a batch waits for jobs that the backup lacks: they count as dead");
        match target.count_lost(batch, lost, rules).await {
            Ok(_) => Ok(()),
            Err(BatchDenied::Store(error)) => Err(error),
            Err(denied) => Err(StoreError::internal(denied)),
        }
    };
    hold.with_retries(count).await
}

/// Returns how many jobs of a batch have not ended.
async fn unfinished(batch: &BatchId, hold: &Hold) -> anyhow::Result<u64> {
    let target = hold.target();
    let (mut after, mut count): (Option<JobId>, u64) = Default::default();
    loop {
        let read = async || target.unfinished_in_batch(batch, after.as_ref(), PAGE).await;
        let page = hold.with_retries(read).await?;
        count += page.len() as u64;
        match page.into_iter().next_back() {
            Some(last) => after = Some(last),
            None => return Ok(count),
        }
    }
}
