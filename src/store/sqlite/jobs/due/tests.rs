use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use rusqlite::{Connection, params};

use super::{DUE, DUE_FOR_POP};
use crate::job::transition::{Back, Edit, Operation, RollbackKind};
use crate::job::{
    Claim, IdSource, Job, JobId, JobSpec, NewJob, Payload, QueueName, Reach, Rules, Timestamp, When,
};
use crate::store::sqlite::jobs::claim;
use crate::store::sqlite::jobs::priorities::{PASSED_MAX, Place};
use crate::store::sqlite::tests::steps;
use crate::store::sqlite::{Location, SqliteStore};
use crate::store::{Change, ClaimAsk, Figures as _, Jobs as _, Store as _, StoreError, Transfer as _};

const MANY: usize = 5000;

static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);

fn queue() -> QueueName {
    "q".parse().unwrap()
}

async fn store(location: Location) -> Arc<SqliteStore> {
    let store = SqliteStore::open(location).unwrap();
    store.migrate().await.unwrap();
    store
}

fn job(store: &SqliteStore) -> NewJob {
    let now = store.now().unwrap();
    NewJob::new(IDS.next(now), queue(), JobSpec::new(Payload::parse("0").unwrap()), now)
}

/// A job that a pop passes over, since it needs a semaphore, or a reserve once it has expired.
fn undeliverable(store: &SqliteStore, pop: bool) -> NewJob {
    let mut job = job(store);
    if pop {
        job.spec.semaphores = vec!["s".parse().unwrap()];
    } else {
        job.spec.expires_in_ms = Some(1);
    }
    job
}

/// Pushes these jobs, and returns their places in order.
async fn push(store: &SqliteStore, jobs: Vec<NewJob>) -> Vec<Place> {
    let place = |job: &NewJob| Place { run_at: job.run_at.millis(), id: job.id.to_string() };
    let mut places: Vec<Place> = jobs.iter().map(place).collect();
    places.sort();
    assert!(store.push(jobs, &Rules::default()).await.iter().all(Result::is_ok));
    places
}

/// Pushes so many jobs that may not be delivered a minute later, when this returns. Returns their places in order.
async fn fill(store: &SqliteStore, pop: bool, count: usize) -> Vec<Place> {
    let places = push(store, (0..count).map(|_| undeliverable(store, pop)).collect()).await;
    store.clock.shift_ms.fetch_add(60_000, Ordering::Relaxed);
    places
}

fn ask(count: usize, pop: bool) -> ClaimAsk {
    let (claim, lease_ms) = (Claim::random(), 60_000);
    ClaimAsk { queue: queue(), count, claim, lease_ms, yields: false, worker: None, pop }
}

async fn take(store: &SqliteStore, count: usize, pop: bool) -> Vec<Job> {
    store.claim(&[ask(count, pop)], &Rules::default()).await.won.remove(0).unwrap()
}

/// The ids of the jobs that a reserve of one job wins.
async fn taken(store: &SqliteStore) -> Vec<JobId> {
    ids(take(store, 1, false).await)
}

fn ids(jobs: Vec<Job>) -> Vec<JobId> {
    jobs.into_iter().map(|job| job.meta.id).collect()
}

fn id(place: &Place) -> JobId {
    place.id.parse().unwrap()
}

fn floor(store: &SqliteStore, pop: bool) -> Place {
    store.skipped.floor(&queue(), pop, 0)
}

async fn apply(store: &SqliteStore, id: &JobId, operation: Operation) {
    let change = Change { id: id.clone(), operation };
    store.apply(vec![change], &Rules::default()).await.remove(0).unwrap();
}

#[tokio::test]
async fn one_transaction_passes_over_so_many_jobs_at_most() {
    for pop in [false, true] {
        let store = store(Location::Memory).await;
        let passed = fill(&store, pop, MANY).await;
        let good = job(&store);
        push(&store, vec![good.clone()]).await;
        let one = store.writer.run(move |tx, now| {
            claim::claim(tx, &[ask(1, pop)], &Rules::default(), now).map(|claims| claims.resume.len())
        });
        assert_eq!(one.await.unwrap(), 1, "it is to go on");
        assert_eq!(floor(&store, pop), passed[PASSED_MAX - 1]);
        if !pop {
            assert_eq!(ids(store.peek(&queue(), 9).await.unwrap()), std::slice::from_ref(&good.id));
        }
        assert_eq!(ids(take(&store, 9, pop).await), [good.id]);
        assert_eq!(Some(&floor(&store, pop)), passed.last());
    }
}

/// How many jobs of the queue are dead.
async fn dead(store: &SqliteStore) -> u64 {
    store.counts(&queue()).await.unwrap().counts.dead
}

#[tokio::test]
async fn one_transaction_makes_so_many_spoiled_jobs_dead_at_most() {
    let store = store(Location::Memory).await;
    let places = push(&store, (0..MANY + 2).map(|_| job(&store)).collect()).await;
    let (first, last) = (id(&places[0]), id(&places[MANY + 1]));
    let good = [first.to_string(), last.to_string()];
    let spoil = store.writer.run(move |tx, _| {
        let sql = "UPDATE jobs SET backoff = 'x' WHERE id NOT IN (?1, ?2)";
        Ok(tx.execute(sql, [&good[0], &good[1]])?)
    });
    assert_eq!(spoil.await.unwrap(), MANY);
    let once = store.writer.run(|tx, now| {
        let claim = || claim::claim(tx, &[ask(100, false)], &Rules::default(), now);
        let (mut one, two) = (claim()?, claim()?);
        Ok((ids(one.won.remove(0).unwrap()), one.resume.len(), two.resume.len()))
    });
    // What comes before them is delivered at once, and both claims are to go on.
    assert_eq!(once.await.unwrap(), (vec![first], 1, 1));
    assert_eq!(dead(&store).await, PASSED_MAX as u64);
    let won = loop {
        match store.claim(&[ask(1, false)], &Rules::default()).await.won.remove(0) {
            Ok(won) => break won,
            // On a slow machine it gives up before it has come so far.
            Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
        }
    };
    assert_eq!(ids(won), [last]);
    assert_eq!(dead(&store).await, MANY as u64);
}

