//! The dead by their errors.

use futures::TryStreamExt as _;
use mongodb::bson::{Document, doc};

use crate::job::error_group::{Death, Tally};
use crate::job::{Filter, Reach, Visible};
use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, readable};
use crate::store::mongo::jobs::search::plan;
use crate::store::search::Tallying;

/// How many documents one reply brings.
const READ_AT_ONCE: u32 = 2000;

/// Counts the dead of these queues by their errors. The second value is whether all were counted.
pub async fn tally_dead(mongo: &Mongo, within: &Reach) -> Result<(Tally, bool)> {
    let dead =
        plan::browse(&Filter { within: within.clone(), states: vec![Visible::Dead], ..Filter::default() });
    let jobs = mongo.collection(JOBS).await?;
    let of_errors = doc! { "queue": 1, "finished_at": 1, "origin.error": 1, "errors": { "$slice": -1 } };
    let mut find = jobs.find(dead.condition.clone()).projection(of_errors).batch_size(READ_AT_ONCE);
    if let Some(hint) = dead.hint() {
        find = find.hint(hint);
    }
    let mut cursor = find.await.map_err(fault)?;
    let (mut tallying, mut read) = (Tallying::begin(), 0);
    while let Some(document) = cursor.try_next().await.map_err(fault)? {
        for death in readable(std::slice::from_ref(&document), death) {
            if !tallying.add(death) {
                return Ok((tallying.end(), false));
            }
        }
        read += 1;
        if read % READ_AT_ONCE == 0 {
            tokio::task::yield_now().await; // others have their turns in between
        }
    }
    Ok((tallying.end(), true))
}

fn death(document: &Document) -> Result<Death> {
    let row = Row(document);
    let last = document.get_array("errors").ok().and_then(|errors| errors.last()?.as_document());
    let of_failure = last.and_then(|failure| failure.get_str("message").ok());
    let of_origin = || document.get_document("origin").ok()?.get_str("error").ok();
    Ok(Death {
        id: row.text("_id")?,
        queue: row.text("queue")?,
        at: row.time("finished_at").ok().flatten(),
        error: of_failure.or_else(of_origin).unwrap_or_default().to_owned(),
    })
}
