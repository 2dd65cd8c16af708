//! The figures that operators watch, from a cache. A task reads them about once a second while requests keep
//! coming, so that only the first request waits for the store; without requests it does not read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::attention::Attention;
use super::flows::Flow;
use super::total_load::TotalLoad;
use super::{Queues, Result};
use crate::job::{QueueName, Timestamp};
use crate::store::hold;
use crate::store::{Counts, Load, Named, QUEUES_SCAN_LIMIT, QueueCounts, StoreError, Summary};

/// Without a request for so long, the cache is not refreshed any more.
const REFRESHED_FOR: Duration = Duration::from_millis(2500);

/// How old counts may be, from when reading them began.
struct Age {
    /// So old in any case.
    least: Duration,
    /// So many times as old as it took to read them, but not so much older than when they had been read: what took long
    /// because the store stood still is not kept as long again.
    rests: (f64, Duration),
    /// The same where there are more queues than are listed, so that reading them takes long.
    rests_of_many: (f64, Duration),
}

/// For a request.
const SERVED: Age = Age {
    least: Duration::from_millis(900),
    rests: (3.0, Duration::from_secs(6)),
    rests_of_many: (10.0, Duration::from_secs(30)),
};
/// For the task that reads them again, so early that requests need not wait.
const REFRESHED: Age = Age {
    least: Duration::from_millis(600),
    rests: (1.0, Duration::ZERO),
    rests_of_many: (6.0, Duration::from_secs(15)),
};

impl Age {
    fn of(&self, took: Duration, stats: &Stats) -> Duration {
        let (rests, more) = if stats.others.is_some() { self.rests_of_many } else { self.rests };
        self.least.max(took.mul_f64(rests).min(took.saturating_add(more)))
    }
}

/// How old the figures of one queue may be.
const OWN_AGE_MAX: Duration = Duration::from_millis(900);
/// Of so many queues at least the oldest job is queried.
const SUMMARY_QUEUES: usize = 1000;
/// Of so many queues their own figures are remembered.
const OWN_MAX: usize = 1000;

/// A cache of the last counts that were read.
#[derive(Default)]
pub(super) struct StatsCache {
    seen: Mutex<Seen>,
    /// Held while they are read.
    reading: tokio::sync::Mutex<()>,
    /// Held while the jobs of a queue are counted.
    counting: Arc<tokio::sync::Mutex<()>>,
    own: Mutex<HashMap<QueueName, Arc<tokio::sync::Mutex<Option<Own>>>>>,
}

/// The figures of one queue, and when reading them began.
#[derive(Clone)]
struct Own {
    began: Instant,
    at: Timestamp,
    counts: QueueCounts,
    next_due: Option<Timestamp>,
    load: Load,
}

#[derive(Default)]
struct Seen {
    /// The counts, when reading them began, and how long it took.
    last: Option<(Instant, Duration, Arc<Stats>)>,
    wanted: Option<Instant>,
    is_refreshed: bool,
}

impl StatsCache {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the last counts, if they are younger than this.
    fn younger_than(&self, age: &Age) -> Option<Arc<Stats>> {
        let seen = self.seen();
        let (at, took, stats) = seen.last.as_ref()?;
        (at.elapsed() < age.of(*took, stats)).then(|| stats.clone())
    }

    /// Notes a request. Returns whether a task must begin to refresh the counts, since requests keep coming.
    fn want(&self) -> bool {
        let mut seen = self.seen();
        let is_repeated = seen.wanted.is_some_and(|wanted| wanted.elapsed() < REFRESHED_FOR);
        seen.wanted = Some(Instant::now());
        is_repeated && !std::mem::replace(&mut seen.is_refreshed, true)
    }

    /// Returns whether the counts are still to be refreshed; if not, another task may begin to.
    fn is_wanted(&self) -> bool {
        let mut seen = self.seen();
        seen.is_refreshed = seen.wanted.is_some_and(|wanted| wanted.elapsed() < REFRESHED_FOR);
        seen.is_refreshed
    }

    /// Returns where the figures of one queue are kept.
    fn own(&self, queue: &QueueName) -> Arc<tokio::sync::Mutex<Option<Own>>> {
        let mut own = self.own.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if own.len() >= OWN_MAX && !own.contains_key(queue) {
            own.clear();
        }
        own.entry(queue.clone()).or_default().clone()
    }
}

