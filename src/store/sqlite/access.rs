//! API keys, and the secret of reservation tokens.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::de::DeserializeOwned;

use crate::job::{ApiKey, ApiKeyId, SecretHash, StoredKeyId, Timestamp};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::fault::Fault;
use crate::store::sqlite::jobs::row;
use crate::store::{Access, Result, StoredKeys, TokenSecret, UnreadableKey};

#[async_trait]
impl Access for SqliteStore {
    async fn api_keys(&self) -> Result<StoredKeys> {
        self.read(|db, _| stored(db)).await
    }

    async fn stored_secret(&self) -> Result<Option<TokenSecret>> {
        self.read(|db, _| stored_secret(db)).await
    }

    async fn token_secret(&self, fresh: TokenSecret) -> Result<TokenSecret> {
        self.writer.run(move |db, _| token_secret(db, &fresh)).await
    }

    async fn add_api_key(&self, key: &ApiKey) -> Result<()> {
        let key = key.clone();
        self.writer.run(move |db, _| add(db, &key)).await
    }

    async fn rotate_api_key(&self, id: &ApiKeyId, hash: &SecretHash) -> Result<bool> {
        let (id, hash) = (id.clone(), *hash);
        self.writer.run(move |db, _| rotate(db, &id, &hash)).await
    }

    async fn remove_api_key(&self, id: &StoredKeyId) -> Result<bool> {
        let id = id.clone();
        self.writer.run(move |db, _| remove(db, &id)).await
    }

    async fn note_api_key_uses(&self, uses: &[(ApiKeyId, Timestamp)]) -> Result<()> {
        let uses = uses.to_vec();
        self.writer.run(move |db, _| note_uses(db, &uses)).await
    }
}

/// The statement that reads all keys.
pub const ALL: &str = "SELECT id, name, hash, scopes, queues, created_at, expires_at, last_used_at, rate, max_concurrent FROM api_keys \
                       ORDER BY id";

/// Returns all keys. One that another program spoiled must not make the others unknown.
pub fn stored(db: &Connection) -> Result<StoredKeys, Fault> {
    let mut all = db.prepare_cached(ALL)?;
    let mut rows = all.query([])?;
    let mut stored = StoredKeys::default();
    while let Some(found) = rows.next()? {
        match key(found) {
            Ok(key) => stored.keys.push(key),
            Err(Fault::Sql(error)) if error.sqlite_error().is_some() => return Err(Fault::Sql(error)),
            Err(error) => {
                stored.unreadable.push(UnreadableKey { id: name(found)?, why: why(found, &error) });
            }
        }
    }
    Ok(stored)
}

/// Returns what names the key of a row, whose first column is its id.
fn name(found: &Row<'_>) -> Result<StoredKeyId, Fault> {
    let bytes = found.get_ref(0)?.as_bytes().map_err(rusqlite::Error::from)?;
    Ok(std::str::from_utf8(bytes).map_or_else(|_| StoredKeyId::of_bytes(bytes), StoredKeyId::of_text))
}

/// Returns what is wrong with a row. Its id may be as large as another program likes.
fn why(found: &Row<'_>, error: &Fault) -> String {
    if row::parsed::<ApiKeyId>(found, 0, "id of an API key").is_ok() {
        return error.to_string();
    }
    let bytes = found.get_ref(0).ok().and_then(|id| id.as_bytes().ok()).unwrap_or_default();
    let shown: String = String::from_utf8_lossy(bytes).chars().take(200).collect();
    format!("its id is not the id of a key: {shown:?}")
}

/// Reads a key from its row.
pub fn key(found: &Row<'_>) -> Result<ApiKey, Fault> {
    Ok(ApiKey {
        id: row::parsed(found, 0, "id of an API key")?,
        name: row::parsed(found, 1, "name of an API key")?,
        hash: SecretHash::from_stored(found.get(2)?),
        scopes: required(found, 3, "scopes of an API key")?,
        queues: required(found, 4, "queues of an API key")?,
        created_at: Timestamp::from_millis(found.get(5)?),
        expires_at: row::time(found, 6)?,
        last_used_at: row::time(found, 7)?,
        rate: row::json(found, 8, "rate of an API key")?,
        max_concurrent: found.get(9)?,
    })
}

