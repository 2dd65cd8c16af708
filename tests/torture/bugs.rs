//! Mistakes that are planted in the server, and how soon the judge finds them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::StreamExt as _;

use crate::checker::{History, Rule, Scan, Setup, Violation};
use crate::common::server::{Place, Server};
use crate::load::{Load, Size};
use crate::torture::faults::part;
use crate::torture::recorded::{every_change_is_found, has_plain_job};
use crate::torture::world::World;

/// A mistake: its name in `src/`, how rarely it is made, and what the judge should say of it.
pub struct Bug {
    pub name: &'static str,
    /// Every so many opportunities.
    pub every: u64,
    /// One of these is found.
    pub rules: &'static [Rule],
}

const fn bug(name: &'static str, every: u64, rules: &'static [Rule]) -> Bug {
    Bug { name, every, rules }
}

/// What is found in both stores.
pub const BUGS: &[Bug] = &[
    bug("drop_push", 20, &[Rule::Lost, Rule::Partial]),
    bug("deliver_twice", 10, &[Rule::TwoHolders, Rule::StaleToken, Rule::GroupShared]),
    bug("keep_popped", 3, &[Rule::SettledTwice, Rule::DeliveredAfterEnd]),
    bug("ignore_token", 1, &[Rule::StaleToken]),
    bug("lose_on_move", 3, &[Rule::Lost]),
    bug("widen_semaphore", 1, &[Rule::Capacity]),
    bug("leak_semaphore", 1, &[Rule::NotDrained]),
    bug("commit_nothing", 10, &[Rule::DeliveredAfterEnd, Rule::Partial]),
    bug("call_back_early", 2, &[Rule::Callback]),
    bug("never_call_back", 2, &[Rule::Callback]),
    bug("ignore_group", 3, &[Rule::GroupOrder, Rule::GroupShared]),
    bug("ignore_delay", 3, &[Rule::Early]),
    bug("half_of_children", 10, &[Rule::Partial]),
    bug("ignore_key", 2, &[Rule::Key]),
    bug("old_payload", 2, &[Rule::Altered]),
    bug("short_lease", 4, &[Rule::TwoHolders, Rule::GroupShared, Rule::Capacity]),
];
/// What only SQLite can do wrong.
pub const BUGS_OF_SQLITE: &[Bug] =
    &[bug("miscount", 50, &[Rule::Counts]), bug("answer_early", 20, &[Rule::Lost, Rule::DeliveredAfterEnd])];

/// Within so many rounds each is found.
const ROUNDS: u64 = 12;
const ROUND: Duration = Duration::from_millis(2500);
/// A round lasts longer on a busy machine: until so many calls were made, or so long at most.
const CALLS: usize = 500;
const ROUND_MAX: Duration = Duration::from_secs(20);
/// A drain that commits nothing for so long is over, where a mistake is looked for; and where there is none, on however busy a machine.
const DRAIN: Duration = Duration::from_secs(5);
const DRAIN_OF_ALL: Duration = Duration::from_secs(120);
/// How many are looked for at once.
const AT_ONCE: usize = 3;

/// When a mistake was found.
struct Found {
    round: u64,
    calls: usize,
    took: Duration,
    rules: BTreeSet<Rule>,
}

/// One round with a mistake in a server over a store of its own.
async fn round(place: &Place, bug: &Bug, seed: u64) -> (History, Scan, Vec<Violation>) {
    let planted = format!("{}/{}", bug.name, bug.every);
    let server =
        Server::start_with(&place.url, &[("TAILBACK_BUG", &planted), ("TAILBACK_LOG__FILTER", "off")]).await;
    let mut load = Load::start(vec![server.base.clone()], Size::SMALL, seed, Duration::from_secs(10)).await;
    let begin = Instant::now();
    tokio::time::sleep(ROUND).await;
    while load.shared.recorder.history().calls.len() < CALLS && begin.elapsed() < ROUND_MAX {
        tokio::time::sleep(ROUND / 10).await;
    }
    load.stop().await;
    let setup = Setup { slack_ms: 500, ..Setup::default() };
    let patience = if bug.rules.is_empty() { DRAIN_OF_ALL } else { DRAIN };
    let (scan, violations) = load.verdict(&setup, patience).await;
    (load.shared.recorder.history(), scan, violations)
}

