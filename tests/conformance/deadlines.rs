//! Reservations that run out, jobs that expire, and what is due next.

use tailback::job::transition::{Operation, Outcome, Refusal};
use tailback::job::{JobId, Rules, State, Visible};
use tailback::store::{LOOK_AHEAD_MS, Store};

use super::support::*;

pub async fn a_lapsed_reservation_comes_back(store: &dyn Store) {
    push_one(store, job("q").delay(-60_000)).await;
    let taken = take_for(store, "q", 30).await;
    // The estimate by which it comes back may lag behind the clock by which it is overdue.
    until_past(store, taken.meta.reserved_until.unwrap()).await;
    let lapsed = reap(store, &Rules::default()).await.remove(0).unwrap();
    let Outcome::Returned { run_at, .. } = lapsed.outcome else {
        panic!("{lapsed:?}");
    };
    assert!(run_at >= taken.meta.reserved_until.unwrap(), "due at the moment of the lapse");
    let again = take(store, "q").await;
    assert_eq!((again.meta.attempts, again.meta.errors.len()), (2, 1));
    assert_eq!(apply(store, commit(&taken)).await, Err(Refusal::Lost { gone: false }));
    assert_eq!(apply(store, commit(&again)).await.unwrap().outcome, Outcome::Done);
}

pub async fn lapses_use_attempts_up(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_attempts = Some(2));
    let id = push_one(store, job("q")).await;
    for _ in 0..2 {
        take_for(store, "q", 20).await;
        reap(store, &rules).await;
    }
    assert_eq!(state_of(store, &id).await, Some(State::Dead));
}

pub async fn an_extend_in_time_keeps_the_job(store: &dyn Store) {
    push_one(store, job("q")).await;
    let taken = take_for(store, "q", 100).await;
    apply(store, extend(&taken, Some(600_000))).await.unwrap();
    until_past(store, taken.meta.reserved_until.unwrap()).await;
    assert!(store.overdue(10).await.unwrap().changes.is_empty());
    assert_eq!(state_of(store, &taken.meta.id).await, Some(State::Reserved));
}

pub async fn a_lapse_yields_to_an_extend(store: &dyn Store) {
    push_one(store, job("q")).await;
    let taken = take_for(store, "q", 20).await;
    let lapse = overdue(store).await.remove(0);
    apply(store, extend(&taken, Some(600_000))).await.unwrap();
    assert_eq!(apply(store, lapse).await, Err(Refusal::Lost { gone: false }));
    assert_eq!(apply(store, commit(&taken)).await.unwrap().outcome, Outcome::Done);
}

pub async fn a_lapse_yields_to_a_commit(store: &dyn Store) {
    push_one(store, job("q")).await;
    let taken = take_for(store, "q", 20).await;
    let lapse = overdue(store).await.remove(0);
    apply(store, commit(&taken)).await.unwrap();
    assert_eq!(apply(store, lapse).await, Err(Refusal::Lost { gone: true }));
}

pub async fn two_reapers_let_a_job_lapse_once(store: &dyn Store) {
    let id = push_one(store, job("q")).await;
    take_for(store, "q", 20).await;
    let lapse = overdue(store).await.remove(0);
    apply(store, lapse.clone()).await.unwrap();
    assert_eq!(apply(store, lapse).await, Err(Refusal::Lost { gone: false }));
    assert_eq!(see(store, &id).await.meta.errors.len(), 1);
}

pub async fn nothing_is_overdue_before_its_time(store: &dyn Store) {
    assert_eq!(store.overdue(10).await.unwrap().next_in_ms, None);
    push_one(store, job("q")).await;
    take_for(store, "q", 600_000).await;
    let due = store.overdue(10).await.unwrap();
    assert!(due.changes.is_empty());
    // So far ahead a store need not look.
    assert!(due.next_in_ms.is_none_or(|ms| (300_000..=600_000).contains(&ms)), "{due:?}");
    // On a busy machine the deadline may pass before the store looks, or while it does: then there is another one.
    until("a deadline is foreseen", async || {
        push_one(store, job("q")).await;
        let taken = take_for(store, "q", LOOK_AHEAD_MS - 100).await;
        let due = store.overdue(10).await.unwrap();
        apply(store, commit(&taken)).await.unwrap();
        due.next_in_ms.filter(|ms| *ms < LOOK_AHEAD_MS)
    })
    .await;
}

