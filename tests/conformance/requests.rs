//! Requests that carry an `Idempotency-Key`.

use tailback::job::{Claim, Timestamp};
use tailback::store::{Opened, Request, Store};

use super::support::*;

fn request(store: &dyn Store, id: &str, pending_ms: u64) -> Request {
    Request {
        id: id.to_owned(),
        digest: [7; 32],
        claim: Claim::random(),
        pending_until: store.now().unwrap().plus_ms(pending_ms),
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
    store.close_request(&first, Some((&first.claim, &won)), later(store)).await.unwrap();
    let finished = Opened::Finished { claim: first.claim, ids: won };
    for _ in 0..2 {
        let again = request(store, "r", 60_000);
        assert_eq!(store.open_request(&again).await.unwrap(), finished);
    }
}

pub async fn a_request_that_won_nothing_is_forgotten(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    store.close_request(&first, None, later(store)).await.unwrap();
    let again = request(store, "r", 60_000);
    assert_eq!(store.open_request(&again).await.unwrap(), Opened::New);
}

pub async fn a_request_is_forgotten_after_its_time(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    let end = store.now().unwrap().plus_ms(30);
    store.close_request(&first, Some((&first.claim, &[id("a")])), end).await.unwrap();
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
    store.close_request(&second, Some((&first.claim, &[id("a")])), later(store)).await.unwrap();
    let opened = store.open_request(&third).await.unwrap();
    assert!(matches!(opened, Opened::Finished { claim, .. } if claim == first.claim));
}

pub async fn a_key_stands_for_one_request(store: &dyn Store) {
    let first = request(store, "r", 60_000);
    store.open_request(&first).await.unwrap();
    let other = Request { digest: [8; 32], ..request(store, "r", 60_000) };
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::Different);
    store.close_request(&first, Some((&first.claim, &[id("a")])), later(store)).await.unwrap();
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::Different);
}

pub async fn of_two_runners_at_once_one_runs(store: &dyn Store) {
    let requests: Vec<_> = (0..8).map(|_| request(store, "r", 60_000)).collect();
    let opened = futures::future::join_all(requests.iter().map(|r| store.open_request(r))).await;
    let new = opened.into_iter().filter(|opened| *opened.as_ref().unwrap() == Opened::New);
    assert_eq!(new.count(), 1);
}
