//! Reserves that carry an `Idempotency-Key`: which request is in flight, and what each has won.

use async_trait::async_trait;
use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};

use crate::job::{Claim, JobId, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::REQUESTS;
use crate::store::mongo::client::{DUPLICATE_KEY, code, fault};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::requests::Earlier;
use crate::store::{Opened, Request, Requests, Result, Store as _};

#[async_trait]
impl Requests for Mongo {
    async fn open_request(&self, request: &Request) -> Result<Opened> {
        self.connection.within(open(self, request)).await
    }

    async fn close_request(
        &self,
        request: &Request,
        won: Option<(&Claim, &[JobId])>,
        keep_until: Timestamp,
    ) -> Result<()> {
        self.connection.within(close(self, request, won, keep_until)).await
    }
}

fn record(request: &Request) -> Document {
    let digest = Binary { subtype: BinarySubtype::Generic, bytes: request.digest.to_vec() };
    let until = date(request.pending_until);
    doc! { "_id": &request.id, "digest": digest, "claim": request.claim.as_str(), "until": until }
}

/// Announces a request, or returns what is known of it.
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
        let earlier = earlier(&found)?;
        let claim = earlier.claim.clone();
        let opened = Opened::decide(request, Some(earlier), mongo.now()?);
        let replaces = matches!(opened, Opened::New | Opened::TakenOver { .. }) && claim != request.claim;
        if !replaces || replace(mongo, request, &claim).await? {
            return Ok(opened);
        }
    }
}

/// Reads the record of an earlier call. Its one moment is the end of the call, then that of the record.
fn earlier(found: &Document) -> Result<Earlier> {
    let row = Row(found);
    let until = row.time("until")?.unwrap_or_default();
    let digest = found.get_binary_generic("digest").ok().and_then(|digest| digest.as_slice().try_into().ok());
    let won = found.get_array("ids").ok();
    let won = won.map(|ids| ids.iter().filter_map(|id| id.as_str()?.parse().ok()).collect());
    Ok(Earlier {
        digest: digest.unwrap_or_default(),
        claim: Claim::from_stored(found.get_str("claim").map_err(|_| row.fault("claim"))?),
        pending_until: until,
        until: won.as_ref().map(|_: &Vec<JobId>| until),
        won,
    })
}

/// Puts this request in the place of the one with that claim; false on a conflict with another call.
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
