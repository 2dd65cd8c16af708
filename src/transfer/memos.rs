//! What is remembered for a while: receipts, calls with an `Idempotency-Key`, and what rates have delivered. Much of it is
//! forgotten by itself, also during the copy: what is about to be is no difference.

use std::collections::{BTreeMap, HashMap};

use anyhow::bail;

use super::verify::Verdict;
use super::{Digest, Hold, MARGIN_MS, PAGE, Progress, all_or_error, now, with_retries};
use crate::job::Timestamp;
use crate::store::{Imported, Memo, MemoKind, Store};

/// What is forgotten is added up by its time, in parts of this length: only the end of a comparison shows what was forgotten beside it.
const PART_MS: i64 = 60_000;
/// The part of what is never forgotten like that.
const LASTING: i64 = i64::MAX;

/// How many memos there are, with a digest over them, by the parts in which they are forgotten.
#[derive(Default)]
struct Parts(BTreeMap<i64, (u64, Digest)>);

impl Parts {
    fn add(&mut self, memo: &Memo) {
        let part = memo.until().map_or(LASTING, |until| until.millis() / PART_MS);
        let (count, digest) = self.0.entry(part).or_default();
        *count += 1;
        digest.add_memo(memo);
    }

    /// Returns the sum of the parts of which nothing was forgotten by this moment.
    fn kept(&self, now: Timestamp) -> (u64, Digest) {
        let first = now.plus_ms(MARGIN_MS).millis() / PART_MS + 1;
        let kept = self.0.range(first..).map(|(_, part)| *part);
        kept.fold((0, Digest::default()), |(all, mut sum), (count, digest)| {
            sum.merge(digest);
            (all + count, sum)
        })
    }
}

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

/// Whether what is remembered until then may be forgotten.
fn is_fading(until: Option<Timestamp>, now: Timestamp) -> bool {
    until.is_some_and(|until| until <= now.plus_ms(MARGIN_MS))
}

/// Fails if the target remembers what the source does not.
pub(super) async fn check(source: &dyn Store, target: &dyn Store) -> anyhow::Result<()> {
    for kind in MemoKind::ALL {
        let mut there: HashMap<String, (Digest, Option<Timestamp>)> = HashMap::new();
        let digest = |memo: &Memo| {
            let mut digest = Digest::default();
            digest.add_memo(memo);
            digest
        };
        each(target, kind, |memo| {
            there.insert(memo.id(), (digest(&memo), memo.until()));
        })
        .await?;
        if there.is_empty() {
            continue;
        }
        let mut others = Vec::new();
        each(source, kind, |memo| {
            if there.remove(&memo.id()).is_some_and(|(there, _)| there != digest(&memo)) {
                others.push((memo.id(), memo.until()));
            }
        })
        .await?;
        // What one store has forgotten while both were read is no difference.
        let read_at = now(source, target)?;
        let own = there.into_iter().map(|(id, (_, until))| (id, until));
        if let Some((id, _)) = others.into_iter().chain(own).find(|(_, until)| !is_fading(*until, read_at)) {
            bail!(
                "conflict: what the target remembers of {id} ({kind:?}) differs from the source; nothing was written. \
                 Start with an empty target"
            );
        }
    }
    Ok(())
}

/// Copies all that is remembered.
pub(super) async fn copy(source: &dyn Store, hold: &Hold, progress: &mut Progress) -> anyhow::Result<()> {
    let target = hold.target();
    let mut copied = 0;
    for kind in MemoKind::ALL {
        let mut after: Option<Memo> = None;
        loop {
            let page = with_retries(async || source.export_memos(kind, after.as_ref(), PAGE).await).await?;
            let Some(last) = page.last() else { break };
            let imported =
                hold.with_retries(async || all_or_error(target.import_memos(page.clone()).await)).await?;
            let written_at = now(source, target)?;
            let mut different =
                page.iter().zip(imported).filter(|(_, imported)| *imported == Imported::Different);
            if let Some((memo, _)) = different.find(|(memo, _)| !is_fading(memo.until(), written_at)) {
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

/// Compares what both stores remember, but for what one of them may have forgotten until both were read.
pub(super) async fn compare(
    source: &dyn Store,
    target: &dyn Store,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let read = async |store: &dyn Store| -> anyhow::Result<Parts> {
        let mut parts = Parts::default();
        for kind in MemoKind::ALL {
            each(store, kind, |memo| parts.add(&memo)).await?;
        }
        Ok(parts)
    };
    let (ours, theirs) = (read(source).await?, read(target).await?);
    let read_at = now(source, target)?;
    (verdict.source.memo_count, verdict.source.memos) = ours.kept(read_at);
    (verdict.target.memo_count, verdict.target.memos) = theirs.kept(read_at);
    if verdict.source.memos != verdict.target.memos {
        verdict.differ(|| "the records of retries and rates differ".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::KeyedCall;

    const MINUTE: i64 = PART_MS;

    fn memo(id: &str, until: i64) -> Memo {
        let until = Timestamp::from_millis(until);
        let call = KeyedCall { id: id.to_owned(), digest: [7; 32], until };
        Memo::Answer { call, answer: "{}".to_owned() }
    }

    fn parts(memos: &[(&str, i64)]) -> Parts {
        let mut parts = Parts::default();
        memos.iter().for_each(|(id, until)| parts.add(&memo(id, *until)));
        parts
    }

    #[test]
    fn what_was_forgotten_until_both_were_read_is_no_difference() {
        let before = parts(&[("a", 3 * MINUTE), ("b", 9 * MINUTE), ("c", 20 * MINUTE)]);
        let without_a = parts(&[("b", 9 * MINUTE), ("c", 20 * MINUTE)]);
        let at = Timestamp::from_millis;
        // A copy that was read for seven minutes, as it was known when that began, and at its end.
        assert_ne!(before.kept(at(0)), without_a.kept(at(0)));
        assert_eq!(before.kept(at(7 * MINUTE)), without_a.kept(at(7 * MINUTE)));
        assert_eq!(before.kept(at(7 * MINUTE)).0, 2);
        let without_c = parts(&[("a", 3 * MINUTE), ("b", 9 * MINUTE)]);
        assert_ne!(before.kept(at(7 * MINUTE)), without_c.kept(at(7 * MINUTE)));
    }

    #[test]
    fn a_part_counts_until_it_begins() {
        let (one, none) = (parts(&[("a", 5 * MINUTE)]), parts(&[]));
        let (before, begun) = (5 * MINUTE - 1001, 5 * MINUTE - 1000);
        let is_same = |at| {
            let at = Timestamp::from_millis(at);
            one.kept(at) == none.kept(at)
        };
        assert!(!is_same(before) && is_same(begun));
    }

    #[test]
    fn what_is_never_forgotten_always_counts() {
        let queue = "mail".parse().unwrap();
        let mut lasting = Parts::default();
        lasting.add(&Memo::Deliveries { queue, recent: Default::default() });
        assert_eq!(lasting.kept(Timestamp::from_millis(i64::MAX)).0, 1);
    }

    #[test]
    fn what_may_be_forgotten_is_judged_by_the_end() {
        let until = Some(Timestamp::from_millis(90_000));
        assert!(!is_fading(until, Timestamp::from_millis(60_000)));
        assert!(is_fading(until, Timestamp::from_millis(89_000)));
        assert!(!is_fading(None, Timestamp::from_millis(i64::MAX)));
    }
}
