//! Reading the figures: the counters as they are kept, how many of the ready jobs are still scheduled, and
//! since when the oldest has been ready. The collection `jobs` itself is never read, only ends of its indexes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::TryStreamExt;
use mongodb::Cursor;
use mongodb::bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use mongodb::options::Hint;

use crate::job::{QueueName, State, Timestamp};
use crate::store::mongo::COUNTERS;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{Connection, count, fault};
use crate::store::mongo::figures::counters::ByState;
use crate::store::mongo::jobs::document::{Row as Fields, date};
use crate::store::mongo::stored::Stored;
use crate::store::{Counts, Result, Store as _, chain};

/// How long it may take to count the jobs of one very large queue, in the background.
pub const BACKGROUND_DEADLINE: Duration = Duration::from_secs(120);
/// Up to so many scheduled jobs are counted, in the index `due`, with each request. Where there are more,
/// the split of ready and scheduled jobs is of a moment ago.
pub const SCHEDULED_COUNTED: u64 = 50_000;
/// A count that took longer than this is cached, for so many times as long as it took.
const QUICK: Duration = Duration::from_millis(10);
const RESTS: u32 = 20;
const RESTS_OF_ALL: u32 = 50;
/// Exact is what is no older than this.
const AGE_MAX: Duration = Duration::from_millis(900);

/// The oldest ready jobs of so many queues are looked up by one command.
const QUEUES_AT_ONCE: usize = 50;
/// In so many queues the oldest job is looked up again with each request.
const LOOKED_UP_AGAIN: usize = 250;

/// A cache of earlier figures; cheap to clone.
#[derive(Clone, Default)]
pub struct Figures(Arc<Remembered>);

#[derive(Default)]
struct Remembered {
    oldest: tokio::sync::Mutex<HashMap<QueueName, Oldest>>,
    scheduled: Mutex<Option<Arc<Scheduled>>>,
    is_counting: AtomicBool,
}

/// One document of `counters`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Row {
    /// How many jobs are in each state.
    pub by_state: ByState,
    /// See the table in `counters.rs`.
    pub changes: i64,
    /// See the table in `counters.rs`.
    pub fixes: Option<i64>,
}

impl Row {
    /// Changes with every change of the queue that was counted.
    pub fn version(&self) -> (i64, Option<i64>) {
        (self.changes, self.fixes)
    }
}

fn integer(raw: &RawDocument, field: &str) -> Option<i64> {
    match raw.get(field) {
        Ok(Some(RawBsonRef::Int64(number))) => Some(number),
        Ok(Some(RawBsonRef::Int32(number))) => Some(number.into()),
        _ => None,
    }
}

/// Returns the counters of the queues that the filter means, in the order that it asks for.
pub async fn rows(
    mongo: &Mongo,
    filter: Document,
    sort: Document,
    limit: i64,
) -> Result<Vec<(QueueName, Row)>> {
    let counters = mongo.connection.database().await?.collection::<RawDocumentBuf>(COUNTERS);
    read(counters.find(filter).sort(sort).limit(limit).await.map_err(fault)?).await
}

/// Reads documents of `counters`.
pub async fn read(mut cursor: Cursor<RawDocumentBuf>) -> Result<Vec<(QueueName, Row)>> {
    let mut rows = Vec::new();
    while cursor.advance().await.map_err(fault)? {
        let raw = cursor.current();
        let Some(queue) = raw.get_str("_id").ok().and_then(|id| id.parse().ok()) else { continue };
        let by_state = State::ALL.map(|state| integer(raw, state.as_str()).unwrap_or(0));
        let changes = integer(raw, "changes").unwrap_or(0);
        rows.push((queue, Row { by_state, changes, fixes: integer(raw, "fixes") }));
    }
    Ok(rows)
}

/// Returns the counts of a row; so many of the ready jobs are scheduled, if there are so many.
pub fn split(row: &Row, scheduled: u64) -> Counts {
    let [ready, reserved, blocked, done, dead] = row.by_state.map(|count| u64::try_from(count).unwrap_or(0));
    let scheduled = scheduled.min(ready);
    Counts { ready: ready - scheduled, scheduled, reserved, blocked, dead, done }
}

/// How many jobs of each queue wait for their `run_at`.
pub struct Scheduled {
    by_queue: HashMap<QueueName, u64>,
    total: u64,
    asked: Instant,
    took: Duration,
}

impl Scheduled {
    /// Returns how many there are in all queues.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns how many there are in this queue.
    pub fn of(&self, queue: &QueueName) -> u64 {
        self.by_queue.get(queue).copied().unwrap_or(0)
    }

    fn are_many(&self) -> bool {
        self.total > SCHEDULED_COUNTED
    }

    /// Returns whether they were all counted just now.
    pub fn is_exact(&self) -> bool {
        !self.are_many() && self.asked.elapsed() < AGE_MAX
    }

    /// Whether counting again would cost too much for now.
    fn holds(&self) -> bool {
        let rest = match () {
            () if self.are_many() => self.took * RESTS_OF_ALL,
            () if self.took > QUICK => (self.took * RESTS).min(AGE_MAX),
            () => Duration::ZERO,
        };
        self.asked.elapsed() < rest
    }
}