async fn hunt<F: Future<Output = Place>>(place: impl Fn() -> F, bug: &Bug) -> Found {
    let (begin, mut calls) = (Instant::now(), 0);
    for n in 1..=ROUNDS {
        let place = place().await;
        let (history, _, violations) = round(&place, bug, n).await;
        place.clear().await;
        calls += history.calls.len();
        let rules: BTreeSet<Rule> = violations.iter().map(|violation| violation.rule).collect();
        if rules.iter().any(|rule| bug.rules.contains(rule)) {
            return Found { round: n, calls, took: begin.elapsed(), rules };
        }
        println!("{}: not found in round {n}, but {violations:?}", bug.name);
    }
    panic!("{} was not found in {ROUNDS} rounds, {calls} calls", bug.name);
}

/// Looks for all of them, and prints when each was found.
pub async fn hunt_all<F: Future<Output = Place>>(store: &str, place: impl Fn() -> F, bugs: Vec<&Bug>) {
    let place = &place;
    let hunts = bugs.into_iter().map(|bug| async move { (bug, hunt(place, bug).await) });
    let mut found: Vec<(&Bug, Found)> =
        futures::stream::iter(hunts).buffer_unordered(AT_ONCE).collect().await;
    found.sort_by_key(|(bug, _)| bug.name);
    println!("| planted in {store} | one in | round | calls | s | found as |\n|---|---|---|---|---|---|");
    for (bug, Found { round, calls, took, rules }) in found {
        let rules: Vec<String> = rules.iter().map(|rule| format!("{rule:?}")).collect();
        let (every, seconds) = (bug.every, took.as_secs_f64());
        println!("| `{}` | {every} | {round} | {calls} | {seconds:.1} | {} |", bug.name, rules.join(", "));
    }
}

/// Without a mistake nothing is found; and what is then made wrong in the record is.
pub async fn find_nothing(place: &Place) {
    let bug = bug("none", 1, &[]);
    for n in 1..=ROUNDS {
        let (history, scan, violations) = round(place, &bug, n).await;
        assert!(violations.is_empty(), "{violations:#?}");
        // A busy machine may get little done in a round.
        if has_plain_job(&history) {
            return every_change_is_found(&history, &scan);
        }
    }
    panic!("no job in {ROUNDS} rounds was only pushed, reserved and committed");
}

/// Servers that ask for no majority lose what an isolated primary has acknowledged.
pub async fn answer_before_the_majority() {
    let mut world = World::mongo(&[("TAILBACK_BUG", "answer_early")]).await;
    let mut calls = 0;
    for n in 1..=ROUNDS {
        let mut load = Load::start(world.bases(), Size::SMALL, n, Duration::from_secs(4)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        // On a busy machine an election may be under way.
        let primary = loop {
            match world.primary().await {
                Some(primary) => break primary,
                None => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        part(&world, primary, true);
        tokio::time::sleep(Duration::from_secs(8)).await;
        world.heal().await;
        load.stop().await;
        let setup = Setup { slack_ms: 800, ..Setup::default() };
        let (_, violations) = load.verdict(&setup, Duration::from_secs(15)).await;
        calls += load.shared.recorder.len();
        let rules: BTreeSet<Rule> = violations.iter().map(|violation| violation.rule).collect();
        println!("answer_early on MongoDB: round {n}, {calls} calls, found as {rules:?}");
        if rules.contains(&Rule::Lost) || rules.contains(&Rule::DeliveredAfterEnd) {
            return world.close().await;
        }
    }
    panic!("it was not found in {ROUNDS} rounds, {calls} calls");
}