pub async fn the_longest_overdue_come_first(store: &dyn Store) {
    push_all(store, vec![job("q"); 3]).await;
    let (a, b, c) =
        (take_for(store, "q", 60).await, take_for(store, "q", 10).await, take_for(store, "q", 30).await);
    for job in [&a, &b, &c] {
        until_past(store, job.meta.reserved_until.unwrap()).await;
    }
    let order = until("all are overdue", async || {
        let changes = store.overdue(10).await.unwrap().changes;
        (changes.len() == 3).then_some(changes)
    })
    .await;
    let order: Vec<_> = order.into_iter().map(|change| change.id).collect();
    // On a busy machine the short lease may have been taken long after the long one.
    let mut expected = [&a, &b, &c];
    expected.sort_by_key(|job| job.meta.reserved_until);
    assert_eq!(order, expected.map(|job| job.meta.id.clone()));
    let first = store.overdue(1).await.unwrap().changes;
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].id, order[0]);
}

pub async fn lapses_and_expiries_are_one_line(store: &dyn Store) {
    let soon = push_one(store, job("q").delay(600_000).expires(10)).await;
    let late = push_one(store, job("q").delay(600_000).expires(90)).await;
    let held = push_one(store, job("q")).await;
    let taken = take_for(store, "q", 40).await;
    let last = see(store, &late).await.meta.expires_at.unwrap();
    for moment in [last, taken.meta.reserved_until.unwrap()] {
        until_past(store, moment).await;
    }
    let order = until("all are overdue", async || {
        let changes = store.overdue(10).await.unwrap().changes;
        (changes.len() == 3).then_some(changes)
    })
    .await;
    let mut expected = vec![soon.clone(), held, late];
    if taken.meta.reserved_until.unwrap() > last {
        expected.swap(1, 2); // the machine was slow
    }
    let order: Vec<_> = order.into_iter().map(|change| change.id).collect();
    assert_eq!(order, expected);
    assert_eq!(store.overdue(1).await.unwrap().changes[0].id, soon);
}

pub async fn an_expired_job_is_removed(store: &dyn Store) {
    let id = push_one(store, job("q").delay(600_000).expires(20)).await;
    let change = overdue(store).await.remove(0);
    assert!(matches!(change.operation, Operation::Expire { .. }), "{change:?}");
    let removed = apply(store, change).await.unwrap();
    assert_eq!(removed.outcome, Outcome::Removed);
    assert_eq!(look(store, &id).await, None);
}

pub async fn a_reserved_job_does_not_expire(store: &dyn Store) {
    // They are taken before, as soon as the machine has time; the reaper must not see them while they are held.
    let mut in_ms = 250;
    let held = until("jobs are held that expire", async || {
        in_ms *= 2;
        let pushed = push_all(store, vec![job("q").expires(in_ms); 2]).await;
        let held = claim(store, ask_for("q", 2, 600_000)).await;
        if held.len() == 2 {
            return Some(held);
        }
        for id in &pushed {
            apply(store, cancel(id, true)).await.unwrap();
        }
        None
    })
    .await;
    let expires_at = held[1].meta.expires_at.unwrap();
    until_past(store, expires_at).await;
    assert!(store.overdue(10).await.unwrap().changes.is_empty());
    let expire = change(&held[0].meta.id, Operation::Expire { expires_at: held[0].meta.expires_at.unwrap() });
    assert_eq!(apply(store, expire).await, Err(Refusal::Conflict { state: Visible::Reserved }));
    assert_eq!(apply(store, commit(&held[0])).await.unwrap().outcome, Outcome::Done);
    let rolled_back = apply(store, rollback(&held[1], Some(0))).await.unwrap();
    assert_eq!(rolled_back.outcome, Outcome::Removed);
    assert_eq!(look(store, &held[1].meta.id).await, None);
}

/// A job of queue `q` that died before its expiry, as soon as the machine has time for that.
async fn dead_before_expiry(store: &dyn Store, rules: &Rules) -> JobId {
    let mut in_ms = 100;
    until("a job has died that expires", async || {
        in_ms *= 2;
        let id = push_one(store, job("q").max_attempts(1).expires(in_ms)).await;
        let taken = claim(store, ask("q", 1)).await;
        match taken.first() {
            Some(taken) => {
                let died = outcome(store, rollback(taken, None), rules).await;
                matches!(died, Outcome::Dead { .. }).then_some(id)
            }
            None => {
                apply(store, cancel(&id, true)).await.unwrap();
                None
            }
        }
    })
    .await
}

