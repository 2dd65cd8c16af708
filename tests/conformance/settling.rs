//! Commit, rollback, extend and release; and the tokens that fence them.

use futures::future::join_all;
use tailback::job::transition::{Operation, Outcome, Refusal};
use tailback::job::{Claim, Job, Rules, State, When};
use tailback::store::{Change, Store};

use super::support::*;

const LOST: Refusal = Refusal::Lost { gone: false };
const GONE: Refusal = Refusal::Lost { gone: true };

pub async fn a_commit_takes_the_job_away(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let applied = apply(store, commit(&taken)).await.unwrap();
    assert_eq!(applied.outcome, Outcome::Done);
    assert_eq!((applied.queue, applied.repeated), (queue("q"), false));
    assert_eq!(applied.started_at, taken.meta.started_at);
    assert_eq!(look(store, &taken.meta.id).await, None);
}

pub async fn a_commit_becomes_history_where_it_is_kept(store: &dyn Store) {
    let taken = push_and_take(store, job("q").expires(600_000)).await;
    let result = Some(payload(r#"{"sum":1.50}"#));
    let operation = Operation::Commit { claim: held_by(&taken), result, push: Vec::new() };
    let rules = rules_of("q", with_history);
    apply_under(store, change(&taken.meta.id, operation), &rules).await.unwrap();
    let done = see(store, &taken.meta.id).await;
    assert_eq!(done.meta.state, State::Done);
    assert_eq!(done.result, Some(payload(r#"{"sum":1.50}"#)));
    assert_eq!(done.payload, taken.payload);
    let finished_at = done.meta.finished_at.unwrap();
    assert_eq!(done.meta.purge_at, Some(finished_at.plus_ms(3_600_000)));
    assert_eq!((done.meta.reserved_until, done.meta.expires_at), (None, None));
    assert_eq!(done.meta.started_at, taken.meta.started_at);
}

pub async fn history_tells_the_repeat_of_a_commit(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let rules = rules_of("q", with_history);
    assert!(!apply_under(store, commit(&taken), &rules).await.unwrap().repeated);
    let done = see(store, &taken.meta.id).await;
    let again = apply_under(store, commit(&taken), &rules).await.unwrap();
    assert_eq!((again.outcome, again.repeated), (Outcome::Done, true));
    assert_eq!(see(store, &taken.meta.id).await, done);
}

pub async fn without_history_the_repeat_of_a_commit_is_lost(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    apply(store, commit(&taken)).await.unwrap();
    assert_eq!(apply(store, commit(&taken)).await, Err(GONE));
}

pub async fn a_job_in_history_cannot_be_settled_otherwise(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let rules = rules_of("q", with_history);
    apply_under(store, commit(&taken), &rules).await.unwrap();
    for other in settles(&taken, held_by(&taken)).into_iter().skip(1) {
        assert_eq!(apply_under(store, other.clone(), &rules).await, Err(LOST), "{other:?}");
    }
    let stranger = settles(&taken, Claim::random()).remove(0);
    assert_eq!(apply_under(store, stranger, &rules).await, Err(LOST));
}

/// Every operation that needs a claim, the commit first.
fn settles(taken: &Job, claim: Claim) -> Vec<Change> {
    let mut taken = taken.clone();
    taken.meta.claim = Some(claim.clone());
    let reserved_until = taken.meta.reserved_until.unwrap();
    vec![
        commit(&taken),
        rollback(&taken, None),
        extend(&taken, Some(1000)),
        move_to(&taken, "other"),
        release(&taken),
        change(&taken.meta.id, Operation::Lapse { claim, reserved_until }),
    ]
}

pub async fn a_stale_claim_changes_nothing(store: &dyn Store) {
    let first = push_and_take(store, job("q")).await;
    apply(store, rollback(&first, Some(0))).await.unwrap();
    let returned = see(store, &first.meta.id).await;
    for stale in settles(&first, held_by(&first)) {
        assert_eq!(apply(store, stale.clone()).await, Err(LOST), "{stale:?}");
    }
    assert_eq!(see(store, &first.meta.id).await, returned);
    let second = take(store, "q").await;
    for stale in settles(&first, held_by(&first)) {
        assert_eq!(apply(store, stale.clone()).await, Err(LOST), "{stale:?}");
    }
    assert_eq!(see(store, &first.meta.id).await, second);
}

pub async fn a_claim_settles_its_own_jobs_only(store: &dyn Store) {
    push_all(store, vec![job("q"); 2]).await;
    let (one, two) = (take(store, "q").await, take(store, "q").await);
    let crossed = settles(&one, held_by(&two));
    for change in crossed {
        assert_eq!(apply(store, change).await, Err(LOST));
    }
    assert_eq!(see(store, &one.meta.id).await, one);
}

pub async fn unknown_jobs_are_told_by_what_was_asked(store: &dyn Store) {
    let mut ghost = push_and_take(store, job("q")).await;
    ghost.meta.id = id("nobody");
    for change in settles(&ghost, held_by(&ghost)) {
        assert_eq!(apply(store, change).await, Err(GONE));
    }
    for change in [cancel(&ghost.meta.id, true), redrive(&ghost.meta.id, "q")] {
        assert_eq!(apply(store, change).await, Err(Refusal::Unknown));
    }
}

pub async fn a_late_settle_succeeds_until_the_job_was_taken_back(store: &dyn Store) {
    push_one(store, job("q")).await;
    let taken = take_for(store, "q", 1).await;
    until_past(store, taken.meta.reserved_until.unwrap()).await;
    assert_eq!(outcome(store, commit(&taken), &Rules::default()).await, Outcome::Done);
}

pub async fn a_release_is_not_counted(store: &dyn Store) {
    let taken = push_and_take(store, job("q").priority(4)).await;
    let run_at = taken.meta.run_at;
    let released = outcome(store, release(&taken), &Rules::default()).await;
    assert_eq!(released, Outcome::Returned { queue: queue("q"), run_at, blocked: false });
    let again = take(store, "q").await;
    assert_eq!((again.meta.attempts, again.meta.errors.len()), (1, 0));
    assert_eq!(apply(store, release(&taken)).await, Err(LOST));
}

pub async fn an_extend_moves_the_deadline(store: &dyn Store) {
    push_one(store, job("q")).await;
    let taken = take_for(store, "q", 2000).await;
    let far = outcome(store, extend(&taken, Some(500_000)), &Rules::default()).await;
    let Outcome::Held { reserved_until, cancel_requested: false } = far else {
        panic!("{far:?}");
    };
    assert!(reserved_until.ms_since(taken.meta.reserved_until.unwrap()) > 400_000);
    assert_eq!(see(store, &taken.meta.id).await.meta.reserved_until, Some(reserved_until));
    // Without a length: as long as it was first asked for.
    let near = outcome(store, extend(&taken, None), &Rules::default()).await;
    let Outcome::Held { reserved_until, .. } = near else {
        panic!("{near:?}");
    };
    assert!(reserved_until.ms_since(store.now().unwrap()) <= 2100);
}

pub async fn progress_reaches_the_next_attempt(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let operation = Operation::Extend {
        claim: held_by(&taken),
        lease_ms: None,
        progress: Some(payload(r#"{"$done":1.0}"#)),
    };
    apply(store, change(&taken.meta.id, operation)).await.unwrap();
    apply(store, extend(&taken, None)).await.unwrap();
    apply(store, rollback(&taken, Some(0))).await.unwrap();
    assert_eq!(take(store, "q").await.meta.progress, Some(payload(r#"{"$done":1.0}"#)));
}

pub async fn one_id_twice_in_a_call_is_applied_in_order(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let changes = vec![extend(&taken, None), commit(&taken), commit(&taken), extend(&taken, None)];
    let answers = apply_all(store, changes, &Rules::default()).await;
    assert!(matches!(answers[0].as_ref().unwrap().outcome, Outcome::Held { .. }));
    assert_eq!(answers[1].as_ref().unwrap().outcome, Outcome::Done);
    assert_eq!((&answers[2], &answers[3]), (&Err(GONE), &Err(GONE)));
}

pub async fn every_change_has_its_answer_at_its_place(store: &dyn Store) {
    push_all(store, vec![job("q"); 4]).await;
    let taken = claim(store, ask("q", 4)).await;
    let ghost = id("nobody");
    let changes = vec![
        cancel(&ghost, false),
        commit(&taken[2]),
        release(&taken[0]),
        settles(&taken[1], Claim::random()).remove(0),
        cancel(&taken[3].meta.id, false),
        rollback(&taken[1], Some(60_000)),
    ];
    let answers = apply_all(store, changes, &Rules::default()).await;
    assert_eq!(answers[0], Err(Refusal::Unknown));
    assert_eq!(answers[1].as_ref().unwrap().outcome, Outcome::Done);
    assert!(matches!(answers[2].as_ref().unwrap().outcome, Outcome::Returned { .. }));
    assert_eq!(answers[3], Err(LOST));
    let asked = &answers[4].as_ref().unwrap().outcome;
    assert!(matches!(asked, Outcome::Held { cancel_requested: true, .. }), "{asked:?}");
    assert!(matches!(answers[5].as_ref().unwrap().outcome, Outcome::Returned { .. }));
    assert_eq!(see(store, &taken[1].meta.id).await.meta.errors.len(), 1);
}

pub async fn an_empty_call_answers_nothing(store: &dyn Store) {
    assert!(store.push(Vec::new(), &Rules::default()).await.is_empty());
    assert!(store.apply(Vec::new(), &Rules::default()).await.is_empty());
    assert!(store.claim(&[], &Rules::default()).await.won.is_empty());
    assert!(store.get(&[]).await.unwrap().is_empty());
}

pub async fn settles_at_once_happen_once(store: &dyn Store) {
    push_all(store, vec![job("q"); 20]).await;
    for taken in claim(store, ask("q", 20)).await {
        let rivals = [commit(&taken), rollback(&taken, Some(0)), release(&taken), move_to(&taken, "z")];
        let answers = join_all(rivals.map(|change| apply(store, change))).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
    }
}

/// A round may carry more than a database takes in one command.
pub async fn a_round_of_large_changes_is_carried_out(store: &dyn Store) {
    const JOBS: usize = 24;
    push_all(store, vec![job("q"); JOBS]).await;
    let taken = claim(store, ask("q", JOBS)).await;
    let large = payload(&format!("\"{}\"", "x".repeat(1 << 20)));
    let report = |job: &Job| {
        let claim = held_by(job);
        change(&job.meta.id, Operation::Extend { claim, lease_ms: None, progress: Some(large.clone()) })
    };
    let answers = apply_all(store, taken.iter().map(report).collect(), &Rules::default()).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), JOBS);
    let hand_on = |job: &Job| {
        let (claim, payload) = (held_by(job), Some(large.clone().into()));
        let operation = Operation::Move {
            claim,
            queue: queue("next"),
            payload,
            when: When::Now,
            priority: None,
            headers: None,
            key: None,
        };
        change(&job.meta.id, operation)
    };
    let answers = apply_all(store, taken.iter().map(hand_on).collect(), &Rules::default()).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), JOBS);
    assert_eq!(see(store, &taken[JOBS - 1].meta.id).await.payload, large);
}

/// Of changes that travel together each is answered for itself, also where others of them find another job than
/// they expect, and where the job goes on to somebody else at once.
pub async fn a_change_among_stale_ones_is_known_to_have_happened(store: &dyn Store) {
    push_all(store, vec![job("q"); 10]).await;
    let taken = claim(store, ask("q", 10)).await;
    // What the store may remember of every second one is out of date from here on.
    for job in taken.iter().step_by(2) {
        apply(store, cancel(&job.meta.id, false)).await.unwrap();
    }
    let all = taken.iter().map(|job| rollback(job, Some(0))).collect();
    let answers = apply_all(store, all, &Rules::default()).await;
    for (n, answer) in answers.into_iter().enumerate() {
        let outcome = answer.unwrap().outcome;
        match n % 2 {
            0 => assert_eq!(outcome, Outcome::Removed),
            _ => assert!(matches!(outcome, Outcome::Returned { .. }), "{outcome:?}"),
        }
    }
    assert_eq!(claim(store, ask("q", 10)).await.len(), 5);
}
