//! The figures of all queues at one moment, and what has become of them: each with the version in which it changed last.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::attention::Reason;
use super::meter::Event;
use crate::job::{QueueName, Timestamp, WorkerName};
use crate::store::{Counts, SettingsSnapshot};

/// How many queues that have gone are remembered, and how many happenings, at most so many of one reading.
const GONE_MAX: usize = 20_000;
const HAPPENED_MAX: usize = 1000;

/// A queue as it is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueState {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// Since when the oldest ready job has been ready.
    pub oldest_ready_at: Option<Timestamp>,
    /// Whether it may be another one by now.
    pub oldest_is_approximate: bool,
    /// Whether delivery is stopped.
    pub paused: bool,
    /// Why it needs attention.
    pub attention: Vec<Reason>,
    /// Events on all servers during the last minute, per second, in the order of [`Event::ALL`].
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
    /// The queues that have changed, as they are now, by name.
    pub queues: Vec<(QueueName, QueueState)>,
    /// Whether there are more behind them.
    pub more: bool,
    /// Those that have no jobs any more, or are not among the largest.
    pub gone: Vec<QueueName>,
    /// What has happened, in its order.
    pub happened: Vec<Happening>,
    /// Whether more has happened, too much to be remembered.
    pub is_cut: bool,
    /// How many queues are not among the fullest, if that has changed.
    pub left_out: Option<u64>,
    /// Whether there are such queues, if that has changed.
    pub incomplete: Option<bool>,
}

impl Changes {
    /// Whether nothing is known to have changed of any queue, and nothing to have happened.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.gone.is_empty() && self.happened.is_empty() && !self.is_cut
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
    /// How many queues are not among the fullest, and in no part unless they are named.
    pub left_out: u64,
    /// Whether the store cannot be read: the picture is an old one.
    pub is_away: bool,
}

/// What was read, and what has become of it.
#[derive(Default)]
pub(super) struct Picture {
    /// When it was read last, and how long that took.
    pub(super) read: Option<Instant>,
    pub(super) took: Duration,
    /// When it could not be read.
    pub(super) failed: Option<Instant>,
    pub(super) version: u64,
    /// What has changed since an older version is not known any more.
    pub(super) floor: u64,
    pub(super) at: Timestamp,
    pub(super) queues: BTreeMap<QueueName, (u64, QueueState)>,
    pub(super) gone: BTreeMap<QueueName, u64>,
    pub(super) happened: VecDeque<(u64, Happening)>,
    /// Of what happened up to this version not all is known any more.
    pub(super) cut: u64,
    /// What has happened since it was read, and whether that was too much.
    pub(super) noted: Vec<Happening>,
    pub(super) is_noted_cut: bool,
    pub(super) settings: Option<Arc<SettingsSnapshot>>,
    pub(super) left_out: u64,
    /// The version in which that has changed last, and the one in which it became 0, or more than that.
    pub(super) left_out_at: u64,
    pub(super) incomplete_at: u64,
    /// The queues that were queried by name.
    pub(super) named: HashSet<QueueName>,
    pub(super) is_away: bool,
}

impl Picture {
    /// Notes what has happened, to be sent with the next reading.
    pub(super) fn note(&mut self, happening: Happening) {
        match self.noted.len() < HAPPENED_MAX {
            true => self.noted.push(happening),
            false => self.is_noted_cut = true,
        }
    }

    /// It cannot be read.
    pub(super) fn note_away(&mut self) {
        if !std::mem::replace(&mut self.is_away, true) {
            self.version += 1;
            self.happened.push_back((self.version, Happening::StoreAway));
        }
    }

    /// Takes over what was read.
    pub(super) fn adopt(&mut self, at: Timestamp, read: BTreeMap<QueueName, QueueState>, left_out: u64) {
        let version = self.version + 1;
        let mut happened = std::mem::take(&mut self.noted);
        if std::mem::take(&mut self.is_away) {
            happened.insert(0, Happening::StoreBack);
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
        if left_out != self.left_out {
            (self.left_out_at, is_changed) = (version, true);
        }
        if (left_out > 0) != (self.left_out > 0) {
            self.incomplete_at = version;
        }
        (self.at, self.left_out, self.read) = (at, left_out, Some(Instant::now()));
        if std::mem::take(&mut self.is_noted_cut) || happened.len() > HAPPENED_MAX {
            happened.truncate(HAPPENED_MAX); // of the dead, which come last
            self.cut = version;
        }
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
            self.cut = self.cut.max(oldest);
        }
    }

