//! Two servers over one MongoDB: `far` reaches it through a proxy, `near` by itself.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::proxy::{Placed, Proxy};
use crate::common::server::{PATIENCE, Place, Server, UNHURRIED, looked, until};

/// Longer than any of these tests takes: nothing lapses by accident.
pub const LONG_MS: u64 = 600_000;
/// For how long the calls of tests wait that must end before: what leaves them pending does so for this long and ten seconds more.
pub const WAIT_MS: u64 = 60_000;
/// What "within a second" means for one call on a machine that is busy. Of many, half take at most that second longer than usual.
pub const SOON: Duration = Duration::from_secs(50);
/// How long a test looks on to see that something does not happen.
pub const WATCHED: Duration = Duration::from_secs(6);

/// How soon a prompt server gives up on MongoDB, long before a test does.
pub const DEADLINE: Duration = Duration::from_millis(2500);
/// Servers that do so, and notice soon what has run out.
pub const PROMPT: &[(&str, &str)] = &[("TAILBACK_MONGODB__DEADLINE_MS", "2500"), NOTICING];
const NOTICING: (&str, &str) = ("TAILBACK_REAPER__INTERVAL_MS", "100");

/// See the module's documentation.
pub struct Pair {
    pub proxy: Proxy,
    pub far: Server,
    pub near: Server,
}

impl Pair {
    /// `far` is prompt: for tests that wait until it gives up.
    pub async fn start(place: &Place) -> Self {
        Self::start_with(place, &[]).await
    }

    /// `far` is patient: it gives up in no test.
    pub async fn patient(place: &Place) -> Self {
        Self::start_with(place, &[UNHURRIED]).await
    }

    /// The same with more variables of `far`.
    pub async fn start_with(place: &Place, of_far: &[(&str, &str)]) -> Self {
        let proxy = Proxy::before(&place.url).await;
        let (url, of_far) = (proxy.url(&place.url), [PROMPT, of_far].concat());
        let (far, near) =
            tokio::join!(Server::start_with(&url, &of_far), Server::start_with(&place.url, &[NOTICING]));
        Self { proxy, far, near }
    }
}

/// Pushes a job to `work`, and returns its id.
pub async fn push(server: &Server, job: Value) -> String {
    let answer = stored(server, "/v1/queues/work/jobs", 201, &job).await;
    answer["id"].as_str().unwrap().to_owned()
}

/// Pushes this many jobs at once.
pub async fn push_batch(server: &Server, queue: &str, count: usize) {
    let jobs = vec![json!({"payload": 1}); count];
    let answer = stored(server, &format!("/v1/queues/{queue}/jobs/batch"), 200, &json!({"jobs": jobs})).await;
    let results = answer["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["status"] == 201), "{answer}");
}

/// Makes a call that stores jobs, and returns its answer. A store on a busy machine may not respond in time: the key lets the call be
/// repeated.
async fn stored(server: &Server, path: &str, expected: u16, body: &Value) -> Value {
    static KEYS: AtomicUsize = AtomicUsize::new(0);
    let key = format!("push-{}", KEYS.fetch_add(1, Ordering::Relaxed));
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "the push is never answered");
        let call = server.http.post(format!("{}{path}", server.base));
        let response = call.header("idempotency-key", &key).json(body).send().await.unwrap();
        let (status, answer) = (response.status().as_u16(), response.json::<Value>().await.unwrap());
        match status {
            503 => tokio::time::sleep(Duration::from_millis(20)).await,
            status if status == expected => return answer,
            _ => panic!("{status} {answer}"),
        }
    }
}

/// Reserves from `work` with an `Idempotency-Key`.
pub async fn keyed(server: &Server, key: &str, body: Value) -> Option<(u16, Value)> {
    keyed_by(&server.http, &server.base, key, body).await
}

async fn keyed_by(http: &reqwest::Client, base: &str, key: &str, body: Value) -> Option<(u16, Value)> {
    let url = format!("{base}/v1/queues/work/reserve");
    let response = http.post(url).header("idempotency-key", key).json(&body).send().await.ok()?;
    let status = response.status().as_u16();
    Some((status, response.json().await.unwrap_or_default()))
}

/// The same in the background.
pub fn begin_keyed(server: &Server, key: &'static str, body: Value) -> JoinHandle<Option<(u16, Value)>> {
    begin_keyed_by(server.http.clone(), server, key, body)
}

/// The same over connections of one's own.
pub fn begin_keyed_by(
    http: reqwest::Client,
    server: &Server,
    key: &'static str,
    body: Value,
) -> JoinHandle<Option<(u16, Value)>> {
    let base = server.base.clone();
    tokio::spawn(async move { keyed_by(&http, &base, key, body).await })
}

/// The same until it has met the fault: a store on a busy machine may refuse the first calls.
pub async fn begin_until_met(
    server: &Server,
    key: &'static str,
    body: Value,
    fault: &Placed,
) -> JoinHandle<Option<(u16, Value)>> {
    loop {
        let mut call = begin_keyed(server, key, body.clone());
        let ended = tokio::select! {
            biased;
            () = fault.met() => return call,
            ended = &mut call => ended.unwrap(),
        };
        if fault.times() > 0 {
            return tokio::spawn(async move { ended });
        }
        match &ended {
            Some((503, _)) => {}
            // The one before it is not forgotten yet.
            Some((409, answer)) if answer["code"] == "request-pending" => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Repeats a keyed reserve until it is answered with 200, and how long that took.
pub async fn repeat(server: &Server, key: &str, body: Value) -> (Vec<Value>, Duration) {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "the repeat is never answered");
        match keyed(server, key, body.clone()).await {
            Some((200, answer)) => return (answer["jobs"].as_array().unwrap().clone(), since.elapsed()),
            Some((503, _)) | None => tokio::time::sleep(Duration::from_millis(20)).await,
            Some((409, answer)) => assert_eq!(answer["code"], "request-pending", "{answer}"),
            Some((status, answer)) => panic!("{status} {answer}"),
        }
    }
}

/// Nobody else is given a job while this one is held, whatever comes back in the meantime; then it is committed.
pub async fn is_the_only_holder(server: &Server, job: &Value) {
    let since = Instant::now();
    while since.elapsed() < WATCHED {
        let others = server.reserve("work", json!({"lease_ms": LONG_MS})).await;
        assert!(others.is_empty(), "after {:?} another one holds it: {others:?}", since.elapsed());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (status, answer) = server.settle(job, "commit", json!({})).await;
    assert_eq!(status, 200, "{answer}");
}

/// Waits until a reserve without a key gets a job.
pub async fn take(server: &Server) -> Value {
    let taken = std::sync::Mutex::new(None);
    until("a job is delivered", || async {
        let jobs = server.reserve("work", json!({"lease_ms": LONG_MS})).await;
        let first = jobs.into_iter().next();
        let is_some = first.is_some();
        *taken.lock().unwrap() = first;
        is_some
    })
    .await;
    taken.into_inner().unwrap().unwrap()
}

/// Whether a first look for jobs is over.
pub async fn has_looked(server: &Server) -> bool {
    looked(server).await >= 1.0
}
