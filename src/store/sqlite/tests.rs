//! What is SQLite's alone: files, locks, full disks, indexes. The contract is tested by `tests/conformance.rs`.

use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, StatementStatus, params};

use crate::job::record::KeyHold;
use crate::job::transition::{Operation, RollbackKind};
use crate::job::{
    Claim, IdSource, Job, JobSpec, NewJob, Payload, QueueName, QueueSettings, Rules, Timestamp,
};
use crate::store::sqlite::Location;
use crate::store::sqlite::OpenError;
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::figures;
use crate::store::sqlite::jobs::due;
use crate::store::sqlite::jobs::expired;
use crate::store::sqlite::jobs::many;
use crate::store::sqlite::jobs::priorities;
use crate::store::sqlite::jobs::query;
use crate::store::sqlite::prune;
use crate::store::sqlite::recount;
use crate::store::sqlite::series;
use crate::store::sqlite::workers;
use crate::store::{Change, ClaimAsk, Figures as _, Jobs as _, Pushed, Store, StoreError};

fn at(path: &Path) -> Result<Arc<SqliteStore>, OpenError> {
    SqliteStore::open(Location::Path(path.to_owned()))
}

async fn opened(path: &Path) -> Arc<SqliteStore> {
    let store = at(path).unwrap();
    store.migrate().await.unwrap();
    store
}

fn job(store: &SqliteStore, ids: &IdSource, payload: &str) -> NewJob {
    let now = store.now().unwrap();
    let spec = JobSpec::new(Payload::parse(payload).unwrap());
    NewJob::new(ids.next(now), "q".parse().unwrap(), spec, now)
}

async fn push_one(store: &SqliteStore, job: NewJob) -> Result<Pushed, StoreError> {
    store.push(vec![job], &Rules::default()).await.remove(0)
}

fn ask(count: usize) -> ClaimAsk {
    ClaimAsk {
        queue: "q".parse().unwrap(),
        count,
        claim: Claim::random(),
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    }
}

#[tokio::test]
async fn jobs_and_reservations_survive_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let (path, ids) = (home.path().join("t.db"), IdSource::default());
    let store = opened(&path).await;
    let mut keyed = job(&store, &ids, "[1.0]");
    keyed.key = Some(KeyHold::new("k".parse().unwrap(), store.now().unwrap().plus_ms(60_000)));
    push_one(&store, keyed.clone()).await.unwrap();
    let taken = store.claim(&[ask(1)], &Rules::default()).await.won.remove(0).unwrap().remove(0);
    store.close().await;
    assert!(matches!(push_one(&store, keyed.clone()).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.summary(1).await, Err(StoreError::Unavailable(_))));

    let store = opened(&path).await;
    let again = store.get(std::slice::from_ref(&keyed.id)).await.unwrap().remove(0);
    assert_eq!(again, Some(Ok(taken)));
    let repeat = NewJob { id: ids.next(keyed.created_at), ..keyed };
    assert!(matches!(push_one(&store, repeat).await, Ok(Pushed::Duplicate { .. })));
    store.close().await;
}

#[tokio::test]
async fn what_was_answered_is_on_the_disk_without_a_close() {
    let home = tempfile::tempdir().unwrap();
    let (path, ids) = (home.path().join("t.db"), IdSource::default());
    let store = opened(&path).await;
    push_one(&store, job(&store, &ids, "1")).await.unwrap();
    // As a crash leaves it: the file and its log, but never closed.
    for suffix in ["", "-wal"] {
        let from = format!("{}{suffix}", path.display());
        std::fs::copy(from, home.path().join(format!("copy.db{suffix}"))).unwrap();
    }
    let copy = opened(&home.path().join("copy.db")).await;
    assert_eq!(copy.claim(&[ask(5)], &Rules::default()).await.won.remove(0).unwrap().len(), 1);
    copy.close().await;
    store.close().await;
}

#[tokio::test]
async fn a_second_server_is_refused_until_the_first_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("t.db");
    let first = opened(&path).await;
    let link = home.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for same in [&path, &link] {
        let refused = at(same).err().unwrap();
        assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    }
    first.close().await;
    opened(&path).await.close().await;
}

