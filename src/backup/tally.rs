//! How many things there are of each kind, with a digest over them: what a backup and the store that it was restored into have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::job::Timestamp;
use crate::store::picture::{Item, Kind};
use crate::transfer::Digest;

/// What a database may forget by itself is added up by the time at which it may, in parts of this length.
const PART_MS: i64 = 600_000;
/// The part of what is never forgotten like that.
const LASTING: i64 = i64::MAX;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    digest: Digest,
}

/// See the module's documentation.
#[derive(Debug, Clone, Default)]
pub struct Tally(BTreeMap<(Kind, i64), Sum>);

impl Tally {
    /// Adds a thing, by the line of it.
    pub fn add(&mut self, item: &Item, line: &str) {
        let part = item.fades_at().map_or(LASTING, |at| at.millis() / PART_MS);
        let sum = self.0.entry((item.kind(), part)).or_default();
        sum.count += 1;
        sum.digest.add_text(line);
    }

    /// Returns how many things there are of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.of(kind, i64::MIN).count
    }

    /// Returns how many things there are of each kind, of those that there are.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let kinds: BTreeSet<Kind> = self.0.keys().map(|(kind, _)| *kind).collect();
        kinds.into_iter().map(|kind| (kind.as_str().to_owned(), self.count(kind))).collect()
    }

    /// Returns the sum of a kind, from this part on.
    fn of(&self, kind: Kind, from: i64) -> Sum {
        let parts = self.0.range((kind, from)..=(kind, LASTING));
        parts.fold(Sum::default(), |mut all, (_, sum)| {
            all.count += sum.count;
            all.digest.merge(sum.digest);
            all
        })
    }
}

/// What a restore came to. Its `Display` is a table.
#[derive(Debug, Clone)]
pub struct Verdict {
    backup: Tally,
    store: Tally,
    now: Timestamp,
}

impl Verdict {
    /// Compares what a backup has with what is in the store now.
    pub fn new(backup: Tally, store: Tally, now: Timestamp) -> Self {
        Self { backup, store, now }
    }

    /// The first part of which nothing has been forgotten yet.
    fn kept_from(&self) -> i64 {
        self.now.millis() / PART_MS + 1
    }

    fn is_same(&self, kind: Kind) -> bool {
        let kept = self.kept_from();
        self.backup.of(kind, kept) == self.store.of(kind, kept)
            && self.store.count(kind) <= self.backup.count(kind)
    }

    /// Returns whether the store has all of the backup, but for what was to be forgotten by now, and nothing else.
    pub fn is_equal(&self) -> bool {
        Kind::ALL.iter().all(|(kind, _)| self.is_same(*kind))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:12}  {:>12}  {:>12}  digest", "kind", "backup", "store")?;
        for (kind, word) in Kind::ALL {
            let (ours, theirs) = (self.backup.count(kind), self.store.count(kind));
            if ours == 0 && theirs == 0 {
                continue;
            }
            let digest = self.store.of(kind, self.kept_from()).digest.to_string();
            let mark = match self.is_same(kind) {
                true if ours > theirs => "  (others were past their time)",
                true => "",
                false => "  <- differs",
            };
            writeln!(
                f,
                "{word:12}  {ours:>12}  {theirs:>12}  {}{mark}",
                digest.get(..16).unwrap_or_default()
            )?;
        }
        Ok(())
    }
}
