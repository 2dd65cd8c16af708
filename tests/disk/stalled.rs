//! A disk that does not return for longer than a call lasts, and goes on then.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::shim::DiskFault;
use crate::lane::Lane;
use crate::site::LEASE_MS;

/// For how long the disk stalls once the client has its response: for longer than a server looks in vain for what a claim has won.
const STALLS_ON: Duration = Duration::from_secs(6);

/// How often a test tries to stall what it means: the server may write something by itself at this very moment.
const TRIES: usize = 3;

/// A commit takes the next job in its transaction, which stalls until the client has given up, and is stored after all: the next job,
/// which no client has got, is given back, the attempt not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_settle_takes_beyond_its_deadline_is_given_back() {
    let mut lane = Lane::start().await;
    for _ in 0..TRIES {
        let site = lane.site();
        let held = site.held(json!({"payload": 1})).await;
        let next = site.push(json!({"payload": 2, "max_attempts": 1})).await;
        lane.shim.arm_next(DiskFault::StallFrom);
        let commit = site.settle(&held, "commit", json!({"next": {"lease_ms": LEASE_MS}}));
        let (status, answer) = site.make(&commit.act).await.expect("the server lives");
        tokio::time::sleep(STALLS_ON).await;
        lane.shim.heal();
        assert_eq!(status, 503, "{answer}");
        lane.server().until_ready().await;
        let look = site.call(Method::GET, &format!("/jobs/{}", held["id"].as_str().unwrap()), Value::Null);
        if site.make(&look.act).await.unwrap().0 != 404 {
            // The disk stalled before the commit began, which did not happen then.
            site.drain(&[held]).await;
            site.clear().await;
            continue;
        }
        let ask = json!({"wait_ms": 60_000, "lease_ms": LEASE_MS});
        let again = site.must(Method::POST, "/queues/@/reserve", ask).await;
        let jobs = again["jobs"].as_array().unwrap();
        let shown: Vec<_> = jobs.iter().map(|job| (&job["id"], &job["attempt"])).collect();
        assert_eq!(shown, [(&json!(next), &json!(1))], "{again}");
        site.drain(jobs).await;
        site.clear().await;
        drop(site);
        return lane.finish().await;
    }
    panic!("no commit was stalled");
}
