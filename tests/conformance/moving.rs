//! Moves from queue to queue, and the receipts of them.

use tailback::job::record::{KeyConflict, KeyHold, KeyUntil, TrailReason};
use tailback::job::transition::{Operation, Outcome, Refusal};
use tailback::job::{Claim, Job, Rules, When};
use tailback::store::{Change, Denied, Filter, Pushed, Store};

use super::support::*;

pub async fn a_move_starts_again_elsewhere(store: &dyn Store) {
    let taken = push_and_take(store, job("a").priority(2).header("h", "v")).await;
    let moved = apply(store, move_to(&taken, "b")).await.unwrap();
    assert_eq!((&moved.queue, moved.repeated), (&queue("a"), false));
    assert!(matches!(&moved.outcome, Outcome::Returned { queue: to, .. } if *to == queue("b")));
    assert!(claim(store, ask("a", 1)).await.is_empty());
    let next = take(store, "b").await;
    assert_eq!((&next.meta.id, next.meta.attempts), (&taken.meta.id, 1));
    assert_eq!((next.meta.priority, &next.payload), (2, &taken.payload));
    assert_eq!((next.meta.created_at, &next.headers), (taken.meta.created_at, &taken.headers));
    let step = next.meta.trail.last().unwrap();
    assert_eq!((&step.queue, step.reason, step.attempts), (&queue("a"), TrailReason::Moved, 1));
}

