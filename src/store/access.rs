//! The part of the contract that is about API keys, and about the secret of reservation tokens.

use async_trait::async_trait;

use super::Result;
use crate::job::{ApiKey, ApiKeyId, SecretHash, Timestamp};

/// The secret that the tokens of reservations are made with; the same for all servers over one database.
pub type TokenSecret = [u8; 32];

/// The stored API keys.
#[derive(Debug, Clone, Default)]
pub struct StoredKeys {
    /// Those that can be read, by id.
    pub keys: Vec<ApiKey>,
    /// How many cannot be read. They open nothing, but keys are in use all the same.
    pub unreadable: usize,
}

impl StoredKeys {
    /// Returns whether any keys are stored.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.unreadable == 0
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

    /// Removes a key, whether or not it can be read.
    async fn remove_api_key(&self, id: &ApiKeyId) -> Result<()>;

    /// Remembers when keys were used last. Raises no revision.
    async fn note_api_key_uses(&self, uses: &[(ApiKeyId, Timestamp)]) -> Result<()>;
}
