//! Rollbacks, backoff, used-up attempts, dead letters and second chances.

use tailback::job::backoff::BackoffKind;
use tailback::job::record::TrailReason;
use tailback::job::transition::{Back, Edit, Loss, Operation, Outcome, Refusal, RollbackKind};
use tailback::job::{Backoff, JobId, QueueSettings, Rules, State, Visible, When};
use tailback::store::{ClaimAsk, Store};

use super::support::*;

fn exactly(kind: BackoffKind, base_ms: u64) -> Backoff {
    Backoff { kind, base_ms, jitter: 0.0, ..Backoff::default() }
}

/// Rolls the next job of the queue back and answers after how many milliseconds it is due.
async fn waits_ms(store: &dyn Store, rules: &Rules, delay_ms: Option<u64>) -> u64 {
    let taken = take(store, "q").await;
    let Outcome::Returned { run_at, .. } = outcome(store, rollback(&taken, delay_ms), rules).await else {
        panic!("it did not come back");
    };
    let failed = see(store, &taken.meta.id).await;
    assert_eq!((failed.meta.state, failed.meta.run_at), (State::Ready, run_at));
    assert_eq!((&failed.meta.claim, failed.meta.reserved_until), (&None, None));
    run_at.ms_since(failed.meta.errors.last().unwrap().at)
}

/// Makes the job due again.
async fn hurry(store: &dyn Store, id: &JobId) {
    let edit = edit_of(Edit { run_at: Some(store.now().unwrap()), ..Edit::default() });
    apply(store, change(id, edit)).await.unwrap();
}

/// Lets a new job of queue `q` use up its attempts.
async fn dead(store: &dyn Store, rules: &Rules) -> JobId {
    let taken = push_and_take(store, job("q").max_attempts(1)).await;
    let died = outcome(store, rollback(&taken, None), rules).await;
    assert!(matches!(died, Outcome::Dead { .. }), "{died:?}");
    taken.meta.id
}

pub async fn a_rollback_waits_as_long_as_it_says(store: &dyn Store) {
    push_one(store, job("q")).await;
    assert_eq!(waits_ms(store, &Rules::default(), Some(77_000)).await, 77_000);
    assert!(claim(store, ask("q", 1)).await.is_empty());
}

pub async fn a_rollback_without_delay_comes_back_at_once(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    apply(store, rollback(&taken, Some(0))).await.unwrap();
    assert_eq!(take(store, "q").await.meta.id, taken.meta.id);
}

pub async fn the_backoff_of_the_queue_grows(store: &dyn Store) {
    let rules = rules_of("q", |s| s.backoff = Some(exactly(BackoffKind::Exponential, 60_000)));
    let id = push_one(store, job("q")).await;
    assert_eq!(waits_ms(store, &rules, None).await, 60_000);
    hurry(store, &id).await;
    assert_eq!(waits_ms(store, &rules, None).await, 120_000);
}

pub async fn the_backoff_of_the_job_comes_before_the_queues(store: &dyn Store) {
    let rules = rules_of("q", |s| s.backoff = Some(exactly(BackoffKind::Exponential, 60_000)));
    push_one(store, job("q").backoff(exactly(BackoffKind::Fixed, 5000))).await;
    assert_eq!(waits_ms(store, &rules, None).await, 5000);
}

pub async fn used_up_attempts_end_dead(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_attempts = Some(2));
    let id = push_one(store, job("q").expires(600_000)).await;
    waits_ms(store, &rules, Some(0)).await;
    let last = take(store, "q").await;
    let died = outcome(store, rollback(&last, Some(0)), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: None });
    let meta = see(store, &id).await.meta;
    assert_eq!((meta.state, meta.attempts, meta.errors.len()), (State::Dead, 2, 2));
    assert!(meta.finished_at.is_some() && meta.purge_at.is_none());
    assert_eq!(meta.expires_at, last.meta.expires_at, "for when it is redriven");
    assert!(claim(store, ask("q", 1)).await.is_empty());
}

pub async fn the_attempts_of_the_job_come_before_the_queues(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_attempts = Some(1));
    push_one(store, job("q").max_attempts(2)).await;
    waits_ms(store, &rules, Some(0)).await;
    let last = take(store, "q").await;
    let died = outcome(store, rollback(&last, Some(0)), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: None });
}

pub async fn dead_jobs_are_kept_as_long_as_the_queue_says(store: &dyn Store) {
    let rules = rules_of("q", |s| s.retain_dead_ms = Some(60_000));
    let meta = see(store, &dead(store, &rules).await).await.meta;
    assert_eq!(meta.purge_at, Some(meta.finished_at.unwrap().plus_ms(60_000)));
}

