//! `tailback export` and `tailback import`: everything that a store keeps, as it was at one moment, in a file of JSON Lines, and back into
//! a store of either kind.
//!
//! The file has a head, a line for each thing in the order of [`Kind::ALL`](crate::store::picture::Kind::ALL), and an end with counts and
//! a digest, without which it is refused. Neither way needs more memory than a few pages.
//!
//! A restore is idempotent: **nothing in the target is ever overwritten or removed.** The target must be empty. Before the first write it
//! is marked with the id of the backup; until the mark is removed, behind a comparison of the store with the backup, only a restore of the
//! same backup goes on there, and no server starts.

mod line;
mod lost;
mod read;
mod restore;
mod tally;
mod write;

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::bail;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

pub use self::line::Head;
pub use self::lost::count_lost;
pub use self::read::Backup;
pub use self::restore::restore;
pub use self::tally::{Tally, Verdict};
pub use self::write::{Output, check_apart};
use crate::job::Job;
use crate::store::Store;
use crate::store::picture::{Found, Item, Kind, Picture, Spoiled};
use crate::transfer::{Hold, Progress, interrupted};

/// What is not in a backup, as the command says.
pub const NOT_IN_IT: &str =
    "not in it: workers, which are known again after their next heartbeats; the figures of the past";

/// How many things that cannot be read are named.
const NAMED: usize = 10;

/// What was exported.
#[derive(Debug)]
pub struct Exported {
    /// How many things of each kind.
    pub tally: Tally,
    /// How many were left out since they cannot be read.
    pub left_out: u64,
    /// How many jobs that cannot be read as they are have a dead one in their place.
    pub salvaged: u64,
}

/// Writes a picture of a store. What another program has spoiled is named; unless it is to be left out, that is an error, and no file.
pub async fn export(
    picture: &mut Picture,
    store: &str,
    mut out: Output,
    leave_out: bool,
    progress: &mut Progress,
) -> anyhow::Result<Exported> {
    let head = line::Head {
        kind: "head".to_owned(),
        format: line::FORMAT.to_owned(),
        version: line::VERSION,
        id: URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>()),
        tailback: env!("CARGO_PKG_VERSION").to_owned(),
        store: store.to_owned(),
        at: picture.at(),
    };
    out.line(&serde_json::to_string(&head)?)?;
    let (mut tally, mut spoiled, mut written) =
        (Tally::default(), Left { judges: true, ..Left::default() }, 0);
    while let Some(page) = picture.next().await? {
        for found in page {
            if let Some(line) = count(found, &mut tally, &mut spoiled)? {
                out.line(&line)?;
                written += 1;
            }
        }
        progress.report("exporting", written, written);
    }
    progress.end();
    let Left { count: left_out, salvaged, .. } = spoiled;
    if left_out + salvaged > 0 && !leave_out {
        bail!(
            "{} cannot be read, since another program wrote it: {}. Delete or mend it, or leave it out with --skip-unreadable",
            match left_out + salvaged {
                1 => "one thing".to_owned(),
                count => format!("{count} things"),
            },
            spoiled.named.join("; ")
        );
    }
    let end =
        line::End { kind: "end".to_owned(), counts: tally.counts(), left_out, salvaged, sha256: out.sum() };
    out.line(&serde_json::to_string(&end)?)?;
    out.finish()?;
    Ok(Exported { tally, left_out, salvaged })
}

/// Returns what a picture shows of each kind. What cannot be read is named in the log, and counted only where something stands in for it.
pub async fn tally(picture: &mut Picture, progress: &mut Progress) -> anyhow::Result<Tally> {
    let (mut tally, mut left, mut seen) = (Tally::default(), Left::default(), 0);
    while let Some(page) = picture.next().await? {
        seen += page.len() as u64;
        for found in page {
            count(found, &mut tally, &mut left)?;
        }
        progress.report("comparing", seen, seen);
    }
    progress.end();
    Ok(tally)
}

