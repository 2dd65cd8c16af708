//! Schedules: their rows, and firing them.

use tailback::job::schedule::Skipped;
use tailback::job::{JobId, Rules, Schedule, ScheduleName, ScheduleRun, Timestamp};
use tailback::store::{Fired, Firing, Saved, Store};

use super::support::*;

const HOUR_MS: u64 = 3_600_000;

fn name(text: &str) -> ScheduleName {
    text.parse().unwrap()
}

/// A schedule that is due.
fn schedule(store: &dyn Store, text: &str) -> Schedule {
    let rule =
        r#"{"cron":"*/5 * * * * *","time_zone":"Europe/Berlin","queue":"q","job":{"payload":{"n":1.50}}}"#;
    Schedule {
        name: name(text),
        rule: serde_json::from_str(rule).unwrap(),
        version: "v1".to_owned(),
        rev: 1,
        next_at: Some(store.now().unwrap()),
        last_job: None,
        last_runs: Vec::new(),
    }
}

async fn saved(store: &dyn Store, text: &str) -> Schedule {
    let schedule = schedule(store, text);
    assert_eq!(store.save_schedule(&schedule.name, Some(&schedule), None).await.unwrap(), Saved::Done);
    schedule
}

async fn found(store: &dyn Store, text: &str) -> Option<Schedule> {
    store.schedule(&name(text)).await.unwrap()
}

fn run(at: Timestamp, job_id: Option<JobId>) -> ScheduleRun {
    ScheduleRun { at, job_id, skipped: None, misfire: false, manual: false, request: None }
}

