//! Commits whose next jobs are claimed while they are carried out: which those are, and what proves them afterwards.
//!
//! Both commands wait for the journal of a majority, so that one after the other takes twice as long. Sent at once, either may be
//! carried out without the other. The claim therefore proves nothing of the commit, but says until when the absence of the job does: while
//! its reservation lasts it is ended by its holder only, or by what leaves a receipt. An extend by which the holder shortens its own
//! reservation, at another server, is not considered.

use mongodb::bson::doc;

use crate::job::{Claim, JobId, PROOF_MS, QueueName, Timestamp, proven_by_absence_until};
use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{barrier, fault};
use crate::store::mongo::jobs::receipts;

/// See [`Store::ends_alone`](crate::store::Store::ends_alone).
pub fn ends_alone(mongo: &Mongo, id: &JobId, claim: &Claim) -> Option<(QueueName, Timestamp)> {
    let latest = mongo.moment().ok()?.at_most;
    mongo.delivered.of(id, claim, |meta| {
        let until = proven_by_absence_until(meta)?;
        let lasts = until >= latest.plus_ms(PROOF_MS);
        let is_alone = meta.route.is_empty()
            && meta.batch.is_none()
            && meta.group.is_none()
            && meta.semaphores.is_empty()
            && !meta.cancel_requested;
        (lasts && is_alone).then(|| (meta.queue.clone(), until))
    })
}

/// See [`Jobs::prove_commit`](crate::store::Jobs::prove_commit).
pub async fn prove_commit(mongo: &Mongo, id: &JobId, claim: &Claim, until: Timestamp) -> Result<bool> {
    let since = mongo.connection.term();
    let jobs = mongo.collection(JOBS).await?;
    let job = jobs.find_one(doc! { "_id": id.as_str() }).projection(doc! { "_id": 1 });
    if job.await.map_err(fault)?.is_some() || receipts::find(mongo, id, claim).await?.is_some() {
        return Ok(false);
    }
    barrier(&mongo.connection, since).await?;
    // Asked after the reads: what they found was so before this moment, whatever the clocks have done since it was asked last.
    mongo.hello().await?;
    let latest = mongo.moment()?.at_most;
    Ok(latest < until)
}
