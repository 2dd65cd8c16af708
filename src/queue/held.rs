//! What keeps the blocked jobs of queues from being delivered, as it was found some seconds ago. A task beside the board queries it, so
//! that a queue of which that takes long does not delay the board for long, nor keep other queues from being queried. It goes on until
//! nothing is due; each board says anew which queues are, the most urgent first.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Queues;
use super::attention::{Held, may_be_held};
use super::board::LISTED_MAX;
use crate::job::QueueName;
use crate::store::{Counts, StoreError, chain};

/// After so long it is queried again, or after a turn where that is longer.
const AGAIN: Duration = Duration::from_secs(5);
/// After so long where that has failed, or is not done.
const AGAIN_FAILED: Duration = Duration::from_secs(30);
/// How long a result stays valid, and two turns more: by then it was queried again, unless that fails.
const KEPT_FOR: Duration = Duration::from_secs(60);
const KEPT_TURNS: u32 = 2;
/// A turn takes so many times as long as querying each queue once: between two queries the store has as much rest.
const RESTS: u32 = 2;
/// Of so many queues what was found is kept.
const KNOWN_MAX: usize = 2 * LISTED_MAX;
/// So many failures in a row: the store is away, rather than a queue expensive.
const FAILURES: usize = 2;
/// The maximum number of a queue's semaphores whose use is queried.
const SEMAPHORES_MAX: usize = 20;
/// For how long a board waits for it where nothing is known, so that one that is read once a minute has it, too.
const BOARD_PATIENCE: Duration = Duration::from_millis(250);
/// For how long the figures of one queue wait for it.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Querying,
    Failed,
    Done,
}

struct Entry {
    tried: Instant,
    stage: Stage,
    /// How long the last query took that has succeeded.
    took: Duration,
    found: Option<(Instant, Arc<Held>)>,
}

impl Entry {
    /// Whether it is to be queried again, that being so long ago; after a failure, or where that is not done, so long.
    fn is_due(&self, again: Duration, again_failed: Duration) -> bool {
        let rest = match self.stage {
            Stage::Done => again,
            Stage::Failed => again_failed,
            Stage::Querying => AGAIN_FAILED,
        };
        self.tried.elapsed() >= rest
    }
}

/// Which queue is queried before others: one that stands still or has dead jobs, one that was never queried, and then the one of which
/// that was longest ago.
type Rank = (Reverse<bool>, Option<Instant>, QueueName);

#[derive(Default)]
struct State {
    known: HashMap<QueueName, Entry>,
    /// Those that are due, the next one last.
    wanted: Vec<Rank>,
    /// How long it takes until each was queried.
    turn: Duration,
}

impl State {
    /// Returns what was found lately.
    fn found(&self, queue: &QueueName) -> Option<Arc<Held>> {
        let (at, held) = self.known.get(queue)?.found.as_ref()?;
        (at.elapsed() < KEPT_FOR + self.turn * KEPT_TURNS).then(|| held.clone())
    }

    /// Returns when it was queried last if that is long ago, `None` inside where it never was.
    fn due(&self, queue: &QueueName) -> Option<Option<Instant>> {
        match self.known.get(queue) {
            Some(entry) => entry.is_due(AGAIN.max(self.turn), AGAIN_FAILED).then_some(Some(entry.tried)),
            None => Some(None),
        }
    }

    /// Notes that it is being queried.
    fn begin(&mut self, queue: &QueueName) {
        let known = &mut self.known;
        if known.len() >= KNOWN_MAX && !known.contains_key(queue) {
            known.retain(|_, entry| entry.tried.elapsed() < KEPT_FOR);
            if known.len() >= KNOWN_MAX {
                let oldest =
                    known.iter().min_by_key(|(_, entry)| entry.tried).map(|(queue, _)| queue.clone());
                if let Some(oldest) = oldest {
                    known.remove(&oldest);
                }
            }
        }
        let (took, found) =
            known.remove(queue).map_or((Duration::ZERO, None), |entry| (entry.took, entry.found));
        known.insert(queue.clone(), Entry { tried: Instant::now(), stage: Stage::Querying, took, found });
    }
}

