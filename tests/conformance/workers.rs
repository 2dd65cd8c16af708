//! Workers: heartbeats, silence, and what a lost worker held.

use tailback::job::transition::{Loss, Operation, Outcome, Refusal};
use tailback::job::{Job, Rules, State, Timestamp, WorkerName};
use tailback::store::{Change, ClaimAsk, Holdings, Report, Store};

use super::support::*;

/// Longer than any of these cases takes.
const LONG_MS: u64 = 600_000;
/// Whoever asks has been there for ever.
const ALWAYS: u64 = u64::MAX;

fn worker(name: &str) -> WorkerName {
    name.parse().unwrap()
}

fn report(timeout_ms: u64) -> Report {
    Report { version: None, slots: None, timeout_ms }
}

async fn beat(store: &dyn Store, name: &str, timeout_ms: u64) -> Holdings {
    store.heartbeat(&worker(name), &report(timeout_ms)).await.unwrap()
}

async fn take_as(store: &dyn Store, name: &str, count: usize, lease_ms: u64) -> Vec<Job> {
    let ask = ClaimAsk { worker: Some(worker(name)), ..ask_for("q", count, lease_ms) };
    let jobs = claim(store, ask).await;
    assert_eq!(jobs.len(), count);
    jobs
}

async fn push_and_take_as(store: &dyn Store, name: &str, count: usize, lease_ms: u64) -> Vec<Job> {
    push_all(store, vec![job("q"); count]).await;
    take_as(store, name, count, lease_ms).await
}

/// Waits until workers are silent that hold something.
async fn silence(store: &dyn Store) -> Vec<Change> {
    until("somebody is silent", async || {
        let changes = store.timed_out_workers(ALWAYS, 100).await.unwrap().changes;
        (!changes.is_empty()).then_some(changes)
    })
    .await
}

async fn seen_at(store: &dyn Store, name: &str) -> Timestamp {
    store.worker(&worker(name)).await.unwrap().unwrap().seen_at
}

pub async fn a_heartbeat_extends_up_to_the_longest_lease_and_the_end_of_the_run(store: &dyn Store) {
    let longest = tailback::job::settings::LEASE_MAX_MS;
    push_all(store, vec![job("q"), job("q").max_run(LONG_MS), job("q").max_run(3 * longest), job("q")]).await;
    let mut held = take_as(store, "w", 4, longest).await;
    // Another program gave the last one a longer lease than there is, and no time.
    let mut foreign = held.remove(3);
    foreign.meta.id = id("foreign");
    (foreign.meta.lease_ms, foreign.meta.reserved_until) = (Some(7 * longest), foreign.meta.started_at);
    store.import(vec![foreign.clone()]).await.remove(0).unwrap();
    held.push(foreign);
    let before = store.now().unwrap();
    beat(store, "w", LONG_MS).await;
    // By the clock that the heartbeat went by: the estimate of it may be behind by any time.
    beat(store, "later", LONG_MS).await;
    let after = seen_at(store, "later").await;
    for job in &held {
        let until = see(store, &job.meta.id).await.meta.reserved_until.unwrap();
        let bounds = job.meta.kept_until(before)..=job.meta.kept_until(after);
        assert!(bounds.contains(&until), "{until:?} {bounds:?} {job:?}");
    }
}

pub async fn a_heartbeat_extends_each_reservation_by_its_own_lease(store: &dyn Store) {
    let short = push_and_take_as(store, "w", 1, 100_000).await.remove(0);
    let long = push_and_take_as(store, "w", 1, LONG_MS).await.remove(0);
    let other = push_and_take_as(store, "other", 1, 100_000).await.remove(0);
    until_past(store, long.meta.started_at.unwrap().plus_ms(20)).await;
    let before = store.now().unwrap();
    let holdings = beat(store, "w", LONG_MS).await;
    assert_eq!((holdings.jobs, holdings.cancel_requested.len()), (2, 0));
    let until = async |job: &Job| see(store, &job.meta.id).await.meta.reserved_until.unwrap();
    assert_eq!(holdings.reserved_until, Some(until(&short).await));
    assert!(until(&short).await >= before.plus_ms(100_000));
    assert!(until(&long).await >= before.plus_ms(LONG_MS));
    assert_eq!(see(store, &other.meta.id).await, other, "others are left alone");
    assert_eq!(beat(store, "nobody", LONG_MS).await, Holdings::default());
}

