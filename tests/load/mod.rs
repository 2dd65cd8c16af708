//! Clients of every kind at once, each call recorded: producers, groups, batches, workers that fail in all the ways that
//! workers fail, an operator. What they do is drawn from a seed; when it happens is not.
#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

pub mod producers;
pub mod workers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::checker::{Client, Outcome, Recorder, Scan, Setup, Verb, Violation, drain, judge};
use crate::common::server::PATIENCE;

/// The queues that workers work in.
pub const WORKED: [&str; 12] =
    ["work", "line", "in", "out", "first", "second", "batch", "after", "mortal", "graves", "moved", "ticks"];
/// The semaphores, and how many may hold each.
pub const SEMAPHORES: [(&str, u64); 2] = [("db", 2), ("gpu", 1)];
/// More than any job uses up.
pub const ENDLESS: u64 = 100_000;

/// A backoff that ends before those who empty the queues give up, also after many attempts.
pub fn backoff() -> Value {
    json!({"kind": "exponential", "base_ms": 1000, "max_ms": 4000})
}

/// The binary of an older server that runs beside the new ones, if there is one.
pub fn old_server() -> Option<String> {
    std::env::var("TAILBACK_OLD_SERVER").ok().filter(|path| !path.is_empty())
}

/// How much is done at once.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub producers: usize,
    pub groups: usize,
    pub workers: usize,
    /// The longest pause of a producer.
    pub pause_ms: u64,
}

impl Size {
    pub const SMALL: Self = Self { producers: 2, groups: 2, workers: 5, pause_ms: 40 };
    pub const LARGE: Self = Self { producers: 4, groups: 4, workers: 10, pause_ms: 40 };
}

/// What all clients share.
pub struct Shared {
    pub recorder: Recorder,
    /// Where servers serve.
    pub bases: RwLock<Vec<String>>,
    over: AtomicBool,
    /// Settles of workers that overstayed.
    pub late: Mutex<JoinSet<()>>,
    /// How long a client waits for a response.
    patience: Duration,
    pub seed: u64,
}

impl Shared {
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// One of the clients, with dice of its own.
pub struct Actor {
    pub shared: Arc<Shared>,
    pub dice: StdRng,
    /// Jobs as they were delivered whose tokens are dead, or soon will be.
    pub stale: Vec<Value>,
    client: Client,
}

impl Actor {
    fn new(shared: &Arc<Shared>, name: &str, seed: u64) -> Self {
        let client = Client::new(&shared.recorder, name, "").patient(shared.patience);
        Self { shared: shared.clone(), dice: StdRng::seed_from_u64(seed), stale: Vec::new(), client }
    }

    /// This client at any server.
    pub fn client(&mut self) -> Client {
        let bases = self.shared.bases.read().unwrap();
        self.client.at(&bases[self.dice.random_range(0..bases.len())])
    }

    pub fn chance(&mut self, percent: u32) -> bool {
        self.dice.random_range(0..100) < percent
    }

    pub async fn pause(&mut self, up_to_ms: u64) {
        let ms = self.dice.random_range(0..=up_to_ms);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// An `Idempotency-Key` of its own for one call.
    pub fn key(&mut self) -> String {
        format!("{:032x}", self.dice.random::<u128>())
    }

    /// Makes a call at any server, and again elsewhere while its outcome is unknown, a few times.
    pub async fn insist(&mut self, verb: Verb, target: &str, body: &Value, times: usize) -> Outcome {
        self.insist_keyed(verb, target, body, None, times).await
    }

    /// The same with an `Idempotency-Key`.
    pub async fn insist_keyed(
        &mut self,
        verb: Verb,
        target: &str,
        body: &Value,
        key: Option<&str>,
        times: usize,
    ) -> Outcome {
        let mut outcome = Outcome::Unknown { why: "not tried".to_owned() };
        for _ in 0..times {
            outcome = self.client().call_keyed(verb, target, body.clone(), key).await;
            let was_sent = outcome.status() != 0 || outcome.is_unknown();
            let is_pending = matches!(&outcome, Outcome::Refused { code, .. } if code == "request-pending");
            if was_sent && !outcome.is_unknown() && !is_pending {
                break;
            }
            self.pause(80).await;
        }
        outcome
    }
}

/// A load that is under way.
pub struct Load {
    pub shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Load {
    /// Starts everything at these servers.
    pub async fn start(bases: Vec<String>, size: Size, seed: u64, patience: Duration) -> Self {
        let shared = Arc::new(Shared {
            recorder: Recorder::new(),
            bases: RwLock::new(bases),
            over: AtomicBool::new(false),
            late: Mutex::default(),
            patience,
            seed,
        });
        prepare(&shared, seed).await;
        let mut tasks = JoinSet::new();
        let mut number = 0;
        let mut actor = |name: &str| {
            number += 1;
            Actor::new(&shared, &format!("{name}-{number}"), seed.wrapping_mul(1000).wrapping_add(number))
        };
        for _ in 0..size.producers {
            tasks.spawn(producers::producer(actor("producer"), size.pause_ms));
        }
        for group in 0..size.groups {
            tasks.spawn(producers::group(actor("group"), group, size.pause_ms));
        }
        tasks.spawn(producers::batches(actor("batches"), 4 * size.pause_ms));
        tasks.spawn(producers::operator(actor("operator"), 4 * size.pause_ms));
        tasks.spawn(workers::popper(actor("popper")));
        for n in 0..size.workers {
            tasks.spawn(workers::worker(actor("worker"), n));
        }
        Self { shared, tasks }
    }

    /// Lets every client finish what it is doing. A client that panicked fails the test.
    pub async fn stop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        let late = std::mem::take(&mut *self.shared.late.lock().unwrap());
        late.join_all().await;
    }

