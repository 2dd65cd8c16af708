//! The server under attack, and what must hold of it: no error of its own, documented statuses, no panic in its log,
//! bounded memory, other clients served, and everything there after a restart.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Client, Outcome, Reply};
use crate::common::server::{PATIENCE, Server, client, command};

/// The most memory of a server under attack, in kilobytes.
const MEMORY_KB: u64 = 512 << 10;

/// A server whose log is kept.
pub struct Target {
    pub server: Server,
    log: std::fs::File,
}

impl Target {
    /// Starts a server and waits until it is ready.
    pub async fn start(store: &str) -> Self {
        let mut log = tempfile::tempfile().unwrap();
        let mut command = command(store, &[]);
        // Where this test stands still in the middle of a body, it is not refused for that.
        command.env("TAILBACK_LIMITS__BODY_PAUSE_MS", "60000");
        // A key that the attack creates must not lock out the attack.
        if include_str!("../../config.toml").contains("\n[auth]") {
            command.env("TAILBACK_AUTH__REQUIRED", "false");
        }
        let mut child = command.stderr(Stdio::from(log.try_clone().unwrap())).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some(base) = line.trim().strip_prefix("listening on ") else {
            let mut text = String::new();
            log.rewind().unwrap();
            log.read_to_string(&mut text).unwrap();
            panic!("it does not start: {line:?} {text}");
        };
        let server = Server { base: base.to_owned(), child, http: client(), is_current: true };
        server.until_ready().await;
        Self { server, log }
    }

    /// Returns the highest resident size so far, in kilobytes.
    pub fn peak_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Checks what must hold of the process, and stops it.
    pub async fn stop(mut self) {
        let peak = self.peak_kb();
        let failed = self.server.child.try_wait().unwrap();
        assert!(failed.is_none(), "the server is gone: {failed:?}");
        assert!(self.server.terminate().await.success());
        let mut log = String::new();
        self.log.rewind().unwrap();
        self.log.read_to_string(&mut log).unwrap();
        let bad = log.lines().find(|line| line.contains("panic") || line.contains("ERROR"));
        assert!(bad.is_none(), "its log has: {bad:?}");
        println!("  memory at most {} MB", peak >> 10);
        assert!(peak <= MEMORY_KB, "{peak} kB of memory");
    }
}

/// Counts, and what went wrong.
#[derive(Default)]
pub struct Tally {
    pub sent: AtomicUsize,
    statuses: Mutex<BTreeMap<String, usize>>,
    faults: Mutex<Vec<String>>,
}

impl Tally {
    /// Counts the outcome of a request, and judges it against the documented statuses.
    pub fn note(&self, outcome: &Outcome, statuses: &[u16], what: impl Fn() -> String) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let kind = match outcome {
            Outcome::Reply(reply) => reply.status.to_string(),
            Outcome::Closed => "closed".to_owned(),
            Outcome::Left => "left".to_owned(),
        };
        *self.statuses.lock().unwrap().entry(kind).or_default() += 1;
        if let Outcome::Reply(reply) = outcome
            && let Err(fault) = judge(reply, statuses)
        {
            self.fault(format!("{}: {fault}", what()));
        }
    }

    pub fn fault(&self, text: String) {
        self.faults.lock().unwrap().push(text);
    }

    /// Fails if anything went wrong.
    pub fn end(&self, what: &str) {
        let statuses = self.statuses.lock().unwrap();
        println!("{what}: {} requests, by outcome: {statuses:?}", self.sent.load(Ordering::Relaxed));
        let faults = self.faults.lock().unwrap();
        let shown: Vec<&String> = faults.iter().take(40).collect();
        assert!(faults.is_empty(), "{} faults: {shown:#?}", faults.len());
    }
}

/// What `/readyz` says where the server, or its store, has stood still for some seconds.
const NOT_PROVEN: &str = "the store has not been seen to take writes for";

/// Judges a response by itself.
pub fn judge(reply: &Reply, statuses: &[u16]) -> Result<(), String> {
    let short = || reply.text().chars().take(400).collect::<String>();
    if reply.status == 503 && reply.text().contains(NOT_PROVEN) {
        return Ok(());
    }
    if reply.status >= 500 || !statuses.contains(&reply.status) {
        return Err(format!("status {}: {}", reply.status, short()));
    }
    if reply.header("x-request-id").is_none() {
        return Err(format!("no request id: {}", reply.head));
    }
    if reply.status < 400 {
        return Ok(());
    }
    let problem: Value =
        serde_json::from_slice(&reply.body).map_err(|_| format!("no problem: {}", short()))?;
    let is_named = problem["code"].is_string() && problem["request_id"].is_string();
    if problem["status"] != reply.status || !is_named || problem["detail"].as_str().is_none_or(str::is_empty)
    {
        return Err(format!("an incomplete problem: {}", short()));
    }
    if reply.header("content-type") != Some("application/problem+json") {
        return Err(format!("a problem of another type: {}", reply.head));
    }
    Ok(())
}

/// A healthy client beside the attack: pushes, reserves and commits until it is stopped. Prints how long its calls took, and
/// fails only if one is not served.
pub async fn healthy(server: &Server, stopped: &AtomicBool) {
    let mut client = Client::new(server);
    let mut took: Vec<Duration> = Vec::new();
    while !stopped.load(Ordering::Relaxed) {
        let mut call = async |path: &str, body: &str| {
            let since = Instant::now();
            let reply = client.call("POST", path, body).await;
            took.push(since.elapsed());
            assert!(matches!(reply.status, 200 | 201 | 409), "{path}: {} {}", reply.status, reply.text());
            serde_json::from_slice::<Value>(&reply.body).unwrap()
        };
        call("/v1/queues/healthy/jobs", r#"{"payload":1}"#).await;
        let jobs = call("/v1/queues/healthy/reserve", "{}").await;
        for job in jobs["jobs"].as_array().unwrap() {
            let path = format!("/v1/jobs/{}/commit", job["id"].as_str().unwrap());
            call(&path, &format!("{{\"reservation\":{}}}", job["reservation"])).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    took.sort();
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!("  a healthy client: {} calls, p50 {:?}, p99 {:?}", took.len(), at(0.5), at(0.99));
    assert!(took.iter().all(|took| *took < PATIENCE));
}