pub async fn a_heartbeat_never_shortens(store: &dyn Store) {
    let taken = push_and_take_as(store, "w", 1, 1000).await.remove(0);
    apply(store, extend(&taken, Some(LONG_MS))).await.unwrap();
    let before = see(store, &taken.meta.id).await;
    assert_eq!(beat(store, "w", LONG_MS).await.reserved_until, before.meta.reserved_until);
    let after = see(store, &taken.meta.id).await;
    assert_eq!(after.meta.reserved_until, before.meta.reserved_until);
    assert_ne!(after.meta.rev, before.meta.rev, "what was read of it before is out of date");
}

pub async fn a_heartbeat_tells_what_was_asked_to_stop(store: &dyn Store) {
    let jobs = push_and_take_as(store, "w", 3, 60_000).await;
    apply(store, cancel(&jobs[1].meta.id, false)).await.unwrap();
    let holdings = beat(store, "w", LONG_MS).await;
    assert_eq!(holdings.jobs, 3);
    assert_eq!(holdings.cancel_requested, [(jobs[1].meta.id.clone(), queue("q"))]);
    apply(store, rollback(&jobs[1], None)).await.unwrap();
    let holdings = beat(store, "w", LONG_MS).await;
    assert_eq!((holdings.jobs, holdings.cancel_requested), (2, Vec::new()));
}

pub async fn settles_follow_a_heartbeat(store: &dyn Store) {
    let jobs = push_and_take_as(store, "w", 5, 60_000).await;
    beat(store, "w", LONG_MS).await;
    let changes = vec![
        commit(&jobs[0]),
        rollback(&jobs[1], Some(0)),
        extend(&jobs[2], None),
        move_to(&jobs[3], "next"),
        commit(&jobs[4]),
    ];
    let applied = apply_all(store, changes, &Rules::default()).await;
    let outcomes: Vec<Outcome> = applied.into_iter().map(|applied| applied.unwrap().outcome).collect();
    assert!(matches!(
        outcomes.as_slice(),
        [
            Outcome::Done,
            Outcome::Returned { .. },
            Outcome::Held { .. },
            Outcome::Returned { .. },
            Outcome::Done
        ]
    ));
    assert_eq!(beat(store, "w", LONG_MS).await.jobs, 1);
}

pub async fn a_lapse_yields_to_a_heartbeat(store: &dyn Store) {
    let taken = push_and_take_as(store, "w", 1, 20).await.remove(0);
    let lapse = overdue(store).await.remove(0);
    assert_eq!(beat(store, "w", LONG_MS).await.jobs, 1, "late, but not too late");
    assert_eq!(apply(store, lapse).await, Err(Refusal::Lost { gone: false }));
    assert_eq!(apply(store, commit(&taken)).await.unwrap().outcome, Outcome::Done);
}

