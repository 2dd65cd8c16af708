//! The walk over the priorities of a queue, from the highest on, in search of those with jobs that are due.
//!
//! A priority costs a seek, however many jobs wait in it. Delayed jobs of a million priorities would all the same keep the one
//! thread that writes busy for a second with every claim of their queue, while all other queues wait. So a transaction walks
//! [`WALKED_MAX`] priorities at most, and what was walked without finding a job is remembered.
//!
//! Jobs that are due and may not be delivered (see `due`) are bounded alike: a transaction passes over [`PASSED_MAX`] of them at most, and of
//! those that cannot be read it makes no more dead. The floor of a priority is the place before which there are no others. It is
//! remembered, and stays right as time passes: only a write makes such a job deliverable.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};

use rusqlite::{Connection, OptionalExtension, params};

use crate::job::{Meta, QueueName, State, Timestamp};
use crate::store::sqlite::fault::Fault;

#[cfg(test)]
mod tests;

/// How many priorities one transaction walks at most: some milliseconds.
pub const WALKED_MAX: usize = 1000;
/// How many due jobs that may not be delivered one transaction passes over at most, give or take one: some milliseconds. Those that it makes
/// dead, since they cannot be read, count as well.
pub const PASSED_MAX: usize = 1000;
/// From how many skipped priorities, or jobs that were passed over, on they are remembered.
const WORTH: usize = 32;
/// Of how many queues they are remembered at most.
const QUEUES_MAX: usize = 10_000;
/// Of how many priorities of a queue floors are remembered at most.
const FLOORS_MAX: usize = 256;

/// The first job of the highest priority below this one.
pub const FIRST_OF_PRIORITY: &str = "SELECT priority, run_at FROM jobs INDEXED BY jobs_head \
     WHERE queue = ?1 AND state = 'ready' AND priority < ?2 ORDER BY priority DESC, run_at LIMIT 1";

/// The first job of this priority that is due later.
pub const NEXT_DUE: &str = "SELECT run_at FROM jobs INDEXED BY jobs_head \
         WHERE queue = ?1 AND state = 'ready' AND priority = ?2 AND run_at > ?3 ORDER BY run_at LIMIT 1";

/// What a walk has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The first job of this priority is due.
    Due(i64),
    /// There are no more priorities.
    End,
    /// There are more, which are left for another transaction.
    Enough,
}

/// A place in the order of delivery within one priority.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The column `run_at`.
    pub run_at: i64,
    /// The column `id`.
    pub id: String,
}

impl Place {
    /// Returns a place that no job comes before.
    pub fn first() -> Self {
        Self { run_at: i64::MIN, id: String::new() }
    }
}

/// A walk over the priorities of one queue.
pub struct Walk<'a> {
    db: &'a Connection,
    queue: &'a QueueName,
    pop: bool,
    now: Timestamp,
    above: i64,
    left: usize,
    /// What lies before the first job that was found, and how many priorities and jobs these are.
    skipped: Skipped,
    count: usize,
    has_found: bool,
}

/// The priorities from the highest down to `down_to`, itself included, have nothing to deliver before `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Skipped {
    down_to: i64,
    until: Timestamp,
}

