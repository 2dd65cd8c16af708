//! The part of the contract that is about the settings of queues.

use std::collections::HashMap;

use async_trait::async_trait;

use super::{AuditRow, Result, StoreError, StoredKeys, Term};
use crate::job::settings::new_dead_letter_circle;
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
    /// The term in which it was read: the same revision of another one may be of other settings.
    pub term: Term,
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

impl Expected {
    /// Whether a change may replace what is of this version; `None`: where nothing is.
    pub(super) fn allows(&self, current: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
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

/// What is to be done for a [`SettingsChange`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SettingsStep {
    /// Nothing, and this is returned.
    Refuse(Saved),
    /// Nothing: it is as it is to be.
    Keep,
    /// The settings are replaced or removed, and the revision grows.
    Write,
}

impl SettingsChange {
    /// Decides about the change where the queue's settings are of this version. `dead_letter_of` says which dead-letter queue a
    /// queue has now; it is asked only where the version is right.
    pub(super) fn decide<E>(
        &self,
        current: Option<&str>,
        dead_letter_of: impl FnMut(&QueueName) -> Result<Option<QueueName>, E>,
    ) -> Result<SettingsStep, E> {
        if !self.expected.allows(current) {
            return Ok(SettingsStep::Refuse(Saved::Conflict));
        }
        if let Some(dead_letter) = self.to.as_ref().and_then(|to| to.settings.dead_letter.as_ref())
            && let Some(circle) = new_dead_letter_circle(&self.queue, dead_letter, dead_letter_of)?
        {
            return Ok(SettingsStep::Refuse(Saved::Circle(circle)));
        }
        Ok(if self.to.is_none() && current.is_none() { SettingsStep::Keep } else { SettingsStep::Write })
    }
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    fn change(to: Option<&str>, expected: Expected) -> SettingsChange {
        let settings =
            |dead_letter: &str| QueueSettings { dead_letter: Some(name(dead_letter)), ..Default::default() };
        let to = to.map(|to| StoredSettings { settings: settings(to), version: "2".to_owned() });
        SettingsChange { queue: name("q"), to, expected, rows: Vec::new() }
    }

    #[test]
    fn a_change_is_decided_by_version_and_then_by_circle() {
        let decide = |change: SettingsChange, current: Option<&str>| {
            let circular =
                |queue: &QueueName| Ok::<_, Infallible>((queue.as_str() == "back").then(|| name("q")));
            change.decide(current, circular).unwrap()
        };
        let refused = |saved| SettingsStep::Refuse(saved);
        let version = |version: &str| Expected::Version(version.to_owned());
        let circle = || Saved::Circle(["q", "back", "q"].map(name).to_vec());
        for (to, expected, current, step) in [
            (Some("d"), Expected::Any, None, SettingsStep::Write),
            (Some("d"), Expected::Any, Some("1"), SettingsStep::Write),
            (Some("d"), Expected::Absent, None, SettingsStep::Write),
            (Some("d"), Expected::Absent, Some("1"), refused(Saved::Conflict)),
            (Some("d"), version("1"), Some("1"), SettingsStep::Write),
            (Some("d"), version("1"), Some("2"), refused(Saved::Conflict)),
            (Some("d"), version("1"), None, refused(Saved::Conflict)),
            (Some("back"), Expected::Any, None, refused(circle())),
            (Some("back"), version("1"), None, refused(Saved::Conflict)),
            (None, Expected::Any, None, SettingsStep::Keep),
            (None, Expected::Any, Some("1"), SettingsStep::Write),
            (None, version("1"), None, refused(Saved::Conflict)),
        ] {
            assert_eq!(
                decide(change(to, expected.clone()), current),
                step,
                "{to:?} {expected:?} {current:?}"
            );
        }
    }
}
