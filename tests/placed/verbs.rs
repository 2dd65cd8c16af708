//! Every verb that writes: pushes and claims here, the others in files of their own.

use std::time::Duration;

use serde_json::{Value, json};

use crate::case::{Case, Done, Found, Prep, Verb};
use crate::lane::Call;
use crate::verbs_background as background;
use crate::verbs_keys as keys;
use crate::verbs_once as once;
use crate::verbs_one_job as one_job;
use crate::verbs_others as others;
use crate::verbs_repeats as repeats;
use crate::verbs_settle as settle;

macro_rules! verbs {
    ($($name:literal $prepare:path,)*) => {
        &[$(Verb { name: $name, prepare: |p| Box::pin($prepare(p)) },)*]
    };
}

/// All of them.
pub const VERBS: &[Verb] = verbs![
    "push" push,
    "push with a key" push_keyed,
    "push, idempotent" push_idempotent,
    "push many, idempotent" push_many_idempotent,
    "push into a group" push_grouped,
    "push into a limited queue" push_limited,
    "push with a semaphore" push_semaphore,
    "push that replaces" push_replacing,
    "push together" once::push_together,
    "push together, idempotent" once::push_together_once,
    "push beside each other" once::push_each,
    "push beside each other, idempotent" once::push_each_once,
    "push many" push_many,
    "reserve" reserve,
    "reserve with a key" reserve_keyed,
    "reserve with a key, waiting" reserve_keyed_waiting,
    "reserve, max_reserved" reserve_max_reserved,
    "reserve, rate" reserve_rate,
    "reserve, semaphore" reserve_semaphore,
    "reserve, patterns" reserve_patterns,
    "reserve, waiting" reserve_waiting,
    "reserve, max_bytes" reserve_max_bytes,
    "reserve that frees keys" reserve_freeing,
    "pop" pop,
    "pop, waiting" pop_waiting,
    "pop, idempotent" pop_once,
    "commit" settle::commit,
    "commit at another server" settle::commit_elsewhere,
    "commit into history" settle::commit_retained,
    "commit with pushes" settle::commit_pushes,
    "commit with a keyed push" settle::commit_keyed_push,
    "commit along a route" settle::commit_route,
    "commit of the last of a batch" settle::commit_batch,
    "commit of the first of a group" settle::commit_group,
    "commit with the next jobs" settle::commit_next,
    "commit with the next jobs, waiting" settle::commit_next_waiting,
    "commit with pushes and the next jobs" settle::commit_pushes_next,
    "commit with nothing next" settle::commit_next_empty,
    "commit with a paused queue next" settle::commit_next_paused,
    "commit with a full semaphore next" settle::commit_next_full,
    "rollback" settle::rollback,
    "rollback to dead" settle::rollback_to_dead,
    "rollback, not counted" settle::rollback_uncounted,
    "rollback, in its place" settle::rollback_in_place,
    "rollback with the next jobs" settle::rollback_next,
    "rollback, last attempt" settle::rollback_dead,
    "rollback, dead letter" settle::rollback_dead_letter,
    "extend" settle::extend,
    "move" settle::move_job,
    "move to a key" settle::move_keyed,
    "settle many" settle::settle_many,
    "settle many with the next jobs" settle::settle_many_next,
    "cancel" others::cancel,
    "cancel of a reserved job" others::cancel_reserved,
    "cancel, forced" others::cancel_forced,
    "cancel unless reserved" one_job::cancel_unless_reserved,
    "patch" others::patch,
    "patch of the payload" one_job::patch_payload,
    "patch of the group" one_job::patch_group,
    "patch of the expiry" one_job::patch_expiry,
    "retry" one_job::retry,
    "redrive of a job" one_job::redrive,
    "replay of a job" one_job::replay,
    "replay of a job, idempotent" one_job::replay_once,
    "run now" one_job::run,
    "release" one_job::release,
    "move without a token" one_job::move_without_token,
    "redrive" others::redrive,
    "replay" others::replay,
    "redrive, idempotent" once::redrive,
    "replay, idempotent" once::replay,
    "purge" others::purge,
    "operation begin" once::operation_begin,
    "operation begin, idempotent" once::operation_begin_once,
    "operation cancel" once::operation_cancel,
    "settings put" others::settings_put,
    "settings patch" others::settings_patch,
    "pause" others::pause,
    "resume" others::resume,
    "queue delete" others::queue_delete,
    "queues delete" once::queues_delete,
    "semaphore put" others::semaphore_put,
    "semaphore delete" others::semaphore_delete,
    "schedule put" others::schedule_put,
    "schedule run" others::schedule_run_unkeyed,
    "schedule run, idempotent" others::schedule_run,
    "schedule pause" others::schedule_pause,
    "schedule resume" others::schedule_resume,
    "schedule delete" others::schedule_delete,
    "batch create" others::batch_create,
    "batch create, idempotent" others::batch_create_idempotent,
    "batch add" others::batch_add,
    "batch add, idempotent" once::batch_add,
    "batch seal" others::batch_seal,
    "batch cancel" others::batch_cancel,
    "heartbeat" others::heartbeat,
    "worker removal" others::worker_removal,
    "key add" keys::add,
    "key rotate" keys::rotate,
    "key delete" keys::delete,
    "(lapse)" background::lapse,
    "(lapse, last attempt)" background::lapse_dead_letter,
    "(lapse of the first of a group)" background::lapse_group,
    "(worker timeout)" background::worker_timeout,
    "(expiry)" background::expiry,
    "(schedule fires)" background::fire,
    "(semaphore unblocks)" background::unblock,
    "(operation step)" background::operation_step,
    "(prune of history)" background::prune,
    "(prune of the dead)" background::prune_dead,
    "(prune of a batch)" background::prune_batch,
    "(prune of a key)" background::prune_key,
    "push, idempotent, again" repeats::push,
    "push many, idempotent, again" repeats::push_many,
    "push together, idempotent, again" repeats::push_together,
    "reserve with a key, again" repeats::reserve,
    "reserve with a key, taken over" repeats::reserve_taken_over,
    "reserve with a key, opened and taken over" repeats::reserve_opened,
    "pop, idempotent, again" repeats::pop,
    "pop, idempotent, from another" repeats::pop_from_another,
    "commit with the next jobs, again" repeats::commit_next,
    "commit with pushes and the next jobs, again" repeats::commit_pushes_next,
    "commit with nothing next, again" repeats::commit_next_empty,
    "commit with nothing next, again, same server" repeats::commit_next_empty_here,
    "commit with a paused queue next, again" repeats::commit_next_paused,
    "commit with a paused queue next, again, same server" repeats::commit_next_paused_here,
    "commit with a full semaphore next, again" repeats::commit_next_full,
    "commit with a full semaphore next, again, same server" repeats::commit_next_full_here,
    "rollback with the next jobs, again" repeats::rollback_next,
    "settle many with the next jobs, again" repeats::settle_many_next,
    "redrive, idempotent, again" repeats::redrive,
    "replay of a job, idempotent, again" repeats::replay_of_a_job,
    "operation begin, idempotent, again" repeats::operation_begin,
    "schedule run, idempotent, again" repeats::schedule_run,
    "batch create, idempotent, again" repeats::batch_create,
    "batch add, idempotent, again" repeats::batch_add,
];

