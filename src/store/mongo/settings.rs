//! The settings of queues, with a revision by which servers know whether theirs are the newest.

use std::collections::HashMap;

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};

use crate::job::QueueName;
use crate::job::settings::dead_letter_circle;
use crate::store::mongo::META;
use crate::store::mongo::Mongo;
use crate::store::mongo::QUEUES;
use crate::store::mongo::access;
use crate::store::mongo::client::{DUPLICATE_KEY, code, fault};
use crate::store::mongo::jobs::document::{Row, readable};
use crate::store::mongo::revision;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::settings::NO_VALID_VERSION;
use crate::store::{Expected, Result, Saved, Settings, SettingsSnapshot, StoreError, StoredSettings};

/// The queue that takes a queue's dead jobs, in the document of its settings.
const DEAD_LETTER: &str = "settings.dead_letter";

#[async_trait]
impl Settings for Mongo {
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        self.connection.within(load(self, known)).await
    }

    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved> {
        save(self, queue, to, expected).await
    }
}

/// All settings, unless their revision is still `known`.
pub async fn load(mongo: &Mongo, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
    // The revision first: settings that change in between are read again next time.
    let revision = revision::current(mongo).await?;
    if known == Some(revision) && revision != revision::UNREADABLE {
        return Ok(None);
    }
    let cursor = mongo.collection(QUEUES).await?.find(Document::new()).await.map_err(fault)?;
    let documents: Vec<Stored> = cursor.try_collect().await.map_err(fault)?;
    let api_keys = access::stored(mongo).await?;
    let mut snapshot = SettingsSnapshot { revision, api_keys, ..SettingsSnapshot::default() };
    // One document that another program spoiled must not make the settings of all queues unknown.
    for queue in readable(&documents, |document| Ok((Row(document).text("_id")?, document))) {
        let (queue, document): (QueueName, &Document) = queue;
        let settings = document.get("settings").cloned().unwrap_or(Bson::Null);
        let version = document.get_str("version").ok().map(str::to_owned);
        snapshot.add(queue, settings.into_relaxed_extjson(), version);
    }
    Ok(Some(snapshot))
}

/// Replaces or removes a queue's settings if they are of the expected version.
pub async fn save(
    mongo: &Mongo,
    queue: &QueueName,
    to: Option<&StoredSettings>,
    expected: &Expected,
) -> Result<Saved> {
    let attempts = transaction::until(mongo, mongo.connection.end()).retrying_duplicate_keys();
    Ok(attempts.run(Save { queue, to, expected }).await?)
}

/// The settings of a queue change together with the revision of them all.
///
/// Idempotence: a repeat after an unknown outcome finds the settings as they were, or the new ones: it then writes
/// the same again, or is a conflict where it expects the old version.
struct Save<'a> {
    queue: &'a QueueName,
    to: Option<&'a StoredSettings>,
    expected: &'a Expected,
}

impl Transaction for Save<'_> {
    type Done = Saved;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Saved>, TxError> {
        let Self { queue, to, expected } = *self;
        let dead_letter = new_dead_letter(queue, to, tx).await?;
        let queues = tx.collection(QUEUES);
        let mut filter = doc! { "_id": queue.as_str() };
        if let Expected::Version(version) = expected {
            // As `valid_version` has it.
            let unreadable = Bson::from(doc! { "$not": { "$regex": r"^[!#-~]*\z" } });
            filter.insert("version", if version == NO_VALID_VERSION { unreadable } else { version.into() });
        }
        let document = to.map(|to| {
            let settings = mongodb::bson::serialize_to_bson(&to.settings).map_err(StoreError::internal)?;
            let document = doc! { "_id": queue.as_str(), "settings": settings, "version": &to.version };
            Ok::<_, StoreError>(Stored::from(document))
        });
        let matched = match (document.transpose()?, expected) {
            (Some(document), Expected::Absent) => {
                match queues.insert_one(document).session(tx.session()).await {
                    Err(error) if code(&error) == Some(DUPLICATE_KEY) => 0, // they are not absent
                    inserted => inserted.map(|_| 1)?,
                }
            }
            (Some(document), _) => {
                let any = *expected == Expected::Any;
                let done = queues.replace_one(filter, document).upsert(any).session(tx.session()).await?;
                done.matched_count + u64::from(done.upserted_id.is_some())
            }
            (None, Expected::Absent) => {
                u64::from(queues.find_one(filter).session(tx.session()).await?.is_none())
            }
            (None, _) => {
                let deleted = queues.delete_one(filter).session(tx.session()).await?.deleted_count;
                deleted.max(u64::from(*expected == Expected::Any))
            }
        };
        if matched == 0 {
            return Ok(Verdict::Abort(Saved::Conflict));
        }
        if let Some(dead_letter) = dead_letter
            && let Some(circle) = circle(queue, dead_letter, tx).await?
        {
            return Ok(Verdict::Abort(Saved::Circle(circle)));
        }
        revision::raise(tx).await?;
        Ok(Verdict::Commit(Saved::Done))
    }
}

/// Returns the dead-letter queue that these settings name and the stored ones do not.
async fn new_dead_letter<'a>(
    queue: &QueueName,
    to: Option<&'a StoredSettings>,
    tx: &mut Tx<'_>,
) -> Result<Option<&'a QueueName>, TxError> {
    let Some(dead_letter) = to.and_then(|to| to.settings.dead_letter.as_ref()) else { return Ok(None) };
    let queues = tx.collection(QUEUES);
    let stored = queues.find_one(doc! { "_id": queue.as_str() }).session(tx.session()).await?;
    let before = stored.as_deref().and_then(dead_letter_of);
    Ok((before.as_ref() != Some(dead_letter)).then_some(dead_letter))
}

/// Returns the circle that a queue would close with its new dead-letter queue. All who look for one write a document of
/// their own, so that of several at once each sees what the one before it has stored; no other change writes it.
async fn circle(
    queue: &QueueName,
    dead_letter: &QueueName,
    tx: &mut Tx<'_>,
) -> Result<Option<Vec<QueueName>>, TxError> {
    let touch = doc! { "$set": { "rev": rand::random::<i64>() } };
    let guard = doc! { "q": { "_id": "dead_letters" }, "u": touch, "upsert": true };
    tx.write(doc! { "update": META, "updates": [guard] }).await?;
    let (all, name) = (doc! { DEAD_LETTER: { "$type": "string" } }, doc! { DEAD_LETTER: 1 });
    let queues = tx.collection(QUEUES);
    let documents = tx.read(queues.find(all).projection(name)).await?;
    let named = documents.iter().filter_map(|document| {
        let queue = Row(document).text::<QueueName>("_id").ok()?;
        Some((queue, dead_letter_of(document)?))
    });
    let named: HashMap<QueueName, QueueName> = named.collect();
    dead_letter_circle(queue, dead_letter, |queue| Ok(named.get(queue).cloned()))
}

fn dead_letter_of(document: &Document) -> Option<QueueName> {
    document.get_document("settings").ok()?.get_str("dead_letter").ok()?.parse().ok()
}
