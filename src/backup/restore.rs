//! Writes a backup into a store.

use std::collections::HashMap;
use std::io::Read;

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::read::Backup;
use crate::job::{ApiKey, Batch, BatchId, BatchResult, Bulk, Job, QueueName, Schedule, SemaphoreName};
use crate::store::picture::Item;
use crate::store::{
    AuditRow, Expected, HeldKey, Imported, Memo, PAGE_BYTES, Saved, SettingsChange, StoredSettings,
    TokenSecret, Weight as _,
};
use crate::transfer::{Hold, Progress, all_or_error};

/// The most things of one call.
const PAGE: usize = 500;
/// How many calls are under way at once that are for one thing each.
const AT_ONCE: usize = 16;

/// What can be done where the backup proves to be no good while it is restored.
const GOES_ON: &str = "What was restored until then stays: run this again with a complete copy of the same backup, or start again with \
                       an empty store";

/// Restores all of a backup. What is there already, of an earlier run, must be equal.
pub async fn restore<R: Read>(
    backup: &mut Backup<R>,
    hold: &Hold,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let mut there = There::default();
    let (mut page, mut bytes, mut done) = (Vec::new(), 0, 0);
    loop {
        let next = backup.next_item().map_err(|error| anyhow::anyhow!("{error:#}. {GOES_ON}"))?;
        let is_of_page = |next: &Item| page.first().is_none_or(|first: &Item| first.kind() == next.kind());
        let is_full = page.len() >= PAGE || bytes >= PAGE_BYTES;
        if is_full || !next.as_ref().is_some_and(is_of_page) {
            done += page.len() as u64;
            write(std::mem::take(&mut page), hold, &mut there).await?;
            bytes = 0;
            progress.report("restoring", done, done);
        }
        let Some(item) = next else { return Ok(()) };
        bytes += item.weight();
        page.push(item);
    }
}

/// What the target has of that which is few, read when it is first needed.
#[derive(Default)]
struct There {
    api_keys: Option<Vec<ApiKey>>,
    semaphores: Option<HashMap<SemaphoreName, u64>>,
}

/// The things of a page, which are of one kind.
#[derive(Default)]
struct Page {
    secret: Option<TokenSecret>,
    settings: Vec<(QueueName, StoredSettings)>,
    api_keys: Vec<ApiKey>,
    keys: Vec<HeldKey>,
    semaphores: Vec<(SemaphoreName, u64)>,
    batches: Vec<Batch>,
    results: Vec<(BatchId, BatchResult)>,
    jobs: Vec<Job>,
    memos: Vec<Memo>,
    operations: Vec<Bulk>,
    audit: Vec<AuditRow>,
    schedules: Vec<Schedule>,
}

/// Writes things of one kind.
async fn write(items: Vec<Item>, hold: &Hold, there: &mut There) -> anyhow::Result<()> {
    let titles: Vec<String> = items.iter().map(Item::title).collect();
    let mut page = Page::default();
    for item in items {
        match item {
            Item::TokenSecret(secret) => page.secret = Some(secret),
            Item::Settings(queue, stored) => page.settings.push((queue, stored)),
            Item::ApiKey(key) => page.api_keys.push(key),
            Item::Key(key) => page.keys.push(key),
            Item::Semaphore(name, capacity) => page.semaphores.push((name, capacity)),
            Item::Batch(batch) => page.batches.push(batch),
            Item::BatchResult(batch, result) => page.results.push((batch, result)),
            Item::Job(job) => page.jobs.push(*job),
            Item::Memo(memo) => page.memos.push(memo),
            Item::Operation(operation) => page.operations.push(*operation),
            Item::Audit(row) => page.audit.push(*row),
            Item::Schedule(schedule) => page.schedules.push(*schedule),
        }
    }
    secret(page.secret, hold).await?;
    settings(&page.settings, hold).await?;
    api_keys(page.api_keys, hold, there).await?;
    semaphores(page.semaphores, hold, there).await?;
    batches(page.batches, Vec::new(), hold).await?;
    results(page.results, hold).await?;
    operations(page.operations, hold).await?;
    schedules(page.schedules, hold).await?;
    let imported = if !page.keys.is_empty() {
        hold.with_retries(async || all_or_error(hold.target().import_keys(page.keys.clone()).await)).await
    } else if !page.jobs.is_empty() {
        hold.with_retries(async || all_or_error(hold.target().import(page.jobs.clone()).await)).await
    } else if !page.audit.is_empty() {
        hold.with_retries(async || all_or_error(hold.target().import_audit(page.audit.clone()).await)).await
    } else {
        hold.with_retries(async || all_or_error(hold.target().import_memos(page.memos.clone()).await)).await
    };
    let first = || titles.first().cloned().unwrap_or_default();
    let imported = imported.with_context(|| format!("{} and those behind it cannot be stored", first()))?;
    match titles.iter().zip(imported).find(|(_, imported)| *imported == Imported::Different) {
        Some((title, _)) => Err(conflict(title)),
        None => Ok(()),
    }
}

/// Returns the error of something that is another one in the target.
fn conflict(title: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "conflict: {title} of the store differs from that of the backup; it was not changed. Start again with an empty store; no \
         server may run on it until the restore has ended"
    )
}

