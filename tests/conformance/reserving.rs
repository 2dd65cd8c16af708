//! `max_reserved` and `rate`: how many jobs of a queue are delivered.

use futures::future::join_all;
use tailback::job::settings::Rate;
use tailback::job::{Job, Rules};
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

/// Every delivery, until all jobs are taken: when each came, by the store's clock.
async fn deliveries(store: &dyn Store, rules: &Rules, jobs: usize, at_once: usize, pop: bool) -> Vec<i64> {
    let mut all: Vec<i64> = Vec::new();
    until("all are delivered", async || {
        let asks = (0..at_once).map(|_| claim_under(store, ClaimAsk { pop, ..ask("q", 3) }, rules));
        let won = join_all(asks).await.concat();
        all.extend(won.iter().map(|job| job.meta.started_at.unwrap().millis()));
        (all.len() == jobs).then_some(())
    })
    .await;
    all.sort_unstable();
    all
}

fn judge(all: &[i64], rate: Rate) {
    let per_ms = rate.per_ms.cast_signed();
    for first in all {
        let within = all.iter().filter(|at| (*first..first + per_ms).contains(*at)).count() as u64;
        assert!(within <= rate.limit, "{within} within {per_ms} ms: {all:?}");
    }
    let took = all.last().unwrap() - all.first().unwrap();
    let windows = (all.len() as i64 - 1) / rate.limit.cast_signed();
    assert!(took < (windows + 1) * per_ms + 4000, "too slow: {took} ms");
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
    let mut all: Vec<i64> = won.iter().map(|job| job.meta.started_at.unwrap().millis()).collect();
    all.extend(deliveries(store, &rules, 10, 1, false).await);
    judge(&all, rate);
}

pub async fn claims_at_once_never_pass_the_rate(store: &dyn Store) {
    let rate = Rate { limit: 10, per_ms: 200 };
    let rules = rules_of("q", |s| s.rate = Some(rate));
    push_all(store, vec![job("q"); 60]).await;
    judge(&deliveries(store, &rules, 60, 6, false).await, rate);
}

pub async fn a_pop_is_a_delivery(store: &dyn Store) {
    let rate = Rate { limit: 2, per_ms: 200 };
    let rules = rules_of("q", |s| s.rate = Some(rate));
    push_all(store, vec![job("q"); 6]).await;
    judge(&deliveries(store, &rules, 6, 2, true).await, rate);
}
