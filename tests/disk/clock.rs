//! The machine's clock, by which the store's goes, is set back or ahead by an hour while the server runs, and between two servers. What
//! the store promises: its own clock never runs backwards, so that what is due is delivered, and delays, leases and keys end, a little
//! later at most; nothing is lost or delivered to two holders; tokens, not times, decide who holds a job.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::server::{looked, until};
use crate::lane::Lane;
use crate::site::Site;

const HOUR_MS: i64 = 3_600_000;

/// Longer than any step of the clock here.
const LONG_MS: u64 = 86_400_000;

/// How long a test watches that nothing comes, and the delays and leases that it watches.
const WATCHED_MS: u64 = 1500;

async fn reserve(site: &Site, lease_ms: u64) -> Vec<Value> {
    let answer =
        site.must(Method::POST, "/queues/@/reserve", json!({"count": 100, "lease_ms": lease_ms})).await;
    answer["jobs"].as_array().unwrap().clone()
}

fn payloads(jobs: &[Value]) -> Vec<&Value> {
    jobs.iter().map(|job| &job["payload"]).collect()
}

/// Reserves again and again until these payloads have come, and returns their jobs.
async fn until_delivered(site: &Site, expected: &[&str]) -> Vec<Value> {
    let delivered = std::sync::Mutex::new(Vec::new());
    until("the jobs are delivered", || async {
        let jobs = reserve(site, LONG_MS).await;
        let mut delivered = delivered.lock().unwrap();
        delivered.extend(jobs);
        delivered.len() >= expected.len()
    })
    .await;
    let delivered = delivered.into_inner().unwrap();
    let mut seen: Vec<&str> = delivered.iter().map(|job| job["payload"].as_str().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, expected);
    delivered
}