impl<'a> Walk<'a> {
    /// Begins behind what is known to have nothing. `pop`: jobs that need semaphores are passed over. `most`: how many priorities to walk.
    pub fn begin(
        db: &'a Connection,
        cache: &SkippedCache,
        (queue, pop): (&'a QueueName, bool),
        most: usize,
        now: Timestamp,
    ) -> Self {
        let known = cache.of(queue, pop, now);
        let count = if known.is_some() { WORTH } else { 0 };
        let none = Skipped { down_to: i64::MAX, until: Timestamp::from_millis(i64::MAX) };
        let skipped = known.unwrap_or(none);
        Self { db, queue, pop, now, above: skipped.down_to, left: most, skipped, count, has_found: false }
    }

    /// Goes on to the next priority whose first job is due.
    pub fn next(&mut self) -> Result<Step, Fault> {
        let mut first = self.db.prepare_cached(FIRST_OF_PRIORITY)?;
        loop {
            if self.left == 0 {
                return Ok(Step::Enough);
            }
            self.left -= 1;
            let found = first
                .query(params![self.queue.as_str(), self.above])?
                .next()?
                .map(|row| Ok::<_, Fault>((row.get(0)?, Timestamp::from_millis(row.get(1)?))));
            let Some((priority, run_at)) = found.transpose()? else {
                self.skip(i64::MIN, None, 1);
                return Ok(Step::End);
            };
            self.above = priority;
            if run_at <= self.now {
                return Ok(Step::Due(priority));
            }
            self.skip(priority, Some(run_at), 1);
        }
    }

    /// What is due of this priority was found: what comes behind it is not remembered.
    pub fn found(&mut self) {
        self.has_found = true;
    }

    /// What is due of this priority is not to be delivered: it has expired, or a pop passes over it. So many jobs were passed over.
    pub fn pass_over(&mut self, priority: i64, passed: usize) -> Result<(), Fault> {
        let mut next = self.db.prepare_cached(NEXT_DUE)?;
        let later = params![self.queue.as_str(), priority, self.now.millis()];
        let later: Option<i64> = next.query_row(later, |row| row.get(0)).optional()?;
        self.skip(priority, later.map(Timestamp::from_millis), passed.saturating_add(1));
        Ok(())
    }

    /// Raises the floor of this priority, which was `from`, where many jobs come first that may not be delivered. `ahead`: how many they are, and
    /// the place of the last one. A floor that is known is raised by each of them.
    pub fn raise(
        &self,
        cache: &SkippedCache,
        priority: i64,
        from: &Place,
        ahead: Option<(usize, Place)>,
    ) -> Result<(), Fault> {
        let is_known = *from != Place::first();
        match ahead {
            Some((count, floor)) if count >= WORTH || (is_known && floor > *from) => {
                cache.raise(self.db, (self.queue, self.pop), priority, floor)
            }
            _ => Ok(()),
        }
    }

    /// Goes back to this priority, from which something is removed. From here on nothing is learnt.
    pub fn again(&mut self, priority: i64) {
        self.above = priority.saturating_add(1);
        (self.has_found, self.count) = (true, 0);
    }

    fn skip(&mut self, priority: i64, next: Option<Timestamp>, count: usize) {
        if !self.has_found {
            self.count = self.count.saturating_add(count);
            let until = self.skipped.until;
            self.skipped = Skipped { down_to: priority, until: next.map_or(until, |next| next.min(until)) };
        }
    }

    /// Remembers what was skipped, where that was much. Only the thread that writes does this, in a transaction.
    pub fn remember(&self, cache: &SkippedCache) -> Result<(), Fault> {
        if self.count < WORTH {
            return Ok(());
        }
        cache.remember(self.db, (self.queue, self.pop), self.skipped)
    }
}

/// What claims have walked without finding a job. Within the process every write of a job goes by it ([`note`](Self::note)); it is
/// cleared where a transaction is rolled back, and where another program has written. A reader may use it, too: it may see the
/// jobs of a moment before, and reads again.
#[derive(Default)]
pub struct SkippedCache(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// For reserves, and for pops.
    by_queue: [HashMap<QueueName, Known>; 2],
    /// SQLite's number of what other connections had committed when the first of them was learnt.
    data_version: i64,
}

/// What is known of a queue.
#[derive(Default)]
struct Known {
    skipped: Option<Skipped>,
    /// By priority: the place before which no job may be delivered.
    floors: BTreeMap<i64, Place>,
}

impl Entries {
    fn is_empty(&self) -> bool {
        self.by_queue.iter().all(HashMap::is_empty)
    }