async fn secret(secret: Option<TokenSecret>, hold: &Hold) -> anyhow::Result<()> {
    let Some(secret) = secret else { return Ok(()) };
    if hold.with_retries(async || hold.target().token_secret(secret).await).await? != secret {
        return Err(conflict("the token_secret"));
    }
    Ok(())
}

async fn settings(all: &[(QueueName, StoredSettings)], hold: &Hold) -> anyhow::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let change = |(queue, to): &(QueueName, StoredSettings)| SettingsChange {
        queue: queue.clone(),
        to: Some(to.clone()),
        expected: Expected::Absent,
        rows: Vec::new(),
    };
    let changes: Vec<SettingsChange> = all.iter().map(change).collect();
    let saved = hold.with_retries(async || hold.target().save_all_settings(&changes).await).await?;
    if saved.iter().all(|saved| *saved == Saved::Done) {
        return Ok(());
    }
    // Of an earlier run, or of the first try of one that was repeated.
    let there = hold.with_retries(async || hold.target().settings(None).await).await?.unwrap_or_default();
    for (queue, stored) in all {
        if there.unreadable.contains_key(queue) || there.queues.get(queue) != Some(stored) {
            return Err(conflict(&Item::Settings(queue.clone(), stored.clone()).title()));
        }
    }
    Ok(())
}

async fn api_keys(all: Vec<ApiKey>, hold: &Hold, there: &mut There) -> anyhow::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    if there.api_keys.is_none() {
        there.api_keys = Some(hold.with_retries(async || hold.target().api_keys().await).await?.keys);
    }
    for key in all {
        match there.api_keys.iter().flatten().find(|there| there.id == key.id) {
            Some(there) if *there == key => {}
            Some(_) => return Err(conflict(&Item::ApiKey(key).title())),
            None => hold.with_retries(async || hold.target().add_api_key(&key).await).await?,
        }
    }
    Ok(())
}

async fn semaphores(all: Vec<(SemaphoreName, u64)>, hold: &Hold, there: &mut There) -> anyhow::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    if there.semaphores.is_none() {
        let mut known: Vec<(SemaphoreName, u64)> = Vec::new();
        loop {
            let after = known.last().map(|(name, _)| name.clone());
            let page =
                hold.with_retries(async || hold.target().capacities(after.as_ref(), PAGE).await).await?;
            if page.is_empty() {
                break;
            }
            known.extend(page);
        }
        there.semaphores = Some(known.into_iter().collect());
    }
    for (name, capacity) in all {
        match there.semaphores.iter().find_map(|there| there.get(&name)) {
            Some(there) if *there == capacity => {}
            Some(_) => return Err(conflict(&Item::Semaphore(name, capacity).title())),
            None => hold.with_retries(async || hold.target().save_semaphore(&name, capacity).await).await?,
        }
    }
    Ok(())
}

async fn batches(all: Vec<Batch>, results: Vec<BatchResult>, hold: &Hold) -> anyhow::Result<()> {
    let results = &results;
    let writes = all.into_iter().map(|batch| async move {
        let import = async || hold.target().import_batch(batch.clone(), results.clone()).await;
        match hold.with_retries(import).await? {
            true => Ok(()),
            false => Err(conflict(&Item::Batch(batch).title())),
        }
    });
    stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await
}

/// Restores results: those of one batch together, behind their batch.
async fn results(all: Vec<(BatchId, BatchResult)>, hold: &Hold) -> anyhow::Result<()> {
    let mut of_batches: Vec<(BatchId, Vec<BatchResult>)> = Vec::new();
    for (batch, result) in all {
        match of_batches.last_mut() {
            Some((last, results)) if *last == batch => results.push(result),
            _ => of_batches.push((batch, vec![result])),
        }
    }
    let writes = of_batches.into_iter().map(|(id, results)| async move {
        let Some(batch) = hold.with_retries(async || hold.target().batch(&id).await).await? else {
            bail!("the backup has results of the batch {id}, which it does not have");
        };
        batches(vec![batch], results, hold).await
    });
    stream::iter(writes).buffer_unordered(AT_ONCE).try_collect().await
}

/// Restores operations. One that was under way goes on behind the step that the backup shows, whose jobs are as it has left them.
async fn operations(all: Vec<Bulk>, hold: &Hold) -> anyhow::Result<()> {
    for operation in all {
        if hold.with_retries(async || hold.target().add_operation(&operation, None, None).await).await? {
            continue;
        }
        // Of an earlier run, or of the first try of one that was repeated.
        let there = hold.with_retries(async || hold.target().operation(&operation.id).await).await?;
        if there.as_ref() != Some(&operation) {
            return Err(conflict(&Item::Operation(Box::new(operation)).title()));
        }
    }
    Ok(())
}

async fn schedules(all: Vec<Schedule>, hold: &Hold) -> anyhow::Result<()> {
    for schedule in all {
        let save = async || hold.target().save_schedule(&schedule.name, Some(&schedule), None).await;
        if hold.with_retries(save).await? != Saved::Conflict {
            continue;
        }
        // Of an earlier run, or of the first try of one that was repeated.
        let there = hold.with_retries(async || hold.target().schedule(&schedule.name).await).await?;
        if !there.is_some_and(|there| there.same(&schedule)) {
            return Err(conflict(&Item::Schedule(Box::new(schedule)).title()));
        }
    }
    Ok(())
}
