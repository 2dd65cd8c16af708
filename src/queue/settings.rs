//! The queues and their settings. Settings hold at once on the server that changed them and within a second
//! on the others, which read their revision every half second.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::configure::{Change, back_off};
use super::reached::{self, ByName};
use super::{Error, Page, Queues, Result};
use crate::faults;
use crate::job::{QueueName, QueueSettings, Reach, Rules, Tokens};
use crate::store::{Named, SettingsSnapshot, StoreError};

/// How many times a queue is deleted again whose settings were changed meanwhile.
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

impl Precondition {
    /// Returns whether settings of this version are as demanded.
    pub(super) fn is_met(&self, version: &str) -> bool {
        match self {
            Self::None | Self::Exists => true,
            Self::Absent => version == NO_VERSION,
            Self::Versions(versions) => versions.iter().any(|demanded| demanded == version),
        }
    }
}

/// How the last reading of the settings ended.
pub(super) struct Refreshed {
    /// The how many-th it was.
    number: u64,
    outcome: Result<(), StoreError>,
}

impl Default for Refreshed {
    fn default() -> Self {
        Self { number: 0, outcome: Ok(()) }
    }
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

impl Queues {
    pub(super) fn snapshot(&self) -> Arc<SettingsSnapshot> {
        self.0.settings.read().unwrap_or_else(|poisoned| poisoned.into_inner()).0.clone()
    }

    /// Reads the settings, the API keys and the secret of reservation tokens for the first time.
    pub async fn load_settings(&self) -> Result<(), StoreError> {
        // The secret and the keys first: once the settings are known, other calls are let through.
        let secret = self.0.store.token_secret(rand::random()).await?;
        self.0.tokens.get_or_init(|| Tokens::new(&secret));
        // Again, behind the secret: a restore that marks the store from now on finds that, and takes its mark back.
        self.0.store.check_whole().await?;
        self.reread_api_keys().await?;
        if let Some(snapshot) = self.0.store.settings(None).await? {
            self.adopt(snapshot);
        }
        Ok(())
    }

    /// Reads the settings if they have changed. Of those who ask at the same time one reads for all.
    pub(super) async fn refresh_settings(&self) -> Result<()> {
        self.read_settings(false).await
    }

    /// Reads the settings, whatever their revision.
    pub(super) async fn read_all_settings(&self) -> Result<()> {
        self.read_settings(true).await
    }

    /// `all`: also where the revision says that they are known.
    async fn read_settings(&self, all: bool) -> Result<()> {
        let begun = self.0.refreshes.load(Ordering::SeqCst);
        let mut last = self.0.refreshing.lock().await; // a slower read must not undo a newer one
        if last.number > begun && !all {
            return last.outcome.clone().map_err(Error::from); // it began after this call, and so knows as much
        }
        let number = self.0.refreshes.fetch_add(1, Ordering::SeqCst) + 1;
        let (term, last_read) = (self.0.store.term(), self.snapshot());
        // Another primary may have another past behind the same revision.
        let known = (!all && last_read.term == term).then_some(last_read.revision);
        let read = self.0.store.settings(known).await;
        let adopt = |snapshot| self.adopt(SettingsSnapshot { term, ..snapshot });
        let outcome = read.map(|changed| changed.into_iter().for_each(adopt));
        *last = Refreshed { number, outcome: outcome.clone() };
        Ok(outcome?)
    }

    /// Reads the settings after a change of this server, which is done whether or not they can be read now: they are
    /// read again soon.
    pub(super) async fn reread_settings(&self) {
        self.0.waiters.peers.note_settings();
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
            if (settings.is_paused() && !rules.paused(queue)) || is_raised {
                self.0.waiters.wake_here(queue, usize::MAX);
            }
        }
    }