/// The counts of all queues, and the moment they are of.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    /// When they were counted, by the store's clock.
    pub at: Timestamp,
    /// How many queues have jobs.
    pub count: u64,
    /// How many are listed: they have jobs, or settings.
    pub listed: u64,
    /// How many workers are known.
    pub workers: u64,
    /// Those with the most unfinished jobs: all, unless there are more than `limits.metrics_queues`.
    pub queues: HashMap<QueueName, QueueCounts>,
    /// All others together, if there are any.
    pub others: Option<Counts>,
    /// In which queue the oldest ready job is, of the listed ones and some more.
    pub oldest_in: Option<QueueName>,
    /// All of them together.
    pub(super) total: QueueCounts,
    /// Where the oldest ready jobs are.
    pub(super) oldest: Oldest,
}

/// The queues whose oldest ready jobs are the oldest.
#[derive(Debug, Clone, Default)]
pub(super) struct Oldest {
    /// The first of them, the oldest first.
    pub queues: Vec<QueueName>,
    /// Since when the oldest job of the next one has been ready.
    next: Option<Timestamp>,
    /// Whether another queue may have an older one: not of all it is known exactly.
    is_approximate: bool,
}

impl Oldest {
    fn new(count: u64, queues: &HashMap<QueueName, QueueCounts>) -> Self {
        let ready = queues.iter().filter_map(|(queue, counts)| Some((counts.oldest_ready?, queue)));
        let mut by_age: Vec<(Timestamp, &QueueName)> = ready.collect();
        by_age.sort_unstable();
        let is_unknown = |counts: &QueueCounts| {
            counts.oldest_is_approximate || counts.oldest_ready.is_none() && counts.counts.ready > 0
        };
        Self {
            queues: by_age.iter().take(QUEUES_SCAN_LIMIT).map(|(_, queue)| (*queue).clone()).collect(),
            next: by_age.get(QUEUES_SCAN_LIMIT).map(|(oldest, _)| *oldest),
            is_approximate: count > queues.len() as u64 || queues.values().any(is_unknown),
        }
    }

    /// Returns whether a queue that was not read may have an older job. It cannot if its own oldest ready job is younger than both.
    pub fn may_be_elsewhere(&self, load: &Load) -> bool {
        let found = [load.oldest_first, load.oldest_retried];
        let may_be = |next| found.iter().any(|found| found.is_none_or(|found| next < found));
        self.is_approximate || self.next.is_some_and(may_be)
    }
}

/// The figures of one queue, or of all.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// How many jobs are in each state.
    pub counts: Counts,
    /// Whether the split of `ready` and `scheduled` is of a moment ago.
    pub split_is_approximate: bool,
    /// For how long the job that has been ready for longest has been so, in milliseconds.
    pub oldest_ready_age_ms: Option<u64>,
    /// Whether that was looked up a while ago, and the queue has changed since.
    pub oldest_is_approximate: bool,
    /// What happened lately, on all servers.
    pub flow: Flow,
    /// How many calls wait for jobs on this server.
    pub waiting_here: u64,
    /// Whether calls wait for jobs on other servers.
    pub waiting_elsewhere: bool,
}

/// What is known of one queue beyond its figures.
#[derive(Debug, Clone, Default)]
pub struct QueueFigures {
    /// Its figures.
    pub figures: Figures,
    /// The moment that they are of, by the store's clock.
    pub at: Timestamp,
    /// When the next scheduled job comes due.
    pub next_due_at: Option<Timestamp>,
    /// Who works on it, and what is tried again.
    pub load: Load,
    /// Why it needs attention.
    pub attention: Vec<Attention>,
    /// Whether it is not known yet if it does for some reason.
    pub attention_is_partial: bool,
}

impl Figures {
    fn new(at: Timestamp, counts: &QueueCounts, queues: &Queues, queue: Option<&QueueName>) -> Self {
        let waiters = &queues.0.waiters;
        Self {
            counts: counts.counts,
            split_is_approximate: counts.split_is_approximate,
            oldest_ready_age_ms: counts.oldest_ready.map(|oldest| at.ms_since(oldest)),
            oldest_is_approximate: counts.oldest_is_approximate,
            flow: queues.flow(queue),
            waiting_here: waiters.count(queue),
            waiting_elsewhere: match queue {
                Some(queue) => waiters.peers.wait_for(queue),
                None => waiters.peers.any_wait(),
            },
        }
    }
}

