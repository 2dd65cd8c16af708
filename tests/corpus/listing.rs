//! What a server lists, before a restart and after it.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use serde_json::value::RawValue;

use super::client::Client;
use super::target::Target;
use crate::common::server::{Server, until};

/// The fields of a job that do not change by themselves.
const STABLE: [&str; 15] = [
    "queue",
    "payload",
    "priority",
    "key",
    "group",
    "headers",
    "max_attempts",
    "backoff",
    "then",
    "semaphores",
    "created_at",
    "batch",
    "replay_of",
    "progress",
    "retain_result_ms",
];

/// How often everything is listed until nothing changes any more.
const LISTINGS: usize = 20;

/// Everything listed, by what it is and its name, as the text of its stable fields.
type Listing = BTreeMap<String, String>;

type Fields = HashMap<String, Box<RawValue>>;

/// Walks the pages of a list.
async fn pages(client: &mut Client, path: &str, list: &str) -> Vec<Fields> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let reply = client.call("GET", &format!("{path}?limit=1000{cursor}"), "").await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let mut page: Fields = serde_json::from_slice(&reply.body).unwrap();
        let items: Vec<Fields> = serde_json::from_str(page.remove(list).unwrap().get()).unwrap();
        if let Some(unreadable) = page.get("unreadable") {
            assert_eq!(unreadable.get(), "[]", "{path}: something is unreadable");
        }
        found.extend(items);
        match page.remove("cursor").map(|raw| serde_json::from_str::<Option<String>>(raw.get()).unwrap()) {
            Some(Some(next)) => cursor = format!("&cursor={next}"),
            _ => return found,
        }
    }
}

fn text(fields: &Fields, name: &str) -> String {
    fields.get(name).map_or(String::new(), |raw| serde_json::from_str(raw.get()).unwrap())
}

fn only<'a>(fields: &Fields, names: impl IntoIterator<Item = &'a str>) -> String {
    let pairs = names.into_iter().filter_map(|name| Some(format!("{name}={}", fields.get(name)?.get())));
    pairs.collect::<Vec<String>>().join(" ")
}

/// Lists everything: what lasts, and all. The queues of `known` are looked at even where nothing is left in them.
async fn list(server: &Server, known: &[String]) -> (Listing, Listing) {
    let mut client = Client::new(server);
    let (mut lasting, mut all) = (Listing::new(), Listing::new());
    let mut queues = known.to_vec();
    for queue in pages(&mut client, "/v1/queues", "queues").await {
        queues.push(text(&queue, "queue"));
    }
    for name in queues {
        let one = client.call("GET", &format!("/v1/queues/{name}"), "").await;
        assert_eq!(one.status, 200, "{name}: {}", one.text());
        let mut settings: serde_json::Map<String, Value> = serde_json::from_slice(&one.body).unwrap();
        assert!(!settings.contains_key("unreadable"), "{}", one.text());
        settings.remove("counts");
        lasting.insert(format!("queue {name}"), Value::Object(settings).to_string());
        for job in pages(&mut client, &format!("/v1/queues/{name}/jobs"), "jobs").await {
            let id = format!("job {}", text(&job, "id"));
            let stays = matches!(text(&job, "state").as_str(), "ready" | "scheduled" | "blocked");
            let line = only(&job, STABLE);
            if stays && !job.contains_key("expires_at") {
                lasting.insert(id.clone(), line.clone());
            }
            all.insert(id, line);
        }
    }
    for schedule in pages(&mut client, "/v1/schedules", "schedules").await {
        let rule = only(&schedule, ["cron", "time_zone", "queue", "job", "overlap", "misfire", "paused"]);
        lasting.insert(format!("schedule {}", text(&schedule, "name")), rule);
    }
    for semaphore in pages(&mut client, "/v1/semaphores", "semaphores").await {
        lasting.insert(format!("semaphore {}", text(&semaphore, "name")), only(&semaphore, ["capacity"]));
    }
    for worker in pages(&mut client, "/v1/workers", "workers").await {
        let line = only(&worker, ["version", "slots", "timeout_ms"]);
        let lasts = worker.get("timeout_ms").is_some_and(|timeout| timeout.get() == "86400000");
        let name = format!("worker {}", text(&worker, "name"));
        if lasts {
            lasting.insert(name.clone(), line.clone());
        }
        all.insert(name, line);
    }
    all.extend(lasting.clone());
    (lasting, all)
}

/// Stops the operations over many jobs that are under way, which go on by themselves.
async fn stop_operations(server: &Server) {
    until("no operation is under way", || async {
        let mut client = Client::new(server);
        let mut are_over = true;
        for operation in pages(&mut client, "/v1/operations", "operations").await {
            if matches!(text(&operation, "state").as_str(), "queued" | "running") {
                are_over = false;
                // Where it is refused since a step came first, the next round tries again.
                client.call("DELETE", &format!("/v1/operations/{}", text(&operation, "id")), "").await;
            }
        }
        are_over
    })
    .await;
}

/// The queues of a listing.
fn queues(listing: &Listing) -> Vec<String> {
    listing.keys().filter_map(|name| name.strip_prefix("queue ")).map(str::to_owned).collect()
}

/// Lists what lasts, once nothing of it changes any more: clients have left, and what they asked for may have been under way still.
async fn lasting(server: &Server) -> Listing {
    stop_operations(server).await;
    let mut before = list(server, &[]).await.0;
    for _ in 0..LISTINGS {
        let (again, all) = list(server, &queues(&before)).await;
        if before.iter().all(|(name, line)| all.get(name) == Some(line)) {
            return again;
        }
        before = again;
    }
    panic!("something changes all the time");
}

/// Stops the server, starts another one on the same store, and compares what they list.
pub async fn survives_a_restart(target: Target, store: &str) {
    let before = lasting(&target.server).await;
    target.stop().await;
    let target = Target::start(store).await;
    let (_, after) = list(&target.server, &queues(&before)).await;
    for (name, line) in &before {
        assert_eq!(after.get(name), Some(line), "{name} after the restart");
    }
    println!("  after a restart: {} things as before", before.len());
    target.stop().await;
}
