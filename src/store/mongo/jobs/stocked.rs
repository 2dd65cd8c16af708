//! Which queues have something to deliver: one query for all waiters of a server.

use futures::TryStreamExt as _;
use mongodb::bson::doc;
use mongodb::options::Hint;

use crate::job::QueueName;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, date, readable};
use crate::store::mongo::stored::Stored;
use crate::store::{Result, Store as _};

/// How many queues one command asks for.
const QUEUES_PER_COMMAND: usize = 1000;

/// Returns those of these queues that have a ready job that is due.
///
/// A scan of the distinct names in the index `head`: a seek or two for each queue, and for each priority whose
/// first job is scheduled. For that, the time must be a plain value: `$$NOW` is only compared after the fetch
/// of each job. The estimate of the store's clock lags behind it by little; the task `due`
/// wakes waiters for what comes due in between.
pub async fn stocked(mongo: &Mongo, queues: &[QueueName]) -> Result<Vec<QueueName>> {
    let now = date(mongo.now()?);
    let jobs = mongo.collection(JOBS).await?;
    let mut stocked: Vec<QueueName> = Vec::new();
    for part in queues.chunks(QUEUES_PER_COMMAND) {
        let names: Vec<&str> = part.iter().map(QueueName::as_str).collect();
        let due = doc! { "queue": { "$in": names }, "state": "ready", "run_at": { "$lte": now } };
        let pipeline = [doc! { "$match": due }, doc! { "$group": { "_id": "$queue" } }];
        let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name("head".to_owned()));
        let rows: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
        stocked.extend(readable(&rows, |row| Row(row).text("_id")));
    }
    Ok(stocked)
}
