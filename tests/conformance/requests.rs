//! Requests that carry an `Idempotency-Key`.

use tailback::job::transition::{Operation, Refusal};
use tailback::job::{Claim, Timestamp};
use tailback::store::{Opened, Request, Store};

use super::support::*;

fn request(store: &dyn Store, id: &str, pending_ms: u64) -> Request {
    Request {
        id: id.to_owned(),
        digest: [7; 32],
        claim: Claim::random(),
        runner: "a".to_owned(),
        alive_until: store.now().unwrap().plus_ms(pending_ms),
        pending_until: store.now().unwrap().plus_ms(pending_ms),
        keep_until: later(store),
    }
}

fn later(store: &dyn Store) -> Timestamp {
    store.now().unwrap().plus_ms(600_000)
}

pub async fn a_request_is_new_once(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    assert_eq!(store.open_request(&first).await.unwrap(), Opened::New);
    let second = request(store, "r", 60_000);
    assert_eq!(store.open_request(&second).await.unwrap(), Opened::Pending);
    let other = request(store, "s", 60_000);
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::New);
}

pub async fn a_finished_request_answers_what_it_won(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    let won = vec![id("b"), id("a")];
    assert!(store.close_request(&first, &won, later(store)).await.unwrap());
    let finished = Opened::Finished { claim: first.claim, ids: won };
    for _ in 0..2 {
        let again = request(store, "r", 60_000);
        assert_eq!(store.open_request(&again).await.unwrap(), finished);
    }
}

pub async fn a_request_that_won_nothing_is_forgotten(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    store.forget_request(&first).await.unwrap();
    let again = request(store, "r", 60_000);
    assert_eq!(store.open_request(&again).await.unwrap(), Opened::New);
}

pub async fn a_request_is_forgotten_after_its_time(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    let end = store.now().unwrap().plus_ms(30);
    assert!(store.close_request(&first, &[id("a")], end).await.unwrap());
    until_past(store, end).await;
    let again = request(store, "r", 60_000);
    assert_eq!(store.open_request(&again).await.unwrap(), Opened::New);
}

pub async fn a_request_whose_runner_died_is_taken_over(store: &dyn Store) {
    let first = request(store, "r", 20);
    store.open_request(&first).await.unwrap();
    until_past(store, first.pending_until).await;
    let second = request(store, "r", 60_000);
    let previous = first.claim.clone();
    assert_eq!(store.open_request(&second).await.unwrap(), Opened::TakenOver { previous });
    let third = request(store, "r", 60_000);
    assert_eq!(store.open_request(&third).await.unwrap(), Opened::Pending);
    // The first one is back, and the request is not its own any more.
    assert!(!store.close_request(&first, &[id("b")], later(store)).await.unwrap());
    store.forget_request(&first).await.unwrap();
    assert_eq!(store.open_request(&third).await.unwrap(), Opened::Pending);
    let ids = vec![id("a")];
    for _ in 0..2 {
        assert!(store.close_request(&second, &ids, later(store)).await.unwrap());
    }
    store.forget_request(&second).await.unwrap();
    assert_eq!(store.open_request(&third).await.unwrap(), Opened::Finished { claim: second.claim, ids });
}

pub async fn a_key_stands_for_one_request(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    let other = Request { digest: [8; 32], ..request(store, "r", 60_000) };
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::Different);
    assert!(store.close_request(&first, &[id("a")], later(store)).await.unwrap());
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::Different);
}

pub async fn of_two_runners_at_once_one_runs(store: &dyn Store) {
    let requests: Vec<_> = (0..8).map(|_| request(store, "r", 60_000)).collect();
    let opened = futures::future::join_all(requests.iter().map(|r| store.open_request(r))).await;
    let new = opened.into_iter().filter(|opened| *opened.as_ref().unwrap() == Opened::New);
    assert_eq!(new.count(), 1);
}

pub async fn a_job_that_is_taken_over_has_one_token(store: &dyn Store) {
    let old = push_and_take(store, job("q")).await;
    let to = Claim::random();
    let operation = Operation::TakeOver { claim: held_by(&old), to: to.clone(), lease_ms: 900_000 };
    apply(store, change(&old.meta.id, operation.clone())).await.unwrap();
    let new = see(store, &old.meta.id).await;
    assert_eq!((&new.meta.claim, new.meta.attempts), (&Some(to.clone()), 1));
    assert!(new.meta.reserved_until > old.meta.reserved_until);
    assert!(store.held(&[queue("q")], &held_by(&old)).await.unwrap().is_empty());
    assert_eq!(store.held(&[queue("q")], &to).await.unwrap(), std::slice::from_ref(&new));
    for dead in [release(&old), commit(&old), extend(&old, None), change(&old.meta.id, operation)] {
        assert_eq!(apply(store, dead).await, Err(Refusal::Lost { gone: false }));
    }
    apply(store, commit(&new)).await.unwrap();
}

pub async fn a_request_runs_as_long_as_its_server_is_alive(store: &dyn Store) {
    let now = store.now().unwrap();
    let first = Request { alive_until: now, ..request(store, "r", 60_000) };
    assert_eq!(store.open_request(&first).await.unwrap(), Opened::New);
    store.keep_alive("a", later(store)).await.unwrap();
    store.keep_alive("b", now).await.unwrap();
    assert_eq!(store.open_request(&request(store, "r", 60_000)).await.unwrap(), Opened::Pending);
}
