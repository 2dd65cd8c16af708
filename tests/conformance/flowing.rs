//! Commits that lead on: those that push jobs, and those of jobs with a route.

use tailback::job::record::TrailReason;
use tailback::job::route::Stage;
use tailback::job::state::Verb;
use tailback::job::transition::{Operation, Outcome, Refusal};
use tailback::job::{Child, Claim, Job, JobId, NewJob, Rules, State, Visible};
use tailback::store::{Applied, Change, Denied, PushRefused, Store};

use super::support::*;

fn commit_with(job: &Job, result: Option<&str>, push: Vec<NewJob>) -> Change {
    let operation = Operation::Commit { claim: held_by(job), result: result.map(payload), push };
    change(&job.meta.id, operation)
}

async fn commit_pushing(
    store: &dyn Store,
    job: &Job,
    drafts: Vec<Draft>,
    rules: &Rules,
) -> Result<Applied, Denied> {
    let push = drafts.into_iter().map(|draft| draft.build(store)).collect();
    store.apply(vec![commit_with(job, None, push)], rules).await.remove(0)
}

fn children(applied: &Applied) -> Vec<JobId> {
    applied.pushed.iter().map(|child| child.id.clone()).collect()
}

/// A stage of which nothing but the queue is said.
fn stage(name: &str) -> Stage {
    Stage::new(queue(name))
}

pub async fn a_commit_and_its_pushes_happen_together(store: &dyn Store) {
    let taken = push_and_take(store, job("in")).await;
    let drafts = vec![job("out").payload("[1.0]").priority(3), job("later").delay(90_000), job("out")];
    let applied = commit_pushing(store, &taken, drafts, &Rules::default()).await.unwrap();
    assert_eq!((&applied.outcome, applied.repeated), (&Outcome::Done, false));
    assert_eq!(look(store, &taken.meta.id).await, None);
    let pushed = children(&applied);
    let first = see(store, &pushed[0]).await;
    assert_eq!((first.payload, first.meta.priority), (content("[1.0]"), 3));
    let Child { queue: to, run_at, deduplicated, .. } = &applied.pushed[1];
    assert_eq!((to, *deduplicated), (&queue("later"), false));
    assert_eq!(see(store, &pushed[1]).await.meta.run_at, *run_at);
    assert_eq!(ids(&claim(store, ask("out", 9)).await), [pushed[0].clone(), pushed[2].clone()]);
    assert!(claim(store, ask("later", 9)).await.is_empty());
    let counts = (counts_of(store, "in").await, counts_of(store, "out").await);
    assert_eq!((counts.0.reserved, counts.1.reserved, counts.1.ready), (0, 2, 0));
}

pub async fn a_commit_whose_push_is_refused_does_not_happen(store: &dyn Store) {
    let rules = rules_of("full", |settings| settings.max_jobs = Some(2));
    push_under(store, vec![job("full"), job("full")], &rules).await;
    let other = push_one(store, job("out").key("k", 60_000).payload("1")).await;
    let taken = push_and_take(store, job("in")).await;
    let full = vec![job("out"), job("out").key("new", 60_000), job("full")];
    let refused = commit_pushing(store, &taken, full, &rules).await;
    let expected = PushRefused { index: 2, queue: queue("full"), key_of: None };
    assert!(matches!(&refused, Err(Denied::PushRefused(push)) if *push == expected), "{refused:?}");
    let conflict = vec![job("out"), job("out").key("k", 60_000).payload("2")];
    let refused = commit_pushing(store, &taken, conflict, &rules).await;
    let expected = PushRefused { index: 1, queue: queue("out"), key_of: Some(other.clone()) };
    assert!(matches!(&refused, Err(Denied::PushRefused(push)) if *push == expected), "{refused:?}");
    // Neither jobs nor keys are left, and the job is still held.
    assert_eq!(ids(&claim(store, ask("out", 9)).await), [other]);
    assert_eq!(see(store, &taken.meta.id).await.meta.state, State::Reserved);
    let applied = commit_pushing(store, &taken, vec![job("out").key("new", 60_000)], &rules).await.unwrap();
    assert!(!applied.pushed[0].deduplicated);
}

