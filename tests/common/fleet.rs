//! Several servers over one store, and what tests with many clients at once share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::server::{Place, Server, until};
use super::signal::{self, Signal};

/// As many servers as the store takes: three over MongoDB, one over a file.
pub async fn fleet(place: &Place) -> Vec<Arc<Server>> {
    let count = if place.url.starts_with("mongodb") { 3 } else { 1 };
    let starts = (0..count).map(|_| Server::start(&place.url));
    futures::future::join_all(starts).await.into_iter().map(Arc::new).collect()
}

/// SIGKILL for a server that others are talking to. Its handle still has to be dropped to bury it.
pub async fn kill_9(server: &Server) {
    let pid = server.child.id();
    signal::send(pid, Signal::SIGKILL);
    // Its files and connections are closed once the last of its threads is gone; the first one, unburied,
    // is shown for as long as nobody has asked how it ended.
    until("the process is dead", || async {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        threads <= 1 && stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X']))
    })
    .await;
}

/// Pushes this many jobs in batches and answers their ids; the payload of each is its number.
pub async fn push_many(server: &Server, queue: &str, count: usize, job: Value) -> Vec<String> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let end = count.min(ids.len() + 1000);
        let jobs: Vec<Value> = (ids.len()..end)
            .map(|n| {
                let mut job = job.clone();
                job["payload"] = json!(n);
                job
            })
            .collect();
        let (status, answer) =
            server.post(&format!("/v1/queues/{queue}/jobs/batch"), json!({"jobs": jobs})).await;
        assert_eq!(status, 200, "{answer}");
        for result in answer["results"].as_array().unwrap() {
            assert_eq!(result["status"], 201, "{result}");
            ids.push(result["id"].as_str().unwrap().to_owned());
        }
    }
    ids
}

/// Every job of a queue, page by page.
pub async fn browse(server: &Server, queue: &str) -> Vec<Value> {
    let mut jobs = Vec::new();
    let mut cursor = String::new();
    loop {
        let (status, page) = server.get(&format!("/v1/queues/{queue}/jobs?limit=200{cursor}")).await;
        assert_eq!(status, 200, "{page}");
        jobs.extend(page["jobs"].as_array().unwrap().iter().cloned());
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return jobs,
        }
    }
}

/// A text field of a job.
pub fn text(job: &Value, field: &str) -> String {
    job[field].as_str().unwrap_or_else(|| panic!("no {field} in {job}")).to_owned()
}

/// Counts things that many tasks see.
#[derive(Default, Clone)]
pub struct Tally(Arc<Mutex<HashMap<String, usize>>>);

impl Tally {
    pub fn seen(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap()
    }

    /// Notes that something happened, and how often it has by now.
    pub fn note(&self, what: &str) -> usize {
        let mut seen = self.seen();
        let count = seen.entry(what.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// How many different things were noted.
    pub fn len(&self) -> usize {
        self.seen().len()
    }
}
