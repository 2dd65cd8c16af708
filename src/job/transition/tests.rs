use std::collections::HashSet;

use super::delivery::{self, BLOCK, BURY, Delivery, RESERVE, UNBLOCK};
use super::*;
use crate::job::settings::QueueSettings;
use crate::job::state::{TRANSITIONS, Target, Transition, Verb};
use crate::job::{BatchId, Claim, JobSpec, NewJob, Reach, When};

const NOW: i64 = 1_000_000;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn queue(name: &str) -> QueueName {
    name.parse().unwrap()
}

fn job(state: State, claim: &Claim) -> Meta {
    let spec = JobSpec { max_attempts: Some(5), ..JobSpec::new(Payload::parse("1").unwrap()) };
    let new = NewJob::new("A".parse().unwrap(), queue("q"), spec, at(NOW - 10));
    let held = matches!(state, State::Reserved | State::Done);
    let reserved_until = (state == State::Reserved).then(|| at(NOW + 10));
    Meta { state, claim: held.then(|| claim.clone()), reserved_until, attempts: 1, ..new.into_job().meta }
}

/// A job of each state, as it can be where that makes a difference.
fn jobs(claim: &Claim) -> Vec<Meta> {
    let origin = Origin { queue: queue("home"), at: at(NOW - 5), attempts: 3, error: None };
    let stage =
        Stage { queue: queue("next"), priority: None, delay_ms: None, max_attempts: None, backoff: None };
    let mut jobs = Vec::new();
    for plain in State::ALL.map(|state| job(state, claim)) {
        jobs.push(Meta { route: vec![stage.clone()], ..plain.clone() });
        jobs.push(Meta { origin: Some(origin.clone()), ..plain.clone() });
        jobs.push(Meta { cancel_requested: true, ..plain.clone() });
        jobs.push(Meta { batch: Some(batch()), ..plain.clone() });
        jobs.push(Meta { expires_at: Some(at(NOW - 1)), ..plain.clone() });
        jobs.push(Meta { attempts: 5, ..plain.clone() });
        jobs.push(Meta { attempts: 5, group: Some("g".parse().unwrap()), turn: Some(7), ..plain.clone() });
        jobs.push(plain);
    }
    jobs
}

fn batch() -> BatchId {
    "01JZ0000000000000000000000".parse().unwrap()
}

fn operations(claim: &Claim) -> Vec<Operation> {
    let (result, error, lease_ms, progress) = (None, || None, None, None);
    let (claim, all) = (|| claim.clone(), Reach::default);
    let mut operations = vec![
        Operation::Commit { claim: claim(), result, push: Vec::new() },
        Operation::Pop { claim: claim() },
        Operation::Rollback { claim: claim(), kind: RollbackKind::retry(None), error: error() },
        Operation::Rollback { claim: claim(), kind: RollbackKind::Snooze(Back::InPlace), error: error() },
        Operation::Rollback { claim: claim(), kind: RollbackKind::Dead, error: error() },
        Operation::Extend { claim: claim(), lease_ms, progress },
        Operation::Move {
            claim: claim(),
            queue: queue("other"),
            payload: None,
            when: When::Now,
            priority: None,
            headers: None,
            key: None,
        },
        Operation::Recall { claim: claim(), verb: Verb::Commit },
        Operation::TakeOver { claim: claim(), to: Claim::random(), lease_ms: 1000 },
        Operation::Release { claim: claim(), unless_seen: false },
        Operation::Lapse { claim: claim(), reserved_until: at(NOW + 10) },
        Operation::Abandon { claim: claim(), loss: Loss::Removed },
        Operation::Expire { expires_at: at(NOW - 1) },
        Operation::Edit { within: all(), edit: Box::default() },
        Operation::Edit { within: all(), edit: Box::new(Edit { group: Some(None), ..Edit::default() }) },
        Operation::Cancel { within: all(), force: false },
        Operation::Cancel { within: all(), force: true },
        Operation::CancelUnheld { within: all() },
        Operation::CancelOfBatch { within: all(), batch: batch() },
        Operation::Redrive { within: all(), home: all() },
        Operation::Retry { within: all() },
        Operation::Run { within: all() },
        Operation::Revoke { within: all() },
        Operation::Relocate { within: all(), queue: queue("other"), when: None, priority: None },
    ];
    let visible = [Visible::Ready, Visible::Blocked, Visible::Reserved, Visible::Done, Visible::Dead];
    operations.extend(visible.map(|state| Operation::Purge { within: all(), states: vec![state] }));
    operations
}

