//! Faults where no call is under way: the first start, which makes the file, the stop, which moves the log into it, and
//! the checkpoint in the middle of a commit.

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::server::until;
use crate::common::shim::DiskFault;
use crate::common::signal::{self, Signal};
use crate::lane::Lane;
use crate::site::Site;

/// Returns which operations of so many are struck by what: all by all, or as many as given, each by another one.
fn chosen(operations: u64, usual: u64) -> Vec<(u64, DiskFault)> {
    let all = std::env::var("TAILBACK_DISK_CASES").is_ok_and(|which| which == "all");
    if all && operations <= 200 {
        return (1..=operations).flat_map(|n| DiskFault::SINGLE.map(|fault| (n, fault))).collect();
    }
    let cases = if all { 120 } else { usual };
    let last = operations - 1;
    (0..cases)
        .map(|n| (1 + n * last / (cases - 1), DiskFault::SINGLE[n as usize % DiskFault::SINGLE.len()]))
        .collect()
}

async fn push_is_stored(lane: &mut Lane) {
    let site = lane.site();
    site.push(json!({"payload": 1})).await;
    empty(&site).await;
}

async fn empty(site: &Site) {
    site.drain(&[]).await;
    site.clear().await;
}

/// The site of pushes that a fault may strike.
const STRUCK: &str = "struck";

