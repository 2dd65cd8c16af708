//! Delays are never cut short, and an occurrence of a schedule happens once.

use std::collections::{BTreeMap, BTreeSet};

use super::super::facts::{Facts, Life, NEVER, Origin, may_have_happened, text};
use super::super::history::Verb;
use super::super::tokens::{Ending, Token};
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    for (id, life) in &case.facts.lives {
        let queues = case.queues(life);
        let mut others = case.facts.possible(&[Verb::Redrive, Verb::Operation]);
        let is_edited = life.touches.iter().any(|call| !call.verb.is_cancel() && may_have_happened(call));
        if !is_edited && !others.any(|call| queues.iter().any(|queue| call.revives(queue))) {
            early(case, id, life, findings);
        }
    }
    schedules(case.facts, findings);
}

fn early(case: &Case<'_, '_>, id: &str, life: &Life<'_>, findings: &mut Findings) {
    let slack = case.setup.slack_us();
    let is_immediate = |origin| !matches!(origin, Origin::Schedule { .. });
    let pushes = life.pushes.iter().filter(|push| push.fate.may_have_happened() && is_immediate(push.origin));
    let delays = pushes.map(|push| push.spec["delay_ms"].as_u64().unwrap_or(0));
    if let Some(delay_ms) = delays.min().filter(|ms| *ms > 0) {
        let due = (life.born_us() + delay_ms * 1000).saturating_sub(slack);
        for delivery in life.deliveries.iter().filter(|delivery| delivery.to < due) {
            let detail = format!("call {} got it {} µs early", delivery.call, due - delivery.to);
            findings.add(Rule::Early, id, detail);
        }
    }
    let tokens = case.tokens(id);
    for token in tokens {
        let Some(due) = returns_at(token).map(|due| due.saturating_sub(slack)) else { continue };
        let later = tokens.iter().filter(|other| token.is_before(other));
        for other in later.filter(|other| other.seen < due) {
            let detail = format!("{} came {} µs early after {}", other.token, due - other.seen, token.token);
            findings.add(Rule::Early, id, detail);
        }
    }
}

/// When the job is due again at the earliest, if a settle that succeeded said so.
fn returns_at(token: &Token<'_>) -> Option<u64> {
    let (verb, Ending::Returned, _) = token.ending()? else { return None };
    let first = token.first(verb)?;
    let of_verb =
        || token.settles.iter().filter(|settle| settle.verb == verb && settle.fate.may_have_happened());
    let delay_ms = match verb {
        Verb::Commit => token.job["then"][0]["delay_ms"].as_u64(),
        _ => of_verb().map(|settle| settle.body["delay_ms"].as_u64().unwrap_or(0)).min(),
    };
    Some(first + delay_ms.filter(|ms| *ms > 0)? * 1000)
}

/// In its first attempt a job shows the occurrence that it is for, unless it was moved, which starts its attempts again.
fn schedules(facts: &Facts<'_>, findings: &mut Findings) {
    let mut runs: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for delivery in facts
        .deliveries
        .iter()
        .filter(|delivery| delivery.job["attempt"] == 1 && delivery.job["trail"].is_null())
    {
        let Some(life) = facts.lives.get(delivery.id) else { continue };
        for push in &life.pushes {
            if let Origin::Schedule { name } = push.origin
                && push.spec["delay_ms"].is_null()
                && delivery.to < NEVER
            {
                let at = text(delivery.job, "run_at");
                runs.entry((name, at)).or_default().insert(delivery.id);
            }
        }
    }
    let manual: BTreeSet<&str> =
        facts.possible(&[Verb::RunSchedule]).map(|call| call.target.as_str()).collect();
    for ((name, at), ids) in runs {
        if ids.len() > 1 && !manual.contains(name) {
            findings.add(Rule::Schedule, name, format!("{at} was pushed as {ids:?}"));
        }
    }
}
