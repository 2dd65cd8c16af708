//! Operations over many jobs, and the rows of the audit.

use std::sync::Arc;

use tailback::job::audit::{AuditRow, shown};
use tailback::job::bulk::{BulkAction, BulkFilter, BulkIntent, BulkState};
use tailback::job::state::{State, Visible};
use tailback::job::transition::{Back, Edit, Operation, Refusal, RollbackKind};
use tailback::job::{
    Bulk, BulkId, IdSource, JobId, NewJob, Payload, Reach, Rules, SemaphoreName, Timestamp, When,
};
use tailback::store::audit::along;
use tailback::store::{
    AuditFilter, BegunBy, BulkDone, BulkEffect, BulkStep, Denied, Expected, KeyedCall, Pushed, Recalled,
    Report, Saved, SettingsChange, Store, StoredSettings,
};

use super::support::*;

fn bulk(store: &dyn Store, id: &str) -> Bulk {
    let filter = BulkFilter { state: Some(Visible::Ready), ..BulkFilter::default() };
    let (to, priority, limit, within, owner) = (Some(queue("other")), None, Some(7), None, None);
    let intent = BulkIntent {
        filter,
        action: BulkAction::Move,
        to,
        priority,
        limit,
        newest_first: false,
        within,
        owner,
    };
    Bulk::new(id.parse().unwrap(), intent, "by".to_owned(), store.now().unwrap())
}

fn relocations(ids: &[JobId]) -> BulkEffect {
    let relocate = |id: &JobId| {
        let (within, queue) = (Reach::default(), queue("other"));
        change(id, Operation::Relocate { within, queue, when: None, priority: None })
    };
    BulkEffect::Change(ids.iter().map(relocate).collect())
}

/// A step that counts what it has changed.
fn step(operation: &Bulk, effect: BulkEffect) -> BulkStep {
    let (id, seen, base) = (operation.id.clone(), operation.rev, operation.revised());
    let next = move |done: &BulkDone| {
        let affected = match done {
            BulkDone::Changed(all) => all.iter().filter(|changed| changed.is_ok()).count(),
            BulkDone::Pushed(all) => all.len(),
        };
        Bulk { affected: base.affected + affected as u64, ..base.clone() }
    };
    BulkStep { effect, id, seen, next: Arc::new(next), row: Arc::new(|_| None) }
}

async fn stored(store: &dyn Store, id: &BulkId) -> Bulk {
    store.operation(id).await.unwrap().expect("the operation is gone")
}

pub async fn an_operation_is_stored_once_as_it_is(store: &dyn Store) {
    let one = bulk(store, "one");
    assert_eq!(store.operation(&one.id).await.unwrap(), None);
    assert!(store.add_operation(&one, None, None).await.unwrap());
    let other = Bulk { by: "another".to_owned(), ..one.clone() };
    assert!(!store.add_operation(&other, None, None).await.unwrap(), "there is one of this id");
    assert_eq!(stored(store, &one.id).await, one);
    let revised = Bulk { state: BulkState::Running, scanned: 5, ..one.revised() };
    assert!(store.save_operation(&revised, one.rev, None).await.unwrap());
    assert!(!store.save_operation(&one, one.rev, None).await.unwrap(), "it is of another revision");
    assert_eq!(stored(store, &one.id).await, revised);
}

pub async fn operations_are_listed_and_those_that_are_open_found(store: &dyn Store) {
    let all: Vec<Bulk> = ["a", "b", "c", "d"].iter().map(|id| bulk(store, id)).collect();
    for operation in &all {
        store.add_operation(operation, None, None).await.unwrap();
    }
    let over = all[1].clone().ended(BulkState::Done, None, store.now().unwrap());
    assert!(store.save_operation(&over, all[1].rev, None).await.unwrap());
    let names = |found: Vec<Bulk>| found.iter().map(|it| it.id.to_string()).collect::<Vec<_>>().join(" ");
    assert_eq!(names(store.operations(None, 9).await.unwrap()), "d c b a");
    assert_eq!(names(store.operations(Some(&all[2].id), 1).await.unwrap()), "b");
    assert_eq!(names(store.open_operations(None, 9).await.unwrap()), "a c d");
    assert_eq!(names(store.open_operations(None, 2).await.unwrap()), "a c");
    assert_eq!(names(store.open_operations(Some(&all[0].id), 9).await.unwrap()), "c d");
    // One that is over is kept for a while; one that was over long ago is not.
    let long_ago = Timestamp::from_millis(store.now().unwrap().millis() - 8 * 86_400_000);
    let old = all[0].clone().ended(BulkState::Failed, Some("why".to_owned()), long_ago);
    assert!(store.save_operation(&old, all[0].rev, None).await.unwrap());
    store.prune(1000).await.unwrap();
    assert_eq!(names(store.operations(None, 9).await.unwrap()), "d c b");
}

