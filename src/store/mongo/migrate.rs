//! Brings a database up to this version: the commands of `migrations/mongodb/`, in order, each recorded.
//!
//! Every command is idempotent (`create` of what is there is passed over, `createIndexes` of an index that
//! is there does nothing), so that several servers may run them at once, and a server that dies half-way
//! through leaves nothing that the next one cannot finish. Of a collection's validators only the last one is set, so that a server
//! that is late does not put an older one back. One of an older version may: each start compares the validators with the last
//! ones of its migrations, unless a newer version has migrated the database.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::TryStreamExt as _;
use include_dir::{Dir, include_dir};
use mongodb::Database;
use mongodb::bson::{Bson, DateTime, Document, doc};
use sha2::{Digest as _, Sha256};
use tokio::time::{sleep, timeout};

use crate::store::migrations;
use crate::store::mongo::JOBS;
use crate::store::mongo::client::{
    INDEX_CONFLICTS, NAMESPACE_EXISTS, NOT_NOW, UNAUTHORIZED, code, durable_document, fault,
};
use crate::store::mongo::stored::Stored;
use crate::store::{Result, StoreError};

/// Every migration, in order: its name and its commands. Its number is its position in the list, from 1.
static MIGRATIONS: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| migrations::of(&FOLDER));
static FOLDER: Dir = include_dir!("$CARGO_MANIFEST_DIR/migrations/mongodb");

/// How long a validator that is set again may wait for transactions: all other calls wait behind it.
const MEND_WAITS_MS: i64 = 1_000;
/// How long a command may take at first, and for each document of which an index is built: many times what it should.
const COMMAND_MS: u64 = 1000;
const BUILD_DOCUMENTS_PER_MS: u64 = 20;
/// The pause before a command is sent again, in times of what it was given; it is given twice as long then.
const COMMAND_RESTS: u32 = 10;
/// The longest pause.
const COMMAND_REST_MAX: Duration = Duration::from_secs(60);
/// How long behind its limit a command is sent again that has not been heard of: the connection to the one who replies may be dead.
const COMMAND_AGAIN: Duration = Duration::from_secs(60);
/// MongoDB's `MaxTimeMSExpired` and `IndexBuildAborted`: a command was ended by its own limit, or by that of another server that sent it.
const COMMAND_ENDED: [i32; 2] = [50, 276];

/// Runs what is missing and returns its names.
pub async fn migrate(database: &Database) -> Result<Vec<String>> {
    let records = database.collection::<Stored>("migrations");
    let (mut run, validators) = (Vec::new(), validators()?);
    for (number, (name, text)) in (1_i32..).zip(&*MIGRATIONS) {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(text));
        let record = records.find_one(doc! { "_id": number }).await.map_err(fault)?;
        if let Some(record) = record {
            check(name, &digest, &record)?;
            continue;
        }
        let is_last =
            |command: &Document| collection(command).is_none_or(|of| validators.get(of) == Some(command));
        for command in commands(name, text)?.into_iter().filter(is_last) {
            match patiently(database, command).await {
                Err(error) if code(&error).is_some_and(|code| INDEX_CONFLICTS.contains(&code)) => {
                    // A later migration has changed the index since, or it is none of ours.
                    let later = records.find_one(doc! { "_id": { "$gte": number } }).await.map_err(fault)?;
                    later.ok_or_else(|| fault(error))?;
                }
                done => done.map_err(fault)?,
            }
        }
        let on_insert = doc! { "name": name, "digest": digest, "applied_at": DateTime::now() };
        let update = doc! { "$setOnInsert": on_insert };
        records.update_one(doc! { "_id": number }, update).upsert(true).await.map_err(fault)?;
        run.push((*name).to_owned());
    }
    let newest = MIGRATIONS.len() as i32;
    let newer = records.find_one(doc! { "_id": { "$gt": newest } }).await.map_err(fault)?;
    if let Some(newer) = newer {
        // Migrations only ever add, so that a server may be rolled back; its owner should know.
        let name = newer.get_str("name").unwrap_or("?");
        tracing::warn!(migration = name, "the database was migrated by a newer version of Tailback");
    } else {
        mend_validators(database, validators).await?;
    }
    Ok(run)
}

/// Returns the collection whose validator this command sets, if it sets one.
fn collection(command: &Document) -> Option<&str> {
    command.get_str("collMod").ok().filter(|_| command.contains_key("validator"))
}

/// Returns the commands that set the validators which the migrations end with, by their collections.
fn validators() -> Result<BTreeMap<String, Document>> {
    let mut last = BTreeMap::new();
    for (name, text) in &*MIGRATIONS {
        for command in commands(name, text)? {
            if let Some(collection) = collection(&command) {
                last.insert(collection.to_owned(), command.clone());
            }
        }
    }
    Ok(last)
}