#[tokio::test]
async fn a_file_that_is_not_ours_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let garbage = home.path().join("garbage.db");
    std::fs::write(&garbage, "not a database, but the only copy of something ".repeat(100)).unwrap();
    let foreign = home.path().join("foreign.db");
    Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let cut = home.path().join("cut.db");
    opened(&cut).await.close().await;
    let whole = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();

    for (path, complaint) in [(&garbage, "damaged"), (&foreign, "another program"), (&cut, "damaged")] {
        let before = std::fs::read(path).unwrap();
        let refused = at(path).err().unwrap().to_string();
        assert!(refused.contains(complaint), "{refused}");
        assert_eq!(std::fs::read(path).unwrap(), before);
    }
    let nowhere = at(&home.path().join("no/such/directory/t.db")).err().unwrap();
    assert!(matches!(nowhere, OpenError::Unusable { .. }), "{nowhere}");
}

#[tokio::test]
async fn a_newer_file_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("t.db");
    opened(&path).await.close().await;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let refused = at(&path).err().unwrap().to_string();
    assert!(refused.contains("newer version") && refused.contains("99"), "{refused}");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_only_and_only_for_as_long_as_it_is_full() {
    let home = tempfile::tempdir().unwrap();
    let (path, ids) = (home.path().join("t.db"), IdSource::default());
    let store = opened(&path).await;
    let first = job(&store, &ids, "1");
    push_one(&store, first.clone()).await.unwrap();
    let limit = |pages: i64| {
        store.writer.run(move |db, _| {
            Ok(db.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))?)
        })
    };
    limit(1).await.unwrap(); // as many as there are
    let long = format!("\"{}\"", "x".repeat(1_000_000));
    let pushes = (0..4).map(|_| push_one(&store, job(&store, &ids, &long)));
    for refused in futures::future::join_all(pushes).await {
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    }
    assert_eq!(store.get(&[first.id]).await.unwrap().iter().flatten().count(), 1);
    limit(1_000_000).await.unwrap();
    push_one(&store, job(&store, &ids, &long)).await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(store.summary(0).await.unwrap().total.counts.ready, 2);
    store.close().await;
}

/// What ends a job, or keeps it, needs little.
#[tokio::test]
async fn what_fits_on_a_nearly_full_disk_is_stored_beside_what_does_not() {
    let home = tempfile::tempdir().unwrap();
    let (store, ids) = (opened(&home.path().join("t.db")).await, IdSource::default());
    let limit = |pages: i64| {
        store.writer.run(move |db, _| {
            Ok(db.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))?)
        })
    };
    let pages = limit(1).await.unwrap();
    limit(pages + 60).await.unwrap();
    let long = format!("\"{}\"", "x".repeat(1_000_000));
    let pushes = (0..11).map(|n| push_one(&store, job(&store, &ids, if n == 5 { &long } else { "1" })));
    let pushed = futures::future::join_all(pushes).await;
    let full = pushed.iter().filter(|pushed| matches!(pushed, Err(StoreError::Full(_)))).count();
    assert_eq!((full, pushed.iter().filter(|pushed| pushed.is_ok()).count()), (1, 10), "{pushed:?}");
    store.close().await;
}

#[tokio::test]
async fn one_failing_caller_does_not_disturb_the_others_of_its_round() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    let twin = job(&store, &ids, "0");
    let calls = (0..20).map(|n| {
        let job = if n % 2 == 0 { twin.clone() } else { job(&store, &ids, "1") };
        push_one(&store, job)
    });
    let bad = store.writer.run(|db, _| {
        db.execute("DELETE FROM jobs", [])?;
        Ok(db.execute("nonsense", []).map(drop)?)
    });
    let (answers, bad) = futures::future::join(futures::future::join_all(calls), bad).await;
    assert!(bad.is_err());
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 11, "{answers:?}");
    assert_eq!(store.claim(&[ask(100)], &Rules::default()).await.won.remove(0).unwrap().len(), 11);
}

#[tokio::test]
async fn history_is_forgotten_after_its_time() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let settings = QueueSettings { retain_done_ms: Some(1), ..Default::default() };
    let queue: QueueName = "q".parse().unwrap();
    let rules = Rules::new(Arc::default(), [(queue, settings)].into());
    let new = job(&store, &IdSource::default(), "0");
    push_one(&store, new.clone()).await.unwrap();
    let taken = store.claim(&[ask(1)], &Rules::default()).await.won.remove(0).unwrap().remove(0);
    let operation = crate::job::transition::Operation::Commit {
        claim: taken.meta.claim.unwrap(),
        result: None,
        push: Vec::new(),
    };
    let commit = Change { id: new.id.clone(), operation };
    store.apply(vec![commit], &rules).await.remove(0).unwrap();
    let done = store.get(std::slice::from_ref(&new.id)).await.unwrap().remove(0).unwrap().unwrap();
    while store.now().unwrap() <= done.meta.purge_at.unwrap() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.prune(10).await.unwrap(), 1);
    assert_eq!(store.get(&[new.id]).await.unwrap(), [None]);
}

