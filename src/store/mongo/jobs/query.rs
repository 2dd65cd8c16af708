//! Reading: jobs by id, pages, what is overdue, and what comes next.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use mongodb::bson::raw::cstr;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use mongodb::options::{Hint, ReadConcern};
use mongodb::{Collection, Cursor};

use crate::job::push::Room;
use crate::job::{JobId, QueueName, Rules, State, Timestamp};
use crate::store::mongo::COUNTERS;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, readable};
use crate::store::mongo::jobs::unreadable::listed;
use crate::store::mongo::stored::{RawId, Stored, none_of};
use crate::store::{ListedJob, PageBuilder, Result, StoreError, Weight, listed_id};

/// How many documents one reply brings, up to 16 MB of them.
const READ_AT_ONCE: usize = 1000;
/// After how many bytes of jobs others have their turn.
const TURN_BYTES: usize = 128 << 10;
/// What a document counts at least.
const DOCUMENT_BYTES: usize = 256;

/// The documents that a filter means, in order.
pub async fn all(
    mongo: &Mongo,
    filter: Document,
    sort: Document,
    projection: Document,
    limit: usize,
) -> Result<Vec<Stored>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let jobs = mongo.collection(JOBS).await?;
    let cursor = jobs.find(filter).sort(sort).projection(projection).limit(limit).await.map_err(fault)?;
    cursor.try_collect().await.map_err(fault)
}

/// The first jobs that a filter means, in the order of delivery.
pub struct First<'a> {
    /// The filter, which does not name `_id`.
    pub filter: Document,
    /// An index that has them in this order.
    pub index: &'static str,
    /// What is read of each; an empty one is of all.
    pub projection: Document,
    /// How many at most.
    pub limit: usize,
    /// Those that are passed over.
    pub left_out: &'a [RawId],
}

impl First<'_> {
    /// Reads them.
    pub async fn read(self, mongo: &Mongo) -> Result<Cursor<RawDocumentBuf>> {
        let database = mongo.connection.database().await?;
        let order = doc! { "priority": -1, "run_at": 1, "_id": 1 };
        let most = i64::try_from(self.limit).unwrap_or(i64::MAX);
        let at_once = u32::try_from(self.limit.saturating_add(1)).unwrap_or(u32::MAX);
        if self.left_out.is_empty() {
            let jobs = database.collection::<RawDocumentBuf>(JOBS);
            let find = jobs.find(self.filter).sort(order).limit(most).batch_size(at_once);
            let find = if self.projection.is_empty() { find } else { find.projection(self.projection) };
            return find.await.map_err(fault);
        }
        // The driver sends an id that it cannot read only in a command of bytes. Without the hint a plan could walk the index of the ids.
        let raw = |document: &Document| RawDocumentBuf::try_from(document).map_err(StoreError::internal);
        let mut filter = raw(&self.filter)?;
        filter.append(cstr!("_id"), none_of(self.left_out)?);
        let command = rawdoc! {
            "find": JOBS,
            "filter": filter,
            "sort": raw(&order)?,
            "projection": raw(&self.projection)?,
            "hint": self.index,
            "limit": most,
            "batchSize": i64::from(at_once),
            "readConcern": { "level": "local" },
        };
        Ok(database.run_raw_cursor_command(command).await.map_err(fault)?.with_type::<RawDocumentBuf>())
    }
}

/// Returns how many more unfinished jobs each of these limited queues takes, once a job has left `leaving`.
pub async fn room(
    mongo: &Mongo,
    queues: &[QueueName],
    leaving: &[&QueueName],
    rules: &Rules,
) -> Result<Room> {
    let jobs = mongo.collection(JOBS).await?;
    let mut room = Room::default();
    for queue in queues {
        let Some(max_jobs) = rules.max_jobs(queue) else {
            continue;
        };
        let unfinished = State::ALL.into_iter().filter(|state| state.is_unfinished()).map(State::as_str);
        let filter = doc! { "queue": queue.as_str(), "state": { "$in": unfinished.collect::<Vec<_>>() } };
        let leaves = leaving.iter().filter(|left| **left == queue).count() as u64;
        let most = max_jobs.saturating_add(leaves).min(i64::MAX.unsigned_abs());
        let there = jobs.count_documents(filter).limit(most).await.map_err(fault)?;
        room.set(queue.clone(), Room::of(max_jobs, there, leaves));
    }
    Ok(room)
}

/// Jobs by their ids, read so.
pub async fn get(mongo: &Mongo, ids: &[JobId], concern: ReadConcern) -> Result<Vec<Option<ListedJob>>> {
    let names: Vec<&str> = ids.iter().map(JobId::as_str).collect();
    let jobs = mongo.collection(JOBS).await?;
    let cursor = jobs.find(doc! { "_id": { "$in": names } }).read_concern(concern).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let found = readable(&documents, |document| listed(document, true))
        .into_iter()
        .map(|job| (listed_id(&job).clone(), job));
    let found: HashMap<JobId, ListedJob> = found.collect();
    Ok(ids.iter().map(|id| found.get(id).cloned()).collect())
}

/// Those of these jobs that have not finished. That another server has finished one is not seen before a majority has it.
pub async fn unfinished(mongo: &Mongo, ids: &[JobId]) -> Result<Vec<JobId>> {
    let names: Vec<&str> = ids.iter().map(JobId::as_str).collect();
    let states = State::ALL.into_iter().filter(|state| state.is_unfinished()).map(State::as_str);
    let filter = doc! {
        "_id": { "$in": names }, "state": { "$in": states.collect::<Vec<_>>() }, "origin": { "$exists": false },
    };
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.find(filter).projection(doc! { "_id": 1 }).hint(Hint::Name("_id_".to_owned()));
    let find = find.read_concern(ReadConcern::majority());
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    Ok(readable(&documents, |document| Row(document).text("_id")))
}

