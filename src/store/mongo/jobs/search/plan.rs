//! Which index chooses the jobs of a search.

use mongodb::bson::raw::{CString, cstr};
use mongodb::bson::{Bson, Document, Regex, doc};
use mongodb::options::Hint;

use crate::job::{Filter, QueuePattern, Reach, State, Visible};
use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::indexes::Rare;
use crate::store::search::SORTED_MAX;

/// Jobs that one index has.
pub struct Stream {
    /// What they have in common: the index decides that.
    pub condition: Document,
    /// The index; `None`: one that may not be there yet.
    pub index: Option<String>,
    /// Whether the index has them by id.
    pub is_sorted: bool,
}

impl Stream {
    fn new(condition: Document, index: Option<&str>, is_sorted: bool) -> Self {
        Self { condition, index: index.map(str::to_owned), is_sorted }
    }

    /// All jobs.
    pub fn by_id() -> Self {
        Self::new(Document::new(), Some("_id_"), true)
    }

    /// The same in all queues: how much the index of other people has that knows nothing of queues.
    fn without_queue(&self) -> Self {
        let mut condition = self.condition.clone();
        condition.remove("queue");
        Self { condition, index: self.index.clone(), is_sorted: self.is_sorted }
    }

    pub fn hint(&self) -> Option<Hint> {
        self.index.clone().map(Hint::Name)
    }
}

/// Where the jobs of a search are found.
pub struct Plan {
    /// All that may be meant is in one of these.
    pub streams: Vec<Stream>,
    /// Whether they are indexes that other people made.
    pub is_own: bool,
}

impl Plan {
    fn one(stream: Stream) -> Self {
        Self { streams: vec![stream], is_own: false }
    }

    /// Whether its jobs come by id, without being sorted.
    pub fn is_sorted(&self) -> bool {
        matches!(self.streams.as_slice(), [stream] if stream.is_sorted)
    }

    /// Whether the index decides what is asked of this field.
    pub fn decides(&self, field: &str) -> bool {
        self.streams.iter().all(|stream| stream.condition.contains_key(field))
    }
}

/// Chooses the indexes for a filter: the first in this order that has its jobs by id, or few of them.
pub async fn of(mongo: &Mongo, filter: &Filter) -> Result<Plan> {
    if let Some(streams) = mongo.own_indexes.streams(mongo, filter).await? {
        let mut are_few = true;
        for stream in &streams {
            are_few = are_few
                && match is_small(mongo, &stream.without_queue()).await {
                    Err(_) if mongo.own_indexes.forget() => false, // it may have been dropped
                    is_small => is_small?,
                };
        }
        if are_few {
            return Ok(Plan { streams, is_own: true });
        }
    }
    if let Some(rare) = Rare::for_list(filter) {
        mongo.indexes.need(rare).await?;
    }
    let is_of_all = filter.within.patterns().is_none();
    for stream in streams(filter) {
        if stream.is_sorted || is_small(mongo, &stream).await? {
            return Ok(Plan::one(stream));
        }
    }
    // Who reaches some queues is not led past the jobs of others, whose number would be seen.
    Ok(Plan::one(if is_of_all { Stream::by_id() } else { browse(filter) }))
}

/// Returns the indexes that serve a filter, those first that leave least to be judged.
fn streams(filter: &Filter) -> Vec<Stream> {
    let is_one = filter.queue().is_some();
    let mut streams = Vec::new();
    let with_queue = |condition: Document| {
        let mut whole = Document::new();
        whole.extend(queue_of(&filter.within).map(|queue| ("queue".to_owned(), queue)));
        whole.extend(condition);
        whole
    };
    // These indexes begin with the queue: without a condition on it none of them serves.
    let in_any_queue = |condition: Document| {
        let mut whole = doc! { "queue": queue_of(&filter.within).unwrap_or_else(every_queue) };
        whole.extend(condition);
        whole
    };
    if let Some(batch) = &filter.batch {
        streams.push(Stream::new(with_queue(doc! { "batch": batch.as_str() }), None, true));
    }
    if let Some(worker) = filter.worker.as_ref().filter(|_| filter.states == [Visible::Reserved]) {
        let held = doc! { "worker": worker.as_str(), "state": Visible::Reserved.as_str() };
        streams.push(Stream::new(with_queue(held), Some("worker"), false));
    }
    if let Some(key) = &filter.key {
        streams.push(Stream::new(in_any_queue(doc! { "key": key.as_str() }), None, is_one));
    }
    if let Some(group) = &filter.group {
        streams.push(Stream::new(in_any_queue(doc! { "group": group.as_str() }), None, is_one));
    }
    if filter.dead_lettered {
        streams.push(Stream::new(in_any_queue(doc! { "origin": { "$exists": true } }), None, is_one));
    }
    if filter.within.patterns().is_some() || !filter.states.is_empty() {
        streams.push(browse(filter));
    }
    streams
}

/// Returns the stretch of the index by queue and state.
pub fn browse(filter: &Filter) -> Stream {
    let wanted = |state: &State| {
        filter.states.is_empty() || filter.states.iter().any(|wanted| wanted.stored() == *state)
    };
    // Named one by one, the states let the index give the ids of all of them in order.
    let states: Vec<&str> = State::ALL.into_iter().filter(wanted).map(State::as_str).collect();
    let mut condition = Document::new();
    condition.insert("queue", queue_of(&filter.within).unwrap_or_else(every_queue));
    match states.as_slice() {
        [state] => condition.insert("state", *state),
        _ => condition.insert("state", doc! { "$in": states }),
    };
    Stream::new(condition, Some("browse"), filter.queue().is_some())
}

fn every_queue() -> Bson {
    Bson::Document(doc! { "$gte": "" })
}

/// Returns what the field `queue` is within these queues; `None` for all.
fn queue_of(within: &Reach) -> Option<Bson> {
    let one = |pattern: &QueuePattern| -> Bson {
        match pattern {
            QueuePattern::One(queue) => queue.as_str().into(),
            // Of the names of queues only dots mean something else in an expression.
            QueuePattern::Prefix(prefix) => {
                let pattern = CString::try_from(format!("^{}", prefix.replace('.', "\\.")));
                let pattern = pattern.unwrap_or_else(|_| cstr!("^$").into()); // no name has NUL
                Bson::RegularExpression(Regex { pattern, options: cstr!("").into() })
            }
        }
    };
    Some(match within.patterns()? {
        [QueuePattern::One(queue)] => queue.as_str().into(),
        // DEL sorts behind every character of a name.
        [QueuePattern::Prefix(prefix)] => {
            Bson::Document(doc! { "$gte": &**prefix, "$lt": format!("{prefix}\u{7f}") })
        }
        patterns => Bson::Document(doc! { "$in": patterns.iter().map(one).collect::<Vec<Bson>>() }),
    })
}

/// Whether so few jobs are there that they can be sorted for each step.
async fn is_small(mongo: &Mongo, stream: &Stream) -> Result<bool> {
    let jobs = mongo.collection(JOBS).await?;
    let mut count = jobs.count_documents(stream.condition.clone()).limit(SORTED_MAX as u64 + 1);
    if let Some(hint) = stream.hint() {
        count = count.hint(hint);
    }
    Ok(count.await.map_err(fault)? <= SORTED_MAX as u64)
}
