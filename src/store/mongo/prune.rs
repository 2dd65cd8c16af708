//! Forgetting what is past its time: keys, history and dead jobs, and batches.
//!
//! Jobs whose `purge_at` has passed are deleted here, so that they are counted. MongoDB's own TTL index would
//! delete them an hour later, for a database that has no servers any more.

use std::collections::HashMap;

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryStreamExt as _};
use mongodb::bson::{Document, doc};

use crate::job::{QueueName, State};
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::Mongo;
use crate::store::mongo::audit;
use crate::store::mongo::batches;
use crate::store::mongo::client::{barrier, fault, write};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::operations;
use crate::store::mongo::stored::Stored;
use crate::store::prune::{KEY_CHECKED_AGAIN_MS, holding, purged};
use crate::store::{Result, Store as _};

/// Forgets up to this many records of a kind, and returns how many.
type Prune = for<'a> fn(&'a Mongo, usize) -> BoxFuture<'a, Result<u64>>;

/// The kinds, in the order in which they are forgotten.
const KINDS: [Prune; 5] = [
    |mongo, limit| prune_keys(mongo, limit).boxed(),
    |mongo, limit| prune_jobs(mongo, limit).boxed(),
    |mongo, limit| batches::prune(mongo, limit).boxed(),
    |mongo, limit| operations::prune(mongo, limit).boxed(),
    |mongo, limit| audit::prune(mongo, limit).boxed(),
];

/// Forgets up to `limit` records and returns how many. Each kind has a deadline of its own, and one that fails keeps none of the others
/// from being forgotten.
pub async fn prune(mongo: &Mongo, limit: usize) -> Result<u64> {
    let (mut forgotten, mut failed) = (0_u64, Ok(()));
    for kind in KINDS {
        let left = limit.saturating_sub(usize::try_from(forgotten).unwrap_or(limit));
        match mongo.connection.within(kind(mongo, left)).await {
            Ok(count) => forgotten += count,
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed.map(|()| forgotten)
}

/// Forgets up to `limit` jobs, those first whose time passed first, and returns how many.
async fn prune_jobs(mongo: &Mongo, limit: usize) -> Result<u64> {
    if limit == 0 {
        return Ok(0);
    }
    let now = date(mongo.now()?);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let jobs = mongo.collection(JOBS).await?;
    let purged: Vec<&str> = purged().map(State::as_str).collect();
    let over = doc! { "purge_at": { "$lte": now }, "state": { "$in": purged } };
    let find = jobs.find(over.clone()).sort(doc! { "purge_at": 1 }).limit(limit);
    let find = find.projection(doc! { "queue": 1, "state": 1 });
    let found: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let mut counts: HashMap<(QueueName, State), u64> = HashMap::new();
    for document in &found {
        if let (Ok(queue), Some(state)) =
            (Row(document).text("queue"), document.get_str("state").ok().and_then(State::from_word))
        {
            *counts.entry((queue, state)).or_default() += 1;
        }
    }
    if found.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&str> = found.iter().filter_map(|document| document.get_str("_id").ok()).collect();
    // One that got another chance in between has no `purge_at` any more.
    let mut still = over;
    still.insert("_id", doc! { "$in": ids });
    let statement = doc! { "q": still, "limit": 0 };
    let sent = mongo.counters.sending(counts.keys().map(|(queue, _)| queue));
    let database = mongo.connection.database().await?;
    let gone = write(database, doc! { "delete": JOBS, "deletes": [statement] }).await?;
    // Where another server was quicker with some of them, it is not known which: they are counted anew.
    if gone == found.len() as u64 {
        counts.iter().for_each(|((queue, state), count)| mongo.counters.left(queue, *state, *count));
        sent.answered();
    }
    Ok(gone)
}

/// Forgets keys whose time is over and whose job has ended.
async fn prune_keys(mongo: &Mongo, limit: usize) -> Result<u64> {
    let (now, since) = (mongo.now()?, mongo.connection.term());
    let database = mongo.connection.database().await?;
    let keys = mongo.collection(KEYS).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let find =
        keys.find(doc! { "check_at": { "$lte": date(now) } }).sort(doc! { "check_at": 1 }).limit(limit);
    let over: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    if over.is_empty() {
        return Ok(0);
    }
    let jobs: Vec<&str> = over.iter().filter_map(|key| key.get_str("job").ok()).collect();
    let holding: Vec<&str> = holding().map(State::as_str).collect();
    let filter = doc! { "_id": { "$in": jobs }, "state": { "$in": holding } };
    let find =
        mongo.collection(JOBS).await?.find(filter).projection(doc! { "_id": 1 }).await.map_err(fault)?;
    let alive: Vec<Stored> = find.try_collect().await.map_err(fault)?;
    let alive: Vec<&str> = alive.iter().filter_map(|job| job.get_str("_id").ok()).collect();
    // The key may have passed to another job in between: the record must still be the one that was read.
    let statements = over.iter().filter_map(|key| {
        let job = key.get_str("job").ok()?;
        let guard = doc! { "_id": key.get_str("_id").ok()?, "job": job };
        Some((alive.contains(&job), guard))
    });
    let (kept, gone): (Vec<_>, Vec<_>) = statements.partition(|(alive, _)| *alive);
    let later = doc! { "$set": { "check_at": date(now.plus_ms(KEY_CHECKED_AGAIN_MS)) } };
    let updates: Vec<Document> =
        kept.into_iter().map(|(_, guard)| doc! { "q": guard, "u": later.clone() }).collect();
    if !updates.is_empty() {
        write(database, doc! { "update": KEYS, "updates": updates, "ordered": false }).await?;
    }
    let deletes: Vec<Document> = gone.into_iter().map(|(_, guard)| doc! { "q": guard, "limit": 1 }).collect();
    if deletes.is_empty() {
        return Ok(0);
    }
    // A failover may take back that a job has ended: its key must stay then.
    barrier(&mongo.connection, since).await?;
    write(database, doc! { "delete": KEYS, "deletes": deletes, "ordered": false }).await
}
