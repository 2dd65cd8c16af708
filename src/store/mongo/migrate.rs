//! Brings a database up to this version: the commands of `migrations/mongodb/`, in order, each recorded.
//!
//! Every command is idempotent (`create` of what is there is passed over, `createIndexes` of an index that
//! is there does nothing), so that several servers may run them at once, and a server that dies half-way
//! through leaves nothing that the next one cannot finish.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use mongodb::Database;
use mongodb::bson::{Bson, DateTime, Document, doc};
use sha2::{Digest as _, Sha256};

use crate::store::mongo::client::{NAMESPACE_EXISTS, code, durable_document, fault};
use crate::store::{Result, StoreError};

/// One migration as shipped.
struct Migration {
    number: i32,
    name: &'static str,
    commands: &'static str,
}

macro_rules! migration {
    ($number:literal, $name:literal) => {
        Migration {
            number: $number,
            name: $name,
            commands: include_str!(concat!("../../../migrations/mongodb/", $name, ".json")),
        }
    };
}

const MIGRATIONS: [Migration; 8] = [
    migration!(1, "0001_jobs"),
    migration!(2, "0002_counters"),
    migration!(3, "0003_routes"),
    migration!(4, "0004_schedules"),
    migration!(5, "0005_workers"),
    migration!(6, "0006_batches"),
    migration!(7, "0007_groups"),
    migration!(8, "0008_semaphores"),
];

/// Runs what is missing and answers its names.
pub async fn migrate(database: &Database) -> Result<Vec<String>> {
    let records = database.collection::<Document>("migrations");
    let mut run = Vec::new();
    for migration in &MIGRATIONS {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(migration.commands));
        let record = records.find_one(doc! { "_id": migration.number }).await.map_err(fault)?;
        if let Some(record) = record {
            check(migration, &digest, &record)?;
            continue;
        }
        for command in commands(migration)? {
            execute(database, command).await?;
        }
        let on_insert = doc! { "name": migration.name, "digest": digest, "applied_at": DateTime::now() };
        let update = doc! { "$setOnInsert": on_insert };
        records.update_one(doc! { "_id": migration.number }, update).upsert(true).await.map_err(fault)?;
        run.push(migration.name.to_owned());
    }
    let newest = MIGRATIONS.len() as i32;
    let newer = records.find_one(doc! { "_id": { "$gt": newest } }).await.map_err(fault)?;
    if let Some(newer) = newer {
        // Migrations only ever add, so that a server may be rolled back; its owner should know.
        let name = newer.get_str("name").unwrap_or("?");
        tracing::warn!(migration = name, "the database was migrated by a newer version of Tailback");
    }
    Ok(run)
}

fn check(migration: &Migration, digest: &str, record: &Document) -> Result<()> {
    if record.get_str("digest").is_ok_and(|recorded| recorded == digest) {
        return Ok(());
    }
    let name = migration.name;
    Err(StoreError::internal(format_args!("the database has a migration {name} that is not this version's")))
}

fn commands(migration: &Migration) -> Result<Vec<Document>> {
    let broken = |why: String| StoreError::internal(format_args!("migration {}: {why}", migration.name));
    let commands: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(migration.commands).map_err(|error| broken(error.to_string()))?;
    commands
        .into_iter()
        .map(|command| Document::try_from(command).map_err(|error| broken(error.to_string())))
        .collect()
}

async fn execute(database: &Database, command: Document) -> Result<()> {
    // The first key of a command is its name, and must stay the first.
    let mut command = command;
    command.insert("writeConcern", Bson::Document(durable_document()));
    match database.run_command(command).await {
        Ok(_) => Ok(()),
        Err(error) if code(&error) == Some(NAMESPACE_EXISTS) => Ok(()),
        Err(error) => Err(fault(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps_and_parse() {
        for (n, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.number as usize, n + 1);
            assert!(migration.name.starts_with(&format!("{:04}_", n + 1)));
            assert!(!commands(migration).unwrap().is_empty());
        }
    }

    #[test]
    fn the_first_key_of_each_command_is_its_name() {
        for command in MIGRATIONS.iter().flat_map(|migration| commands(migration).unwrap()) {
            let name = command.keys().next().unwrap().clone();
            assert!(["create", "createIndexes", "collMod"].contains(&name.as_str()), "{name}");
        }
    }
}
