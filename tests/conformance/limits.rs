//! `max_jobs`: how many unfinished jobs a queue takes.

use futures::future::join_all;
use tailback::job::QueueSettings;
use tailback::store::{Pushed, Store};

use super::support::*;

pub async fn a_queue_takes_exactly_as_many_as_it_may(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_jobs = Some(3));
    let pushed =
        push_under(store, vec![job("q"), job("q"), job("r"), job("q"), job("q"), job("r")], &rules).await;
    let (yes, no) = (Pushed::Created, Pushed::Full);
    assert_eq!(pushed, [yes.clone(), yes.clone(), yes.clone(), yes.clone(), no.clone(), yes]);
    assert_eq!(push_under(store, vec![job("q")], &rules).await, [no]);
    assert_eq!(counts_of(store, "q").await.ready, 3);
}

pub async fn unfinished_jobs_count_whatever_they_wait_for(store: &dyn Store) {
    let rules = rules_of("q", |s| {
        s.max_jobs = Some(2);
        with_history(s);
    });
    let taken = push_and_take(store, job("q").max_attempts(1)).await;
    push_one(store, job("q").delay(600_000)).await;
    assert_eq!(push_under(store, vec![job("q")], &rules).await, [Pushed::Full]);
    apply_under(store, commit(&taken), &rules).await.unwrap();
    assert_eq!(push_under(store, vec![job("q").max_attempts(1)], &rules).await, [Pushed::Created]);
    let taken = take(store, "q").await;
    apply_under(store, rollback(&taken, None), &rules).await.unwrap();
    assert_eq!(counts_of(store, "q").await.dead, 1);
    assert_eq!(push_under(store, vec![job("q"), job("q")], &rules).await, [Pushed::Created, Pushed::Full]);
}

pub async fn a_duplicate_needs_no_room(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_jobs = Some(1));
    push_one(store, job("q").key("k", 60_000)).await;
    let again = push_under(store, vec![job("q").key("k", 60_000)], &rules).await;
    assert!(matches!(again[0], Pushed::Duplicate { .. }), "{again:?}");
    let refused = push_under(store, vec![job("q").key("l", 60_000)], &rules).await;
    assert_eq!(refused, [Pushed::Full]);
    // What was refused has not taken its key.
    let taken = take(store, "q").await;
    apply(store, commit(&taken)).await.unwrap();
    assert_eq!(
        push_under(store, vec![job("q").payload("9").key("l", 60_000)], &rules).await,
        [Pushed::Created]
    );
}

pub async fn pushes_at_once_never_pass_the_limit(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_jobs = Some(25));
    let pushes = (0..16).map(|_| push_under(store, vec![job("q"); 5], &rules));
    let answers = join_all(pushes).await.concat();
    let created = answers.iter().filter(|pushed| **pushed == Pushed::Created).count();
    assert_eq!(created, 25);
    assert_eq!(counts_of(store, "q").await.ready, 25);
}

pub async fn dead_letters_find_room_in_a_full_queue(store: &dyn Store) {
    let to_graves = QueueSettings { dead_letter: Some(queue("graves")), ..Default::default() };
    let full = QueueSettings { max_jobs: Some(1), ..Default::default() };
    let rules = rules([("q", to_graves), ("graves", full)]);
    push_one(store, job("graves")).await;
    let taken = push_and_take(store, job("q").max_attempts(1)).await;
    apply_under(store, rollback(&taken, None), &rules).await.unwrap();
    assert_eq!(counts_of(store, "graves").await.ready, 2);
}
