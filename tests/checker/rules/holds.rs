//! One holder at a time; groups and semaphores.

use std::collections::{BTreeMap, HashMap};

use super::super::facts::{may_have_happened, text};
use super::super::history::Verb;
use super::super::tokens::Token;
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    shared_tokens(case, findings);
    let mut resources: BTreeMap<(&str, String), Vec<Hold<'_>>> = BTreeMap::new();
    for (id, tokens) in case.tokens {
        two_holders(id, tokens, findings);
        for token in tokens.iter().filter(|token| token.held_until > token.seen) {
            for resource in resources_of(token) {
                let hold = Hold { from: token.seen, until: token.held_until, id };
                resources.entry(resource).or_default().push(hold);
            }
        }
    }
    let capacities = capacities(case);
    for ((kind, name), holds) in resources {
        let (rule, capacity) = match kind {
            "semaphore" => (Rule::Capacity, capacities.get(name.as_str()).copied()),
            _ => (Rule::GroupShared, Some(1)),
        };
        if let Some(capacity) = capacity {
            crowd(rule, &format!("{kind} {name}"), capacity, holds, findings);
        }
    }
}

struct Hold<'a> {
    from: u64,
    until: u64,
    id: &'a str,
}

/// What only so many jobs may hold at once.
fn resources_of(token: &Token<'_>) -> Vec<(&'static str, String)> {
    let semaphores = token.job["semaphores"].as_array().into_iter().flatten();
    let mut resources: Vec<_> =
        semaphores.filter_map(|name| Some(("semaphore", name.as_str()?.to_owned()))).collect();
    if let Some(group) = token.job["group"].as_str()
        && token.job["dead_lettered_from"].is_null()
    {
        resources.push(("group", format!("{group} of {}", text(token.job, "queue"))));
    }
    resources
}

/// The most that each semaphore may have taken at any time.
fn capacities<'a>(case: &Case<'_, 'a>) -> HashMap<&'a str, usize> {
    let mut capacities: HashMap<&str, usize> = HashMap::new();
    for call in case.facts.possible(&[Verb::PutSemaphore]).filter(|call| may_have_happened(call)) {
        let capacity = usize::try_from(call.body["capacity"].as_u64().unwrap_or(0)).unwrap();
        let most = capacities.entry(&call.target).or_default();
        *most = capacity.max(*most);
    }
    capacities
}

/// Finds a moment at which too many hold something.
fn crowd(rule: Rule, what: &str, capacity: usize, mut holds: Vec<Hold<'_>>, findings: &mut Findings) {
    holds.sort_by_key(|hold| hold.from);
    let mut held: Vec<&Hold<'_>> = Vec::new();
    for hold in &holds {
        held.retain(|other| other.until > hold.from);
        held.push(hold);
        if held.len() > capacity {
            let ids: Vec<&str> = held.iter().map(|hold| hold.id).collect();
            findings.add(rule, what, format!("{ids:?} at once, {capacity} may; at {} µs", hold.from));
            return;
        }
    }
}

fn two_holders(id: &str, tokens: &[Token<'_>], findings: &mut Findings) {
    let mut last: Option<&Token<'_>> = None;
    for token in tokens.iter().filter(|token| token.held_until > token.seen) {
        if let Some(last) = last.filter(|last| last.held_until > token.seen) {
            let detail = format!(
                "{} held it until {} µs, {} from {} µs",
                last.token, last.held_until, token.token, token.seen
            );
            findings.add(Rule::TwoHolders, id, detail);
        }
        if last.is_none_or(|last| last.held_until < token.held_until) {
            last = Some(token);
        }
    }
}

/// Only a repeat under the same `Idempotency-Key` gets a token again.
fn shared_tokens(case: &Case<'_, '_>, findings: &mut Findings) {
    let mut first: HashMap<(&str, &str), (usize, Option<&str>)> = HashMap::new();
    for delivery in &case.facts.deliveries {
        let Some(token) = delivery.token else { continue };
        let (call, key) = *first.entry((delivery.id, token)).or_insert((delivery.call, delivery.key));
        if call != delivery.call && (key.is_none() || key != delivery.key) {
            let detail = format!("calls {call} and {} got {token}", delivery.call);
            findings.add(Rule::SharedToken, delivery.id, detail);
        }
    }
}
