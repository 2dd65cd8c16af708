//! The figures of all queues as clients follow them: one picture for each server, which one task reads anew about once a second
//! while it has followers, and never otherwise.
//!
//! Each reading that finds changes has a version, and each queue the version in which it changed last. A follower remembers which
//! version it has been sent and gets, when it asks, the present state of what has changed since: nothing is kept for a follower, and one
//! that is slow misses intermediate states only. A follower whose version is too old, of another picture or unknown gets a full
//! snapshot.
//!
//! The picture has the fullest queues, and beside them those that followers name.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::distr::{Alphanumeric, SampleString as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::board::{Age, Board, BoardQueue};
use super::picture::Picture;
pub use super::picture::{Changes, Happening, Part, QueueState};
use super::{Error, Queues, Result};
use crate::job::{QueueName, Rules, Timestamp, WorkerName};
use crate::store::{Counts, SettingsSnapshot, StoreError};

/// How often the picture is read.
const PERIOD: Duration = Duration::from_secs(1);
/// How old the board is that is shown, at most.
const AGE: Age = Age { least: Duration::from_millis(500), rests: 0, most: Duration::ZERO };
/// The pause between reads, as a multiple of the last read's duration; a single slow read does not make the picture old for minutes.
const RESTS: u32 = 4;
const REST_MAX: Duration = Duration::from_secs(10);
/// A picture that is younger than this is shown at once; one that a task reads again and again is.
const FRESH: Duration = Duration::from_millis(1500);

#[derive(Default)]
struct Following {
    /// How many do, of each caller.
    callers: HashMap<Box<str>, usize>,
    /// How many have named each queue.
    named: HashMap<QueueName, usize>,
    /// Whether a task reads.
    is_read: bool,
}

/// See the module's documentation.
pub(super) struct Feed {
    /// Distinguishes this picture from those of other servers, and from others that this one has had.
    epoch: String,
    places: Arc<Semaphore>,
    /// How many one caller may have.
    most_of_one: usize,
    following: Mutex<Following>,
    picture: Mutex<Picture>,
    reading: tokio::sync::Mutex<()>,
    version: watch::Sender<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Counts one less, and forgets what there is none of.
fn count_off<K, Q>(counts: &mut HashMap<K, usize>, of: &Q)
where
    K: std::borrow::Borrow<Q> + std::hash::Hash + Eq,
    Q: std::hash::Hash + Eq + ?Sized,
{
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

impl Feed {
    /// Returns a feed without followers; it admits `followers`, at most half of them from one caller.
    pub fn new(followers: usize) -> Self {
        Self {
            epoch: Alphanumeric.sample_string(&mut rand::rng(), 12),
            places: Arc::new(Semaphore::new(followers)),
            most_of_one: (followers / 2).max(1),
            following: Mutex::default(),
            picture: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            version: watch::Sender::new(0),
        }
    }

    /// Notes that a worker was lost, also while none follows: one that comes back learns what has happened meanwhile.
    pub fn note_lost(&self, worker: &WorkerName) {
        lock(&self.picture).note(Happening::WorkerLost(worker.clone()));
    }

    /// Returns whether the task that reads is to go on; if not, another one may begin.
    fn is_followed(&self) -> bool {
        let mut following = lock(&self.following);
        following.is_read = !following.callers.is_empty();
        following.is_read
    }

    /// Counts one more follower of this caller, who names these queues. Returns whether a task that reads is to begin.
    fn enter(&self, caller: &str, named: &[QueueName]) -> Result<bool> {
        let mut following = lock(&self.following);
        let count = following.callers.get(caller).copied().unwrap_or(0);
        if count >= self.most_of_one {
            return Err(Error::TooManyStreamsOfOne(self.most_of_one));
        }
        following.callers.insert(caller.into(), count + 1);
        for queue in named {
            *following.named.entry(queue.clone()).or_default() += 1;
        }
        Ok(!std::mem::replace(&mut following.is_read, true))
    }

    fn leave(&self, caller: &str, named: &[QueueName]) {
        let mut following = lock(&self.following);
        count_off(&mut following.callers, caller);
        for queue in named {
            count_off(&mut following.named, queue);
        }
    }

    /// Returns whether the picture may lack one of these queues for being too small.
    fn may_lack(&self, named: &[QueueName]) -> bool {
        let picture = lock(&self.picture);
        // What was queried and is not there has no jobs.
        let is_lacking =
            |queue: &QueueName| !picture.queues.contains_key(queue) && !picture.named.contains(queue);
        picture.left_out > 0 && named.iter().any(is_lacking)
    }

    fn publish<T>(&self, change: impl FnOnce(&mut Picture) -> T) -> T {
        let mut picture = lock(&self.picture);
        let done = change(&mut picture);
        self.version.send_replace(picture.version);
        done
    }
}

/// One that follows the picture; dropping it ends that.
pub struct Follower {
    queues: Queues,
    version: watch::Receiver<u64>,
    caller: Box<str>,
    named: Vec<QueueName>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.queues.0.feed.leave(&self.caller, &self.named);
    }
}

impl Follower {
    /// Returns what identifies this picture.
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
        lock(&self.queues.0.feed.picture).part(after, limit, is_wanted)
    }