pub async fn a_silent_worker_gives_back_what_it_holds(store: &dyn Store) {
    let taken = push_and_take_as(store, "w", 1, LONG_MS).await.remove(0);
    let progress = Operation::Extend {
        claim: held_by(&taken),
        lease_ms: Some(LONG_MS),
        progress: Some(payload("[40]")),
    };
    apply(store, change(&taken.meta.id, progress)).await.unwrap();
    beat(store, "w", 30).await;
    let seen_at = seen_at(store, "w").await;
    let lost = silence(store).await;
    assert_eq!(lost.len(), 1);
    let before = store.now().unwrap();
    let applied = apply(store, lost[0].clone()).await.unwrap();
    let Outcome::Returned { run_at, .. } = applied.outcome else { panic!("{applied:?}") };
    assert!(before <= run_at && run_at <= store.now().unwrap(), "due at once, and not before");
    assert_eq!(apply(store, lost[0].clone()).await, Err(Refusal::Lost { gone: false }), "once");
    let counts = counts_of(store, "q").await;
    assert_eq!((counts.ready, counts.reserved), (1, 0));

    let again = take(store, "q").await;
    assert_eq!((again.meta.attempts, &again.meta.progress), (2, &Some(payload("[40]"))));
    let failure = again.meta.errors.last().unwrap();
    assert_eq!((failure.message.as_str(), &failure.worker), ("the worker fell silent", &taken.meta.worker));
    assert_eq!(apply(store, commit(&taken)).await, Err(Refusal::Lost { gone: false }));
    assert_eq!(apply(store, commit(&again)).await.unwrap().outcome, Outcome::Done);
    assert_eq!(apply(store, commit(&taken)).await, Err(Refusal::Lost { gone: true }));

    let rest = store.timed_out_workers(ALWAYS, 100).await.unwrap();
    assert!(rest.changes.is_empty() && rest.next_in_ms.is_none(), "nobody waits for it any more: {rest:?}");
    let shown = store.worker(&worker("w")).await.unwrap().unwrap();
    assert_eq!((shown.seen_at, shown.reserved), (seen_at, 0), "people can see it for a while");
    // What it takes without a heartbeat it keeps for the lease.
    push_and_take_as(store, "w", 1, LONG_MS).await;
    assert!(store.timed_out_workers(ALWAYS, 100).await.unwrap().changes.is_empty());
}

pub async fn silences_use_attempts_up(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_attempts = Some(2));
    let id = push_one(store, job("q")).await;
    for state in [State::Ready, State::Dead] {
        take_as(store, "w", 1, LONG_MS).await;
        beat(store, "w", 20).await;
        for applied in apply_all(store, silence(store).await, &rules).await {
            applied.unwrap();
        }
        assert_eq!(state_of(store, &id).await, Some(state));
    }
}

pub async fn a_heartbeat_keeps_what_silence_has_not_taken(store: &dyn Store) {
    let jobs = push_and_take_as(store, "w", 3, LONG_MS).await;
    beat(store, "w", 20).await;
    let lost = silence(store).await;
    assert_eq!(lost.len(), 3);
    let taken = lost[1].clone();
    apply(store, taken.clone()).await.unwrap();
    let holdings = beat(store, "w", LONG_MS).await;
    assert_eq!(holdings.jobs, 2, "it is told what it holds now");
    for late in lost {
        assert_eq!(apply(store, late).await, Err(Refusal::Lost { gone: false }));
    }
    assert!(store.timed_out_workers(ALWAYS, 100).await.unwrap().changes.is_empty(), "it is alive again");
    for job in jobs {
        let committed = apply(store, commit(&job)).await;
        assert_eq!(committed.is_ok(), job.meta.id != taken.id, "{committed:?}");
    }
}

/// A worker that only extends one of its jobs keeps them all, whoever asks.
pub async fn an_extend_is_a_sign_of_life(store: &dyn Store) {
    for timeout_ms in [500, 2000, 8000, 32_000] {
        let taken = push_and_take_as(store, "w", 3, LONG_MS).await;
        beat(store, "w", timeout_ms).await;
        let silent_at = seen_at(store, "w").await.plus_ms(timeout_ms);
        until_past(store, silent_at).await;
        apply(store, extend(&taken[2], None)).await.unwrap();
        let silent_at = see(store, &taken[2].meta.id).await.meta.extended_at.unwrap().plus_ms(timeout_ms);
        let silent = store.timed_out_workers(ALWAYS, 1).await.unwrap();
        store.ping().await.unwrap();
        if store.now().unwrap() >= silent_at {
            for job in &taken {
                apply(store, commit(job)).await.unwrap();
            }
            continue;
        }
        assert!(silent.changes.is_empty(), "it has just extended: {silent:?}");
        assert!(silent.next_in_ms.is_some_and(|ms| ms <= timeout_ms), "{silent:?}");
        assert_eq!(silence(store).await.len(), 3);
        assert!(store.now().unwrap() >= silent_at);
        return;
    }
    panic!("it was never asked for in time");
}

