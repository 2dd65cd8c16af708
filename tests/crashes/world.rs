//! Servers that die and come back, and calls that are made again until one of them answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use rand::Rng as _;
use serde_json::{Value, json};

use super::book::{Book, QUEUES};
use crate::common::fleet::{fleet, kill_9};
use crate::common::server::{Place, Server};

/// See the module's documentation.
pub struct World {
    servers: RwLock<Vec<Arc<Server>>>,
    http: reqwest::Client,
    book: Mutex<Book>,
    over: AtomicBool,
    kills: AtomicUsize,
}

impl World {
    pub async fn start(place: &Place) -> Arc<Self> {
        let servers = fleet(place).await;
        let http = reqwest::Client::builder().timeout(Duration::from_secs(20)).build().unwrap();
        Arc::new(Self {
            servers: RwLock::new(servers),
            http,
            book: Mutex::default(),
            over: AtomicBool::new(false),
            kills: AtomicUsize::new(0),
        })
    }

    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Whether clients are to stop.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Makes a call at any server, again and again until one of them says yes or no.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let (status, answer, _) = self.call_and_tell(method, path, body).await;
        (status, answer)
    }

    /// The same, and whether an earlier try may have been carried out. Every try carries the same `Idempotency-Key`.
    pub async fn call_and_tell(&self, method: &str, path: &str, body: Value) -> (u16, Value, bool) {
        let key = format!("{:032x}", rand::random::<u128>());
        let mut is_repeat = false;
        loop {
            let server = {
                let servers = self.servers.read().unwrap();
                servers[rand::rng().random_range(0..servers.len())].clone()
            };
            let request = self.http.request(method.parse().unwrap(), format!("{}{path}", server.base));
            let request = request.header("idempotency-key", &key);
            let request = if body.is_null() { request } else { request.json(&body) };
            if let Ok(response) = request.send().await {
                let status = response.status().as_u16();
                if let Ok(text) = response.text().await
                    && status != 503
                {
                    let answer = serde_json::from_str(&text).unwrap_or(Value::Null);
                    assert!(status < 500, "{method} {path}: {status} {answer}");
                    return (status, answer, is_repeat);
                }
            }
            is_repeat = true;
            let pause = rand::rng().random_range(10..80);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Kills one server after the other, each at any instant, and starts another in its place.
    pub async fn kill_now_and_then(self: Arc<Self>, url: String, times: usize) {
        while self.kills.load(Ordering::Relaxed) < times {
            let (pause, place) = {
                let count = self.servers.read().unwrap().len();
                let mut dice = rand::rng();
                (dice.random_range(100..900), dice.random_range(0..count))
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let victim = self.servers.read().unwrap()[place].clone();
            kill_9(&victim).await;
            let server = Arc::new(Server::start(&url).await);
            self.servers.write().unwrap()[place] = server;
            self.kills.fetch_add(1, Ordering::Relaxed);
        }
        println!("{} servers were killed", self.kills.load(Ordering::Relaxed));
    }

    /// Some of the jobs that there are, of each queue.
    pub async fn left(&self) -> Vec<Value> {
        let mut left = Vec::new();
        for queue in QUEUES {
            let (status, page) =
                self.call("GET", &format!("/v1/queues/{queue}/jobs?limit=5"), json!(null)).await;
            assert_eq!(status, 200, "{page}");
            left.extend(page["jobs"].as_array().unwrap().iter().cloned());
        }
        left
    }
}
