//! A disk that is full for a while, or that fails for a while: the server says so, keeps what it has acknowledged, and
//! goes on by itself once the disk is well.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::server::until;
use crate::common::shim::DiskFault;
use crate::lane::Lane;
use crate::site::{Answer, Call, LEASE_MS, Site};

/// What a server answers meanwhile: that the store is full, or that it is not available.
const FAILING: [u16; 2] = [507, 503];

/// How often the calls are repeated while the disk is ill.
const ROUNDS: usize = 5;

/// How often a test tries to strike what it means to.
const TRIES: usize = 20;

/// What clients know of a site.
struct Known {
    site: Site,
    held: Vec<Value>,
    waiting: usize,
}

async fn known(lane: &mut Lane) -> Known {
    let site = lane.site();
    site.must(Method::PUT, "/semaphores/@", json!({"capacity": 1})).await;
    for n in 0..6 {
        site.push(json!({"payload": n, "key": format!("k{n}"), "group": "g"})).await;
        site.push(json!({"payload": n, "semaphores": ["@"]})).await;
        site.push(json!({"payload": n})).await;
    }
    let ask = json!({"count": 8, "lease_ms": LEASE_MS});
    let answer = site.must(Method::POST, "/queues/@/reserve", ask).await;
    let held = answer["jobs"].as_array().unwrap().clone();
    assert_eq!(held.len(), 8, "{answer}");
    for n in 0..6 {
        site.push(json!({"payload": n})).await;
    }
    Known { waiting: 24 - held.len(), site, held }
}

/// One call of every kind that has to write.
async fn calls(known: &Known) -> Vec<Answer> {
    let site = &known.site;
    let first = &known.held[0];
    let calls = [
        site.post("/queues/@/jobs", json!({"payload": "refused"})),
        site.post("/queues/@/jobs", json!({"payload": "refused", "key": "refused", "group": "g"})),
        site.post("/queues/@/reserve", json!({"count": 1})),
        site.post("/queues/@/reserve", json!({"count": 1, "wait_ms": 300})),
        site.post("/queues/@/reserve", json!({"count": 1, "lease_ms": LEASE_MS})).with_key("refused"),
        site.post("/queues/@/pop", json!({})),
        site.settle(first, "commit", json!({"push": [{"queue": "@.next", "payload": "refused"}]})),
        site.settle(first, "rollback", json!({})),
        site.settle(first, "move", json!({"queue": "moved"})),
        site.call(Method::PUT, "/queues/@", json!({"max_attempts": 3})),
        site.call(Method::PUT, "/semaphores/@", json!({"capacity": 3})),
        site.post("/workers/@/heartbeat", json!({})),
        site.post("/batches", json!({"jobs": [{"queue": "@", "payload": "refused"}]})),
    ];
    let mut answers = Vec::new();
    for call in calls {
        answers.push(site.make(&call.act).await.expect("the server lives"));
    }
    answers
}

/// Breaks the disk for a while, under calls; then all is as it was before, and goes on.
async fn is_ill_for_a_while(fault: DiskFault, expected: &[u16]) {
    let mut lane = Lane::start().await;
    let known = known(&mut lane).await;
    let look = [known.site.path("/semaphores/@")];
    let before = known.site.picture(&look).await.unwrap();
    lane.shim.arm_next(fault);
    for _ in 0..ROUNDS {
        for (status, answer) in calls(&known).await {
            assert!(expected.contains(&status), "{fault:?}: {status} {answer}");
            assert_eq!(answer["retryable"], true, "{answer}");
        }
    }
    until("the server says that it is not ready", || async { lane.server().get("/readyz").await.0 == 503 })
        .await;
    assert_eq!(lane.server().get("/healthz").await.0, 200);
    if fault != DiskFault::ReadError {
        assert_eq!(
            known.site.picture(&look).await.unwrap(),
            before,
            "{fault:?}: what was refused has happened"
        );
    }
    lane.shim.heal();
    let healed = Instant::now();
    lane.server().until_ready().await;
    println!("{fault:?}: struck {} times, ready {:?} after its end", lane.shim.struck(), healed.elapsed());
    assert_eq!(known.site.picture(&look).await.unwrap(), before, "{fault:?}: something is not as it was");
    goes_on(lane, known).await;
}