/// What is remembered of its call is stored with it, and keeps a repeat from storing it again.
pub async fn an_operation_that_is_forgotten_is_not_begun_again(store: &dyn Store) {
    let one = bulk(store, "one");
    let until = store.now().unwrap().plus_ms(60_000);
    let by = |id: &str| {
        let call = KeyedCall { id: id.to_owned(), digest: [7; 32], until };
        BegunBy { call, answer: one.id.to_string() }
    };
    let (call, remembered) = (by("=k"), Some(Recalled::Answer(one.id.to_string())));
    assert_eq!(store.recall(&call.call).await.unwrap(), None);
    assert!(store.add_operation(&one, None, Some(&call)).await.unwrap());
    assert_eq!(store.recall(&call.call).await.unwrap(), remembered);
    assert!(!store.add_operation(&one, None, Some(&call)).await.unwrap(), "it is there");
    let long_ago = Timestamp::from_millis(store.now().unwrap().millis() - 8 * 86_400_000);
    let over = one.clone().ended(BulkState::Done, None, long_ago);
    assert!(store.save_operation(&over, one.rev, None).await.unwrap());
    store.prune(1000).await.unwrap();
    assert_eq!(store.operation(&one.id).await.unwrap(), None);
    assert!(!store.add_operation(&one, None, Some(&call)).await.unwrap(), "it was there");
    assert_eq!(store.operation(&one.id).await.unwrap(), None);
    // One that an older server has stored is remembered of the repeat.
    assert!(store.add_operation(&one, None, None).await.unwrap());
    let other = by("=other");
    assert!(!store.add_operation(&one, None, Some(&other)).await.unwrap());
    assert_eq!(store.recall(&other.call).await.unwrap(), remembered);
}

pub async fn a_step_and_its_record_are_one(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"), job("q"), job("q")]).await;
    let held = take(store, "q").await;
    let one = bulk(store, "one");
    store.add_operation(&one, None, None).await.unwrap();
    let work = step(&one, relocations(&pushed));
    let done = store.step_operation(work.clone(), &Rules::default()).await.unwrap();
    let Some(BulkDone::Changed(all)) = done else { panic!("{done:?}") };
    assert!(matches!(all[0], Err(Denied::Refused(Refusal::Conflict { state: Visible::Reserved }))));
    assert!(all[1].is_ok() && all[2].is_ok());
    let now = stored(store, &one.id).await;
    assert_eq!((now.rev, now.affected), (one.rev + 1, 2));
    // The same step again, by a server that stood still: nothing happens.
    apply(store, commit(&held)).await.unwrap();
    let moved = claim(store, ask("other", 9)).await;
    assert_eq!(moved.len(), 2);
    assert!(store.step_operation(work, &Rules::default()).await.unwrap().is_none());
    assert_eq!(stored(store, &one.id).await, now);
    // Nor where the operation is gone, or never was.
    let nobody = bulk(store, "nobody");
    let left = push_one(store, job("q")).await;
    let lost = store
        .step_operation(step(&nobody, relocations(std::slice::from_ref(&left))), &Rules::default())
        .await;
    assert!(lost.unwrap().is_none());
    assert_eq!(see(store, &left).await.meta.queue.as_str(), "q");
}

