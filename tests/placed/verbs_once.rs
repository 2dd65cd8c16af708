//! Calls with an `Idempotency-Key` beside those of the other files, pushes of many, and operations over many jobs.

use mongodb::bson::Document;
use serde_json::{Value, json};

use crate::case::{Case, Done, Found, Prep};
use crate::lane::Call;
use crate::verbs_one_job::{dead, done};
use crate::verbs_settle::batch;

fn vanishing(case: Case, labels: &[&str]) -> Case {
    case.with(|case| case.rules.may_vanish.extend(labels.iter().map(|label| (*label).to_owned())))
}

/// Jobs for two queues, with a key and without, all of them or none.
fn together(p: &Prep<'_>, more: Value) -> Call {
    let jobs = [
        p.job_for("q", "a", json!({})),
        p.job_for("r", "b", json!({"key": "k"})),
        p.job_for("q", "c", json!({"group": "g"})),
    ];
    let mut body = json!({"jobs": jobs});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    Call::new("POST", "/v1/jobs", body)
}

fn came(found: &Found<'_>) -> [bool; 3] {
    ["a", "b", "c"].map(|label| found.came(label))
}

pub async fn push_together(p: &Prep<'_>) -> Case {
    let case = Case::of(together(p, json!({})), |found| Found::together("jobs", &came(found)));
    vanishing(case, &["a", "b", "c"])
}

pub async fn push_together_once(p: &Prep<'_>) -> Case {
    let call = together(p, json!({})).keyed(p.name("key"));
    let case = Case::of(call, |found| Found::together("jobs", &came(found)));
    vanishing(case, &["a", "b", "c"]).repeats()
}

pub async fn push_each(p: &Prep<'_>) -> Case {
    let call = together(p, json!({"atomic": false}));
    vanishing(Case::of(call, each_as_answered), &["a", "b", "c"])
}

pub async fn push_each_once(p: &Prep<'_>) -> Case {
    let call = together(p, json!({"atomic": false})).keyed(p.name("key"));
    vanishing(Case::of(call, each_as_answered), &["a", "b", "c"]).repeats()
}

/// Each job for itself is as the answer says.
fn each_as_answered(found: &Found<'_>) -> Done {
    let came = came(found);
    let Some((200, answer)) = &found.answer else { return came.contains(&true).into() };
    for (n, came) in came.iter().enumerate() {
        match answer["results"][n]["status"].as_u64() {
            Some(200 | 201) if !came => return Done::Part(format!("job {n} is acknowledged")),
            Some(400..=499) if *came => return Done::Part(format!("job {n} is refused")),
            _ => {}
        }
    }
    Done::Unclear
}

pub async fn batch_add(p: &Prep<'_>) -> Case {
    let id = batch(p, &["a"], false).await;
    let jobs = [p.job_for("q", "b", json!({})), p.job_for("q", "c", json!({"key": "k"}))];
    let call = Call::new("POST", format!("/v1/batches/{id}/jobs"), json!({"jobs": jobs}));
    let seal = Call::new("POST", format!("/v1/batches/{id}/seal"), json!({}));
    let case = Case::of(call.keyed(p.name("key")), |found| {
        Found::together("jobs", &[found.came("b"), found.came("c")])
    });
    vanishing(case, &["b", "c"]).about(&[id]).repeats().with(|case| case.cleanup.push(seal))
}

pub async fn redrive(p: &Prep<'_>) -> Case {
    let id = dead(p, "a").await;
    let call = Call::new("POST", format!("/v1/queues/{}/redrive", p.name("q")), json!({}));
    let case = Case::of(call.keyed(p.name("key")), |found| {
        (found.came("a") && found.state("a") != Some("dead")).into()
    });
    case.about(&[id]).repeats()
}

/// However often it is repeated, it makes one copy.
pub async fn replay(p: &Prep<'_>) -> Case {
    let id = done(p, "a").await;
    p.story.allow_more("a", 1);
    let call = Call::new("POST", format!("/v1/queues/{}/replay", p.name("q")), json!({}));
    let case = Case::of(call.keyed(p.name("key")), |found| {
        match found.jobs.iter().filter(|job| job.contains_key("replay_of")).count() {
            0 => (!found.later("a").is_empty()).into(),
            1 => Done::Yes,
            more => Done::Part(format!("{more} copies")),
        }
    });
    case.about(&[id]).repeats()
}

/// An operation that changes something which does no harm later.
fn operation(p: &Prep<'_>) -> Call {
    let body = json!({"filter": {"queue": p.name("q")}, "action": "set_priority", "priority": 77});
    Call::new("POST", "/v1/operations", body)
}

/// Whether one operation is stored.
fn is_one(found: &Found<'_>) -> Done {
    match found.all("operations").len() {
        0 => Done::No,
        1 => Done::Yes,
        more => Done::Part(format!("{more} operations")),
    }
}

/// Not repeated: each call begins an operation of its own.
pub async fn operation_begin(p: &Prep<'_>) -> Case {
    p.push("q", "a", json!({})).await;
    Case::of(operation(p), is_one)
}

pub async fn operation_begin_once(p: &Prep<'_>) -> Case {
    p.push("q", "a", json!({})).await;
    Case::of(operation(p).keyed(p.name("key")), is_one).repeats()
}

/// One that waits for room in its queue. Returns its id.
async fn waiting_operation(p: &Prep<'_>) -> String {
    done(p, "a").await;
    p.settings("q", json!({"retain_done_ms": 600_000, "max_jobs": 1})).await;
    p.push("q", "b", json!({})).await;
    p.story.allow_more("a", 1);
    let body = json!({"filter": {"queue": p.name("q")}, "action": "replay"});
    let begin = Call::new("POST", "/v1/operations", body).keyed(p.name("begin"));
    let begun = p.lane.must_at(&p.lane.near, &begin).await;
    begun["id"].as_str().unwrap().to_owned()
}

/// Whether an operation was cancelled. It may have ended before: there was room once a worker had finished the job in the queue.
fn is_cancelled(operation: &Document) -> Done {
    let has = |state: &str| operation.get_str("body").is_ok_and(|body| body.contains(state));
    match has("\"state\":\"done\"") {
        true => Done::Unclear,
        false => has("\"state\":\"cancelled\"").into(),
    }
}

pub async fn operation_cancel(p: &Prep<'_>) -> Case {
    let id = waiting_operation(p).await;
    let call = Call::new("DELETE", format!("/v1/operations/{id}"), Value::Null);
    let of = id.clone();
    let case = Case::of(call.clone(), move |found| {
        let found = found.all("operations").iter().find(|one| one.get_str("_id").is_ok_and(|id| id == of));
        found.map_or(Done::Yes, is_cancelled)
    });
    case.about(&[id]).repeats().with(|case| case.cleanup.push(call))
}

/// All of the queues of the case.
pub async fn queues_delete(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"lease_ms": 4321})).await;
    let ids = [p.push("q", "a", json!({})).await, p.push("r", "b", json!({"key": "k"})).await];
    let prefix = format!("{}.", p.tag());
    let path = format!("/v1/queues?prefix={prefix}&confirm={prefix}&force=true");
    let queue = p.name("q");
    let case = Case::of(Call::new("DELETE", path, Value::Null), move |found| {
        if ["a", "b"].iter().any(|label| !found.later(label).is_empty()) {
            return Done::Unclear;
        }
        let gone = ["a", "b"].iter().all(|label| found.is_gone(label));
        (gone && found.other("queues", &queue).is_none()).into()
    });
    let case = case.with(|case| case.rules.breaks_holds = true);
    vanishing(case, &["a", "b"]).about(&ids).repeats()
}
