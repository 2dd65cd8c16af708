//! Rounds: load, faults, healing, drain, judgment.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::faults::{Kind, strike};
use super::world::World;
use crate::checker::{History, Outcome, Recorder, Rule, Setup, Verb, Violation, kept};
use crate::load::{Load, Size};

/// Clients give up after so long.
const PATIENCE: Duration = Duration::from_secs(4);
/// A drain that commits nothing for so long has failed. A server that was killed within a transaction keeps what it wrote locked
/// for ten seconds.
const DRAIN: Duration = Duration::from_secs(60);
/// The longest delay of a message, and what a busy machine adds.
const SLACK_MS: u64 = 800;

/// What one round, or many, have seen.
#[derive(Default)]
pub struct Report {
    pub rounds: usize,
    pub calls: usize,
    pub acknowledged: usize,
    pub refused: usize,
    pub unknown: usize,
    /// Jobs that were delivered, and commits that succeeded.
    pub deliveries: usize,
    pub commits: usize,
    /// How long counts took at most to be right.
    pub counts_after_ms: u64,
    /// By kind: how often it happened, and for how long no client's write succeeded, in milliseconds.
    pub seen: BTreeMap<Kind, (usize, Vec<u64>)>,
    pub violations: Vec<Violation>,
    pub took: Duration,
}

impl Report {
    fn count(&mut self, history: &History) {
        self.rounds += 1;
        for call in &history.calls {
            self.calls += 1;
            match &call.outcome {
                Outcome::Ok { answer, .. } => {
                    self.acknowledged += 1;
                    self.deliveries +=
                        answer["jobs"].as_array().filter(|_| call.verb == Verb::Reserve).map_or(0, Vec::len);
                    self.commits += usize::from(call.verb == Verb::Commit);
                    self.commits += answer["commit"].as_array().map_or(0, Vec::len);
                }
                Outcome::Refused { .. } => self.refused += 1,
                Outcome::Unknown { .. } => self.unknown += 1,
            }
        }
    }

    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.calls += other.calls;
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.deliveries += other.deliveries;
        self.commits += other.commits;
        self.counts_after_ms = self.counts_after_ms.max(other.counts_after_ms);
        self.took += other.took;
        self.violations.extend(other.violations);
        for (kind, (times, gaps)) in other.seen {
            let seen = self.seen.entry(kind).or_default();
            seen.0 += times;
            seen.1.extend(gaps);
        }
    }

    pub fn faults(&self) -> usize {
        self.seen.values().map(|(times, _)| times).sum()
    }

    fn of(&self, rules: &[Rule]) -> usize {
        self.violations.iter().filter(|violation| rules.contains(&violation.rule)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.of(&[Rule::Lost, Rule::Partial]);
        let doubled = self.of(&[
            Rule::StoredTwice,
            Rule::TwoHolders,
            Rule::SharedToken,
            Rule::SettledTwice,
            Rule::DeliveredAfterEnd,
            Rule::Key,
        ]);
        writeln!(
            f,
            "{} rounds in {:.0} s: {} faults, {} calls, {} acknowledged, {} refused, {} unknown; {} deliveries, {} commits; \
             counts right after {} ms at most; {lost} lost, {doubled} doubled, {} violations",
            self.rounds,
            self.took.as_secs_f64(),
            self.faults(),
            self.calls,
            self.acknowledged,
            self.refused,
            self.unknown,
            self.deliveries,
            self.commits,
            self.counts_after_ms,
            self.violations.len()
        )?;
        writeln!(f, "| fault | times | gap, median ms | max |\n|---|---|---|---|")?;
        for (kind, (times, gaps)) in &self.seen {
            let mut gaps = gaps.clone();
            gaps.sort_unstable();
            let of = |place: usize| gaps.get(place).map_or("-".to_owned(), u64::to_string);
            let (median, max) = (of(gaps.len() / 2), of(gaps.len().wrapping_sub(1)));
            writeln!(f, "| {kind:?} | {times} | {median} | {max} |")?;
            writeln!(f, "gaps {kind:?} {gaps:?}")?;
        }
        Ok(())
    }
}

/// The longest time between two writes that succeeded, from when a fault began until some seconds after its end.
fn gap_ms(moments: &[u64], from: u64, to: u64) -> u64 {
    let clipped = |pair: &[u64]| pair[1].min(to).saturating_sub(pair[0].max(from));
    moments.windows(2).map(clipped).max().unwrap_or(0) / 1000
}

/// When writes succeeded.
fn written(history: &History) -> Vec<u64> {
    let is_write =
        |verb| matches!(verb, Verb::Push | Verb::PushMany | Verb::Commit | Verb::Settle | Verb::Rollback);
    let written = history.calls.iter().filter(|call| is_write(call.verb) && call.outcome.answer().is_some());
    let mut moments: Vec<u64> = written.map(|call| call.completed_us).collect();
    moments.sort_unstable();
    moments
}

/// One round of faults of these kinds, for so long.
pub async fn round(world: &mut World, kinds: &[Kind], length: Duration, seed: u64) -> Report {
    let (begin, mut dice) = (Instant::now(), StdRng::seed_from_u64(seed));
    let size = if world.members.is_empty() { Size::SMALL } else { Size::LARGE };
    let mut load = Load::start(world.bases(), size, seed, PATIENCE).await;
    let recorder: Recorder = load.shared.recorder.clone();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut struck, is_calm) = (Vec::new(), seed.is_multiple_of(2));
    while begin.elapsed() < length {
        let kind = kinds[dice.random_range(0..kinds.len())];
        let from = recorder.now_us();
        strike(world, kind, &mut dice).await;
        // In every other round each fault is measured by itself; in the others they may fall together.
        let pause = if is_calm { 4000 } else { dice.random_range(100..1500) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        struck.push((kind, from, recorder.now_us()));
        world.check();
    }
    world.heal().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    load.stop().await;
    let setup = Setup { slack_ms: SLACK_MS, ..Setup::default() };
    let (scan, violations) = load.verdict(&setup, DRAIN).await;
    let history = recorder.history();
    load.bury().await;
    let mut report = Report { violations, counts_after_ms: scan.counts_after_ms, ..Report::default() };
    let moments = written(&history);
    for (kind, from, to) in struck {
        let seen = report.seen.entry(kind).or_default();
        seen.0 += 1;
        seen.1.extend(is_calm.then(|| gap_ms(&moments, from, to)));
    }
    report.count(&history);
    report.took = begin.elapsed();
    if !report.violations.is_empty() {
        let path = kept(&format!("tailback-history-{seed}.jsonl"));
        history.write(&path);
        serde_json::to_writer(std::fs::File::create(path.with_extension("scan")).unwrap(), &scan).unwrap();
        println!("the history of seed {seed} is in {}", path.display());
    }
    report
}

/// Round after round until the time is over. Each has a seed of its own, which is printed.
pub async fn rounds(world: &mut World, kinds: &[Kind], total: Duration, each: Duration, seed: u64) -> Report {
    let (begin, mut all) = (Instant::now(), Report::default());
    let mut seed = seed;
    while begin.elapsed() < total {
        let length = each.min(total.saturating_sub(begin.elapsed()));
        println!("seed {seed}: begins");
        let report = round(world, kinds, length, seed).await;
        let broken: Vec<String> = report.violations.iter().take(20).map(Violation::to_string).collect();
        println!("seed {seed}: {report}");
        assert!(broken.is_empty(), "seed {seed}:\n{}", broken.join("\n"));
        all.add(report);
        seed += 1;
    }
    println!("in all: {all}");
    all
}
