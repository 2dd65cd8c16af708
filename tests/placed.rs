//! Faults at every step of every verb over MongoDB. What a verb passes is learnt by running it undisturbed: each
//! command, and each pause point of the server. Then a case for each step and each fault is made: the fault strikes, the
//! rest of the system goes on (leases lapse, another worker takes and finishes, the client repeats its call at another
//! server), the first server comes back, everything is finished, and what the clients saw is judged.
//!
//! `TAILBACK_PLACED_EVERY`: every nth case is run (1: all, `just placed`); `TAILBACK_PLACED_PART`: which of these n
//! parts; `TAILBACK_PLACED_HISTORY`: a directory for the calls of lanes in which something is wrong; `TAILBACK_PLACED_ONLY`: those whose names contain this, or one of several texts with a bar between them; `TAILBACK_PLACED_TABLE`: the file for the table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "what came of the cases is printed")]

mod checker;
mod common;

#[path = "placed/answer.rs"]
mod answer;
#[path = "placed/case.rs"]
mod case;
#[path = "placed/coverage.rs"]
mod coverage;
#[path = "placed/harm.rs"]
mod harm;
#[path = "placed/lane.rs"]
mod lane;
#[path = "placed/learn.rs"]
mod learn;
#[path = "placed/record.rs"]
mod record;
#[path = "placed/run.rs"]
mod run;
#[path = "placed/story.rs"]
mod story;
#[path = "placed/table.rs"]
mod table;
#[path = "placed/verbs.rs"]
mod verbs;
#[path = "placed/verbs_background.rs"]
mod verbs_background;
#[path = "placed/verbs_keys.rs"]
mod verbs_keys;
#[path = "placed/verbs_once.rs"]
mod verbs_once;
#[path = "placed/verbs_one_job.rs"]
mod verbs_one_job;
#[path = "placed/verbs_others.rs"]
mod verbs_others;
#[path = "placed/verbs_repeats.rs"]
mod verbs_repeats;
#[path = "placed/verbs_settle.rs"]
mod verbs_settle;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Instant;

use case::{SHORT_MS, Verb};
use common::own_mongod::OwnMongod;
use common::server::PATIENCE;
use futures::FutureExt as _;
use harm::{Harm, Moment};
use lane::Lane;
use table::{Row, Table};
use verbs::VERBS;

/// How many cases run at once.
const LANES: usize = 8;
/// How often a verb is tried undisturbed at least, on a machine that is busy for a while.
const LEARNING_TRIES: usize = 5;
/// How often a case whose fault is not met is tried.
const TRIES: usize = 3;
/// Which part of the cases runs if the environment says nothing: one of so many.
const SHARE: u64 = 48;

/// Fail points, and an early end of the transactions that a killed server leaves open.
const PARAMETERS: [&str; 2] = ["enableTestCommands=1", "transactionLifetimeLimitSeconds=5"];

/// Within how many cases a planted mistake is to be found: two where nothing else runs; the moment of one is missed on a busy machine.
const MISTAKE_TRIES: usize = 24;

/// Mistakes that a server can be told to make, and a case that finds each.
const MISTAKES: [(&str, &str, &str, Harm); 4] = [
    ("absence_proves", "commit", "delete jobs", Harm::PartedBefore),
    ("hand_out_dead_tokens", "reserve with a key", "·request.claimed", Harm::Stopped),
    ("share_claims", "reserve with a key", "update jobs", Harm::PartedAfter),
    ("insert_anew", "push", "insert jobs", Harm::PartedAfter),
];

/// Which cases are run.
struct Choice {
    every: u64,
    part: u64,
    only: String,
}

impl Choice {
    fn from_env() -> Self {
        let number = |name: &str, default: u64| {
            std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
        };
        Self {
            every: number("TAILBACK_PLACED_EVERY", SHARE),
            part: number("TAILBACK_PLACED_PART", 0),
            only: std::env::var("TAILBACK_PLACED_ONLY").unwrap_or_default(),
        }
    }

    /// A number of the case that does not depend on which others there are.
    fn number(name: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish()
    }

    fn takes(&self, name: &str) -> bool {
        let is_named = self.only.split('|').any(|only| name.contains(only));
        is_named && Self::number(name) % self.every == self.part
    }

    /// Into how many groups the commands are parted that lose their replies: each part of the cases has those of one.
    fn groups(&self) -> u64 {
        if self.every.is_multiple_of(4) { 4 } else { 1 }
    }

    /// Whether it is learnt what follows once this command has lost its reply.
    fn learns(&self, name: &str) -> bool {
        Self::number(name) % self.groups() == self.part % self.groups()
    }

    /// Whether a case is taken, of those that follow a lost reply: of one group there are more.
    fn takes_second(&self, name: &str) -> bool {
        let is_named = self.only.split('|').any(|only| name.contains(only));
        is_named && Self::number(name) % (self.every / self.groups()) == self.part / self.groups()
    }

    fn wants(&self, verb: &Verb) -> bool {
        self.only.split('|').any(|only| only.starts_with(verb.name) || verb.name.contains(only))
    }
}

fn name_of(verb: &Verb, moment: &Moment, harm: Harm) -> String {
    format!("{} / {moment} / {}", verb.name, harm.name())
}

