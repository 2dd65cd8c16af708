//! The head of a queue: the first jobs that may be delivered.

use std::time::Duration;

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;

use crate::job::{Job, QueueName, Rules, SemaphoreName, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::cache::{AHEAD_BYTES, Begun, Position, Reading, Rest, Window};
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, date, readable, to_job};
use crate::store::mongo::jobs::in_the_way;
use crate::store::mongo::jobs::query::First;
use crate::store::mongo::stored::{RawId, Stored};
use crate::store::{PageBuilder, Result, chain};

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

/// The longest that is searched for a job that does not need a semaphore.
const ALIKE_MAX: Duration = Duration::from_millis(100);

/// The head of a queue.
pub struct Heads {
    /// The jobs, in the order of delivery: as many as are asked for, or fewer.
    pub jobs: Vec<Job>,
    /// How many documents were read, but for those that stay although they cannot be read.
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
/// does neither: it does not know what the others put before them.
pub async fn read(
    mongo: &Mongo,
    queue: &QueueName,
    wanted: usize,
    pop: bool,
    may_read_ahead: bool,
    rules: &Rules,
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
        let found =
            read_heads(mongo, queue, deliverable(queue, floor), (wanted, reading.limit), rules).await?;
        if pop && found.jobs.iter().take(wanted).any(|job| !job.meta.semaphores.is_empty()) {
            // They stay where they are for other claims, and so no position is cached.
            let mut filter = deliverable(queue, None);
            filter.insert("semaphores", doc! { "$exists": false });
            return Ok(read_heads(mongo, queue, filter, (wanted, wanted), rules).await?.heads());
        }
        if floor.is_none() || found.read >= wanted || found.large {
            return Ok(found.remembered(mongo, queue, wanted, &reading));
        }
        floor = None;
    }
}

/// Returns the first jobs of a queue that may be delivered, and leaves them as they are.
pub async fn peek(mongo: &Mongo, queue: &QueueName, limit: usize) -> Result<Vec<Job>> {
    let mut page = PageBuilder::new(limit);
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.find(deliverable(queue, None)).sort(doc! { "priority": -1, "run_at": 1, "_id": 1 });
    let find = find.limit(i64::try_from(limit).unwrap_or(i64::MAX));
    let at_once = u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX);
    let mut cursor = find.batch_size(at_once).await.map_err(fault)?;
    while !page.is_full()
        && let Some(document) = cursor.try_next().await.map_err(fault)?
    {
        readable(std::slice::from_ref(&document), to_job).into_iter().for_each(|job| page.push(job));
    }
    Ok(page.into_items())
}

/// Whether all jobs of the queue that may be delivered need this semaphore. It reads them in order up to the first that does
/// not, for a while at most.
pub async fn all_need(mongo: &Mongo, queue: &QueueName, semaphore: &SemaphoreName) -> Result<bool> {
    let mut filter = deliverable(queue, None);
    filter.insert("semaphores", doc! { "$ne": semaphore.as_str() });
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.find_one(filter).hint(Hint::Name("head".to_owned())).projection(doc! { "_id": 1 });
    Ok(find.max_time(ALIKE_MAX).await.map_err(fault)?.is_none())
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

/// Reads as many jobs as are wanted, and more up to the limit while they are small. What cannot be read is dead then. What cannot be made
/// dead is left out, and those behind it are read in its place: no claim reads it again and again.
async fn read_heads(
    mongo: &Mongo,
    queue: &QueueName,
    filter: Document,
    (wanted, limit): (usize, usize),
    rules: &Rules,
) -> Result<Found> {
    let (mut rounds, end) = (in_the_way::Rounds::of(mongo, queue), in_the_way::end(mongo));
    loop {
        let more = rounds.more();
        let (mut found, spoiled) =
            read_first(mongo, filter.clone(), rounds.left_out(), (wanted + more, limit + more)).await?;
        let Some(stay) = in_the_way::clear(mongo, queue, &spoiled, end, rules).await else {
            found.jobs.truncate(limit);
            return Ok(found);
        };
        let are_all = found.read < wanted + more && !found.large;
        // What stays does not count as read: the caller would read the head again for as long as it may.
        found.read = found.jobs.len();
        found.large &= !found.jobs.is_empty();
        let is_enough = found.read >= wanted || found.large || are_all;
        if is_enough || !rounds.go_on(stay) {
            found.jobs.truncate(limit);
            return Ok(found);
        }
    }
}

/// Reads as many jobs as are wanted, and more up to the limit while they are small. Returns those that cannot be read as well.
async fn read_first(
    mongo: &Mongo,
    filter: Document,
    left_out: &[RawId],
    (wanted, limit): (usize, usize),
) -> Result<(Found, Vec<Stored>)> {
    let first = First { filter, index: "head", projection: Document::new(), limit, left_out };
    let mut cursor = first.read(mongo).await?;
    let (mut documents, mut bytes) = (Vec::new(), 0);
    while bytes < if documents.len() < wanted { HEAD_BYTES } else { AHEAD_BYTES }
        && let Some(raw) = cursor.try_next().await.map_err(fault)?
    {
        bytes += raw.as_bytes().len();
        documents.push(Stored::read(raw));
    }
    let (mut jobs, mut spoiled) = (Vec::with_capacity(documents.len()), Vec::new());
    let read = documents.len();
    for document in documents {
        match to_job(&document) {
            Ok(job) => jobs.push(job),
            Err(error) => {
                tracing::error!(error = chain(&error), "a job cannot be read");
                spoiled.push(document);
            }
        }
    }
    Ok((Found { jobs, read, bytes, large: bytes >= HEAD_BYTES }, spoiled))
}
