//! Nothing is lost, nothing invented, nothing altered.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::super::facts::{Delivery, Life, NEVER, Origin, may_have_happened, text};
use super::super::history::Verb;
use super::super::tokens::Ending;
use super::super::{Findings, Rule};
use super::Case;

pub fn judge(case: &Case<'_, '_>, findings: &mut Findings) {
    // Jobs that are gone, and that a pop without an answer may have taken.
    let mut gone: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, life) in &case.facts.lives {
        let is_known = life.known_us > 0 || !life.scanned.is_empty();
        if !is_known {
            continue; // named by a client only
        }
        if life.scanned.len() > 1 {
            findings.add(Rule::SettledTwice, id, format!("is in {} places", life.scanned.len()));
        }
        invented(case, id, life, findings);
        altered(case, id, life, findings);
        if life.scanned.is_empty() && !can_have_ended(case, id, life) {
            let queue = case.queues(life).into_iter().find(|queue| case.pops_unknown(queue) > 0);
            gone.entry(queue.unwrap_or_default()).or_default().push(id);
        }
    }
    for (queue, ids) in gone {
        let taken = usize::try_from(case.pops_unknown(queue)).unwrap();
        if ids.len() > taken {
            for id in &ids {
                let detail =
                    format!("is gone, and nothing ended it ({} of {queue}, {taken} popped)", ids.len());
                findings.add(Rule::Lost, id, detail);
            }
        }
    }
    stored_twice(case, findings);
}

/// Whether some call may have ended the job after all that is known of it.
fn can_have_ended<'a>(case: &Case<'_, 'a>, id: &str, life: &Life<'a>) -> bool {
    let tokens = case.tokens(id);
    let by_token = tokens.iter().any(|token| {
        let is_last = !tokens.iter().any(|other| token.is_before(other));
        match token.ending() {
            Some((_, ending, _)) => ending == Ending::Gone,
            None => is_last && token.first(Verb::Commit).is_some() && !token.has_route(),
        }
    });
    let is_popped = life.deliveries.iter().any(|delivery| delivery.token.is_none());
    let is_cancelled = life.touches.iter().any(|call| call.verb.is_cancel() && may_have_happened(call));
    let expires = life.pushes.iter().any(|push| push.spec["expires_in_ms"].is_u64());
    let queues = case.queues(life);
    let is_purged = case.purged(&queues, life.born_us()) < NEVER;
    let is_member =
        life.batch().is_some() || life.pushes.iter().any(|push| matches!(push.origin, Origin::Member { .. }));
    let batch_cancelled = is_member
        && case
            .facts
            .possible(&[Verb::CancelBatch])
            .any(|call| life.batch().is_none_or(|batch| batch == call.target));
    let retires = case
        .facts
        .possible(&[Verb::PutSettings])
        .any(|call| queues.contains(&call.target.as_str()) && call.body["retain_dead_ms"].is_u64());
    by_token || is_popped || is_cancelled || expires || is_purged || batch_cancelled || retires
}

fn invented(case: &Case<'_, '_>, id: &str, life: &Life<'_>, findings: &mut Findings) {
    let Some(view) = life.view() else { return };
    let replays = [Verb::Replay, Verb::ReplayJob, Verb::Operation].iter();
    let mut replays = replays.filter(|verb| case.facts.others.iter().any(|call| call.verb == **verb));
    if !view["replay_of"].is_null() && replays.next().is_some() {
        return;
    }
    if life.pushes.is_empty() {
        return findings.add(Rule::Invented, id, format!("nobody pushed it: {view}"));
    }
    let seen = life.deliveries.iter().map(|delivery| delivery.to).min().unwrap_or(NEVER);
    if !life.pushes.iter().any(|push| push.fate.may_have_happened()) {
        let calls: Vec<usize> = life.pushes.iter().map(|push| push.call).collect();
        findings.add(Rule::RefusedButDone, id, format!("its pushes {calls:?} were refused"));
    } else if life.born_us() > seen {
        findings.add(Rule::Invented, id, "it was delivered before it was pushed".to_owned());
    }
}

