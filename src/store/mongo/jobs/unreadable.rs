//! Jobs that cannot be read, because another program wrote them: what can be read of them.

use mongodb::bson::{Document, doc};

use crate::job::transition::Salvaged;
use crate::job::{Content, Job, Meta};
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{
    Row, salvaged, salvaged_contents, to_job, to_job_without_contents,
};
use crate::store::{ListedJob, Result, StoreError, UnreadableJob, chain};

/// Returns a job as a list shows it, with its payload and its result or from a document that was read without.
pub fn listed(document: &Document, with_contents: bool) -> Result<ListedJob> {
    let read = if with_contents { to_job } else { to_job_without_contents };
    read(document).map(Ok).or_else(|error| {
        let id = Row(document).text("_id")?;
        tracing::error!(error = chain(&error), "a job cannot be read");
        let remains = salvaged(document).ok().map(|meta| {
            let Salvaged { payload, headers, result } = salvaged_contents(document);
            Box::new(Job { meta, payload: payload.unwrap_or_else(Content::null), headers, result })
        });
        let why = match error {
            StoreError::Internal(cause) | StoreError::Unreadable(cause) => cause.to_string(),
            other => chain(&other),
        };
        Ok(Err(UnreadableJob { id, why, remains }))
    })
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