pub async fn of_two_servers_one_makes_the_step(store: &dyn Store) {
    let pushed = push_all(store, vec![job("q"); 20]).await;
    let one = bulk(store, "one");
    store.add_operation(&one, None, None).await.unwrap();
    let rules = Rules::default();
    let steps = [0, 1, 2].map(|_| store.step_operation(step(&one, relocations(&pushed)), &rules));
    let done = futures::future::join_all(steps).await;
    let made = done.into_iter().filter(|done| matches!(done, Ok(Some(_)))).count();
    assert_eq!(made, 1, "each of them has seen the same revision");
    assert_eq!(stored(store, &one.id).await.affected, 20);
    let trails = find(store, &tailback::store::Filter::all(queue("other")), None, 99).await;
    assert!(trails.len() == 20 && trails.iter().all(|job| job.meta.trail.len() == 1));
}

pub async fn a_step_fills_a_queue_and_no_more(store: &dyn Store) {
    let rules = rules_of("other", |settings| settings.max_jobs = Some(2));
    let pushed = push_all(store, vec![job("q"); 3]).await;
    let one = bulk(store, "one");
    store.add_operation(&one, None, None).await.unwrap();
    let done = store.step_operation(step(&one, relocations(&pushed)), &rules).await.unwrap();
    let Some(BulkDone::Changed(all)) = done else { panic!("{done:?}") };
    assert!(matches!(all.last(), Some(Err(Denied::Refused(Refusal::Full)))), "{all:?}");
    assert_eq!((counts_of(store, "other").await.ready, counts_of(store, "q").await.ready), (2, 1));
    assert_eq!(stored(store, &one.id).await.affected, 2);
}

pub async fn the_pushes_of_a_step_happen_once(store: &dyn Store) {
    let one = bulk(store, "one");
    store.add_operation(&one, None, None).await.unwrap();
    let copies: Vec<NewJob> = vec![job("q").build(store), job("q").group("g").build(store)];
    let work = step(&one, BulkEffect::Push(copies));
    let done = store.step_operation(work.clone(), &Rules::default()).await.unwrap();
    let Some(BulkDone::Pushed(all)) = done else { panic!("{done:?}") };
    assert_eq!(all, [Pushed::Created, Pushed::Created]);
    assert!(store.step_operation(work, &Rules::default()).await.unwrap().is_none());
    let now = stored(store, &one.id).await;
    assert_eq!((now.affected, counts_of(store, "q").await.ready), (2, 2));
    // One that does nothing remembers how far it has looked.
    let nothing = store.step_operation(step(&now, BulkEffect::Change(Vec::new())), &Rules::default()).await;
    assert!(nothing.unwrap().is_some());
    assert_eq!(stored(store, &one.id).await.rev, now.rev + 1);
}

