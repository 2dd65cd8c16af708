//! Requests that carry an `Idempotency-Key`.

use tailback::job::state::{State, Verb};
use tailback::job::transition::{Operation, Refusal};
use tailback::job::{Claim, Ended, Job, JobId, Mark, Reach, Rules, Timestamp, Tokens};
use tailback::store::{ClaimAsk, Denied, Opened, Request, Store, TakeAsk};

use super::semaphores::{call, make};
use super::support::*;

fn request(store: &dyn Store, id: &str, pending_ms: u64) -> Request {
    Request {
        id: id.to_owned(),
        digest: [7; 32],
        claim: Claim::random(),
        runner: "a".to_owned(),
        alive_until: store.now().unwrap().plus_ms(pending_ms),
        pending_until: store.now().unwrap().plus_ms(pending_ms),
        keep_until: later(store),
    }
}

fn later(store: &dyn Store) -> Timestamp {
    store.now().unwrap().plus_ms(600_000)
}

pub async fn a_request_is_new_once(store: &dyn Store) {
    let first = request(store, "r", 600_000);
    assert_eq!(store.open_request(&first).await.unwrap(), Opened::New);
    let second = request(store, "r", 600_000);
    assert_eq!(store.open_request(&second).await.unwrap(), Opened::Pending);
    let other = request(store, "s", 600_000);
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::New);
}

pub async fn a_finished_request_answers_what_it_won(store: &dyn Store) {
    let first = request(store, "r", 600_000);
    store.open_request(&first).await.unwrap();
    let won = vec![id("b"), id("a")];
    assert!(store.close_request(&first, &won, later(store)).await.unwrap());
    let finished = Opened::Finished { claim: first.claim, ids: won };
    for _ in 0..2 {
        let again = request(store, "r", 600_000);
        assert_eq!(store.open_request(&again).await.unwrap(), finished);
    }
}

pub async fn a_request_that_won_nothing_is_forgotten(store: &dyn Store) {
    let first = request(store, "r", 600_000);
    store.open_request(&first).await.unwrap();
    store.forget_request(&first).await.unwrap();
    let again = request(store, "r", 600_000);
    assert_eq!(store.open_request(&again).await.unwrap(), Opened::New);
}

pub async fn a_request_is_forgotten_after_its_time(store: &dyn Store) {
    let first = request(store, "r", 600_000);
    store.open_request(&first).await.unwrap();
    let end = store.now().unwrap().plus_ms(30);
    assert!(store.close_request(&first, &[id("a")], end).await.unwrap());
    until_past(store, end).await;
    let again = request(store, "r", 600_000);
    assert_eq!(store.open_request(&again).await.unwrap(), Opened::New);
}

pub async fn a_request_whose_runner_died_is_taken_over(store: &dyn Store) {
    let first = request(store, "r", 20);
    store.open_request(&first).await.unwrap();
    until_past(store, first.pending_until).await;
    let second = request(store, "r", 600_000);
    let previous = first.claim.clone();
    assert_eq!(store.open_request(&second).await.unwrap(), Opened::TakenOver { previous });
    let third = request(store, "r", 600_000);
    assert_eq!(store.open_request(&third).await.unwrap(), Opened::Pending);
    // The first one is back, and the request is not its own any more.
    assert!(!store.close_request(&first, &[id("b")], later(store)).await.unwrap());
    store.forget_request(&first).await.unwrap();
    assert_eq!(store.open_request(&third).await.unwrap(), Opened::Pending);
    let ids = vec![id("a")];
    for _ in 0..2 {
        assert!(store.close_request(&second, &ids, later(store)).await.unwrap());
    }
    store.forget_request(&second).await.unwrap();
    assert_eq!(store.open_request(&third).await.unwrap(), Opened::Finished { claim: second.claim, ids });
}

