//! The figures of all queues as clients follow them: one picture for each server, which one task reads anew about once a second
//! while somebody follows it, and never otherwise.
//!
//! Each reading that finds changes has a version, and each queue the version in which it changed last. A follower remembers which
//! version it has been told and gets, when it asks, the present state of what has changed since: nothing is kept for a follower, and one
//! that is slow misses intermediate states only. What it cannot be told any more, because it is too old, another picture's or
//! unknown, it gets as a whole.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::distr::{Alphanumeric, SampleString as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::meter::Event;
use super::totals::Totals;
use super::{Error, Queues, Result};
use crate::job::{QueueName, Rules, Timestamp, WorkerName};
use crate::store::{Counts, QueueCounts, SettingsSnapshot, StoreError, Summary};

/// The most queues in the picture: those with the most unfinished jobs.
pub const QUEUES_MAX: usize = 10_000;
/// How often the picture is read.
const PERIOD: Duration = Duration::from_secs(1);
/// It is left alone for so many times as long as reading it took.
const RESTS: u32 = 4;
/// A picture that is younger than this is shown at once.
const FRESH: Duration = Duration::from_secs(3);
/// How many queues that have gone are remembered, and how many happenings.
const GONE_MAX: usize = 20_000;
const HAPPENED_MAX: usize = 1000;

/// A queue as it is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueState {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// Since when the oldest ready job has been ready.
    pub oldest_ready_at: Option<Timestamp>,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// Events on this server since the reading before, per second, in the order of [`Event::ALL`].
    pub rates: [f64; Event::ALL.len()],
}

/// Something that an operator wants to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// Delivery was stopped in a queue.
    Paused(QueueName),
    /// It goes on.
    Resumed(QueueName),
    /// Other settings of a queue were changed.
    Settings(QueueName),
    /// So many more jobs of a queue are dead.
    Dead(QueueName, u64),
    /// A worker was lost, noticed by this server.
    WorkerLost(WorkerName),
    /// The store cannot be read: the picture stays as it was.
    StoreAway,
    /// It can be read again.
    StoreBack,
}

/// What has changed since a version.
#[derive(Debug, Default, PartialEq)]
pub struct Changes {
    /// Until which version.
    pub version: u64,
    /// When that was read, by the store's clock.
    pub at: Timestamp,
    /// The queues that have changed, as they are now.
    pub queues: Vec<(QueueName, QueueState)>,
    /// Those that have no jobs any more, or are not among the largest.
    pub gone: Vec<QueueName>,
    /// What has happened, in its order.
    pub happened: Vec<Happening>,
}

impl Changes {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.gone.is_empty() && self.happened.is_empty()
    }
}

/// A part of the picture.
#[derive(Debug, Default)]
pub struct Part {
    /// Of which version.
    pub version: u64,
    /// When that was read, by the store's clock.
    pub at: Timestamp,
    /// The queues, by name.
    pub queues: Vec<(QueueName, QueueState)>,
    /// Whether there are more behind them.
    pub more: bool,
    /// How many queues are in no part, because there are too many.
    pub left_out: u64,
}

#[derive(Default)]
struct Picture {
    /// When it was read last.
    read: Option<Instant>,
    version: u64,
    /// What has changed since an older version is not known any more.
    floor: u64,
    at: Timestamp,
    queues: BTreeMap<QueueName, (u64, QueueState)>,
    gone: BTreeMap<QueueName, u64>,
    happened: VecDeque<(u64, Happening)>,
    /// What has happened since it was read.
    noted: Vec<Happening>,
    settings: Option<Arc<SettingsSnapshot>>,
    left_out: u64,
    is_away: bool,
}

#[derive(Default)]
struct Following {
    count: usize,
    /// Whether a task reads.
    is_read: bool,
}

