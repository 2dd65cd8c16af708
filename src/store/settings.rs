//! The part of the contract that is about the settings of queues.

use std::collections::HashMap;

use async_trait::async_trait;

use super::{AuditRow, Result, StoreError, StoredKeys};
use crate::job::{QueueName, QueueSettings};

/// One queue's settings as stored. `version` is opaque and changes with every change.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSettings {
    /// The settings.
    pub settings: QueueSettings,
    /// Compared by equality only.
    pub version: String,
}

/// What every server remembers: all queues' settings, and the API keys.
#[derive(Debug, Clone, Default)]
pub struct SettingsSnapshot {
    /// Grows with each change: a snapshot of another revision is out of date.
    pub revision: i64,
    /// Each queue that has settings: where they cannot be read whole, what can be read of them.
    pub queues: HashMap<QueueName, StoredSettings>,
    /// The queues whose settings cannot be read whole, and why.
    pub unreadable: HashMap<QueueName, String>,
    /// The API keys.
    pub api_keys: StoredKeys,
}

/// The version of settings whose version cannot be read.
pub const NO_VALID_VERSION: &str = "unreadable";

/// Returns the version if it is one that a server may have made: others fit into no entity tag.
pub(super) fn valid_version(version: String) -> Option<String> {
    Some(version).filter(|version| version.bytes().all(|byte| matches!(byte, b'!' | b'#'..=b'~')))
}

impl SettingsSnapshot {
    /// Adds the settings of a queue as they are stored. Logs what cannot be read.
    pub(super) fn add(&mut self, queue: QueueName, value: serde_json::Value, version: Option<String>) {
        let (settings, wrong) = QueueSettings::stored(value);
        let version = version.and_then(valid_version);
        let wrong = wrong.or_else(|| version.is_none().then(|| "the version is not a valid text".to_owned()));
        if let Some(why) = wrong {
            tracing::error!(%queue, why, "the stored settings of a queue cannot be read whole; a PUT replaces them");
            self.unreadable.insert(queue.clone(), why);
        }
        let version = version.unwrap_or_else(|| NO_VALID_VERSION.to_owned());
        self.queues.insert(queue, StoredSettings { settings, version });
    }
}

/// The version that a queue's settings must have for a change to happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// Any, or none at all.
    Any,
    /// There must be no settings.
    Absent,
    /// This one.
    Version(String),
}

/// A change of one queue's settings.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingsChange {
    /// The queue.
    pub queue: QueueName,
    /// Its new settings; `None`: it has none from now on.
    pub to: Option<StoredSettings>,
    /// What they must be now.
    pub expected: Expected,
    /// What is remembered of it in the audit, if it is done.
    pub rows: Vec<AuditRow>,
}

/// What became of a change of settings, or of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// It is stored.
    Done,
    /// It is not, or no longer, of the expected version.
    Conflict,
    /// Nothing was stored: the dead-letter queue that the settings name would close this circle.
    Circle(Vec<QueueName>),
}

/// The settings of queues: read as a whole, changed queue by queue under optimistic concurrency.
#[async_trait]
pub trait Settings: Send + Sync {
    /// Returns all settings and the API keys, unless their revision is still `known`.
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>>;

    /// Replaces settings, or removes them: each change where its queue's settings are of the expected version, else it is a
    /// [`Saved::Conflict`] and the others go on. A dead-letter queue that they did not name before closes no circle, whatever is saved at
    /// the same moment: then it is [`Saved::Circle`]. All that is done happens at once. A change meets what those before it left.
    /// The revision grows unless nothing was changed.
    async fn save_all_settings(&self, changes: &[SettingsChange]) -> Result<Vec<Saved>>;

    /// The same for one queue.
    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved> {
        let change = SettingsChange {
            queue: queue.clone(),
            to: to.cloned(),
            expected: expected.clone(),
            rows: Vec::new(),
        };
        let saved = self.save_all_settings(&[change]).await?.pop();
        saved.ok_or_else(|| StoreError::internal("a change of settings was left unanswered"))
    }
}
