//! What there is once all is over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::history::{History, Verb};

/// How long the counts may take to equal the jobs, on however busy a machine.
const COUNTS_WITHIN: Duration = Duration::from_secs(60);
const AT_ONCE: usize = 200;

/// Every job of every queue, and what else is kept.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Scan {
    pub jobs: Vec<Value>,
    pub semaphores: Vec<Value>,
    pub batches: Vec<Value>,
    /// `counts` of `/stats`.
    pub counts: Value,
    /// `counts` of each queue's stats.
    pub queue_counts: BTreeMap<String, Value>,
    /// How long it took until the counts were equal to the jobs, or all the time that there was.
    pub counts_after_ms: u64,
}

impl Scan {
    /// Reads everything from a server that is at rest. Waits for counts that are not kept up to date at once.
    pub async fn read(base: &str, history: &History) -> Self {
        Self::read_within(base, history, COUNTS_WITHIN).await
    }

    /// The same where the counts have so long.
    pub async fn read_within(base: &str, history: &History, within: Duration) -> Self {
        let (begin, http) = (Instant::now(), reqwest::Client::new());
        let queues = queues_of(&http, base, history).await;
        loop {
            let mut scan = Self::once(&http, base, history, &queues).await;
            scan.counts_after_ms = u64::try_from(begin.elapsed().as_millis()).unwrap();
            if scan.uncounted().is_empty() || begin.elapsed() > within {
                return scan;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn once(http: &reqwest::Client, base: &str, history: &History, queues: &BTreeSet<String>) -> Self {
        let mut scan = Self::default();
        for queue in queues {
            let path = format!("{base}/v1/queues/{queue}");
            scan.jobs.extend(pages(http, &format!("{path}/jobs"), "jobs").await);
            let stats = get(http, &format!("{path}/stats")).await.unwrap_or_default();
            scan.queue_counts.insert(queue.clone(), stats["counts"].clone());
        }
        for semaphore in pages(http, &format!("{base}/v1/semaphores"), "semaphores").await {
            let name = semaphore["name"].as_str().unwrap();
            scan.semaphores.extend(get(http, &format!("{base}/v1/semaphores/{name}")).await);
        }
        for batch in batches_of(history) {
            scan.batches.extend(get(http, &format!("{base}/v1/batches/{batch}")).await);
        }
        scan.counts = get(http, &format!("{base}/stats")).await.unwrap_or_default()["counts"].clone();
        scan
    }

    /// Where counts and jobs differ.
    pub fn uncounted(&self) -> Vec<String> {
        let mut real: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
        let mut total: BTreeMap<&str, u64> = BTreeMap::new();
        for job in &self.jobs {
            let state = class(job["state"].as_str().unwrap());
            *real.entry(job["queue"].as_str().unwrap()).or_default().entry(state).or_default() += 1;
            *total.entry(state).or_default() += 1;
        }
        let empty = BTreeMap::new();
        let mut wrong: Vec<String> = Vec::new();
        let mut compare = |what: &str, counts: &Value, real: &BTreeMap<&str, u64>| {
            if !is_equal(counts, real) {
                wrong.push(format!("{what}: counted {counts}, there are {real:?}"));
            }
        };
        for (queue, counts) in &self.queue_counts {
            compare(queue, counts, real.get(queue.as_str()).unwrap_or(&empty));
        }
        compare("all queues", &self.counts, &total);
        wrong
    }
}

/// The states that are counted together: whether a job is due yet depends on the moment.
fn class(state: &str) -> &str {
    if state == "scheduled" { "ready" } else { state }
}

fn is_equal(counts: &Value, real: &BTreeMap<&str, u64>) -> bool {
    let Some(counts) = counts.as_object() else { return false };
    let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
    for (state, count) in counts {
        *counted.entry(class(state)).or_default() += count.as_u64().unwrap_or(u64::MAX / 2);
    }
    let states: BTreeSet<&str> = counted.keys().chain(real.keys()).copied().collect();
    let of = |counts: &BTreeMap<&str, u64>, state| counts.get(state).copied().unwrap_or(0);
    states.iter().all(|state| of(&counted, state) == of(real, state))
}

/// The queues that the server names, and those that clients named.
async fn queues_of(http: &reqwest::Client, base: &str, history: &History) -> BTreeSet<String> {
    let listed = pages(http, &format!("{base}/v1/queues"), "queues").await;
    let mut queues: BTreeSet<String> = BTreeSet::new();
    queues.extend(
        listed
            .iter()
            .filter_map(|queue| queue["queue"].as_str().or(queue["name"].as_str()))
            .map(str::to_owned),
    );
    let of_queues = history.calls.iter().filter(|call| call.verb.request("").1.starts_with("/v1/queues/"));
    queues.extend(of_queues.map(|call| call.target.clone()).filter(|queue| !queue.is_empty()));
    queues
}

fn batches_of(history: &History) -> BTreeSet<String> {
    let created = history.calls.iter().filter(|call| call.verb == Verb::CreateBatch);
    created.filter_map(|call| call.outcome.answer()?["id"].as_str()).map(str::to_owned).collect()
}

/// The body of a 200. Anything else but a 404 is asked for again: the server may have just become well.
async fn get(http: &reqwest::Client, url: &str) -> Option<Value> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        if let Ok(response) = http.get(url).timeout(Duration::from_secs(20)).send().await {
            let status = response.status().as_u16();
            match (status, response.json().await) {
                (200, Ok(body)) => return Some(body),
                (404, _) => return None,
                _ => {}
            }
        }
        assert!(Instant::now() < deadline, "{url} cannot be read");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn pages(http: &reqwest::Client, url: &str, list: &str) -> Vec<Value> {
    let (mut items, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(http, &format!("{url}?limit={AT_ONCE}{cursor}")).await.unwrap_or(json!({}));
        items.extend(page[list].as_array().into_iter().flatten().cloned());
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return items,
        }
    }
}