pub fn push_call(p: &Prep<'_>, queue: &str, label: &str, more: Value) -> Call {
    Call::new("POST", format!("/v1/queues/{}/jobs", p.name(queue)), p.job(label, more))
}

/// A push whose job may never have come to be.
fn pushing(call: Call, label: &'static str) -> Case {
    Case::of(call, move |found| found.came(label).into())
        .with(|case| case.rules.may_vanish.push(label.to_owned()))
}

/// The job whose key it has waits with another payload.
async fn push_replacing(p: &Prep<'_>) -> Case {
    let key = json!({"key": "k", "key_ttl_ms": 600_000});
    let id = p.push("q", "first", key.clone()).await;
    let mut more = key;
    more["key_conflict"] = json!("replace");
    let case = Case::of(push_call(p, "q", "a", more), |found| match &found.answer {
        // The other one had been taken by then.
        Some((200, answer)) if answer["replaced"] != json!(true) => Done::Unclear,
        _ => found.came("a").into(),
    });
    case.about(&[id]).repeats().with(|case| {
        case.rules.may_vanish.extend(["first", "a"].map(str::to_owned));
    })
}

async fn push(p: &Prep<'_>) -> Case {
    pushing(push_call(p, "q", "a", json!({})), "a")
}

async fn push_keyed(p: &Prep<'_>) -> Case {
    pushing(push_call(p, "q", "a", json!({"key": "k", "key_ttl_ms": 600_000})), "a").repeats()
}

pub async fn push_idempotent(p: &Prep<'_>) -> Case {
    pushing(push_call(p, "q", "a", json!({})).keyed(p.name("key")), "a").repeats()
}