/// What is known of the queues.
#[derive(Default)]
pub(super) struct HeldCache {
    state: Mutex<State>,
    /// Held by the task that queries.
    querying: Arc<tokio::sync::Mutex<()>>,
    /// Notified whenever a queue was queried.
    queried: Notify,
}

impl HeldCache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns what is known of these queues, whether nothing is of some that are due, and notes those that are.
    fn ask<'q>(
        &self,
        queues: impl Iterator<Item = (&'q QueueName, &'q Counts)>,
    ) -> (HashMap<QueueName, Arc<Held>>, Vec<&'q QueueName>) {
        let mut state = self.state();
        let (mut all, mut wanted, mut unknown, mut cost) =
            (HashMap::new(), Vec::new(), Vec::new(), Duration::ZERO);
        for (queue, counts) in queues.filter(|(_, counts)| may_be_held(counts)) {
            cost += state.known.get(queue).map_or(Duration::ZERO, |entry| entry.took);
            let (found, due) = (state.found(queue), state.due(queue));
            if found.is_none() && due.is_some() {
                unknown.push(queue);
            }
            all.extend(found.map(|held| (queue.clone(), held)));
            let is_urgent = counts.dead > 0 || counts.ready + counts.reserved == 0;
            wanted.extend(due.map(|tried| (Reverse(is_urgent), tried, queue.clone())));
        }
        wanted.sort_unstable_by(|one, other| other.cmp(one));
        state.wanted = wanted;
        // The cost of each by itself: one that is expensive, or fails, does not make all others wait.
        state.turn = cost.saturating_mul(RESTS);
        (all, unknown)
    }

    /// Returns the next queue that is due, which is being queried from now on.
    fn next(&self) -> Option<QueueName> {
        let mut state = self.state();
        loop {
            let (_, _, queue) = state.wanted.pop()?;
            // Another task may have queried it meanwhile.
            if state.due(&queue).is_some() {
                state.begin(&queue);
                return Some(queue);
            }
        }
    }

    fn has_wanted(&self) -> bool {
        !self.state().wanted.is_empty()
    }

    /// Returns whether a call for this queue alone is to query it; it is being queried from now on.
    fn begin_one(&self, queue: &QueueName) -> bool {
        let mut state = self.state();
        let is_due = state.known.get(queue).is_none_or(|entry| entry.is_due(AGAIN, AGAIN));
        if is_due {
            state.begin(queue);
        }
        is_due
    }

    fn is_querying(&self, queue: &QueueName) -> bool {
        self.state().known.get(queue).is_some_and(|entry| entry.stage == Stage::Querying)
    }

    /// Notes what has come of a query that took so long.
    fn note(&self, queue: &QueueName, held: Option<Held>, took: Duration) {
        let mut state = self.state();
        let now = Instant::now();
        if let Some(entry) = state.known.get_mut(queue) {
            match held {
                Some(held) => {
                    *entry =
                        Entry { tried: now, stage: Stage::Done, took, found: Some((now, Arc::new(held))) };
                }
                None => (entry.tried, entry.stage) = (now, Stage::Failed),
            }
        }
        drop(state);
        self.queried.notify_waiters();
    }
}

