//! Who works on a queue, and what is tried again.

use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::Hint;

use crate::job::QueueName;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::{count, fault};
use crate::store::mongo::jobs::document::{Row, date};
use crate::store::mongo::stored::Stored;
use crate::store::{LOOKED_AT, Load, RESERVED_AGES_MS, Result, Store as _};

/// Puts the first of the jobs that the filter means together.
async fn looked_at(mongo: &Mongo, filter: Document, index: &str, then: Vec<Document>) -> Result<Stored> {
    let first = [doc! { "$match": filter }, doc! { "$limit": LOOKED_AT.cast_signed() }];
    let pipeline: Vec<Document> = first.into_iter().chain(then).collect();
    let jobs = mongo.collection(JOBS).await?;
    let find = jobs.aggregate(pipeline).with_type::<Stored>().hint(Hint::Name(index.to_owned()));
    Ok(find.await.map_err(fault)?.try_next().await.map_err(fault)?.unwrap_or_default())
}

/// Returns who works on a queue, and what is tried again.
pub async fn load(mongo: &Mongo, queue: &QueueName) -> Result<Load> {
    let now = mongo.now()?;
    let is = |state: &str| doc! { "queue": queue.as_str(), "state": state };
    let with = |mut filter: Document, bound: Document| {
        filter.insert("run_at", bound);
        filter
    };
    let retried = doc! { "$gt": ["$attempts", 0] };
    // What another program spoiled may be no date.
    let run_at = |is_meant: Document| {
        let is_date = doc! { "$eq": [{ "$type": "$run_at" }, "date"] };
        doc! { "$min": { "$cond": [{ "$and": [is_meant, is_date] }, "$run_at", Bson::Null] } }
    };
    let oldest = doc! { "$group": {
        "_id": Bson::Null, "all": { "$sum": 1 },
        "first": run_at(doc! { "$not": [&retried] }), "retried": run_at(retried.clone()),
    } };
    let backoff = doc! { "$group": {
        "_id": Bson::Null, "all": { "$sum": 1 }, "retried": { "$sum": { "$cond": [retried, 1, 0] } },
    } };
    let younger =
        |ms: u64| doc! { "$sum": { "$cond": [{ "$gt": ["$started_at", date(now.minus_ms(ms))] }, 1, 0] } };
    let [minute, ten, hour] = RESERVED_AGES_MS.map(younger);
    let by_worker = doc! { "$group": {
        "_id": "$worker", "all": { "$sum": 1 }, "minute": minute, "ten": ten, "hour": hour,
    } };
    let is_named = doc! { "$eq": [{ "$type": "$_id" }, "string"] };
    let held = doc! { "$group": {
        "_id": Bson::Null, "all": { "$sum": "$all" }, "workers": { "$sum": { "$cond": [is_named, 1, 0] } },
        "minute": { "$sum": "$minute" }, "ten": { "$sum": "$ten" }, "hour": { "$sum": "$hour" },
    } };
    let (due, ahead, held) = tokio::try_join!(
        looked_at(mongo, with(is("ready"), doc! { "$lte": date(now) }), "head", vec![oldest]),
        looked_at(mongo, with(is("ready"), doc! { "$gt": date(now) }), "head", vec![backoff]),
        looked_at(mongo, is("reserved"), "browse", vec![by_worker, held]),
    )?;
    let [all, minute, ten, hour] = ["all", "minute", "ten", "hour"].map(|field| count(&held, field));
    let seen = [count(&due, "all"), count(&ahead, "all"), all];
    Ok(Load {
        backoff: count(&ahead, "retried"),
        oldest_first: Row(&due).time("first").ok().flatten(),
        oldest_retried: Row(&due).time("retried").ok().flatten(),
        reserved: [minute, ten - minute, hour - ten, all - hour],
        workers: count(&held, "workers"),
        is_partial: seen.iter().any(|seen| *seen >= LOOKED_AT),
    })
}