/// Takes a job and so many others, lets something happen to its row, and commits all. Returns the outcome for the first, and
/// how many jobs are left; the others must have ended.
async fn committed_after(happened: &str, others: usize) -> (Result<bool, String>, i64) {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    let jobs = (0..=others).map(|_| job(&store, &ids, "0")).collect();
    store.push(jobs, &Rules::default()).await;
    let taken = store.claim(&[ask(others + 1)], &Rules::default()).await.won.remove(0).unwrap();
    let happened = happened.to_owned();
    store.writer.run(move |db, _| Ok(db.execute_batch(&happened)?)).await.unwrap();
    let commits = taken.into_iter().map(|job| {
        let operation = Operation::Commit { claim: job.meta.claim.unwrap(), result: None, push: Vec::new() };
        Change { id: job.meta.id, operation }
    });
    let mut applied = store.apply(commits.collect(), &Rules::default()).await;
    let first = applied.remove(0);
    assert!(applied.iter().all(Result::is_ok), "the others: {applied:?}");
    let left = store.writer.run(|db, _| Ok(db.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0))?));
    (first.map(|applied| applied.repeated).map_err(|denied| format!("{denied:?}")), left.await.unwrap())
}

#[tokio::test]
async fn a_job_that_changed_since_its_delivery_is_read_before_it_ends() {
    for others in [0, 20] {
        let after = async |change: &str| {
            let first = "WHERE rowid = (SELECT min(rowid) FROM jobs)";
            let sql =
                if change.is_empty() { String::new() } else { format!("UPDATE jobs SET {change} {first}") };
            committed_after(&sql, others).await
        };
        assert_eq!(after("").await, (Ok(false), 0));
        // Found by its new `rev` to be another one, and then by what it is.
        assert_eq!(after("rev = rev + 1").await, (Ok(false), 0));
        for other in ["rev = rev + 1, claim = 'another'", "claim = 'another'", "state = 'ready'"] {
            let (lost, left) = after(other).await;
            assert!(lost.unwrap_err().contains("Lost { gone: false }") && left == 1, "{other}");
        }
        // Another job has its rowid by now.
        let (gone, left) = after("id = 'another'").await;
        assert!(gone.unwrap_err().contains("Lost { gone: true }") && left == 1);
        // What the end of a job does not need is not read.
        assert_eq!(after("backoff = 'spoiled'").await, (Ok(false), 0));
    }
}

#[tokio::test]
async fn what_a_claim_of_many_jobs_writes_is_what_it_returns() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    store.push((0..40).map(|_| job(&store, &ids, "0")).collect(), &Rules::default()).await;
    // Some have been delivered before.
    let before = store.claim(&[ask(15)], &Rules::default()).await.won.remove(0).unwrap();
    let operation = |claim| Operation::Rollback { claim, kind: RollbackKind::retry(None), error: None };
    let back = before.into_iter().step_by(2).map(|job| {
        let operation = operation(job.meta.claim.unwrap());
        Change { id: job.meta.id, operation }
    });
    let back = store.apply(back.collect(), &Rules::default()).await;
    assert!(back.iter().all(Result::is_ok));
    let hour = 3_600_000;
    store.clock.shift_ms.store(hour, std::sync::atomic::Ordering::Relaxed); // past their backoff
    let worker = Some("w".parse().unwrap());
    let asks = [ask(20), ClaimAsk { lease_ms: 5000, yields: false, worker, ..ask(9) }, ask(30)];
    let won = store.claim(&asks, &Rules::default()).await.won;
    let won: Vec<Vec<Job>> = won.into_iter().map(Result::unwrap).collect();
    assert_eq!(won.iter().map(Vec::len).collect::<Vec<_>>(), [20, 9, 4]);
    assert_eq!(won.iter().flatten().filter(|job| job.meta.attempts == 2).count(), 8);
    for (ask, job) in asks.iter().zip(&won).flat_map(|(ask, won)| won.iter().map(move |job| (ask, job))) {
        assert_eq!((job.meta.claim.as_ref(), job.meta.lease_ms), (Some(&ask.claim), Some(ask.lease_ms)));
        let stored = store.get(std::slice::from_ref(&job.meta.id)).await.unwrap().remove(0).unwrap().unwrap();
        assert_eq!(stored, *job);
    }
    let counts = store.counts(&"q".parse().unwrap()).await.unwrap().counts;
    assert_eq!((counts.ready, counts.reserved), (0, 40));
}

