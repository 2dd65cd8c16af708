//! Migrating, pinging, telling the time, forgetting, and what must not be forgotten yet.

use std::sync::LazyLock;

use tailback::job::{Batch, BatchId, IdSource, JobSpec, OnFinished, Rules, SemaphoreName, State};
use tailback::store::{Needed, Removal, Store};

use super::support::*;

pub async fn a_migrated_store_needs_no_migration(store: &dyn Store) {
    let id = push_one(store, job("q")).await;
    assert!(store.migrate().await.unwrap().is_empty());
    assert!(look(store, &id).await.is_some());
}

pub async fn the_clock_goes_on(store: &dyn Store) {
    store.ping().await.unwrap();
    let before = store.now().unwrap();
    until_past(store, before).await;
}

pub async fn an_immediate_job_is_due_for_the_very_next_claim(store: &dyn Store) {
    for _ in 0..50 {
        push_and_take(store, job("q")).await;
    }
}

pub async fn pruning_leaves_what_is_still_good(store: &dyn Store) {
    let history = rules_of("q", with_history);
    let done = push_and_take(store, job("q").key("k", 600_000)).await;
    apply_under(store, commit(&done), &history).await.unwrap();
    let moved = push_and_take(store, job("q")).await;
    apply(store, move_to(&moved, "r")).await.unwrap();
    push_all(store, vec![job("q"), job("q").delay(600_000)]).await;
    assert_eq!(store.prune(1000).await.unwrap(), 0);
    assert!(look(store, &done.meta.id).await.is_some());
    assert!(apply(store, move_to(&moved, "r")).await.unwrap().repeated);
    assert_eq!(counts_of(store, "q").await.ready, 1);
}

pub async fn pruning_forgets_keys_whose_time_is_over(store: &dyn Store) {
    let drafts = (0..5).map(|n| job("q").key(&format!("k{n}"), 1)).collect();
    let pushed = push_all(store, drafts).await;
    let last = see(store, &pushed[4]).await.meta.created_at;
    for taken in claim(store, ask("q", 4)).await {
        apply(store, commit(&taken)).await.unwrap();
    }
    until_past(store, last.plus_ms(1)).await;
    let mut forgotten = 0;
    until("four keys are forgotten", async || {
        let now = store.prune(3).await.unwrap();
        assert!(now <= 3);
        forgotten += now;
        (forgotten == 4).then_some(())
    })
    .await;
    assert_eq!(store.prune(100).await.unwrap(), 0, "one key's job is unfinished");
    let again = push(store, vec![job("q").key("k4", 1)]).await;
    assert!(matches!(again[0], tailback::store::Pushed::Duplicate { .. }));
}

pub async fn pruning_leaves_work_that_is_to_be_done(store: &dyn Store) {
    let past = store.now().unwrap().minus_ms(60_000);
    let mut imported = Vec::new();
    for state in State::ALL {
        let mut job = super::transfer::stranger(store, state);
        job.meta.purge_at = Some(past);
        imported.push((state, job.meta.id.clone()));
        store.import(vec![job]).await.remove(0).unwrap();
    }
    assert_eq!(store.prune(1000).await.unwrap(), 2);
    for (state, id) in imported {
        let stays = !matches!(state, State::Done | State::Dead);
        assert_eq!(look(store, &id).await.is_some(), stays, "{state:?}");
    }
}

pub async fn pruning_forgets_history_whose_time_is_over(store: &dyn Store) {
    let rules = rules_of("q", |settings| settings.retain_done_ms = Some(50));
    push_all(store, vec![job("q"); 7]).await;
    let taken = claim(store, ask("q", 5)).await;
    apply_all(store, taken.iter().map(commit).collect(), &rules).await;
    assert_eq!(counts_of(store, "q").await.done, 5);
    let over = see(store, &taken[4].meta.id).await.meta.purge_at.unwrap();
    until_past(store, over).await;
    assert_eq!(store.prune(3).await.unwrap(), 3);
    assert_eq!(counts_of(store, "q").await.done, 2);
    assert_eq!(store.prune(100).await.unwrap(), 2);
    let counts = counts_of(store, "q").await;
    assert_eq!((counts.done, counts.ready), (0, 2), "what is unfinished stays");
}

