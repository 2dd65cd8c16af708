//! What is remembered for a while: receipts, calls with an `Idempotency-Key`, and what rates have delivered. Much of it is
//! forgotten by itself, also during the copy: what is about to be is no difference.

use std::collections::HashMap;

use anyhow::bail;

use super::verify::Verdict;
use super::{Digest, PAGE, Progress, all_or_error, now, with_retries};
use crate::job::Timestamp;
use crate::store::{Imported, Memo, MemoKind, Store};

/// What is forgotten this soon is not compared: longer than reading both stores takes.
const MARGIN_MS: u64 = 60_000;

/// Calls this with every memo of a store.
async fn each(store: &dyn Store, kind: MemoKind, mut take: impl FnMut(Memo)) -> anyhow::Result<()> {
    let mut after: Option<Memo> = None;
    loop {
        let page = with_retries(async || store.export_memos(kind, after.as_ref(), PAGE).await).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.clone());
        page.into_iter().for_each(&mut take);
    }
}

fn is_fading(memo: &Memo, from: Timestamp) -> bool {
    memo.until().is_some_and(|until| until <= from.plus_ms(MARGIN_MS))
}

/// Fails if the target remembers what the source does not.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    let from = now(source, target)?;
    for kind in MemoKind::ALL {
        let mut there: HashMap<String, (Digest, bool)> = HashMap::new();
        let digest = |memo: &Memo| {
            let mut digest = Digest::default();
            digest.add_memo(memo);
            digest
        };
        each(target, kind, |memo| {
            there.insert(memo.id(), (digest(&memo), is_fading(&memo, from)));
        })
        .await?;
        if there.is_empty() {
            continue;
        }
        let mut other = None;
        each(source, kind, |memo| {
            let differs = there.remove(&memo.id()).is_some_and(|(there, _)| there != digest(&memo));
            if differs && !is_fading(&memo, from) {
                other = Some(memo.id());
            }
        })
        .await?;
        let own = there.into_iter().find(|(_, (_, is_fading))| !is_fading).map(|(id, _)| id);
        if let Some(id) = other.or(own) {
            bail!(
                "conflict: what the target remembers of {id} ({kind:?}) differs from the source; nothing was written. \
                 Start with an empty target"
            );
        }
    }
    Ok(())
}

/// Copies all that is remembered.
pub(super) async fn copy(
    source: &dyn Store,
    target: &dyn Store,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    let from = now(source, target)?;
    let mut copied = 0;
    for kind in MemoKind::ALL {
        let mut after: Option<Memo> = None;
        loop {
            let page = with_retries(async || source.export_memos(kind, after.as_ref(), PAGE).await).await?;
            let Some(last) = page.last() else { break };
            let imported =
                with_retries(async || all_or_error(target.import_memos(page.clone()).await)).await?;
            let mut different =
                page.iter().zip(imported).filter(|(_, imported)| *imported == Imported::Different);
            if let Some((memo, _)) = different.find(|(memo, _)| !is_fading(memo, from)) {
                bail!(
                    "conflict: what the target remembers of {} ({kind:?}) differs from the source; it was not changed. \
                     Start with an empty target",
                    memo.id()
                );
            }
            copied += page.len() as u64;
            progress.report("copying records of retries and rates", copied, copied);
            after = Some(last.clone());
        }
    }
    Ok(())
}

/// Compares what both stores remember, and will for a while.
pub(super) async fn compare(
    source: &dyn Store,
    target: &dyn Store,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let from = now(source, target)?;
    let read = async |store: &dyn Store| -> anyhow::Result<(u64, Digest)> {
        let (mut count, mut digest) = (0, Digest::default());
        for kind in MemoKind::ALL {
            each(store, kind, |memo| {
                if !is_fading(&memo, from) {
                    count += 1;
                    digest.add_memo(&memo);
                }
            })
            .await?;
        }
        Ok((count, digest))
    };
    (verdict.source.memo_count, verdict.source.memos) = read(source).await?;
    (verdict.target.memo_count, verdict.target.memos) = read(target).await?;
    if verdict.source.memos != verdict.target.memos {
        verdict.differ(|| "the records of retries and rates differ".to_owned());
    }
    Ok(())
}
