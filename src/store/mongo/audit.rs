//! What operators did: documents of the collection `audit`, each with its row as a JSON text beside what it is found by.

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Document, doc};

use crate::job::{JobId, Timestamp};
use crate::store::audit::{KEPT_MS, ROWS_MAX};
use crate::store::mongo::AUDIT;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{fault, write};
use crate::store::mongo::stored::Stored;
use crate::store::{Audit, AuditFilter, AuditRow, Result, Store as _, StoreError};

#[async_trait]
impl Audit for Mongo {
    async fn audit(
        &self,
        filter: &AuditFilter,
        before: Option<&JobId>,
        limit: usize,
    ) -> Result<Vec<AuditRow>> {
        self.connection.within(find(self, filter, before, limit)).await
    }
}

/// Returns what is stored of a row.
pub fn document(row: &AuditRow) -> Result<Document> {
    let body = serde_json::to_string(row).map_err(StoreError::internal)?;
    let mut document = doc! { "_id": row.id.as_str(), "by": &row.by, "what": &row.what, "body": body };
    document.extend(row.queue.as_ref().map(|queue| ("queue".to_owned(), queue.as_str().into())));
    Ok(document)
}

/// The command that writes a row. A repeat writes the same again.
pub fn writing(row: &AuditRow) -> Result<Document> {
    let statement = doc! { "q": { "_id": row.id.as_str() }, "u": document(row)?, "upsert": true };
    Ok(doc! { "update": AUDIT, "updates": [statement] })
}

async fn find(
    mongo: &Mongo,
    filter: &AuditFilter,
    before: Option<&JobId>,
    limit: usize,
) -> Result<Vec<AuditRow>> {
    let (first, end) = filter.ids(before);
    let (mut ids, mut condition) = (Document::new(), Document::new());
    ids.extend(first.map(|id| ("$gte".to_owned(), id.as_str().into())));
    ids.extend(end.map(|id| ("$lt".to_owned(), id.as_str().into())));
    if !ids.is_empty() {
        condition.insert("_id", ids);
    }
    condition.extend(filter.by.as_ref().map(|by| ("by".to_owned(), by.as_str().into())));
    condition.extend(filter.what.as_ref().map(|what| ("what".to_owned(), what.as_str().into())));
    condition.extend(filter.queue.as_ref().map(|queue| ("queue".to_owned(), queue.as_str().into())));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = mongo.collection(AUDIT).await?;
    let cursor = rows.find(condition).sort(doc! { "_id": -1 }).limit(limit).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    Ok(documents.iter().filter_map(read).collect())
}

/// Reads a row.
pub fn parse(document: &Document) -> Result<AuditRow> {
    let body = document.get_str("body").map_err(StoreError::internal)?;
    serde_json::from_str(body).map_err(StoreError::internal)
}

/// Returns a row; nothing where it cannot be read.
pub fn read(document: &Stored) -> Option<AuditRow> {
    let row = parse(document);
    row.inspect_err(|error| tracing::error!(%error, "a row of the audit cannot be read")).ok()
}

/// Deletes rows past their time, and the oldest of those that are too many.
pub async fn prune(mongo: &Mongo, limit: usize) -> Result<u64> {
    if limit == 0 {
        return Ok(0);
    }
    let first_kept =
        JobId::first_of(Timestamp::from_millis(mongo.now()?.millis().saturating_sub_unsigned(KEPT_MS)));
    let rows = mongo.collection(AUDIT).await?;
    let old = doc! { "_id": { "$lt": first_kept.as_str() } };
    let there = rows.estimated_document_count().await.map_err(fault)?;
    let surplus = there.saturating_sub(ROWS_MAX as u64).min(limit as u64);
    let find = match surplus {
        0 => rows.find(old).limit(i64::try_from(limit).unwrap_or(i64::MAX)),
        surplus => rows.find(Document::new()).limit(i64::try_from(surplus).unwrap_or(i64::MAX)),
    };
    let find = find.sort(doc! { "_id": 1 }).projection(doc! { "_id": 1 });
    let gone: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let ids: Vec<&str> = gone.iter().filter_map(|row| row.get_str("_id").ok()).collect();
    if ids.is_empty() {
        return Ok(0);
    }
    let statement = doc! { "q": { "_id": { "$in": ids } }, "limit": 0 };
    write(mongo.connection.database().await?, doc! { "delete": AUDIT, "deletes": [statement] }).await
}
