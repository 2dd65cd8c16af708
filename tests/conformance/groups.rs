//! Groups: one at a time, in the order of the pushes.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use futures::future::join_all;
use tailback::job::settings::OnGroupDead;
use tailback::job::transition::{Edit, Operation, Outcome};
use tailback::job::{Job, JobId, NewJob, Rules, Stage, State, Timestamp};
use tailback::store::{Applied, Change, Filter, Pushed, Store};

use super::support::*;

/// Pushes jobs one call after the other, and answers their ids.
async fn push_in_turn(store: &dyn Store, drafts: Vec<Draft>) -> Vec<JobId> {
    let mut ids = Vec::new();
    for draft in drafts {
        let job = draft.build(store);
        ids.push(job.id.clone());
        let pushed = store.push(vec![job], &Rules::default()).await.remove(0).unwrap();
        assert!(matches!(pushed, Pushed::Created | Pushed::Blocked), "{pushed:?}");
    }
    ids
}

/// So many jobs of one group.
async fn push_group(store: &dyn Store, name: &str, group: &str, count: usize) -> Vec<JobId> {
    push_in_turn(store, vec![job(name).group(group); count]).await
}

async fn states(store: &dyn Store, ids: &[JobId]) -> Vec<Option<State>> {
    let found = get(store, ids).await;
    found.into_iter().map(|job| job.map(|job| job.meta.state)).collect()
}

fn skipping(name: &str, dead_letter: Option<&str>) -> Rules {
    rules_of(name, |settings| {
        settings.on_group_dead = Some(OnGroupDead::Skip);
        settings.dead_letter = dead_letter.map(queue);
    })
}

/// Takes the next job, which must be this one, and makes it dead.
async fn kill(store: &dyn Store, name: &str, id: &JobId, rules: &Rules) -> Applied {
    let taken = take(store, name).await;
    assert_eq!(taken.meta.id, *id);
    let applied = apply_under(store, rollback(&taken, None), rules).await.unwrap();
    assert!(matches!(applied.outcome, Outcome::Dead { .. }), "{applied:?}");
    applied
}

/// Works a queue off alone and answers the order.
async fn work_off(store: &dyn Store, name: &str) -> Vec<JobId> {
    let mut order = Vec::new();
    loop {
        let taken = claim(store, ask(name, 10)).await;
        if taken.is_empty() {
            return order;
        }
        order.extend(ids(&taken));
        let settled = apply_all(store, taken.iter().map(commit).collect(), &Rules::default()).await;
        assert!(settled.iter().all(Result::is_ok), "{settled:?}");
    }
}

pub async fn jobs_of_a_group_come_one_at_a_time(store: &dyn Store) {
    let a = push_group(store, "q", "a", 3).await;
    let b = push_group(store, "q", "b", 2).await;
    let plain = push_one(store, job("q")).await;
    let counts = counts_of(store, "q").await;
    assert_eq!((counts.ready, counts.blocked), (3, 3));
    let first = claim(store, ask("q", 9)).await;
    assert_eq!(ids(&first), [a[0].clone(), b[0].clone(), plain]);
    assert!(claim(store, ask("q", 9)).await.is_empty());
    let applied = apply(store, commit(&first[0])).await.unwrap();
    let run_at = see(store, &a[1]).await.meta.run_at;
    assert_eq!(applied.unblocked, [(queue("q"), run_at)]);
    assert!(apply(store, commit(&first[2])).await.unwrap().unblocked.is_empty());
    let second = claim(store, ask("q", 9)).await;
    assert_eq!(ids(&second), [a[1].clone()]);
    let settled =
        apply_all(store, [&second[0], &first[1]].map(commit).into_iter().collect(), &Rules::default()).await;
    assert!(settled.iter().all(|applied| applied.as_ref().unwrap().unblocked.len() == 1));
    assert_eq!(
        work_off(store, "q").await.into_iter().collect::<HashSet<_>>(),
        HashSet::from([a[2].clone(), b[1].clone()])
    );
    assert_eq!(counts_of(store, "q").await, Default::default());
}

