//! Calls that concern many jobs go in steps: each ends in time, and what is done is answered, whatever becomes of the next one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mongodb::Client;
use mongodb::bson::{Document, doc};
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::fleet::push_many;
use crate::common::proxy::{Fault, Placed};
use crate::common::server::{PATIENCE, Place, Server, until};
use crate::world::{LONG_MS, Pair};

/// How many jobs one transaction concerns at most.
const TOGETHER: usize = 100;

/// Lets everything pass, and counts it.
fn counted(commits: Placed) -> Placed {
    commits.release();
    commits
}

pub async fn a_large_reserve_under_semaphores_goes_in_parts(place: &Place) {
    const JOBS: usize = 250;
    let Pair { proxy, far, .. } = Pair::patient(place).await;
    assert_eq!(far.send(Method::PUT, "/v1/semaphores/s", Some(json!({"capacity": 10_000}))).await.0, 200);
    push_many(&far, "work", JOBS, json!({"semaphores": ["s"]})).await;
    let commits = counted(proxy.every("commitTransaction", "", Fault::HoldBefore));
    let mut won: Vec<Value> = Vec::new();
    while won.len() < JOBS {
        let before = commits.times();
        let jobs = far.reserve("work", json!({"count": 1000, "lease_ms": LONG_MS, "wait_ms": 60_000})).await;
        let transactions = commits.times() - before;
        assert!(!jobs.is_empty(), "{} of {JOBS}", won.len());
        assert!(jobs.len() <= transactions * TOGETHER, "{} jobs in {transactions} transactions", jobs.len());
        won.extend(jobs);
    }
    // All of them are in order, and each was won once.
    let numbers: Vec<&Value> = won.iter().map(|job| &job["payload"]).collect();
    assert_eq!(numbers, (0..JOBS).map(|n| json!(n)).collect::<Vec<_>>().iter().collect::<Vec<_>>());
}

pub async fn a_reserve_returns_what_it_won_before_a_part_that_does_not_end(place: &Place) {
    let pair = Pair::start(place).await;
    let semaphore = Some(json!({"capacity": 10_000}));
    assert_eq!(pair.near.send(Method::PUT, "/v1/semaphores/s", semaphore).await.0, 200);
    let (since, mut tried) = (Instant::now(), 0);
    let won = loop {
        assert!(since.elapsed() < PATIENCE, "no reserve returns what it won");
        tried += 1;
        if let Some(won) = won_before_the_second_part(&pair, &format!("work-{tried}")).await {
            break won;
        }
    };
    assert_eq!(won.len(), TOGETHER);
    // What was returned is held, also after what was not would have been given back.
    for job in [&won[0], &won[TOGETHER - 1]] {
        let (status, extended) = pair.near.settle(job, "extend", json!({})).await;
        assert_eq!(status, 200, "{extended}");
    }
}

/// Returns the jobs of a reserve whose second part does not end; nothing where the machine was too busy for the first one, or for the
/// moment between the end of the second one and that of the call.
async fn won_before_the_second_part(Pair { proxy, far, near }: &Pair, queue: &str) -> Option<Vec<Value>> {
    push_many(near, queue, 250, json!({"semaphores": ["s"]})).await;
    let commit = proxy.next("commitTransaction", "", Fault::HoldBefore);
    let path = format!("/v1/queues/{queue}/reserve");
    let mut reserve = std::pin::pin!(far.post(&path, json!({"count": 1000, "lease_ms": LONG_MS})));
    let early = tokio::select! {
        biased;
        () = commit.met() => None,
        early = &mut reserve => Some(early),
    };
    if let Some((status, answer)) = early {
        assert_eq!(status, 503, "{answer}");
        return None;
    }
    // The first part is about to be stored; the second one is never heard of.
    // A part changes its jobs by updates, or by deletes and inserts.
    let _second = ["update", "delete"].map(|change| proxy.every(change, "jobs", Fault::HoldThenCut));
    commit.release();
    let (status, answer) = reserve.await;
    assert!([200, 503].contains(&status), "{status} {answer}");
    answer["jobs"].as_array().cloned()
}

/// The response to a claim is lost, and another command of it is stored while what the first one won is given back.
pub async fn a_part_of_a_claim_that_lands_later_is_given_back_as_well(place: &Place) {
    let points = tempfile::tempdir().unwrap();
    let file = |name: &str| points.path().join(name);
    let variables = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    let Pair { proxy, far, near } = Pair::start_with(place, &variables).await;
    let ids = push_many(&near, "work", 20, json!({})).await;
    std::fs::write(file("delivery.give_back"), "pause").unwrap();
    proxy.watch(&ids);
    let claim = proxy.every("update", "jobs", Fault::HoldAfter);
    // On a busy machine the server may give up before it claims.
    while !proxy.steps().iter().any(|step| step.name == "update" && step.collection == "jobs") {
        let ask = json!({"count": 10, "lease_ms": LONG_MS});
        let (status, answer) = far.post("/v1/queues/work/reserve", ask).await;
        assert_eq!(status, 503, "{answer}");
    }
    drop(claim);
    let met = file("delivery.give_back.met");
    until("the first part is found", || async { met.exists() }).await;
    let client = Client::with_uri_str(&place.url).await.unwrap();
    let jobs = client.default_database().unwrap().collection::<Document>("jobs");
    let won = jobs.find_one(doc! { "state": "reserved" }).await.unwrap().unwrap();
    let names = ["state", "claim", "lease_ms", "reserved_until", "started_at", "attempts", "rev"];
    let lands: Document =
        names.iter().map(|name| ((*name).to_owned(), won.get(name).unwrap().clone())).collect();
    let landed = jobs.update_many(doc! { "state": "ready" }, doc! { "$set": lands }).await.unwrap();
    assert_eq!(landed.modified_count, 10);
    std::fs::write(file("delivery.give_back.go"), "").unwrap();
    until("all of them are given back", || async {
        let (status, page) = near.get("/v1/queues/work/jobs?state=ready&limit=1000").await;
        assert_eq!(status, 200, "{page}");
        page["jobs"].as_array().unwrap().len() == 20
    })
    .await;
}

