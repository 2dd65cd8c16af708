//! API keys as this server knows them. What changes them holds here at once and within a second on other servers, which
//! read the keys with the settings. What another program changes raises no revision: it holds where the keys are listed, and
//! everywhere once they or the settings are changed.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use serde_json::json;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::audit::{Act, shown};
use super::key_limits::{Permit, Usage};
use super::{Error, Queues, Result};
use crate::job::access::{CONCURRENT_MAX, EXPIRY_MAX_MS};
use crate::job::{
    ApiKey, ApiKeyId, ApiKeyName, Payload, QueuePattern, Rate, Scope, SecretHash, StoredKeyId, Timestamp,
};
use crate::store::audit::along;
use crate::store::{StoreError, StoredKeys};

/// The most keys that can be stored.
const KEYS_MAX: usize = 10_000;

/// What a new key is to be.
#[derive(Debug, Clone)]
pub struct NewApiKey {
    /// Its name.
    pub name: ApiKeyName,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// In which queues; empty: in all of them.
    pub queues: Vec<QueuePattern>,
    /// After which time it expires, in milliseconds.
    pub expires_in_ms: Option<u64>,
    /// How many requests it may make in a time, at each server.
    pub rate: Option<Rate>,
    /// How many of its requests a server works on at once.
    pub max_concurrent: Option<u32>,
}

impl NewApiKey {
    /// Returns the first field that is out of its range.
    fn fault(&self) -> Option<Error> {
        if let Some((field, what)) = ApiKey::fault(&self.scopes, &self.queues) {
            return Some(Error::invalid(format!("/{field}"), what));
        }
        if self.expires_in_ms.is_some_and(|ms| !(1000..=EXPIRY_MAX_MS).contains(&ms)) {
            return Some(Error::invalid("/expires_in_ms", format!("must be 1000 to {EXPIRY_MAX_MS}")));
        }
        if let Some((field, what)) = self.rate.as_ref().and_then(Rate::fault) {
            return Some(Error::invalid(format!("/rate/{field}"), what));
        }
        let out_of_range = self.max_concurrent.is_some_and(|most| !(1..=CONCURRENT_MAX).contains(&most));
        out_of_range.then(|| Error::invalid("/max_concurrent", format!("must be 1 to {CONCURRENT_MAX}")))
    }
}

/// A key and its text, which is shown once and kept nowhere.
#[derive(Clone)]
pub struct FreshKey {
    /// The key.
    pub key: ApiKey,
    /// Its text.
    pub text: String,
}

/// Returns what is remembered of a key in the audit: nothing by which it could be guessed.
fn of_key(key: &ApiKey) -> Option<Payload> {
    let ApiKey { name, scopes, queues, expires_at, rate, max_concurrent, .. } = key;
    shown(&json!({
        "name": name.as_str(),
        "scopes": scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>(),
        "queues": queues,
        "expires_at": expires_at,
        "rate": rate,
        "max_concurrent": max_concurrent,
    }))
}

/// What became of the text of a key.
#[derive(Debug, Clone)]
pub enum Recognised {
    /// It is that of this key.
    Key(Arc<ApiKey>),
    /// It is that of a key that has expired.
    Expired,
    /// It is not that of a key that is stored.
    Unknown,
}

struct Entry {
    key: Arc<ApiKey>,
    usage: Arc<Usage>,
}

/// The stored keys, by id.
#[derive(Default)]
pub(super) struct KeyRing {
    entries: RwLock<HashMap<ApiKeyId, Entry>>,
    /// Those that cannot be read: each is in the log once.
    unreadable: Mutex<HashSet<StoredKeyId>>,
    /// Whether any are stored, also ones that cannot be read.
    has_any: AtomicBool,
    /// Whether the keys were read; before, it is unknown whether there are any.
    is_known: AtomicBool,
    /// Notified when something that was allowed may not be any more.
    narrowed: Notify,
    /// How many times that has happened.
    narrowings: AtomicU64,
}

impl KeyRing {
    /// Replaces the keys. Uses that are not stored yet are kept. Cuts what is wrong with those that cannot be read.
    pub fn adopt(&self, stored: &mut StoredKeys) {
        stored.tame();
        self.log_unreadable(stored);
        let mut entries = self.entries.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let adopted = stored.keys.iter().map(|key| {
            let known = entries.get(&key.id).filter(|known| known.key.rate == key.rate);
            let usage = known.map_or_else(|| Arc::new(Usage::new(key)), |known| known.usage.clone());
            usage.note(key.last_used_at);
            (key.id.clone(), Entry { key: Arc::new(key.clone()), usage })
        });
        let adopted: HashMap<ApiKeyId, Entry> = adopted.collect();
        let is_kept =
            |known: &Entry| adopted.get(&known.key.id).is_some_and(|entry| entry.key.allows_like(&known.key));
        let all_kept = entries.values().all(is_kept);
        *entries = adopted;
        if !all_kept {
            self.narrowings.fetch_add(1, Ordering::AcqRel); // before a key of the new ones can be recognised
        }
        drop(entries);
        let had_any = self.has_any.swap(!stored.is_empty(), Ordering::AcqRel);
        self.is_known.store(true, Ordering::Release);
        if !all_kept || (!had_any && !stored.is_empty()) {
            self.narrowed.notify_waiters();
        }
    }