impl Queues {
    /// Returns what is known of these queues, and has the task query what is due. Where nothing is known of some, it waits for that a
    /// little.
    pub(super) async fn all_held<'q>(
        &self,
        queues: impl Iterator<Item = (&'q QueueName, &'q Counts)>,
    ) -> HashMap<QueueName, Arc<Held>> {
        let cache = &self.0.held;
        let (mut all, unknown) = cache.ask(queues);
        if cache.has_wanted()
            && let Ok(querying) = cache.querying.clone().try_lock_owned()
        {
            let task = tokio::spawn(self.clone().query_due(querying));
            if !unknown.is_empty() {
                let _ = tokio::time::timeout(BOARD_PATIENCE, task).await; // it goes on by itself
            }
        }
        let state = cache.state();
        let known = |queue: &QueueName| Some((queue.clone(), state.found(queue)?));
        all.extend(unknown.into_iter().filter_map(known));
        all
    }

    /// Returns what is known of one queue; it is queried where that was a while ago.
    pub(super) async fn held(&self, queue: &QueueName, counts: &Counts) -> Option<Arc<Held>> {
        if !may_be_held(counts) {
            return None;
        }
        let cache = &self.0.held;
        if cache.begin_one(queue) {
            let (this, name) = (self.clone(), queue.clone());
            tokio::spawn(async move { this.query_one(&name).await }); // it goes on by itself
        }
        // The task that queries it.
        let queried = async {
            loop {
                let queried = cache.queried.notified();
                tokio::pin!(queried);
                queried.as_mut().enable();
                if !cache.is_querying(queue) {
                    return;
                }
                queried.await;
            }
        };
        let _ = tokio::time::timeout(PATIENCE, queried).await;
        cache.state().found(queue)
    }

    /// Queries queues until none is due, or the store seems to be away.
    async fn query_due(self, mut querying: tokio::sync::OwnedMutexGuard<()>) {
        loop {
            let mut failures = 0;
            while !self.is_draining()
                && let Some(queue) = self.0.held.next()
            {
                failures = if self.query_one(&queue).await { 0 } else { failures + 1 };
                if failures >= FAILURES {
                    return;
                }
            }
            drop(querying);
            // A board that wanted more a moment ago found another query under way.
            match self.0.held.querying.clone().try_lock_owned() {
                Ok(again) if self.0.held.has_wanted() && !self.is_draining() => querying = again,
                _ => return,
            }
        }
    }

    /// Queries a queue, and notes what has come of it. Returns whether that has succeeded.
    async fn query_one(&self, queue: &QueueName) -> bool {
        let began = Instant::now();
        let read = self.read_held(queue).await;
        if let Err(error) = &read {
            tracing::debug!(%queue, error = chain(error), "cannot determine what blocks the queue; retrying later");
        }
        let is_read = read.is_ok();
        self.0.held.note(queue, read.ok(), began.elapsed());
        is_read
    }

    async fn read_held(&self, queue: &QueueName) -> Result<Held, StoreError> {
        let store = &self.0.store;
        let mut found = store.blockers(queue).await?;
        let mut held = Held { dead_heads: found.dead_heads, head: found.head, ..Held::default() };
        if !found.semaphores.is_empty() {
            held.missing = store.unknown_semaphores(&found.semaphores).await?.into_iter().min();
            found.semaphores.truncate(SEMAPHORES_MAX);
            let full = store.uses(&found.semaphores).await?;
            let full = full.into_iter().filter(|semaphore| semaphore.held >= semaphore.capacity);
            held.full = full.min_by(|one, other| one.name.cmp(&other.name));
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(n: usize) -> QueueName {
        format!("q{n}").parse().unwrap()
    }

    fn blocked(ready: u64, dead: u64) -> Counts {
        Counts { blocked: 1, ready, dead, ..Counts::default() }
    }

    fn age(cache: &HeldCache, n: usize, by: Duration) {
        let mut state = cache.state();
        let entry = state.known.get_mut(&queue(n)).unwrap();
        entry.tried -= by;
        entry.found = entry.found.take().map(|(at, held)| (at - by, held));
    }

    fn found(cache: &HeldCache, n: usize) -> Option<u64> {
        cache.state().found(&queue(n)).map(|held| held.dead_heads)
    }

    fn held(dead_heads: u64) -> Option<Held> {
        Some(Held { dead_heads, ..Held::default() })
    }

    #[test]
    fn a_failure_is_remembered_and_what_was_found_is_not_told_for_long() {
        let (cache, one, ms) = (HeldCache::default(), queue(1), Duration::from_millis(1));
        let due = || cache.state().due(&one);
        assert!(due() == Some(None) && cache.begin_one(&one));
        assert!(!cache.begin_one(&one) && due().is_none() && cache.is_querying(&one), "it is being queried");
        cache.note(&one, held(7), ms);
        age(&cache, 1, AGAIN);
        assert!(due().flatten().is_some() && cache.begin_one(&one));
        cache.note(&one, None, ms);
        assert_eq!(found(&cache, 1), Some(7));
        age(&cache, 1, AGAIN);
        assert!(due().is_none(), "it has failed");
        assert!(cache.begin_one(&one), "who asks for it alone has it tried again");
        cache.note(&one, None, ms);
        age(&cache, 1, AGAIN_FAILED);
        assert!(due().is_some() && found(&cache, 1).is_some());
        age(&cache, 1, KEPT_FOR);
        assert!(found(&cache, 1).is_none(), "that was long ago");
    }

    #[test]
    fn all_are_queried_one_by_one_and_those_that_stand_still_first() {
        let cache = HeldCache::default();
        let counts: Vec<(QueueName, Counts)> = (0..300)
            .map(|n| (queue(n), if n % 100 == 7 { blocked(0, 0) } else { blocked(3, (n == 250).into()) }))
            .collect();
        let ask = || cache.ask(counts.iter().map(|(queue, counts)| (queue, counts)));
        assert_eq!(ask().1.len(), 300);
        let queried: Vec<QueueName> = std::iter::from_fn(|| {
            let next = cache.next()?;
            cache.note(&next, held(1), Duration::from_millis(100));
            Some(next)
        })
        .collect();
        let mut first = queried[..4].to_vec();
        first.sort();
        assert_eq!((queried.len(), first), (300, vec![queue(107), queue(207), queue(250), queue(7)]));
        let (all, unknown) = ask();
        assert_eq!((all.len(), unknown.len(), cache.has_wanted()), (300, 0, false));
        // A turn takes a minute: it is not queried again before, and the result stays valid until then.
        assert_eq!(cache.state().turn, Duration::from_secs(60));
        age(&cache, 1, Duration::from_secs(40));
        assert!(cache.state().due(&queue(1)).is_none());
        age(&cache, 1, Duration::from_secs(100));
        assert!(cache.state().due(&queue(1)).is_some());
        assert_eq!(found(&cache, 1), Some(1));
        age(&cache, 1, Duration::from_secs(40));
        assert_eq!(found(&cache, 1), None);
    }

    #[test]
    fn one_expensive_queue_does_not_make_the_others_wait() {
        let (cache, counts) = (HeldCache::default(), blocked(1, 0));
        let queues: Vec<QueueName> = (0..1000).map(queue).collect();
        let ask = || drop(cache.ask(queues.iter().map(|queue| (queue, &counts))));
        ask();
        while let Some(next) = cache.next() {
            let is_slow = next == queues[0];
            cache.note(&next, held(1), Duration::from_millis(if is_slow { 1500 } else { 1 }));
        }
        for _ in 0..50 {
            cache.begin_one(&queues[0]);
            cache.note(&queues[0], held(1), Duration::from_millis(1500));
            cache.begin_one(&queues[1]);
            cache.note(&queues[1], None, Duration::from_secs(9)); // it fails
            ask();
        }
        assert!(cache.state().turn <= AGAIN, "{:?}", cache.state().turn);
        age(&cache, 7, AGAIN);
        assert!(cache.state().due(&queues[7]).is_some());
    }

    #[test]
    fn as_many_queues_are_known_as_are_kept_and_the_oldest_makes_room() {
        let cache = HeldCache::default();
        (0..KNOWN_MAX).for_each(|n| assert!(cache.begin_one(&queue(n))));
        age(&cache, 5, Duration::from_secs(30));
        assert!(cache.begin_one(&queue(KNOWN_MAX)));
        let state = cache.state();
        assert_eq!(state.known.len(), KNOWN_MAX);
        assert!(state.due(&queue(5)) == Some(None) && state.due(&queue(6)).is_none());
    }
}
