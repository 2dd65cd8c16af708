//! One thing made wrong in a history that was really recorded: the judge must see it there, too.

use serde_json::{Value, json};

use crate::checker::{Call, History, Outcome, Rule, Scan, Setup, Verb, judge};

/// A job that was pushed, reserved and committed, each with a response; the places of these calls.
struct Plain {
    id: String,
    push: usize,
    reserve: usize,
    commit: usize,
}

fn jobs_of(call: &Call) -> impl Iterator<Item = &Value> {
    call.outcome.answer().and_then(|answer| answer["jobs"].as_array()).into_iter().flatten()
}

fn is_about(call: &Call, id: &str) -> bool {
    call.target == id || jobs_of(call).any(|job| job["id"] == id)
}

fn plain(history: &History) -> impl Iterator<Item = Plain> {
    let calls = &history.calls;
    calls.iter().enumerate().filter_map(|(push, call)| {
        let is_plain = call.verb == Verb::Push
            && call.target == "work"
            && call.key.is_none()
            && ["key", "expires_in_ms", "delay_ms", "semaphores"]
                .iter()
                .all(|field| call.body[*field].is_null());
        let id = call.outcome.answer().filter(|_| is_plain)?["id"].as_str()?;
        let about: Vec<usize> = (0..calls.len()).filter(|n| is_about(&calls[*n], id)).collect();
        let [reserve, commit] = about[..] else { return None };
        // It may have been delivered as the next job of another one: then the first of these is another call.
        let is_delivered = jobs_of(&calls[reserve]).any(|job| job["id"] == id);
        let is_done = calls[commit].verb == Verb::Commit && calls[commit].outcome.answer().is_some();
        let has_key = calls[reserve].key.is_some();
        let has_room = calls[commit].invoked_us > calls[reserve].completed_us + 100;
        // A response may have come after its lease was over: then nobody held the job.
        let lease_us = 1000 * calls[reserve].body["lease_ms"].as_u64().unwrap_or(30_000);
        let is_held = calls[reserve].completed_us + 100 < calls[reserve].invoked_us + lease_us;
        (is_delivered && is_done && !has_key && has_room && is_held).then(|| Plain {
            id: id.to_owned(),
            push,
            reserve,
            commit,
        })
    })
}

/// The reserve once more, with another token unless `token` is the first one's, after this time.
fn again(history: &mut History, plain: &Plain, token: Option<&str>, after_us: u64) {
    let mut call = history.calls[plain.reserve].clone();
    (call.invoked_us, call.completed_us) = (after_us + 1, after_us + 2);
    let mut job = jobs_of(&call).find(|job| job["id"] == *plain.id).unwrap().clone();
    if let Some(token) = token {
        job["reservation"] = json!(token);
    }
    call.outcome = Outcome::of(200, json!({ "jobs": [job] }));
    history.calls.push(call);
}

type Change = fn(&mut History, &mut Scan, &Plain);

const CHANGES: &[(Rule, Change)] = &[
    (Rule::Lost, |history, _, plain| {
        history.calls.remove(plain.commit);
        let others: Vec<&Value> =
            jobs_of(&history.calls[plain.reserve]).filter(|job| job["id"] != *plain.id).collect();
        history.calls[plain.reserve].outcome = Outcome::of(200, json!({ "jobs": others }));
    }),
    (Rule::Invented, |history, _, plain| drop(history.calls.remove(plain.push))),
    (Rule::RefusedButDone, |history, _, plain| {
        history.calls[plain.push].outcome = Outcome::of(429, json!({"code": "queue-full"}));
    }),
    (Rule::Altered, |history, _, plain| {
        history.calls[plain.push].body["payload"] = json!("another");
    }),
    (Rule::TwoHolders, |history, _, plain| {
        let after = history.calls[plain.reserve].completed_us;
        again(history, plain, Some("other"), after);
    }),
    (Rule::SharedToken, |history, _, plain| {
        let after = history.calls[plain.reserve].completed_us;
        again(history, plain, None, after);
    }),
    (Rule::DeliveredAfterEnd, |history, _, plain| {
        let after = history.calls[plain.commit].completed_us;
        again(history, plain, Some("other"), after);
    }),
    (Rule::StaleToken, |history, _, plain| {
        history.calls[plain.commit].body["reservation"] = json!("guessed");
    }),
    (Rule::NotDrained, |history, scan, plain| {
        let mut job =
            jobs_of(&history.calls[plain.reserve]).find(|job| job["id"] == *plain.id).unwrap().clone();
        job["state"] = json!("blocked");
        scan.jobs.push(job);
    }),
    (Rule::Counts, |_, scan, _| scan.counts["ready"] = json!(1)),
];

/// Whether there is a job that the changes can be made with.
pub fn has_plain_job(history: &History) -> bool {
    plain(history).next().is_some()
}

/// How many jobs a change is made with until it is found: what else happened to one of them, such as the removal of its worker in that
/// very moment, may excuse what was made of it.
const TRIED: usize = 20;

/// Fails unless each change is found by its rule.
pub fn every_change_is_found(history: &History, scan: &Scan) {
    for (rule, change) in CHANGES {
        let mut others = Vec::new();
        let is_found = plain(history).take(TRIED).any(|plain| {
            let (mut history, mut scan) = (history.clone(), scan.clone());
            change(&mut history, &mut scan, &plain);
            let found = judge(&history, &scan, &Setup::default());
            let is_found = found.iter().any(|violation| violation.rule == *rule);
            others.push((plain.id, found));
            is_found
        });
        assert!(is_found, "{rule:?} is not in {others:#?}");
    }
}
