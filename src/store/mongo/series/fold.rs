//! Making longer spans of what is old: in the document itself, which its server does not change any more. Every server does it for all;
//! what another one was quicker with is left alone.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use mongodb::bson::{Document, doc};

use crate::job::{Tally, Timestamp};
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{fault, parts, write};
use crate::store::mongo::jobs::document::date;
use crate::store::mongo::series::SERIES;
use crate::store::mongo::series::fields::{Hour, binary, name};
use crate::store::mongo::stored::Stored;
use crate::store::series::HOUR_MS;
use crate::store::{Depth, Result, Span, Store as _};

/// A document has about so many records.
const IN_DOCUMENT: usize = 10;

/// Folds documents whose time has come. Returns how many.
pub async fn fold(mongo: &Mongo, limit: usize) -> Result<u64> {
    let limit = i64::try_from(limit / IN_DOCUMENT).unwrap_or(i64::MAX).max(1);
    let series = mongo.collection(SERIES).await?;
    let due = doc! { "fold": { "$lte": date(mongo.now()?) } };
    let find = series.find(due).sort(doc! { "fold": 1 }).limit(limit);
    let documents: Vec<Stored> = find.await.map_err(fault)?.try_collect().await.map_err(fault)?;
    let statements: Vec<Document> = documents.iter().filter_map(folded).collect();
    let database = mongo.connection.database().await?;
    for part in parts(statements)? {
        write(database, doc! { "update": SERIES, "updates": part, "ordered": false }).await?;
    }
    Ok(documents.len() as u64)
}

/// Returns the update that folds a document: to minutes, and the next time to ten of them.
fn folded(document: &Stored) -> Option<Document> {
    let guard = doc! { "_id": document.get("_id")?.clone(), "fold": document.get("fold")?.clone() };
    let Some(hour) = Hour::read(document) else {
        // Another program wrote it. It goes when it is too old, where it says when.
        return Some(doc! { "q": guard, "u": { "$unset": { "fold": "" } } });
    };
    let end = Timestamp::from_millis((hour.hour + 1) * HOUR_MS);
    let again = end.plus_ms(Span::Minute.kept_ms().unsigned_abs());
    let is_first = document.get_datetime("fold").is_ok_and(|fold| *fold < date(again));
    let (span, longer) = if is_first { (Span::Step, Span::Minute) } else { (Span::Minute, Span::Coarse) };
    let number = |at: Timestamp, span: Span| at.millis() % HOUR_MS / span.ms();
    let mut tallies: BTreeMap<i64, Tally> = BTreeMap::new();
    for (at, tally) in hour.tallies(span).into_iter().chain(hour.tallies(longer)) {
        tallies.entry(number(at, longer)).or_default().add(&tally);
    }
    // The last of each longer span stays in its place, so that it is known what it is older than.
    let mut depths: BTreeMap<i64, (Timestamp, Depth)> = BTreeMap::new();
    for (at, depth) in hour.depths() {
        let last = depths.entry(number(at, longer)).or_insert((at, depth));
        if last.0 <= at {
            *last = (at, depth);
        }
    }
    let tallies: Document =
        tallies.into_iter().map(|(n, tally)| (n.to_string(), binary(tally.to_bytes()))).collect();
    let depths: Document = depths
        .into_values()
        .map(|(at, depth)| (number(at, Span::Step).to_string(), binary(depth.to_bytes())))
        .collect();
    let mut set = doc! { name(longer): tallies };
    if !depths.is_empty() {
        set.insert("d", depths); // else the field stays absent
    }
    let mut unset = doc! { name(span): "" };
    if is_first {
        set.insert("fold", date(again));
    } else {
        unset.insert("fold", "");
    }
    Some(doc! { "q": guard, "u": { "$set": set, "$unset": unset } })
}