/// Fails where there is anything, and says what.
pub async fn check_empty(picture: &mut Picture) -> anyhow::Result<()> {
    while let Some(page) = picture.next().await? {
        let there = match page.first() {
            Some(Ok(Item::TokenSecret(_))) => "the secret of a server that has run on it".to_owned(),
            Some(Ok(item)) => item.title(),
            Some(Err(spoiled)) => format!("the {} {:.200}", spoiled.kind.as_str(), spoiled.name),
            None => continue,
        };
        bail!("the store is not empty: it has {there}. Nothing was written; restore into an empty store");
    }
    Ok(())
}

/// Marks a store as the target of this backup. It must be empty, or marked by an earlier run. `is_alone`: no other process can have it open.
pub async fn claim(
    target: &Arc<dyn Store>,
    head: &Head,
    is_alone: bool,
    picture: impl AsyncFn() -> anyhow::Result<Picture>,
) -> anyhow::Result<Hold> {
    let earlier = interrupted(&**target, &head.id, is_alone).await?;
    if earlier.is_some() {
        return Hold::claim(target, &head.id, earlier.as_ref()).await;
    }
    check_empty(&mut picture().await?).await?;
    let hold = Hold::claim(target, &head.id, None).await?;
    // Again, behind the mark: a server that starts now sees the mark, or has left its secret here before.
    match check_empty(&mut picture().await?).await {
        Ok(()) => Ok(hold),
        Err(error) => {
            hold.end().await?;
            Err(error)
        }
    }
}

/// What cannot be read.
#[derive(Default)]
struct Left {
    /// Whether a line that a restore would refuse counts as one: a backup that cannot be restored is none.
    judges: bool,
    count: u64,
    /// Jobs that others stand in for.
    salvaged: u64,
    named: Vec<String>,
    /// The batches among it: their results cannot be restored without them.
    batches: HashSet<String>,
}

impl Left {
    /// Returns what was found, unless its batch cannot be read.
    fn without_batches(&self, found: Found) -> Found {
        match found {
            Ok(item @ Item::BatchResult(..)) if self.batches.contains(&item.name().0) => {
                let why = "its batch cannot be read".to_owned();
                Err(Spoiled { kind: item.kind(), name: item.shown(), why, stand_in: None })
            }
            found => found,
        }
    }

    /// Names what cannot be read, and returns what stands in for it.
    fn note(&mut self, Spoiled { kind, name, why, stand_in }: Spoiled) -> Option<Box<Job>> {
        let named = format!("the {} {name:.200} ({why:.300})", kind.as_str());
        match stand_in {
            Some(_) => {
                tracing::warn!(what = named, "cannot be read as it is, and is dead in the backup");
                self.salvaged += 1;
            }
            None => {
                tracing::warn!(what = named, "cannot be read, and is not in the backup");
                self.count += 1;
            }
        }
        if kind == Kind::Batch {
            self.batches.insert(name);
        }
        if self.named.len() < NAMED {
            self.named.push(named);
        }
        stand_in
    }
}

/// Counts what was found, and returns its line, or that of what stands in for it.
fn count(found: Found, tally: &mut Tally, left: &mut Left) -> anyhow::Result<Option<String>> {
    let (item, is_salvaged) = match left.without_batches(found) {
        Ok(item) => (item, false),
        Err(spoiled) => match left.note(spoiled) {
            Some(stand_in) => (Item::Job(stand_in), true),
            None => return Ok(None),
        },
    };
    let line = line::write(&item)?;
    if left.judges
        && let Err(why) = line::read(item.kind(), &line)
    {
        left.salvaged -= u64::from(is_salvaged);
        left.note(Spoiled { kind: item.kind(), name: item.shown(), why, stand_in: None });
        return Ok(None);
    }
    tally.add(&item, &line);
    Ok(Some(line))
}
