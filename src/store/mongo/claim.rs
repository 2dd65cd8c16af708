//! Reserving: read the head of the queue, take it with a token, read back what the token won.
//!
//! The filter of the taking guards on the state, so that of two claims that read the same head only one
//! wins each job. Requests for the same queue that come in one call share a round; each has its own token.

use std::collections::HashMap;

use futures::TryStreamExt;
use mongodb::Database;
use mongodb::bson::{Bson, Document, doc};

use super::JOBS;
use super::client::{fault, write};
use super::document::{readable, to_job};
use crate::job::{Claim, Job, QueueName};
use crate::store::{ClaimAsk, Result};

/// How often a round that lost its jobs to others is tried again before the rest goes unserved.
const ROUNDS: usize = 8;

/// A job is due, and not past its expiry, by the store's clock. The sum is taken on the side of the clock,
/// and a missing `expires_at` is given a value, since MongoDB sorts what is missing before every date.
fn deliverable(queue: &QueueName) -> Document {
    let never = mongodb::bson::DateTime::MAX;
    doc! {
        "queue": queue.as_str(),
        "state": "ready",
        "$expr": { "$and": [
            { "$lte": ["$run_at", "$$NOW"] },
            { "$gt": [{ "$ifNull": ["$expires_at", never] }, "$$NOW"] },
        ] },
    }
}

/// Serves requests for one queue, in order.
pub async fn claim(database: &Database, queue: &QueueName, asks: &[&ClaimAsk]) -> Result<Vec<Vec<Job>>> {
    let mut won: Vec<Vec<Job>> = asks.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        let wanted: usize = asks.iter().zip(&won).map(|(ask, jobs)| ask.count - jobs.len()).sum();
        if wanted == 0 {
            break;
        }
        let heads = heads(database, queue, wanted).await?;
        if heads.is_empty() {
            break;
        }
        let short = heads.len() < wanted;
        let attempted = heads.len();
        let taken = take(database, queue, asks, &won, heads).await?;
        let taken_count: usize = taken.iter().map(Vec::len).sum();
        for (jobs, more) in won.iter_mut().zip(taken) {
            jobs.extend(more);
        }
        if short && taken_count == attempted {
            break; // the queue had no more than that
        }
    }
    Ok(won)
}

/// The ids at the head of the queue, in delivery order.
async fn heads(database: &Database, queue: &QueueName, limit: usize) -> Result<Vec<String>> {
    let cursor = database
        .collection::<Document>(JOBS)
        .find(deliverable(queue))
        .sort(doc! { "priority": -1, "run_at": 1, "_id": 1 })
        .projection(doc! { "_id": 1 })
        .limit(i64::try_from(limit).unwrap_or(i64::MAX))
        .batch_size(u32::try_from(limit.saturating_add(1)).unwrap_or(u32::MAX))
        .await
        .map_err(fault)?;
    let documents: Vec<Document> = cursor.try_collect().await.map_err(fault)?;
    Ok(documents.iter().filter_map(|head| head.get_str("_id").ok().map(str::to_owned)).collect())
}

