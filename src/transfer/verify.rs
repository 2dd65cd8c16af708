//! Verifies a copy: reads both stores and compares them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use super::digest::{Digest, differences};
use super::{
    PAGE, Progress, access, all_settings, batches, may_be_purged, memos, now, schedules, semaphores,
    with_retries,
};
use crate::job::{Job, JobId, QueueName, State};
use crate::store::transfer::same;
use crate::store::{HeldKey, Store};

/// The maximum number of differences that are listed.
const LISTED_MAX: usize = 10;

/// The content of one store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Side {
    /// The number of jobs, by queue and stored state.
    pub counts: BTreeMap<(QueueName, State), u64>,
    /// The digest over all jobs.
    pub jobs: Digest,
    /// The number of keys.
    pub key_count: u64,
    /// The digest over all keys.
    pub keys: Digest,
    /// The number of records of retries and rates.
    pub memo_count: u64,
    /// The digest over them.
    pub memos: Digest,
    /// The number of batches.
    pub batch_count: u64,
    /// The digest over all batches and their results.
    pub batches: Digest,
    /// The number of queues with settings.
    pub settings: usize,
    /// The number of schedules.
    pub schedules: usize,
    /// The number of semaphores.
    pub semaphores: usize,
    /// The number of API keys.
    pub api_keys: usize,
}

impl Side {
    /// Returns the number of jobs.
    pub fn job_count(&self) -> u64 {
        self.counts.values().sum()
    }

    fn add(&mut self, job: &Job) {
        *self.counts.entry((job.meta.queue.clone(), job.meta.state)).or_default() += 1;
        self.jobs.add_job(job);
    }
}

/// The result of a comparison. Its `Display` is a table of both stores.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// The content of the source.
    pub source: Side,
    /// The content of the target.
    pub target: Side,
    /// The first differences.
    pub differences: Vec<String>,
    /// The number of all differences.
    pub difference_count: u64,
    /// The number of history jobs that one store purged during the copy, which is no difference.
    pub purged: u64,
}

impl Verdict {
    /// Returns whether both stores are equal.
    pub fn is_equal(&self) -> bool {
        self.difference_count == 0 && self.source == self.target
    }

    pub(super) fn differ(&mut self, what: impl FnOnce() -> String) {
        self.difference_count += 1;
        if self.differences.len() < LISTED_MAX {
            self.differences.push(what());
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, target) = (&self.source, &self.target);
        let rows: BTreeSet<_> = source.counts.keys().chain(target.counts.keys()).collect();
        let width = rows.iter().map(|(queue, _)| queue.as_str().len()).max().unwrap_or(0).max(5);
        writeln!(f, "{:width$}  {:8}  {:>12}  {:>12}", "queue", "state", "source", "target")?;
        for row in rows {
            let count = |side: &Side| side.counts.get(row).copied().unwrap_or(0);
            let (ours, theirs) = (count(source), count(target));
            let mark = if ours == theirs { "" } else { "  <- differs" };
            writeln!(f, "{:width$}  {:8}  {ours:>12}  {theirs:>12}{mark}", row.0.as_str(), row.1.as_str())?;
        }
        for (name, side) in [("source", source), ("target", target)] {
            writeln!(
                f,
                "{name}: {} jobs, digest {}; {} keys, digest {}; {} records of retries and rates, \
                 digest {}; {} batches, digest {}; settings of {} queues; \
                 {} schedules, {} semaphores, {} API keys",
                side.job_count(),
                side.jobs,
                side.key_count,
                side.keys,
                side.memo_count,
                side.memos,
                side.batch_count,
                side.batches,
                side.settings,
                side.schedules,
                side.semaphores,
                side.api_keys
            )?;
        }
        if self.purged > 0 {
            writeln!(f, "{} history jobs expired during the copy and were purged", self.purged)?;
        }
        for difference in &self.differences {
            writeln!(f, "difference: {difference}")?;
        }
        let unlisted = self.difference_count - self.differences.len() as u64;
        if unlisted > 0 {
            writeln!(f, "… and {unlisted} more differences")?;
        }
        Ok(())
    }
}

