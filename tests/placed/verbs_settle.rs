//! What the holder of a job does with it.

use mongodb::bson::Document;
use serde_json::{Value, json};

use crate::case::{Case, Done, Found, Held, Prep};
use crate::lane::Call;
use crate::verbs::{KEPT_MS, kept, push_call, semaphore};

fn settle(held: &Held, call: &str, mut body: Value) -> Call {
    body["reservation"] = json!(held.token);
    Call::new("POST", format!("/v1/jobs/{}/{call}", held.id), body)
}

/// A commit of the job `a`.
fn committing(held: &Held, body: Value, effect: impl Fn(&Found<'_>) -> Done + Send + Sync + 'static) -> Case {
    Case::of(settle(held, "commit", body), effect)
        .holding(std::slice::from_ref(held))
        .settling(true)
        .repeats()
}

fn a_is_gone(found: &Found<'_>) -> Done {
    found.is_gone("a").into()
}

pub async fn commit(p: &Prep<'_>) -> Case {
    committing(&p.taken("q", "a", json!({}), true).await, json!({}), a_is_gone)
}

pub async fn commit_elsewhere(p: &Prep<'_>) -> Case {
    committing(&p.taken("q", "a", json!({}), false).await, json!({}), a_is_gone)
}

pub async fn commit_retained(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"retain_done_ms": 600_000})).await;
    let held = p.taken("q", "a", json!({}), true).await;
    committing(&held, json!({"result": 7}), |found| {
        let is_done = found.state("a") == Some("done");
        (is_done && found.later("a").is_empty()).into()
    })
}

/// The job is gone and these are there, or none of it.
fn leads_to(found: &Found<'_>, children: &[&str]) -> Done {
    let came: Vec<bool> = children.iter().map(|label| found.came(label)).collect();
    match Found::together("children", &came) {
        Done::Yes if !found.later("a").is_empty() => Done::Part("children of a job that was not over".into()),
        Done::No if found.is_gone("a") => Done::Part("gone without its children".into()),
        done => done,
    }
}

/// Jobs that come with a commit, if it happens.
fn children(case: Case, labels: &[&'static str]) -> Case {
    case.with(|case| case.rules.may_vanish.extend(labels.iter().map(|label| (*label).to_owned())))
}

pub async fn commit_pushes(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let push = [p.job_for("next", "b", json!({})), p.job_for("next", "c", json!({"group": "g"}))];
    let case = committing(&held, json!({"push": push}), |found| leads_to(found, &["b", "c"]));
    children(case, &["b", "c"])
}

pub async fn commit_keyed_push(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), false).await;
    let push = [p.job_for("next", "b", json!({"key": "k"})), p.job_for("next", "c", json!({}))];
    let case = committing(&held, json!({"push": push}), |found| leads_to(found, &["b", "c"]));
    children(case, &["b", "c"])
}

pub async fn commit_route(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({"then": [{"queue": p.name("next")}]}), true).await;
    let next = p.name("next");
    let case = committing(&held, json!({}), move |found| match is_in(found, &next) {
        // Another worker had it once more, and its commit led on.
        Done::Yes if found.later("a").iter().any(|one| one.job["queue"] != json!(next)) => Done::No,
        done => done,
    });
    // The next stage is a delivery of the same job.
    case.settling(false).with(|case| case.is_commit = true)
}

/// Whether the job `a` came to this queue.
pub fn is_in(found: &Found<'_>, queue: &str) -> Done {
    let is_there = found.job("a").is_some_and(|job| job.get_str("queue").is_ok_and(|found| found == queue));
    (is_there || found.later("a").iter().any(|one| one.job["queue"] == json!(queue))).into()
}

/// A batch with these jobs, and the job `end` when it ends. Returns its id.
pub async fn batch(p: &Prep<'_>, labels: &[&str], sealed: bool) -> String {
    let jobs: Vec<Value> = labels.iter().map(|label| p.job_for("q", label, json!({}))).collect();
    let end = p.job_for("after", "end", json!({}));
    let body = json!({"jobs": jobs, "on_finished": end, "sealed": sealed});
    let create = Call::new("POST", "/v1/batches", body).keyed(p.name("batch"));
    p.lane.must_at(&p.lane.near, &create).await["id"].as_str().unwrap().to_owned()
}

pub async fn commit_batch(p: &Prep<'_>) -> Case {
    let id = batch(p, &["a"], true).await;
    let held = p.take("q", 1, true).await.remove(0);
    let case =
        committing(&held, json!({"result": 1}), |found| match (found.is_gone("a"), found.came("end")) {
            (true, false) => Done::Part("a batch without its end".into()),
            (gone, _) => gone.into(),
        });
    case.about(&[id])
}

