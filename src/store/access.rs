//! The part of the contract that is about API keys, and about the secret of reservation tokens.

use async_trait::async_trait;

use super::Result;
use crate::job::{ApiKey, ApiKeyId, SecretHash, StoredKeyId, Timestamp};

/// The secret that the tokens of reservations are made with; the same for all servers over one database.
pub type TokenSecret = [u8; 32];

/// An API key that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableKey {
    /// What names it.
    pub id: StoredKeyId,
    /// What is wrong with it.
    pub why: String,
}

/// The stored API keys.
#[derive(Debug, Clone, Default)]
pub struct StoredKeys {
    /// Those that can be read, by id.
    pub keys: Vec<ApiKey>,
    /// Those that cannot be read. They open nothing, but keys are in use all the same.
    pub unreadable: Vec<UnreadableKey>,
}

impl StoredKeys {
    /// Returns how many keys are stored.
    pub fn len(&self) -> usize {
        self.keys.len() + self.unreadable.len()
    }

    /// Returns whether no keys are stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// API keys. There are few, and servers remember all of them: they are part of
/// [`SettingsSnapshot`](super::SettingsSnapshot), and what changes them raises its revision.
#[async_trait]
pub trait Access: Send + Sync {
    /// Stores a key whose id is new.
    async fn add_api_key(&self, key: &ApiKey) -> Result<()>;

    /// Replaces the secret of a key. Returns whether there is such a key.
    async fn rotate_api_key(&self, id: &ApiKeyId, hash: &SecretHash) -> Result<bool>;

    /// Removes a key, whether or not it can be read. Returns whether there was one.
    async fn remove_api_key(&self, id: &StoredKeyId) -> Result<bool>;

    /// Remembers when keys were used last. Raises no revision.
    async fn note_api_key_uses(&self, uses: &[(ApiKeyId, Timestamp)]) -> Result<()>;
}
