//! What servers do by themselves. `near` stands still meanwhile, so that `far` is the one that does it.

use mongodb::bson::Document;
use serde_json::{Value, json};

use crate::case::{Case, Done, Found, Prep};
use crate::checker::client::mark;
use crate::lane::Call;
use crate::story::payload;
use crate::verbs_one_job::dead;
use crate::verbs_settle::batch;

/// A lease that is over some time after the worker that has it has timed out.
const TIMED_OUT_MS: u64 = 4000;

/// A job that lapses soon, whatever the fault.
async fn lapsing(p: &Prep<'_>, label: &str, more: Value) -> String {
    let short = Prep { is_lasting: true, ..*p };
    let id = p.push("q", label, more).await;
    short.take("q", 1, true).await;
    id
}

pub async fn lapse(p: &Prep<'_>) -> Case {
    let id = lapsing(p, "a", json!({})).await;
    Case::background(|found| (found.state("a") != Some("reserved")).into()).about(&[id])
}

pub async fn lapse_dead_letter(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"dead_letter": p.name("dead")})).await;
    let id = lapsing(p, "a", json!({"max_attempts": 1})).await;
    Case::background(|found| (found.state("a") != Some("reserved")).into()).about(&[id])
}

pub async fn lapse_group(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"on_group_dead": "skip"})).await;
    let id = lapsing(p, "a", json!({"group": "g", "max_attempts": 1})).await;
    let next = p.push("q", "b", json!({"group": "g"})).await;
    let case = Case::background(|found| match (found.state("a"), found.state("b")) {
        (Some("reserved"), _) => Done::No,
        (_, Some("blocked")) => Done::Part("the next one is still blocked".into()),
        _ => Done::Yes,
    });
    case.about(&[id, next])
}

pub async fn worker_timeout(p: &Prep<'_>) -> Case {
    let held = p.take_for(TIMED_OUT_MS, "a").await;
    let beat =
        Call::new("POST", format!("/v1/workers/{}/heartbeat", p.name("w")), json!({"timeout_ms": 1000}));
    p.lane.call(&beat).await;
    Case::background(|found| (found.state("a") != Some("reserved")).into())
        .about(&[held.id])
        .with(|case| case.rules.breaks_holds = true)
}

pub async fn expiry(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({"expires_in_ms": 1000})).await;
    Case::background(|found| found.is_gone("a").into())
        .about(&[id])
        .with(|case| case.rules.may_vanish.push("a".to_owned()))
}

pub async fn fire(p: &Prep<'_>) -> Case {
    let path = format!("/v1/schedules/{}", p.name("s"));
    let mut job = json!({"payload": payload("a")});
    mark(&mut job);
    let rule = json!({"cron": "* * * * * *", "queue": p.name("q"), "job": job});
    p.lane.must("PUT", path.clone(), rule).await;
    p.story.allow_more("a", 1000);
    Case::background(|found| found.came("a").into()).with(|case| {
        case.rules.may_vanish.push("a".to_owned());
        case.cleanup.push(Call::new("DELETE", path, Value::Null));
    })
}

pub async fn unblock(p: &Prep<'_>) -> Case {
    p.lane.must("PUT", format!("/v1/semaphores/{}", p.name("m")), json!({"capacity": 1})).await;
    let needs = json!({"semaphores": [p.name("m")]});
    lapsing(p, "a", needs.clone()).await;
    let id = p.push("q", "b", needs).await;
    // Finds no room, and blocks it.
    let asked = p.story.now();
    let reserve = Call::new("POST", format!("/v1/queues/{}/reserve", p.name("q")), json!({}));
    let answer = p.lane.call(&reserve).await.1;
    p.story.deliveries(asked, 30_000, answer["jobs"].as_array().map_or(&[], Vec::as_slice));
    // On a slow machine the first one may have lapsed by then.
    let job = p.lane.must("GET", format!("/v1/jobs/{id}"), Value::Null).await;
    let was_blocked = job["state"] == "blocked";
    Case::background(move |found| (was_blocked && found.state("b") != Some("blocked")).into())
        .about(&[id])
        .with(|case| case.rules.one_at_a_time = true)
}

/// One step moves both jobs, or none.
pub async fn operation_step(p: &Prep<'_>) -> Case {
    let ids = [p.push("q", "a", json!({})).await, p.push("q", "b", json!({})).await];
    let next = p.name("next");
    let body = json!({"filter": {"queue": p.name("q")}, "action": "move", "to": next});
    // It acts half a second later, where it was asked for.
    let begin = Call::new("POST", "/v1/operations", body).keyed(p.name("begin"));
    let begun = p.lane.must_at(&p.lane.far, &begin).await;
    let id = begun["id"].as_str().unwrap().to_owned();
    let case = Case::background(move |found| {
        let at_home = |label: &str| found.later(label).iter().any(|one| one.job["queue"] != json!(next));
        if at_home("a") || at_home("b") {
            return Done::Unclear; // a worker was quicker
        }
        Found::together("moved", &["a", "b"].map(|label| is_in(label, found, &next)))
    });
    case.about(&ids).about(&[id]).with(|case| case.last_point = Some("operation.stepped"))
}

fn is_in(label: &str, found: &Found<'_>, queue: &str) -> bool {
    let is_there = |job: &Document| job.get_str("queue").is_ok_and(|found| found == queue);
    found.job(label).is_some_and(is_there) || !found.later(label).is_empty()
}

pub async fn prune_dead(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"retain_dead_ms": 300})).await;
    let id = dead(p, "a").await;
    Case::background(|found| found.is_gone("a").into())
        .about(&[id])
        .with(|case| case.rules.may_vanish.push("a".to_owned()))
}

pub async fn prune(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"retain_done_ms": 300})).await;
    p.push("q", "a", json!({})).await;
    let held = p.take_long("q", true).await;
    let place = p.story.settling(&held.id, &held.token, true);
    p.settle(&held, "commit", true).await;
    p.story.settled(place, crate::story::Outcome::Ok);
    Case::background(|found| found.is_gone("a").into()).about(&[held.id])
}

pub async fn prune_batch(p: &Prep<'_>) -> Case {
    let id = batch(p, &["a"], true).await;
    let held = p.take_long("q", false).await;
    p.lane.commit(p.story, &held.id, &held.token, true).await;
    p.lane.work(p.story).await; // the callback
    let (name, label) = (id.clone(), "end");
    Case::background(move |found| (found.other("batches", &name).is_none() && found.is_gone(label)).into())
        .about(std::slice::from_ref(&id))
        .with(|case| case.others.push(("batches", id)))
}

pub async fn prune_key(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({"key": "k", "key_ttl_ms": 200})).await;
    let held = p.take_long("q", false).await;
    p.lane.commit(p.story, &held.id, &held.token, true).await;
    let key = format!("{}/k", p.name("q"));
    Case::background(move |found| found.other("keys", &key).is_none().into()).about(&[id])
}
