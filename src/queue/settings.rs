//! The queues and their settings. Settings hold at once on the server that changed them and within a second
//! on the others, which read their revision every half second.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::quotas::Places;
use super::reached::{self, ByName};
use super::{Error, Page, Queues, Result};
use crate::job::{QueueName, QueueSettings, Reach, Rules, Tokens};
use crate::store::{Expected, Named, Saved, SettingsSnapshot, StoreError, StoredSettings};

/// How many times a change that ends in a conflict is retried.
const TRIES: usize = 20;

/// The version that settings without a version have.
pub const NO_VERSION: &str = "0";

/// What `If-Match` demands of settings, or of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    None,
    /// That there are none.
    Absent,
    /// That there are any; a queue exists as soon as it is named.
    Exists,
    /// That they are of one of these versions.
    Versions(Vec<String>),
}

/// A queue as clients see it.
#[derive(Debug, Clone)]
pub struct QueueView {
    /// Its name.
    pub name: QueueName,
    /// What its owner has set.
    pub settings: QueueSettings,
    /// The version of that, for `ETag`.
    pub version: String,
    /// What holds, set or not.
    pub rules: Rules,
    /// What of the stored settings cannot be read, if anything.
    pub unreadable: Option<String>,
}

/// Waits before another try, with jitter: the change that this one met may still be on its way to a majority.
async fn back_off(attempt: usize) {
    if attempt > 0 {
        tokio::time::sleep(Duration::from_millis(10 * attempt as u64).mul_f64(rand::random())).await;
    }
}

impl Queues {
    fn snapshot(&self) -> Arc<SettingsSnapshot> {
        self.0.settings.read().unwrap_or_else(|poisoned| poisoned.into_inner()).0.clone()
    }

    /// Reads the settings, the API keys and the secret of reservation tokens for the first time.
    pub async fn load_settings(&self) -> Result<(), StoreError> {
        // The secret and the keys first: once the settings are known, other calls are let through.
        let secret = self.0.store.token_secret(rand::random()).await?;
        self.0.tokens.get_or_init(|| Tokens::new(&secret));
        self.reread_api_keys().await?;
        if let Some(snapshot) = self.0.store.settings(None).await? {
            self.adopt(snapshot);
        }
        Ok(())
    }

    /// Reads the settings if they have changed.
    pub(super) async fn refresh_settings(&self) -> Result<()> {
        let _one_by_one = self.0.refreshing.lock().await; // a slower read must not undo a newer one
        let known = self.snapshot().revision;
        if let Some(snapshot) = self.0.store.settings(Some(known)).await? {
            self.adopt(snapshot);
        }
        Ok(())
    }

    /// Reads the settings after a change of this server, which is done whether or not they can be read now: they are
    /// read again soon.
    pub(super) async fn reread_settings(&self) {
        if let Err(error) = self.refresh_settings().await {
            tracing::debug!(%error, "the settings are read again soon");
        }
    }

    /// Puts these settings in force. Wakes waiters of queues that are not paused any more, or whose limits
    /// have changed.
    fn adopt(&self, mut snapshot: SettingsSnapshot) {
        let queues = snapshot.queues.iter().map(|(queue, stored)| (queue.clone(), stored.settings.clone()));
        let rules = Rules::new(self.options().defaults.clone(), queues.collect());
        self.0.keys.adopt(&mut snapshot.api_keys);
        let before = {
            let mut settings = self.0.settings.write().unwrap_or_else(|poisoned| poisoned.into_inner());
            std::mem::replace(&mut *settings, (Arc::new(snapshot), rules.clone())).1
        };
        for (queue, settings) in before.configured() {
            let reserved = rules.max_reserved(queue).unwrap_or(u64::MAX);
            let is_raised = settings.max_reserved.is_some_and(|before| before < reserved)
                || (settings.rate.is_some() && settings.rate != rules.rate(queue));
            if (settings.paused && !rules.paused(queue)) || is_raised {
                self.0.waiters.wake_here(queue, usize::MAX);
            }
        }
    }

