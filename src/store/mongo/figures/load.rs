//! Who works on a queue, what is tried again, and what is blocked for good.

use std::collections::HashMap;

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::Hint;

use crate::job::{QueueName, SemaphoreName, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{count, fault};
use crate::store::mongo::jobs::document::{Row, date, readable};
use crate::store::mongo::stored::Stored;
use crate::store::{
    ALL_SCAN_LIMIT, BLOCKED_SCAN_LIMIT, Blockers, DUE_SCAN_LIMIT, DeadHead, Load, QUEUES_SCAN_LIMIT,
    RESERVED_AGES_MS, Result, SCAN_LIMIT, Store as _,
};

/// The workers of so many queues are counted by one command.
const QUEUES_AT_ONCE: usize = 50;
/// So many jobs of a queue are scanned for them at least.
const WORKERS_SCAN_MIN: u64 = 200;

/// Puts the first of the jobs that the filter means together.
async fn scan(
    mongo: &Mongo,
    (filter, index): (Document, &str),
    most: u64,
    then: Vec<Document>,
) -> Result<Stored> {
    let first = [doc! { "$match": filter }, doc! { "$limit": most.cast_signed() }];
    let pipeline: Vec<Document> = first.into_iter().chain(then).collect();
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name(index.to_owned()));
    Ok(find.await.map_err(fault)?.try_next().await.map_err(fault)?.unwrap_or_default())
}

/// Returns who works on a queue, and what is tried again.
pub async fn load(mongo: &Mongo, queue: &QueueName) -> Result<Load> {
    let now = mongo.now()?;
    let is = |state: &str| doc! { "queue": queue.as_str(), "state": state };
    let with = |mut filter: Document, bound: Document| {
        filter.insert("run_at", bound);
        filter
    };
    let (due, ahead, held) = tokio::try_join!(
        scan(mongo, (with(is("ready"), doc! { "$lte": date(now) }), "head"), SCAN_LIMIT, vec![oldest()]),
        scan(mongo, (with(is("ready"), doc! { "$gt": date(now) }), "head"), SCAN_LIMIT, vec![backoff()]),
        scan(mongo, (is("reserved"), "browse"), SCAN_LIMIT, held(now)),
    )?;
    Ok(read(&due, &ahead, &held, [SCAN_LIMIT; 2]))
}

/// Returns the same of all queues, but the oldest due jobs only of these.
pub async fn total_load(mongo: &Mongo, queues: &[QueueName]) -> Result<Load> {
    let now = mongo.now()?;
    let ahead = doc! { "due": { "$gt": date(now) } };
    let (dues, ahead, held) = tokio::try_join!(
        oldest_due(mongo, queues, now),
        scan(mongo, (ahead, "due"), ALL_SCAN_LIMIT, vec![backoff()]),
        scan(mongo, (doc! { "state": "reserved" }, "lease"), ALL_SCAN_LIMIT, held(now)),
    )?;
    let (none, most) = (Stored::default(), [DUE_SCAN_LIMIT, ALL_SCAN_LIMIT]);
    let mut load = read(&none, &ahead, &held, most);
    for of_queue in dues.iter().map(|due| read(due, &none, &none, most)) {
        let earlier = |one: Option<Timestamp>, other| one.into_iter().chain(other).min();
        load.oldest_first = earlier(load.oldest_first, of_queue.oldest_first);
        load.oldest_retried = earlier(load.oldest_retried, of_queue.oldest_retried);
        load.ages_are_partial |= of_queue.ages_are_partial;
    }
    Ok(load)
}

/// Returns the oldest due jobs of each of these queues, of the first [`DUE_SCAN_LIMIT`] in the order of delivery.
async fn oldest_due(mongo: &Mongo, queues: &[QueueName], now: Timestamp) -> Result<Vec<Stored>> {
    let branches = queues.iter().take(QUEUES_SCAN_LIMIT).map(|queue| {
        let due = doc! { "queue": queue.as_str(), "state": "ready", "run_at": { "$lte": date(now) } };
        vec![
            doc! { "$match": due },
            doc! { "$sort": { "priority": -1, "run_at": 1, "_id": 1 } },
            doc! { "$limit": DUE_SCAN_LIMIT.cast_signed() },
            oldest(),
        ]
    });
    union(mongo, branches).await
}

fn is_retried() -> Document {
    doc! { "$gt": ["$attempts", 0] }
}

/// Puts due jobs together.
fn oldest() -> Document {
    // What another program spoiled may be no date.
    let run_at = |is_meant: Document| {
        let is_date = doc! { "$eq": [{ "$type": "$run_at" }, "date"] };
        doc! { "$min": { "$cond": [{ "$and": [is_meant, is_date] }, "$run_at", Bson::Null] } }
    };
    doc! { "$group": {
        "_id": Bson::Null, "all": { "$sum": 1 },
        "first": run_at(doc! { "$not": [is_retried()] }), "retried": run_at(is_retried()),
    } }
}

/// Puts scheduled jobs together.
fn backoff() -> Document {
    let retried = doc! { "$sum": { "$cond": [is_retried(), 1, 0] } };
    doc! { "$group": { "_id": Bson::Null, "all": { "$sum": 1 }, "retried": retried } }
}