pub async fn a_push_says_who_has_to_wait(store: &dyn Store) {
    let pushed =
        push(store, vec![job("q").group("a"), job("q").group("a"), job("q").group("b"), job("r").group("a")]);
    use Pushed::{Blocked, Created};
    assert_eq!(pushed.await, [Created, Blocked, Created, Created]);
    // Once a group is empty, the next one is first again.
    assert_eq!(work_off(store, "r").await.len(), 1);
    assert_eq!(push(store, vec![job("r").group("a")]).await, [Created]);
}

pub async fn a_job_that_is_rolled_back_keeps_its_place(store: &dyn Store) {
    let pushed = push_group(store, "q", "a", 2).await;
    let other = push_one(store, job("q")).await;
    let taken = take(store, "q").await;
    apply(store, rollback(&taken, Some(90_000))).await.unwrap();
    assert_eq!(ids(&claim(store, ask("q", 9)).await), [other]);
    let now = store.now().unwrap();
    let edit = edit_of(Edit { run_at: Some(now), ..Edit::default() });
    apply(store, change(&pushed[0], edit)).await.unwrap();
    let again = take(store, "q").await;
    assert_eq!((&again.meta.id, again.meta.attempts), (&pushed[0], 2));
    apply(store, release(&again)).await.unwrap();
    assert_eq!(work_off(store, "q").await, pushed);
}

pub async fn neither_delay_nor_priority_reorders_a_group(store: &dyn Store) {
    let hurried = push_in_turn(
        store,
        vec![
            job("q").group("a").priority(-1),
            job("q").group("a").priority(9),
            job("q"),
            job("q").group("b").priority(1),
        ],
    )
    .await;
    let order: Vec<JobId> = [3, 2, 0, 1].map(|n: usize| hurried[n].clone()).into();
    assert_eq!(work_off(store, "q").await, order);
    let delayed = push_in_turn(store, vec![job("d").group("a").delay(60_000), job("d").group("a")]).await;
    assert!(claim(store, ask("d", 9)).await.is_empty());
    assert_eq!(states(store, &delayed).await, [Some(State::Ready), Some(State::Blocked)]);
    // The second one waits for its own time as well.
    let late = push_in_turn(store, vec![job("l").group("a"), job("l").group("a").delay(60_000)]).await;
    let taken = take(store, "l").await;
    let applied = apply(store, commit(&taken)).await.unwrap();
    let run_at = see(store, &late[1]).await.meta.run_at;
    assert_eq!(applied.unblocked, [(queue("l"), run_at)]);
    let counts = counts_of(store, "l").await;
    assert_eq!((counts.scheduled, counts.blocked), (1, 0));
    assert!(store.upcoming(9).await.unwrap().contains(&(queue("l"), run_at)));
}

pub async fn a_dead_job_holds_its_group(store: &dyn Store) {
    let rules = rules_of("q", |settings| {
        settings.dead_letter = Some(queue("graves"));
        settings.retain_dead_ms = Some(1);
    });
    let pushed = push_in_turn(store, vec![job("q").group("a").max_attempts(1); 3]).await;
    let died = kill(store, "q", &pushed[0], &rules).await;
    assert_eq!(died.outcome, Outcome::Dead { moved_to: None });
    assert!(died.unblocked.is_empty());
    let free = push_one(store, job("q")).await;
    assert_eq!(work_off(store, "q").await, [free]);
    until_past(store, store.now().unwrap().plus_ms(20)).await;
    store.prune(100).await.unwrap();
    assert_eq!(state_of(store, &pushed[0]).await, Some(State::Dead));
    // Redriven, it is the first again; deleted, it lets the next one go.
    apply(store, redrive(&pushed[0], "q")).await.unwrap();
    kill(store, "q", &pushed[0], &rules).await;
    let gone = apply(store, cancel(&pushed[0], false)).await.unwrap();
    assert_eq!(gone.unblocked.len(), 1);
    assert_eq!(work_off(store, "q").await, pushed[1..]);
}

pub async fn a_group_goes_on_without_a_dead_job_where_it_may(store: &dyn Store) {
    let rules = skipping("q", None);
    let pushed = push_in_turn(store, vec![job("q").group("a").max_attempts(1); 3]).await;
    assert_eq!(kill(store, "q", &pushed[0], &rules).await.unblocked.len(), 1);
    assert_eq!(states(store, &pushed).await, [Some(State::Dead), Some(State::Ready), Some(State::Blocked)]);
    // What comes back comes to the end.
    let back = apply_under(store, redrive(&pushed[0], "q"), &rules).await.unwrap();
    assert!(matches!(back.outcome, Outcome::Returned { blocked: true, .. }), "{back:?}");
    assert_eq!(work_off(store, "q").await, [1, 2, 0].map(|n| pushed[n].clone()));
}

