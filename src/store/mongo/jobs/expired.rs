//! What has run out: leases that were not settled in time, and jobs past their `expires_at`.

use mongodb::bson::doc;

use crate::job::Timestamp;
use crate::job::transition::{Operation, deadline};
use crate::store::mongo::Mongo;
use crate::store::mongo::jobs::bury;
use crate::store::mongo::jobs::document::{Row, date, to_meta, without_contents};
use crate::store::mongo::jobs::in_the_way;
use crate::store::mongo::jobs::query;
use crate::store::mongo::stored::Stored;
use crate::store::{Change, LOOK_AHEAD_MS, Overdue, Result, Store as _};

/// When to go on where all that was read could not be.
const SPOILED_REST_MS: u64 = 100;

/// What the reaper has to do.
pub async fn expired(mongo: &Mongo, limit: usize) -> Result<Overdue> {
    let (floor, now) = (mongo.deadlines.lower_bound(), mongo.now()?);
    // Those that stay do not hide what is behind them.
    let most = limit + mongo.left_out.count();
    let mut lapsed = doc! { "state": "reserved", "$expr": { "$lte": ["$reserved_until", "$$NOW"] } };
    // From the beginning also those without a deadline: what is missing sorts before every date.
    if floor > Timestamp::default() {
        lapsed.insert("reserved_until", doc! { "$gte": date(floor) });
    }
    let lapsed = query::all(mongo, lapsed, doc! { "reserved_until": 1 }, without_contents(), most).await?;
    let expired = doc! {
        "expires_at": { "$exists": true, "$gte": date(floor) },
        "state": { "$in": ["ready", "blocked"] },
        "$expr": { "$lte": ["$expires_at", "$$NOW"] },
    };
    let expired = query::all(mongo, expired, doc! { "expires_at": 1 }, without_contents(), most).await?;
    let found = [lapsed, expired].concat();
    let (mut metas, mut spoiled) = (Vec::with_capacity(found.len()), Vec::new());
    for document in &found {
        match to_meta(document) {
            Ok(meta) => metas.push(meta),
            Err(_) => spoiled.push(document),
        }
    }
    // They would be the first ones for ever.
    let (counted, others): (Vec<&Stored>, Vec<&Stored>) =
        spoiled.into_iter().partition(|document| bury::finish(document, now).is_some());
    let others: Vec<&Stored> = others.into_iter().filter(|other| !in_the_way::stays(mongo, other)).collect();
    let comes_further = in_the_way::clear_overdue(mongo, &others).await;
    let mut changes: Vec<(Timestamp, Change)> = Vec::new();
    for document in counted {
        let id = Row(document).text("_id")?;
        changes.push((Timestamp::default(), Change { id, operation: Operation::Bury }));
    }
    for meta in metas {
        let deadline = deadline(meta.state, meta.claim.as_ref(), meta.reserved_until, meta.expires_at);
        changes.extend(deadline.map(|(at, operation)| (at, Change { id: meta.id, operation })));
    }
    if changes.is_empty() && comes_further {
        // There may be more behind them.
        return Ok(Overdue { changes: Vec::new(), next_in_ms: Some(SPOILED_REST_MS) });
    }
    if changes.is_empty() {
        mongo.deadlines.set(floor, now);
        return Ok(Overdue { changes: Vec::new(), next_in_ms: next_in_ms(mongo, now).await? });
    }
    Ok(Overdue::first(changes, limit))
}

/// Returns how long it is until the first deadline after `since`, where nothing had run out.
async fn next_in_ms(mongo: &Mongo, since: Timestamp) -> Result<Option<u64>> {
    // Not after the store's own time: what has run out since nothing had is next. No further ahead than it has to: the deadlines of jobs
    // that have left lie there as well.
    let soon = doc! { "$add": ["$$NOW", LOOK_AHEAD_MS.cast_signed()] };
    let ahead = |field: &str| doc! { "$and": [{ "$gt": [field, date(since)] }, { "$lte": [field, &soon] }] };
    let lease = doc! { "state": "reserved", "$expr": ahead("$reserved_until") };
    let expiry = doc! { "expires_at": { "$exists": true }, "$expr": ahead("$expires_at") };
    let mut next: Option<Timestamp> = None;
    for (filter, field) in [(lease, "reserved_until"), (expiry, "expires_at")] {
        let first = query::all(mongo, filter, doc! { field: 1 }, doc! { field: 1 }, 1).await?;
        let at = first.first().and_then(|document| Row(document).time(field).ok().flatten());
        next = next.into_iter().chain(at).min();
    }
    let now = mongo.now()?;
    // A millisecond more, so that the time has surely come when the reaper runs again.
    Ok(next.map(|at| at.ms_since(now) + 1))
}
