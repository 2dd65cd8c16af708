//! The lines of groups, as lists show them.

use futures::{StreamExt as _, TryStreamExt as _};
use mongodb::bson::{Document, doc};
use mongodb::options::Hint;

use crate::job::group::Line;
use crate::job::{QueuePattern, Reach, State};
use crate::store::mongo::GROUPS;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, place_in_line, readable};
use crate::store::mongo::stored::Stored;
use crate::store::{AHEAD_MAX, GroupLine, Result};

/// How many lines are read at once.
const AT_ONCE: usize = 8;

/// Returns the lines of these queues that have jobs.
pub async fn groups(
    mongo: &Mongo,
    within: &Reach,
    after: Option<&Line>,
    limit: usize,
) -> Result<Vec<GroupLine>> {
    let mut behind = after.map(Line::to_string).unwrap_or_default();
    loop {
        let mut of_queues = doc! { "_id": { "$gt": &behind } };
        if let Some(patterns) = within.patterns() {
            let any: Vec<Document> = patterns.iter().map(of_queue).collect();
            of_queues = doc! { "$and": [of_queues, { "$or": any }] };
        }
        let lines = mongo.connection.database().await?.collection::<Stored>(GROUPS);
        let find = lines.find(of_queues).projection(doc! { "_id": 1 }).sort(doc! { "_id": 1 });
        let find = find.limit(i64::try_from(limit).unwrap_or(0)).await.map_err(fault)?;
        let found: Vec<Stored> = find.try_collect().await.map_err(fault)?;
        let Some(last) = found.last().and_then(|last| last.get_str("_id").ok()) else {
            return Ok(Vec::new());
        };
        behind = last.to_owned();
        let lines: Vec<Line> = readable(&found, |document| Row(document).text("_id"));
        let read = futures::stream::iter(lines.into_iter().map(|line| read_line(mongo, line)));
        let read: Vec<Option<GroupLine>> = read.buffered(AT_ONCE).try_collect().await?;
        let there: Vec<GroupLine> = read.into_iter().flatten().collect();
        // Lines that were left meanwhile are not the end.
        if !there.is_empty() || found.len() < limit {
            return Ok(there);
        }
    }
}

/// The ids of lines begin with their queue and a slash.
fn of_queue(pattern: &QueuePattern) -> Document {
    match pattern {
        QueuePattern::One(queue) => {
            doc! { "_id": { "$gte": format!("{queue}/"), "$lt": format!("{queue}0") } }
        }
        QueuePattern::Prefix(prefix) => {
            doc! { "_id": { "$gte": &**prefix, "$lt": format!("{prefix}\u{7f}") } }
        }
    }
}

/// Returns what a list shows of a line; nothing where it has no jobs.
async fn read_line(mongo: &Mongo, line: Line) -> Result<Option<GroupLine>> {
    let place = |turn| place_in_line(&line.queue, &line.group, turn);
    let whole = doc! { "turn": { "$gte": place(0), "$lte": place(i64::MAX) } };
    let by_turn = Hint::Name("turn".to_owned());
    let jobs = mongo.collection(JOBS).await?;
    let first = jobs.find_one(whole).sort(doc! { "turn": 1 }).hint(by_turn.clone());
    let first = first.projection(doc! { "state": 1, "run_at": 1, "turn": 1 }).await.map_err(fault)?;
    let Some(first) = first else { return Ok(None) };
    let behind =
        doc! { "turn": { "$gt": first.get_str("turn").unwrap_or_default(), "$lte": place(i64::MAX) } };
    let waiting = jobs.count_documents(behind).limit(AHEAD_MAX).hint(by_turn).await.map_err(fault)?;
    // One that cannot be read is dead.
    let state = first.get_str("state").ok().and_then(State::from_word).unwrap_or(State::Dead);
    let run_at = Row(&first).time("run_at").ok().flatten().unwrap_or_default();
    Ok(Some(GroupLine { head: Row(&first).text("_id")?, state, run_at, waiting, line }))
}