    /// Once every server is well again: drains, scans, judges.
    pub async fn verdict(&self, setup: &Setup, patience: Duration) -> (Scan, Vec<Violation>) {
        let bases = self.shared.bases.read().unwrap().clone();
        let mut actor = Actor::new(&self.shared, "end", 1);
        actor.client = actor.client.patient(Duration::from_secs(20));
        actor.insist(Verb::DeleteSchedule, "tick", &Value::Null, 20).await;
        for batch in producers::open_batches(&self.shared.recorder.history()) {
            actor.insist(Verb::Seal, &batch, &Value::Null, 20).await;
        }
        until_operations_are_over(&bases[0]).await;
        let servers: Vec<&str> = bases.iter().map(String::as_str).collect();
        let client = actor.client();
        drain(&client, &servers, &["pops"], patience).await;
        let history = self.shared.recorder.history();
        let within = (2 * patience).max(Duration::from_secs(60));
        let scan = Scan::read_within(&bases[0], &history, within).await;
        let violations = judge(&history, &scan, setup);
        (scan, violations)
    }

    /// Removes the dead jobs of this round, which the next one would not know.
    pub async fn bury(&self) {
        let mut actor = Actor::new(&self.shared, "end", 2);
        for queue in WORKED {
            let purged = actor.insist(Verb::Purge, queue, &json!({"state": "dead"}), 50).await;
            assert!(purged.answer().is_some(), "{purged:?}");
        }
    }
}

/// Waits until no operation is open: what it takes must not come back once all is drained.
async fn until_operations_are_over(base: &str) {
    let (http, deadline) = (reqwest::Client::new(), Instant::now() + PATIENCE);
    loop {
        let page = match http.get(format!("{base}/v1/operations?limit=1000")).send().await {
            Ok(response) if response.status() == 200 => response.json::<Value>().await.ok(),
            Ok(response) if response.status() == 404 => return, // an older server, which knows none
            _ => None,
        };
        let is_open = |one: &Value| one["state"] == "queued" || one["state"] == "running";
        let list = page.as_ref().and_then(|page| page["operations"].as_array());
        if list.is_some_and(|all| !all.iter().any(is_open)) {
            return;
        }
        assert!(Instant::now() < deadline, "operations are not over: {page:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What must be there before: semaphores, settings, a schedule.
async fn prepare(shared: &Arc<Shared>, seed: u64) {
    let mut actor = Actor::new(shared, "begin", seed);
    for (name, capacity) in SEMAPHORES {
        let body = json!({ "capacity": capacity });
        assert!(actor.insist(Verb::PutSemaphore, name, &body, 50).await.answer().is_some());
    }
    let rule = json!({"cron": "* * * * * *", "queue": "ticks", "job": {"payload": "tick", "max_attempts": ENDLESS, "backoff": backoff()}});
    assert!(actor.insist(Verb::PutSchedule, "tick", &rule, 50).await.answer().is_some());
    let settings = json!({"max_attempts": 2, "dead_letter": "graves"});
    assert!(actor.insist(Verb::PutSettings, "mortal", &settings, 50).await.answer().is_some());
}