pub async fn a_move_takes_payload_delay_and_priority(store: &dyn Store) {
    let taken = push_and_take(store, job("a")).await;
    let operation = Operation::Move {
        claim: held_by(&taken),
        queue: queue("b"),
        payload: Some(content(r#"{"stage":2.0}"#)),
        when: When::In(90_000),
        priority: Some(-4),
        headers: None,
        key: None,
    };
    apply(store, change(&taken.meta.id, operation)).await.unwrap();
    let moved = see(store, &taken.meta.id).await;
    assert_eq!((moved.meta.priority, moved.payload), (-4, content(r#"{"stage":2.0}"#)));
    assert!(moved.meta.run_at.ms_since(taken.meta.started_at.unwrap()) >= 90_000);
    assert!(claim(store, ask("b", 1)).await.is_empty());
    assert_eq!(store.upcoming(1).await.unwrap(), [(queue("b"), moved.meta.run_at)]);
}

pub async fn a_move_forgets_progress(store: &dyn Store) {
    let taken = push_and_take(store, job("a")).await;
    let operation =
        Operation::Extend { claim: held_by(&taken), lease_ms: None, progress: Some(payload("50")) };
    apply(store, change(&taken.meta.id, operation)).await.unwrap();
    apply(store, move_to(&taken, "b")).await.unwrap();
    assert_eq!(take(store, "b").await.meta.progress, None);
}

pub async fn the_repeat_of_a_move_answers_the_same(store: &dyn Store) {
    let taken = push_and_take(store, job("a")).await;
    let first = apply(store, move_to(&taken, "b")).await.unwrap();
    let waiting = apply(store, move_to(&taken, "b")).await.unwrap();
    let next = take(store, "b").await;
    let reserved = apply(store, move_to(&taken, "b")).await.unwrap();
    apply(store, commit(&next)).await.unwrap();
    let gone = apply(store, move_to(&taken, "b")).await.unwrap();
    for again in [waiting, reserved, gone] {
        assert!(again.repeated);
        assert_eq!((&again.outcome, &again.queue), (&first.outcome, &first.queue));
        assert_eq!(again.started_at, first.started_at);
    }
    assert_eq!(look(store, &taken.meta.id).await, None);
}

pub async fn a_receipt_answers_its_own_claim_and_verb_only(store: &dyn Store) {
    let taken = push_and_take(store, job("a")).await;
    apply(store, move_to(&taken, "b")).await.unwrap();
    let lost = Err(Refusal::Lost { gone: false });
    assert_eq!(apply(store, commit(&taken)).await, lost);
    let mut stranger = taken.clone();
    stranger.meta.claim = Some(Claim::random());
    assert_eq!(apply(store, move_to(&stranger, "b")).await, lost);
}

pub async fn a_move_happens_once_within_one_call(store: &dyn Store) {
    let taken = push_and_take(store, job("a")).await;
    let changes = vec![move_to(&taken, "b"), move_to(&taken, "b")];
    let answers = apply_all(store, changes, &Rules::default()).await;
    let repeated: Vec<bool> = answers.into_iter().map(|answer| answer.unwrap().repeated).collect();
    assert_eq!(repeated, [false, true]);
    assert_eq!(see(store, &taken.meta.id).await.meta.trail.len(), 1);
}

pub async fn a_move_leaves_the_key_behind(store: &dyn Store) {
    let taken = push_and_take(store, job("a").key("k", 1)).await;
    apply(store, move_to(&taken, "b")).await.unwrap();
    assert_eq!(see(store, &taken.meta.id).await.meta.key, None);
    // It stays taken where it was pushed, until the job's end in whatever queue …
    until_past(store, taken.meta.started_at.unwrap().plus_ms(5)).await;
    let again = push(store, vec![job("a").key("k", 1)]).await.remove(0);
    assert!(matches!(again, Pushed::Duplicate { id, .. } if id == taken.meta.id));
    // … and was never taken in the other queue.
    assert_eq!(push(store, vec![job("b").key("k", 1)]).await, [Pushed::Created]);
    for job in claim(store, ask("b", 2)).await {
        apply(store, commit(&job)).await.unwrap();
    }
    assert_eq!(push(store, vec![job("a").key("k", 1)]).await, [Pushed::Created]);
}

pub async fn a_full_queue_refuses_a_move(store: &dyn Store) {
    let rules = rules_of("b", |s| s.max_jobs = Some(1));
    push_one(store, job("b")).await;
    let taken = push_and_take(store, job("a")).await;
    assert_eq!(apply_under(store, move_to(&taken, "b"), &rules).await, Err(Refusal::Full));
    assert_eq!(see(store, &taken.meta.id).await, taken, "it is still held");
    let other = take(store, "b").await;
    apply_under(store, commit(&other), &rules).await.unwrap();
    assert!(!apply_under(store, move_to(&taken, "b"), &rules).await.unwrap().repeated);
}

pub async fn the_room_of_a_queue_holds_within_one_call(store: &dyn Store) {
    let rules = rules_of("b", |s| s.max_jobs = Some(2));
    push_all(store, vec![job("a"); 4]).await;
    let taken = claim(store, ask("a", 4)).await;
    let moves = taken.iter().map(|job| move_to(job, "b")).collect();
    let answers = apply_all(store, moves, &rules).await;
    assert!(answers[..2].iter().all(Result::is_ok));
    assert!(answers[2..].iter().all(|answer| *answer == Err(Refusal::Full)));
}

pub async fn a_move_within_a_full_queue_is_not_refused(store: &dyn Store) {
    let rules = rules_of("a", |s| s.max_jobs = Some(1));
    let taken = push_and_take(store, job("a")).await;
    assert!(apply_under(store, move_to(&taken, "a"), &rules).await.is_ok());
    assert_eq!(take(store, "a").await.meta.attempts, 1);
}

pub async fn a_move_ends_what_was_asked_to_stop(store: &dyn Store) {
    let rules = rules_of("b", |s| s.max_jobs = Some(1));
    push_one(store, job("b")).await;
    let taken = push_and_take(store, job("a")).await;
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    let moved = apply_under(store, move_to(&taken, "b"), &rules).await.unwrap();
    assert_eq!((moved.outcome, moved.repeated), (Outcome::Removed, false));
    let again = apply_under(store, move_to(&taken, "b"), &rules).await.unwrap();
    assert_eq!((again.outcome, again.repeated), (Outcome::Removed, true));
    assert_eq!(counts_of(store, "b").await.ready, 1);
}

/// A move that gives the job this key.
fn move_keyed(
    store: &dyn Store,
    taken: &Job,
    name: &str,
    text: &str,
    ttl_ms: u64,
    lasts: KeyUntil,
) -> Change {
    let Change { id, mut operation } = move_to(taken, name);
    if let Operation::Move { key, .. } = &mut operation {
        let until = store.now().unwrap().plus_ms(ttl_ms);
        *key = Some(KeyHold { lasts, ..KeyHold::new(text.parse().unwrap(), until) });
    }
    change(&id, operation)
}

pub async fn a_move_gives_a_key(store: &dyn Store) {
    let taken = push_and_take(store, job("a").payload("1").key("old", 1)).await;
    let moved = move_keyed(store, &taken, "b", "k", 60_000, KeyUntil::Finished);
    let first = apply(store, moved.clone()).await.unwrap();
    let seen = see(store, &taken.meta.id).await;
    assert_eq!((&seen.meta.queue, seen.meta.key), (&queue("b"), Some("k".parse().unwrap())));
    let filter = Filter { key: Some("k".parse().unwrap()), ..Filter::all(queue("b")) };
    assert_eq!(store.find(&filter, None, 9).await.unwrap().len(), 1);
    // Another push with the key meets it, by the payload that it has there.
    let again = push(store, vec![job("b").payload("1").key("k", 60_000)]).await.remove(0);
    assert!(
        matches!(again, Pushed::Duplicate { id, run_at, .. } if id == taken.meta.id && run_at == seen.meta.run_at)
    );
    let other = push(store, vec![job("b").payload("2").key("k", 60_000)]).await;
    assert_eq!(other, [Pushed::KeyConflict { id: taken.meta.id.clone() }]);
    // The one that it had stays behind until the job's end, as after any move.
    until_past(store, taken.meta.started_at.unwrap().plus_ms(5)).await;
    let behind = push(store, vec![job("a").payload("1").key("old", 1)]).await.remove(0);
    assert!(matches!(behind, Pushed::Duplicate { id, .. } if id == taken.meta.id));
    // The repeat says what the first call was told, and takes nothing.
    let repeat = apply(store, moved).await.unwrap();
    assert_eq!((repeat.outcome, repeat.repeated), (first.outcome, true));
    // A cancel frees it.
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    assert_eq!(push(store, vec![job("b").payload("2").key("k", 60_000)]).await, [Pushed::Created]);
}

pub async fn a_move_to_a_taken_key_moves_nothing(store: &dyn Store) {
    let holder = push_one(store, job("b").payload("1").key("k", 60_000).delay(60_000)).await;
    // Also where the payloads are equal: there are two jobs, and they cannot become one.
    let taken = push_and_take(store, job("a").payload("1").key("old", 60_000).group("g")).await;
    let moving = || move_keyed(store, &taken, "b", "k", 60_000, KeyUntil::Finished);
    let denied = store.apply(vec![moving()], &Rules::default()).await.remove(0);
    assert!(matches!(&denied, Err(Denied::KeyTaken(id)) if *id == holder), "{denied:?}");
    assert_eq!(see(store, &taken.meta.id).await, taken, "it is still held");
    assert_eq!(counts_of(store, "b").await.scheduled, 1);
    // In one call the others are not affected, and the key is free once its holder is gone.
    apply(store, cancel(&holder, false)).await.unwrap();
    let second = push_and_take(store, job("a").payload("1")).await;
    let both = vec![
        moving(),
        move_keyed(store, &second, "b", "k", 60_000, KeyUntil::Finished),
        extend(&second, None),
    ];
    let told = store.apply(both, &Rules::default()).await;
    assert!(told[0].is_ok() && told[2].is_ok(), "{told:?}");
    assert!(matches!(&told[1], Err(Denied::KeyTaken(id)) if *id == taken.meta.id), "{told:?}");
}

pub async fn a_moved_job_holds_its_key_as_it_says(store: &dyn Store) {
    let taken = push_and_take(store, job("a").payload("1")).await;
    apply(store, move_keyed(store, &taken, "b", "k", 0, KeyUntil::Reserved)).await.unwrap();
    let again = push(store, vec![job("b").payload("1").key("k", 1)]).await.remove(0);
    assert!(matches!(again, Pushed::Duplicate { .. }), "{again:?}");
    let replacing =
        job("b").payload("2").key("k", 1).conflict(KeyConflict::Replace).lasts(KeyUntil::Reserved);
    let replaced = push(store, vec![replacing.clone()]).await.remove(0);
    assert!(matches!(replaced, Pushed::Replaced { id, .. } if id == taken.meta.id));
    let taken = take(store, "b").await;
    assert_eq!(taken.payload, content("2"));
    assert_eq!(push(store, vec![replacing.clone()]).await, [Pushed::Created]);
    // A new payload that comes with the move is what others are compared with.
    let Change { id, mut operation } = move_keyed(store, &taken, "c", "k", 0, KeyUntil::Finished);
    if let Operation::Move { payload, .. } = &mut operation {
        *payload = Some(binary(&[0], "a/b"));
    }
    apply(store, change(&id, operation)).await.unwrap();
    let same = push(store, vec![job("c").carrying(binary(&[0], "a/b")).key("k", 1)]).await.remove(0);
    assert!(matches!(same, Pushed::Duplicate { .. }), "{same:?}");
    // What was asked to stop takes none.
    let stopped = push_and_take(store, job("a")).await;
    apply(store, cancel(&stopped.meta.id, false)).await.unwrap();
    let ended = apply(store, move_keyed(store, &stopped, "d", "k", 60_000, KeyUntil::Ttl)).await.unwrap();
    assert_eq!(ended.outcome, Outcome::Removed);
    assert_eq!(push(store, vec![job("d").key("k", 1)]).await, [Pushed::Created]);
}

pub async fn a_move_may_give_its_own_key_again(store: &dyn Store) {
    let taken = push_and_take(store, job("a").payload("1").key("k", 60_000)).await;
    let within = move_keyed(store, &taken, "a", "k", 60_000, KeyUntil::Finished);
    apply(store, within).await.unwrap();
    assert_eq!(see(store, &taken.meta.id).await.meta.key, Some("k".parse().unwrap()));
    // Away without it, the key that it left behind is its own still.
    let taken = take(store, "a").await;
    apply(store, move_to(&taken, "b")).await.unwrap();
    let taken = take(store, "b").await;
    apply(store, move_keyed(store, &taken, "a", "k", 60_000, KeyUntil::Finished)).await.unwrap();
    let again = push(store, vec![job("a").payload("1").key("k", 1)]).await.remove(0);
    assert!(matches!(again, Pushed::Duplicate { id, .. } if id == taken.meta.id));
}