pub async fn a_dead_letter_expires(store: &dyn Store) {
    let rules = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    let id = dead_before_expiry(store, &rules).await;
    let expires_at = see(store, &id).await.meta.expires_at.unwrap();
    until_past(store, expires_at).await;
    assert!(claim(store, ask("graves", 1)).await.is_empty());
    assert_eq!(apply(store, redrive(&id, "graves")).await, Err(Refusal::Conflict { state: Visible::Ready }));
    let expire = overdue(store).await.remove(0);
    assert_eq!(expire, change(&id, Operation::Expire { expires_at }));
    assert_eq!(apply(store, expire).await.unwrap().outcome, Outcome::Removed);
}

pub async fn a_dead_job_does_not_expire_and_has_no_other_chance(store: &dyn Store) {
    let id = dead_before_expiry(store, &Rules::default()).await;
    let expires_at = see(store, &id).await.meta.expires_at.unwrap();
    until_past(store, expires_at).await;
    assert!(store.overdue(10).await.unwrap().changes.is_empty());
    let refused = Err(Refusal::Conflict { state: Visible::Dead });
    assert_eq!(apply(store, redrive(&id, "q")).await, refused);
    assert_eq!(apply(store, change(&id, Operation::Expire { expires_at })).await, refused);
    assert_eq!(see(store, &id).await.meta.expires_at, Some(expires_at));
}

pub async fn what_is_redriven_expires_as_it_was_pushed(store: &dyn Store) {
    let letters = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    for (rules, dead) in [(Rules::default(), "q"), (letters, "graves")] {
        let taken = push_and_take(store, job("q").max_attempts(1).expires(3_600_000)).await;
        let (id, expires_at) = (&taken.meta.id, taken.meta.expires_at);
        outcome(store, rollback(&taken, None), &rules).await;
        assert_eq!(see(store, id).await.meta.expires_at, expires_at);
        outcome(store, redrive(id, dead), &rules).await;
        let again = take(store, "q").await;
        assert_eq!((&again.meta.id, again.meta.expires_at), (id, expires_at));
    }
}

pub async fn an_expiry_is_guarded_by_its_moment(store: &dyn Store) {
    let id = push_one(store, job("q").expires(600_000)).await;
    let stale = change(&id, Operation::Expire { expires_at: store.now().unwrap() });
    assert_eq!(apply(store, stale).await, Err(Refusal::Conflict { state: Visible::Ready }));
    assert!(look(store, &id).await.is_some());
}

pub async fn a_lapse_ends_what_was_asked_to_stop(store: &dyn Store) {
    let id = push_one(store, job("q")).await;
    take_for(store, "q", 30).await;
    apply(store, cancel(&id, false)).await.unwrap();
    let lapsed = reap(store, &Rules::default()).await.remove(0).unwrap();
    assert_eq!(lapsed.outcome, Outcome::Removed);
    assert_eq!(look(store, &id).await, None);
}

pub async fn the_next_due_moments_come_in_order(store: &dyn Store) {
    let delays = [("c", 300_000), ("a", 100_000), ("b", 200_000), ("d", 400_000)];
    push_all(store, delays.map(|(name, ms)| job(name).delay(ms)).to_vec()).await;
    push_all(store, vec![job("a"), job("x").delay(-1000)]).await;
    let all = store.upcoming(10).await.unwrap();
    let names: Vec<_> = all.iter().map(|(queue, _)| queue.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert!(all.windows(2).all(|pair| pair[0].1 < pair[1].1));
    assert!(all.iter().all(|(_, moment)| *moment > store.now().unwrap()));
    assert_eq!(store.upcoming(2).await.unwrap(), all[..2]);
}

pub async fn only_scheduled_jobs_are_upcoming(store: &dyn Store) {
    let id = push_one(store, job("q").delay(100_000)).await;
    assert_eq!(store.upcoming(10).await.unwrap().len(), 1);
    apply(store, cancel(&id, false)).await.unwrap();
    assert!(store.upcoming(10).await.unwrap().is_empty());
    let taken = push_and_take(store, job("q")).await;
    apply(store, rollback(&taken, Some(500_000))).await.unwrap();
    let run_at = see(store, &taken.meta.id).await.meta.run_at;
    assert_eq!(store.upcoming(10).await.unwrap(), [(queue("q"), run_at)]);
}
