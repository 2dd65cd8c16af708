//! What there is of a case in the database, and whether the counts agree with it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::Database;
use mongodb::bson::{Document, doc};
use tailback::store::Figures as _;
use tailback::store::mongo::Mongo;

use super::case::{Call, Case};
use super::prepare::SECRET;
use crate::common::server::PATIENCE;

/// Within this, increments are in the database.
const SOON: Duration = Duration::from_secs(60);

/// Where a case has documents, and the field by which they are its own.
const OWN: [(&str, &str); 12] = [
    ("jobs", "queue"),
    ("receipts", "queue"),
    ("audit", "queue"),
    ("api_keys", "name"),
    ("keys", "_id"),
    ("groups", "_id"),
    ("limits", "_id"),
    ("schedules", "_id"),
    ("semaphores", "_id"),
    ("queues", "_id"),
    ("requests", "_id"),
    ("workers", "_id"),
];

/// The documents of a case, with their collections: one command instead of one for each collection, since cases are thousands.
async fn documents(database: &Database, Case { tag, batch, call, .. }: &Case) -> Vec<(String, Document)> {
    // What follows a dot among the characters: names of another case lie outside.
    let own = doc! { "$gte": format!("{tag}."), "$lt": format!("{tag}/") };
    let mut wanted: Vec<(&str, Document)> =
        OWN.map(|(name, field)| (name, doc! { field: own.clone() })).into();
    wanted.push(("operations", doc! { "_id": tag.as_str() }));
    if let Some(batch) = batch {
        wanted.push(("batches", doc! { "_id": batch.as_str() }));
        wanted.push(("batch_results", doc! { "batch": batch.as_str() }));
    }
    if matches!(call, Call::MakeSecret(_)) {
        wanted.push(("meta", doc! { "_id": SECRET }));
    }
    let read = |(name, filter): (&str, Document)| {
        [
            doc! { "$match": filter },
            doc! { "$replaceWith": { "from": { "$literal": name }, "document": "$$ROOT" } },
        ]
    };
    let mut pipeline: Vec<Document> = Vec::new();
    for (name, filter) in wanted {
        let read = read((name, filter));
        match pipeline.is_empty() {
            true => pipeline.extend(read),
            false => pipeline.push(doc! { "$unionWith": { "coll": name, "pipeline": read.to_vec() } }),
        }
    }
    let jobs = database.collection::<Document>(OWN[0].0);
    let found: Vec<Document> = jobs.aggregate(pipeline).await.unwrap().try_collect().await.unwrap();
    let parted = |one: Document| {
        let document = one.get_document("document").unwrap().clone();
        (one.get_str("from").unwrap().to_owned(), document)
    };
    found.into_iter().map(parted).collect()
}

/// All that there is of a case, without what differs from case to case.
pub async fn observe(database: &Database, case: &Case) -> String {
    let documents = documents(database, case).await;
    let mut lines: Vec<String> =
        documents.iter().map(|(name, document)| line(name, document, &case.tag)).collect();
    let results = documents.iter().filter(|(name, _)| name == "batch_results").count();
    lines.push(format!("results {results}"));
    lines.sort();
    lines.join("\n")
}

/// What a document says, without what differs from case to case.
fn line(name: &str, document: &Document, tag: &str) -> String {
    let text = |field: &str| document.get_str(field).unwrap_or_default().trim_start_matches(tag).to_owned();
    let has = |field: &str| document.contains_key(field);
    let all = |fields: &[&str]| format!("{:?}", fields.iter().map(|f| document.get(f)).collect::<Vec<_>>());
    match name {
        "jobs" => {
            let turn = document.get_str("turn").ok().and_then(|turn| turn.rsplit('/').next());
            format!("job {} {} {turn:?} claim {}", text("queue"), all(&["state", "attempts"]), has("claim"))
        }
        "receipts" => format!("receipt {} pushed {}", all(&["verb"]), has("pushed")),
        "audit" => format!("row {}", all(&["what"])),
        "api_keys" => format!("API key {}", all(&["hash"])),
        "requests" => format!("call {}", all(&["answer"])),
        "workers" => format!("worker {}", all(&["timeout_ms"])),
        "operations" => format!("operation {} over {}", all(&["rev"]), has("finished_at")),
        "batches" => {
            let counts = all(&["sealed", "pending", "done", "cancelled"]);
            format!("batch {counts} finished {}", has("finished_at"))
        }
        "batch_results" => "result".to_owned(),
        "meta" => {
            format!("secret {}", document.get_binary_generic("secret").is_ok_and(|own| own[..] == [7; 32]))
        }
        "schedules" => {
            let runs = document.get_str("last_runs").map_or(0, runs);
            format!("schedule {} {} runs {runs}", text("_id"), all(&["last", "version", "rev"]))
        }
        _ => format!("{name} {} {}", text("_id"), all(&["last", "version", "capacity"])),
    }
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