impl Stats {
    /// The figures of so many queues are kept (`shown`), the largest; `listed` queues are in the list.
    fn new(
        at: Timestamp,
        Summary { total, count, mut queues }: Summary,
        shown: usize,
        listed: u64,
        workers: u64,
    ) -> Self {
        let ready = queues.iter().filter_map(|(queue, counts)| Some((counts.oldest_ready?, queue)));
        let oldest_in = ready.min().map(|(_, queue)| queue.clone());
        let oldest = Oldest::new(count, &queues);
        if queues.len() > shown {
            let unfinished = |QueueCounts { counts, .. }: &QueueCounts| {
                counts.ready + counts.scheduled + counts.reserved + counts.blocked
            };
            let mut by_size: Vec<_> = queues.into_iter().collect();
            by_size.sort_by_key(|(_, counts)| std::cmp::Reverse(unfinished(counts)));
            by_size.truncate(shown);
            queues = by_size.into_iter().collect();
        }
        let are_all = count <= queues.len() as u64;
        let rest = |mut rest: Counts, QueueCounts { counts, .. }: &QueueCounts| {
            rest.ready = rest.ready.saturating_sub(counts.ready);
            rest.scheduled = rest.scheduled.saturating_sub(counts.scheduled);
            rest.reserved = rest.reserved.saturating_sub(counts.reserved);
            rest.blocked = rest.blocked.saturating_sub(counts.blocked);
            rest.dead = rest.dead.saturating_sub(counts.dead);
            rest.done = rest.done.saturating_sub(counts.done);
            rest
        };
        let others = (!are_all).then(|| queues.values().fold(total.counts, rest));
        Self { at, count, listed, workers, queues, others, oldest_in, total, oldest }
    }

    /// Returns how many jobs there are in all queues together.
    pub fn total_counts(&self) -> Counts {
        self.total.counts
    }

    /// Returns since when the oldest ready job of the listed queues has been so.
    pub fn oldest_ready(&self) -> Option<Timestamp> {
        self.total.oldest_ready
    }

    /// Returns for how long the oldest ready job of a listed queue has been so, in milliseconds.
    pub fn age_ms(&self, counts: &QueueCounts) -> Option<u64> {
        counts.oldest_ready.map(|oldest| self.at.ms_since(oldest))
    }
}

/// Less is nothing that a person should hear of.
const CLOCK_AHEAD_MS: u64 = 100;

impl Queues {
    /// Returns by how much the store's clock is ahead of the machine's, where that was set back.
    pub fn clock_ahead_ms(&self) -> Option<u64> {
        Some(self.0.store.ahead_ms()).filter(|ahead_ms| *ahead_ms >= CLOCK_AHEAD_MS)
    }