fn rules() -> [Rules; 2] {
    let rules = |settings: QueueSettings| Rules::new(Default::default(), [(queue("q"), settings)].into());
    let keeping = QueueSettings { retain_done_ms: Some(1000), ..Default::default() };
    let burying = QueueSettings { dead_letter: Some(queue("dead")), ..Default::default() };
    [rules(keeping), rules(burying)]
}

fn target(meta: &Meta, step: &Step) -> Target {
    match &step.next {
        Next::Keep => Some(meta.state),
        Next::Write { meta, .. } => Some(meta.state),
        Next::Delete => None,
    }
}

/// What every operation does to every job, and what the rules of claims do.
fn every_transition() -> HashSet<(State, Verb, Target)> {
    let (claim, mut found) = (Claim::random(), HashSet::new());
    for rules in &rules() {
        let around = Surroundings { now: at(NOW), rules, chance: 0.5 };
        for (meta, operation) in
            jobs(&claim).iter().flat_map(|meta| operations(&claim).into_iter().map(move |one| (meta, one)))
        {
            if let Ok(step) = step(meta, &operation, around) {
                found.insert((meta.state, operation.verb(), target(meta, &step)));
            }
        }
    }
    let semaphore = "s".parse().unwrap();
    let delivery = Delivery { claim: &claim, lease_ms: 1000, yields: false, worker: None, at: at(NOW) };
    for before in jobs(&claim) {
        let mut changed = |verb, change: &dyn Fn(&mut Meta) -> Result<(), Refusal>| {
            let mut meta = before.clone();
            match change(&mut meta) {
                Ok(()) => drop(found.insert((before.state, verb, Some(meta.state)))),
                Err(_) => assert_eq!(meta, before, "what is refused changes nothing"),
            }
        };
        changed(Verb::Reserve, &|meta| delivery::reserve(meta, delivery));
        changed(Verb::Block, &|meta| delivery::block(meta, &semaphore, at(NOW)));
        changed(Verb::Unblock, &|meta| delivery::unblock(meta, at(NOW)));
        if before.state == State::Ready {
            let mut behind = before.clone();
            delivery::join_line(&mut behind, 2, false);
            found.insert((before.state, Verb::Block, Some(behind.state)));
        }
    }
    found.extend(BURY.map(|bury| (bury.from, Verb::Bury, Some(bury.to))));
    found
}

#[test]
fn what_happens_is_in_the_table_and_all_of_the_table_happens() {
    let found = every_transition();
    for (from, verb, target) in &found {
        let listed = state::targets(*from, *verb).is_some_and(|targets| targets.contains(target));
        assert!(listed, "{from:?} {verb:?} → {target:?} is not in the table");
    }
    for (from, verb, targets, _) in TRANSITIONS {
        for target in *targets {
            assert!(found.contains(&(*from, *verb, *target)), "{from:?} {verb:?} → {target:?} never happens");
        }
    }
}

/// The rules of operations, by their modules.
const SOURCES: [(&str, &str); 4] = [
    ("", include_str!("../transition.rs")),
    ("by_hand", include_str!("by_hand.rs")),
    ("delivery", include_str!("delivery.rs")),
    ("removal", include_str!("removal.rs")),
];

