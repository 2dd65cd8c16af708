//! The figures of all queues, and of one. The counters of all are read one by one only where they are few; else MongoDB adds them
//! up, and what is read are those of the busiest. One queue's own figures read nothing of others.

use std::collections::{HashMap, HashSet};

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::options::Hint;

use crate::job::{QueueName, State};
use crate::store::mongo::COUNTERS;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::QUEUES;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::SCHEDULES;
use crate::store::mongo::SEMAPHORES;
use crate::store::mongo::WORKERS;
use crate::store::mongo::client::{count, fault};
use crate::store::mongo::figures::counters::ByState;
use crate::store::mongo::figures::counts::{Row, SCHEDULED_COUNTED, Scheduled, look_up, read, rows, split};
use crate::store::mongo::jobs::document::date;
use crate::store::mongo::stored::Stored;
use crate::store::{Counts, Named, QueueCounts, Result, Store as _, StoreSize, Summary};

/// Returns the figures of all queues, and of each of the busiest.
pub async fn of_all(mongo: &Mongo, most: usize) -> Result<Summary> {
    // What this server has done is included at once.
    mongo.counters.flush().await?;
    let bound = i64::try_from(most).unwrap_or(i64::MAX).saturating_add(1);
    let (mut all, scheduled) = tokio::try_join!(
        rows(mongo, Document::new(), Document::new(), bound),
        mongo.connection.within(mongo.figures.scheduled(mongo))
    )?;
    if all.len() <= most {
        all.retain(|(_, row)| row.by_state.iter().any(|count| *count > 0));
        let total = all.iter().fold(Row::default(), |mut total, (_, row)| {
            total.by_state.iter_mut().zip(row.by_state).for_each(|(total, own)| *total += own.max(0));
            total
        });
        let count = all.len() as u64;
        return summary(mongo, (total, count), all, &scheduled).await;
    }
    let (total, busiest) = tokio::try_join!(added_up(mongo), busiest(mongo, most))?;
    summary(mongo, total, busiest, &scheduled).await
}

async fn summary(
    mongo: &Mongo,
    (total, count): (Row, u64),
    rows: Vec<(QueueName, Row)>,
    scheduled: &Scheduled,
) -> Result<Summary> {
    let figures = |row: &Row, ahead: u64| {
        let counts = split(row, ahead);
        let split_is_approximate = !scheduled.is_exact() && counts.ready + counts.scheduled > 0;
        QueueCounts { counts, split_is_approximate, ..QueueCounts::default() }
    };
    let mut queues = HashMap::with_capacity(rows.len());
    let mut ready = Vec::new();
    for (queue, row) in rows {
        let figures = figures(&row, scheduled.of(&queue));
        if figures.counts.ready > 0 {
            ready.push((queue.clone(), row.version()));
        }
        queues.insert(queue, figures);
    }
    let mut total = figures(&total, scheduled.total());
    for (queue, oldest) in mongo.figures.oldest(mongo, ready).await? {
        let Some(figures) = queues.get_mut(&queue) else { continue };
        let tell = |figures: &mut QueueCounts| {
            figures.oldest_ready = Some(oldest.run_at);
            figures.oldest_seen = oldest.stale_since;
            figures.oldest_is_approximate = oldest.stale_since.is_some();
        };
        tell(figures);
        if total.oldest_ready.is_none_or(|first| oldest.run_at < first) {
            tell(&mut total);
        }
    }
    Ok(Summary { total, count, queues })
}

/// Returns an expression for a count, which may be absent, or below zero until it is compared.
fn at_least_none(state: State) -> Document {
    doc! { "$max": [0, format!("${}", state.as_str())] }
}

/// Returns the sums of all counters, and how many queues have jobs.
async fn added_up(mongo: &Mongo) -> Result<(Row, u64)> {
    let mut group = doc! { "_id": Bson::Null };
    for state in State::ALL {
        group.insert(state.as_str(), doc! { "$sum": at_least_none(state) });
    }
    let some: Vec<Document> =
        State::ALL.map(|state| doc! { "$gt": [format!("${}", state.as_str()), 0] }).into();
    group.insert("queues", doc! { "$sum": { "$cond": [{ "$or": some }, 1, 0] } });
    let counters = mongo.collection(COUNTERS).await?;
    let find = counters.aggregate([doc! { "$group": group }]).with_type::<Stored>();
    let mut found = find.await.map_err(fault)?;
    let Some(sums) = found.try_next().await.map_err(fault)? else { return Ok((Row::default(), 0)) };
    let by_state: ByState = State::ALL.map(|state| count(&sums, state.as_str()).cast_signed());
    Ok((Row { by_state, ..Row::default() }, count(&sums, "queues")))
}

