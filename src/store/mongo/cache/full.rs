//! What a server remembers of semaphores, so that claims ask less for what they know.
//!
//! - **Who admits.** Every claim that needs a semaphore, and every change of its capacity, replaces the document's `rev`. A
//!   claim that finds the `rev` of this server's last one knows that no server has admitted a job since, and what the capacity
//!   is; all else only makes room. So the holders are at most those counted then and those admitted here since.
//! - **Full.** A claim has found the semaphore full, and nothing has released it here since. For a moment claims of that
//!   queue are refused without being asked, since room may be made by others; and those that are asked leave the jobs behind the ones that
//!   they admit as they are, ready, where all jobs of the queue need that semaphore.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::job::{QueueName, SemaphoreName};

/// For how long it is remembered that a semaphore was full.
pub const FULL_FOR: Duration = Duration::from_millis(50);
/// For how long at most the jobs of a queue are left ready, however often they are refused. Then a claim blocks the first of them, which
/// have their patience from then on.
const LEFT_FOR: Duration = Duration::from_secs(1);
/// For how long it is remembered at least that all jobs of a queue need the same semaphore.
const ALIKE_FOR: Duration = Duration::from_millis(200);
/// How many times as long as it took to find that out.
const ALIKE_TIMES: u32 = 10;
/// How many semaphores or queues are remembered.
const MOST: usize = 10_000;

/// What a claim has learned of a semaphore that it has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known {
    /// The `rev` that it wrote.
    pub rev: i64,
    /// The capacity.
    pub capacity: u64,
    /// How many jobs hold it at most.
    pub held_at_most: u64,
}

struct Refusal {
    semaphore: SemaphoreName,
    /// Since when its jobs are left ready: for a while only, so that those that wait are registered as such.
    since: Instant,
    until: Instant,
    alike_until: Option<Instant>,
}

/// What is remembered of a queue whose jobs have lately found a semaphore full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The semaphore.
    pub semaphore: SemaphoreName,
    /// Whether it is full, as far as is known.
    pub is_full: bool,
    /// Whether all jobs of the queue need it, as far as is known.
    pub is_alike: bool,
}

#[derive(Default)]
struct Memory {
    known: HashMap<SemaphoreName, Known>,
    full: HashMap<SemaphoreName, Instant>,
    queues: HashMap<QueueName, Refusal>,
    /// How often any semaphore was released here.
    releases: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct SemaphoreCache {
    memory: Mutex<Memory>,
    changed: Notify,
}

impl SemaphoreCache {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns what is known of these semaphores, if it is of all.
    pub fn known(&self, names: &[&SemaphoreName]) -> Option<Vec<Known>> {
        let memory = self.lock();
        names.iter().map(|name| memory.known.get(*name).copied()).collect()
    }

    /// A claim that has written these is stored.
    pub fn learn(&self, known: impl IntoIterator<Item = (SemaphoreName, Known)>) {
        let mut memory = self.lock();
        if memory.known.len() >= MOST {
            memory.known.clear();
        }
        memory.known.extend(known);
    }

    /// Returns how often semaphores were released here: for [`found_full`](Self::found_full), before a claim reads.
    pub fn releases(&self) -> u64 {
        self.lock().releases
    }

    /// A claim of this queue has found the semaphore full. Returns until when that is remembered; `None` where some were
    /// released since it began.
    pub fn found_full(&self, queue: &QueueName, semaphore: &SemaphoreName, releases: u64) -> Option<Instant> {
        self.found_full_at(Instant::now(), (queue, semaphore), releases)
    }

    fn found_full_at(
        &self,
        now: Instant,
        (queue, semaphore): (&QueueName, &SemaphoreName),
        releases: u64,
    ) -> Option<Instant> {
        let mut memory = self.lock();
        if memory.queues.len() >= MOST {
            memory.queues.retain(|_, refusal| refusal.until > now);
        }
        if memory.full.len() >= MOST {
            memory.full.retain(|_, until| *until > now);
        }
        let until = now + FULL_FOR;
        let before = memory.queues.remove(queue).filter(|before| before.semaphore == *semaphore);
        let alike_until = before.as_ref().and_then(|before| before.alike_until);
        let since = before
            .map(|before| before.since)
            .filter(|since| now.saturating_duration_since(*since) < LEFT_FOR);
        let (semaphore_name, since) = (semaphore.clone(), since.unwrap_or(now));
        let refusal = Refusal { semaphore: semaphore_name, since, until, alike_until };
        memory.queues.insert(queue.clone(), refusal);
        (memory.releases == releases).then(|| {
            memory.full.insert(semaphore.clone(), until);
            until
        })
    }

    /// Returns what is remembered of a queue.
    pub fn refused(&self, queue: &QueueName) -> Option<Refused> {
        self.refused_at(Instant::now(), queue)
    }

    fn refused_at(&self, now: Instant, queue: &QueueName) -> Option<Refused> {
        let memory = self.lock();
        let holds = |refusal: &&Refusal| {
            refusal.until > now && now.saturating_duration_since(refusal.since) < LEFT_FOR
        };
        let Refusal { semaphore, alike_until, .. } = memory.queues.get(queue).filter(holds)?;
        Some(Refused {
            semaphore: semaphore.clone(),
            is_full: memory.full.get(semaphore).is_some_and(|until| *until > now),
            is_alike: alike_until.is_some_and(|until| until > now),
        })
    }

