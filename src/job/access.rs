//! Who may do what: scopes, API keys and callers.
//!
//! | scope | what it allows |
//! |---|---|
//! | `push` | to put jobs into queues, whichever call does it |
//! | `consume` | to reserve jobs and to settle them |
//! | `read` | to see jobs, queues, figures |
//! | `operate` | to change jobs, queues, schedules and semaphores |
//! | `admin` | all of that, and to make keys |

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::distr::{Alphanumeric, SampleString as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::names::{TextForm, VERSION_RULE, is_version, text_type};
use super::{QueueName, QueuePattern, Rate, Timestamp};

/// What a key allows.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// To put jobs into queues.
    Push,
    /// To reserve jobs and to settle them.
    Consume,
    /// To see jobs, queues and figures.
    Read,
    /// To change jobs, queues, schedules and semaphores.
    Operate,
    /// All of the others, and to make keys.
    Admin,
}

impl Scope {
    /// Every scope.
    pub const ALL: [Self; 5] = [Self::Push, Self::Consume, Self::Read, Self::Operate, Self::Admin];

    /// Returns the scope as it is on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::Consume => "consume",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|scope| scope.as_str() == text);
        found.ok_or_else(|| "must be one of: push, consume, read, operate, admin".to_owned())
    }
}

fn is_id(text: &str) -> bool {
    text.len() == ID_LEN && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

text_type! {
    /// The id of an API key: part of the key's text, and no secret.
    ApiKeyId, is_id, "the id of a key: 12 of A-Z a-z 0-9", TextForm::up_to(12)
}

const STORED_ID_RULE: &str = "an id that a list of keys shows: up to 128 of A-Z a-z 0-9 . _ -";

fn is_stored_id(text: &str) -> bool {
    let is_part = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=128).contains(&text.len()) && text.bytes().all(is_part) && !text.starts_with(['.', '-'])
}

text_type! {
    /// What names a stored API key: its id. Another program may have stored one whose id is none: where that does not fit into a
    /// path, or is no text, `_` and a hash of it stand for it.
    StoredKeyId, is_stored_id, STORED_ID_RULE, TextForm::up_to(128)
}

impl StoredKeyId {
    /// Returns what names a key that is stored under this text.
    pub fn of_text(text: &str) -> Self {
        match is_stored_id(text) && !text.starts_with(HASHED) {
            true => Self(text.into()),
            false => Self::of_bytes(text.as_bytes()),
        }
    }

    /// Returns what names a key that is stored under something else, by its bytes in the store.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let mut hash = URL_SAFE_NO_PAD.encode(Sha256::digest(bytes));
        hash.truncate(HASH_LEN);
        Self(format!("{HASHED}{hash}").into())
    }

    /// Returns the text that the key is stored under; `None` where this is a hash of it.
    pub fn as_stored(&self) -> Option<&str> {
        (!self.0.starts_with(HASHED)).then_some(&*self.0)
    }
}

impl From<&ApiKeyId> for StoredKeyId {
    fn from(id: &ApiKeyId) -> Self {
        Self(id.0.clone())
    }
}

text_type! {
    /// What people call an API key.
    ApiKeyName, is_version, VERSION_RULE, TextForm::up_to(128)
}

/// What every key's text begins with, so that programs which look for secrets recognise it.
pub const PREFIX: &str = "tb_";
const ID_LEN: usize = 12;
/// What the hash of an id begins with. No id of a key does.
const HASHED: char = '_';
/// 132 bits, at 64 values a character.
const HASH_LEN: usize = 22;
/// 142 random bits, at 62 values a character.
const SECRET_LEN: usize = 24;
/// The most patterns of queues that a key has.
pub const PATTERNS_MAX: usize = 100;
/// The most requests of a key that a server works on at once, where it has a limit.
pub const CONCURRENT_MAX: u32 = 100_000;
/// The longest time after which a key can expire: ten years.
pub const EXPIRY_MAX_MS: u64 = 10 * 366 * 86_400_000;

/// The SHA-256 of a secret: all that is kept of it. Compared in constant time, and not shown.
#[derive(Clone, Copy)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// Returns the hash of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Returns the hash that a store has kept.
    pub fn from_stored(hash: [u8; 32]) -> Self {
        Self(hash)
    }

    /// Returns the bytes, as a store keeps them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for SecretHash {
    fn eq(&self, other: &Self) -> bool {
        // By words: byte by byte it is a multiple of the time.
        let words = |hash: &[u8; 32]| -> [u64; 4] {
            std::array::from_fn(|n| u64::from_ne_bytes(std::array::from_fn(|at| hash[8 * n + at])))
        };
        words(&self.0).ct_eq(&words(&other.0)).into()
    }
}

