//! Why a job is not delivered: what its document does not say.

use mongodb::bson::doc;
use mongodb::options::Hint;

use crate::job::rate::Deliveries;
use crate::job::{Meta, State};
use crate::store::mongo::JOBS;
use crate::store::mongo::LIMITS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, deliveries_of, place_in_line};
use crate::store::{AHEAD_MAX, LineHead, Obstacles, Result};

/// Returns what may keep this job from being delivered.
pub async fn obstacles(mongo: &Mongo, job: &Meta) -> Result<Obstacles> {
    Ok(Obstacles { head: head(mongo, job).await?, deliveries: deliveries(mongo, job).await? })
}

async fn head(mongo: &Mongo, job: &Meta) -> Result<Option<LineHead>> {
    let (Some(group), Some(turn)) = (&job.group, job.turn) else { return Ok(None) };
    let place = |turn| place_in_line(&job.queue, group, turn);
    let before = doc! { "turn": { "$gte": place(0), "$lt": place(turn) } };
    let by_turn = Hint::Name("turn".to_owned());
    let jobs = mongo.collection(JOBS).await?;
    let first = jobs.find_one(before.clone()).sort(doc! { "turn": 1 }).hint(by_turn.clone());
    let Some(first) = first.projection(doc! { "state": 1 }).await.map_err(fault)? else { return Ok(None) };
    let ahead = jobs.count_documents(before).limit(AHEAD_MAX).hint(by_turn).await.map_err(fault)?;
    // One that cannot be read is dead.
    let state = first.get_str("state").ok().and_then(State::from_word).unwrap_or(State::Dead);
    Ok(Some(LineHead { id: Row(&first).text("_id")?, state, ahead }))
}

async fn deliveries(mongo: &Mongo, job: &Meta) -> Result<Deliveries> {
    let limits = mongo.collection(LIMITS).await?;
    let found = limits.find_one(doc! { "_id": job.queue.as_str() }).projection(doc! { "recent": 1 });
    let found = found.await.map_err(fault)?.unwrap_or_default();
    Ok(deliveries_of(&found))
}
