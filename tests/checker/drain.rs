//! Works until nothing is left.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, jobs};
use super::history::{Outcome, Verb};

const LEASE_MS: u64 = 10_000;

/// Reserves and commits in these queues at these servers, in turn, until the servers say that no job is left there
/// but dead ones and history. The queues are those that the servers list, and the ones given. Where nothing is committed
/// for as long as `patience`, the rest is left to the judge.
pub async fn drain(client: &Client, servers: &[&str], queues: &[&str], patience: Duration) {
    let (client, mut turn, mut last) = (client.named("drain"), 0, Instant::now());
    let mut left: Vec<String> = Vec::new();
    while last.elapsed() < patience {
        let client = client.at(servers[turn % servers.len()]);
        turn += 1;
        if left.is_empty() {
            match unfinished(&client.base, queues).await {
                Some(queues) if queues.is_empty() => return,
                queues => left = queues.unwrap_or_default(),
            }
            continue;
        }
        let ask = json!({"queues": left, "count": 100, "wait_ms": 200, "lease_ms": LEASE_MS});
        let found = jobs(&client.call(Verb::Reserve, "", ask).await);
        if found.is_empty() {
            left.clear();
        } else if commit(&client, &found).await {
            last = Instant::now();
        }
    }
}

/// Whether they were committed for certain. A second try is safe: a token is used once.
async fn commit(client: &Client, found: &[Value]) -> bool {
    let item = |job: &Value| json!({"id": job["id"], "reservation": job["reservation"]});
    let body = json!({"commit": found.iter().map(item).collect::<Vec<Value>>()});
    for _ in 0..5 {
        match client.call(Verb::Settle, "", body.clone()).await {
            Outcome::Ok { answer, .. } => {
                let mut results = answer["commit"].as_array().unwrap().iter();
                if results.all(|result| result["status"].as_u64().unwrap() < 500) {
                    return true;
                }
            }
            Outcome::Refused { .. } => return false,
            Outcome::Unknown { .. } => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

/// The queues that have unfinished jobs; `None` if the server does not say.
async fn unfinished(base: &str, more: &[&str]) -> Option<Vec<String>> {
    let http = reqwest::Client::new();
    let get = async |path: String| -> Option<Value> {
        let response =
            http.get(format!("{base}{path}")).timeout(Duration::from_secs(10)).send().await.ok()?;
        if response.status() == 200 { response.json().await.ok() } else { None }
    };
    let mut names: Vec<String> = more.iter().map(|name| (*name).to_owned()).collect();
    let listed = get("/v1/queues?limit=1000".to_owned()).await?;
    let listed = listed["queues"].as_array()?.iter();
    names.extend(
        listed.filter_map(|queue| queue["queue"].as_str().or(queue["name"].as_str())).map(str::to_owned),
    );
    names.sort();
    names.dedup();
    let mut left = Vec::new();
    for name in names {
        // In the order in which a job passes through them by itself: one that moves on meanwhile is seen later.
        for state in ["reserved", "blocked", "scheduled", "ready"] {
            let page = get(format!("/v1/queues/{name}/jobs?state={state}&limit=1")).await?;
            if !page["jobs"].as_array()?.is_empty() {
                left.push(name.clone());
                break;
            }
        }
    }
    Some(left)
}