pub async fn a_dead_letter_arrives_ready_elsewhere(store: &dyn Store) {
    let rules = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    let taken = push_and_take(store, job("q").max_attempts(1).key("k", 1000).expires(60_000)).await;
    let died = outcome(store, rollback(&taken, None), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: Some(queue("graves")) });
    let buried = take(store, "graves").await;
    assert_eq!((&buried.meta.id, &buried.payload), (&taken.meta.id, &taken.payload));
    assert_eq!((buried.meta.attempts, &buried.meta.key), (1, &None));
    assert_eq!(buried.meta.expires_at, taken.meta.expires_at);
    let origin = buried.meta.origin.unwrap();
    assert_eq!((origin.queue, origin.attempts), (queue("q"), 1));
    assert_eq!(origin.error.as_deref(), Some("it broke"));
    let step = buried.meta.trail.last().unwrap();
    assert_eq!((&step.queue, step.reason), (&queue("q"), TrailReason::Dead));
}

pub async fn a_failure_is_remembered_whole(store: &dyn Store) {
    push_one(store, job("q")).await;
    let asked = ClaimAsk { worker: Some("w:7".parse().unwrap()), ..ask("q", 1) };
    let taken = claim(store, asked).await.remove(0);
    let operation = Operation::Rollback {
        claim: held_by(&taken),
        kind: RollbackKind::retry(None),
        error: Some("line 1\nline \"2\" \u{0} ü $ .".into()),
    };
    apply(store, change(&taken.meta.id, operation)).await.unwrap();
    let failure = see(store, &taken.meta.id).await.meta.errors.remove(0);
    assert_eq!(failure.message, "line 1\nline \"2\" \u{0} ü $ .");
    assert_eq!((failure.attempt, failure.worker), (1, taken.meta.worker));
    assert!(failure.at >= taken.meta.started_at.unwrap());
}

pub async fn the_last_ten_errors_are_kept(store: &dyn Store) {
    let id = push_one(store, job("q").max_attempts(100)).await;
    for _ in 0..13 {
        waits_ms(store, &Rules::default(), Some(0)).await;
    }
    let attempts: Vec<u32> = see(store, &id).await.meta.errors.iter().map(|e| e.attempt).collect();
    assert_eq!(attempts, (4..=13).collect::<Vec<_>>());
}

pub async fn a_long_message_is_cut_between_characters(store: &dyn Store) {
    let taken = push_and_take(store, job("q")).await;
    let operation = Operation::Rollback {
        claim: held_by(&taken),
        kind: RollbackKind::retry(None),
        error: Some("a".to_owned() + &"ü".repeat(5000)),
    };
    apply(store, change(&taken.meta.id, operation)).await.unwrap();
    let message = see(store, &taken.meta.id).await.meta.errors.remove(0).message;
    assert_eq!(message, "a".to_owned() + &"ü".repeat(2047));
}

pub async fn a_dead_job_gets_another_chance(store: &dyn Store) {
    let id = dead(store, &rules_of("q", |s| s.retain_dead_ms = Some(60_000))).await;
    let back = outcome(store, redrive(&id, "q"), &Rules::default()).await;
    assert!(matches!(back, Outcome::Returned { .. }), "{back:?}");
    let revived = take(store, "q").await;
    assert_eq!((&revived.meta.id, revived.meta.attempts), (&id, 1));
    assert_eq!((revived.meta.finished_at, revived.meta.purge_at), (None, None));
    assert_eq!(revived.meta.errors.len(), 1, "its past is still to be seen");
}

pub async fn a_dead_letter_goes_home(store: &dyn Store) {
    let rules = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    let id = dead(store, &rules).await;
    let back = outcome(store, redrive(&id, "graves"), &rules).await;
    assert!(matches!(back, Outcome::Returned { queue: home, .. } if home == queue("q")));
    let home = take(store, "q").await;
    assert_eq!((&home.meta.id, home.meta.attempts, &home.meta.origin), (&id, 1, &None));
    let reasons: Vec<_> = home.meta.trail.iter().map(|step| step.reason).collect();
    assert_eq!(reasons, [TrailReason::Dead, TrailReason::Redriven]);
}

pub async fn a_dead_letter_that_dies_again_goes_home_at_once(store: &dyn Store) {
    let rules = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    let id = dead(store, &rules).await;
    let taken = take(store, "graves").await;
    let died = outcome(store, rollback(&taken, None), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: None });
    let back = outcome(store, redrive(&id, "graves"), &rules).await;
    assert!(matches!(back, Outcome::Returned { queue: home, .. } if home == queue("q")));
    let home = take(store, "q").await;
    assert_eq!((&home.meta.id, home.meta.attempts, &home.meta.origin), (&id, 1, &None));
    assert_eq!((home.meta.finished_at, home.meta.purge_at), (None, None));
}