#[test]
fn the_table_names_where_each_transition_is_written() {
    for (from, verb, _, rule) in TRANSITIONS {
        let (module, name) = rule.rsplit_once("::").unwrap_or(("", rule));
        let source = SOURCES.iter().find(|(known, _)| *known == module).expect(rule).1;
        let is_there = source.contains(&format!("fn {name}(")) || source.contains(&format!("const {name}:"));
        assert!(is_there, "{from:?} {verb:?} is written by {rule}, which is not there");
    }
    // Each arm of `step` calls a rule that a row of its verb names.
    let step = SOURCES[0].1.split_once("pub fn step(").unwrap().1.split_once("\n}\n").unwrap().0;
    for operation in operations(&Claim::random()) {
        let debug = format!("{operation:?}");
        let variant = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap();
        let (_, arm) = step.split_once(&format!("Operation::{variant} {{")).expect(variant);
        let arm = arm.split_once("\n        Operation::").map_or(arm, |(arm, _)| arm);
        let rows = TRANSITIONS.iter().filter(|(_, listed, ..)| *listed == operation.verb());
        let is_named = rows.into_iter().any(|(.., rule)| arm.contains(&format!("{rule}(")));
        assert!(
            is_named,
            "{variant} is done by another function than the rows of {:?} say",
            operation.verb()
        );
    }
}

#[test]
fn the_verbs_of_claims_have_one_row_with_one_target() {
    for verb in [Verb::Reserve, Verb::Block, Verb::Unblock] {
        let rows: Vec<_> = TRANSITIONS.iter().filter(|(_, listed, ..)| *listed == verb).collect();
        let Transition { from, to } = Transition::of(verb);
        assert_eq!(rows.len(), 1);
        let (listed, _, targets, _) = *rows[0];
        assert_eq!((listed, targets), (from, &[Some(to)][..]));
    }
}

#[test]
fn a_delivery_is_an_attempt_and_ends_the_wait() {
    let claim = Claim::random();
    let mut meta = job(State::Ready, &claim);
    delivery::block(&mut meta, &"s".parse().unwrap(), at(NOW)).unwrap();
    delivery::unblock(&mut meta, at(NOW + 1)).unwrap();
    assert_eq!((meta.state, meta.waits_for.is_none()), (UNBLOCK.to, true));
    assert_eq!(meta.waiting_since, Some(at(NOW)), "it has not been delivered yet");
    delivery::block(&mut meta, &"s".parse().unwrap(), at(NOW + 2)).unwrap();
    assert_eq!((meta.state, meta.waiting_since), (BLOCK.to, Some(at(NOW))));
    delivery::unblock(&mut meta, at(NOW + 3)).unwrap();
    let worker = "w".parse().unwrap();
    let given =
        Delivery { claim: &claim, lease_ms: 500, yields: true, worker: Some(&worker), at: at(NOW + 4) };
    delivery::reserve(&mut meta, given).unwrap();
    assert_eq!((meta.state, meta.attempts, meta.waiting_since), (RESERVE.to, 2, None));
    assert_eq!((meta.started_at, meta.reserved_until), (Some(at(NOW + 4)), Some(at(NOW + 504))));
    assert_eq!((meta.claim, meta.worker, meta.lease_ms), (Some(claim), Some(worker), Some(500)));
}

#[test]
fn nothing_of_an_earlier_place_stays_with_a_job_that_joins_its_line_again() {
    let mut meta = job(State::Ready, &Claim::random());
    delivery::join_line(&mut meta, 2, false);
    assert_eq!((meta.turn, meta.state), (Some(2), State::Blocked));
    delivery::join_line(&mut meta, 1, true);
    assert_eq!(
        (meta.turn, meta.state),
        (Some(1), State::Ready),
        "the retried transaction found the line empty"
    );
}