/// The firing of the occurrence that the schedule shows.
fn firing(store: &dyn Store, seen: &Schedule) -> Firing {
    let job = job("q").payload(r#"{"n":1.50}"#).build(store);
    let at = seen.next_at.unwrap();
    Firing {
        name: seen.name.clone(),
        seen: seen.rev,
        rev: seen.rev + 1,
        next_at: Some(at.plus_ms(HOUR_MS)),
        run: run(at, Some(job.id.clone())),
        job: Some(job),
        yields: false,
    }
}

async fn fire(store: &dyn Store, firing: &Firing) -> Fired {
    store.fire(firing).await.unwrap()
}

fn pushed(firing: &Firing) -> &JobId {
    &firing.job.as_ref().unwrap().id
}

pub async fn a_schedule_comes_back_as_it_was_saved(store: &dyn Store) {
    assert_eq!(found(store, "s").await, None);
    let mut full = schedule(store, "s");
    full.last_job = Some(id("j2"));
    let at = full.next_at.unwrap();
    let skipped = Some(Skipped::Overlap);
    let manual =
        ScheduleRun { skipped, manual: true, misfire: true, request: Some("k".into()), ..run(at, None) };
    full.last_runs = vec![run(at, Some(id("j1"))), manual];
    store.save_schedule(&full.name, Some(&full), None).await.unwrap();
    assert_eq!(found(store, "s").await.as_ref(), Some(&full));
    let bare = Schedule { next_at: None, rev: -7, last_job: None, last_runs: Vec::new(), ..full };
    store.save_schedule(&bare.name, Some(&bare), Some(1)).await.unwrap();
    assert_eq!(found(store, "s").await.as_ref(), Some(&bare));
}

pub async fn a_schedule_changes_only_as_it_was_seen(store: &dyn Store) {
    let first = schedule(store, "s");
    let save = async |to: Option<&Schedule>, seen| store.save_schedule(&name("s"), to, seen).await.unwrap();
    assert_eq!(save(Some(&first), Some(1)).await, Saved::Conflict);
    assert_eq!(save(None, Some(1)).await, Saved::Conflict);
    assert_eq!(save(None, None).await, Saved::Done);
    assert_eq!(save(Some(&first), None).await, Saved::Done);
    let second = Schedule { rev: 2, version: "v2".into(), ..first.clone() };
    assert_eq!(save(Some(&second), None).await, Saved::Conflict);
    assert_eq!(save(Some(&second), Some(9)).await, Saved::Conflict);
    assert_eq!(save(None, None).await, Saved::Conflict);
    assert_eq!(found(store, "s").await.as_ref(), Some(&first));
    assert_eq!(save(Some(&second), Some(1)).await, Saved::Done);
    assert_eq!(save(None, Some(1)).await, Saved::Conflict);
    assert_eq!(save(None, Some(2)).await, Saved::Done);
    assert_eq!(found(store, "s").await, None);
    let tries = (0..8).map(|_| save(Some(&first), None));
    let saved = futures::future::join_all(tries).await;
    assert_eq!(saved.iter().filter(|saved| **saved == Saved::Done).count(), 1);
}

pub async fn schedules_are_listed_by_name(store: &dyn Store) {
    for text in ["b", "a.1", "B", "a"] {
        saved(store, text).await;
    }
    let names = async |after: Option<&str>, limit| {
        let page = store.schedules(after.map(name).as_ref(), limit).await.unwrap();
        page.into_iter().map(|listed| listed.unwrap().name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(None, 9).await, ["B", "a", "a.1", "b"]);
    assert_eq!(names(Some("B"), 2).await, ["a", "a.1"]);
    assert!(names(Some("b"), 2).await.is_empty());
}

pub async fn the_next_occurrences_come_in_order(store: &dyn Store) {
    let now = store.now().unwrap();
    for (text, next_in_ms) in [("a", Some(2000)), ("b", Some(0)), ("c", None), ("d", Some(1000))] {
        let next_at = next_in_ms.map(|ms| now.plus_ms(ms));
        let schedule = Schedule { next_at, ..schedule(store, text) };
        store.save_schedule(&schedule.name, Some(&schedule), None).await.unwrap();
    }
    let next = store.next_occurrences(9).await.unwrap();
    let expected = [("b", 0), ("d", 1000), ("a", 2000)].map(|(text, ms)| (name(text), now.plus_ms(ms)));
    assert_eq!(next, expected);
    assert_eq!(store.next_occurrences(1).await.unwrap(), expected[..1]);
}

pub async fn a_firing_pushes_and_moves_on(store: &dyn Store) {
    let seen = saved(store, "s").await;
    let firing = firing(store, &seen);
    assert_eq!(fire(store, &firing).await, Fired::Done(firing.run.clone()));
    let after = found(store, "s").await.unwrap();
    let expected = Schedule {
        rev: firing.rev,
        next_at: firing.next_at,
        last_job: Some(pushed(&firing).clone()),
        last_runs: vec![firing.run.clone()],
        ..seen
    };
    assert_eq!(after, expected);
    let job = take(store, "q").await;
    assert_eq!((&job.meta.id, text_of(&job)), (pushed(&firing), r#"{"n":1.50}"#));
    assert_eq!(counts_of(store, "q").await.reserved, 1);
}

pub async fn an_occurrence_is_fired_once_however_many_try(store: &dyn Store) {
    let mut seen = saved(store, "s").await;
    for round in 1..=5 {
        let firings: Vec<Firing> =
            (0..6).map(|n| Firing { rev: round * 10 + n, ..firing(store, &seen) }).collect();
        let fired = futures::future::join_all(firings.iter().map(|firing| fire(store, firing))).await;
        let done = fired.iter().filter(|fired| matches!(fired, Fired::Done(_))).count();
        assert_eq!(done, 1, "{fired:?}");
        seen = found(store, "s").await.unwrap();
    }
    assert_eq!(counts_of(store, "q").await.ready, 5);
    let there = claim(store, ask("q", 99)).await;
    let known: Vec<JobId> = seen.last_runs.iter().filter_map(|run| run.job_id.clone()).collect();
    let mut there = ids(&there);
    there.sort();
    let mut known = known;
    known.sort();
    assert_eq!(there, known);
}

pub async fn the_repeat_of_a_firing_changes_nothing(store: &dyn Store) {
    let seen = saved(store, "s").await;
    let firing = firing(store, &seen);
    fire(store, &firing).await;
    let after = found(store, "s").await;
    assert_eq!(fire(store, &firing).await, Fired::Done(firing.run.clone()), "it is remembered");
    let other = Firing { run: run(firing.run.at, Some(id("other"))), ..firing.clone() };
    assert_eq!(fire(store, &other).await, Fired::Conflict);
    assert_eq!(found(store, "s").await, after);
    assert_eq!(counts_of(store, "q").await.ready, 1, "it is neither stored nor counted twice");
}

pub async fn a_firing_of_what_has_changed_does_nothing(store: &dyn Store) {
    let seen = saved(store, "s").await;
    let firing = firing(store, &seen);
    let changed = Schedule { rev: 77, ..seen.clone() };
    store.save_schedule(&seen.name, Some(&changed), Some(1)).await.unwrap();
    assert_eq!(fire(store, &firing).await, Fired::Conflict);
    assert_eq!(found(store, "s").await, Some(changed));
    store.save_schedule(&seen.name, None, Some(77)).await.unwrap();
    assert_eq!(fire(store, &firing).await, Fired::Conflict);
    assert_eq!(found(store, "s").await, None);
    assert_eq!(counts_of(store, "q").await, Default::default());
}

pub async fn a_missed_occurrence_may_push_nothing(store: &dyn Store) {
    let seen = saved(store, "s").await;
    let skipped = Some(Skipped::Misfire);
    let run = ScheduleRun { skipped, misfire: true, ..run(seen.next_at.unwrap(), None) };
    let firing = Firing { job: None, run: run.clone(), next_at: None, ..firing(store, &seen) };
    assert_eq!(fire(store, &firing).await, Fired::Done(run.clone()));
    let after = found(store, "s").await.unwrap();
    assert_eq!((after.last_runs, after.last_job, after.next_at), (vec![run], None, None));
    assert!(store.next_occurrences(9).await.unwrap().is_empty());
}

/// Fires with `yields` and answers whether a job was pushed.
async fn pushes(store: &dyn Store) -> bool {
    let seen = found(store, "s").await.unwrap();
    let firing = Firing { yields: true, ..firing(store, &seen) };
    let Fired::Done(run) = fire(store, &firing).await else { panic!("nobody else fires") };
    let after = found(store, "s").await.unwrap();
    assert_eq!((after.last_runs.last(), after.next_at), (Some(&run), firing.next_at));
    let is_pushed = run.job_id.is_some();
    assert_eq!(run.skipped.is_none(), is_pushed);
    assert_eq!(look(store, pushed(&firing)).await.is_some(), is_pushed);
    is_pushed
}

pub async fn a_firing_yields_while_the_last_job_is_unfinished(store: &dyn Store) {
    saved(store, "s").await;
    assert!(pushes(store).await, "there is no last job");
    assert!(!pushes(store).await, "it is ready");
    let job = take(store, "q").await;
    assert!(!pushes(store).await, "it is reserved");
    apply(store, move_to(&job, "elsewhere")).await.unwrap();
    assert!(!pushes(store).await, "it was moved");
    let rules = rules_of("elsewhere", |settings| {
        settings.max_attempts = Some(1);
        settings.dead_letter = Some(queue("graves"));
    });
    let job = take(store, "elsewhere").await;
    apply_under(store, rollback(&job, None), &rules).await.unwrap();
    assert!(!pushes(store).await, "it was dead-lettered");
    let job = take(store, "graves").await;
    apply(store, commit(&job)).await.unwrap();
    assert!(pushes(store).await, "it is gone");
    let job = take(store, "q").await;
    apply_under(store, commit(&job), &rules_of("q", with_history)).await.unwrap();
    assert!(pushes(store).await, "it is history");
    let job = take(store, "q").await;
    let once = rules_of("q", |settings| settings.max_attempts = Some(1));
    apply_under(store, rollback(&job, None), &once).await.unwrap();
    assert!(pushes(store).await, "it is dead");
    assert_eq!(found(store, "s").await.unwrap().last_runs.len(), 8);
}

pub async fn a_firing_finds_room_in_a_full_queue(store: &dyn Store) {
    let rules: Rules = rules_of("q", |settings| settings.max_jobs = Some(1));
    push_under(store, vec![job("q")], &rules).await;
    let seen = saved(store, "s").await;
    let firing = firing(store, &seen);
    assert!(matches!(fire(store, &firing).await, Fired::Done(_)));
    assert_eq!(counts_of(store, "q").await.ready, 2);
}
