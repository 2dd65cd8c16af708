//! What becomes of jobs: pushes, claims, settles, groups, limits, and what runs out.

use std::sync::Arc;

use futures::future::BoxFuture;
use mongodb::bson::{DateTime, doc};
use tailback::job::settings::{Defaults, Rate};
use tailback::job::transition::{Operation, RollbackKind};
use tailback::job::{
    Claim, IdSource, Job, JobSpec, NewJob, Payload, QueueSettings, Rules, SemaphoreName, When, WorkerName,
};
use tailback::store::{
    Change, ClaimAsk, Filter, Jobs as _, Pushed, Report, Semaphores as _, Store as _, Workers as _,
};

use super::bench::{Bench, HOUR_MS, JOBS, QUEUES, document, queue, rules};

pub async fn claiming(bench: &Bench) -> Vec<Job> {
    let mut won = Vec::new();
    for count in [1, 100, 900] {
        let claim = Claim::random();
        let ask = ClaimAsk {
            queue: queue(7),
            count,
            claim,
            lease_ms: HOUR_MS.unsigned_abs(), // the reaper is to find nothing of them
            yields: false,
            worker: None,
            pop: false,
        };
        let asks = [ask];
        let jobs =
            bench.judge(&format!("a claim of {count}"), count, bench.store.claim(&asks, &rules(None))).await;
        let jobs = jobs.won.into_iter().next().unwrap().unwrap();
        assert_eq!(jobs.len(), count);
        won.extend(jobs);
    }
    won
}

pub async fn settling(bench: &Bench, jobs: Vec<Job>) {
    let changes = |jobs: &[Job], operation: &dyn Fn(Claim) -> Operation| -> Vec<Change> {
        let change = |job: &Job| {
            let claim = job.meta.claim.clone().unwrap();
            Change { id: job.meta.id.clone(), operation: operation(claim) }
        };
        jobs.iter().map(change).collect()
    };
    let commit = |claim| Operation::Commit { claim, result: None, push: Vec::new() };
    let rollback =
        |claim| Operation::Rollback { claim, kind: RollbackKind::retry(Some(9_000_000)), error: None };
    let target = queue(8);
    let to = |claim| Operation::Move {
        claim,
        queue: target.clone(),
        payload: None,
        when: When::Now,
        priority: None,
        headers: None,
        key: None,
    };
    let rules = rules(None);
    for (what, changes) in [
        ("commits", changes(&jobs[..300], &commit)),
        ("rollbacks", changes(&jobs[300..600], &rollback)),
        ("moves", changes(&jobs[600..620], &to)),
    ] {
        let count = changes.len();
        for applied in bench.judge(what, count, bench.store.apply(changes, &rules)).await {
            applied.unwrap();
        }
    }
}

fn new_job(bench: &Bench, ids: &IdSource, n: i64) -> NewJob {
    let now = bench.store.now().unwrap();
    NewJob::new(ids.next(now), queue(n), JobSpec::new(Payload::parse("1").unwrap()), now)
}

pub async fn pushing(bench: &Bench) {
    // The count stops at the limit, however many jobs there are.
    let (limit, limited) = (100, rules(Some(100)));
    let pushed = bench
        .judge(
            "the room in a full queue",
            limit,
            bench.store.push(vec![new_job(bench, &IdSource::default(), 1)], &limited),
        )
        .await;
    assert_eq!(*pushed[0].as_ref().unwrap(), Pushed::Full);
}

