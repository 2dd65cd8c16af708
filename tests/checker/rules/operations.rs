//! Operations over many jobs, by those that give jobs a priority that nothing else gives: each says of a job whether it took it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Delivery, Life, NEVER, may_have_happened};
use super::super::history::{Call, Verb};
use super::super::{Findings, Rule};
use super::Case;

/// For so long after it was asked for an operation takes what comes: the clocks of servers may differ.
const STILL_TAKES_US: u64 = 250_000;

/// What is known of the operation of one priority.
#[derive(Default)]
struct Known {
    may_have_begun: bool,
    /// Whether one of the calls that asked for it may still begin another one.
    is_doubtful: bool,
    /// The operations that give this priority: only one tells of a job which one took it.
    ids: BTreeSet<String>,
    /// When a call that asked for it was answered first.
    asked_by: Option<u64>,
    /// When it was certainly cancelled.
    cancelled: Option<u64>,
}

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    let known = known(case);
    for (id, life) in &case.facts.lives {
        let seen = life.deliveries.iter().map(|one| one.job).chain(life.scanned.iter().copied());
        let priorities = seen.filter_map(|job| job["priority"].as_i64());
        for priority in priorities.collect::<BTreeSet<_>>() {
            let is_own = life.pushes.iter().any(|push| push.spec["priority"] == priority)
                || life.touches.iter().any(|call| call.body["priority"] == priority);
            if let Some(known) = known.get(&priority).filter(|_| !is_own) {
                taken(case, id, life, priority, known, findings);
            }
        }
    }
}

fn known(case: &Case<'_, '_>) -> BTreeMap<i64, Known> {
    let mut known: BTreeMap<i64, Known> = BTreeMap::new();
    let calls = || case.facts.others.iter().copied();
    let cancelled = |id: &str| {
        let is_cancelled = |call: &&Call| {
            let answer = call.outcome.answer();
            call.verb == Verb::CancelOperation
                && call.target == id
                && answer.is_some_and(|answer| answer["state"] == "cancelled")
        };
        calls().filter(is_cancelled).map(|call| call.completed_us).min()
    };
    for call in calls().filter(|call| call.verb == Verb::Operation && call.body["action"] == "set_priority") {
        let Some(priority) = call.body["priority"].as_i64() else { continue };
        let one = known.entry(priority).or_default();
        one.may_have_begun |= may_have_happened(call);
        one.is_doubtful |= call.outcome.is_unknown() && call.key.is_none();
        let Some(answer) = call.outcome.answer() else { continue };
        one.ids.extend(answer["id"].as_str().map(str::to_owned));
        one.asked_by = Some(one.asked_by.unwrap_or(NEVER).min(call.completed_us));
        one.cancelled = one.cancelled.or(answer["id"].as_str().and_then(cancelled));
    }
    known
}

/// The job has this priority, which only the operation gives.
fn taken(
    case: &Case<'_, '_>,
    id: &str,
    life: &Life<'_>,
    priority: i64,
    known: &Known,
    findings: &mut Findings,
) {
    if !known.may_have_begun {
        findings.add(
            Rule::Operation,
            id,
            format!("has priority {priority} of an operation that was refused"),
        );
    }
    if known.is_doubtful || known.ids.len() > 1 {
        return;
    }
    let takes_for = STILL_TAKES_US + case.setup.slack_us();
    let came_later = |asked: u64| !life.pushes.is_empty() && life.born_us() > asked.saturating_add(takes_for);
    if known.asked_by.is_some_and(came_later) {
        findings.add(
            Rule::Operation,
            id,
            format!("came after the operation that gave it priority {priority}"),
        );
    }
    let Some(cancelled) = known.cancelled else { return };
    let has = |one: &&Delivery<'_>| one.job["priority"] == priority;
    let untouched =
        life.deliveries.iter().filter(|one| one.from > cancelled && !has(one)).map(|one| one.to).min();
    let later = |one: &&Delivery<'_>| untouched.is_some_and(|at| one.from > at);
    let is_kept = untouched.is_some() && life.scanned.iter().any(|job| job["priority"] == priority);
    if is_kept || life.deliveries.iter().filter(later).any(|one| has(&one)) {
        let detail = format!("got priority {priority} after the operation was cancelled");
        findings.add(Rule::Operation, id, detail);
    }
}