/// Older versions let circles arise.
pub async fn a_circle_of_dead_letter_queues_ends(store: &dyn Store) {
    let to = |name: &str| QueueSettings {
        dead_letter: Some(queue(name)),
        max_attempts: Some(1),
        ..QueueSettings::default()
    };
    let rules = rules([("q", to("r")), ("r", to("s")), ("s", to("q")), ("own", to("own"))]);
    let id = dead(store, &rules).await;
    for round in 0..2 {
        for (name, next) in [("r", Some("s")), ("s", None)] {
            let taken = take(store, name).await;
            let died = outcome(store, rollback(&taken, None), &rules).await;
            assert_eq!(died, Outcome::Dead { moved_to: next.map(queue) }, "{name}");
        }
        let meta = see(store, &id).await.meta;
        assert_eq!((meta.state, meta.queue, meta.trail.len()), (State::Dead, queue("s"), 2 + round * 4));
        // Another chance is a new start.
        outcome(store, redrive(&id, "s"), &rules).await;
        let taken = take(store, "r").await;
        assert_eq!(taken.meta.id, id);
        apply(store, move_to(&taken, "q")).await.unwrap();
        let taken = take(store, "q").await;
        let died = outcome(store, rollback(&taken, None), &rules).await;
        assert_eq!(died, Outcome::Dead { moved_to: Some(queue("r")) });
    }
    let taken = push_and_take(store, job("own")).await;
    let died = outcome(store, rollback(&taken, None), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: None });
}

pub async fn only_the_dead_are_redriven(store: &dyn Store) {
    let ready = push_one(store, job("r")).await;
    let refused = apply(store, redrive(&ready, "r")).await;
    assert_eq!(refused, Err(Refusal::Conflict { state: Visible::Ready }));
    let id = dead(store, &rules([("q", QueueSettings::default())])).await;
    let refused = apply(store, redrive(&id, "r")).await;
    assert_eq!(refused, Err(Refusal::Unknown), "it is in another queue");
}

pub async fn a_job_that_is_given_up_is_dead_at_once(store: &dyn Store) {
    let rules = rules_of("q", |s| s.dead_letter = Some(queue("graves")));
    let taken = push_and_take(store, job("q").max_attempts(9)).await;
    let died = outcome(store, give_back(&taken, RollbackKind::Dead, Some("hopeless")), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: Some(queue("graves")) });
    let letter = see(store, &taken.meta.id).await.meta;
    let origin = letter.origin.unwrap();
    assert_eq!((origin.attempts, origin.error.as_deref()), (1, Some("hopeless")));

    let held = push_and_take(store, job("q").group("g")).await;
    let died = outcome(store, give_back(&held, RollbackKind::Dead, None), &rules).await;
    assert_eq!(died, Outcome::Dead { moved_to: None }, "it holds its group");
    let next = push(store, vec![job("q").group("g")]).await;
    assert_eq!(next, [tailback::store::Pushed::Blocked]);
}

pub async fn a_job_is_put_off_for_nothing(store: &dyn Store) {
    let rules = rules_of("q", |s| s.max_attempts = Some(1));
    let first = push_and_take(store, job("q")).await;
    let (was, later) = (first.meta.run_at, first.meta.run_at.plus_ms(90_000));
    let mut taken = first;
    for (kind, due) in [
        (RollbackKind::Snooze(Back::InPlace), was),
        (RollbackKind::Snooze(Back::At(When::At(later))), later),
        (RollbackKind::Snooze(Back::At(When::At(was))), was),
    ] {
        assert_eq!(taken.meta.attempts, 1);
        let back = outcome(store, give_back(&taken, kind, None), &rules).await;
        assert_eq!(back, Outcome::Returned { queue: queue("q"), run_at: due, blocked: false });
        let meta = see(store, &taken.meta.id).await.meta;
        assert_eq!((meta.attempts, meta.errors.len(), meta.claim), (0, 0, None));
        hurry(store, &taken.meta.id).await;
        taken = take(store, "q").await;
    }
    assert_eq!(outcome(store, rollback(&taken, None), &rules).await, Outcome::Dead { moved_to: None });
}

/// A job that goes back to its place is found there, although claims have read on.
pub async fn a_job_back_in_its_place_comes_first(store: &dyn Store) {
    let ids = push_all(store, (0..6).map(|_| job("q")).collect()).await;
    let rules = rules_of("q", |s| s.lapsed = Some(tailback::job::settings::Lapsed::First));
    let first = take(store, "q").await;
    assert_eq!(first.meta.id, ids[0]);
    let second = take(store, "q").await;
    for lost in [
        give_back(&first, RollbackKind::Retry(Back::InPlace), None),
        change(&second.meta.id, Operation::Abandon { claim: held_by(&second), loss: Loss::Removed }),
    ] {
        let before = see(store, &lost.id).await.meta;
        let back = outcome(store, lost, &rules).await;
        assert_eq!(back, Outcome::Returned { queue: queue("q"), run_at: before.run_at, blocked: false });
    }
    let taken = claim(store, ask("q", 6)).await;
    assert_eq!(super::support::ids(&taken), ids);
    let lapse =
        Operation::Lapse { claim: held_by(&taken[3]), reserved_until: taken[3].meta.reserved_until.unwrap() };
    outcome(store, change(&ids[3], lapse), &tailback::job::Rules::default()).await;
    outcome(store, rollback(&taken[4], Some(0)), &rules).await;
    let lapse =
        Operation::Lapse { claim: held_by(&taken[5]), reserved_until: taken[5].meta.reserved_until.unwrap() };
    outcome(store, change(&ids[5], lapse), &rules).await;
    let again = claim(store, ask("q", 6)).await;
    assert_eq!(super::support::ids(&again)[0], ids[5], "by the setting, else behind");
}
