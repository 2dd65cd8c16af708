//! Batches and the results of their jobs as BSON.

use mongodb::bson::{Document, doc};

use crate::job::batch::Endings;
use crate::job::{Batch, BatchId, BatchResult, Ending, JobId, OnFinished};
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
    if let Some(on_finished) = &batch.on_finished {
        put_callback(&mut document, on_finished)?;
    }
    Ok(document)
}

/// Writes the callback as text: the payload in it must come back as it is. Headers that are no strings stand apart: an older server
/// could not read a callback that has them, and would end the batch without it.
fn put_callback(document: &mut Document, on_finished: &OnFinished) -> Result<()> {
    let mut known = on_finished.clone();
    known.headers.retain(|_, value| value.as_str().starts_with('"'));
    let text = |value: serde_json::Result<String>| value.map_err(StoreError::internal);
    if known.headers.len() < on_finished.headers.len() {
        document.insert("on_finished_headers", text(serde_json::to_string(&on_finished.headers))?);
    }
    document.insert("on_finished", text(serde_json::to_string(&known))?);
    Ok(())
}

fn callback(row: &Row<'_>, field: &str) -> Result<OnFinished> {
    let text = |field: &str| row.0.get_str(field).ok();
    let parsed = text(field).and_then(|text| serde_json::from_str(text).ok());
    let mut on_finished: OnFinished = parsed.ok_or_else(|| row.fault(field))?;
    if let Some(headers) = text("on_finished_headers") {
        let headers = serde_json::from_str(headers).map_err(|_| row.fault("on_finished_headers"))?;
        on_finished.headers = headers;
    }
    Ok(on_finished)
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
        on_finished: row.some("on_finished", callback)?,
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