    /// Returns what has changed since a version; `None` where that is not known.
    pub(super) fn since(
        &self,
        version: u64,
        (after, limit): (Option<&QueueName>, usize),
        is_wanted: impl Fn(&QueueName) -> bool,
        is_told: impl Fn(&Happening) -> bool,
    ) -> Option<Changes> {
        if version < self.floor || version > self.version {
            return None;
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.queues.range::<QueueName, _>((from, Bound::Unbounded));
        let mut changed = behind.filter(|(queue, (at, _))| *at > version && is_wanted(queue));
        let queues = changed.by_ref().take(limit);
        let queues = queues.map(|(queue, (_, state))| (queue.clone(), state.clone())).collect();
        let more = changed.next().is_some();
        let mut changes = Changes { version: self.version, at: self.at, queues, more, ..Changes::default() };
        if after.is_none() {
            let gone = self.gone.iter().filter(|(queue, at)| **at > version && is_wanted(queue));
            let happened = self.happened.iter().filter(|(at, it)| *at > version && is_told(it));
            changes.gone = gone.map(|(queue, _)| queue.clone()).collect();
            changes.happened = happened.map(|(_, it)| it.clone()).collect();
            changes.is_cut = version < self.cut;
            changes.left_out = (self.left_out_at > version).then_some(self.left_out);
            changes.incomplete = (self.incomplete_at > version).then_some(self.left_out > 0);
        }
        Some(changes)
    }

    /// Returns the next part of it: so many queues behind this one.
    pub(super) fn part(
        &self,
        after: Option<&QueueName>,
        limit: usize,
        is_wanted: impl Fn(&QueueName) -> bool,
    ) -> Part {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.queues.range::<QueueName, _>((from, Bound::Unbounded));
        let mut wanted = behind.filter(|(queue, _)| is_wanted(queue));
        let queues =
            wanted.by_ref().take(limit).map(|(queue, (_, state))| (queue.clone(), state.clone())).collect();
        let more = wanted.next().is_some();
        let Self { version, at, left_out, is_away, .. } = *self;
        Part { version, at, queues, more, left_out, is_away }
    }

    /// Notes what has become of the settings since they were read last.
    pub(super) fn note_settings(&mut self, settings: &Arc<SettingsSnapshot>) {
        let before = self.settings.replace(settings.clone());
        let Some(before) = before.filter(|before| !Arc::ptr_eq(before, settings)) else { return };
        let names: BTreeSet<&QueueName> = before.queues.keys().chain(settings.queues.keys()).collect();
        for queue in names {
            let (old, new) = (before.queues.get(queue), settings.queues.get(queue));
            if old.map(|old| &old.version) == new.map(|new| &new.version) {
                continue;
            }
            let was_paused = old.is_some_and(|old| old.settings.is_paused());
            let is_paused = new.is_some_and(|new| new.settings.is_paused());
            self.note(match (was_paused, is_paused) {
                (false, true) => Happening::Paused(queue.clone()),
                (true, false) => Happening::Resumed(queue.clone()),
                _ => Happening::Settings(queue.clone()),
            });
        }
    }
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
            picture.note(Happening::StoreAway);
            picture.adopt(Timestamp::default(), read(&[]), 0);
        }
        assert_eq!((picture.happened.len(), picture.floor), (HAPPENED_MAX, 2), "the picture is known");
        assert_eq!(picture.cut, 3);
    }

    #[test]
    fn how_many_are_left_out_is_a_change() {
        let mut picture = Picture::default();
        let mut adopt = |queues: &[(&str, u64, u64)], left_out| {
            picture.adopt(Timestamp::default(), read(queues), left_out);
            let told = since(&picture, picture.version - 1, None, 500);
            (picture.version, told.left_out, told.incomplete, told.gone.len())
        };
        assert_eq!(adopt(&[("a", 2, 0), ("b", 1, 0)], 0), (1, None, None, 0));
        assert_eq!(adopt(&[("a", 2, 0)], 1), (2, Some(1), Some(true), 1), "why one has gone that has jobs");
        assert_eq!(adopt(&[("a", 2, 0)], 5), (3, Some(5), None, 0));
        assert_eq!(adopt(&[("a", 2, 0)], 0), (4, Some(0), Some(false), 0));
        assert_eq!(adopt(&[("a", 2, 0)], 0).0, 4);
    }

    #[test]
    fn a_picture_that_is_old_says_so() {
        let mut picture = Picture::default();
        picture.adopt(Timestamp::default(), read(&[("a", 1, 0)]), 0);
        let is_away = |picture: &Picture| picture.part(None, 500, |_| true).is_away;
        assert!(!is_away(&picture));
        picture.note_away();
        assert!(is_away(&picture));
        picture.adopt(Timestamp::default(), read(&[("a", 1, 0)]), 0);
        assert!(!is_away(&picture));
    }

    fn since(picture: &Picture, version: u64, after: Option<&str>, limit: usize) -> Changes {
        let after: Option<QueueName> = after.map(|name| name.parse().unwrap());
        picture.since(version, (after.as_ref(), limit), |_| true, |_| true).unwrap()
    }

    #[test]
    fn of_too_much_at_once_some_is_told_and_no_picture_anew() {
        let mut picture = Picture::default();
        let names: Vec<String> = (0..HAPPENED_MAX).map(|n| format!("q{n}")).collect();
        let all = |dead: u64| names.iter().map(|name| (name.as_str(), 1, dead)).collect::<Vec<_>>();
        picture.adopt(Timestamp::default(), read(&all(0)), 0);
        picture.note(Happening::Paused("q7".parse().unwrap()));
        picture.adopt(Timestamp::default(), read(&all(1)), 0);
        let told = since(&picture, 1, None, 500);
        assert_eq!((told.happened.len(), told.is_cut, told.queues.len(), told.more), (1000, true, 500, true));
        assert!(matches!(told.happened[..2], [Happening::Paused(_), Happening::Dead(..)]));
        let last = told.queues[499].0.to_string();
        let rest = since(&picture, 1, Some(&last), 500);
        assert_eq!((rest.queues.len(), rest.more, rest.happened.len(), rest.is_cut), (500, false, 0, false));
        assert!(since(&picture, 2, None, 500).is_empty());
        (0..=HAPPENED_MAX).for_each(|_| picture.note(Happening::Paused("q7".parse().unwrap())));
        picture.adopt(Timestamp::default(), read(&all(1)), 0);
        let told = since(&picture, 2, None, 500);
        assert_eq!((told.happened.len(), told.is_cut), (HAPPENED_MAX, true), "too much between two readings");
    }
}