    /// Returns the counts of all queues, at most a second old; where reading them takes long, or there are more queues than are
    /// listed, at most some times as old as it takes.
    pub async fn stats(&self) -> Result<Arc<Stats>> {
        if self.0.stats.want() {
            tokio::spawn(self.clone().refresh_stats());
        }
        if let Some(stats) = self.0.stats.younger_than(&SERVED) {
            return Ok(stats);
        }
        // In a task of its own: a read that takes longer than the caller waits serves the next request.
        let this = self.clone();
        let reading = tokio::spawn(async move { this.read_stats(&SERVED).await });
        self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()))
    }

    /// Reads the counts, unless there are some that are younger than this.
    async fn read_stats(&self, age: &Age) -> Result<Arc<Stats>> {
        let _reading = self.0.stats.reading.lock().await;
        if let Some(stats) = self.0.stats.younger_than(age) {
            return Ok(stats);
        }
        // The age counts from before the query: the counts are about then.
        let began = Instant::now();
        let stats = Arc::new(self.count_stats().await?);
        self.0.stats.seen().last = Some((began, began.elapsed(), stats.clone()));
        Ok(stats)
    }

    /// Reads the counts, whatever is known.
    pub(super) async fn count_stats(&self) -> Result<Stats> {
        let shown = self.options().metrics_queues;
        let at = self.now()?; // before anything is read: it is no older than it says
        let summary = self.0.store.summary(shown.max(SUMMARY_QUEUES)).await?;
        let listed = summary.count + self.empty_queues(&summary).await?;
        let workers = self.0.store.how_many(Named::Workers, u64::MAX).await?;
        Ok(Stats::new(at, summary, shown, listed, workers))
    }

    /// Returns how many queues have settings and no jobs.
    async fn empty_queues(&self, summary: &Summary) -> Result<u64> {
        let snapshot = self.snapshot();
        let unlisted = snapshot.queues.keys().filter(|queue| !summary.queues.contains_key(*queue));
        let unlisted: Vec<QueueName> = unlisted.cloned().collect();
        if summary.count <= summary.queues.len() as u64 || unlisted.is_empty() {
            return Ok(unlisted.len() as u64);
        }
        let with_jobs = self.0.store.with_jobs(&unlisted).await?;
        Ok((unlisted.len() - with_jobs.len()) as u64)
    }

    /// Reads the counts again and again, before they are too old, for as long as requests keep coming.
    async fn refresh_stats(self) {
        while self.0.stats.is_wanted() && !self.is_draining() {
            // A request returns the error itself; here the next round retries.
            let read = self.read_stats(&REFRESHED).await;
            let rest = self
                .0
                .stats
                .seen()
                .last
                .as_ref()
                .filter(|_| read.is_ok())
                .map(|(at, took, stats)| REFRESHED.of(*took, stats).saturating_sub(at.elapsed()));
            tokio::time::sleep(rest.unwrap_or(REFRESHED.least)).await;
        }
    }

    /// Returns the figures of a queue, with its jobs counted now: one call counts at a time, and others are not kept from the figures.
    pub async fn exact_figures(&self, queue: &QueueName) -> Result<QueueFigures> {
        let counting = self.in_time(self.0.stats.counting.clone().lock_owned()).await?;
        hold::keeping(counting, self.counted_figures(queue)).await // a count goes on where its caller leaves
    }

    async fn counted_figures(&self, queue: &QueueName) -> Result<QueueFigures> {
        let counted = self.0.store.count_now(queue).await?;
        let mut own = self.read_own(queue).await?;
        (own.counts.counts, own.counts.split_is_approximate) = (counted, false);
        self.figures_of(queue, own).await
    }

    async fn read_own(&self, queue: &QueueName) -> Result<Own> {
        let (began, at, store) = (Instant::now(), self.now()?, &self.0.store);
        let counts = store.counts(queue).await?;
        let next_due = store.next_due(queue).await?;
        let load = store.load(queue).await?;
        Ok(Own { began, at, counts, next_due, load })
    }

    async fn figures_of(
        &self,
        queue: &QueueName,
        Own { at, counts, next_due, load, .. }: Own,
    ) -> Result<QueueFigures> {
        let now = self.now().unwrap_or(at);
        let mut figures = QueueFigures {
            figures: Figures::new(at, &counts, self, Some(queue)),
            next_due_at: next_due.filter(|due| *due > now),
            at,
            load,
            attention: Vec::new(),
            attention_is_partial: false,
        };
        (figures.attention, figures.attention_is_partial) =
            self.attention(queue, &counts, &figures.figures.flow).await?;
        Ok(figures)
    }

    /// Returns the figures of a queue, at most a second old. Others cost it nothing.
    pub async fn figures(&self, queue: &QueueName) -> Result<QueueFigures> {
        let name = queue;
        let (this, own) = (self.clone(), self.0.stats.own(queue));
        let queue = queue.clone();
        let reading = hold::spawn(async move {
            let mut own = own.lock().await;
            if let Some(own) = own.as_ref().filter(|own| own.began.elapsed() < OWN_AGE_MAX) {
                return Ok(own.clone());
            }
            let read = this.read_own(&queue).await?;
            *own = Some(read.clone());
            Ok(read)
        });
        let read: Result<Own> =
            self.in_time(reading).await?.unwrap_or_else(|error| Err(StoreError::internal(error).into()));
        self.figures_of(name, read?).await
    }

    /// Returns the figures of all queues together, the counts that they are of, and what is tried again and what workers hold, where that
    /// could be read.
    pub async fn total_figures(&self) -> Result<(Figures, Arc<Stats>, Option<TotalLoad>)> {
        let stats = self.stats().await?;
        let load = self.total_load(&stats).await;
        Ok((Figures::new(stats.at, &stats.total, self, None), stats, load))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_again_before_they_are_too_old() {
        let (few, many) = (Stats::default(), Stats { others: Some(Counts::default()), ..Stats::default() });
        for (stats, late_s) in [(few, 6), (many, 30)] {
            for took in [0, 1, 300, 350, 599, 1_000, 2_000].map(Duration::from_millis) {
                let (served, refreshed) = (SERVED.of(took, &stats), REFRESHED.of(took, &stats));
                assert!(refreshed >= took, "{took:?}: they have not been read yet");
                assert!(served >= refreshed + took, "{took:?}: requests would wait");
            }
            // A store that stood still is well again.
            let (took, late) = (Duration::from_secs(25), Duration::from_secs(late_s));
            assert_eq!(SERVED.of(took, &stats), took + late);
        }
    }
}
