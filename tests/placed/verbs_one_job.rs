//! What an operator does to one job, by its id.

use serde_json::{Value, json};

use crate::case::{Case, Done, Found, Prep};
use crate::lane::Call;
use crate::story::payload;
use crate::verbs_settle::is_in;

const HOUR_MS: u64 = 3_600_000;

fn post(id: &str, verb: &str, body: Value) -> Call {
    Call::new("POST", format!("/v1/jobs/{id}/{verb}"), body)
}

/// A job that has died. Returns its id.
pub async fn dead(p: &Prep<'_>, label: &str) -> String {
    p.push("q", label, json!({"max_attempts": 1})).await;
    let held = p.take_long("q", true).await;
    p.story.settling(&held.id, &held.token, false);
    p.settle(&held, "rollback", false).await;
    held.id
}

/// A job that is done, in history. Returns its id.
pub async fn done(p: &Prep<'_>, label: &str) -> String {
    p.settings("q", json!({"retain_done_ms": 600_000})).await;
    p.push("q", label, json!({})).await;
    let held = p.take_long("q", true).await;
    p.settle(&held, "commit", true).await;
    held.id
}

fn has_another_chance(found: &Found<'_>) -> Done {
    (found.came("a") && found.state("a") != Some("dead")).into()
}

pub async fn retry(p: &Prep<'_>) -> Case {
    let id = dead(p, "a").await;
    Case::of(post(&id, "retry", json!({})), has_another_chance).about(&[id]).repeats()
}

pub async fn redrive(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"dead_letter": p.name("dead")})).await;
    let id = dead(p, "a").await;
    let home = p.name("q");
    Case::of(post(&id, "redrive", json!({})), move |found| is_in(found, &home)).about(&[id]).repeats()
}

fn is_copied(found: &Found<'_>) -> Done {
    match found.jobs.iter().filter(|job| job.contains_key("replay_of")).count() {
        0 => (!found.later("a").is_empty()).into(),
        1 => Done::Yes,
        more => Done::Part(format!("{more} copies")),
    }
}

/// Not repeated: each call makes a copy of its own.
pub async fn replay(p: &Prep<'_>) -> Case {
    let id = done(p, "a").await;
    p.story.allow_more("a", 1);
    Case::of(post(&id, "replay", json!({})), is_copied).about(&[id])
}

pub async fn replay_once(p: &Prep<'_>) -> Case {
    let id = done(p, "a").await;
    p.story.allow_more("a", 1);
    Case::of(post(&id, "replay", json!({})).keyed(p.name("key")), is_copied).about(&[id]).repeats()
}

pub async fn run(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({"delay_ms": HOUR_MS})).await;
    let call = post(&id, "run", json!({}));
    let case = Case::of(call.clone(), |found| {
        let due = found.job("a").is_some_and(|job| !job.contains_key("due"));
        (due || !found.later("a").is_empty()).into()
    });
    case.about(&[id]).repeats().with(|case| case.cleanup.push(call))
}

/// The lease does not lapse meanwhile: that would look alike.
pub async fn release(p: &Prep<'_>) -> Case {
    p.push("q", "a", json!({})).await;
    let held = p.take_long("q", true).await;
    let token = held.token.clone();
    let case =
        Case::of(post(&held.id, "release", json!({})), move |found| (!found.is_held("a", &token)).into());
    // A repeat may take the job from the one who holds it by then.
    let case = case.with(|case| case.rules.breaks_holds = true);
    case.holding(&[held]).settling(false).repeats()
}

pub async fn move_without_token(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({})).await;
    let next = p.name("next");
    let call = post(&id, "move", json!({"queue": next}));
    let case = Case::of(call, move |found| match is_in(found, &next) {
        Done::No if !found.later("a").is_empty() => Done::Unclear,
        done => done,
    });
    case.about(&[id]).repeats()
}

pub async fn cancel_unless_reserved(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({"key": "k", "group": "g"})).await;
    let call = Call::new("DELETE", format!("/v1/jobs/{id}?reserved=refuse"), Value::Null);
    let case = Case::of(call, |found| match found.later("a").is_empty() {
        true => found.is_gone("a").into(),
        false => Done::Unclear,
    });
    case.about(&[id]).repeats().with(|case| case.rules.may_vanish.push("a".to_owned()))
}

fn patching(id: &str, body: Value, effect: impl Fn(&Found<'_>) -> Done + Send + Sync + 'static) -> Case {
    Case::of(Call::new("PATCH", format!("/v1/jobs/{id}"), body), effect).about(&[id.to_owned()]).repeats()
}

/// The job has another label then.
pub async fn patch_payload(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({})).await;
    p.story.pushes("b");
    let case = patching(&id, json!({"payload": payload("b")}), |found| {
        match (found.came("b"), found.is_gone("a")) {
            (true, _) => Done::Yes,
            (_, gone) => {
                if gone {
                    Done::Unclear
                } else {
                    Done::No
                }
            }
        }
    });
    case.with(|case| case.rules.may_vanish.extend(["a", "b"].map(str::to_owned)))
}

pub async fn patch_group(p: &Prep<'_>) -> Case {
    p.push("q", "first", json!({"group": "g"})).await;
    let id = p.push("q", "a", json!({})).await;
    patching(&id, json!({"group": "g"}), |found| {
        let seen = found.job("a").is_some_and(|job| job.get_str("group").is_ok_and(|group| group == "g"));
        let later = found.later("a").iter().any(|one| one.job["group"] == json!("g"));
        if found.is_gone("a") { Done::Unclear } else { (seen || later).into() }
    })
}

pub async fn patch_expiry(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({})).await;
    patching(&id, json!({"expires_in_ms": HOUR_MS}), |found| {
        let seen = found.job("a").is_some_and(|job| job.contains_key("expires_at"));
        let later = found.later("a").iter().any(|one| one.job["expires_at"].is_string());
        if found.is_gone("a") { Done::Unclear } else { (seen || later).into() }
    })
}
