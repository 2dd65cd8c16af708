use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::job::{Binary, Content, IdSource, JobSpec, NewJob, Payload, Rules};
use crate::store::sqlite::{Location, SqliteStore};
use crate::store::{Figures as _, Jobs as _, Store as _};

const HOUR_MS: u64 = 3_600_000;

/// A store with scheduled jobs that have these payloads, and all of them have come due.
async fn come_due(payloads: Vec<Content>) -> Arc<SqliteStore> {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let (ids, now) = (IdSource::default(), store.now().unwrap());
    let job = |payload: Content| {
        let job = NewJob::new(ids.next(now), "q".parse().unwrap(), JobSpec::new(payload), now);
        NewJob { run_at: now.plus_ms(HOUR_MS), ..job }
    };
    let jobs = payloads.into_iter().map(job).collect();
    assert!(store.push(jobs, &Rules::default()).await.iter().all(Result::is_ok));
    assert_eq!(store.prune(1000).await.unwrap(), 0, "nothing has come due");
    store.clock.shift_ms.store(2 * HOUR_MS as i64, Ordering::Relaxed);
    store
}

/// How often it is to be called again soon, before nothing is left to do.
async fn rounds(store: &SqliteStore) -> usize {
    let mut rounds = 0;
    while store.prune(1000).await.unwrap() > 0 {
        rounds += 1;
    }
    let marks = store.writer.run(|tx, _| {
        tx.flush()?;
        let count = |sql| tx.query_row(sql, [], |row| row.get::<_, i64>(0));
        Ok((
            count("SELECT count(*) FROM jobs WHERE due IS NOT NULL")?,
            count("SELECT sum(marked) FROM counters")?,
        ))
    });
    assert_eq!(marks.await.unwrap(), (0, 0));
    rounds
}

#[tokio::test]
async fn passed_marks_are_cleared_step_by_step_without_a_long_rest() {
    let store = come_due(vec![Payload::parse("0").unwrap().into(); 5000]).await;
    let counts = async || store.counts(&"q".parse().unwrap()).await.unwrap().counts;
    let before = counts().await;
    assert_eq!((before.ready, before.scheduled), (5000, 0));
    assert_eq!(store.summary(9).await.unwrap().total.counts, before);
    assert_eq!(rounds(&store).await, 5);
    assert_eq!(counts().await, before);
    assert_eq!(store.summary(9).await.unwrap().total.counts, before);
}

#[tokio::test]
async fn marks_of_jobs_with_long_payloads_are_cleared_a_few_at_a_time() {
    const LENGTH: usize = 1 << 20;
    let json = Payload::parse(&format!("\"{}\"", "x".repeat(LENGTH - 2))).unwrap();
    let binary = Binary { bytes: vec![1; LENGTH].into(), media_type: "image/png".parse().unwrap() };
    let mut payloads = vec![Content::Json(json); 4];
    payloads.extend(vec![Content::Binary(binary); 4]);
    let store = come_due(payloads).await;
    assert_eq!(rounds(&store).await, 4, "of two jobs each");
}

#[tokio::test]
async fn finished_jobs_with_long_payloads_are_deleted_a_few_at_a_time() {
    let long = Payload::parse(&format!("\"{}\"", "x".repeat((1 << 20) - 2))).unwrap();
    let store = come_due(vec![long.into(); 20]).await;
    rounds(&store).await;
    let end = store.writer.run(|tx, _| Ok(tx.execute("UPDATE jobs SET state = 'done', purge_at = 1", [])?));
    assert_eq!(end.await.unwrap(), 20);
    let mut steps = Vec::new();
    while let deleted @ 1.. = store.prune(1000).await.unwrap() {
        steps.push(deleted);
    }
    assert_eq!(steps, [8, 8, 4]);
}
