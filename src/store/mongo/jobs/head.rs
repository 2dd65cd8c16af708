//! The head of a queue: the first jobs that may be delivered.

use futures::TryStreamExt;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::options::Hint;

use crate::job::{Job, QueueName, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::cache::{AHEAD_BYTES, Begun, Position, Reading, Rest, Window};
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, date, readable, to_job};
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
/// How many jobs that come due are read. Where there are more, one may come due at any moment.
const UPCOMING_MAX: usize = 100;

/// The head of a queue.
pub struct Heads {
    /// The jobs, in the order of delivery: as many as are asked for, or fewer.
    pub jobs: Vec<Job>,
    /// How many documents were read.
    pub read: usize,
    /// Whether there may be more, which would be too much at once.
    pub large: bool,
    /// What comes next, to be kept once these were won; `None`: nothing is to be kept.
    pub rest: Option<Rest>,
    /// Whether the jobs were read ahead, by an earlier claim.
    pub is_kept: bool,
}

/// Returns the first jobs of the queue. The search begins at the cached position of its head; where there are too few
/// jobs from there on, at the very front. A pop passes over those that need semaphores.
///
/// `may_read_ahead`: more than are wanted may be read, and the jobs may be some that were. A server that is not alone
/// does neither: it is not told what the others put before them.
pub async fn read(
    mongo: &Mongo,
    queue: &QueueName,
    wanted: usize,
    pop: bool,
    may_read_ahead: bool,
) -> Result<Heads> {
    let may_read_ahead = may_read_ahead && mongo.signals.is_alone();
    let mut reading = match mongo.heads.begin(queue, wanted, may_read_ahead, mongo.moment()?) {
        Begun::Kept(jobs, rest) => {
            return Ok(Heads { read: jobs.len(), jobs, large: false, rest: Some(rest), is_kept: true });
        }
        Begun::Read(reading) => reading,
    };
    if let Some(window) = reading.unknown {
        let first = first_upcoming(mongo, queue, window).await?;
        mongo.heads.set_upcoming(queue, &mut reading, first);
    }
    let mut floor = reading.lower_bound;
    loop {
        let found = read_heads(mongo, deliverable(queue, floor), wanted, reading.limit).await?;
        if pop && found.jobs.iter().take(wanted).any(|job| !job.meta.semaphores.is_empty()) {
            // They stay where they are for other claims, and so no position is cached.
            let mut filter = deliverable(queue, None);
            filter.insert("semaphores", doc! { "$exists": false });
            return Ok(read_heads(mongo, filter, wanted, wanted).await?.heads());
        }
        if floor.is_none() || found.read >= wanted || found.large {
            return Ok(found.remembered(mongo, queue, wanted, &reading));
        }
        floor = None;
    }
}

/// Returns when the first of these jobs comes due, or the time from which on one may.
async fn first_upcoming(mongo: &Mongo, queue: &QueueName, window: Window) -> Result<Option<Timestamp>> {
    let Window { above, after, until } = window;
    let filter = doc! {
        "queue": queue.as_str(),
        "state": "ready",
        "priority": { "$gt": above },
        "run_at": { "$gt": date(after), "$lte": date(until) },
    };
    let jobs = mongo.collection(JOBS).await?;
    let find =
        jobs.find(filter).hint(Hint::Name("head".to_owned())).projection(doc! { "_id": 0, "run_at": 1 });
    let find = find.limit(i64::try_from(UPCOMING_MAX).unwrap_or(i64::MAX));
    let found: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    if found.len() >= UPCOMING_MAX {
        return Ok(Some(after));
    }
    let times = readable(&found, |row| Row(row).time("run_at"));
    Ok(times.into_iter().flatten().min())
}

/// What one query has found.
struct Found {
    jobs: Vec<Job>,
    read: usize,
    bytes: usize,
    large: bool,
}

impl Found {
    fn heads(self) -> Heads {
        Heads { jobs: self.jobs, read: self.read, large: self.large, rest: None, is_kept: false }
    }

    /// Notes what was found.
    fn remembered(mut self, mongo: &Mongo, queue: &QueueName, wanted: usize, reading: &Reading) -> Heads {
        let rest = self.jobs.split_off(wanted.min(self.jobs.len()));
        if let Some(first) = self.jobs.first() {
            let job_bytes = self.bytes / self.read.max(1);
            mongo.heads.set(queue, reading, Position::of(&first.meta), job_bytes, rest.len());
        }
        Heads { rest: Some(reading.rest(rest)), ..self.heads() }
    }
}

/// Reads as many jobs as are wanted, and more up to the limit while they are small.
async fn read_heads(mongo: &Mongo, filter: Document, wanted: usize, limit: usize) -> Result<Found> {
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
    while bytes < if documents.len() < wanted { HEAD_BYTES } else { AHEAD_BYTES }
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
    Ok(Found { jobs, read: documents.len(), bytes, large: bytes >= HEAD_BYTES })
}