/// Beside many lines of many jobs: whose turn comes is found by its place, also behind a gap.
pub async fn in_groups(bench: &Bench) {
    const LINES: i64 = 20;
    let ids = IdSource::default();
    let new = |n: i64| {
        let mut job = new_job(bench, &ids, n);
        job.queue = "grouped".parse().unwrap();
        job.spec.group = Some(format!("group-{}", n % LINES).parse().unwrap());
        job
    };
    let jobs: Vec<NewJob> = (0..LINES * 50).map(new).collect();
    let second = jobs[usize::try_from(LINES).unwrap()].id.clone();
    let pushed = bench.store.push(jobs, &rules(None)).await;
    assert!(pushed.iter().all(|pushed| matches!(pushed, Ok(Pushed::Created | Pushed::Blocked))));
    let gap = vec![Change {
        id: second,
        operation: Operation::Cancel { within: tailback::job::Reach::default(), force: false },
    }];
    let group = Some("group-7".parse().unwrap());
    let filter = Filter { group, ..Filter::all("grouped".parse().unwrap()) };
    bench.build_index(&filter).await; // it is not built beside the others
    bench.judge("leaving a line", 1, bench.store.apply(gap, &rules(None))).await.remove(0).unwrap();
    let found = bench.judge("browsing a group", 20, bench.store.find(&filter, None, 20)).await.unwrap();
    assert_eq!(found.len(), 20);
    let ask = ClaimAsk {
        queue: "grouped".parse().unwrap(),
        count: 100,
        claim: Claim::random(),
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let taken = bench.store.claim(&[ask], &rules(None)).await.won.remove(0).unwrap();
    assert_eq!(taken.len() as i64, LINES);
    let commit = |job: &Job| Change {
        id: job.meta.id.clone(),
        operation: Operation::Commit {
            claim: job.meta.claim.clone().unwrap(),
            result: None,
            push: Vec::new(),
        },
    };
    let changes: Vec<Change> = taken.iter().map(commit).collect();
    let applied =
        bench.judge("whose turn comes", 3 * taken.len(), bench.store.apply(changes, &rules(None))).await;
    assert!(applied.iter().all(|applied| applied.as_ref().unwrap().unblocked.len() == 1));
}

pub async fn reaping(bench: &Bench, now: i64) {
    let past = |n: i64| DateTime::from_millis(now - n);
    let late = (JOBS..JOBS + 600).map(|n| {
        let mut job = document(n, now);
        job.remove("due");
        job.insert("expires_at", past(n));
        if n % 2 == 0 {
            job.remove("expires_at");
            job.extend(doc! { "state": "reserved", "claim": "c", "reserved_until": past(n) });
        } else {
            job.insert("state", "ready");
        }
        job
    });
    bench.insert(late.collect()).await;
    let work: BoxFuture<'_, _> = Box::pin(bench.store.overdue(200));
    let overdue = bench.judge("the reaper", 200, work).await.unwrap();
    assert_eq!(overdue.changes.len(), 200);
    let count = overdue.changes.len();
    let applied =
        bench.judge("what the reaper does", count, bench.store.apply(overdue.changes, &rules(None))).await;
    assert!(applied.into_iter().all(|applied| applied.is_ok()));
    loop {
        let changes = bench.store.overdue(500).await.unwrap().changes;
        if changes.is_empty() {
            break;
        }
        bench.store.apply(changes, &rules(None)).await;
    }
    // From here on it begins where nothing was left.
    let overdue = bench.judge("the reaper in vain", 1, bench.store.overdue(500)).await.unwrap();
    assert!(overdue.changes.is_empty());
}

/// What workers hold is found by their names, also where it is found to be lost.
pub async fn working(bench: &Bench, now: i64) {
    const HELD: usize = 100;
    let names: Vec<WorkerName> = (0..6).map(|n| format!("worker-{n}").parse().unwrap()).collect();
    let held = (2 * JOBS..2 * JOBS + (6 * HELD) as i64).map(|n| {
        let mut job = document(0, now); // a reserved one
        let started_at = DateTime::from_millis(now - HOUR_MS);
        job.extend(doc! {
            "_id": format!("HELD{n}"), "started_at": started_at, "worker": names[n as usize % 6].as_str(),
        });
        job
    });
    bench.insert(held.collect()).await;
    for name in &names {
        let report = Report { version: None, slots: None, timeout_ms: 1 };
        let told = bench.judge("a heartbeat", HELD, bench.store.heartbeat(name, &report)).await.unwrap();
        assert_eq!(told.jobs, HELD as u64);
    }
    let listed = bench.judge("the workers", 6 * HELD, bench.store.workers(None, 100)).await.unwrap();
    assert!(listed.len() == 6 && listed.iter().all(|worker| worker.reserved == HELD as u64));
    let held = bench.judge("what one holds", HELD, bench.store.held_by(&names[3], 1000)).await.unwrap();
    assert_eq!(held.len(), HELD);
    let silent =
        bench.judge("who is silent", 200, bench.store.timed_out_workers(u64::MAX, 200)).await.unwrap();
    assert_eq!(silent.changes.len(), 200);
    let applied = bench.judge("what they lose", 200, bench.store.apply(silent.changes, &rules(None))).await;
    assert!(applied.into_iter().all(|applied| applied.is_ok()));
}

/// Holders, those who wait and those who are called are found by the semaphore, in a line of thousands.
pub async fn limiting(bench: &Bench, now: i64) {
    const WAITING: usize = 2000;
    let (one, other) = ("one".parse::<SemaphoreName>().unwrap(), "other".parse::<SemaphoreName>().unwrap());
    bench.store.save_semaphore(&one, 5).await.unwrap();
    bench.store.save_semaphore(&other, 1).await.unwrap();
    let line = (3 * JOBS..3 * JOBS + 2 * WAITING as i64).map(|n| {
        let mut job = document(12 * QUEUES * 10, now); // a ready one
        let at = DateTime::from_millis(now - 5000 + n % 1000);
        job.extend(doc! {
            "_id": format!("NEED{n}"), "queue": format!("limited-{}", n % 4), "run_at": at,
            "semaphores": if n % 3 == 0 { vec!["one", "other"] } else { vec!["one"] },
        });
        if n % 2 == 0 {
            job.extend(doc! { "state": "blocked", "waits_for": "one", "waiting_since": at });
        }
        job
    });
    bench.insert(line.collect()).await;
    let called =
        bench.judge("a call", 8, bench.store.unblock_waiters(std::slice::from_ref(&one), &rules(None))).await;
    let called = called.unwrap().len();
    assert!((5..=10).contains(&called), "{called} for five places, in two queues");
    let all = bench.judge("a look for all", 8, bench.store.waited_for(None, 1000)).await.unwrap();
    let again =
        bench.judge("a call of all", 8, bench.store.unblock_waiters(&all, &rules(None))).await.unwrap();
    assert!(again.len() <= 10, "{}", again.len());
    let ask = ClaimAsk {
        queue: "limited-1".parse().unwrap(),
        count: 3,
        claim: Claim::random(),
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let asks = [ask];
    let claims = bench.judge("a claim with semaphores", 32, bench.store.claim(&asks, &rules(None))).await;
    assert!(claims.won[0].as_ref().unwrap().len() <= 3);
    let shown = bench.judge("a semaphore", 2 * WAITING, bench.store.semaphores(&[one.clone(), other])).await;
    assert_eq!(shown.unwrap().len(), 2);
    // Not judged: they are no more than the capacity, and are sorted for whoever looks at them.
    assert!(bench.store.holders(&one, 1000).await.unwrap().len() <= 3);
    under_limits(bench).await;
}

async fn under_limits(bench: &Bench) {
    let limited = QueueSettings {
        max_reserved: Some(50),
        rate: Some(Rate { limit: 50, per_ms: 60_000 }),
        ..QueueSettings::default()
    };
    let rules = Rules::new(Arc::new(Defaults::default()), [(queue(9), limited)].into());
    let claim = Claim::random();
    let ask = ClaimAsk {
        queue: queue(9),
        count: 100,
        claim,
        lease_ms: 60_000,
        yields: false,
        worker: None,
        pop: false,
    };
    let asks = [ask];
    let claims = bench.judge("a claim under limits", 100, bench.store.claim(&asks, &rules)).await;
    assert!(claims.won[0].as_ref().unwrap().len() <= 50);
}
