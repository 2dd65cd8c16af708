//! What is stored together is stored whole; batches call back once, when their last job has ended.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::facts::{Fate, Life, NEVER, Origin, Push};
use super::super::history::{Call, Verb};
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    partial(case, findings);
    callbacks(case, findings);
    if case.setup.is_drained {
        missing_callbacks(case, findings);
        batch_counts(case, findings);
    }
}

/// Where one job of a call is there, so are all.
fn partial(case: &Case<'_, '_>, findings: &mut Findings) {
    let mut calls: BTreeMap<(usize, &str), Vec<&Push<'_>>> = BTreeMap::new();
    for push in &case.facts.pushes {
        match push.origin {
            Origin::Child { token, .. } => calls.entry((push.call, token)).or_default().push(push),
            Origin::Member { .. } | Origin::Together => calls.entry((push.call, "")).or_default().push(push),
            _ => {}
        }
    }
    for ((call, token), pushes) in calls {
        let (known, unknown): (Vec<&Push<'_>>, Vec<&Push<'_>>) =
            pushes.iter().partition(|push| push.id().is_some() || case.is_known(push.mark));
        let is_committed = || {
            let Origin::Child { id, .. } = pushes[0].origin else { return false };
            let mut tokens = case.tokens(id).iter().filter(|one| one.token == token);
            tokens.any(|token| token.success(Verb::Commit).is_some())
        };
        let happened = !known.is_empty() || is_committed();
        let missing: Vec<&str> =
            unknown.iter().filter(|push| !may_be_unseen(case, push)).map(|push| push.mark).collect();
        if happened && !missing.is_empty() && case.setup.is_drained {
            let detail = format!("{} of {} jobs are there, not {missing:?}", known.len(), pushes.len());
            findings.add(Rule::Partial, &format!("call {call}"), detail);
        }
    }
}

/// Whether a job that exists may never be seen: taken by a pop, purged, a duplicate, expired, or left in no scan.
fn may_be_unseen(case: &Case<'_, '_>, push: &Push<'_>) -> bool {
    let is_popped = case.pops_unknown(push.queue) > 0;
    let is_purged = case.purged(&[push.queue], push.from) < NEVER;
    let cancelled = matches!(push.origin, Origin::Member { .. })
        && case.facts.possible(&[Verb::CancelBatch]).next().is_some();
    let spec = push.spec;
    is_popped || is_purged || cancelled || spec["key"].is_string() || spec["expires_in_ms"].is_u64()
}

fn header<'a>(life: &Life<'a>, name: &str) -> Option<&'a str> {
    life.view()?["headers"][name].as_str()
}

fn is_callback(life: &Life<'_>) -> bool {
    life.pushes.iter().any(|push| matches!(push.origin, Origin::Callback { .. }))
}

/// The callbacks that were seen: one for each batch, and none before the batch's last job may have ended.
fn callbacks(case: &Case<'_, '_>, findings: &mut Findings) {
    let mut seen: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut first: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, life) in case.facts.lives.iter().filter(|(_, life)| is_callback(life)) {
        let Some(batch) = header(life, "batch-id") else {
            findings.add(Rule::Callback, id, "names no batch".to_owned());
            continue;
        };
        seen.entry(batch).or_default().insert(id);
        let at = life.deliveries.iter().map(|delivery| delivery.to).min().unwrap_or(NEVER);
        let earliest = first.entry(batch).or_insert(NEVER);
        *earliest = at.min(*earliest);
    }
    for (batch, ids) in seen.iter().filter(|(_, ids)| ids.len() > 1) {
        findings.add(Rule::Callback, batch, format!("called back as {ids:?}"));
    }
    for (id, life) in &case.facts.lives {
        let is_own =
            life.is_created && life.pushes.iter().any(|push| matches!(push.origin, Origin::Member { .. }));
        let Some(called) = life.batch().filter(|_| is_own).and_then(|batch| first.get(batch)) else {
            continue;
        };
        let may_die =
            life.pushes.iter().any(|push| push.spec["max_attempts"].as_u64().is_none_or(|most| most < 1000));
        if !may_die && case.finishes(life) > *called {
            findings.add(
                Rule::Callback,
                life.batch().unwrap_or_default(),
                format!("came before {id} had ended"),
            );
        }
    }
}

/// The batches of which it is certain that they were created and sealed, with their callback.
fn sealed<'a>(case: &Case<'_, 'a>) -> Vec<(&'a str, Option<&'a Value>)> {
    let ok = |call: &&&Call| call.outcome.answer().is_some();
    let created = case.facts.others.iter().filter(|call| call.verb == Verb::CreateBatch).filter(ok);
    let is_sealed = |id: &str, call: &Call| {
        let by = |other: &&&Call| matches!(other.verb, Verb::Seal | Verb::CancelBatch) && other.target == id;
        call.body["sealed"] != false || case.facts.others.iter().filter(by).any(|other| ok(&other))
    };
    let batches = created.filter_map(|call| {
        let id = call.outcome.answer()?["id"].as_str()?;
        let callback = call.body.get("on_finished").filter(|callback| callback.is_object());
        is_sealed(id, call).then_some((id, callback))
    });
    batches.collect()
}

fn missing_callbacks(case: &Case<'_, '_>, findings: &mut Findings) {
    let lives = case.facts.lives.values().filter(|life| is_callback(life));
    let called: BTreeSet<&str> = lives.filter_map(|life| header(life, "batch-id")).collect();
    for (batch, callback) in sealed(case) {
        let Some(callback) = callback else { continue };
        let queue = callback["queue"].as_str().unwrap_or_default();
        let may_be_gone = case.pops_unknown(queue) > 0
            || case.purged(&[queue], 0) < NEVER
            || callback["expires_in_ms"].is_u64();
        if !called.contains(batch) && !may_be_gone {
            findings.add(Rule::Callback, batch, "was never called back".to_owned());
        }
    }
}

/// Once all is drained no job of a batch is pending, and all of them were counted.
fn batch_counts(case: &Case<'_, '_>, findings: &mut Findings) {
    let mut members: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for push in &case.facts.pushes {
        let Origin::Member { batch: Some(batch) } = push.origin else { continue };
        let (certain, possible) = members.entry(batch).or_default();
        match push.fate {
            Fate::Done(_) => {
                // The repeat of a call with an `Idempotency-Key` names the same jobs.
                let new = push.id().filter(|(id, is_duplicate)| !is_duplicate && named.insert((batch, *id)));
                *certain += u64::from(new.is_some());
                *possible += u64::from(new.is_some());
            }
            Fate::Unknown => *possible += 1,
            _ => {}
        }
    }
    for batch in &case.scan.batches {
        let Some(id) = batch["id"].as_str() else { continue };
        let (certain, possible) = members.get(id).copied().unwrap_or_default();
        let ended: u64 = ["done", "dead", "cancelled"].iter().filter_map(|name| batch[*name].as_u64()).sum();
        let is_whole = batch["pending"] == 0 && (certain..=possible).contains(&ended);
        if !is_whole {
            let detail = format!("has {certain} to {possible} jobs, and counts {batch}");
            findings.add(Rule::Counts, id, detail);
        }
    }
}