/// Puts reserved jobs together.
fn held(now: Timestamp) -> Vec<Document> {
    let younger =
        |ms: u64| doc! { "$sum": { "$cond": [{ "$gt": ["$started_at", date(now.minus_ms(ms))] }, 1, 0] } };
    let [minute, ten, hour] = RESERVED_AGES_MS.map(younger);
    let by_worker = doc! { "$group": {
        "_id": "$worker", "all": { "$sum": 1 }, "minute": minute, "ten": ten, "hour": hour,
    } };
    let is_named = doc! { "$eq": [{ "$type": "$_id" }, "string"] };
    let held = doc! { "$group": {
        "_id": Bson::Null, "all": { "$sum": "$all" }, "workers": { "$sum": { "$cond": [is_named, 1, 0] } },
        "minute": { "$sum": "$minute" }, "ten": { "$sum": "$ten" }, "hour": { "$sum": "$hour" },
    } };
    vec![by_worker, held]
}

/// Reads what was put together of due jobs, so many at most, and of scheduled and reserved ones, so many at most of each.
fn read(due: &Document, ahead: &Document, held: &Document, [dues, others]: [u64; 2]) -> Load {
    let [all, minute, ten, hour] = ["all", "minute", "ten", "hour"].map(|field| count(held, field));
    Load {
        backoff: count(ahead, "retried"),
        oldest_first: Row(due).time("first").ok().flatten(),
        oldest_retried: Row(due).time("retried").ok().flatten(),
        reserved: [minute, ten - minute, hour - ten, all - hour],
        workers: count(held, "workers"),
        is_partial: [count(ahead, "all"), all].iter().any(|seen| *seen >= others),
        ages_are_partial: count(due, "all") >= dues,
    }
}

/// Runs several pipelines over the jobs as one, and returns what all of them find.
async fn union(mongo: &Mongo, branches: impl Iterator<Item = Vec<Document>>) -> Result<Vec<Stored>> {
    let mut pipeline: Vec<Document> = Vec::new();
    for branch in branches {
        match pipeline.is_empty() {
            true => pipeline = branch,
            false => pipeline.push(doc! { "$unionWith": { "coll": JOBS, "pipeline": branch } }),
        }
    }
    if pipeline.is_empty() {
        return Ok(Vec::new());
    }
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>();
    find.await.map_err(fault)?.try_collect().await.map_err(fault)
}

async fn all(mongo: &Mongo, pipeline: Vec<Document>) -> Result<Vec<Stored>> {
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name("browse".to_owned()));
    find.await.map_err(fault)?.try_collect().await.map_err(fault)
}

/// How many jobs are scanned for the workers of a queue, where there are so many queues: not many more of all together than of one, but
/// some of each.
fn scan_limit_of_each(queues: usize) -> u64 {
    (10 * SCAN_LIMIT / (queues as u64).max(1)).clamp(WORKERS_SCAN_MIN, SCAN_LIMIT)
}

/// Returns how many named workers hold jobs of each of these queues.
pub async fn workers_of(mongo: &Mongo, queues: &[QueueName]) -> Result<HashMap<QueueName, u64>> {
    let (most, mut workers) = (scan_limit_of_each(queues.len()), HashMap::new());
    for some in queues.chunks(QUEUES_AT_ONCE) {
        let found = mongo.connection.within(workers_of_some(mongo, some, most)).await?;
        workers
            .extend(readable(&found, |row| Ok((Row(row).text::<QueueName>("_id")?, count(row, "workers")))));
    }
    Ok(workers)
}

async fn workers_of_some(mongo: &Mongo, queues: &[QueueName], most: u64) -> Result<Vec<Stored>> {
    let branches = queues.iter().map(|queue| {
        vec![
            doc! { "$match": { "queue": queue.as_str(), "state": "reserved" } },
            doc! { "$limit": most.cast_signed() },
            doc! { "$match": { "worker": { "$type": "string" } } },
            doc! { "$group": { "_id": "$worker" } },
            doc! { "$group": { "_id": { "$literal": queue.as_str() }, "workers": { "$sum": 1 } } },
        ]
    });
    union(mongo, branches).await
}

/// Returns what may keep the blocked jobs of a queue from ever being delivered.
pub async fn blockers(mongo: &Mongo, queue: &QueueName) -> Result<Blockers> {
    let oldest = |state: &str| {
        vec![
            doc! { "$match": { "queue": queue.as_str(), "state": state } },
            doc! { "$sort": { "_id": 1 } },
            doc! { "$limit": BLOCKED_SCAN_LIMIT.cast_signed() },
        ]
    };
    // A dead job that has a place in the line of its group is the first of it.
    let heads = [
        doc! { "$match": { "turn": { "$exists": true } } },
        doc! { "$project": { "group": 1, "finished_at": 1 } },
    ];
    let waited_for = [
        doc! { "$match": { "waits_for": { "$type": "string" } } },
        doc! { "$group": { "_id": "$waits_for" } },
        doc! { "$sort": { "_id": 1 } },
    ];
    let (heads, waited_for) = tokio::try_join!(
        all(mongo, oldest("dead").into_iter().chain(heads).collect()),
        all(mongo, oldest("blocked").into_iter().chain(waited_for).collect()),
    )?;
    let read = |document: &Document| {
        let row = Row(document);
        let since = row.time("finished_at").ok().flatten();
        Ok(DeadHead { id: row.text("_id")?, group: row.text("group")?, since })
    };
    Ok(Blockers {
        dead_heads: heads.len() as u64,
        head: readable(&heads, read).into_iter().next(),
        semaphores: readable(&waited_for, |row| Row(row).text::<SemaphoreName>("_id")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_jobs_of_each_queue_are_scanned_for_its_workers() {
        assert_eq!(
            [0, 1, 10, 20, 100, 1000].map(scan_limit_of_each),
            [10_000, 10_000, 10_000, 5000, 1000, 200]
        );
    }
}