impl Eq for SecretHash {}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// An API key as it is kept. A key that is revoked is deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id.
    pub id: ApiKeyId,
    /// Its name.
    pub name: ApiKeyName,
    /// The hash of its whole text.
    pub hash: SecretHash,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// In which queues; empty: in all of them.
    pub queues: Vec<QueuePattern>,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it is refused, if ever.
    pub expires_at: Option<Timestamp>,
    /// How many requests it may make in a time, at each server.
    pub rate: Option<Rate>,
    /// How many of its requests a server works on at once.
    pub max_concurrent: Option<u32>,
    /// When it was used last, to a minute or two.
    pub last_used_at: Option<Timestamp>,
}

impl ApiKey {
    /// Returns a fresh id.
    pub fn fresh_id() -> ApiKeyId {
        ApiKeyId(Alphanumeric.sample_string(&mut rand::rng(), ID_LEN).into())
    }

    /// Returns the text of a key of this id with a fresh secret.
    pub fn fresh_text(id: &ApiKeyId) -> String {
        format!("{PREFIX}{id}_{}", Alphanumeric.sample_string(&mut rand::rng(), SECRET_LEN))
    }

    /// Returns the id that the text of a key names, if it has the form of one.
    pub fn id_in(text: &str) -> Option<&str> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        (is_id(id) && secret.len() == SECRET_LEN).then_some(id)
    }

    /// Returns whether the key has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Returns whether this is the same key with the same secret, and allows the same.
    pub fn allows_like(&self, other: &Self) -> bool {
        (&self.id, &self.hash, &self.scopes, &self.queues)
            == (&other.id, &other.hash, &other.scopes, &other.queues)
    }

    /// Returns what is wrong with the scopes or the queues of a new key: the field, and why.
    pub fn fault(scopes: &[Scope], queues: &[QueuePattern]) -> Option<(&'static str, &'static str)> {
        let repeated = scopes.iter().enumerate().any(|(n, scope)| scopes[..n].contains(scope));
        if scopes.is_empty() || repeated {
            return Some(("scopes", "must be one or several of push, consume, read, operate, admin"));
        }
        if scopes.contains(&Scope::Admin) && !queues.is_empty() {
            return Some((
                "queues",
                "cannot be combined with the scope admin, which is for the whole server",
            ));
        }
        (queues.len() > PATTERNS_MAX).then_some(("queues", "must be at most 100 patterns"))
    }
}

/// Where a request comes from, as far as that decides what it may do.
#[derive(Debug, Clone)]
pub enum Caller {
    /// Keys are not required: everything is allowed.
    Anyone,
    /// The admin key of the configuration: everything is allowed.
    Admin,
    /// The owner of a stored key.
    Key(Arc<ApiKey>),
}

impl Caller {
    /// Returns whether the caller has this scope, in whichever queues.
    pub fn has(&self, scope: Scope) -> bool {
        match self {
            Self::Anyone | Self::Admin => true,
            Self::Key(key) => key.scopes.contains(&scope) || key.scopes.contains(&Scope::Admin),
        }
    }

    /// Returns whether the caller may do this in this queue.
    pub fn may(&self, scope: Scope, queue: &QueueName) -> bool {
        self.has(scope) && self.reaches(queue)
    }

    /// Returns whether the queue is among those that the caller may do anything in.
    pub fn reaches(&self, queue: &QueueName) -> bool {
        self.reaches_name(queue.as_str())
    }

    /// Returns whether the name of a queue, a semaphore or a worker is among those that the caller may use.
    pub fn reaches_name(&self, name: &str) -> bool {
        let patterns = self.patterns();
        patterns.is_empty() || patterns.iter().any(|pattern| pattern.matches_text(name))
    }

    /// Returns the patterns that limit the caller to some queues; empty: all queues.
    pub fn patterns(&self) -> &[QueuePattern] {
        match self {
            Self::Anyone | Self::Admin => &[],
            Self::Key(key) => &key.queues,
        }
    }

    /// Returns whether the caller may do something in some queues only.
    pub fn is_limited(&self) -> bool {
        !self.patterns().is_empty()
    }

    /// Returns the queues that the caller may do anything in.
    pub fn reach(&self) -> Reach {
        Reach(self.is_limited().then(|| self.patterns().into()))
    }

