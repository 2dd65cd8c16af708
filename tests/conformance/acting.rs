//! What operators do to one job.

use tailback::job::state::{State, Visible};
use tailback::job::transition::{Operation, Outcome, Refusal};
use tailback::job::{Claim, JobId, Reach, Rules};
use tailback::store::{Change, ClaimAsk, Store};

use super::support::*;

fn run(id: &JobId) -> Change {
    change(id, Operation::Run { within: Reach::default() })
}

fn revoke(id: &JobId) -> Change {
    change(id, Operation::Revoke { within: Reach::default() })
}

fn relocate(id: &JobId, to: &str) -> Change {
    let (within, queue) = (Reach::default(), queue(to));
    change(id, Operation::Relocate { within, queue, when: None, priority: None })
}

pub async fn what_is_run_is_due_and_keeps_its_attempts(store: &dyn Store) {
    let failed = push_and_take(store, job("q")).await;
    apply(store, rollback(&failed, Some(600_000))).await.unwrap();
    let late = push_one(store, job("q").delay(600_000)).await;
    assert!(claim(store, ask("q", 9)).await.is_empty());
    for id in [&failed.meta.id, &late] {
        let ran = apply(store, run(id)).await.unwrap();
        assert!(matches!(ran.outcome, Outcome::Returned { blocked: false, .. }));
    }
    let taken = claim(store, ask("q", 9)).await;
    let attempts: Vec<u32> = taken.iter().map(|job| job.meta.attempts).collect();
    assert_eq!((ids(&taken).contains(&late), attempts.iter().sum::<u32>()), (true, 3), "one had failed once");
    for (id, state) in [(&late, Visible::Reserved), (&failed.meta.id, Visible::Reserved)] {
        assert_eq!(apply(store, run(id)).await, Err(Refusal::Conflict { state }));
    }
    assert_eq!(apply(store, run(&id("nobody"))).await, Err(Refusal::Unknown));
}

pub async fn what_is_run_behind_others_stays_there(store: &dyn Store) {
    let taken = push_and_take(store, job("q").group("g")).await;
    let blocked = job("q").group("g").delay(600_000).build(store);
    let id = blocked.id.clone();
    store.push(vec![blocked], &Rules::default()).await.remove(0).unwrap();
    apply(store, run(&id)).await.unwrap();
    assert!(claim(store, ask("q", 9)).await.is_empty(), "it waits for its turn");
    apply(store, commit(&taken)).await.unwrap();
    assert_eq!(ids(&claim(store, ask("q", 9)).await), [id]);
}

pub async fn a_job_is_taken_back_from_its_worker(store: &dyn Store) {
    let [first, second] = [push_one(store, job("q")).await, push_one(store, job("q")).await];
    let taken = take(store, "q").await;
    assert_eq!(taken.meta.id, first);
    apply(store, revoke(&first)).await.unwrap();
    let now = see(store, &first).await.meta;
    assert_eq!((now.state, now.attempts, now.claim), (State::Ready, 0, None));
    for late in [commit(&taken), rollback(&taken, None), extend(&taken, None)] {
        assert_eq!(apply(store, late).await, Err(Refusal::Lost { gone: false }));
    }
    let again = claim(store, ask("q", 9)).await;
    assert_eq!(ids(&again), [first.clone(), second], "it is back in its place");
    assert_eq!(again[0].meta.attempts, 1);
    // The new holder has it, and the old one cannot take that for its own doing.
    apply(store, commit(&again[0])).await.unwrap();
    assert_eq!(apply(store, commit(&taken)).await, Err(Refusal::Lost { gone: true }));
    assert_eq!(apply(store, revoke(&first)).await, Err(Refusal::Unknown));
}

pub async fn what_is_taken_back_and_was_cancelled_leaves(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    assert_eq!(outcome(store, revoke(&taken.meta.id), &Rules::default()).await, Outcome::Removed);
    assert_eq!(look(store, &taken.meta.id).await, None);
}

pub async fn what_nobody_holds_is_put_into_another_queue(store: &dyn Store) {
    let dead = push_and_take(store, job("q").max_attempts(1)).await;
    apply(store, rollback(&dead, Some(0))).await.unwrap();
    let ready = push_one(store, job("q").priority(3)).await;
    let late = push_one(store, job("q").delay(600_000)).await;
    for id in [&dead.meta.id, &ready, &late] {
        let before = see(store, id).await.meta;
        let moved = outcome(store, relocate(id, "other"), &Rules::default()).await;
        assert!(matches!(moved, Outcome::Returned { blocked: false, .. }), "{moved:?}");
        let now = see(store, id).await.meta;
        assert_eq!((now.queue.as_str(), now.state, now.attempts), ("other", State::Ready, 0));
        assert_eq!((now.priority, now.finished_at), (before.priority, None));
        assert_eq!(now.trail.last().map(|step| step.queue.as_str()), Some("q"));
        if before.state != State::Dead {
            assert_eq!(now.run_at, before.run_at, "it stays as late as it was");
        }
    }
    assert_eq!(ids(&claim(store, ask("other", 9)).await), [ready.clone(), dead.meta.id]);
    let held = apply(store, relocate(&ready, "third")).await;
    assert_eq!(held, Err(Refusal::Conflict { state: Visible::Reserved }));
    let counts = counts_of(store, "other").await;
    assert_eq!((counts.reserved, counts.scheduled, counts_of(store, "q").await.dead), (2, 1, 0));
}

pub async fn what_leaves_its_group_frees_it(store: &dyn Store) {
    let first = push_one(store, job("q").group("g")).await;
    let second = job("q").group("g").build(store);
    let second_id = second.id.clone();
    store.push(vec![second], &Rules::default()).await.remove(0).unwrap();
    apply(store, relocate(&first, "other")).await.unwrap();
    assert_eq!(ids(&claim(store, ask("q", 9)).await), std::slice::from_ref(&second_id));
    assert_eq!(ids(&claim(store, ask("other", 9)).await), [first]);
}

pub async fn a_full_queue_takes_no_more(store: &dyn Store) {
    let rules = rules_of("other", |settings| settings.max_jobs = Some(1));
    let [first, second] = [push_one(store, job("q")).await, push_one(store, job("q")).await];
    apply_under(store, relocate(&first, "other"), &rules).await.unwrap();
    assert_eq!(apply_under(store, relocate(&second, "other"), &rules).await, Err(Refusal::Full));
    assert_eq!(see(store, &second).await.meta.queue.as_str(), "q");
}

/// The calls of a keyed pop have one claim: what one of them holds may be taken back more than once.
pub async fn what_one_claim_holds_is_taken_back_again(store: &dyn Store) {
    let (id, claimed) = (push_one(store, job("q")).await, Claim::random());
    for _ in 0..2 {
        let taken = claim(store, ClaimAsk { claim: claimed.clone(), ..ask("q", 1) }).await;
        assert_eq!(ids(&taken), std::slice::from_ref(&id));
        apply(store, revoke(&id)).await.unwrap();
        assert_eq!(apply(store, commit(&taken[0])).await, Err(Refusal::Lost { gone: false }));
    }
}
