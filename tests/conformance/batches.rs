//! Batches: jobs that belong together are counted as they end, and the last one calls back, once.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use futures::future::join_all;
use tailback::job::batch::Endings;
use tailback::job::record::KeyConflict;
use tailback::job::settings::Defaults;
use tailback::job::transition::{Operation, Outcome};
use tailback::job::{
    Batch, BatchId, BatchResult, Ending, IdSource, Job, JobId, JobSpec, NewJob, OnFinished, Rules, Stage,
    State,
};
use tailback::store::{BatchChanged, BatchDenied, Change, Store};

use super::support::*;

static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);

const CALLBACK: &str = r#"{"n":1.0,"big":123456789012345678901234567890}"#;

fn batch(store: &dyn Store, sealed: bool) -> Batch {
    let now = store.now().unwrap();
    let spec = JobSpec {
        headers: [("trace".to_owned(), payload("\"t\""))].into(),
        priority: 7,
        max_attempts: Some(2),
        ..JobSpec::new(payload(CALLBACK))
    };
    let on_finished = OnFinished::new(spec, queue("after"), None);
    Batch::new(IDS.next_batch(now), IDS.next(now), Some(on_finished), sealed, now)
}

fn of(store: &dyn Store, id: &BatchId, drafts: Vec<Draft>) -> Vec<NewJob> {
    drafts.into_iter().map(|draft| draft.of(id).build(store)).collect()
}

/// A sealed batch of these jobs.
async fn create(store: &dyn Store, drafts: Vec<Draft>, rules: &Rules) -> Batch {
    let batch = batch(store, true);
    let jobs = of(store, &batch.id, drafts);
    store.create_batch(batch, jobs, rules).await.unwrap().batch
}

async fn see_batch(store: &dyn Store, id: &BatchId) -> Batch {
    store.batch(id).await.unwrap().expect("the batch is gone")
}

/// pending, done, dead, cancelled
async fn counted(store: &dyn Store, id: &BatchId) -> (u64, u64, u64, u64) {
    let Batch { pending, endings: Endings { done, dead, cancelled }, .. } = see_batch(store, id).await;
    (pending, done, dead, cancelled)
}

async fn results(store: &dyn Store, id: &BatchId) -> HashMap<JobId, BatchResult> {
    let results = store.batch_results(id, None, 1000).await.unwrap();
    results.into_iter().map(|result| (result.id.clone(), result)).collect()
}

fn commit_with(job: &Job, result: &str) -> Change {
    let operation =
        Operation::Commit { claim: held_by(job), result: Some(payload(result)), push: Vec::new() };
    change(&job.meta.id, operation)
}

/// The one callback that there must be.
async fn callback(store: &dyn Store) -> Job {
    let mut jobs = claim(store, ask("after", 9)).await;
    assert_eq!(jobs.len(), 1, "callbacks: {jobs:?}");
    jobs.remove(0)
}

async fn nothing_called_back(store: &dyn Store) {
    assert_eq!(counts_of(store, "after").await.ready, 0);
}

