use std::sync::{Arc, LazyLock};

use rusqlite::{Connection, StatementStatus};

use super::{bury, bury_nameless};
use crate::job::transition::Operation;
use crate::job::{Claim, IdSource, Job, JobId, JobSpec, NewJob, Payload, QueueName, Rules, SemaphoreName};
use crate::store::sqlite::jobs::claim;
use crate::store::sqlite::jobs::needs::{FORGET, FORGET_LOST, NEXT_NAME};
use crate::store::sqlite::jobs::priorities::PASSED_MAX;
use crate::store::sqlite::tests::plan;
use crate::store::sqlite::{Location, SqliteStore};
use crate::store::{Change, ClaimAsk, Figures as _, Jobs as _, Semaphores as _, Store as _, StoreError};

static IDS: LazyLock<IdSource> = LazyLock::new(IdSource::default);

const DEAD: &str = "SELECT count(*) FROM jobs WHERE state = 'dead'";
const NEEDS: &str = "SELECT count(*) FROM needs";
/// Makes the ids of these jobs none, so that no call can name them.
const RENAME: &str = "UPDATE jobs SET id = 'no id ' || id";

fn queue() -> QueueName {
    "q".parse().unwrap()
}

fn name() -> SemaphoreName {
    "s".parse().unwrap()
}

async fn store() -> Arc<SqliteStore> {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    store
}

/// Pushes so many jobs, and returns their ids in order.
async fn push(store: &SqliteStore, count: usize, with: impl Fn(&mut JobSpec)) -> Vec<JobId> {
    let now = store.now().unwrap();
    let new = |_| {
        let mut spec = JobSpec::new(Payload::parse("0").unwrap());
        with(&mut spec);
        NewJob::new(IDS.next(now), queue(), spec, now)
    };
    let jobs: Vec<NewJob> = (0..count).map(new).collect();
    let ids = jobs.iter().map(|job| job.id.clone()).collect();
    assert!(store.push(jobs, &Rules::default()).await.iter().all(Result::is_ok));
    ids
}

fn needing(spec: &mut JobSpec) {
    spec.semaphores = vec![name()];
}

async fn execute(store: &SqliteStore, sql: String) {
    store.writer.run(move |db, _| Ok(db.execute_batch(&sql)?)).await.unwrap();
}

async fn count(store: &SqliteStore, sql: &'static str) -> i64 {
    store.writer.run(move |db, _| Ok(db.query_row(sql, [], |row| row.get(0))?)).await.unwrap()
}

/// The rows of the jobs whose ids are none, and which are not dead.
fn nameless(db: &Connection) -> rusqlite::Result<Vec<i64>> {
    let mut nameless = db.prepare("SELECT rowid FROM jobs WHERE id LIKE 'no id%' AND state <> 'dead'")?;
    nameless.query_map([], |row| row.get(0))?.collect()
}

/// Lets so many other jobs need a semaphore, whose name is this expression of `n`.
async fn need(store: &SqliteStore, semaphore: &str, count: usize) {
    let needs = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})
         INSERT INTO needs (semaphore, job, queue, state, priority, run_at, waits)
         SELECT {semaphore}, printf('other%06d', n), 'q', 'ready', 0, 0, 0 FROM n"
    );
    execute(store, needs).await;
}

fn ask(count: usize) -> ClaimAsk {
    let (claim, lease_ms) = (Claim::random(), 60_000);
    ClaimAsk { queue: queue(), count, claim, lease_ms, yields: false, worker: None, pop: false }
}

async fn take(store: &SqliteStore, count: usize) -> Vec<Job> {
    loop {
        match store.claim(&[ask(count)], &Rules::default()).await.won.remove(0) {
            Ok(won) => return won,
            // On a slow machine it gives up before it has come through what is in its way.
            Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
        }
    }
}

fn ids(jobs: Vec<Job>) -> Vec<JobId> {
    jobs.into_iter().map(|job| job.meta.id).collect()
}

/// How many steps of SQLite's machine these statements have taken since the last time.
fn steps(db: &Connection, statements: &[&str]) -> i32 {
    let taken = |sql: &&str| db.prepare_cached(sql).unwrap().reset_status(StatementStatus::VmStep);
    statements.iter().map(taken).sum()
}

/// How many it takes to forget what a job needs that is spoiled like this, where so many others need the same semaphore.
async fn cost_beside(others: usize, spoiled: &str) -> i32 {
    let store = store().await;
    push(&store, 1, needing).await;
    execute(&store, format!("UPDATE jobs SET {spoiled}")).await;
    need(&store, "'s'", others).await;
    let cost = store.writer.run(|tx, now| {
        let statements = [FORGET, NEXT_NAME];
        steps(tx, &statements);
        let rowid = tx.query_row("SELECT rowid FROM jobs", [], |row| row.get(0))?;
        bury(tx, rowid, false, &Rules::default(), now)?;
        Ok(steps(tx, &statements))
    });
    let cost = cost.await.unwrap();
    assert_eq!((count(&store, DEAD).await, count(&store, NEEDS).await), (1, others as i64));
    cost
}