/// How SQLite carries out a statement.
pub fn plan(db: &Connection, sql: &str) -> Vec<String> {
    let mut explain = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let given = vec![1; explain.parameter_count()];
    let lines = explain.query_map(rusqlite::params_from_iter(given), |row| row.get::<_, String>(3)).unwrap();
    lines.map(Result::unwrap).collect()
}

#[tokio::test]
async fn hot_statements_are_served_by_one_index_without_sorting() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let plans = store.writer.run(|db, _| {
        let statements = [
            (priorities::FIRST_OF_PRIORITY, "jobs_head"),
            (expired::LAPSED, "jobs_reserved_until"),
            (expired::ENDLESS, "jobs_reserved_until"),
            (expired::EXPIRED, "jobs_expires_at"),
            (figures::CAME_DUE, "jobs_due"),
            (prune::PASSED_MARKS, "jobs_due"),
            (recount::BY_STATE, "jobs_browse"),
            (recount::MARKED, "jobs_due"),
            (query::UPCOMING, "jobs_due"),
            (workers::EXTEND, "jobs_worker"),
            (workers::COUNT, "jobs_worker"),
            (workers::HELD, "jobs_worker"),
        ];
        let of_many = [(many::RESERVE_MANY, "PRIMARY KEY"), (many::DELETE_MANY, "PRIMARY KEY")];
        let all = statements.into_iter().chain(of_many);
        Ok(all.map(|(sql, index)| (index, plan(db, sql))).collect::<Vec<_>>())
    });
    for (index, mut plan) in plans.await.unwrap() {
        plan.retain(|line| !line.contains("LIST SUBQUERY") && !line.starts_with("SCAN json_each"));
        assert_eq!(plan.len(), 1, "{plan:?}");
        // A whole index is read where all jobs are compared with what is kept of them.
        let is_served =
            plan[0].starts_with("SEARCH jobs USING") || plan[0].starts_with("SCAN jobs USING COVERING");
        assert!(is_served && plan[0].contains(index), "{plan:?}");
    }
}

/// The order is that of the index, and the row of each job is found by its rowid.
#[tokio::test]
async fn due_jobs_are_read_in_order_from_a_place_on() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let plans = store.writer.run(|db, _| Ok([due::DUE, due::DUE_FOR_POP].map(|sql| plan(db, sql))));
    for plan in plans.await.unwrap() {
        assert_eq!(plan.len(), 2, "{plan:?}");
        assert!(plan[0].starts_with("SEARCH jobs USING"), "{plan:?}");
        assert!(plan[0].contains("jobs_head (queue=? AND priority=? AND (run_at,id)>(?,?)"), "{plan:?}");
        assert!(plan[1].starts_with("SEARCH jobs USING INTEGER PRIMARY KEY (rowid=?)"), "{plan:?}");
    }
}

#[tokio::test]
async fn the_past_is_read_by_seeks() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let plans = store.writer.run(|db, _| {
        let statements =
            [series::NEXT, series::LAST, series::ROWS, series::RECENT, series::TURNS, series::LAST_TURN];
        Ok(statements.map(|sql| plan(db, sql)))
    });
    for plan in plans.await.unwrap() {
        assert!(plan.len() == 1 && plan[0].starts_with("SEARCH series USING PRIMARY KEY"), "{plan:?}");
    }
}

/// How many steps of SQLite's machine the statements of a claim take.
pub fn steps(db: &Connection, sql: &str, params: impl rusqlite::Params) -> i32 {
    let mut statement = db.prepare(sql).unwrap();
    let rows = statement.query(params).unwrap().mapped(|_| Ok(()));
    rows.for_each(drop);
    statement.get_status(StatementStatus::VmStep)
}

