//! The keys of jobs.

use anyhow::bail;

use super::{Hold, PAGE, Progress, all_or_error, with_retries};
use crate::store::{HeldKey, Imported, Store};

/// Fails if a key of the target is not in the source or differs from it.
pub(super) async fn check(
    source: &dyn Store,
    target: &dyn Store,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let (mut after, mut seen): (Option<HeldKey>, u64) = (None, 0);
    loop {
        let page = with_retries(async || target.export_keys(after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let originals = with_retries(async || source.keys_like(&page).await).await?;
        let other = page.iter().zip(&originals).find(|(there, original)| original.as_ref() != Some(there));
        if let Some((key, _)) = other {
            bail!(
                "conflict: the key {:?} of the queue {} in the target differs from the source; nothing was written. \
                 Start with an empty target",
                key.key.as_str(),
                key.queue
            );
        }
        seen += page.len() as u64;
        progress.report("checking the keys of the target", seen, seen);
        after = Some(last.clone());
    }
}

/// Copies the keys, whether or not their jobs are still there.
pub(super) async fn copy(source: &dyn Store, hold: &Hold, progress: &mut Progress) -> anyhow::Result<()> {
    let target = hold.target();
    let (mut after, mut copied): (Option<HeldKey>, u64) = (None, 0);
    loop {
        let page = with_retries(async || source.export_keys(after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        let imported =
            hold.with_retries(async || all_or_error(target.import_keys(page.clone()).await)).await?;
        let other = page.iter().zip(imported).find(|(_, imported)| *imported == Imported::Different);
        if let Some((key, _)) = other {
            bail!(
                "conflict: the key {:?} of the queue {} belongs to another job in the target than in the source; it \
                 was not changed. Start with an empty target",
                key.key.as_str(),
                key.queue
            );
        }
        copied += page.len() as u64;
        progress.report("copying keys", copied, copied);
        after = Some(last.clone());
    }
}
