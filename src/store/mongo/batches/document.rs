//! Batches and the results of their jobs as BSON.

use mongodb::bson::{Document, doc};

use crate::job::batch::Endings;
use crate::job::{Batch, BatchId, BatchResult, Ending, JobId};
use crate::store::mongo::jobs::document::{Row, date, put_json};
use crate::store::{Result, StoreError};

/// Returns a count as MongoDB keeps it.
pub fn number(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns the document of a batch.
pub fn from_batch(batch: &Batch) -> Result<Document> {
    let Endings { done, dead, cancelled } = batch.endings;
    let mut document = doc! {
        "_id": batch.id.as_str(), "sealed": batch.sealed, "pending": number(batch.pending),
        "done": number(done), "dead": number(dead), "cancelled": number(cancelled),
        "created_at": date(batch.created_at), "callback": batch.callback.as_str(),
    };
    for (name, at) in [("finished_at", batch.finished_at), ("purge_at", batch.purge_at)] {
        document.extend(at.map(|at| (name.to_owned(), date(at).into())));
    }
    document.extend(batch.owner.as_ref().map(|owner| ("owner".to_owned(), owner.as_str().into())));
    // As text: the payload in it must come back as it is.
    let text =
        batch.on_finished.as_ref().map(serde_json::to_string).transpose().map_err(StoreError::internal)?;
    document.extend(text.map(|text| ("on_finished".to_owned(), text.into())));
    Ok(document)
}

/// Reads a batch.
pub fn to_batch(document: &Document) -> Result<Batch> {
    let row = Row(document);
    let count = |field: &str| row.number::<i64>(field).map(|count| u64::try_from(count).unwrap_or(0));
    Ok(Batch {
        id: row.text("_id")?,
        sealed: document.get_bool("sealed").map_err(|_| row.fault("sealed"))?,
        pending: count("pending")?,
        endings: Endings { done: count("done")?, dead: count("dead")?, cancelled: count("cancelled")? },
        created_at: row.time("created_at")?.ok_or_else(|| row.fault("created_at"))?,
        finished_at: row.time("finished_at")?,
        purge_at: row.time("purge_at")?,
        callback: row.text("callback")?,
        on_finished: row.some("on_finished", |row, field| {
            let text = document.get_str(field).ok();
            text.and_then(|text| serde_json::from_str(text).ok()).ok_or_else(|| row.fault(field))
        })?,
        owner: row.some("owner", Row::text)?,
    })
}

/// Tokens have no slash, so that no two pairs of batch and job share an id.
pub fn result_id(batch: &BatchId, job: &JobId) -> String {
    format!("{batch}/{job}")
}

/// Returns the document of a result.
pub fn from_result(batch: &BatchId, result: &BatchResult) -> Document {
    let mut document = doc! {
        "_id": result_id(batch, &result.id), "batch": batch.as_str(), "job": result.id.as_str(),
        "queue": result.queue.as_str(), "state": result.state.as_str(), "finished_at": date(result.finished_at),
    };
    if let Some(result) = &result.result {
        put_json(&mut document, "result", result);
    }
    document
}

/// Reads a result.
pub fn to_result(document: &Document) -> Result<BatchResult> {
    let row = Row(document);
    Ok(BatchResult {
        id: row.text("job")?,
        queue: row.text("queue")?,
        state: row.text::<Ending>("state")?,
        result: row.json("result")?,
        finished_at: row.time("finished_at")?.ok_or_else(|| row.fault("finished_at"))?,
    })
}
