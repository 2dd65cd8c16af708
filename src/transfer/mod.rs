//! Copies everything that one store holds into another, while no server runs on either.
//!
//! The rule that makes a repeat safe: **nothing in the target is ever overwritten or removed.** Before the
//! first write, everything in the target must be in the source and equal: so is an empty target, one that
//! an interrupted run has left, and one that is complete. Anything else is an error that names the job (or
//! the queue, or the key). If the source was used again after an interrupted run, the remedy is to start
//! with an empty target.
//!
//! Copied are the settings with their versions, the keys, the semaphores, the batches with their results, the jobs with their ids,
//! states, tokens, deadlines, errors, trails and history, and the schedules with their next occurrence and their
//! last runs. Not copied are receipts and requests, which live for minutes and
//! only answer repeats: the repeat of a `move` that was answered before the copy is told `reservation-lost`,
//! and the repeat of a reserve with an `Idempotency-Key` reserves anew. Nor are workers: each shows up with its next
//! heartbeat, and until then keeps its jobs for their leases.
//!
//! History is forgotten when its time comes, by MongoDB (an hour later) also while it is copied: a job that only one side
//! has and whose `purge_at` has passed is no difference.

mod batches;
mod digest;
mod progress;
mod schedules;
mod semaphores;
mod verify;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::bail;

pub use self::digest::Digest;
pub use self::progress::Progress;
pub use self::verify::{Side, Verdict, verify};
use crate::job::{Job, JobId, QueueName, Timestamp};
use crate::store::transfer::same;
use crate::store::{
    Expected, HeldKey, Imported, Result as StoreResult, Saved, Store, StoreError, StoredSettings, chain,
};

/// How many jobs or keys travel together.
const PAGE: usize = 500;
/// How long a store that cannot be reached is tried again, and how often.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);
/// Between two steps of comparing figures, which nobody has to be spared for.
const BREATH: Duration = Duration::from_millis(50);
/// A job whose end of keeping is this near counts as forgotten: the clocks of two stores are not one.
const MARGIN_MS: u64 = 1000;

/// Copies all that `source` holds into `target` and compares the two. Both have been migrated.
///
/// It may be ended at any moment and run again; see the module's documentation for the rule.
pub async fn copy(
    source: &dyn Store,
    target: &dyn Store,
    progress: &mut Progress,
) -> anyhow::Result<Verdict> {
    let total = total(source).await?;
    check(source, target, progress).await?;
    schedules::check(source, target).await?;
    semaphores::check(source, target).await?;
    copy_settings(source, target).await?;
    copy_keys(source, target, progress).await?;
    semaphores::copy(source, target).await?;
    batches::copy(source, target, progress).await?;
    copy_jobs(source, target, total, progress).await?;
    schedules::copy(source, target).await?;
    let verdict = verify(source, target, total, progress).await?;
    settle_counts(target).await?;
    progress.end();
    Ok(verdict)
}

