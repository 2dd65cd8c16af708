//! Batches and their results.

use std::collections::VecDeque;

use anyhow::bail;

use super::{Digest, Hold, PAGE, Progress, with_retries};
use crate::job::{Batch, BatchId, BatchResult, JobId};
use crate::store::Store;

/// Fails if a batch of the target, or one of its results, is not in the source or differs from it.
pub async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let mut after = None;
    while let Some(batches) = page(target, after.as_ref()).await? {
        for there in &batches {
            let original = with_retries(async || source.batch(&there.id).await).await?;
            if original.as_ref() != Some(there) || !has_all(source, target, there).await? {
                bail!(
                    "conflict: the batch {} in the target differs from the source; nothing was written. Start with an \
                     empty target",
                    there.id
                );
            }
        }
        after = batches.last().map(|batch| batch.id.clone());
    }
    Ok(())
}

/// Returns whether the source has every result that the target has of a batch.
async fn has_all(source: &dyn Store, target: &dyn Store, batch: &Batch) -> anyhow::Result<bool> {
    let (mut ours, mut theirs) = (Results::of(source, batch), Results::of(target, batch));
    while let Some(there) = theirs.next().await? {
        loop {
            match ours.next().await? {
                Some(original) if original.id < there.id => {}
                Some(original) if original == there => break,
                _ => return Ok(false),
            }
        }
    }
    Ok(true)
}

/// The results of a batch, one by one, by the ids of their jobs.
struct Results<'a> {
    store: &'a dyn Store,
    batch: &'a Batch,
    page: VecDeque<BatchResult>,
    last: Option<JobId>,
}

impl<'a> Results<'a> {
    fn of(store: &'a dyn Store, batch: &'a Batch) -> Self {
        Self { store, batch, page: VecDeque::new(), last: None }
    }

    async fn next(&mut self) -> anyhow::Result<Option<BatchResult>> {
        if self.page.is_empty() {
            self.page = results(self.store, self.batch, self.last.as_ref()).await?.into();
        }
        let next = self.page.pop_front();
        if let Some(next) = &next {
            self.last = Some(next.id.clone());
        }
        Ok(next)
    }
}

/// Copies every batch with its results. A batch that the target already has is not changed, and must be equal.
pub async fn copy(source: &dyn Store, hold: &Hold, progress: &mut Progress) -> anyhow::Result<()> {
    let target = hold.target();
    let (mut after, mut copied) = (None, 0);
    while let Some(batches) = page(source, after.as_ref()).await? {
        for batch in &batches {
            let mut last: Option<JobId> = None;
            loop {
                let results = results(source, batch, last.as_ref()).await?;
                let import = async || target.import_batch(batch.clone(), results.clone()).await;
                if !hold.with_retries(import).await? {
                    bail!(
                        "conflict: the batch {} in the target differs from the source; it was not changed. Start \
                         with an empty target",
                        batch.id
                    );
                }
                match results.last() {
                    Some(end) => last = Some(end.id.clone()),
                    None => break,
                }
            }
        }
        copied += batches.len() as u64;
        progress.report("copying batches", copied, copied);
        after = batches.last().map(|batch| batch.id.clone());
    }
    Ok(())
}

/// Returns the number of batches of a store and a digest over them and their results.
pub async fn read(store: &dyn Store) -> anyhow::Result<(u64, Digest)> {
    let (mut after, mut count, mut digest) = (None, 0, Digest::default());
    while let Some(batches) = page(store, after.as_ref()).await? {
        for batch in &batches {
            digest.add_batch(batch);
            let mut last: Option<JobId> = None;
            loop {
                let results = results(store, batch, last.as_ref()).await?;
                results.iter().for_each(|result| digest.add_result(batch, result));
                match results.last() {
                    Some(end) => last = Some(end.id.clone()),
                    None => break,
                }
            }
        }
        count += batches.len() as u64;
        after = batches.last().map(|batch| batch.id.clone());
    }
    Ok((count, digest))
}

/// Returns the batches after this one, if there are any.
async fn page(store: &dyn Store, after: Option<&BatchId>) -> anyhow::Result<Option<Vec<Batch>>> {
    let page = with_retries(async || store.export_batches(after, PAGE).await).await?;
    Ok(Some(page).filter(|page| !page.is_empty()))
}

async fn results(
    store: &dyn Store,
    batch: &Batch,
    after: Option<&JobId>,
) -> anyhow::Result<Vec<BatchResult>> {
    with_retries(async || store.batch_results(&batch.id, after, PAGE).await).await
}