    /// Returns the queue's settings, with the defaults of those that are not set.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueView> {
        self.refresh_settings().await?;
        Ok(self.view(name.clone()))
    }

    fn view(&self, name: QueueName) -> QueueView {
        let snapshot = self.snapshot();
        let stored = snapshot.queues.get(&name);
        QueueView {
            settings: stored.map(|stored| stored.settings.clone()).unwrap_or_default(),
            version: stored.map_or_else(|| NO_VERSION.to_owned(), |stored| stored.version.clone()),
            rules: self.rules(),
            unreadable: snapshot.unreadable.get(&name).cloned(),
            name,
        }
    }

    /// Returns the queues within reach that have settings or jobs, by name.
    pub async fn list(
        &self,
        after: Option<&QueueName>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<QueueView, QueueName>> {
        self.refresh_settings().await?;
        let names = Names { queues: self, snapshot: self.snapshot() };
        let page = reached::page(&names, within, after, limit).await?;
        Ok(Page { items: page.items.into_iter().map(|name| self.view(name)).collect(), next: page.next })
    }

    /// Replaces a queue's settings.
    pub async fn configure(
        &self,
        name: &QueueName,
        settings: QueueSettings,
        precondition: &Precondition,
    ) -> Result<QueueView> {
        self.change(name, precondition, |_| Ok(settings.clone())).await
    }

    /// Changes some of a queue's settings: `change` maps the current ones to the new ones.
    pub async fn reconfigure(
        &self,
        name: &QueueName,
        precondition: &Precondition,
        change: impl Fn(QueueSettings) -> Result<QueueSettings>,
    ) -> Result<QueueView> {
        self.change(name, precondition, change).await
    }

    /// Stops or resumes delivery from a queue.
    pub async fn pause(&self, name: &QueueName, paused: bool) -> Result<QueueView> {
        self.change(name, &Precondition::None, |settings| Ok(QueueSettings { paused, ..settings })).await
    }

    async fn change(
        &self,
        name: &QueueName,
        precondition: &Precondition,
        change: impl Fn(QueueSettings) -> Result<QueueSettings>,
    ) -> Result<QueueView> {
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let (view, expected) = self.current(name, precondition).await?;
            let settings = change(view.settings)?;
            if let Some((field, what)) = settings.fault() {
                return Err(Error::invalid(format!("/{field}"), what));
            }
            let mut places = vec![self.admit_queues(self.new_queues(settings.dead_letter.iter())).await?];
            if expected == Expected::Absent {
                places.push(self.admit_settings(name).await?);
            }
            let version = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 9]>());
            let stored = StoredSettings { settings, version };
            match self.0.store.save_settings(name, Some(&stored), &expected).await? {
                Saved::Done => {
                    places.into_iter().for_each(Places::keep_all);
                    return self.queue(name).await;
                }
                Saved::Circle(circle) => return Err(Error::DeadLetterCircle(circle)),
                Saved::Conflict => {}
            }
        }
        Err(StoreError::unavailable("the settings were changed by others again and again").into())
    }

    /// Returns the settings, and the version that the store must find for a change of them to happen.
    async fn current(&self, name: &QueueName, precondition: &Precondition) -> Result<(QueueView, Expected)> {
        let view = self.queue(name).await?;
        match precondition {
            Precondition::Versions(versions) if !versions.contains(&view.version) => {
                Err(Error::SettingsChanged(name.clone()))
            }
            Precondition::Absent if view.version != NO_VERSION => Err(Error::SettingsChanged(name.clone())),
            _ if view.version == NO_VERSION => Ok((view, Expected::Absent)),
            _ => {
                let expected = Expected::Version(view.version.clone());
                Ok((view, expected))
            }
        }
    }

    /// Removes a queue's settings. A queue with jobs is only deleted when forced, and its jobs with it.
    pub async fn delete_queue(
        &self,
        name: &QueueName,
        precondition: &Precondition,
        force: bool,
    ) -> Result<()> {
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let (_, expected) = self.current(name, precondition).await?;
            let mut removed = 0;
            if force {
                removed = self.empty(name).await?;
            } else if !self.0.store.find(&crate::store::Filter::all(name.clone()), None, 1).await?.is_empty()
            {
                return Err(Error::QueueNotEmpty(name.clone()));
            }
            let saved = self.0.store.save_settings(name, None, &expected).await;
            if saved.map_err(|error| error.after(removed))? == Saved::Done {
                self.forget(Named::Settings, name.as_str());
                self.forget(Named::Queues, name.as_str());
                return self.refresh_settings().await;
            }
        }
        Err(StoreError::unavailable("the settings were changed by others again and again").into())
    }
}

/// The names of the queues that have settings or jobs.
struct Names<'a> {
    queues: &'a Queues,
    snapshot: Arc<SettingsSnapshot>,
}

#[async_trait]
impl ByName for Names<'_> {
    type Name = QueueName;
    type Item = QueueName;

    async fn after(&self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        let with_jobs = self.queues.0.store.queues("", after, limit).await?;
        let mut configured: Vec<&QueueName> =
            self.snapshot.queues.keys().filter(|name| after.is_none_or(|after| *name > after)).collect();
        if configured.len() > limit {
            configured.select_nth_unstable(limit - 1); // the first of them, without sorting all
            configured.truncate(limit);
        }
        let names: BTreeSet<QueueName> =
            with_jobs.into_iter().chain(configured.into_iter().cloned()).collect();
        Ok(names.into_iter().take(limit).collect())
    }

    async fn at(&self, name: &QueueName) -> Result<Option<QueueName>> {
        let is_first = || async {
            let found = self.queues.0.store.queues(name.as_str(), None, 1).await?;
            Ok::<bool, StoreError>(found.first() == Some(name))
        };
        let is_there = self.snapshot.queues.contains_key(name) || is_first().await?;
        Ok(is_there.then(|| name.clone()))
    }

    fn name(item: &QueueName) -> &QueueName {
        item
    }
}
