//! Reading the figures: the counters as they are kept, how many of the ready jobs are still scheduled, and
//! since when the oldest has been ready. The collection `jobs` itself is never read, only ends of its indexes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt, stream};
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
/// So many such commands are under way at once.
const SIDE_BY_SIDE: usize = 4;
/// For so long with each request, oldest jobs that are known are looked up again; so many such commands are sent in any case.
const LOOKED_UP_FOR: Duration = Duration::from_millis(250);
const LOOKED_UP_ANYWAY: usize = 5;

/// A queue that has changed since its oldest job was looked up so long ago has an approximate one.
const APPROXIMATE_AFTER: Duration = Duration::from_secs(30);
/// Counts that were not queried for this long are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(180);

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

/// Changes with every change of a queue that was counted.
pub type Version = (i64, Option<i64>);

impl Row {
    /// Changes with every change of the queue that was counted.
    pub fn version(&self) -> Version {
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
    version: Version,
    run_at: Timestamp,
    read: Instant,
    /// The same by the store's clock.
    seen: Timestamp,
    asked: Instant,
}

/// Since when the oldest ready job of a queue has been ready, as it is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToldOldest {
    /// Its `run_at`.
    pub run_at: Timestamp,
    /// When that was looked up, where that is a while ago and the queue has changed since.
    pub stale_since: Option<Timestamp>,
}

/// Queues whose oldest job is looked up by one command, and whether that is to be done in any case.
struct Part {
    queues: Vec<(QueueName, Version)>,
    is_needed: bool,
}

/// What was found in them, and when.
struct Found {
    queues: Vec<(QueueName, Version)>,
    oldest: HashMap<QueueName, Timestamp>,
    read: Instant,
    seen: Timestamp,
}

/// Looks up a part; `None` where there is no time left for it.
async fn look_up_part(mongo: &Mongo, part: Part, asked: Instant) -> Result<Option<Found>> {
    let Part { queues, is_needed } = part;
    if !is_needed && asked.elapsed() >= LOOKED_UP_FOR {
        return Ok(None);
    }
    let (read, seen) = (Instant::now(), mongo.now()?);
    let oldest = mongo.connection.within(look_up(mongo, &queues)).await?;
    Ok(Some(Found { queues, oldest, read, seen }))
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

    /// Returns the `run_at` of the oldest due job of each queue: looked up again where something has changed, as long as there is time, in
    /// the queues first where that was longest ago. What other calls ask about stays known.
    pub async fn oldest(
        &self,
        mongo: &Mongo,
        ready: Vec<(QueueName, Version)>,
    ) -> Result<Vec<(QueueName, ToldOldest)>> {
        let mut known = self.0.oldest.lock().await;
        let asked = Instant::now();
        known.retain(|_, oldest| oldest.asked.elapsed() < FORGOTTEN_AFTER);
        let parts = wanted(&mut known, &ready, asked);
        let mut reads =
            stream::iter(parts).map(|part| look_up_part(mongo, part, asked)).buffer_unordered(SIDE_BY_SIDE);
        while let Some(found) = reads.try_next().await? {
            let Some(Found { queues, oldest, read, seen }) = found else { continue };
            for (queue, version) in queues {
                match oldest.get(&queue) {
                    Some(run_at) => {
                        known.insert(queue, Oldest { version, run_at: *run_at, read, seen, asked });
                    }
                    None => drop(known.remove(&queue)),
                }
            }
        }
        let told = |(queue, version): (QueueName, Version)| {
            let Oldest { version: then, run_at, read, seen, .. } = *known.get(&queue)?;
            let is_approximate = then != version && read.elapsed() >= APPROXIMATE_AFTER;
            Some((queue, ToldOldest { run_at, stale_since: is_approximate.then_some(seen) }))
        };
        Ok(ready.into_iter().filter_map(told).collect())
    }
}

/// Returns the queues in which the oldest job is looked up: all where it is not known, and those that have changed, of which that is to be
/// done as long as there is time.
fn wanted(
    known: &mut HashMap<QueueName, Oldest>,
    ready: &[(QueueName, Version)],
    asked: Instant,
) -> Vec<Part> {
    let (mut unknown, mut changed) = (Vec::new(), Vec::new());
    for (queue, version) in ready {
        match known.get_mut(queue) {
            None => unknown.push((queue.clone(), *version)),
            Some(last) => {
                last.asked = asked;
                if last.version != *version {
                    changed.push((last.read, queue, *version));
                }
            }
        }
    }
    changed.sort_by_key(|(read, _, _)| *read);
    let changed: Vec<(QueueName, Version)> =
        changed.into_iter().map(|(_, queue, version)| (queue.clone(), version)).collect();
    let part = |queues: &[(QueueName, Version)], is_needed| Part { queues: queues.to_vec(), is_needed };
    let unknown = unknown.chunks(QUEUES_AT_ONCE).map(|some| part(some, true));
    let changed =
        changed.chunks(QUEUES_AT_ONCE).enumerate().map(|(n, some)| part(some, n < LOOKED_UP_ANYWAY));
    unknown.chain(changed).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_looked_up_and_of_what_has_changed_the_oldest() {
        let (now, mut known) = (Instant::now(), HashMap::new());
        let queue = |n: usize| -> QueueName { format!("q{n}").parse().unwrap() };
        for n in 0..1000 {
            let read = now + Duration::from_millis(1000 - n as u64);
            let run_at = Timestamp::from_millis(0);
            let oldest = Oldest { version: (0, None), run_at, read, seen: run_at, asked: now };
            known.insert(queue(n), oldest);
        }
        let asked = now + Duration::from_secs(9);
        let ready: Vec<(QueueName, Version)> =
            (500..1001).map(|n| (queue(n), ((n % 3 != 0).into(), None))).collect();
        let parts = wanted(&mut known, &ready, asked);
        let wanted: Vec<&QueueName> =
            parts.iter().flat_map(|part| &part.queues).map(|(queue, _)| queue).collect();
        let changed = (500..1000).filter(|n| n % 3 != 0).count();
        assert_eq!((wanted.len(), wanted[0], wanted[1]), (1 + changed, &queue(1000), &queue(998)));
        assert_eq!(*wanted[changed], queue(500), "every one that has changed, the oldest first");
        let needed = parts.iter().take_while(|part| part.is_needed).count();
        assert_eq!((needed, parts.len()), (1 + LOOKED_UP_ANYWAY, 1 + changed.div_ceil(QUEUES_AT_ONCE)));
        assert_eq!((known.len(), known[&queue(499)].asked, known[&queue(501)].asked), (1000, now, asked));
    }
}
