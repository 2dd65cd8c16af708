//! Figures of one queue that are read from its jobs, and not from counters.

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::action::Action as _;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;

use crate::job::{QueueName, State, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{count as number, fault};
use crate::store::mongo::jobs::document::{Row, date, readable};
use crate::store::mongo::stored::Stored;
use crate::store::{Counts, Result, Store as _};

/// How long counting the jobs of a queue may take.
pub const COUNTED_WITHIN: Duration = Duration::from_secs(20);
/// How many priorities of a queue are scanned.
const PRIORITIES_SCAN_LIMIT: usize = 32;

fn head() -> Hint {
    Hint::Name("head".to_owned())
}

async fn rows(mongo: &Mongo, pipeline: Vec<Document>, hint: Option<Hint>) -> Result<Vec<Stored>> {
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().optional(hint, |find, hint| find.hint(hint));
    find.await.map_err(fault)?.try_collect().await.map_err(fault)
}

/// Counts the jobs of a queue, in the index alone.
pub async fn count(mongo: &Mongo, queue: &QueueName) -> Result<Counts> {
    let group = doc! { "state": "$state", "ahead": { "$gt": ["$run_at", "$$NOW"] } };
    let pipeline = vec![
        doc! { "$match": { "queue": queue.as_str() } },
        doc! { "$group": { "_id": group, "count": { "$sum": 1 } } },
    ];
    let mut counts = Counts::default();
    for row in &rows(mongo, pipeline, Some(head())).await? {
        let Ok(group) = row.get_document("_id") else { continue };
        // What another program spoiled has no state of ours.
        let Some(state) = group.get_str("state").ok().and_then(State::from_word) else { continue };
        *counts.of(state, group.get_bool("ahead").unwrap_or(false)) += number(row, "count");
    }
    Ok(counts)
}

/// Returns when the next job of a queue comes due: the first of each priority that lies ahead.
pub async fn next_due(mongo: &Mongo, queue: &QueueName) -> Result<Option<Timestamp>> {
    let now = mongo.now()?;
    let ready = || doc! { "queue": queue.as_str(), "state": "ready" };
    let first_of_each = vec![
        doc! { "$match": ready() },
        doc! { "$sort": { "priority": -1, "run_at": 1 } },
        doc! { "$group": { "_id": "$priority", "first": { "$first": "$run_at" } } },
        doc! { "$limit": i64::try_from(PRIORITIES_SCAN_LIMIT).unwrap_or(i64::MAX) },
    ];
    let jobs = mongo.collection(JOBS).await?;
    let mut next: Option<Timestamp> = None;
    for row in &rows(mongo, first_of_each, None).await? {
        let Ok(priority) = row.get_i32("_id") else { continue };
        let mut due = Row(row).time("first").ok().flatten().filter(|first| *first > now);
        if due.is_none() {
            let mut ahead = ready();
            ahead.extend(doc! { "priority": priority, "run_at": { "$gt": date(now) } });
            let find =
                jobs.find_one(ahead).sort(doc! { "run_at": 1 }).projection(doc! { "_id": 0, "run_at": 1 });
            let found = Vec::from_iter(find.hint(head()).await.map_err(fault)?);
            due = readable(&found, |row| Row(row).time("run_at")).pop().flatten();
        }
        next = [next, due].into_iter().flatten().min();
    }
    Ok(next)
}
