//! Forgetting history and dead jobs whose `purge_at` has passed, so that what leaves is counted. MongoDB's own
//! TTL index does it an hour later, for a database whose servers are all gone.

use std::collections::HashMap;

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};

use crate::job::{QueueName, State};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{fault, write};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::{Result, Store as _};

/// Forgets up to `limit` jobs, the longest over first, and answers how many.
pub async fn prune(mongo: &Mongo, limit: usize) -> Result<u64> {
    if limit == 0 {
        return Ok(0);
    }
    let now = date(mongo.now()?);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.find(doc! { "purge_at": { "$lte": now } }).sort(doc! { "purge_at": 1 }).limit(limit);
    let find = find.projection(doc! { "queue": 1, "state": 1 });
    let over: Vec<Document> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let mut by_place: HashMap<(QueueName, State), u64> = HashMap::new();
    for document in &over {
        if let (Ok(queue), Some(state)) =
            (Row(document).text("queue"), document.get_str("state").ok().and_then(State::from_word))
        {
            *by_place.entry((queue, state)).or_default() += 1;
        }
    }
    if over.is_empty() {
        return Ok(0);
    }
    let ids: Vec<&str> = over.iter().filter_map(|document| document.get_str("_id").ok()).collect();
    // One that got another chance in between has no `purge_at` any more.
    let statement = doc! { "q": { "_id": { "$in": ids }, "purge_at": { "$lte": now } }, "limit": 0 };
    let sent = mongo.counters.sending(by_place.keys().map(|(queue, _)| queue));
    let database = mongo.connection.database().await?;
    let gone = write(database, doc! { "delete": JOBS, "deletes": [statement] }).await?;
    // Where another server was quicker with some of them, it is not known which: they are counted anew.
    if gone == over.len() as u64 {
        by_place.iter().for_each(|((queue, state), count)| mongo.counters.left(queue, *state, *count));
        sent.answered();
    }
    Ok(gone)
}