/// Reads what a filter finds, by id, until there are enough or [`PAGE_BYTES`](crate::store::PAGE_BYTES) of it. The filter may
/// have bounds of `_id`.
pub async fn page<T: Weight>(
    all: Collection<Stored>,
    mut filter: Document,
    limit: usize,
    read: impl Fn(&Document) -> Result<T>,
) -> Result<Vec<T>> {
    let mut page = PageBuilder::new(limit);
    let mut nameless = 0; // documents behind the bound whose ids are no texts, and so no bound: not all are read exactly
    loop {
        let wanted = page.room();
        let at_once = u32::try_from(wanted.clamp(1, READ_AT_ONCE) + 1).unwrap_or(1);
        let find = all.find(filter.clone()).sort(doc! { "_id": 1 }).skip(nameless).batch_size(at_once);
        let most = i64::try_from(wanted).unwrap_or(i64::MAX);
        let mut cursor = find.limit(most).await.map_err(fault)?;
        let (mut found, mut last, mut bytes) = (0, None, 0);
        while !page.is_full()
            && let Some(document) = cursor.try_next().await.map_err(fault)?
        {
            bytes += DOCUMENT_BYTES;
            for item in readable(std::slice::from_ref(&document), &read) {
                bytes += item.weight();
                page.push(item);
            }
            found += 1;
            match document.get("_id") {
                Some(Bson::String(id)) => (last, nameless) = (Some(id.clone()), 0),
                _ => nameless += 1,
            }
            if bytes >= TURN_BYTES {
                bytes = 0;
                tokio::task::yield_now().await; // one reply has many: others have their turns in between
            }
        }
        // A document that cannot be read must not look like the end.
        if found < wanted || page.is_full() {
            return Ok(page.into_items());
        }
        let Some(last) = last else { continue };
        match filter.get_document_mut("_id") {
            Ok(bounds) => drop(bounds.insert("$gt", last)),
            Err(_) => drop(filter.insert("_id", doc! { "$gt": last })),
        }
    }
}

/// The scheduled jobs that are due next.
pub async fn upcoming(mongo: &Mongo, limit: usize) -> Result<Vec<(QueueName, Timestamp)>> {
    let filter = doc! { "due": { "$exists": true }, "$expr": { "$gt": ["$due", "$$NOW"] } };
    let projection = doc! { "_id": 1, "queue": 1, "due": 1 };
    let documents = all(mongo, filter, doc! { "due": 1 }, projection, limit).await?;
    Ok(readable(&documents, |document| {
        let row = Row(document);
        Ok((row.text("queue")?, row.time("due")?.ok_or_else(|| row.fault("due"))?))
    }))
}

/// How long it is remembered that there were more queues than were asked for.
const MANY_FOR: Duration = Duration::from_secs(60);

/// Whether there were lately more queues than were asked for.
#[derive(Default)]
pub struct ManyQueues(Mutex<Option<Instant>>);

impl ManyQueues {
    fn note(&self) {
        *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Instant::now());
    }

    fn are_likely(&self) -> bool {
        let last = *self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        last.is_some_and(|at| at.elapsed() < MANY_FOR)
    }
}

/// Returns the queues that have jobs: one seek in the index for each, however many jobs it has. MongoDB seeks all of them
/// before the first is returned: where there are likely more than are asked for, the scan ends at as many as have counters, and
/// goes on from there if some of those have no jobs.
pub async fn queues(
    mongo: &Mongo,
    prefix: &str,
    after: Option<&QueueName>,
    limit: usize,
) -> Result<Vec<QueueName>> {
    let (mut found, mut behind) = (Vec::new(), after.map(|after| after.as_str().to_owned()));
    loop {
        // DEL sorts behind every character of a name.
        let mut range = doc! { "$gte": prefix, "$lt": format!("{prefix}\u{7f}") };
        if let Some(behind) = &behind {
            range.insert("$gt", behind);
        }
        let wanted = limit - found.len();
        let end = match mongo.many_queues.are_likely() {
            true => counted(mongo, range.clone(), wanted).await?,
            false => None,
        };
        if let Some(end) = &end {
            range.insert("$lte", end);
        }
        found.extend(distinct(mongo, range, wanted).await?);
        if found.len() >= limit {
            mongo.many_queues.note();
            return Ok(found);
        }
        if end.is_none() {
            return Ok(found);
        }
        behind = end;
    }
}

/// Returns the last of so many queues in this range that have counters, if there are so many.
async fn counted(mongo: &Mongo, range: Document, count: usize) -> Result<Option<String>> {
    let counters = mongo.collection(COUNTERS).await?;
    let find = counters.find_one(doc! { "_id": range }).sort(doc! { "_id": 1 }).projection(doc! { "_id": 1 });
    let last = find.skip(count.saturating_sub(1) as u64).await.map_err(fault)?;
    Ok(last.and_then(|row| row.get_str("_id").ok().map(str::to_owned)))
}

async fn distinct(mongo: &Mongo, range: Document, limit: usize) -> Result<Vec<QueueName>> {
    let pipeline = [
        doc! { "$match": { "queue": range } },
        doc! { "$sort": { "queue": 1 } },
        doc! { "$group": { "_id": "$queue" } },
        doc! { "$sort": { "_id": 1 } },
        doc! { "$limit": i64::try_from(limit).unwrap_or(i64::MAX) },
    ];
    let hint = Hint::Name("head".to_owned());
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(hint);
    let rows: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    Ok(readable(&rows, |row| Row(row).text("_id")))
}
