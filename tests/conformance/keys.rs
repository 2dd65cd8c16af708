//! The producers' own names for jobs.

use futures::future::join_all;
use tailback::job::record::{KeyConflict, KeyUntil};
use tailback::job::transition::{Edit, Operation, Outcome};
use tailback::job::{Job, JobId, Reach, Rules, Stage, Visible};
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
    let first = push_one(store, job("q").payload(r#"{"a":[1,2]}"#).delay(500_000).key("k", LONG_MS)).await;
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

/// Takes a job of queue `q` that expires, before it does: as soon as the machine has time for that.
async fn held_before_expiry(store: &dyn Store, draft: &Draft, lease_ms: u64) -> Job {
    let mut in_ms = 500;
    until("a job is held that expires", async || {
        in_ms *= 2;
        let id = push_one(store, draft.clone().expires(in_ms)).await;
        let held = claim(store, ask_for("q", 1, lease_ms)).await.pop();
        if held.is_none() {
            apply(store, cancel(&id, true)).await.unwrap();
        }
        held
    })
    .await
}

/// Nothing was done: a push that repeats it is meant as one, and is not answered that it is done.
pub async fn an_expired_job_frees_its_key(store: &dyn Store) {
    let rules = Rules::default();
    let draft = || job("q").payload("1").key("k", LONG_MS);
    let expires = async |id: &JobId| {
        until_past(store, see(store, id).await.meta.expires_at.unwrap()).await;
    };
    // One that waits.
    let first = push_one(store, draft().expires(20)).await;
    expires(&first).await;
    assert_eq!(reap(store, &rules).await.len(), 1);
    assert_eq!(who_has(store, "2", LONG_MS).await.0, Pushed::Created);
    apply(store, cancel(&take(store, "q").await.meta.id, true)).await.unwrap();
    // One that its worker gives back, and one whose lease runs out.
    for is_lapse in [false, true] {
        let held = held_before_expiry(store, &draft(), if is_lapse { 30 } else { LONG_MS }).await;
        expires(&held.meta.id).await;
        if is_lapse {
            until_past(store, held.meta.reserved_until.unwrap()).await;
            assert_eq!(reap(store, &rules).await.len(), 1);
        } else {
            assert_eq!(apply(store, rollback(&held, None)).await.unwrap().outcome, Outcome::Removed);
        }
        assert_eq!(who_has(store, "2", LONG_MS).await.0, Pushed::Created, "{is_lapse}");
        apply(store, cancel(&take(store, "q").await.meta.id, true)).await.unwrap();
    }
}

pub async fn a_purge_frees_keys_but_those_of_done_jobs(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let purge = |id: &JobId, state: Visible| Change {
        id: id.clone(),
        operation: Operation::Purge { within: Reach::default(), states: vec![state] },
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
    let edit = edit_of(Edit { payload: Some(content("2")), ..Edit::default() });
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

pub async fn a_key_until_reserved_is_free_while_its_job_is(store: &dyn Store) {
    let draft = |text: &str| job("q").payload(text).key("k", LONG_MS).lasts(KeyUntil::Reserved);
    let first = push_one(store, draft("1").delay(-5)).await;
    let again = push(store, vec![draft("1")]).await;
    assert!(matches!(&again[..], [Pushed::Duplicate { id, .. }] if *id == first), "{again:?}");
    let taken = take(store, "q").await;
    assert_eq!(taken.meta.id, first);
    // What is given back has it again, as if it had never gone.
    apply(
        store,
        Change {
            id: first.clone(),
            operation: Operation::Release { claim: taken.meta.claim.clone().unwrap(), unless_seen: false },
        },
    )
    .await
    .unwrap();
    assert_eq!(push(store, vec![draft("2")]).await, [Pushed::KeyConflict { id: first.clone() }]);
    let taken = take(store, "q").await;
    let second = push_one(store, draft("1")).await;
    assert_ne!(second, first);
    // The first one comes back, and waits beside the second, which has the key now.
    apply(store, rollback(&taken, Some(0))).await.unwrap();
    let again = push(store, vec![draft("1")]).await;
    assert!(matches!(&again[..], [Pushed::Duplicate { id, .. }] if *id == second), "{again:?}");
    apply(store, cancel(&first, false)).await.unwrap();
    let again = push(store, vec![draft("1")]).await;
    assert!(
        matches!(&again[..], [Pushed::Duplicate { id, .. }] if *id == second),
        "not its key any more: {again:?}"
    );
    apply(store, cancel(&second, false)).await.unwrap();
    assert_eq!(push(store, vec![draft("1")]).await, [Pushed::Created]);
}

/// Dead and in its dead-letter queue, in its next stage or elsewhere, it waits for something else than its key is about.
pub async fn a_key_until_reserved_is_free_once_its_job_has_left(store: &dyn Store) {
    let rules = rules_of("q", |settings| settings.dead_letter = Some(queue("graves")));
    let draft = |text: &str| job("q").payload(text).key("k", LONG_MS).lasts(KeyUntil::Reserved);
    let leaves = |what: usize| match what {
        0 => draft("0").max_attempts(1),
        1 => draft("1").then(vec![Stage::new(queue("next"))]),
        _ => draft("2"),
    };
    for what in 0..3 {
        let taken = push_and_take(store, leaves(what)).await;
        let change = match what {
            0 => rollback(&taken, None),
            1 => commit(&taken),
            _ => move_to(&taken, "elsewhere"),
        };
        apply_under(store, change, &rules).await.unwrap();
        let seen = see(store, &taken.meta.id).await.meta;
        assert!(seen.queue != queue("q") && seen.visible(store.now().unwrap()) == Visible::Ready, "{seen:?}");
        assert_eq!(push(store, vec![draft("9")]).await, [Pushed::Created], "{what}");
        apply(store, commit(&take(store, "q").await)).await.unwrap();
    }
}

pub async fn what_is_replaced_expires_as_its_push_says(store: &dyn Store) {
    let draft = || job("q").key("k", LONG_MS).conflict(KeyConflict::Replace).delay(50_000);
    let first = push_one(store, draft().expires(100_000)).await;
    for (again, expires_in_ms) in [(draft().expires(200_000), Some(200_000)), (draft(), None)] {
        let new = again.build(store);
        let expires_at = expires_in_ms.map(|ms| new.created_at.plus_ms(ms));
        let pushed = store.push(vec![new], &Rules::default()).await.remove(0).unwrap();
        assert!(matches!(&pushed, Pushed::Replaced { id, .. } if *id == first), "{pushed:?}");
        assert_eq!(see(store, &first).await.meta.expires_at, expires_at);
    }
    // With a commit, and within one call.
    let taken = push_and_take(store, job("from")).await;
    let replacing = draft().expires(300_000).build(store);
    let expires_at = Some(replacing.created_at.plus_ms(300_000));
    let claim = taken.meta.claim.clone().unwrap();
    let operation = Operation::Commit { claim, result: None, push: vec![replacing] };
    apply(store, Change { id: taken.meta.id.clone(), operation }).await.unwrap();
    assert_eq!(see(store, &first).await.meta.expires_at, expires_at);
    let other = |ms| job("q").key("l", LONG_MS).conflict(KeyConflict::Replace).delay(50_000).expires(ms);
    let (one, two) = (other(100_000).build(store), other(200_000).build(store));
    let (id, expires_at) = (one.id.clone(), Some(two.created_at.plus_ms(200_000)));
    store.push(vec![one, two], &Rules::default()).await.into_iter().for_each(|pushed| drop(pushed.unwrap()));
    assert_eq!(see(store, &id).await.meta.expires_at, expires_at);
}

pub async fn a_key_for_a_time_is_free_after_it(store: &dyn Store) {
    let draft = |text: &str, ms| job("q").payload(text).key("k", ms).lasts(KeyUntil::Ttl);
    let first = push_one(store, draft("1", LONG_MS)).await;
    let taken = take(store, "q").await;
    apply(store, commit(&taken)).await.unwrap();
    let again = push(store, vec![draft("1", 1)]).await;
    assert!(matches!(&again[..], [Pushed::Duplicate { id, .. }] if *id == first), "{again:?}");
    let short = job("q").payload("1").key("l", 1).lasts(KeyUntil::Ttl);
    let waiting = push_one(store, short.clone()).await;
    until_past(store, see(store, &waiting).await.meta.created_at.plus_ms(2)).await;
    assert_eq!(push(store, vec![short]).await, [Pushed::Created], "although the first one waits still");
}

pub async fn a_push_may_refuse_to_share_a_key(store: &dyn Store) {
    let draft = || job("q").payload("1").key("k", LONG_MS).conflict(KeyConflict::Refuse);
    let first = push_one(store, draft()).await;
    assert_eq!(push(store, vec![draft()]).await, [Pushed::KeyConflict { id: first.clone() }]);
    apply(store, cancel(&first, false)).await.unwrap();
    assert_eq!(push(store, vec![draft()]).await, [Pushed::Created]);
}

pub async fn a_push_replaces_what_the_job_with_its_key_does(store: &dyn Store) {
    let draft = |text: &str, delay_ms| {
        job("q").payload(text).key("k", LONG_MS).conflict(KeyConflict::Replace).delay(delay_ms)
    };
    let first = push_one(store, draft("1", 50_000).priority(3).needs(&[])).await;
    let new = draft("2", 90_000).build(store);
    let run_at = new.run_at;
    let pushed = store.push(vec![new], &Rules::default()).await.remove(0).unwrap();
    assert_eq!(pushed, Pushed::Replaced { id: first.clone(), state: Visible::Scheduled, run_at });
    let seen = see(store, &first).await;
    assert_eq!((text_of(&seen), seen.meta.run_at, seen.meta.priority), ("2", run_at, 3));
    let usual = job("q").payload("2").key("k", LONG_MS);
    let again = push(store, vec![usual.clone(), usual.payload("1")]).await;
    assert!(matches!(&again[..], [Pushed::Duplicate { .. }, Pushed::KeyConflict { .. }]), "{again:?}");
    // Several of one call: the last one counts.
    let pushed = push(store, vec![draft("3", 0), draft("4", -10)]).await;
    assert!(
        pushed.iter().all(|pushed| matches!(pushed, Pushed::Replaced { id, .. } if *id == first)),
        "{pushed:?}"
    );
    assert_eq!(counts_of(store, "q").await.ready, 1);
    let taken = take(store, "q").await;
    assert_eq!((&taken.meta.id, text_of(&taken)), (&first, "4"));
    // It does not wait any more: nothing is to be replaced.
    assert_eq!(push(store, vec![draft("5", 0)]).await, [Pushed::KeyConflict { id: first.clone() }]);
    assert!(matches!(push(store, vec![draft("4", 0)]).await[..], [Pushed::Duplicate { .. }]));
    apply(store, commit(&taken)).await.unwrap();

    let other =
        |text: &str| job("q").payload(text).key("l", LONG_MS).group("g").conflict(KeyConflict::Replace);
    let pushed = push(store, vec![job("q").group("g"), other("1"), other("2")]).await;
    assert!(matches!(&pushed[..], [Pushed::Created, Pushed::Blocked, Pushed::Replaced { .. }]), "{pushed:?}");
    let first = take(store, "q").await;
    apply(store, commit(&first)).await.unwrap();
    assert_eq!(text_of(&take(store, "q").await), "2");
}

pub async fn a_commit_replaces_what_another_job_does(store: &dyn Store) {
    let first = push_one(store, job("to").payload("1").key("k", LONG_MS).delay(50_000)).await;
    let taken = push_and_take(store, job("from")).await;
    let replacing = |text: &str| job("to").payload(text).key("k", LONG_MS).conflict(KeyConflict::Replace);
    let push = vec![replacing("2").build(store), replacing("3").build(store)];
    let claim = taken.meta.claim.clone().unwrap();
    let operation = Operation::Commit { claim, result: None, push };
    let applied = apply(store, Change { id: taken.meta.id.clone(), operation }).await.unwrap();
    assert!(
        applied.pushed.iter().all(|child| child.id == first && child.deduplicated && child.replaced),
        "{applied:?}"
    );
    let seen = take(store, "to").await;
    assert_eq!((&seen.meta.id, text_of(&seen)), (&first, "3"));
}

pub async fn bytes_are_equal_by_their_type_as_well(store: &dyn Store) {
    let draft = |bytes: &[u8], kind| job("q").carrying(binary(bytes, kind)).key("k", LONG_MS);
    let first = push_one(store, draft(&[0, 1], "a/b")).await;
    let again = push(store, vec![draft(&[0, 1], "a/b")]).await.remove(0);
    assert!(matches!(again, Pushed::Duplicate { id, .. } if id == first));
    let conflict = Pushed::KeyConflict { id: first.clone() };
    let json = job("q").payload("\"AAE=\"").key("k", LONG_MS);
    for other in [draft(&[0, 1], "a/c"), draft(&[0], "a/b"), draft(&[], "a/b"), json.clone()] {
        assert_eq!(push(store, vec![other]).await, std::slice::from_ref(&conflict));
    }
    // Debounced: bytes by JSON, and JSON by bytes.
    for by in [json, draft(&[7], "a/b")] {
        let carried = by.clone().build(store).spec.payload;
        let replaced = push(store, vec![by.conflict(KeyConflict::Replace)]).await.remove(0);
        assert!(matches!(replaced, Pushed::Replaced { .. }), "{replaced:?}");
        assert_eq!(see(store, &first).await.payload, carried);
    }
}
