//! Calls that are answered once, with the answer stored beside their effect.

use std::sync::Arc;

use tailback::job::transition::{Operation, Refusal};
use tailback::job::{Claim, NewJob, Rules};
use tailback::store::{
    Applied, BatchChange, BatchDenied, Change, Denied, Keyed, KeyedCall, Once, PushRefused, Pushed, Recalled,
    Store,
};

use super::support::*;

fn call(store: &dyn Store, id: &str, says: u8) -> KeyedCall {
    let until = store.now().unwrap().plus_ms(600_000);
    KeyedCall { id: format!("={id}"), digest: [says; 32], until }
}

/// A call whose answer is this, but nothing where all jobs are refused.
fn push_call(call: KeyedCall, answer: &str) -> Keyed<Vec<Pushed>> {
    let answer = answer.to_owned();
    let is_refused = |pushed: &Pushed| matches!(pushed, Pushed::Full | Pushed::KeyConflict { .. });
    let made = move |pushed: &Vec<Pushed>| (!pushed.iter().all(is_refused)).then(|| answer.clone());
    Keyed { call, answer: Arc::new(made) }
}

fn build(store: &dyn Store, drafts: Vec<Draft>) -> Vec<NewJob> {
    drafts.into_iter().map(|draft| draft.build(store)).collect()
}

async fn push(store: &dyn Store, call: KeyedCall, answer: &str, drafts: Vec<Draft>) -> Once<Vec<Pushed>> {
    let jobs = build(store, drafts);
    store.push_once(jobs, &Rules::default(), push_call(call, answer)).await.unwrap()
}

fn before<T>(answer: &str) -> Once<T> {
    Once::Before(Recalled::Answer(answer.to_owned()))
}

pub async fn a_push_is_answered_once(store: &dyn Store) {
    let keyed = || call(store, "a", 1);
    assert_eq!(store.recall(&keyed()).await.unwrap(), None);
    let drafts = || vec![job("q"), job("q").key("k", 60_000), job("q").group("g"), job("q").group("g")];
    let stored = vec![Pushed::Created, Pushed::Created, Pushed::Created, Pushed::Blocked];
    let first = push(store, keyed(), "first", drafts()).await;
    assert_eq!(first, Once::Now(stored, Some("first".to_owned())));
    for _ in 0..2 {
        assert_eq!(push(store, keyed(), "again", drafts()).await, before("first"));
    }
    assert_eq!(store.recall(&keyed()).await.unwrap(), Some(Recalled::Answer("first".to_owned())));
    let other = call(store, "a", 2);
    assert_eq!(push(store, other.clone(), "other", drafts()).await, Once::Before(Recalled::Different));
    assert_eq!(store.recall(&other).await.unwrap(), Some(Recalled::Different));
    let counts = counts_of(store, "q").await;
    assert_eq!((counts.ready, counts.blocked), (3, 1));
    assert!(matches!(push(store, call(store, "b", 1), "b", vec![job("q")]).await, Once::Now(..)));
}

pub async fn a_refused_push_is_not_remembered(store: &dyn Store) {
    let rules = rules_of("q", |settings| settings.max_jobs = Some(1));
    let once = async |drafts: Vec<Draft>| {
        let keyed = push_call(call(store, "a", 1), "first");
        store.push_once(build(store, drafts), &rules, keyed).await.unwrap()
    };
    push_under(store, vec![job("q")], &rules).await;
    assert_eq!(once(vec![job("q"), job("q")]).await, Once::Now(vec![Pushed::Full; 2], None));
    assert_eq!(store.recall(&call(store, "a", 1)).await.unwrap(), None);
    apply(store, commit(&take(store, "q").await)).await.unwrap();
    let stored = vec![Pushed::Created, Pushed::Full];
    assert_eq!(once(vec![job("q"), job("q")]).await, Once::Now(stored, Some("first".to_owned())));
    assert_eq!(once(vec![job("q")]).await, before("first"));
}

pub async fn an_answer_is_forgotten_after_its_time(store: &dyn Store) {
    let end = store.now().unwrap().plus_ms(30);
    let short = KeyedCall { until: end, ..call(store, "a", 1) };
    push(store, short, "first", vec![job("q")]).await;
    until_past(store, end).await;
    let other = call(store, "a", 2);
    assert_eq!(store.recall(&other).await.unwrap(), None);
    let second = push(store, other.clone(), "second", vec![job("q")]).await;
    assert_eq!(second, Once::Now(vec![Pushed::Created], Some("second".to_owned())));
    assert_eq!(store.recall(&other).await.unwrap(), Some(Recalled::Answer("second".to_owned())));
}

