//! A job ends once, and no token has an effect after its time.

use super::super::facts::{Life, may_have_happened, text};
use super::super::history::{Call, Outcome, Verb};
use super::super::tokens::{Ending, Token};
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    for (id, life) in &case.facts.lives {
        let tokens = case.tokens(id);
        twice(id, life, tokens, findings);
        stale(id, tokens, findings);
        foreign(id, life, tokens, findings);
        after_end(case, id, life, tokens, findings);
    }
}

fn twice(id: &str, life: &Life<'_>, tokens: &[Token<'_>], findings: &mut Findings) {
    let mut ends: Vec<String> = Vec::new();
    for token in tokens {
        let verbs = [Verb::Commit, Verb::Rollback, Verb::Move];
        let done: Vec<Verb> = verbs.into_iter().filter(|verb| token.success(*verb).is_some()).collect();
        if done.len() > 1 {
            findings.add(Rule::SettledTwice, id, format!("{} had {done:?}", token.token));
        }
        if let Some((verb, Ending::Gone, _)) = token.ending() {
            ends.push(format!("{verb:?} of {}", token.token));
        }
    }
    let popped = life.deliveries.iter().filter(|delivery| delivery.token.is_none());
    let popped: std::collections::BTreeMap<_, usize> =
        popped.map(|delivery| (delivery.caller(), delivery.call)).collect();
    ends.extend(popped.values().map(|call| format!("pop in call {call}")));
    if ends.len() > 1 {
        findings.add(Rule::SettledTwice, id, ends.join(", "));
    }
}

/// No settle succeeds that was first sent after a later token had been handed out.
fn stale(id: &str, tokens: &[Token<'_>], findings: &mut Findings) {
    for token in tokens {
        let Some(later) = tokens.iter().filter(|other| token.is_before(other)).map(|other| other.seen).min()
        else {
            continue;
        };
        for verb in [Verb::Commit, Verb::Rollback, Verb::Move] {
            let first = token.first(verb).filter(|_| token.success(verb).is_some());
            if first.is_some_and(|first| first > later) {
                let detail = format!("{verb:?} with {} succeeded after a later delivery", token.token);
                findings.add(Rule::StaleToken, id, detail);
            }
        }
        let extends = token.settles.iter().filter(|settle| settle.verb == Verb::Extend);
        if extends.filter(|settle| settle.fate.answer().is_some()).any(|settle| settle.from > later) {
            findings.add(Rule::StaleToken, id, format!("extend with {} succeeded late", token.token));
        }
    }
}

/// Only a token that was handed out has an effect.
fn foreign(id: &str, life: &Life<'_>, tokens: &[Token<'_>], findings: &mut Findings) {
    for settle in life.settles.iter().filter(|settle| settle.fate.answer().is_some()) {
        if !tokens.iter().any(|token| token.token == settle.token) {
            let detail = format!("{:?} with {:?}, which was never handed out", settle.verb, settle.token);
            findings.add(Rule::StaleToken, id, detail);
        }
    }
}

/// When the job had certainly left, and why.
fn gone_by<'a>(life: &Life<'a>, tokens: &[Token<'a>]) -> Option<(u64, String)> {
    let settled = tokens.iter().filter_map(|token| match token.ending() {
        Some((verb, Ending::Gone, at)) => Some((at, format!("{verb:?} with {}", token.token))),
        _ => None,
    });
    let popped = life.deliveries.iter().filter(|delivery| delivery.token.is_none());
    let popped = popped.map(|delivery| (delivery.to, format!("pop in call {}", delivery.call)));
    let deleted = |call: &&&Call| matches!(call.outcome, Outcome::Ok { status: 200 | 204, .. });
    let cancelled = life.touches.iter().filter(|call| call.verb.is_cancel()).filter(deleted);
    let cancelled = cancelled.map(|call| (call.completed_us, "cancel".to_owned()));
    settled.chain(popped).chain(cancelled).min()
}

/// When the job had certainly died where it is, unless an operator may have revived it.
fn dead_by(case: &Case<'_, '_>, life: &Life<'_>, tokens: &[Token<'_>]) -> Option<(u64, String)> {
    let queues = case.queues(life);
    let mut revived = case.facts.possible(&[Verb::Redrive, Verb::Operation]);
    if revived.any(|call| queues.iter().any(|queue| call.revives(queue)))
        || life.touches.iter().any(|call| may_have_happened(call))
    {
        return None;
    }
    let dead = tokens.iter().filter_map(|token| {
        let (known, answer) = token.success(Verb::Rollback)?;
        let answer = answer?;
        let is_here = text(answer, "state") == "dead" && answer["queue"].is_null();
        is_here.then(|| (known, format!("it died with {}", token.token)))
    });
    dead.min()
}

fn after_end<'a>(
    case: &Case<'_, 'a>,
    id: &str,
    life: &Life<'a>,
    tokens: &[Token<'a>],
    findings: &mut Findings,
) {
    let ends = [gone_by(life, tokens), dead_by(case, life, tokens)];
    for (ended, why) in ends.into_iter().flatten() {
        for delivery in life.deliveries.iter().filter(|delivery| delivery.from > ended) {
            findings.add(Rule::DeliveredAfterEnd, id, format!("in call {} after {why}", delivery.call));
        }
    }
    if let Some((_, why)) = gone_by(life, tokens) {
        for job in life.scanned.iter().filter(|job| job["state"] != "done") {
            findings.add(Rule::DeliveredAfterEnd, id, format!("is still {} after {why}", job["state"]));
        }
    }
}
