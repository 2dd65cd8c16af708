//! What there is of a case in the database, and whether the counts agree with it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::Database;
use mongodb::bson::{Document, doc};
use tailback::store::Figures as _;
use tailback::store::mongo::Mongo;

use super::case::Case;
use crate::common::server::PATIENCE;

/// Within this, increments are in the database.
const SOON: Duration = Duration::from_secs(60);

/// All that there is of a case, without what differs from case to case.
pub async fn observe(database: &Database, Case { tag, batch, .. }: &Case) -> String {
    // What follows a dot among the characters: names of another case lie outside.
    let own = doc! { "$gte": format!("{tag}."), "$lt": format!("{tag}/") };
    let all = async |name: &str, filter: Document| -> Vec<Document> {
        let found = database.collection::<Document>(name).find(filter).await.unwrap();
        found.try_collect().await.unwrap()
    };
    let mut lines = Vec::new();
    for job in all("jobs", doc! { "queue": own.clone() }).await {
        let queue = job.get_str("queue").unwrap().trim_start_matches(tag.as_str());
        let turn = job.get_str("turn").ok().and_then(|turn| turn.rsplit('/').next());
        let (attempts, claim) = (job.get("attempts"), job.contains_key("claim"));
        lines.push(format!("job {queue} {:?} {attempts:?} {turn:?} claim {claim}", job.get("state")));
    }
    for receipt in all("receipts", doc! { "queue": own.clone() }).await {
        lines.push(format!("receipt {:?} pushed {}", receipt.get("verb"), receipt.contains_key("pushed")));
    }
    for name in ["keys", "groups", "limits", "schedules", "semaphores", "queues"] {
        for document in all(name, doc! { "_id": own.clone() }).await {
            let id = document.get_str("_id").unwrap().trim_start_matches(tag.as_str());
            let shown = ["last", "version", "capacity"].map(|field| document.get(field).cloned());
            let (rev, runs) = match name {
                "schedules" => (document.get("rev"), document.get_str("last_runs").map_or(0, runs)),
                _ => (None, 0),
            };
            lines.push(format!("{name} {id} {shown:?} {rev:?} runs {runs}"));
        }
    }
    for operation in all("operations", doc! { "_id": tag.as_str() }).await {
        lines.push(format!(
            "operation {:?} over {}",
            operation.get("rev"),
            operation.contains_key("finished_at")
        ));
    }
    for row in all("audit", doc! { "queue": own.clone() }).await {
        lines.push(format!("row {:?}", row.get("what")));
    }
    for call in all("requests", doc! { "_id": own.clone() }).await {
        lines.push(format!("call {:?}", call.get("answer")));
    }
    for worker in all("workers", doc! { "_id": own.clone() }).await {
        lines.push(format!("worker {:?}", worker.get("timeout_ms")));
    }
    for key in all("api_keys", doc! { "name": own }).await {
        lines.push(format!("API key {:?}", key.get("hash")));
    }
    if let Some(batch) = batch {
        for document in all("batches", doc! { "_id": batch.as_str() }).await {
            let counts = ["sealed", "pending", "done", "cancelled"].map(|field| document.get(field).cloned());
            lines.push(format!("batch {counts:?} finished {}", document.contains_key("finished_at")));
        }
        let results = all("batch_results", doc! { "batch": batch.as_str() }).await.len();
        lines.push(format!("results {results}"));
    }
    lines.sort();
    lines.join("\n")
}

fn runs(text: &str) -> usize {
    serde_json::from_str::<Vec<serde_json::Value>>(text).unwrap().len()
}

type Counted = BTreeSet<(String, String, i64)>;

/// How many jobs there are in each state of each queue, and how many the counters say.
async fn figures(database: &Database) -> (Counted, Counted, Vec<String>) {
    let all =
        async |cursor: mongodb::Cursor<Document>| -> Vec<Document> { cursor.try_collect().await.unwrap() };
    let group = doc! { "$group": { "_id": { "queue": "$queue", "state": "$state" }, "n": { "$sum": 1 } } };
    let counted = all(database.collection::<Document>("jobs").aggregate([group]).await.unwrap()).await;
    let text = |row: &Document, name: &str| row.get_str(name).unwrap().to_owned();
    let number = |row: &Document, name: &str| {
        row.get_i64(name).or_else(|_| row.get_i32(name).map(i64::from)).unwrap_or(0)
    };
    let there = counted.iter().map(|row| {
        let id = row.get_document("_id").unwrap();
        (text(id, "queue"), text(id, "state"), number(row, "n"))
    });
    let rows = all(database.collection::<Document>("counters").find(doc! {}).await.unwrap()).await;
    let states = ["ready", "reserved", "blocked", "done", "dead"];
    let kept = rows
        .iter()
        .flat_map(|row| states.map(|state| (text(row, "_id"), state.to_owned(), number(row, state))));
    let unsure = rows.iter().filter(|row| row.contains_key("unsure")).map(|row| text(row, "_id"));
    (there.collect(), kept.filter(|(.., n)| *n != 0).collect(), unsure.collect())
}

/// What there is of a case once two looks in a row have seen the same: one look reads several collections.
pub async fn settled(database: &Database, case: &Case) -> String {
    let mut before = observe(database, case).await;
    loop {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let now = observe(database, case).await;
        if now == before {
            return now;
        }
        before = now;
    }
}

/// Waits until the counters are what is there: in the queues of these cases without a correction, or in all with it.
pub async fn agree(database: &Database, plain: &Mongo, certain: Option<&BTreeSet<String>>) {
    let is_asked = |queue: &str| {
        queue.split_once('.').is_some_and(|(tag, _)| certain.is_none_or(|tags| tags.contains(tag)))
    };
    let end = Instant::now() + if certain.is_some() { SOON } else { PATIENCE };
    loop {
        if certain.is_none() {
            plain.reconcile().await.unwrap();
        }
        let (there, kept, unsure) = figures(database).await;
        // On a busy machine an increment may be late, and marks its queue: that one is left to the comparison.
        let is_judged = |queue: &String| is_asked(queue) && (certain.is_none() || !unsure.contains(queue));
        let wrong: Vec<_> =
            there.symmetric_difference(&kept).filter(|(queue, ..)| is_judged(queue)).collect();
        if wrong.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "wrong: {wrong:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
