//! What a producer says of the deliveries of a job: their lease, how long they last, and how many there are.

use tailback::job::transition::{Edit, Operation, Outcome, Refusal};
use tailback::job::{GroupName, Job, JobId, Rules, State};
use tailback::store::{ClaimAsk, Pushed, Report, Store};

use super::support::*;

/// Longer than any of these cases takes.
const LONG_MS: u64 = 600_000;

fn lease_ms(job: &Job) -> u64 {
    job.meta.reserved_until.unwrap().ms_since(job.meta.started_at.unwrap())
}

pub async fn a_job_has_a_lease_of_its_own(store: &dyn Store) {
    let drafts = vec![job("q").lease(50_000), job("q"), job("q").lease(90_000)];
    push_all(store, drafts).await;
    let yielding = || ClaimAsk { yields: true, ..ask("q", 3) };
    let taken = claim(store, yielding()).await;
    assert_eq!(taken.iter().map(lease_ms).collect::<Vec<_>>(), [50_000, 30_000, 90_000]);
    for held in &taken {
        let seen = see(store, &held.meta.id).await;
        assert_eq!(
            (seen.meta.reserved_until, seen.meta.lease_ms),
            (held.meta.reserved_until, Some(lease_ms(held)))
        );
        let Outcome::Held { reserved_until, .. } =
            outcome(store, extend(held, None), &Rules::default()).await
        else {
            panic!("it is not held");
        };
        let seen = see(store, &held.meta.id).await.meta;
        assert_eq!(seen.reserved_until, Some(reserved_until));
        assert!(reserved_until >= held.meta.reserved_until.unwrap());
        apply(store, rollback(held, Some(0))).await.unwrap();
    }
    // What the request says comes first, and what the job says stays for the next one, wherever the job is then.
    let asked = claim(store, ask("q", 3)).await;
    assert_eq!(asked.iter().map(lease_ms).collect::<Vec<_>>(), [30_000; 3]);
    apply(store, move_to(&asked[2], "r")).await.unwrap();
    let moved = claim(store, ClaimAsk { yields: true, ..ask("r", 1) }).await;
    assert_eq!(lease_ms(&moved[0]), 90_000);
}

pub async fn a_delivery_lasts_no_longer_than_its_job_says(store: &dyn Store) {
    push_all(store, vec![job("q").max_run(300_000), job("q").max_run(1000), job("q")]).await;
    let ask = ClaimAsk { worker: Some("w".parse().unwrap()), ..ask_for("q", 3, 50_000) };
    let taken = claim(store, ask).await;
    assert_eq!(
        taken.iter().map(lease_ms).collect::<Vec<_>>(),
        [50_000, 1000, 50_000],
        "the first lease is cut"
    );
    let [long, short, free] = [&taken[0], &taken[1], &taken[2]];
    let until = |job: &Job, ms| job.meta.started_at.unwrap().plus_ms(ms);
    let held = |job: &Job, ms| Outcome::Held { reserved_until: until(job, ms), cancel_requested: false };
    assert_eq!(outcome(store, extend(long, Some(LONG_MS)), &Rules::default()).await, held(long, 300_000));
    let report = Report { version: None, slots: None, timeout_ms: LONG_MS };
    store.heartbeat(&"w".parse().unwrap(), &report).await.unwrap();
    assert_eq!(see(store, &long.meta.id).await.meta.reserved_until, Some(until(long, 300_000)));
    assert_eq!(see(store, &short.meta.id).await.meta.reserved_until, Some(until(short, 1000)));
    assert!(see(store, &free.meta.id).await.meta.reserved_until >= free.meta.reserved_until);

    until_past(store, until(short, 1000)).await;
    assert_eq!(apply(store, extend(short, Some(LONG_MS))).await, Err(Refusal::Lost { gone: false }));
    let lapse = Operation::Lapse { claim: held_by(short), reserved_until: until(short, 1000) };
    apply(store, change(&short.meta.id, lapse)).await.unwrap();
    let again = take(store, "q").await;
    assert_eq!((&again.meta.id, again.meta.attempts), (&short.meta.id, 2));
    assert_eq!(again.meta.errors[0].message, "max_run_ms was over");
    assert_eq!(lease_ms(&again), 1000, "each delivery has its own time");
    until_past(store, until(&again, 1000)).await;
    apply(store, commit(&again)).await.unwrap(); // the token decides, until the job was taken back
}