    /// Logs the keys that cannot be read and could be, or were not there, before.
    fn log_unreadable(&self, stored: &StoredKeys) {
        let mut known = self.unreadable.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for key in stored.unreadable.iter().filter(|key| !known.contains(&key.id)) {
            tracing::error!(id = %key.id, why = key.why, "an API key cannot be read; a DELETE removes it");
        }
        *known = stored.unreadable.iter().map(|key| key.id.clone()).collect();
    }

    /// Returns once something that was allowed may not be any more, from the moment of this call on.
    pub fn narrowed(&self) -> Notified<'_> {
        self.narrowed.notified()
    }

    /// Returns a number that is another one as soon as something that a key allowed may not be any more.
    pub fn narrowings(&self) -> u64 {
        self.narrowings.load(Ordering::Acquire)
    }

    /// Returns the uses that are later than those that are stored.
    fn unsaved_uses(&self) -> Vec<(ApiKeyId, Timestamp)> {
        let entries = self.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let used = entries.values().filter_map(|entry| {
            let at = entry.usage.last().filter(|at| Some(*at) > entry.key.last_used_at)?;
            Some((entry.key.id.clone(), at))
        });
        used.collect()
    }

    /// Remembers that these uses are stored.
    fn saved(&self, uses: &[(ApiKeyId, Timestamp)]) {
        let mut entries = self.entries.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        for (id, at) in uses {
            if let Some(entry) = entries.get_mut(id) {
                let key = ApiKey { last_used_at: Some(*at), ..ApiKey::clone(&entry.key) };
                entry.key = Arc::new(key);
            }
        }
    }
}

impl Queues {
    /// Returns whether any API keys are stored; `None`: they were not read yet.
    pub fn has_api_keys(&self) -> Option<bool> {
        let keys = &self.0.keys;
        keys.is_known.load(Ordering::Acquire).then(|| keys.has_any.load(Ordering::Acquire))
    }

    /// Returns the key of this id, if it is stored.
    pub(super) fn stored_api_key(&self, id: &ApiKeyId) -> Option<Arc<ApiKey>> {
        let entries = self.0.keys.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        entries.get(id).map(|entry| entry.key.clone())
    }

    /// Returns the key that this text, whose hash is given, is that of.
    pub fn recognise(&self, text: &str, hash: &SecretHash) -> Result<Recognised> {
        let now = self.now()?; // an error until the keys are known
        let Some(id) = ApiKey::id_in(text).and_then(|id| id.parse::<ApiKeyId>().ok()) else {
            return Ok(Recognised::Unknown);
        };
        let entries = self.0.keys.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Ok(match entries.get(&id).filter(|entry| entry.key.hash == *hash) {
            None => Recognised::Unknown,
            Some(entry) if entry.key.is_expired(now) => Recognised::Expired,
            Some(entry) => {
                entry.usage.note(Some(now));
                Recognised::Key(entry.key.clone())
            }
        })
    }

    /// Returns the key of this id, if it is stored and has not expired. It does not count as used: see [`Self::note_use`].
    pub fn valid_api_key(&self, id: &str) -> Result<Option<Arc<ApiKey>>> {
        let now = self.now()?; // an error until the keys are known
        let Ok(id) = id.parse::<ApiKeyId>() else { return Ok(None) };
        let entries = self.0.keys.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let valid = entries.get(&id).filter(|entry| !entry.key.is_expired(now));
        Ok(valid.map(|entry| entry.key.clone()))
    }

    /// Notes that the key was used just now.
    pub fn note_use(&self, id: &ApiKeyId) -> Result<()> {
        let now = self.now()?;
        let entries = self.0.keys.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(entry) = entries.get(id) {
            entry.usage.note(Some(now));
        }
        Ok(())
    }

    /// Admits a request of this key, unless that would exceed a limit of the key. What is returned is to be kept until the
    /// request has been worked on.
    pub fn admit_key(&self, key: &ApiKey) -> Result<Option<Permit>> {
        if key.rate.is_none() && key.max_concurrent.is_none() {
            return Ok(None);
        }
        let entries = self.0.keys.entries.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        entries.get(&key.id).map(|entry| entry.usage.admit(&entry.key)).transpose()
    }