/// Returns the counters of the queues with the most unfinished jobs.
async fn busiest(mongo: &Mongo, most: usize) -> Result<Vec<(QueueName, Row)>> {
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    if limit == 0 {
        return Ok(Vec::new());
    }
    let unfinished = [State::Ready, State::Reserved, State::Blocked].map(at_least_none);
    let pipeline = [
        doc! { "$set": { "unfinished": { "$add": unfinished.to_vec() } } },
        doc! { "$sort": { "unfinished": -1, "dead": -1, "done": -1, "_id": 1 } },
        doc! { "$limit": limit },
    ];
    let counters = mongo.connection.database().await?.collection::<RawDocumentBuf>(COUNTERS);
    let found = counters.aggregate(pipeline).with_type::<RawDocumentBuf>().await.map_err(fault)?;
    let mut rows = read(found).await?;
    rows.retain(|(_, row)| row.by_state.iter().any(|count| *count > 0));
    Ok(rows)
}

/// Returns how many there are: as many as the collection has documents by its metadata, unless those are so many.
pub async fn how_many(mongo: &Mongo, of: Named, limit: u64) -> Result<u64> {
    let name = match of {
        Named::Queues => COUNTERS,
        Named::Settings => QUEUES,
        Named::Workers => WORKERS,
        Named::Schedules => SCHEDULES,
        Named::Semaphores => SEMAPHORES,
        Named::Requests => REQUESTS,
    };
    if of == Named::Queues {
        mongo.counters.flush().await?;
    }
    let documents = mongo.collection(name).await?;
    let estimate = documents.estimated_document_count().await.map_err(fault)?;
    match of {
        _ if estimate < limit => Ok(estimate),
        // Queues that have become empty have counters for a while.
        Named::Queues => Ok(added_up(mongo).await?.1),
        _ => documents.count_documents(Document::new()).await.map_err(fault),
    }
}

/// Returns what the database takes, as MongoDB keeps it.
pub async fn size(mongo: &Mongo) -> Result<StoreSize> {
    let database = mongo.connection.database().await?;
    let reply = database.run_command(doc! { "dbStats": 1 }).await.map_err(fault)?;
    Ok(StoreSize { data: count(&reply, "storageSize"), indexes: Some(count(&reply, "indexSize")), log: None })
}

/// Returns those of these queues that have jobs.
pub async fn with_jobs(mongo: &Mongo, queues: &[QueueName]) -> Result<HashSet<QueueName>> {
    mongo.counters.flush().await?;
    let named: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let found = rows(mongo, doc! { "_id": { "$in": named } }, Document::new(), 0).await?;
    let has_jobs = |row: &Row| row.by_state.iter().any(|count| *count > 0);
    Ok(found.into_iter().filter(|(_, row)| has_jobs(row)).map(|(queue, _)| queue).collect())
}

/// Returns the figures of one queue.
pub async fn of_queue(mongo: &Mongo, queue: &QueueName) -> Result<QueueCounts> {
    mongo.counters.flush_queue(queue).await?;
    let own = doc! { "_id": queue.as_str() };
    let found = rows(mongo, own, Document::new(), 1).await?;
    let Some((_, row)) = found.first() else { return Ok(QueueCounts::default()) };
    let (ahead, is_exact) = match split(row, 0).ready {
        0 => (0, true),
        _ => scheduled(mongo, queue).await?,
    };
    let counts: Counts = split(row, ahead);
    let oldest_ready = match counts.ready {
        0 => None,
        _ => look_up(mongo, &[(queue.clone(), ())]).await?.remove(queue),
    };
    Ok(QueueCounts { counts, oldest_ready, split_is_approximate: !is_exact, ..QueueCounts::default() })
}

/// Returns how many jobs of a queue wait for their `run_at`, and whether that is exact: their entries in the index `head` are
/// counted up to a bound, where the last count of all queues is used.
async fn scheduled(mongo: &Mongo, queue: &QueueName) -> Result<(u64, bool)> {
    let ahead = doc! { "queue": queue.as_str(), "state": "ready", "run_at": { "$gt": date(mongo.now()?) } };
    let pipeline = [
        doc! { "$match": ahead },
        doc! { "$limit": SCHEDULED_COUNTED.cast_signed() + 1 },
        doc! { "$group": { "_id": Bson::Null, "count": { "$sum": 1 } } },
    ];
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name("head".to_owned()));
    let mut found = find.await.map_err(fault)?;
    let counted = found.try_next().await.map_err(fault)?.map_or(0, |row| count(&row, "count"));
    if counted <= SCHEDULED_COUNTED {
        return Ok((counted, true));
    }
    let all = mongo.figures.scheduled(mongo).await?;
    Ok((all.of(queue).max(counted), all.is_exact()))
}
