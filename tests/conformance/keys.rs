//! The producers' own names for jobs.

use futures::future::join_all;
use tailback::job::transition::Operation;
use tailback::job::{JobId, Reach, Rules, Visible};
use tailback::store::{Change, Pushed, Store};

use super::support::*;

const LONG_MS: u64 = 600_000;

/// Pushes one job with the key and answers the id of the job that has it now; `None` for a conflict.
async fn who_has(store: &dyn Store, text: &str, ttl_ms: u64) -> (Pushed, Option<JobId>) {
    let new = job("q").payload(text).key("k", ttl_ms).build(store);
    let own = new.id.clone();
    let pushed = store.push(vec![new], &Rules::default()).await.remove(0).unwrap();
    let holder = match &pushed {
        Pushed::Created => Some(own),
        Pushed::Duplicate { id, .. } => Some(id.clone()),
        _ => None,
    };
    (pushed, holder)
}

pub async fn the_same_key_and_payload_is_a_duplicate(store: &dyn Store) {
    let first = push_one(store, job("q").payload(r#"{"a":[1,2]}"#).delay(50_000).key("k", LONG_MS)).await;
    let again = push(store, vec![job("q").payload(r#" { "a" : [1, 2] } "#).key("k", LONG_MS)]).await;
    let run_at = see(store, &first).await.meta.run_at;
    let state = Visible::Scheduled;
    assert_eq!(again, [Pushed::Duplicate { id: first, state, run_at }]);
    assert_eq!(counts_of(store, "q").await.scheduled, 1);
}

pub async fn the_same_key_with_another_payload_is_a_conflict(store: &dyn Store) {
    let first = push_one(store, job("q").payload("[1]").key("k", LONG_MS)).await;
    let other = push(store, vec![job("q").payload("[1.0]").key("k", LONG_MS)]).await;
    assert_eq!(other, [Pushed::KeyConflict { id: first }]);
}

pub async fn keys_are_seen_within_one_call(store: &dyn Store) {
    let drafts = vec![
        job("q").payload("1").key("k", LONG_MS),
        job("q").payload("1").key("k", LONG_MS),
        job("q").payload("2").key("k", LONG_MS),
        job("q").payload("2").key("l", LONG_MS),
        job("q").payload("2"),
    ];
    let pushed = push(store, drafts).await;
    assert_eq!(pushed[0], Pushed::Created);
    assert!(matches!(&pushed[1], Pushed::Duplicate { state: Visible::Ready, .. }));
    assert!(matches!(&pushed[2], Pushed::KeyConflict { .. }));
    assert_eq!(pushed[3..], [Pushed::Created, Pushed::Created]);
    assert_eq!(counts_of(store, "q").await.ready, 3);
}

pub async fn keys_are_unique_within_a_queue_only(store: &dyn Store) {
    let drafts = vec![job("a").key("k", LONG_MS), job("b").payload("0").key("k", LONG_MS)];
    assert_eq!(push(store, drafts).await, [Pushed::Created, Pushed::Created]);
}

pub async fn keys_are_any_text(store: &dyn Store) {
    let names = ["$k", "a.b", "ü 😀", "K", "k", "'; --", "\u{1}"];
    let drafts: Vec<_> = names.iter().map(|name| job("q").key(name, LONG_MS)).collect();
    assert!(push(store, drafts.clone()).await.iter().all(|pushed| *pushed == Pushed::Created));
    let again = push(store, drafts).await;
    assert!(again.iter().all(|pushed| matches!(pushed, Pushed::Duplicate { .. })));
}

pub async fn a_key_is_not_freed_while_its_job_is_unfinished(store: &dyn Store) {
    let first = push_one(store, job("q").key("k", 1)).await;
    until_past(store, see(store, &first).await.meta.created_at.plus_ms(1)).await;
    store.prune(100).await.unwrap();
    assert_eq!(who_has(store, r#"{"n":1}"#, 1).await.1, Some(first.clone()));
    take(store, "q").await;
    let (pushed, holder) = who_has(store, r#"{"n":1}"#, 1).await;
    assert_eq!(holder, Some(first));
    assert!(matches!(pushed, Pushed::Duplicate { state: Visible::Reserved, .. }));
}

pub async fn a_key_outlives_its_job_for_its_time(store: &dyn Store) {
    let taken = push_and_take(store, job("q").payload("7").key("k", LONG_MS)).await;
    apply(store, commit(&taken)).await.unwrap();
    store.prune(100).await.unwrap();
    let (pushed, holder) = who_has(store, "7", LONG_MS).await;
    assert_eq!(holder, Some(taken.meta.id));
    assert!(matches!(pushed, Pushed::Duplicate { state: Visible::Done, .. }));
    assert!(matches!(who_has(store, "8", LONG_MS).await.0, Pushed::KeyConflict { .. }));
}

pub async fn a_key_is_free_after_its_time_and_its_jobs_end(store: &dyn Store) {
    let taken = push_and_take(store, job("q").payload("7").key("k", 1)).await;
    apply(store, commit(&taken)).await.unwrap();
    until_past(store, taken.meta.created_at.plus_ms(1)).await;
    let (pushed, holder) = who_has(store, "8", LONG_MS).await;
    assert_eq!(pushed, Pushed::Created);
    let (again, same) = who_has(store, "8", LONG_MS).await;
    assert!(matches!(again, Pushed::Duplicate { .. }));
    assert_eq!(same, holder, "the new job has the key now");
}

pub async fn a_done_job_frees_its_key_after_its_time(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let done = push_and_take(store, job("q").key("k", 1)).await;
    apply_under(store, commit(&done), &rules).await.unwrap();
    until_past(store, done.meta.created_at.plus_ms(1)).await;
    assert_eq!(push(store, vec![job("q").key("k", 1)]).await, [Pushed::Created]);
}

/// Whether it died in its own queue or is in a dead-letter queue: a redrive makes it live again, and there are never two of one key.
pub async fn a_dead_job_holds_its_key_until_it_is_gone(store: &dyn Store) {
    let to_graves = rules_of("q", |settings| settings.dead_letter = Some(queue("graves")));
    for rules in [Rules::default(), to_graves] {
        let doomed = push_and_take(store, job("q").key("k", 1).max_attempts(1)).await;
        let id = doomed.meta.id.clone();
        apply_under(store, rollback(&doomed, None), &rules).await.unwrap();
        until_past(store, doomed.meta.created_at.plus_ms(1)).await;
        store.prune(100).await.unwrap();
        assert_eq!(who_has(store, r#"{"n":1}"#, 1).await.1, Some(id.clone()));
        let within = see(store, &id).await.meta.queue;
        let redrive = Operation::Redrive { within: Reach::one(&within), home: Reach::default() };
        apply(store, Change { id: id.clone(), operation: redrive }).await.unwrap();
        let (pushed, holder) = who_has(store, r#"{"n":1}"#, 1).await;
        assert_eq!(
            (pushed, holder.as_ref()),
            (
                Pushed::Duplicate {
                    id: id.clone(),
                    state: Visible::Ready,
                    run_at: see(store, &id).await.meta.run_at
                },
                Some(&id)
            )
        );
        let again = take(store, "q").await;
        apply(store, commit(&again)).await.unwrap();
        assert!(matches!(who_has(store, r#"{"n":1}"#, 1).await.0, Pushed::Created), "it has ended");
        apply(store, cancel(&take(store, "q").await.meta.id, true)).await.unwrap();
    }
}

fn cancel(id: &JobId, force: bool) -> Change {
    Change { id: id.clone(), operation: Operation::Cancel { within: Reach::default(), force } }
}

pub async fn a_cancelled_job_frees_its_key(store: &dyn Store) {
    // One that waits.
    let first = push_one(store, job("q").payload("1").key("k", LONG_MS).delay(50_000)).await;
    apply(store, cancel(&first, false)).await.unwrap();
    let (pushed, holder) = who_has(store, "2", LONG_MS).await;
    assert_eq!(pushed, Pushed::Created, "another payload, even");
    // One that is reserved, by force.
    let held = take(store, "q").await;
    assert_eq!(Some(&held.meta.id), holder.as_ref());
    apply(store, cancel(&held.meta.id, true)).await.unwrap();
    assert_eq!(who_has(store, "2", LONG_MS).await.0, Pushed::Created);
    // One that is asked to stop: once it does.
    let held = take(store, "q").await;
    apply(store, cancel(&held.meta.id, false)).await.unwrap();
    assert_eq!(who_has(store, "2", LONG_MS).await.1, Some(held.meta.id.clone()));
    apply(store, rollback(&held, None)).await.unwrap();
    assert_eq!(who_has(store, "2", LONG_MS).await.0, Pushed::Created);
    // One that was done although it was asked to stop has been done.
    let held = take(store, "q").await;
    apply(store, cancel(&held.meta.id, false)).await.unwrap();
    apply(store, commit(&held)).await.unwrap();
    assert_eq!(who_has(store, "2", LONG_MS).await.1, Some(held.meta.id.clone()));
}

pub async fn a_purge_frees_keys_but_those_of_done_jobs(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let purge = |id: &JobId, state: Visible| Change {
        id: id.clone(),
        operation: Operation::Purge { within: Reach::default(), state },
    };
    let waiting = push_one(store, job("q").key("a", LONG_MS)).await;
    let doomed = push_and_take(store, job("q").key("b", LONG_MS).max_attempts(1).priority(1)).await;
    apply(store, rollback(&doomed, None)).await.unwrap();
    let done = push_and_take(store, job("q").key("c", LONG_MS).priority(1)).await;
    apply_under(store, commit(&done), &rules).await.unwrap();
    apply(store, purge(&waiting, Visible::Ready)).await.unwrap();
    apply(store, purge(&doomed.meta.id, Visible::Dead)).await.unwrap();
    apply(store, cancel(&done.meta.id, false)).await.unwrap();
    let drafts = ["a", "b", "c"].map(|key| job("q").key(key, LONG_MS));
    let pushed = push(store, drafts.into()).await;
    assert_eq!(pushed[..2], [Pushed::Created, Pushed::Created]);
    assert!(matches!(&pushed[2], Pushed::Duplicate { state: Visible::Done, .. }), "{pushed:?}");
}

/// A key that has passed to another job by then is not that job's to free.
pub async fn a_cancel_frees_no_key_of_another_job(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let first = push_and_take(store, job("q").key("k", 1)).await;
    apply_under(store, commit(&first), &rules).await.unwrap();
    until_past(store, first.meta.created_at.plus_ms(1)).await;
    let second = push_one(store, job("q").key("k", LONG_MS)).await;
    apply(store, cancel(&first.meta.id, false)).await.unwrap();
    assert_eq!(who_has(store, r#"{"n":1}"#, LONG_MS).await.1, Some(second));
}

pub async fn an_edit_does_not_change_what_a_key_stands_for(store: &dyn Store) {
    let first = push_one(store, job("q").payload("1").key("k", LONG_MS)).await;
    let edit = Operation::Edit {
        within: tailback::job::Reach::default(),
        priority: None,
        run_at: None,
        payload: Some(payload("2")),
    };
    apply(store, change(&first, edit)).await.unwrap();
    assert!(matches!(who_has(store, "1", LONG_MS).await.0, Pushed::Duplicate { .. }));
    assert!(matches!(who_has(store, "2", LONG_MS).await.0, Pushed::KeyConflict { .. }));
}

pub async fn pushes_at_once_share_a_key(store: &dyn Store) {
    let pushes = (0..16).map(|_| who_has(store, "1", LONG_MS));
    let answers = join_all(pushes).await;
    let created = answers.iter().filter(|(pushed, _)| *pushed == Pushed::Created).count();
    assert_eq!(created, 1);
    assert!(answers.iter().all(|(_, holder)| *holder == answers[0].1));
}
