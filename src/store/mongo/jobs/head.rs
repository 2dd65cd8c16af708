//! The head of a queue: the first jobs that may be delivered.

use futures::TryStreamExt;
use mongodb::bson::{Document, RawDocumentBuf, doc};

use crate::job::{Job, QueueName};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::cache::Position;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{date, to_job};
use crate::store::mongo::jobs::unreadable;
use crate::store::mongo::stored::Stored;
use crate::store::{Result, chain};

/// Returns the filter for jobs that are due, and not past their expiry, by the store's clock. A missing `expires_at` is
/// given a value, since MongoDB sorts what is missing before every date.
fn deliverable(queue: &QueueName, floor: Option<Position>) -> Document {
    let never = mongodb::bson::DateTime::MAX;
    let mut filter = doc! {
        "queue": queue.as_str(),
        "state": "ready",
        "$expr": { "$and": [
            { "$lte": ["$run_at", "$$NOW"] },
            { "$gt": [{ "$ifNull": ["$expires_at", never] }, "$$NOW"] },
        ] },
    };
    if let Some(Position { priority, run_at }) = floor {
        filter.extend(doc! { "priority": priority, "run_at": { "$gte": date(run_at) } });
    }
    filter
}

/// The most bytes that one round reads, give or take one job: large payloads come in smaller batches.
const HEAD_BYTES: usize = 16 << 20;

/// The head of a queue.
pub struct Heads {
    /// The jobs, in the order of delivery.
    pub jobs: Vec<Job>,
    /// How many documents were read.
    pub read: usize,
    /// Whether there may be more, which would be too much at once.
    pub large: bool,
}

/// Returns the first jobs of the queue. The search begins at the cached position of its head; where there are too few
/// jobs from there on, at the very front. A pop passes over those that need semaphores.
pub async fn read(mongo: &Mongo, queue: &QueueName, limit: usize, pop: bool) -> Result<Heads> {
    let mut floor = mongo.heads.lower_bound(queue);
    loop {
        let heads = read_heads(mongo, deliverable(queue, floor), limit).await?;
        if pop && heads.jobs.iter().any(|job| !job.meta.semaphores.is_empty()) {
            // They stay where they are for other claims, and so no position is cached.
            let mut filter = deliverable(queue, None);
            filter.insert("semaphores", doc! { "$exists": false });
            return read_heads(mongo, filter, limit).await;
        }
        if floor.is_none() || heads.read == limit || heads.large {
            if let Some(Job { meta, .. }) = heads.jobs.first() {
                mongo.heads.set(queue, Position { priority: meta.priority, run_at: meta.run_at });
            }
            return Ok(heads);
        }
        floor = None;
    }
}

async fn read_heads(mongo: &Mongo, filter: Document, limit: usize) -> Result<Heads> {
    let database = mongo.connection.database().await?;
    let mut cursor = database
        .collection::<RawDocumentBuf>(JOBS)
        .find(filter)
        .sort(doc! { "priority": -1, "run_at": 1, "_id": 1 })
        .limit(i64::try_from(limit).unwrap_or(i64::MAX))
        .batch_size(u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX))
        .await
        .map_err(fault)?;
    let (mut documents, mut bytes) = (Vec::new(), 0);
    while bytes < HEAD_BYTES
        && let Some(raw) = cursor.try_next().await.map_err(fault)?
    {
        bytes += raw.as_bytes().len();
        documents.push(Stored::read(raw));
    }
    let (mut jobs, mut spoiled) = (Vec::with_capacity(documents.len()), Vec::new());
    for document in &documents {
        match to_job(document) {
            Ok(job) => jobs.push(job),
            Err(error) => {
                tracing::error!(error = chain(&error), "a job cannot be read");
                spoiled.push(document);
            }
        }
    }
    if !spoiled.is_empty() {
        unreadable::bury(mongo, &spoiled).await?; // they must not stay at the head of the queue
    }
    Ok(Heads { jobs, read: documents.len(), large: bytes >= HEAD_BYTES })
}