pub async fn a_batch_counts_its_jobs_and_calls_back(store: &dyn Store) {
    for rules in [Rules::default(), rules([("a", history()), ("b", history())])] {
        let made =
            create(store, vec![job("a"), job("b").max_attempts(1), job("b").delay(90_000)], &rules).await;
        assert_eq!((made.sealed, made.pending), (true, 3));
        let (first, second) = (take(store, "a").await, take(store, "b").await);
        assert_eq!(first.meta.batch.as_ref(), Some(&made.id));
        assert_eq!(store.unfinished_in_batch(&made.id, None, 9).await.unwrap().len(), 3);
        apply_under(store, commit_with(&first, r#"{"x":1.0}"#), &rules).await.unwrap();
        assert_eq!(counted(store, &made.id).await, (2, 1, 0, 0));
        apply_under(store, rollback(&second, None), &rules).await.unwrap();
        assert_eq!(counted(store, &made.id).await, (1, 1, 1, 0));
        nothing_called_back(store).await;
        let waiting = store.unfinished_in_batch(&made.id, None, 9).await.unwrap();
        assert_eq!(waiting.len(), 1);
        let applied = apply_under(store, cancel(&waiting[0], false), &rules).await.unwrap();
        let told = applied.callback.expect("the last one tells of the callback");
        assert_eq!(told.queue, queue("after"));
        assert_eq!(counted(store, &made.id).await, (0, 1, 1, 1));
        assert!(see_batch(store, &made.id).await.finished_at.is_some());
        let called = callback(store).await;
        assert_eq!((&called.meta.id, &called.payload), (&made.callback, &content(CALLBACK)));
        assert_eq!((called.meta.priority, called.meta.max_attempts, &called.meta.batch), (7, Some(2), &None));
        let header = |name: &str| called.headers[name].as_str().trim_matches('"').to_owned();
        assert_eq!((header("trace"), header("batch-id")), ("t".into(), made.id.to_string()));
        assert_eq!(
            (header("batch-done"), header("batch-dead"), header("batch-cancelled")),
            ("1".into(), "1".into(), "1".into())
        );
        apply(store, commit(&called)).await.unwrap();
        let kept = results(store, &made.id).await;
        let ended = |id: &JobId| (kept[id].state, kept[id].result.clone(), kept[id].queue.clone());
        assert_eq!(ended(&first.meta.id), (Ending::Done, Some(payload(r#"{"x":1.0}"#)), queue("a")));
        assert_eq!(ended(&second.meta.id), (Ending::Dead, None, queue("b")));
        assert_eq!(ended(&waiting[0]), (Ending::Cancelled, None, queue("b")));
        let page = store.batch_results(&made.id, Some(&first.meta.id), 1).await.unwrap();
        assert_eq!(page.len(), 1);
        // What is dead was counted, whatever becomes of it.
        apply_under(store, cancel(&second.meta.id, false), &rules).await.unwrap();
        assert_eq!(counted(store, &made.id).await, (0, 1, 1, 1));
    }
}

fn history() -> tailback::job::QueueSettings {
    let mut settings = tailback::job::QueueSettings::default();
    with_history(&mut settings);
    settings
}

pub async fn the_repeat_of_the_last_commit_calls_back_once(store: &dyn Store) {
    for rules in [Rules::default(), rules_of("a", with_history)] {
        let made = create(store, vec![job("a")], &rules).await;
        let taken = take(store, "a").await;
        let first = apply_under(store, commit(&taken), &rules).await.unwrap();
        assert!(first.callback.is_some() && !first.repeated);
        let again = apply_under(store, commit(&taken), &rules).await.unwrap();
        assert_eq!((again.callback, again.repeated, again.outcome), (None, true, Outcome::Done));
        assert_eq!(counted(store, &made.id).await, (0, 1, 0, 0));
        let called = callback(store).await;
        apply(store, commit(&called)).await.unwrap();
    }
}

pub async fn a_batch_takes_jobs_until_it_is_sealed(store: &dyn Store) {
    let open = batch(store, false);
    let made = store.create_batch(open.clone(), Vec::new(), &Rules::default()).await.unwrap();
    assert_eq!((made.batch.sealed, made.batch.pending, made.callback), (false, 0, None));
    let add =
        async |drafts| store.add_to_batch(&open.id, of(store, &open.id, drafts), &Rules::default()).await;
    let BatchChanged { batch: now, pushed, .. } = add(vec![job("a"), job("b")]).await.unwrap();
    assert_eq!((now.pending, pushed.len()), (2, 2));
    for name in ["a", "b"] {
        apply(store, commit(&take(store, name).await)).await.unwrap();
    }
    assert_eq!(counted(store, &open.id).await, (0, 2, 0, 0));
    nothing_called_back(store).await;
    add(vec![job("a")]).await.unwrap();
    let sealed = store.seal_batch(&open.id, &Rules::default()).await.unwrap();
    assert_eq!((sealed.batch.sealed, sealed.batch.pending, sealed.callback), (true, 1, None));
    assert!(matches!(add(vec![job("a")]).await, Err(BatchDenied::Sealed)));
    let last = apply(store, commit(&take(store, "a").await)).await.unwrap();
    assert!(last.callback.is_some());
    let again = store.seal_batch(&open.id, &Rules::default()).await.unwrap();
    assert_eq!(again.callback, None, "sealing again changes nothing");
    assert_eq!(callback(store).await.meta.id, open.callback);
    let unknown: BatchId = "nobody".parse().unwrap();
    let denied = store.seal_batch(&unknown, &Rules::default()).await;
    assert!(matches!(denied, Err(BatchDenied::Unknown)), "{denied:?}");
    let denied = store.add_to_batch(&unknown, of(store, &unknown, vec![job("a")]), &Rules::default()).await;
    assert!(matches!(denied, Err(BatchDenied::Unknown)), "{denied:?}");
    assert!(claim(store, ask("a", 9)).await.is_empty(), "nothing was stored");
}

pub async fn a_batch_with_nothing_pending_ends_at_once(store: &dyn Store) {
    let empty = batch(store, true);
    let made = store.create_batch(empty.clone(), Vec::new(), &Rules::default()).await.unwrap();
    assert!(made.callback.is_some() && made.batch.finished_at.is_some());
    assert_eq!(callback(store).await.meta.id, empty.callback);
    let late = batch(store, false);
    store.create_batch(late.clone(), Vec::new(), &Rules::default()).await.unwrap();
    let sealed = store.seal_batch(&late.id, &Rules::default()).await.unwrap();
    assert!(sealed.callback.is_some() && sealed.batch.finished_at.is_some());
    assert_eq!(see_batch(store, &late.id).await, sealed.batch);
    assert_eq!(callback(store).await.meta.id, late.callback);
}

pub async fn jobs_that_a_batch_has_lost_count_as_dead(store: &dyn Store) {
    let made = create(store, vec![job("a"), job("a"), job("a")], &Rules::default()).await;
    apply(store, commit(&take(store, "a").await)).await.unwrap();
    let lose = async |lost| store.count_lost(&made.id, lost, &Rules::default()).await.unwrap();
    assert_eq!(lose(1).await.callback, None);
    assert!(lose(1).await.callback.is_some());
    assert_eq!(counted(store, &made.id).await, (0, 1, 2, 0));
    assert_eq!(callback(store).await.meta.id, made.callback);
}

pub async fn a_batch_is_stored_whole_or_not_at_all(store: &dyn Store) {
    let rules = rules_of("full", |settings| settings.max_jobs = Some(1));
    let refused = batch(store, true);
    let jobs = of(store, &refused.id, vec![job("a"), job("full"), job("full")]);
    let denied = store.create_batch(refused.clone(), jobs, &rules).await;
    assert!(matches!(&denied, Err(BatchDenied::PushRefused(push)) if push.index == 2), "{denied:?}");
    assert_eq!(store.batch(&refused.id).await.unwrap(), None);
    assert!(claim(store, ask("a", 9)).await.is_empty());
    // A callback finds room in a full queue.
    let rules = rules_of("after", |settings| settings.max_jobs = Some(1));
    push_under(store, vec![job("after")], &rules).await;
    create(store, vec![job("a")], &rules).await;
    let last = apply_under(store, commit(&take(store, "a").await), &rules).await.unwrap();
    assert!(last.callback.is_some());
    assert_eq!(counts_of(store, "after").await.ready, 2);
}

pub async fn a_job_that_was_there_is_not_counted(store: &dyn Store) {
    push_one(store, job("a").key("k", 60_000)).await;
    let open = batch(store, false);
    let jobs = of(store, &open.id, vec![job("a").key("k", 60_000), job("b")]);
    let made = store.create_batch(open.clone(), jobs, &Rules::default()).await.unwrap();
    let deduplicated: Vec<bool> = made.pushed.iter().map(|child| child.deduplicated).collect();
    assert_eq!((deduplicated, made.batch.pending), (vec![true, false], 1));
    let jobs = of(store, &open.id, vec![job("a").key("k", 60_000), job("b"), job("a").key("k", 60_000)]);
    let added = store.add_to_batch(&open.id, jobs, &Rules::default()).await.unwrap();
    assert_eq!(added.batch.pending, 2);
    assert_eq!(counted(store, &open.id).await.0, 2);
    store.seal_batch(&open.id, &Rules::default()).await.unwrap();
    apply(store, commit(&take(store, "a").await)).await.unwrap();
    assert_eq!(counted(store, &open.id).await, (2, 0, 0, 0));
}

pub async fn a_batch_of_duplicates_is_denied(store: &dyn Store) {
    let first = push_one(store, job("a").key("k", 60_000)).await;
    for sealed in [true, false] {
        let batch = batch(store, sealed);
        let twice = vec![job("a").key("k", 60_000), job("a").key("k", 60_000)];
        let denied = store.create_batch(batch.clone(), of(store, &batch.id, twice), &Rules::default()).await;
        assert!(matches!(&denied, Err(BatchDenied::OnlyDuplicates(id)) if *id == first), "{denied:?}");
        assert_eq!(store.batch(&batch.id).await.unwrap(), None);
    }
    assert_eq!(counts_of(store, "after").await.ready, 0, "it has called back");
}

/// Sent twice in parts: the second one would count no job, and call back once it is sealed.
pub async fn adding_only_duplicates_to_an_empty_batch_is_denied(store: &dyn Store) {
    let rules = Rules::default();
    let parts = || vec![job("a").key("k", 600_000), job("a").key("l", 600_000)];
    let open = async || {
        let batch = batch(store, false);
        store.create_batch(batch.clone(), Vec::new(), &rules).await.unwrap();
        batch
    };
    let first = open().await;
    store.add_to_batch(&first.id, of(store, &first.id, parts()), &rules).await.unwrap();
    let again = store.add_to_batch(&first.id, of(store, &first.id, parts()), &rules).await.unwrap();
    assert_eq!((again.batch.pending, again.pushed.len()), (2, 2), "it has counted them: they are its own");
    let second = open().await;
    let denied = store.add_to_batch(&second.id, of(store, &second.id, parts()), &rules).await;
    let holder = &again.pushed[0].id;
    assert!(matches!(&denied, Err(BatchDenied::OnlyDuplicates(id)) if id == holder), "{denied:?}");
    assert_eq!(see_batch(store, &second.id).await, second);
    // One that is new is counted, and others may stand beside it.
    let with_new = of(store, &second.id, [parts(), vec![job("a")]].concat());
    let added = store.add_to_batch(&second.id, with_new, &rules).await.unwrap();
    assert_eq!(added.batch.pending, 1);
    apply(store, commit(&take(store, "a").await)).await.unwrap();
    for _ in 0..2 {
        apply(store, commit(&take(store, "a").await)).await.unwrap();
    }
    assert_eq!(
        (counted(store, &first.id).await, counted(store, &second.id).await),
        ((0, 2, 0, 0), (0, 1, 0, 0))
    );
    let done = store.add_to_batch(&second.id, of(store, &second.id, parts()), &rules).await.unwrap();
    assert_eq!(done.batch.pending, 0, "it has counted one that has ended");
    nothing_called_back(store).await;
}

pub async fn a_batch_that_only_replaces_is_denied(store: &dyn Store) {
    let replaces =
        |text: &str| job("a").payload(text).key("k", 60_000).conflict(KeyConflict::Replace).delay(50_000);
    let first = push_one(store, replaces("1")).await;
    let batch = batch(store, true);
    let twice = of(store, &batch.id, vec![replaces("2"), replaces("3")]);
    let denied = store.create_batch(batch.clone(), twice, &Rules::default()).await;
    assert!(matches!(&denied, Err(BatchDenied::OnlyDuplicates(id)) if *id == first), "{denied:?}");
    assert_eq!(store.batch(&batch.id).await.unwrap(), None);
    assert_eq!(counts_of(store, "after").await.ready, 0, "it has called back");
    assert_eq!(text_of(&see(store, &first).await), "1");
    let made = create(store, vec![replaces("2"), job("b")], &Rules::default()).await;
    assert_eq!(made.pending, 1);
    assert_eq!(text_of(&see(store, &first).await), "2");
}

pub async fn a_job_under_way_is_pending(store: &dyn Store) {
    let stage = Stage::new(queue("b"));
    let made = create(store, vec![job("a").then(vec![stage])], &Rules::default()).await;
    apply(store, commit_with(&take(store, "a").await, "1")).await.unwrap();
    let second = take(store, "b").await;
    assert_eq!(second.meta.batch.as_ref(), Some(&made.id));
    apply(store, rollback(&second, Some(0))).await.unwrap();
    apply(store, move_to(&take(store, "b").await, "c")).await.unwrap();
    assert_eq!(counted(store, &made.id).await, (1, 0, 0, 0));
    let last = apply(store, commit_with(&take(store, "c").await, "2")).await.unwrap();
    assert!(last.callback.is_some());
    let kept = results(store, &made.id).await;
    let only = kept.values().next().unwrap();
    assert_eq!((kept.len(), only.result.clone(), &only.queue), (1, Some(payload("2")), &queue("c")));
}

pub async fn dead_is_finished_whatever_comes_later(store: &dyn Store) {
    let rules = rules_of("a", |settings| settings.dead_letter = Some(queue("graves")));
    let made = create(store, vec![job("a").max_attempts(1), job("b").max_attempts(1)], &rules).await;
    apply_under(store, rollback(&take(store, "a").await, None), &rules).await.unwrap();
    let dead = take(store, "b").await;
    let last = apply_under(store, rollback(&dead, None), &rules).await.unwrap();
    assert!(last.callback.is_some());
    assert_eq!(counted(store, &made.id).await, (0, 0, 2, 0));
    let called = callback(store).await;
    apply(store, commit(&called)).await.unwrap();
    let letter = take(store, "graves").await;
    assert_eq!(letter.meta.batch, None);
    apply_under(store, commit(&letter), &rules).await.unwrap();
    apply_under(store, redrive(&dead.meta.id, "b"), &rules).await.unwrap();
    let again = take(store, "b").await;
    assert_eq!(again.meta.batch, None);
    apply_under(store, commit(&again), &rules).await.unwrap();
    assert_eq!(counted(store, &made.id).await, (0, 0, 2, 0));
    nothing_called_back(store).await;
}

pub async fn what_is_taken_away_counts_as_cancelled(store: &dyn Store) {
    let jobs = vec![job("expires").expires(20), job("asked"), job("lapses"), job("forced"), job("purged")];
    let made = create(store, jobs, &Rules::default()).await;
    assert_eq!(reap(store, &Rules::default()).await.len(), 1);
    assert_eq!(counted(store, &made.id).await, (4, 0, 0, 1));
    let asked = take(store, "asked").await;
    apply(store, cancel(&asked.meta.id, false)).await.unwrap();
    assert_eq!(counted(store, &made.id).await, (4, 0, 0, 1), "its worker is only asked");
    assert_eq!(apply(store, rollback(&asked, None)).await.unwrap().outcome, Outcome::Removed);
    let lapses = take_for(store, "lapses", 20).await;
    apply(store, cancel(&lapses.meta.id, false)).await.unwrap();
    assert_eq!(reap(store, &Rules::default()).await.len(), 1);
    assert_eq!(counted(store, &made.id).await, (2, 0, 0, 3));
    let forced = take(store, "forced").await;
    apply(store, cancel(&forced.meta.id, true)).await.unwrap();
    let purged = claim(store, ask("purged", 1)).await.remove(0);
    apply(store, release(&purged)).await.unwrap();
    let purge = Operation::Purge {
        within: tailback::job::Reach::default(),
        states: vec![tailback::job::Visible::Ready],
    };
    let last = apply(store, change(&purged.meta.id, purge)).await.unwrap();
    assert!(last.callback.is_some());
    assert_eq!(counted(store, &made.id).await, (0, 0, 0, 5));
    assert_eq!(callback(store).await.headers["batch-cancelled"], payload("\"5\""));
}

/// Many settle the jobs of one batch at once, each of them twice.
pub async fn many_that_end_at_once_call_back_once(store: &dyn Store) {
    let made = create(store, (0..120).map(|_| job("a").max_attempts(1)).collect(), &Rules::default()).await;
    let taken = claim(store, ask("a", 120)).await;
    let settle = async |jobs: &[Job]| {
        let changes: Vec<Change> = jobs
            .iter()
            .enumerate()
            .map(|(n, job)| if n % 5 == 0 { rollback(job, None) } else { commit_with(job, "[1.0]") })
            .collect();
        apply_all(store, changes, &Rules::default()).await
    };
    let rounds = taken.chunks(10).chain(taken.chunks(10));
    let applied = join_all(rounds.map(settle)).await;
    let told = applied.iter().flatten().flatten().filter(|applied| applied.callback.is_some()).count();
    assert_eq!(told, 1);
    assert_eq!(counted(store, &made.id).await, (0, 96, 24, 0));
    assert_eq!(results(store, &made.id).await.len(), 120);
    let called = callback(store).await;
    assert_eq!(
        (called.headers["batch-done"].as_str(), called.headers["batch-dead"].as_str()),
        ("\"96\"", "\"24\"")
    );
    assert_eq!(counts_of(store, "a").await.dead, 24);
}

/// Jobs are added while others end, and the batch is sealed in the middle of it.
pub async fn adding_and_ending_at_once_add_up(store: &dyn Store) {
    let open = batch(store, false);
    store.create_batch(open.clone(), Vec::new(), &Rules::default()).await.unwrap();
    let add = async || {
        let jobs = of(store, &open.id, (0..5).map(|_| job("a")).collect());
        store.add_to_batch(&open.id, jobs, &Rules::default()).await.is_ok()
    };
    let work = async || {
        for job in claim(store, ask("a", 7)).await {
            apply(store, commit(&job)).await.unwrap();
        }
    };
    let round = async || {
        let added = add().await;
        work().await;
        added
    };
    let added = join_all((0..8).map(|_| round())).await;
    assert!(added.iter().all(|added| *added));
    let rules = Rules::default();
    let (sealed, added, ()) = tokio::join!(store.seal_batch(&open.id, &rules), add(), work());
    sealed.unwrap();
    while counts_of(store, "a").await.ready > 0 {
        work().await;
    }
    let jobs = 40 + if added { 5 } else { 0 };
    assert_eq!(counted(store, &open.id).await, (0, jobs, 0, 0));
    assert_eq!(callback(store).await.headers["batch-done"], payload(&format!("\"{jobs}\"")));
}

pub async fn a_finished_batch_is_forgotten_after_its_time(store: &dyn Store) {
    let defaults = Defaults { retain_batch_ms: 1, ..Defaults::default() };
    let rules = Rules::new(Arc::new(defaults), HashMap::new());
    let kept = create(store, vec![job("kept")], &rules).await;
    let made = create(store, (0..7).map(|_| job("a")).collect(), &rules).await;
    for job in claim(store, ask("a", 7)).await {
        apply_under(store, commit(&job), &rules).await.unwrap();
    }
    assert_eq!(results(store, &made.id).await.len(), 7);
    let purge_at = see_batch(store, &made.id).await.purge_at.unwrap();
    until_past(store, purge_at).await;
    // In small steps, and never the batch before its results.
    for _ in 0..20 {
        store.prune(3).await.unwrap();
        let left = results(store, &made.id).await.len();
        assert!(
            left == 0 || store.batch(&made.id).await.unwrap().is_some(),
            "{left} results without a batch"
        );
    }
    assert_eq!(store.batch(&made.id).await.unwrap(), None);
    assert!(results(store, &made.id).await.is_empty());
    assert_eq!(counted(store, &kept.id).await, (1, 0, 0, 0), "one that is unfinished stays");
}

pub async fn long_batches_make_short_pages(store: &dyn Store) {
    let long = format!("\"{}\"", "x".repeat(1 << 20));
    for _ in 0..20 {
        let now = store.now().unwrap();
        let on_finished = serde_json::from_str(&format!(r#"{{"queue":"after","payload":{long}}}"#)).unwrap();
        let batch = Batch::new(IDS.next_batch(now), IDS.next(now), Some(on_finished), false, now);
        assert!(store.import_batch(batch, Vec::new()).await.unwrap());
    }
    let (mut all, mut after) = (0, None);
    loop {
        let page = store.export_batches(after.as_ref(), 1000).await.unwrap();
        assert!(page.len() < 20, "{} batches of a megabyte in one page", page.len());
        all += page.len();
        match page.last() {
            Some(last) => after = Some(last.id.clone()),
            None => break,
        }
    }
    assert_eq!(all, 20);
}

pub async fn a_batch_comes_over_as_it_is(store: &dyn Store) {
    let made = create(store, vec![job("a"), job("a")], &Rules::default()).await;
    apply(store, commit_with(&take(store, "a").await, "1.50")).await.unwrap();
    let there = store.export_batches(None, 9).await.unwrap();
    assert_eq!(there, [see_batch(store, &made.id).await]);
    let kept: Vec<BatchResult> = results(store, &made.id).await.into_values().collect();
    assert!(store.import_batch(there[0].clone(), kept.clone()).await.unwrap(), "it is there and equal");
    assert!(!store.import_batch(made.clone(), Vec::new()).await.unwrap(), "it is there and another");
    assert_eq!(counted(store, &made.id).await, (1, 1, 0, 0), "and stays as it is");
    let another = BatchResult { id: id("other"), ..kept[0].clone() };
    assert!(!store.import_batch(made.clone(), vec![another.clone()]).await.unwrap());
    assert_eq!(results(store, &made.id).await.len(), 1, "nor is anything added to it");
    let changed = BatchResult { result: Some(payload("7")), ..kept[0].clone() };
    assert!(!store.import_batch(there[0].clone(), vec![changed]).await.unwrap(), "a result is another");
    let copy = Batch { id: IDS.next_batch(made.created_at), ..there[0].clone() };
    assert!(store.import_batch(copy.clone(), kept.clone()).await.unwrap());
    assert_eq!(see_batch(store, &copy.id).await, copy);
    assert_eq!(store.batch_results(&copy.id, None, 9).await.unwrap(), kept);
    let behind = store.export_batches(Some(&made.id), 9).await.unwrap();
    assert_eq!(behind, [copy]);
    assert_eq!(state_of(store, &take(store, "a").await.meta.id).await, Some(State::Reserved));
}

pub async fn batches_are_listed_by_id(store: &dyn Store) {
    assert!(store.batches(None, 10).await.unwrap().is_empty());
    let mut made = Vec::new();
    for _ in 0..5 {
        let new = batch(store, false);
        made.push(new.id.clone());
        store.create_batch(new, Vec::new(), &Rules::default()).await.unwrap();
    }
    let listed = async |after: Option<&BatchId>, limit| -> Vec<BatchId> {
        store.batches(after, limit).await.unwrap().into_iter().map(|batch| batch.id).collect()
    };
    assert_eq!(listed(None, 10).await, made);
    assert_eq!(listed(None, 2).await, made[..2]);
    assert_eq!(listed(Some(&made[1]), 2).await, made[2..4]);
    assert!(listed(Some(&made[4]), 2).await.is_empty());
    let first = store.batch(&made[0]).await.unwrap().unwrap();
    assert_eq!(store.batches(None, 1).await.unwrap(), [first]);
}
