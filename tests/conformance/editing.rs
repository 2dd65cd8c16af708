//! What people do to jobs: edit, cancel, purge.

use tailback::job::transition::{Edit, Operation, Outcome, Refusal};
use tailback::job::{JobId, Rules, State, Timestamp, Visible};
use tailback::store::{Change, Store};

use super::support::*;

fn edit(id: &JobId, priority: Option<i32>, run_at: Option<Timestamp>, text: Option<&str>) -> Change {
    change(id, edit_of(Edit { priority, run_at, payload: text.map(content), ..Edit::default() }))
}

/// One job in each state that can be had.
async fn one_of_each(store: &dyn Store) -> [(JobId, Visible); 5] {
    let rules = rules_of("q", with_history);
    let done = push_and_take(store, job("q")).await;
    apply_under(store, commit(&done), &rules).await.unwrap();
    let dead = push_and_take(store, job("q").max_attempts(1)).await;
    apply_under(store, rollback(&dead, None), &rules).await.unwrap();
    let reserved = push_and_take(store, job("q")).await;
    let ready = push_one(store, job("q")).await;
    let scheduled = push_one(store, job("q").delay(600_000)).await;
    [
        (done.meta.id, Visible::Done),
        (dead.meta.id, Visible::Dead),
        (reserved.meta.id, Visible::Reserved),
        (ready, Visible::Ready),
        (scheduled, Visible::Scheduled),
    ]
}

pub async fn an_edit_changes_what_it_names(store: &dyn Store) {
    let id = push_one(store, job("q").priority(1).header("h", "v")).await;
    let before = see(store, &id).await;
    apply(store, edit(&id, Some(-7), None, None)).await.unwrap();
    apply(store, edit(&id, None, None, Some("[1.0]"))).await.unwrap();
    let after = see(store, &id).await;
    assert_eq!((after.meta.priority, &after.payload), (-7, &content("[1.0]")));
    assert_eq!((after.meta.run_at, &after.headers), (before.meta.run_at, &before.headers));
}

pub async fn an_edit_reorders(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"), job("q"), job("q")]).await;
    apply(store, edit(&pushed[2], Some(1), None, None)).await.unwrap();
    let past = Timestamp::from_millis(store.now().unwrap().millis() - 60_000);
    apply(store, edit(&pushed[1], None, Some(past), None)).await.unwrap();
    let order = ids(&claim(store, ask("q", 3)).await);
    assert_eq!(order, [pushed[2].clone(), pushed[1].clone(), pushed[0].clone()]);
}

pub async fn an_edit_postpones_and_hurries(store: &dyn Store) {
    let id = push_one(store, job("q")).await;
    let later = store.now().unwrap().plus_ms(600_000);
    apply(store, edit(&id, None, Some(later), None)).await.unwrap();
    assert!(claim(store, ask("q", 1)).await.is_empty());
    assert_eq!(counts_of(store, "q").await.scheduled, 1);
    assert_eq!(store.upcoming(5).await.unwrap(), [(queue("q"), later)]);
    let now = store.now().unwrap();
    apply(store, edit(&id, None, Some(now), None)).await.unwrap();
    // The estimate by which the counts tell what is due may lag behind the clock.
    until("it is due", async || (counts_of(store, "q").await.scheduled == 0).then_some(())).await;
    assert_eq!(take(store, "q").await.meta.id, id);
}

pub async fn only_waiting_jobs_can_be_edited(store: &dyn Store) {
    for (id, state) in one_of_each(store).await {
        let edited = apply(store, edit(&id, Some(3), None, None)).await;
        match state {
            Visible::Ready | Visible::Scheduled => assert!(edited.is_ok(), "{state:?}"),
            _ => assert_eq!(edited, Err(Refusal::Conflict { state })),
        }
    }
}

pub async fn a_cancel_removes_what_nobody_holds(store: &dyn Store) {
    for (id, state) in one_of_each(store).await {
        let cancelled = outcome(store, cancel(&id, false), &Rules::default()).await;
        if state == Visible::Reserved {
            assert!(matches!(cancelled, Outcome::Held { cancel_requested: true, .. }));
        } else {
            assert_eq!((cancelled, look(store, &id).await), (Outcome::Removed, None), "{state:?}");
        }
    }
    assert_eq!(find(store, &tailback::store::Filter::all(queue("q")), None, 10).await.len(), 1);
}

pub async fn the_holder_learns_of_a_cancel(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    let held = outcome(store, extend(&taken, None), &Rules::default()).await;
    assert!(matches!(held, Outcome::Held { cancel_requested: true, .. }), "{held:?}");
    let rolled_back = outcome(store, rollback(&taken, Some(0)), &Rules::default()).await;
    assert_eq!(rolled_back, Outcome::Removed);
    assert_eq!(look(store, &taken.meta.id).await, None);
}

pub async fn a_cancelled_job_can_still_be_committed(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    let rules = rules_of("q", with_history);
    assert_eq!(outcome(store, commit(&taken), &rules).await, Outcome::Done);
    let done = see(store, &taken.meta.id).await.meta;
    assert_eq!((done.state, done.cancel_requested), (State::Done, false));
}

pub async fn force_removes_a_reserved_job(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let cancelled = outcome(store, cancel(&taken.meta.id, true), &Rules::default()).await;
    assert_eq!(cancelled, Outcome::Removed);
    assert_eq!(apply(store, commit(&taken)).await, Err(Refusal::Lost { gone: true }));
}