pub async fn a_long_answer_comes_back_whole(store: &dyn Store) {
    let long = "ä€x".repeat(3_000_000);
    push(store, call(store, "a", 1), &long, vec![job("q")]).await;
    assert!(store.recall(&call(store, "a", 1)).await.unwrap() == Some(Recalled::Answer(long.clone())));
    assert!(push(store, call(store, "a", 1), "", vec![job("q")]).await == before(&long));
}

pub async fn of_calls_at_once_one_takes_effect(store: &dyn Store) {
    let answers: Vec<String> = (0..8).map(|n| n.to_string()).collect();
    let calls = answers.iter().map(|answer| push(store, call(store, "a", 1), answer, vec![job("q")]));
    let done = futures::future::join_all(calls).await;
    let now = |once: &Once<Vec<Pushed>>| match once {
        Once::Now(_, answer) => answer.clone(),
        Once::Before(_) => None,
    };
    let first: Vec<String> = done.iter().filter_map(now).collect();
    assert_eq!((first.len(), counts_of(store, "q").await.ready), (1, 1));
    assert_eq!(done.iter().filter(|once| **once == before(&first[0])).count(), 7);
}

type Changed = Vec<Result<Applied, Denied>>;

fn change_call(call: KeyedCall) -> Keyed<Changed> {
    let made = |applied: &Changed| {
        let done = applied.iter().filter(|applied| applied.is_ok()).count();
        (done > 0).then(|| done.to_string())
    };
    Keyed { call, answer: Arc::new(made) }
}

pub async fn changes_are_answered_once(store: &dyn Store) {
    push_all(store, (0..3).map(|_| job("q")).collect()).await;
    push_under(store, vec![job("q").group("g"), job("q").group("g")], &Rules::default()).await;
    let jobs = claim(store, ask("q", 9)).await;
    assert_eq!(jobs.len(), 4);
    let pop = |claim: Option<Claim>, id| Change { id, operation: Operation::Pop { claim: claim.unwrap() } };
    let mut changes: Vec<Change> =
        jobs.iter().map(|job| pop(job.meta.claim.clone(), job.meta.id.clone())).collect();
    changes[1] = pop(Some(Claim::random()), jobs[1].meta.id.clone());
    let once = async |changes: &[Change], says: u8| {
        let keyed = change_call(call(store, "a", says));
        store.apply_once(changes.to_vec(), &Rules::default(), keyed).await.unwrap()
    };
    // Nothing but refusals is not remembered.
    let Once::Now(none, None) = once(&changes[1..2], 1).await else { panic!("it was remembered") };
    assert!(matches!(none[0], Err(Denied::Refused(Refusal::Lost { gone: false }))), "{none:?}");
    let Once::Now(applied, answer) = once(&changes, 1).await else { panic!("it was answered before") };
    assert_eq!(answer.as_deref(), Some("3"));
    let done: Vec<bool> = applied.iter().map(Result::is_ok).collect();
    assert_eq!(done, [true, false, true, true]);
    assert_eq!(applied[3].as_ref().unwrap().unblocked.len(), 1, "the next of the group");
    let counts = counts_of(store, "q").await;
    assert_eq!((counts.reserved, counts.ready, counts.blocked), (1, 1, 0));
    let Once::Before(again) = once(&changes, 1).await else { panic!("it was done again") };
    assert_eq!(again, Recalled::Answer("3".to_owned()));
    assert!(matches!(once(&changes, 2).await, Once::Before(Recalled::Different)));
    // A text alone may be remembered, too.
    let text = Keyed { call: call(store, "b", 1), answer: Arc::new(|_: &Changed| Some("text".to_owned())) };
    let none = store.apply_once(Vec::new(), &Rules::default(), text).await.unwrap();
    assert!(matches!(none, Once::Now(all, Some(_)) if all.is_empty()));
    assert!(store.recall(&call(store, "b", 1)).await.unwrap().is_some());
}