/// See the module's documentation.
pub(super) struct Feed {
    /// Tells this picture from those of other servers, and of others that this one has had.
    epoch: String,
    places: Arc<Semaphore>,
    following: Mutex<Following>,
    picture: Mutex<Picture>,
    reading: tokio::sync::Mutex<()>,
    version: watch::Sender<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Feed {
    /// Nobody follows it; so many may.
    pub fn new(followers: usize) -> Self {
        Self {
            epoch: Alphanumeric.sample_string(&mut rand::rng(), 12),
            places: Arc::new(Semaphore::new(followers)),
            following: Mutex::default(),
            picture: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            version: watch::Sender::new(0),
        }
    }

    /// Notes that a worker was lost, if anybody follows.
    pub fn note_lost(&self, worker: &WorkerName) {
        if lock(&self.following).count == 0 {
            return;
        }
        let mut picture = lock(&self.picture);
        if picture.noted.len() < HAPPENED_MAX {
            picture.noted.push(Happening::WorkerLost(worker.clone()));
        }
    }

    /// Returns whether the task that reads is to go on; if not, another one may begin.
    fn is_followed(&self, totals: &Totals) -> bool {
        let mut following = lock(&self.following);
        following.is_read = following.count > 0;
        if !following.is_read {
            totals.watch(false);
        }
        following.is_read
    }

    fn publish(&self, change: impl FnOnce(&mut Picture)) {
        let mut picture = lock(&self.picture);
        change(&mut picture);
        self.version.send_replace(picture.version);
    }
}

impl Picture {
    /// Takes over what was read.
    fn adopt(&mut self, at: Timestamp, read: BTreeMap<QueueName, QueueState>, left_out: u64) {
        let version = self.version + 1;
        let mut happened = std::mem::take(&mut self.noted);
        if std::mem::take(&mut self.is_away) {
            happened.push(Happening::StoreBack);
        }
        let mut is_changed = false;
        for (queue, state) in &read {
            let before = self.queues.get(queue);
            let dead = before.map_or(0, |(_, before)| before.counts.dead);
            let is_known = self.read.is_some() && (before.is_some() || self.left_out == 0);
            if is_known && state.counts.dead > dead {
                happened.push(Happening::Dead(queue.clone(), state.counts.dead - dead));
            }
            if before.is_none_or(|(_, before)| before != state) {
                self.gone.remove(queue);
                self.queues.insert(queue.clone(), (version, state.clone()));
                is_changed = true;
            }
        }
        let gone = self.queues.extract_if(.., |queue, _| !read.contains_key(queue));
        for (queue, _) in gone {
            self.gone.insert(queue, version);
            is_changed = true;
        }
        (self.at, self.left_out, self.read) = (at, left_out, Some(Instant::now()));
        if is_changed || !happened.is_empty() {
            self.version = version;
            self.happened.extend(happened.into_iter().map(|happening| (version, happening)));
        }
        self.forget();
    }

    /// Keeps what is remembered of the past small.
    fn forget(&mut self) {
        if self.gone.len() > GONE_MAX {
            self.gone.clear();
            self.floor = self.version;
        }
        while self.happened.len() > HAPPENED_MAX {
            let oldest = self.happened.pop_front().map_or(0, |(version, _)| version);
            self.floor = self.floor.max(oldest);
        }
    }

    /// Notes what has become of the settings since they were looked at last.
    fn note_settings(&mut self, settings: &Arc<SettingsSnapshot>) {
        let before = self.settings.replace(settings.clone());
        let Some(before) = before.filter(|before| !Arc::ptr_eq(before, settings)) else { return };
        let names: BTreeSet<&QueueName> = before.queues.keys().chain(settings.queues.keys()).collect();
        for queue in names {
            let (old, new) = (before.queues.get(queue), settings.queues.get(queue));
            if old.map(|old| &old.version) == new.map(|new| &new.version) || self.noted.len() >= HAPPENED_MAX
            {
                continue;
            }
            let was_paused = old.is_some_and(|old| old.settings.is_paused());
            let is_paused = new.is_some_and(|new| new.settings.is_paused());
            self.noted.push(match (was_paused, is_paused) {
                (false, true) => Happening::Paused(queue.clone()),
                (true, false) => Happening::Resumed(queue.clone()),
                _ => Happening::Settings(queue.clone()),
            });
        }
    }
}

/// One that follows the picture; dropping it ends that.
pub struct Follower {
    queues: Queues,
    version: watch::Receiver<u64>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Follower {
    fn drop(&mut self) {
        lock(&self.queues.0.feed.following).count -= 1;
    }
}

impl Follower {
    /// Returns what tells this picture from others.
    pub fn epoch(&self) -> &str {
        &self.queues.0.feed.epoch
    }

