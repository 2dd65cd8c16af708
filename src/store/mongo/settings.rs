//! The settings of queues, with a revision by which servers know whether theirs are the newest.

use std::collections::{BTreeMap, HashMap};

use async_trait::async_trait;
use futures::TryStreamExt;
use mongodb::bson::{Bson, Document, doc};

use crate::job::QueueName;
use crate::store::mongo::Mongo;
use crate::store::mongo::QUEUES;
use crate::store::mongo::access;
use crate::store::mongo::client::fault;
use crate::store::mongo::jobs::document::{Row, readable};
use crate::store::mongo::revision;
use crate::store::mongo::stored::Stored;
use crate::store::mongo::transaction::{self, Transaction, Tx, TxError, Verdict};
use crate::store::settings::{NO_VALID_VERSION, SettingsStep, valid_version};
use crate::store::{Result, Saved, Settings, SettingsChange, SettingsSnapshot, StoreError, StoredSettings};

/// The queue that takes a queue's dead jobs, in the document of its settings.
const DEAD_LETTER: &str = "settings.dead_letter";

#[async_trait]
impl Settings for Mongo {
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        self.connection.within(load(self, known)).await
    }

    async fn save_all_settings(&self, changes: &[SettingsChange]) -> Result<Vec<Saved>> {
        save(self, changes).await
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

/// Changes the settings of queues. The changes of a server come one after the other: all of them write the same revision, so
/// that two at once would conflict.
async fn save(mongo: &Mongo, changes: &[SettingsChange]) -> Result<Vec<Saved>> {
    let end = mongo.connection.end();
    let _one_by_one = revision::turn(mongo, end).await?;
    Ok(transaction::until(mongo, end).retrying_duplicate_keys().run(Save { changes }).await?)
}

/// The settings of queues change together with the revision of them all.
///
/// Idempotence: a repeat after an unknown outcome finds the settings as they were, or the new ones: it then writes
/// the same again, or is a conflict where it expects the old version.
struct Save<'a> {
    changes: &'a [SettingsChange],
}

impl Transaction for Save<'_> {
    type Done = Vec<Saved>;

    async fn attempt(&mut self, tx: &mut Tx<'_>) -> Result<Verdict<Vec<Saved>>, TxError> {
        let mut versions = versions(tx, self.changes).await?;
        let mut dead_letters = dead_letters(tx, self.changes).await?;
        let (mut saved, mut changed) = (Vec::with_capacity(self.changes.len()), BTreeMap::new());
        let mut rows = Vec::new();
        for change in self.changes {
            let SettingsChange { queue, to, rows: of_change, .. } = change;
            let current = versions.get(queue).map(String::as_str);
            match change.decide(current, |queue| Ok::<_, TxError>(dead_letters.get(queue).cloned()))? {
                SettingsStep::Refuse(refused) => {
                    saved.push(refused);
                    continue;
                }
                SettingsStep::Keep => {
                    saved.push(Saved::Done);
                    continue;
                }
                SettingsStep::Write => saved.push(Saved::Done),
            }
            changed.insert(queue, to.as_ref());
            rows.extend(of_change);
            match to.as_ref().and_then(|to| to.settings.dead_letter.as_ref()) {
                Some(dead_letter) => drop(dead_letters.insert(queue.clone(), dead_letter.clone())),
                None => drop(dead_letters.remove(queue)),
            }
            match to {
                Some(to) => drop(versions.insert(queue.clone(), to.version.clone())),
                None => drop(versions.remove(queue)),
            }
        }
        if changed.is_empty() {
            return Ok(Verdict::Abort(saved));
        }
        revision::raise(tx).await?; // first: of two servers that conflict, the one that loses has written nothing else
        write(tx, changed).await?;
        for row in rows {
            tx.write_row(row).await?;
        }
        Ok(Verdict::Commit(saved))
    }
}

/// Returns the versions of these queues' settings, of those that have some.
async fn versions(
    tx: &mut Tx<'_>,
    changes: &[SettingsChange],
) -> Result<HashMap<QueueName, String>, TxError> {
    let queues: Vec<&str> = changes.iter().map(|change| change.queue.as_str()).collect();
    let collection = tx.collection(QUEUES);
    let find = collection.find(doc! { "_id": { "$in": queues } }).projection(doc! { "version": 1 });
    let documents = tx.read(find).await?;
    let version = |document: &Document| {
        let version = document.get_str("version").ok().map(str::to_owned).and_then(valid_version);
        version.unwrap_or_else(|| NO_VALID_VERSION.to_owned())
    };
    let each = readable(&documents, |document| Ok((Row(document).text("_id")?, version(document))));
    Ok(each.into_iter().collect())
}

/// Returns which dead-letter queue each queue has, if one of these changes names one. What is committed meanwhile has raised the revision, so
/// that this transaction meets a conflict: of several at once each sees those before it.
async fn dead_letters(
    tx: &mut Tx<'_>,
    changes: &[SettingsChange],
) -> Result<HashMap<QueueName, QueueName>, TxError> {
    if !changes.iter().any(|change| change.to.as_ref().is_some_and(|to| to.settings.dead_letter.is_some())) {
        return Ok(HashMap::new());
    }
    let queues = tx.collection(QUEUES);
    let find = queues.find(doc! { DEAD_LETTER: { "$type": "string" } }).projection(doc! { DEAD_LETTER: 1 });
    let documents = tx.read(find).await?;
    let named = documents.iter().filter_map(|document| {
        let dead_letter = document.get_document("settings").ok()?.get_str("dead_letter").ok()?;
        Some((Row(document).text("_id").ok()?, dead_letter.parse().ok()?))
    });
    Ok(named.collect())
}

/// Writes what the settings of queues are from now on.
async fn write(
    tx: &mut Tx<'_>,
    changed: BTreeMap<&QueueName, Option<&StoredSettings>>,
) -> Result<(), TxError> {
    let (mut updates, mut deletes) = (Vec::new(), Vec::new());
    for (queue, to) in changed {
        let by_id = doc! { "_id": queue.as_str() };
        let Some(to) = to else {
            deletes.push(doc! { "q": by_id, "limit": 1 });
            continue;
        };
        let settings = mongodb::bson::serialize_to_bson(&to.settings).map_err(StoreError::internal)?;
        let document = doc! { "_id": queue.as_str(), "settings": settings, "version": &to.version };
        updates.push(doc! { "q": by_id, "u": document, "upsert": true });
    }
    if !updates.is_empty() {
        tx.write(doc! { "update": QUEUES, "updates": updates }).await?;
    }
    if !deletes.is_empty() {
        tx.write(doc! { "delete": QUEUES, "deletes": deletes }).await?;
    }
    Ok(())
}