pub async fn a_batch_is_answered_once(store: &dyn Store) {
    let now = store.now().unwrap();
    let new = |id: &str| {
        let (id, callback) = (format!("b-{id}").parse().unwrap(), format!("c-{id}").parse().unwrap());
        tailback::job::Batch::new(id, callback, None, false, now)
    };
    let keyed = |id: &str| {
        let made = |changed: &tailback::store::BatchChanged| Some(changed.batch.id.to_string());
        Keyed { call: call(store, id, 1), answer: Arc::new(made) }
    };
    let change = async |key: &str, change: BatchChange, drafts: Vec<Draft>| {
        let jobs = build(store, drafts);
        store.change_batch_once(change, jobs, &Rules::default(), keyed(key)).await
    };
    let create = |id: &str| BatchChange::Create(Box::new(new(id)));
    let of = |id: &str, name: &str| vec![job(name).of(&new(id).id)];
    let Once::Now(first, Some(_)) = change("create", create("1"), of("1", "q")).await.unwrap() else {
        panic!()
    };
    assert_eq!(first.batch.pending, 1);
    let again = change("create", create("2"), of("2", "q")).await.unwrap();
    assert_eq!(again, before(first.batch.id.as_str()));
    assert_eq!(store.batch(&new("2").id).await.unwrap(), None);
    for n in 0..2 {
        let added = change("add", BatchChange::Add(first.batch.id.clone()), of("1", "q")).await.unwrap();
        assert_eq!(matches!(added, Once::Now(..)), n == 0);
    }
    assert_eq!(store.batch(&first.batch.id).await.unwrap().unwrap().pending, 2);
    let unknown = change("unknown", BatchChange::Add(new("3").id), of("3", "q")).await;
    assert!(matches!(unknown, Err(BatchDenied::Unknown)), "{unknown:?}");
    assert_eq!(store.recall(&call(store, "unknown", 1)).await.unwrap(), None);
}

async fn push_together(
    store: &dyn Store,
    drafts: Vec<Draft>,
    rules: &Rules,
    keyed: Option<Keyed<Vec<Pushed>>>,
) -> Result<Once<Vec<Pushed>>, Option<PushRefused>> {
    store.push_all(build(store, drafts), rules, keyed).await.map_err(|denied| match denied {
        Denied::PushRefused(refused) => Some(refused),
        _ => None,
    })
}

pub async fn jobs_are_stored_together_or_not_at_all(store: &dyn Store) {
    let rules = rules_of("small", |settings| settings.max_jobs = Some(2));
    let all = async |drafts| push_together(store, drafts, &rules, None).await;
    let some = vec![job("small"), job("q").group("g"), job("q").group("g"), job("q").key("k", 60_000)];
    let stored = vec![Pushed::Created, Pushed::Created, Pushed::Blocked, Pushed::Created];
    assert_eq!(all(some).await, Ok(Once::Now(stored, None)));
    let counted = async || {
        let (small, q) = (counts_of(store, "small").await, counts_of(store, "q").await);
        (small.ready, q.ready, q.blocked)
    };
    assert_eq!(counted().await, (1, 2, 1));
    // One too many, and one with the key of another.
    let refused = |index: usize, name: &str| PushRefused { index, queue: queue(name), key_of: None };
    let full = vec![job("q"), job("small"), job("q").group("h"), job("small")];
    assert_eq!(all(full).await, Err(Some(refused(3, "small"))));
    let taken = all(vec![job("q"), job("q").key("k", 60_000).payload("2")]).await;
    assert!(matches!(taken, Err(Some(PushRefused { index: 1, key_of: Some(_), .. }))), "{taken:?}");
    assert_eq!(counted().await, (1, 2, 1), "nothing was stored");
    // A duplicate refuses nobody, and takes no room.
    let double =
        all(vec![job("small").key("s", 60_000), job("small").key("s", 60_000), job("q").key("k", 60_000)]);
    let Ok(Once::Now(told, None)) = double.await else { panic!("it was refused") };
    assert_eq!(told[0], Pushed::Created);
    assert!(told[1..].iter().all(|pushed| matches!(pushed, Pushed::Duplicate { .. })), "{told:?}");
    assert_eq!(counted().await, (2, 2, 1));
}

pub async fn a_push_of_all_or_none_is_answered_once(store: &dyn Store) {
    let rules = rules_of("small", |settings| settings.max_jobs = Some(1));
    let keyed = || Some(push_call(call(store, "a", 1), "first"));
    let full = push_together(store, vec![job("q"), job("small"), job("small")], &rules, keyed()).await;
    assert!(matches!(full, Err(Some(PushRefused { index: 2, .. }))), "{full:?}");
    assert_eq!(store.recall(&call(store, "a", 1)).await.unwrap(), None);
    let stored = Once::Now(vec![Pushed::Created; 2], Some("first".to_owned()));
    for told in [stored, before("first"), before("first")] {
        let drafts = vec![job("q"), job("small")];
        assert_eq!(push_together(store, drafts, &rules, keyed()).await, Ok(told));
    }
    let other = Some(push_call(call(store, "a", 2), "other"));
    let told = push_together(store, vec![job("q")], &rules, other).await;
    assert_eq!(told, Ok(Once::Before(Recalled::Different)));
    assert_eq!((counts_of(store, "q").await.ready, counts_of(store, "small").await.ready), (1, 1));
}