    /// Returns the queue's settings, with the defaults of those that are not set.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueView> {
        self.refresh_settings().await?;
        Ok(self.view(name.clone()))
    }

    pub(super) fn view(&self, name: QueueName) -> QueueView {
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

    /// Returns the queues within reach that have settings or jobs and whose names begin so, by name.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&QueueName>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<QueueView, QueueName>> {
        let page = self.queue_names(prefix, after, limit, within).await?;
        Ok(Page { items: page.items.into_iter().map(|name| self.view(name)).collect(), next: page.next })
    }

    /// The names alone.
    pub(super) async fn queue_names(
        &self,
        prefix: &str,
        after: Option<&QueueName>,
        limit: usize,
        within: &Reach,
    ) -> Result<Page<QueueName, QueueName>> {
        self.refresh_settings().await?;
        let names = Names { queues: self, snapshot: self.snapshot(), prefix };
        reached::page(&names, within, after, limit).await
    }

    /// Replaces a queue's settings. What they do not say about a pause leaves it as it is.
    pub async fn configure(
        &self,
        name: &QueueName,
        settings: QueueSettings,
        precondition: &Precondition,
    ) -> Result<QueueView> {
        self.change(name, precondition.clone(), Change::Replace(Box::new(settings))).await
    }

    /// Changes some of a queue's settings: `change` maps the current ones to the new ones.
    pub async fn reconfigure(
        &self,
        name: &QueueName,
        precondition: &Precondition,
        change: impl Fn(QueueSettings) -> Result<QueueSettings> + Send + Sync + 'static,
    ) -> Result<QueueView> {
        self.change(name, precondition.clone(), Change::Edit(Box::new(change))).await
    }

    /// Stops or resumes delivery from a queue.
    pub async fn pause(&self, name: &QueueName, paused: bool) -> Result<QueueView> {
        self.change(name, Precondition::None, Change::Pause(paused)).await
    }

    /// Removes a queue's settings. A queue with jobs is only deleted when forced, and its jobs with it.
    pub async fn delete_queue(
        &self,
        name: &QueueName,
        precondition: &Precondition,
        force: bool,
    ) -> Result<()> {
        let mut removed = 0;
        for attempt in 0..TRIES {
            back_off(attempt).await;
            let version = self.queue(name).await?.version;
            if !precondition.is_met(&version) {
                // "Changed" would say that nothing was done.
                return Err(match removed {
                    0 => Error::SettingsChanged(name.clone()),
                    _ => StoreError::unavailable("the settings were changed while the jobs were deleted")
                        .after(removed)
                        .into(),
                });
            }
            if force {
                removed += self.empty(name).await?;
                faults::point("queue.emptied").await;
            } else if !self.0.store.find(&crate::store::Filter::all(name.clone()), None, 1).await?.is_empty()
            {
                return Err(Error::QueueNotEmpty(name.clone()));
            }
            match self.change(name, Precondition::Versions(vec![version]), Change::Remove).await {
                Err(Error::SettingsChanged(_)) => continue,
                done => done.map_err(|error| error.after(removed))?,
            };
            self.forget(Named::Settings, name.as_str());
            self.forget(Named::Queues, name.as_str());
            return Ok(());
        }
        Err(StoreError::unavailable("the settings were changed by others again and again").into())
    }
}

/// The names of the queues that have settings or jobs.
struct Names<'a> {
    queues: &'a Queues,
    snapshot: Arc<SettingsSnapshot>,
    /// Only those that begin so.
    prefix: &'a str,
}

#[async_trait]
impl ByName for Names<'_> {
    type Name = QueueName;
    type Item = QueueName;

    async fn after(&self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        let with_jobs = self.queues.0.store.queues(self.prefix, after, limit).await?;
        let is_meant = |name: &&QueueName| {
            name.as_str().starts_with(self.prefix) && after.is_none_or(|after| *name > after)
        };
        let mut configured: Vec<&QueueName> = self.snapshot.queues.keys().filter(is_meant).collect();
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
        if !name.as_str().starts_with(self.prefix) {
            return Ok(None);
        }
        let is_there = self.snapshot.queues.contains_key(name) || is_first().await?;
        Ok(is_there.then(|| name.clone()))
    }

    fn name(item: &QueueName) -> &QueueName {
        item
    }
}