/// Sets the validators that the migrations end with, where others are there. A server that cannot do so serves all the same.
async fn mend_validators(database: &Database, last: BTreeMap<String, Document>) -> Result<()> {
    for (collection, mut command) in last {
        let there = match validator(database, &collection).await {
            // The one who has migrated the database may have more rights than this server.
            Err(error) if code(&error) == Some(UNAUTHORIZED) => {
                tracing::warn!(
                    collection,
                    "the right to list collections is missing: its validator is not known"
                );
                continue;
            }
            there => there.map_err(fault)?,
        };
        if there.as_ref() == command.get_document("validator").ok() {
            continue;
        }
        tracing::warn!(collection, "a validator is not the one of this version: setting it again");
        command.insert("maxTimeMS", MEND_WAITS_MS);
        match attempt(database, command).await {
            Err(error) if code(&error).is_some_and(|code| NOT_NOW.contains(&code)) => {
                tracing::warn!(collection, %error, "the validator is left as it is");
            }
            done => done.map_err(fault)?,
        }
    }
    Ok(())
}

async fn validator(database: &Database, collection: &str) -> mongodb::error::Result<Option<Document>> {
    let found = database.list_collections().filter(doc! { "name": collection }).await?.try_next().await?;
    Ok(found.and_then(|found| found.options.validator))
}

/// Returns the names of the migrations that this version knows, in order.
pub fn known() -> impl ExactSizeIterator<Item = &'static str> {
    MIGRATIONS.iter().map(|(name, _)| *name)
}

fn check(name: &str, digest: &str, record: &Document) -> Result<()> {
    if record.get_str("digest").is_ok_and(|recorded| recorded == digest) {
        return Ok(());
    }
    Err(StoreError::internal(format_args!("the database has a migration {name} that is not this version's")))
}

fn commands(name: &str, text: &str) -> Result<Vec<Document>> {
    let broken = |why: String| StoreError::internal(format_args!("migration {name}: {why}"));
    let commands: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
    commands
        .into_iter()
        .map(|command| Document::try_from(command).map_err(|error| broken(error.to_string())))
        .collect()
}

/// Returns an index of `jobs` as the migrations have it.
pub fn index(wanted: &str) -> Result<Document> {
    for (name, text) in &*MIGRATIONS {
        let of_jobs = |command: &Document| command.get_str("createIndexes").is_ok_and(|of| of == JOBS);
        for command in commands(name, text)?.into_iter().filter(of_jobs) {
            let indexes = command.get_array("indexes").into_iter().flatten();
            let mut indexes = indexes.filter_map(|index| index.as_document());
            if let Some(index) = indexes.find(|index| index.get_str("name").is_ok_and(|name| name == wanted))
            {
                return Ok(index.clone());
            }
        }
    }
    Err(StoreError::internal(format_args!("no migration has the index {wanted}")))
}

/// Runs a command that changes the schema, however long that takes, and lets others go on meanwhile.
///
/// Such a command locks the collection, a build where it begins and where it ends, and so waits for the transactions that hold
/// documents, also for one that a killed server has left open for MongoDB's 60 seconds; everything else waits behind it. So it ends after a
/// limited time, and others go on; then it is tried again.
pub async fn patiently(database: &Database, mut command: Document) -> mongodb::error::Result<()> {
    let mut limit = Duration::from_millis(COMMAND_MS);
    if let Ok(of) = command.get_str("createIndexes") {
        let documents = database.collection::<Stored>(of).estimated_document_count().await?;
        limit += Duration::from_millis(documents / BUILD_DOCUMENTS_PER_MS);
        // By default a build would wait for every member, also for one that is down.
        command.insert("commitQuorum", "majority");
    }
    loop {
        command.insert("maxTimeMS", i32::try_from(limit.as_millis()).unwrap_or(i32::MAX));
        let attempt = attempt(database, command.clone());
        let Ok(done) = timeout(limit.saturating_add(COMMAND_AGAIN), attempt).await else { continue };
        match done {
            Err(error) if code(&error).is_some_and(|code| COMMAND_ENDED.contains(&code)) => {
                let command = command.keys().next();
                tracing::info!(command, %error, "a change of the schema took too long, and is tried again");
            }
            done => return done,
        }
        sleep(limit.saturating_mul(COMMAND_RESTS).min(COMMAND_REST_MAX)).await;
        limit = limit.saturating_mul(2);
    }
}

/// Runs a command that changes the schema, and passes over a collection that is there already.
async fn attempt(database: &Database, command: Document) -> mongodb::error::Result<()> {
    // The first key of a command is its name, and must stay the first.
    let mut command = command;
    command.insert("writeConcern", Bson::Document(durable_document()));
    match database.run_command(command).await {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_parses() {
        assert!(MIGRATIONS.iter().all(|(name, text)| !commands(name, text).unwrap().is_empty()));
    }

    #[test]
    fn nothing_is_lost_where_only_the_last_validator_is_set() {
        let last = validators().unwrap();
        for command in MIGRATIONS.iter().flat_map(|(name, text)| commands(name, text).unwrap()) {
            let Some(of) = collection(&command) else { continue };
            assert!(command.keys().all(|key| last[of].contains_key(key)), "{command}");
            assert!(command.keys().all(|key| ["collMod", "validator", "validationLevel"].contains(&&**key)));
        }
    }

    #[test]
    fn the_first_key_of_each_command_is_its_name() {
        for command in MIGRATIONS.iter().flat_map(|(name, text)| commands(name, text).unwrap()) {
            let name = command.keys().next().unwrap().clone();
            assert!(["create", "createIndexes", "collMod"].contains(&name.as_str()), "{name}");
        }
    }
}