async fn take(
    database: &Database,
    queue: &QueueName,
    asks: &[&ClaimAsk],
    won: &[Vec<Job>],
    heads: Vec<String>,
) -> Result<Vec<Vec<Job>>> {
    let mut rest = heads.as_slice();
    let mut statements = Vec::new();
    for (ask, jobs) in asks.iter().zip(won) {
        let (mine, others) = rest.split_at((ask.count - jobs.len()).min(rest.len()));
        rest = others;
        if !mine.is_empty() {
            statements.push(statement(queue, ask, mine));
        }
    }
    let update = doc! { "update": JOBS, "updates": statements, "ordered": false };
    // After an error the update may have happened all the same: the token tells.
    let updated = write(database, update).await;
    let claims: Vec<&str> = asks.iter().map(|ask| ask.claim.as_str()).collect();
    let filter = doc! { "_id": { "$in": &heads }, "state": "reserved", "claim": { "$in": claims } };
    let mut found = read(database, filter).await?;
    if let (Err(error), true) = (updated, found.is_empty()) {
        return Err(error);
    }
    let mut jobs: Vec<Vec<Job>> = asks.iter().map(|_| Vec::new()).collect();
    for id in &heads {
        let Some(job) = found.remove(id.as_str()) else {
            continue;
        };
        let winner = asks.iter().position(|ask| job.meta.claim.as_ref() == Some(&ask.claim));
        if let Some(jobs) = winner.and_then(|n| jobs.get_mut(n)) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

fn statement(queue: &QueueName, ask: &ClaimAsk, ids: &[String]) -> Document {
    let mut filter = deliverable(queue);
    filter.insert("_id", doc! { "$in": ids });
    let lease_ms = ask.lease_ms.cast_signed();
    // A name is a text, which a pipeline would read as a field path if it began with a dollar sign.
    let worker = match &ask.worker {
        Some(worker) => doc! { "$literal": worker.as_str() }.into(),
        None => Bson::from("$$REMOVE"),
    };
    let set = doc! {
        "state": "reserved",
        "claim": { "$literal": ask.claim.as_str() },
        "worker": worker,
        "lease_ms": lease_ms,
        "reserved_until": { "$add": ["$$NOW", lease_ms] },
        "started_at": "$$NOW",
        "attempts": { "$toLong": { "$add": ["$attempts", 1] } },
        "due": "$$REMOVE",
        "rev": rand::random::<i64>(),
    };
    doc! { "q": filter, "u": [{ "$set": set }], "multi": true, "hint": { "_id": 1 } }
}

/// The jobs that a claim holds in these queues.
pub async fn held(database: &Database, queues: &[QueueName], claim: &Claim) -> Result<Vec<Job>> {
    let names: Vec<&str> = queues.iter().map(QueueName::as_str).collect();
    let filter = doc! { "queue": { "$in": names }, "state": "reserved", "claim": claim.as_str() };
    let mut jobs: Vec<Job> = read(database, filter).await?.into_values().collect();
    jobs.sort_by(|a, b| {
        let order = |job: &Job| (-i64::from(job.meta.priority), job.meta.run_at);
        order(a).cmp(&order(b)).then_with(|| a.meta.id.cmp(&b.meta.id))
    });
    Ok(jobs)
}

async fn read(database: &Database, filter: Document) -> Result<HashMap<String, Job>> {
    let cursor = database.collection::<Document>(JOBS).find(filter).await.map_err(fault)?;
    let documents: Vec<Document> = cursor.try_collect().await.map_err(fault)?;
    let jobs = readable(&documents, to_job).into_iter();
    Ok(jobs.map(|job| (job.meta.id.to_string(), job)).collect())
}

/// The claims of one call: those for the same queue share their rounds, the queues go side by side.
pub async fn claim_all(database: &Database, asks: &[ClaimAsk]) -> Vec<Result<Vec<Job>>> {
    let mut queues: Vec<(&QueueName, Vec<usize>)> = Vec::new();
    for (n, ask) in asks.iter().enumerate() {
        match queues.iter_mut().find(|(queue, _)| **queue == ask.queue) {
            Some((_, members)) => members.push(n),
            None => queues.push((&ask.queue, vec![n])),
        }
    }
    let rounds = queues.iter().map(|(queue, members)| async move {
        let asks: Vec<&ClaimAsk> = members.iter().filter_map(|n| asks.get(*n)).collect();
        (members, claim(database, queue, &asks).await)
    });
    let mut answers: Vec<Result<Vec<Job>>> = asks.iter().map(|_| Ok(Vec::new())).collect();
    for (members, answer) in futures::future::join_all(rounds).await {
        match answer {
            Ok(jobs) => members.iter().zip(jobs).for_each(|(n, jobs)| answers[*n] = Ok(jobs)),
            Err(error) => members.iter().for_each(|n| answers[*n] = Err(error.clone())),
        }
    }
    answers
}
