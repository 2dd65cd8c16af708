//! Jobs that cannot be read, because another program wrote them. Each concerns itself only: it is shown, it is dead where it
//! would be in the way, and it can be removed.

use std::collections::HashMap;

use mongodb::bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc, rawdoc};

use crate::job::transition::delivery::BURY;
use crate::job::{Meta, QueueName};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{fault, write_raw};
use crate::store::mongo::jobs::document::{Row, salvaged, to_job};
use crate::store::mongo::jobs::transitions;
use crate::store::mongo::stored::Stored;
use crate::store::{ListedJob, Result, chain};

/// Returns a job as a list shows it.
pub fn listed(document: &Document) -> Result<ListedJob> {
    to_job(document).map(Ok).or_else(|error| {
        let id = Row(document).text("_id")?;
        tracing::error!(error = chain(&error), "a job cannot be read");
        Ok(Err((id, chain(&error))))
    })
}

/// Makes these jobs dead, so that they are not found where jobs are looked for. An operator finds them among the dead. They
/// keep their places in the lines of their groups.
pub async fn bury(mongo: &Mongo, spoiled: &[&Stored]) -> Result<()> {
    let ids: Vec<&Bson> = spoiled.iter().filter_map(|document| document.get("_id")).collect();
    tracing::error!(?ids, "jobs that cannot be read are dead now");
    let database = mongo.connection.database().await?;
    for bury in BURY {
        let mut by_queue: HashMap<Option<QueueName>, Vec<RawDocumentBuf>> = HashMap::new();
        for document in spoiled {
            // MongoDB may know a state that cannot be read here, and compares it.
            if document.get_str("state").map_or(true, |state| state == bury.from.as_str()) {
                let queue = Row(document).text("queue").ok();
                by_queue.entry(queue).or_default().push(transitions::bury(bury, document)?);
            }
        }
        for (queue, statements) in by_queue {
            let sent = mongo.counters.sending(&queue);
            let updates: RawArrayBuf = statements.into_iter().collect();
            let buried = write_raw(database, rawdoc! { "update": JOBS, "updates": updates }).await?;
            queue.iter().for_each(|queue| mongo.counters.moved(queue, bury.from, bury.to, buried));
            sent.answered();
        }
    }
    Ok(())
}

/// Returns what can be read of the metadata of a job that is to be removed, with a `rev` to go by.
pub async fn salvage(mongo: &Mongo, document: &Document) -> Result<Option<Meta>> {
    let Ok(meta) = salvaged(document) else { return Ok(None) };
    if Row(document).number::<i64>("rev").is_ok() {
        return Ok(Some(meta));
    }
    let rev: i64 = rand::random();
    let jobs = mongo.collection(JOBS).await?;
    let update = jobs.update_one(doc! { "_id": meta.id.as_str() }, doc! { "$set": { "rev": rev } });
    update.await.map_err(fault)?;
    Ok(Some(Meta { rev, ..meta }))
}