pub async fn commit_group(p: &Prep<'_>) -> Case {
    p.push("q", "a", json!({"group": "g"})).await;
    let next = p.push("q", "b", json!({"group": "g"})).await;
    let held = p.take("q", 1, true).await.remove(0);
    let case = committing(&held, json!({}), |found| {
        let is_next = found.state("b") != Some("blocked");
        match (found.is_gone("a"), is_next) {
            (true, false) => Done::Part("the next one is still blocked".into()),
            (gone, _) => gone.into(),
        }
    });
    case.about(&[next]).with(|case| case.rules.in_order = vec!["a".to_owned(), "b".to_owned()])
}

fn says(document: &Document, text: &str) -> bool {
    document.to_string().contains(text)
}

/// Whether the rollback of `a` is seen in the job.
fn is_rolled_back(found: &Found<'_>) -> Done {
    let seen = found.job("a").is_some_and(|job| says(job, "it failed"));
    (seen || found.later("a").iter().any(|one| one.job["errors"].to_string().contains("it failed"))).into()
}

fn rolling_back(held: &Held) -> Case {
    let call = settle(held, "rollback", json!({"delay_ms": 0, "error": "it failed"}));
    Case::of(call, is_rolled_back).holding(std::slice::from_ref(held)).settling(false).repeats()
}

pub async fn rollback(p: &Prep<'_>) -> Case {
    rolling_back(&p.taken("q", "a", json!({}), true).await)
}

pub async fn rollback_dead(p: &Prep<'_>) -> Case {
    rolling_back(&p.taken("q", "a", json!({"max_attempts": 1}), false).await)
}

pub async fn rollback_dead_letter(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"dead_letter": p.name("dead")})).await;
    rolling_back(&p.taken("q", "a", json!({"max_attempts": 1}), true).await)
}

/// What is next, with a lease that is not over before a server gives back what it thinks is its own.
fn with_next(p: &Prep<'_>, held: &Held, call: &str, mut body: Value, wait_ms: u64) -> Call {
    body["next"] = json!({"count": 1, "lease_ms": KEPT_MS, "wait_ms": wait_ms, "worker": p.name("w")});
    settle(held, call, body)
}

pub async fn commit_next(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.push("q", "b", json!({})).await;
    let other = p.push("q", "c", json!({})).await; // which a repeat is not to take as well
    let case = Case::of(with_next(p, &held, "commit", json!({}), 0), a_is_gone);
    kept(case.holding(&[held]).settling(true).about(&[next, other]))
}

pub async fn commit_next_waiting(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let push = push_call(p, "q", "b", json!({}));
    let case = Case::of(with_next(p, &held, "commit", json!({}), 3000), a_is_gone);
    kept(case.holding(&[held]).settling(true)).with(|case| case.prompt = Some(push))
}

/// The job `a` is gone, or not. With it nothing is taken: what there is behind it, `b`, stays where it is.
fn a_alone_is_gone(found: &Found<'_>) -> Done {
    if let Some((200, answer)) = &found.answer
        && answer["next"]["jobs"] != json!([])
    {
        return Done::Part(format!("next is {}", answer["next"]));
    }
    if found.state("b") == Some("reserved") || !found.later("b").is_empty() {
        return Done::Part("b was taken".to_owned());
    }
    a_is_gone(found)
}

