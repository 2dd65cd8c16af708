//! Several servers over one MongoDB that are busy: each lets more requests gather for its rounds, and nothing but time depends on it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use super::support::*;

const HEARD_BUSY: &str = "tailback_signals_heard_total{kind=\"busy\"}";
const LANES: [&str; 3] = ["push", "claim", "settle"];
const CLIENTS: usize = 8;

/// Clients of a server that push, reserve and commit, one after the other.
struct Load {
    clients: JoinSet<()>,
    stop: Arc<AtomicBool>,
    lives: Arc<AtomicUsize>,
    pushed: Ids,
    committed: Ids,
}

type Ids = Arc<Mutex<Vec<String>>>;

impl Load {
    fn begin(server: &Server, queue: &str) -> Self {
        let mut load = Self {
            clients: JoinSet::new(),
            stop: Arc::default(),
            lives: Arc::default(),
            pushed: Arc::default(),
            committed: Arc::default(),
        };
        for _ in 0..CLIENTS {
            let (http, base, queue) = (server.http.clone(), server.base.clone(), queue.to_owned());
            let (stop, lives) = (load.stop.clone(), load.lives.clone());
            let (pushed, committed) = (load.pushed.clone(), load.committed.clone());
            let post = move |path: String, body: Value| {
                let request = http.post(format!("{base}{path}")).json(&body);
                async move {
                    let response = request.send().await.ok()?;
                    let is_success = response.status().is_success();
                    is_success.then_some(response.json::<Value>().await.ok()?)
                }
            };
            load.clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let push = post(format!("/v1/queues/{queue}/jobs"), json!({"payload": 1})).await;
                    let Some(push) = push else { return };
                    pushed.lock().unwrap().push(push["id"].as_str().unwrap().to_owned());
                    let ask = json!({"lease_ms": 600_000});
                    let Some(answer) = post(format!("/v1/queues/{queue}/reserve"), ask).await else {
                        return;
                    };
                    for job in answer["jobs"].as_array().unwrap() {
                        let path = format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap());
                        let Some(_) = post(path, json!({"reservation": job["reservation"]})).await else {
                            return;
                        };
                        committed.lock().unwrap().push(id(job));
                    }
                    lives.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        load
    }

    async fn end(mut self) -> (Vec<String>, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(client) = self.clients.join_next().await {
            client.unwrap();
        }
        let taken = |ids: &Ids| std::mem::take(&mut *ids.lock().unwrap());
        (taken(&self.pushed), taken(&self.committed))
    }
}

async fn gathered(server: &Server) -> Vec<f64> {
    let mut counts = Vec::new();
    for lane in LANES {
        counts.push(
            metric(server, &format!("tailback_rounds_gathered_seconds_count{{lane=\"{lane}\"}}")).await,
        );
    }
    counts
}

async fn until_gathering(server: &Server) {
    until("rounds let others gather", || async { gathered(server).await.iter().all(|count| *count > 0.0) })
        .await;
}

async fn servers(place: &Place) -> [Server; 2] {
    [Server::start(&place.url).await, Server::start(&place.url).await]
}

pub async fn who_comes_alone_does_not_wait_for_a_busy_server(place: &Place) {
    let [one, other] = servers(place).await;
    let load = Load::begin(&other, "busy");
    until("it says that it is busy", || async { metric(&one, HEARD_BUSY).await > 0.0 }).await;
    for queue in ["own", "busy"] {
        // A round whose thread stands still at its end may find the next call waiting, which then does not come alone.
        until("no call waits for others", || async {
            let before = gathered(&one).await;
            for _ in 0..10 {
                one.push(queue, json!({"payload": 1})).await;
                let ask = json!({"lease_ms": 600_000});
                let (_, answer) = one.post(&format!("/v1/queues/{queue}/reserve"), ask).await;
                for job in answer["jobs"].as_array().unwrap() {
                    assert_eq!(one.settle(job, "commit", json!({})).await.0, 200);
                }
            }
            gathered(&one).await == before
        })
        .await;
    }
    let there = gathered(&other).await;
    // Likewise this server may have said that it is busy.
    let is_alone = metric(&other, HEARD_BUSY).await == 0.0;
    assert!(there == [0.0; 3] || !is_alone, "nobody else is busy: {there:?}");
    load.end().await;
}

pub async fn busy_servers_take_turns_and_lose_nothing(place: &Place) {
    let [mut one, other] = servers(place).await;
    let loads = [Load::begin(&one, "mail"), Load::begin(&other, "mail")];
    until_gathering(&one).await;
    until_gathering(&other).await;
    let (mut pushed, mut committed) = (HashSet::new(), Vec::new());
    for load in loads {
        let (these, those) = load.end().await;
        pushed.extend(these);
        committed.extend(those);
    }
    let all: HashSet<String> = committed.iter().cloned().collect();
    assert_eq!(all.len(), committed.len(), "none is committed twice");
    assert!(all.is_subset(&pushed));
    let (_, answer) = other.post("/v1/queues/mail/reserve", json!({"count": 1000})).await;
    let left: HashSet<String> = ids(answer["jobs"].as_array().unwrap()).into_iter().collect();
    assert_eq!(pushed.difference(&all).cloned().collect::<HashSet<_>>(), left);
    // A stop does not wait for others.
    let load = Load::begin(&one, "more");
    until("it works", || async { load.lives.load(Ordering::Relaxed) > CLIENTS }).await;
    assert!(one.terminate().await.success());
}

pub async fn a_busy_server_that_is_killed_is_waited_for_no_more(place: &Place) {
    let [one, mut other] = servers(place).await;
    let (mut load, killed) = (Load::begin(&one, "mail"), Load::begin(&other, "mail"));
    until_gathering(&one).await;
    other.kill();
    drop(killed);
    until("no round waits any more", || async {
        let (before, lives) = (gathered(&one).await, load.lives.load(Ordering::Relaxed));
        until("the clients go on", || async { load.lives.load(Ordering::Relaxed) > lives + 10 * CLIENTS })
            .await;
        gathered(&one).await == before
    })
    .await;
    assert!(load.clients.try_join_next().is_none(), "a client has stopped, since a call failed");
    load.end().await;
}
