//! Copies the content of one store into another, while no server runs on either.
//!
//! The rule that makes the copy idempotent: **nothing in the target is ever overwritten or removed.** Before the
//! first write, everything in the target must be in the source and equal. That holds for an empty target, and for
//! the target of an interrupted run, which has a mark from the first write on until both stores are compared and equal ([`Hold`]): no server
//! starts on a part of a store. A target without a mark that has jobs, or the secret of the source, is only compared with it. Anything else is a conflict: an error that names the
//! job (or the queue, or the key). If the source was used after an interrupted run, start again with an empty target.
//!
//! Copied are the settings with their versions, the API keys, the keys of jobs, the semaphores, the batches with their results, the jobs
//! with their ids, states, tokens, deadlines, errors, trails and history, and the schedules with their next occurrence
//! and their last runs; the secret of tokens (a target that has its own keeps it, and is refused while a job of the source is reserved);
//! also what lives for a while: receipts, reserves with an `Idempotency-Key` and what other calls with one were
//! answered, so that retries are answered as before, and the deliveries that a `rate` counts. Not copied are the audit, the figures of the past, operations over many
//! jobs (none may be under way), and workers: each is known again after its next heartbeat, and until then keeps its jobs for their leases.
//!
//! History expires, and MongoDB deletes it (an hour later) also during the copy: a job that only one side has and
//! whose `purge_at` has passed is no difference.

mod access;
mod batches;
mod digest;
mod hold;
mod keys;
mod memos;
mod progress;
mod schedules;
mod semaphores;
mod verify;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;

pub use self::digest::Digest;
pub use self::hold::{Hold, interrupted};
pub use self::progress::Progress;
pub use self::verify::{Side, Verdict, verify};
use crate::faults;
use crate::job::settings::dead_letter_circle;
use crate::job::{Job, JobId, QueueName, Timestamp};
use crate::store::transfer::same;
use crate::store::{
    Expected, Imported, Result as StoreResult, Saved, Store, StoreError, StoredSettings, chain,
};

/// The number of jobs or keys in one call.
const PAGE: usize = 500;
/// How long calls to an unavailable store are retried, and the pause between retries.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The pause between two steps of the reconciliation of counts: none, since no server runs.
const BREATH: Duration = Duration::from_millis(50);
/// A job whose `purge_at` is this near counts as purged: the clocks of two stores differ.
const MARGIN_MS: u64 = 1000;

/// What is not copied, as the command says.
pub const NOT_COPIED: &str = "not copied: workers, which are known again after their next heartbeats; the audit, the figures of the past, and \
                              operations: one that was not over must be begun again";

/// Copies the content of `source` into `target` and compares the two. Both must have been migrated. `is_alone`: no other process can have
/// the target open.
///
/// Idempotent: it may be interrupted at any time and run again; see the module's documentation for the rule.
pub async fn copy(
    source: &dyn Store,
    target: &Arc<dyn Store>,
    is_alone: bool,
    progress: &mut Progress,
) -> anyhow::Result<Verdict> {
    let origin = access::origin(source).await?;
    let interrupted = interrupted(&**target, &origin, is_alone).await?;
    check_all(source, &**target, progress).await?;
    if interrupted.is_none() && may_be_complete(source, &**target).await? {
        return compare(source, &**target, progress).await;
    }
    faults::point("copy.checked").await;
    let hold = Hold::claim(target, &origin, interrupted.as_ref()).await?;
    let is_first = interrupted.is_none();
    if let Err(error) = begin(source, &hold, is_first, progress).await {
        if is_first {
            hold.end().await?;
        }
        return Err(error);
    }
    let verdict = tokio::select! {
        verdict = copy_all(source, &hold, progress) => verdict?,
        lost = hold.lost() => return Err(lost),
    };
    progress.end();
    if verdict.is_equal() {
        faults::point("copy.equal").await;
        hold.end().await?;
    }
    Ok(verdict)
}

/// Fails, before anything is written, where one of the stores cannot take part.
async fn check_all(source: &dyn Store, target: &dyn Store, progress: &mut Progress) -> anyhow::Result<()> {
    check_operations(source, "source").await?;
    check_operations(target, "target").await?;
    check(source, target, progress).await?;
    schedules::check(source, target).await?;
    semaphores::check(source, target).await?;
    access::check(source, target).await?;
    check_settings(source, target).await?;
    keys::check(source, target, progress).await?;
    batches::check(source, target).await?;
    memos::check(source, target).await
}