pub async fn one_refused_commit_keeps_no_other_from_happening(store: &dyn Store) {
    let rules = rules_of("full", |settings| settings.max_jobs = Some(1));
    push_under(store, vec![job("full")], &rules).await;
    push_all(store, (0..4).map(|_| job("in")).collect()).await;
    let taken = claim(store, ask("in", 4)).await;
    let to = ["out", "full", "out", "full"];
    let changes =
        taken.iter().zip(to).map(|(taken, to)| commit_with(taken, None, vec![job(to).build(store)]));
    let applied = store.apply(changes.collect(), &rules).await;
    let happened: Vec<bool> = applied.iter().map(Result::is_ok).collect();
    assert_eq!(happened, [true, false, true, false], "{applied:?}");
    assert_eq!(claim(store, ask("out", 9)).await.len(), 2);
    assert_eq!(counts_of(store, "in").await.reserved, 2);
}

pub async fn the_repeat_of_a_commit_that_pushed_answers_the_same(store: &dyn Store) {
    for rules in [Rules::default(), rules_of("in", with_history)] {
        let taken = push_and_take(store, job("in")).await;
        let first = commit_pushing(store, &taken, vec![job("out"), job("out")], &rules).await.unwrap();
        // The client sends the same; what the server makes of it has other ids.
        let again = commit_pushing(store, &taken, vec![job("out"), job("out")], &rules).await.unwrap();
        assert!(again.repeated && !first.repeated);
        assert_eq!((&again.outcome, &again.pushed), (&first.outcome, &first.pushed));
        assert_eq!(ids(&claim(store, ask("out", 9)).await), children(&first), "pushed once");
    }
}

pub async fn a_recall_finds_what_was_done_and_does_nothing(store: &dyn Store) {
    let recall = |job: &Job, verb| change(&job.meta.id, Operation::Recall { claim: held_by(job), verb });
    let taken = push_and_take(store, job("in")).await;
    for verb in [Verb::Commit, Verb::Move] {
        let refused = apply(store, recall(&taken, verb)).await;
        assert_eq!(refused, Err(Refusal::Conflict { state: Visible::Reserved }));
    }
    assert_eq!(see(store, &taken.meta.id).await, taken);
    let first = commit_pushing(store, &taken, vec![job("out")], &Rules::default()).await.unwrap();
    let again = apply(store, recall(&taken, Verb::Commit)).await.unwrap();
    assert_eq!((again.repeated, again.outcome, again.pushed), (true, first.outcome, first.pushed));
    assert_eq!(apply(store, recall(&taken, Verb::Move)).await, Err(Refusal::Lost { gone: true }));
    let taken = push_and_take(store, job("in")).await;
    let moved = apply(store, move_to(&taken, "next")).await.unwrap();
    let again = apply(store, recall(&taken, Verb::Move)).await.unwrap();
    assert_eq!((again.repeated, again.outcome), (true, moved.outcome));
    assert_eq!(apply(store, recall(&taken, Verb::Commit)).await, Err(Refusal::Lost { gone: false }));
}

pub async fn a_stale_commit_pushes_nothing(store: &dyn Store) {
    let mut taken = push_and_take(store, job("in")).await;
    taken.meta.claim = Some(Claim::random());
    let refused = commit_pushing(store, &taken, vec![job("out")], &Rules::default()).await;
    assert!(matches!(refused, Err(Denied::Refused(Refusal::Lost { gone: false }))), "{refused:?}");
    assert!(claim(store, ask("out", 9)).await.is_empty());
}

pub async fn pushes_of_a_commit_have_keys(store: &dyn Store) {
    let there = push_one(store, job("out").key("there", 60_000)).await;
    let taken = push_and_take(store, job("in")).await;
    let drafts = vec![
        job("out").key("there", 60_000),
        job("out").key("twice", 60_000),
        job("out").key("twice", 60_000),
    ];
    let applied = commit_pushing(store, &taken, drafts, &Rules::default()).await.unwrap();
    let deduplicated: Vec<bool> = applied.pushed.iter().map(|child| child.deduplicated).collect();
    assert_eq!(deduplicated, [true, false, true]);
    let pushed = children(&applied);
    assert_eq!((&pushed[0], &pushed[2]), (&there, &pushed[1]));
    assert_eq!(claim(store, ask("out", 9)).await.len(), 2);
}

