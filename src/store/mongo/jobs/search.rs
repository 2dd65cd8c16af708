//! Searching: an index chooses jobs, MongoDB judges what it can of their documents, and [`Filter::accepts`] has the last word.
//!
//! MongoDB has no bound on how many documents a query examines. So it is asked for the ids of the next jobs that the index has, from the
//! index alone, and then for those of their documents that may be meant. Where the index decides all, one query does.
//!
//! [`Filter::accepts`]: crate::job::Filter::accepts

mod condition;
mod own;
mod plan;
mod tally;

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};

pub use self::own::OwnIndexes;
use self::plan::{Plan, Stream};
pub use self::tally::tally_dead;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{readable, without_long};
use crate::store::mongo::jobs::unreadable::listed;
use crate::store::search::Walk;
use crate::store::{Found, Result, Search, Store as _, Weight as _};

/// How many documents one reply brings, up to 16 MB of them.
const READ_AT_ONCE: usize = 1000;
/// After how many bytes of jobs others have their turn.
const TURN_BYTES: usize = 128 << 10;
/// What a document counts at least.
const DOCUMENT_BYTES: usize = 256;

/// Takes one step of a search.
pub async fn search(mongo: &Mongo, ask: &Search) -> Result<Found> {
    let now = mongo.now()?;
    loop {
        let plan = plan::of(mongo, &ask.filter).await?;
        let step = Step { mongo, ask, rest: condition::rest(&ask.filter, &plan, now), plan: &plan };
        match step.take(Walk::new(ask, now)).await {
            // The index may have been dropped since. Without it another one is chosen.
            Err(_) if plan.is_own && mongo.own_indexes.forget() => {}
            taken => return taken,
        }
    }
}

struct Step<'a> {
    mongo: &'a Mongo,
    ask: &'a Search,
    plan: &'a Plan,
    /// What MongoDB is to judge beyond what the index has decided.
    rest: Vec<Document>,
}