/// The server, which was never restarted, serves again, and saves what it acknowledges.
async fn goes_on(mut lane: Lane, known: Known) {
    let Known { site, held, waiting } = known;
    let id = site.push(json!({"payload": "new"})).await;
    let commit = site.settle(&held[0], "commit", json!({}));
    assert_eq!(site.make(&commit.act).await.unwrap().0, 200);
    let name = site.name.clone();
    lane.cut_power(site).await;
    let site = lane.again(&name);
    site.must(Method::GET, &format!("/jobs/{id}"), Value::Null).await;
    let seen = site.picture(&[]).await.unwrap();
    assert_eq!(seen[""].as_array().unwrap().len(), waiting + held.len(), "one is new, one is committed");
    site.drain(&held[1..]).await;
    // What waited for a semaphore is unblocked within a second.
    until("everything is drained", || async {
        site.drain(&[]).await;
        site.picture(&[]).await.unwrap()[""] == json!([])
    })
    .await;
    site.clear().await;
    drop(site);
    lane.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_disk_is_full_for_a_while() {
    is_ill_for_a_while(DiskFault::FullFrom, &[507]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quota_is_used_up_for_a_while() {
    is_ill_for_a_while(DiskFault::QuotaFrom, &[507]).await;
}

/// The quota is used up in the middle of a call that is made of several steps: 507 promises that none was made.
async fn keeps_its_promise(prepare: impl AsyncFn(&Site) -> (Call, String)) {
    const PARTS: u64 = 12;
    let (mut lane, mut answers, mut operations) = (Lane::start().await, Vec::new(), 0);
    for part in 0..=PARTS {
        let site = lane.site();
        let (call, look) = prepare(&site).await;
        let look = [site.path(&look)];
        let (before, first) = (site.picture(&look).await.unwrap(), lane.shim.count());
        if part > 0 {
            lane.shim.arm(DiskFault::QuotaFrom, first + operations * (part - 1) / PARTS);
        }
        let (status, answer) = site.make(&call.act).await.expect("the server lives");
        operations = operations.max(lane.shim.count() - first);
        lane.shim.heal();
        lane.server().until_ready().await;
        if status == 507 {
            assert_eq!(site.picture(&look).await.unwrap(), before, "part {part}: {answer}");
        }
        // What was done of it is told by 503, or by `more`.
        answers.push(if answer["more"] == true { 503 } else { status });
        site.clear().await;
    }
    println!("of {operations} operations: {answers:?}");
    assert!(answers[0] < 300 && answers.contains(&507) && answers.contains(&503), "{answers:?}");
    lane.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_that_has_begun_is_not_507() {
    keeps_its_promise(async |site| {
        for queue in ["@", "@.next"] {
            let path = format!("/queues/{queue}");
            if queue == "@.next" {
                site.must(Method::PUT, &path, json!({"dead_letter": "@"})).await;
            }
            let jobs: Vec<Value> = (0..20).map(|n| json!({"payload": n, "max_attempts": 1})).collect();
            site.must(Method::POST, &format!("{path}/jobs/batch"), json!({ "jobs": jobs })).await;
            let ask = json!({"count": 20, "lease_ms": LEASE_MS});
            let held = site.must(Method::POST, &format!("{path}/reserve"), ask).await;
            for job in held["jobs"].as_array().unwrap() {
                assert_eq!(site.make(&site.settle(job, "rollback", json!({})).act).await.unwrap().0, 200);
            }
        }
        (site.post("/queues/@/redrive", json!({})), "/queues/@".to_owned())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_cancel_has_begun_is_not_507() {
    keeps_its_promise(async |site| {
        let jobs: Vec<Value> = (0..20).map(|n| json!({"queue": "@", "payload": n})).collect();
        let batch = json!({"sealed": false, "jobs": jobs});
        let batch = site.must(Method::POST, "/batches", batch).await;
        let path = format!("/batches/{}", batch["id"].as_str().unwrap());
        (site.call(Method::DELETE, &path, Value::Null), path)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_half_removed_is_not_507() {
    keeps_its_promise(async |site| {
        let jobs: Vec<Value> = (0..250).map(|n| json!({"payload": n})).collect();
        site.must(Method::POST, "/queues/@/jobs/batch", json!({ "jobs": jobs })).await;
        site.must(Method::POST, "/workers/@/heartbeat", json!({"timeout_ms": LEASE_MS})).await;
        let ask = json!({"count": 250, "lease_ms": LEASE_MS, "worker": "@"});
        let held = site.must(Method::POST, "/queues/@/reserve", ask).await;
        assert_eq!(held["jobs"].as_array().unwrap().len(), 250);
        (site.call(Method::DELETE, "/workers/@", Value::Null), "/queues/@".to_owned())
    })
    .await;
}

/// Returns the first of the operations behind this one that saves what was written.
fn first_sync(lane: &Lane, before: u64) -> Option<u64> {
    (before + 1..=lane.shim.count()).find(|n| lane.shim.operation(*n).is_sync())
}

/// Pops a job that nothing disturbs. Returns how many operations its claim makes, which is the first of the two transactions of a pop.
async fn operations_of_a_claim(lane: &mut Lane) -> u64 {
    let site = lane.site();
    site.push(json!({"payload": 1, "max_attempts": 1})).await;
    let before = lane.shim.count();
    site.must(Method::POST, "/queues/@/pop", json!({})).await;
    let saved = first_sync(lane, before).expect("a claim is saved");
    site.clear().await;
    saved - before
}

/// The second transaction of a pop, which takes the job away, meets a used-up quota: the job comes back once there is room, and the
/// attempt, which was its only one, does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_a_pop_has_claimed_and_not_taken_away_comes_back() {
    let mut lane = Lane::start().await;
    for _ in 0..TRIES {
        let claim = operations_of_a_claim(&mut lane).await;
        let site = lane.site();
        let id = site.push(json!({"payload": 1, "max_attempts": 1})).await;
        let before = lane.shim.count();
        lane.shim.arm(DiskFault::QuotaFrom, before + claim + 1);
        let pop = site.post("/queues/@/pop", json!({}));
        let (status, answer) = site.make(&pop.act).await.expect("the server lives");
        let is_behind_claim = lane.shim.struck() > 0 && first_sync(&lane, before) == Some(before + claim);
        lane.shim.heal();
        lane.server().until_ready().await;
        // The claim was longer or shorter, such as by the time that is kept once a second, or what was saved was none.
        if !is_behind_claim || status == 507 {
            site.clear().await;
            continue;
        }
        assert_eq!((status, &answer["retryable"]), (503, &json!(true)), "{answer}");
        let ask = json!({"wait_ms": 60_000, "lease_ms": LEASE_MS});
        let again = site.must(Method::POST, "/queues/@/reserve", ask).await;
        let jobs = again["jobs"].as_array().unwrap();
        let shown: Vec<_> = jobs.iter().map(|job| (&job["id"], &job["attempt"])).collect();
        assert_eq!(shown, [(&json!(id), &json!(1))], "{again}");
        site.drain(jobs).await;
        site.clear().await;
        drop(site);
        return lane.finish().await;
    }
    panic!("no pop was struck behind its claim");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_write_succeeds_for_a_while() {
    is_ill_for_a_while(DiskFault::ErrorFrom, &FAILING).await;
}

/// What is not in memory cannot be read: such calls get 503, nothing ends the server, and it goes on afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_succeeds_for_a_while() {
    let mut lane = Lane::start().await;
    let known = known(&mut lane).await;
    let name = known.site.name.clone();
    let (before, held) = (known.site.picture(&[]).await.unwrap(), known.held);
    drop(known.site);
    lane.restart().await;
    lane.shim.arm_next(DiskFault::ReadError);
    let site = lane.again(&name);
    let call = site.call(Method::GET, "/queues/@/jobs", Value::Null);
    let (mut refused, mut rounds) = (0, 0);
    while rounds < ROUNDS {
        let push = site.post(&format!("/queues/@.{rounds}/jobs"), json!({"payload": 1}));
        for call in [&call, &push] {
            let (status, answer) = site.make(&call.act).await.expect("the server lives");
            assert!(status < 300 || FAILING.contains(&status), "{status} {answer}");
            refused += usize::from(FAILING.contains(&status));
        }
        rounds += 1;
    }
    assert!(refused > 0 && lane.shim.struck() > 0, "everything is in memory");
    until("the server says that it is not ready", || async { lane.server().get("/readyz").await.0 == 503 })
        .await;
    lane.shim.heal();
    lane.server().until_ready().await;
    assert_eq!(site.picture(&[]).await.unwrap(), before);
    for n in 0..ROUNDS {
        site.must(Method::DELETE, &format!("/queues/@.{n}?force=true"), Value::Null).await;
    }
    println!("ReadError: {refused} of {} calls refused", 2 * ROUNDS);
    goes_on(lane, Known { site, held, waiting: 16 }).await;
}

/// A keyed reserve is under way when the server is killed, and the next start meets an error: the repeat is answered
/// at once all the same, because whatever was under way is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_fails_at_first_still_knows_that_earlier_requests_are_dead() {
    let mut lane = Lane::start().await;
    let mut struck = 0;
    for n in 1.. {
        let site = lane.site();
        crate::verbs::start(site.clone()).await;
        let name = site.name.clone();
        drop(site);
        lane.stop();
        lane.shim.arm(DiskFault::ErrorOnce, lane.shim.count() + n);
        if !lane.launch() || !lane.becomes_ready().await {
            lane.start_again().await;
        }
        let is_struck = lane.shim.struck() > 0;
        lane.shim.heal();
        let site = lane.again(&name);
        site.must(Method::POST, "/queues/@.next/jobs", json!({"payload": 1})).await;
        let repeat = site.post("/queues/@.next/reserve", json!({"wait_ms": 60_000})).with_key("a");
        let since = Instant::now();
        let (status, answer) = site.make(&repeat.act).await.unwrap();
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["jobs"].as_array().unwrap().len(), 1);
        assert!(since.elapsed() < Duration::from_secs(30), "the repeat waited for a dead request: {n}");
        site.drain(answer["jobs"].as_array().unwrap()).await;
        site.clear().await;
        if !is_struck {
            break;
        }
        struck += 1;
    }
    println!("starts that met an error: {struck}");
    lane.finish().await;
}

/// A server does not start on a full disk, leaves the file as it is, and starts once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_harms_nothing() {
    let mut lane = Lane::start().await;
    let known = known(&mut lane).await;
    let name = known.site.name.clone();
    let before = known.site.picture(&[]).await.unwrap();
    drop(known.site);
    lane.stop();
    lane.shim.arm_next(DiskFault::QuotaFrom);
    if lane.launch() {
        assert_eq!(lane.server().get("/readyz").await.0, 503);
    }
    assert!(lane.shim.struck() > 0);
    lane.restart().await;
    let site = lane.again(&name);
    assert_eq!(site.picture(&[]).await.unwrap(), before);
    site.clear().await;
    drop(site);
    lane.finish().await;
}