pub async fn a_commit_makes_room_in_its_own_queue(store: &dyn Store) {
    let rules = rules_of("loop", |settings| settings.max_jobs = Some(1));
    let taken = push_and_take(store, job("loop")).await;
    let refused = commit_pushing(store, &taken, vec![job("loop"), job("loop")], &rules).await;
    assert!(matches!(refused, Err(Denied::PushRefused(PushRefused { index: 1, .. }))), "{refused:?}");
    commit_pushing(store, &taken, vec![job("loop")], &rules).await.unwrap();
    assert_eq!(counts_of(store, "loop").await.ready, 1);
}

pub async fn a_commit_makes_no_room_where_there_are_too_many(store: &dyn Store) {
    push_all(store, vec![job("q"); 3]).await;
    let rules = rules_of("q", |settings| settings.max_jobs = Some(2));
    let taken = claim(store, ask("q", 2)).await;
    let refused = commit_pushing(store, &taken[0], vec![job("q")], &rules).await;
    let expected = PushRefused { index: 0, queue: queue("q"), key_of: None };
    assert!(matches!(&refused, Err(Denied::PushRefused(push)) if *push == expected), "{refused:?}");
    apply_under(store, commit(&taken[0]), &rules).await.unwrap();
    commit_pushing(store, &taken[1], vec![job("q")], &rules).await.unwrap();
    assert_eq!(counts_of(store, "q").await.ready, 2);
}

/// A job may push itself again, under the same key.
pub async fn a_job_that_ends_leaves_its_key_to_what_it_pushes(store: &dyn Store) {
    for rules in [Rules::default(), rules_of("q", with_history)] {
        push_under(store, vec![job("q").key("k", 0)], &rules).await;
        let taken = take(store, "q").await;
        let applied = commit_pushing(store, &taken, vec![job("q").key("k", 0)], &rules).await.unwrap();
        assert!(!applied.pushed[0].deduplicated);
        let next = take(store, "q").await;
        assert_eq!(children(&applied).first(), Some(&next.meta.id));
        let refused = commit_pushing(store, &next, vec![job("q").payload("2").key("k", 0)], &rules).await;
        assert!(refused.is_ok(), "another payload is another job: {refused:?}");
        apply_under(store, commit(&take(store, "q").await), &rules).await.unwrap();
    }
    // One that goes on along its route has not ended.
    push_one(store, job("q").key("k", 0).then(vec![stage("on")])).await;
    let taken = take(store, "q").await;
    let applied = commit_pushing(store, &taken, vec![job("q").key("k", 0)], &Rules::default()).await.unwrap();
    assert!(applied.pushed[0].deduplicated);
    assert_eq!(children(&applied), [taken.meta.id]);
}

pub async fn many_commits_push_much(store: &dyn Store) {
    push_all(store, (0..40).map(|_| job("in")).collect()).await;
    let taken = claim(store, ask("in", 40)).await;
    let pushes = || (0..25).map(|_| job("out").build(store)).collect();
    let changes = taken.iter().map(|taken| commit_with(taken, None, pushes())).collect();
    for applied in store.apply(changes, &Rules::default()).await {
        assert_eq!(applied.unwrap().pushed.len(), 25);
    }
    assert_eq!(counts_of(store, "out").await.ready, 1000);
    assert_eq!(counts_of(store, "in").await.reserved, 0);
}

pub async fn a_commit_hands_a_job_to_its_next_stage(store: &dyn Store) {
    let second = Stage { priority: Some(7), max_attempts: Some(2), ..stage("b") };
    let third = Stage { delay_ms: Some(90_000), ..stage("c") };
    let draft = job("a").payload("\"raw\"").header("h", "v").then(vec![second, third]);
    let first = push_and_take(store, draft).await;
    let applied = apply(store, commit_with(&first, Some("null"), Vec::new())).await.unwrap();
    assert!(matches!(&applied.outcome, Outcome::Returned { queue: to, .. } if *to == queue("b")));
    let next = take(store, "b").await;
    assert_eq!((&next.meta.id, next.meta.attempts, next.meta.priority), (&first.meta.id, 1, 7));
    assert_eq!((&next.payload, &next.headers), (&content("null"), &first.headers), "the result, even null");
    assert_eq!((next.meta.max_attempts, next.meta.route.len()), (Some(2), 1));
    let steps: Vec<_> = next.meta.trail.iter().map(|step| (step.queue.as_str(), step.reason)).collect();
    assert_eq!(steps, [("a", TrailReason::Committed)]);
    apply(store, commit(&next)).await.unwrap();
    let last = see(store, &first.meta.id).await;
    assert_eq!((last.meta.queue, last.payload, last.meta.route), (queue("c"), content("null"), Vec::new()));
    assert!(last.meta.run_at.ms_since(next.meta.started_at.unwrap()) >= 90_000);
    assert_eq!(last.meta.trail.len(), 2);
    assert_eq!((counts_of(store, "b").await.reserved, counts_of(store, "c").await.scheduled), (0, 1));
}