#[test]
fn a_delivery_is_never_longer_than_its_job_says() {
    let (claim, rules) = (Claim::random(), Rules::default());
    let cut = Meta { default_lease_ms: Some(900), max_run_ms: Some(700), ..job(State::Ready, &claim) };
    for (yields, lease_ms, until) in [(true, 100, 700), (false, 100, 100), (false, 5000, 700)] {
        let mut meta = cut.clone();
        let given = Delivery { claim: &claim, lease_ms, yields, worker: None, at: at(NOW) };
        delivery::reserve(&mut meta, given).unwrap();
        assert_eq!(meta.reserved_until, Some(at(NOW + until)));
        for (later, extended) in [(600, Some(700)), (699, Some(700)), (700, None), (9000, None)] {
            let around = Surroundings { now: at(NOW + later), rules: &rules, chance: 0.5 };
            let extend = Operation::Extend { claim: claim.clone(), lease_ms: Some(400), progress: None };
            let outcome = step(&meta, &extend, around).map(|step| step.outcome);
            let held = |ms| Outcome::Held { reserved_until: at(NOW + ms), cancel_requested: false };
            assert_eq!(outcome, extended.map(held).ok_or(Refusal::Lost { gone: false }));
            let commit = Operation::Commit { claim: claim.clone(), result: None, push: Vec::new() };
            assert!(step(&meta, &commit, around).is_ok(), "the token decides");
        }
    }
}

#[test]
fn a_recall_changes_no_job() {
    let (claim, rules) = (Claim::random(), Rules::default());
    let around = Surroundings { now: at(NOW), rules: &rules, chance: 0.5 };
    for (meta, verb) in jobs(&claim).iter().flat_map(|meta| [(meta, Verb::Commit), (meta, Verb::Move)]) {
        let recalled = step(meta, &Operation::Recall { claim: claim.clone(), verb }, around);
        match (meta.state, verb) {
            (State::Reserved, _) => assert_eq!(recalled, Err(Refusal::Conflict { state: Visible::Reserved })),
            (State::Done, Verb::Commit) => assert_eq!(recalled.unwrap().next, Next::Keep),
            _ => assert_eq!(recalled, Err(Refusal::Lost { gone: false })),
        }
    }
}

#[test]
fn a_takeover_moves_the_token_and_never_shortens_the_lease() {
    let (claim, to, rules) = (Claim::random(), Claim::random(), Rules::default());
    let around = Surroundings { now: at(NOW), rules: &rules, chance: 0.5 };
    for (lease_ms, until) in [(5, NOW + 10), (1000, NOW + 1000)] {
        let operation = Operation::TakeOver { claim: claim.clone(), to: to.clone(), lease_ms };
        let Next::Write { meta, .. } = step(&job(State::Reserved, &claim), &operation, around).unwrap().next
        else {
            panic!("nothing is written");
        };
        assert_eq!((&meta.claim, meta.reserved_until), (&Some(to.clone()), Some(at(until))));
        assert_eq!((meta.state, meta.attempts), (State::Reserved, 1));
        let lost = Err(Refusal::Lost { gone: false });
        assert_eq!(step(&meta, &operation, around), lost, "the old token is dead");
    }
}

#[test]
fn cancelling_a_batch_takes_only_what_is_unfinished_and_its_own() {
    let (rules, claim) = (Rules::default(), Claim::random());
    let around = Surroundings { now: at(NOW), rules: &rules, chance: 0.5 };
    let cancel = Operation::CancelOfBatch { within: Reach::default(), batch: batch() };
    for state in State::ALL {
        let own = Meta { batch: Some(batch()), ..job(state, &claim) };
        let cancelled = step(&own, &cancel, around);
        match state {
            State::Ready | State::Blocked => assert_eq!(cancelled.unwrap().next, Next::Delete),
            State::Reserved => assert!(matches!(cancelled.unwrap().outcome, Outcome::Held { .. })),
            State::Done | State::Dead => assert!(matches!(cancelled, Err(Refusal::Conflict { .. }))),
        }
        let other = step(&Meta { batch: None, ..own }, &cancel, around);
        assert!(matches!(other, Err(Refusal::Conflict { .. })), "it has left the batch: {state:?}");
    }
}