pub async fn a_key_stands_for_one_request(store: &dyn Store) {
    let first = request(store, "r", 600_000);
    store.open_request(&first).await.unwrap();
    let other = Request { digest: [8; 32], ..request(store, "r", 600_000) };
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::Different);
    assert!(store.close_request(&first, &[id("a")], later(store)).await.unwrap());
    assert_eq!(store.open_request(&other).await.unwrap(), Opened::Different);
}

pub async fn of_two_runners_at_once_one_runs(store: &dyn Store) {
    let requests: Vec<_> = (0..8).map(|_| request(store, "r", 600_000)).collect();
    let opened = futures::future::join_all(requests.iter().map(|r| store.open_request(r))).await;
    let new = opened.into_iter().filter(|opened| *opened.as_ref().unwrap() == Opened::New);
    assert_eq!(new.count(), 1);
}

pub async fn a_job_that_is_taken_over_has_one_token(store: &dyn Store) {
    let old = push_and_take(store, job("q")).await;
    let to = Claim::random();
    let operation = Operation::TakeOver { claim: held_by(&old), to: to.clone(), lease_ms: 900_000 };
    apply(store, change(&old.meta.id, operation.clone())).await.unwrap();
    let new = see(store, &old.meta.id).await;
    assert_eq!((&new.meta.claim, new.meta.attempts), (&Some(to.clone()), 1));
    assert!(new.meta.reserved_until > old.meta.reserved_until);
    assert!(store.held(&[queue("q")], &held_by(&old)).await.unwrap().is_empty());
    assert_eq!(store.held(&[queue("q")], &to).await.unwrap(), std::slice::from_ref(&new));
    for dead in [release(&old), commit(&old), extend(&old, None), change(&old.meta.id, operation)] {
        assert_eq!(apply(store, dead).await, Err(Refusal::Lost { gone: false }));
    }
    apply(store, commit(&new)).await.unwrap();
}

pub async fn a_request_runs_as_long_as_its_server_is_alive(store: &dyn Store) {
    let now = store.now().unwrap();
    let first = Request { alive_until: now, ..request(store, "r", 600_000) };
    assert_eq!(store.open_request(&first).await.unwrap(), Opened::New);
    store.keep_alive("a", later(store)).await.unwrap();
    store.keep_alive("b", now).await.unwrap();
    assert_eq!(store.open_request(&request(store, "r", 600_000)).await.unwrap(), Opened::Pending);
}

/// What a settle of one delivery takes, by two calls: the mark finds both, and nothing of another one.
pub async fn a_mark_finds_what_was_taken_with_a_settle(store: &dyn Store) {
    let tokens = Tokens::new(&[1; 32]);
    let mark = |name: &str| tokens.mark(&Claim::random(), &id(name), Verb::Commit);
    let (one, two, none) = (mark("a"), mark("b"), mark("c"));
    let taken = async |name: &str, claim: Claim| {
        push_one(store, job(name)).await;
        super::support::claim(store, ClaimAsk { claim, ..ask(name, 1) }).await.remove(0)
    };
    let first = taken("q", one.claim(Ended::Done)).await;
    let second = taken("r", one.claim(Ended::Done)).await;
    let other = taken("q", two.claim(Ended::Removed)).await;
    taken("q", Claim::random()).await;
    let marked = async |marks: &[&Mark]| {
        let marks: Vec<Mark> = marks.iter().map(|mark| (*mark).clone()).collect();
        let mut jobs = store.marked(&marks).await.unwrap();
        jobs.sort_by(|a, b| a.meta.id.cmp(&b.meta.id));
        jobs
    };
    let sorted = |mut jobs: Vec<Job>| {
        jobs.sort_by(|a, b| a.meta.id.cmp(&b.meta.id));
        jobs
    };
    assert_eq!(marked(&[]).await, []);
    assert_eq!(marked(&[&none]).await, []);
    assert_eq!(marked(&[&one]).await, sorted(vec![first.clone(), second.clone()]));
    assert_eq!(
        marked(&[&none, &two, &one]).await,
        sorted(vec![first.clone(), second.clone(), other.clone()])
    );
    assert_eq!(two.ended(&held_by(&other)), Some(Ended::Removed));
    apply(store, commit(&first)).await.unwrap();
    apply(store, release(&second)).await.unwrap();
    assert_eq!(marked(&[&one]).await, [], "only what is still held");
}