/// A repeat of a reserve takes the jobs over: that is no way round the end of the delivery either.
pub async fn a_take_over_ends_with_its_delivery(store: &dyn Store) {
    let taken = push_and_take(store, job("q").max_run(300_000)).await;
    let (claim, to) = (held_by(&taken), tailback::job::Claim::random());
    let over = Operation::TakeOver { claim, to, lease_ms: LONG_MS };
    apply(store, change(&taken.meta.id, over)).await.unwrap();
    let seen = see(store, &taken.meta.id).await.meta;
    assert_eq!(seen.reserved_until, Some(taken.meta.started_at.unwrap().plus_ms(300_000)));
}

pub async fn attempts_without_a_limit_never_end(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_attempts = Some(2));
    let id = push_one(store, job("q").max_attempts(0)).await;
    for attempt in 1..=12 {
        let taken = take(store, "q").await;
        assert_eq!(taken.meta.attempts, attempt);
        assert!(matches!(outcome(store, rollback(&taken, Some(0)), &rules).await, Outcome::Returned { .. }));
    }
    assert_eq!(see(store, &id).await.meta.errors.len(), 10);
    apply(store, cancel(&id, true)).await.unwrap();
    // The queue's own limit may be none; a job's comes before it.
    let rules = rules_of("q", |s| s.max_attempts = Some(0));
    push_one(store, job("q")).await;
    for _ in 0..7 {
        let taken = take(store, "q").await;
        assert!(matches!(outcome(store, rollback(&taken, Some(0)), &rules).await, Outcome::Returned { .. }));
    }
    let taken = push_and_take_other(store).await;
    assert_eq!(outcome(store, rollback(&taken, None), &rules).await, Outcome::Dead { moved_to: None });
}

async fn push_and_take_other(store: &dyn Store) -> Job {
    let left = take(store, "q").await;
    apply(store, commit(&left)).await.unwrap();
    push_and_take(store, job("q").max_attempts(1)).await
}

