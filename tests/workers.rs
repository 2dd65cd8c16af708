//! Workers on the verge of silence, with two servers' stores over one MongoDB: what a heartbeat has answered is
//! not taken for a silence before it. MongoDB only: in an embedded file one transaction does it all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "shown when a test fails or with --no-capture")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::server::{PATIENCE, Place};
use common::stores::open_mongo;
use tailback::job::{Claim, IdSource, JobSpec, NewJob, Payload, Rules, WorkerName};
use tailback::store::mongo::Mongo;
use tailback::store::{ClaimAsk, Figures as _, Jobs as _, Report, Store as _, Workers as _};

const JOBS: usize = 20;
const ROUNDS: usize = 100;
const TIMEOUT_MS: u64 = 60;
/// Longer than the test takes.
const LEASE_MS: u64 = 600_000;

fn job(store: &Mongo, ids: &IdSource) -> NewJob {
    let now = store.now().unwrap();
    let spec = JobSpec { max_attempts: Some(1_000_000), ..JobSpec::new(Payload::parse("1").unwrap()) };
    NewJob::new(ids.next(now), "q".parse().unwrap(), spec, now)
}

/// What a server does all the time: finds who is silent, and a moment later takes what they hold.
async fn take_from_silent(store: Arc<Mongo>, end: Arc<AtomicBool>) -> usize {
    let mut taken = 0;
    while !end.load(Ordering::Relaxed) {
        let changes = store.timed_out_workers(u64::MAX, 100).await.unwrap().changes;
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..40))).await; // a server that is busy
        let applied = store.apply(changes, &Rules::default()).await;
        taken += applied.into_iter().filter(|applied| applied.is_ok()).count();
    }
    taken
}

async fn what_a_heartbeat_answers_holds(place: &Place) {
    let (one, other) = (open_mongo(&place.url).await, open_mongo(&place.url).await);
    let ids = IdSource::default();
    let jobs = (0..JOBS).map(|_| job(&one, &ids)).collect();
    one.push(jobs, &Rules::default()).await.into_iter().for_each(|pushed| drop(pushed.unwrap()));
    let name: WorkerName = "w".parse().unwrap();
    let report = Report { version: None, slots: None, timeout_ms: TIMEOUT_MS };
    let end = Arc::new(AtomicBool::new(false));
    let takers = [&one, &other].map(|store| tokio::spawn(take_from_silent(store.clone(), end.clone())));
    let (mut judged, mut partial, mut kept, mut sign) = (0, 0, 0, Instant::now());
    let end_of_patience = Instant::now() + PATIENCE;
    let mut n = 0;
    // A machine that is busy may need more rounds until something can be said.
    while n < ROUNDS || (judged == 0 || kept == 0) && Instant::now() < end_of_patience {
        n += 1;
        let store = [&one, &other][n % 2];
        let ask = ClaimAsk {
            queue: "q".parse().unwrap(),
            count: JOBS,
            claim: Claim::random(),
            lease_ms: LEASE_MS,
            yields: false,
            worker: Some(name.clone()),
            pop: false,
        };
        if !store.claim(&[ask], &Rules::default()).await.won.remove(0).unwrap().is_empty() {
            sign = Instant::now();
        }
        // Its last sign of life is about as long ago as it may be.
        let pause = Duration::from_millis(TIMEOUT_MS - 10 + rand::random_range(0..50));
        tokio::time::sleep_until((sign + pause).into()).await;
        let sent = Instant::now();
        let told = store.heartbeat(&name, &report).await.unwrap();
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..20))).await;
        let held = store.held_by(&name, 2 * JOBS).await.unwrap().len();
        if sent.elapsed() < Duration::from_millis(TIMEOUT_MS) {
            assert_eq!(held as u64, told.jobs, "jobs were taken after the heartbeat had told of them");
            judged += 1;
        }
        kept += usize::from(told.jobs == JOBS as u64);
        partial += usize::from(told.jobs > 0 && told.jobs < JOBS as u64);
        sign = sent;
    }
    end.store(true, Ordering::Relaxed);
    let mut taken = 0;
    for taker in takers {
        taken += taker.await.unwrap();
    }
    let seen =
        format!("{judged} of {n} rounds judged, {kept} without a loss, {partial} in the middle of one");
    println!("{seen}");
    assert!(judged > 0 && kept > 0 && taken > 0, "nothing was tried: {seen}");
    other.close().await; // what it has counted is stored
    let counts = one.summary(0).await.unwrap().total.counts;
    assert_eq!(counts.ready + counts.reserved, JOBS as u64, "none is lost");
    one.close().await;
}

on_one_store! { mongo:
    what_a_heartbeat_answers_holds
}
