//! The settings of queues.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use crate::job::{QueueName, QueueSettings};
use crate::store::settings::{NO_VALID_VERSION, SettingsStep, valid_version};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::access;
use crate::store::sqlite::audit;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;
use crate::store::{Result, Saved, Settings, SettingsChange, SettingsSnapshot};

#[async_trait]
impl Settings for SqliteStore {
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        self.read(move |db, _| settings(db, known)).await
    }

    async fn save_all_settings(&self, changes: &[SettingsChange]) -> Result<Vec<Saved>> {
        let changes = changes.to_vec();
        self.writer.run(move |db, _| changes.iter().map(|change| save(db, change)).collect()).await
    }
}

/// Returns all settings, unless their revision is still the known one.
pub fn settings(db: &Connection, known: Option<i64>) -> Result<Option<SettingsSnapshot>, Fault> {
    let revision =
        db.prepare_cached("SELECT revision FROM settings_revision")?.query_row([], |row| row.get(0))?;
    if known == Some(revision) {
        return Ok(None);
    }
    let mut all = db.prepare_cached("SELECT queue, settings, version FROM settings")?;
    let mut rows = all.query([])?;
    let api_keys = access::stored(db)?;
    let mut snapshot = SettingsSnapshot { revision, api_keys, ..SettingsSnapshot::default() };
    // One row that another program spoiled must not make the settings of all queues unknown.
    while let Some(found) = rows.next()? {
        match row::parsed::<QueueName>(found, 0, "queue") {
            Ok(queue) => snapshot.add(queue, object(found)?, found.get(2).ok()),
            Err(error) => tracing::error!(%error, "the settings of a queue cannot be read"),
        }
    }
    Ok(Some(snapshot))
}

/// The stored settings as JSON; no settings where there are none, and null where they are not JSON.
pub fn object(found: &rusqlite::Row<'_>) -> Result<serde_json::Value, Fault> {
    match row::json(found, 1, "settings") {
        Ok(stored) => Ok(stored.unwrap_or_else(|| serde_json::Map::new().into())),
        Err(Fault::Sql(error)) if error.sqlite_error().is_some() => Err(Fault::Sql(error)),
        Err(_) => Ok(serde_json::Value::Null),
    }
}

/// Replaces a queue's settings, or removes them, if they are of the expected version.
fn save(db: &Connection, change: &SettingsChange) -> Result<Saved, Fault> {
    let SettingsChange { queue, to, rows, .. } = change;
    let version = |row: &rusqlite::Row<'_>| {
        let version = row.get(0).ok().and_then(valid_version);
        Ok(version.unwrap_or_else(|| NO_VALID_VERSION.to_owned()))
    };
    let current: Option<String> = db
        .prepare_cached("SELECT version FROM settings WHERE queue = ?1")?
        .query_row([queue.as_str()], version)
        .optional()?;
    match change.decide(current.as_deref(), |queue| dead_letter_of(db, queue))? {
        SettingsStep::Refuse(saved) => return Ok(saved),
        SettingsStep::Keep => return Ok(Saved::Done),
        SettingsStep::Write => {}
    }
    match to {
        Some(stored) => {
            let json = row::to_json(Some(&stored.settings))?;
            db.prepare_cached(
                "INSERT OR REPLACE INTO settings (queue, settings, version) VALUES (?1, ?2, ?3)",
            )?
            .execute(rusqlite::params![queue.as_str(), json, stored.version])?;
        }
        None => {
            db.prepare_cached("DELETE FROM settings WHERE queue = ?1")?.execute([queue.as_str()])?;
        }
    }
    access::raise_revision(db)?;
    rows.iter().try_for_each(|row| audit::write(db, row))?;
    Ok(Saved::Done)
}

fn dead_letter_of(db: &Connection, queue: &QueueName) -> Result<Option<QueueName>, Fault> {
    let mut stored = db.prepare_cached("SELECT queue, settings FROM settings WHERE queue = ?1")?;
    let mut rows = stored.query([queue.as_str()])?;
    let Some(found) = rows.next()? else { return Ok(None) };
    Ok(QueueSettings::stored(object(found)?).0.dead_letter)
}