/// A server that gives back what it took for a client that left, and another that hands it out to a repeat: one of the two.
pub async fn what_was_handed_out_again_is_not_given_back(store: &dyn Store) {
    const LONG_MS: u64 = 900_000;
    let give_back =
        |job: &Job| change(&job.meta.id, Operation::Release { claim: held_by(job), unless_seen: true });
    let hand_out = |job: &Job, lease_ms: u64| {
        let claim = held_by(job);
        change(&job.meta.id, Operation::TakeOver { claim: claim.clone(), to: claim, lease_ms })
    };
    // The same lease, a longer, a shorter one, and the end of the longest run. None of it is over before the case is.
    for (lease_ms, max_run_ms) in
        [(LONG_MS, None), (2 * LONG_MS, None), (100, None), (2 * LONG_MS, Some(600_000))]
    {
        push_one(store, job("q").with(|spec| spec.max_run_ms = max_run_ms)).await;
        let held = take_for(store, "q", LONG_MS).await;
        apply(store, hand_out(&held, lease_ms)).await.unwrap();
        let again = see(store, &held.meta.id).await;
        assert_eq!((&again.meta.claim, again.meta.attempts), (&held.meta.claim, 1));
        assert_eq!(apply(store, give_back(&held)).await, Err(Refusal::Lost { gone: false }), "{lease_ms}");
        apply(store, commit(&held)).await.unwrap();
    }
    let held = push_and_take(store, job("q")).await;
    apply(store, give_back(&held)).await.unwrap();
    assert_eq!(see(store, &held.meta.id).await.meta.attempts, 0);
    assert_eq!(apply(store, hand_out(&held, 1000)).await, Err(Refusal::Lost { gone: false }));
    let held = take(store, "q").await;
    apply(store, extend(&held, Some(40_000))).await.unwrap();
    assert_eq!(apply(store, give_back(&held)).await, Err(Refusal::Lost { gone: false }));
}

/// A settle and what is next, in one step: only where all of it took effect.
pub async fn what_is_next_is_taken_with_a_settle(store: &dyn Store) {
    let tokens = Tokens::new(&[1; 32]);
    let ids = push_all(store, vec![job("q"), job("q"), job("q"), job("q"), job("other")]).await;
    let rules = Rules::default();
    let take_with = |held: &[&Job], queue: Option<&str>, count: usize| TakeAsk {
        changes: 0..held.len(),
        marks: held.iter().map(|job| Some(tokens.mark(&held_by(job), &job.meta.id, Verb::Commit))).collect(),
        queue: queue.map(super::support::queue),
        within: Reach::default(),
        count,
        lease_ms: Some(50_000),
        worker: None,
    };
    let first = take(store, "q").await;
    let asks = [take_with(&[&first], None, 2)];
    let taken = store.apply_and_take(vec![commit(&first)], &asks, &rules).await;
    assert!(taken.applied[0].is_ok());
    let won = taken.claims.won[0].clone().unwrap();
    assert_eq!(won.iter().map(|job| job.meta.id.clone()).collect::<Vec<_>>(), ids[1..3]);
    let mark = asks[0].marks[0].clone().unwrap();
    for job in &won {
        assert_eq!(mark.ended(&held_by(job)), Some(Ended::Done));
        assert_eq!((job.meta.lease_ms, job.meta.attempts), (Some(50_000), 1));
        assert_eq!(see(store, &job.meta.id).await, *job);
    }
    assert_eq!(state_of(store, &first.meta.id).await, None);
    // A repeat takes nothing, and neither does a call of which a part was refused.
    let taken = store.apply_and_take(vec![commit(&first)], &asks, &rules).await;
    assert!(matches!(taken.applied[0], Err(Denied::Refused(Refusal::Lost { gone: true }))));
    assert_eq!(taken.claims.won[0].as_ref().unwrap(), &[]);
    let asks = [take_with(&[&first, &won[0]], Some("other"), 1)];
    let taken = store.apply_and_take(vec![commit(&first), commit(&won[0])], &asks, &rules).await;
    assert!(taken.applied[0].is_err() && taken.applied[1].is_ok());
    assert_eq!(taken.claims.won[0].as_ref().unwrap(), &[]);
    // Each ask stands for itself, and what is taken is nobody else's.
    let second = take(store, "q").await;
    let asks = [
        TakeAsk { changes: 0..1, ..take_with(&[&won[1]], Some("other"), 5) },
        TakeAsk { changes: 1..2, ..take_with(&[&second], Some("other"), 5) },
    ];
    let taken = store.apply_and_take(vec![commit(&won[1]), commit(&second)], &asks, &rules).await;
    assert!(taken.applied.iter().all(Result::is_ok));
    let counts: Vec<usize> = taken.claims.won.iter().map(|won| won.as_ref().unwrap().len()).collect();
    assert_eq!(counts, [1, 0]);
    assert_eq!(taken.claims.won[0].as_ref().unwrap()[0].meta.id, ids[4]);
    // Nothing is taken where the caller does not reach.
    push_all(store, vec![job("q"), job("q")]).await;
    let third = take(store, "q").await;
    let asks = [TakeAsk { within: Reach::one(&queue("other")), ..take_with(&[&third], None, 1) }];
    let taken = store.apply_and_take(vec![commit(&third)], &asks, &rules).await;
    assert!(taken.applied[0].is_ok());
    assert_eq!(taken.claims.won[0].as_ref().unwrap(), &[]);
}

