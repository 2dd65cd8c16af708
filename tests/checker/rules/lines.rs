//! Groups in their order, and keys.

use std::collections::BTreeMap;

use super::super::facts::{Facts, NEVER, Origin, Push};
use super::super::history::Verb;
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    groups(case, findings);
    keys(case, findings);
}

/// A job in the line of its group.
struct InLine<'a> {
    id: &'a str,
    from: u64,
    known: u64,
    /// The call that pushed it and its place there, where that is certain.
    place: Option<(usize, usize)>,
    /// When it may have left at the earliest.
    leaves: u64,
    delivered: u64,
}

fn groups(case: &Case<'_, '_>, findings: &mut Findings) {
    let skips = |queue: &str| {
        case.facts
            .possible(&[Verb::PutSettings])
            .any(|call| call.target == queue && call.body["on_group_dead"] == "skip")
    };
    let mut lines: BTreeMap<(&str, &str), Vec<InLine<'_>>> = BTreeMap::new();
    for (id, life) in &case.facts.lives {
        let Some(first) = life.pushes.iter().find(|push| push.fate.may_have_happened()) else { continue };
        let Some(group) = first.spec["group"].as_str() else { continue };
        if matches!(first.origin, Origin::Callback { .. } | Origin::Schedule { .. }) || skips(first.queue) {
            continue;
        }
        let own = life.pushes.iter().find(|push| push.id() == Some((id, false)));
        let known = if life.known_us == 0 { NEVER } else { life.known_us };
        lines.entry((first.queue, group)).or_default().push(InLine {
            id,
            from: life.born_us(),
            known,
            place: own.map(|push| (push.call, push.place)),
            leaves: case.leaves(id, life),
            delivered: life.deliveries.iter().map(|delivery| delivery.to).min().unwrap_or(NEVER),
        });
    }
    for ((queue, group), mut line) in lines {
        line.sort_by_key(|job| job.known);
        in_order(&format!("{group} of {queue}"), &line, findings);
    }
}

/// `line` is sorted by when its jobs were known. No job is delivered while one that was there before it was sent is.
fn in_order(about: &str, line: &[InLine<'_>], findings: &mut Findings) {
    // For each place, which of the jobs up to it stays longest.
    let mut longest: Vec<usize> = Vec::with_capacity(line.len());
    for (n, job) in line.iter().enumerate() {
        let best = longest.last().copied().filter(|best| line[*best].leaves >= job.leaves);
        longest.push(best.unwrap_or(n));
    }
    for job in line.iter().filter(|job| job.delivered < NEVER) {
        let before = line.partition_point(|other| other.known < job.from);
        let Some(first) = before.checked_sub(1).map(|last| &line[longest[last]]) else { continue };
        if first.leaves > job.delivered && first.id != job.id {
            let detail = format!("{} came while {} was before it", job.id, first.id);
            findings.add(Rule::GroupOrder, about, detail);
        }
    }
    let mut by_call: BTreeMap<usize, Vec<(usize, &InLine<'_>)>> = BTreeMap::new();
    for job in line {
        if let Some((call, place)) = job.place {
            by_call.entry(call).or_default().push((place, job));
        }
    }
    for jobs in by_call.values_mut() {
        jobs.sort_by_key(|(place, _)| *place);
        for pair in jobs.windows(2) {
            if pair[0].1.leaves > pair[1].1.delivered {
                let detail = format!("{} came while {} was before it", pair[1].1.id, pair[0].1.id);
                findings.add(Rule::GroupOrder, about, detail);
            }
        }
    }
}

/// A push that made a job although its key was taken.
fn keys(case: &Case<'_, '_>, findings: &mut Findings) {
    let mut made: BTreeMap<(&str, &str), Vec<(&str, &Push<'_>)>> = BTreeMap::new();
    for push in &case.facts.pushes {
        let Some(key) = push.spec["key"].as_str() else { continue };
        match push.id() {
            Some((id, false)) => made.entry((push.queue, key)).or_default().push((id, push)),
            Some((id, true)) => duplicate(case.facts, id, push, key, findings),
            None => {}
        }
    }
    for ((queue, key), pushes) in made {
        for (n, (id, push)) in pushes.iter().enumerate() {
            let taken = taken_until(case, id, push);
            for (other_id, other) in &pushes[n + 1..] {
                // Either may have been the first.
                let is_free = |taken: u64, first: &Push<'_>, second: &Push<'_>| {
                    second.to > taken && first.from < second.to
                };
                let other_taken = taken_until(case, other_id, other);
                if id != other_id && !is_free(taken, push, other) && !is_free(other_taken, other, push) {
                    findings.add(
                        Rule::Key,
                        &format!("{key} of {queue}"),
                        format!("made {id} and {other_id}"),
                    );
                }
            }
        }
    }
}

/// Until when the key is certainly taken by this job. A cancel frees it, and so does its expiry.
fn taken_until(case: &Case<'_, '_>, id: &str, push: &Push<'_>) -> u64 {
    let ttl_us = push.spec["key_ttl_ms"].as_u64().unwrap_or(300_000) * 1000;
    let by_time = (push.from + ttl_us).saturating_sub(case.setup.slack_us());
    let by_time = by_time.min(case.facts.lives.get(id).map_or(u64::MAX, |life| case.cancelled(life)));
    // One that expires frees it as well.
    let expires_us = push.spec["expires_in_ms"].as_u64().map(|ms| push.from + ms * 1000);
    let by_time = by_time.min(expires_us.map_or(u64::MAX, |at| at.saturating_sub(case.setup.slack_us())));
    let may_die = push.spec["max_attempts"].as_u64().is_none_or(|most| most < 1000);
    let by_job = case.facts.lives.get(id).filter(|_| !may_die).map_or(0, |life| case.leaves(id, life));
    by_time.max(by_job)
}

/// A duplicate names a job that was pushed with the same key.
fn duplicate(facts: &Facts<'_>, id: &str, push: &Push<'_>, key: &str, findings: &mut Findings) {
    let Some(life) = facts.lives.get(id) else { return };
    let fits = |other: &Push<'_>| {
        other.spec["key"] == key
            && other.queue == push.queue
            && other.from <= push.to
            && other.fate.may_have_happened()
    };
    if !life.pushes.is_empty() && !life.pushes.iter().any(fits) {
        findings.add(Rule::Key, key, format!("call {} got the stranger {id}", push.call));
    }
}
