//! The order of delivery, and what must not be delivered.

use tailback::job::When;
use tailback::job::transition::{Back, Edit, RollbackKind};
use tailback::store::Store;

use super::support::*;

pub async fn a_higher_priority_comes_first(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"), job("q").priority(5), job("q").priority(-5)]).await;
    let taken = ids(&claim(store, ask("q", 3)).await);
    assert_eq!(taken, [pushed[1].clone(), pushed[0].clone(), pushed[2].clone()]);
}

pub async fn the_extreme_priorities_are_kept_and_ordered(store: &dyn Store) {
    let priorities = [0, i32::MIN, 1, i32::MAX, -1];
    push_all(store, priorities.map(|p| job("q").priority(p)).to_vec()).await;
    let mut taken = Vec::new();
    for _ in priorities {
        taken.push(take(store, "q").await.meta.priority);
    }
    assert_eq!(taken, [i32::MAX, 1, 0, -1, i32::MIN]);
}

pub async fn an_earlier_run_at_comes_first(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"), job("q").delay(-5000), job("q").delay(-60_000)]).await;
    let taken = ids(&claim(store, ask("q", 3)).await);
    assert_eq!(taken, [pushed[2].clone(), pushed[1].clone(), pushed[0].clone()]);
}

pub async fn the_smaller_id_comes_first_at_one_run_at(store: &dyn Store) {
    let mut jobs: Vec<_> = (0..20).map(|_| job("q").build(store)).collect();
    let run_at = jobs[0].run_at;
    jobs.iter_mut().for_each(|job| job.run_at = run_at);
    let expected: Vec<_> = jobs.iter().map(|job| job.id.clone()).collect();
    jobs.reverse();
    store.push(jobs, &Default::default()).await;
    assert_eq!(ids(&claim(store, ask("q", 20)).await), expected);
}

pub async fn a_big_mix_is_delivered_in_order_by_small_claims(store: &dyn Store) {
    let mut jobs = Vec::new();
    for n in 0..60_i64 {
        let priority = i32::try_from(n * 7 % 5).unwrap() - 2;
        jobs.push(job("q").priority(priority).delay(-(n * 13 % 11) * 100).build(store));
    }
    let mut expected = jobs.clone();
    expected.sort_by_key(|job| (-i64::from(job.spec.priority), job.run_at, job.id.clone()));
    store.push(jobs, &Default::default()).await;
    let mut taken = Vec::new();
    while taken.len() < 60 {
        let some = claim(store, ask("q", 7)).await;
        assert!(!some.is_empty());
        taken.extend(ids(&some));
    }
    let expected: Vec<_> = expected.into_iter().map(|job| job.id).collect();
    assert_eq!(taken, expected);
}

pub async fn a_scheduled_job_is_never_early(store: &dyn Store) {
    let id = push_one(store, job("q").delay(300)).await;
    let run_at = see(store, &id).await.meta.run_at;
    let taken = until("the job is due", async || claim(store, ask("q", 1)).await.pop()).await;
    assert_eq!(taken.meta.id, id);
    assert!(taken.meta.started_at.unwrap() >= run_at, "delivered before its time");
}

pub async fn scheduled_jobs_are_left_where_they_are(store: &dyn Store) {
    push_all(store, vec![job("q").delay(600_000), job("q").delay(300_000).priority(9)]).await;
    assert!(claim(store, ask("q", 10)).await.is_empty());
}

pub async fn scheduled_jobs_are_never_in_the_way(store: &dyn Store) {
    let mut drafts: Vec<_> =
        (0..300).map(|n| job("q").priority(n % 20).delay(600_000 + i64::from(n))).collect();
    drafts.push(job("q").priority(-3));
    drafts.push(job("q").priority(10));
    drafts.push(job("q").priority(-3));
    let pushed = push_all(store, drafts).await;
    let taken = ids(&claim(store, ask("q", 10)).await);
    assert_eq!(taken, [pushed[301].clone(), pushed[300].clone(), pushed[302].clone()]);
}

pub async fn a_job_that_came_due_takes_its_rank(store: &dyn Store) {
    let late = push_one(store, job("q").priority(1).delay(50)).await;
    let early = push_one(store, job("q")).await;
    until_past(store, see(store, &late).await.meta.run_at).await;
    assert_eq!(ids(&claim(store, ask("q", 2)).await), [late, early]);
}

pub async fn expired_jobs_are_passed_over(store: &dyn Store) {
    let expiring = push_one(store, job("q").priority(1).expires(1)).await;
    let lasting = push_one(store, job("q").expires(600_000)).await;
    until_past(store, see(store, &expiring).await.meta.expires_at.unwrap()).await;
    assert_eq!(ids(&claim(store, ask("q", 5)).await), [lasting]);
}

pub async fn queues_do_not_mix(store: &dyn Store) {
    let pushed = push_all(store, vec![job("a"), job("a.b"), job("a-b"), job("A")]).await;
    assert_eq!(ids(&claim(store, ask("a", 10)).await), [pushed[0].clone()]);
    assert_eq!(ids(&claim(store, ask("A", 10)).await), [pushed[3].clone()]);
}

/// A store may remember where the head was: what comes before it is delivered first all the same.
pub async fn what_comes_before_the_head_is_next(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"); 10]).await;
    assert_eq!(ids(&claim(store, ask("q", 2)).await), pushed[..2]);
    let urgent = push_one(store, job("q").priority(5)).await;
    let old = push_one(store, job("q").delay(-60_000)).await;
    let held = take(store, "q").await;
    assert_eq!(held.meta.id, urgent);
    let held_too = take(store, "q").await;
    assert_eq!(held_too.meta.id, old);
    assert_eq!(take(store, "q").await.meta.id, pushed[2]);
    // What is given back stands where it stood.
    apply(store, release(&held_too)).await.unwrap();
    apply(store, release(&held)).await.unwrap();
    assert_eq!(ids(&claim(store, ask("q", 3)).await), [urgent, old, pushed[3].clone()]);
}

/// A store may remember which jobs it has passed over: one of them that may be delivered after all is next.
pub async fn a_passed_job_that_may_be_delivered_after_all_is_next(store: &dyn Store) {
    let expiring = push_all(store, vec![job("q").expires(1); 100]).await;
    let first = see(store, &expiring[0]).await.meta.run_at;
    until_past(store, see(store, &expiring[99]).await.meta.expires_at.unwrap()).await;
    let behind = push_all(store, vec![job("q"); 2]).await;
    assert_eq!(take(store, "q").await.meta.id, behind[0]);
    for n in [70, 20] {
        let lasting = edit_of(Edit { expires_in_ms: Some(None), ..Edit::default() });
        apply(store, change(&expiring[n], lasting)).await.unwrap();
        let held = take(store, "q").await;
        assert_eq!(held.meta.id, expiring[n]);
        // What comes back to a place before all others, too.
        let kind = RollbackKind::Retry(Back::At(When::At(first.minus_ms(1))));
        apply(store, give_back(&held, kind, None)).await.unwrap();
        assert_eq!(take(store, "q").await.meta.id, expiring[n]);
    }
    assert_eq!(take(store, "q").await.meta.id, behind[1]);
    assert!(claim(store, ask("q", 9)).await.is_empty());
}
