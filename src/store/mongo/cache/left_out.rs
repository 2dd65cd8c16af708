//! Jobs that cannot be read, and could not be made dead either: another program's index refuses it, the document has no room for it, or
//! a transaction of a killed server holds what belongs to it.
//!
//! Reads of the first jobs of a queue leave them out for a while. Else each would find them again, try the same in vain, and get no further
//! once they are as many as it reads.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::job::QueueName;
use crate::store::mongo::stored::RawId;

/// For how long one is left out. Then it is tried again.
const LEFT_OUT_FOR: Duration = Duration::from_secs(5);
/// For how long it is remembered: no room is kept for it in a semaphore while it is tried again.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);
/// The most ids of one queue.
const OF_QUEUE_MAX: usize = 1000;
/// The most ids of all queues together.
const OF_ALL_MAX: usize = 4000;
/// The longest id that is remembered: longer ones are of no server.
const ID_BYTES_MAX: usize = 1024;

type Queues = HashMap<QueueName, HashMap<RawId, Instant>>;

/// Which jobs are left out: when each was tried last.
#[derive(Default)]
pub struct LeftOut(Mutex<Queues>);

impl LeftOut {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// These jobs of a queue could not be made dead.
    pub fn note(&self, queue: &QueueName, ids: &[RawId]) {
        self.note_at(Instant::now(), queue, ids);
    }

    fn note_at(&self, now: Instant, queue: &QueueName, ids: &[RawId]) {
        let mut queues = self.lock();
        forget(&mut queues, now);
        let mut own = queues.remove(queue).unwrap_or_default();
        let others: usize = queues.values().map(HashMap::len).sum();
        let most = OF_QUEUE_MAX.min(OF_ALL_MAX.saturating_sub(others));
        for id in ids.iter().filter(|id| id.size() <= ID_BYTES_MAX) {
            if own.len() < most || own.contains_key(id) {
                own.insert(id.clone(), now);
            }
        }
        if !own.is_empty() {
            queues.insert(queue.clone(), own);
        }
    }

    /// Returns which jobs a read of the queue leaves out now.
    pub fn of(&self, queue: &QueueName) -> Vec<RawId> {
        self.of_at(Instant::now(), queue)
    }

    fn of_at(&self, now: Instant, queue: &QueueName) -> Vec<RawId> {
        let queues = self.lock();
        let own = queues.get(queue).into_iter().flatten();
        own.filter(|(_, at)| age(**at, now) < LEFT_OUT_FOR).map(|(id, _)| id.clone()).collect()
    }

    /// Returns how many jobs are remembered.
    pub fn count(&self) -> usize {
        self.count_at(Instant::now())
    }

    fn count_at(&self, now: Instant) -> usize {
        let mut queues = self.lock();
        forget(&mut queues, now);
        queues.values().map(HashMap::len).sum()
    }

    /// Returns whether this job is remembered.
    pub fn has(&self, queue: &QueueName, id: &RawId) -> bool {
        self.lock().get(queue).is_some_and(|own| own.contains_key(id))
    }
}

fn age(at: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(at)
}

/// Forgets what was tried too long ago.
fn forget(queues: &mut Queues, now: Instant) {
    queues.retain(|_, own| {
        own.retain(|_, at| age(*at, now) < REMEMBERED_FOR);
        !own.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;
    use crate::store::mongo::stored::Stored;

    fn ids(texts: impl IntoIterator<Item = String>) -> Vec<RawId> {
        texts.into_iter().map(|text| Stored::from(doc! { "_id": text }).raw_id().unwrap()).collect()
    }

    fn queue(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    #[test]
    fn jobs_are_left_out_for_a_while_and_remembered_for_longer() {
        let (left_out, now) = (LeftOut::default(), Instant::now());
        let both = ids(["a".to_owned(), "b".to_owned()]);
        left_out.note_at(now, &queue("q"), &both);
        assert_eq!(left_out.of_at(now, &queue("q")).len(), 2);
        assert!(left_out.of_at(now, &queue("other")).is_empty());
        let again = now + LEFT_OUT_FOR;
        assert!(left_out.of_at(again, &queue("q")).is_empty(), "they are tried again");
        assert!(left_out.count_at(again) == 2 && left_out.has(&queue("q"), &both[0]));
        assert!(!left_out.has(&queue("other"), &both[0]));
        left_out.note_at(again, &queue("q"), &both[1..]);
        assert_eq!(left_out.of_at(again, &queue("q")), both[1..]);
        assert_eq!(left_out.count_at(now + REMEMBERED_FOR), 1);
        assert_eq!(left_out.count_at(again + REMEMBERED_FOR), 0);
    }

    #[test]
    fn they_are_bounded() {
        let (left_out, now) = (LeftOut::default(), Instant::now());
        let many = ids((0..2 * OF_QUEUE_MAX).map(|n| n.to_string()));
        left_out.note_at(now, &queue("q"), &many);
        assert_eq!(left_out.count_at(now), OF_QUEUE_MAX);
        left_out.note_at(now, &queue("q"), &many);
        assert_eq!(left_out.count_at(now), OF_QUEUE_MAX, "those that are there are noted anew");
        for n in 0..10 {
            left_out.note_at(now, &queue(&format!("q{n}")), &many);
        }
        assert_eq!(left_out.count_at(now), OF_ALL_MAX);
        let left_out = LeftOut::default();
        left_out.note_at(now, &queue("q"), &ids(["x".repeat(ID_BYTES_MAX)]));
        assert_eq!(left_out.count_at(now), 0, "it is longer by its length and its end");
    }
}