    /// Returns the next part of the picture.
    pub fn part(
        &self,
        after: Option<&QueueName>,
        limit: usize,
        is_wanted: impl Fn(&QueueName) -> bool,
    ) -> Part {
        let picture = lock(&self.queues.0.feed.picture);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = picture.queues.range::<QueueName, _>((from, Bound::Unbounded));
        let mut wanted = behind.filter(|(queue, _)| is_wanted(queue));
        let queues =
            wanted.by_ref().take(limit).map(|(queue, (_, state))| (queue.clone(), state.clone())).collect();
        let more = wanted.next().is_some();
        Part { version: picture.version, at: picture.at, queues, more, left_out: picture.left_out }
    }

    /// Returns what has changed since a version; `None` where that is not known.
    pub fn since(
        &self,
        version: u64,
        is_wanted: impl Fn(&QueueName) -> bool,
        is_worker_shown: impl Fn(&WorkerName) -> bool,
    ) -> Option<Changes> {
        let picture = lock(&self.queues.0.feed.picture);
        if version < picture.floor || version > picture.version {
            return None;
        }
        let queues = picture.queues.iter().filter(|(queue, (at, _))| *at > version && is_wanted(queue));
        let gone = picture.gone.iter().filter(|(queue, at)| **at > version && is_wanted(queue));
        let happened = picture.happened.iter().filter(|(at, _)| *at > version);
        let is_told = |happening: &Happening| match happening {
            Happening::Paused(queue) | Happening::Resumed(queue) | Happening::Settings(queue) => {
                is_wanted(queue)
            }
            Happening::Dead(queue, _) => is_wanted(queue),
            Happening::WorkerLost(worker) => is_worker_shown(worker),
            Happening::StoreAway | Happening::StoreBack => true,
        };
        Some(Changes {
            version: picture.version,
            at: picture.at,
            queues: queues.map(|(queue, (_, state))| (queue.clone(), state.clone())).collect(),
            gone: gone.map(|(queue, _)| queue.clone()).collect(),
            happened: happened.map(|(_, it)| it).filter(|it| is_told(it)).cloned().collect(),
        })
    }

    /// Waits until there is a newer version than this one.
    pub async fn newer_than(&mut self, version: u64) {
        // The sender lives as long as the queues, which this holds.
        let _ = self.version.wait_for(|now| *now > version).await;
    }
}

impl Queues {
    /// Begins to follow the picture, which is read if it is not fresh. `Overloaded`: as many follow it as may.
    pub async fn follow(&self) -> Result<Follower> {
        let feed = &self.0.feed;
        let place = feed.places.clone().try_acquire_owned();
        let place = place.map_err(|_| Error::TooManyStreams)?;
        let begins = {
            let mut following = lock(&feed.following);
            following.count += 1;
            let begins = !std::mem::replace(&mut following.is_read, true);
            if begins {
                self.meter().totals().watch(true);
            }
            begins
        };
        let follower = Follower { queues: self.clone(), version: feed.version.subscribe(), _place: place };
        if begins {
            tokio::spawn(self.clone().read_pictures());
        }
        if lock(&feed.picture).read.is_none_or(|read| read.elapsed() > FRESH) {
            let this = self.clone();
            let reading = tokio::spawn(async move { this.read_picture(FRESH).await });
            self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))?;
        }
        Ok(follower)
    }

