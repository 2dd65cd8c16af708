//! Queues that had jobs a while ago and have none now: their figures stay at 0 for an hour before they go, so that a graph shows
//! that they were emptied, and an alert on them ends.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{Queues, Result, Stats};
use crate::job::QueueName;

/// For how long a queue that was emptied is still listed.
pub const EMPTIED_FOR: Duration = Duration::from_secs(3600);

/// The queues that were listed, and since when each has been empty; `None`: it had jobs when the list was last made.
#[derive(Default)]
pub(super) struct Emptied(Mutex<HashMap<QueueName, Option<Instant>>>);

impl Emptied {
    /// Notes which queues have jobs now: those of the list, and others. Returns which of those that were listed have none.
    fn note(&self, listed: &Stats, others: &HashSet<QueueName>, most: usize, now: Instant) -> Vec<QueueName> {
        let mut seen = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        seen.retain(|queue, since| {
            let is_old = since.is_some_and(|since| now.saturating_duration_since(since) >= EMPTIED_FOR);
            !is_old && !others.contains(queue)
        });
        let mut empty = Vec::new();
        for (queue, since) in seen.iter_mut().filter(|(queue, _)| !listed.queues.contains_key(*queue)) {
            empty.push((*since.get_or_insert(now), queue.clone()));
        }
        empty.sort_unstable();
        let forgotten = empty.len().saturating_sub(most); // those that have been empty for longest
        for (_, queue) in empty.drain(..forgotten) {
            seen.remove(&queue);
        }
        seen.extend(listed.queues.keys().map(|queue| (queue.clone(), None)));
        empty.into_iter().map(|(_, queue)| queue).collect()
    }

    /// Returns those of which it is not known whether they have jobs, since the list leaves some out.
    fn unknown(&self, listed: &Stats) -> Vec<QueueName> {
        if listed.others.is_none() {
            return Vec::new();
        }
        let seen = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        seen.keys().filter(|queue| !listed.queues.contains_key(*queue)).cloned().collect()
    }
}

impl Queues {
    /// Returns the queues that were listed within the last hour and have no jobs now. Where the list is not of all queues, one
    /// call of the store asks for those that have left it.
    pub async fn emptied(&self, listed: &Stats) -> Result<Vec<QueueName>> {
        let unknown = self.0.emptied.unknown(listed);
        let others = match unknown.is_empty() {
            true => HashSet::new(),
            false => self.0.store.with_jobs(&unknown).await?,
        };
        Ok(self.0.emptied.note(listed, &others, self.options().metrics_queues, Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Counts;

    fn name(text: &str) -> QueueName {
        text.parse().unwrap()
    }

    fn listed(queues: &[&str], others: bool) -> Stats {
        let queues = queues.iter().map(|queue| (name(queue), Default::default())).collect();
        Stats { queues, others: others.then(Counts::default), ..Stats::default() }
    }

    #[test]
    fn an_emptied_queue_stays_for_an_hour() {
        let (emptied, start) = (Emptied::default(), Instant::now());
        let none = HashSet::new();
        assert!(emptied.note(&listed(&["a", "b"], false), &none, 10, start).is_empty());
        assert_eq!(emptied.note(&listed(&["b"], false), &none, 10, start), [name("a")]);
        let late = start + EMPTIED_FOR - Duration::from_secs(1);
        assert_eq!(emptied.note(&listed(&["b"], false), &none, 10, late), [name("a")]);
        assert!(emptied.note(&listed(&["b"], false), &none, 10, start + EMPTIED_FOR).is_empty());
        assert!(emptied.note(&listed(&["a", "b"], false), &none, 10, start + EMPTIED_FOR).is_empty());
    }

    #[test]
    fn one_that_is_only_not_listed_any_more_is_not_empty() {
        let (emptied, start) = (Emptied::default(), Instant::now());
        emptied.note(&listed(&["a", "b"], false), &HashSet::new(), 10, start);
        let shorter = listed(&["c"], true);
        let mut unknown = emptied.unknown(&shorter);
        unknown.sort();
        assert_eq!(unknown, [name("a"), name("b")]);
        assert_eq!(emptied.note(&shorter, &HashSet::from([name("a")]), 10, start), [name("b")]);
        assert_eq!(emptied.unknown(&shorter), [name("b")]);
    }

    #[test]
    fn there_are_so_many_at_most() {
        let (emptied, start) = (Emptied::default(), Instant::now());
        emptied.note(&listed(&["a", "b", "c"], false), &HashSet::new(), 2, start);
        emptied.note(&listed(&["b", "c"], false), &HashSet::new(), 2, start);
        let later = start + Duration::from_secs(1);
        let mut left = emptied.note(&listed(&[], false), &HashSet::new(), 2, later);
        left.sort();
        assert_eq!(left, [name("b"), name("c")], "a has been empty for longest");
    }
}