/// Runs the cases of one verb.
async fn run_verb(lane: &mut Lane, verb: &Verb, choice: &Choice, table: &Mutex<Table>) {
    let (began, mut tries) = (Instant::now(), 1);
    let mut learnt = learn::learn(lane, verb, SHORT_MS).await;
    // The machine may be too busy for the server's deadline, or for the leases of what was prepared.
    while learnt.is_err() && (tries < LEARNING_TRIES || began.elapsed() < PATIENCE) {
        learnt = learn::learn(lane, verb, SHORT_MS << tries.min(3)).await;
        tries += 1;
    }
    let mut moments = match learnt {
        Ok(moments) => moments,
        Err(wrong) => return table.lock().unwrap().fail(verb.name, &wrong),
    };
    for first in moments.clone() {
        if let Moment::Command(first) = first
            && first.writes()
            && !verb.is_background()
            && choice.learns(&format!("{} / {first}", verb.name))
        {
            let seconds = learn::learn_second(lane, verb, &first, &moments).await;
            moments.extend(seconds);
        }
    }
    for moment in &moments {
        for harm in Harm::ALL.iter().copied().filter(|harm| harm.fits(moment)) {
            let name = name_of(verb, moment, harm);
            table.lock().unwrap().possible += 1;
            let is_second = matches!(moment, Moment::Second(..));
            let is_taken = if is_second { choice.takes_second(&name) } else { choice.takes(&name) };
            if !is_taken {
                continue;
            }
            let repeat_first = Choice::number(&format!("{name} order")).is_multiple_of(2);
            let began = Instant::now();
            let mut report = None;
            for tried in 0..TRIES {
                let tag = lane.coming_tag();
                lane.names.insert(tag, name.clone());
                report = run::run(lane, verb, moment, harm, repeat_first, SHORT_MS << tried).await;
                if report.is_some() {
                    break;
                }
            }
            let row = Row { verb: verb.name, moment: moment.clone(), harm, took: began.elapsed() };
            table.lock().unwrap().note(row, report.as_ref());
        }
    }
}

async fn run_lane(
    mongod: &OwnMongod,
    number: usize,
    choice: &Choice,
    left: &Mutex<VecDeque<&Verb>>,
    table: &Mutex<Table>,
) {
    let mut lane = Lane::start(mongod, number, "").await;
    loop {
        let Some(verb) = left.lock().unwrap().pop_front() else { break };
        let began = Instant::now();
        let run = AssertUnwindSafe(run_verb(&mut lane, verb, choice, table)).catch_unwind();
        if run.await.is_err() {
            let what = format!("the test panicked, see above; the last case: {}", lane.last_name());
            table.lock().unwrap().fail(verb.name, &what);
            lane = Lane::start(mongod, number + 100, "").await;
        }
        println!("{} took {:?}", verb.name, began.elapsed());
    }
    table.lock().unwrap().met.join(std::mem::take(&mut lane.met));
    for (tags, violation) in record::check(&lane).await {
        let names = tags.iter().filter_map(|tag| lane.names.get(tag).cloned()).collect::<Vec<_>>();
        table.lock().unwrap().fail(&format!("the checker, {tags:?} {names:?}"), &violation);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_verb_keeps_its_promise_at_each_fault_at_each_step() {
    let choice = Choice::from_env();
    let mongod = OwnMongod::with_parameters(&PARAMETERS).await;
    let left = Mutex::new(VERBS.iter().filter(|verb| choice.wants(verb)).collect::<VecDeque<_>>());
    let table = Mutex::new(Table::default());
    let began = Instant::now();
    let lanes = LANES.min(left.lock().unwrap().len());
    futures::future::join_all((0..lanes).map(|n| run_lane(&mongod, n, &choice, &left, &table))).await;
    let table = table.into_inner().unwrap();
    println!("part {} of {}, {:?}", choice.part, choice.every, began.elapsed());
    println!("{}", table.summary());
    if let Ok(path) = std::env::var("TAILBACK_PLACED_TABLE") {
        std::fs::write(path, table.page(choice.every)).unwrap();
    }
    assert!(table.wrong.is_empty(), "{} violations:\n{}", table.wrong.len(), table.wrong.join("\n\n"));
    assert!(table.missed.len() * 10 <= table.cases, "faults that were never met: {:?}", table.missed);
    assert!(table.cases > 0, "no case was chosen");
    if choice.only.is_empty() {
        table.met.judge(choice.every == 1);
    }
}

/// The mistakes that were made once are made again, and each is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_mistakes_are_found() {
    let mongod = OwnMongod::with_parameters(&PARAMETERS).await;
    for (n, (bug, verb, moment, harm)) in MISTAKES.into_iter().enumerate() {
        let mut lane = Lane::start(&mongod, n, bug).await;
        let verb = VERBS.iter().find(|one| one.name == verb).unwrap();
        let mut learnt = learn::learn(&mut lane, verb, SHORT_MS).await;
        while learnt.is_err() {
            learnt = learn::learn(&mut lane, verb, SHORT_MS).await;
        }
        let learnt = learnt.unwrap();
        let moment = learnt.iter().find(|one| one.to_string() == moment).unwrap();
        let mut found = None;
        for tried in 1..=MISTAKE_TRIES {
            let short_ms = SHORT_MS << (3 * tried / (MISTAKE_TRIES + 1));
            let report = run::run(&mut lane, verb, moment, harm, tried % 2 == 1, short_ms).await;
            found = report.and_then(|report| report.wrong.first().cloned());
            if let Some(wrong) = &found {
                println!("{bug}: found in case {tried}: {wrong}");
                break;
            }
        }
        assert!(found.is_some(), "{bug} was not found in {MISTAKE_TRIES} cases");
    }
}
