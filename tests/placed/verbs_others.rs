//! What others do to jobs, queues and what belongs to them.

use mongodb::bson::Document;
use serde_json::{Value, json};

use crate::case::{Case, Done, Found, Prep};
use crate::checker::client::mark;
use crate::lane::Call;
use crate::story::payload;
use crate::verbs_settle::batch;

fn has(document: Option<&Document>, text: &str) -> Done {
    document.is_some_and(|document| document.to_string().contains(text)).into()
}

/// What the call takes away need not come back.
fn removing(case: Case, labels: &[&str]) -> Case {
    case.with(|case| case.rules.may_vanish.extend(labels.iter().map(|label| (*label).to_owned())))
}

pub async fn cancel(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({})).await;
    let call = Call::new("DELETE", format!("/v1/jobs/{id}"), Value::Null);
    removing(Case::of(call, |found| gone_or_taken(found, &["a"])), &["a"]).about(&[id]).repeats()
}

/// Whether these are gone; unclear where another worker had one of them.
fn gone_or_taken(found: &Found<'_>, labels: &[&str]) -> Done {
    if labels.iter().any(|label| !found.later(label).is_empty()) {
        return Done::Unclear;
    }
    labels.iter().all(|label| found.is_gone(label)).into()
}

pub async fn cancel_reserved(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let call = Call::new("DELETE", format!("/v1/jobs/{}", held.id), Value::Null);
    let case = Case::of(call, |found| match found.job("a") {
        Some(job) if found.later("a").is_empty() => job.get_bool("cancel_requested").unwrap_or(false).into(),
        _ => Done::Unclear,
    });
    let case = case.with(|case| case.rules.breaks_holds = true);
    removing(case, &["a"]).holding(&[held]).repeats()
}

pub async fn cancel_forced(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let call = Call::new("DELETE", format!("/v1/jobs/{}?force=true", held.id), Value::Null);
    let case = Case::of(call, |found| found.is_gone("a").into());
    let case = case.with(|case| case.rules.breaks_holds = true);
    removing(case, &["a"]).holding(&[held]).settling(false).repeats()
}

pub async fn patch(p: &Prep<'_>) -> Case {
    let id = p.push("q", "a", json!({})).await;
    let call = Call::new("PATCH", format!("/v1/jobs/{id}"), json!({"priority": 77}));
    let case = Case::of(call, |found| {
        let seen = found.job("a").is_some_and(|job| job.get_i32("priority").is_ok_and(|found| found == 77));
        if found.is_gone("a") {
            return Done::Unclear;
        }
        (seen || found.later("a").iter().any(|one| one.job["priority"] == json!(77))).into()
    });
    case.about(&[id]).repeats()
}

pub async fn redrive(p: &Prep<'_>) -> Case {
    p.push("q", "a", json!({"max_attempts": 1})).await;
    let held = p.take_long("q", true).await;
    p.story.settling(&held.id, &held.token, false);
    p.settle(&held, "rollback", false).await;
    let call = Call::new("POST", format!("/v1/queues/{}/redrive", p.name("q")), json!({}));
    let case = Case::of(call, |found| (found.came("a") && found.state("a") != Some("dead")).into());
    case.about(&[held.id]).repeats()
}

pub async fn replay(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"retain_done_ms": 600_000})).await;
    p.push("q", "a", json!({})).await;
    let held = p.take_long("q", true).await;
    p.settle(&held, "commit", true).await;
    p.story.allow_more("a", 1);
    let call = Call::new("POST", format!("/v1/queues/{}/replay", p.name("q")), json!({}));
    Case::of(call, |found| {
        let copies = found.jobs.iter().filter(|job| job.contains_key("replay_of")).count();
        (copies > 0 || !found.later("a").is_empty()).into()
    })
}

pub async fn purge(p: &Prep<'_>) -> Case {
    let ids = [p.push("q", "a", json!({})).await, p.push("q", "b", json!({"group": "g"})).await];
    let call = Call::new("POST", format!("/v1/queues/{}/purge", p.name("q")), json!({"state": "ready"}));
    let case = Case::of(call, |found| gone_or_taken(found, &["a", "b"]));
    removing(case, &["a", "b"]).about(&ids).repeats()
}

fn setting(p: &Prep<'_>, call: Call, text: &'static str) -> Case {
    let queue = p.name("q");
    Case::of(call, move |found| has(found.other("queues", &queue), text)).repeats()
}

pub async fn settings_put(p: &Prep<'_>) -> Case {
    let call = Call::new("PUT", format!("/v1/queues/{}", p.name("q")), json!({"lease_ms": 4321}));
    setting(p, call, "4321")
}

pub async fn settings_patch(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"max_attempts": 9})).await;
    let call = Call::new("PATCH", format!("/v1/queues/{}", p.name("q")), json!({"lease_ms": 4321}));
    setting(p, call, "4321")
}