    /// Returns what has changed since a version; `None` where that is not known. So many queues behind this one, and what
    /// else there is where this is the beginning.
    pub fn since(
        &self,
        version: u64,
        (after, limit): (Option<&QueueName>, usize),
        is_wanted: impl Fn(&QueueName) -> bool,
        is_worker_shown: impl Fn(&WorkerName) -> bool,
    ) -> Option<Changes> {
        let picture = lock(&self.queues.0.feed.picture);
        let is_told = |happening: &Happening| match happening {
            Happening::Paused(queue) | Happening::Resumed(queue) | Happening::Settings(queue) => {
                is_wanted(queue)
            }
            Happening::Dead(queue, _) => is_wanted(queue),
            Happening::WorkerLost(worker) => is_worker_shown(worker),
            Happening::StoreAway | Happening::StoreBack => true,
        };
        picture.since(version, (after, limit), &is_wanted, is_told)
    }

    /// Waits until there is a newer version than this one.
    pub async fn newer_than(&mut self, version: u64) {
        // The sender lives as long as the queues, which this holds.
        let _ = self.version.wait_for(|now| *now > version).await;
    }
}

impl Queues {
    /// Begins to follow the picture, which is read if it is not fresh. `caller`: who follows it, of whom only so many may. `named`: queues
    /// that it has then, however small they are.
    pub async fn follow(&self, caller: &str, named: Vec<QueueName>) -> Result<Follower> {
        let feed = &self.0.feed;
        let place = feed.places.clone().try_acquire_owned();
        let place = place.map_err(|_| Error::TooManyStreams)?;
        let begins = feed.enter(caller, &named)?;
        let (version, caller) = (feed.version.subscribe(), caller.into());
        let follower = Follower { queues: self.clone(), version, caller, named, _place: place };
        if begins {
            tokio::spawn(self.clone().read_pictures());
        }
        let (read, took) = {
            let picture = lock(&feed.picture);
            (picture.read, picture.took)
        };
        let fresh = FRESH.max(took + rest(took, true)); // followers do not make it read more often than the task does
        if read.is_none_or(|read| read.elapsed() > fresh) {
            let this = self.clone();
            let reading = tokio::spawn(async move { this.read_picture(fresh).await });
            self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))?;
        }
        if feed.may_lack(&follower.named) {
            let (this, age) = (self.clone(), Age { least: fresh, ..AGE });
            let showing = tokio::spawn(async move { this.show_named(age).await });
            self.in_time(showing).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))?;
        }
        Ok(follower)
    }

    /// Reads the picture again and again, for as long as it has followers.
    async fn read_pictures(self) {
        while !self.is_draining() && self.0.feed.is_followed() {
            let (this, began) = (self.clone(), Instant::now());
            // In a task of its own: one that panics is one that fails.
            let reading = tokio::spawn(async move { this.read_picture(PERIOD / 2).await });
            let is_read = matches!(reading.await, Ok(Ok(())));
            if !is_read {
                self.0.feed.publish(Picture::note_away);
            }
            tokio::select! {
                () = tokio::time::sleep(rest(began.elapsed(), is_read)) => {}
                () = self.0.draining.cancelled() => {}
            }
        }
    }

    /// Reads the picture, unless it is younger than this. Where that has just failed it is not tried again.
    async fn read_picture(&self, age: Duration) -> Result<()> {
        let feed = &self.0.feed;
        let _reading = feed.reading.lock().await;
        let began = Instant::now();
        {
            let mut picture = lock(&feed.picture);
            if picture.read.is_some_and(|read| read.elapsed() < age) {
                return Ok(());
            }
            if picture.failed.is_some_and(|failed| failed.elapsed() < PERIOD / 2) {
                return Err(StoreError::unavailable("the counts could not be read a moment ago").into());
            }
            picture.failed = Some(began); // until it has not
        }
        let read = self.read_states(AGE).await;
        feed.publish(|picture| {
            picture.failed = read.is_err().then(Instant::now);
            read?.adopt_by(picture);
            picture.took = began.elapsed();
            Ok(())
        })
    }

    /// Adds to the picture what followers have named since it was read: of a board that need not be younger, which says nothing of
    /// whether the store is there. While it is not, they wait for the next reading.
    async fn show_named(&self, age: Age) -> Result<()> {
        let feed = &self.0.feed;
        let _reading = feed.reading.lock().await;
        let states = self.read_states(age).await?;
        feed.publish(|picture| {
            if !picture.is_away {
                let read = picture.read;
                states.adopt_by(picture);
                picture.read = read;
            }
        });
        Ok(())
    }

    async fn read_states(&self, age: Age) -> Result<States> {
        // The picture is read in a task of its own: it takes as long as it takes.
        let board = self.read_board(age).await?;
        let (rules, settings) = (self.rules(), self.snapshot());
        let named: HashSet<QueueName> = lock(&self.0.feed.following).named.keys().cloned().collect();
        let queues = states(&board, &rules, &named);
        Ok(States { settings, at: board.at, queues, left_out: board.left_out, named })
    }
}