    /// Returns what of a pattern is within the caller's queues.
    pub fn within(&self, wanted: QueuePattern) -> Vec<QueuePattern> {
        let patterns = self.patterns();
        if patterns.is_empty() || patterns.iter().any(|pattern| pattern.covers(&wanted)) {
            return vec![wanted];
        }
        patterns.iter().filter(|pattern| wanted.covers(pattern)).cloned().collect()
    }

    /// Returns whether keys are required, so that the caller has shown one.
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Anyone)
    }

    /// Returns what identifies this caller: the key's id, empty where keys are not required.
    pub fn identity(&self) -> &str {
        match self {
            Self::Anyone => "",
            Self::Admin => "admin",
            Self::Key(key) => key.id.as_str(),
        }
    }
}

/// The queues in which something may happen; by default in all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach(Option<Arc<[QueuePattern]>>);

impl Reach {
    /// Returns one queue.
    pub fn one(queue: &QueueName) -> Self {
        Self(Some([QueuePattern::One(queue.clone())].into()))
    }

    /// Returns the queues that one of these patterns matches.
    pub fn of(patterns: Vec<QueuePattern>) -> Self {
        Self(Some(patterns.into()))
    }

    /// Returns whether this queue is among them.
    pub fn has(&self, queue: &QueueName) -> bool {
        self.0.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(queue)))
    }

    /// Returns the patterns of which one must match; `None`: all queues are among them.
    pub fn patterns(&self) -> Option<&[QueuePattern]> {
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(scopes: &[Scope], queues: &[&str]) -> Caller {
        let id = ApiKey::fresh_id();
        Caller::Key(Arc::new(ApiKey {
            hash: SecretHash::of("x"),
            id,
            name: "n".parse().unwrap(),
            scopes: scopes.to_vec(),
            queues: queues.iter().map(|text| text.parse().unwrap()).collect(),
            created_at: Timestamp::from_millis(0),
            expires_at: None,
            rate: None,
            max_concurrent: None,
            last_used_at: None,
        }))
    }

    #[test]
    fn the_text_of_a_key_names_its_id() {
        let id = ApiKey::fresh_id();
        let text = ApiKey::fresh_text(&id);
        assert_eq!(ApiKey::id_in(&text), Some(id.as_str()));
        assert_ne!(text, ApiKey::fresh_text(&id));
        for bad in ["", "tb_", "tb_a_b", &text[1..], &text[..text.len() - 1], &format!("{text}x")] {
            assert_eq!(ApiKey::id_in(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_key_is_limited_to_its_scopes_and_queues() {
        let (mail, other) = ("mail.out".parse().unwrap(), "mailbox".parse().unwrap());
        let caller = key(&[Scope::Push, Scope::Read], &["mail.*", "reports"]);
        assert!(caller.may(Scope::Push, &mail) && caller.may(Scope::Read, &"reports".parse().unwrap()));
        assert!(!caller.may(Scope::Consume, &mail) && !caller.may(Scope::Push, &other));
        for (wanted, within) in [
            ("mail.*", "mail.*"),
            ("mail.out.*", "mail.out.*"),
            ("mail*", "mail.*"),
            ("*", "mail.* reports"),
            ("reports", "reports"),
            ("other", ""),
        ] {
            let found: Vec<String> =
                caller.within(wanted.parse().unwrap()).iter().map(ToString::to_string).collect();
            assert_eq!(found.join(" "), within, "{wanted}");
        }
        assert!(key(&[Scope::Admin], &[]).may(Scope::Operate, &other));
    }

    #[test]
    fn whatever_a_key_is_stored_under_has_one_name() {
        let id = ApiKey::fresh_id();
        assert_eq!(StoredKeyId::of_text(id.as_str()), StoredKeyId::from(&id));
        let long = "x".repeat(129);
        let odd = ["", " ", "_a", "-a", "..", "a/b", "a\n", "é", long.as_str()];
        let mut names: Vec<StoredKeyId> = odd.iter().map(|text| StoredKeyId::of_text(text)).collect();
        for name in &names {
            assert_eq!((name.as_stored(), name.as_str().parse()), (None, Ok(name.clone())));
        }
        names.sort();
        names.dedup();
        assert_eq!(names.len(), odd.len());
    }

    #[test]
    fn hashes_are_not_shown() {
        assert_eq!(format!("{:?}", SecretHash::of("x")), "***");
    }
}