/// Pushes until the fault has struck: a start may be some operations shorter than the one that was counted.
async fn until_struck(lane: &Lane) {
    let site = lane.again(STRUCK);
    let push = site.post("/queues/@/jobs", json!({"payload": 0}));
    until("the fault strikes", || async {
        if lane.shim.struck() == 0 {
            site.make(&push.act).await;
        }
        lane.shim.struck() > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_start_is_struck() {
    let lane = Lane::start().await;
    let operations = lane.shim.count();
    lane.finish().await;
    for (n, fault) in chosen(operations, 24) {
        let mut lane = Lane::without_server().await;
        lane.shim.arm(fault, n);
        // A server that listens goes on trying, or ends soon.
        if lane.launch() {
            until_struck(&lane).await;
            if fault.kills() {
                lane.until_gone().await;
            } else if lane.becomes_ready().await {
                push_is_stored(&mut lane).await;
            }
        }
        assert!(lane.shim.struck() > 0, "operation {n} is not reached: {fault:?}");
        lane.restart().await;
        push_is_stored(&mut lane).await;
        empty(&lane.again(STRUCK)).await;
        lane.finish().await;
    }
    println!("first start: {operations} operations");
}

/// A power cut is what these tests take it for: it finds a server that saves what it has acknowledged only later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_finds_what_is_acknowledged_and_not_saved() {
    for (bug, expected) in [("", 200), ("save_later", 404)] {
        let mut lane = Lane::without_server().await;
        lane.bug = bug;
        lane.start_again().await;
        let site = lane.site();
        let id = site.push(json!({"payload": 1})).await;
        let name = site.name.clone();
        lane.cut_power(site).await;
        let site = lane.again(&name);
        let look = site.call(Method::GET, &format!("/jobs/{id}"), Value::Null);
        let (status, answer) = site.make(&look.act).await.unwrap();
        assert_eq!(status, expected, "{bug}");
        if status == 404 {
            println!("{bug}: found in case 1: {answer}");
        }
        site.clear().await;
        drop(site);
        lane.finish().await;
    }
}

/// Pushes some jobs and stops the server by SIGTERM. Returns the operations of the stop.
async fn stop_with_jobs(lane: &mut Lane, strike: Option<(u64, DiskFault)>) -> (Site, u64) {
    let site = lane.site();
    for n in 0..3 {
        site.push(json!({"payload": n, "key": format!("k{n}")})).await;
    }
    let before = lane.shim.count();
    if let Some((n, fault)) = strike {
        lane.shim.arm(fault, before + n);
    }
    signal::send(lane.server().child.id(), Signal::SIGTERM);
    lane.until_gone().await;
    (site, lane.shim.count() - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_stop_is_struck() {
    let mut lane = Lane::start().await;
    let (site, operations) = stop_with_jobs(&mut lane, None).await;
    let name = site.name.clone();
    drop(site);
    lane.restart().await;
    let site = lane.again(&name);
    let before = site.picture(&[]).await.unwrap();
    site.drain(&[]).await;
    site.clear().await;
    drop(site);
    for strike in chosen(operations, 24) {
        let (site, _) = stop_with_jobs(&mut lane, Some(strike)).await;
        let name = site.name.clone();
        drop(site);
        lane.restart().await;
        let site = lane.again(&name);
        assert_eq!(site.picture(&[]).await.unwrap(), before, "{strike:?}");
        site.drain(&[]).await;
        site.clear().await;
    }
    println!("stop: {operations} operations");
    lane.finish().await;
}

/// Pushes as much as fills the log but for one large job. Some 3800 of its 4000 pages are full then: there is room for what the
/// server writes by itself meanwhile.
async fn fill_the_log(site: &Site) {
    for n in 0..14 {
        site.push(json!({"payload": [n, "x".repeat(1_040_000)]})).await;
    }
    site.push(json!({"payload": [14, "x".repeat(350_000)]})).await;
}

/// How many pages a large job has at least, and how many operations its push makes at least.
const PAGES: u64 = 250;

/// How many operations of a checkpoint are left out at either end.
const MARGIN: u64 = 100;

/// How often a test tries to strike a checkpoint: a read that is under way holds it up, at what the log was when it began.
const TRIES: usize = 20;

/// Returns how many operations a push makes until its commit is saved, and with the checkpoint behind it.
async fn learn_checkpoint(last: &Value) -> Option<(u64, u64)> {
    let mut lane = Lane::start().await;
    let site = lane.site();
    fill_the_log(&site).await;
    let before = lane.shim.count();
    site.push(last.clone()).await;
    let count = lane.shim.count();
    // A sync before that is of what the server wrote by itself.
    let is_commit = |n: &u64| *n > before + PAGES && lane.shim.operation(*n).is_sync();
    let commit = (before + 1..=count).find(is_commit).unwrap() - before - 1;
    site.clear().await;
    drop(site);
    lane.finish().await;
    (count - before > commit + 2000).then_some((commit, count - before))
}

/// Strikes this operation of a push, which is one of the checkpoint behind its commit. Returns whether it was reached.
async fn checkpoint_is_struck(last: &Value, at: u64, fault: DiskFault) -> bool {
    let mut lane = Lane::start().await;
    let site = lane.site();
    fill_the_log(&site).await;
    lane.shim.arm(fault, lane.shim.count() + at);
    let push = site.post("/queues/@/jobs", last.clone());
    let answer = site.make(&push.act).await;
    lane.shim.heal();
    let is_struck = lane.shim.struck() > 0;
    let name = site.name.clone();
    drop(site);
    if is_struck && fault.kills() {
        lane.restart().await;
    } else {
        assert_eq!(answer.unwrap().0, 201, "the commit came before");
        let site = lane.again(&name);
        lane.cut_power(site).await;
    }
    // The commit was saved before the checkpoint began, whether or not its answer came.
    let site = lane.again(&name);
    assert_eq!(site.make(&push.act).await.unwrap().0, 200, "{fault:?} at operation {at}");
    let seen = site.picture(&[]).await.unwrap();
    assert_eq!(seen[""].as_array().unwrap().len(), 16, "{fault:?} at operation {at}");
    empty(&site).await;
    drop(site);
    lane.finish().await;
    is_struck
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_checkpoint_in_a_commit_is_struck() {
    let last = json!({"payload": ["last", "x".repeat(1_040_000)], "key": "k"});
    let mut learned = None;
    for _ in 0..TRIES {
        learned = learn_checkpoint(&last).await;
        if learned.is_some() {
            break;
        }
    }
    let (commit, operations) = learned.expect("there was no checkpoint");
    // What the server writes by itself is a page more or less from one run to the next: the commit may come some operations later, and
    // the last operations may not be reached.
    for (n, fault) in chosen(operations - commit - 2 * MARGIN, 6) {
        let mut is_struck = false;
        for _ in 0..TRIES {
            is_struck = checkpoint_is_struck(&last, commit + MARGIN + n, fault).await;
            if is_struck {
                break;
            }
        }
        assert!(is_struck, "operation {n} of the checkpoint is not reached");
    }
    println!("checkpoint: {} operations", operations - commit - 1);
}