async fn push_grouped(p: &Prep<'_>) -> Case {
    p.push("q", "first", json!({"group": "g"})).await;
    let case = pushing(push_call(p, "q", "a", json!({"group": "g"})), "a");
    case.with(|case| case.rules.in_order = vec!["first".to_owned(), "a".to_owned()])
}

async fn push_limited(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"max_jobs": 2})).await;
    p.push("q", "first", json!({})).await;
    pushing(push_call(p, "q", "a", json!({})), "a")
}

pub async fn semaphore(p: &Prep<'_>, capacity: u64) {
    p.lane.must("PUT", format!("/v1/semaphores/{}", p.name("m")), json!({"capacity": capacity})).await;
}

async fn push_semaphore(p: &Prep<'_>) -> Case {
    semaphore(p, 1).await;
    p.push("q", "first", json!({"semaphores": [p.name("m")]})).await;
    let case = pushing(push_call(p, "q", "a", json!({"semaphores": [p.name("m")]})), "a");
    case.with(|case| case.rules.one_at_a_time = true)
}

async fn push_many(p: &Prep<'_>) -> Case {
    pushing_many(p, |call| call)
}

pub async fn push_many_idempotent(p: &Prep<'_>) -> Case {
    pushing_many(p, |call| call.keyed(p.name("key"))).repeats()
}

fn pushing_many(p: &Prep<'_>, made: impl FnOnce(Call) -> Call) -> Case {
    let labels = ["a", "b", "c", "d"];
    let more = [json!({}), json!({"key": "k"}), json!({"group": "g"}), json!({"group": "g", "delay_ms": 50})];
    let jobs: Vec<Value> = labels.iter().zip(more).map(|(label, more)| p.job(label, more)).collect();
    let call = Call::new("POST", format!("/v1/queues/{}/jobs/batch", p.name("q")), json!({"jobs": jobs}));
    let case = Case::of(made(call), move |found| {
        let came: Vec<bool> = labels.iter().map(|label| found.came(label)).collect();
        let Some((200, answer)) = &found.answer else {
            return if came.contains(&true) { Done::Yes } else { Done::No };
        };
        for (n, came) in came.iter().enumerate() {
            let status = answer["results"][n]["status"].as_u64();
            match status {
                Some(200 | 201) if !came => return Done::Part(format!("{} is acknowledged", labels[n])),
                Some(400..=499) if *came => return Done::Part(format!("{} is refused", labels[n])),
                _ => {}
            }
        }
        Done::Unclear
    });
    case.with(|case| {
        case.rules.may_vanish.extend(labels.map(str::to_owned));
        case.rules.in_order = vec!["c".to_owned(), "d".to_owned()];
    })
}

/// Longer than a server takes to give back what it thinks is its own.
pub const KEPT_MS: u64 = 6000;

/// A reserve whose jobs are kept while the first server comes back.
pub fn kept(case: Case) -> Case {
    case.repeats().with(|case| {
        case.lease_ms = Some(KEPT_MS);
        case.keeps_for = Duration::from_millis(2500);
    })
}

/// A reserve: whether it claimed is seen by the attempts of the next delivery.
fn claiming(p: &Prep<'_>, more: Value) -> Call {
    let mut body = json!({"count": 2, "lease_ms": p.short_ms, "worker": p.name("w")});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    Call::new("POST", format!("/v1/queues/{}/reserve", p.name("q")), body)
}

fn claimed(p: &Prep<'_>, call: Call) -> Case {
    let case = Case::of(call, |found: &Found<'_>| match &found.answer {
        Some((200, answer)) if answer["jobs"] != json!([]) => Done::Yes,
        Some((200, _)) => Done::Unclear,
        _ => found.jobs.iter().any(|job| job.get_str("state").is_ok_and(|state| state == "reserved")).into(),
    });
    case.with(|case| case.lease_ms = Some(p.short_ms))
}

async fn two(p: &Prep<'_>, more: Value) -> Vec<String> {
    vec![p.push("q", "a", more.clone()).await, p.push("q", "b", more).await]
}

async fn reserve(p: &Prep<'_>) -> Case {
    let ids = two(p, json!({})).await;
    claimed(p, claiming(p, json!({}))).about(&ids)
}

pub async fn reserve_keyed(p: &Prep<'_>) -> Case {
    let ids = two(p, json!({})).await;
    kept(claimed(p, claiming(p, json!({"lease_ms": KEPT_MS})).keyed(p.name("key"))).about(&ids))
}