pub async fn a_whole_life_leaves_nothing_behind(store: &dyn Store) {
    push_all(store, vec![job("q"); 100]).await;
    let taken = claim(store, ask("q", 100)).await;
    let commits = taken.iter().map(commit).collect();
    let answers = apply_all(store, commits, &Rules::default()).await;
    assert!(answers.iter().all(Result::is_ok));
    assert!(store.queues("", None, 10).await.unwrap().is_empty());
    assert!(store.overdue(10).await.unwrap().next_in_ms.is_none());
    assert!(store.upcoming(10).await.unwrap().is_empty());
}

pub async fn a_done_job_is_kept_for_its_result(store: &dyn Store) {
    let both = |done: u64, result: u64| {
        rules_of("q", |settings| {
            (settings.retain_done_ms, settings.retain_result_ms) = (Some(done), Some(result));
        })
    };
    // The job's word, the queue's, and which of its two times is longer.
    for (own, rules, kept) in [
        (None, Rules::default(), None),
        (Some(60_000), Rules::default(), Some(60_000)),
        (Some(0), both(0, 70_000), None),
        (None, both(0, 70_000), Some(70_000)),
        (Some(60_000), both(0, 70_000), Some(60_000)),
        (Some(60_000), both(80_000, 0), Some(80_000)),
        (Some(0), both(80_000, 70_000), Some(80_000)),
        (None, both(80_000, 90_000), Some(90_000)),
    ] {
        let draft = job("q").with(|spec| spec.retain_result_ms = own);
        let taken = push_and_take(store, draft).await;
        assert_eq!(taken.meta.retain_result_ms, own);
        apply_under(store, commit(&taken), &rules).await.unwrap();
        let found = look(store, &taken.meta.id).await;
        let times = found.map(|job| job.meta.purge_at.unwrap().ms_since(job.meta.finished_at.unwrap()));
        assert_eq!(times, kept, "{own:?}");
    }
    // It goes with the job from queue to queue; what dies is kept as the queue says.
    let draft = job("q").with(|spec| spec.retain_result_ms = Some(60_000)).max_attempts(1);
    let taken = push_and_take(store, draft).await;
    apply(store, move_to(&taken, "r")).await.unwrap();
    let taken = take(store, "r").await;
    assert_eq!(taken.meta.retain_result_ms, Some(60_000));
    apply(store, rollback(&taken, Some(0))).await.unwrap();
    assert_eq!(see(store, &taken.meta.id).await.meta.purge_at, None);
}

/// Creates a sealed batch of one job in `a`, with this callback.
async fn batch_then(store: &dyn Store, callback: JobSpec) -> BatchId {
    static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);
    let now = store.now().unwrap();
    let id = IDS.next_batch(now);
    let on_finished = OnFinished::new(callback, queue("after"), None);
    let batch = Batch::new(id.clone(), IDS.next(now), Some(on_finished), true, now);
    let jobs = vec![job("a").of(&id).build(store)];
    store.create_batch(batch, jobs, &Rules::default()).await.unwrap();
    id
}

fn name(text: &str) -> SemaphoreName {
    text.parse().unwrap()
}

/// A callback is a job to be: its semaphore stays until it is done.
pub async fn a_semaphore_that_a_callback_needs_stays(store: &dyn Store) {
    for semaphore in ["s.1", "sx1"] {
        store.save_semaphore(&name(semaphore), 1).await.unwrap();
    }
    let removed = async |of: &str| store.remove_semaphore(&name(of)).await.unwrap();
    let needs = JobSpec { semaphores: vec![name("s.1")], ..JobSpec::new(payload("[\"sx1\"]")) };
    let id = batch_then(store, needs).await;
    batch_then(store, JobSpec::new(payload("\"s.1\""))).await;
    let callbacks = vec![(id, queue("after"))];
    assert_eq!(removed("s.1").await, Removal::InUse(Needed { callbacks, ..Needed::default() }));
    assert_eq!(removed("sx1").await, Removal::Done, "a payload is no need");
    for job in claim(store, ask("a", 9)).await {
        apply(store, commit(&job)).await.unwrap();
    }
    let pushed = removed("s.1").await;
    assert!(matches!(&pushed, Removal::InUse(Needed { jobs: 1, .. })), "it is a job now: {pushed:?}");
    for job in claim(store, ask("after", 9)).await {
        apply(store, commit(&job)).await.unwrap();
    }
    assert_eq!(removed("s.1").await, Removal::Done);
}