    fn clear(&mut self) {
        self.by_queue.iter_mut().for_each(HashMap::clear);
    }
}

impl Known {
    /// A job was written, and is like this now.
    fn note(&mut self, meta: &Meta, is_scheduled: bool) {
        let (priority, run_at, id) = (i64::from(meta.priority), meta.run_at.millis(), meta.id.as_str());
        if let Some(floor) = self.floors.get_mut(&priority)
            && (run_at, id) < (floor.run_at, floor.id.as_str())
        {
            *floor = Place { run_at, id: id.to_owned() };
        }
        let Some(skipped) = &mut self.skipped else { return };
        if priority < skipped.down_to || meta.run_at >= skipped.until {
            return;
        }
        if is_scheduled {
            skipped.until = meta.run_at;
        } else {
            skipped.down_to = priority.saturating_add(1);
        }
    }
}

impl SkippedCache {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn of(&self, queue: &QueueName, pop: bool, now: Timestamp) -> Option<Skipped> {
        let entries = self.entries();
        let known = entries.by_queue[usize::from(pop)].get(queue)?;
        known.skipped.filter(|skipped| skipped.until > now)
    }

    /// Returns where a read of this priority may begin: no job before that may be delivered.
    pub fn floor(&self, queue: &QueueName, pop: bool, priority: i64) -> Place {
        let entries = self.entries();
        let known = entries.by_queue[usize::from(pop)].get(queue);
        known.and_then(|known| known.floors.get(&priority)).cloned().unwrap_or_else(Place::first)
    }

    fn remember(&self, db: &Connection, of: (&QueueName, bool), skipped: Skipped) -> Result<(), Fault> {
        self.learn(db, of, |known| known.skipped = Some(skipped))
    }

    fn raise(
        &self,
        db: &Connection,
        of: (&QueueName, bool),
        priority: i64,
        floor: Place,
    ) -> Result<(), Fault> {
        self.learn(db, of, |known| {
            // What was learnt last is kept: a claim that goes on in another transaction begins there. The priorities above are skipped then.
            if known.floors.len() >= FLOORS_MAX && !known.floors.contains_key(&priority) {
                known.floors.pop_last();
            }
            known.floors.insert(priority, floor);
        })
    }

    fn learn(
        &self,
        db: &Connection,
        (queue, pop): (&QueueName, bool),
        learn: impl FnOnce(&mut Known),
    ) -> Result<(), Fault> {
        let mut entries = self.entries();
        if entries.is_empty() {
            entries.data_version = data_version(db)?;
        }
        let by_queue = &mut entries.by_queue[usize::from(pop)];
        if by_queue.len() >= QUEUES_MAX && !by_queue.contains_key(queue) {
            by_queue.clear();
        }
        learn(by_queue.entry(queue.clone()).or_default());
        Ok(())
    }

    /// A job was written, and is like this now: if it comes due where nothing was expected before, the walk goes by it again. A floor
    /// behind it is lowered to its place.
    pub fn note(&self, meta: &Meta, is_scheduled: bool) {
        if meta.state != State::Ready {
            return;
        }
        for (by_queue, pop) in self.entries().by_queue.iter_mut().zip([false, true]) {
            if pop && !meta.semaphores.is_empty() {
                continue; // a pop passes over it wherever it is
            }
            if let Some(known) = by_queue.get_mut(&meta.queue) {
                known.note(meta, is_scheduled);
            }
        }
    }

    /// Forgets all that it knows: what that was learnt from is not so.
    pub fn clear(&self) {
        self.entries().clear();
    }

    /// Forgets all that it knows, if another program has written since it was learnt. The thread that writes calls this at the
    /// beginning of each transaction.
    pub fn clear_if_stale(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut entries = self.entries();
        if !entries.is_empty() && entries.data_version != data_version(db)? {
            entries.clear();
        }
        Ok(())
    }
}

/// Returns SQLite's number of what other connections have committed, as this one sees it.
fn data_version(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}