/// Whatever makes a job wait as it does is noted with it, and what a worker had: so operations leave it alone that began before.
pub async fn what_comes_to_wait_says_since_when(store: &dyn Store) {
    let semaphore: SemaphoreName = "one".parse().unwrap();
    store.save_semaphore(&semaphore, 1).await.unwrap();
    let stamps = async |id: &JobId| {
        let meta = see(store, id).await.meta;
        (meta.came_at, meta.given_back_at)
    };
    let later = async || {
        let at = store.now().unwrap();
        until_past(store, at).await;
        store.now().unwrap()
    };
    let snoozed = push_and_take(store, job("snoozed")).await;
    assert_eq!(stamps(&snoozed.meta.id).await, (None, None), "a delivery is no wait");
    let at = later().await;
    let put_off = RollbackKind::Snooze(Back::At(When::At(at.plus_ms(600_000))));
    apply(store, give_back(&snoozed, put_off, None)).await.unwrap();
    let (came, given_back) = stamps(&snoozed.meta.id).await;
    assert!(came == given_back && came.is_some_and(|came| came >= at), "{came:?} {given_back:?}");
    let released = push_and_take(store, job("released")).await;
    let at = later().await;
    apply(store, release(&released)).await.unwrap();
    assert!(stamps(&released.meta.id).await.1.is_some_and(|given_back| given_back >= at));
    // By its group, and by a semaphore.
    let head = push_and_take(store, job("g").group("g")).await;
    assert_eq!(push(store, vec![job("g").group("g")]).await, [Pushed::Blocked]);
    let lined = find(store, &tailback::store::Filter::all(queue("g")), None, 9).await;
    let limited = push_all(store, vec![job("s").needs(&["one"]), job("s").needs(&["one"])]).await;
    let holder = take(store, "s").await;
    let at = later().await;
    assert!(claim(store, ask("s", 1)).await.is_empty());
    let blocked = see(store, &limited[1]).await.meta;
    assert_eq!((blocked.state, blocked.given_back_at), (State::Blocked, None));
    assert!(blocked.came_at.is_some_and(|came| came >= at));
    let at = later().await;
    for held in [head, holder] {
        apply(store, commit(&held)).await.unwrap();
    }
    assert_eq!(store.unblock_waiters(&[semaphore], &Rules::default()).await.unwrap().len(), 1);
    for unblocked in [&lined[1].meta.id, &limited[1]] {
        let meta = see(store, unblocked).await.meta;
        assert_eq!((meta.state, meta.given_back_at), (State::Ready, None));
        assert!(meta.came_at.is_some_and(|came| came >= at), "{:?}", meta.came_at);
    }
    // An edit is one only where it changes how the job waits.
    let edited = push_one(store, job("edited")).await;
    let edit = |edit: Edit| change(&edited, edit_of(edit));
    apply(store, edit(Edit { priority: Some(3), ..Edit::default() })).await.unwrap();
    assert_eq!(stamps(&edited).await, (None, None));
    let run_at = Some(store.now().unwrap().plus_ms(600_000));
    apply(store, edit(Edit { run_at, ..Edit::default() })).await.unwrap();
    assert!(stamps(&edited).await.0.is_some_and(|came| came >= at));
}

fn row(ids: &IdSource, store: &dyn Store, what: &str, on: &str) -> AuditRow {
    let at = store.now().unwrap();
    AuditRow {
        id: ids.next(at),
        at,
        by: "key".to_owned(),
        by_name: Some("a name".to_owned()),
        address: Some("192.0.2.1".parse().unwrap()),
        what: what.to_owned(),
        on: on.to_owned(),
        queue: Some(queue(on)),
        affected: None,
        before: None,
        after: shown(&serde_json::json!({"paused": true, "of": [1, "two", null]})),
    }
}

/// The row of the end is written with the step that ends it, and by no step that does nothing.
pub async fn the_end_of_an_operation_has_a_row(store: &dyn Store) {
    let ids = IdSource::default();
    let pushed = push_all(store, vec![job("q"); 3]).await;
    let one = bulk(store, "one");
    store.add_operation(&one, None, None).await.unwrap();
    let end = row(&ids, store, "operation.end", "one");
    let with_row = |work: BulkStep| {
        let end = end.clone();
        let row = move |next: &Bulk| Some(AuditRow { affected: Some(next.affected), ..end.clone() });
        BulkStep { row: Arc::new(row), ..work }
    };
    let rules = Rules::default();
    let first = step(&one, relocations(&pushed[..1]));
    assert!(store.step_operation(first.clone(), &rules).await.unwrap().is_some());
    assert_eq!(all_rows(store).await, [], "the step has none");
    assert!(store.step_operation(with_row(first), &rules).await.unwrap().is_none());
    assert_eq!(all_rows(store).await, [], "the step does nothing");
    let last = step(&stored(store, &one.id).await, relocations(&pushed[1..]));
    assert!(store.step_operation(with_row(last), &rules).await.unwrap().is_some());
    assert_eq!(all_rows(store).await, [AuditRow { affected: Some(3), ..end.clone() }]);
    let now = stored(store, &one.id).await;
    let copies = step(&now, BulkEffect::Push(vec![job("q").build(store)]));
    assert!(store.step_operation(with_row(copies), &rules).await.unwrap().is_some());
    assert_eq!(all_rows(store).await, [AuditRow { affected: Some(4), ..end.clone() }]);
}

async fn all_rows(store: &dyn Store) -> Vec<AuditRow> {
    store.audit(&AuditFilter::default(), None, 99).await.unwrap()
}

