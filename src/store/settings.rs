//! The part of the contract that is about the settings of queues.

use std::collections::HashMap;

use async_trait::async_trait;

use super::Result;
use crate::job::{QueueName, QueueSettings};

/// One queue's settings as stored. `version` is opaque and changes with every change.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSettings {
    /// The settings.
    pub settings: QueueSettings,
    /// Compared by equality only.
    pub version: String,
}

/// All queues' settings.
#[derive(Debug, Clone, Default)]
pub struct SettingsSnapshot {
    /// Grows with each change: a snapshot of another revision is out of date.
    pub revision: i64,
    /// Each queue that has settings.
    pub queues: HashMap<QueueName, StoredSettings>,
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

/// What became of a change of settings, or of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Saved {
    /// It is stored.
    Done,
    /// It is not, or no longer, of the expected version.
    Conflict,
}

/// The settings of queues: read as a whole, changed one queue at a time under optimistic concurrency.
#[async_trait]
pub trait Settings: Send + Sync {
    /// Returns all settings, unless their revision is still `known`.
    async fn settings(&self, known: Option<i64>) -> Result<Option<SettingsSnapshot>>;

    /// Replaces a queue's settings, or removes them, if they are of the expected version; else returns
    /// [`Saved::Conflict`].
    async fn save_settings(
        &self,
        queue: &QueueName,
        to: Option<&StoredSettings>,
        expected: &Expected,
    ) -> Result<Saved>;
}
