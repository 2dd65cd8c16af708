//! Schedules. There are few, so each store's are read at once.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;

use super::verify::Verdict;
use super::{Hold, PAGE, with_retries};
use crate::job::{Schedule, ScheduleName};
use crate::store::{Saved, Store};

type All = BTreeMap<ScheduleName, Schedule>;

async fn all(store: &dyn Store) -> anyhow::Result<All> {
    let mut all = All::new();
    loop {
        let after = all.last_key_value().map(|(name, _)| name.clone());
        let page = with_retries(async || store.schedules(after.as_ref(), PAGE).await).await?;
        if page.is_empty() {
            return Ok(all);
        }
        for listed in page {
            match listed {
                Ok(schedule) => drop(all.insert(schedule.name.clone(), schedule)),
                Err((name, why)) => bail!("the schedule {name} cannot be read ({why}); replace or delete it"),
            }
        }
    }
}

fn is_same(one: Option<&Schedule>, other: Option<&Schedule>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one.same(other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

/// Fails if a schedule of the target is not in the source or differs from it.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let (wanted, there) = (all(source).await?, all(target).await?);
    match there.iter().find(|(name, there)| !is_same(wanted.get(name), Some(there))) {
        Some((name, _)) => bail!(
            "conflict: the schedule {name} in the target differs from the source; nothing was written. Start with an \
             empty target"
        ),
        None => Ok(()),
    }
}

/// Copies the schedules with their recorded runs.
pub(super) async fn copy(source: &dyn Store, hold: &Hold) -> anyhow::Result<()> {
    let target = hold.target();
    let there = all(target).await?;
    for (name, schedule) in all(source).await? {
        if is_same(there.get(&name), Some(&schedule)) {
            continue;
        }
        let save = async || target.save_schedule(&name, Some(&schedule), None).await;
        let saved = hold.with_retries(save).await?;
        // A retried save conflicts with its own first attempt if that took effect.
        if saved == Saved::Conflict {
            let there = with_retries(async || target.schedule(&name).await).await?;
            if !is_same(there.as_ref(), Some(&schedule)) {
                bail!(
                    "conflict: the schedule {name} of the target was changed during the copy: is a server running?"
                );
            }
        }
    }
    Ok(())
}

/// Compares the schedules of both stores.
pub(super) async fn compare(
    source: &dyn Store,
    target: &dyn Store,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let (ours, theirs) = (all(source).await?, all(target).await?);
    (verdict.source.schedules, verdict.target.schedules) = (ours.len(), theirs.len());
    let names: BTreeSet<&ScheduleName> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        if !is_same(ours.get(name), theirs.get(name)) {
            verdict.differ(|| format!("the schedule {name} differs"));
        }
    }
    Ok(())
}