pub async fn an_act_and_its_row_are_one(store: &dyn Store) {
    let ids = IdSource::default();
    let ready = push_one(store, job("q")).await;
    let dead = push_and_take(store, job("dying").max_attempts(1)).await;
    apply(store, rollback(&dead, Some(0))).await.unwrap();
    let retry = |id: &JobId| change(id, Operation::Retry { within: Reach::default() });
    let retried = row(&ids, store, "job.retry", "dying");
    along(Some(retried.clone()), apply(store, retry(&dead.meta.id))).await.unwrap();
    let kept = all_rows(store).await;
    // The store says what there was before and after.
    let said = |row: &AuditRow| AuditRow { before: None, after: retried.after.clone(), ..row.clone() };
    assert_eq!(kept.iter().map(said).collect::<Vec<_>>(), std::slice::from_ref(&retried));
    let is = |seen: &Option<Payload>, state: &str| {
        seen.as_ref().is_some_and(|seen| seen.as_str().contains(&format!("\"state\":\"{state}\"")))
    };
    assert!(is(&kept[0].before, "dead") && is(&kept[0].after, "ready"), "{kept:?}");
    assert_eq!(state_of(store, &dead.meta.id).await, Some(State::Ready));
    // What does not happen leaves none.
    let refused = row(&ids, store, "job.retry", "q");
    let nobody = along(Some(refused), apply(store, retry(&id("nobody")))).await;
    assert_eq!(nobody, Err(Refusal::Unknown));
    let held = row(&ids, store, "job.release", "q");
    let revoke = change(&ready, Operation::Revoke { within: Reach::default() });
    assert!(along(Some(held), apply(store, revoke)).await.is_err());
    assert_eq!(all_rows(store).await, kept);
}

/// However many calls an act takes, and however much of them is refused.
pub async fn a_row_counts_the_jobs_of_its_act(store: &dyn Store) {
    let ids = IdSource::default();
    let row = AuditRow { affected: Some(0), ..row(&ids, store, "queue.purge", "q") };
    let purge =
        |id: &JobId| change(id, Operation::Purge { within: Reach::default(), states: vec![Visible::Ready] });
    let purged = async |changes| {
        along(Some(row.clone()), store.apply(changes, &Rules::default()))
            .await
            .iter()
            .filter(|it| it.is_ok())
            .count()
    };
    assert_eq!(purged(vec![purge(&id("nobody"))]).await, 0);
    assert_eq!(all_rows(store).await, [], "nothing has happened");
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(push_one(store, job("q")).await);
    }
    assert_eq!(purged(vec![purge(&jobs[0]), purge(&id("nobody")), purge(&jobs[1])]).await, 2);
    assert_eq!(all_rows(store).await, [AuditRow { affected: Some(2), ..row.clone() }]);
    assert_eq!(purged(vec![purge(&jobs[0]), purge(&jobs[2])]).await, 1);
    assert_eq!(all_rows(store).await, [AuditRow { affected: Some(3), ..row.clone() }]);
    let copies = vec![job("q").build(store), job("q").build(store)];
    along(Some(row.clone()), store.push_all(copies, &Rules::default(), None)).await.unwrap();
    assert_eq!(all_rows(store).await, [AuditRow { affected: Some(5), ..row.clone() }]);
    let worker = "w".parse().unwrap();
    let removed =
        AuditRow { id: ids.next(store.now().unwrap()), what: "worker.remove".to_owned(), ..row.clone() };
    assert!(!along(Some(removed.clone()), store.forget_worker(&worker)).await.unwrap());
    assert_eq!(all_rows(store).await.len(), 1, "there is no such worker");
    let report = Report { version: None, slots: None, timeout_ms: 1000 };
    store.heartbeat(&worker, &report).await.unwrap();
    assert!(along(Some(removed.clone()), store.forget_worker(&worker)).await.unwrap());
    assert_eq!(all_rows(store).await[0], removed);
}

