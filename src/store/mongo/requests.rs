//! Reserves that carry an `Idempotency-Key`, and forgetting what is over.

use futures::TryStreamExt;
use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::job::{Claim, JobId, State, Timestamp};
use crate::store::mongo::JOBS;
use crate::store::mongo::KEYS;
use crate::store::mongo::Mongo;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::client::{DUPLICATE_KEY, code, fault, write};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::{Opened, Request, Result, Store as _};

/// How long the key of a job that is unfinished after the key's time is left alone, in milliseconds.
const CHECK_AGAIN_MS: u64 = 600_000;

fn record(request: &Request) -> Document {
    let digest = Binary { subtype: BinarySubtype::Generic, bytes: request.digest.to_vec() };
    let until = date(request.pending_until);
    doc! { "_id": &request.id, "digest": digest, "claim": request.claim.as_str(), "until": until }
}

/// Announces a request, or says what is known of it.
pub async fn open(mongo: &Mongo, request: &Request) -> Result<Opened> {
    let requests = mongo.collection(REQUESTS).await?;
    loop {
        match requests.insert_one(record(request)).await {
            Ok(_) => return Ok(Opened::New),
            Err(error) if code(&error) == Some(DUPLICATE_KEY) => {}
            Err(error) => return Err(fault(error)),
        }
        // MongoDB may remove the record in between: then it is inserted after all.
        let found = requests.find_one(doc! { "_id": &request.id }).await.map_err(fault)?;
        let Some(found) = found else { continue };
        if let Some(opened) = judge(mongo, request, &found).await? {
            return Ok(opened);
        }
    }
}

/// What the record of an earlier request means for this one; `None` if it has just changed.
async fn judge(mongo: &Mongo, request: &Request, found: &Document) -> Result<Option<Opened>> {
    let row = Row(found);
    let claim = Claim::from_stored(found.get_str("claim").map_err(|_| row.fault("claim"))?);
    if claim == request.claim {
        return Ok(Some(Opened::New)); // this very insert, repeated by the driver
    }
    let now = mongo.now()?;
    let over = row.time("until")?.is_none_or(|until| until <= now);
    let ids = found.get_array("ids").ok();
    if let (Some(_), true) = (ids, over) {
        return Ok(replace(mongo, request, &claim).await?.then_some(Opened::New));
    }
    let same = found.get_binary_generic("digest").is_ok_and(|digest| digest == &request.digest.to_vec());
    if !same {
        return Ok(Some(Opened::Different));
    }
    match ids {
        Some(ids) => {
            let ids = ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect();
            Ok(Some(Opened::Finished { claim, ids }))
        }
        None if over => {
            Ok(replace(mongo, request, &claim).await?.then_some(Opened::TakenOver { previous: claim }))
        }
        None => Ok(Some(Opened::Pending)),
    }
}

/// Puts this request in the place of the one with that claim; false if somebody else was first.
async fn replace(mongo: &Mongo, request: &Request, claim: &Claim) -> Result<bool> {
    let requests = mongo.collection(REQUESTS).await?;
    let filter = doc! { "_id": &request.id, "claim": claim.as_str() };
    Ok(requests.replace_one(filter, record(request)).await.map_err(fault)?.matched_count == 1)
}

/// Remembers what a request won, or forgets it.
pub async fn close(
    mongo: &Mongo,
    request: &Request,
    won: Option<(&Claim, &[JobId])>,
    keep_until: Timestamp,
) -> Result<()> {
    let requests = mongo.collection(REQUESTS).await?;
    let filter = doc! { "_id": &request.id, "claim": request.claim.as_str() };
    let Some((claim, ids)) = won else {
        requests.delete_one(filter).await.map_err(fault)?;
        return Ok(());
    };
    let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
    let update = doc! { "$set": { "ids": ids, "claim": claim.as_str(), "until": date(keep_until) } };
    requests.update_one(filter, update).await.map_err(fault)?;
    Ok(())
}

/// Forgets keys whose time is over and whose job has ended.
pub async fn prune_keys(mongo: &Mongo, limit: usize) -> Result<u64> {
    let now = mongo.now()?;
    let database = mongo.connection.database().await?;
    let keys = mongo.collection(KEYS).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let find =
        keys.find(doc! { "check_at": { "$lte": date(now) } }).sort(doc! { "check_at": 1 }).limit(limit);
    let over: Vec<Document> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    if over.is_empty() {
        return Ok(0);
    }
    let jobs: Vec<&str> = over.iter().filter_map(|key| key.get_str("job").ok()).collect();
    let unfinished: Vec<&str> =
        State::ALL.into_iter().filter(|state| state.is_unfinished()).map(State::as_str).collect();
    let filter = doc! { "_id": { "$in": jobs }, "state": { "$in": unfinished } };
    let find =
        mongo.collection(JOBS).await?.find(filter).projection(doc! { "_id": 1 }).await.map_err(fault)?;
    let alive: Vec<Document> = find.try_collect().await.map_err(fault)?;
    let alive: Vec<&str> = alive.iter().filter_map(|job| job.get_str("_id").ok()).collect();
    // The key may have passed to another job in between: the record must still be the one that was read.
    let statements = over.iter().filter_map(|key| {
        let job = key.get_str("job").ok()?;
        let guard = doc! { "_id": key.get_str("_id").ok()?, "job": job };
        Some((alive.contains(&job), guard))
    });
    let (kept, gone): (Vec<_>, Vec<_>) = statements.partition(|(alive, _)| *alive);
    let later = doc! { "$set": { "check_at": date(now.plus_ms(CHECK_AGAIN_MS)) } };
    let updates: Vec<Document> =
        kept.into_iter().map(|(_, guard)| doc! { "q": guard, "u": later.clone() }).collect();
    if !updates.is_empty() {
        write(database, doc! { "update": KEYS, "updates": updates, "ordered": false }).await?;
    }
    let deletes: Vec<Document> = gone.into_iter().map(|(_, guard)| doc! { "q": guard, "limit": 1 }).collect();
    if deletes.is_empty() {
        return Ok(0);
    }
    write(database, doc! { "delete": KEYS, "deletes": deletes, "ordered": false }).await
}
