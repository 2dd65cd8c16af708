//! How many jobs there are, as it is written into the past: one server at a time says so, of those queues where it has changed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::ledger::BUSIEST;
use super::{Queues, Result, Stats};
use crate::job::{QueueName, Timestamp};
use crate::store::{Counts, Depth, SeriesRow, Span, Subject};

/// For how long a server is the one that says so, in milliseconds.
const TURN_MS: u64 = 40_000;
/// How long after its start a server says so first, in milliseconds.
const FIRST_MS: u64 = 1000;
/// How often it is said where nothing happens: jobs come due by themselves.
const IDLE: Duration = Duration::from_secs(30);
/// How often the depths of all queues are written, including unchanged ones: so each is known of some time not long ago.
const AGAIN: Duration = Duration::from_secs(86_400);

/// What was said last.
#[derive(Default)]
pub(super) struct Said(Mutex<Last>);

#[derive(Default)]
struct Last {
    /// When this server last asked whether it is its turn, and whether it was.
    asked: Option<Instant>,
    is_turn: bool,
    since: Option<Instant>,
    /// The step of which something was said last.
    step: Option<Timestamp>,
    /// The minute in which all queues were read.
    minute: Timestamp,
    total: Option<Depth>,
    queues: HashMap<QueueName, Depth>,
}

impl Last {
    /// Forgets what was said before, unless it has been this server's turn all the time. Returns whether its turn begins.
    fn begin(&mut self, is_turn: bool) -> bool {
        let lasted = self.asked.is_some_and(|asked| asked.elapsed() < Duration::from_millis(TURN_MS));
        let is_known = self.since.is_some_and(|since| since.elapsed() < AGAIN);
        let goes_on = is_turn && self.is_turn && lasted && is_known;
        if !goes_on {
            *self = Self { since: Some(Instant::now()), step: self.step, ..Self::default() };
        }
        (self.asked, self.is_turn) = (Some(Instant::now()), is_turn);
        is_turn && !goes_on
    }

    /// Returns what has changed, and notes that it is said. `all`: how many jobs every queue has, not only the listed ones.
    fn changed(
        &mut self,
        stats: &Stats,
        all: Option<Vec<(QueueName, Counts)>>,
        most: usize,
    ) -> Vec<(Subject, Depth)> {
        let mut now: HashMap<QueueName, Depth> =
            all.iter().flatten().map(|(queue, counts)| (queue.clone(), Depth::new(*counts, None))).collect();
        for (queue, figures) in &stats.queues {
            now.insert(queue.clone(), Depth::new(figures.counts, figures.oldest_ready));
        }
        let knows_all = all.is_some() || stats.others.is_none();
        let mut changed: Vec<(QueueName, Depth)> = now
            .iter()
            .filter(|(queue, depth)| self.queues.get(*queue).copied().unwrap_or_default() != **depth)
            .map(|(queue, depth)| (queue.clone(), *depth))
            .collect();
        if knows_all {
            let empty = |queue: &QueueName| (queue.clone(), Depth::default());
            changed.extend(self.queues.keys().filter(|queue| !now.contains_key(*queue)).map(empty));
        }
        changed.sort_by_key(|(_, Depth { counts, .. })| {
            std::cmp::Reverse(counts.ready + counts.scheduled + counts.reserved + counts.blocked)
        });
        changed.truncate(most);
        for (queue, depth) in &changed {
            match *depth == Depth::default() {
                true => drop(self.queues.remove(queue)),
                false => drop(self.queues.insert(queue.clone(), *depth)),
            }
        }
        let total = Depth::new(stats.total_counts(), stats.oldest_ready());
        let is_new = self.total.replace(total) != Some(total);
        let total = is_new.then_some((Subject::All, total));
        total
            .into_iter()
            .chain(changed.into_iter().map(|(queue, depth)| (Subject::Queue(queue), depth)))
            .collect()
    }
}

impl Said {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Something that was said is not in the store: it is said again.
    pub fn forget(&self) {
        let mut last = self.last();
        *last = Last { step: last.step, ..Last::default() };
    }
}

impl Queues {
    /// Returns how many jobs there are in those queues where that has changed, if it is this server's turn to say so. `moved`: something
    /// has happened in some queue.
    pub(super) async fn changed_depths(&self, now: Timestamp, moved: bool) -> Result<Vec<SeriesRow>> {
        let said = &self.0.said;
        // A server that has just begun has other things to do.
        if now.ms_since(self.meter().turn(now)) < FIRST_MS {
            return Ok(Vec::new());
        }
        if !moved && said.last().asked.is_some_and(|asked| asked.elapsed() < IDLE) {
            return Ok(Vec::new());
        }
        let is_turn = self.0.store.take_depth_turn(&self.0.ledger.server, TURN_MS).await?;
        let step = Span::Step.start(now);
        let (begins, before) = {
            let mut last = said.last();
            (last.begin(is_turn), last.step)
        };
        if !is_turn {
            return Ok(Vec::new());
        }
        // What was said of the same step before, here or by a server that has ended, would seem to be of this turn.
        if begins && step <= before.unwrap_or_default().max(Span::Step.start(self.meter().turn(now))) {
            said.forget();
            return Ok(Vec::new());
        }
        let rows = self.said_now(now).await;
        match &rows {
            Ok(_) => {
                said.last().step = Some(step);
                if begins {
                    self.0.ledger.begin_turn(step);
                }
            }
            Err(_) => said.forget(), // its turn begins anew
        }
        rows
    }

    async fn said_now(&self, now: Timestamp) -> Result<Vec<SeriesRow>> {
        let (said, stats) = (&self.0.said, self.count_stats().await?);
        let minute = Span::Minute.start(now);
        let is_new = std::mem::replace(&mut said.last().minute, minute) != minute;
        let all = match stats.others {
            Some(_) if is_new => Some(self.0.store.depths().await?),
            _ => None,
        };
        let changed = said.last().changed(&stats, all, if is_new { usize::MAX } else { BUSIEST });
        let row = |(subject, depth)| SeriesRow {
            subject,
            span: Span::Step,
            at: Span::Step.start(now),
            tally: None,
            depth: Some(depth),
        };
        Ok(changed.into_iter().map(row).collect())
    }
}
