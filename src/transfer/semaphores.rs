//! Semaphores. There are few, so each store's are read at once. Their holders are derived from the jobs.

use std::collections::BTreeMap;

use anyhow::bail;

use super::verify::Verdict;
use super::{Hold, PAGE, with_retries};
use crate::job::SemaphoreName;
use crate::store::Store;

type All = BTreeMap<SemaphoreName, u64>;

async fn all(store: &dyn Store) -> anyhow::Result<All> {
    let mut all = All::new();
    loop {
        let after = all.last_key_value().map(|(name, _)| name.clone());
        let page = with_retries(async || store.capacities(after.as_ref(), PAGE).await).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// Fails if a semaphore of the target is not in the source or differs from it.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, there) = (all(source).await?, all(target).await?);
    match there.iter().find(|(name, capacity)| wanted.get(name) != Some(capacity)) {
        Some((name, _)) => bail!(
            "conflict: the semaphore {name} in the target differs from the source; nothing was written. Start with \
             an empty target"
        ),
        None => Ok(()),
    }
}

/// Copies the semaphores, before the jobs that need them.
pub(super) async fn copy(source: &dyn Store, hold: &Hold) -> anyhow::Result<()> {
    let target = hold.target();
    let there = all(target).await?;
    for (name, capacity) in all(source).await? {
        if !there.contains_key(&name) {
            hold.with_retries(async || target.save_semaphore(&name, capacity).await).await?;
        }
    }
    Ok(())
}

/// Compares the semaphores of both stores.
pub(super) async fn compare(
    source: &dyn Store,
    target: &dyn Store,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let (ours, theirs) = (all(source).await?, all(target).await?);
    (verdict.source.semaphores, verdict.target.semaphores) = (ours.len(), theirs.len());
    let names: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        if ours.get(name) != theirs.get(name) {
            verdict.differ(|| format!("the semaphore {name} differs"));
        }
    }
    Ok(())
}