/// Counts the entries of the index `due` that lie ahead, without the documents, or the first of them.
async fn count_scheduled(connection: &Connection, now: Timestamp, most: Option<u64>) -> Result<Scheduled> {
    let asked = Instant::now();
    let mut pipeline = vec![doc! { "$match": { "due": { "$gt": date(now) } } }];
    if let Some(most) = most {
        pipeline.push(doc! { "$sort": { "due": 1 } });
        pipeline.push(doc! { "$limit": most.cast_signed() });
    }
    pipeline.push(doc! { "$group": { "_id": "$queue", "count": { "$sum": 1 } } });
    let jobs = connection.database().await?.collection::<Document>(JOBS);
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name("due".to_owned()));
    let rows: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let by_queue: HashMap<QueueName, u64> =
        rows.iter().filter_map(|row| Some((Fields(row).text("_id").ok()?, count(row, "count")))).collect();
    let total = by_queue.values().sum();
    Ok(Scheduled { by_queue, total, asked, took: asked.elapsed() })
}

/// The oldest ready job of a queue, as it was looked up.
#[derive(Clone, Copy)]
struct Oldest {
    /// Changes with every change of the queue that was counted.
    version: (i64, Option<i64>),
    run_at: Timestamp,
    read: Instant,
}

impl Figures {
    fn remember(&self, scheduled: Scheduled) -> Arc<Scheduled> {
        let scheduled = Arc::new(scheduled);
        let mut last = self.0.scheduled.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *last = Some(scheduled.clone());
        scheduled
    }

    /// Returns how many there are, counted now or, where they are very many, a moment ago.
    pub async fn scheduled(&self, mongo: &Mongo) -> Result<Arc<Scheduled>> {
        let last = self.0.scheduled.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        if let Some(last) = last {
            if last.holds() {
                return Ok(last);
            }
            if last.are_many() {
                self.count_all(mongo)?;
                return Ok(last);
            }
        }
        let first = count_scheduled(&mongo.connection, mongo.now()?, Some(SCHEDULED_COUNTED + 1)).await?;
        if first.are_many() {
            self.count_all(mongo)?;
            return Ok(self.remember(Scheduled { took: Duration::ZERO, ..first }));
        }
        Ok(self.remember(first))
    }

    /// Counts all scheduled jobs in the background, while the last count is in use.
    fn count_all(&self, mongo: &Mongo) -> Result<()> {
        let now = mongo.now()?;
        if self.0.is_counting.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let (this, connection) = (self.clone(), mongo.connection.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(BACKGROUND_DEADLINE, count_scheduled(&connection, now, None)).await {
                Ok(Ok(scheduled)) => drop(this.remember(scheduled)),
                Ok(Err(error)) => {
                    tracing::debug!(error = chain(&error), "scheduled jobs could not be counted");
                }
                Err(_) => tracing::warn!("the scheduled jobs were not counted in time"),
            }
            this.0.is_counting.store(false, Ordering::Release);
        });
        Ok(())
    }

    /// Returns the `run_at` of the oldest due job of each queue: looked up again where something has changed, in the
    /// queues first where that was longest ago.
    pub async fn oldest(
        &self,
        mongo: &Mongo,
        ready: Vec<(QueueName, (i64, Option<i64>))>,
    ) -> Result<Vec<(QueueName, Timestamp)>> {
        let mut known = self.0.oldest.lock().await;
        let mut kept: HashMap<QueueName, Oldest> = HashMap::with_capacity(ready.len());
        let (mut unknown, mut changed) = (Vec::new(), Vec::new());
        for (queue, version) in ready {
            match known.get(&queue) {
                None => unknown.push((queue, version)),
                Some(last) => {
                    if last.version != version {
                        changed.push((last.read, queue.clone(), version));
                    }
                    kept.insert(queue, *last);
                }
            }
        }
        changed.sort_by_key(|(read, _, _)| *read);
        let again = changed.into_iter().take(LOOKED_UP_AGAIN).map(|(_, queue, version)| (queue, version));
        let wanted: Vec<_> = unknown.into_iter().chain(again).collect();
        for some in wanted.chunks(QUEUES_AT_ONCE) {
            let read = Instant::now();
            let found = mongo.connection.within(look_up(mongo, some)).await?;
            for (queue, version) in some {
                kept.remove(queue);
                if let Some(run_at) = found.get(queue) {
                    kept.insert(queue.clone(), Oldest { version: *version, run_at: *run_at, read });
                }
            }
        }
        *known = kept;
        Ok(known.iter().map(|(queue, oldest)| (queue.clone(), oldest.run_at)).collect())
    }
}

/// Returns the earliest `run_at` of the due jobs of each queue: one seek in the index `head` for each priority in use.
pub async fn look_up<T>(mongo: &Mongo, queues: &[(QueueName, T)]) -> Result<HashMap<QueueName, Timestamp>> {
    let now = date(mongo.now()?);
    // What another program spoiled may be no date.
    let is_due = doc! { "$and": [{ "$eq": [{ "$type": "$first" }, "date"] }, { "$lte": ["$first", now] }] };
    let due = doc! { "$cond": [is_due, "$first", Bson::Null] };
    let mut pipeline: Vec<Document> = Vec::new();
    for (queue, _) in queues {
        let branch = vec![
            doc! { "$match": { "queue": queue.as_str(), "state": "ready" } },
            doc! { "$sort": { "priority": -1, "run_at": 1 } },
            doc! { "$group": { "_id": "$priority", "first": { "$first": "$run_at" } } },
            doc! { "$group": { "_id": { "$literal": queue.as_str() }, "oldest": { "$min": &due } } },
        ];
        match pipeline.is_empty() {
            true => pipeline = branch,
            false => pipeline.push(doc! { "$unionWith": { "coll": JOBS, "pipeline": branch } }),
        }
    }
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>();
    let rows: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let mut oldest = HashMap::with_capacity(rows.len());
    for row in &rows {
        if let Some(run_at) = Fields(row).time("oldest")? {
            let queue = Fields(row).text("_id")?;
            oldest.insert(queue, run_at);
        }
    }
    Ok(oldest)
}