/// A server that gives a step up in half of the time that it has for a removal.
const SLOW: (&str, &str) = ("TAILBACK_MONGODB__DEADLINE_MS", "5000");

pub async fn the_removal_of_a_worker_goes_on_behind_a_step_that_does_not_end(place: &Place) {
    const JOBS: usize = 450;
    let Pair { proxy, far, near } = Pair::start_with(place, &[SLOW]).await;
    push_many(&near, "work", JOBS, json!({})).await;
    let mut held = 0;
    while held < JOBS {
        let ask = json!({"count": JOBS, "lease_ms": LONG_MS, "worker": "w"});
        held += near.reserve("work", ask).await.len();
    }
    let commits = proxy.next("commitTransaction", "", Fault::HoldBefore);
    let remove = async |server: &Server| server.send(Method::DELETE, "/v1/workers/w", None).await;
    let mut affected = 0;
    let (first, held) = tokio::join!(remove(&far), async {
        commits.met().await;
        let next = proxy.next("update", "receipts", Fault::HoldThenCut);
        commits.release();
        next.met().await;
        next
    });
    // The server has given the step up, which is still held.
    drop(held);
    let mut answer = first;
    loop {
        assert_eq!(answer.0, 200, "{}", answer.1);
        affected += usize::try_from(answer.1["affected"].as_u64().unwrap()).unwrap();
        if answer.1.get("more").is_none() {
            break;
        }
        answer = remove(&near).await;
    }
    assert_eq!(affected, JOBS);
    assert_eq!(remove(&near).await.0, 404);
    let mut back = 0;
    while back < JOBS {
        let jobs = near.reserve("work", json!({"count": 1000})).await.len();
        assert!(jobs > 0, "{back} of {JOBS} are back");
        back += jobs;
    }
}

/// How many jobs one call settles at most.
const SETTLED: usize = 1000;
/// How long each command waits, and each response. Commands for so many jobs one by one take ten seconds longer than the server has.
const SLOWED: Duration = Duration::from_millis(35);
/// A server that has time for hundreds of commands of this kind, on a machine that is busy for some dozens.
const FOR_SOME: (&str, &str) = ("TAILBACK_MONGODB__DEADLINE_MS", "60000");

/// Reserves as many jobs as one call settles.
async fn held(server: &Server, ask: &Value) -> Vec<Value> {
    let mut held = Vec::new();
    while held.len() < SETTLED {
        held.extend(server.reserve("work", ask.clone()).await);
    }
    held
}

/// Commits jobs by one call while every command waits. Returns how many got which status.
async fn committed_slowly(Pair { proxy, far, .. }: &Pair, jobs: &[Value]) -> BTreeMap<u64, usize> {
    let commit = |job: &Value| json!({"id": job["id"], "reservation": job["reservation"]});
    let commits: Vec<Value> = jobs.iter().map(commit).collect();
    proxy.slow(SLOWED);
    let (status, answer) = far.post("/v1/settle", json!({"commit": commits})).await;
    proxy.slow(Duration::ZERO);
    assert_eq!(status, 200, "{answer}");
    let mut statuses = BTreeMap::new();
    for settled in answer["commit"].as_array().unwrap() {
        *statuses.entry(settled["status"].as_u64().unwrap()).or_default() += 1;
    }
    statuses
}

/// The one deletion finds all jobs but one, and does not say which: what proves the others is looked up for all of them at once.
pub async fn a_large_settle_of_which_a_job_is_gone_ends_in_time(place: &Place) {
    let pair = Pair::start_with(place, &[FOR_SOME]).await;
    let Pair { far, near, .. } = &pair;
    push_many(near, "work", SETTLED, json!({})).await;
    let held = held(far, &json!({"count": SETTLED, "lease_ms": LONG_MS})).await;
    let path = format!("/v1/jobs/{}?force=true", held[0]["id"].as_str().unwrap());
    assert_eq!(near.send(Method::DELETE, &path, None).await.0, 200);
    assert_eq!(committed_slowly(&pair, &held).await, BTreeMap::from([(200, SETTLED - 1), (409, 1)]));
}

/// All of them were taken from their worker: whether they were committed before is looked up at once as well.
pub async fn a_large_settle_of_lost_jobs_is_refused_in_time(place: &Place) {
    let pair = Pair::start_with(place, &[FOR_SOME]).await;
    let Pair { far, near, .. } = &pair;
    push_many(near, "work", SETTLED, json!({})).await;
    let held = held(far, &json!({"count": SETTLED, "lease_ms": LONG_MS, "worker": "w"})).await;
    loop {
        let (status, answer) = near.send(Method::DELETE, "/v1/workers/w", None).await;
        assert_eq!(status, 200, "{answer}");
        if answer.get("more").is_none() {
            break;
        }
    }
    assert_eq!(committed_slowly(&pair, &held).await, BTreeMap::from([(409, SETTLED)]));
}