#[tokio::test]
async fn waiting_jobs_cost_a_claim_nothing() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    let cost = async || {
        let work = store.writer.run(|db, now: Timestamp| {
            let next = steps(db, priorities::FIRST_OF_PRIORITY, params!["q", i64::MAX]);
            Ok(next + steps(db, due::DUE, params!["q", 0, now.millis(), i64::MIN, ""]))
        });
        work.await.unwrap()
    };
    let before = cost().await;
    let mut waiting = Vec::new();
    for n in 0..5000 {
        let mut job = job(&store, &ids, "0");
        job.run_at = job.run_at.plus_ms(600_000 + n);
        waiting.push(job);
    }
    store.push(waiting, &Rules::default()).await;
    assert!(cost().await <= before + 40, "{} steps became {}", before, cost().await);
}

#[tokio::test]
async fn other_queues_cost_a_queues_figures_nothing() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    let push = async |name: &str| {
        let jobs = (0..4).map(|n| {
            let mut job = job(&store, &ids, "0");
            (job.queue, job.run_at) = (name.parse().unwrap(), job.run_at.plus_ms(n % 2 * 600_000));
            job
        });
        store.push(jobs.collect(), &Rules::default()).await;
    };
    let cost = async || {
        let work = store.writer.run(|db, now: Timestamp| {
            let own = steps(db, figures::OF_QUEUE, params!["q"])
                + steps(db, priorities::FIRST_OF_PRIORITY, params!["q", 1]);
            Ok(own + steps(db, figures::SCHEDULED, params!["q", 0, now.millis(), 10]))
        });
        work.await.unwrap()
    };
    push("q").await;
    let before = (cost().await, store.counts(&"q".parse().unwrap()).await.unwrap());
    assert_eq!((before.1.counts.ready, before.1.counts.scheduled), (2, 2));
    for n in 0..1000 {
        push(&format!("{}{n}", if n % 2 == 0 { "p" } else { "q" })).await;
    }
    assert_eq!(store.counts(&"q".parse().unwrap()).await.unwrap(), before.1);
    assert!(cost().await <= before.0 + 5, "{} steps became {}", before.0, cost().await);
}

#[tokio::test]
async fn ids_that_are_there_already_are_refused_each_for_itself() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    let (one, two) = (job(&store, &ids, "1"), job(&store, &ids, "2"));
    let answers = store.push(vec![one.clone(), one.clone(), two], &Rules::default()).await;
    let good: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, true]);
    assert!(store.get(&[one.id]).await.unwrap()[0].is_some());
}

#[tokio::test]
async fn a_clock_set_back_loses_and_doubles_nothing() {
    let store = SqliteStore::open(Location::Memory).unwrap();
    store.migrate().await.unwrap();
    let ids = IdSource::default();
    let rules = Rules::default();
    push_one(&store, job(&store, &ids, "1")).await.unwrap();
    let taken = store.claim(&[ask(1)], &Rules::default()).await.won.remove(0).unwrap().remove(0);
    push_one(&store, job(&store, &ids, "2")).await.unwrap();

    let hour = 3_600_000;
    store.clock.shift_ms.store(-hour, std::sync::atomic::Ordering::Relaxed);
    let later = job(&store, &ids, "3");
    push_one(&store, later.clone()).await.unwrap();
    // The store's clock goes on: what was due before is delivered, in the order in which it came.
    let jobs = store.claim(&[ask(10)], &Rules::default()).await.won.remove(0).unwrap();
    assert_eq!(jobs.iter().map(|job| job.payload.json().unwrap().as_str()).collect::<Vec<_>>(), ["2", "3"]);
    assert_eq!(jobs[1].meta.id, later.id);
    assert!(store.ahead_ms() > 3_000_000);
    let stale = Operation::Commit { claim: Claim::random(), result: None, push: Vec::new() };
    let commit =
        Operation::Commit { claim: taken.meta.claim.clone().unwrap(), result: None, push: Vec::new() };
    let changes = [stale, commit].map(|operation| Change { id: taken.meta.id.clone(), operation });
    let applied = store.apply(changes.to_vec(), &rules).await;
    assert!(applied[0].is_err() && applied[1].is_ok(), "the token decides, whatever the clock says");

    store.clock.shift_ms.store(0, std::sync::atomic::Ordering::Relaxed);
    assert!(store.claim(&[ask(10)], &Rules::default()).await.won.remove(0).unwrap().is_empty(), "each once");
    assert!(store.ahead_ms() < 100);
}