pub async fn pause(p: &Prep<'_>) -> Case {
    p.push("q", "a", json!({})).await;
    let call = Call::new("POST", format!("/v1/queues/{}/pause", p.name("q")), json!({}));
    let resume = Call::new("POST", format!("/v1/queues/{}/resume", p.name("q")), json!({}));
    setting(p, call, "true").with(|case| case.cleanup.push(resume))
}

pub async fn resume(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"paused": true})).await;
    p.push("q", "a", json!({})).await;
    let call = Call::new("POST", format!("/v1/queues/{}/resume", p.name("q")), json!({}));
    let (queue, again) = (p.name("q"), call.clone());
    let case = Case::of(call, move |found| {
        let paused = has(found.other("queues", &queue), "true");
        (paused == Done::No).into()
    });
    case.repeats().with(|case| case.cleanup.push(again))
}

pub async fn queue_delete(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"lease_ms": 4321})).await;
    let id = p.push("q", "a", json!({})).await;
    let held = p.taken("q", "b", json!({"priority": 5}), true).await;
    let call = Call::new("DELETE", format!("/v1/queues/{}?force=true", p.name("q")), Value::Null);
    let queue = p.name("q");
    let case = Case::of(call, move |found| match gone_or_taken(found, &["a", "b"]) {
        Done::Yes => found.other("queues", &queue).is_none().into(),
        other => other,
    });
    let case = case.with(|case| case.rules.breaks_holds = true);
    removing(case, &["a", "b"]).about(&[id]).holding(&[held]).settling(false).repeats()
}

fn semaphore(p: &Prep<'_>, method: &'static str, body: Value) -> Call {
    Call::new(method, format!("/v1/semaphores/{}", p.name("m")), body)
}

pub async fn semaphore_put(p: &Prep<'_>) -> Case {
    p.lane.call(&semaphore(p, "PUT", json!({"capacity": 1}))).await;
    p.push("q", "a", json!({"semaphores": [p.name("m")]})).await;
    let name = p.name("m");
    let case = Case::of(semaphore(p, "PUT", json!({"capacity": 4321})), move |found| {
        has(found.other("semaphores", &name), "4321")
    });
    case.repeats()
}

pub async fn semaphore_delete(p: &Prep<'_>) -> Case {
    p.lane.call(&semaphore(p, "PUT", json!({"capacity": 1}))).await;
    let name = p.name("m");
    let case = Case::of(semaphore(p, "DELETE", Value::Null), move |found| {
        found.other("semaphores", &name).is_none().into()
    });
    case.repeats()
}

fn schedule(p: &Prep<'_>, call: &str, method: &'static str, body: Value) -> Call {
    Call::new(method, format!("/v1/schedules/{}{call}", p.name("s")), body)
}

fn rule(p: &Prep<'_>) -> Value {
    let mut job = json!({"payload": payload("a")});
    mark(&mut job);
    json!({"cron": "0 0 1 1 *", "queue": p.name("q"), "job": job})
}

pub async fn schedule_put(p: &Prep<'_>) -> Case {
    let name = p.name("s");
    let case = Case::of(schedule(p, "", "PUT", rule(p)), move |found| {
        found.other("schedules", &name).is_some().into()
    });
    case.repeats().with(|case| case.cleanup.push(schedule(p, "", "DELETE", Value::Null)))
}

pub async fn schedule_run(p: &Prep<'_>) -> Case {
    running(p, schedule(p, "/run", "POST", json!({})).keyed(p.name("key"))).await.repeats()
}

/// Not repeated: each call makes a job of its own.
pub async fn schedule_run_unkeyed(p: &Prep<'_>) -> Case {
    running(p, schedule(p, "/run", "POST", json!({}))).await
}

async fn running(p: &Prep<'_>, call: Call) -> Case {
    p.lane.call(&schedule(p, "", "PUT", rule(p))).await;
    p.story.pushes("a");
    let name = p.name("s");
    let case = Case::of(call, move |found| {
        let runs = found.other("schedules", &name).and_then(|schedule| schedule.get_str("last_runs").ok());
        let is_noted = runs.is_some_and(|runs| runs.contains("\"manual\":true"));
        Found::together("the run and its job", &[is_noted, found.came("a")])
    });
    let case = case.with(|case| case.cleanup.push(schedule(p, "", "DELETE", Value::Null)));
    removing(case, &["a"])
}

/// Whether a schedule is paused, if there is one of this name.
fn is_paused(found: &Found<'_>, name: &str) -> Option<bool> {
    let rule = found.other("schedules", name)?.to_string();
    Some(rule.contains("\"paused\":true") || rule.contains("\"paused\": true"))
}