/// A commit of the job `a` that asks for what is next, where nothing is.
fn committing_alone(
    p: &Prep<'_>,
    held: Held,
    effect: impl Fn(&Found<'_>) -> Done + Send + Sync + 'static,
) -> Case {
    let case = Case::of(with_next(p, &held, "commit", json!({}), 0), effect);
    case.holding(&[held]).settling(true).repeats().with(|case| case.lease_ms = Some(KEPT_MS))
}

pub async fn commit_next_empty(p: &Prep<'_>) -> Case {
    committing_alone(p, p.taken("q", "a", json!({}), true).await, a_alone_is_gone)
}

/// The queue is paused until the case is over.
pub async fn commit_next_paused(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.push("q", "b", json!({})).await;
    p.settings("q", json!({"paused": true})).await;
    let resume = Call::new("POST", format!("/v1/queues/{}/resume", p.name("q")), json!({}));
    let case = committing_alone(p, held, a_alone_is_gone).about(&[next]);
    case.with(|case| case.cleanup.push(resume))
}

/// The semaphore is full until the case is over.
pub async fn commit_next_full(p: &Prep<'_>) -> Case {
    semaphore(p, 1).await;
    let needs = json!({"semaphores": [p.name("m")]});
    p.push("r", "first", needs.clone()).await;
    let holder = p.take_long("r", false).await;
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.push("q", "b", needs).await;
    let case = committing_alone(p, held, move |found| match found.is_held("first", &holder.token) {
        true => a_alone_is_gone(found),
        false => a_is_gone(found), // on a very slow machine its lease is over, and there is room
    });
    case.about(&[next])
}

pub async fn rollback_next(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.push("q", "b", json!({})).await;
    let call = with_next(p, &held, "rollback", json!({"delay_ms": 0, "error": "it failed"}), 0);
    kept(Case::of(call, is_rolled_back).holding(&[held]).settling(false).about(&[next]))
}

pub async fn extend(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let body = json!({"lease_ms": p.lease_ms(), "progress": "half of it"});
    let case = Case::of(settle(&held, "extend", body), |found| {
        let seen = found.job("a").is_some_and(|job| says(job, "half of it"));
        let later = found.later("a").iter().any(|one| one.job["progress"] == json!("half of it"));
        if found.is_gone("a") { Done::Unclear } else { (seen || later).into() }
    });
    case.holding(&[held]).repeats()
}

pub async fn move_job(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.name("next");
    let case = Case::of(settle(&held, "move", json!({"queue": next})), move |found| is_in(found, &next));
    case.holding(&[held]).settling(false).repeats()
}

pub async fn move_keyed(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.name("next");
    let key = format!("{next}/k");
    let call = settle(&held, "move", json!({"queue": next, "key": "k"}));
    let case =
        Case::of(call, move |found| match (is_in(found, &next), found.other("keys", &key).is_some()) {
            (Done::Yes, false) => Done::Part("it was moved without its key".to_owned()),
            (Done::No, true) => Done::Part("the key was taken, and nothing moved".to_owned()),
            (done, _) => done,
        });
    case.holding(&[held]).settling(false).repeats()
}

pub async fn settle_many(p: &Prep<'_>) -> Case {
    for label in ["a", "b", "c", "d"] {
        p.push("q", label, json!({})).await;
    }
    let held = p.take("q", 4, true).await;
    let item = |n: usize| json!({"id": held[n].id, "reservation": held[n].token});
    let with = |n: usize, field: &str, value: Value| {
        let mut item = item(n);
        item[field] = value;
        item
    };
    let body = json!({
        "commit": [item(0)], "rollback": [with(1, "error", json!("it failed"))],
        "extend": [with(2, "progress", json!("half of it"))], "move": [with(3, "queue", json!(p.name("next")))],
    });
    let case = Case::of(Call::new("POST", "/v1/settle", body), |found| {
        let Some((200, answer)) = &found.answer else { return Done::Unclear };
        let status = |list: &str| answer[list][0]["status"].as_u64();
        match (status("commit"), found.is_gone("a")) {
            (Some(200), false) => Done::Part("the commit is acknowledged".into()),
            (Some(200), true) => Done::Yes,
            _ => Done::Unclear,
        }
    });
    case.holding(&held).settling(false).repeats().with(|case| case.settles = Some(1))
}

fn rolling_back_so(held: &Held, mut body: Value) -> Case {
    body["error"] = json!("it failed");
    Case::of(settle(held, "rollback", body), is_rolled_back)
        .holding(std::slice::from_ref(held))
        .settling(false)
        .repeats()
}

pub async fn rollback_to_dead(p: &Prep<'_>) -> Case {
    rolling_back_so(&p.taken("q", "a", json!({}), true).await, json!({"dead": true}))
}

pub async fn rollback_uncounted(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    rolling_back_so(&held, json!({"delay_ms": 0, "count_attempt": false}))
}

pub async fn rollback_in_place(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    rolling_back_so(&held, json!({"keep_place": true}))
}

pub async fn commit_pushes_next(p: &Prep<'_>) -> Case {
    let held = p.taken("q", "a", json!({}), true).await;
    let next = p.push("q", "d", json!({})).await;
    let push = [p.job_for("next", "b", json!({})), p.job_for("next", "c", json!({"key": "k"}))];
    let call = with_next(p, &held, "commit", json!({"push": push}), 0);
    let case = Case::of(call, |found| leads_to(found, &["b", "c"]));
    kept(children(case.holding(&[held]).settling(true).about(&[next]), &["b", "c"]))
}

/// One that is over, one that comes back, and the next one.
pub async fn settle_many_next(p: &Prep<'_>) -> Case {
    for label in ["a", "b"] {
        p.push("q", label, json!({})).await;
    }
    let held = p.take("q", 2, true).await;
    let next = p.push("q", "c", json!({"priority": 3})).await;
    let item = |n: usize| json!({"id": held[n].id, "reservation": held[n].token});
    let mut back = item(1);
    back["delay_ms"] = json!(50);
    let ask = json!({"count": 1, "lease_ms": KEPT_MS, "worker": p.name("w")});
    let body = json!({"commit": [item(0)], "rollback": [back], "next": ask});
    let case = Case::of(Call::new("POST", "/v1/settle", body), |found| {
        let Some((200, answer)) = &found.answer else { return Done::Unclear };
        match (answer["commit"][0]["status"].as_u64(), found.is_gone("a")) {
            (Some(200), false) => Done::Part("the commit is acknowledged".into()),
            (Some(200), true) => Done::Yes,
            _ => Done::Unclear,
        }
    });
    kept(case.holding(&held).settling(false).about(&[next])).with(|case| case.settles = Some(1))
}