pub async fn any_other_change_puts_a_silence_off(store: &dyn Store) {
    let taken = push_and_take_as(store, "w", 1, LONG_MS).await.remove(0);
    beat(store, "w", 20).await;
    let lost = silence(store).await.remove(0);
    apply(store, extend(&taken, Some(LONG_MS))).await.unwrap();
    assert_eq!(apply(store, lost).await, Err(Refusal::Lost { gone: false }));
    let lost = silence(store).await.remove(0);
    apply(store, lost).await.unwrap();
}

pub async fn a_delivery_is_a_sign_of_life(store: &dyn Store) {
    // On a machine that is busy it may be silent again before it is asked for; then the next one has more time.
    for timeout_ms in [500, 2000, 8000, 32_000] {
        beat(store, "w", timeout_ms).await;
        let silent_at = seen_at(store, "w").await.plus_ms(timeout_ms);
        until_past(store, silent_at).await;
        let taken = push_and_take_as(store, "w", 1, LONG_MS).await.remove(0);
        let silent_at = taken.meta.started_at.unwrap().plus_ms(timeout_ms);
        let silent = store.timed_out_workers(ALWAYS, 100).await.unwrap();
        store.ping().await.unwrap();
        if store.now().unwrap() >= silent_at {
            apply(store, commit(&taken)).await.unwrap();
            continue;
        }
        assert!(silent.changes.is_empty(), "it has just been there");
        assert!(silent.next_in_ms.is_some_and(|ms| ms <= timeout_ms), "{silent:?}");
        silence(store).await;
        assert!(store.now().unwrap() >= silent_at);
        return;
    }
    panic!("it was never asked for in time");
}

pub async fn only_who_sent_a_heartbeat_falls_silent(store: &dyn Store) {
    let taken = push_and_take_as(store, "w", 1, LONG_MS).await.remove(0);
    push_and_take(store, job("q")).await;
    until_past(store, taken.meta.started_at.unwrap().plus_ms(50)).await;
    let silent = store.timed_out_workers(ALWAYS, 100).await.unwrap();
    assert!(silent.changes.is_empty() && silent.next_in_ms.is_none(), "{silent:?}");
    assert_eq!(store.worker(&worker("w")).await.unwrap(), None);
}

pub async fn a_silence_that_nobody_listened_to_is_none(store: &dyn Store) {
    push_and_take_as(store, "w", 1, LONG_MS).await;
    beat(store, "w", 50).await;
    assert_eq!(silence(store).await.len(), 1);
    assert!(
        store.timed_out_workers(49, 100).await.unwrap().changes.is_empty(),
        "who came a moment ago cannot tell"
    );
    assert_eq!(store.timed_out_workers(50, 100).await.unwrap().changes.len(), 1);
}

pub async fn silence_is_dealt_with_in_steps(store: &dyn Store) {
    for name in ["a", "b"] {
        push_and_take_as(store, name, 4, LONG_MS).await;
        beat(store, name, 30).await;
    }
    until_past(store, seen_at(store, "b").await.plus_ms(30)).await;
    let mut taken = 0;
    loop {
        let changes = store.timed_out_workers(ALWAYS, 3).await.unwrap().changes;
        if changes.is_empty() {
            break;
        }
        assert!(changes.len() <= 3);
        taken += changes.len();
        for applied in apply_all(store, changes, &Rules::default()).await {
            applied.unwrap();
        }
    }
    assert_eq!(taken, 8);
    assert_eq!(counts_of(store, "q").await.ready, 8);
    let silent = store.timed_out_workers(ALWAYS, 3).await.unwrap();
    assert!(silent.changes.is_empty() && silent.next_in_ms.is_none());
}