pub async fn the_repeat_of_such_a_commit_answers_the_same(store: &dyn Store) {
    let taken = push_and_take(store, job("a").then(vec![stage("b"), stage("c")])).await;
    let push = || vec![job("out").build(store)];
    let first = apply(store, commit_with(&taken, None, push())).await.unwrap();
    let waiting = apply(store, commit_with(&taken, None, push())).await.unwrap();
    let next = take(store, "b").await;
    let reserved = apply(store, commit_with(&taken, None, push())).await.unwrap();
    for again in [waiting, reserved] {
        assert!(again.repeated);
        assert_eq!((&again.outcome, &again.pushed), (&first.outcome, &first.pushed));
    }
    assert_eq!(
        (see(store, &next.meta.id).await.meta.route.len(), claim(store, ask("out", 9)).await.len()),
        (1, 1)
    );
}

pub async fn a_route_rests_in_a_dead_letter_queue(store: &dyn Store) {
    let rules = rules_of("a", |s| s.dead_letter = Some(queue("graves")));
    let draft = || job("a").max_attempts(1).then(vec![stage("b")]);
    for redriven in [false, true] {
        let taken = push_and_take(store, draft()).await;
        assert!(matches!(
            outcome(store, rollback(&taken, None), &rules).await,
            Outcome::Dead { moved_to: Some(_) }
        ));
        let id = &taken.meta.id;
        if redriven {
            outcome(store, redrive(id, "graves"), &rules).await;
            let taken = take(store, "a").await;
            apply(store, commit(&taken)).await.unwrap();
            assert_eq!(see(store, id).await.meta.queue, queue("b"));
        } else {
            let buried = take(store, "graves").await;
            assert_eq!(buried.meta.route.len(), 1, "it is still known");
            assert_eq!(apply(store, commit(&buried)).await.unwrap().outcome, Outcome::Done);
            assert_eq!(look(store, id).await, None);
        }
    }
}

pub async fn a_route_ends_where_somebody_asked_for_it(store: &dyn Store) {
    let taken = push_and_take(store, job("a").then(vec![stage("b")])).await;
    apply(store, cancel(&taken.meta.id, false)).await.unwrap();
    assert_eq!(apply(store, commit(&taken)).await.unwrap().outcome, Outcome::Done);
    assert_eq!(look(store, &taken.meta.id).await, None);
}

pub async fn a_moved_job_keeps_its_route(store: &dyn Store) {
    let taken = push_and_take(store, job("a").then(vec![stage("b")])).await;
    apply(store, move_to(&taken, "aside")).await.unwrap();
    let aside = take(store, "aside").await;
    apply(store, commit(&aside)).await.unwrap();
    assert_eq!(see(store, &taken.meta.id).await.meta.queue, queue("b"));
}

pub async fn a_key_is_taken_until_the_last_stage_has_ended(store: &dyn Store) {
    let taken = push_and_take(store, job("a").key("k", 1).then(vec![stage("b")])).await;
    apply(store, commit(&taken)).await.unwrap();
    until_past(store, taken.meta.started_at.unwrap().plus_ms(5)).await;
    let again = || push(store, vec![job("a").key("k", 1)]);
    assert!(
        matches!(&again().await[..], [tailback::store::Pushed::Duplicate { id, .. }] if *id == taken.meta.id)
    );
    apply(store, commit(&take(store, "b").await)).await.unwrap();
    assert_eq!(again().await, [tailback::store::Pushed::Created]);
}