pub async fn schedule_pause(p: &Prep<'_>) -> Case {
    p.lane.call(&schedule(p, "", "PUT", rule(p))).await;
    let name = p.name("s");
    let case = Case::of(schedule(p, "/pause", "POST", json!({})), move |found| {
        (is_paused(found, &name) == Some(true)).into()
    });
    case.repeats().with(|case| case.cleanup.push(schedule(p, "", "DELETE", Value::Null)))
}

pub async fn schedule_resume(p: &Prep<'_>) -> Case {
    p.lane.call(&schedule(p, "", "PUT", rule(p))).await;
    p.lane.call(&schedule(p, "/pause", "POST", json!({}))).await;
    let name = p.name("s");
    let case = Case::of(schedule(p, "/resume", "POST", json!({})), move |found| {
        (is_paused(found, &name) == Some(false)).into()
    });
    case.repeats().with(|case| case.cleanup.push(schedule(p, "", "DELETE", Value::Null)))
}

pub async fn schedule_delete(p: &Prep<'_>) -> Case {
    p.lane.call(&schedule(p, "", "PUT", rule(p))).await;
    let name = p.name("s");
    let case = Case::of(schedule(p, "", "DELETE", Value::Null), move |found| {
        found.other("schedules", &name).is_none().into()
    });
    case.repeats()
}

pub async fn batch_create_idempotent(p: &Prep<'_>) -> Case {
    creating_batch(p, |call| call.keyed(p.name("key"))).repeats()
}

pub async fn batch_create(p: &Prep<'_>) -> Case {
    creating_batch(p, |call| call)
}

fn creating_batch(p: &Prep<'_>, made: impl FnOnce(Call) -> Call) -> Case {
    let jobs = [p.job_for("q", "a", json!({})), p.job_for("q", "b", json!({"key": "k"}))];
    let end = p.job_for("after", "end", json!({}));
    let call = Call::new("POST", "/v1/batches", json!({"jobs": jobs, "on_finished": end}));
    let case = Case::of(made(call), |found| Found::together("jobs", &[found.came("a"), found.came("b")]));
    removing(case, &["a", "b", "end"])
}

pub async fn batch_add(p: &Prep<'_>) -> Case {
    let id = batch(p, &["a"], false).await;
    let jobs = [p.job_for("q", "b", json!({})), p.job_for("q", "c", json!({"group": "g"}))];
    let call = Call::new("POST", format!("/v1/batches/{id}/jobs"), json!({"jobs": jobs}));
    let case = Case::of(call, |found| Found::together("jobs", &[found.came("b"), found.came("c")]));
    let seal = Call::new("POST", format!("/v1/batches/{id}/seal"), json!({}));
    removing(case, &["b", "c"]).about(&[id]).with(|case| case.cleanup.push(seal))
}

pub async fn batch_seal(p: &Prep<'_>) -> Case {
    let id = batch(p, &["a"], false).await;
    let held = p.take_long("q", true).await;
    p.settle(&held, "commit", false).await;
    let done = p.story.settling(&held.id, &held.token, true);
    p.story.settled(done, crate::story::Outcome::Ok);
    let call = Call::new("POST", format!("/v1/batches/{id}/seal"), json!({}));
    let case = Case::of(call.clone(), |found| found.came("end").into());
    case.about(&[id]).repeats().with(|case| case.cleanup.push(call))
}

pub async fn batch_cancel(p: &Prep<'_>) -> Case {
    let id = batch(p, &["a", "b"], true).await;
    let call = Call::new("DELETE", format!("/v1/batches/{id}"), Value::Null);
    let case = Case::of(call, |found| match (gone_or_taken(found, &["a", "b"]), found.came("end")) {
        (Done::Yes, false) => Done::Part("a batch without its end".into()),
        (done, _) => done,
    });
    removing(case, &["a", "b"]).about(&[id]).repeats()
}

/// A heartbeat of a worker that does not time out while a case lasts, on however busy a machine.
fn beat() -> Value {
    json!({"timeout_ms": 600_000})
}

pub async fn heartbeat(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let call = Call::new("POST", format!("/v1/workers/{}/heartbeat", p.name("w")), beat());
    let name = p.name("w");
    let case = Case::of(call, move |found| found.other("workers", &name).is_some().into());
    case.holding(&[held]).repeats()
}

pub async fn worker_removal(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    p.lane.must("POST", format!("/v1/workers/{}/heartbeat", p.name("w")), beat()).await;
    let call = Call::new("DELETE", format!("/v1/workers/{}", p.name("w")), Value::Null);
    let name = p.name("w");
    let token = held.token.clone();
    let case = Case::of(call, move |found| {
        (!found.is_held("a", &token) && found.other("workers", &name).is_none()).into()
    });
    let case = case.with(|case| case.rules.breaks_holds = true);
    case.holding(&[held]).settling(false).repeats()
}