/// Returns whether an earlier copy may have come to its end. Servers may have finished jobs since: where a target without a mark lacks
/// some, they are not copied once more.
async fn may_be_complete(source: &dyn Store, target: &dyn Store) -> anyhow::Result<bool> {
    Ok(access::has_secret_of(source, target).await? || total(target).await? > 0)
}

/// Compares a target that may be complete with its source; nothing is written.
async fn compare(source: &dyn Store, target: &dyn Store, progress: &mut Progress) -> anyhow::Result<Verdict> {
    let verdict = verify(source, target, total(source).await?, progress).await?;
    progress.end();
    if !verdict.is_equal() {
        bail!(
            "{verdict}the target is not empty, and no copy of this source was interrupted there: one of both was used since it was \
             complete; nothing was written. Start with an empty target"
        );
    }
    Ok(verdict)
}

/// Copies the secret. The first run checks the target once more, behind the mark: another copy may have come to its end there meanwhile, or
/// a server have run.
async fn begin(
    source: &dyn Store,
    hold: &Hold,
    is_first: bool,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    if is_first {
        check_all(source, hold.target(), progress).await?;
        if may_be_complete(source, hold.target()).await? {
            bail!("another copy has filled the target meanwhile; nothing was written");
        }
    }
    access::copy_secret(source, hold).await
}

async fn copy_all(source: &dyn Store, hold: &Hold, progress: &mut Progress) -> anyhow::Result<Verdict> {
    let total = total(source).await?;
    copy_settings(source, hold).await?;
    access::copy(source, hold).await?;
    keys::copy(source, hold, progress).await?;
    semaphores::copy(source, hold).await?;
    batches::copy(source, hold, progress).await?;
    copy_jobs(source, hold, total, progress).await?;
    memos::copy(source, hold, progress).await?;
    schedules::copy(source, hold).await?;
    let verdict = verify(source, hold.target(), total, progress).await?;
    settle_counts(hold.target()).await?;
    Ok(verdict)
}

/// Makes the target reconcile its counts with its jobs, so that they are right from the first response on: an
/// earlier run may have been interrupted before it counted what it stored.
pub(crate) async fn settle_counts(target: &dyn Store) -> anyhow::Result<()> {
    let start = Instant::now();
    while start.elapsed() < RETRY_TIMEOUT {
        if with_retries(async || target.reconcile().await).await?.is_settled {
            break;
        }
        tokio::time::sleep(BREATH).await;
    }
    Ok(())
}

/// Fails if an operation over many jobs is not over: it would end in the middle.
async fn check_operations(store: &dyn Store, side: &str) -> anyhow::Result<()> {
    match with_retries(async || store.open_operations(None, 1).await).await?.first() {
        Some(open) => bail!(
            "the {side} has an operation that is not over, {id}, and operations are not copied; nothing was written. Start a server \
             on it and wait for the operation, or end it with DELETE /v1/operations/{id}",
            id = open.id
        ),
        None => Ok(()),
    }
}

async fn total(store: &dyn Store) -> anyhow::Result<u64> {
    let c = with_retries(async || store.summary(0).await).await?.total.counts;
    Ok(c.ready + c.scheduled + c.reserved + c.blocked + c.dead + c.done)
}

/// Fails if a job of the target is not in the source or differs from it.
async fn check(source: &dyn Store, target: &dyn Store, progress: &mut Progress) -> anyhow::Result<()> {
    let total = total(target).await?;
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = with_retries(async || target.export(after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let ids: Vec<JobId> = page.iter().map(|job| job.meta.id.clone()).collect();
        let originals = with_retries(async || source.get(&ids).await).await?;
        for (there, original) in page.iter().zip(&originals) {
            match original {
                Some(Err(spoiled)) => {
                    bail!("the job {} of the source cannot be read: {}", spoiled.id, spoiled.why)
                }
                Some(Ok(original)) if same(there, original) => {}
                Some(Ok(original)) => bail!(conflict_message(original, there)),
                None if may_be_purged(there, now(source, target)?) => {}
                None => bail!(
                    "the target holds the job {} (queue {}), which the source does not; nothing was written. \
                     Start with an empty target",
                    there.meta.id,
                    there.meta.queue
                ),
            }
        }
        seen += page.len() as u64;
        progress.report("checking the target", seen, total);
        after = Some(last.meta.id.clone());
    }
}

/// Returns the error for a job that differs between the stores.
fn conflict_message(original: &Job, there: &Job) -> String {
    format!(
        "conflict: the job {} (queue {}) in the target differs from the source in {}. It was not changed. \
         Start with an empty target; if an earlier run was interrupted, one of the stores was used since",
        there.meta.id,
        there.meta.queue,
        digest::differences(original, there).join(", ")
    )
}

async fn all_settings(store: &dyn Store) -> anyhow::Result<HashMap<QueueName, StoredSettings>> {
    let snapshot = with_retries(async || store.settings(None).await).await?.unwrap_or_default();
    if let Some((queue, why)) = snapshot.unreadable.iter().next() {
        bail!(
            "the settings of the queue {queue} cannot be read ({why}); replace them with PUT /v1/queues/{queue}"
        );
    }
    Ok(snapshot.queues)
}

/// Fails if the target has settings that the source has not.
async fn check_settings(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, there) = (all_settings(source).await?, all_settings(target).await?);
    let dead_letter_of = |queue: &QueueName| wanted.get(queue)?.settings.dead_letter.clone();
    for queue in wanted.keys() {
        let Some(dead_letter) = dead_letter_of(queue) else { continue };
        let next = |queue: &QueueName| anyhow::Ok(dead_letter_of(queue));
        if let Some(circle) = dead_letter_circle(queue, &dead_letter, next)? {
            let circle: Vec<&str> = circle.iter().map(QueueName::as_str).collect();
            bail!(
                "the dead-letter queues of the source make a circle, {}, which an older version let arise; nothing was \
                 written. Change the dead_letter of one of them with a server on the source",
                circle.join(" → ")
            );
        }
    }
    match there.iter().find(|(queue, settings)| wanted.get(queue) != Some(settings)) {
        Some((queue, _)) => bail!(
            "conflict: the settings of the queue {queue} in the target differ from the source; nothing was written. \
             Start with an empty target"
        ),
        None => Ok(()),
    }
}

