//! The settings of queues.

use std::collections::HashMap;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};

use crate::job::{QueueName, QueueSettings};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;
use crate::store::{Expected, Result, Saved, Settings, SettingsSnapshot, StoredSettings};

#[async_trait]
impl Settings for SqliteStore {
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>> {
        self.read(move |db, _| settings(db, known)).await
    }

    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved> {
        let (queue, to, expected) = (queue.clone(), to.cloned(), expected.clone());
        self.writer.run(move |db, _| save(db, &queue, to.as_ref(), &expected)).await
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
    let mut queues = HashMap::new();
    while let Some(found) = rows.next()? {
        let settings: Option<QueueSettings> = row::json(found, 1, "settings")?;
        let stored = StoredSettings { settings: settings.unwrap_or_default(), version: found.get(2)? };
        queues.insert(row::parsed(found, 0, "queue")?, stored);
    }
    Ok(Some(SettingsSnapshot { revision, queues }))
}

/// Replaces a queue's settings, or removes them, if they are of the expected version.
pub fn save(
    db: &Connection,
    queue: &QueueName,
    to: Option<&StoredSettings>,
    expected: &Expected,
) -> Result<Saved, Fault> {
    let current: Option<String> = db
        .prepare_cached("SELECT version FROM settings WHERE queue = ?1")?
        .query_row([queue.as_str()], |row| row.get(0))
        .optional()?;
    let as_expected = match expected {
        Expected::Any => true,
        Expected::Absent => current.is_none(),
        Expected::Version(version) => current.as_ref() == Some(version),
    };
    if !as_expected {
        return Ok(Saved::Conflict);
    }
    match to {
        Some(stored) => {
            let json = row::to_json(Some(&stored.settings))?;
            db.prepare_cached(
                "INSERT OR REPLACE INTO settings (queue, settings, version) VALUES (?1, ?2, ?3)",
            )?
            .execute(rusqlite::params![queue.as_str(), json, stored.version])?;
        }
        None if current.is_none() => return Ok(Saved::Done),
        None => {
            db.prepare_cached("DELETE FROM settings WHERE queue = ?1")?.execute([queue.as_str()])?;
        }
    }
    db.prepare_cached("UPDATE settings_revision SET revision = revision + 1")?.execute([])?;
    Ok(Saved::Done)
}