    /// Signs a session of a key with the secret of the store.
    pub fn sign(&self, session: &str, hash: &SecretHash) -> Result<String> {
        let unknown = || StoreError::unavailable("the secret of the store is not known yet");
        let tokens = self.0.tokens.get().ok_or_else(unknown)?;
        let text: Vec<u8> = hash.as_bytes().iter().copied().chain(session.bytes()).collect();
        Ok(tokens.sign("session", &text))
    }

    /// Makes a key.
    pub async fn create_api_key(&self, new: NewApiKey) -> Result<FreshKey> {
        if let Some(fault) = new.fault() {
            return Err(fault);
        }
        let NewApiKey { name, scopes, queues, expires_in_ms, rate, max_concurrent } = new;
        if self.0.store.api_keys().await?.len() >= KEYS_MAX {
            return Err(Error::invalid("", format!("would be more than {KEYS_MAX} keys; delete some")));
        }
        let id = ApiKey::fresh_id();
        let text = ApiKey::fresh_text(&id);
        let now = self.now()?;
        let key = ApiKey {
            id,
            name,
            hash: SecretHash::of(&text),
            scopes,
            queues,
            created_at: now,
            expires_at: expires_in_ms.map(|ms| now.plus_ms(ms)),
            rate,
            max_concurrent,
            last_used_at: None,
        };
        let row =
            self.row(Act { what: "key.create", on: key.id.as_str(), after: of_key(&key), ..Act::default() });
        along(row, self.0.store.add_api_key(&key)).await?;
        self.reread_settings().await;
        Ok(FreshKey { key, text })
    }

    /// Reads the keys and puts them in force.
    pub(super) async fn reread_api_keys(&self) -> Result<StoredKeys, StoreError> {
        let _one_by_one = self.0.refreshing.lock().await; // a slower read must not undo a newer one
        let mut stored = self.0.store.api_keys().await?;
        self.0.keys.adopt(&mut stored);
        Ok(stored)
    }

    /// Returns the keys, by id, and those that cannot be read. What is returned is in force, no matter what wrote it.
    pub async fn api_keys(&self) -> Result<StoredKeys> {
        let mut stored = self.reread_api_keys().await?;
        let uses: HashMap<ApiKeyId, Timestamp> = self.0.keys.unsaved_uses().into_iter().collect();
        for key in &mut stored.keys {
            key.last_used_at = key.last_used_at.max(uses.get(&key.id).copied());
        }
        Ok(stored)
    }

    /// Gives a key a new secret; from then on the one before is refused.
    pub async fn rotate_api_key(&self, id: &StoredKeyId) -> Result<FreshKey> {
        let unknown = || Error::UnknownApiKey(id.clone());
        let StoredKeys { keys, unreadable } = self.api_keys().await?;
        if let Some(spoiled) = unreadable.into_iter().find(|key| key.id == *id) {
            return Err(Error::UnreadableApiKey { id: spoiled.id, why: spoiled.why });
        }
        let stored = keys.into_iter().find(|key| key.id.as_str() == id.as_str()).ok_or_else(unknown)?;
        let text = ApiKey::fresh_text(&stored.id);
        let before = of_key(&stored);
        let key = ApiKey { hash: SecretHash::of(&text), ..stored };
        let (on, after) = (key.id.as_str(), of_key(&key));
        let row = self.row(Act { what: "key.rotate", on, before, after, ..Act::default() });
        if !along(row, self.0.store.rotate_api_key(&key.id, &key.hash)).await? {
            return Err(unknown());
        }
        self.reread_settings().await;
        Ok(FreshKey { key, text })
    }

    /// Deletes a key, whether or not it can be read: from then on it is refused.
    pub async fn delete_api_key(&self, id: &StoredKeyId) -> Result<()> {
        let StoredKeys { keys, unreadable } = self.0.store.api_keys().await?;
        let mut ids =
            keys.iter().map(|key| key.id.as_str()).chain(unreadable.iter().map(|key| key.id.as_str()));
        if !ids.any(|stored| stored == id.as_str()) {
            return Err(Error::UnknownApiKey(id.clone()));
        }
        let before = keys.iter().find(|key| key.id.as_str() == id.as_str()).and_then(of_key);
        let row = self.row(Act { what: "key.delete", on: id.as_str(), before, ..Act::default() });
        let is_removed = along(row, self.0.store.remove_api_key(id)).await?;
        self.reread_settings().await;
        is_removed.then_some(()).ok_or_else(|| Error::UnknownApiKey(id.clone()))
    }

    /// Stores when keys were used, and returns how many were.
    pub(super) async fn save_api_key_uses(&self) -> Result<u64> {
        let uses = self.0.keys.unsaved_uses();
        if !uses.is_empty() {
            self.0.store.note_api_key_uses(&uses).await?;
            self.0.keys.saved(&uses);
        }
        Ok(uses.len() as u64)
    }
}
