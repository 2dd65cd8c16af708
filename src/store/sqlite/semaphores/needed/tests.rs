use std::sync::Arc;

use super::{Cursor, DEAD, Jobs, Needing, STEP_ROWS, dead, remove_unneeded};
use crate::job::{SemaphoreName, State};
use crate::store::sqlite::tests::plan;
use crate::store::sqlite::{Location, SqliteStore};
use crate::store::{NEEDED_MAX, NEEDED_NAMED, Needed, Removal, Semaphores as _, Store as _};

fn name() -> SemaphoreName {
    "s".parse().unwrap()
}

async fn store(location: Location) -> Arc<SqliteStore> {
    let store = SqliteStore::open(location).unwrap();
    store.migrate().await.unwrap();
    store.save_semaphore(&name(), 1).await.unwrap();
    store
}

async fn execute(store: &SqliteStore, sql: String) {
    store.writer.run(move |db, _| Ok(db.execute_batch(&sql)?)).await.unwrap();
}

/// Stores so many dead jobs of a queue, whose ids begin so, with these semaphores.
async fn bury(store: &SqliteStore, queue: &str, prefix: &str, count: usize, semaphores: &str) {
    let jobs = format!(
        "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count})
         INSERT INTO jobs (id, queue, state, priority, run_at, attempts, created_at, cancel_requested, rev, payload, semaphores)
         SELECT printf('{prefix}%06d', n), '{queue}', 'dead', 0, 0, 1, 0, 0, n, '1', {semaphores} FROM n;
         INSERT INTO counters (queue, ready, marked, reserved, blocked, done, dead)
         VALUES ('{queue}', 0, 0, 0, 0, 0, {count}) ON CONFLICT (queue) DO UPDATE SET dead = dead + excluded.dead;"
    );
    execute(store, jobs).await;
}

/// It does without their tables: so it costs the same however many there are.
#[tokio::test]
async fn the_thread_that_writes_scans_no_dead_job_and_no_batch() {
    let store = store(Location::Memory).await;
    let removed = store.writer.run(|tx, _| {
        tx.execute_batch("DROP TABLE jobs; DROP TABLE batches")?;
        remove_unneeded(tx, &name())
    });
    assert_eq!(removed.await.unwrap(), Removal::Done);
    assert_eq!(store.capacities(None, 9).await.unwrap(), []);
}

#[tokio::test]
async fn a_dead_job_is_found_behind_many_that_need_nothing() {
    let home = tempfile::tempdir().unwrap();
    for location in [Location::Memory, Location::Path(home.path().join("t.db"))] {
        let store = store(location).await;
        for queue in ["a", "b", "c"] {
            bury(&store, queue, queue, 10, "NULL").await;
        }
        bury(&store, "many", "D", STEP_ROWS + 10, "NULL").await;
        bury(&store, "many", "E", 10, "'[\"s2\",\"as\"]'").await;
        bury(&store, "many", "Z", 1, "'[\"r\",\"s\"]'").await;
        let some = vec![("Z000001".parse().unwrap(), "many".parse().unwrap(), State::Dead)];
        let needed = Removal::InUse(Needed { jobs: 1, some, ..Needed::default() });
        assert_eq!(store.remove_semaphore(&name()).await.unwrap(), needed);
        execute(&store, "DELETE FROM jobs WHERE id = 'Z000001'".to_owned()).await;
        assert_eq!(store.remove_semaphore(&name()).await.unwrap(), Removal::Done);
        assert_eq!(store.remove_semaphore(&name()).await.unwrap(), Removal::Unknown);
        store.close().await;
    }
}

#[tokio::test]
async fn a_step_ends_and_the_next_one_goes_on_behind_it() {
    let store = store(Location::Memory).await;
    bury(&store, "many", "D", STEP_ROWS + 1, "'[\"s\"]'").await;
    let (ends, plan) = store
        .writer
        .run(|tx, _| {
            let (queues, mut ends, mut found) = ([b"none".to_vec(), b"many".to_vec()], Vec::new(), 0);
            let mut behind = Some(Cursor::default());
            while let Some(from) = behind {
                let step = dead(tx, &name(), &queues, &from)?;
                found += step.found.len();
                ends.push(found);
                behind = step.behind;
            }
            Ok((ends, plan(tx, DEAD)))
        })
        .await
        .unwrap();
    // On a slow machine a step ends by its time.
    assert!(ends.len() > 1 && ends[0] <= STEP_ROWS, "{ends:?}");
    assert_eq!(ends.last(), Some(&(STEP_ROWS + 1)), "each once");
    assert!(plan.len() == 1 && plan[0].contains("jobs_browse (queue=? AND state=? AND id>?)"), "{plan:?}");
}

#[test]
fn a_job_that_dies_meanwhile_counts_once() {
    let needing = |n: usize, state| Needing {
        id: n.to_string().into_bytes(),
        who: Some((n.to_string().parse().unwrap(), "q".parse().unwrap(), state)),
    };
    let mut jobs = Jobs::default();
    jobs.add(vec![needing(1, State::Ready), Needing { id: b"\xff".to_vec(), who: None }]);
    jobs.add(vec![needing(1, State::Dead), needing(2, State::Dead)]);
    let named: Vec<State> = jobs.some.iter().map(|(_, _, state)| *state).collect();
    assert_eq!((jobs.ids.len(), named), (3, vec![State::Ready, State::Dead]));
    jobs.add((0..2 * NEEDED_MAX).map(|n| needing(n, State::Dead)).collect());
    assert!(jobs.are_enough());
    let needed = Needed::from(jobs);
    assert_eq!((needed.jobs, needed.some.len()), (NEEDED_MAX as u64, NEEDED_NAMED));
}

#[tokio::test]
async fn a_callback_that_is_no_text_keeps_no_semaphore() {
    let store = store(Location::Memory).await;
    let batch = "INSERT INTO batches (id, sealed, pending, done, dead, cancelled, created_at, callback, on_finished) \
         VALUES ('b', 1, 1, 0, 0, 0, 0, 'c', CAST(x'ff227322' AS TEXT))";
    execute(&store, batch.to_owned()).await;
    assert_eq!(store.remove_semaphore(&name()).await.unwrap(), Removal::Done);
}