pub async fn dead_letters_stand_in_no_line(store: &dyn Store) {
    let rules = skipping("q", Some("graves"));
    let pushed = push_in_turn(store, vec![job("q").group("a").max_attempts(1); 3]).await;
    for id in &pushed[..2] {
        assert_eq!(
            kill(store, "q", id, &rules).await.outcome,
            Outcome::Dead { moved_to: Some(queue("graves")) }
        );
    }
    let graves = claim(store, ask("graves", 9)).await;
    assert_eq!(ids(&graves), pushed[..2]);
    apply_under(store, release(&graves[0]), &rules).await.unwrap();
    let back = apply_under(store, redrive(&pushed[0], "graves"), &rules).await.unwrap();
    assert!(matches!(back.outcome, Outcome::Returned { blocked: true, .. }), "{back:?}");
    assert_eq!(work_off(store, "q").await, [pushed[2].clone(), pushed[0].clone()]);
}

pub async fn a_moved_job_joins_the_end(store: &dyn Store) {
    let here = push_group(store, "q", "a", 3).await;
    let there = push_group(store, "r", "a", 1).await;
    let first = take(store, "q").await;
    let moved = apply(store, move_to(&first, "r")).await.unwrap();
    assert!(matches!(moved.outcome, Outcome::Returned { blocked: true, .. }), "{moved:?}");
    assert_eq!(moved.unblocked.len(), 1);
    let repeat = apply(store, move_to(&first, "r")).await.unwrap();
    assert_eq!((repeat.outcome, repeat.repeated), (moved.outcome, true));
    // Within its own queue it goes to the end as well; alone, it stays ready.
    let second = take(store, "q").await;
    apply(store, move_to(&second, "q")).await.unwrap();
    assert_eq!(states(store, &here[1..]).await, [Some(State::Blocked), Some(State::Ready)]);
    assert_eq!(work_off(store, "q").await, [here[2].clone(), here[1].clone()]);
    assert_eq!(work_off(store, "r").await, [there[0].clone(), here[0].clone()]);
    let alone = push_and_take(store, job("q").group("a")).await;
    let moved = apply(store, move_to(&alone, "q")).await.unwrap();
    assert!(matches!(moved.outcome, Outcome::Returned { blocked: false, .. }), "{moved:?}");
    assert_eq!(work_off(store, "q").await, [alone.meta.id]);
    let counts = [counts_of(store, "q").await, counts_of(store, "r").await];
    assert_eq!(counts, [Default::default(); 2]);
}

pub async fn a_route_joins_the_groups_of_its_queues(store: &dyn Store) {
    let stage = Stage::new(queue("next"));
    let pushed = push_in_turn(store, vec![job("q").group("a").then(vec![stage]); 2]).await;
    for _ in 0..2 {
        let taken = take(store, "q").await;
        apply(store, commit(&taken)).await.unwrap();
    }
    assert_eq!(states(store, &pushed).await, [Some(State::Ready), Some(State::Blocked)]);
    assert_eq!(work_off(store, "next").await, pushed);
}

pub async fn a_pop_and_history_free_their_group(store: &dyn Store) {
    let rules = rules_of("q", with_history);
    let pushed = push_group(store, "q", "a", 3).await;
    let taken = take(store, "q").await;
    let pop = Operation::Pop { claim: held_by(&taken) };
    assert_eq!(apply_under(store, change(&pushed[0], pop), &rules).await.unwrap().unblocked.len(), 1);
    let taken = take(store, "q").await;
    apply_under(store, commit(&taken), &rules).await.unwrap();
    let done = see(store, &pushed[1]).await.meta;
    assert_eq!((done.state, done.turn, done.group.is_some()), (State::Done, None, true));
    assert!(apply(store, cancel(&pushed[1], false)).await.unwrap().unblocked.is_empty());
    assert_eq!(work_off(store, "q").await, pushed[2..]);
}