pub async fn a_purge_takes_one_state_only(store: &dyn Store) {
    let jobs = one_of_each(store).await;
    for (id, actual) in &jobs {
        for state in [Visible::Ready, Visible::Scheduled, Visible::Done, Visible::Dead] {
            let refused = apply(
                store,
                change(id, Operation::Purge { within: tailback::job::Reach::default(), states: vec![state] }),
            )
            .await;
            if state != *actual {
                assert_eq!(refused, Err(Refusal::Conflict { state: *actual }), "{state:?}");
                continue;
            }
            assert_eq!(refused.unwrap().outcome, Outcome::Removed);
            break;
        }
    }
    let left = find(store, &tailback::store::Filter::all(queue("q")), None, 10).await;
    assert_eq!(ids(&left), [jobs[2].0.clone()], "the reserved one");
}

pub async fn a_job_that_has_left_its_queue_is_unknown(store: &dyn Store) {
    let edit = Edit { priority: Some(7), ..Edit::default() };
    let operations = |name: &str| {
        let within = || tailback::job::Reach::one(&queue(name));
        [
            Operation::Redrive { within: within(), home: tailback::job::Reach::default() },
            Operation::Edit { within: within(), edit: Box::new(edit.clone()) },
            Operation::Purge { within: within(), states: vec![Visible::Ready] },
            Operation::CancelUnheld { within: within() },
            Operation::Retry { within: within() },
            Operation::Cancel { within: within(), force: true },
        ]
    };
    let taken = push_and_take(store, job("q")).await;
    outcome(store, move_to(&taken, "elsewhere"), &Rules::default()).await;
    let before = see(store, &taken.meta.id).await;
    for operation in operations("q") {
        let refused = apply(store, change(&taken.meta.id, operation)).await;
        assert_eq!(refused, Err(Refusal::Unknown));
    }
    assert_eq!(see(store, &taken.meta.id).await, before);
    let [_, edit, purge, ..] = operations("elsewhere");
    apply(store, change(&taken.meta.id, edit)).await.unwrap();
    assert_eq!(outcome(store, change(&taken.meta.id, purge), &Rules::default()).await, Outcome::Removed);
}

fn everywhere() -> tailback::job::Reach {
    tailback::job::Reach::default()
}

pub async fn a_retry_makes_a_job_ready_where_it_is(store: &dyn Store) {
    let retry = |id: &JobId| change(id, Operation::Retry { within: everywhere() });
    for (id, state) in one_of_each(store).await {
        let before = see(store, &id).await;
        let retried = apply(store, retry(&id)).await;
        if !matches!(state, Visible::Ready | Visible::Scheduled | Visible::Dead) {
            assert_eq!(retried, Err(Refusal::Conflict { state }), "{state:?}");
            continue;
        }
        assert!(matches!(retried.unwrap().outcome, Outcome::Returned { blocked: false, .. }));
        let now = see(store, &id).await.meta;
        assert_eq!((now.state, now.attempts, now.finished_at), (State::Ready, 0, None), "{state:?}");
        assert!(now.run_at <= store.now().unwrap());
        assert_eq!((&now.queue, now.errors.len()), (&before.meta.queue, before.meta.errors.len()));
        if state == Visible::Ready {
            assert_eq!(now.run_at, before.meta.run_at, "it keeps its place");
        }
    }
    // What has expired is not tried again.
    let id = push_one(store, job("late").delay(600_000).expires(1)).await;
    let expires_at = see(store, &id).await.meta.expires_at.unwrap();
    until_past(store, expires_at).await;
    assert_eq!(apply(store, retry(&id)).await, Err(Refusal::Conflict { state: Visible::Scheduled }));
    assert_eq!(apply(store, retry(&self::id("nobody"))).await, Err(Refusal::Unknown));
}

pub async fn a_retry_keeps_the_line_of_a_group(store: &dyn Store) {
    let taken = push_and_take(store, job("q").group("g").max_attempts(1)).await;
    let next = push(store, vec![job("q").group("g")]).await;
    assert_eq!(next, [tailback::store::Pushed::Blocked]);
    apply(store, rollback(&taken, Some(0))).await.unwrap();
    assert!(claim(store, ask("q", 9)).await.is_empty(), "the dead one holds its group");
    apply(store, change(&taken.meta.id, Operation::Retry { within: everywhere() })).await.unwrap();
    let again = claim(store, ask("q", 9)).await;
    assert_eq!(ids(&again), [taken.meta.id]);
    apply(store, commit(&again[0])).await.unwrap();
    assert_eq!(claim(store, ask("q", 9)).await.len(), 1);
}

pub async fn what_nobody_holds_is_cancelled_and_nothing_else(store: &dyn Store) {
    for (id, state) in one_of_each(store).await {
        let cancelled = apply(store, change(&id, Operation::CancelUnheld { within: everywhere() })).await;
        match state {
            Visible::Reserved => {
                assert_eq!(cancelled, Err(Refusal::Conflict { state }));
                assert!(!see(store, &id).await.meta.cancel_requested);
            }
            _ => assert_eq!(cancelled.unwrap().outcome, Outcome::Removed, "{state:?}"),
        }
    }
}
