//! The revision of what every server remembers: the settings of queues and the API keys.

use mongodb::bson::doc;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout_at};

use crate::store::mongo::META;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::Row;
use crate::store::mongo::transaction::{Tx, TxError};
use crate::store::{Result, StoreError};

/// The revision that is reported where the stored one is not a number: all is then read each time.
pub const UNREADABLE: i64 = -1;

/// Returns the revision. What is read after it is at least as new.
pub async fn current(mongo: &Mongo) -> Result<i64> {
    let meta = mongo.collection(META).await?.find_one(doc! { "_id": "settings" }).await.map_err(fault)?;
    Ok(meta.map_or(Ok(0), |meta| Row(&meta).number("revision")).unwrap_or_else(|error| {
        tracing::error!(error = crate::store::chain(&error), "the revision of the settings cannot be read");
        UNREADABLE
    }))
}

/// Waits until no other change of this server is about to raise the revision: only those of other servers conflict.
pub async fn turn(mongo: &Mongo, end: Instant) -> Result<MutexGuard<'_, ()>> {
    let late = |_| StoreError::unavailable("other changes of settings or API keys took too long");
    timeout_at(end, mongo.revision_mutex.lock()).await.map_err(late)
}

/// Raises the revision, in the transaction of the change.
pub async fn raise(tx: &mut Tx<'_>) -> Result<(), TxError> {
    let counted = doc! { "$cond": [{ "$isNumber": "$revision" }, { "$toLong": "$revision" }, 0_i64] };
    let next = vec![doc! { "$set": { "revision": { "$add": [counted, 1_i64] } } }];
    let meta = tx.collection(META);
    meta.update_one(doc! { "_id": "settings" }, next).upsert(true).session(tx.session()).await?;
    Ok(())
}