#[test]
fn a_job_that_has_left_is_unknown_to_what_is_within_other_queues() {
    let (rules, claim) = (Rules::default(), Claim::random());
    let around = Surroundings { now: at(NOW), rules: &rules, chance: 0.5 };
    let elsewhere = || Reach::one(&queue("other"));
    let operations = [
        Operation::Edit { within: elsewhere(), edit: Box::default() },
        Operation::Cancel { within: elsewhere(), force: false },
        Operation::Cancel { within: elsewhere(), force: true },
        Operation::CancelOfBatch { within: elsewhere(), batch: batch() },
        Operation::Purge { within: elsewhere(), states: vec![Visible::Ready] },
        Operation::Redrive { within: elsewhere(), home: Reach::default() },
    ];
    for (operation, meta) in
        operations.iter().flat_map(|one| jobs(&claim).into_iter().map(move |job| (one, job)))
    {
        assert_eq!(step(&meta, operation, around), Err(Refusal::Unknown), "{operation:?}");
    }
    let home = Operation::Redrive { within: Reach::one(&queue("q")), home: elsewhere() };
    for meta in jobs(&claim).into_iter().filter(|job| job.origin.is_some()) {
        assert!(matches!(step(&meta, &home, around), Err(Refusal::Conflict { .. })), "it stays where it is");
    }
}

#[test]
fn each_return_takes_back_the_last_death() {
    let claim = Claim::random();
    let to =
        |dead_letter: &str| QueueSettings { dead_letter: Some(queue(dead_letter)), ..Default::default() };
    let rules = Rules::new(Default::default(), [(queue("q"), to("d1")), (queue("d1"), to("d2"))].into());
    let written = |step: Step| match step.next {
        Next::Write { meta, .. } => *meta,
        other => panic!("{other:?}"),
    };
    let die = |meta: &Meta, now: i64| {
        let around = Surroundings { now: at(NOW + now), rules: &rules, chance: 0.0 };
        let held = Meta { state: State::Reserved, claim: Some(claim.clone()), attempts: 1, ..meta.clone() };
        let error = Some(format!("in {}", meta.queue));
        let rollback = Operation::Rollback { claim: claim.clone(), kind: RollbackKind::Dead, error };
        written(step(&held, &rollback, around).unwrap())
    };
    let redrive = |meta: &Meta| {
        let around = Surroundings { now: at(NOW + 100), rules: &rules, chance: 0.0 };
        let redrive = Operation::Redrive { within: Reach::default(), home: Reach::default() };
        written(step(meta, &redrive, around).unwrap())
    };
    let letter = die(&job(State::Ready, &claim), 1);
    let twice = die(&letter, 2);
    assert_eq!((letter.queue.as_str(), twice.queue.as_str()), ("d1", "d2"));
    let back = redrive(&twice);
    assert_eq!((&back.queue, &back.origin), (&letter.queue, &letter.origin), "a letter, as it was");
    let again = redrive(&die(&back, 3));
    assert_eq!((&again.queue, &again.origin), (&letter.queue, &letter.origin));
    let home = redrive(&again);
    assert_eq!((home.queue.as_str(), &home.origin), ("q", &None));
    assert_eq!(redrive(&die(&home, 4)).origin, None);
}

#[test]
fn what_a_passed_deadline_means_depends_on_the_state() {
    let claim = Claim::random();
    let (until, expires) = (at(NOW), at(NOW + 5));
    for state in State::ALL {
        let both = deadline(state, Some(&claim), Some(until), Some(expires));
        let expected = match state {
            State::Reserved => {
                Some((until, Operation::Lapse { claim: claim.clone(), reserved_until: until }))
            }
            State::Ready | State::Blocked => Some((expires, Operation::Expire { expires_at: expires })),
            State::Done | State::Dead => None,
        };
        assert_eq!(both, expected, "{state:?}");
        let takes = both.as_ref().map(|(_, operation)| state::targets(state, operation.verb()));
        assert!(takes.is_none_or(|row| row.is_some()), "the table has a row for it");
        assert_eq!(deadline(state, None, Some(until), None), None);
        assert_eq!(deadline(state, Some(&claim), None, None), None);
    }
}