pub async fn who_leaves_the_middle_of_a_line_moves_nobody(store: &dyn Store) {
    let pushed = push_group(store, "q", "a", 6).await;
    for n in [1, 3, 5] {
        assert!(apply(store, cancel(&pushed[n], false)).await.unwrap().unblocked.is_empty());
    }
    let late = push_group(store, "q", "a", 1).await;
    assert_eq!(states(store, &pushed[..1]).await, [Some(State::Ready)]);
    // The first and the one behind it in one call.
    let gone =
        apply_all(store, vec![cancel(&pushed[0], false), cancel(&pushed[2], false)], &Rules::default()).await;
    assert_eq!(gone.iter().filter(|gone| gone.is_ok()).count(), 2);
    assert_eq!(work_off(store, "q").await, [pushed[4].clone(), late[0].clone()]);
    assert_eq!(counts_of(store, "q").await, Default::default());
}

pub async fn a_whole_line_leaves_in_one_call(store: &dyn Store) {
    let pushed = push_group(store, "q", "a", 5).await;
    let gone = apply_all(store, pushed.iter().map(|id| cancel(id, false)).collect(), &Rules::default()).await;
    assert!(gone.iter().all(Result::is_ok), "{gone:?}");
    assert_eq!(push(store, vec![job("q").group("a")]).await, [Pushed::Created]);
}

pub async fn what_expires_frees_its_group(store: &dyn Store) {
    let drafts = [job("q").group("a").expires(50), job("q").group("a").expires(50), job("q").group("a")];
    let pushed = push_in_turn(store, drafts.into()).await;
    let overdue = until("both have expired", async || {
        let overdue = store.overdue(9).await.unwrap().changes;
        (overdue.len() == 2).then_some(overdue)
    })
    .await;
    let expired = apply_all(store, overdue, &Rules::default()).await;
    assert!(expired.iter().all(Result::is_ok), "{expired:?}");
    assert_eq!(work_off(store, "q").await, pushed[2..]);
}

pub async fn what_lapses_comes_back_to_its_place(store: &dyn Store) {
    let pushed = push_in_turn(store, vec![job("q").group("a").max_attempts(2); 2]).await;
    for state in [State::Ready, State::Dead] {
        take_for(store, "q", 1).await;
        let overdue = until("the reservation has run out", async || {
            Some(store.overdue(9).await.unwrap().changes).filter(|overdue| !overdue.is_empty())
        })
        .await;
        apply_all(store, overdue, &Rules::default()).await.remove(0).unwrap();
        assert_eq!(states(store, &pushed).await, [Some(state), Some(State::Blocked)]);
    }
}

pub async fn jobs_of_groups_are_stored_with_others(store: &dyn Store) {
    let taken = push_and_take(store, job("in")).await;
    let drafts = [job("q").group("a"), job("q").group("a"), job("q").group("b").key("k", 60_000), job("q")];
    let children: Vec<NewJob> = drafts.into_iter().map(|draft| draft.build(store)).collect();
    let expected: Vec<JobId> = children.iter().map(|job| job.id.clone()).collect();
    let operation = Operation::Commit { claim: held_by(&taken), result: None, push: children };
    apply(store, change(&taken.meta.id, operation)).await.unwrap();
    // An equal job with the same key takes no place in the line.
    let again = push(store, vec![job("q").group("b").key("k", 60_000), job("q").group("b")]).await;
    assert!(matches!(again[..], [Pushed::Duplicate { .. }, Pushed::Blocked]), "{again:?}");
    let first = claim(store, ask("q", 9)).await;
    assert_eq!(ids(&first), [0, 2, 3].map(|n| expected[n].clone()));
    let counts = counts_of(store, "q").await;
    assert_eq!((counts.reserved, counts.blocked), (3, 2));
}

pub async fn a_full_queue_has_no_room_for_who_waits(store: &dyn Store) {
    let rules = rules_of("q", |settings| settings.max_jobs = Some(2));
    let pushed =
        push_under(store, vec![job("q").group("a"), job("q").group("a"), job("q").group("a")], &rules).await;
    assert_eq!(pushed, [Pushed::Created, Pushed::Blocked, Pushed::Full]);
    assert_eq!(work_off(store, "q").await.len(), 2);
}