/// How many steps of SQLite's machine it takes to read what is due.
async fn cost(store: &SqliteStore, pop: bool) -> i32 {
    let sql = if pop { DUE_FOR_POP } else { DUE };
    let work = store.writer.run(move |tx, now: Timestamp| {
        let from = tx.skipped.floor(&queue(), pop, 0);
        Ok(steps(tx, sql, params!["q", 0, now.millis(), from.run_at, from.id]))
    });
    work.await.unwrap()
}

#[tokio::test]
async fn jobs_that_were_passed_over_cost_the_next_claim_nothing() {
    for pop in [false, true] {
        let store = store(Location::Memory).await;
        push(&store, vec![job(&store)]).await;
        let before = cost(&store, pop).await;
        assert_eq!(take(&store, 1, pop).await.len(), 1);
        fill(&store, pop, MANY).await;
        push(&store, vec![job(&store), job(&store)]).await;
        assert!(cost(&store, pop).await > 10 * before);
        assert_eq!(take(&store, 1, pop).await.len(), 1);
        let after = cost(&store, pop).await;
        assert!(after <= before + 150, "{before} steps became {after}");
    }
}

#[tokio::test]
async fn what_is_passed_over_changes_no_order() {
    for pop in [false, true] {
        let store = store(Location::Memory).await;
        let (mut jobs, mut expected) = (Vec::new(), Vec::new());
        for n in 0..MANY {
            let is_good = n % 250 == 249;
            let mut job = if is_good { job(&store) } else { undeliverable(&store, pop) };
            job.spec.priority = [1, -1, 0][n % 3];
            if is_good {
                expected.push((Reverse(job.spec.priority), job.run_at, job.id.clone()));
            }
            jobs.push(job);
        }
        push(&store, jobs).await;
        store.clock.shift_ms.store(60_000, Ordering::Relaxed);
        expected.sort();
        let mut taken = Vec::new();
        loop {
            let some = take(&store, 7, pop).await;
            if some.is_empty() {
                break;
            }
            taken.extend(ids(some));
        }
        assert_eq!(taken, expected.into_iter().map(|(_, _, id)| id).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_write_that_makes_a_passed_job_deliverable_is_noticed() {
    let store = store(Location::Memory).await;
    let passed = fill(&store, false, 100).await;
    assert!(taken(&store).await.is_empty());
    assert_eq!(Some(&floor(&store, false)), passed.last());
    for n in [70, 20] {
        let expected = id(&passed[n]);
        let edit = Edit { expires_in_ms: Some(None), ..Edit::default() };
        apply(&store, &expected, Operation::Edit { within: Reach::default(), edit: Box::new(edit) }).await;
        let held = take(&store, 1, false).await.remove(0);
        assert_eq!(held.meta.id, expected);
        assert!(taken(&store).await.is_empty());
        // What comes back to a place before the others.
        let when = When::At(Timestamp::from_millis(passed[0].run_at - 1));
        let (claim, kind) = (held.meta.claim.unwrap(), RollbackKind::Retry(Back::At(when)));
        apply(&store, &expected, Operation::Rollback { claim, kind, error: None }).await;
        let held = take(&store, 1, false).await.remove(0);
        assert_eq!(held.meta.id, expected);
        assert!(taken(&store).await.is_empty());
        let claim = held.meta.claim.unwrap();
        apply(&store, &expected, Operation::Release { claim, unless_seen: false }).await;
        assert_eq!(taken(&store).await, [expected]);
    }
    let mut earlier = job(&store);
    earlier.run_at = Timestamp::from_millis(passed[0].run_at - 2);
    push(&store, vec![earlier.clone()]).await;
    assert_eq!(taken(&store).await, [earlier.id]);
    let mut imported = job(&store);
    imported.run_at = Timestamp::from_millis(passed[0].run_at - 3);
    let id = imported.id.clone();
    store.import(vec![imported.into_job()]).await.remove(0).unwrap();
    assert_eq!(taken(&store).await, [id]);
}

#[tokio::test]
async fn what_a_failed_transaction_has_passed_over_is_forgotten() {
    let store = store(Location::Memory).await;
    let places = push(&store, (0..100).map(|_| job(&store)).collect()).await;
    let failing = store.writer.run(|tx, now| {
        tx.execute("UPDATE jobs SET expires_at = 1", [])?;
        claim::claim(tx, &[ask(1, false)], &Rules::default(), now)?;
        assert_ne!(tx.skipped.floor(&queue(), false, 0), Place::first());
        tx.prepare("not SQL").map(drop).map_err(Into::into)
    });
    assert!(matches!(failing.await, Err(StoreError::Internal(_))));
    assert_eq!(taken(&store).await, [id(&places[0])]);
}

#[tokio::test]
async fn what_another_program_makes_deliverable_is_found() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("t.db");
    let store = store(Location::Path(path.clone())).await;
    let passed = fill(&store, false, 100).await;
    assert!(taken(&store).await.is_empty());
    let other = Connection::open(&path).unwrap();
    other.execute("UPDATE jobs SET expires_at = NULL WHERE id = ?1", [&passed[50].id]).unwrap();
    assert_eq!(taken(&store).await, [id(&passed[50])]);
    store.close().await;
}