pub async fn the_next_silence_is_foreseen(store: &dyn Store) {
    beat(store, "late", LONG_MS).await;
    beat(store, "soon", 300_000).await;
    let next = store.timed_out_workers(ALWAYS, 100).await.unwrap().next_in_ms;
    assert!(next.is_some_and(|ms| (150_000..=300_000).contains(&ms)), "{next:?}");
    beat(store, "soon", 2 * LONG_MS).await;
    let next = store.timed_out_workers(ALWAYS, 100).await.unwrap().next_in_ms;
    assert!(next.is_some_and(|ms| (60_000..=LONG_MS).contains(&ms)), "{next:?}");
}

pub async fn a_silence_ends_what_was_asked_to_stop(store: &dyn Store) {
    let taken = push_and_take_as(store, "w", 1, LONG_MS).await.remove(0);
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    beat(store, "w", 20).await;
    let lost = silence(store).await.remove(0);
    assert_eq!(apply(store, lost).await.unwrap().outcome, Outcome::Removed);
    assert_eq!(look(store, &taken.meta.id).await, None);
    assert_eq!(apply(store, commit(&taken)).await, Err(Refusal::Lost { gone: true }));
}

pub async fn workers_are_listed_by_name(store: &dyn Store) {
    for name in ["c", "a", "b"] {
        beat(store, name, LONG_MS).await;
    }
    push_and_take_as(store, "b", 2, LONG_MS).await;
    push_and_take_as(store, "unseen", 1, LONG_MS).await;
    let said = Report { version: Some("1.2 (x)".parse().unwrap()), slots: Some(8), timeout_ms: 5000 };
    store.heartbeat(&worker("b"), &said).await.unwrap();
    let all = store.workers(None, 10).await.unwrap();
    let seen: Vec<(&str, u64)> = all.iter().map(|worker| (worker.name.as_str(), worker.reserved)).collect();
    assert_eq!(seen, [("a", 0), ("b", 2), ("c", 0)]);
    assert_eq!(all[1].report, said);
    assert_eq!(store.workers(None, 2).await.unwrap(), all[..2]);
    assert_eq!(store.workers(Some(&worker("b")), 2).await.unwrap(), all[2..]);
    assert_eq!(store.worker(&worker("b")).await.unwrap().as_ref(), Some(&all[1]));
    // Each heartbeat stands for itself.
    beat(store, "b", LONG_MS).await;
    assert_eq!(store.worker(&worker("b")).await.unwrap().unwrap().report, report(LONG_MS));
    assert!(store.forget_worker(&worker("b")).await.unwrap());
    assert!(!store.forget_worker(&worker("b")).await.unwrap());
    assert_eq!(store.workers(None, 10).await.unwrap().len(), 2);
    assert_eq!(store.held_by(&worker("b"), 10).await.unwrap().len(), 2, "its jobs are still its own");
}

pub async fn a_removed_worker_gives_back_what_it_holds(store: &dyn Store) {
    let jobs = push_and_take_as(store, "w", 3, LONG_MS).await;
    assert_eq!(store.held_by(&worker("w"), 2).await.unwrap().len(), 2);
    let held = store.held_by(&worker("w"), 10).await.unwrap();
    assert_eq!(held.len(), 3);
    apply(store, commit(&jobs[0])).await.unwrap();
    beat(store, "w", LONG_MS).await; // it does not help
    for (id, claim) in held {
        let applied = apply(store, change(&id, Operation::Abandon { claim, loss: Loss::Removed })).await;
        if id == jobs[0].meta.id {
            assert_eq!(applied, Err(Refusal::Lost { gone: true }));
        } else {
            assert!(matches!(applied.unwrap().outcome, Outcome::Returned { .. }));
            assert_eq!(see(store, &id).await.meta.errors[0].message, "the worker was removed");
        }
    }
    assert!(store.held_by(&worker("w"), 10).await.unwrap().is_empty());
    for job in &jobs[1..] {
        assert_eq!(apply(store, commit(job)).await, Err(Refusal::Lost { gone: false }));
    }
}