/// Watches that nothing is delivered for a while.
async fn nothing_comes(site: &Site) {
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(WATCHED_MS + 500) {
        let jobs = reserve(site, LONG_MS).await;
        assert!(jobs.is_empty(), "delivered after {:?}: {jobs:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A waiting reserve is woken by a push, whatever the clock did.
async fn waiter_is_woken(site: &Site) {
    let before = looked(&site.server).await;
    let waiting = site.post("/queues/@.next/reserve", json!({"wait_ms": 60_000}));
    let waiter = tokio::spawn({
        let (site, act) = (site.clone(), waiting.act);
        async move { site.make(&act).await }
    });
    until("the waiter has looked", || async { looked(&site.server).await > before }).await;
    site.must(Method::POST, "/queues/@.next/jobs", json!({"payload": "woken"})).await;
    let (status, answer) = waiter.await.unwrap().unwrap();
    assert_eq!((status, payloads(answer["jobs"].as_array().unwrap())), (200, vec![&json!("woken")]));
    site.drain(answer["jobs"].as_array().unwrap()).await;
}

async fn commits(site: &Site, job: &Value, expected: u16) {
    let commit = site.settle(job, "commit", json!({}));
    let (status, answer) = site.make(&commit.act).await.unwrap();
    assert_eq!(status, expected, "{job}: {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_set_back_an_hour() {
    let mut lane = Lane::start().await;
    let site = lane.site();
    site.push(json!({"payload": "held"})).await;
    let held = reserve(&site, LONG_MS).await;
    site.push(json!({"payload": "left"})).await;
    let left = reserve(&site, WATCHED_MS).await;
    assert_eq!((payloads(&held), payloads(&left)), (vec![&json!("held")], vec![&json!("left")]));
    site.push(json!({"payload": "due"})).await;
    site.push(json!({"payload": "later", "delay_ms": WATCHED_MS})).await;
    let keyed = site.push(json!({"payload": "keyed", "key": "k", "key_ttl_ms": WATCHED_MS})).await;

    lane.shim.shift_clock(-HOUR_MS);
    // The token decides: the holder can settle.
    commits(&site, &held[0], 200).await;
    let (status, twin) =
        site.make(&site.post("/queues/@/jobs", json!({"payload": "keyed", "key": "k"})).act).await.unwrap();
    assert_eq!((status, twin["id"].as_str()), (200, Some(&*keyed)));
    // What was due is delivered, what comes due comes due, and the lease runs out.
    let jobs = until_delivered(&site, &["due", "keyed", "later", "left"]).await;
    commits(&site, &left[0], 409).await;
    site.drain(&jobs).await;
    waiter_is_woken(&site).await;
    let stats = lane.server().get("/stats").await.1;
    let ahead_ms = stats["clock_ahead_ms"].as_i64().unwrap();
    assert!((HOUR_MS - 600_000..=HOUR_MS).contains(&ahead_ms), "{stats}");

    lane.shim.shift_clock(0);
    site.push(json!({"payload": "again", "delay_ms": WATCHED_MS})).await;
    site.drain(&until_delivered(&site, &["again"]).await).await;
    assert_eq!(lane.server().get("/stats").await.1["clock_ahead_ms"], Value::Null);
    ends(lane, site).await;
}

/// A server that starts goes on from the time that the one before has lived through, however that ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_set_back_between_two_servers() {
    let mut lane = Lane::start().await;
    let site = lane.site();
    site.push(json!({"payload": "due"})).await;
    site.push(json!({"payload": "later", "delay_ms": WATCHED_MS})).await;
    let name = site.name.clone();
    drop(site);
    lane.stop();
    lane.shim.shift_clock(-HOUR_MS);
    lane.start_again().await;
    let site = lane.again(&name);
    site.drain(&until_delivered(&site, &["due", "later"]).await).await;
    assert!(lane.server().get("/stats").await.1["clock_ahead_ms"].as_i64().unwrap() > HOUR_MS / 2);
    ends(lane, site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_is_set_ahead_an_hour() {
    let mut lane = Lane::start().await;
    let site = lane.site();
    site.push(json!({"payload": "lapsing"})).await;
    let lapsing = reserve(&site, 1_800_000).await;
    site.push(json!({"payload": "lasting"})).await;
    let lasting = reserve(&site, 7_200_000).await;
    site.push(json!({"payload": "half an hour", "delay_ms": 1_800_000})).await;
    site.push(json!({"payload": "two hours", "delay_ms": 7_200_000})).await;
    let keyed = site
        .push(json!({"payload": "keyed", "key": "k", "key_ttl_ms": 7_200_000, "delay_ms": 7_200_000}))
        .await;
    assert!(reserve(&site, LONG_MS).await.is_empty());

    lane.shim.shift_clock(HOUR_MS);
    // Within the step: delivered, and no longer held. Beyond it: neither.
    let jobs = until_delivered(&site, &["half an hour", "lapsing"]).await;
    nothing_comes(&site).await;
    commits(&site, &lapsing[0], 409).await;
    commits(&site, &lasting[0], 200).await;
    site.drain(&jobs).await;
    let (status, twin) =
        site.make(&site.post("/queues/@/jobs", json!({"payload": "keyed", "key": "k"})).act).await.unwrap();
    assert_eq!((status, twin["id"].as_str()), (200, Some(&*keyed)));
    waiter_is_woken(&site).await;
    site.push(json!({"payload": "from then"})).await;

    // Back again: time goes on from there, and what was pushed by the wrong clock is delivered.
    lane.shim.shift_clock(0);
    let jobs = until_delivered(&site, &["from then"]).await;
    site.drain(&jobs).await;
    nothing_comes(&site).await;
    waiter_is_woken(&site).await;
    lane.shim.shift_clock(3 * HOUR_MS);
    let jobs = until_delivered(&site, &["keyed", "two hours"]).await;
    site.drain(&jobs).await;
    ends(lane, site).await;
}

/// An occurrence of a schedule runs once, however often the clock passes it.
#[expect(clippy::disallowed_methods, reason = "the machine's clock is the server's but for the shift")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_clock_passes_an_occurrence_twice() {
    let mut lane = Lane::start().await;
    let site = lane.site();
    // In three hours, on the day that it is then.
    let at = jiff::Timestamp::now().as_second() / 60 * 60 + 3 * 3600;
    let at = jiff::Timestamp::from_second(at).unwrap().to_zoned(jiff::tz::TimeZone::UTC);
    let cron = format!("{} {} {} {} *", at.minute(), at.hour(), at.day(), at.month());
    let rule = json!({"cron": cron, "queue": "@", "job": {"payload": "fired"}});
    site.must(Method::PUT, "/schedules/@", rule).await;
    lane.shim.shift_clock(4 * HOUR_MS);
    let jobs = until_delivered(&site, &["fired"]).await;
    for hours in [2, 4, 1, 5] {
        lane.shim.shift_clock(hours * HOUR_MS);
        nothing_comes(&site).await;
    }
    site.drain(&jobs).await;
    ends(lane, site).await;
}

/// Nothing is left, and the server never panicked.
async fn ends(lane: Lane, site: Site) {
    site.clear().await;
    drop(site);
    lane.finish().await;
}