/// Reads both stores and compares them; `total` is an estimate of the number of jobs.
pub async fn verify(
    source: &dyn Store,
    target: &dyn Store,
    total: u64,
    progress: &mut Progress,
) -> anyhow::Result<Verdict> {
    let mut verdict = Verdict::default();
    compare_settings(source, target, &mut verdict).await?;
    schedules::compare(source, target, &mut verdict).await?;
    semaphores::compare(source, target, &mut verdict).await?;
    access::compare(source, target, &mut verdict).await?;
    (verdict.source.key_count, verdict.source.keys) = read_keys(source).await?;
    (verdict.target.key_count, verdict.target.keys) = read_keys(target).await?;
    if verdict.source.keys != verdict.target.keys {
        verdict.differ(|| "the keys differ".to_owned());
    }
    memos::compare(source, target, &mut verdict).await?;
    (verdict.source.batch_count, verdict.source.batches) = batches::read(source).await?;
    (verdict.target.batch_count, verdict.target.batches) = batches::read(target).await?;
    if verdict.source.batches != verdict.target.batches {
        verdict.differ(|| "the batches differ".to_owned());
    }
    let (mut ours, mut theirs) = (JobCursor::new(source), JobCursor::new(target));
    let mut seen = 0;
    loop {
        tokio::try_join!(ours.fill(), theirs.fill())?;
        let (one, other) = match ours.order(&theirs) {
            None => return Ok(verdict),
            Some(Ordering::Less) => (ours.next(), None),
            Some(Ordering::Greater) => (None, theirs.next()),
            Some(Ordering::Equal) => (ours.next(), theirs.next()),
        };
        match (one, other) {
            (Some(one), Some(other)) => compare(&one, &other, &mut verdict),
            (Some(one), None) if may_be_purged(&one, now(source, target)?) => verdict.purged += 1,
            (None, Some(other)) if may_be_purged(&other, now(source, target)?) => verdict.purged += 1,
            (Some(one), None) => {
                verdict.source.add(&one);
                verdict.differ(|| format!("the job {} is in the source only", one.meta.id));
            }
            (None, Some(other)) => {
                verdict.target.add(&other);
                verdict.differ(|| format!("the job {} is in the target only", other.meta.id));
            }
            (None, None) => return Ok(verdict),
        }
        seen += 1;
        progress.report("comparing", seen, total);
    }
}

fn compare(one: &Job, other: &Job, verdict: &mut Verdict) {
    verdict.source.add(one);
    verdict.target.add(other);
    if !same(one, other) {
        verdict
            .differ(|| format!("the job {} differs in: {}", one.meta.id, differences(one, other).join(", ")));
    }
}

async fn compare_settings(
    source: &dyn Store,
    target: &dyn Store,
    verdict: &mut Verdict,
) -> anyhow::Result<()> {
    let (ours, theirs) = (all_settings(source).await?, all_settings(target).await?);
    (verdict.source.settings, verdict.target.settings) = (ours.len(), theirs.len());
    let queues: BTreeSet<&QueueName> = ours.keys().chain(theirs.keys()).collect();
    for queue in queues {
        if ours.get(queue) != theirs.get(queue) {
            verdict.differ(|| format!("the settings of the queue {queue} differ"));
        }
    }
    Ok(())
}

async fn read_keys(store: &dyn Store) -> anyhow::Result<(u64, Digest)> {
    let (mut after, mut count, mut digest): (Option<HeldKey>, u64, Digest) = Default::default();
    loop {
        let mut page = with_retries(async || store.export_keys(after.as_ref(), PAGE).await).await?;
        page.iter().for_each(|key| digest.add_key(key));
        count += page.len() as u64;
        match page.pop() {
            Some(last) => after = Some(last),
            None => return Ok((count, digest)),
        }
    }
}

/// A cursor over all jobs of a store, ordered by id.
struct JobCursor<'a> {
    store: &'a dyn Store,
    page: VecDeque<Job>,
    after: Option<JobId>,
    over: bool,
}

impl<'a> JobCursor<'a> {
    fn new(store: &'a dyn Store) -> Self {
        Self { store, page: VecDeque::new(), after: None, over: false }
    }

    /// Reads the next page if the current one is used up.
    async fn fill(&mut self) -> anyhow::Result<()> {
        if !self.page.is_empty() || self.over {
            return Ok(());
        }
        let page = with_retries(async || self.store.export(self.after.as_ref(), PAGE).await).await?;
        self.after = page.last().map(|job| job.meta.id.clone());
        self.over = page.is_empty();
        self.page = page.into();
        Ok(())
    }

    fn next(&mut self) -> Option<Job> {
        self.page.pop_front()
    }

    /// Compares the id of the next job with that of the other cursor; `None` if both are at their ends.
    fn order(&self, other: &Self) -> Option<Ordering> {
        match (self.page.front(), other.page.front()) {
            (Some(one), Some(other)) => Some(one.meta.id.cmp(&other.meta.id)),
            (Some(_), None) => Some(Ordering::Less),
            (None, Some(_)) => Some(Ordering::Greater),
            (None, None) => None,
        }
    }
}
