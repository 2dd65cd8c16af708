//! Indexes that people made on fields of payloads: searches for these fields are served by them.
//!
//! Payloads that BSON cannot hold exactly, or would make much larger, are texts, which no such index has. So beside the first one that
//! serves a search, an index of these jobs is made, `payload_texts`; without it the search does without either.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};

use crate::job::Filter;
use crate::store::Result;
use crate::store::mongo::JOBS;
use crate::store::mongo::Mongo;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::search::condition::in_bson;
use crate::store::mongo::jobs::search::plan::Stream;
use crate::store::mongo::migrate;

/// The index of the jobs whose payload is a text.
const TEXTS: &str = "payload_texts";
/// How long it is remembered which indexes there are.
const REMEMBERED: Duration = Duration::from_secs(10);
/// After how long the indexes are read again where one was not as it seemed: it is still being built, or was dropped.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Default)]
pub struct OwnIndexes(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The fields that begin an index, with its name.
    indexes: Vec<(String, String)>,
    has_texts: bool,
    until: Option<Instant>,
    /// Whether the index of texts was asked for here.
    is_made: bool,
}

impl OwnIndexes {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Forgets the indexes for a while. Returns whether there was one.
    pub fn forget(&self) -> bool {
        let mut known = self.known();
        known.until = Some(Instant::now() + READ_AGAIN);
        !std::mem::take(&mut known.indexes).is_empty()
    }

    /// Returns the jobs that such an index has for a filter, if one serves it.
    pub async fn streams(&self, mongo: &Mongo, filter: &Filter) -> Result<Option<Vec<Stream>>> {
        let conditions: Vec<Document> = filter.payload.iter().filter_map(in_bson).collect();
        // Those of others might be counted for who reaches some queues only.
        if conditions.is_empty() || filter.within.patterns().is_some() && filter.queue().is_none() {
            return Ok(None);
        }
        let is_fresh = self.known().until.is_some_and(|until| Instant::now() < until);
        if !is_fresh {
            self.refresh(mongo).await?;
        }
        let (served, asks_for_texts) = self.served(&conditions);
        if asks_for_texts {
            self.make_texts(mongo).await?;
        }
        let Some((condition, name)) = served else { return Ok(None) };
        let queue = filter.queue().map(|queue| ("queue".to_owned(), Bson::from(queue.as_str())));
        let stream = |mut condition: Document, index: String| {
            condition.extend(queue.clone());
            Stream { condition, index: Some(index), is_sorted: false }
        };
        let texts = stream(doc! { "payload_json": { "$exists": true } }, TEXTS.to_owned());
        Ok(Some(vec![stream(condition, name), texts]))
    }

    /// Returns the first of these conditions that an index serves, with its name. Without the index of texts there is none; then the second
    /// value is whether that one is to be made.
    fn served(&self, conditions: &[Document]) -> (Option<(Document, String)>, bool) {
        let mut known = self.known();
        let served = |condition: &Document| {
            let path = condition.keys().next()?;
            let (_, name) = known.indexes.iter().find(|(field, _)| field == path)?;
            Some((condition.clone(), name.clone()))
        };
        let served = conditions.iter().find_map(served);
        if known.has_texts || served.is_none() {
            return (served, false);
        }
        // Sooner than else, but not put off by each search.
        known.until = known.until.min(Some(Instant::now() + READ_AGAIN));
        (None, !std::mem::replace(&mut known.is_made, true))
    }

    /// Reads which indexes there are.
    async fn refresh(&self, mongo: &Mongo) -> Result<()> {
        let jobs = mongo.collection(JOBS).await?;
        let indexes: Vec<_> = jobs.list_indexes().await.map_err(fault)?.try_collect().await.map_err(fault)?;
        let (mut own, mut has_texts) = (Vec::new(), false);
        for index in indexes {
            let options = index.options.unwrap_or_default();
            let name = options.name.unwrap_or_default();
            has_texts |= name == TEXTS;
            let is_whole = options.partial_filter_expression.is_none()
                && !options.sparse.unwrap_or(false)
                && !options.hidden.unwrap_or(false)
                && options.collation.is_none();
            let first = index.keys.iter().next().filter(|_| is_whole);
            let first = first.filter(|(field, kind)| {
                field.starts_with("payload.") && !matches!(kind, Bson::String(_)) // text, hashed, 2d …
            });
            own.extend(first.map(|(field, _)| (field.clone(), name)));
        }
        let mut known = self.known();
        *known = Known {
            indexes: own,
            has_texts,
            until: Some(Instant::now() + REMEMBERED),
            is_made: known.is_made && !has_texts,
        };
        Ok(())
    }

    /// Has the index of texts made, and does not wait for it.
    async fn make_texts(&self, mongo: &Mongo) -> Result<()> {
        let database = mongo.connection.database().await?.clone();
        tokio::spawn(async move {
            // By id alone it would be another form of `_id_`, which MongoDB refuses.
            let index = doc! {
                "name": TEXTS, "key": { "v": 1, "_id": 1 },
                "partialFilterExpression": { "payload_json": { "$exists": true } },
            };
            let command = doc! { "createIndexes": JOBS, "indexes": [index] };
            if let Err(error) = migrate::patiently(&database, command).await {
                let error = crate::store::chain(&error);
                tracing::warn!(
                    error,
                    "the index payload_texts is not built; searches do without the indexes on payloads"
                );
            }
        });
        Ok(())
    }
}