pub async fn settings_semaphores_and_operations_have_rows(store: &dyn Store) {
    let ids = IdSource::default();
    let change = |row: AuditRow, expected: Expected| SettingsChange {
        queue: queue("q"),
        to: Some(StoredSettings { settings: Default::default(), version: "v".to_owned() }),
        expected,
        rows: vec![row],
    };
    let set = row(&ids, store, "queue.set", "q");
    let in_vain = row(&ids, store, "queue.set", "q");
    let changes = [change(set.clone(), Expected::Absent), change(in_vain, Expected::Absent)];
    assert_eq!(store.save_all_settings(&changes).await.unwrap(), [Saved::Done, Saved::Conflict]);
    let name = "m".parse().unwrap();
    let saved = row(&ids, store, "semaphore.set", "m");
    along(Some(saved.clone()), store.save_semaphore(&name, 2)).await.unwrap();
    let removed = row(&ids, store, "semaphore.delete", "m");
    along(Some(removed.clone()), store.remove_semaphore(&name)).await.unwrap();
    along(Some(row(&ids, store, "semaphore.delete", "m")), store.remove_semaphore(&name)).await.unwrap();
    let begun = row(&ids, store, "operation.begin", "one");
    let one = bulk(store, "one");
    assert!(store.add_operation(&one, Some(&begun), None).await.unwrap());
    assert!(
        !store.add_operation(&one, Some(&row(&ids, store, "operation.begin", "one")), None).await.unwrap()
    );
    let over = one.clone().ended(BulkState::Cancelled, None, store.now().unwrap());
    let cancelled = row(&ids, store, "operation.cancel", "one");
    assert!(store.save_operation(&over, one.rev, Some(&cancelled)).await.unwrap());
    let again = row(&ids, store, "operation.cancel", "one");
    assert!(!store.save_operation(&over, one.rev, Some(&again)).await.unwrap());
    // The store says what there was before.
    let two = shown(&serde_json::json!({"capacity": 2}));
    let (saved, removed) = (AuditRow { after: two.clone(), ..saved }, AuditRow { before: two, ..removed });
    assert_eq!(all_rows(store).await, [cancelled, begun, removed, saved, set]);
}

pub async fn rows_are_found_by_what_they_say(store: &dyn Store) {
    let ids = IdSource::default();
    let mut rows = Vec::new();
    for (n, what) in ["a", "b", "a", "c"].into_iter().enumerate() {
        let at = Timestamp::from_millis(store.now().unwrap().millis() - 10_000 + n as i64 * 1000);
        let mut row =
            AuditRow { id: ids_of(at), at, ..row(&ids, store, what, if n < 2 { "q" } else { "p" }) };
        row.by = if n == 3 { "other".to_owned() } else { row.by };
        let operation = bulk(store, &format!("o{n}"));
        store.add_operation(&operation, Some(&row), None).await.unwrap();
        rows.push(row);
    }
    let found = async |filter: AuditFilter| {
        let found = store.audit(&filter, None, 99).await.unwrap();
        found.iter().map(|row| rows.iter().position(|known| known == row).unwrap()).collect::<Vec<_>>()
    };
    let all = AuditFilter::default();
    assert_eq!(found(all.clone()).await, [3, 2, 1, 0]);
    assert_eq!(found(AuditFilter { what: Some("a".to_owned()), ..all.clone() }).await, [2, 0]);
    assert_eq!(found(AuditFilter { by: Some("other".to_owned()), ..all.clone() }).await, [3]);
    assert_eq!(found(AuditFilter { queue: Some(queue("q")), ..all.clone() }).await, [1, 0]);
    let (from, to) = (Some(rows[1].at), Some(rows[3].at));
    assert_eq!(found(AuditFilter { from, to, ..all.clone() }).await, [2, 1]);
    let page = store.audit(&all, Some(&rows[2].id), 1).await.unwrap();
    assert_eq!(page, std::slice::from_ref(&rows[1]));
    // What is older than ninety days is forgotten.
    let long_ago = Timestamp::from_millis(store.now().unwrap().millis() - 91 * 86_400_000);
    let old = AuditRow { id: ids_of(long_ago), at: long_ago, ..row(&ids, store, "a", "q") };
    store.add_operation(&bulk(store, "o9"), Some(&old), None).await.unwrap();
    assert_eq!(all_rows(store).await.len(), 5);
    store.prune(1000).await.unwrap();
    assert_eq!(all_rows(store).await.len(), 4);
}

fn ids_of(at: Timestamp) -> JobId {
    IdSource::default().next(at)
}