/// Has the target compare its figures with what is there, so that they are right from the first answer on:
/// an earlier run may have been interrupted before it had counted what it stored.
async fn settle_counts(target: &dyn Store) -> anyhow::Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if patiently(async || target.reconcile().await).await?.is_settled {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

async fn total(store: &dyn Store) -> anyhow::Result<u64> {
    let figures = patiently(async || store.counts().await).await?;
    let counts = figures.values().map(|figures| figures.counts);
    Ok(counts.map(|c| c.ready + c.scheduled + c.reserved + c.blocked + c.dead + c.done).sum())
}

/// Makes sure that all jobs of the target are the source's.
async fn check(source: &dyn Store, target: &dyn Store, progress: &mut Progress) -> anyhow::Result<()> {
    let total = total(target).await?;
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = patiently(async || target.export(after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let ids: Vec<JobId> = page.iter().map(|job| job.meta.id.clone()).collect();
        let originals = patiently(async || source.get(&ids).await).await?;
        for (there, original) in page.iter().zip(&originals) {
            match original {
                Some(original) if same(there, original) => {}
                Some(original) => bail!(unlike(original, there)),
                None if forgotten(there, now(source, target)?) => {}
                None => bail!(
                    "the target holds the job {} (queue {}), which the source has not; nothing was written. \
                     Start with an empty target",
                    there.meta.id,
                    there.meta.queue
                ),
            }
        }
        seen += page.len() as u64;
        progress.report("looking at what the target holds", seen, total);
        after = Some(last.meta.id.clone());
    }
}

/// What to say of a job that the target has otherwise.
fn unlike(original: &Job, there: &Job) -> String {
    format!(
        "the target holds the job {} (queue {}) otherwise than the source: they differ in {}. It was left as it \
         is. Start with an empty target; if an earlier run was interrupted, one of the stores was used since",
        there.meta.id,
        there.meta.queue,
        digest::differences(original, there).join(", ")
    )
}

async fn all_settings(store: &dyn Store) -> anyhow::Result<HashMap<QueueName, StoredSettings>> {
    let snapshot = patiently(async || store.settings(None).await).await?;
    Ok(snapshot.map(|snapshot| snapshot.queues).unwrap_or_default())
}

async fn copy_settings(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, mut there) = (all_settings(source).await?, all_settings(target).await?);
    let foreign = there.iter().find(|(queue, settings)| wanted.get(queue) != Some(settings));
    if let Some((queue, _)) = foreign {
        bail!(
            "the target has other settings of the queue {queue} than the source; no setting was changed. \
             Start with an empty target"
        );
    }
    for (queue, settings) in &wanted {
        if there.remove(queue).is_some() {
            continue;
        }
        let save = async || target.save_settings(queue, Some(settings), &Expected::Absent).await;
        // The first try of a save that is repeated may have been carried out: then it is there, and ours.
        if patiently(save).await? == Saved::Conflict
            && all_settings(target).await?.get(queue) != Some(settings)
        {
            bail!(
                "somebody else has set the queue {queue} of the target in this moment: is a server running?"
            );
        }
    }
    Ok(())
}

async fn copy_keys(source: &dyn Store, target: &dyn Store, progress: &mut Progress) -> anyhow::Result<()> {
    let (mut after, mut copied): (Option<HeldKey>, u64) = (None, 0);
    loop {
        let page = patiently(async || source.export_keys(after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let imported = patiently(async || whole(target.import_keys(page.clone()).await)).await?;
        let other = page.iter().zip(imported).find(|(_, imported)| *imported == Imported::Different);
        if let Some((key, _)) = other {
            bail!(
                "the key {:?} of the queue {} stands for another job in the target than in the source; it was \
                 left as it is. Start with an empty target",
                key.key.as_str(),
                key.queue
            );
        }
        copied += page.len() as u64;
        progress.report("copying keys", copied, copied);
        after = Some(last.clone());
    }
}

async fn copy_jobs(
    source: &dyn Store,
    target: &dyn Store,
    total: u64,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let mut page = patiently(async || source.export(None, PAGE).await).await?;
    let mut copied = 0;
    while let Some(last) = page.last() {
        // The next page is read while this one is written.
        let (imported, next) = tokio::join!(
            patiently(async || whole(target.import(page.clone()).await)),
            patiently(async || source.export(Some(&last.meta.id), PAGE).await),
        );
        let imported = imported.map_err(|error| {
            let first = page.first().map_or("", |job| job.meta.id.as_str());
            error.context(format!("the jobs from {first} to {} cannot be stored", last.meta.id))
        })?;
        let other = page.iter().zip(imported).find(|(_, imported)| *imported == Imported::Different);
        if let Some((job, _)) = other {
            let there = patiently(async || target.get(std::slice::from_ref(&job.meta.id)).await).await?;
            let there = there.into_iter().flatten().next();
            bail!(unlike(job, there.as_ref().unwrap_or(job)));
        }
        copied += page.len() as u64;
        progress.report("copying jobs", copied, total);
        page = next?;
    }
    Ok(())
}

/// The answers of all elements, or the first error: the call is then repeated whole, which does no harm.
fn whole<T>(answers: Vec<StoreResult<T>>) -> StoreResult<Vec<T>> {
    answers.into_iter().collect()
}

/// Repeats a verb for as long as the store cannot be reached, up to a minute. Every verb that is used here
/// may be repeated.
async fn patiently<T>(mut verb: impl AsyncFnMut() -> StoreResult<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match verb().await {
            Ok(answer) => return Ok(answer),
            Err(StoreError::Unavailable(_)) if start.elapsed() < PATIENCE => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => bail!("{}", chain(&error)),
        }
    }
}

/// The later one of the two stores' clocks.
fn now(source: &dyn Store, target: &dyn Store) -> anyhow::Result<Timestamp> {
    Ok(source.now()?.max(target.now()?))
}

/// Whether a store may have forgotten this job by now.
fn forgotten(job: &Job, now: Timestamp) -> bool {
    job.meta.purge_at.is_some_and(|purge_at| purge_at <= now.plus_ms(MARGIN_MS))
}