/// What the picture shows of a reading.
struct States {
    settings: Arc<SettingsSnapshot>,
    at: Timestamp,
    queues: BTreeMap<QueueName, QueueState>,
    /// How many queues are not among the fullest.
    left_out: u64,
    /// The queues that were queried beside those.
    named: HashSet<QueueName>,
}

impl States {
    fn adopt_by(self, picture: &mut Picture) {
        picture.note_settings(&self.settings);
        picture.adopt(self.at, self.queues, self.left_out);
        picture.named = self.named;
    }
}

/// Returns the pause after a read that took this long; a failed read is retried soon.
fn rest(took: Duration, is_read: bool) -> Duration {
    let rests = if is_read { (took * RESTS).min(REST_MAX) } else { PERIOD };
    rests.max(PERIOD.saturating_sub(took))
}

/// Returns the queues as they are shown: those that have jobs, and are among the fullest or are named.
fn states(board: &Board, rules: &Rules, named: &HashSet<QueueName>) -> BTreeMap<QueueName, QueueState> {
    let rounded = |rate: f64| (rate * 100.0).round() / 100.0;
    let state = |queue: &BoardQueue| {
        let state = QueueState {
            counts: queue.counts.counts,
            oldest_ready_at: queue.counts.oldest_ready,
            oldest_is_approximate: queue.counts.oldest_is_approximate && queue.counts.oldest_ready.is_some(),
            // As it is by now: what happened to the settings is sent at once.
            paused: rules.paused(&queue.name),
            attention: queue.attention.iter().map(|attention| attention.reason).collect(),
            rates: queue.flow.rates.map(rounded),
        };
        (queue.name.clone(), state)
    };
    let has_jobs = |queue: &&BoardQueue| queue.counts.counts != Counts::default();
    let is_shown = |queue: &&BoardQueue| queue.is_listed || named.contains(&queue.name);
    board.queues.iter().filter(has_jobs).filter(is_shown).map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_does_not_take_all_places() {
        let (feed, named) = (Feed::new(5), ["q".parse().unwrap()]);
        let enter = |caller: &str| feed.enter(caller, &named);
        assert!(enter("a").unwrap() && !enter("a").unwrap());
        assert!(matches!(enter("a"), Err(Error::TooManyStreamsOfOne(2))));
        assert!(!enter("b").unwrap());
        feed.leave("a", &named);
        assert!(!enter("a").unwrap());
        ["a", "a", "b"].iter().for_each(|caller| feed.leave(caller, &named));
        assert!(lock(&feed.following).callers.is_empty() && !feed.is_followed());
        assert!(lock(&feed.following).named.is_empty());
        assert!(Feed::new(1).enter("a", &[]).is_ok());
    }

    #[test]
    fn one_slow_read_does_not_make_the_picture_old_for_minutes() {
        let s = Duration::from_secs;
        assert_eq!([s(2), s(20), s(600)].map(|took| rest(took, true)), [s(8), REST_MAX, REST_MAX]);
    }

    #[test]
    fn what_has_failed_is_tried_again_soon() {
        let ms = Duration::from_millis;
        assert_eq!((rest(ms(100), true), rest(ms(500), true)), (ms(900), ms(2000)));
        assert_eq!((rest(ms(5000), false), rest(ms(1), false)), (PERIOD, PERIOD));
    }
}
