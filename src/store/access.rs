//! The part of the contract that is about API keys, and about the secret of reservation tokens.

use async_trait::async_trait;

use super::Result;
use crate::job::{ApiKey, ApiKeyId, SecretHash, StoredKeyId, Timestamp};

/// The secret that the tokens of reservations are made with; the same for all servers over one database.
pub type TokenSecret = [u8; 32];

/// The most characters that describe what is wrong with a key.
const WHY_MAX: usize = 300;

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

    /// Cuts what is wrong with keys to what can be logged, listed and printed to a terminal: it may quote what another program wrote,
    /// however long, with control characters.
    pub fn tame(&mut self) {
        for key in &mut self.unreadable {
            key.why = legible(&key.why);
        }
    }
}

/// Returns the beginning of a text, in which what cannot be printed is escaped.
fn legible(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars().take(WHY_MAX) {
        match c {
            '\'' | '"' | '\\' => escaped.push(c),
            _ => escaped.extend(c.escape_debug()),
        }
    }
    escaped.chars().take(WHY_MAX).collect()
}

/// API keys, and the secret of reservation tokens. Keys are few, and servers remember all of them: they are part of
/// [`SettingsSnapshot`](super::SettingsSnapshot), and what changes them raises its revision.
#[async_trait]
pub trait Access: Send + Sync {
    /// Returns the stored API keys, with their last uses.
    async fn api_keys(&self) -> Result<StoredKeys>;

    /// Returns the secret of this database, if there is one: a server has run on it, or it was copied.
    async fn stored_secret(&self) -> Result<Option<TokenSecret>>;

    /// Returns the secret of this database, which is `fresh` where there was none.
    async fn token_secret(&self, fresh: TokenSecret) -> Result<TokenSecret>;

    /// Stores a key whose id is new.
    async fn add_api_key(&self, key: &ApiKey) -> Result<()>;

    /// Replaces the secret of a key. Returns whether there is such a key.
    async fn rotate_api_key(&self, id: &ApiKeyId, hash: &SecretHash) -> Result<bool>;

    /// Removes a key, whether or not it can be read. Returns whether there was one.
    async fn remove_api_key(&self, id: &StoredKeyId) -> Result<bool>;

    /// Remembers when keys were used last. Raises no revision.
    async fn note_api_key_uses(&self, uses: &[(ApiKeyId, Timestamp)]) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_key_is_short_and_printable() {
        let why = ["short", r#"'é' is no "scope" \"#, "\u{1b}[31m\n\u{202e}", &"x".repeat(20_000)];
        let id = StoredKeyId::of_text("a");
        let spoiled = why.map(|why| UnreadableKey { id: id.clone(), why: why.to_owned() });
        let mut stored = StoredKeys { unreadable: spoiled.into(), ..StoredKeys::default() };
        for _ in 0..2 {
            stored.tame();
            let told: Vec<&str> = stored.unreadable.iter().map(|key| key.why.as_str()).collect();
            assert_eq!(told, [why[0], why[1], r"\u{1b}[31m\n\u{202e}", &why[3][..WHY_MAX]]);
        }
        assert!(stored.unreadable.iter().all(|key| key.why.capacity() < 2 * WHY_MAX));
    }
}