async fn copy_settings(source: &dyn Store, hold: &Hold) -> anyhow::Result<()> {
    let target = hold.target();
    let (wanted, mut there) = (all_settings(source).await?, all_settings(target).await?);
    for (queue, settings) in &wanted {
        if there.remove(queue).is_some() {
            continue;
        }
        let save = async || target.save_settings(queue, Some(settings), &Expected::Absent).await;
        // A retried save conflicts with its own first attempt if that took effect.
        if hold.with_retries(save).await? == Saved::Conflict
            && all_settings(target).await?.get(queue) != Some(settings)
        {
            bail!(
                "conflict: the queue {queue} of the target was changed during the copy: is a server running?"
            );
        }
    }
    Ok(())
}

async fn copy_jobs(
    source: &dyn Store,
    hold: &Hold,
    total: u64,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let target = hold.target();
    let mut page = with_retries(async || source.export(None, PAGE).await).await?;
    let mut copied = 0;
    while let Some(last) = page.last() {
        // Reads the next page while this one is written.
        let (imported, next) = tokio::join!(
            hold.with_retries(async || all_or_error(target.import(page.clone()).await)),
            with_retries(async || source.export(Some(&last.meta.id), PAGE).await),
        );
        let imported = imported.map_err(|error| {
            let first = page.first().map_or("", |job| job.meta.id.as_str());
            error.context(format!("the jobs from {first} to {} cannot be stored", last.meta.id))
        })?;
        let other = page.iter().zip(imported).find(|(_, imported)| *imported == Imported::Different);
        if let Some((job, _)) = other {
            let there = with_retries(async || target.get(std::slice::from_ref(&job.meta.id)).await).await?;
            let there = there.into_iter().flatten().flatten().next();
            bail!(conflict_message(job, there.as_ref().unwrap_or(job)));
        }
        copied += page.len() as u64;
        progress.report("copying jobs", copied, total);
        faults::point("copy.page").await;
        page = next?;
    }
    Ok(())
}

/// Returns all results, or the first error: the whole call is then retried, which is idempotent.
pub(crate) fn all_or_error<T>(results: Vec<StoreResult<T>>) -> StoreResult<Vec<T>> {
    results.into_iter().collect()
}

/// Retries an operation while the store is unavailable, for up to a minute. Every operation that is used here is
/// idempotent.
pub(crate) async fn with_retries<T>(mut operation: impl AsyncFnMut() -> StoreResult<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match operation().await {
            Ok(result) => return Ok(result),
            Err(StoreError::Unavailable(_)) if start.elapsed() < RETRY_TIMEOUT => {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Err(error) => bail!("{}", chain(&error)),
        }
    }
}

/// Returns the later of the two stores' times.
fn now(source: &dyn Store, target: &dyn Store) -> anyhow::Result<Timestamp> {
    Ok(source.now()?.max(target.now()?))
}

/// Returns whether a store may have purged this job.
fn may_be_purged(job: &Job, now: Timestamp) -> bool {
    job.meta.purge_at.is_some_and(|purge_at| purge_at <= now.plus_ms(MARGIN_MS))
}