async fn reserve_keyed_waiting(p: &Prep<'_>) -> Case {
    let push = push_call(p, "q", "a", json!({}));
    let call = claiming(p, json!({"wait_ms": 3000, "lease_ms": KEPT_MS})).keyed(p.name("key"));
    kept(claimed(p, call)).with(|case| case.prompt = Some(push))
}

async fn reserve_max_reserved(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"max_reserved": 1})).await;
    let ids = two(p, json!({})).await;
    claimed(p, claiming(p, json!({}))).about(&ids).with(|case| case.rules.one_at_a_time = true)
}

async fn reserve_rate(p: &Prep<'_>) -> Case {
    p.settings("q", json!({"rate": {"limit": 1, "per_ms": 600}})).await;
    let ids = two(p, json!({})).await;
    let rate = Some(Duration::from_millis(600));
    claimed(p, claiming(p, json!({}))).about(&ids).with(|case| case.rules.one_in = rate)
}

async fn reserve_semaphore(p: &Prep<'_>) -> Case {
    semaphore(p, 1).await;
    let ids = two(p, json!({"semaphores": [p.name("m")]})).await;
    claimed(p, claiming(p, json!({}))).about(&ids).with(|case| case.rules.one_at_a_time = true)
}

async fn reserve_patterns(p: &Prep<'_>) -> Case {
    let ids = two(p, json!({})).await;
    let other = p.push("r", "c", json!({})).await;
    let queues = json!([p.name("r"), format!("{}.*", p.tag())]);
    let body = json!({"queues": queues, "count": 3, "lease_ms": p.short_ms});
    claimed(p, Call::new("POST", "/v1/reserve", body)).about(&ids).about(&[other])
}

async fn reserve_waiting(p: &Prep<'_>) -> Case {
    let push = push_call(p, "q", "a", json!({}));
    claimed(p, claiming(p, json!({"wait_ms": 3000}))).with(|case| case.prompt = Some(push))
}

/// What does not fit is given back.
async fn reserve_max_bytes(p: &Prep<'_>) -> Case {
    let ids = two(p, json!({})).await;
    claimed(p, claiming(p, json!({"max_bytes": 1}))).about(&ids)
}

/// The keys of the jobs are free once they are delivered.
async fn reserve_freeing(p: &Prep<'_>) -> Case {
    let ids = [
        p.push("q", "a", json!({"key": "a", "key_until": "reserved"})).await,
        p.push("q", "b", json!({"key": "b", "key_until": "reserved"})).await,
    ];
    claimed(p, claiming(p, json!({}))).about(&ids)
}

fn pop_call(p: &Prep<'_>, body: Value) -> Call {
    Call::new("POST", format!("/v1/queues/{}/pop", p.name("q")), body)
}

fn popping(call: Call) -> Case {
    let case = Case::of(call, |found| {
        let gone = ["a", "b"].map(|label| found.is_gone(label));
        match &found.answer {
            Some((200, answer)) => {
                let jobs = answer["jobs"].as_array().map_or(0, Vec::len);
                let popped = gone.iter().filter(|gone| **gone).count();
                if popped >= jobs { Done::Yes } else { Done::Part(format!("{jobs} popped, gone: {gone:?}")) }
            }
            _ => (gone[0] || gone[1]).into(),
        }
    });
    case.with(|case| case.lease_ms = Some(0))
}

/// A pop is at most once: what it took and could not answer is gone.
fn at_most_once(case: Case) -> Case {
    case.with(|case| case.rules.may_vanish.extend(["a", "b"].map(str::to_owned)))
}

async fn pop(p: &Prep<'_>) -> Case {
    let ids = two(p, json!({})).await;
    at_most_once(popping(pop_call(p, json!({"count": 2})))).about(&ids)
}

async fn pop_waiting(p: &Prep<'_>) -> Case {
    let push = push_call(p, "q", "a", json!({}));
    let call = pop_call(p, json!({"count": 2, "wait_ms": 3000}));
    let case = Case::of(call, |found| match &found.answer {
        Some((200, answer)) if answer["jobs"] == json!([]) => Done::Unclear,
        _ => found.is_gone("a").into(),
    });
    at_most_once(case).with(|case| {
        case.lease_ms = Some(0);
        case.prompt = Some(push);
    })
}

/// A repeat is told what the call took: nothing is lost to a client that repeats it.
pub async fn pop_once(p: &Prep<'_>) -> Case {
    let ids = two(p, json!({})).await;
    popping(pop_call(p, json!({"count": 2})).keyed(p.name("key"))).about(&ids).repeats()
}
