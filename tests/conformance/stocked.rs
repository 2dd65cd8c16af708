//! Which queues have something to deliver.

use tailback::job::QueueName;
use tailback::job::transition::Edit;
use tailback::store::Store;

use super::support::*;

async fn stocked(store: &dyn Store, names: &[&str]) -> Vec<QueueName> {
    let queues: Vec<QueueName> = names.iter().map(|name| queue(name)).collect();
    let mut stocked = store.stocked(&queues).await.unwrap();
    stocked.sort();
    stocked
}

pub async fn queues_with_due_jobs_are_stocked(store: &dyn Store) {
    assert!(stocked(store, &[]).await.is_empty());
    assert!(stocked(store, &["a", "b"]).await.is_empty());
    push_all(store, vec![job("a"), job("a").priority(3), job("c").delay(-5000), job("d")]).await;
    assert_eq!(stocked(store, &["a", "b", "c", "a-b"]).await, [queue("a"), queue("c")]);
    assert_eq!(stocked(store, &["d"]).await, [queue("d")]);
}

pub async fn only_jobs_that_can_be_delivered_stock_a_queue(store: &dyn Store) {
    let history = rules_of("q", with_history);
    let done = push_and_take(store, job("q")).await;
    apply_under(store, commit(&done), &history).await.unwrap();
    let dead = push_and_take(store, job("q").max_attempts(1)).await;
    apply(store, rollback(&dead, None)).await.unwrap();
    let held = push_and_take(store, job("q")).await;
    assert!(stocked(store, &["q"]).await.is_empty());
    apply(store, rollback(&held, Some(600_000))).await.unwrap();
    assert!(stocked(store, &["q"]).await.is_empty());
    let edit = edit_of(Edit { run_at: Some(held.meta.run_at), ..Edit::default() });
    apply(store, change(&held.meta.id, edit)).await.unwrap();
    assert_eq!(stocked(store, &["q"]).await, [queue("q")]);
}

pub async fn scheduled_jobs_do_not_hide_those_that_are_due(store: &dyn Store) {
    let drafts = (0..60).map(|n| job("q").priority(n % 6).delay(600_000 + i64::from(n))).collect();
    push_all(store, drafts).await;
    assert!(stocked(store, &["q"]).await.is_empty());
    push_one(store, job("q").priority(-1)).await;
    assert_eq!(stocked(store, &["q"]).await, [queue("q")]);
}

pub async fn a_job_that_comes_due_stocks_its_queue(store: &dyn Store) {
    push_one(store, job("q").delay(300)).await;
    until("the job is due", async || {
        store.ping().await.unwrap();
        (stocked(store, &["q"]).await == [queue("q")]).then_some(())
    })
    .await;
    take(store, "q").await;
}

pub async fn many_queues_are_asked_for_at_once(store: &dyn Store) {
    let names: Vec<String> = (0..2500).map(|n| format!("queue-{n:04}")).collect();
    let with_jobs = [0, 7, 999, 1000, 1001, 2499];
    push_all(store, with_jobs.iter().map(|n| job(&names[*n])).collect()).await;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(stocked(store, &names).await, with_jobs.map(|n| queue(names[n])));
}