/// Reads a list, which must be there: a key without patterns is for all queues.
fn required<T: DeserializeOwned>(found: &Row<'_>, at: usize, what: &'static str) -> Result<T, Fault> {
    row::json(found, at, what)?.ok_or_else(|| Fault::stored(what, "it is missing"))
}

fn add(db: &Connection, key: &ApiKey) -> Result<(), Fault> {
    db.prepare_cached(
        "INSERT OR REPLACE INTO api_keys \
         (id, name, hash, scopes, queues, created_at, expires_at, last_used_at, rate, max_concurrent) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        key.id.as_str(),
        key.name.as_str(),
        key.hash.as_bytes(),
        row::to_json(Some(&key.scopes))?,
        row::to_json(Some(&key.queues))?,
        key.created_at.millis(),
        key.expires_at.map(Timestamp::millis),
        key.last_used_at.map(Timestamp::millis),
        row::to_json(key.rate.as_ref())?,
        key.max_concurrent,
    ])?;
    raise_revision(db)
}

fn rotate(db: &Connection, id: &ApiKeyId, hash: &SecretHash) -> Result<bool, Fault> {
    let changed = db
        .prepare_cached("UPDATE api_keys SET hash = ?2 WHERE id = ?1")?
        .execute(params![id.as_str(), hash.as_bytes()])?;
    raise_revision(db)?;
    Ok(changed == 1)
}

fn remove(db: &Connection, id: &StoredKeyId) -> Result<bool, Fault> {
    let stored = match id.as_stored() {
        Some(text) => Some(text.as_bytes().to_vec()),
        None => named(db, id)?,
    };
    // The bytes of a text that is not valid UTF-8 are no parameter of this type.
    let mut remove = db.prepare_cached("DELETE FROM api_keys WHERE id = CAST(?1 AS TEXT)")?;
    let Some(stored) = stored else { return Ok(false) };
    let is_removed = remove.execute([stored])? > 0;
    raise_revision(db)?;
    Ok(is_removed)
}

/// Returns the bytes of the id that the key of this name is stored under.
fn named(db: &Connection, id: &StoredKeyId) -> Result<Option<Vec<u8>>, Fault> {
    let mut ids = db.prepare_cached("SELECT id FROM api_keys")?;
    let mut rows = ids.query([])?;
    while let Some(found) = rows.next()? {
        if name(found)? == *id {
            return Ok(Some(found.get_ref(0)?.as_bytes().map_err(rusqlite::Error::from)?.to_vec()));
        }
    }
    Ok(None)
}

fn note_uses(db: &Connection, uses: &[(ApiKeyId, Timestamp)]) -> Result<(), Fault> {
    let mut note = db.prepare_cached(
        "UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1 AND coalesce(last_used_at, 0) < ?2",
    )?;
    for (id, at) in uses {
        note.execute(params![id.as_str(), at.millis()])?;
    }
    Ok(())
}

/// Returns the secret of reservation tokens, if there is one that can be read.
fn stored_secret(db: &Connection) -> Result<Option<TokenSecret>, Fault> {
    let mut read = db.prepare_cached("SELECT value FROM secrets WHERE name = 'reservations'")?;
    let found: Option<Vec<u8>> = read.query_row([], |found| found.get(0)).optional()?;
    Ok(found.and_then(|secret| secret.try_into().ok()))
}

fn token_secret(db: &Connection, fresh: &TokenSecret) -> Result<TokenSecret, Fault> {
    if let Some(secret) = stored_secret(db)? {
        return Ok(secret);
    }
    // One that cannot be read is replaced: it must not stop a server.
    db.prepare_cached("INSERT OR REPLACE INTO secrets (name, value) VALUES ('reservations', ?1)")?
        .execute([fresh])?;
    Ok(*fresh)
}

/// Raises the revision of what every server remembers.
pub fn raise_revision(db: &Connection) -> Result<(), Fault> {
    db.prepare_cached("UPDATE settings_revision SET revision = revision + 1")?.execute([])?;
    Ok(())
}