/// A push that was answered made the job that it names; one without an answer made one at most.
fn stored_twice(case: &Case<'_, '_>, findings: &mut Findings) {
    for (mark, ids) in &case.facts.ids {
        let pushes = case.facts.marks.get(mark).into_iter().flatten().map(|place| &case.facts.pushes[*place]);
        let (mut unknown, mut is_repeating) = (0, *mark == "unmarked");
        // Of the calls under one key one takes effect.
        let mut keys: BTreeSet<&str> = BTreeSet::new();
        for push in pushes {
            match push.origin {
                Origin::Schedule { .. } | Origin::Callback { .. } => is_repeating = true,
                _ if push.fate.may_have_happened() && push.id().is_none() => {
                    unknown += usize::from(push.key.is_none_or(|key| keys.insert(key)));
                }
                _ => {}
            }
        }
        let is_stranger = |id: &&&str| {
            let life = &case.facts.lives[**id];
            !life.is_created && life.view().is_none_or(|view| view["replay_of"].is_null())
        };
        let strangers: Vec<_> = ids.iter().filter(is_stranger).collect();
        if !is_repeating && strangers.len() > unknown {
            let detail =
                format!("{strangers:?} besides what was answered, by {unknown} pushes without an answer");
            findings.add(Rule::StoredTwice, mark, detail);
        }
    }
}

/// A change of a payload: when it may have happened, and when it certainly had.
struct Version<'a> {
    from: u64,
    to: u64,
    payload: &'a Value,
}

fn versions<'a>(life: &Life<'a>) -> Vec<Version<'a>> {
    let pushes = life.pushes.iter().filter(|push| push.fate.may_have_happened());
    let known = if life.known_us == 0 { NEVER } else { life.known_us };
    // A repeat of the push is no later version.
    let born = life.born_us();
    let first = pushes.map(|push| Version { from: born, to: known, payload: &push.spec["payload"] });
    let settled = life.settles.iter().filter(|settle| settle.fate.may_have_happened()).filter_map(|settle| {
        let name = if settle.verb == Verb::Move { "payload" } else { "result" };
        // The result of the last commit is kept beside the payload.
        let leads_on = |delivery: &Delivery<'_>| {
            let has_route = delivery.job["then"].as_array().is_some_and(|then| !then.is_empty());
            delivery.token == Some(settle.token) && has_route
        };
        let changes = settle.verb == Verb::Move || life.deliveries.iter().any(leads_on);
        let payload = settle.body.get(name).filter(|_| changes)?;
        Some(Version { from: settle.from, to: settle.to, payload })
    });
    let edits = life.touches.iter().filter(|call| call.verb == Verb::Edit && may_have_happened(call));
    let edits = edits.filter_map(|call| {
        let payload = call.body.get("payload")?;
        Some(Version { from: call.invoked_us, to: call.settled_us(), payload })
    });
    first.chain(settled).chain(edits).collect()
}

fn altered(case: &Case<'_, '_>, id: &str, life: &Life<'_>, findings: &mut Findings) {
    let versions = versions(life);
    let Some(spec) = life.pushes.first().map(|push| push.spec) else { return };
    let views = life.deliveries.iter().map(|Delivery { job, from, to, .. }| (*job, *from, *to));
    for (job, from, to) in views.chain(life.scanned.iter().map(|job| (*job, NEVER, NEVER))) {
        let is_over = |one: &Version<'_>| {
            versions.iter().any(|later| later.from > one.to && later.to < from && later.to < NEVER)
        };
        let mut possible = versions.iter().filter(|one| one.from <= to && !is_over(one));
        if !versions.is_empty() && !possible.any(|one| is_same(one.payload, &job["payload"])) {
            findings.add(Rule::Altered, id, format!("the payload of {job} is not that of {spec}"));
        }
        let edits = || life.touches.iter().filter(|call| call.verb == Verb::Edit && may_have_happened(call));
        let names = ["group", "semaphores"].into_iter();
        for name in names.filter(|name| !edits().any(|call| call.body.get(name).is_some())) {
            let is_none = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if job[name] != spec[name] && !(is_none(&job[name]) && is_none(&spec[name])) {
                findings.add(Rule::Altered, id, format!("{name} of {job} is not that of {spec}"));
            }
        }
        for (header, value) in spec["headers"].as_object().into_iter().flatten() {
            if job["headers"][header] != *value {
                findings.add(
                    Rule::Altered,
                    id,
                    format!("the header {header} of {job} is not that of {spec}"),
                );
            }
        }
        if !case.queues(life).contains(&text(job, "queue")) {
            findings.add(Rule::WrongQueue, id, format!("{} is no queue of it", text(job, "queue")));
        }
    }
}

/// The same text, also in the order of keys.
fn is_same(one: &Value, other: &Value) -> bool {
    let text = |value| serde_json::to_string(value).unwrap();
    text(one) == text(other)
}
