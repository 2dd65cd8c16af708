//! Semaphores: few, so that each side is read whole. Who holds them is said by the jobs.

use std::collections::BTreeMap;

use anyhow::bail;

use super::verify::Verdict;
use super::{PAGE, patiently};
use crate::job::SemaphoreName;
use crate::store::Store;

type All = BTreeMap<SemaphoreName, u64>;

async fn all(store: &dyn Store) -> anyhow::Result<All> {
    let mut all = All::new();
    loop {
        let after = all.last_key_value().map(|(name, _)| name.clone());
        let page = patiently(async || store.capacities(after.as_ref(), PAGE).await).await?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

/// Makes sure that all semaphores of the target are the source's.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, there) = (all(source).await?, all(target).await?);
    match there.iter().find(|(name, capacity)| wanted.get(name) != Some(capacity)) {
        Some((name, _)) => bail!(
            "the target holds another semaphore {name} than the source; nothing was written. Start with an empty \
             target"
        ),
        None => Ok(()),
    }
}

/// Copies the semaphores. Before the jobs that need them.
pub(super) async fn copy(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let there = all(target).await?;
    for (name, capacity) in all(source).await? {
        if !there.contains_key(&name) {
            patiently(async || target.save_semaphore(&name, capacity).await).await?;
        }
    }
    Ok(())
}

/// Compares the semaphores of both sides.
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
            verdict.differ(|| format!("the semaphore {name} is not the same"));
        }
    }
    Ok(())
}