/// Commits a job of another queue, which must take effect, and takes what is next in `q`. Returns the ids of that.
async fn commit_and_take(store: &dyn Store, rules: &Rules) -> Vec<JobId> {
    let held = push_and_take(store, job("other")).await;
    let ask = TakeAsk {
        changes: 0..1,
        marks: vec![Some(Tokens::new(&[1; 32]).mark(&held_by(&held), &held.meta.id, Verb::Commit))],
        queue: Some(queue("q")),
        within: Reach::default(),
        count: 5,
        lease_ms: Some(50_000),
        worker: None,
    };
    let taken = store.apply_and_take(vec![commit(&held)], &[ask], rules).await;
    assert!(taken.applied[0].as_ref().is_ok_and(|applied| !applied.repeated));
    assert_eq!(state_of(store, &held.meta.id).await, None, "the settle stands");
    assert!(taken.unknown.is_empty());
    ids(taken.claims.won[0].as_ref().unwrap())
}

/// What could not be taken with one settle is taken with a later one.
pub async fn a_settle_stands_where_nothing_is_next(store: &dyn Store) {
    assert!(commit_and_take(store, &usual()).await.is_empty(), "the queue is empty");
    let waits = push_one(store, job("q")).await;
    let paused = rules_of("q", |settings| settings.paused = Some(true));
    assert!(commit_and_take(store, &paused).await.is_empty(), "the queue is paused");
    assert_eq!(state_of(store, &waits).await, Some(State::Ready));
    assert_eq!(commit_and_take(store, &usual()).await, [waits], "it is resumed");
    make(store, &[("s", 1)]).await;
    let holder = push_and_take(store, job("r").needs(&["s"])).await;
    let waits = push_one(store, job("q").needs(&["s"])).await;
    assert!(commit_and_take(store, &usual()).await.is_empty(), "the semaphore is full");
    let meta = see(store, &waits).await.meta;
    assert_eq!((meta.state, meta.attempts), (State::Blocked, 0));
    apply(store, commit(&holder)).await.unwrap();
    assert_eq!(call(store, &["s"]).await, ["q"]);
    assert_eq!(commit_and_take(store, &usual()).await, [waits], "the semaphore is released");
}
