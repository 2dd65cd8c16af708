//! Jobs that other programs wrote so long that nothing fits in any more: MongoDB refuses to reserve them.

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, doc};

use crate::job::{Job, Rules};
use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::without_contents;
use crate::store::mongo::jobs::in_the_way;
use crate::store::mongo::stored::Stored;

/// How long a document of MongoDB may be.
const DOCUMENT_BYTES: i32 = 16 << 20;
/// More than a delivery adds.
const DELIVERY_BYTES: i32 = 1 << 12;

/// Makes those of these jobs of a queue dead that are too long to be delivered: they would be the first for ever. Where that fails they are
/// left out for a while. Returns whether there are some.
pub async fn bury(mongo: &Mongo, jobs: &[Job], rules: &Rules) -> Result<bool> {
    let Some(queue) = jobs.first().map(|job| &job.meta.queue) else { return Ok(false) };
    let ids: Vec<&str> = jobs.iter().map(|job| job.meta.id.as_str()).collect();
    let is_long = doc! { "$gt": [{ "$bsonSize": "$$ROOT" }, DOCUMENT_BYTES - DELIVERY_BYTES] };
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.find(doc! { "_id": { "$in": ids }, "$expr": is_long }).projection(without_contents());
    let found: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    if found.is_empty() {
        return Ok(false);
    }
    let ids: Vec<&Bson> = found.iter().filter_map(|document| document.get("_id")).collect();
    tracing::error!(?ids, "jobs are too long to be delivered");
    in_the_way::clear(mongo, queue, &found, in_the_way::end(mongo), rules).await;
    Ok(true)
}
