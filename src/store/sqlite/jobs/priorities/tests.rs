use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;

use super::{Skipped, WALKED_MAX};
use crate::job::{Claim, Content, IdSource, JobSpec, NewJob, Payload, QueueName, Rules};
use crate::store::sqlite::{Location, SqliteStore};
use crate::store::{ClaimAsk, Jobs as _, Store as _, StoreError};

const HOUR_MS: u64 = 3_600_000;
const MANY: i32 = 2_500;

fn queue() -> QueueName {
    "q".parse().unwrap()
}

async fn store(location: Location) -> Arc<SqliteStore> {
    let store = SqliteStore::open(location).unwrap();
    store.migrate().await.unwrap();
    store
}

/// A job of this priority, and after how long it is due.
fn job(store: &SqliteStore, priority: i32, delay_ms: u64) -> NewJob {
    let now = store.now().unwrap();
    let mut spec = JobSpec::new(Payload::parse(&priority.to_string()).unwrap());
    spec.priority = priority;
    let mut job = NewJob::new(IdSource::default().next(now), queue(), spec, now);
    job.run_at = job.run_at.plus_ms(delay_ms);
    job
}

async fn push(store: &SqliteStore, jobs: Vec<NewJob>) {
    assert!(store.push(jobs, &Rules::default()).await.iter().all(Result::is_ok));
}

/// Delayed jobs of many priorities, and one that is due below all of them.
async fn fill(store: &SqliteStore) {
    let mut jobs: Vec<NewJob> = (1..=MANY).map(|n| job(store, n, HOUR_MS + n as u64)).collect();
    jobs.push(job(store, 0, 0));
    push(store, jobs).await;
}

fn ask(count: usize, pop: bool) -> ClaimAsk {
    let (claim, lease_ms) = (Claim::random(), 60_000);
    ClaimAsk { queue: queue(), count, claim, lease_ms, yields: false, worker: None, pop }
}

/// Returns the payloads of the jobs that a claim wins, which are their priorities.
async fn claim(store: &SqliteStore, pop: bool) -> Vec<String> {
    let won = store.claim(&[ask(1, pop)], &Rules::default()).await.won.remove(0).unwrap();
    let text = |payload| match payload {
        Content::Json(payload) => payload.as_str().to_owned(),
        Content::Binary(_) => panic!("{payload:?}"),
    };
    won.into_iter().map(|job| text(job.payload)).collect()
}

fn skipped(store: &SqliteStore) -> Option<Skipped> {
    store.skipped.of(&queue(), false, store.now().unwrap())
}

#[tokio::test]
async fn a_claim_walks_on_in_further_transactions_and_remembers_it() {
    let store = store(Location::Memory).await;
    fill(&store).await;
    for pop in [false, true] {
        assert_eq!(claim(&store, pop).await, ["0"]);
        push(&store, vec![job(&store, 0, 0)]).await;
    }
    assert_eq!(skipped(&store).map(|skipped| skipped.down_to), Some(1));
    assert_eq!(store.stocked(&[queue()]).await.unwrap(), [queue()]);
    assert_eq!(store.peek(&queue(), 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn one_transaction_walks_so_many_priorities_at_most() {
    let store = store(Location::Memory).await;
    fill(&store).await;
    let one = store.writer.run(|tx, now| {
        super::super::claim::claim(tx, &[ask(1, false)], &Rules::default(), now).map(|claims| claims.resume)
    });
    assert_eq!(one.await.unwrap().len(), 1, "it is to go on");
    let down_to = MANY - WALKED_MAX as i32 + 1;
    assert_eq!(skipped(&store).map(|skipped| skipped.down_to), Some(i64::from(down_to)));
}

#[tokio::test]
async fn what_comes_due_among_the_skipped_is_claimed() {
    let store = store(Location::Memory).await;
    fill(&store).await;
    assert_eq!(claim(&store, false).await, ["0"]);
    assert!(claim(&store, false).await.is_empty());
    assert_eq!(skipped(&store).map(|skipped| skipped.down_to), Some(i64::MIN), "all of it is scheduled");
    // Due at once, and sooner than all others.
    push(&store, vec![job(&store, 700, 0)]).await;
    assert_eq!(claim(&store, false).await, ["700"]);
    push(&store, vec![job(&store, 9_999, 60_000)]).await;
    assert!(claim(&store, false).await.is_empty());
    store.clock.shift_ms.store(61_000, Ordering::Relaxed);
    assert_eq!(store.stocked(&[queue()]).await.unwrap(), [queue()]);
    assert_eq!(claim(&store, false).await, ["9999"]);
    // What was scheduled from the beginning.
    store.clock.shift_ms.store(2 * HOUR_MS as i64, Ordering::Relaxed);
    assert_eq!(claim(&store, false).await, [MANY.to_string()]);
}

#[tokio::test]
async fn what_is_rolled_back_is_not_remembered() {
    let store = store(Location::Memory).await;
    fill(&store).await;
    let failing = store.writer.run(|tx, now| {
        let asks = [ask(1, false)];
        for _ in 0..MANY as usize / WALKED_MAX + 1 {
            super::super::claim::claim(tx, &asks, &Rules::default(), now)?;
        }
        assert!(
            super::super::claim::claim(tx, &asks, &Rules::default(), now)?.won[0]
                .as_ref()
                .unwrap()
                .is_empty()
        );
        tx.prepare("not SQL").map(drop).map_err(Into::into)
    });
    assert!(matches!(failing.await, Err(StoreError::Internal(_))));
    assert_eq!(claim(&store, false).await, ["0"], "its reservation was undone");
}

#[tokio::test]
async fn what_another_program_inserts_is_found() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("t.db");
    let store = store(Location::Path(path.clone())).await;
    fill(&store).await;
    assert_eq!(claim(&store, false).await, ["0"]);
    assert!(claim(&store, false).await.is_empty());
    insert(&path);
    assert_eq!(claim(&store, false).await, ["5000"]);
    store.close().await;
}

/// Makes a copy of a scheduled job that is due, past the server.
fn insert(path: &Path) {
    let db = Connection::open(path).unwrap();
    db.execute_batch(
        "CREATE TEMP TABLE one AS SELECT * FROM jobs WHERE priority = 1;
         UPDATE one SET id = id || 'x', priority = 5000, payload = '5000', run_at = 1, due = NULL;
         INSERT INTO jobs SELECT * FROM one;",
    )
    .unwrap();
}