    /// All jobs of the queue were found to need the semaphore, which took so long to find out.
    pub fn note_alike(&self, queue: &QueueName, semaphore: &SemaphoreName, took: Duration) {
        let until = Instant::now() + ALIKE_FOR.max(took.saturating_mul(ALIKE_TIMES));
        if let Some(refusal) = self.lock().queues.get_mut(queue).filter(|own| own.semaphore == *semaphore) {
            refusal.alike_until = Some(until);
        }
    }

    /// These semaphores may have room now.
    pub fn released<'a>(&self, names: impl IntoIterator<Item = &'a SemaphoreName>) {
        let mut memory = self.lock();
        let mut any = false;
        for name in names {
            memory.full.remove(name);
            any = true;
        }
        if any {
            memory.releases += 1;
            drop(memory);
            self.changed.notify_waiters();
        }
    }

    /// Jobs have come to these queues.
    pub fn came<'a>(&self, queues: impl IntoIterator<Item = &'a QueueName>) {
        let mut memory = self.lock();
        if memory.queues.is_empty() {
            return;
        }
        let gone = queues.into_iter().filter(|queue| memory.queues.remove(*queue).is_some()).count();
        drop(memory);
        if gone > 0 {
            self.changed.notify_waiters();
        }
    }

    /// Jobs that need these semaphores may be delivered again. What is remembered of their queue stays true of those that need what it
    /// was refused for.
    pub fn unblocked<'a>(&self, jobs: impl IntoIterator<Item = (&'a QueueName, &'a [SemaphoreName])>) {
        let mut memory = self.lock();
        let mut is_changed = false;
        for (queue, semaphores) in jobs {
            let is_other = |refusal: &Refusal| !semaphores.contains(&refusal.semaphore);
            if memory.queues.get(queue).is_some_and(is_other) {
                memory.queues.remove(queue);
                is_changed = true;
            }
        }
        drop(memory);
        if is_changed {
            self.changed.notify_waiters();
        }
    }

    /// Waits until something is released or comes, if it does so soon.
    pub async fn changes(&self, queue: &QueueName, wait: Duration) {
        let end = tokio::time::Instant::now() + wait;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let is_full = self.refused(queue).is_some_and(|refused| refused.is_full);
            if !is_full || tokio::time::timeout_at(end, changed).await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> (QueueName, SemaphoreName) {
        ("q".parse().unwrap(), "s".parse().unwrap())
    }

    #[test]
    fn what_is_released_here_is_forgotten() {
        let (cache, (queue, semaphore), now) = (SemaphoreCache::default(), names(), Instant::now());
        assert!(cache.found_full_at(now, (&queue, &semaphore), cache.releases()).is_some());
        let refused = cache.refused_at(now, &queue).unwrap();
        assert!(refused.is_full && !refused.is_alike);
        cache.note_alike(&queue, &semaphore, Duration::ZERO);
        cache.released([&semaphore]);
        let refused = cache.refused_at(now, &queue).unwrap();
        assert!(!refused.is_full && refused.is_alike);
        cache.came([&queue]);
        assert_eq!(cache.refused_at(now, &queue), None);
    }

    #[test]
    fn a_job_that_does_not_need_the_semaphore_ends_the_refusal() {
        let (cache, (queue, semaphore), now) = (SemaphoreCache::default(), names(), Instant::now());
        let needed = ["t".parse().unwrap(), semaphore.clone()];
        cache.unblocked([(&queue, &needed[..1])]);
        cache.found_full_at(now, (&queue, &semaphore), 0).unwrap();
        cache.note_alike(&queue, &semaphore, Duration::ZERO);
        cache.unblocked([(&queue, &needed[..]), (&"other".parse().unwrap(), &needed[..1])]);
        assert!(cache.refused_at(now, &queue).unwrap().is_alike);
        cache.unblocked([(&queue, &needed[..]), (&queue, &needed[..1])]);
        assert_eq!(cache.refused_at(now, &queue), None);
    }

    #[test]
    fn what_was_released_while_it_was_read_is_not_remembered() {
        let (cache, (queue, semaphore), now) = (SemaphoreCache::default(), names(), Instant::now());
        let releases = cache.releases();
        cache.released([&semaphore]);
        assert_eq!(cache.found_full_at(now, (&queue, &semaphore), releases), None);
        assert!(!cache.refused_at(now, &queue).unwrap().is_full);
    }

    #[test]
    fn nothing_is_remembered_for_long() {
        let (cache, (queue, semaphore), now) = (SemaphoreCache::default(), names(), Instant::now());
        cache.found_full_at(now, (&queue, &semaphore), 0).unwrap();
        assert!(cache.refused_at(now, &queue).is_some());
        assert_eq!(cache.refused_at(now + FULL_FOR, &queue), None);
    }

    #[tokio::test]
    async fn who_waits_hears_of_a_release() {
        let (cache, (queue, semaphore)) = (SemaphoreCache::default(), names());
        cache.found_full(&queue, &semaphore, 0).unwrap();
        let (long, begin) = (Duration::from_secs(60), Instant::now());
        tokio::join!(cache.changes(&queue, long), async { cache.released([&semaphore]) });
        cache.changes(&queue, long).await; // it is not full any more
        assert!(begin.elapsed() < long);
    }

    #[test]
    fn all_are_known_or_none() {
        let (cache, (_, semaphore)) = (SemaphoreCache::default(), names());
        let known = Known { rev: 1, capacity: 2, held_at_most: 0 };
        cache.learn([(semaphore.clone(), known)]);
        assert_eq!(cache.known(&[&semaphore]), Some(vec![known]));
        assert_eq!(cache.known(&[&semaphore, &"t".parse().unwrap()]), None);
    }
}