pub async fn headers_have_any_value(store: &dyn Store) {
    let draft = job("q")
        .header("plain", "x")
        .json_header("price", "1.10")
        .json_header("big", "123456789012345678901234567890")
        .json_header("flags", r#"{"b":[true,null,1e5],"a":{"$x":1}}"#)
        .json_header("none", "null")
        .json_header("text", r#""1.10""#);
    let pushed = draft.clone().build(store).spec.headers;
    let taken = push_and_take(store, draft).await;
    assert_eq!((&taken.headers, taken.headers.len()), (&pushed, 6));
    assert_eq!(taken.headers["price"].as_str(), "1.10");
    apply(store, rollback(&taken, Some(90_000))).await.unwrap();
    assert_eq!(see(store, &taken.meta.id).await.headers, pushed);
    for headers in
        [[("n".to_owned(), payload("2.50"))].into(), [("t".to_owned(), payload("\"y\""))].into(), pushed]
    {
        let edit = Edit { headers: Some(headers), ..Edit::default() };
        let (id, expected) = (taken.meta.id.clone(), edit.headers.clone().unwrap());
        apply(store, change(&id, edit_of(edit))).await.unwrap();
        assert_eq!(see(store, &id).await.headers, expected, "in place of all");
    }
    let none = Edit { headers: Some(Default::default()), ..Edit::default() };
    apply(store, change(&taken.meta.id, edit_of(none))).await.unwrap();
    assert!(see(store, &taken.meta.id).await.headers.is_empty());
}

pub async fn an_edit_changes_limits_and_lifetime(store: &dyn Store) {
    let id = push_one(store, job("q").max_attempts(5).expires(LONG_MS)).await;
    let edit = Edit { max_attempts: Some(Some(1)), expires_in_ms: Some(None), ..Edit::default() };
    apply(store, change(&id, edit_of(edit))).await.unwrap();
    let meta = see(store, &id).await.meta;
    assert_eq!((meta.max_attempts, meta.expires_at), (Some(1), None));
    let before = store.now().unwrap();
    let edit = Edit { max_attempts: Some(None), expires_in_ms: Some(Some(LONG_MS)), ..Edit::default() };
    apply(store, change(&id, edit_of(edit))).await.unwrap();
    let meta = see(store, &id).await.meta;
    assert!(meta.max_attempts.is_none() && meta.expires_at >= Some(before.plus_ms(LONG_MS)));
    // A deadline that comes sooner than all others is found.
    let edit = Edit { expires_in_ms: Some(Some(1)), ..Edit::default() };
    apply(store, change(&id, edit_of(edit))).await.unwrap();
    let expired = until("it is overdue", async || store.overdue(10).await.unwrap().changes.pop()).await;
    assert_eq!(expired.id, id);
    apply(store, expired).await.unwrap();
    assert_eq!(look(store, &id).await, None);
}

async fn regroup(store: &dyn Store, id: &JobId, to: Option<&str>) -> tailback::store::Applied {
    let group: Option<GroupName> = to.map(|name| name.parse().unwrap());
    let edit = Edit { group: Some(group), ..Edit::default() };
    apply(store, change(id, edit_of(edit))).await.unwrap()
}

pub async fn a_job_changes_its_line(store: &dyn Store) {
    let drafts = ["a", "a", "a", "b"].map(|group| job("q").group(group));
    let mut ids = Vec::new();
    for draft in drafts.into_iter().chain([job("q")]) {
        let new = draft.build(store);
        ids.push(new.id.clone());
        let pushed = store.push(vec![new], &Rules::default()).await.remove(0).unwrap();
        assert!(matches!(pushed, Pushed::Created | Pushed::Blocked));
    }
    let states = async || {
        let mut states = Vec::new();
        for id in &ids {
            states.push(see(store, id).await.meta.state);
        }
        states
    };
    use State::{Blocked, Ready};
    assert_eq!(states().await, [Ready, Blocked, Blocked, Ready, Ready]);
    // The first one leaves its line to another: the next has its turn there.
    let applied = regroup(store, &ids[0], Some("b")).await;
    assert!(matches!(applied.outcome, Outcome::Returned { blocked: true, .. }), "{applied:?}");
    assert_eq!(applied.unblocked.len(), 1);
    assert_eq!(states().await, [Blocked, Ready, Blocked, Ready, Ready]);
    // One from behind leaves for none, and one without a group joins one.
    assert!(matches!(regroup(store, &ids[2], None).await.outcome, Outcome::Returned { blocked: false, .. }));
    assert!(matches!(
        regroup(store, &ids[4], Some("a")).await.outcome,
        Outcome::Returned { blocked: true, .. }
    ));
    assert_eq!(states().await, [Blocked, Ready, Ready, Ready, Blocked]);
    // Its own group again is no change: it keeps its place.
    assert!(regroup(store, &ids[1], Some("a")).await.unblocked.is_empty());
    assert_eq!(states().await, [Blocked, Ready, Ready, Ready, Blocked]);
    assert_eq!(see(store, &ids[2]).await.meta.group, None);

    // Each line goes on in its order to its end.
    let first = claim(store, ask("q", 9)).await;
    assert_eq!(super::support::ids(&first), [ids[1].clone(), ids[2].clone(), ids[3].clone()]);
    for held in &first {
        apply(store, commit(held)).await.unwrap();
    }
    let rest = claim(store, ask("q", 9)).await;
    assert_eq!(super::support::ids(&rest), [ids[0].clone(), ids[4].clone()]);
    for held in &rest {
        apply(store, commit(held)).await.unwrap();
    }
    // The lines are empty: who comes next is the first.
    for group in ["a", "b"] {
        assert_eq!(push(store, vec![job("q").group(group)]).await, [Pushed::Created]);
    }
}

/// Many change their lines at once: each line has its jobs in some order, and none is forgotten.
pub async fn changes_of_lines_at_once_lose_nobody(store: &dyn Store) {
    let mut ids = Vec::new();
    for n in 0..12 {
        let new = job("q").group(["a", "b", "c"][n % 3]).build(store);
        ids.push(new.id.clone());
        store.push(vec![new], &Rules::default()).await.remove(0).unwrap();
    }
    for round in 1..4_usize {
        let moves =
            ids.iter().enumerate().map(|(n, id)| regroup(store, id, Some(["a", "b", "c"][(n + round) % 3])));
        futures::future::join_all(moves).await;
    }
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let taken = claim(store, ask("q", 9)).await;
        assert!(!taken.is_empty() && taken.len() <= 3, "one of each line: {}", taken.len());
        for held in taken {
            apply(store, commit(&held)).await.unwrap();
            seen.push(held.meta.id);
        }
    }
    seen.sort();
    ids.sort();
    assert_eq!(seen, ids);
}

pub async fn only_a_waiting_job_changes_its_line(store: &dyn Store) {
    let taken = push_and_take(store, job("q").group("g")).await;
    let new = job("q").group("g").build(store);
    let id = new.id.clone();
    store.push(vec![new], &Rules::default()).await.remove(0).unwrap();
    regroup(store, &id, Some("h")).await;
    let second = take(store, "q").await;
    assert_eq!(second.meta.id, id, "it waits for nobody there");
    let held = Edit { group: Some(None), ..Edit::default() };
    let refused = apply(store, change(&taken.meta.id, edit_of(held))).await;
    assert!(matches!(refused, Err(Refusal::Conflict { .. })), "{refused:?}");
}
