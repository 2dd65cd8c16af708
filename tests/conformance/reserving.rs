//! `max_reserved` and `rate`: how many jobs of a queue are delivered.

use futures::future::join_all;
use tailback::job::Job;
use tailback::job::settings::Rate;
use tailback::store::{ClaimAsk, Store};

use super::support::*;

pub async fn a_queue_has_no_more_reserved_than_it_may(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_reserved = Some(3));
    let pushed = push_all(store, vec![job("q"); 6]).await;
    let first = claim_under(store, ask("q", 2), &rules).await;
    let asks = [ask("q", 2), ask("q", 2)];
    let answers: Vec<Vec<Job>> =
        store.claim(&asks, &rules).await.won.into_iter().map(Result::unwrap).collect();
    assert_eq!((answers[0].len(), answers[1].len()), (1, 0));
    assert!(claim_under(store, ask("q", 1), &rules).await.is_empty());
    apply(store, commit(&first[0])).await.unwrap();
    apply(store, rollback(&first[1], Some(600_000))).await.unwrap();
    assert_eq!(ids(&claim_under(store, ask("q", 9), &rules).await), pushed[3..5]);
    assert_eq!(claim(store, ask("q", 9)).await.len(), 1, "without a limit there is none");
    assert_eq!(counts_of(store, "q").await.reserved, 4);
}

pub async fn claims_at_once_never_pass_max_reserved(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_reserved = Some(5));
    push_all(store, vec![job("q"); 40]).await;
    let mut done = 0;
    while done < 40 {
        let won = join_all((0..8).map(|_| claim_under(store, ask("q", 2), &rules))).await.concat();
        assert!((1..=5).contains(&won.len()), "{}", won.len());
        apply_all(store, won.iter().map(commit).collect(), &rules).await;
        done += won.len();
    }
    assert_eq!(done, 40);
}

/// Delivers until there have been so many, and judges when each came, by the store's clock: in no window more than the
/// rate allows, and whoever got nothing came within a window that was full.
async fn deliver(store: &dyn Store, rate: Rate, mut all: Vec<i64>, jobs: usize, at_once: usize, pop: bool) {
    let rules = rules_of("q", |s| s.rate = Some(rate));
    let per_ms = rate.per_ms.cast_signed();
    until("all are delivered", async || {
        let before = store.now().unwrap().millis();
        let asks = (0..at_once).map(|_| claim_under(store, ClaimAsk { pop, ..ask("q", 3) }, &rules));
        let won = join_all(asks).await.concat();
        // Deliveries are remembered in parts of the window.
        let recent = all.iter().filter(|at| **at >= before - per_ms - per_ms / 50).count() as u64;
        assert!(!won.is_empty() || recent >= rate.limit, "nothing at {before}, behind {all:?}");
        all.extend(won.iter().map(|job| job.meta.started_at.unwrap().millis()));
        (all.len() == jobs).then_some(())
    })
    .await;
    for first in &all {
        let within = all.iter().filter(|at| (*first..first + per_ms).contains(*at)).count() as u64;
        assert!(within <= rate.limit, "{within} within {per_ms} ms: {all:?}");
    }
}

pub async fn a_rate_holds_in_every_window(store: &dyn Store) {
    let rate = Rate { limit: 4, per_ms: 300 };
    let rules = rules_of("q", |s| s.rate = Some(rate));
    push_all(store, vec![job("q"); 14]).await;
    let claims = store.claim(&[ask("q", 9)], &rules).await;
    let won = claims.won.into_iter().next().unwrap().unwrap();
    assert_eq!(won.len(), 4);
    let started_at = won[0].meta.started_at.unwrap();
    assert_eq!(claims.resume, [(queue("q"), started_at.plus_ms(300))]);
    let first = won.iter().map(|job| job.meta.started_at.unwrap().millis()).collect();
    deliver(store, rate, first, 14, 1, false).await;
}

pub async fn claims_at_once_never_pass_the_rate(store: &dyn Store) {
    let rate = Rate { limit: 10, per_ms: 200 };
    push_all(store, vec![job("q"); 60]).await;
    deliver(store, rate, Vec::new(), 60, 6, false).await;
}

pub async fn a_pop_is_a_delivery(store: &dyn Store) {
    let rate = Rate { limit: 2, per_ms: 200 };
    push_all(store, vec![job("q"); 6]).await;
    deliver(store, rate, Vec::new(), 6, 2, true).await;
}
