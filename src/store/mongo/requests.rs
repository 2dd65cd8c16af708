//! Reserves that carry an `Idempotency-Key`: which request is in flight, and what each has won.

use async_trait::async_trait;
use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::job::{Claim, JobId, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::client::{barrier, fault, is_duplicate};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::stored::Stored;
use crate::store::requests::Earlier;
use crate::store::{Opened, Request, Requests, Result, Store as _};

#[async_trait]
impl Requests for Mongo {
    async fn open_request(&self, request: &Request) -> Result<Opened> {
        self.connection.within(open(self, request)).await
    }

    async fn close_request(&self, request: &Request, won: &[JobId], keep_until: Timestamp) -> Result<bool> {
        self.connection.within(close(self, request, won, keep_until)).await
    }

    async fn keep_alive(&self, runner: &str, until: Timestamp) -> Result<()> {
        self.connection.within(keep_alive(self, runner, until)).await
    }

    async fn forget_request(&self, request: &Request) -> Result<()> {
        self.connection.within(forget(self, request)).await
    }

    async fn knows_request(&self, id: &str) -> Result<bool> {
        let known = async {
            let requests = self.collection(REQUESTS).await?;
            Ok(requests
                .find_one(doc! { "_id": id })
                .projection(doc! { "_id": 1 })
                .await
                .map_err(fault)?
                .is_some())
        };
        self.connection.within(known).await
    }
}

fn record(request: &Request) -> Document {
    let digest = Binary { subtype: BinarySubtype::Generic, bytes: request.digest.to_vec() };
    doc! {
        "_id": &request.id,
        "digest": digest,
        "claim": request.claim.as_str(),
        "runner": &request.runner,
        "alive_until": date(request.alive_until),
        "pending_until": date(request.pending_until),
        "until": date(request.keep_until),
    }
}

/// The record that says until when a server is alive. It stands among those of the requests, whose ids have no slash
/// there, so that MongoDB removes it like theirs.
fn runner_id(runner: &str) -> String {
    format!("runner/{runner}")
}

async fn keep_alive(mongo: &Mongo, runner: &str, until: Timestamp) -> Result<()> {
    let requests = mongo.collection(REQUESTS).await?;
    let update = doc! { "$set": { "until": date(until) } };
    requests.update_one(doc! { "_id": runner_id(runner) }, update).upsert(true).await.map_err(fault)?;
    Ok(())
}

/// Announces a request, or returns what is known of it.
async fn open(mongo: &Mongo, request: &Request) -> Result<Opened> {
    let requests = mongo.collection(REQUESTS).await?;
    loop {
        let since = mongo.connection.term();
        match requests.insert_one(Stored::from(record(request))).await {
            Ok(_) => return Ok(Opened::New),
            Err(error) if is_duplicate(&error) => {}
            Err(error) => return Err(fault(error)),
        }
        // MongoDB may remove the record in between: then it is inserted after all.
        let found = requests.find_one(doc! { "_id": &request.id }).await.map_err(fault)?;
        let Some(found) = found else { continue };
        let earlier = earlier(mongo, request, &found).await?;
        let claim = earlier.claim.clone();
        let as_read = if earlier.won.is_some() { run_by(request, &claim) } else { pending(request, &claim) };
        let opened = Opened::decide(request, Some(earlier), mongo.now()?);
        let is_certain = match opened {
            Opened::New if claim == request.claim => true, // this very insert, repeated by the driver
            Opened::New | Opened::TakenOver { .. } => replace(mongo, as_read, request).await?,
            Opened::Finished { .. } => {
                // A failover must not take back what a repeat gets.
                barrier(&mongo.connection, since).await?;
                true
            }
            Opened::Pending | Opened::Different => true,
        };
        if is_certain {
            return Ok(opened);
        }
    }
}

/// Reads the record of an earlier call. While it is pending, `until` only says when MongoDB may remove it.
async fn earlier(mongo: &Mongo, request: &Request, found: &Document) -> Result<Earlier> {
    let row = Row(found);
    let won = won(found)?;
    let until = row.time("until")?;
    Ok(Earlier {
        digest: digest(found)?,
        claim: Claim::from_stored(found.get_str("claim").map_err(|_| row.fault("claim"))?),
        pending_until: if won.is_some() {
            Timestamp::default()
        } else {
            runs_until(mongo, request, found).await?
        },
        until: until.filter(|_| won.is_some()),
        won,
    })
}

/// Returns until when a pending request counts as running: as long as its server is alive, and not for longer than it
/// may take.
async fn runs_until(mongo: &Mongo, request: &Request, found: &Document) -> Result<Timestamp> {
    let row = Row(found);
    let (Some(last), Some(alive)) = (row.time("pending_until")?, row.time("alive_until")?) else {
        return Ok(row.time("until")?.unwrap_or_default()); // an older server runs it
    };
    let runner: String = row.text("runner")?;
    if runner == request.runner {
        return Ok(last); // this very server, however late its word of being alive is
    }
    if alive > mongo.now()? {
        return Ok(alive.min(last));
    }
    let requests = mongo.collection(REQUESTS).await?;
    let server = requests.find_one(doc! { "_id": runner_id(&runner) }).await.map_err(fault)?;
    let server = server.as_ref().map(|server| Row(server).time("until")).transpose()?.flatten();
    Ok(server.map_or(alive, |server| server.max(alive)).min(last))
}

fn won(found: &Document) -> Result<Option<Vec<JobId>>> {
    let Some(ids) = found.get("ids") else { return Ok(None) };
    // What is no list must not look like a request that is pending: it could be taken over for ever.
    let ids = ids.as_array().ok_or_else(|| Row(found).fault("ids"))?;
    Ok(Some(ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect()))
}

fn digest(found: &Document) -> Result<[u8; 32]> {
    let bytes = found.get_binary_generic("digest").ok();
    bytes.and_then(|bytes| bytes.as_slice().try_into().ok()).ok_or_else(|| Row(found).fault("digest"))
}

/// Replaces the record by that of this request; false if it has changed since it was read, by another repeat or by
/// its runner, which has closed it.
async fn replace(mongo: &Mongo, as_read: Document, request: &Request) -> Result<bool> {
    let requests = mongo.collection(REQUESTS).await?;
    Ok(requests.replace_one(as_read, Stored::from(record(request))).await.map_err(fault)?.matched_count == 1)
}

/// Finds the request where this claim runs it.
fn run_by(request: &Request, claim: &Claim) -> Document {
    doc! { "_id": &request.id, "claim": claim.as_str() }
}

/// The same as long as it is not closed.
fn pending(request: &Request, claim: &Claim) -> Document {
    let mut filter = run_by(request, claim);
    filter.insert("ids", doc! { "$exists": false });
    filter
}

async fn close(mongo: &Mongo, request: &Request, won: &[JobId], keep_until: Timestamp) -> Result<bool> {
    let requests = mongo.collection(REQUESTS).await?;
    let ids: Vec<&str> = won.iter().map(JobId::as_str).collect();
    let update = doc! { "$set": { "ids": ids, "until": date(keep_until) } };
    let closed = requests.update_one(run_by(request, &request.claim), update).await.map_err(fault)?;
    Ok(closed.matched_count == 1)
}

async fn forget(mongo: &Mongo, request: &Request) -> Result<()> {
    let requests = mongo.collection(REQUESTS).await?;
    requests.delete_one(pending(request, &request.claim)).await.map_err(fault)?;
    Ok(())
}