#[tokio::test]
async fn a_job_is_made_dead_at_the_same_cost_however_many_others_need_semaphores() {
    for spoiled in ["backoff = 'x'", "semaphores = 'x'"] {
        let (few, many) = (cost_beside(10, spoiled).await, cost_beside(50_000, spoiled).await);
        assert!(few > 0 && many <= few + 20, "{spoiled}: {few} steps became {many}");
    }
}

#[tokio::test]
async fn what_a_job_needs_is_found_by_a_seek() {
    let store = store().await;
    let plans = store.writer.run(|tx, _| Ok([FORGET, NEXT_NAME].map(|sql| plan(tx, sql)))).await.unwrap();
    assert!(plans[0].len() == 1 && plans[0][0].contains("(semaphore=? AND job=?)"), "{plans:?}");
    assert!(plans[1].len() == 1 && plans[1][0].contains("(semaphore>?)"), "{plans:?}");
}

/// Of such a job all semaphores are tried that others need: where these are many, few such jobs are made dead at once.
#[tokio::test]
async fn jobs_whose_semaphores_cannot_be_read_are_made_dead_step_by_step() {
    let store = store().await;
    push(&store, 10, needing).await;
    execute(&store, "UPDATE jobs SET semaphores = 'x'".to_owned()).await;
    need(&store, "printf('t%06d', n)", PASSED_MAX / 2).await;
    let good = push(&store, 1, |_| {}).await;
    let once = store.writer.run(|tx, now| {
        let mut claims = claim::claim(tx, &[ask(20)], &Rules::default(), now)?;
        Ok((ids(claims.won.remove(0).unwrap()), claims.resume.len()))
    });
    assert_eq!(once.await.unwrap(), (good, 1), "it is to go on");
    assert_eq!(count(&store, DEAD).await, 2);
    assert!(take(&store, 20).await.is_empty());
    assert_eq!(count(&store, DEAD).await, 10);
    assert_eq!(count(&store, NEEDS).await, (PASSED_MAX / 2) as i64);
}

#[tokio::test]
async fn a_spoiled_job_whose_row_names_no_semaphore_leaves_its_line() {
    let store = store().await;
    store.save_semaphore(&name(), 1).await.unwrap();
    push(&store, 2, needing).await;
    assert_eq!((take(&store, 1).await.len(), take(&store, 1).await.len()), (1, 0));
    assert_eq!(count(&store, "SELECT count(*) FROM needs WHERE waits = 1").await, 1);
    let spoil = "UPDATE jobs SET backoff = 'x', semaphores = NULL WHERE state = 'blocked'";
    execute(&store, spoil.to_owned()).await;
    store.save_semaphore(&name(), 2).await.unwrap();
    assert!(store.unblock_waiters(&[name()], &Rules::default()).await.unwrap().is_empty());
    assert_eq!((count(&store, DEAD).await, count(&store, NEEDS).await), (1, 1), "the holder is left");
}

#[tokio::test]
async fn jobs_without_ids_are_made_dead_step_by_step() {
    let store = store().await;
    push(&store, PASSED_MAX + 50, |_| {}).await;
    execute(&store, RENAME.to_owned()).await;
    for dead in [PASSED_MAX, PASSED_MAX + 50] {
        store.writer.run(|tx, now| bury_nameless(tx, &nameless(tx)?, now)).await.unwrap();
        assert_eq!(count(&store, DEAD).await, dead as i64);
    }
}

#[tokio::test]
async fn a_line_goes_on_behind_many_jobs_without_ids() {
    let (store, many) = (store().await, 2 * PASSED_MAX + 500);
    let all = push(&store, many + 2, |spec| spec.group = Some("g".parse().unwrap())).await;
    let first = take(&store, 9).await.remove(0);
    assert_eq!(first.meta.id, all[0]);
    execute(&store, format!("{RENAME} WHERE turn BETWEEN 2 AND {}", many + 1)).await;
    let operation = Operation::Commit { claim: first.meta.claim.unwrap(), result: None, push: Vec::new() };
    let commit = Change { id: first.meta.id, operation };
    store.apply(vec![commit], &Rules::default()).await.remove(0).unwrap();
    assert_eq!(count(&store, DEAD).await, PASSED_MAX as i64, "the transaction of the commit ends");
    assert_eq!(ids(take(&store, 9).await), [all[many + 1].clone()]);
    let counts = store.counts(&queue()).await.unwrap().counts;
    assert_eq!((counts.ready, counts.reserved, counts.blocked, counts.dead), (0, 1, 0, many as u64));
}

#[tokio::test]
async fn the_holders_of_a_semaphore_are_compared_once_in_a_transaction() {
    let store = store().await;
    push(&store, 100, needing).await;
    execute(&store, format!("UPDATE needs SET state = 'reserved'; {RENAME} WHERE rowid <= 2")).await;
    let costs = store.writer.run(|tx, now| {
        steps(tx, &[FORGET_LOST]);
        let mut costs = Vec::new();
        for rowid in nameless(tx)? {
            bury(tx, rowid, false, &Rules::default(), now)?;
            costs.push(steps(tx, &[FORGET_LOST]));
        }
        Ok(costs)
    });
    let costs = costs.await.unwrap();
    assert!(costs.len() == 2 && costs[0] > 0 && costs[1] == 0, "{costs:?}");
    assert_eq!(count(&store, NEEDS).await, 98);
}