impl Step<'_> {
    async fn take(&self, mut walk: Walk<'_>) -> Result<Found> {
        let is_plain = self.plan.is_sorted() && self.rest.is_empty();
        let mut is_first = true;
        loop {
            let mut window = if self.plan.is_sorted() { walk.window() } else { walk.widest() };
            // Most of them are meant, unless what other programs have written stands before them.
            if self.rest.is_empty() && std::mem::take(&mut is_first) {
                window = window.min(walk.room().max(1));
            }
            let more = match (is_plain, self.plan.streams.as_slice()) {
                (true, [stream]) => {
                    let bound = self.behind(walk.at());
                    let found = doc! { "$and": [stream.condition.clone(), { "_id": bound }] };
                    self.read(&mut walk, found, stream, window, None).await?
                }
                _ => self.scan(&mut walk, window).await?,
            };
            if !more || walk.is_over() {
                return Ok(walk.end(more));
            }
        }
    }

    /// Scans the next jobs: reads their ids, and then the documents of those that may be meant. Returns whether there may be more.
    async fn scan(&self, walk: &mut Walk<'_>, window: usize) -> Result<bool> {
        let ids = self.next(walk.at(), window).await?;
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(false) };
        let (low, high) = if self.ask.newest_first { (last, first) } else { (first, last) };
        let mut conditions = self.rest.clone();
        let by_id = Stream::by_id();
        let stream = match self.plan.streams.as_slice() {
            [stream] if self.plan.is_sorted() => {
                conditions.push(doc! { "_id": { "$gte": low, "$lte": high } });
                conditions.push(stream.condition.clone());
                stream
            }
            _ => {
                conditions.push(doc! { "_id": { "$in": &ids } });
                &by_id
            }
        };
        let is_stopped = self.read(walk, doc! { "$and": conditions }, stream, 0, Some(&ids)).await?;
        Ok(is_stopped || ids.len() == window)
    }

    /// Reads what this finds, up to `limit` (0: all of it). `among`: what is scanned thereby, where that is known. Returns whether there
    /// is more of it, or may be.
    async fn read(
        &self,
        walk: &mut Walk<'_>,
        found: Document,
        stream: &Stream,
        limit: usize,
        among: Option<&[String]>,
    ) -> Result<bool> {
        let with_contents = self.ask.with_contents || !self.ask.filter.asks_only_meta();
        let jobs = self.mongo.collection(JOBS).await?;
        let at_once = if limit == 0 { READ_AT_ONCE } else { limit.min(READ_AT_ONCE) } + 1;
        let mut find = jobs.find(found).sort(doc! { "_id": self.direction() });
        find = find.limit(i64::try_from(limit).unwrap_or(0)).batch_size(u32::try_from(at_once).unwrap_or(1));
        if let Some(hint) = stream.hint() {
            find = find.hint(hint);
        }
        if !with_contents {
            find = find.projection(without_long());
        }
        let mut cursor = find.await.map_err(fault)?;
        let (mut read, mut bytes) = (0, 0);
        while let Some(document) = cursor.try_next().await.map_err(fault)? {
            read += 1;
            let mut size = DOCUMENT_BYTES;
            for job in readable(std::slice::from_ref(&document), |document| listed(document, with_contents)) {
                size += job.weight();
                walk.add(job);
            }
            walk.read(size);
            bytes += size;
            let id = document.get_str("_id").unwrap_or_default();
            if among.is_none() {
                walk.passed(std::iter::once(id));
            }
            if walk.ends_at(id) {
                self.passed_until(walk, among, id);
                return Ok(true);
            }
            if bytes >= TURN_BYTES {
                bytes = 0;
                tokio::task::yield_now().await; // one reply has many: others have their turns in between
            }
        }
        match among {
            Some(ids) => {
                walk.passed(ids.iter().map(String::as_str));
                Ok(false)
            }
            None => Ok(limit > 0 && read >= limit),
        }
    }

    /// Of those that are scanned, these were until this one, which may have come in between and not be among them.
    fn passed_until(&self, walk: &mut Walk<'_>, among: Option<&[String]>, id: &str) {
        let Some(ids) = among else { return };
        let is_passed = |other: &&String| match self.ask.newest_first {
            true => other.as_str() >= id,
            false => other.as_str() <= id,
        };
        let passed = ids.iter().take_while(is_passed).count();
        walk.passed(ids[..passed].iter().map(String::as_str));
        if passed == 0 || ids[passed - 1] != id {
            walk.passed(std::iter::once(id));
        }
    }

    /// Returns the ids of the next jobs that the plan has.
    async fn next(&self, after: Option<&str>, limit: usize) -> Result<Vec<String>> {
        let jobs = self.mongo.collection(JOBS).await?;
        let mut ids: Vec<String> = Vec::new();
        for stream in &self.plan.streams {
            let condition = doc! { "$and": [stream.condition.clone(), { "_id": self.behind(after) }] };
            let mut find =
                jobs.find(condition).projection(doc! { "_id": 1 }).sort(doc! { "_id": self.direction() });
            find = find.limit(i64::try_from(limit).unwrap_or(0));
            find = find.batch_size(u32::try_from(limit).unwrap_or(u32::MAX).saturating_add(1));
            if let Some(hint) = stream.hint() {
                find = find.hint(hint);
            }
            let mut cursor = find.await.map_err(fault)?;
            while let Some(document) = cursor.try_next().await.map_err(fault)? {
                if let Some(Bson::String(id)) = document.get("_id") {
                    ids.push(id.clone());
                }
            }
        }
        ids.sort_unstable();
        ids.dedup();
        if self.ask.newest_first {
            ids.reverse();
        }
        ids.truncate(limit);
        Ok(ids)
    }

    fn direction(&self) -> i32 {
        if self.ask.newest_first { -1 } else { 1 }
    }

    /// Returns the ids behind this one. All are texts: what has another `_id` is no job.
    fn behind(&self, after: Option<&str>) -> Document {
        match (after, self.ask.newest_first) {
            (None, _) => doc! { "$gte": "" },
            (Some(after), false) => doc! { "$gt": after },
            (Some(after), true) => doc! { "$gte": "", "$lt": after },
        }
    }
}