pub async fn a_group_can_be_browsed(store: &dyn Store) {
    let pushed = push_group(store, "q", "a", 3).await;
    push_group(store, "q", "b", 1).await;
    let a = Filter { group: Some("a".parse().unwrap()), ..Filter::all(queue("q")) };
    assert_eq!(ids(&find(store, &a, None, 9).await), pushed);
    assert_eq!(ids(&find(store, &a, Some(&pushed[0]), 1).await), pushed[1..2]);
    let blocked =
        Filter { states: vec![State::Blocked.visible(Timestamp::default(), Timestamp::default())], ..a };
    assert_eq!(ids(&find(store, &blocked, None, 9).await), pushed[1..]);
}

pub async fn a_blocked_job_can_be_changed_and_taken_away(store: &dyn Store) {
    let pushed = push_group(store, "q", "a", 3).await;
    let edit = edit_of(Edit { priority: Some(7), payload: Some(content("2")), ..Edit::default() });
    apply(store, change(&pushed[1], edit)).await.unwrap();
    let edited = see(store, &pushed[1]).await;
    assert_eq!((edited.meta.state, edited.meta.priority, edited.payload), (State::Blocked, 7, content("2")));
    let purge = Operation::Purge {
        within: tailback::job::Reach::default(),
        states: vec![State::Blocked.visible(Timestamp::default(), Timestamp::default())],
    };
    apply(store, change(&pushed[2], purge)).await.unwrap();
    assert_eq!(work_off(store, "q").await, pushed[..2]);
}

/// Several pushers, each of which waits for its answers; several workers, some of whom fail. In each group what was
/// answered before something else was sent comes first, and never two at a time.
pub async fn the_order_holds_with_many_at_work(store: &dyn Store) {
    const GROUPS: usize = 5;
    let pushers = (0..3).map(|_| async {
        let mut own: Vec<Vec<JobId>> = vec![Vec::new(); GROUPS];
        for n in 0..30 {
            // More attempts than a job can need here: a dead one would never be gone.
            let draft = job("q").group(&format!("g{}", n % GROUPS)).max_attempts(1000);
            let drafts = vec![draft; 1 + n % 2];
            own[n % GROUPS].extend(push_in_turn(store, drafts).await);
        }
        own
    });
    let pushed = join_all(pushers).await;
    let order: Mutex<HashMap<String, Vec<JobId>>> = Mutex::default();
    let held: Mutex<HashSet<String>> = Mutex::default();
    let group = |job: &Job| job.meta.group.as_ref().unwrap().to_string();
    let workers = (0..4).map(|worker| {
        let (order, held) = (&order, &held);
        async move {
            for round in 0.. {
                let taken = claim(store, ask("q", 3)).await;
                if taken.is_empty() {
                    let counts = counts_of(store, "q").await;
                    assert_eq!(counts.dead, 0, "no job runs out of attempts");
                    if counts == Default::default() {
                        return;
                    }
                }
                for job in &taken {
                    assert!(held.lock().unwrap().insert(group(job)), "two of a group at once");
                }
                let settle = |(n, job): (usize, &Job)| -> Change {
                    if (worker + round + n) % 5 == 0 { rollback(job, Some(0)) } else { commit(job) }
                };
                let changes: Vec<Change> = taken.iter().enumerate().map(settle).collect();
                for (job, change) in taken.iter().zip(&changes) {
                    held.lock().unwrap().remove(&group(job));
                    if matches!(change.operation, Operation::Commit { .. }) {
                        order.lock().unwrap().entry(group(job)).or_default().push(job.meta.id.clone());
                    }
                }
                let settled = apply_all(store, changes, &Rules::default()).await;
                assert!(settled.iter().all(Result::is_ok), "{settled:?}");
            }
        }
    });
    join_all(workers).await;
    let order = order.into_inner().unwrap();
    for (n, own) in pushed.iter().flat_map(|own| own.iter().enumerate()) {
        let delivered = &order[&format!("g{n}")];
        let places: Vec<usize> =
            own.iter().map(|id| delivered.iter().position(|other| other == id).unwrap()).collect();
        assert!(places.is_sorted(), "group {n}: {places:?}");
    }
    assert_eq!(order.values().map(Vec::len).sum::<usize>(), 3 * 45);
}
