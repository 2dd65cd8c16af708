//! What one member of a replica set has and no majority: it may be taken back, so that no answer is made of it.

use std::path::Path;

use mongodb::bson::doc;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::common::own_mongod::OwnMongod;
use crate::common::server::{Server, until};
use crate::world::{LONG_MS, PROMPT};

/// Longer than any of these tests takes: the primary stays what it is, also while it hears from nobody.
const ELECTION_TIMEOUT_MS: i32 = 600_000;

/// Three mongods. The two secondaries can be frozen: then the primary goes on, and no majority has what it does.
struct Set {
    members: Vec<OwnMongod>,
}

impl Set {
    async fn start() -> Self {
        let mut members: Vec<OwnMongod> = std::iter::repeat_with(OwnMongod::idle).take(3).collect();
        members.iter_mut().for_each(OwnMongod::launch);
        let hosts = members.iter().enumerate().map(|(n, member)| {
            let host = format!("127.0.0.1:{}", member.port());
            doc! { "_id": i32::try_from(n).unwrap(), "host": host, "priority": i32::from(n == 0) }
        });
        let settings = doc! { "electionTimeoutMillis": ELECTION_TIMEOUT_MS };
        let config = doc! { "_id": "rs0", "members": hosts.collect::<Vec<_>>(), "settings": settings };
        until("the first member is the primary", || async {
            let all = futures::future::join_all(members.iter().map(OwnMongod::hello)).await;
            if all.iter().any(Option::is_none) {
                return false;
            }
            let first = &members[0];
            // Later ones find it done, or under way.
            let _ = first.command(doc! { "replSetInitiate": config.clone() }).await;
            let _ = first.command(doc! { "replSetStepUp": 1 }).await;
            let hello = first.hello().await;
            hello.is_some_and(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))
        })
        .await;
        Self { members }
    }

    fn url(&self) -> String {
        self.members[0].url()
    }

    fn stall(&self) {
        self.members[1..].iter().for_each(OwnMongod::freeze);
    }

    fn go_on(&self) {
        self.members[1..].iter().for_each(OwnMongod::thaw);
    }
}

/// A call whose write no majority has until the set goes on.
fn begin(server: &Server, path: &str, key: Option<&str>, body: Value) -> JoinHandle<(u16, Value)> {
    let mut call = server.http.post(format!("{}{path}", server.base)).json(&body);
    if let Some(key) = key {
        call = call.header("idempotency-key", key);
    }
    tokio::spawn(async move {
        let response = call.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    })
}

async fn until_so(what: &str, is_so: impl AsyncFn() -> bool) {
    until(what, || is_so()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_majority_has_is_not_answered() {
    let set = Set::start().await;
    let points = tempfile::tempdir().unwrap();
    let faults = [("TAILBACK_FAULTS", points.path().to_str().unwrap())];
    // The one waits for its writes for half a minute, the other for some seconds.
    let url = set.url();
    let (one, two) = tokio::join!(Server::start_with(&url, &faults), Server::start_with(&url, PROMPT));
    let mut wrong = Vec::new();
    wrong.extend(a_result(&set, &one, &two).await);
    wrong.extend(a_keyed_pop(&set, &one, &two, points.path()).await);
    wrong.extend(a_pause(&set, &one, &two).await);
    wrong.extend(a_purge(&set, &one, &two).await);
    assert!(wrong.is_empty(), "answers that may be taken back: {wrong:#?}");
}

/// What is wrong with an answer that should not be there yet.
fn unless(is_right: bool, what: &str, (status, answer): (u16, Value)) -> Option<String> {
    (!is_right).then(|| format!("{what}: {status} {answer}"))
}

/// A wait for a result at another server does not return a commit that may be taken back.
async fn a_result(set: &Set, one: &Server, two: &Server) -> Option<String> {
    let id = one.push("result", json!({"payload": 1, "retain_result_ms": LONG_MS})).await;
    let job = one.reserve("result", json!({"lease_ms": LONG_MS})).await.remove(0);
    set.stall();
    let body = json!({"reservation": job["reservation"], "result": 7});
    let commit = begin(one, &format!("/v1/jobs/{id}/commit"), None, body);
    let look = format!("/v1/jobs/{id}");
    until_so("the primary has it", async || two.get(&look).await.1["state"] == "done").await;
    let told = two.get(&format!("{look}?wait_ms=1000")).await;
    let wrong = unless(told.0 == 503 || told.1["state"] == "reserved", "a result", told);
    set.go_on();
    assert_eq!(commit.await.unwrap().0, 200);
    let (status, answer) = two.get(&format!("{look}?wait_ms=20000")).await;
    assert_eq!((status, &answer["result"]), (200, &json!(7)), "{answer}");
    wrong
}

/// The repeat of a keyed pop does not return that there is nothing while the first call has the job.
async fn a_keyed_pop(set: &Set, one: &Server, two: &Server, points: &Path) -> Option<String> {
    let id = one.push("pop", json!({"payload": 1})).await;
    let at = |name: &str| points.join(name);
    std::fs::write(at("pop.claimed"), "pause").unwrap();
    let first = begin(one, "/v1/queues/pop/pop", Some("k"), json!({}));
    until("the job is claimed", || async { at("pop.claimed.met").exists() }).await;
    set.stall();
    std::fs::write(at("pop.claimed.go"), "").unwrap();
    let look = format!("/v1/jobs/{id}");
    until_so("the primary has it", async || two.get(&look).await.0 == 404).await;
    let repeat = async || begin(two, "/v1/queues/pop/pop", Some("k"), json!({})).await.unwrap();
    let told = repeat().await;
    let wrong = unless(told.0 == 503, "the repeat of a keyed pop", told);
    set.go_on();
    let first = first.await.unwrap();
    assert_eq!((first.0, &first.1["jobs"][0]["id"]), (200, &json!(id)), "{}", first.1);
    until_so("the repeat is told the same", async || repeat().await == first).await;
    wrong
}

/// A call that finds done what it wants does not return so before a majority has that.
async fn a_pause(set: &Set, one: &Server, two: &Server) -> Option<String> {
    set.stall();
    let path = "/v1/queues/paused/pause";
    let pause = begin(one, path, None, json!({}));
    let is_paused = async || two.get("/v1/queues/paused").await.1["effective"]["paused"] == true;
    until_so("the primary has it", is_paused).await;
    let told = two.post(path, json!({})).await;
    let wrong = unless(told.0 == 503, "a pause", told);
    set.go_on();
    assert_eq!(pause.await.unwrap().0, 200);
    until_so("it is paused", async || two.post(path, json!({})).await.0 == 200).await;
    wrong
}

/// The same for one that finds nothing to do.
async fn a_purge(set: &Set, one: &Server, two: &Server) -> Option<String> {
    let id = one.push("purged", json!({"payload": 1})).await;
    set.stall();
    let (path, body) = ("/v1/queues/purged/purge", json!({"state": "ready"}));
    let purge = begin(one, path, None, body.clone());
    let look = format!("/v1/jobs/{id}");
    until_so("the primary has it", async || two.get(&look).await.0 == 404).await;
    let told = two.post(path, body.clone()).await;
    let wrong = unless(told.0 == 503, "a purge", told);
    set.go_on();
    assert_eq!(purge.await.unwrap().0, 200);
    until_so("it is told that nothing is left", async || two.post(path, body.clone()).await.0 == 200).await;
    wrong
}