    /// Reads the picture again and again, for as long as somebody follows it.
    async fn read_pictures(self) {
        while !self.is_draining() && self.0.feed.is_followed(self.meter().totals()) {
            let began = Instant::now();
            if self.read_picture(PERIOD / 2).await.is_err() {
                self.0.feed.publish(|picture| {
                    if !std::mem::replace(&mut picture.is_away, true) {
                        picture.version += 1;
                        picture.happened.push_back((picture.version, Happening::StoreAway));
                    }
                });
            }
            let rest = PERIOD.saturating_sub(began.elapsed()).max(began.elapsed() * RESTS);
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.0.draining.cancelled() => {}
            }
        }
    }

    /// Reads the picture, unless it is younger than this.
    async fn read_picture(&self, age: Duration) -> Result<()> {
        let feed = &self.0.feed;
        let _reading = feed.reading.lock().await;
        if lock(&feed.picture).read.is_some_and(|read| read.elapsed() < age) {
            return Ok(());
        }
        let summary = self.0.store.summary(QUEUES_MAX).await?;
        let (at, rules, settings) = (self.now()?, self.rules(), self.snapshot());
        let left_out = summary.count.saturating_sub(summary.queues.len() as u64);
        let read = states(summary, &rules, &self.meter().totals().take_recent());
        feed.publish(|picture| {
            picture.note_settings(&settings);
            picture.adopt(at, read, left_out);
        });
        Ok(())
    }
}

/// Returns the queues as they are shown. `recent`: how many events there were lately, per second.
fn states(
    summary: Summary,
    rules: &Rules,
    recent: &HashMap<QueueName, [f64; Event::ALL.len()]>,
) -> BTreeMap<QueueName, QueueState> {
    let state = |(queue, counts): (QueueName, QueueCounts)| {
        let state = QueueState {
            counts: counts.counts,
            oldest_ready_at: counts.oldest_ready,
            paused: rules.paused(&queue),
            rates: recent.get(&queue).copied().unwrap_or_default(),
        };
        (queue, state)
    };
    summary.queues.into_iter().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(queues: &[(&str, u64, u64)]) -> BTreeMap<QueueName, QueueState> {
        let state = |(name, ready, dead): &(&str, u64, u64)| {
            let counts = Counts { ready: *ready, dead: *dead, ..Counts::default() };
            (name.parse().unwrap(), QueueState { counts, ..QueueState::default() })
        };
        queues.iter().map(state).collect()
    }

    #[test]
    fn only_what_changes_has_a_new_version() {
        let mut picture = Picture::default();
        picture.adopt(Timestamp::default(), read(&[("a", 1, 1), ("b", 1, 0)]), 0);
        assert_eq!((picture.version, picture.happened.len()), (1, 0), "what was dead before is no news");
        picture.adopt(Timestamp::default(), read(&[("a", 1, 1), ("b", 1, 0)]), 0);
        assert_eq!(picture.version, 1);
        picture.adopt(Timestamp::default(), read(&[("a", 1, 3)]), 0);
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert_eq!((picture.version, picture.queues[&a].0, picture.gone.get(&b)), (2, 2, Some(&2)));
        assert_eq!(picture.happened, [(2, Happening::Dead(a, 2))]);
        picture.adopt(Timestamp::default(), read(&[("a", 1, 3), ("b", 0, 0)]), 0);
        assert_eq!((picture.queues[&b].0, picture.gone.len()), (3, 0), "it is back");
    }

    #[test]
    fn the_past_is_forgotten_before_it_grows_large() {
        let mut picture = Picture::default();
        let many: Vec<String> = (0..=GONE_MAX).map(|n| format!("q{n}")).collect();
        let many: Vec<(&str, u64, u64)> = many.iter().map(|name| (name.as_str(), 1, 0)).collect();
        picture.adopt(Timestamp::default(), read(&many), 0);
        picture.adopt(Timestamp::default(), read(&[]), 0);
        assert_eq!((picture.gone.len(), picture.floor, picture.version), (0, 2, 2));
        for _ in 0..=HAPPENED_MAX {
            picture.noted.push(Happening::StoreAway);
            picture.adopt(Timestamp::default(), read(&[]), 0);
        }
        assert_eq!((picture.happened.len(), picture.floor), (HAPPENED_MAX, 3));
    }
}
